"""Pairs of neighbouring tables on which one record shows most, made from declared bounds alone.

No data are read. The public declarations (bounds of the columns, range of the target or list of
classes) say where a record can be. The pairs put one record at the ends of these ranges, and the
others where they hide it least. In some pairs the others are at the centre and have no effect. In
other pairs they are hostile: all at the opposite corner, or copies of the neighbour.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np
from scipy.sparse import issparse, vstack
from sklearn.base import is_classifier, is_regressor

from dpkernel.data.declared import pairs_of
from dpkernel.data.domain import Domain, Interval, Intervals, Levels
from dpkernel.data.people import People
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, is_real
from dpkernel.proof.audit.copies import leaf, parameters
from dpkernel.proof.audit.observe import Table

_MANY = 20  # rows of a person in one of two tables, for one row in the other
_OUTSIDE = 1e3  # times the bounds, so that a missing clip shows
_MOST_PROBES = 20


@dataclass(frozen=True)
class WorstCase:
    """Two neighbouring tables with a name.

    ``words`` say which records differ, and where the others are.
    """

    name: str
    table: Table
    neighbour: Table
    words: str = ""

    @property
    def probes(self) -> Any:
        """The distinct rows of both tables."""
        return _different_rows(self.table[0], self.neighbour[0])


@dataclass(frozen=True)
class PublicRanges:
    """The public ranges of an estimator, for each column and for the target."""

    low: Array
    high: Array
    targets: tuple[Any, Any, Any] | None  # one end, the middle, the other end; None: no target

    @classmethod
    def of(cls, estimator: Any, n_columns: int | None = None) -> PublicRanges:
        """Read the ranges from the parameters, with our names or diffprivlib's; [-1, 1] by default."""
        found = parameters(estimator)

        def first(*names: str) -> Any:
            leaves = [path for n in names for path in found if leaf(path) == n]
            return next((found[path] for path in leaves if found[path] is not None), None)

        bounds = first("bounds", "bounds_X")
        domain = bounds if isinstance(bounds, Domain) else None
        norm = first("data_norm")
        if domain is not None:
            low, high = _domain_box(domain, n_columns or 1)
        elif bounds is not None:
            low, high = (np.atleast_1d(np.asarray(end, float)) for end in bounds)
        else:
            reach = 1.0 if norm is None else float(norm) / np.sqrt(n_columns or 1)
            low, high = np.array([-reach]), np.array([reach])
        width = max(len(low), len(high), n_columns or 1)
        low, high = np.broadcast_to(low, width).copy(), np.broadcast_to(high, width).copy()
        return cls(low, high, _targets(estimator, domain, first))


def _different_rows(one: Any, other: Any) -> Any:
    """Return up to 20 distinct rows of two tables, as a table of the same kind."""
    if hasattr(one, "drop_duplicates") and hasattr(one, "iloc"):
        both = import_module("pandas").concat([one, other], ignore_index=True)
        return both.drop_duplicates().head(_MOST_PROBES)
    if issparse(one):
        return vstack((one, other)).tocsr()[:_MOST_PROBES]
    if hasattr(one, "vstack"):  # polars
        return one.vstack(other).unique(maintain_order=True).head(_MOST_PROBES)
    rows = np.concatenate((np.asarray(one), np.asarray(other)))
    if rows.dtype != object and rows.ndim == 2:
        return np.unique(rows, axis=0)[:_MOST_PROBES]
    places = {repr(row): i for i, row in reversed(list(enumerate(rows.tolist())))}
    return rows[sorted(places.values())[:_MOST_PROBES]]


