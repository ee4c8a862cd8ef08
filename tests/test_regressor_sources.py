"""PrivateKernelRegressor on tables of any kind, and passes that keep no table in memory."""

from __future__ import annotations

import tracemalloc
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from containers import dask_arrays, dask_frame, stream, tensors
from dpkernel import BlockStream, Budget, Ledger, PrivateKernelRegressor, SeededNoise
from dpkernel.data import cache, passes
from dpkernel.data.domain import Domain, Interval
from dpkernel.data.sources import Source
from dpkernel.estimators.regressor import BudgetPlan
from dpkernel.estimators.regressor.fitting import Fitting, Sizes
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.models.features import WhitenedFeatures
from dpkernel.privacy.noise import Part, Plan

PLAN = BudgetPlan(location=0.1, inputs=0.1, stages=(1.0, 1.2), scale=0.02, calibration=0.05)


@pytest.fixture
def data(rng):
    X = np.where(rng.random((900, 3)) < 0.5, 0.0, rng.uniform(-1, 1, (900, 3)))
    return X, np.sin(2 * X[:, 0]) + 0.2 * rng.normal(size=900)


def regressor(**options):
    given = {"bounds": (-1, 1), "y_bounds": (-2, 2), "budget_plan": PLAN, "n_features": 30}
    return PrivateKernelRegressor(5.0, noise=SeededNoise(4), **{**given, **options})


SOURCES = {
    "pandas": lambda X, y: (pd.DataFrame(X), pd.Series(y)),
    "sparse": lambda X, y: (sparse.csr_matrix(X), y),
    "stream": lambda X, y: (stream(X, y, 170), None),
    "stream of sparse blocks": lambda X, y: (stream(sparse.csr_matrix(X), y, 170), None),
    "dask arrays": lambda X, y: dask_arrays(X, y, 250, 2),
    "dask frame": dask_frame,
    "torch": tensors,
}


@pytest.mark.parametrize("plan", [PLAN, "auto"], ids=["fixed", "learned"])
def test_every_kind_of_table_gives_the_same_model(data, plan):
    wanted = regressor(budget_plan=plan).fit(*data)
    assert wanted.budget_plan_.learns == (plan == "auto")
    for kind, convert in SOURCES.items():
        if kind == "torch" and not find_spec("torch"):
            continue
        model = regressor(budget_plan=plan).fit(*convert(*data))
        for one, two in zip(
            model.predict(data[0], return_std=True),
            wanted.predict(data[0], return_std=True),
            strict=True,
        ):
            np.testing.assert_allclose(one, two, atol=1e-6, err_msg=kind)
        assert model.certificate_.releases == wanted.certificate_.releases, kind


def test_tensors_of_other_kinds(data):
    torch = pytest.importorskip("torch")
    X, y = (torch.as_tensor(v) for v in data)
    wanted = regressor().fit(*data).predict(data[0])
    for dtype, near in ((torch.float32, 1e-3), (torch.bfloat16, 0.3)):
        model = regressor().fit(X.to(dtype), y.to(dtype))
        np.testing.assert_allclose(model.predict(data[0]), wanted, atol=near)
    whole = (10 * X).round().to(torch.int32)
    again = regressor(bounds=(-10, 10)).fit(whole, y)
    expected = regressor(bounds=(-10, 10)).fit(np.rint(10 * data[0]), data[1])
    np.testing.assert_allclose(again.predict(whole.numpy()), expected.predict(whole.numpy()))


def test_several_targets_from_any_table(data):
    X, y = data
    both = np.column_stack([y, -y])
    wanted = regressor().fit(X, both).predict(X)
    for table in (stream(X, both, 300), dask_arrays(X, both, 250, 2)):
        given = table if isinstance(table, tuple) else (table,)
        np.testing.assert_allclose(regressor().fit(*given).predict(X), wanted, atol=1e-6)


def test_a_stream_that_can_be_read_once_is_refused(data):
    X, y = data
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    once = BlockStream(iter([(X, y)]), n_rows=len(y))
    with pytest.raises(ParameterError, match="Give BlockStream a function"):
        regressor(ledger=ledger).fit(once)
    assert ledger.spends == []


def test_a_stream_that_fails_when_it_is_read_again_costs_nothing(data):
    X, y = data
    ledger, reads = Ledger(budget=Budget(9.0, 1e-5)), []

    def read():
        reads.append(None)
        yield X, y if len(reads) == 1 else y[:-1]

    with pytest.raises(DataError):
        regressor(ledger=ledger).fit(BlockStream(read, n_rows=len(y)))
    assert ledger.spends == [] and len(reads) == 2


@pytest.mark.parametrize("kept", [True, False])
def test_a_graph_that_fails_says_what_it_cost(data, monkeypatch, kept):
    """Rows that are kept are read before the spend."""
    array = pytest.importorskip("dask.array")
    if not kept:
        monkeypatch.setattr(cache, "_limits", cache.CacheLimits(0, 0))
    calls = []

    def check(block):
        calls.append(None)
        if len(calls) > (1 if kept else 4):  # the one chunk is checked, then kept
            raise OSError("0.123456789")
        return block

    X = array.from_array(data[0], chunks=(900, 3)).map_blocks(check, dtype=float, meta=data[0][:0])
    cost = "Nothing was spent" if kept else "The fit's budget was spent before"
    with pytest.raises(DataError, match=f"OSError. {cost}") as caught:
        regressor().fit(X, array.from_array(data[1], chunks=900))
    assert "0.12" not in str(caught.value)


def test_without_memory_for_the_blocks_the_model_is_the_same(data, monkeypatch):
    wanted = regressor().fit(*data).predict(data[0])
    monkeypatch.setattr(cache, "_limits", cache.CacheLimits(0, 0))
    for table, target in (data, SOURCES["stream"](*data)):
        model = regressor().fit(table, target)
        np.testing.assert_allclose(model.predict(data[0]), wanted, atol=1e-6)


def peak_of_a_run(monkeypatch, most):
    """Return how much memory a fit of 6000 rows with 100 features takes beyond its table."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (6000, 2))
    y = np.clip(X[:, 0], -1, 1)
    monkeypatch.setattr(cache, "_limits", cache.CacheLimits(most, 0))
    monkeypatch.setattr(passes, "rows_a_block", lambda columns: 256)
    target = Interval(-1, 1)
    plan = BudgetPlan(0.1, 0.0, (1.0, 1.0), 0.02, 0.05).filled()
    fit = Fitting(
        *(Source("array", 6000, 2, (), X, y), Domain.box(-1, 1, n_columns=2), target),
        *(Sizes(6000, 2, 1, 100), plan, Budget(1.0, 1e-6), Neighbours.REPLACE_ONE),
        WhitenedFeatures(100, length_scale=0.5),
    )
    parts = tuple(Part(name, m.profile()) for name, m in fit.mechanisms.items())
    noise = Ledger().spend(Plan(parts), "memory", noise=SeededNoise(0))
    tracemalloc.start()
    try:
        fit.run(noise)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_no_row_of_features_is_kept_beyond_the_limit(monkeypatch):
    features = 6000 * 100 * 8
    assert peak_of_a_run(monkeypatch, 2**28) > 1.2 * features  # and some of them again in a stage
    assert peak_of_a_run(monkeypatch, 0) < 0.7 * features
