"""Training tables of transformers: in memory, sparse, or read block by block, several times.

Everything is checked before anything is spent. All that transformers compute of rows are sums of
integers, so that a table and a stream of its blocks give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dpkernel.data.blocks import BlockStream
from dpkernel.data.passes import Passes
from dpkernel.data.sources import Source, open_source
from dpkernel.data.tables import Columns
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.foundations.types import Array

T = TypeVar("T")


@dataclass(frozen=True)
class StepTable:
    """The table of a preprocessing step, with its public sizes; with ``target`` y is its last column.

    With ``chosen``, only the columns at these positions are read.
    """

    source: Source
    target: bool = False
    chosen: tuple[int, ...] | None = None

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self.source.n_rows

    @property
    def n_columns(self) -> int:
        """The number of columns, the target's among them."""
        return self.source.n_columns + self.target

    @property
    def columns(self) -> Columns:
        """The columns without the target."""
        return self.source.columns

    def blocks(self, *, spent: bool) -> Iterator[Array]:
        """Yield all rows as dense blocks; ``spent`` says whether the budget is gone, for errors."""
        blocks = iter(Passes(self.source, spent=spent).blocks())
        while block := _read(lambda: next(blocks, None), spent):
            rows = np.column_stack(block) if self.target else block[0]
            yield rows if self.chosen is None else rows[:, self.chosen]


def rows_of_table(table: Any, target: Array | None = None, names: Any = None) -> StepTable:
    """Return the rows of a checked array or CSR matrix, with the target as a last column."""
    n_rows, n_columns = table.shape
    source = Source("array", n_rows, n_columns, (), table, target, names=names)
    return StepTable(source, target is not None)


def rows_of_stream(
    estimator: Any, X: Any, y: Any, *, with_target: bool, missing: bool
) -> StepTable:
    """Return the rows of a ``BlockStream`` or a Dask table, all of which are checked now."""
    options: Any = {"again": True, "several": False, "missing": missing, "targets": with_target}
    return StepTable(_read(lambda: open_source(estimator, X, y, **options), False), with_target)


def _read(work: Callable[[], T], spent: bool) -> T:
    """Return work(); a failure is told in our own words, as a foreign text may quote an entry."""
    try:
        return work()
    except ParameterError:
        raise
    except DataError as error:
        if not spent:
            raise
        failed = str(error)
    except Exception as error:
        failed = type(error).__name__
    cost = "The budget was spent before." if spent else "Nothing was spent."
    raise DataError(f"The table could not be read ({failed}). {cost}")


def refuse_stream(owner: str, X: Any) -> None:
    """Raise for a stream where rows are transformed, not counted."""
    if isinstance(X, BlockStream):
        raise ParameterError(
            f"{owner} takes tables in memory here. Transform a stream block by block: BlockStream("
            "lambda: ((fitted.transform(X), y) for X, y in stream), n_rows=stream.n_rows)."
        )
