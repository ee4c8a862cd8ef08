"""How the planner's expected errors compare with what comes out on real tables.

``python benchmarks/outlook.py``; needs the tables (DPKERNEL_DATA).
It writes benchmarks/results/outlook.csv; with ``--tables``, the lines of other tables stay as they are.

The effect that the planner is told is what the same model explains at epsilon = 1000. Each number is
the mean over splits: the error on other rows of the table, relative to that of a constant. Defaults
untouched, delta = 1e-6.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from pathlib import Path

import numpy as np
from datasets import Data, load
from provenance import made_by

from dpkernel import PrivateKernelClassifier, PrivateKernelRegressor, SeededNoise

TABLES = (
    ("california", 16_000),
    ("diamonds", 16_000),
    ("kin40k", 16_000),
    ("power", 7600),
    ("year", 5000),
    ("wine_white", 3900),
    ("airfoil", 1200),
    ("concrete", 824),
    ("adult", 16_000),
    ("adult", 2000),
    ("covtype", 16_000),
    ("covtype", 2000),
    ("spambase", 3600),
    ("spambase", 1000),
    ("breast_cancer", 455),
)
EPSILONS = (0.3, 1.0, 3.0)
FREE = 1000.0
OUT = Path(__file__).parent / "results" / "outlook.csv"


def model_of(data: Data, epsilon: float, seed: int):  # type: ignore[no-untyped-def]
    """Return the default estimator of the table."""
    common = {"bounds": data.bounds, "noise": SeededNoise(seed)}
    if data.classes is None:
        return PrivateKernelRegressor(epsilon, 1e-6, y_bounds=data.y_bounds, **common)
    return PrivateKernelClassifier(epsilon, 1e-6, classes=data.classes, **common)


def measured(data: Data, n_rows: int, epsilon: float, seed: int) -> float:
    """Return the error on other rows, relative to that of a constant."""
    train, test = data.split(n_rows, seed, 5000)
    found = model_of(data, epsilon, seed).fit(data.X[train], data.y[train]).predict(data.X[test])
    y = data.y[test]
    if data.classes is None:
        return float(np.mean((found - y) ** 2) / np.var(y))
    _, counts = np.unique(y, return_counts=True)
    return float(np.mean(found != y) / (1 - counts.max() / len(y)))


def effect_of(data: Data, error: float) -> float:
    """Return the effect for which the planner's best possible error is this one."""
    if data.classes is None:
        return float(np.clip(1 - error, 0.01, 0.999))
    return float(np.cos(np.pi * np.clip(error, 0.01, 0.99) / 2) ** 2)


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--tables", nargs="*", default=sorted({name for name, _ in TABLES}))
    arguments = parser.parse_args()
    splits = arguments.splits
    warnings.simplefilter("ignore")
    head = ["table", "rows", "inputs", "effect"]
    first, *others = EPSILONS
    head += [f"epsilon {first:g}: planned / measured", *(f"{e:g}" for e in others)]
    written = csv.reader(line for line in OUT.open(encoding="utf-8") if not line.startswith("#"))
    kept = {(line[0], line[1]): line for line in written}
    lines: list[list[str]] = []
    for name, n_rows in TABLES:
        if name not in arguments.tables:
            lines.append(kept[name, str(n_rows)])
            continue
        data = load(name)
        if data is None:
            raise SystemExit(f"{name}: not at hand (set DPKERNEL_DATA)")
        d = data.X.shape[1]
        free = np.mean([measured(data, n_rows, FREE, seed) for seed in range(splits)])
        effect = effect_of(data, float(free))
        line = [name, str(n_rows), str(d), f"{effect:.2f}"]
        for epsilon in EPSILONS:
            planned = model_of(data, epsilon, 0).plan(n_rows, d, effect=effect).relative_error
            real = np.mean([measured(data, n_rows, epsilon, seed) for seed in range(splits)])
            line.append(f"{planned:.2f} / {real:.2f}")
        print(*line, flush=True)
        lines.append(line)
    with OUT.open("w", encoding="utf-8", newline="") as file:
        file.write(made_by())
        csv.writer(file, lineterminator="\n").writerows([head, *lines])


if __name__ == "__main__":
    main()
