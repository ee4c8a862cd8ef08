"""Sensitivities of sums: Gram matrices, gradients, histograms."""

from __future__ import annotations

import math
from fractions import Fraction

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Neighbours, is_real
from dpkernel.privacy.sensitivity.base import Parameters, Sensitivity, formula, round_up

_ROOT_TWO = Fraction(math.nextafter(math.sqrt(2), math.inf))  # above the square root of 2

# queries that treat a unit with any number of rows as one record
UNIT_FORMULAS = ("unit-gram", "unit-shares")


def declared(
    value: float, neighbours: Neighbours = Neighbours.REPLACE_ONE, norm: str = "l2"
) -> Sensitivity:
    """Return a sensitivity that the caller vouches for; no formula proves it.

    Parameters
    ----------
    value : float
        The sensitivity.
    neighbours : Neighbours
        The neighbouring relation.
    norm : {"l2", "l1", "score"}
        The norm in which the query moves.
    """
    if not is_real(value) or not 0 < value < math.inf:
        raise ParameterError(
            parameter_message("declared", "value", "a float in the range (0, inf)", value)
        )
    return Sensitivity.of("declared", neighbours, norm, value=value)


def augmented_gram(
    neighbours: Neighbours,
    *,
    row: float,
    target: float = 0.0,
    targets: int = 1,
    constant: float = 0.0,
) -> Sensitivity:
    r"""Return the Frobenius sensitivity of sum_i v_i v_i^T, v = (features, targets, constant).

    It is sqrt(2) N^2 for replace-one and N^2 for zero-out and add-remove.

    Parameters
    ----------
    neighbours : Neighbours
        The neighbouring relation.
    row : float
        A bound on the norm of the features of a record.
    target : float
        A bound on the absolute value of each target.
    targets : int
        The number of targets.
    constant : float
        The value of the constant coordinate.

    Notes
    -----
    With ||features|| <= row, each ``|target| <= target`` and the constant coordinate, the largest
    squared norm of v is N^2 = row^2 + targets target^2 + constant^2. For a replaced record,
    ||v v^T - v' v'^T||_F^2 = ||v||^4 + ||v'||^4 - 2 <v, v'>^2 <= 2 N^4. This is attained if v and
    v' can be orthogonal. For a blanked, added or removed record only one term remains.
    """
    size = {"row": row, "target": target, "targets": targets, "constant": constant}
    return Sensitivity.of("augmented-gram", neighbours, **size)


def loss_gradient(neighbours: Neighbours, *, slope: float, row: float) -> Sensitivity:
    """Return how far the gradient of sum_i loss(y_i, <h_i, beta>) moves at any one beta.

    Each record adds a vector of norm at most slope * row. The gradient moves by twice that if a
    record is replaced, and by once that if it is blanked, added or removed.

    Parameters
    ----------
    neighbours : Neighbours
        The neighbouring relation.
    slope : float
        A bound on the slope of the loss.
    row : float
        A bound on the norm of a row h_i.
    """
    return Sensitivity.of("loss-gradient", neighbours, slope=slope, row=row)


def record_norm(
    neighbours: Neighbours,
    *,
    row: float,
    target: float = 0.0,
    targets: int = 1,
    constant: float = 0.0,
) -> Sensitivity:
    r"""Return the largest norm of a record v = (features, targets, constant), for Gaussian mixing.

    It is N = sqrt(row^2 + targets target^2 + constant^2) under every relation. A replaced record
    costs more, but the profile of the mechanism accounts for that.

    Parameters
    ----------
    neighbours, row, target, targets, constant
        See ``augmented_gram``.
    """
    size = {"row": row, "target": target, "targets": targets, "constant": constant}
    return Sensitivity.of("record-norm", neighbours, **size)


