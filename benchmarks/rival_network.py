"""A rival: a small network that is trained by DP-SGD, in NumPy.

Two hidden layers of tanh units, squared or cross-entropy loss. Each step takes every training row with
probability q, independently (Poisson sampling); clips the gradient of each row to norm 1; adds
N(0, sigma^2) to each coordinate of the sum; and hands it, divided by the public number q n, to Adam.
The model is the mean of the last iterates. Inputs and targets are scaled by their declared ranges, so
nothing is read from the data except through the noisy sums. ``noise_multiplier`` calibrates sigma with
the privacy-loss distributions of dp-accounting, for one record that is added, removed or zeroed out.

This is a yardstick and not a product: the noise is pseudo-random and in floating point.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Schedule:
    """The public settings of one training run: an entry of ``SCHEDULES``."""

    units: int
    steps: int
    rate: float  # the first step size of Adam, which falls to 0 like a cosine
    share: float  # of the rows in a step (q)


SCHEDULES = (
    Schedule(16, 300, 0.03, 1.0),
    Schedule(32, 400, 0.03, 0.25),
    Schedule(16, 100, 0.03, 1.0),
    Schedule(16, 300, 0.01, 1.0),
    Schedule(32, 1000, 0.02, 0.1),
    Schedule(64, 400, 0.02, 0.25),
    Schedule(64, 1500, 0.01, 0.1),
)


def public_schedule(n_mu: float) -> int:
    """Return the entry of ``SCHEDULES`` for n times mu: few rows or little budget need a small net."""
    if n_mu < 700:
        return 0
    return 1 if n_mu < 3000 else 6


@functools.cache
def noise_multiplier(epsilon: float, delta: float, share: float, steps: int) -> float:
    """Return the least sigma, to one part in a thousand, whose ``steps`` steps are private.

    The search ends on the private side: the returned sigma was checked.
    """
    good, bad = 1.0, 0.0
    while spent(good, delta, share, steps) > epsilon:
        good, bad = 2 * good, good
    while good - bad > 1e-3 * good:
        middle = (good + bad) / 2
        if spent(middle, delta, share, steps) <= epsilon:
            good = middle
        else:
            bad = middle
    return good


def spent(sigma: float, delta: float, share: float, steps: int) -> float:
    """Return the epsilon of all steps, which dp-accounting rounds up."""
    import dp_accounting as accounting

    step = accounting.GaussianDpEvent(sigma)
    if share < 1:
        step = accounting.PoissonSampledDpEvent(share, step)
    relation = accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = accounting.pld.PLDAccountant(relation, value_discretization_interval=1e-3)
    accountant.compose(accounting.SelfComposedDpEvent(step, steps))
    return float(accountant.get_epsilon(delta))


class Network:
    """Weights of the three layers; the last row of each matrix is the bias."""

    def __init__(self, n_inputs: int, units: int, n_outputs: int, draws: np.random.Generator):
        sizes = [n_inputs, units, units, n_outputs]
        self.weights = [
            draws.normal(0, 1 / math.sqrt(a), (a + 1, b)).astype(np.float32)
            for a, b in itertools.pairwise(sizes)
        ]
        for matrix in self.weights:
            matrix[-1] = 0
        self.weights[-1][:] = 0  # the first function is 0, the middle of the declared range

    def layers(self, X: np.ndarray) -> list[np.ndarray]:
        """Return the inputs of the layers and, last, the outputs."""
        values = [X]
        for matrix in self.weights:
            values.append(values[-1] @ matrix[:-1] + matrix[-1])
            if matrix is not self.weights[-1]:
                np.tanh(values[-1], out=values[-1])
        return values

    def clipped_sum(self, values: list[np.ndarray], slopes: np.ndarray) -> list[np.ndarray]:
        """Return the sum of the gradients of the rows, each clipped to norm 1.

        The gradient of a row in one matrix is an outer product, whose norm is a product of norms.
        """
        back = [slopes]
        for matrix, value in zip(self.weights[:0:-1], values[-2:0:-1], strict=True):
            back.append((back[-1] @ matrix[:-1].T) * (1 - value**2))
        back.reverse()
        squares = sum(
            np.einsum("ij,ij->i", b, b) * (1 + np.einsum("ij,ij->i", v, v))
            for b, v in zip(back, values[:-1], strict=True)
        )
        lengths = 1 / np.maximum(1, np.sqrt(squares))
        short = [b * lengths[:, None] for b in back]
        return [
            np.vstack([v.T @ b, b.sum(axis=0)]) for b, v in zip(short, values[:-1], strict=True)
        ]


def train(
    X: np.ndarray,
    targets: np.ndarray,
    *,
    classes: bool,
    schedule: Schedule,
    sigma: float,
    seed: int,
) -> Network:
    """Return the trained network.

    ``X`` lies in [-1, 1]; ``targets`` has a column in [-1, 1], or an indicator column per class.
    """
    draws = np.random.default_rng(seed)
    X, targets = X.astype(np.float32), targets.astype(np.float32)
    net = Network(X.shape[1], schedule.units, targets.shape[1], draws)
    first = [np.zeros_like(w) for w in net.weights]
    second = [np.zeros_like(w) for w in net.weights]
    mean, kept = [np.zeros_like(w) for w in net.weights], 0
    for step in range(1, schedule.steps + 1):
        rows = draws.random(len(X)) < schedule.share if schedule.share < 1 else slice(None)
        values = net.layers(X[rows])
        output = softmax(values[-1]) if classes else values[-1]
        sums = net.clipped_sum(values, output - targets[rows])
        rate = schedule.rate * (1 + math.cos(math.pi * step / schedule.steps)) / 2
        for i, matrix in enumerate(net.weights):
            noise = draws.standard_normal(matrix.shape, dtype=np.float32)
            gradient = (sums[i] + sigma * noise) / (schedule.share * len(X))
            first[i] += 0.1 * (gradient - first[i])
            second[i] += 0.01 * (gradient**2 - second[i])
            scale = np.sqrt(second[i] / (1 - 0.99**step)) + 1e-8
            matrix -= rate * first[i] / (1 - 0.9**step) / scale
        if step > 0.6 * schedule.steps:
            kept += 1
            for total, matrix in zip(mean, net.weights, strict=True):
                total += (matrix - total) / kept
    net.weights = mean
    return net


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return the probabilities of the classes."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))
