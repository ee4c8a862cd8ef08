"""The property of the front door, from the definition of differential privacy.

One row is exchanged for a hostile one. Either every other row contributes, bit for bit, what it did
before, or the call is refused before anything is spent, in words that the documentation names and that
do not repeat the cell.
"""

from __future__ import annotations

import functools
import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from dpkernel import BlockStream, Ledger
from dpkernel.data.cells import as_numbers
from dpkernel.foundations.errors import DataError, LedgerError, ParameterError
from front_door_cases import (
    HOSTILE,
    LEVELS,
    MEMORY,
    NO_CASE,
    NOT_A_NUMBER,
    OTHERS,
    PLACE,
    TAKERS,
    TARGET,
    rows_with,
    table_of,
)

GUIDE = Path(__file__).parents[1] / "docs" / "guarantees.md"
_STANDS_FOR = (math.nan, math.inf, -math.inf)  # what a cell that is no number may count as
_DECLARED = (0.0, 1.0, 2.0, 3.0)
_OTHER = 77.0  # is no declared level


class BrokenError(AssertionError):
    """Another row's contribution changed, or a refusal was not one."""


@functools.cache
def documented() -> tuple[str, ...]:
    """Return the words of refusals that the documentation names, in the table of its section."""
    section = GUIDE.read_text(encoding="utf-8").split("## Refusals that depend on a row")[1]
    rows = [line for line in section.split("\n## ")[0].splitlines() if line.startswith("| `")]
    return tuple(re.match(r"\| `([^`]*)`", line)[1] for line in rows)  # type: ignore[index]


def refusal(error: Exception, ledger: Ledger) -> str:
    """Return "refused", or raise for a refusal that is none."""
    if not isinstance(error, (DataError, ParameterError, LedgerError)):
        raise BrokenError(f"{type(error).__name__}: {str(error)[:200]}") from error
    if ledger.spends:
        raise BrokenError(f"refused after a spend: {error}")
    seen: BaseException | None = error
    while seen is not None:
        if "secret" in str(seen):
            raise BrokenError("the refusal repeats the cell")
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    if not any(words in str(error) for words in documented()):
        raise BrokenError(f"not documented: {str(error)[:200]}")
    return "refused"


def attempt(name: str, X: Any, y: Any) -> tuple[Any, Ledger, set[str]]:
    """Return what a callable gives, or its error; its ledger; and what it warned of."""
    ledger = Ledger()
    with warnings.catch_warnings(record=True) as caught, np.errstate(under="ignore"):
        warnings.simplefilter("always")
        try:
            found: Any = TAKERS[name].call(X, y, ledger)
        except Exception as error:
            found = error
    return found, ledger, {str(one.message) for one in caught}


@functools.cache
def _oracle(name: str, container: str, number: float, column: int) -> Any:
    """Return what a callable gives for the number in the hostile row of a plain table."""
    if container in MEMORY:
        X, y = np.array(rows_with(number, column), dtype=np.float64), np.array(TARGET)
    else:
        from front_door_cases import STREAMS

        X, y = STREAMS[container](rows_with(number, column), TARGET)
    return attempt(name, X, y)[0]


@functools.cache
def _usual(name: str, container: str) -> tuple[Any, set[str]]:
    """Return what a callable gives for the table without a hostile row, and what it warns of."""
    if container == "":
        return attempt(name, np.array(rows_with(0.0), dtype=np.float64), np.array(TARGET))[::2]
    given = table_of(container, "")
    return (None, set()) if given is NO_CASE else attempt(name, *given)[::2]


def same(one: Any, other: Any, rows: Any = slice(None)) -> bool:
    """Whether two lists of arrays agree in every bit of these rows."""
    if isinstance(one, Exception) or isinstance(other, Exception) or len(one) != len(other):
        return False
    pairs = [
        [np.asarray(v.toarray() if hasattr(v, "toarray") else v) for v in p]
        for p in zip(one, other, strict=True)
    ]
    return all(
        len(a) == len(b)
        and np.ascontiguousarray(a[rows]).tobytes() == np.ascontiguousarray(b[rows]).tobytes()
        for a, b in ([np.atleast_1d(v) for v in pair] for pair in pairs)
    )


def _own_number(X: Any, column: int) -> list[float]:
    """Return the number that a container made of the cell in the hostile row, if it is one."""
    try:
        blocks = [block[0] for block in X] if isinstance(X, BlockStream) else [X]
        return [float(np.concatenate([as_numbers(block) for block in blocks])[PLACE, column])]
    except (DataError, TypeError, IndexError):
        return []


def judge(name: str, container: str, cell: str, column: int = 0) -> str:
    """Return "same", "refused" or "no case"; raise ``BrokenError`` otherwise."""
    given = table_of(container, cell, column)
    if given is NO_CASE:
        return "no case"
    found, ledger, said = attempt(name, *given)
    more = said - _usual(name, container)[1]
    if more:
        raise BrokenError(f"a warning that the usual table does not give: {sorted(more)[0][:200]}")
    if isinstance(found, Exception):
        return refusal(found, ledger)
    if TAKERS[name].by_row:
        if same(found, _usual(name, "")[0], OTHERS):
            return "same"
        raise BrokenError("the rows of others changed")
    number = HOSTILE[cell][1]
    levels = name in LEVELS and column == 0
    candidates = _STANDS_FOR if number is NOT_A_NUMBER else (number,)
    # or what the container made of it, as polars does of dates: of its own row it may
    candidates = (*candidates, *_own_number(given[0], column))
    # a cell of levels may be any of them: a text "True" is the level 1
    candidates = (*candidates, *_DECLARED, _OTHER) if levels else candidates
    for value in candidates:
        if same(found, _oracle(name, container, value, column)):
            return "same"
    raise BrokenError("what is released is not that of the plain table")
