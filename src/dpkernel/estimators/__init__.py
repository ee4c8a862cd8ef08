"""The scikit-learn classes at the front door."""

from dpkernel.estimators.ridge import PrivateKernelRidge

__all__ = ["PrivateKernelRidge"]
