"""One fit with a fixed kernel: what is public about it, and its parts one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpkernel.data.domain import Domain, Interval, unit_inputs
from dpkernel.data.sources import Source, released_size
from dpkernel.data.weights import weight_column
from dpkernel.estimators.base import FitPlan, Fitted, logger
from dpkernel.estimators.kernel_model import linear_model
from dpkernel.estimators.progress import Parts
from dpkernel.estimators.records import STEPS, RecordPasses
from dpkernel.estimators.regressor import inputs, location, scale
from dpkernel.estimators.regressor.budget_plan import BudgetPlan
from dpkernel.estimators.regressor.kernel_choice import KernelChoice
from dpkernel.estimators.regressor.releases import (
    STAGE_LOSS,
    moments_of,
    name_of,
    plan_releases,
    stage_solver,
)
from dpkernel.estimators.regressor.stage import AnyStage, Stage, State, first_state, stage_records
from dpkernel.foundations.types import JSON, Array, Budget, Neighbours
from dpkernel.models.features import FeatureMap, WhitenedFeatures
from dpkernel.models.losses import Huber
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.mechanisms import Mechanism, ObjectivePerturbation
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.profiles import gaussian_mu
from dpkernel.privacy.statistics import GramLayout

FLOAT32_FROM = 10_000  # rows from which on features are computed in single precision
FIXED_FEATURES = 200  # the number of features of a fixed kernel
_LEAST_LEARNED, _MOST_LEARNED = 250, 1000  # the fewest and the most features of a learned kernel
SIGNAL_A_FEATURE = 20.0  # how much n mu each of them needs
_SIGNAL_TO_SPARE = 100.0  # and from how much n mu each there may be more of them
# about how long a part takes, relative to the others; a stage reads the rows many times
_WEIGHTS = {"stage": 5.0, "spread": 5.0, "features": 3.0, "kernel": 10.0}
_FEWEST = 2  # the number of features of a private mean, which needs none


@dataclass(frozen=True)
class Sizes:
    """The public numbers that determine a fit before it starts.

    Parameters
    ----------
    n_rows, n_inputs, n_targets : int
        The size of the table.
    n_features : int
        The most features; the law of the data may have fewer.
    """

    n_rows: int
    n_inputs: int
    n_targets: int
    n_features: int

    def signal(self, budget: Budget) -> float:
        """Return n mu for one target, which says how much can be learned."""
        return self.n_rows * gaussian_mu(budget.epsilon, budget.delta) / math.sqrt(self.n_targets)

    def plan(
        self, budget: Budget, *, learn: bool = False, public_start: bool = False
    ) -> BudgetPlan | None:
        """Return the plan for "auto". A kernel is learned for a single target only."""
        learn = learn and self.n_targets == 1
        return BudgetPlan.choose(
            self.signal(budget), self.n_inputs, learn=learn, public_start=learn and public_start
        )

    def grown(self, plan: BudgetPlan | None, budget: Budget) -> Sizes:
        """Return the sizes with as many features as the budget carries, if the plan adapts them."""
        if plan is None or not plan.adapts:
            return self
        signal, few = self.signal(budget), max(self.n_rows // 2, 20)
        wanted = min(int(signal / SIGNAL_A_FEATURE), _MOST_LEARNED)
        # with hardly any noise, the law is what limits a fit; more features make up for it
        free = min(int(signal / _SIGNAL_TO_SPARE), 3 * self.n_rows // 2, _MOST_LEARNED)
        return replace(self, n_features=max(min(max(wanted, _LEAST_LEARNED), few), free))

    def box_features(self, random_state: int | None, **given: Any) -> WhitenedFeatures:
        """Return features of a kernel for inputs that fill the box. They are not built yet."""
        auto: dict[str, Any] = {
            "kernel": "gaussian",
            "length_scale": 0.7 * math.sqrt(self.n_inputs),
        }
        return WhitenedFeatures(
            self.n_features, random_state=int(random_state or 0), **auto | given
        )


class Fitting(FitPlan):
    """Everything public about one fit, and how to run it."""

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
        verbose: bool = False,
    ) -> None:
        self.plan, self._sizes, self._features = plan, sizes, features
        self._source = source
        n, d, k = sizes.n_rows, sizes.n_inputs, sizes.n_targets
        self._dtype = "float32" if n >= FLOAT32_FROM else "float64"
        self._passes = RecordPasses(source).then(
            _to_unit,
            domain,
            target,
            self._dtype,
            source.weighted,
            bytes_a_row=d * np.dtype(self._dtype).itemsize + 8 * (k + 1),
        )
        self._size: float = n  # the number of rows; of a weighted table it is released with y
        self._seed = int(features.random_state)
        self._layout: GramLayout | None = moments_of(plan, d, n, relation)
        self.mechanisms = self._mechanisms_for(budget, relation)
        self.releases = [Release(label, found) for label, found in self.mechanisms.items()]
        self._domain, self._target = domain, target
        self.choice: KernelChoice | None = None  # of a kernel, if one is learned
        kinds = [label.split(",")[0].split(" ")[0] for label in self.mechanisms]
        kinds += ["features", "kernel"] if plan is not None and plan.learns else []
        kinds += ["features"] if plan is not None and plan.mixture else []
        total = sum(_WEIGHTS.get(kind, 1.0) for kind in kinds)
        self._parts = Parts(total, verbose=verbose)
        if self._layout is None and not (plan is not None and plan.adapts):
            _ = self._for_the_box  # a bad kernel raises here, before anything is spent
        else:
            features.check(d)

    def _mechanisms_for(self, budget: Budget, relation: Neighbours) -> dict[str, Mechanism]:
        """Return a mechanism for every release, by its name."""
        sizes = self._sizes
        n, d, k = sizes.n_rows, sizes.n_inputs, sizes.n_targets
        counted = self._source.weighted
        return plan_releases(
            self.plan, n, d, k, sizes.n_features + 1, budget, relation, counted=counted
        )

    @cached_property
    def _for_the_box(self) -> FeatureMap:
        count = _FEWEST if self.plan is None else self._sizes.n_features
        return self._built(n_components=count)

    def _built(self, **changes: Any) -> FeatureMap:
        values = {**self._features.get_params(deep=False), **changes}
        found: FeatureMap = WhitenedFeatures(**values).build(self._sizes.n_inputs)
        return found

    def prepare(self) -> None:
        """Read the table."""
        logger.info("%d releases on %d rows", len(self.releases), self._sizes.n_rows)
        self._passes.prepare()

    def run(self, noise: Noise) -> Fitted:
        """Draw every release and build the model."""
        self._passes.spent = True
        features, states = self._states(noise)
        several = bool(self._source.target_shape)
        take = slice(None) if several else 0
        coefficients = np.column_stack([state.coefficients for state in states])
        intercept, coef = coefficients[0], coefficients[1:]
        return Fitted(
            {
                **linear_model(self._domain, features, coef, intercept, several=several),
                "budget_plan_": self.plan,
                "_variances": np.column_stack([state.variances for state in states])[:, take],
                "_scales": np.array([state.scale for state in states])[take],
            },
            self._public(features),
            _residual_scales(states, self._target) | learned_numbers(self.choice),
        )

    def _public(self, features: FeatureMap) -> JSON:
        return {
            "n_rows": self._source.n_rows,
            "n_columns": self._source.n_columns,
            "domain": self._domain.to_dict(),
            "feature_map": features.to_dict(),
            "budget_plan": None if self.plan is None else self.plan.to_dict(),
        }

    def _states(self, noise: Noise) -> tuple[FeatureMap, list[State]]:
        """Draw every release; return the features and the final state of every target."""
        targets = range(self._sizes.n_targets)
        if self.plan is None:
            features = self._for_the_box
            return features, [self._mean(j, features.n_outputs, noise) for j in targets]
        features = self._for_the_box if self._layout is None else self._for_the_inputs(noise)
        rows = self._passes.featured(features, self._dtype, 8 * (len(targets) + 1))
        return features, [self._one_target(j, rows, features, noise) for j in targets]

    def _mean(self, column: int, n_outputs: int, noise: Noise) -> State:
        """Return a constant, because so small a budget allows a private mean only."""
        with self._part("mean", column):
            mechanism = self._mechanism("mean", column)
            (total,) = self._passes.sum(_sum_targets, column, mechanism.dimension == 2)
            noisy = mechanism.release(total, noise)
            size = self._released(float(noisy[-1]) / STEPS)
            unit = 1 / (STEPS * size)
            value = float(noisy[0]) * unit
        coefficients, variances = np.zeros(n_outputs + 1), np.zeros(n_outputs + 1)
        coefficients[0] = min(max(value, -1.0), 1.0)
        variances[0] = min(mechanism.noise_scale * unit, 1.0) ** 2
        return State(coefficients, variances, 1 / math.sqrt(3))  # as if y were uniform

    def _for_the_inputs(self, noise: Noise) -> FeatureMap:
        """Return features for the law of the inputs, from their noisy moments."""
        assert self._layout is not None
        with self._part("inputs"):
            (total,) = self._passes.sum(inputs.sum_moments, self._layout)
            moments = self._layout.read(self.mechanisms["inputs"].release(total, noise))
            size = self._released(moments.count)
            mean, covariance = inputs.fit_inputs(moments, size)
            return self._built(mean=mean.tolist(), covariance=covariance.tolist())

    def _one_target(
        self, column: int, rows: RecordPasses, features: FeatureMap, noise: Noise
    ) -> State:
        plan = self.plan
        assert plan is not None
        with self._part("location", column):
            (counts,) = self._passes.sum(location.count_targets, column)
            mechanism = self._mechanism("location", column)
            noisy = mechanism.release(counts, noise)
            self._size = n = self._released(float(noisy.sum()))
            start = location.fit_location(noisy, n, mechanism.noise_scale)
        spectrum: Array = features.spectrum
        state = first_state(spectrum, *start)
        for number in range(1, len(plan.stages) + 1):
            with self._part(f"stage {number}", column):
                mechanism = self._mechanism(f"stage {number}", column)
                stage = stage_of(state, n, plan, mechanism)
                beta = mechanism.release(self._solver(stage, rows, column, mechanism), noise)
            state = stage.update(beta, spectrum, n, first=number == 1)
            label = f"scale {number}"
            state = self._measured(state, label, rows, column, noise, scale.HALF_NORMAL)
        if plan.calibration > 0:
            with self._part("calibration", column):
                state = self._calibrated(state, rows, column, noise)
        return state

    def _solver(
        self, stage: AnyStage, rows: RecordPasses, column: int, mechanism: ObjectivePerturbation
    ) -> Callable[[Array], Array]:
        used = stage.used
        item = np.dtype(self._dtype).itemsize
        made = rows.then(
            stage_records,
            column,
            stage.state.coefficients,
            used,
            np.sqrt(stage.powers[used]),
            stage.clip,
            bytes_a_row=len(used) * item + 16,
        )
        records = made.records(Huber(1.0))
        solve = stage_solver(self._sizes.n_rows, stage, records, mechanism, STAGE_LOSS)

        def solved(b: Array) -> Array:
            made.prepare()
            return solve(b)

        return solved

    def _measured(
        self,
        state: State,
        label: str,
        rows: RecordPasses,
        column: int,
        noise: Noise,
        measure: scale.Measure,
    ) -> State:
        """Return the state with the scale of its residuals and their law, if the plan buys them."""
        assert self.plan is not None
        if not self.plan.scale > 0:
            return state
        n, guess = self._size, state.scale
        edges = scale.edges_of(guess, measure.most)
        with self._part(label, column):
            (counts,) = rows.sum(scale.count_residuals, column, state.coefficients, edges)
            mechanism = self._mechanism(label, column)
            noisy = mechanism.release(counts, noise)
        found = measure.find(noisy, n, guess, mechanism.noise_scale)
        interval = measure.interval(noisy, n, guess, mechanism.noise_scale)
        errors = scale.ErrorLaw.of_counts(noisy, edges, n, mechanism.noise_scale)
        return State(state.coefficients, state.variances, found, interval, errors)

    def _calibrated(
        self,
        state: State,
        rows: RecordPasses,
        column: int,
        noise: Noise,
        reach: float = scale.REACH,
        bias: float = scale.BIAS,
    ) -> State:
        """Return the state with its constant moved by the noisy mean of the residuals.

        They are clipped at ``reach`` scales. ``bias`` is how far the constant may be from the mean of
        y, in scales, because clipped residuals pull a fit to a median.
        """
        assert self.plan is not None
        clip, n = reach * state.scale, self._size
        mechanism = self._mechanism("calibration", column)
        (total,) = rows.sum(scale.sum_clipped, column, state.coefficients, clip)
        unit = clip / (STEPS * n)
        shift = float(mechanism.release(total, noise)[0]) * unit
        spread = (mechanism.noise_scale * unit) ** 2 + state.scale**2 / n
        coefficients, variances = state.coefficients.copy(), state.variances.copy()
        unknown = variances[0]
        if len(self.plan.stages) > 1:  # these leave little else to find
            unknown += (bias * state.scale) ** 2
        share = unknown / (unknown + spread)
        coefficients[0] += share * shift
        variances[0] = share * spread
        errors = state.errors and replace(state.errors, moved=abs(share * shift))
        return replace(state, coefficients=coefficients, variances=variances, errors=errors)

    def _released(self, total: float) -> float:
        """Return the number of rows, or of a weighted table the released sum of the weights."""
        return released_size(total, self._sizes.n_rows, self._source.weighted)

    def _mechanism(self, label: str, column: int) -> Any:
        return self.mechanisms[name_of(label, column, self._sizes.n_targets)]

    def _part(self, label: str, column: int = 0) -> AbstractContextManager[None]:
        """Show which part is running, if verbose. Its name and number are public."""
        if self.plan is not None and label[-1].isdigit():
            looks = self.plan.columns if label.startswith("columns") else self.plan.stages
            label = f"{label} of {len(looks)}"
        kind = label.split(" ")[0]
        shared = kind in ("inputs", "columns", "dependence", "features", "kernel")
        text = label if shared else name_of(label, column, self._sizes.n_targets)
        return self._parts.part(text, _WEIGHTS.get(kind, 1.0))


def stage_of(
    state: State, n_rows: float, plan: BudgetPlan, mechanism: ObjectivePerturbation
) -> Stage:
    """Return the stage that follows a state."""
    output = mechanism.output_sigma * mechanism.output_grid
    return Stage.choose(state, n_rows, plan.clip, mechanism.sigma, mechanism.ridge, output)


def _residual_scales(states: Sequence[State], target: Interval) -> JSON:
    """Return the scales of the residuals in units of y, with intervals where they were released."""
    units = [target.part(j).half_width for j in range(len(states))]
    known = [state.scale_interval for state in states]
    laws = [
        None if s.errors is None else s.errors.scaled(unit).to_dict()
        for s, unit in zip(states, units, strict=True)
    ]
    return {
        "errors": laws,
        "residual_scale": [state.scale * u for state, u in zip(states, units, strict=True)],
        "residual_scale_interval": [
            None if found is None else [end * unit for end in found]
            for found, unit in zip(known, units, strict=True)
        ],
    }


def learned_numbers(choice: KernelChoice | None) -> JSON:
    """Return what was learned about the kernel, as a certificate states it."""
    if choice is None:
        return {}
    found = zip(choice.components, choice.variances, strict=True)
    return {
        "kernel": {
            "components": {component.name: share for component, share in found},
            "relevance": choice.relevance.tolist(),
            "directions": [
                [float(share), direction.tolist()]
                for share, direction in zip(choice.strengths, choice.directions, strict=True)
            ],
        }
    }


# the steps for every block of rows; they are at module level so that Dask workers find them


def _to_unit(
    X: Array, y: Array, domain: Domain, target: Interval, dtype: str, weighted: bool
) -> Any:
    """Return unit rows, and unit targets with a last column of weights."""
    found = weight_column(y, weighted)
    found = np.column_stack([target.to_unit(found[:, :-1]), found[:, -1]])
    return unit_inputs(X, domain, dtype), found


def _sum_targets(X: Array, y: Array, column: int, counted: bool) -> Any:
    """Return the sum of the targets, followed by the sum of the weights if it is to be released."""
    zeros = np.zeros((len(y), 0))
    (total,) = scale.sum_clipped(zeros, y, column, np.zeros(1), 1.0)
    if not counted:
        return (total,)
    size = np.sum(np.trunc(y[:, -1] * STEPS).astype(np.int64))
    return (np.append(total, size),)
