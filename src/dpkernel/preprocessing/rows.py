"""Training tables of transformers: in memory, sparse, or read block by block, several times.

Everything is checked before anything is spent. All that transformers compute of rows are sums of
integers, so that a table and a stream of its blocks give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dpkernel.data.blocks import BlockStream, checked_blocks, dense_rows, rows_a_block
from dpkernel.data.cells import shape_of
from dpkernel.data.chunks import count_rows, fetched
from dpkernel.data.sources import refuse_single_reading
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.foundations.types import Array


@dataclass(frozen=True)
class Rows:
    """A table with its public sizes; ``n_columns`` counts the target, if it is one more column."""

    n_rows: int
    n_columns: int
    read: Callable[[bool], Iterator[Array]]

    def blocks(self, *, spent: bool) -> Iterator[Array]:
        """Yield all rows as dense blocks; ``spent`` says whether the budget is gone, for errors."""
        failed = ""
        try:
            yield from self.read(spent)
        except DataError as error:
            if not spent:
                raise
            failed = str(error)
        except Exception as error:
            failed = type(error).__name__  # a foreign text may quote an entry
        if failed:
            cost = "The budget was spent before." if spent else "Nothing was spent."
            raise DataError(f"The table could not be read ({failed}). {cost}")


def rows_of_table(table: Any, target: Array | None = None) -> Rows:
    """Return the rows of a checked array or CSR matrix, with the target as a last column."""
    n_rows, n_columns = table.shape

    def read(spent: bool) -> Iterator[Array]:
        step = rows_a_block(n_columns) if sparse.issparse(table) else max(n_rows, 1)
        for start in range(0, n_rows, step):
            rows = slice(start, start + step)
            block = dense_rows(table, rows)
            yield block if target is None else np.column_stack([block, target[rows]])

    return Rows(n_rows, n_columns + (target is not None), read)


def rows_of_stream(estimator: Any, X: Any, y: Any, *, with_target: bool, missing: bool) -> Rows:
    """Return the rows of a ``BlockStream`` or a Dask table, all of which are checked now."""
    if isinstance(X, BlockStream):
        refuse_single_reading(type(estimator).__name__, X, y)
        stream = X if with_target else X.map_targets(lambda y: np.zeros(shape_of(y)[:1]))
        n_rows = stream.n_rows
    elif len(X.shape) != 2:
        raise DataError("X must be a Dask array or data frame with rows and columns.")
    elif with_target and not hasattr(y, "to_delayed"):
        raise DataError("X is a Dask table, so y must be one, too.")
    else:
        stream, n_rows = None, count_rows(X)

    def checked(spent: bool) -> Iterator[tuple[Any, Array]]:
        if stream is not None:
            return checked_blocks(stream, missing=missing)
        return fetched(X, y if with_target else None, n_rows, missing=missing, spent=spent)

    def read(spent: bool) -> Iterator[Array]:
        for rows, target in checked(spent):
            if target.ndim != 1:
                raise DataError("y must be one number a row.")
            block = dense_rows(rows, slice(None))
            yield np.column_stack([block, target]) if with_target else block

    widths = [block.shape[1] for block in Rows(0, 0, read).blocks(spent=False)]
    estimator._keep_columns(widths[0] - with_target, getattr(X, "columns", None))
    return Rows(n_rows, widths[0], read)


def refuse_stream(owner: str, X: Any) -> None:
    """Raise for a stream where rows are transformed, not counted."""
    if isinstance(X, BlockStream):
        raise ParameterError(
            f"{owner} takes tables in memory here. Transform a stream block by block: BlockStream("
            "lambda: ((fitted.transform(X), y) for X, y in stream), n_rows=stream.n_rows)."
        )
