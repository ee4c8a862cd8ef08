r"""Mechanisms: calibrate to a budget, state a profile, release with noise a ledger handed out.

    Gaussian           N(0, sigma^2 I) on a vector
    SymmetricGaussian  on a symmetric matrix, isotropic in Frobenius norm
    MixtureGaussian    on a vector whose sensitivity is random (fresh algorithmic randomness)
    Laplace            on a vector, pure epsilon, l1 sensitivity
    L2Gamma            on a vector, pure epsilon, l2 sensitivity (idealised reals)
    Exponential        choice of one of several candidates, pure epsilon

Every released number lies on a grid and the noise is an exact integer draw, so that the
guarantee holds for the floating-point program and not only for its idealisation. Calibration
ends on the private side: ``profile().epsilon(delta) <= epsilon`` holds as a comparison of floats.

A new mechanism is a class here and a line in the registry at the foot of this file; the contract
tests then cover it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, cast

import numpy as np

from dpkernel.errors import (
    AssumptionError,
    CertificateError,
    NoiseError,
    ParameterError,
    parameter_message,
)
from dpkernel.noise import Noise, NoiseSource
from dpkernel.profiles import (
    GaussianProfile,
    MixtureProfile,
    PrivacyProfile,
    PureProfile,
    gaussian_mu,
)
from dpkernel.sensitivity import RandomSensitivity, Sensitivity, declared, sensitivity_from_dict
from dpkernel.tables import as_floats
from dpkernel.types import JSON, Array, Budget, IntArray, Neighbours, is_real, is_whole

IDEALISED = "idealised-arithmetic"
_LARGEST_INT = 2.0**62  # values are clamped here before noise is added
_UP = 1 + 4e-16


class Mechanism(ABC):
    """A way to release a query's value, with the privacy profile that it has."""

    kind: ClassVar[str]
    reference: ClassVar[str]
    assumptions: ClassVar[tuple[str, ...]] = ()
    sensitivity: Any

    @abstractmethod
    def profile(self) -> PrivacyProfile:
        """Return the profile of one release, computed from the parameters alone."""

    @abstractmethod
    def release(self, value: Any, noise: Noise) -> Any:
        """Return the noisy value. ``noise`` comes from ``ledger.spend(self.profile(), label)``."""

    @property
    @abstractmethod
    def noise_scale(self) -> float:
        """The scale of the noise in the units of the released value."""

    def to_dict(self) -> JSON:
        """Return the parameters as JSON values, from which ``mechanism_from_dict`` rebuilds it."""
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
                f"The spend was recorded in a ledger of {noise.neighbours.value!r} neighbours and this"
                f" mechanism was calibrated for {self.sensitivity.neighbours.value!r}."
            )
        return noise.claim(self.profile())


