r"""Mechanisms: they calibrate noise to a budget, state their profile and release noisy values.

The available mechanisms are::

    Gaussian           N(0, sigma^2 I) on a vector
    SymmetricGaussian  on a symmetric matrix, isotropic in Frobenius norm
    MixtureGaussian    on a vector whose sensitivity is random (fresh algorithmic randomness)
    Laplace            on a vector, pure epsilon, l1 sensitivity
    L2Gamma            on a vector, pure epsilon, l2 sensitivity (idealised reals)
    ObjectivePerturbation, PureObjectivePerturbation
                       noise inside a convex optimisation problem
    FunctionalGaussian
                       on a function of a reproducing kernel space (idealised reals)
    SampledGaussian    on an integer sum over a random batch that it draws itself
    GaussianMixing     a sketch: random combinations of all records (idealised reals)
    Exponential        choice of one of several candidates, pure epsilon
    RandomStopping, HeldOutChoice
                       searches over private fits, each a whole procedure

Every released number lies on a grid. Except for the mechanisms marked "idealised reals", the noise
is an exact integer draw, so the guarantee holds for the floating-point program and not only on
paper. Calibration ends on the private side: ``profile().epsilon(delta) <= epsilon`` holds as a
comparison of floats.

To add a mechanism, write a class with the decorator ``register`` and import it here. The contract
tests then cover it.
"""

from __future__ import annotations

from dpkernel.privacy.mechanisms.base import (
    IDEALISED,
    PROCEDURES,
    REGISTRY,
    Mechanism,
    mechanism_from_dict,
    require_accepted,
)
from dpkernel.privacy.mechanisms.functional import FunctionalGaussian, NoisyFunction
from dpkernel.privacy.mechanisms.gaussian import Gaussian, MixtureGaussian, SymmetricGaussian
from dpkernel.privacy.mechanisms.mixing import GaussianMixing
from dpkernel.privacy.mechanisms.objective import ObjectivePerturbation, PureObjectivePerturbation
from dpkernel.privacy.mechanisms.pure import Exponential, L2Gamma, Laplace
from dpkernel.privacy.mechanisms.sampled import SampledGaussian
from dpkernel.privacy.mechanisms.selection import HeldOutChoice, RandomStopping

__all__ = [
    "IDEALISED",
    "PROCEDURES",
    "REGISTRY",
    "Exponential",
    "FunctionalGaussian",
    "Gaussian",
    "GaussianMixing",
    "HeldOutChoice",
    "L2Gamma",
    "Laplace",
    "Mechanism",
    "MixtureGaussian",
    "NoisyFunction",
    "ObjectivePerturbation",
    "PureObjectivePerturbation",
    "RandomStopping",
    "SampledGaussian",
    "SymmetricGaussian",
    "mechanism_from_dict",
    "require_accepted",
]
