r"""The parameter rule of Nie & Wang (2017), Theorem 4: epsilon and lambda from m and beta.

The rule is::

    name           theorem
    "nie-wang-4"   epsilon = (lambda m)^(-1/2), lambda = m^(-1/(2 beta + 1))

beta in (0, 1] says how fast the regularised risk approaches the best risk as lambda falls:
D(lambda) <= c_beta lambda^beta. No public number determines it. The rule chooses epsilon for
utility. If epsilon is given, keep it and take only lambda from the rule. Privacy comes from the
mechanism.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import is_real, is_whole
from dpkernel.foundations.validation import named


@dataclass(frozen=True)
class RiskPreset:
    """The result of the rule; all of it is public.

    Attributes
    ----------
    epsilon : float
        (lambda m)^(-1/2) = m^(-beta/(2 beta + 1)).
    lam : float
        lambda of the mean form (1/m) sum_i loss + lambda ||f||^2.
    regularisation : float
        Lambda = lambda gamma m, for the parameter ``regularisation`` of this library's estimators.
    noise_scale : float
        The noise scale of one prediction, 2 kappa^2 C_L/(lambda gamma m epsilon). It is twice the
        printed one.
    rate : float
        m^(-beta/(2 beta + 1)).
    printed_bound, bound : float
        Bounds on the expected excess risk with noise on one prediction: as printed, and as the
        proof gives it with the correct noise.
    """

    name: str
    epsilon: float
    lam: float
    regularisation: float
    noise_scale: float
    rate: float
    printed_bound: float
    bound: float


def risk_preset(name: str, **numbers: Any) -> RiskPreset:
    """Return the preset of this name.

    Parameters
    ----------
    name : str
        A name in ``PRESETS``.
    **numbers
        The arguments of the rule; see ``nie_wang_theorem_4``.

    Examples
    --------
    >>> round(risk_preset("nie-wang-4", m=1000, beta=1.0).epsilon, 3)
    0.1
    """
    return named("risk_preset", PRESETS, name)(**numbers)


def nie_wang_theorem_4(
    *,
    m: int,
    beta: float,
    kappa: float = 1.0,
    slope: float = 1.0,
    gamma: float = 2.0,
    first_risk: float = 1.0,
    first_penalty: float = 0.0,
    best_loss: float = 1.0,
    c_beta: float = 1.0,
) -> RiskPreset:
    r"""Return the rule of Theorem 4 with its constants.

    Parameters
    ----------
    m, beta
        The number of records, and the approximation exponent in (0, 1].
    kappa, slope, gamma
        kappa, C_L and gamma of the theorem.
    first_risk, first_penalty
        B_0 and Omega(0), the risk and the penalty of f = 0.
    best_loss
        B_rho, a bound on the loss of f_lambda.
    c_beta
        The constant of D(lambda) <= c_beta lambda^beta.

    Notes
    -----
    The printed bound is (2 B_0 + 2 Omega(0) + 3 kappa^2 C_L / gamma + c_beta) m^(-beta/(2 beta +
    1)). It is corrected in three places. The noise that one prediction needs is twice the printed
    noise, so the third term doubles. This term has C_L^2, because the risk moves by C_L E|b| and b
    has C_L in its scale (Proposition 3 lost one of them). And the sample error 2 sqrt(2 pi) B_rho /
    sqrt(m) of the proof was dropped. With e^epsilon - 1 <= 2 epsilon, for epsilon <= 1, the rest of
    the proof stands.
    """
    owner = "nie_wang_theorem_4"
    if not is_whole(m) or m < 2:
        raise ParameterError(parameter_message(owner, "m", "an int >= 2", m))
    if not is_real(beta) or not 0 < beta <= 1:
        raise ParameterError(parameter_message(owner, "beta", "a float in the range (0, 1]", beta))
    given = {
        "kappa": kappa,
        "slope": slope,
        "gamma": gamma,
        "first_risk": first_risk,
        "first_penalty": first_penalty,
        "best_loss": best_loss,
        "c_beta": c_beta,
    }
    for name, value in given.items():
        least = name in ("first_risk", "first_penalty", "best_loss", "c_beta")
        if not is_real(value) or not (value >= 0 if least else value > 0) or not value < math.inf:
            allowed = f"a finite float {'>= 0' if least else '> 0'}"
            raise ParameterError(parameter_message(owner, name, allowed, value))
    lam = m ** (-1 / (2 * beta + 1))
    epsilon = 1 / math.sqrt(lam * m)
    rate = m ** (-beta / (2 * beta + 1))
    spread = 2 * kappa**2 * slope / (lam * gamma * m * epsilon)
    common = 2 * first_risk + 2 * first_penalty + c_beta
    printed = (common + 3 * kappa**2 * slope / gamma) * rate
    sample = 2 * math.sqrt(2 * math.pi) * best_loss / math.sqrt(m)
    bound = (common + 6 * kappa**2 * slope * slope / gamma) * rate + sample
    return RiskPreset("nie-wang-4", epsilon, lam, lam * gamma * m, spread, rate, printed, bound)


PRESETS = {"nie-wang-4": nie_wang_theorem_4}
