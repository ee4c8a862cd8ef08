"""Blocks on several threads: the same model, bounded waiting, and BLAS as it was afterwards."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dpkernel import BlockStream, Budget, Ledger, Neighbours, PrivateKernelRidge, SeededNoise
from dpkernel.estimators import gram_pass
from dpkernel.foundations.errors import DataError
from dpkernel.foundations.threads import block_threads, in_threads
from dpkernel.privacy.statistics import GramLayout, GramSum

ROWS = 30_000  # eight blocks, in single precision


@pytest.fixture
def data(rng):
    X = rng.uniform(-1, 1, (ROWS, 3))
    return X, np.sin(2 * X[:, 0])


def build(**options):
    options = {"features": "fourier", "n_features": 64, "noise": SeededNoise(4), **options}
    return PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-2, 2), **options)


def use_threads(monkeypatch, threads):
    monkeypatch.setattr(gram_pass, "block_threads", lambda *sizes: contextlib.nullcontext(threads))


def blas_threads():
    return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}


def test_the_number_of_threads_changes_nothing(data, monkeypatch):
    models = []
    with threadpool_limits(1, user_api="blas"):
        for threads in (1, 2, 5):
            use_threads(monkeypatch, threads)
            models.append(build().fit(*data))
            models.append(build().fit(BlockStream.from_arrays(*data)))
    for model in models[1:]:
        np.testing.assert_array_equal(model.coef_, models[0].coef_)


def test_a_stream_may_overwrite_the_block_it_gave(data, monkeypatch):
    """A row that is read twice would count twice and break the sensitivity."""
    X, y = data

    def blocks():
        rows, targets = np.empty((1000, 3)), np.empty(1000)
        for start in range(0, ROWS, 1000):
            rows[:], targets[:] = X[start : start + 1000], y[start : start + 1000]
            yield rows, targets
            rows[:], targets[:] = 0.5, 0.5

    models = []
    for threads in (1, 3):
        use_threads(monkeypatch, threads)
        models.append(build().fit(BlockStream(blocks, n_rows=ROWS)))
    np.testing.assert_array_equal(models[1].coef_, models[0].coef_)


def test_an_error_in_a_late_block_spends_nothing(data, monkeypatch):
    X, y = data
    use_threads(monkeypatch, 3)
    ledger = Ledger(budget=Budget(5.0, 1e-6))
    blocks = [(X[:20_000], y[:20_000]), (X[20_000:] * np.nan, y[20_000:])]
    with pytest.raises(DataError, match="NaN or infinity"):
        build(ledger=ledger).fit(BlockStream(blocks, n_rows=ROWS))
    assert ledger.spends == []


def test_results_come_back_and_few_tasks_exist_at_once():
    alive, most, lock = 0, 0, threading.Lock()

    def tasks():
        nonlocal alive, most
        for i in range(50):
            with lock:
                alive += 1
                most = max(most, alive)
            yield (i,)

    def work(i):
        nonlocal alive
        with lock:
            alive -= 1
        return i * i

    assert sorted(in_threads(work, tasks(), 3)) == [i * i for i in range(50)]
    assert most <= 4

    def fail(i):
        raise DataError("no")

    with pytest.raises(DataError, match="no"):
        list(in_threads(fail, [(1,), (2,)], 2))


def test_blas_lends_its_threads_and_gets_them_back():
    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        if before != {2}:
            pytest.skip("this BLAS does not let its threads be counted")
        with block_threads(9, 1000) as threads:
            assert (threads, blas_threads()) == (2, {1})
            with block_threads(9, 1000) as second:  # another pass has them
                assert second == 1
        assert blas_threads() == before
        with block_threads(9, 1 << 50) as threads:  # too large for two at once
            assert (threads, blas_threads()) == (1, before)
        with block_threads(1, 1000) as threads:  # a single block
            assert (threads, blas_threads()) == (1, before)
        with pytest.raises(DataError), block_threads(9, 1000):
            raise DataError("no")
        assert blas_threads() == before
        with block_threads(9, 1000) as threads:
            assert threads == 2
    with threadpool_limits(1, user_api="blas"), block_threads(9, 1000) as threads:
        assert threads == 1


def test_threads_can_add_to_one_statistic(rng):
    layout = GramLayout.choose(600, 1, 1.0, Neighbours.REPLACE_ONE, 900, Budget(1.0, 1e-6))
    Z, y = rng.standard_normal((900, 600)), rng.uniform(-1, 1, (900, 1))
    together, alone = GramSum(layout), GramSum(layout)
    tasks = ((slice(i, i + 3),) for i in range(0, 900, 3))
    list(in_threads(lambda rows: together.update(Z[rows], y[rows]), tasks, 4))
    assert together._pack() == alone.update(Z, y)._pack()


def test_threads_fit_one_object_one_after_the_other(data):
    """A fit that has spent must not end because of another fit of the same object."""
    X, y = data[0][:2000], data[1][:2000]
    ledger = Ledger()
    model = build(ledger=ledger)
    reading, done = threading.Event(), threading.Event()
    errors = []

    def blocks():
        yield X[:1000], y[:1000]
        reading.set()
        done.wait(0.3)  # in which the other fit would end, if it did not wait
        yield X[1000:], y[1000:]

    def attempt(*rows):
        try:
            model.fit(*rows)
        except BaseException as error:
            errors.append(error)

    first = threading.Thread(target=attempt, args=(BlockStream(blocks, n_rows=2000),))
    first.start()
    reading.wait(10)
    second = threading.Thread(target=lambda: (attempt(X, y), done.set()))
    second.start()
    first.join()
    second.join()
    assert errors == [] and len(ledger.spends) == 2
    assert np.isfinite(model.predict(X)).all()
