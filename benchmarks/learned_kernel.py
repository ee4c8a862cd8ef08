"""What features made for the data are worth: default estimators against a fixed Gaussian kernel.

``python benchmarks/learned_kernel.py [what] [--jobs 2] [--splits 5]``, where ``what`` is

- ``regression``: test mean squared error over the variance of the test targets;
- ``classes``: the share of wrong labels, with scikit-learn's ten digits and four times as many splits
  of breast_cancer;
- ``quantiles``: the pinball loss of the quantiles 0.1, 0.5 and 0.9 over that of the quantiles of the
  test targets, averaged over the three;
- ``parts``: the regression again, with one part after the other switched on;
- ``siblings``: the regression again, with our other regressors;
- ``small``: the regression with 1000 training rows, and with a range of y that is declared 20 times
  too wide upwards;
- ``limit``: epsilon = 10,000 against kernel ridge regression without privacy, whose kernel (Gaussian
  or Laplace), length scale and ridge are chosen by cross-validation, on up to 3,000 training rows.

Mean over random splits of 80 and 20 percent with standard errors; declared bounds, delta = 1e-6,
replace-one neighbours, operating-system noise. Seconds are those of one fit on one core, median over
splits and tables, while the other jobs run.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Data, load
from provenance import made_by
from sklearn.datasets import load_digits
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_limits

from dpkernel import (
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
)
from dpkernel.estimators.regressor import BudgetPlan
from dpkernel.methods import PrivateHuberRegressor, PrivateSGDRegressor

TABLES = ("california", "diamonds", "kin40k", "airfoil", "concrete", "wine_white", "year", "power")
CLASSES = ("adult", "covtype", "spambase", "breast_cancer", "digits")
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
QUANTILES = (0.1, 0.5, 0.9)
RESULTS = Path(__file__).parent / "results"
MIXTURE = BudgetPlan(0.08, 0.1, (1.0, 1.2), 0.025, 0.03, clip=0.7, mixture=True)

Fit = Callable[[Data, float, np.ndarray], Any]  # a table, epsilon, the places of the training rows


@dataclass(frozen=True)
class Study:
    """What is compared: a name of the result, methods, tables, budgets, and how errors are taken."""

    result: str
    methods: dict[str, Fit]
    error: Callable[[np.ndarray, np.ndarray], float]
    tables: tuple[str, ...] = TABLES
    epsilons: tuple[float, ...] = EPSILONS
    most: int | None = None  # training rows


def fit_real(kind: Any, data: Data, epsilon: float, train: np.ndarray, **options: Any) -> Any:
    """Fit a regressor with the declared bounds."""
    model = kind(epsilon, 1e-6, bounds=data.bounds, y_bounds=data.y_bounds, **options)
    return model.fit(data.X[train], data.y[train])


def fit_wide(data: Data, epsilon: float, train: np.ndarray) -> Any:
    """Fit the default regressor, with an upper bound of y that is far too large."""
    low, high = data.y_bounds
    wide = replace(data, y_bounds=(low, low + 20 * (high - low)))
    return fit_real(PrivateKernelRegressor, wide, epsilon, train)


def fit_classes(data: Data, epsilon: float, train: np.ndarray, **options: Any) -> Any:
    """Fit a classifier with the declared bounds and classes."""
    model = PrivateKernelClassifier(
        epsilon, 1e-6, bounds=data.bounds, classes=data.classes, **options
    )
    return model.fit(data.X[train], data.y[train])


def fit_freely(data: Data, epsilon: float, train: np.ndarray) -> Any:
    """Fit kernel ridge regression without privacy, on inputs and targets that are standardised."""
    X, y = data.X[train], data.y[train]
    centre, spread = X.mean(axis=0), np.maximum(X.std(axis=0), 1e-12)
    d = X.shape[1]
    grids = [
        {"kernel": ["rbf"], "gamma": [1 / (2 * d * s**2) for s in (0.3, 0.6, 1.2, 2.4)]},
        {"kernel": ["laplacian"], "gamma": [1 / (d * s) for s in (1.0, 2.0, 6.0)]},
    ]
    ridges = {"alpha": [1e-4, 1e-3, 1e-2, 1e-1, 1.0]}
    search = GridSearchCV(KernelRidge(), [grid | ridges for grid in grids], cv=3)
    search.fit((X - centre) / spread, y - y.mean())
    return _Standardised(search, centre, spread, float(y.mean()))


@dataclass(frozen=True)
class _Standardised:
    model: Any
    centre: np.ndarray
    spread: np.ndarray
    mean: float

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.model.predict((X - self.centre) / self.spread) + self.mean


def squared(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the mean squared error over the variance of the targets."""
    return float(np.mean((found - wanted) ** 2) / wanted.var())


