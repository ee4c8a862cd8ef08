"""Accuracy of the ridge from a private sketch, and what a sketch costs next to a bare product.

``python benchmarks/sketching.py [--seeds 3] [--rows 1000000]``; needs the tables of DPKERNEL_DATA.

Accuracy: test RMSE over splits at delta = 1e-6, defaults untouched. Speed: S X + sigma_0 N for rows
x 300 numbers that come in blocks, as a ratio to the products S_b X_b alone, with the entries of S
already there. ``--sketch`` below 300 draws S itself. ``--eigenvalue``: what a sketch
would gain if the smallest eigenvalue were known for nothing and only what it lacks were added.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time

import numpy as np
from datasets import Data, load
from rich.console import Console
from rich.table import Table

from dpkernel import (
    Budget,
    Ledger,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    SeededNoise,
    SystemNoise,
)
from dpkernel.foundations.types import Neighbours
from dpkernel.methods import PrivateSketchedRidge
from dpkernel.privacy.mechanisms import IDEALISED, GaussianMixing
from dpkernel.privacy.profiles import mixing_ratio

TABLES = {"california": 16_000, "power": 7600}  # rows to train on; of others 80 %, at most 16,000
EPSILONS = (0.3, 1.0, 3.0)
MODELS = {
    "sketched ridge": lambda **kw: PrivateSketchedRidge(accept=(IDEALISED,), **kw),
    "ridge": PrivateKernelRidge,
    "ridge, folds=2": lambda **kw: PrivateKernelRidge(folds=2, **kw),
    "regressor": PrivateKernelRegressor,
}
COLUMNS, BLOCK, PASSES = 300, 4096, 10


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sketch", type=int, default=500)
    parser.add_argument("--tables", nargs="*", default=list(TABLES))
    parser.add_argument("--eigenvalue", action="store_true")
    options = parser.parse_args()
    console = Console(width=110)
    if options.eigenvalue:
        console.print(eigenvalue())
        return
    for name in options.tables:
        data = load(name)
        if data is None:
            console.print(f"{name}: not at hand (set DPKERNEL_DATA)")
            continue
        console.print(accuracy(data, options.seeds))
    if options.rows:
        console.print(speed(options.rows, options.sketch))


def accuracy(data: Data, seeds: int) -> Table:
    """Return RMSE, mean and standard error over splits."""
    n_train = TABLES.get(data.name, min(int(0.8 * len(data.y)), 16_000))
    low, high = data.y_bounds or (0.0, 0.0)
    table = Table(
        title=f"{data.name}: RMSE, {n_train} rows, {seeds} splits, y in [{low:g}, {high:g}]"
    )
    for heading in ("epsilon", *MODELS):
        table.add_column(heading, justify="right")
    for epsilon in EPSILONS:
        cells = []
        for build in MODELS.values():
            errors = []
            for seed in range(
                100, 100 + seeds
            ):  # other splits than those that defaults were set on
                train, test = data.split(n_train, seed, 4000)
                model = build(
                    epsilon=epsilon,
                    delta=1e-6,
                    bounds=data.bounds,
                    y_bounds=data.y_bounds,
                    noise=SeededNoise(seed),
                ).fit(data.X[train], data.y[train])
                errors.append(math.sqrt(np.mean((model.predict(data.X[test]) - data.y[test]) ** 2)))
            cells.append(f"{np.mean(errors):.3f} ± {np.std(errors) / math.sqrt(seeds):.3f}")
        table.add_row(f"{epsilon:g}", *cells)
    return table


def linear_records(data: Data) -> np.ndarray:
    """Return records (z, 1, y), z the scaled columns with norm at most 1, |y| <= 1."""
    train, _ = data.split(TABLES[data.name], 0)
    low, high = data.bounds
    z = np.clip((data.X[train] - low) / (high - low) * 2 - 1, -1, 1) / math.sqrt(len(low))
    bottom, top = data.y_bounds or (0.0, 1.0)
    y = np.clip((data.y[train] - bottom) / (top - bottom) * 2 - 1, -1, 1)
    return np.column_stack([z, np.ones(len(y)), y])


def eigenvalue() -> Table:
    """Return R^2 of least squares from sketches with the usual noise, and with what is lacking."""
    draws = np.random.default_rng(0)
    z = draws.uniform(-1, 1, (200_000, 3)) / math.sqrt(3)
    y = np.clip(z @ [0.5, -0.4, 0.3] + 0.3 * draws.normal(size=len(z)), -1, 1)
    tables = {"synthetic, 200,000": np.column_stack([z, np.ones(len(z)), y])}
    for name in TABLES:
        data = load(name)
        if data is not None:
            tables[name] = linear_records(data)
    table = Table(
        "records", "epsilon", "rows", "sigma_0^2 / C^2", "eigenvalue / C^2", "usual", "lacking"
    )
    square = 3.0  # C^2
    for name, records in tables.items():
        gram, target = records.T @ records, records[:, -1]
        least = float(np.linalg.eigvalsh(gram)[0])
        for epsilon, rows in itertools.product((1.0, 3.0), (120, 1000, 10_000)):
            noise = square / mixing_ratio(epsilon, 1e-6, rows, Neighbours.REPLACE_ONE)
            cells = []
            for added in (noise, max(0.0, noise - least)):
                root = np.linalg.cholesky(gram + added * np.eye(len(gram)))
                scores = []
                for _ in range(60):
                    sketch = draws.normal(size=(rows, len(gram))) @ root.T
                    found = sketch.T @ sketch / rows - added * np.eye(len(gram))
                    values, vectors = np.linalg.eigh(found[:-1, :-1])
                    beta = vectors @ (vectors.T @ found[:-1, -1] / np.maximum(values, least / 2))
                    error = np.mean((target - records[:, :-1] @ beta) ** 2)
                    scores.append(1 - error / target.var())
                cells.append(f"{np.mean(scores):.4f}")
            numbers = f"{noise / square:.0f}", f"{least / square:.1f}"
            table.add_row(name, f"{epsilon:g}", str(rows), *numbers, *cells)
    return table


def speed(rows: int, sketch: int) -> Table:
    """Return times for one table that exists a block at a time, all ways by turns."""
    block = np.random.default_rng(0).normal(size=(BLOCK, COLUMNS)) / math.sqrt(COLUMNS)
    n_blocks = -(-rows // (BLOCK * PASSES))
    mechanism = GaussianMixing.calibrate(
        1.0, Budget(1.0, 1e-6), rows=sketch, dimension=COLUMNS, accept=(IDEALISED,)
    )
    S = np.random.default_rng(1).normal(size=(sketch, BLOCK))

    def products() -> None:
        total = np.zeros((sketch, COLUMNS))
        for _ in range(n_blocks):
            total += S @ block

    def mixed() -> None:
        noise = Ledger().spend(mechanism.profile(), "blocks")
        mechanism.release((block for _ in range(n_blocks)), noise)

    ways = {"products alone": products, "sketch": mixed}
    seconds = dict.fromkeys(ways, 0.0)
    for _ in range(PASSES):  # by turns: other programs slow all of them down alike
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name] += time.perf_counter() - start
    draws, source = 1 << 20, SystemNoise()
    start = time.perf_counter()
    for _ in range(8):
        source.standard_normals(draws)
    per_second = 8 * draws / (time.perf_counter() - start)
    table = Table(
        title=f"{rows} x {COLUMNS} to {sketch} rows; {per_second / 1e6:.0f} M normals/s a thread"
    )
    for heading in ("way", "seconds", "ratio"):
        table.add_column(heading, justify="right")
    for name, total in seconds.items():
        table.add_row(name, f"{total:.1f}", f"{total / seconds['products alone']:.2f}")
    return table


if __name__ == "__main__":
    main()
