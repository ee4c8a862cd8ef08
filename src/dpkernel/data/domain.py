"""The declared domain: what is publicly known about the data, enforced by clipping.

Bounds, levels and classes are stated by the user and never read from the data, not even with a
warning. Clipping is exact to the last bit: the result satisfies the bound as a floating-point
number, also for entries near 1e308 and for denormal numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpkernel.data.cells import Places, as_numbers, cell_columns, column_names, shape_of
from dpkernel.foundations.errors import (
    CertificateError,
    DataError,
    ParameterError,
    parameter_message,
)
from dpkernel.foundations.types import JSON, Array, IntArray, is_real, is_whole

Level = str | int | float | bool | tuple[Any, ...]


@dataclass(frozen=True)
class Interval:
    """Real values from ``low`` to ``high``.

    Parameters
    ----------
    low, high : float
        The ends, finite, with low < high.

    Examples
    --------
    >>> from dpkernel import Domain, Interval
    >>> Domain((Interval(0, 110), Interval(0, 300))).to_unit([[55.0, 999.0]])
    array([[0., 1.]])
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        fine = is_real(self.low) and is_real(self.high)
        if not fine or not -math.inf < self.low < self.high < math.inf:
            got = (self.low, self.high)
            allowed = "two finite numbers with low < high"
            raise ParameterError(parameter_message("Interval", "low, high", allowed, got))
        got = (self.low, self.high)
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))
        if not self.high - self.low < math.inf:
            allowed = "less than 1.7e308 apart"
            raise ParameterError(parameter_message("Interval", "low, high", allowed, got))
        if not self.half_width > 0:
            allowed = "more than 5e-324 apart"
            raise ParameterError(parameter_message("Interval", "low, high", allowed, got))

    @property
    def middle(self) -> float:
        """The centre."""
        return self.low + (self.high - self.low) / 2

    @property
    def half_width(self) -> float:
        """Half the width."""
        return (self.high - self.low) / 2

    def to_unit(self, values: Array) -> Array:
        """Clip values to the interval and map it onto [-1, 1]; NaN becomes 0.

        The result never leaves [-1, 1].
        """
        clipped = np.clip(values, self.low, self.high)
        unit = np.nan_to_num((clipped - self.middle) / self.half_width)
        return np.asarray(np.clip(unit, -1.0, 1.0))

    def from_unit(self, values: Array) -> Array:
        """Map [-1, 1] back onto the interval; values outside follow the same line."""
        return np.asarray(values * self.half_width + self.middle)

    def part(self, place: int) -> Interval:
        """Return the interval of one of several targets, which is this one for all of them."""
        return self

    def check_targets(self, target_shape: tuple[int, ...], owner: str) -> None:
        """Raise if this can't be the range of targets of this shape. One interval fits any shape."""

    def to_dict(self) -> JSON:
        """Return the bounds as JSON values."""
        return {"low": self.low, "high": self.high}


class Intervals(Interval):
    """One interval per target: the last axis of an array of values counts the targets.

    Parameters
    ----------
    parts : sequence of Interval
        The range of each target, at least one.

    Examples
    --------
    >>> Intervals([Interval(0, 1), Interval(0, 100)]).to_unit([[0.5, 100.0]])
    array([[0., 1.]])
    """

    low: Any
    high: Any

    def __init__(self, parts: Sequence[Interval]) -> None:
        found = tuple(parts)
        object.__setattr__(self, "parts", found)
        object.__setattr__(self, "low", np.array([part.low for part in found]))
        object.__setattr__(self, "high", np.array([part.high for part in found]))

    parts: tuple[Interval, ...]

    def part(self, place: int) -> Interval:
        """Return the interval of one target."""
        return self.parts[place]

    def check_targets(self, target_shape: tuple[int, ...], owner: str) -> None:
        """Raise if y does not have one column per interval."""
        if target_shape != (len(self.parts),):
            columns = target_shape[0] if target_shape else 1
            raise DataError(
                f"y has {columns} column(s), but the 'y_bounds' of {owner} are those of"
                f" {len(self.parts)} targets."
            )

    def to_dict(self) -> JSON:
        """Return the bounds as JSON values."""
        return {"targets": [part.to_dict() for part in self.parts]}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intervals) and self.parts == other.parts

    def __hash__(self) -> int:
        return hash(self.parts)

    def __repr__(self) -> str:
        return f"Intervals({list(self.parts)})"


