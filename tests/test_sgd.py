"""PrivateSGDRegressor and PrivateSGDClassifier: every scheme, its limits, its sources of randomness."""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
from inspect import signature

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from scipy.optimize import minimize

from containers import dask_arrays, dask_frame, stream, tensors
from dpkernel import BlockStream, Budget, Certificate, Ledger, SeededNoise, load, save
from dpkernel.data import cache, passes
from dpkernel.estimators.records import ROW_BOUND, RecordRecipe
from dpkernel.estimators.sgd import plan, table
from dpkernel.estimators.sgd.plan import SGDSetting, _gradient_errors
from dpkernel.estimators.sgd.theorem import Theorem
from dpkernel.foundations.errors import (
    AssumptionError,
    BudgetExceededError,
    DataError,
    ParameterError,
)
from dpkernel.foundations.types import Neighbours
from dpkernel.methods import PrivateSGDClassifier, PrivateSGDRegressor
from dpkernel.models.features import FourierFeatures
from dpkernel.models.losses import (
    Absolute,
    Hinge,
    Huber,
    Logistic,
    Pinball,
    PowerAbsolute,
    PowerHinge,
    SmoothedHinge,
    SmoothedInsensitive,
    SmoothedPinball,
    Squared,
    SquaredHinge,
)
from dpkernel.privacy import mechanisms
from dpkernel.privacy.noise import NoiseSource, SystemNoise
from dpkernel.solvers.sgd_output import OutputSGD
from dpkernel.solvers.sgd_presets import PRESETS, preset

N = 90  # 7 does not divide it
PURE = ("idealised-arithmetic",)


@pytest.fixture
def data(rng):
    X = np.where(rng.random((N, 2)) < 0.3, 0.0, rng.uniform(-1, 1, (N, 2)))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=N)


def regressor(**options):
    given = {"bounds": (-1, 1), "y_bounds": (-2, 2), "n_features": 6, "noise": SeededNoise(3)}
    return PrivateSGDRegressor(**{**given, **options})


def classifier(**options):
    given = {"bounds": (-1, 1), "classes": [0, 1], "n_features": 6, "noise": SeededNoise(3)}
    return PrivateSGDClassifier(**{**given, **options})


def labels(y):
    return (y > 0).astype(int)


# --- every scheme ---------------------------------------------------------------------------------

OUTPUT = {"perturbation": "output"}
SCHEMES = {
    "output": {**OUTPUT},
    "fixed": {**OUTPUT, "sampling": "fixed"},
    "replacement": {**OUTPUT, "sampling": "replacement", "max_iter": 2},
    "replacement, batches": {**OUTPUT, "sampling": "replacement", "batch_size": 7, "max_iter": 3},
    "averaged shuffle": {**OUTPUT, "average": True, "max_iter": 2},
    "averaged fixed": {**OUTPUT, "average": True, "sampling": "fixed", "batch_size": 7},
    "averaged replacement": {**OUTPUT, "average": True, "sampling": "replacement", "max_iter": 1},
    "short batches": {**OUTPUT, "batch_size": 7, "max_iter": 3},
    "one batch": {**OUTPUT, "batch_size": N, "max_iter": 4},
    "radius": {**OUTPUT, "radius": 0.7, "eta0": 0.3},
    "ridge": {**OUTPUT, "alpha": 0.2},
    "ridge, constant step": {**OUTPUT, "alpha": 0.2, "eta0": 0.4, "radius": 1.0},
    "zero-out": {**OUTPUT, "neighbours": "zero-out", "batch_size": 7},
    "squared in a ball": {**OUTPUT, "loss": "squared_error", "radius": 1.0, "alpha": 0.1},
    "pure": {**OUTPUT, "delta": 0.0, "accept": PURE, "epsilon": 3.0},
    "pure averaged": {**OUTPUT, "delta": 0.0, "accept": PURE, "average": True},
    "gradient": {},
    "gradient zero-out": {"neighbours": "zero-out"},
    "gradient in a ball": {"radius": 0.5, "average": True, "clip": 0.05, "max_iter": 5},
    "gradient with a ridge": {"alpha": 40.0},
    "uniform": {"sampling": "uniform", "batch_size": 30, "max_iter": 1},
    "uniform, one row": {"batch_size": 1, "max_iter": 1},
    "uniform is full": {"sampling": "uniform", "batch_size": N, "max_iter": 2},
    "poisson": {"sampling": "poisson", "batch_size": 30, "neighbours": "zero-out", "max_iter": 1},
    "poisson with rate 1": {"sampling": "poisson", "neighbours": "zero-out", "max_iter": 2},
}


