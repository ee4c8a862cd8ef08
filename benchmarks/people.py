"""What it costs to protect people instead of rows, and which record of a person is best.

``python benchmarks/people.py [--repetitions 10] [--only records|labels|cost|relations] [--jobs 1]
[--out D]``.

The truth is f(x) = 0.6 sin(3 x_1) + 0.4 x_2 x_3 on [-1, 1]^3. y is f(x) plus normal noise of deviation
0.5, or the sign of this as a label. A person has a centre, drawn uniformly. "Repeat": all rows of a
person are the same. "Near" and "wide": rows lie around the centre with deviation 0.1 or 0.3. "Apart":
all rows are drawn uniformly. Errors are those of a prediction of f at new points: the mean square over
the variance of f, or the share of wrong signs. Noise and data are seeded, and all columns of a
repetition have the same seeds.

``records`` writes benchmarks/results/people_records.csv: 10,000 people with 5 rows at epsilon = 1.
``labels`` writes benchmarks/results/people_labels.csv: the same for PrivateKernelClassifier,
whose labels also come from normal noise of deviation 1.5.
``cost`` writes benchmarks/results/people_cost.csv: 20,000 rows in all, of people with 1, 5 or 20 near
rows. "Less budget for each row" is a fit without groups whose budget for a row is so small that the k
rows of a person together have the stated one; this needs a public limit k on the rows of a person.
``relations`` writes benchmarks/results/people_relations.csv: 10,000 independent rows at epsilon = 1
under every neighbouring relation. Under add-remove, 10,000, 12,500 or 20,000 places are declared.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from provenance import made_by
from threadpoolctl import threadpool_limits

from dpkernel import (
    AddRemove,
    People,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
    SeededNoise,
)
from dpkernel.methods import PrivateHuberRegressor, PrivateSGDClassifier, PrivateSGDRegressor
from dpkernel.privacy.profiles import GaussianProfile, gaussian_mu

RESULTS = Path(__file__).parent / "results"
DELTA, SPREAD = 1e-6, 0.5
WIDTHS = {"repeat": 0.0, "near": 0.1, "wide": 0.3, "apart": None}
REAL = {"bounds": (-1, 1), "y_bounds": (-3, 3), "delta": DELTA}
ALL_ROWS = ("PrivateKernelRidge", "PrivateSGDRegressor", "PrivateSGDClassifier")
MODELS: dict[str, Callable[..., Any]] = {
    "PrivateKernelRegressor": lambda **kw: PrivateKernelRegressor(**REAL, **kw),
    "PrivateKernelRidge": lambda **kw: PrivateKernelRidge(**REAL, **kw),
    "PrivateHuberRegressor": lambda **kw: PrivateHuberRegressor(**REAL, **kw),
    "PrivateSGDRegressor": lambda **kw: PrivateSGDRegressor(**REAL, **kw),
    "PrivateKernelClassifier": lambda **kw: PrivateKernelClassifier(
        bounds=(-1, 1), classes=[0, 1], delta=DELTA, **kw
    ),
    "PrivateSGDClassifier": lambda **kw: PrivateSGDClassifier(
        bounds=(-1, 1), classes=[0, 1], delta=DELTA, **kw
    ),
    "PrivateQuantileRegressor(0.9)": lambda **kw: PrivateQuantileRegressor(
        quantile=0.9, **REAL, **kw
    ),
}


def truth(X: np.ndarray) -> np.ndarray:
    """Return f at the rows of X."""
    return 0.6 * np.sin(3 * X[:, 0]) + 0.4 * X[:, 1] * X[:, 2]


def visits(
    kind: str, people: int, rows: int, seed: int, spread: float = SPREAD
) -> tuple[np.ndarray, ...]:
    """Return X, y and the ids of people with this many rows each."""
    rng = np.random.default_rng([9, seed])
    ids, width = np.repeat(np.arange(people), rows), WIDTHS[kind]
    if width is None:
        X = rng.uniform(-1, 1, (len(ids), 3))
    else:
        X = rng.uniform(-1, 1, (people, 3))[ids]
        X = np.clip(X + width * rng.normal(size=X.shape), -1, 1)
    noise = rng.normal(size=people)[ids] if kind == "repeat" else rng.normal(size=len(ids))
    return X, truth(X) + spread * noise, ids


def error(
    name: str,
    shape: tuple[str, int, int],
    rule: str | None,
    epsilon: float,
    seed: int,
    relation: Any = "replace-one",
    spread: float = SPREAD,
) -> float:
    """Return the error of one fit to a table of ``visits``; ``rule`` is the record of a person."""
    X, y, ids = visits(*shape, seed, spread)
    new = np.random.default_rng([10, seed]).uniform(-1, 1, (4000, 3))
    wanted = truth(new)
    labels = "Classifier" in name
    model = MODELS[name](epsilon=epsilon, noise=SeededNoise(seed), neighbours=relation)
    groups = None if rule is None else People(ids, record=rule)
    with threadpool_limits(1):
        model.fit(X, (y > 0).astype(float) if labels else y, groups=groups)
    if labels:
        return float(np.mean((model.predict(new) > 0) != (wanted > 0)))
    if "Quantile" in name:
        wanted = wanted + 1.2815515655446004 * SPREAD
    return float(np.mean((model.predict(new) - wanted) ** 2) / np.var(wanted))


Cells = list[tuple[Any, ...] | str]  # the arguments of ``error`` without the seed, or a text


def records() -> list[Cells]:
    """Return the table of kinds of records."""
    rules = ("one", "near", "mean", "all")
    lines: list[Cells] = [["model", "rows of a person", "10,000 independent rows", *rules]]
    for name in MODELS:
        if name == "PrivateKernelClassifier":  # see ``labels``
            continue
        for kind in WIDTHS:
            cells: Cells = [name, kind, (name, ("apart", 10_000, 1), None, 1.0)]
            for rule in rules:
                offered = rule != "all" or name in ALL_ROWS
                cells.append((name, (kind, 10_000, 5), rule, 1.0) if offered else "")
            lines.append(cells)
    return lines


def labels() -> list[Cells]:
    """Return the table of kinds of records of a classifier, for labels of two levels of noise."""
    name, rules = "PrivateKernelClassifier", ("one", "near", "mean")
    lines: list[Cells] = [["noise", "rows of a person", "10,000 independent rows", *rules]]
    for spread in (SPREAD, 1.5):
        for kind in WIDTHS:
            rest = "replace-one", spread
            cells: Cells = [str(spread), kind, (name, ("apart", 10_000, 1), None, 1.0, *rest)]
            cells += [(name, (kind, 10_000, 5), rule, 1.0, *rest) for rule in rules]
            lines.append(cells)
    return lines


def cost() -> list[Cells]:
    """Return the table of what is protected, and what it costs."""
    protects = ("one row", "a person, by groups", "a person, by less budget for each row")
    lines: list[Cells] = [["model", "epsilon", "rows of a person (k)", "people", *protects]]
    for name in ("PrivateKernelRegressor", "PrivateKernelClassifier"):
        for epsilon in (0.3, 1.0):
            for rows in (1, 5, 20):
                # k rows of a mechanism with mu / k are protected with mu
                smaller = GaussianProfile(gaussian_mu(epsilon, DELTA) / rows).epsilon(DELTA)
                shape = ("near", 20_000 // rows, rows)
                given = ((None, epsilon), ("auto", epsilon), (None, smaller))
                head: Cells = [name, f"{epsilon:g}", str(rows), f"{shape[1]:,}"]
                lines.append([*head, *((name, shape, *one) for one in given)])
    return lines


def relations() -> list[Cells]:
    """Return the table of neighbouring relations."""
    kinds = {
        "replace-one": "replace-one",
        "zero-out": "zero-out",
        "add-remove, n_max = 10,000": AddRemove(10_000),
        "n_max = 12,500": AddRemove(12_500),
        "n_max = 20,000": AddRemove(20_000),
    }
    lines: list[Cells] = [["model", *kinds]]
    for name in MODELS:
        shape = ("apart", 10_000, 1)
        each = [(name, shape, None, 1.0, relation) for relation in kinds.values()]
        lines.append([name, *each])
    return lines


def measured(lines: Iterable[Cells], repetitions: int, pool: Any) -> list[list[str]]:
    """Return the table in which the mean error stands in place of the arguments of fits."""
    runs: dict[tuple[Any, ...], list[Any]] = {}
    for line in lines:
        for cell in line:
            if isinstance(cell, tuple) and cell not in runs:
                first, rest = cell[:4], cell[4:]
                runs[cell] = [
                    pool.submit(error, *first, seed, *rest) for seed in range(repetitions)
                ]
    found = []
    for line in lines:
        texts = [c if isinstance(c, str) else "" for c in line]
        for place, cell in enumerate(line):
            if isinstance(cell, tuple):
                texts[place] = f"{np.mean([run.result() for run in runs[cell]]):.4f}"
        found.append(texts)
        print(*texts, flush=True)
    return found


def main() -> None:
    """Measure, and write the tables."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repetitions", type=int, default=10)
    options.add_argument("--only", choices=("records", "labels", "cost", "relations"))
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--out", type=Path, default=RESULTS)
    given = options.parse_args()
    with ProcessPoolExecutor(given.jobs) as pool:
        for table in (records, labels, cost, relations):
            if given.only in (None, table.__name__):
                lines = measured(table(), given.repetitions, pool)
                path = given.out / f"people_{table.__name__}.csv"
                with path.open("w", newline="", encoding="utf-8") as file:
                    file.write(made_by())
                    csv.writer(file, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    main()
