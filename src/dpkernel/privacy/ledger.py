"""The one door between data and the world.

``noise = ledger.spend(profile, label)`` checks the ceiling, records the spend, and only then
returns the object that can draw. A fit hands in its whole ``Plan`` and so reserves everything it
will release before its first draw, or nothing.

    ledger = Ledger("study.db", dataset="patients-2026", budget=Budget(3, 1e-6))
    mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(1, 1e-7), dimension=2)
    noise = ledger.spend(mechanism.profile(), "column means")
    released = mechanism.release(means, noise)

Without a file name the ledger lives in this process; with one it is shared by every process, script
and person that opens the file.
"""

from __future__ import annotations

import csv
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpkernel.foundations.entropy import this_process
from dpkernel.foundations.errors import (
    BudgetExceededError,
    LedgerError,
    ParameterError,
    parameter_message,
)
from dpkernel.foundations.types import JSON, Budget, Neighbours, is_real
from dpkernel.privacy.filters import (
    FILTERS,
    Charge,
    Filter,
    RenyiFilter,
    epsilon_at,
    resolve_filter,
)
from dpkernel.privacy.ledger_file import FileStore
from dpkernel.privacy.ledger_store import (
    MemoryStore,
    Settings,
    Spend,
    Store,
    canonical_names,
    now,
    recorded_name,
)
from dpkernel.privacy.noise import (
    _MINT,
    Noise,
    NoiseSource,
    Plan,
    SystemNoise,
    generator_of,
    is_private,
    refuse_after_fork,
)
from dpkernel.privacy.profiles import PrivacyProfile


@dataclass(frozen=True)
class Forecast:
    """What a plan would do to a ledger, before anything is spent."""

    fits: bool
    spent: Budget | None
    remaining: Budget | None
    naive: Budget | None


