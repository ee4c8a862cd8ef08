"""The only module that converts a user's rows: it turns cells into numbers, places and ids.

The sensitivity of every release rests on one assumption: what a row contributes is a function of
that row and of public things. A container can break this assumption before any mathematics starts.
NumPy turns a whole list into texts because of one text. pandas turns whole numbers into floats
because of one missing value. A narrower type rounds all rows differently. Therefore no other module
converts a user's rows. Here

- a number becomes the float64 nearest to the cell's own value, whatever the type of its column;
- the place of a label or a level among the declared ones (``Places``) depends only on the cell and
  on the declaration, and the id of a unit (``identity``) depends only on the cell;
- a cell that can't be used raises ``DataError`` before anything is spent, and the text never quotes
  the cell.

This module does not know what the columns mean; that is declared in ``domain``.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import numbers
import re
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import sparse

from dpkernel.foundations.errors import DataError, DataTypeError
from dpkernel.foundations.types import Array, IntArray

_NUMBERS = "biuf"  # NumPy kinds whose entries are real numbers
_EXACT = frozenset(np.dtype(kind) for kind in ("?", "i1", "i2", "i4", "i8", "f2", "f4", "f8")) | {
    np.dtype(kind) for kind in ("u1", "u2", "u4", "u8")
}  # types from which one rounding gives the float64 nearest to the entry
_PLAIN = frozenset((bool, int, float, *(np.dtype(kind).type for kind in "?bhilqBHILQefd")))
_DATES = (datetime.date, datetime.time, datetime.timedelta, np.datetime64, np.timedelta64)
_MISSING_KINDS = ("NAType", "NaTType")  # class names of pandas, which may not be installed

NOT_A_NUMBER = (
    "X or y has an entry that is not a number: each argument must be a string of digits or a real"
    " number. Declare the levels of a column of texts, for example {'ward': ['north', 'south']} in"
    " 'bounds'. Numbers with decimal commas and dates are read from a file by read_table."
)
A_DATE = (
    "X or y has an entry that is a date or a time. How a date becomes a number would depend on the unit"
    " in which its whole column is stored. Turn dates into numbers first, for example days since a"
    " public day."
)
RAGGED = "The rows of X have different lengths. Every row needs one entry per column."
AMBIGUOUS = (
    "A column holds a float of 2^53 or more, but its declared levels are texts of whole numbers, and"
    " this float stands for several of them. Pass the column as texts or as whole numbers."
)
NARROW = (
    "A column holds numbers in single or half precision, in which declared levels can't be told apart or"
    " don't exist. Pass the column in double precision, as whole numbers or as texts."
)
NARROW_IDS = (
    "The ids in groups are floats of a type in which different whole numbers are the same float. Use"
    " whole numbers or texts."
)
NESTED = (
    "A column is declared to hold lists or records: one such cell may have turned the others of its"
    " column into missing values. Pass numbers or texts."
)
DURATIONS = (
    "An array of NumPy's durations can't be used: one duration turns all whole numbers in the array into"
    " durations. Pass numbers or texts."
)

# the key of None, NaN, NaT and NA alike, because the column decides which of them a cell becomes
MISSING_KEY = ("missing",)
UNKNOWN_KEY = ("unknown",)  # the key of a cell that can't be compared; no level has it
_LARGEST_FLOAT_ID = 2.0**53  # above it, several whole numbers share one float
_NUMERAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WORDS = {"true": 1.0, "false": 0.0, "inf": math.inf, "-inf": -math.inf, "nan": MISSING_KEY}
_WRITTEN = re.compile(
    r"-?(0|[1-9]\d*)(\.\d+)?(e[+-]\d+)?", re.ASCII
)  # how NumPy writes a number as text
_MICROSECONDS = {"W": 604800e6, "D": 86400e6, "h": 3600e6, "m": 60e6, "s": 1e6, "ms": 1e3, "us": 1}
_LONGEST = 4000  # largest number of digits that Python converts to a whole number
_FINER = {"ns": 10**3, "ps": 10**6, "fs": 10**9, "as": 10**12}  # how many make a microsecond


# --- one cell ----------------------------------------------------------------------------------


def is_missing(cell: Any) -> bool:
    """Return whether a cell is None, NaN, NaT or pandas' NA."""
    if cell is None or type(cell).__name__ in _MISSING_KINDS or cell is np.ma.masked:
        return True
    if isinstance(cell, Decimal):
        return cell.is_nan()
    if isinstance(cell, (float, np.floating, np.datetime64, np.timedelta64)):
        return bool(cell != cell)
    return False


