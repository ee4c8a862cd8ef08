"""A small release beside a fit: how many cells of each column were missing, unreadable or clipped.

A file that is read in the wrong way gives a private model of nothing. The counts tell, at a cost of one
hundredth of the fit's mu^2. They are released with the fit, in one spend and under one claim.

Where people are protected with all their rows, each person counts once, divided into equal parts: a
person with missing values in one of two rows counts half as missing. The parts are whole numbers that
depend on the rows of this person alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpkernel.data.cells import units
from dpkernel.data.table_files import EncodedTable
from dpkernel.data.table_files.schema import STATES
from dpkernel.estimators.base import FitPlan, Fitted
from dpkernel.foundations.types import Budget, IntArray, Neighbours
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.mechanisms import Gaussian
from dpkernel.privacy.noise import Noise, Part, Plan
from dpkernel.privacy.profiles import gaussian_mu
from dpkernel.privacy.sensitivity import column_histograms, unit_shares

LABEL = "cells"
PARTS = 1000  # of a person
_SHARE = 0.01  # of mu^2
_MOST_NOISE = 0.1  # of the records; with more noise the counts say nothing, and are not released
_SHRINK = (0.9945, 0.99, 0.98, 0.95)  # factors of epsilon that are tried for the fit itself


@dataclass(frozen=True)
class CellCounts:
    """The exact counts of a table, which must not leave without noise.

    Attributes
    ----------
    names : sequence of str
        The names of the columns, which are public.
    counts : array of shape (columns, states)
        How many cells of each column are in each of ``STATES``. A record is in one state per column,
        or its parts are.
    parts : int
        The number of parts that every record has: 1 for rows.
    of_people : bool
        Whether the records are people with all their rows.
    """

    names: Sequence[str]
    counts: IntArray
    parts: int = 1
    of_people: bool = False

    @classmethod
    def of(cls, rows: EncodedTable) -> CellCounts:
        """Return the counts of an encoded table: of its people if it has a group, else of its rows."""
        names = [rule.name for rule in rows.schema.rules]
        if rows.schema.group is None:
            return cls(names, rows.counts)
        return cls.of_units(names, rows.states, rows.ids)

    @classmethod
    def of_units(cls, names: Sequence[str], states: IntArray, ids: Any) -> CellCounts:
        """Return the counts in which each person has the same weight, whatever the number of rows.

        ``states`` has one row per row of the table, with the state of each of its cells, and ``ids``
        the person of each row.
        """
        places, n_people = units(ids)
        rows = np.bincount(places, minlength=n_people)
        counts = np.zeros((len(names), len(STATES)), dtype=np.int64)
        for column in range(len(names)):
            for state in range(1, len(STATES)):
                here = np.bincount(places[states[:, column] == state], minlength=n_people)
                counts[column, state] = (PARTS * here // rows).sum()
            counts[column, 0] = PARTS * n_people - counts[column].sum()
        return cls(names, counts, PARTS, of_people=True)

    @property
    def n_records(self) -> int:
        """The number of rows, or of people."""
        return int(self.counts[0].sum()) // self.parts

    def joined(
        self, make: Callable[[Budget], FitPlan], budget: Budget, relation: Neighbours
    ) -> FitPlan:
        """Return the plan of a fit that also releases the counts, within the same budget.

        If the noise would drown the counts, or the fit has no budget to spare, it is the plan of the
        fit alone. The decision depends on public numbers only.
        """
        columns = len(self.names)
        if budget.pure:
            return make(budget)
        mu = gaussian_mu(budget.epsilon, budget.delta) * _SHARE**0.5
        moved = (
            unit_shares(relation, columns=columns, parts=self.parts)
            if self.parts > 1
            else column_histograms(relation, columns=columns)
        )
        mechanism = Gaussian.with_mu(moved, mu, dimension=self.counts.size, integer=True)
        if not mechanism.deviation <= _MOST_NOISE * self.parts * self.n_records:
            return make(budget)
        for factor in _SHRINK:
            smaller = Budget(budget.epsilon * factor, budget.delta)
            found = CountedPlan(make(smaller), self, mechanism, smaller.epsilon)
            parts = [Part(r.label, r.mechanism.profile(), r.draws, r.folds) for r in found.releases]
            if Plan(tuple(parts)).profile.supports(budget):
                return found
        return make(budget)

    def of_table(self) -> CellCounts:
        """Return the counts for a fit to a table in which each person is one row."""
        return replace(self, of_people=False)

    def fingerprint(self, key: bytes) -> str:
        """Return a keyed fingerprint of the counts."""
        return hashlib.blake2b(self.counts.tobytes(), key=key, digest_size=32).hexdigest()


class CountedPlan(FitPlan):
    """The plan of a fit, and the release of the counts."""

    def __init__(
        self, plan: FitPlan, cells: CellCounts, mechanism: Gaussian, epsilon: float
    ) -> None:
        self._plan, self._cells, self._mechanism, self._epsilon = plan, cells, mechanism, epsilon
        self.releases = [*plan.releases, Release(LABEL, mechanism)]

    def prepare(self) -> None:
        """Prepare the fit."""
        self._plan.prepare()

    def pinned(self) -> Any:
        """Return the public choices of the fit."""
        return self._plan.pinned()

    def run(self, noise: Noise) -> Fitted:
        """Run the fit, and release the counts."""
        found = self._plan.run(noise)
        cells = self._cells
        exact: Any = cells.counts.ravel()
        counts = np.asarray(self._mechanism.release(exact, noise))
        whole = cells.parts * cells.n_records
        shares = np.clip(counts.reshape(cells.counts.shape) / whole, 0.0, 1.0)
        table: dict[str, Any] = {
            "deviation": self._mechanism.deviation / whole,
            "shares": {
                str(name): dict(zip(STATES[1:], row[1:], strict=True))
                for name, row in zip(cells.names, shares.tolist(), strict=True)
            },
        }
        return replace(
            found,
            public={**found.public, LABEL: {"epsilon_of_the_rest": self._epsilon}},
            free_statistics={**found.free_statistics, LABEL: table},
        )