class Ledger:
    """A privacy budget, what was spent of it, and the only source of noise.

    Parameters
    ----------
    path : str or Path, optional
        A file that all processes share. Without one the ledger lives in this process.
    dataset : str, optional
        The data set the budget belongs to. A file may hold several; the name may be left out when
        it holds one. Capitals, spaces around it and the width of letters do not make another name, and
        characters that do not show are refused: what looks like one name is one budget.
    budget : Budget, optional
        The ceiling. A data set is added to a file only when its ceiling is stated (or
        ``unlimited=True``), so that a misspelt name is an error and no second budget. The file
        remembers it: later calls may leave it out, and must not contradict it
        (``change_ceiling``). A ledger in memory without one records and refuses nothing.
    neighbours : Neighbours or str
        The relation that all spends of this data set must have been calibrated for; replace-one
        unless the file says otherwise.
    accounting : {"auto", "gaussian", "renyi", "basic"}
        The rule that adds spends up; see ``dpkernel.privacy.filters``. "auto" lets the first spend
        decide: "gaussian" for a Gaussian one, "basic" otherwise.
    parts : sequence of str
        Names of disjoint parts of the data set, fixed when the ledger is made; see ``part``. That they
        are disjoint rests on your word.
    unlimited : bool
        Make a data set without a ceiling.
    read_only : bool
        Read a file without the right to spend.
    timeout : float
        Seconds to wait for another process that is spending.

    Copying a ledger, as scikit-learn's ``clone`` does, gives the same ledger, not a second budget.
    A ledger with a file can be pickled: the copy opens the same file.

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
    ) -> None:
        wanted = _check_settings(budget, neighbours, accounting, parts)
        self._part: str | None = None
        self._store: Store
        if path is None:
            if dataset is not None or read_only:
                raise ParameterError(
                    "A ledger in memory has no 'dataset' and no 'read_only' mode; pass a file name"
                    " as the first argument."
                )
            names = canonical_names(wanted.parts, "parts")
            self._store = MemoryStore(replace(wanted, parts=names))
            return
        if dataset is not None:
            _check_text("dataset", dataset)
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
        )
        self._compare(self._store.settings(), budget, neighbours, accounting, parts)

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
        source = _checked_source(noise, SystemNoise())
        plan, spend = self._line(what, label, claim, neighbours, is_private(source))
        number = self._store.append(spend, lambda s, earlier: _admit(s, earlier, spend))
        marked: set[str] = set()

        def on_draw(part: str, _: object) -> None:
            if part not in marked:
                self._store.mark_drawn(number, part)
                marked.add(part)

        return Noise(_MINT, source, plan, self.neighbours, on_draw, self._part)

    def reserve(
        self,
        plans: Mapping[str, Plan],
        label: str,
        *,
        claim: Budget,
        neighbours: Neighbours | str | None = None,
        noise: NoiseSource | None = None,
    ) -> tuple[dict[str, Ledger], Noise]:
        """Record the plans of several steps in one spend, or nothing; return a ledger for each step.

        A step's ledger refuses everything but its own plan, and that once and in this process: it
        hands out the noise that this spend paid for and records nothing further. That noise comes from
        the source that is on record, or from another that is as good. The spend itself, whose parts are
        labelled "step: part", is returned to be certified; what it could draw is struck off.
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
        """Raise as ``spend`` would, and record nothing: a look before a long computation."""
        _, spend = self._line(what, label, claim, neighbours, True)
        _admit(self._store.settings(), self.spends, spend)

    def forecast(self, what: Plan | PrivacyProfile, *, claim: Budget | None = None) -> Forecast:
        """Return whether a plan would fit and what would be left; record nothing."""
        _, spend = self._line(what, "forecast", claim, None, True)
        settings, earlier = self._store.settings(), self.spends
        lines = [*earlier, spend]
        try:
            _admit(settings, earlier, spend)
        except LedgerError:
            return Forecast(False, None, None, _naive(settings, lines))
        rule = _rule(settings, lines)
        left = None if rule is None else _left(settings, rule, lines, self._part)
        return Forecast(True, _worst(settings, rule, lines), left, _naive(settings, lines))

    def part(self, name: str) -> Ledger:
        """Return this ledger for a declared disjoint part of the data set (a site, a year).

        The names were fixed by ``parts=`` when the ledger was made. Spends on different parts count
        by their maximum: a record is in one part only, so it is touched by that part's spends and by
        those on the whole. Which part a row belongs to must
        be public and the same in neighbouring data sets: under replace-one a record is replaced
        within its part.

        That no record is in two parts rests on the caller's word: the ledger never sees rows. One table
        spent under two parts costs twice what the ledger counts. Certificates of a part name this among
        their assumptions, as "disjoint-ledger-parts".
        """
        if self._part is not None:
            raise LedgerError("Parts are not divided further: name the finer parts directly.")
        known = self._store.settings().parts
        recorded = recorded_name(name, known, "parts") if _is_text(name) else None
        if recorded is None:
            listed = ", ".join(repr(part) for part in known) or "none"
            allowed = f"one of the declared parts ({listed})"
            advice = "Declare parts when the ledger is made: Ledger(..., parts=('north', 'south'))."
            raise ParameterError(parameter_message("Ledger.part", "name", allowed, name, advice))
        return _reopen(self._store, recorded)

    def change_ceiling(self, budget: Budget, reason: str) -> None:
        """Set another ceiling, for a reason that stays on record.

        A ceiling below what is already spent is refused. Raising one is a decision of the data's
        owner, to be taken for reasons that do not come from the released results.
        """
        if not isinstance(budget, Budget):
            raise ParameterError(
                parameter_message("change_ceiling", "budget", "a Budget", type(budget).__name__)
            )

        _check_text("reason", reason)

        def admit(settings: Settings, spends: Sequence[Spend]) -> None:
            changed = replace(settings, budget=budget)
            rule = _rule(changed, spends)
            if spends and rule is not None and not _fits(rule, spends):
                spent = _worst(changed, rule, spends)
                raise LedgerError(
                    f"The ceiling can't be set to {budget}: {spent} is already spent."
                    " Nothing was changed."
                )

        self._store.change_ceiling(budget, reason, admit)

    def _line(
        self,
        what: object,
        label: str,
        claim: Budget | None,
        neighbours: Neighbours | str | None,
        private: bool,
    ) -> tuple[Plan, Spend]:
        _check_text("label", label)
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
        if relation is not None and relation is not self.neighbours:
            raise LedgerError(
                f"This ledger protects {self.neighbours.value!r} neighbours and the spend was"
                f" calibrated for {relation.value!r}. One relation a data set: calibrate for it,"
                " or open another ledger. Nothing was spent."
            )
        plan = Plan.of(what, label)
        if not self.neighbours.n_is_public and any(part.folds > 1 for part in plan.parts):
            raise LedgerError(
                f"Folds of row positions are not disjoint for {self.neighbours.value!r} neighbours:"
                " a removed row moves all later ones into other folds. Nothing was spent."
            )
        text = json.dumps(plan.to_dict(), allow_nan=False)
        return plan, Spend(label, text, claim, private, now(), self._part)

    # --- reading ----------------------------------------------------------------------------

    @property
    def budget(self) -> Budget | None:
        """The ceiling."""
        return self._store.settings().budget

    @property
    def neighbours(self) -> Neighbours:
        """The relation that all spends are calibrated for."""
        return self._store.settings().neighbours

    @property
    def accounting(self) -> str:
        """The rule, as asked for; ``rule`` names the one in force."""
        return self._store.settings().accounting

    @property
    def rule(self) -> str | None:
        """The rule in force; None before the first spend decides, or without a ceiling."""
        settings, spends = self._store.settings(), self.spends
        if settings.accounting == "auto" and not spends:
            return None
        found = _rule(settings, spends)
        return None if found is None else found.name

    @property
    def spends(self) -> list[Spend]:
        """All recorded spends, oldest first."""
        return self._store.spends()

    @property
    def spent(self) -> Budget | None:
        """What was spent so far, by the ledger's rule; None for nothing.

        Parts count by their maximum; on ``ledger.part(name)`` what touches that part. Without a
        ceiling the naive sums.
        """
        settings, spends = self._store.settings(), self._touching()
        return _worst(settings, _rule(settings, self.spends), spends)

    @property
    def remaining(self) -> Budget | None:
        """What still fits, at the ledger's delta; None when nothing is left or no ceiling is set.

        On ``ledger.part(name)`` what still fits for that part.
        """
        settings, spends = self._store.settings(), self.spends
        rule = _rule(settings, spends)
        return None if rule is None else _left(settings, rule, spends, self._part)

    @property
    def naive(self) -> Budget | None:
        """The plain sums of epsilon and delta at each spend's own claim, for comparison.

        A spend without a claim counts at the ledger's delta (1e-6 without a ceiling).
        """
        return _naive(self._store.settings(), self._touching())

    @property
    def ceilings(self) -> list[tuple[str, Budget, str]]:
        """Every ceiling there was: since when, how much, and why."""
        return self._store.ceilings()

    def _touching(self) -> list[Spend]:
        spends = self.spends
        return spends if self._part is None else [s for s in spends if s.part in (None, self._part)]

    def history(self) -> list[JSON]:
        """Return one row a spend: number, time, label, part, epsilon, delta, private, state."""
        settings = self._store.settings()
        return [_row(settings, spend) for spend in self._touching()]

    def export(self, path: str | Path) -> Path:
        """Write the history as JSON (with every profile) or CSV, by the file name's ending."""
        path = Path(path)
        own = self._store.path if isinstance(self._store, FileStore) else None
        if own is not None and path.exists() and path.samefile(own):
            raise ParameterError(
                "The export would overwrite the ledger itself: choose another name."
            )
        if path.suffix == ".csv":
            columns = ("number", "time", "label", "part", "epsilon", "delta", "private", "state")
            with path.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, columns, extrasaction="ignore")
                writer.writeheader()
                writer.writerows(self.history())
        elif path.suffix == ".json":
            path.write_text(json.dumps(self._as_json(), indent=2) + "\n", encoding="utf-8")
        else:
            raise ParameterError(
                parameter_message(
                    "Ledger.export", "path", "a name ending in .json or .csv", path.name
                )
            )
        return path

    def course(self, most: int = 200) -> list[tuple[int, float, float | None]]:
        """Return (spends so far, naive epsilon, epsilon by the rule) after each spend, or a selection.

        The last is None without a ceiling.
        """
        settings, spends = self._store.settings(), self._touching()
        steps = sorted({round(i) for i in np.linspace(1, len(spends), min(len(spends), most))})
        rule = _rule(settings, self.spends)

        def used(count: int) -> float | None:
            return None if rule is None else _epsilon(_worst(settings, rule, spends[:count]))

        return [(i, _epsilon(_naive(settings, spends[:i])), used(i)) for i in steps]

    def plot(self, path: str | Path) -> Path:
        """Draw what was spent, spend by spend, under the ceiling; write it as a picture."""
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        budget, course = self.budget, [(0, 0.0, None), *self.course()]
        steps = [step for step, _, _ in course]
        figure = Figure(figsize=(7.0, 4.2), layout="constrained")
        axes = figure.add_subplot()
        naive = [epsilon for _, epsilon, _ in course]
        axes.step(steps, naive, where="post", marker=".", color="#777777", label="naive sum")
        if budget is not None:
            used = [epsilon or 0.0 for _, _, epsilon in course]
            label = f"spent ({self.rule} accounting)" if self.rule else "spent"
            axes.step(steps, used, where="post", marker=".", color="#0b5fa5", label=label)
            axes.axhline(budget.epsilon, color="#b3261e", linestyle="--", label="ceiling")
            axes.set_title(f"epsilon at delta = {budget.delta:g}")
        axes.set(xlabel="spend", ylabel="epsilon", xlim=(0, max(steps[-1], 1) + 0.5))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, loc="upper left")
        figure.savefig(Path(path), dpi=130)
        return Path(path)

    def _as_json(self) -> JSON:
        settings = self._store.settings()
        return {
            "dataset": getattr(self._store, "dataset", None),
            "budget": _pair(settings.budget),
            "neighbours": settings.neighbours.value,
            "accounting": settings.accounting,
            "rule": self.rule,
            "spent": _pair(self.spent),
            "remaining": _pair(self.remaining),
            "naive": _pair(self.naive),
            "parts": list(settings.parts),
            "not_private": sum(not spend.private for spend in self.spends),
            "ceilings": [
                {"since": since, **(_pair(budget) or {}), "reason": reason}
                for since, budget, reason in self.ceilings
            ],
            "spends": [{**_row(settings, spend), "plan": spend.plan} for spend in self.spends],
        }

    def _compare(
        self,
        recorded: Settings,
        budget: Budget | None,
        neighbours: Neighbours | str | None,
        accounting: str | None,
        parts: Sequence[str],
    ) -> None:
        """Raise if the caller expects other settings than those on record."""
        if neighbours is not None and Neighbours.resolve(neighbours) is not recorded.neighbours:
            raise LedgerError(
                f"This data set is recorded with {recorded.neighbours.value!r} neighbours, not"
                f" {Neighbours.resolve(neighbours).value!r}. One relation a data set: its guarantee"
                " would otherwise mean two things."
            )
        if budget is not None and budget != recorded.budget:
            on_record = (
                "no ceiling" if recorded.budget is None else f"the ceiling {recorded.budget}"
            )
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

    # --- one ledger stays one ledger ----------------------------------------------------------

    def __copy__(self) -> Ledger:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Ledger:
        return self

    def __reduce__(self) -> Any:
        if isinstance(self._store, FileStore):
            return _reopen, (self._store, self._part)
        raise LedgerError(
            "A ledger in memory can't be pickled: the copy would be a second budget. Use n_jobs=1,"
            " or a ledger file that all processes share: Ledger('study.db', dataset=...)."
        )

    def __repr__(self) -> str:
        try:
            return self._summary()
        except LedgerError as error:
            return f"<Ledger that can't be read: {error}>"

    def _summary(self) -> str:
        budget, spent = self.budget, self.spent
        ceiling = "no ceiling" if budget is None else f"ceiling {budget}"
        done = "nothing spent" if spent is None else f"spent {spent}"
        of = f" of {self._store.dataset!r}" if isinstance(self._store, FileStore) else ""
        part = f", part {self._part!r}" if self._part else ""
        spends = self._touching()
        seeded = sum(not spend.private for spend in spends)
        void = f", {seeded} of them not private: no guarantee" if seeded else ""
        return f"<Ledger{of}{part}: {ceiling}; {done} in {len(spends)} spend(s){void}>"


