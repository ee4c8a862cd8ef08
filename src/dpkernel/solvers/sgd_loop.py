"""The compiled inner loop of stochastic gradient descent.

Records are processed one after the other: a scalar product, the slope of the loss, and an update of
w or, for a batch of several records, of its gradient. Records are read in place, in float64 or
float32; everything else is float64. For speed, sums may be taken in any order; the bounds on
rounding errors that the callers use hold for every order.

Compiled code is kept on disk and loaded by the next process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from dpkernel.foundations.types import Array, IntArray
from dpkernel.models.losses import Loss

_SHORT = 2048  # largest number of coordinates for which w stays in the fastest cache


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
