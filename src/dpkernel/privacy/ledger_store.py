"""The content of a ledger: settings, spends, the spelling of names, and the store in memory."""

from __future__ import annotations

import datetime
import json
import threading
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

from dpkernel.foundations.entropy import this_process
from dpkernel.foundations.errors import LedgerError, ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Budget, Neighbours
from dpkernel.privacy.filters import LEAK_SHARE, Price, RenyiFilter
from dpkernel.privacy.profiles import PrivacyProfile, profile_from_dict


@dataclass(frozen=True)
class Settings:
    """The settings of a data set: ceiling, neighbouring relation, accounting rule and parts.

    ``accounting`` is the rule that was asked for, and ``rule`` is the one that applies. With "auto"
    it is None until the first spend. ``renyi_order`` and ``leak_share`` belong to the Renyi rule and
    never change, because the bound of a filter holds only if they are fixed at the start.
    """

    budget: Budget | None
    neighbours: Neighbours
    accounting: str
    renyi_order: float | None = None
    parts: tuple[str, ...] = ()
    rule: str | None = None
    leak_share: float = LEAK_SHARE


Decision = Callable[["Settings", "Sequence[Spend]"], Settings]


@dataclass(frozen=True)
class Spend:
    """One recorded spend of a ledger.

    A spend that was recorded but whose noise was never drawn stays spent, because nobody can prove
    that nothing was released.

    Attributes
    ----------
    label : str
        What the spend was for.
    plan_text : str
        The plan as JSON text; see ``plan`` and ``profile``.
    claim : Budget or None
        The point of its profile that the spend claims.
    private : bool
        False if its noise was seeded, so that it has no guarantee.
    time : str
        When it was recorded.
    part : str or None
        The declared disjoint part of the data set that the spend touched, or None for all of it.
    drawn : tuple of str
        The parts of the plan whose noise was drawn.
    number : int
        Its number in the ledger, from 1 on.
    prices : dict
        What accounting rules have already computed from the profile and the claim.
    """

    label: str
    plan_text: str
    claim: Budget | None
    private: bool
    time: str
    part: str | None = None
    drawn: tuple[str, ...] = ()
    number: int = 0
    prices: dict[str, Price] = field(default_factory=dict, compare=False, repr=False)

    @property
    def plan(self) -> JSON:
        """The plan as JSON values: its parts with their profiles, and the profile of the whole."""
        found: JSON = json.loads(self.plan_text)
        return found

    @property
    def profile(self) -> PrivacyProfile:
        """The profile of the whole spend."""
        try:
            return _read_profile(self.plan_text)
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(
                f"Spend {self.number} of this ledger can't be read ({error}). Nothing was changed;"
                " restore the file from a backup that is not older than the last spend."
            ) from error

    @property
    def state(self) -> str:
        """One of 'drawn', 'partly drawn' or 'recorded, not drawn'."""
        if not self.drawn:
            return "recorded, not drawn"
        return "drawn" if len(self.drawn) == len(self.plan["parts"]) else "partly drawn"


class Store(Protocol):
    """The place where spends are kept: in memory, or in a file that processes share."""

    def settings(self) -> Settings:
        """Return the recorded settings."""

    def append(self, spend: Spend, admit: Decision) -> int:
        """Record a spend and the settings that ``admit`` returns, as one atomic step.

        ``admit`` gets the settings and all earlier spends; it raises if the spend does not fit.
        """

    def mark_drawn(self, number: int, label: str) -> None:
        """Record that noise of this part of the spend is about to be drawn."""

    def spends(self) -> list[Spend]:
        """Return all spends, oldest first."""

    def lines(self) -> Sequence[Spend]:
        """Return what ``append`` passes to ``admit``: all spends, perhaps without ``drawn``."""

    def change(self, reason: str, decide: Decision) -> None:
        """Record the settings that ``decide`` returns, and the reason, as one atomic step."""

    def ceilings(self) -> list[tuple[str, Budget, str]]:
        """Return all ceilings so far, each with its starting time, its budget and its reason."""


