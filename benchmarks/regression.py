"""How accurate private regression is on real tables, and how fast.

``make bench-regression``, or ``python benchmarks/regression.py [--tables ...] [--repetitions 5]``.

Test mean squared error over the variance of the test targets (1: a constant), mean and standard error
over random splits. Declared bounds; defaults untouched. Rivals: the published Algorithm 3, Algorithm 1
up to 2000 rows (on 1000 test rows), each with the (M, lambda) that is best on the test rows in the
mean (a gift); full-batch noisy gradient descent on whitened features with the best clip and number of
steps (a gift); a private mean; and, not private, kernel ridge (with a cross-validated choice) and
linear regression. Noise is seeded, so that a table can be repeated.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from accuracy import private_mean
from datasets import Data, load
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.kernel_approximation import Nystroem
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from threadpoolctl import threadpool_limits

from dpkernel import Budget, PrivateKernelRegressor, PrivateKernelRidge, SeededNoise
from dpkernel.models.features import WhitenedFeatures
from dpkernel.privacy.profiles import gaussian_mu
from dpkernel.proof.papers.lee_park_ahn_2025 import (
    PublishedAlgorithm1,
    PublishedAlgorithm3,
    gaussian_process_projection,
    ridge_path,
)

EPSILONS = (0.1, 10**-0.5, 1.0, 10**0.5, 10.0)
DELTAS = ("n^-1.1", "1e-6")
DEVELOPMENT = {"california": (1000, 16_000), "power": (7600,), "year": (1000, 5000)}
REPORTED = {
    "concrete": (824,),
    "airfoil": (1200,),
    "wine_white": (3900,),
    "kin40k": (16_000,),
    "diamonds": (16_000,),
}
SIZES = (10, 50, 200)
PENALTIES = tuple(10.0 ** (-i) for i in range(7))

Cells = dict[tuple[str, str, float], np.ndarray]


def repetition(name: str, n_train: int, seed: int, rivals: bool) -> Cells:
    """Return the relative error of every method at every grid point, for one split."""
    with threadpool_limits(1):
        data = load(name)
        assert data is not None and data.y_bounds is not None
        train, test = data.split(n_train, seed, 5000)
        U = 2 * (np.clip(data.X, *data.bounds) - data.bounds[0]) / np.ptp(data.bounds, axis=0) - 1
        found: Cells = {}
        for key, epsilon, delta in settings(n_train):
            budget, noise = Budget(epsilon, delta), SeededNoise(1000 * seed + 1)
            for method, cls in (
                ("PrivateKernelRegressor", PrivateKernelRegressor),
                ("PrivateKernelRidge", PrivateKernelRidge),
            ):
                model = cls(epsilon, delta, bounds=data.bounds, y_bounds=data.y_bounds, noise=noise)
                found[method, key, epsilon] = error(
                    model.fit(data.X[train], data.y[train]).predict(data.X[test]), data.y[test]
                )
            value = private_mean(data.y[train], data.y_bounds, budget, noise)
            found["private mean", key, epsilon] = error(np.full(len(test), value), data.y[test])
            if rivals:
                found["noisy gradient descent (oracle)", key, epsilon] = descent(
                    U[train], U[test], data, train, test, budget, seed
                )
        if rivals:
            published(found, U, data, train, test, seed)
        found["kernel ridge (not private)", "", 0.0] = kernel_ridge(U, data, train, test)
        linear = LinearRegression().fit(U[train], data.y[train])
        found["linear (not private)", "", 0.0] = error(linear.predict(U[test]), data.y[test])
        return found


def settings(n_train: int) -> list[tuple[str, float, float]]:
    """Return every (name of delta, epsilon, delta)."""
    values = {"n^-1.1": n_train**-1.1, "1e-6": 1e-6}
    return [(key, epsilon, values[key]) for key in DELTAS for epsilon in EPSILONS]


def error(predictions: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return mean squared errors over the variance, one a column of predictions."""
    columns = predictions.reshape(len(y), -1)
    return np.mean((columns - y[:, None]) ** 2, axis=0) / y.var()


