"""Lemmas 3, 5, 19, 22, 24 and 26: Renyi privacy of subsamples, and the parts of the excess risk.

Lemmas 23 and 25 are Lemma 1 (``lemma_1``) at the confidences gamma/8 and gamma/6. Lemma 23 prints
sqrt(n^(-1/2) log(1/gamma)) where its proof has sqrt(log(1/gamma)/n).
"""

from __future__ import annotations

import math

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.validation import Constraint, Real
from dpkernel.proof.papers.arguments import NOT_NEGATIVE, check
from dpkernel.proof.papers.arguments import reading as one_of
from dpkernel.proof.papers.wang_lei_ying_zhang_2022.constants import HolderConstants

_ORDER: dict[str, Constraint] = {"order": Real(1, math.inf), "rate": Real(0, 1, closed_high=True)}


def lemma_3(order: float, rate: float, ratio: float) -> float:
    r"""Return 3.5 p^2 lambda / (sigma/Delta)^2, the rho of Lemma 3 at the order lambda.

    It is for a Gaussian mechanism on a random subset with the share p (``rate``) of the records;
    ``ratio`` is sigma / Delta. Theorem 11 uses it with p = 1/n and Delta = 2 (M + L R^alpha).

    Raises
    ------
    ParameterError
        Unless sigma^2 >= 0.67 Delta^2 and lambda - 1 <= (2/3) (sigma/Delta)^2 log(1 / (lambda p (1 +
        (sigma/Delta)^2))), the conditions of the lemma.
    """
    check("lemma_3", _ORDER, order=order, rate=rate, ratio=ratio)
    square = ratio**2
    most = 2 * square / 3 * math.log(1 / (order * rate * (1 + square)))
    if not (square >= 0.67 and order - 1 <= most):
        allowed = "within the conditions of the lemma for this order and rate"
        raise ParameterError(parameter_message("lemma_3", "ratio", allowed, ratio))
    return 3.5 * rate**2 * order / square


def lemma_5(order: float, rho: float, delta: float) -> float:
    """Return the epsilon of Lemma 5, rho + log(1/delta) / (lambda - 1), at the order lambda."""
    check("lemma_5", {**_ORDER, "rho": NOT_NEGATIVE}, order=order, rho=rho, delta=delta)
    return rho + math.log(1 / delta) / (order - 1)


def lemma_19(value: float, *, alpha: float, L: float, M: float = 0.0) -> float:
    r"""Return the bound of Lemma 19 on a gradient, c_(alpha,1) l^(alpha/(1+alpha)) where the loss is l.

    c_(alpha,1) is (1 + 1/alpha)^(alpha/(1+alpha)) L^(1/(1+alpha)), or M + L for alpha = 0. The loss is
    convex and not negative, and its gradient is Hölder continuous with exponent alpha and constant L.
    """
    check(
        "lemma_19", {"value": NOT_NEGATIVE, "M": NOT_NEGATIVE}, value=value, alpha=alpha, L=L, M=M
    )
    return float(_self_bound(alpha, L, M) * value ** (alpha / (1 + alpha)))


def lemma_22(
    noise_scale: float,
    n_columns: int,
    constants: HolderConstants,
    size: float,
    *,
    confidence: float = 0.05,
) -> float:
    r"""Return what the noise on the output adds to the risk, with the constants of the proof::

        (M + L G^alpha) s q + L (s q)^(1+alpha),   s = sigma sqrt(d),   q = 1 + ((8/d)
        log(4/gamma))^(1/4)

    G (``size``) bounds the mean of the iterates: sqrt(C_alpha T eta) in part (a), the radius in part
    (b). It holds with probability 1 - gamma/4 if gamma > 4 e^(-d/8).
    """
    given = {"noise_scale": noise_scale, "size": size}
    check("lemma_22", None, n_columns=n_columns, confidence=confidence, **given)
    _few("lemma_22", n_columns, confidence / 4)
    doubt = 8 / n_columns * math.log(4 / confidence)
    longest = noise_scale * math.sqrt(n_columns) * (1 + doubt**0.25)
    alpha, L = constants.alpha, constants.L
    return float(constants.gradient_bound(size) * longest + L * longest ** (1 + alpha))


