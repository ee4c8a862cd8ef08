"""Show a category as one column, and not as the columns of 0 and 1 as which it was encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernel.data.domain import Column, Domain, Levels
from dpkernel.data.table_files.schema import ColumnRule, Schema
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array

Table = np.ndarray[Any, Any]


@dataclass(frozen=True)
class DeclaredColumn:
    """A column before it was encoded: its name, its values if declared, and whether they are dates."""

    name: str
    values: Column | None
    dates: bool = False


def read_declared(schema: Any) -> tuple[DeclaredColumn, ...] | None:
    """Return the columns of a Schema or Domain, which are public; None for None."""
    if schema is None:
        return None
    if isinstance(schema, Schema):
        return tuple(column for rule in schema.inputs for column in _declared(rule))
    if isinstance(schema, Domain) and schema.columns:
        names = schema.names or [f"column {i + 1}" for i in range(len(schema.columns))]
        pairs = zip(names, schema.columns, strict=True)
        return tuple(DeclaredColumn(str(name), column) for name, column in pairs)
    allowed, got = "a Schema, a Domain with columns or None", type(schema).__name__
    raise ParameterError(parameter_message("write_report", "schema", allowed, got))


def _declared(rule: ColumnRule) -> list[DeclaredColumn]:
    """Return the column of a rule, and that of its indicator."""
    if isinstance(rule.values, Levels) or rule.values is None:
        return [DeclaredColumn(str(rule.name), rule.values)]
    first, *others = zip(rule.names, rule.intervals, strict=True)
    found = DeclaredColumn(*first, dates=rule.format is not None)
    return [found, *(DeclaredColumn(*pair) for pair in others)]


def grouped(
    columns: tuple[Column, ...], declared: Sequence[DeclaredColumn] | None
) -> tuple[tuple[Column, ...], tuple[int, ...], Callable[[Table], Table]]:
    """Return the columns with each category as one, their sizes, and a function that encodes rows.

    The size of a column is the number of columns of the model that it stands for. A column of levels
    stands for that many columns of 0 and 1, one per level and in the same order, unless the model
    accepts the levels themselves. Other columns keep the ranges that the model states.
    """
    if declared is None:
        return columns, (1,) * len(columns), _as_it_is
    found: list[Column] = []
    encoded: list[bool] = []
    sizes: list[int] = []
    place = 0
    for one in declared:
        own = columns[place] if place < len(columns) else None
        split = isinstance(one.values, Levels) and not isinstance(own, Levels)
        encoded.append(split)
        if isinstance(one.values, Levels) and split:
            found.append(one.values)
            sizes.append(len(one.values.values))
        else:
            found += [] if own is None else [own]
            sizes.append(1)
        place += sizes[-1]
    if place != len(columns):
        allowed = f"a schema of the {len(columns)} columns that the model takes"
        got = f"a schema of {place} columns"
        raise ParameterError(parameter_message("write_report", "schema", allowed, got))
    if not any(encoded):
        return tuple(found), tuple(sizes), _as_it_is

    def encode(table: Table) -> Table:
        blocks: list[Table] = []
        for j, (column, split) in enumerate(zip(found, encoded, strict=True)):
            if isinstance(column, Levels) and split:
                blocks.append(_one_hot(column, table[:, j]))
            else:
                blocks.append(table[:, j : j + 1])
        whole = np.hstack(blocks)
        return whole if any(isinstance(c, Levels) for c in columns) else whole.astype(np.float64)

    return tuple(found), tuple(sizes), encode


def _as_it_is(table: Table) -> Table:
    return table


def _one_hot(levels: Levels, cells: Table) -> Array:
    places = levels.indices(cells.tolist())
    return np.asarray(places[:, None] == np.arange(len(levels.values)), dtype=np.float64)
