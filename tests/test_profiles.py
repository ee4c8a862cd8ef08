"""Privacy profiles: golden values on the private side, composition, trade-off curves, and JSON.

One contract class runs over an instance of every kind in the registry.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpkernel.foundations.errors import CertificateError, ParameterError
from dpkernel.foundations.types import Budget
from dpkernel.privacy import pld
from dpkernel.privacy.profiles import (
    _REGISTRY,
    ApproximateProfile,
    ComposedProfile,
    GaussianProfile,
    MaximumProfile,
    MixingProfile,
    MixtureProfile,
    ObjectiveProfile,
    PrivacyProfile,
    PureProfile,
    SampledGaussianProfile,
    StoppingLaw,
    StoppingProfile,
    compose,
    gaussian_delta,
    gaussian_mu,
    maximum,
    profile_from_dict,
    rdp_delta,
)
from dpkernel.privacy.profiles.base import bisect, narrowed
from dpkernel.privacy.profiles.gaussian import _MOST_ATOMS, _doubt

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())
GAP = Decimal("1e-5")
slow_function = settings(deadline=None, max_examples=60)


def off(found: float, case: dict, *, up: bool = True, gap: Decimal = GAP) -> bool:
    """Whether a float is on the wrong side of the golden value, or too far on the right one."""
    exact, got = Decimal(case["value"]), Decimal(float(found))
    far = exact * (1 + gap) if up else exact * (1 - gap)
    return not (exact <= got <= far if up else far <= got <= exact)


def real_gaussian_delta(epsilon: float, mu: float) -> mpmath.mpf:
    """Return G(epsilon; mu) to 60 digits or so."""
    with mpmath.workdps(90):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(mu)
        return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


def pure_and_gaussian(own: float, mu: float, epsilon: float) -> float:
    """Integrate the hockey stick of randomised response times a Gaussian pair on a fine grid."""
    x = np.linspace(-12, 12 + mu, 400_001)
    truth = 1 / (1 + math.exp(-own))
    p = np.outer([truth, 1 - truth], norm.pdf(x, mu))
    q = np.outer([1 - truth, truth], norm.pdf(x))
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (x[1] - x[0]))


@lru_cache
def binomial_law(trials: int, chance: float) -> tuple[float, ...]:
    """Return the weights of K = 0, 1, ... until the rest is below 1e-18."""
    with mpmath.workdps(40):
        p = mpmath.mpf(chance)
        exact, done = [(1 - p) ** trials], mpmath.mpf(0)
        while done + exact[-1] < 1 - mpmath.mpf("1e-18"):
            done += exact[-1]
            k = len(exact)
            exact.append(exact[-1] * p * (trials - k + 1) / ((1 - p) * k))
        return tuple(map(float, exact))


def binomial_mixture(trials: int, chance: float, sigma: float) -> MixtureProfile:
    """Return the mixture with mu = K / sigma, rounded up, K binomial."""
    weights = binomial_law(trials, chance)
    mus = (0.0, *(math.nextafter(k / sigma, math.inf) for k in range(1, len(weights))))
    return MixtureProfile(mus, weights, tail=1e-18)


# --- golden values ------------------------------------------------------------------------


def test_gaussian_delta_at_positive_epsilon():
    cases = [c for c in GOLDEN["gaussian_delta"] if c["epsilon"] > 0]
    assert len(cases) > 40
    assert [c for c in cases if off(gaussian_delta(c["epsilon"], c["mu"]), c)] == []


def test_gaussian_delta_at_zero():
    cases = [c for c in GOLDEN["gaussian_delta"] if c["epsilon"] == 0]
    assert len(cases) == 8
    assert [c for c in cases if off(gaussian_delta(0.0, c["mu"]), c)] == []


def test_gaussian_delta_at_negative_epsilon():
    cases = [c for c in GOLDEN["gaussian_delta"] if c["epsilon"] < 0]
    assert len(cases) > 40
    assert [c for c in cases if off(gaussian_delta(c["epsilon"], c["mu"]), c)] == []


def test_gaussian_delta_in_the_far_tail_is_still_an_upper_bound():
    # delta from 1e-150 to 1e-295; the gap may grow to 1e-8 / epsilon
    wrong = []
    for case in GOLDEN["gaussian_delta_far_tail"]:
        gap = Decimal(max(1e-5, 1e-8 / case["epsilon"]))
        if off(gaussian_delta(case["epsilon"], case["mu"]), case, gap=gap):
            wrong.append(case)
    assert wrong == []


def test_gaussian_delta_broadcasts():
    epsilons, mus = np.array([-1.0, 0.0, 0.5])[:, None], np.array([0.0, 0.3, 2.0])
    table = gaussian_delta(epsilons, mus)
    assert table.shape == (3, 3)
    for (i, j), value in np.ndenumerate(table):
        assert value == gaussian_delta(float(epsilons[i, 0]), float(mus[j]))


def test_gaussian_delta_never_underflows_to_zero():
    assert gaussian_delta(100.0, 1e-3) > 0
    assert gaussian_delta(1.0, 0.0) == 0


def test_gaussian_mu():
    cases = GOLDEN["gaussian_mu"]
    assert len(cases) == 80
    assert [c for c in cases if off(gaussian_mu(c["epsilon"], c["delta"]), c, up=False)] == []


@slow_function
@given(st.floats(-6, 4), st.floats(-100, -0.05))
def test_gaussian_mu_is_private_everywhere(log_epsilon, log_delta):
    epsilon, delta = 10**log_epsilon, 10**log_delta
    mu = gaussian_mu(epsilon, delta)
    exact = real_gaussian_delta(epsilon, mu)
    assert exact <= mpmath.mpf(delta)
    assert gaussian_delta(epsilon, mu) <= delta
    assert gaussian_delta(epsilon, mu * (1 + 1e-15 + 4 * _doubt(epsilon, mu))) > delta
    shares = 1 - np.geomspace(1e-15, 1e-3, 60)  # of a part that is composed with others
    assert np.all(gaussian_delta(epsilon, mu * (1 - 1e-9) * shares) <= delta)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(1e-4, 1e-14), (1.3e-9, 2e-297), (4.93e-7, 4.9e-103)]
)
def test_every_smaller_mu_fits_the_budget_where_rounding_hides_an_epsilon(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    shares = 1 - np.concatenate(([0.0], np.geomspace(1e-15, 1e-2, 400)))
    assert np.all(gaussian_delta(epsilon, mu * shares) <= delta)


def test_ten_gaussians():
    cases = GOLDEN["gaussian_composition"]
    wrong = []
    for case in cases:
        one = GaussianProfile(case["mu"])
        for ten in (one.repeat(case["copies"]), compose([one] * case["copies"])):
            if off(ten.epsilon(case["delta"]), case):
                wrong.append(case)
    assert wrong == []


def test_ten_calibrated_gaussians():
    (case,) = GOLDEN["gaussian_calibrated_composition"]
    one = GaussianProfile(gaussian_mu(case["epsilon"], case["delta"]))
    found = one.repeat(case["copies"]).epsilon(case["delta"])
    assert found == pytest.approx(float(case["value"]), rel=1e-6)


def test_binomial_mixture_one_and_two_runs():
    cases = GOLDEN["binomial_mixture"]
    assert {c["runs"] for c in cases} == {1, 2}
    wrong = []
    for case in cases:
        one = binomial_mixture(case["trials"], case["chance"], case["sigma"])
        if off(one.repeat(case["runs"]).delta(case["epsilon"]), case):
            wrong.append(case)
    assert wrong == []


@pytest.mark.parametrize("case", GOLDEN["binomial_mixture_sigma"], ids=lambda c: str(c["trials"]))
def test_binomial_mixture_calibration(case):
    budget = Budget(case["epsilon"], case["delta"])
    low, high = 5.0, 50.0
    for _ in range(45):
        middle = (low + high) / 2
        fits = binomial_mixture(case["trials"], case["chance"], middle).supports(budget)
        low, high = (low, middle) if fits else (middle, high)
    assert not off(high, case)


def test_randomised_response_inside():
    cases = [c for c in GOLDEN["randomised_response"] if abs(c["epsilon"]) < c["own"]]
    assert len(cases) == 42
    assert [c for c in cases if off(PureProfile(c["own"]).delta(c["epsilon"]), c)] == []


def test_randomised_response_outside():
    cases = [c for c in GOLDEN["randomised_response"] if abs(c["epsilon"]) >= c["own"]]
    assert len(cases) == 28
    assert [c for c in cases if off(PureProfile(c["own"]).delta(c["epsilon"]), c)] == []


def test_randomised_response_renyi():
    cases = GOLDEN["randomised_response_renyi"]
    # 1e-15 is added to every divergence: for tiny ones that is more than the gap
    cases_and_gaps = [(c, max(GAP, Decimal("2e-14") / Decimal(c["value"]))) for c in cases]
    wrong = [c for c, g in cases_and_gaps if off(PureProfile(c["own"]).rdp(c["order"]), c, gap=g)]
    assert wrong == []


# --- composition --------------------------------------------------------------------------


@slow_function
@given(st.floats(1e-3, 3.0), st.integers(1, 300))
def test_copies_of_a_gaussian_equal_the_composition(mu, count):
    repeated, composed = GaussianProfile(mu).repeat(count), compose([GaussianProfile(mu)] * count)
    exact = Fraction(mu) ** 2 * count
    for found in (repeated, composed):
        square = Fraction(found.mu) ** 2
        assert exact <= square <= exact * (1 + Fraction(1, 10**14))


@pytest.mark.parametrize(
    "profile",
    [
        MixtureProfile((0.1, 0.4), (0.7, 0.3)),
        PureProfile(0.2),
        ApproximateProfile(0.2, 1e-7),
        compose([PureProfile(0.2), GaussianProfile(0.1)]),
    ],
    ids=lambda p: p.kind,
)
def test_copies_equal_the_composition(profile):
    repeated, composed = profile.repeat(3), profile.compose(profile, profile)
    for epsilon in (-0.5, 0.1, 0.5, 1.0):
        assert repeated.delta(epsilon) == pytest.approx(composed.delta(epsilon), rel=1e-9)


@pytest.mark.parametrize("profile", [GaussianProfile(0.4), PureProfile(0.4)], ids=lambda p: p.kind)
def test_one_copy_is_the_profile_itself(profile):
    assert profile.repeat(1) == profile == compose([profile])


def test_no_copy_reveals_nothing():
    for profile in (GaussianProfile(0.4), PureProfile(0.4), MixtureProfile((0.4,), (1.0,))):
        assert profile.repeat(0).epsilon(0.0) == 0
    assert compose([]).delta(0.0) == 0


@slow_function
@given(st.permutations([0.05, 0.3, 0.31, 1.2, 1e-4]), st.permutations([0.1, 0.25, 0.7]))
def test_order_of_gaussians_and_pure_releases_does_not_matter(mus, epsilons):
    found = compose([*map(GaussianProfile, mus), *map(PureProfile, epsilons)])
    turned = compose([*map(PureProfile, epsilons), *map(GaussianProfile, mus)])
    usual = compose(
        [*map(PureProfile, sorted(epsilons)), *map(GaussianProfile, sorted(mus, reverse=True))]
    )
    assert found == turned == usual


def test_order_of_mixtures_does_not_matter():
    parts = [
        MixtureProfile((0.1, 0.4, 0.5), (0.7, 0.2, 0.1)),
        MixtureProfile((0.0, 0.3), (0.4, 0.6 - 1e-9), 1e-9),
        GaussianProfile(0.2),
        MixtureProfile((0.25,), (1.0,)),
    ]
    usual = compose(parts)
    assert isinstance(usual, MixtureProfile)
    for order in itertools.permutations(parts):
        for epsilon in (-1.0, 0.0, 0.3, 2.0):
            found = compose(order).delta(epsilon)
            assert found == pytest.approx(usual.delta(epsilon), rel=1e-11)


def test_a_composition_of_compositions_is_flat():
    inner = compose([PureProfile(0.2), GaussianProfile(0.3)])
    outer = inner.compose(inner, GaussianProfile(0.4))
    assert outer == compose([PureProfile(0.2)] * 2 + [GaussianProfile(m) for m in (0.4, 0.3, 0.3)])
    assert all(not isinstance(part, ComposedProfile) for part in outer.parts)


def test_gaussian_and_mixture_compose_given_the_randomness():
    mus, weights, plain = (0.1, 0.6), (0.75, 0.25), 0.3
    found = compose([GaussianProfile(plain), MixtureProfile(mus, weights)])
    for epsilon in (-0.5, 0.2, 1.0):
        exact = sum(
            w * real_gaussian_delta(epsilon, math.hypot(m, plain))
            for m, w in zip(mus, weights, strict=True)
        )
        assert exact <= found.delta(epsilon) <= exact * (1 + 1e-6)


def test_a_mixture_is_not_a_gaussian_with_the_mean_square():
    mixture = MixtureProfile((0.0, 1.0), (0.9, 0.1))
    wrong = GaussianProfile(math.sqrt(0.1))
    assert mixture.mu is None
    assert mixture.delta(2.0) > 100 * wrong.delta(2.0)


def test_too_many_atoms_are_merged_upwards():
    rng = np.random.default_rng(5)
    one, other = (
        MixtureProfile(tuple(rng.uniform(0, 0.5, 90)), (1 / 90,) * 90, 0.0) for _ in range(2)
    )
    merged = one.combine(other)
    assert len(merged.mus) <= _MOST_ATOMS < 90 * 90
    squares = np.add.outer(np.square(one.mus), np.square(other.mus)).ravel()
    for epsilon in (-0.5, 0.0, 0.5, 1.5):
        every = float(np.mean(gaussian_delta(epsilon, np.sqrt(squares))))
        assert every <= merged.delta(epsilon) <= every * 1.01


def test_tails_of_mixtures_compose():
    one, other = MixtureProfile((0.1,), (0.75,), 0.25), MixtureProfile((0.2,), (0.5,), 0.5)
    both = one.combine(other)
    assert both.tail == 0.625
    assert both.delta(50.0) == pytest.approx(0.625, rel=1e-9)
    assert both.rdp(2.0) == math.inf


@pytest.mark.parametrize(("own", "mu"), [(0.5, 0.3), (1.0, 1.0), (0.05, 0.2), (2.0, 0.1)])
def test_pure_and_gaussian_against_brute_force(own, mu):
    found = compose([PureProfile(own), GaussianProfile(mu)])
    assert isinstance(found, ComposedProfile)
    for epsilon in (-1.0, -0.2, 0.0, 0.3, 0.9, 1.7, 2.5):
        brute = pure_and_gaussian(own, mu, epsilon)
        got = found.delta(epsilon)
        assert got >= brute * (1 - 1e-6) - 1e-14
        assert got <= brute * 1.002 + 1e-12


@pytest.mark.parametrize(("own", "mu"), [(0.5, 0.3), (1.0, 1.0), (0.05, 0.2)])
def test_composition_is_at_most_basic_composition(own, mu):
    found = compose([PureProfile(own), GaussianProfile(mu)])
    for delta in (1e-3, 1e-6, 1e-9):
        basic = own + GaussianProfile(mu).epsilon(delta)
        assert found.epsilon(delta) <= basic
        assert found.delta(basic) <= delta


@pytest.mark.parametrize("own", [1e-5, 1e-3, 0.1])
def test_pure_releases_are_at_most_basic_composition(own):
    found = compose([PureProfile(own)] * 10)
    basic = PureProfile(10 * own)
    for share in (0.1, 0.5, 0.9):
        assert found.delta(share * 10 * own) <= basic.delta(share * 10 * own)


def test_every_leak_of_points_counts():
    """Each point publishes everything with its delta: one of them does with 1 - (1 - a)(1 - b)."""
    for a, b in ((0.01, 0.02), (1e-6, 1e-6), (0.3, 0.1)):
        found = compose([ApproximateProfile(0.5, a), ApproximateProfile(0.2, b)])
        assert found.delta(30.0) >= 1 - (1 - a) * (1 - b)


def test_points_are_at_most_basic_composition():
    for own in (1e-5, 1e-3, 0.1):
        found = compose([ApproximateProfile(own, 1e-9)] * 10)
        assert found.delta(10 * own * (1 + 1e-12)) <= 10e-9 * (1 + 1e-6)


def test_pure_releases_add_up_without_delta():
    for epsilons in ((0.1, 0.7), (0.1, 0.2), (0.3,) * 3, (1e-3, 2.0, 0.1)):
        total = compose([PureProfile(e) for e in epsilons]).epsilon(0.0)
        exact = sum(map(Fraction, epsilons))
        assert exact <= Fraction(total) <= exact * (1 + Fraction(1, 10**14))


def test_a_gaussian_leaves_no_pure_epsilon():
    assert compose([PureProfile(0.1), GaussianProfile(0.1)]).epsilon(0.0) == math.inf


@pytest.mark.parametrize(
    "parts",
    [
        [ApproximateProfile(0.0, 1.0), PureProfile(0.1)],
        [PureProfile(1000.0), PureProfile(0.1)],
        [MixtureProfile((0.1,), (0.999,), 1e-3), PureProfile(0.1)],
    ],
    ids=["everything leaks", "huge epsilon", "large tail"],
)
def test_weak_profiles_still_compose(parts):
    found = compose(parts).delta(1.0)
    assert max(part.delta(1.0) for part in parts) * (1 - 1e-12) <= found <= 1


@dataclass(frozen=True)
class OnlyRenyi(PrivacyProfile):
    """A Gaussian of which no privacy loss distribution is known."""

    kind: ClassVar[str] = "only Renyi"
    inside: GaussianProfile

    def delta(self, epsilon):
        return self.inside.delta(epsilon)

    def rdp(self, order):
        return self.inside.rdp(order)

    def to_dict(self):
        return {"kind": self.kind}


def test_without_a_loss_distribution_renyi_or_basic_composition_is_used():
    hidden = OnlyRenyi(GaussianProfile(0.3))
    two = compose([hidden, PureProfile(0.5)])
    assert two.pld() is None
    basic_at_one = GaussianProfile(0.3).delta(0.5)
    for epsilon in (0.2, 0.6, 1.0, 2.0):
        assert two.delta(epsilon) >= pure_and_gaussian(0.5, 0.3, epsilon)
    # half of delta goes to the pure part, which can use little of it
    assert basic_at_one <= two._basic(1.0) <= 2 * basic_at_one
    assert two.delta(1.0) <= two._basic(1.0)
    many = compose([hidden] * 50)
    for epsilon in (1.0, 4.0, 9.0):
        exact = float(real_gaussian_delta(epsilon, 0.3 * math.sqrt(50)))
        assert exact <= many.delta(epsilon) <= rdp_delta(many.rdp, epsilon)
    assert 50 * GaussianProfile(0.3).delta(9.0 / 50) > 1  # basic composition has nothing to say
    assert many.delta(9.0) < 0.01
    assert two.delta(-1.0) >= -math.expm1(-1.0)


def test_results_of_a_profile_that_may_change_are_not_remembered():
    class Changing(OnlyRenyi):
        __hash__ = None
        __setattr__ = object.__setattr__

    profile = Changing(GaussianProfile(0.1))
    for build in (lambda: profile, lambda: compose([profile, PureProfile(0.5)])):
        profile.inside = GaussianProfile(0.1)
        before = build().epsilon(1e-6)
        profile.inside = GaussianProfile(2.0)
        assert build().epsilon(1e-6) > 2 * before


# --- Renyi and privacy loss distributions ---------------------------------------------------


def test_renyi_conversion_against_dp_accounting():
    for mu, delta in ((0.25, 1e-6), (1.0, 1e-5)):
        accountant = RdpAccountant()
        accountant.compose(dp_accounting.GaussianDpEvent(1 / mu))
        epsilon = accountant.get_epsilon(delta)
        found = rdp_delta(GaussianProfile(mu).rdp, epsilon)
        assert found == pytest.approx(delta, rel=0.02)
        assert found >= GaussianProfile(mu).delta(epsilon)


def test_renyi_conversion_ignores_unknown_orders():
    profile = GaussianProfile(0.5)
    some = rdp_delta(lambda a: profile.rdp(a) if a < 20 else math.inf, 2.0)
    assert rdp_delta(profile.rdp, 2.0) <= some < 1
    assert rdp_delta(lambda a: math.inf, 2.0) == 1


def test_renyi_of_a_mixture():
    order, mus, weights = 4.0, np.array([0.1, 0.7]), np.array([0.6, 0.4])
    moment = np.sum(weights * np.exp(order * (order - 1) * mus**2 / 2))
    found = MixtureProfile(tuple(mus), tuple(weights)).rdp(order)
    assert found == pytest.approx(math.log(moment) / (order - 1), rel=1e-10)
    single = MixtureProfile((0.5,), (1.0,)).rdp(order)
    assert single == pytest.approx(GaussianProfile(0.5).rdp(order), rel=1e-10)


def test_dp_accounting_doubles_a_gaussian_under_replace_one_and_we_do_not():
    multiplier, delta = 4.0, 1e-6
    relations = dp_accounting.NeighboringRelation

    def theirs(relation):
        accountant = PLDAccountant(relation)
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
        return accountant.get_epsilon(delta)

    right = GaussianProfile(1 / multiplier).epsilon(delta)
    doubled = GaussianProfile(2 / multiplier).epsilon(delta)
    assert theirs(relations.REPLACE_ONE) == pytest.approx(doubled, rel=1e-3)
    assert theirs(relations.ADD_OR_REMOVE_ONE) == pytest.approx(right, rel=1e-3)
    ours = pld.gaussian(1 / multiplier)
    assert ours.delta(right) == pytest.approx(delta, rel=1e-3)
    assert ours.delta(doubled) < 1e-3 * delta


@pytest.mark.parametrize("mu", [0.05, 0.25, 1.0, 3.0])
def test_loss_distribution_of_a_gaussian_against_the_closed_form(mu):
    distribution = pld.gaussian(mu)
    for epsilon in (-2.0, -0.3, 0.0, 0.01, mu / 2, mu, 2 * mu, 4 * mu):
        exact = real_gaussian_delta(epsilon, mu)
        assert exact <= distribution.delta(epsilon) <= exact * (1 + 1e-4) + 1e-14


@pytest.mark.parametrize("mu", [1e-3, 0.3])
def test_loss_distribution_of_a_gaussian_has_the_bits_of_dp_accounting(mu):
    from dp_accounting.pld import privacy_loss_distribution

    theirs = privacy_loss_distribution.from_gaussian_mechanism(1.0, mu)
    ours = pld.gaussian(mu).inner
    for epsilon in (0.0, 0.1 * mu, mu, 5 * mu):
        assert ours.get_delta_for_epsilon(epsilon) == theirs.get_delta_for_epsilon(epsilon)


@pytest.mark.parametrize("count", [1, 10])
def test_loss_distribution_of_a_mixture_against_the_closed_form(count):
    mixture = MixtureProfile((0.2, 0.5), (0.5, 0.5))
    distribution = mixture.pld().repeat(count)
    closed = mixture.repeat(count)
    for epsilon in (-1.0, -0.1, 0.0, 0.5, 1.0, 2.0, 3.0):
        exact = closed.delta(epsilon)
        assert exact * (1 - 1e-6) <= distribution.delta(epsilon) <= exact * (1 + 1e-3) + 1e-13


def test_loss_distributions_repeat_and_convolve_alike():
    one = pld.gaussian(0.3)
    assert one.repeat(1) is one
    assert one.repeat(4).steps == 4
    four, also_four = one.repeat(4), pld.convolve([one, pld.gaussian(0.3), one.repeat(2)])
    assert also_four.steps == 4
    for epsilon in (0.0, 0.5, 2.0):
        exact = real_gaussian_delta(epsilon, 0.6)
        for found in (four.delta(epsilon), also_four.delta(epsilon)):
            assert exact <= found <= exact * (1 + 1e-3)


def test_loss_distribution_of_nothing():
    assert pld.gaussian(0.0).delta(0.0) <= 1e-14


# --- trade-off curves -----------------------------------------------------------------------


@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 3.0])
def test_gaussian_trade_off_is_the_envelope_of_its_profile(mu):
    alpha = np.linspace(0, 1, 301)
    exact = GaussianProfile(mu).trade_off(alpha)
    bound = PrivacyProfile.trade_off(GaussianProfile(mu), alpha)
    assert exact[0] == 1
    assert exact[-1] == 0
    assert np.all(np.diff(exact) < 0)
    assert np.all(bound <= exact + 1e-9)
    assert np.all(bound >= exact - 2e-3)


def test_trade_off_takes_a_number():
    profile = GaussianProfile(1.0)
    assert profile.trade_off(0.3).shape == PureProfile(1.0).trade_off(0.3).shape == (1,)


@pytest.mark.parametrize("own", [1e-6, 9.99e-4, 1e-3, 0.1, 1.0, 5.0, 50.0, 699.0, 701.0, 1e4])
def test_mu_of_a_pure_profile_dominates(own):
    alpha = np.concatenate([np.linspace(0, 1, 2001), np.geomspace(1e-300, 0.5, 2001)])
    grow = math.exp(min(own, 700.0))
    response = np.maximum(1 - grow * alpha, np.exp(-own) * (1 - alpha))
    gaussian = GaussianProfile(PureProfile(own).mu).trade_off(alpha)
    assert np.all(gaussian <= response + 1e-15)


@pytest.mark.parametrize("own", [1e-8, 1e-4, 9.99e-4, 1.001e-3, 0.1, 1.0, 5.0, 30.0])
def test_mu_of_a_pure_profile_is_rounded_up_and_tight(own):
    with mpmath.workdps(60):
        exact = 2 * mpmath.sqrt(2) * mpmath.erfinv(mpmath.tanh(mpmath.mpf(own) / 2))
        assert exact <= PureProfile(own).mu <= exact * (1 + mpmath.mpf("2e-6"))


def test_pure_trade_off_touches_randomised_response():
    alpha = np.array([0.05, 1 / (1 + math.e), 0.6])
    response = np.maximum(1 - math.e * alpha, np.exp(-1) * (1 - alpha))
    bound = PureProfile(1.0).trade_off(alpha)
    assert np.all(bound <= response + 1e-12)
    assert np.all(bound >= response - 0.02)


@pytest.mark.parametrize("root", [1e-9, 0.3, 0.5, 0.7381, 1 - 1e-12])
@pytest.mark.parametrize("power", [1, 7, 0.05])
def test_a_narrowed_bisection_has_the_same_end_with_fewer_evaluations(root, power):
    asked = []

    def below(x):
        asked.append(x)
        return x <= root

    plain = bisect(below, 0.0, 1.0)
    most = len(asked)
    asked.clear()
    gap = lambda x: math.copysign(abs(x - root) ** power, x - root)  # noqa: E731
    assert bisect(narrowed(below, gap, 0.0, 1.0), 0.0, 1.0) == plain
    assert len(asked) <= most + 13
    if power == 1 and root > 0.1:
        assert len(asked) < most / 2
    asked.clear()  # a gap that says nothing changes nothing
    assert bisect(narrowed(below, lambda x: math.nan, 0.0, 1.0), 0.0, 1.0) == plain
    assert len(asked) == most


# --- the contract of every profile ------------------------------------------------------------

PROFILES = {
    "gaussian": GaussianProfile(0.8),
    "gaussian-mixture": MixtureProfile((0.0, 0.2, 0.9), (0.5, 0.3, 0.2 - 1e-8), 1e-8),
    "pure": PureProfile(0.7),
    "sampled-gaussian": SampledGaussianProfile(1.1, 0.2, "fixed", 12),
    "approximate": ApproximateProfile(0.7, 1e-6),
    "objective-perturbation": ObjectiveProfile(
        ((0.4, 0.1), (0.2, 0.05)), "zero-out", 0.1, 1e-9, -80.0
    ),
    "gaussian-mixing": MixingProfile(20, 0.1, "zero-out"),
    "maximum": MaximumProfile((PureProfile(0.7), GaussianProfile(0.5))),
    "random-stopping": StoppingProfile(GaussianProfile(0.3), StoppingLaw("poisson", 4.0)),
    "composed": compose([PureProfile(0.5), GaussianProfile(0.4), ApproximateProfile(0.1, 1e-7)]),
}


def assert_proves_what_delta_says(profile):
    """Compare the two at deltas on either side of the profile's own, down to the last bit."""
    for epsilon in (-0.5, 0.0, 0.3, 0.9, 2.0, 6.0):
        own = profile.delta(epsilon)
        for delta in (own, own / 2, 1.5 * own, own * (1 - 1e-5), 1e-6, 1e-12, 1 - 1e-12, 0.0):
            for near in (delta, math.nextafter(delta, 0.0), math.nextafter(delta, 1.0)):
                assert profile.proves(epsilon, near) == (own <= near), (epsilon, near)


