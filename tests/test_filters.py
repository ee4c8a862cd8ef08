"""Rules for adaptively chosen spends, attacked by the best adaptive adversary, found exactly."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest

from dpkernel import Budget, Ledger
from dpkernel.foundations.errors import LedgerError
from dpkernel.privacy.filters import BasicFilter, Charge, RenyiFilter, rule_for
from dpkernel.privacy.profiles import (
    ApproximateProfile,
    GaussianProfile,
    MixtureProfile,
    ObjectiveProfile,
    PureProfile,
    SampledGaussianProfile,
    gaussian_mu,
)
from dpkernel.privacy.profiles.base import PrivacyProfile


class OfPair(PrivacyProfile):
    """The exact profile of two given distributions on a few points."""

    kind = "of pair"

    def __init__(self, p, q):
        self.p, self.q = np.asarray(p), np.asarray(q)

    def delta(self, epsilon):
        grown = math.exp(epsilon)
        sides = (self.p - grown * self.q, self.q - grown * self.p)
        return max(float(np.maximum(side, 0.0).sum()) for side in sides)

    def rdp(self, order):
        return math.inf

    def to_dict(self):
        return {"kind": self.kind}


def divergence(p, q, order):
    return math.log(float(np.sum(p**order * q ** (1 - order)))) / (order - 1)


def converted(rho, order, epsilon):
    """The delta that a Renyi divergence proves, written down from the published formula."""
    exponent = (order - 1) * (rho - epsilon + math.log1p(-1 / order)) - math.log(order)
    return min(1.0, math.exp(min(exponent, 0.0)))


def product(p, count):
    found = np.ones(1)
    for _ in range(count):
        found = np.multiply.outer(found, p).ravel()
    return found


@pytest.mark.parametrize("order", [1.3, 2.0, 8.9, 40.0])
@pytest.mark.parametrize("leak", [0.0, 0.02, 0.1])
def test_a_bound_outside_a_leak_holds_for_repeated_releases(order, leak, rng):
    """k releases of a pair: no event is more likely than the bound and k leaks allow."""
    for _ in range(5):
        p, q = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))
        if leak:  # a point of its own for each, which no divergence survives
            p = np.concatenate(((1 - 0.9 * leak) * p, [0.9 * leak, 0.0]))
            q = np.concatenate(((1 - 0.9 * leak) * q, [0.0, 0.9 * leak]))
        rho = OfPair(p, q).rdp_outside(order, leak)
        assert rho < math.inf
        for count, epsilon in itertools.product((1, 2, 3), (0.0, 0.5, 1.0, 2.0, 5.0)):
            true = OfPair(product(p, count), product(q, count)).delta(epsilon)
            assert true <= converted(count * rho, order, epsilon) + count * leak


@pytest.mark.parametrize("order", [1.3, 2.0, 8.9, 40.0])
def test_a_bound_outside_a_leak_is_close_to_the_divergence(order, rng):
    for _ in range(5):
        p, q = (0.9 * rng.dirichlet(np.ones(5)) + 0.02 for _ in range(2))
        exact = max(divergence(p, q, order), divergence(q, p, order))
        found = OfPair(p, q).rdp_outside(order, 0.0)
        assert exact <= found  # both directions are bounded by one curve
        symmetric = (
            PureProfile(0.7),
            GaussianProfile(0.1),
            MixtureProfile((0.1, 0.05), (0.5, 0.5)),
        )
        for profile in symmetric:
            found = profile.rdp_outside(order, 1e-15)
            assert profile.rdp(order) * (1 - 1e-6) <= found + 1e-9
            assert found <= 1.15 * profile.rdp(order) + 1e-9


def test_a_profile_that_never_falls_to_the_leak_has_no_bound():
    assert ApproximateProfile(1.0, 1e-6).rdp_outside(5.0, 1e-7) == math.inf
    known = ApproximateProfile(1.0, 1e-6).rdp_outside(5.0, 1e-6)
    assert PureProfile(1.0).rdp(5.0) * (1 - 1e-6) <= known <= 1.0 + 1e-6
    assert GaussianProfile(1e-9).rdp_outside(5.0, 0.1) == 0.0


@pytest.mark.parametrize(
    "profile",
    [
        ObjectiveProfile(((0.05, 1e-3), (0.1, 0.05)), log_miss=-60.0),
        ObjectiveProfile(((0.3, 0.2),), neighbours="zero-out", mu_value=0.1),
        SampledGaussianProfile(0.8, 0.05, steps=20),
    ],
)
def test_prices_prove_no_more_than_the_profiles_composed(profile):
    """As many as a ledger admits, composed by the profile's own rule, stay under the ceiling."""
    ceiling = Budget(3.0, 1e-5)
    rule, count = RenyiFilter(ceiling), 0
    while rule.admits([Charge(profile)] * (count + 1)) and count < 40:
        count += 1
    assert count >= 1
    assert profile.repeat(count).delta(ceiling.epsilon) <= ceiling.delta


