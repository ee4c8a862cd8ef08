"""What features made for the data are worth: default estimators against a fixed Gaussian kernel.

``python benchmarks/learned_kernel.py [--jobs 2] [--splits 5] [--classes]``. Test mean squared error
over the variance of the test targets or, with ``--classes``, the share of wrong labels; mean over
random splits of 80 and 20 percent with standard errors (four times as many splits of breast_cancer);
declared bounds, delta = 1e-6, replace-one neighbours, operating-system noise. Seconds are those of one
fit on one core, median over splits and tables, while the other jobs run.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from datasets import load
from provenance import made_by
from threadpoolctl import threadpool_limits

from dpkernel import PrivateKernelClassifier, PrivateKernelRegressor

TABLES = ("california", "diamonds", "kin40k", "airfoil", "concrete", "wine_white", "year", "power")
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
CLASSES = ("adult", "covtype", "spambase", "breast_cancer")
METHODS = {"default": {}, "fixed kernel": {"kernel": "gaussian"}}
RESULTS = Path(__file__).parent / "results"


def measure(task: tuple[str, str, float, int]) -> tuple[float, float]:
    """Return the error of one fit and its seconds."""
    method, name, epsilon, seed = task
    data = load(name)
    assert data is not None
    train, test = data.split(int(0.8 * len(data.y)), seed, most=len(data.y))
    if data.classes is None:
        model = PrivateKernelRegressor(
            epsilon, 1e-6, bounds=data.bounds, y_bounds=data.y_bounds, **METHODS[method]
        )
    else:
        model = PrivateKernelClassifier(
            epsilon, 1e-6, bounds=data.bounds, classes=data.classes, **METHODS[method]
        )
    with threadpool_limits(1):
        start = time.perf_counter()
        model.fit(data.X[train], data.y[train])
        seconds = time.perf_counter() - start
        found, wanted = model.predict(data.X[test]), data.y[test]
    if data.classes is not None:
        return float(np.mean(found != wanted)), seconds
    return float(np.mean((found - wanted) ** 2) / wanted.var()), seconds


def main() -> None:
    """Measure every cell and write the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--splits", type=int, default=5)
    options.add_argument("--classes", action="store_true")
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    tables = CLASSES if given.classes else TABLES
    out = given.out or RESULTS / ("learned_classes.csv" if given.classes else "learned_kernel.csv")
    seeds = {t: range(given.splits * (4 if t == "breast_cancer" else 1)) for t in tables}
    cells = list(itertools.product(METHODS, tables, EPSILONS))
    tasks = [(*cell, seed) for cell in cells for seed in seeds[cell[1]]]
    with ProcessPoolExecutor(given.jobs) as pool:
        found = dict(zip(tasks, pool.map(measure, tasks), strict=True))
    values = {cell: np.array([found[(*cell, s)] for s in seeds[cell[1]]]) for cell in cells}
    rows = [["table", "method", f"epsilon {EPSILONS[0]:g}", *(f"{e:g}" for e in EPSILONS[1:])]]
    for name, method in itertools.product(tables, METHODS):
        errors = [values[method, name, epsilon][:, 0] for epsilon in EPSILONS]
        shown = [f"{e.mean():.3f} ({e.std(ddof=1) / math.sqrt(len(e)):.3f})" for e in errors]
        rows.append([name if method == next(iter(METHODS)) else "", method, *shown])
    means = {cell: float(each[:, 0].mean()) for cell, each in values.items()}
    ratios = [
        math.exp(
            np.mean(
                [math.log(means["default", t, e] / means["fixed kernel", t, e]) for t in tables]
            )
        )
        for e in EPSILONS
    ]
    rows.append(["geometric mean", "default / fixed", *(f"{ratio:.3f}" for ratio in ratios)])
    for method in METHODS:
        times = [np.concatenate([values[method, t, e][:, 1] for t in tables]) for e in EPSILONS]
        rows.append(["seconds", method, *(f"{np.median(each):.2f}" for each in times)])
    with out.open("w", newline="", encoding="utf-8") as file:
        file.write(made_by())
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
