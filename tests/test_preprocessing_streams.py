"""Transformers on sparse tables, streams and Dask: the bits of the table in memory, or a clear error."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import sparse

from dpkernel import BlockStream, Ledger, PrivateKernelRidge, SeededNoise
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.preprocessing import (
    DeclaredCategories,
    PrivateBounds,
    PrivateImputer,
    PrivateMinMaxScaler,
    PrivatePCA,
    PrivatePipeline,
    PrivateStandardScaler,
)

WIDE = (-1e4, 1e4)
KINDS = {
    "bounds": lambda **kw: PrivateBounds(9.0, bounds=WIDE, **kw),
    "target": lambda **kw: PrivateBounds(9.0, bounds=WIDE, y_range=WIDE, **kw),
    "minmax": lambda **kw: PrivateMinMaxScaler(9.0, bounds=WIDE, **kw),
    "standard": lambda **kw: PrivateStandardScaler(9.0, bounds=WIDE, **kw),
    "imputer": lambda **kw: PrivateImputer(9.0, strategy="mean", bounds=WIDE, **kw),
    "pca": lambda **kw: PrivatePCA(2, 9.0, bounds=WIDE, **kw),
}


@pytest.fixture
def table(rng):
    X = rng.normal([3.0, -0.1, 70.0], [1.0, 0.02, 9.0], (901, 3))
    X[rng.random(X.shape) < 0.3] = 0.0
    return X, X[:, 0] + 5


def numbers(model):
    names = ("bounds_", "y_bounds_", "mean_", "scale_", "statistics_", "missing_", "components_")
    found = [getattr(model, name) for name in names if getattr(model, name, None) is not None]
    return np.concatenate([np.ravel(values) for values in found])


def in_blocks(X, y, sizes=(1, 400, 500)):
    edges = np.cumsum((0, *sizes))

    def read():
        for start, stop in itertools.pairwise(edges):
            yield X[start:stop], y[start:stop]

    return BlockStream(read, n_rows=X.shape[0])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_gives_the_same_bits(kind, table):
    X, y = table
    build = KINDS[kind]
    model = build(noise=SeededNoise(1)).fit(X, y)
    da = pytest.importorskip("dask.array")
    dd = pytest.importorskip("dask.dataframe")
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    others = {
        "csr": (sparse.csr_matrix(X), y),
        "coo": (sparse.coo_array(X), y),
        "stream": (in_blocks(X, y), None),
        "sparse stream": (in_blocks(sparse.csr_matrix(X), y), None),
        "dask": (da.from_array(X, chunks=(300, 2)), da.from_array(y, chunks=300)),
        "dask frame": (
            dd.from_pandas(frame, npartitions=3),
            dd.from_pandas(pd.Series(y), npartitions=3),
        ),
    }
    for name, (rows, target) in others.items():
        again = build(noise=SeededNoise(1)).fit(rows, target)
        np.testing.assert_array_equal(numbers(again), numbers(model), err_msg=name)
        assert again.certificate_.releases == model.certificate_.releases
        assert again.n_features_in_ == 3
    assert list(again.feature_names_in_) == ["a", "b", "c"]
    np.testing.assert_array_equal(model.transform(sparse.csc_matrix(X)), model.transform(X))


def test_missing_values_of_a_stream_are_the_imputers_alone(table):
    X, y = table
    X[::5, 1] = np.nan
    stream = in_blocks(X, y)
    model = KINDS["imputer"](noise=SeededNoise(1)).fit(X)
    again = KINDS["imputer"](noise=SeededNoise(1)).fit(stream)
    np.testing.assert_array_equal(numbers(again), numbers(model))
    ledger = Ledger()
    for kind in ("bounds", "standard", "pca"):
        with pytest.raises(DataError, match="NaN or infinity"):
            KINDS[kind](ledger=ledger).fit(stream)
    X[3, 1] = np.inf
    with pytest.raises(DataError, match="NaN or infinity"):
        KINDS["imputer"](ledger=ledger).fit(stream)
    assert ledger.spends == []


def test_streams_that_can_not_be_used_are_refused_before_anything_is_spent(table):
    X, y = table
    ledger = Ledger()
    build = KINDS["standard"]
    with pytest.raises(ParameterError, match="this stream can be read only once"):
        build(ledger=ledger).fit(BlockStream(iter([(X, y)]), n_rows=901))
    with pytest.raises(DataError, match="was declared with n_rows=900"):
        build(ledger=ledger).fit(BlockStream(lambda: iter([(X, y)]), n_rows=900))

    def talking():
        raise KeyError(f"the first entry is {X[0, 0]}")
        yield

    with pytest.raises(DataError, match=r"could not be read \(KeyError\). Nothing was") as caught:
        build(ledger=ledger).fit(BlockStream(talking, n_rows=901))
    assert caught.value.__context__ is None
    with pytest.raises(ParameterError, match="A BlockStream contains its targets"):
        KINDS["target"](ledger=ledger).fit(in_blocks(X, y), y)
    with pytest.raises(DataError, match="takes one target"):
        KINDS["target"](ledger=ledger).fit(in_blocks(X, X))
    with pytest.raises(ParameterError, match="PrivatePipeline takes tables in memory"):
        PrivatePipeline([("s", build())], ledger=ledger).fit(in_blocks(X, y))
    for step in (DeclaredCategories().fit(X), build().fit(X)):
        with pytest.raises(ParameterError, match="Transform a stream block by block"):
            step.transform(in_blocks(X, y))
    with pytest.raises(ParameterError, match="Transform a stream block by block"):
        DeclaredCategories().fit(in_blocks(X, y))
    assert ledger.spends == []


def test_a_stream_that_fails_later_says_that_the_budget_is_gone(table):
    X, y = table
    passes = []

    def read():
        passes.append(1)
        if len(passes) == 3:
            raise OSError(f"lost at {X[0, 0]}")
        yield X, y

    ledger = Ledger()
    with pytest.raises(DataError, match=r"\(OSError\). The budget was spent before") as caught:
        KINDS["bounds"](ledger=ledger).fit(BlockStream(read, n_rows=901))
    assert caught.value.__context__ is None and len(ledger.spends) == 1


def test_a_stream_goes_through_transformers_to_a_model(table):
    """As the documentation shows it."""
    X, y = table
    stream, ledger = in_blocks(X, y), Ledger()
    found = PrivateBounds(2.0, bounds=WIDE, y_range=WIDE, ledger=ledger).fit(stream)
    clipped = BlockStream(lambda: ((found.transform(X), y) for X, y in stream), stream.n_rows)
    model = PrivateKernelRidge(
        2.0, bounds=found.bounds_, y_bounds=found.y_bounds_, ledger=ledger
    ).fit(clipped)
    assert model.certificate_.private and len(ledger.spends) == 2


def test_sparse_tables_go_through_a_pipeline(table):
    X, y = table
    steps = [
        ("scale", PrivateMinMaxScaler(bounds=WIDE)),
        ("model", PrivateKernelRidge(y_bounds=WIDE)),
    ]
    model = PrivatePipeline(steps, 5.0, noise=SeededNoise(1)).fit(X, y)
    again = PrivatePipeline(steps, 5.0, noise=SeededNoise(1)).fit(sparse.csr_matrix(X), y)
    np.testing.assert_array_equal(again.predict(sparse.csr_matrix(X)), model.predict(X))
