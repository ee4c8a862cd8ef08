"""Lemmas 13, 16, 19, 25, 26 and 28: the law of the random affine space, and how far a record moves it.

The columns of a sketch are independent N(0, Sigma/m) in the feature space of dimension h. m of them
span the range of an orthogonal projection P, and b is the part of one more column that is orthogonal to
it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array
from dpkernel.foundations.validation import Constraint, Real, Whole
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


@dataclass(frozen=True)
class AffineOptimum:
    """Whether w is the best point of an affine space, by the definitions around Lemma 16.

    Attributes
    ----------
    printed : bool
        Definition 14: the risk of w is the least risk in the space. w itself may lie outside.
    corrected : bool
        The same, and w lies in the space.
    inducible : bool
        Definition 15: the gradient at w is orthogonal to the space, and w lies in it.
    """

    printed: bool
    corrected: bool
    inducible: bool


def lemma_16(P: Array, b: Array, w: Array, hessian: Array, minimiser: Array) -> AffineOptimum:
    r"""Return both sides of Lemma 16 for the risk J(v) = (v - u)^T H (v - u) / 2.

    u is ``minimiser`` and H is ``hessian``. The space has the points b + P v. The lemma says that w is
    optimal (Definition 14) if and only if it is inducible (Definition 15). Definition 14 does not ask
    that w lies in the space. So as printed the lemma fails for each w outside it whose risk is the least
    one in the space. With this condition it holds, because J is convex.
    """
    P, b, hessian, _ = _space("lemma_16", P, b, hessian)
    w, minimiser = (np.asarray(v, dtype=np.float64) for v in (w, minimiser))
    for name, value in (("w", w), ("minimiser", minimiser)):
        if value.shape != b.shape:
            allowed = f"an array of the shape {b.shape}"
            raise ParameterError(parameter_message("lemma_16", name, allowed, value.shape))

    def risk(v: Array) -> float:
        return float((v - minimiser) @ hessian @ (v - minimiser) / 2)

    best = b - np.linalg.pinv(P @ hessian @ P, hermitian=True) @ hessian @ (b - minimiser)
    inside = np.allclose(w - P @ w, b)
    least = math.isclose(risk(w), risk(best), rel_tol=1e-9, abs_tol=1e-12)
    flat = np.allclose(P @ hessian @ (w - minimiser), 0.0)
    return AffineOptimum(least, least and inside, flat and inside)


def lemma_19(
    eigenvalues: Array, n_sketch: int, share: float, *, sketches: int = 100, seed: int = 0
) -> tuple[float, float]:
    r"""Return how often the two bounds of Lemma 19 hold, as shares of the sketches.

    ``eigenvalues`` are the h largest ones of the kernel matrix divided by n, in descending order, and
    ``share`` is C. The first k = floor(C h) of them are A and the others are B. The lemma says that ::

        ||A^(-1/2) Phi_A S S^T Phi_A^T A^(-1/2) - I|| <= 1/2,    ||Phi_B S|| <= lambda_(k+1)^(1/2)

    hold together with probability 1 - 2 exp(-2m) if m is between max(C h, 2h/3) and h. The first one
    holds if C is small, as the proof assumes. The second one does not hold: its proof has a constant c''
    before the root, which the lemma and the proof of Lemma 9 drop. If the eigenvalues in B are equal,
    the norm is about 1 + sqrt((h - k)/m) times the root. Theorem 5 is stated up to constants and stays.
    """
    values = np.asarray(eigenvalues, dtype=np.float64)
    fits = values.ndim == 1 and len(values) and np.all(np.diff(values) <= 0) and values[-1] > 0
    if not fits:
        allowed = "positive numbers in descending order"
        raise ParameterError(parameter_message("lemma_19", "eigenvalues", allowed, values.shape))
    h = len(values)
    numbers: dict[str, Constraint] = {
        "share": Real(0, 1),
        "n_sketch": Whole(math.ceil(max(share * h, 2 * h / 3)), h),
        "sketches": Whole(1),
        "seed": Whole(0),
    }
    check("lemma_19", numbers, n_sketch=n_sketch, share=share, sketches=sketches, seed=seed)
    draws, k = np.random.Generator(np.random.PCG64(seed)), math.floor(share * h)
    held = np.zeros(2)
    for _ in range(sketches):  # of public numbers: no data are involved
        sketch = draws.standard_normal((h, n_sketch)) / math.sqrt(n_sketch)
        first, second = sketch[:k], np.sqrt(values[k:, None]) * sketch[k:]
        held[0] += not k or np.linalg.norm(first @ first.T - np.eye(k), 2) <= 0.5
        held[1] += np.linalg.norm(second, 2) <= math.sqrt(values[k])
    return float(held[0] / sketches), float(held[1] / sketches)


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
