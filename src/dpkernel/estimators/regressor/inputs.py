"""The law of the inputs, from noisy releases about the columns.

Features that are made for the place where the data lie carry more signal in fewer coordinates than
features for the whole box. There are two ways to the law. In both, a Gaussian copula joins the columns.

- Noisy second moments of (a, x): each column gets the Beta law with its moments. A fit with a fixed
  kernel only takes mean and covariance from them.
- With more data, the first release has a histogram of every column. If the noise is small enough, a
  second release has histograms inside the range that the first one found. The last release has the
  second moments of the normal scores of the columns.

If noise hides a histogram, it is shrunk towards the uniform one. Correlations and moments are shrunk
towards those of the uniform law.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from scipy.special import betainc

from dpkernel.data.domain import Domain, Levels
from dpkernel.data.passes import Passes
from dpkernel.data.sources import released_size
from dpkernel.data.weights import weighted_counts
from dpkernel.foundations.types import Array, IntArray, Neighbours
from dpkernel.models.features.input_law import CELLS, InputLaw, uniform_law
from dpkernel.privacy.mechanisms import Mechanism
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.statistics import GramLayout, NoisyGram

# rows, or their normal scores, are clipped to a ball of this radius, in units of sqrt(d); few inputs
# fill the box
_RADIUS, _SCORE_RADIUS = 0.75, 1.25
_CONSTANT = 0.5
_TAIL = 0.005  # the second look leaves out the cells beyond this quantile at either end
_LEAST_VARIANCE = 0.003
_LEAST_LAW_VARIANCE = 0.01  # of a column of a law; its histogram has no smaller one
_LARGEST_MEAN = 0.98
_LEAST_EIGENVALUE = 0.05  # the least eigenvalue of a correlation matrix
_ROOT = math.sqrt(2)  # noise off the diagonal is smaller by this factor


def input_layout(n_inputs: int, n_rows: int, neighbours: Neighbours) -> GramLayout:
    """Return the integer grid of the moments of the inputs."""
    return moment_layout(n_inputs, n_rows, _RADIUS, _CONSTANT, neighbours)


def score_layout(n_inputs: int, n_rows: int, neighbours: Neighbours) -> GramLayout:
    """Return the integer grid of the moments of the normal scores."""
    return moment_layout(n_inputs, n_rows, _SCORE_RADIUS, 0.0, neighbours)


def moment_layout(
    n_inputs: int, n_rows: int, radius: float, constant: float, neighbours: Neighbours
) -> GramLayout:
    """Return the grid of (x, constant), with ||x|| <= radius sqrt(d) and a scaled constant."""
    row = int(min(2**16, math.sqrt(2.0**60 / n_rows)))
    bound = radius * math.sqrt(n_inputs)
    return GramLayout(n_inputs, 0, bound, row, 1, int(constant * row), neighbours, n_rows)


def sum_moments(
    X: Array, y: Array, layout: GramLayout, law: InputLaw | None = None
) -> tuple[IntArray]:
    """Return the exact sum of v v^T over a block, for v = (x, constant) on the integer grid.

    With a law, its normal scores of a row take the place of x.
    """
    total = np.zeros((layout.side, layout.side), dtype=np.int64)
    for start in range(0, len(X), layout.block_rows):
        rows = slice(start, start + layout.block_rows)
        part = X[rows].astype(np.float64, copy=False) if law is None else law.scores(X[rows])
        records = layout.quantise(part, np.empty((len(part), 0)), y[rows, -1])
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


def release_law(
    passes: Passes,
    layout: GramLayout,
    mechanisms: Mapping[str, Mechanism],
    noise: Noise,
    part: Callable[[str], AbstractContextManager[None]],
) -> tuple[InputLaw, float]:
    """Return the law of the inputs of unit rows, from noisy histograms and moments of scores.

    The number of rows comes with it: that of the table if it is public, else the released one.
    ``layout`` is the grid of the moments. ``part`` is entered for each release, with its name.
    """
    source = passes.source
    n: float = source.n_rows
    law = uniform_law(layout.n_features)
    for label in (name for name in mechanisms if name.startswith("columns")):
        with part(label):
            if label != "columns 1":
                low, high = closer_look(law)
                law = InputLaw(low, high, law.shares, law.correlation)
            (counts,) = passes.sum(count_columns, law.low, law.high)
            mechanism = mechanisms[label]
            noisy = mechanism.release(counts, noise)
            each = float(noisy.sum()) / layout.n_features
            n = released_size(each, source.n_rows, source.weighted)
            law = fit_columns(law, noisy, n, mechanism.noise_scale)
    with part("dependence"):
        (total,) = passes.sum(sum_moments, layout, law)
        mechanism = mechanisms["dependence"]
        moments = layout.read(mechanism.release(total, noise))
        unit = (layout.row_bound / layout.row) ** 2 / n
        deviation = mechanism.noise_scale * unit / _ROOT  # of an entry off the diagonal
        return fit_dependence(law, moments, n, deviation), n


def count_columns(X: Array, y: Array, low: Array, high: Array) -> tuple[Array]:
    """Return the weights of the rows that are in each cell of each column, without rounding."""
    places = (X.astype(np.float64, copy=False) - low) / (high - low) * CELLS
    cells = np.clip(np.floor(places), 0, CELLS - 1).astype(np.int64)
    cells += CELLS * np.arange(X.shape[1])
    weights = np.repeat(y[:, -1], X.shape[1])
    return (weighted_counts(cells.ravel(), weights, CELLS * X.shape[1]),)


def fit_columns(law: InputLaw, counts: Array, n_rows: float, noise: float) -> InputLaw:
    """Return the law whose columns fit noisy counts; ``noise`` is the deviation of a count."""
    found = counts.reshape(-1, CELLS) / n_rows - 1 / CELLS
    squares = np.maximum(np.sum(found**2, axis=1), 1e-300)
    kept = np.maximum(0.0, 1 - CELLS * (noise / n_rows) ** 2 / squares)
    shares = np.array(
        [nearest_law(1 / CELLS + k * row) for k, row in zip(kept, found, strict=True)]
    )
    return InputLaw(law.low, law.high, shares, law.correlation)


def closer_look(law: InputLaw) -> tuple[Array, Array]:
    """Return the range of the cells that contain nearly all of each column."""
    below = np.cumsum(law.shares, axis=1)
    first = (below < _TAIL).sum(axis=1)
    last = np.minimum((below < 1 - _TAIL).sum(axis=1), CELLS - 1)
    width = (law.high - law.low) / CELLS
    return law.low + first * width, law.low + (last + 1) * width


def fit_dependence(law: InputLaw, moments: NoisyGram, n_rows: float, noise: float) -> InputLaw:
    """Return the law with correlations; ``noise`` is the deviation of an entry divided by n."""
    size = len(law.low)
    if size == 1:
        return law
    second = moments.features / n_rows
    # clipping makes moments on and off the diagonal smaller, so only their ratio is used
    squares = np.clip(np.diag(second), law.score_squares / 2, law.score_squares)
    root = np.sqrt(np.maximum(squares, 0.2))
    scale = np.outer(root, root)
    found = second / scale
    hidden = 4 * noise * math.sqrt(size) / float(np.mean(root**2))
    return with_correlations(law, found, noise / scale[np.triu_indices(size, 1)], hidden)


def nearest_law(shares: Array) -> Array:
    """Return the nearest vector of numbers >= 0 whose sum is 1."""
    ordered = np.sort(shares)[::-1]
    levels = (np.cumsum(ordered) - 1) / np.arange(1, len(ordered) + 1)
    last = int(np.flatnonzero(ordered > levels)[-1]) if (ordered > levels).any() else 0
    found = np.maximum(shares - levels[last], 0.0)
    return (
        np.asarray(found / found.sum())
        if math.fsum(found) > 0
        else np.full_like(shares, 1 / len(shares))
    )


def column_sizes(domain: Domain) -> list[int]:
    """Return the number of inputs of each column: one per interval or per level."""
    return [len(c.values) if isinstance(c, Levels) else 1 for c in domain.columns or ()]
