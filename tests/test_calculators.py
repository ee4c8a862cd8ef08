"""The calculators of Wang & Guo, Lee, Park & Ahn and Nie & Wang against values worked out by hand.

Sizes are powers and logarithms whole numbers, so that every value can be checked on paper; where that
is not so, 30 digits by another route.
"""

from __future__ import annotations

import math

import mpmath
import pytest

from dpkernel.foundations.errors import ParameterError
from dpkernel.proof.papers import gaussian_lemma
from dpkernel.proof.papers import lee_park_ahn_2025 as lee
from dpkernel.proof.papers import nie_wang_2016 as nie
from dpkernel.proof.papers import wang_guo_2024 as guo
from dpkernel.proof.papers import wang_lei_ying_zhang_2022 as wlyz
from dpkernel.proof.papers.nie_wang_2016.rates import TRUE_UP_TO

E1, E2, E4 = math.exp(-1), math.exp(-2), math.exp(-4)


# --- Wang & Guo -----------------------------------------------------------------------------


def test_wang_guo_theorem_1_by_hand():
    # r = 3/4, a = 3/4: 2r + a = 9/4, 4r + 3a - 4 - 2ra = 3 + 9/4 - 4 - 9/8 = 1/8, so the powers of n are
    # -(1/8)/(9/4) = -1/18 and -(3/2)/(9/4) = -2/3; n = 2^18: 1/2 and 2^-12. log(1/t) = 1
    n, size = 2**18, 18 * math.log(2)
    found = guo.theorem_1(n, 0.5, E4, r=0.75, capacity=0.75, confidence=E1)
    privacy = 0.5 * 4 * (size + 1) * (size + math.log(2) + 4) * (math.log(2.5) + 4)
    assert found.privacy == pytest.approx(privacy)
    known = 2**-12 * size**2 * (math.log(18) + 1) ** 2
    assert found.statistics == pytest.approx(known)
    assert found.total == found.privacy + found.statistics
    # T = n^((9/4 + 1)/(9/4)) = n^(13/9) = 2^26, eta = 1/n, M = n^((1 + 3/8)/(9/4)) log(n/t) and
    # (11/8)/(9/4) = 11/18: 2^11
    assert found.schedule.n_steps == 2**26 and found.schedule.step == 2**-18
    assert found.schedule.n_features == round(2**11 * (size + 1))
    proof = guo.theorem_1(n, 0.5, E4, r=0.75, capacity=0.75, confidence=E1, reading="proof")
    lost = (size + math.log(2) + 4) * math.sqrt(math.log(18) + 1)
    assert proof.privacy / found.privacy == pytest.approx(lost)
    assert proof.statistics == found.statistics


def test_wang_guo_theorem_2_by_hand_in_three_readings():
    # n = T = 4, gamma = 4/e^3: log(n/gamma) = 3, c = max(3, 9), k = 10; eta = 1/4, kappa = 1, c = 2
    gamma, options = 4 * math.exp(-3), {"kappa": 1.0, "target_bound": 2.0}
    assert guo.chernoff_hits(4, 4, gamma) == pytest.approx(10)
    stated = guo.stated_sensitivity(4, 4, 0.25, gamma, **options)
    proved = guo.proved_sensitivity(4, 4, 0.25, gamma, **options)
    assert stated == pytest.approx(4 * math.e / 16 * (2 + 1) ** 2 * 110)  # 000-2: kappa^2 without c
    assert proved == pytest.approx(0.5 * (2 + 2) * math.sqrt(math.e * 110))
    # direct: G = 2 (1 + sqrt(1/(2 - 1/4))) = 2 (1 + sqrt(4/7)), 2 eta G k
    direct = guo.direct_sensitivity(10, 4, 0.25, **options)
    assert direct == pytest.approx(0.5 * 2 * (1 + math.sqrt(4 / 7)) * 10)
    assert proved / direct > 1.65  # 000-3: sqrt(e (1 + 1/k)) of it is the recursion's
    assert guo.direct_sensitivity(0, 4, 0.25, **options) == 0.0


