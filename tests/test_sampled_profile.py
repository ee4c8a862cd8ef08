"""Steps on random batches: enumeration of every batch, two adaptive steps, and many steps by PLD."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.fft
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import norm

import oracles
from dpkernel.foundations.errors import ParameterError
from dpkernel.privacy import pld
from dpkernel.privacy.profiles import (
    ComposedProfile,
    GaussianProfile,
    SampledGaussianProfile,
    compose,
    gaussian_delta,
    sampled,
)
from dpkernel.privacy.profiles.sampled import SAMPLINGS, _composed, _laws, sampled_delta
from oracles import Pair

QUADRATURE = 1 + 2e-6  # the sums over grids below are that exact
EPSILONS = (-2.0, -0.5, -0.1, 0.0, 0.1, 0.5, 1.0, 2.0, 4.0)


def hockey_stick(p, q, epsilon, cell):
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * cell)


def mixture(records, sigma, x, batches):
    """Return the density of the noisy sum over a random batch; batches with probabilities."""
    return (
        1
        / (sigma * math.sqrt(2 * math.pi))
        * sum(
            weight * np.exp(-(((x - sum(records[i] for i in batch)) / sigma) ** 2) / 2)
            for batch, weight in batches
        )
    )


def fixed_batches(n, b):
    every = list(itertools.combinations(range(n), b))
    return [(batch, 1 / len(every)) for batch in every]


def poisson_batches(n, rate):
    return [
        (batch, rate ** len(batch) * (1 - rate) ** (n - len(batch)))
        for size in range(n + 1)
        for batch in itertools.combinations(range(n), size)
    ]


# --- one step -----------------------------------------------------------------------------


def test_one_step_against_known_values():
    for epsilon, exact in ((0.3, 5.63135e-3), (0.0, 0.0382925), (-0.3, 0.263354)):
        for sampling in ("fixed", "poisson"):
            found = SampledGaussianProfile(1.0, 0.1, sampling).delta(epsilon)
            assert found == pytest.approx(exact, rel=3e-6)


@pytest.mark.parametrize("steps", [1, 9])
def test_the_fixed_pair_is_symmetric(steps):
    profile = SampledGaussianProfile(1.3, 0.2, "fixed", steps)
    for e in (0.01, 0.3, 1.0, 3.0):
        mirrored = -math.expm1(-e) + math.exp(-e) * profile.delta(e)
        assert profile.delta(-e) == pytest.approx(mirrored, rel=1e-9)


@pytest.mark.parametrize(("n", "b"), [(2, 1), (4, 1), (4, 3), (5, 2), (5, 4)])
def test_every_batch_of_fixed_size(n, b, rng):
    """The true delta of random and of worst neighbours stays below the profile, and reaches it."""
    sigma, x = 1.4, np.linspace(-12, 12, 40_001)
    cell, batches = x[1] - x[0], fixed_batches(n, b)
    worst = dict.fromkeys(EPSILONS, 0.0)
    for trial in range(8):
        others = rng.uniform(-1, 1, n - 1) if trial > 2 else np.full(n - 1, trial - 1.0)
        p = mixture([1.0, *others], sigma, x, batches)
        q = mixture([-1.0, *others], sigma, x, batches)
        for e in EPSILONS:
            worst[e] = max(worst[e], hockey_stick(p, q, e, cell), hockey_stick(q, p, e, cell))
    profile = SampledGaussianProfile(2 / sigma, b / n)
    for e, found in worst.items():
        assert found <= profile.delta(e) * QUADRATURE
        if b == 1:  # attained: the other records are where the neighbour is
            assert found >= profile.delta(e) * (1 - 1e-5)


def test_every_poisson_batch(rng):
    sigma, rate, x = 0.9, 0.3, np.linspace(-9, 10, 40_001)
    cell, batches = x[1] - x[0], poisson_batches(4, rate)
    profile, worst = SampledGaussianProfile(1 / sigma, rate, "poisson"), dict.fromkeys(EPSILONS, 0)
    for trial in range(8):
        others = rng.uniform(-1, 1, 3) if trial else np.zeros(3)
        p = mixture([1.0, *others], sigma, x, batches)
        q = mixture([0.0, *others], sigma, x, batches)
        for e in EPSILONS:
            worst[e] = max(worst[e], hockey_stick(p, q, e, cell), hockey_stick(q, p, e, cell))
    for e, found in worst.items():
        assert profile.delta(e) * (1 - 1e-5) <= found <= profile.delta(e) * QUADRATURE


# --- a blanked record in a batch of fixed size ------------------------------------------------


def blanked_pair(mu, rate):
    """Return the pair of a record at one end, the others at the other end, and the record blanked.

    The sum over the others of a batch is the same in every batch; with the record it is 2 mu
    higher, with the blank mu.
    """
    edges = np.linspace(-9, 9 + 2 * mu, 40_001)
    weights = 1 - rate, rate
    return Pair(
        oracles.mixture(edges, (0, 2 * mu), weights), oracles.mixture(edges, (0, mu), weights)
    )


@pytest.mark.parametrize("steps", [1, 2, 10, 100])
@pytest.mark.parametrize("rate", [0.01, 0.3, 0.8])
@pytest.mark.parametrize("mu", [0.2, 1.0, 2.5])
def test_a_blanked_record_against_the_exact_pair(mu, rate, steps):
    """Both directions of a pair that the definition allows stay below the profile."""
    mu = mu / math.sqrt(steps)
    profile = SampledGaussianProfile(mu, rate, "fixed-zero-out", steps)
    found = oracles.ratio(profile, [blanked_pair(mu, rate)] * steps)
    assert 0.1 < found <= 1 + 1e-9
    # as if a blanked record met only its own blank
    if rate < 0.5 and mu > 0.2:
        forgotten = SampledGaussianProfile(mu, rate, "fixed", steps)
        assert oracles.ratio(forgotten, [blanked_pair(mu, rate)] * steps) > 1.01


@pytest.mark.parametrize(("n", "b"), [(2, 1), (3, 2), (5, 2), (6, 3)])
def test_every_batch_with_a_blanked_record(n, b, rng):
    """The other records are free; every batch is enumerated."""
    sigma, edges, batches = 1.4, np.linspace(-15, 15, 20_001), fixed_batches(n, b)
    profile, worst = SampledGaussianProfile(1 / sigma, b / n, "fixed-zero-out"), 0.0
    for trial in range(10):
        others = rng.uniform(-1, 1, n - 1) if trial > 2 else np.full(n - 1, trial - 1.0)
        weights = [weight for _, weight in batches]
        with_it, without = (
            [sum(np.concatenate(([own], others))[list(batch)]) for batch, _ in batches]
            for own in (1.0, 0.0)
        )
        pair = Pair(
            oracles.mixture(edges, with_it, weights, sigma),
            oracles.mixture(edges, without, weights, sigma),
        )
        worst = max(worst, oracles.ratio(profile, [pair]))
    assert 0.2 < worst <= 1 + 1e-9


def test_a_blanked_record_in_a_full_batch_is_gaussian():
    for mu in (0.3, 1.0, 4.0):
        nearly = SampledGaussianProfile(mu, 1 - 1e-12, "fixed-zero-out")
        for e in EPSILONS:
            assert nearly.delta(e) == pytest.approx(gaussian_delta(e, mu), rel=1e-9)
        assert SampledGaussianProfile(mu, 1.0, "fixed-zero-out").mu == mu


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0, 30.0])
def test_one_step_is_the_formula_and_falls(mu):
    """At mu = 3 the formula rises beyond epsilon = 0, and delta(0) takes its place."""
    for rate in (1e-4, 0.05, 0.6):
        values = []
        for e in np.linspace(0, 8, 60):
            alpha = 1 + math.expm1(e) / rate
            beta = math.exp(e) / alpha
            near, far = (gaussian_delta(math.log(alpha), m) for m in (mu, 2 * mu))
            exact = rate * ((1 - beta) * far + beta * near)
            exact = min(exact, rate * gaussian_delta(0.0, mu))
            values.append(SampledGaussianProfile(mu, rate, "fixed-zero-out").delta(e))
            assert values[-1] == pytest.approx(exact, rel=1e-9)
        assert np.all(np.diff(values) <= 0)


def test_the_envelope_is_below_the_formula_and_above_every_pair():
    for mu, rate, step in ((0.5, 0.01, 1e-3), (1.5, 0.1, 1e-3), (3.0, 0.3, 1e-2)):
        remove, add = _laws(mu, rate, "fixed-zero-out", step)
        pair = blanked_pair(mu, rate)
        for law, truth in ((remove, pair), (add, pair.swapped)):
            losses = step * (law.first + np.arange(len(law.masses)))
            for e in np.linspace(-2, 3, 40):
                found = law.infinity + np.maximum(-np.expm1(e - losses), 0) @ law.masses
                assert truth.delta(e) <= found * (1 + 1e-9)
                if abs(e / step - round(e / step)) < 1e-9 and e >= 0:
                    assert found <= sampled_delta(e, mu, rate, "fixed-zero-out") * (1 + 1e-9)


def test_a_replaced_record_under_poisson_batches_is_not_covered():
    """Why it is refused: rate G(...) with twice the sensitivity is exceeded."""
    sigma, rate, x = 0.4, 0.3, np.linspace(-8, 8, 8001)
    batches = poisson_batches(1, rate)
    p, q = mixture([1.0], sigma, x, batches), mixture([-1.0], sigma, x, batches)
    poisson = SampledGaussianProfile(1 / sigma, rate, "poisson")
    assert hockey_stick(p, q, 1.0, x[1] - x[0]) > poisson.delta(1.0) * 1.0001


def test_delta_grows_with_each_number():
    base = SampledGaussianProfile(0.8, 0.2, "fixed", 5)
    for more in (
        SampledGaussianProfile(0.9, 0.2, "fixed", 5),
        SampledGaussianProfile(0.8, 0.25, "fixed", 5),
        SampledGaussianProfile(0.8, 0.2, "fixed", 6),
    ):
        assert all(more.delta(e) > base.delta(e) for e in (-0.3, 0.0, 0.4, 1.0))


def test_extreme_epsilons():
    one = SampledGaussianProfile(30.0, 0.01)
    assert 0 < one.delta(800.0) < one.delta(700.0) < one.delta(100.0) < 0.0101
    assert one.delta(-800.0) == 1.0
    assert SampledGaussianProfile(0.0, 0.3, "fixed", 5).delta(0.5) == 0.0
    assert SampledGaussianProfile(0.0, 0.3, "fixed", 5).epsilon(0.0) == 0.0


# --- two adaptive steps ---------------------------------------------------------------------


def test_two_adaptive_steps():
    """The second step's records depend on what the first one gave; every pair of batches counts."""
    n, sigma = 3, 1.5
    x = np.linspace(-9, 9, 1501)
    cell, batches = (x[1] - x[0]) ** 2, fixed_batches(3, 1)
    ways = [
        tuple(mixture([r, other, other], sigma, x, batches) for r in (1.0, -1.0))
        for other in (-1.0, 1.0)
    ]
    first = ways[0]
    positive = (x > -0.8)[:, None]
    p = first[0][:, None] * np.where(positive, ways[0][0], ways[1][0])
    q = first[1][:, None] * np.where(positive, ways[0][1], ways[1][1])
    two = SampledGaussianProfile(2 / sigma, 1 / n).repeat(2)
    for e in (-1.0, 0.0, 0.2, 0.6, 1.2, 2.0):
        true = max(hockey_stick(p, q, e, cell), hockey_stick(q, p, e, cell))
        assert 0.7 * two.delta(e) < true < two.delta(e)


