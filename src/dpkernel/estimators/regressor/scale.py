"""How large the residuals are, from a noisy histogram of their absolute values.

Each stage clips at a multiple of this scale; as the fit gets better the scale shrinks, and the noise
of the next stage with it.
"""

from __future__ import annotations

import numpy as np
from scipy.special import erf

from dpkernel.types import Array

_INNER = 24
CELLS = _INNER + 1


def edges_of(scale: float) -> Array:
    """Return the inner edges of the cells, geometric around a first guess of the scale."""
    return np.geomspace(0.02, 4.0, _INNER) * scale


def count_residuals(
    features: Array, y: Array, column: int, coefficients: Array, edges: Array
) -> tuple[Array]:
    """Return how many absolute residuals are in each cell."""
    values = y if y.ndim == 1 else y[:, column]
    residuals = np.abs(values - (coefficients[0] + features @ coefficients[1:]))
    cells = np.searchsorted(edges, residuals, side="right")
    return (np.bincount(cells, minlength=CELLS).astype(np.float64),)


def fit_scale(counts: Array, n_rows: int, guess: float) -> float:
    """Return the scale of the half-normal that is nearest to noisy counts; at most the guess x 1.3."""
    edges = np.concatenate(([0.0], edges_of(guess), [np.inf]))
    scales = np.geomspace(0.03, 1.3, 80) * guess
    shapes = np.diff(erf(edges / (np.sqrt(2.0) * scales[:, None])), axis=1)
    distance = np.sum((counts / n_rows - shapes) ** 2, axis=1)
    return float(scales[int(np.argmin(distance))])