@pytest.mark.parametrize(
    "profile",
    [
        compose([PureProfile(0.5), ObjectiveProfile(((0.3, 0.1),), "zero-out", 0.1)]),
        compose(
            [PureProfile(0.3), ApproximateProfile(0.1, 1e-9), MixingProfile(9, 0.1, "zero-out")]
        ),
        maximum([compose([PureProfile(0.3), GaussianProfile(21.0)]), GaussianProfile(0.2)]),
        compose([StoppingProfile(PureProfile(0.2), StoppingLaw("poisson", 3.0)), PureProfile(0.3)]),
        ObjectiveProfile(((0.4, 0.1),), "replace-one", 0.1, 0.0, -12.0),
    ],
    ids=["basic or Renyi", "loss distribution", "maximum", "Renyi alone", "missed events"],
)
def test_compositions_prove_what_their_delta_says(profile):
    assert_proves_what_delta_says(profile)


def test_every_kind_is_under_contract():
    assert PROFILES.keys() == _REGISTRY.keys()
    assert all(profile.kind == kind for kind, profile in PROFILES.items())


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES.keys())
class TestContract:
    """What every profile must satisfy."""

    grid = np.concatenate([-np.geomspace(1e-3, 30, 60)[::-1], [0.0], np.geomspace(1e-3, 30, 60)])

    def test_delta_is_a_probability_and_falls(self, profile):
        deltas = np.array([profile.delta(float(e)) for e in self.grid])
        assert np.all((deltas >= 0) & (deltas <= 1))
        assert np.all(np.diff(deltas) <= 0)
        assert deltas[0] > deltas[60] > deltas[-1]

    def test_delta_is_at_least_that_of_equal_data(self, profile):
        for e in self.grid[self.grid < 0]:
            assert profile.delta(float(e)) >= -math.expm1(e)

    def test_delta_is_convex_in_the_likelihood_ratio(self, profile):
        ratio = np.linspace(0.02, 8, 150)
        deltas = np.array([profile.delta(math.log(x)) for x in ratio])
        if (
            profile.kind == "random-stopping"
        ):  # a minimum over orders: a bound on a convex function, not one itself
            assert profile.pld() is None
            return
        assert np.all(np.diff(deltas, 2) >= -1e-9)

    def test_renyi_bound_grows_with_the_order(self, profile):
        bounds = [profile.rdp(1 + 10.0**e) for e in np.linspace(-2, 3, 40)]
        assert all(0 <= low <= high for low, high in itertools.pairwise(bounds))

    def test_renyi_bound_does_not_contradict_delta(self, profile):
        # the conversion loses something, so it can't fall below a profile that is exact
        for e in (0.2, 0.5, 1.0, 3.0):
            assert rdp_delta(profile.rdp, e) >= profile.delta(e) * (1 - 1e-3)

    def test_loss_distribution_dominates_the_profile(self, profile):
        distribution = profile.pld()
        if distribution is None:
            assert profile.kind in ("objective-perturbation", "maximum", "random-stopping")
            return
        for e in (-1.0, -0.1, 0.0, 0.25, 0.6, 2.0):
            delta = profile.delta(e)
            assert delta * (1 - 1e-6) <= distribution.delta(e) <= delta * 1.001 + 1e-6

    def test_epsilon_of_delta_and_back(self, profile):
        for delta in (1e-5, 1e-3, 0.05):
            epsilon = profile.epsilon(delta)
            assert 0 < epsilon < math.inf
            assert profile.delta(epsilon) <= delta < profile.delta(epsilon * (1 - 1e-9))
            assert profile.supports(Budget(epsilon, delta))
            assert not profile.supports(Budget(epsilon * (1 - 1e-9), delta))

    def test_the_short_way_to_a_comparison_has_the_answer_of_delta(self, profile):
        assert_proves_what_delta_says(profile)

    def test_a_large_delta_needs_no_epsilon(self, profile):
        assert profile.epsilon(profile.delta(0.0)) == 0

    def test_hashable_and_equal_to_its_json(self, profile):
        data = json.loads(json.dumps(profile.to_dict()))
        again = profile_from_dict(data)
        assert again == profile
        assert hash(again) == hash(profile)
        assert {profile: 1}[again] == 1
        assert data["kind"] == profile.kind
        with pytest.raises(AttributeError):
            profile.kind_of_thing = 1

    def test_composition_with_nothing_changes_nothing(self, profile):
        for e in (0.1, 1.0):
            found = profile.compose(GaussianProfile(0.0)).delta(e)
            assert profile.delta(e) * (1 - 1e-6) <= found <= profile.delta(e) * 1.001 + 1e-4

    def test_two_releases_are_worse_than_one_and_better_than_basic(self, profile):
        two = profile.compose(profile)
        for delta in (1e-5, 1e-3):
            one = profile.epsilon(delta / 2)
            assert one * (1 - 1e-6) <= two.epsilon(delta) <= 2 * one + 1e-3


