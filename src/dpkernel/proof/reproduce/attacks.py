r"""Attacks on false published claims, and the same attacks on what dpkernel does instead.

Each attack computes a number from the releases of two neighbouring data sets, and from it a lower
bound on the epsilon that the release really has at the claimed delta. There are three methods:

    counting      exact binomial bounds on the event that the number exceeds a threshold
                  (``audit_scores``); it can't show more than about log(trials/17)
    gaussian fit  if the number is known to be normal with the same variance on both sides, bounds on
                  the variance and on the difference of means give a bound on mu, and so on epsilon
    exact         the hockey-stick divergence of two known densities is integrated, without sampling

The first two hold with the stated confidence for each row separately. Noise is seeded, so that a
table can be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.stats import chi2, norm

from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.models import kernels
from dpkernel.models.losses import Huber, Squared
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import (
    IDEALISED,
    FunctionalGaussian,
    Gaussian,
    GaussianMixing,
    Mechanism,
    MixtureGaussian,
    NoisyFunction,
)
from dpkernel.privacy.noise import Noise, Part, Plan, SeededNoise
from dpkernel.privacy.profiles import GaussianProfile, PureProfile
from dpkernel.privacy.sensitivity import declared, erm_ridge
from dpkernel.privacy.statistics import GramLayout, GramSum
from dpkernel.proof.audit import audit_scores
from dpkernel.proof.papers import PublishedAlgorithm3, PublishedAlgorithm5, PublishedPerturbedRisk
from dpkernel.proof.papers.lee_park_ahn_2025 import clipped_mean_noise
from dpkernel.proof.papers.sgd import output_mechanism, output_run
from dpkernel.proof.papers.wang_guo_2024.constants import algorithm_1_noise
from dpkernel.proof.reproduce.design import generator
from dpkernel.proof.reproduce.huber import huber_example
from dpkernel.solvers.sketching import gaussian_sketch, sketched_erm

COUNTING, FIT, EXACT = "counting", "gaussian fit", "exact"
_SIGNED = (IDEALISED,)


@dataclass(frozen=True)
class Trials:
    """The number of releases on each side. Attacks whose releases are slow make fewer."""

    releases: int
    confidence: float = 0.999


FULL, QUICK = Trials(200_000), Trials(20_000)


@dataclass(frozen=True)
class Finding:
    """Lower bounds on epsilon at ``delta``, for the printed algorithm and for dpkernel."""

    claimed: float
    delta: float
    printed: float
    ours: float
    how: str
    trials: int
    confidence: float
    attack: str
    instead: str


Attack = Callable[[Trials], Finding]
Sides = tuple[Array, Array]  # scores on a data set and on its neighbour


def by_counting(sides: Sides, delta: float, confidence: float) -> float:
    """Return a lower bound on epsilon at delta, whatever the law of the scores."""
    claim = PureProfile(1.0)  # only the lower bound is used
    return audit_scores(*sides, claim, delta=delta, false_alarm=1 - confidence).epsilon_lower


def by_gaussian_fit(sides: Sides, delta: float, confidence: float) -> float:
    r"""Return a lower bound on epsilon at delta for scores N(m, s^2) and N(m', s^2).

    Let S^2 be the pooled variance of 2N scores and q the alpha/2 quantile of chi^2. Then
    s <= S sqrt((2N - 2)/q), and |m - m'|/s is at least the distance of the sample means over s, minus
    z_(alpha/4) sqrt(2/N).
    """
    (scores, others), alpha = sides, 1 - confidence
    n = len(scores)
    freedom = 2 * n - 2
    pooled = math.sqrt((scores.var(ddof=1) + others.var(ddof=1)) / 2)
    largest = pooled * math.sqrt(freedom / float(chi2.ppf(alpha / 2, freedom)))
    apart = abs(float(scores.mean() - others.mean()))
    mu = apart / largest - float(norm.isf(alpha / 4)) * math.sqrt(2 / n)
    return GaussianProfile(mu).epsilon(delta) if mu > 0 else 0.0


def granted(mechanism: Mechanism, draws: int, seed: int) -> Noise:
    """Return noise for this many releases of a mechanism. It protects nobody."""
    part = Part("attack", mechanism.profile(), draws=draws)
    ledger = Ledger(neighbours=mechanism.sensitivity.neighbours)
    return ledger.spend(Plan((part,), nothing_proved=True), "attack", noise=SeededNoise(seed))


def released(
    mechanism: Mechanism, score: Callable[[bool, Noise], float], trials: int, seed: int
) -> Sides:
    """Return the scores of ``trials`` releases on each side."""
    noise = granted(mechanism, 2 * trials, seed)
    found = [np.array([score(side, noise) for _ in range(trials)]) for side in (False, True)]
    return found[0], found[1]


def released_numbers(mechanism: Any, values: Sides, seed: int) -> Sides:
    """Return releases of numbers, each with noise of its own, by mechanisms of dimension 1."""
    many = replace(mechanism, dimension=len(values[0]))
    noise = granted(many, 2, seed)
    return many.release(values[0], noise), many.release(values[1], noise)


def _constant(values: Sequence[float], trials: int) -> Sides:
    return np.full(trials, float(values[0])), np.full(trials, float(values[1]))


# --- 004: one random number for a function --------------------------------------------------


def scalar_noise(trials: Trials) -> Finding:
    """004-1: the difference of two values of a function to which one random number was added."""
    inputs, points = np.linspace(-1, 1, 8)[:, None], np.array([[-1.0], [1.0]])
    labels = np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0])
    sides = labels, np.where(np.arange(8) == 0, -labels, labels)
    kernel, lam = kernels.GaussianKernel(length_scale=0.5), 0.1
    n = min(trials.releases, 4000)  # values of a Gaussian process are slow
    models = [
        PublishedPerturbedRisk(
            1.0, lam=lam, scale="corrected", length_scale=0.5, noise=SeededNoise(0)
        ).fit(inputs, y)
        for y in sides
    ]
    exact = [model.decision_function(points) - model._b for model in models]
    scalar = models[0].certificate_.releases[0].mechanism
    b = released_numbers(scalar, _constant((0.0, 0.0), n), 41)
    first, second = (
        (value[0] + noise) - (value[1] + noise) for value, noise in zip(exact, b, strict=True)
    )
    printed = first, second
    # the same function with a Gaussian process in place of the number
    moved = erm_ridge(
        Neighbours.REPLACE_ONE, row=1.0, target=1.0, strength=lam * len(labels), n_rows=len(labels)
    )
    process = FunctionalGaussian.calibrate(moved, Budget(1.0, 1e-6), dimension=2, accept=_SIGNED)

    def score(side: bool, noise: Noise) -> float:
        values = dict(zip((-1.0, 1.0), exact[side], strict=True))
        noisy = NoisyFunction(
            lambda x: np.array([values[float(x[0, 0])]]), kernel, process, process.key(noise)
        )
        return float(noisy.answer(points[0])[0] - noisy.answer(points[1])[0])

    ours = released(process, score, n, 42)
    claim = 1.0, 1e-6
    return _found(
        claim,
        COUNTING,
        (printed, ours),
        trials,
        "difference of two values",
        "FunctionalGaussian (PrivateCurator)",
    )


def half_scale(trials: Trials) -> Finding:
    """004-2: one value at a record whose label changed, so that the minimiser moves farthest."""
    inputs, sides = np.zeros((4, 1)), (np.ones(4), np.array([-1.0, 1.0, 1.0, 1.0]))
    scores = []
    for scale in ("printed", "corrected"):
        models = [
            PublishedPerturbedRisk(
                1.0, lam=4.0, loss="hinge", scale=scale, noise=SeededNoise(0)
            ).fit(inputs, y)
            for y in sides
        ]
        exact = [float(model.decision_function(inputs[:1])[0] - model._b) for model in models]
        mechanism = models[0].certificate_.releases[0].mechanism
        scores.append(released_numbers(mechanism, _constant(exact, trials.releases), 43))
    claim = 1.0, 0.0
    return _found(
        claim,
        COUNTING,
        scores,
        trials,
        "one value",
        "twice the scale (PrivateCurator.predict_once)",
    )


# --- 000: a square for its root -------------------------------------------------------------


def missing_root(trials: Trials) -> Finding:
    """000-1: ten records and ten small steps. The other rows are zero, so that only hits count."""
    n, step, budget = 10, 1e-6, Budget(1.0, 1e-6)
    sizes: dict[str, Any] = {"kappa": 1.0, "target_bound": 1.0}
    noise = algorithm_1_noise(n, n, step, *_pair(budget), **sizes).noise_scale
    run = output_run(Squared(), n, 1, n, step, **sizes)
    printed = output_mechanism(run, noise)
    law = printed.sensitivity
    ours = MixtureGaussian.calibrate(law, budget, dimension=1, rounding=run.rounding)
    hits = generator(0, 1).binomial(n, 1 / n, (2, trials.releases))
    w = 1 - (1 - step) ** hits.astype(float)  # after this many steps on (row 1, target 1)
    values = w[0], -w[1]
    scores = [released_numbers(m, values, 44) for m in (printed, ours)]
    return _found(
        _pair(budget),
        COUNTING,
        scores,
        trials,
        "the coefficient",
        "MixtureGaussian (PrivateSGDRegressor)",
    )


# --- 001: a sketch without noise ------------------------------------------------------------


def bare_sketch(trials: Trials) -> Finding:
    """001-1: all labels 0 against one label 1. Without noise the output is 0 only in the first case."""
    draws = generator(0, 2)
    inputs = draws.uniform(-1, 1, (20, 2))
    sides, gram = (np.zeros(20), np.eye(20)[0]), kernels.GaussianKernel(length_scale=0.5)(inputs)
    few = min(trials.releases, 4000)  # each needs a sketch

    def answer(y: Array) -> float:
        sketch = gaussian_sketch(len(y), 6, int(draws.integers(2**62)))
        fit = sketched_erm(gram, y, Squared(), 0.01, sketch, start=draws.normal(size=6))
        return abs(float(gram[0] @ fit.coefficients))

    printed = (
        np.array([answer(sides[0]) for _ in range(few)]),
        np.array([answer(sides[1]) for _ in range(few)]),
    )
    # rows have norm 1 and labels are at most 1; the score is what the sketch reveals about the labels
    budget = Budget(1.0, 1e-6)
    mixing = GaussianMixing.calibrate(
        declared(math.sqrt(2)), budget, rows=60, dimension=3, accept=_SIGNED
    )
    rows = inputs / np.linalg.norm(inputs, axis=1, keepdims=True)
    tables = [np.column_stack([rows, y]) for y in sides]
    ours = released(
        mixing,
        lambda side, noise: float(np.sum(mixing.release(tables[side], noise)[:, 2] ** 2)),
        few,
        45,
    )
    return _found(
        _pair(budget),
        COUNTING,
        (printed, ours),
        trials,
        "size of a value, which is 0 where all labels are",
        "GaussianMixing (PrivateSketchedRidge), by the squares of the sketched labels",
    )


# --- 003: Gaussian releases -----------------------------------------------------------------


def half_functional(trials: Trials) -> Finding:
    """003-11: one record with a Huber loss and n lambda = c_1 = kappa = 1, evaluated at that record."""
    budget, record = Budget(1.0, 1e-5), np.zeros((1, 1))
    models = [
        PublishedAlgorithm5(
            *_pair(budget), regularisation=1.0, loss=Huber(1.0), noise=SeededNoise(0)
        ).fit(record, np.array([y]))
        for y in (3.0, -3.0)  # where the loss is linear, so that f^ moves farthest
    ]
    printed = models[0].certificate_.releases[0].mechanism
    ours = FunctionalGaussian.calibrate(printed.sensitivity, budget, dimension=1, accept=_SIGNED)
    exact = [float(model._function(record)[0]) for model in models]
    scores = [released_numbers(m, _constant(exact, trials.releases), 46) for m in (printed, ours)]
    return _found(
        _pair(budget),
        FIT,
        scores,
        trials,
        "value at the record",
        "FunctionalGaussian (PrivateCurator)",
    )


def clipped_mean(trials: Trials) -> Finding:
    """003-4: the mean of 50 products is clipped, and one of them is large enough to reverse it.

    M = 1. The paper adds a number and not a vector; it is taken for the deviation of normal noise.
    """
    n, bound, budget = 50, 1.0, Budget(1.0, 1e-6)
    ours = Gaussian.calibrate(2 * bound / n, budget, dimension=1)
    scale = clipped_mean_noise(n, *_pair(budget), bound)
    printed = replace(ours, sigma=scale / ours.grid)
    products = np.array([10.0 * n, *np.zeros(n - 1)])
    means = np.clip(products.mean(), -bound, bound), np.clip(products, -bound, bound).mean()
    scores = [
        released_numbers(mechanism, _constant((mean, -mean), trials.releases), 47)
        for mechanism, mean in zip((printed, ours), means, strict=True)
    ]
    return _found(
        _pair(budget),
        FIT,
        scores,
        trials,
        "sign of the mean",
        "Gaussian, products clipped one by one",
    )


def printed_algorithm_3(trials: Trials) -> Finding:
    """003-5: rows of norm sqrt 2 whose angle has cosine 1/2, targets 1 and -1."""
    budget = Budget(20.0, 1e-3)
    rows = math.sqrt(2) * np.array([[1.0, 0.0], [0.5, math.sqrt(0.75)]])
    model = PublishedAlgorithm3(*_pair(budget), n_features=2, target_bound=1.0)
    on_gram, on_cross = model._mechanisms(1)
    values = [(np.outer(z, z), z * y) for z, y in zip(rows, (1.0, -1.0), strict=True)]
    # the likelihood ratio: symmetric noise has variance s^2 on the diagonal and s^2/2 off it, so a
    # sum over all entries gives each the right weight
    gram = (values[1][0] - values[0][0]) / on_gram.noise_scale**2
    cross = (values[1][1] - values[0][1]) / on_cross.noise_scale**2
    many = min(trials.releases // 2, 20_000)
    on_first = released(
        on_gram,
        lambda side, noise: float(np.sum(on_gram.release(values[side][0], noise) * gram)),
        many,
        48,
    )
    on_second = released(
        on_cross,
        lambda side, noise: float(on_cross.release(values[side][1], noise) @ cross),
        many,
        49,
    )
    printed = on_first[0] + on_second[0], on_first[1] + on_second[1]
    ours = _joint_release(budget, many)
    return _found(
        _pair(budget),
        FIT,
        (printed, ours),
        trials,
        "likelihood ratio of C and u",
        "joint release (PrivateKernelRidge), on its own worst pair of records",
    )


def _joint_release(budget: Budget, trials: int) -> Sides:
    """Return scores of the joint release of C and u, on its own worst pair of records.

    The records, features and targets together, are orthogonal.
    """
    layout = GramLayout.choose(2, 1, 1.0, Neighbours.REPLACE_ONE, 1, budget, constant=False)
    cosine = (layout.target / layout.row) ** 2
    rows = np.array([[1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]])
    sums = [
        GramSum(layout).update(rows[i : i + 1], np.array([[y]]))._sum
        for i, y in enumerate((1.0, -1.0))
    ]
    mechanism = layout.mechanism(budget)
    direction = (sums[1] - sums[0]).astype(float)
    return released(
        mechanism,
        lambda side, noise: float(np.sum(mechanism.release(sums[side], noise) * direction)),
        trials,
        50,
    )


def objective_perturbation(trials: Trials) -> Finding:
    """003-7: one record with a Huber loss, whose kink lies in the tail of b."""
    budget = Budget(4.0, 1e-8)
    return Finding(
        *_pair(budget),
        *huber_example(budget),
        how=EXACT,
        trials=0,
        confidence=1.0,
        attack="density of the coefficient",
        instead="noise of ObjectivePerturbation",
    )


# --- findings -------------------------------------------------------------------------------


def _found(
    claim: tuple[float, float],
    how: str,
    scores: Sequence[Sides],
    trials: Trials,
    attack: str,
    instead: str,
) -> Finding:
    """Return the bounds for the printed algorithm and for dpkernel, by one method."""
    bound = by_counting if how == COUNTING else by_gaussian_fit
    printed, ours = (bound(sides, claim[1], trials.confidence) for sides in scores)
    number = len(scores[0][0])
    return Finding(*claim, printed, ours, how, number, trials.confidence, attack, instead)


def _pair(budget: Budget) -> tuple[float, float]:
    return budget.epsilon, budget.delta


ATTACKS: dict[str, Attack] = {
    "004-1": scalar_noise,
    "004-2": half_scale,
    "000-1": missing_root,
    "003-4": clipped_mean,
    "003-5": printed_algorithm_3,
    "003-7": objective_perturbation,
    "003-11": half_functional,
    "001-1": bare_sketch,
}
