"""Tables as scikit-learn takes them, checked without a value of the data in any message.

Errors before a spend are seen by the adversary of our threat model, and scikit-learn's own texts quote
arrays and entries. Every foreign text is replaced by a sentence of ours that knows shapes, dtypes and
column names only.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from dpkernel.errors import DataError
from dpkernel.types import Array

_ADVICE = (
    "Private estimators refuse missing and infinite values: filling them from the data would leak."
    " Fill them with public constants first, or drop those rows for a reason that is public."
)
# texts of scikit-learn that speak of shapes, counts and names alone
_SAFE = re.compile(
    r"inconsistent numbers of samples|sample\(s\)|feature\(s\)|features, but|feature names|"
    r"requires y to be passed|y cannot be None|dense data is required|[Ss]parse data|"
    r"should be a 1d array|Found array with dim"
)


class DataTypeError(DataError, TypeError):
    """An entry has a type that is no number."""


def checked_table(estimator: Any, X: Any, y: Any = "no_validation", **options: Any) -> Any:
    """Return what scikit-learn's ``validate_data`` returns, or raise DataError in our own words."""
    try:
        with np.errstate(all="ignore"):  # a floating-point warning would tell of the data
            return validate_data(estimator, X, y, **options)
    except (ValueError, TypeError, OverflowError) as error:
        raise _own_words(error, X) from None


def as_floats(values: Any, name: str) -> Array:
    """Return values as float64, or raise without quoting one."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        raise DataError(f"{name} has an entry that is not a number.") from None


def _own_words(error: Exception, X: Any) -> DataError:
    text = str(error)
    if "NaN" in text or "infinity" in text or "missing values" in text:
        return DataError(f"The input contains NaN or infinity (inf). {_ADVICE}")
    if "Expected 2D array" in text:
        return DataError(
            f"Expected 2D array, got an array of shape {np.shape(X)} instead. Reshape your data: one row"
            " a record, one column a variable."
        )
    if "Complex data" in text:
        return DataError("Complex data not supported.")
    if _SAFE.search(text) and "array=" not in text:
        return DataError(text.splitlines()[0] if "feature names" not in text else text)
    advice = (
        "X or y has an entry that is not a number: each argument must be a string of digits or a real"
        " number. Encode columns of text with publicly declared levels first."
    )
    return DataTypeError(advice) if isinstance(error, TypeError) else DataError(advice)
