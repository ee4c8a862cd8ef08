"""Pairs of neighbouring tables on which one record shows most, made from declared bounds alone.

No data are read. What is publicly declared (bounds of the columns, range of the target or list of
classes) says where a record can be; the pairs put one record at the ends, and the others where they
hide it least.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import is_classifier, is_regressor

from dpkernel.audit.observe import Table
from dpkernel.domain import Domain, Interval, Levels
from dpkernel.errors import ParameterError, parameter_message
from dpkernel.types import Array

_OUTSIDE = 1e3  # of the bounds: what is not clipped shows


@dataclass(frozen=True)
class WorstCase:
    """Two neighbouring tables and a name for them."""

    name: str
    table: Table
    neighbour: Table

    @property
    def probes(self) -> Any:
        """The different rows of both tables."""
        rows = np.vstack((np.asarray(self.table[0]), np.asarray(self.neighbour[0])))
        return np.unique(rows, axis=0)[:20]


@dataclass(frozen=True)
class Declared:
    """The public ranges of an estimator: of each column, and of the target."""

    low: Array
    high: Array
    targets: tuple[Any, Any, Any] | None  # one end, the middle, the other end; None: no target

    @classmethod
    def of(cls, estimator: Any, n_columns: int | None = None) -> Declared:
        """Read them from the parameters, under our names or diffprivlib's; [-1, 1] if undeclared."""
        parameters = estimator.get_params(deep=True)

        def first(*names: str) -> Any:
            leaves = [p for n in names for p in parameters if p.split("__")[-1] == n]
            return next((parameters[p] for p in leaves if parameters[p] is not None), None)

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


def _domain_box(domain: Domain, n_columns: int) -> tuple[Array, Array]:
    if domain.columns is None:
        return -np.ones(n_columns), np.ones(n_columns)
    if any(isinstance(column, Levels) for column in domain.columns):
        allowed = "a pair of tables (D, D') where the domain declares levels"
        raise ParameterError(parameter_message("audit", "worst_case", allowed, "auto"))
    ends = [(column.low, column.high) for column in domain.columns if isinstance(column, Interval)]
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
    if is_classifier(estimator):
        return 0, 0, 1
    interval = first("y_bounds", "bounds_y")
    if interval is None and isinstance(declared, Interval):
        interval = declared
    if isinstance(interval, Interval):
        interval = interval.low, interval.high
    if interval is None and not is_regressor(estimator):
        return None
    low, high = (-1.0, 1.0) if interval is None else (float(end) for end in interval)
    return low, (low + high) / 2, high


def worst_cases(estimator: Any, n_rows: int, n_columns: int | None = None) -> Sequence[WorstCase]:
    """Return the built-in pairs for this estimator; each replaces its first record.

    Opposite targets at the far corner with the rest at the centre; all records at one corner;
    a record that moves across, and one far outside the bounds; a record among empty ones.
    """
    public = Declared.of(estimator, n_columns)
    low, high = public.low, public.high
    centre = (low + high) / 2
    far = centre + _OUTSIDE * (high - low)
    if public.targets is None:
        return [
            _case("an end among the centre", n_rows, centre, None, (high, None), (low, None)),
            _case("the other end of all", n_rows, low, None, (low, None), (high, None)),
            _case("outside the bounds", n_rows, centre, None, (far, None), (centre, None)),
            _case("across, outside", n_rows, low, None, (low, None), (far, None)),
        ]
    end, middle, other = public.targets
    return [
        _case("opposite targets", n_rows, centre, middle, (high, other), (high, end)),
        _case("all at one corner", n_rows, high, middle, (high, other), (high, end)),
        _case("across the box", n_rows, centre, middle, (high, other), (low, other)),
        _case("outside the bounds", n_rows, centre, middle, (far, other), (far, end)),
        _case("among empty records", n_rows, centre, middle, (high, other), (centre, middle)),
    ]


def _case(
    name: str, n_rows: int, rest: Array, rest_target: Any, one: Table, other: Table
) -> WorstCase:
    def table(record: Table) -> Table:
        X = np.vstack([record[0], *[rest] * (n_rows - 1)])
        if record[1] is None:
            return X, None
        return X, np.array([record[1], *[rest_target] * (n_rows - 1)])

    return WorstCase(name, table(one), table(other))
