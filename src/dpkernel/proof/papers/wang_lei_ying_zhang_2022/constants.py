"""The constants of Theorems 7 and 11, Lemmas 13 and 20 and both algorithms, printed and corrected.

alpha and L are the exponent and the constant of the Hölder continuity of the gradient of the loss. M is
its largest gradient at 0, and M_0 its largest value there. The package docstring lists the errata by
number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpkernel.foundations.validation import Constraint, Real
from dpkernel.models.losses import Loss
from dpkernel.proof.papers.arguments import NOT_NEGATIVE, ONE_ROW, check
from dpkernel.proof.papers.wang_guo_2024.constants import PrintedOutputNoise, chernoff_hits

_PERHAPS_TOO_LARGE = Real(0, math.inf, closed_low=True, closed_high=True)  # C_alpha may overflow


@dataclass(frozen=True)
class HolderConstants:
    """The constants of a loss w -> l(y, <w, phi>) with ||phi|| <= kappa and ``|y| <= c``."""

    alpha: float
    L: float
    M: float  # sup ||gradient at 0||
    M0: float  # sup of the loss at 0
    slope: float = math.inf  # kappa sup |l'|, if the slope of the loss is bounded

    def __post_init__(self) -> None:
        some: dict[str, Constraint] = {"M": NOT_NEGATIVE, "M0": NOT_NEGATIVE}
        check("HolderConstants", some, alpha=self.alpha, L=self.L, M=self.M, M0=self.M0)

    @classmethod
    def of(cls, loss: Loss, *, kappa: float, target_bound: float = 1.0) -> HolderConstants:
        """Return the constants of a loss of ``dpkernel.models.losses``."""
        alpha, L = loss.holder(kappa)
        slope, value = loss.slope_at_zero(target_bound), loss.at_zero(target_bound)
        return cls(alpha, L, kappa * slope, value, kappa * loss.lipschitz)

    def gradient_bound(self, radius: float) -> float:
        """Return M + L R^alpha, the paper's bound on a gradient at ||w|| <= R."""
        return self.M + self.L * float(radius**self.alpha)

    def loss_bound(self, radius: float) -> float:
        """Return M_0 + M R + L R^(1+alpha), the paper's bound on the loss at ||w|| <= R."""
        return self.M0 + self.gradient_bound(radius) * radius


def step_expansion(alpha: float, L: float, step: float) -> float:
    r"""Return c_(alpha,2)^2 eta^(2/(1-alpha)), by which a common step can enlarge a squared distance.

    It is (1-alpha)/(1+alpha) (2^-alpha L eta)^(2/(1-alpha)) (Lemma 21), computed as one power because
    c_(alpha,2) alone overflows near alpha = 1. For alpha = 1 it is 0, for steps up to 2/L.
    """
    check("step_expansion", alpha=alpha, L=L, step=step)
    if alpha == 1:
        return 0.0
    power = _power(2.0**-alpha * L * step, 2 / (1 - alpha))
    return (1 - alpha) / (1 + alpha) * power


def printed_c_alpha(constants: HolderConstants) -> float:
    r"""Return C_alpha of Lemma 20 as printed: ||w_(t+1)||^2 <= C_alpha t eta, for eta < 1.

    c_(alpha,1)^(2(1+alpha)/(1-alpha)) (alpha/(1+alpha))^(2 alpha/(1-alpha)) is L^(2/(1-alpha)), so
    C_alpha = (1-alpha)/(1+alpha) L^(2/(1-alpha)) + 2 M_0, which grows without bound for
    alpha -> 1 and L > 1 (erratum 002-1); (M+L)^2 + 2 M_0 for alpha = 0; 2 M_0 for alpha = 1.
    """
    alpha, L = constants.alpha, constants.L
    if alpha == 1:
        return 2 * constants.M0
    if alpha == 0:
        return (constants.M + L) ** 2 + 2 * constants.M0
    return (1 - alpha) / (1 + alpha) * _power(L, 2 / (1 - alpha)) + 2 * constants.M0


def corrected_c_alpha(constants: HolderConstants, step: float) -> float:
    r"""Return C_alpha with eta kept where the proof of Lemma 20 has it, for eta <= 1/L.

    It is (1-alpha)/(1+alpha) (L eta)^(2/(1-alpha)) / eta + 2 M_0; eta (M+L)^2 + 2 M_0 for alpha = 0;
    and 2 M_0 for alpha = 1.
    """
    check("corrected_c_alpha", step=step)
    alpha, L = constants.alpha, constants.L
    if alpha == 1:
        return 2 * constants.M0
    if alpha == 0:
        return step * (constants.M + L) ** 2 + 2 * constants.M0
    own = (1 - alpha) / (1 + alpha) * _power(L * step, 2 / (1 - alpha)) / step
    return own + 2 * constants.M0


