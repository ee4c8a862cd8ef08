"""How large the residuals are, from a noisy histogram of their absolute values.

Each stage clips at a multiple of this scale. As the fit improves, the scale shrinks, and so does
the noise of the next stage. At last the mean of the residuals, clipped at a multiple of the scale,
removes the bias that clipping and shrinking leave.

The histogram behind the last scale also gives quantiles of the errors. They say something about every
table, with heavy tails or without: a standard deviation depends on the few largest errors, which noise
hides. All of this is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from scipy.special import erf, ndtri

from dpkernel.data.weights import weighted_counts
from dpkernel.estimators.records import STEPS
from dpkernel.estimators.regressor.inputs import nearest_law
from dpkernel.foundations.errors import CertificateError
from dpkernel.foundations.types import JSON, Array, is_real

BIAS = 0.3  # how far a robust fit is from the mean of a skewed target, in the same multiples
REACH = 3.5  # the clip, in multiples of the scale of the residuals
NEAR_REACH = 2.5  # and with little data, where noise in proportion to the clip matters more
_INNER = 24
CELLS = _INNER + 1
_ROOT = math.sqrt(2.0)
MOST = 3.0  # the last inner edge for a root mean square, as a multiple of the guess
# the 95 % quantile of the largest of the normal numbers <e, s - t> / |s - t| over all t of the grid, for
# the worst s: 2.376 in 100,000 draws
_LARGEST = 2.4
_CONFIDENCE = 0.95
_UNKNOWN = 0.1  # a deviation of a cumulative share above which nothing is said
_MUCH_NOISE = 0.3  # the noise of a mean square, in squared guesses, from which laws are assumed


@dataclass(frozen=True)
class Measure:
    """A scale of residuals that noisy counts tell.

    Parameters
    ----------
    most : float
        The last inner edge, as a multiple of the first guess of the scale.
    find : callable
        Returns the scale, given the counts, the number of rows, the guess and the standard
        deviation of a count.
    interval : callable
        Returns an interval for it, given the same.
    """

    most: float
    find: Callable[[Array, float, float, float], float]
    interval: Callable[[Array, float, float, float], tuple[float, float]]


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


def likely_root_mean_square(
    counts: Array, n_rows: float, guess: float, noise_scale: float
) -> float:
    """Return the root mean square of residuals from noisy counts.

    If the noise hides it, return the mean over normal, Laplace and contaminated normal laws of every
    scale, weighted by how likely they make the counts. A root mean square of the counts themselves
    would be near the guess then, because noise in the outer cells looks like large residuals.
    """
    noise = noise_scale / n_rows
    if noise * float(np.linalg.norm(_middles(1.0) ** 2)) <= _MUCH_NOISE:
        return root_mean_square(counts, n_rows, guess)
    laws, sizes, prior = _error_laws()
    distances = _distances(counts / n_rows, laws)
    weights = prior * np.exp((distances.min() - distances) / (2 * noise**2))
    return float(weights @ sizes / weights.sum()) * guess


@lru_cache(maxsize=1)
def _error_laws() -> tuple[Array, Array, Array]:
    """Return the shares of the cells under laws of residuals, their root mean squares and a prior.

    The guess is 1. A tenth of a contaminated normal law has three times the deviation of the rest.
    The prior of a scale is uniform.
    """
    scales = np.geomspace(0.05, 1.3, 60)
    at = edges_of(1.0, MOST) / scales[:, None]
    inner = math.sqrt(0.9 + 0.1 * 9.0)
    below = np.concatenate(
        [
            erf(at / _ROOT),
            1 - np.exp(-_ROOT * at),
            0.9 * erf(at * inner / _ROOT) + 0.1 * erf(at * inner / (3 * _ROOT)),
        ]
    )
    laws = np.diff(below, axis=1, prepend=0.0, append=1.0)
    prior = np.tile(scales, 3)
    return laws, np.sqrt(laws @ _middles(1.0) ** 2), prior / prior.sum()


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


HALF_NORMAL = Measure(4.0, lambda c, n, guess, _: fit_scale(c, n, guess), scale_interval)
ROOT_MEAN_SQUARE = Measure(
    MOST, lambda c, n, guess, _: root_mean_square(c, n, guess), root_mean_square_interval
)
LIKELY = Measure(MOST, likely_root_mean_square, root_mean_square_interval)


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


@dataclass(frozen=True)
class ErrorLaw:
    """The released shares of absolute errors below some edges, in units of y.

    Parameters
    ----------
    edges : tuple of floats
        The edges, in increasing order.
    below : tuple of floats
        The noisy share of the rows of the fit whose error is below each edge.
    noise : tuple of floats
        The standard deviation of the noise in each share.
    largest : float
        The largest error that the declared range of y allows.
    moved : float
        How far all predictions moved after the errors were counted. The intervals allow for it.
    """

    edges: tuple[float, ...]
    below: tuple[float, ...]
    noise: tuple[float, ...]
    largest: float
    moved: float = 0.0

    @classmethod
    def of_counts(cls, counts: Array, edges: Array, n_rows: float, noise_scale: float) -> Self:
        """Return the law of noisy counts between the edges, whose sum is known to be ``n_rows``."""
        cells = len(counts)
        balanced = counts + (n_rows - counts.sum()) / cells
        places = np.arange(1, cells)
        noise = noise_scale / n_rows * np.sqrt(places * (cells - places) / cells)
        below = np.cumsum(balanced)[:-1] / n_rows
        largest = max(2.0, 1.001 * float(edges[-1]))  # in units of half the range of y
        return cls(tuple(edges.tolist()), tuple(below.tolist()), tuple(noise.tolist()), largest)

    @property
    def informative(self) -> bool:
        """Whether the noise leaves anything to say."""
        return max(self.noise) <= _UNKNOWN

    def quantile(self, level: float) -> tuple[float, float, float]:
        """Return the error that this share of the rows does not exceed, and a 95 % interval for it.

        The interval accounts for the noise. Its lower end is the last edge up to which every share is
        surely too small, and its upper end the first edge from which on every share is surely large
        enough. The end can be wrong only if the noise at the one edge next to the quantile exceeds
        1.96 deviations, so each end is right in 97.5 % of all releases.
        """
        below, noise = np.array(self.below), np.array(self.noise)
        reach = float(ndtri((1 + _CONFIDENCE) / 2)) * noise
        small = np.logical_and.accumulate(below + reach < level)
        enough = np.logical_and.accumulate((below - reach >= level)[::-1])[::-1]
        low = self.edges[int(small.sum()) - 1] if small[0] else 0.0
        high = self.edges[len(below) - int(enough.sum())] if enough[-1] else self.largest
        rising = np.clip(np.maximum.accumulate(below), 0.0, 1.0)
        shares = np.concatenate([[0.0], rising, [1.0]])
        ends = np.array([0.0, *self.edges, self.largest])
        place = int(np.searchsorted(shares, level))
        left, right = shares[place - 1], shares[place]
        inside = (level - left) / (right - left) if right > left else 1.0
        value = ends[place - 1] + inside * (ends[place] - ends[place - 1])
        low, high = max(low - self.moved, 0.0), min(high + self.moved, self.largest)
        return float(min(max(value, low), high)), low, high

    def scaled(self, unit: float) -> ErrorLaw:
        """Return the law in other units."""
        edges = tuple(edge * unit for edge in self.edges)
        return ErrorLaw(edges, self.below, self.noise, self.largest * unit, self.moved * unit)

    def to_dict(self) -> JSON:
        """Return the law as JSON values."""
        lists = {name: list(getattr(self, name)) for name in ("edges", "below", "noise")}
        return {**lists, "largest": self.largest, "moved": self.moved}

    @classmethod
    def from_dict(cls, data: JSON) -> Self:
        """Return the law that ``to_dict`` wrote."""
        try:
            edges, below, noise = (tuple(data[name]) for name in ("edges", "below", "noise"))
            found = cls(edges, below, noise, data["largest"], data.get("moved", 0.0))
            sizes = {len(found.edges), len(found.below), len(found.noise)}
            numbers = [*found.edges, *found.below, *found.noise, found.largest, found.moved]
            fine = all(is_real(v) and math.isfinite(v) for v in numbers)
            fine = fine and len(sizes) == 1 and 0 not in sizes and found.moved >= 0
            if fine and np.all(np.diff([0.0, *found.edges, found.largest]) > 0):
                return found
        except (KeyError, TypeError):
            pass
        raise CertificateError("The errors in the statistics of this certificate can't be read.")
