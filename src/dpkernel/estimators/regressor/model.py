"""The regressor: how it shares its budget, fits, predicts and reports."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpkernel.data.declared import interval_of
from dpkernel.data.domain import Domain, Interval
from dpkernel.data.sources import Source, open_source
from dpkernel.estimators.base import FitPlan, Fitted
from dpkernel.estimators.kernel_model import NumberModel
from dpkernel.estimators.regressor.budget_plan import MOST_LEARNING_INPUTS, BudgetPlan
from dpkernel.estimators.regressor.fitting import FIXED_FEATURES, Fitting, Sizes
from dpkernel.estimators.regressor.learning import LearnedFitting
from dpkernel.estimators.regressor.scale import ErrorLaw
from dpkernel.foundations.errors import CertificateError, ParameterError, parameter_message
from dpkernel.foundations.types import JSON, AddRemove, Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Constraint, Kind, Real, Whole, is_auto
from dpkernel.models.kernels import REGISTRY as KERNELS
from dpkernel.models.kernels import Kernel, kernel_from_dict
from dpkernel.privacy.certificate import Certificate
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource


class PrivateKernelRegressor(NumberModel):
    r"""Private non-linear regression with nothing to tune.

    The fit has several steps. A noisy histogram finds where y lies; noisy histograms and moments
    find where the inputs lie. A first robust fit of a mixture of kernels, by objective
    perturbation, then chooses the kernel: its families and length scales, and a metric that
    stretches the columns and directions that matter. All of this is computed from released numbers,
    so it costs nothing more. Further fits on features of the chosen kernel explain what is left
    over. Each of them is shrunk in proportion to its known noise.

    This needs n mu of at least 700 and of at least 20 for each input, where mu is that of a Gaussian
    mechanism with this epsilon and delta. With less, but at least 150 and 8 for each of up to 20
    inputs, noisy moments find where the inputs lie, and all fits use one mixture of kernels of
    several families and scales. Below 150, one fit of such a mixture starts from the declared
    ranges. Below 25, or below 2.5 for each input, a private mean is released. The kernel is fixed
    in the other cases: with several targets, with more than 500 inputs, or if you pass a kernel or
    a length scale of your own.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this.
    bounds : (low, high), dict, list of pairs, data frame or Domain
        The publicly known range of the columns. It is required. Values outside are clipped. low and
        high are numbers, or one number per column. A dict {name: (low, high)} or a data frame with
        "low" and "high" declares the columns by name.
    y_bounds
        See ``PrivateKernelRidge``.
    kernel : "auto", str or Kernel
        "auto" learns the kernel, or takes the Gaussian kernel where learning is not possible.
    length_scale : "auto", float or sequence of floats
        The length scale of a fixed kernel on inputs scaled to [-1, 1]: one number, or one number
        per column. "auto" is 0.7 sqrt(d) for d columns.
    n_features : "auto" or int
        The number of features. For a fixed kernel, "auto" is 200. For a learned kernel or a mixture
        of kernels it is n mu / 20, but at least 250, and at most 1000 or half the number of rows.
    budget_plan : "auto" or BudgetPlan
        How the budget is shared. "auto" depends only on (n, d, epsilon, delta).
    neighbours, ledger, noise, random_state
        See ``PrivateKernelRidge``.
    verbose : bool
        Show which step is running.

    Attributes
    ----------
    certificate_ : Certificate
        The guarantee of the fit.
    budget_plan_ : BudgetPlan or None
        How the budget was shared. None if the budget was so small that only a private mean was
        released.
    relevance_ : ndarray of shape (n_columns,) or None
        How much the model depends on each column: the mean squared change of the first fit if the
        column takes the value of another row, less the part that is due to noise, as shares. It is
        computed from released numbers alone. It is 0 for a column whose released histogram shows
        nearly all rows in one cell. None if no kernel was learned.
    relevant_directions_ : list of (share, direction) or None
        The leading directions of that gradient, in units of the spread of the inputs.
    learned_kernel_ : dict or None
        The share of the variance of y that each kernel of the mixture explains, by the name of the
        kernel.
    coef_, intercept_, feature_map_, n_features_in_, feature_names_in_
        See ``PrivateKernelRidge``.

    See Also
    --------
    PrivateQuantileRegressor : Quantiles and prediction intervals.
    PrivateKernelRidge : One pass over a table of any size.
    PrivateHuberRegressor : One robust fit, with a fixed kernel.
    PrivateKernelClassifier : The same for classes.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows, the bounds, the seed and
        the parameters are public. All releases are one spend, which is reserved before any noise is
        drawn.
    Sensitivity
        For replace-one and zero-out in turn: the counts of y have sqrt(2) or 1
        (``sensitivity.histogram``); the counts of the d columns have sqrt(2 d) or sqrt(d)
        (``column_histograms``); the moments have that of a Gram matrix (``augmented_gram``); the
        gradient of a stage has 2 B or B, with B = 0.9 (``loss_gradient``); the clipped sum has
        twice or once the clip (``bounded_sum``). Rows with long features get a smaller weight,
        residuals are clipped, and every solve reaches the same public tolerance.
    Not covered
        ``score`` on the training rows, because it reads them without noise.

    References
    ----------
    Objective perturbation (Lee, Park & Ahn, Algorithm 2, corrected), in stages. Adaptive
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
        for name, rule in NumberModel._constraints.items()
        if name not in ("features", "regularisation")
    } | {
        "epsilon": Real(1e-100, 1e10),
        "kernel": (Choice("auto", *KERNELS), Kind(Kernel)),
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
        kernel: Any = "auto",
        length_scale: Any = "auto",
        n_features: int | str = "auto",
        budget_plan: BudgetPlan | str = "auto",
        neighbours: str | Neighbours | AddRemove = "replace-one",
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

    _places = True

    def _open_table(self, X: Any, y: Any) -> Source:
        interval_of(self.y_bounds, self.bounds, type(self).__name__)
        return open_source(self, X, y, again=True)

    def _make_plan(self, table: Source, budget: Budget, relation: Neighbours) -> FitPlan:
        target = interval_of(self.y_bounds, self.bounds, type(self).__name__)
        domain = self._resolve_domain(table, target)
        if domain.columns is None:
            raise ParameterError(
                f"{type(self).__name__} needs 'bounds', the publicly known range of the columns, for"
                " example bounds=(0, 100) or bounds=([0, 0], [100, 9])."
            )
        sizes, plan = self._sizes(table, domain, budget)
        given = {"kernel": self.kernel, "length_scale": self.length_scale}
        own = {name: value for name, value in given.items() if not is_auto(value)}
        features = sizes.box_features(self.random_state, **own)
        setting = (table, domain, target, sizes, plan, budget, relation, features)
        kind = LearnedFitting if plan is not None and plan.adapts else Fitting
        return kind(*setting, verbose=self.verbose)

    def _adopt(self, found: Fitted, certificate: Certificate) -> None:
        super()._adopt(found, certificate)
        self._show_learned()

    def _show_learned(self) -> None:
        """Set the attributes about the learned kernel, from the certificate."""
        found = self.certificate_.free_statistics.get("kernel")
        self.relevance_ = None if found is None else np.array(found["relevance"])
        self.learned_kernel_ = None if found is None else dict(found["components"])
        self.relevant_directions_ = None
        if found is not None:
            self.relevant_directions_ = [
                (float(share), np.array(direction)) for share, direction in found["directions"]
            ]

    def _sizes(
        self, table: Source, domain: Domain, budget: Budget
    ) -> tuple[Sizes, BudgetPlan | None]:
        """Return the sizes of the fit and its plan, both of which are public."""
        size = FIXED_FEATURES if self.n_features == "auto" else int(self.n_features)
        sizes = Sizes(table.n_rows, domain.n_unit_columns, math.prod(table.target_shape), size)
        plan = self._chosen_plan(sizes, budget, counted=table.weighted)
        return sizes.grown(plan, budget) if self.n_features == "auto" else sizes, plan

    def _chosen_plan(self, sizes: Sizes, budget: Budget, *, counted: bool) -> BudgetPlan | None:
        given = (self.kernel, self.length_scale)
        free = all(map(is_auto, given)) and sizes.n_targets == 1
        if not isinstance(self.budget_plan, BudgetPlan):
            return sizes.plan(budget, learn=free, public_start=not counted)
        if self.budget_plan.adapts and not (free and sizes.n_inputs <= MOST_LEARNING_INPUTS):
            allowed = (
                "without 'columns' and 'mixture' for several targets, a kernel or length scale of your"
                f" own, or more than {MOST_LEARNING_INPUTS} inputs"
            )
            got = "with 'columns'" if self.budget_plan.learns else "with 'mixture'"
            raise ParameterError(
                parameter_message(type(self).__name__, "budget_plan", allowed, got)
            )
        if counted and not self.budget_plan.location > 0:
            allowed = "with 'location' above 0, because the number of rows or weights is private"
            raise ParameterError(
                parameter_message(type(self).__name__, "budget_plan", allowed, "without it")
            )
        return self.budget_plan.filled()

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return predictions inside ``y_bounds``, and with ``return_std`` their standard deviations.

        A standard deviation combines the released scale of the residuals with the uncertainty of
        the coefficients. Residuals far out are clipped in that scale, so for a target with heavy
        tails it describes the bulk of the rows and not the few largest errors;
        ``predict_interval`` covers them, too.
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

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        """Return the lower and upper ends of intervals that contain this share of targets.

        The intervals have one width, from the released histogram of the errors of the fit, with a
        margin for its noise. So they hold on average over rows like those of the fit, whatever the
        law of the errors; a quantile of ``PrivateQuantileRegressor`` adapts to each row.

        With default settings this needs an n mu of about 280, which is 1200 rows (or people) at
        epsilon 1 and delta 1e-6. With less, the noise hides how large the errors are, and the call
        raises a ``ParameterError``.

        Returns
        -------
        ndarray of shape (n, 2), or (n, 2, targets)
        """
        target = self._target()
        if not Real(0, 1).holds(coverage):
            owner = type(self).__name__
            raise ParameterError(parameter_message(owner, "coverage", str(Real(0, 1)), coverage))
        half = [law.quantile(coverage)[2] for law in self._error_laws()]
        mean = self.predict(X)
        reach = half if mean.ndim > 1 else half[0]
        ends = np.stack([mean - reach, mean + reach], axis=1)
        return np.asarray(np.clip(ends, target.low, target.high))

    def _error_laws(self) -> list[ErrorLaw]:
        """Return the released law of the errors of every target."""
        found = self.certificate_.free_statistics.get("errors") or [None]
        laws = [ErrorLaw.from_dict(one) for one in found if one is not None]
        if len(laws) < len(found) or not all(law.informative for law in laws):
            raise ParameterError(
                f"This {type(self).__name__} does not know how large its errors are, because its budget"
                " was too small to release that. Use PrivateQuantileRegressor for intervals."
            )
        return laws

    def _target(self) -> Interval:
        check_is_fitted(self)
        assert isinstance(self._domain.target, Interval)
        return self._domain.target

    def explain_budget(self, path: str | Path | None = None) -> list[dict[str, Any]]:
        """Return one row per release: its share of the budget, its mu, and its epsilon by itself.

        With ``path``, the shares are also plotted to this file. If the kernel was learned, the row of
        the stage that chose it names the kernel, in ``learned``.
        """
        rows = super().explain_budget(path)
        if self.learned_kernel_ is not None:
            parts = [f"{name}: {part:.0%}" for name, part in self.learned_kernel_.items()]
            (first,) = (row for row in rows if row["release"] == "stage 1")
            first["learned"] = "of the variance of y, " + ", ".join(parts)
        return rows

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        recipe = header["feature_map"]["parameters"]
        plan = header["certificate"]["public"]["budget_plan"]
        own = plan is not None and header.get("parameters", {}).get("budget_plan") != "auto"
        found = {
            "budget_plan": BudgetPlan(**plan) if own else "auto",
            **super()._saved_parameters(header, domain),
            "random_state": recipe["random_state"],
        }
        given = header.get("parameters", {})
        if given.get("kernel") == given.get("length_scale") == "auto":
            return found
        kernel = recipe["kernel"]
        return {
            **found,
            "kernel": kernel_from_dict(kernel) if isinstance(kernel, dict) else kernel,
            "length_scale": recipe["length_scale"],
            "n_features": recipe["n_components"],
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
        model._show_learned()
        return model


def _inside(target: Interval, scores: Array) -> Array:
    """Return scores in the units of the target, inside its bounds."""
    values = target.from_unit(np.clip(scores, -1.0, 1.0))
    return np.asarray(np.clip(values, target.low, target.high))
