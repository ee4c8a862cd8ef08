"""Gaussian noise on vectors and symmetric matrices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget
from dpkernel.privacy.mechanisms.base import (
    UP,
    Mechanism,
    as_sensitivity,
    check_common,
    check_numbers,
    check_sensitivity,
    choose_grid,
    end_on_private_side,
    register,
    scale,
    to_steps,
)
from dpkernel.privacy.noise import Noise, NoiseSource
from dpkernel.privacy.profiles import GaussianProfile, MixtureProfile, gaussian_mu
from dpkernel.privacy.samplers import LARGEST_SCALE
from dpkernel.privacy.sensitivity import RandomSensitivity, Sensitivity


@dataclass(frozen=True)
class _GridGaussian(Mechanism):
    """The shared part of the Gaussian mechanisms: the grid, the enlarged sensitivity, the scale.

    ``sigma`` is the continuous calibration in grid steps. Up to a factor 1 +- 2.1e-34 per
    coordinate, the discrete Gaussian with parameter sqrt(sigma^2 + 4) is a post-processing of N(0,
    sigma^2). The margin inside the Gaussian profile covers that factor.
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
        """The standard deviation of the continuous calibration, in the units of the value."""
        return self.sigma * self.grid

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise of an entry, a little larger because it is discrete."""
        return math.hypot(self.sigma, 2.0) * self.grid

    def __post_init__(self) -> None:
        law = MixtureGaussian.kind == self.kind
        check_sensitivity(self, RandomSensitivity if law else Sensitivity, "l2")
        check_numbers(self, positive=("sigma", "grid"), counts=("dimension",))
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
        """Return the sensitivity after rounding to the grid, plus twice the computing error."""
        if self.integer:
            return sensitivity
        spread = _grid_spread(self.kind, self.dimension)
        return (sensitivity + 2 * self.rounding + spread * self.grid) * (1 + 1e-15)

    def _mu(self, sensitivity: float) -> float:
        return self._enlarged(sensitivity) / (self.grid * self.sigma) * UP

    def _on_grid(self, value: Any) -> Any:
        """Return the value as clamped integers on the grid; no error depends on the data."""
        if self.integer:
            return np.asarray(value, dtype=np.int64)
        return to_steps(value, self.grid)

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
        """Return the mechanism whose mu, at the worst sensitivity, is at most this one."""
        check_common(cls.__name__, dimension, rounding)
        dimension, rounding = int(dimension), float(rounding)
        spread = _grid_spread(cls.kind, dimension)
        grid = 1.0
        if not integer:
            grid = choose_grid(sensitivity.value + 2 * rounding, spread, mu, magnitude)
        draft = cls(sensitivity, dimension, 1.0, grid, rounding, integer)
        sigma = draft._enlarged(sensitivity.value) / (grid * mu) * UP
        if not math.hypot(sigma, 2.0) <= LARGEST_SCALE:  # refuse now what can't be drawn
            allowed = "large enough for noise of at most 2^58 whole steps"
            advice = "Ask for a larger epsilon or delta."
            got = f"sigma = {sigma:.3g}"
            raise ParameterError(parameter_message(cls.__name__, "budget", allowed, got, advice))
        return cls(sensitivity, dimension, sigma, grid, rounding, integer)

    @classmethod
    def with_mu(
        cls, sensitivity: Sensitivity, mu: float, *, dimension: int, integer: bool = False
    ) -> Any:
        """Return the mechanism with at most this mu, which is a share of a composed budget."""
        found = cls._calibrated(sensitivity, mu, dimension, 0.0, integer, None)
        while found.profile().mu > mu:
            values = {f.name: getattr(found, f.name) for f in fields(found)}
            values["sigma"] = math.nextafter(found.sigma * UP, math.inf)
            found = cls(**values)
        return found

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
            The sensitivity in the l2 norm (for matrices the Frobenius norm). A plain float is
            recorded as "declared".
        budget : Budget
            The budget of one release, with delta > 0.
        dimension : int
            The length of the vector, or the side of the matrix.
        rounding : float
            A bound on the l2 distance between the computed value and the exact value whose
            sensitivity is stated. It must hold for every data set.
        integer : bool
            Whether the value consists of exactly computed integers. Then no grid is needed.
        magnitude : float, optional
            A public bound on the entries. If they are large, a coarser grid is chosen.
        """
        sensitivity = as_sensitivity(sensitivity)
        # a smaller epsilon is allowed: double precision can't resolve anything beyond this value
        budget = Budget(min(budget.epsilon, 1e11), budget.delta)
        mu = gaussian_mu(budget.epsilon, budget.delta)
        found = cls._calibrated(sensitivity, mu, dimension, rounding, integer, magnitude)
        return end_on_private_side(found, budget)


