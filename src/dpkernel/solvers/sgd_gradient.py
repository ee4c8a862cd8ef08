r"""Noisy projected gradient descent: every step releases a sum of clipped gradients.

For a loss of <w, z>, the gradient of a record is a number times z, so clipping the gradient means
clipping this number. The gradient of a single record is never formed. Rows and numbers are
integers, ::

    g_i = s_i z_i,  z_i = rint(z rows_unit),  s_i = an integer with |s_i| ||z_i|| <= C_int,

so their sum is exact in any order, and the noise is a discrete Gaussian on the integers. For a margin,
w is first rounded to multiples of 2^-29 of its length (``GradientSGD.on_grid``), so <w, z_i> is exact
in any order, too. So s_i depends only on its own record and w. In a random batch this is needed:
where a device adds up the terms of a margin in an order that depends on the size of the batch or on the
place of the record, one record would change the last bits of the margins of others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.threads import block_threads, in_threads
from dpkernel.foundations.types import Array, IntArray
from dpkernel.models.losses import Loss

ROW_STEPS = 2**17  # integer norm of a row of norm kappa
_SLOPE_STEPS = 2**14  # integer value of the largest slope
LONGEST = 2**23  # integers up to here are exact in float32; a longer row counts as nothing
_CHUNK = 4096
_GRID_BITS = 29  # of w, for exact products with integer rows
_FAR = 1e150  # limit for coefficients that a float could not hold

Query = Callable[[IntArray | None], IntArray]  # from a batch (None for all rows) to its exact sum


@dataclass(frozen=True)
class GradientSGD:
    """A run of noisy projected gradient descent from w = 0; everything here is public.

    Parameters
    ----------
    loss : Loss
        The loss of a prediction.
    n_coordinates : int
        The number of coefficients per problem.
    row_bound : float
        kappa, a bound on the norm of a row, which determines the unit of the rows.
    clip : float
        C, the norm to which the gradient of a record is clipped (for all problems together).
    batch : float
        The divisor of the sums: n for full batches, otherwise the fixed or the mean size.
    n_steps : int
        The number of steps.
    step : float
        The length of a step.
    ridge : float
        The strength of the squared penalty. Its gradient is added without noise, because it does
        not depend on the data.
    radius : float
        w is projected on the ball of this radius; inf for no projection.
    averaged : bool
        Whether to return the mean of all iterates instead of the last one.
    problems : int
        The number of vectors that are fitted together.
    momentum : float
        Gradients are taken at w_t + momentum (w_t - w_{t-1}), as in Nesterov's method, so fewer
        noisy steps reach as far. This is post-processing, like everything done with a noisy
        gradient.
    """

    loss: Loss
    n_coordinates: int
    row_bound: float
    clip: float
    batch: float
    n_steps: int
    step: float
    ridge: float = 0.0
    radius: float = math.inf
    averaged: bool = False
    problems: int = 1
    momentum: float = 0.0

    def __post_init__(self) -> None:
        numbers = {"clip": self.clip, "step": self.step, "radius": self.radius}
        for name, value in numbers.items():
            if not value > 0 or (name != "radius" and not value < math.inf):
                allowed = "a float in the range (0, inf)"
                raise ParameterError(
                    parameter_message("gradient perturbation", name, allowed, value)
                )
        fine = 0 <= self.ridge * self.step <= 1 and 0 <= self.momentum < 1 and self.n_steps >= 1
        if not fine:
            raise ParameterError(
                "Gradient perturbation needs one step or more, a ridge of at most 1 / step and a"
                " momentum in [0, 1)."
            )

    @property
    def row_unit(self) -> float:
        """The number of integer steps per unit of z."""
        return ROW_STEPS / self.row_bound

    @property
    def slope_unit(self) -> float:
        """The number of integer steps per unit of slope: 2^14 for a gradient at the clipping norm."""
        return _SLOPE_STEPS * self.row_bound / self.clip

    @property
    def clip_steps(self) -> int:
        """C_int, the bound on the norm of the integer gradient of a record."""
        return math.floor(self.clip * self.row_unit * self.slope_unit)

    def on_grid(self, w: Array) -> Array:
        """Return w for integer rows, on a grid on which a product with such a row is not rounded.

        A row is shorter than 2^23 steps and w is at most 2^29 steps long, so no partial sum of their
        product has more than 2^52 steps.
        """
        scaled = w / self.row_unit
        largest = np.max(np.abs(scaled), axis=1, keepdims=True)
        longer = math.ceil(math.log2(w.shape[1]) / 2)  # than its largest entry, in bits
        bits = _GRID_BITS - longer - np.frexp(largest)[1]
        return np.asarray(np.ldexp(np.rint(np.ldexp(scaled, bits)), -bits))

    def rows(self, z: Array) -> tuple[Array, Array]:
        """Return rows as integers (stored exactly in float32) and the largest factor for each."""
        with np.errstate(all="ignore"):  # a warning would reveal something about the data
            whole = np.rint(z.astype(np.float64) * self.row_unit)
            squares = np.add.reduce(whole * whole, axis=1)
        strange = ~(squares < float(LONGEST) ** 2)
        whole[strange] = 0.0
        norms = np.sqrt(np.where(strange, 0.0, squares)) * (1 + 1e-12)
        caps = np.floor(self.clip_steps / np.maximum(norms, 1.0))
        return whole.astype(np.float32), caps

    def run(
        self,
        query: Callable[[Array], Query],
        release: Callable[[Query], Array],
        progress: Callable[[int], None] | None = None,
    ) -> Array:
        """Return the coefficients, with one row per problem.

        Parameters
        ----------
        query : callable
            Takes w and returns the function that sums clipped gradients there.
        release : callable
            Calls that function on a batch of its choice and returns the sum with noise.
        progress : callable, optional
            Called with the number of steps taken so far.
        """
        w = np.zeros((self.problems, self.n_coordinates))
        total = np.zeros_like(w)
        unit = self.step / (self.batch * self.row_unit * self.slope_unit)
        ahead = w
        for t in range(self.n_steps):
            noisy = release(query(ahead)).reshape(w.shape)
            with np.errstate(all="ignore"):  # steps that are far too long may overflow
                moved = (1 - self.step * self.ridge) * ahead - unit * noisy
                norms = np.sqrt(np.sum(moved * moved, axis=1, keepdims=True))
                moved = moved * np.minimum(1.0, self.radius / np.maximum(norms, 1e-300))
                moved = np.nan_to_num(moved, nan=0.0, posinf=_FAR, neginf=-_FAR)
                ahead = moved + self.momentum * (moved - w)
                ahead = np.nan_to_num(ahead, nan=0.0, posinf=_FAR, neginf=-_FAR)
                w = moved
                total += w
            if progress is not None:
                progress(t + 1)
        return total / self.n_steps if self.averaged else w


@dataclass(frozen=True)
class Block:
    """Some records: integer rows, targets (one column per problem), weights and caps."""

    z: Array
    targets: Array
    weights: Array
    caps: Array

    def sums(self, plan: GradientSGD, w: Array, rows: IntArray | None) -> IntArray:
        """Return the exact sum of the clipped integer gradients of these rows (None for all)."""
        indices = np.arange(len(self.z)) if rows is None else np.ascontiguousarray(rows)
        scaled = plan.on_grid(w)

        def part(start: int) -> IntArray:
            out = np.zeros(w.shape)
            _compiled()(
                self.z, indices[start : start + _CHUNK], self.targets, self.weights, self.caps,
                plan.loss.labels, plan.loss.form, scaled, plan.slope_unit, out,
            )  # fmt: skip
            return out.astype(np.int64)

        total = np.zeros(w.shape, np.int64)
        starts = [(start,) for start in range(0, len(indices), _CHUNK)]
        if len(starts) < 4:  # threads would cost more time than they save
            for (start,) in starts:
                total += part(start)
            return total
        with block_threads(len(starts), w.nbytes) as threads:
            for found in in_threads(part, starts, threads):
                total += found
        return total


@cache
def _compiled() -> Any:
    from dpkernel.solvers.sgd_compiled import gradient_sum

    return gradient_sum
