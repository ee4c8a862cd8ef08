"""Appendices D, F and G: eigenvalues against effective dimension, moments of a path, eigenfunctions."""

from __future__ import annotations

from math import factorial, inf, sqrt

from dpkernel.foundations.validation import Constraint, Real, Whole
from dpkernel.proof.papers.arguments import check

_EXPONENT: dict[str, Constraint] = {"gamma": Real(0, 1), "order": Whole(1), "place": Whole(1)}


def appendix_d_eigenvalue(place: int, gamma: float, *, Q: float = 1.0) -> float:
    """Return (2 Q/l)^(1/gamma), which bounds mu_l if N(lambda) <= Q lambda^-gamma for all lambda."""
    check("appendix_d_eigenvalue", _EXPONENT, place=place, gamma=gamma, Q=Q)
    return float((2 * Q / place) ** (1 / gamma))


def appendix_d_dimension(gamma: float, *, q: float = 1.0) -> float:
    """Return Q = max(1 + q^gamma, q)/(1 - gamma), for which N(lambda) <= Q lambda^-gamma.

    This holds if mu_l <= q l^(-1/gamma) for all l.
    """
    check("appendix_d_dimension", _EXPONENT, gamma=gamma, q=q)
    return max(1 + float(q**gamma), q) / (1 - gamma)


def lemma_78(order: int, trace: float = 1.0) -> tuple[float, float]:
    r"""Return 2 p! (4 tr Sigma)^p and 2 p! (8 tr Sigma)^p, the bounds of Lemma 78 with C = 2.

    They bound the p-th absolute moment of ||h||^2 - E||h||^2 and that of ||h||^2, for a path h of a
    Gaussian process with covariance Sigma and p = 1, 2, ... (``order``).
    """
    check("lemma_78", {**_EXPONENT, "order": Whole(1, 150)}, order=order, trace=trace)
    count = 2.0 * factorial(order)
    return count * (4 * trace) ** order, count * (8 * trace) ** order


def appendix_g(eigenvalue: float, beta: float, *, c_beta: float = 1.0) -> float:
    r"""Return mu_l^(beta/2)/sqrt(c_beta), below which the L^1 norm of phi_l can't be.

    It holds if k_beta = sum mu_l^beta phi_l phi_l is at most c_beta on the diagonal, so Assumption 7
    follows with c_3 = 1/c_beta. The appendix writes <= for the >= that it proves.
    """
    allowed: dict[str, Constraint] = {"beta": Real(0, 1, closed_high=True)}
    check("appendix_g", {**allowed, "eigenvalue": Real(0, inf)}, eigenvalue=eigenvalue, beta=beta)
    check("appendix_g", c_beta=c_beta)
    return float(eigenvalue ** (beta / 2)) / sqrt(c_beta)
