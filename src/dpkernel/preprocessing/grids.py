"""Public grids over wide ranges, and exact counts of values in their cells.

A column is known to lie in a wide public range. Its coarse grid is geometric and symmetric in sign: it
starts at the largest magnitude, each edge is half the one before, and one cell surrounds zero. The fine
grid has cells of equal width inside an interval that an earlier release found. Neither depends on the
data themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernel.data.domain import Interval
from dpkernel.foundations.errors import LedgerError
from dpkernel.foundations.types import Array, IntArray
from dpkernel.privacy.mechanisms import Gaussian
from dpkernel.privacy.noise import Noise

_HALVINGS = 24  # below 2^-24 of the largest magnitude everything counts as zero
_FEW = 8  # least number of cells, also for a range that does not come near zero


def coarse_edges(interval: Interval) -> Array:
    """Return the edges of the geometric grid of a public range, including both ends."""
    largest = max(abs(interval.low), abs(interval.high))
    powers = largest * 2.0 ** -np.arange(0, _HALVINGS + 1)
    inner = np.concatenate([-powers, powers[::-1]])
    inner = inner[(inner > interval.low) & (inner < interval.high)]
    edges = np.unique(np.concatenate([[interval.low], inner, [interval.high]]))
    return edges if len(edges) > _FEW else fine_edges(interval.low, interval.high, _FEW)


def fine_edges(low: float, high: float, cells: int) -> Array:
    """Return the edges of cells of equal width, or nearly equal if there are too few floats."""
    with np.errstate(all="ignore"):
        edges = low + (high - low) * (np.arange(cells + 1) / cells)
    edges[0], edges[-1] = low, high
    return np.asarray(np.maximum.accumulate(edges))


@dataclass(frozen=True)
class Cells:
    """The cells of every column in one vector of counts.

    A column has one count of the values below the edges, one per cell, one of the values above, and
    one of missing values. A record is in exactly one of them.
    """

    edges: tuple[Array, ...]

    @property
    def sizes(self) -> list[int]:
        """The number of counts of each column."""
        return [len(edges) + 2 for edges in self.edges]

    def count(self, table: Array, *, clip: bool) -> Counts:
        """Return the counts, which can leave only through a mechanism.

        ``clip`` moves values outside the grid to its ends.
        """
        parts = [_column_counts(table[:, j], edges, clip) for j, edges in enumerate(self.edges)]
        return Counts(self, np.concatenate(parts))

    def count_blocks(self, blocks: Iterable[Array], *, clip: bool) -> Counts:
        """Return the counts of all blocks together."""
        total = np.zeros(sum(self.sizes), dtype=np.int64)
        for block in blocks:
            total += self.count(block, clip=clip)._values
        return Counts(self, total)

    def read(self, noisy: IntArray) -> list[Array]:
        """Return the released counts of each column."""
        return [part.astype(np.float64) for part in np.split(noisy, np.cumsum(self.sizes)[:-1])]


def _column_counts(values: Array, edges: Array, clip: bool) -> IntArray:
    inside = np.clip(values, edges[0], edges[-1]) if clip else values
    place = np.searchsorted(edges, inside, side="right")
    place = np.where(inside == edges[-1], len(edges) - 1, place)  # the last cell is closed
    place = np.where(np.isnan(values), len(edges) + 1, place)
    return np.bincount(place, minlength=len(edges) + 2).astype(np.int64)


class Counts:
    """Exact counts that nobody can read before noise is added. Each release needs a spend."""

    def __init__(self, cells: Cells, values: IntArray) -> None:
        self.cells = cells
        self._values = values

    def release(self, mechanism: Gaussian, noise: Noise) -> list[Array]:
        """Return the noisy counts of each column."""
        found = mechanism.sensitivity
        columns = dict(found.parameters).get("columns")
        if found.formula != "column-histograms" or columns != len(self.cells.edges):
            raise LedgerError("The mechanism was not calibrated for histograms of these columns.")
        noisy: Any = mechanism.release(self._values, noise)  # type: ignore[arg-type]
        return self.cells.read(noisy)

    def __repr__(self) -> str:
        return f"<Counts of {len(self.cells.edges)} column(s); their values are secret>"

    def __reduce__(self) -> str:
        raise LedgerError("Counts without noise can't be pickled or copied. Release them instead.")


def widened(low: float, high: float, by: float, limits: Interval) -> tuple[float, float]:
    """Return the interval with ``by`` added at either end. It stays in the limits and is not empty."""
    low, high = max(low - by, limits.low), min(high + by, limits.high)
    if not high - low > 0 or not math.isfinite(high - low):
        return limits.low, limits.high
    return low, high
