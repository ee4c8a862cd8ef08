"""Estimate where a column lies and how far it spreads from noisy counts, as post-processing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from scipy.special import ndtr

from dpkernel.foundations.types import Array

_SLACK = 1.0  # deviations by which a count may fall short of the required share
_CERTAIN = 4.5  # deviations that the noise of cells without records hardly ever reaches
_SKEWED = 8.0  # largest ratio of the two widths of a shape
_MISFIT = 0.1  # relative error of a share that is allowed because no shape is exactly right
_LEAN = math.sqrt(2 / math.pi)


def shortest_interval(counts: Array, total: float, deviation: float, outside: float) -> slice:
    """Return the shortest run of cells that may hold all but a share ``outside`` of ``total`` records.

    A run qualifies if its noisy count falls short by no more than one deviation of its noise, which
    grows as the square root of the number of cells. Among runs of one length, the one with the largest
    count is taken.
    """
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    cells = len(counts)
    for length in range(1, cells + 1):
        inside = sums[length:] - sums[:-length]
        start = int(np.argmax(inside))
        missing = total * (1 - outside) - float(inside[start])
        if missing <= _SLACK * deviation * math.sqrt(length):
            return slice(start, start + length)
    return slice(0, cells)


def with_far_cells(counts: Array, deviation: float, inside: slice) -> slice:
    """Extend a run of cells to cells outside it that hold more than noise can explain.

    These are values that a few records have, far away from the others. Single cells are tried
    first, then 2, 4 and 8 cells together.
    """
    start, stop = inside.start, inside.stop
    for size in (1, 2, 4, 8):
        sums = np.convolve(counts, np.ones(size), mode="valid")
        seen = np.flatnonzero(sums > _CERTAIN * deviation * math.sqrt(size))
        left, right = seen[seen + size <= start], seen[seen >= stop]
        start = int(left.min()) if len(left) else start
        stop = int(right.max()) + size if len(right) else stop
    return slice(start, stop)


def quantile(edges: Array, counts: Array, level: float) -> float:
    """Return a quantile of noisy counts, from the nearest increasing distribution function.

    Isotonic regression makes the cumulative counts increasing. The quantile is interpolated in its cell.
    """
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    if not sums[-1] > 0:
        return float(edges[0] + (edges[-1] - edges[0]) / 2)
    rising = np.clip(_increasing(sums), 0.0, None)
    wanted = level * rising[-1]
    right = min(max(int(np.searchsorted(rising, wanted, side="left")), 1), len(edges) - 1)
    low, high = rising[right - 1], rising[right]
    part = (wanted - low) / (high - low) if high > low else 0.5
    part = min(max(part, 0.0), 1.0)
    return float(edges[right - 1] + part * (edges[right] - edges[right - 1]))


def _increasing(values: Array) -> Array:
    """Return the nearest non-decreasing sequence (pool adjacent violators)."""
    blocks: list[tuple[float, int]] = []
    for value in values.tolist():
        mean, size = value, 1
        while blocks and blocks[-1][0] > mean:
            other, count = blocks.pop()
            mean, size = (mean * size + other * count) / (size + count), size + count
        blocks.append((mean, size))
    return np.concatenate([np.full(size, mean) for mean, size in blocks])


@dataclass(frozen=True)
class Histogram:
    """Noisy counts of a column: below the edges, in the cells between them, and above them."""

    edges: Array
    counts: Array
    deviation: float

    def within(self, low: float, high: float) -> Histogram:
        """Return the cells that lie in an interval of edges, without the counts outside it."""
        start, stop = np.searchsorted(self.edges, [low, high])
        counts = np.concatenate([[np.nan], self.counts[start + 1 : stop + 1], [np.nan]])
        return replace(self, edges=self.edges[start : stop + 1], counts=counts)


@dataclass(frozen=True)
class Shapes:
    """Two-piece normal distributions, with one width to the left of the mode and one to the right.

    The weight of each says how well it explains the released counts.
    """

    mode: Array
    left: Array
    right: Array
    weights: Array

    @classmethod
    def around(cls, modes: Array, widths: Array) -> Self:
        """Return the shapes with all pairs of widths at every mode. ``widths`` has one row per mode."""
        size = widths.shape[1]
        left = np.repeat(widths, size, axis=1).ravel()
        right = np.tile(widths, (1, size)).ravel()
        near = np.maximum(left, right) <= _SKEWED * np.minimum(left, right)
        mode = np.repeat(modes, size * size)[near]
        return cls(mode, left[near], right[near], np.full(len(mode), 1 / len(mode)))

    def rising(self, edges: Array) -> Array:
        """Return the distribution functions at the edges, one row per shape."""
        mode, left, right = self.mode[:, None], self.left[:, None], self.right[:, None]
        share = left / (left + right)
        lower = edges < mode
        with np.errstate(all="ignore"):
            level = 2 * ndtr((edges - mode) / np.where(lower, left, right))
        return np.asarray(np.where(lower, share * level, share + (1 - share) * (level - 1)))

    def given(self, histograms: Sequence[Histogram], total: float) -> Self:
        """Return the shapes with weights that follow from noisy counts of ``total`` records."""
        fit = np.zeros(len(self.mode))
        for found in histograms:
            known = np.isfinite(found.counts)
            expected = total * self.shares(found.edges)[:, known]
            # the variance of the noise, of sampling, and of a shape that is never exactly right
            variance = found.deviation**2 + expected + (_MISFIT * expected) ** 2
            off = found.counts[known] - expected
            fit -= 0.5 * np.sum(off**2 / variance + np.log(variance), axis=1)
        weights = np.exp(fit - fit.max())
        return replace(self, weights=weights / weights.sum())

    def shares(self, edges: Array) -> Array:
        """Return the share of each shape below the edges, between them, and above them."""
        return np.diff(self.rising(edges), axis=1, prepend=0.0, append=1.0)

    @property
    def mean(self) -> float:
        """The mean, averaged over the shapes."""
        return float(self.weights @ (self.mode + _LEAN * (self.right - self.left)))

    @property
    def spread(self) -> float:
        """The standard deviation, as the geometric mean over the shapes."""
        variance = (1 - _LEAN**2) * (self.right - self.left) ** 2 + self.left * self.right
        return float(np.exp(0.5 * (self.weights @ np.log(variance))))

    def interval(self, edges: Array, outside: float) -> slice:
        """Return the shortest run of cells with at most a share ``outside`` on either side."""
        level = self.weights @ self.rising(edges)
        start = max(int(np.searchsorted(level, outside, side="right")) - 1, 0)
        stop = min(int(np.searchsorted(level, 1 - outside, side="left")), len(edges) - 1)
        return slice(min(start, len(edges) - 2), max(stop, min(start, len(edges) - 2) + 1))


class CoarseShapes(Shapes):
    """Shapes on one grid. Their distribution functions are computed once."""

    def rising(self, edges: Array) -> Array:
        """Return the distribution functions at the edges of the grid."""
        return _rising(edges.tobytes())


@lru_cache(maxsize=16)
def _rising(edges: bytes) -> Array:
    grid = np.frombuffer(edges)
    return Shapes.rising(coarse_shapes(grid), grid)


def coarse_shapes(edges: Array) -> CoarseShapes:
    """Return shapes with modes at the edges and in the cells of a grid, about as wide as a cell."""
    modes = np.concatenate([edges, (edges[1:] + edges[:-1]) / 2])
    cell = np.clip(np.searchsorted(edges, modes, side="right") - 1, 0, len(edges) - 2)
    width = np.maximum(np.diff(edges)[cell], 1e-300)
    return CoarseShapes.around(modes, width[:, None] * 2.0 ** np.arange(-2, 4))


def fine_shapes(edges: Array, inside: slice) -> Shapes:
    """Return shapes over a whole window, with more of them around the cells that hold most records."""
    low, width, cells = edges[0], edges[-1] - edges[0], len(edges) - 1
    about = max(inside.start - 1, 0), min(inside.stop + 1, cells)
    modes = np.concatenate(
        [
            low + width * np.linspace(-0.1, 1.1, 19),
            np.linspace(edges[about[0]], edges[about[1]], 19),
        ]
    )
    widths = width * np.geomspace(0.3 / cells, 1.0, 11)
    return Shapes.around(modes, np.tile(widths, (len(modes), 1)))
