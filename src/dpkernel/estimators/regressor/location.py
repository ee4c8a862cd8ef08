"""Where y lies and how far it spreads, from a noisy histogram.

The result scales everything after it: the first fit clips residuals at a multiple of the spread,
and noise is proportional to the clip. If the declared range of y is wider than y itself, a few
percent of the budget therefore make all later noise several times smaller.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpkernel.data.weights import weighted_counts
from dpkernel.foundations.types import Array

CELLS = 24
PUBLIC_SPREAD = 0.4  # the standard deviation of an ordinary target in half of its declared range
_PUBLIC_FACTOR = 0.6  # the deviation of its logarithm
_NARROW = 0.15  # a target with a smaller one has a range that is far too wide
_LIKELY = 0.5  # how probable that must be
_LITTLE_NOISE = 0.017  # the deviation of a share up to which cumulative shares are compared
_POINTS = 960  # on which moments of shapes are taken
_TOO_NARROW = 3.0  # a fit this many times narrower than the counts is rejected


def count_targets(X: Array, y: Array, column: int) -> tuple[Array]:
    """Return the weights of the targets in [-1, 1] that are in each cell, without rounding."""
    cells = np.minimum((y[:, column] + 1) * (CELLS / 2), CELLS - 1).astype(np.int64)
    return (weighted_counts(cells, y[:, -1], CELLS),)


def fit_location(counts: Array, n_rows: float, noise: float) -> tuple[float, float]:
    """Return mean and standard deviation of the two-piece normal that is nearest to noisy counts.

    If it is far too narrow for the counts, beyond what noise explains, then y has several peaks,
    and the moments of the counts themselves are returned. ``noise`` is the standard deviation of a
    count.
    """
    shares, deviation = counts / n_rows, noise / n_rows
    shapes, moments = _shapes()
    distance = np.sum((shares - shapes) ** 2, axis=1)
    mean, spread = (float(value) for value in moments[int(np.argmin(distance))])
    squares = (_middles() - mean) ** 2
    least = float(shares @ squares) - 3 * deviation * float(np.linalg.norm(squares))
    if least > (_TOO_NARROW * spread) ** 2:
        mean = min(max(float(shares @ _middles()), -1.0), 1.0)
        around = float(shares @ (_middles() - mean) ** 2)
        spread = math.sqrt(min(max(around, spread**2), 1.0))
    return mean, spread


def fit_distribution(counts: Array, n_rows: float) -> tuple[float, float]:
    """Return mean and standard deviation of the two-piece normal whose distribution is nearest.

    Cumulative distributions are compared, not densities, so that a target with few values does not
    look like a narrow peak. Noise adds up along a distribution, so the counts must have little
    noise.
    """
    shapes, moments = _shapes()
    below = np.cumsum(counts / n_rows)
    below += np.arange(1, CELLS + 1) / CELLS * (1 - below[-1])  # the shares must add up to 1
    distance = np.sum((below - np.cumsum(shapes, axis=1)) ** 2, axis=1)
    mean, spread = (float(value) for value in moments[int(np.argmin(distance))])
    return mean, spread


def fit_either(counts: Array, n_rows: float, noise: float) -> tuple[float, float]:
    """Return ``fit_distribution`` if the counts have little noise, else ``fit_location``."""
    if noise <= _LITTLE_NOISE * n_rows:
        return fit_distribution(counts, n_rows)
    return fit_location(counts, n_rows, noise)


def fit_public(counts: Array, n_rows: float, noise: float) -> tuple[float, float]:
    """Return mean and standard deviation of an ordinary y in its range, unless y is narrow.

    A declared range can be far too wide. Then the counts show one peak, which noise does not explain
    and beside which there is nothing. The narrow two-piece normals that fit it are averaged.
    """
    shapes, moments = _shapes()
    means, spreads = moments.T
    prior = np.exp(-((np.log(spreads / PUBLIC_SPREAD) / _PUBLIC_FACTOR) ** 2) / 2)
    narrow = spreads < _NARROW
    beside = (shapes[narrow] + 1 / CELLS) / 2  # a peak, such as a frequent value, and other rows
    weights = _likelihoods(np.vstack([shapes, beside]), counts, n_rows, noise)
    weights *= np.concatenate([prior, prior[narrow]])
    weights /= weights.sum()
    inside = weights[: len(shapes)][narrow]
    if not inside.sum() > _LIKELY:
        return 0.0, PUBLIC_SPREAD
    inside /= inside.sum()
    mean = float(inside @ means[narrow])
    return mean, math.sqrt(float(inside @ (spreads[narrow] ** 2 + (means[narrow] - mean) ** 2)))


def expected_shape(counts: Array, n_rows: float, noise: float) -> Array:
    """Return the mean of two-piece normals, weighted by how likely they make the noisy counts.

    ``noise`` is the standard deviation of a count. With much noise, the result is wide.
    """
    shapes, _ = _shapes()
    weights = _likelihoods(shapes, counts, n_rows, noise)
    return np.asarray(weights @ shapes / weights.sum())


def skewness(counts: Array, n_rows: float, noise: float) -> float:
    """Return how far the mean of the likely y is from its median, in standard deviations.

    ``noise`` is the standard deviation of a count. With much noise, the result is near 0.
    """
    shares, middles = expected_shape(counts, n_rows, noise), _middles()
    mean = float(shares @ middles)
    below = np.concatenate([[0.0], np.cumsum(shares)])
    median = float(np.interp(0.5, below, np.linspace(-1.0, 1.0, CELLS + 1)))
    variance = float(shares @ (middles - mean) ** 2) + 1 / (3 * CELLS**2)
    return abs(mean - median) / math.sqrt(variance)


def _likelihoods(shapes: Array, counts: Array, n_rows: float, noise: float) -> Array:
    """Return how likely each shape makes the noisy counts, relative to the likeliest."""
    distance = np.sum((counts / n_rows - shapes) ** 2, axis=1)
    spread = 2 * max(noise / n_rows, 1e-6) ** 2
    return np.asarray(np.exp(np.maximum((distance.min() - distance) / spread, -700.0)))


def _middles() -> Array:
    return np.asarray((np.arange(CELLS) + 0.5) * (2 / CELLS) - 1)


@lru_cache(maxsize=1)
def _shapes() -> tuple[Array, Array]:
    """Return histograms of two-piece normals, cut off at the ends, and their means and deviations."""
    modes = np.linspace(-1.0, 1.0, 41)
    spreads = np.geomspace(0.02, 1.2, 14)
    mode, left, right = (v.ravel()[:, None] for v in np.meshgrid(modes, spreads, spreads))

    def densities(at: Array) -> Array:
        z = (at - mode) / np.where(at < mode, left, right)
        return np.asarray(np.exp(-z * z / 2))

    shapes = densities(_middles())
    totals = shapes.sum(axis=1)
    kept = totals > 1e-12
    # at an end of the range, the side that lies outside of it counts neither here nor there
    points = np.asarray((np.arange(_POINTS) + 0.5) * (2 / _POINTS) - 1)
    inside = densities(points)
    inside /= inside.sum(axis=1, keepdims=True)
    mean = inside @ points
    variance = inside @ points**2 - mean**2
    moments = np.column_stack([mean, np.sqrt(np.maximum(variance, 0.0))])
    return shapes[kept] / totals[kept, None], moments[kept]
