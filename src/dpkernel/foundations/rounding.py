r"""Bounds on the rounding errors of float64 programs, for guarantees that must include them.

They assume three things of the machine:

- IEEE arithmetic: the result of every ``+``, ``-``, ``*``, ``/`` and square root is the exact
  result rounded to nearest. So an elementwise array operation is a function of each element,
  wherever it stands.
- Matrix products in which every entry is a sum of products, in some order, with or without fused
  operations: no Strassen-type kernel and no reduced precision.
- Elementary functions that are accurate to ``MATH_ULPS`` units in the last place.
"""

from __future__ import annotations

HALF_ULP = 2.0**-53  # u: the largest relative error of one rounding
MATH_ULPS = 8  # required of tan, cos and sin; their libraries state 1 to 4
MATH_ERROR = 2 * MATH_ULPS * HALF_ULP  # the same as a relative error


def gamma(roundings: int) -> float:
    """Return k u / (1 - k u), rounded up: the largest relative error of k roundings in a row.

    A sum of k products, in any order, errs by at most gamma(k) times the sum of their absolute
    values.

    Parameters
    ----------
    roundings : int
        The number k.
    """
    part = roundings * HALF_ULP
    if not 0 <= part < 0.01:
        raise AssertionError("an error bound for so many roundings says nothing")
    return part / (1 - part) * (1 + 1e-12)
