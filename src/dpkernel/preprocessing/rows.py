"""Training tables of transformers: in memory, sparse, or read block by block several times.

Everything is checked before anything is spent. Transformers compute only sums of integers from rows, so
a table and a stream of its blocks give the same result to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dpkernel.data.blocks import BlockStream, checked_blocks, dense_rows, rows_a_block
from dpkernel.data.cells import shape_of
from dpkernel.estimators.sources import chunk_pairs, computed, row_chunks
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.foundations.types import Array


@dataclass(frozen=True)
class Rows:
    """A table with its public sizes. ``n_columns`` includes the target if it is one more column."""

    n_rows: int
    n_columns: int
    read: Callable[[bool], Iterator[Array]]

    def blocks(self, *, spent: bool) -> Iterator[Array]:
        """Yield all rows as dense blocks.

        ``spent`` says whether the budget is already spent, for the text of errors.
        """
        failed = ""
        try:
            yield from self.read(spent)
        except DataError as error:
            if not spent:
                raise
            failed = str(error)
        except Exception as error:
            failed = type(error).__name__  # the text of the error may quote an entry
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
    owner = type(estimator).__name__
    if isinstance(X, BlockStream):
        if y is not None:
            raise ParameterError("A BlockStream contains its targets. Leave y out.")
        if not X.can_be_read_again:
            raise ParameterError(
                f"{owner} reads the table several times, but this stream can be read only once. Give"
                " BlockStream a function that returns a new iterator at each call."
            )
        source = X if with_target else X.map_targets(lambda y: np.zeros(shape_of(y)[:1]))
        streams = {False: source, True: source}
    else:
        n_rows = _dask_rows(X)
        pair = X, y if with_target else None
        streams = {spent: _dask_stream(*pair, n_rows, spent) for spent in (False, True)}

    def read(spent: bool) -> Iterator[Array]:
        for rows, target in checked_blocks(streams[spent], missing=missing):
            if target.ndim != 1:
                raise DataError("y must be one number per row.")
            block = dense_rows(rows, slice(None))
            yield np.column_stack([block, target]) if with_target else block

    widths = [block.shape[1] for block in Rows(0, 0, read).blocks(spent=False)]
    estimator._keep_columns(widths[0] - with_target, getattr(X, "columns", None))
    return Rows(streams[False].n_rows, widths[0], read)


def refuse_stream(owner: str, X: Any) -> None:
    """Raise for a stream. Rows of a stream can be counted but not transformed as a whole."""
    if isinstance(X, BlockStream):
        raise ParameterError(
            f"{owner} takes tables in memory here. Transform a stream block by block: BlockStream("
            "lambda: ((fitted.transform(X), y) for X, y in stream), n_rows=stream.n_rows)."
        )


def _dask_rows(X: Any) -> int:
    import dask

    if len(X.shape) != 2:
        raise DataError("X must be a Dask array or data frame with rows and columns.")
    length = X.shape[0]
    if not isinstance(length, (int, np.integer)):
        length = sum(computed(dask, *(dask.delayed(len)(chunk) for chunk in row_chunks(X))))
    return int(length)


def _dask_stream(X: Any, y: Any, n_rows: int, spent: bool) -> BlockStream:
    import dask

    if y is not None and not hasattr(y, "to_delayed"):
        raise DataError("X is a Dask table, so y must be one, too.")

    def read() -> Iterator[Any]:
        pairs = [(chunk, None) for chunk in row_chunks(X)] if y is None else chunk_pairs(X, y)
        for pair in pairs:
            rows, target = computed(dask, *pair, spent=spent)
            if shape_of(rows)[0]:
                yield rows, np.zeros(shape_of(rows)[0]) if target is None else target

    return BlockStream(read, n_rows)
