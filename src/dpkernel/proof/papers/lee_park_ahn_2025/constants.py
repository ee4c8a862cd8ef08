"""The constants of the printed Algorithms 1 to 5, and the guarantees that the noise of 2, 4 and 5 gives.

kappa = 1 throughout. The package docstring lists the errata by number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpkernel.foundations.types import Neighbours
from dpkernel.foundations.validation import Choice, Constraint
from dpkernel.models.losses import Loss
from dpkernel.privacy.profiles import GaussianProfile, ObjectiveProfile
from dpkernel.privacy.sensitivity import loss_gradient
from dpkernel.proof.papers.arguments import ONE_ROW, check
from dpkernel.proof.papers.arguments import reading as one_of
from dpkernel.proof.papers.gaussian import gaussian_lemma


def squared_norm_bound(log_odds: float, n_features: int, norm_bound: str = "lemma") -> float:
    r"""Return the bound on ||h_M(x)||^2 for kappa = 1 that holds except with probability e^-log_odds.

    With l = log_odds:

        "lemma"   1 + 2 sqrt(l/M) + 2 l/M        Lemma 7 and the proofs of Theorems 8 and 9
        "nested"  1 + 2 sqrt(l/M + 2 l/M)        the printed algorithms (erratum 003-3)
    """
    kinds: dict[str, Constraint] = {"norm_bound": Choice("lemma", "nested")}
    check(
        "squared_norm_bound", kinds, log_odds=log_odds, n_features=n_features, norm_bound=norm_bound
    )
    ratio = log_odds / n_features
    if norm_bound == "nested":
        return 1 + 2 * math.sqrt(ratio + 2 * ratio)
    return 1 + 2 * math.sqrt(ratio) + 2 * ratio


@dataclass(frozen=True)
class PrintedNoise:
    """Constants of a printed algorithm: sensitivities of n C and n u, and the noise on C and u."""

    gram_sensitivity: float  # Delta_1
    cross_sensitivity: float  # Delta_2, with the factor T
    gram_scale: float  # s_1: standard deviation on the diagonal of C, s_1/sqrt(2) off it
    cross_scale: float  # s_2: standard deviation of each entry of u


def algorithm_1_noise(
    n_rows: int,
    epsilon: float,
    delta: float,
    n_features: int,
    target_bound: float,
    norm_bound: str = "lemma",
) -> PrintedNoise:
    r"""Return the constants of Algorithm 1, steps 1 and 4, with kappa = 1.

    They are Delta_1 = 2 B^2, Delta_2 = 2 T B and
    s_j = 2 Delta_j (1 + sqrt(2 log(4/delta))) / (n epsilon). C and u get half of epsilon and of delta
    each. Half of each half of delta is for the norm bound; the rest is for the Gaussian mechanism of
    Nikolov, Talwar & Zhang. B^2 is ``squared_norm_bound`` at log(8/delta), that of Lemma 7 or the nested
    root of the printed algorithm (erratum 003-3).
    """
    _check("algorithm_1_noise", n_rows, epsilon, delta, target_bound=target_bound)
    squared = squared_norm_bound(math.log(8 / delta), n_features, norm_bound)
    gram, cross = 2 * squared, 2 * target_bound * math.sqrt(squared)
    factor = 2 * (1 + math.sqrt(2 * math.log(4 / delta))) / (n_rows * epsilon)
    return PrintedNoise(gram, cross, factor * gram, factor * cross)


def clipped_mean_noise(n_rows: int, epsilon: float, delta: float, target_bound: float) -> float:
    r"""Return the printed number of Section 4.2: 2 T (1 + sqrt(2 log(4/delta))) / (n epsilon).

    It is added to the mean u = (1/n) sum y_i z_i after the mean is clipped to norm T. The paper
    leaves out the noise vector that this number should multiply, and it uses the whole of epsilon,
    although Algorithm 1 has half of it for u. Erratum 003-4: the number is for a mean that moves by
    2 T / n, but a clipped mean can move by 2 T.
    """
    _check("clipped_mean_noise", n_rows, epsilon, delta, target_bound=target_bound)
    return 2 * target_bound * (1 + math.sqrt(2 * math.log(4 / delta))) / (n_rows * epsilon)


def algorithm_3_noise(
    n_rows: int, epsilon: float, delta: float, target_bound: float
) -> PrintedNoise:
    r"""Return the constants of Algorithm 3, steps 1 and 4.

    Delta_1 = 2,  Delta_2 = sqrt(2) T,  s_j = 2 Delta_j (1 + sqrt(2 log(2/delta))) / (n epsilon).
    """
    _check("algorithm_3_noise", n_rows, epsilon, delta, target_bound=target_bound)
    gram, cross = 2.0, math.sqrt(2) * target_bound
    factor = 2 * (1 + math.sqrt(2 * math.log(2 / delta))) / (n_rows * epsilon)
    return PrintedNoise(gram, cross, factor * gram, factor * cross)


@dataclass(frozen=True)
class PrintedPerturbation:
    """Constants of a printed algorithm: Delta, the noise b and the penalty."""

    row_bound: float  # Delta_3 or Delta, the bound on the norm of a row
    noise_scale: float  # the standard deviation of each entry of b
    regularisation: float  # lambda_0, on the scale of the mean over rows


def published_objective_noise(epsilon: float, delta: float, c1: float, B: float) -> float:
    r"""Return the printed standard deviation of b for rows of norm B and a loss of slope c_1.

    It is 2 c_1 B sqrt(2 log(2/delta) + epsilon) / epsilon in step 3 of Algorithm 4. Step 3 of
    Algorithm 2 has it at delta/2, because the other half is for the norm bound. Erratum 003-7: it
    is for a gradient that moves by c_1 B, but replacing a record moves it by 2 c_1 B.
    """
    check("published_objective_noise", epsilon=epsilon, delta=delta, c1=c1, B=B)
    return 2 * c1 * B * math.sqrt(2 * math.log(2 / delta) + epsilon) / epsilon


def published_minimum_lambda(n_rows: int, epsilon: float, c2: float, B: float) -> float:
    r"""Return the least lambda_0 of the printed algorithms: c_2 B^2 / (n (e^(epsilon/4) - 1)).

    Half of epsilon is for the ratio (1 + c_2 B^2 / (n lambda_0))^2 of two determinants. The square is
    not needed (erratum 003-8).
    """
    check("published_minimum_lambda", ONE_ROW, n_rows=n_rows, epsilon=epsilon, c2=c2, B=B)
    growth = math.expm1(epsilon / 4) if epsilon < 2800 else math.inf
    return c2 * B**2 / (n_rows * growth)


def algorithm_2_noise(
    n_rows: int,
    epsilon: float,
    delta: float,
    n_features: int,
    regularisation: float,
    loss: Loss,
    norm_bound: str = "lemma",
) -> PrintedPerturbation:
    r"""Return the constants of Algorithm 2, steps 1, 3 and 4, with kappa = 1.

    Delta_3^2 is ``squared_norm_bound`` at log(4/delta), that of Lemma 7 or the nested root of the
    printed algorithm (erratum 003-3).
    """
    bound = math.sqrt(squared_norm_bound(math.log(4 / delta), n_features, norm_bound))
    return _printed(n_rows, epsilon, delta / 2, regularisation, loss, bound)


def algorithm_4_noise(
    n_rows: int, epsilon: float, delta: float, regularisation: float, loss: Loss
) -> PrintedPerturbation:
    """Return the constants of Algorithm 4, steps 1, 3 and 4: Delta = sqrt 2.

    max(lambda/2, c_2 / (n (e^(epsilon/4) - 1))) in the printed algorithm is lambda_0/2.
    """
    return _printed(n_rows, epsilon, delta, regularisation, loss, math.sqrt(2))


def _printed(
    n_rows: int, epsilon: float, delta: float, regularisation: float, loss: Loss, bound: float
) -> PrintedPerturbation:
    least = published_minimum_lambda(n_rows, epsilon, loss.smoothness, bound)
    scale = published_objective_noise(epsilon, delta, loss.lipschitz, bound)
    return PrintedPerturbation(bound, scale, max(float(regularisation), least))


def _check(owner: str, n_rows: int, epsilon: float, delta: float, **others: float) -> None:
    check(owner, ONE_ROW, n_rows=n_rows, epsilon=epsilon, delta=delta, **others)


def exact_minimiser_profile(
    printed: PrintedPerturbation, loss: Loss, n_rows: int, row_norm: float
) -> ObjectiveProfile:
    """Return the profile proved for the exact minimiser in real arithmetic, for rows of this norm.

    It is for comparisons with the claim. It does not hold for what a computer releases; see
    ``PublishedAlgorithm4``.
    """
    gradient = loss_gradient(Neighbours.REPLACE_ONE, slope=loss.lipschitz, row=row_norm)
    m = gradient.value / printed.noise_scale * (1 + 1e-15)
    x = loss.smoothness * row_norm**2 / (n_rows * printed.regularisation) * (1 + 1e-15)
    return ObjectiveProfile(((m, x),))


# --- Algorithm 5 ----------------------------------------------------------------------------


def algorithm_5_noise(
    n_rows: int,
    epsilon: float,
    delta: float,
    regularisation: float,
    *,
    slope: float = 1.0,
    kappa: float = 1.0,
    reading: str = "printed",
) -> float:
    r"""Return the factor by which Algorithm 5 multiplies a path of the Gaussian process GP(0, k).

    As printed it is c_1 kappa (1 + sqrt(2 log(1/delta))) / (n lambda epsilon), for the minimiser of
    (1/n) sum_i l(y_i, f(x_i)) + (lambda/2) ||f||^2. Erratum 003-11: replacing a record moves the
    minimiser by 2 c_1 kappa/(n lambda), so ``reading="corrected"`` is twice as much.
    ``algorithm_5_delta`` is the delta that the printed noise really gives.
    """
    owner, numbers = "algorithm_5_noise", {"slope": slope, "kappa": kappa}
    _check(owner, n_rows, epsilon, delta, regularisation=regularisation, **numbers)
    check(owner, one_of("printed", "corrected"), reading=reading)
    scale = slope * kappa * nikolov_multiplier(epsilon, delta) / (n_rows * regularisation)
    return scale if reading == "printed" else 2 * scale


def nikolov_multiplier(epsilon: float, delta: float) -> float:
    """Return (1 + sqrt(2 log(1/delta))) / epsilon, the noise per unit of sensitivity (Proposition 2)."""
    return gaussian_lemma(epsilon, delta, "nikolov").noise


def algorithm_5_delta(epsilon: float, delta: float) -> float:
    r"""Return the true delta of Algorithm 5 with its printed noise, which claims ``delta``.

    It is that of a Gaussian with mu = 2 epsilon/(1 + sqrt(2 log(1/delta))): 12, 30 and 97 times the
    claim at epsilon = 0.5, 1 and 2 for delta = 1e-5. A linear loss attains it.
    """
    check("algorithm_5_delta", epsilon=epsilon, delta=delta)
    return GaussianProfile(2 / nikolov_multiplier(epsilon, delta)).delta(epsilon)
