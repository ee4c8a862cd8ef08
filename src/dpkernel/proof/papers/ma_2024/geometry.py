"""Lemmas 13, 25, 26 and 28: the law of the random affine space, and how far one record moves it.

The columns of a sketch are independent N(0, Sigma/m) in the feature space of dimension h. m of them
span the range of an orthogonal projection P, and b is the part of one more column that is orthogonal to
it.
"""

from __future__ import annotations

import math

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array
from dpkernel.proof.papers.arguments import ONE_ROW, check
from dpkernel.proof.papers.arguments import reading as one_of


def lemma_13(P: Array, b: Array, sigma: Array, *, reading: str = "corrected") -> float:
    r"""Return the logarithm of the density of Lemma 13 at the affine space (P, b).

    ``sigma`` is a covariance matrix. With Q = I - P and Pi = the pseudo-inverse of Q Sigma Q, the lemma
    prints ::

        m^(hm/2) prod lambda_i(Pi) (2 pi)^(-h/2) |Sigma - (Sigma - I) P|^(-m/2) exp(-b^T Pi b)

    This is not a density. Its integral is not 1, and depends on Sigma. The right one, by the uniform
    law of P and the volume in the null space of P, is ::

        |Sigma|^((h-m)/2) |Sigma - (Sigma - I) P|^(-h/2)
            (m/(2 pi))^((h-m)/2) prod lambda_i(Pi)^(1/2) exp(-m b^T Pi b / 2)

    because P has the angular central Gaussian law with the exponent h/2 (Chikuse 2003, section 2.4),
    and b is normal in a space of dimension h - m. The proof of Theorem 12 uses the printed one.
    """
    P, b, sigma, m = _space("lemma_13", P, b, sigma)
    check("lemma_13", one_of("printed", "corrected"), reading=reading)
    h, away = len(P), np.eye(len(P)) - P
    inner = away @ sigma @ away
    inverse = np.linalg.pinv(inner, rcond=1e-10, hermitian=True)
    largest_first = np.linalg.eigvalsh(inner)[::-1]
    log_pi = -float(np.log(largest_first[: h - m]).sum())
    log_mixed = float(np.linalg.slogdet(sigma - (sigma - np.eye(h)) @ P)[1])
    square = float(b @ inverse @ b)
    if reading == "printed":
        return (
            h * m / 2 * math.log(m)
            + log_pi
            - h / 2 * math.log(2 * math.pi)
            - m / 2 * log_mixed
            - square
        )
    log_sigma = float(np.linalg.slogdet(sigma)[1])
    law_of_space = (h - m) / 2 * log_sigma - h / 2 * log_mixed
    law_of_point = (h - m) / 2 * math.log(m / (2 * math.pi)) + log_pi / 2 - m * square / 2
    return law_of_space + law_of_point


def lemma_25(n: int, *, kappa: float = 1.0, change: float = 0.0) -> tuple[float, float]:
    r"""Return 2 sqrt(kappa/n) and 4 sqrt(kappa/n) + 2 ||P - P'||, both bounds of Lemma 25.

    They bound how far a changed record moves Sigma, the singular values of the features divided by
    sqrt(n), and an eigenvalue of Sigma - (Sigma - I) P. ``change`` is ||P - P'||.
    """
    check("lemma_25", ONE_ROW, n_rows=n, kappa=kappa)
    root = math.sqrt(kappa / n)
    return 2 * root, 4 * root + 2 * change


def lemma_26(P: Array, sigma: Array) -> Array:
    r"""Return the eigenvalues of Sigma - (Sigma - I) P in ascending order.

    Lemma 26 bounds them by lambda_h(Sigma)/2 and 2, for Sigma up to I, and says that m of them are 1.
    In a basis of the range of P and its complement the matrix is block triangular, with I and the
    compression of Sigma on the diagonal. So m eigenvalues are 1, and all others lie between the extreme
    eigenvalues of Sigma.
    """
    P, _, sigma, _ = _space("lemma_26", P, np.zeros(len(P)), sigma)
    found = np.linalg.eigvals(sigma - (sigma - np.eye(len(P))) @ P)
    return np.sort(np.real(found))


def lemma_28(n: int, *, smoothness: float = 1.0, kappa: float = 1.0) -> float:
    """Return 16 c_L sqrt(kappa/n) of Lemma 28, which bounds ||P - P'|| where a gradient is not small.

    It rests on Lemma 27, whose c_L is not a bound on a slope (001-3; see ``lemma_27``).
    """
    check("lemma_28", ONE_ROW, n_rows=n, smoothness=smoothness, kappa=kappa)
    return 16 * smoothness * math.sqrt(kappa / n)


def _space(owner: str, P: Array, b: Array, sigma: Array) -> tuple[Array, Array, Array, int]:
    """Return the arguments as arrays, and the rank of P, or raise if they are not what they must be."""
    P, b, sigma = (np.asarray(v, dtype=np.float64) for v in (P, b, sigma))
    h = len(P)
    fits = P.shape == sigma.shape == (h, h) and b.shape == (h,)
    laws = ((P @ P, P), (P, P.T), (P @ b, 0.0)) if fits else ()
    fits = fits and all(np.allclose(*law) for law in laws)
    if not fits:
        allowed, got = "an orthogonal projection with P b = 0", f"shape {P.shape}"
        raise ParameterError(parameter_message(owner, "P", allowed, got))
    m = round(float(np.trace(P)))
    if not (1 <= m < h and np.allclose(sigma, sigma.T) and np.linalg.eigvalsh(sigma)[0] > 0):
        allowed, got = "a positive definite matrix, for a P of rank 1 .. h - 1", f"rank {m}"
        raise ParameterError(parameter_message(owner, "sigma", allowed, got))
    return P, b, sigma, m
