r"""Stochastic gradient descent whose last or averaged iterate is released with noise.

``OutputSGD`` is the public part of a run: it checks the step, bounds the gradient, the iterates and
the rounding error, and states the sensitivity. ``run`` passes over the records. The course of the
run does not depend on the data: there is no stopping rule, and no step is chosen by a loss.

Records are (z, y, weight) with weight ||z|| <= kappa and weight ||z||^2 <= kappa^2. They are processed
one after the other: a scalar product, the slope of the loss, and an update of w or, for a batch of
several records, of its gradient. Records are read in place, in float64 or float32; everything else is
float64. For speed, sums may be taken in any order; the bounds on rounding errors hold for every order.
The loops are compiled; compiled code is kept on disk and loaded by the next process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, IntArray, Neighbours
from dpkernel.models.losses import Loss
from dpkernel.privacy.sensitivity import Path, RandomSensitivity, Sensitivity
from dpkernel.privacy.sensitivity.sgd import Order

_UNIT = 2.0**-53
_BLOCK = 8192
_SHORT = 2048  # largest number of coordinates for which w stays in the fastest cache
_MOST_GROWTH = 100.0  # largest logarithm of the growth of a squared norm in one step

# one part of an epoch: z, indices into it in the order of the steps, targets, weights
Part = tuple[Array, IntArray, Array, Array]


@dataclass(frozen=True)
class OutputSGD:
    r"""A run of projected or unprojected SGD from w = 0, and what is known about it in advance.

    Parameters
    ----------
    loss : Loss
        The loss of a prediction.
    n_rows, n_coordinates : int
        The numbers of records and of coefficients.
    row_bound : float
        kappa.
    target_bound : float
        A bound c on ``|y|``; 1 for margin losses.
    batch : int
        The nominal batch size. The gradient of a short batch is also divided by it.
    n_steps : int
        The number T of steps.
    order : {"shuffle", "fixed", "replacement"}
        The order of the records; see ``sensitivity.Path``.
    step : float or None
        The length of a step. None with a ridge: min(1/(C + ridge), 1/(ridge t)), where
        C = c_2 kappa^2 is the curvature. None without a ridge: the largest step that is allowed.
    ridge : float
        The strength of the squared penalty. It needs a smooth loss with bounded slope, or a radius.
    radius : float
        w is projected on the ball of this radius; inf for no projection.
    averaged, fresh, drop_last, problems
        See ``sensitivity.Path``.

    Notes
    -----
    Gradient bound
        Let (alpha, L) be the Hölder constants of the gradient. G is c_1 kappa for a loss of bounded
        slope, M + L radius^alpha with a projection, and otherwise M + L R^alpha with
        R^2 = (T - 1) omega; after the last step R_w^2 = T omega. Here omega is
        (1 - alpha)/(1 + alpha) (L step)^(2/(1 - alpha)) + 2 step M_0 for alpha in (0, 1);
        step^2 (M + L)^2 + 2 step M_0 for alpha = 0; 2 step M_0 for alpha = 1 and a step of at most
        1/L; and c^2 step/(2 - step kappa^2) for the squared loss.
    Rounding
        Let u = 2^-53, gamma_k = k u/(1 - k u) and e = gamma_{M+16} (R_w + 4 step G) + 2 u c/kappa,
        the error of a margin over ||z||. A computed step of a smooth loss is an exact step plus
        step kappa (c_2 (kappa e + 2 u (c + kappa R_w)) + (12 u + gamma_b) G/kappa) + 4 u R_w. Exact
        steps do not expand distances, so T times this bounds the error of the run. Without
        smoothness, an inaccurate margin may flip a slope, which adds 8 step G e to c^2 in every
        step.
    """

    loss: Loss
    n_rows: int
    n_coordinates: int
    row_bound: float
    target_bound: float
    batch: int
    n_steps: int
    order: Order
    step: float | None = None
    ridge: float = 0.0
    radius: float = math.inf
    averaged: bool = False
    fresh: bool = False
    drop_last: bool = False
    problems: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.n_rows or self.n_steps < 1:
            allowed = "1 <= batch <= n_rows, and at least one step"
            raise ParameterError(
                parameter_message("SGD", "batch, steps", allowed, (self.batch, self.n_steps))
            )
        if not self.radius > 0 or not 0 <= self.ridge < math.inf:
            raise ParameterError("SGD needs a radius above 0 and a ridge that is not negative.")
        if self.ridge and not self._smooth:
            raise ParameterError(
                f"SGD with a ridge needs a smooth loss: {self.loss.kind} is not. Take a smoothed one,"
                " or no ridge."
            )
        if not 0 < self.eta <= self.largest_step:
            allowed = f"at most {self.largest_step:.6g}, up to which the proof holds"
            raise ParameterError(parameter_message("SGD", "step", allowed, self.step))

    @property
    def _smooth(self) -> bool:
        return self.loss.holder(self.row_bound)[0] == 1.0

    @property
    def _curvature(self) -> float:
        """C, the Lipschitz constant of the gradient of a record (for smooth losses)."""
        return self.loss.holder(self.row_bound)[1]

    @property
    def _bounded(self) -> bool:
        """Whether the bound on the gradient holds without a bound on the iterates."""
        return self.loss.lipschitz < math.inf or self.radius < math.inf

    @property
    def largest_step(self) -> float:
        """The largest step for which the proof holds."""
        if not self._smooth:  # keeps expansion and growth far below the largest float
            alpha, L = self.loss.holder(self.row_bound)
            return min(1e6, math.exp(_MOST_GROWTH * (1 - alpha) / 2) / L)
        if self.ridge:
            return 1 / (self._curvature + self.ridge)
        return (2.0 if self._bounded else 1.0) / self._curvature

    @property
    def eta(self) -> float:
        """The constant step, or the largest step if steps decrease."""
        if self.step is not None:
            return float(self.step)
        if not self._smooth:
            return min(1.0 / math.sqrt(self.n_steps), self.largest_step)
        return min(self.largest_step, 1 / self._curvature) * (1 - 1e-12)

    @property
    def decreasing(self) -> bool:
        """Whether steps decrease, as they do with a ridge unless a step is given."""
        return bool(self.ridge) and self.step is None

    @property
    def norm_bound(self) -> float:
        """R_w, a bound on the norm of every iterate, including the last one."""
        return self._norm_after(self.n_steps)

    def _norm_after(self, steps: int) -> float:
        found = self.radius
        if self.loss.lipschitz < math.inf:
            slope = self.loss.lipschitz * self.row_bound
            found = min(found, self.eta * slope * steps)
            if self.ridge:
                found = min(found, slope / self.ridge)
        if not self.ridge and self.eta <= self._self_bounding_step:
            found = min(found, math.sqrt(steps * self._growth))
        if not found < math.inf:
            raise ParameterError(
                f"SGD with a ridge and the loss {self.loss.kind} needs a radius, or a loss of bounded"
                " slope such as huber."
            )
        return found * (1 + 1e-9)

    @property
    def _self_bounding_step(self) -> float:
        return 1 / self._curvature if self._smooth else math.inf

    @property
    def _growth(self) -> float:
        """omega, the largest growth of the squared norm of an iterate in a step."""
        alpha, L = self.loss.holder(self.row_bound)
        c, eta = self.target_bound, self.eta
        start = float(self.loss.at_zero(c))
        if self.loss.kind == "squared":
            return c**2 * eta / (2 - eta * self.row_bound**2)
        if alpha == 1:
            return 2 * eta * start
        if alpha == 0:
            first = self.loss.slope_at_zero(c) * self.row_bound
            most = min(first + L, self.loss.lipschitz * self.row_bound)
            return eta**2 * most**2 + 2 * eta * start
        power = 2 / (1 - alpha) * math.log(L * eta)
        return (1 - alpha) / (1 + alpha) * math.exp(power) + 2 * eta * start

    @property
    def gradient(self) -> float:
        """G, a bound on the norm of the gradient of one record at every iterate."""
        if self.loss.lipschitz < math.inf:
            return self.loss.lipschitz * self.row_bound
        alpha, L = self.loss.holder(self.row_bound)
        first = self.loss.slope_at_zero(self.target_bound) * self.row_bound
        before_last = self._norm_after(self.n_steps - 1)  # no gradient is taken at the last iterate
        return float((first + L * before_last**alpha) * (1 + 1e-9))

    @property
    def expansion(self) -> float:
        """c^2, the largest growth of the squared distance of two runs in a step on common records."""
        alpha, L = self.loss.holder(self.row_bound)
        if alpha == 1:
            return 0.0
        power = 2 / (1 - alpha) * (math.log(L * self.eta) - alpha * math.log(2))
        exact = (1 - alpha) / (1 + alpha) * math.exp(power)
        flips = 8 * self.eta * self.gradient * self._margin_error
        return (exact + flips) * (1 + 1e-9)

    @property
    def _margin_error(self) -> float:
        """A bound on the error of <z, w>, divided by ||z||.

        If four steps are taken at once, <z, w> is computed from an iterate up to three steps back
        and from scalar products with the records in between, each of which moved w by at most step
        G. Subtracting the target adds one rounding.
        """
        reach = self.norm_bound + 4 * self.eta * self.gradient
        return (
            _gamma(self.n_coordinates + 16) * reach + 2 * _UNIT * self.target_bound / self.row_bound
        )

    @property
    def rounding(self) -> float:
        """A bound on the distance of the computed from the exact output, for every data set.

        For a loss that is not smooth, errors that ``expansion`` covers are left out.
        """
        reach, kappa, eta, steps = self.norm_bound, self.row_bound, self.eta, self.n_steps
        slopes = (12 * _UNIT + _gamma(self.batch)) * self.gradient / kappa
        if self._smooth:
            residual = 2 * _UNIT * (self.target_bound + kappa * reach)
            slopes += self.loss.smoothness * (kappa * self._margin_error + residual)
        keep = 4 * _UNIT
        if self.radius < math.inf:
            keep += _gamma(self.n_coordinates + 4)
        total = steps * 1.01 * (eta * kappa * slopes + keep * reach)
        if self.averaged:
            total += _gamma(steps + 2) * reach
        return total * math.sqrt(self.problems)

    @property
    def path(self) -> Path:
        """The public description of the run, from which the sensitivity follows."""
        return Path(
            n_rows=self.n_rows,
            batch=self.batch,
            steps=self.n_steps,
            order=self.order,
            gradient=self.gradient,
            step=self.eta,
            ridge=self.ridge,
            decreasing=self.decreasing,
            expansion=self.expansion,
            averaged=self.averaged,
            fresh=self.fresh,
            drop_last=self.drop_last,
            problems=self.problems,
        )

    def sensitivity(self, neighbours: Neighbours) -> Sensitivity | RandomSensitivity:
        """Return how far the output of all problems together moves, as a number or a random law."""
        return self.path.sensitivity(neighbours)

    @property
    def epochs(self) -> int:
        """The number of passes over the rows; the last one may be incomplete."""
        return self.path.hits

    def run(
        self, epochs: Iterable[Iterable[Part]], progress: Callable[[int], None] | None = None
    ) -> Array:
        """Return the output for one problem.

        Parameters
        ----------
        epochs : iterable of passes
            Each pass yields the records in the order of the steps, in parts of any size.
        progress : callable, optional
            Called after every part with the number of steps taken so far, which is public.
        """
        steps = Steps(
            self.loss,
            self.batch,
            self.n_steps,
            self.eta,
            self.ridge,
            self.decreasing,
            self.radius,
            self.averaged,
        )
        state = RunState.start(self.n_coordinates)
        for epoch in epochs:
            if self.drop_last:
                state.drop_batch()
            for (z, rows, y, weights), last in _with_last(epoch):
                steps.run(state, z, rows, y, weights, last and not self.drop_last)
                if progress is not None:
                    progress(state.steps)
            if state.steps >= self.n_steps:
                break
        assert state.steps == self.n_steps  # does not depend on data: it follows from the sizes
        return state.total / self.n_steps if self.averaged else state.weights


def _with_last(parts: Iterable[Part]) -> Iterator[tuple[Part, bool]]:
    """Yield every part that holds records, and whether it is the last one."""
    waiting: Part | None = None
    for part in parts:
        if not len(part[1]):  # as the last part it would leave a short batch open
            continue
        if waiting is not None:
            yield waiting, False
        waiting = part
    if waiting is not None:
        yield waiting, True


def _gamma(count: int) -> float:
    return count * _UNIT / (1 - count * _UNIT)


def public_orders(plan: OutputSGD, seed: int) -> Iterator[IntArray]:
    """Yield one permutation per epoch. The seed is public, so no noise calibration may rely on it."""
    draws = np.random.default_rng(seed)
    for _ in range(plan.epochs):
        yield draws.permutation(plan.n_rows)


def in_parts(rows: IntArray) -> Iterator[IntArray]:
    """Yield indices a few thousand at a time, so that progress can be reported."""
    for start in range(0, len(rows), _BLOCK):
        yield np.ascontiguousarray(rows[start : start + _BLOCK])


# --- the inner loop ----------------------------------------------------------------------------------


@dataclass
class RunState:
    """The state of a run between two blocks of records."""

    weights: Array
    total: Array  # the sum of the iterates, if they are averaged
    gradient: Array  # the gradient of the batch that is being filled
    counts: IntArray = field(default_factory=lambda: np.zeros(2, np.int64))  # steps, records

    @classmethod
    def start(cls, n_coordinates: int) -> RunState:
        """Return the state before the first step, with w = 0."""
        return cls(np.zeros(n_coordinates), np.zeros(n_coordinates), np.zeros(n_coordinates))

    @property
    def steps(self) -> int:
        """The number of steps taken so far."""
        return int(self.counts[0])

    def drop_batch(self) -> None:
        """Forget a batch that was not filled."""
        self.counts[1] = 0
        self.gradient[:] = 0.0


@dataclass(frozen=True)
class Steps:
    """The public parameters of a run.

    Parameters
    ----------
    loss : Loss
        The loss of a prediction.
    batch, n_steps : int
        The number of records per step, and the number of steps.
    step : float
        The constant step, or the largest step if steps decrease.
    ridge : float
        The strength of the squared penalty.
    decreasing : bool
        Whether steps are at most 1/(ridge t).
    radius : float
        w is projected on the ball of this radius after every step; inf for no projection.
    averaged : bool
        Whether the iterates are averaged.
    """

    loss: Loss
    batch: int
    n_steps: int
    step: float
    ridge: float
    decreasing: bool
    radius: float
    averaged: bool

    def run(
        self, state: RunState, z: Array, rows: IntArray, y: Array, weights: Array, last: bool
    ) -> None:
        """Process the records ``rows`` of a block in this order; ``last`` completes a short batch.

        z holds one record per row. y and the weights of the records, in [0, 1], are indexed like z.
        """
        if self.batch == 1 and self.radius == math.inf and not self.averaged:
            in_line = len(rows) > 1 and int(rows[-1] - rows[0]) == len(rows) - 1
            fours = not in_line or z.shape[1] > _SHORT
            _compiled("run_singly")(
                z, rows, y, weights, self.loss.labels, self.loss.form, state.weights, state.counts,
                self.n_steps, self.step, self.ridge, self.decreasing, fours,
            )  # fmt: skip
            return
        _compiled("run")(
            z, rows, y, weights, self.loss.labels, self.loss.form, state.weights, state.total,
            state.gradient, state.counts, self.batch, self.n_steps, self.step, self.ridge,
            self.decreasing, self.radius, self.averaged, last,
        )  # fmt: skip


@cache
def _compiled(name: str) -> Any:
    """Return a compiled loop. numba is imported only when it is needed, because that takes time."""
    return getattr(import_module("dpkernel.solvers.sgd_compiled"), name)
