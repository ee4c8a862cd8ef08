r"""Minimise a sum of convex losses plus a ridge plus <b, beta> to a public tolerance, always.

A solver that may fail, or that is more exact on some data sets than on others, leaks. This one
returns, for every data set, a point at which the gradient is at most ``Problem.tolerance``: damped
Newton steps first, and gradient descent with a step count known in advance if they did not get
there. Nothing but that point leaves it, not even the number of steps.

A step count that is known and can't be run is of no use: a fit that ends on one table and not on its
neighbour tells them apart. The descent needs about 40 steps times the condition number, so the
estimators refuse problems beyond ``LARGEST_CONDITION`` before anything is spent (``refuse_endless``).
Up to 3e9, far above it, Newton steps gave up on none of thousands of hostile tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.threads import block_threads, in_threads
from dpkernel.foundations.types import Array, is_real, is_whole
from dpkernel.models.losses import Loss

_UNIT = 2.0**-53
_NEWTON_STEPS = 1000
_LINE_STEPS = 60
_SINGLE_ENOUGH = 1e6  # a Hessian of this condition number may be summed in single precision
_PATIENCE = 40  # steps that may pass with a Hessian of some blocks, or in single precision
_SLICE = 512  # rows whose double-precision copy stays in the cache

LARGEST_CONDITION = 1e7  # Newton steps gave up on hostile tables from 1e10 on, on none below 3e9

PRECISE = -1  # a stride: every block, in double precision whatever the features are

Record = tuple[Array, Array, Array | None]  # features, targets, weights (None: all 1)


class Records(Protocol):
    """The data as the solver sees them: sums over records at any beta."""

    def sums(
        self, beta: Array, hessian_stride: int = 0, threads: int = 1
    ) -> tuple[Array, Array | None]:
        """Return the gradient of the sum of losses; with a stride also the Hessian.

        A stride of k takes every k-th block into the Hessian, scaled up, in the precision of the
        features; ``PRECISE`` takes every block in double precision. It only steers the search.
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
        |y| at most, for the loss of the prediction 0; inf where there is no such bound.
    largest_b : float
        R_b, the largest norm that b can have.
    block_rows : int
        The most records whose gradients are added up without compensation. ``sum_blocks`` adds up
        512 at most, and these sums with compensation, however the records are cut into blocks.
    wanted : float
        A tolerance that would do; the one reached may be larger, where rounding is.

    With u = 2^-53, gamma_k = k u / (1 - k u), L_J = max Lambda_l + n c_2 B^2 and Lambda = min Lambda_l:
    the minimiser and every point that gradient descent visits have norm at most
    R = min(2 (n c_1 B + R_b) / Lambda, R_b / Lambda + sqrt(R_b^2 / Lambda^2 + 2 n l_0 / Lambda)), a
    computed gradient there errs by at most, with k the most records added up without compensation,
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

    def __post_init__(self) -> None:
        loss, ridge = self.loss, np.asarray(self.ridge)
        fine = loss.lipschitz < math.inf and loss.smoothness < math.inf
        fine = fine and ridge.ndim == 1 and ridge.size > 0 and ridge.dtype == np.float64
        fine = fine and bool(np.all((ridge > 0) & (ridge < math.inf)))
        fine = fine and all(is_whole(k) and k > 0 for k in (self.n_rows, self.block_rows))
        numbers = (self.row_bound, self.largest_b, self.wanted)
        fine = fine and all(is_real(v) and 0 <= v < math.inf for v in numbers)
        fine = fine and is_real(self.target_bound) and self.target_bound >= 0
        if not fine or not 0 < self.tolerance < math.inf:
            raise ParameterError(
                "A Problem needs a loss with bounded slope and curvature, positive ridges, counts of"
                " at least 1, and finite bounds that are not negative."
            )

    @property
    def strength(self) -> float:
        """Lambda, the strong convexity."""
        return float(self.ridge.min())

    @property
    def smoothness(self) -> float:
        """L_J."""
        bound = self.row_bound
        return float(self.ridge.max()) + self.n_rows * self.loss.smoothness * bound * bound

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
        chain = min(n, max(self.block_rows, _SLICE))
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
        condition = self.condition
        ratio = 4 * condition * (self.first_gradient / self.tolerance) ** 2
        return math.ceil(4 * condition / 3 * math.log(max(ratio, 2.0)))

    @property
    def condition(self) -> float:
        """Kappa: how much more the objective can bend in one direction than in another."""
        return self.smoothness / self.strength

    def accepts(self, gradient: Array, beta: Array) -> bool:
        """Whether the computed gradient proves that the true one is within the tolerance."""
        limit = (self.tolerance - self.gradient_error) * (1 - _gamma(len(beta) + 3))
        near = float(np.linalg.norm(beta)) <= self.radius * (1 + 2.0**-30)
        return near and float(np.linalg.norm(gradient)) <= limit


