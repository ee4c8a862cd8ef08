"""Tables as scikit-learn takes them, checked without a value of the data in any message.

Errors before a spend are seen by the adversary of our threat model, and scikit-learn's own texts quote
arrays and entries. Every foreign text is replaced by a sentence of ours that knows shapes, dtypes and
column names only.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils.validation import validate_data

from dpkernel.errors import DataError
from dpkernel.types import Array

MISSING = (
    "The input contains NaN or infinity (inf). Private estimators refuse missing and infinite values:"
    " filling them from the data would leak. Fill them with public constants first, or drop those rows"
    " for a reason that is public."
)
# whole texts of scikit-learn that hold counts, shapes and class names alone
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
# texts that begin like this go on with advice or with column names, which are public
_SAFE_STARTS = (
    "Sparse data was passed",
    "The feature names should match those that were passed during fit.",
)


class DataTypeError(DataError, TypeError):
    """An entry has a type that is no number."""


def checked_table(estimator: Any, X: Any, y: Any = "no_validation", **options: Any) -> Any:
    """Return what scikit-learn's ``validate_data`` returns, or raise DataError in our own words.

    With ``accept_sparse="csr"`` every sparse format becomes CSR with one entry a place.
    """
    failed = (
        None  # raised outside of ``except``: the foreign error would stay reachable as a context
    )
    try:
        with np.errstate(all="ignore"):  # a floating-point warning would tell of the data
            found = validate_data(estimator, X, y, **options)
    except (ValueError, TypeError, OverflowError) as error:
        failed = _own_words(error, X)
    if failed is not None:
        raise failed
    if isinstance(found, tuple):
        return summed_duplicates(found[0]), found[1]
    return summed_duplicates(found)


def summed_duplicates(X: Any) -> Any:
    """Return a CSR table with one entry a place, the caller's own unchanged; arrays as they are."""
    if not sparse.issparse(X) or X.has_canonical_format:
        return X
    X = X.copy()
    X.sum_duplicates()
    if not np.isfinite(X.data).all():
        raise DataError(MISSING)
    return X


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep warnings inside, those of floating point included: they may tell of the data."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def as_floats(values: Any, name: str) -> Array:
    """Return values as float64, or raise without quoting one."""
    if sparse.issparse(values):
        raise DataError(f"{name} must be a dense array, not a sparse one.")
    with np.errstate(all="ignore"), contextlib.suppress(ValueError, TypeError, OverflowError):
        return np.asarray(values, dtype=np.float64)
    raise DataError(f"{name} has an entry that is not a number.")


def _own_words(error: Exception, X: Any) -> DataError:
    text = str(error)
    if any(pattern.fullmatch(text) for pattern in _SAFE) or text.startswith(_SAFE_STARTS):
        return DataError(text)
    if "NaN" in text or "infinity" in text or "missing values" in text:
        return DataError(MISSING)
    if "Expected 2D" in text or (sparse.issparse(X) and X.ndim != 2):
        return DataError(
            f"Expected 2D array, got an array of shape {np.shape(X)} instead. Reshape your data: one row"
            " a record, one column a variable."
        )
    if not getattr(getattr(X, "columns", None), "is_unique", True):
        return DataError("Two columns of X have one name. Give each column a name of its own.")
    if "Complex data" in text:
        return DataError("Complex data not supported.")
    advice = (
        "X or y has an entry that is not a number: each argument must be a string of digits or a real"
        " number. Encode columns of text with publicly declared levels first."
    )
    return DataTypeError(advice) if isinstance(error, TypeError) else DataError(advice)
