"""A small release beside a fit: how many cells of each column were missing, unreadable or clipped.

A file that is read in the wrong way gives a private model of nothing. The counts tell, at a cost of one
hundredth of the fit's mu^2. They are released with the fit, in one spend and under one claim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpkernel.data.table_files.schema import STATES
from dpkernel.estimators.base import FitPlan, Fitted
from dpkernel.foundations.types import Budget, IntArray, Neighbours
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.mechanisms import Gaussian
from dpkernel.privacy.noise import Noise, Part, Plan
from dpkernel.privacy.profiles import gaussian_mu
from dpkernel.privacy.sensitivity import column_histograms

LABEL = "cells"
_SHARE = 0.01  # of mu^2
_MOST_NOISE = 0.1  # of the rows; with more noise the counts say nothing, and are not released
_SHRINK = (0.9945, 0.99, 0.98, 0.95)  # factors of epsilon that are tried for the fit itself


@dataclass(frozen=True)
class CellCounts:
    """The exact counts of a table, which must not leave without noise.

    Attributes
    ----------
    names : sequence of str
        The names of the columns, which are public.
    counts : array of shape (columns, states)
        How many cells of each column are in each of ``STATES``. A row is in one state per column.
    """

    names: Sequence[str]
    counts: IntArray

    def joined(
        self, make: Callable[[Budget], FitPlan], budget: Budget, relation: Neighbours
    ) -> FitPlan:
        """Return the plan of a fit that also releases the counts, within the same budget.

        If the noise would drown the counts, or the fit has no budget to spare, it is the plan of the
        fit alone. The decision depends on public numbers only.
        """
        columns, n_rows = len(self.names), int(self.counts[0].sum())
        if budget.pure:
            return make(budget)
        mu = gaussian_mu(budget.epsilon, budget.delta) * _SHARE**0.5
        moved = column_histograms(relation, columns=columns)
        mechanism = Gaussian.with_mu(moved, mu, dimension=self.counts.size, integer=True)
        if not mechanism.noise_scale <= _MOST_NOISE * n_rows:
            return make(budget)
        for factor in _SHRINK:
            smaller = Budget(budget.epsilon * factor, budget.delta)
            found = CountedPlan(make(smaller), self, mechanism, smaller.epsilon)
            parts = [Part(r.label, r.mechanism.profile(), r.draws, r.folds) for r in found.releases]
            if Plan(tuple(parts)).profile.supports(budget):
                return found
        return make(budget)

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
        n_rows = int(cells.counts[0].sum())
        shares = np.clip(counts.reshape(cells.counts.shape) / n_rows, 0.0, 1.0)
        table: dict[str, Any] = {
            "deviation": self._mechanism.noise_scale / n_rows,
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
