"""dpkernel: private kernel models for tabular data, with a certificate anyone can verify."""

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
from dpkernel.version import __version__

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