@dataclass(frozen=True)
class _GridGaussian(Mechanism):
    """What the Gaussian mechanisms share: the grid, its enlarged sensitivity, the scale.

    ``sigma`` is the continuous calibration in grid steps. The discrete Gaussian of parameter
    sqrt(sigma^2 + 4) is, up to a factor 1 +- 2.1e-34 a coordinate, a post-processing of
    N(0, sigma^2); that factor is covered by the margin inside the Gaussian profile.
    """

    sensitivity: Any
    dimension: int
    sigma: float
    grid: float = 1.0
    rounding: float = 0.0
    integer: bool = False

    reference: ClassVar[str] = (
        "Balle & Wang (2018), analytic Gaussian mechanism; discrete on a grid"
    )

    @property
    def noise_scale(self) -> float:
        """The standard deviation of the continuous calibration, in the value's units."""
        return self.sigma * self.grid

    def __post_init__(self) -> None:
        law = MixtureGaussian.kind == self.kind
        _check_sensitivity(self, RandomSensitivity if law else Sensitivity, "l2")
        _check_numbers(self, positive=("sigma", "grid"), counts=("dimension",))
        if not isinstance(self.integer, bool) or (
            self.integer and (self.grid, self.rounding) != (1, 0)
        ):
            raise ParameterError(
                parameter_message(
                    type(self).__name__,
                    "integer",
                    "True only with grid 1 and rounding 0",
                    self.integer,
                )
            )

    def _enlarged(self, sensitivity: float) -> float:
        """Return the sensitivity after rounding to the grid, with twice the computing error."""
        if self.integer:
            return sensitivity
        spread = _grid_spread(self.kind, self.dimension)
        return (sensitivity + 2 * self.rounding + spread * self.grid) * (1 + 1e-15)

    def _mu(self, sensitivity: float) -> float:
        return self._enlarged(sensitivity) / (self.grid * self.sigma) * _UP

    def _on_grid(self, value: Any) -> Any:
        """Return the value as integers on the grid: clamped, never an error that tells of data."""
        if self.integer:
            return np.asarray(value, dtype=np.int64)
        return _steps(value, self.grid)

    def _off_grid(self, steps: Any) -> Any:
        return steps if self.integer else steps.astype(np.float64) * self.grid

    def _check_shape(self, value: Any, shape: tuple[int, ...]) -> None:
        if np.shape(value) != shape:
            got = f"shape {np.shape(value)}"
            raise ParameterError(
                parameter_message(type(self).__name__, "value", f"an array of shape {shape}", got)
            )
        if self.integer and not np.issubdtype(np.asarray(value).dtype, np.integer):
            got = f"dtype {np.asarray(value).dtype}"
            raise ParameterError(
                parameter_message(type(self).__name__, "value", "an array of integers", got)
            )

    @classmethod
    def _calibrated(
        cls,
        sensitivity: Any,
        mu: float,
        dimension: int,
        rounding: float,
        integer: bool,
        magnitude: float | None,
    ) -> Any:
        """Return the mechanism whose worst sensitivity has at most this mu."""
        _check_common(cls.__name__, dimension, rounding)
        dimension, rounding = int(dimension), float(rounding)
        spread = _grid_spread(cls.kind, dimension)
        grid = 1.0
        if not integer:
            grid = _choose_grid(sensitivity.value + 2 * rounding, spread, mu, magnitude)
        draft = cls(sensitivity, dimension, 1.0, grid, rounding, integer)
        sigma = draft._enlarged(sensitivity.value) / (grid * mu) * _UP
        return cls(sensitivity, dimension, sigma, grid, rounding, integer)

    @classmethod
    def calibrate(
        cls,
        sensitivity: Sensitivity | float,
        budget: Budget,
        *,
        dimension: int,
        rounding: float = 0.0,
        integer: bool = False,
        magnitude: float | None = None,
    ) -> Any:
        """Return the mechanism with the least noise that the budget allows.

        Parameters
        ----------
        sensitivity : Sensitivity or float
            L2 (Frobenius for matrices); a float is recorded as "declared".
        budget : Budget
            With delta > 0.
        dimension : int
            Length of the vector, or side of the matrix.
        rounding : float
            A bound, valid for every data set, on the l2 distance between the value as computed
            and the value whose sensitivity is stated.
        integer : bool
            The value is integers, exactly computed: no grid is needed.
        magnitude : float, optional
            A public bound on the entries; a coarser grid is chosen if they need it.
        """
        sensitivity = _as_sensitivity(sensitivity)
        mu = gaussian_mu(budget.epsilon, budget.delta)
        found = cls._calibrated(sensitivity, mu, dimension, rounding, integer, magnitude)
        return _end_on_private_side(found, budget)


@dataclass(frozen=True)
class Gaussian(_GridGaussian):
    r"""Add discrete N(0, sigma^2 I) to a vector.

    Guarantee    delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu),  mu = Delta/sigma,
                 exactly, for every eps.
    Sensitivity  L2, Delta = sup ||f(D) - f(D')||_2 over the stated neighbours.
    Numerics     values are rounded to a power-of-two grid h; Delta grows by 2 rounding + sqrt(d) h
                 (about 1e-6 of it); the noise is an exact discrete Gaussian.
    Reference    Balle & Wang (2018), Theorem 8.
    """

    kind: ClassVar[str] = "gaussian"

    def profile(self) -> GaussianProfile:
        """Return the exact Gaussian profile."""
        return GaussianProfile(self._mu(self.sensitivity.value))

    def release(self, value: Array, noise: Noise) -> Array:
        """Return the vector with noise."""
        self._check_shape(value, (self.dimension,))
        steps = self._on_grid(value)
        source = self._claim(noise)
        draws = source.discrete_gaussian(_scale(self.sigma), self.dimension)
        return np.asarray(self._off_grid(steps + draws))


