"""Sketched empirical risk minimisation, which is not private, and the paper that claims it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.linalg import hadamard
from scipy.optimize import minimize

from dpkernel.foundations.errors import CertificateError, ParameterError
from dpkernel.models.kernels import GaussianKernel
from dpkernel.models.losses import Hinge, Huber, Logistic, Squared
from dpkernel.privacy.certificate import Certificate
from dpkernel.proof.papers import PublishedSketchedERM
from dpkernel.proof.papers.ma_2024 import (
    affine_counterexample,
    counterexample,
    equal_sketches,
    full_counterexample,
    lemma_27,
    theorem_5,
    theorem_12,
)
from dpkernel.solvers.sketching import SKETCHES, sketched_erm, walsh_hadamard

LOSSES = [Squared(), Huber(0.3), Logistic()]


@pytest.fixture
def table(rng):
    X = rng.uniform(-1, 1, (50, 2))
    return X, GaussianKernel(length_scale=0.6)(X), np.sin(3 * X[:, 0])


def targets(loss, y):
    return np.sign(y) if loss.labels else y


@pytest.mark.parametrize("kind", SKETCHES)
class TestSketches:
    def test_right_and_expand_are_one_matrix(self, kind, rng):
        sketch = SKETCHES[kind](37, 9, 3)
        S = sketch.right(np.eye(37))
        assert S.shape == (37, 9)
        A, alpha = rng.normal(size=(5, 37)), rng.normal(size=9)
        np.testing.assert_allclose(sketch.right(A), A @ S, atol=1e-12)
        np.testing.assert_allclose(sketch.expand(alpha), S @ alpha, atol=1e-12)

    def test_its_mean_square_is_the_identity(self, kind):
        """Over 3000 seeds; entries of S S^T have deviations of about 1/sqrt(m)."""
        n, m = 12, 6
        total = np.zeros((n, n))
        for seed in range(3000):
            S = SKETCHES[kind](n, m, seed).right(np.eye(n))
            total += S @ S.T
        np.testing.assert_allclose(total / 3000, np.eye(n), atol=0.08)

    def test_seeds(self, kind):
        one, two, other = (SKETCHES[kind](20, 5, seed).right(np.eye(20)) for seed in (1, 1, 2))
        assert np.array_equal(one, two) and not np.array_equal(one, other)

    @pytest.mark.parametrize(("n", "m"), [(5, 6), (5, 0), (5, 2.0)])
    def test_bad_sizes(self, kind, n, m):
        with pytest.raises(ParameterError, match="1 <= m <= n"):
            SKETCHES[kind](n, m, 0)


def test_the_fast_transform_is_the_hadamard_matrix(rng):
    A = rng.normal(size=(3, 16))
    np.testing.assert_allclose(walsh_hadamard(A), A @ hadamard(16), atol=1e-12)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
@pytest.mark.parametrize("kind", SKETCHES)
def test_newton_finds_the_minimum_on_the_subspace(table, loss, kind):
    _, gram, y = table
    y, n, lam = targets(loss, y), 50, 0.01
    sketch = SKETCHES[kind](n, 10, 4)
    S = sketch.right(np.eye(n))
    start = np.random.default_rng(9).normal(size=10)
    fit = sketched_erm(gram, y, loss, lam, sketch, start=start)

    def objective(alpha):
        beta = S @ alpha / math.sqrt(n)
        return loss.value(y, gram @ beta).mean() + lam * beta @ gram @ beta

    best = minimize(objective, np.zeros(10), method="BFGS", options={"gtol": 1e-9})
    assert objective(fit.alpha) <= best.fun + 1e-10
    assert fit.gradient_norm < 1e-8 and fit.steps <= 30
    np.testing.assert_allclose(fit.coefficients, S @ fit.alpha / math.sqrt(n), atol=1e-12)


def test_a_square_sketch_is_kernel_ridge_regression(table):
    _, gram, y = table
    fit = sketched_erm(gram, y, Squared(), 0.02, SKETCHES["gaussian"](50, 50, 1))
    # the loss is (y - s)^2 / 2 or (y - s)^2: the ridge follows from its curvature
    bend = float(Squared().curvature(y[:1], y[:1])[0])
    exact = np.linalg.solve(gram + 2 * 0.02 * 50 / bend * np.eye(50), y)
    np.testing.assert_allclose(gram @ fit.coefficients, gram @ exact, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": Hinge()}, "bounded curvature"),
        ({"regularisation": 0.0}, "'regularisation' parameter"),
        ({"steps": 0}, "'steps' parameter"),
        ({"gram": np.eye(49)}, r"shape \(50, 50\)"),
        ({"sketch": SKETCHES["count"](40, 5, 0)}, "a sketch of 50 rows"),
    ],
)
def test_bad_arguments(table, change, message):
    _, gram, y = table
    sketch = SKETCHES["count"](50, 5, 0)
    options = {"gram": gram, "y": y, "loss": Squared(), "regularisation": 0.1, "sketch": sketch}
    with pytest.raises(ParameterError, match=message):
        sketched_erm(**{**options, **change})


# --- the paper ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "epsilon", "more", "printed", "proof"),
    [
        ((10**4, 10, 7, 5, 0.1), 35.9050, 34.45345, 10.8936, 20.4936),
        ((10**6, 50, 40, 10, 0.1), 102.454, 62.52443, 1398.48, 1644.48),
        ((10**6, 3, 2, 2, 0.1), 1.04844, 2.97556, -5.64445, -3.84445),
    ],
)
def test_the_numbers_of_theorem_12(sizes, epsilon, more, printed, proof):
    found = theorem_12(*sizes)
    assert found.epsilon == pytest.approx(epsilon, rel=1e-5)
    assert found.log10_delta == pytest.approx(printed, rel=1e-5)
    other = theorem_12(*sizes, sign="proof")
    assert other.epsilon == pytest.approx(more, rel=1e-5)  # (13), (17) and (18)
    assert other.log10_delta == pytest.approx(proof, rel=1e-5)


@pytest.mark.parametrize(("h", "m", "exponent"), [(10, 9, 7.2), (100, 67, 12.9)])
def test_an_epsilon_of_one_needs_astronomic_tables(h, m, exponent):
    assert theorem_12(int(10**exponent), h, m, 5, 0.1).epsilon <= 1
    assert theorem_12(int(10 ** (exponent - 0.1)), h, m, 5, 0.1).epsilon > 1


@pytest.mark.parametrize(
    ("change", "message"),
    [({"m": 11}, "m <= h"), ({"nu": 0.0}, "nu, constants"), ({"sign": "minus"}, "'sign'")],
)
def test_bad_arguments_of_the_theorem(change, message):
    with pytest.raises(ParameterError, match=message):
        theorem_12(**{"n": 100, "h": 10, "m": 5, "d": 2, "nu": 0.1, **change})


def test_one_changed_label_is_seen_with_certainty(seed):
    """What Theorem 12 claims private at delta = 1e-5 has delta above 0.8 (confidence 1 - 1e-6)."""
    found = counterexample(sketches=200, seed=seed)
    assert found.largest_at_zero < 1e-9 < 1e-3 < found.smallest_after
    assert found.delta_lower > 0.7 > 10 ** theorem_12(10**6, 3, 2, 2, 0.1).log10_delta


def test_the_demonstration_claims_nothing_where_there_is_nothing_to_see():
    """With one sketch the bounds are those of one trial."""
    assert counterexample(sketches=1).delta_lower == 0


@pytest.mark.parametrize("kind", SKETCHES)
def test_the_printed_algorithm_learns_and_certifies_nothing(table, kind):
    X, _, y = table
    model = PublishedSketchedERM(n_sketch=30, sketch=kind, regularisation=1e-4).fit(X, y)
    assert np.mean((model.predict(X) - y) ** 2) < 0.1 * np.var(y)
    certificate = model.certificate_
    assert not certificate.valid and not certificate.private
    assert certificate.profile.delta(100.0) == 1
    with pytest.raises(CertificateError, match="not proved: erratum 001-1"):
        certificate.verify()
    again = Certificate.from_json(certificate.to_json())
    assert again == certificate and not again.valid


def test_the_printed_algorithm_takes_other_losses_and_refuses_large_sketches(table):
    X, _, y = table
    robust = PublishedSketchedERM(loss=Huber(0.2), regularisation=1e-3).fit(X, y)
    assert np.corrcoef(robust.predict(X), y)[0, 1] > 0.8
    with pytest.raises(ParameterError, match="at most the number of rows, 50"):
        PublishedSketchedERM(n_sketch=51).fit(X, y)
    with pytest.raises(ParameterError, match="'sketch' parameter"):
        PublishedSketchedERM(sketch="none").fit(X, y)


# --- the affine variant, other kernels, Theorem 5 ---------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
def test_the_affine_problem_keeps_its_last_coefficient_and_minimises_over_the_others(table, loss):
    _, gram, y = table
    y, sketch = targets(loss, y), SKETCHES["gaussian"](50, 8, 1)
    found = sketched_erm(gram, y, loss, 0.05, sketch, affine=True)
    assert found.alpha[-1] == 1.0
    S = sketch.right(np.eye(50))

    def objective(free):
        beta = S @ np.append(free, 1.0) / math.sqrt(50)
        return float(loss.value(y, gram @ beta).mean() + 0.05 * beta @ gram @ beta)

    best = minimize(objective, np.zeros(7), method="BFGS", options={"gtol": 1e-10})
    assert objective(found.alpha[:-1]) <= best.fun + 1e-9
    plain = sketched_erm(gram, y, loss, 0.05, sketch)
    assert objective(found.alpha[:-1]) >= plain_value(plain, gram, y, loss) - 1e-12


def plain_value(found, gram, y, loss):
    beta = found.coefficients
    return float(loss.value(y, gram @ beta).mean() + 0.05 * beta @ gram @ beta)


def test_the_affine_variant_is_told_apart_by_an_input_that_leaves_the_span():
    inside, outside = affine_counterexample(sketches=200)
    assert inside <= 1e-12 and outside > 1e-9


@pytest.mark.parametrize("affine", [False, True])
def test_a_sketch_with_as_many_columns_as_features_hides_nothing(affine):
    spread, difference = full_counterexample(sketches=50, affine=affine)
    assert spread < 1e-9 and difference > 1e-3


def test_lemma_27_takes_a_bound_on_curvature_for_one_on_slopes():
    """Two orthogonal features with the label 1, and coefficients of norm 1 that predict -1/sqrt(2)."""
    found, loss = lemma_27(Squared(), 10), Squared()
    slopes = loss.derivative(np.ones(2), np.full(2, -math.sqrt(0.5)))
    moved = float(np.linalg.norm([slopes[0], -slopes[1]])) / 10
    assert found.printed == pytest.approx(0.2) and found.corrected == pytest.approx(0.4)
    assert 1.2 * found.printed < moved <= found.corrected
    assert lemma_27(Logistic(), 10).corrected == pytest.approx(0.2 / (1 + math.exp(-1)))
    for bad in ({"n": 0}, {"n": 5, "kappa": 0.0}):
        with pytest.raises(ParameterError, match="lemma_27"):
            lemma_27(Squared(), **bad)


@pytest.mark.parametrize(
    "kernel", ["laplace", "linear", "polynomial", GaussianKernel(0.4)], ids=str
)
@pytest.mark.parametrize("affine", [False, True])
def test_the_printed_algorithm_takes_other_kernels(table, kernel, affine):
    X, _, y = table
    model = PublishedSketchedERM(n_sketch=20, kernel=kernel, affine=affine).fit(X, y)
    assert model.predict(X).shape == y.shape and not model.certificate_.valid
    assert np.isfinite(model.predict(100 * X)).all()
    with pytest.raises(ParameterError, match="'n_sketch' parameter"):
        PublishedSketchedERM(n_sketch=51 - affine, affine=affine).fit(X, y)


def test_the_schedule_of_theorem_5(table):
    X, _, y = table
    values = 2.0 ** -np.arange(12)
    found = theorem_5(values, 1000)
    assert found.n_sketch == 8 and found.lam == pytest.approx(math.sqrt(values[8:].sum()))
    assert found.rate == pytest.approx(1000**-0.5 + found.lam)
    assert 1 - found.probability == pytest.approx(2 * math.exp(-16) + 2e-6)
    assert theorem_5(values, 1000, C=0.9).n_sketch == 11 > found.n_sketch
    model = PublishedSketchedERM(n_sketch="theorem-5", regularisation="theorem-5").fit(X, y)
    assert model.n_sketch_ == math.ceil(2 * 50 / 3) and 0 < model.regularisation_ < 1
    for bad in ({"eigenvalues": []}, {"n": 1}, {"C": 1.0}):
        with pytest.raises(ParameterError, match="theorem_5"):
            theorem_5(**{"eigenvalues": values, "n": 10, **bad})


def test_a_private_sketch_can_not_serve_the_logistic_loss():
    """Two tables with one law of the sketch, on which the best coefficients differ."""
    tables = equal_sketches()
    grams, best = [], []
    for Z, y in tables:
        records = np.column_stack([Z, y, np.ones(len(y))])
        grams.append(records.T @ records)

        def risk(w, Z=Z, y=y):
            return float(Logistic().value(y, Z[:, 0] * w[0]).sum() + 0.05 * w[0] ** 2)

        best.append(minimize(risk, [0.0]).x[0])
    np.testing.assert_allclose(*grams, atol=1e-12)
    assert abs(best[0] - best[1]) > 0.1