@pytest.mark.parametrize(
    ("n", "step", "delta", "factor"), [(10**3, 1e-3, 1e-5, 2.6), (10**4, 1e-4, 1e-6, 21)]
)
def test_the_stated_sensitivity_is_too_small_by_the_factor_of_its_erratum(n, step, delta, factor):
    options = {"kappa": 1.0, "target_bound": 1.0}
    stated = guo.stated_sensitivity(n, n, step, delta / 2, **options)
    proved = guo.proved_sensitivity(n, n, step, delta / 2, **options)
    assert proved / stated == pytest.approx(factor, rel=0.02)
    assert proved**2 == pytest.approx(stated)  # c = 1: the missing root is all the difference


# --- Lee, Park & Ahn ------------------------------------------------------------------------


def test_theorem_10_by_hand():
    # r = 1/2, gamma = 1/2, beta = 1: n^(-2/3), (n epsilon)^(-2/(5/2)) = (n epsilon)^(-4/5)
    found = lee.theorem_10(2**15, 1 / 32, r=0.5, gamma=0.5, beta=1.0)
    assert found.statistics == pytest.approx(2**-10)
    assert found.privacy == pytest.approx(2**-8)
    assert found.total == found.statistics + found.privacy and found.privacy_leads
    assert lee.theorem_23(2**15, 1 / 32, r=0.5, gamma=0.5, beta=1.0) == found
    # r = 1, gamma = beta = 0: 1/n and (n epsilon)^-2
    found = lee.theorem_10(100, 0.1, r=1.0, gamma=0.0, beta=0.0)
    assert (found.statistics, found.privacy) == pytest.approx((0.01, 0.01))


def test_theorem_11_by_hand_and_its_two_regimes():
    # r = gamma = 1/2: statistics n^(-2/3), privacy (n epsilon)^(-4/5); they meet at n^(-1/6)
    n = 2**30
    edge = 2**-5.0
    for epsilon, leads in [(2 * edge, False), (edge / 2, True)]:
        found = lee.theorem_11(n, epsilon, r=0.5, gamma=0.5, confidence=E2)
        assert found.statistics == pytest.approx(2**-20)
        assert found.privacy == pytest.approx((n * epsilon) ** -0.8)
        assert found.privacy_leads is leads and found.logarithms == pytest.approx(4)
        # M = n^((2r+gamma-1)/(2r+gamma)) = n^(1/3), or (n epsilon)^((4r+2gamma-2)/(4r+gamma)) = ^(2/5)
        features = (n * epsilon) ** 0.4 if leads else 2**10
        assert found.n_features == pytest.approx(features)
        assert found.lam == pytest.approx(max(found.statistics, found.privacy))  # 2r = 1
    # r = 1/2 is optimal: the lower bound with beta = 1
    low = lee.theorem_10(n, 0.1, r=0.5, gamma=0.5, beta=1.0)
    high = lee.theorem_11(n, 0.1, r=0.5, gamma=0.5, confidence=E1)
    assert high.total == pytest.approx(low.total)
    # and r = 1 is not: (n epsilon)^(-8/9) against (n epsilon)^(-8/7)
    worse = lee.theorem_11(2**21, 2.0**42, r=1.0, gamma=0.5, confidence=E1)  # n epsilon = 2^63
    assert worse.privacy == pytest.approx(2**-56)
    best = lee.theorem_10(2**21, 2.0**42, r=1.0, gamma=0.5, beta=1.0)
    assert best.privacy == pytest.approx(2**-72)


def test_lemma_14_by_hand():
    # t = 2/e^8: log(2/t) = 8; log(1/delta) = 4; n lambda epsilon = 400, Delta_1 = 2: (400/8)^2 features
    t = 2 * math.exp(-8)
    found = lee.lemma_14(1600, 0.5, E4, 0.5, 3.0, kappa=2.0, height=2.0, confidence=t)
    assert (found.least, found.most) == pytest.approx((5 * 8, 2500))
    assert found.least_rows == pytest.approx(8 * (math.log(3 / 2) + 8))  # 67.2
    assert found.holds(68, 40) and not found.holds(67, 40)
    assert not found.holds(68, 39) and not found.holds(68, 2501)
    # ||L|| = 4, N = 1/4: (2/4 + 1/4) 8 is below log(2/t)
    low = lee.lemma_14(1600, 1.0, E4, 0.5, 0.25, kappa=2.0, operator_norm=4.0, confidence=t)
    assert low.least == pytest.approx(8)