# --- the best adaptive adversary ------------------------------------------------------------------

CEILING = Budget(1.0, 0.05)
MOVES = {
    "small": PureProfile(0.1),
    "large": PureProfile(0.4),
    "leaky": ApproximateProfile(0.05, 0.004),
}


def charges_of(counts):
    return [
        Charge(profile, Budget(profile.epsilon_value, profile.delta(99.0)))
        for profile, count in zip(MOVES.values(), counts, strict=True)
        for _ in range(count)
    ]


def worst_delta(rule, most=14, counted=True):
    """Return the largest delta at the ceiling's epsilon over all adaptive choices of moves.

    A move adds its epsilon to the privacy loss, or subtracts it, as randomised response does. With
    the probability of its delta it leaks instead, and then everything is known.
    """
    size = {name: round(100 * profile.epsilon_value) for name, profile in MOVES.items()}

    @cache
    def admitted(counts):
        try:
            return rule.admits(charges_of(counts))
        except LedgerError:
            return False

    @cache
    def value(counts, loss):
        best = max(0.0, -math.expm1(CEILING.epsilon - loss / 100))
        for place, name in enumerate(MOVES):
            after = tuple(c + (i == place) for i, c in enumerate(counts))
            seen = after if counted else (*after[:-1], 0)
            if sum(after) > most or not admitted(seen):
                continue
            step, leak = size[name], MOVES[name].delta(99.0)
            up = 1 / (1 + math.exp(-step / 100))
            further = up * value(after, loss + step) + (1 - up) * value(after, loss - step)
            best = max(best, leak + (1 - leak) * further)
        return best

    return value((0,) * len(MOVES), 0)


@pytest.mark.parametrize("kind", [RenyiFilter, BasicFilter])
def test_no_adaptive_adversary_exceeds_the_ceiling(kind):
    rule = kind(CEILING)
    found = worst_delta(rule)
    assert 0 < found <= CEILING.delta


def test_the_adversary_finds_leaks_that_are_not_counted():
    assert worst_delta(RenyiFilter(CEILING), counted=False) > CEILING.delta


@pytest.mark.parametrize("kind", [RenyiFilter, BasicFilter])
def test_the_adversary_finds_a_rule_that_admits_too_much(kind):
    assert worst_delta(kind(Budget(2 * CEILING.epsilon, CEILING.delta))) > CEILING.delta


# --- one rule for every estimator -----------------------------------------------------------------


@pytest.mark.parametrize("accounting", ["renyi", "gaussian"])
def test_a_spend_without_an_epsilon_is_refused_like_any_other(accounting):
    ledger = Ledger(budget=Budget(1.0, 1e-6), accounting=accounting)
    ledger.spend(GaussianProfile(0.01), "small")
    with pytest.raises(LedgerError, match="it would exceed epsilon|has no epsilon at the ledger's"):
        ledger.spend(GaussianProfile(1e8), "endless")
    assert len(ledger.spends) == 1


def test_the_order_of_spends_locks_no_data_set():
    """Every kind of release is admitted after every other kind."""
    kinds = {
        "gaussian": GaussianProfile(gaussian_mu(0.3, 1e-6)),
        "pure": PureProfile(0.1),
        "objective": ObjectiveProfile(((0.05, 1e-3),), log_miss=-60.0),
        "sampled": SampledGaussianProfile(0.4, 0.05, steps=5),
        "mixture": MixtureProfile((0.01, 0.02), (0.5, 0.5 - 1e-9), tail=1e-9),
        "point": ApproximateProfile(0.1, 1e-8),
    }
    for first, second in itertools.permutations(kinds, 2):
        ledger = Ledger(budget=Budget(3.0, 1e-6))
        for name in (first, second, first):
            claim = Budget(kinds[name].epsilon(1e-8), 1e-8)
            ledger.spend(kinds[name], name, claim=claim)
        assert ledger.rule in ("renyi", "basic") and len(ledger.spends) == 3


def test_three_fits_of_one_fit_under_three():
    """What a user expects of a ceiling of (3, delta), whatever the mechanism of the fits is."""
    for profile in (
        GaussianProfile(gaussian_mu(1.0, 1e-6)),
        ApproximateProfile(1.0, 1e-6 / 3),
        PureProfile(1.0),
    ):
        point = Budget(1.0, profile.delta(1.0))
        assert point.delta <= 1e-6 * (1 + 1e-9)
        ledger = Ledger(budget=Budget(3.0, 1e-6))
        for _ in range(3):
            ledger.spend(profile, "fit", claim=point)
        assert rule_for(Charge(profile, point), Budget(3.0, 1e-6)) == ledger.rule
