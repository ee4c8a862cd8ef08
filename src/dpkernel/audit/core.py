r"""The audit core: does a sample of outputs contradict a privacy profile?

Given a score of outputs on D and of outputs on a neighbour D', every event S = {score > t} (or
< t) must satisfy P(S) - e^eps Q(S) <= delta(eps) for every eps, in both directions. Thresholds
are chosen on one half of the sample and tested on the other with exact Clopper-Pearson bounds, so
a sound claim is rejected with probability at most ``false_alarm``, whatever the distributions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta

from dpkernel.errors import ParameterError, parameter_message
from dpkernel.ledger import Ledger
from dpkernel.mechanisms import Mechanism
from dpkernel.noise import Noise, NoiseSource, Part, Plan
from dpkernel.profiles import PrivacyProfile
from dpkernel.types import Array

_EPSILONS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # of the profile, that are put to the test


@dataclass(frozen=True)
class AuditResult:
    """What an audit found.

    Attributes
    ----------
    violated : bool
        The sample contradicts the profile, at the stated false-alarm rate.
    epsilon_lower : float
        A lower bound on the true epsilon at ``delta``, with confidence 1 - false_alarm.
    worst_epsilon, delta_lower, delta_claimed : float
        The point of the profile with the largest excess, and the two sides there.
    """

    violated: bool
    epsilon_lower: float
    delta: float
    worst_epsilon: float
    delta_lower: float
    delta_claimed: float
    trials: int
    false_alarm: float


Run = Callable[[bool, Noise], float]  # (on the neighbour?, noise) -> score of one release


@dataclass(frozen=True)
class Case:
    """One attack: how to run it, what is claimed, and what is really drawn."""

    name: str
    claim: PrivacyProfile
    mechanism: Mechanism
    run: Run
    broken: str | None = None

    def audit(
        self, trials: int, *, noise: NoiseSource | None = None, false_alarm: float = 1e-8
    ) -> AuditResult:
        """Run the attack ``trials`` times on each side and test the claim."""
        part = Part(self.name, self.mechanism.profile(), draws=2 * trials)
        plan = Plan((part,), nothing_proved=True)  # an audit protects nobody
        granted = Ledger(neighbours=self.mechanism.sensitivity.neighbours).spend(
            plan, self.name, noise=noise
        )
        scores = [
            np.array([self.run(side, granted) for _ in range(trials)]) for side in (False, True)
        ]
        return audit_scores(scores[0], scores[1], self.claim, false_alarm=false_alarm)


def audit_scores(
    scores: Array,
    neighbour_scores: Array,
    profile: PrivacyProfile,
    *,
    delta: float = 1e-6,
    false_alarm: float = 1e-8,
) -> AuditResult:
    """Test a profile against scores of independent runs on two neighbouring data sets.

    Parameters
    ----------
    scores, neighbour_scores : arrays of equal length
        One number an independent run: any function of the output, chosen beforehand.
    profile : PrivacyProfile
        The claim.
    delta : float
        At which ``epsilon_lower`` is stated.
    false_alarm : float
        Probability that a true claim is rejected.
    """
    scores, neighbour_scores = np.asarray(scores, float), np.asarray(neighbour_scores, float)
    if scores.ndim != 1 or scores.shape != neighbour_scores.shape or len(scores) < 4:
        got = f"shapes {scores.shape} and {neighbour_scores.shape}"
        allowed = "two arrays of one length >= 4"
        raise ParameterError(parameter_message("audit_scores", "scores", allowed, got))
    half = len(scores) // 2
    tests = 4 * (
        len(_EPSILONS) + 1
    )  # two directions, two tails, each eps and one for epsilon_lower
    level = false_alarm / (2 * tests)  # two one-sided bounds a test
    worst = (-math.inf, 0.0, 0.0, 0.0)
    epsilon_lower = 0.0
    for p, q in ((scores, neighbour_scores), (neighbour_scores, scores)):
        for sign in (1.0, -1.0):
            choose = sign * p[:half], sign * q[:half]
            judge = sign * p[half:], sign * q[half:]
            for epsilon in _EPSILONS:
                low, high = _bounds(*judge, _best_threshold(*choose, epsilon), level)
                found, claimed = low - math.exp(epsilon) * high, profile.delta(epsilon)
                worst = max(worst, (found - claimed, epsilon, found, claimed))
            low, high = _bounds(*judge, _best_threshold(*choose, None), level)
            if low > delta:
                epsilon_lower = max(epsilon_lower, math.log((low - delta) / high))
    excess, epsilon, found, claimed = worst
    violated = excess > 0 or epsilon_lower > profile.epsilon(delta)
    return AuditResult(
        violated, epsilon_lower, delta, epsilon, found, claimed, len(scores), false_alarm
    )


def _best_threshold(p: Array, q: Array, epsilon: float | None) -> float:
    """Return t that looks best for the event {score > t}; None: for the ratio P/Q."""
    grid = np.unique(np.quantile(np.concatenate((p, q)), np.linspace(0, 1, 201)))
    above_p = 1 - np.searchsorted(np.sort(p), grid, side="right") / len(p)
    above_q = 1 - np.searchsorted(np.sort(q), grid, side="right") / len(q)
    if epsilon is None:
        spread = 10 / len(p)  # a ratio of tiny counts is luck
        value = np.log((above_p + 1e-12) / (above_q + spread))
    else:
        value = above_p - math.exp(epsilon) * above_q
    return float(grid[int(np.argmax(value))])


def _bounds(p: Array, q: Array, threshold: float, level: float) -> tuple[float, float]:
    """Return the Clopper-Pearson lower bound on P(score > t) and upper bound on Q(score > t)."""
    n, hits, misses = len(p), int(np.sum(p > threshold)), int(np.sum(q > threshold))
    low = float(beta.ppf(level, hits, n - hits + 1)) if hits > 0 else 0.0
    high = float(beta.isf(level, misses + 1, n - misses)) if misses < n else 1.0
    return low, high
