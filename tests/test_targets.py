"""Several targets, each with bounds of its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpkernel import (
    Budget,
    Certificate,
    Interval,
    Ledger,
    Neighbours,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
    PrivateSearchCV,
    SeededNoise,
    load,
    private_score,
    save,
    to_onnx,
)
from dpkernel.data.domain import Domain, Intervals
from dpkernel.estimators.rkhs import joint_sensitivity
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
    "grid": (PrivateGridRegressor, IDEALISED | {"side": 9, "epsilon": 100.0}),
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
    assert certificate.verify().epsilon <= model.epsilon
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


@pytest.mark.parametrize("loss", ["squared", "huber", "absolute"])
def test_a_curator_answers_for_every_target_and_goes_on_from_its_file(loss, table, tmp_path):
    X, Y = table[0][:300], table[1][:300]
    given = {"bounds": (-1, 1), "y_bounds": BOUNDS, "noise": SeededNoise(0), "loss": loss}
    given |= {"epsilon": 300.0, "path": tmp_path / "answers.db", **IDEALISED}
    curator = PrivateCurator(**given).fit(X, Y)
    found = curator.predict(X[:60])
    explained = 1 - np.mean((found - Y[:60]) ** 2, axis=0) / Y[:60].var(axis=0)
    assert found.shape == (60, 3) and np.all(explained > 0.7), explained
    again = PrivateCurator.open(tmp_path / "answers.db")
    np.testing.assert_array_equal(again.predict(X[:60]), found)
    assert again.n_answers_ == curator.n_answers_ <= 60
    np.testing.assert_array_equal(curator.predict(X[60:64]), again.predict(X[60:64]))
    target = again._domain.target
    assert again._losses(target, 3) == curator._losses(target, 3)
    once = PrivateCurator(**{**given, "path": None}).predict_once(X, Y, [0.1, 0.2])
    assert once.value.shape == (3,) and once.certificate.verify().epsilon <= 300.0


@pytest.mark.parametrize("cls", [PrivateCurator, PrivateGridRegressor])
def test_a_threshold_in_units_of_y_is_another_one_for_each_target(cls, table, tmp_path):
    X, y = table[0][:200], table[1][:200, 0]
    given = {"bounds": (-1, 1), "y_bounds": [(-1, 1), (-2, 2)], "loss": "huber", "threshold": 0.4}
    given |= {"path": tmp_path / "answers.db"} if cls is PrivateCurator else {"side": 5}
    model = cls(100.0, **given, noise=SeededNoise(0), **IDEALISED).fit(X, np.column_stack([y, y]))
    stated = model.certificate_.public["losses"]
    assert [loss["threshold"] for loss in stated] == [0.4, 0.2]
    if cls is PrivateCurator:
        again = PrivateCurator.open(tmp_path / "answers.db")
    else:
        again = load(save(model, tmp_path / "model.npz"))
    assert (again.loss, again.threshold) == ("huber", 0.4)
    found = model.predict(X)
    assert np.all(np.mean((found - y[:, None]) ** 2, axis=0) < 0.2 * y.var())


def test_the_noise_of_a_curator_differs_between_targets():
    X, Y = np.zeros((4, 1)), np.zeros((4, 3))
    given = {"bounds": (-1, 1), "y_bounds": (-1, 1), "noise": SeededNoise(0), **IDEALISED}
    curator = PrivateCurator(0.1, **given).fit(X, Y)
    answers = curator.margins(np.linspace(-1, 1, 9)[:, None])
    assert len(set(answers.ravel())) == 27
    # one process per target: the noise of a single target is not that of each of three
    one = PrivateCurator(0.1, **given).fit(X, Y[:, 0]).margins([[0.5]])
    assert one.shape == (1,)


@pytest.mark.parametrize("loss", ["squared", "huber"])
@pytest.mark.parametrize("relation", [Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT])
def test_the_functions_of_all_targets_move_together_no_more_than_certified(loss, relation, rng):
    """The worst record moves the functions of all targets at once, so half the bound fails."""
    X, best = np.zeros((4, 1)), 0.0
    model = PrivateCurator(
        bounds=(-1, 1), y_bounds=(-1, 1), loss=loss, regularisation=40.0, **IDEALISED
    )
    for trial in range(20):
        Y = rng.choice([-1.0, 1.0], (4, 3)) if trial else np.ones((4, 3))
        table = model._table(model._open_table(X, Y))
        problems = model._problems_for(table, Budget(1.0, 1e-6))
        other = Y.copy()
        other[3] = -Y[3]
        kept = slice(None) if relation is Neighbours.REPLACE_ONE else slice(0, 3)
        here = table.solved(problems)[1].sum(axis=0)  # all points are one, so f is their sum
        fewer = [replace(problem, n_rows=len(X[kept])) for problem in problems]
        there = model._table(model._open_table(X[kept], other[kept])).solved(fewer)[1].sum(axis=0)
        best = max(best, float(np.linalg.norm(here - there)))
    bound = joint_sensitivity(problems, relation).value
    assert 0.7 * bound < best <= bound * (1 + 1e-9)


@pytest.mark.parametrize(
    "name", ["ridge", "ridge, output", "regressor", "Huber", "SGD", "sketch", "grid"]
)
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
    for target in (Y, Y.tolist()):
        with pytest.raises(DataError, match="Several quantiles are those of one target"):
            quantiles.fit(X, target)
    fitted = build("ridge").fit(X, Y)
    with pytest.raises(DataError, match="'r2' is for one target"):
        private_score(fitted, X, Y, "r2", (1.0, 1e-6))


@pytest.mark.parametrize(("metric", "power"), [("mse", 2), ("mae", 1)])
def test_a_score_of_several_targets_is_in_units_of_their_ranges(metric, power, table):
    X, Y = table
    fitted = build("ridge").fit(X, Y)
    low, high = np.array(BOUNDS, dtype=float).T
    errors = (np.clip(fitted.predict(X), low, high) - np.clip(Y, low, high)) / (high - low)
    found = private_score(fitted, X, Y, metric, (1e6, 1e-6), noise=SeededNoise(0))
    assert found.value == pytest.approx(np.mean(np.abs(errors) ** power), abs=1e-5)
    ledger = Ledger()
    with pytest.raises(DataError, match="y has 1 column.s., but the 'y_bounds'"):
        private_score(fitted, X, Y[:, 0], metric, (1.0, 1e-6), ledger=ledger)
    with pytest.raises(DataError, match="y has 2 column.s., but the 'y_bounds'"):
        private_score(fitted, X, Y[:, :2], metric, (1.0, 1e-6), ledger=ledger)
    assert ledger.spends == []


def test_a_search_among_models_of_several_targets(table):
    X, Y = table
    model = build("ridge")
    for name, values in (("regularisation", [0.1, 1e6]), ("length_scale", [0.01, 1.0])):
        search = PrivateSearchCV(model, {name: values}, 1e4, noise=SeededNoise(0)).fit(X, Y)
        assert search.predict(X).shape == Y.shape
        assert search.best_params_[name] == (0.1 if name == "regularisation" else 1.0)
