"""Worst-pair searches for every mechanism, relation and option; the other records are free too.

A *cell* is a mechanism with its options under one relation, and a search over neighbouring data
sets. The search releases through the real ``release`` with a source that hands out chosen noise and
writes down which noise was asked for: so it knows the exact law of the output, and compares it with
the claimed profile. What it finds is a lower bound of the truth (see ``oracles``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from unittest import mock

import numpy as np
from scipy.linalg import eigh
from scipy.special import log_softmax, ndtr

from dpkernel.foundations.entropy import SeededEntropy
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.models import kernels
from dpkernel.models.losses import Huber, Logistic
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import (
    IDEALISED,
    Exponential,
    FunctionalGaussian,
    Gaussian,
    GaussianMixing,
    HeldOutChoice,
    L2Gamma,
    Laplace,
    MixtureGaussian,
    NoisyFunction,
    ObjectivePerturbation,
    PureObjectivePerturbation,
    RandomStopping,
    SampledGaussian,
    SymmetricGaussian,
    functional,
)
from dpkernel.privacy.mechanisms.selection import Line
from dpkernel.privacy.noise import NoiseSource, Part, Plan
from dpkernel.privacy.profiles import PureProfile, StoppingLaw
from dpkernel.privacy.sensitivity import RandomSensitivity, bounded_sum, declared, loss_gradient
from oracles import (
    Pair,
    claims,
    discrete_gaussian,
    discrete_laplace,
    double_exponential,
    loss_ratio,
    normal,
    ratio,
    shifted,
)

REPLACE, ZERO, ADD = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT, Neighbours.ADD_REMOVE
ACCEPT = (IDEALISED,)
APART = Pair([1.0, 0.0], [0.0, 1.0])  # outputs that can't be confused


@dataclass
class Cell:
    """A mechanism, and a search for the data on which its claim is nearest to broken.

    ``search(mechanism, relation)`` yields what it found: a list of independent pairs of laws, or a
    privacy loss that one output reaches. ``options`` are those of ``calibrate`` or ``build``.
    """

    mechanism: object
    search: Callable
    options: dict = field(default_factory=dict)
    draws: int = 1

    def ratio(self, used=None, relation=None):
        """Return the largest ratio of truth to claim; ``used`` releases in place of the mechanism."""
        used = self.mechanism if used is None else used
        relation = self.mechanism.sensitivity.neighbours if relation is None else relation
        one, every = self.mechanism.profile(), list(self.search(used, relation))
        profile, worst = one.repeat(self.draws), 0.0
        for loss in (found for found in every if isinstance(found, float)):
            worst = max(worst, loss * self.draws / profile.epsilon(0.0))
        laws = [found for found in every if not isinstance(found, float)]
        if isinstance(one, PureProfile):
            worst = max([worst, *(loss_ratio(profile, found * self.draws) for found in laws)])
        claimed = claims(profile)
        for found in _most_telling(laws):
            worst = max(worst, ratio(claimed, found * self.draws))
        return worst


def _most_telling(laws, keep=3):
    """Return the pairs that tell most at a small and at a large epsilon, by a quick sum over parts."""
    kept = {}
    for epsilon in (0.0, 0.5, 1.5):

        def score(found, epsilon=epsilon):
            return -sum(max(p.delta(epsilon), p.swapped.delta(epsilon)) for p in found)

        for found in sorted(laws, key=score)[:keep]:
            kept[id(found)] = found
    return list(kept.values())


class Probe(NoiseSource):
    """Hands out the entries of ``vector`` as noise, zeros without one, and notes what was asked for."""

    def __init__(self):
        super().__init__(SeededEntropy(0))
        self.restart()

    def restart(self, vector=None, batch=None):
        self.vector, self.batch, self.asked, self.used = vector, batch, [], 0

    def _next(self, kind, scale, size):
        self.asked.append((kind, scale, size))
        first, self.used = self.used, self.used + size
        return np.zeros(size) if self.vector is None else self.vector[first : first + size]

    def discrete_gaussian(self, scale, size):
        return self._next("gaussian", scale, size).astype(np.int64)

    def discrete_laplace(self, scale, size):
        return self._next("laplace", scale, size).astype(np.int64)

    def l2_gamma(self, dimension, scale):
        return self._next("gamma", scale, dimension)

    def words(self, count):
        first, self.used = self.used, self.used + count
        self.asked.append(("normal", 1.0, count))
        return np.arange(first, first + count)

    def normals_of(self, words):
        return np.zeros(len(words)) if self.vector is None else self.vector[words]

    def categorical(self, utilities, rate):
        self.asked.append(("categorical", rate, tuple(utilities)))
        return 0

    def subset(self, n, size):
        assert len(self.batch) == size
        self.asked.append(("subset", n, size))
        return self.batch

    def poisson_subset(self, n, rate):
        self.asked.append(("poisson", n, rate))
        return self.batch


def noise_of(mechanism, probe):
    """Return as much noise of the probe as any search asks for."""
    ledger = Ledger(neighbours=mechanism.sensitivity.neighbours)
    part = Part("cell", mechanism.profile(), draws=100_000)
    return ledger.spend(Plan((part,), nothing_proved=True), "cell", noise=probe)


class Additive:
    """The law of what ``release`` returns, where that is a linear function of independent noise."""

    def __init__(self, mechanism, value, unit=1.0):
        self.mechanism, self.probe = mechanism, Probe()
        self.noise = noise_of(mechanism, self.probe)
        self.centre(value)
        self.asked = self.probe.asked
        count, middle = self.probe.used, self.centre(value)
        columns = [self.centre(value, unit * np.eye(1, count, i)[0]) - middle for i in range(count)]
        self.columns = np.array(columns).T / unit

    def centre(self, value, vector=None):
        self.probe.restart(vector)
        return np.ravel(self.mechanism.release(value, self.noise)).astype(float)

    def shift(self, one, other):
        """Return how far the noise has to move to give one value in place of the other, in steps.

        None if no noise does: then the outputs can't be confused.
        """
        moved = self.centre(one)
        same = self.probe.asked == self.asked
        moved = self.centre(other) - moved
        found = np.linalg.lstsq(self.columns, moved, rcond=None)[0]
        missed = np.abs(self.columns @ found - moved).max()
        fine = same and self.probe.asked == self.asked
        return found if fine and missed <= 1e-9 * (1 + np.abs(moved).max()) else None

    def worst(self, values, keep=2):
        """Yield the pairs of laws of those values that are furthest apart, one per coordinate."""
        kinds = [(kind, scale) for kind, scale, size in self.asked for _ in range(size)]
        shifts = [self.shift(one, other) for one, other in values]
        if any(shift is None for shift in shifts):
            yield [APART]
            return
        scales = np.array([scale for _, scale in kinds])
        order = 1 if kinds[0][0] == "laplace" else 2
        shifts.sort(key=lambda t: -np.linalg.norm(t / scales, order))
        for shift in shifts[:keep]:
            rows = zip(kinds, shift, strict=True)
            yield [_shifted(*kind, t) for kind, t in rows if abs(t) > 1e-9] or [Pair([1.0], [1.0])]

    def furthest(self, values):
        """Return the largest norm of a shift in units of the noise: l1 for Laplace noise, else l2."""
        scales = np.array([scale for _, scale, size in self.asked for _ in range(size)])
        order = 1 if self.asked[0][0] == "laplace" else 2
        shifts = [self.shift(one, other) for one, other in values]
        return max(math.inf if t is None else np.linalg.norm(t / scales, order) for t in shifts)


def _shifted(kind, scale, t):
    if kind == "normal":
        return shifted(t)
    if kind == "gamma":  # one-dimensional
        edges = scale * np.linspace(-40, 40, 4001) + t / 2
        return Pair(double_exponential(edges, 0.0, scale), double_exponential(edges, t, scale))
    if abs(t - round(t)) > 1e-6:
        return APART
    law = discrete_gaussian if kind == "gaussian" else discrete_laplace
    far = math.ceil((9 if kind == "gaussian" else 40) * scale + abs(t))
    places = np.arange(-far, far + 1)
    return Pair(law(places, 0, scale), law(places, round(t), scale))


# --- neighbouring data sets -------------------------------------------------------------------


def backgrounds(record, rng, count=3):
    """Yield the other records: none, blank, the same, the opposite, mixed, and anywhere."""
    record = np.asarray(record, dtype=float)
    yield np.zeros((0, *record.shape))
    yield np.zeros((count, *record.shape))
    yield np.stack([record] * count)
    yield np.stack([-record] * count)
    yield np.stack([record, -record, 0 * record])
    size = max(float(np.linalg.norm(record)), 1e-300)
    free = rng.normal(size=(count, *record.shape))
    yield size * free / np.linalg.norm(free.reshape(count, -1), axis=1).max()


def directions(dimension, rng):
    """Yield unit vectors: axes, diagonals, anything."""
    yield from np.eye(dimension)[:2]
    yield -np.ones(dimension) / math.sqrt(dimension)
    for _ in range(2):
        free = rng.normal(size=dimension)
        yield free / np.linalg.norm(free)


def others_of(record, relation):
    """Yield what may stand in place of a record: the opposite, one at a right angle, or a blank."""
    if relation is REPLACE:
        yield -record
        yield 0 * record
        yield np.roll(record, 1) * np.where(np.arange(len(record)) % 2, 1.0, -1.0)
    else:
        yield 0 * record


def sums(relation, dimension, rng, *, bound=1.0, rounding=0.0, grid=0.0, l1=False, whole=False):
    """Yield the computed sums over two neighbouring data sets.

    Errors of computation go the worst way; the others put the sum anywhere between grid points.
    """
    for direction in directions(dimension, rng):
        if l1:
            direction = direction / np.abs(direction).sum()
        record = direction * bound
        if whole:
            record = np.trunc(record)
        for other in others_of(record, relation):
            apart = record - other
            norm = np.abs(apart).sum() if l1 else np.linalg.norm(apart)
            error = rounding * apart / norm
            for rest in backgrounds(record, rng):
                base = np.zeros(dimension) if whole else grid * rng.uniform(-1, 1, dimension)
                base = base + (0 if whole else rest.sum(axis=0))
                # just above and just below the middle between two points of the grid
                edge = grid * 0.5 - base % grid if grid and not whole else 0.0
                tip = np.sign(apart) * (1e-9 * grid)
                for at in (base, base + edge):
                    one, two = at + record + error + tip, at + other - error - tip
                    yield (
                        (np.rint(one).astype(np.int64), np.rint(two).astype(np.int64))
                        if whole
                        else (one, two)
                    )


def _vector_search(**options):
    def search(mechanism, relation):
        rng = np.random.default_rng(5)
        law = Additive(mechanism, _zeros(mechanism))
        chosen = {"grid": mechanism.grid, "rounding": mechanism.rounding, **options}
        chosen["whole"] = getattr(mechanism, "integer", False)
        yield from law.worst(sums(relation, mechanism.dimension, rng, **chosen))

    return search


def _zeros(mechanism):
    whole = getattr(mechanism, "integer", False)
    return np.zeros(mechanism.dimension, np.int64 if whole else np.float64)


# --- the cells of each mechanism --------------------------------------------------------------


def gaussian(relation):
    """Coarse grids, so that rounding to them counts; and what ``calibrate`` makes of a budget."""
    moved = bounded_sum(relation, bound=1.0)
    for dimension, rounding, grid in ((1, 0.0, 2.0**-5), (2, 0.2, 2.0**-4), (3, 0.05, 2.0**-6)):
        found = Gaussian(moved, dimension, 1.5 / grid, grid, rounding)
        yield Cell(found, _vector_search(), draws=2 if dimension == 1 else 1)
    whole = bounded_sum(relation, bound=16.0)
    for dimension in (1, 2):
        yield Cell(Gaussian(whole, dimension, 25.0, integer=True), _vector_search(bound=16.0))
    for magnitude in (None, 1e12):
        options = {"dimension": 2, "rounding": 0.1, "magnitude": magnitude}
        options |= {"integer": False}
        found = Gaussian.calibrate(moved, Budget(2.0, 1e-3), **options)
        yield Cell(found, _wide_search, options)


def _wide_search(mechanism, relation):
    """Compare noise of millions of grid steps in units of its own deviation."""
    law = Additive(mechanism, _zeros(mechanism))
    options = {"grid": mechanism.grid, "rounding": mechanism.rounding}
    values = sums(relation, mechanism.dimension, np.random.default_rng(5), **options)
    yield [shifted(float(law.furthest(values)))]


def _gram_search(mechanism, relation):
    side = mechanism.dimension
    law = Additive(mechanism, np.zeros((side, side), np.int64 if mechanism.integer else float))
    if mechanism.sigma > 1e4:
        yield [shifted(float(law.furthest(_grams(mechanism, relation))))]
        return
    yield from law.worst(_grams(mechanism, relation))


def _grams(mechanism, relation):
    """Yield sums of outer products of rows of norm at most one, computed as badly as allowed."""
    rng = np.random.default_rng(6)
    side, step = mechanism.dimension, mechanism.grid
    unit = 16.0 if mechanism.integer else 1.0  # 16 = 4^2: integer rows of norm at most 4
    for direction in directions(side, rng):
        row = math.sqrt(unit) * direction
        for other in others_of(row, relation):
            for rest in backgrounds(row, rng):
                tables = [np.vstack([rest, [own]]) for own in (row, other)]
                if mechanism.integer:
                    tables = [np.trunc(table + 1e-9 * np.sign(table)) for table in tables]
                one, two = (table.T @ table for table in tables)
                apart = one - two
                error = mechanism.rounding * apart / max(np.linalg.norm(apart), 1e-300)
                edge = 0.0 if mechanism.integer else 0.5 * step - two % step
                one, two = one + error + edge, two - error + edge
                if mechanism.integer:
                    one, two = (np.rint(value).astype(np.int64) for value in (one, two))
                yield one, two


def symmetric_gaussian(relation):
    """Gram matrices; under replace-one two rows at a right angle are the worst."""
    factor = math.sqrt(2) if relation is REPLACE else 1.0
    for side, rounding, grid in ((1, 0.0, 2.0**-5), (2, 0.1, 2.0**-5), (3, 0.0, 2.0**-6)):
        moved = declared(factor * (1 + 1e-15), relation)
        yield Cell(SymmetricGaussian(moved, side, 1.5 / grid, grid, rounding), _gram_search)
    moved = declared(16 * factor * (1 + 1e-15), relation)
    for draws in (1, 3):
        yield Cell(SymmetricGaussian(moved, 2, 25.0, integer=True), _gram_search, draws=draws)
    for magnitude in (None, 1e12):
        options = {"dimension": 2, "rounding": 0.0, "magnitude": magnitude, "integer": False}
        moved = declared(factor * (1 + 1e-15), relation)
        found = SymmetricGaussian.calibrate(moved, Budget(2.0, 1e-3), **options)
        yield Cell(found, _gram_search, options)


def _hits_search(mechanism, relation):
    """The value is a background that may tell the hits, plus the record as often as it is hit."""
    rng = np.random.default_rng(7)
    law = mechanism.sensitivity
    probe = Probe()
    noise = noise_of(mechanism, probe)
    d, grid = mechanism.dimension, mechanism.grid
    hits = np.array(law.values) / (2 if law.neighbours is REPLACE else 1)

    def centres(record):
        found = []
        for i, times in enumerate(hits):
            value = backs[i] + times * record
            value = np.rint(value).astype(np.int64) if mechanism.integer else value
            probe.restart()
            found.append(np.rint(mechanism.release(lambda _, v=value: v, noise) / grid))
        return np.array(found)

    for direction in directions(d, rng):
        for other in others_of(direction, relation):
            for far in (0.0, 9.0, -3.0):
                backs = far * mechanism.sigma * grid * np.arange(len(hits))[:, None] * np.ones(d)
                error = mechanism.rounding * (direction - other) / np.linalg.norm(direction - other)
                backs = backs + error
                one = centres(direction)
                backs = backs - 2 * error
                two = centres(other)
                yield [_mixtures(one, two, law.probabilities, probe.asked[0][1])]


def _mixtures(one, two, weights, scale):
    """Return the pair of mixtures of discrete Gaussians with these centres, one or two-dimensional."""
    every = np.concatenate([one, two])
    axes = [
        np.arange(math.floor(low - 8 * scale), math.ceil(high + 8 * scale) + 1)
        for low, high in zip(every.min(axis=0), every.max(axis=0), strict=True)
    ]
    laws = []
    for centres in (one, two):
        total = 0.0
        for centre, weight in zip(centres, weights, strict=True):
            parts = [discrete_gaussian(a, c, scale) for a, c in zip(axes, centre, strict=True)]
            total = total + weight * (parts[0] if len(parts) == 1 else np.outer(*parts))
        laws.append(total)
    return Pair(*laws)


def mixture_gaussian(relation):
    law = RandomSensitivity(relation, (0.0, 0.5, 1.0), (0.3, 0.5, 0.2))
    yield Cell(MixtureGaussian(law, 1, 30.0, 2.0**-5, 0.1), _hits_search, draws=2)
    yield Cell(MixtureGaussian(law, 2, 8.0, 2.0**-3), _hits_search)
    whole = RandomSensitivity(relation, (0.0, 16.0, 32.0), (0.6, 0.3, 0.1))
    yield Cell(MixtureGaussian(whole, 1, 25.0, integer=True), _hits_search)
    options = {"dimension": 1, "rounding": 0.0, "integer": True, "magnitude": None}
    found = MixtureGaussian.calibrate(whole, Budget(1.5, 1e-3), **options)
    yield Cell(found, _hits_search, options)
    options = {"dimension": 1, "rounding": 0.1, "integer": False, "magnitude": 1e13}
    found = MixtureGaussian.calibrate(law, Budget(1.5, 1e-3), **options)
    yield Cell(found, _scaled_hits, options)


def _scaled_hits(mechanism, relation):
    """The same where a deviation is many steps: the grid of outputs is merged."""
    law = mechanism.sensitivity
    deviation = mechanism.noise_scale
    far = 12.0 * np.arange(len(law.values))
    factor = 2.0 if relation is REPLACE and law.neighbours is not REPLACE else 1.0
    probe = Probe()
    noise = noise_of(mechanism, probe)
    sides = []
    for sign in (0.5, -0.5):
        centres = []
        for back, value in zip(far, law.values, strict=True):
            own = back * deviation + sign * (value * factor + 2 * mechanism.rounding)
            probe.restart()
            centres.append(mechanism.release(lambda _, v=own: np.array([v]), noise)[0] / deviation)
        sides.append(centres)
    spread = probe.asked[0][1] * mechanism.grid / deviation
    edges = np.linspace(-12, 40, 8001)
    weights = law.probabilities
    laws = [
        sum(w * normal(edges, c, spread) for w, c in zip(weights, side, strict=True))
        for side in sides
    ]
    yield [Pair(*laws)]


def _batch_search(mechanism, relation):
    """Every batch is enumerated; the others sit at the corners, are blank or anywhere."""
    rng = np.random.default_rng(8)
    n, d = mechanism.n_rows, mechanism.dimension
    bound = mechanism.sensitivity.parameters[0][1]
    probe = Probe()
    noise = noise_of(mechanism, probe)
    if mechanism.sampling == "fixed":
        batches = list(itertools.combinations(range(n), int(mechanism.batch)))
        weights = np.full(len(batches), 1 / len(batches))
    else:
        sizes = range(n + 1)
        batches = [b for size in sizes for b in itertools.combinations(range(n), size)]
        weights = [mechanism.rate ** len(b) * (1 - mechanism.rate) ** (n - len(b)) for b in batches]
    if mechanism.rate == 1:
        batches, weights = [tuple(range(n))], [1.0]

    def centres(table):
        found = []
        for batch in batches:
            probe.restart(batch=np.array(batch, dtype=np.int64))
            found.append(mechanism.release(lambda rows: table[rows].sum(axis=0), noise))
        return np.array(found)

    axes = list(np.eye(d)[:1]) + ([np.ones(d) / math.sqrt(d)] if d > 1 else [])
    for direction in axes:
        record = np.trunc(bound * direction)
        for other in others_of(record, relation):
            for rest in backgrounds(record, rng, n - 1):
                if len(rest) != n - 1:
                    rest = np.resize(rest, (n - 1, d)) if len(rest) else np.zeros((n - 1, d))
                tables = [
                    np.vstack([[own], np.trunc(rest)]).astype(np.int64) for own in (record, other)
                ]
                one, two = (centres(table) for table in tables)
                scale = probe.asked[-1][1]
                yield [_mixtures(one, two, weights, scale)]


def sampled_gaussian(relation):
    samplings = {REPLACE: ("fixed",), ZERO: ("fixed", "poisson")}.get(relation, ("fixed",))
    for sampling in samplings:
        for n, batch, bound, sigma, d, draws in (
            (2, 1, 24, 20.0, 1, 1),
            (4, 2, 24, 30.0, 1, 3),
            (6, 1, 24, 15.0, 1, 20),
            (3, 3, 24, 30.0, 1, 2),
            (3, 1, 6, 6.0, 2, 1),
            (3, 1, 40, 12.0, 1, 1),  # much less noise than a record: mu above 3
        ):
            moved = bounded_sum(relation, bound=bound)
            found = SampledGaussian(moved, d, sigma, n, batch, sampling)
            yield Cell(found, _batch_search, draws=draws)
        for steps in (1, 5):
            options = {"dimension": 1, "n_rows": 3, "batch": 1, "sampling": sampling}
            options |= {"steps": steps}
            moved = bounded_sum(relation, bound=16.0)
            found = SampledGaussian.calibrate(moved, Budget(1.0, 1e-2), **options)
            yield Cell(found, _batch_search, options, draws=steps)


def laplace(relation):
    moved = declared(2.0 if relation is REPLACE else 1.0, relation, "l1")
    search = _vector_search(l1=True)
    yield Cell(Laplace(moved, 1, 24.0, 2.0**-4), search)
    yield Cell(Laplace(moved, 1, 24.0, 2.0**-4, 0.2), search, draws=2)
    yield Cell(Laplace(moved, 2, 40.0, 2.0**-5, 0.05), search)
    for magnitude in (None, 1e13):
        options = {"dimension": 2, "rounding": 0.1, "magnitude": magnitude}
        found = Laplace.calibrate(moved, Budget(1.0), **options)
        yield Cell(found, _laplace_losses, options)


def _laplace_losses(mechanism, relation):
    """The largest loss is the l1 distance in steps over the scale, at an output far away."""
    law = Additive(mechanism, _zeros(mechanism))
    options = {"grid": mechanism.grid, "rounding": mechanism.rounding, "l1": True}
    values = sums(relation, mechanism.dimension, np.random.default_rng(5), **options)
    yield float(law.furthest(values))


def l2_gamma(relation):
    moved = bounded_sum(relation, bound=1.0)
    for dimension in (1, 2, 5):
        options = {"dimension": dimension, "accept": ACCEPT}
        found = L2Gamma.calibrate(moved, Budget(1.5), **options)
        yield Cell(found, _norm_losses, options, draws=2 if dimension == 1 else 1)
    yield Cell(L2Gamma(moved, 1, 1.0, 2.0**-10, ACCEPT), _norm_losses)


def _norm_losses(mechanism, relation):
    """Density e^(-norm/scale): the largest loss is the distance over the scale."""
    rng = np.random.default_rng(5)
    law = Additive(mechanism, np.zeros(mechanism.dimension), unit=2.0**10)
    scale = law.asked[0][1]
    # rounding to the grid comes after the noise: it is no part of the shift
    shifts = [two - one for one, two in sums(relation, mechanism.dimension, rng)]
    far = max(float(np.linalg.norm(shift)) for shift in shifts)
    yield far / scale / float(np.linalg.norm(law.columns[:, 0]))
    if mechanism.dimension == 1:
        yield [_shifted("gamma", scale, far)]


def functional_gaussian(relation):
    moved = bounded_sum(relation, bound=1.0)
    for dimension in (1, 3):
        options = {"dimension": dimension, "accept": ACCEPT}
        found = FunctionalGaussian.calibrate(moved, Budget(1.5, 1e-3), **options)
        yield Cell(found, _coordinates, options, draws=dimension)
        yield Cell(found, _answers, options)
    yield Cell(FunctionalGaussian(moved, 2, 0.7, ACCEPT), _coordinates)


def _coordinates(mechanism, relation):
    rng = np.random.default_rng(9)
    probe = Probe()
    noise = noise_of(mechanism, probe)
    unit = 2.0**10

    def release(value, vector):
        def chosen(key, label, count):
            return unit * vector

        with mock.patch.object(functional, "keyed_normals", chosen):
            return mechanism.release(value, noise)

    d = mechanism.dimension
    middle = release(np.zeros(d), np.zeros(d))
    columns = np.array([release(np.zeros(d), e) - middle for e in np.eye(d)]).T / unit
    for one, two in sums(relation, d, rng):
        moved = two - one
        yield [shifted(float(np.linalg.norm(np.linalg.solve(columns, moved))))]


def _answers(mechanism, relation):
    """Functions of the kernel's space at most the sensitivity apart, asked at points near and far."""
    rng = np.random.default_rng(10)
    kernel, unit = kernels.GaussianKernel(1.0), 2.0**20
    bound = 2.0 if relation is REPLACE else 1.0
    for centres in (np.zeros((1, 1)), np.array([[0.0], [0.3]]), rng.normal(size=(4, 1))):
        weights = rng.normal(size=len(centres)) if len(centres) > 1 else np.ones(1)
        gram = kernel(centres)
        weights = weights * bound / math.sqrt(weights @ gram @ weights)
        points = np.concatenate([centres, centres + 0.7])[: mechanism.dimension]

        def answers(function, vector, points=points):
            drawn = iter(vector)

            def chosen(key, label, count):
                return np.array([next(drawn)])

            with mock.patch.object(functional, "keyed_normals", chosen):
                noisy = NoisyFunction(function, kernel, mechanism, b"key")
                return np.array([noisy.answer(point)[0] for point in points])

        count = len(points)
        zero = answers(lambda x: np.zeros(len(x)), np.zeros(count))
        moved = kernel(points, centres) @ weights
        assert np.allclose(
            answers(lambda x, c=centres, w=weights: kernel(x, c) @ w, np.zeros(count)),
            moved,
            atol=1e-6,
        )
        columns = [answers(lambda x: np.zeros(len(x)), unit * e) - zero for e in np.eye(count)]
        found = np.linalg.solve(np.array(columns).T / unit, moved)
        yield [shifted(float(np.linalg.norm(found)))]


