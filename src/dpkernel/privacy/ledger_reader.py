"""What can be read from a ledger: totals, the history, exports, a plot and tables for notebooks."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from dpkernel.foundations.errors import LedgerError, ParameterError, parameter_message
from dpkernel.foundations.notebook import html_table
from dpkernel.foundations.types import JSON, Budget, Neighbours
from dpkernel.privacy.ledger_file import FileStore
from dpkernel.privacy.ledger_store import Spend, Store
from dpkernel.privacy.ledger_sums import (
    as_pair,
    history_row,
    naive_sum,
    rule_of,
    settled,
    total,
    what_is_left,
)


class LedgerReader:
    """The part of a ledger that needs no right to spend."""

    _store: Store
    _part: str | None

    @property
    def dataset(self) -> str | None:
        """The name of the data set in a ledger file; None for a ledger in memory."""
        return self._store.dataset if isinstance(self._store, FileStore) else None

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
        settings = self._store.settings()
        return None if settings.budget is None else settled(settings, self._store.lines()).rule

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
        return total(settings, rule_of(settings, spends), self._touching(spends))

    @property
    def remaining(self) -> Budget | None:
        """What still fits, at the ledger's delta; None if nothing is left or no ceiling is set.

        On ``ledger.part(name)`` it is what still fits for this part.
        """
        settings, spends = self._store.settings(), self.spends
        rule = rule_of(settings, spends)
        return None if rule is None else what_is_left(settings, rule, spends, self._part)

    @property
    def naive(self) -> Budget | None:
        """The plain sums of epsilon and delta, for comparison.

        Each spend counts at its own claim. A spend without a claim counts at the ledger's delta, or
        at 1e-6 if there is no ceiling.
        """
        return naive_sum(self._store.settings(), self._touching(self.spends))

    @property
    def ceilings(self) -> list[tuple[str, Budget, str]]:
        """All ceilings so far, each with its starting time, its budget and its reason."""
        return self._store.ceilings()

    def _touching(self, spends: list[Spend]) -> list[Spend]:
        return spends if self._part is None else [s for s in spends if s.part in (None, self._part)]

    def history(self) -> list[JSON]:
        """Return one row per spend: number, time, label, part, epsilon, delta, private, state."""
        settings = self._store.settings()
        return [history_row(settings, spend) for spend in self._touching(self.spends)]

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
        rule = rule_of(settings, every)

        def used(count: int) -> float | None:
            return None if rule is None else _epsilon(total(settings, rule, spends[:count]))

        return [(i, _epsilon(naive_sum(settings, spends[:i])), used(i)) for i in steps]

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
        axes.legend(frameon=False, loc="lower right")
        figure.savefig(Path(path), dpi=130)
        return Path(path)

    def _as_json(self) -> JSON:
        settings = self._store.settings()
        return {
            "dataset": getattr(self._store, "dataset", None),
            "budget": as_pair(settings.budget),
            "neighbours": settings.neighbours.value,
            "accounting": settings.accounting,
            "rule": self.rule,
            "spent": as_pair(self.spent),
            "remaining": as_pair(self.remaining),
            "naive": as_pair(self.naive),
            "parts": list(settings.parts),
            "not_private": sum(not spend.private for spend in self.spends),
            "ceilings": [
                {"since": since, **(as_pair(budget) or {}), "reason": reason}
                for since, budget, reason in self.ceilings
            ],
            "spends": [
                {**history_row(settings, spend), "plan": spend.plan} for spend in self.spends
            ],
        }

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


def _epsilon(budget: Budget | None) -> float:
    return 0.0 if budget is None else budget.epsilon
