"""Private quantiles and Huber regression: limits, coverage, crossing, units, and what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.metrics import d2_pinball_score, r2_score

from dpkernel import (
    BlockStream,
    Budget,
    Certificate,
    Domain,
    Interval,
    Ledger,
    PrivateKernelClassifier,
    PrivateQuantileRegressor,
    SeededNoise,
    load,
    save,
)
from dpkernel.estimators.records import ROW_BOUND, RecordRecipe
from dpkernel.foundations.errors import AssumptionError, DataError, ParameterError
from dpkernel.methods import PrivateHuberRegressor
from dpkernel.models.losses import REGISTRY, Huber, SmoothedPinball

HUGE = 1e4  # an epsilon at which the noise is far below the data
PURE = ("idealised-arithmetic",)
BOTH = pytest.mark.parametrize("build", [PrivateQuantileRegressor, PrivateHuberRegressor])
COMMON = {"bounds": (-1, 1), "y_bounds": (-3, 3), "n_features": 16}


@pytest.fixture
def table(rng):
    X = rng.uniform(-1, 1, (600, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.standard_t(3, 600) * (1.2 + X[:, 1])


def quantiles(**options):
    return PrivateQuantileRegressor(**{**COMMON, "kernel": "gaussian", **options})


def huber(**options):
    return PrivateHuberRegressor(**{**COMMON, **options})


# --- limits ---------------------------------------------------------------------------------------


def direct(loss, z, omega, y, ridge):
    """Minimise the sum of weighted losses plus the ridge with another solver."""

    def objective(beta):
        scores = z @ beta
        value = float(omega @ loss.value(y, scores)) + ridge * float(beta @ beta) / 2
        return value, (omega * loss.derivative(y, scores)) @ z + ridge * beta

    start = np.zeros(z.shape[1])
    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-9}
    return minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x


@pytest.mark.parametrize("features", ["eigen", "fourier"])
@pytest.mark.parametrize(
    ("model", "loss"),
    [
        (quantiles(quantile=0.3, width=0.9), SmoothedPinball(0.3, 0.3)),
        (huber(threshold=0.6), Huber(0.2)),
    ],
    ids=["quantile", "huber"],
)
def test_large_epsilon_equals_a_direct_minimisation(rng, model, loss, features):
    X = rng.uniform(-1, 1, (3000, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_t(3, 3000) * (1.2 + X[:, 1])
    ridge = 20.0
    options = {"epsilon": HUGE, "regularisation": ridge, "noise": SeededNoise(0)}
    model = model.__class__(**{**model.get_params(), **options, "features": features}).fit(X, y)
    recipe, _ = RecordRecipe.choose(model._domain, model.feature_map_, len(X), ROW_BOUND)
    z, omega = recipe.rows(X)
    assert omega.min() < 1  # long rows count less
    wanted = 3 * z @ direct(loss, z, omega, np.clip(y / 3, -1, 1), ridge)
    np.testing.assert_allclose(model.predict(X), np.clip(wanted, -3, 3), rtol=0, atol=5e-3)


def test_a_threshold_beyond_all_residuals_is_ridge(rng):
    """Half the squared loss then: the closed form is known."""
    X = rng.uniform(-1, 1, (3000, 2))
    y = X @ [1.0, -0.5]
    model = huber(epsilon=HUGE, kernel="linear", threshold=12.0, regularisation=400.0).fit(X, y)
    recipe, _ = RecordRecipe.choose(model._domain, model.feature_map_, len(X), ROW_BOUND)
    z, omega = recipe.rows(X)
    beta = np.linalg.solve(z.T @ (z * omega[:, None]) + 400 * np.eye(3), z.T @ (omega * y / 3))
    np.testing.assert_allclose(model.predict(X), 3 * z @ beta, rtol=0, atol=5e-3)


def test_outliers_move_huber_less_than_their_share(rng):
    X = rng.uniform(-1, 1, (4000, 2))
    clean = X @ [1.0, 0.5]
    y = np.where(np.arange(4000) % 10 == 0, 30.0, clean)
    options = {"epsilon": 100.0, "y_bounds": (-30, 30), "regularisation": 1.0, "kernel": "linear"}
    robust = huber(threshold=0.5, **options).fit(X, y)
    loose = huber(threshold=100.0, **options).fit(X, y)
    errors = [np.abs(model.predict(X) - clean).mean() for model in (robust, loose)]
    assert errors[0] < 0.15 and errors[1] > 1.0


# --- quantiles ------------------------------------------------------------------------------------


def test_an_eighty_percent_interval_covers_eighty_percent(seed):
    """Heteroscedastic noise; coverage on new rows, overall and in each third of the inputs."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (30_000, 1))
    spread = 0.2 + 0.15 * (1 + X[:, 0])
    y = np.sin(2 * X[:, 0]) + spread * rng.normal(size=30_000)
    model = quantiles(epsilon=20.0, quantile=[0.1, 0.9], width=0.1, noise=SeededNoise(seed))
    low, high = model.fit(X[:20_000], y[:20_000]).predict(X[20_000:]).T
    inside = (low <= y[20_000:]) & (y[20_000:] <= high)
    assert abs(inside.mean() - 0.8) < 0.02
    thirds = np.digitize(X[20_000:, 0], [-1 / 3, 1 / 3])
    assert all(abs(inside[thirds == k].mean() - 0.8) < 0.05 for k in range(3))
    wide = high - low
    assert wide[thirds == 2].mean() > 1.5 * wide[thirds == 0].mean()


