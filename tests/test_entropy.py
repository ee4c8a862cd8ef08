"""Random words: fresh in every process and thread, or seeded and marked as not private."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from scipy.stats import chi2

from dpkernel.foundations.entropy import KeyedEntropy, SeededEntropy, SystemEntropy, WordSource

WORDS = 64  # drawn by each process or thread
# 4 x 64 words of 64 bits are all different but for a chance of 2e-15 (256^2 / 2^65); of the tests
# below three rest on that, and one on the chi-square test of bytes, which has this false-alarm rate.
REAL_FALSE_ALARM = 1e-9


def in_forks(source: WordSource, children: int = 3) -> list[np.ndarray]:
    """Return what forked children draw from one source, and then what the parent draws."""
    source.words(1)
    drawn = []
    for _ in range(children):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(write, source.words(WORDS).tobytes())
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            drawn.append(np.frombuffer(pipe.read(), dtype=np.uint64))
        assert os.waitpid(child, 0)[1] == 0
    return [*drawn, source.words(WORDS)]


def in_threads(source: WordSource, count: int = 4) -> list[np.ndarray]:
    """Return what threads that start together draw from one source."""
    drawn, start = [], threading.Barrier(count)

    def draw() -> None:
        start.wait()
        drawn.append(np.concatenate([source.words(1) for _ in range(WORDS)]))

    threads = [threading.Thread(target=draw) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return drawn


def all_different(drawn: list[np.ndarray]) -> bool:
    assert [len(words) for words in drawn] == [WORDS] * len(drawn)
    return len(np.unique(np.concatenate(drawn))) == WORDS * len(drawn)


def test_forked_processes_never_repeat_a_word():
    assert all_different(in_forks(SystemEntropy()))


def test_the_fork_test_rejects_a_generator_with_state():
    drawn = in_forks(SeededEntropy(1))
    assert not all_different(drawn)
    assert np.array_equal(drawn[0], drawn[1])


def test_threads_never_repeat_a_word():
    assert all_different(in_threads(SystemEntropy()))
    assert all_different(in_threads(SeededEntropy(1)))


def test_threads_share_a_seeded_stream():
    together = np.sort(np.concatenate(in_threads(SeededEntropy(7))))
    assert np.array_equal(together, np.sort(SeededEntropy(7).words(4 * WORDS)))


def test_the_thread_test_rejects_one_seed_a_thread():
    class Restarting:
        def words(self, count):
            return SeededEntropy(1).words(count)

    assert not all_different(in_threads(Restarting()))


def test_system_entropy_is_private_and_keeps_no_state():
    source = SystemEntropy()
    assert source.private is True
    assert source.generator == "os.urandom"
    first = source.words(WORDS)
    assert vars(source) == {}
    assert not np.isin(source.words(WORDS), first).any()
    assert not np.isin(SystemEntropy().words(WORDS), first).any()


def test_system_words_are_what_the_operating_system_gives(monkeypatch):
    asked = []

    def urandom(count):
        asked.append(count)
        return bytes(range(count))

    monkeypatch.setattr(os, "urandom", urandom)
    words = SystemEntropy().words(3)
    assert asked == [24]
    assert words.tobytes() == bytes(range(24))


@pytest.mark.parametrize("source", [SystemEntropy(), SeededEntropy(0)], ids=["system", "seeded"])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_words_are_64_bits(source, count):
    words = source.words(count)
    assert words.dtype == np.uint64
    assert words.shape == (count,)


def byte_p_value(words: np.ndarray) -> float:
    """Return the chi-square p-value of "all bytes are uniform", byte by byte position."""
    table = np.array([np.bincount(column, minlength=256) for column in byte_columns(words)])
    expected = len(words) / 256
    return float(chi2.sf(np.sum((table - expected) ** 2) / expected, 8 * 255))


def byte_columns(words: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(words).view(np.uint8).reshape(-1, 8).T


def test_system_bytes_are_uniform():
    words = SystemEntropy().words(100_000)
    assert byte_p_value(words) > REAL_FALSE_ALARM
    assert byte_p_value(words >> np.uint64(1)) < REAL_FALSE_ALARM  # a bit that is always zero


def test_seeded_entropy_repeats_and_says_so():
    source, again = SeededEntropy(3), SeededEntropy(3)
    assert source.private is False
    assert "seeded" in source.generator
    whole = SeededEntropy(3).words(10)
    assert np.array_equal(np.concatenate([source.words(4), source.words(6)]), whole)
    assert np.array_equal(again.words(10), whole)
    assert not np.array_equal(again.words(10), whole)
    assert not np.isin(SeededEntropy(4).words(10), whole).any()


def test_keyed_entropy_repeats_for_one_key_and_label_and_never_within_one():
    whole = np.concatenate([(source := KeyedEntropy(b"key", b"x")).words(20), source.words(20)])
    assert len(np.unique(whole)) == 40
    again = KeyedEntropy(b"key", b"x")
    assert np.array_equal(np.concatenate([again.words(20), again.words(20)]), whole)
    for key, label in ((b"key", b"y"), (b"kez", b"x"), (b"", b"x")):
        assert not np.isin(KeyedEntropy(key, label).words(40), whole).any()
    assert KeyedEntropy(b"key", b"x").private is False