def number(cell: Any) -> float:
    """Return the float64 nearest to a cell, or NaN for a missing cell.

    Texts are read as Python's ``float`` reads them. A number beyond the range of float64 becomes
    infinite. Anything else raises an error.
    """
    if type(cell) in _PLAIN or isinstance(cell, (int, float, Fraction)):
        return _nearest(cell)
    if is_missing(cell):
        return math.nan
    if isinstance(cell, np.ndarray) and cell.ndim == 0:
        return number(cell.item())
    if isinstance(cell, (str, bytes)):
        with contextlib.suppress(ValueError):  # it quotes the cell, so it must be no context
            return float(cell)
        raise DataError(NOT_A_NUMBER)
    if isinstance(cell, _DATES):
        raise DataTypeError(A_DATE)
    if isinstance(cell, (complex, np.complexfloating)):
        raise DataError("Complex data not supported.")
    if isinstance(cell, (Decimal, numbers.Real)):
        return _nearest(cell)
    raise DataTypeError(NOT_A_NUMBER)


def _nearest(cell: Any) -> float:
    try:
        return float(cell)
    except OverflowError:
        return math.inf if cell > 0 else -math.inf
    except (TypeError, ValueError):  # it may quote the cell, so it must be no context
        pass
    raise DataTypeError(NOT_A_NUMBER)


def key(cell: Any) -> Hashable:
    """Return the key by which a cell is compared with declared levels; equal keys are one level.

    Numbers and truth values are compared as float64, whatever the type of their column. Texts are
    compared as they are, and ASCII bytes as texts; dates and durations to the microsecond; tuples
    entry by entry. All missing cells share one key. All cells that can't be compared share another
    key, which no level has.
    """
    if isinstance(cell, str):
        return _text(cell)
    if is_missing(cell):
        return MISSING_KEY
    if isinstance(cell, np.ndarray) and cell.ndim == 0:
        return key(cell.item() if cell.dtype.kind not in "mM" else cell[()])
    if isinstance(cell, (datetime.date, np.datetime64)):
        return ("date", _iso(cell))
    if isinstance(cell, (datetime.timedelta, np.timedelta64)):
        return _duration(cell)
    if isinstance(cell, (bool, np.bool_, numbers.Real, Decimal)):
        return _nearest(cell)
    if isinstance(cell, numbers.Complex) and cell.imag == 0:
        return key(cell.real)
    if isinstance(cell, tuple):
        return ("tuple", *(key(part) for part in cell))
    if isinstance(cell, np.void):
        return key(cell.item())
    if isinstance(cell, bytes):
        return _text(cell)
    try:
        hash(cell)
    except TypeError:
        return UNKNOWN_KEY
    return ("other", cell)


def meaning(cell: Any) -> Hashable:
    """Return the ``key`` of a cell, or the key of the number if the cell is a text for a number.

    This is needed because NumPy, pandas and Dask turn all numbers of a column into texts if one of
    its cells is a text.
    """
    found = key(cell)
    if not isinstance(found, str):
        return found
    text = found.strip()
    if _NUMERAL.fullmatch(text):
        return float(text)
    return _WORDS.get(text.lower(), found)


def _text(cell: str | bytes) -> str | bytes:
    """Return a text as an array would hold it: no trailing NUL characters, ASCII bytes as text."""
    if isinstance(cell, bytes):
        if not cell.isascii():
            return bytes(cell)
        cell = cell.decode("ascii")
    return str(cell).rstrip("\0")


