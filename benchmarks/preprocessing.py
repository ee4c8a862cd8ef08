"""What unknown bounds cost: from raw columns to a private model under one budget.

``python benchmarks/preprocessing.py [--tables ...] [--splits 3]``, with DPKERNEL_DATA set. It writes
``results/preprocessing.csv`` and ``preprocessing_scales.csv``, and each split to
``preprocessing_splits.csv``.

1. Scales. ``PrivateStandardScaler`` on breast_cancer: the share of columns whose scale is more than
   twice too large or too small, with the declared bounds and with bounds a thousand times wider; against
   means and mean squares clipped to the same bounds, in one joint Gaussian release.
2. Models. ``PrivatePipeline(PrivateBounds -> model)`` with ranges of columns and target a thousand times
   too wide, around 0, against the same model with the declared bounds and the whole budget, and against
   the best of six length scales and numbers of features at the whole budget each. That one is chosen by
   its error on the test rows, so it is no private model: no choice could do better. R^2 of regressors,
   for classifiers the share of errors of the majority class that is removed.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from datasets import Data, load
from provenance import write
from rich.console import Console
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from dpkernel import Budget, Ledger, PrivateKernelClassifier, PrivateKernelRegressor, SeededNoise
from dpkernel.data.domain import Domain
from dpkernel.foundations.errors import PrivacyWarning
from dpkernel.foundations.types import Neighbours
from dpkernel.preprocessing import PrivateBounds, PrivatePipeline, PrivateStandardScaler
from dpkernel.preprocessing.search import GRID, pair_sums
from dpkernel.privacy.mechanisms import Gaussian
from dpkernel.privacy.sensitivity import column_moments

EPSILONS = (1.0, 3.0)
FACTORS, SIZES = (0.35, 0.7, 1.4), ("auto", 200)  # length scales over sqrt(d); 0.7 is the default
ROWS = {"california": 16_000, "power": 7600, "adult": 16_000, "covtype": 16_000}


def widened(low: Any, high: Any, factor: float = 1000.0) -> tuple[Any, Any]:
    """Return a symmetric range around 0, so many times too wide."""
    most = factor * np.maximum(np.abs(low), np.abs(high))
    return -most, most


def wrong_scales(found: np.ndarray, X: np.ndarray) -> float:
    """Return the share of columns whose scale is off by more than a factor 2."""
    ratio = found / X.std(axis=0)
    return float(np.mean((ratio > 2) | (ratio < 0.5)))


def clipped_moments(X: np.ndarray, bounds: Any, budget: Budget, seed: int) -> np.ndarray:
    """Return scales from one joint release of means and mean squares, clipped to the bounds."""
    n, d = X.shape
    columns = Domain.box(*bounds, n_columns=d).columns or ()
    moved = column_moments(Neighbours.REPLACE_ONE, columns=d, bound=GRID)
    mechanism = Gaussian.calibrate(moved, budget, dimension=2 * d, integer=True)
    noise = Ledger().spend(mechanism.profile(), "moments", noise=SeededNoise(seed))
    total = np.concatenate([pair_sums(X[:, j], c) for j, c in enumerate(columns)])  # type: ignore[arg-type]
    mean, square = (mechanism.release(total, noise).reshape(-1, 2) / (GRID * n)).T
    half = np.array([c.half_width for c in columns])  # type: ignore[union-attr]
    return np.sqrt(np.maximum(square / 1.5 + 0.5 - mean**2, 1e-12)) * half


def scales(splits: int, console: Console) -> None:
    """Print the table of scales."""
    data = load("breast_cancer")
    assert data is not None
    rows = [["bounds", "clipped means and squares", "`PrivateStandardScaler`"]]
    wide = widened(*data.bounds)
    for name, bounds in (("declared", data.bounds), ("1000 times wider", wide)):
        plain, ours = [], []
        for seed in range(10 * splits):
            plain.append(
                wrong_scales(clipped_moments(data.X, bounds, Budget(1.0, 1e-6), seed), data.X)
            )
            scaler = PrivateStandardScaler(1.0, bounds=bounds, noise=SeededNoise(seed))
            ours.append(wrong_scales(scaler.fit(data.X).scale_, data.X))
        rows.append([name, f"{np.mean(plain):.1%}", f"{np.mean(ours):.1%}"])
        console.print(*rows[-1], highlight=False)
    write("preprocessing_scales.csv", rows)


def explained(data: Data, truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return R^2, or the share of the majority's errors that is removed."""
    if data.classes is None:
        return float(1 - np.mean((truth - predicted) ** 2) / np.var(truth))
    share = max(np.mean(truth == label) for label in data.classes)
    return float(1 - np.mean(truth != predicted) / (1 - share))


