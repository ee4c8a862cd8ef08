"""Sparse tables: the model of the dense table, bit for bit, in the memory of a few blocks."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dpkernel import BlockStream, Budget, Ledger, PrivateKernelRidge, SeededNoise
from dpkernel.data.blocks import rows_a_block
from dpkernel.foundations.errors import DataError

ROWS, COLUMNS = 5000, 12  # two blocks


@pytest.fixture
def data(rng):
    X = np.where(rng.random((ROWS, COLUMNS)) < 0.2, rng.uniform(-2, 2, (ROWS, COLUMNS)), 0.0)
    return X, X[:, 0] + np.sin(X[:, 1])


def build(**options):
    return PrivateKernelRidge(
        **{"bounds": (-1, 3), "y_bounds": (-3, 3), "noise": SeededNoise(4), **options}
    )


def same(model, reference, X, dense):
    np.testing.assert_array_equal(model.coef_, reference.coef_)
    np.testing.assert_array_equal(model.predict(X), reference.predict(dense))


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "lil", "dok", "bsr"])
@pytest.mark.parametrize("family", ["matrix", "array"])
def test_every_format_gives_the_model_of_the_dense_table(data, kind, family):
    X, y = data
    table = getattr(sparse, f"{kind}_{family}")(X)
    same(build(n_features=32).fit(table, y), build(n_features=32).fit(X, y), table, X)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "linear"},
        {"kernel": "polynomial"},
        {"features": "fourier", "n_features": 32},
        {"features": "fourier", "n_features": 32, "bounds": None},
        {"features": "projection", "n_features": 32, "bounds": None},
        {"features": "nystroem", "n_features": 32},
    ],
    ids=str,
)
def test_every_map_gives_the_model_of_the_dense_table(data, options):
    X, y = data
    Y = np.stack([y, -y], axis=1)
    table = sparse.csr_array(X)
    same(build(**options).fit(table, Y), build(**options).fit(X, Y), table, X)


def test_single_precision_from_twenty_thousand_rows(rng):
    full = rng.random((20_000, 5), dtype=np.float32)
    X = sparse.csr_array(np.where(full < 0.7, np.float32(0), full))
    y = full.sum(axis=1)
    for table in (X, X.astype(np.float64)):
        dense = table.toarray()
        same(build(n_features=8).fit(table, y), build(n_features=8).fit(dense, y), table, dense)


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.bool_, np.float32])
def test_whole_numbers_and_truth_values(data, kind):
    X, y = data
    whole = np.rint(X).astype(kind)
    table = sparse.csr_matrix(whole)
    same(build().fit(table, y), build().fit(whole, y), table, whole)


def test_duplicates_are_added_up_and_the_table_is_left_alone(data):
    X, y = data
    plain = sparse.csr_array(X)
    doubled = sparse.csr_array(
        (np.repeat(plain.data / 2, 2), np.repeat(plain.indices, 2), 2 * plain.indptr), shape=X.shape
    )
    before = doubled.data.copy(), doubled.indices.copy()
    same(build().fit(doubled, y), build().fit(X, y), doubled, X)
    np.testing.assert_array_equal(doubled.data, before[0])
    np.testing.assert_array_equal(doubled.indices, before[1])
    stream = BlockStream([(doubled, y)], n_rows=ROWS)
    np.testing.assert_array_equal(build().fit(stream).coef_, build().fit(X, y).coef_)


def test_explicit_zeros_and_unsorted_columns(data):
    X, y = data
    rows = np.repeat(np.arange(ROWS), COLUMNS)
    columns = np.tile(np.arange(COLUMNS)[::-1], ROWS)
    table = sparse.csr_array((X[rows, columns], (rows, columns)), shape=X.shape)
    table = sparse.csr_array((X[:, ::-1].ravel(), columns, table.indptr), shape=X.shape)
    assert table.nnz == X.size and not table.has_sorted_indices
    same(build().fit(table, y), build().fit(X, y), table, X)


def test_sparse_data_frames_keep_their_names(data):
    X, y = data
    names = [f"word{i}" for i in range(COLUMNS)]
    frame = pd.DataFrame.sparse.from_spmatrix(sparse.csr_matrix(X), columns=names)
    model = build().fit(frame, y)
    assert list(model.feature_names_in_) == names
    np.testing.assert_array_equal(model.coef_, build().fit(X, y).coef_)


def test_streams_of_sparse_blocks(data):
    X, y = data
    reference = build().fit(X, y)
    for container in (sparse.csr_array, sparse.csc_matrix, sparse.coo_array):
        stream = BlockStream.from_arrays(container(X), y)
        assert stream.n_rows == ROWS
        np.testing.assert_array_equal(build().fit(stream).coef_, reference.coef_)

        def blocks(container=container):
            for start in range(0, ROWS, 4096):
                yield container(X[start : start + 4096]), y[start : start + 4096]

        model = build().fit(BlockStream(blocks, n_rows=ROWS))
        np.testing.assert_array_equal(model.coef_, reference.coef_)


def test_dask_arrays_of_sparse_chunks(data):
    da = pytest.importorskip("dask.array")
    X, y = data
    lazy = da.from_array(X, chunks=(4096, COLUMNS)).map_blocks(sparse.csr_matrix)
    model = build().fit(lazy, da.from_array(y, chunks=4096))
    np.testing.assert_array_equal(model.coef_, build().fit(X, y).coef_)


def test_blocks_of_wide_tables_are_short():
    assert rows_a_block(1) == rows_a_block(1024) == 4096
    assert rows_a_block(1025) == 2048
    assert rows_a_block(100_000) == 32
    assert rows_a_block(10**9) == 1
    assert all(4096 % rows_a_block(d) == 0 for d in (3, 1500, 77_777))


def test_a_hundred_thousand_columns_never_become_a_dense_table(rng):
    n, d = 1000, 100_000
    places = rng.integers(0, n, 10_000), rng.integers(0, d, 10_000)
    X = sparse.csr_array((rng.random(10_000), places), shape=(n, d))
    y = rng.uniform(-1, 1, n)
    tracemalloc.start()
    model = build(features="fourier", n_features=4, bounds=None).fit(X, y)
    prediction = model.predict(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.25 * n * d * 8
    rows = X[:20].toarray()
    np.testing.assert_allclose(model.predict(rows), prediction[:20], atol=1e-9)


def bad_entry(value):
    def change(X, y):
        X = sparse.csr_array(X)
        X.data[7] = value
        return X, y

    return change


def huge_duplicates(X, y):
    X = sparse.coo_array(([1e308, 1e308], ([3, 3], [2, 2])), shape=X.shape)
    return X, y


BAD = {
    "nan": (bad_entry(np.nan), "public constants"),
    "infinity": (bad_entry(np.inf), "public constants"),
    "infinite sum": (huge_duplicates, "public constants"),
    "infinite sum in rows": (
        lambda X, y: (sparse.csr_array(([1e308] * 2, [2, 2], [0] + [2] * ROWS), shape=X.shape), y),
        "public constants",
    ),
    "complex": (lambda X, y: (sparse.csr_array(X + 0.25j), y), "Complex data not supported"),
    "lengths": (lambda X, y: (sparse.csr_array(X[1:]), y), "inconsistent numbers of samples"),
    "one dimension": (lambda X, y: (sparse.coo_array(X[:, 0]), y), "Expected 2D"),
    "sparse y": (lambda X, y: (X, sparse.csr_matrix(y[:, None])), "y must be a dense array"),
    "no rows": (lambda X, y: (sparse.csr_array((0, 3)), y[:0]), "0 sample"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_sparse_input_spends_nothing(data, case):
    change, message = BAD[case]
    ledger = Ledger(budget=Budget(5.0, 1e-6))
    with pytest.raises(DataError, match=message) as error:
        build(ledger=ledger).fit(*change(*data))
    assert "0.25" not in str(error.value) and "308" not in str(error.value)
    assert ledger.spends == []
    if "y" not in case and case != "lengths":
        with pytest.raises(DataError, match=message):
            build(n_features=8).fit(*data).predict(change(*data)[0])


def test_bad_sparse_blocks_spend_nothing(data):
    X, y = data
    ledger = Ledger(budget=Budget(5.0, 1e-6))
    for case, message in (("nan", "NaN or infinity"), ("infinite sum in rows", "NaN or infinity")):
        blocks = [(sparse.csr_array(X), y), BAD[case][0](X, y)]
        with pytest.raises(DataError, match=message):
            build(ledger=ledger).fit(BlockStream(blocks, n_rows=2 * ROWS))
    narrow = [(sparse.csr_array(X), y), (sparse.csr_array(X[:, 1:]), y)]
    with pytest.raises(DataError, match="other columns"):
        build(ledger=ledger).fit(BlockStream(narrow, n_rows=2 * ROWS))
    assert ledger.spends == []


def test_new_rows_must_have_as_many_columns(data):
    X, y = data
    model = build(n_features=8).fit(sparse.csr_array(X), y)
    with pytest.raises(
        DataError, match="X has 11 features, but PrivateKernelRidge is expecting 12"
    ):
        model.predict(sparse.csr_array(X[:, 1:]))
