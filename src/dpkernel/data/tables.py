"""Tables as scikit-learn takes them, checked without a data value in any message.

In our threat model the adversary sees errors that occur before a spend, and scikit-learn's own
messages quote arrays and entries. Therefore ``cells`` turns cells into numbers, scikit-learn only
sees the result, and each of its messages is replaced by one of ours, which mentions shapes, dtypes
and column names only.
"""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length, column_or_1d
from sklearn.utils.validation import validate_data

from dpkernel.data.cells import NOT_A_NUMBER, as_numbers, as_table, cell_columns, has, shape_of
from dpkernel.foundations.errors import DataError, DataTypeError, NoRowsError
from dpkernel.foundations.types import JSON, Array

F = TypeVar("F", bound=Callable[..., Any])

MISSING = (
    "The input contains NaN or infinity (inf). Private estimators refuse missing and infinite values:"
    " filling them from the data would leak. Fill them with public constants first, or drop those rows"
    " for a reason that is public. preprocessing.PrivateImputer, as a step of a PrivatePipeline, finds"
    " medians privately."
)
# complete messages of scikit-learn that contain only counts, shapes and class names
_SAFE = tuple(
    re.compile(pattern)
    for pattern in (
        r"Found input variables with inconsistent numbers of samples: \[[\d, ]+\]",
        r"X has \d+ features, but \w+ is expecting \d+ features as input\.?",
        r"Found array with \d+ (sample|feature)\(s\) \(shape=\([\d, ]*\)\) while a minimum of \d+ is"
        r" required( by \w+)?\.?",
        r"Found array with dim \d+[,.] [\w ]+ dim <= \d( is)? required( by \w+)?\.?",
        r"(This \w+ estimator )?requires y to be passed, but the target y is None\.?",
        r"y cannot be None",
        r"y should be a 1d array, got an array of shape \([\d, ]*\) instead\.?",
    )
)
# messages with these beginnings continue with advice or with column names, which are public
_SAFE_STARTS = (
    "Sparse data was passed",
    "The feature names should match those that were passed during fit.",
    "Feature names are only supported if all input features have string names",
)
_SAME_NAME = "Two columns of X have the same name. Give each column its own name."
_SIZES = (  # of messages about shapes, and what stands in for the number of rows
    (re.compile(r": \[[\d, ]+\]"), ""),
    (re.compile(r"\(\d+,"), "(n,"),
    (re.compile(r"n_rows=\d+"), "n_rows"),
    (re.compile(r"Block \d+ of"), "A block of"),
)
NO_TARGET = "no_validation"  # stands for y if there is none, as in scikit-learn
_CHECKED_ROWS = 1 << 16  # rows that are searched for missing values at one time


@dataclass(frozen=True)
class Columns:
    """The number of columns of a table and, if all of them are texts, their names."""

    count: int
    names: Any = None

    @classmethod
    def of(cls, count: int, names: Any) -> Columns:
        """Return the columns of a table that scikit-learn's ``validate_data`` can't read."""
        known = names is not None and all(isinstance(name, str) for name in names)
        return cls(count, np.asarray(list(names), dtype=object) if known else None)

    @classmethod
    def on(cls, estimator: Any) -> Columns:
        """Return the columns of the table that an estimator was fitted to."""
        return cls(estimator.n_features_in_, getattr(estimator, "feature_names_in_", None))

    def to_dict(self) -> JSON:
        """Return the number and the names as a model file states them."""
        names = None if self.names is None else [str(name) for name in self.names]
        return {"n_columns": self.count, "columns": names}

    def set_on(self, estimator: Any) -> None:
        """Set ``n_features_in_`` and ``feature_names_in_`` of an estimator, once a fit has succeeded."""
        estimator.n_features_in_ = self.count
        if self.names is not None:
            estimator.feature_names_in_ = self.names
        elif hasattr(estimator, "feature_names_in_"):
            del estimator.feature_names_in_