@dataclass(frozen=True)
class SymmetricGaussian(_GridGaussian):
    r"""Add a symmetric Gaussian matrix: variance sigma^2 on the diagonal, sigma^2/2 off it.

    Independent entries with these variances are isotropic in Frobenius norm on the symmetric
    matrices, so this is the Gaussian mechanism there, with p(p+1)/2 draws.

    Guarantee    that of ``Gaussian`` with mu = Delta_F/sigma.
    Sensitivity  Frobenius; sqrt(2) N^2 for a Gram matrix of rows with norm <= N (replace-one). Of a
                 value that is not symmetric the lower triangle counts, mirrored.
    Numerics     as ``Gaussian``, with parameters sqrt(sigma^2 + 4) and sqrt(sigma^2/2 + 4).
    """

    kind: ClassVar[str] = "symmetric-gaussian"

    def profile(self) -> GaussianProfile:
        """Return the exact Gaussian profile."""
        return GaussianProfile(self._mu(self.sensitivity.value))

    def release(self, value: Any, noise: Noise) -> Any:
        """Return the symmetric matrix with noise."""
        side = self.dimension
        self._check_shape(value, (side, side))
        lower = np.tril(self._on_grid(value))
        source = self._claim(noise)
        lower[np.diag_indices(side)] += source.discrete_gaussian(_scale(self.sigma), side)
        off = np.tril_indices(side, -1)
        lower[off] += source.discrete_gaussian(_scale(self.sigma / math.sqrt(2)), len(off[0]))
        return np.asarray(self._off_grid(lower + np.tril(lower, -1).T))


@dataclass(frozen=True)
class MixtureGaussian(_GridGaussian):
    r"""Add discrete N(0, sigma^2 I) to a vector whose sensitivity is random.

    Guarantee    delta(eps) = E_I G(eps; Delta_I/sigma) + tail.
    Sensitivity  a law: the randomness I is fresh, data-independent and has one law for both
                 neighbours. It does not compose by mu^2.
    """

    kind: ClassVar[str] = "mixture-gaussian"

    def profile(self) -> MixtureProfile:
        """Return the mixture of Gaussian profiles."""
        law: RandomSensitivity = self.sensitivity
        mus = tuple(self._mu(value) for value in law.values)
        return MixtureProfile(mus, law.probabilities, law.tail)

    def release(self, value: Array, noise: Noise) -> Array:
        """Return the vector with noise."""
        return Gaussian.release(self, value, noise)  # type: ignore[arg-type]

    @classmethod
    def calibrate(  # type: ignore[override]
        cls,
        sensitivity: RandomSensitivity,
        budget: Budget,
        *,
        dimension: int,
        rounding: float = 0.0,
        integer: bool = False,
        magnitude: float | None = None,
    ) -> MixtureGaussian:
        """Return the mechanism with the least noise that the budget allows (bisection)."""
        if not isinstance(sensitivity, RandomSensitivity):
            raise ParameterError(
                parameter_message(
                    cls.__name__, "sensitivity", "a RandomSensitivity", type(sensitivity).__name__
                )
            )
        if not sensitivity.tail < budget.delta:
            raise ParameterError(
                parameter_message(
                    "MixtureGaussian",
                    "delta",
                    f"above the probability {sensitivity.tail:g} that the law leaves out",
                    budget.delta,
                )
            )

        def build(mu: float) -> MixtureGaussian:
            found: MixtureGaussian = cls._calibrated(
                sensitivity, mu, dimension, rounding, integer, magnitude
            )
            return found

        # mu of the largest sensitivity: from safe (all at the largest) to not safe
        low = gaussian_mu(budget.epsilon, budget.delta - sensitivity.tail) * (1 - 1e-9)
        high = low
        while build(high).profile().supports(budget) and high < low * 1e6:
            high *= 2
        for _ in range(50):
            middle = math.sqrt(low * high)
            low, high = (
                (middle, high) if build(middle).profile().supports(budget) else (low, middle)
            )
        found: MixtureGaussian = _end_on_private_side(build(low), budget)
        return found


