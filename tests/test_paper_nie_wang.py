"""Nie & Wang: the printed algorithm and constants, what is wrong with them, Theorem 4's rule."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.kernel_ridge import KernelRidge
from sklearn.svm import SVC

from dpkernel import Budget, Ledger, PrivateKernelRidge, SeededNoise
from dpkernel.estimators.records import RecordRecipe
from dpkernel.foundations.errors import DataError, LedgerError, ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.privacy.sensitivity import erm_bounded, erm_lipschitz, erm_ridge
from dpkernel.proof.papers import PublishedPerturbedRisk
from dpkernel.proof.papers.nie_wang_2016 import (
    corrected_scale,
    corrected_theorem_1,
    counterexample,
    general_lipschitz,
    printed_lipschitz,
    printed_scale,
    printed_theorem_1,
    strong_convexity,
    theorem_2,
)
from dpkernel.solvers.erm_presets import nie_wang_theorem_4, risk_preset

REPLACE = Neighbours.REPLACE_ONE


@pytest.fixture
def table(rng):
    X = rng.uniform(-1, 1, (60, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] / 3


def test_the_function_is_kernel_ridge_plus_one_number(table):
    X, y = table
    model = PublishedPerturbedRisk(1.0, lam=0.05, target_bound=2.0, noise=SeededNoise(0)).fit(X, y)
    exact = KernelRidge(alpha=0.05 * 60, kernel="rbf", gamma=0.5).fit(X, y).predict(X)
    added = model.predict(X) - exact
    assert np.ptp(added) < 1e-10 and abs(added[0]) > 1e-3


def test_the_classifier_is_a_support_vector_machine_plus_one_number(table):
    X, y = table
    labels = np.sign(y)
    model = PublishedPerturbedRisk(1.0, lam=0.01, loss="hinge", noise=SeededNoise(0)).fit(X, labels)
    f = model.decision_function(X) - model._b
    matrix = model._function[0](X)
    rival = SVC(kernel="precomputed", C=1 / (2 * 0.01 * 60), tol=1e-8).fit(matrix, labels)
    g = rival.decision_function(matrix) - rival.intercept_  # with an intercept: another problem
    assert np.corrcoef(f, g)[0, 1] > 0.9
    beta = model._function[2]

    def risk(a):
        return np.maximum(0, 1 - labels * (matrix @ a)).mean() + 0.01 * a @ matrix @ a

    steps = 0.01 * np.random.default_rng(0).normal(size=(50, 60))
    assert all(risk(beta) <= risk(beta + step) + 1e-3 for step in steps)
    assert set(model.predict(X)) <= {-1.0, 1.0}


@pytest.mark.parametrize("loss", ["squared", "hinge"])
def test_the_scale_is_the_printed_one_or_twice_it(table, loss):
    X, y = table
    scales = {}
    for reading in ("printed", "corrected"):
        options = {"lam": 0.2, "loss": loss, "scale": reading, "noise": SeededNoise(0)}
        scales[reading] = PublishedPerturbedRisk(0.5, **options).fit(X, np.sign(y)).noise_scale_
    slopes = (1.0, 1.0) if loss == "hinge" else (4 / math.sqrt(0.2), 2 + 2 / math.sqrt(0.2))
    assert scales["printed"] == pytest.approx(slopes[0] / (0.2 * 2 * 60 * 0.5))
    assert scales["corrected"] == pytest.approx(2 * slopes[1] / (0.2 * 2 * 60 * 0.5))


def test_what_is_drawn_is_laplace_of_that_scale(table):
    X, y = table
    values = [PublishedPerturbedRisk(0.5, noise=SeededNoise(k)).fit(X, y) for k in range(300)]
    size = np.mean([abs(model._b) for model in values])
    assert size == pytest.approx(values[0].noise_scale_, rel=0.25)


def test_no_certificate_is_ever_valid_and_no_ceiling_is_taken(table):
    X, y = table
    for scale in ("printed", "corrected"):
        certificate = PublishedPerturbedRisk(0.5, scale=scale).fit(X, y).certificate_
        assert not certificate.valid and not certificate.private
        assert certificate.profile.delta(50.0) == 1.0 and certificate.epsilon == 0.5
        assert any("004-1" in reason for reason in certificate.reasons)
    with pytest.raises(LedgerError, match="ceiling could count"):
        PublishedPerturbedRisk(ledger=Ledger(budget=Budget(1.0))).fit(X, y)
    open_ledger = Ledger()
    PublishedPerturbedRisk(ledger=open_ledger).fit(X, y)
    assert len(open_ledger.history()) == 1


@pytest.mark.parametrize("loss", ["squared", "hinge"])
@pytest.mark.parametrize("epsilon", [1.0, 1e-6])
def test_the_counterexample_is_right_every_time_whatever_the_noise(loss, epsilon):
    found = counterexample(epsilon, loss=loss, trials=4)
    assert found.guessed == 1.0
    here, there = found.differences
    assert abs(here - there) > 1e4 * max(found.spread, 1e-16 * found.noise_scale)
    assert found.noise_scale > 0.1 * abs(here - there) / epsilon


def test_constants_as_printed_and_as_they_should_read():
    assert printed_theorem_1(2.0, 0.1, 50) / corrected_theorem_1(2.0, 0.1, 50) == pytest.approx(
        8**0.5
    )
    strength = 0.1 * 2 * 50
    assert corrected_theorem_1(2.0, 0.1, 50) == pytest.approx(
        erm_bounded(REPLACE, bound=2.0, strength=strength).value
    )
    assert theorem_2(0.7, 1.5, 0.1, 50) == pytest.approx(
        erm_lipschitz(REPLACE, slope=0.7, row=1.5, strength=strength).value
    )
    printed = printed_scale(0.7, 1.5, 0.1, 50, 0.3)
    assert corrected_scale(0.7, 1.5, 0.1, 50, 0.3) == pytest.approx(2 * printed)
    # 004-6: too small beyond lambda = 1, and our ridge bound is far below both
    assert general_lipschitz(1.0, 1.0, 10.0) / printed_lipschitz(1.0, 1.0, 10.0) == pytest.approx(
        2.1, abs=0.05
    )
    for lam, factor in ((0.01, 5.7), (0.05, 4.2)):
        ours = erm_ridge(REPLACE, row=1.0, target=1.0, strength=lam * 100, n_rows=100).value
        theirs = theorem_2(printed_lipschitz(1.0, 1.0, lam), 1.0, lam, 100)
        assert theirs / ours == pytest.approx(factor, rel=0.02)


def test_theorem_4_has_its_rates_and_the_corrected_constants():
    found = risk_preset("nie-wang-4", m=1000, beta=1.0)
    assert found.lam == pytest.approx(0.1) and found.epsilon == pytest.approx(0.1)
    assert found.regularisation == pytest.approx(200.0)
    assert found.noise_scale == pytest.approx(
        corrected_scale(1.0, 1.0, found.lam, 1000, found.epsilon)
    )
    assert found.printed_bound == pytest.approx((2 + 1.5 + 1) * found.rate)
    # term by term as in the proof: 2 B_0 eps + 3 C_L E|b| + sample error + c lambda^beta
    sample = 2 * math.sqrt(2 * math.pi) / math.sqrt(1000)
    assert found.bound == pytest.approx(
        2 * found.epsilon + 3 * found.noise_scale + sample + found.lam
    )
    steep = nie_wang_theorem_4(m=1000, beta=1.0, slope=3.0)
    assert steep.bound - found.bound == pytest.approx(
        3 * (3 * 3 * found.noise_scale - found.noise_scale)
    )
    small, large = (nie_wang_theorem_4(m=m, beta=0.5) for m in (100, 10_000))
    assert small.epsilon / large.epsilon == pytest.approx(100**0.25)


@pytest.mark.parametrize(
    ("numbers", "name"), [({"m": 1}, "m"), ({"beta": 0.0}, "beta"), ({"kappa": math.nan}, "kappa")]
)
def test_senseless_presets_are_refused(numbers, name):
    with pytest.raises(ParameterError, match=f"The '{name}' parameter of nie_wang_theorem_4"):
        nie_wang_theorem_4(**{"m": 100, "beta": 1.0, **numbers})
    with pytest.raises(ParameterError, match="'name' parameter of risk_preset"):
        risk_preset("nie-wang-5")


def test_labels_and_sizes_are_checked(table):
    X, y = table
    with pytest.raises(ParameterError, match="'loss' parameter"):
        PublishedPerturbedRisk(loss="hinge").fit(X, y)
    with pytest.raises(DataError, match="at most 5000 rows"):
        PublishedPerturbedRisk().fit(np.zeros((5001, 1)), np.zeros(5001))


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.8])
def test_the_pinball_loss_as_printed(table, quantile):
    X, y = table
    options = {"loss": "pinball", "quantile": quantile, "lam": 0.02, "noise": SeededNoise(0)}
    printed = PublishedPerturbedRisk(0.5, **options).fit(X, y)
    slope = max(quantile, 1 - quantile)
    assert printed.noise_scale_ == pytest.approx(slope / (0.02 * 2 * 60 * 0.5))
    corrected = PublishedPerturbedRisk(0.5, **options, scale="corrected").fit(X, y)
    assert corrected.noise_scale_ == pytest.approx(2 * printed.noise_scale_)
    kernel, rows, alpha = printed._function
    matrix = kernel(rows)

    def risk(a):
        r = np.clip(y, -1, 1) - matrix @ a
        return float(np.mean(np.maximum(quantile * r, (quantile - 1) * r)) + 0.02 * a @ matrix @ a)

    steps = 0.01 * np.random.default_rng(0).normal(size=(50, 60))
    assert all(risk(alpha) <= risk(alpha + step) + 1e-3 for step in steps)
    assert not printed.certificate_.valid
    with pytest.raises(ParameterError, match="'quantile' parameter"):
        PublishedPerturbedRisk(loss="pinball", quantile=1.0).fit(X, y)


REGULARISERS = {
    "norm": ({}, lambda b: b @ b),
    "weighted": ({"weights": (0.5, 3.0)}, lambda b: 0.5 * b[0] ** 2 + 3 * b[1] ** 2),
    "elastic": ({}, lambda b: b @ b + 0.3 * np.abs(b).sum()),
    "p-norm": ({"p": 1.5}, lambda b: np.sum(np.abs(b) ** 1.5) ** (2 / 1.5)),
}


@pytest.mark.parametrize("name", REGULARISERS)
def test_theorem_2_holds_for_other_regularisers(name, rng):
    """By the definition: minimisers of random neighbouring problems, and strong convexity itself."""
    options, omega = REGULARISERS[name]
    gamma = strong_convexity(name, **options)
    for _ in range(2000):
        f, g, t = rng.normal(size=2), rng.normal(size=2), rng.random()
        middle = t * omega(f) + (1 - t) * omega(g) - gamma / 2 * t * (1 - t) * (f - g) @ (f - g)
        assert omega(t * f + (1 - t) * g) <= middle + 1e-12
    most = 0.0
    for _ in range(12):
        X = rng.normal(size=(6, 2))
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        signs, lam = rng.choice([-1.0, 1.0], 6), 0.5

        def best(X, signs, lam=lam):
            def risk(b):
                return float(np.mean(np.logaddexp(0, -signs * (X @ b))) + lam * omega(b))

            return minimize(risk, np.zeros(2), method="Nelder-Mead",
                            options={"xatol": 1e-9, "fatol": 1e-13}).x  # fmt: skip

        other, turned = X.copy(), signs.copy()
        other[0], turned[0] = -signs[0] * X[1], 1.0
        moved = np.linalg.norm(best(X, signs) - best(other, turned))
        most = max(most, moved / theorem_2(1.0, 1.0, lam, 6, gamma))
    assert 0.02 < most <= 1


def test_regularisers_without_a_proof_are_refused():
    with pytest.raises(ParameterError, match="not strongly convex.*two different spaces"):
        strong_convexity("coefficients")
    for bad in ({"p": 1.0}, {"weights": ()}, {"weights": (0.0,)}):
        with pytest.raises(ParameterError, match="of strong_convexity"):
            strong_convexity("p-norm", **bad)


def test_a_weighted_norm_is_the_plain_norm_of_rescaled_features(rng):
    """A length scale per column: four times the weight on the square of the second coefficient."""
    X = rng.uniform(-1, 1, (400, 2))
    y = 0.4 * X[:, 0] + 0.4 * X[:, 1]
    options = {"kernel": "linear", "bounds": (-1, 1), "y_bounds": (-1, 1), "solver": "output"}
    model = PrivateKernelRidge(
        1e9, length_scale=[1.0, 2.0], regularisation=30.0, **options, noise=SeededNoise(0)
    ).fit(X, y)
    slopes = [float(np.diff(model.predict(np.eye(2)[[j]] * [[0], [0.5]]))[0]) * 2 for j in (0, 1)]
    recipe, _ = RecordRecipe.choose(model._domain, model.feature_map_, 400, 1.0)
    z, omega = recipe.rows(X)
    original = np.column_stack([z[:, 0], z[:, 1], 2 * z[:, 2]])  # without the length scales
    penalty = 30.0 * np.diag([1.0, 1.0, 4.0])
    beta = np.linalg.solve(
        original.T @ (omega[:, None] * original) + penalty, original.T @ (omega * y)
    )
    wanted = original[:, 1:] @ beta[1:]
    np.testing.assert_allclose(np.linalg.lstsq(X - X.mean(0), wanted - wanted.mean(), rcond=None)[0],
                               slopes, atol=1e-3)  # fmt: skip
    assert slopes[0] > slopes[1] + 0.01
