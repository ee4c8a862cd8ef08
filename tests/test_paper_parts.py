"""Lemmas and propositions that bound a part of an error: each bound holds where it is simulated.

Where a printed bound is wrong, the case that breaks it is tested, too.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import chi2

from dpkernel.foundations.errors import ParameterError
from dpkernel.models.losses import Huber, PowerHinge, Squared
from dpkernel.proof.papers import lee_park_ahn_2025 as lee
from dpkernel.proof.papers import ma_2024 as ma
from dpkernel.proof.papers import wang_guo_2024 as guo
from dpkernel.proof.papers import wang_lei_ying_zhang_2022 as wlyz
from dpkernel.proof.papers.sgd import sgd
from dpkernel.solvers.sketching import gaussian_sketch, sketched_erm

# --- Wang & Guo -----------------------------------------------------------------------------


def hostile(rng, n=8):
    """Rows of norm 1 in two columns, and targets of 1 in absolute value."""
    angles = rng.uniform(0, math.pi, n)
    return np.column_stack([np.cos(angles), np.sin(angles)]), np.sign(rng.normal(size=n))


def test_lemma_3_1_bounds_the_mean_risk_of_iterates(rng):
    Z, y = hostile(rng)
    T = 40
    step = 0.999 / (math.log(T) + 1)
    risks = [
        np.mean((Z @ sgd(Z, y, rng.integers(8, size=T - 1), step, Squared().derivative) - y) ** 2)
        for _ in range(300)
    ]
    assert np.mean(risks) < guo.lemma_3_1(T, step)
    # for tiny steps nothing is learned, and the bound is the risk of 0 for targets of 1
    assert guo.lemma_3_1(T, 1e-9) == pytest.approx(np.mean(y**2))
    with pytest.raises(ParameterError, match="step"):
        guo.lemma_3_1(T, 1 / (math.log(T) + 1))


@pytest.mark.parametrize("r", [0.6, 1.0])
def test_lemma_3_2_and_propositions_4_4_and_4_6_hold_for_known_spectra(r):
    """The operators are diagonal, so that gradient descent and the ridge are known exactly."""
    values = 0.9 * np.arange(1, 60) ** -2.0
    g = np.ones(59) / math.sqrt(59)
    best = values**r * g  # coefficients of the best function, R = 1
    step, lam, T = 0.5, 0.3, 400
    decay = (1 - step * values) ** T
    iterate = (1 - decay) * best  # S v_(T+1)
    norm = math.sqrt(float(np.sum(iterate**2 / values)))
    assert norm <= guo.lemma_3_2(T, step, lam, r=r)
    parts = guo.excess_parts(
        10**5,
        T,
        0.1,
        5000,
        lam,
        1.0,
        1e-6,
        r=r,
        effective_dimension=float(sum(values / (values + lam))),
    )
    ridge = values / (values + lam) * best
    assert np.sum((ridge - best) ** 2) <= parts.source
    steps = np.sum(((1 - (1 - 0.1 * values) ** T) * best - ridge) ** 2)
    assert steps <= parts.steps
    assert parts.total == 6 * sum(
        getattr(parts, k) for k in ("noise", "sampling", "sample", "steps", "features", "source")
    )


def test_lemma_3_4_needs_the_exponent_that_the_print_lost():
    step = 1.0
    for a, b in ((0.1, 1.0), (0.5, 0.5), (3.0, 1.0), (20.0, 2.0)):
        x = np.linspace(0, 1, 10_001)[:-1]
        worst = float(np.max((1 - step * x) ** a * x**b))
        assert worst <= guo.lemma_3_4(a, b, step)
        assert (worst > guo.lemma_3_4(a, b, step, reading="printed")) == (a < 1)
    assert guo.lemma_3_4(0.1, 1.0, 1.0, reading="printed") == pytest.approx(0.37, abs=0.01)
    assert np.max((1 - x) ** 0.1 * x) == pytest.approx(0.715, abs=0.001)


def test_proposition_4_2_lost_the_square_of_the_target_bound(rng):
    """Single records against all of them, on a table that is its own law."""
    Z, y = hostile(rng)
    c, T = 1000.0, 30
    step = 0.9 / (math.log(T) + 1)
    full = np.zeros(2)
    for _ in range(T):
        full = full - step * Z.T @ (Z @ full - c * y) / len(y)
    slope = Squared().derivative
    ends = [sgd(Z, c * y, rng.integers(8, size=T), step, slope) for _ in range(400)]
    gap = float(np.mean([np.mean((Z @ (end - full)) ** 2) for end in ends]))
    sizes = {"r": 1.0, "effective_dimension": 2.0, "target_bound": c}
    given = 10**4, T, step, 5000, 0.1, 1.0, 1e-6
    right = guo.excess_parts(*given, **sizes).sampling
    printed = guo.excess_parts(*given, **sizes, reading="printed").sampling
    assert printed < gap < right == pytest.approx(c**2 * printed)


def test_proposition_4_1_covers_the_noise_of_a_release(rng):
    M, t = 2000, 0.05
    parts = guo.excess_parts(
        10**4, 20_000, 1e-4, M, 0.1, 1.0, 1e-6, r=0.9, effective_dimension=5.0, confidence=t
    )
    sigma = guo.algorithm_1_noise(
        10**4, 20_000, 1e-4, 1.0, 1e-6, kappa=1.0, target_bound=1.0, sensitivity="proof"
    ).noise_scale
    squares = np.sum((sigma * rng.normal(size=(500, M))) ** 2, axis=1)
    assert np.mean(squares > parts.noise) < t


@pytest.mark.parametrize(
    ("change", "name"),
    [({"lam": 0.01}, "lam"), ({"lam": 1.5}, "lam"), ({"n_features": 1000}, "n_features")],
)
def test_parts_are_refused_where_their_propositions_say_nothing(change, name):
    given = {"n_rows": 10**4, "n_steps": 20_000, "step": 1e-4, "n_features": 2000, "lam": 0.1}
    given |= {"epsilon": 1.0, "delta": 1e-6, "r": 0.9, "effective_dimension": 5.0}
    assert guo.excess_parts(**given).total > 1
    with pytest.raises(ParameterError, match=name):
        guo.excess_parts(**given | change)


# --- Ma -------------------------------------------------------------------------------------


def integral(normals, sigma, of_normal=lambda u: 1.0, reading="corrected"):
    """Return the mean over unit normals of the integral of the density over the place on the normal."""
    found = 0.0
    for u, weight in normals:
        P = np.eye(len(u)) - np.outer(u, u)
        places = np.linspace(-6, 6, 19) * math.sqrt(u @ sigma @ u)
        values = [math.exp(ma.lemma_13(P, place * u, sigma, reading=reading)) for place in places]
        found += weight * of_normal(u) * sum(values) * (places[1] - places[0])
    return found


@pytest.mark.parametrize("spread", [1.0, 0.3, 0.05])
def test_only_the_corrected_lemma_13_is_a_density_of_lines(spread):
    sigma = np.array([[1.0, 0.1], [0.1, spread]])
    angles = np.arange(60) * math.pi / 60
    normals = [(np.array([math.cos(t), math.sin(t)]), 1 / 60) for t in angles]
    assert integral(normals, sigma) == pytest.approx(1, abs=1e-3)
    assert abs(integral(normals, sigma, reading="printed") - 1) > 0.1


def test_lemma_13_is_the_law_of_planes_that_a_sketch_spans(rng):
    """h = 3 and m = 2: the density integrates to 1, and gives the mean that draws have."""
    sigma = np.diag([1.0, 0.5, 0.2])
    normals = [
        (
            np.array([math.sqrt(1 - x * x) * math.cos(t), math.sqrt(1 - x * x) * math.sin(t), x]),
            w / 32,
        )
        for x, w in zip(*np.polynomial.legendre.leggauss(8), strict=True)
        for t in np.arange(16) * math.pi / 8
    ]
    assert integral(normals, sigma) == pytest.approx(1, abs=0.01)
    columns = rng.normal(size=(4000, 3, 2)) * np.sqrt(np.diag(sigma))[:, None]
    found = np.cross(columns[:, :, 0], columns[:, :, 1])
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    mean = integral(normals, sigma, lambda u: u[2] ** 2)
    assert mean == pytest.approx(float(np.mean(found[:, 2] ** 2)), abs=0.03)


def test_lemma_16_needs_that_the_point_lies_in_the_space(rng):
    for _ in range(30):
        h, m = 4, int(rng.integers(1, 4))
        part = np.linalg.qr(rng.normal(size=(h, m)))[0]
        P, root = part @ part.T, rng.normal(size=(h, h))
        hessian, minimiser = root @ root.T + np.eye(h), rng.normal(size=h)
        b = rng.normal(size=h)
        b -= P @ b
        steps = np.linalg.solve(part.T @ hessian @ part, part.T @ hessian @ (minimiser - b))
        best = b + part @ steps  # by the normal equations
        found = ma.lemma_16(P, b, best, hessian, minimiser)
        assert found == ma.AffineOptimum(printed=True, corrected=True, inducible=True)
        mirrored = 2 * minimiser - best  # it has the same risk
        found = ma.lemma_16(P, b, mirrored, hessian, minimiser)
        assert found == ma.AffineOptimum(printed=True, corrected=False, inducible=False)
        beside = best + part[:, 0]
        assert not any(vars(ma.lemma_16(P, b, beside, hessian, minimiser)).values())
    with pytest.raises(ParameterError, match="'w' parameter of lemma_16 must be an array"):
        ma.lemma_16(P, b, np.zeros(3), hessian, minimiser)


def test_lemma_19_drops_a_constant():
    first, second = ma.lemma_19(np.ones(200), 134, 0.03, sketches=20)
    assert first >= 0.9 and second == 0.0  # equal eigenvalues
    # the norm is about (1 + sqrt((h - k)/m)) times the root, so the dropped constant is above 2
    assert ma.lemma_19(np.r_[np.ones(6), np.full(194, 1e-9)], 134, 0.03, sketches=5)[1] == 0.0
    assert ma.lemma_19(np.ones(300), 300, 0.5, sketches=3)[0] == 0.0  # C is not small
    with pytest.raises(ParameterError, match="'eigenvalues' parameter of lemma_19"):
        ma.lemma_19([1.0, 2.0], 2, 0.5)
    with pytest.raises(ParameterError, match="'n_sketch' parameter of lemma_19"):
        ma.lemma_19(np.ones(30), 19, 0.1)


def test_lemmas_25_and_26_hold_and_26_can_be_sharper(rng):
    for _ in range(20):
        n, h, m = 50, 5, int(rng.integers(1, 5))
        basis = np.linalg.qr(rng.normal(size=(h, h)))[0]
        sigma = (basis * rng.uniform(0.05, 1.0, h)) @ basis.T
        part = np.linalg.qr(rng.normal(size=(h, m)))[0]
        values = ma.lemma_26(part @ part.T, sigma)
        spectrum = np.linalg.eigvalsh(sigma)
        assert np.sum(np.isclose(values, 1)) >= m
        assert spectrum[0] - 1e-9 <= values[0] and values[-1] <= 1 + 1e-9 <= 2
        Z = rng.normal(size=(h, n))
        Z /= np.linalg.norm(Z, axis=0)
        other = Z.copy()
        other[:, 0] *= -1
        moved = np.linalg.svd(Z, compute_uv=False) - np.linalg.svd(other, compute_uv=False)
        assert np.abs(moved).max() / math.sqrt(n) <= ma.lemma_25(n)[0]
    assert ma.lemma_25(100, change=0.5) == pytest.approx((0.2, 1.4))
    assert ma.lemma_28(100, smoothness=2.0, kappa=4.0) == pytest.approx(6.4)
    with pytest.raises(ParameterError, match="projection"):
        ma.lemma_13(np.eye(2) / 2, np.zeros(2), np.eye(2))
    with pytest.raises(ParameterError, match="rank"):
        ma.lemma_26(np.eye(2), np.eye(2))


def test_theorem_12_is_false_for_planes_in_space_from_many_rows_on():
    assert not ma.affine_divergence(6000).refuted
    for n in (30_000, 600_000, 6 * 10**8):
        found = ma.affine_divergence(n)
        assert found.refuted and 0 < found.least_delta < 1
    ratios = [ma.affine_divergence(n).least_delta * n for n in (6 * 10**7, 6 * 10**9)]
    assert ratios[0] == pytest.approx(ratios[1], rel=0.1)  # of the order 1/n, not n^(-3/2)
    with pytest.raises(ParameterError, match="multiple of 6"):
        ma.affine_divergence(100)


def test_outputs_of_problem_7_have_the_law_that_the_divergence_uses(rng):
    X, y = ma.axis_table(60)
    other = y.copy()
    other[10] = 1.0
    lam, draws, near = 0.01, 1500, []
    moved, sigma = 2 / (60 * (1 / 3 + 2 * lam)), 1 / 3
    radius = 0.4 * moved
    for labels in (y, other):
        outputs = []
        for _ in range(draws):
            sketch = gaussian_sketch(60, 3, int(rng.integers(2**63)))
            fit = sketched_erm(X @ X.T, labels, Squared(), lam, sketch, affine=True)
            outputs.append(X.T @ fit.coefficients)
        near.append(float(np.mean(np.linalg.norm(outputs, axis=1) < radius)))
    first = math.erf(radius / (sigma * math.sqrt(2)))
    second = 2 / 3 * radius * (0.4 / 0.6) ** 2 / (sigma * math.sqrt(2 * math.pi))
    error = 6 * math.sqrt(first / draws)
    assert abs(near[0] - first) < error and near[1] < second + error
    assert first > 4 * second


# --- Wang, Lei, Ying & Zhang ----------------------------------------------------------------


@pytest.mark.parametrize("loss", [Huber(0.5), PowerHinge(1.0), PowerHinge(1.5)])
def test_lemmas_22_24_and_26_bound_what_a_run_loses(loss, rng):
    n, d, T, step, radius, sigma, gamma = 60, 40, 400, 0.05, 2.0, 0.02, 0.2
    Z = rng.normal(size=(n, d))
    Z /= np.linalg.norm(Z, axis=1, keepdims=True)
    y = np.sign(Z[:, 0] + 0.3 * rng.normal(size=n))
    constants = wlyz.HolderConstants.of(loss, kappa=1.0)
    best = np.zeros(d)
    best[0] = 1.5

    def risk(w):
        return float(np.mean(loss.value(y, Z @ w)))

    def run(noise):
        order = rng.integers(n, size=T)
        noisy = (lambda g: g + noise * rng.normal(size=d)) if noise else None
        return sgd(
            Z, y, order, step, loss.derivative, radius=radius, average=True, on_gradient=noisy
        )

    bound = wlyz.lemma_24(T, step, constants, radius, 1.5, confidence=gamma)
    means = [run(0.0) for _ in range(20)]
    assert max(risk(w) - risk(best) for w in means) < bound
    with_noise = wlyz.lemma_26(T, step, sigma, d, constants, radius, 1.5, confidence=gamma)
    assert max(risk(run(sigma)) - risk(best) for _ in range(20)) < with_noise
    added = [risk(w + sigma * rng.normal(size=d)) - risk(w) for w in means]
    assert max(added) < wlyz.lemma_22(sigma, d, constants, radius, confidence=gamma)


def test_lemma_24_squares_both_sides_of_lemma_19():
    steep = wlyz.HolderConstants(1.0, 50.0, 0.0, 1.0)  # c_(1,1) = sqrt(2 L) = 10, its square is 2 L
    step = 0.001
    printed = wlyz.lemma_24(100, step, steep, 1.0, 1.0, reading="printed")
    assert printed < wlyz.lemma_24(100, step, steep, 1.0, 1.0)
    at, value = 0.3, 25 * 0.3**2  # the loss 25 w^2 attains Lemma 19: its slope is sqrt(2 L value)
    assert (50 * at) ** 2 == pytest.approx(wlyz.lemma_19(value, alpha=1.0, L=50.0) ** 2)
    assert (50 * at) ** 2 > wlyz.lemma_19(1.0, alpha=1.0, L=50.0) * value
    with pytest.raises(ParameterError, match="step"):
        wlyz.lemma_24(100, 0.05, steep, 1.0, 1.0)
    with pytest.raises(ParameterError, match="confidence"):
        wlyz.lemma_22(1.0, 10, steep, 1.0, confidence=0.1)


# --- Lee, Park & Ahn ------------------------------------------------------------------------


@pytest.mark.parametrize("gamma", [0.3, 0.5, 0.9])
def test_appendix_d_goes_both_ways(gamma):
    places = np.arange(1, 200_001, dtype=np.float64)
    values = 2.0 * places ** (-1 / gamma)
    Q = lee.appendix_d_dimension(gamma, q=2.0)
    for lam in (1e-3, 0.1, 1.0, 5.0):
        assert float(np.sum(values / (values + lam))) <= Q * lam**-gamma
    for place in (1, 10, 1000):
        assert values[place - 1] <= lee.appendix_d_eigenvalue(place, gamma, Q=Q)


@pytest.mark.parametrize("columns", [1, 5])
def test_lemma_78_holds_for_moments_of_chi_squares(columns):
    """||h||^2 is a chi square with as many degrees of freedom, for the covariance I."""
    for order in (1, 2, 3, 6):
        around, raw = lee.lemma_78(order, float(columns))
        moment = math.prod(columns + 2 * k for k in range(order))
        draws = np.random.default_rng(0).chisquare(columns, 200_000)
        assert moment <= raw and np.mean(np.abs(draws - columns) ** order) <= around


def test_appendix_g_bounds_the_mean_size_of_a_cosine_from_below():
    """phi = sqrt(2) cos(pi l x) on [0, 1] with mu_l = l^-2: k_beta is bounded for beta > 1/2."""
    beta = 0.75
    c_beta = 1 + 2 * sum(k ** (-2 * beta) for k in range(1, 10_000))
    for place in (1, 2, 10):
        size = 2 * math.sqrt(2) / math.pi  # the integral of |phi|
        assert size >= lee.appendix_g(place**-2.0, beta, c_beta=c_beta)


def test_lemma_32_bounds_what_a_projection_moves(rng):
    values, lam, M, t = 0.6 * np.arange(1, 40) ** -2.0, 0.05, 25, 0.05
    N = float(np.sum(values / (values + lam)))
    moved = []
    for _ in range(400):
        paths = rng.normal(size=(M, 39)) * np.sqrt(values)
        gap = (np.diag(values) - paths.T @ paths / M) / np.sqrt(values + lam)[:, None]
        moved.append(float(np.linalg.norm(gap)))
    bound = lee.lemma_32(M, N, kappa=math.sqrt(values.sum()), confidence=t)
    assert np.mean(np.array(moved) > bound) < t


def test_lemma_32_is_false_as_printed_for_very_small_probabilities():
    """One eigenvalue 1 and M = 1: the gap is (z^2 - 1)/sqrt(1 + lambda) with z standard normal."""
    lam, t = 1e-6, 1e-100
    for reading, holds in (("printed", False), ("corrected", True)):
        bound = lee.lemma_32(1, 1 / (1 + lam), confidence=t, reading=reading)
        chance = float(chi2.sf(1 + bound * math.sqrt(1 + lam), 1))
        assert (chance <= t) == holds


def test_lemma_50_forgets_the_noise_of_algorithm_2(rng):
    M, t, loss = 30, 0.05, Huber(1.0)
    scale = lee.algorithm_2_noise(1, 1.0, 1e-6, M, 1.0, loss).noise_scale
    lengths = np.linalg.norm(scale * rng.normal(size=(1000, M)), axis=1)
    assert np.mean(lengths > lee.lemma_50(M, 1.0, 1e-6, loss, confidence=t)) < t
    assert (
        np.mean(lengths > lee.lemma_50(M, 1.0, 1e-6, loss, confidence=t, reading="printed")) > 0.999
    )


def test_theorem_38_has_the_terms_of_lemma_13():
    """Up to constants they agree; as printed, the third term lacks a power of lambda."""
    given = {"r": 0.75, "height": 2.0}
    for n, M, lam in ((10_000, 50, 0.01), (10**6, 500, 1e-3)):
        N = lam**-0.5
        found = lee.theorem_38(n, M, lam, N, **given)
        assert 0.2 < found / lee.lemma_13(n, M, lam, N, **given) < 5
        printed = lee.theorem_38(n, M, lam, N, reading="printed", **given)
        lost = 2 * math.sqrt(N * math.log(40) / M)
        assert printed - found == pytest.approx(lost * (1 - math.sqrt(lam)))
    # with the schedule of Theorem 11 only the corrected square falls as the rate does
    rates = {"printed": [], "corrected": []}
    for n in (10**6, 10**9):
        rate = lee.theorem_11(n, 1.0, r=0.75, gamma=0.5)
        for reading, kept in rates.items():
            bound = lee.theorem_38(
                n, round(rate.n_features), rate.lam, rate.lam**-0.5, r=0.75, reading=reading
            )
            kept.append(bound**2 / rate.statistics)
    assert rates["corrected"][1] < 1.5 * rates["corrected"][0]
    assert rates["printed"][1] > 10 * rates["printed"][0]


def test_lemma_14_truncates_no_target_where_the_print_cuts_the_best_function_itself(rng):
    """A constant kernel 4 on one input: L g = 4 E[g], so f = 4 with R = 1 and r = 1."""
    n, t = 200, 0.05
    given = {"r": 1.0, "kappa": 2.0, "confidence": t}
    small = {"tail": 1e-3, "sigma": 1e-3}
    printed = lee.lemma_14_truncation(n, reading="printed", **small, **given)
    assert printed < 4 < lee.lemma_14_truncation(n, **small, **given)
    # Laplace noise of scale b meets Assumption 2 with B = b and sigma = sqrt(2) b
    bound = lee.lemma_14_truncation(n, tail=0.3, sigma=0.3 * math.sqrt(2), **given)
    largest = np.abs(4 + rng.laplace(scale=0.3, size=(2000, n))).max(axis=1)
    assert np.mean(largest > bound) <= t