class _StepLedger(Ledger):
    """The ledger of one step of a spend that is on record already."""

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
        """Raise unless this is the plan that was reserved, in the process that reserved it."""
        refuse_after_fork(self._process)
        plan, _ = self._line(what, label, options.get("claim"), options.get("neighbours"), True)
        if not self._open or plan != self._reserved:
            raise LedgerError(
                f"The step {self._name!r} asks for other releases than were reserved for it, or a second"
                " time. What was reserved stays spent."
            )

    def spend(self, what: Plan | PrivacyProfile, label: str, **options: Any) -> Noise:
        """Return the noise that was reserved for this step; nothing further is recorded."""
        refuse_after_fork(self._process)  # before the lock, which a fork may have copied closed
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


# --- the rule, applied to spends on the whole and on disjoint parts ---------------------------------


def _rule(settings: Settings, spends: Sequence[Spend]) -> Filter | None:
    if settings.budget is None:
        return None
    first = spends[0].profile if spends else None
    return resolve_filter(settings.accounting, settings.budget, first, settings.renyi_order)


def _charges(spends: Sequence[Spend], part: str | None) -> list[Charge]:
    """Return what touches a record of this part: its own spends and those on the whole."""
    return [s.charge for s in spends if s.part is None or s.part == part]


def _parts(spends: Sequence[Spend]) -> list[str | None]:
    return list(dict.fromkeys(s.part for s in spends)) or [None]