def test_theorem_17_lies_between():
    # r = 3/4, gamma = 0, alpha = 1: g = 1/2; statistics 1/n, privacy (n epsilon)^(-3/(7/2)) = ^(-6/7)
    n = 2**14
    found = lee.theorem_17(n, 1.0, r=0.75, gamma=0.0, alpha=1.0, confidence=E1)
    assert (found.statistics, found.privacy) == pytest.approx((2**-14, 2**-12))
    # lambda = max(n^(-2/3), n^(-4/7)) = 2^-8, M = lambda^-(2r + g - 1) = 2^8
    assert (found.lam, found.n_features) == pytest.approx((2**-8, 2**8))
    sure = lee.theorem_17(n, 1.0, r=0.75, gamma=0.0, alpha=1.0, confidence=E2)
    assert (found.logarithms, sure.logarithms) == pytest.approx((1, 4))
    fits = lee.theorem_17(n, 0.1, r=0.75, gamma=0.4, alpha=0.4)
    assert fits.total == pytest.approx(lee.theorem_11(n, 0.1, r=0.75, gamma=0.4).total)
    assert lee.theorem_17(n, 0.1, r=0.75, gamma=0.4, alpha=1.0).privacy > fits.privacy


def test_theorems_18_to_22_by_hand():
    n = 2**12
    # gamma = 1: n^(-1/2) = 2^-6, (n epsilon)^(-2/3) = 2^-8 at epsilon = 1; lambda = 2^-6 = 1/M
    found = lee.theorem_18(n, 1.0, gamma=1.0, confidence=E2)
    assert (found.statistics, found.privacy) == pytest.approx((2**-6, 2**-8))
    assert (found.lam, found.n_features, found.logarithms) == pytest.approx((2**-6, 2**6, 4))
    assert found.total == pytest.approx(4 * (2**-6 + 2**-8))
    # gamma = 0, alpha = 1, epsilon = 2^-6: (n epsilon)^-1 = 2^-6, with random features ^(-2/3) = 2^-4
    assert lee.theorem_18(n, 2**-6, gamma=0.0).privacy == pytest.approx(2**-6)
    wide = lee.theorem_18(n, 2**-6, gamma=0.0, alpha=1.0)
    assert (wide.privacy, wide.lam, wide.n_features) == pytest.approx((2**-4, 2**-4, 2**4))
    # 19 and 21 are 11 and 17 with log^2 n
    squared = lee.theorem_11(n, 0.1, r=0.75, gamma=0.5)
    found = lee.theorem_19(n, 0.1, r=0.75, gamma=0.5)
    assert (found.statistics, found.privacy) == (squared.statistics, squared.privacy)
    assert found.logarithms == pytest.approx((12 * math.log(2)) ** 2)
    found = lee.theorem_21(n, 1.0, r=0.75, gamma=0.0, alpha=1.0)
    assert found.privacy == pytest.approx(2 ** (-12 * 6 / 7))
    assert found.logarithms == pytest.approx((12 * math.log(2)) ** 2)
    # 22 at r = 1/2: (n epsilon)^(-2/3), lambda the same; at r = 1: (n epsilon)^-1, lambda its root
    found = lee.theorem_22(n, 2**-3, r=0.5, gamma=0.0)
    assert (found.statistics, found.privacy, found.lam) == pytest.approx((2**-12, 2**-6, 2**-6))
    found = lee.theorem_22(n, 2**-2, r=1.0, gamma=0.0)
    assert (found.privacy, found.lam) == pytest.approx((2**-10, 2**-5))
    # gamma = 1 and much epsilon: lambda is n^(-1/2)
    assert lee.theorem_22(n, 2.0**6, r=0.5, gamma=1.0).lam == pytest.approx(2**-6)
    # the order of the methods that the paper reports at r = 1/2
    ours, theirs = (
        rate(n, 0.05, r=0.5, gamma=0.5).privacy for rate in (lee.theorem_19, lee.theorem_22)
    )
    assert ours < lee.theorem_21(n, 0.05, r=0.5, gamma=0.5, alpha=0.9).privacy < theirs


