"""Guard against regressions: a few ratios, against those in ``benchmarks/results/guard.csv``.

Each line is a quotient of two numbers measured side by side in this run, one of ours and one
reference: a time over that of a bare product, a sampler or scikit-learn on the same data, or an
error over that of a model without privacy. Quotients of the slower machine and of the faster one
are alike, so they can be kept in a file. A time may be 1.6 times and an error 1.15 times as large
as the file says; beyond that the exit status is 1. ``--write`` writes the file anew.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from provenance import made_by
from rich.console import Console
from rich.table import Table
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC, LinearSVC

from dpkernel import (
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    SeededNoise,
    SystemNoise,
)
from dpkernel.methods import PrivateSGDRegressor

RESULTS = Path(__file__).parent / "results" / "guard.csv"
SLACK = {"time": 1.6, "error": 1.15}
Action = Callable[[], object]


def alternating(ours: Action, reference: Action, turns: int = 5) -> float:
    """Return the quotient of the two best times, measured in turns."""
    best = [float("inf"), float("inf")]
    for _ in range(turns):
        for place, action in enumerate((ours, reference)):
            start = time.perf_counter()
            action()
            best[place] = min(best[place], time.perf_counter() - start)
    return best[0] / best[1]


def table(n: int, d: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs in [-1, 1] and a smooth target with noise."""
    draws = np.random.default_rng(0)
    X = draws.uniform(-1, 1, (n, d))
    y = np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.2 * draws.normal(size=n)
    return X, y


def times() -> dict[str, float]:
    """Return the quotients of times."""
    X, y = table(40_000)
    Z = np.random.default_rng(1).normal(size=(40_000, 300))
    labels = y > 0
    box = {"bounds": (-1, 1), "y_bounds": (-3, 3)}
    source, plain, draws = SystemNoise(), np.random.default_rng(0), 1 << 20
    nystroem = make_pipeline(Nystroem(gamma=0.1, n_components=250, random_state=0), Ridge())
    return {
        "discrete Gaussian / float normal": alternating(
            lambda: source.discrete_gaussian(1000.7, draws), lambda: plain.standard_normal(draws)
        ),
        "ridge, 300 features / bare product Z'Z": alternating(
            lambda: PrivateKernelRidge(n_features=300, features="fourier", **box).fit(X, y),
            lambda: Z.T @ Z,
        ),
        "regressor / Nystroem(250) and Ridge": alternating(
            lambda: PrivateKernelRegressor(**box).fit(X, y), lambda: nystroem.fit(X, y), turns=3
        ),
        "classifier / LinearSVC on 300 features": alternating(
            lambda: PrivateKernelClassifier(classes=[False, True], bounds=(-1, 1)).fit(X, labels),
            lambda: LinearSVC(C=0.1).fit(Z, labels),
            turns=3,
        ),
        "SGD, one pass, noise on output / bare product Z'Z": alternating(
            lambda: PrivateSGDRegressor(perturbation="output", max_iter=1, **box).fit(X, y),
            lambda: Z.T @ Z,
        ),
    }


def errors() -> dict[str, float]:
    """Return the quotients of errors, with seeded noise: the same on every machine up to rounding."""
    X, y = table(8000)
    X_test, y_test = X[6000:], y[6000:]
    X, y = X[:6000], y[:6000]
    box = {"bounds": (-1, 1), "y_bounds": (-3, 3)}

    def mse(model: object) -> float:
        return float(np.mean((model.fit(X, y).predict(X_test) - y_test) ** 2))  # type: ignore[attr-defined]

    def misses(model: object) -> float:
        found = model.fit(X, y > 0).predict(X_test)  # type: ignore[attr-defined]
        return float(np.mean(found != (y_test > 0)))

    free = mse(KernelRidge(kernel="rbf", gamma=0.1, alpha=0.1))
    machine = misses(SVC(gamma=0.1))
    seeds = range(5)
    return {
        "regressor, epsilon 1 / kernel ridge": np.mean(
            [mse(PrivateKernelRegressor(noise=SeededNoise(s), **box)) for s in seeds]
        )
        / free,
        "ridge, epsilon 1 / kernel ridge": np.mean(
            [mse(PrivateKernelRidge(noise=SeededNoise(s), **box)) for s in seeds]
        )
        / free,
        "classifier, epsilon 1 / SVC": np.mean(
            [
                misses(
                    PrivateKernelClassifier(
                        classes=[False, True], bounds=(-1, 1), noise=SeededNoise(s)
                    )
                )
                for s in seeds
            ]
        )
        / machine,
    }


def main() -> int:
    """Measure, print, and compare or write."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--write", action="store_true", help="write the file anew")
    options.add_argument("--only", choices=["time", "error"], help="one kind of quotient")
    chosen = options.parse_args()
    kinds = {"time": times, "error": errors}
    if chosen.only:
        kinds = {chosen.only: kinds[chosen.only]}
    found = {(kind, name): value for kind, act in kinds.items() for name, value in act().items()}
    if chosen.write:
        with RESULTS.open("w", newline="", encoding="utf-8") as file:
            file.write(made_by())
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(("kind", "quotient", "value"))
            rows.writerows((kind, name, f"{value:.3g}") for (kind, name), value in found.items())
    with RESULTS.open(encoding="utf-8") as file:
        kept = {
            (row["kind"], row["quotient"]): float(row["value"])
            for row in csv.DictReader(line for line in file if not line.startswith("#"))
        }
    shown = Table("kind", "quotient", "now", "file", "verdict")
    worse = False
    for key, value in found.items():
        bad = value > SLACK[key[0]] * kept[key]
        worse |= bad
        shown.add_row(*key, f"{value:.3g}", f"{kept[key]:.3g}", "WORSE" if bad else "as it was")
    Console().print(shown)
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
