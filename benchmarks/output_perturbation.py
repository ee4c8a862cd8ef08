"""How accurate output perturbation is beside the other methods, and how fast its solver is.

``python benchmarks/output_perturbation.py [--splits 3] [--speed]``, with DPKERNEL_DATA set.

R^2 or accuracy on test rows, mean and standard error over random splits; defaults untouched, declared
bounds, seeded noise. ``--speed`` solves a hinge support vector machine on 100,000 rows of 1,000 features
with this library's solver and with scikit-learn's LinearSVC, one after the other in one run.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from datasets import Data, load
from rich.console import Console
from rich.table import Table
from sklearn.svm import LinearSVC

from dpkernel import (
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    SeededNoise,
)
from dpkernel.losses import Hinge
from dpkernel.methods import PrivateHuberRegressor, PrivateKernelSVC, PrivateKernelSVR
from dpkernel.solvers.objective_perturbation import BlockRecords
from dpkernel.solvers.output_perturbation import Risk, minimise_risk

EPSILONS = (0.3, 1.0, 3.0)
DELTA = 1e-6
ROWS = {"california": 16_000, "power": 7_600, "breast_cancer": 455}

REGRESSORS: dict[str, Callable[..., Any]] = {
    "SVR (output)": PrivateKernelSVR,
    "Huber (output)": lambda *a, **kw: PrivateHuberRegressor(*a, solver="output", **kw),
    "Huber (objective)": PrivateHuberRegressor,
    "PrivateKernelRidge": PrivateKernelRidge,
    "PrivateKernelRegressor": PrivateKernelRegressor,
}
CLASSIFIERS: dict[str, Callable[..., Any]] = {
    "SVC (output)": PrivateKernelSVC,
    "Classifier (output)": lambda *a, **kw: PrivateKernelClassifier(*a, solver="output", **kw),
    "PrivateKernelClassifier": PrivateKernelClassifier,
}


def score(build: Callable[..., Any], data: Data, epsilon: float, seed: int) -> float:
    """Return R^2 or accuracy on the test rows of one split."""
    train, test = data.split(ROWS[data.name], seed)
    target = {"classes": data.classes} if data.classes else {"y_bounds": data.y_bounds}
    model = build(epsilon, DELTA, bounds=data.bounds, noise=SeededNoise(seed), **target)
    model.fit(data.X[train], data.y[train])
    return float(model.score(data.X[test], data.y[test]))


def accuracy(console: Console, names: list[str], splits: int) -> None:
    """Print a table of test scores for each data set."""
    for name in names:
        data = load(name)
        if data is None:
            console.print(f"{name}: not at hand, set DPKERNEL_DATA")
            continue
        what = "accuracy" if data.classes else "R^2"
        table = Table("method", *(f"eps {e:g}" for e in EPSILONS), title=f"{name}: {what}")
        for label, build in (CLASSIFIERS if data.classes else REGRESSORS).items():
            cells = []
            for epsilon in EPSILONS:
                found = [score(build, data, epsilon, seed) for seed in range(splits)]
                spread = np.std(found, ddof=1) / math.sqrt(splits) if splits > 1 else math.nan
                cells.append(f"{np.mean(found):.3f} ± {spread:.3f}")
            table.add_row(label, *cells)
        console.print(table)


def speed(console: Console, n: int, size: int) -> None:
    """Print seconds and objectives of both solvers for one hinge problem, at two ridges."""
    draws = np.random.default_rng(0)
    X = draws.normal(size=(n, 20))
    signal = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.3 * draws.normal(size=n)
    y = np.sign(signal)
    angles = X @ draws.normal(size=(20, size // 2)) / 4
    Z = np.hstack([np.cos(angles), np.sin(angles)]) / math.sqrt(size // 2) * (1 - 2.0**-20)
    Z = Z.astype(np.float32)
    blocks = [(Z[i : i + 4096], y[i : i + 4096], None) for i in range(0, n, 4096)]
    table = Table("ridge", "ours [s]", "LinearSVC [s]", "ratio", "ours, hinge", "LinearSVC, hinge")
    for ridge in (20.0, 2.0):
        risk = Risk(Hinge(), n, size, 1.0, ridge)
        start = time.perf_counter()
        beta = minimise_risk(lambda loss: BlockRecords(lambda: blocks, loss), risk)
        seconds = [time.perf_counter() - start]
        rival = LinearSVC(loss="hinge", C=1 / ridge, fit_intercept=False)
        rows = Z.astype(np.float64)
        start = time.perf_counter()
        rival.fit(rows, y)
        seconds.append(time.perf_counter() - start)
        values = [
            float(np.maximum(0, 1 - y * (rows @ b)).sum() + ridge / 2 * b @ b)
            for b in (beta, rival.coef_[0])
        ]
        ratio = seconds[1] / seconds[0]
        cells = (*(f"{s:.1f}" for s in seconds), f"{ratio:.2f}", *(f"{v:.0f}" for v in values))
        table.add_row(f"{ridge:g}", *cells)
    console.print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--tables", nargs="*", default=list(ROWS))
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    if arguments.speed:
        speed(Console(), 100_000, 1_000)
    else:
        accuracy(Console(), arguments.tables, arguments.splits)
