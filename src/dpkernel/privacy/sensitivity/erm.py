r"""How far the minimiser of a regularised risk moves when one record changes.

The minimiser of sum_i omega_i loss(y_i, <h_i, beta>) + R(beta), where R has strong convexity
``strength``, omega_i is in [0, 1] and omega_i ||h_i|| <= ``row``. For the mean form
(1/m) sum_i loss + lambda Omega with a gamma-strongly convex Omega the strength is lambda gamma m
(gamma = 2 for ||f||^2). All bounds hold in a reproducing kernel space with row^2 >= k(x, x). Adding up
the two strong-convexity inequalities at the minimisers f and g of neighbouring data sets gives

    strength ||f - g||^2 <= [loss(g; z) - loss(f; z)] + [loss(f; z') - loss(g; z')],

one bracket for each record that is there on one side only: two for a replaced record, one for a
blanked, added or removed one. Neither smoothness nor differentiability is used. A slope bounds a bracket
by slope row ||f - g||, and a bounded loss by its bound.

``problems`` minimisers on the same records, released as one vector, move sqrt(problems) times as far.
A computed minimiser at which the gradient is at most ``tolerance``, for every data set, is off by
tolerance / strength on either side.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpkernel.foundations.types import Neighbours
from dpkernel.privacy.sensitivity.base import Parameters, Sensitivity, formula, round_up

_UP = 1 + 1e-12  # covers the rounding of a few dozen operations
_CELLS = 20_000
_SEPARATE = 0.32476  # above 3 sqrt(3) / 16, the largest a sqrt(a (1 - a))


def erm_lipschitz(
    neighbours: Neighbours,
    *,
    slope: float,
    row: float,
    strength: float,
    problems: int = 1,
    tolerance: float = 0.0,
) -> Sensitivity:
    """Return that of a loss with slopes of at most ``slope``: 2 slope row / strength, or half of it.

    Attained by losses that are linear where the minimisers lie, such as the hinge. Several problems
    with different slopes count as one with the root of the sum of their squares.
    """
    values = {"slope": slope, "row": row}
    return _erm("erm-lipschitz", neighbours, values, strength, problems, tolerance)


def erm_bounded(
    neighbours: Neighbours,
    *,
    bound: float,
    strength: float,
    problems: int = 1,
    tolerance: float = 0.0,
) -> Sensitivity:
    """Return that of a loss in [0, bound]: sqrt(2 bound / strength), without the 2 for one record.

    The bound has to hold at every minimiser and every record of the domain.
    """
    return _erm("erm-bounded", neighbours, {"bound": bound}, strength, problems, tolerance)


def erm_ridge(
    neighbours: Neighbours,
    *,
    row: float,
    target: float,
    strength: float,
    n_rows: int,
    problems: int = 1,
    tolerance: float = 0.0,
) -> Sensitivity:
    r"""Return that of least squares, sum_i (y_i - <h_i, beta>)^2 / 2 + strength ||beta||^2 / 2.

    With |y| <= target = M, kappa = row and rho = kappa sqrt(n_rows / strength) it is
    (kappa M / strength) min(2 + rho / 2, 2 psi(rho)) for a replaced record and
    (kappa M / strength) psi(rho) for one, psi(rho) = max_a a (1 + rho sqrt(a (1 - a))) computed from
    above. Under add-remove ``n_rows`` is a public bound.
    """
    values = {"row": row, "target": target, "n_rows": n_rows}
    return _erm("erm-ridge", neighbours, values, strength, problems, tolerance)


def erm_prediction(minimiser: Sensitivity, *, reach: float, norm: str = "l1") -> Sensitivity:
    """Return that of one value f(x) = <f, phi(x)>, ||phi(x)|| <= reach: reach times the minimiser's.

    Of a single number, so in every norm. It protects one prediction, never a function.
    """
    values = {**dict(minimiser.parameters), "reach": float(reach)}
    return Sensitivity("erm-prediction", minimiser.neighbours, tuple(values.items()), norm)


def _erm(
    name: str,
    neighbours: Neighbours,
    values: dict[str, float],
    strength: float,
    problems: int,
    tolerance: float,
) -> Sensitivity:
    rest = {"strength": strength, "problems": problems, "tolerance": tolerance}
    parameters = tuple((key, float(value)) for key, value in {**values, **rest}.items())
    return Sensitivity(name, neighbours, parameters)


@lru_cache(maxsize=256)
def psi(rho: float) -> float:
    """Return max over 0 <= a <= 1 of a (1 + rho sqrt(a (1 - a))), from above.

    A maximum on a grid would be a lower bound: each cell counts with its right end and the largest
    root on it.
    """
    a = np.linspace(0.0, 1.0, _CELLS + 1)  # 1/2 is one of these
    root = np.sqrt(a * (1 - a))
    cells = a[1:] * (1 + rho * np.maximum(root[1:], root[:-1]))
    return min(float(cells.max()), 1 + _SEPARATE * rho) * _UP


def _records(neighbours: Neighbours) -> int:
    return 2 if neighbours is Neighbours.REPLACE_ONE else 1


def _common(p: Parameters, *names: str) -> tuple[float, ...] | None:
    """Return the named values and strength, problems, tolerance; None if one makes no sense."""
    found = tuple(float(p[name]) for name in (*names, "strength", "problems", "tolerance"))
    *values, strength, problems, tolerance = found
    fine = all(0 <= v < math.inf for v in (*values, tolerance))
    fine = fine and 0 < strength < math.inf and 1 <= problems < 2**53
    return found if fine else None


@formula("erm-lipschitz")
def _lipschitz(neighbours: Neighbours, p: Parameters) -> float:
    given = _common(p, "slope", "row")
    if given is None:
        return math.nan
    slope, row, strength, problems, tolerance = map(Fraction, given)
    once = (_records(neighbours) * slope * row + 2 * tolerance) / strength
    return round_up(once * _root(problems))


@formula("erm-bounded")
def _bounded(neighbours: Neighbours, p: Parameters) -> float:
    given = _common(p, "bound")
    if given is None:
        return math.nan
    bound, strength, problems, tolerance = given
    once = math.sqrt(_records(neighbours) * bound / strength) + 2 * tolerance / strength
    return once * math.sqrt(problems) * _UP


@formula("erm-ridge")
def _ridge(neighbours: Neighbours, p: Parameters) -> float:
    given = _common(p, "row", "target", "n_rows")
    if given is None:
        return math.nan
    row, target, n_rows, strength, problems, tolerance = given
    rho = row * math.sqrt(n_rows / strength) * _UP
    factor = psi(rho)
    if neighbours is Neighbours.REPLACE_ONE:
        factor = min(2 + rho / 2, 2 * factor)
    return (row * target * factor + 2 * tolerance) / strength * math.sqrt(problems) * _UP


@formula("erm-prediction", "l1", "l2")
def _prediction(neighbours: Neighbours, p: Parameters) -> float:
    rule = _lipschitz if "slope" in p else _ridge if "target" in p else _bounded
    reach, moved = float(p["reach"]), rule(neighbours, p)
    if not (0 <= reach < math.inf and moved < math.inf):
        return math.nan
    return round_up(Fraction(reach) * Fraction(moved))


def _root(number: Fraction) -> Fraction:
    """Return a number that is not below the square root."""
    near = math.sqrt(float(number))
    return Fraction(near if Fraction(near) ** 2 >= number else math.nextafter(near, math.inf))
