"""Blocks of rows on several threads: NumPy works on a block with one thread, BLAS apart.

Results come in the order of the blocks, so sums of them do not depend on which thread was first.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

_MOST_THREADS = 8
_MOST_BYTES = 1 << 28  # of the blocks that are worked on at once

_taken = threading.Lock()
T = TypeVar("T")


@contextlib.contextmanager
def block_threads(n_blocks: int, bytes_a_block: int) -> Iterator[int]:
    """Yield how many blocks may be worked on at once; meanwhile they share the threads of BLAS.

    That many as BLAS may use now (one under OPENBLAS_NUM_THREADS=1), at most 8, and so few that
    their blocks take no more than 256 MB together. One where BLAS is unknown, or where another pass
    in this process has the threads.
    """
    if not _taken.acquire(blocking=False):
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
    """Yield work(*task) for every task, in their order; so many tasks exist at once as threads.

    Tasks are taken here, one after the other, and must not change after that.
    """
    if threads == 1:
        for task in tasks:
            yield work(*task)
        return

    blas, share = _blas()

    def limit() -> None:  # some BLAS libraries count threads for each thread that calls them
        blas.limit(limits=share)

    running: deque[Future[T]] = deque()
    with ThreadPoolExecutor(threads, "dpkernel", initializer=limit) as pool:
        for task in tasks:
            if len(running) >= threads:
                yield running.popleft().result()
            running.append(pool.submit(work, *task))
        yield from (future.result() for future in running)


def _blas() -> tuple[ThreadpoolController, int]:
    """Return what sets the threads of BLAS, and how many they are now."""
    blas = ThreadpoolController().select(user_api="blas")
    return blas, max((library["num_threads"] or 1 for library in blas.info()), default=1)
