"""What was asked of the accuracy of the default estimators, and what they reach.

``python benchmarks/targets.py`` reads the files of results of ``learned_kernel.py`` and writes
``targets.csv``: each cell has the number reached and the number asked for, in bold where it is missed.

``python benchmarks/targets.py before [--jobs 2] [--splits 5]`` measures the default regressor and
classifier of the version that is imported, on the splits of ``learned_kernel.py`` and with seeded
noise, and writes ``learned_before.csv``. It is meant for commit 0e1be7604, the last one whose kernel
was always fixed: put a copy of its ``src`` on PYTHONPATH, and COMMIT=0e1be7604 into the environment.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
from datasets import load
from provenance import RESULTS, write
from threadpoolctl import threadpool_limits

from dpkernel import PrivateKernelClassifier, PrivateKernelRegressor, SeededNoise

TABLES = ("california", "diamonds", "kin40k", "airfoil", "concrete", "wine_white", "year", "power")
CLASSES = ("adult", "covtype", "spambase", "breast_cancer")
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
SIBLINGS = ("PrivateHuberRegressor", "PrivateSGDRegressor", "PrivateKernelRidge")

Row = list[float | None]  # one number for each epsilon

MEANS: dict[str, Row] = {
    "regression": [0.95, 0.9, 0.78, 0.72, 0.6],
    "classes": [0.95, 0.9, 0.9, 0.88, 0.85],
}
WORST: Row = [1.02] * 5
AGAINST_OTHERS: Row = [1.03, 1.03, 1.0, 1.0, 1.0]
ERRORS: dict[str, Row] = {
    "kin40k": [None, 0.45, 0.16, 0.085, 0.05],
    "california": [0.36, 0.285, 0.245, 0.23, 0.205],
    "concrete": [None, None, 0.36, 0.22, 0.15],
    "adult": [None, None, 0.154, 0.151, 0.148],
    "covtype": [None, None, 0.233, 0.222, 0.212],
    "spambase": [None, None, 0.09, 0.072, 0.062],
    "breast_cancer": [None, None, 0.055, None, None],
}


def measure(task: tuple[str, float, int]) -> float:
    """Return the error of one default fit: squared over the variance, or the share of wrong labels."""
    name, epsilon, seed = task
    data = load(name)
    assert data is not None
    train, test = data.split(int(0.8 * len(data.y)), seed, most=len(data.y))
    noise = SeededNoise(1000 + seed)
    with threadpool_limits(1):
        if data.classes is None:
            regressor = PrivateKernelRegressor(
                epsilon, 1e-6, bounds=data.bounds, y_bounds=data.y_bounds, noise=noise
            ).fit(data.X[train], data.y[train])
            missed = (regressor.predict(data.X[test]) - data.y[test]) ** 2
            return float(np.mean(missed) / data.y[test].var())
        model = PrivateKernelClassifier(
            epsilon, 1e-6, bounds=data.bounds, classes=data.classes, noise=noise
        ).fit(data.X[train], data.y[train])
        return float(np.mean(model.predict(data.X[test]) != data.y[test]))


def measure_before(jobs: int, splits: int) -> None:
    """Measure all tables with the version that is imported."""
    rows = [["table", f"epsilon {EPSILONS[0]:g}", *(f"{e:g}" for e in EPSILONS[1:])]]
    with ProcessPoolExecutor(jobs) as pool:
        for name in (*TABLES, *CLASSES):
            seeds = range(4 * splits if name == "breast_cancer" else splits)
            tasks = list(itertools.product([name], EPSILONS, seeds))
            found = np.array(list(pool.map(measure, tasks))).reshape(len(EPSILONS), -1)
            errors = found.std(axis=1, ddof=1) / math.sqrt(len(seeds))
            pairs = zip(found.mean(axis=1), errors, strict=True)
            rows.append([name, *(f"{mean:.4f} ({error:.4f})" for mean, error in pairs)])
    write("learned_before.csv", rows)


def errors_of(file: str) -> dict[str, dict[str, list[float]]]:
    """Return the errors in a file of results: of each method, for each table, for every epsilon."""
    lines = (RESULTS / file).read_text(encoding="utf-8").splitlines()
    found: dict[str, dict[str, list[float]]] = {}
    table = ""
    for row in csv.reader(line for line in lines[1:] if not line.startswith("#")):
        if row[0] in ("table", "geometric mean", "seconds"):
            continue
        table, method, cells = (
            (row[0], "before", row[1:])
            if file == "learned_before.csv"
            else (row[0] or table, row[1], row[2:])
        )
        found.setdefault(method, {})[table] = [float(cell.split(" ")[0]) for cell in cells]
    return found


def line(name: str, reached: Row, asked: Row, notes: list[str] | None = None) -> list[str]:
    """Return one line of the table."""
    cells = []
    for place, (number, limit) in enumerate(zip(reached, asked, strict=True)):
        if number is None or limit is None:
            cells.append("")
            continue
        digits = len(f"{limit:g}".partition(".")[2])
        shown = f"{number:.3f}" if number <= limit + 1e-9 else f"**{number:.3f}**"
        note = f" {notes[place]}" if notes else ""
        cells.append(f"{shown} / {limit:.{max(digits, 2)}f}{note}")
    return [name, *cells]


def worst(
    ours: dict[str, list[float]], others: dict[str, list[float]], asked: Row
) -> tuple[Row, Row, list[str]]:
    """Return the largest ratio of errors at every epsilon, what was asked, and the table that has it."""
    ratios: Row = []
    names = []
    for place in range(len(EPSILONS)):
        each = {t: ours[t][place] / others[t][place] for t in ours}
        name = max(each, key=lambda t: each[t])
        names.append(f"({name})")
        ratios.append(each[name])
    return ratios, asked, names


def compare() -> None:
    """Write the table of targets."""
    before = errors_of("learned_before.csv")["before"]
    siblings = errors_of("learned_siblings.csv")
    regression = errors_of("learned_kernel.csv")["default"]
    classes = errors_of("learned_classes.csv")["default"]
    rows = [["target", f"epsilon {EPSILONS[0]:g}", *(f"{e:g}" for e in EPSILONS[1:])]]
    ours = {"regression": regression, "classes": {name: classes[name] for name in CLASSES}}
    titles = {"regression": "regression, 8 tables", "classes": "classification, 4 tables"}
    for kind, own in ours.items():
        means: Row = [
            math.exp(float(np.mean([math.log(own[t][p] / before[t][p]) for t in own])))
            for p in range(len(EPSILONS))
        ]
        rows.append(
            line(f"{titles[kind]}: geometric mean of error / version 0.1.0", means, MEANS[kind])
        )
        if kind == "regression":
            rows.append(line("worst table / version 0.1.0", *worst(own, before, WORST)))
            best = {
                t: [min(1.0, *(siblings[m][t][p] for m in SIBLINGS)) for p in range(len(EPSILONS))]
                for t in own
            }
            text = "worst table / best of our other regressors and a mean"
            rows.append(line(text, *worst(siblings["default"], best, AGAINST_OTHERS)))
        for name, asked in ERRORS.items():
            if name in own:
                rows.append(line(f"error on {name}", list(own[name]), asked))
    write("targets.csv", rows)


def main() -> None:
    """Compare, or measure the version before."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("what", nargs="?", choices=["compare", "before"], default="compare")
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--splits", type=int, default=5)
    given = options.parse_args()
    if given.what == "before":
        start = time.perf_counter()
        measure_before(given.jobs, given.splits)
        print(f"{time.perf_counter() - start:.0f} seconds")
    else:
        compare()


if __name__ == "__main__":
    main()
