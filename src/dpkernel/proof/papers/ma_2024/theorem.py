"""The numbers of Theorem 12, and the two tables that refute it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln
from scipy.stats import beta

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, is_real, is_whole
from dpkernel.models.kernels import Gaussian
from dpkernel.models.losses import Squared
from dpkernel.solvers.sketching import gaussian_sketch, sketched_erm

_ZERO = 1e-9  # rounding errors of a zero are far below this


@dataclass(frozen=True)
class PrintedClaim:
    """The epsilon of Theorem 12, and the decimal logarithm of its delta, which is often above 0."""

    epsilon: float
    log10_delta: float


def theorem_12(
    n: int,
    h: int,
    m: int,
    d: int,
    nu: float,
    *,
    smoothness: float = 1.0,
    kappa: float = 1.0,
    convexity: float = 1.0,
    decay: float = 1.0,
    sign: str = "printed",
) -> PrintedClaim:
    r"""Return the epsilon and delta of Theorem 12::

        epsilon = 64 c_L sqrt(kappa) (h - m) m n^(nu - 1/2) / C_h
                  + (32 c_L + 2) sqrt(kappa) n^(2 nu - 1/2) / C_h^2
        delta   = V_d 4^d C^-d m^(h (m - 1)/2) (2 pi)^(-h/2) n^(nu (m - h) m/2 - d/2)

    Parameters
    ----------
    n, h, m, d : int
        The number of rows, and the dimensions of the feature space, of the sketch and of x; m <= h.
    nu : float
        The exponent of the decay of eigenvalues.
    smoothness, kappa, convexity, decay : float
        c_L, kappa, C and C_h.
    sign : {"printed", "proof"}
        "proof" replaces nu (m - h) m/2 by nu (h - m)(m + 2)/2, which the proof's own bounds give.

    Notes
    -----
    This only computes the printed numbers; the theorem is false (``counterexample``). The proof has h
    where the theorem has d (001-2). For that version, pass h as d.
    """
    if not all(is_whole(v) and v >= 1 for v in (n, h, m, d)) or not m <= h:
        allowed = "ints >= 1 with m <= h"
        raise ParameterError(parameter_message("theorem_12", "n, h, m, d", allowed, (n, h, m, d)))
    numbers = (nu, smoothness, kappa, convexity, decay)
    if not all(is_real(v) and 0 < v < math.inf for v in numbers):
        allowed = "floats in the range (0, inf)"
        raise ParameterError(parameter_message("theorem_12", "nu, constants", allowed, numbers))
    if sign not in ("printed", "proof"):
        allowed = "'printed' or 'proof'"
        raise ParameterError(parameter_message("theorem_12", "sign", allowed, sign))
    root = math.sqrt(kappa)
    epsilon = 64 * smoothness * root * (h - m) * m * n ** (nu - 0.5) / decay
    epsilon += (32 * smoothness + 2) * root * n ** (2 * nu - 0.5) / decay**2
    power = nu * (m - h) * m / 2 if sign == "printed" else nu * (h - m) * (m + 2) / 2
    volume = d / 2 * math.log(math.pi) - float(gammaln(d / 2 + 1))
    log_delta = volume + d * math.log(4 / convexity) + h * (m - 1) / 2 * math.log(m)
    log_delta += -h / 2 * math.log(2 * math.pi) + (power - d / 2) * math.log(n)
    return PrintedClaim(epsilon, log_delta / math.log(10))


@dataclass(frozen=True)
class Distinguished:
    """The outputs of Algorithm 1 on two neighbouring tables, over many sketches.

    ``largest_at_zero`` is the largest abs(f) on the table with y = 0, and ``smallest_after`` is the
    smallest one after one label was changed. ``delta_lower`` is a lower bound on delta at every
    epsilon up to ``epsilon``, with the stated confidence.
    """

    largest_at_zero: float
    smallest_after: float
    sketches: int
    epsilon: float
    delta_lower: float
    confidence: float


def counterexample(
    n: int = 40,
    m: int = 6,
    sketches: int = 1000,
    *,
    regularisation: float = 0.01,
    epsilon: float = 1.0,
    confidence: float = 1 - 1e-6,
    seed: int = 0,
) -> Distinguished:
    r"""Run Algorithm 1 on y = 0 and on y = (1, 0, ..., 0), at the query x_1, and tell them apart.

    If every label is 0, the squared loss and a quadratic penalty are smallest at f = 0 in every
    subspace, so the sketch hides nothing. The event abs(f) > 1e-9 then has probability 0 on one
    table and 1 on its neighbour, and P(S) - e^epsilon Q(S) <= delta fails for every delta < 1. The
    probabilities are bounded by Clopper-Pearson intervals.
    """
    draws = np.random.Generator(np.random.PCG64(seed))  # public tables and sketches
    points = draws.uniform(-1, 1, (n, 2))
    gram = Gaussian(length_scale=0.5)(points)
    found = []
    for label in (0.0, 1.0):
        y = np.zeros(n)
        y[0] = label
        found.append([_answer(gram, y, m, regularisation, draws) for _ in range(sketches)])
    before, after = (np.abs(values) for values in found)
    level = (1 - confidence) / 2
    low = _least(int(np.sum(after > _ZERO)), sketches, level)
    high = 1 - _least(int(np.sum(before <= _ZERO)), sketches, level)
    delta = max(low - math.exp(epsilon) * high, 0.0)
    return Distinguished(
        float(before.max()), float(after.min()), sketches, epsilon, delta, confidence
    )


def _answer(
    gram: Array, y: Array, m: int, regularisation: float, draws: np.random.Generator
) -> float:
    """Return the prediction of Algorithm 1 at the first point, with a new sketch and a new start."""
    sketch = gaussian_sketch(len(y), m, int(draws.integers(2**63)))
    start = draws.standard_normal(m)
    fit = sketched_erm(gram, y, Squared(), regularisation, sketch, start=start)
    return float(gram[0] @ fit.coefficients)


def _least(hits: int, trials: int, level: float) -> float:
    """Return the lower end of the Clopper-Pearson interval at this one-sided level."""
    return float(beta.ppf(level, hits, trials - hits + 1)) if hits else 0.0
