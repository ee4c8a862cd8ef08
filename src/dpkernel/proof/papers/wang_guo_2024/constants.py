"""Theorems 1 and 2 and Algorithm 1: as stated, as proved, and by a direct bound.

kappa bounds the norm of the rows, and c bounds the targets. The package docstring lists the errata by
number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpkernel.foundations.validation import Choice, Real
from dpkernel.proof.papers.arguments import NOT_NEGATIVE, ONE_ROW, check
from dpkernel.proof.papers.arguments import reading as one_of
from dpkernel.solvers.sgd_presets import Preset, wang_guo_theorem_1


@dataclass(frozen=True)
class PrintedOutputNoise:
    """The numbers of Theorem 2 and Algorithm 1: hits k, Delta, and the noise on the last iterate."""

    hits: float  # (T/n)(1 + c_gamma), the Chernoff bound on how often one record is sampled
    sensitivity: float  # Delta_SGD(delta/2), as stated or as proved
    noise_scale: float  # sigma


def chernoff_hits(n_rows: int, n_steps: int, confidence: float) -> float:
    r"""Return k = (T/n)(1 + c), c = max(sqrt(3 log(n/gamma)/(T/n)), 3 log(n/gamma)/(T/n)).

    Except with probability gamma, no record is sampled more than k times in T draws with
    replacement from n records (a union bound over the records).
    """
    check("chernoff_hits", ONE_ROW, n_rows=n_rows, n_steps=n_steps, confidence=confidence)
    share = n_steps / n_rows
    ratio = 3 * math.log(n_rows / confidence) / share
    return share * (1 + max(math.sqrt(ratio), ratio))


def stated_sensitivity(
    n_rows: int, n_steps: int, step: float, confidence: float, *, kappa: float, target_bound: float
) -> float:
    r"""Return Delta_SGD(gamma) as Theorem 2 states it: a square whose root is missing (000-1).

    It is 4 e eta^2 (c kappa + kappa^2 sqrt(eta T))^2 k (1 + k), without the factor c before kappa^2
    (000-2).
    """
    check("stated_sensitivity", step=step, kappa=kappa, target_bound=target_bound)
    k = chernoff_hits(n_rows, n_steps, confidence)
    gradient = target_bound * kappa + kappa**2 * math.sqrt(step * n_steps)
    return 4 * math.e * step**2 * gradient**2 * k * (1 + k)


def proved_sensitivity(
    n_rows: int, n_steps: int, step: float, confidence: float, *, kappa: float, target_bound: float
) -> float:
    r"""Return Delta_SGD(gamma) as the proof of Theorem 2 has it, for eta kappa^2 < 1.

    It is 2 eta (c kappa + c kappa^2 sqrt(eta T)) sqrt(e k (1 + k)), which is valid and 45 to 52 times
    what is needed (000-3).
    """
    check("proved_sensitivity", step=step, kappa=kappa, target_bound=target_bound)
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
    r"""Return the noise of Algorithm 1: sigma = sqrt(2 log(2.5/delta)) Delta_SGD(delta/2) / epsilon.

    ``sensitivity`` is "stated" or "proof". The printed algorithm has Delta_SGD(delta/2), Theorem 3 has
    delta_p/2.
    """
    check(
        "algorithm_1_noise",
        {"sensitivity": Choice("stated", "proof")},
        epsilon=epsilon,
        delta=delta,
        sensitivity=sensitivity,
    )
    reading = stated_sensitivity if sensitivity == "stated" else proved_sensitivity
    half = delta / 2
    found = reading(n_rows, n_steps, step, half, kappa=kappa, target_bound=target_bound)
    scale = math.sqrt(2 * math.log(2.5 / delta)) * found / epsilon
    return PrintedOutputNoise(chernoff_hits(n_rows, n_steps, half), found, scale)


def iterate_bound(n_steps: int, step: float, *, kappa: float, target_bound: float) -> float:
    r"""Return a bound on every ||w_t||: c sqrt(eta T / (2 - eta kappa^2)), for eta kappa^2 < 2.

    With r = <w, phi> and s = eta ||phi||^2, a step adds eta (-2 (r - y) r + s (r - y)^2) to ||w||^2,
    which is at most eta y^2 / (2 - s). This is sharper than the paper's c sqrt(eta T).
    """
    check("iterate_bound", n_steps=n_steps, kappa=kappa, target_bound=target_bound)
    check("iterate_bound", {"step": Real(0, 2 / kappa**2)}, step=step)
    return target_bound * math.sqrt(step * n_steps / (2 - step * kappa**2))


def direct_sensitivity(
    hits: float, n_steps: int, step: float, *, kappa: float, target_bound: float
) -> float:
    r"""Return what replaces Delta_SGD (000-2, 000-3): 2 eta G k for a record that is sampled k times.

    G = c kappa (1 + kappa sqrt(eta T/(2 - eta kappa^2))) bounds every gradient, and every step that uses
    the record moves the output by at most 2 eta G, because steps on common records do not expand for
    eta kappa^2 < 2. The bound is attained. A release needs no k that holds with high probability: its
    delta is the mean of the Gaussian delta over the law of k, for one record at a time.
    """
    check("direct_sensitivity", {"hits": NOT_NEGATIVE}, hits=hits)
    farthest = iterate_bound(n_steps, step, kappa=kappa, target_bound=target_bound)
    return 2 * step * (target_bound * kappa + kappa**2 * farthest) * hits


# --- Theorem 1 ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Theorem1Rate:
    """The two terms of the bound of Theorem 1 without its constant, and the schedule that gives them."""

    privacy: float  # the term with epsilon
    statistics: float  # the term without epsilon
    schedule: Preset

    @property
    def total(self) -> float:
        """Their sum."""
        return self.privacy + self.statistics


def theorem_1(
    n_rows: int,
    epsilon: float,
    delta: float,
    *,
    r: float,
    capacity: float,
    kappa: float = 1.0,
    confidence: float = 0.05,
    small_steps: bool = True,
    reading: str = "stated",
) -> Theorem1Rate:
    r"""Return the rate of Theorem 1 at this epsilon and delta (its delta_p), and its schedule.

    The rate is n^(-(4r+3a-4-2ra)/(2r+a)) log(n/t) log(2n/delta) log(2.5/delta) / epsilon^2
    + n^(-2r/(2r+a)) log^2 n log^2(18/t), with probability 1 - t (``confidence``) and in expectation over
    the draws. r in (1/2, 1] is the regularity and a the capacity, with (4-4r)/(3-2r) < a < 1; below this
    range the first power is not negative. Constants are hidden.

    The proof bounds 1 + c by 4 log(2n/delta) and uses this twice. ``reading="proof"`` has the square of
    that logarithm, and the factor sqrt(log(18/t)) that (16) leaves out. Both readings are for the noise
    of the proof, with the root that Theorem 2 lacks (000-1).
    """
    check(
        "theorem_1",
        one_of("stated", "proof"),
        n_rows=n_rows,
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
        reading=reading,
    )
    schedule = wang_guo_theorem_1(
        n_rows=n_rows,
        r=r,
        capacity=capacity,
        kappa=kappa,
        confidence=confidence,
        small_steps=small_steps,
    )
    n, a, log = n_rows, capacity, math.log
    power = (4 * r + 3 * a - 4 - 2 * r * a) / (2 * r + a)
    private = n**-power / epsilon**2 * log(n / confidence) * log(2 * n / delta) * log(2.5 / delta)
    if reading == "proof":
        private *= log(2 * n / delta) * math.sqrt(log(18 / confidence))
    known = n ** (-2 * r / (2 * r + a)) * log(n) ** 2 * log(18 / confidence) ** 2
    return Theorem1Rate(private, known, schedule)
