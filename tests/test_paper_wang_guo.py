"""Wang & Guo (2024), Algorithm 1 as printed, and what the published SGD methods share.

Statistical tests: false-alarm rate below 1e-9 each, for any seed.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import sparse
from scipy.stats import chi2
from sklearn.base import clone, is_regressor

from dpkernel import Budget, Certificate, Ledger, SeededNoise
from dpkernel.foundations.errors import BudgetExceededError, CertificateError, ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.models.features import FourierFeatures
from dpkernel.models.losses import Squared
from dpkernel.privacy.noise import FREE, Part, Plan
from dpkernel.privacy.profiles import GaussianProfile
from dpkernel.proof.papers import PublishedRandomFeatureSGD
from dpkernel.proof.papers.sgd import output_mechanism, output_of, output_run, sgd
from dpkernel.proof.papers.wang_guo_2024 import (
    CosineFeatures,
    algorithm_1_noise,
    chernoff_hits,
    direct_sensitivity,
    iterate_bound,
    proved_sensitivity,
    stated_sensitivity,
)

HUGE = 1e9  # an epsilon at which the noise is far below the data


@pytest.fixture
def table(rng):
    X = rng.uniform(0, 1, (60, 2))
    return X, np.sin(3 * X[:, 0]) + X[:, 1] / 2


def build(epsilon=1.0, delta=1e-5, **options):
    given = {"step": 0.05, "target_bound": 1.5, "n_features": 12, **options}
    return PublishedRandomFeatureSGD(epsilon, delta, **given)


# --- constants ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "T", "step", "kappa", "delta", "stated", "proof", "sigma"),
    [
        (10**3, 10**3, 0.125, 1.0, 1e-5, "8.7e4", "295", "1473"),
        (10**3, 10**3, 1e-3, 1.0, 1e-5, ".151", ".388", "1.935"),
        (10**4, 10**4, 1e-4, 1.0, 1e-6, ".0023", ".048", ".260"),
        (10**4, 5 * 10**4, 0.01, math.sqrt(2), 1e-6, "1.4e4", "117", "633"),
    ],
)
def test_known_answers(n, T, step, kappa, delta, stated, proof, sigma):
    """Computed with other software, to the digits shown."""
    known = {"kappa": kappa, "target_bound": 1.0}
    assert shown(stated_sensitivity(n, T, step, delta / 2, **known), stated)
    assert shown(proved_sensitivity(n, T, step, delta / 2, **known), proof)
    found = algorithm_1_noise(n, T, step, 1.0, delta, sensitivity="proof", **known)
    assert shown(found.noise_scale, sigma)


def shown(value: float, text: str) -> bool:
    digits = len(text.split("e")[0].replace(".", "").lstrip("0"))
    return float(f"{value:.{digits}g}") == float(text)


def test_constants_by_hand():
    # T/n = 4 and 3 log(n/gamma) = 36: c = max(sqrt(9), 9) = 9, k = 40
    gamma = 100 * math.exp(-12)
    assert chernoff_hits(100, 400, gamma) == pytest.approx(40)
    # T/n = 400: c = sqrt(36/400) = 0.3, k = 520
    assert chernoff_hits(100, 40_000, gamma) == pytest.approx(520)
    # eta T = 4, c = 3, kappa = 2: G = 3*2 + 4*2 = 14 as stated, 3 (2 + 4*2) = 30 as proved
    known = {"kappa": 2.0, "target_bound": 3.0}
    stated = stated_sensitivity(100, 400, 0.01, gamma, **known)
    assert stated == pytest.approx(4 * math.e * 1e-4 * 14**2 * 40 * 41)
    proof = proved_sensitivity(100, 400, 0.01, gamma, **known)
    assert proof == pytest.approx(2 * 0.01 * 30 * math.sqrt(math.e * 40 * 41))
    printed = algorithm_1_noise(100, 400, 0.01, 0.5, 2 * gamma, **known)
    expected = math.sqrt(2 * math.log(2.5 / (2 * gamma))) * stated / 0.5
    assert printed.noise_scale == pytest.approx(expected) and printed.sensitivity == stated


def test_the_stated_sensitivity_is_the_square_of_the_proved_one_for_c_1():
    known = {"kappa": 1.3, "target_bound": 1.0}
    args = 500, 700, 0.02, 1e-6
    assert stated_sensitivity(*args, **known) == pytest.approx(
        proved_sensitivity(*args, **known) ** 2
    )


def test_the_printed_noise_is_far_too_small_for_many_rows():
    """n = T = 10^6, eta = 1/n, claim (1, 1e-6): delta is above 0.126."""
    n, known = 10**6, {"kappa": 1.0, "target_bound": 1.0}
    printed = algorithm_1_noise(n, n, 1 / n, 1.0, 1e-6, **known)
    run = of_squares(n_rows=n, n_steps=n, step=1 / n)
    assert output_mechanism(run, printed.noise_scale).profile().delta(1.0) > 0.126
    proof = algorithm_1_noise(n, n, 1 / n, 1.0, 1e-6, sensitivity="proof", **known)
    assert output_mechanism(run, proof.noise_scale).profile().supports(Budget(1.0, 1e-6))


# --- what is proved -------------------------------------------------------------------------


def of_squares(n_rows=4, n_steps=6, step=0.3, kappa=1.0, c=1.0, **options):
    known = {"kappa": kappa, "target_bound": c}
    return output_run(Squared(), n_rows, 2, n_steps, step, **known, **options)


def test_bounds_on_iterates_and_gradients_are_not_exceeded_and_nearly_reached(rng):
    T, step = 40, 0.5
    bound = iterate_bound(T, step, kappa=1.0, target_bound=1.0)
    w, longest = np.zeros(40), 0.0
    for t in range(T):  # greedy: a row that is new but for what makes the step's gain largest
        z = np.zeros(40)
        norm = np.linalg.norm(w)
        along = (1 - step) / (2 - step) / norm if norm else 0.0
        z[:] = along * w / norm if norm else 0.0
        new = np.eye(40)[t] - (w[t] / norm**2 * w if norm else 0.0)
        z += math.sqrt(max(1 - along**2, 0.0)) * new / np.linalg.norm(new)
        w = w - step * (z @ w - 1.0) * z
        longest = max(longest, np.linalg.norm(w))
    assert 0.9 * bound < longest <= bound


def test_no_pair_of_neighbours_moves_farther_than_the_bound(rng):
    """Every order of 3 rows in 4 steps; random neighbours, the extreme one among them."""
    run, T = of_squares(n_rows=3, n_steps=4, step=0.9), 4
    largest = np.zeros(T + 1)
    extreme = [(np.array([[1.0, 0], [1.0, 0], [1.0, 0]]), np.ones(3), np.array([-1.0, 0.0]), 1.0)]
    for _ in range(30):
        Z = rng.standard_normal((3, 2))
        Z /= np.linalg.norm(Z, axis=1, keepdims=True)
        z = rng.standard_normal(2)
        extreme.append((Z, np.sign(rng.standard_normal(3)), z / np.linalg.norm(z), -1.0))
    for Z, y, z, label in extreme:
        Z_, y_ = Z.copy(), y.copy()
        Z_[0], y_[0] = z, label
        for order in itertools.product(range(3), repeat=T):
            pair = [output_of(run, *d, np.array(order)) for d in ((Z, y), (Z_, y_))]
            k = order.count(0)
            largest[k] = max(largest[k], np.linalg.norm(pair[0] - pair[1]))
    moves = np.array(run.sensitivity(Neighbours.REPLACE_ONE).values)
    known = {"kappa": 1.0, "target_bound": 1.0}
    direct = [direct_sensitivity(k, T, 0.9, **known) for k in range(T + 1)]
    assert (moves <= np.array(direct) * (1 + 1e-8)).all()  # G before the last step, not after it
    assert largest[0] == moves[0] == 0
    assert (largest <= moves * (1 + 1e-12)).all()
    assert largest[1] > 0.4 * moves[1]


@pytest.mark.parametrize("radius", [None, 0.5])
@pytest.mark.parametrize("steps", [1, 2, 25])
def test_the_run_is_the_printed_loop(steps, radius, rng):
    """The library's run against the loop as printed: w_(T+1), and the mean of w_1 .. w_T."""
    Z = rng.standard_normal((6, 2))
    Z /= np.linalg.norm(Z, axis=1, keepdims=True)
    y, order = rng.uniform(-1, 1, 6), rng.integers(0, 6, steps)
    for average in (False, True):
        run = of_squares(6, steps, 0.9, radius=radius, average=average)
        slope = Squared().derivative
        printed = sgd(Z, y, order, 0.9, slope, radius=radius, average=average)
        np.testing.assert_allclose(output_of(run, Z, y, order), printed, rtol=1e-12, atol=1e-15)