def test_a_point_supports_its_own_budget():
    profile = ApproximateProfile(0.7, 1e-6)
    assert profile.supports(Budget(0.7, 1e-6))
    assert profile.epsilon(1e-6) == pytest.approx(0.7, rel=1e-12)


def test_a_point_is_randomised_response_with_a_leak():
    for epsilon in (-2.0, -0.3, 0.0, 0.4, 1.0):
        exact = 1e-3 + (1 - 1e-3) * PureProfile(0.7).delta(epsilon)
        assert ApproximateProfile(0.7, 1e-3).delta(epsilon) == pytest.approx(exact, rel=1e-12)
    assert ApproximateProfile(0.7, 1e-3).rdp(2.0) == math.inf
    assert ApproximateProfile(0.7, 0.0).rdp(2.0) == PureProfile(0.7).rdp(2.0)
    assert ApproximateProfile(0.7, 1e-3).epsilon(1e-4) == math.inf


def test_weights_that_miss_some_probability_are_refused_or_filled_up_at_the_largest_mu():
    with pytest.raises(ParameterError, match="add up to 1 with the tail"):
        MixtureProfile((0.5,), (1 - 5e-10,))
    short, full = MixtureProfile((0.1, 2.0), (1.0 - 5e-13, 0.0)), MixtureProfile((0.1,), (1.0,))
    assert short.delta(-50.0) >= -math.expm1(-50.0)
    for one, other in ((short, full), (short.repeat(2), full.repeat(2))):
        gap = one.delta(6.0) - other.delta(6.0)
        assert gap >= 4e-13 * GaussianProfile(2.0).delta(6.0)
    assert short.rdp(20.0) > full.rdp(20.0)


