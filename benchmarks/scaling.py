"""A model of the time of a fit: measured up to 10^7 rows, predicted beyond, and tested on a long run.

The model of an estimator has five numbers. Two are fitted to measured times: the seconds ``a`` that
do not depend on the rows, and the seconds ``b`` per row on one core. Three are counted while fits
run: how often a fit goes over all rows (passes), how often it reads the table itself (reads; the
features stay in memory where they fit), and how many bytes a worker sends per pass. So for n rows on
w workers that each hold their part of the rows

    time = a + b n / w + passes * (latency + ceil(log2 w) * bytes / network).

Rows are made on the fly, block by block, by a stream that is read again from its start; the time of
making them is part of b, as the time of reading a file would be. Seconds are those of the processor,
on one thread (OPENBLAS_NUM_THREADS=1), so that other programs disturb them little. b is also written
as operations per row: b times the rate of a bare matrix product in the same run.

    python benchmarks/scaling.py                       # measure, fit, predict
    python benchmarks/scaling.py --run 1000000000      # one long fit of the ridge, against the model

Results go to ``benchmarks/results/scaling_*.csv``.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from provenance import made_by

from dpkernel import (
    BlockStream,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
)
from dpkernel.data.passes import Passes

RESULTS = Path(__file__).parent / "results"
COLUMNS = 10
BLOCK = 50_000  # rows that are made at a time
WORKERS, ROWS = (1, 16, 256), (10**8, 10**9)
NETWORK, LATENCY = 1e9, 0.02  # bytes and seconds; assumed, not measured


@dataclass
class Counts:
    """What was counted while a fit ran."""

    passes: int = 0
    sent: int = 0  # bytes of the largest result of a pass
    rows: int = 0  # rows that the stream has given


@dataclass(frozen=True)
class Model:
    """The model of one estimator; see the head of this file."""

    fixed: float
    per_row: float
    passes: int
    sent: int

    def seconds(self, rows: int, workers: int = 1) -> float:
        """Return the time of a fit."""
        rounds = math.ceil(math.log2(workers))
        talk = (LATENCY + rounds * self.sent / NETWORK) * self.passes if workers > 1 else 0.0
        return self.fixed + self.per_row * rows / workers + talk


def ridge(kind: str = "fourier", size: int = 64) -> Any:
    """Return the estimator of the long run."""
    box = {"bounds": (-1, 1), "y_bounds": (-3, 3)}
    return PrivateKernelRidge(features=kind, n_features=size, **box)


ESTIMATORS: dict[str, Callable[[], Any]] = {
    "ridge, 64 features": ridge,
    "ridge, 512 features": lambda: ridge(size=512),
    "regressor": lambda: PrivateKernelRegressor(bounds=(-1, 1), y_bounds=(-3, 3)),
    "classifier": lambda: PrivateKernelClassifier(classes=[0.0, 1.0], bounds=(-1, 1)),
}


def stream(n_rows: int, counts: Counts, labels: bool = False) -> BlockStream:
    """Return rows that are made while they are read, the same ones each time."""

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, n_rows, BLOCK):
            draws = np.random.default_rng(start)
            X = 2 * draws.random((min(BLOCK, n_rows - start), COLUMNS)) - 1
            y = X[:, 0] + X[:, 1] * X[:, 2]
            counts.rows += len(y)
            yield X, np.where(y > 0, 1.0, 0.0) if labels else y

    return BlockStream(blocks, n_rows=n_rows)


@contextmanager
def counted(counts: Counts) -> Iterator[None]:
    """Count the passes over all rows, and the bytes of what a pass returns."""
    kept = {name: getattr(Passes, name) for name in ("run", "sum")}
    inside = [False]

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if inside[0]:
                return method(*arguments, **options)
            inside[0] = True
            try:
                found = method(*arguments, **options)
            finally:
                inside[0] = False
            counts.passes += 1
            counts.sent = max(counts.sent, size(found))
            return found

        return call

    for name, method in kept.items():
        setattr(Passes, name, counting(method))
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(Passes, name, method)


def size(value: Any) -> int:
    """Return how many bytes of arrays a result has."""
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, dict):
        return sum(map(size, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(size, value))
    return size(vars(value)) if hasattr(value, "__dict__") else 0


def fit(name: str, n_rows: int) -> tuple[float, Counts]:
    """Return the time of a fit and what was counted."""
    counts = Counts()
    rows = stream(n_rows, counts, labels=name == "classifier")
    model = ESTIMATORS[name]()
    with counted(counts):
        start = time.process_time()
        model.fit(rows)
        return time.process_time() - start, counts


def product_rate() -> float:
    """Return the multiplications and additions per second of a bare matrix product on one thread."""
    Z = np.random.default_rng(0).random((4096, 512))
    best = math.inf
    for _ in range(5):
        start = time.process_time()
        Z.T @ Z
        best = min(best, time.process_time() - start)
    return 2 * Z.shape[0] * Z.shape[1] ** 2 / best


def fitted(rows: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return a >= 0 and b that minimise the sum of squared relative errors of a + b n."""
    n, t = np.array(rows, float), np.array(seconds)
    (a, b), *_ = np.linalg.lstsq(np.column_stack([1 / t, n / t]), np.ones(len(t)), rcond=None)
    if a < 0 or b < 0 or len(t) == 1:
        a, b = 0.0, float(np.sum(n / t) / np.sum((n / t) ** 2))
    return float(a), float(b)


