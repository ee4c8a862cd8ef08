"""Ridge regression from a released Gram matrix; this is post-processing without privacy cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from dpkernel.foundations.types import Array
from dpkernel.privacy.statistics import NoisyGram


@dataclass(frozen=True)
class RidgeSolution:
    """Coefficients of the features, intercepts, and the regularisation that was used."""

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

    The features are z and a constant. The solution is beta = (A_+ + Lambda diag(w))^-1 u, where A_+
    is the nearest positive semidefinite matrix to the noisy Gram matrix of (z, constant) and u
    holds the noisy cross products with the target.

    Parameters
    ----------
    gram : NoisyGram
        The released Gram matrix.
    n_rows : float
        The number of rows, which is public.
    noise_scale : float
        The standard deviation of the noise on the diagonal of the block of features.
    constant : float
        The value of the constant coordinate, in the units of the features.
    regularisation : float, optional
        Lambda, on the scale of the sum over rows.
    spectrum : ndarray, optional
        The eigenvalues mu_l of the features, decreasing.

    Notes
    -----
    The noise of A has standard deviation ``noise_scale`` on the diagonal and operator norm near
    noise_scale sqrt(2 M). Features without a known order get w = 1 and a Lambda equal to that norm.
    This prevents directions that consist of noise from being inverted. Eigenfeatures come with the
    public spectrum mu. The coefficients of smooth functions fall faster than sqrt(mu_l), so w_l =
    sqrt(mu_1 / mu_l) and Lambda = 2.5 noise_scale, which hardly penalises the leading features.
    """
    m = len(gram.feature_sum)
    if regularisation is None:
        regularisation = default_regularisation(noise_scale, m, spectrum)
    matrix, cross = quadratic_form(gram, n_rows, constant)
    solution = shrunk(matrix, cross, penalty(m, spectrum), [regularisation])[0]
    return RidgeSolution(solution[:m], constant * solution[m], regularisation)


def default_regularisation(noise_scale: float, n_features: int, spectrum: Array | None) -> float:
    """Return the Lambda that follows from the noise alone; see ``solve_ridge``."""
    return noise_scale * (math.sqrt(2 * n_features) if spectrum is None else 2.5)


def penalty(n_features: int, spectrum: Array | None) -> Array:
    """Return w, with one weight per feature and 1 for the constant; see ``solve_ridge``."""
    weights = np.ones(n_features + 1)
    if spectrum is not None:
        weights[:-1] = np.sqrt(spectrum[0] / spectrum)
    return weights


def quadratic_form(gram: NoisyGram, n_rows: float, constant: float) -> tuple[Array, Array]:
    """Return the Gram matrix of (z, constant), with its known corner, and the cross products."""
    m = len(gram.feature_sum)
    matrix = np.empty((m + 1, m + 1))
    matrix[:m, :m] = gram.features
    matrix[:m, m] = matrix[m, :m] = constant * gram.feature_sum
    matrix[m, m] = constant * constant * n_rows
    return matrix, np.vstack([gram.cross, constant * gram.target_sum])


def shrunk(matrix: Array, cross: Array, weights: Array, regularisations: Sequence[float]) -> Array:
    """Return (A_+ + Lambda diag(w))^-1 u for every Lambda, from one decomposition."""
    values, vectors = eigh(matrix)
    roots = np.sqrt(weights)  # solve in coordinates in which the penalty is Lambda I
    if np.ptp(weights) > 0:  # otherwise the decomposition stays the same
        repaired = (vectors * np.maximum(values, 0.0)) @ vectors.T
        values, vectors = eigh(repaired / np.outer(roots, roots))
    rotated = vectors.T @ (cross / roots[:, None])
    out = np.empty((len(regularisations), *cross.shape))
    for i, regularisation in enumerate(regularisations):
        floor = 1e-13 * max(float(values[-1]), 0.0)  # smaller values are rounding error
        shifted = np.maximum(values, 0.0) + max(regularisation, floor, 1e-300)
        out[i] = vectors @ (rotated / shifted[:, None]) / roots[:, None]
    return out
