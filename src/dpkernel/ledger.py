"""The one door between data and the world.

``noise = ledger.spend(profile, label)`` checks the ceiling, records the spend, and only then
returns the object that can draw. A fit hands in its whole ``Plan`` and so reserves everything it
will release before its first draw, or nothing.

    ledger = Ledger(budget=Budget(3, 1e-6))
    mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(1, 1e-7), dimension=2)
    noise = ledger.spend(mechanism.profile(), "column means")
    released = mechanism.release(means, noise)

This file holds the ledger and its store in memory (one process).
"""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from dpkernel.errors import BudgetExceededError, LedgerError, ParameterError, parameter_message
from dpkernel.filters import FILTERS, Charge, Filter, resolve_filter
from dpkernel.noise import _MINT, Noise, NoiseSource, Plan, SystemNoise
from dpkernel.profiles import PrivacyProfile, profile_from_dict
from dpkernel.types import JSON, Budget, Neighbours


@dataclass(frozen=True)
class Spend:
    """One line of a ledger. ``drawn`` names the parts whose noise was drawn.

    A spend that was recorded but never drawn stays spent: nobody can prove that nothing left.
    """

    label: str
    plan: JSON
    claim: Budget | None
    private: bool
    time: str
    part: str | None = None
    drawn: tuple[str, ...] = ()
    number: int = 0

    @property
    def profile(self) -> PrivacyProfile:
        """The profile of the whole spend."""
        return profile_from_dict(self.plan["profile"])

    @property
    def charge(self) -> Charge:
        """What the ceiling's rule needs to know."""
        return Charge(self.profile, self.claim)

    @property
    def state(self) -> str:
        """'drawn', or 'recorded, not drawn'."""
        return "drawn" if self.drawn else "recorded, not drawn"


class Store(Protocol):
    """Where spends are kept: in memory here, in a file for a shared ledger."""

    def append(self, spend: Spend, admit: Callable[[Sequence[Spend]], None]) -> int:
        """Call ``admit`` with all earlier spends and record this one, as one atomic step."""

    def mark_drawn(self, number: int, label: str) -> None:
        """Note that noise of this part of the spend is about to be drawn."""

    def spends(self) -> list[Spend]:
        """Return all spends, oldest first."""


@dataclass
class _MemoryStore:
    records: list[Spend] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)
    process: int = field(default_factory=os.getpid)

    def append(self, spend: Spend, admit: Callable[[Sequence[Spend]], None]) -> int:
        if os.getpid() != self.process:
            raise LedgerError(
                "A ledger in memory belongs to the process that made it, and this is a forked"
                " one: two copies would each spend the whole budget. Use a ledger file."
            )
        with self.lock:
            admit(self.records)
            number = len(self.records) + 1
            self.records.append(replace(spend, number=number))
            return number

    def mark_drawn(self, number: int, label: str) -> None:
        with self.lock:
            spend = self.records[number - 1]
            if label not in spend.drawn:
                self.records[number - 1] = replace(spend, drawn=(*spend.drawn, label))

    def spends(self) -> list[Spend]:
        with self.lock:
            return list(self.records)


