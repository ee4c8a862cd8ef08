"""Worst cases of sums over random batches, and the twins that must be rejected.

Two records, of which one is looked at in a step. The attacked record is at one end of the ball, its
neighbour and the other record are at the other end: then a batch without it gives the very law of
the neighbour, and the bound is attained.

Under zero-out the other records of a batch of fixed size are free, too. A batch that holds the record
holds one other record less. The record is at one end and is blanked, all others are at the other end:
a batch with the record and one without it are then twice as far apart as the record is from nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from dpkernel.audit.core import Case
from dpkernel.mechanisms import SampledGaussian
from dpkernel.noise import Noise
from dpkernel.sensitivity import bounded_sum
from dpkernel.types import Array, Budget, IntArray, Neighbours

_BOUND = 1 << 10  # of the integers that are summed
_BUDGET = Budget(3.0, 1e-4)  # so large that mu is near 1
_HOSTILE = Budget(10.0, 1e-5)  # so large that a record shows whenever it is looked at
_ROWS = _STEPS = 10  # a record is looked at once, on average
_RUNS = 4000  # of ten releases each


@dataclass(frozen=True)
class _KnownBatch(SampledGaussian):
    """Looks at the first record in every step, and claims that it might have been the other."""

    kind: ClassVar[str] = "known-batch"

    def release(self, value: Any, noise: Noise) -> IntArray:
        return super().release(lambda batch: value(np.arange(len(batch))), noise)


def _calibrated(sampling: str, neighbours: Neighbours) -> SampledGaussian:
    return SampledGaussian.calibrate(
        bounded_sum(neighbours, bound=_BOUND),
        _BUDGET,
        dimension=1,
        n_rows=2,
        batch=1,
        sampling=sampling,
    )


def _case(
    name: str, claim: Any, mechanism: Any, *, stretch: int = 1, broken: str | None = None
) -> Case:
    """Return the case of a record that is replaced, or blanked, under this mechanism's claim."""
    replaced = claim.sensitivity.neighbours is Neighbours.REPLACE_ONE
    other = -_BOUND if replaced else 0
    tables = np.array([[other], [other]]), np.array([[_BOUND * stretch], [other]])

    def run(neighbour: bool, noise: Noise) -> float:
        table = tables[int(neighbour)]
        return float(mechanism.release(lambda batch: table[batch].sum(axis=0), noise)[0])

    return Case(name, claim.profile(), mechanism, run, broken)


def _hostile_others() -> list[Case]:
    """Return batches of fixed size under zero-out among hostile records, and the formula for Poisson.

    The twin draws the noise that the profile of Poisson batches asks for, and claims that profile:
    there a blanked record is compared with nothing, never with another record in its place.
    """
    common: dict[str, Any] = {"dimension": 1, "n_rows": _ROWS, "batch": 1, "steps": _STEPS}
    moved = bounded_sum(Neighbours.ZERO_OUT, bound=_BOUND)
    sound = SampledGaussian.calibrate(moved, _HOSTILE, sampling="fixed", **common)
    poisson = SampledGaussian.calibrate(moved, _HOSTILE, sampling="poisson", **common)
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
    """Return the log-likelihood ratio of steps: the record in the batch, or one of the others."""

    def log_density(record: float) -> Array:
        hit = np.log(1 / _ROWS) - (seen - record) ** 2 / (2 * sigma**2)
        miss = np.log(1 - 1 / _ROWS) - (seen + 1) ** 2 / (2 * sigma**2)
        return np.asarray(np.logaddexp(hit, miss))

    return log_density(1.0) - log_density(0.0)


def sampled_cases() -> list[Case]:
    """Return batches of fixed size and Poisson batches, and their twins."""
    cases = []
    for sampling, neighbours in (
        ("fixed", Neighbours.REPLACE_ONE),
        ("poisson", Neighbours.ZERO_OUT),
    ):
        name, found = f"sampled-gaussian, {sampling}", _calibrated(sampling, neighbours)
        values = {field.name: getattr(found, field.name) for field in fields(found)}
        cases += [
            _case(name, found, found),
            _case(
                f"{name}, half the noise",
                found,
                replace(found, sigma=found.sigma / 2),
                broken="half the noise",
            ),
            _case(f"{name}, not clipped", found, found, stretch=3, broken="not clipped"),
        ]
        if sampling == "fixed":
            blanked = _calibrated("poisson", Neighbours.ZERO_OUT)
            weaker = replace(found, sigma=blanked.sigma)
            wrong, known = f"{name}, zero-out for replaced", f"{name}, a known batch"
            cases.append(_case(wrong, found, weaker, broken="wrong neighbours"))
            cases.append(_case(known, found, _KnownBatch(**values), broken="known batch"))
    return cases + _hostile_others()
