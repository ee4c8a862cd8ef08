"""Lemmas 32, 50 and 78 and Appendices D and G: spectra of a projection, sizes of paths and of noise."""

from __future__ import annotations

from math import factorial, inf, log, sqrt

from dpkernel.foundations.validation import Constraint, Real, Whole
from dpkernel.models.losses import Loss
from dpkernel.proof.papers.arguments import check
from dpkernel.proof.papers.arguments import reading as one_of
from dpkernel.proof.papers.lee_park_ahn_2025.constants import algorithm_2_noise

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


def lemma_32(
    n_features: int,
    effective_dimension: float,
    *,
    kappa: float = 1.0,
    confidence: float = 0.05,
    reading: str = "corrected",
) -> float:
    r"""Return the bound of Lemma 32 on ||(L + lambda)^(-1/2) (L - L_M)||, with probability 1 - t::

        2 kappa sqrt(32 N) log(2/t) / M + sqrt(64 kappa^2 N log(2/t) / M)

    L_M is L on a projection to M dimensions and t is ``confidence``. The lemma has log(2/t) inside the
    first root ("printed"), where Bernstein's inequality, by which it is proved, has it outside. The
    print is false for very small t.
    """
    owner = "lemma_32"
    check(owner, one_of("printed", "corrected"), reading=reading, n_features=n_features)
    check(owner, effective_dimension=effective_dimension, kappa=kappa, confidence=confidence)
    doubt, size = log(2 / confidence), kappa * sqrt(effective_dimension)
    first = sqrt(doubt) if reading == "printed" else doubt
    return 2 * size * sqrt(32) * first / n_features + size * sqrt(64 * doubt / n_features)


def lemma_50(
    n_features: int,
    epsilon: float,
    delta: float,
    loss: Loss,
    *,
    confidence: float = 0.05,
    reading: str = "corrected",
) -> float:
    r"""Return the bound of Lemma 50 on the norm of b, the noise of Algorithm 2, with probability 1 - t.

    It is s (sqrt(M) + sqrt(8 log(2/t))), where s is the standard deviation of b. The lemma has
    Delta_3/epsilon for s ("printed"), without the factor 2 c_1 sqrt(2 log(4/delta) + epsilon) that
    Algorithm 2 has. So b is longer than the printed bound almost always, and the bounds of Theorems 18
    and 19 lack a log(1/delta).
    """
    check("lemma_50", one_of("printed", "corrected"), confidence=confidence, reading=reading)
    noise = algorithm_2_noise(1, epsilon, delta, n_features, 1.0, loss)
    scale = noise.row_bound / epsilon if reading == "printed" else noise.noise_scale
    return scale * (sqrt(n_features) + sqrt(8 * log(2 / confidence)))
