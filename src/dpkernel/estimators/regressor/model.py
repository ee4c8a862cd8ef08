"""The regressor: parts, spend, fit, predictions with intervals."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin

from dpkernel.blocks import BLOCK_ROWS
from dpkernel.certificate import Certificate, Release
from dpkernel.domain import Domain, Interval
from dpkernel.errors import ParameterError
from dpkernel.estimators.base import interval_of, logger
from dpkernel.estimators.kernel_model import KernelModel
from dpkernel.estimators.passes import Passes
from dpkernel.estimators.regressor import calibration, inputs, location, scale
from dpkernel.estimators.regressor.budget_plan import OUTPUT_SHARE, BudgetPlan
from dpkernel.estimators.regressor.stage import (
    LARGEST_TARGET,
    ROW_BOUND,
    Stage,
    State,
    first_state,
    stage_records,
)
from dpkernel.estimators.sources import Source, open_source, unit_inputs
from dpkernel.features import FeatureMap, WhitenedFeatures
from dpkernel.ledger import Ledger
from dpkernel.losses import Huber
from dpkernel.mechanisms import Gaussian, Mechanism, ObjectivePerturbation, SymmetricGaussian
from dpkernel.noise import Noise, NoiseSource
from dpkernel.profiles import compose, gaussian_mu, objective_multiplier
from dpkernel.sensitivity import bounded_sum, histogram, loss_gradient
from dpkernel.solvers.objective_perturbation import Problem, minimise
from dpkernel.statistics import GramLayout
from dpkernel.types import JSON, Array, Budget, Neighbours
from dpkernel.validation import Choice, Constraint, Kind

_FLOAT32_FROM = 20_000
_MOST_FEATURES = 200


class PrivateKernelRegressor(RegressorMixin, MultiOutputMixin, KernelModel):
    r"""Private non-linear regression with nothing to tune.

    A noisy histogram finds where y lies, noisy second moments where the inputs lie; then a few robust
    fits by objective perturbation, each of what the ones before left over, on features that are
    orthonormal for those inputs, each shrunk by what its noise is known to be.

    Parameters
    ----------
    epsilon, delta : float
        What is asked for; the certificate states at most this.
    bounds : (low, high) or Domain
        Publicly known range of the columns. Required; values outside are clipped.
    y_bounds : (low, high)
        Publicly known range of the target. Required; values outside are clipped.
    kernel : str or Kernel
    length_scale : "auto", float or one a column
        On inputs scaled to [-1, 1]. "auto" is 0.7 sqrt(d).
    n_features : "auto" or int
    budget_plan : "auto" or BudgetPlan
        How the budget is shared; "auto" depends on (n, d, epsilon, delta) only.
    neighbours, ledger, noise, random_state, verbose
        As in ``PrivateKernelRidge``.

    Attributes
    ----------
    certificate_ : Certificate
    budget_plan_ : BudgetPlan or None
        None where the budget is so small that a private mean was released.
    coef_, intercept_ : on the features, in units of the scaled target
    feature_map_ : FeatureMap
    n_features_in_, feature_names_in_

    Guarantee    (epsilon, delta)-DP for the stated neighbours. Public: n, bounds, seed, parameters.
                 All releases are one spend, reserved before the first draw.
    Not covered  ``score`` on the training rows: it reads them without noise.
    Reference    objective perturbation (Lee, Park & Ahn, Algorithm 2, corrected), staged; adaptive
                 composition by one dominating privacy loss.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel import PrivateKernelRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (2000, 2)); y = np.sin(3 * X[:, 0]) + X[:, 1] ** 2
    >>> model = PrivateKernelRegressor(epsilon=1.0, bounds=(-1, 1), y_bounds=(-1, 2)).fit(X, y)
    >>> model.certificate_.private
    True
    """

    _constraints: ClassVar[dict[str, Constraint | tuple[Constraint, ...]]] = {
        name: rule
        for name, rule in KernelModel._constraints.items()
        if name not in ("features", "regularisation")
    } | {"budget_plan": (Choice("auto"), Kind(BudgetPlan))}

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        bounds: Any = None,
        y_bounds: Any = None,
        kernel: Any = "gaussian",
        length_scale: Any = "auto",
        n_features: int | str = "auto",
        budget_plan: BudgetPlan | str = "auto",
        neighbours: str | Neighbours = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        random_state: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.y_bounds = y_bounds
        self.kernel = kernel
        self.length_scale = length_scale
        self.n_features = n_features
        self.budget_plan = budget_plan
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> PrivateKernelRegressor:
        """Release the parts one after the other and put the model together.

        Parameters
        ----------
        X : array, sparse matrix, data frame, Dask array or data frame, torch tensor, or BlockStream
            Read several times: a ``BlockStream`` needs a function that starts it again.
        y : array of shape (n,) or (n, targets)
            Several targets share the budget.

        Nothing is spent if an argument or the data are refused.
        """
        try:
            return self._fit(X, y)
        finally:
            self.__dict__.pop("_set_aside", None)

    def _fit(self, X: Any, y: Any) -> PrivateKernelRegressor:
        budget, relation = self._check_parameters()
        self._refuse_private_n(relation)
        target = interval_of(self.y_bounds, self.bounds, type(self).__name__)
        source = open_source(self, X, y, again=True)
        domain = self._resolve_domain(source, target)
        if domain.columns is None:
            raise ParameterError(
                f"{type(self).__name__} needs 'bounds', the publicly known range of the columns, for"
                " example bounds=(0, 100) or bounds=([0, 0], [100, 9])."
            )
        setting = _Setting.choose(self, source, domain, target, budget, relation)
        releases = [Release(label, mechanism) for label, mechanism in setting.mechanisms.items()]
        self._check_ledger(releases, budget)
        logger.info("%d releases on %d rows", len(releases), source.n_rows)
        noise = self._spend(releases, budget)
        features, states = setting.run(noise)
        certificate = Certificate.issue(
            type(self).__name__,
            budget,
            releases,
            noise,
            public={
                "n_rows": source.n_rows,
                "n_columns": source.n_columns,
                "domain": domain.to_dict(),
                "budget_plan": None if setting.plan is None else setting.plan.to_dict(),
            },
            free_statistics={
                "residual_scale": [state.scale * target.half_width for state in states]
            },
        )
        self._set_columns()
        self._domain, self.feature_map_, self.budget_plan_ = domain, features, setting.plan
        several = bool(source.target_shape)
        self._keep(
            np.column_stack([state.coefficients for state in states]),
            np.column_stack([state.variances for state in states]),
            np.array([state.scale for state in states]),
            several,
        )
        self.certificate_ = certificate
        return self

    def _keep(self, coefficients: Array, variances: Array, scales: Array, several: bool) -> None:
        """Set what predictions need, with one column a target if there are several."""
        take = slice(None) if several else 0
        self.coef_ = coefficients[1:, take]
        self.intercept_ = coefficients[0, take] if several else float(coefficients[0, 0])
        self._variances, self._scales = variances[:, take], scales[take]

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return predictions inside ``y_bounds``, and with ``return_std`` their standard deviations.

        A standard deviation counts the residual scale and what is not known of the coefficients, both
        from released numbers.
        """
        target = self._target()
        mean = target.from_unit(np.clip(self._linear(X), -1.0, 1.0))
        if not return_std:
            return np.asarray(mean)
        X = self._check_new_data(X)
        out = np.empty(mean.shape)
        for rows, block in self._unit_blocks(X):
            squares = self.feature_map_.transform_block(block) ** 2
            out[rows] = self._scales**2 + self._variances[0] + squares @ self._variances[1:]
        return np.asarray(mean), np.sqrt(out) * target.half_width

    def _target(self) -> Interval:
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        assert isinstance(self._domain.target, Interval)
        return self._domain.target

    def explain_budget(self) -> list[dict[str, Any]]:
        """Return one row a release: what it is, its share of the budget, and its epsilon alone."""
        self._target()
        rows, delta = [], self.certificate_.delta
        for release in self.certificate_.releases:
            profile = release.mechanism.profile()
            alone = profile.epsilon(min(max(delta, 1e-12), 0.5))
            strength = getattr(profile, "mu", None) or profile.stages[0][0]  # type: ignore[attr-defined]
            rows.append({"release": release.label, "mu": strength, "epsilon_alone": alone})
        total = sum(row["mu"] ** 2 for row in rows)
        return [{**row, "share": row["mu"] ** 2 / total} for row in rows]

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        return {"y_bounds": domain.target}

    def _to_state(self) -> tuple[JSON, dict[str, Array]]:
        header, arrays = super()._to_state()
        return header, {
            **arrays,
            "variances": np.asarray(self._variances),
            "scales": np.asarray(self._scales),
        }

    @classmethod
    def _from_state(cls, header: JSON, arrays: dict[str, Array]) -> PrivateKernelRegressor:
        model = super()._from_state(header, arrays)
        plan = model.certificate_.public["budget_plan"]
        model.budget_plan_ = None if plan is None else BudgetPlan(**plan)
        model._variances, model._scales = arrays["variances"], arrays["scales"]
        return model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


