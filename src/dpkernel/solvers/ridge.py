"""Ridge regression from a released Gram matrix: post-processing, free of privacy cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from dpkernel.statistics import NoisyGram
from dpkernel.types import Array


@dataclass(frozen=True)
class RidgeSolution:
    """Coefficients on the features, intercepts, and the regularisation that was used."""

    coefficients: Array  # (features, targets)
    intercepts: Array
    regularisation: float


def solve_ridge(
    gram: NoisyGram, n_rows: float, noise_scale: float, regularisation: float | None = None
) -> RidgeSolution:
    r"""Minimise the centred quadratic form of a noisy Gram matrix plus Lambda ||beta||^2.

    beta = (C_+ + Lambda I)^-1 u with C, u centred by the noisy sums, C_+ the nearest positive
    semidefinite matrix. The noise of C has operator norm near noise_scale sqrt(2 M); by default
    Lambda is that, which keeps directions that are noise from being inverted.

    Parameters
    ----------
    gram : NoisyGram
    n_rows : float
        The number of rows if public, else a released one.
    noise_scale : float
        Standard deviation of the noise on the diagonal of C.
    regularisation : float, optional
        Lambda, on the scale of the sum over rows.
    """
    n_rows = max(n_rows, 1.0)
    mean, target_mean = gram.feature_sum / n_rows, gram.target_sum / n_rows
    target_mean = np.clip(target_mean, -1.0, 1.0)
    centred = gram.features - n_rows * np.outer(mean, mean)
    cross = gram.cross - n_rows * np.outer(mean, target_mean)
    if regularisation is None:
        regularisation = noise_scale * math.sqrt(2 * len(mean))
    values, vectors = eigh(centred)
    shrunk = np.maximum(values, 0.0) + regularisation
    coefficients = vectors @ ((vectors.T @ cross) / shrunk[:, None])
    return RidgeSolution(coefficients, target_mean - mean @ coefficients, regularisation)