@dataclass
class MemoryStore:
    """The spends of a ledger that lives in the memory of one process."""

    current: Settings
    records: list[Spend] = field(default_factory=list)
    changes: list[tuple[str, Budget, str]] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    process: tuple[int, int] = field(default_factory=this_process)

    def settings(self) -> Settings:
        """Return the settings."""
        return self.current

    def append(self, spend: Spend, admit: Decision) -> int:
        """Check and record one spend under the lock."""
        if this_process() != self.process:
            raise LedgerError(
                "A ledger in memory belongs to the process that made it, and this process is a fork"
                " of it: two copies would each spend the whole budget. Use a ledger file."
            )
        with self.lock:
            self.current = admit(self.current, self.records)
            number = len(self.records) + 1
            self.records.append(replace(spend, number=number))
            return number

    def mark_drawn(self, number: int, label: str) -> None:
        """Record the draw."""
        with self.lock:
            spend = self.records[number - 1]
            if label not in spend.drawn:
                self.records[number - 1] = replace(spend, drawn=(*spend.drawn, label))

    def spends(self) -> list[Spend]:
        """Return a copy of the list."""
        with self.lock:
            return list(self.records)

    lines = spends

    def change(self, reason: str, decide: Decision) -> None:
        """Record other settings under the lock."""
        with self.lock:
            self.current = decide(self.current, self.records)
            if self.current.budget is not None:
                self.changes.append((now(), self.current.budget, reason))

    def ceilings(self) -> list[tuple[str, Budget, str]]:
        """Return a copy of the list."""
        with self.lock:
            return list(self.changes)


def order_after_change(settings: Settings, budget: Budget) -> float | None:
    """Return the Renyi order after a change of the ceiling: that of the first ceiling stays."""
    if settings.renyi_order is not None or settings.accounting != RenyiFilter.name:
        return settings.renyi_order
    return RenyiFilter(settings.budget or budget).order


def now() -> str:
    """Return the current time (UTC) as ISO text."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


@lru_cache(maxsize=65_536)
def _read_profile(text: str) -> PrivacyProfile:
    """Return the profile of a plan, cached because a ledger reads all plans again at every spend."""
    return profile_from_dict(json.loads(text)["profile"])


# --- the spelling of names ----------------------------------------------------------------------------

_HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")  # control, format, private, unassigned
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | {
    chr(code) for span in (range(0xFE00, 0xFE10), range(0xE0100, 0xE01F0)) for code in span
}  # letters and marks that are invisible
_ALIKE = ("LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "COPTIC", "CHEROKEE")


def canonical_name(name: object, parameter: str) -> str:
    """Return the one spelling of a new name; refuse names that look like another name.

    Letters are composed and brought to their usual width (NFKC), and runs of spaces become one
    space. Invisible characters are refused, and so are mixtures of alphabets with letters that look
    alike. A word written entirely in look-alike letters of another alphabet can't be recognised
    with the tables of Python.
    """
    text = _plain(name) if isinstance(name, str) else ""
    if not text or any(_hidden(letter) for letter in text):
        allowed = "a text without invisible characters"
    elif len({_alphabet(letter) for letter in text} & set(_ALIKE)) > 1:
        allowed = "a name in the letters of one alphabet, because letters of others look alike"
    else:
        return text
    got = ascii(name) if isinstance(name, str) else type(name).__name__
    raise ParameterError(parameter_message("Ledger", parameter, allowed, got[:100]))


def canonical_names(names: Iterable[object], parameter: str) -> tuple[str, ...]:
    """Return the spelling of several new names; no two of them may be the same name."""
    found = tuple(canonical_name(name, parameter) for name in names)
    if len({_key(name) for name in found}) != len(found):
        allowed = "different names (upper and lower case count as the same)"
        raise ParameterError(parameter_message("Ledger", parameter, allowed, found))
    return found


def recorded_name(name: str, known: Sequence[str], parameter: str) -> str | None:
    """Return the recorded name that is meant, or None if there is none.

    Width, case, spaces and the composition of letters are ignored. A name that an older version
    recorded is found by its exact spelling, even if it would be refused now.
    """
    exact = unicodedata.normalize("NFC", name).strip()
    if exact in known:
        return exact
    text = canonical_name(name, parameter)
    found = [other for other in known if _key(other) == _key(text)]
    if len(found) > 1:
        raise LedgerError(
            f"The name {text!r} may mean any of {found}, which an older version kept apart. Spell it"
            " exactly as one of them."
        )
    return found[0] if found else None


def _plain(name: str) -> str:
    return " ".join(word for word in unicodedata.normalize("NFKC", name).strip().split(" ") if word)


def _hidden(letter: str) -> bool:
    return letter in _BLANK or unicodedata.category(letter) in _HIDDEN


def _alphabet(letter: str) -> str:
    return unicodedata.name(letter, "").split(" ")[0] if letter.isalpha() else ""


def _key(name: str) -> str:
    """Return a form that is the same for all spellings of a name."""
    seen = "".join(letter for letter in _plain(name) if not _hidden(letter))
    return _plain(unicodedata.normalize("NFKC", seen).casefold())
