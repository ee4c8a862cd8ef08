"""The time of accounting: a search over its fits, and a spend in a long ledger over one in a short one.

Each line is a quotient of two times of the processor in this run, as in ``guard.py``. Results go to
``benchmarks/results/accounting.csv``.
"""

from __future__ import annotations

import csv
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from provenance import made_by
from rich.console import Console

from dpkernel import Budget, Ledger, PrivateKernelRegressor, PrivateSearchCV
from dpkernel.privacy.profiles import GaussianProfile

RESULTS = Path(__file__).parent / "results" / "accounting.csv"
SPENDS = 10_000
SCALES = (0.3, 0.6, 1.2)


def seconds(action: Callable[[], object]) -> float:
    """Return the time of the processor for one call."""
    start = time.process_time()
    action()
    return time.process_time() - start


def table() -> tuple[np.ndarray, np.ndarray]:
    """Return rows and targets."""
    draws = np.random.default_rng(0)
    X = draws.uniform(-1, 1, (7000, 4))
    return X, np.sin(3 * X[:, 0]) + 0.1 * draws.normal(size=7000)


def regressor(**options: Any) -> PrivateKernelRegressor:
    """Return the estimator of the search, after a fit that has imported and compiled all code."""
    model = PrivateKernelRegressor(bounds=(-1, 1), y_bounds=(-1.5, 1.5))
    model.fit(*table())
    return model.set_params(**options)


def search() -> tuple[float, list[tuple[int, float, float]]]:
    """Return the time of a search among three, and rows, length scale and epsilon of its fits."""
    X, y = table()
    chosen = PrivateSearchCV(regressor(), {"length_scale": list(SCALES)}, epsilon=3.0)
    whole = seconds(lambda: chosen.fit(X, y))
    plan = chosen.plan_
    assert plan.strategy == "exponential" and plan.refit is not None
    fits = [(plan.n_train, scale, plan.fit.epsilon) for scale in SCALES]
    return whole, [*fits, (len(y), chosen.best_params_["length_scale"], plan.refit.epsilon)]


def alone(fits: list[tuple[int, float, float]]) -> float:
    """Return the time of these fits without a search."""
    (X, y), model = table(), regressor()

    def one_by_one() -> None:
        for n, scale, epsilon in fits:
            model.set_params(length_scale=scale, epsilon=epsilon).fit(X[:n], y[:n])

    return seconds(one_by_one)


def search_over_fits() -> float:
    """Return the quotient of both, each in a process of its own: nothing is composed already."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as one, ProcessPoolExecutor(1, context) as other:
        whole, fits = one.submit(search).result()
        return whole / other.submit(alone, fits).result()


def ledger(rule: str) -> float:
    """Return the median time of a spend after 10,000 spends over that of one of the first hundred."""
    with tempfile.TemporaryDirectory() as folder:
        long, short = (
            Ledger(Path(folder) / name, dataset="a", budget=Budget(1e6, 1e-3), accounting=rule)
            for name in ("long.db", "short.db")
        )

        def spend(book: Ledger, i: int) -> float:
            profile = GaussianProfile(1e-4 * (1 + i / SPENDS))
            return seconds(lambda: book.spend(profile, "a count", claim=Budget(0.01, 1e-9)))

        for i in range(SPENDS):
            spend(long, i)
        times = [(spend(long, SPENDS + i), spend(short, SPENDS + i)) for i in range(100)]
    found, reference = np.median(times, axis=0)
    return float(found / reference)


def main() -> None:
    """Measure, print and write."""
    found = {
        "search among 3 regressors, 7,000 x 4 / its 4 fits alone": search_over_fits(),
        **{
            f"spend after {SPENDS:,} spends, {rule} / after fewer than 100": ledger(rule)
            for rule in ("renyi", "basic")
        },
    }
    with RESULTS.open("w", newline="", encoding="utf-8") as file:
        file.write(made_by())
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("quotient", "value"))
        rows.writerows((name, f"{value:.2g}") for name, value in found.items())
    for name, value in found.items():
        Console().print(f"{value:6.2f}  {name}")


if __name__ == "__main__":
    main()
