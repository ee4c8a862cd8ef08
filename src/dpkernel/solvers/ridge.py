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
    gram: NoisyGram,
    n_rows: float,
    noise_scale: float,
    *,
    regularisation: float | None = None,
    spectrum: Array | None = None,
    intercept: bool = True,
) -> RidgeSolution:
    r"""Minimise the quadratic form of a noisy Gram matrix plus sum_l Lambda w_l beta_l^2.

    beta = (C_+ + Lambda diag(w))^-1 u with C_+ the nearest positive semidefinite matrix.

    The noise of C has standard deviation ``noise_scale`` on its diagonal and operator norm near
    noise_scale sqrt(2 M). Features without a known order get w = 1 and Lambda = that norm, which
    keeps directions that are noise from being inverted. Eigenfeatures come with the public spectrum
    mu: smooth functions have coefficients that fall faster than sqrt(mu_l), so w_l =
    sqrt(mu_1 / mu_l) and Lambda = 2.5 noise_scale, which leaves the leading ones nearly free.

    Parameters
    ----------
    gram : NoisyGram
    n_rows : float
        The number of rows if public, else a released one.
    noise_scale : float
        Standard deviation of the noise on the diagonal of C.
    regularisation : float, optional
        Lambda, on the scale of the sum over rows.
    spectrum : ndarray, optional
        mu_l of the features, decreasing.
    intercept : bool
        Centre by the noisy sums and add an intercept.
    """
    n_features, n_targets = gram.cross.shape
    matrix, cross = gram.features, gram.cross
    mean, target_mean = np.zeros(n_features), np.zeros(n_targets)
    if intercept:
        n_rows = max(n_rows, 1.0)
        mean = gram.feature_sum / n_rows
        target_mean = np.clip(gram.target_sum / n_rows, -1.0, 1.0)
        matrix = matrix - n_rows * np.outer(mean, mean)
        cross = cross - n_rows * np.outer(mean, target_mean)
    weights = np.ones(n_features) if spectrum is None else np.sqrt(spectrum[0] / spectrum)
    if regularisation is None:
        factor = math.sqrt(2 * n_features) if spectrum is None else 2.5
        regularisation = factor * noise_scale
    values, vectors = eigh(matrix)
    repaired = (vectors * np.maximum(values, 0.0)) @ vectors.T
    roots = np.sqrt(weights)  # solve in the coordinates in which the penalty is Lambda I
    values, vectors = eigh(repaired / np.outer(roots, roots))
    shrunk = np.maximum(values, 0.0) + regularisation
    scaled = vectors @ ((vectors.T @ (cross / roots[:, None])) / shrunk[:, None])
    coefficients = scaled / roots[:, None]
    return RidgeSolution(coefficients, target_mean - mean @ coefficients, regularisation)
