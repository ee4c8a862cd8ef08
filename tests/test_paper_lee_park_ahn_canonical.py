"""The canonical estimator of Theorem 10, and the lemmas behind Theorems 11 and 19."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad

from dpkernel import Budget, Ledger, SeededNoise
from dpkernel.foundations.errors import ParameterError
from dpkernel.models.losses import HuberisedHinge
from dpkernel.proof.papers import PublishedCanonicalEstimator
from dpkernel.proof.papers import lee_park_ahn_2025 as lee
from dpkernel.proof.papers.lee_park_ahn_2025.canonical import STEPS, frequencies

QUIET = {"reading": "corrected", "epsilon": 1e9, "noise": SeededNoise(0)}


@pytest.mark.parametrize("n_inputs", [1, 2, 3])
def test_the_functions_are_orthonormal_and_their_norm_is_attained_in_a_corner(n_inputs):
    system = lee.CosineSystem(20).build(n_inputs)
    side = {1: 400, 2: 60, 3: 24}[n_inputs]
    axis = (np.arange(side) + 0.5) / side * 2 - 1  # midpoints integrate these cosines exactly
    grid = np.stack(np.meshgrid(*[axis] * n_inputs), axis=-1).reshape(-1, n_inputs)
    phi = system.transform_block(grid)
    np.testing.assert_allclose(phi.T @ phi / len(phi), np.eye(20), atol=1e-9)
    corner = system.transform_block(-np.ones((1, n_inputs)))
    assert np.linalg.norm(corner) == pytest.approx(system.row_norm_bound, rel=1e-9)
    assert np.linalg.norm(phi, axis=1).max() <= system.row_norm_bound


@pytest.mark.parametrize("n_inputs", [1, 2, 4])
def test_the_smallest_frequencies_come_first_and_none_is_left_out(n_inputs):
    """Against all vectors of a box that holds them."""
    box = itertools.product(range(32 if n_inputs == 1 else 6), repeat=n_inputs)
    everything = sorted(box, key=lambda k: (sum(v * v for v in k), k))
    assert frequencies(n_inputs, 30) == tuple(everything[:30])


def test_a_table_may_have_many_columns():
    """There are 2^90 products of the first two functions of each column."""
    found = frequencies(90, 150)
    assert [sum(k) for k in found] == [0, *[1] * 90, *[2] * 59] and len(set(found)) == 150


def test_it_estimates_the_coefficients_of_the_best_function():
    X = np.random.default_rng(0).uniform(0, 1, (200_000, 1))
    y = 0.5 * math.sqrt(2) * np.cos(3 * math.pi * X[:, 0])
    model = PublishedCanonicalEstimator(**QUIET, n_coefficients=6).fit(X, y)
    np.testing.assert_allclose(model.coef_, [0, 0, 0, 0.5, 0, 0], atol=0.02)
    np.testing.assert_allclose(model.predict(X[:9]), y[:9], atol=0.05)


@pytest.mark.parametrize("reading", ["printed", "corrected"])
def test_neighbours_never_move_the_sum_further_than_certified(reading):
    """By the definition: two records at corners, with every sign of their targets, beside others."""
    rng = np.random.default_rng(1)
    X, y = rng.uniform(0, 1, (12, 2)), rng.uniform(-9, 9, 12)
    model = PublishedCanonicalEstimator(
        reading=reading, n_coefficients=9, target_bound=2.0, noise=SeededNoise(0)
    ).fit(X, y)
    (release,) = model.certificate_.releases
    bound, most = release.mechanism.sensitivity.value, 0.0

    def total(X, y):
        unit = np.clip(X * 2 - 1, -1, 1)
        return model._sum(model.feature_map_, unit, y).astype(float)

    for one in ([0.0, 0.0], [1.0, 1.0], [5.0, -7.0], [0.3, 0.9]):
        for other in ([0.0, 0.0], [1.0, 0.0], [1e300, 1.0]):
            for signs in ((1e9, -1e9), (1.0, -2.0), (2.0, 2.0)):
                tables = []
                for point, target in zip((one, other), signs, strict=True):
                    changed = X.copy(), y.copy()
                    changed[0][4], changed[1][4] = point, target
                    tables.append(total(*changed))
                most = max(most, float(np.linalg.norm(tables[0] - tables[1])))
    assert 0.999 * bound < most <= bound == 2 * STEPS


def test_the_printed_noise_is_the_paper_s_and_a_ledger_is_charged_what_it_gives():
    X = np.random.default_rng(0).uniform(0, 1, (500, 1))
    y, ledger = np.sin(3 * X[:, 0]), Ledger()
    numbers = {"r": 0.5, "gamma": 0.4, "beta": 0.9}
    model = PublishedCanonicalEstimator(1.0, 1e-6, **numbers, ledger=ledger).fit(X, y)
    wanted = lee.canonical_estimator(500, 1.0, 1e-6, **numbers, reading="printed")
    assert len(model.coef_) == wanted.n_coefficients == model.printed_.n_coefficients

    (release,) = model.certificate_.releases
    unit = model.feature_map_.row_norm_bound / STEPS / 500
    assert release.mechanism.noise_scale * unit == pytest.approx(wanted.noise_scale, rel=1e-9)
    profile = model.certificate_.profile
    assert profile.mu == pytest.approx(2 / (release.mechanism.noise_scale / STEPS), rel=1e-6)
    assert ledger.spends and not model.certificate_.valid
    capped = Ledger(budget=Budget(1.0, 1e-6))
    PublishedCanonicalEstimator(1.0, 1e-6, reading="corrected", ledger=capped).fit(X, y)
    assert len(capped.spends) == 1


def test_the_corrected_one_follows_the_minimax_rate():
    """Errors of the estimator fall with n as Theorem 10 says, up to a factor of 3 (fixed seeds)."""
    rng, errors = np.random.default_rng(3), []
    for n in (1000, 100_000):
        X = rng.uniform(0, 1, (n, 1))
        truth = lambda x: 0.7 * np.abs(x - 0.4) ** 0.75  # noqa: E731
        y = np.clip(truth(X[:, 0]) + 0.1 * rng.normal(size=n), -1, 1)
        options = {"reading": "corrected", "gamma": 0.5, "beta": 0.5, "r": 0.5}
        found = [
            PublishedCanonicalEstimator(0.5, 1e-6, **options, noise=SeededNoise(k)).fit(X, y)
            for k in range(5)
        ]
        new = np.linspace(0, 1, 400)[:, None]
        errors.append(np.mean([np.mean((m.predict(new) - truth(new[:, 0])) ** 2) for m in found]))
    rates = [lee.theorem_10(n, 0.5, r=0.5, gamma=0.5, beta=0.5).total for n in (1000, 100_000)]
    assert errors[0] / errors[1] > rates[0] / rates[1] / 3


@pytest.mark.parametrize("bounds", [(1.0, 0.0), (0.0,), "ab", (0.0, math.inf)])
def test_a_box_must_be_declared(bounds):
    with pytest.raises(ParameterError, match="'bounds' parameter of PublishedCanonicalEstimator"):
        PublishedCanonicalEstimator(bounds=bounds).fit(np.zeros((3, 1)), np.zeros(3))


@pytest.mark.parametrize("size", [4, 25])
def test_the_printed_noise_is_that_of_the_chosen_number_of_coefficients(size):
    """2 d^(beta/2) (1 + sqrt(2 log(1/delta))) / (n epsilon), at beta = 1/2 and epsilon = 1."""
    X = np.linspace(0, 1, 200)[:, None]
    model = PublishedCanonicalEstimator(1.0, 1e-6, n_coefficients=size).fit(X, X[:, 0])
    wanted = 2 * size**0.25 * (1 + math.sqrt(2 * math.log(1e6))) / 200
    assert model.printed_.noise_scale == pytest.approx(wanted)


# --- lemmas -----------------------------------------------------------------------------------------


def test_lemma_12_bounds_paths_of_a_gaussian_process():
    """With all constants 1, more than 95 of 100 sets of 20 paths on a grid stay below H."""
    grid, hits = np.linspace(0, 1, 60)[:, None], 0
    height = lee.lemma_12(20, 1, confidence=0.05)
    for seed in range(100):
        paths = lee.gaussian_process_projection(grid, 20, length_scale=0.3, random_state=seed)
        hits += np.abs(paths).max() * math.sqrt(20) <= height
    assert hits >= 95
    assert lee.lemma_12(20, 9, diameter=10.0) > lee.lemma_12(20, 4, diameter=10.0) > height
    with pytest.raises(ParameterError, match="lemma_12"):
        lee.lemma_12(0, 1)


def test_lemmas_13_and_14_add_up_to_the_rate_of_theorem_11():
    """At the schedule of the theorem, the squared sum of both bounds falls at its rate."""
    sizes, found = (10**4, 10**8), []
    for n in sizes:
        rate = lee.theorem_11(n, 1e-2, r=0.5, gamma=0.5)
        dimension = rate.lam**-0.5
        numbers = (round(rate.n_features), rate.lam, dimension)
        error = lee.lemma_13(n, *numbers, r=0.5) + lee.lemma_14_error(n, 1e-2, *numbers)
        found.append((error**2, rate.statistics + rate.privacy))
    assert found[0][0] / found[1][0] == pytest.approx(found[0][1] / found[1][1], rel=0.35)
    assert lee.lemma_13(1000, 10, 0.1, 3.0, r=0.5) > lee.lemma_13(1000, 100, 0.1, 3.0, r=0.5)
    assert lee.lemma_14_error(1000, 1.0, 10, 0.1, 3.0) < lee.lemma_14_error(1000, 0.1, 10, 0.1, 3.0)


def test_theorem_58_is_theorem_19():
    numbers = {"r": 0.75, "gamma": 0.5}
    assert lee.theorem_58(1000, 0.5, **numbers) == lee.theorem_19(1000, 0.5, **numbers)


def test_lemma_77_corrected_is_a_lower_bound_and_vanishes_for_large_functions(rng):
    """Brute force over constant functions, whose best value any labels can have."""
    broken = 0
    for _ in range(300):
        half, best = rng.uniform(1.05, 4), rng.uniform(-0.9, 2)
        largest = rng.uniform(1 + half, 20) * 1.001
        loss, one = HuberisedHinge(half), np.ones(201)
        margins = np.array([best, -best])
        inside = (margins >= 1 - half) & (margins <= 1 + half)
        if not inside[0]:
            continue
        slopes = loss.derivative(np.ones(2), margins)
        eta = slopes[1] / slopes.sum()  # the labels for which ``best`` is the best constant
        share = float(np.array([eta, 1 - eta]) @ inside)
        found = lee.lemma_77(half, inside=(best, best), largest=largest, eta_min=min(share, 1.0))
        grid = np.linspace(-largest, largest, 201)

        def risk(f, loss=loss, eta=eta):
            ones = np.ones_like(f)
            return eta * loss.value(ones, f) + (1 - eta) * loss.value(-ones, f)

        gain = risk(grid) - risk(best * one)
        assert found.holds and np.all(gain >= found.constant * (grid - best) ** 2 - 1e-9)
        broken += bool(np.any(gain < found.printed * (grid - best) ** 2 - 1e-9))
    assert broken > 30
    constants = [lee.lemma_77(3.0, inside=(-1, 1), largest=R).constant for R in (5, 50, 5000)]
    assert constants[0] > constants[1] > constants[2] > 0 and constants[2] < 0.01 * constants[0]
    assert not lee.lemma_77(0.5, inside=(0.6, 1.0), largest=3.0).holds  # a = 0.5 is not below 0
    with pytest.raises(ParameterError, match="'largest' parameter of lemma_77"):
        lee.lemma_77(3.0, inside=(-1, 1), largest=0.5)


def test_the_readings_of_lemma_12_differ_by_the_place_of_a_logarithm():
    """The proof's integral of log(2 C c_k ||X|| / s^2) over s < kappa, computed."""
    kappa, columns, rest = 0.6, 3, 2.0
    inner = quad(lambda s: math.log(2 * rest / s**2), 0, kappa)[0]
    wanted = math.sqrt(kappa * columns * inner) + kappa * math.sqrt(2 * math.log(2 * 20 / 0.05))
    numbers = {"diameter": rest, "kappa": kappa}
    assert lee.lemma_12(20, columns, **numbers, reading="proof") == pytest.approx(wanted)
    assert lee.lemma_12(20, columns, **numbers) > 1.2 * wanted