def test_the_release_has_the_noise_asked_for_and_counts_rounding():
    run = of_squares(n_rows=50, n_steps=80)
    found = output_mechanism(run, 0.37)
    assert found.noise_scale == pytest.approx(0.37, rel=1e-12) and found.dimension == 2
    assert found.rounding == run.rounding > 0
    assert found.sensitivity == run.sensitivity(Neighbours.REPLACE_ONE)


# --- the algorithm --------------------------------------------------------------------------


class Recorded(SeededNoise):
    """Keeps the indices that were drawn."""

    def restarted(self):
        self.drawn = []
        source = super().restarted()
        original = source.uniform_indices
        source.uniform_indices = lambda *n: self.drawn.append(original(*n)) or self.drawn[-1]
        return source


@pytest.mark.parametrize("features", ["cosine", "linear", FourierFeatures(8, random_state=3)])
def test_large_epsilon_is_the_naive_loop_of_the_box(table, features):
    X, y = table
    source = Recorded(5)
    model = build(HUGE, features=features, n_steps=100, noise=source, sensitivity="proof")
    model.fit(X, y)
    order = source.drawn[0]
    Z = model.feature_map_.transform(X)
    w = np.zeros(Z.shape[1])
    for i in order:
        w = w - 0.05 * (w @ Z[i] - y[i]) * Z[i]
    np.testing.assert_allclose(model.coef_, w, atol=1e-6)
    assert np.linalg.norm(w) > 0.1 and len(order) == 100
    np.testing.assert_allclose(model.predict(X[:5]), Z[:5] @ model.coef_)