def histogram(neighbours: Neighbours) -> Sensitivity:
    """Return the l2 sensitivity of the counts of records in disjoint cells.

    A replaced record leaves one cell and enters another, which gives sqrt(2). A blanked, added or
    removed record changes one count by 1.

    Parameters
    ----------
    neighbours : Neighbours
        The neighbouring relation.

    Examples
    --------
    >>> from dpkernel import Neighbours
    >>> from dpkernel.privacy import sensitivity
    >>> round(sensitivity.histogram(Neighbours.REPLACE_ONE).value, 4)
    1.4142
    """
    return Sensitivity.of("histogram", neighbours)


def column_histograms(neighbours: Neighbours, *, columns: int) -> Sensitivity:
    """Return the l2 sensitivity of the histograms of several columns, released as one vector.

    A record is in one cell per column. A replaced record leaves one cell per column and enters
    another, which gives sqrt(2 columns). A blanked, added or removed record changes one count per
    column, which gives sqrt(columns).

    Parameters
    ----------
    neighbours : Neighbours
        The neighbouring relation.
    columns : int
        The number of columns.
    """
    return Sensitivity.of("column-histograms", neighbours, columns=columns)


def column_moments(neighbours: Neighbours, *, columns: int, bound: int) -> Sensitivity:
    r"""Return the l2 sensitivity of sums of pairs (u, v), one pair per column, as one vector.

    u is an integer with ``|u| <= bound``, and v = rint(3/2 (u^2/bound - bound/2)). The result is
    sqrt(columns) times the sensitivity of one column.

    Parameters
    ----------
    neighbours : Neighbours
        The neighbouring relation.
    columns : int
        The number of columns.
    bound : int
        A bound on the absolute value of u.

    Notes
    -----
    Without the rounding, the squared distance of two pairs is bound^2 p^2 (1 + 9/4 s^2) with
    ``p = |u - u'|/bound`` and ``s = |u + u'|/bound <= 2 - p``. With p = 1 + t,
    4 - p^2 (1 + 9/4 (2 - p)^2) = (1 - t) (3 + t - 9/4 (1 - t)(1 + t)^2) >= 0 on [-1, 1],
    so two pairs are at most 2 bound apart: the squares cost nothing in addition to the values. The
    norm of one pair is at most 5/4 bound. Rounding adds at most 1 to either number.
    """
    return Sensitivity.of("column-moments", neighbours, columns=columns, bound=bound)


def bounded_sum(neighbours: Neighbours, *, bound: float, norm: str = "l2") -> Sensitivity:
    """Return the l2 sensitivity of a sum of vectors of norm <= bound.

    It is twice the bound for replace-one and the bound otherwise. With norm "score" it is the
    sensitivity of several sums of numbers, each at most ``bound`` in absolute value.

    Parameters
    ----------
    neighbours : Neighbours
        The neighbouring relation.
    bound : float
        A bound on the norm of each term.
    norm : {"l2", "score"}
        The norm in which the sum moves.

    Examples
    --------
    >>> from dpkernel import Neighbours
    >>> from dpkernel.privacy import sensitivity
    >>> sensitivity.bounded_sum(Neighbours.REPLACE_ONE, bound=1.0).value
    2.0
    """
    return Sensitivity.of("bounded-sum", neighbours, norm, bound=bound)


def unit_gram(
    neighbours: Neighbours,
    *,
    row: float,
    target: float = 0.0,
    targets: int = 1,
    constant: float = 0.0,
) -> Sensitivity:
    r"""Return the Frobenius sensitivity of sum_u mean_{i in u} v_i v_i^T, one term per unit.

    The value is that of ``augmented_gram``, but it protects all rows of a unit.

    Parameters
    ----------
    neighbours, row, target, targets, constant
        See ``augmented_gram``.

    Notes
    -----
    The mean of a unit lies in the convex hull of the matrices v v^T of single records, however many
    rows it has. ||A - A'||_F is convex in (A, A'), so over two hulls it is largest at single
    records.
    """
    size = {"row": row, "target": target, "targets": targets, "constant": constant}
    return Sensitivity.of("unit-gram", neighbours, **size)


