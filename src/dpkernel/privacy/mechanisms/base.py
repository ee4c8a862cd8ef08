"""The base class of all mechanisms, and the checks and grids that they share."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from dpkernel.data.tables import as_floats
from dpkernel.foundations.errors import (
    AssumptionError,
    CertificateError,
    NoiseError,
    ParameterError,
    parameter_message,
)
from dpkernel.foundations.types import JSON, Array, Budget, IntArray, is_real, is_whole
from dpkernel.privacy.noise import Noise, NoiseSource
from dpkernel.privacy.profiles import PrivacyProfile
from dpkernel.privacy.sensitivity import Sensitivity, declared, sensitivity_from_dict

IDEALISED = "idealised-arithmetic"
LARGEST_INT = 2.0**62  # values are clamped to this size before noise is added
UP = 1 + 4e-16


class Mechanism(ABC):
    """A way to release the value of a query with noise, together with its privacy profile.

    Attributes
    ----------
    kind : str
        The name of the mechanism in certificates.
    sensitivity : Sensitivity
        How far the value can differ between neighbouring data sets.
    assumptions : tuple of str
        The names of the idealised assumptions that the guarantee rests on. The user must accept
        each of them.
    reference : str
        The literature behind the guarantee.
    """

    kind: ClassVar[str]
    reference: ClassVar[str]
    assumptions: ClassVar[tuple[str, ...]] = ()
    sensitivity: Any

    def __init_subclass__(cls, **options: Any) -> None:
        """Let releases go through the resume file of a fit, if it has one."""
        super().__init_subclass__(**options)
        for name in ("release", "release_gram"):
            if name in cls.__dict__:
                setattr(cls, name, _made_once(cls.__dict__[name]))

    @abstractmethod
    def profile(self) -> PrivacyProfile:
        """Return the profile of one release, computed from the parameters alone."""

    @abstractmethod
    def release(self, value: Any, noise: Noise) -> Any:
        """Return the noisy value.

        Parameters
        ----------
        value : array-like
            The value without noise.
        noise : Noise
            The noise of a recorded spend: ``ledger.spend(self.profile(), label)``.
        """

    @property
    @abstractmethod
    def noise_scale(self) -> float:
        """The scale of the noise in the units of the released value."""

    def to_dict(self) -> JSON:
        """Return the parameters as JSON values; ``mechanism_from_dict`` rebuilds the mechanism."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]
        values["sensitivity"] = self.sensitivity.to_dict()
        return {
            "kind": self.kind,
            **{name: list(v) if isinstance(v, tuple) else v for name, v in values.items()},
            "noise_scale": self.noise_scale,
            "assumptions": list(self.assumptions),
            "reference": self.reference,
        }

    def _claim(self, noise: Noise) -> NoiseSource:
        if not isinstance(noise, Noise):
            raise NoiseError(
                f"{type(self).__name__}.release needs the noise of a recorded spend. Call"
                " noise = ledger.spend(mechanism.profile(), label) first."
            )
        if noise.neighbours is not self.sensitivity.neighbours:
            raise NoiseError(
                f"The spend was recorded in a ledger of {noise.neighbours.value!r} neighbours, but this"
                f" mechanism was calibrated for {self.sensitivity.neighbours.value!r}."
            )
        return noise.claim(self.profile(), mechanism=self)


class Idealised(Mechanism):
    """A mechanism that is proved for real numbers only, and whose user has accepted that by name."""

    assumptions: ClassVar[tuple[str, ...]] = (IDEALISED,)
    _positive: ClassVar[tuple[str, ...]]  # the parameters that are positive numbers
    _counts: ClassVar[tuple[str, ...]] = ("dimension",)
    accepted: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "accepted", tuple(self.accepted))
        require_accepted(self, self.accepted)
        check_sensitivity(self, Sensitivity, "l2")
        check_numbers(self, positive=self._positive, counts=self._counts)


