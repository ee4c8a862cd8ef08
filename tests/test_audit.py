"""Audits of every mechanism on real entropy, the twins they must reject, and the audit's own size.

False alarms: each sound case is tested at 1e-8; with the cases below the whole file raises a false
alarm with probability below 4e-7. Power: at 5,000 trials a side (2,000 or 500 for algorithms, whose
twins are farther off) each twin was rejected in 100 of 100 seeded repetitions; the slow test repeats
this.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from dpkernel import SeededNoise
from dpkernel.foundations.errors import ParameterError
from dpkernel.privacy import mechanisms
from dpkernel.privacy.profiles import GaussianProfile, PureProfile
from dpkernel.proof.audit import audit_scores
from dpkernel.proof.audit.cases import ALGORITHMS, CASES, all_cases
from dpkernel.proof.audit.core import _bounds

TRIALS = 5000
ALL = all_cases()
SOUND = [case for case in ALL if case.broken is None]
TWINS = [case for case in ALL if case.broken is not None]
BLATANT = {case.name for case in ALGORITHMS["sgd"]()}  # fewer trials tell
BLATANT |= {case.name for case in ALGORITHMS["output-perturbation"]() if "curator" in case.name}
SLOW = {case.name for case in ALGORITHMS["selection"]()}  # whole searches, whose twins are far off


def trials_of(case):  # a case makes at most ``most_runs`` of them
    return 500 if case.name in SLOW else 2000 if case.name in BLATANT else TRIALS


def ids(cases):
    return [case.name for case in cases]


def test_every_mechanism_has_a_case_and_twins():
    assert set(CASES) == set(mechanisms.REGISTRY)
    for kind, build in CASES.items():
        broken = {case.broken for case in build()} - {None}
        assert "half the noise" in broken and len(broken) >= 2, kind
    for name, build in ALGORITHMS.items():
        assert {case.broken is None for case in build()} == {True, False}, name


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", SOUND, ids=ids(SOUND))
def test_sound_mechanisms_are_not_contradicted_on_real_entropy(case, share):
    """A third of the trials, which is enough to reject most twins; all of them in the slow test."""
    result = case.audit(trials_of(case) // share, false_alarm=1e-8)
    assert not result.violated
    assert result.epsilon_lower <= case.claim.epsilon(result.delta)


@pytest.mark.parametrize("case", TWINS, ids=ids(TWINS))
def test_broken_twins_are_rejected(case, seed):
    """A third of the trials is enough for most; the whole number decides about the others."""
    whole = trials_of(case)
    assert any(
        case.audit(trials, noise=SeededNoise(seed)).violated for trials in (whole // 3, whole)
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", TWINS, ids=ids(TWINS))
def test_power_against_each_twin(case):
    rejected = sum(
        case.audit(trials_of(case), noise=SeededNoise(seed)).violated for seed in range(100)
    )
    assert rejected == 100


def test_the_audit_finds_most_of_what_is_there(seed):
    """For a Gaussian pair with mu = 1 the bound on delta(0) reaches 90 % of the truth."""
    rng = np.random.default_rng(seed)
    p, q = rng.normal(1.0, 1.0, 200_000), rng.normal(0.0, 1.0, 200_000)
    result = audit_scores(p, q, GaussianProfile(1.0))
    assert not result.violated
    tight = audit_scores(p, q, GaussianProfile(0.9))
    assert tight.violated and tight.delta_lower > 0.9 * GaussianProfile(1.0).delta(
        tight.worst_epsilon
    )


def test_both_directions_and_both_tails_are_searched(seed):
    rng = np.random.default_rng(seed)
    base, rare = rng.random(20_000), rng.random(20_000)
    rare = np.where(rng.random(20_000) < 0.05, 5.0, rare)  # an output that only one side produces
    for p, q in ((base, rare), (rare, base), (-base, -rare), (-rare, -base)):
        assert audit_scores(p, q, PureProfile(1.0)).violated


def test_false_alarms_are_as_rare_as_stated():
    """At a false-alarm rate of 5 % at most 5 % of 400 sound audits may be rejected (1e-8 test)."""
    alarms = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        p, q = rng.normal(0.5, 1.0, 400), rng.normal(0.0, 1.0, 400)
        alarms += audit_scores(p, q, GaussianProfile(0.5), false_alarm=0.05).violated
    assert binomtest(alarms, 400, 0.05, alternative="greater").pvalue > 1e-8


@pytest.mark.parametrize("false_alarm", [0.05, 1e-6])
def test_all_bounds_of_an_audit_share_its_false_alarm_rate(false_alarm, rng):
    """Two one-sided bounds for each threshold: none may fail more often than its share."""
    p, q = rng.normal(1.0, 1.0, 4000), rng.normal(0.0, 1.0, 4000)
    points = audit_scores(p, q, GaussianProfile(1.0), false_alarm=false_alarm).points
    n, share = 2000, false_alarm / (2 * len(points))
    assert len(points) > 4
    for point in points:
        hits, misses = round(point.hit_rate * n), round(point.false_rate * n)
        assert binomtest(hits, n, point.hit_low, alternative="greater").pvalue <= share * 1.000001
        assert binomtest(misses, n, point.false_high, alternative="less").pvalue <= share * 1.000001


def test_bounds_are_clopper_pearson():
    p, q = np.arange(20.0), np.arange(20.0)
    low, high = _bounds(p, q, 14.5, 0.01)
    exact = binomtest(5, 20).proportion_ci(confidence_level=0.98, method="exact")
    assert low == pytest.approx(exact.low) and high == pytest.approx(exact.high)
    assert _bounds(p, q, 100.0, 0.01)[0] == 0.0
    assert _bounds(p, q, -1.0, 0.01)[1] == 1.0


def test_bad_arguments():
    with pytest.raises(ParameterError, match="two arrays of one length >= 4"):
        audit_scores(np.zeros(10), np.zeros(9), PureProfile(1.0))