def minimise(records: Records, problem: Problem, b: Array, start: Array | None = None) -> Array:
    """Return a point at which the gradient of the perturbed objective is within the tolerance.

    ``start`` is where the search begins, 0 by default: a point near the minimiser saves steps.
    """
    found = search(records, problem, b, start)
    if found is not None:
        return found
    with _threads(len(b)) as threads, np.errstate(all="ignore"):
        return _descend(
            records, problem, b, threads, lambda beta: _newton(records, problem, b, threads, beta)
        )


def refuse_endless(owner: str, problem: Problem, largest: float = LARGEST_CONDITION) -> None:
    """Raise if no number of steps that can be run is known to be enough; from public numbers alone."""
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
    """Return a point that Newton steps reach and the tolerance accepts, or None if they don't."""
    # no floating-point warnings: they would tell of the data
    with _threads(len(b)) as threads, np.errstate(all="ignore"):
        return _newton(records, problem, b, threads, start)


def _threads(size: int) -> AbstractContextManager[int]:
    # small products are faster on one thread of BLAS, so the blocks have the threads even if few
    return block_threads(64, 8 * size * (4096 + 2 * size))


def _newton(
    records: Records, problem: Problem, b: Array, threads: int, origin: Array | None = None
) -> Array | None:
    """Return an accepted point, or None: a heuristic on which nothing rests.

    Newton steps with a line search on the slope along the step, which is exact to rounding where
    differences of the objective are not. For losses made of parabolas and lines it ends after
    finitely many steps; 20 are many, and 200 were seen for ramps of width 1e-4.
    """
    at = _Derivatives(records, problem, b, threads)
    beta: Array = np.zeros(len(b)) if origin is None else origin
    stride = max(1, problem.n_rows // max(32 * len(b), 20_000))
    if problem.smoothness > _SINGLE_ENOUGH * problem.strength:
        stride = PRECISE  # rounded to single precision a weak ridge is lost
    gradient, hessian = at(beta, stride)
    least = math.inf
    for count in range(_NEWTON_STEPS):
        if problem.accepts(gradient, beta):
            return beta
        assert hessian is not None
        hessian[np.diag_indices_from(hessian)] += problem.ridge
        try:
            factor = cho_factor(hessian, overwrite_a=True, check_finite=False)
            step = -cho_solve(factor, gradient, check_finite=False)
        except LinAlgError:  # a Hessian in single precision can be indefinite by rounding
            step = -gradient / problem.smoothness
        start, size = float(gradient @ step), float(np.linalg.norm(gradient))
        least = min(least, size)
        if not start < 0:
            if stride == PRECISE:
                return None
            stride = PRECISE  # a Hessian in single precision was nearly singular by rounding
            gradient, hessian = at(beta, stride)
            continue
        trial: Array = beta + step
        if count > _PATIENCE:
            stride = PRECISE
        gradient, hessian = at(trial, stride)
        slope, norm = float(gradient @ step), float(np.linalg.norm(gradient))
        if norm > 0.3 * size and stride > 1:
            stride //= 2  # a Hessian of more records may be better here
        if norm > 0.5 * least and not 0.5 * start <= slope <= 0:
            trial = beta + _length(at, beta, step, start, slope) * step
            gradient, hessian = at(trial, stride)
        beta = trial
    return beta if problem.accepts(gradient, beta) else None


def _length(at: _Derivatives, beta: Array, step: Array, start: float, slope: float) -> float:
    """Return a length at which the slope along the step is negative, and at most a tenth of that at 0.

    ``start`` and ``slope`` are those at the lengths 0 and 1. The objective is convex: the slope grows,
    so a negative one at the end means that the objective fell all the way, and no cycle is possible.
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
        share = min(max((wanted - at_low) / (at_high - at_low), 0.1), 0.9)  # where a chord has it
        if abs(same_side) > 1:
            share = 0.5 if low else 0.1  # chords creep along where the slope has a step
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
    """Return the point that gradient descent reaches; it does within ``most_steps``.

    After 1, 2, 4, 8 ... steps ``search_from`` may find a point that is accepted, too: Newton steps that
    gave up at 0 often succeed from there.
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
    """Gradient of the perturbed objective and, with a stride, the losses' Hessian."""

    records: Records
    problem: Problem
    b: Array
    threads: int

    def __call__(self, beta: Array, stride: int = 0) -> tuple[Array, Array | None]:
        gradient, hessian = self.records.sums(beta, stride, self.threads)
        return gradient + (self.problem.ridge * beta + self.b), hessian


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
    """Return gradient, Hessian and number of rows of one block."""
    features, targets, weights = block
    gradient, bend = CompensatedSum(len(beta)), np.empty(len(targets))
    with np.errstate(all="ignore"):  # each thread has its own
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
    """A sum of arrays that adds up its rounding errors as well, and so errs like one addition."""

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
