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

import csv
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Context
from fractions import Fraction
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
from dpkernel.foundations.notebook import html_table
from dpkernel.foundations.types import JSON, Budget, Neighbours, is_real, round_down
from dpkernel.privacy.filters import (
    FILTERS,
    Filter,
    GaussianFilter,
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
from dpkernel.privacy.profiles import GaussianProfile, PrivacyProfile

OF_PEOPLE = " of people"  # ends the label of a spend whose records are people


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


class Ledger:
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
        spend decides: the rule is "gaussian" if that spend is Gaussian and "basic" otherwise.
    parts : sequence of str
        Names of disjoint parts of the data set, fixed when the ledger is created; see ``part``. The
        ledger can't check that the parts are disjoint and relies on your word.
    unlimited : bool
        Whether to create a data set without a ceiling.
    read_only : bool
        Whether to open the file for reading only, without the right to spend.
    timeout : float
        How many seconds to wait while another process is spending.

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
    ) -> None:
        wanted = _check_settings(budget, neighbours, accounting, parts)
        self._part: str | None = None
        self._store: Store
        if path is None:
            if dataset is not None or read_only:
                raise ParameterError(
                    "A ledger in memory has no 'dataset' and no 'read_only' mode. Pass a file name"
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
        _admit(self._store.settings(), self._store.lines(), spend)

    def forecast(self, what: Plan | PrivacyProfile, *, claim: Budget | None = None) -> Forecast:
        """Return whether a plan would fit and what would be left, and record nothing."""
        settings, earlier = self._store.settings(), self._store.lines()
        people = any(line.label.endswith(OF_PEOPLE) for line in earlier)
        label = "forecast" + (OF_PEOPLE if people else "")  # of the kind that the ledger holds
        _, spend = self._line(what, label, claim, None, True)
        lines = [*earlier, spend]
        try:
            _admit(settings, earlier, spend)
        except LedgerError:
            return Forecast(False, None, None, _naive(settings, lines))
        rule = _rule(settings, lines)
        left = None if rule is None else _left(settings, rule, lines, self._part)
        return Forecast(True, _worst(settings, rule, lines), left, _naive(settings, lines))

    def share(self, epsilon: float) -> Budget:
        """Return the budget of a fit with this epsilon and with its share of the ledger's delta.

        By basic accounting the deltas add up, so a fit that takes the whole delta would leave
        nothing for the next one. The share is in proportion to epsilon: under a ceiling of (3,
        3e-6), each of three fits with epsilon = 1 gets delta = 1e-6. By Gaussian and Renyi
        accounting the deltas do not add up, and a fit gets the whole. Nothing is spent here.

        Examples
        --------
        >>> from dpkernel import Budget, Ledger
        >>> ledger = Ledger(budget=Budget(3.0, 3e-6))
        >>> print(ledger.share(1.0))
        epsilon = 1, delta = 1e-06
        """
        asked, ceiling = Budget(epsilon).epsilon, self.budget
        if ceiling is None:
            raise LedgerError("A ledger without a ceiling has no delta to share. State the delta.")
        adds_up = self.rule not in (GaussianFilter.name, RenyiFilter.name)
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
        recorded = recorded_name(name, known, "parts") if _is_text(name) else None
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
                f"This ledger protects {self.neighbours.value!r} neighbours, but the spend was"
                f" calibrated for {relation.value!r}. A data set has one relation: calibrate for it,"
                " or open another ledger. Nothing was spent."
            )
        plan = Plan.of(what, label)
        if not self.neighbours.n_is_public and any(part.folds > 1 for part in plan.parts):
            raise LedgerError(
                f"Folds of row positions are not disjoint for {self.neighbours.value!r} neighbours:"
                " removing a row moves all later rows into other folds. Nothing was spent."
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
        """The accounting rule that was asked for; ``rule`` is the one that applies."""
        return self._store.settings().accounting

    @property
    def rule(self) -> str | None:
        """The accounting rule that applies.

        It is None without a ceiling, and before the first spend has decided it.
        """
        settings, spends = self._store.settings(), self._store.lines()
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
        """The total of what was spent so far, by the ledger's rule; None if nothing was spent.

        The total is the maximum over the parts. On ``ledger.part(name)`` it is the total of all
        spends that touch this part. Without a ceiling it is the naive sum.
        """
        settings, spends = self._store.settings(), self.spends
        return _worst(settings, _rule(settings, spends), self._touching(spends))

    @property
    def remaining(self) -> Budget | None:
        """What still fits, at the ledger's delta; None if nothing is left or no ceiling is set.

        On ``ledger.part(name)`` it is what still fits for this part.
        """
        settings, spends = self._store.settings(), self.spends
        rule = _rule(settings, spends)
        return None if rule is None else _left(settings, rule, spends, self._part)

    @property
    def naive(self) -> Budget | None:
        """The plain sums of epsilon and delta, for comparison.

        Each spend counts at its own claim. A spend without a claim counts at the ledger's delta, or
        at 1e-6 if there is no ceiling.
        """
        return _naive(self._store.settings(), self._touching(self.spends))

    @property
    def ceilings(self) -> list[tuple[str, Budget, str]]:
        """All ceilings so far, each with its starting time, its budget and its reason."""
        return self._store.ceilings()

    def _touching(self, spends: list[Spend]) -> list[Spend]:
        return spends if self._part is None else [s for s in spends if s.part in (None, self._part)]

    def history(self) -> list[JSON]:
        """Return one row per spend: number, time, label, part, epsilon, delta, private, state."""
        settings = self._store.settings()
        return [_row(settings, spend) for spend in self._touching(self.spends)]

    def export(self, path: str | Path) -> Path:
        """Write the history to a file; the ending of ``path`` (.json or .csv) selects the format.

        Only JSON includes the privacy profiles.
        """
        path = Path(path)
        own = self._store.path if isinstance(self._store, FileStore) else None
        if own is not None and path.exists() and path.samefile(own):
            raise ParameterError(
                "The export would overwrite the ledger itself. Choose another file name."
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
        """Return how the spent epsilon grew from spend to spend.

        Parameters
        ----------
        most : int
            The largest number of rows. If there are more spends, evenly spaced ones are returned.

        Returns
        -------
        list of tuple
            The number of spends so far, the naive epsilon and the epsilon by the ledger's rule. The
            last is None without a ceiling.
        """
        settings, every = self._store.settings(), self.spends
        spends = self._touching(every)
        steps = sorted({round(i) for i in np.linspace(1, len(spends), min(len(spends), most))})
        rule = _rule(settings, every)

        def used(count: int) -> float | None:
            return None if rule is None else _epsilon(_worst(settings, rule, spends[:count]))

        return [(i, _epsilon(_naive(settings, spends[:i])), used(i)) for i in steps]

    def plot(self, path: str | Path) -> Path:
        """Plot the spent epsilon after each spend, with the ceiling, and save the picture."""
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
        """Raise an error if the caller expects settings other than the recorded ones."""
        if neighbours is not None and Neighbours.resolve(neighbours) is not recorded.neighbours:
            raise LedgerError(
                f"This data set is recorded with {recorded.neighbours.value!r} neighbours, not"
                f" {Neighbours.resolve(neighbours).value!r}. A data set has one relation; with two,"
                " its guarantee would be ambiguous."
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

    def _repr_html_(self) -> str:
        """Return the state and the last spends as a table, for notebooks."""
        try:
            rows = self.history()[-20:]
        except LedgerError:
            rows = []
        head = ("number", "time", "label", "epsilon", "delta", "state")
        found = [{**row, **{name: f"{row[name]:.4g}" for name in head[3:5]}} for row in rows]
        state = html_table([[repr(self)]])
        return state + html_table([[row[name] for name in head] for row in found], head)

    def _summary(self) -> str:
        budget, spent = self.budget, self.spent
        ceiling = "no ceiling" if budget is None else f"ceiling {budget}"
        done = "nothing spent" if spent is None else f"spent {spent}"
        of = f" of {self._store.dataset!r}" if isinstance(self._store, FileStore) else ""
        part = f", part {self._part!r}" if self._part else ""
        spends = self._touching(self.spends)
        seeded = sum(not spend.private for spend in spends)
        void = f", {seeded} of them not private: no guarantee" if seeded else ""
        return f"<Ledger{of}{part}: {ceiling}; {done} in {len(spends)} spend(s){void}>"


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


# --- the rule, applied to spends on the whole and on disjoint parts ---------------------------------


def _rule(settings: Settings, spends: Sequence[Spend]) -> Filter | None:
    if settings.budget is None:
        return None
    first = spends[0].profile if spends else None
    return resolve_filter(settings.accounting, settings.budget, first, settings.renyi_order)


def _charges(spends: Sequence[Spend], part: str | None) -> list[Spend]:
    """Return what touches a record of this part: spends on the part and on the whole data set."""
    return [s for s in spends if s.part is None or s.part == part]


def _parts(spends: Sequence[Spend]) -> list[str | None]:
    return list(dict.fromkeys(s.part for s in spends)) or [None]


def _fits(rule: Filter, spends: Sequence[Spend], part: str | None = None) -> bool:
    """Return whether all spends fit that touch this part; without a part, in every part."""
    parts = _parts(spends) if part is None else [part]
    return all(rule.admits(_charges(spends, name)) for name in parts)


def _worst(settings: Settings, rule: Filter | None, spends: Sequence[Spend]) -> Budget | None:
    """Return the largest epsilon and the largest delta over the parts."""
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
    """Return what can still be spent on this part, or on every part if ``part`` is None."""
    names = [part] if part else [*_parts(spends), *settings.parts]
    left = [rule.remaining(_charges(spends, name)) for name in dict.fromkeys(names)]
    known = [budget for budget in left if budget is not None]
    if len(known) < len(left):
        return None
    return Budget(min(b.epsilon for b in known), min(b.delta for b in known))


def _admit(settings: Settings, earlier: Sequence[Spend], spend: Spend) -> None:
    lines = [*earlier, spend]
    _refuse_rows_among_people(settings, lines)
    rule = _rule(settings, lines)
    if rule is None or settings.budget is None:
        return
    if _fits(rule, lines, spend.part):
        return
    total, ceiling = _worst(settings, rule, lines), settings.budget
    lacking = "epsilon"  # also where only the last digits of the sum exceed the ceiling
    if total is not None and total.delta > ceiling.delta:
        lacking = "epsilon and delta" if total.epsilon > ceiling.epsilon else "delta"
    left = _left(settings, rule, earlier, spend.part)
    raise BudgetExceededError(
        f"The spend {spend.label!r} ({_point(settings, spend)}) does not fit under the ceiling"
        f" ({ceiling}): it would exceed {lacking}, because"
        f" {'nothing is' if left is None else str(left) + ' is'} left by {rule.name} accounting of"
        f" {len(earlier)} earlier spend(s). Nothing was spent. {_what_fits(rule, left, spend)}"
    )


def _refuse_rows_among_people(settings: Settings, lines: Sequence[Spend]) -> None:
    """Raise if spends on people and on rows would be added up under zero-out or add-remove.

    Blanking or removing one row gives its person another record. That is a replacement, for which a
    spend that protects blanked or removed people is not calibrated. So the total would be a
    guarantee for nobody. Sums of units count for both under zero-out: there a blanked row takes away
    no more than a blanked unit.
    """
    relation = settings.neighbours
    if relation is Neighbours.REPLACE_ONE:
        return
    verb = "blanked" if relation is Neighbours.ZERO_OUT else "removed"
    people = [line for line in lines if line.label.endswith(OF_PEOPLE)]
    others = [line for line in lines if not line.label.endswith(OF_PEOPLE)] if people else []
    for line in others:
        units = all(part["label"].endswith(" of units") for part in line.plan["parts"])
        if not (units and relation is Neighbours.ZERO_OUT):
            raise LedgerError(
                f"Under {relation.value!r}, one ledger can't hold spends that protect rows and spends"
                f" that protect people, because a {verb} row gives its person another record. Use one"
                " ledger for each, or 'replace-one'. Nothing was spent."
            )


def _what_fits(rule: Filter, left: Budget | None, spend: Spend) -> str:
    """Return a sentence that says which spend would be admitted instead of a refused one."""
    higher = "agree on a higher ceiling with the data's owner"
    if left is None:
        return f"To spend more, {higher}."
    most = f"epsilon of at most {_down(left.epsilon)}"
    if rule.name == RenyiFilter.name and not isinstance(spend.profile, GaussianProfile):
        return f"Ask for less ({most} is left for a Gaussian release only), or {higher}."
    if left.delta == 0:
        return (
            f"Only pure epsilon (delta = 0) of at most {_down(left.epsilon)} would fit; for more,"
            f" {higher}. Deltas add up here, so ask for a share of the ledger's delta next time:"
            " Ledger.share, or `dpkernel fit` without --delta."
        )
    return f"Ask for an {most} and a delta of at most {_down(left.delta)}, or {higher}."


def _down(value: float) -> str:
    """Return a number with four digits, rounded down, so that the written number still fits."""
    near = f"{value:.4g}"
    if float(near) <= value:
        return near
    return f"{float(Context(prec=4, rounding=ROUND_FLOOR).create_decimal_from_float(value)):g}"


def _point(settings: Settings, spend: Spend) -> Budget:
    """Return the (epsilon, delta) of a spend: its claim, or its point at the ledger's delta."""
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
    """Return the plain sums over all spends, whichever part they belong to."""
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
        built = resolve_filter(rule, budget, None)  # refuses an impossible combination early
        order = built.order if isinstance(built, RenyiFilter) else None
    return Settings(budget, relation, rule, order, names)
