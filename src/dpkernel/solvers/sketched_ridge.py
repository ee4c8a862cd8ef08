r"""Ridge regression from a released sketch; this is post-processing without privacy cost.

The rows of a sketch are independent draws of N(0, A + tau^2 I), where A = sum_i v_i v_i^T is the
sum over the records and tau is the noise of the release. So they form a table of their own. Its
held-out rows tell, without bias and at no privacy cost, how well a model fits the records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpkernel.foundations.types import Array
from dpkernel.solvers.ridge import CAUTION, FACTORS, default_regularisation, penalty, shrunk

FOLDS = 4  # number of folds of the rows of the sketch
SUBTRACTED = (1.0, 0.75, 0.0)  # shares of tau^2 to try that are subtracted from the diagonal


@dataclass(frozen=True)
class SketchScale:
    """The public scaling that turns a sketch in natural units into one with noise tau in each column.

    ``units`` holds the value of one step per column (features, targets, constant). ``sigma`` is the
    standard deviation of the noise in steps.
    """

    n_features: int
    n_targets: int
    units: Array
    sigma: float

    @property
    def tau(self) -> float:
        """The standard deviation of the noise, in the units of a feature."""
        return float(self.sigma * self.units[0])

    @property
    def target(self) -> float:
        """The value of a target of 1, in the units of a feature."""
        return float(self.units[0] / self.units[self.n_features])

    @property
    def constant(self) -> float:
        """The value of the constant 1, in the units of a feature."""
        return float(self.units[0] / self.units[-1])

    def split(self, sketch: Array) -> tuple[Array, Array]:
        """Return the columns of features and constant, and those of targets, in the same units."""
        even = sketch / self.units * self.units[0]
        inputs = np.append(np.arange(self.n_features), -1)
        return even[:, inputs], even[:, self.n_features : -1]


@dataclass(frozen=True)
class SketchedSolution:
    """Coefficients of the features, intercepts, and how they were chosen.

    ``held_out`` is the mean squared error over all records, with one value per target, for targets
    in [-1, 1]. ``held_out_std`` is its standard deviation due to the sketch. Because of the choice
    the error is slightly too low. Both are None if the regularisation was given.
    """

    coefficients: Array  # (features, targets)
    intercepts: Array
    regularisation: float
    subtracted: float
    held_out: Array | None = None
    held_out_std: Array | None = None


def solve_sketch(
    sketch: Array,
    n_rows: float,
    scale: SketchScale,
    *,
    regularisation: float | None = None,
    spectrum: Array | None = None,
) -> SketchedSolution:
    r"""Minimise the squared error of the records plus Lambda sum_l w_l beta_l^2, as the sketch sees it.

    With G = Y^T Y / k over the k rows of the sketch, beta = ((G_zz - c tau^2 I)_+ + Lambda
    diag(w))^-1 G_zy. The noise acts as a ridge tau^2, of which a share c is subtracted. The pair
    (c, Lambda) with the smallest error on held-out rows of the sketch, ::

        v^T G' v - tau^2 ||v||^2,  v = (-beta, 1),

    is chosen, after adding a margin for noise. A given Lambda is used with c = 1.

    Parameters
    ----------
    sketch : array (k, features + targets + 1)
        The sketch in natural units. Its last column belongs to the constant.
    n_rows : float
        The number of rows of the table, which is public.
    scale : SketchScale
        The public scaling of the sketch.
    regularisation : float, optional
        Lambda, on the scale of the sum over records.
    spectrum : array, optional
        The eigenvalues of eigenfeatures, decreasing. They determine w.

    Notes
    -----
    In directions without data, the rest of the noise has standard deviation tau^2 sqrt(2/k). The
    rule of ``solve_folds`` for such noise gives w and, times powers of two, the candidates for
    Lambda.

    The margin is three times the standard deviation that tau gives to the error. Without it, the
    smallest error is often that of large coefficients and lucky noise.
    """
    Z, y = scale.split(sketch)
    k, square, weights = len(Z), scale.tau**2, penalty(scale.n_features, spectrum)
    gram, cross = Z.T @ Z, Z.T @ y
    eye = np.eye(len(gram))
    if regularisation is not None:
        beta = shrunk(gram / k - square * eye, cross / k, weights, [regularisation])[0]
        return _solution(beta, scale, float(regularisation), 1.0)

    def candidates(count: int) -> list[float]:
        rule = default_regularisation(square * math.sqrt(2 / count), scale.n_features, spectrum)
        return [factor * rule for factor in FACTORS]

    shape = (len(SUBTRACTED), len(FACTORS), y.shape[1])
    error, doubt = np.zeros(shape), np.zeros(shape)
    for fold in range(FOLDS):
        held, targets = Z[fold::FOLDS], y[fold::FOLDS]
        count, share = k - len(held), len(held) / k
        if count == 0 or len(held) == 0:  # the sketch has fewer rows than folds
            continue
        own_gram, own_cross = held.T @ held, held.T @ targets
        matrix, others = (gram - own_gram) / count, (cross - own_cross) / count
        for i, part in enumerate(SUBTRACTED):
            beta = shrunk(matrix - part * square * eye, others, weights, candidates(count))
            norm = square * (1 + np.sum(beta**2, axis=1))
            fit = np.sum(targets**2, axis=0) - 2 * np.sum(beta * own_cross, axis=1)
            fit = fit + np.sum(beta * (own_gram @ beta), axis=1)
            error[i] += fit / k - share * norm
            doubt[i] += share * norm * math.sqrt(2 / k)
    worst = np.sum(error + CAUTION * doubt, axis=2)
    i, j = (int(v) for v in np.unravel_index(np.argmin(worst), worst.shape))
    chosen = candidates(k)[j]
    beta = shrunk(gram / k - SUBTRACTED[i] * square * eye, cross / k, weights, [chosen])[0]
    unit = n_rows * scale.target**2
    held_out, own = error[i, j] / unit, doubt[i, j] / unit
    spread = own + np.abs(held_out) * math.sqrt(2 / k)
    return _solution(beta, scale, chosen, SUBTRACTED[i], held_out, spread)


def _solution(
    beta: Array,
    scale: SketchScale,
    regularisation: float,
    subtracted: float,
    held_out: Array | None = None,
    held_out_std: Array | None = None,
) -> SketchedSolution:
    """Return the solution in natural units."""
    features = beta[:-1] / scale.target
    intercepts = beta[-1] * (scale.constant / scale.target)
    return SketchedSolution(
        features, intercepts, regularisation, subtracted, held_out, held_out_std
    )
