"""dpkernel: private kernel models for tabular data, with a certificate anyone can verify.

Importing the package loads almost nothing. A public name loads its module when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpkernel.foundations import old_paths
from dpkernel.version import __version__

if TYPE_CHECKING:
    from dpkernel import methods, selection
    from dpkernel.data.blocks import BlockStream
    from dpkernel.data.cache import set_cache
    from dpkernel.data.domain import Domain, Interval, Levels
    from dpkernel.data.people import People
    from dpkernel.data.table_files import read_table
    from dpkernel.estimators import (
        PrivateKernelClassifier,
        PrivateKernelRegressor,
        PrivateKernelRidge,
        PrivateQuantileRegressor,
    )
    from dpkernel.estimators.gram_statistics import GramStatistics
    from dpkernel.estimators.surroundings import check_pipeline
    from dpkernel.foundations.types import AddRemove, Budget, Neighbours
    from dpkernel.outputs.model_file import load, read_header, save, verify_file
    from dpkernel.outputs.onnx_export import to_onnx
    from dpkernel.preprocessing.files import fit_table
    from dpkernel.privacy import mechanisms, profiles
    from dpkernel.privacy.certificate import Certificate
    from dpkernel.privacy.ledger import Ledger
    from dpkernel.privacy.noise import OpenDPNoise, SeededNoise, SystemNoise
    from dpkernel.selection import PrivateSearchCV, private_score

old_paths.install()

# every public name, listed under its module
_HOMES = {
    "data.blocks": ("BlockStream",),
    "data.cache": ("set_cache",),
    "privacy.certificate": ("Certificate",),
    "data.domain": ("Domain", "Interval", "Levels"),
    "data.people": ("People",),
    "data.table_files": ("read_table",),
    "estimators": (
        "PrivateKernelClassifier",
        "PrivateKernelRegressor",
        "PrivateKernelRidge",
        "PrivateQuantileRegressor",
    ),
    "estimators.gram_statistics": ("GramStatistics",),
    "estimators.surroundings": ("check_pipeline",),
    "privacy.ledger": ("Ledger",),
    "outputs.model_file": ("load", "read_header", "save", "verify_file"),
    "privacy.noise": ("OpenDPNoise", "SeededNoise", "SystemNoise"),
    "outputs.onnx_export": ("to_onnx",),
    "preprocessing.files": ("fit_table",),
    "selection": ("PrivateSearchCV", "private_score"),
    "foundations.types": ("AddRemove", "Budget", "Neighbours"),
}
_MODULES = {
    "mechanisms": "privacy.mechanisms",
    "methods": "methods",
    "profiles": "privacy.profiles",
    "selection": "selection",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AddRemove",
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
    "People",
    "PrivateKernelClassifier",
    "PrivateKernelRegressor",
    "PrivateKernelRidge",
    "PrivateQuantileRegressor",
    "PrivateSearchCV",
    "SeededNoise",
    "SystemNoise",
    "__version__",
    "check_pipeline",
    "fit_table",
    "load",
    "mechanisms",
    "methods",
    "private_score",
    "profiles",
    "read_header",
    "read_table",
    "save",
    "selection",
    "set_cache",
    "to_onnx",
    "verify_file",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in _MODULES:
        return import_module(f"dpkernel.{_MODULES[name]}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'dpkernel' has no attribute {name!r}")
    found = getattr(import_module(f"dpkernel.{_HOME_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted({*globals(), *__all__})
