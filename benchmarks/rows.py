"""Time per row of the estimators that read a table several times, from 10^5 to 10^7 rows in memory.

Every estimator runs in a process of its own, on cores of its own, through all sizes from the smallest
on. Time per row is the time of all threads of the process, so it does not depend on the number of
cores; the ratio is that to the first size in the same process. Passes are counted, and so are
evaluations: how often the features of all rows are computed, of each kind of features that a fit
uses. A size is left out if the fit is expected to end after the time that was given.

    python benchmarks/rows.py                                    # on this machine
    python benchmarks/rows.py --cores 16 --memory 100 --seconds 240 --out $OUT
    python benchmarks/rows.py --billion 16 --out $OUT            # one ridge fit by 16 processes

Results go to ``scaling_rows.csv`` and ``scaling_billion.csv``.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from provenance import made_by

from dpkernel import (
    GramStatistics,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
)
from dpkernel.data.passes import Passes
from dpkernel.methods import PrivateSGDRegressor
from dpkernel.models.features import FeatureMap
from dpkernel.privacy.folds import GramFolds

HERE = Path(__file__).parent
COLUMNS = 10
SIZES = (100_000, 400_000, 2_000_000, 10_000_000)
BOX: dict[str, Any] = {"bounds": (-1, 1), "y_bounds": (-3, 3), "random_state": 0}
HEAD = (
    "estimator",
    "features",
    "rows",
    "passes",
    "evaluations",
    "CPU µs per row",
    "ratio",
    "peak MB",
)

# how many of 16 cores and of 100 GB for features each gets: the features of 10^7 rows take 40 GB for the
# regressor and the quantiles, 24 GB for the classifier and 8 GB for SGD
ESTIMATORS: dict[str, tuple[int, int, Callable[[], Any]]] = {
    "regressor": (8, 45, lambda: PrivateKernelRegressor(**BOX)),
    "quantiles": (3, 20, lambda: PrivateQuantileRegressor(quantile=[0.1, 0.9], **BOX)),
    "classifier": (3, 26, lambda: PrivateKernelClassifier(classes=[0.0, 1.0], bounds=(-1, 1))),
    "SGD": (2, 9, lambda: PrivateSGDRegressor(perturbation="gradient", **BOX)),
}


@dataclass
class Counts:
    """What was counted while a fit ran."""

    passes: int = 0
    evaluated: int = 0  # rows whose features were computed


@contextmanager
def counted(counts: Counts) -> Iterator[None]:
    """Count passes over all rows and evaluations of features."""
    inside = threading.local()
    lock = threading.Lock()

    def outermost(owner: type, name: str, found: Callable[[Any], None]) -> tuple[type, str, Any]:
        method = getattr(owner, name)

        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            kind = owner if owner is Passes else FeatureMap
            depth = getattr(inside, kind.__name__, 0)
            if not depth:
                with lock:
                    found(arguments)
            setattr(inside, kind.__name__, depth + 1)
            try:
                return method(self, *arguments, **options)
            finally:
                setattr(inside, kind.__name__, depth)

        setattr(owner, name, call)
        return owner, name, method

    def one_pass(_: Any) -> None:
        counts.passes += 1

    def evaluation(arguments: Any) -> None:
        counts.evaluated += len(arguments[0])

    maps = [cls for cls in _below(FeatureMap) if "transform_block" in vars(cls)]
    kept = [outermost(cls, "transform_block", evaluation) for cls in maps]
    kept += [outermost(Passes, name, one_pass) for name in ("run", "sum", "blocks")]
    kept += [outermost(Passes, "prepare", lambda _: None)]
    try:
        yield
    finally:
        for owner, name, method in kept:
            setattr(owner, name, method)


def _below(cls: type) -> Iterator[type]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _below(sub)


def table(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and targets."""
    draws = np.random.default_rng(0)
    X = 2 * draws.random((n_rows, COLUMNS)) - 1
    return X, X[:, 0] + X[:, 1] * X[:, 2] + 0.1 * draws.standard_normal(n_rows)


def measure(name: str, sizes: Sequence[int], seconds: float, features: int | None) -> None:
    """Print one line per size, as long as the next fit should end in time."""
    start = time.perf_counter()
    *_, make = ESTIMATORS[name]
    model = make().set_params(**({"n_features": features} if features else {}))
    X, y = table(20_000)  # imports and compiled code
    model.fit(X, (y > 0) * 1.0 if name == "classifier" else y)
    first = last = 0.0
    for n in sizes:
        left = seconds - (time.perf_counter() - start)
        if last * n > left:
            return
        X, y = table(n)
        y = (y > 0) * 1.0 if name == "classifier" else y
        counts = Counts()
        wall, own = time.perf_counter(), time.process_time()
        with counted(counts):
            model.fit(X, y)
        own, wall = time.process_time() - own, time.perf_counter() - wall
        last, each = wall / n, own / n
        first = first or each
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        line = [name, model.feature_map_.n_outputs, f"{n:,}", counts.passes]
        line += [
            f"{counts.evaluated / n:.2f}",
            f"{1e6 * each:.1f}",
            f"{each / first:.2f}",
            f"{peak:,}",
        ]
        csv.writer(sys.stdout, lineterminator="\n").writerow(line)
        sys.stdout.flush()


