"""The scikit-learn classes: those that ``dpkernel`` exports, and those in ``dpkernel.methods``."""

from dpkernel.estimators.classifier import PrivateKernelClassifier
from dpkernel.estimators.curator import PrivateCurator
from dpkernel.estimators.grid import PrivateGridRegressor
from dpkernel.estimators.regressor import PrivateKernelRegressor
from dpkernel.estimators.ridge import PrivateKernelRidge
from dpkernel.estimators.robust import PrivateHuberRegressor, PrivateQuantileRegressor
from dpkernel.estimators.sgd import PrivateSGDClassifier, PrivateSGDRegressor
from dpkernel.estimators.sketched_ridge import PrivateSketchedRidge
from dpkernel.estimators.support_vectors import PrivateKernelSVC, PrivateKernelSVR

__all__ = [
    "PrivateCurator",
    "PrivateGridRegressor",
    "PrivateHuberRegressor",
    "PrivateKernelClassifier",
    "PrivateKernelRegressor",
    "PrivateKernelRidge",
    "PrivateKernelSVC",
    "PrivateKernelSVR",
    "PrivateQuantileRegressor",
    "PrivateSGDClassifier",
    "PrivateSGDRegressor",
    "PrivateSketchedRidge",
]
