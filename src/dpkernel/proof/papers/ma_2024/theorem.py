"""The numbers of Theorem 12, and the two tables that refute it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln
from scipy.stats import beta

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, is_real, is_whole
from dpkernel.models.kernels import Gaussian
from dpkernel.models.losses import Loss, Squared
from dpkernel.proof.papers.arguments import check
from dpkernel.proof.papers.arguments import reading as one_of
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
    r"""Return the epsilon and delta of Theorem 12.

    They are::

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
        "proof" has the numbers that the proof's own bounds give: nu (h - m)(m + 2)/2 instead of
        nu (m - h) m/2 in delta, and the sum of (13), (17) and (18) for epsilon (001-4)::

            ((4 + 32 c_L)(h - m) m + 64 c_L + (64 c_L + 6)(h - m)) sqrt(kappa) n^(nu - 1/2) / C_h
                + (128 c_L + 8) sqrt(kappa) n^(2 nu - 1/2) / C_h^2

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
    first, second = 64 * smoothness * (h - m) * m, 32 * smoothness + 2
    power = nu * (m - h) * m / 2
    if sign == "proof":
        first = (
            (4 + 32 * smoothness) * (h - m) * m + 64 * smoothness + (64 * smoothness + 6) * (h - m)
        )
        second, power = 4 * second, nu * (h - m) * (m + 2) / 2
    epsilon = root * (first * n ** (nu - 0.5) / decay + second * n ** (2 * nu - 0.5) / decay**2)
    volume = d / 2 * math.log(math.pi) - float(gammaln(d / 2 + 1))
    log_delta = volume + d * math.log(4 / convexity) + h * (m - 1) / 2 * math.log(m)
    log_delta += -h / 2 * math.log(2 * math.pi) + (power - d / 2) * math.log(n)
    return PrintedClaim(epsilon, log_delta / math.log(10))


@dataclass(frozen=True)
class UtilitySchedule:
    """The choices of Theorem 5, its rate with hidden constants set to 1, and its probability."""

    n_sketch: int
    lam: float
    steps: int
    rate: float
    probability: float


def theorem_5(
    eigenvalues: Sequence[float] | Array, n: int, C: float = 2 / 3, *, reading: str = "printed"
) -> UtilitySchedule:
    r"""Return m, lambda and T of Theorem 5, for the eigenvalues lambda_1 >= ... >= lambda_h.

    m = max(C, 2/3) h is the least m that the theorem allows, lambda = sqrt(sum_(i > C h) lambda_i), and
    T = log log n. The rate is 1/sqrt(n) + lambda, with probability 1 - 2 e^(-2m) - 2/n^2. Its proof, and
    Lemmas 6 and 7 behind it, have sqrt(log(n)/n) for 1/sqrt(n) (``reading="proof"``).
    """
    values = np.sort(np.asarray(eigenvalues, dtype=np.float64))[::-1]
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        allowed, got = "one or more finite numbers", f"shape {np.shape(eigenvalues)}"
        raise ParameterError(parameter_message("theorem_5", "eigenvalues", allowed, got))
    if not is_whole(n) or n < 2:
        raise ParameterError(parameter_message("theorem_5", "n", "an int >= 2", n))
    if not is_real(C) or not 0 < C < 1:
        raise ParameterError(parameter_message("theorem_5", "C", "a float in (0, 1)", C))
    h = len(values)
    m = min(h, math.ceil(max(C, 2 / 3) * h))
    lam = math.sqrt(max(float(values[math.floor(C * h) :].sum()), 1e-300))
    check("theorem_5", one_of("printed", "proof"), reading=reading)
    probability = 1 - 2 * math.exp(-2 * m) - 2 / n**2
    steps = max(1, math.ceil(math.log(max(math.log(n), 1.0))))
    known = math.sqrt((1 if reading == "printed" else math.log(n)) / n)
    return UtilitySchedule(m, lam, steps, known + lam, probability)


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


def affine_counterexample(
    n: int = 40, m: int = 6, sketches: int = 1000, *, regularisation: float = 0.01, seed: int = 0
) -> tuple[float, float]:
    r"""Run problem (7) on two neighbouring tables; return the largest and the least abs(f(e_2)).

    The kernel is linear in two columns. All inputs of the first table lie on the first axis, and one
    input of its neighbour lies on the second. Every sketch of the first table is a combination of
    multiples of e_1, so f(e_2) = 0 whatever the labels, the sketch and the fixed coefficient are. On
    the neighbour, f(e_2) is almost surely not 0. So the affine variant, which the first counterexample
    does not cover, is not private either, at any epsilon for delta < 1. The numbers of
    Theorem 12 assume a lower bound on the smallest eigenvalue, which is 0 for the first table; but a
    guarantee must hold for every table.
    """
    draws = np.random.Generator(np.random.PCG64(seed))  # public tables and sketches
    points = np.column_stack([draws.uniform(-1, 1, n), np.zeros(n)])
    other = points.copy()
    other[0] = (0.0, 1.0)
    y = draws.normal(size=n)
    sides = []
    for table in (points, other):
        found = []
        for _ in range(sketches):
            sketch = gaussian_sketch(n, m + 1, int(draws.integers(2**63)))
            fit = sketched_erm(table @ table.T, y, Squared(), regularisation, sketch, affine=True)
            found.append(abs(float(table[:, 1] @ fit.coefficients)))
        sides.append(found)
    return max(sides[0]), min(sides[1])


