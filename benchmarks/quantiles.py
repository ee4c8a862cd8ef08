"""Pinball loss and coverage of private quantiles, next to quantiles without noise.

``python benchmarks/quantiles.py [--seeds 5]``; needs the table "california" (DPKERNEL_DATA).

80 % intervals from the quantiles 0.1 and 0.9 and the median, fitted together under one budget, delta =
1e-6, defaults untouched. The reference fits the same features at epsilon = 10,000.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
from datasets import load
from rich.console import Console
from rich.table import Table

from dpkernel import PrivateQuantileRegressor, SeededNoise

QUANTILES = (0.1, 0.5, 0.9)
EPSILONS = (0.1, 1.0, 10.0, 10_000.0)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    console, data = Console(width=120), load("california")
    if data is None:
        console.print("california: not at hand (set DPKERNEL_DATA)")
        return
    for n_train in (1000, 16_000):
        table = Table(title=f"california, {n_train} rows, {options.seeds} splits")
        for heading in (
            "epsilon",
            *(f"pinball {q:g}" for q in QUANTILES),
            "coverage of 80 %",
            "width",
        ):
            table.add_column(heading, justify="right")
        for epsilon in (0.0, *EPSILONS):
            rows = [measure(data, n_train, seed, epsilon) for seed in range(options.seeds)]
            mean = np.mean(rows, axis=0)
            spread = np.std(rows, axis=0) / math.sqrt(len(rows))
            name = f"{epsilon:g}" if epsilon else "constants"
            cells = [f"{m:.4f} ± {s:.4f}" for m, s in zip(mean, spread, strict=True)]
            table.add_row(name, *cells)
        console.print(table)


def measure(data, n_train, seed, epsilon):  # type: ignore[no-untyped-def]
    """Return pinball losses, coverage and mean width; epsilon 0: quantiles of the training y."""
    train, test = data.split(n_train, seed, 4000)
    if epsilon:
        model = PrivateQuantileRegressor(
            epsilon,
            1e-6,
            quantile=QUANTILES,
            bounds=data.bounds,
            y_bounds=data.y_bounds,
            noise=SeededNoise(seed),
        )
        found = model.fit(data.X[train], data.y[train]).predict(data.X[test])
    else:
        found = np.tile(np.quantile(data.y[train], QUANTILES), (len(test), 1))
    y = data.y[test][:, None]
    residual = y - found
    levels = np.array(QUANTILES)
    losses = np.maximum(levels * residual, (levels - 1) * residual).mean(axis=0)
    inside = np.mean((y[:, 0] >= found[:, 0]) & (y[:, 0] <= found[:, 2]))
    return [*losses, inside, np.mean(found[:, 2] - found[:, 0])]


if __name__ == "__main__":
    main()
