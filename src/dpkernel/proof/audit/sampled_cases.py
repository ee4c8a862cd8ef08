"""Worst cases of sums over random batches, and the twins that must be rejected.

There are two records, of which each step uses one. The attacked record is at one end of the ball,
and the other record is at the other end. If the attacked record is replaced, it goes there, too.
Then a batch without it has exactly the distribution of the neighbour, and the bound is attained. If
it is blanked, it goes to the centre. Under Poisson batches the other record is blank as well, which
is the worst case there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from dpkernel.foundations.types import Budget, IntArray, Neighbours
from dpkernel.privacy.mechanisms import SampledGaussian
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.profiles.sampled import BLANKED
from dpkernel.privacy.sensitivity import bounded_sum
from dpkernel.proof.audit.core import Case

_BOUND = 1 << 10  # bound on the integers that are summed
_BUDGET = Budget(3.0, 1e-4)  # so large that mu is near 1


@dataclass(frozen=True)
class _KnownBatch(SampledGaussian):
    """Uses the first record in every step, and claims that it might have been the other one."""

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
    name: str, claim: Any, mechanism: Any, stretch: int = 1, broken: str | None = None
) -> Case:
    """Return the case of a record that is replaced or blanked, under the claim of this mechanism."""
    replaced = claim.sensitivity.neighbours is Neighbours.REPLACE_ONE
    other = 0 if claim.sampling == "poisson" else -_BOUND
    neighbour = other if replaced else 0
    tables = np.array([[neighbour], [other]]), np.array([[_BOUND * stretch], [other]])

    def run(neighbour: bool, noise: Noise) -> float:
        table = tables[int(neighbour)]
        return float(mechanism.release(lambda batch: table[batch].sum(axis=0), noise)[0])

    return Case(name, claim.profile(), mechanism, run, broken)


def sampled_cases() -> list[Case]:
    """Return batches of fixed size and Poisson batches, and their twins."""
    cases = []
    for sampling, neighbours in (
        ("fixed", Neighbours.REPLACE_ONE),
        ("fixed", Neighbours.ZERO_OUT),
        ("poisson", Neighbours.ZERO_OUT),
    ):
        found = _calibrated(sampling, neighbours)
        name = f"sampled-gaussian, {sampling}"
        if found.profile().sampling == BLANKED:
            name += ", zero-out"
        half = replace(found, sigma=found.sigma / 2)
        cases += [
            _case(name, found, found),
            _case(f"{name}, half the noise", found, half, broken="half the noise"),
            _case(f"{name}, not clipped", found, found, stretch=3, broken="not clipped"),
        ]
    replaced = _calibrated("fixed", Neighbours.REPLACE_ONE)
    blanked = _calibrated("fixed", Neighbours.ZERO_OUT)
    alone = _calibrated("poisson", Neighbours.ZERO_OUT)
    values = {field.name: getattr(replaced, field.name) for field in fields(replaced)}
    twins = (
        ("zero-out for replaced", replaced, alone, "wrong neighbours"),
        ("a known batch", replaced, _KnownBatch(**values), "known batch"),
        # half the noise of a replaced record, as if a blanked record were compared only with its blank
        (
            "zero-out, exchanged records forgotten",
            blanked,
            replace(blanked, sigma=replaced.sigma / 2),
            "exchanged records",
        ),
    )
    for name, claim, mechanism, broken in twins:
        cases.append(_case(f"sampled-gaussian, fixed, {name}", claim, mechanism, broken=broken))
    return cases
