"""The tables of the comparison, made from the fits in ``results/rivals_splits.csv``.

``rivals.csv`` has a line per table, epsilon and method. ``rivals_regression.csv`` and
``rivals_classes.csv`` show it; ``rivals_lost.csv`` lists the cells in which a rival is better by more
than two standard errors, ``rivals_count.csv`` counts them, and ``rivals_seconds.csv`` has the times.

A method with several settings appears twice: with the one that a public rule takes, and with the one
that is best on the test rows in the mean, which nobody can know and which is a gift to the method.
The difference to dpkernel is taken split by split and divided by its standard error.
"""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

OURS = "dpkernel"
GIFT = ", oracle"
FEW = 2.0  # standard errors, beyond which a cell counts as lost or won


class Cell(NamedTuple):
    """What was measured for a method on a table at an epsilon."""

    errors: dict[int, float]  # by split
    seconds: float

    @property
    def mean(self) -> float:
        """The mean error."""
        return float(np.mean(list(self.errors.values())))


Cells = dict[tuple[str, float, str], Cell]


def notes(path: Path) -> str:
    """Return the lines of a file that say who made it."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("#"))


def joined(*texts: str) -> str:
    """Return notes of several runs, each run once."""
    return "".join(dict.fromkeys(re.split(r"(?m)^(?=# command: )", "".join(texts))))


def rows(path: Path) -> list[list[str]]:
    """Return the rows of a file, the header first."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(csv.reader(line for line in lines if not line.startswith("#")))


def gathered(path: Path) -> Cells:
    """Return every cell, with the best setting of each method next to the public one."""
    settings: dict[tuple[str, float, str], dict[int, dict[int, tuple[float, float]]]]
    settings = defaultdict(lambda: defaultdict(dict))
    public: dict[tuple[str, float, str], int] = {}
    for table, epsilon, method, setting, by_rule, split, error, seconds in rows(path)[1:]:
        key = (table, float(epsilon), method)
        settings[key][int(setting)][int(split)] = (float(error), float(seconds))
        if by_rule == "1":
            public[key] = int(setting)
    cells: Cells = {}
    for (table, epsilon, method), choices in settings.items():
        found = {
            setting: Cell(
                {s: e for s, (e, _) in fits.items()}, _median(t for _, t in fits.values())
            )
            for setting, fits in choices.items()
        }
        cells[table, epsilon, method] = found[public[table, epsilon, method]]
        if len(found) > 1:
            best = min(found.values(), key=lambda cell: cell.mean)
            cells[table, epsilon, method + GIFT] = best
    return cells


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def standard_error(values: Iterable[float]) -> float:
    """Return the standard error of a mean, NaN for a single value."""
    kept = list(values)
    return float(np.std(kept, ddof=1) / math.sqrt(len(kept))) if len(kept) > 1 else math.nan


def difference(cells: Cells, key: tuple[str, float, str]) -> float:
    """Return the mean of (method - dpkernel) over the common splits, in standard errors."""
    ours = cells.get((key[0], key[1], OURS))
    if ours is None or key[2] == OURS:
        return math.nan
    theirs = cells[key].errors
    gaps = [theirs[split] - ours.errors[split] for split in theirs if split in ours.errors]
    spread = standard_error(gaps)
    return float(np.mean(gaps)) / spread if spread > 0 else math.nan


def tabulate(path: Path, *, regression: tuple[str, ...], classes: tuple[str, ...]) -> None:
    """Write all tables next to the file of the fits."""
    cells = gathered(path)
    order = {table: i for i, table in enumerate([*regression, *classes])}
    keys = sorted(cells, key=lambda key: (order[key[0]], _rank(key[2]), key[1]))
    long = [["table", "epsilon", "method", "splits", "error", "standard error"]]
    long[0] += ["seconds", "difference to dpkernel in standard errors"]
    for table, epsilon, method in keys:
        cell, gap = cells[table, epsilon, method], difference(cells, (table, epsilon, method))
        line = [table, f"{epsilon:g}", method, str(len(cell.errors)), f"{cell.mean:.4f}"]
        line += [f"{standard_error(cell.errors.values()):.4f}", f"{cell.seconds:.2f}"]
        long.append([*line, "" if math.isnan(gap) else f"{gap:+.1f}"])
    made = notes(path)
    _write(path.with_name("rivals.csv"), made, long)
    for name, tables in (("regression", regression), ("classes", classes)):
        _write(path.with_name(f"rivals_{name}.csv"), made, _wide(cells, tables))
    _write(path.with_name("rivals_lost.csv"), made, _lost(cells, keys))
    _write(path.with_name("rivals_count.csv"), made, _count(cells))
    _write(path.with_name("rivals_seconds.csv"), made, _seconds(cells))