def write(name: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table of results and print it."""
    path = RESULTS / f"scaling_{name}.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(made_by())
        csv.writer(file, lineterminator="\n").writerows([head, *rows])
    print(path.read_text(encoding="utf-8"))


def short(seconds: float) -> str:
    """Return a time as text."""
    for limit, unit, words in ((120, 1, "s"), (7200, 60, "min"), (math.inf, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {words}"
    raise AssertionError


def measure(sizes: Sequence[int], limit: float) -> None:
    """Measure every estimator at these sizes, as long as a fit is expected to end in time."""
    rate = product_rate()
    lines, models, predicted = [], [], []
    for name in ESTIMATORS:
        fit(name, 2000)  # imports and compiled code
        rows: list[int] = []
        times: list[float] = []
        for n in sizes:
            if times and times[-1] * n / rows[-1] > limit:
                break
            seconds, counts = fit(name, n)
            rows.append(n)
            times.append(seconds)
            reads = counts.rows / n
            lines.append([name, f"{n:,}", counts.passes, f"{reads:.3g}", f"{seconds:.2f}",
                          f"{1e6 * seconds / n:.3g}"])  # fmt: skip
            print(*lines[-1], flush=True)
        a, b = fitted(rows, times)
        model = Model(a, b, counts.passes, counts.sent)
        worst = max(abs(model.seconds(n) / t - 1) for n, t in zip(rows, times, strict=True))
        models.append([name, f"{a:.2g}", f"{1e6 * b:.3g}", f"{b * rate:,.0f}", counts.passes,
                       f"{reads:.3g}", f"{counts.sent / 1e6:.3g}", f"{100 * worst:.0f} %"])  # fmt: skip
        predicted += [
            [name, f"10^{round(math.log10(n))}", *(short(model.seconds(n, w)) for w in WORKERS)]
            for n in ROWS
        ]
    write("measured", ["estimator", "rows", "passes", "reads of the table", "seconds",
                       "µs per row"], lines)  # fmt: skip
    write("model", ["estimator", "a (s)", "b (µs)", f"operations per row at {rate / 1e9:.0f}·10^9/s",
                    "passes", "reads", "MB per pass", "largest error"], models)  # fmt: skip
    write("predicted", ["estimator", "rows", *(f"{w} worker{'s' * (w > 1)}" for w in WORKERS)],
          predicted)  # fmt: skip


def long_run(n_rows: int, sizes: Sequence[int]) -> None:
    """Fit the ridge to this many rows, after measuring its model at the given sizes in this run."""
    name = "ridge, 64 features"
    fit(name, 2000)
    times = []
    for n in sizes:
        times.append(fit(name, n)[0])
        print(f"{n:,} rows: {times[-1]:.2f} s", flush=True)
    model = Model(*fitted(sizes, times), 1, 0)
    expected = model.seconds(n_rows)
    print(f"{n_rows:,} rows should take {short(expected)}", flush=True)
    seconds, counts = fit(name, n_rows)
    assert counts.rows == n_rows
    row = [f"{n_rows:,}", f"{max(sizes):,}", f"{expected:.1f}", f"{seconds:.1f}",
           f"{seconds / expected:.3f}"]  # fmt: skip
    write("large", ["rows of the long run", "rows of the largest measured fit", "predicted (s)",
                    "measured (s)", "measured / predicted"], [row])  # fmt: skip


def main() -> None:
    """Measure and predict, or run the long fit."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sizes", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    options.add_argument("--limit", type=float, default=600.0, help="seconds for one fit")
    options.add_argument("--run", type=int, help="rows of one long fit")
    given = options.parse_args()
    if given.run is None:
        measure(given.sizes, given.limit)
    else:
        long_run(given.run, given.sizes)


if __name__ == "__main__":
    main()
