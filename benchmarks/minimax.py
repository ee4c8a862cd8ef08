"""Theorem 10 of Lee, Park & Ahn without knowing the law of the inputs: excess risks against n epsilon.

``python benchmarks/minimax.py [--repetitions 10]``: one input with the density 1 + 0.6 cos(2 pi x) on
[0, 1], a target with coefficients l^(-1.1) in the cosine system (r = gamma = beta = 1/2), noise of
0.1, epsilon = 0.1 and delta = 1e-6. All methods use the same d cosines, with the d of the theorem:

    canonical, uniform inputs    Theorem 10's estimator where its assumption holds
    canonical, other inputs      the same where the inputs have another law than it assumes
    noisy gradients              PrivateSGDRegressor on the cosines, which knows the box alone
    noisy Gram matrix            PrivateKernelRidge on the cosines, which knows the box alone
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from provenance import made_by
from rich.console import Console
from rich.progress import track

from dpkernel import PrivateKernelRidge, SeededNoise
from dpkernel.methods import PrivateSGDRegressor
from dpkernel.proof.papers import PublishedCanonicalEstimator
from dpkernel.proof.papers.lee_park_ahn_2025 import CosineSystem, canonical_estimator, theorem_10

OUT = Path(__file__).parent / "results" / "minimax.csv"
SIZES = (1000, 10_000, 100_000)
EPSILON, DELTA, TERMS = 0.1, 1e-6, 400
EXPONENTS = {"r": 0.5, "gamma": 0.5, "beta": 0.5}
_GRID = np.linspace(0, 1, 100_001)
_MASS = _GRID + 0.3 / math.pi * np.sin(2 * math.pi * _GRID)  # the integral of the density


def target(x: np.ndarray) -> np.ndarray:
    """Return f at points of [0, 1]; its values lie in [-1, 1]."""
    k = np.arange(1, TERMS)
    signs = np.where(k % 3 == 0, -1.0, 1.0)
    return np.cos(math.pi * x[:, None] * k) @ (0.25 * signs * k**-1.1)


def inputs(n: int, uniform: bool, rng: np.random.Generator) -> np.ndarray:
    """Return n inputs, as a table of one column."""
    u = rng.uniform(0, 1, n)
    return (u if uniform else np.interp(u, _MASS, _GRID))[:, None]


def methods(n: int) -> dict[str, tuple[bool, Callable[[int], Any]]]:
    """Return every method: whether its inputs are uniform, and how to build it with a seed."""
    d = canonical_estimator(n, EPSILON, DELTA, **EXPONENTS).n_coefficients
    box = {"bounds": (0, 1), "y_bounds": (-1, 1), "features": CosineSystem(max(d, 2))}

    def canonical(seed: int) -> Any:
        options = {**EXPONENTS, "reading": "corrected", "noise": SeededNoise(seed)}
        return PublishedCanonicalEstimator(EPSILON, DELTA, **options)

    return {
        "canonical, uniform inputs": (True, canonical),
        "canonical, other inputs": (False, canonical),
        "noisy gradients": (
            False,
            lambda seed: PrivateSGDRegressor(EPSILON, DELTA, **box, noise=SeededNoise(seed)),
        ),
        "noisy Gram matrix": (
            False,
            lambda seed: PrivateKernelRidge(EPSILON, DELTA, **box, noise=SeededNoise(seed)),
        ),
    }


def excess(model: Any, uniform: bool, n: int, seed: int) -> float:
    """Return the excess risk of a fit, on new inputs of the same law."""
    rng = np.random.default_rng([seed, n, uniform])
    X, new = inputs(n, uniform, rng), inputs(4000, uniform, rng)
    y = np.clip(target(X[:, 0]) + 0.1 * rng.normal(size=n), -1, 1)
    return float(np.mean((model.fit(X, y).predict(new) - target(new[:, 0])) ** 2))


def main() -> None:
    """Measure and write the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--repetitions", type=int, default=10)
    runs = options.parse_args().repetitions
    names = list(methods(SIZES[0]))
    rows = [["method", *(f"n = {n}" for n in SIZES), "power of n"]]
    rate = [theorem_10(n, EPSILON, **EXPONENTS).total for n in SIZES]
    for name in track(names, console=Console(stderr=True)):
        found = []
        for n in SIZES:
            uniform, build = methods(n)[name]
            found.append(np.mean([excess(build(seed), uniform, n, seed) for seed in range(runs)]))
        rows.append([name, *(f"{v:.2g}" for v in found), f"{_power(found):.2f}"])
    rows.append(
        ["rate of Theorem 10, constant 1", *(f"{v:.2g}" for v in rate), f"{_power(rate):.2f}"]
    )
    with OUT.open("w", newline="", encoding="utf-8") as file:
        file.write(made_by())
        csv.writer(file, lineterminator="\n").writerows(rows)


def _power(values: Any) -> float:
    """Return the slope of log(values) in log(n)."""
    return float(np.polyfit(np.log(SIZES), np.log(values), 1)[0])


if __name__ == "__main__":
    main()