def test_pure_epsilon_at_delta_zero_is_its_own():
    assert PureProfile(0.7).epsilon(0.0) == 0.7
    assert GaussianProfile(0.7).epsilon(0.0) == math.inf
    assert GaussianProfile(0.0).epsilon(0.0) == 0


@slow_function
@given(st.floats(1e-4, 20.0), st.floats(-18, -0.1))
def test_gaussian_epsilon_is_rounded_up(mu, log_delta):
    delta = 10**log_delta
    epsilon = GaussianProfile(mu).epsilon(delta)
    assert real_gaussian_delta(epsilon, mu) <= mpmath.mpf(delta)


@slow_function
@given(st.floats(0.0, 50.0), st.floats(-60.0, 60.0))
@example(5e-324, 0.0)
def test_pure_delta_is_rounded_up(own, epsilon):
    with mpmath.workdps(60):
        e, o = mpmath.mpf(epsilon), mpmath.mpf(own)
        inside = -mpmath.expm1(e - o) / (1 + mpmath.exp(-o))
        exact = max(inside, -mpmath.expm1(e), mpmath.mpf(0))
        found = PureProfile(own).delta(epsilon)
        assert exact <= found <= exact * (1 + mpmath.mpf("1e-14")) + mpmath.mpf("1e-323")


