"""Lemmas 3, 5 and 19: subsampled Renyi privacy, its conversion, and the self-bounding property."""

from __future__ import annotations

import math

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.validation import Constraint, Real
from dpkernel.proof.papers.arguments import NOT_NEGATIVE, check

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
    if alpha == 0:
        return M + L
    power = alpha / (1 + alpha)
    return float((1 + 1 / alpha) ** power * L ** (1 / (1 + alpha)) * value**power)
