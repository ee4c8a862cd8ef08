"""Blocks of rows on several threads. NumPy itself, except for BLAS, uses one thread per block.

Results come in the order of the blocks, so their sums do not depend on which thread was first.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

_MOST_THREADS = 16
_LEAST_BYTES = 1 << 28  # what blocks that are processed at one time may take, or
_SHARE = 1 / 64  # this share of main memory, if that is more

_taken = threading.Lock()
T = TypeVar("T")


@contextlib.contextmanager
def block_threads(n_blocks: int, bytes_a_block: int) -> Iterator[int]:
    """Yield how many blocks may be processed at the same time; they share the threads of BLAS.

    This is the number of threads that BLAS may use now (one under OPENBLAS_NUM_THREADS=1), but at
    most 16, and such that all blocks together take at most 256 MB or a small share of main memory.
    It is 1 if BLAS is unknown, or if another pass in this process already uses the threads.
    """
    if n_blocks < 2 or not _taken.acquire(blocking=False):
        yield 1
        return
    try:
        blas, spare = _blas()
        threads = max(1, min(spare, n_blocks, _MOST_THREADS, _most_bytes() // bytes_a_block))
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


@cache
def _most_bytes() -> int:
    """Return how much the blocks that are processed at one time may take."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return max(_LEAST_BYTES, int(_SHARE * memory))
    return _LEAST_BYTES


def _blas() -> tuple[ThreadpoolController, int]:
    """Return the object that sets the threads of BLAS, and their present number."""
    blas = _controller(len(sys.modules))
    return blas, max((library["num_threads"] or 1 for library in blas.info()), default=1)


@lru_cache(maxsize=1)
def _controller(_modules: int) -> ThreadpoolController:
    """Return what sets the threads of BLAS; looked for again where a new module may bring a library."""
    return ThreadpoolController().select(user_api="blas")
