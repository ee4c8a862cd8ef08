"""Imports of modules by the names that they had before they moved into subpackages ("rooms").

``import dpkernel.ledger`` gives the module ``dpkernel.privacy.ledger`` itself, not a copy. So
programs and pickles written before version 0.3 continue to work.

The two classes follow the protocols of ``importlib`` and have no base classes, because importing those
takes much of the time in which a command can't yet answer Ctrl-C.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from types import ModuleType
from typing import Any

ROOM_OF = {
    **dict.fromkeys(
        ("archive", "entropy", "errors", "rounding", "threads", "types"), "foundations"
    ),
    "validation": "foundations",
    **dict.fromkeys(("blocks", "cells", "domain", "table_files", "tables"), "data"),
    **dict.fromkeys(("features", "kernels", "losses"), "models"),
    **dict.fromkeys(("agreement", "certificate", "filters", "folds", "ledger"), "privacy"),
    **dict.fromkeys(("ledger_file", "ledger_store", "mechanisms", "noise", "pld"), "privacy"),
    **dict.fromkeys(("profiles", "samplers", "sensitivity", "statistics"), "privacy"),
    "unit_statistics": "privacy",
    **dict.fromkeys(("demo", "model_file", "onnx_export", "report"), "outputs"),
    **dict.fromkeys(("audit", "papers", "reproduce"), "proof"),
}


class OldPaths:
    """Finds a module in its room if it is imported by its old name."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the present place of the module, or None for a module that did not move."""
        package, _, rest = name.partition(".")
        room = ROOM_OF.get(rest.partition(".")[0]) if package == "dpkernel" else None
        if room is None:
            return None
        now = find_spec(f"dpkernel.{room}.{rest}")
        if now is None:
            return None
        if rest.endswith(".__main__"):  # python -m runs the file under the requested name
            return spec_from_file_location(name, now.origin)
        is_package = now.submodule_search_locations is not None
        loader: Any = _SameModule(now)
        return ModuleSpec(name, loader, origin=now.origin, is_package=is_package)


class _SameModule:
    def __init__(self, now: ModuleSpec) -> None:
        self.now = now

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module itself."""
        return import_module(self.now.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing again; restore what the import system has overwritten in the module."""
        module.__spec__ = self.now


def install() -> None:
    """Make the old names importable, before the folders of the package are searched."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldPaths())
