"""One table, many forms: arrays, memory maps, streams, Parquet, Dask and torch give one model."""

from __future__ import annotations

import os
import signal
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpkernel import (
    BlockStream,
    Budget,
    Domain,
    Interval,
    Ledger,
    Neighbours,
    PrivateKernelRidge,
    SeededNoise,
)
from dpkernel.estimators import gram_pass
from dpkernel.estimators.feature_choice import MAPS
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.privacy.statistics import GramLayout

COLUMNS = ["a", "b", "c"]


@pytest.fixture
def data(rng):
    X = rng.uniform(-1, 1, (9000, 3))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=9000)


def build(**options):
    return PrivateKernelRidge(
        **{"bounds": (-1, 1), "y_bounds": (-2, 2), "noise": SeededNoise(4), **options}
    )


def same(model, reference):
    np.testing.assert_array_equal(model.coef_, reference.coef_)
    assert model.intercept_ == reference.intercept_


def test_memory_maps_and_single_precision(data, tmp_path):
    X, y = data
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    same(build().fit(mapped, y), build().fit(X, y))
    single = build().fit(X.astype(np.float32), y).predict(X)
    np.testing.assert_allclose(single, build().fit(X, y).predict(X), atol=1e-4)


@pytest.mark.parametrize("rows", [1, 100, 4096, 5000, 9000])
def test_streams_of_any_block_size(data, rows):
    X, y = data
    if rows == 1:
        X, y = X[:300], y[:300]

    def blocks():
        for start in range(0, len(X), rows):
            yield X[start : start + rows], y[start : start + rows]

    reference = build(n_features=32).fit(X, y)
    for source in (blocks, list(blocks()), blocks()):
        model = build(n_features=32).fit(BlockStream(source, n_rows=len(X)))
        # BLAS rounds a row of features differently in blocks of other sizes, in the last bit
        np.testing.assert_allclose(model.predict(X), reference.predict(X), atol=1e-5)
    assert model.n_features_in_ == 3


def test_blocks_of_the_usual_size_are_bit_identical(data):
    X, y = data
    same(build().fit(BlockStream.from_arrays(X, y)), build().fit(X, y))


def test_parquet_and_arrow(data, tmp_path):
    X, y = data
    table = pa.Table.from_pandas(pd.DataFrame(X, columns=COLUMNS).assign(y=y))
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2048)
    reference = build().fit(X, y).predict(X)
    for stream in (
        BlockStream.from_parquet(tmp_path / "t.parquet", target="y"),
        BlockStream.from_parquet(tmp_path / "t.parquet", target="y", columns=COLUMNS),
        BlockStream.from_arrow(table, target="y"),
    ):
        assert stream.n_rows == 9000
        np.testing.assert_allclose(build().fit(stream).predict(X), reference, atol=1e-5)
    two = build().fit(BlockStream.from_arrow(table, target=["y", "a"], columns=["b", "c"]))
    assert two.predict(X[:, 1:]).shape == (9000, 2)
    with pytest.raises(DataError, match="no column 'z'"):
        BlockStream.from_arrow(table, target="z")
    text = pa.table({"a": ["secret"], "y": [1.0]})
    with pytest.raises(
        DataError, match="Column 'a' of the table holds entries that are not"
    ) as error:
        build().fit(BlockStream.from_arrow(text, target="y"))
    assert "secret" not in str(error.value)


BAD_STREAMS = {
    "too few rows": (lambda X, y: [(X, y)], 9001, "n_rows=9001 but has fewer rows"),
    "too many rows": (lambda X, y: [(X, y), (X, y)], 9000, "n_rows=9000 but has more rows"),
    "nothing": (lambda X, y: [], 1, "has fewer rows"),
    "no pair": (lambda X, y: [X], 9000, "Block 0 of the stream is not a pair"),
    "lengths": (lambda X, y: [(X, y[:-1])], 9000, "has shapes"),
    "columns change": (
        lambda X, y: [(X[:10], y[:10]), (X[10:, :2], y[10:])],
        9000,
        "other columns",
    ),
    "text": (lambda X, y: [(np.array([["secret"] * 3]), y[:1])], 1, "not a number"),
    "missing": (lambda X, y: [(X * np.nan, y)], 9000, "NaN or infinity"),
}


