"""Worst cases of every mechanism, and the broken twins that an audit must reject.

A case is two neighbouring inputs at exactly the stated sensitivity and the score that separates
them best. A twin is the same case with something broken: half the noise, an input that was not
clipped, or a sensitivity calibrated for the easier neighbouring relation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpkernel import mechanisms, sensitivity
from dpkernel.audit.core import AuditResult, audit_scores
from dpkernel.ledger import Ledger
from dpkernel.mechanisms import Mechanism
from dpkernel.noise import Noise, NoiseSource, Part, Plan
from dpkernel.profiles import ApproximateProfile, PrivacyProfile
from dpkernel.statistics import GramLayout, GramStatistics
from dpkernel.types import Array, Budget, IntArray, Neighbours

_GAUSSIAN_BUDGET, _PURE_BUDGET = Budget(8.0, 1e-5), Budget(2.0)  # large, so few trials tell much

Run = Callable[[bool, Noise], float]  # (on the neighbour?, noise) -> score of one release


@dataclass(frozen=True)
class Case:
    """One attack: how to run it, what is claimed, and what is really drawn."""

    name: str
    claim: PrivacyProfile
    mechanism: Mechanism
    run: Run
    broken: str | None = None

    def audit(
        self, trials: int, *, noise: NoiseSource | None = None, false_alarm: float = 1e-8
    ) -> AuditResult:
        """Run the attack ``trials`` times on each side and test the claim."""
        part = Part(self.name, self.mechanism.profile(), draws=2 * trials)
        plan = Plan((part,), whole=ApproximateProfile(0.0, 1.0))  # an audit protects nobody
        granted = Ledger(neighbours=self.mechanism.sensitivity.neighbours).spend(
            plan, self.name, noise=noise
        )
        scores = [
            np.array([self.run(side, granted) for _ in range(trials)]) for side in (False, True)
        ]
        return audit_scores(scores[0], scores[1], self.claim, false_alarm=false_alarm)


def all_cases() -> list[Case]:
    """Return every sound case followed by its broken twins."""
    return [case for build in CASES.values() for case in build()]


def _vector_case(
    name: str, mechanism: Any, claim: PrivacyProfile, distance: float, broken: str | None = None
) -> Case:
    """Return the case of two vectors at this distance along a fixed direction."""
    direction = np.zeros(mechanism.dimension)
    direction[0] = 1.0
    if mechanism.sensitivity.norm == "l2":  # any direction is as bad: take one that uses them all
        direction = np.sin(1.0 + np.arange(mechanism.dimension))
        direction /= np.linalg.norm(direction)
    shift = distance * direction
    radial = mechanism.kind == mechanisms.L2Gamma.kind

    def run(neighbour: bool, noise: Noise) -> float:
        released = mechanism.release(shift if neighbour else 0 * shift, noise)
        if radial:  # the log-likelihood ratio of exp(-norm)
            return float(np.linalg.norm(released) - np.linalg.norm(released - shift))
        return float(released @ direction)

    return Case(name, claim, mechanism, run, broken)


def _with_twins(name: str, mechanism: Any, halved: dict[str, float]) -> list[Case]:
    """Return a vector case, its half-noise twin and the twin whose input was not clipped."""
    claim, reach = mechanism.profile(), mechanism.sensitivity.value
    weak = replace(mechanism, **halved)
    return [
        _vector_case(name, mechanism, claim, reach),
        _vector_case(f"{name}, half the noise", weak, claim, reach, "half the noise"),
        _vector_case(f"{name}, not clipped", mechanism, claim, 2 * reach, "input twice the bound"),
    ]


def gaussian() -> list[Case]:
    """One dimension, many dimensions, and the wrong neighbours."""
    out = []
    for dimension in (1, 20):
        found = mechanisms.Gaussian.calibrate(1.0, _GAUSSIAN_BUDGET, dimension=dimension)
        out += _with_twins(f"gaussian, d={dimension}", found, {"sigma": found.sigma / 2})
    easier = sensitivity.declared(1.0, Neighbours.ZERO_OUT)
    found = mechanisms.Gaussian.calibrate(easier, _GAUSSIAN_BUDGET, dimension=1)
    name = "gaussian, zero-out noise for replaced records"
    out.append(_vector_case(name, found, found.profile(), 2.0, "wrong neighbours"))
    return out


def laplace() -> list[Case]:
    """One dimension and many."""
    out = []
    for dimension in (1, 5):
        found = mechanisms.Laplace.calibrate(1.0, _PURE_BUDGET, dimension=dimension)
        out += _with_twins(f"laplace, d={dimension}", found, {"scale": found.scale / 2})
    return out


def l2_gamma() -> list[Case]:
    """One dimension and many."""
    out = []
    for dimension in (1, 2):
        found = mechanisms.L2Gamma.calibrate(
            1.0, _PURE_BUDGET, dimension=dimension, accept=(mechanisms.IDEALISED,)
        )
        out += _with_twins(f"l2-gamma, d={dimension}", found, {"scale": found.scale / 2})
    return out


def mixture() -> list[Case]:
    """A record that is hit 0, 1 or 2 times, by fresh coins."""
    law = sensitivity.RandomSensitivity(Neighbours.REPLACE_ONE, (0.0, 1.0, 2.0), (0.25, 0.5, 0.25))
    found = mechanisms.MixtureGaussian.calibrate(law, _GAUSSIAN_BUDGET, dimension=1)
    claim = found.profile()

    def case(name: str, mechanism: Any, factor: float, broken: str | None) -> Case:
        def run(neighbour: bool, noise: Noise) -> float:
            draw = noise.claim(mechanism.profile())  # the coins are part of the algorithm
            coins = int(draw.words(1)[0]) & 3
            hits = (0, 1, 1, 2)[coins] if neighbour else 0
            steps = draw.discrete_gaussian(math.sqrt(mechanism.sigma**2 + 4), 1)[0]
            return float(float(round(factor * hits / mechanism.grid) + steps) * mechanism.grid)

        return Case(name, claim, mechanism, run, broken)

    return [
        case("mixture-gaussian", found, 1.0, None),
        case(
            "mixture-gaussian, half the noise",
            replace(found, sigma=found.sigma / 2),
            1.0,
            "half the noise",
        ),
        case("mixture-gaussian, not clipped", found, 2.0, "input twice the bound"),
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
        (
            np.array([[0.25, math.sqrt(1 - 0.25**2), 0.0]]),
            np.array([[-1.0]]),
        ),
    )

    def total(record: tuple[Array, Array]) -> IntArray:
        return GramStatistics(layout).update(*background).update(*record)._sum

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
    """Two candidates whose utilities move in opposite directions."""
    found = mechanisms.Exponential.calibrate(1.0, _PURE_BUDGET, candidates=2)

    def case(name: str, mechanism: Any, reach: float, broken: str | None) -> Case:
        near, far = np.array([0.0, 0.0]), np.array([reach, -reach])

        def run(neighbour: bool, noise: Noise) -> float:
            return float(mechanism.release(far if neighbour else near, noise))

        return Case(name, found.profile(), mechanism, run, broken)

    return [
        case("exponential", found, 1.0, None),
        case(
            "exponential, half the noise",
            replace(found, rate=2 * found.rate),
            1.0,
            "half the noise",
        ),
        case("exponential, not clipped", found, 2.0, "utilities twice the bound"),
    ]


CASES: dict[str, Callable[[], list[Case]]] = {
    "gaussian": gaussian,
    "symmetric-gaussian": symmetric,
    "mixture-gaussian": mixture,
    "laplace": laplace,
    "l2-gamma": l2_gamma,
    "exponential": exponential,
}