def exponential(relation):
    for monotone in (False, True) if relation is not REPLACE else (False,):
        for candidates, rounding in ((2, 0.0), (2, 0.3), (7, 0.1)):
            moved = declared(1.0, relation, "score")
            yield Cell(Exponential(moved, 0.8, candidates, monotone, rounding), _choices)
            options = {"candidates": candidates, "monotone": monotone, "rounding": rounding}
            found = Exponential.calibrate(moved, Budget(1.2), **options)
            yield Cell(found, _choices, options, draws=2)


def _choices(mechanism, relation):
    """A record adds up to 1 to each utility: all of one sign if monotone; errors go the worst way."""
    rng = np.random.default_rng(11)
    k = mechanism.candidates
    probe = Probe()
    noise = noise_of(mechanism, probe)

    def law(utilities):
        probe.restart()
        mechanism.release(utilities, noise)
        _, rate, asked = probe.asked[-1]
        return np.exp(log_softmax(rate * np.array(asked)))

    first = np.eye(k)[0]
    low = 0.0 if mechanism.monotone else -1.0
    # replaced: utilities move by at most 1 in all, half of it by either record
    share = 0.5 if mechanism.sensitivity.neighbours is REPLACE else 1.0
    records = [
        first + low * (1 - first),
        low * first + (1 - first),
        np.ones(k),
        rng.uniform(low, 1, k),
    ]
    for record in records:
        for other in (-record, 0 * record) if relation is REPLACE else (0 * record,):
            for rest in (0 * first, -8 * first, 8 * first, rng.normal(size=k), 50 * record):
                for error in (2 * first - 1, 1 - 2 * first, rng.uniform(-1, 1, k)):
                    one = rest + share * record + mechanism.rounding * error
                    two = rest + share * other - mechanism.rounding * error
                    yield [Pair(law(one), law(two))]


