"""The fits of a search. Public numbers determine what each fit may release, and it gets no more noise.

Plans are made on a blank table with the public shape of the data. Therefore neither the candidates
that are left out nor the cost of the search can depend on the contents of the rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sklearn.base import clone

from dpkernel.data.tables import quietly
from dpkernel.foundations.errors import DataError, DPKernelError, ParameterError
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms.selection import Fit, Line
from dpkernel.privacy.noise import NoiseSource

Tables = Callable[
    [bool], tuple[Any, Any]
]  # whether all rows or the training rows -> a blank (X, y)
_FIT = "fit"  # the name of a fit in the ledger of a run


class Fits:
    """The candidates of a search on tables of public sizes."""

    def __init__(
        self,
        estimator: Any,
        candidates: Sequence[Mapping[str, Any]],
        relation: Neighbours,
        blank: Tables,
    ) -> None:
        self.estimator, self.candidates = estimator, list(candidates)
        self.relation, self.blank = relation, blank
        self._known: dict[tuple[int, Budget, bool], tuple[Release, ...]] = {}

    def __len__(self) -> int:
        return len(self.candidates)

    def planned(self, i: int, budget: Budget, everything: bool) -> tuple[Release, ...]:
        """Return what a fit of this candidate to all rows, or to the training rows, releases."""
        key = i, budget, everything
        if key not in self._known:
            model = self._candidate(i, budget)
            releases = model._planned(*self.blank(everything))
            if model._spending(releases)[1].nothing_proved:
                raise ParameterError(
                    f"What {type(model).__name__} releases has no proved guarantee to build on."
                )
            self._known[key] = releases
        return self._known[key]

    def lines(self, i: int, budget: Budget, everything: bool) -> Fit:
        """Return what ``planned`` returns, as lines of a mechanism."""
        releases = self.planned(i, budget, everything)
        return tuple(Line(r.label, r.mechanism, r.draws, r.folds) for r in releases)

    def held(self, i: int, budget: Budget, everything: bool, source: NoiseSource) -> Any:
        """Return a candidate to be fitted, whose ledger gives it the noise of its plan and no more.

        The search has already paid for it, so nothing further is recorded.
        """
        model = self._candidate(i, budget)
        plan = model._spending(self.planned(i, budget, everything))[1]
        own = Ledger(neighbours=self.relation)
        granted, _ = own.reserve({_FIT: plan}, type(model).__name__, claim=budget, noise=source)
        return model.set_params(ledger=granted[_FIT], noise=source)

    def left_out(self, budget: Budget) -> Fits:
        """Return the fits without refused candidates. Warn about these, or raise if all are refused.

        A candidate that refuses a blank table does so because of its parameters.
        """
        found, refused = [], []
        for i, candidate in enumerate(self.candidates):
            try:
                self.planned(i, budget, True)
            except ParameterError as error:
                refused.append(str(error))
            else:
                found.append(candidate)
        if not found:
            raise ParameterError(
                f"All {len(self)} candidates are refused, the first with: {refused[0]} Nothing was"
                " spent."
            )
        if refused:
            warnings.warn(
                f"{len(refused)} of {len(self)} candidates are refused and left out, the first with:"
                f" {refused[0]}",
                UserWarning,
                stacklevel=4,
            )
        return Fits(self.estimator, found, self.relation, self.blank)

    def check(self, i: int, X: Any, y: Any, budget: Budget, everything: bool) -> None:
        """Raise if a candidate refuses the data or bases its plan on them. Nothing is spent."""
        failed = ""
        try:
            with quietly():
                releases = self._candidate(i, budget)._planned(X, y)
        except DPKernelError:
            raise
        except Exception as error:
            failed = type(error).__name__  # the message of another library may quote an entry
        if failed:
            raise DataError(
                f"{type(self.estimator).__name__} can't use these data ({failed}). Nothing was spent."
            )
        if releases != self.planned(i, budget, everything):
            raise ParameterError(
                f"What {type(self.estimator).__name__} would release does not follow from the sizes of"
                " the table and its parameters alone. Nothing was spent."
            )

    def _candidate(self, i: int, budget: Budget) -> Any:
        found = clone(self.estimator).set_params(**self.candidates[i])
        own = Ledger(neighbours=self.relation)
        budgets = {"epsilon": budget.epsilon, "delta": budget.delta}
        return found.set_params(**budgets, ledger=own, noise=None, verbose=False)
