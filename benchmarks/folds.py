"""What ``folds`` gains and costs: the excess of private kernel ridge with 1, 2 and 4 folds.

``python benchmarks/folds.py [--repetitions 10]``. Two targets: the synthetic design of
``accuracy.py`` (d = 10), and sin(2 x_1) + N(0, 0.01) on [-1, 1]^3. Data are drawn anew in every
repetition and shared by all settings; noise is seeded. Printed: the mean of (fhat - f)^2 at 1000
or more test points, and its standard error over the repetitions.
"""

from __future__ import annotations

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from dpkernel import PrivateKernelRidge, SeededNoise
from dpkernel.proof.reproduce.design import NOISE, design

ROWS, EPSILONS, FOLDS = (1000, 10_000), (1.0, 10.0), (1, 2, 4)


def synthetic(rows: int, draws: np.random.Generator) -> tuple:
    """Return X, y, X_test, f and the declared bounds of the design of Lee, Park & Ahn."""
    X, y, X_test, f = design(10, draws, rows=rows)
    return X, y, X_test, f, (0, 1), (-NOISE, float(np.max(np.abs(y))))


def sine(rows: int, draws: np.random.Generator) -> tuple:
    """Return X, y, X_test, f and the declared bounds of a sine in one of three columns."""
    X, X_test = draws.uniform(-1, 1, (rows, 3)), draws.uniform(-1, 1, (1000, 3))
    y = np.sin(2 * X[:, 0]) + 0.1 * draws.normal(size=rows)
    return X, y, X_test, np.sin(2 * X_test[:, 0]), (-1, 1), (-1.5, 1.5)


def main() -> None:
    """Measure and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=10)
    repetitions = parser.parse_args().repetitions
    table = Table("target", "rows", "epsilon", *(f"folds = {k}" for k in FOLDS))
    with threadpool_limits(1):
        for target in (synthetic, sine):
            for rows in ROWS:
                for epsilon in EPSILONS:
                    found = np.empty((len(FOLDS), repetitions))
                    for r in range(repetitions):
                        X, y, X_test, f, bounds, y_bounds = target(rows, np.random.default_rng(r))
                        for i, folds in enumerate(FOLDS):
                            model = PrivateKernelRidge(
                                epsilon,
                                bounds=bounds,
                                y_bounds=y_bounds,
                                folds=folds,
                                noise=SeededNoise(r),
                            ).fit(X, y)
                            found[i, r] = np.mean((model.predict(X_test) - f) ** 2)
                    errors = found.std(axis=1, ddof=1) / repetitions**0.5
                    cells = [
                        f"{m:.4f} ({e:.4f})"
                        for m, e in zip(found.mean(axis=1), errors, strict=True)
                    ]
                    table.add_row(target.__name__, str(rows), f"{epsilon:g}", *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
