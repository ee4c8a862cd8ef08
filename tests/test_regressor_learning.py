"""A kernel that is learned: its parts against slow twins, what it finds, and odd tables."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.stats import norm

from dpkernel import (
    Budget,
    Domain,
    Interval,
    Ledger,
    Levels,
    PrivateKernelRegressor,
    SeededNoise,
    load,
    save,
)
from dpkernel.data.weights import weight_column
from dpkernel.estimators.regressor import BudgetPlan, inputs, kernel_choice, learning, scale
from dpkernel.estimators.regressor.budget_plan import MOST_LEARNING_INPUTS
from dpkernel.estimators.regressor.fitting import Sizes
from dpkernel.estimators.regressor.location import CELLS as TARGET_CELLS
from dpkernel.estimators.regressor.location import (
    PUBLIC_SPREAD,
    count_targets,
    fit_distribution,
    fit_public,
    skewness,
)
from dpkernel.estimators.regressor.releases import plan_releases
from dpkernel.estimators.regressor.stage import PosteriorStage, State, clipped_residuals
from dpkernel.foundations.archive import MOST_HEADER, write_archive
from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.models.features import LearnedFeatures
from dpkernel.models.features.input_law import CELLS, InputLaw, uniform_law
from dpkernel.models.features.learned import Component, kernel_matrices
from dpkernel.privacy.profiles import GaussianProfile
from dpkernel.privacy.statistics import GramLayout


def regressor(epsilon=3.0, seed=1, **options):
    given = {"bounds": (-1, 1), "y_bounds": (-3, 3), "noise": SeededNoise(seed), **options}
    return PrivateKernelRegressor(epsilon, **given)


def table(rng, n=2000, d=3):
    X = rng.uniform(-1, 1, (n, d))
    f = np.sin(4 * X[:, 0])
    return X, f, f + 0.2 * rng.normal(size=n)


# --- the plan ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signal", "n_inputs", "learns", "looks"),
    [
        (699, 2, False, 0),
        (700, 2, True, 1),
        (1000, 90, False, 0),
        (1800, 90, True, 1),
        (1e5, 8, True, 2),
        (1e9, 500, True, 2),
        (1e9, 501, False, 0),
    ],
)
def test_the_plan_learns_from_a_public_size_on(signal, n_inputs, learns, looks):
    plan = BudgetPlan.choose(signal, n_inputs, learn=True)
    assert plan.learns == learns and len(plan.columns) == looks
    assert sum(plan.parts().values()) == pytest.approx(1)
    assert plan == BudgetPlan(**plan.to_dict())
    if learns:
        assert plan.filled().stages == pytest.approx(plan.stages)  # they already leave nothing
        assert plan.stages[0] == 0.15


@pytest.mark.parametrize(
    ("signal", "n_inputs", "mixture", "stages"),
    [
        (59, 2, False, 1),
        (60, 2, True, 1),
        (100, 2, True, 2),
        (79, 10, False, 1),
        (80, 10, True, 1),
        (699, 20, True, 2),
        (400, 21, False, 2),
    ],
)
def test_the_plan_fits_a_mixture_where_it_cannot_learn(signal, n_inputs, mixture, stages):
    plan = BudgetPlan.choose(signal, n_inputs, learn=True)
    assert plan.mixture == mixture and len(plan.stages) == stages and not plan.learns
    assert sum(plan.parts().values()) == pytest.approx(1)
    assert plan == BudgetPlan(**plan.to_dict())
    assert not BudgetPlan.choose(signal, n_inputs).mixture  # with a kernel of one's own


@pytest.mark.parametrize(
    ("signal", "n_inputs", "location"),
    [
        (24, 2, None),
        (25, 2, 0.25),
        (29, 12, None),
        (30, 12, 0.25),
        (39, 9, 0.25),
        (40, 9, 0.1),
        (224, 90, None),
    ],
)
def test_hardly_any_data_get_one_fit_that_starts_from_what_is_declared(signal, n_inputs, location):
    plan = BudgetPlan.choose(signal, n_inputs, learn=True, public_start=True)
    assert (plan is None) == (location is None)
    if plan is not None:
        assert plan.starts_in_public and plan.adapts and plan.location == location
        assert list(plan.parts()) == ["location", "stage 1"]
        assert plan == BudgetPlan(**plan.to_dict())
    enough = BudgetPlan.choose(225, n_inputs, learn=True, public_start=True)
    assert not enough.starts_in_public


@pytest.mark.parametrize(
    ("n_rows", "signal", "size"),
    [(1000, 600, 250), (1000, 1e4, 500), (1000, 6e4, 600), (600, 1e6, 900), (10**4, 3e6, 1000)],
)
def test_more_features_than_rows_allow_come_with_hardly_any_noise(n_rows, signal, size):
    budget = Budget(float(GaussianProfile(signal / n_rows).epsilon(1e-6)), 1e-6)
    plan = BudgetPlan.choose(signal, 3, learn=True)
    assert Sizes(n_rows, 3, 1, 200).grown(plan, budget).n_features == pytest.approx(size, abs=1)


def test_a_mixture_needs_the_moments_of_the_inputs():
    plan = BudgetPlan.choose(300, 2, learn=True)
    for bad in ({"inputs": 0.0}, {"mixture": 1}, {"mixture": None}):
        with pytest.raises(ParameterError, match="mixture needs inputs"):
            BudgetPlan(**{**plan.to_dict(), **bad})


@pytest.mark.parametrize(
    "bad",
    [{"dependence": 0.0}, {"columns": (0.0,)}, {"scale": 0.0}, {"stages": (1.0,)}, {"inputs": 0.1}],
)
def test_a_plan_that_cannot_learn_is_refused(bad):
    plan = BudgetPlan.choose(1000, 2, learn=True)
    with pytest.raises(ParameterError, match="'weights' parameter of BudgetPlan must be"):
        BudgetPlan(**{**plan.to_dict(), **bad})


@pytest.mark.parametrize("own", [{"kernel": "laplace"}, {"length_scale": 1.0}])
def test_a_kernel_of_ones_own_is_not_learned(rng, own):
    X, _, y = table(rng, 500)
    model = regressor(**own).fit(X, y)
    assert not model.budget_plan_.learns and model.relevance_ is None
    with pytest.raises(ParameterError, match="without 'columns'"):
        regressor(budget_plan=BudgetPlan.choose(1000, 2, learn=True), **own).fit(X, y)


def test_the_widest_model_that_is_learned_fits_in_a_file(rng, tmp_path):
    """A model that was paid for and can't be kept is lost; its law and metric are in the header."""
    d = MOST_LEARNING_INPUTS
    metric, correlation = -rng.random((2, d, d)) * 1e-3  # as many digits as a number can have
    law = {"low": -rng.random(d), "high": rng.random(d), "shares": rng.random((d, CELLS))}
    features = LearnedFeatures(**law, correlation=correlation, metric=metric)
    header, path = {"feature_map": features._recipe()}, tmp_path / "widest.npz"
    write_archive(path, header, {})
    assert path.stat().st_size < 0.8 * MOST_HEADER  # names of columns need some of it


