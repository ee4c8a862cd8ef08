"""Exact privacy of known pairs of output laws: lower bounds of the truth, never upper ones.

A pair of laws is two arrays of probabilities of the same cells of outputs. Merging outputs into
cells is post-processing, so the pair of arrays is at most as telling as the real outputs. Several
releases compose by the sum of their privacy losses; every loss is rounded down to a grid, which
keeps a lower bound. A claim that is exceeded by a number of this module is therefore wrong.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.signal import fftconvolve
from scipy.special import ndtr

EPSILONS = (-1.0, -0.3, 0.0, 0.1, 0.3, 0.7, 1.5, 3.0)


class Pair:
    """The laws of one release on two neighbouring data sets, over the same cells."""

    def __init__(self, first, second):
        self.first = np.maximum(np.ravel(first), 0.0)
        self.second = np.maximum(np.ravel(second), 0.0)

    @property
    def swapped(self):
        return Pair(self.second, self.first)

    def delta(self, epsilon):
        """Return sup P(S) - e^epsilon Q(S)."""
        return float(np.maximum(self.first - math.exp(epsilon) * self.second, 0.0).sum())

    @property
    def largest_loss(self):
        """The largest log P/Q over cells that are neither impossible nor lost in float noise."""
        seen = (self.first > 1e-280) & (self.second > 1e-280)
        alone = self.first[self.second <= 0].sum()
        if alone > 1e-12:
            return math.inf
        return float(np.log(self.first[seen] / self.second[seen]).max())


def composed(pairs, epsilons=EPSILONS, step=None):
    """Return delta at each epsilon of independent releases, rounded down; ``pairs`` may repeat."""
    counted = {}
    for pair in pairs:
        counted.setdefault(id(pair), [pair, 0])[1] += 1
    total = sum(count for _, count in counted.values())
    if total == 1:
        return [pairs[0].delta(e) for e in epsilons]
    step = step or min(_spread(pair) for pair, _ in counted.values()) / (50 * math.sqrt(total))
    first, masses, infinite = 0, np.ones(1), 0.0
    for pair, count in counted.values():
        one = _losses(pair, step)
        while count:
            if count & 1:
                first, masses, infinite = _sum((first, masses, infinite), one)
            count >>= 1
            if count:
                one = _sum(one, one)
    losses = step * (first + np.arange(len(masses)))
    return [
        infinite
        + float(np.maximum(-np.expm1(np.minimum(e - losses, 1.0)), 0.0) @ masses)
        - 1e-14 * total
        for e in epsilons
    ]


def _spread(pair):
    """Return the standard deviation of the loss, but no less than a millionth of its range."""
    seen = (pair.first > 1e-18) & (pair.second > 0)
    losses, weights = np.log(pair.first[seen] / pair.second[seen]), pair.first[seen]
    middle = np.average(losses, weights=weights)
    spread = math.sqrt(np.average((losses - middle) ** 2, weights=weights))
    return max(spread, np.ptp(losses) * 1e-4, 1e-9)


def _losses(pair, step):
    """Return (first index, masses, infinite mass) of the losses, rounded down."""
    p, q = pair.first, pair.second
    infinite = float(p[(q <= 0)].sum())
    seen = (p > 1e-18) & (q > 0)  # what is left out only lowers delta
    places = np.floor(np.log(p[seen] / q[seen]) / step)
    mass = p[seen]
    # far below: dropped; far above: moved down to the highest place that is kept
    keep = places > -60 / step
    places, mass = np.minimum(places[keep], 60 / step).astype(np.int64), mass[keep]
    first = int(places.min())
    return first, np.bincount(places - first, weights=mass), infinite


def _sum(one, other):
    masses = np.maximum(fftconvolve(one[1], other[1]), 0.0)
    kept = np.flatnonzero(masses > 1e-18)  # what is dropped only lowers delta
    low, high = kept[0], kept[-1] + 1
    return one[0] + other[0] + int(low), masses[low:high], 1 - (1 - one[2]) * (1 - other[2])


def claims(profile, epsilons=EPSILONS):
    """Return the claimed deltas by epsilon, which take longer than the true ones."""
    return {epsilon: profile.delta(epsilon) for epsilon in epsilons}


def ratio(claimed, pairs):
    """Return the largest ratio of true to claimed delta, both directions, of releases in a row.

    Below epsilon = 0 what exceeds 1 - e^epsilon counts, which equal laws have as well. ``claimed`` is a
    profile or what ``claims`` made of it.
    """
    claimed = claimed if isinstance(claimed, dict) else claims(claimed)
    worst = 0.0
    for found in (composed(pairs, list(claimed)), composed(_swapped(pairs), list(claimed))):
        for (epsilon, delta), true in zip(claimed.items(), found, strict=True):
            least = -math.expm1(min(epsilon, 0.0))
            if true - least > 1e-11:  # below it sums of floats say nothing
                worst = max(worst, (true - least) / max(delta - least, 1e-300))
    return worst


def _swapped(pairs):
    known = {id(pair): pair.swapped for pair in pairs}
    return [known[id(pair)] for pair in pairs]


def loss_ratio(profile, pairs):
    """Return the largest ratio of privacy loss to the epsilon of a pure profile."""
    totals = (
        sum(pair.largest_loss for pair in pairs),
        sum(pair.swapped.largest_loss for pair in pairs),
    )
    return max(totals) / profile.epsilon(0.0)


# --- laws over cells --------------------------------------------------------------------------


def normal(edges, mean=0.0, sigma=1.0):
    """Return the probabilities of the cells between edges, with those outside at both ends."""
    z = (np.asarray(edges) - mean) / sigma
    upper = np.concatenate([ndtr(z), [1.0]])
    lower = np.concatenate([[0.0], ndtr(z)])
    # differences of small numbers in either tail
    mirrored = np.concatenate([[1.0], ndtr(-z)]) - np.concatenate([ndtr(-z), [0.0]])
    return np.where(np.concatenate([z, [np.inf]]) > 0, mirrored, upper - lower)


def double_exponential(edges, mean, scale):
    """Return the cells of the density e^(-|x - mean|/scale) / (2 scale), exact in both tails."""
    z = (np.asarray(edges) - mean) / scale
    below = np.where(z < 0, np.exp(-np.abs(z)) / 2, 1 - np.exp(-np.abs(z)) / 2)
    above = np.where(z > 0, np.exp(-np.abs(z)) / 2, 1 - np.exp(-np.abs(z)) / 2)
    lower = np.diff(below, prepend=0.0, append=1.0)
    upper = -np.diff(above, prepend=1.0, append=0.0)
    return np.where(np.append(z, np.inf) > 0, upper, lower)


def mixture(edges, means, weights, sigma=1.0):
    """Return the cells of a mixture of normals with one sigma."""
    return sum(w * normal(edges, m, sigma) for m, w in zip(means, weights, strict=True))


def shifted(shift, cells=4001):
    """Return the pair of N(0, 1) and N(shift, 1)."""
    edges = np.linspace(-9 - abs(shift), 9 + abs(shift), cells)
    return Pair(normal(edges), normal(edges, shift))


def discrete_gaussian(places, centre, scale):
    """Return the probabilities of integers under a discrete Gaussian around a centre."""
    weights = np.exp(-(((places - centre) / scale) ** 2) / 2)
    return weights / weights.sum()


def discrete_laplace(places, centre, scale):
    """Return the probabilities of integers under a discrete Laplace law around a centre."""
    weights = np.exp(-np.abs(places - centre) / scale)
    return weights / weights.sum()
