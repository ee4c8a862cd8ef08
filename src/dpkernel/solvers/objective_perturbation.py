r"""Minimise a sum of convex losses plus a ridge plus <b, beta> to a public tolerance, always.

A solver leaks if it may fail, or if it is more exact on some data sets than on others. This solver
returns, for every data set, a point at which the gradient is at most ``Problem.tolerance``. It
first tries damped Newton steps. If they do not succeed, it uses gradient descent with a number of
steps that is known in advance. Nothing but the point leaves the solver, not even the number of
steps.

A number of steps that is known but too large to run would not help: a fit that ends on one table
but not on its neighbour tells them apart. Gradient descent needs about 40 steps times the condition
number. Therefore the estimators refuse problems beyond ``LARGEST_CONDITION`` before anything is
spent (``refuse_endless``). Up to a condition of 3e9, far above this limit, Newton steps succeeded
on each of thousands of hostile tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.threads import block_threads, in_threads
from dpkernel.foundations.types import Array, is_real, is_whole
from dpkernel.models.losses import Loss

_UNIT = 2.0**-53
_NEWTON_STEPS = 1000
_LINE_STEPS = 60
_SINGLE_ENOUGH = 1e6  # up to this condition number, a Hessian may be summed in single precision
_SAMPLE, _SAMPLE_EACH = 20_000, 32  # the fewest rows of a Hessian, in all and per coordinate
_HESSIAN_SIZE = 128  # with this many coordinates a Hessian takes about as long as a gradient
_PATIENCE = 40  # steps before the Hessian must use all blocks in double precision
_SLICE = 512  # rows whose double-precision copy stays in the cache

LARGEST_CONDITION = 1e7  # on hostile tables, Newton steps failed from 1e10 on, never below 3e9

PRECISE = -1  # a stride that means every block, in double precision whatever the features are

Record = tuple[Array, Array, Array | None]  # features, targets, weights (None if all are 1)


class Records(Protocol):
    """The data as the solver sees them: sums over records at any beta."""

    def sums(
        self, beta: Array, hessian_stride: int = 0, threads: int = 1
    ) -> tuple[Array, Array | None]:
        """Return the gradient of the sum of losses and, with a stride, the Hessian.

        A stride of k uses every k-th block for the Hessian, scaled up, in the precision of the
        features. ``PRECISE`` uses every block in double precision. The stride only steers the
        search.
        """


@dataclass(frozen=True)
class Problem:
    r"""The public part of a problem, which determines the tolerance and the number of steps.

    Parameters
    ----------
    loss : Loss
        A loss with finite ``lipschitz`` c_1 and ``smoothness`` c_2.
    n_rows : int
        The number of rows n.
    row_bound : float
        B: omega_i ||h_i|| <= B and omega_i ||h_i||^2 <= B^2 for the weights omega_i in [0, 1].
    ridge : ndarray
        Lambda_l > 0, one per coordinate.
    target_bound : float
        A bound on ``|y|``, for the loss of the prediction 0; inf if there is no such bound.
    largest_b : float
        R_b, the largest possible norm of b.
    block_rows : int
        The largest number of records whose gradients are added without compensation. ``sum_blocks``
        adds at most 512 in this way and adds these sums with compensation, however the records are
        divided into blocks.
    wanted : float
        A tolerance that would be good enough. The actual tolerance is larger if rounding requires
        it.
    penalty : float
        A bound L_C within R on the curvature of a convex function that is added to the objective. It
        does not depend on the data and has its minimum at 0. Its computed gradient at beta errs by at
        most gamma_{M+40} L_C ||beta||.

    Notes
    -----
    Let u = 2^-53, gamma_k = k u / (1 - k u), L_J = max Lambda_l + n c_2 B^2 + L_C, Lambda = min Lambda_l
    and kappa = L_J / Lambda. The minimiser and every point that gradient descent visits have norm
    at most R = min(2 (n c_1 B + R_b) / Lambda, R_b / Lambda + sqrt(R_b^2 / Lambda^2 + 2 n l_0 /
    Lambda)). A computed gradient there errs by at most e = 1.01 [n B (c_2 gamma_M B R + 8 u c_1) +
    gamma_{k+3} n c_1 B + 4 u (max Lambda R + R_b) + u L_J R], where k is the largest number of
    records added without compensation. A penalty adds 1.01 (gamma_{M+42} L_C R + 2 u n c_1 B), its own
    error and that of one more addition. If tau >= 4 e, each step of gradient descent from a point
    that was not accepted lowers the objective by 3/(4 kappa) of its distance to the minimum.
    """

    loss: Loss
    n_rows: int
    row_bound: float
    ridge: Array
    target_bound: float
    largest_b: float
    block_rows: int
    wanted: float = 0.0
    penalty: float = 0.0

    def __post_init__(self) -> None:
        loss, ridge = self.loss, np.asarray(self.ridge)
        fine = loss.lipschitz < math.inf and loss.smoothness < math.inf
        fine = fine and ridge.ndim == 1 and ridge.size > 0 and ridge.dtype == np.float64
        fine = fine and bool(np.all((ridge > 0) & (ridge < math.inf)))
        fine = fine and all(is_whole(k) and k > 0 for k in (self.n_rows, self.block_rows))
        numbers = (self.row_bound, self.largest_b, self.wanted, self.penalty)
        fine = fine and all(is_real(v) and 0 <= v < math.inf for v in numbers)
        fine = fine and is_real(self.target_bound) and self.target_bound >= 0
        if not fine or not 0 < self.tolerance < math.inf:
            raise ParameterError(
                "A Problem needs a loss with bounded slope and curvature, positive ridges, counts of"
                " at least 1, and finite bounds that are not negative."
            )

    @cached_property
    def strength(self) -> float:
        """Lambda, the strong convexity."""
        return float(self.ridge.min())

    @cached_property
    def smoothness(self) -> float:
        """L_J."""
        of_records = self.n_rows * self.loss.smoothness * self.row_bound * self.row_bound
        return float(self.ridge.max()) + of_records + self.penalty

    @property
    def first_gradient(self) -> float:
        """A bound on the norm of the gradient at 0."""
        return self.n_rows * self.loss.lipschitz * self.row_bound + self.largest_b

    @cached_property
    def radius(self) -> float:
        """R, a bound on the norm of the minimiser and of every point that gradient descent visits."""
        strength, b = self.strength, self.largest_b
        by_value = 2 * self.n_rows * self.loss.at_zero(self.target_bound) / strength
        return min(
            2 * self.first_gradient / strength,
            b / strength + math.sqrt((b / strength) ** 2 + by_value),
        )

    @cached_property
    def gradient_error(self) -> float:
        """e, a bound on the error of a computed gradient."""
        n, bound, loss = self.n_rows, self.row_bound, self.loss
        chain = min(n, max(self.block_rows, _SLICE))
        return 1.01 * (
            n * bound * loss.smoothness * _gamma(len(self.ridge)) * bound * self.radius
            + n * bound * 8 * _UNIT * loss.lipschitz
            + _gamma(chain + 3) * n * loss.lipschitz * bound
            + 4 * _UNIT * (float(self.ridge.max()) * self.radius + self.largest_b)
            + _UNIT * self.smoothness * self.radius
            + self._penalty_error
        )

    @property
    def _penalty_error(self) -> float:
        if not self.penalty:
            return 0.0
        own = _gamma(len(self.ridge) + 42) * self.penalty * self.radius
        return own + 2 * _UNIT * self.n_rows * self.loss.lipschitz * self.row_bound

    @cached_property
    def tolerance(self) -> float:
        """tau, a bound on the norm of the gradient at the returned point, for every data set."""
        return max(self.wanted, 4 * self.gradient_error)

    @property
    def most_steps(self) -> int:
        """A number of steps of gradient descent that always suffices."""
        condition = self.condition
        ratio = 4 * condition * (self.first_gradient / self.tolerance) ** 2
        return math.ceil(4 * condition / 3 * math.log(max(ratio, 2.0)))

    @property
    def condition(self) -> float:
        """kappa, the ratio of the largest to the smallest possible curvature of the objective."""
        return self.smoothness / self.strength

    def accepts(self, gradient: Array, beta: Array) -> bool:
        """Return whether the computed gradient proves that the true one is within the tolerance."""
        limit = (self.tolerance - self.gradient_error) * (1 - _gamma(len(beta) + 3))
        near = float(np.linalg.norm(beta)) <= self.radius * (1 + 2.0**-30)
        return near and float(np.linalg.norm(gradient)) <= limit


def minimise(records: Records, problem: Problem, b: Array, start: Array | None = None) -> Array:
    """Return a point at which the gradient of the perturbed objective is within the tolerance.

    The search begins at ``start``, by default 0. A point near the minimiser saves steps.
    """
    found = search(records, problem, b, start)
    if found is not None:
        return found
    with _threads(len(b)) as threads, np.errstate(all="ignore"):
        return _descend(
            records, problem, b, threads, lambda beta: _newton(records, problem, b, threads, beta)
        )


def refuse_endless(owner: str, problem: Problem, largest: float = LARGEST_CONDITION) -> None:
    """Raise if no practicable number of steps is known to suffice; uses public numbers only."""
    if problem.condition <= largest:
        return
    least = problem.smoothness / largest
    advice = (
        "Below it the fit could end on one table and run on for years on another. Raise"
        " regularisation, or the width or threshold of the loss."
    )
    allowed = f"'auto', or at least {least:.3g} for {problem.n_rows} rows and this loss"
    raise ParameterError(
        parameter_message(owner, "regularisation", allowed, problem.strength, advice)
    )


def search(
    records: Records, problem: Problem, b: Array, start: Array | None = None
) -> Array | None:
    """Return a point that Newton steps reach and that is within the tolerance, or None."""
    # no floating-point warnings, because they would reveal something about the data
    with _threads(len(b)) as threads, np.errstate(all="ignore"):
        return _newton(records, problem, b, threads, start)


def _threads(size: int) -> AbstractContextManager[int]:
    # small products are faster on one BLAS thread, so blocks use the threads even if they are few
    return block_threads(64, 8 * size * (4096 + 2 * size))


def _newton(
    records: Records, problem: Problem, b: Array, threads: int, origin: Array | None = None
) -> Array | None:
    """Return an accepted point or None. This is a heuristic on which no guarantee rests.

    It takes Newton steps with a line search on the slope along the step. The slope is accurate up
    to rounding where differences of the objective are not. On large tables the first Hessians are
    sums over some of the blocks. Near the minimiser, one Hessian of more blocks then serves all
    remaining steps, which need gradients alone. For losses made of parabolas and lines the search
    ends after finitely many steps. 20 steps are many; 200 were seen for ramps of width 1e-4.
    """
    at = _Derivatives(records, problem, b, threads)
    beta: Array = np.zeros(len(b)) if origin is None else origin
    stride = max(1, problem.n_rows // max(_SAMPLE_EACH * len(b), _SAMPLE))
    if problem.smoothness > _SINGLE_ENOUGH * problem.strength:
        stride = PRECISE  # rounding to single precision would lose a weak ridge
    sampled, settled = stride > 1, False
    gradient, hessian = at(beta, stride)
    factor: Any = None
    least = math.inf
    for count in range(_NEWTON_STEPS):
        if problem.accepts(gradient, beta):
            return beta
        if hessian is not None:
            factor = _factor(hessian, problem.ridge)
        if factor is None:  # rounding can make a Hessian in single precision indefinite
            step = -gradient / problem.smoothness
        else:
            step = -cho_solve(factor, gradient, check_finite=False)
        start, size = float(gradient @ step), float(np.linalg.norm(gradient))
        least = min(least, size)
        if not start < 0:
            if stride == PRECISE:
                return None
            stride, settled = PRECISE, False  # rounding made a Hessian nearly singular
            gradient, hessian = at(beta, stride)
            continue
        trial: Array = beta + step
        if count > _PATIENCE:
            stride, settled = PRECISE, False
        gradient, hessian = at(trial, 0 if settled else stride)
        slope, norm = float(gradient @ step), float(np.linalg.norm(gradient))
        astray = norm > 0.5 * least and not 0.5 * start <= slope <= 0
        if astray:
            trial = beta + _length(at, beta, step, start, slope) * step
        if astray or norm > 0.3 * size:
            settled = False
            stride = max(stride // 2, 1) if stride > 1 else stride  # more records may be better
        elif sampled and stride > 0 and not settled:
            wanted = _last_stride(stride, norm / size, problem.tolerance / (norm or 1.0), len(b))
            stride, settled = wanted, wanted == stride
        if astray or (hessian is None and not settled):
            gradient, hessian = at(trial, stride)
        beta = trial
    return beta if problem.accepts(gradient, beta) else None


def _factor(hessian: Array, ridge: Array) -> Any:
    """Return the Cholesky factor of the Hessian and the ridge, or None if there is none."""
    hessian[np.diag_indices_from(hessian)] += ridge
    try:
        return cho_factor(hessian, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return None


def _last_stride(stride: int, pace: float, left: float, size: int) -> int:
    """Return the stride of a Hessian for all remaining steps that makes them take the least time.

    ``stride`` is that of the last Hessian, which has cost its time, and ``pace`` is how much
    smaller its step made the gradient of ``size`` coordinates. It still has to become smaller by
    ``left``. Steps err by the share of the Hessian that a sample misses, and a little anyway.
    """

    def passes(other: int) -> float:
        missed = math.sqrt((other - 1) / (stride - 1)) if stride > 1 else 0.0
        each = min(max(1.5 * pace * missed, 0.01), 0.5)  # later steps are worse than the first
        cost = size / _HESSIAN_SIZE / other if other < stride else 0.0
        return cost + max(math.log(left) / math.log(each), 1.0)

    return min((stride >> k for k in range(stride.bit_length())), key=passes)


def _length(at: _Derivatives, beta: Array, step: Array, start: float, slope: float) -> float:
    """Return a length at which the slope along the step is negative and small.

    Small means at most a tenth of the slope at 0. ``start`` and ``slope`` are the slopes at the
    lengths 0 and 1. The objective is convex, so the slope grows with the length. If it is negative
    at the end, the objective fell all the way, and no cycle is possible.
    """
    low, high, at_low, at_high, length = 0.0, math.inf, start, 0.0, 1.0
    wanted, same_side = 0.05 * start, 0
    for _ in range(_LINE_STEPS):
        if slope > 0:
            high, at_high, same_side = length, slope, max(same_side, 0) + 1
        else:
            low, at_low, same_side = length, slope, min(same_side, 0) - 1
            if slope >= 0.1 * start:
                break
        share = min(max((wanted - at_low) / (at_high - at_low), 0.1), 0.9)  # linear interpolation
        if abs(same_side) > 1:
            share = 0.5 if low else 0.1  # interpolation is slow where the slope jumps
        length = 4 * length if high == math.inf else low + share * (high - low)
        slope = float(at(beta + length * step)[0] @ step)
    return low


def _descend(
    records: Records,
    problem: Problem,
    b: Array,
    threads: int,
    search_from: Callable[[Array], Array | None] = lambda beta: None,
) -> Array:
    """Return the point that gradient descent reaches, which takes at most ``most_steps`` steps.

    After 1, 2, 4, 8 ... steps ``search_from`` may find an accepted point as well, because Newton
    steps that failed from 0 often succeed from there.
    """
    at = _Derivatives(records, problem, b, threads)
    beta: Array = np.zeros(len(b))
    for count in range(1, problem.most_steps + 2):
        gradient, _ = at(beta)
        if problem.accepts(gradient, beta):
            return beta
        beta = beta - gradient / problem.smoothness
        if count & (count - 1) == 0:
            found = search_from(beta)
            if found is not None:
                return found
    raise AssertionError("gradient descent took more steps than proved")


@dataclass(frozen=True)
class _Derivatives:
    """The gradient of the perturbed objective and, with a stride, the Hessian of the losses."""

    records: Records
    problem: Problem
    b: Array
    threads: int

    def __call__(self, beta: Array, stride: int = 0) -> tuple[Array, Array | None]:
        gradient, hessian = self.records.sums(beta, stride, self.threads)
        return gradient + (self.problem.ridge * beta + self.b), hessian


class BlockRecords:
    """Records in blocks of rows that can be read repeatedly, on the threads that BLAS may use.

    Features may be float32. Every sum on which acceptance rests is computed in double precision,
    block by block.
    """

    def __init__(self, blocks: Callable[[], Iterable[Record]], loss: Loss) -> None:
        self._blocks = blocks
        self._loss = loss

    def sums(
        self, beta: Array, hessian_stride: int = 0, threads: int = 1
    ) -> tuple[Array, Array | None]:
        """Return the gradient of the sum of losses and, with a stride, its Hessian."""
        return sum_blocks(self._blocks(), self._loss, beta, hessian_stride, threads)


def sum_blocks(
    blocks: Iterable[Record], loss: Loss, beta: Array, hessian_stride: int, threads: int = 1
) -> tuple[Array, Array | None]:
    """Return the sums over blocks of records, added in the order of the blocks."""
    gradient, hessian = CompensatedSum(len(beta)), CompensatedSum((len(beta), len(beta)))
    rows = used = 0

    def tasks() -> Iterator[tuple[Record, Loss, Array, int]]:
        for number, block in enumerate(blocks):
            wanted = hessian_stride != 0 and number % hessian_stride == 0
            yield block, loss, beta, hessian_stride if wanted else 0

    for slopes, bends, count in in_threads(_sum_block, tasks(), threads):
        gradient.add(slopes)
        rows += count
        if bends is not None:
            hessian.add(bends)
            used += count
    bent = hessian.value * (rows / used if used else 1.0) if hessian_stride else None
    return gradient.value, bent


def _sum_block(
    block: Record, loss: Loss, beta: Array, hessian_stride: int
) -> tuple[Array, Array | None, int]:
    """Return the gradient, the Hessian and the number of rows of one block."""
    features, targets, weights = block
    gradient, bend = CompensatedSum(len(beta)), np.empty(len(targets))
    with np.errstate(all="ignore"):  # each thread has its own setting
        for part in _slices(len(targets)):
            z = features[part].astype(np.float64, copy=False)
            y = targets[part]
            scores = z @ beta
            slopes = loss.derivative(y, scores)
            if weights is not None:
                slopes = slopes * weights[part]
            gradient.add(slopes @ z)
            if hessian_stride:
                bend[part] = loss.curvature(y, scores)
        if not hessian_stride:
            return gradient.value, None, len(targets)
        if weights is not None:
            bend *= weights
        bent = np.flatnonzero(bend > 0)
        chosen = features if len(bent) == len(bend) else features[bent]
        roots = np.sqrt(bend[bent])
        if hessian_stride != PRECISE:
            roots = roots.astype(features.dtype, copy=False)
        scaled = chosen * roots[:, None]
        return gradient.value, scaled.T @ scaled, len(targets)


class CompensatedSum:
    """A sum of arrays that also sums its rounding errors, so it errs only like one addition."""

    def __init__(self, shape: int | tuple[int, int]) -> None:
        self._total, self._lost = np.zeros(shape), np.zeros(shape)

    def add(self, term: Array) -> None:
        """Add an array."""
        total = self._total + term
        part = total - self._total
        self._lost += (self._total - (total - part)) + (term - part)  # exact (Knuth)
        self._total = total

    @property
    def value(self) -> Array:
        """The sum."""
        return self._total + self._lost


def _slices(n: int) -> Iterator[slice]:
    for start in range(0, n, _SLICE):
        yield slice(start, start + _SLICE)


def _gamma(k: int) -> float:
    return k * _UNIT / (1 - k * _UNIT)
