"""The derivative of every loss as one scalar function, which a compiler can inline.

A loss states its slope in v (the margin or the residual) as a ``Form``: a shape and four numbers.
The shapes are::

    LOGISTIC        -1 / (1 + e^v)
    RAMP            (v - a) b, clipped to [low, high]
    STEP            low where v < a, high elsewhere
    TUBE            sign(v) (|v| - a) b, where (|v| - a) b is clipped to [0, high]
    POWER_HINGE     -a (1 - v)^(a - 1) where v < 1, 0 elsewhere
    POWER_ABSOLUTE  sign(v) a |v|^(a - 1)
"""

from __future__ import annotations

import math

Form = tuple[int, float, float, float, float]  # shape, a, b, low, high

LOGISTIC, RAMP, STEP, TUBE, POWER_HINGE, POWER_ABSOLUTE = range(6)


def slope_at(shape: int, a: float, b: float, low: float, high: float, v: float) -> float:
    """Return the slope of a form at v. It is compiled, so it uses no vectors and no exceptions."""
    if shape == RAMP:
        return min(max((v - a) * b, low), high)
    if shape == LOGISTIC:
        if v < 0:
            return -1.0 / (1.0 + math.exp(v))
        e = math.exp(-v)
        return -e / (1.0 + e)
    if shape == STEP:
        return low if v < a else high
    if shape == TUBE:
        out = abs(v) - a
        if not out > 0:
            return 0.0
        return math.copysign(min(out * b, high), v)
    if shape == POWER_HINGE:
        return -a * (1.0 - v) ** (a - 1.0) if v < 1.0 else 0.0
    if v == 0.0:
        return 0.0
    return math.copysign(a * abs(v) ** (a - 1.0), v)