def test_more_inputs_than_a_file_can_hold_are_refused_before_anything_is_spent(rng):
    X, y = rng.uniform(-1, 1, (30, MOST_LEARNING_INPUTS + 1)), rng.uniform(-1, 1, 30)
    ledger = Ledger(budget=Budget(10.0, 1e-5))
    with pytest.raises(ParameterError, match="more than 500 inputs"):
        plan = BudgetPlan.choose(1000, 2, learn=True)
        regressor(1.0, budget_plan=plan, ledger=ledger).fit(X, y)
    assert not ledger.spends


# --- the law of the inputs -----------------------------------------------------------------------


def test_moments_without_noise_give_their_own_law(rng):
    first = np.clip(0.3 * rng.normal(size=20_000) + 0.4, -1, 1)
    X = np.column_stack([first, 0.5 * first + 0.1 * rng.normal(size=20_000), first**2 - 0.9])
    X = np.clip(X, -1, 1)
    layout = inputs.input_layout(3, len(X), Neighbours.REPLACE_ONE)
    (total,) = inputs.sum_moments(X, np.ones((len(X), 1)), layout)
    law = inputs.law_of_moments(layout, total, len(X), 0.0)
    assert law.mean == pytest.approx(X.mean(axis=0), abs=0.03)
    assert law.spread == pytest.approx(X.std(axis=0), rel=0.15)
    assert law.correlation[0, 1] == pytest.approx(np.corrcoef(X.T)[0, 1], abs=0.15)