def test_two_poisson_steps_are_exact():
    sigma, rate = 1.2, 0.3
    x = np.linspace(-9, 10, 2001)
    p1, q1 = mixture([1.0], sigma, x, poisson_batches(1, rate)), norm.pdf(x, 0, sigma)
    p, q, cell = np.outer(p1, p1), np.outer(q1, q1), (x[1] - x[0]) ** 2
    two = SampledGaussianProfile(1 / sigma, rate, "poisson", 2)
    for e in (-1.0, 0.0, 0.2, 0.6, 1.2):
        true = max(hockey_stick(p, q, e, cell), hockey_stick(q, p, e, cell))
        assert true <= two.delta(e) * QUADRATURE <= true * 1.0005


# --- many steps -----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [2, 40, 3000])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_nearly_full_batches_are_gaussian(sampling, steps):
    mu = 1.1 / math.sqrt(steps)
    profile = SampledGaussianProfile(mu, 1 - 1e-12, sampling, steps)
    for e in (-1.0, 0.0, 0.5, 2.0, 4.0):
        exact = gaussian_delta(e, 1.1)
        assert exact * (1 - 1e-9) <= profile.delta(e) <= exact * 1.002 + 2e-15 * steps


def test_full_batches_are_exactly_gaussian():
    for sampling in SAMPLINGS:
        full = SampledGaussianProfile(0.3, 1.0, sampling, 16)
        assert full.mu == GaussianProfile(0.3).repeat(16).mu
        assert all(full.delta(e) == gaussian_delta(e, full.mu) for e in EPSILONS)
        assert full.repeat(3).mu == GaussianProfile(0.3).repeat(48).mu
        assert compose([full, GaussianProfile(0.5)]).mu == pytest.approx(1.3, rel=1e-12)
        assert isinstance(compose([full, full]), GaussianProfile)
    assert SampledGaussianProfile(0.3, 0.999).mu is None


