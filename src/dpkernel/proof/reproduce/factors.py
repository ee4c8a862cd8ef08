"""Compute by which factor a printed constant is wrong, from the printed and the right value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import chi2

from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.models.losses import Huber, HuberisedHinge, Loss, Squared
from dpkernel.privacy.mechanisms import MixtureGaussian, SampledGaussian
from dpkernel.privacy.profiles import objective_multiplier
from dpkernel.privacy.sensitivity import RandomSensitivity, erm_lipschitz
from dpkernel.privacy.statistics import GramLayout
from dpkernel.proof.papers.gaussian import gaussian_lemma
from dpkernel.proof.papers.lee_park_ahn_2025 import (
    algorithm_1_noise,
    algorithm_4_noise,
    algorithm_5_noise,
    clipped_mean_noise,
    lemma_77,
)
from dpkernel.proof.papers.lee_park_ahn_2025.constants import squared_norm_bound
from dpkernel.proof.papers.ma_2024 import lemma_27, theorem_12
from dpkernel.proof.papers.nie_wang_2016 import constants as nie_wang
from dpkernel.proof.papers.sgd import output_run
from dpkernel.proof.papers.wang_guo_2024 import constants as wang_guo
from dpkernel.proof.papers.wang_lei_ying_zhang_2022 import constants as wang_lei

_UNIT: dict[str, Any] = {"kappa": 1.0, "target_bound": 1.0}


def _ratio(printed: float, right: float) -> str:
    """Return in words by which factor a printed number differs from the right one."""
    if printed < right:
        return f"too small x {right / printed:.3g}"
    return f"too large x {printed / right:.3g}"


def scale_of_one_value() -> str:
    """004-2."""
    sizes = (1.0, 1.0, 0.1, 100, 1.0)
    return _ratio(nie_wang.printed_scale(*sizes), nie_wang.corrected_scale(*sizes))


def bounded_loss() -> str:
    """004-4."""
    sizes = (1.0, 0.1, 100)
    return _ratio(nie_wang.printed_theorem_1(*sizes), nie_wang.corrected_theorem_1(*sizes))


def lipschitz_loss() -> str:
    """004-5: compared with the bound of this library for Lipschitz losses."""
    slope, kappa, lam, n = 1.0, 1.0, 0.1, 100
    right = erm_lipschitz(Neighbours.REPLACE_ONE, slope=slope, row=kappa, strength=2 * lam * n)
    return f"{nie_wang.theorem_2(slope, kappa, lam, n) / right.value:.3g}"


def slope_of_squares() -> str:
    """004-6, at lambda = 10."""
    sizes = (1.0, 1.0, 10.0)
    found = _ratio(nie_wang.printed_lipschitz(*sizes), nie_wang.general_lipschitz(*sizes))
    return f"{found} at lambda = 10"


def missing_root() -> str:
    """000-1, for T = n and eta = 1/n."""
    words = []
    for n in (1000, 10_000):
        sizes = (n, n, 1 / n, 5e-7)
        stated = wang_guo.stated_sensitivity(*sizes, **_UNIT)
        words.append(f"{_ratio(stated, wang_guo.proved_sensitivity(*sizes, **_UNIT))} at n = {n}")
    return "; ".join(words) + ", delta = 1e-6"


def hits() -> str:
    """000-3, for T = n = 10^4, eta = 1/n."""
    n, budget = 10_000, Budget(1.0, 1e-6)
    step = 1 / n
    printed = wang_guo.algorithm_1_noise(
        n, n, step, budget.epsilon, budget.delta, **_UNIT, sensitivity="proof"
    )
    return _ratio(printed.noise_scale, _mixture_scale(Squared(), n, step, budget))


def classical_gaussian() -> str:
    """000-4 and 002-0: from which epsilon on sqrt(2 log(1.25/delta))/epsilon is too small."""
    return _false_from("classical")


def nikolov_gaussian() -> str:
    """003-13: from which epsilon on (1 + sqrt(2 log(1/delta)))/epsilon is too small."""
    return _false_from("nikolov")


def _false_from(form: str) -> str:
    delta, epsilon = 1e-5, 1.0
    while gaussian_lemma(epsilon, delta, form).delta <= delta:
        epsilon += 0.1
    return f"false from epsilon = {epsilon:.1f} on, at delta = 1e-5"


def local_convexity() -> str:
    """003-14: constant functions, h = 2, and labels of 1 with probability 2/3; the best one is 1."""
    loss, share, best, far = HuberisedHinge(2.0), 2 / 3, 1.0, 4.0

    def risk(f: float) -> float:
        values = loss.value(np.array([1.0, -1.0]), np.array([f, f]))
        return float(share * values[0] + (1 - share) * values[1])

    promised = lemma_77(2.0, inside=(best, best), largest=far).printed * (far - best) ** 2
    return f"promises {promised:.3g} where the risk grows by {risk(far) - risk(best):.3g}"


def slope_for_curvature() -> str:
    """001-3: squares, orthogonal features, labels of 1, and a unit vector that predicts -1/sqrt(2)."""
    slopes = Squared().derivative(np.ones(2), np.full(2, -math.sqrt(0.5)))
    moved = float(np.linalg.norm(slopes))
    return f"exceeded x {moved / lemma_27(Squared(), 1).printed:.3g} by squares"


def c_alpha() -> str:
    """002-1, for one step with L = 5, eta = 0.1, alpha = 0.9."""
    constants, step = wang_lei.HolderConstants(0.9, 5.0, 0.0, 0.0), 0.1
    printed = wang_lei.printed_c_alpha(constants) * step
    right = wang_lei.corrected_c_alpha(constants, step) * step
    return f"{printed:.1g} for {right:.1g} (L = 5, eta = 0.1, alpha = 0.9)"


def output_noise() -> str:
    """002-2, for alpha = 1, T = n = 10^4, eta = 0.01, G = 1."""
    n, step, budget = 10_000, 0.01, Budget(1.0, 1e-6)
    moved = wang_lei.theorem_7_sensitivity(
        n, n, step, budget.delta / 2, alpha=1.0, L=1.0, gradient=1.0
    )
    printed = math.sqrt(2 * math.log(2.5 / budget.delta)) * moved / budget.epsilon
    return _ratio(printed, _mixture_scale(Huber(1.0), n, step, budget))


def gradient_noise() -> str:
    """002-3, for T = n = 10^4 at (1, 1e-8)."""
    n, budget = 10_000, Budget(1.0, 1e-8)
    beta = wang_lei.best_beta(n, n, budget.epsilon, budget.delta)
    assert beta is not None
    printed = wang_lei.theorem_11_multiplier(n, n, budget.epsilon, budget.delta, beta)
    unit = 2.0**20  # C in the integers in which the mechanism sums
    right = SampledGaussian.calibrate(2 * unit, budget, dimension=1, n_rows=n, batch=1, steps=n)
    return _ratio(printed, right.sigma / unit)


def infeasible() -> str:
    """002-4."""
    sizes = [n for n in range(18, 61) if not wang_lei.lemma_13_holds(n)]
    return f"false for n = {sizes[0]} .. {sizes[-1]}"


def noise_on_gram() -> str:
    """003-2, on C for M = 50, n = 1000 at (1, 1e-5)."""
    n, M, budget = 1000, 50, Budget(1.0, 1e-5)
    printed = algorithm_1_noise(n, budget.epsilon, budget.delta, M, 1.0).gram_scale
    layout = GramLayout.choose(M, 1, 1.0, Neighbours.REPLACE_ONE, n, budget, constant=False)
    right = layout.mechanism(budget).noise_scale * float(layout.units[0]) ** 2 / n
    return f"noise on C {_ratio(printed, right)} (M = 50), against the joint release"


def nested_root() -> str:
    """003-3: how often the norm exceeds the printed bound, delta = 1e-6."""
    log_odds = math.log(8 / 1e-6)

    def excess(M: int) -> float:
        bound = squared_norm_bound(log_odds, M, "nested")
        return float(chi2.sf(M * bound, M)) * math.exp(log_odds)

    enough = next(M for M in range(1, 1000) if excess(M) <= 1)
    return f"exceeded x {excess(5):.3g} at M = 5, delta = 1e-6; enough from M = {enough} on"


def clipped_mean() -> str:
    """003-4: the noise as printed, and the noise that a clipped mean of n products needs."""
    n, others = 50, (1.0, 1e-6, 1.0)
    printed = clipped_mean_noise(n, *others)
    right = clipped_mean_noise(1, *others)  # for a mean that moves by 2 T
    return f"{_ratio(printed, right)} at n = {n}; x 2 besides, for the half of epsilon"


def functional_noise() -> str:
    """003-11."""
    sizes = (100, 1.0, 1e-5, 0.1)
    return _ratio(algorithm_5_noise(*sizes), algorithm_5_noise(*sizes, reading="corrected"))


def objective_noise() -> str:
    """003-7, at (4, 1e-8) with the printed lambda."""
    budget, row = Budget(4.0, 1e-8), math.sqrt(2)
    printed = algorithm_4_noise(1, budget.epsilon, budget.delta, 1e-9, Huber())
    x = row**2 / printed.regularisation
    m = objective_multiplier(budget, [1.0], [x], Neighbours.REPLACE_ONE)
    return _ratio(printed.noise_scale, 2 * row / m)


def determinant() -> str:
    """003-8, at epsilon = 1: the least lambda for which (1 + x)^2, or 1 + x, is at most e^(eps/2)."""
    return f"lambda_0 {_ratio(1 / math.expm1(0.25), 1 / math.expm1(0.5))} at epsilon = 1"


def sketch_delta() -> str:
    """001-2, for n = 1000, h = 50, m = 20, d = 5, nu = 0.1."""
    printed, proof = (
        theorem_12(1000, 50, 20, 5, 0.1, sign=sign).log10_delta for sign in ("printed", "proof")
    )
    return f"delta = 10^{printed:.0f} for 10^{proof:.0f} (n = 1000, h = 50, m = 20)"


def sketch_epsilon() -> str:
    """001-4, for the dimensions of 001-2, and for m = h, where the first term of the print is 0."""
    printed, proof = (
        theorem_12(10**60, 50, 20, 5, 0.1, sign=s).epsilon for s in ("printed", "proof")
    )
    few, more = (theorem_12(1000, 50, 50, 5, 0.1, sign=s).epsilon for s in ("printed", "proof"))
    return f"{_ratio(printed, proof)} for many rows, x {more / few:.3g} at n = 1000 and m = h"


def _mixture_scale(loss: Loss, n: int, step: float, budget: Budget) -> float:
    """Return the noise scale for n steps on rows and targets of size 1, sampled with replacement."""
    run = output_run(loss, n, 1, n, step, **_UNIT)
    law = run.sensitivity(Neighbours.REPLACE_ONE)
    assert isinstance(law, RandomSensitivity)
    return float(MixtureGaussian.calibrate(law, budget, dimension=1).noise_scale)