# --- what is refused --------------------------------------------------------------------------

NUMBER_FROM_ZERO = r"must be a float in the range \[0, inf\)"


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, True, "1", None])
def test_gaussian_refuses(value):
    with pytest.raises(
        ParameterError, match=f"'mu' parameter of GaussianProfile {NUMBER_FROM_ZERO}"
    ):
        GaussianProfile(value)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, True, "1", None])
def test_pure_refuses(value):
    with pytest.raises(
        ParameterError, match=f"'epsilon' parameter of PureProfile {NUMBER_FROM_ZERO}"
    ):
        PureProfile(value)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(-1.0, 0.1), (math.nan, 0.1), (math.inf, 0.1), (1.0, -1e-9), (1.0, 1.1), (1.0, math.nan),
     ("1", 0.1), (1.0, None), (True, 0.1)],
)  # fmt: skip
def test_approximate_refuses(epsilon, delta):
    message = r"'epsilon, delta' parameter of ApproximateProfile must be in \[0, inf\) and \[0, 1\]"
    with pytest.raises(ParameterError, match=message):
        ApproximateProfile(epsilon, delta)


@pytest.mark.parametrize(
    ("mus", "weights", "tail"),
    [
        ((), (), 0.0),
        ((0.1,), (0.5, 0.5), 0.0),
        ((0.1, -0.2), (0.5, 0.5), 0.0),
        ((0.1, math.inf), (0.5, 0.5), 0.0),
        ((0.1, math.nan), (0.5, 0.5), 0.0),
        ((0.1, 0.2), (1.5, -0.5), 0.0),
        ((0.1, 0.2), (0.5, math.nan), 0.0),
        ((0.1, 0.2), (0.5, 0.4), 0.0),
        ((0.1, 0.2), (0.5, 0.5), 0.1),
        ((0.1, 0.2), (0.5, 0.6), -0.1),
        ((0.1, 0.2), (0.0, 0.0), 1.0),
        ((0.1, 0.2), (0.5, 0.5), math.nan),
    ],
)
def test_mixture_refuses(mus, weights, tail):
    message = r"'weights' parameter of MixtureProfile must be probabilities, one for each finite mu"
    with pytest.raises(ParameterError, match=message):
        MixtureProfile(mus, weights, tail)


