"""The candidates of a search, and the tables that it trains and scores them on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import ParameterGrid, ParameterSampler

from dpkernel.data.blocks import is_stream, off_device
from dpkernel.data.cells import has, untouched
from dpkernel.data.declared import interval_of
from dpkernel.data.domain import Domain, Levels
from dpkernel.data.labels import classes_of
from dpkernel.data.tables import framed
from dpkernel.estimators.ridge import PrivateKernelRidge
from dpkernel.foundations.errors import DataError, ParameterError, parameter_message
from dpkernel.foundations.types import is_real
from dpkernel.selection.losses import one_column
from dpkernel.solvers.erm_schedules import is_schedule

_OWN = (
    "epsilon",
    "delta",
    "ledger",
    "noise",
    "neighbours",
    "verbose",
    "bounds",
    "y_bounds",
    "classes",
)
_MOST = 10_000


def list_candidates(
    estimator: Any, distributions: Any, n_candidates: int | None, seed: int
) -> list[dict[str, Any]]:
    """Return the candidates. Raises if the grid is empty or names a parameter that it must not."""
    owner = "PrivateSearchCV"
    grids = [distributions] if isinstance(distributions, Mapping) else distributions
    fine = isinstance(grids, Sequence) and not isinstance(grids, str)
    if not fine or not all(isinstance(grid, Mapping) for grid in grids) or not any(grids):
        got = type(distributions).__name__ if distributions else "nothing to choose from"
        allowed = "a dict of values to try, or a list of such dicts"
        raise ParameterError(parameter_message(owner, "param_distributions", allowed, got))
    names = set(estimator.get_params())
    for name in (name for grid in grids for name in grid):
        if name in _OWN or name not in names:
            advice = "The search itself sets this parameter." if name in _OWN else ""
            allowed = f"over parameters of {type(estimator).__name__} that a search may choose"
            raise ParameterError(
                parameter_message(owner, "param_distributions", allowed, name, advice)
            )
    drawn = any(hasattr(values, "rvs") for grid in grids for values in grid.values())
    if drawn and n_candidates is None:
        allowed = "an int >= 1 if there are distributions"
        raise ParameterError(parameter_message(owner, "n_candidates", allowed, None))
    for grid in grids:
        for name, values in grid.items():
            if hasattr(values, "rvs"):
                continue
            if isinstance(values, str) or not hasattr(values, "__len__") or len(values) == 0:
                allowed = f"a list of one or more values for {name!r}"
                got = (
                    f"{len(values)} values" if hasattr(values, "__len__") else type(values).__name__
                )
                raise ParameterError(parameter_message(owner, "param_distributions", allowed, got))
    if drawn:
        found = list(ParameterSampler(list(grids), int(n_candidates or 1), random_state=seed))
    else:
        size = len(ParameterGrid(list(grids)))
        if (n_candidates is None or n_candidates >= size) and size <= _MOST:
            found = list(ParameterGrid(list(grids)))
        elif n_candidates is None:
            advice = "Pass n_candidates to try some of them."
            allowed = f"at most {_MOST} combinations"
            raise ParameterError(
                parameter_message(owner, "param_distributions", allowed, size, advice)
            )
        else:
            found = list(ParameterSampler(list(grids), int(n_candidates), random_state=seed))
    return [dict(candidate) for candidate in found]


def free_choices(
    estimator: Any, candidates: Sequence[Mapping[str, Any]]
) -> list[tuple[float | None, int | None]] | None:
    """Return (Lambda, leading features) of each candidate, or None if the choice is not free.

    A choice is free if it can be computed from the released matrices of folds. This is the case for any
    Lambda and, if the features are ordered, for any number of leading features.
    """
    if type(estimator) is not PrivateKernelRidge or estimator.solver != "gram":
        return None
    names = {name for candidate in candidates for name in candidate}
    if not names <= {"regularisation", "n_features"}:
        return None
    for candidate in candidates:  # the estimator itself raises for values that it refuses
        trial = clone(estimator).set_params(**candidate, folds=1)
        trial._check_parameters()
    if any(is_schedule(candidate.get("regularisation")) for candidate in candidates):
        return None  # a theorem also chooses the number of features
    sizes = {candidate.get("n_features") for candidate in candidates}
    if "n_features" in names and ("auto" in sizes or None in sizes or not _ordered(estimator)):
        return None
    return [
        (
            None if c.get("regularisation", "auto") == "auto" else float(c["regularisation"]),
            int(c["n_features"]) if "n_features" in c else None,
        )
        for c in candidates
    ]


def _ordered(estimator: Any) -> bool:
    """Whether the features of a ridge are eigenfunctions in order, the leading ones first."""
    if estimator.features == "eigen":
        return True
    exact = str(getattr(estimator.kernel, "name", estimator.kernel)) in ("linear", "polynomial")
    return estimator.features == "auto" and estimator.bounds is not None and not exact


def blank_table(
    estimator: Any, n_rows: int, n_columns: int | None, like: tuple[Any, Any] | None = None
) -> tuple[Any, Any]:
    """Return a table of this size that reveals nothing: zeros, and one target in the declared range.

    If ``like`` is given, the result has the container (dense, sparse or data frame), the column names
    and the number of targets of that table (X, y).
    """
    if n_rows < 1:
        raise ParameterError(parameter_message("PrivateSearchCV.plan", "n", "an int >= 1", n_rows))
    bounds = estimator.bounds
    if n_columns is None and isinstance(bounds, Domain) and bounds.columns is not None:
        n_columns = len(bounds.columns)
    elif n_columns is None and bounds is not None and not isinstance(bounds, Domain):
        listed = isinstance(bounds, list) and all(isinstance(end, tuple) for end in bounds)
        by_name = isinstance(bounds, Mapping)
        n_columns = len(bounds) if listed or by_name else max(np.size(end) for end in bounds)
    X = _blank_rows(bounds, (n_rows, 1 if n_columns is None else n_columns), like)
    shape = (n_rows, *(() if like is None else like[1].shape[1:]))
    if "classes" in estimator.get_params(deep=False):
        levels = classes_of(estimator.classes, bounds, type(estimator).__name__)
        return X, np.full(shape, levels.values[0])
    target = interval_of(estimator.y_bounds, bounds, type(estimator).__name__)
    return X, np.full(shape, target.low / 2 + target.high / 2)


def _blank_rows(bounds: Any, shape: tuple[int, int], like: tuple[Any, Any] | None) -> Any:
    if like is not None and sparse.issparse(like[0]):
        return sparse.csr_matrix(shape)
    X = np.zeros(shape)
    columns = bounds.columns if isinstance(bounds, Domain) else None
    for j, column in enumerate(columns or ()):
        first = column.values[0] if isinstance(column, Levels) else 0.0
        if j < shape[1] and is_real(first):
            X[:, j] = first
    return framed(X, like[0]) if like is not None and has(like[0], "columns") else X


def in_memory(X: Any, y: Any, *, alike: bool = True) -> tuple[Any, Any]:
    """Return a table and its target. Raises if X is no table or is not in memory.

    With ``alike=False``, the numbers of rows are not compared, because the message tells them.
    """
    _refuse_stream(X, y)
    X, y = off_device(X), off_device(y)
    if y is None:
        raise DataError("PrivateSearchCV requires y to be passed, but the target y is None.")
    if isinstance(X, (list, tuple)) or not hasattr(X, "shape"):
        X = untouched(X)
    y = untouched(y, whole=True)
    if len(X.shape) != 2:
        raise DataError(
            "PrivateSearchCV needs a table in memory with two dimensions, rows by columns."
        )
    if alike and X.shape[0] != y.shape[0]:
        raise DataError(f"X has {X.shape[0]} rows and y has {y.shape[0]}.")
    return X, one_column(y) if len(y.shape) == 2 and y.shape[1] == 1 else y


def _refuse_stream(*tables: Any) -> None:
    if any(is_stream(table) for table in tables):
        raise ParameterError(
            "PrivateSearchCV takes tables in memory. Search on a part of the stream that fits into"
            " memory, and use one ledger for everything that you fit."
        )


def sizes_of(table: Any) -> tuple[int, int]:
    """Return the sizes of a table whose search is to be planned."""
    _refuse_stream(table)
    found = tuple(getattr(table, "shape", ()))
    if len(found) != 2:
        allowed = "an int >= 1 or a table in memory of two dimensions"
        got = f"shape {found}" if found else type(table).__name__
        raise ParameterError(parameter_message("PrivateSearchCV.plan", "n", allowed, got))
    return int(found[0]), int(found[1])
