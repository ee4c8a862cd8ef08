"""Mechanisms with pure epsilon-DP: Laplace noise, l2 noise and the choice among candidates."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np

from dpkernel.data.tables import as_floats
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.privacy.mechanisms.base import (
    UP,
    Idealised,
    Mechanism,
    as_sensitivity,
    check_common,
    check_numbers,
    check_sensitivity,
    check_vector,
    choose_grid,
    clamped,
    register,
    require_accepted,
    to_steps,
)
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.profiles import PureProfile
from dpkernel.privacy.sensitivity import Sensitivity

Scaled = TypeVar("Scaled", "Laplace", "L2Gamma")


def _within(found: Scaled, epsilon: float) -> Scaled:
    """Enlarge the scale of pure noise by single ulps until its profile is within epsilon."""
    while found.profile().epsilon_value > epsilon:
        found = replace(found, scale=math.nextafter(found.scale * UP, math.inf))
    return found


@register
@dataclass(frozen=True)
class Laplace(Mechanism):
    r"""Add discrete Laplace noise to a vector; pure epsilon-DP, also in floating point.

    Parameters
    ----------
    sensitivity : Sensitivity
        The l1 sensitivity Delta.
    dimension : int
        The length of the vector.
    scale : float
        The parameter of the discrete Laplace distribution, in grid steps.
    grid : float
        The power of two to which values are rounded.
    rounding : float
        A bound on the l1 distance between the computed and the exact value.

    Notes
    -----
    Guarantee
        epsilon = Delta/b, pure.
    Sensitivity
        L1: Delta = sup ||f(D) - f(D')||_1.
    Numerics
        Values are rounded to a power-of-two grid h, which enlarges Delta by 2 rounding + d h. The
        noise is an exact discrete Laplace variable, whose probability ratio at an integer shift k
        is exactly e^(k/t).

    References
    ----------
    Dwork, McSherry, Nissim & Smith (2006); Ghosh, Roughgarden & Sundararajan (2009).

    Examples
    --------
    >>> from dpkernel import Budget, Ledger, mechanisms
    >>> mechanism = mechanisms.Laplace.calibrate(1.0, Budget(1.0), dimension=3)
    >>> mechanism.profile().epsilon(0.0) <= 1.0
    True
    >>> noise = Ledger().spend(mechanism.profile(), "a sum")
    >>> mechanism.release([1.0, 2.0, 3.0], noise).shape
    (3,)
    """

    sensitivity: Sensitivity
    dimension: int
    scale: float  # in grid steps
    grid: float
    rounding: float = 0.0

    kind: ClassVar[str] = "laplace"
    reference: ClassVar[str] = "Dwork et al. (2006); discrete on a grid"

    def __post_init__(self) -> None:
        check_sensitivity(self, Sensitivity, "l1")
        check_numbers(self, positive=("scale", "grid"), counts=("dimension",))

    @property
    def noise_scale(self) -> float:
        """The Laplace parameter b, in the units of the value."""
        return self.scale * self.grid

    def _enlarged(self) -> float:
        total = self.sensitivity.value + 2 * self.rounding + self.dimension * self.grid
        return total * (1 + 1e-15)

    def profile(self) -> PureProfile:
        """Return the pure profile."""
        return PureProfile(self._enlarged() / (self.grid * self.scale) * UP)

    def release(self, value: Array, noise: Noise) -> Array:
        """Return the vector with noise."""
        check_vector("Laplace", value, self.dimension)
        steps = to_steps(value, self.grid)
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
        """Return the mechanism with the least noise for ``budget.epsilon``; delta is not used."""
        sensitivity = as_sensitivity(sensitivity, "l1")
        check_common(cls.__name__, dimension, rounding)
        dimension, rounding = int(dimension), float(rounding)
        total = sensitivity.value + 2 * rounding
        grid = choose_grid(total, float(dimension), budget.epsilon, magnitude)
        draft = cls(sensitivity, dimension, 1.0, grid, rounding)
        scale = draft._enlarged() / (grid * budget.epsilon) * UP
        return _within(cls(sensitivity, dimension, scale, grid, rounding), budget.epsilon)


@register
@dataclass(frozen=True)
class L2Gamma(Idealised):
    r"""Add noise with density proportional to exp(-eps ||v||_2 / Delta) to a vector.

    Parameters
    ----------
    sensitivity : Sensitivity
        The l2 sensitivity Delta.
    dimension : int
        The length of the vector.
    scale : float
        The scale Delta/eps of the radius.
    grid : float
        The power of two to which values are rounded.
    accepted : tuple of str
        The accepted assumptions, which must be ("idealised-arithmetic",).

    Notes
    -----
    Guarantee
        Pure epsilon-DP in real arithmetic, by the triangle inequality.
    Sensitivity
        L2.
    Numerics
        A uniform direction times a Gamma(d, Delta/eps) radius, in floats, rounded to a grid. No
        finite-precision theorem covers this, so the user must accept 'idealised-arithmetic'.

    The noise is smaller than Gaussian noise only for d up to about 17.

    References
    ----------
    Chaudhuri, Monteleoni & Sarwate (2011); Hardt & Talwar (2010).

    Examples
    --------
    >>> from dpkernel import Budget, mechanisms
    >>> accept = ("idealised-arithmetic",)
    >>> mechanism = mechanisms.L2Gamma.calibrate(1.0, Budget(1.0), dimension=3, accept=accept)
    >>> mechanism.profile().epsilon(0.0) <= 1.0
    True
    """

    sensitivity: Sensitivity
    dimension: int
    scale: float
    grid: float
    accepted: tuple[str, ...] = ()

    kind: ClassVar[str] = "l2-gamma"
    reference: ClassVar[str] = "Chaudhuri, Monteleoni & Sarwate (2011)"
    _positive: ClassVar[tuple[str, ...]] = ("scale", "grid")

    @property
    def noise_scale(self) -> float:
        """The scale Delta/eps of the radius."""
        return self.scale

    def profile(self) -> PureProfile:
        """Return the pure profile."""
        return PureProfile(self.sensitivity.value / self.scale * UP)

    def release(self, value: Array, noise: Noise) -> Array:
        """Return the vector with noise, on the grid."""
        check_vector("L2Gamma", value, self.dimension)
        exact = clamped(value, self.grid)
        source = self._claim(noise)
        noisy = exact + source.l2_gamma(self.dimension, self.scale)
        return np.asarray(np.rint(noisy / self.grid) * self.grid)  # round once, after the noise

    @classmethod
    def calibrate(
        cls,
        sensitivity: Sensitivity | float,
        budget: Budget,
        *,
        dimension: int,
        accept: Iterable[str] = (),
    ) -> L2Gamma:
        """Return the mechanism for ``budget.epsilon``; needs ``accept=("idealised-arithmetic",)``."""
        signed = tuple(accept)
        require_accepted(cls, signed)
        sensitivity = as_sensitivity(sensitivity)
        check_common(cls.__name__, dimension, 0.0)
        scale = sensitivity.value / budget.epsilon * UP
        grid = 2.0 ** (math.floor(math.log2(scale)) - 30)
        return _within(cls(sensitivity, dimension, scale, grid, signed), budget.epsilon)


@register
@dataclass(frozen=True)
class Exponential(Mechanism):
    r"""Choose a candidate with probability proportional to exp(rate * utility).

    Parameters
    ----------
    sensitivity : Sensitivity
        The sensitivity of the utilities.
    rate : float
        The factor of the utility in the exponent.
    candidates : int
        The number of candidates.
    monotone : bool
        Whether all utilities move in the same direction between neighbours.
    rounding : float
        A bound on the error of each computed utility.

    Notes
    -----
    Guarantee
        epsilon = 2 rate (Delta + 2 rounding), pure. If all utilities move in the same direction
        between neighbours (``monotone``), epsilon = rate (Delta + 4 rounding); rounding errors may
        have any sign, so they count in full on both sides.
    Sensitivity
        Delta is the largest change of the utility of any candidate.
    Numerics
        The distribution of argmax(rate * utility + Gumbel), drawn exactly from one uniform variable
        that is refined as needed. ``rounding`` bounds the error of the utilities.

    References
    ----------
    McSherry & Talwar (2007).

    Examples
    --------
    >>> from dpkernel import Budget, Ledger, mechanisms
    >>> mechanism = mechanisms.Exponential.calibrate(1.0, Budget(1.0), candidates=3)
    >>> noise = Ledger().spend(mechanism.profile(), "a choice")
    >>> mechanism.release([0.0, 9000.0, 10.0], noise)
    1
    """

    sensitivity: Sensitivity
    rate: float
    candidates: int
    monotone: bool = False
    rounding: float = 0.0

    kind: ClassVar[str] = "exponential"
    reference: ClassVar[str] = "McSherry & Talwar (2007); exact categorical draw"

    def __post_init__(self) -> None:
        check_sensitivity(self, Sensitivity, "score")
        check_numbers(self, positive=("rate",), counts=("candidates",))
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
        """The scale of the equivalent Gumbel noise, 1 / rate."""
        return 1.0 / self.rate

    def profile(self) -> PureProfile:
        """Return the pure profile."""
        return PureProfile(self.rate * _spread(self.sensitivity, self.monotone, self.rounding) * UP)

    def release(self, value: Array, noise: Noise) -> int:
        """Return the index of the chosen candidate; ``value`` holds one utility per candidate."""
        check_vector("Exponential", value, self.candidates)
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
        """Return the mechanism for ``budget.epsilon``.

        ``monotone`` holds under zero-out and add-remove for scores that are sums of terms of one
        sign. It is refused under replace-one.
        """
        sensitivity = as_sensitivity(sensitivity, "score")
        check_common(cls.__name__, candidates, rounding, "candidates")
        candidates, rounding = int(candidates), float(rounding)
        rate = budget.epsilon / _spread(sensitivity, monotone, rounding)
        found = cls(sensitivity, rate, candidates, monotone, rounding)
        while found.profile().epsilon_value > budget.epsilon:
            rate = math.nextafter(rate * (1 - 4e-16), 0.0)
            found = cls(sensitivity, rate, candidates, monotone, rounding)
        return found


def _spread(sensitivity: Sensitivity, monotone: bool, rounding: float) -> float:
    """Return how far the difference of two utilities moves between neighbours, rounded up.

    Each computed utility is off by at most ``rounding``, on both data sets and in any direction,
    which adds 4 roundings in all. Each exact utility moves by at most Delta, and all of them in the
    same direction if monotone.
    """
    exact = sensitivity.value * (1 if monotone else 2)
    return (exact + 4 * rounding) * UP
