"""How a fit keeps its releases in a file, and goes on from there after an interruption."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from dpkernel.data.blocks import BlockStream
from dpkernel.data.cache import raw_bytes
from dpkernel.data.passes import Passes
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


@contextlib.contextmanager
def journal_of(estimator: Any, path: Any) -> Iterator[ResumeFile]:
    """Yield the resume file of a fit. It ends if the fit succeeds."""
    kind = type(estimator)
    name = f"{kind.__module__}.{kind.__qualname__}"
    fit = described(name, estimator.get_params(deep=False))
    with contextlib.closing(ResumeFile(path, fit, estimator.noise)) as journal:
        yield journal
        journal.end()


def recognise(journal: ResumeFile, X: Any, table: Any, beside: Beside | None) -> None:
    """Compare the opened table with that of the resume file, by a pass over it."""
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
    found = table_fingerprint(table, journal.table_key)
    found += hashlib.sha256(journal.table_key + repr(table.names).encode()).hexdigest()
    journal.check_table(found + (beside.fingerprint(journal.table_key) if beside else ""))


def spend_once(
    journal: ResumeFile,
    ledger: Ledger,
    given: bool,
    plan: Plan,
    name: str,
    about: Mapping[str, Any],
) -> Noise:
    """Spend, or return the noise of the spend that the resume file says was made.

    ``given`` says whether the user passed the ledger.
    """
    journal.check_plan(plan)
    if journal.paid and journal.in_ledger != given:
        raise ResumeError(
            "This fit was begun with a ledger, and must go on with it. Nothing was drawn."
            if journal.in_ledger
            else "This fit was begun without a ledger, and must go on without one."
        )
    if journal.paid and given:
        return ledger._resume(journal.spend, plan, name, **about, noise=journal.source)
    noise = ledger.spend(plan, name, **about, noise=journal.source)
    journal.pay(noise.number, noise.time, about["claim"], given)
    return noise


def table_fingerprint(source: Source, key: bytes) -> str:
    """Return a keyed fingerprint of all rows and targets, as they are read; one pass over the table.

    It is equal for equal rows in equal order, and says nothing without the key.
    """
    sizes = source.kind, source.n_rows, source.n_columns, source.target_shape
    whole = hashlib.blake2b(repr(sizes).encode(), key=key, digest_size=32)
    for table in (source, *source.more):
        for part in Passes(table).run(_digest, key):
            whole.update(part)
    return whole.hexdigest()


def _digest(blocks: Iterable[tuple[Any, ...]], key: bytes) -> bytes:
    found = hashlib.blake2b(key=key, digest_size=32)
    for block in blocks:
        for values in map(np.ascontiguousarray, block):
            found.update(raw_bytes(values))
    return found.digest()
