r"""One robust fit of the residuals, with the prior inside the problem that is solved.

As in ``stage.py``, coordinates are z = sqrt(A) o v with powers A by water-filling. In addition:

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

import numpy as np
from scipy.special import ndtr

from dpkernel.estimators.regressor.stage import STAGE_ROW_BOUND, Stage, State, water_filling
from dpkernel.foundations.types import Array, IntArray
from dpkernel.privacy.mechanisms import ObjectivePerturbation

_LEAST_UNEXPLAINED = 0.2  # the least share of the residual variance that is sampling noise
_FACTORS = np.geomspace(0.03, 30.0, 31)
_NOTHING = 0.3  # how probable it is that inputs explain nothing, before one fit that knows no law
_EXPONENTS = (0.8, 1.0, 1.25, 1.6)


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
    for exponent in _EXPONENTS:
        tilted = rest * (rest / rest.max()) ** (exponent - 1)
        candidate = np.concatenate([prior[:1], tilted * (rest.sum() / tilted.sum())])
        variance = _FACTORS[:, None] * candidate[used] + noise
        likelihood = -0.5 * np.sum(np.log(variance) + found**2 / variance, axis=1)
        likelihood = likelihood - 0.25 * np.log(_FACTORS) ** 2
        place = int(np.argmax(likelihood))
        if likelihood[place] > best:
            best, chosen = float(likelihood[place]), _FACTORS[place] * candidate
    return np.asarray(chosen)
