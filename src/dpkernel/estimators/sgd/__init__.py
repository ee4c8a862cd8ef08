"""Private stochastic gradient descent: noise on the output, or on every gradient."""

from dpkernel.estimators.sgd.classifier import PrivateSGDClassifier
from dpkernel.estimators.sgd.regressor import PrivateSGDRegressor

__all__ = ["PrivateSGDClassifier", "PrivateSGDRegressor"]
