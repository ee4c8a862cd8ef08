"""Random words: from the operating system, or seeded and therefore not private.

``SystemEntropy`` asks the operating system's cryptographic generator for every
word and keeps no state, so that nothing can be repeated after a fork, shared
between threads by accident, or read out of the process. ``SeededEntropy`` is
for tests and reproductions: whatever it touches is marked "not private".
``KeyedEntropy`` expands a secret key that came from one of the two.
``this_process`` tells a forked child from its parent, for rights that must not be used in both.

What is not handled: a broken or unseeded operating system generator.
"""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_forks = 0  # how many forks lie between the first process and this one


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # systems without it do not fork
    os.register_at_fork(after_in_child=_count_fork)


def this_process() -> tuple[int, int]:
    """Return what no other process that holds a copy of this one's memory returns.

    A process id alone can come back: a grandchild may get the id of its dead grandparent. The number of
    forks grows with each of them.
    """
    return os.getpid(), _forks


class WordSource(Protocol):
    """Anything that hands out independent uniform 64-bit words."""

    private: bool
    generator: str

    def words(self, count: int) -> Words:
        """Return ``count`` fresh words."""


class SystemEntropy:
    """Words from the operating system's cryptographic generator (``os.urandom``).

    Stateless on purpose: a generator without state can't repeat itself in a forked
    worker. It is also what bounds the speed of the samplers.
    """

    private = True
    generator = "os.urandom"

    def words(self, count: int) -> Words:
        """Return ``count`` fresh words."""
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


class SeededEntropy:
    """Words from NumPy's PCG64: repeatable, hence never private."""

    private = False
    generator = "numpy PCG64, seeded"

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._bits = np.random.PCG64(seed)
        self._lock = threading.Lock()

    def words(self, count: int) -> Words:
        """Return the next ``count`` words of the seeded stream."""
        with self._lock:
            return np.asarray(self._bits.random_raw(count), dtype=np.uint64)


class KeyedEntropy:
    """Words that follow from a secret key and a label (SHAKE-256): as secret as the key is."""

    private = False  # by itself: where the key came from decides
    generator = "SHAKE-256 of a key"

    def __init__(self, key: bytes, label: bytes) -> None:
        self._seed = hashlib.sha256(key).digest() + label
        self._given = 0

    def words(self, count: int) -> Words:
        """Return the next ``count`` words."""
        block = self._seed + self._given.to_bytes(8, "little")
        self._given += 1
        digest = hashlib.shake_256(block).digest(8 * count)
        return np.frombuffer(digest, dtype=np.uint64)
