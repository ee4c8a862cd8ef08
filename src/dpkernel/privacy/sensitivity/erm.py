r"""How far the minimiser of a regularised risk moves when one record changes.

The minimiser of sum_i omega_i loss(y_i, <h_i, beta>) + R(beta) is considered, where R has strong
convexity ``strength``, omega_i is in [0, 1] and omega_i ||h_i|| <= ``row``. For the mean form
(1/m) sum_i loss + lambda Omega with a gamma-strongly convex Omega, the strength is lambda gamma m
(gamma = 2 for ||f||^2). All bounds also hold in a reproducing kernel space with row^2 >= k(x, x).

Adding up the two strong-convexity inequalities at the minimisers f and g of neighbouring data sets
gives ::

    strength ||f - g||^2 <= [loss(g; z) - loss(f; z)] + [loss(f; z') - loss(g; z')],

with one bracket for each record that is present on one side only: two for a replaced record, one
for a blanked, added or removed record. Neither smoothness nor differentiability is used. A bound on
the slope bounds a bracket by slope row ||f - g||, and a bounded loss bounds it by its bound.

If ``problems`` minimisers on the same records are released as one vector, it moves sqrt(problems)
times as far. If the gradient at a computed minimiser is at most ``tolerance`` for every data set,
the computed minimiser is off by at most tolerance / strength on either side.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpkernel.foundations.types import Neighbours
from dpkernel.privacy.sensitivity.base import UP, Parameters, Sensitivity, formula, round_up

_CELLS = 20_000
_SEPARATE = 0.32476  # slightly above 3 sqrt(3) / 16, the maximum of a sqrt(a (1 - a))


def erm_lipschitz(
    neighbours: Neighbours,
    *,
    slope: float,
    row: float,
    strength: float,
    problems: int = 1,
    tolerance: float = 0.0,
) -> Sensitivity:
    """Return the sensitivity for a loss with slopes of at most ``slope``.

    It is 2 slope row / strength for a replaced record and half of that otherwise. Losses that are
    linear near the minimisers, such as the hinge, attain it. Several problems with different slopes
    count as one with the root of the sum of their squares.

    Parameters
    ----------
    neighbours : Neighbours
        The neighbouring relation.
    slope : float
        A bound on the slope of the loss.
    row : float
        A bound on the norm of a row.
    strength : float
        The strong convexity of the regulariser.
    problems : int
        The number of minimisers on the same records that are released as one vector.
    tolerance : float
        A bound on the gradient at the computed minimiser, for every data set.
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
    """Return the sensitivity for a loss with values in [0, bound].

    It is sqrt(2 bound / strength) for a replaced record, and without the factor 2 otherwise. The
    bound must hold at every minimiser and for every record of the domain.

    Parameters
    ----------
    neighbours : Neighbours
        The neighbouring relation.
    bound : float
        The largest value of the loss.
    strength, problems, tolerance
        See ``erm_lipschitz``.
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
    r"""Return the sensitivity of ridge regression.

    The objective is sum_i (y_i - <h_i, beta>)^2 / 2 + strength ||beta||^2 / 2. With
    ``|y| <= target = M``, kappa = row and rho = kappa sqrt(n_rows / strength), the sensitivity is
    (kappa M / strength) min(2 + rho / 2, 2 psi(rho)) for a replaced record and
    (kappa M / strength) psi(rho) otherwise, where psi(rho) = max_a a (1 + rho sqrt(a (1 - a))) is
    computed from above. Under add-remove, ``n_rows`` is a public bound on the number of rows.

    Parameters
    ----------
    neighbours : Neighbours
        The neighbouring relation.
    row, target : float
        Bounds on the norm of a row and on the absolute value of a target.
    n_rows : int
        The number of rows.
    strength, problems, tolerance
        See ``erm_lipschitz``.
    """
    values = {"row": row, "target": target, "n_rows": n_rows}
    return _erm("erm-ridge", neighbours, values, strength, problems, tolerance)


def erm_prediction(minimiser: Sensitivity, *, reach: float, norm: str = "l1") -> Sensitivity:
    """Return the sensitivity of one prediction f(x) = <f, phi(x)> with ||phi(x)|| <= reach.

    It is ``reach`` times that of the minimiser. The prediction is a single number, so this holds in
    every norm. It protects one prediction, never the whole function.

    Parameters
    ----------
    minimiser : Sensitivity
        The sensitivity of the minimiser f.
    reach : float
        A bound on the norm of phi(x).
    norm : str
        The norm of the result.
    """
    values = {**dict(minimiser.parameters), "reach": reach}
    return Sensitivity.of("erm-prediction", minimiser.neighbours, norm, **values)


def _erm(
    name: str,
    neighbours: Neighbours,
    values: dict[str, float],
    strength: float,
    problems: int,
    tolerance: float,
) -> Sensitivity:
    rest = {"strength": strength, "problems": problems, "tolerance": tolerance}
    return Sensitivity.of(name, neighbours, **values, **rest)


@lru_cache(maxsize=256)
def psi(rho: float) -> float:
    """Return an upper bound on the maximum over 0 <= a <= 1 of a (1 + rho sqrt(a (1 - a))).

    A maximum on a grid would be a lower bound. Therefore each cell counts with its right end and
    with the largest root on it.
    """
    a = np.linspace(0.0, 1.0, _CELLS + 1)  # contains 1/2
    root = np.sqrt(a * (1 - a))
    cells = a[1:] * (1 + rho * np.maximum(root[1:], root[:-1]))
    return min(float(cells.max()), 1 + _SEPARATE * rho) * UP


def _records(neighbours: Neighbours) -> int:
    return 2 if neighbours is Neighbours.REPLACE_ONE else 1


def _common(p: Parameters, *names: str) -> tuple[float, ...] | None:
    """Return the named values, strength, problems and tolerance; None if one of them is invalid."""
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
    return once * math.sqrt(problems) * UP


@formula("erm-ridge")
def _ridge(neighbours: Neighbours, p: Parameters) -> float:
    given = _common(p, "row", "target", "n_rows")
    if given is None:
        return math.nan
    row, target, n_rows, strength, problems, tolerance = given
    rho = row * math.sqrt(n_rows / strength) * UP
    factor = psi(rho)
    if neighbours is Neighbours.REPLACE_ONE:
        factor = min(2 + rho / 2, 2 * factor)
    return (row * target * factor + 2 * tolerance) / strength * math.sqrt(problems) * UP


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
