"""Further methods: each has its use, and the front door has one that is better on average."""

from dpkernel.estimators.curator import PrivateCurator
from dpkernel.estimators.grid import PrivateGridRegressor
from dpkernel.estimators.robust import PrivateHuberRegressor
from dpkernel.estimators.sgd import PrivateSGDClassifier, PrivateSGDRegressor
from dpkernel.estimators.sketched_ridge import PrivateSketchedRidge
from dpkernel.estimators.support_vectors import PrivateKernelSVC, PrivateKernelSVR

__all__ = [
    "PrivateCurator",
    "PrivateGridRegressor",
    "PrivateHuberRegressor",
    "PrivateKernelSVC",
    "PrivateKernelSVR",
    "PrivateSGDClassifier",
    "PrivateSGDRegressor",
    "PrivateSketchedRidge",
]
