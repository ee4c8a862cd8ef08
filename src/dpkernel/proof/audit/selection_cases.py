"""Attacks on a search that trains all candidates and chooses one of them on other rows.

The search is the one that ``PrivateSearchCV`` runs, with tiny candidates. A fit releases the sum of
its rows, and candidate i predicts i. So a validation record that changes from 0 to 1 moves the
scores of both candidates in opposite directions by as much as allowed. Rows of 1/2 have no effect.

Not handled: a row that is used both for training and for scores. With two candidates that change places,
the choice shows only half of its epsilon, and this leaves more room than such a row would use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import Exponential, Gaussian, HeldOutChoice
from dpkernel.privacy.mechanisms.selection import Line
from dpkernel.privacy.noise import Noise, NoiseSource
from dpkernel.proof.audit.core import Case
from dpkernel.selection.losses import STEPS, RowLoss, loss_sensitivity
from dpkernel.selection.plan import SearchPlan
from dpkernel.selection.runs import Search

_FIT_MU, _REFIT_MU = 0.8, 3.0
_REPLACED = Neighbours.REPLACE_ONE
_CHOICE = Budget(1.0)
_UNUSED = Budget(1.0)  # mechanisms are given, so nothing is calibrated to it


def selection_cases() -> list[Case]:
    """Return the cases of a validation row and of a training row, and their twins."""
    choice = Exponential.calibrate(loss_sensitivity(_REPLACED, "score"), _CHOICE, candidates=2)
    bare, whole = (_mechanism(choice, _FIT_MU, refit=refit) for refit in (False, True))
    silent = replace(bare, choice=replace(choice, rate=100 * choice.rate))
    quiet = _mechanism(choice, 4 * _FIT_MU, refit=False)
    name = "held-out choice"
    return [
        _case(f"{name}, validation row", whole, whole),
        _case(f"{name}, training row", bare, bare, trains=True),
        _case(f"{name}, un-noised", bare, silent, "a choice without noise"),
        _case(f"{name}, refit not charged", bare, whole, "a fit that costs nothing"),
        _case(f"{name}, fits of a quarter of the noise", bare, quiet, "quarter noise", trains=True),
    ]


def _mechanism(choice: Exponential, mu: float, *, refit: bool) -> HeldOutChoice:
    fits = tuple((Line("fit", _gaussian(mu)),) for _ in range(choice.candidates))
    late = ((Line("fit", _gaussian(_REFIT_MU)),),) if refit else ()
    return HeldOutChoice(choice.sensitivity, choice.candidates, fits, late, choice)


def _gaussian(mu: float) -> Any:
    return Gaussian.with_mu(loss_sensitivity(_REPLACED), mu, dimension=1, integer=True)


@dataclass
class _Tiny:
    """A candidate. Its fit releases the sum of its rows with noise, in deviations of the noise."""

    place: int
    mechanism: Any
    source: NoiseSource
    found: float = 0.0

    def fit(self, X: Array, y: Array) -> _Tiny:
        total = np.array([np.sum((y - 0.5) * STEPS)]).astype(np.int64)
        noise = Ledger(neighbours=_REPLACED).spend(
            self.mechanism.profile(), "fit", noise=self.source
        )
        released = float(self.mechanism.release(total, noise)[0])
        self.found = released / self.mechanism.noise_scale
        return self


class _TinyFits:
    """The fits of the candidates, with the interface that a search needs."""

    def __init__(self, mechanism: HeldOutChoice) -> None:
        self.mechanism = mechanism

    def held(self, i: int, budget: Budget, everything: bool, source: NoiseSource) -> _Tiny:
        fit = self.mechanism.refit[0] if everything else self.mechanism.training[i]
        return _Tiny(i, fit[0].mechanism, source)


def _losses(model: _Tiny, X: Array, y: Array) -> Array:
    return np.where(y == 0.5, 0.5, np.abs(y - model.place))


def _case(
    name: str,
    claimed: HeldOutChoice,
    drawn: HeldOutChoice,
    broken: str | None = None,
    *,
    trains: bool = False,
) -> Case:
    """Return the attack on one training or validation record, 0 or 1, among rows without effect.

    The score is the log-likelihood ratio of the output: the position of the chosen candidate, and what
    was released last.
    """
    refit = _UNUSED if drawn.refit else None
    plan = SearchPlan("exponential", 2, 2, 2, _UNUSED, _UNUSED, refit, mechanism=drawn)
    told = drawn.choice.profile().epsilon_value * (not trains) / 2
    last: Any = (drawn.refit or drawn.training)[0][0].mechanism
    mu = last.profile().mu * (trains or bool(drawn.refit))

    def search(record: float) -> Search:
        tables = [(np.zeros((2, 1)), np.array([one, 0.5])) for one in (record, 0.5)]
        train, held = tables if trains else tables[::-1]
        fits: Any = _TinyFits(drawn)
        every = {False: train, True: tables[0]}
        return Search(fits, every, held, RowLoss("audit", 1.0, _losses), plan)

    searches = search(0.0), search(1.0)

    def run(neighbour: bool, noise: Noise) -> float:
        chosen, model, _ = searches[int(neighbour)].run(drawn, noise)
        return float(told * (2 * chosen - 1) + mu * model.found)

    return Case(name, claimed.profile(), drawn, run, broken)
