"""Lee, Park & Ahn (2025), Algorithms 1 and 3 as printed: constants, noise, limits, certificates.

Statistical tests: false-alarm rate below 1e-9 each, for any seed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2, norm
from sklearn.kernel_ridge import KernelRidge

from dpkernel import Budget, Certificate, Ledger, SeededNoise
from dpkernel.foundations.errors import (
    BudgetExceededError,
    CertificateError,
    LedgerError,
    ParameterError,
)
from dpkernel.proof.papers import PublishedAlgorithm1, PublishedAlgorithm3
from dpkernel.proof.papers.lee_park_ahn_2025 import (
    algorithm_1_noise,
    algorithm_3_noise,
    gaussian_process_projection,
    ridge_path,
)

HUGE = 1e9  # an epsilon at which the noise is far below the data
ALGORITHMS = (PublishedAlgorithm1, PublishedAlgorithm3)


@pytest.fixture
def table(rng):
    X = rng.uniform(0, 1, (150, 3))
    return X, np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2], rng.uniform(0, 1, (40, 3))


def build(cls, epsilon=1.0, delta=1e-6, **kw):
    return cls(epsilon, delta, **{"n_features": 20, "target_bound": 2.0, **kw})


def run(model, table):
    X, y, X_test = table
    if isinstance(model, PublishedAlgorithm1):
        return model.fit_predict(X, y, X_test)
    return model.fit(X, y).predict(X_test)


# --- constants ------------------------------------------------------------------------------


def test_constants_of_algorithm_1_by_hand():
    # n = 1000, epsilon = 0.5, delta = 1e-6, M = 50, T = 3, kappa = 1
    l8 = 15.894952099644114  # log(8e6)
    b2 = 1 + 2 * 0.5638253648 + 2 * 0.3178990420  # sqrt(l8/50) and l8/50
    gaussian = 1 + 5.5139468476  # 1 + sqrt(2 log(4e6)), log(4e6) = 15.2018049191
    found = algorithm_1_noise(1000, 0.5, 1e-6, 50, 3.0)
    assert math.isclose(l8, math.log(8e6))
    assert found.gram_sensitivity == pytest.approx(2 * b2, rel=1e-9)
    assert found.cross_sensitivity == pytest.approx(2 * 3 * math.sqrt(b2), rel=1e-9)
    assert found.gram_scale == pytest.approx(2 * 2 * b2 * gaussian / (1000 * 0.5), rel=1e-9)
    assert found.cross_scale == pytest.approx(2 * 6 * math.sqrt(b2) * gaussian / 500, rel=1e-9)


@pytest.mark.parametrize(("M", "squared"), [(10, 6.70), (50, 2.76), (200, 1.72)])
def test_norm_bound_of_lemma_7(M, squared, seed):
    found = algorithm_1_noise(1, 1.0, 1e-6, M, 1.0)
    assert found.gram_sensitivity / 2 == pytest.approx(squared, abs=0.005)
    # M ||h_M||^2 is chi-squared with M degrees: the bound holds with probability 1 - delta/8
    assert chi2.sf(M * found.gram_sensitivity / 2, M) <= 1e-6 / 8


def test_the_nested_root_as_printed_is_too_small_for_few_features():
    # M = 4, log(8/delta) = 9.0, so l/M = 2.25: 1 + 2 sqrt(6.75) against 1 + 2 * 1.5 + 2 * 2.25
    delta = 8 * math.exp(-9.0)
    nested = algorithm_1_noise(1, 1.0, delta, 4, 1.0, "nested").gram_sensitivity / 2
    lemma = algorithm_1_noise(1, 1.0, delta, 4, 1.0).gram_sensitivity / 2
    assert nested == pytest.approx(1 + 2 * math.sqrt(6.75)) and lemma == pytest.approx(8.5)
    # the two cross at M = 1.866 log(8/delta)
    for M, smaller in ((16, True), (17, False)):
        both = [algorithm_1_noise(1, 1.0, delta, M, 1.0, b) for b in ("nested", "lemma")]
        assert (both[0].gram_scale < both[1].gram_scale) is smaller


def test_constants_of_algorithm_3_by_hand():
    # n = 200, epsilon = 2, delta = 1e-3, T = 5; sqrt(2 log 2000) = 3.8989492070
    found = algorithm_3_noise(200, 2.0, 1e-3, 5.0)
    assert found.gram_sensitivity == 2
    assert found.cross_sensitivity == pytest.approx(5 * 1.4142135624, rel=1e-9)
    assert found.gram_scale == pytest.approx(2 * 2 * 4.8989492070 / 400, rel=1e-9)
    assert found.cross_scale == pytest.approx(2 * 1.4142135624 * 5 * 4.8989492070 / 400, rel=1e-9)


# --- noise ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ALGORITHMS)
def test_noise_is_the_printed_noise(cls, seed):
    """On rows of zeros the noisy statistics are the noise itself."""
    n, M = 30, 150
    model = build(cls, 0.7, 1e-4, n_features=M, target_bound=3.0, noise=SeededNoise(seed))
    model.fit_features(np.zeros((n, M)), np.zeros(n))
    if cls is PublishedAlgorithm1:
        l8 = math.log(8e4)
        b2 = 1 + 2 * math.sqrt(l8 / M) + 2 * l8 / M
        gaussian = 1 + math.sqrt(2 * math.log(4e4))
        on_gram = 2 * (2 * b2) * gaussian / (n * 0.7)
        on_cross = 2 * (2 * 3.0 * math.sqrt(b2)) * gaussian / (n * 0.7)
    else:
        gaussian = 1 + math.sqrt(2 * math.log(2e4))
        on_gram = 2 * 2 * gaussian / (n * 0.7)
        on_cross = 2 * math.sqrt(2) * 3.0 * gaussian / (n * 0.7)
    scales = [r.mechanism.noise_scale for r in model.certificate_.releases]
    np.testing.assert_allclose(scales, [on_gram, on_cross], rtol=1e-12)

    np.testing.assert_array_equal(model.gram_, model.gram_.T)
    lower = model.gram_[np.tril_indices(M, -1)]  # (E + E^T)/2: half the variance off the diagonal
    for values, scale in (
        (np.diag(model.gram_), on_gram),
        (lower, on_gram / math.sqrt(2)),
        (model.cross_, on_cross),
    ):
        low, high = chi2.ppf([5e-11, 1 - 5e-11], values.size)
        assert low < np.sum((values / scale) ** 2) < high
        assert abs(np.sum(values)) < norm.isf(5e-11) * scale * math.sqrt(values.size)


@pytest.mark.parametrize("cls", ALGORITHMS)
def test_seeded_noise_repeats_and_real_noise_does_not(cls, table):
    seeded = [run(build(cls, noise=SeededNoise(3)), table) for _ in range(2)]
    np.testing.assert_array_equal(*seeded)
    real = [run(build(cls), table) for _ in range(2)]
    assert not np.array_equal(*real)


@pytest.mark.parametrize("cls", ALGORITHMS)
def test_single_precision_input_and_numpy_parameters(cls, table):
    X, y, X_test = (part.astype(np.float32) for part in table)
    model = build(
        cls, np.float64(1.0), n_features=np.int64(20), target_bound=2, noise=SeededNoise(3)
    )
    found = run(model, (X, y, X_test))
    assert found.dtype == np.float64
    twin = build(cls, noise=SeededNoise(3))
    np.testing.assert_array_equal(found, run(twin, [p.astype(np.float64) for p in (X, y, X_test)]))
    assert model.certificate_.to_json() == twin.certificate_.to_json()


@pytest.mark.parametrize("cls", ALGORITHMS)
def test_targets_are_truncated(cls, table):
    X, y, X_test = table
    models = [build(cls, target_bound=0.5, noise=SeededNoise(3)) for _ in range(2)]
    far = run(models[0], (X, 1e6 * (y - 0.7), X_test))
    near = run(models[1], (X, np.clip(1e6 * (y - 0.7), -0.5, 0.5), X_test))
    np.testing.assert_array_equal(far, near)


# --- limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ALGORITHMS)
def test_large_epsilon_is_kernel_ridge_on_the_same_features(cls, table):
    X, y, X_test = table
    model = build(cls, HUGE, n_features=30, regularisation=0.02, length_scale=0.8, random_state=4)
    found = run(model, table)
    if cls is PublishedAlgorithm1:
        both = np.vstack([X, X_test])
        Z = gaussian_process_projection(both, 30, length_scale=0.8, random_state=4)
    else:
        Z = model.transform(np.vstack([X, X_test]))
    train, test = Z[: len(X)], Z[len(X) :]
    plain = KernelRidge(alpha=len(X) * 0.02, kernel="precomputed").fit(train @ train.T, y)
    np.testing.assert_allclose(found, plain.predict(test @ train.T), atol=1e-6)


@pytest.mark.parametrize("cls", ALGORITHMS)
def test_many_features_and_large_epsilon_approach_exact_kernel_ridge(cls, table):
    X, y, X_test = table
    exact = KernelRidge(alpha=len(X) * 0.05, kernel="rbf", gamma=0.5).fit(X, y).predict(X_test)
    errors = []
    for M in (10, 1500):
        runs = [
            run(build(cls, HUGE, n_features=M, regularisation=0.05, random_state=s), table)
            for s in range(4)
        ]
        errors.append(np.sqrt(np.mean([(r - exact) ** 2 for r in runs])))
    assert errors[1] < 0.3 * errors[0] and errors[1] < 0.05


@pytest.mark.parametrize("size", [1, 2, 6])
def test_all_regularisations_from_one_reduction(rng, size):
    A = rng.standard_normal((size, size))
    gram, cross = A + A.T, rng.standard_normal(size)
    lambdas = (0.3, 1.7)
    expected = [np.linalg.solve(gram + v * np.eye(size), cross) for v in lambdas]
    np.testing.assert_allclose(ridge_path(gram, cross, lambdas), np.transpose(expected))


# --- certificates and ledger ----------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"noise": SeededNoise(0)}, {"epsilon": 0.1}])
@pytest.mark.parametrize(
    ("cls", "more", "reasons"),
    [
        (PublishedAlgorithm1, {}, ["003-12", "Lemma 7"]),
        (PublishedAlgorithm1, {"norm_bound": "nested"}, ["003-12", "003-3"]),
        (PublishedAlgorithm3, {}, ["003-5", "2 sqrt(2) and 2 sqrt(2) T"]),
        (PublishedAlgorithm3, {"features": "paired"}, ["003-5", "sqrt(2) and 2 T"]),
    ],
)
def test_no_certificate_is_valid(cls, more, reasons, options, table):
    model = build(cls, **{"epsilon": 1.0, **more, **options})
    run(model, table)
    found = model.certificate_
    assert not found.valid
    assert all(any(word in reason for reason in found.reasons) for word in reasons)
    assert (found.epsilon, found.delta) == (model.epsilon, 1e-6)  # the paper's claim
    assert "NO GUARANTEE" in str(found)
    again = Certificate.from_json(found.to_json())
    assert again == found
    with pytest.raises(CertificateError, match="not proved"):
        again.verify()


def test_algorithm_1_leaves_training_inputs_without_noise(table):
    model = build(PublishedAlgorithm1)
    run(model, table)
    assert not model.certificate_.private and not hasattr(model, "predict")
    assert model.certificate_.profile.delta(1e6) == 1  # nothing is proved of it
    assert not any(np.shape(v)[:1] == (150,) for v in vars(model).values())


@pytest.mark.parametrize("delta", [1e-4, 1e-6, 1e-8])
def test_claim_of_algorithm_3_fails_at_epsilon_20(delta, table):
    """With the right sensitivities; known answer: 2 to 4 times delta at epsilon = 20."""
    for epsilon, low, high in ((1.0, 0, 1), (10.0, 0, 1), (20.0, 2, 4)):
        model = build(PublishedAlgorithm3, epsilon, delta)
        run(model, table)
        assert low < model.certificate_.profile.delta(epsilon) / delta < high


@pytest.mark.parametrize(("features", "norm"), [("cosine", math.sqrt(2)), ("paired", 1.0)])
def test_profile_of_algorithm_3_is_that_of_the_farthest_pair(features, norm, table):
    """mu is the largest move of (C, u), in units of the printed noise, over all pairs of rows."""
    model = build(PublishedAlgorithm3, features=features)
    run(model, table)
    p, T = model.printed_, 2.0
    largest = 0.0
    for k in np.linspace(-1, 1, 2001):  # z = (norm, 0), z' at an angle with cosine k
        z, other = norm * np.array([1.0, 0.0]), norm * np.array([k, math.sqrt(1 - k * k)])
        on_gram = np.linalg.norm(np.outer(z, z) - np.outer(other, other)) / p.gram_scale
        for sign in (1, -1):
            on_cross = np.linalg.norm(T * z - sign * T * other) / p.cross_scale
            largest = max(largest, math.hypot(on_gram, on_cross) / 150)
    assert largest <= model.certificate_.profile.mu < largest * (1 + 1e-5)


def test_algorithm_3_states_the_right_sensitivities(table):
    for features, gram, cross in (
        ("cosine", 2 * math.sqrt(2), 2 * math.sqrt(2) * 2.0),
        ("paired", math.sqrt(2), 2 * 2.0),
    ):
        model = build(PublishedAlgorithm3, features=features)
        run(model, table)
        stated = [r.mechanism.sensitivity.value * 150 for r in model.certificate_.releases]
        np.testing.assert_allclose(stated, [gram, cross], rtol=1e-12)
        assert stated[0] >= gram and stated[1] >= cross


def test_right_sensitivity_of_cosine_features_is_attained():
    """Rows of norm sqrt 2 at right angles move n C by 2 sqrt 2, above the printed 2."""
    rows = math.sqrt(2) * np.eye(2)
    move = np.outer(rows[0], rows[0]) - np.outer(rows[1], rows[1])
    assert np.linalg.norm(move) == pytest.approx(2 * math.sqrt(2))
    assert np.linalg.norm(rows[0] + rows[0]) == pytest.approx(2 * math.sqrt(2))  # y = T, y' = -T


def test_ledgers(table):
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    with pytest.raises(LedgerError, match="contains the training inputs"):
        run(build(PublishedAlgorithm1, ledger=ledger), table)
    assert ledger.spends == []
    run(build(PublishedAlgorithm3, ledger=ledger), table)
    assert 0 < ledger.spent.epsilon <= 1
    with pytest.raises(BudgetExceededError):
        run(build(PublishedAlgorithm3, 3.0, ledger=ledger), table)
    open_ledger = Ledger()
    run(build(PublishedAlgorithm1, ledger=open_ledger), table)
    (spend,) = open_ledger.spends
    assert spend.state == "drawn" and spend.profile.epsilon(1e-6) == math.inf


def test_rows_given_to_algorithm_3_are_cut_to_the_norm_its_profile_speaks_of(rng):
    model = build(PublishedAlgorithm3, HUGE)
    model.fit_features(100 * rng.standard_normal((50, 20)), np.zeros(50))
    assert np.trace(model.gram_) == pytest.approx(2.0, abs=1e-6)


# --- bad input ------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", ALGORITHMS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 0.0),
        ("epsilon", math.nan),
        ("delta", 0.0),
        ("delta", 1.0),
        ("n_features", 0),
        ("n_features", 2.5),
        ("regularisation", 0.0),
        ("length_scale", -1.0),
        ("target_bound", None),
        ("target_bound", math.inf),
        ("noise", "seeded"),
        ("ledger", "study.db"),
        ("random_state", -1),
    ],
)
def test_parameters_are_checked(cls, name, value, table):
    with pytest.raises(ParameterError, match=f"'{name}' parameter of {cls.__name__}"):
        run(build(cls).set_params(**{name: value}), table)


def test_readings_are_checked(table):
    with pytest.raises(ParameterError, match="'norm_bound'"):
        run(build(PublishedAlgorithm1, norm_bound="other"), table)
    with pytest.raises(ParameterError, match="'features'"):
        run(build(PublishedAlgorithm3, features="other"), table)
    with pytest.raises(ParameterError, match="even for paired features"):
        run(build(PublishedAlgorithm3, features="paired", n_features=21), table)


@pytest.mark.parametrize("cls", ALGORITHMS)
def test_data_are_checked_before_anything_is_spent(cls, table):
    X, y, X_test = table
    ledger = Ledger()
    broken = X.copy()
    broken[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        run(build(cls, ledger=ledger), (broken, y, X_test))
    with pytest.raises(ValueError, match="inconsistent"):
        run(build(cls, ledger=ledger), (X, y[:-1], X_test))
    with pytest.raises(ParameterError, match="number of columns of Z, 3"):
        build(cls, ledger=ledger).fit_features(X, y)
    assert ledger.spends == []


def test_test_points_are_checked_before_anything_is_spent(table):
    X, y, X_test = table
    ledger = Ledger()
    for bad in (X_test[:, :2], np.full((1, 3), np.inf), X_test[:0]):
        with pytest.raises(ValueError, match=r"features|infinity|sample"):
            build(PublishedAlgorithm1, ledger=ledger).fit_predict(X, y, bad)
    assert ledger.spends == []