def theorem_7_sensitivity(
    n_rows: int,
    n_steps: int,
    step: float,
    confidence: float,
    *,
    alpha: float,
    L: float,
    gradient: float,
) -> float:
    r"""Return Delta_SGD(gamma) of Theorem 7, with ``gradient`` for its bound G on a gradient.

    It is sqrt(e (c_(alpha,2)^2 T eta^(2/(1-alpha)) + 4 G^2 eta^2 (1 + k) k)), where k is the Chernoff
    bound on hits. G is M + L (C_alpha T eta)^(alpha/2) in part (a) and M + L R^alpha in part (b).
    """
    check("theorem_7_sensitivity", {"gradient": _PERHAPS_TOO_LARGE}, gradient=gradient)
    k = chernoff_hits(n_rows, n_steps, confidence)
    common = n_steps * step_expansion(alpha, L, step)
    return math.sqrt(math.e * (common + 4 * (gradient * step) ** 2 * (1 + k) * k))


def printed_gradient_bound(
    constants: HolderConstants, n_steps: int, step: float, radius: float | None = None
) -> float:
    """Return G of Theorem 7: part (a) without a radius, part (b) with one."""
    if radius is not None:
        return constants.gradient_bound(radius)
    farthest = printed_c_alpha(constants) * n_steps * step
    return constants.gradient_bound(math.sqrt(farthest))


def algorithm_1_noise(
    n_rows: int,
    n_steps: int,
    step: float,
    epsilon: float,
    delta: float,
    constants: HolderConstants,
    radius: float | None = None,
) -> PrintedOutputNoise:
    """Return sigma = sqrt(2 log(2.5/delta)) Delta_SGD(delta/2) / epsilon of Algorithm 1 (Theorem 8)."""
    check("algorithm_1_noise", epsilon=epsilon, delta=delta)
    found = theorem_7_sensitivity(
        n_rows,
        n_steps,
        step,
        delta / 2,
        alpha=constants.alpha,
        L=constants.L,
        gradient=printed_gradient_bound(constants, n_steps, step, radius),
    )
    scale = math.sqrt(2 * math.log(2.5 / delta)) * found / epsilon
    return PrintedOutputNoise(chernoff_hits(n_rows, n_steps, delta / 2), found, scale)


# --- Algorithm 2 ----------------------------------------------------------------------------


@dataclass(frozen=True)
class PrintedGradientNoise:
    """The numbers of Algorithm 2 as printed, and whether Theorem 11 covers them."""

    gradient_bound: float  # C = M + L R^alpha
    beta: float
    noise_scale: float  # sigma, on each gradient
    feasible: bool  # (32) and (33) hold at this beta


def theorem_11_multiplier(
    n_rows: int, n_steps: int, epsilon: float, delta: float, beta: float
) -> float:
    r"""Return sigma / C: sqrt(14 T / (beta n^2 epsilon) (log(1/delta) / ((1-beta) epsilon) + 1))."""
    _check_theorem_11("theorem_11_multiplier", n_rows, n_steps, epsilon, delta, beta)
    return math.sqrt(float(_squared(np.array([beta]), n_rows, n_steps, epsilon, delta)[0]))


def theorem_11_holds(n_rows: int, n_steps: int, epsilon: float, delta: float, beta: float) -> bool:
    """Whether (32) and (33) hold at this beta, with 1e-12 to spare for rounding."""
    _check_theorem_11("theorem_11_holds", n_rows, n_steps, epsilon, delta, beta)
    found = _slack(np.array([beta]), n_rows, n_steps, epsilon, delta)
    return bool(found[0] >= 1e-12)


def best_beta(n_rows: int, n_steps: int, epsilon: float, delta: float) -> float | None:
    """Return the beta in (0, 1) with the least noise among those that meet (32)-(33), or None.

    The search uses a grid of beta/(1-beta) over 26 decades, refined around its best point, and then
    bisection towards less noise up to the edge of the conditions.
    """
    _check_theorem_11("best_beta", n_rows, n_steps, epsilon, delta)
    betas, slack = _betas(n_rows, n_steps, epsilon, delta)
    if not slack.max() >= 1e-12:
        return None
    noise = _squared(betas, n_rows, n_steps, epsilon, delta)
    place = int(np.argmin(np.where(slack >= 1e-12, noise, math.inf)))
    best = float(betas[place])
    for other in (place - 1, place + 1):
        if 0 <= other < len(betas) and noise[other] < noise[place]:
            out = float(betas[other])  # less noise but not allowed, so the edge lies between
            for _ in range(60):
                middle = (best + out) / 2
                allowed = theorem_11_holds(n_rows, n_steps, epsilon, delta, middle)
                best, out = (middle, out) if allowed else (best, middle)
    return best


