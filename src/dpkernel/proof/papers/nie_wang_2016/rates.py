"""Theorems 3 and 4 and the rates of section 5, as printed and as the proofs give them.

The paper prints the constants, and they are used here. Theorem 3 is about one value of the released
function at a time, so erratum 004-1 does not affect it. One value needs twice the printed noise (004-2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpkernel.foundations.validation import Constraint, Real, Whole
from dpkernel.proof.papers.arguments import NOT_NEGATIVE, check
from dpkernel.proof.papers.arguments import reading as one_of
from dpkernel.proof.papers.nie_wang_2016.constants import corrected_scale, printed_scale
from dpkernel.solvers.erm_presets import RiskPreset, nie_wang_theorem_4

_EXPONENT: dict[str, Constraint] = {"m": Whole(2), "beta": Real(0, 1, closed_high=True)}
TRUE_UP_TO = 1.2564312086261697  # where e^epsilon - 1 = 2 epsilon


def theorem_3(bound: float, epsilon: float, reading: str = "printed") -> float:
    r"""Return how far the mean of g on the sample can be from its mean on new data, on average.

    g >= 0 is found by an epsilon-DP algorithm and has a mean of at most G (``bound``) on the sample.

        "printed"   2 G epsilon, in both directions
        "proof"     (e^epsilon - 1) G for new data above the sample, which is the larger one
        "below"     (1 - e^-epsilon) G for the sample above new data

    The printed bound is valid for e^epsilon - 1 <= 2 epsilon, that is epsilon <= 1.2564. Beyond that it
    is too small. The paper assumes epsilon < 1 throughout.
    """
    allowed = one_of("printed", "proof", "below")
    check("theorem_3", allowed, bound=bound, epsilon=epsilon, reading=reading)
    if reading == "printed":
        return 2 * bound * epsilon
    return bound * (math.expm1(epsilon) if reading == "proof" else -math.expm1(-epsilon))


@dataclass(frozen=True)
class ExcessBound:
    """The four terms whose sum bounds the expected excess risk."""

    generalisation: float  # R_1 without its share of the noise: 2 (B_0 + lambda Omega(0)) epsilon
    noise: float  # (1 + 2 epsilon) times the bound on R_2
    sample: float  # 2 sqrt(2 pi) B_rho / sqrt(m)
    approximation: float  # c_beta lambda^beta

    @property
    def total(self) -> float:
        """Their sum."""
        return self.generalisation + self.noise + self.sample + self.approximation


def excess_bound(
    m: int,
    lam: float,
    epsilon: float,
    *,
    beta: float,
    kappa: float = 1.0,
    slope: float = 1.0,
    gamma: float = 2.0,
    first_risk: float = 1.0,
    first_penalty: float = 0.0,
    best_loss: float = 1.0,
    c_beta: float = 1.0,
    reading: str = "corrected",
) -> ExcessBound:
    r"""Return the bound that the proof of Theorem 4 has before it chooses epsilon and lambda.

    The bound is 2 (B_0 + lambda Omega(0)) epsilon + (1 + 2 epsilon) E|risk of b|
    + 2 sqrt(2 pi) B_rho/sqrt(m) + c_beta lambda^beta, for epsilon <= 1.2564. In Proposition 3
    ("printed"), E|risk of b| is kappa^2 C_L/(lambda gamma m epsilon). This lacks one of two factors C_L,
    and its scale is half of what one value needs. "corrected" is C_L times the right scale,
    2 kappa^2 C_L^2/(lambda gamma m epsilon).

    The names of the arguments are those of ``theorem_4``.
    """
    owner = "excess_bound"
    check(owner, _EXPONENT, m=m, beta=beta, lam=lam, kappa=kappa, slope=slope, gamma=gamma)
    allowed: dict[str, Constraint] = {
        "epsilon": Real(0, TRUE_UP_TO, closed_high=True),
        "first_risk": NOT_NEGATIVE,
        "first_penalty": NOT_NEGATIVE,
        "best_loss": NOT_NEGATIVE,
        "c_beta": NOT_NEGATIVE,
        **one_of("printed", "corrected"),
    }
    check(
        owner,
        allowed,
        epsilon=epsilon,
        first_risk=first_risk,
        first_penalty=first_penalty,
        best_loss=best_loss,
        c_beta=c_beta,
        reading=reading,
    )
    if reading == "printed":
        of_noise = printed_scale(slope, kappa, lam, m, epsilon, gamma)
    else:
        of_noise = slope * corrected_scale(slope, kappa, lam, m, epsilon, gamma)
    return ExcessBound(
        theorem_3(first_risk + lam * first_penalty, epsilon) if first_risk + first_penalty else 0.0,
        (1 + 2 * epsilon) * of_noise,
        2 * math.sqrt(2 * math.pi) * best_loss / math.sqrt(m),
        c_beta * lam**beta,
    )


def theorem_4(m: int, beta: float, **constants: float) -> RiskPreset:
    r"""Return Theorem 4's epsilon = (lambda m)^(-1/2) and lambda = m^(-1/(2 beta + 1)), and its bound.

    The printed bound is (2 B_0 + 2 Omega(0) + 3 kappa^2 C_L/gamma + c_beta) m^(-beta/(2 beta + 1)). The
    result also has the bound that the proof gives with the right noise. Its third term is
    6 kappa^2 C_L^2/gamma, and it keeps the sample error that the theorem drops. See
    ``solvers.erm_presets.nie_wang_theorem_4``.
    """
    return nie_wang_theorem_4(m=m, beta=beta, **constants)


@dataclass(frozen=True)
class RuleOfSection5:
    """Choices of epsilon and lambda, and the rate of the excess risk without its constant."""

    epsilon: float
    lam: float
    rate: float


def section_5_1(m: int, beta: float) -> RuleOfSection5:
    r"""Return the rule for least squares: epsilon = 1/(lambda m^(2/3)), lambda = m^(-2/(3(beta+1))).

    The rate is m^(-2 beta/(3(beta+1))) with a constant that is not printed; beta = min(1, 2r).
    """
    check("section_5_1", _EXPONENT, m=m, beta=beta)
    lam = float(m ** (-2 / (3 * (beta + 1))))
    return RuleOfSection5(1 / (lam * m ** (2 / 3)), lam, float(m ** (-2 * beta / (3 * (beta + 1)))))


def section_5_2(m: int, beta: float) -> RuleOfSection5:
    r"""Return the rule for the hinge: that of Theorem 4, and the rate m^(-beta/(2(2 beta+1))) of errors.

    The share of wrong labels exceeds the best one by at most the root of twice the excess risk, whose
    constant is not printed; beta = min(1, r).
    """
    check("section_5_2", _EXPONENT, m=m, beta=beta)
    found = theorem_4(m, beta)
    return RuleOfSection5(found.epsilon, found.lam, math.sqrt(found.rate))
