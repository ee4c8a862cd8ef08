"""Quantiles as a centre and a spread: what is released, what comes out, and where the plan ends."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from dpkernel import BlockStream, Budget, Ledger, PrivateQuantileRegressor, load, save
from dpkernel.estimators.regressor import location
from dpkernel.privacy.noise import SeededNoise

COMMON = {"epsilon": 3.0, "delta": 1e-6, "bounds": (-1, 1), "y_bounds": (-3, 3)}


def table(n: int, seed: int = 0, columns: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Return rows whose residuals are four times wider on one side than on the other."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, columns))
    return X, np.sin(2 * X[:, 0]) + rng.normal(size=n) * np.where(X[:, 0] > 0, 0.4, 0.1)


def fitted(n: int, **options: object) -> PrivateQuantileRegressor:
    given = {**COMMON, "quantile": [0.1, 0.5, 0.9], "noise": SeededNoise(0), **options}
    return PrivateQuantileRegressor(**given).fit(*table(n))


def test_quantiles_cover_what_they_say_where_the_spread_changes():
    model = fitted(8000, epsilon=5.0)
    X, y = table(20_000, seed=1)
    for side in (X[:, 0] > 0.2, X[:, 0] < -0.2):
        below = np.mean(y[side, None] < model.predict(X[side]), axis=0)
        np.testing.assert_allclose(below, [0.1, 0.5, 0.9], atol=0.06)
    wide = np.diff(model.predict([[0.6, 0.0], [-0.6, 0.0]])[:, [0, 2]])[:, 0]
    assert wide[0] > 2 * wide[1]  # four times, if nothing were shrunk


def test_all_releases_are_one_spend_and_the_certificate_keeps_to_the_request():
    ledger = Ledger(budget=Budget(3.0, 1e-6))
    model = fitted(3000, ledger=ledger)
    assert len(ledger.spends) == 1 and 2.9 < model.certificate_.epsilon <= 3.0
    labels = [release.label for release in model.certificate_.releases]
    assert labels[-2:] == ["spread", "location of residuals"] and "calibration" not in labels
    assert model.certificate_.public["quantiles"] == [0.1, 0.5, 0.9]


@pytest.mark.parametrize(
    ("n", "epsilon", "columns", "expected"),
    [
        (60, 0.1, 2, {"location"}),
        (600, 3.0, 2, {"inputs", "spread"}),
        (600, 3.0, 40, {"location", "stage 1", "spread"}),
        (3000, 3.0, 2, {"columns 1", "spread"}),
    ],
    ids=["constant", "mixture", "fixed", "learned"],
)
def test_the_plan_follows_from_public_sizes(n, epsilon, columns, expected):
    X, y = table(n, columns=columns)
    model = PrivateQuantileRegressor(**{**COMMON, "epsilon": epsilon}, quantile=0.9).fit(X, y)
    assert expected <= {release.label for release in model.certificate_.releases}
    assert model.predict(X).shape == (n,) and isinstance(model.intercept_, float)
    constant = "stage 1" not in {release.label for release in model.certificate_.releases}
    assert (np.ptp(model.predict(X)) == 0) == constant


def test_the_median_alone_needs_no_spread():
    model = fitted(3000, quantile=0.5)
    assert "spread" not in {release.label for release in model.certificate_.releases}


def test_constant_quantiles_are_those_of_a_histogram():
    rng = np.random.default_rng(0)
    y = rng.normal(0.5, 0.4, 30_000)
    X = np.zeros((len(y), 400))  # so many inputs hide every function
    given = {**COMMON, "epsilon": 0.02, "quantile": [0.1, 0.5, 0.9], "noise": SeededNoise(0)}
    model = PrivateQuantileRegressor(**given)
    found = model.fit(X, y).predict(X[:1])[0]
    assert {r.label for r in model.certificate_.releases} == {"location"}
    np.testing.assert_allclose(found, np.quantile(y, [0.1, 0.5, 0.9]), atol=0.15)


def test_with_much_noise_a_histogram_says_little():
    rng = np.random.default_rng(0)
    noisy = rng.normal(0, 500.0, location.CELLS)
    shares = location.expected_shape(noisy, 100, 500.0)
    assert shares.sum() == pytest.approx(1) and shares.max() < 0.2
    exact = 1e6 * location._shapes()[0][1000]
    found = location.expected_shape(exact, 10**6, 1.0)
    np.testing.assert_allclose(found, location._shapes()[0][1000], atol=1e-6)


def test_a_constant_target_and_extreme_quantiles_are_harmless():
    X, _ = table(2000)
    given = {**COMMON, "quantile": [0.001, 0.999], "noise": SeededNoise(0)}
    found = PrivateQuantileRegressor(**given).fit(X, np.full(2000, 1.0)).predict(X)
    assert np.isfinite(found).all() and np.abs(found - 1).mean() < 0.5
    assert np.all(np.diff(found, axis=1) >= 0)


ODD = {
    "10 rows": lambda X: X[:10],
    "constant columns": lambda X: np.full_like(X, 0.3),
    "equal columns": lambda X: np.repeat(X[:, :1], 3, axis=1),
    "one column": lambda X: X[:, :1],
    "two values": np.sign,
    "40 columns": lambda X: np.tile(X, 20)[:80],
    "one-hot columns": lambda X: np.eye(4)[(2 * X[:, 0] + 1.99).astype(int)],
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("epsilon", [1e-3, 1e6])
def test_odd_tables_give_finite_quantiles_in_order_and_no_warning(name, epsilon):
    X, y = table(200)
    X = ODD[name](X)
    given = {**COMMON, "epsilon": epsilon, "quantile": [0.1, 0.9], "noise": SeededNoise(0)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PrivateQuantileRegressor(**given, n_features=20).fit(X, y[: len(X)])
        found = model.predict(X)
    assert model.certificate_.verify().epsilon <= epsilon
    assert np.all(np.abs(found) <= 3) and np.all(found[:, 0] <= found[:, 1])


def test_a_stream_and_a_file_give_the_same_model(tmp_path):
    X, y = table(3000)
    model = fitted(3000)
    stream = BlockStream(
        lambda: ((X[i : i + 700], y[i : i + 700]) for i in range(0, 3000, 700)), 3000
    )
    given = {**COMMON, "quantile": [0.1, 0.5, 0.9], "noise": SeededNoise(0)}
    same = PrivateQuantileRegressor(**given).fit(stream)
    np.testing.assert_allclose(same.predict(X), model.predict(X), atol=1e-6)
    save(model, tmp_path / "q.dpk")
    again = load(tmp_path / "q.dpk")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.quantile == [0.1, 0.5, 0.9] and again.width == "auto"
    np.testing.assert_array_equal(again.relevance_, model.relevance_)


@pytest.mark.parametrize(
    "own", [{"kernel": "gaussian"}, {"width": 0.5}, {"length_scale": 1.0}, {"regularisation": 9.0}]
)
def test_a_choice_of_ones_own_minimises_the_pinball_loss(own):
    model = fitted(600, **own)
    labels = [release.label for release in model.certificate_.releases]
    assert labels == ["quantile 0.1", "quantile 0.5", "quantile 0.9"] and model.relevance_ is None