def _duration(cell: Any) -> Hashable:
    """Return a duration in whole microseconds, rounded down; months and years can't be compared."""
    if isinstance(cell, datetime.timedelta):  # also pandas' class, whose nanoseconds are dropped
        return ("time", (cell.days * 86400 + cell.seconds) * 10**6 + cell.microseconds)
    unit, count = np.datetime_data(cell.dtype)
    ticks = int(cell.astype(np.int64)) * count
    if unit in _MICROSECONDS:
        return ("time", ticks * int(_MICROSECONDS[unit]))
    return ("time", ticks // _FINER[unit]) if unit in _FINER else UNKNOWN_KEY


class Places:
    """The place of a cell among declared levels: a function of the cell and of the levels.

    A text is first compared with the levels as it is. A number, or a text for a number, matches the
    level that equals this number, or else the only text level that stands for it. If several texts
    stand for it ("1" and "01"), it matches the one that is written like the number. A fraction such
    as 0.1 also matches the level with the same float32, because a column that was narrowed to
    single precision has lost the other digits.

    Parameters
    ----------
    levels : sequence
        The declared levels.

    Raises
    ------
    ValueError
        If two levels can't be told apart, whatever the type of their column.
    """

    def __init__(self, levels: Sequence[Any]) -> None:
        self._exact = {key(level): place for place, level in enumerate(levels)}
        if not levels or len(self._exact) < len(levels) or UNKNOWN_KEY in self._exact:
            raise ValueError("two levels are equal, or one can't be compared")
        groups: dict[Hashable, list[Any]] = {}
        for level in levels:
            groups.setdefault(meaning(level), []).append(key(level))
        self._numbers = {means: self._exact[group[0]] for means, group in groups.items()}
        self._several = {means for means, group in groups.items() if len(group) > 1}
        for means in self._several:
            if sum(not isinstance(one, str) or _is_written(one) for one in groups[means]) > 1:
                raise ValueError("two levels are the same number")
        self._wide = [means for means in groups if isinstance(means, float)]
        self._fractions: dict[float, int] = {}
        alike = Counter(_in_single(means) for means in self._wide)
        self._fractions = {
            _in_single(means): self.of(means)
            for means in self._wide
            if means != np.trunc(means) and alike[_in_single(means)] == 1
        }

    def of(self, cell: Any) -> int:
        """Return the place of a cell, or -1 if the cell is not a declared level."""
        own = key(cell)
        found = self._exact.get(own)
        if found is not None:
            return found
        means = meaning(cell)
        if means not in self._several:
            found = self._numbers.get(means)
            if found is None and isinstance(means, float):
                found = self._fractions.get(_in_single(means))
            return -1 if found is None else found
        if means in self._exact:
            return self._exact[means]
        if not isinstance(means, float) or abs(means) < _LARGEST_FLOAT_ID:
            return self._exact.get(_as_written(means), -1)
        if isinstance(own, str):
            return -1
        if isinstance(cell, numbers.Integral):
            return self._exact.get(str(int(cell)), -1)
        raise DataError(AMBIGUOUS)

    def __call__(self, values: Any) -> IntArray:
        """Return the places of all cells, in the same shape; a tuple in a list counts as one cell."""
        found = untouched(values, whole=True)
        self._check_type(found.dtype)
        if found.dtype != object:  # gives the same places as below, but faster
            known, back = np.unique(found, return_inverse=True)
            return self(known.astype(object))[back].reshape(found.shape)
        texts: dict[str, int] = {}  # a cache: such a column has few different texts
        each = np.empty(found.size, dtype=np.int64)
        for row, cell in enumerate(_flat(found)):
            if type(cell) is not str:
                each[row] = self.of(cell)
            elif (place := texts.get(cell)) is None:
                each[row] = texts[cell] = self.of(cell)
            else:
                each[row] = place
        return each.reshape(found.shape)

    def _check_type(self, kind: Any) -> None:
        """Raise for a narrow type that can't represent a level, or can't tell two levels apart."""
        if kind.kind != "f" or kind.itemsize >= 8:
            return
        with np.errstate(all="ignore"):
            wrong = [means for means in self._wide if float(kind.type(means)) != means]
        single = kind == np.float32
        if any(not single or _in_single(means) not in self._fractions for means in wrong):
            raise DataError(NARROW)


def _in_single(means: float) -> float:
    """Return the float32 nearest to a number."""
    with np.errstate(all="ignore"):
        return float(np.float32(means))


def _as_written(means: Hashable) -> str:
    """Return the text that NumPy writes for a number below 2^53, or for a missing cell."""
    if not isinstance(means, float):
        return "nan"
    return str(int(means)) if means == int(means) else repr(means)


def _is_written(text: str) -> bool:
    """Return whether NumPy writes a number below 2^53 like this: as an int, a float or a bool."""
    means = meaning(text)
    if isinstance(means, float) and not abs(means) < _LARGEST_FLOAT_ID:
        return False
    return text in ("True", "False", _as_written(means), repr(means))


def _iso(date: Any) -> str:
    if isinstance(date, np.datetime64):
        return str(np.datetime_as_string(date, unit="us"))
    if not isinstance(date, datetime.datetime):
        return f"{date.isoformat()}T00:00:00.000000"
    return date.isoformat(timespec="microseconds")


_IDS = "numbers, texts, dates or tuples of them, without missing parts"


def identity(cell: Any) -> Hashable:
    """Return the canonical id of a unit: equal for equal numbers, texts, dates and tuples of them.

    A text that is written like a number counts as that number. So a column of numbers has the same
    units if one text turns all its numbers into texts. A missing id, an empty text and an id with a
    missing part are refused, because nothing says whose row it is. A float of 2^53 or more is also
    refused, because it may stand for several whole numbers.
    """
    if type(cell) is str:  # as below, but faster
        return _text_identity(_text(cell))
    if is_missing(cell):
        raise DataError(
            "An id in groups is missing. Give every row the id of its unit, or drop it."
        )
    if isinstance(cell, np.ndarray) and cell.ndim == 0:
        return identity(cell.item())
    if isinstance(cell, (datetime.date, np.datetime64)):
        return ("date", _iso(cell))
    if isinstance(cell, (datetime.timedelta, np.timedelta64)):
        raise DataError(f"An id in groups can't be compared. Use {_IDS}.")
    if isinstance(cell, (bool, np.bool_, numbers.Integral)):
        return int(cell)
    if isinstance(cell, (float, np.floating, Decimal, Fraction)):
        value = _nearest(cell)
        if not abs(value) < _LARGEST_FLOAT_ID:
            raise DataError(
                "An id in groups is a float of 2^53 or more, where different whole numbers are the same"
                " float. Use whole numbers or texts."
            )
        return int(value) if value == int(value) else value
    if isinstance(cell, (str, bytes)):
        return _text_identity(_text(cell))
    if isinstance(cell, uuid.UUID):
        return cell
    if isinstance(cell, np.void):
        return identity(cell.item())
    if isinstance(cell, tuple):
        return ("tuple", *(identity(part) for part in cell))
    if isinstance(cell, frozenset):
        return ("set", frozenset(identity(part) for part in cell))
    raise DataError(f"An id in groups can't be compared. Use {_IDS}.")


def is_id(cell: Any) -> bool:
    """Return whether a cell can be the id of a unit."""
    try:
        return not isinstance(cell, (list, np.ndarray)) and identity(cell) is not None
    except DataError:
        return False


def _text_identity(text: str | bytes) -> Hashable:
    """Return the id of a text: that of a number if NumPy writes the number like this text."""
    if isinstance(text, bytes):
        return text
    if text in ("True", "False", "true", "false"):  # as NumPy writes them, and Arrow and polars
        return int(text in ("True", "true"))
    if text == "nan" or not text.strip():
        return identity(None)
    if not _WRITTEN.fullmatch(text):
        return text
    if not text.lstrip("-").isdigit():
        return identity(float(text))
    return int(text) if len(text) < _LONGEST else text


# --- containers --------------------------------------------------------------------------------


def as_numbers(values: Any) -> Array:
    """Return a table or a target as float64, in the same shape, with NaN for missing cells.

    Raises
    ------
    DataError
        If a cell is not a number, if it is a date, or if the rows have different lengths.
    """
    columns = _frame_columns(values)
    if columns is None:
        return _numbers_of(untouched(values))
    found = np.empty((_length(values, columns), len(columns)))
    for place, column in enumerate(columns):
        found[:, place] = _numbers_of(untouched(column))
    return found


def as_table(X: Any) -> Any:
    """Return X as numbers that ``blocks.dense_rows`` can read block by block.

    An array of real numbers stays as it is, a sparse table becomes CSR, and anything else becomes
    float64. An array of a narrower type is converted to float64 by ``dense_rows``, one block at a
    time, which needs less memory than a copy of the whole.
    """
    if sparse.issparse(X):
        return _sparse_table(X)
    plain = isinstance(X, np.ndarray) and not isinstance(X, np.ma.MaskedArray)
    return np.asarray(X) if plain and X.dtype in _EXACT else as_numbers(X)


def _sparse_table(X: Any) -> Any:
    if X.dtype.kind == "c":
        raise DataError("Complex data not supported.")
    if X.dtype.kind not in _NUMBERS:
        raise DataTypeError(NOT_A_NUMBER)
    # the conversion to CSR adds entries at the same place, which a narrow type would round or wrap
    kept = X.format in ("csr", "csc") and X.dtype in _EXACT
    with np.errstate(all="ignore"):
        return (X if kept else X.astype(np.float64)).tocsr()


def with_doubles(X: Any) -> Any:
    """Return X in its own container, with columns of numbers in float64 and all else unchanged.

    This is for models of other libraries. They compute in the type that they are given, and one row
    can decide which type that is.
    """
    if sparse.issparse(X):
        return _sparse_table(X).astype(np.float64)
    if isinstance(X, np.ndarray):
        return as_numbers(X) if X.dtype.kind in _NUMBERS else untouched(X)
    if isinstance(X, (list, tuple)):
        return untouched(X)
    if has(X, "iloc", "columns"):
        found = X.copy(deep=False)
        for place in range(X.shape[1]):
            column = X.iloc[:, place]
            if getattr(column.dtype, "kind", "O") in _NUMBERS:
                found.isetitem(place, as_numbers(column))
        return found
    if has(X, "get_columns", "with_columns"):
        return X.with_columns(
            [c.cast(float) for c in X.get_columns() if c.dtype.is_integer() or c.dtype.is_float()]
        )
    return X


def column_names(X: Any) -> list[Any] | None:
    """Return the names of the columns of a data frame or an Arrow table, or None.

    The attribute ``columns`` of an Arrow table holds the cells, which no message may quote.
    """
    found = X.column_names if has(X, "column_names") else X.columns if has(X, "columns") else None
    if found is None:
        return None
    with contextlib.suppress(TypeError):  # names can be hashed, and columns can't
        names = list(found)
        hash(tuple(names))
        return names
    return None


def cell_columns(X: Any) -> list[Any]:
    """Return the columns of a table, each as an array of numbers or of unconverted cells.

    No column is converted because of another column, and no cell because of another cell.
    """
    if sparse.issparse(X):
        raise DataError(
            "Sparse data was passed, but declared levels need a dense table. Use '.toarray()'."
        )
    columns = _frame_columns(X)
    if columns is not None:
        return [untouched(column) for column in columns]
    if getattr(getattr(X, "dtype", None), "kind", "") == "c":
        raise DataError("Complex data not supported.")
    table = untouched(X)
    if table.ndim != 2:
        raise DataError(
            f"Expected 2D array, got an array of shape {table.shape} instead. Reshape your data: one row"
            " per record, one column per variable."
        )
    return [table[:, place] for place in range(table.shape[1])]


def untouched(values: Any, *, whole: bool = False) -> Any:
    """Return an array of real numbers as it is, and anything else as an array of its objects.

    A list of lists, tuples or arrays has two dimensions. With ``whole``, the entries of a list are
    cells even if they are tuples; only lists and arrays still count as rows.
    """
    columns = _frame_columns(values)
    if columns is not None:
        found = np.empty((_length(values, columns), len(columns)), dtype=object)
        for place, column in enumerate(columns):
            found[:, place] = untouched(column).astype(object)
        return found
    if getattr(getattr(values, "dtype", None), "kind", "") == "m" and not has(values, "iloc"):
        raise DataTypeError(DURATIONS)
    if isinstance(values, np.ma.MaskedArray):
        return _unmasked(values)
    if isinstance(values, np.ndarray):
        return _of_array(np.asarray(values))
    if isinstance(values, (list, tuple)):
        return _of_list(values, whole)
    if sparse.issparse(values):
        raise DataError("y must be a dense array, not a sparse one.")
    if has(values, "to_pylist"):
        return _of_arrow(values)
    if has(values, "to_list", "dtype"):
        return _of_series(values)
    if has(values, "__array__"):
        return untouched(_own_array(values, np.asarray))
    if isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
        return _of_list(_own_array(values, list), whole)
    return _objects([values]).reshape(())


def meanings(values: Any) -> list[Hashable]:
    """Return the ``meaning`` of every cell, with fractions as float32; tuples in a list are cells."""
    found = [meaning(cell) for cell in _flat(untouched(values, whole=True))]
    return [
        _in_single(one) if isinstance(one, float) and one != np.trunc(one) else one for one in found
    ]


def units(groups: Any) -> tuple[IntArray, int]:
    """Return the unit of every row, numbered from 0, and the number of units."""
    found = untouched(groups, whole=True)
    if found.ndim != 1:
        raise DataError("groups must have one dimension: one id per row.")
    if found.dtype.kind in "biu":
        known, places = np.unique(found, return_inverse=True)
        return places.astype(np.int64), len(known)
    narrow = found.dtype.kind == "f" and found.dtype.itemsize < 8
    if narrow and (abs(found) >= 2.0 ** (np.finfo(found.dtype).nmant + 1)).any():
        raise DataError(NARROW_IDS)
    if found.dtype.kind == "f" and (abs(found) < _LARGEST_FLOAT_ID).all():  # as below, but faster
        known, places = np.unique(found, return_inverse=True)
        return places.astype(np.int64), len(known)
    seen: dict[Hashable, int] = {}
    each = [seen.setdefault(identity(cell), len(seen)) for cell in _flat(found)]
    return np.array(each, dtype=np.int64), len(seen)


def shape_of(values: Any) -> tuple[int, ...]:
    """Return the shape of a table or a target without converting it, or () for anything else."""
    shape = getattr(values, "shape", None)
    if shape is not None:
        return tuple(int(size) for size in shape)
    columns = _frame_columns(values)
    if columns is not None:
        return _length(values, columns), len(columns)
    if isinstance(values, (list, tuple)) or has(values, "__array__"):
        return tuple(untouched(values).shape)
    return ()


def take_rows(table: Any, rows: Sequence[int] | IntArray | slice) -> Any:
    """Return some rows of a table or target by position, in its own container; no cell changes."""
    if has(table, "iloc"):
        return table.iloc[rows]
    if sparse.issparse(table):
        return _sparse_table(table)[rows]
    if isinstance(rows, slice):
        return table.slice(rows.start, rows.stop - rows.start) if _is_arrow(table) else table[rows]
    if isinstance(table, (list, tuple)):
        return [table[int(row)] for row in rows]
    if has(table, "take") and not isinstance(table, np.ndarray):
        return table.take(rows)
    return table[rows]


# --- kinds of containers -------------------------------------------------------------------------


def has(value: Any, *names: str) -> bool:
    """Return whether the class of a value has all these attributes.

    Columns of a pandas frame and labels of the rows of its columns are attributes of the object itself.
    A row whose label is "columns" must not decide how all rows are read.
    """
    return all(hasattr(type(value), name) for name in names)


def _frame_columns(values: Any) -> list[Any] | None:
    """Return the columns of a data frame or an Arrow table, or None for anything else."""
    if isinstance(values, np.ndarray) or sparse.issparse(values):
        return None
    if has(values, "iloc", "columns"):
        return [values.iloc[:, place] for place in range(values.shape[1])]
    if has(values, "get_columns", "columns"):
        return list(values.get_columns())
    if has(values, "itercolumns", "schema"):
        return list(values.itercolumns())
    return None


def _is_arrow(values: Any) -> bool:
    return type(values).__module__.partition(".")[0] == "pyarrow"


def _length(values: Any, columns: list[Any]) -> int:
    return len(columns[0]) if columns else int(values.shape[0])


def _of_array(values: Any) -> Any:
    if values.dtype in _EXACT or values.dtype == object:
        return values
    if values.dtype.kind == "f":  # wider than float64: one rounding per entry
        with np.errstate(all="ignore"):
            return values.astype(np.float64)
    if values.dtype.kind in "US":
        return values.astype(object)
    found = np.empty(values.shape, dtype=object)
    for place in np.ndindex(values.shape):
        found[place] = values[place]
    return found


def _own_array(values: Any, make: Callable[[Any], Any]) -> Any:
    """Convert a foreign container by its own method; hide its errors, which may quote the data."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with contextlib.suppress(Exception):
            return make(values)
    raise DataTypeError(f"A {type(values).__name__} of these rows can't be read as an array.")


def _unmasked(values: Any) -> Any:
    """Return the data of a masked array, with masked entries as missing."""
    data, hidden = _of_array(np.asarray(values.data)), np.ma.getmaskarray(values)
    if hidden.dtype.names is not None:
        raise DataError("A masked array of records can't be used. Pass one column per field.")
    if not hidden.any():
        return data
    found = data.astype(object)
    found[hidden] = None
    return found


def _of_series(values: Any) -> Any:
    """Return the cells of a pandas or polars column."""
    kind = values.dtype
    if isinstance(kind, np.dtype):
        return _of_array(values.to_numpy())
    if has(values, "null_count"):  # polars
        if kind.is_nested():
            raise DataTypeError(NESTED)
        plain = (kind.is_integer() or kind.is_float()) and not str(kind).endswith("128")
        if plain and not values.null_count():
            return _of_array(values.to_numpy())
        return _objects(values.to_list())
    # NumPy asks a pandas column itself for attributes, among which are the labels of its rows
    return np.asarray(values.array if has(values, "array") else values, dtype=object)


def _of_arrow(values: Any) -> Any:
    """Return the cells of an Arrow column; a cell that Arrow itself can't read is missing."""
    import pyarrow

    if pyarrow.types.is_nested(values.type):
        raise DataTypeError(NESTED)
    return arrow_cells(values, _objects)


def arrow_cells(column: Any, objects: Callable[[list[Any]], Any]) -> Any:
    """Return an Arrow column as an array of numbers, or as ``objects`` of its Python values.

    A cell that Arrow can't turn into a value, such as invalid UTF-8 or a date out of range, becomes
    None.
    """
    import pyarrow

    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        return arrow_cells(column.cast(kind.value_type, safe=False), objects)
    whole = pyarrow.types.is_integer(kind) and not column.null_count
    if pyarrow.types.is_floating(kind) or whole:
        options = {} if isinstance(column, pyarrow.ChunkedArray) else {"zero_copy_only": False}
        return np.asarray(column.to_numpy(**options))
    try:
        return objects(column.to_pylist())
    except (ValueError, OverflowError, pyarrow.ArrowException):
        return objects([_arrow_value(cell) for cell in column])


def _arrow_value(cell: Any) -> Any:
    try:
        return cell.as_py()
    except Exception:
        return None


def _of_list(values: Sequence[Any], whole: bool) -> Any:
    """Return a list of cells, or a list of rows, as an array of its objects."""
    kinds = (list, np.ndarray) if whole else (list, tuple, np.ndarray)
    rows = [_is_row(value, kinds) for value in values]
    if not any(rows):
        return _objects(values)
    if not all(rows):
        raise DataError(RAGGED)
    lengths = {len(row) for row in values}
    if len(lengths) != 1:
        raise DataError(RAGGED)
    found = np.empty((len(values), lengths.pop()), dtype=object)
    for place, row in enumerate(values):
        cells = list(row.array if has(row, "iloc") else row)
        for column, cell in enumerate(cells):
            found[place, column] = cell
    return found


def _is_row(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, kinds) or (has(value, "iloc") and not has(value, "columns"))


def _objects(values: Sequence[Any]) -> Any:
    found = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        found[place] = value
    return found


def _numbers_of(values: Any) -> Array:
    """Return an array of numbers or of unconverted cells as float64."""
    if values.dtype != object:
        with np.errstate(all="ignore"):
            return np.asarray(values, dtype=np.float64)
    flat = _flat(values)
    found = None
    if _PLAIN.issuperset(map(type, flat)):  # gives the same numbers as below, but faster
        try:
            found = np.array(flat, dtype=np.float64) if flat else np.empty(0)
        except OverflowError:
            found = None
    if found is None:
        found = np.fromiter((number(cell) for cell in flat), np.float64, len(flat))
    return found.reshape(values.shape)


def _flat(values: Any) -> list[Any]:
    """Return all cells as a flat list; objects are not converted."""
    return list(values.ravel().tolist())