def gaussian_mixing(relation):
    moved = declared(1.0, relation)
    for rows, d, sigma in ((1, 1, 1.0), (3, 1, 2.0), (2, 2, 1.5), (1, 4, 1.2), (1, 5, 3.0)):
        found = GaussianMixing(moved, rows, d, sigma, 2.0**-30, ACCEPT)
        yield Cell(found, _sketches, draws=2 if d == 2 else 1)
    options = {"rows": 2, "dimension": 2, "accept": ACCEPT}
    found = GaussianMixing.calibrate(moved, Budget(2.0, 1e-2), **options)
    yield Cell(found, _sketches, options)


def _sketches(mechanism, relation):
    rng = np.random.default_rng(12)
    d, unit = mechanism.dimension, 2.0**20
    probe = Probe()
    noise = noise_of(mechanism, probe)

    def covariance(table):
        def sketch(vector):
            probe.restart(vector)
            return np.ravel(mechanism.release(table, noise))

        sketch(None)
        count = probe.used
        columns = np.array([sketch(unit * e) for e in np.eye(count)]) / unit
        return columns.T @ columns

    for direction in directions(d, rng):
        for other in others_of(direction, relation):
            for rest in backgrounds(direction, rng, 2):
                tables = [np.vstack([rest, [own]]) for own in (direction, other)]
                if relation is ADD:
                    tables[1] = tables[1][:-1]
                one, two = (covariance(table * 1.5) for table in tables)  # 1.5: it clips
                values = eigh(one, two, eigvals_only=True)
                known, found = {}, []
                for value in values:
                    if abs(value - 1) < 1e-9:
                        continue
                    key = round(math.log(value), 7)
                    found.append(known.setdefault(key, _stretched(float(value))))
                yield found or [Pair([1.0], [1.0])]


