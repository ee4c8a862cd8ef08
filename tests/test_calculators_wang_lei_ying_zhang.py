"""The calculators of Wang, Lei, Ying & Zhang (2022) against values worked out by hand.

log(1/delta), log(1/gamma) and log(n/delta) are made whole numbers or squares, so that every value
below is a fraction or a root that can be checked on paper.
"""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from dpkernel.foundations.errors import ParameterError
from dpkernel.models.losses import Huber
from dpkernel.proof.papers import wang_lei_ying_zhang_2022 as wlyz
from dpkernel.proof.papers.wang_lei_ying_zhang_2022 import (
    HolderConstants,
    best_beta,
    corrected_c_alpha,
    figure_1,
    gradient_complexity,
    lemma_13_threshold,
    smallest_epsilon,
    step_expansion,
    table_1,
    theorem_7_sensitivity,
    theorem_9_excess,
    theorem_10_excess,
    theorem_11_holds,
    theorem_11_multiplier,
    theorem_12_excess,
)

D4 = math.exp(-4)  # log(1/delta) = 4


def test_gradient_complexity_by_hand():
    # n = 16, alpha = 0: 16^2 + 16; without a ball n^(6/3) = 16^2 as well
    assert gradient_complexity(16, 0.0) == pytest.approx(272)
    assert gradient_complexity(16, 0.0, bounded=False) == pytest.approx(272)
    # alpha = 1: n^(1/2) + n; without a ball n^(2/8) + n
    assert gradient_complexity(16, 1.0) == pytest.approx(20)
    assert gradient_complexity(16, 1.0, bounded=False) == pytest.approx(18)
    # both powers are 1 at the edges that the paper states: alpha = 1/2, (sqrt(73) - 7)/4
    assert gradient_complexity(16, 0.5) == pytest.approx(32)
    edge = (math.sqrt(73) - 7) / 4
    assert gradient_complexity(16, edge, bounded=False) == pytest.approx(32)


def test_table_1_by_hand():
    # n = 10^4, d = 4, log(1/delta) = 4: d log(1/delta) = 16; epsilon = 1/4
    rows = table_1(10**4, 4, 0.25, D4, alpha=0.0)
    assert [row.method for row in rows].count("gradient") == 4 and len(rows) == 9
    n, far = 1e4, math.log(1e4) + 4
    best = 4 / 2500 + 1 / 100  # 0.0116
    utilities = [2 / 50, best, best, best, best, best, 0.04 * math.sqrt(far)]
    assert [row.utility for row in rows[:7]] == pytest.approx(utilities)
    # alpha = 0: n^(2/3) and n^(1/3)
    unbounded = 4 * math.sqrt(far) / (0.25 * n ** (2 / 3)) + far / n ** (1 / 3)
    assert rows[7].utility == pytest.approx(unbounded) and rows[7].domain == "unbounded"
    assert rows[8].utility == pytest.approx(best)
    # 10^6/2 + 2500^2.5/16; 10^18/2 + 10^26 (1/4)^4.5 / 256 = 5e17 + 1e26/512/256
    gradients = [1e4, 5e5 + 3.125e8 / 16, 5e17 + 1e26 / 131072, 1e4, 4e8, 1e8]
    assert [row.gradients for row in rows[:6]] == pytest.approx(gradients)
    assert [row.gradients for row in rows[6:]] == pytest.approx([1e8 + 1e4] * 3)


def test_table_1_depends_on_alpha_in_its_own_lines_only():
    one, other = table_1(500, 3, 1.0, 1e-5, 0.1), table_1(500, 3, 1.0, 1e-5, 0.4)
    assert one[:6] == other[:6]
    assert all(a.gradients != b.gradients for a, b in zip(one[6:], other[6:], strict=True))


def test_theorem_9_by_hand():
    # alpha = 1, n = 16, log(1/gamma) = 16, d = 1, log(1/delta) = 4, so n^(2/4) = 4, n^(1/4) = 2
    n, gamma, far = 16, math.exp(-16), math.log(16) + 4
    found = theorem_9_excess(n, 1, 0.5, D4, 1.0, confidence=gamma, size=3.0)
    assert found.privacy == pytest.approx(9 * 2 * far / (16**0.125 * 4 * 0.5))
    assert found.statistics == pytest.approx(9 * math.log(16) * 4 * far / 2)
    assert found.total == found.privacy + found.statistics
    # T = n, eta = (n / log(1/gamma))^(1/4) / T = 1/16
    assert (found.schedule.n_steps, found.schedule.step) == (16, pytest.approx(1 / 16))
    # alpha = 0: T = n^2, eta = 1/256
    found = theorem_9_excess(n, 1, 0.5, D4, 0.0, confidence=gamma)
    assert (found.schedule.n_steps, found.schedule.step) == (256, pytest.approx(1 / 256))


