r"""One repetition of the experiments of Lee, Park & Ahn (2025): every method on one sample of the data.

    Algorithm 1, as printed   exact projection (Cholesky), printed noise with the norm bound of Lemma 7
    Algorithm 3, as printed   cosine features, printed noise
    Algorithm 1, corrected    the same projection, rows clipped to norm 1
    Algorithm 3, corrected    paired features, which have norm 1
    Algorithm 3, all private  the same with a private choice of M and private standardisation, which
                              Section 5 calls for and does not do; all of it within one epsilon

The printed Algorithm 1 has another norm bound, with one root over two terms (erratum 003-3), than
Lemma 7 and its proof. The bound of the lemma is used here, and ``norm_bound`` in the CSV says so.

In the corrected versions, (C, u) are released together by one Gaussian release with the tight
scale. The solution (C~ + lambda I)^-1 u~ stays that of the paper. Algorithm 1 still can't be
evaluated at a new point without the training inputs (erratum 003-12), so its corrected line shows
what correct noise would give. PrivateKernelRidge and PrivateKernelRegressor run with their defaults
and choose nothing by the test error. Noise is seeded, so that a figure can be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.spatial.distance import cdist
from threadpoolctl import threadpool_limits

from dpkernel.estimators import PrivateKernelRegressor, PrivateKernelRidge
from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.preprocessing import PrivatePipeline, PrivateStandardScaler
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.statistics import GramLayout, GramSum
from dpkernel.proof.papers.lee_park_ahn_2025 import (
    PublishedAlgorithm1,
    PublishedAlgorithm3,
    gaussian_process_projection,
    ridge_path,
)
from dpkernel.proof.reproduce.design import NOISE, design, fresh, generator, response_noise
from dpkernel.proof.reproduce.store import Cell
from dpkernel.selection import PrivateSearchCV

NORM_BOUND = "lemma"
PRINTED_1 = "Algorithm 1, as printed, bound of Lemma 7"
PRINTED_3 = "Algorithm 3, as printed"
CORRECTED_1, CORRECTED_3 = "Algorithm 1, corrected", "Algorithm 3, corrected"
PRIVATE_3 = "Algorithm 3, all choices private"
RIDGE, REGRESSOR = "PrivateKernelRidge", "PrivateKernelRegressor"
CONSTANT, KERNEL_RIDGE = "training mean (not private)", "kernel ridge (not private)"


@dataclass(frozen=True)
class Grid:
    """The settings of an experiment. ``delta`` is n^-1.1, as in the paper."""

    rows: int
    epsilons: tuple[float, ...]
    features: tuple[int, ...]
    regularisations: tuple[float, ...]

    @property
    def delta(self) -> float:
        """n^-1.1."""
        return float(self.rows**-1.1)


@dataclass(frozen=True)
class Table:
    """Training and test rows, and what is declared about them."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array
    f_test: Array | None
    target_bound: float  # T of the published algorithms
    bounds: tuple[float, float]
    y_bounds: tuple[float, float]
    length_scale: float = 1.0
    raw: tuple[Array, Array] | None = None  # training and test rows before they were standardised

    def cell(self, method: str, epsilon: float, n_features: int, predictions: Array) -> Cell:
        """Return the errors of predictions, which have one column per lambda."""
        columns = predictions.reshape(len(self.y_test), -1)
        excess = () if self.f_test is None else _errors(columns, self.f_test)
        return Cell(method, epsilon, n_features, _errors(columns, self.y_test), excess)


def synthetic(number: int, d: int, grid: Grid) -> list[Cell]:
    """Return every cell of one sample of the synthetic design."""
    draws = generator(1, d, number)
    X, y, X_test, f = design(d, draws, rows=grid.rows)
    y_test = f + response_noise(grid.rows, draws)
    bound = float(np.max(np.abs(y)))  # treated as public, as in the paper
    table = Table(X, y, X_test, y_test, f, bound, (0.0, 1.0), (-NOISE, bound))
    return repetition(number, table, grid, draws)


def songs(number: int, X: Array, year: Array, width: float, grid: Grid) -> list[Cell]:
    """Return every cell for 2 n rows of the Million Song table, half of them for training.

    As in the paper, features are standardised by the training rows, which is not private, and years are
    centred to [-44.5, 44.5]. For dpkernel's estimators, standardised features are declared in [-3, 3].
    """
    n = grid.rows
    raw = X[:n], X[n:]
    mean, spread = X[:n].mean(axis=0), X[:n].std(axis=0)
    X = (X - mean) / np.where(spread > 0, spread, 1.0)
    y = year - 1966.5
    table = Table(X[:n], y[:n], X[n:], y[n:], None, 44.5, (-3.0, 3.0), (-44.5, 44.5), width, raw)
    return repetition(number, table, grid, generator(2, round(width**2), number))


