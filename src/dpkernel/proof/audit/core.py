r"""The core of an audit: test whether a sample of outputs contradicts a privacy profile.

Let each output on a data set D and on a neighbour D' have a score. If the claim is true, every event
S = {score > t} (or < t) satisfies P(S) - e^eps Q(S) <= delta(eps) for every eps, in both directions.
Thresholds t are chosen on one part of the sample and tested on the other with exact Clopper-Pearson
bounds. So a true claim is rejected with probability at most ``false_alarm``, whatever the
distributions are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import Mechanism
from dpkernel.privacy.noise import Noise, NoiseSource, Part, Plan
from dpkernel.privacy.profiles import PrivacyProfile

_EPSILONS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)  # a threshold is chosen for each of these
_GRID = (*_EPSILONS, 0.75, 1.5, 3.0, 5.0, 6.0, 8.0)  # the epsilons at which the profile is tested

_HUGE = 1e300  # takes the place of an infinite score


@dataclass(frozen=True)
class Point:
    """One judged event, how often it happened on each side, and exact bounds.

    Attributes
    ----------
    event : str
        "score > t" or "score < t".
    threshold : float
        The threshold t.
    swapped : bool
        Whether the event is evidence for the second data set and not for the first.
    hit_rate, false_rate : float
        The share of the event on the side for which it is evidence, and on the other side.
    hit_low, false_high : float
        The lower bound on the first and the upper bound on the second. All bounds of an audit hold
        together with its confidence.
    """

    event: str
    threshold: float
    swapped: bool
    hit_rate: float
    false_rate: float
    hit_low: float
    false_high: float

    def epsilon(self, delta: float) -> float:
        """Return the lower bound on epsilon at this delta that follows from the bounds."""
        if self.hit_low <= delta:
            return 0.0
        return max(0.0, math.log((self.hit_low - delta) / self.false_high))

    @property
    def mu(self) -> float:
        """The smallest mu for which a Gaussian trade-off curve allows the bounds."""
        return max(0.0, float(ndtri(self.hit_low) - ndtri(self.false_high)))


@dataclass(frozen=True)
class AuditResult:
    """The result of testing a profile.

    Attributes
    ----------
    violated : bool
        Whether the sample contradicts the profile, at the stated false-alarm rate.
    epsilon_lower : float
        A lower bound on the true epsilon at ``delta``, with confidence 1 - false_alarm.
    worst_epsilon, delta_lower, delta_claimed : float
        The epsilon of the profile with the largest excess, the lower bound on delta there, and the
        claimed delta.
    mu_lower : float
        The pair of outputs is not mu-Gaussian-DP for any smaller mu, with the same confidence.
    points : tuple of Point
        Every event that was judged.
    """

    violated: bool
    epsilon_lower: float
    delta: float
    worst_epsilon: float
    delta_lower: float
    delta_claimed: float
    trials: int
    false_alarm: float
    mu_lower: float = 0.0
    points: tuple[Point, ...] = ()


Run = Callable[[bool, Noise], float]  # (on the neighbour?, noise) -> score of one release


@dataclass(frozen=True)
class Case:
    """One attack: how to run it, what is claimed, and which noise is really drawn.

    A run draws ``draws`` releases. At most ``most_runs`` are made on each side, even if more are
    requested. This is for cases whose runs take long; their twins are so wrong that few runs show it.
    """

    name: str
    claim: PrivacyProfile
    mechanism: Mechanism
    run: Run
    broken: str | None = None
    draws: int = 1
    most_runs: int = 1_000_000

    def audit(
        self, trials: int, *, noise: NoiseSource | None = None, false_alarm: float = 1e-8
    ) -> AuditResult:
        """Run the attack ``trials`` times on each side and test the claim."""
        trials = min(trials, self.most_runs)
        part = Part(self.name, self.mechanism.profile(), draws=2 * trials * self.draws)
        plan = Plan((part,), nothing_proved=True)  # an audit gives no guarantee
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
        One number per independent run: any function of the output that was chosen beforehand. The
        first half is used to choose thresholds, the second half is judged.
    profile : PrivacyProfile
        The claim.
    delta : float
        The delta at which ``epsilon_lower`` is stated.
    false_alarm : float
        The largest probability that a true claim is rejected.

    Returns
    -------
    AuditResult
    """
    scores, neighbour_scores = np.asarray(scores, float), np.asarray(neighbour_scores, float)
    if scores.ndim != 1 or scores.shape != neighbour_scores.shape or len(scores) < 4:
        got = f"shapes {scores.shape} and {neighbour_scores.shape}"
        allowed = "two arrays of one length >= 4"
        raise ParameterError(parameter_message("audit_scores", "scores", allowed, got))
    half = len(scores) // 2
    found = judge_scores(
        (scores[:half], neighbour_scores[:half]),
        (scores[half:], neighbour_scores[half:]),
        profile,
        delta=delta,
        false_alarm=false_alarm,
    )
    return replace(found, trials=len(scores))