@dataclass(frozen=True)
class Levels:
    """A declared finite set of values: the levels of a column or the classes of a target.

    Parameters
    ----------
    values : tuple
        The different values, at least one. Numbers are compared in double precision.

    Examples
    --------
    >>> from dpkernel import Domain, Interval, Levels
    >>> Domain((Interval(0, 110), Levels(("north", "south")))).columns[1].values
    ('north', 'south')
    """

    values: tuple[Level, ...]

    def __post_init__(self) -> None:
        try:
            self._places  # noqa: B018 (compares the levels)
        except ValueError:
            allowed = "one or more different values, where numbers are compared in double precision"
            got = list(self.values)
            raise ParameterError(parameter_message("Levels", "values", allowed, got)) from None

    @cached_property
    def _places(self) -> Places:
        return Places(self.values)

    @property
    def words(self) -> bool:
        """Whether a level is not a number, so that a table of numbers holds positions of levels."""
        return not all(is_real(value) or isinstance(value, bool) for value in self.values)

    def indices(self, values: Any) -> IntArray:
        """Return the position of each cell among the levels, or -1 if it was not declared.

        The result has the shape of ``values``. Each position depends on its cell alone; see
        ``cells.Places``.
        """
        return self._places(values)

    def to_dict(self) -> JSON:
        """Return the levels as JSON values; tuples become lists."""
        return {"levels": [_listed(value) for value in self.values]}


Column = Interval | Levels