@pytest.mark.parametrize(("mu", "rate", "steps"), [(0.55, 0.01, 300), (1.0, 0.5, 7), (3.0, 0.2, 3)])
def test_poisson_steps_against_dp_accounting(mu, rate, steps):
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu,
        sampling_prob=rate,
        value_discretization_interval=1e-4 if steps > 100 else 5e-4,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    ).self_compose(steps)
    ours = SampledGaussianProfile(mu, rate, "poisson", steps)
    for e in (0.0, 0.3, 1.0):
        assert ours.delta(e) == pytest.approx(theirs.get_delta_for_epsilon(e), rel=1e-3, abs=1e-11)


def test_fixed_steps_against_connected_dots():
    """The same law through differences of delta and dp-accounting's own power."""
    mu, rate, steps = 1.4, 0.05, 60
    values = np.vectorize(lambda e: sampled_delta(float(e), mu, rate))
    theirs = pld.from_profile(values, 12.0, 1e-3).repeat(steps)
    ours = SampledGaussianProfile(mu, rate, "fixed", steps)
    for e in (-1.0, 0.0, 0.5, 2.0, 5.0):
        assert ours.delta(e) == pytest.approx(theirs.delta(e), rel=2e-4)


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no longer floats here")
@pytest.mark.parametrize(
    ("mu", "rate", "sampling", "steps"),
    [(1.6, 1e-4, "fixed", 10_000), (0.5, 0.01, "poisson", 1000), (3.0, 0.001, "poisson", 20)],
)
def test_the_error_of_the_transform_is_below_what_is_added(mu, rate, sampling, steps):
    profile = SampledGaussianProfile(mu, rate, sampling, steps)
    step = profile._own_step
    inner = _composed(profile, step).inner
    for law, found in zip(
        _laws(mu, rate, sampling, step), (inner._pmf_remove, inner._pmf_add), strict=False
    ):
        ring = np.zeros(found.size, dtype=np.longdouble)
        ring[np.arange(law.first, law.first + len(law.masses)) % found.size] = law.masses
        power = scipy.fft.rfft(ring)
        exact = np.ones_like(power)
        for bit in bin(steps)[2:]:
            exact = exact * exact * (power if bit == "1" else 1)
        masses = np.roll(scipy.fft.irfft(exact, found.size), -(found._lower_loss % found.size))
        losses = step * (found._lower_loss + np.arange(found.size))
        for e in (0.0, 0.3, 1.0, 2.0):
            weights = np.maximum(-np.expm1(e - losses), 0)
            assert abs(float(weights @ (found._probs - masses))) < 0.5 * 1e-15 * steps
    # where delta is nothing but that error, it is counted
    assert _composed(profile, step).delta(500.0) >= 0.5 * 1e-15 * steps


