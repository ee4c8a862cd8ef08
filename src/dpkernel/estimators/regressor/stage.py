r"""One robust fit of what earlier stages left over, by objective perturbation.

Coordinates are z = sqrt(A) o v with orthonormal features v and sum A = 1. Water-filling gives more
power A_l to coordinates whose prior variance p_l is well above the noise tau^2, and none to those
below it. With noise tau^2 / A_l on the coefficient of v_l, the choice A_l = max(0, k - tau^2 / p_l)
leaves the least posterior variance. The problem is solved in units of the clip h, so that slope,
curvature, noise and ridge are fixed in advance, whatever h turns out to be:

    minimise  sum_i omega_i huber_1((y_i - F(x_i)) / h - <z_i, beta>) + Lambda ||beta||^2 / 2 + <b,
    beta>

with omega = min(1, B^2 / ||z||^2). In a ``Stage``, each coordinate of the solution is shrunk towards
0, according to its prior variance and the variance of its noise. After the first stage, the prior
itself is fitted to what was released (empirical Bayes). All of this is post-processing.

A ``PosteriorStage`` has the prior inside the problem that is solved:

- The ridge of a coordinate is its noise divided by its prior, Lambda_l = noise_l / prior_l in the
  units of the problem, but at least the ridge that the budget paid for. With orthonormal features
  the solution is then the posterior mean. If the data do not follow the assumed law, directions
  with little data are shrunk inside the solve, instead of being inflated first and shrunk
  afterwards.
- The curvature that remains after the weights of long rows is computed on a public sample of the
  law.
- Sampling noise counts only the part of the residuals that is not signal still to be found.
- After the solve, the prior is refitted to what was released, by a factor and a power of its decay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr

from dpkernel.estimators.regressor.scale import ErrorLaw
from dpkernel.foundations.types import Array, IntArray
from dpkernel.privacy.mechanisms import ObjectivePerturbation

STAGE_ROW_BOUND = 0.9
LARGEST_TARGET = 64.0  # residuals are limited to this many times the clip
_EXPONENTS = (1.0, 1.5, 2.0)
_ROWS = 256  # this few rows fit into the cache
_LEAST_UNEXPLAINED = 0.2  # the least share of the residual variance that is sampling noise
_FACTORS = np.geomspace(0.03, 30.0, 31)
_NOTHING = 0.3  # how probable it is that inputs explain nothing, before one fit that knows no law
_TILTS = (0.8, 1.0, 1.25, 1.6)


@dataclass(frozen=True)
class State:
    """What is known after some stages. All of it is public or released.

    Parameters
    ----------
    coefficients : ndarray
        The coefficients of (1, v), in units of y scaled to [-1, 1].
    variances : ndarray
        The expected squared error of each coefficient.
    scale : float
        The scale of the residuals.
    scale_interval : (low, high), optional
        An interval for the scale that accounts for the noise of its release. None if the scale was
        not released.
    errors : ErrorLaw, optional
        How large the residuals are, if it was released.
    """

    coefficients: Array
    variances: Array
    scale: float
    scale_interval: tuple[float, float] | None = None
    errors: ErrorLaw | None = None


def first_state(spectrum: Array, location: float, scale: float) -> State:
    """Return what is known after the histogram of y: a constant, and a prior for smooth functions."""
    decay = (spectrum / spectrum[0]) ** 1.5
    third = scale**2 / 3
    variances = np.empty(len(spectrum) + 1)
    variances[:2] = third  # the constant, and what is left of the first eigenfunction beside it
    variances[2:] = third * decay[1:] / max(decay[1:].sum(), 1e-300)
    coefficients = np.zeros(len(variances))
    coefficients[0] = location
    return State(coefficients, variances, scale)


@dataclass(frozen=True)
class Stage:
    """The public and released numbers of one fit."""

    state: State
    powers: Array  # A_l
    clip: float  # h
    sigma: float  # of b, in units of h
    ridge: float
    bend: float  # n times the share of residuals inside the clip
    output: float = 0.0  # of the noise on beta itself

    @classmethod
    def choose(
        cls,
        state: State,
        n_rows: float,
        clip: float,
        sigma: float,
        ridge: float,
        output: float = 0.0,
    ) -> Stage:
        """Return the stage for residuals that are clipped at ``clip`` times their scale."""
        inside = 2 * float(ndtr(clip)) - 1
        width = clip * state.scale
        noise = width * sigma / (n_rows * inside)
        powers = water_filling(noise**2 / np.maximum(state.variances, 1e-30))
        return cls(state, powers, width, sigma, ridge, n_rows * inside, output)

    @property
    def used(self) -> IntArray:
        """The positions of the coordinates that have power."""
        return np.flatnonzero(self.powers > 0).astype(np.int64)

    @property
    def ridges(self) -> Array:
        """The ridge of each coordinate that has power."""
        return np.full(len(self.used), self.ridge)

    def solve(self, b: Array, minimise: Callable[[Array], Array]) -> Array:
        """Return the minimiser over all coordinates. Those without power have a closed form."""
        used = self.used
        beta: Array = -b / self.ridge
        beta[used] = minimise(b[used])
        return beta

    @property
    def _kept(self) -> Array:
        """The share of a coefficient that the ridge leaves."""
        curvature = self.bend * self.powers[self.used]
        return np.asarray(np.maximum(curvature / (curvature + self.ridge), 0.5))

    def errors(self, n_rows: float) -> Array:
        """Return the variances of the coefficients from ``beta``, due to noise and to a finite n."""
        powers = self.powers[self.used]
        inside = (self.sigma / (self.bend * powers + self.ridge)) ** 2 + self.output**2
        return np.asarray(
            self.clip**2 * powers * inside / self._kept**2 + self.state.scale**2 / n_rows
        )

    def update(self, beta: Array, spectrum: Array, n_rows: float, *, first: bool) -> State:
        """Return what is known after the release of beta."""
        used, state = self.used, self.state
        roots = np.sqrt(self.powers[used])
        found = self.clip * roots * beta[used] / self._kept
        noise = self.errors(n_rows)
        prior = state.variances
        if first:
            prior = _fitted_prior(prior, spectrum, used, found, noise, state.scale)
        share = prior[used] / (prior[used] + noise)
        coefficients, variances = state.coefficients.copy(), prior.copy()
        coefficients[used] += share * found
        variances[used] = share * noise
        return replace(state, coefficients=coefficients, variances=variances)


def water_filling(levels: Array) -> Array:
    """Return max(0, k - levels), with the k for which they add up to 1."""
    depths = levels - levels.min()  # the deepest level becomes 0, so it is always under water
    ordered = np.sort(depths)
    counts = np.arange(1, len(ordered) + 1)
    heights = (1 + np.cumsum(ordered)) / counts
    last = int(np.sum(heights > ordered)) - 1  # the levels under water come first
    powers: Array = np.maximum(0.0, heights[last] - depths)
    return np.asarray(powers / powers.sum())


def stage_records(
    features: Array,
    y: Array,
    column: int,
    coefficients: Array,
    used: IntArray,
    roots: Array,
    clip: float,
) -> tuple[Array, Array, Array]:
    """Return z, targets and weights of a block of rows (v, y)."""
    residuals = (y[:, column] - (coefficients[0] + features @ coefficients[1:])) / clip
    targets = np.clip(residuals, -LARGEST_TARGET, LARGEST_TARGET).astype(np.float64)
    z, weights = scaled_rows(features, used, roots)
    return z, targets, weights * y[:, -1]


def scaled_rows(features: Any, used: IntArray, roots: Array) -> tuple[Array, Array]:
    """Return z = roots o (1, v) on the coordinates that are used, and the weight of each row."""
    if not isinstance(features, np.ndarray):  # on a device
        found: tuple[Any, Array] = features.scaled(used, roots, STAGE_ROW_BOUND)
        return found
    z = np.empty((len(features), len(used)), dtype=features.dtype)
    first = int(np.sum(used == 0))  # positions increase, so that the constant comes first
    z[:, :first] = 1.0
    factors = roots.astype(features.dtype)
    limit = STAGE_ROW_BOUND**2 * (1 - 2.0**-40)
    weights = np.empty(len(z))
    for start in range(0, len(z), _ROWS):
        part = slice(start, start + _ROWS)
        np.take(features[part], used[first:] - 1, axis=1, out=z[part, first:], mode="clip")
        z[part] *= factors
        wide = z[part].astype(np.float64)
        wide *= wide
        weights[part] = limit / np.maximum(np.add.reduce(wide, axis=1), limit)
    return z, weights


def _fitted_prior(
    prior: Array, spectrum: Array, used: IntArray, found: Array, noise: Array, scale: float
) -> Array:
    """Return prior variances S mu_l^q, with the S and q of the largest marginal likelihood.

    The constant and the first eigenfunction keep their variances.
    """
    later = used >= 2
    if not later.any():
        return prior
    best, chosen = -math.inf, prior
    ratios = spectrum / spectrum[0]
    for exponent in _EXPONENTS:
        decay = ratios**exponent
        decay = decay / max(decay[1:].sum(), 1e-300)
        own = decay[used[later] - 1]
        for total in np.geomspace(1e-4, 10.0, 30) * scale**2:
            variance = total * own + noise[later]
            likelihood = -0.5 * float(np.sum(np.log(variance) + found[later] ** 2 / variance))
            if likelihood > best:
                best = likelihood
                chosen = np.concatenate([prior[:2], total * decay[1:]])
    return chosen


@dataclass(frozen=True)
class Response:
    """What a loss is expected to do on the rows of a table.

    Parameters
    ----------
    unit : float
        The unit of the targets of the problem, such as the clip of residuals.
    bend : float
        The mean curvature of the loss.
    slope : float
        The mean squared slope of the loss at the best prediction.
    """

    unit: float
    bend: float
    slope: float


def clipped_residuals(state: State, clip: float) -> Response:
    """Return the response of the Huber loss to normal residuals, clipped at ``clip`` scales."""
    inside = 2 * float(ndtr(clip)) - 1
    density = math.exp(-(clip**2) / 2) / math.sqrt(2 * math.pi)
    slope = (inside - 2 * clip * density) / clip**2 + 1 - inside
    unexplained = 1 - float(state.variances[1:].sum()) / state.scale**2
    slope *= min(max(unexplained, _LEAST_UNEXPLAINED), 1.0)
    return Response(clip * state.scale, inside, slope)


@dataclass(frozen=True)
class PosteriorStage:
    """The public and released numbers of one fit."""

    state: State
    powers: Array  # A_l
    clip: float  # h
    used: IntArray
    ridges: Array  # one for each coordinate that is used
    least_ridge: float
    kept: Array  # the share of a coefficient that its ridge leaves
    noise: Array  # variances of the coefficients, before any shrinking

    @classmethod
    def choose(
        cls,
        state: State,
        n_rows: float,
        response: Response,
        mechanism: ObjectivePerturbation,
        functions: Array,
        *,
        any_law: bool = False,
    ) -> PosteriorStage:
        """Return the stage. ``functions`` are the values of (1, v) on a public sample of the law.

        ``any_law`` means that this law is not that of the data. A direction of prior variance p and
        noise variance s^2, whose curvature is c, errs by c (r^2 p + s^2) / (c + r)^2 with a ridge r.
        For the worst c, which is r, this is (r p + s^2 / r) / 4, so r = s / sqrt(p) is best.
        """
        prior = state.variances
        width, sigma = response.unit, mechanism.sigma
        # the least ridge pulls a coordinate to 0 about as far as noise of its size moves it
        level = width * max(sigma, mechanism.ridge) / (n_rows * response.bend)
        powers = water_filling(level**2 / np.maximum(prior, 1e-30))
        used = np.flatnonzero(powers > 0).astype(np.int64)
        own, before = powers[used], np.maximum(prior[used], 1e-30)
        squares = functions[:, used] ** 2
        weights = np.minimum(1.0, STAGE_ROW_BOUND**2 / np.maximum(squares @ own, 1e-300))
        bend = n_rows * response.bend * own * (weights @ squares / len(squares))
        output = mechanism.output_sigma * mechanism.output_grid
        total = sigma**2 + n_rows * own * response.slope * (weights**2 @ squares / len(squares))
        ridges = total * width**2 * own / (bend * before)
        if any_law:
            ridges = sigma * width * np.sqrt(own / before)
        ridges = np.maximum(mechanism.ridge, ridges)
        ridges = np.minimum(ridges, largest_ridge(n_rows, mechanism.ridge, mechanism.curvature))
        kept = bend / (bend + ridges)
        noise = width**2 * own * (total / bend**2 + (output / kept) ** 2)
        return cls(state, powers, width, used, ridges, mechanism.ridge, kept, noise)

    def solve(self, b: Array, minimise: Callable[[Array], Array]) -> Array:
        """Return the minimiser over all coordinates. Those without power have a closed form."""
        beta: Array = -b / self.least_ridge
        beta[self.used] = minimise(b[self.used])
        return beta

    def found(self, beta: Array) -> Array:
        """Return the coefficients before any shrinking."""
        roots = np.sqrt(self.powers[self.used])
        return np.asarray(self.clip * roots * beta[self.used] / self.kept)

    def update(self, beta: Array, *, refit: bool = True) -> State:
        """Return what is known after the release of beta."""
        found, prior = self.found(beta), self.state.variances
        if refit:
            prior = _refitted(prior, self.used, found, self.noise)
        share = prior[self.used] / (prior[self.used] + self.noise)
        coefficients, variances = self.state.coefficients.copy(), prior.copy()
        coefficients[self.used] += share * found
        variances[self.used] = share * self.noise
        return replace(self.state, coefficients=coefficients, variances=variances)

    def update_as_solved(self, beta: Array) -> State:
        """Return what is known after the release of beta, whose shrinking the ridges have done.

        If the released coefficients could be nothing but noise, those of the features are shrunk
        further: by the mean over factors of the prior, of which one is 0, weighted by how likely
        they make what was released.
        """
        found, kept = self.found(beta), self.kept
        features = self.used > 0
        factors = np.concatenate([[0.0], _FACTORS])[:, None]
        prior = np.concatenate([[_NOTHING], np.full(len(_FACTORS), (1 - _NOTHING) / len(_FACTORS))])
        before, noise = self.state.variances[self.used], self.noise
        variance = factors * before[features] + noise[features]
        logs = np.log(prior) - 0.5 * np.sum(
            np.log(variance) + found[features] ** 2 / variance, axis=1
        )
        weights = np.exp(logs - logs.max())
        likely = weights / weights.sum() @ (factors * before[features] / variance)
        share = kept.copy()
        share[features] = np.minimum(kept[features], likely)
        coefficients, variances = self.state.coefficients.copy(), self.state.variances.copy()
        coefficients[self.used] += share * found
        variances[self.used] = share**2 * noise + (1 - share) ** 2 * before
        return replace(self.state, coefficients=coefficients, variances=variances)


AnyStage = Stage | PosteriorStage


def largest_ridge(n_rows: float, least: float, curvature: float) -> float:
    """Return the largest ridge of a coordinate: the largest curvature that all rows can have."""
    return max(least, n_rows * curvature)


def _refitted(prior: Array, used: IntArray, found: Array, noise: Array) -> Array:
    """Return the prior variances, changed by the factor and the power of largest likelihood.

    The factor has a log-normal prior around 1. The constant keeps its variance relative to the
    rest.
    """
    best, chosen = -math.inf, prior
    rest = prior[1:]
    if not rest.sum() > 0:
        return prior
    for exponent in _TILTS:
        tilted = rest * (rest / rest.max()) ** (exponent - 1)
        candidate = np.concatenate([prior[:1], tilted * (rest.sum() / tilted.sum())])
        variance = _FACTORS[:, None] * candidate[used] + noise
        likelihood = -0.5 * np.sum(np.log(variance) + found**2 / variance, axis=1)
        likelihood = likelihood - 0.25 * np.log(_FACTORS) ** 2
        place = int(np.argmax(likelihood))
        if likelihood[place] > best:
            best, chosen = float(likelihood[place]), _FACTORS[place] * candidate
    return np.asarray(chosen)