@dataclass(frozen=True)
class Laplace(Mechanism):
    r"""Add discrete Laplace noise to a vector: pure epsilon, also in floating point.

    Guarantee    epsilon = Delta/b, pure.
    Sensitivity  L1, Delta = sup ||f(D) - f(D')||_1.
    Numerics     a power-of-two grid h; Delta grows by 2 rounding + d h; the noise is an exact
                 discrete Laplace, whose probability ratio at integer shifts is exactly e^(k/t).
    Reference    Dwork, McSherry, Nissim & Smith (2006); Ghosh, Roughgarden & Sundararajan (2009).
    """

    sensitivity: Sensitivity
    dimension: int
    scale: float  # in grid steps
    grid: float
    rounding: float = 0.0

    kind: ClassVar[str] = "laplace"
    reference: ClassVar[str] = "Dwork et al. (2006); discrete on a grid"

    def __post_init__(self) -> None:
        _check_sensitivity(self, Sensitivity, "l1")
        _check_numbers(self, positive=("scale", "grid"), counts=("dimension",))

    @property
    def noise_scale(self) -> float:
        """The Laplace parameter b in the value's units."""
        return self.scale * self.grid

    def _enlarged(self) -> float:
        total = self.sensitivity.value + 2 * self.rounding + self.dimension * self.grid
        return total * (1 + 1e-15)

    def profile(self) -> PureProfile:
        """Return the pure profile."""
        return PureProfile(self._enlarged() / (self.grid * self.scale) * _UP)

    def release(self, value: Array, noise: Noise) -> Array:
        """Return the vector with noise."""
        _check_vector("Laplace", value, self.dimension)
        steps = _steps(value, self.grid)
        source = self._claim(noise)
        draws = source.discrete_laplace(self.scale, self.dimension)
        return np.asarray((steps + draws).astype(np.float64) * self.grid)

    @classmethod
    def calibrate(
        cls,
        sensitivity: Sensitivity | float,
        budget: Budget,
        *,
        dimension: int = 1,
        rounding: float = 0.0,
        magnitude: float | None = None,
    ) -> Laplace:
        """Return the mechanism with the least noise for budget.epsilon; delta is not used."""
        sensitivity = _as_sensitivity(sensitivity, "l1")
        _check_common(cls.__name__, dimension, rounding)
        dimension, rounding = int(dimension), float(rounding)
        total = sensitivity.value + 2 * rounding
        grid = _choose_grid(total, float(dimension), budget.epsilon, magnitude)
        draft = cls(sensitivity, dimension, 1.0, grid, rounding)
        scale = draft._enlarged() / (grid * budget.epsilon) * _UP
        found = cls(sensitivity, dimension, scale, grid, rounding)
        while found.profile().epsilon_value > budget.epsilon:
            scale = math.nextafter(scale * _UP, math.inf)
            found = cls(sensitivity, dimension, scale, grid, rounding)
        return found


@dataclass(frozen=True)
class L2Gamma(Mechanism):
    r"""Add noise with density proportional to exp(-eps ||v||_2 / Delta) to a vector.

    Guarantee    epsilon, pure, in real arithmetic: by the triangle inequality.
    Sensitivity  L2.
    Numerics     a uniform direction times a Gamma(d, Delta/eps) radius, in floats, rounded to a
                 grid. No finite-precision theorem covers it: the user accepts
                 'idealised-arithmetic'. Smaller than Gaussian noise only for d up to about 17.
    Reference    Chaudhuri, Monteleoni & Sarwate (2011); Hardt & Talwar (2010).
    """

    sensitivity: Sensitivity
    dimension: int
    scale: float
    grid: float
    accepted: tuple[str, ...] = ()

    kind: ClassVar[str] = "l2-gamma"
    reference: ClassVar[str] = "Chaudhuri, Monteleoni & Sarwate (2011)"
    assumptions: ClassVar[tuple[str, ...]] = (IDEALISED,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "accepted", tuple(self.accepted))
        require_accepted(self, self.accepted)
        _check_sensitivity(self, Sensitivity, "l2")
        _check_numbers(self, positive=("scale", "grid"), counts=("dimension",))

    @property
    def noise_scale(self) -> float:
        """The scale Delta/eps of the radius."""
        return self.scale

    def profile(self) -> PureProfile:
        """Return the pure profile."""
        return PureProfile(self.sensitivity.value / self.scale * _UP)

    def release(self, value: Array, noise: Noise) -> Array:
        """Return the vector with noise, on the grid."""
        _check_vector("L2Gamma", value, self.dimension)
        limit = _LARGEST_INT * self.grid
        exact = np.clip(np.nan_to_num(as_floats(value, "The value to release")), -limit, limit)
        source = self._claim(noise)
        noisy = exact + source.l2_gamma(self.dimension, self.scale)
        return np.asarray(np.rint(noisy / self.grid) * self.grid)  # rounding once, afterwards

    @classmethod
    def calibrate(
        cls,
        sensitivity: Sensitivity | float,
        budget: Budget,
        *,
        dimension: int,
        accept: Iterable[str] = (),
    ) -> L2Gamma:
        """Return the mechanism for budget.epsilon; needs ``accept=("idealised-arithmetic",)``."""
        signed = tuple(accept)
        require_accepted(cls, signed)
        sensitivity = _as_sensitivity(sensitivity)
        _check_common(cls.__name__, dimension, 0.0)
        scale = sensitivity.value / budget.epsilon * _UP
        grid = 2.0 ** (math.floor(math.log2(scale)) - 30)
        found = cls(sensitivity, dimension, scale, grid, signed)
        while found.profile().epsilon_value > budget.epsilon:
            scale = math.nextafter(scale * _UP, math.inf)
            found = cls(sensitivity, dimension, scale, grid, signed)
        return found


