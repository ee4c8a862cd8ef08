"""One pass over a table that ends in an exact integer Gram matrix, on one machine or on many.

The same ``Recipe`` runs on NumPy blocks, on Dask chunks where they lie, and on torch tensors. Sums
are integers, so all of them give the same result bit for bit when their features do. The features
of a row depend on the row, and in their last bit on its place in a block and on how many rows and
threads the block has; never on the values of other rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.progress import Progress

from dpkernel.data.blocks import dense_rows, rows_a_block
from dpkernel.data.cells import shape_of
from dpkernel.data.domain import Domain, Interval
from dpkernel.estimators.sources import (
    WRONG_SIZES,
    Source,
    chunk_block,
    chunk_pairs,
    chunk_sizes,
    computed,
    unit_inputs,
)
from dpkernel.foundations.errors import DataError
from dpkernel.foundations.threads import block_threads, in_threads
from dpkernel.foundations.types import Array
from dpkernel.models.features import FeatureMap
from dpkernel.privacy.folds import GramFolds, Packed
from dpkernel.privacy.statistics import GramLayout


@dataclass(frozen=True)
class Recipe:
    """How a row becomes a record: clip to the domain, map to features, quantise. Public."""

    domain: Domain
    features: FeatureMap
    layout: GramLayout
    dtype: str = "float64"
    folds: int = 1

    def records(self, X: Array, y: Array) -> tuple[Array, Array]:
        """Return features and targets in [-1, 1], one column a target."""
        target = self.domain.target
        assert isinstance(target, Interval)
        targets = y[:, None] if y.ndim == 1 else y
        return self.features.transform_block(
            unit_inputs(X, self.domain, self.dtype)
        ), target.to_unit(targets)

    def bytes_a_block(self, n_columns: int) -> int:
        """Return how much memory the work on one block takes, about."""
        side = self.layout.side
        return 16 * (rows_a_block(n_columns) * (n_columns + side) + side**2)


def sum_source(source: Source, recipe: Recipe, *, progress: bool = False) -> GramFolds:
    """Return the exact sums over a table of any kind, one a fold."""
    if source.kind == "dask":
        return sum_dask(source.X, source.y, recipe, source.n_rows)
    if source.kind == "torch":
        from dpkernel.estimators.torch_pass import sum_tensors

        return sum_tensors(source.X, source.y, recipe)
    stream = source.kind == "stream"
    blocks = source.X if stream else [(source.X, source.y)]
    n_blocks = -(-source.n_rows // rows_a_block(source.n_columns))
    with block_threads(n_blocks, recipe.bytes_a_block(source.n_columns)) as threads:
        return sum_blocks(blocks, recipe, progress=progress, threads=threads, copy=stream)


def sum_blocks(
    blocks: Iterable[tuple[Any, Array]],
    recipe: Recipe,
    *,
    progress: bool = False,
    threads: int = 1,
    copy: bool = False,
) -> GramFolds:
    """Return the exact sums over blocks of rows, sparse or not, cut further where they are long.

    With ``copy`` the blocks may be overwritten by whoever hands them out, as streams do. The
    progress bar counts rows, whose number is public.
    """
    statistics = GramFolds(recipe.layout, recipe.folds)

    def cut() -> Iterator[tuple[Array, Array, int]]:
        position = 0
        for X, y in blocks:
            step = rows_a_block(X.shape[1])
            for start in range(0, len(y), step):
                rows = slice(start, start + step)
                part = dense_rows(X, rows)
                yield part.copy() if copy and threads > 1 else part, y[rows], position
                position += len(y[rows])

    @np.errstate(all="ignore")  # a floating-point error would tell of the data
    def add(X: Array, y: Array, position: int) -> int:
        statistics.update(*recipe.records(X, y), position)
        return len(y)

    with _progress(recipe.layout.n_max if progress else None) as advance:
        for rows in in_threads(add, cut(), threads):
            advance(rows)
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


def sum_dask(X: Any, y: Any, recipe: Recipe, n_rows: int) -> GramFolds:
    """Return the exact sums over the chunks of Dask arrays, computed where the chunks lie.

    Workers ship sums, not rows, and chunks are merged in their order: a fold is a matter of
    positions, so every chunk must have the size that it says. A chunk that is lost with its worker is
    computed again by Dask; the ledger is asked once, after the whole sum is here.
    """
    import dask

    task = dask.delayed(_sum_chunk, pure=False)
    merge = dask.delayed(_merge_packed, pure=False)
    sizes = chunk_sizes(X)
    parts = [task(*p, recipe, size) for p, size in zip(chunk_pairs(X, y), sizes, strict=True)]
    while len(parts) > 1:
        parts = [merge(parts[i : i + 8]) for i in range(0, len(parts), 8)]
    found = GramFolds._unpack(computed(dask, parts[0])[0])
    if found._rows != n_rows:
        raise DataError(WRONG_SIZES)
    return found


def _sum_chunk(X: Any, y: Any, recipe: Recipe, size: int | None) -> Packed:
    if size is not None and shape_of(X)[0] != size:
        raise DataError(WRONG_SIZES)
    return sum_blocks(chunk_block(X, y), recipe)._pack()


def _merge_packed(parts: list[Packed]) -> Packed:
    total = GramFolds._unpack(parts[0])
    for part in parts[1:]:
        total.merge(GramFolds._unpack(part))
    return total._pack()