def lemma_24(
    n_steps: int,
    step: float,
    constants: HolderConstants,
    size: float,
    best: float,
    *,
    confidence: float = 0.05,
    reading: str = "corrected",
) -> float:
    r"""Return how far the risk on the sample of the mean iterate can be above that of w*, by the proof.

    It is the sum of (22), (23) and (25), where G (``size``) bounds every iterate and ||w*|| is
    ``best``. With l(G) = M_0 + M G + L G^(1+alpha), which bounds the loss::

        l(G) sqrt(2 log(8/gamma)/T) + l(||w*||) sqrt(log(8/gamma)/(2T))
            + (||w*||^2/(2 eta T) + a (l(||w*||) + 1))/(1 - a),   a = c eta/2

    c is c_(alpha,1)^2. The proof has c_(alpha,1), because it squares only one side of Lemma 19
    (``reading="printed"``), which is too small if c_(alpha,1) > 1.

    Raises
    ------
    ParameterError
        Unless a < 1.
    """
    given = {"step": step, "size": size, "best": best}
    check("lemma_24", one_of("printed", "corrected"), n_steps=n_steps, reading=reading, **given)
    check("lemma_24", confidence=confidence)
    slope = _self_bound(constants.alpha, constants.L, constants.M)
    share = step / 2 * (slope if reading == "printed" else slope**2)
    if not share < 1:
        allowed = f"below {step / share:.3g}, for this loss"
        raise ParameterError(parameter_message("lemma_24", "step", allowed, step))
    doubt, of_best = math.log(8 / confidence), constants.loss_bound(best)
    found = constants.loss_bound(size) * math.sqrt(2 * doubt / n_steps)
    found += of_best * math.sqrt(doubt / (2 * n_steps))
    own = best**2 / (2 * step * n_steps) + share * (of_best + 1)
    return float(found + own / (1 - share))


def lemma_26(
    n_steps: int,
    step: float,
    noise_scale: float,
    n_columns: int,
    constants: HolderConstants,
    radius: float,
    best: float,
    *,
    confidence: float = 0.05,
) -> float:
    r"""Return how far the risk on the sample of Algorithm 2 can be above that of w*, by the proof.

    It is the sum of (35), (36) and (37) with G = M + L R^alpha and ||w*|| = ``best``::

        (2 M_0 + l(R) + l(||w*||)) sqrt(log(9/gamma)/(2T)) + ||w*||^2/(2 eta T) + eta G^2/2
            + sigma (||w*|| + R + eta G) sqrt(2 log(18/gamma)/T)
            + (eta/2) d sigma^2 (1 + sqrt(8 log(18/gamma)/(T d)))

    with probability 1 - gamma/3 if gamma > 18 e^(-dT/8). In the last root the proof has 1/d, where
    Lemma 15 gives 8/(T d).
    """
    given = {"step": step, "noise_scale": noise_scale, "radius": radius, "best": best}
    check("lemma_26", None, n_steps=n_steps, n_columns=n_columns, confidence=confidence, **given)
    _few("lemma_26", n_columns * n_steps, confidence / 18)
    doubt, slope = math.log(9 / confidence), constants.gradient_bound(radius)
    heights = 2 * constants.M0 + constants.loss_bound(radius) + constants.loss_bound(best)
    found = heights * math.sqrt(doubt / (2 * n_steps))
    found += best**2 / (2 * step * n_steps) + step * slope**2 / 2
    more = math.log(18 / confidence)
    reach = best + radius + step * slope
    found += noise_scale * reach * math.sqrt(2 * more / n_steps)
    square = n_columns * noise_scale**2
    return found + step / 2 * square * (1 + math.sqrt(8 * more / (n_steps * n_columns)))


def _self_bound(alpha: float, L: float, M: float) -> float:
    """Return c_(alpha,1) of (2)."""
    if alpha == 0:
        return M + L
    return float((1 + 1 / alpha) ** (alpha / (1 + alpha)) * L ** (1 / (1 + alpha)))


def _few(owner: str, count: int, chance: float) -> None:
    """Raise unless the bound of Lemma 15 on ``count`` normal numbers reaches this chance."""
    least = math.exp(-count / 8)
    if not chance > least:
        allowed = "larger: with so few columns Lemma 15 does not reach this confidence"
        raise ParameterError(parameter_message(owner, "confidence", allowed, chance))