@pytest.mark.parametrize("case", BAD_STREAMS)
def test_bad_streams_spend_nothing(data, case):
    make, rows, message = BAD_STREAMS[case]
    ledger = Ledger(budget=Budget(5.0, 1e-6))
    with pytest.raises(DataError, match=message) as error:
        build(ledger=ledger).fit(BlockStream(make(*data), n_rows=rows))
    assert "secret" not in str(error.value)
    assert ledger.spends == []


def test_bad_stream_arguments(data):
    with pytest.raises(ParameterError, match="'n_rows' parameter of BlockStream"):
        BlockStream([], n_rows=-1)
    with pytest.raises(ParameterError, match="'source' parameter of BlockStream"):
        BlockStream(3, n_rows=1)
    with pytest.raises(ParameterError, match="contains its targets"):
        build().fit(BlockStream.from_arrays(*data), data[1])


def test_a_stream_is_read_once(data):
    reads = []

    def blocks():
        reads.append(1)
        yield data

    build().fit(BlockStream(blocks, n_rows=9000))
    assert reads == [1]


def test_memory_does_not_grow_with_the_rows():
    def peak(blocks):
        def source():
            rng = np.random.default_rng(0)
            for _ in range(blocks):
                yield rng.random((4096, 10)), rng.random(4096)

        tracemalloc.start()
        PrivateKernelRidge(y_bounds=(0, 1), n_features=100).fit(BlockStream(source, 4096 * blocks))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(40) < 1.3 * peak(8)


# --- Dask -----------------------------------------------------------------------------------------


def test_dask_arrays_and_frames_without_a_cluster(data):
    import dask.array as da
    import dask.dataframe as dd

    X, y = data
    reference = build().fit(X, y)
    lazy_X, lazy_y = da.from_array(X, chunks=(4096, 2)), da.from_array(y, chunks=4096)
    same(build().fit(lazy_X, lazy_y), reference)
    frame = dd.from_pandas(pd.DataFrame(X, columns=COLUMNS).assign(y=y), npartitions=4)
    model = build().fit(frame[COLUMNS], frame["y"])
    np.testing.assert_allclose(
        model.predict(pd.DataFrame(X, columns=COLUMNS)), reference.predict(X), atol=1e-5
    )
    assert list(model.feature_names_in_) == COLUMNS
    several = build().fit(lazy_X, da.stack([lazy_y, -lazy_y], axis=1).rechunk((4096, 1)))
    assert several.predict(X).shape == (9000, 2)
    with pytest.raises(DataError, match="inconsistent numbers of samples"):
        build().fit(lazy_X, lazy_y[:-1])


