"""The constants of the paper, as printed and as they should be.

There are m records. lambda is the regularisation, gamma the strong convexity of the regulariser (2 for
the squared norm), kappa^2 a bound on k(x, x), and C_L the slope of the loss. The package docstring lists
the errata by number.
"""

from __future__ import annotations

import math

from dpkernel.foundations.validation import Constraint, Whole
from dpkernel.proof.papers.arguments import check

_ROWS: dict[str, Constraint] = {"m": Whole(1)}


def printed_theorem_1(bound: float, lam: float, m: int, gamma: float = 2.0) -> float:
    """Return sqrt(16 B/(lambda gamma m)), which is valid and 2.83 times what is needed (004-4)."""
    check("printed_theorem_1", _ROWS, bound=bound, lam=lam, gamma=gamma, m=m)
    return math.sqrt(16 * bound / (lam * gamma * m))


def corrected_theorem_1(bound: float, lam: float, m: int, gamma: float = 2.0) -> float:
    """Return sqrt(2 B/(lambda gamma m)), for a loss in [0, B]."""
    check("corrected_theorem_1", _ROWS, bound=bound, lam=lam, gamma=gamma, m=m)
    return math.sqrt(2 * bound / (lam * gamma * m))


def theorem_2(slope: float, kappa: float, lam: float, m: int, gamma: float = 2.0) -> float:
    """Return 2 kappa C_L/(lambda gamma m), which is right and attained (004-5)."""
    check("theorem_2", _ROWS, slope=slope, kappa=kappa, lam=lam, gamma=gamma, m=m)
    return 2 * kappa * slope / (lam * gamma * m)


def printed_scale(
    slope: float, kappa: float, lam: float, m: int, epsilon: float, gamma: float = 2.0
) -> float:
    """Return the Laplace scale of Proposition 1's density, kappa^2 C_L/(lambda gamma m epsilon)."""
    check(
        "printed_scale", _ROWS, slope=slope, kappa=kappa, lam=lam, gamma=gamma, m=m, epsilon=epsilon
    )
    return kappa**2 * slope / (lam * gamma * m * epsilon)


def corrected_scale(
    slope: float, kappa: float, lam: float, m: int, epsilon: float, gamma: float = 2.0
) -> float:
    """Return the scale that one value of the function needs: twice the printed one (004-2)."""
    check("corrected_scale", epsilon=epsilon)
    return kappa * theorem_2(slope, kappa, lam, m, gamma) / epsilon


def printed_lipschitz(target: float, kappa: float, lam: float) -> float:
    """Return C_L = 2 M (kappa + 1)/sqrt(lambda) of section 5.1, for lambda <= 1 (004-6)."""
    check("printed_lipschitz", target=target, kappa=kappa, lam=lam)
    return 2 * target * (kappa + 1) / math.sqrt(lam)


def general_lipschitz(target: float, kappa: float, lam: float) -> float:
    """Return 2 M (1 + kappa/sqrt(lambda)), for every lambda.

    ``sensitivity.erm_ridge`` is far smaller.
    """
    check("general_lipschitz", target=target, kappa=kappa, lam=lam)
    return 2 * target * (1 + kappa / math.sqrt(lam))
