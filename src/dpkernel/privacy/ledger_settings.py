"""The settings of a ledger: checked when it is created, and compared when it is opened again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dpkernel.foundations.environment import KEY_VARIABLE
from dpkernel.foundations.errors import LedgerError, ParameterError, parameter_message
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.privacy.filters import FILTERS, RenyiFilter, resolve_filter
from dpkernel.privacy.ledger_file import KEY_BYTES
from dpkernel.privacy.ledger_store import Settings, recorded_name


def checked_settings(
    budget: Budget | None,
    neighbours: Neighbours | str | None,
    accounting: str | None,
    parts: Sequence[str],
) -> Settings:
    """Return the settings of a new ledger, or raise if one of them is impossible."""
    names = () if isinstance(parts, str) else tuple(parts)
    if isinstance(parts, str) or not all(is_text(part) for part in names):
        raise ParameterError(parameter_message("Ledger", "parts", "different names", parts))
    if budget is not None and not isinstance(budget, Budget):
        raise ParameterError(
            parameter_message("Ledger", "budget", "a Budget or None", type(budget).__name__)
        )
    rule = "auto" if accounting is None else accounting
    if rule not in ("auto", *FILTERS):
        allowed = "one of 'auto', " + ", ".join(repr(name) for name in FILTERS)
        raise ParameterError(parameter_message("Ledger", "accounting", allowed, accounting))
    relation = Neighbours.REPLACE_ONE if neighbours is None else Neighbours.resolve(neighbours)
    order = None
    if budget is not None and rule != "auto":
        built = resolve_filter(rule, budget)  # refuses an impossible combination early
        order = built.order if isinstance(built, RenyiFilter) else None
    return Settings(budget, relation, rule, order, names, None if rule == "auto" else rule)


def compare(
    recorded: Settings,
    budget: Budget | None,
    neighbours: Neighbours | str | None,
    accounting: str | None,
    parts: Sequence[str],
) -> None:
    """Raise an error if the caller expects settings other than the recorded ones."""
    if neighbours is not None and Neighbours.resolve(neighbours) is not recorded.neighbours:
        raise LedgerError(
            f"This data set is recorded with {recorded.neighbours.value!r} neighbours, not"
            f" {Neighbours.resolve(neighbours).value!r}. A data set has one relation; with two,"
            " its guarantee would be ambiguous."
        )
    if budget is not None and budget != recorded.budget:
        on_record = "no ceiling" if recorded.budget is None else f"the ceiling {recorded.budget}"
        raise LedgerError(
            f"This data set is recorded with {on_record}, not {budget}. Leave 'budget' out to use"
            " the recorded one, or call change_ceiling."
        )
    if accounting is not None and accounting != recorded.accounting:
        raise LedgerError(
            f"This data set is recorded with accounting={recorded.accounting!r}, not"
            f" {accounting!r}. The rule can't be changed afterwards."
        )
    named = tuple(recorded_name(part, recorded.parts, "parts") for part in parts)
    if parts and named != recorded.parts:
        raise LedgerError(
            f"This data set is recorded with the parts {recorded.parts}, not {tuple(parts)}. They"
            " can't be changed afterwards."
        )


def checked_key(key: object) -> bytes | Path | None:
    """Return a key, or the file that holds it; without one, the file that the environment names."""
    found = os.environ.get(KEY_VARIABLE) or None if key is None else key
    if isinstance(found, bytes) and len(found) >= KEY_BYTES:
        return found
    if found is None or (isinstance(found, (str, Path)) and str(found)):
        return None if found is None else Path(found).absolute()
    allowed = f"the name of a file, or at least {KEY_BYTES} bytes"
    raise ParameterError(parameter_message("Ledger", "key", allowed, type(key).__name__))


def is_text(value: object) -> bool:
    """Return whether this is a text that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def check_text(name: str, text: object) -> None:
    """Raise unless this is a text that a ledger can record."""
    fine = is_text(text) and len(str(text)) <= 1000
    if fine:
        try:
            str(text).encode()
        except UnicodeEncodeError:
            fine = False
    if not fine:
        got = text if isinstance(text, str) and len(text) < 100 else type(text).__name__
        allowed = "a text of 1 to 1000 characters"
        raise ParameterError(parameter_message("Ledger", name, allowed, got))
