"""PrivateKernelRegressor: what it learns, its plan, its limits and degenerate tables."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
from scipy.optimize import minimize

from dpkernel import Domain, Interval, Levels, PrivateKernelRegressor, SeededNoise, load, save
from dpkernel.data.weights import weight_column
from dpkernel.estimators.regressor import BudgetPlan, fitting, scale
from dpkernel.estimators.regressor.location import CELLS, fit_location
from dpkernel.estimators.regressor.releases import plan_releases
from dpkernel.estimators.regressor.scale import (
    _LARGEST,
    _half_normals,
    count_residuals,
    edges_of,
    fit_scale,
    scale_interval,
)
from dpkernel.estimators.regressor.stage import (
    STAGE_ROW_BOUND,
    Stage,
    first_state,
    stage_records,
    water_filling,
)
from dpkernel.foundations.errors import CertificateError, ParameterError
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.models.losses import Huber

PLAN = BudgetPlan(location=0.1, inputs=0.1, stages=(1.0, 1.2), scale=0.02, calibration=0.05)


def table(rng, n=500, d=2, noise=0.3):
    X = rng.uniform(-1, 1, (n, d))
    f = np.sin(2 * X[:, 0]) + 0.5 * X[:, -1] ** 2
    return X, f, np.clip(f + noise * rng.normal(size=n), -3, 3)


def regressor(epsilon=3.0, seed=1, **options):
    given = {"bounds": (-1, 1), "y_bounds": (-3, 3), "noise": SeededNoise(seed), **options}
    return PrivateKernelRegressor(epsilon, **given)


def labels(model):
    return [release.label for release in model.certificate_.releases]


class TestBudgetPlan:
    def test_a_mean_is_all_there_is_below_a_public_rule(self):
        assert BudgetPlan.choose(39.9, 1) is None and BudgetPlan.choose(40.0, 1) is not None
        assert BudgetPlan.choose(159.0, 100) is None and BudgetPlan.choose(160.0, 100) is not None

    @pytest.mark.parametrize(
        ("signal", "n_inputs", "stages", "inputs"),
        [
            *((99, 1, 1, False), (499, 1, 2, False), (500, 1, 2, True), (800, 1, 3, True)),
            *((4619, 20, 3, False), (4620, 20, 3, True)),  # 20 times 231 moments
        ],
    )
    def test_more_signal_buys_more_parts(self, signal, n_inputs, stages, inputs):
        plan = BudgetPlan.choose(float(signal), n_inputs)
        assert len(plan.stages) == stages and (plan.inputs > 0) == inputs
        assert (plan.scale > 0) == (stages > 1)

    def test_weights_add_up_to_one(self):
        for plan in (PLAN, BudgetPlan.choose(300.0, 4), BudgetPlan(0.5, 0.0, (7.0,), 0.0, 0.0)):
            assert math.fsum(plan.parts().values()) == pytest.approx(1.0)
            assert all(weight > 0 for weight in plan.parts().values())
        assert list(PLAN.parts()) == [
            *("location", "inputs", "stage 1", "scale 1", "stage 2", "scale 2", "calibration")
        ]
        stages = PLAN.filled().stages
        assert stages[1] / stages[0] == pytest.approx(1.2)

    def test_json(self):
        assert BudgetPlan(**json.loads(json.dumps(PLAN.to_dict()))) == PLAN

    @pytest.mark.parametrize(
        "bad",
        [
            {"location": 0.0},
            {"location": math.nan},
            {"inputs": -0.1},
            {"stages": ()},
            {"stages": (1.0,) * 9},
            {"stages": (1.0, 0.0)},
            {"stages": 3},
            {"scale": math.inf},
            {"calibration": "much"},
            {"determinant": 0.0},
            {"determinant": 0.95},
            {"clip": 0.0},
        ],
    )
    def test_bad_weights_are_refused(self, bad):
        with pytest.raises(ParameterError, match="'weights' parameter of BudgetPlan must be"):
            BudgetPlan(**{**PLAN.to_dict(), **bad})

    def test_parts_that_leave_nothing_to_the_stages_are_refused(self, rng):
        greedy = BudgetPlan(location=0.9, inputs=0.2, stages=(1.0,), scale=0.0, calibration=0.0)
        X, _, y = table(rng, 20)
        with pytest.raises(ParameterError, match="less than 1 without the stages"):
            regressor(budget_plan=greedy).fit(X, y)


class TestParts:
    def test_location_of_one_peak_and_of_two(self, rng):
        def found(y, noise):
            counts = np.histogram(y, CELLS, (-1, 1))[0] + noise * rng.normal(size=CELLS)
            return fit_location(counts, len(y), noise)

        narrow = 0.3 + 0.1 * rng.normal(size=2000)
        mean, spread = found(narrow, 5.0)
        assert abs(mean - 0.3) < 0.03 and 0.07 < spread < 0.14
        mean, spread = found(np.sign(rng.normal(size=2000)), 5.0)
        assert abs(mean) < 0.1 and 0.9 < spread <= 1.0
        mean, spread = found(np.repeat([-1.0, 1.0], [1800, 200]), 5.0)
        assert abs(mean + 0.8) < 0.1 and 0.5 < spread < 0.7
        for _ in range(20):  # noise alone is never taken for a second peak
            mean, spread = found(0.3 + 0.1 * rng.normal(size=100), 20.0)
            assert -1 <= mean <= 1 and 0.02 <= spread <= 1.2

    def test_scale_of_normal_residuals(self, rng):
        residuals = weight_column(0.2 * rng.normal(size=5000), False)
        edges = edges_of(0.5)
        (counts,) = count_residuals(np.zeros((5000, 0)), residuals, 0, np.zeros(1), edges)
        assert counts.sum() == 5000
        assert fit_scale(counts, 5000, 0.5) == pytest.approx(0.2, rel=0.05)

    @pytest.mark.parametrize("law", ["normal", "half of them near 0"])
    def test_interval_of_the_scale_holds_that_without_noise(self, rng, law):
        residuals = 0.5 * rng.normal(size=2000)
        if law != "normal":
            residuals[::2] /= 20
        edges, noise, held = edges_of(0.5), 60.0, 0
        counts = np.histogram(np.abs(residuals), [0.0, *edges, np.inf])[0].astype(float)
        exact = fit_scale(counts, 2000, 0.5)
        for _ in range(200):
            low, high = scale_interval(counts + noise * rng.normal(size=25), 2000, 0.5, noise)
            held += low <= exact <= high
        assert held >= 178  # 190 are promised; fewer than 178 have a chance below 1e-3
        assert scale_interval(counts, 2000, 0.5, 1e-6) == (exact, exact)

    def test_the_largest_of_the_normal_numbers_of_an_interval(self, rng):
        _, shapes = _half_normals(1.0)
        moved = rng.normal(size=(2000, shapes.shape[1])) @ shapes.T
        for s in range(0, 80, 6):
            others = np.arange(80) != s
            apart = np.linalg.norm(shapes - shapes[s], axis=1)[others]
            largest = ((moved - moved[:, [s]])[:, others] / apart).max(axis=1)
            assert np.mean(largest > _LARGEST) <= 0.065

    @pytest.mark.parametrize("shift", [0.0, 1e3, 1e17])
    def test_water_filling(self, rng, shift):
        levels = np.sort(rng.exponential(size=30)) + 0.0
        powers = water_filling(levels + shift)
        assert powers.sum() == pytest.approx(1.0) and np.all(powers >= 0)
        if shift < 1e9:
            used = powers > 0
            tops = (levels + powers)[used]
            assert np.ptp(tops) < 1e-9 and np.all(levels[~used] >= tops[0] - 1e-9)

    def test_a_stage_finds_what_is_there_and_says_how_well(self, rng):
        """Averaged over draws of b the squared errors are the stated variances."""
        n, spectrum = 4000, 0.7 ** np.arange(6)
        features = rng.normal(size=(n, 6)).clip(-4, 4)
        truth = np.array([0.1, 0.3, -0.2, 0.1, 0.05, -0.05])
        y = 0.2 + features @ truth + 0.3 * rng.normal(size=n)
        state = first_state(spectrum, 0.2, float(y.std()))
        stage = Stage.choose(state, n, clip=1.5, sigma=20.0, ridge=5.0, output=0.01)
        used = stage.used
        z, targets, weights = stage_records(
            features,
            weight_column(y, False),
            0,
            state.coefficients,
            used,
            np.sqrt(stage.powers[used]),
            stage.clip,
        )
        loss = Huber(1.0)

        def solve(b):
            def objective(beta):
                scores = z @ beta
                value = weights @ loss.value(targets, scores) + 2.5 * beta @ beta + b @ beta
                slopes = weights * loss.derivative(targets, scores)
                return value, slopes @ z + 5.0 * beta + b

            found = minimize(objective, np.zeros(len(used)), jac=True, method="L-BFGS-B").x
            return found + 0.01 * rng.normal(size=len(used))

        wanted = np.concatenate([[0.2], truth])[used]
        errors = []
        for _ in range(40):
            beta = np.zeros(7)
            beta[used] = solve(20.0 * rng.normal(size=len(used)))
            found = state.coefficients[used] + stage.clip * np.sqrt(stage.powers[used]) * beta[
                used
            ] / np.maximum(
                stage.bend * stage.powers[used] / (stage.bend * stage.powers[used] + 5.0), 0.5
            )
            errors.append((found - wanted) ** 2)
            updated = stage.update(beta, spectrum, n, first=True)
            assert np.all(updated.variances[used] <= stage.errors(n) * (1 + 1e-12))
        assert 0.4 < np.mean(errors) / np.mean(stage.errors(n)) < 1.6

    @pytest.mark.parametrize(
        ("n", "epsilon"), [(10**3, 1e3), (10**6, 10.0), (10**9, 0.1), (10**9, 1e3)]
    )
    def test_noise_that_hides_rounding_stays_small(self, n, epsilon):
        """In predictions it is at most 1 % of the clip, also for a thousand million rows."""
        plan = BudgetPlan.choose(1e4, 3)
        found = plan_releases(
            BudgetPlan(plan.location, 0.0, plan.stages, plan.scale, plan.calibration),
            *(n, 3, 1, 201, Budget(epsilon, 1e-6), Neighbours.REPLACE_ONE),
        )
        stages = [found[f"stage {j}"] for j in (1, 2, 3)]
        assert max(stage.output_sigma * stage.output_grid for stage in stages) < 0.01


class TestFit:
    def test_learns_a_curve_where_a_line_and_a_mean_fail(self, rng):
        X = rng.uniform(-1, 1, (3000, 2))
        y = np.cos(3 * X[:, 0]) + 0.1 * rng.normal(size=3000)
        model = regressor(1.0, y_bounds=(-1.5, 1.5)).fit(X, y)
        error = np.mean((model.predict(X) - np.cos(3 * X[:, 0])) ** 2)
        assert error < 0.05 * np.var(y)
        assert np.all(np.abs(model.predict(100 * X)) <= 1.5)

    @pytest.mark.parametrize("off", ["inputs", "scale", "calibration", "stages", "all"])
    def test_parts_can_be_left_out(self, rng, off):
        X, f, y = table(rng)
        changes = {"inputs": 0.0, "scale": 0.0, "calibration": 0.0, "stages": (1.0,)}
        changes = changes if off == "all" else {off: changes[off]}
        plan = BudgetPlan(**{**PLAN.to_dict(), **changes})
        model = regressor(10.0, budget_plan=plan).fit(X, y)
        assert model.budget_plan_ == plan.filled()
        assert labels(model) == list(plan.parts())
        assert model.certificate_.verify().epsilon <= 10.0
        assert (model.feature_map_.mean is None) == (plan.inputs == 0)
        assert np.mean((model.predict(X) - f) ** 2) < 0.25 * f.var()

    def test_too_small_a_budget_buys_a_mean(self, rng):
        X, _, y = table(rng, 60)
        model = regressor(0.3).fit(X, y)
        assert model.budget_plan_ is None and labels(model) == ["mean"]
        assert model.certificate_.free_statistics["residual_scale_interval"] == [None]
        prediction, deviation = model.predict(X, return_std=True)
        assert np.ptp(prediction) == 0 and np.ptp(deviation) == 0
        noise = model.certificate_.releases[0].mechanism.noise_scale / (60 * scale.STEPS)
        assert 0.1 < noise < 1
        assert deviation[0] == pytest.approx(3 * math.sqrt(1 / 3 + noise**2))  # y as if uniform
        assert regressor(0.3, budget_plan=PLAN).fit(X, y).budget_plan_ == PLAN.filled()

    def test_several_targets_share_the_budget(self, rng):
        X, f, y = table(rng, 1000)
        both = np.column_stack([y, 1.0 - y])
        model = regressor(10.0).fit(X, both)
        parts = model.budget_plan_.parts()
        assert len(labels(model)) == 2 * (len(parts) - 1) + 1  # the inputs are released once
        assert {"inputs", "stage 1, target 1", "stage 3, target 2"} <= set(labels(model))
        assert model.certificate_.verify().epsilon <= 10.0
        prediction, deviation = model.predict(X, return_std=True)
        assert prediction.shape == deviation.shape == (1000, 2)
        assert np.mean((prediction[:, 0] - f) ** 2) < 0.1 * f.var()
        assert np.mean((prediction[:, 1] - 1 + f) ** 2) < 0.1 * f.var()
        single = regressor(10.0, kernel="gaussian").fit(X, y)  # as several targets have it
        share = next(r["share"] for r in single.explain_budget() if r["release"] == "stage 1")
        halves = {r["release"]: r["share"] for r in model.explain_budget()}
        assert halves["stage 1, target 1"] == pytest.approx(share / 2, rel=1e-3)
        column = regressor(10.0, kernel="gaussian").fit(X, y[:, None])
        assert column.predict(X).shape == (1000, 1)
        np.testing.assert_array_equal(column.predict(X)[:, 0], single.predict(X))

    def test_means_of_several_targets(self, rng):
        X, _, y = table(rng, 60)
        model = regressor(0.3).fit(X, np.column_stack([y, -y]))
        assert labels(model) == ["mean, target 1", "mean, target 2"]
        assert model.predict(X).shape == (60, 2)

    def test_float32_gives_the_model_of_float64(self, rng, monkeypatch):
        X, _, y = table(rng, 1500)
        wide = regressor(10.0, kernel="gaussian").fit(X, y)
        monkeypatch.setattr(fitting, "FLOAT32_FROM", 1)
        narrow = regressor(10.0, kernel="gaussian").fit(X, y)
        assert wide.feature_map_.mean is not None  # the map whose components single precision blurs
        np.testing.assert_allclose(narrow.predict(X), wide.predict(X), atol=0.02)

    @pytest.mark.parametrize("plan", [PLAN, "auto"], ids=["inputs", "box"])
    @pytest.mark.parametrize(
        "options",
        [
            {"length_scale": [1.0, 2.0, 3.0]},
            {"length_scale": [1.0, -1.0]},
            {"length_scale": 1e-200},
            {"kernel": "linear", "length_scale": 1e-20},
            {"random_state": 2**64},
            {"n_features": 2001},
            {"bounds": None},
        ],
        ids=str,
    )
    def test_what_no_feature_map_can_be_is_refused_before_anything_is_spent(
        self, rng, options, plan
    ):
        from dpkernel import Ledger

        X, _, y = table(rng, 60)
        ledger = Ledger(budget=Budget(9.0, 1e-5))
        with pytest.raises(ParameterError):
            regressor(ledger=ledger, budget_plan=plan, **options).fit(X, y)
        assert ledger.spends == []

    def test_a_budget_that_no_plan_fits_is_refused(self, rng):
        X, _, y = table(rng, 30)
        with pytest.raises(ParameterError, match="several releases fit.*Take a larger delta"):
            regressor(1.0, delta=1e-40, budget_plan=PLAN).fit(X, y)


def without_noise(model, X, y):
    """Return what a large epsilon tends to: Huber regression on the model's features.

    Rows that are far out weigh less, as in a stage; without noise every coordinate has the same power.
    """
    Z = np.column_stack([np.ones(len(X)), model.feature_map_.transform(X)])
    weights = np.minimum(1.0, STAGE_ROW_BOUND**2 / np.mean(Z**2, axis=1))
    loss = Huber(model.budget_plan_.clip * model.certificate_.free_statistics["residual_scale"][0])

    def objective(beta):
        scores = Z @ beta
        return weights @ loss.value(y, scores), (weights * loss.derivative(y, scores)) @ Z

    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
    start = np.zeros(Z.shape[1])
    return Z @ minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x


class TestLimits:
    def test_error_falls_to_that_of_a_fit_without_noise(self, rng):
        X, f, y = table(rng, 1500)
        errors, models = [], []
        for epsilon in (0.3, 1.0, 10.0, 1e3, 1e4):
            fits = [regressor(epsilon, seed, kernel="gaussian").fit(X, y) for seed in range(2)]
            errors.append(np.mean([np.mean((m.predict(X) - f) ** 2) for m in fits]))
            models.append(fits[0])
        assert errors[0] > errors[1] > errors[2] > errors[3]
        assert errors[4] < errors[2]  # what is left is the error of a finite table
        last = models[-1]
        predictions = last.predict(X)

        free = without_noise(last, X, y)
        # both know f up to the errors of y; shrinking makes the private one smoother
        assert np.mean((predictions - free) ** 2) < np.mean((free - f) ** 2)
        assert np.mean((predictions - f) ** 2) < 1.2 * np.mean((free - f) ** 2)

    def test_inputs_in_a_small_part_of_the_box_do_not_stop_the_error_from_falling(self, rng):
        """There the kernel's eigenvalues fall fast, and the small ones carry what is left to find."""
        X = rng.normal(0, 0.2, (2000, 2)).clip(-1, 1)
        f = np.sin(6 * X[:, 0]) + X[:, 1]
        y = f + 0.05 * rng.normal(size=len(f))
        errors = []
        for epsilon in (1.0, 100.0, 1e3):
            model = regressor(epsilon, kernel="gaussian").fit(X, y)
            errors.append(np.mean((model.predict(X) - f) ** 2) / f.var())
        assert model.feature_map_.mean is not None and model.feature_map_.n_outputs > 18
        limit = np.mean((without_noise(model, X, y) - f) ** 2) / f.var()
        assert errors[0] > 3 * errors[1]
        assert 0.8 * limit < errors[2] < 1.25 * limit

    @pytest.mark.parametrize(
        ("epsilon", "plan"),
        [(1e-6, PLAN), (1e-3, PLAN), (1e3, PLAN), (1e6, PLAN), (1e-3, "auto"), (1e6, "auto")],
        ids=str,
    )
    def test_any_epsilon_can_be_asked_for(self, rng, epsilon, plan):
        X, _, y = table(rng, 50)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model = regressor(epsilon, budget_plan=plan, n_features=10).fit(X, y)
            prediction, deviation = model.predict(X, return_std=True)
        assert model.certificate_.epsilon <= epsilon
        assert model.certificate_.verify().epsilon <= epsilon
        assert np.all(np.abs(prediction) <= 3) and np.all(deviation > 0)