def all_at_once(
    cores: int, memory: float | None, sizes: Sequence[int], seconds: float, out: Path
) -> None:
    """Measure every estimator in a process of its own, on its share of the cores and the memory."""
    begin, running = 0, []
    for name, (share, room, _) in ESTIMATORS.items():
        count = max(1, cores * share // 16)
        mine = {core % cores for core in range(begin, begin + count)}
        begin += count
        command = [sys.executable, __file__, "--one", name, "--seconds", str(seconds), "--sizes"]
        limits = {f"{library}_NUM_THREADS": str(count) for library in ("OPENBLAS", "OMP", "MKL")}
        if memory:
            limits |= {"DPKERNEL_MEMORY": str(int(memory * 1e7 * room)), "DPKERNEL_DISK": "0"}
        running.append(
            subprocess.Popen(
                [*command, *map(str, sizes)],
                env=os.environ | limits,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=lambda mine=mine: os.sched_setaffinity(0, mine),
            )
        )
    lines = [
        line for process in running for line in csv.reader(process.communicate()[0].split("\n"))
    ]
    write(out / "scaling_rows.csv", HEAD, [line for line in lines if line])


def write(path: Path, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a table of results and print it."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(made_by())
        csv.writer(file, lineterminator="\n").writerows([head, *rows])
    print(path.read_text(encoding="utf-8"))


# --- one fit of the ridge by several processes ---------------------------------------------------

BLOCK = 50_000
RIDGE = PrivateKernelRidge(features="fourier", n_features=64, **BOX)


def part_of(job: tuple[int, int, int]) -> tuple[float, Any]:
    """Return the CPU time and the sums over the blocks from ``first`` to ``last``, made on the fly."""
    n_rows, first, last = job
    start = time.process_time()
    sums = GramStatistics(RIDGE, n_rows, COLUMNS)
    for number in range(first, last):
        draws = np.random.default_rng(number)
        X = 2 * draws.random((BLOCK, COLUMNS)) - 1
        sums.update(X, X[:, 0] + X[:, 1] * X[:, 2])
    # sums without noise can't be pickled; Dask workers send them to each other in this form, too
    return time.process_time() - start, sums._open()._pack()


def by_processes(n_rows: int, workers: int) -> tuple[float, float]:
    """Return the seconds of one fit to so many rows, and the CPU seconds of all processes."""
    blocks = n_rows // BLOCK
    ends = [blocks * w // workers for w in range(workers + 1)]
    jobs = [(n_rows, a, b) for a, b in itertools.pairwise(ends)]
    start = time.perf_counter()
    with multiprocessing.Pool(workers) as pool:
        parts = pool.map(part_of, jobs, chunksize=1)
    whole = GramStatistics(RIDGE, n_rows, COLUMNS)
    for _, packed in parts:
        whole._open().merge(GramFolds._unpack(packed))
    model = whole.release()
    assert model.certificate_.public["n_rows"] == n_rows
    return time.perf_counter() - start, sum(own for own, _ in parts)


def billion(workers: int, n_rows: int, out: Path) -> None:
    """Predict one long fit from two short ones in the same run, and run it."""
    by_processes(workers * BLOCK, workers)  # imports
    short = [10**7, 4 * 10**7]
    times = [by_processes(n, workers)[0] for n in short]
    slope = (times[1] - times[0]) / (short[1] - short[0])
    expected = times[0] + slope * (n_rows - short[0])
    print(f"{n_rows:,} rows on {workers} workers should take {expected:.1f} s", flush=True)
    seconds, own = by_processes(n_rows, workers)
    row = [f"{n_rows:,}", workers, f"{max(short):,}", f"{expected:.1f}", f"{seconds:.1f}",
           f"{seconds / expected:.3f}", f"{1e6 * own / n_rows:.3f}"]  # fmt: skip
    head = ["rows", "workers", "rows of the largest short run", "predicted (s)", "measured (s)",
            "measured / predicted", "CPU µs per row"]  # fmt: skip
    write(out / "scaling_billion.csv", head, [row])


def main() -> None:
    """Run what was asked for."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options.add_argument("--seconds", type=float, default=math.inf, help="for all sizes")
    options.add_argument("--cores", type=int, default=os.cpu_count())
    options.add_argument("--memory", type=float, help="GB for features; else each fit decides")
    options.add_argument("--one", choices=ESTIMATORS)
    options.add_argument("--features", type=int, help="instead of the default of each estimator")
    options.add_argument(
        "--billion", type=int, metavar="PROCESSES", help="processes of one long fit of the ridge"
    )
    options.add_argument("--rows", type=int, default=10**9, help="of the long fit")
    options.add_argument("--out", type=Path, default=HERE / "results")
    given = options.parse_args()
    if given.one:
        measure(given.one, given.sizes, given.seconds, given.features)
    elif given.billion:
        billion(given.billion, given.rows, given.out)
    else:
        all_at_once(given.cores, given.memory, given.sizes, given.seconds, given.out)


if __name__ == "__main__":
    main()