def test_theorem_10_by_hand():
    # d log(1/delta) = 16, log(1/gamma) = 1, n epsilon = 50^2
    far = math.log(1e4) + 4
    found = theorem_10_excess(10**4, 4, 0.25, D4, 0.0, confidence=math.exp(-1))
    assert found.privacy == pytest.approx(2 / 50 * math.sqrt(far))
    assert found.statistics == pytest.approx(math.sqrt(math.log(1e4) * far) / 100)
    # eta = 1/(T max(a, b)), T = n^2: the step's a is the statistical term, its b the private one
    largest = max(found.privacy, found.statistics)
    assert found.schedule.n_steps == 10**8
    assert found.schedule.step == pytest.approx(1e-8 / largest)


def test_theorem_12_by_hand_and_its_upside_down_step():
    # d log(1/delta) log(1/gamma) = 16 at gamma = 1/e; n epsilon = 2500; alpha >= 1/2: T = n
    n, e = 10**4, math.exp(-1)
    found = theorem_12_excess(n, 4, 0.25, D4, 0.5, confidence=e, size=2.0)
    m = math.sqrt(math.log(n) * (math.log(n) + 1)) / 100
    assert found.privacy == pytest.approx(4 * 4 / 2500)
    assert found.statistics == pytest.approx(4 * m)
    assert found.schedule.step == pytest.approx(1 / (n * m))
    # log(1/gamma) = 4: twice the private term, and sqrt(log n (log n + 4) 4/n)
    sure = theorem_12_excess(n, 4, 0.25, D4, 0.5, confidence=D4)
    assert sure.privacy == pytest.approx(8 / 2500)
    assert sure.statistics == pytest.approx(math.sqrt(math.log(n) * (math.log(n) + 4)) / 50)
    printed = theorem_12_excess(n, 4, 0.25, D4, 0.5, confidence=e, size=2.0, reading="printed")
    assert printed.schedule.step == pytest.approx(m / n)  # m^2 times the right one
    assert printed.statistics == pytest.approx(4 / m)  # does not go to 0
    more = theorem_12_excess(100 * n, 4, 0.25, D4, 0.5, confidence=e, reading="printed")
    assert more.total > printed.total / 4


def _edge(n):
    """Return the edge by another route: 30 digits, nested searches for the best beta and epsilon."""
    with mpmath.workdps(30):

        def slack(beta, epsilon):
            order = 2 * mpmath.log(n) / ((1 - beta) * epsilon) + 1
            ratio = 14 * order / (beta * n * epsilon)
            room = ratio / 6 * mpmath.log(n / (order * (1 + ratio / 4))) - (order - 1)
            return min(ratio / 4 - mpmath.mpf("0.67"), room)

        def best(epsilon):
            low, high = mpmath.mpf("1e-6"), 1 - mpmath.mpf("1e-6")
            for _ in range(70):  # golden section: one peak
                a, b = low + (high - low) * 0.381966, low + (high - low) * 0.618034
                low, high = (a, high) if slack(a, epsilon) < slack(b, epsilon) else (low, b)
            return slack((low + high) / 2, epsilon)

        low, high = mpmath.mpf(0.1), mpmath.mpf(10)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if best(middle) >= 0 else (middle, high)
        return float(high)


@pytest.mark.parametrize("n", [18, 43, 44, 1000])
def test_smallest_epsilon_is_the_edge(n):
    assert smallest_epsilon(n) == pytest.approx(_edge(n), rel=1e-8)


def test_figure_1_and_where_lemma_13_fails():
    points = figure_1([18, 43, 44, 1000])
    assert [point.lemma_holds for point in points] == [False, False, True, True]
    assert points[0].corrected / points[0].printed == pytest.approx(1.164, abs=1e-3)
    assert points[3].printed / points[3].corrected == pytest.approx(1.648, abs=1e-3)
    # n = 27: (7 * 2 + 4 * 27 log 27 + 7)/(54 * 2)
    assert smallest_epsilon(27, reading="printed") == pytest.approx((21 + 108 * math.log(27)) / 108)
    assert points[0].printed == lemma_13_threshold(18)


