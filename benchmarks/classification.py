"""How accurate and how fast private kernel classification is.

``python benchmarks/classification.py [--seeds 20] [--speed]``, with DPKERNEL_DATA set.

Share of wrong labels on test rows, mean and standard error over random splits; defaults untouched,
declared bounds. Rivals: full-batch noisy gradient descent on kernel features, with the step size and the
number of steps that are best on the test rows in the mean (a gift), and, not private, logistic
regression on a Nystroem map. Noise is seeded, so that the table can be repeated. It is written to
``results/classification.csv``. ``--speed`` measures one large fit instead.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from datasets import Data, load
from provenance import write
from rich.console import Console
from scipy.special import expit
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from dpkernel import Domain, PrivateKernelClassifier, SeededNoise
from dpkernel.estimators.records import RecordRecipe
from dpkernel.models.features import PublicEigenfeatures
from dpkernel.privacy.profiles import gaussian_mu

EPSILONS = (0.1, 1.0, 10.0)
DELTA = 1e-6
TABLES = {"breast_cancer": 455, "adult": 16_000, "covtype": 16_000}
STEPS = (10, 50, 200)
RATES = (0.5, 2.0, 8.0)

Score = Callable[[Data, np.ndarray, np.ndarray, float, int], Any]


def ours(data: Data, train: np.ndarray, test: np.ndarray, epsilon: float, seed: int) -> float:
    """Return the error of PrivateKernelClassifier."""
    model = PrivateKernelClassifier(
        epsilon, DELTA, classes=data.classes, bounds=data.bounds, noise=SeededNoise(seed)
    ).fit(data.X[train], data.y[train])
    return 1 - float(model.score(data.X[test], data.y[test]))


def noisy_gradient_descent(
    data: Data, train: np.ndarray, test: np.ndarray, epsilon: float, seed: int
) -> np.ndarray:
    """Return test errors for all steps and rates: logistic loss, gradients of norm <= 1."""
    low, high = data.bounds
    domain = Domain.box(low, high, n_columns=data.X.shape[1])
    d = data.X.shape[1]
    base = PublicEigenfeatures(max(128, d + 2), length_scale=0.7 * math.sqrt(d)).build(d)
    recipe, _ = RecordRecipe.choose(domain, base, len(train), 1.0)
    around = recipe.around(np.zeros(base.n_outputs))  # the public centre
    z = np.vstack([around.rows(data.X[i : i + 4096])[0] for i in range(0, len(data.X), 4096)])
    labels = np.where(data.y == data.classes[1], 1.0, -1.0)  # type: ignore[index]
    draws = np.random.default_rng(seed)
    found = []
    for steps in STEPS:
        sigma = 2 * math.sqrt(steps) / gaussian_mu(epsilon, DELTA) / len(train)
        for rate in RATES:
            w = np.zeros(z.shape[1])
            for _ in range(steps):
                slope = -labels[train] * expit(-labels[train] * (z[train] @ w))
                w -= rate * (slope @ z[train] / len(train) + sigma * draws.normal(size=len(w)))
            found.append(np.mean(np.where(z[test] @ w >= 0, 1.0, -1.0) != labels[test]))
    return np.array(found)


def not_private(
    data: Data, train: np.ndarray, test: np.ndarray, epsilon: float, seed: int
) -> float:
    """Return the error of scikit-learn's logistic regression on a Nystroem map."""
    map_ = Nystroem(n_components=300, gamma=0.5 / data.X.shape[1], random_state=seed)
    model = make_pipeline(StandardScaler(), map_, LogisticRegression(C=10, max_iter=500))
    X = np.clip(data.X, *data.bounds)
    return 1 - float(model.fit(X[train], data.y[train]).score(X[test], data.y[test]))


METHODS: dict[str, Score] = {
    "`PrivateKernelClassifier`": ours,
    "noisy gradient descent, best setting": noisy_gradient_descent,
}


def errors(name: str, n_train: int, seeds: int) -> list[list[str]]:
    """Return the lines of one table."""
    data = load(name)
    if data is None:
        print(f"{name}: not at hand (set DPKERNEL_DATA)")
        return []
    splits = [(seed, *data.split(n_train, seed)) for seed in range(seeds)]

    def cell(score: Score, epsilon: float) -> str:
        return _cell([score(data, train, test, epsilon, seed) for seed, train, test in splits])

    lines = [
        ["", label, *(cell(score, e) for e in EPSILONS), ""] for label, score in METHODS.items()
    ]
    lines[0][0], lines[0][-1] = name, cell(not_private, 0.0)
    return lines


def speed(console: Console, n_rows: int = 200_000, d: int = 90, size: int = 1000) -> None:
    """Print the time of a logistic fit next to scikit-learn's, in one run."""
    draws = np.random.default_rng(0)
    X = draws.uniform(-1, 1, (n_rows, d))
    y = (np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.3 * draws.normal(size=n_rows) > 0).astype(int)
    model = PrivateKernelClassifier(
        1.0,
        DELTA,
        classes=[0, 1],
        loss="logistic",
        bounds=(-1, 1),
        n_features=size,
        features="fourier",
    )
    start = time.perf_counter()
    own = model.fit(X, y).score(X[:20_000], y[:20_000])
    ours_s = time.perf_counter() - start
    rival = make_pipeline(
        Nystroem(n_components=size, gamma=0.5 / d, random_state=0), LogisticRegression()
    )
    start = time.perf_counter()
    theirs = rival.fit(X, y).score(X[:20_000], y[:20_000])
    theirs_s = time.perf_counter() - start
    console.print(
        f"n = {n_rows}, d = {d}, M = {size}: PrivateKernelClassifier {ours_s:.1f} s (score {own:.3f}),"
        f" Nystroem + LogisticRegression {theirs_s:.1f} s ({theirs:.3f}); ratio {theirs_s / ours_s:.2f}"
    )


def _cell(values: list[Any]) -> str:
    """Return mean and standard error of the setting with the best mean."""
    grid = np.array(values).reshape(len(values), -1)
    best = grid[:, int(np.argmin(grid.mean(axis=0)))]
    return f"{best.mean():.3f} ({best.std(ddof=1) / math.sqrt(len(best)):.3f})"


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--speed", action="store_true", help="only the speed of one large fit")
    options = parser.parse_args()
    if options.speed:
        speed(Console(width=120))
        return
    rows = [["table", "method", *(f"epsilon {e:g}" for e in EPSILONS), "not private"]]
    with threadpool_limits(1):
        for name, n_train in TABLES.items():
            seeds = options.seeds if name == "breast_cancer" else min(options.seeds, 3)
            rows += errors(name, n_train, seeds)
            print(*rows[-2:], sep="\n", flush=True)
    write("classification.csv", rows)


if __name__ == "__main__":
    main()