def table_to_train(
    estimator: Any, X: Any, y: Any = NO_TARGET, **options: Any
) -> tuple[Any, Any, Columns]:
    """Return X and y as ``checked_table`` does, and the columns. The estimator learns nothing yet."""
    learner = BaseEstimator()
    found = checked_table(estimator, X, y, sparse_too=True, learner=learner, **options)
    return *(found if isinstance(found, tuple) else (found, None)), Columns.on(learner)


def checked_table(
    estimator: Any,
    X: Any,
    y: Any = NO_TARGET,
    *,
    sparse_too: bool = False,
    missing: str = "refused",
    several: bool = False,
    narrow: bool = False,
    reset: bool = True,
    learner: Any = None,
) -> Any:
    """Return X, or X and y, as numbers, or raise DataError with a message that quotes no data.

    Parameters
    ----------
    estimator : scikit-learn estimator
        It learns the number and the names of the columns or, with ``reset=False``, checks them.
    learner : scikit-learn estimator, optional
        What learns them in place of the estimator, which messages then only name.
    X, y : table and target of any kind
        They become float64 cell by cell; see ``cells``. Without y only X is checked.
    sparse_too : bool
        Whether X may be sparse. It then becomes CSR with one entry per place.
    missing : {"refused", "nan", "any"}
        "nan" allows NaN in X, and "any" also allows infinities. Both are always refused in y.
    several : bool
        Whether y may have several columns.
    narrow : bool
        Whether an array of narrower numbers may stay as it is, to be read with ``dense_rows``.
    """
    failed = (
        None  # raised after ``except``, because the foreign error would stay reachable as a context
    )
    try:
        with np.errstate(all="ignore"):  # a warning would reveal something of the data
            learns = estimator if learner is None else learner
            found, target = _checked(estimator, X, y, sparse_too, several, learns, reset)
    except DataError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        failed = _own_words(error, X)
    if failed is not None:
        raise failed
    if not sparse.issparse(found) and not narrow:
        # in one order of memory, because the last bits of a product may depend on it
        found = np.ascontiguousarray(found, dtype=np.float64)
    refuse_missing(found, missing)
    if target is None:
        return found
    refuse_missing(target, "refused")
    return found, target


def _checked(
    estimator: Any, X: Any, y: Any, sparse_too: bool, several: bool, learns: Any, reset: bool
) -> tuple[Any, Any]:
    """Return X and y as numbers, after scikit-learn has checked their shapes and names."""
    if sparse.issparse(X) and not sparse_too:
        raise TypeError("Sparse data was passed, but dense data is required. Use '.toarray()'.")
    options: dict[str, Any] = {"dtype": None, "ensure_all_finite": False, "estimator": estimator}
    table = check_array(as_table(X), accept_sparse="csr", **options)
    named = X if has(X, "columns") else table
    target = None
    if y is None:
        owner = type(estimator).__name__
        raise ValueError(
            f"This {owner} estimator requires y to be passed, but the target y is None."
        )
    if not (isinstance(y, str) and y == NO_TARGET):
        target = as_numbers(y)
        if several:
            target = check_array(target, ensure_2d=False, input_name="y", **options)
        else:
            target = column_or_1d(target, warn=True)
        check_consistent_length(table, target)
    validate_data(learns, named, skip_check_array=True, reset=reset)
    return summed_duplicates(table), target


@contextlib.contextmanager
def sizes_hidden() -> Iterator[None]:
    """Remove the number of rows, which is private, from error messages about a table."""
    try:
        yield
    except NoRowsError:
        raise
    except DataError as error:
        # a new error would keep this one, with its sizes, as its context
        text = str(error)
        for pattern, words in _SIZES:
            text = pattern.sub(words, text)
        error.args = (text,)
        raise


