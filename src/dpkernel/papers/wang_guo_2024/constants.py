"""The constants of Theorem 2 and Algorithm 1, as stated, as proved and as a direct bound has them.

kappa bounds the rows' norm, c the targets. Errata by number: see the head of the package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class PrintedOutputNoise:
    """What Theorem 2 and the box give: the hits k, Delta, and the noise on the last iterate."""

    hits: float  # (T/n)(1 + c_gamma): the Chernoff bound on how often one record is drawn
    sensitivity: float  # Delta_SGD(delta/2), of the reading asked for
    noise_scale: float  # sigma


def chernoff_hits(n_rows: int, n_steps: int, confidence: float) -> float:
    r"""Return k = (T/n)(1 + c), c = max(sqrt(3 log(n/gamma)/(T/n)), 3 log(n/gamma)/(T/n)).

    Outside an event of probability gamma no record is drawn more than k times in T draws with
    replacement from n records (a union bound over the records).
    """
    share = n_steps / n_rows
    ratio = 3 * math.log(n_rows / confidence) / share
    return share * (1 + max(math.sqrt(ratio), ratio))


def stated_sensitivity(
    n_rows: int, n_steps: int, step: float, confidence: float, *, kappa: float, target_bound: float
) -> float:
    r"""Return Delta_SGD(gamma) as Theorem 2 states it: a square whose root is missing (000-1).

    4 e eta^2 (c kappa + kappa^2 sqrt(eta T))^2 k (1 + k), without the factor c before kappa^2
    (000-2).
    """
    k = chernoff_hits(n_rows, n_steps, confidence)
    gradient = target_bound * kappa + kappa**2 * math.sqrt(step * n_steps)
    return 4 * math.e * step**2 * gradient**2 * k * (1 + k)


def proved_sensitivity(
    n_rows: int, n_steps: int, step: float, confidence: float, *, kappa: float, target_bound: float
) -> float:
    r"""Return Delta_SGD(gamma) as the proof of Theorem 2 has it, for eta kappa^2 < 1.

    2 eta (c kappa + c kappa^2 sqrt(eta T)) sqrt(e k (1 + k)). Valid, and 45 to 52 times what is
    needed (000-3).
    """
    k = chernoff_hits(n_rows, n_steps, confidence)
    gradient = target_bound * (kappa + kappa**2 * math.sqrt(step * n_steps))
    return 2 * step * gradient * math.sqrt(math.e * k * (1 + k))


def algorithm_1_noise(
    n_rows: int,
    n_steps: int,
    step: float,
    epsilon: float,
    delta: float,
    *,
    kappa: float,
    target_bound: float,
    sensitivity: str = "stated",
) -> PrintedOutputNoise:
    r"""Return what Algorithm 1 prints: sigma = sqrt(2 log(2.5/delta)) Delta_SGD(delta/2) / epsilon.

    ``sensitivity`` is "stated" or "proof". The box writes Delta_SGD(delta/2), Theorem 3 delta_p/2.
    """
    reading = stated_sensitivity if sensitivity == "stated" else proved_sensitivity
    half = delta / 2
    found = reading(n_rows, n_steps, step, half, kappa=kappa, target_bound=target_bound)
    scale = math.sqrt(2 * math.log(2.5 / delta)) * found / epsilon
    return PrintedOutputNoise(chernoff_hits(n_rows, n_steps, half), found, scale)


def iterate_bound(n_steps: int, step: float, *, kappa: float, target_bound: float) -> float:
    r"""Return a bound on every ||w_t||: c sqrt(eta T / (2 - eta kappa^2)), for eta kappa^2 < 2.

    With r = <w, phi> and s = eta ||phi||^2 a step adds eta (-2 (r - y) r + s (r - y)^2) to ||w||^2,
    at most eta y^2 / (2 - s). Sharper than the paper's c sqrt(eta T).
    """
    return target_bound * math.sqrt(step * n_steps / (2 - step * kappa**2))
