"""How a fit keeps its releases in a file, and goes on from there after an interruption."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from dpkernel.data.blocks import BlockStream
from dpkernel.data.fingerprint import table_fingerprint
from dpkernel.data.sources import Source
from dpkernel.foundations.errors import ParameterError, ResumeError
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import Noise, Plan
from dpkernel.privacy.resume import ResumeFile, described


class Beside(Protocol):
    """Another release that is made beside a fit."""

    of_people: bool  # whether its records are people with all their rows

    def joined(self, make: Callable[[Budget], Any], budget: Budget, relation: Neighbours) -> Any:
        """Return a plan for the whole budget; ``make`` returns the plan of the fit for a budget."""

    def fingerprint(self, key: bytes) -> str:
        """Return a keyed fingerprint of the data behind the release."""

    def of_table(self) -> Beside:
        """Return the same release beside a fit to a table in which each person is one row."""


class Resumable:
    """Base class of estimators whose fit can go on from a resume file."""

    get_params: Callable[..., dict[str, Any]]
    _check_parameters: Callable[[], Any]
    _given_ledger: Callable[[], Ledger | None]
    noise: Any

    @contextlib.contextmanager
    def _resuming(self, path: Any) -> Iterator[None]:
        """Keep the releases of a fit in a resume file, or take them from it, if a path is given."""
        if path is None:
            yield
            return
        self._check_parameters()  # before the file is made
        kind = type(self)
        fit = described(f"{kind.__module__}.{kind.__qualname__}", self.get_params(deep=False))
        with contextlib.closing(ResumeFile(path, fit, self.noise)) as self._journal:
            try:
                yield
                self._journal.end()
            finally:
                del self._journal

    @property
    def _resumes(self) -> ResumeFile | None:
        """The resume file of the fit that is running, if it has one."""
        return self.__dict__.get("_journal")

    def _recognise(self, X: Any, table: Any, beside: Beside | None) -> None:
        """Compare the opened table with that of the resume file, by a pass over it."""
        journal = self._resumes
        assert journal is not None
        if isinstance(X, BlockStream) and not X.can_be_read_again:
            raise ParameterError(
                "A fit with 'resume' reads the table once more, but this stream can be read only once."
                " Give BlockStream a function that returns a new iterator at each call."
            )
        if not isinstance(table, Source) or table.kind == "torch":
            raise ParameterError(
                "'resume' needs an estimator and a table whose sums have the same bits each time:"
                " tensors are left out. Pass the table as an array."
            )
        names = self.__dict__.get("_set_aside", {}).get("feature_names_in_")
        found = table_fingerprint(table, journal.table_key)
        found += hashlib.sha256(journal.table_key + repr(names).encode()).hexdigest()
        journal.check_table(found + (beside.fingerprint(journal.table_key) if beside else ""))

    def _spend_once(self, ledger: Ledger, plan: Plan, name: str, about: Mapping[str, Any]) -> Noise:
        """Spend, or return the noise of the spend that the resume file says was made."""
        journal = self._resumes
        assert journal is not None
        journal.check_plan(plan)
        given = self._given_ledger() is not None
        if journal.paid and journal.in_ledger != given:
            raise ResumeError(
                "This fit was begun with a ledger, and must go on with it. Nothing was drawn."
                if journal.in_ledger
                else "This fit was begun without a ledger, and must go on without one."
            )
        if journal.paid and given:
            return ledger._resume(journal.spend, plan, name, **about, noise=journal.source)
        noise = ledger.spend(plan, name, **about, noise=journal.source)
        journal.pay(noise.number, about["claim"], given)
        return noise