class Ledger:
    """A privacy budget, what was spent of it, and the only source of noise.

    Parameters
    ----------
    budget : Budget, optional
        The ceiling. Without one everything is recorded and nothing refused.
    neighbours : Neighbours or str
        The relation that all spends of this data set must have been calibrated for.
    accounting : {"auto", "gaussian", "renyi", "basic"}
        The rule that adds spends up; see ``dpkernel.filters``. "auto" lets the first spend
        decide: "gaussian" for a Gaussian one, "basic" otherwise.

    Copying a ledger, as scikit-learn's ``clone`` does, gives the same ledger, not a second budget.

    Examples
    --------
    >>> from dpkernel import Budget, Ledger, mechanisms
    >>> ledger = Ledger(budget=Budget(2.0, 1e-6))
    >>> mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=1)
    >>> noise = ledger.spend(mechanism.profile(), "a count")
    >>> released = mechanism.release([17.0], noise)
    >>> print(f"{ledger.spent.epsilon:.3f}")
    1.000
    """

    def __init__(
        self,
        *,
        budget: Budget | None = None,
        neighbours: Neighbours | str = Neighbours.REPLACE_ONE,
        accounting: str = "auto",
    ) -> None:
        if budget is not None and not isinstance(budget, Budget):
            raise ParameterError(
                parameter_message("Ledger", "budget", "a Budget or None", type(budget).__name__)
            )
        if accounting not in ("auto", *FILTERS):
            allowed = "one of 'auto', " + ", ".join(repr(name) for name in FILTERS)
            raise ParameterError(parameter_message("Ledger", "accounting", allowed, accounting))
        self.budget = budget
        self.neighbours = Neighbours.resolve(neighbours)
        self.accounting = accounting
        if budget is not None and accounting != "auto":
            resolve_filter(accounting, budget, None)  # refuses an impossible pair now
        self._store: Store = _MemoryStore()

    # --- spending ---------------------------------------------------------------------------

    def spend(
        self,
        what: Plan | PrivacyProfile,
        label: str,
        *,
        claim: Budget | None = None,
        neighbours: Neighbours | None = None,
        noise: NoiseSource | None = None,
    ) -> Noise:
        """Check the ceiling, record the spend, and return the noise that it paid for.

        Parameters
        ----------
        what : Plan or PrivacyProfile
            Everything that will be released; a profile is a plan with one part.
        label : str
            What the history calls it. Public: put nothing of the data into it.
        claim : Budget, optional
            The point of the profile that basic accounting charges.
        neighbours : Neighbours, optional
            The relation the mechanisms were calibrated for; refused unless it is the ledger's.
        noise : NoiseSource, optional
            ``SystemNoise()`` by default. A seeded source is recorded as not private.

        Raises
        ------
        BudgetExceededError
            The spend does not fit. Nothing was recorded and nothing can be drawn.
        """
        self._check_request(what, neighbours)
        plan = Plan.of(what, label)
        source = SystemNoise() if noise is None else noise
        spend = self._line(plan, label, claim, source)
        number = self._store.append(spend, lambda earlier: self._admit(earlier, spend))
        marked: set[str] = set()

        def on_draw(part: str) -> None:
            if part not in marked:
                self._store.mark_drawn(number, part)
                marked.add(part)

        return Noise(_MINT, source, plan, on_draw)

    def check(
        self,
        what: Plan | PrivacyProfile,
        label: str,
        *,
        claim: Budget | None = None,
        neighbours: Neighbours | None = None,
    ) -> None:
        """Raise as ``spend`` would, and record nothing: a look before a long computation."""
        self._check_request(what, neighbours)
        spend = self._line(Plan.of(what, label), label, claim, SystemNoise())
        self._admit(self.spends, spend)

    def _check_request(self, what: object, neighbours: Neighbours | None) -> None:
        if not isinstance(what, (Plan, PrivacyProfile)):
            raise ParameterError(
                parameter_message(
                    "Ledger.spend", "what", "a Plan or a PrivacyProfile", type(what).__name__
                )
            )
        if neighbours is not None and neighbours is not self.neighbours:
            raise LedgerError(
                f"This ledger protects {self.neighbours.value!r} neighbours and the spend was"
                f" calibrated for {neighbours.value!r}. One relation a data set: calibrate for it,"
                " or open another ledger. Nothing was spent."
            )

    def _line(self, plan: Plan, label: str, claim: Budget | None, source: NoiseSource) -> Spend:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return Spend(label, plan.to_dict(), claim, source.private, now)

    def _admit(self, earlier: Sequence[Spend], spend: Spend) -> None:
        if self.budget is None:
            return
        charges = [s.charge for s in (*earlier, spend)]
        rule = self._rule(charges)
        assert rule is not None
        if rule.admits(charges):
            return
        left = rule.remaining(charges[:-1])
        own = spend.claim or Budget(
            max(spend.profile.epsilon(self.budget.delta), 1e-12), self.budget.delta
        )
        raise BudgetExceededError(
            f"The spend {spend.label!r} ({own}) does not fit under the ceiling"
            f" ({self.budget}): {'nothing is' if left is None else str(left) + ' is'} left by"
            f" {rule.name} accounting of {len(earlier)} earlier spend(s). Nothing was spent. Ask for"
            " less, or agree on a higher ceiling with the data's owner."
        )

    def _rule(self, charges: Sequence[Charge]) -> Filter | None:
        if self.budget is None:
            return None
        return resolve_filter(self.accounting, self.budget, charges[0].profile if charges else None)

    # --- reading ----------------------------------------------------------------------------

    @property
    def spends(self) -> list[Spend]:
        """All recorded spends, oldest first."""
        return self._store.spends()

    @property
    def spent(self) -> Budget | None:
        """What was spent so far, by the ledger's rule; None for nothing.

        Without a ceiling the sums of basic composition at each spend's own claim.
        """
        charges = [s.charge for s in self.spends]
        rule = self._rule(charges)
        if rule is None:
            rule = resolve_filter("basic", Budget(1.0, 1e-6), None)
        return rule.spent(charges)

    @property
    def remaining(self) -> Budget | None:
        """What still fits, at the ledger's delta; None when nothing is left or no ceiling is set."""
        charges = [s.charge for s in self.spends]
        rule = self._rule(charges)
        return None if rule is None else rule.remaining(charges)

    # --- one ledger stays one ledger ----------------------------------------------------------

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger:
        return self

    def __reduce__(self) -> str:
        raise LedgerError(
            "A ledger in memory can't be pickled: the copy would be a second budget. Use n_jobs=1,"
            " or a ledger file that all processes share."
        )

    def __repr__(self) -> str:
        ceiling = "no ceiling" if self.budget is None else f"ceiling {self.budget}"
        spent = self.spent
        done = "nothing spent" if spent is None else f"spent {spent}"
        return f"<Ledger: {ceiling}; {done} in {len(self.spends)} spend(s)>"