def test_linear_models_by_hand():
    # n = 2^12, epsilon = 2^-3: n epsilon = 2^9, (n epsilon)^(-2/3) = 2^-6, n^(-1/2) = 2^-6
    found = lee.theorem_63(2**12, 2**-3, 4, confidence=E1)
    assert (found.statistics, found.privacy) == pytest.approx((2**-10, 2**-8))
    # lambda = 2^-8, N = min(1/lambda, rank) = 4, M = 2^9 2^-8 2
    assert (found.lam, found.n_features) == pytest.approx((2**-8, 4))
    one = lee.theorem_63(2**12, 2**-3, 1)
    assert (one.statistics, one.privacy) == pytest.approx((2**-12, 2**-9))
    many = lee.theorem_63(2**12, 2**-3, 2**20, confidence=E1)
    assert (many.statistics, many.privacy) == pytest.approx((2**-6, 2**-6))
    found = lee.theorem_64(2**12, 2**-3, 4, confidence=E2)
    assert (found.statistics, found.privacy) == pytest.approx((2**-6, 2**-8))
    assert found.logarithms == pytest.approx(4) and found.lam == pytest.approx(2**-6)
    found = lee.theorem_65(2**12, 2**-3, 4)
    assert (found.statistics, found.privacy) == pytest.approx((2**-10, 2**-8))
    assert found.logarithms == pytest.approx((12 * math.log(2)) ** 2)
    assert lee.theorem_65(2**12, 2**-3, 4, reading="proof").statistics == 2**-12  # without the rank


def test_lemma_66_takes_a_norm_for_a_trace():
    # four eigenvalues of 1/4, lambda = 1/2: N = 4/3; norm/lambda = 1/2, trace/lambda = 2
    found = lee.lemma_66([0.25] * 4, 0.5)
    assert (found.exact, found.printed, found.corrected) == pytest.approx((4 / 3, 0.5, 2))
    # lambda = 1/100: the rank is the smaller one in both; N = 4 * 25/26
    found = lee.lemma_66([0.25] * 4, 0.01)
    assert (found.exact, found.printed, found.corrected) == pytest.approx((100 / 26, 4, 4))


def test_the_canonical_estimator_and_its_power():
    # r = gamma = 1/2, beta = 1, n = 2^15, epsilon = 1: min(n^(2/5), n^(1/3)) = 2^5 coefficients;
    # log(1/delta) = 2: multiplier 1 + 2; corrected (2^5)^(1/gamma) = 2^10, to the power beta/2: 2^5
    options = {"r": 0.5, "gamma": 0.5, "beta": 1.0}
    right = lee.canonical_estimator(2**15, 1.0, E2, **options)
    assert right.n_coefficients == 32
    assert right.noise_scale == pytest.approx(2 * 32 * 3 / 2**15)
    printed = lee.canonical_estimator(2**15, 1.0, E2, reading="printed", **options)
    assert right.noise_scale / printed.noise_scale == pytest.approx(math.sqrt(32))
    # c_beta = 4, q_1 = 1/4: sqrt(4) (4)^(1/2) times as much; printed 4 times
    more = {"c_beta": 4.0, "q_1": 0.25}
    wide = lee.canonical_estimator(2**15, 1.0, E2, **options, **more)
    assert wide.noise_scale / right.noise_scale == pytest.approx(4)
    # epsilon = 2^-5: (n epsilon)^(2/5) = 2^4 is the smaller one
    assert lee.canonical_estimator(2**15, 2**-5, E2, **options).n_coefficients == 16
    assert lee.canonical_estimator(2, 0.5, E2, **options).n_coefficients == 1


def test_the_noise_of_section_4_2():
    # log(4/delta) = 2: 2 T 3/(n epsilon), without the half of epsilon of Algorithm 1
    assert lee.clipped_mean_noise(10, 0.5, 4 * E2, 1.5) == pytest.approx(2 * 1.5 * 3 / (10 * 0.5))


def test_algorithm_5_has_half_the_noise_it_needs():
    # log(1/delta) = 2: 3 c_1 kappa/(n lambda epsilon)
    printed = lee.algorithm_5_noise(10, 0.5, E2, 0.1, slope=2.0, kappa=1.5)
    assert printed == pytest.approx(2 * 1.5 * 3 / (10 * 0.1 * 0.5))
    corrected = lee.algorithm_5_noise(10, 0.5, E2, 0.1, slope=2.0, kappa=1.5, reading="corrected")
    assert corrected == 2 * printed  # 003-11