def test_smallest_epsilon_of_other_steps():
    assert smallest_epsilon(100, n_steps=1000, delta=1e-4) > smallest_epsilon(100)
    assert smallest_epsilon(100, delta=1e-8) > smallest_epsilon(100)  # 1/n^2 = 1e-4
    with pytest.raises(ParameterError, match="'reading' parameter of smallest_epsilon must be one"):
        smallest_epsilon(100, n_steps=1000, reading="printed")


@pytest.mark.parametrize(
    "call",
    [
        lambda: table_1(1, 1, 1.0, 0.1),
        lambda: table_1(10, 0, 1.0, 0.1),
        lambda: table_1(10, 1, math.nan, 0.1),
        lambda: table_1(10, 1, 1.0, 1.0),
        lambda: theorem_9_excess(10, 1, 1.0, 0.1, 1.5),
        lambda: theorem_10_excess(10, 1, 1.0, 0.1, 0.5, confidence=0.0),
        lambda: theorem_12_excess(10, 1, 1.0, 0.1, 0.5, size=-1.0),
        lambda: theorem_12_excess(10, 1, 1.0, 0.1, 0.5, reading="theirs"),
        lambda: gradient_complexity(10, -0.1),
        lambda: smallest_epsilon(10, n_steps=0),
        lambda: HolderConstants(1.5, 1.0, 1.0, 1.0),
        lambda: HolderConstants(0.5, 1.0, -1.0, 1.0),
        lambda: corrected_c_alpha(HolderConstants(0.5, 1.0, 1.0, 1.0), 0.0),
        lambda: step_expansion(0.5, 0.0, 0.1),
        lambda: theorem_7_sensitivity(9, 9, 0.1, 0.1, alpha=0.5, L=1.0, gradient=math.nan),
        lambda: theorem_11_multiplier(10, 10, 1.0, 0.1, 1.0),
        lambda: theorem_11_holds(10, 10, 1.0, 0.1, 0.0),
        lambda: best_beta(10, 10, -1.0, 0.1),
        lambda: lemma_13_threshold(1),
    ],
)
def test_arguments_are_refused(call):
    with pytest.raises(ParameterError, match="parameter of .* must be .* Got"):
        call()


def test_lemma_1_has_the_constants_of_the_loss_and_holds_for_a_stable_algorithm():
    """Ridge regression on 200 rows: the gap to new data stays below the bound with c = 1 in 50 runs."""
    constants = wlyz.HolderConstants.of(Huber(1.0), kappa=1.0, target_bound=1.0)
    found = wlyz.lemma_1(200, 0.1, constants, size=2.0)
    assert found.slope == constants.M + constants.L * 2.0 == 3.0
    assert found.height == constants.M0 + 3.0 * 2.0 == 6.5
    doubt = math.log(20)
    assert found.stability == pytest.approx(3.0 * 0.1 * math.log(200) * doubt)
    assert found.sampling == pytest.approx(6.5 * math.sqrt(doubt / 200))
    assert found.total == found.stability + found.sampling
    assert wlyz.lemma_1(200, 0.1, constants, size=2.0, c=3.0).total == pytest.approx(
        3 * found.total
    )
    rng, ridge = np.random.default_rng(0), 40.0
    for _ in range(50):
        X, new = (rng.uniform(-1, 1, (n, 1)) for n in (200, 2000))
        y, target = (np.clip(Z[:, 0] + 0.3 * rng.normal(size=len(Z)), -1, 1) for Z in (X, new))
        w = float(X[:, 0] @ y / (X[:, 0] @ X[:, 0] + ridge))
        gap = np.mean(Huber(1.0).value(target, new[:, 0] * w)) - np.mean(
            Huber(1.0).value(y, X[:, 0] * w)
        )
        assert abs(gap) <= wlyz.lemma_1(200, 2 / ridge, constants, size=1.0).total
    with pytest.raises(ParameterError, match="lemma_1"):
        wlyz.lemma_1(200, 0.0, constants, size=1.0)
