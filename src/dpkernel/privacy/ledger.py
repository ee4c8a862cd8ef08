"""The ledger: it records every release of a data set, and it is the only source of noise.

``noise = ledger.spend(profile, label)`` first checks the ceiling, then records the spend, and only
then returns the object that can draw noise. A fit passes its whole ``Plan`` to one call of
``spend``. So either everything that the fit will release is reserved before the first draw, or
nothing is::

    ledger = Ledger("study.db", dataset="patients-2026", budget=Budget(3, 1e-6))
    mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(1, 1e-7), dimension=2)
    noise = ledger.spend(mechanism.profile(), "column means")
    released = mechanism.release(means, noise)

Without a file name, the ledger lives in the memory of this process. With a file name, it is shared
by every process, script and person that opens the file.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from dpkernel.foundations.entropy import this_process
from dpkernel.foundations.errors import LedgerError, ParameterError, parameter_message
from dpkernel.foundations.types import Budget, Neighbours, is_real, round_down
from dpkernel.privacy.filters import BasicFilter
from dpkernel.privacy.ledger_file import FileStore
from dpkernel.privacy.ledger_reader import LedgerReader
from dpkernel.privacy.ledger_settings import (
    check_text,
    checked_key,
    checked_settings,
    compare,
    is_text,
)
from dpkernel.privacy.ledger_store import (
    MemoryStore,
    Settings,
    Spend,
    Store,
    canonical_names,
    now,
    order_after_change,
    recorded_name,
)
from dpkernel.privacy.ledger_sums import (
    OF_PEOPLE,
    admit,
    fits,
    naive_sum,
    rule_of,
    settled,
    total,
    what_is_left,
)
from dpkernel.privacy.noise import (
    _MINT,
    Noise,
    NoiseSource,
    Plan,
    ResumableNoise,
    SystemNoise,
    generator_of,
    is_private,
    refuse_after_fork,
)
from dpkernel.privacy.profiles import PrivacyProfile

__all__ = ["OF_PEOPLE", "Forecast", "Ledger", "Spend"]


@dataclass(frozen=True)
class Forecast:
    """What a plan would do to a ledger, computed before anything is spent.

    Attributes
    ----------
    fits : bool
        Whether the plan fits under the ceiling.
    spent : Budget or None
        The total after the plan, by the ledger's rule. None if the plan does not fit.
    remaining : Budget or None
        What would still fit after the plan. None if nothing is left, if no ceiling is set, or if
        the plan does not fit.
    naive : Budget or None
        The plain sums of epsilon and delta after the plan, for comparison.
    """

    fits: bool
    spent: Budget | None
    remaining: Budget | None
    naive: Budget | None


class Ledger(LedgerReader):
    """A privacy budget, the record of what was spent of it, and the only source of noise.

    Parameters
    ----------
    path : str or Path, optional
        The file that holds the ledger. All processes that open it share one budget. Without a file,
        the ledger lives in the memory of this process.
    dataset : str, optional
        The name of the data set that the budget belongs to. One file may hold several data sets; if
        it holds only one, the name may be left out. Two names that look the same are the same
        budget: upper and lower case, surrounding spaces and the width of letters are ignored, and
        invisible characters are refused.
    budget : Budget, optional
        The ceiling. A data set is added to a file only if its ceiling is stated or
        ``unlimited=True``; otherwise a misspelt name would silently open a second budget. The file
        remembers the ceiling: later calls may leave it out but must not contradict it (use
        ``change_ceiling``). A ledger in memory without a ceiling records every spend and refuses
        none.
    neighbours : Neighbours or str, optional
        The neighbouring relation that all spends of this data set must be calibrated for. The
        default is the relation in the file, or "replace-one" for a new ledger.
    accounting : {"auto", "gaussian", "renyi", "basic"}, optional
        The rule that adds up the spends; see ``dpkernel.privacy.filters``. With "auto" the first
        spend decides: the rule is "renyi" or "basic", whichever charges that spend the smaller share
        of the ceiling. Both admit every kind of spend.
    parts : sequence of str
        Names of disjoint parts of the data set, fixed when the ledger is created; see ``part``. The
        ledger can't check that the parts are disjoint and relies on your word.
    unlimited : bool
        Whether to create a data set without a ceiling.
    read_only : bool
        Whether to open the file for reading only, without the right to spend.
    timeout : float
        How many seconds to wait while another process is spending.
    key : str, Path or bytes, optional
        The file that holds a secret key, or the key itself, of at least 16 bytes. It is fixed when
        the data set is added to the file. With a key, nobody who lacks it can change what is on
        record without being noticed. The default is the file that the environment variable
        DPKERNEL_LEDGER_KEY_FILE names. A ledger whose key was passed as bytes can't be pickled.

    Notes
    -----
    Copying a ledger, as scikit-learn's ``clone`` does, returns the same ledger and not a second
    budget. A ledger in a file can be pickled: the copy opens the same file. A ledger in memory
    can't be pickled.

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
        path: str | Path | None = None,
        *,
        dataset: str | None = None,
        budget: Budget | None = None,
        neighbours: Neighbours | str | None = None,
        accounting: str | None = None,
        parts: Sequence[str] = (),
        unlimited: bool = False,
        read_only: bool = False,
        timeout: float = 30.0,
        key: str | Path | bytes | None = None,
    ) -> None:
        wanted = checked_settings(budget, neighbours, accounting, parts)
        self._part: str | None = None
        self._store: Store
        if path is None:
            if dataset is not None or read_only or key is not None:
                raise ParameterError(
                    "A ledger in memory has no 'dataset', no 'key' and no 'read_only' mode. Pass a file"
                    " name as the first argument."
                )
            names = canonical_names(wanted.parts, "parts")
            self._store = MemoryStore(replace(wanted, parts=names))
            return
        if dataset is not None:
            check_text("dataset", dataset)
        if not is_real(timeout) or not 0 <= timeout <= 86_400:
            allowed = "a number of seconds from 0 to 86400"
            raise ParameterError(parameter_message("Ledger", "timeout", allowed, timeout))
        may_create = budget is not None or unlimited
        self._store = FileStore.open(
            Path(path),
            dataset,
            wanted if may_create else None,
            read_only=read_only,
            timeout=float(timeout),
            key=checked_key(key),
        )
        compare(self._store.settings(), budget, neighbours, accounting, parts)

    # --- spending ---------------------------------------------------------------------------

    def spend(
        self,
        what: Plan | PrivacyProfile,
        label: str,
        *,
        claim: Budget | None = None,
        neighbours: Neighbours | str | None = None,
        noise: NoiseSource | None = None,
    ) -> Noise:
        """Check the ceiling, record the spend, and return the noise that it paid for.

        Parameters
        ----------
        what : Plan or PrivacyProfile
            Everything that will be released. A single profile counts as a plan with one part.
        label : str
            The name of this spend in the history. It is public: put nothing of the data into it.
        claim : Budget, optional
            The point (epsilon, delta) of the profile that basic accounting charges.
        neighbours : Neighbours or str, optional
            The relation that the mechanisms were calibrated for. The spend is refused if it differs
            from the relation of the ledger.
        noise : NoiseSource, optional
            The source of the noise, ``SystemNoise()`` by default. A spend with a seeded source is
            recorded as not private.

        Returns
        -------
        Noise
            The right to draw the noise of each part of the plan, as often as the plan says.

        Raises
        ------
        BudgetExceededError
            If the spend does not fit. Then nothing was recorded and no noise can be drawn.
        LedgerError
            If the spend was calibrated for another neighbouring relation.
        """
        source = _checked_source(noise, SystemNoise())
        plan, spend = self._line(what, label, claim, neighbours, is_private(source))
        number = self._store.append(spend, lambda s, earlier: admit(s, earlier, spend))
        return self._noise(source, plan, replace(spend, number=number))

    def _resume(
        self,
        number: int,
        what: Plan,
        label: str,
        *,
        claim: Budget | None = None,
        neighbours: Neighbours | str | None = None,
        noise: NoiseSource,
    ) -> Noise:
        """Return the noise of a spend that is recorded already. Nothing further is recorded.

        It serves a fit that goes on from its resume file: ``noise`` is the source of that file, which
        gives the same noise however often it is asked. The other arguments are those of ``spend``.

        Raises
        ------
        LedgerError
            If this ledger has no such spend.
        """
        plan, spend = self._line(what, label, claim, neighbours, is_private(noise))
        known = [old for old in self._store.spends() if old.number == number]
        journal: Any = noise.journal if type(noise) is ResumableNoise else None
        paid = journal is not None and journal.paid and journal.spend == number
        same = known and all(
            getattr(known[0], name) == getattr(spend, name)
            for name in ("label", "plan_text", "claim", "private", "part")
        )
        # another spend has this number if an older copy of the ledger was put in its place
        if not paid or not same or known[0].time != journal.time:
            raise LedgerError(
                f"This ledger has no spend {number} for these releases, so the fit can't go on with it."
                " Pass the ledger that the fit was begun with. Nothing was drawn."
            )
        return self._noise(noise, plan, replace(spend, number=number))

    def _noise(self, source: NoiseSource, plan: Plan, spend: Spend) -> Noise:
        """Return the right to draw the noise of a recorded spend."""
        number, marked = spend.number, set[str]()

        def on_draw(part: str, _: object) -> None:
            if part not in marked:
                self._store.mark_drawn(number, part)
                marked.add(part)

        own = self._store.settings().neighbours
        found = Noise(_MINT, source, plan, own, on_draw, self._part)
        found.number, found.time = number, spend.time
        return found

    def reserve(
        self,
        plans: Mapping[str, Plan],
        label: str,
        *,
        claim: Budget,
        neighbours: Neighbours | str | None = None,
        noise: NoiseSource | None = None,
    ) -> tuple[dict[str, Ledger], Noise]:
        """Record the plans of several steps as one spend, or record nothing.

        Each step gets a ledger of its own. That ledger accepts the plan of its step only, once, and
        only in this process. It then hands out the noise that this spend paid for and records
        nothing further. The noise comes from the recorded source or from another equally good one.

        Returns
        -------
        steps : dict of str to Ledger
            The ledger of each step.
        whole : Noise
            The whole spend, for the certificate. Its parts are labelled "step: part". It can't draw
            noise itself, because the steps draw instead.
        """
        joined = Plan.joined(plans)
        whole = self.spend(joined, label, claim=claim, neighbours=neighbours, noise=noise)
        on_draw = whole._hand_over()
        steps: dict[str, Ledger] = {
            name: _StepLedger(self, name, plan, whole._source, on_draw)
            for name, plan in plans.items()
        }
        return steps, whole

    def check(
        self,
        what: Plan | PrivacyProfile,
        label: str,
        *,
        claim: Budget | None = None,
        neighbours: Neighbours | str | None = None,
    ) -> None:
        """Raise an error where ``spend`` would, but record nothing.

        Call it before a long computation whose result could not be paid for.
        """
        _, spend = self._line(what, label, claim, neighbours, True)
        admit(self._store.settings(), self._store.lines(), spend)

    def forecast(self, what: Plan | PrivacyProfile, *, claim: Budget | None = None) -> Forecast:
        """Return whether a plan would fit and what would be left, and record nothing."""
        settings, earlier = self._store.settings(), self._store.lines()
        people = any(line.label.endswith(OF_PEOPLE) for line in earlier)
        label = "forecast" + (OF_PEOPLE if people else "")  # of the kind that the ledger holds
        _, spend = self._line(what, label, claim, None, True)
        lines = [*earlier, spend]
        try:
            admit(settings, earlier, spend)
        except LedgerError:
            return Forecast(False, None, None, naive_sum(settings, lines))
        rule = rule_of(settings, lines)
        left = None if rule is None else what_is_left(settings, rule, lines, self._part)
        return Forecast(True, total(settings, rule, lines), left, naive_sum(settings, lines))

    def share(self, epsilon: float) -> Budget:
        """Return the budget of a fit with this epsilon and with its share of the ledger's delta.

        By basic accounting the deltas add up, so a fit that takes the whole delta would leave
        nothing for the next one. There the share is in proportion to epsilon: under a ceiling of
        (3, 3e-6), each of three fits with epsilon = 1 gets delta = 1e-6. By Gaussian and Renyi
        accounting the deltas do not add up, and a fit gets the whole. So does the first fit of an
        "auto" ledger, whose rule is then "renyi" unless that fit takes most of the ceiling. Nothing
        is spent here.

        Examples
        --------
        >>> from dpkernel import Budget, Ledger
        >>> ledger = Ledger(budget=Budget(3.0, 3e-6), accounting="basic")
        >>> print(ledger.share(1.0))
        epsilon = 1, delta = 1e-06
        """
        asked, ceiling = Budget(epsilon).epsilon, self.budget
        if ceiling is None:
            raise LedgerError("A ledger without a ceiling has no delta to share. State the delta.")
        adds_up = self.rule == BasicFilter.name
        part = Fraction(asked) / Fraction(ceiling.epsilon) if adds_up else 1
        return Budget(asked, round_down(Fraction(ceiling.delta) * min(part, 1)))

    def part(self, name: str) -> Ledger:
        """Return this ledger for one declared, disjoint part of the data set (a site, a year).

        The names were fixed by ``parts=`` when the ledger was created. A record is in one part
        only, so it is touched by the spends on that part and by the spends on the whole data set.
        The total is therefore the maximum over the parts, not the sum.

        Notes
        -----
        The part that a row belongs to must be public and the same in neighbouring data sets: under
        replace-one, a record is replaced within its part.

        The ledger never sees rows, so it relies on the caller's word that no record is in two
        parts. If one table is spent under two parts, it costs twice what the ledger counts. The
        certificates of a part name this assumption as "disjoint-ledger-parts".
        """
        if self._part is not None:
            raise LedgerError("A part can't be divided further: declare the finer parts directly.")
        known = self._store.settings().parts
        recorded = recorded_name(name, known, "parts") if is_text(name) else None
        if recorded is None:
            listed = ", ".join(repr(part) for part in known) or "none"
            allowed = f"one of the declared parts ({listed})"
            advice = "Declare parts when the ledger is made: Ledger(..., parts=('north', 'south'))."
            raise ParameterError(parameter_message("Ledger.part", "name", allowed, name, advice))
        return _reopen(self._store, recorded)

    def change_ceiling(self, budget: Budget, reason: str) -> None:
        """Set another ceiling and record the reason.

        A ceiling below what is already spent is refused. Only the owner of the data should raise
        the ceiling, and for reasons that do not come from the released results.
        """
        if not isinstance(budget, Budget):
            raise ParameterError(
                parameter_message("change_ceiling", "budget", "a Budget", type(budget).__name__)
            )

        check_text("reason", reason)

        def changed(settings: Settings, spends: Sequence[Spend]) -> Settings:
            order = order_after_change(settings, budget)
            found = settled(replace(settings, budget=budget, renyi_order=order), spends)
            rule = rule_of(found, spends)
            if spends and rule is not None and not fits(rule, spends):
                raise LedgerError(
                    f"The ceiling can't be set to {budget}: {total(found, rule, spends)} is already"
                    " spent. Nothing was changed."
                )
            return found

        self._store.change(reason, changed)

    def _line(
        self,
        what: object,
        label: str,
        claim: Budget | None,
        neighbours: Neighbours | str | None,
        private: bool,
    ) -> tuple[Plan, Spend]:
        check_text("label", label)
        if claim is not None and not isinstance(claim, Budget):
            raise ParameterError(
                parameter_message("Ledger.spend", "claim", "a Budget", type(claim).__name__)
            )
        if not isinstance(what, (Plan, PrivacyProfile)):
            raise ParameterError(
                parameter_message(
                    "Ledger.spend", "what", "a Plan or a PrivacyProfile", type(what).__name__
                )
            )
        relation = None if neighbours is None else Neighbours.resolve(neighbours)
        own = self._store.settings().neighbours
        if relation is not None and relation is not own:
            raise LedgerError(
                f"This ledger protects {own.value!r} neighbours, but the spend was"
                f" calibrated for {relation.value!r}. A data set has one relation: calibrate for it,"
                " or open another ledger. Nothing was spent."
            )
        plan = Plan.of(what, label)
        if not own.n_is_public and any(part.folds > 1 for part in plan.parts):
            raise LedgerError(
                f"Folds of row positions are not disjoint for {own.value!r} neighbours:"
                " removing a row moves all later rows into other folds. Nothing was spent."
            )
        text = json.dumps(plan.to_dict(), allow_nan=False)
        return plan, Spend(label, text, claim, private, now(), self._part)

    # --- one ledger stays one ledger ----------------------------------------------------------

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger:
        return self

    def __reduce__(self) -> Any:
        if isinstance(self._store, FileStore):
            if isinstance(self._store.key, bytes):
                raise LedgerError(
                    "A ledger whose key was passed as bytes can't be pickled, because the copy would"
                    " contain the key. Pass the name of a key file."
                )
            return _reopen, (self._store, self._part)
        raise LedgerError(
            "A ledger in memory can't be pickled: the copy would be a second budget. Use n_jobs=1,"
            " or a ledger file that all processes share: Ledger('study.db', dataset=...)."
        )


