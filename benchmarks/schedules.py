"""How accurate the schedules of the theorems are at a practical size, next to what dpkernel chooses.

``python benchmarks/schedules.py [--repetitions 5]``: california with 16,000 training rows at epsilon =
1 and delta = 1e-6; R^2 on the other rows, with its standard error over random splits. Presets and
schedules have the exponents that stand when none are written.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Data, load
from provenance import made_by
from rich.console import Console
from rich.progress import track

from dpkernel import PrivateKernelRegressor, PrivateKernelRidge, SeededNoise
from dpkernel.methods import PrivateHuberRegressor, PrivateKernelSVR, PrivateSGDRegressor

OUT = Path(__file__).parent / "results" / "schedules.csv"
ROWS = 16_000
SGD, OUTPUT = PrivateSGDRegressor, {"perturbation": "output"}
CASES: list[tuple[str, str, Any, dict[str, Any]]] = [
    ("SGD, noise on the output", "ours", SGD, OUTPUT),
    ("", "holder-9", SGD, {**OUTPUT, "preset": "holder-9"}),
    ("", "holder-10", SGD, {**OUTPUT, "preset": "holder-10"}),
    ("SGD, noise on gradients", "ours", SGD, {}),
    ("", "holder-12", SGD, {"preset": "holder-12"}),
    ("ridge, noise on the Gram matrix", "ours", PrivateKernelRidge, {}),
    ("", "lee-11", PrivateKernelRidge, {"regularisation": "lee-11"}),
    ("", "lee-17", PrivateKernelRidge, {"regularisation": "lee-17", "features": "fourier"}),
    ("ridge, noise on the output", "ours", PrivateKernelRidge, {"solver": "output"}),
    (
        "",
        "nie-wang-5.1",
        PrivateKernelRidge,
        {"solver": "output", "regularisation": "nie-wang-5.1"},
    ),
    ("Huber, objective perturbation", "ours", PrivateHuberRegressor, {}),
    ("", "lee-18", PrivateHuberRegressor, {"regularisation": "lee-18"}),
    ("support vectors, noise on the output", "ours", PrivateKernelSVR, {}),
    ("", "nie-wang-4", PrivateKernelSVR, {"regularisation": "nie-wang-4"}),
    ("PrivateKernelRegressor", "ours", PrivateKernelRegressor, {}),
]


def scored(data: Data, cls: Any, options: dict[str, Any], seed: int) -> float:
    """Return R^2 on the rows that were not used."""
    train, test = data.split(ROWS, seed)
    common = {"bounds": data.bounds, "y_bounds": data.y_bounds, "noise": SeededNoise(seed)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = cls(1.0, 1e-6, **common, **options).fit(data.X[train], data.y[train])
    error = np.mean((model.predict(data.X[test]) - data.y[test]) ** 2)
    return float(1 - error / np.var(data.y[test]))


def main() -> None:
    """Measure and write the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repetitions", type=int, default=5)
    asked, data = options.parse_args(), load("california")
    if data is None:
        raise SystemExit("Set DPKERNEL_DATA to the folder with california.npz and bounds.json.")
    with OUT.open("w", newline="", encoding="utf-8") as file:
        file.write(made_by())
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "schedule", "R^2", "standard error"])
        for method, name, cls, more in track(CASES, console=Console(stderr=True)):
            found = [scored(data, cls, more, seed) for seed in range(asked.repetitions)]
            spread = np.std(found, ddof=1) / np.sqrt(len(found))
            writer.writerow([method, name, f"{np.mean(found):.3f}", f"{spread:.3f}"])
            file.flush()


if __name__ == "__main__":
    main()