def _fits(rule: Filter, spends: Sequence[Spend]) -> bool:
    return all(rule.admits(_charges(spends, part)) for part in _parts(spends))


def _worst(settings: Settings, rule: Filter | None, spends: Sequence[Spend]) -> Budget | None:
    """Return the largest epsilon and the largest delta that any part's records see."""
    if rule is None:
        return _naive(settings, spends)
    totals = [rule.spent(_charges(spends, part)) for part in _parts(spends)]
    known = [total for total in totals if total is not None]
    if not known:
        return None
    return Budget(max(b.epsilon for b in known), max(b.delta for b in known))


def _left(
    settings: Settings, rule: Filter, spends: Sequence[Spend], part: str | None
) -> Budget | None:
    """Return a further spend that fits: on one part, or on the whole and so on every part."""
    names = [part] if part else [*_parts(spends), *settings.parts]
    left = [rule.remaining(_charges(spends, name)) for name in dict.fromkeys(names)]
    known = [budget for budget in left if budget is not None]
    if len(known) < len(left):
        return None
    return Budget(min(b.epsilon for b in known), min(b.delta for b in known))


def _admit(settings: Settings, earlier: Sequence[Spend], spend: Spend) -> None:
    lines = [*earlier, spend]
    rule = _rule(settings, lines)
    if rule is None or settings.budget is None:
        return
    if rule.admits(_charges(lines, spend.part)) and (spend.part is not None or _fits(rule, lines)):
        return
    left = _left(settings, rule, earlier, spend.part)
    raise BudgetExceededError(
        f"The spend {spend.label!r} ({_point(settings, spend)}) does not fit under the ceiling"
        f" ({settings.budget}): {'nothing is' if left is None else str(left) + ' is'} left by"
        f" {rule.name} accounting of {len(earlier)} earlier spend(s). Nothing was spent. Ask for"
        " less, or agree on a higher ceiling with the data's owner."
    )


