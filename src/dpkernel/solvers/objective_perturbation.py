r"""Minimise a sum of convex losses plus a ridge plus <b, beta> to a public tolerance, always.

A solver that may fail, or that is more exact on some data sets than on others, leaks. This one
returns, for every data set, a point at which the gradient is at most ``Problem.tolerance``: damped
Newton steps first, and gradient descent with a step count known in advance if they did not get
there. Nothing but that point leaves it, not even the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from dpkernel.losses import Loss
from dpkernel.threads import block_threads, in_threads
from dpkernel.types import Array

_UNIT = 2.0**-53
_NEWTON_STEPS = 50
_HALVINGS = 30
_SLICE = 512  # rows whose double-precision copy stays in the cache

Record = tuple[Array, Array, Array | None]  # features, targets, weights (None: all 1)


class Records(Protocol):
    """The data as the solver sees them: sums over records at any beta."""

    def sums(
        self, beta: Array, hessian_stride: int = 0, threads: int = 1
    ) -> tuple[float, Array, Array | None]:
        """Return the sum of losses and its gradient; with a stride also the Hessian.

        A stride of k takes every k-th block into the Hessian, scaled up: it only steers the search.
        """


@dataclass(frozen=True)
class Problem:
    r"""The public side of a problem: from it follow the tolerance and the number of steps.

    Parameters
    ----------
    loss : Loss
        With finite ``lipschitz`` c_1 and ``smoothness`` c_2.
    n_rows : int
    row_bound : float
        B: omega_i ||h_i|| <= B and omega_i ||h_i||^2 <= B^2 for the weights omega_i in [0, 1].
    ridge : ndarray
        Lambda_l > 0, one a coordinate.
    target_bound : float
        |y| at most, for the loss of the prediction 0.
    largest_b : float
        R_b, the largest norm that b can have.
    block_rows : int
        The longest chain of additions over records is this plus the number of blocks.
    wanted : float
        A tolerance that would do; the one reached may be larger, where rounding is.

    With u = 2^-53, gamma_k = k u / (1 - k u), L_J = max Lambda_l + n c_2 B^2 and Lambda = min Lambda_l:
    the minimiser and every point that gradient descent visits have norm at most
    R = min(2 (n c_1 B + R_b) / Lambda, R_b / Lambda + sqrt(R_b^2 / Lambda^2 + 2 n l_0 / Lambda)), a
    computed gradient there errs by at most
    e = 1.01 [n B (c_2 gamma_M B R + 8 u c_1) + gamma_{k+3} n c_1 B + 4 u (max Lambda R + R_b)
    + u L_J R], and with tau >= 4 e each step of gradient descent that was not accepted lowers the
    objective by 3/(4 kappa) of its distance to the minimum, kappa = L_J / Lambda.
    """

    loss: Loss
    n_rows: int
    row_bound: float
    ridge: Array
    target_bound: float
    largest_b: float
    block_rows: int
    wanted: float = 0.0

    @property
    def strength(self) -> float:
        """Lambda, the strong convexity."""
        return float(self.ridge.min())

    @property
    def smoothness(self) -> float:
        """L_J."""
        return float(self.ridge.max()) + self.n_rows * self.loss.smoothness * self.row_bound**2

    @property
    def first_gradient(self) -> float:
        """A bound on the norm of the gradient at 0."""
        return self.n_rows * self.loss.lipschitz * self.row_bound + self.largest_b

    @property
    def radius(self) -> float:
        """R: a bound on the norm of the minimiser and of what gradient descent visits."""
        strength, b = self.strength, self.largest_b
        by_value = 2 * self.n_rows * self.loss.at_zero(self.target_bound) / strength
        return min(
            2 * self.first_gradient / strength,
            b / strength + math.sqrt((b / strength) ** 2 + by_value),
        )

    @property
    def gradient_error(self) -> float:
        """e: how far a computed gradient can be off."""
        n, bound, loss = self.n_rows, self.row_bound, self.loss
        chain = self.block_rows + -(-n // self.block_rows)
        return 1.01 * (
            n * bound * loss.smoothness * _gamma(len(self.ridge)) * bound * self.radius
            + n * bound * 8 * _UNIT * loss.lipschitz
            + _gamma(chain + 3) * n * loss.lipschitz * bound
            + 4 * _UNIT * (float(self.ridge.max()) * self.radius + self.largest_b)
            + _UNIT * self.smoothness * self.radius
        )

    @property
    def tolerance(self) -> float:
        """tau: the gradient's norm at the returned point is at most this, for every data set."""
        return max(self.wanted, 4 * self.gradient_error)

    @property
    def most_steps(self) -> int:
        """So many steps of gradient descent are enough."""
        condition = self.smoothness / self.strength
        ratio = 4 * condition * (self.first_gradient / self.tolerance) ** 2
        return math.ceil(4 * condition / 3 * math.log(max(ratio, 2.0)))

    def accepts(self, gradient: Array, beta: Array) -> bool:
        """Whether the computed gradient proves that the true one is within the tolerance."""
        limit = (self.tolerance - self.gradient_error) * (1 - _gamma(len(beta) + 3))
        near = float(np.linalg.norm(beta)) <= self.radius * (1 + 2.0**-30)
        return near and float(np.linalg.norm(gradient)) <= limit


def minimise(records: Records, problem: Problem, b: Array) -> Array:
    """Return a point at which the gradient of the perturbed objective is within the tolerance."""
    size = len(b)
    with block_threads(8 * size * (4096 + 2 * size)) as threads:
        found = _newton(records, problem, b, threads)
        return _descend(records, problem, b, threads) if found is None else found