def test_laws_add_up_and_are_consistent():
    """All mass is there, and no probability is negative; the other law is at most that mass too."""
    for mu, rate, step in (
        (1.5, 0.01, 1e-3),
        (1e-4, 0.5, 1e-6),
        (40.0, 0.3, 0.5),
        (8.0, 1e-7, 1e-3),
    ):
        for sampling in SAMPLINGS:
            for law in _laws(mu, rate, sampling, step):
                assert math.fsum(law.masses) + law.infinity == pytest.approx(1, abs=1e-14)
                assert law.masses.min() >= 0
                losses = step * (law.first + np.arange(len(law.masses)))
                assert law.masses @ np.exp(-losses) <= 1 + 1e-12


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_tails_that_are_cut_count_as_infinite(sampling, monkeypatch):
    full = _laws(1.2, 0.2, sampling, 0.01)
    monkeypatch.setattr(sampled, "_TOP", 0.01)
    for law, whole in zip(_laws(1.2, 0.2, sampling, 0.01), full, strict=True):
        assert len(law.masses) < len(whole.masses)
        assert math.fsum(law.masses) + law.infinity == pytest.approx(1, abs=1e-14)
        for e in np.linspace(-1, 3, 30):
            deltas = [
                one.infinity
                + np.maximum(-np.expm1(e - 0.01 * (one.first + np.arange(len(one.masses)))), 0)
                @ one.masses
                for one in (law, whole)
            ]
            assert deltas[0] >= deltas[1] - 1e-15


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_losses_far_below_the_grid_of_others(sampling):
    """Tiny losses on a coarse grid: a short ring all the same, and an upper bound."""
    many = SampledGaussianProfile(1e-3, 1e-4, sampling, 10**6)
    coarse = many.pld(1e-4)
    assert coarse.inner._pmf_remove.size < 10**5
    for e in (0.0, 1e-4, 1e-3):
        assert coarse.delta(e) > many.delta(e) * (1 - 1e-6)
    assert many.compose(GaussianProfile(1.0)).delta(1.0) == pytest.approx(
        gaussian_delta(1.0, 1.0), rel=0.01
    )