def _is(kind: Callable[[Any], bool], estimator: Any) -> bool:
    """Ask scikit-learn for the kind of an estimator. Classes without its conventions have none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return kind(estimator)
        except (AttributeError, TypeError):
            return False


def _asks_for_y(estimator: Any) -> bool:
    """Whether ``fit`` has a second argument that is required."""
    try:
        arguments = [
            argument
            for argument in signature(estimator.fit).parameters.values()
            if argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
        ]
    except (AttributeError, TypeError, ValueError):
        return False
    return len(arguments) > 1 and arguments[1].default is arguments[1].empty


def _domain_box(domain: Domain, n_columns: int) -> tuple[Array, Array]:
    if domain.columns is None:
        return -np.ones(n_columns), np.ones(n_columns)
    ends = []
    for column in domain.columns:
        values: Sequence[Any] = (
            column.values if isinstance(column, Levels) else (column.low, column.high)
        )
        if not (is_real(values[0]) and is_real(values[-1])):
            allowed = "a pair of tables (D, D') if the domain declares levels that are not numbers"
            raise ParameterError(parameter_message("audit", "worst_case", allowed, "auto"))
        ends.append((float(values[0]), float(values[-1])))
    return np.array([end[0] for end in ends]), np.array([end[1] for end in ends])


def _targets(
    estimator: Any, domain: Domain | None, first: Callable[..., Any]
) -> tuple[Any, Any, Any] | None:
    declared = domain.target if domain is not None else None
    classes = first("classes")
    if isinstance(declared, Levels):
        classes = declared.values
    if classes is not None:
        return classes[0], classes[0], classes[-1]
    if _is(is_classifier, estimator):
        return 0, 0, 1
    interval = first("y_bounds", "bounds_y")
    if interval is None and isinstance(declared, Interval):
        interval = declared
    if pairs_of(interval) is not None:
        parts = [p if isinstance(p, Interval) else Interval(*p) for p in pairs_of(interval) or ()]
        interval = Intervals(parts)
    if isinstance(interval, Intervals):
        return interval.low, (interval.low + interval.high) / 2, interval.high
    if isinstance(interval, Interval):
        interval = interval.low, interval.high
    if interval is None and not _is(is_regressor, estimator) and not _asks_for_y(estimator):
        return None
    low, high = (-1.0, 1.0) if interval is None else (float(end) for end in interval)
    return low, (low + high) / 2, high


@dataclass(frozen=True)
class _Pairs:
    """Makes pairs of tables with a given number of rows, of which the first ``records`` differ.

    With ``people``, each record is a person, and those who differ have many equal rows in the second
    table. It says how the rows of a person become one record.
    """

    n_rows: int
    records: int
    n_targets: int | None
    people: str = ""

    def __call__(self, name: str, others: str, rest: Table, one: Table, other: Table) -> WorstCase:
        who = "one record" if self.records == 1 else f"{self.records} records"
        if self.people:
            many = f"of 1 row in one table and {_MANY} rows in the other"
            who = f"one person {many}" if self.records == 1 else f"{self.records} people {many}"
        tables = self._table(one, rest, 1), self._table(other, rest, _MANY if self.people else 1)
        return WorstCase(name, *tables, f"{who}; {others}")

    def _table(self, record: Table, rest: Table, rows: int) -> Table:
        counts = self.records * rows, self.n_rows - self.records
        own = np.repeat(np.arange(self.records), rows)
        ids = People(np.append(own, np.arange(self.records, self.n_rows)), self.people or "auto")
        groups = (ids,) if self.people else ()
        X = np.repeat(np.vstack([record[0], rest[0]]), counts, axis=0)
        if record[1] is None:
            return X, None, *groups
        y = np.repeat(np.array([record[1], rest[1]]), counts, axis=0)
        if self.n_targets is not None and y.ndim == 1:
            y = np.repeat(y[:, None], self.n_targets, axis=1)
        return X, y, *groups


def worst_cases(
    estimator: Any,
    n_rows: int,
    n_columns: int | None = None,
    *,
    records: int = 1,
    n_targets: int | None = None,
    people: str = "",
) -> Sequence[WorstCase]:
    """Return the built-in pairs for this estimator. Each replaces its first records.

    The pairs are: opposite targets at the far corner with the rest at the centre; all records at
    one corner; a record that moves across the box, and one far outside the bounds; a record among
    empty ones; and two pairs with hostile others, all at the opposite corner or copies of the
    neighbour. With ``n_targets``, the targets are a matrix with that many equal columns, or with a range
    for each column if ``y_bounds`` declares one. ``people`` is explained in ``_Pairs``.
    """
    public = PublicRanges.of(estimator, n_columns)
    low, high = public.low, public.high
    centre = (low + high) / 2
    far = centre + _OUTSIDE * (high - low)
    pair = _Pairs(n_rows, records, n_targets, people)
    empty, corner = "the others are at the centre", "the others are at the opposite corner"
    if public.targets is None:
        middle, start = (centre, None), (low, None)
        return [
            pair("an end among the centre", empty, middle, (high, None), start),
            pair("the other end of all", corner, start, start, (high, None)),
            pair("outside the bounds", empty, middle, (far, None), middle),
            pair("across, outside", corner, start, start, (far, None)),
        ]
    end, half, other = public.targets
    null, raised = (centre, half), (high, other)
    return [
        pair("opposite targets", empty, null, raised, (high, end)),
        pair("all at one corner", "the others are beside it", (high, half), raised, (high, end)),
        pair("across the box", empty, null, raised, (low, other)),
        pair("outside the bounds", empty, null, (far, other), (far, end)),
        pair("among empty records", empty, null, raised, null),
        pair("against the others", corner, (low, end), raised, (low, end)),
        pair(
            "copies of the neighbour", "the others are its copies", (high, end), raised, (high, end)
        ),
    ]