def test_each_quantile_has_its_share_below(table):
    X, y = table
    wanted = [0.05, 0.25, 0.5, 0.75, 0.95]
    found = quantiles(epsilon=HUGE, quantile=wanted, width=0.1, regularisation=1.0).fit(X, y)
    below = np.mean(y[:, None] <= found.predict(X), axis=0)
    assert np.abs(below - wanted).max() < 0.04


@pytest.mark.parametrize("epsilon", [0.01, 1.0])
def test_quantiles_never_cross_and_stay_in_bounds(table, epsilon):
    X, y = table
    model = quantiles(epsilon=epsilon, quantile=np.array([0.1, 0.5, 0.6, 0.9])).fit(X, y)
    found = model.predict(3 * X)
    assert found.shape == (600, 4) and model.coef_.shape == (16, 4)
    assert np.all(np.diff(found, axis=1) >= 0) and np.all(np.abs(found) <= 3)


def test_one_quantile_is_a_vector(table):
    X, y = table
    for quantile in (0.5, np.float64(0.5), np.array(0.5)):
        model = quantiles(quantile=quantile).fit(X, y)
        assert model.predict(X).shape == (600,) and isinstance(model.intercept_, float)
    assert quantiles(quantile=[0.5]).fit(X, y).predict(X).shape == (600, 1)


def test_all_quantiles_are_one_spend(table):
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    model = quantiles(quantile=[0.1, 0.1000001, 0.9], ledger=ledger).fit(*table)
    assert len(ledger.spends) == 1
    labels = [release.label for release in model.certificate_.releases]
    assert labels == ["quantile 0.1", "quantile 0.1000001", "quantile 0.9"]
    assert 0.999 < model.certificate_.epsilon <= 1.0


def test_the_score_is_the_share_of_pinball_loss(table):
    X, y = table
    model = quantiles(epsilon=50.0, quantile=[0.2, 0.8]).fit(X, y)
    each = [d2_pinball_score(y, model.predict(X)[:, i], alpha=q) for i, q in enumerate((0.2, 0.8))]
    assert model.score(X, y) == pytest.approx(np.mean(each)) and model.score(X, y) > 0.2
    single = quantiles(epsilon=50.0, quantile=0.2).fit(X, y)
    assert single.score(X, y) == pytest.approx(d2_pinball_score(y, single.predict(X), alpha=0.2))
    other = huber(epsilon=50.0).fit(X, y)
    assert other.score(X, y) == pytest.approx(r2_score(y, other.predict(X)))


def test_predictions_follow_the_fit_and_not_later_parameters(table):
    X, y = table
    model = quantiles(quantile=[0.2, 0.8]).fit(X, y)
    before = model.predict(X)
    np.testing.assert_array_equal(model.set_params(quantile=0.5).predict(X), before)


@pytest.mark.parametrize("quantile", [0.25, [0.25], [0.1, 0.9]])
def test_files_remember_the_quantiles(table, tmp_path, quantile):
    X, y = table
    model = quantiles(quantile=quantile, width=0.3).fit(X, y)
    again = load(save(model, tmp_path / "m.npz"))
    assert again.quantile == quantile and again.width == pytest.approx(0.3)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.fit(X, y).predict(X).shape == model.predict(X).shape