def full_counterexample(
    n: int = 40, sketches: int = 100, *, affine: bool = True, seed: int = 0
) -> tuple[float, float]:
    r"""Run Algorithm 1 with m = h on two neighbouring tables; return a spread and a difference.

    The theorems allow m = h, and Theorem 5 asks for m >= 2h/3, so m = h if h is 1 or 2. The kernel
    is linear in two columns, so h = 2, and the smallest eigenvalue has the bound that Theorem 12
    assumes. The span of m = h columns is almost surely the whole space, and a fixed coefficient moves
    it nowhere. So the output is the minimiser without privacy, whatever the sketch is. The first number
    is the largest deviation of f(e_1) from its mean over the sketches of one table. The second is how
    far f(e_1) differs between the tables. So problem (7) is not private either, not even for
    tables that meet all assumptions.
    """
    draws = np.random.Generator(np.random.PCG64(seed))  # public tables and sketches
    points = draws.uniform(-1, 1, (n, 2))
    y = points[:, 0].copy()
    answers = []
    for label in (y[0], -y[0]):
        y[0], found = label, []
        for _ in range(sketches):
            sketch = gaussian_sketch(n, 2 + affine, int(draws.integers(2**63)))
            fit = sketched_erm(points @ points.T, y, Squared(), 0.01, sketch, affine=affine)
            found.append(float(points[:, 0] @ fit.coefficients))
        answers.append(np.array(found))
    spread = max(float(np.abs(values - values.mean()).max()) for values in answers)
    return spread, abs(float(answers[0].mean() - answers[1].mean()))


@dataclass(frozen=True)
class GradientStep:
    """How far a changed record moves the gradient of the objective, as printed and as it is."""

    printed: float
    corrected: float


def lemma_27(loss: Loss, n: int, *, kappa: float = 1.0, target_bound: float = 1.0) -> GradientStep:
    r"""Return the bound of Lemma 27 on how far a gradient moves, 2 c_L sqrt(kappa) / n.

    c_L bounds how fast the slope of the loss changes (Assumption 1), but the step needs a bound on the
    slope itself, for predictions in [-1, 1] (erratum 001-3). For (f - y)^2 / 2 the slope is up to 2
    while c_L = 1. Theorem 12 has this c_L in its epsilon.
    """
    if not (is_whole(n) and n >= 1):
        raise ParameterError(parameter_message("lemma_27", "n", "an int >= 1", n))
    numbers = (kappa, target_bound)
    if not all(is_real(v) and 0 < v < math.inf for v in numbers):
        allowed = "floats in the range (0, inf)"
        raise ParameterError(parameter_message("lemma_27", "kappa, target_bound", allowed, numbers))
    unit = 2 * math.sqrt(kappa) / n
    targets = np.array([-target_bound, target_bound])
    slopes = [np.abs(loss.derivative(targets, np.full(2, f))).max() for f in (-1.0, 1.0)]
    return GradientStep(loss.smoothness * unit, float(max(slopes)) * unit)


def equal_sketches() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    r"""Return two tables (Z, y) with y = +-1 whose private sketches have the same law.

    A row of a Gaussian mixing of the records v = (z, y, 1) is N(0, sum v v^T + tau^2 I). So the whole
    release depends on the records through sum v v^T alone. Both tables have four rows of either class,
    z is y times a number, and these numbers have the same sum and the same sum of squares.
    So the sketches agree in law, but the minimisers of the logistic loss do not. Hence no computation
    on a sketch returns that minimiser, or the one of another loss that depends on more than second
    moments.
    """
    mean, spread = 0.5, 0.9
    even = mean + spread * np.array([1.0, -1.0, 1.0, -1.0])
    skewed = mean + spread * np.array([3.0, -1.0, -1.0, -1.0]) / math.sqrt(3)
    y = np.repeat([1.0, -1.0], 4)
    first, second = (np.concatenate([s, -s])[:, None] for s in (even, skewed))
    return (first, y), (second, y)


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