def beta_exists(n_rows: int, n_steps: int, epsilon: float, delta: float) -> bool:
    """Whether some beta in (0, 1) satisfies (32) and (33)."""
    _check_theorem_11("beta_exists", n_rows, n_steps, epsilon, delta)
    return bool(_betas(n_rows, n_steps, epsilon, delta)[1].max() >= 1e-12)


def lemma_13_threshold(n_rows: int) -> float:
    r"""Return the epsilon of Lemma 13, (7(n^(1/3) - 1) + 4 n log n + 7) / (2n (n^(1/3) - 1)).

    From this epsilon on, a beta as in Theorem 11 should exist for T = n, delta = 1/n^2 and n >= 18. It
    does not for n from 18 to 43 (erratum 002-4); see ``lemma_13_holds``.
    """
    check("lemma_13_threshold", n_rows=n_rows)
    root = float(n_rows ** (1 / 3)) - 1
    return (7 * root + 4 * math.log(n_rows) * n_rows + 7) / (2 * n_rows * root)


def lemma_13_holds(n_rows: int, factor: float = 1.0) -> bool:
    """Whether a beta exists at ``factor`` times the threshold, T = n and delta = 1/n^2."""
    check("lemma_13_holds", factor=factor)
    epsilon = factor * lemma_13_threshold(n_rows)
    return beta_exists(n_rows, n_rows, epsilon, n_rows**-2.0)


def algorithm_2_noise(
    n_rows: int, n_steps: int, epsilon: float, delta: float, gradient_bound: float, beta: float
) -> PrintedGradientNoise:
    """Return the sigma of Algorithm 2 at this beta, and whether (32) and (33) hold there."""
    check(
        "algorithm_2_noise", {"gradient_bound": _PERHAPS_TOO_LARGE}, gradient_bound=gradient_bound
    )
    scale = gradient_bound * theorem_11_multiplier(n_rows, n_steps, epsilon, delta, beta)
    holds = theorem_11_holds(n_rows, n_steps, epsilon, delta, beta)
    return PrintedGradientNoise(gradient_bound, beta, scale, holds)


def _betas(
    n_rows: int, n_steps: int, epsilon: float, delta: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return a grid of beta and the slack on it, refined around its best point if needed."""
    betas = _logistic(np.linspace(-30.0, 30.0, 6001))
    slack = _slack(betas, n_rows, n_steps, epsilon, delta)
    for _ in range(3):  # the feasible set may lie between two points of the grid
        if slack.max() >= 1e-12:
            break
        place = int(np.argmax(slack))
        near = betas[max(place - 1, 0)], betas[min(place + 1, len(betas) - 1)]
        betas = np.linspace(*near, 2001)
        slack = _slack(betas, n_rows, n_steps, epsilon, delta)
    return betas, slack


def _squared(
    betas: np.ndarray, n_rows: int, n_steps: int, epsilon: float, delta: float
) -> np.ndarray:
    """Return sigma^2 / C^2 at every beta."""
    order = math.log(1 / delta) / ((1 - betas) * epsilon) + 1
    return np.asarray(14 * n_steps / (betas * n_rows**2 * epsilon) * order)


def _check_theorem_11(
    owner: str, n_rows: int, n_steps: int, epsilon: float, delta: float, beta: float = 0.5
) -> None:
    numbers = {"n_steps": n_steps, "epsilon": epsilon, "delta": delta, "beta": beta}
    check(owner, {**ONE_ROW, "beta": Real(0, 1)}, n_rows=n_rows, **numbers)


def _slack(
    betas: np.ndarray, n_rows: int, n_steps: int, epsilon: float, delta: float
) -> np.ndarray:
    """Return the smaller of the margins by which (32) and (33) hold, relative to their sides."""
    order = math.log(1 / delta) / ((1 - betas) * epsilon) + 1
    ratio = _squared(betas, n_rows, n_steps, epsilon, delta)
    first = ratio / 4 / 0.67 - 1
    second = ratio / 6 * np.log(n_rows / (order * (1 + ratio / 4))) / (order - 1) - 1
    return np.minimum(first, second)


def _logistic(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def _power(base: float, exponent: float) -> float:
    """Return base^exponent, or inf if that overflows."""
    logarithm = exponent * math.log(base) if base else -math.inf
    return math.exp(logarithm) if logarithm < 709 else math.inf