def _made_once(release: Callable[..., Any]) -> Callable[..., Any]:
    """Return a release that is read from the resume file of its fit where it was made before."""

    @functools.wraps(release)
    def kept(self: Mechanism, value: Any, noise: Noise, *more: Any, **options: Any) -> Any:
        journal = noise.journal if isinstance(noise, Noise) else None
        if journal is None:
            return release(self, value, noise, *more, **options)
        return journal.once(
            self, lambda: self._claim(noise), lambda: release(self, value, noise, *more, **options)
        )

    return kept


REGISTRY: dict[str, type[Mechanism]] = {}
# mechanisms that are composed of others and release the result of a procedure, not of a value
PROCEDURES: dict[str, type[Mechanism]] = {}
Kind = TypeVar("Kind", bound=type[Mechanism])


def register(cls: Kind) -> Kind:
    """Register a mechanism so that certificates can name it by its kind; a class decorator."""
    REGISTRY[cls.kind] = cls
    return cls


def register_procedure(cls: Kind) -> Kind:
    """Register a procedure composed of mechanisms for certificates; a class decorator."""
    PROCEDURES[cls.kind] = cls
    return cls


def mechanism_from_dict(data: JSON) -> Mechanism:
    """Return the mechanism that ``to_dict`` described.

    Parameters
    ----------
    data : dict
        JSON values, as ``to_dict`` returns them.

    Raises
    ------
    CertificateError
        If they describe no mechanism.
    """
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


def require_accepted(mechanism: type[Mechanism] | Mechanism, accept: Iterable[str]) -> None:
    """Raise unless the user accepted every assumption that the mechanism rests on.

    Parameters
    ----------
    mechanism : Mechanism or class
        What states the ``assumptions``.
    accept : iterable of str
        The names of the assumptions that the user accepts.

    Raises
    ------
    AssumptionError
        If one of them was not accepted.
    """
    missing = [name for name in mechanism.assumptions if name not in set(accept)]
    if missing:
        raise AssumptionError(
            f"The {mechanism.kind} mechanism rests on the assumption {missing[0]!r}, which this"
            f" library can't prove. Pass accept=({missing[0]!r},) to accept it; the certificate will"
            " name it."
        )


def scale(sigma: float) -> float:
    """Return the discrete parameter s >= sqrt(sigma^2 + 4), rounded up."""
    return math.nextafter(math.sqrt(sigma * sigma + 4) * (1 + 1e-15), math.inf)


def choose_grid(sensitivity: float, spread: float, mu: float, magnitude: float | None) -> float:
    """Return the power of two to which values are rounded; it depends on public numbers only.

    The grid is near 2^-20 of the sensitivity. It is coarser if the noise or the values would not
    fit in 62 bits, and finer if the noise would span less than 8 steps.
    """
    wanted = math.log2(sensitivity) - 20 - math.log2(spread)
    coarse_enough = math.log2(sensitivity) - math.log2(mu) - 56
    if magnitude is not None:
        if not 0 <= magnitude < math.inf:
            raise ParameterError(
                parameter_message("calibrate", "magnitude", "a finite float >= 0", magnitude)
            )
        coarse_enough = max(coarse_enough, math.log2(max(float(magnitude), 1e-300)) - 61)
    fine_enough = math.log2(sensitivity) - math.log2(mu) - 3
    exponent = min(math.floor(max(wanted, coarse_enough + 1)), math.floor(fine_enough))
    if exponent < coarse_enough or not -1000 < exponent < 1000:
        raise ParameterError(
            parameter_message(
                "calibrate",
                "sensitivity",
                "such that value and noise fit on one 62-bit grid",
                sensitivity,
                "Rescale the query, lower epsilon, or state a smaller magnitude.",
            )
        )
    return 2.0**exponent


def as_sensitivity(value: Sensitivity | float, norm: str = "l2") -> Sensitivity:
    """Return a sensitivity in this norm; a plain number is recorded as "declared"."""
    if not isinstance(value, Sensitivity):
        return declared(value, norm=norm)
    if value.norm != norm:
        raise ParameterError(
            parameter_message("calibrate", "sensitivity", f"one in the {norm} norm", value.norm)
        )
    return value


