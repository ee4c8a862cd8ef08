"""Audit everything and its broken twins: ``python -m dpkernel.proof.audit --out audit-report``."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.utils.parallel import Parallel, delayed

from dpkernel.proof.audit.cases import all_cases
from dpkernel.proof.audit.core import most_provable
from dpkernel.proof.audit.report import NOTE
from dpkernel.proof.audit.table import (
    Row,
    estimator_lines,
    estimator_row,
    mechanism_row,
    picture_name,
)

# the epsilon of estimators; then runs of a mechanism, fits of an estimator, false alarms of each
_FULL = {"epsilon": 2.0, "factor": 0.1}, 20_000, 1000, 1e-8
_QUICK = {"epsilon": 1.0, "factor": 0.01}, 5000, 60, 1e-6


def main(
    out: Path = Path("audit-report"),
    quick: bool = False,
    trials: int | None = None,
    estimator_trials: int | None = None,
    false_alarm: float | None = None,
    jobs: int = -1,
) -> None:
    """Run every attack with real entropy. Exits with 1 if a verdict is wrong."""
    out.mkdir(parents=True, exist_ok=True)
    setting, runs, fits, rate = _QUICK if quick else _FULL
    runs, fits, rate = trials or runs, estimator_trials or fits, false_alarm or rate
    lines = estimator_lines(**setting)
    tasks = [delayed(estimator_row)(i, fits, rate, out, **setting) for i in range(len(lines))] + [
        delayed(mechanism_row)(i, runs, rate) for i in range(len(all_cases()))
    ]
    rows = list(track(_run(tasks, jobs), total=len(tasks), description="auditing"))
    pictures = [picture_name(line) for line in lines if line.has_picture]
    _write(out, rows, pictures)
    _show(rows)
    print(f"written: {out / 'audit.csv'}, audit.json, report.md and {len(pictures)} pictures")
    if not all(row.as_it_should_be for row in rows):
        raise typer.Exit(1)


def _run(tasks: Iterable[object], jobs: int) -> Iterator[Row]:
    found: Iterator[Row] = Parallel(n_jobs=jobs, return_as="generator")(tasks)
    return found


def _write(out: Path, rows: Sequence[Row], pictures: Sequence[str]) -> None:
    values = [asdict(row) for row in rows]
    with (out / "audit.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [field.name for field in fields(Row)])
        table.writeheader()
        table.writerows(values)
    text = json.dumps({"rows": values, "note": NOTE}, indent=1)
    (out / "audit.json").write_text(text + "\n", encoding="utf-8")
    (out / "report.md").write_text(_page(rows, pictures), encoding="utf-8")


def _page(rows: Sequence[Row], pictures: Sequence[str]) -> str:
    wrong = [row for row in rows if not row.as_it_should_be]
    said = "All verdicts are right." if not wrong else f"{len(wrong)} verdicts are WRONG."
    total = sum(row.false_alarm for row in rows)
    page = [
        "# Audit",
        "",
        f"{len(rows)} attacks were made. {said} A true claim is called contradicted with probability at"
        f" most {rows[0].false_alarm:g} per line, and at most {total:.1g} over all lines. {NOTE}",
        "",
        *_reach(rows),
        "| what | neighbours | broken | verdict | as it should be | epsilon >= | claimed | at delta |"
        " mu >= | runs per side | attack |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    page += [
        f"| {row.case} | {row.relation} | {row.broken} | {row.verdict} |"
        f" {'yes' if row.as_it_should_be else '**NO**'} | {row.epsilon_lower:.3f} |"
        f" {row.claimed_epsilon:.3f} | {row.delta:g} | {row.mu_lower:.3f} | {row.trials} |"
        f" {row.attack} |"
        for row in rows
    ]
    page += ["", *(f"![{name}]({name}.png)" for name in pictures)]
    return "\n".join(page) + "\n"


def _reach(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence on what this number of fits of an estimator can show at best."""
    fits = {(row.trials, row.false_alarm) for row in rows if row.kind == "estimator"}
    twins = sorted({row.broken for row in rows if row.kind == "estimator" and row.broken})
    for trials, rate in sorted(fits)[-1:]:
        most = most_provable(trials, rate)
        yield (
            f"For an estimator, {trials} fits on each side at a false-alarm rate of {rate:g} can prove"
            f" at most epsilon = {most:.2f}, and its twin has {' or '.join(twins)}. So the table shows"
            " that a blatant mistake is found. Finding a smaller one, such as half the noise, takes more"
            " fits. The lines of mechanisms have twins with half the noise."
        )
        yield ""


def _show(rows: Sequence[Row]) -> None:
    table = Table("what", "neighbours", "broken", "verdict", "ok", "epsilon >=", "claimed")
    for row in rows:
        found, claimed = f"{row.epsilon_lower:.3f}", f"{row.claimed_epsilon:.3f}"
        mark = "yes" if row.as_it_should_be else "NO"
        table.add_row(row.case, row.relation, row.broken, row.verdict, mark, found, claimed)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