def repetition(number: int, table: Table, grid: Grid, draws: np.random.Generator) -> list[Cell]:
    """Return every method at every grid point, for one table."""
    with threadpool_limits(1):
        cells = list(_references(table, grid))
        for name, algorithm, features in _algorithms(number, table, grid):
            for M in grid.features:
                Z = features(M)
                for epsilon in grid.epsilons:
                    C, u = algorithm(Z[: grid.rows], table, Budget(epsilon, grid.delta), draws)
                    path = ridge_path(C, u, grid.regularisations)
                    cells.append(table.cell(name, epsilon, M, Z[grid.rows :] @ path))
        for epsilon in grid.epsilons:
            budget = Budget(epsilon, grid.delta)
            cells.append(table.cell(PRIVATE_3, epsilon, 0, _all_private(table, budget, draws)))
            for method, cls in ((RIDGE, PrivateKernelRidge), (REGRESSOR, PrivateKernelRegressor)):
                model: Any = cls(
                    epsilon,
                    grid.delta,
                    bounds=table.bounds,
                    y_bounds=table.y_bounds,
                    noise=fresh(draws),
                )
                predictions = model.fit(table.X, table.y).predict(table.X_test)
                cells.append(table.cell(method, epsilon, 0, predictions))
        return cells


# --- published algorithms -------------------------------------------------------------------

Statistics = tuple[Array, Array]  # C~ and u~
Algorithm = Callable[[Array, Table, Budget, np.random.Generator], Statistics]


def _printed(cls: Any, **options: Any) -> Algorithm:
    def run(Z: Array, table: Table, budget: Budget, draws: np.random.Generator) -> Statistics:
        model = cls(
            budget.epsilon,
            budget.delta,
            n_features=Z.shape[1],
            target_bound=table.target_bound,
            noise=fresh(draws),
            **options,
        ).fit_features(Z, table.y)
        return model.gram_, model.cross_

    return run


def _corrected(Z: Array, table: Table, budget: Budget, draws: np.random.Generator) -> Statistics:
    """Return C~ and u~ of one joint release. Rows are clipped to norm 1, and targets to T."""
    n, M = Z.shape
    relation = Neighbours.REPLACE_ONE
    layout = GramLayout.choose(M, 1, 1.0, relation, n, budget, constant=False)
    mechanism = layout.mechanism(budget)
    noise = Ledger().spend(mechanism.profile(), "C and u", noise=fresh(draws))
    total = GramSum(layout).update(Z, table.y[:, None] / table.target_bound)
    released = total.release(mechanism, noise)
    return released.features / n, released.cross[:, 0] * table.target_bound / n


def _all_private(table: Table, budget: Budget, draws: np.random.Generator) -> Array:
    """Return predictions of a ridge on Fourier features whose M and scaling were found privately.

    If a search would return nothing but noise, which follows from public numbers, M is the smallest.
    """
    rows, new = (table.X, table.X_test) if table.raw is None else table.raw
    model = PrivateKernelRidge(
        features="fourier",
        length_scale=table.length_scale,
        y_bounds=table.y_bounds,
        n_features=CHOICES[0],
    )
    scaler = [] if table.raw is None else [("scale", PrivateStandardScaler(bounds=_RANGE))]
    for last in (PrivateSearchCV(model, {"n_features": list(CHOICES)}), model):
        steps = [*scaler, ("model", last)]
        whole = PrivatePipeline(steps, budget.epsilon, budget.delta, noise=fresh(draws))
        try:
            return np.asarray(whole.fit(rows, table.y).predict(new))
        except ParameterError:
            continue
    return np.zeros(len(new))  # with so little budget even the scaling is refused


CHOICES = (10, 50)  # of M, among which the private choice is made
_RANGE = (-1e5, 1e5)  # in which all columns of the songs lie, and which is public


def _algorithms(
    number: int, table: Table, grid: Grid
) -> Iterator[tuple[str, Algorithm, Callable[[int], Array]]]:
    """Yield every algorithm with its features for each M, with one Cholesky factor for all M.

    The first M of many paths of the projection, rescaled, are a projection with M paths.
    """
    points, most = np.vstack([table.X, table.X_test]), max(grid.features)
    paths = gaussian_process_projection(
        points, most, length_scale=table.length_scale, random_state=number
    )

    def projected(M: int) -> Array:
        return np.asarray(paths[:, :M] * math.sqrt(most / M))

    def fourier(kind: str) -> Callable[[int], Array]:
        def rows(M: int) -> Array:
            model = PublishedAlgorithm3(
                n_features=M, features=kind, random_state=number, length_scale=table.length_scale
            )
            model.n_features_in_ = points.shape[1]
            return model.transform(points)

        return rows

    yield PRINTED_1, _printed(PublishedAlgorithm1, norm_bound=NORM_BOUND), projected
    yield PRINTED_3, _printed(PublishedAlgorithm3), fourier("cosine")
    yield CORRECTED_1, _corrected, projected
    yield CORRECTED_3, _corrected, fourier("paired")


def _references(table: Table, grid: Grid) -> Iterator[Cell]:
    """Yield references that are not private: the training mean, and kernel ridge for every lambda."""
    n = grid.rows
    points = np.vstack([table.X, table.X_test])
    squares = cdist(points, table.X, "sqeuclidean")
    kernel = np.exp(-squares / (2 * table.length_scale**2))
    values, vectors = eigh(kernel[:n])
    shifted = values[:, None] + n * np.array(grid.regularisations)
    weights = vectors @ ((vectors.T @ table.y)[:, None] / shifted)
    yield table.cell(CONSTANT, 0.0, 0, np.full(len(table.y_test), table.y.mean()))
    yield table.cell(KERNEL_RIDGE, 0.0, 0, kernel[n:] @ weights)


def _errors(columns: Array, truth: Array) -> tuple[float, ...]:
    found = np.mean((columns - truth[:, None]) ** 2, axis=0)
    return tuple(float(f"{value:.7g}") for value in found)
