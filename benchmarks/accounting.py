"""The time of accounting: a search over its fits, and a spend in a long ledger over one in a short one.

Each line is a quotient of two times of this run, as in ``guard.py``. Results go to
``benchmarks/results/accounting.csv``.
"""

from __future__ import annotations

import csv
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from provenance import made_by
from rich.console import Console

from dpkernel import Budget, Ledger, PrivateKernelRegressor, PrivateSearchCV
from dpkernel.privacy.profiles import GaussianProfile

RESULTS = Path(__file__).parent / "results" / "accounting.csv"
SPENDS = 10_000


def seconds(action: Callable[[], object]) -> float:
    """Return the time of one call."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def search() -> float:
    """Return the time of a search among three regressors over that of its four fits alone."""
    draws = np.random.default_rng(0)
    X = draws.uniform(-1, 1, (7000, 4))
    y = np.sin(3 * X[:, 0]) + 0.1 * draws.normal(size=7000)
    model = PrivateKernelRegressor(bounds=(-1, 1), y_bounds=(-1.5, 1.5))
    model.fit(X, y)  # imports and compiled code
    chosen = PrivateSearchCV(model, {"length_scale": [0.3, 0.6, 1.2]}, epsilon=3.0)
    whole = seconds(lambda: chosen.fit(X, y))
    plan = chosen.plan_
    assert plan.strategy == "exponential" and plan.refit is not None

    def fits() -> None:
        few = plan.n_train
        for scale in (0.3, 0.6, 1.2):
            given = {"length_scale": scale, "epsilon": plan.fit.epsilon}
            PrivateKernelRegressor(bounds=(-1, 1), y_bounds=(-1.5, 1.5), **given).fit(
                X[:few], y[:few]
            )
        last = {**chosen.best_params_, "epsilon": plan.refit.epsilon}
        PrivateKernelRegressor(bounds=(-1, 1), y_bounds=(-1.5, 1.5), **last).fit(X, y)

    return whole / seconds(fits)


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
        "search among 3 regressors, 7,000 x 4 / its 4 fits alone": search(),
        **{
            f"spend after {SPENDS:,} spends, {rule} / after fewer than 100": ledger(rule)
            for rule in ("gaussian", "basic")
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
