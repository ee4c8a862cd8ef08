"""Records by number: in memory where they fit, made again from their rows where they don't."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dpkernel.data.blocks import BlockStream, checked_blocks, dense_rows, rows_a_block
from dpkernel.estimators.records import RecordRecipe, Stored, Targets, make_records
from dpkernel.estimators.sources import Source, chunk_pairs, computed, read_again
from dpkernel.foundations.types import Array, IntArray
from dpkernel.solvers.sgd_gradient import Block, GradientSGD
from dpkernel.solvers.sgd_output import Part, in_parts

_CACHE_BYTES = 2**29


class RecordTable:
    """The records of a table, in any order.

    ``any_order`` is False for a stream, a Dask table or a tensor whose records are too many to keep:
    these are read from the first to the last.
    """

    def __init__(self, source: Source, recipe: RecordRecipe) -> None:
        self._source, self._recipe = source, recipe
        itemsize = np.dtype(recipe.dtype).itemsize
        self._keep = source.n_rows * recipe.n_coordinates * itemsize <= _CACHE_BYTES
        self._kept: Stored | None = None
        self.spent = False  # whether a pass that fails now was paid for: errors say so

    @property
    def any_order(self) -> bool:
        """Whether records can be reached by number."""
        return self.kept or self._source.kind == "array"

    @property
    def kept(self) -> bool:
        """Whether records stay in memory.

        Only then is a record the same in every random batch: made again, its last bits depend on the
        size of the block that it is made in.
        """
        return self._keep

    def prepare(self) -> None:
        """Make what is kept now, before anything is spent: a table that fails here costs nothing."""
        if not self._keep:
            return
        shape = self._source.n_rows, self._recipe.n_coordinates
        z, y, weights = np.empty(shape, self._recipe.dtype), np.empty(shape[0]), np.empty(shape[0])
        start = 0
        for part in self._blocks():
            stop = start + len(part[1])
            z[start:stop], y[start:stop], weights[start:stop] = part
            start = stop
        self._kept = z, y, weights

    def _blocks(self) -> Iterator[Stored]:
        return make_records(_read(self._source, self.spent), self._recipe)

    def parts(self, order: IntArray | None, targets: Targets) -> Iterator[Part]:
        """Yield records in this order (None: as they come), as one problem sees them."""
        if self._kept is not None:
            z, y, weights = self._kept
            wanted, factors = targets.of(y)
            rows = np.arange(len(y)) if order is None else order
            for some in in_parts(rows):
                yield z, some, wanted, weights if factors is None else weights * factors
            return
        for z, y, weights in self._blocks() if order is None else self._made(order):
            wanted, factors = targets.of(y)
            both = weights if factors is None else weights * factors
            yield z, np.arange(len(y)), wanted, both

    def _made(self, order: IntArray) -> Iterator[Stored]:
        """Yield the records of these rows of an array."""
        step = rows_a_block(self._source.n_columns)
        for start in range(0, len(order), step):
            rows = order[start : start + step]
            z, weights = self._recipe.rows(dense_rows(self._source.X, rows))
            yield z, self._source.y[rows], weights


class GradientTable:
    """The same records with integer rows, for sums of clipped gradients."""

    def __init__(self, table: RecordTable, plan: GradientSGD, targets: list[Targets]) -> None:
        self._table, self._plan, self._targets = table, plan, targets
        self._kept: Block | None = None

    def prepare(self) -> None:
        """Make what is kept."""
        self._table.prepare()
        if self._table._kept is not None:
            self._kept = self._block(self._table._kept)
            self._table._kept = None  # the integers take its place

    def _block(self, records: Stored) -> Block:
        z, y, weights = records
        caps = np.empty(len(y))
        whole: Array = np.empty(z.shape, np.float32)
        for start in range(0, len(y), 4096):
            rows = slice(start, start + 4096)
            whole[rows], caps[rows] = self._plan.rows(z[rows])
        views = [targets.of(y) for targets in self._targets]
        factors = [weights if factor is None else weights * factor for _, factor in views]
        # one weight a record: class weights do not depend on the problem
        return Block(whole, np.column_stack([view for view, _ in views]), factors[0], caps)

    def sums(self, w: Array, rows: IntArray | None) -> IntArray:
        """Return the exact sum of the clipped gradients at w of these rows (None: all)."""
        if self._kept is not None:
            return self._kept.sums(self._plan, w, rows).ravel()
        if rows is not None:
            raise AssertionError("random batches need records that are kept")
        total: IntArray = np.zeros(w.shape, np.int64)
        for records in self._table._blocks():
            total = total + self._block(records).sums(self._plan, w, None)
        return total.ravel()


def _read(source: Source, spent: bool) -> Iterator[tuple[Any, Array]]:
    """Yield (X, y) in blocks; chunks of a Dask table are fetched one after the other."""
    if source.kind != "dask":
        yield from read_again(source)
        return
    import dask

    def chunks() -> Iterator[tuple[Any, Any]]:
        for pair in chunk_pairs(source.X, source.y):
            X, y = computed(dask, *pair, spent=spent)
            if len(y):
                yield X, y

    # checked again: a graph may give other rows when it is computed again
    yield from checked_blocks(BlockStream(chunks, source.n_rows))