class _Setting:
    """Everything public about one fit: the plan, a mechanism for each release, and how to run them."""

    def __init__(
        self,
        passes: Passes,
        n_rows: int,
        n_targets: int,
        plan: BudgetPlan | None,
        mechanisms: dict[str, Mechanism],
        problem: Problem | None,
        layout: GramLayout | None,
        new_features: Any,
        dtype: str,
    ) -> None:
        self.plan, self.mechanisms = plan, mechanisms
        self._passes, self._n_rows, self._n_targets = passes, n_rows, n_targets
        self._problem, self._layout, self._dtype = problem, layout, dtype
        self._new_features = new_features

    @classmethod
    def choose(
        cls,
        model: PrivateKernelRegressor,
        source: Source,
        domain: Domain,
        target: Interval,
        budget: Budget,
        relation: Neighbours,
    ) -> _Setting:
        """Return the setting; it depends on (n, d, epsilon, delta) and parameters only."""
        n, d = source.n_rows, domain.n_unit_columns
        k = source.target_shape[0] if source.target_shape else 1
        signal = n * gaussian_mu(budget.epsilon, budget.delta) / math.sqrt(k)
        plan: BudgetPlan | None
        if isinstance(model.budget_plan, BudgetPlan):
            plan = model.budget_plan.filled()
        else:
            plan = BudgetPlan.choose(signal, d)
        dtype = "float32" if n >= _FLOAT32_FROM else "float64"
        passes = Passes(source).then(_to_unit, domain, target, dtype, bytes_a_row=8 * (d + k))
        scale_of = 0.7 * math.sqrt(d) if model.length_scale == "auto" else model.length_scale
        size = _MOST_FEATURES if model.n_features == "auto" else int(model.n_features)

        def new_features(mean: Array | None, covariance: Array | None) -> FeatureMap:
            built: FeatureMap = WhitenedFeatures(
                size,
                kernel=model.kernel,
                length_scale=scale_of,
                mean=None if mean is None else mean.tolist(),
                covariance=None if covariance is None else covariance.tolist(),
                random_state=int(model.random_state or 0),
            ).build(d)
            return built

        layout = inputs.input_layout(d, n, relation) if plan and plan.inputs else None
        problem, mechanisms = _mechanisms(plan, n, k, size + 1, budget, relation, layout)
        return cls(passes, n, k, plan, mechanisms, problem, layout, new_features, dtype)

    def run(self, noise: Noise) -> tuple[FeatureMap, list[State]]:
        """Draw every release; return the features and the final state of every target."""
        if self.plan is None:
            features = self._new_features(None, None)
            return features, [self._mean(j, features, noise) for j in range(self._n_targets)]
        mean = covariance = None
        if self._layout is not None:
            (total,) = self._passes.sum(inputs.sum_inputs, self._layout)
            noisy = self.mechanisms["inputs"].release(total, noise)
            mean, covariance = inputs.fit_inputs(self._layout.read(noisy), self._n_rows)
        features = self._new_features(mean, covariance)
        width = features.n_outputs * np.dtype(self._dtype).itemsize + 8 * self._n_targets
        rows = self._passes.then(_to_features, features, bytes_a_row=width)
        return features, [
            self._one_target(j, rows, features, noise) for j in range(self._n_targets)
        ]

    def _mean(self, column: int, features: FeatureMap, noise: Noise) -> State:
        """Return a constant: all that so small a budget can tell."""
        zero = np.zeros(1)
        (total,) = self._passes.sum(_sum_targets, column)
        noisy = self._mechanism("mean", column).release(total, noise)
        value = float(np.clip(noisy[0] / (calibration.STEPS * self._n_rows), -1.0, 1.0))
        spread = np.concatenate([zero, np.zeros(features.n_outputs)])
        coefficients = spread.copy()
        coefficients[0] = value
        return State(coefficients, spread, 1 / math.sqrt(3))

    def _one_target(self, column: int, rows: Passes, features: FeatureMap, noise: Noise) -> State:
        plan, n = self.plan, self._n_rows
        assert plan is not None and self._problem is not None
        (counts,) = self._passes.sum(_count_targets, column)
        noisy = self._mechanism("location", column).release(counts, noise)
        spectrum = getattr(features, "spectrum", np.ones(1))
        state = first_state(spectrum, *location.fit_location(noisy, n))
        for number in range(1, len(plan.stages) + 1):
            mechanism = self._mechanism(f"stage {number}", column)
            assert isinstance(mechanism, ObjectivePerturbation)
            stage = Stage.choose(state, n, plan.clip, mechanism.sigma, mechanism.ridge)
            beta = mechanism.release(self._solver(stage, rows, column, mechanism), noise)
            state = stage.update(beta, spectrum, n, first=number == 1)
            if plan.scale > 0:
                state = self._new_scale(state, f"scale {number}", rows, column, noise)
        if plan.calibration > 0:
            state = self._calibrated(state, rows, column, noise)
        return state

    def _solver(
        self, stage: Stage, rows: Passes, column: int, mechanism: ObjectivePerturbation
    ) -> Any:
        used = stage.used
        item = np.dtype(self._dtype).itemsize
        records = rows.then(
            stage_records,
            column,
            stage.state.coefficients,
            used,
            np.sqrt(stage.powers[used]),
            stage.clip,
            bytes_a_row=len(used) * item + 16,
        ).records(Huber(1.0))
        problem = _problem(
            self._n_rows,
            len(used),
            mechanism.ridge,
            mechanism.reach * mechanism.sigma * (1 + 1e-12),
            mechanism.error,
        )
        return lambda b: stage.solve(b, lambda part: minimise(records, problem, part))

    def _new_scale(
        self, state: State, label: str, rows: Passes, column: int, noise: Noise
    ) -> State:
        edges = scale.edges_of(state.scale)
        (counts,) = rows.sum(scale.count_residuals, column, state.coefficients, edges)
        noisy = self._mechanism(label, column).release(counts, noise)
        found = scale.fit_scale(noisy, self._n_rows, state.scale)
        return State(state.coefficients, state.variances, found)

    def _calibrated(self, state: State, rows: Passes, column: int, noise: Noise) -> State:
        clip = calibration.REACH * state.scale
        mechanism = self._mechanism("calibration", column)
        (total,) = rows.sum(calibration.sum_clipped, column, state.coefficients, clip)
        unit = clip / (calibration.STEPS * self._n_rows)
        shift = float(mechanism.release(total, noise)[0]) * unit
        spread = (mechanism.noise_scale * unit) ** 2 + state.scale**2 / self._n_rows
        assert self.plan is not None
        # clipped residuals put the fit near a median: several stages leave little else to find
        bias = calibration.BIAS * state.scale if len(self.plan.stages) > 1 else 0.0
        coefficients, variances = state.coefficients.copy(), state.variances.copy()
        unknown = variances[0] + bias**2
        share = unknown / (unknown + spread)
        coefficients[0] += share * shift
        variances[0] = share * spread
        return State(coefficients, variances, state.scale)

    def _mechanism(self, label: str, column: int) -> Any:
        return self.mechanisms[_name(label, column, self._n_targets)]


