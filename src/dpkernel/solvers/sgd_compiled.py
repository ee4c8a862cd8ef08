"""The loops that numba compiles; see ``sgd_output``.

There are two loops for batches of one record, which take the same steps. If records follow one
another in memory, the update of w by one record and the scalar product with the next share a loop,
so w passes through the processor once per step. Otherwise, and for long records, four steps are
taken at once, from the scalar products of four records with w and with each other, so that four
rows are loaded from memory at the same time.
"""

from __future__ import annotations

from math import inf, sqrt, trunc
from os.path import getmtime
from typing import Any

import numpy as np
from numba import njit

from dpkernel.models.losses import slope
from dpkernel.models.losses.slope import slope_at

_FAST = {"reassoc", "contract", "nsz"}  # allow any order of sums, but respect infinities and NaN

_slope = njit(inline="always")(slope_at)


def _kept(function: Any) -> Any:
    """Compile a function, and keep the code on disk if there is a place for it.

    numba compiles again if this file changes, but not if ``slope_at``, which is inlined, changes.
    Therefore the code on disk is not used if the file of ``slope_at`` is newer than this one.
    """
    options: dict[str, Any] = {"fastmath": _FAST, "nogil": True}
    try:
        older = getmtime(slope.__file__) <= getmtime(__file__) + 1
        return njit(cache=older, **options)(function)
    except (OSError, RuntimeError):  # there is no writable folder
        return njit(**options)(function)


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
    """Update w by the gradient of a batch, and reset the gradient to 0."""
    for j in range(len(w)):
        w[j] = keep * w[j] - move * gradient[j]
        gradient[j] = 0.0


@njit(fastmath=_FAST, nogil=True)
def _add(gradient: Any, pull: float, z: Any, row: int) -> None:
    for j in range(len(gradient)):
        gradient[j] += pull * z[row, j]


@njit(fastmath=_FAST, nogil=True)
def _project(w: Any, radius: float) -> None:
    squares = 0.0
    for j in range(len(w)):
        squares += w[j] * w[j]
    if squares > radius * radius:
        shrink = radius / sqrt(squares)
        for j in range(len(w)):
            w[j] *= shrink


@njit(fastmath=_FAST, nogil=True)
def _pull(
    shape: int, a: float, b: float, low: float, high: float, labels: bool, y: float, s: float
) -> float:
    """Return the derivative of the loss at the prediction s."""
    if labels:
        return y * _slope(shape, a, b, low, high, y * s)
    return -_slope(shape, a, b, low, high, y - s)


@njit(fastmath=_FAST, nogil=True)
def _eta(step: float, ridge: float, decreasing: bool, taken: int) -> float:
    """Return the length of the step that follows ``taken`` steps."""
    if decreasing:
        return min(step, 1.0 / (ridge * (taken + 1)))
    return step


@njit(fastmath=_FAST, nogil=True)
def _four(
    z: Any,
    rows: Any,
    place: int,
    y: Any,
    weights: Any,
    labels: bool,
    form: Any,
    w: Any,
    taken: int,
    step: float,
    ridge: float,
    decreasing: bool,
) -> None:
    """Take the four steps from ``place`` on: w_{i+1} = keep_i w_i - move_i z_i."""
    shape, a, b, low, high = form
    i0, i1, i2, i3 = rows[place], rows[place + 1], rows[place + 2], rows[place + 3]
    z0, z1, z2, z3 = z[i0], z[i1], z[i2], z[i3]
    s0, s1, s2, s3 = 0.0, 0.0, 0.0, 0.0
    g01, g02, g03, g12, g13, g23 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for j in range(len(w)):
        s0 += w[j] * z0[j]
        s1 += w[j] * z1[j]
        s2 += w[j] * z2[j]
        s3 += w[j] * z3[j]
        # float64 like w, in which products of float32 entries are exact
        x0, x1 = np.float64(z0[j]), np.float64(z1[j])
        x2, x3 = np.float64(z2[j]), np.float64(z3[j])
        g01 += x0 * x1
        g02 += x0 * x2
        g03 += x0 * x3
        g12 += x1 * x2
        g13 += x1 * x3
        g23 += x2 * x3
    eta = _eta(step, ridge, decreasing, taken)
    k0, m0 = 1.0 - eta * ridge, eta * weights[i0] * _pull(shape, a, b, low, high, labels, y[i0], s0)
    s1 = k0 * s1 - m0 * g01
    eta = _eta(step, ridge, decreasing, taken + 1)
    k1, m1 = 1.0 - eta * ridge, eta * weights[i1] * _pull(shape, a, b, low, high, labels, y[i1], s1)
    m0 *= k1
    s2 = k0 * k1 * s2 - m0 * g02 - m1 * g12
    eta = _eta(step, ridge, decreasing, taken + 2)
    k2, m2 = 1.0 - eta * ridge, eta * weights[i2] * _pull(shape, a, b, low, high, labels, y[i2], s2)
    m0, m1 = m0 * k2, m1 * k2
    s3 = k0 * k1 * k2 * s3 - m0 * g03 - m1 * g13 - m2 * g23
    eta = _eta(step, ridge, decreasing, taken + 3)
    k3, m3 = 1.0 - eta * ridge, eta * weights[i3] * _pull(shape, a, b, low, high, labels, y[i3], s3)
    m0, m1, m2 = m0 * k3, m1 * k3, m2 * k3
    keep = k0 * k1 * k2 * k3
    for j in range(len(w)):
        w[j] = keep * w[j] - (m0 * z0[j] + m1 * z1[j] + m2 * z2[j] + m3 * z3[j])


