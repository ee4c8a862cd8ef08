"""The counterexample to the objective perturbation of Lee, Park & Ahn (2025), by integration.

The densities are known, so the divergence can be integrated. Sampling could not show it, because
delta = 1e-8 is far too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from scipy.integrate import trapezoid
from scipy.stats import norm

from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.models.losses import Huber
from dpkernel.privacy.profiles import objective_multiplier
from dpkernel.proof.papers.lee_park_ahn_2025 import algorithm_4_noise


def huber_example(budget: Budget) -> tuple[float, float]:
    """Return the epsilon at the budget's delta with the printed noise, and with dpkernel's.

    There is one record with a Huber loss, whose kink lies in the tail of b. beta~ has the density
    phi(b(beta)/sigma) |b'(beta)|, where -b(beta) is the gradient of the other terms.
    """
    row, relation = math.sqrt(2), Neighbours.REPLACE_ONE
    printed = algorithm_4_noise(1, budget.epsilon, budget.delta, 1e-9, Huber())
    ridge = printed.regularisation
    m = objective_multiplier(budget, [1.0], [row**2 / ridge], relation)
    first, second = (
        _huber_epsilon(sigma, ridge, row, budget.delta)
        for sigma in (printed.noise_scale, 2 * row / m)
    )
    return first, second


def _huber_epsilon(sigma: float, ridge: float, row: float, delta: float) -> float:
    """Return the smallest epsilon at which the divergence is at most delta, for the worst kink."""

    def least(kink: float) -> float:
        return _least_epsilon(lambda e: huber_divergence(e, sigma, ridge, row, kink), delta)

    return max(least(float(kink)) for kink in np.linspace(4.5, 6.5, 9) * sigma / row)


def huber_divergence(
    epsilon: float, sigma: float, ridge: float, row: float, kink: float, points: int = 20_001
) -> float:
    """Return the hockey-stick divergence of the two data sets, piece by piece.

    ``kink`` is the position of the lower kink of the first loss, as ridge * beta / row.
    """
    start = kink * row / ridge
    first = row * start + 1.0

    def gradient(beta: Array, far: bool) -> Array:
        slope = np.full_like(beta, 1.0) if far else np.clip(row * beta - first, -1.0, 1.0)
        return np.asarray(row * slope + ridge * beta)

    total, reach = 0.0, 12 * sigma / ridge
    for low, high in pairwise((-reach, start, start + 2 / row, reach + start)):
        beta = np.linspace(low, high, points)
        curved = ridge + (row**2 if low == start else 0.0)
        p = norm.pdf(gradient(beta, False), scale=sigma) * curved
        q = norm.pdf(gradient(beta, True), scale=sigma) * ridge
        total += float(trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), beta))
    return total


def _least_epsilon(divergence: Callable[[float], float], delta: float) -> float:
    low, high = 0.0, 100.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if divergence(middle) > delta else (low, middle)
    return low
