"""The feature maps of Lee, Park & Ahn (2025): their laws, their kernel, their norms.

Statistical tests: false-alarm rate below 1e-9 each, for any seed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.linalg import cholesky
from scipy.stats import chi2
from sklearn.metrics.pairwise import rbf_kernel

from dpkernel.proof.papers import PublishedAlgorithm3, PublishedAlgorithm4
from dpkernel.proof.papers.lee_park_ahn_2025 import gaussian_process_projection


@pytest.fixture
def table(rng):
    return rng.uniform(0, 1, (150, 3)), rng.uniform(0, 1, (40, 3))


def test_projection_has_the_kernel_as_its_gram_matrix(rng, seed):
    points = rng.uniform(0, 1, (40, 3))
    M = 40_000
    Z = gaussian_process_projection(points, M, length_scale=0.5, random_state=seed)
    K = rbf_kernel(points, gamma=1 / (2 * 0.5**2))
    # an entry of Z Z^T is a mean of M products with variance 1 + k^2 <= 2
    assert np.max(np.abs(Z @ Z.T - K)) < 8 * math.sqrt(2 / M)


def test_rows_of_the_projection_are_scaled_chi_squared(seed):
    Z = gaussian_process_projection(np.zeros((1, 2)), 200_000, random_state=seed)
    low, high = chi2.ppf([5e-10, 1 - 5e-10], 200_000) / 200_000
    assert low < np.sum(Z**2) < high


def test_training_rows_do_not_change_with_the_test_points(table):
    X, X_test = table
    alone = gaussian_process_projection(X, 7, length_scale=0.3)
    joint = gaussian_process_projection(np.vstack([X, X_test]), 7, length_scale=0.3)
    np.testing.assert_allclose(joint[: len(X)], alone, atol=1e-9)


def test_projection_is_the_cholesky_factor_times_normals(table):
    X, _ = table
    K = rbf_kernel(X, gamma=1 / (2 * 0.3**2))
    G = np.random.Generator(np.random.PCG64(5)).standard_normal((len(X), 9))
    found = gaussian_process_projection(X, 9, length_scale=0.3, random_state=5)
    np.testing.assert_allclose(found, cholesky(K, lower=True) @ G / 3, atol=1e-8)


def test_repeated_points_have_one_projection(table):
    X, _ = table
    Z = gaussian_process_projection(np.vstack([X, X]), 5)
    np.testing.assert_allclose(Z[: len(X)], Z[len(X) :], atol=1e-4)


@pytest.mark.parametrize("cls", [PublishedAlgorithm3, PublishedAlgorithm4])
@pytest.mark.parametrize(("features", "norm_squared"), [("cosine", 2.0), ("paired", 1.0)])
def test_fourier_features_estimate_the_kernel_within_their_norm(
    table, cls, features, norm_squared, seed
):
    X, _ = table
    M = 20_000
    model = cls(n_features=M, features=features, length_scale=0.7, random_state=seed)
    model.n_features_in_ = 3
    Z = model.transform(X[:30])
    assert np.max(np.sum(Z**2, axis=1)) <= norm_squared * (1 + 1e-12)
    if features == "cosine":
        assert np.max(np.abs(Z)) <= math.sqrt(2 / M)
    K = rbf_kernel(X[:30], gamma=1 / (2 * 0.7**2))
    assert np.max(np.abs(Z @ Z.T - K)) < 8 * math.sqrt(2 / M)  # bounded terms, variance <= 2