@register
@dataclass(frozen=True)
class Gaussian(_GridGaussian):
    r"""Add discrete N(0, sigma^2 I) noise to a vector.

    Parameters
    ----------
    sensitivity : Sensitivity
        The l2 sensitivity Delta.
    dimension : int
        The length of the vector.
    sigma : float
        The standard deviation of the continuous calibration, in grid steps.
    grid : float
        The power of two to which values are rounded.
    rounding : float
        A bound on the l2 distance between the computed and the exact value.
    integer : bool
        Whether the value consists of exactly computed integers, so that no grid is needed.

    Notes
    -----
    Guarantee
        delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu) with mu = Delta/sigma, exactly,
        for every eps.
    Sensitivity
        L2: Delta = sup ||f(D) - f(D')||_2 over the stated neighbours.
    Numerics
        Values are rounded to a power-of-two grid h, which enlarges Delta by 2 rounding + sqrt(d) h
        (about 1e-6 of it). The noise is an exact discrete Gaussian.

    References
    ----------
    Balle & Wang (2018), Theorem 8.

    Examples
    --------
    >>> from dpkernel import Budget, Ledger, mechanisms
    >>> mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=3)
    >>> mechanism.profile().epsilon(1e-6) <= 1.0
    True
    >>> noise = Ledger().spend(mechanism.profile(), "a sum")
    >>> mechanism.release([1.0, 2.0, 3.0], noise).shape
    (3,)
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
        draws = source.discrete_gaussian(scale(self.sigma), self.dimension)
        return np.asarray(self._off_grid(steps + draws))


@register
@dataclass(frozen=True)
class SymmetricGaussian(_GridGaussian):
    r"""Add a symmetric Gaussian matrix: variance sigma^2 on the diagonal, sigma^2/2 off it.

    Parameters
    ----------
    sensitivity : Sensitivity
        The sensitivity Delta_F in Frobenius norm.
    dimension : int
        The side of the matrix.
    sigma : float
        The standard deviation of the continuous calibration, in grid steps.
    grid : float
        The power of two to which values are rounded.
    rounding : float
        A bound on the Frobenius distance between the computed and the exact value.
    integer : bool
        Whether the value consists of exactly computed integers, so that no grid is needed.

    Notes
    -----
    Independent entries with these variances are isotropic in Frobenius norm on the space of
    symmetric matrices. This is therefore the Gaussian mechanism on that space, with p(p+1)/2 draws.

    Guarantee
        That of ``Gaussian`` with mu = Delta_F/sigma.
    Sensitivity
        Frobenius norm; sqrt(2) N^2 for a Gram matrix of rows with norm <= N (replace-one). If a
        value is not symmetric, its lower triangle counts and is mirrored.
    Numerics
        As for ``Gaussian``, with the parameters sqrt(sigma^2 + 4) and sqrt(sigma^2/2 + 4).

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel import Budget, Ledger, mechanisms
    >>> mechanism = mechanisms.SymmetricGaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=2)
    >>> noisy = mechanism.release(np.eye(2), Ledger().spend(mechanism.profile(), "moments"))
    >>> bool((noisy == noisy.T).all())
    True
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
        lower[np.diag_indices(side)] += source.discrete_gaussian(scale(self.sigma), side)
        off = np.tril_indices(side, -1)
        lower[off] += source.discrete_gaussian(scale(self.sigma / math.sqrt(2)), len(off[0]))
        return np.asarray(self._off_grid(lower + np.tril(lower, -1).T))


