"""Private rivals of dpkernel on the same tables, splits, bounds, delta and neighbours.

``make rivals``, or ``python benchmarks/rivals.py [--methods ...] [--tables ...] [--epsilons ...]
[--splits 5] [--jobs 2] [--append]``. The methods are those of ``rival_methods.py``; one whose library is
not installed is skipped with a line. Every fit is a line of ``results/rivals_splits.csv``, which is
written after each table. ``--append`` keeps the lines that are there, so that several environments can
add to one file, and ``--merge`` adds the lines of files from other machines. The other
``results/rivals*.csv`` are made from this file (``--tabulate`` does only that).

Training rows are 80 percent of a table, at most 16,000. delta = 1e-6; one record is zeroed out
(dpkernel) or zeroed out, added or removed (network and trees). The error is the squared error over the
variance of the test targets, or the share of wrong labels. Each job has one BLAS thread; seconds are
those of the processor. Network and trees run with all their settings, or with ``--public`` with the one
of the public rule alone.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import rival_network
import rival_tables
from datasets import load
from provenance import made_by
from rival_methods import DELTA, METHODS, available, gaussian_mu, problem, suits
from threadpoolctl import threadpool_limits

REGRESSION = (
    "california",
    "diamonds",
    "kin40k",
    "airfoil",
    "concrete",
    "wine_white",
    "year",
    "power",
)
CLASSES = ("adult", "covtype", "spambase", "breast_cancer", "digits")
EPSILONS = (0.3, 1.0, 3.0, 10.0)
RESULTS = Path(__file__).parent / "results"
HEAD = ["table", "epsilon", "method", "setting", "by rule", "split", "error", "seconds"]

Task = tuple[str, float, str, int, int]  # table, epsilon, method, setting, split


def measure(task: Task) -> list[str]:
    """Return the line of one fit."""
    table, epsilon, name, setting, seed = task
    method, split = METHODS[name], problem(table, seed)
    with threadpool_limits(1):
        predictions, seconds = method.fit(split, epsilon, setting, seed)
    by_rule = int(public_setting(name, len(split.y), epsilon) == setting)
    cells = [f"{epsilon:g}", name, str(setting), str(by_rule), str(seed)]
    return [table, *cells, f"{split.error(predictions):.6f}", f"{seconds:.3f}"]


def public_setting(name: str, n_rows: int, epsilon: float) -> int:
    """Return the setting that the public rule of a method takes."""
    mu = gaussian_mu(epsilon) if math.isfinite(epsilon) else math.inf
    return METHODS[name].rule(n_rows * mu)


def planned(given: argparse.Namespace) -> list[Task]:
    """Return all fits that were asked for and are possible here."""
    methods = [name for name in given.methods if available(name)]
    for name in set(given.methods) - set(methods):
        print(f"{name}: skipped, {METHODS[name].needs} is not installed", flush=True)
    tasks: list[Task] = []
    for table, name in itertools.product(given.tables, methods):
        data = load(table)
        if data is None:
            print(f"{table}: skipped, not at hand (set DPKERNEL_DATA)", flush=True)
        elif suits(name, data):
            method = METHODS[name]
            seeds = range(given.splits * (4 if table == "breast_cancer" else 1))
            epsilons = given.epsilons if method.private else [math.inf]
            for epsilon, setting in itertools.product(epsilons, range(method.settings)):
                public = public_setting(name, int(0.8 * len(data.y)), epsilon)
                if setting == public or not given.public:
                    tasks += [(table, epsilon, name, setting, seed) for seed in seeds]
    return tasks


def prepare(tasks: list[Task]) -> None:
    """Calibrate the noise once, before the jobs are forked and inherit it."""
    shares = {(1.0, 1), *((s.share, s.steps) for s in rival_network.SCHEDULES)}
    names = {name for _, _, name, _, _ in tasks}
    if any(METHODS[name].needs == "dp_accounting" for name in names):
        for epsilon in {epsilon for _, epsilon, _, _, _ in tasks if math.isfinite(epsilon)}:
            for share, steps in shares:
                rival_network.noise_multiplier(epsilon, DELTA, share, steps)


def write(path: Path, notes: str, lines: list[list[str]], *, append: bool) -> None:
    """Write the lines; with ``append`` those of the file stay unless they were measured again."""
    kept = {tuple(line[:4] + line[5:6]): line for line in lines}
    if append and path.exists():
        notes = rival_tables.joined(rival_tables.notes(path), notes)
        before = {tuple(line[:4] + line[5:6]): line for line in rival_tables.rows(path)[1:]}
        kept = before | kept
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(notes)
        csv.writer(file, lineterminator="\n").writerows([HEAD, *sorted(kept.values())])


def main() -> None:
    """Measure what is possible here, and write the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    options.add_argument("--tables", nargs="+", default=[*REGRESSION, *CLASSES])
    options.add_argument("--epsilons", nargs="+", type=float, default=list(EPSILONS))
    options.add_argument("--splits", type=int, default=5)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--public", action="store_true", help="only settings of the public rule")
    options.add_argument("--append", action="store_true", help="keep what the file holds")
    options.add_argument("--tabulate", action="store_true", help="measure nothing")
    options.add_argument("--merge", nargs="+", type=Path, default=[], help="files of other runs")
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    path = given.out / "rivals_splits.csv"
    if not given.tabulate:
        tasks = planned(given)
        prepare(tasks)
        append, notes = given.append, made_by()
        with ProcessPoolExecutor(given.jobs) as pool:
            for table, some in itertools.groupby(tasks, key=lambda task: task[0]):
                write(path, notes, list(pool.map(measure, some)), append=append)
                append = True
                print(f"{table}: measured", flush=True)
    for other in given.merge:
        write(path, rival_tables.notes(other), rival_tables.rows(other)[1:], append=True)
    rival_tables.tabulate(path, regression=REGRESSION, classes=CLASSES)


if __name__ == "__main__":
    main()
