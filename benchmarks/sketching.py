"""Accuracy of the ridge from a private sketch, and what a sketch costs next to a bare product.

``python benchmarks/sketching.py [--seeds 3] [--speed] [--eigenvalue]``; needs the tables of
DPKERNEL_DATA.

Accuracy: test RMSE over splits at delta = 1e-6, defaults untouched; the table is written to
``results/sketching.csv``. ``--speed``: S X + sigma_0 N for rows
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
from provenance import write
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

TABLES = {
    "california": 16_000,
    "power": 7600,
    "diamonds": 16_000,
    "airfoil": 1202,
}  # rows to train on
EPSILONS = (0.3, 1.0, 3.0)
MODELS = {
    "sketched ridge": lambda **kw: PrivateSketchedRidge(accept=(IDEALISED,), **kw),
    "ridge": PrivateKernelRidge,
    "ridge, `folds=2`": lambda **kw: PrivateKernelRidge(folds=2, **kw),
    "regressor": PrivateKernelRegressor,
}
COLUMNS, BLOCK, PASSES = 300, 4096, 10


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--sketch", type=int, default=500)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--eigenvalue", action="store_true")
    options = parser.parse_args()
    if options.eigenvalue or options.speed:
        found = eigenvalue() if options.eigenvalue else speed(options.rows, options.sketch)
        Console(width=110).print(found)
        return
    lines = [["table, rows", "epsilon", *MODELS]]
    for name in TABLES:
        data = load(name)
        if data is None:
            print(f"{name}: not at hand (set DPKERNEL_DATA)")
        else:
            lines += accuracy(data, options.seeds)
            print(*lines[-len(EPSILONS) :], sep="\n", flush=True)
    write("sketching.csv", lines)


def accuracy(data: Data, seeds: int) -> list[list[str]]:
    """Return RMSE, mean and standard error over splits; the smallest of a line is bold."""
    n_train, lines = TABLES[data.name], []
    for epsilon in EPSILONS:
        errors = np.empty((len(MODELS), seeds))
        for i, build in enumerate(MODELS.values()):
            for j in range(seeds):
                seed = 100 + j  # other splits than those that defaults were set on
                train, test = data.split(n_train, seed, 4000)
                model = build(
                    epsilon=epsilon,
                    delta=1e-6,
                    bounds=data.bounds,
                    y_bounds=data.y_bounds,
                    noise=SeededNoise(seed),
                ).fit(data.X[train], data.y[train])
                errors[i, j] = math.sqrt(np.mean((model.predict(data.X[test]) - data.y[test]) ** 2))
        means, spreads = errors.mean(axis=1), errors.std(axis=1, ddof=1) / math.sqrt(seeds)
        cells = [
            f"{float(f'{mean:.3g}'):g} ± {spread:.2g}"
            for mean, spread in zip(means, spreads, strict=True)
        ]
        cells[int(np.argmin(means))] = f"**{cells[int(np.argmin(means))]}**"
        lines.append(["", f"{epsilon:g}", *cells])
    lines[0][0] = f"{data.name}, {n_train:,}"
    return lines


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
    for name in ("california", "power"):
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