def kill_once(block, marker):
    """Kill the worker that computes this block the first time it gets there."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return block
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_dask_worker_killed_in_the_middle_changes_nothing(data, tmp_path):
    import dask.array as da
    from dask.distributed import Client, LocalCluster

    X, y = data
    ledger = Ledger(tmp_path / "l.db", dataset="d", budget=Budget(5.0, 1e-6))
    lazy_X, lazy_y = da.from_array(X, chunks=(1024, 3)), da.from_array(y, chunks=1024)
    marker = str(tmp_path / "killed")
    risky = lazy_X.map_blocks(kill_once, marker, dtype=X.dtype, meta=np.empty((0, 3)))
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster),
    ):
        model = build(ledger=ledger).fit(risky, lazy_y)
    assert os.path.exists(marker)
    plain = build().fit(
        BlockStream([(X[i : i + 1024], y[i : i + 1024]) for i in range(0, 9000, 1024)], 9000)
    )
    same(model, plain)
    assert len(ledger.spends) == 1


def test_a_dask_graph_that_fails_spends_nothing(data):
    import dask.array as da

    X, y = data
    ledger = Ledger(budget=Budget(5.0, 1e-6))

    def fail(block):
        raise OSError("disk gone")

    broken = da.from_array(X, chunks=(1024, 3)).map_blocks(
        fail, dtype=X.dtype, meta=np.empty((0, 3))
    )
    with pytest.raises(DataError, match="Dask graph failed with OSError") as error:
        build(ledger=ledger).fit(broken, da.from_array(y, chunks=1024))
    assert "disk gone" not in str(error.value) and error.value.__context__ is None
    with pytest.raises(DataError, match="y must be one, too"):
        build(ledger=ledger).fit(broken, y)
    holes = np.where(X > 0.999, np.nan, X)
    with pytest.raises(DataError, match="NaN or infinity"):
        build(ledger=ledger).fit(
            da.from_array(holes, chunks=(1024, 3)), da.from_array(y, chunks=1024)
        )
    assert ledger.spends == []


def test_packed_sums_are_the_private_way_between_workers_only(data):
    X, y = data
    model = build().fit(X, y)
    layout_text = model.certificate_.public["integer_grid"]
    assert set(layout_text) == {"row", "target", "constant"}
    assert not hasattr(gram_pass.GramFolds, "pack")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", [*MAPS, "fourier without bounds", "eigen of a sample"])
def test_no_record_feels_the_values_of_another_row(rng, kind, dtype):
    """Not in its last bit, however wild the other row is: the sensitivity of the sum rests on it."""
    name, *more = kind.split()
    domain = Domain(None if more[:1] == ["without"] else (Interval(-1, 1),) * 5, Interval(-1, 1))
    size = {"n_components": 24, "kernel": "polynomial" if name == "polynomial" else "gaussian"}
    size["kernel"] = "matern32" if more[:1] == ["of"] else size["kernel"]
    features = MAPS[name]({**size, "length_scale": 1.5, "random_state": 0}).build(5)
    bound, relation = features.row_norm_bound, Neighbours.REPLACE_ONE
    layout = GramLayout.choose(features.n_outputs, 1, bound, relation, 700, Budget(1.0, 1e-6))
    recipe = gram_pass.Recipe(domain, features, layout, dtype)
    X, y = rng.uniform(-1, 1, (700, 5)), np.zeros(700)
    reference = layout.quantise(*recipe.records(X, y))
    for place, value in ((0, 1e308), (311, -1e308), (699, 5e-324), (350, 1e5), (512, 0.3)):
        other = X.copy()
        other[place] = value
        changed = np.flatnonzero((layout.quantise(*recipe.records(other, y)) != reference).any(1))
        assert set(changed) == {place}


VIEWS = {
    "columns": lambda A: A[:, ::2],
    "reversed": lambda A: A[::-1, :5],
    "fortran": lambda A: np.asfortranarray(A[:, :5]),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_record_feels_another_row_in_any_memory_layout(rng, view, dtype):
    base = rng.normal(size=(700, 10)).astype(dtype)
    features = MAPS["fourier"](
        {"n_components": 24, "kernel": "gaussian", "length_scale": 1.5, "random_state": 0}
    ).build(5)
    layout = GramLayout.choose(24, 1, 1.0, Neighbours.REPLACE_ONE, 10**6, Budget(1.0, 1e-6))
    recipe = gram_pass.Recipe(Domain(None, Interval(-1, 1)), features, layout, "float32")
    y = np.zeros(700)
    reference = layout.quantise(*recipe.records(VIEWS[view](base), y))
    wild = base.copy()
    wild[7] = 3e38
    place = 700 - 1 - 7 if view == "reversed" else 7
    changed = layout.quantise(*recipe.records(VIEWS[view](wild), y))
    assert set(np.flatnonzero((changed != reference).any(axis=1))) <= {place}


@pytest.mark.parametrize("folds", [1, 2])
def test_dask_chunks_of_other_sizes_than_they_say_spend_nothing(folds):
    da = pytest.importorskip("dask.array")
    table = np.random.default_rng(0).uniform(-1, 1, (400, 4))
    chunks = da.from_array(table, chunks=(100, 4)).map_blocks(
        lambda block: block[block[:, 0] > -0.9], dtype=float
    )
    ledger = Ledger()
    model = build(ledger=ledger, folds=folds)
    with pytest.raises(DataError, match="other sizes than it says"):
        model.fit(chunks[:, :3], chunks[:, 3])
    assert not ledger.spends