def exact_power(law, count):
    masses = law.masses
    for _ in range(count - 1):
        masses = np.convolve(masses, law.masses)
    return masses, 1 - (1 - law.infinity) ** count


@pytest.mark.parametrize("cut", [1e-16, 1e-3, 0.02])
@pytest.mark.parametrize("order", [1e-3, 0.3, 1.0, 5.0, 300.0])
def test_what_is_cut_off_counts_as_infinite(cut, order, monkeypatch):
    """With a coarse cut the ring is short and losses come round: delta must still be an upper bound."""
    monkeypatch.setattr(pld, "_CUT", cut)
    law, step = pld.LossLaw(-2, np.array([0.05, 0.2, 0.4, 0.2, 0.1]), 0.05), 0.3
    for count in (1, 2, 5, 12):
        masses, infinity = exact_power(law, count)
        losses = step * (-2 * count + np.arange(len(masses)))
        found = pld.from_laws([law], step, count, order)
        for e in np.linspace(-8, 8, 60):
            exact = infinity + float(np.maximum(-np.expm1(e - losses), 0) @ masses)
            assert found.delta(e) >= exact * (1 - 1e-12)
            assert found.delta(e) <= exact + 3 * cut * count + 1e-11


def test_millions_of_steps():
    many = SampledGaussianProfile(0.01, 1e-3, "poisson").repeat(1000).repeat(2000)
    assert many.steps == 2_000_000
    assert 2e-9 < many.delta(2.0) < 1e-7  # 1e-15 a step and little else
    # nearly Gaussian by the central limit theorem
    assert many.delta(0.02) == pytest.approx(gaussian_delta(0.02, 0.01 * 1e-3 * 2e6**0.5), rel=0.01)


