"""Several targets, each with bounds of its own."""

from __future__ import annotations

import numpy as np
import pytest

from dpkernel import (
    Certificate,
    Interval,
    Ledger,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
    SeededNoise,
    load,
    private_score,
    save,
    to_onnx,
)
from dpkernel.data.domain import Domain, Intervals
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.methods import (
    PrivateCurator,
    PrivateGridRegressor,
    PrivateHuberRegressor,
    PrivateKernelSVR,
    PrivateSGDRegressor,
    PrivateSketchedRidge,
)
from dpkernel.outputs.report import write_report

IDEALISED = {"accept": ("idealised-arithmetic",)}
BOUNDS = [(-1, 1), (0, 1000), (-0.1, 0.3)]
MODELS = {
    "ridge": (PrivateKernelRidge, {}),
    "ridge, output": (PrivateKernelRidge, {"solver": "output"}),
    "ridge, folds": (PrivateKernelRidge, {"folds": 2}),
    "regressor": (PrivateKernelRegressor, {}),
    "Huber": (PrivateHuberRegressor, {}),
    "Huber, threshold": (PrivateHuberRegressor, {"threshold": 0.1}),
    "SVR": (PrivateKernelSVR, {}),
    "SVR, tube": (PrivateKernelSVR, {"tube": 0.02}),
    "quantile": (PrivateQuantileRegressor, {}),
    "SGD": (PrivateSGDRegressor, {}),
    "SGD, output": (PrivateSGDRegressor, {"perturbation": "output"}),
    "sketch": (PrivateSketchedRidge, IDEALISED),
}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (900, 2))
    return X, np.column_stack([np.sin(2 * X[:, 0]), 500 + 400 * X[:, 1], 0.1 + 0.15 * X[:, 0]])


def build(name, **more):
    cls, options = MODELS[name]
    given = {"epsilon": 30.0, "bounds": (-1, 1), "y_bounds": BOUNDS, "noise": SeededNoise(0)}
    return cls(**{**given, **options, **more})


@pytest.mark.parametrize("name", MODELS)
def test_every_target_is_learned_in_its_own_units(name, table, tmp_path):
    X, Y = table
    model = build(name).fit(X, Y)
    found = model.predict(X)
    explained = 1 - np.mean((found - Y) ** 2, axis=0) / Y.var(axis=0)
    assert found.shape == Y.shape and np.all(explained > 0.7), explained
    assert np.all((found >= [-1, 0, -0.1]) & (found <= [1, 1000, 0.3]))
    certificate = model.certificate_
    assert certificate.verify().epsilon <= 30.0
    assert Certificate.from_json(certificate.to_json()) == certificate
    write_report(model, tmp_path / "report.html")
    again = load(save(model, tmp_path / "model.npz"))
    np.testing.assert_array_equal(again.predict(X), found)
    np.testing.assert_allclose(again.fit(X, Y).predict(X[:3]).shape, (3, 3))
    assert model.score(X, Y) > 0.5


@pytest.mark.parametrize("name", MODELS)
def test_the_scale_of_one_target_changes_nothing_but_its_units(name, table):
    """A target and its bounds times a power of two give the same model, bit for bit, in that unit."""
    if "threshold" in name or "tube" in name:
        pytest.skip("the parameter is in units of y")
    X, Y = table
    one = build(name).fit(X, Y).predict(X[:50])
    wider = [BOUNDS[0], (0, 4000), BOUNDS[2]]
    other = build(name, y_bounds=wider).fit(X, Y * [1, 4, 1]).predict(X[:50])
    np.testing.assert_array_equal(other, one * [1, 4, 1])


@pytest.mark.parametrize("name", ["ridge", "Huber", "SGD", "regressor"])
def test_equal_bounds_are_one_pair_for_all(name, table):
    X, Y = table[0], np.column_stack([table[1][:, 0], -table[1][:, 0]])
    pairs = build(name, y_bounds=[(-1, 1), (-1, 1)]).fit(X, Y)
    single = build(name, y_bounds=(-1, 1)).fit(X, Y)
    np.testing.assert_array_equal(pairs.predict(X[:50]), single.predict(X[:50]))


@pytest.mark.parametrize(
    "given",
    [
        np.array(BOUNDS),
        [list(pair) for pair in BOUNDS],
        tuple(BOUNDS),
        [Interval(*b) for b in BOUNDS],
    ],
    ids=["array", "lists", "tuples", "intervals"],
)
def test_forms_of_bounds(given, table):
    X, Y = table
    wanted = build("ridge").fit(X, Y).coef_
    np.testing.assert_array_equal(build("ridge", y_bounds=given).fit(X, Y).coef_, wanted)
    domain = Domain.box(-1, 1, n_columns=2, target=Intervals([Interval(*b) for b in BOUNDS]))
    found = build("ridge", y_bounds=None, bounds=domain).fit(X, Y)
    np.testing.assert_array_equal(found.coef_, wanted)
    assert Domain.from_dict(domain.to_dict()) == domain


def test_one_pair_in_a_list_is_a_pair(table):
    X, Y = table
    one = build("ridge", y_bounds=[(-1, 1)]).fit(X, Y[:, 0])
    np.testing.assert_array_equal(one.coef_, build("ridge", y_bounds=(-1, 1)).fit(X, Y[:, 0]).coef_)
    assert one.predict(X[:2]).shape == (2,)


def test_people_are_averaged_in_the_bounds_of_each_target(table):
    X, Y = table
    ids = np.arange(900) // 3
    for record in ("one", "near", "mean"):
        from dpkernel import People

        found = build("Huber").fit(X, Y, groups=People(ids, record=record))
        assert found.predict(X[:4]).shape == (4, 3)


def test_an_exported_graph_has_the_units_of_each_target(table):
    runtime = pytest.importorskip("onnxruntime")
    X, Y = table
    for name in ("Huber", "quantile"):
        model = build(name).fit(X, Y)
        session = runtime.InferenceSession(to_onnx(model).SerializeToString())
        (found,) = session.run(None, {session.get_inputs()[0].name: X[:20]})[:1]
        np.testing.assert_allclose(found, model.predict(X[:20]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["ridge", "ridge, output", "regressor", "Huber", "SGD", "sketch"])
def test_bounds_for_another_number_of_targets_are_refused_before_a_spend(name, table):
    X, Y = table
    ledger = Ledger()
    for target, groups in ((Y[:, :2], None), (Y[:, 0], None), (Y[:, :2], np.arange(900))):
        with pytest.raises(DataError, match="y has . column.*those of 3 targets"):
            build(name, ledger=ledger).fit(X, target, groups=groups)
    with pytest.raises(ParameterError, match="target 2.*low < high"):
        build(name, ledger=ledger, y_bounds=[(0, 1), (1, 0)]).fit(X, Y[:, :2])
    assert ledger.spends == []


def test_where_one_target_is_needed(table):
    X, Y = table
    quantiles = build("quantile", quantile=[0.1, 0.9], y_bounds=(0, 1000))
    with pytest.raises(DataError, match="y should be a 1d array"):
        quantiles.fit(X, Y)
    for cls in (PrivateCurator, PrivateGridRegressor):
        with pytest.raises(DataError, match="y should be a 1d array"):
            cls(bounds=(-1, 1), y_bounds=BOUNDS, **IDEALISED).fit(X[:50], Y[:50])
    with pytest.raises(ParameterError, match="one pair .low, high. for all targets"):
        private_score(build("ridge").fit(X, Y), X, Y, "mse", (1.0, 1e-6))
