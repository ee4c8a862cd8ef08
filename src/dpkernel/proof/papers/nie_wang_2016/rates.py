"""Theorems 3 and 4 and the rates of section 5, as printed and as the proofs give them.

The constants are printed, and used. Theorem 3 speaks of one value of the released function at a time,
so it survives erratum 004-1; the noise that one value needs is twice the printed one (004-2).
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
    r"""Return how far the mean of g on the sample can be, on average, from that on new data.

    g >= 0 with a mean of at most G (``bound``) on the sample, found by an epsilon-DP algorithm.

        "printed"   2 G epsilon, in both directions
        "proof"     (e^epsilon - 1) G for new data above the sample, which is the larger one
        "below"     (1 - e^-epsilon) G for the sample above new data

    The printed one is valid for e^epsilon - 1 <= 2 epsilon, that is epsilon <= 1.2564; the paper takes
    epsilon < 1 throughout. Beyond that it is too small.
    """
    allowed = one_of("printed", "proof", "below")
    check("theorem_3", allowed, bound=bound, epsilon=epsilon, reading=reading)
    if reading == "printed":
        return 2 * bound * epsilon
    return bound * (math.expm1(epsilon) if reading == "proof" else -math.expm1(-epsilon))


@dataclass(frozen=True)
class ExcessBound:
    """The four parts of the bound on the expected excess risk, whose sum is the bound."""

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

    2 (B_0 + lambda Omega(0)) epsilon + (1 + 2 epsilon) E|risk of b| + 2 sqrt(2 pi) B_rho/sqrt(m)
    + c_beta lambda^beta, for epsilon <= 1.2564. E|risk of b| is kappa^2 C_L/(lambda gamma m epsilon) in
    Proposition 3 ("printed"): it has lost one of the two C_L, and the scale is half of what one value
    needs; "corrected" is C_L times the right scale, 2 kappa^2 C_L^2/(lambda gamma m epsilon).

    The names are those of ``theorem_4``.
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

    Printed: (2 B_0 + 2 Omega(0) + 3 kappa^2 C_L/gamma + c_beta) m^(-beta/(2 beta + 1)); beside it the
    bound that the proof gives with the right noise, whose third term is 6 kappa^2 C_L^2/gamma and which
    keeps the sample error that the theorem dropped. See ``solvers.erm_presets.nie_wang_theorem_4``.
    """
    return nie_wang_theorem_4(m=m, beta=beta, **constants)


@dataclass(frozen=True)
class RuleOfSection5:
    """epsilon and lambda from m and beta, and the rate of the excess risk without its constant."""

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
    r"""Return the rule for the hinge: Theorem 4's, and the rate m^(-beta/(2(2 beta+1))) of errors.

    The share of wrong labels above the best one is at most the root of twice the excess risk, whose
    constant is not printed; beta = min(1, r).
    """
    check("section_5_2", _EXPONENT, m=m, beta=beta)
    found = theorem_4(m, beta)
    return RuleOfSection5(found.epsilon, found.lam, math.sqrt(found.rate))
