"""Batches of fixed size among hostile records, under zero-out, and the twin that must be rejected.

The other records of a batch may have any values. A batch of fixed size that holds the record holds one
other record less. Here the record is at one end and is blanked, and all others are at the other end. A
batch with the record and one without it are then twice as far apart as the record is from zero.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dpkernel.foundations.types import Array, Budget, IntArray, Neighbours
from dpkernel.privacy.mechanisms import SampledGaussian
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.sensitivity import bounded_sum
from dpkernel.proof.audit.core import Case

_BOUND = 1 << 10  # bound on the integers that are summed
_BUDGET = Budget(10.0, 1e-5)  # so large that a record shows whenever it is in the batch
_ROWS = _STEPS = 10  # a record is used once, on average
_RUNS = 4000  # with ten releases each


def hostile_batch_cases() -> list[Case]:
    """Return batches of fixed size under zero-out among hostile records, and a twin.

    The twin draws the noise that the profile of Poisson batches requires, and claims that profile.
    With Poisson batches, a blanked record is compared with nothing and never with another record in
    its place.
    """
    common: dict[str, Any] = {"dimension": 1, "n_rows": _ROWS, "batch": 1, "steps": _STEPS}
    moved = bounded_sum(Neighbours.ZERO_OUT, bound=_BOUND)
    sound = SampledGaussian.calibrate(moved, _BUDGET, sampling="fixed", **common)
    poisson = SampledGaussian.calibrate(moved, _BUDGET, sampling="poisson", **common)
    tables = [np.full((_ROWS, 1), -_BOUND) for _ in range(2)]
    tables[0][0], tables[1][0] = _BOUND, 0

    def case(name: str, claim: SampledGaussian, drawn: SampledGaussian, broken: str | None) -> Case:
        def run(neighbour: bool, noise: Noise) -> float:
            table = tables[int(neighbour)]

            def value(batch: IntArray) -> IntArray:
                return np.asarray(table[batch].sum(axis=0))

            seen = np.array([drawn.release(value, noise)[0] for _ in range(_STEPS)])
            return float(np.sum(_log_ratio(seen / _BOUND, drawn.sigma / _BOUND)))

        claimed = claim.profile().repeat(_STEPS)
        return Case(name, claimed, drawn, run, broken, draws=_STEPS, most_runs=_RUNS)

    name = "sampled-gaussian, fixed, hostile others"
    old = replace(sound, sigma=poisson.sigma)
    return [
        case(name, sound, sound, None),
        case(f"{name}, formula of Poisson", poisson, old, "exchanged records not counted"),
    ]


def _log_ratio(seen: Array, sigma: float) -> Array:
    """Return the log-likelihood ratio of steps, whose batch holds the record or one of the others."""

    def log_density(record: float) -> Array:
        hit = np.log(1 / _ROWS) - (seen - record) ** 2 / (2 * sigma**2)
        miss = np.log(1 - 1 / _ROWS) - (seen + 1) ** 2 / (2 * sigma**2)
        return np.asarray(np.logaddexp(hit, miss))

    return log_density(1.0) - log_density(0.0)
