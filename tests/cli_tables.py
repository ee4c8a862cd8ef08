"""A small table with everything that the command line must bear, and ways to run it."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
from typer.testing import CliRunner

SECRET = "SECRETCELL"
BOUNDS = """
[columns.age]
low = 0
high = 100
[columns.ward]
levels = ["north", "south"]
[columns.sick]
levels = ["yes", "no"]
[columns.days]
low = 0
high = 30
"""


def write_study(folder: Path, n_rows: int = 400) -> None:
    """Write patients.csv, with a missing, a strange and a wild cell, and bounds for two targets."""
    draw = np.random.default_rng(0)
    age = draw.uniform(0, 100, n_rows)
    sick = np.where(age + draw.normal(0, 5, n_rows) > 50, "yes", "no").tolist()
    days = [f"{value:.3f}" for value in age / 5 + draw.normal(size=n_rows)]
    ages: list[str] = [f"{value:.3f}" for value in age]
    ward = draw.choice(["north", "south"], n_rows).tolist()
    ages[3], ages[5], ages[8], ward[4], days[6] = "", SECRET, "1e300", SECRET, SECRET
    rows = zip(range(n_rows), ages, ward, sick, days, strict=True)
    with (folder / "patients.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "age", "ward", "sick", "days"), *rows])
    (folder / "days.toml").write_text("ignore = ['id', 'sick']\n" + BOUNDS, encoding="utf-8")
    (folder / "sick.toml").write_text("ignore = ['id', 'days']\n" + BOUNDS, encoding="utf-8")


def inside(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, which has its modules already."""
    from dpkernel.cli import app

    done = CliRunner().invoke(app, [str(argument) for argument in arguments], **options)
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "dpkernel", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