@pytest.mark.parametrize(
    ("mus", "weights", "tail"), [(("a",), (1.0,), 0.0), ((0.1,), (None,), 0.0), ((0.1,), (1,), "")]
)
def test_mixture_refuses_what_is_no_number(mus, weights, tail):
    with pytest.raises(ParameterError, match="'mus', 'weights' and 'tail' of MixtureProfile must"):
        MixtureProfile(mus, weights, tail)


def test_composition_of_nothing_is_refused():
    message = "'parts' parameter of ComposedProfile must be one or more profiles"
    with pytest.raises(ParameterError, match=message):
        ComposedProfile(())


def test_mixture_error_counts_but_does_not_list():
    with pytest.raises(ParameterError, match=r"Got '2 weights with sum 0.9 for 2 mus'"):
        MixtureProfile((0.123456, 0.2), (0.5, 0.4))


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.0, 0.1), (-1.0, 0.1), (math.inf, 0.1), (math.nan, 0.1), (1.0, 0.0), (1.0, 1.0),
     (1.0, math.nan)],
)  # fmt: skip
def test_gaussian_mu_refuses(epsilon, delta):
    message = r"'epsilon, delta' parameter of gaussian_mu must be in \(0, inf\) and \(0, 1\).*pure"
    with pytest.raises(ParameterError, match=message):
        gaussian_mu(epsilon, delta)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES.keys())
