"""What each part of PrivateKernelRegressor is worth: its error with one part changed at a time.

``python benchmarks/ablation.py [--repetitions 10] [--jobs 2]``.

Tables: the synthetic design of ``accuracy.py`` (1000 rows, 10 columns); one with a skewed target (2000
rows, 5 columns, y log-normal around a curve); and, where DPKERNEL_DATA points to it, California housing
(5000 rows). For the first two the excess, mean (fhat - f)^2, over the variance of f in the second;
for the last the test error over the variance. The plan is the one that "auto" chooses; each line changes
one part of it and gives what it cost to the stages. "Inputs" are switched to what the plan does not do:
off where it buys them, on where it does not. The location can't be left out: everything after is scaled
by it. Noise is seeded, and all lines of a repetition have the same seed.
"""

from __future__ import annotations

import argparse
import csv
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import load
from rich.console import Console
from rich.progress import track
from rich.table import Table
from threadpoolctl import threadpool_limits

from dpkernel import PrivateKernelRegressor, SeededNoise
from dpkernel.estimators.regressor import BudgetPlan
from dpkernel.proof.reproduce.design import design

EPSILONS = (1.0, 10.0)
DELTA = 1e-6
SYNTHETIC, SKEWED, CALIFORNIA = "synthetic", "skewed", "California"
ROWS = {SYNTHETIC: 1000, SKEWED: 2000, CALIFORNIA: 5000}


def variants(plan: BudgetPlan) -> dict[str, BudgetPlan]:
    """Return the plan and what is left of it with one part changed."""
    return {
        "as planned": plan,
        "inputs the other way": replace(plan, inputs=0.0 if plan.inputs else 0.1),
        "without scale queries": replace(plan, scale=0.0),
        "without calibration": replace(plan, calibration=0.0),
        "one stage": replace(plan, stages=(1.0,), scale=0.0),
        "even stages": replace(plan, stages=(1.0,) * len(plan.stages)),
    }


def skewed(draws: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return X, y, X_test and E y at the test points: log-normal around a curve, cut at 15."""
    X = draws.uniform(0, 1, (2 * ROWS[SKEWED], 5))
    curve = np.sin(4 * X[:, 0]) / 2 + X[:, 1] / 2
    noise = 0.8 * np.random.default_rng(0).normal(size=4000)
    mean = np.interp(
        curve,
        np.linspace(-1, 2, 61),
        [np.minimum(np.exp(c + noise), 15).mean() for c in np.linspace(-1, 2, 61)],
    )
    n = ROWS[SKEWED]
    y = np.minimum(np.exp(curve[:n] + 0.8 * draws.normal(size=n)), 15)
    return X[:n], y, X[n:], mean[n:]


def repetition(table: str, number: int) -> dict[tuple[str, float], float]:
    """Return the error of every variant at every epsilon, for one draw of the data."""
    with threadpool_limits(1):
        if table == SYNTHETIC:
            X, y, X_test, wanted = design(10, np.random.default_rng([7, number]))
            options: dict[str, Any] = {
                "bounds": (0, 1),
                "y_bounds": (-0.1, float(np.max(np.abs(y)))),
            }
            unit = 1.0
        elif table == SKEWED:
            X, y, X_test, wanted = skewed(np.random.default_rng([8, number]))
            options = {"bounds": (0, 1), "y_bounds": (0, 15)}
            unit = float(wanted.var())
        else:
            data = load("california")
            assert data is not None
            train, test = data.split(ROWS[table], number, 5000)
            X, y, X_test, wanted = data.X[train], data.y[train], data.X[test], data.y[test]
            options = {"bounds": data.bounds, "y_bounds": data.y_bounds}
            unit = float(wanted.var())
        found = {}
        for epsilon in EPSILONS:
            model = PrivateKernelRegressor(epsilon, DELTA, noise=SeededNoise(number), **options)
            plan = model.plan(*X.shape).budget_plan
            assert plan is not None
            for name, variant in variants(plan).items():
                predictions = model.set_params(budget_plan=variant).fit(X, y).predict(X_test)
                found[name, epsilon] = float(np.mean((predictions - wanted) ** 2)) / unit
        return found


def main() -> None:
    """Measure, print and write ``bench-report/ablation.csv``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--out", type=Path, default=Path("bench-report"))
    options = parser.parse_args()
    names = [SYNTHETIC, SKEWED, *([] if load("california") is None else [CALIFORNIA])]
    lines: list[dict[str, Any]] = []
    results: dict[str, list[dict[tuple[str, float], float]]] = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in names:
            waiting = [pool.submit(repetition, name, r) for r in range(options.repetitions)]
            results[name] = [future.result() for future in track(waiting, name)]
    table = Table(title=f"mean (standard error) of {options.repetitions}; delta = {DELTA:g}")
    table.add_column("", no_wrap=True)
    for name in names:
        for epsilon in EPSILONS:
            table.add_column(f"{name}\n{ROWS[name]} rows, eps = {epsilon:g}", no_wrap=True)
    for variant in dict.fromkeys(variant for variant, _ in results[SYNTHETIC][0]):
        texts = []
        for name in names:
            for epsilon in EPSILONS:
                values = np.array([cell[variant, epsilon] for cell in results[name]])
                spread = values.std(ddof=1) / math.sqrt(len(values))
                texts.append(f"{values.mean():.2g} ({spread:.1g})")
                lines.append(
                    {
                        "table": name,
                        "rows": ROWS[name],
                        "epsilon": epsilon,
                        "variant": variant,
                        "error": values.mean(),
                        "standard_error": spread,
                        "repetitions": len(values),
                    }
                )
        table.add_row(variant, *texts)
    Console(width=170).print(table)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "ablation.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    main()
