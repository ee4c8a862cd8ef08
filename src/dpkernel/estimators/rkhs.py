"""Risk minimisation in the reproducing kernel space itself: one coefficient per row.

The fitted function sum_i alpha_i k(x_i, .) contains the training inputs, so it is never released
itself. What is released are its values on a public grid (``grid``), or the answers of a curator
(``curator``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from sklearn.base import RegressorMixin

from dpkernel.data.blocks import dense_rows
from dpkernel.data.declared import interval_of, resolve_domain
from dpkernel.data.domain import Domain, Interval
from dpkernel.data.sources import training_data
from dpkernel.data.tables import Columns
from dpkernel.data.weights import checked_weights
from dpkernel.estimators.base import PrivateEstimator, logger
from dpkernel.estimators.loss_choice import smooth_loss
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
_SIGNAL = 0.5  # the variance that we assume for a good prediction, with y in [-1, 1]
_AUTO_THRESHOLD = 0.2  # as a share of half the declared range
_SAMPLE = 256


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
        if self.least_squares:
            return erm_ridge(
                neighbours, row=self.kappa, target=1.0, strength=self.ridge, n_rows=self.n_rows
            )
        tolerance = 2 * self.risk.problem.tolerance  # the solver's, and that of reading off alpha
        return erm_lipschitz(
            neighbours,
            slope=self.loss.lipschitz,
            row=self.kappa,
            strength=self.ridge,
            tolerance=tolerance,
        )

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


@dataclass(frozen=True)
class FunctionTable:
    """A checked table in memory, in its original units, and the domain that bounds it."""

    domain: Domain
    target: Interval
    n_columns: int
    X: Array
    y: Array
    weights: Array | None = None
    names: Any = None

    @property
    def columns(self) -> Columns:
        """The number of columns and their names."""
        return Columns(self.n_columns, self.names)

    @property
    def n_rows(self) -> int:
        """The number of rows, which is public."""
        return len(self.X)

    def solved(self, problem: FunctionProblem) -> tuple[Array, Array]:
        """Return the rows in the unit box, and the coefficients of the solution on them."""
        logger.info("one fit of %d rows in the kernel's space", problem.n_rows)
        rows = self.domain.of_positions.to_unit(self.X)
        targets = self.target.to_unit(self.y)
        if problem.loss.labels:  # y in the upper half of its range is the positive class
            targets = np.where(targets > 0, 1.0, -1.0)
        return rows, problem.fit(rows, targets, self.weights)


class FunctionModel(RegressorMixin, PrivateEstimator):
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

    def _open_table(self, X: Any, y: Any) -> FunctionTable:
        owner = type(self).__name__
        target = interval_of(self.y_bounds, self.bounds, owner)
        self._chosen_loss(target)  # refuses a bad one before it looks at the data
        rows, targets, columns = training_data(self, X, y)
        rows = dense_rows(rows, slice(None))
        domain = resolve_domain(self.bounds, target, columns.count, owner, columns.names)
        if domain.columns is None:
            raise ParameterError(
                f"{owner} needs 'bounds', the publicly known range of the columns, for example"
                " bounds=(0, 100) or bounds=([0, 0], [100, 9])."
            )
        if not len(rows) <= MOST_ROWS:
            raise DataError(
                f"{owner} takes at most {MOST_ROWS} rows: its cost grows with their cube."
            )
        return FunctionTable(domain, target, columns.count, rows, targets, names=columns.names)

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

    def _weighted(self, table: FunctionTable, sample_weight: Any) -> FunctionTable:
        if sample_weight is None:
            return table
        return replace(table, weights=checked_weights(sample_weight, table.n_rows))

    def _public(self, table: FunctionTable, problem: FunctionProblem, **more: Any) -> JSON:
        """Return what a certificate states about the problem, plus ``more``."""
        return {
            "n_rows": problem.n_rows,
            "n_columns": table.n_columns,
            "domain": table.domain.to_dict(),
            **_stated(problem.loss),
            "regularisation": problem.ridge,
            **({"schedule": {"text": self.regularisation}} if self._by_theorem else {}),
            **more,
        }

    @property
    def _by_theorem(self) -> bool:
        """Whether the regularisation is the schedule of a theorem."""
        return isinstance(self.regularisation, str) and self.regularisation != "auto"

    def _problem_for(self, table: FunctionTable, budget: Budget) -> FunctionProblem:
        """Return the problem on a table of this size."""
        return self._problem(table.domain, table.target, table.n_rows, budget)

    def _problem(self, domain: Domain, target: Interval, n: int, budget: Budget) -> FunctionProblem:
        width = domain.n_unit_columns
        auto = isinstance(self.length_scale, str)
        kernel = resolve_kernel(self.kernel, 0.7 * math.sqrt(width) if auto else self.length_scale)
        kernel.scales(width)  # refuses length scales for another number of columns
        kappa = math.sqrt(kernel.diagonal_bound(width)) * (1 + 1e-15)
        loss = self._chosen_loss(target)
        sizes = kernel, kappa, n
        if self.regularisation != "auto":
            ridge = self.regularisation
            if self._by_theorem:
                squared = isinstance(loss, Squared)
                ridge = schedule(str(ridge), n, budget.epsilon, width, squared=squared).strength
            found = FunctionProblem(*sizes, float(ridge), loss)
            if not found.least_squares:
                found.risk.refuse_endless(type(self).__name__)
            return found
        ridge = _ridge(*sizes, loss, width, Neighbours.resolve(self.neighbours), budget)
        return FunctionProblem(*sizes, ridge, loss)


def _stated(loss: Loss) -> JSON:
    """Return what a certificate states about the loss."""
    if isinstance(loss, Squared | Huber):
        return {"loss": loss.kind, "threshold": getattr(loss, "threshold", None)}
    return {"losses": [loss.to_dict()]}


def loss_stated(public: Mapping[str, Any], target: Any) -> dict[str, Any]:
    """Return the parameters ``loss`` and ``threshold`` that a certificate states."""
    if "losses" in public:
        return {"loss": loss_from_dict(public["losses"][0])}
    threshold = public["threshold"]
    if threshold is None:
        return {"loss": public["loss"]}
    return {"loss": public["loss"], "threshold": threshold * target.half_width}


def _ridge(
    kernel: Kernel,
    kappa: float,
    n: int,
    loss: Loss,
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
    spectrum = np.maximum(np.linalg.eigvalsh(kernel(points)) / _SAMPLE, 0.0)
    shares = spectrum / max(float(spectrum.sum()), 1e-300)
    mu = gaussian_mu(min(budget.epsilon, 1e11), budget.delta) if budget.delta else budget.epsilon

    def error_of(ridge: float) -> float:
        problem = FunctionProblem(kernel, kappa, n, ridge, loss)
        if not problem.least_squares and problem.risk.endless:
            return math.inf
        moved = problem.sensitivity(relation).value
        bias = _SIGNAL * float(shares @ (ridge / (n * spectrum + ridge)) ** 2)
        return (kappa * moved / mu) ** 2 + bias

    return min((float(r) for r in np.geomspace(1e-4, 1e3 * n, 40)), key=error_of)