@dataclass(frozen=True)
class Exponential(Mechanism):
    r"""Choose a candidate with probability proportional to exp(rate * utility).

    Guarantee    epsilon = 2 rate Delta, pure; rate Delta when all utilities move the same way
                 between neighbours (``monotone``).
    Sensitivity  Delta = the most that any one candidate's utility moves.
    Numerics     the law of argmax(rate * utility + Gumbel), drawn exactly through one lazily
                 refined uniform; ``rounding`` bounds the error of the utilities.
    Reference    McSherry & Talwar (2007).
    """

    sensitivity: Sensitivity
    rate: float
    candidates: int
    monotone: bool = False
    rounding: float = 0.0

    kind: ClassVar[str] = "exponential"
    reference: ClassVar[str] = "McSherry & Talwar (2007); exact categorical draw"

    def __post_init__(self) -> None:
        _check_sensitivity(self, Sensitivity, "score")
        _check_numbers(self, positive=("rate",), counts=("candidates",))
        if self.monotone is not False:
            relation = self.sensitivity.neighbours
            if self.monotone is not True or relation is Neighbours.REPLACE_ONE:
                advice = "A replaced record moves one sum up and another down."
                raise ParameterError(
                    parameter_message(
                        "Exponential", "monotone", "False under replace-one", self.monotone, advice
                    )
                )

    @property
    def noise_scale(self) -> float:
        """1 / rate, the scale of the equivalent Gumbel noise."""
        return 1.0 / self.rate

    def profile(self) -> PureProfile:
        """Return the pure profile."""
        moved = (self.sensitivity.value + 2 * self.rounding) * _UP
        return PureProfile((1 if self.monotone else 2) * self.rate * moved * _UP)

    def release(self, value: Array, noise: Noise) -> int:
        """Return the index of the chosen candidate; ``value`` holds one utility each."""
        _check_vector("Exponential", value, self.candidates)
        utilities = np.clip(np.nan_to_num(as_floats(value, "The utilities")), -1e300, 1e300)
        return self._claim(noise).categorical(utilities, self.rate)

    @classmethod
    def calibrate(
        cls,
        sensitivity: Sensitivity | float,
        budget: Budget,
        *,
        candidates: int,
        monotone: bool = False,
        rounding: float = 0.0,
    ) -> Exponential:
        """Return the mechanism for budget.epsilon.

        ``monotone`` is only true under zero-out and add-remove, for scores that are sums of
        terms of one sign; it is refused under replace-one.
        """
        sensitivity = _as_sensitivity(sensitivity, "score")
        _check_common(cls.__name__, candidates, rounding, "candidates")
        candidates, rounding = int(candidates), float(rounding)
        moved = sensitivity.value + 2 * rounding
        rate = budget.epsilon / ((1 if monotone else 2) * moved)
        found = cls(sensitivity, rate, candidates, monotone, rounding)
        while found.profile().epsilon_value > budget.epsilon:
            rate = math.nextafter(rate * (1 - 4e-16), 0.0)
            found = cls(sensitivity, rate, candidates, monotone, rounding)
        return found


def require_accepted(mechanism: type[Mechanism] | Mechanism, accept: Iterable[str]) -> None:
    """Raise unless the user signed every assumption that the mechanism rests on."""
    missing = [name for name in mechanism.assumptions if name not in set(accept)]
    if missing:
        raise AssumptionError(
            f"The {mechanism.kind} mechanism rests on the assumption {missing[0]!r}, which no"
            f" theorem of this library removes. Pass accept=({missing[0]!r},) to accept it; the"
            " certificate will say so."
        )


def mechanism_from_dict(data: JSON) -> Mechanism:
    """Return the mechanism that ``to_dict`` described."""
    try:
        cls: Any = REGISTRY[data["kind"]]
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