# --- Section 4.2, Appendix B and other kernels, as printed --------------------------------------------


def test_a_mean_is_clipped_as_a_whole_as_section_4_2_prints_it():
    Z, y = np.full((40, 3), 2.0), np.full(40, 7.0)
    options = {"n_features": 3, "target_bound": 1.5, "noise": SeededNoise(0)}
    model = lee.PublishedAlgorithm1(1e9, 0.5, truncation="mean", **options)
    model.fit_features(Z, y)
    assert np.linalg.norm(model.cross_) == pytest.approx(1.5, abs=1e-4)
    noisy = lee.PublishedAlgorithm1(1.0, 1e-6, truncation="mean", **options)
    noisy.fit_features(Z, y)
    assert noisy.printed_.cross_scale == lee.clipped_mean_noise(40, 1.0, 1e-6, 1.5)
    (_, cross) = noisy.certificate_.releases
    assert cross.mechanism.sensitivity.value == pytest.approx(3.0)  # 2 T, not 2 T / n


@pytest.mark.parametrize("kernel", ["laplace", "matern32", "linear", "polynomial"])
def test_printed_algorithms_take_other_kernels(kernel):
    rng = np.random.default_rng(0)
    X, options = rng.uniform(-1, 1, (40, 2)), {"kernel": kernel, "noise": SeededNoise(0)}
    y = np.sign(X[:, 0])
    one = lee.PublishedAlgorithm1(1e6, 0.1, n_features=1500, target_bound=1.0, **options)
    predicted = one.fit_predict(X, y, X[:5])
    matrix = one._kernel(2)(X)
    assert matrix.diagonal().max() <= 1 + 1e-12
    wanted = matrix[:5] @ np.linalg.solve(matrix + 0.1 * 40 * np.eye(40), y)
    np.testing.assert_allclose(predicted, wanted, atol=0.4)
    lee.PublishedAlgorithm2(**options, n_features=5).fit_predict(X, y, X[:2])
    five = lee.PublishedAlgorithm5(**options).fit(X, y)
    assert five.predict(X[:2]).shape == (2,)
    for cls, more in (
        (lee.PublishedAlgorithm3, {"target_bound": 1.0}),
        (lee.PublishedAlgorithm4, {}),
    ):
        model = cls(**options, **more, n_features=600)
        if kernel in ("linear", "polynomial"):
            with pytest.raises(ParameterError, match="'kernel' parameter.*shift-invariant"):
                model.fit(X, y)
            continue
        phi = model.fit(X, y).transform(X)
        assert np.abs(phi @ phi.T - matrix).max() < 0.3