def _newton(records: Records, problem: Problem, b: Array, threads: int) -> Array | None:
    """Return an accepted point, or None: a heuristic on which nothing rests."""
    ridge = problem.ridge
    beta: Array = np.zeros(len(ridge))
    stride = max(1, problem.n_rows // max(32 * len(ridge), 20_000))
    objective, gradient, hessian = _objective(records, ridge, b, beta, stride, threads)
    if problem.accepts(gradient, beta):
        return beta
    size = float(np.linalg.norm(gradient))
    for _ in range(_NEWTON_STEPS):
        assert hessian is not None
        hessian[np.diag_indices_from(hessian)] += ridge
        try:
            step = -cho_solve(cho_factor(hessian, overwrite_a=True, check_finite=False), gradient)
        except LinAlgError:  # a Hessian in single precision can be indefinite by rounding
            step = -gradient / problem.smoothness
        slope = float(gradient @ step)
        length = 1.0
        for _ in range(_HALVINGS):
            trial: Array = beta + length * step
            value, slopes, hessian = _objective(records, ridge, b, trial, stride, threads)
            norm = float(np.linalg.norm(slopes))
            # near the minimum values differ by rounding only: a smaller gradient is enough there
            if value <= objective + 1e-4 * length * slope or norm < 0.5 * size:
                break
            length /= 2
        else:
            return None
        if norm > 0.3 * size:
            stride = 1  # a Hessian of part of the records is not good enough here
        beta, objective, gradient, size = trial, value, slopes, norm
        if problem.accepts(gradient, beta):
            return beta
    return None


def _descend(records: Records, problem: Problem, b: Array, threads: int) -> Array:
    """Return the point that gradient descent reaches; it does within ``most_steps``."""
    beta = np.zeros(len(problem.ridge))
    for _ in range(problem.most_steps + 1):
        gradient = records.sums(beta, threads=threads)[1] + (problem.ridge * beta + b)
        if problem.accepts(gradient, beta):
            return beta
        beta = beta - gradient / problem.smoothness
    raise AssertionError("gradient descent took more steps than proved")


def _objective(
    records: Records, ridge: Array, b: Array, beta: Array, stride: int, threads: int
) -> tuple[float, Array, Array | None]:
    value, gradient, hessian = records.sums(beta, stride, threads)
    value += float(beta @ (ridge * beta)) / 2 + float(b @ beta)
    return value, gradient + (ridge * beta + b), hessian


class BlockRecords:
    """Records in blocks of rows that can be read again, on the threads that BLAS may use.

    Features may be float32; every sum that the acceptance rests on is computed in double precision,
    block after block.
    """

    def __init__(self, blocks: Callable[[], Iterable[Record]], loss: Loss) -> None:
        self._blocks = blocks
        self._loss = loss

    def sums(
        self, beta: Array, hessian_stride: int = 0, threads: int = 1
    ) -> tuple[float, Array, Array | None]:
        """Return the sum of losses, its gradient and, with a stride, its Hessian."""
        return sum_blocks(self._blocks(), self._loss, beta, hessian_stride, threads)


def sum_blocks(
    blocks: Iterable[Record], loss: Loss, beta: Array, hessian_stride: int, threads: int = 1
) -> tuple[float, Array, Array | None]:
    """Return the sums over blocks of records, added in the order of the blocks."""
    value, gradient = 0.0, np.zeros(len(beta))
    hessian = np.zeros((len(beta), len(beta))) if hessian_stride else None
    rows = used = 0

    def tasks() -> Iterator[tuple[Record, Loss, Array, bool]]:
        for number, block in enumerate(blocks):
            yield block, loss, beta, hessian_stride > 0 and number % hessian_stride == 0

    for losses, slopes, bends, count in in_threads(_sum_block, tasks(), threads):
        value += losses
        gradient += slopes
        rows += count
        if bends is not None and hessian is not None:
            hessian += bends
            used += count
    if hessian is not None and used:
        hessian *= rows / used
    return value, gradient, hessian


def _sum_block(
    block: Record, loss: Loss, beta: Array, with_hessian: bool
) -> tuple[float, Array, Array | None, int]:
    """Return loss, gradient, Hessian and number of rows of one block."""
    features, targets, weights = block
    value, gradient, bend = 0.0, np.zeros(len(beta)), np.empty(len(targets))
    for part in _slices(len(targets)):
        z = features[part].astype(np.float64, copy=False)
        y = targets[part]
        scores = z @ beta
        losses, slopes = loss.value(y, scores), loss.derivative(y, scores)
        bend[part] = loss.curvature(y, scores)
        if weights is not None:
            w = weights[part]
            losses, slopes, bend[part] = losses * w, slopes * w, bend[part] * w
        value += float(losses.sum())
        gradient += slopes @ z
    if not with_hessian:
        return value, gradient, None, len(targets)
    bent = np.flatnonzero(bend > 0)
    chosen = features if len(bent) == len(bend) else features[bent]
    scaled = chosen * np.sqrt(bend[bent]).astype(features.dtype)[:, None]
    return value, gradient, scaled.T @ scaled, len(targets)


def _slices(n: int) -> Iterator[slice]:
    for start in range(0, n, _SLICE):
        yield slice(start, start + _SLICE)


def _gamma(k: int) -> float:
    return k * _UNIT / (1 - k * _UNIT)