def _stretched(value):
    """Return the pair of N(0, value) and N(0, 1)."""
    top = 9 * max(1.0, math.sqrt(value))
    half = np.concatenate([np.geomspace(1e-6, 0.1, 200)[:-1], np.linspace(0.1, top, 2000)])
    edges = np.concatenate([-half[::-1], half])
    return Pair(normal(edges, 0.0, math.sqrt(value)), normal(edges))


# --- objective perturbation -------------------------------------------------------------------


def objective_perturbation(relation):
    """A tolerance as large as a tenth of the noise, so that the noise on the solution matters."""
    for loss, x, d in (
        (Huber(1.0), 0.5, 1),
        (Huber(0.05), 0.1, 1),  # targets far away: every slope is as large as it may be
        (Logistic(), 0.2, 1),
        (Logistic(), 0.3, 2),
    ):
        gradient = loss_gradient(relation, slope=loss.lipschitz, row=1.0)
        curvature = loss.smoothness
        options = {
            "dimension": d,
            "curvature": curvature,
            "ridge": curvature / x,
            "m": 0.8 if d == 1 else 1.1,
            "output_mu": 0.5 if d == 1 else 1e-3,
            "log_miss": -60.0 if d == 1 else -50.0,
            "error": lambda sigma, largest: 0.1 * sigma if d == 1 else 1e-4 * sigma,  # noqa: B023
        }
        found = ObjectivePerturbation.build(gradient, **options)
        search, draws = (_minimisers if d == 1 else _planes)(loss), 2 if x == 0.1 else 1
        yield Cell(found, search, options, draws)


