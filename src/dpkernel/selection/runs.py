"""The runs of a search, behind its one spend: what happens here stays here but for the result."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from dpkernel.data.cells import take_rows
from dpkernel.estimators.base import logger
from dpkernel.foundations.errors import DPKernelError, LedgerError, NoiseError
from dpkernel.foundations.types import IntArray
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import HeldOutChoice, RandomStopping
from dpkernel.privacy.noise import Noise, NoiseSource, SeededNoise
from dpkernel.selection.fits import Fits
from dpkernel.selection.losses import STEPS, RowLoss
from dpkernel.selection.plan import SearchPlan

LABEL = "model selection"


class Search:
    """The runs of one search, whose spend is on record. Nothing but its result leaves it."""

    def __init__(
        self,
        fits: Fits,
        tables: Mapping[bool, tuple[Any, Any]],
        validation: tuple[Any, Any],
        loss: RowLoss,
        plan: SearchPlan,
    ) -> None:
        self._fits, self._tables, self._validation = fits, tables, validation
        self._loss, self._plan = loss, plan

    @property
    def candidates(self) -> list[Mapping[str, Any]]:
        """The parameters that are tried."""
        return self._fits.candidates

    def check(self) -> None:
        """Raise if a fit that this search may run refuses its rows; called before the spend."""
        for everything, budget in ((False, self._plan.fit), (True, self._plan.refit)):
            if budget is not None:
                for i in range(len(self._fits)):
                    self._fits.check(i, *self._tables[everything], budget, everything)

    def run(self, mechanism: RandomStopping | HeldOutChoice, noise: Noise) -> tuple[int, Any, Any]:
        """Return the place of the chosen candidate, its fitted model (None if it failed), its score."""
        if isinstance(mechanism, HeldOutChoice):
            found: tuple[int, Any, Any] = mechanism.release(self._choose, noise)
            return found
        chosen: tuple[int, Any, Any] = mechanism.release(self._one_run, noise, self._finish)
        return chosen

    def _one_run(self, i: int, source: NoiseSource) -> tuple[float, Any]:
        """Train one candidate and release its score."""
        mechanism = self._plan.mechanism
        assert isinstance(mechanism, RandomStopping)
        model, total = self._fitted(i, source)
        noise = self._grant(mechanism.score, source)
        score = -float(mechanism.score.release(np.array([total]), noise)[0])
        return score, (i, model, score)

    def _choose(self, source: NoiseSource) -> tuple[int, Any, Any]:
        """Train all candidates and choose one."""
        mechanism = self._plan.mechanism
        assert isinstance(mechanism, HeldOutChoice)
        models, totals = zip(
            *(self._fitted(i, source) for i in range(mechanism.candidates)), strict=True
        )
        noise = self._grant(mechanism.choice, source)
        place = mechanism.choice.release(-np.array(totals, dtype=np.float64), noise)
        return self._finish((place, models[place], None), source)

    def _finish(
        self, found: tuple[int, Any, Any] | None, source: NoiseSource
    ) -> tuple[int, Any, Any]:
        """Fit the chosen candidate on all rows, if that is planned; a search of no run has a default.

        That is the first candidate, fitted to a table that tells nothing. So is a fit that fails.
        """
        place, model, score = (0, None, None) if found is None else found
        again = self._plan.refit is not None
        if again:
            model = self._fit(place, True, source)
        if model is None:  # no run, or one that failed: an error would tell of the data
            model = self._fitted_to_nothing(place, again, source)
        return place, model, score

    def _fitted_to_nothing(self, i: int, everything: bool, source: NoiseSource) -> Any:
        """Return a candidate fitted to a blank table; its failure is one for every table."""
        why = "Every fit of the search failed, also on a table that tells nothing"
        try:
            return self._held(i, everything, source).fit(*self._fits.blank(everything))
        except (LedgerError, NoiseError):
            why = "The estimator asks for other noise than it said that a fit would need, and got none"
        except Exception:
            pass  # a foreign text is not repeated
        raise DPKernelError(f"{why}. The budget is spent. Try one candidate by itself.")

    def _fitted(self, i: int, source: NoiseSource) -> tuple[Any, int]:
        """Return a trained candidate and the sum of its validation losses.

        In place of a fit that fails stands the model of a blank table, so that the candidate is scored
        like others. One that fails there, too, fails for its parameters, and has the largest loss.
        """
        X, y = self._validation
        model = self._fit(i, False, source)
        if model is None:
            with suppress(DPKernelError):
                model = self._fitted_to_nothing(i, False, source)
        if model is None:
            return None, len(y) * (STEPS // 2)
        return model, int(self._counts(model, X, y).sum())

    def _counts(self, model: Any, X: Any, y: Any) -> IntArray:
        """Return the losses of rows; a row that can't be scored has the largest and changes no other.

        Another row stands in its place, so that all others are scored as in a whole table.
        """
        found = self._counted(model, X, y)
        if found is not None:
            return found
        each = (self._counted(model, take_rows(X, [i]), take_rows(y, [i])) for i in range(len(y)))
        fine = np.array([one is not None for one in each])
        places = np.where(fine, np.arange(len(y)), np.argmax(fine))
        found = self._counted(model, take_rows(X, places), take_rows(y, places))
        worst = np.full(len(y), STEPS // 2)
        return worst if found is None else np.where(fine, found, worst)

    def _counted(self, model: Any, X: Any, y: Any) -> IntArray | None:
        try:
            return self._loss.counts(model, X, y)
        except Exception:  # what failed, and where, is a matter of the data
            return None

    def _fit(self, i: int, everything: bool, source: NoiseSource) -> Any:
        try:
            return self._held(i, everything, source).fit(*self._tables[everything])
        except Exception:  # what failed, and where, is a matter of the data
            return None

    def _held(self, i: int, everything: bool, source: NoiseSource) -> Any:
        budget = self._plan.refit if everything else self._plan.fit
        assert budget is not None
        return self._fits.held(i, budget, everything, _fresh(source))

    def _grant(self, mechanism: Any, source: NoiseSource) -> Noise:
        """Return noise for a part of the search, which has been paid for as a whole."""
        inside = Ledger(neighbours=mechanism.sensitivity.neighbours)
        return inside.spend(mechanism.profile(), LABEL, noise=source)


def _fresh(source: NoiseSource) -> NoiseSource:
    """Return the source, or another seeded one: a seeded source starts again with every fit."""
    if isinstance(source, SeededNoise):
        return SeededNoise(int(source.words(1)[0]) >> 1)
    return source


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what fits would log or warn of inside: their number would tell how many there were."""
    own = threading.get_ident()

    class Mine(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            return record.thread != own

    mine = Mine()
    logger.addFilter(mine)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeFilter(mine)
