"""The engine that reads a table: the same rows in the same order from every kind of table."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from dpkernel import BlockStream, Ledger, PrivateKernelClassifier
from dpkernel.data import cache
from dpkernel.data.blocks import checked_blocks, rows_a_block
from dpkernel.data.passes import Passes
from dpkernel.data.sources import Source
from dpkernel.foundations.errors import DataError

ROWS = 9000  # two whole blocks and a part


@pytest.fixture
def data(rng):
    X = np.where(rng.random((ROWS, 3)) < 0.5, 0.0, rng.uniform(-1, 1, (ROWS, 3)))
    return X, X[:, 0] + 0.2 * rng.normal(size=ROWS)


def source_of(kind, X, y, **options):
    return Source(kind, ROWS, 3, (), X, y, **options)


def overwritten(X, y, size=700):
    """A stream that hands out the same memory again and again."""

    def read():
        place = np.empty((size, 3))
        for start in range(0, ROWS, size):
            part = X[start : start + size]
            place[: len(part)] = part
            yield place[: len(part)], y[start : start + size]
            place[:] = 0.5

    return BlockStream(read, n_rows=ROWS)


def dask_source(X, y, size=700, **options):
    array = pytest.importorskip("dask.array")
    return source_of(
        "dask", array.from_array(X, chunks=(size, 2)), array.from_array(y, chunks=size), **options
    )


def tensor_source(X, y):
    torch = pytest.importorskip("torch")
    return source_of("torch", torch.as_tensor(X), torch.as_tensor(y))


TABLES = {
    "array": lambda X, y: source_of("array", X, y),
    "columns": lambda X, y: source_of("array", np.asfortranarray(X), y),
    "sparse": lambda X, y: source_of("array", sparse.csr_matrix(X), y),
    "stream": lambda X, y: source_of("stream", overwritten(X, y), None),
    "stream, once": lambda X, y: source_of("stream", checked_blocks(overwritten(X, y)), None),
    "dask": dask_source,
    "torch": tensor_source,
}


@pytest.mark.parametrize("kind", TABLES)
def test_every_table_hands_out_the_same_rows_in_the_same_order(data, kind):
    X, y = data
    blocks = list(Passes(TABLES[kind](X, y)).blocks())  # all at once: none may change afterwards
    np.testing.assert_array_equal(np.concatenate([rows for rows, _ in blocks]), X)
    np.testing.assert_array_equal(np.concatenate([targets for _, targets in blocks]), y)
    assert all(rows.dtype == targets.dtype == np.float64 for rows, targets in blocks)
    if kind in ("array", "columns", "sparse", "stream", "torch"):
        assert [len(rows) for rows, _ in blocks] == [4096, 4096, 808]
    assert max(len(rows) for rows, _ in blocks) <= rows_a_block(3)


def test_tensors_stay_tensors_where_that_is_wanted(data):
    torch = pytest.importorskip("torch")
    found = list(Passes(tensor_source(*data), device_rows=5000).blocks())
    assert [len(rows) for rows, _ in found] == [5000, 4000]
    assert all(isinstance(part, torch.Tensor) for block in found for part in block)
    np.testing.assert_array_equal(torch.cat([rows for rows, _ in found]).cpu().numpy(), data[0])


def test_shares_of_units_travel_with_their_rows(data):
    X, y = data
    shares = np.arange(ROWS) / ROWS
    blocks = list(Passes(source_of("array", sparse.csr_matrix(X), y, shares=shares)).blocks())
    for place, whole in enumerate((X, y, shares)):
        np.testing.assert_array_equal(np.concatenate([block[place] for block in blocks]), whole)


# --- steps ----------------------------------------------------------------------------------------


def double(X, y, factor=2):
    return factor * X, y


def column_sums(X, y):
    return X.sum(axis=0), np.array(len(y)), np.array(1)


def test_steps_run_once_where_they_are_kept_and_each_time_where_not(data):
    calls = []

    def noted(X, y):
        calls.append(len(y))
        return 2 * X, y

    table = Passes(source_of("array", *data))
    for found, rounds in ((table.then(noted, bytes_a_row=32), 1), (table.then(noted), 3)):
        calls.clear()
        for _ in range(3):
            total, rows, blocks = found.sum(column_sums)
            np.testing.assert_allclose(total, 2 * data[0].sum(axis=0))
            assert rows == ROWS and blocks == 3
        assert calls == [4096, 4096, 808] * rounds
        found.prepare()
        assert len(calls) == 3 * rounds


@pytest.mark.parametrize("kind", TABLES)
def test_steps_and_sums_are_those_of_the_array(data, kind):
    found = Passes(TABLES[kind](*data)).then(double).then(double, 3, bytes_a_row=32)
    np.testing.assert_allclose(found.sum(column_sums)[0], 6 * data[0].sum(axis=0))


def test_all_that_a_chain_keeps_fits_into_one_limit(data, monkeypatch):
    monkeypatch.setattr(cache, "_limits", cache.CacheLimits(100 * ROWS, 0))
    first = Passes(source_of("array", *data)).then(double, bytes_a_row=60)
    assert first.keeps and not first.then(double, bytes_a_row=41).keeps
    assert first.then(double, bytes_a_row=40).keeps
    assert first.then(double).then(double, bytes_a_row=40).keeps
    assert not first.then(double, bytes_a_row=40).then(double, bytes_a_row=1).keeps
    assert not Passes(source_of("array", *data)).then(double, bytes_a_row=101).keeps


@pytest.mark.parametrize("kind", TABLES)
def test_a_joined_table_is_one_block(data, kind):
    found = Passes(TABLES[kind](*data)).then(double, bytes_a_row=32, joined=True)
    assert found.keeps
    (rows, targets), (again, _) = *found.blocks(), *found.blocks()
    np.testing.assert_array_equal(rows, 2 * data[0])
    np.testing.assert_array_equal(targets, data[1])
    assert again is rows


def test_rows_of_an_array_are_reached_by_number(data, rng):
    order = rng.permutation(ROWS)[:5000]
    for table in (data[0], sparse.csr_matrix(data[0])):
        found = list(Passes(source_of("array", table, data[1])).then(double, 3).at(order))
        assert [len(rows) for rows, _ in found] == [4096, 904]
        np.testing.assert_array_equal(np.concatenate([f[0] for f in found]), 3 * data[0][order])
        np.testing.assert_array_equal(np.concatenate([f[1] for f in found]), data[1][order])


# --- Dask -----------------------------------------------------------------------------------------


def targets_of(blocks):
    return [value for _, y in blocks for value in y.tolist()]


def appended(parts):
    return [value for part in parts for value in part]


def test_results_of_chunks_come_and_are_merged_in_their_order(data):
    """Ninety chunks: workers merge them in a tree of three levels."""
    table = Passes(dask_source(*data, size=100)).then(double)
    parts = table.run(targets_of)
    assert len(parts) == 90 and appended(parts) == data[1].tolist()
    (merged,) = table.run(targets_of, merge=appended)
    assert merged == data[1].tolist()


def test_chunks_stay_where_they_lie_if_nothing_can_be_kept(data, monkeypatch):
    monkeypatch.setattr(cache, "_limits", cache.CacheLimits(0, 0))
    fetched = []
    table = Passes(dask_source(*data)).then(double, bytes_a_row=32)
    assert not table.keeps
    table._first._read = lambda: fetched.append(1)
    table.prepare()
    table.sum(column_sums)
    assert fetched == []


def test_without_a_cluster_chunks_are_read_once_and_kept(data):
    calls = []

    def noted(block):
        calls.append(len(block))
        return block

    source = dask_source(*data)
    X = source.X.rechunk((700, 3)).map_blocks(noted, dtype=float, meta=data[0][:0])
    calls.clear()  # Dask may look at an empty block
    table = Passes(Source("dask", ROWS, 3, (), X, source.y)).then(double, bytes_a_row=32)
    assert table.place == "memory" and table.local
    for _ in range(3):
        np.testing.assert_allclose(table.sum(column_sums)[0], 2 * data[0].sum(axis=0))
        (found,) = table.run(targets_of)
        assert found == data[1].tolist()
    assert sum(calls) == ROWS


def test_rows_and_targets_of_one_dask_array_are_read_once_in_a_pass(data):
    dask, array = pytest.importorskip("dask"), pytest.importorskip("dask.array")
    whole, reads = np.column_stack(data), []

    def read(start):
        reads.append(start)
        return whole[start : start + 1000]

    parts = [dask.delayed(read, pure=False)(start) for start in range(0, 3000, 1000)]
    one = array.concatenate([array.from_delayed(p, (1000, 4), dtype=float) for p in parts])
    table = Passes(Source("dask", 3000, 3, (), one[:, :3], one[:, 3]))
    found = [value for part in table.run(targets_of) for value in part]
    assert found == data[1][:3000].tolist()
    assert sorted(reads) == [0, 1000, 2000]


def uneven(X, y, sizes):
    """Return a Dask table that says its chunks have 100 rows."""
    dask, array = pytest.importorskip("dask"), pytest.importorskip("dask.array")
    ends = np.cumsum([0, *sizes])

    def lazy(table, shape):
        parts = [table[a:b] for a, b in pairwise(ends)]
        return array.concatenate(
            [array.from_delayed(dask.delayed(p), shape=shape, dtype=table.dtype) for p in parts]
        )

    return lazy(X, (100, 3)), lazy(y, (100,))


def test_chunks_of_other_sizes_than_they_say_are_refused_by_every_job(data):
    X, y = data[0][:300], data[1][:300]
    for sizes in ((90, 110, 100), (100, 100, 99)):
        table = Passes(Source("dask", 300, 3, (), *uneven(X, y, sizes)))
        for work, job in ((table.run, targets_of), (table.sum, column_sums)):
            with pytest.raises(DataError, match="other sizes than it says"):
                work(job)
    ledger = Ledger()
    model = PrivateKernelClassifier(classes=[0, 1], bounds=(-1, 1), n_features=8, ledger=ledger)
    with pytest.raises(DataError, match="other sizes than it says"):
        model.fit(*uneven(X, (y > 0).astype(int), (90, 110, 100)))
    assert not ledger.spends


@pytest.mark.parametrize("spent", [False, True])
def test_a_failure_says_what_it_cost_and_quotes_nothing(data, spent):
    def fail(block):
        raise OSError("0.123456789")

    X, y = data
    source = dask_source(X, y)
    broken = source.X.map_blocks(fail, dtype=float, meta=X[:0])
    table = Passes(Source("dask", ROWS, 3, (), broken, source.y), spent=spent).then(double)
    message = "budget was spent before" if spent else "Nothing was spent"
    for work in (lambda: table.sum(column_sums), lambda: list(table.blocks())):
        with pytest.raises(DataError, match=f"OSError. .*{message}") as caught:
            work()
        assert "0.12" not in str(caught.value)


def test_missing_values_are_refused_unless_they_are_allowed(data):
    X, y = data[0].copy(), data[1]
    X[8999, 1] = np.nan
    for allowed in (False, True):
        for table in (
            source_of("stream", BlockStream([(X, y)], n_rows=ROWS), None, missing=allowed),
            dask_source(X, y, missing=allowed),
        ):
            for work in (lambda t: t.sum(column_sums), lambda t: list(t.blocks())):
                if allowed:
                    work(Passes(table))
                    continue
                with pytest.raises(DataError, match="NaN or infinity"):
                    work(Passes(table))
