"""Lemmas 3.1, 3.2 and 3.4 and Propositions 4.1 to 4.6: the parts of the excess risk, with constants.

The proof of Theorem 1 bounds the excess risk by six times the sum of six parts G_1 .. G_6. The
propositions state all constants, so that the sum is a number and not only a rate. It is far above 1 at
every practical size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.validation import Constraint, Real, Whole
from dpkernel.proof.papers.arguments import check
from dpkernel.proof.papers.arguments import reading as one_of
from dpkernel.proof.papers.wang_guo_2024.constants import algorithm_1_noise

_SOURCE: dict[str, Constraint] = {
    "n_steps": Whole(3),
    "r": Real(0.5, 1, closed_high=True),
    "radius": Real(0, math.inf, closed_low=True),
}


def lemma_3_1(n_steps: int, step: float, *, kappa: float = 1.0, target_bound: float = 1.0) -> float:
    r"""Return a bound on the mean risk on the sample of every iterate w_2 .. w_T.

    It is c^2 / ((1 - eta kappa^2) (1 - eta kappa^2 - eta kappa^2 log T)), for T >= 3 and
    eta < 1/(kappa^2 (log T + 1)). The mean is over the order of the records.
    """
    owner = "lemma_3_1"
    check(owner, {"n_steps": Whole(3)}, n_steps=n_steps, kappa=kappa, target_bound=target_bound)
    largest = Real(0, 1 / (kappa**2 * (math.log(n_steps) + 1)))
    check(owner, {"step": largest}, step=step)
    share = step * kappa**2
    return target_bound**2 / ((1 - share) * (1 - share - share * math.log(n_steps)))


def lemma_3_2(
    n_steps: int, step: float, lam: float, *, r: float, radius: float = 1.0, kappa: float = 1.0
) -> float:
    r"""Return 2 R kappa^(2r-1) (1 + eta lambda t), a bound on gradient descent on the law of the data.

    It bounds the norm of the iterate after t steps if the best function is L^r g with ||g|| <= R
    (``radius``), with probability 1 - delta for lambda >= (9 kappa^2/M) log(M/delta).
    """
    check("lemma_3_2", {**_SOURCE, "n_steps": Whole(0)}, n_steps=n_steps, r=r, radius=radius)
    check("lemma_3_2", step=step, lam=lam, kappa=kappa)
    return 2 * radius * float(kappa ** (2 * r - 1)) * (1 + step * lam * n_steps)


def lemma_3_4(a: float, b: float, step: float, *, reading: str = "corrected") -> float:
    r"""Return the bound of Lemma 3.4 on ||(I - eta A)^a A^b|| for 0 <= A and eta ||A|| < 1.

    "corrected" is (b/(e a eta))^b, which the proof gives and uses. The lemma prints (b/(e eta))^b for
    all a > 0, which is false for a < 1: at a = 0.1 and b = eta = 1 it promises 0.37, and A = 0.91 gives
    0.715.
    """
    check("lemma_3_4", one_of("printed", "corrected"), a=a, b=b, step=step, reading=reading)
    return float((b / (math.e * step * (1.0 if reading == "printed" else a))) ** b)


@dataclass(frozen=True)
class ExcessParts:
    """Bounds on G_1 .. G_6 of the propositions with the same last digit."""

    noise: float  # G_1: the noise b of the release
    sampling: float  # G_2: single records in place of all
    sample: float  # G_3: the sample in place of its law
    steps: float  # G_4: T steps in place of a ridge
    features: float  # G_5: M random features in place of the kernel
    source: float  # G_6: the ridge itself

    @property
    def total(self) -> float:
        """Six times their sum, which bounds the excess risk (33)."""
        parts = (self.noise, self.sampling, self.sample, self.steps, self.features, self.source)
        return 6 * sum(parts)


def excess_parts(
    n_rows: int,
    n_steps: int,
    step: float,
    n_features: int,
    lam: float,
    epsilon: float,
    delta: float,
    *,
    r: float,
    effective_dimension: float,
    kappa: float = 1.0,
    target_bound: float = 1.0,
    radius: float = 1.0,
    operator_norm: float = 1.0,
    confidence: float = 0.05,
    reading: str = "corrected",
) -> ExcessParts:
    r"""Return the bounds of Propositions 4.1 to 4.6.

    Parameters
    ----------
    n_rows, n_steps, step, n_features : int or float
        n, T, eta and M.
    lam : float
        lambda, which stands for all three of the proof's numbers of this kind.
    epsilon, delta : float
        The budget; delta is delta_p.
    r, radius : float
        The regularity: the best function is L^r g with ||g|| <= R.
    effective_dimension, operator_norm : float
        N(lambda) and ||L||.
    kappa, target_bound : float
        Bounds on the norm of a row and on the targets.
    confidence : float
        The probability t with which a part may fail: t for G_1, G_2, 5t for G_3 and 2t for G_5.
    reading : {"corrected", "printed"}
        "printed" has the constants of the propositions. "corrected" restores what they lose against
        their own proofs: the factor c^2 of G_2, and the constants of the two terms of G_3.

    Raises
    ------
    ParameterError
        If a condition of the propositions does not hold.
    """
    owner, numbers = "excess_parts", {"kappa": kappa, "target_bound": target_bound}
    check(owner, {**_SOURCE, **one_of("printed", "corrected")}, r=r, radius=radius, reading=reading)
    check(owner, None, n_features=n_features, confidence=confidence, lam=lam)
    check(owner, None, effective_dimension=effective_dimension, operator_norm=operator_norm)
    t, c, power = confidence, target_bound, float(kappa ** (2 * r - 1))
    _conditions(owner, min(n_rows, n_features), n_features, lam, kappa, t)
    risk = lemma_3_1(n_steps, step, **numbers)
    doubt, log_steps, total = math.log(2 / t), math.log(n_steps), step * n_steps
    found = algorithm_1_noise(n_rows, n_steps, step, epsilon, delta, sensitivity="proof", **numbers)
    tail = 1 + math.sqrt(8 * math.log(1 / t) / n_features)
    noise = kappa**2 * n_features * found.noise_scale**2 * tail
    printed = reading == "printed"
    sampling = risk * kappa**2 * (3 + 4 * lam * total) * step * log_steps
    of_features = max(2.55, 2 * kappa**2 / operator_norm) * effective_dimension
    if printed:
        sampling /= c**2
        first = max(c, kappa) ** 2
        size = first / (math.sqrt(lam) * n_rows)
        size += math.sqrt(2 * first**2 * of_features / n_rows)
        size *= (4 / math.e + 4 + step * kappa**2) * (1 + 4 * radius * power * kappa) * log_steps
    else:
        farthest = lemma_3_2(n_steps, step, lam, r=r, radius=radius, kappa=kappa)
        size = (c * kappa + kappa**2 * farthest) * 2 / (math.sqrt(lam) * n_rows)
        size += (c + kappa * farthest) * math.sqrt(2 * of_features / n_rows)
        size *= 4 * (1 + log_steps) / math.e + 4 * lam * total + step * (kappa**2 + lam)
    features = doubt**2 / float(n_features ** (2 * r))
    features += float((lam * effective_dimension) ** (2 * r - 1)) * doubt / n_features
    features *= 128 * (radius * power) ** 2 * math.log(11 * kappa**2 / lam) ** (2 - 2 * r)
    source = radius**2 * float(lam ** (2 * r))
    steps = 2 * (1 + 1 / (lam * total)) ** 2 * (features + source)
    return ExcessParts(noise, sampling, (size * doubt) ** 2, steps, features, source)


def _conditions(
    owner: str, fewest: int, n_features: int, lam: float, kappa: float, t: float
) -> None:
    """Raise unless lambda and M meet (55), (59) and the condition of Lemma 3.5.

    The paper asks for lambda >= (9 kappa^2/M) log(M/t) also where the sample is meant, which needs n
    there; ``fewest`` is the smaller of both.
    """
    least = 9 * kappa**2 / fewest * math.log(fewest / t)
    if not least <= lam <= kappa**2:
        allowed = f"a float in [{least:.3g}, kappa^2]: (9 kappa^2/m) log(m/t) for m = min(M, n)"
        raise ParameterError(parameter_message(owner, "lam", allowed, lam))
    square = kappa**2 / lam
    enough = max((4 + 18 * square) * math.log(12 * square / t), 8 * math.log(1 / t))
    if not n_features >= enough:
        allowed = f"at least {math.ceil(enough)}, which the propositions ask for at this lambda"
        raise ParameterError(parameter_message(owner, "n_features", allowed, n_features))
