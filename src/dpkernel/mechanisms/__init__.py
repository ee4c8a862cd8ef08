r"""Mechanisms: calibrate to a budget, state a profile, release with noise a ledger handed out.

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

Every released number lies on a grid and, but for mechanisms of idealised reals, the noise is an exact
integer draw, so that the guarantee holds for the floating-point program. Calibration
ends on the private side: ``profile().epsilon(delta) <= epsilon`` holds as a comparison of floats.

A new mechanism is a class here and a line in the registry at the foot of this file; the contract
tests then cover it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

from dpkernel.errors import CertificateError
from dpkernel.mechanisms.base import IDEALISED, Mechanism, require_accepted
from dpkernel.mechanisms.functional import FunctionalGaussian, NoisyFunction
from dpkernel.mechanisms.gaussian import Gaussian, MixtureGaussian, SymmetricGaussian
from dpkernel.mechanisms.mixing import GaussianMixing
from dpkernel.mechanisms.objective import ObjectivePerturbation, PureObjectivePerturbation
from dpkernel.mechanisms.pure import Exponential, L2Gamma, Laplace
from dpkernel.mechanisms.sampled import SampledGaussian
from dpkernel.mechanisms.selection import HeldOutChoice, RandomStopping
from dpkernel.sensitivity import sensitivity_from_dict
from dpkernel.types import JSON

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


def mechanism_from_dict(data: JSON) -> Mechanism:
    """Return the mechanism that ``to_dict`` described."""
    try:
        kind = data["kind"]
        cls: Any = PROCEDURES[kind] if kind in PROCEDURES else REGISTRY[kind]
        names = {f.name for f in fields(cls)} - {"sensitivity"}
        arguments = {name: data[name] for name in names}
        found = cls(sensitivity=sensitivity_from_dict(data["sensitivity"]), **arguments)
        found.profile()
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, CertificateError):
            raise
        known = ", ".join(sorted(REGISTRY))
        raise CertificateError(
            f"A mechanism of this certificate can't be read ({type(error).__name__}: {error}). Its"
            f" 'kind' must be one of {known}, with that kind's parameters."
        ) from error
    return cast(Mechanism, found)


REGISTRY: dict[str, type[Mechanism]] = {
    cls.kind: cls
    for cls in (
        Gaussian,
        SymmetricGaussian,
        MixtureGaussian,
        SampledGaussian,
        Laplace,
        L2Gamma,
        FunctionalGaussian,
        Exponential,
        GaussianMixing,
        ObjectivePerturbation,
        PureObjectivePerturbation,
    )
}

# made of other mechanisms and given a procedure instead of a value; read from certificates likewise
PROCEDURES: dict[str, type[Mechanism]] = {cls.kind: cls for cls in (RandomStopping, HeldOutChoice)}