def one_split(data: Data, n: int, epsilon: float, seed: int) -> tuple[float, float, float]:
    """Return what (a) the pipeline, (b) the model with declared bounds and (c) the tuned one explain."""
    train, test = data.split(n, seed, 4000)
    noise = SeededNoise(1000 * seed + 1)
    model: Any
    if data.classes is None:
        assert data.y_bounds is not None
        y_range = tuple(float(end) for end in widened(*data.y_bounds))
        model = PrivateKernelRegressor()
        told = PrivateKernelRegressor(
            epsilon, bounds=data.bounds, y_bounds=data.y_bounds, noise=noise
        )
    else:
        y_range, model = None, PrivateKernelClassifier(classes=data.classes)
        told = PrivateKernelClassifier(
            epsilon, bounds=data.bounds, classes=data.classes, noise=noise
        )
    first = PrivateBounds(bounds=widened(*data.bounds), y_range=y_range)
    pipeline = PrivatePipeline([("bounds", first), ("model", model)], epsilon, noise=noise)

    def result(estimator: Any) -> float:
        estimator.fit(data.X[train], data.y[train])
        assert estimator.certificate_.epsilon <= epsilon
        return explained(data, data.y[test], estimator.predict(data.X[test]))

    found = result(pipeline), result(told)
    root = float(np.sqrt(data.X.shape[1]))
    tuned = [
        result(clone(told).set_params(length_scale=factor * root, n_features=size))
        for factor in FACTORS
        for size in SIZES
    ]
    return *found, max(found[1], *tuned)


def models(tables: list[str], splits: int, console: Console) -> None:
    """Write the tables of models, over all splits and of each."""
    names = ("(a) pipeline", "(b) declared bounds", "(c) tuned on the test rows", "a / b", "a / c")
    lines = [["table", "n", "epsilon", "split", "pipeline", "declared", "best_of_grid"]]
    rows = [["table", "n", "epsilon", *names]]
    for name in tables:
        data = load(name)
        if data is None:
            continue
        title, n = f"{name} (largest class)" if name == "covtype" else name, ROWS[name]
        for epsilon in EPSILONS:
            found = np.array([one_split(data, n, epsilon, seed) for seed in range(splits)])
            lines += [
                [name, str(n), f"{epsilon:g}", str(seed), *(f"{value:.4f}" for value in split)]
                for seed, split in enumerate(found)
            ]
            a, b, c = found.mean(axis=0)
            cells = (f"{a:.3f}", f"{b:.3f}", f"{c:.3f}", f"{a / b:.2f}", f"{a / c:.2f}")
            first = (title, f"{n:,}") if epsilon == EPSILONS[0] else ("", "")
            rows.append([*first, f"{epsilon:g}", *cells])
            console.print(name, *rows[-1], highlight=False)
    write("preprocessing.csv", rows)
    write("preprocessing_splits.csv", lines)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="*", default=list(ROWS))
    parser.add_argument("--splits", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore", PrivacyWarning)  # the choice by test error is no private one
    with threadpool_limits(1):
        scales(options.splits, Console())
        models(options.tables, options.splits, Console())


if __name__ == "__main__":
    main()
