"""The one engine that reads a table: passes over its blocks of rows, as many as are needed.

A ``Passes`` opens a table of any kind, knows its public sizes, and hands out its rows in blocks whose
sizes follow from public numbers, always in the same order. It knows nothing of features or losses: a
*step* is a function that makes the next block of a block, a *job* is a function of all blocks. What
comes out of a step is kept where there is room for it, in memory or on disk (``cache.py``), and is
made again each pass where there is none.

A Dask table is worked on where its chunks lie: steps and jobs are module-level functions, their
arguments public or released, and what comes back are the results of the jobs, one per chunk. The
workers of a cluster keep what they made. Without a cluster, this process keeps it as for any table.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from operator import add, itemgetter
from typing import Any, Self

import numpy as np

from dpkernel.data.blocks import BlockStream, checked_blocks, dense_rows, rows_a_block
from dpkernel.data.cache import NoRoomError, Room, kept_blocks, long_arrays
from dpkernel.data.chunks import (
    cluster,
    fetched,
    fits_on_workers,
    in_chunks,
    on_kept,
    persisted,
    persisted_after,
)
from dpkernel.data.sources import Source
from dpkernel.foundations.errors import DataError
from dpkernel.foundations.threads import block_threads, in_threads
from dpkernel.foundations.types import Array, IntArray

_BLOCK_BYTES = 2**26  # the working memory that a step on one block may need

Block = tuple[Any, ...]
Step = tuple[Callable[..., Block], tuple[Any, ...]]


class Passes:
    """A table and the steps that each of its blocks of rows goes through.

    Parameters
    ----------
    source : Source
        Opened to be read again, or once if there is to be one pass.
    spent : bool
        The passes follow on a spend: a Dask graph that fails says so. It may be set later.
    device_rows : int, optional
        Blocks of tensors have this many rows and stay tensors, on a GPU where there is one. If it is
        left out, they become arrays like those of any other table.

    Attributes
    ----------
    place : str
        Where the blocks after the last step are kept: "memory", "disk", "workers" or, if they are
        not, "".
    on_device : bool
        Whether the blocks after the last step are tensors on a device.
    local : bool
        Whether jobs run on all blocks in this process, not on chunks where these lie.
    """

    longer = 1  # how many times as long blocks of tensors are as those of other tables

    def __init__(
        self, source: Source, *, spent: bool = False, device_rows: int | None = None
    ) -> None:
        self.source, self._device_rows = source, device_rows
        self.place, self._size, self._joined = "", 0, False
        self.local, self._spent = source.kind != "dask", spent
        self._steps: tuple[Step, ...] = ()
        self._first = self  # the table itself, which reads the rows
        self._before: Self | None = None
        self._kept: Iterable[Block] | None = None
        self.on_device = device_rows is not None
        if self.on_device:
            from dpkernel.data import tensors

            memory = tensors.room(tensors.working_device(source.X), Room.found().more_memory)
            self._room = Room(memory, 0, 0)

    @cached_property
    def _room(self) -> Room:
        """The room for what is kept; nobody asks for it if nothing is."""
        return Room.found()

    @property
    def spent(self) -> bool:
        """Whether the budget has been spent, which the error of a failing pass then states."""
        return self._first._spent

    @spent.setter
    def spent(self, value: bool) -> None:
        self._first._spent = value

    @property
    def keeps(self) -> bool:
        """Whether the blocks after the last step are kept."""
        return bool(self.place)

    def then(
        self,
        function: Callable[..., Block],
        *arguments: Any,
        bytes_a_row: int | None = None,
        joined: bool = False,
        device: Any = None,
    ) -> Self:
        """Return the table with one more step: function(*block, *arguments) is the next block.

        Parameters
        ----------
        bytes_a_row : int, optional
            How much memory a row takes after this step. What fits is kept; without it nothing is.
        joined : bool
            What is kept becomes one long block in this process, whose rows can be reached by number.
        device : torch.device, optional
            The step makes tensors on this device, and they are kept there.
        """
        found = copy.copy(self)
        found._before, found._kept, found._joined = self, None, joined
        found._steps = (*self._steps, (function, arguments))
        found.place, found._size = "", self.source.n_rows * (bytes_a_row or 0)
        if device is not None and not self.on_device:
            from dpkernel.data import tensors

            found.on_device = True
            found._room = Room(tensors.room(device, self._room.more_memory), 0, 0)
        client = None if bytes_a_row is None or joined or self.local else cluster()
        if client is not None:
            found.place = "workers" if fits_on_workers(client, found._size) else ""
        elif bytes_a_row is not None:
            found.place, found._room = found._room.take(found._size)
        found.local = self.local or found.place in ("memory", "disk")
        return found

    def prepare(self) -> None:
        """Make what is kept now, before anything is spent: a table that fails here costs nothing."""
        if self._kept is None and self._before is not None:
            self._before.prepare()
        if self.place == "workers":
            self._chunks()
        elif self.keeps:
            self.blocks()

    def blocks(self) -> Iterable[Block]:
        """Return the blocks after the last step, as kept or made anew; Dask chunks are fetched."""
        if self._kept is None and self.place in ("memory", "disk"):
            with block_threads(64, _BLOCK_BYTES) as threads:
                self._keep(threads)
        if self._kept is not None and self.place != "workers":
            return self._kept
        return self._read() if self._before is None else self._made()

    def _made(self, threads: int = 1) -> Iterator[Block]:
        """Yield the blocks after the last step, in their order."""
        assert self._before is not None
        function, arguments = self._steps[-1]
        blocks = self._before.blocks()
        tasks = ((*block, *arguments) for block in blocks)
        return in_threads(function, tasks, 1 if self.on_device else threads)

    def _keep(self, threads: int) -> None:
        """Make all blocks and keep them. A disk that turns out to be full keeps nothing."""
        where, made = (self.place, self._room.folder), self._made(threads)
        try:
            if self._joined and self.on_device:
                from dpkernel.data import tensors

                self._kept = [tensors.joined(made)]
            elif self._joined:
                self._kept = [_join(made, self.source.n_rows, *where)]
            else:
                self._kept = kept_blocks(made, self.place, self._size, self._room.folder)
        except NoRoomError as error:
            if self._joined:  # whoever reaches rows by number has planned with this
                raise DataError(
                    "The disk has no room for the features of this table. Choose another folder or"
                    " less room with dpkernel.set_cache(folder=..., disk=...)."
                ) from error
            self.place = ""

    def at(self, rows: IntArray) -> Iterator[Block]:
        """Yield the blocks of these rows of an array, in this order, made anew."""
        table, step = self.source, rows_a_block(self.source.n_columns)
        for start in range(0, len(rows), step):
            some = rows[start : start + step]
            yield from _stepped([(dense_rows(table.X, some), table.y[some])], self._steps)

    def run(
        self,
        job: Callable[..., Any],
        *arguments: Any,
        merge: Callable[[list[Any]], Any] | None = None,
    ) -> list[Any]:
        """Return [job(blocks, *arguments)], or for a Dask table one result per chunk, in their order.

        With ``merge``, which makes one result of several that follow each other, workers of Dask
        merge theirs, and one is returned.
        """
        if self.local:
            return [job(self.blocks(), *arguments)]
        options: Any = {"merge": merge, "spent": self.spent}
        kept, steps = self._chunks()
        if kept is None:
            return in_chunks(self.source, _run_job, steps, job, arguments, **options)
        return on_kept(kept, _run_on_kept, steps, job, arguments, **options)

    def _chunks(self) -> tuple[list[Any] | None, tuple[Step, ...]]:
        """Return what the workers keep of each chunk (None: nothing), and the steps that follow."""
        if self._before is None:
            return None, ()
        if self._kept is not None:
            return list(self._kept), ()
        kept, steps = self._before._chunks()
        steps = (*steps, self._steps[-1])
        if self.place != "workers":
            return kept, steps
        if kept is None:
            self._kept = persisted(self.source, _made_list, (steps,), self.spent)
        else:
            self._kept = persisted_after(kept, _stepped_list, (steps,), self.spent)
        return list(self._kept), ()

    def sum(self, function: Callable[..., Block], *arguments: Any) -> list[Any]:
        """Return the sums over all blocks of the arrays that function(*block, *arguments) returns."""
        if not self.local:  # every chunk is a job of its own, and may have no rows
            return _added(filter(None, self.run(_sum, function, arguments)))
        self.prepare()  # on all threads; the sum takes them next
        with block_threads(64, 2**25) as threads:
            return _sum(self.blocks(), function, arguments, threads)

    def _read(self) -> Iterator[Block]:
        """Yield the rows themselves: (X, y), and the shares where the source has them."""
        source, step = self.source, rows_a_block(self.source.n_columns)
        if source.kind == "stream" and isinstance(source.X, BlockStream):
            return _whole(checked_blocks(source.X, missing=source.missing), step)
        if source.kind == "stream":
            # a copy: whoever hands out blocks may use their memory again for the next one
            return ((X.copy(), y) for X, y in _cut(source.X))
        if source.kind == "dask":
            return _cut(fetched(source, spent=self.spent))
        if source.kind == "torch":
            from dpkernel.data import tensors

            if self._device_rows is not None:
                return tensors.device_blocks(source.X, source.y, self._device_rows)
            return tensors.host_blocks(source.X, source.y, self.longer)
        columns = [source.X]
        columns += [] if source.y is None else [source.y]
        columns += [] if source.shares is None else [source.shares]
        return _cut([columns])


def _cut(pieces: Iterable[Iterable[Any]]) -> Iterator[Block]:
    """Yield pieces of a table, sparse or not, as dense blocks of a few thousand rows."""
    for X, *others in pieces:
        step = rows_a_block(X.shape[1])
        for start in range(0, X.shape[0], step):
            rows = slice(start, start + step)
            yield dense_rows(X, rows), *map(itemgetter(rows), others)


def _whole(pieces: Iterable[tuple[Any, Array]], step: int) -> Iterator[Block]:
    """Yield pieces of any size as dense blocks of ``step`` rows, the last one perhaps shorter."""
    waiting: list[Block] = []
    rows = 0
    for X, y in _cut(pieces):
        # a copy: whoever hands out blocks may use their memory again for the next one
        waiting.append((X.copy(), y))
        rows += len(y)
        if rows >= step:
            whole = [np.concatenate(parts) for parts in zip(*waiting, strict=True)]
            yield tuple(part[:step] for part in whole)
            waiting, rows = [tuple(part[step:] for part in whole)], rows - step
    if rows:
        yield tuple(np.concatenate(parts) for parts in zip(*waiting, strict=True))


def _join(blocks: Iterable[Block], n_rows: int, place: str, folder: str | None) -> Block:
    """Return one long block; the memory of two is never needed."""
    whole: Block = ()
    start = 0
    for block in blocks:
        whole = whole or long_arrays(n_rows, block, place, folder)
        stop = start + len(block[0])
        for values, part in zip(whole, block, strict=True):
            values[start:stop] = part
        start = stop
    return whole


def _stepped(blocks: Iterable[Block], steps: Iterable[Step]) -> Iterator[Block]:
    for block in blocks:
        for function, arguments in steps:
            block = function(*block, *arguments)
        yield block


def _made_list(pieces: Iterator[Any], steps: tuple[Step, ...]) -> list[Block]:
    """Return what a worker keeps of a Dask chunk."""
    return _stepped_list(_cut(pieces), steps)


def _stepped_list(blocks: Iterable[Block], steps: tuple[Step, ...]) -> list[Block]:
    return list(_stepped(blocks, steps))


def _run_on_kept(
    blocks: list[Block], steps: tuple[Step, ...], job: Callable[..., Any], arguments: Any
) -> Any:
    """Run a job on what a worker keeps of a Dask chunk."""
    return job(_stepped(blocks, steps), *arguments)


def _run_job(
    pieces: Iterator[Any], steps: tuple[Step, ...], job: Callable[..., Any], arguments: Any
) -> Any:
    """Run a job on a Dask chunk, where it lies."""
    return job(_stepped(_cut(pieces), steps), *arguments)


def _sum(
    blocks: Iterable[Block], function: Callable[..., Block], arguments: Block, threads: int = 1
) -> list[Any]:
    """Return the sums over blocks; nothing where there is none."""
    tasks = ((*block, *arguments) for block in blocks)
    return _added(in_threads(function, tasks, threads))


def _added(parts: Iterable[Iterable[Any]]) -> list[Any]:
    total: list[Any] = []
    for part in parts:
        total = list(map(add, total, part)) if total else list(part)
    return total
