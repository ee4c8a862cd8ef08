"""Risk minimisation in the reproducing kernel space itself: one coefficient per row.

The fitted function sum_i alpha_i k(x_i, .) contains the training inputs, so it is never released
itself. What is released are its values on a public grid (``grid``), or the answers of a curator
(``curator``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.base import MultiOutputMixin, RegressorMixin

from dpkernel.data.blocks import dense_rows
from dpkernel.data.declared import interval_of, resolve_domain
from dpkernel.data.domain import Domain, Interval, Intervals
from dpkernel.data.sources import Source, training_data
from dpkernel.data.weights import split_weights
from dpkernel.estimators.base import PrivateEstimator, logger
from dpkernel.estimators.loss_choice import smooth_loss
from dpkernel.estimators.records import NUMBER_SIGNAL
from dpkernel.foundations.errors import DataError, ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Kind, Real
from dpkernel.models.features import LinearFeatures
from dpkernel.models.kernels import REGISTRY as KERNELS
from dpkernel.models.kernels import Kernel, resolve_kernel
from dpkernel.models.losses import Huber, Loss, Squared, loss_from_dict
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource, SeededNoise
from dpkernel.privacy.profiles import gaussian_mu
from dpkernel.privacy.sensitivity import Sensitivity, erm_lipschitz, erm_ridge
from dpkernel.solvers.erm_schedules import SCHEDULE, schedule
from dpkernel.solvers.objective_perturbation import BlockRecords
from dpkernel.solvers.output_perturbation import Risk, minimise_risk

MOST_ROWS = 10_000
_AUTO_THRESHOLD = 0.2  # as a share of half the declared range
_SAMPLE = 256
_UP = 1 + 1e-15


@dataclass(frozen=True)
class FunctionProblem:
    """What is public about a fit: sum_i loss(y_i, f(x_i)) + ridge ||f||^2 / 2, y in [-1, 1].

    ``loss`` is half the squared loss, or a loss with a largest slope and a largest curvature.
    """

    kernel: Kernel
    kappa: float
    n_rows: int
    ridge: float
    loss: Loss

    @property
    def least_squares(self) -> bool:
        """Whether the loss is the squared loss, whose minimiser is the solution of linear equations."""
        return isinstance(self.loss, Squared)

    @property
    def risk(self) -> Risk:
        """The problem with a loss of bounded slope, which is solved iteratively."""
        assert not self.least_squares
        return Risk(self.loss, self.n_rows, self.n_rows, self.kappa, self.ridge)

    def sensitivity(self, neighbours: Neighbours) -> Sensitivity:
        """Return how far the fitted function moves, in the norm of the kernel space."""
        return joint_sensitivity((self,), neighbours)

    def fit(self, X: Array, y: Array, weights: Array | None = None) -> Array:
        """Return the coefficients alpha of f = sum_i alpha_i k(x_i, .).

        A weighted squared loss is that of records and targets times the roots of the weights, which
        only shrinks them. Weights leave the gradient of a Huber loss shorter, too.
        """
        matrix = self.kernel(X)
        if self.least_squares and weights is not None:
            roots = np.sqrt(weights)
            return np.asarray(
                roots * self._least_squares(matrix * np.outer(roots, roots), roots * y)
            )
        if self.least_squares:
            return self._least_squares(matrix, y)
        # rows of a root of the matrix are records in n dimensions with the same geometry
        values, vectors = np.linalg.eigh(matrix)
        rows = vectors * np.sqrt(np.maximum(values, 0.0))
        block = rows, y, weights
        beta = minimise_risk(lambda loss: BlockRecords(lambda: [block], loss), self.risk)
        slopes = -self.loss.derivative(y, rows @ beta)
        slopes = slopes if weights is None else weights * slopes
        return np.asarray(slopes / self.ridge)  # at the minimiser beta = rows^T alpha

    def _least_squares(self, matrix: Array, y: Array) -> Array:
        try:
            return np.asarray(cho_solve(cho_factor(matrix + self.ridge * np.eye(len(y))), y))
        except np.linalg.LinAlgError:  # with a tiny ridge, rounding makes the matrix indefinite
            values, vectors = np.linalg.eigh(matrix)
            return np.asarray(vectors @ (vectors.T @ y / (np.maximum(values, 0) + self.ridge)))


def joint_sensitivity(problems: Sequence[FunctionProblem], neighbours: Neighbours) -> Sensitivity:
    """Return how far the functions of all targets move, as one function of a point and a target.

    The problems differ in their losses only. The squared norm of that function is the sum of the
    squared norms of its parts.
    """
    first, count = problems[0], len(problems)
    row, ridge = first.kappa, first.ridge
    if first.least_squares:
        return erm_ridge(
            neighbours, row=row, target=1.0, strength=ridge, n_rows=first.n_rows, problems=count
        )
    slope = max(problem.loss.lipschitz for problem in problems)
    # the solver's tolerance, and that of reading off alpha
    tolerance = 2 * max(problem.risk.problem.tolerance for problem in problems)
    if any(problem.loss.lipschitz != slope for problem in problems):
        slope = math.hypot(*(problem.loss.lipschitz for problem in problems)) * _UP
        tolerance, count = tolerance * math.sqrt(count) * _UP, 1
    return erm_lipschitz(
        neighbours, slope=slope, row=row, strength=ridge, problems=count, tolerance=tolerance
    )


@dataclass(frozen=True)
class FunctionTable:
    """A checked table in memory, in its original units, and the domain that bounds it."""

    domain: Domain
    target: Interval
    source: Source

    def solved(self, problems: Sequence[FunctionProblem]) -> tuple[Array, Array]:
        """Return the rows in the unit box, and the coefficients of the solutions on them.

        There is one column of coefficients per target if y has several columns.
        """
        logger.info("one fit of %d rows in the kernel's space", self.source.n_rows)
        rows = self.domain.of_positions.to_unit(dense_rows(self.source.X, slice(None)))
        y, weights = self.source.y, None
        if self.source.weighted:
            y, weights = split_weights(y, bool(self.source.target_shape))
        targets = self.target.to_unit(y)
        found = [
            problem.fit(rows, _as_labels(column) if problem.loss.labels else column, weights)
            for problem, column in zip(problems, targets.reshape(len(rows), -1).T, strict=True)
        ]
        return rows, np.column_stack(found) if self.source.target_shape else found[0]


def _as_labels(y: Array) -> Array:
    """Return targets of a loss of margins: y in the upper half of its range is the positive class."""
    return np.where(y > 0, 1.0, -1.0)


class FunctionModel(RegressorMixin, MultiOutputMixin, PrivateEstimator):
    """Base class of regressions in a reproducing kernel space: parameters and data."""

    _constraints: ClassVar[Any] = {
        "epsilon": Real(1e-100, math.inf),
        "delta": Real(0, 1),
        "loss": Kind(str, Loss),
        "threshold": (Choice("auto"), Real(0)),
        "kernel": (Choice(*KERNELS), Kind(Kernel)),
        "length_scale": (Choice("auto"), Real(0, math.inf), Kind(list, tuple, np.ndarray)),
        "regularisation": (Choice("auto"), Real(0, 1e100), SCHEDULE),
        "ledger": (Choice(None), Kind(Ledger)),
        "noise": (Choice(None), Kind(NoiseSource)),
        "accept": Kind(tuple, list, set, frozenset),
    }

    _places = True
    loss: Any
    threshold: float | str
    kernel: Any
    length_scale: Any
    regularisation: float | str
    bounds: Any
    y_bounds: Any
    accept: Any

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = not isinstance(self.noise, SeededNoise)
        tags.regressor_tags.poor_score = True
        return tags

    def _open_table(self, X: Any, y: Any) -> Source:
        self._losses(interval_of(self.y_bounds, self.bounds, type(self).__name__), 1)
        rows, targets, columns = training_data(self, X, y, several=True)
        shape = targets.shape[1:]
        return Source(
            "array", len(targets), columns.count, shape, rows, targets, names=columns.names
        )

    def _table(self, source: Source) -> FunctionTable:
        """Return the table with its declared domain, if both suit each other."""
        owner = type(self).__name__
        target = interval_of(self.y_bounds, self.bounds, owner)
        target.check_targets(source.target_shape, owner)
        domain = resolve_domain(self.bounds, target, source.n_columns, owner, source.names)
        if domain.columns is None:
            raise ParameterError(
                f"{owner} needs 'bounds', the publicly known range of the columns, for example"
                " bounds=(0, 100) or bounds=([0, 0], [100, 9])."
            )
        if not source.n_rows <= MOST_ROWS:
            raise DataError(
                f"{owner} takes at most {MOST_ROWS} rows: its cost grows with their cube."
            )
        return FunctionTable(domain, target, source)

    def _losses(self, target: Interval, count: int) -> list[Loss]:
        """Return the loss of each target, for y scaled to [-1, 1]."""
        count = len(target.parts) if isinstance(target, Intervals) else count
        return [self._chosen_loss(target.part(place)) for place in range(count)]

    def _chosen_loss(self, target: Interval) -> Loss:
        """Return the loss, for y scaled to [-1, 1]."""
        given, width = self.loss, _AUTO_THRESHOLD
        if self.threshold != "auto":
            width = float(self.threshold) / target.half_width
        if not 1e-6 <= width <= 1e6:
            allowed = "'auto', or between 1e-6 and 1e6 times half the declared range of y"
            raise ParameterError(
                parameter_message(type(self).__name__, "threshold", allowed, self.threshold)
            )
        if isinstance(given, Squared) or (isinstance(given, str) and given == "squared"):
            return Squared()
        return smooth_loss(
            type(self).__name__,
            given,
            labels=None,
            width=width,
            make=lambda cls: Huber(width) if cls is Huber else cls(),
        )

    def _public(
        self, table: FunctionTable, problems: Sequence[FunctionProblem], **more: Any
    ) -> JSON:
        """Return what a certificate states about the problems, plus ``more``."""
        return {
            "n_rows": table.source.n_rows,
            "n_columns": table.source.n_columns,
            "domain": table.domain.to_dict(),
            **_stated([problem.loss for problem in problems]),
            "regularisation": problems[0].ridge,
            **({"schedule": {"text": self.regularisation}} if self._by_theorem else {}),
            **more,
        }

    @property
    def _by_theorem(self) -> bool:
        """Whether the regularisation is the schedule of a theorem."""
        return isinstance(self.regularisation, str) and self.regularisation != "auto"

    def _problems_for(self, table: FunctionTable, budget: Budget) -> tuple[FunctionProblem, ...]:
        """Return the problem of each target on a table of this size."""
        width, n = table.domain.n_unit_columns, table.source.n_rows
        auto = isinstance(self.length_scale, str)
        kernel = resolve_kernel(self.kernel, 0.7 * math.sqrt(width) if auto else self.length_scale)
        kernel.scales(width)  # refuses length scales for another number of columns
        kappa = math.sqrt(kernel.diagonal_bound(width)) * _UP
        losses = self._losses(table.target, (table.source.target_shape or (1,))[0])

        def problems(ridge: float) -> tuple[FunctionProblem, ...]:
            return tuple(FunctionProblem(kernel, kappa, n, ridge, loss) for loss in losses)

        if self.regularisation == "auto":
            relation = Neighbours.resolve(self.neighbours)
            return problems(_ridge(problems, width, relation, budget))
        ridge = self.regularisation
        if self._by_theorem:
            squared = isinstance(losses[0], Squared)
            ridge = schedule(str(ridge), n, budget.epsilon, width, squared=squared).strength
        found = problems(float(ridge))
        for problem in found:
            if not problem.least_squares:
                problem.risk.refuse_endless(type(self).__name__)
        return found


def _stated(losses: Sequence[Loss]) -> JSON:
    """Return what a certificate states about the losses: one for all targets, or one of each."""
    first = losses[0]
    if any(loss != first for loss in losses):
        return {"losses": [loss.to_dict() for loss in losses]}
    if isinstance(first, Squared | Huber):
        return {"loss": first.kind, "threshold": getattr(first, "threshold", None)}
    return {"losses": [first.to_dict()]}


def loss_stated(public: Mapping[str, Any], target: Any) -> dict[str, Any]:
    """Return the parameters ``loss`` and ``threshold`` that a certificate states."""
    if "losses" in public:
        first = loss_from_dict(public["losses"][0])
        if len(public["losses"]) == 1:
            return {"loss": first}
        # the losses differ because the threshold is stated in units of y
        width = getattr(first, "threshold", getattr(first, "width", 1.0))
        return {"loss": first.kind, "threshold": width * target.part(0).half_width}
    threshold = public["threshold"]
    if threshold is None:
        return {"loss": public["loss"]}
    if isinstance(target, Intervals):  # one threshold for targets of different units
        return {"loss": Huber(threshold)}
    return {"loss": public["loss"], "threshold": threshold * target.half_width}


def _ridge(
    problems: Callable[[float], tuple[FunctionProblem, ...]],
    width: int,
    relation: Neighbours,
    budget: Budget,
) -> float:
    """Return the ridge with the least expected squared error, from public numbers alone.

    Let s_l be the spectrum of the kernel under the uniform law on the box. Noise adds
    (kappa Delta / mu)^2 to the error, and the ridge adds a squared bias of
    signal sum_l s_l (ridge / (n s_l + ridge))^2 / sum_l s_l.
    """
    points = LinearFeatures().build(width).public_sample(_SAMPLE)
    one = problems(1.0)[0]
    spectrum = np.maximum(np.linalg.eigvalsh(one.kernel(points)) / _SAMPLE, 0.0)
    shares = spectrum / max(float(spectrum.sum()), 1e-300)
    mu = gaussian_mu(min(budget.epsilon, 1e11), budget.delta) if budget.delta else budget.epsilon

    def error_of(ridge: float) -> float:
        found = problems(ridge)
        if any(not one.least_squares and one.risk.endless for one in found):
            return math.inf
        moved = joint_sensitivity(found, relation).value
        bias = NUMBER_SIGNAL * float(shares @ (ridge / (one.n_rows * spectrum + ridge)) ** 2)
        return (one.kappa * moved / mu) ** 2 + bias

    return min((float(r) for r in np.geomspace(1e-4, 1e3 * one.n_rows, 40)), key=error_of)
