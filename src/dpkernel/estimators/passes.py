"""Passes over a table, as many as are needed: sums of a function over blocks of rows.

A ``Passes`` is a table and the steps that every block goes through. What comes out of the steps stays
in memory where it fits and is made again each pass where it does not. Functions are module-level and
their arguments public or released, so that Dask can run them where the chunks lie; what comes back
from there are sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dpkernel.data.blocks import dense_rows, rows_a_block
from dpkernel.estimators.sources import Source, chunk_block, chunk_pairs, computed, read_again
from dpkernel.foundations.threads import block_threads, in_threads
from dpkernel.foundations.types import Array
from dpkernel.models.losses import Loss
from dpkernel.solvers.objective_perturbation import (
    BlockRecords,
    CompensatedSum,
    Records,
    sum_blocks,
)

Block = tuple[Any, ...]
Step = tuple[Callable[..., Block], tuple[Any, ...]]

_CACHE_BYTES = 2**28  # of the blocks of one stage of the work


class Passes:
    """A table and the steps that each of its blocks of rows goes through.

    Parameters
    ----------
    source : Source
        Opened to be read again.
    steps : tuple of (function, arguments)
        function(*block, *arguments) returns the next block; the first one gets (X, y).
    bytes_a_row : int
        How much memory a row takes after the last step.
    spent : bool
        The sums are taken after the budget was spent: a failure says so.
    """

    def __init__(
        self,
        source: Source,
        steps: tuple[Step, ...] = (),
        bytes_a_row: int | None = None,
        *,
        spent: bool = False,
    ) -> None:
        self._source, self._steps, self._spent = source, steps, spent
        size = None if bytes_a_row is None else source.n_rows * bytes_a_row
        self._keep = size is not None and size <= _CACHE_BYTES
        self._kept: list[Block] | None = None
        self._before: Passes | None = None

    def then(
        self, function: Callable[..., Block], *arguments: Any, bytes_a_row: int | None = None
    ) -> Passes:
        """Return the table with one more step; it starts from what is in memory here."""
        steps = (*self._steps, (function, arguments))
        found = Passes(self._source, steps, bytes_a_row, spent=self._spent)
        found._before = self
        return found

    def sum(self, function: Callable[..., Block], *arguments: Any) -> list[Any]:
        """Return the sums over all blocks of the arrays that function(*block, *arguments) returns."""
        if self._source.kind == "dask":
            parts = self._in_chunks(_chunk_sum, function, arguments)
        else:
            with block_threads(64, 2**25) as threads:
                tasks = ((function, block, arguments) for block in self.blocks())
                parts = list(in_threads(_apply, tasks, threads))
        return [sum(values[1:], start=values[0]) for values in zip(*parts, strict=True)]

    def records(self, loss: Loss) -> Records:
        """Return the sums of a convex problem, for blocks (features, targets, weights)."""
        if self._source.kind == "dask":
            return _ChunkRecords(self, loss)
        return BlockRecords(self.blocks, loss)

    def prepare(self) -> None:
        """Make what is kept in memory now."""
        if self._source.kind != "dask":
            self.blocks()

    def blocks(self) -> Iterable[Any]:
        """Return the blocks after the last step, in memory or made anew."""
        if self._kept is None and self._keep:
            self._kept = list(self._made())
        return self._made() if self._kept is None else self._kept

    def _made(self) -> Iterator[Block]:
        if self._before is None:
            yield from _cut(read_again(self._source))
            return
        for block in self._before.blocks():
            yield _apply(self._steps[-1][0], block, self._steps[-1][1])

    def _in_chunks(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        import dask

        task = dask.delayed(work, pure=False)
        chunks = chunk_pairs(self._source.X, self._source.y)
        made = [task(X, y, self._steps, *arguments) for X, y in chunks]
        return [part for part in computed(dask, *made, spent=self._spent) if part is not None]


class _ChunkRecords:
    """The sums of a convex problem over Dask chunks."""

    def __init__(self, passes: Passes, loss: Loss) -> None:
        self._passes, self._loss = passes, loss

    def sums(
        self, beta: Array, hessian_stride: int = 0, threads: int = 1
    ) -> tuple[Array, Array | None]:
        """Return the gradient of the sum of losses and, with a stride, its Hessian."""
        wanted = min(hessian_stride, 1)  # every chunk: they are few
        parts = self._passes._in_chunks(_chunk_records, self._loss, beta, wanted)
        gradient, hessian = CompensatedSum(len(beta)), CompensatedSum((len(beta), len(beta)))
        for part in parts:
            gradient.add(part[0])
            if wanted:
                hessian.add(part[1])
        return gradient.value, hessian.value if wanted else None


def _apply(function: Callable[..., Block], block: Block, arguments: tuple[Any, ...]) -> Block:
    return function(*block, *arguments)


def _cut(blocks: Iterable[tuple[Any, Array]]) -> Iterator[Block]:
    """Yield dense blocks of a few thousand rows."""
    for X, y in blocks:
        step = rows_a_block(X.shape[1])
        for start in range(0, len(y), step):
            rows = slice(start, start + step)
            yield dense_rows(X, rows), y[rows]


def _chunk_blocks(X: Any, y: Any, steps: tuple[Step, ...]) -> Iterator[Any]:
    for cut in _cut(chunk_block(X, y)):
        block = cut
        for function, arguments in steps:
            block = function(*block, *arguments)
        yield block


def _chunk_sum(
    X: Any, y: Any, steps: tuple[Step, ...], function: Callable[..., Block], arguments: Any
) -> list[Any] | None:
    parts = [function(*block, *arguments) for block in _chunk_blocks(X, y, steps)]
    if not parts:
        return None
    return [sum(values[1:], start=values[0]) for values in zip(*parts, strict=True)]


def _chunk_records(
    X: Any, y: Any, steps: tuple[Step, ...], loss: Loss, beta: Array, hessian_stride: int
) -> tuple[Array, Array | None]:
    return sum_blocks(_chunk_blocks(X, y, steps), loss, beta, hessian_stride)
