"""Weights of rows in (0, 1]: what they mean, and how far a weighted record moves a statistic."""

from __future__ import annotations

import importlib.util
from functools import partial

import dask.array
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.ensemble import BaggingRegressor
from sklearn.linear_model import Ridge

from dpkernel import (
    AddRemove,
    BlockStream,
    Ledger,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
    PrivateSearchCV,
    SeededNoise,
    private_score,
)
from dpkernel.data.weights import with_weights
from dpkernel.estimators import base, opening
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.methods import (
    PrivateCurator,
    PrivateGridRegressor,
    PrivateHuberRegressor,
    PrivateKernelSVC,
    PrivateKernelSVR,
    PrivateSGDClassifier,
    PrivateSGDRegressor,
    PrivateSketchedRidge,
)
from dpkernel.preprocessing import PrivateMinMaxScaler, PrivatePipeline
from replay import Replay, differences, ratios
from test_places import OFFERED, QUICK
from test_replay import CASES, ROUNDING, backgrounds, rows_of

MORE = ("PrivateSketchedRidge", "PrivateGridRegressor", "PrivateGridRegressor huber")
WEIGHED = {**OFFERED, **{name: CASES[name] for name in (*MORE, "PrivateKernelRidge folds")}}


def weighted(case, X, y, weights, relation):
    """Return the fit of a case with weights, which go in at the one door of all fits."""
    real = base.PrivateEstimator._fit

    def fit(model, X, y=None, groups=None, sample_weight=None, resume=None):
        return real(model, X, y, groups, weights)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base.PrivateEstimator, "_fit", fit)
        if not np.all(weights):  # a null record has the weight 0, which users can't pass
            patch.setattr(opening, "with_sample_weight", with_weights)
        return case.fit(X, y, relation)


def marks_of(name, relation):
    """Return the marks of a replay: one of each estimator is in the default run, two blank a row."""
    quick = " " not in name or name in QUICK
    both = name in ("PrivateHuberRegressor", "PrivateGridRegressor")
    return [] if quick and (both or relation == "replace-one") else [pytest.mark.slow]


@pytest.mark.parametrize(
    ("name", "relation"),
    [
        pytest.param(name, relation, marks=marks_of(name, relation))
        for name, case in WEIGHED.items()
        for relation in case.relations
    ],
)
def test_no_weighted_row_moves_a_statistic_more_than_certified(name, relation):
    """Neighbours differ in the row, its target and its weight."""
    case = WEIGHED[name]
    X, y = backgrounds(case.labels)[0]
    rng, found, left_over = np.random.default_rng(2), 0.0, set()
    weights = rng.choice([0.125, 0.75, 1.0], len(X))
    tables = [(X, y, weights)]
    if relation == "zero-out":
        tables = [(X, y, np.r_[weights[:-1], 0.0])]
    for number, (row, target) in enumerate(rows_of(X, y, case.labels)[:: 6 if case.slow else 4]):
        other = X.copy(), y.copy(), weights.copy()
        other[0][-1], other[1][-1], other[2][-1] = row, target, (1.0, 0.25)[number % 2]
        tables.append(other)
    with pytest.MonkeyPatch.context() as patch:
        replay = Replay(patch)
        fitted = [replay.run(lambda: weighted(case, *t, relation)) for t in tables]  # noqa: B023
        for other, after in fitted[1:]:
            found = max(found, *ratios(fitted[0][1], after, case.folds).values())
            left_over.update(differences(fitted[0][0], other))
    assert 0 < found <= 1 + ROUNDING
    assert [path for path in left_over if not path.endswith("._family")] == []


