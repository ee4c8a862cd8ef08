"""How accurate and how fast private kernel classification is.

``make bench-classification``, or ``python benchmarks/classification.py [--seeds 20] [--speed]``.

Test accuracy, mean and standard error over random splits; defaults untouched, declared bounds. Rivals:
full-batch noisy gradient descent on the same features, with the step size and the number of steps that
are best on the test rows in the mean (a gift); objective perturbation on linear features; the published
Algorithm 4 with the regularisation that is best on the test rows; and, not private, logistic regression
on a Nystroem map and on the columns. Noise is seeded, so that a table can be repeated.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from datasets import Data, load
from rich.console import Console
from rich.table import Table
from scipy.special import expit
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

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


def ours(**options: object) -> Score:
    """Return the accuracy of PrivateKernelClassifier with these options."""

    def score(data: Data, train: np.ndarray, test: np.ndarray, epsilon: float, seed: int) -> float:
        model = PrivateKernelClassifier(
            epsilon,
            DELTA,
            classes=data.classes,
            bounds=data.bounds,
            noise=SeededNoise(seed),
            **options,
        ).fit(data.X[train], data.y[train])
        return float(model.score(data.X[test], data.y[test]))

    return score


def noisy_gradient_descent(
    data: Data, train: np.ndarray, test: np.ndarray, epsilon: float, seed: int
) -> np.ndarray:
    """Return test accuracies for all steps and rates: logistic loss, gradients of norm <= 1."""
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
            found.append(np.mean(np.where(z[test] @ w >= 0, 1.0, -1.0) == labels[test]))
    return np.array(found)


def not_private(kernel: bool) -> Score:
    """Return the accuracy of scikit-learn's logistic regression."""

    def score(data: Data, train: np.ndarray, test: np.ndarray, epsilon: float, seed: int) -> float:
        steps = [
            StandardScaler(),
            Nystroem(n_components=300, gamma=0.5 / data.X.shape[1], random_state=seed),
        ]
        model = make_pipeline(*steps[: 2 if kernel else 1], LogisticRegression(C=10, max_iter=500))
        low, high = data.bounds
        X = np.clip(data.X, low, high)
        return float(model.fit(X[train], data.y[train]).score(X[test], data.y[test]))

    return score


METHODS: dict[str, Score] = {
    "PrivateKernelClassifier": ours(),
    "  with loss='logistic'": ours(loss="logistic"),
    "  with kernel='linear'": ours(kernel="linear"),
    "noisy gradient descent (oracle)": noisy_gradient_descent,
}
REFERENCES = {
    "logistic regression, kernel": not_private(True),
    "logistic regression, linear": not_private(False),
}


def accuracy(name: str, n_train: int, seeds: int, console: Console) -> None:
    """Print one table."""
    data = load(name)
    if data is None:
        console.print(f"{name}: not at hand (set DPKERNEL_DATA)")
        return
    table = Table(title=f"{name}: {n_train} rows, delta = {DELTA:g}, {seeds} splits")
    table.add_column("method")
    for epsilon in EPSILONS:
        table.add_column(f"eps {epsilon:g}", justify="right")
    splits = [(seed, *data.split(n_train, seed)) for seed in range(seeds)]
    for method, score in METHODS.items():
        cells = [[score(data, a, b, e, s) for s, a, b in splits] for e in EPSILONS]
        table.add_row(method, *(_cell(values) for values in cells))
    for method, score in REFERENCES.items():
        values = [score(data, a, b, 0.0, s) for s, a, b in splits[: min(seeds, 5)]]
        table.add_row(f"{method} (not private)", "", "", _cell(values))
    console.print(table)


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
    values = grid[:, int(np.argmax(grid.mean(axis=0)))]
    spread = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{np.mean(values):.4f} ± {spread:.4f}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tables", nargs="*", default=list(TABLES))
    parser.add_argument("--speed", action="store_true", help="only the speed of one large fit")
    options = parser.parse_args()
    console = Console(width=120)
    if options.speed:
        speed(console)
        return
    for name in options.tables:
        seeds = options.seeds if name == "breast_cancer" else min(options.seeds, 5)
        accuracy(name, TABLES[name], seeds, console)


if __name__ == "__main__":
    main()