def test_moments_that_are_all_noise_give_a_law_near_the_uniform_one(rng):
    layout = inputs.input_layout(3, 100, Neighbours.REPLACE_ONE)
    noise = 1e3 * layout.row**2
    noisy = noise * rng.normal(size=(layout.side, layout.side))
    law = inputs.law_of_moments(layout, noisy + noisy.T, 100, 10 * noise)
    assert np.abs(law.shares - 1 / CELLS).max() < 0.03 and np.all(law.correlation == np.eye(3))


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("size", [1.0, 1e6, 1e12, 1e18])
def test_any_released_moments_give_a_law(rng, d, size):
    layout = inputs.input_layout(d, 50, Neighbours.REPLACE_ONE)
    noisy = size * rng.normal(size=(layout.side, layout.side))
    law = inputs.law_of_moments(layout, noisy + noisy.T, 50, 1.0)
    assert np.all(np.isfinite(law.shares)) and law.shares.sum(axis=1) == pytest.approx(np.ones(d))
    assert np.linalg.eigvalsh(law.correlation).min() > 0
    assert np.diag(law.correlation) == pytest.approx(np.ones(d))


def test_columns_without_noise_give_their_own_law(rng):
    X = np.column_stack([0.02 * rng.normal(size=4000) + 0.5, rng.choice([-1.0, 1.0], 4000)])
    law = uniform_law(2)
    for _ in range(2):
        low, high = inputs.closer_look(law)
        law = InputLaw(low, high, law.shares, law.correlation)
        (counts,) = inputs.count_columns(X, np.ones((len(X), 1)), law.low, law.high)
        assert counts.reshape(2, CELLS).sum(axis=1) == pytest.approx([4000, 4000])
        law = inputs.fit_columns(law, counts, 4000, 1e-9)
    np.testing.assert_allclose(law.mean, X.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(law.spread, X.std(axis=0), rtol=0.1)  # one is 50 times too wide
    sample = law.sample(2048, np.random.default_rng(0))
    np.testing.assert_allclose(sample.std(axis=0), X.std(axis=0), rtol=0.15)
    np.testing.assert_allclose(law.standardise(X).std(axis=0), 1.0, rtol=0.1)


def test_columns_of_nothing_but_noise_stay_uniform(rng):
    counts = 1e6 * rng.normal(size=3 * CELLS)
    law = inputs.fit_columns(uniform_law(3), counts, 100, 1e9)
    np.testing.assert_array_equal(law.shares, np.full((3, CELLS), 1 / CELLS))


def test_dependence_without_noise_is_the_correlation_of_normal_columns(rng):
    normal = rng.normal(size=(20_000, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    X = 2 * norm.cdf(normal) - 1
    (counts,) = inputs.count_columns(X, np.ones((len(X), 1)), -np.ones(2), np.ones(2))
    law = inputs.fit_columns(uniform_law(2), counts, len(X), 1e-9)
    layout = inputs.score_layout(2, len(X), Neighbours.REPLACE_ONE)
    assert isinstance(layout, GramLayout)
    (total,) = inputs.sum_moments(X, np.ones((len(X), 1)), layout, law)
    found = inputs.fit_dependence(law, layout.read(total), len(X), 1e-9)
    # scores are cut at a radius, which shortens the most aligned rows the most
    assert 0.7 < found.correlation[0, 1] < 0.8
    hidden = inputs.fit_dependence(law, layout.read(total), len(X), 1e3)
    np.testing.assert_array_equal(hidden.correlation, np.eye(2))


@pytest.mark.parametrize("levels", [False, True])
def test_a_category_without_an_effect_has_hardly_any_relevance(rng, levels):
    """There are no data between 0 and 1, so a gradient there would say nothing."""
    X = np.column_stack([rng.uniform(-1, 1, 2000), rng.integers(0, 2, 2000)])
    bounds = Domain((Interval(-1, 1), Levels((0, 1)))) if levels else (-1, 1)
    given = {"bounds": bounds, "y_bounds": (-1, 1), "n_features": 80}
    fits = [PrivateKernelRegressor(3.0, noise=SeededNoise(seed), **given) for seed in range(3)]
    found = [model.fit(X, np.sin(3 * X[:, 0])).relevance_ for model in fits]
    assert np.shape(found) == (3, 2) and np.median(found, axis=0)[0] > 0.9  # single fits vary


def test_a_constant_column_has_no_relevance(rng):
    X = np.column_stack([rng.uniform(-1, 1, 2000), np.full(2000, 0.3)])
    model = PrivateKernelRegressor(3.0, bounds=(-1, 1), y_bounds=(-1, 1), noise=SeededNoise(0))
    model.fit(X, np.sin(3 * X[:, 0]))
    assert model.relevance_.tolist() == [1.0, 0.0]


def test_the_nearest_law(rng):
    for _ in range(20):
        shares = rng.normal(size=9)
        found = inputs.nearest_law(shares)
        assert found.min() >= 0 and found.sum() == pytest.approx(1)
        other = rng.dirichlet(np.ones(9))
        assert np.sum((found - shares) ** 2) <= np.sum((other - shares) ** 2) + 1e-12


# --- scales --------------------------------------------------------------------------------------


def test_a_target_of_few_values_is_no_narrow_peak():
    counts = np.zeros(TARGET_CELLS)
    counts[[6, 10, 14, 18]] = [200, 1000, 700, 100]
    middles = (np.arange(TARGET_CELLS) + 0.5) * (2 / TARGET_CELLS) - 1
    mean = counts @ middles / 2000
    spread = np.sqrt(counts @ (middles - mean) ** 2 / 2000)
    found = fit_distribution(counts, 2000)
    assert found == (pytest.approx(mean, abs=0.05), pytest.approx(spread, rel=0.3))


def test_the_root_mean_square_of_heavy_tails(rng):
    residuals = np.abs(rng.standard_t(3, size=5000)) * 0.1
    edges = scale.edges_of(0.2, scale.MOST)
    counts = np.bincount(np.searchsorted(edges, residuals, side="right"), minlength=scale.CELLS)
    found = scale.root_mean_square(counts.astype(float), 5000, 0.2)
    assert found == pytest.approx(np.sqrt(np.mean(np.minimum(residuals, 0.66) ** 2)), rel=0.1)
    low, high = scale.root_mean_square_interval(counts, 5000, 0.2, 1e-9)
    assert low == pytest.approx(high) == pytest.approx(found, rel=1e-6)


def residual_counts(rng, law, ratio, n_rows=5000):
    """Return how many residuals of this root mean square are in each cell around a guess of 1."""
    residuals = np.abs(law(rng, n_rows))
    residuals *= ratio / np.sqrt(np.mean(residuals**2))
    edges = scale.edges_of(1.0, scale.MOST)
    places = np.searchsorted(edges, residuals, side="right")
    return np.bincount(places, minlength=scale.CELLS).astype(float)


LAWS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "Laplace": lambda rng, n: rng.laplace(size=n),
    "with outliers": lambda rng, n: rng.normal(size=n) * np.where(rng.random(n) < 0.1, 3, 1),
}


@pytest.mark.parametrize("ratio", [0.3, 0.9])
@pytest.mark.parametrize("law", LAWS)
def test_a_likely_scale_is_found_where_noise_hides_the_root_mean_square(rng, law, ratio):
    """The noise of a cell is 3 % of the rows, so noise in the outer cells looks like residuals."""
    counts = residual_counts(rng, LAWS[law], ratio)
    noise, errors = 150.0, {scale.root_mean_square: [], scale.likely_root_mean_square: []}
    for _ in range(40):
        noisy = counts + noise * rng.normal(size=scale.CELLS)
        for find, found in errors.items():
            given = (noise,) if find is scale.likely_root_mean_square else ()
            found.append((find(noisy, 5000, 1.0, *given) - ratio) ** 2)
    plain, likely = (np.sqrt(np.mean(found)) for found in errors.values())
    assert likely < 0.2
    assert likely < 0.6 * plain or ratio == 0.9


def test_with_little_noise_the_scale_is_that_of_the_counts(rng):
    counts = residual_counts(rng, LAWS["normal"], 0.5)
    found = scale.likely_root_mean_square(counts, 5000, 2.0, 10.0)
    assert found == scale.root_mean_square(counts, 5000, 2.0)


def test_skewness_is_how_far_the_mean_is_from_the_median_unless_noise_hides_it(rng):
    wanted = {"skewed": (0.1, 0.35), "even": (0.0, 0.06), "constant": (0.0, 0.6)}
    for name, (least, most) in wanted.items():
        values = np.minimum(rng.lognormal(0.0, 0.8, 4000) / 7.5, 2) - 1
        values = {"skewed": values, "even": 0.3 * rng.normal(size=4000).clip(-3, 3)}.get(
            name, np.full(4000, 0.21)
        )
        (counts,) = count_targets(values[:, None], weight_column(values, False), 0)
        assert least <= skewness(counts, 4000, 1.0) <= most
        if name == "skewed":
            assert skewness(counts, 4000, 1e6) < 0.05


def test_the_interval_holds_the_value_without_noise(rng):
    """95 % of 400 releases: 360 or more, but for one run in 10^4."""
    counts, hits = np.maximum(rng.normal(200, 50, scale.CELLS), 0), 0
    exact = scale.root_mean_square_interval(counts, 5000, 0.3, 0.0)[0]
    for _ in range(400):
        noisy = counts + 10 * rng.normal(size=scale.CELLS)
        low, high = scale.root_mean_square_interval(noisy, 5000, 0.3, 10.0)
        hits += low <= exact <= high
    assert hits >= 360


# --- the kernel ----------------------------------------------------------------------------------

MIXTURE = [
    Component("linear", 1.0, weight=0.2),
    Component("gaussian", 1.2, weight=0.5),
    Component("gaussian", 0.6, weight=0.3),
    Component("laplace", 6.0, weight=1.0),
    Component("laplace", 2.0, weight=0.7),
]


def test_values_by_powers_are_those_by_exponentials(rng):
    X, Y = rng.normal(size=(7, 3)), rng.normal(size=(5, 3))
    metric = rng.normal(size=(3, 3))
    parts = [*MIXTURE, Component("gaussian", 0.3, True), Component("laplace", 2.0, True)]
    seen = 0
    for part, values in kernel_matrices(parts, X, Y, metric):
        left, right = X, Y
        if part.metric:
            factor = metric
            if part.family == "laplace":
                factor = np.diag(np.linalg.norm(metric, axis=0))
            left, right = X @ factor, Y @ factor
        gaps = left[:, None] - right
        length = part.scale * np.sqrt(3)
        wanted = {
            "linear": left @ right.T / 3,
            "gaussian": np.exp(-(gaps**2).sum(axis=2) / (2 * length**2)),
            "laplace": np.exp(-np.abs(gaps).sum(axis=2) / length),
        }[part.family]
        np.testing.assert_allclose(values, wanted, rtol=1e-10, atol=1e-14)
        seen += 1
    assert seen == len(parts)


def test_features_are_orthonormal_under_the_law():
    phi = LearnedFeatures(20, components=MIXTURE).build(3)
    rows = phi.of_standardised(phi.sample)
    np.testing.assert_allclose(rows.mean(axis=0), 0.0, atol=0.01)
    np.testing.assert_allclose(rows.T @ rows / len(rows), np.eye(20), atol=0.05)
    assert np.all(np.diff(phi.spectrum) <= 0)


def test_gradients_are_those_of_finite_differences(rng):
    phi = LearnedFeatures(20, components=MIXTURE).build(3)
    coefficients = rng.normal(size=(20, 2))
    found = kernel_choice.gradients(phi, coefficients)
    points = phi.sample[: found.shape[1]]

    def values(at):
        return phi.kernel(at, phi.landmarks) @ phi.weights @ coefficients

    apart = np.abs(points[:, None] - phi.landmarks).min(axis=1)  # Laplace kernels have a kink there
    for j in range(3):
        step = 1e-6 * np.eye(3)[j]
        slopes = (values(points + step) - values(points - step)) / 2e-6
        smooth = apart[:, j] > 1e-5
        assert smooth.sum() > 100 or np.all(apart[:512, j] == 0)
        np.testing.assert_allclose(found[j][smooth], slopes[smooth], rtol=1e-3, atol=1e-3)


def test_more_likely_variances_and_no_more_than_there_are(rng):
    truth = np.diag([4.0, 1.0, 0.1])
    matrices = np.stack([np.diag([1.0, 0.0, 0.0]), np.eye(3) / 3, np.diag([0.0, 0.0, 1.0])])
    values = np.sqrt(np.diag(truth))
    released = kernel_choice.Released(np.arange(3), values, np.full(3, 0.01))
    start = np.full(3, kernel_choice.PRIOR_SIGNAL * 30.0 / 3)

    def likelihood(shares):
        covariance = np.einsum("c,cij->ij", shares, matrices) + 0.01 * np.eye(3)
        return -0.5 * (
            np.linalg.slogdet(covariance)[1] + values @ np.linalg.solve(covariance, values)
        )

    found = kernel_choice._climb(matrices, released, 30.0)
    assert likelihood(found) > likelihood(start)
    assert kernel_choice._climb(matrices, released, 1.0).sum() <= 1 + 1e-12


def test_features_for_the_box_are_made_once_and_each_model_has_its_own(rng, monkeypatch):
    X, _, y = table(rng, 60)
    learning.box_mixture.cache_clear()
    first = regressor(10.0).fit(X, y)
    expected = first.predict(X)
    assert learning.box_mixture.cache_info().misses == 1
    first.feature_map_.weights[:] = 0.0  # must not reach the next model
    second = regressor(10.0).fit(X, y)
    assert learning.box_mixture.cache_info().hits == 1
    np.testing.assert_array_equal(second.predict(X), expected)
    monkeypatch.setattr(learning, "box_mixture", learning.box_mixture.__wrapped__)
    np.testing.assert_array_equal(regressor(10.0).fit(X, y).predict(X), expected)


# --- what it finds -------------------------------------------------------------------------------


def test_it_looks_at_the_column_that_matters_and_gains_by_it(rng):
    X, f, y = table(rng, 4000, 6)
    model, fixed = regressor(3.0).fit(X, y), regressor(3.0, kernel="gaussian").fit(X, y)
    assert model.relevance_.argmax() == 0 and model.relevance_[0] > 0.7
    assert model.relevance_.sum() == pytest.approx(1)
    share, direction = model.relevant_directions_[0]
    assert share > 0.7 and abs(direction[0]) > 0.9
    assert sum(model.learned_kernel_.values()) <= 1 + 1e-9
    assert any("learned metric" in name for name in model.learned_kernel_)
    errors = [np.mean((m.predict(X) - f) ** 2) for m in (model, fixed)]
    assert errors[0] < 0.5 * errors[1]
    row = next(row for row in model.explain_budget() if row["release"] == "stage 1")
    assert next(iter(model.learned_kernel_)) in row["learned"]
    assert model.certificate_.verify().epsilon <= 3.0


def test_ranges_a_hundred_times_too_wide(rng):
    X, f, y = table(rng, 8000, 2)
    errors = []
    for wide in (1.0, 100.0):
        model = regressor(10.0, bounds=(-wide, wide)).fit(X, y)
        errors.append(np.mean((model.predict(X) - f) ** 2) / f.var())
    assert errors[0] < 0.02 and errors[1] < 0.1


def test_a_loaded_model_predicts_the_same_bits(rng, tmp_path):
    X, _, y = table(rng, 1000)
    model = regressor(n_features=30).fit(X, y)
    assert model.feature_map_.kind == "learned"
    again = load(save(model, tmp_path / "model.npz"))
    for one, two in zip(again.predict(X, True), model.predict(X, True), strict=True):
        np.testing.assert_array_equal(one, two)
    np.testing.assert_array_equal(again.relevance_, model.relevance_)
    assert again.learned_kernel_ == model.learned_kernel_ and again.kernel == "auto"
    assert again.explain_budget() == model.explain_budget()


def test_float32_gives_the_model_of_float64(rng, monkeypatch):
    from dpkernel.estimators.regressor import fitting

    X, _, y = table(rng, 1000)
    wide = regressor(10.0).fit(X, y)
    monkeypatch.setattr(fitting, "FLOAT32_FROM", 1)
    narrow = regressor(10.0).fit(X, y)
    np.testing.assert_allclose(narrow.predict(X), wide.predict(X), atol=0.05)


# --- odd tables ----------------------------------------------------------------------------------

ODD = {
    "constant y": lambda X, y: (X, np.full(len(y), 0.7)),
    "y at both bounds": lambda X, y: (X, 3 * np.sign(y)),
    "huge y": lambda X, y: (X, np.where(y > 0, 1e308, -1e308)),
    "constant column": lambda X, y: (X * [1.0, 0.0, 1.0], y),
    "equal rows": lambda X, y: (np.full_like(X, 0.3), y),
    "rows in a corner": lambda X, y: (np.ones_like(X), y),
    "huge rows": lambda X, y: (np.where(X > 0, 1e308, -1e308), y),
    "tiny rows": lambda X, y: (X * 5e-324, y * 5e-324),
    "binary columns": lambda X, y: (np.sign(X), y),
    "equal columns": lambda X, y: (X[:, [0, 0, 0]], y),
    "one column": lambda X, y: (X[:, :1], y),
    "200 columns": lambda X, y: (np.tile(X, 67)[:, :200], y),
    "10 rows": lambda X, y: (X[:10], y[:10]),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tables_give_sane_models_without_a_warning(rng, name):
    X, y = ODD[name](*table(rng, 400)[::2])
    epsilon = 1e4 if name in ("200 columns", "10 rows") else 20.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = regressor(epsilon, n_features=20).fit(X, y)
        prediction, deviation = model.predict(X, return_std=True)
    assert model.feature_map_.kind == "learned"
    assert model.certificate_.verify().epsilon <= epsilon
    assert np.all(np.abs(prediction) <= 3) and np.all(deviation > 0)
    assert np.all(np.isfinite(model.relevance_)) and len(model.relevance_) == X.shape[1]
    if name == "constant y":
        assert np.abs(prediction - 0.7).max() < 0.5


# --- hardly any data -----------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["strong", "none"])
def test_a_fit_of_hardly_any_data_finds_a_strong_effect_and_is_no_worse_than_a_mean(rng, effect):
    """The number of rows times mu is 32. A private mean has an error near 1."""
    X = rng.uniform(-1, 1, (1200, 5))
    y = (X[:, 0] + X[:, 1] if effect == "strong" else rng.normal(size=1200)) + 0.1
    errors = []
    for seed in range(6):
        model = regressor(0.1, seed).fit(X, y)
        errors.append(np.mean((model.predict(X) - y) ** 2) / y.var())
        assert model.budget_plan_.starts_in_public and model.feature_map_.kind == "learned"
    assert np.mean(errors) < (0.6 if effect == "strong" else 1.15)


def test_a_range_that_is_far_too_wide_is_seen_and_a_frequent_value_is_not_mistaken_for_one(rng):
    def found(values, noise):
        (counts,) = count_targets(values, weight_column(values, False), 0)
        noisy = counts + noise * len(values) * rng.normal(size=TARGET_CELLS)
        return fit_public(noisy, len(values), noise * len(values))

    ordinary = 0.3 * rng.normal(size=4000).clip(-3, 3)
    frequent = np.where(rng.random(4000) < 0.5, 0.21, rng.choice([-0.5, -0.1, 0.5, 0.7], 4000))
    for values in (ordinary, frequent):
        assert found(values, 0.05) == found(values, 0.001) == (0.0, PUBLIC_SPREAD)
    centre, spread = found(0.3 + 0.03 * rng.normal(size=4000), 0.05)
    assert abs(centre - 0.3) < 0.1 and spread < 0.15
    assert found(0.3 + 0.03 * rng.normal(size=4000), 0.5) == (0.0, PUBLIC_SPREAD)


def test_the_fit_of_a_mixture_is_near_the_mean_of_a_skewed_target(rng):
    """Without a calibration, it is a quarter of a standard deviation too low."""
    X = rng.uniform(-1, 1, (1000, 3))
    y = np.minimum(np.exp(X[:, 0] / 2 + 0.8 * rng.normal(size=1000)), 15)
    missed = []
    for seed in range(4):
        model = regressor(3.2, seed, y_bounds=(0, 15), n_features=20).fit(X, y)
        assert model.budget_plan_.mixture and model.budget_plan_.calibration > 0
        missed.append(np.mean(model.predict(X) - y) / y.std())
    assert abs(np.mean(missed)) < 0.19


@pytest.mark.parametrize(("noise", "fit"), [(0.001, fit_distribution), (0.05, fit_public)])
def test_a_skewed_target_at_the_end_of_its_range_is_narrow(rng, noise, fit):
    """Lengths of stay and costs are like this: near 0, in a range with room for the longest."""
    values = np.minimum(rng.lognormal(0.5, 0.8, 4000) / 30, 2) - 1
    (counts,) = count_targets(values, weight_column(values, False), 0)
    counts = counts + noise * len(values) * rng.normal(size=TARGET_CELLS)
    given = (noise * len(values),) if fit is fit_public else ()
    centre, spread = fit(counts, len(values), *given)
    assert abs(centre - values.mean()) < 0.05 and spread < 2 * values.std()


@pytest.mark.parametrize("n_rows", [1000, 2200, 5000])
def test_a_skewed_target_with_hardly_any_data_is_fitted_about_as_well_as_by_a_mean(rng, n_rows):
    """The number of rows times mu is 28, 62 and 142. Half of the fits have such an error at most."""
    X = rng.uniform(-1, 1, (n_rows, 5))
    y = np.exp(1.2 * X[:, 0] + 0.8 * X[:, 1] * X[:, 2] + 0.8 * rng.normal(size=n_rows))
    errors = []
    for seed in range(8):
        model = regressor(0.1, seed, y_bounds=(0, 60)).fit(X, y)
        errors.append(np.mean((model.predict(X) - y) ** 2) / y.var())
    assert np.median(errors) < 1.3


def test_a_private_number_of_rows_needs_the_histogram_of_y(rng):
    X, _, y = table(rng, 300)
    weights = np.full(300, 0.5)
    assert regressor(0.1).fit(X, y, sample_weight=weights).budget_plan_ is None
    plan = BudgetPlan(0.0, 0.0, (1.0,), 0.0, 0.0, mixture=True)
    assert regressor(0.3, budget_plan=plan).fit(X, y).budget_plan_ == plan
    with pytest.raises(ParameterError, match="with 'location' above 0"):
        regressor(0.3, budget_plan=plan).fit(X, y, sample_weight=weights)


def stage_for(signal, any_law):
    """Return a stage of 2000 rows, of which a mechanism for this n mu is drawn, and the mechanism."""
    budget, n = Budget(float(GaussianProfile(signal / 2000).epsilon(1e-6)), 1e-6), 2000
    plan = BudgetPlan(0.05, 0.0, (1.0,), 0.0, 0.0, mixture=True)
    mechanism = plan_releases(plan, n, 3, 1, 21, budget, Neighbours.REPLACE_ONE)["stage 1"]
    state = State(np.zeros(21), np.geomspace(0.1, 1e-4, 21), 0.4)
    functions = np.random.default_rng(0).normal(size=(500, 21))
    functions[:, 0] = 1.0
    given = state, n, clipped_residuals(state, 0.5), mechanism, functions
    return PosteriorStage.choose(*given, any_law=any_law), mechanism


@pytest.mark.parametrize("any_law", [False, True])
@pytest.mark.parametrize("signal", [30.0, 3000.0])
def test_ridges_are_never_below_the_one_that_was_paid_for(signal, any_law):
    stage, mechanism = stage_for(signal, any_law)
    assert len(stage.used) > 1 and stage.ridges.min() >= mechanism.ridge


def test_the_ridge_for_any_law_has_the_least_error_for_the_worst_of_them():
    stage, mechanism = stage_for(3000.0, True)
    units = stage.powers[stage.used] * stage.clip**2
    prior = stage.state.variances[stage.used] / units
    curvatures = np.geomspace(1e-3, 1e6, 4000)[:, None]

    def worst(ridges):
        errors = curvatures * (ridges**2 * prior + mechanism.sigma**2)
        return np.max(errors / (curvatures + ridges) ** 2, axis=0)

    free = stage.ridges > mechanism.ridge  # the others are the least ridge
    assert free.any()
    for factor in (0.5, 2.0):
        assert np.all(worst(stage.ridges)[free] < worst(factor * stage.ridges)[free])


def test_what_could_be_noise_is_shrunk_and_what_could_not_is_kept():
    stage, _ = stage_for(3000.0, True)
    roots = np.sqrt(stage.powers[stage.used]) * stage.clip
    for size, least, most in ((0.0, 0.0, 0.0), (0.7, 0.0, 0.5), (8.0, 0.95, 1.0)):
        beta = np.zeros(21)
        beta[stage.used] = size * np.sqrt(stage.noise) * stage.kept / roots
        found = stage.update_as_solved(beta)
        change = found.coefficients[stage.used][1:] / np.maximum(
            (roots * beta[stage.used])[1:], 1e-12
        )
        assert np.all((least <= change) & (change <= most + 1e-9))
        assert found.coefficients[0] == pytest.approx(roots[0] * beta[0])
        assert np.all(found.variances <= stage.state.variances * (1 + 1e-9))


@pytest.mark.parametrize("epsilon", [1e-3, 1e6])
def test_any_epsilon(rng, epsilon):
    X, _, y = table(rng, 300)
    model = regressor(epsilon, n_features=40).fit(X, y)
    assert model.certificate_.verify().epsilon <= epsilon
    assert np.all(np.abs(model.predict(X)) <= 3)
