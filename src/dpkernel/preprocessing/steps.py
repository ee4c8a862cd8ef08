"""The steps of a pipeline: which may stand in it, and those that learn nothing, run behind a guard.

What a foreign step warns of or fails with may quote rows. Its words stay inside.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import clone

from dpkernel.certificate import Release
from dpkernel.errors import DataError, DPKernelError, ParameterError, parameter_message
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.preprocessing.base import PrivateTransformer
from dpkernel.preprocessing.categories import DeclaredCategories
from dpkernel.preprocessing.rows import is_stream
from dpkernel.selection import PrivateSearchCV
from dpkernel.selection.candidates import take_rows

Steps = list[tuple[str, Any]]
_SOME = 64  # rows on which a foreign step is tried alone


def is_private(step: Any) -> bool:
    """Whether a step spends of the budget."""
    return isinstance(step, (PrivateEstimator, PrivateSearchCV))


def are_pairs(steps: object) -> bool:
    """Whether these are (name, step) pairs."""
    return isinstance(steps, Sequence) and all(
        isinstance(step, tuple) and len(step) == 2 and isinstance(step[0], str) for step in steps
    )


def checked_steps(owner: str, steps: Any, reserved: set[str]) -> Steps:
    """Return the steps, or raise for names or steps that can't stand in a pipeline."""
    names = [step[0] for step in steps] if are_pairs(steps) else []
    if not names or len(set(names)) != len(names):
        raise ParameterError(
            f"The 'steps' parameter of {owner} must be a list of pairs (name, estimator) with"
            " different names."
        )
    for name, step in steps:
        if "__" in name or name in reserved:
            allowed = "texts without '__' that are no parameter"
            raise ParameterError(parameter_message(owner, "steps: names", allowed, name))
        _check_step(name, step, name == names[-1])
    return list(steps)


def _check_step(name: str, step: Any, last: bool) -> None:
    if is_private(step):
        if not last and not isinstance(step, PrivateTransformer):
            raise ParameterError(f"The step {name!r} is not the last and is no transformer.")
        inner = [step.estimator] if isinstance(step, PrivateSearchCV) else []
        for what in ("ledger", "noise"):
            if any(getattr(one, what, None) is not None for one in (step, *inner)):
                raise ParameterError(
                    f"The step {name!r} has a {what} of its own. State it for the pipeline: all steps"
                    " are one spend."
                )
    elif last:
        raise ParameterError(
            f"The last step, {name!r}, must be a private estimator, search or transformer of dpkernel."
        )
    elif not _learns_nothing(step):
        raise ParameterError(
            f"The step {name!r} ({type(step).__name__}) learns from the data without noise. Use a"
            " private transformer of dpkernel.preprocessing, or one that needs no fit."
        )


def _learns_nothing(step: Any) -> bool:
    if isinstance(step, str):
        return step == "passthrough"
    if isinstance(step, DeclaredCategories):
        return True
    tags = getattr(step, "__sklearn_tags__", None)
    return tags is not None and not tags().requires_fit and hasattr(step, "transform")


def through_free_step(name: str, step: Any, table: Any, *, spent: bool) -> tuple[Any, Any]:
    """Return a fitted clone of a step that learns nothing, and its rows, each made of one row alone.

    ``spent`` says whether the budget is gone, for the error.
    """
    if isinstance(step, str):
        return step, table
    cost = "The budget of the whole pipeline was spent before." if spent else "Nothing was spent."
    failed = ""
    try:
        with quietly():
            ready = clone(step).fit(table, None)
            rows = ready.transform(table)
            sizes, own = shape_of(rows), isinstance(step, DeclaredCategories)
            if sizes[:1] != shape_of(table)[:1] or len(sizes) != 2:
                failed = " must return a table of as many rows as it gets, and did not"
            elif not own and not _each_alone(ready, table, rows):
                failed = " makes a row depend on other rows, so it learns from them without noise"
    except DPKernelError as error:
        failed = f" failed ({error})"
    except Exception as error:
        failed = f" failed ({type(error).__name__})"  # a foreign text may quote an entry
    if failed:
        raise DataError(f"The step {name!r}{failed}. {cost}")
    return ready, rows


def transformed(name: str, step: Any, table: Any) -> Any:
    """Return new rows as a fitted step makes them."""
    if isinstance(step, str):
        return table
    if is_private(step) or isinstance(step, DeclaredCategories):
        return step.transform(table)
    failed = ""
    try:
        with quietly():
            return step.transform(table)
    except Exception as error:
        failed = type(error).__name__
    raise DataError(f"The step {name!r} failed ({failed}).")


@contextmanager
def quietly() -> Iterator[None]:
    """Keep warnings inside, those of floating point included."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _each_alone(step: Any, table: Any, rows: Any) -> bool:
    """Whether the first rows come out the same without the others: not so of a centred column."""
    places = np.arange(min(_SOME, (shape_of(table)[0] + 1) // 2))
    if isinstance(table, list):
        table = np.asarray(table)
    one, other = _dense(take_rows(rows, places)), _dense(step.transform(take_rows(table, places)))
    if one.shape != other.shape:
        return False
    try:
        return bool(np.allclose(one.astype(float), other.astype(float), rtol=1e-6, equal_nan=True))
    except (TypeError, ValueError):
        return bool(np.all(one == other))


def _dense(table: Any) -> np.ndarray:
    return np.asarray(table.toarray() if sparse.issparse(table) else table)


def releases_of(fitted: Steps) -> tuple[list[Release], list[str], list[str]]:
    """Return all releases under the names of their steps, and why one proves nothing or is exposed."""
    releases: list[Release] = []
    unproved: list[str] = []
    exposed: list[str] = []
    for name, step in fitted:
        certificate = getattr(step, "certificate_", None)
        if certificate is None:
            continue
        releases += [replace(r, label=f"{name}: {r.label}") for r in certificate.releases]
        reasons = [f"{name}: {why}" for why in certificate.reasons]
        unproved += [] if certificate.valid else reasons
        exposed += reasons if certificate.valid and not certificate.private else []
    return releases, unproved, exposed


def n_rows_of(X: Any) -> int:
    """Return the number of rows of a table in memory, or raise for what is none."""
    if is_stream(X):
        raise ParameterError(
            "PrivatePipeline takes tables in memory. Fit its transformers to the stream one after the"
            " other, with one ledger."
        )
    shape = shape_of(X)
    if len(shape) != 2:
        raise DataError(
            f"Expected 2D array, got an array of shape {shape} instead. Reshape your data: one row a"
            " record, one column a variable."
        )
    return shape[0]


def shape_of(table: Any) -> tuple[int, ...]:
    """Return the sizes of a table of any kind; () for what is none."""
    try:
        found = getattr(table, "shape", None) or np.asarray(table).shape
    except (ValueError, TypeError):
        return ()
    return tuple(int(size) for size in found)