def published(
    found: Cells, U: np.ndarray, data: Data, train: np.ndarray, test: np.ndarray, seed: int
) -> None:
    """Add the published algorithms for every (M, lambda); y is centred in its declared range."""
    low, high = data.y_bounds  # type: ignore[misc]
    middle, bound = (low + high) / 2, (high - low) / 2
    y = np.clip(data.y[train], low, high) - middle
    n = len(train)
    some = (
        test[:1000] if n <= 2000 else test
    )  # the exact projection takes n^3 with the test rows in it
    inputs = np.vstack([U[train], U[some]]) / (0.7 * math.sqrt(U.shape[1]))
    for method, cls in (
        ("published Algorithm 1", PublishedAlgorithm1),
        ("published Algorithm 3", PublishedAlgorithm3),
    ):
        if cls is PublishedAlgorithm1 and n > 2000:
            continue
        for M in SIZES:
            if cls is PublishedAlgorithm1:
                Z = gaussian_process_projection(inputs, M, random_state=seed)
            else:
                cosines = PublishedAlgorithm3(n_features=M, random_state=seed)
                cosines.n_features_in_ = U.shape[1]
                Z = cosines.transform(inputs)
            for key, epsilon, delta in settings(n):
                model = cls(
                    epsilon, delta, n_features=M, target_bound=bound, noise=SeededNoise(seed)
                ).fit_features(Z[:n], y)
                path = ridge_path(model.gram_, model.cross_, PENALTIES)
                predictions = np.clip(Z[n:] @ path, -bound, bound) + middle
                columns = error(predictions, data.y[some])
                before = found.get((method, key, epsilon), np.empty(0))
                found[method, key, epsilon] = np.concatenate([before, columns])


def descent(
    train_inputs: np.ndarray,
    test_inputs: np.ndarray,
    data: Data,
    train: np.ndarray,
    test: np.ndarray,
    budget: Budget,
    seed: int,
) -> np.ndarray:
    """Return errors of noisy gradient descent for every (steps, clip): half squared residuals."""
    d = train_inputs.shape[1]
    features = WhitenedFeatures(100, length_scale=0.7 * math.sqrt(d)).build(d)
    Z = [
        np.column_stack([np.ones(len(v)), features.transform_block(v)])
        for v in (train_inputs, test_inputs)
    ]
    weights = np.sqrt(np.concatenate([[1.0], features.spectrum / features.spectrum[0]]))
    Z = [z * weights for z in Z]
    radius = float(np.linalg.norm(weights))
    lengths = np.linalg.norm(Z[0], axis=1)
    low, high = data.y_bounds  # type: ignore[misc]
    y = 2 * (np.clip(data.y[train], low, high) - low) / (high - low) - 1
    mu, draws = gaussian_mu(budget.epsilon, budget.delta), np.random.default_rng(seed)
    errors = []
    for steps in (5, 20, 100):
        for clip in (0.1, 0.3, 1.0):
            sigma = 2 * clip * radius * math.sqrt(steps) / mu / len(y)
            w = np.zeros(Z[0].shape[1])
            largest = clip * np.minimum(
                1.0, radius / lengths
            )  # of a slope, gradients being clipped
            for _ in range(steps):
                slopes = np.clip(Z[0] @ w - y, -largest, largest)
                w -= 0.5 * (slopes @ Z[0] / len(y) + sigma * draws.normal(size=len(w)))
            predictions = (np.clip(Z[1] @ w, -1, 1) + 1) / 2 * (high - low) + low
            errors.append(error(predictions, data.y[test]))
    return np.concatenate(errors)


