"""How large the errors of a fit are, from the noisy histogram that gave the last scale.

Quantiles of absolute errors say something about every table, with heavy tails or without: a standard
deviation depends on the few largest errors, which noise hides. All of this is post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import ndtri

from dpkernel.foundations.errors import CertificateError
from dpkernel.foundations.types import JSON, Array, is_real

_CONFIDENCE = 0.95
_UNKNOWN = 0.1  # a deviation of a cumulative share above which nothing is said


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
