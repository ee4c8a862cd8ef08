"""The runs of a search, behind its one spend: what happens here stays here but for the result."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from dpkernel.errors import DPKernelError
from dpkernel.estimators.base import logger
from dpkernel.ledger import Ledger
from dpkernel.mechanisms import HeldOutChoice, RandomStopping
from dpkernel.noise import Noise, NoiseSource, SeededNoise
from dpkernel.selection.losses import STEPS, RowLoss
from dpkernel.selection.plan import SearchPlan
from dpkernel.types import Budget

LABEL = "model selection"


class Search:
    """The runs of one search, whose spend is on record. Nothing but its result leaves it."""

    def __init__(
        self,
        candidate: Callable[[int, Budget, NoiseSource], Any],
        train: tuple[Any, Any],
        validation: tuple[Any, Any],
        everything: tuple[Any, Any],
        loss: RowLoss,
        plan: SearchPlan,
        blank: Callable[[], tuple[Any, Any]],
    ) -> None:
        self._candidate, self._loss, self._plan, self._blank = candidate, loss, plan, blank
        self._train, self._validation, self._everything = train, validation, everything

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
        refit = self._plan.refit
        if refit is not None:
            model = self._fit(place, refit, source, *self._everything)
        if model is None:  # no run, or one that failed: an error would tell of the data
            budget = self._plan.fit if refit is None else refit
            model = self._fit(place, budget, source, *self._blank())
        if model is None:
            raise DPKernelError(
                "Every fit of the search failed, also on a table that tells nothing, and the budget is"
                " spent. Try one candidate by itself."
            )
        return place, model, score

    def _fitted(self, i: int, source: NoiseSource) -> tuple[Any, int]:
        """Return a trained candidate and the sum of its validation losses; of a failure the largest."""
        X, y = self._validation
        model = self._fit(i, self._plan.fit, source, *self._train)
        worst = len(y) * (STEPS // 2)
        if model is None:
            return None, worst
        try:
            return model, int(self._loss.counts(model, X, y).sum())
        except Exception:  # what failed, and where, is a matter of the data
            return None, worst

    def _fit(self, i: int, budget: Budget, source: NoiseSource, X: Any, y: Any) -> Any:
        try:
            return self._candidate(i, budget, _fresh(source)).fit(X, y)
        except Exception:  # what failed, and where, is a matter of the data
            return None

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
