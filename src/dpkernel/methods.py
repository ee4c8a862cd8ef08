"""Further methods: each has its use, and the front door has one that is better on average."""

from dpkernel.estimators.robust import PrivateHuberRegressor
from dpkernel.estimators.sgd import PrivateSGDClassifier, PrivateSGDRegressor
from dpkernel.estimators.sketched_ridge import PrivateSketchedRidge

__all__ = [
    "PrivateHuberRegressor",
    "PrivateSGDClassifier",
    "PrivateSGDRegressor",
    "PrivateSketchedRidge",
]