@dataclass(frozen=True)
class Domain:
    """Everything about the data that is public.

    Parameters
    ----------
    columns : tuple of Interval or Levels, optional
        The declared values of each column of X. None allows any real numbers, for kernels that are
        bounded everywhere.
    target : Interval, Levels or None
        The bounds of a regression target, or the classes.
    n_max : int, optional
        A public upper limit on the number of rows (with groups: of units). It is needed if the
        number itself is private.
    names : tuple of str, optional
        The names of the columns.

    Examples
    --------
    >>> domain = Domain.box([0, 0], [120, 300], target=Interval(0, 10))
    >>> domain.to_unit([[60.0, 999.0]])
    array([[0., 1.]])
    """

    columns: tuple[Column, ...] | None = None
    target: Column | None = None
    n_max: int | None = None
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.n_max is not None and not (is_whole(self.n_max) and 1 <= self.n_max < 2**53):
            allowed = "an int >= 1 and below 2^53"
            raise ParameterError(parameter_message("Domain", "n_max", allowed, self.n_max))
        named = self.names is not None and self.columns is not None
        if named and len(self.names or ()) != len(self.columns or ()):
            got = f"{len(self.names or ())} names"
            allowed = f"{len(self.columns or ())} names, one per column"
            raise ParameterError(parameter_message("Domain", "names", allowed, got))

    @classmethod
    def box(
        cls,
        low: float | Sequence[float] | Array,
        high: float | Sequence[float] | Array,
        *,
        n_columns: int | None = None,
        target: Column | None = None,
        n_max: int | None = None,
        names: tuple[str, ...] | None = None,
    ) -> Domain:
        """Return a domain of intervals; a single number is used for every column."""
        lows, highs = np.atleast_1d(np.asarray(low)), np.atleast_1d(np.asarray(high))
        count = n_columns if n_columns is not None else max(len(lows), len(highs))
        for name, values in (("low", lows), ("high", highs)):
            if values.ndim != 1 or len(values) not in (1, count):
                got = f"shape {values.shape}"
                allowed = f"a number or {count} numbers, one per column"
                raise ParameterError(parameter_message("Domain.box", name, allowed, got))
            if not np.issubdtype(values.dtype, np.number):
                got = f"dtype {values.dtype}"
                raise ParameterError(parameter_message("Domain.box", name, "numbers", got))
        lows, highs = np.broadcast_to(lows, count), np.broadcast_to(highs, count)
        columns = []
        for i, (a, b) in enumerate(zip(lows.tolist(), highs.tolist(), strict=True)):
            try:
                columns.append(Interval(a, b))
            except ParameterError as error:
                raise ParameterError(f"Column {i}: {error}") from error
        return cls(tuple(columns), target, n_max, names)

    @property
    def n_unit_columns(self) -> int:
        """The number of columns of ``to_unit``: one per interval and one per level."""
        return sum(len(c.values) if isinstance(c, Levels) else 1 for c in self.columns or ())

    def to_unit(self, X: Any) -> Array:
        """Clip X to the domain and map it into [-1, 1]; intervals are scaled, levels become one-hot.

        The columns of a level that was not declared are all zero.
        """
        columns = self._require_columns(X)
        if all(isinstance(c, Interval) for c in columns):
            return self._box_to_unit(as_numbers(X))
        cells = cell_columns(X)
        out = np.empty((len(cells[0]), self.n_unit_columns))
        place = 0
        for i, column in enumerate(columns):
            if isinstance(column, Interval):
                out[:, place] = column.to_unit(_numbers_of_column(cells[i], _name_of(X, i)))
                place += 1
            else:
                size = len(column.values)
                index = column.indices(cells[i])
                out[:, place : place + size] = index[:, None] == np.arange(size)
                place += size
        return out

    @property
    def has_words(self) -> bool:
        """Whether a column has levels that are texts."""
        return any(isinstance(one, Levels) and one.words for one in self.columns or ())

    @property
    def of_positions(self) -> Domain:
        """The domain of ``with_positions``: a level that is a text is its position."""
        if self.columns is None or not self.has_words:
            return self
        columns = tuple(
            Levels(tuple(range(len(c.values)))) if isinstance(c, Levels) and c.words else c
            for c in self.columns
        )
        return replace(self, columns=columns)

    def _box_to_unit(self, X: Array) -> Array:
        """Do the same as ``to_unit``, for all columns at once."""
        low, high, middle, half = self.limits
        with np.errstate(all="ignore"):
            # in one order in memory, because the last bit of a product of matrices depends on it
            out = np.clip(np.ascontiguousarray(X), low, high)
            np.subtract(out, middle, out=out)
            np.divide(out, half, out=out)
        return np.clip(np.nan_to_num(out, copy=False), -1.0, 1.0, out=out)

    @cached_property
    def limits(self) -> tuple[Array, ...]:
        """The low and high ends, middles and half widths of the intervals."""
        intervals = [c for c in self.columns or () if isinstance(c, Interval)]
        return tuple(
            np.array([getattr(c, name) for c in intervals], dtype=np.float64)
            for name in ("low", "high", "middle", "half_width")
        )

    def _require_columns(self, X: Any) -> tuple[Column, ...]:
        shape = shape_of(X)
        if self.columns is None:
            raise ParameterError("This domain declares no columns, so X can't be mapped to a box.")
        if len(shape) != 2 or shape[1] != len(self.columns):
            raise DataError(
                f"X has shape {shape}, but the domain declares {len(self.columns)} column(s)."
                " Declare one interval or list of levels per column."
            )
        return self.columns

    def to_dict(self) -> JSON:
        """Return the domain as JSON values."""
        return {
            "columns": None if self.columns is None else [c.to_dict() for c in self.columns],
            "target": None if self.target is None else self.target.to_dict(),
            "n_max": self.n_max,
            "names": None if self.names is None else list(self.names),
        }

    @classmethod
    def from_dict(cls, data: JSON) -> Domain:
        """Return the domain described by JSON values."""
        try:
            columns, target, names = data["columns"], data["target"], data["names"]
            return cls(
                None if columns is None else tuple(_column_from_dict(c) for c in columns),
                None if target is None else _column_from_dict(target),
                data["n_max"],
                None if names is None else tuple(names),
            )
        except (KeyError, TypeError, ParameterError) as error:
            raise CertificateError(f"The domain can't be read ({error}).") from error


def with_positions(X: Any, domain: Domain) -> Array:
    """Return a table as numbers, in which texts are their positions among the declared levels.

    A cell that is none of the levels becomes -1. Each number depends on its own cell alone.
    """
    columns, cells = domain._require_columns(X), cell_columns(X)
    out = np.empty((len(cells[0]), len(cells)))
    for i, column in enumerate(columns):
        if isinstance(column, Levels) and column.words:
            out[:, i] = column.indices(cells[i])
        else:
            out[:, i] = _numbers_of_column(cells[i], _name_of(X, i))
    return out


