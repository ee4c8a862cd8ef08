"""Every kind of profile with pairs of laws that it has to bound, alone and composed with others."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

import oracles
from dpkernel.privacy.profiles import (
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
)
from dpkernel.privacy.profiles.sampled import BLANKED
from oracles import Pair, normal, shifted


@dataclass
class Example:
    """A profile, and pairs of neighbouring outputs (with the record first) that it covers.

    ``ways`` holds alternatives, each a list of independent pairs: a record meets one of them.
    ``slack`` is how many times the releases have to be repeated before the claim for one of them is
    seen to be too small.
    """

    profile: PrivacyProfile
    ways: list
    slack: int = 2


def response(epsilon, delta=0.0):
    """Return randomised response: with probability delta the data set is told outright."""
    high = math.exp(epsilon) / (1 + math.exp(epsilon)) * (1 - delta)
    low = 1 / (1 + math.exp(epsilon)) * (1 - delta)
    return Pair([high, low, delta, 0.0], [low, high, 0.0, delta])


def _mixture(mus, weights, tail):
    parts = [shifted(mu, 2001) for mu in mus]
    first, second = (
        np.concatenate([w * getattr(part, side) for w, part in zip(weights, parts, strict=True)])
        for side in ("first", "second")
    )
    return Pair(np.append(first, [tail, 0.0]), np.append(second, [0.0, tail]))


def _sampled(mu, rate, blank):
    edges = np.linspace(-9, 9 + 2 * mu, 6001)
    weights = 1 - rate, rate
    if blank is None:  # without the record the batch is what the others make it
        return Pair(oracles.mixture(edges, (0, mu), weights), normal(edges))
    return Pair(
        oracles.mixture(edges, (0, 2 * mu), weights), oracles.mixture(edges, (0, mu), weights)
    )


def _stretched(ratio):
    """Return N(0, 1 + ratio) and N(0, 1): one row of a sketch with and without a record."""
    edges = np.concatenate([-np.geomspace(12, 1e-5, 1500), np.geomspace(1e-5, 12, 1500)])
    return Pair(normal(edges, 0.0, math.sqrt(1 + ratio)), normal(edges))


def best_of(law, cells):
    """Return the law of the best of a random number of runs with these cells, the last one best."""
    powers = [float(p) for p in itertools.islice(law.probabilities(), 400)]
    start = 0 if law.name == "poisson" else 1
    below = np.cumsum(cells)
    total = sum(p * below ** (k + start) for k, p in enumerate(powers))
    found = np.diff(total, prepend=powers[0] if start == 0 else 0.0)
    return np.append(found, powers[0]) if start == 0 else found


def _stopped(mu, law, sign):
    edges = np.linspace(-9, 9, 1501)
    return Pair(best_of(law, normal(edges, sign * mu)), best_of(law, normal(edges)))


def _examples():
    row = _stretched(0.5)
    laws = StoppingLaw("negative-binomial", 3.0, 0.0), StoppingLaw("poisson", 3.0)
    sampled = {
        "fixed": _sampled(0.9, 0.2, None),
        "poisson": _sampled(0.9, 0.2, None),
        BLANKED: _sampled(0.9, 0.2, 0),
    }
    found = {
        "gaussian": Example(GaussianProfile(0.7), [[shifted(0.7)]]),
        "gaussian-mixture": Example(
            MixtureProfile((0.0, 0.5, 1.2), (0.499, 0.3, 0.2), 0.001),
            [[_mixture((0.0, 0.5, 1.2), (0.499, 0.3, 0.2), 0.001)]],
        ),
        "pure": Example(PureProfile(0.6), [[response(0.6)]]),
        "approximate": Example(ApproximateProfile(0.4, 1e-3), [[response(0.4, 1e-3)]]),
        "objective-perturbation": Example(
            ObjectiveProfile(((0.6, 0.1),), "replace-one", 0.2), [[shifted(0.6), shifted(0.2)]], 8
        ),
        "gaussian-mixing": Example(MixingProfile(3, 0.5, "zero-out"), [[row] * 3]),
        "maximum": Example(
            MaximumProfile((GaussianProfile(0.5), PureProfile(0.6))),
            [[shifted(0.5)], [response(0.6)]],
        ),
        "composed": Example(
            ComposedProfile((GaussianProfile(0.4), PureProfile(0.3))),
            [[shifted(0.4), response(0.3)]],
        ),
    }
    for sampling, pair in sampled.items():
        profile = SampledGaussianProfile(0.9, 0.2, sampling, 3)
        found[f"sampled-gaussian, {sampling}"] = Example(profile, [[pair] * 3])
    for law in laws:
        ways = [[_stopped(0.3, law, sign)] for sign in (1, -1)]
        profile = StoppingProfile(GaussianProfile(0.3), law)
        found[f"random-stopping, {law.name}"] = Example(profile, ways, 60)
    return found


EXAMPLES = _examples()
