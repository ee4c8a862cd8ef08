"""Blocks of rows on several threads. NumPy itself, except for BLAS, uses one thread per block.

Results come in the order of the blocks, so their sums do not depend on which thread was first.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

_MOST_THREADS = 8
_MOST_BYTES = 1 << 28  # largest total size of the blocks that are processed at one time

_taken = threading.Lock()
T = TypeVar("T")


@contextlib.contextmanager
def block_threads(n_blocks: int, bytes_a_block: int) -> Iterator[int]:
    """Yield how many blocks may be processed at the same time; they share the threads of BLAS.

    This is the number of threads that BLAS may use now (one under OPENBLAS_NUM_THREADS=1), but at
    most 8, and such that all blocks together take at most 256 MB. It is 1 if BLAS is unknown, or if
    another pass in this process already uses the threads.
    """
    if n_blocks < 2 or not _taken.acquire(blocking=False):
        yield 1
        return
    try:
        blas, spare = _blas()
        threads = max(1, min(spare, n_blocks, _MOST_THREADS, _MOST_BYTES // bytes_a_block))
        with blas.limit(limits=spare // threads) if threads > 1 else contextlib.nullcontext():
            yield threads
    finally:
        _taken.release()


def in_threads(
    work: Callable[..., T], tasks: Iterable[tuple[Any, ...]], threads: int
) -> Iterator[T]:
    """Yield ``work(*task)`` for every task, in order, with at most one task per thread at a time.

    Tasks are taken from the iterable in this thread, one after the other. They must not change
    later.
    """
    if threads == 1:
        for task in tasks:
            yield work(*task)
        return

    blas, share = _blas()

    def limit() -> None:  # some BLAS libraries have a limit for each calling thread
        blas.limit(limits=share)

    running: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads, "dpkernel", initializer=limit) as pool:
        for task in tasks:
            if len(running) >= threads:
                yield running.popleft().result()
            running.append(pool.submit(work, *task))
        yield from (future.result() for future in running)


def _blas() -> tuple[ThreadpoolController, int]:
    """Return the object that sets the threads of BLAS, and their present number."""
    blas = _controller(len(sys.modules))
    return blas, max((library["num_threads"] or 1 for library in blas.info()), default=1)


@lru_cache(maxsize=1)
def _controller(_modules: int) -> ThreadpoolController:
    """Return what sets the threads of BLAS; looked for again where a new module may bring a library."""
    return ThreadpoolController().select(user_api="blas")
