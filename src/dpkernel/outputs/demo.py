"""The demonstration of ``make demo``: from a CSV file to a private model, its report and an audit.

It writes a made-up table of patients (see ``patients``) as two CSV files and a bounds.toml, and then
runs the commands that a user would type, each in a process of its own.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from dpkernel.data.table_files import encode_table, open_table, read_schema
from dpkernel.foundations.errors import DPKernelError
from dpkernel.outputs.patients import BOUNDS, HEADER, visits

_PATIENTS = 20_000
_NEW_PATIENTS = 2_000
_AUDIT_ROWS, _AUDIT_TRIALS = 200, 100  # an audit of the model itself would take minutes


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
    say(f"All stays of {_PATIENTS} made-up patients: how many days does a stay take?")
    say("")
    table, model = str(files["training rows"]), str(files["model"])
    bounds, ledger = ("--bounds", str(files["bounds"])), ("--ledger", str(files["ledger"]))
    ceiling = ("--dataset", "patients", "--epsilon", "3", "--delta", "1e-6")
    _run(say, "ledger", "create", str(files["ledger"]), *ceiling)
    _run(say, "check", table, *bounds)
    people = ("--group", "patient")  # protects a patient with all stays
    _run(say, "fit", table, *bounds, *people, "--epsilon", "1", *ledger, "--out", model)
    _run(say, "verify", model)
    _run(say, "show", model, "--quiet", "--out", str(files["certificate"]))
    new = (str(files["new rows"]), "--id", "patient")
    _run(say, "predict", model, *new, "--out", str(files["predictions"]))
    _run(say, "report", model, "--out", str(files["report"]), *ledger)
    _run(
        say,
        *(
            "audit",
            "PrivateKernelRegressor",
            "--epsilon",
            "1",
            "--rows",
            str(_AUDIT_ROWS),
            "--trials",
            str(_AUDIT_TRIALS),
        ),
        *("--out", str(files["audit"]), "--plot", str(files["audit picture"])),
    )
    with files["predictions"].open(encoding="utf-8", newline="") as file:
        found = np.array([float(row["prediction"]) for row in csv.DictReader(file)])
    spread = float(np.var(true))
    say(f"Squared error on {len(true)} new patients, as a share of the variance:")
    say(f"  {'a constant':<48} 1.00")
    say(f"  {'the private model, epsilon = 1':<48} {np.mean((found - true) ** 2) / spread:.2f}")
    open_error = np.mean((_without_privacy(files) - true) ** 2) / spread
    say(f"  {'gradient boosting of scikit-learn, not private':<48} {open_error:.2f}")
    say("These numbers are for comparison and not private: the new rows are read without noise.")
    say("")
    for what, path in files.items():
        say(f"{what:<14} {path}")
    say(f"Open {files['report'].resolve()} in a browser.")
    return files


def _write_tables(files: dict[str, Path]) -> np.ndarray:
    """Write training rows, new rows without their target, and bounds; return the true targets."""
    stays = list(visits(_PATIENTS + _NEW_PATIENTS))
    latest = {row["patient"]: row for row in stays}
    new = list(latest.values())[:_NEW_PATIENTS]
    ids = {row["patient"] for row in new}
    known = [row for row in stays if row["patient"] not in ids]
    for what, part in (("training rows", known), ("new rows", new)):
        header = [name for name in HEADER if what == "training rows" or name != "days"]
        with files[what].open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, header, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(part)
    files["bounds"].write_text(BOUNDS, encoding="utf-8")
    return np.array([float(row["days"]) for row in new])


def _without_privacy(files: dict[str, Path]) -> np.ndarray:
    """Return what a model without privacy predicts for the new rows."""
    schema = read_schema(files["bounds"])
    X, y = encode_table(open_table(files["training rows"]), schema).arrays()
    table = open_table(files["new rows"])
    names = [rule.name for rule in schema.inputs]
    blocks = [schema.encode(columns) for columns in table.read(names, lambda share: None)]
    model = HistGradientBoostingRegressor(random_state=0).fit(X, y)
    return np.asarray(model.predict(np.concatenate(blocks)))


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