# --- helpers ------------------------------------------------------------------------------


def _scale(sigma: float) -> float:
    """Return the discrete parameter s >= sqrt(sigma^2 + 4), rounded up."""
    return math.nextafter(math.sqrt(sigma * sigma + 4) * (1 + 1e-15), math.inf)


def _grid_spread(kind: str, dimension: int) -> float:
    """Return how far rounding to a unit grid can move the difference of two values, in norm."""
    if kind == SymmetricGaussian.kind:
        return float(dimension)  # Frobenius norm of a side x side matrix of ones
    return math.sqrt(dimension) * _UP


def _choose_grid(sensitivity: float, spread: float, mu: float, magnitude: float | None) -> float:
    """Return the power of two at which values are rounded; it depends on public numbers only.

    Near 2^-20 of the sensitivity; coarser if the noise or the values would not fit in 62 bits,
    finer if the noise would be less than 8 steps.
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


def _as_sensitivity(value: Sensitivity | float, norm: str = "l2") -> Sensitivity:
    if not isinstance(value, Sensitivity):
        return declared(value, norm=norm)
    if value.norm != norm:
        raise ParameterError(
            parameter_message("calibrate", "sensitivity", f"one in the {norm} norm", value.norm)
        )
    return value


def _check_common(owner: str, size: int, rounding: float, name: str = "dimension") -> None:
    if not is_whole(size) or not 1 <= size <= 10**13:
        raise ParameterError(parameter_message(owner, name, "an int >= 1", size))
    if not is_real(rounding) or not 0 <= rounding < math.inf:
        raise ParameterError(parameter_message(owner, "rounding", "a finite float >= 0", rounding))


def _check_vector(owner: str, value: Any, length: int) -> None:
    if np.shape(value) != (length,):
        allowed, got = f"an array of shape ({length},)", f"shape {np.shape(value)}"
        raise ParameterError(parameter_message(owner, "value", allowed, got))


def _check_sensitivity(mechanism: Mechanism, kind: type, norm: str) -> None:
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


def _check_numbers(mechanism: Any, positive: tuple[str, ...], counts: tuple[str, ...]) -> None:
    """Check the parameters of a mechanism, also of one read from a file; make counts plain ints."""
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
        _check_common(owner, getattr(mechanism, name), getattr(mechanism, "rounding", 0.0), name)
        object.__setattr__(mechanism, name, int(getattr(mechanism, name)))
    if hasattr(mechanism, "rounding"):
        object.__setattr__(mechanism, "rounding", float(mechanism.rounding))
    claimed = mechanism.noise_scale  # overflow or underflow would make a claim of nothing
    if not 1e-290 < claimed < 1e290 or not 1e-290 < mechanism.sensitivity.value < 1e290:
        allowed = "such that noise scale and sensitivity lie in (1e-290, 1e290)"
        raise ParameterError(parameter_message(owner, "sensitivity, scale", allowed, claimed))


def _steps(value: Any, grid: float) -> IntArray:
    """Return values as integers on the grid: clamped, never an error or a warning that tells of data."""
    value = np.asarray(value)
    if not np.issubdtype(value.dtype, np.integer):
        value = as_floats(value, "The value to release")
    else:  # beyond 2^53 a float would round: clip, 1-Lipschitz
        value = np.clip(value, -(2**53), 2**53)
    with np.errstate(all="ignore"):
        steps = np.nan_to_num(value.astype(np.float64) / grid, nan=0.0)
        return np.asarray(np.rint(np.clip(steps, -_LARGEST_INT, _LARGEST_INT)).astype(np.int64))


def _end_on_private_side(found: Any, budget: Budget) -> Any:
    """Enlarge sigma by ulps until the profile supports the budget in both directions."""
    factor = _UP
    profile = found.profile()
    while not profile.supports(budget) or profile.epsilon(budget.delta) > budget.epsilon:
        values = {f.name: getattr(found, f.name) for f in fields(found)}
        values["sigma"] = math.nextafter(found.sigma * factor, math.inf)
        found = type(found)(**values)
        profile = found.profile()
        factor = 1 + 2 * (factor - 1)
    return found


REGISTRY: dict[str, type[Mechanism]] = {
    cls.kind: cls
    for cls in (Gaussian, SymmetricGaussian, MixtureGaussian, Laplace, L2Gamma, Exponential)
}
