"""How fast private SGD is, and how accurate next to the other solvers.

``make bench`` (speed), or ``python benchmarks/sgd.py [--accuracy] [--repetitions 3]``.

Speed: steps of a batch of one over float64 records, next to what the same bytes cost: a loop that only
reads the records, a compiled loop of a scalar product and an update, the same by BLAS (ddot, daxpy),
and one pass of scikit-learn's ``SGDRegressor`` over the same matrix. All of them on one core, in
turns, the best of several; a ratio of 1 is the speed of the loop that only reads.

Accuracy: california (test error over variance) and adult (accuracy) with 16,000 rows at epsilon = 0.1,
1, 10 and delta = 1e-6; every method with its defaults, on random splits. Seconds are those of one fit
at epsilon = 1. Both tables are written to ``results``.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from datasets import load
from numba import njit
from provenance import made_by
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.linalg.blas import daxpy, ddot
from sklearn.linear_model import SGDRegressor
from threadpoolctl import threadpool_limits

from dpkernel import (
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    SeededNoise,
)
from dpkernel.methods import PrivateHuberRegressor, PrivateSGDClassifier, PrivateSGDRegressor
from dpkernel.models.losses import Huber
from dpkernel.solvers.sgd_output import RunState, Steps

SIZES = ((1000, 40_000), (10_000, 4000))  # coordinates, records: 320 MB, larger than any cache
EPSILONS = (0.1, 1.0, 10.0)
RESULTS = Path(__file__).parent / "results"


@njit(fastmath=True)
def read(z: Any, rows: Any) -> float:
    """Return the sum of all entries: every byte once, nothing else."""
    total = 0.0
    for place in range(len(rows)):
        for j in range(z.shape[1]):
            total += z[rows[place], j]
    return total


@njit(fastmath=True)
def bare(z: Any, rows: Any, w: Any) -> None:
    """Take a scalar product and an update for every record: the loop itself, without a loss."""
    for place in range(len(rows)):
        row = rows[place]
        s = 0.0
        for j in range(z.shape[1]):
            s += z[row, j] * w[j]
        s *= 1e-9
        for j in range(z.shape[1]):
            w[j] -= s * z[row, j]


def by_blas(z: np.ndarray, rows: np.ndarray, y: np.ndarray) -> None:
    """Take the same steps with BLAS, a call for each vector operation."""
    w = np.zeros(z.shape[1])
    for row in rows:
        slope = min(max(ddot(z[row], w) - y[row], -1.0), 1.0)
        daxpy(z[row], w, a=-0.5 * slope)


def speed(console: Console, turns: int = 7) -> None:
    """Print the times of one pass over the records."""
    warnings.simplefilter("ignore")
    table = Table(title="one pass, batch 1, float64; relative to reading the records once")
    for heading in (
        "coordinates",
        "order",
        "read",
        "dpkernel",
        "bare loop",
        "BLAS calls",
        "SGDRegressor",
    ):
        table.add_column(heading, justify="right")
    for size, n in SIZES:
        draws = np.random.default_rng(0)
        z, y = draws.normal(size=(n, size)) / np.sqrt(size), draws.uniform(-1, 1, n)
        weights = np.ones(n)
        for order in ("as they lie", "shuffled"):
            rows = np.arange(n) if order == "as they lie" else draws.permutation(n)
            steps = Steps(Huber(1.0), 1, n, 0.5, 0.0, False, np.inf, False)
            theirs = SGDRegressor(
                loss="huber", epsilon=1.0, alpha=0.0, learning_rate="constant", eta0=0.5,
                max_iter=1, tol=None, fit_intercept=False, shuffle=order == "shuffled",
            )  # fmt: skip
            jobs: dict[str, Callable[[], Any]] = {
                "read": lambda z=z, rows=rows: read(z, rows),
                "ours": lambda z=z, rows=rows, y=y, s=steps, v=weights: s.run(
                    RunState.start(z.shape[1]), z, rows, y, v, True
                ),
                "bare": lambda z=z, rows=rows: bare(z, rows, np.zeros(z.shape[1])),
                "blas": lambda z=z, rows=rows, y=y: by_blas(z, rows, y),
                "theirs": lambda z=z, y=y, m=theirs: m.fit(z, y),
            }
            best: dict[str, float] = {}
            with threadpool_limits(1):
                for turn in range(turns):
                    for name, job in jobs.items():
                        start = time.process_time()
                        job()
                        spent = time.process_time() - start
                        best[name] = spent if turn < 2 else min(best[name], spent)
            cells = [
                f"{n / best[name] / 1e6:.2f} M/s ({best['read'] / best[name]:.2f})" for name in best
            ]
            table.add_row(str(size), order, *cells)
    console.print(table)


def regressors(epsilon: float, data: Any) -> dict[str, Any]:
    """Return every regressor with its defaults."""
    common = {"bounds": data.bounds, "y_bounds": data.y_bounds}
    return {
        "SGD, noise on the output": PrivateSGDRegressor(epsilon, perturbation="output", **common),
        "SGD, noise on the output, averaged": PrivateSGDRegressor(
            epsilon, perturbation="output", average=True, **common
        ),
        "SGD, noise on the output, with replacement": PrivateSGDRegressor(
            epsilon, perturbation="output", sampling="replacement", **common
        ),
        "SGD, noise on gradients of all rows": PrivateSGDRegressor(epsilon, **common),
        "SGD, noise on gradients of 1000 rows": PrivateSGDRegressor(
            epsilon, batch_size=1000, **common
        ),
        "objective perturbation (`PrivateHuberRegressor`)": PrivateHuberRegressor(
            epsilon, **common
        ),
        "`PrivateKernelRidge`": PrivateKernelRidge(epsilon, **common),
        "`PrivateKernelRegressor`": PrivateKernelRegressor(epsilon, **common),
    }


def classifiers(epsilon: float, data: Any) -> dict[str, Any]:
    """Return every classifier with its defaults."""
    common = {"bounds": data.bounds, "classes": data.classes}
    return {
        "SGD, noise on the output": PrivateSGDClassifier(epsilon, perturbation="output", **common),
        "SGD, noise on the output, averaged": PrivateSGDClassifier(
            epsilon, perturbation="output", average=True, **common
        ),
        "SGD, noise on the output, hinge": PrivateSGDClassifier(
            epsilon, perturbation="output", loss="hinge", **common
        ),
        "SGD, noise on gradients of all rows": PrivateSGDClassifier(epsilon, **common),
        "SGD, noise on gradients of all rows, hinge": PrivateSGDClassifier(
            epsilon, loss="hinge", **common
        ),
        "SGD, noise on gradients of 1000 rows": PrivateSGDClassifier(
            epsilon, batch_size=1000, **common
        ),
        "`PrivateKernelClassifier`": PrivateKernelClassifier(epsilon, **common),
    }


def repetition(name: str, seed: int) -> dict[tuple[str, float], tuple[float, float]]:
    """Return error (or accuracy) and processor seconds of every method for one split."""
    with threadpool_limits(1):
        data = load(name)
        assert data is not None
        train, test = data.split(16_000, seed, 10_000)
        found = {}
        for epsilon in EPSILONS:
            models = (regressors if data.classes is None else classifiers)(epsilon, data)
            for method, model in models.items():
                start = time.process_time()
                model.set_params(noise=SeededNoise(seed)).fit(data.X[train], data.y[train])
                spent = time.process_time() - start
                predicted = model.predict(data.X[test])
                if data.classes is None:
                    value = np.mean((predicted - data.y[test]) ** 2) / data.y[test].var()
                else:
                    value = np.mean(predicted == data.y[test])
                found[method, epsilon] = float(value), spent
        return found


def accuracy(console: Console, repetitions: int, jobs: int) -> None:
    """Print one table per data set, and write it for the documentation."""
    for name, what in (("california", "error over variance"), ("adult", "accuracy")):
        if load(name) is None:
            console.print(f"{name}: not at hand (set DPKERNEL_DATA)")
            continue
        with ProcessPoolExecutor(jobs) as pool:
            waiting = [pool.submit(repetition, name, seed) for seed in range(repetitions)]
            cells = [future.result() for future in track(waiting, name)]
        table = Table(title=f"{name}, 16,000 rows, {what}, {repetitions} splits")
        head = ["method", f"epsilon {EPSILONS[0]:g}", *(f"{e:g}" for e in EPSILONS[1:]), "seconds"]
        lines = [head]
        for heading in head:
            table.add_column(heading, no_wrap=True)
        for method in dict.fromkeys(method for method, _ in cells[0]):
            texts = []
            for epsilon in EPSILONS:
                values = np.array([cell[method, epsilon][0] for cell in cells])
                spread = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
                texts.append(f"{values.mean():.3f} ({spread:.3f})")
            seconds = np.mean([cell[method, 1.0][1] for cell in cells])
            lines.append([method, *texts, f"{seconds:.1f}" if seconds >= 0.05 else "< 0.1"])
            table.add_row(*lines[-1])
        console.print(table)
        with (RESULTS / f"sgd_{name}.csv").open("w", newline="", encoding="utf-8") as file:
            file.write(made_by())
            csv.writer(file, lineterminator="\n").writerows(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accuracy", action="store_true", help="accuracy on real tables")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    options = parser.parse_args()
    console = Console(width=150)
    if options.accuracy:
        accuracy(console, options.repetitions, options.jobs)
    else:
        speed(console)


if __name__ == "__main__":
    main()