def check_common(owner: str, size: int, rounding: float, name: str = "dimension") -> None:
    """Raise for a size or a rounding error that is impossible for every mechanism."""
    if not is_whole(size) or not 1 <= size <= 10**13:
        raise ParameterError(parameter_message(owner, name, "an int >= 1", size))
    if not is_real(rounding) or not 0 <= rounding < math.inf:
        raise ParameterError(parameter_message(owner, "rounding", "a finite float >= 0", rounding))


def check_vector(owner: str, value: Any, length: int) -> None:
    """Raise unless the value is a vector of this length."""
    if np.shape(value) != (length,):
        allowed, got = f"an array of shape ({length},)", f"shape {np.shape(value)}"
        raise ParameterError(parameter_message(owner, "value", allowed, got))


def check_sensitivity(mechanism: Mechanism, kind: type, norm: str) -> None:
    """Raise unless the sensitivity has this type and this norm."""
    found = mechanism.sensitivity
    if not isinstance(found, kind) or found.norm != norm:  # type: ignore[attr-defined]
        got = f"{type(found).__name__} in the {getattr(found, 'norm', 'unknown')} norm"
        raise ParameterError(
            parameter_message(
                type(mechanism).__name__,
                "sensitivity",
                f"a {kind.__name__} in the {norm} norm",
                got,
            )
        )


def check_numbers(mechanism: Any, positive: tuple[str, ...], counts: tuple[str, ...]) -> None:
    """Check the parameters of a mechanism, even of one read from a file; turn counts into ints."""
    owner = type(mechanism).__name__
    for name in positive:
        value = getattr(mechanism, name)
        if not is_real(value) or not 1e-280 < value < 1e280:
            allowed = "a float in the range (1e-280, 1e280)"
            raise ParameterError(parameter_message(owner, name, allowed, value))
        object.__setattr__(mechanism, name, float(value))
        if name == "grid" and math.frexp(value)[0] != 0.5:
            raise ParameterError(parameter_message(owner, name, "a power of two", value))
    for name in counts:
        check_common(owner, getattr(mechanism, name), getattr(mechanism, "rounding", 0.0), name)
        object.__setattr__(mechanism, name, int(getattr(mechanism, name)))
    if hasattr(mechanism, "rounding"):
        object.__setattr__(mechanism, "rounding", float(mechanism.rounding))
    claimed = mechanism.noise_scale  # if it overflowed or underflowed, the claim would be empty
    if not 1e-290 < claimed < 1e290 or not 1e-290 < mechanism.sensitivity.value < 1e290:
        allowed = "such that noise scale and sensitivity lie in (1e-290, 1e290)"
        raise ParameterError(parameter_message(owner, "sensitivity, scale", allowed, claimed))


def to_steps(value: Any, grid: float) -> IntArray:
    """Round values to integers on the grid and clamp them.

    No error or warning depends on the values.
    """
    value = np.asarray(value)
    if not np.issubdtype(value.dtype, np.integer):
        value = as_floats(value, "The value to release")
    else:  # a float would round integers beyond 2^53; clipping them is 1-Lipschitz
        value = np.clip(value, -(2**53), 2**53)
    with np.errstate(all="ignore"):
        steps = np.nan_to_num(value.astype(np.float64) / grid, nan=0.0)
        return np.asarray(np.rint(np.clip(steps, -LARGEST_INT, LARGEST_INT)).astype(np.int64))


def clamped(value: Any, grid: float, name: str = "The value to release") -> Array:
    """Return finite numbers to which noise in double precision is added, before the rounding."""
    limit = LARGEST_INT * grid
    return np.asarray(np.clip(np.nan_to_num(as_floats(value, name)), -limit, limit))


def end_on_private_side(found: Any, budget: Budget) -> Any:
    """Enlarge sigma by single ulps until the profile supports the budget in both directions."""
    factor = UP
    profile = found.profile()
    while not profile.supports(budget) or profile.epsilon(budget.delta) > budget.epsilon:
        values = {f.name: getattr(found, f.name) for f in fields(found)}
        values["sigma"] = math.nextafter(found.sigma * factor, math.inf)
        found = type(found)(**values)
        profile = found.profile()
        factor = 1 + 2 * (factor - 1)
    return found
