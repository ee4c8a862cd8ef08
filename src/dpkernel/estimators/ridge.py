"""Private kernel ridge regression from one noisy Gram matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dpkernel.data.declared import interval_of
from dpkernel.data.domain import Domain, Interval, Intervals
from dpkernel.data.people import People, is_in_memory, open_units
from dpkernel.data.sources import Source, open_source, released_size
from dpkernel.estimators.base import FitPlan, Fitted, logger
from dpkernel.estimators.feature_choice import size_for_gram
from dpkernel.estimators.gram_pass import Recipe, sum_source, sum_units, unit_layout
from dpkernel.estimators.kernel_model import NumberModel, linear_model, stated
from dpkernel.estimators.opening import Order
from dpkernel.estimators.ridge_output import plan_noisy_solution, ridge_of
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, AddRemove, Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Kind, Real, Whole
from dpkernel.models.features import FeatureMap
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import SymmetricGaussian
from dpkernel.privacy.noise import Noise, NoiseSource
from dpkernel.privacy.statistics import GramLayout
from dpkernel.privacy.unit_statistics import UnitGramLayout
from dpkernel.solvers.erm_schedules import Schedule
from dpkernel.solvers.ridge import FoldedSolution, solve_folds

_FOLD_RULE = "row position modulo count"
_FLOAT32_FROM = 20_000  # rows from which features are computed in single precision


class PrivateKernelRidge(NumberModel):
    r"""Kernel ridge regression with a privacy certificate.

    The fit minimises sum_i (y_i - phi(x_i)^T beta - b)^2 + Lambda ||beta||^2, where the feature map
    phi does not depend on the data. With ``solver="gram"`` it reads the data once and releases
    sum_i v_i v_i^T, v = (phi(x), y, 1), with noise; the model is computed from this release alone.
    With ``solver="output"`` it solves without noise and adds noise to the solution.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. ``delta=0`` gives pure epsilon and
        needs ``solver="output"``.
    kernel : str or Kernel
        A name ("gaussian", "laplace", "matern12", "matern32", "matern52", "rational_quadratic",
        "cauchy", "linear", "polynomial", "arc_cosine", "additive") or a kernel from
        ``dpkernel.models.kernels``.
    length_scale : "auto", float or sequence of floats
        The length scale of the kernel on inputs scaled to [-1, 1]: one number, or one number per
        column. "auto" is 0.7 sqrt(d) for d columns.
    features : str or FeatureMap
        "auto", "eigen", "fourier", "projection", "nystroem", "linear", "polynomial" or a feature
        map. "auto" takes the exact map for linear and polynomial kernels. For other kernels it
        takes public eigenfeatures if bounds are declared, and Fourier features otherwise.
    n_features : "auto" or int
        The number of features. "auto" depends only on (n, epsilon, delta).
    regularisation : "auto", float or str
        Lambda. "auto" follows from the noise of the release or, with ``folds`` above 1, is chosen
        by held-out error. A text is the schedule of a theorem, such as "lee-11(r=0.5, gamma=0.5)",
        which also chooses the number of features if that is "auto"; see
        ``dpkernel.solvers.erm_schedules``.
    folds : int
        From 1 to 10. Above 1, the fit releases one noisy matrix for each fold of the rows. Each has
        the same noise as a single matrix would have, and all of them together cost the same
        privacy, because a record is in one fold only. Lambda (if "auto") and the number of leading
        eigenfeatures are then chosen by held-out error, at no further cost. The model is solved
        from the sum of all folds, whose noise is sqrt(folds) times larger. Folds therefore help
        when there are many rows and the default rule does not suit the target; take 2. The fold of
        a row is its position modulo ``folds``, so the order of the rows must be public: never sort
        or stratify them by what they contain. With ``groups``, folds consist of people, whose order
        is drawn at random.
    solver : {"gram", "output"}
        Whether noise is added to the Gram matrix or to the solution (output perturbation). With
        "output" the noise does not grow with the number of features, the table is read several
        times, and ``folds`` is not available. Its Lambda multiplies half the
        squared norm on features of mean square 1, with y scaled to [-1, 1]; the noise is about
        proportional to 1 / Lambda.
    bounds : (low, high), dict, list of pairs, data frame or Domain, optional
        The publicly known range of the columns. Values outside are clipped. low and high are
        numbers, or one number per column. A dict {name: (low, high)} or a data frame with "low" and
        "high" declares the columns by name. Bounds are not needed for Fourier features and random
        projections of kernels that are bounded everywhere.
    y_bounds : (low, high), or one such pair per target
        The publicly known range of the target. It is required. Values outside are clipped. For
        several targets, one pair is used for all of them, or each is scaled to a pair of its own.
    neighbours : {"replace-one", "zero-out"} or AddRemove
        The neighbouring relation of the guarantee. ``AddRemove(n_max)`` also hides the number of
        rows (with ``groups``: of people); ``n_max`` is a number that is known not to be exceeded.
    ledger : Ledger, optional
        The ledger that records the spend. Without one, each fit has a ledger of its own.
    noise : NoiseSource, optional
        The source of noise; by default the entropy of the operating system. With ``SeededNoise``
        the fit is not private.
    random_state : int, optional
        The public seed of the feature map. None means 0, which is as good as any other. It does not
        affect the noise.
    accept : tuple of str
        The assumptions that you sign. With ``delta=0``, ``("idealised-arithmetic",)`` allows noise
        that is smaller by a factor of sqrt(2), for which no theorem in finite precision is known.
    verbose : bool
        Show a progress bar, which counts the rows of arrays and streams. There is none with
        ``groups`` on a table in memory, because the number of rows is then private.

    Attributes
    ----------
    certificate_ : Certificate
        The guarantee of the fit.
    coef_, intercept_ : ndarray or float
        The coefficients of the features and the constant, in units of the scaled target.
    feature_map_ : FeatureMap
        The public map from a row to its features.
    n_features_in_, feature_names_in_
        The number and the names of the columns.

    See Also
    --------
    PrivateKernelRegressor : More accurate on most tables: it learns its kernel.
    PrivateSketchedRidge : A sketch that can be fitted again at no further cost.
    GramStatistics : The sums of such a fit, gathered piece by piece.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows, the bounds, the seed and
        the parameters are public; with ``folds`` above 1, so is the position of each row. With
        ``AddRemove(n_max)``, n_max is public instead of the number of rows. With
        ``groups``, a neighbour replaces (or blanks) one unit with all its rows; n is the number of
        units, and the number of rows is protected, too. By default, each row then has the weight 1 /
        (rows of its person), so that the error is a mean over the rows of each person, summed over
        people. This needs ``bounds`` and a table in memory. With folds, with ``solver="output"`` and
        for other tables, each person becomes one record.
    Sensitivity
        The Gram matrix has sqrt(2) N^2 (replace-one) or N^2 (zero-out), in integers, where N bounds
        the norm of a record: ``sensitivity.augmented_gram``. For units it is the same, in float64
        with a proved rounding error: ``sensitivity.unit_gram``. With ``solver="output"`` the
        solution has (B / Lambda) min(2 + rho / 2, 2 psi(rho)), with B = 1 and rho = B sqrt(n /
        Lambda), times the square root of the number of targets, plus the error that the solver may
        leave: ``sensitivity.erm_ridge``.
    Not covered
        ``score`` on the training rows, because it reads them without noise.

    References
    ----------
    Lee, Park & Ahn, Algorithms 1 and 3 and Appendix B, with a joint release, clipping and the
    analytic Gaussian mechanism in place of the printed calibration. For ``solver="output"``: Nie &
    Wang, Theorem 2, with a sharper bound and with noise on all coefficients.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel import PrivateKernelRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (2000, 3)); y = X @ [1.0, -2.0, 0.5]
    >>> model = PrivateKernelRidge(epsilon=1.0, kernel="linear", bounds=(-1, 1), y_bounds=(-4, 4))
    >>> model.fit(X, y).certificate_.private
    True
    """

    _constraints: ClassVar = {
        **NumberModel._constraints,
        "folds": Whole(1, 10),
        "solver": Choice("gram", "output"),
        "delta": Real(0, 1, closed_low=True),
        "accept": Kind(tuple, list, set, frozenset),
    }

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        kernel: Any = "gaussian",
        length_scale: Any = "auto",
        features: Any = "auto",
        n_features: int | str = "auto",
        regularisation: float | str = "auto",
        folds: int = 1,
        solver: str = "gram",
        bounds: Any = None,
        y_bounds: Any = None,
        neighbours: str | Neighbours | AddRemove = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        random_state: int | None = None,
        accept: Any = (),
        verbose: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.kernel = kernel
        self.length_scale = length_scale
        self.features = features
        self.n_features = n_features
        self.regularisation = regularisation
        self.folds = folds
        self.solver = solver
        self.bounds = bounds
        self.y_bounds = y_bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.accept = accept
        self.verbose = verbose

    _places = True

    def _check_places(self) -> None:
        super()._check_places()
        if self.folds > 1:
            allowed, advice = (
                "1 with neighbours='add-remove'",
                "Or use 'zero-out', which hides what a record says, but not how many there are.",
            )
            raise ParameterError(
                parameter_message(type(self).__name__, "folds", allowed, self.folds, advice)
            )

    def _open_people(self, X: Any, y: Any, people: People, order: Order) -> tuple[Source, str]:
        one_sum = self.solver == "gram" and self.folds == 1
        if people.record == "all" and not one_sum:
            raise ParameterError(
                "People(ids, record='all') needs solver='gram' and folds=1: weights of rows belong to"
                " one sum. Use record='near' or record='one' with this solver or with folds."
            )
        if people.record == "all" or (people.record == "auto" and one_sum and is_in_memory(X)):
            return open_units(self, X, y, people.ids), ""
        return super()._open_people(X, y, people, order)

    def _open_table(self, X: Any, y: Any) -> Source:
        if self.solver == "output":
            ridge_of(self)  # refuses what output perturbation can't do
            interval_of(self.y_bounds, self.bounds, type(self).__name__)
            return open_source(self, X, y, again=True)
        return open_source(self, X, y)

    def _make_plan(self, table: Source, budget: Budget, relation: Neighbours) -> FitPlan:
        if self.solver == "output":
            return plan_noisy_solution(self, table, budget, relation)
        return self._plan_gram(table, budget, relation)

    def _fit_choosing(
        self, X: Any, y: Any, choices: Sequence[tuple[float | None, int | None]], record: str = ""
    ) -> int:
        """Fit on folds and choose among pairs (Lambda, number of leading features), at no cost.

        The choice depends on the released matrices only. Returns the position of the chosen pair.
        ``record`` says how people became the rows of X; it is empty if the rows are records.
        """
        budget, relation = self._check_parameters()
        opened = self._opened(X, y, None, None, relation, self.noise)
        plan = self._plan_gram(opened.table, budget, relation)
        plan.choices = tuple(choices)
        self._finish(replace(opened, record=record), plan, budget)
        assert plan.choice is not None
        return plan.choice

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        budget, relation = super()._check_parameters()
        if budget.pure and self.solver == "gram":
            raise ParameterError(
                parameter_message(
                    type(self).__name__,
                    "delta",
                    "above 0 with solver='gram'",
                    0.0,
                    "Pure noise on a whole matrix would be far larger. Use solver='output'.",
                )
            )
        return budget, relation

    def _plan_gram(self, source: Source, budget: Budget, relation: Neighbours) -> GramPlan:
        by_unit, n, owner = source.shares is not None, source.n_rows, type(self).__name__
        domain = self._resolve_domain(source, squared_interval(self))
        found = self._schedule(source, domain, budget, squared=True)
        size = None if found is None else found.n_features
        features = self._choose_features(domain, source, size or size_for_gram(n, budget))
        n_targets = source.target_shape[0] if source.target_shape else 1
        layout: GramLayout | UnitGramLayout
        if by_unit:
            layout = unit_layout(owner, features, domain, n_targets, relation, n)
        else:
            bound = features.row_norm_bound
            layout = GramLayout.choose(features.n_outputs, n_targets, bound, relation, n, budget)
        return GramPlan(
            source,
            domain,
            features,
            layout,
            layout.mechanism(budget),
            int(self.folds),
            self._given_regularisation(features, found),
            self.verbose,
            schedule=found,
        )

    def _given_regularisation(self, features: FeatureMap, found: Schedule | None) -> float | None:
        """Return Lambda, or None for "auto". Refuse folds if they have nothing to choose."""
        given = self._ridge if found is None else found.strength
        if self.folds > 1 and given is not None and not hasattr(features, "spectrum"):
            raise ParameterError(
                parameter_message(
                    type(self).__name__,
                    "folds",
                    "1 where nothing is left to choose",
                    self.folds,
                    "The regularisation is given and these features have no order, so folds"
                    " would only add noise.",
                )
            )
        return given

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        solver = header["certificate"]["public"].get("solver", "gram")
        accepted = tuple(header["certificate"]["assumptions"])
        found = super()._saved_parameters(header, domain)
        return {**found, "solver": solver, "accept": accepted}


@dataclass
class GramPlan(FitPlan):
    """One noisy Gram matrix, or one per fold, and the model that is solved from it."""

    source: Source
    domain: Domain
    features: FeatureMap
    layout: GramLayout | UnitGramLayout
    mechanism: SymmetricGaussian
    folds: int
    regularisation: float | None
    verbose: bool = False
    choices: tuple[tuple[float | None, int | None], ...] = ()
    choice: int | None = None  # the position of the chosen pair, after the run
    sums: Any = None
    schedule: Schedule | None = None

    @property
    def by_unit(self) -> bool:
        """Whether a unit with all its rows is protected, instead of a single row."""
        return isinstance(self.layout, UnitGramLayout)

    @property
    def releases(self) -> list[Release]:  # type: ignore[override]
        """The lines of the certificate."""
        label = "gram matrix of units" if self.by_unit else "gram matrix"
        return [Release(label, self.mechanism, folds=self.folds)]

    @property
    def recipe(self) -> Recipe:
        """How a row becomes a record on the integer grid."""
        assert isinstance(self.layout, GramLayout)
        dtype = record_precision(self.source.n_rows)
        weighted = self.source.weighted
        return Recipe(self.domain, self.features, self.layout, dtype, self.folds, weighted)

    def prepare(self) -> None:
        """Sum up the rows in one pass."""
        n = self.source.n_rows
        logger.info("one pass over %d %s", n, "units" if self.by_unit else "rows")
        if isinstance(self.layout, UnitGramLayout):
            self.sums = sum_units(self.source, self.domain, self.features, self.layout)
        else:
            self.sums = sum_source(self.source, self.recipe, progress=self.verbose)

    def run(self, noise: Noise) -> Fitted:
        """Release the matrices and solve for the model."""
        released = self.sums.release(self.mechanism, noise)
        grams = [released] if self.by_unit else released
        count = sum(gram.count for gram in grams)
        total = released_size(count, self.source.n_rows, self.source.weighted)
        found = solve_folds(
            grams,
            total,
            self.layout,
            self.mechanism.noise_scale,
            regularisation=self.regularisation,
            spectrum=getattr(self.features, "spectrum", None),
            choices=self.choices,
        )
        self.choice = found.choice
        several, solution = bool(self.source.target_shape), found.solution
        solved = solution.coefficients, solution.intercepts
        return Fitted(
            linear_model(self.domain, self.features, *solved, several=several),
            self._public(solution.regularisation),
            self._statistics(found, total),
            "Lee, Park & Ahn, Algorithms 1 and 3, corrected: joint release of the augmented Gram"
            f" matrix{', averaged over the rows of each unit' if self.by_unit else ''}; "
            + self.mechanism.reference,
        )

    def _public(self, regularisation: float) -> JSON:
        layout, n = self.layout, self.source.n_rows
        free = self.folds > 1 and self.regularisation is None
        grid = {"row": layout.row, "target": layout.target, "constant": layout.constant}
        return {
            **({"unit": "group", "n_units": n} if self.by_unit else {"n_rows": n}),
            "n_columns": self.source.n_columns,
            "domain": self.domain.to_dict(),
            "feature_map": self.features.to_dict(),
            "regularisation": "chosen on held-out folds" if free else regularisation,
            **({} if self.by_unit else {"folds": {"count": self.folds, "rule": _FOLD_RULE}}),
            "record_scale" if self.by_unit else "integer_grid": grid,
            **stated(self.schedule, self.features),
        }

    def _statistics(self, found: FoldedSolution, total: float) -> JSON:
        assert isinstance(self.domain.target, Interval)
        scale = np.broadcast_to(self.domain.target.half_width, self.layout.n_targets) ** 2
        sigma = self.mechanism.noise_scale * math.sqrt(self.folds)
        error = _training_error(found, self.layout, sigma, scale, total)
        return {**error, **found.statistics(scale)}


def squared_interval(model: Any) -> Interval:
    """Return the declared range of y; refuse a range whose squares overflow."""
    owner = type(model).__name__
    target = interval_of(model.y_bounds, model.bounds, owner)
    if not np.all(target.half_width <= 1e150):
        allowed = "less than 2e150 wide, so that squares are finite"
        got = target if isinstance(target, Intervals) else (target.low, target.high)
        raise ParameterError(parameter_message(owner, "y_bounds", allowed, got))
    return target


def record_precision(n_rows: int) -> str:
    """Return the precision in which features are computed, given the number of rows."""
    return "float32" if n_rows >= _FLOAT32_FROM else "float64"


def _training_error(
    found: FoldedSolution, layout: GramLayout | UnitGramLayout, sigma: float, scale: Array, n: float
) -> dict[str, Any]:
    """Return the training error that the released matrix shows, with the spread due to noise.

    The error is a mean over rows or over units: w^T A w / n for w = (-beta, 1, -b), where A is the
    sum of all folds. Symmetric noise of scale sigma on A gives it the standard deviation sigma
    ||w||^2 / n, in the units of the release. Intervals extend 1.96 standard deviations to either
    side. The error is biased low, as any training error is, because w was chosen from the same A.
    """
    gram, solution = found.gram, found.solution
    names = ("training_mse", "training_mse_noise_std", "training_mse_interval")
    out: dict[str, Any] = {name: [] for name in (*names, "training_r2", "training_r2_interval")}
    for j in range(layout.n_targets):
        w = np.zeros(layout.side)
        w[: layout.n_features] = -solution.coefficients[:, j]
        w[layout.n_features + j] = 1.0
        w[-1] = -solution.intercepts[j]
        unit = float(scale[j]) / n
        error = float(w @ gram.matrix @ w) * unit
        spread = sigma * float(np.sum((w * layout.units) ** 2)) * unit
        interval = [max(error - 1.96 * spread, 0.0), max(error + 1.96 * spread, 0.0)]
        variance = float(gram.targets[j, j] - gram.target_sum[j] ** 2 / n) * unit
        known = variance > 0 and math.isfinite(spread)
        out["training_mse"].append(error)
        out["training_mse_noise_std"].append(spread)
        out["training_mse_interval"].append(interval)
        out["training_r2"].append(min(1 - error / variance, 1.0) if known else None)
        out["training_r2_interval"].append(
            [1 - interval[1] / variance, 1 - interval[0] / variance] if known else None
        )
    return out
