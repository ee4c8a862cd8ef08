"""The regressor: parts, spend, fit, predictions with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpkernel.certificate import Certificate, Release
from dpkernel.domain import Domain, Interval
from dpkernel.errors import CertificateError, ParameterError, parameter_message
from dpkernel.estimators.base import interval_of, logger, resolve_domain
from dpkernel.estimators.kernel_model import KernelModel
from dpkernel.estimators.regressor.budget_plan import BudgetPlan
from dpkernel.estimators.regressor.fitting import Fitting, Sizes
from dpkernel.estimators.regressor.inputs import input_layout
from dpkernel.estimators.regressor.outlook import Outlook, outlook
from dpkernel.estimators.regressor.releases import plan_releases
from dpkernel.estimators.regressor.stage import State
from dpkernel.estimators.sources import open_source
from dpkernel.features import WhitenedFeatures
from dpkernel.kernels import kernel_from_dict
from dpkernel.ledger import Ledger
from dpkernel.noise import NoiseSource
from dpkernel.types import JSON, Array, Budget, Neighbours, is_whole
from dpkernel.validation import Choice, Constraint, Kind, Real, Whole

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
    verbose : bool
        Say which part is worked on.
    neighbours, ledger, noise, random_state
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
    Sensitivity  of the counts sqrt(2) or 1 (``sensitivity.histogram``), of the moments that of a Gram
                 matrix (``augmented_gram``), of a stage's gradient 2 B or B, B = 0.9
                 (``loss_gradient``), of the clipped sum twice the clip or once (``bounded_sum``). Rows
                 that are too long get a smaller weight, residuals are clipped, and every solve
                 reaches one public tolerance.
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
    } | {
        "epsilon": Real(0, 1e10),
        "n_features": (Choice("auto"), Whole(2, 2000)),
        "budget_plan": (Choice("auto"), Kind(BudgetPlan)),
    }

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
        domain = self._box(self._resolve_domain(source, target))
        sizes = self._sizes(source.n_rows, domain, source.target_shape)
        plan = self._chosen_plan(sizes, budget)
        features = self._unbuilt(sizes)
        setting = (source, domain, target, sizes, plan, budget, relation, features)
        fitting = Fitting(*setting, verbose=self.verbose)
        releases = [Release(label, mechanism) for label, mechanism in fitting.mechanisms.items()]
        self._check_ledger(releases, budget)
        logger.info("%d releases on %d rows", len(releases), source.n_rows)
        fitting.prepare()
        noise = self._spend(releases, budget)
        feature_map, states = fitting.run(noise)
        certificate = Certificate.issue(
            type(self).__name__,
            budget,
            releases,
            noise,
            public={
                "n_rows": source.n_rows,
                "n_columns": source.n_columns,
                "domain": domain.to_dict(),
                "budget_plan": None if plan is None else plan.to_dict(),
            },
            free_statistics=_residual_scales(states, target.half_width),
        )
        self._set_columns()
        self._domain, self.feature_map_, self.budget_plan_ = domain, feature_map, plan
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

    def _box(self, domain: Domain) -> Domain:
        if domain.columns is None:
            raise ParameterError(
                f"{type(self).__name__} needs 'bounds', the publicly known range of the columns, for"
                " example bounds=(0, 100) or bounds=([0, 0], [100, 9])."
            )
        return domain

    def _sizes(self, n_rows: int, domain: Domain, target_shape: tuple[int, ...]) -> Sizes:
        size = _MOST_FEATURES if self.n_features == "auto" else int(self.n_features)
        return Sizes(n_rows, domain.n_unit_columns, math.prod(target_shape), size)

    def _chosen_plan(self, sizes: Sizes, budget: Budget) -> BudgetPlan | None:
        if isinstance(self.budget_plan, BudgetPlan):
            return self.budget_plan.filled()
        return sizes.plan(budget)

    def _unbuilt(self, sizes: Sizes) -> WhitenedFeatures:
        auto = 0.7 * math.sqrt(sizes.n_inputs)
        return WhitenedFeatures(
            sizes.n_features,
            kernel=self.kernel,
            length_scale=auto if isinstance(self.length_scale, str) else self.length_scale,
            random_state=int(self.random_state or 0),
        )

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return predictions inside ``y_bounds``, and with ``return_std`` their standard deviations.

        A standard deviation is that of y around the prediction: the scale of the residuals, and what
        is not known of the coefficients, both from released numbers.
        """
        target = self._target()
        if not return_std:
            return _inside(target, self._linear(X))
        X = self._check_new_data(X)
        mean, square = np.empty((2, X.shape[0], *np.shape(self.intercept_)))
        for rows, block in self._unit_blocks(X):
            features = self.feature_map_.transform_block(block)
            mean[rows] = features @ self.coef_ + self.intercept_
            unknown = self._variances[0] + features**2 @ self._variances[1:]
            square[rows] = self._scales**2 + unknown
        return _inside(target, mean), np.sqrt(square) * target.half_width

    def _target(self) -> Interval:
        check_is_fitted(self)
        assert isinstance(self._domain.target, Interval)
        return self._domain.target

    def plan(self, n_rows: int, n_columns: int, n_targets: int = 1) -> Outlook:
        """Return how the budget would be shared on such a table, and what error to expect.

        Nothing is read and nothing is spent: call it before there are data. The expected error
        rests on an assumption that ``Outlook`` states.

        Examples
        --------
        >>> model = PrivateKernelRegressor(epsilon=1.0, bounds=(0, 1))
        >>> model.plan(n_rows=100, n_columns=10).budget_plan is None  # a private mean
        True
        >>> model.plan(n_rows=10_000, n_columns=10).n_stages
        3
        """
        budget, relation = self._check_parameters()
        self._refuse_private_n(relation)
        owner = type(self).__name__
        for name, value in (
            ("n_rows", n_rows),
            ("n_columns", n_columns),
            ("n_targets", n_targets),
        ):
            if not is_whole(value) or value < 1:
                raise ParameterError(parameter_message(owner, name, "an int >= 1", value))
        domain = self._box(resolve_domain(self.bounds, None, n_columns, owner))
        sizes = self._sizes(int(n_rows), domain, (int(n_targets),))
        plan = self._chosen_plan(sizes, budget)
        bought = plan is not None and plan.inputs > 0
        layout = input_layout(sizes.n_inputs, sizes.n_rows, relation) if bought else None
        mechanisms = plan_releases(
            plan,
            sizes.n_rows,
            sizes.n_targets,
            sizes.n_features + 1,
            budget,
            relation,
            layout,
        )
        spectrum = self._unbuilt(sizes).build(sizes.n_inputs).spectrum
        return outlook(plan, mechanisms, sizes.n_rows, spectrum)

    def explain_budget(self, path: str | Path | None = None) -> list[dict[str, Any]]:
        """Return one row a release: its share of the budget, its mu, and its epsilon by itself.

        With ``path`` the shares are drawn, too. A share is that of the sum of mu^2, by which Gaussian
        releases compose; the mu of a stage is its sensitivity over the scale of its noise.
        """
        self._target()
        rows, delta = [], self.certificate_.delta
        for release in self.certificate_.releases:
            profile = release.mechanism.profile()
            alone = profile.epsilon(min(max(delta, 1e-12), 0.5))
            mu = release.mechanism.sensitivity.value / release.mechanism.noise_scale
            rows.append({"release": release.label, "mu": mu, "epsilon_alone": alone})
        total = math.fsum(row["mu"] ** 2 for row in rows)
        rows = [{**row, "share": row["mu"] ** 2 / total} for row in rows]
        if path is not None:
            _draw_shares(rows, self.certificate_, Path(path))
        return rows

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        recipe = header["feature_map"]["parameters"]
        kernel = recipe["kernel"]
        plan = header["certificate"]["public"]["budget_plan"]
        own = plan is not None and header.get("parameters", {}).get("budget_plan") != "auto"
        return {
            "budget_plan": BudgetPlan(**plan) if own else "auto",
            "y_bounds": domain.target,
            "kernel": kernel_from_dict(kernel) if isinstance(kernel, dict) else kernel,
            "length_scale": recipe["length_scale"],
            "n_features": recipe["n_components"],
            "random_state": recipe["random_state"],
        }

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
        variances, scales = arrays["variances"], arrays["scales"]
        shape = (len(model.coef_) + 1, *np.shape(model.intercept_))
        if variances.shape != shape or scales.shape != shape[1:]:
            raise CertificateError("The variances of this model file do not fit its coefficients.")
        model._variances, model._scales = variances, scales if scales.ndim else scales[()]
        return model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


def _inside(target: Interval, scores: Array) -> Array:
    """Return scores in the target's units, inside its bounds."""
    values = target.from_unit(np.clip(scores, -1.0, 1.0))
    return np.asarray(np.clip(values, target.low, target.high))


def _residual_scales(states: Sequence[State], unit: float) -> JSON:
    """Return the scales of the residuals in units of y, with intervals where they were released."""
    known = [state.scale_interval for state in states]
    return {
        "residual_scale": [state.scale * unit for state in states],
        "residual_scale_interval": [
            None if found is None else [end * unit for end in found] for found in known
        ],
    }


def _draw_shares(rows: list[dict[str, Any]], certificate: Certificate, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 1.4 + 0.3 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    labels = [row["release"] for row in rows][::-1]
    shares = [row["share"] for row in rows][::-1]
    bars = axes.barh(labels, shares, color="#0b5fa5")
    axes.bar_label(bars, [f"{share:.1%}" for share in shares], padding=3)
    axes.set(xlabel="share of the budget", xlim=(0, 1.15 * max(shares)))
    axes.set_title(f"epsilon = {certificate.epsilon:.3g}, delta = {certificate.delta:.3g}")
    figure.savefig(path, dpi=130)