# --- values -------------------------------------------------------------------------------


def test_equal_steps_are_counted_together():
    one = SampledGaussianProfile(0.7, 0.1)
    assert one.repeat(6) == compose([one] * 6) == one.compose(one.repeat(5))
    assert one.repeat(6).steps == 6
    assert compose([one]) == one == one.repeat(1)
    assert one.repeat(0).epsilon(0.0) == 0
    other = SampledGaussianProfile(0.7, 0.1, "poisson")
    both = compose([one, other, one])
    assert isinstance(both, ComposedProfile)
    assert sorted(p.steps for p in both.parts) == [1, 2]


def test_sampled_steps_and_a_gaussian():
    """One full and several sampled steps: between the sampled ones alone and all of them full."""
    sampled = SampledGaussianProfile(0.9, 0.2, "poisson", 4)
    both = sampled.compose(GaussianProfile(0.5))
    for e in (0.0, 0.5, 1.5):
        assert sampled.delta(e) < both.delta(e) < GaussianProfile(math.hypot(1.8, 0.5)).delta(e)
    # the Gaussian alone at a rate of 1e-9
    tiny = SampledGaussianProfile(0.9, 1e-9).compose(GaussianProfile(0.5))
    assert tiny.delta(0.5) == pytest.approx(gaussian_delta(0.5, 0.5), rel=1e-3)


def test_epsilon_leaves_room_for_another_transform():
    profile = SampledGaussianProfile(1.5, 1e-3, "fixed", 2000)
    for delta in (1e-8, 1e-5):
        epsilon = profile.epsilon(delta)
        assert profile.delta(epsilon) <= delta - 1e-16 * profile.steps
        assert profile.delta(epsilon * 0.9999) > delta
    assert profile.epsilon(1e-13) == math.inf  # below what the transform adds


def test_renyi_bound_is_that_of_full_batches():
    profile = SampledGaussianProfile(0.5, 0.1, "fixed", 4)
    assert profile.rdp(3.0) == pytest.approx(3 * 0.25 / 2 * 4)
    blanked = SampledGaussianProfile(0.5, 0.1, "fixed-zero-out", 4)
    assert blanked.rdp(3.0) == pytest.approx(3 * 1.0 / 2 * 4)


@pytest.mark.parametrize(
    ("name", "arguments", "allowed"),
    [
        ("mu", (-1.0, 0.5), "a float in the range [0, 1e6)"),
        ("mu", (math.nan, 0.5), "a float in the range [0, 1e6)"),
        ("mu", ("1", 0.5), "a float in the range [0, 1e6)"),
        ("rate", (1.0, 0.0), "a float in the range (0, 1]"),
        ("rate", (1.0, 1.5), "a float in the range (0, 1]"),
        ("rate", (1.0, True), "a float in the range (0, 1]"),
        ("sampling", (1.0, 0.5, "shuffled"), "one of ('fixed', 'poisson', 'fixed-zero-out')"),
        ("steps", (1.0, 0.5, "fixed", 0), "an int >= 1"),
        ("steps", (1.0, 0.5, "fixed", 2.0), "an int >= 1"),
    ],
)
def test_bad_parameters(name, arguments, allowed):
    with pytest.raises(ParameterError) as error:
        SampledGaussianProfile(*arguments)
    assert f"The '{name}' parameter of SampledGaussianProfile must be {allowed}. Got" in str(
        error.value
    )