@pytest.mark.parametrize(("epsilon", "ratio"), [(0.5, 11.9869), (1.0, 30.4894), (2.0, 96.7562)])
def test_what_algorithm_5_is_worth(epsilon, ratio):
    """The Gaussian profile in 30 digits, at mu = 2 epsilon/(1 + sqrt(2 log(1/delta)))."""
    with mpmath.workdps(30):
        mu = 2 * mpmath.mpf(epsilon) / (1 + mpmath.sqrt(2 * mpmath.log(10**5)))
        true = mpmath.ncdf(mu / 2 - epsilon / mu)
        true -= mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
    found = lee.algorithm_5_delta(epsilon, 1e-5)
    assert found == pytest.approx(float(true), rel=1e-8)
    assert found / 1e-5 == pytest.approx(ratio, rel=1e-5)


# --- Nie & Wang -----------------------------------------------------------------------------


def test_nie_wang_sensitivities_and_scales_by_hand():
    # B = 2, lambda = 1/10, m = 50, gamma = 2: lambda gamma m = 10
    assert nie.printed_theorem_1(2.0, 0.1, 50) == pytest.approx(math.sqrt(3.2))
    assert nie.corrected_theorem_1(2.0, 0.1, 50) == pytest.approx(math.sqrt(0.4))
    # 004-4: 2.83 times
    assert math.sqrt(3.2 / 0.4) == pytest.approx(2.83, abs=2e-3)
    # C_L = 3, kappa = 1/2: 2 (1/2) 3/10; one value moves by half of that, over epsilon = 1/4
    assert nie.theorem_2(3.0, 0.5, 0.1, 50) == pytest.approx(0.3)
    assert nie.printed_scale(3.0, 0.5, 0.1, 50, 0.25) == pytest.approx(0.3)  # 004-2: half of it
    assert nie.corrected_scale(3.0, 0.5, 0.1, 50, 0.25) == pytest.approx(0.6)
    # 004-6: lambda = 10, kappa = M = 1: 4/sqrt(10) against 2 (1 + 1/sqrt(10)), 2.1 times
    ratio = nie.general_lipschitz(1.0, 1.0, 10.0) / nie.printed_lipschitz(1.0, 1.0, 10.0)
    assert ratio == pytest.approx((math.sqrt(10) + 1) / 2) and round(ratio, 1) == 2.1


def test_theorem_3_by_hand():
    epsilon = math.log(2)
    assert nie.theorem_3(3.0, epsilon) == pytest.approx(6 * math.log(2))
    assert nie.theorem_3(3.0, epsilon, "proof") == pytest.approx(3)  # e^epsilon - 1 = 1
    assert nie.theorem_3(3.0, epsilon, "below") == pytest.approx(1.5)
    # the printed one is the larger up to the root of e^x = 1 + 2x, and too small beyond
    edge = float(mpmath.findroot(lambda x: mpmath.exp(x) - 1 - 2 * x, 1.2))
    assert pytest.approx(edge, rel=1e-14) == TRUE_UP_TO
    for epsilon, enough in [(0.1, True), (1.25, True), (1.26, False), (3.0, False)]:
        assert (nie.theorem_3(1.0, epsilon) >= nie.theorem_3(1.0, epsilon, "proof")) is enough


def test_the_bound_behind_theorem_4_by_hand():
    # m = 400, lambda = 1/4, epsilon = 1/10, gamma = 2: lambda gamma m epsilon = 20
    numbers = {
        "beta": 0.5,
        "kappa": 2.0,
        "slope": 3.0,
        "first_risk": 5.0,
        "first_penalty": 4.0,
        "best_loss": 7.0,
        "c_beta": 6.0,
    }
    found = nie.excess_bound(400, 0.25, 0.1, **numbers, reading="printed")
    # 2 (5 + 1)/10; 1.2 * 4 * 3/20; 2 sqrt(2 pi) 7/20; 6 * 1/2
    assert found.generalisation == pytest.approx(1.2)
    assert found.noise == pytest.approx(1.2 * 12 / 20)
    assert found.sample == pytest.approx(0.7 * math.sqrt(2 * math.pi))
    assert found.approximation == pytest.approx(3.0)
    assert found.total == pytest.approx(1.2 + 0.72 + 0.7 * math.sqrt(2 * math.pi) + 3)
    right = nie.excess_bound(400, 0.25, 0.1, **numbers)
    assert right.noise == pytest.approx(2 * 3 * found.noise)  # twice the scale, and C_L again