@register
@dataclass(frozen=True)
class MixtureGaussian(_GridGaussian):
    r"""Add discrete N(0, sigma^2 I) noise to a vector whose sensitivity is random.

    Parameters
    ----------
    sensitivity : RandomSensitivity
        The distribution of the l2 sensitivity.
    dimension : int
        The length of the vector.
    sigma : float
        The standard deviation of the continuous calibration, in grid steps.
    grid : float
        The power of two to which values are rounded.
    rounding : float
        A bound on the l2 distance between the computed and the exact value.
    integer : bool
        Whether the value consists of exactly computed integers, so that no grid is needed.

    Notes
    -----
    Guarantee
        delta(eps) = E_I G(eps; Delta_I/sigma) + tail.
    Sensitivity
        A probability distribution. The randomness I must be fresh and independent of the data, with
        the same distribution for both neighbours. The sensitivity does not compose by mu^2.
    """

    kind: ClassVar[str] = "mixture-gaussian"

    def profile(self) -> MixtureProfile:
        """Return the mixture of Gaussian profiles."""
        law: RandomSensitivity = self.sensitivity
        mus = tuple(self._mu(value) for value in law.values)
        return MixtureProfile(mus, law.probabilities, law.tail)

    def release(self, value: Array | Callable[[NoiseSource], Array], noise: Noise) -> Array:
        """Return the vector with noise.

        ``value`` may also be a function that computes the vector. It is called with the source of
        the noise and must take the fresh randomness I from there.
        """
        if not callable(value):
            return Gaussian.release(self, value, noise)  # type: ignore[arg-type]
        source = self._claim(noise)
        found = value(source)
        self._check_shape(found, (self.dimension,))
        draws = source.discrete_gaussian(scale(self.sigma), self.dimension)
        return np.asarray(self._off_grid(self._on_grid(found) + draws))

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
        """Return the mechanism with the least noise that the budget allows, found by bisection."""
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

        pairs = zip(sensitivity.values, sensitivity.probabilities, strict=True)
        looked_at = math.fsum(p for value, p in pairs if value > 0) + sensitivity.tail
        if not budget.delta < looked_at:
            allowed = f"below {looked_at:g}, the probability that a record is used"
            advice = (
                "Otherwise every used record could be published as it is. Pass a smaller delta."
            )
            raise ParameterError(
                parameter_message(cls.__name__, "delta", allowed, budget.delta, advice)
            )

        def build(mu: float) -> MixtureGaussian:
            found: MixtureGaussian = cls._calibrated(
                sensitivity, mu, dimension, rounding, integer, magnitude
            )
            return found

        # bisect the mu of the largest sensitivity; the start is safe even if every draw is the largest
        low = gaussian_mu(budget.epsilon, budget.delta - sensitivity.tail) * (1 - 1e-9)
        high = low
        while build(high).profile().supports(budget) and high < low * 1e6:
            high *= 2
        for _ in range(50):
            middle = math.sqrt(low * high)
            low, high = (
                (middle, high) if build(middle).profile().supports(budget) else (low, middle)
            )
        found: MixtureGaussian = end_on_private_side(build(low), budget)
        return found


def _grid_spread(kind: str, dimension: int) -> float:
    """Return how far, in norm, rounding to a unit grid can move the difference of two values."""
    if kind == SymmetricGaussian.kind:
        return float(dimension)  # Frobenius norm of a side x side matrix of ones
    return math.sqrt(dimension) * UP