def models(epsilon=1e6, **more):
    given = {"epsilon": epsilon, "delta": 1e-3, "bounds": (-1, 1), "noise": SeededNoise(0), **more}
    real, labels = {**given, "y_bounds": (-2, 2)}, {**given, "classes": [0, 1]}
    return {
        "ridge": PrivateKernelRidge(**real, kernel="linear"),
        "ridge, output": PrivateKernelRidge(**real, solver="output"),
        "regressor": PrivateKernelRegressor(**{**real, "epsilon": min(epsilon, 50.0)}),
        "Huber": PrivateHuberRegressor(**real),
        "quantile": PrivateQuantileRegressor(**real),
        "SVR": PrivateKernelSVR(**real),
        "SGD": PrivateSGDRegressor(**real),
        "sketch": PrivateSketchedRidge(**real, kernel="linear", accept=("idealised-arithmetic",)),
        "grid": PrivateGridRegressor(**real, side=9, accept=("idealised-arithmetic",)),
        "curator": PrivateCurator(
            **real, loss="huber", threshold=1.0, accept=("idealised-arithmetic",)
        ),
        "classifier": PrivateKernelClassifier(**{**labels, "epsilon": min(epsilon, 50.0)}),
        "SVC": PrivateKernelSVC(**labels),
        "SGD of labels": PrivateSGDClassifier(**labels),
    }


@pytest.mark.parametrize("name", models())
def test_rows_of_little_weight_count_little(name, rng):
    """Half of the rows say the opposite and weigh a hundredth."""
    X = rng.uniform(-1, 1, (1200, 1))
    liar = np.arange(1200) % 2 == 0
    labels = name in ("classifier", "SVC", "SGD of labels")
    y = (X[:, 0] > 0).astype(int) if labels else X[:, 0]
    told = np.where(liar, 1 - y if labels else -y, y)
    model = models()[name].fit(X, told, sample_weight=np.where(liar, 0.01, 1.0))
    if labels:
        assert model.score(X, y) > 0.9
    else:
        slope = np.polyfit(X[:, 0], model.predict(X), 1)[0]
        assert 0.8 < slope < 1.1
    plain = models()[name].fit(X, told)
    assert plain.score(X, y) < model.score(X, y) - 0.2


@pytest.mark.parametrize("name", models())
def test_equal_weights_of_one_are_no_weights(name, rng):
    X = rng.uniform(-1, 1, (300, 2))
    y = (X[:, 0] > 0).astype(int) if name in ("classifier", "SVC", "SGD of labels") else X[:, 0]
    given = models(epsilon=5.0)[name].fit(X, y)
    found = models(epsilon=5.0)[name].fit(X, y, sample_weight=np.ones(300))
    released = ("regressor", "ridge", "sketch", "classifier", "quantile")  # the sum of weights
    if name in released:
        assert np.mean((found.predict(X) - given.predict(X)) ** 2) < 0.1
    else:
        np.testing.assert_allclose(found.predict(X[:9]), given.predict(X[:9]), rtol=1e-9)


def test_a_ridge_with_a_large_budget_is_a_weighted_ridge(rng):
    X = rng.uniform(-1, 1, (500, 2))
    y = X @ [1.0, -0.5] + 0.3 * rng.normal(size=500)
    weights = rng.uniform(0.1, 1.0, 500)
    given = {"bounds": (-1, 1), "y_bounds": (-3, 3), "noise": SeededNoise(0), "delta": 1e-3}
    options = {"features": "fourier", "n_features": 20, "regularisation": 0.1}
    model = PrivateKernelRidge(1e12, **given, **options).fit(X, y, sample_weight=weights)
    rows = model.feature_map_.transform(X)
    constant = np.full((500, 1), 0.5 * model.feature_map_.row_norm_bound)
    rows = np.hstack([rows, constant])
    plain = Ridge(alpha=0.1, fit_intercept=False).fit(rows, y / 3, sample_weight=weights)
    np.testing.assert_allclose(model.predict(X), 3 * plain.predict(rows), atol=2e-3)
    error = np.average((model.predict(X) - y) ** 2, weights=weights)
    assert model.certificate_.free_statistics["training_mse"][0] == pytest.approx(error, rel=0.01)


def test_weights_may_be_a_list_or_a_series_and_go_with_private_sizes(rng):
    X, y = rng.uniform(-1, 1, (60, 2)), rng.uniform(-1, 1, 60)
    weights = rng.uniform(0.2, 1.0, 60)
    given = {"bounds": (-1, 1), "y_bounds": (-1, 1), "noise": SeededNoise(0)}
    for relation in ("replace-one", AddRemove(80)):
        found = [
            PrivateKernelRidge(**given, neighbours=relation).fit(X, y, sample_weight=form).coef_
            for form in (weights, weights.tolist(), pd.Series(weights))
        ]
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])


