"""Free steps of a pipeline, which learn nothing and compute each row from that row alone.

Trying a step on rows can't prove this, so there is a list of free steps. scikit-learn's transformers on
this list are fitted to public numbers, never to rows, and keep only the number and the names of columns.
Their warnings and errors may quote rows, so these texts are never passed on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.preprocessing import FunctionTransformer

from dpkernel.data.tables import check_columns, checked_table, quietly, refuse_missing
from dpkernel.estimators.surroundings import FOREIGN, FUNCTIONS, is_listed
from dpkernel.foundations.errors import DataError, DPKernelError, ParameterError
from dpkernel.foundations.types import Array
from dpkernel.preprocessing.categories import DeclaredCategories

PASS = "passthrough"
_INSTEAD = "apply it to the table, row by row, before the pipeline"


def check_free(name: str, step: Any) -> None:
    """Raise for a step that is not on the list of free steps."""
    kind = type(step)
    if (isinstance(step, str) and step == PASS) or kind is DeclaredCategories:
        return
    if kind is not FOREIGN.get(kind.__name__):
        raise ParameterError(
            f"The step {name!r} ({kind.__name__}) may learn from the data without noise or mix rows."
            f" Use a private transformer of dpkernel.preprocessing instead, or {_INSTEAD}."
        )
    if kind is not FunctionTransformer:
        return
    if not is_listed(step.func) or not is_listed(step.inverse_func):
        raise ParameterError(
            f"The function of the step {name!r} is not one of NumPy's functions of one number"
            f" ({', '.join(FUNCTIONS)}). Instead, {_INSTEAD}."
        )
    if step.kw_args or step.inv_kw_args or callable(step.feature_names_out):
        raise ParameterError(
            f"The FunctionTransformer of the step {name!r} has arguments for its function, or a"
            f" function for names. A pipeline does not accept these. Instead, {_INSTEAD}."
        )


def through_free_step(name: str, step: Any, table: Any, *, spent: bool) -> tuple[Any, Any]:
    """Return a clone of a free step that knows the columns, and the transformed rows of a table.

    ``spent`` says whether the budget is already spent, for the text of an error.
    """
    if isinstance(step, str):
        return step, table
    ready = clone(step)
    cost = "The budget of the whole pipeline was spent before." if spent else "Nothing was spent."
    failed = ""
    try:
        if isinstance(ready, DeclaredCategories):
            ready.fit(table)
        else:
            _checked(ready, table, reset=True)
            names = getattr(ready, "feature_names_in_", None)
            fit_to_columns(name, ready, ready.n_features_in_, names)
        return ready, transformed(name, ready, table)
    except DPKernelError as error:
        failed = str(error)
    except Exception as error:
        failed = type(error).__name__  # a foreign text may quote an entry
    raise DataError(f"The step {name!r} failed ({failed}). {cost}")


def fit_to_columns(name: str, step: Any, n_columns: int, names: Any) -> None:
    """Fit one of scikit-learn's free steps to public numbers in this many columns."""
    failed = ""
    try:
        with quietly():
            step.fit(np.full((2, n_columns), 0.5))
    except Exception as error:
        failed = str(error)  # this text is about parameters only, because there are no rows
    if failed:
        raise ParameterError(f"The step {name!r} can't be fitted: {failed}")
    if names is not None:
        step.feature_names_in_ = np.asarray(names, dtype=object)


def transformed(name: str, step: Any, table: Any) -> Any:
    """Return the rows of a table, transformed by a fitted step.

    If the result of a free step is not finite, it counts as 0, so that later steps can't fail because of
    one row. A missing value before a function of one number stays missing.
    """
    if isinstance(step, str):
        return table
    if type(step) is not FOREIGN.get(type(step).__name__):
        return step.transform(table)
    rows = _checked(step, table, reset=False)
    if isinstance(step, FunctionTransformer):
        return table if step.func is None else _by_number(name, step.func, rows)
    refuse_missing(rows)
    failed = ""
    try:
        with quietly():
            found = step.transform(rows)
    except Exception as error:
        failed = type(error).__name__  # a foreign text may quote an entry
    if failed:
        raise DataError(f"The step {name!r} failed ({failed}).")
    if not sparse.issparse(found):
        return _or_zero(np.asarray(found, dtype=np.float64))
    found.data = _or_zero(found.data)
    return found


def _by_number(name: str, function: Any, rows: Any) -> Any:
    """Return a function of every number, or of every stored number of a sparse table."""
    with np.errstate(all="ignore"):
        if not sparse.issparse(rows):
            return np.where(np.isnan(rows), rows, _or_zero(function(rows)))
        if function(0.0) != 0:
            raise DataError(
                f"The function of the step {name!r} does not map 0 to 0, so it can't be applied to a"
                " sparse table. Pass a dense table."
            )
        found = rows.copy()
        found.data = np.where(np.isnan(rows.data), rows.data, _or_zero(function(rows.data)))
        return found


def _or_zero(values: Array) -> Array:
    return np.where(np.isfinite(values), values, 0.0)


def _checked(step: Any, table: Any, *, reset: bool) -> Any:
    """Return the rows as numbers, or the table itself if the step passes it on as it is."""
    if isinstance(step, FunctionTransformer) and step.func is None and not sparse.issparse(table):
        check_columns(step, table, reset=reset)
        return table
    return checked_table(step, table, sparse_too=True, missing="any", reset=reset)
