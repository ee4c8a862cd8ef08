r"""The synthetic design of Lee, Park & Ahn (2025), Section 5.

Y = f(X) + noise with f(x) = sum_{j <= 10} c_j exp(-||x - z_j||^2 / 2). c_j is uniform on [0, 1], z_j
is uniform on [0, 1]^d, and the noise is normal with variance 0.01, conditioned on [-0.1, 0.1]. The
paper does not state the distribution of X, nor what is sampled anew in a repetition. Here X is
uniform on [0, 1]^d, and c, z and X are sampled anew in every repetition.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import ndtr
from scipy.stats import truncnorm

from dpkernel.foundations.types import Array
from dpkernel.privacy.noise import SeededNoise

ROWS = 1000
NOISE = 0.1  # standard deviation before truncation, and the point of truncation
EPSILONS = (0.1, 10**-0.5, 1.0, 10**0.5, 10.0)
DIMENSIONS = (10, 20, 30)
REGULARISATIONS = tuple(ROWS ** (-i / 10) for i in range(11))
BETA, CORRELATED = " (inputs Beta(2, 5))", " (inputs correlated)"


def design(
    d: int, draws: np.random.Generator, law: str = "", *, rows: int = ROWS
) -> tuple[Array, Array, Array, Array]:
    """Return X, y, X_test and f at the test points, with uniform inputs or inputs from another law."""
    centres, weights = draws.uniform(0, 1, (10, d)), draws.uniform(0, 1, 10)
    points = draws.uniform(0, 1, (2 * rows, d))
    if law == BETA:
        points = draws.beta(2, 5, (2 * rows, d))
    elif law == CORRELATED:  # uniform margins, with one common factor and correlation 1/2
        common = draws.normal(size=(2 * rows, 1))
        points = ndtr((common + draws.normal(size=(2 * rows, d))) / math.sqrt(2))
    f = gaussian_kernel(points, centres) @ weights
    return points[:rows], f[:rows] + response_noise(rows, draws), points[rows:], f[rows:]


def response_noise(rows: int, draws: np.random.Generator) -> Array:
    """Return the noise of the design's responses."""
    return np.asarray(truncnorm.rvs(-1, 1, scale=NOISE, size=rows, random_state=draws))


def gaussian_kernel(a: Array, b: Array) -> Array:
    """Return exp(-||x - x'||^2 / 2), the kernel of the design and of the published algorithms."""
    return np.asarray(np.exp(-cdist(a, b, "sqeuclidean") / 2))


def generator(*words: int) -> np.random.Generator:
    """Return a public generator that follows from these numbers, for data, features and splits."""
    return np.random.default_rng(np.random.SeedSequence(list(words)))


def fresh(draws: np.random.Generator) -> SeededNoise:
    """Return a noise source with a seed of its own."""
    return SeededNoise(int(draws.integers(2**62)))
