"""Random words: from the operating system, or seeded and therefore not private.

``SystemEntropy`` asks the operating system's cryptographic generator for every word. It keeps no
state, so nothing can be repeated after a fork, shared between threads by accident, or read out of
the process. ``SeededEntropy`` is for tests and reproductions; whatever uses it is marked "not
private". ``KeyedEntropy`` expands a secret key that came from one of the two. ``this_process``
tells a forked child from its parent, for rights that must not be used in both.

Not handled: a broken or unseeded generator of the operating system.
"""

from __future__ import annotations

import hashlib
import os
import threading
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_forks = 0  # the number of forks between the first process and this one


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # systems without this function do not fork
    os.register_at_fork(after_in_child=_count_fork)


def this_process() -> tuple[int, int]:
    """Return a value that differs between all processes that hold copies of the same memory.

    A process id alone is not enough, because it can be reused: a grandchild may get the id of its
    dead grandparent. Therefore the number of forks is included, which grows with each fork.
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

    It has no state on purpose: a generator without state can't repeat itself in a forked worker.
    The price is speed, which it limits for all samplers.
    """

    private = True
    generator = "os.urandom"

    def words(self, count: int) -> Words:
        """Return ``count`` fresh words."""
        return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def secret_key() -> bytes:
    """Return 32 fresh bytes of the operating system's generator, for ``KeyedEntropy``."""
    return os.urandom(32)


class SeededEntropy:
    """Words from NumPy's PCG64, which are repeatable and therefore never private."""

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
    """Words that follow from a secret key and a label (SHAKE-256); as secret as the key."""

    private = False  # the source of the key decides, not this class
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