def check_columns(estimator: Any, X: Any, *, reset: bool = True) -> list[Any]:
    """Return the columns of X as unconverted cells; see ``cells.cell_columns``.

    The estimator learns their number and names or, with ``reset=False``, checks them.
    """
    columns = cell_columns(X)
    for count, what in ((len(columns), "feature"), (len(columns[0]) if columns else 1, "sample")):
        if not count:
            raise DataError(
                f"Found array with 0 {what}(s) (shape={shape_of(X)}) while a minimum of 1 is required."
            )
    failed = None
    try:
        named = X if has(X, "columns") else np.empty((1, len(columns)))
        validate_data(estimator, named, skip_check_array=True, reset=reset)
    except (ValueError, TypeError) as error:
        failed = _own_words(error, X)
    if failed is not None:
        raise failed
    return columns


def refuse_missing(values: Any, missing: str = "refused") -> None:
    """Raise DataError for NaN and infinities; "nan" allows NaN, and "any" allows both.

    scikit-learn can be configured to skip this check. A private estimator can't.
    """
    entries = values.data if sparse.issparse(values) else np.atleast_1d(values)
    if missing == "any" or entries.dtype.kind != "f":
        return
    for start in range(0, len(entries), _CHECKED_ROWS):
        part = entries[start : start + _CHECKED_ROWS]
        fine = ~np.isinf(part) if missing == "nan" else np.isfinite(part)
        if not fine.all():
            raise DataError(MISSING)


def summed_duplicates(X: Any) -> Any:
    """Return a CSR table with one entry per place, and leave arrays as they are.

    Entries at the same place are added in float64. The caller's table stays unchanged.
    """
    if not sparse.issparse(X) or X.has_canonical_format:
        return X
    X = X.astype(np.float64)  # a copy
    X.sum_duplicates()
    return X


def framed(values: Array, like: Any) -> Any:
    """Return an array as a data frame or an Arrow table with the columns of ``like``."""
    if not getattr(like.columns, "is_unique", True):
        raise DataError(_SAME_NAME)
    kind = type(like)  # a column may have the name of an attribute, so only the class is asked
    if hasattr(kind, "from_arrays"):  # an Arrow table
        return kind.from_arrays(list(values.T), names=like.column_names)
    if hasattr(kind, "to_delayed"):  # a Dask data frame consists of those of its _meta
        kind = type(like._meta)
    option = "columns" if hasattr(kind, "iloc") else "schema"
    return kind(values, **{option: list(like.columns)})


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppress warnings, also those of floating point, because they may reveal something of the data."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def without_traps(function: F) -> F:
    """Return a function in which no floating-point error raises or warns, in any mode of NumPy.

    A user's ``np.seterr(all="raise")`` must not end a fit that is already paid for.
    """

    @functools.wraps(function)
    def quiet(*arguments: Any, **options: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments, **options)

    return cast(F, quiet)


def as_floats(values: Any, name: str) -> Array:
    """Return values as float64, or raise an error that does not quote them."""
    if sparse.issparse(values):
        raise DataError(f"{name} must be a dense array, not a sparse one.")
    try:
        return as_numbers(values)
    except DataError:
        pass
    raise DataError(f"{name} has an entry that is not a number.")


def _own_words(error: Exception, X: Any) -> DataError:
    text = str(error)
    if text.startswith("Found array with 0 sample(s)"):
        return NoRowsError(text)
    if any(pattern.fullmatch(text) for pattern in _SAFE) or text.startswith(_SAFE_STARTS):
        return DataError(text)
    if "Expected 2D" in text or (sparse.issparse(X) and X.ndim != 2):
        return DataError(
            f"Expected 2D array, got an array of shape {shape_of(X)} instead. Reshape your data: one row"
            " per record, one column per variable."
        )
    if has(X, "columns") and not getattr(X.columns, "is_unique", True):
        return DataError(_SAME_NAME)
    return DataTypeError(NOT_A_NUMBER) if isinstance(error, TypeError) else DataError(NOT_A_NUMBER)
