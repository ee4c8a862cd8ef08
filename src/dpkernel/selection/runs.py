"""The runs of a search, after its one spend. Only the result of the search may leave this module."""

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
from dpkernel.estimators.progress import Mute, Parts, heard
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
    """The runs of one search, whose spend is recorded. Only the result leaves it."""

    def __init__(
        self,
        fits: Fits,
        tables: Mapping[bool, tuple[Any, Any]],
        validation: tuple[Any, Any],
        loss: RowLoss,
        plan: SearchPlan,
        *,
        verbose: bool = False,
    ) -> None:
        self._fits, self._tables, self._validation = fits, tables, validation
        self._loss, self._plan = loss, plan
        self._verbose, self._parts = verbose, Parts(1.0)

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
        """Return the position of the chosen candidate, its model (None if it failed) and its score."""
        if isinstance(mechanism, HeldOutChoice):
            found: tuple[int, Any, Any] = mechanism.release(self._choose, noise)
            return found
        with heard(Mute()):  # the number of runs is secret
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
        again = self._plan.refit is not None
        self._parts = Parts(mechanism.candidates + again, verbose=self._verbose)
        models, totals = zip(
            *(self._candidate(i, source) for i in range(mechanism.candidates)), strict=True
        )
        noise = self._grant(mechanism.choice, source)
        place = mechanism.choice.release(-np.array(totals, dtype=np.float64), noise)
        return self._finish((place, models[place], None), source)

    def _candidate(self, i: int, source: NoiseSource) -> tuple[Any, int]:
        mechanism = self._plan.mechanism
        assert isinstance(mechanism, HeldOutChoice)
        with self._parts.part(f"candidate {i + 1} of {mechanism.candidates}"):
            return self._fitted(i, source)

    def _finish(
        self, found: tuple[int, Any, Any] | None, source: NoiseSource
    ) -> tuple[int, Any, Any]:
        """Fit the chosen candidate on all rows, if that is planned.

        If the search had no run, the first candidate is taken, fitted to a blank table. If the fit
        of the chosen candidate fails, it is fitted to a blank table, too.
        """
        place, model, score = (0, None, None) if found is None else found
        again = self._plan.refit is not None
        if again:
            with self._parts.part("the chosen one on all rows"):
                model = self._fit(place, True, source)
        if model is None:  # no run, or a failed one: an error would reveal something about the data
            model = self._fitted_to_nothing(place, again, source)
        return place, model, score

    def _fitted_to_nothing(self, i: int, everything: bool, source: NoiseSource) -> Any:
        """Return a candidate fitted to a blank table. If this fails, it would fail on every table."""
        why = "Every fit of the search failed, even on a blank table"
        try:
            return self._held(i, everything, source).fit(*self._fits.blank(everything))
        except (LedgerError, NoiseError):
            why = "The estimator asks for other noise than it announced for a fit, and got none"
        except Exception:
            pass  # the message of another library may quote an entry
        raise DPKernelError(f"{why}. The budget is spent. Try one candidate by itself.")

    def _fitted(self, i: int, source: NoiseSource) -> tuple[Any, int]:
        """Return a trained candidate and the sum of its validation losses.

        If a fit fails, the model of a blank table takes its place, so that the candidate is scored
        like the others. If this fails, too, the parameters are the reason, and the candidate has
        the largest loss.
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
        """Return the losses of the rows. A row that can't be scored has the largest possible loss.

        It does not affect the other rows: a copy of another row takes its place, so that the others
        are scored as in a table of the same size.
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
        except Exception:  # what failed, and where, would reveal something about the data
            return None

    def _fit(self, i: int, everything: bool, source: NoiseSource) -> Any:
        X, y = self._tables[everything]
        try:
            model = self._held(i, everything, source).fit(X, y)
            # a fit that drops rows at random would reveal a number that depends on their contents
            public = getattr(getattr(model, "certificate_", None), "public", {})
            return model if public.get("n_rows", len(y)) == len(y) else None
        except Exception:  # what failed, and where, would reveal something about the data
            return None

    def _held(self, i: int, everything: bool, source: NoiseSource) -> Any:
        budget = self._plan.refit if everything else self._plan.fit
        assert budget is not None
        return self._fits.held(i, budget, everything, _fresh(source))

    def _grant(self, mechanism: Any, source: NoiseSource) -> Noise:
        """Return noise for a part of the search, which was paid for as a whole."""
        inside = Ledger(neighbours=mechanism.sensitivity.neighbours)
        return inside.spend(mechanism.profile(), LABEL, noise=source)


def _fresh(source: NoiseSource) -> NoiseSource:
    """Return the source, or a newly seeded one, because a seeded source restarts with every fit."""
    if isinstance(source, SeededNoise):
        return SeededNoise(int(source.words(1)[0]) >> 1)
    return source


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the log and the warnings of fits, whose number would reveal how many fits ran."""
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
