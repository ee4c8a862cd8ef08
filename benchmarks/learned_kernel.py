"""What a learned kernel is worth: the default regressor against one with a fixed Gaussian kernel.

``python benchmarks/learned_kernel.py [--jobs 2] [--splits 5]``. Test mean squared error over the
variance of the test targets, mean over random splits of 80 and 20 percent with standard errors;
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

from dpkernel import PrivateKernelRegressor

TABLES = ("california", "diamonds", "kin40k", "airfoil", "concrete", "wine_white", "year", "power")
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
METHODS = {"learned kernel": {}, "fixed kernel": {"kernel": "gaussian"}}
RESULTS = Path(__file__).parent / "results" / "learned_kernel.csv"


def measure(task: tuple[str, str, float, int]) -> tuple[float, float]:
    """Return the error of one fit and its seconds."""
    method, name, epsilon, seed = task
    data = load(name)
    assert data is not None
    train, test = data.split(int(0.8 * len(data.y)), seed, most=len(data.y))
    model = PrivateKernelRegressor(
        epsilon, 1e-6, bounds=data.bounds, y_bounds=data.y_bounds, **METHODS[method]
    )
    with threadpool_limits(1):
        start = time.perf_counter()
        model.fit(data.X[train], data.y[train])
        seconds = time.perf_counter() - start
        errors = (model.predict(data.X[test]) - data.y[test]) ** 2
    return float(errors.mean() / data.y[test].var()), seconds


def main() -> None:
    """Measure every cell and write the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--splits", type=int, default=5)
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    tasks = list(itertools.product(METHODS, TABLES, EPSILONS, range(given.splits)))
    with ProcessPoolExecutor(given.jobs) as pool:
        found = dict(zip(tasks, pool.map(measure, tasks), strict=True))
    cells = {
        cell: np.array([found[(*cell, seed)] for seed in range(given.splits)])
        for cell in itertools.product(METHODS, TABLES, EPSILONS)
    }
    rows = [["table", "method", f"epsilon {EPSILONS[0]:g}", *(f"{e:g}" for e in EPSILONS[1:])]]
    for name, method in itertools.product(TABLES, METHODS):
        errors = [cells[method, name, epsilon][:, 0] for epsilon in EPSILONS]
        spread = math.sqrt(given.splits)
        shown = [f"{e.mean():.3f} ({e.std(ddof=1) / spread:.3f})" for e in errors]
        rows.append([name if method == next(iter(METHODS)) else "", method, *shown])
    means = {cell: float(values[:, 0].mean()) for cell, values in cells.items()}
    ratios = [
        math.exp(
            np.mean(
                [
                    math.log(means["learned kernel", t, e] / means["fixed kernel", t, e])
                    for t in TABLES
                ]
            )
        )
        for e in EPSILONS
    ]
    rows.append(["geometric mean", "learned / fixed", *(f"{ratio:.3f}" for ratio in ratios)])
    for method in METHODS:
        times = [np.concatenate([cells[method, t, e][:, 1] for t in TABLES]) for e in EPSILONS]
        rows.append(["seconds", method, *(f"{np.median(each):.2f}" for each in times)])
    with given.out.open("w", newline="", encoding="utf-8") as file:
        file.write(made_by())
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
