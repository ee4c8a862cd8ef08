"""A stated distribution of the inputs: one histogram per column, joined by a Gaussian copula."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr, ndtri

from dpkernel.foundations.types import Array
from dpkernel.models.features.base import shifted_sobol

CELLS = 32
LARGEST = 5.0  # largest distance from the mean, in standard deviations
_LEAST_TAIL = 0.006  # keeps the scores of the outermost cells within 2.5


@dataclass(frozen=True, eq=False)
class InputLaw:
    """The distribution of inputs in the unit box, described by public or released numbers.

    Parameters
    ----------
    low, high : ndarray of shape (d,)
        The range that the histogram of each column covers. Values outside count as its ends.
    shares : ndarray of shape (d, 32)
        The share of each of 32 equal cells. Every row adds up to 1.
    correlation : ndarray of shape (d, d)
        The correlation of the normal scores of the columns.
    """

    low: Array
    high: Array
    shares: Array
    correlation: Array

    @property
    def parts(self) -> tuple[Array, Array, Array, Array]:
        """The numbers that define the distribution."""
        return self.low, self.high, self.shares, self.correlation

    @cached_property
    def mean(self) -> Array:
        """The mean of each column."""
        return np.asarray(self.low + (self.high - self.low) * (self.shares @ _MIDDLES))

    @cached_property
    def spread(self) -> Array:
        """The standard deviation of each column, at least that of one cell."""
        centred = _MIDDLES - (self.shares @ _MIDDLES)[:, None]
        variance = np.sum(self.shares * centred**2, axis=1) + 1 / (12 * CELLS**2)
        return np.asarray((self.high - self.low) * np.sqrt(variance))

    @cached_property
    def _middle_scores(self) -> Array:
        below = np.cumsum(self.shares, axis=1) - self.shares / 2
        return np.asarray(ndtri(np.clip(below, _LEAST_TAIL, 1 - _LEAST_TAIL)))

    @cached_property
    def score_squares(self) -> Array:
        """The mean squared score of each column."""
        return np.asarray(np.sum(self.shares * self._middle_scores**2, axis=1))

    def standardise(self, X: Array) -> Array:
        """Return rows as distances from the mean in standard deviations, in float64."""
        inside = np.clip(X, self.low, self.high).astype(np.float64, copy=False)
        return np.asarray(np.clip((inside - self.mean) / self.spread, -LARGEST, LARGEST))

    def scores(self, X: Array) -> Array:
        """Return the normal scores of rows, by linear interpolation between cell centres."""
        places = (X.astype(np.float64, copy=False) - self.low) / (self.high - self.low)
        columns = zip(places.T, self._middle_scores, strict=True)
        return np.column_stack([np.interp(x, _MIDDLES, q) for x, q in columns])

    def sample(self, n: int, draws: np.random.Generator) -> Array:
        """Return n quasi-random points of this distribution, in the unit box."""
        uniforms = shifted_sobol(n, len(self.low), draws)
        normals = ndtri(np.clip(uniforms, 1e-9, 1 - 1e-9))
        root = np.linalg.cholesky(self.correlation + 1e-9 * np.eye(len(self.low)))
        places = ndtr(normals @ root.T)
        edges = np.linspace(0.0, 1.0, CELLS + 1)
        for j, shares in enumerate(self.shares):
            below = np.concatenate(([0.0], np.cumsum(shares))) + 1e-12 * np.arange(CELLS + 1)
            places[:, j] = np.interp(places[:, j], below / below[-1], edges)
        return np.asarray(self.low + (self.high - self.low) * places)


def uniform_law(n_inputs: int) -> InputLaw:
    """Return the uniform distribution on the unit box."""
    ends = np.ones(n_inputs)
    return InputLaw(-ends, ends, np.full((n_inputs, CELLS), 1 / CELLS), np.eye(n_inputs))


_MIDDLES: Array = (np.arange(CELLS) + 0.5) / CELLS
