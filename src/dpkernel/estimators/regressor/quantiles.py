r"""Quantiles of the target as a centre and a spread: q(x) = centre(x) + z spread(x).

1. The stages of the regressor give the centre.
2. One more stage fits the absolute residuals. Its prediction is the spread. It is left out if only
   quantiles near the median are wanted.
3. A noisy histogram of (y - centre) / spread gives z, one number for each quantile.

The noise of a quantile therefore hardly grows with the number of quantiles, or towards the tails.
What is assumed is that the residuals have the same law everywhere, apart from their spread. If the
budget is so small that only a constant can be learned, a histogram of y gives constant quantiles.
All three parts are linear in the features, and so is every quantile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpkernel.data.domain import Domain, Interval
from dpkernel.data.sources import Source
from dpkernel.estimators.base import Fitted
from dpkernel.estimators.kernel_model import linear_model
from dpkernel.estimators.records import RecordPasses
from dpkernel.estimators.regressor import location
from dpkernel.estimators.regressor.budget_plan import BudgetPlan
from dpkernel.estimators.regressor.fitting import Fitting, Sizes, learned_numbers
from dpkernel.estimators.regressor.inputs import nearest_law
from dpkernel.estimators.regressor.kernel_choice import SAMPLE, mixture_prior
from dpkernel.estimators.regressor.learning import LearnedFitting, with_constant
from dpkernel.estimators.regressor.releases import STAGE_LOSS, PublicSizes, calibrated, moments_of
from dpkernel.estimators.regressor.stage import PosteriorStage, State, clipped_residuals
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.models.features import FeatureMap, WhitenedFeatures
from dpkernel.models.features.learned import LearnedFeatures
from dpkernel.privacy.mechanisms import Gaussian, Mechanism
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.profiles import compose, gaussian_mu
from dpkernel.privacy.sensitivity import histogram

_SPREAD = 0.06  # the share of mu^2 for the spread
_RESIDUALS = 0.05  # and for the histogram of the residuals
_NEAR_MEDIAN = 0.1  # quantiles this near to one half need no spread
_MEAN_SIZE = 0.75  # the mean absolute residual of a normal law is 0.8, in standard deviations
_SIZE_DEVIATION = 0.6  # and the standard deviation of an absolute residual
_UNEVEN = 0.08  # the variance of the spread that we assume, in squared standard deviations
_UNKNOWN = 0.2  # how far the mean spread may be from its guess
_CLIP = 0.7
_LARGEST = 8.0  # absolute residuals are limited to this many standard deviations
_REACH = 5.0  # the histogram of the residuals ends at this many times the spread
_LEAST = 0.25  # the least spread of a row, relative to the mean
_LITTLE_NOISE = 0.004  # the deviation of a share up to which the histogram itself is used


class QuantileFitting(LearnedFitting):
    """Everything public about a fit of quantiles, and how to run it."""

    def __init__(
        self,
        source: Source,
        domain: Domain,
        target: Interval,
        sizes: Sizes,
        plan: BudgetPlan | None,
        budget: Budget,
        relation: Neighbours,
        features: WhitenedFeatures,
        *,
        quantiles: Sequence[float],
        single: bool,
        verbose: bool = False,
    ) -> None:
        self._quantiles, self._single = tuple(quantiles), single
        plan = None if plan is None else replace(plan, calibration=0.0)
        setting = source, domain, target, sizes, plan, budget, relation, features
        super().__init__(*setting, verbose=verbose)

    def _mechanisms_for(self, budget: Budget, relation: Neighbours) -> dict[str, Mechanism]:
        plan, sizes = self.plan, self._sizes
        if plan is None:
            return {"location": _whole_histogram(budget, relation)}
        n, d = sizes.n_rows, sizes.n_inputs
        own = {"spread": _SPREAD} if self._needs_spread else {}
        own["location of residuals"] = _RESIDUALS
        left = 1 - sum(own.values())
        weights = {name: weight * left for name, weight in plan.parts().items()} | own
        losses = {name: STAGE_LOSS for name in weights if name.split(" ")[0] in ("stage", "spread")}
        table = PublicSizes(n, d, sizes.n_features + 1, moments_of(plan, d, n, relation))
        return calibrated(
            "PrivateQuantileRegressor", weights, losses, table, budget, relation, plan.determinant
        )

    @property
    def _needs_spread(self) -> bool:
        return any(abs(q - 0.5) > _NEAR_MEDIAN for q in self._quantiles)

    def run(self, noise: Noise) -> Fitted:
        """Draw every release and build the model."""
        self._passes.spent = True
        if self.plan is None:
            features = self._for_the_box
            coefficients = np.zeros((features.n_outputs + 1, len(self._quantiles)))
            coefficients[0] = self._levels_of(
                self._passes, location.count_targets, (0,), noise, "location"
            )
        else:
            features, (centre,) = self._states(noise)
            coefficients = self._around(features, centre, noise)
        intercept, coef = coefficients[0], coefficients[1:]
        return Fitted(
            linear_model(self._domain, features, coef, intercept, several=not self._single),
            {**self._public(features), "quantiles": list(self._quantiles)},
            learned_numbers(self.choice),
        )

    def _states(self, noise: Noise) -> tuple[FeatureMap, list[State]]:
        assert self.plan is not None
        return super()._states(noise) if self.plan.adapts else Fitting._states(self, noise)

    def _around(self, features: FeatureMap, centre: State, noise: Noise) -> Array:
        """Return the coefficients of every quantile, as columns."""
        rows = self._passes.featured(features, self._dtype, 16)
        spread = np.zeros(len(centre.coefficients))
        spread[0] = _MEAN_SIZE
        if self._needs_spread:
            with self._part("spread"):
                spread = self._spread(features, centre, rows, noise)
        spread *= centre.scale
        given = centre.coefficients, spread
        levels = self._levels_of(rows, _count_standardised, given, noise, "location of residuals")
        return centre.coefficients[:, None] + np.outer(spread, _REACH * levels)

    def _spread(
        self, features: FeatureMap, centre: State, rows: RecordPasses, noise: Noise
    ) -> Array:
        """Return the coefficients of the spread, in units of the scale of the residuals."""
        functions, prior = _public_values(features)
        variances = np.concatenate([[_UNKNOWN**2], _UNEVEN * prior])
        guess = np.zeros(len(variances))
        guess[0] = _MEAN_SIZE
        start = State(guess, variances, _SIZE_DEVIATION)
        mechanism = self._mechanism("spread", 0)
        response = clipped_residuals(start, _CLIP)
        stage = PosteriorStage.choose(start, self._size, response, mechanism, functions)
        sizes = rows.then(_to_sizes, centre.coefficients, centre.scale)  # read once, so not kept
        beta = self._solved(stage, "spread", sizes, noise)
        found = stage.update(beta).coefficients
        found[0] = max(found[0], _LEAST)
        return found

    def _levels_of(
        self, rows: RecordPasses, count: Any, given: tuple[Any, ...], noise: Noise, label: str
    ) -> Array:
        """Return the quantiles of numbers in [-1, 1], from their noisy histogram."""
        with self._part(label):
            mechanism = self._mechanism(label, 0)
            (counts,) = rows.sum(count, *given)
            noisy = mechanism.release(counts, noise)
            n = self._released(float(noisy.sum()))
            if mechanism.noise_scale <= _LITTLE_NOISE * n:
                shares = nearest_law(noisy / n)
            else:
                shares = location.expected_shape(noisy, n, mechanism.noise_scale)
            below = np.concatenate([[0.0], np.cumsum(shares)])
            edges = np.linspace(-1.0, 1.0, location.CELLS + 1)
            return np.interp(self._quantiles, below / below[-1], edges)


def _public_values(features: FeatureMap) -> tuple[Array, Array]:
    """Return (1, v) on a public sample of the inputs, and prior variances of v that add up to 1."""
    if isinstance(features, LearnedFeatures):
        values = features.of_standardised(features.sample[:SAMPLE])
        prior = mixture_prior(features, values)
    else:
        values = features.transform_block(features.public_sample(SAMPLE))
        prior = np.maximum(features.spectrum / features.spectrum[0], 1e-30) ** 1.5
    return with_constant(values), prior / prior.sum()


def _whole_histogram(budget: Budget, relation: Neighbours) -> Mechanism:
    """Return a histogram that spends the whole budget."""
    mu = gaussian_mu(budget.epsilon, budget.delta)
    while True:
        found: Mechanism = Gaussian.with_mu(histogram(relation), mu, dimension=location.CELLS)
        whole = compose([found.profile()])
        if whole.supports(budget) and whole.epsilon(budget.delta) <= budget.epsilon:
            return found
        mu *= 1 - 1e-12


# the steps for every block of rows; they are at module level so that Dask workers find them


def _residuals(features: Array, y: Array, centre: Array) -> Array:
    return np.asarray(y[:, 0] - (centre[0] + features @ centre[1:]))


def _to_sizes(features: Array, y: Array, centre: Array, scale: float) -> Any:
    """Return the features and the absolute residuals, in units of their scale."""
    sizes = np.abs(_residuals(features, y, centre)) / scale
    sizes = np.minimum(np.nan_to_num(sizes, nan=0.0), _LARGEST)
    return features, np.column_stack([sizes, y[:, -1]])


def _count_standardised(features: Array, y: Array, centre: Array, spread: Array) -> Any:
    """Return how many residuals, divided by the spread of their rows, are in each cell."""
    sizes = np.maximum(spread[0] + features @ spread[1:], _LEAST * spread[0])
    numbers = np.nan_to_num(_residuals(features, y, centre) / (_REACH * sizes), nan=0.0)
    found = np.column_stack([np.clip(numbers, -1.0, 1.0), y[:, -1]])
    return location.count_targets(features, found, 0)
