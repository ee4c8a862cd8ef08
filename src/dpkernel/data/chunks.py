"""Dask tables: chunks of rows, worked on where they lie or fetched one after the other.

A failure is reported without its text, which may quote the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dpkernel.data.blocks import BlockStream, checked_blocks, one_block
from dpkernel.data.cells import shape_of
from dpkernel.foundations.errors import DataError
from dpkernel.foundations.types import Array

if TYPE_CHECKING:
    from dpkernel.data.sources import Source

WRONG_SIZES = "The chunks of a Dask table have other sizes than it says."
_MERGED = 8  # results that a worker merges at once


def count_rows(value: Any) -> int:
    """Return the number of rows; counts them where Dask does not know it."""
    length = value.shape[0]
    if not isinstance(length, (int, np.integer)):  # unknown chunks, or a data frame
        import dask

        length = sum(computed(*(dask.delayed(len)(chunk) for chunk in row_chunks(value))))
    return int(length)


def table_shape(X: Any, *targets: Any) -> tuple[int, int, tuple[int, ...]]:
    """Return rows, columns and the shape of one target, () where there is none."""
    if not all(hasattr(y, "to_delayed") for y in targets):
        raise DataError("X is a Dask table, so y must be one, too.")
    lengths = [count_rows(value) for value in (X, *targets)]
    if len(set(lengths)) > 1:
        raise DataError(f"Found input variables with inconsistent numbers of samples: {lengths}.")
    if len(X.shape) != 2 or lengths[0] < 1:
        raise DataError("X must be a Dask array or data frame with rows and columns.")
    shape = targets[0].shape[1:] if targets else ()
    return lengths[0], int(X.shape[1]), tuple(int(k) for k in shape)


def row_chunks(value: Any) -> list[Any]:
    """Return one delayed object per chunk of rows."""
    if (hasattr(value, "partitions") and hasattr(value, "columns")) or hasattr(value, "to_frame"):
        # a data frame or a series; Dask may convert cells of it while it builds the graph
        return list(_without_its_text(value.to_delayed))
    if value.ndim == 2 and len(value.chunks[1]) > 1:
        value = value.rechunk({1: -1})
    return list(np.asarray(value.to_delayed(), dtype=object).reshape(value.numblocks).ravel())


def chunk_pairs(X: Any, y: Any) -> list[tuple[Any, Any]]:
    """Return the delayed chunks of two Dask tables, side by side; y may be None."""
    one = row_chunks(X)
    other = [None] * len(one) if y is None else row_chunks(y)
    if len(one) != len(other):
        raise DataError("X and y have different numbers of Dask chunks along the rows.")
    return list(zip(one, other, strict=True))


def in_chunks(
    source: Source,
    work: Callable[..., Any],
    *arguments: Any,
    merge: Callable[[list[Any]], Any] | None = None,
    spent: bool = False,
) -> list[Any]:
    """Return work(blocks, *arguments) of every chunk, computed where it lies, in the order of the rows.

    Workers ship results, not rows. With ``merge``, which makes one result of several that follow each
    other, they also merge them, and one is returned. A chunk that is lost with its worker is computed
    again by Dask. Every chunk must have the size that the table says.
    """
    import dask

    task = dask.delayed(_on_chunk, pure=False)
    rest = source.missing, work, arguments
    pairs = chunk_pairs(source.X, source.y)
    sizes = _chunk_sizes(source.X) or [None] * len(pairs)
    parts = [task(*pair, size, *rest) for pair, size in zip(pairs, sizes, strict=True)]
    while merge is not None and len(parts) > 1:
        join = dask.delayed(merge, pure=False)
        parts = [join(parts[i : i + _MERGED]) for i in range(0, len(parts), _MERGED)]
    return list(computed(*parts, spent=spent))


def fetched(source: Source, *, spent: bool = False) -> Iterator[tuple[Any, Array]]:
    """Yield the chunks one after the other, checked: a graph may give other rows the next time."""

    def chunks() -> Iterator[tuple[Any, Any]]:
        for pair in chunk_pairs(source.X, source.y):
            rows, target = computed(*pair, spent=spent)
            if size := shape_of(rows)[0]:
                yield rows, np.zeros(size) if target is None else target

    return checked_blocks(BlockStream(chunks, source.n_rows), missing=source.missing)


def computed(*graphs: Any, spent: bool = False) -> Any:
    """Compute; a failure is reported without its text."""
    import dask

    return _without_its_text(lambda: dask.compute(*graphs), spent)


def _on_chunk(
    X: Any, y: Any, size: int | None, missing: bool, work: Callable[..., Any], arguments: Any
) -> Any:
    if size is not None and shape_of(X)[0] != size:
        raise DataError(WRONG_SIZES)
    return work(one_block(X, y, missing=missing), *arguments)


def _chunk_sizes(X: Any) -> list[int | None] | None:
    """Return the number of rows of each chunk of an array, None where Dask does not know it."""
    known = getattr(X, "chunks", None)
    if known is None:
        return None
    return [int(n) if isinstance(n, (int, np.integer)) else None for n in known[0]]


def _without_its_text(compute: Callable[[], Any], spent: bool = False) -> Any:
    try:
        return compute()
    except DataError:
        raise
    except Exception as error:
        cost = "The fit's budget was spent before" if spent else "Nothing was spent"
        raise DataError(
            f"The Dask graph failed with {type(error).__name__}. {cost}; compute it by itself to see"
            " why."
        ) from None
