"""Audit every mechanism and its broken twins: ``python -m dpkernel.audit --out audit-report``."""

from __future__ import annotations

import csv
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from dpkernel.audit.cases import all_cases

_COLUMNS = ("case", "broken", "verdict", "as it should be", "epsilon >=", "claimed", "trials")


def main(out: Path = Path("audit-report"), trials: int = 20_000, false_alarm: float = 1e-8) -> None:
    """Run every case on real entropy; exit with 1 if a verdict is not as it should be."""
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for case in track(all_cases(), description="auditing"):
        result = case.audit(trials, false_alarm=false_alarm)
        expected = result.violated == (case.broken is not None)
        rows.append(
            (
                case.name,
                case.broken or "",
                "REJECTED" if result.violated else "not contradicted",
                "yes" if expected else "NO",
                f"{result.epsilon_lower:.3f}",
                f"{case.claim.epsilon(result.delta):.3f}",
                str(trials),
            )
        )
    with (out / "audit.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([_COLUMNS, *rows])
    table = Table(
        *_COLUMNS, title=f"epsilon at delta = 1e-6, false alarms <= {false_alarm:g} a case"
    )
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    print(f"written: {out / 'audit.csv'}")
    if any(row[3] == "NO" for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