@_kept
def run_singly(
    z: Any,
    rows: Any,
    y: Any,
    weights: Any,
    labels: bool,
    form: Any,
    w: Any,
    counts: Any,
    n_steps: int,
    step: float,
    ridge: float,
    decreasing: bool,
    fours: bool,
) -> None:
    """Take steps of one record each, without a projection; only the last iterate is kept."""
    shape, a, b, low, high = form
    taken, ends = counts[0], min(len(rows), n_steps - counts[0])
    place = 0
    while fours and place + 4 <= ends:
        _four(z, rows, place, y, weights, labels, form, w, taken, step, ridge, decreasing)
        place += 4
        taken += 4
    s = _margin(z, rows[place], w) if place < ends else 0.0
    while place < ends:
        row = rows[place]
        following = rows[place + 1] if place + 1 < ends else row
        eta = _eta(step, ridge, decreasing, taken)
        move = eta * weights[row] * _pull(shape, a, b, low, high, labels, y[row], s)
        s = _move(w, 1.0 - eta * ridge, move, z, row, following)
        place += 1
        taken += 1
    counts[0] = taken


@_kept
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
    """Process records one after the other; see ``Steps.run``."""
    shape, a, b, low, high = form
    taken, filled = counts[0], counts[1]
    for place in range(len(rows)):
        if taken >= n_steps:
            break
        row = rows[place]
        s = _margin(z, row, w)
        pull = weights[row] * _pull(shape, a, b, low, high, labels, y[row], s)
        _add(gradient, pull, z, row)
        filled += 1
        if filled < batch and not (last and place == len(rows) - 1):
            continue
        eta = _eta(step, ridge, decreasing, taken)
        _move_by(w, 1.0 - eta * ridge, eta / batch, gradient)
        if radius < inf:
            _project(w, radius)
        if averaged:
            for j in range(len(w)):
                total[j] += w[j]
        taken += 1
        filled = 0
    counts[0], counts[1] = taken, filled


@_kept
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
    """Add the clipped integer gradients of some rows to ``out``, which has one row per problem.

    All products and sums are integers below 2^53, so they are exact in any order.
    """
    shape, a, b, low, high = form
    problems = w.shape[0]
    slopes = np.empty(problems)
    for place in range(len(rows)):
        row = rows[place]
        squares = 0.0
        for k in range(problems):
            s = _margin(z, row, w[k])
            pull = _pull(shape, a, b, low, high, labels, targets[row, k], s)
            pull *= weights[row] * unit
            slopes[k] = pull
            squares += pull * pull
        cap = caps[row]
        if not squares < 1e300:  # a slope that is NaN or too large counts as nothing
            continue
        shrink = 1.0
        if squares > cap * cap:
            shrink = cap / sqrt(squares) * (1 - 1e-12)
        for k in range(problems):
            whole = trunc(slopes[k] * shrink)
            if whole != 0.0:
                _add(out[k], whole, z, row)