def test_theorem_4_by_hand():
    # beta = 1, m = 1000: lambda, epsilon and rate are 1/10; B_0 = c_beta = C_L = 1, gamma = 2
    found = nie.theorem_4(1000, 1.0)
    assert (found.lam, found.epsilon, found.rate) == pytest.approx((0.1, 0.1, 0.1))
    assert found.printed_bound == pytest.approx((2 + 1.5 + 1) / 10)
    sample = 2 * math.sqrt(2 * math.pi) / math.sqrt(1000)
    assert found.bound == pytest.approx((2 + 3 + 1) / 10 + sample)
    # it covers the bound it comes from, at its own epsilon and lambda: (1 + 2 epsilon) <= 3
    before = nie.excess_bound(1000, 0.1, 0.1, beta=1.0)
    assert before.total <= found.bound
    assert before.total == pytest.approx(0.2 + 1.2 * 0.1 + sample + 0.1)


def test_section_5_by_hand():
    # m = 2^12, beta = 1: lambda = m^(-1/3) = 2^-4, epsilon = 2^4/2^8, rate m^(-1/3)
    found = nie.section_5_1(2**12, 1.0)
    assert (found.lam, found.epsilon, found.rate) == pytest.approx((2**-4, 2**-4, 2**-4))
    # beta = 1/3: lambda = m^(-1/2) = 2^-6, epsilon = 2^6/2^8, rate m^(-1/6)
    found = nie.section_5_1(2**12, 1 / 3)
    assert (found.lam, found.epsilon, found.rate) == pytest.approx((2**-6, 2**-2, 2**-2))
    # hinge, beta = 1: lambda = m^(-1/3), epsilon = m^(-1/3), errors m^(-1/6)
    found = nie.section_5_2(2**12, 1.0)
    assert (found.lam, found.epsilon, found.rate) == pytest.approx((2**-4, 2**-4, 2**-2))


# --- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: guo.theorem_1(1, 1.0, 0.1, r=0.8, capacity=0.9), "n_rows"),
        (lambda: guo.theorem_1(10, 1.0, 0.1, r=0.6, capacity=0.5), "capacity"),
        (lambda: guo.theorem_1(10, 1.0, 0.1, r=0.8, capacity=0.9, reading="x"), "reading"),
        (lambda: guo.chernoff_hits(10, 10, 0.0), "confidence"),
        (lambda: guo.stated_sensitivity(10, 10, -1.0, 0.1, kappa=1.0, target_bound=1.0), "step"),
        (lambda: guo.proved_sensitivity(10, 10, 1.0, 0.1, kappa=0.0, target_bound=1.0), "kappa"),
        (lambda: guo.iterate_bound(10, 2.0, kappa=1.0, target_bound=1.0), "step"),
        (lambda: guo.direct_sensitivity(-1, 9, 1.0, kappa=1.0, target_bound=1.0), "hits"),
        (lambda: lee.theorem_10(100, 0.001, r=0.5, gamma=0.5, beta=1.0), "epsilon"),
        (lambda: lee.theorem_10(100, 1.0, r=0.5, gamma=0.5, beta=0.4), "beta"),
        (lambda: lee.theorem_11(100, 1.0, r=0.4, gamma=0.5), "r"),
        (lambda: lee.theorem_11(100, 1.0, r=0.5, gamma=1.1), "gamma"),
        (lambda: lee.theorem_11(100, 1.0, r=0.5, gamma=0.5, confidence=0.5), "confidence"),
        (lambda: lee.theorem_17(100, 1.0, r=0.5, gamma=0.5, alpha=0.2), "alpha"),
        (lambda: lee.theorem_63(100, 1.0, 0), "rank"),
        (lambda: lee.theorem_65(100, 1.0, 2, reading="x"), "reading"),
        (lambda: lee.lemma_14(100, 1.0, 0.1, 0.1, 0.0), "effective_dimension"),
        (lambda: lee.lemma_66([], 0.1), "eigenvalues"),
        (lambda: lee.lemma_66([0.1, -0.1], 0.1), "eigenvalues"),
        (lambda: lee.canonical_estimator(9, 1.0, 0.1, r=0.5, gamma=0.0, beta=1.0), "gamma"),
        (lambda: lee.algorithm_5_noise(9, 1.0, 0.1, 0.0), "regularisation"),
        (lambda: lee.algorithm_5_delta(1.0, 2.0), "delta"),
        (lambda: lee.clipped_mean_noise(9, 1.0, 0.1, -1.0), "target_bound"),
        (lambda: lee.algorithm_1_noise(9, 1.0, 0.1, 0, 1.0), "n_features"),
        (lambda: lee.algorithm_3_noise(9, 1.0, 0.1, math.nan), "target_bound"),
        (lambda: nie.printed_theorem_1(0.0, 0.1, 5), "bound"),
        (lambda: nie.theorem_2(1.0, 1.0, 0.1, 0), "m"),
        (lambda: nie.printed_scale(1.0, 1.0, 0.1, 5, 0.0), "epsilon"),
        (lambda: nie.theorem_3(1.0, 1.0, "theirs"), "reading"),
        (lambda: nie.excess_bound(10, 0.1, 1.3, beta=1.0), "epsilon"),
        (lambda: nie.theorem_4(10, 1.5), "beta"),
        (lambda: nie.section_5_1(1, 0.5), "m"),
    ],
)
def test_arguments_are_refused_by_their_name(call, name):
    with pytest.raises(ParameterError, match=f"'{name}' parameter of .* must be .* Got"):
        call()


