"""Audit everything and its broken twins: ``python -m dpkernel.audit --out audit-report``."""

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

from dpkernel.audit.cases import all_cases
from dpkernel.audit.report import NOTE
from dpkernel.audit.table import (
    Row,
    estimator_lines,
    estimator_row,
    mechanism_row,
    picture_name,
)

_FULL = {"epsilon": 2.0, "factor": 0.1}, 20_000, 1000  # of estimators; runs of mechanisms, fits
_QUICK = {"epsilon": 1.0, "factor": 0.02}, 4000, 100


def main(
    out: Path = Path("audit-report"),
    quick: bool = False,
    trials: int | None = None,
    estimator_trials: int | None = None,
    false_alarm: float = 1e-8,
    jobs: int = -1,
) -> None:
    """Run every attack on real entropy; exit with 1 if a verdict is not as it should be."""
    out.mkdir(parents=True, exist_ok=True)
    setting, runs, fits = _QUICK if quick else _FULL
    runs, fits = trials or runs, estimator_trials or fits
    lines = estimator_lines(**setting)
    tasks = [
        delayed(estimator_row)(i, fits, false_alarm, out, **setting) for i in range(len(lines))
    ] + [delayed(mechanism_row)(i, runs, false_alarm) for i in range(len(all_cases()))]
    rows = list(track(_run(tasks, jobs), total=len(tasks), description="auditing"))
    _write(out, rows, [picture_name(line) for line in lines])
    _show(rows)
    print(f"written: {out / 'audit.csv'}, audit.json, report.md and {len(lines)} pictures")
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
    said = "All verdicts are as they should be." if not wrong else f"{len(wrong)} are NOT."
    total = sum(row.false_alarm for row in rows)
    page = [
        "# Audit",
        "",
        f"{len(rows)} attacks. {said} A sound line is called contradicted with probability at most"
        f" {rows[0].false_alarm:g}, all together at most {total:.1g}. {NOTE}",
        "",
        "| what | neighbours | broken | verdict | as it should be | epsilon >= | claimed | at delta |"
        " mu >= | runs a side | attack |",
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


def _show(rows: Sequence[Row]) -> None:
    table = Table("what", "neighbours", "broken", "verdict", "ok", "epsilon >=", "claimed")
    for row in rows:
        found, claimed = f"{row.epsilon_lower:.3f}", f"{row.claimed_epsilon:.3f}"
        mark = "yes" if row.as_it_should_be else "NO"
        table.add_row(row.case, row.relation, row.broken, row.verdict, mark, found, claimed)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
