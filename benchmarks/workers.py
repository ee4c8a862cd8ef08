"""Fits to a Dask table on one worker and on two: their times, their graphs and what they read.

Each worker is a process with one thread. The seconds are those of a clock, so nothing else may run
beside this script. "By processor time" does not depend on other programs: it is the quotient of the
processor seconds that lie one after the other, those of the client and of its busiest worker.
Rows are made by the chunks, and reads count how often a chunk was made.

    python benchmarks/workers.py                     # some five minutes on two quiet cores
    python benchmarks/workers.py --rows 200000 --only ridge

Results go to ``benchmarks/results/scaling_workers.csv``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.distributed import Client, LocalCluster
from provenance import write

from dpkernel import PrivateKernelClassifier, PrivateKernelRegressor, PrivateKernelRidge

COLUMNS, CHUNK = 10, 125_000
BOX: dict[str, Any] = {"bounds": (-1, 1), "y_bounds": (-3, 3)}
ESTIMATORS: dict[str, Callable[..., Any]] = {
    "ridge, 512 features": lambda: PrivateKernelRidge(features="fourier", n_features=512, **BOX),
    "regressor, 200 features": lambda: PrivateKernelRegressor(n_features=200, **BOX),
    "classifier, 300 features": lambda: PrivateKernelClassifier(
        n_features=300, classes=[0.0, 1.0], bounds=(-1, 1)
    ),
}


def rows_of(number: int, count: int, note: str) -> np.ndarray:
    """Return the rows and the targets of a chunk, and note that it was read."""
    with Path(note).open("a", encoding="utf-8") as file:
        file.write(".")
    draws = np.random.default_rng(number)
    X = 2 * draws.random((count, COLUMNS)) - 1
    y = X[:, 0] + X[:, 1] * X[:, 2] + 0.1 * draws.standard_normal(count)
    return np.column_stack([X, y])


def table(n_rows: int, chunk: int, note: str, labels: bool) -> tuple[Any, Any]:
    """Return a Dask table of rows and targets."""
    sizes = [min(chunk, n_rows - start) for start in range(0, n_rows, chunk)]
    make = dask.delayed(rows_of, pure=False)
    parts = [
        da.from_delayed(make(i, n, note), (n, COLUMNS + 1), dtype=float)
        for i, n in enumerate(sizes)
    ]
    whole = da.concatenate(parts)
    y = whole[:, COLUMNS]
    return whole[:, :COLUMNS], (y > 0).astype(float) if labels else y


class Graphs:
    """Counts the graphs that are computed while it is open."""

    count = 0

    def __enter__(self) -> Graphs:
        self._kept = dask.compute, dask.persist

        def counting(method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                self.count += 1
                return method(*arguments, **options)

            return call

        dask.compute, dask.persist = map(counting, self._kept)
        return self

    def __exit__(self, *_: object) -> None:
        dask.compute, dask.persist = self._kept


def measure(workers: int, names: list[str], n_rows: int) -> dict[str, list[float]]:
    """Return seconds, serial processor seconds, graphs and reads of each fit."""
    found = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for name in names:
            for rows, chunk in ((40_000, 2500), (n_rows, CHUNK)):  # the first imports and compiles
                note = os.path.join(folder, f"{name} {chunk}")
                X, y = table(rows, chunk, note, name.startswith("classifier"))
                before, own = client.run(time.process_time), time.process_time()
                start = time.perf_counter()
                with Graphs() as graphs:
                    ESTIMATORS[name]().fit(X, y)
                seconds = time.perf_counter() - start
                own, after = time.process_time() - own, client.run(time.process_time)
            busiest = max(after[worker] - before[worker] for worker in after)
            reads = Path(note).stat().st_size / X.numblocks[0]
            found[name] = [seconds, own + busiest, graphs.count, reads]
            times = f"{seconds:.1f} s, client {own:.1f} CPU s, busiest worker {busiest:.1f} CPU s"
            print(f"{name}, {workers} worker(s): {times}", flush=True)
    return found


def main() -> None:
    """Measure every estimator on one worker and on two."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, default=2_000_000)
    options.add_argument("--only", nargs="+", choices=[n.split(",")[0] for n in ESTIMATORS])
    given = options.parse_args()
    names = [n for n in ESTIMATORS if not given.only or n.split(",")[0] in given.only]
    one, two = (measure(workers, names, given.rows) for workers in (1, 2))
    lines = [["estimator", "rows", "graphs", "reads of a chunk", "seconds, 1 worker", "2 workers",
              "times faster", "by processor time"]]  # fmt: skip
    for name in names:
        (wall, own, graphs, reads), (half, half_own, *_) = one[name], two[name]
        lines.append([name, f"{given.rows:,}", f"{graphs:.0f}", f"{reads:.0f}", f"{wall:.1f}",
                      f"{half:.1f}", f"{wall / half:.2f}", f"{own / half_own:.2f}"])  # fmt: skip
    write("scaling_workers.csv", lines)


if __name__ == "__main__":
    main()
