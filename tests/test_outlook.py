"""The planner: which error to expect, from fits to made-up rows."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

from dpkernel import (
    Domain,
    Interval,
    Levels,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
)
from dpkernel.cli import app
from dpkernel.estimators.outlook import MOST_ROWS, Outlook
from dpkernel.foundations.errors import ParameterError
from dpkernel.privacy.profiles import gaussian_mu

MODELS = {
    "regression": PrivateKernelRegressor(n_features=30),
    "classification": PrivateKernelClassifier(n_features=30),
    "quantile": PrivateQuantileRegressor(quantile=(0.1, 0.9), n_features=30),
}


def ridge(epsilon: float = 1.0, **options: object) -> PrivateKernelRidge:
    return PrivateKernelRidge(epsilon, n_features=20, **options)


class TestOneNumber:
    def test_python_and_the_command_line_agree_to_the_last_digit(self):
        line = "plan --columns 3 --rows 300 --epsilon 5 --effect 0.7 --repetitions 2 --json"
        told = json.loads(CliRunner().invoke(app, line.split()).stdout)
        (row,) = told["expected"]
        found = PrivateKernelRegressor(5.0).plan(300, 3, effect=0.7, repetitions=2)
        assert row["relative_error"] == found.relative_error and row["spread"] == found.spread
        assert told["assumption"] == found.assumption and told["best"] == found.best

    def test_it_is_the_same_at_every_call_and_warns_of_nothing(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert ridge().plan(300, 3) == ridge().plan(300, 3)

    def test_units_do_not_matter(self):
        bounded = ridge(bounds=(0, 100), y_bounds=(5, 6))
        assert bounded.plan(300, 3).relative_error == pytest.approx(
            ridge().plan(300, 3).relative_error, rel=1e-6
        )

    def test_levels_count_as_inputs(self):
        domain = Domain((Interval(0, 1), Levels(("a", "b", "c"))), target=Interval(0, 1))
        assert ridge(bounds=domain).plan(300, 2) == ridge(y_bounds=(0, 1)).plan(300, 4)
        assert ridge(bounds=domain).plan(300) == ridge(bounds=domain).plan(300, 2)


class TestAssumption:
    def test_a_model_with_ample_data_and_budget_reaches_the_best(self):
        effect = 0.8
        best = {
            "regression": 1 - effect,
            "classification": 2 * np.arccos(np.sqrt(effect)) / np.pi,
            "quantile": np.sqrt(1 - effect),
        }
        for task, model in MODELS.items():
            found = model.plan(100, 2, effect=effect)
            assert found.best == pytest.approx(best[task], abs=0.06), task
            ample = model.set_params(epsilon=1e4).plan(1500, 1, effect=effect, repetitions=1)
            assert ample.best - 0.02 < ample.relative_error < ample.best + 0.12, task

    def test_the_error_falls_with_rows_and_epsilon_and_effect(self):
        def error(epsilon: float = 1.0, n: int = 1000, **options: float) -> float:
            return ridge(epsilon).plan(n, 3, **options).relative_error

        assert error(0.1) > error(1.0) > error(10.0)
        assert error(n=300) > error(n=3000) > error(n=300_000)
        assert error(effect=0.3) > error(effect=0.6) > error(effect=0.9)

    def test_many_rows_are_stood_in_for_by_a_larger_budget(self):
        large = ridge(0.5).plan(20 * MOST_ROWS, 3)
        mu = 20 * gaussian_mu(0.5, 1e-6)
        small = min(
            (ridge(epsilon) for epsilon in np.geomspace(1, 100, 200)),
            key=lambda model: abs(gaussian_mu(model.epsilon, 1e-6) - mu),
        ).plan(MOST_ROWS, 3)
        assert large.relative_error == pytest.approx(small.relative_error, abs=0.01)
        assert large.n_rows == 20 * MOST_ROWS and large.epsilon == 0.5

    def test_it_says_what_it_assumes(self):
        found = ridge().plan(300, 3, effect=0.7)
        assert isinstance(found, Outlook) and "70%" in found.assumption
        for text in (str(found), found._repr_html_()):
            assert found.assumption in text and f"{found.relative_error:.2f}" in text


class TestRegressor:
    def test_the_budget_plan_is_the_one_of_a_fit(self, rng):
        for n, epsilon in ((60, 0.3), (200, 1.0)):
            model = PrivateKernelRegressor(epsilon, bounds=(-1, 1), y_bounds=(-1, 1))
            expected = model.plan(n, 2, repetitions=1)
            X = rng.uniform(-1, 1, (n, 2))
            assert model.fit(X, X[:, 0]).budget_plan_ == expected.budget_plan
            stages = [] if expected.budget_plan is None else expected.budget_plan.stages
            assert expected.n_stages == len(stages)

    def test_two_targets_share_the_budget(self):
        model = PrivateKernelRegressor(1.0, n_features=30)
        one, two = (model.plan(1000, 3, n_targets=k).relative_error for k in (1, 2))
        assert one < two


class TestRefusals:
    @pytest.mark.parametrize("sizes", [(0, 3), (10, 0), (10.5, 3), (10, 3, 0), (True, 3)])
    def test_bad_sizes(self, sizes):
        with pytest.raises(ParameterError, match="must be an int >= 1"):
            ridge().plan(*sizes)

    @pytest.mark.parametrize("effect", [0, 1, -0.1, float("nan"), "half"])
    def test_bad_effects(self, effect):
        with pytest.raises(ParameterError, match="'effect' parameter"):
            ridge().plan(100, 3, effect=effect)

    def test_on_the_command_line(self):
        result = CliRunner().invoke(app, ["plan", "--effect", "2"])
        assert result.exit_code == 1 and "--effect must be between 0 and 1" in result.stderr


@pytest.mark.parametrize("task", ["regression", "classification", "quantile"])
def test_explain_budget_adds_up(rng, task, tmp_path):
    X = rng.uniform(-1, 1, (200, 2))
    y = (X[:, 0] > 0).astype(int) if task == "classification" else X[:, 0]
    declared = {"classes": [0, 1]} if task == "classification" else {"y_bounds": (-1, 1)}
    model = MODELS[task].set_params(epsilon=1.0, bounds=(-1, 1), **declared).fit(X, y)
    rows = model.explain_budget(tmp_path / "shares.png")
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert [row["release"] for row in rows] == [r.title for r in model.certificate_.releases]
    assert all(0 < row["epsilon_alone"] <= 1 for row in rows)
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")