def _name(label: str, column: int, n_targets: int) -> str:
    return label if n_targets == 1 else f"{label}, target {column + 1}"


def _problem(
    n_rows: int, size: int, ridge: float, largest_b: float, wanted: float = 0.0
) -> Problem:
    ridges = np.full(size, ridge)
    numbers = Huber(1.0), n_rows, ROW_BOUND, ridges, LARGEST_TARGET, largest_b, BLOCK_ROWS
    return Problem(*numbers, wanted=wanted)


def _mechanisms(
    plan: BudgetPlan | None,
    n_rows: int,
    n_targets: int,
    size: int,
    budget: Budget,
    relation: Neighbours,
    layout: GramLayout | None,
) -> tuple[Problem | None, dict[str, Mechanism]]:
    """Return a mechanism for every release; together they fit the budget."""
    total = bounded_sum(relation, bound=float(calibration.STEPS))
    if plan is None:
        mu = gaussian_mu(budget.epsilon, budget.delta) / math.sqrt(n_targets)
        names = [_name("mean", j, n_targets) for j in range(n_targets)]
        while True:
            single = Gaussian.with_mu(total, mu, dimension=1)
            if compose([single.profile()] * n_targets).supports(budget):
                return None, dict.fromkeys(names, single)
            mu *= 1 - 1e-12
    weights = {}
    for label, weight in plan.parts().items():
        for j in range(n_targets):
            if label == "inputs":
                weights[label] = weight
            else:
                weights[_name(label, j, n_targets)] = weight / n_targets
    stages = [weight for label, weight in weights.items() if label.startswith("stage")]
    others = sum(weights.values()) - sum(stages)
    log = min(plan.determinant * budget.epsilon / len(stages), 3.0)
    x = math.expm1(log)
    miss = math.log(1e-7 * budget.delta / len(stages)) - budget.epsilon
    miss = min(math.log(1e-20), miss)
    kappa = objective_multiplier(
        budget,
        stages,
        [x * (1 + 1e-15)] * len(stages),
        relation,
        gaussian=others + OUTPUT_SHARE**2 * sum(stages),
        slack=1e-12,
        log_miss=miss + math.log(len(stages)),
    )
    gradient = loss_gradient(relation, slope=1.0, row=ROW_BOUND)
    ridge = ROW_BOUND**2 / x
    while True:
        found: dict[str, Mechanism] = {}
        for label, weight in weights.items():
            mu = kappa * math.sqrt(weight)
            kind = label.split(",")[0].split(" ")[0]
            if kind == "stage":
                found[label] = ObjectivePerturbation.build(
                    gradient,
                    dimension=size,
                    curvature=ROW_BOUND**2,
                    ridge=ridge,
                    m=mu,
                    output_mu=OUTPUT_SHARE * mu,
                    log_miss=miss,
                    error=lambda sigma, largest: _problem(n_rows, size, ridge, largest).tolerance,
                )
            elif kind == "inputs":
                assert layout is not None
                found[label] = SymmetricGaussian.with_mu(
                    layout.sensitivity, mu, dimension=layout.side, integer=True
                )
            elif kind == "calibration":
                found[label] = Gaussian.with_mu(total, mu, dimension=1)
            else:
                cells = location.CELLS if kind == "location" else scale.CELLS
                found[label] = Gaussian.with_mu(histogram(relation), mu, dimension=cells)
        if compose([mechanism.profile() for mechanism in found.values()]).supports(budget):
            return _problem(n_rows, size, ridge, 1.0), found
        kappa *= 1 - 1e-7


# what every block of rows goes through; module-level, so that Dask workers find them


def _to_unit(X: Array, y: Array, domain: Domain, target: Interval, dtype: str) -> Any:
    return unit_inputs(X, domain, dtype), target.to_unit(y)


def _to_features(X: Array, y: Array, features: FeatureMap) -> Any:
    return features.transform_block(X), y


def _count_targets(X: Array, y: Array, column: int) -> Any:
    return location.count_targets(y, column)


def _sum_targets(X: Array, y: Array, column: int) -> Any:
    zeros = np.zeros((len(y), 0))
    return calibration.sum_clipped(zeros, y, column, np.zeros(1), 1.0)