class _StepLedger(Ledger):
    """The ledger of one step of a spend that is already recorded; see ``Ledger.reserve``."""

    def __init__(
        self,
        whole: Ledger,
        name: str,
        plan: Plan,
        source: NoiseSource,
        on_draw: Callable[[str, object], None],
    ) -> None:
        self._store, self._part = whole._store, whole._part
        self._name, self._reserved, self._source, self._on_draw = name, plan, source, on_draw
        self._open, self._guard, self._process = True, threading.Lock(), this_process()

    def check(self, what: Plan | PrivacyProfile, label: str, **options: Any) -> None:
        """Raise unless this plan was reserved for the step, in this process, and is unused."""
        refuse_after_fork(self._process)
        plan, _ = self._line(what, label, options.get("claim"), options.get("neighbours"), True)
        if not self._open or plan != self._reserved:
            raise LedgerError(
                f"The step {self._name!r} asks for other releases than those reserved for it, or asks"
                " a second time. What was reserved stays spent."
            )

    def spend(self, what: Plan | PrivacyProfile, label: str, **options: Any) -> Noise:
        """Return the noise that was reserved for this step and record nothing further."""
        refuse_after_fork(self._process)  # before the lock: a fork may have copied it locked
        source = _checked_source(options.get("noise"), self._source)
        if is_private(self._source) and generator_of(source) != generator_of(self._source):
            raise LedgerError(
                f"The step {self._name!r} asks for noise from {generator_of(source)!r}, but the spend"
                f" was recorded with noise from {generator_of(self._source)!r}. What was reserved stays"
                " spent."
            )
        with self._guard:
            self.check(what, label, **options)
            self._open = False
        return Noise(
            _MINT,
            source,
            self._reserved,
            self.neighbours,
            lambda part, mechanism: self._on_draw(f"{self._name}: {part}", mechanism),
            self._part,
        )

    def __reduce__(self) -> Any:
        raise LedgerError("The ledger of a reserved step can't be pickled or copied.")


def _checked_source(given: object, default: NoiseSource) -> NoiseSource:
    """Return the given source of noise, or the default if none is given."""
    if given is None:
        return default
    if not isinstance(given, NoiseSource):
        raise ParameterError(
            parameter_message(
                "Ledger.spend", "noise", "a NoiseSource or None", type(given).__name__
            )
        )
    return given


def _reopen(store: Store, part: str | None) -> Ledger:
    found = object.__new__(Ledger)
    found._store, found._part = store, part
    return found
