"""Ridge regression from the noisy Gram matrices of folds, with choices made on held-out folds.

Everything here reads only released matrices and public numbers, so the choice has no privacy cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpkernel.foundations.types import JSON, Array
from dpkernel.privacy.folds import fold_sizes
from dpkernel.privacy.statistics import GramLayout, NoisyGram
from dpkernel.privacy.unit_statistics import UnitGramLayout
from dpkernel.solvers.ridge import (
    RidgeSolution,
    default_regularisation,
    penalty,
    quadratic_form,
    shrunk,
    solve_ridge,
)

FACTORS = tuple(2.0**i for i in range(4, -5, -1))  # multiples of the default regularisation to try
MOST_SIZES = 8  # number of prefixes of the features to try: all, a half, a quarter ...
_CAUTION = 3.0  # standard deviations of the noise to add to a held-out error before comparing


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

    For each fold k, beta_k solves the problem of ``solve_ridge`` on the sum of the matrices of the
    other folds, restricted to the first M' features. Its error is computed from the fold's own
    matrix, ::

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
    regularisation, spectrum
        See ``solve_ridge``.
    choices : sequence of (Lambda, M')
        The pairs to choose from, instead of the default ones. None for Lambda means the default
        rule; None for M' means all features.

    Notes
    -----
    The margin is three times the standard deviation that noise gives to the difference from the
    error of predicting 0 (q_k is common to all pairs). Without it, the smallest error is often that
    of large coefficients and lucky noise.

    By default Lambda is that of ``solve_ridge`` for the noise of the sum that is solved, times a
    power of two. A given Lambda is kept, in proportion to the number of rows. M' is M, M/2, M/4 ...
    for eigenfeatures (with a spectrum), whose leading features carry most of the signal. Other
    features have no order, and all of them are used.
    """
    folds, m, k = len(grams), layout.n_features, layout.n_targets
    unit = layout.row_bound / layout.row
    constant, noise_scale = layout.constant * unit, sigma * unit**2
    gram = NoisyGram(np.sum([gram.matrix for gram in grams], axis=0), m, k)
    if folds == 1:
        solution = solve_ridge(
            gram,
            float(n_rows),
            noise_scale,
            constant=constant,
            regularisation=regularisation,
            spectrum=spectrum,
        )
        return FoldedSolution(gram, solution, m)

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

    weights = penalty(m, spectrum)
    whole, crosses = quadratic_form(gram, float(n_rows), constant)
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
    worst = np.sum(error + _CAUTION * np.sqrt(variance), axis=2)  # a bound, as targets share noise
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