DEGENERATE = {
    "constant y": lambda X, y: (X, np.full(len(y), 0.7)),
    "y at the upper bound": lambda X, y: (X, np.full(len(y), 3.0)),
    "y at both bounds": lambda X, y: (X, 3 * np.sign(y)),
    "y outside its bounds": lambda X, y: (X, 1e6 * y),
    "huge y": lambda X, y: (X, np.where(y > 0, 1e308, -1e308)),
    "constant columns": lambda X, y: (X * [1.0, 0.0], y),
    "equal rows": lambda X, y: (np.full_like(X, 0.3), y),
    "rows in a corner": lambda X, y: (np.ones_like(X), y),
    "huge rows": lambda X, y: (np.where(X > 0, 1e308, -1e308), y),
    "tiny rows": lambda X, y: (X * 5e-324, y * 5e-324),
    "one-hot columns": lambda X, y: (np.eye(3)[(X[:, 0] * 1.5 + 1.5).astype(int)], y),
    "one column": lambda X, y: (X[:, :1], y),
    "500 columns": lambda X, y: (np.tile(X, 250), y),
    "one row": lambda X, y: (X[:1], y[:1]),
    "two rows": lambda X, y: (X[:2], y[:2]),
}


@pytest.mark.parametrize("plan", [PLAN, "auto"], ids=["plan", "auto"])
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_tables_give_a_finite_model_and_no_warning(rng, case, plan):
    X, y = DEGENERATE[case](*table(rng, 200)[::2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = regressor(2.0, budget_plan=plan, n_features=20).fit(X, y)
        prediction, deviation = model.predict(X, return_std=True)
    assert np.all(np.abs(prediction) <= 3)
    assert np.all(deviation > 0) and np.all(deviation < 30)


def test_values_outside_their_bounds_count_as_the_bounds(rng):
    X, _, y = table(rng, 200)
    first = regressor(y_bounds=(-0.5, 0.5), bounds=(-0.5, 0.5)).fit(X, y)
    clipped = np.clip(X, -0.5, 0.5), np.clip(y, -0.5, 0.5)
    second = regressor(y_bounds=(-0.5, 0.5), bounds=(-0.5, 0.5)).fit(*clipped)
    np.testing.assert_array_equal(first.predict(X), second.predict(X))


@pytest.mark.parametrize("levels", [(0, 1, 2), (0.1, 0.2, 0.3)])
@pytest.mark.parametrize("single", [False, True])
def test_declared_levels_are_categories(rng, levels, single, monkeypatch):
    """The middle level is the high one: no function of a number that is monotone would do."""
    if single:
        monkeypatch.setattr(fitting, "FLOAT32_FROM", 1)
    codes = rng.choice(levels, 2000)
    X = np.column_stack([rng.uniform(0, 10, 2000), codes])
    y = np.where(codes == levels[1], 2.0, -1.0) + 0.1 * rng.normal(size=2000)
    domain = Domain((Interval(0, 10), Levels(levels)), target=Interval(-3, 3))
    model = regressor(5.0, bounds=domain, y_bounds=None).fit(X, y)
    assert np.mean((model.predict(X) - y) ** 2) < 0.1 * y.var()
    strange = np.array([[5.0, 77.0]])
    assert np.isfinite(model.predict(strange)[0])


def test_intervals_cover_about_as_often_as_they_say(seed):
    """Mean +- 1.28 deviations: 80 % for normal errors; an average over seeds and settings."""
    covered = []
    for trial in range(3):
        rng = np.random.default_rng([seed, trial])
        X, _, y = table(rng, 1500, d=3)
        new, _, truth = table(rng, 500, d=3)
        for epsilon in (1.0, 10.0):
            model = regressor(epsilon, 100 * seed + trial, y_bounds=(-4, 4)).fit(X, y)
            mean, deviation = model.predict(new, return_std=True)
            assert np.all(deviation > 0)
            covered.append(np.mean(np.abs(truth - mean) < 1.28 * deviation))
    assert 0.7 < np.mean(covered) < 0.9
    assert min(covered) > 0.5


class TestExplain:
    @pytest.mark.parametrize("case", ["plan", "mean", "targets"])
    def test_shares_add_up_to_one(self, rng, case, tmp_path):
        X, _, y = table(rng, 60)
        options = {"plan": {"budget_plan": PLAN}, "mean": {}, "targets": {"budget_plan": PLAN}}
        target = np.column_stack([y, y]) if case == "targets" else y
        model = regressor(0.3, n_features=10, **options[case]).fit(X, target)
        rows = model.explain_budget(tmp_path / "shares.png")
        assert [row["release"] for row in rows] == labels(model)
        assert math.fsum(row["share"] for row in rows) == pytest.approx(1.0)
        assert all(set(row) == {"release", "share", "mu", "epsilon_alone"} for row in rows)
        assert all(0 < row["epsilon_alone"] <= model.certificate_.epsilon for row in rows)
        assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")

    def test_shares_are_those_of_the_plan(self, rng):
        X, _, y = table(rng, 60)
        model = regressor(2.0, n_features=10, budget_plan=PLAN).fit(X, y)
        for row in model.explain_budget():
            assert row["share"] == pytest.approx(PLAN.parts()[row["release"]], rel=1e-3)


class TestVerbose:
    def test_names_the_parts_and_nothing_of_the_data(self, rng, capsys):
        X, _, y = table(rng, 100)
        texts = []
        for target in (y, np.zeros(100), 1e9 * y):
            regressor(budget_plan=PLAN, n_features=10, verbose=True).fit(X, target)
            texts.append(capsys.readouterr().out)
        assert texts[0] == texts[1] == texts[2]
        lines = texts[0].split("\n")
        for part in ("inputs", "location", "stage 1 of 2", "scale 1 of 2", "stage 2 of 2"):
            assert part in lines
        assert "calibration" in lines
        regressor(0.3, verbose=True).fit(X[:50], y[:50])
        assert capsys.readouterr().out.split("\n") == ["mean", ""]

    def test_is_silent_otherwise(self, rng, capsys):
        X, _, y = table(rng, 100)
        regressor(budget_plan=PLAN, n_features=10).fit(X, y)
        assert capsys.readouterr() == ("", "")


class TestModelFile:
    @pytest.mark.parametrize("case", ["plan", "mean", "targets", "levels"])
    def test_a_loaded_model_predicts_the_same_bits(self, rng, case, tmp_path):
        X, _, y = table(rng, 150)
        options = {"plan": {"budget_plan": PLAN, "kernel": "matern52"}, "mean": {"epsilon": 0.1}}
        if case == "levels":
            X = np.column_stack([X[:, 0], rng.integers(0, 3, 150)])
            options["levels"] = {"bounds": Domain((Interval(-1, 1), Levels((0, 1, 2))))}
        target = np.column_stack([y, -y]) if case == "targets" else y
        model = regressor(**{"n_features": 12, **options.get(case, {})}).fit(X, target)
        again = load(save(model, tmp_path / "model.npz"))
        for one, two in zip(
            again.predict(X, return_std=True), model.predict(X, return_std=True), strict=True
        ):
            np.testing.assert_array_equal(one, two)
            assert one.shape == two.shape
        assert again.budget_plan_ == model.budget_plan_
        assert again.certificate_ == model.certificate_
        assert again.explain_budget() == model.explain_budget()
        assert again.kernel == model.kernel and again.get_params()["epsilon"] <= model.epsilon
        again.set_params(noise=SeededNoise(1)).fit(X, target)  # the parameters are usable

    def test_other_variances_are_refused(self, rng, tmp_path):
        X, _, y = table(rng, 60)
        model = regressor(budget_plan=PLAN, n_features=10).fit(X, y)
        model._variances = model._variances[:-1]
        with pytest.raises(CertificateError, match="variances of this model file do not fit"):
            load(save(model, tmp_path / "model.npz"))