# --- units and domains ----------------------------------------------------------------------------


@BOTH
def test_units_of_y_do_not_matter(table, build):
    X, y = table
    name = "width" if build is PrivateQuantileRegressor else "threshold"
    options = {**COMMON, "kernel": "gaussian", "noise": SeededNoise(0)}
    plain = build(**{**options, name: 0.5}).fit(X, y).predict(X)
    scaled = build(**{**options, name: 50.0, "y_bounds": (700, 1300)}).fit(X, 100 * y + 1000)
    np.testing.assert_allclose(scaled.predict(X), 100 * plain + 1000, rtol=1e-9)
    auto = build(**options).fit(X, y)
    tenth = build(**{**options, name: 0.6}).fit(X, y)
    np.testing.assert_array_equal(auto.coef_, tenth.coef_)


@BOTH
def test_targets_outside_the_bounds_are_clipped(table, build):
    X, y = table
    wild, tame = y.copy(), y.copy()
    wild[:3], tame[:3] = (1e300, -1e300, 3.5), (3.0, -3.0, 3.0)
    models = [build(**COMMON, noise=SeededNoise(0)).fit(X, values) for values in (wild, tame)]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


@BOTH
def test_a_domain_speaks_for_the_target(table, build):
    X, y = table
    domain = Domain((Interval(-1, 1), Interval(-1, 1)), Interval(-3, 3), n_max=600)
    model = build(bounds=domain, n_features=16, noise=SeededNoise(0)).fit(X, y)
    other = build(**COMMON, noise=SeededNoise(0)).fit(X, y)
    np.testing.assert_array_equal(model.coef_, other.coef_)
    with pytest.raises(DataError, match="n_max=600"):
        build(bounds=domain).fit(np.tile(X, (2, 1)), np.tile(y, 2))
    with pytest.raises(ParameterError, match="needs 'y_bounds'"):
        build(bounds=(-1, 1)).fit(X, y)


# --- what is refused ------------------------------------------------------------------------------

BAD_QUANTILES = [0.0, 1.0, -0.1, 1.1, float("nan"), "0.5", None, True]
BAD_LISTS = [[], [0.5, 0.0], [0.9, 0.1], [0.1, 0.1], [0.1, float("nan")], [[0.1, 0.9]], ["a"]]


@pytest.mark.parametrize("quantile", BAD_QUANTILES + BAD_LISTS, ids=str)
def test_bad_quantiles_spend_nothing(table, quantile):
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    with pytest.raises(ParameterError, match="'quantile' parameter of PrivateQuantileRegressor"):
        quantiles(quantile=quantile, ledger=ledger).fit(*table)
    assert ledger.spends == []


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "wide", 1e-9, 1e9, None])
@BOTH
def test_bad_lengths_spend_nothing(table, build, value):
    name = "width" if build is PrivateQuantileRegressor else "threshold"
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    with pytest.raises(ParameterError, match=f"'{name}' parameter of {build.__name__}"):
        build(**{**COMMON, name: value}, ledger=ledger).fit(*table)
    assert ledger.spends == []


BAD_FITS = {
    "no y": ({}, lambda X, y: (X, None), "requires y to be passed"),
    "text": ({}, lambda X, y: (X, np.where(y > 0, "secret", "b")), "not a number"),
    "ridge": ({"regularisation": 1e-6}, None, "'regularisation' parameter.*for this epsilon"),
    "neighbours": ({"neighbours": "add-remove"}, None, "must be AddRemove"),
    "accept": ({"accept": 3}, None, "'accept' parameter"),
}


@BOTH
@pytest.mark.parametrize("case", BAD_FITS)
def test_bad_fits_spend_nothing(table, build, case):
    options, change, message = BAD_FITS[case]
    X, y = change(*table) if change else table
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    with pytest.raises((DataError, ParameterError), match=message) as error:
        build(**{**COMMON, **options}, ledger=ledger).fit(X, y)
    assert "secret" not in str(error.value)
    assert ledger.spends == []


@BOTH
def test_a_single_column_is_one_of_several_targets(table, build):
    X, y = table
    reference = build(**COMMON, noise=SeededNoise(0)).fit(X, y)
    stream = BlockStream([(X, y[:, None])], 600)
    for given in ((X, y[:, None]), (stream, None)):
        model = build(**COMMON, noise=SeededNoise(0)).fit(*given)
        np.testing.assert_array_equal(model.coef_, reference.coef_[:, None])
        assert model.predict(X[:3]).shape == (3, 1)