def _point(settings: Settings, spend: Spend) -> Budget:
    """Return the (epsilon, delta) that a spend claims, or its point at the ledger's delta."""
    profile = spend.profile
    if spend.claim is not None:
        delta = spend.claim.delta
    elif epsilon_at(profile, 0.0) < math.inf:
        delta = 0.0
    else:
        delta = 1e-6 if settings.budget is None else settings.budget.delta
    return Budget(min(max(epsilon_at(profile, delta), 1e-12), 1e300), delta)


def _row(settings: Settings, spend: Spend) -> JSON:
    point = _point(settings, spend)
    return {
        "number": spend.number,
        "time": spend.time,
        "label": spend.label,
        "part": spend.part,
        "epsilon": point.epsilon,
        "delta": point.delta,
        "private": spend.private,
        "state": spend.state,
        "releases": [part["label"] for part in spend.plan["parts"]],
    }


def _naive(settings: Settings, spends: Sequence[Spend]) -> Budget | None:
    """Return the sums over all spends, parts or not."""
    if not spends:
        return None
    points = [_point(settings, spend) for spend in spends]
    total = math.fsum(p.epsilon for p in points)
    return Budget(total, min(math.fsum(p.delta for p in points), 1 - 2.0**-53))


def _epsilon(budget: Budget | None) -> float:
    return 0.0 if budget is None else budget.epsilon


def _pair(budget: Budget | None) -> JSON | None:
    return None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _checked_source(given: object, default: NoiseSource) -> NoiseSource:
    """Return the source that noise is drawn from, the default if none is given."""
    if given is None:
        return default
    if not isinstance(given, NoiseSource):
        raise ParameterError(
            parameter_message(
                "Ledger.spend", "noise", "a NoiseSource or None", type(given).__name__
            )
        )
    return given


def _check_text(name: str, text: object) -> None:
    fine = _is_text(text) and len(str(text)) <= 1000
    if fine:
        try:
            str(text).encode()
        except UnicodeEncodeError:
            fine = False
    if not fine:
        got = text if isinstance(text, str) and len(text) < 100 else type(text).__name__
        allowed = "a text of 1 to 1000 characters"
        raise ParameterError(parameter_message("Ledger", name, allowed, got))


def _reopen(store: Store, part: str | None) -> Ledger:
    found = object.__new__(Ledger)
    found._store, found._part = store, part
    return found


def _check_settings(
    budget: Budget | None,
    neighbours: Neighbours | str | None,
    accounting: str | None,
    parts: Sequence[str],
) -> Settings:
    names = () if isinstance(parts, str) else tuple(parts)
    if isinstance(parts, str) or not all(_is_text(part) for part in names):
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
        built = resolve_filter(rule, budget, None)  # refuses an impossible pair now
        order = built.order if isinstance(built, RenyiFilter) else None
    return Settings(budget, relation, rule, order, names)
