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
    constant: float,
    regularisation: float | None = None,
    spectrum: Array | None = None,
) -> RidgeSolution:
    r"""Minimise the quadratic form of a noisy Gram matrix plus Lambda sum_l w_l beta_l^2.

    The features are z and a constant; beta = (A_+ + Lambda diag(w))^-1 u, with A_+ the nearest
    positive semidefinite matrix to the noisy Gram matrix of (z, constant) and u the noisy cross
    products with the target.

    The noise of A has standard deviation ``noise_scale`` on the diagonal and operator norm near
    noise_scale sqrt(2 M). Features without a known order get w = 1 and Lambda = that norm, which
    keeps directions that are noise from being inverted. Eigenfeatures come with the public spectrum
    mu: smooth functions have coefficients that fall faster than sqrt(mu_l), so w_l =
    sqrt(mu_1 / mu_l) and Lambda = 2.5 noise_scale, which leaves the leading ones nearly free.

    Parameters
    ----------
    gram : NoisyGram
    n_rows : float
        The number of rows, public.
    noise_scale : float
        Standard deviation of the noise on the diagonal of the features' block.
    constant : float
        The value of the constant coordinate, in the units of the features.
    regularisation : float, optional
        Lambda, on the scale of the sum over rows.
    spectrum : ndarray, optional
        mu_l of the features, decreasing.
    """
    m = len(gram.feature_sum)
    matrix = np.empty((m + 1, m + 1))
    matrix[:m, :m] = gram.features
    matrix[:m, m] = matrix[m, :m] = constant * gram.feature_sum
    matrix[m, m] = constant * constant * n_rows
    cross = np.vstack([gram.cross, constant * gram.target_sum])
    weights = np.ones(m + 1)
    if spectrum is not None:
        weights[:m] = np.sqrt(spectrum[0] / spectrum)
    if regularisation is None:
        regularisation = noise_scale * (math.sqrt(2 * m) if spectrum is None else 2.5)
    values, vectors = eigh(matrix)
    roots = np.sqrt(weights)  # solve in the coordinates in which the penalty is Lambda I
    if spectrum is not None:
        repaired = (vectors * np.maximum(values, 0.0)) @ vectors.T
        values, vectors = eigh(repaired / np.outer(roots, roots))
    shrunk = np.maximum(values, 0.0) + regularisation
    scaled = vectors @ ((vectors.T @ (cross / roots[:, None])) / shrunk[:, None])
    solution = scaled / roots[:, None]
    return RidgeSolution(solution[:m], constant * solution[m], regularisation)