def wanted_sampling(options):
    asked = options.get("sampling", "auto")
    if options.get("perturbation") == "output":
        return "shuffle" if asked == "auto" else asked
    if asked == "poisson":
        return asked
    return "full" if options.get("batch_size", N) == N else "uniform"


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_fits_verifies_and_survives_a_file(data, tmp_path, name):
    options = SCHEMES[name]
    X, y = data
    model = regressor(**options).fit(X, y)
    certificate = model.certificate_
    assert certificate.epsilon <= model.epsilon and certificate.delta == model.delta
    assert certificate.verify().epsilon <= model.epsilon and not certificate.private
    assert certificate.neighbours.value == options.get("neighbours", "replace-one")
    assert Certificate.from_json(certificate.to_json()) == certificate
    scheme = certificate.public["scheme"]
    batch = options.get("batch_size", 1 if model.perturbation == "output" else N)
    assert scheme["perturbation"] == model.perturbation
    assert scheme["sampling"] == wanted_sampling(options)
    assert scheme["batch"] == batch and scheme["radius"] == options.get("radius")
    assert scheme["averaged"] == options.get("average", False)
    if "max_iter" in options:
        assert scheme["steps"] == -(-N // batch) * options["max_iter"]
    if options.get("perturbation") == "output" and scheme["sampling"] != "replacement":
        assert scheme["most_hits"] == scheme["steps"] // -(-N // batch)
    if "alpha" in options:
        assert scheme["ridge"] == options["alpha"]
    if "clip" in options:
        assert scheme["clip"] == 0.05
    assert scheme["sigma"] == pytest.approx(_sigma_of(certificate, scheme), rel=1e-6)
    assert np.isfinite(model.predict(X)).all() and np.abs(model.predict(X)).max() <= 2
    if model.radius is not None:
        recipe = _recipe(model, X)
        assert np.linalg.norm(_beta(model, recipe)) <= model.radius * (1 + 1e-6)
    again = load(save(model, tmp_path / "model.npz"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.certificate_ == certificate
    assert again.n_iter_ == model.n_iter_ == math.ceil(scheme["steps"] * scheme["batch"] / N)
    for parameter in ("perturbation", "radius", "average", "accept"):
        assert getattr(again, parameter) == getattr(model, parameter)
    if name not in ("uniform", "uniform, one row", "poisson"):  # these calibrate for seconds
        assert again.fit(X, y).certificate_.public["scheme"]["sampling"] == scheme["sampling"]
    twin = regressor(**options).fit(X, y)
    np.testing.assert_array_equal(twin.coef_, model.coef_)


def _sigma_of(certificate, scheme):
    """Return the noise of the mechanism in units of the coefficients' gradient or of themselves."""
    mechanism = certificate.releases[0].mechanism
    if scheme["perturbation"] == "output":
        return mechanism.noise_scale
    return mechanism.noise_scale / mechanism.sensitivity.value * scheme["sensitivity"]


REGRESSION = {
    "huber": Huber(0.2),
    "squared_error": Squared(),
    "absolute": Absolute(),
    "quantile": Pinball(),
    "smoothed_pinball": SmoothedPinball(),
    "smoothed_insensitive": SmoothedInsensitive(),
    "power_absolute": PowerAbsolute(),
    "a quantile": Pinball(0.9),
    "a tube": Absolute(0.2),
    "q near 2": PowerAbsolute(1.9999),
    "q = 2": PowerAbsolute(2.0),
}
MARGIN = {
    "hinge": Hinge(),
    "log_loss": Logistic(),
    "smoothed_hinge": SmoothedHinge(1.0),
    "squared_hinge": SquaredHinge(),
    "power_hinge": PowerHinge(),
    "a reach": SquaredHinge(0.0),
    "q = 2": PowerHinge(2.0),
}


@pytest.mark.parametrize("perturbation", ["output", "gradient"])
@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
def test_every_loss(data, tmp_path, perturbation, relation):
    X, y = data
    options = {"perturbation": perturbation, "neighbours": relation, "max_iter": 3}
    for build, losses, target in ((regressor, REGRESSION, y), (classifier, MARGIN, labels(y))):
        for name, loss in losses.items():
            known = re.fullmatch("[a-z_]+", name)
            model = build(loss=name if known else loss, **options).fit(X, target)
            assert model.certificate_.public["loss"] == loss.to_dict()
            assert model.certificate_.verify().epsilon <= 1.0
            again = load(save(model, tmp_path / "model.npz"))
            assert again.loss == loss
            np.testing.assert_array_equal(again.predict(X), model.predict(X))
            same = build(loss=loss, **options).fit(X, target)
            np.testing.assert_array_equal(same.coef_, model.coef_)


def test_batches_of_zero_out_are_poisson_by_default(data):
    """With a fixed size they cost about twice the noise; "uniform" still asks for them."""
    options = {"neighbours": "zero-out", "batch_size": 30, "max_iter": 1}
    found = [regressor(**options, **more).fit(*data) for more in ({}, {"sampling": "uniform"})]
    poisson, uniform = (model.certificate_.public["scheme"] for model in found)
    assert (poisson["sampling"], uniform["sampling"]) == ("poisson", "uniform")
    assert uniform["sigma"] > 1.5 * poisson["sigma"]
    assert all(model.certificate_.verify().epsilon <= 1 for model in found)
    whole = regressor(neighbours="zero-out", max_iter=1).fit(*data)
    assert whole.certificate_.public["scheme"]["sampling"] == "full"
    replaced = regressor(batch_size=30, max_iter=1).fit(*data)
    assert replaced.certificate_.public["scheme"]["sampling"] == "uniform"


def test_zero_out_has_half_the_sensitivity(data):
    for options in ({**OUTPUT, "alpha": 0.1}, {"max_iter": 3}):
        both = [regressor(neighbours=r, **options).fit(*data) for r in ("replace-one", "zero-out")]
        found = [model.certificate_.public["scheme"]["sensitivity"] for model in both]
        assert found[0] == pytest.approx(2 * found[1], rel=1e-9)


def test_a_ridge_moves_the_output_as_little_as_the_minimiser(data):
    """Two G / (ridge n) for replace-one, G = the threshold, whatever the number of passes."""
    for rounds in (1, 5):
        model = regressor(**OUTPUT, alpha=0.3, max_iter=rounds).fit(*data)
        sensitivity = model.certificate_.public["scheme"]["sensitivity"]
        assert sensitivity == pytest.approx(2 * 0.2 / (0.3 * N), rel=1e-9)


def test_numbers_of_numpy_are_numbers(data):
    options = {"batch_size": np.int64(30), "max_iter": np.int64(1), "alpha": np.float32(0.5)}
    options |= {"radius": np.float64(1.0)}
    model = regressor(**OUTPUT, **options).fit(*data)
    assert '"batch": 30' in model.certificate_.to_json()


def test_large_and_small_epsilons_keep_to_the_request(data):
    for epsilon in (1e-3, 30.0, 1e5):
        for options in (OUTPUT, {**OUTPUT, "sampling": "replacement", "max_iter": 1}, {}):
            certificate = regressor(epsilon=epsilon, **options).fit(*data).certificate_
            assert 0.99 * epsilon < certificate.epsilon <= epsilon
    model = regressor(epsilon=1e5, batch_size=30, max_iter=1).fit(*data)  # a search that ends
    assert 500 < model.certificate_.epsilon <= 1e5


# --- what is refused, and that it costs nothing ---------------------------------------------------

REFUSALS = {
    "unknown loss": (
        {"loss": "cauchy"},
        ParameterError,
        "'loss' parameter.*one of absolute, huber",
    ),
    "margin loss": ({"loss": "hinge"}, ParameterError, "'loss' parameter.*one of absolute, huber"),
    "margin loss object": (
        {"loss": Hinge()},
        ParameterError,
        "such a loss of dpkernel.models.losses",
    ),
    "no loss": ({"loss": 3}, ParameterError, "'loss' parameter"),
    "batch": ({"batch_size": N + 1}, ParameterError, "'batch_size'.*number of rows, 90. Got 91"),
    "batch of output": ({**OUTPUT, "batch_size": N + 1}, ParameterError, "'batch_size'"),
    "poisson of output": ({**OUTPUT, "sampling": "poisson"}, ParameterError, "'shuffle', 'fixed'"),
    "shuffle of gradient": ({"sampling": "shuffle"}, ParameterError, "'uniform', 'poisson'"),
    "poisson, replaced": (
        {"sampling": "poisson", "batch_size": 9},
        ParameterError,
        "'fixed' for replace-one",
    ),
    "add-remove": ({"neighbours": "add-remove"}, ParameterError, "must be AddRemove"),
    "preset of gradients": (
        {**OUTPUT, "preset": "holder-12"},
        ParameterError,
        "'gradient' for the preset 'holder-12'. Got 'output'",
    ),
    "preset of outputs": ({"preset": "wang-guo-1"}, ParameterError, "'output' for the preset"),
    "unknown preset": ({"preset": "holder-11"}, ParameterError, "'preset' parameter"),
    "step": ({**OUTPUT, "eta0": 2.1}, ParameterError, "at most 2, .*Got 2.1"),
    "step with a ridge": ({**OUTPUT, "eta0": 0.9, "alpha": 1.0}, ParameterError, "at most 0.5"),
    "step of squares": (
        {**OUTPUT, "eta0": 1.1, "loss": "squared_error"},
        ParameterError,
        "at most 1,",
    ),
    "step that could overflow": (
        {**OUTPUT, "eta0": 2.0, "loss": PowerAbsolute(1.9999)},
        ParameterError,
        "up to which the proof holds",
    ),
    "step against a ridge": ({"eta0": 3.0, "alpha": 1.0}, ParameterError, "at most 1 / step"),
    "averaged ridge": ({**OUTPUT, "alpha": 1.0, "average": True}, ParameterError, "average must"),
    "ridge without a radius": (
        {**OUTPUT, "alpha": 1.0, "loss": "squared_error"},
        ParameterError,
        "needs a radius",
    ),
    "ridge without smoothness": (
        {**OUTPUT, "alpha": 1.0, "loss": "absolute"},
        ParameterError,
        "needs a smooth loss",
    ),
    "pure gradients": ({"delta": 0.0, "accept": PURE}, ParameterError, "above 0 with perturbation"),
    "pure without a signature": ({**OUTPUT, "delta": 0.0}, AssumptionError, "idealised-arithmetic"),
    "pure replacement": (
        {**OUTPUT, "delta": 0.0, "accept": PURE, "sampling": "replacement"},
        ParameterError,
        "'shuffle' or 'fixed' for delta = 0",
    ),
    "delta of many steps": (
        {"delta": 1e-13, "batch_size": 9, "max_iter": 1},
        ParameterError,
        "at least 1e-13 per step",
    ),
    "too many fresh rows": (
        {**OUTPUT, "sampling": "replacement", "max_iter": 10**6, "batch_size": N, "eta0": 1e-9},
        None,
        None,
    ),
    "max_iter": ({"max_iter": 0}, ParameterError, "'max_iter' parameter"),
    "radius": ({"radius": -1.0}, ParameterError, "'radius' parameter"),
    "clip": ({"clip": 0.0}, ParameterError, "'clip' parameter"),
    "noise beyond the sampler": (
        {"epsilon": 1e-8, "delta": 1e-300},
        ParameterError,
        "large enough for noise of at most 2.58 whole steps. .* Ask for a larger epsilon or delta",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_cost_nothing(data, case, monkeypatch):
    options, kind, message = REFUSALS[case]
    if kind is None:
        kind, message = ParameterError, "fresh batches have at most 1000 rows"
        monkeypatch.setattr(plan, "MOST_DRAWN", 1000)
        options = {**options, "max_iter": 12}
    ledger = Ledger(budget=Budget(100.0, 1e-4))
    with pytest.raises(kind, match=message):
        regressor(ledger=ledger, **options).fit(*data)
    assert ledger.spends == []


def test_a_classifier_takes_margin_losses_only(data):
    ledger = Ledger(budget=Budget(100.0, 1e-4))
    for loss in ("huber", Squared(), "cauchy"):
        with pytest.raises(ParameterError, match="one of hinge, huberised_hinge, logistic"):
            classifier(loss=loss, ledger=ledger).fit(data[0], labels(data[1]))
    with pytest.raises(ParameterError, match="needs 'classes'"):
        classifier(classes=None, ledger=ledger).fit(data[0], labels(data[1]))
    assert ledger.spends == []


def test_a_loss_of_the_users_own_is_refused(data):
    """It could state a largest slope that it does not keep."""

    class Steeper(Huber):
        @property
        def lipschitz(self):
            return 1e-6

    ledger = Ledger(budget=Budget(100.0, 1e-4))
    with pytest.raises(ParameterError, match="'loss' parameter"):
        regressor(loss=Steeper(0.2), ledger=ledger, **OUTPUT).fit(*data)
    assert ledger.spends == []


def test_partial_fit_says_why_not():
    model = regressor()
    assert not hasattr(model, "partial_fit")
    with pytest.raises(AttributeError, match="pay for them again.*BlockStream.*ledger.part"):
        model.partial_fit([[0.0]], [0.0])


def test_a_full_ledger_is_asked_before_the_table_is_read(data, monkeypatch):
    ledger = Ledger(budget=Budget(0.5, 1e-6))
    monkeypatch.setattr(passes.Passes, "prepare", lambda self: pytest.fail("was read"))
    for options in (OUTPUT, {}):
        with pytest.raises(BudgetExceededError, match="Nothing was spent"):
            regressor(ledger=ledger, **options).fit(*data)
    assert ledger.spends == []


def test_very_long_steps_end_in_numbers(data):
    """Gradients are clipped, so every step is private; the user gets what he asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({"eta0": 1e300}, {"eta0": 1e300, "radius": 1.0}, {"alpha": 1e6}):
            assert np.isfinite(regressor(**options).fit(*data).predict(data[0])).all()


# --- presets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_presets_by_name_and_as_objects(data, name):
    X, y = data
    loss = "squared_error" if name == "wang-guo-1" else "huber"
    options = {"loss": loss, "perturbation": "gradient" if name == "holder-12" else "output"}
    options["delta"] = 1e-4
    if name != "wang-guo-1":
        options["radius"] = 0.8
    if name == "holder-12":
        X, y, options["batch_size"] = X[:20], y[:20], 20
    size = {"features": "fourier", "n_features": "auto"}
    model = regressor(preset=name, **options, **size).fit(X, y)
    public = model.certificate_.public
    scheme = public["scheme"]
    numbers = {"n_rows": len(y), "kappa": 1.0, "dimension": len(model.coef_) + 1, "L": 1.0}
    numbers |= {"epsilon": 1.0, "delta": 1e-4, "alpha": 1.0, "radius": 0.8, "r": 1.0}
    numbers["capacity"] = 0.5
    asked = signature(PRESETS[name]).parameters
    found = preset(name, **{key: value for key, value in numbers.items() if key in asked})
    assert public["preset"] == name
    assert (scheme["steps"], scheme["step"]) == (found.n_steps, found.step)
    assert (scheme["averaged"], scheme["radius"]) == (found.average, found.radius)
    assert scheme["ridge"] == 0 and scheme["sampling"] in ("replacement", "full")
    if found.n_features is not None:
        assert len(model.coef_) == found.n_features == 112
    options["radius"] = None  # the object brings its own
    size["features"] = model.feature_map_
    again = regressor(preset=found, **{**options, **size}).fit(X, y)
    np.testing.assert_array_equal(again.coef_, model.coef_)


def differs(**options):
    """Return the number of features, their kind and what the certificate says differs."""
    model = regressor(**OUTPUT, **options)
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, (N, 2)), rng.uniform(-1, 1, N)
    public = model.fit(X, y).certificate_.public
    assert public["preset"] == "wang-guo-1"
    return model.feature_map_, public.get("preset_differs", [])


@pytest.mark.parametrize("capacity", [0.3, 0.4, 0.5, 0.6, 0.7, 0.8])
def test_theorem_1_of_wang_and_guo_has_random_features_also_where_its_number_is_odd(capacity):
    wanted = preset("wang-guo-1", n_rows=N, r=1.0, capacity=capacity).n_features
    for features in ("auto", "fourier"):
        options = {"preset": "wang-guo-1", "features": features, "n_features": "auto"}
        found, notes = differs(**options, loss="squared_error", capacity=capacity)
        assert found.kind == "fourier" and found.n_outputs == wanted + wanted % 2
        assert any("come in pairs" in note for note in notes) == bool(wanted % 2)
        assert not any("the theorem" in note for note in notes)


def test_a_certificate_says_in_what_a_fit_differs_from_the_theorem():
    named = {"preset": "wang-guo-1", "loss": "squared_error"}
    _, notes = differs(**named, n_features=20)
    assert any("there are 20 features; the theorem asks for M = " in note for note in notes)
    kind, notes = differs(**named, features="eigen", n_features="auto")
    assert kind.kind == "eigen"
    assert any("kind eigen; the theorem is about random ones" in note for note in notes)
    _, notes = differs(preset="wang-guo-1", loss="huber", batch_size=3)
    assert any("huber; the theorem is about the squared loss" in note for note in notes)
    assert any("a step takes 3 rows" in note for note in notes)
    kind, notes = differs(**named, kernel="linear", features="auto", n_features="auto")
    assert kind.kind == "linear" and any("kind linear" in note for note in notes)


def test_more_features_than_an_estimator_takes_are_said_to_be_cut():
    """A plan alone: at this size a fit takes minutes."""
    model = regressor(**OUTPUT, preset="wang-guo-1", loss="squared_error")
    theorem = Theorem(model, Squared(), Budget(1.0, 1e-6), 10**5)
    assert theorem.schedule(1).n_features > 10_000 == theorem.size(64)
    notes = theorem.differences(FourierFeatures(10_000).build(2))
    assert any("was cut to 10000" in note for note in notes)


def test_regularity_and_capacity_are_those_of_the_user(data):
    options = {"preset": "wang-guo-1", "features": "fourier", "n_features": "auto"}
    model = regressor(**OUTPUT, **options, loss="squared_error", r=0.9, capacity=0.9)
    scheme = model.fit(*data).certificate_.public["scheme"]
    assert scheme["steps"] == preset("wang-guo-1", n_rows=N, r=0.9, capacity=0.9).n_steps
    with pytest.raises(ParameterError, match="'capacity' parameter of wang_guo_theorem_1"):
        model.set_params(r=0.6, capacity=0.5).fit(*data)
    with pytest.raises(ParameterError, match="'r' parameter of PrivateSGDRegressor"):
        model.set_params(r=0.5).fit(*data)


def test_a_preset_may_be_any_schedule(data):
    found = preset("holder-9", n_rows=N, alpha=1.0, L=1.0)
    own = type(found)("mine", 12, 0.25, None, None, False, "fixed", "output")
    scheme = regressor(**OUTPUT, preset=own).fit(*data).certificate_.public["scheme"]
    assert (scheme["steps"], scheme["step"], scheme["sampling"]) == (12, 0.25, "fixed")
    assert scheme["most_hits"] == 1  # twelve steps of one row each
    for bad in ({"n_steps": -1}, {"step": math.nan}, {"step": 0.0}, {"radius": -1.0}):
        with pytest.raises(ParameterError):
            regressor(**OUTPUT, preset=type(own)(**{**own.__dict__, **bad})).fit(*data)


# --- tables of every kind -------------------------------------------------------------------------


def mapped(X, y, path):
    np.save(path / "X.npy", X)
    return np.load(path / "X.npy", mmap_mode="r"), y


SOURCES = {
    "pandas": lambda X, y: (pd.DataFrame(X), pd.Series(y)),
    "polars": lambda X, y: (pl.DataFrame(X, schema=["a", "b"]), y),
    "sparse": lambda X, y: (sparse.csr_matrix(X), y),
    "stream": lambda X, y: (stream(X, y, 17), None),
    "dask arrays": lambda X, y: dask_arrays(X, y, 40, 1),
    "dask frame": dask_frame,
    "torch": tensors,
    "memory map": mapped,
}
KINDS = {
    "fixed": {**OUTPUT, "sampling": "fixed", "alpha": 0.1, "max_iter": 2},
    "fixed, batches": {**OUTPUT, "sampling": "fixed", "batch_size": 7, "max_iter": 2, "eta0": 0.5},
    "gradient": {"max_iter": 4},
}


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("kind", SOURCES)
def test_every_kind_of_table_gives_the_same_model(data, tmp_path, monkeypatch, kind):
    X, y = data
    args = (tmp_path,) if kind == "memory map" else ()
    rows, target = SOURCES[kind](X, y, *args)
    if kind == "stream":
        named = stream(X, labels(y), 17)
    for options in KINDS.values():
        wanted = regressor(**options).fit(X, y)
        with monkeypatch.context() as patch:
            for _ in ("cached", "made again"):
                model = regressor(**options).fit(rows, target)
                np.testing.assert_allclose(model.coef_, wanted.coef_, rtol=0, atol=1e-9)
                assert model.certificate_.releases == wanted.certificate_.releases
                patch.setattr(cache, "_limits", cache.CacheLimits(0, 0))
        wanted = classifier(**options).fit(X, labels(y))
        given = (named,) if kind == "stream" else SOURCES[kind](X, labels(y), *args)
        model = classifier(**options).fit(*given)
        np.testing.assert_allclose(model.coef_, wanted.coef_, rtol=0, atol=1e-9)


ORDERS = ["output", "replacement, batches", "averaged shuffle", "short batches"]


@pytest.mark.parametrize("name", ORDERS)
def test_records_made_again_give_the_same_model_in_any_order(data, monkeypatch, name):
    X, y = data
    wanted = regressor(**SCHEMES[name]).fit(X, y)
    monkeypatch.setattr(cache, "_limits", cache.CacheLimits(0, 0))
    for rows in (X, sparse.csr_matrix(X)):
        again = regressor(**SCHEMES[name]).fit(rows, y)
        np.testing.assert_allclose(again.coef_, wanted.coef_, rtol=0, atol=1e-9)


def test_the_noise_covers_rounding_and_the_range_of_the_output(data, monkeypatch):
    seen = []
    for cls in (mechanisms.Gaussian, mechanisms.MixtureGaussian):
        whole = cls.calibrate.__func__

        def spy(kind, *args, _whole=whole, **options):
            seen.append(options)
            return _whole(kind, *args, **options)

        monkeypatch.setattr(cls, "calibrate", classmethod(spy))
    for options in (OUTPUT, {**OUTPUT, "sampling": "replacement"}):
        model = regressor(**options).fit(*data)
        scheme, (asked,) = model.certificate_.public["scheme"], seen
        mechanism = model.certificate_.releases[0].mechanism
        assert mechanism.rounding == asked["rounding"] > 1e-16 * scheme["steps"] * scheme["step"]
        assert asked["magnitude"] >= scheme["step"] * scheme["gradient_bound"]
        seen.clear()


def test_streams_are_shuffled_in_memory_or_refused_with_advice(data, monkeypatch):
    X, y = data
    wanted = regressor(**OUTPUT).fit(X, y)
    model = regressor(**OUTPUT, sampling="shuffle").fit(stream(X, y, 17))
    np.testing.assert_allclose(model.coef_, wanted.coef_, rtol=0, atol=1e-9)
    monkeypatch.setattr(cache, "_limits", cache.CacheLimits(0, 0))
    ledger = Ledger(budget=Budget(100.0, 1e-4))
    refused = [{**OUTPUT, "sampling": s} for s in ("shuffle", "replacement")]
    refused += [{**OUTPUT, "preset": "holder-9"}]
    for options in refused:
        with pytest.raises(ParameterError, match="random order.*Leave 'sampling'.*memory map"):
            regressor(ledger=ledger, **options).fit(stream(X, y, 17))
    for options in ({"batch_size": 30}, SCHEMES["poisson"]):
        for table_of in (stream(X, y, 17), X):  # made again, a record would depend on its batch
            target = () if table_of is not X else (y,)
            with pytest.raises(ParameterError, match="fit in memory for random batches"):
                regressor(ledger=ledger, **options).fit(table_of, *target)
    assert ledger.spends == []
    for options in (OUTPUT, {**OUTPUT, "average": True}):  # "auto" takes the rows as they come
        scheme = regressor(**options).fit(stream(X, y, 17)).certificate_.public["scheme"]
        assert scheme["sampling"] == "fixed"


def test_a_stream_that_can_be_read_once_is_refused(data):
    ledger = Ledger(budget=Budget(100.0, 1e-4))
    with pytest.raises(ParameterError, match="Give BlockStream a function"):
        regressor(ledger=ledger).fit(BlockStream(iter([data]), n_rows=N))
    assert ledger.spends == []


@pytest.mark.parametrize("perturbation", ["output", "gradient"])
def test_a_table_that_changes_between_passes(data, monkeypatch, perturbation):
    """What fits in memory is read before the spend; else the text says that it came later."""
    array = pytest.importorskip("dask.array")
    X, y = data
    ledger, calls = Ledger(budget=Budget(100.0, 1e-4)), []

    def later(block, bad):
        if block.size:
            calls.append(None)
        return bad(block) if len(calls) > 1 else block

    def broken(block):
        raise OSError("0.123456789")

    def spoiled(block):
        return np.full_like(block, np.nan)

    options = {"perturbation": perturbation, "ledger": ledger}
    for bad, message in ((broken, "OSError. Nothing was spent"), (spoiled, "contains NaN")):
        calls.clear()
        rows = array.from_array(X, chunks=(N, 2)).map_blocks(later, bad, meta=X[:0], dtype=float)
        with pytest.raises(DataError, match=message) as caught:
            regressor(**options).fit(rows, array.from_array(y, chunks=N))
        assert "0.12" not in str(caught.value)
    assert ledger.spends == []
    monkeypatch.setattr(cache, "_limits", cache.CacheLimits(0, 0))
    calls.clear()
    rows = array.from_array(X, chunks=(N, 2)).map_blocks(later, broken, meta=X[:0], dtype=float)
    after = perturbation == "gradient"  # an output is computed before it is paid for
    message = "The fit's budget was spent before" if after else "Nothing was spent"
    with pytest.raises(DataError, match=f"OSError. {message}"):
        regressor(**options).fit(rows, array.from_array(y, chunks=N))
    assert len(ledger.spends) == after


# --- limits ---------------------------------------------------------------------------------------


def _recipe(model, X):
    return RecordRecipe.choose(model._domain, model.feature_map_, len(X), ROW_BOUND)[0]


def _beta(model, recipe):
    """Return the coefficients of the records, from those of the features."""
    first = (model.intercept_ + recipe.centre @ model.coef_) / recipe.constant
    return np.append(first, model.coef_ / recipe.scale)


def minimum(loss, z, weights, y, ridge):
    def objective(beta):
        scores = z @ beta
        value = weights @ loss.value(y, scores) / len(y) + ridge * beta @ beta / 2
        return value, (weights * loss.derivative(y, scores)) @ z / len(y) + ridge * beta

    options = {"maxiter": 50_000, "maxfun": 50_000, "ftol": 1e-16, "gtol": 1e-11}
    start = np.zeros(z.shape[1])
    return minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x


def plain_sgd(z, weights, y, orders, batch, step, radius, averaged):
    """Stochastic gradient descent on the Huber loss as a textbook writes it."""
    w, total, steps = np.zeros(z.shape[1]), np.zeros(z.shape[1]), 0
    for order in orders:
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            slopes = np.clip(z[rows] @ w - y[rows], -0.2, 0.2) * weights[rows]
            w = w - step / batch * slopes @ z[rows]
            w = w * min(1.0, radius / max(np.linalg.norm(w), 1e-300))
            total, steps = total + w, steps + 1
    return total / steps if averaged else w


@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("batch", [1, 7, N])
@pytest.mark.parametrize("radius", [None, 0.3])
def test_without_noise_output_is_plain_sgd(data, averaged, batch, radius):
    X, y = data
    options = {**OUTPUT, "sampling": "fixed", "epsilon": 9e9, "max_iter": 3, "eta0": 0.5}
    model = regressor(average=averaged, batch_size=batch, radius=radius, **options).fit(X, y)
    recipe = _recipe(model, X)
    z, weights = recipe.rows(X)
    assert weights.min() < 1  # long rows count less
    order = [np.arange(N)] * 3
    given = batch, 0.5, math.inf if radius is None else radius, averaged
    wanted = plain_sgd(z, weights, np.clip(y / 2, -1, 1), order, *given)
    np.testing.assert_allclose(_beta(model, recipe), wanted, rtol=0, atol=1e-3)


def test_without_noise_a_ridge_ends_at_the_minimiser(data):
    X, y = data
    options = {**OUTPUT, "alpha": 0.05, "max_iter": 3000, "epsilon": 9e9}
    for batch in (1, N):
        model = regressor(batch_size=batch, **options).fit(X, y)
        recipe = _recipe(model, X)
        z, weights = recipe.rows(X)
        wanted = minimum(Huber(0.2), z, weights, y / 2, 0.05)
        np.testing.assert_allclose(_beta(model, recipe), wanted, rtol=0, atol=2e-3)


@pytest.mark.parametrize("problem", ["huber", "squared", "classes"])
def test_without_noise_gradients_end_at_the_minimiser(data, problem):
    X, y = data
    options = {"alpha": 0.05, "max_iter": 1500, "epsilon": 9e9, "eta0": 1.0}
    if problem == "classes":
        three = np.digitize(y, [-0.4, 0.4])
        model = classifier(classes=[0, 1, 2], loss="log_loss", **options).fit(X, three)
        coefficients, loss = zip(model.coef_.T, model.intercept_, strict=True), Logistic()
        targets = [np.where(three == k, 1.0, -1.0) for k in range(3)]
    else:
        loss = Huber(0.2) if problem == "huber" else Squared()
        options |= {"loss": loss, "clip": 5.0}
        model = regressor(**options).fit(X, y)
        coefficients, targets = [(model.coef_, model.intercept_)], [y / 2]
    recipe = _recipe(model, X)
    z, weights = recipe.rows(X)
    for (coef, intercept), target in zip(coefficients, targets, strict=True):
        wanted = recipe.coefficients(minimum(loss, z, weights, target, 0.05))
        np.testing.assert_allclose(coef, wanted[0], rtol=0, atol=5e-3)
        assert intercept == pytest.approx(wanted[1], abs=5e-3)


def test_a_clip_below_the_slopes_counts_every_record_alike(data):
    """Squares clipped to a tiny norm: each record pulls by its sign, as the absolute loss does."""
    X, y = data
    options = {"max_iter": 1, "epsilon": 9e9, "eta0": 1.0}
    model = regressor(loss="squared_error", clip=1e-6, **options).fit(X, y)
    recipe = _recipe(model, X)
    z, weights = recipe.rows(X)
    lengths = np.linalg.norm(z, axis=1)
    slopes = weights * y / 2
    wanted = np.clip(slopes, -1e-6 / lengths, 1e-6 / lengths) @ z / N
    np.testing.assert_allclose(_beta(model, recipe), wanted, rtol=1e-2, atol=1e-9)


# --- degenerate tables ----------------------------------------------------------------------------

TABLES = {
    "one row": (np.zeros((1, 2)), np.ones(1)),
    "two rows": (np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([-2.0, 2.0])),
    "constant y": (np.linspace(-1, 1, 60).reshape(30, 2), np.full(30, 0.5)),
    "constant columns": (np.full((30, 2), 0.5), np.linspace(-1, 1, 30)),
    "equal rows": (np.full((30, 2), 0.5), np.full(30, 0.7)),
    "y at its bounds": (np.linspace(-1, 1, 60).reshape(30, 2), np.repeat([-2.0, 2.0], 15)),
    "one column": (np.linspace(-1, 1, 30)[:, None], np.linspace(-1, 1, 30)),
    "a hundred columns": (np.linspace(-1, 1, 3000).reshape(30, 100), np.linspace(-1, 1, 30)),
}


@pytest.mark.parametrize("name", TABLES)
def test_degenerate_tables_give_sane_models(name):
    X, y = TABLES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({}, OUTPUT, {**OUTPUT, "average": True}, {**OUTPUT, "batch_size": len(y)}):
            model = regressor(n_features="auto", **options).fit(X, y)
            assert np.abs(model.predict(X)).max() <= 2
            assert model.certificate_.epsilon <= 1.0
            if len(set(y)) == 1 and len(y) > 1:
                many = regressor(epsilon=1e6, kernel="linear", **options).fit(X, y)
                assert np.abs(many.predict(X) - y).max() < 0.35
            few = classifier(n_features="auto", **options).fit(X, labels(y))
            assert set(few.predict(X)) <= {0, 1}


def test_ten_classes_of_which_most_are_absent(data):
    X, y = data
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in (OUTPUT, {}):
            model = classifier(classes=range(10), epsilon=1e5, **options).fit(X, labels(y) + 4)
            assert model.decision_function(X).shape == (N, 10)
            assert np.mean(model.predict(X) == labels(y) + 4) > 0.75


# --- where randomness comes from ------------------------------------------------------------------


class Spy(SystemNoise):
    """Records what is drawn, and whether the spend had been recorded by then."""

    def __init__(self, ledger):
        super().__init__()
        self.ledger, self.drawn = ledger, []

    def _note(self, name):
        self.drawn.append((name, len(self.ledger.spends), self.ledger.spends[-1].state))

    def uniform_indices(self, n, count):
        self._note("uniform_indices")
        return super().uniform_indices(n, count)

    def permutation(self, n):
        self._note("permutation")
        return super().permutation(n)

    def subset(self, n, size):
        self._note("subset")
        return super().subset(n, size)

    def discrete_gaussian(self, scale, size):
        self._note("noise")
        return super().discrete_gaussian(scale, size)


DRAWS = {
    "replacement": ["uniform_indices", "noise"],
    "replacement, batches": ["subset"] * 39 + ["noise"],
    "averaged shuffle": ["permutation"] * 2 + ["noise"],
    "uniform": ["subset", "noise"] * 3,
    "output": ["noise"],  # its order is public: nothing is drawn for it
    "averaged fixed": ["noise"],
}


@pytest.mark.parametrize("name", DRAWS)
def test_secret_orders_come_from_the_noise_after_the_spend(data, name, monkeypatch):
    orders = []
    seen = table.RecordTable.parts

    def parts(self, order, targets):
        orders.append(None if order is None else np.array(order))
        return seen(self, order, targets)

    monkeypatch.setattr(table.RecordTable, "parts", parts)
    runs = []
    for _ in range(2):
        ledger = Ledger(budget=Budget(100.0, 1e-4))
        spy = Spy(ledger)
        orders.clear()
        model = regressor(noise=spy, ledger=ledger, random_state=7, **SCHEMES[name]).fit(*data)
        assert [what for what, _, _ in spy.drawn] == DRAWS[name]
        assert all((spends, state) == (1, "drawn") for _, spends, state in spy.drawn)
        runs.append((model.coef_, [None if o is None else o.tolist() for o in orders]))
    (one, first), (two, second) = runs
    assert not np.array_equal(one, two)
    if DRAWS[name][0] != "noise" and name != "uniform":
        assert first != second and all(order is not None for order in first)
    elif name == "output":  # from random_state: two fits agree, another state has another order
        assert first == second and len(first) > 1 and first[0] != first[1]
        orders.clear()
        regressor(random_state=8, **SCHEMES[name]).fit(*data)
        assert [o.tolist() for o in orders] != first


def test_the_problems_of_several_classes_share_their_orders(data, monkeypatch):
    orders = []
    seen = table.RecordTable.parts

    def parts(self, order, targets):
        orders.append(np.array(order))
        return seen(self, order, targets)

    monkeypatch.setattr(table.RecordTable, "parts", parts)
    y = np.digitize(data[1], [-0.4, 0.4])
    for name in ("averaged shuffle", "replacement", "output"):
        orders.clear()
        classifier(classes=[0, 1, 2], noise=None, **SCHEMES[name]).fit(data[0], y)
        count = len(orders) // 3
        for k in (1, 2):
            for one, two in zip(orders[:count], orders[k * count :], strict=False):
                np.testing.assert_array_equal(one, two)


# --- classes --------------------------------------------------------------------------------------


def test_several_classes_are_one_release_of_root_k(data):
    X, y = data[0], np.digitize(data[1], [-0.4, 0.4])
    options = {**OUTPUT, "alpha": 0.1, "max_iter": 2}
    two = classifier(**options).fit(X, labels(data[1]))
    three = classifier(classes=["a", "b", "c"], **options).fit(X, np.array(list("abc"))[y])
    assert two.decision_function(X).shape == (N,) and two.coef_.ndim == 1
    assert three.decision_function(X).shape == (N, 3) and three.coef_.shape[1] == 3
    assert three.intercept_.shape == (3,) and set(three.predict(X)) <= set("abc")
    for model in (two, three):
        assert [release.draws for release in model.certificate_.releases] == [1]
    moved = [m.certificate_.public["scheme"]["sensitivity"] for m in (two, three)]
    assert moved[1] == pytest.approx(math.sqrt(3) * moved[0], rel=1e-9)
    both = [classifier(max_iter=3, loss="log_loss").fit(X, labels(data[1]))]
    both += [classifier(max_iter=3, loss="log_loss", classes=[0, 1, 2]).fit(X, y)]
    clips = [m.certificate_.public["scheme"]["clip"] for m in both]
    assert clips[1] == pytest.approx(math.sqrt(3) * clips[0])  # of all problems together


def test_probabilities_are_those_of_the_logistic_loss(data, tmp_path):
    X, y = data[0], np.digitize(data[1], [-0.4, 0.4])
    for loss in ("log_loss", Logistic()):
        model = classifier(loss=loss, **OUTPUT).fit(X, labels(data[1]))
        wanted = 1 / (1 + np.exp(-model.decision_function(X)))
        np.testing.assert_allclose(model.predict_proba(X), np.column_stack([1 - wanted, wanted]))
    again = load(save(model, tmp_path / "model.npz"))
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scores far below 0 for every class divide nothing by 0
        drowned = classifier(loss="log_loss", classes=[0, 1, 2], epsilon=1e-7).fit(X, y)
        drowned.intercept_ = drowned.intercept_ - 1e5
        found = drowned.predict_proba(X)
    np.testing.assert_allclose(found.sum(axis=1), 1.0)
    assert np.array_equal(drowned.classes_[found.argmax(axis=1)], drowned.predict(X))
    hinge = classifier(loss="hinge").fit(X, labels(data[1]))
    assert not hasattr(hinge, "predict_proba")
    with pytest.raises(AttributeError) as caught:
        hinge.predict_proba(X)
    assert "log_loss" in str(caught.value.__cause__)


# --- progress and learning ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["short batches", "gradient in a ball", "averaged shuffle"])
def test_the_bar_shows_public_counts_only(data, name):
    X, y = data
    texts = []
    for target in (y, np.zeros(N), -y):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            model = regressor(verbose=True, noise=None, **SCHEMES[name]).fit(X, target)
        texts.append(re.sub(r"\d+:\d\d:\d\d|-:--:--", "", shown.getvalue()))
    steps = model.certificate_.public["scheme"]["steps"]
    assert f"{steps}/{steps}" in texts[0]
    assert set(re.findall(r"\d+/(\d+)", texts[0])) == {str(steps)}
    assert texts[0] == texts[1] == texts[2]


def test_it_learns(rng):
    X = rng.uniform(-1, 1, (2000, 2))
    y = np.sin(3 * X[:, 0])
    for options in ({}, OUTPUT):
        given = {"epsilon": 4.0, "n_features": 40, **options}
        assert regressor(**given).fit(X, y).score(X, y) > 0.7
        assert classifier(**given).fit(X, labels(y)).score(X, labels(y)) > 0.85


def test_the_bound_on_growth_is_never_cut_off():
    """An iterate beyond a bound that was cut off would be a leak: such a step is refused."""
    for q in (1.01, 1.5, 1.9, 1.999, 1.9999999):
        common = (PowerAbsolute(q), 10, 3, 1.0, 1.0, 1, 1000, "fixed")
        largest = OutputSGD(*common, step=1e-3).largest_step
        plan = OutputSGD(*common, step=largest)
        alpha, L = plan.loss.holder(1.0)
        power = 2 / (1 - alpha) * math.log(L * plan.eta)
        assert power <= 100.0 * (1 + 1e-9)
        growth = (1 - alpha) / (1 + alpha) * math.exp(power)
        assert plan.norm_bound >= math.sqrt(999 * growth)
        with pytest.raises(ParameterError, match="up to which the proof holds"):
            OutputSGD(*common, step=largest * 1.001)


def test_noise_is_never_public(data):
    assert issubclass(Spy, NoiseSource)
    for options in (OUTPUT, {}):
        models = [regressor(noise=None, random_state=5, **options).fit(*data) for _ in range(2)]
        assert models[0].certificate_.private
        assert not np.array_equal(models[0].coef_, models[1].coef_)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_error_of_a_plan_does_not_depend_on_the_other_plans(momentum):
    """All lengths of a step are tried at once; each has the bits that it has alone."""
    setting = SGDSetting(
        "test",
        Budget(1.0, 1e-6),
        Neighbours.REPLACE_ONE,
        50,
        np.array([0.5, 0.3, 0.2]),
        1.0,
        Huber(),
    )
    counts, spreads, steps = (1, 7, 300), (0.1, 0.2, 0.9), np.array([0.01, 0.5, 1.9, 80.0])
    whole = _gradient_errors(setting, counts, spreads, steps, 0.1, momentum)
    for step, row in zip(steps, whole, strict=True):
        alone = _gradient_errors(setting, counts, spreads, np.array([step]), 0.1, momentum)
        np.testing.assert_array_equal(alone[0], row)
    assert np.argmin(whole[:, 1]) in (1, 2) and not np.any(np.isnan(whole))