def _write(path: Path, made: str, lines: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(made)
        csv.writer(file, lineterminator="\n").writerows(lines)


def _rank(method: str) -> tuple[bool, str]:
    return method != OURS, method


def _epsilons(cells: Cells) -> list[float]:
    return sorted({epsilon for _, epsilon, method in cells if method == OURS})


def _methods(cells: Cells, tables: Iterable[str] | None = None) -> list[str]:
    kept = None if tables is None else set(tables)
    found = {m for t, e, m in cells if math.isfinite(e) and (kept is None or t in kept)}
    return sorted(found, key=_rank)


def _wide(cells: Cells, tables: tuple[str, ...]) -> list[list[str]]:
    """Return a line per table and method: the error and, in parentheses, the difference."""
    epsilons = _epsilons(cells)
    head = ["table (kernel / trees, not private)", "method", f"epsilon {epsilons[0]:g}"]
    lines = [[*head, *(f"{epsilon:g}" for epsilon in epsilons[1:])]]
    for table in tables:
        references = [
            cells.get((table, math.inf, f"{m}, not private")) for m in ("kernel", "trees")
        ]
        shown = " / ".join(f"{r.mean:.3f}" if r else "-" for r in references)
        for method in _methods(cells, [table]):
            first = f"{table} ({shown})" if method == _methods(cells, [table])[0] else ""
            lines.append([first, method, *(_shown(cells, (table, e, method)) for e in epsilons)])
    return lines


def _shown(cells: Cells, key: tuple[str, float, str]) -> str:
    if key not in cells:
        return ""
    gap = difference(cells, key)
    return f"{cells[key].mean:.3f}" + ("" if math.isnan(gap) else f" ({gap:+.1f})")


def _lost(cells: Cells, keys: list[tuple[str, float, str]]) -> list[list[str]]:
    """Return a line per cell in which a rival is better by more than two standard errors."""
    lines = [["table", "epsilon", "method", "its error", "error of dpkernel", "standard errors"]]
    for key in keys:
        gap = difference(cells, key)
        if gap < -FEW:
            ours = cells[key[0], key[1], OURS].mean
            pair = [f"{cells[key].mean:.3f}", f"{ours:.3f}", f"{-gap:.1f}"]
            lines.append([key[0], f"{key[1]:g}", key[2], *pair])
    return lines


def _count(cells: Cells) -> list[list[str]]:
    """Return how many cells of each rival dpkernel wins, loses or cannot tell apart."""
    lines = [["rival", "cells", "dpkernel is better", "not told apart", "the rival is better"]]
    for method in _methods(cells):
        if method == OURS:
            continue
        every = [difference(cells, key) for key in cells if key[2] == method]
        gaps = [gap for gap in every if not math.isnan(gap)]  # where dpkernel was measured, too
        won, lost = sum(g > FEW for g in gaps), sum(g < -FEW for g in gaps)
        lines.append([method, *map(str, (len(gaps), won, len(gaps) - won - lost, lost))])
    return lines


def _seconds(cells: Cells) -> list[list[str]]:
    """Return the median time of a fit over all cells of each table, and the largest of them."""
    lines = [["method", "median over the tables", "slowest table", "its seconds"]]
    for method in sorted({m for _, _, m in cells if not m.endswith(GIFT)}, key=_rank):
        tables = sorted({t for t, _, m in cells if m == method})
        times = {
            t: _median(c.seconds for k, c in cells.items() if k[::2] == (t, method)) for t in tables
        }
        slowest = max(times, key=lambda t: times[t])
        middle = _median(times.values())
        lines.append([method, f"{middle:.2g}", slowest, f"{times[slowest]:.2g}"])
    return lines
