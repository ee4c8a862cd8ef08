"""The law of the inputs, from noisy second moments of (a, x).

Eigenfunctions that are orthonormal where the data lie carry more signal in fewer coordinates than
eigenfunctions for the whole box. The moments describe a normal law. ``WhitenedFeatures`` draws a
public sample of it and makes eigenfunctions for the sample.
"""

from __future__ import annotations

import math

import numpy as np

from dpkernel.foundations.types import Array, IntArray, Neighbours
from dpkernel.privacy.statistics import GramLayout, NoisyGram

_RADIUS = (
    0.75  # rows are clipped to a ball of this radius, in units of sqrt(d): few inputs fill the box
)
_CONSTANT = 0.5
_LEAST_VARIANCE = 0.003


def input_layout(n_inputs: int, n_rows: int, neighbours: Neighbours) -> GramLayout:
    """Return the integer grid of the moments."""
    return moment_layout(n_inputs, n_rows, _RADIUS, _CONSTANT, neighbours)


def moment_layout(
    n_inputs: int, n_rows: int, radius: float, constant: float, neighbours: Neighbours
) -> GramLayout:
    """Return the grid of (x, constant), with ||x|| <= radius sqrt(d) and a scaled constant."""
    row = int(min(2**16, math.sqrt(2.0**60 / n_rows)))
    bound = radius * math.sqrt(n_inputs)
    return GramLayout(n_inputs, 0, bound, row, 1, int(constant * row), neighbours, n_rows)


def sum_inputs(X: Array, y: Array, layout: GramLayout) -> tuple[IntArray]:
    """Return the exact sum of v v^T over a block, for v = (x, constant) on the integer grid."""
    total = np.zeros((layout.side, layout.side), dtype=np.int64)
    for start in range(0, len(X), layout.block_rows):
        part = X[start : start + layout.block_rows].astype(np.float64, copy=False)
        records = layout.quantise(part, np.empty((len(part), 0)))
        total += (records.T @ records).astype(np.int64)
    return (total,)


def fit_inputs(moments: NoisyGram, n_rows: int) -> tuple[Array, Array]:
    """Return mean and covariance, with eigenvalues in the range that is possible in a box."""
    mean = np.clip(moments.feature_sum / n_rows, -1.0, 1.0)
    covariance = moments.features / n_rows - np.outer(mean, mean)
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    values = np.clip(values, _LEAST_VARIANCE, float(len(mean)))
    return mean, (vectors * values) @ vectors.T
