"""The law of the inputs, from noisy second moments of (a, x).

Eigenfunctions that are orthonormal where the data lie carry more signal in fewer coordinates than
eigenfunctions for the whole box. The moments describe a normal law. ``WhitenedFeatures`` draws a
public sample of it and makes eigenfunctions for the sample.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import betainc

from dpkernel.foundations.types import Array, IntArray, Neighbours
from dpkernel.models.features.input_law import CELLS, InputLaw
from dpkernel.privacy.statistics import GramLayout, NoisyGram

_RADIUS = (
    0.75  # rows are clipped to a ball of this radius, in units of sqrt(d): few inputs fill the box
)
_CONSTANT = 0.5
_LEAST_VARIANCE = 0.003
_LEAST_LAW_VARIANCE = 0.01  # of a column of a law; its histogram has no smaller one
_LARGEST_MEAN = 0.98
_LEAST_EIGENVALUE = 0.05  # the least eigenvalue of a correlation matrix
_ROOT = math.sqrt(2)  # noise off the diagonal is smaller by this factor


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
        weights = y[start : start + layout.block_rows, -1]
        records = layout.quantise(part, np.empty((len(part), 0)), weights)
        total += (records.T @ records).astype(np.int64)
    return (total,)


def law_of_moments(layout: GramLayout, noisy: Any, n_rows: float, noise: float) -> InputLaw:
    """Return the law whose columns have Beta laws with the released moments, joined by a copula.

    ``noise`` is the standard deviation of a diagonal entry of the released matrix. Means, squares
    and correlations are shrunk towards those of the uniform law as far as they could be noise.
    """
    moments, size = layout.read(noisy), layout.n_features
    step = layout.row_bound / layout.row
    square = noise * step**2 / n_rows
    mean = towards_zero(
        moments.feature_sum / n_rows, noise * step / (layout.constant * n_rows * _ROOT)
    )
    mean = np.clip(mean, -_LARGEST_MEAN, _LARGEST_MEAN)
    second = moments.features / n_rows
    variance = towards_zero(np.diag(second) - 1 / 3, square) + 1 / 3 - mean**2
    variance = np.clip(variance, _LEAST_LAW_VARIANCE, 1.0)
    law = InputLaw(-np.ones(size), np.ones(size), _beta_shares(mean, variance), np.eye(size))
    if size == 1:
        return law
    units = np.sqrt(np.outer(variance, variance))
    found = np.clip((second - np.outer(mean, mean)) / units, -1.0, 1.0)
    deviations = (square / _ROOT / units)[np.triu_indices(size, 1)]
    hidden = 4 * float(np.mean(deviations)) * math.sqrt(size)
    return with_correlations(law, found, deviations, hidden)


def towards_zero(values: Array, noise: float) -> Array:
    """Return noisy values, shrunk towards 0 as far as they could be noise (James and Stein)."""
    total = max(float(values @ values), 1e-300)
    return np.asarray(values * max(0.0, 1 - len(values) * noise**2 / total))


def _beta_shares(mean: Array, variance: Array) -> Array:
    """Return the shares of the cells under Beta laws on [-1, 1] with these moments."""
    total = np.clip((1 - mean**2) / variance - 1, 0.02, 2000.0)
    first, second = (1 + mean) / 2 * total, (1 - mean) / 2 * total
    edges = np.linspace(0.0, 1.0, CELLS + 1)
    shares = np.diff(betainc(first[:, None], second[:, None], edges), axis=1)
    shares = np.maximum(shares, 0.0) + 1e-9
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def with_correlations(law: InputLaw, found: Array, noise: Array, hidden: float) -> InputLaw:
    """Return the law with noisy correlations of its scores.

    ``noise`` are the standard deviations of the entries above the diagonal. Eigenvalues below
    ``hidden`` could be noise.
    """
    size = len(found)
    above = np.triu_indices(size, 1)
    signal = max(float(np.sum(found[above] ** 2)), 1e-300)
    share = max(0.0, 1 - float(np.sum(noise**2)) / signal)
    found = share * (found + found.T) / 2
    np.fill_diagonal(found, 1.0)
    values, vectors = np.linalg.eigh(found)
    # a law that is too wide does less harm than one that does not fit the data
    found = (vectors * np.maximum(values, min(max(hidden, _LEAST_EIGENVALUE), 1.0))) @ vectors.T
    norms = np.sqrt(np.diag(found))
    return InputLaw(law.low, law.high, law.shares, found / np.outer(norms, norms))


def fit_inputs(moments: NoisyGram, n_rows: float) -> tuple[Array, Array]:
    """Return mean and covariance, with eigenvalues in the range that is possible in a box."""
    mean = np.clip(moments.feature_sum / n_rows, -1.0, 1.0)
    covariance = moments.features / n_rows - np.outer(mean, mean)
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    values = np.clip(values, _LEAST_VARIANCE, float(len(mean)))
    return mean, (vectors * values) @ vectors.T
