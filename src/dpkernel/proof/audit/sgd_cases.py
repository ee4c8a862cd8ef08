"""Worst cases of stochastic gradient descent, and the twins that must be rejected.

In most cases only one record has an effect: its row is as long as allowed, its target lies far above or
far below every prediction, and the other rows are zero. Every step that uses it (a hit) then moves the
two runs apart by as much as the bound allows. For losses with a kink, the other records lie at the kink.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.stats import binom

from dpkernel.foundations.types import Array, Budget, IntArray, Neighbours
from dpkernel.models.losses import Absolute, Huber, Squared
from dpkernel.privacy.mechanisms import Gaussian, MixtureGaussian
from dpkernel.privacy.noise import Noise, NoiseSource
from dpkernel.privacy.profiles import ApproximateProfile, PrivacyProfile
from dpkernel.privacy.sensitivity import Sensitivity, declared
from dpkernel.proof.audit.core import Case
from dpkernel.proof.papers.wang_guo_2024 import algorithm_1_noise
from dpkernel.solvers.sgd_output import OutputSGD, Part

_FAR = 1e3  # distance of a target from every prediction
_STRATA = 1000  # strata of the law of hits, which are balanced over the trials


def sgd_cases(budget: Budget) -> list[Case]:
    """Return the sound cases and their twins."""
    return [*_short_batch(budget), *_part_of_an_epoch(budget), *_kink(budget), *_fresh(budget),
            *_printed()]  # fmt: skip


def _plan(loss: Any, n_rows: int, batch: int, n_steps: int, **more: Any) -> OutputSGD:
    numbers = {"n_coordinates": 1, "row_bound": 1.0, "target_bound": _FAR, "order": "fixed", **more}
    return OutputSGD(loss, n_rows=n_rows, batch=batch, n_steps=n_steps, **numbers)


def _outputs(
    plan: OutputSGD, z: Array, y: Array, *, weight: float = 1.0, first: bool = False
) -> tuple[Array, Array]:
    """Return the outputs on the rows as they are, and with the opposite target of row 0.

    Row 0 comes first or last in every epoch. It has the weight ``weight``, which never exceeds 1 in a
    sound run.
    """
    weights = np.ones(len(y))
    weights[0] = weight
    other = np.concatenate((-y[:1], y[1:]))
    order = np.roll(np.arange(len(y)), 0 if first else -1)

    def epochs(targets: Array) -> Iterator[Iterator[Part]]:
        return (iter([(z, order, targets, weights)]) for _ in range(plan.epochs))

    return plan.run(epochs(y)), plan.run(epochs(other))


def _alone(n_rows: int) -> tuple[Array, Array]:
    z = np.zeros((n_rows, 1))
    z[0] = 1.0
    return z, np.full(n_rows, _FAR)


def _shifted(
    name: str,
    outputs: tuple[Array, Array],
    sensitivity: Sensitivity,
    budget: Budget,
    broken: str | None = None,
) -> Case:
    """Return the case of two known outputs, with the noise that a sensitivity requires."""
    mechanism = Gaussian.calibrate(sensitivity, budget, dimension=len(outputs[0]))
    direction = outputs[1] - outputs[0]
    direction = direction / np.linalg.norm(direction)

    def run(neighbour: bool, noise: Noise) -> float:
        return float(mechanism.release(outputs[int(neighbour)], noise) @ direction)

    return Case(name, mechanism.profile(), mechanism, run, broken)


def _stated(plan: OutputSGD) -> Any:
    return plan.sensitivity(Neighbours.REPLACE_ONE)


def _short_batch(budget: Budget) -> list[Case]:
    """Seven rows in batches of three, so that row 0 is alone in the last batch of every epoch."""
    plan = _plan(Huber(1.0), 7, 3, 6, step=0.1)
    z, y = _alone(7)
    own_size = _outputs(plan, z, y, weight=3.0)  # dividing by 1 and not by 3 triples its weight
    return [
        _shifted("sgd, short batch", _outputs(plan, z, y), _stated(plan), budget),
        _shifted(
            "sgd, short batch divided by its own size",
            own_size,
            _stated(plan),
            budget,
            "realised batch size",
        ),
    ]


def _part_of_an_epoch(budget: Budget) -> list[Case]:
    """Eleven steps on ten rows, so that the record that comes first is used twice."""
    plan = _plan(Huber(1.0), 10, 1, 11, step=0.1)
    outputs = _outputs(plan, *_alone(10), first=True)
    share = 2 * plan.eta * plan.gradient * plan.n_steps / plan.n_rows
    return [
        _shifted("sgd, part of an epoch", outputs, _stated(plan), budget),
        _shifted(
            "sgd, T/n hits for a part of an epoch", outputs, declared(share), budget, "hits T/n"
        ),
    ]


def _kink(budget: Budget) -> list[Case]:
    """Ten rows in one batch and two steps. Nine of the rows lie at the kink of the absolute loss.

    The first step moves the runs apart along one axis. The second one moves them apart along the other,
    because the nine common records pull in opposite directions in the two runs.
    """
    plan = _plan(Absolute(), 10, 10, 2, step=0.1, n_coordinates=2)
    tilt = 1e-3
    z = np.tile([tilt, math.sqrt(1 - tilt**2)], (10, 1))
    z[0] = 1.0, 0.0
    y = np.full(10, 0.9 * plan.eta * float(z[1] @ z[1]))
    y[0] = _FAR
    outputs = _outputs(plan, z, y)
    # the formula for batches of one, in which only steps without a hit expand
    once, hits = 2 * plan.eta * plan.gradient / plan.batch, 2
    wrong = math.sqrt(once**2 + (plan.n_steps - hits) * plan.expansion) + (hits - 1) * once
    return [
        _shifted("sgd, waiting at a kink", outputs, _stated(plan), budget),
        _shifted(
            "sgd, formula of batches of one", outputs, declared(wrong), budget, "hits do not expand"
        ),
    ]


def _fresh(budget: Budget) -> list[Case]:
    """Two rows and four steps with replacement. The order is drawn from the noise, or it is known."""
    plan = _plan(Huber(1.0), 2, 1, 4, step=0.1, order="replacement", fresh=True)
    z, y = _alone(2)
    tables = y, np.array([-_FAR, _FAR])
    mechanism = MixtureGaussian.calibrate(_stated(plan), budget, dimension=1)
    known = np.zeros(4, np.int64)  # the first record at every step

    def case(name: str, order: IntArray | None, broken: str | None) -> Case:
        def run(neighbour: bool, noise: Noise) -> float:
            def output(source: NoiseSource) -> Array:
                rows = source.uniform_indices(2, 4) if order is None else order
                return plan.run([[(z, rows, tables[int(neighbour)], np.ones(2))]])

            return float(mechanism.release(output, noise)[0])

        return Case(name, mechanism.profile(), mechanism, run, broken)

    return [
        case("sgd, fresh batches", None, None),
        case("sgd, batches that are known", known, "an order that is not fresh"),
    ]


def _balanced(count: int, rate: float, strata: int) -> list[int]:
    """Return numbers of hits, each as often as its probability says, in a shuffled order."""
    places = (np.arange(strata) * 377 % strata + 0.5) / strata  # 377 and 1000 are coprime
    return [int(k) for k in binom.ppf(places, count, rate)]


def _printed() -> list[Case]:
    """Wang & Guo (2024), Theorem 2: n = T = 10^7 and step 1/n, for a claim of (1, 1e-6).

    The stated sensitivity, which lacks a root, is far too small; that of the proof is not. Rows of zero
    have no effect, so a run is determined by its hits.
    """
    n, budget = 10**7, Budget(1.0, 1e-6)
    plan = OutputSGD(Squared(), n, 1, 1.0, 1.0, 1, n, "replacement", step=1 / n, fresh=True)
    ours = MixtureGaussian.calibrate(_stated(plan), budget, dimension=1)
    law = _stated(plan)

    def printed(reading: str) -> MixtureGaussian:
        epsilon, delta = budget.epsilon, budget.delta
        sigma = algorithm_1_noise(
            n, n, 1 / n, epsilon, delta, kappa=1.0, target_bound=1.0, sensitivity=reading
        ).noise_scale
        grid = 2.0 ** (math.floor(math.log2(sigma)) - 30)
        return MixtureGaussian(law, 1, sigma / grid, grid)

    claim = ApproximateProfile(budget.epsilon, budget.delta)
    moved = [-math.expm1(k * math.log1p(-1 / n)) for k in range(60)]

    def case(name: str, claim: PrivacyProfile, mechanism: Any, broken: str | None) -> Case:
        hits = itertools.cycle(_balanced(n, 1 / n, _STRATA))

        def run(neighbour: bool, noise: Noise) -> float:
            value = moved[next(hits)] * (1 if neighbour else -1)
            return float(mechanism.release(np.array([value]), noise)[0])

        return Case(name, claim, mechanism, run, broken)

    return [
        case("sgd, ten million rows", ours.profile(), ours, None),
        case("Wang & Guo, Theorem 2 as proved", claim, printed("proof"), None),
        case("Wang & Guo, Theorem 2 as stated", claim, printed("stated"), "no root"),
    ]