def unit_shares(neighbours: Neighbours, *, columns: int, parts: int) -> Sensitivity:
    """Return the l2 sensitivity of histograms in which each unit is divided into equal parts.

    Per column, a unit adds whole numbers of at least 0 to the cells, which add up to ``parts``,
    however many rows it has. The result is ``parts`` times that of ``column_histograms``.

    Parameters
    ----------
    neighbours : Neighbours
        The neighbouring relation.
    columns : int
        The number of columns.
    parts : int
        The number of parts of a unit.

    Notes
    -----
    Such counts have norm at most ``parts``, and two of them have a product of at least 0. So the
    squared distance is at most 2 parts^2 per column, and the squared norm is at most parts^2.
    """
    return Sensitivity.of("unit-shares", neighbours, columns=columns, parts=parts)


@formula("declared", "l2", "l1", "score")
def _declared(neighbours: Neighbours, p: Parameters) -> float:
    return float(p["value"])


@formula("unit-gram")
@formula("augmented-gram")
def _augmented_gram(neighbours: Neighbours, p: Parameters) -> float:
    row, target, targets, constant = (
        float(p[name]) for name in ("row", "target", "targets", "constant")
    )
    if not all(0 <= part < math.inf for part in (row, target, targets, constant)):
        return math.nan
    exact = Fraction(row) ** 2 + Fraction(targets) * Fraction(target) ** 2 + Fraction(constant) ** 2
    if neighbours is Neighbours.REPLACE_ONE:
        exact *= _ROOT_TWO
    return round_up(exact)


@formula("record-norm")
def _record_norm(neighbours: Neighbours, p: Parameters) -> float:
    square = _augmented_gram(Neighbours.ZERO_OUT, p)  # for one record: the sum of the squares
    if not square < math.inf:
        return math.nan
    root = math.sqrt(square)
    return root if Fraction(root) ** 2 >= Fraction(square) else math.nextafter(root, math.inf)


@formula("loss-gradient")
def _loss_gradient(neighbours: Neighbours, p: Parameters) -> float:
    slope, row = float(p["slope"]), float(p["row"])
    if not all(0 <= part < math.inf for part in (slope, row)):
        return math.nan
    records = 2 if neighbours is Neighbours.REPLACE_ONE else 1
    return round_up(records * Fraction(slope) * Fraction(row))


@formula("histogram")
def _histogram(neighbours: Neighbours, p: Parameters) -> float:
    return float(_ROOT_TWO) if neighbours is Neighbours.REPLACE_ONE else 1.0


@formula("column-histograms")
def _column_histograms(neighbours: Neighbours, p: Parameters) -> float:
    columns = _whole(p["columns"])
    return _root_up(Fraction(columns * (2 if neighbours is Neighbours.REPLACE_ONE else 1)))


@formula("unit-shares")
def _unit_shares(neighbours: Neighbours, p: Parameters) -> float:
    columns, parts = _whole(p["columns"]), _whole(p["parts"])
    return _root_up(
        Fraction(columns * parts**2 * (2 if neighbours is Neighbours.REPLACE_ONE else 1))
    )


@formula("column-moments")
def _column_moments(neighbours: Neighbours, p: Parameters) -> float:
    columns, bound = _whole(p["columns"]), _whole(p["bound"])
    pair = Fraction(2) if neighbours is Neighbours.REPLACE_ONE else Fraction(5, 4)
    return _root_up(columns * (pair * bound + 1) ** 2)


def _whole(value: float) -> int:
    """Return a count from 1 to 2^52; raise the TypeError that readers of JSON expect otherwise."""
    if not is_real(value) or not 1 <= value <= 2**52 or float(value) != int(value):
        raise TypeError("columns, bound and parts must be whole numbers from 1 on")
    return int(value)


def _root_up(square: Fraction) -> float:
    """Return a float that is not below the square root."""
    root = math.sqrt(round_up(square))
    return root if Fraction(root) ** 2 >= square else math.nextafter(root, math.inf)


@formula("bounded-sum", "l2", "score")
def _bounded_sum(neighbours: Neighbours, p: Parameters) -> float:
    return _loss_gradient(neighbours, {"slope": 1.0, "row": p["bound"]})
