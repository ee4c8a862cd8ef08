"""How large the residuals are, from a noisy histogram of their absolute values.

Each stage clips at a multiple of this scale. As the fit improves, the scale shrinks, and so does
the noise of the next stage. At last the mean of the residuals, clipped at a multiple of the scale,
removes the bias that clipping and shrinking leave.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import erf

from dpkernel.data.weights import weighted_counts
from dpkernel.estimators.regressor.columns import nearest_law
from dpkernel.foundations.types import Array

STEPS = 2**20  # a residual at the clip as an integer, so that sums are exact
BIAS = 0.3  # how far a robust fit is from the mean of a skewed target, in the same multiples
REACH = 3.5  # the clip, in multiples of the scale of the residuals
_INNER = 24
CELLS = _INNER + 1
MOST = 3.0  # the last inner edge for a root mean square, as a multiple of the guess
# the 95 % quantile of the largest of the normal numbers <e, s - t> / |s - t| over all t of the grid, for
# the worst s: 2.376 in 100,000 draws
_LARGEST = 2.4


def edges_of(scale: float, most: float = 4.0) -> Array:
    """Return the inner edges of the cells, geometric around a first guess of the scale."""
    return np.geomspace(0.005 * most, most, _INNER) * scale


def count_residuals(
    features: Array, y: Array, column: int, coefficients: Array, edges: Array
) -> tuple[Array]:
    """Return the weights of the absolute residuals that are in each cell, without rounding."""
    residuals = np.abs(y[:, column] - (coefficients[0] + features @ coefficients[1:]))
    cells = np.searchsorted(edges, residuals, side="right")
    return (weighted_counts(cells, y[:, -1], CELLS),)


def fit_scale(counts: Array, n_rows: float, guess: float) -> float:
    """Return the scale of the half-normal nearest to noisy counts, at most 1.3 times the guess."""
    scales, shapes = _half_normals(guess)
    return float(scales[int(np.argmin(_distances(counts / n_rows, shapes)))])


def root_mean_square(counts: Array, n_rows: float, guess: float) -> float:
    """Return the root mean square of residuals from noisy counts, whatever their law.

    It is between 1/20 and 1.3 times the guess. The cells end at ``MOST`` times the guess, because
    further out a little noise in a count is a lot in a square.
    """
    shares = nearest_law(counts / n_rows)
    found = math.sqrt(float(shares @ _middles(guess) ** 2))
    return min(max(found, 0.05 * guess), 1.3 * guess)


def root_mean_square_interval(
    counts: Array, n_rows: float, guess: float, noise_scale: float
) -> tuple[float, float]:
    """Return a 95 % interval for the root mean square of the counts without noise.

    The mean square is linear in the counts, so its noise is normal.
    """
    squares = _middles(guess) ** 2
    found = float(counts @ squares) / n_rows
    reach = 1.96 * noise_scale / n_rows * float(np.linalg.norm(squares))
    return math.sqrt(max(found - reach, 0.0)), math.sqrt(max(found + reach, 0.0))


def _middles(guess: float) -> Array:
    """Return a typical residual of every cell."""
    edges = edges_of(guess, MOST)
    inner = np.sqrt(edges[:-1] * edges[1:])
    return np.concatenate(([edges[0] / 2], inner, [1.1 * edges[-1]]))


def scale_interval(
    counts: Array, n_rows: float, guess: float, noise_scale: float
) -> tuple[float, float]:
    """Return an interval of at least 95 % for ``fit_scale`` of the counts without noise.

    Let d be the squared distance. Without noise, the nearest half-normal s has d(s) <= d(t) for
    every other t. Noise of deviation tau in each share adds a normal number of deviation 2 tau ||s
    - t|| to d(s) - d(t). The interval keeps every s for which this explains the differences to all
    t at once, whatever the law of the residuals.
    """
    scales, shapes = _half_normals(guess)
    distances = _distances(counts / n_rows, shapes)
    apart = np.sqrt(_distances(shapes[:, None], shapes))
    explained = 2 * _LARGEST * (noise_scale / n_rows) * apart
    kept = np.flatnonzero((distances[:, None] - distances <= explained).all(axis=1))
    return float(scales[kept[0]]), float(scales[kept[-1]])


def _half_normals(guess: float) -> tuple[Array, Array]:
    """Return a grid of scales, and the shares of the cells under the half-normal of each."""
    edges = np.concatenate(([0.0], edges_of(guess), [np.inf]))
    scales = np.geomspace(0.03, 1.3, 80) * guess
    return scales, np.diff(erf(edges / (np.sqrt(2.0) * scales[:, None])), axis=1)


def _distances(shares: Array, shapes: Array) -> Array:
    return np.asarray(np.sum((shares - shapes) ** 2, axis=-1))


def sum_clipped(
    features: Array, y: Array, column: int, coefficients: Array, clip: float
) -> tuple[Array]:
    """Return the weighted sum of residuals, clipped and rounded towards 0 to integers."""
    residuals = y[:, column] - (coefficients[0] + features @ coefficients[1:])
    steps = np.trunc(np.nan_to_num(np.clip(residuals / clip, -1.0, 1.0)) * STEPS * y[:, -1])
    return (np.array([np.sum(steps.astype(np.int64))]),)
