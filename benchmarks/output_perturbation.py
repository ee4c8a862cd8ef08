"""When which method wins: noise on the solution, inside the problem, on sums, or by mixing.

``OPENBLAS_NUM_THREADS=1 python benchmarks/output_perturbation.py [--splits 10] [--speed]``, with
DPKERNEL_DATA set.

R^2 or accuracy on test rows, mean and standard error over random splits, and the processor's seconds of
a fit, mean over the same fits; defaults untouched, declared bounds, seeded noise. Each table is written
to ``results/output_TABLE.csv``; of breast_cancer there are ten times as many splits. ``--speed``
solves a hinge support vector machine on 100,000 rows of 1,000 features with this library's solver and
with scikit-learn's LinearSVC, one after the other in one run.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from datasets import Data, load
from provenance import write
from rich.console import Console
from rich.table import Table
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from threadpoolctl import threadpool_limits

from dpkernel import (
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    SeededNoise,
)
from dpkernel.methods import (
    PrivateHuberRegressor,
    PrivateKernelSVC,
    PrivateKernelSVR,
    PrivateSketchedRidge,
)
from dpkernel.models.losses import Hinge
from dpkernel.solvers.objective_perturbation import BlockRecords
from dpkernel.solvers.output_perturbation import Risk, minimise_risk

EPSILONS = (0.3, 1.0, 3.0)
DELTA = 1e-6
ROWS = {"california": 16_000, "power": 7_600, "breast_cancer": 455}
FIRST_SPLIT = 200  # no default was set on these splits
SIGNED = ("idealised-arithmetic",)

REGRESSORS: dict[str, Callable[..., Any]] = {
    "`PrivateKernelRidge`, noise on the Gram matrix": PrivateKernelRidge,
    "`PrivateKernelRidge`, output": lambda **kw: PrivateKernelRidge(solver="output", **kw),
    "`PrivateSketchedRidge`, mixing": lambda **kw: PrivateSketchedRidge(accept=SIGNED, **kw),
    "`PrivateKernelSVR`, output": PrivateKernelSVR,
    "`PrivateHuberRegressor`, output": lambda **kw: PrivateHuberRegressor(solver="output", **kw),
    "`PrivateHuberRegressor`, objective perturbation": PrivateHuberRegressor,
    "`PrivateKernelRegressor`": PrivateKernelRegressor,
}
CLASSIFIERS: dict[str, Callable[..., Any]] = {
    "`PrivateKernelSVC`, output": PrivateKernelSVC,
    "`PrivateKernelClassifier`, output": lambda **kw: PrivateKernelClassifier(
        solver="output", **kw
    ),
    "`PrivateKernelClassifier`, objective perturbation": PrivateKernelClassifier,
}
PUBLIC = "without privacy"  # scikit-learn on 300 Nystroem features, the length scale of the others


class Public:
    """Kernel ridge regression or logistic regression on a Nystroem map, without privacy."""

    def __init__(self, data: Data, seed: int) -> None:
        low, high = data.bounds
        self._low, self._half = low, (high - low) / 2
        width = 0.7 * math.sqrt(data.X.shape[1])
        last = (
            LogisticRegression(C=100.0, max_iter=2000)
            if data.classes
            else RidgeCV(np.logspace(-4, 2, 13))
        )
        map_ = Nystroem(gamma=1 / (2 * width**2), n_components=300, random_state=seed)
        self._model = make_pipeline(map_, last)

    def _unit(self, X: np.ndarray) -> np.ndarray:
        return np.clip((X - self._low) / self._half - 1, -1, 1)

    def fit(self, X: np.ndarray, y: np.ndarray) -> Public:
        """Fit to rows scaled by their declared bounds."""
        self._model.fit(self._unit(X), y)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return predictions."""
        return self._model.predict(self._unit(X))


def measure(label: str, data: Data, epsilon: float, splits: int) -> tuple[np.ndarray, float]:
    """Return the score of one method on every split, and the mean seconds of a fit."""
    scores, seconds = [], []
    builds = CLASSIFIERS if data.classes else REGRESSORS
    for seed in range(FIRST_SPLIT, FIRST_SPLIT + splits):
        train, test = data.split(ROWS[data.name], seed)
        target = {"classes": data.classes} if data.classes else {"y_bounds": data.y_bounds}
        options = {"epsilon": epsilon, "delta": DELTA, "bounds": data.bounds, **target}
        model = (
            Public(data, seed)
            if label == PUBLIC
            else builds[label](noise=SeededNoise(seed), **options)
        )
        start = time.process_time()
        model.fit(data.X[train], data.y[train])
        seconds.append(time.process_time() - start)
        found, y = model.predict(data.X[test]), data.y[test]
        wrong = np.mean((found - y) ** 2) / np.var(y) if not data.classes else np.mean(found != y)
        scores.append(1 - wrong)
    return np.array(scores), float(np.mean(seconds))


def accuracy(data: Data, splits: int) -> list[list[str]]:
    """Return the table of a data set: test scores, the best one in bold, and seconds."""
    what = "accuracy" if data.classes else "R^2"
    first, *others = (f"{epsilon:g}" for epsilon in EPSILONS)
    head = [f"{data.name}, {what}", f"epsilon {first}", *others, "seconds of a fit"]
    means, lines = [], []
    for label in CLASSIFIERS if data.classes else REGRESSORS:
        found = [measure(label, data, epsilon, splits) for epsilon in EPSILONS]
        means.append([scores.mean() for scores, _ in found])
        seconds = sorted({f"{fit:.2f}" for _, fit in found}, key=float)
        ends = " to ".join(seconds[:: max(1, len(seconds) - 1)])
        lines.append([label, *(as_text(scores) for scores, _ in found), ends])
    for column, best in enumerate(np.argmax(means, axis=0), start=1):
        lines[best][column] = f"**{lines[best][column]}**"
    scores, fit = measure(PUBLIC, data, math.inf, splits)
    return [head, *lines, [PUBLIC, as_text(scores), "", "", f"{fit:.2f}"]]


def as_text(scores: np.ndarray) -> str:
    """Return the mean and its standard error."""
    return f"{scores.mean():.3f} ± {scores.std(ddof=1) / math.sqrt(len(scores)):.3f}"


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
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--tables", nargs="*", default=list(ROWS))
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    if arguments.speed:
        speed(Console(), 100_000, 1_000)
    for name in arguments.tables if not arguments.speed else ():
        table = load(name)
        if table is None:
            print(f"{name}: not at hand, set DPKERNEL_DATA")
            continue
        with threadpool_limits(1):
            rows = accuracy(table, arguments.splits * (10 if table.classes else 1))
        write(f"output_{name}.csv", rows)
        print(*rows, sep="\n", flush=True)
