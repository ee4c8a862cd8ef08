r"""Objective perturbation: noise inside an optimisation problem, and a little on its solution.

A release is a minimiser of F_D(beta) + <b, beta> for a random b, where F_D is a sum of convex
losses with bounded gradients plus a ridge. The exact minimiser would be private with b alone. A
computed minimiser is private for two reasons: for every data set it reaches a public tolerance, and
noise that hides this tolerance is added to the solution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, is_real
from dpkernel.privacy.mechanisms.base import (
    IDEALISED,
    UP,
    Mechanism,
    check_common,
    check_numbers,
    check_sensitivity,
    check_vector,
    clamped,
    register,
    scale,
    to_steps,
)
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.profiles import ObjectiveProfile, PureProfile
from dpkernel.privacy.sensitivity import Sensitivity

Solve = Callable[[Array], Array]

_FINENESS = 2.0**-40  # step of b in units of sigma / sqrt(dimension)
_UNIT = 2.0**-53


@register
@dataclass(frozen=True)
class ObjectivePerturbation(Mechanism):
    r"""Release argmin sum_i loss_i(beta) + sum_l Lambda_l beta_l^2 / 2 + <b, beta>, b ~ N(0, sigma^2 I).

    Parameters
    ----------
    sensitivity : Sensitivity
        The sensitivity of the gradient of the sum of losses at any beta: 2 c_1 B or c_1 B.
    dimension : int
        The length of beta.
    curvature : float
        A bound c_2 B^2 on the Hessian of the loss of one record.
    ridge : float
        Lambda, the smallest Lambda_l.
    sigma, grid : float
        The standard deviation of b, and the power of two on whose multiples b is drawn.
    reach : float
        b is drawn again while its norm exceeds reach * sigma.
    error : float
        A bound on the gradient at the computed solution, for every data set and every such b.
    output_sigma, output_grid : float
        The noise on the solution, in steps of its grid, and this grid, a power of two.

    Notes
    -----
    Guarantee
        ``ObjectiveProfile`` of one stage with m = sensitivity / sigma and x = curvature / ridge,
        and the output noise as a Gaussian release.
    Sensitivity
        Of the solution given b. Take the ideal minimiser for the real-valued b that rounds to the
        drawn one. It lies within (error + sqrt(d) grid / 2 + u reach sigma) / ridge of the computed
        minimiser, where u = 2^-53 because a drawn b beyond 2^53 steps is rounded to a float. The
        output noise therefore hides a shift of twice that, plus sqrt(d) output_grid for rounding.
    Numerics
        The drawn b has probabilities within e^slack of those of a rounded Gaussian, with slack = (d
        + 2 reach^2) / (8 s^2) and s = sigma / grid, because the mean of e^(-(2 y v + v^2) / 2 s^2)
        over ``|v| <= 1/2`` lies between e^(-1 / 8 s^2) and e^(y^2 / 8 s^4).

    References
    ----------
    Lee, Park & Ahn, Algorithms 2 and 4; Chaudhuri, Monteleoni & Sarwate (2011); Kifer, Smith &
    Thakurta (2012). One dominating loss replaces the noise as printed.
    """

    kind: ClassVar[str] = "objective-perturbation"
    reference: ClassVar[str] = (
        "objective perturbation (Lee, Park & Ahn, Algorithms 2 and 4, corrected) with output noise"
        " for the inexact minimiser"
    )

    sensitivity: Any
    dimension: int
    curvature: float
    ridge: float
    sigma: float
    grid: float
    reach: float
    error: float
    output_sigma: float
    output_grid: float

    def __post_init__(self) -> None:
        check_sensitivity(self, Sensitivity, "l2")
        positive = ("curvature", "ridge", "sigma", "reach", "error", "output_sigma", "output_grid")
        check_numbers(self, positive=(*positive, "grid"), counts=("dimension",))
        if math.frexp(self.output_grid)[0] != 0.5:
            raise ParameterError(
                parameter_message(
                    "ObjectivePerturbation", "output_grid", "a power of two", self.output_grid
                )
            )
        if not self.grid <= 2.0**-20 * self.sigma or not self.log_miss < -1:
            allowed = "such that grid <= sigma / 2^20 and reach > sqrt(dimension) + 2"
            raise ParameterError(
                parameter_message(
                    "ObjectivePerturbation", "grid, reach", allowed, (self.grid, self.reach)
                )
            )

    @property
    def noise_scale(self) -> float:
        """The standard deviation of b."""
        return self.sigma

    @property
    def log_miss(self) -> float:
        """A bound on the log-probability that a Gaussian b has to be drawn again."""
        # acceptance is decided by a computed norm, compared with reach (1 - 1e-12)
        root = math.sqrt(self.dimension)
        free = self.reach * (1 - 1e-11) - root * (1 + self.grid / self.sigma)
        return -free * free / 2 * (1 - 1e-12) if free > 0 else 0.0

    @property
    def slack(self) -> float:
        """A bound on the log-ratio of drawn and rounded Gaussian probabilities, on both data sets."""
        step = self.grid / self.sigma
        rounding = (self.dimension + 2 * self.reach**2) * step * step / 8
        return (rounding + 2 * math.exp(self.log_miss)) * (1 + 1e-9)

    @property
    def output_mu(self) -> float:
        """The mu of the output noise."""
        root = math.sqrt(self.dimension)
        off = self.error + root * self.grid / 2 + _UNIT * self.reach * self.sigma
        shift = 2 * off / self.ridge + root * self.output_grid
        return shift / (self.output_sigma * self.output_grid) * (1 + 1e-14)

    def profile(self) -> ObjectiveProfile:
        """Return the profile of b and of the output noise together."""
        stage = (self.sensitivity.value / self.sigma * UP, self.curvature / self.ridge * UP)
        relation = self.sensitivity.neighbours.value
        return ObjectiveProfile((stage,), relation, self.output_mu, self.slack, self.log_miss)

    @classmethod
    def build(
        cls,
        sensitivity: Sensitivity,
        *,
        dimension: int,
        curvature: float,
        ridge: float,
        m: float,
        output_mu: float,
        log_miss: float,
        error: Callable[[float, float], float],
    ) -> ObjectivePerturbation:
        """Return the mechanism with these multipliers.

        Parameters
        ----------
        m, output_mu : float
            The multipliers that ``objective_multiplier`` found for the budget.
        log_miss : float
            The log-probability with which b may have to be drawn again.
        error : callable
            Maps (sigma, largest ||b||) to the tolerance that every solve reaches.
        """
        check_common(cls.__name__, dimension, 0.0)
        asked = {"m": m, "output_mu": output_mu, "-log_miss": -log_miss}
        for name, number in asked.items():
            if not is_real(number) or not 0 < number < math.inf:
                allowed = "a float in the range (0, inf)"
                raise ParameterError(parameter_message(cls.__name__, name, allowed, number))
        root = math.sqrt(dimension)
        sigma = sensitivity.value / m * (1 + 1e-15)
        grid = 2.0 ** math.floor(math.log2(_FINENESS * sigma / root))
        reach = root * (1 + 2.0**-30) + math.sqrt(-2 * log_miss) * (1 + 1e-9)
        tolerance = error(sigma, reach * sigma * (1 + 1e-12))
        shift = 2 * (tolerance + root * grid / 2 + _UNIT * reach * sigma) / ridge
        output_grid = 2.0 ** math.floor(math.log2(shift / (8 * root)))
        whole = shift + root * output_grid
        output_sigma = whole / (output_mu * output_grid) * (1 + 1e-13)
        return cls(
            sensitivity,
            dimension,
            curvature,
            ridge,
            sigma,
            grid,
            reach,
            tolerance,
            output_sigma,
            output_grid,
        )

    def release(self, value: Solve, noise: Noise) -> Array:
        """Return the noisy minimiser; ``value`` maps b to the computed minimiser."""
        _check_solver(self, value)
        source = self._claim(noise)
        while True:
            steps = source.discrete_gaussian(self.sigma / self.grid, self.dimension)
            b = steps.astype(np.float64) * self.grid
            if float(np.linalg.norm(b)) <= self.reach * self.sigma * (1 - 1e-12):
                break
        solution = value(b)
        check_vector("ObjectivePerturbation", solution, self.dimension)
        steps = to_steps(solution, self.output_grid)
        steps = steps + source.discrete_gaussian(scale(self.output_sigma), self.dimension)
        return np.asarray(steps.astype(np.float64) * self.output_grid)


@register
@dataclass(frozen=True)
class PureObjectivePerturbation(Mechanism):
    r"""Objective perturbation with noise of density proportional to e^(-||b|| / s): pure epsilon.

    Parameters
    ----------
    sensitivity : Sensitivity
        The sensitivity of the gradient of the sum of losses at any beta.
    dimension : int
        The length of beta.
    curvature : float
        A bound on the Hessian of the loss of one record.
    ridge : float
        Lambda, the smallest Lambda_l.
    scale : float
        The scale s of the norm of b.
    reach : float
        b is drawn again while its norm exceeds reach * s.
    error : float
        A bound on the gradient at the computed solution, for every data set and every such b.
    output_scale : float
        The scale of the noise on the solution.

    Notes
    -----
    Guarantee
        epsilon = sensitivity / s + log(1 + curvature / ridge) + output_epsilon. In the coordinates
        in which both data sets have densities, the log-densities of b differ by at most sensitivity
        / s, and the volumes by a factor of at most 1 + curvature / ridge.
    Numerics
        Idealised real arithmetic: no finite-precision theorem covers real-valued noise.

    References
    ----------
    Chaudhuri, Monteleoni & Sarwate (2011), with one determinant factor instead of two.
    """

    kind: ClassVar[str] = "pure-objective-perturbation"
    reference: ClassVar[str] = (
        "objective perturbation with noise of density e^(-norm/s) (Chaudhuri, Monteleoni & Sarwate"
        " 2011), one determinant factor"
    )
    assumptions: ClassVar[tuple[str, ...]] = (IDEALISED,)

    sensitivity: Any
    dimension: int
    curvature: float
    ridge: float
    scale: float
    reach: float
    error: float
    output_scale: float

    def __post_init__(self) -> None:
        check_sensitivity(self, Sensitivity, "l2")
        positive = ("curvature", "ridge", "scale", "reach", "error", "output_scale")
        check_numbers(self, positive=positive, counts=("dimension",))

    @property
    def noise_scale(self) -> float:
        """The scale s of the norm of b."""
        return self.scale

    @property
    def grid(self) -> float:
        """The power of two of which released values are multiples, far below the output noise."""
        return 2.0 ** (math.floor(math.log2(self.output_scale)) - 30)

    def profile(self) -> PureProfile:
        """Return the sum of the three epsilons."""
        inside = self.sensitivity.value / self.scale + math.log1p(self.curvature / self.ridge)
        outside = 2 * self.error / self.ridge / self.output_scale
        return PureProfile((inside + outside) * (1 + 1e-14))

    @classmethod
    def build(
        cls,
        sensitivity: Sensitivity,
        epsilon: float,
        *,
        dimension: int,
        curvature: float,
        ridge: float,
        error: Callable[[float, float], float],
        output_share: float = 0.01,
    ) -> PureObjectivePerturbation:
        """Return the mechanism for this epsilon."""
        check_common(cls.__name__, dimension, 0.0)
        left = epsilon * (1 - output_share - 4e-14) - math.log1p(curvature / ridge)
        if not is_real(epsilon) or not left > 0:
            allowed = f"above {math.log1p(curvature / ridge):.3g}, the cost of this ridge"
            raise ParameterError(parameter_message(cls.__name__, "epsilon", allowed, epsilon))
        s = sensitivity.value / left * (1 + 1e-13)
        reach = dimension + 12 * math.sqrt(dimension) + 80.0  # ||b|| / s exceeds it with e^-70
        tolerance = error(s, reach * s)
        output = 2 * tolerance / ridge / (epsilon * output_share) * (1 + 1e-13)
        return cls(sensitivity, dimension, curvature, ridge, s, reach, tolerance, output)

    def release(self, value: Solve, noise: Noise) -> Array:
        """Return the noisy minimiser on a grid; ``value`` maps b to the computed minimiser."""
        _check_solver(self, value)
        source = self._claim(noise)
        while True:  # runs once: the longest b of the float sampler is shorter than this
            b = source.l2_gamma(self.dimension, self.scale)
            if float(np.linalg.norm(b)) <= self.reach * self.scale:
                break
        solution = value(b)
        check_vector(type(self).__name__, solution, self.dimension)
        exact = clamped(solution, self.grid, "The solution")
        noisy = exact + source.l2_gamma(self.dimension, self.output_scale)
        return np.asarray(np.rint(noisy / self.grid) * self.grid)  # round once, after the noise


def _check_solver(mechanism: Mechanism, value: Any) -> None:
    """Raise before anything is drawn if ``value`` is not a solver."""
    if not callable(value):
        allowed, got = "a function from b to the minimiser", type(value).__name__
        raise ParameterError(parameter_message(type(mechanism).__name__, "value", allowed, got))