def _tables(relation, rng, d):
    """Yield records of norm 1 (rows times label), one to be changed first, and what it becomes."""
    for direction in directions(d, rng):
        for other in others_of(direction, relation):
            for rest in backgrounds(direction, rng):
                yield np.vstack([[direction], rest]), np.vstack([[other], rest])


def _gradient(loss, rows, beta):
    """Return the derivative along a line of margins: sum_i loss'(1, r beta) r, and its derivative."""
    margins = np.outer(beta, rows)
    return loss.derivative(np.ones_like(margins), margins) @ rows


def _minimisers(loss):
    """One dimension: b = -F'(beta) is monotone, so cells of solutions are cells of b."""

    def search(mechanism, relation):
        rng = np.random.default_rng(13)
        probe = Probe()
        noise = noise_of(mechanism, probe)
        mechanism.release(lambda b: b, noise)
        (_, inner, _), (_, outer, _) = probe.asked
        sigma, step = inner * mechanism.grid, mechanism.output_grid
        reach = 12 * sigma / mechanism.ridge
        half = math.ceil((reach + 12 * outer * step) / step)
        merge = max(1, half // 3000)
        edges = step * (np.arange(-half, half + 1, merge) + 0.5)
        spread = np.arange(-math.ceil(9 * outer), math.ceil(9 * outer) + 1)
        smear = discrete_gaussian(spread, 0, outer) if merge == 1 else None
        for one, two in _tables(relation, rng, 1):
            laws = []
            for table, sign in ((one, 1.0), (two, -1.0)):
                rows = table[:, 0]
                off = sign * mechanism.error / (mechanism.ridge + mechanism.curvature * len(rows))
                at = edges - off  # what was computed is off by this
                slope = _gradient(loss, rows, at) + mechanism.ridge * at
                law = np.diff(ndtr(slope / sigma))
                if smear is not None:
                    law = np.convolve(law, smear)
                laws.append(law)
            yield [Pair(*laws)]

    return search


def _planes(loss):
    """Two dimensions, by quadrature of smooth densities; the solution is exact."""

    def search(mechanism, relation):
        rng = np.random.default_rng(14)
        probe = Probe()
        noise = noise_of(mechanism, probe)
        mechanism.release(lambda b: b, noise)
        sigma = probe.asked[0][1] * mechanism.grid
        reach = 7.5 * sigma / mechanism.ridge
        axis = np.linspace(-reach, reach, 301)
        beta = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
        cell = (axis[1] - axis[0]) ** 2

        def density(rows):
            margins = beta @ rows.T
            ones = np.ones_like(margins)
            slope = loss.derivative(ones, margins) @ rows + mechanism.ridge * beta
            bend = loss.curvature(ones, margins)
            hessian = np.einsum("bi,ij,ik->bjk", bend, rows, rows)
            volume = np.linalg.det(hessian + mechanism.ridge * np.eye(2))
            return np.exp(-(slope**2).sum(1) / 2 / sigma**2) / (2 * math.pi * sigma**2) * volume

        for one, two in itertools.islice(_tables(relation, rng, 2), 1, 12):
            yield [Pair(density(one) * cell * (1 - 1e-9), density(two) * cell)]

    return search


def pure_objective_perturbation(relation):
    for loss, share, d in ((Huber(1.0), 0.01, 1), (Logistic(), 0.2, 1), (Logistic(), 0.1, 2)):
        gradient = loss_gradient(relation, slope=loss.lipschitz, row=1.0)
        options = {
            "epsilon": 1.5,
            "dimension": d,
            "curvature": loss.smoothness,
            "ridge": 2.0 * loss.smoothness,
            "output_share": share,
            "error": lambda s, largest: 1e-3 * s,
        }
        settings = {k: v for k, v in options.items() if k != "epsilon"}
        found = PureObjectivePerturbation.build(gradient, 1.5, **settings)
        yield Cell(found, _pure_minimisers(loss), options, draws=2 if share == 0.2 else 1)


def _pure_minimisers(loss):
    """The log-ratio of densities e^(-||b||/s) |det F''| at many solutions, and the noise on them."""

    def search(mechanism, relation):
        rng = np.random.default_rng(15)
        d = mechanism.dimension
        probe = Probe()
        noise = noise_of(mechanism, probe)
        mechanism.release(lambda b: b, noise)
        (_, inner, _), (_, outer, _) = probe.asked
        off = 2 * mechanism.error / mechanism.ridge / outer
        beta = np.vstack(
            [
                np.zeros((1, d)),
                rng.normal(size=(300, d)) * 5 * inner / mechanism.ridge,
                rng.normal(size=(300, d)) * 1e-2,
            ]
        )

        def logs(rows):
            margins = beta @ rows.T
            ones = np.ones_like(margins)
            slope = loss.derivative(ones, margins) @ rows + mechanism.ridge * beta
            bend = np.einsum("bi,ij,ik->bjk", loss.curvature(ones, margins), rows, rows)
            volume = np.linalg.slogdet(bend + mechanism.ridge * np.eye(d))[1]
            return -np.linalg.norm(slope, axis=1) / inner + volume

        for one, two in _tables(relation, rng, d):
            yield float(np.abs(logs(one) - logs(two)).max() + off)

    return search


# --- procedures -------------------------------------------------------------------------------


def _fit(relation, mu, draws=1, folds=1):
    moved = bounded_sum(relation, bound=64.0)
    return (Line("fit", Gaussian(moved, 1, moved.value / mu, integer=True), draws, folds),)


def random_stopping(relation):
    folds = 1 if relation is ADD else 2
    score = _fit(relation, 0.4)[0].mechanism
    for law in (
        StoppingLaw("negative-binomial", 3.0, 0.0),
        StoppingLaw("negative-binomial", 5.0, 1.0),
        StoppingLaw("poisson", 4.0),
    ):
        for training, refit in (
            ((_fit(relation, 0.2),), ()),
            ((_fit(relation, 0.3, 4), _fit(relation, 0.1)), (_fit(relation, 0.5, 2, folds),)),
        ):
            found = RandomStopping(
                score.sensitivity, len(training), training, refit, score=score, law=law
            )
            yield Cell(found, _stopped)


def _stopped(mechanism, relation):
    """The best of a random number of runs; the record is in the score, or in all fits of a run.

    A run's output is one real number here, which is also its score: the worst that the order of the
    outputs can do is to tell the record from its absence.
    """
    factor = 2.0 if relation is REPLACE else 1.0

    def mu(line):
        probe = Probe()
        line.mechanism.release(np.zeros(1, np.int64), noise_of(line.mechanism, probe))
        return factor * 64.0 / probe.asked[0][1] * math.sqrt(line.draws)

    runs = [mu(Line("score", mechanism.score))]
    runs += [math.hypot(*(mu(line) for line in fit)) for fit in mechanism.training]
    again = max((math.hypot(*(mu(line) for line in fit)) for fit in mechanism.refit), default=0.0)
    powers = [float(p) for p in itertools.islice(mechanism.law.probabilities(), 400)]
    none = 1.0 - sum(powers) if mechanism.law.name == "negative-binomial" else 0.0
    start = 0 if mechanism.law.name == "poisson" else 1

    def best(cells):
        below = np.cumsum(cells)
        total = sum(p * below ** (k + start) for k, p in enumerate(powers)) + none
        return np.diff(total, prepend=powers[0] if start == 0 else 0.0)

    edges = np.linspace(-9, 9, 1201)
    for run in runs:
        for sign in (1, -1):
            pair = Pair(best(normal(edges, sign * run)), best(normal(edges)))
            yield [pair, shifted(again)] if again else [pair]


def held_out_choice(relation):
    moved = declared(1.0, relation, "score")
    for monotone in (False, True) if relation is not REPLACE else (False,):
        choice = Exponential(moved, 0.3, 2, monotone)
        training = (_fit(relation, 0.3, 2), _fit(relation, 0.2))
        for refit in ((), (_fit(relation, 0.4), _fit(relation, 0.6))):
            yield Cell(HeldOutChoice(moved, 2, training, refit, choice), _held_out)
    choice = Exponential(moved, 0.9, 3)
    training = tuple(_fit(relation, 0.2) for _ in range(3))
    yield Cell(HeldOutChoice(moved, 3, training, (), choice), _held_out)


def _held_out(mechanism, relation):
    """A training row moves every fit and the last one; a validation row the choice and the last one."""
    factor = 2.0 if relation is REPLACE else 1.0

    def noisy(line):
        probe = Probe()
        line.mechanism.release(np.zeros(1, np.int64), noise_of(line.mechanism, probe))
        return [shifted(factor * 64.0 / probe.asked[0][1])] * line.draws

    for refit in mechanism.refit or ((),):
        again = [pair for line in refit for pair in noisy(line)]
        yield [pair for fit in mechanism.training for line in fit for pair in noisy(line)] + again
        for found in _choices(mechanism.choice, relation):
            yield found + again


def half(mechanism):
    """Return the mechanism with half its noise."""
    names = {"laplace": "scale", "l2-gamma": "scale", "pure-objective-perturbation": "scale"}
    if mechanism.kind == "exponential":
        return replace(mechanism, rate=2 * mechanism.rate)
    if mechanism.kind == "random-stopping":
        return replace(
            mechanism,
            score=half(mechanism.score),
            training=tuple(_halved(fit) for fit in mechanism.training),
        )
    if mechanism.kind == "held-out-choice":
        return replace(
            mechanism,
            choice=half(mechanism.choice),
            training=tuple(_halved(fit) for fit in mechanism.training),
        )
    name = names.get(mechanism.kind, "sigma")
    return replace(mechanism, **{name: getattr(mechanism, name) / 2})


def _halved(fit):
    return tuple(replace(line, mechanism=half(line.mechanism)) for line in fit)


CELLS = {
    "gaussian": gaussian,
    "symmetric-gaussian": symmetric_gaussian,
    "mixture-gaussian": mixture_gaussian,
    "sampled-gaussian": sampled_gaussian,
    "laplace": laplace,
    "l2-gamma": l2_gamma,
    "functional-gaussian": functional_gaussian,
    "exponential": exponential,
    "gaussian-mixing": gaussian_mixing,
    "objective-perturbation": objective_perturbation,
    "pure-objective-perturbation": pure_objective_perturbation,
    "random-stopping": random_stopping,
    "held-out-choice": held_out_choice,
}