def test_several_quantiles_are_those_of_one_target(table):
    X, y = table
    two, ledger = np.stack([y, y], axis=1), Ledger()
    model = PrivateQuantileRegressor(**COMMON, quantile=[0.1, 0.9], ledger=ledger)
    with pytest.raises(DataError, match="Several quantiles are those of one target"):
        model.fit(X, two)
    with pytest.raises(DataError, match="takes one target"):
        model.fit(BlockStream([(X, two)], 600))
    assert ledger.spends == []


@BOTH
@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
def test_pure_epsilon_is_signed_for(table, build, neighbours):
    ledger = Ledger(budget=Budget(5.0), neighbours=neighbours)
    options = {**COMMON, "epsilon": 5.0, "delta": 0.0, "ledger": ledger, "neighbours": neighbours}
    with pytest.raises(AssumptionError, match="idealised-arithmetic"):
        build(**options).fit(*table)
    assert ledger.spends == []
    certificate = build(**options, accept=PURE).fit(*table).certificate_
    assert certificate.delta == 0 and 0.999 * 5 < certificate.epsilon <= 5.0
    assert Certificate.from_json(certificate.to_json()).verify().epsilon <= 5.0


def test_progress_counts_problems(table, capsys):
    quantiles(quantile=[0.1, 0.9], verbose=True).fit(*table)
    assert capsys.readouterr().out.split("\n")[:2] == [
        "solved problem 1 of 2",
        "solved problem 2 of 2",
    ]


# --- other losses -----------------------------------------------------------------------------------

BOUNDED = sorted(k for k, cls in REGISTRY.items() if cls().lipschitz < math.inf)
WITH_SLOPE = [pytest.param(k, s, id=f"{k}, {s}") for k in BOUNDED for s in ("objective", "output")]


@pytest.mark.parametrize(("kind", "solver"), WITH_SLOPE)
def test_every_loss_of_bounded_slope_by_its_kind(table, kind, solver, tmp_path):
    """Of residuals and of margins: the certified slope is that of the loss, and the model learns."""
    X, y = table
    labels = REGISTRY[kind].labels
    options = {"loss": kind, "solver": solver, "epsilon": 50.0, "bounds": (-1, 1)}
    if labels:
        model, y = (
            PrivateKernelClassifier(**options, classes=[0, 1]),
            (y > np.median(y)).astype(int),
        )
    else:
        model = PrivateHuberRegressor(**options, y_bounds=(-3, 3))
    certificate = model.fit(X, y).certificate_
    certificate.verify()
    assert certificate.valid
    stated = [dict(release.mechanism.sensitivity.parameters) for release in certificate.releases]
    slopes = [parameters["slope"] for parameters in stated if "slope" in parameters]
    assert slopes == [0.2 if kind == "huber" else REGISTRY[kind]().lipschitz]
    again = load(save(model, tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    right = model.predict(X) if labels else model.predict(X) > np.median(y)
    assert np.mean(right == (y if labels else y > np.median(y))) > 0.7


@dataclass(frozen=True)
class Shortfall(Huber):
    """A loss of a user, with its own constants."""

    kind = "shortfall"


def test_a_loss_of_ones_own_must_be_registered(table, monkeypatch):
    with pytest.raises(ParameterError, match="'loss' parameter of PrivateHuberRegressor"):
        PrivateHuberRegressor(loss=Shortfall(0.5), y_bounds=(-3, 3)).fit(*table)
    monkeypatch.setitem(REGISTRY, "shortfall", Shortfall)
    model = PrivateHuberRegressor(loss=Shortfall(0.5), y_bounds=(-3, 3)).fit(*table)
    assert model.certificate_.public["losses"] == [{"kind": "shortfall", "threshold": 0.5}]
    assert dict(model.certificate_.releases[0].mechanism.sensitivity.parameters)["slope"] == 0.5


@pytest.mark.parametrize("loss", ["squared", "power_absolute", "logistic", 3])
def test_losses_without_a_largest_slope_or_of_margins_are_refused(table, loss):
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    with pytest.raises(ParameterError, match="'loss' parameter of PrivateHuberRegressor"):
        PrivateHuberRegressor(loss=loss, y_bounds=(-3, 3), ledger=ledger).fit(*table)
    assert ledger.spends == []
