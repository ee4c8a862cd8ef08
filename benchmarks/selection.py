"""What private selection of the length scale gains and costs, at one total epsilon.

``DPKERNEL_DATA=folder python benchmarks/selection.py [--splits 3]``. Explained variance on held-out rows
of kernel ridge with the default length scale, with the best of five candidates (chosen on the test
rows: an oracle), and with ``PrivateSearchCV``. A wave that the default misses (n = 20,000, d = 2, noise
0.1) and two tables that it fits; mean and standard deviation over splits, real entropy. Then what the
same choice costs with scikit-learn's ``GridSearchCV`` at the same budget a fit, by the ledger.
"""

from __future__ import annotations

import argparse
import math
import warnings

import numpy as np
from datasets import load
from provenance import write
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_limits

from dpkernel import Budget, Ledger, PrivateKernelRidge, PrivateSearchCV

FACTORS = (0.1, 0.25, 0.5, 0.7, 1.4)  # times the square root of the columns; 0.7 is the default
EPSILONS, ROWS = (1.0, 3.0), 20_000


def wave(split: int) -> tuple:
    """Return X, y, X_test, f, bounds and y_bounds of a target with many bumps."""
    draws = np.random.default_rng(split)
    X, X_test = draws.uniform(-1, 1, (ROWS, 2)), draws.uniform(-1, 1, (5000, 2))

    def f(X: np.ndarray) -> np.ndarray:
        return np.sin(10 * X[:, 0]) * np.cos(6 * X[:, 1])

    return X, f(X) + 0.1 * draws.normal(size=ROWS), X_test, f(X_test), (-1, 1), (-1.5, 1.5)


def table(name: str, split: int) -> tuple:
    """Return a split of a stored table."""
    data = load(name)
    train, test = data.split(min(ROWS, int(0.8 * len(data.y))), split)
    return data.X[train], data.y[train], data.X[test], data.y[test], data.bounds, data.y_bounds


def explained(model: object, X: np.ndarray, y: np.ndarray) -> float:
    """Return 1 - MSE / variance."""
    return 1 - float(np.mean((model.predict(X) - y) ** 2) / y.var())


def measure(parts: tuple, epsilon: float) -> list[float]:
    """Return default, oracle, and the two searches."""
    X, y, X_test, y_test, bounds, y_bounds = parts
    scales = [factor * math.sqrt(X.shape[1]) for factor in FACTORS]
    ridge = PrivateKernelRidge(epsilon, bounds=bounds, y_bounds=y_bounds)
    all_of_them = [
        explained(ridge.set_params(length_scale=scale).fit(X, y), X_test, y_test)
        for scale in scales
    ]
    ridge.set_params(length_scale="auto")
    found = [explained(ridge.fit(X, y), X_test, y_test), max(all_of_them)]
    for strategy in ("exponential", "random-stopping"):
        search = PrivateSearchCV(
            ridge, {"length_scale": scales}, epsilon=epsilon, strategy=strategy
        )
        found.append(explained(search.fit(X, y), X_test, y_test))
    return found


def cost_of_grid_search() -> str:
    """Return what scikit-learn's grid search costs where a private search costs epsilon 1."""
    X, y, _, _, bounds, y_bounds = wave(0)
    grid = {"length_scale": [factor * math.sqrt(2) for factor in FACTORS]}
    ridge = PrivateKernelRidge(bounds=bounds, y_bounds=y_bounds)
    plan = PrivateSearchCV(ridge, grid, epsilon=1.0).plan(ROWS, 2)
    ledger = Ledger(budget=Budget(1000.0, 1e-6), accounting="gaussian")
    ridge.set_params(epsilon=plan.refit.epsilon, ledger=ledger)
    GridSearchCV(ridge, grid, cv=3).fit(X, y)
    return (
        f"5 candidates, {plan.refit} for the final model: GridSearchCV (3 folds and a refit)"
        f" {len(ledger.spends)} fits, epsilon = {ledger.spent.epsilon:.3g}, with un-noised scores on"
        f" top; PrivateSearchCV epsilon = 1, scores included"
    )


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--splits", type=int, default=3)
    splits = parser.parse_args().splits
    names = ("default", "best of five (oracle)", "exponential", "random stopping")
    rows = [["target", "epsilon", *names]]
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        for target in ("wave", "california", "power"):
            if target != "wave" and load(target) is None:
                continue
            for epsilon in EPSILONS:
                found = np.array(
                    [
                        measure(wave(s) if target == "wave" else table(target, s), epsilon)
                        for s in range(splits)
                    ]
                )
                cells = zip(found.mean(axis=0), found.std(axis=0, ddof=1), strict=True)
                spread = [f"{mean:.3f} ({deviation:.3f})" for mean, deviation in cells]
                print(target, f"{epsilon:g}", *spread, flush=True)
                rows.append([target, f"{epsilon:g}", *(f"{m:.3f}" for m in found.mean(axis=0))])
        print(cost_of_grid_search())
    write("selection.csv", rows)


if __name__ == "__main__":
    main()
