"""The demonstration behind ``make demo``: from a table to a private model and its certificate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from dpkernel.estimators import PrivateKernelRidge
from dpkernel.ledger import Ledger
from dpkernel.model_file import load, save
from dpkernel.report import write_report
from dpkernel.types import Budget

# Plausible ranges of age, sex, body mass index, blood pressure and six blood values, as a
# clinician would state them; none was read from the data.
_LOW = (18, 1, 15, 60, 80, 30, 20, 1, 3, 50)
_HIGH = (90, 2, 45, 140, 320, 250, 100, 10, 6.5, 130)


def run_demo(out: Path, console: Console) -> None:
    """Train, save, verify and report; print where each result lies."""
    out.mkdir(parents=True, exist_ok=True)
    X, y = load_diabetes(return_X_y=True, scaled=False)
    train_X, test_X, train_y, test_y = train_test_split(X, y, test_size=100, random_state=0)
    ledger = Ledger(budget=Budget(3.0, 1e-5))
    model = PrivateKernelRidge(
        epsilon=3.0,
        delta=1e-5,
        kernel="linear",
        bounds=(_LOW, _HIGH),
        y_bounds=(0, 350),
        ledger=ledger,
    ).fit(train_X, train_y)
    console.print(str(model.certificate_), markup=False)
    console.print()
    error = float(np.mean((model.predict(test_X) - test_y) ** 2) / np.var(test_y))
    console.print(
        f"{len(train_X)} patients; test error {error:.2f} of the variance (1 = a constant)."
    )
    console.print("Not private, for comparison only: the test rows are read without noise.")

    model_path = save(model, out / "model.npz")
    certificate_path = out / "certificate.json"
    certificate_path.write_text(model.certificate_.to_json(), encoding="utf-8")
    report_path = write_report(model.certificate_, out / "report.html")
    again = load(model_path)
    same = bool(np.array_equal(again.predict(test_X), model.predict(test_X)))
    proved = again.certificate_.verify()
    console.print(f"The saved model predicts the same: {same}; its certificate proves {proved}.")
    for name, path in (
        ("model", model_path),
        ("certificate", certificate_path),
        ("report", report_path),
    ):
        console.print(f"{name:<12} {path}")
