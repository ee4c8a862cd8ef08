"""How large the errors of a regressor are: quantiles with intervals, and prediction intervals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dpkernel import PrivateKernelRegressor, SeededNoise, load, save
from dpkernel.cli import app
from dpkernel.estimators.regressor.scale import ErrorLaw, edges_of
from dpkernel.foundations.errors import CertificateError, ParameterError

N = 4000
LAWS = {
    "normal": lambda rng: rng.normal(size=N),
    "heavy tails": lambda rng: rng.standard_t(2, size=N),
    "many zeros": lambda rng: np.where(rng.random(N) < 0.6, 0.0, rng.exponential(size=N)),
}


def counts_of(errors, edges):
    return np.histogram(np.abs(errors), [0.0, *edges, np.inf])[0].astype(float)


@pytest.mark.parametrize("law", LAWS)
def test_an_interval_holds_the_quantile_of_the_rows(rng, law):
    """At least 95 % of 300 releases: fewer than 270 have a chance below 1e-4."""
    errors, edges = np.abs(0.1 * LAWS[law](rng)), edges_of(0.2, 3.0)
    counts, noise = counts_of(errors, edges), 40.0
    for level in (0.5, 0.9, 0.95):
        exact, held = np.quantile(np.minimum(errors, 2.0), level), 0
        for _ in range(300):
            noisy = counts + noise * rng.normal(size=len(counts))
            value, low, high = ErrorLaw.of_counts(noisy, edges, N, noise).quantile(level)
            assert low <= value <= high
            held += low <= exact <= high
        assert held >= 270, level


def test_without_noise_the_interval_is_one_cell(rng):
    errors, edges = np.abs(0.1 * rng.normal(size=N)), edges_of(0.2, 3.0)
    law = ErrorLaw.of_counts(counts_of(errors, edges), edges, N, 1e-9)
    for level in (0.2, 0.5, 0.9):
        value, low, high = law.quantile(level)
        assert low <= np.quantile(errors, level) <= high and high <= 1.3 * low
        assert value == pytest.approx(np.quantile(errors, level), rel=0.1)


def test_what_noise_hides_is_not_told():
    edges = edges_of(0.2, 3.0)
    counts = np.full(len(edges) + 1, N / (len(edges) + 1))
    assert ErrorLaw.of_counts(counts, edges, N, 10.0).informative
    assert not ErrorLaw.of_counts(counts, edges, N, 1000.0).informative
    assert ErrorLaw.of_counts(counts, edges, N, 1e6).quantile(0.9)[1:] == (0.0, 2.0)


def test_it_is_written_and_read():
    edges = edges_of(0.2, 3.0)
    law = ErrorLaw.of_counts(np.full(25, 40.0), edges, 1000, 5.0).scaled(30.0)
    again = ErrorLaw.from_dict(json.loads(json.dumps(law.to_dict())))
    assert again == law and law.largest == 60.0
    for broken in (
        {},
        {**law.to_dict(), "edges": []},
        {**law.to_dict(), "below": [0.5]},
        {**law.to_dict(), "largest": "60"},
        {**law.to_dict(), "edges": [1.0] * 24},
        {**law.to_dict(), "noise": [float("nan")] * 24},
    ):
        with pytest.raises(CertificateError, match="can't be read"):
            ErrorLaw.from_dict(broken)


def heavy(rng, n):
    X = rng.uniform(-1, 1, (n, 2))
    return X, np.clip(10 * np.sin(3 * X[:, 0]) + 2 * rng.standard_t(2, size=n), -100, 100)


@pytest.fixture(scope="module")
def model():
    X, y = heavy(np.random.default_rng(1), 6000)
    given = {"bounds": (-1, 1), "y_bounds": (-100, 100), "n_features": 60}
    return PrivateKernelRegressor(3.0, noise=SeededNoise(0), **given).fit(X, y)


class TestPredictionIntervals:
    @pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
    def test_they_cover_what_they_say_for_heavy_tails(self, model, coverage):
        X, y = heavy(np.random.default_rng(2), 6000)
        ends = model.predict_interval(X, coverage)
        inside = np.mean((ends[:, 0] <= y) & (y <= ends[:, 1]))
        assert coverage - 0.02 < inside < coverage + 0.15
        assert ends.shape == (6000, 2) and ends.min() >= -100 and ends.max() <= 100

    def test_a_file_keeps_them(self, model, tmp_path):
        X, _ = heavy(np.random.default_rng(3), 20)
        again = load(save(model, tmp_path / "m.dpk"))
        np.testing.assert_array_equal(again.predict_interval(X), model.predict_interval(X))

    def test_several_targets_have_one_each(self, rng):
        X, y = heavy(rng, 3000)
        given = {"bounds": (-1, 1), "y_bounds": (-100, 100), "n_features": 30}
        both = PrivateKernelRegressor(9.0, **given).fit(X, np.column_stack([y, -y]))
        assert both.predict_interval(X[:5]).shape == (5, 2, 2)

    @pytest.mark.parametrize("coverage", [0, 1, float("nan"), "most"])
    def test_a_bad_coverage_is_refused(self, model, coverage):
        with pytest.raises(ParameterError, match="'coverage' parameter"):
            model.predict_interval([[0.0, 0.0]], coverage)

    def test_a_model_that_knows_nothing_about_its_errors_says_so(self, rng):
        X, y = heavy(rng, 60)
        poor = PrivateKernelRegressor(0.3, bounds=(-1, 1), y_bounds=(-100, 100)).fit(X, y)
        with pytest.raises(ParameterError, match="does not know how large its errors are"):
            poor.predict_interval(X)

    def test_the_command_line_writes_them(self, model, tmp_path):
        X, _ = heavy(np.random.default_rng(3), 3)
        named = load(save(model, tmp_path / "unnamed.dpk"))
        named.feature_names_in_ = np.array(["X0", "X1"], dtype=object)
        file = save(named, tmp_path / "m.dpk")
        np.savez(tmp_path / "new.npz", X=X)
        line = ["predict", str(file), str(tmp_path / "new.npz"), "--interval", "0.8", "--json"]
        told = json.loads(CliRunner().invoke(app, line).stdout)
        assert told["columns"] == ["prediction", "low", "high"]
        found = np.array(told["predictions"])
        np.testing.assert_allclose(found[:, 1:], model.predict_interval(X, 0.8))
        both = CliRunner().invoke(app, [*line, "--deviations"])
        assert both.exit_code == 1 and "Choose one of" in both.stdout


def test_intervals_hold_for_skewed_targets_whose_last_shift_is_large():
    draws = np.random.default_rng(0)
    held = []
    for seed in range(4):
        X = draws.uniform(-1, 1, (3000, 1))
        y = 0.2 * np.sin(3 * X[:, 0]) + 0.3 * draws.exponential(size=3000)
        model = PrivateKernelRegressor(
            5.0, 1e-6, bounds=(-1, 1), y_bounds=(-1, 4), noise=SeededNoise(seed)
        ).fit(X, y)
        law = ErrorLaw.from_dict(model.certificate_.free_statistics["errors"][0])
        assert law.moved > 0
        exact = np.quantile(np.abs(y - model.predict(X)), [0.5, 0.9])
        for wanted, level in zip(exact, (0.5, 0.9), strict=True):
            _, low, high = law.quantile(level)
            held.append(low <= wanted <= high)
    assert sum(held) >= len(held) - 1