def test_noise_is_the_printed_noise(seed):
    n, M = 30, 400
    model = build(0.7, 1e-4, n_features=M, noise=SeededNoise(seed), target_bound=2.0, step=0.01)
    model.fit(np.zeros((n, 1)), np.zeros(n))  # all targets 0: every iterate is 0
    known = {"kappa": math.sqrt(2), "target_bound": 2.0}
    sigma = algorithm_1_noise(n, n, 0.01, 0.7, 1e-4, **known).noise_scale
    low, high = chi2.ppf([5e-11, 1 - 5e-11], M)
    assert low < np.sum((model.coef_ / sigma) ** 2) < high
    (release,) = model.certificate_.releases
    assert release.mechanism.noise_scale == pytest.approx(sigma, rel=1e-12)


def test_cosine_features_are_those_of_the_example(rng):
    X = rng.uniform(-2, 2, (20, 3))
    Z = CosineFeatures(4000, length_scale=1.5, random_state=1).fit_transform(X)
    exact = np.exp(-np.sum((X[:, None] - X[None]) ** 2, axis=2) / (2 * 1.5**2))
    np.testing.assert_allclose(Z @ Z.T, exact, atol=0.12)  # over 5 deviations, and more
    few = CosineFeatures(1, random_state=2).fit(X)
    assert np.linalg.norm(few.transform(1e300 * X), axis=1).max() <= few.row_norm_bound


def test_targets_are_cut_and_seeded_runs_repeat(table):
    X, y = table
    far = build(target_bound=0.5, noise=SeededNoise(3)).fit(X, 1e6 * (y - 0.7))
    near = build(target_bound=0.5, noise=SeededNoise(3)).fit(X, np.clip(1e6 * (y - 0.7), -0.5, 0.5))
    np.testing.assert_array_equal(far.coef_, near.coef_)
    assert not np.array_equal(build().fit(X, y).coef_, build().fit(X, y).coef_)


def test_a_model_learns(rng):
    X = rng.uniform(0, 1, (300, 2))
    y = np.sin(3 * X[:, 0])
    model = build(HUGE, step=0.3, n_steps=3000, n_features=50, sensitivity="proof").fit(X, y)
    assert is_regressor(model) and model.score(X, y) > 0.6
    assert clone(model).get_params() == model.get_params()
    np.testing.assert_allclose(model.predict(sparse.csr_array(X)), model.predict(X))