def unit_inputs(X: Array, domain: Domain, dtype: str) -> Array:
    """Return rows in the unit box, or as they are when no bounds were declared, in a public dtype.

    X is float64, whatever type the table has: one row can change the type of a whole column, and
    rounding to a narrower type before the middle of the box is subtracted would then move all rows.
    """
    X = np.ascontiguousarray(X, dtype=np.float64)  # one way through BLAS, whatever the rows hold
    unit = X if domain.columns is None else domain.of_positions.to_unit(X)
    if unit.dtype == dtype:
        return unit
    with np.errstate(all="ignore"):  # a warning about an overflow would tell of the data
        return np.asarray(np.nan_to_num(unit.astype(dtype), copy=False))


def clip_rows(rows: Array, bound: float) -> Array:
    """Return the rows scaled to an l2 norm of at most ``bound``, both as computed and in truth.

    Rows inside the bound by a few ulps stay as they are; others are scaled. Entries near 1e308 do
    not overflow, and rows that are not finite become zero. Scaling repeats until the computed norm
    plus its rounding error is within the bound.
    """
    if not is_real(bound) or not 1e-142 <= bound <= 1e150:
        allowed = "a float in the range [1e-142, 1e150]"
        raise ParameterError(parameter_message("clip_rows", "bound", allowed, bound))
    rows = np.ascontiguousarray(rows, dtype=np.float64)
    # a computed norm below this share of the bound proves that the real norm is within the bound
    target = bound * (1 - (rows.shape[1] + 4) * 2.0**-53)
    finite = np.atleast_1d(np.isfinite(rows).all(axis=1))
    if not finite.all():
        rows = np.where(finite[:, None], rows, 0.0)
    # rows whose squares would over- or underflow are first divided by their largest entry, and all
    # others by exactly 1, so that no row changes, even in its last bit, because of another row
    peak = np.abs(rows).max(axis=1, initial=0.0)
    divisor = np.where((peak == 0) | ((peak > 1e-150) & (peak < 1e150)), 1.0, peak)
    scaled = rows / divisor[:, None]
    norms = np.sqrt(row_squares(scaled))
    with np.errstate(over="ignore"):
        too_long = norms * divisor > target
    if not too_long.any():
        return rows
    out = rows.copy()
    shrunk = scaled[too_long] * (target / norms[too_long])[:, None]
    for _ in range(64):
        over = np.sqrt(row_squares(shrunk)) > target
        if not over.any():
            break
        shrunk[over] *= 1 - 2.0**-50
    else:
        raise AssertionError("norm clipping did not end: the bound is not a normal float")
    out[too_long] = shrunk
    return out


def row_squares(rows: Array) -> Array:
    """Return the sum of squares of every row, which depends on that row only, to the last bit.

    The rows must be C-contiguous. Then every row is summed in the same order, whatever the number
    of rows and the content of the others.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(np.add.reduce(rows * rows, axis=1))


def _name_of(X: Any, place: int) -> str:
    """Return how an error names a column: by its name in a data frame, else by its position."""
    names = column_names(X)
    return repr(names[place]) if names else str(place)


def _numbers_of_column(cells: Any, name: str) -> Array:
    try:
        return as_numbers(cells)
    except DataError:
        pass
    raise DataError(
        f"Column {name} of X is declared as numbers but holds an entry that is not a number. Declare"
        " the levels of a column of texts, for example {'ward': ['north', 'south']} in 'bounds'. Numbers"
        " with decimal commas and dates are read from a file by read_table."
    )


def _column_from_dict(data: JSON) -> Column:
    if "levels" in data:
        return Levels(tuple(tupled(value) for value in data["levels"]))
    if "targets" in data:
        return Intervals([Interval(part["low"], part["high"]) for part in data["targets"]])
    return Interval(data["low"], data["high"])


def _listed(value: Any) -> Any:
    return [_listed(part) for part in value] if isinstance(value, tuple) else value


def tupled(value: Any) -> Any:
    """Return lists of a JSON file, also those inside, as tuples."""
    return tuple(tupled(part) for part in value) if isinstance(value, list) else value