@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan, "0.1", True, None])
def test_epsilon_refuses(profile, delta):
    name = type(profile).__name__
    message = rf"'delta' parameter of {name} must be a float in the range \[0, 1\). Got {delta!r}"
    with pytest.raises(ParameterError, match=message):
        profile.epsilon(delta)


MALFORMED = {
    "no kind": {},
    "unknown kind": {"kind": "magic"},
    "kind is a list": {"kind": ["gaussian"]},
    "not a mapping": ["gaussian", 0.5],
    "nothing": None,
    "no mu": {"kind": "gaussian"},
    "mu is text": {"kind": "gaussian", "mu": "0.5"},
    "mu is negative": {"kind": "gaussian", "mu": -0.5},
    "mu is nan": {"kind": "gaussian", "mu": math.nan},
    "mu is true": {"kind": "gaussian", "mu": True},
    "mu is larger than any float": {"kind": "gaussian", "mu": 10**400},
    "no epsilon": {"kind": "pure"},
    "epsilon is infinite": {"kind": "pure", "epsilon": math.inf},
    "epsilon is larger than any float": {"kind": "pure", "epsilon": 10**400},
    "no delta": {"kind": "approximate", "epsilon": 0.1},
    "delta above one": {"kind": "approximate", "epsilon": 0.1, "delta": 2},
    "no tail": {"kind": "gaussian-mixture", "mus": [0.1], "weights": [1.0]},
    "tail is text": {"kind": "gaussian-mixture", "mus": [0.1], "weights": [1.0], "tail": "0"},
    "weights miss": {"kind": "gaussian-mixture", "mus": [0.1], "weights": [0.9], "tail": 0.0},
    "mus is a number": {"kind": "gaussian-mixture", "mus": 0.1, "weights": [1.0], "tail": 0.0},
    "mus are words": {"kind": "gaussian-mixture", "mus": ["a"], "weights": [1.0], "tail": 0.0},
    "mus are texts": {"kind": "gaussian-mixture", "mus": ["0.1"], "weights": [1.0], "tail": 0.0},
    "mus are ragged": {
        "kind": "gaussian-mixture", "mus": [[0.1], [0.1, 0.2]], "weights": [0.5, 0.5], "tail": 0.0
    },
    **{
        f"objective: {change}": {
            "kind": "objective-perturbation", "stages": [[0.3, 0.1]], "neighbours": "replace-one",
            "mu": 0.1, "slack": 0.0, "log_miss": -50.0,
        } | change
        for change in (
            {"stages": []}, {"stages": 3}, {"stages": [0.3]}, {"stages": [[0.3]]},
            {"stages": [["0.3", 0.1]]}, {"stages": [[-0.3, 0.1]]}, {"stages": [[0.3, -0.1]]},
            {"neighbours": "nobody"}, {"neighbours": None}, {"mu": -1}, {"mu": "0.1"},
            {"slack": -1e-3}, {"slack": 2.0}, {"log_miss": 1.0}, {"log_miss": None},
        )
    },
    "parts is a number": {"kind": "composed", "parts": 3},
    "parts is text": {"kind": "composed", "parts": "pure"},
    "no parts": {"kind": "composed", "parts": []},
    "a part is malformed": {"kind": "composed", "parts": [{"kind": "pure", "epsilon": -1}]},
}  # fmt: skip


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_profiles_are_refused(data):
    message = r"profile of this certificate can't be read .*'kind' must be one of approximate, comp"
    with pytest.raises(CertificateError, match=message):
        profile_from_dict(data)
