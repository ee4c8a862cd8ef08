"""The law of the inputs, from noisy histograms of the columns and noisy moments of their scores.

The first release has a histogram of every column. If the noise is small enough, a second release
has histograms inside the range that the first one found. The last release has the second moments of
the normal scores of the columns. Together they give a law with these columns, joined by a Gaussian
copula. If noise hides a histogram, it is shrunk towards the uniform one; correlations are shrunk
towards 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import numpy as np

from dpkernel.data.domain import Domain, Levels
from dpkernel.data.passes import Passes
from dpkernel.data.sources import released_size
from dpkernel.data.weights import weighted_counts
from dpkernel.estimators.regressor.inputs import moment_layout, with_correlations
from dpkernel.foundations.types import Array, IntArray, Neighbours
from dpkernel.models.features.input_law import CELLS, InputLaw, uniform_law
from dpkernel.privacy.mechanisms import Mechanism
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.statistics import GramLayout, NoisyGram

_TAIL = 0.005  # the second look leaves out the cells beyond this quantile at either end
_RADIUS = 1.25  # rows of scores are clipped to a ball of this radius, in units of sqrt(d)


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
        (total,) = passes.sum(sum_scores, layout, law)
        mechanism = mechanisms["dependence"]
        moments = layout.read(mechanism.release(total, noise))
        unit = (layout.row_bound / layout.row) ** 2 / n
        deviation = mechanism.noise_scale * unit / math.sqrt(2)  # of an entry off the diagonal
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


def score_layout(n_inputs: int, n_rows: int, neighbours: Neighbours) -> GramLayout:
    """Return the integer grid of the moments of the scores."""
    return moment_layout(n_inputs, n_rows, _RADIUS, 0.0, neighbours)


def sum_scores(X: Array, y: Array, layout: GramLayout, law: InputLaw) -> tuple[IntArray]:
    """Return the exact sum of q q^T over a block; q are the normal scores of a row, as integers."""
    total = np.zeros((layout.side, layout.side), dtype=np.int64)
    for start in range(0, len(X), layout.block_rows):
        part = law.scores(X[start : start + layout.block_rows])
        weights = y[start : start + layout.block_rows, -1]
        records = layout.quantise(part, np.empty((len(part), 0)), weights)
        total += (records.T @ records).astype(np.int64)
    return (total,)


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
