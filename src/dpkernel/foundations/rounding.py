r"""Bounds on rounding errors of float64 programs, for guarantees that have to count them.

They rest on three facts about the machine: IEEE arithmetic (every +, -, *, / and square root is the
exact result rounded to nearest, so an array operation element by element is a function of each
element, wherever it stands); matrix products in which every entry is a sum of products, in some
order, with or without fused operations (no Strassen-type kernel, no reduced precision); and
elementary functions within ``MATH_ULPS`` units in the last place.
"""

from __future__ import annotations

HALF_ULP = 2.0**-53  # u: the largest relative error of one rounding
MATH_ULPS = 8  # what is asked of tan, cos and sin; their libraries state 1 to 4
MATH_ERROR = 2 * MATH_ULPS * HALF_ULP  # the same as a relative error


def gamma(roundings: int) -> float:
    """Return k u / (1 - k u), rounded up: the relative error that k roundings in a row can reach.

    A sum of k products, in any order, errs by at most gamma(k) times the sum of their absolute
    values.
    """
    part = roundings * HALF_ULP
    if not 0 <= part < 0.01:
        raise AssertionError("an error bound for so many roundings says nothing")
    return part / (1 - part) * (1 + 1e-12)
