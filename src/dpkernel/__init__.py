"""dpkernel: private kernel models for tabular data, with a certificate anyone can verify.

Importing the package loads nothing but this file; every name loads its module when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpkernel.version import __version__

if TYPE_CHECKING:
    from dpkernel import mechanisms, methods, profiles, selection
    from dpkernel.blocks import BlockStream
    from dpkernel.certificate import Certificate
    from dpkernel.domain import Domain, Interval, Levels
    from dpkernel.estimators import (
        PrivateKernelClassifier,
        PrivateKernelRegressor,
        PrivateKernelRidge,
        PrivateQuantileRegressor,
    )
    from dpkernel.estimators.gram_statistics import GramStatistics
    from dpkernel.ledger import Ledger
    from dpkernel.model_file import load, read_header, save, verify_file
    from dpkernel.noise import OpenDPNoise, SeededNoise, SystemNoise
    from dpkernel.onnx_export import to_onnx
    from dpkernel.selection import PrivateSearchCV, private_score
    from dpkernel.types import Budget, Neighbours

# every public name, under the module that it comes from
_HOMES = {
    "blocks": ("BlockStream",),
    "certificate": ("Certificate",),
    "domain": ("Domain", "Interval", "Levels"),
    "estimators": (
        "PrivateKernelClassifier",
        "PrivateKernelRegressor",
        "PrivateKernelRidge",
        "PrivateQuantileRegressor",
    ),
    "estimators.gram_statistics": ("GramStatistics",),
    "ledger": ("Ledger",),
    "model_file": ("load", "read_header", "save", "verify_file"),
    "noise": ("OpenDPNoise", "SeededNoise", "SystemNoise"),
    "onnx_export": ("to_onnx",),
    "selection": ("PrivateSearchCV", "private_score"),
    "types": ("Budget", "Neighbours"),
}
_MODULES = ("mechanisms", "methods", "profiles", "selection")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "BlockStream",
    "Budget",
    "Certificate",
    "Domain",
    "GramStatistics",
    "Interval",
    "Ledger",
    "Levels",
    "Neighbours",
    "OpenDPNoise",
    "PrivateKernelClassifier",
    "PrivateKernelRegressor",
    "PrivateKernelRidge",
    "PrivateQuantileRegressor",
    "PrivateSearchCV",
    "SeededNoise",
    "SystemNoise",
    "__version__",
    "load",
    "mechanisms",
    "methods",
    "private_score",
    "profiles",
    "read_header",
    "save",
    "selection",
    "to_onnx",
    "verify_file",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    if name in _MODULES:
        return import_module(f"dpkernel.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dpkernel' has no attribute {name!r}")
    found = getattr(import_module(f"dpkernel.{_HOME_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})
