"""Find where every column lies within a wide public range, by two or three joint releases.

1. Coarse: one Gaussian release has the histograms of all columns on geometric grids. They give one
   window per column.
2. Fine: a second release has histograms with cells of equal width inside the windows.
3. Optionally, a third release has the sums of the values and of their squares, clipped to where the
   first two found the column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernel.data.domain import Interval
from dpkernel.estimators.base import FitPlan, Fitted
from dpkernel.foundations.types import JSON, Array, Budget, IntArray, Neighbours
from dpkernel.preprocessing.base import shares_of_mu
from dpkernel.preprocessing.grids import Cells, coarse_edges, fine_edges, widened
from dpkernel.preprocessing.locate import (
    Histogram,
    Shapes,
    coarse_shapes,
    fine_shapes,
    quantile,
    shortest_interval,
    with_far_cells,
)
from dpkernel.preprocessing.rows import StepTable
from dpkernel.privacy import sensitivity
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.mechanisms import Gaussian
from dpkernel.privacy.noise import Noise

GRID = 2**20  # steps of a clipped value on either side of zero
_OUTSIDE = 0.02, 0.1  # smallest and largest share of a column outside its window, on either side
_LEAST_ROWS = 3.0  # in deviations of a count; with fewer rows nothing can be seen
_LEAST_VALUES = 5.0  # in deviations of a count; with fewer values a column counts as missing
_MARGIN = 1 / 16  # share of its width that is added to an interval at either end
_TAILS = 1.25  # median ratio of the deviation of a column to that of the shape that fits its bulk
_WIDEST = 10.0  # largest width of bounds in deviations; a column may have two bulks
_REACH = 6.0  # deviations to either side within which values are summed
_WORTH = 0.01  # largest deviation of a released mean square at which the sums are worth a release


@dataclass(frozen=True)
class Column:
    """What was found about one column.

    ``present`` is the noisy number of values that are not missing.
    """

    low: float
    high: float
    mean: float
    spread: float
    median: float
    present: float


class ColumnSearch:
    """Plans the releases from public numbers alone, and runs them."""

    def __init__(
        self,
        ranges: Sequence[Interval],
        n_rows: int,
        budget: Budget,
        neighbours: Neighbours,
        *,
        moments: bool = False,
        missing: bool = False,
    ) -> None:
        self.ranges, self.n_rows, self.missing = list(ranges), n_rows, missing
        self.cells = Cells(tuple(coarse_edges(interval) for interval in ranges))
        columns = len(ranges)
        moved = sensitivity.column_histograms(neighbours, columns=columns)
        self.moments = moments and self._worth_sums(budget, neighbours)
        mus = shares_of_mu(budget, (1, 1, 2) if self.moments else (1, 1))
        rows = n_rows * mus[1] / moved.value  # in deviations of a count
        self.n_fine = _fine_cells(rows)
        self.outside = min(max(1 / rows, _OUTSIDE[0]), _OUTSIDE[1])
        self.coarse: Gaussian = Gaussian.with_mu(
            moved, mus[0], dimension=sum(self.cells.sizes), integer=True
        )
        self.fine: Gaussian = Gaussian.with_mu(
            moved, mus[1], dimension=columns * (self.n_fine + 3), integer=True
        )
        if self.moments:
            pairs = sensitivity.column_moments(neighbours, columns=columns, bound=GRID)
            self.sums: Gaussian = Gaussian.with_mu(
                pairs, mus[2], dimension=2 * columns, integer=True
            )

    def _worth_sums(self, budget: Budget, neighbours: Neighbours) -> bool:
        mu = shares_of_mu(budget, (1, 1, 2))[2]
        pairs = sensitivity.column_moments(neighbours, columns=len(self.ranges), bound=GRID)
        return pairs.value / (1.5 * GRID * mu * self.n_rows) <= _WORTH

    @property
    def releases(self) -> list[Release]:
        """The releases that the certificate lists."""
        sums = [Release("sums of values and squares", self.sums)] if self.moments else []
        return [
            Release("coarse histograms", self.coarse),
            Release("fine histograms", self.fine),
            *sums,
        ]

    def run(self, rows: StepTable, noise: Noise) -> list[Column]:
        """Return what the releases say about every column."""
        counts = self.cells.count_blocks(rows.blocks(spent=True), clip=True)
        coarse = counts.release(self.coarse, noise)
        first = [
            Histogram(edges, counts[:-1], self.coarse.deviation)
            for edges, counts in zip(self.cells.edges, coarse, strict=True)
        ]
        totals = [self._present(counts[-1]) for counts in coarse]
        seen = self.n_rows > _LEAST_ROWS * self.coarse.deviation
        least = _LEAST_VALUES * self.coarse.deviation if self.missing else 0.0
        windows = [
            widened(*self._window(histogram, total), 0.0, interval)
            if seen
            else (interval.low, interval.high)
            for histogram, total, interval in zip(first, totals, self.ranges, strict=True)
        ]
        grid = Cells(tuple(fine_edges(low, high, self.n_fine) for low, high in windows))
        counts = grid.count_blocks(rows.blocks(spent=True), clip=False)
        fine = counts.release(self.fine, noise)
        columns = [
            self._read(j, first[j], Histogram(grid.edges[j], fine[j][:-1], self.fine.deviation))
            if seen and totals[j] > least
            else _unseen(self.ranges[j], totals[j])
            for j in range(len(self.ranges))
        ]
        return self._with_sums(rows, columns, noise) if self.moments else columns

    def _present(self, missing: float) -> float:
        """Return the noisy number of values that are present, or all rows if none may be missing."""
        return min(max(self.n_rows - missing, 0.0), self.n_rows) if self.missing else self.n_rows

    def _window(self, found: Histogram, total: float) -> tuple[float, float]:
        """Return the window that the counts or the shapes require, whichever reaches further."""
        shapes = coarse_shapes(found.edges).given([found], max(total, 1.0))
        return self._hull(found, shapes, total)

    def _hull(self, found: Histogram, shapes: Shapes, total: float) -> tuple[float, float]:
        counted = shortest_interval(found.counts[1:-1], total, found.deviation, 2 * self.outside)
        counted = with_far_cells(found.counts[1:-1], found.deviation, counted)
        shaped = shapes.interval(found.edges, self.outside)
        start, stop = min(counted.start, shaped.start), max(counted.stop, shaped.stop)
        return float(found.edges[start]), float(found.edges[stop])

    def _read(self, j: int, first: Histogram, second: Histogram) -> Column:
        total, interval = self._totals_of(first), self.ranges[j]
        window = float(second.edges[0]), float(second.edges[-1])
        counted = shortest_interval(second.counts[1:-1], total, second.deviation, 2 * self.outside)
        shapes = fine_shapes(second.edges, counted).given([first.within(*window), second], total)
        low, high = self._hull(second, shapes, total)
        low, high = widened(low, high, (high - low) * _MARGIN, interval)
        ends = np.concatenate([[interval.low], second.edges, [interval.high]])
        return Column(
            low,
            high,
            min(max(shapes.mean, interval.low), interval.high),
            max(_TAILS * shapes.spread, (high - low) / _WIDEST),
            quantile(ends, second.counts, 0.5),
            total,
        )

    def _totals_of(self, first: Histogram) -> float:
        """Return the number of values according to the coarse counts, at least 1."""
        if not self.missing:
            return float(self.n_rows)
        return min(max(float(first.counts.sum()), 1.0), self.n_rows)

    def _with_sums(self, rows: StepTable, columns: list[Column], noise: Noise) -> list[Column]:
        """Return the columns with mean and spread from sums of clipped values.

        Values are clipped to where the histograms found the column.
        """
        clips = [
            Interval(
                *widened(
                    min(c.mean - _REACH * c.spread, c.low),
                    max(c.mean + _REACH * c.spread, c.high),
                    0.0,
                    interval,
                )
            )
            for c, interval in zip(columns, self.ranges, strict=True)
        ]
        total: Any = np.zeros(2 * len(clips), dtype=np.int64)
        for block in rows.blocks(spent=True):
            total += np.concatenate([pair_sums(block[:, j], clip) for j, clip in enumerate(clips)])
        noisy = self.sums.release(total, noise).astype(np.float64).reshape(-1, 2)
        deviation = self.sums.deviation / GRID
        return [
            _improved(column, clip, values / GRID, deviation)
            for column, clip, values in zip(columns, clips, noisy, strict=True)
        ]


def pair_sums(values: Array, clip: Interval) -> IntArray:
    """Return the sums of (u, v) of ``sensitivity.column_moments``. Missing values add nothing."""
    present = values[~np.isnan(values)]
    u = np.rint(clip.to_unit(present) * GRID)
    v = np.rint(1.5 * (u * u / GRID - GRID / 2))
    return np.array([int(u.astype(np.int64).sum()), int(v.astype(np.int64).sum())], dtype=np.int64)


def _improved(column: Column, clip: Interval, sums: Array, deviation: float) -> Column:
    """Return the column with the mean and spread of the released sums, if these exceed their noise."""
    count = max(column.present, 1.0)
    if deviation / count > 10 * _WORTH:  # hardly any value is present
        return column
    mean = min(max(float(sums[0]) / count, -1.0), 1.0)
    variance = float(sums[1]) / (1.5 * count) + 0.5 - mean**2
    error = deviation / count * (1 / 1.5 + 2 * abs(mean))
    spread = math.sqrt(variance) * clip.half_width if variance > 3 * error else column.spread
    return Column(
        column.low,
        column.high,
        clip.middle + mean * clip.half_width,
        spread,
        column.median,
        column.present,
    )


def _unseen(interval: Interval, total: float) -> Column:
    """Return the public range, for a column with too few values to find a better one."""
    zero = min(max(0.0, interval.low), interval.high)
    return Column(interval.low, interval.high, zero, interval.half_width, zero, total)


def _fine_cells(ratio: float) -> int:
    """Return the number of fine cells; ``ratio`` is the number of rows over the deviation of a count."""
    return (
        128 if ratio > 300 else 64 if ratio > 150 else 32 if ratio > 60 else 16 if ratio > 25 else 8
    )


@dataclass
class ColumnsPlan(FitPlan):
    """Histograms and moments of the columns, from which ``conclude`` takes what is wanted."""

    search: ColumnSearch
    rows: StepTable
    public: JSON
    conclude: Callable[[list[Column]], Mapping[str, Any]]

    @property
    def releases(self) -> Sequence[Release]:  # type: ignore[override]
        """The lines of the certificate."""
        return self.search.releases

    def run(self, noise: Noise) -> Fitted:
        """Release the histograms and moments."""
        return Fitted(self.conclude(self.search.run(self.rows, noise)), self.public)
