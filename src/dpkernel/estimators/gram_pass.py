"""One pass over a table that ends in an exact integer Gram matrix, on one machine or on many.

The same ``Recipe`` runs on NumPy blocks, on Dask chunks where they lie, and on torch tensors. Sums
are integers, so all of them give the same result bit for bit when their features do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.progress import Progress

from dpkernel.blocks import BLOCK_ROWS, BlockStream, checked_blocks
from dpkernel.domain import Domain, Interval
from dpkernel.errors import DataError
from dpkernel.features import FeatureMap
from dpkernel.statistics import GramLayout, GramStatistics
from dpkernel.types import Array


@dataclass(frozen=True)
class Recipe:
    """How a row becomes a record: clip to the domain, map to features, quantise. Public."""

    domain: Domain
    features: FeatureMap
    layout: GramLayout
    dtype: str = "float64"

    def inputs(self, X: Array) -> Array:
        """Return rows in the unit box, or as they are when no bounds were declared."""
        if X.dtype != self.dtype:
            with np.errstate(all="ignore"):  # a warning about an overflow would tell of the data
                X = np.nan_to_num(X.astype(self.dtype), copy=False)
        return X if self.domain.columns is None else self.domain.to_unit(X)

    def records(self, X: Array, y: Array) -> tuple[Array, Array]:
        """Return features and targets in [-1, 1], one column a target."""
        target = self.domain.target
        assert isinstance(target, Interval)
        targets = y[:, None] if y.ndim == 1 else y
        return self.features.transform_block(self.inputs(X)), target.to_unit(targets)


def sum_blocks(
    blocks: Iterable[tuple[Array, Array]], recipe: Recipe, *, progress: bool = False
) -> GramStatistics:
    """Return the exact sum over blocks of rows, cut further where they are long.

    The progress bar counts rows, whose number is public.
    """
    statistics = GramStatistics(recipe.layout)
    with _progress(recipe.layout.n_max if progress else None) as advance:
        for X, y in blocks:
            for start in range(0, len(X), BLOCK_ROWS):
                rows = slice(start, start + BLOCK_ROWS)
                statistics.update(*recipe.records(X[rows], y[rows]))
                advance(len(X[rows]))
    return statistics


@contextlib.contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar over this many rows; None: nothing at all."""
    if total is None:
        yield lambda rows: None
        return
    with Progress(transient=True) as bar:
        task = bar.add_task("one pass over the rows", total=total)
        yield lambda rows: bar.advance(task, rows)


def sum_dask(X: Any, y: Any, recipe: Recipe) -> GramStatistics:
    """Return the exact sum over the chunks of Dask arrays, computed where the chunks lie.

    Workers ship sums, not rows. A chunk that is lost with its worker is computed again by Dask; the
    ledger is asked once, after the whole sum is here.
    """
    import dask

    chunks_X, chunks_y = _row_chunks(X), _row_chunks(y)
    if len(chunks_X) != len(chunks_y):
        raise DataError("X and y have different numbers of Dask chunks along the rows.")
    task = dask.delayed(_sum_chunk, pure=False)
    merge = dask.delayed(_merge_packed, pure=False)
    parts = [task(a, b, recipe) for a, b in zip(chunks_X, chunks_y, strict=True)]
    while len(parts) > 1:
        parts = [merge(parts[i : i + 8]) for i in range(0, len(parts), 8)]
    return GramStatistics._unpack(_computed(dask, parts[0])[0])


def _computed(dask: Any, *graphs: Any) -> Any:
    """Compute; a failure is reported without its text, which may quote the data."""
    try:
        return dask.compute(*graphs)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"The Dask graph failed with {type(error).__name__}. Nothing was spent; compute it by itself"
            " to see why."
        ) from None


def dask_shape(X: Any, y: Any) -> tuple[int, int, tuple[int, ...]]:
    """Return rows, columns and the shape of one target; counts rows where Dask does not know them."""
    import dask

    lengths = []
    if not hasattr(y, "to_delayed"):
        raise DataError("X is a Dask table, so y must be one, too.")
    for value in (X, y):
        length = value.shape[0]
        if not isinstance(length, (int, np.integer)):  # unknown chunks, or a data frame
            counts = [dask.delayed(len)(chunk) for chunk in _row_chunks(value)]
            length = sum(_computed(dask, *counts))
        lengths.append(int(length))
    if lengths[0] != lengths[1]:
        raise DataError(f"Found input variables with inconsistent numbers of samples: {lengths}.")
    if len(X.shape) != 2 or lengths[0] < 1:
        raise DataError("X must be a Dask array or data frame with rows and columns.")
    return lengths[0], int(X.shape[1]), tuple(int(k) for k in y.shape[1:])


def _row_chunks(value: Any) -> list[Any]:
    """Return one delayed object a row chunk."""
    if (hasattr(value, "partitions") and hasattr(value, "columns")) or hasattr(value, "to_frame"):
        return list(value.to_delayed())  # a data frame or a series
    if value.ndim == 2 and len(value.chunks[1]) > 1:
        value = value.rechunk({1: -1})
    return list(
        np.asarray(value.to_delayed(), dtype=object).reshape(value.numblocks)[:, ...].ravel()
    )


def _sum_chunk(X: Any, y: Any, recipe: Recipe) -> tuple[GramLayout, bytes, int]:
    rows, targets = np.asarray(X), np.asarray(y)
    if len(rows) == 0:
        return GramStatistics(recipe.layout)._pack()
    stream = BlockStream([(rows, targets)], n_rows=len(rows))
    return sum_blocks(checked_blocks(stream, (np.float64, np.float32)), recipe)._pack()


def _merge_packed(parts: list[Any]) -> tuple[GramLayout, bytes, int]:
    total = GramStatistics._unpack(parts[0])
    for part in parts[1:]:
        total.merge(GramStatistics._unpack(part))
    return total._pack()


def first_and_all(blocks: Iterator[Any]) -> tuple[Any, Iterator[Any]]:
    """Return the first block, and an iterator over all of them."""
    first = next(blocks)

    def again() -> Iterator[Any]:
        yield first
        yield from blocks

    return first, again()
