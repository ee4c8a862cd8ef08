"""The demonstration of ``make demo``: from a CSV file to a private model, its report and an audit.

It writes the diabetes table of scikit-learn as two CSV files and a bounds.toml, and then runs the
commands that a user would type, each in a process of its own.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

from dpkernel.foundations.errors import DPKernelError

# Plausible ranges of age, body mass index, blood pressure and six blood values, as a clinician
# would state them; none of them was read from the data.
_BOUNDS = """\
[columns.age]
low = 18
high = 90

[columns.sex]
levels = [1, 2]

[columns.bmi]
low = 15
high = 45

[columns.bp]
low = 60
high = 140

[columns.s1]
low = 80
high = 320

[columns.s2]
low = 30
high = 250

[columns.s3]
low = 20
high = 100

[columns.s4]
low = 1
high = 10

[columns.s5]
low = 3
high = 6.5

[columns.s6]
low = 50
high = 130

[target]
name = "progression"
low = 0
high = 350
"""
_TEST_ROWS = 100
_AUDIT_TRIALS = 200


def run_demo(out: Path, say: Callable[[str], None]) -> dict[str, Path]:
    """Run every step, and return the path of each result."""
    out.mkdir(parents=True, exist_ok=True)
    names = {
        "training rows": "patients.csv",
        "new rows": "new_patients.csv",
        "bounds": "bounds.toml",
        "ledger": "study.db",
        "model": "model.dpk",
        "certificate": "certificate.json",
        "predictions": "predictions.csv",
        "report": "report.html",
        "audit": "audit.json",
        "audit picture": "audit.png",
    }
    files = {what: out / name for what, name in names.items()}
    for path in (*files.values(), Path(f"{files['ledger']}-lock")):
        path.unlink(missing_ok=True)  # the demonstration starts anew; never delete a real ledger
    true = _write_tables(files)
    model, ledger = str(files["model"]), ("--ledger", str(files["ledger"]))
    ceiling = ("--dataset", "diabetes", "--epsilon", "3", "--delta", "1e-5")
    _run(say, "ledger", "create", str(files["ledger"]), *ceiling)
    budget = ("--epsilon", "3", "--delta", "1e-5")
    _run(
        say,
        *("fit", str(files["training rows"]), "--bounds", str(files["bounds"])),
        *("--estimator", "PrivateKernelRidge", "--set", "kernel=linear", *budget),
        *("--out", model, *ledger),
    )
    _run(say, "verify", model)
    _run(say, "show", model, "--quiet", "--out", str(files["certificate"]))
    _run(say, "predict", model, str(files["new rows"]), "--out", str(files["predictions"]))
    _run(say, "report", model, "--out", str(files["report"]), *ledger)
    _run(
        say,
        *("audit", model, "--trials", str(_AUDIT_TRIALS)),
        *("--out", str(files["audit"]), "--plot", str(files["audit picture"])),
    )
    with files["predictions"].open(encoding="utf-8", newline="") as file:
        found = np.array([float(row["prediction"]) for row in csv.DictReader(file)])
    error = float(np.mean((found - true) ** 2) / np.var(true))
    say(
        f"The squared error on {len(true)} new patients is {error:.2f} of the variance (a constant: 1)."
    )
    say("This number is for comparison only and not private: the new rows are read without noise.")
    say("")
    for what, path in files.items():
        say(f"{what:<14} {path}")
    return files


def _write_tables(files: dict[str, Path]) -> np.ndarray:
    """Write training rows, new rows without their target, and bounds; return the true targets."""
    found = load_diabetes(scaled=False)
    order = np.random.RandomState(0).permutation(len(found.target))
    header = list(found.feature_names)
    for what, rows in (("new rows", order[:_TEST_ROWS]), ("training rows", order[_TEST_ROWS:])):
        table = found.data[rows].tolist()
        names = header
        if what == "training rows":
            names = [*header, "progression"]
            table = [[*row, y] for row, y in zip(table, found.target[rows].tolist(), strict=True)]
        with files[what].open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([names, *table])
    files["bounds"].write_text(_BOUNDS, encoding="utf-8")
    return np.asarray(found.target[order[:_TEST_ROWS]])


def _run(say: Callable[[str], None], *arguments: str) -> None:
    """Run a command as a user would, and print the command and its output."""
    say("$ dpkernel " + " ".join(arguments))
    result = subprocess.run(
        [sys.executable, "-m", "dpkernel", *arguments], capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise DPKernelError(f"A step of the demonstration failed: {result.stderr.strip()}")
    say(result.stdout.rstrip())
    say("")
