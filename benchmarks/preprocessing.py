"""What unknown bounds cost: from raw columns to a private model under one budget.

``python benchmarks/preprocessing.py [--splits 3]``, with DPKERNEL_DATA set.

1. Scales. ``PrivateStandardScaler`` on breast_cancer: the share of columns whose scale is more than
   twice too large or too small, with the declared bounds and with bounds a thousand times wider; against
   means and mean squares clipped to the same bounds, in one joint Gaussian release.
2. Models. ``PrivatePipeline(PrivateBounds -> model)`` with ranges of columns and target a thousand times
   too wide, around 0, against the same model with the declared bounds and the whole budget. R^2 of
   regressors, for classifiers the share of errors of the majority class that is removed.

Both tables are written to ``results``.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np
from datasets import Data, load
from provenance import write
from threadpoolctl import threadpool_limits

from dpkernel import Budget, Ledger, PrivateKernelClassifier, PrivateKernelRegressor, SeededNoise
from dpkernel.data.domain import Domain
from dpkernel.foundations.types import Neighbours
from dpkernel.preprocessing import PrivateBounds, PrivatePipeline, PrivateStandardScaler
from dpkernel.preprocessing.search import GRID, pair_sums
from dpkernel.privacy.mechanisms import Gaussian
from dpkernel.privacy.sensitivity import column_moments

EPSILONS = (1.0, 3.0)
TABLES = (
    "california",
    "diamonds",
    "kin40k",
    "power",
    "wine_white",
    "concrete",
    "adult",
    "covtype",
    "spambase",
)


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


def scales(splits: int) -> list[list[str]]:
    """Return the table of scales."""
    data = load("breast_cancer")
    assert data is not None
    lines = [["bounds", "clipped means and squares", "`PrivateStandardScaler`"]]
    for name, bounds in (("declared", data.bounds), ("1000 times wider", widened(*data.bounds))):
        plain, ours = [], []
        for seed in range(10 * splits):
            plain.append(
                wrong_scales(clipped_moments(data.X, bounds, Budget(1.0, 1e-6), seed), data.X)
            )
            scaler = PrivateStandardScaler(1.0, bounds=bounds, noise=SeededNoise(seed))
            ours.append(wrong_scales(scaler.fit(data.X).scale_, data.X))
        lines.append([name, f"{np.mean(plain):.1%}", f"{np.mean(ours):.1%}"])
    return lines


def explained(data: Data, truth: np.ndarray, predicted: np.ndarray) -> float:
    """Return R^2, or the share of the majority's errors that is removed."""
    if data.classes is None:
        return float(1 - np.mean((truth - predicted) ** 2) / np.var(truth))
    share = max(np.mean(truth == label) for label in data.classes)
    return float(1 - np.mean(truth != predicted) / (1 - share))


def one_split(data: Data, n: int, epsilon: float, seed: int) -> tuple[float, float]:
    """Return what the pipeline and the model with declared bounds explain."""
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

    return result(pipeline), result(told)


def models(splits: int) -> list[list[str]]:
    """Return the table of models: means, with the standard error of their difference."""
    heads = [
        f"{what}, epsilon {e:g}" for e in EPSILONS for what in ("found", "declared", "difference")
    ]
    lines = [["table", "rows", *heads]]
    for name in TABLES:
        data = load(name)
        if data is None:
            print(f"{name}: not at hand (set DPKERNEL_DATA)")
            continue
        n = min(int(0.8 * len(data.y)), 16_000)
        lines.append([name, f"{n:,}"])
        for epsilon in EPSILONS:
            rows = np.array([one_split(data, n, epsilon, seed) for seed in range(splits)])
            lost = rows[:, 0] - rows[:, 1]
            spread = lost.std(ddof=1) / math.sqrt(splits)
            lines[-1] += [f"{mean:.3f}" for mean in rows.mean(axis=0)]
            lines[-1].append(f"{lost.mean():+.3f} ({spread:.3f})")
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Measure, and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=3)
    splits = parser.parse_args().splits
    with threadpool_limits(1):
        write("preprocessing_scales.csv", scales(splits))
        write("preprocessing.csv", models(splits))


if __name__ == "__main__":
    main()
