"""Ridge regression from released Gram matrices, one or one per fold; choices are made on held-out folds.

Everything here reads only released matrices and public numbers, so nothing has a privacy cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from dpkernel.foundations.types import JSON, Array
from dpkernel.privacy.folds import fold_sizes
from dpkernel.privacy.statistics import GramLayout, NoisyGram
from dpkernel.privacy.unit_statistics import UnitGramLayout

FACTORS = tuple(2.0**i for i in range(4, -5, -1))  # multiples of the default regularisation to try
MOST_SIZES = 8  # number of prefixes of the features to try: all, a half, a quarter ...
CAUTION = 3.0  # standard deviations of the noise to add to a held-out error before comparing


@dataclass(frozen=True)
class RidgeSolution:
    """Coefficients of the features, intercepts, and the regularisation that was used."""

    coefficients: Array  # (features, targets)
    intercepts: Array
    regularisation: float


@dataclass(frozen=True)
class FoldedSolution:
    """The Gram matrix of all folds, its solution, and what the choice was based on.

    ``held_out`` is the mean squared error over all rows, each predicted without its own fold, with
    one value per target, for targets in [-1, 1]. ``held_out_std`` is its standard deviation due to
    noise. Because of the choice the error is slightly too low. Both are None with one fold, where
    nothing is chosen.
    """

    gram: NoisyGram
    solution: RidgeSolution
    n_leading: int
    held_out: Array | None = None
    held_out_std: Array | None = None
    choice: int | None = None  # the index of the chosen pair, if pairs were given

    def statistics(self, scale: Array) -> JSON:
        """Return the choice and its held-out errors times ``scale``; empty with one fold."""
        if self.held_out is None or self.held_out_std is None:
            return {}
        return {
            "regularisation": self.solution.regularisation,
            "leading_features": self.n_leading,
            "held_out_mse": (self.held_out * scale).tolist(),
            "held_out_mse_noise_std": (self.held_out_std * scale).tolist(),
        }


def solve_folds(
    grams: Sequence[NoisyGram],
    n_rows: float,
    layout: GramLayout | UnitGramLayout,
    sigma: float,
    *,
    regularisation: float | None = None,
    spectrum: Array | None = None,
    choices: Sequence[tuple[float | None, int | None]] = (),
) -> FoldedSolution:
    r"""Choose Lambda and the number M' of leading features by held-out error; solve on all folds.

    The problem is to minimise the quadratic form of a noisy Gram matrix plus Lambda sum_l w_l beta_l^2.
    The features are z and a constant. The solution is beta = (A_+ + Lambda diag(w))^-1 u, where A_+
    is the nearest positive semidefinite matrix to the noisy Gram matrix of (z, constant) and u
    holds the noisy cross products with the target.

    For each fold k, beta_k is the solution for the sum of the matrices of the other folds, restricted
    to the first M' features. Its error is computed from the fold's own matrix, ::

        q_k - 2 beta_k^T u_k + beta_k^T C_k beta_k,

    whose noise is independent of beta_k, so the estimate is unbiased. The pair (Lambda, M') with
    the smallest sum over folds is chosen, after adding a margin for noise. With it the sum of all
    matrices is solved, whose noise has sqrt(K) times the scale of one matrix. With one fold nothing
    is chosen.

    Parameters
    ----------
    grams : sequence of NoisyGram
        One matrix per fold.
    n_rows : float
        The number of rows of all folds together if it is public, or the released sum of their weights.
    layout : GramLayout
        The layout of the matrices.
    sigma : float
        The standard deviation of the noise on the diagonal of each matrix, in units of the release.
    regularisation : float, optional
        Lambda, on the scale of the sum over rows.
    spectrum : ndarray, optional
        The eigenvalues mu_l of the features, decreasing.
    choices : sequence of (Lambda, M')
        The pairs to choose from, instead of the default ones. None for Lambda means the default
        rule; None for M' means all features.

    Notes
    -----
    The noise of A has some standard deviation s on the diagonal and operator norm near s sqrt(2 M).
    Features without a known order get w = 1 and a Lambda equal to that norm. This prevents directions
    that consist of noise from being inverted. Eigenfeatures come with the public spectrum mu. The
    coefficients of smooth functions fall faster than sqrt(mu_l), so w_l = sqrt(mu_1 / mu_l) and
    Lambda = 2.5 s, which hardly penalises the leading features.

    The margin is three times the standard deviation that noise gives to the difference from the
    error of predicting 0 (q_k is common to all pairs). Without it, the smallest error is often that
    of large coefficients and lucky noise.

    With several folds, Lambda is by default this rule for the noise of the sum that is solved, times a
    power of two. A given Lambda is kept, in proportion to the number of rows. M' is M, M/2, M/4 ...
    for eigenfeatures (with a spectrum), whose leading features carry most of the signal. Other
    features have no order, and all of them are used.
    """
    folds, m, k = len(grams), layout.n_features, layout.n_targets
    unit = layout.row_bound / layout.row
    constant, noise_scale = layout.constant * unit, sigma * unit**2
    gram = NoisyGram(np.sum([gram.matrix for gram in grams], axis=0), m, k)
    weights = penalty(m, spectrum)
    whole, crosses = quadratic_form(gram, float(n_rows), constant)
    if folds == 1:
        used = regularisation
        if used is None:
            used = default_regularisation(noise_scale, m, spectrum)
        beta = shrunk(whole, crosses, weights, [used])[0]
        return FoldedSolution(gram, RidgeSolution(beta[:m], constant * beta[m], used), m)

    given = [(value, m if size is None else min(size, m)) for value, size in choices]
    lambdas = list(dict.fromkeys(value for value, _ in given))

    def candidates(size: int, of_folds: int) -> list[float]:
        """Return every Lambda to try on a sum of ``of_folds`` folds."""
        if regularisation is not None:
            return [regularisation * of_folds / folds]
        if given:
            usual = default_regularisation(noise_scale * math.sqrt(of_folds), size, spectrum)
            return [usual if v is None else v * of_folds / folds for v in lambdas]
        rule = default_regularisation(noise_scale * math.sqrt(of_folds), size, spectrum)
        return [factor * rule for factor in FACTORS]

    sizes = [m] if spectrum is None else sorted({max(m >> i, 1) for i in range(MOST_SIZES)})
    if given:
        sizes = sorted({size for _, size in given})
    shape = (len(sizes), len(candidates(m, folds)), k)
    error, variance = np.zeros(shape), np.zeros(shape)
    for fold, rows in zip(grams, _fold_sizes(n_rows, folds), strict=True):
        matrix, cross = quadratic_form(fold, float(rows), constant)
        for i, size in enumerate(sizes):
            kept, square = _prefix(size, m)
            beta = shrunk(
                whole[square] - matrix[square],
                crosses[kept] - cross[kept],
                weights[kept],
                candidates(size, folds - 1),
            )
            error[i] += np.diag(fold.targets) - 2 * np.sum(beta * cross[kept], axis=1)
            error[i] += np.sum(beta * (matrix[square] @ beta), axis=1)
            variance[i] += _variance(beta, layout, sigma, constant)
    worst = np.sum(error + CAUTION * np.sqrt(variance), axis=2)  # a bound, as targets share noise
    if given:
        pairs = [(sizes.index(size), lambdas.index(value)) for value, size in given]
        listed = np.full(worst.shape, False)
        listed[tuple(zip(*pairs, strict=True))] = True
        worst = np.where(listed, worst, math.inf)
    i, j = (int(v) for v in np.unravel_index(np.argmin(worst), worst.shape))
    kept, square = _prefix(sizes[i], m)
    chosen = candidates(sizes[i], folds)[j]
    beta = np.zeros((m + 1, k))
    beta[kept] = shrunk(whole[square], crosses[kept], weights[kept], [chosen])[0]
    solution = RidgeSolution(beta[:m], constant * beta[m], chosen)
    spread = np.sqrt(variance[i, j] + folds * sigma**2 * layout.units[m] ** 4)  # q is noisy, too
    choice = pairs.index((i, j)) if given else None
    found = error[i, j] / n_rows, spread / n_rows
    return FoldedSolution(gram, solution, sizes[i], *found, choice)


def _fold_sizes(n_rows: float, folds: int) -> Sequence[float]:
    """Return the size of each fold; of a released number, equal shares."""
    return fold_sizes(n_rows, folds) if isinstance(n_rows, int) else [n_rows / folds] * folds


def _prefix(size: int, m: int) -> tuple[Array, tuple[Array, ...]]:
    """Return the indices of the first features and the constant, and of the matrix over them."""
    kept = np.append(np.arange(size), m)
    return kept, np.ix_(kept, kept)


def _variance(
    beta: Array, layout: GramLayout | UnitGramLayout, sigma: float, constant: float
) -> Array:
    """Return the variance of (error - q) due to the noise of a matrix, per Lambda and target.

    The error is w^T A w with w = (-beta, 1, -b). Minus q it is <A, D> with D = w w^T - e e^T and e
    = (0, 1, 0). Symmetric noise gives it the standard deviation sigma ||D||_F in units of the
    release, and ||D||_F^2 = ||w||^4 - ||e||^4. The corner of A, the number of rows, is known and
    has no noise.
    """
    features, target, one = layout.units[[0, layout.n_features, -1]] ** 2
    corner = one * (constant * beta[:, -1]) ** 2
    whole = features * np.sum(beta[:, :-1] ** 2, axis=1) + target + corner
    return np.asarray(sigma**2 * (whole**2 - target**2 - corner**2))


def default_regularisation(noise_scale: float, n_features: int, spectrum: Array | None) -> float:
    """Return the Lambda that follows from the noise alone; see ``solve_folds``."""
    return noise_scale * (math.sqrt(2 * n_features) if spectrum is None else 2.5)


def penalty(n_features: int, spectrum: Array | None) -> Array:
    """Return w, with one weight per feature and 1 for the constant; see ``solve_folds``."""
    weights = np.ones(n_features + 1)
    if spectrum is not None:
        weights[:-1] = np.sqrt(spectrum[0] / spectrum)
    return weights


def quadratic_form(gram: NoisyGram, n_rows: float, constant: float) -> tuple[Array, Array]:
    """Return the Gram matrix of (z, constant), with its known corner, and the cross products."""
    m = len(gram.feature_sum)
    matrix = np.empty((m + 1, m + 1))
    matrix[:m, :m] = gram.features
    matrix[:m, m] = matrix[m, :m] = constant * gram.feature_sum
    matrix[m, m] = constant * constant * n_rows
    return matrix, np.vstack([gram.cross, constant * gram.target_sum])


def shrunk(matrix: Array, cross: Array, weights: Array, regularisations: Sequence[float]) -> Array:
    """Return (A_+ + Lambda diag(w))^-1 u for every Lambda, from one decomposition."""
    values, vectors = eigh(matrix)
    roots = np.sqrt(weights)  # solve in coordinates in which the penalty is Lambda I
    if np.ptp(weights) > 0:  # otherwise the decomposition stays the same
        repaired = (vectors * np.maximum(values, 0.0)) @ vectors.T
        values, vectors = eigh(repaired / np.outer(roots, roots))
    rotated = vectors.T @ (cross / roots[:, None])
    out = np.empty((len(regularisations), *cross.shape))
    for i, regularisation in enumerate(regularisations):
        floor = 1e-13 * max(float(values[-1]), 0.0)  # smaller values are rounding error
        shifted = np.maximum(values, 0.0) + max(regularisation, floor, 1e-300)
        out[i] = vectors @ (rotated / shifted[:, None]) / roots[:, None]
    return out