# --- the Gaussian lemma, and Wang, Lei, Ying & Zhang ------------------------------------------------


def true_delta(epsilon, noise):
    """30 digits by the two tails of the normal law."""
    with mpmath.workdps(30):
        mu = 1 / mpmath.mpf(noise)
        low, high = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return float(mpmath.ncdf(low) - mpmath.exp(epsilon) * mpmath.ncdf(high))


@pytest.mark.parametrize(("form", "largest"), [("classical", 8.4), ("nikolov", 19.9)])
def test_the_gaussian_lemma_is_false_for_large_epsilon(form, largest):
    for epsilon in (0.5, 1.0, largest, largest + 0.2):
        found = gaussian_lemma(epsilon, 1e-5, form)
        assert found.delta == pytest.approx(true_delta(epsilon, found.noise), rel=1e-6)
        assert (found.delta <= 1e-5) is (epsilon <= largest)
    assert gaussian_lemma(2.0, E2 * 1.25, "classical").noise == pytest.approx(1.0)
    assert gaussian_lemma(3.0, E2, "nikolov").noise == pytest.approx(1.0)
    with pytest.raises(ParameterError, match="gaussian_lemma"):
        gaussian_lemma(1.0, 1e-5, "exact")


def test_lemmas_3_and_5_give_the_noise_of_theorem_11():
    n, steps, epsilon, delta = 1000, 1000, 1.0, 1e-6
    beta = wlyz.best_beta(n, steps, epsilon, delta)
    order = math.log(1 / delta) / ((1 - beta) * epsilon) + 1
    ratio = wlyz.theorem_11_multiplier(n, steps, epsilon, delta, beta) / 2  # sensitivity 2 C
    rho = steps * wlyz.lemma_3(order, 1 / n, ratio)
    assert rho == pytest.approx(beta * epsilon)
    assert wlyz.lemma_5(order, rho, delta) == pytest.approx(epsilon)
    for bad in ((order, 1 / n, 0.8), (order, 0.5, ratio)):
        with pytest.raises(ParameterError, match="conditions of the lemma"):
            wlyz.lemma_3(*bad)


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 1.0])
def test_lemma_19_bounds_gradients_and_is_attained(alpha):
    """l(s) = s^(1+alpha)/(1+alpha) for s >= 0 has l' = s^alpha, Hölder with L = 1."""
    for s in (0.1, 1.0, 7.0):
        value = s ** (1 + alpha) / (1 + alpha)
        found = wlyz.lemma_19(value, alpha=alpha, L=1.0)
        assert found >= s**alpha * (1 - 1e-12)
        if alpha == 0:
            assert found == 1.0
        else:  # c l^p = ((1 + alpha)/alpha)^p s^alpha / (1 + alpha)^p
            assert found == pytest.approx(s**alpha * alpha ** (-alpha / (1 + alpha)))
