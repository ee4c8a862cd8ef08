"""The scikit-learn classes at the front door."""

from dpkernel.estimators.classifier import PrivateKernelClassifier
from dpkernel.estimators.ridge import PrivateKernelRidge

__all__ = ["PrivateKernelClassifier", "PrivateKernelRidge"]
