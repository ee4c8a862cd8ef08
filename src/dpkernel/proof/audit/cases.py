"""Worst cases of every mechanism, and the broken twins that an audit must reject.

A case has two neighbouring inputs whose distance is exactly the stated sensitivity, and the score that
separates them best. A twin is the same case with a fault: half the noise, an input that was not clipped,
or a sensitivity calibrated for the easier neighbouring relation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dpkernel.data.domain import clip_rows
from dpkernel.foundations.types import Array, Budget, IntArray, Neighbours
from dpkernel.privacy import mechanisms, sensitivity
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.profiles import PrivacyProfile
from dpkernel.privacy.statistics import GramLayout, GramSum
from dpkernel.proof.audit.core import Case
from dpkernel.proof.audit.erm_cases import erm_cases
from dpkernel.proof.audit.hostile_cases import hostile_batch_cases
from dpkernel.proof.audit.objective_cases import objective_cases
from dpkernel.proof.audit.preprocessing_cases import preprocessing_cases
from dpkernel.proof.audit.sampled_cases import sampled_cases
from dpkernel.proof.audit.selection_cases import selection_cases
from dpkernel.proof.audit.sgd_cases import sgd_cases

# budgets are large, so that few trials show much
_GAUSSIAN_BUDGET, _PURE_BUDGET = Budget(8.0, 1e-5), Budget(2.0)
_SIGNED: dict[str, Any] = {"accept": (mechanisms.IDEALISED,)}


def all_cases() -> list[Case]:
    """Return every sound case followed by its broken twins."""
    builders = [*CASES.values(), *ALGORITHMS.values()]
    return [case for build in builders for case in build()]


def _vector_case(
    name: str,
    mechanism: Any,
    claim: PrivacyProfile,
    *,
    clip: bool = True,
    broken: str | None = None,
) -> Case:
    """Return the case of zero against a vector twice as long as the sensitivity, clipped to it."""
    direction = np.zeros(mechanism.dimension)
    direction[0] = 1.0
    if mechanism.sensitivity.norm == "l2":  # all directions are equally bad; this one uses all
        direction = np.sin(1.0 + np.arange(mechanism.dimension))
        direction /= np.linalg.norm(direction)
    # under zero-out a record moves the value by the sensitivity; a replaced one moves it twice as far
    reach = mechanism.sensitivity.value * (1 if _replaces(mechanism) else 2)
    raw = 2 * reach * direction
    shift = clip_rows(raw[None, :], reach)[0] if clip else raw
    radial = mechanism.kind == mechanisms.L2Gamma.kind

    def run(neighbour: bool, noise: Noise) -> float:
        released = mechanism.release(shift if neighbour else 0 * shift, noise)
        if radial:  # the log-likelihood ratio of exp(-norm)
            return float(np.linalg.norm(released) - np.linalg.norm(released - shift))
        return float(released @ direction)

    return Case(name, claim, mechanism, run, broken)


def _replaces(mechanism: Any) -> bool:
    return bool(mechanism.sensitivity.neighbours is Neighbours.REPLACE_ONE)


def _with_twins(name: str, build: Callable[[Any], Any], norm: str, weak: str) -> list[Case]:
    """Return a vector case and its twins: half the noise, no clipping, the easier relation."""
    found = build(sensitivity.declared(1.0, norm=norm))
    easier = build(sensitivity.declared(1.0, Neighbours.ZERO_OUT, norm))
    half = replace(found, **{weak: getattr(found, weak) / 2})
    claim = found.profile()
    return [
        _vector_case(name, found, claim),
        _vector_case(f"{name}, half the noise", half, claim, broken="half the noise"),
        _vector_case(f"{name}, not clipped", found, claim, clip=False, broken="not clipped"),
        _vector_case(f"{name}, zero-out for replaced", easier, claim, broken="wrong neighbours"),
    ]


def _vectors(
    kind: str, dimensions: tuple[int, ...], budget: Budget, norm: str, weak: str, **options: Any
) -> list[Case]:
    """Return the cases of a mechanism on vectors of these lengths, with their twins."""
    cls: Any = mechanisms.REGISTRY[kind]
    return [
        case
        for d in dimensions
        for case in _with_twins(
            f"{kind}, d={d}",
            partial(cls.calibrate, budget=budget, dimension=d, **options),
            norm,
            weak,
        )
    ]


def mixture() -> list[Case]:
    """A record that is used 0, 1 or 2 times, as two fair coins of each run decide."""
    law = sensitivity.RandomSensitivity(Neighbours.REPLACE_ONE, (0.0, 1.0, 2.0), (0.25, 0.5, 0.25))
    easier = replace(law, neighbours=Neighbours.ZERO_OUT)
    found = mechanisms.MixtureGaussian.calibrate(law, _GAUSSIAN_BUDGET, dimension=1)
    weaker = mechanisms.MixtureGaussian.calibrate(easier, _GAUSSIAN_BUDGET, dimension=1)
    half = replace(found, sigma=found.sigma / 2)

    def case(name: str, mechanism: Any, factor: float, broken: str | None) -> Case:
        def run(neighbour: bool, noise: Noise) -> float:
            hits = noise._source.uniform_indices(2, 2).sum()  # the attacker's coins, not released
            value = factor * float(hits) if neighbour else 0.0
            return float(mechanism.release(np.array([value]), noise)[0])

        return Case(name, found.profile(), mechanism, run, broken)

    return [
        case("mixture-gaussian", found, 1.0, None),
        case("mixture-gaussian, half the noise", half, 1.0, "half the noise"),
        case("mixture-gaussian, not clipped", found, 2.0, "input twice the bound"),
        case("mixture-gaussian, zero-out for replaced", weaker, 2.0, "wrong neighbours"),
    ]


def symmetric() -> list[Case]:
    """A Gram matrix in which one record is replaced by an orthogonal one."""
    budget = _GAUSSIAN_BUDGET
    layout = GramLayout.choose(3, 1, 1.0, Neighbours.REPLACE_ONE, 10, budget)
    easier = replace(layout, neighbours=Neighbours.ZERO_OUT)
    found = layout.mechanism(budget)
    background = np.array([[0.3, 0.1, 0.2]]), np.array([[0.5]])
    # orthogonal with target^2 = 1/2 and constant^2 = 1/4 of the row bound: 1/4 - 1/2 + 1/4 = 0
    records = (
        (np.array([[1.0, 0.0, 0.0]]), np.array([[1.0]])),
        (np.array([[0.25, math.sqrt(1 - 0.25**2), 0.0]]), np.array([[-1.0]])),
    )

    def total(record: tuple[Array, Array]) -> IntArray:
        return GramSum(layout).update(*background).update(*record)._sum

    def case(name: str, mechanism: Any, stretch: float, broken: str | None) -> Case:
        sums = total(records[0]), total(records[1])
        direction = (sums[1] - sums[0]) / np.linalg.norm((sums[1] - sums[0]).astype(float))
        values = sums[0], sums[0] + np.asarray((sums[1] - sums[0]) * stretch, dtype=np.int64)

        def run(neighbour: bool, noise: Noise) -> float:
            return float(np.sum(mechanism.release(values[int(neighbour)], noise) * direction))

        return Case(name, found.profile(), mechanism, run, broken)

    wrong = easier.mechanism(budget)
    return [
        case("symmetric-gaussian", found, 1.0, None),
        case(
            "symmetric-gaussian, half the noise",
            replace(found, sigma=found.sigma / 2),
            1.0,
            "half the noise",
        ),
        case("symmetric-gaussian, not clipped", found, 2.0, "rows longer than the bound"),
        case(
            "symmetric-gaussian, zero-out noise for replaced records",
            wrong,
            1.0,
            "wrong neighbours",
        ),
    ]


def exponential() -> list[Case]:
    """Candidates of which one gets a better score and the others get worse ones."""
    found = mechanisms.Exponential.calibrate(1.0, _PURE_BUDGET, candidates=3)
    double = replace(found, rate=2 * found.rate)
    score = sensitivity.declared(1.0, Neighbours.ZERO_OUT, "score")
    monotone = mechanisms.Exponential.calibrate(score, _PURE_BUDGET, candidates=3, monotone=True)

    def case(name: str, mechanism: Any, clip: bool, broken: str | None) -> Case:
        raw = np.array([2.0, -2.0, -2.0])
        near, far = np.zeros(3), np.clip(raw, -1, 1) if clip else raw

        def run(neighbour: bool, noise: Noise) -> float:
            return float(mechanism.release(far if neighbour else near, noise) == 0)

        return Case(name, found.profile(), mechanism, run, broken)

    return [
        case("exponential", found, True, None),
        case("exponential, half the noise", double, True, "half the noise"),
        case("exponential, not clipped", found, False, "not clipped"),
        case("exponential, monotone for replaced", monotone, True, "wrong neighbours"),
    ]


def mixing() -> list[Case]:
    """A record whose direction the other records do not use. It is replaced by a second one, or blanked.

    The score is the log-likelihood ratio: the squares along the record minus those along the second one.
    """
    accept = (mechanisms.IDEALISED,)
    common: dict[str, Any] = {"rows": 60, "dimension": 3, "accept": accept}
    budget = _GAUSSIAN_BUDGET
    replaced = mechanisms.GaussianMixing.calibrate(1.0, budget, **common)
    bare = sensitivity.declared(1.0, Neighbours.ZERO_OUT)
    blanked = mechanisms.GaussianMixing.calibrate(bare, budget, **common)
    others = np.array([[0.0, 0.0, 0.7], [0.0, 0.0, -0.4]])
    records = np.array([[2.0, 0.0, 0.0]]), np.array([[0.0, 2.0, 0.0]])  # longer than the bound

    def case(
        name: str, claimed: Any, mechanism: Any = None, broken: str | None = None, move: bool = True
    ) -> Case:
        far = records[1] if move else 0 * records[1]
        tables = [np.vstack([others, record]) for record in (records[0], far)]

        def run(neighbour: bool, noise: Noise) -> float:
            squares = np.sum(drawn.release(tables[int(neighbour)], noise) ** 2, axis=0)
            return float(squares[0] - squares[1] if move else squares[0])

        drawn = mechanism or claimed
        return Case(name, claimed.profile(), drawn, run, broken)

    half = replace(replaced, sigma=replaced.sigma / 2)
    silent = replace(replaced, sigma=replaced.sigma * 1e-4)
    longer = replace(replaced, sensitivity=sensitivity.declared(2.0))
    return [
        case("gaussian-mixing", replaced),
        case("gaussian-mixing, blanked", blanked, move=False),
        case("gaussian-mixing, half the noise", replaced, half, "half the noise"),
        case("gaussian-mixing, a sketch alone", replaced, silent, "no noise"),
        case("gaussian-mixing, not clipped", replaced, longer, "rows longer than the bound"),
        case("gaussian-mixing, zero-out for replaced", blanked, broken="wrong neighbours"),
    ]


CASES: dict[str, Callable[[], list[Case]]] = {
    "gaussian": partial(_vectors, "gaussian", (1, 20), _GAUSSIAN_BUDGET, "l2", "sigma"),
    "symmetric-gaussian": symmetric,
    "mixture-gaussian": mixture,
    "sampled-gaussian": sampled_cases,
    "laplace": partial(_vectors, "laplace", (1, 5), _PURE_BUDGET, "l1", "scale"),
    # in many dimensions the worst direction is too rare to be seen
    "l2-gamma": partial(_vectors, "l2-gamma", (1, 2), _PURE_BUDGET, "l2", "scale", **_SIGNED),
    # values on a grid; answers one after the other are in ``erm_cases``
    "functional-gaussian": partial(
        _vectors, "functional-gaussian", (1, 20), _GAUSSIAN_BUDGET, "l2", "sigma", **_SIGNED
    ),
    "exponential": exponential,
    "gaussian-mixing": mixing,
    "objective-perturbation": partial(objective_cases, "objective-perturbation", _GAUSSIAN_BUDGET),
    "pure-objective-perturbation": partial(
        objective_cases, "pure-objective-perturbation", _PURE_BUDGET
    ),
}

# attacks on algorithms that have their own sensitivity bounds and use the mechanisms above
ALGORITHMS: dict[str, Callable[[], list[Case]]] = {
    "hostile batches": hostile_batch_cases,
    "sgd": partial(sgd_cases, _GAUSSIAN_BUDGET),
    "output-perturbation": partial(erm_cases, _GAUSSIAN_BUDGET, _PURE_BUDGET),
    "preprocessing": partial(preprocessing_cases, _GAUSSIAN_BUDGET),
    "selection": selection_cases,
}