# --- certificates and ledger ----------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"noise": SeededNoise(0)}, {"step": 0.4}, {"step": 1e-5}])
def test_no_certificate_of_the_stated_sensitivity_is_valid(table, options):
    model = build(**options).fit(*table)
    found = model.certificate_
    assert not found.valid and found.private is ("noise" not in options)
    assert any("000-1" in reason for reason in found.reasons)
    text = " ".join(found.public["errata"])
    assert all(f"000-{number}" in text for number in (1, 2, 3, 4))
    assert (found.epsilon, found.delta) == (1.0, 1e-5)
    assert "NO GUARANTEE" in str(found)
    again = Certificate.from_json(found.to_json())
    assert again == found
    with pytest.raises(CertificateError, match="not proved"):
        again.verify()


def test_small_steps_break_the_claim_and_large_ones_do_not(table):
    small, large = (build(step=step).fit(*table) for step in (1e-5, 0.4))
    assert small.certificate_.profile.delta(1.0) > 1e-5
    assert large.certificate_.profile.delta(1.0) < 1e-5


def test_as_proved_the_certificate_is_valid_and_says_how_much_is_wasted(table):
    model = build(sensitivity="proof").fit(*table)
    found = Certificate.from_json(model.certificate_.to_json())
    assert found.valid and found.private and found.verify().epsilon < 0.2
    assert found.epsilon < 0.2 and found.reasons == ()
    assert any("000-3" in line for line in found.public["errata"])
    seeded = build(sensitivity="proof", noise=SeededNoise(0)).fit(*table).certificate_
    assert seeded.valid and not seeded.private


def test_where_the_profile_does_not_support_the_claim_nothing_is_certified(table):
    """At a huge epsilon the classical Gaussian noise is too small: a record drawn in every step."""
    model = build(1e5, 0.5, sensitivity="proof", n_steps=100, step=1e-9)
    model.fit(table[0][:1], table[1][:1])
    found = model.certificate_
    assert not found.profile.supports(Budget(1e5, 0.5))
    assert not found.valid and "does not support" in found.reasons[0]


def test_a_ledger_is_charged_what_is_proved(table):
    ledger = Ledger(budget=Budget(1.0, 1e-5))
    with pytest.raises(BudgetExceededError):
        build(step=1e-5, ledger=ledger).fit(*table)
    assert ledger.spends == []
    build(ledger=ledger).fit(*table)
    (spend,) = ledger.spends
    assert spend.state == "drawn"
    assert [part["label"] for part in spend.plan["parts"]] == ["sampling order", "last iterate"]


def test_a_free_part_costs_nothing_and_needs_no_line_in_a_certificate():
    other = Part("release", GaussianProfile(0.3))
    assert Plan((Part("order", FREE), other)).profile == Plan((other,)).profile
    assert Plan((Part("order", FREE),)).profile == FREE
    noise = Ledger().spend(Plan((Part("order", FREE), other)), "test")
    assert len(noise.claim(FREE, "order").words(3)) == 3


# --- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 0.0),
        ("delta", 1.0),
        ("n_steps", 0),
        ("n_steps", 10**7),
        ("step", 0.0),
        ("step", 0.5),  # 1/kappa^2 for cosine features
        ("target_bound", None),
        ("target_bound", -1.0),
        ("features", "fourier"),
        ("sensitivity", "other"),
        ("n_features", 0),
        ("random_state", -1),
        ("noise", "seeded"),
        ("ledger", "study.db"),
    ],
)
def test_parameters_are_checked_before_anything_is_spent(name, value, table):
    ledger = Ledger()
    model = build(ledger=ledger).set_params(**{name: value})
    with pytest.raises(ParameterError, match=f"'{name}' parameter of PublishedRandomFeatureSGD"):
        model.fit(*table)
    assert ledger.spends == []


def test_length_scale_and_data_are_checked(table):
    X, y = table
    ledger = Ledger()
    with pytest.raises(ParameterError, match="'length_scale' parameter of CosineFeatures"):
        build(length_scale=0.0, ledger=ledger).fit(X, y)
    broken = X.copy()
    broken[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        build(ledger=ledger).fit(broken, y)
    with pytest.raises(ValueError, match="inconsistent"):
        build(ledger=ledger).fit(X, y[:-1])
    assert ledger.spends == []
    with pytest.raises(ValueError, match="features"):
        build().fit(X, y).predict(X[:, :1])
