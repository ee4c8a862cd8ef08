"""What the parameters ``bounds`` and ``y_bounds`` of an estimator declare, as a domain.

A user writes them as numbers, pairs, a dict by column name, a data frame or a ``Domain``. All of it is
public, and none of it is read from the data.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dpkernel.data.domain import Column, Domain, Interval, Intervals, Levels
from dpkernel.foundations.errors import DataError, ParameterError


def resolve_domain(
    bounds: Any, target: Interval | Levels | None, n_columns: int, owner: str, names: Any = None
) -> Domain:
    """Return the domain that the parameter ``bounds`` and a declared target describe.

    ``bounds`` is None, a Domain, a pair (low, high) of numbers or of one number per column, or what
    ``columns_of`` reads: a dict by column name, a list of pairs or a data frame.
    """
    columns = None if isinstance(bounds, Domain) else columns_of(bounds, n_columns, names, owner)
    if columns is not None:
        bounds = Domain(columns)
    declared = bounds if isinstance(bounds, Domain) else None
    if declared is not None and declared.target is not None:
        if target is not None and not _same_target(declared.target, target):
            raise ParameterError(
                f"The target of the domain that {owner} was given differs from its parameters. State"
                " one of them."
            )
        target = declared.target if target is None else target
    if bounds is None:
        return Domain(target=target)
    if declared is None:
        low, high = _pair("bounds", bounds, owner)
        return Domain.box(low, high, n_columns=n_columns, target=target)
    if declared.columns is not None and len(declared.columns) != n_columns:
        raise DataError(
            f"X has {n_columns} column(s), but the domain declares {len(declared.columns)}."
        )
    if names is not None and declared.names is not None and list(names) != list(declared.names):
        raise DataError(
            f"The columns of X are {list(names)}, but the domain declares {list(declared.names)}."
        )
    return replace(declared, target=target)


def _same_target(one: Any, other: Any) -> bool:
    """Whether two targets are equal; the order of classes does not matter."""
    if isinstance(one, Levels) and isinstance(other, Levels):
        return set(one.values) == set(other.values)
    return bool(one == other)


def interval_of(y_bounds: Any, bounds: Any, owner: str) -> Interval:
    """Return the declared range of a real target: ``y_bounds``, or the one in the domain ``bounds``.

    ``y_bounds`` is a pair (low, high), or an array or a list with one pair per target.
    """
    if y_bounds is None and isinstance(bounds, Domain) and isinstance(bounds.target, Interval):
        return bounds.target
    if y_bounds is None:
        raise ParameterError(
            f"{owner} needs 'y_bounds', the publicly known range of the target, for example"
            " y_bounds=(0, 120). It is never read from the data: that would leak."
        )
    if isinstance(y_bounds, Interval):
        return y_bounds
    pairs = pairs_of(y_bounds)
    if pairs is None:
        return Interval(*_pair("y_bounds", y_bounds, owner))
    found = []
    for place, pair in enumerate(pairs, start=1):
        try:
            found.append(pair if isinstance(pair, Interval) else Interval(*pair))
        except ParameterError as error:
            raise ParameterError(
                f"The 'y_bounds' of {owner} for target {place}: {error}"
            ) from error
    return Intervals(found) if len(found) > 1 else found[0]


def pairs_of(y_bounds: Any) -> list[Any] | None:
    """Return one pair (low, high) or Interval per target, or None if there is one pair for all."""
    if isinstance(y_bounds, np.ndarray):
        y_bounds = y_bounds.tolist()
    several = isinstance(y_bounds, (list, tuple)) and len(y_bounds) > 0
    if not several or not all(
        isinstance(pair, Interval) or (isinstance(pair, (list, tuple)) and len(pair) == 2)
        for pair in y_bounds
    ):
        return None
    return list(y_bounds)


def _pair(name: str, value: Any, owner: str) -> tuple[Any, Any]:
    if isinstance(value, str) or not hasattr(value, "__len__") or len(value) != 2:
        raise ParameterError(
            f"The '{name}' parameter of {owner} must be a pair (low, high). Got"
            f" {type(value).__name__}."
        )
    return value[0], value[1]


def columns_of(bounds: Any, n_columns: int, names: Any, owner: str) -> tuple[Column, ...] | None:
    """Return the columns that a dict, a list of pairs or a data frame declares; None for the rest.

    A dict holds a pair (low, high), an Interval, Levels or a list of texts, which are levels, for the
    name of each column; of a table without names, it declares the columns in their order. A list
    holds tuples (low, high), Intervals or Levels in the order of the columns. A data frame has a row
    or a column named "low" and one named "high" (or "min" and "max"), and the names of the columns
    along its other side.
    """
    if hasattr(bounds, "loc") and hasattr(bounds, "columns"):
        bounds = _by_name(bounds, owner)
    if isinstance(bounds, Mapping):
        if names is None and len(bounds) == n_columns:
            names = list(bounds)
        missing = [] if names is None else [name for name in names if name not in bounds]
        if names is not None and len(set(names)) < len(names):
            raise ParameterError(
                f"The 'bounds' of {owner} are given by name, but two columns have the same name."
            )
        if names is None or missing:
            what = (
                f"the column {missing[0]!r} is missing in them. Declare it, or leave it out of X. A"
                " column of ids belongs in 'groups'"
                if missing
                else f"they name {len(bounds)} columns, and X has {n_columns} without names. Behind a"
                " step that makes new columns, write a tuple (lows, highs), or declare the lists of"
                " words in 'bounds' and leave the step out"
            )
            raise ParameterError(f"The 'bounds' of {owner} are given by name, but {what}.")
        return tuple(_column_of(bounds[name], f"column {name!r}", owner) for name in names)
    if not isinstance(bounds, list) or not all(
        isinstance(pair, (tuple, Interval, Levels)) for pair in bounds
    ):
        return None
    if len(bounds) == 2 and all(isinstance(pair, tuple) for pair in bounds):
        if n_columns != 2:
            return None  # all lows and all highs
        raise ParameterError(
            f"The 'bounds' of {owner} are two tuples in a list for two columns: they could be two pairs"
            " (low, high), or all lows and all highs. Write a dict by column name, or a tuple (lows,"
            " highs)."
        )
    if len(bounds) != n_columns:
        raise ParameterError(
            f"The 'bounds' of {owner} declare {len(bounds)} columns, but X has {n_columns}."
        )
    return tuple(_column_of(pair, f"column {i}", owner) for i, pair in enumerate(bounds))


def n_declared(bounds: Any, owner: str) -> int:
    """Return how many columns bounds declare by a domain, by name or as a list of pairs."""
    if hasattr(bounds, "loc") and hasattr(bounds, "columns"):
        bounds = _by_name(bounds, owner)
    if isinstance(bounds, Domain):
        bounds = list(bounds.columns or ()) or None
    pairs = isinstance(bounds, list) and all(
        isinstance(one, (tuple, Interval, Levels)) for one in bounds
    )
    if not (pairs or isinstance(bounds, Mapping)):
        raise ParameterError(
            f"How many columns {owner} will have can't be told from its 'bounds'. State n_columns."
        )
    return len(bounds)


def _by_name(frame: Any, owner: str) -> dict[Any, tuple[Any, Any]]:
    for table in (frame, frame.T):
        for low, high in (("low", "high"), ("min", "max")):
            if low in table.columns and high in table.columns:
                ends = zip(table[low].tolist(), table[high].tolist(), strict=True)
                return dict(zip(table.index.tolist(), ends, strict=True))
    raise ParameterError(
        f"The data frame 'bounds' of {owner} needs 'low' and 'high', or 'min' and 'max', along one side"
        " and the names of the columns along the other."
    )


def _column_of(value: Any, what: str, owner: str) -> Column:
    if isinstance(value, (Interval, Levels)):
        return value
    if isinstance(value, (tuple, list)) and len(value) == 2 and all(map(_is_date, value)):
        raise ParameterError(
            f"The 'bounds' of {owner} for {what} are two dates. Count the days instead, for example"
            " (column - pandas.Timestamp('2020-01-01')).dt.days, with numbers as bounds; or declare"
            " Levels if these two dates are the only values. `read_table` reads dates from a file."
        )
    if _is_words(value):
        return Levels(tuple(value))
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ParameterError(
            f"The 'bounds' of {owner} must hold a pair (low, high), an Interval or Levels for {what}."
            f" Got {type(value).__name__}."
        )
    try:
        return Interval(*value)
    except ParameterError as error:
        raise ParameterError(f"The 'bounds' of {owner} for {what}: {error}") from error


def _is_date(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"\d{4}-\d{2}-\d{2}.*", value) is not None
    return isinstance(value, (datetime.date, np.datetime64))


def has_words(bounds: Any) -> bool:
    """Whether bounds of any kind declare a column whose levels are texts."""
    if isinstance(bounds, Domain):
        return bounds.has_words
    columns: Any = bounds
    if isinstance(columns, Mapping):
        columns = columns.values()
    if not isinstance(columns, (list, tuple, type({}.values()))):
        return False
    return any(one.words if isinstance(one, Levels) else _is_words(one) for one in columns)


def _is_words(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and any(isinstance(one, str) for one in value)