BAD = {
    "above 1": lambda w: np.where(np.arange(len(w)) == 3, 1.5, w),
    "zero": lambda w: np.where(np.arange(len(w)) == 3, 0.0, w),
    "negative": lambda w: -w,
    "missing": lambda w: np.where(np.arange(len(w)) == 3, np.nan, w),
    "one number": lambda w: 0.5,
    "too few": lambda w: w[:-1],
    "two columns": lambda w: np.column_stack([w, w]),
    "texts": lambda w: ["heavy"] * len(w),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", models())
def test_bad_weights_are_refused_before_a_spend(name, bad, rng):
    X, y = rng.uniform(-1, 1, (30, 2)), np.arange(30) % 2
    ledger = Ledger()
    model = models()[name].set_params(ledger=ledger)
    with pytest.raises(DataError) as error:
        model.fit(X, y, sample_weight=BAD[bad](np.ones(30)))
    assert "1.5" not in str(error.value) and ledger.spends == []


def test_groups_take_no_weights(rng):
    X, y = rng.uniform(-1, 1, (30, 2)), rng.uniform(-1, 1, 30)
    with pytest.raises(ParameterError, match="weight per row, but with groups.*is private"):
        models()["Huber"].fit(X, y, groups=np.arange(30), sample_weight=np.ones(30))


def test_what_takes_no_weights_says_why(rng):
    X, y = rng.uniform(-1, 1, (60, 2)), rng.uniform(-1, 1, 60)
    weights, ledger = np.full(60, 0.5), Ledger()
    ridge, scaler = models(1.0)["ridge"], PrivateMinMaxScaler(bounds=(-9, 9))
    search = PrivateSearchCV(ridge, {"length_scale": [0.3, 1.0]}, ledger=ledger)
    fitted = models(1.0)["ridge"].fit(X, y)
    step = PrivateKernelRidge(y_bounds=(-1, 1))
    refused = {
        "must suit every row": clone(scaler).set_params(ledger=ledger).fit,
        "a weighted one would need another release": search.fit,
        "last step, 's', but PrivateSearchCV takes none": PrivatePipeline(
            [("s", PrivateSearchCV(step, {"length_scale": [1.0]}))], ledger=ledger
        ).fit,
        "last step, 's', but PrivateMinMaxScaler takes none": PrivatePipeline(
            [("s", scaler)], ledger=ledger
        ).fit,
        "weight per row, but with groups": partial(
            PrivatePipeline([("s", step)], ledger=ledger).fit, groups=np.arange(60)
        ),
        "which is private": partial(private_score, fitted, metric="mse", ledger=ledger),
    }
    for why, fit in refused.items():
        with pytest.raises(ParameterError, match=why):
            fit(X=X, y=y, sample_weight=weights)
    for fit in (scaler.fit, search.fit, partial(private_score, fitted)):
        with pytest.raises(TypeError, match="unexpected keyword argument 'weight'"):
            fit(X=X, y=y, weight=weights)
    assert ledger.spends == []
    scaler.fit(X, sample_weight=None)


def scaled(model, **options):
    steps = [("scale", PrivateMinMaxScaler(bounds=(-10, 10))), ("model", model)]
    given = {"epsilon": 1.0, "delta": 1e-5, "noise": SeededNoise(0), **options}
    return PrivatePipeline(steps, **given)


@pytest.mark.parametrize("name", ["ridge", "Huber", "classifier"])
def test_no_weighted_row_moves_a_statistic_of_a_pipeline_more_than_certified(name):
    """Neighbours differ in the row, its target and its weight."""
    labels = name == "classifier"
    last = {
        "ridge": PrivateKernelRidge(y_bounds=(-1, 1), n_features=8),
        "Huber": PrivateHuberRegressor(y_bounds=(-1, 1), n_features=8),
        "classifier": PrivateKernelClassifier(classes=[0, 1], n_features=8, regularisation=5.0),
    }[name]
    X, y = backgrounds(labels)[0]
    weights = np.random.default_rng(2).choice([0.125, 0.75, 1.0], len(X))
    tables, found, left_over = [(X, y, weights)], 0.0, set()
    for number, (row, target) in enumerate(rows_of(X, y, labels)[::2]):
        other = X.copy(), y.copy(), weights.copy()
        other[0][-1], other[1][-1], other[2][-1] = row, target, (1.0, 0.25)[number % 2]
        tables.append(other)
    with pytest.MonkeyPatch.context() as patch:
        replay = Replay(patch)
        fitted = [
            replay.run(lambda: scaled(last).fit(X, y, sample_weight=w))  # noqa: B023
            for X, y, w in tables
        ]
        for other, after in fitted[1:]:
            found = max(found, *ratios(fitted[0][1], after).values())
            left_over.update(differences(fitted[0][0], other))
    assert 0.3 < found <= 1 + ROUNDING
    assert [path for path in left_over if not path.endswith("._family")] == []


def test_the_last_step_of_a_pipeline_takes_the_weights(rng):
    X = rng.uniform(-1, 1, (900, 1))
    liar = np.arange(900) % 2 == 0
    told, weights = np.where(liar, -X[:, 0], X[:, 0]), np.where(liar, 0.01, 1.0)
    pipeline = scaled(PrivateKernelRidge(kernel="linear", y_bounds=(-1, 1)), epsilon=1e4)
    pipeline.fit(X, told, sample_weight=weights)
    assert 0.8 < np.polyfit(X[:, 0], pipeline.predict(X), 1)[0] < 1.1
    assert pipeline.certificate_.verify().epsilon <= 1e4
    ledger = Ledger()
    pipeline.set_params(ledger=ledger)
    for bad in (weights * 2, weights[1:], weights - 0.01):
        with pytest.raises(DataError, match="one weight per row, above zero and at most 1"):
            pipeline.fit(X, told, sample_weight=bad)
    assert ledger.spends == []


def test_one_prediction_of_a_curator_takes_weights(rng):
    X = rng.uniform(-1, 1, (400, 1))
    liar = np.arange(400) % 2 == 0
    told, weights = np.where(liar, -X[:, 0], X[:, 0]), np.where(liar, 0.01, 1.0)
    curator = models()["curator"]
    assert abs(curator.predict_once(X, told, [0.8], sample_weight=weights).value - 0.8) < 0.15
    assert abs(curator.predict_once(X, told, [0.8]).value) < 0.15
    with pytest.raises(DataError, match="one weight per row"):
        curator.predict_once(X, told, [0.8], sample_weight=2 * weights)


@pytest.mark.parametrize("relation", ["zero-out", AddRemove(40)], ids=str)
@pytest.mark.parametrize("name", ["Huber", "classifier"])
def test_every_table_takes_weights(name, relation, rng):
    X, y, weights = rng.uniform(-1, 1, (30, 2)), np.arange(30) % 2, rng.uniform(0.1, 1, 30)
    tables = {
        "stream": (
            BlockStream(lambda: ((X[i : i + 7], y[i : i + 7]) for i in range(0, 30, 7)), 30),
            None,
        ),
        "dask": (dask.array.from_array(X, (8, 2)), dask.array.from_array(y, 8)),
    }
    if importlib.util.find_spec("torch") is not None:
        import torch

        tables["tensor"] = (torch.tensor(X), torch.tensor(y))
    model = models()[name].set_params(neighbours=relation, noise=SeededNoise(3))
    plain = model.fit(X, y, sample_weight=weights).coef_
    for table in tables.values():
        found = model.fit(*table, sample_weight=weights).coef_
        np.testing.assert_array_equal(found, plain)
        with pytest.raises(DataError, match="one weight per row"):
            model.fit(*table, sample_weight=weights[:-1])


def test_a_bootstrap_that_repeats_rows_is_refused(rng):
    """A repeated row would count twice, and the certificate would be wrong."""
    X, y = rng.uniform(-1, 1, (30, 2)), rng.uniform(-1, 1, 30)
    ledger = Ledger()
    ridge = models(epsilon=1.0)["ridge"].set_params(ledger=ledger)
    with pytest.raises(DataError, match="would count for more than the noise hides"):
        BaggingRegressor(ridge, n_estimators=2, random_state=0).fit(X, y)
    assert ledger.spends == []