def judge_scores(
    pilot: tuple[Array, Array],
    judged: tuple[Array, Array],
    profile: PrivacyProfile,
    *,
    delta: float,
    false_alarm: float,
) -> AuditResult:
    """Choose thresholds on the scores of a pilot and test the profile on the judged scores.

    The judged scores must come from runs that had no part in choosing the thresholds, the statistic or
    the data sets. Scores that are not a number count as minus infinity.
    """
    pilot_p, pilot_q, judged_p, judged_q = (ordered(x) for x in (*pilot, *judged))
    rough = false_alarm / (8 * (len(_EPSILONS) + 2))
    chosen = set()
    for swapped in (False, True):
        p, q = (pilot_q, pilot_p) if swapped else (pilot_p, pilot_q)
        for sign in (1.0, -1.0):
            best = _best_thresholds(sign * p, sign * q, len(judged_p), rough, delta)
            chosen |= {(swapped, sign, t) for t in best}
    chosen = chosen or {(False, 1.0, float(np.median(pilot_p)))}  # no threshold is promising
    level = false_alarm / (2 * len(chosen))  # two one-sided bounds per test
    points = []
    for swapped, sign, threshold in sorted(chosen):
        p, q = (judged_q, judged_p) if swapped else (judged_p, judged_q)
        low, high = _bounds(sign * p, sign * q, threshold, level)
        hits, misses = np.mean(sign * p > threshold), np.mean(sign * q > threshold)
        event = "score > t" if sign > 0 else "score < t"
        points.append(
            Point(event, sign * threshold, swapped, float(hits), float(misses), low, high)
        )
    claims = [(epsilon, profile.delta(epsilon)) for epsilon in _GRID]
    excess, epsilon, found, claimed = max(
        (found - claimed, epsilon, found, claimed)
        for epsilon, claimed in claims
        for found in [max(p.hit_low - math.exp(epsilon) * p.false_high for p in points)]
    )
    epsilon_lower = max(point.epsilon(delta) for point in points)
    violated = excess > 0 or epsilon_lower > profile.epsilon(delta)
    mu = max(point.mu for point in points)
    counts = len(judged_p), false_alarm, mu, tuple(points)
    return AuditResult(violated, epsilon_lower, delta, epsilon, found, claimed, *counts)


def most_provable(trials: int, false_alarm: float) -> float:
    """Return the epsilon that is proved at delta = 0 if every run tells the sides apart.

    Such an audit judges two events, one for each side.
    """
    low, high = _bounds(np.ones(trials), np.zeros(trials), 0.5, false_alarm / 4)
    return max(0.0, math.log(low / high))


def could_contradict(profile: PrivacyProfile, trials: int, false_alarm: float) -> bool:
    """Whether an attack that is right in all of this many runs would contradict the profile."""
    low, high = _bounds(np.ones(trials), np.zeros(trials), 0.5, false_alarm / 4)
    return any(low - math.exp(e) * high > profile.delta(e) for e in _GRID)


def ordered(scores: Array) -> Array:
    """Return finite numbers in the same order. NaN counts as the smallest."""
    tame = np.nan_to_num(np.asarray(scores, float), nan=-_HUGE, posinf=_HUGE, neginf=-_HUGE)
    return np.asarray(tame)


def _best_thresholds(p: Array, q: Array, n: int, level: float, delta: float) -> set[float]:
    """Return the t whose events {score > t} promise the best bounds on n further runs per side.

    There is one for P - e^eps Q at each eps, one for the ratio P/Q, and one for the mu of a Gaussian
    pair. Thresholds that promise nothing are left out, because every event that is judged takes some
    confidence from the others.
    """
    grid = np.unique(np.quantile(np.concatenate((p, q)), np.linspace(0, 1, 201)))
    hits = (len(p) - np.searchsorted(np.sort(p), grid, side="right")) / len(p) * n
    misses = (len(q) - np.searchsorted(np.sort(q), grid, side="right") + 0.5) / (len(q) + 1) * n
    low = np.where(hits > 0, beta.ppf(level, np.maximum(hits, 1e-9), n - hits + 1), 0.0)
    high = beta.isf(level, misses + 1, np.maximum(n - misses, 1e-9))
    values = [low - math.exp(epsilon) * high for epsilon in _EPSILONS]
    values.append(np.log(np.maximum(low - delta, 1e-300) / high))
    values.append(ndtri(np.maximum(low, 1e-300)) - ndtri(high))
    return {float(grid[int(np.argmax(value))]) for value in values if np.max(value) > 0}


def _bounds(p: Array, q: Array, threshold: float, level: float) -> tuple[float, float]:
    """Return the Clopper-Pearson lower bound on P(score > t) and upper bound on Q(score > t)."""
    n, hits, misses = len(p), int(np.sum(p > threshold)), int(np.sum(q > threshold))
    low = float(beta.ppf(level, hits, n - hits + 1)) if hits > 0 else 0.0
    high = float(beta.isf(level, misses + 1, n - misses)) if misses < n else 1.0
    return low, high