def kernel_ridge(U: np.ndarray, data: Data, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Return the error of kernel ridge regression, exact up to 4000 rows, by Nystroem beyond."""
    gammas = [v / U.shape[1] for v in (0.3, 1.0, 3.0)]
    middle = data.y[train].mean()
    some = train[:4000]  # enough rows to choose by
    if len(train) <= 4000:
        grid = {"alpha": [1e-3, 1e-2, 1e-1, 1.0], "gamma": gammas}
        search = GridSearchCV(KernelRidge(kernel="rbf"), grid, cv=3)
    else:
        model = make_pipeline(Nystroem(n_components=1000, random_state=0), Ridge())
        grid = {"ridge__alpha": [1e-3, 1e-2, 1e-1, 1.0], "nystroem__gamma": gammas}
        search = GridSearchCV(model, grid, cv=3, refit=False)
    search.fit(U[some], data.y[some] - middle)
    if len(train) <= 4000:
        best = search.best_estimator_
    else:
        best = model.set_params(**search.best_params_).fit(U[train], data.y[train] - middle)
    return error(best.predict(U[test]) + middle, data.y[test])


def speed(console: Console, n_rows: int = 100_000, d: int = 20) -> None:
    """Print the time of one fit next to scikit-learn's, in one run."""
    draws = np.random.default_rng(0)
    X = draws.uniform(-1, 1, (n_rows, d))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * draws.normal(size=n_rows)
    start = time.perf_counter()
    PrivateKernelRegressor(bounds=(-1, 1), y_bounds=(-3, 3)).fit(X, y)
    ours = time.perf_counter() - start
    start = time.perf_counter()
    make_pipeline(Nystroem(n_components=250, gamma=0.5 / d, random_state=0), Ridge()).fit(X, y)
    theirs = time.perf_counter() - start
    console.print(
        f"n = {n_rows}, d = {d}: PrivateKernelRegressor {ours:.1f} s, Nystroem(250) + Ridge"
        f" {theirs:.1f} s; ratio {ours / theirs:.1f}"
    )


def show(name: str, n_train: int, cells: list[Cells], console: Console) -> list[dict[str, Any]]:
    """Print one table for each delta; return its lines."""
    lines = []
    for key in DELTAS:
        table = Table(title=f"{name}, {n_train} rows, delta = {key}, {len(cells)} splits")
        table.add_column("method", no_wrap=True)
        for epsilon in EPSILONS:
            table.add_column(f"eps {epsilon:.3g}", justify="right", no_wrap=True)
        for method in dict.fromkeys(method for method, _, _ in cells[0]):
            texts = []
            for place, epsilon in [(key, e) for e in EPSILONS] + [("", 0.0)]:
                if (method, place, epsilon) not in cells[0]:
                    continue
                grid = np.array([c[method, place, epsilon] for c in cells])
                best = grid[:, int(np.argmin(grid.mean(axis=0)))]
                spread = best.std(ddof=1) / math.sqrt(len(best)) if len(best) > 1 else math.nan
                texts.append(f"{best.mean():.3f} ({spread:.3f})")
                lines.append(
                    {
                        "table": name,
                        "rows": n_train,
                        "method": method,
                        "delta": place,
                        "epsilon": epsilon,
                        "relative_error": best.mean(),
                        "standard_error": spread,
                        "splits": len(best),
                    }
                )
            table.add_row(method, *texts)
        console.print(table)
    return lines


def main() -> None:
    """Measure, print and write ``bench-report/regression.csv``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--tables", nargs="*", default=[*DEVELOPMENT, *REPORTED])
    parser.add_argument("--no-rivals", action="store_true", help="only dpkernel and references")
    parser.add_argument("--speed", action="store_true", help="only the speed of one fit")
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--out", type=Path, default=Path("bench-report"))
    options = parser.parse_args()
    console = Console(width=130)
    if options.speed:
        speed(console)
        return
    lines: list[dict[str, Any]] = []
    sizes = {**DEVELOPMENT, **REPORTED}
    with ProcessPoolExecutor(options.jobs) as pool:
        for name in options.tables:
            if load(name) is None:
                console.print(f"{name}: not at hand (set DPKERNEL_DATA)")
                continue
            for n_train in sizes[name]:
                waiting = [
                    pool.submit(repetition, name, n_train, seed, not options.no_rivals)
                    for seed in range(options.repetitions)
                ]
                cells = [future.result() for future in track(waiting, f"{name} {n_train}")]
                lines += show(name, n_train, cells, console)
    if lines:
        options.out.mkdir(parents=True, exist_ok=True)
        with (options.out / "regression.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(lines[0]))
            writer.writeheader()
            writer.writerows(lines)


if __name__ == "__main__":
    main()
