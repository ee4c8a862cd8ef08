"""What numba compiles: see ``sgd_loop``.

For batches of one the update of w by a record and the scalar product with the next one share a loop:
w passes through the processor once a step, not twice.
"""

from __future__ import annotations

from math import inf, sqrt, trunc
from typing import Any

import numpy as np
from numba import njit

from dpkernel.losses.slope import slope_at

_FAST = {"reassoc", "contract", "nsz"}  # sums in any order; infinities and NaN keep their meaning

_slope = njit(inline="always")(slope_at)


@njit(fastmath=_FAST, nogil=True)
def _margin(z: Any, row: int, w: Any) -> float:
    found = 0.0
    for j in range(len(w)):
        found += z[row, j] * w[j]
    return found


@njit(fastmath=_FAST, nogil=True)
def _move(w: Any, keep: float, move: float, z: Any, row: int, following: int) -> float:
    """Update w by one record and return the scalar product with the following one."""
    found = 0.0
    if keep == 1.0:
        for j in range(len(w)):
            moved = w[j] - move * z[row, j]
            w[j] = moved
            found += moved * z[following, j]
    else:
        for j in range(len(w)):
            moved = keep * w[j] - move * z[row, j]
            w[j] = moved
            found += moved * z[following, j]
    return found


@njit(fastmath=_FAST, nogil=True)
def _move_by(w: Any, keep: float, move: float, gradient: Any) -> None:
    """Update w by the gradient of a batch, which starts again at 0."""
    for j in range(len(w)):
        w[j] = keep * w[j] - move * gradient[j]
        gradient[j] = 0.0


@njit(fastmath=_FAST, nogil=True)
def _add(gradient: Any, pull: float, z: Any, row: int) -> None:
    for j in range(len(gradient)):
        gradient[j] += pull * z[row, j]


@njit(fastmath=_FAST, nogil=True)
def _projected(w: Any, radius: float) -> float:
    """Project w on the ball and return the factor."""
    squares = 0.0
    for j in range(len(w)):
        squares += w[j] * w[j]
    if not squares > radius * radius:
        return 1.0
    shrink = radius / sqrt(squares)
    for j in range(len(w)):
        w[j] *= shrink
    return shrink


@njit(fastmath=_FAST, nogil=True, cache=True)
def run(
    z: Any,
    rows: Any,
    y: Any,
    weights: Any,
    labels: bool,
    form: Any,
    w: Any,
    total: Any,
    gradient: Any,
    counts: Any,
    batch: int,
    n_steps: int,
    step: float,
    ridge: float,
    decreasing: bool,
    radius: float,
    averaged: bool,
    last: bool,
) -> None:
    """Take records one after the other; see ``Steps.run``."""
    shape, a, b, low, high = form
    taken, filled = counts[0], counts[1]
    ends = len(rows)
    known = False  # whether ``s`` is the scalar product with this record
    s = 0.0
    for place in range(ends):
        if taken >= n_steps:
            break
        row = rows[place]
        if not known:
            s = _margin(z, row, w)
        if labels:
            pull = y[row] * _slope(shape, a, b, low, high, y[row] * s)
        else:
            pull = -_slope(shape, a, b, low, high, y[row] - s)
        pull *= weights[row]
        if batch > 1:
            _add(gradient, pull, z, row)
            known = False
        filled += 1
        if filled < batch and not (last and place == ends - 1):
            continue
        eta = step
        if decreasing:
            eta = min(step, 1.0 / (ridge * (taken + 1)))
        keep = 1.0 - eta * ridge
        if batch == 1:
            following = rows[place + 1] if place + 1 < ends else row
            s = _move(w, keep, eta * pull, z, row, following)
            known = True
        else:
            _move_by(w, keep, eta / batch, gradient)
        if radius < inf:
            s *= _projected(w, radius)
        if averaged:
            for j in range(len(w)):
                total[j] += w[j]
        taken += 1
        filled = 0
    counts[0], counts[1] = taken, filled


@njit(fastmath=_FAST, nogil=True, cache=True)
def gradient_sum(
    z: Any,
    rows: Any,
    targets: Any,
    weights: Any,
    caps: Any,
    labels: bool,
    form: Any,
    w: Any,
    unit: float,
    out: Any,
) -> None:
    """Add the clipped integer gradients of some rows to ``out``, one row of it a problem.

    Every product and every sum is of integers below 2^53: exact, in any order.
    """
    shape, a, b, low, high = form
    problems = w.shape[0]
    slopes = np.empty(problems)
    for place in range(len(rows)):
        row = rows[place]
        squares = 0.0
        for k in range(problems):
            s = _margin(z, row, w[k])
            y = targets[row, k]
            if labels:
                pull = y * _slope(shape, a, b, low, high, y * s)
            else:
                pull = -_slope(shape, a, b, low, high, y - s)
            pull *= weights[row] * unit
            slopes[k] = pull
            squares += pull * pull
        cap = caps[row]
        if (
            not squares < 1e300
        ):  # a slope that is no number, or beyond all bounds: it counts nothing
            continue
        shrink = 1.0
        if squares > cap * cap:
            shrink = cap / sqrt(squares) * (1 - 1e-12)
        for k in range(problems):
            whole = trunc(slopes[k] * shrink)
            if whole != 0.0:
                _add(out[k], whole, z, row)