def wrong(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the share of wrong labels."""
    return float(np.mean(found != wanted))


def pinball(found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the pinball loss over that of constants, averaged over the quantiles."""
    constant = np.tile(np.quantile(wanted, QUANTILES), (len(wanted), 1))
    levels = np.array(QUANTILES)
    losses = [
        np.maximum(levels * (wanted[:, None] - each), (levels - 1) * (wanted[:, None] - each))
        for each in (found, constant)
    ]
    return float(np.mean(losses[0].mean(axis=0) / losses[1].mean(axis=0)))


REGRESSOR = partial(fit_real, PrivateKernelRegressor)
QUANTILE = partial(fit_real, PrivateQuantileRegressor, quantile=QUANTILES)
STUDIES = {
    "regression": Study(
        "learned_kernel",
        {"default": REGRESSOR, "fixed kernel": partial(REGRESSOR, kernel="gaussian")},
        squared,
    ),
    "classes": Study(
        "learned_classes",
        {"default": fit_classes, "fixed kernel": partial(fit_classes, kernel="gaussian")},
        wrong,
        CLASSES,
    ),
    "quantiles": Study(
        "learned_quantiles",
        {"default": QUANTILE, "pinball, fixed kernel": partial(QUANTILE, kernel="gaussian")},
        pinball,
    ),
    "parts": Study(
        "learned_parts",
        {
            "default": REGRESSOR,
            "with 200 features": partial(REGRESSOR, n_features=200),
            "no learned kernel": partial(REGRESSOR, budget_plan=MIXTURE),
            "fixed kernel": partial(REGRESSOR, kernel="gaussian"),
        },
        squared,
    ),
    "siblings": Study(
        "learned_siblings",
        {
            "default": REGRESSOR,
            "PrivateHuberRegressor": partial(fit_real, PrivateHuberRegressor),
            "PrivateSGDRegressor": partial(fit_real, PrivateSGDRegressor),
            "PrivateKernelRidge": partial(fit_real, PrivateKernelRidge),
        },
        squared,
    ),
    "small": Study(
        "learned_small",
        {
            "default": REGRESSOR,
            "fixed kernel": partial(REGRESSOR, kernel="gaussian"),
            "default, range of y too wide": fit_wide,
        },
        squared,
        epsilons=(0.1, 0.3, 1.0),
        most=1000,
    ),
    "limit": Study(
        "learned_limit",
        {"default": REGRESSOR, "no privacy, cross-validated": fit_freely},
        squared,
        epsilons=(10_000.0,),
        most=3000,
    ),
}


def table_of(name: str) -> Data | None:
    """Return a table for measuring, or scikit-learn's digits."""
    if name != "digits":
        return load(name)
    X, y = load_digits(return_X_y=True)
    return Data(name, X, y, (np.zeros(64), np.full(64, 16.0)), None, list(range(10)))


def measure(task: tuple[str, str, str, float, int]) -> tuple[float, float]:
    """Return the error of one fit and its seconds."""
    what, method, name, epsilon, seed = task
    study, data = STUDIES[what], table_of(name)
    assert data is not None
    rows = int(0.8 * len(data.y))
    train, test = data.split(min(rows, study.most or rows), seed, most=len(data.y))
    with threadpool_limits(1):
        start = time.perf_counter()
        model = study.methods[method](data, epsilon, train)
        seconds = time.perf_counter() - start
        return study.error(model.predict(data.X[test]), data.y[test]), seconds


def main() -> None:
    """Measure every cell and write the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("what", nargs="?", choices=STUDIES, default="regression")
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--splits", type=int, default=5)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    study = STUDIES[given.what]
    out = given.out or RESULTS / f"{study.result}.csv"
    tables, epsilons = study.tables, study.epsilons
    seeds = {t: range(given.splits * (4 if t == "breast_cancer" else 1)) for t in tables}
    cells = list(itertools.product(study.methods, tables, epsilons))
    tasks = [(given.what, *cell, seed) for cell in cells for seed in seeds[cell[1]]]
    with ProcessPoolExecutor(given.jobs) as pool:
        found = dict(zip(tasks, pool.map(measure, tasks), strict=True))
    values = {
        cell: np.array([found[(given.what, *cell, s)] for s in seeds[cell[1]]]) for cell in cells
    }
    rows = [["table", "method", f"epsilon {epsilons[0]:g}", *(f"{e:g}" for e in epsilons[1:])]]
    for name, method in itertools.product(tables, study.methods):
        errors = [values[method, name, epsilon][:, 0] for epsilon in epsilons]
        shown = [f"{e.mean():.3f} ({e.std(ddof=1) / math.sqrt(len(e)):.3f})" for e in errors]
        rows.append([name if method == next(iter(study.methods)) else "", method, *shown])
    means = {cell: float(each[:, 0].mean()) for cell, each in values.items()}
    own, *others = study.methods
    for other in others:
        logs = [[math.log(means[own, t, e] / means[other, t, e]) for t in tables] for e in epsilons]
        ratios = [f"{math.exp(np.mean(each)):.3f}" for each in logs]
        rows.append(["geometric mean", f"{own} / {other}", *ratios])
    for method in study.methods:
        times = [np.concatenate([values[method, t, e][:, 1] for t in tables]) for e in epsilons]
        rows.append(["seconds", method, *(f"{np.median(each):.2f}" for each in times)])
    with out.open("w", newline="", encoding="utf-8") as file:
        file.write(made_by())
        csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
