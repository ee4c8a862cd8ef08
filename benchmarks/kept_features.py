"""What a file of features saves a fit whose features do not fit into memory.

``OPENBLAS_NUM_THREADS=1 python benchmarks/kept_features.py [--rows 20000]``. Each estimator is fitted
twice to made-up rows, with 500 features and nothing kept in memory: once without a place for features
anywhere, and once with a file. Counts how often the features of all rows are computed, and the seconds
of the processor. The table is written to ``results/kept_features.csv``.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from provenance import write
from threadpoolctl import threadpool_limits

import dpkernel
from dpkernel import (
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateQuantileRegressor,
    SeededNoise,
)
from dpkernel.methods import PrivateSGDRegressor
from dpkernel.models.features.base import REGISTRY

COLUMNS, FEATURES = 10, 500
NUMBERS = {"y_bounds": (-3.0, 3.0)}
ESTIMATORS: list[tuple[Any, dict[str, Any]]] = [
    (PrivateKernelRegressor, NUMBERS),
    (PrivateKernelClassifier, {"classes": [False, True]}),
    (PrivateQuantileRegressor, {"quantile": [0.1, 0.5, 0.9], **NUMBERS}),
    (PrivateSGDRegressor, NUMBERS),
]
computed = 0  # rows whose features were computed


def count(cls: Any) -> None:
    """Let a class of feature maps count its rows."""
    inner = cls.transform_block

    def transform_block(self: Any, X: np.ndarray) -> np.ndarray:
        global computed
        computed += len(X)
        return inner(self, X)

    cls.transform_block = transform_block


def measured(cls: Any, options: dict[str, Any], rows: int, disk: int | None) -> list[str]:
    """Return how often the features of all rows were computed in a fit, and its seconds."""
    global computed
    dpkernel.set_cache(memory=0, disk=disk)
    draws = np.random.default_rng(0)
    X = draws.uniform(-1, 1, (rows, COLUMNS))
    y = np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * draws.normal(size=rows)
    target = y > 0 if "classes" in options else y
    model = cls(bounds=(-1, 1), n_features=FEATURES, noise=SeededNoise(0), **options)
    computed, start = 0, time.process_time()
    model.fit(X, target)
    return [f"{computed / rows:.0f}", f"{time.process_time() - start:.1f}"]


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    rows = parser.parse_args().rows
    for cls in {*REGISTRY.values()}:
        if "transform_block" in vars(cls):
            count(cls)
    heads = ("computations of all features, without a file", "CPU seconds, without a file")
    lines = [["estimator", *(cell for head in heads for cell in (head, "with a file"))]]
    with threadpool_limits(1):
        for cls, options in ESTIMATORS:
            without, with_file = (measured(cls, options, rows, disk) for disk in (0, None))
            pairs = zip(without, with_file, strict=True)
            lines.append([f"`{cls.__name__}`", *(cell for pair in pairs for cell in pair)])
            print(lines[-1], flush=True)
    write("kept_features.csv", lines)


if __name__ == "__main__":
    main()
