"""Time of a classifier on torch tensors: on a GPU where there is one, next to NumPy on the CPU.

``python benchmarks/classification_gpu.py [--rows 2000000]``.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from dpkernel import PrivateKernelClassifier, SeededNoise


def main() -> None:
    """Print seconds of one fit, and how far the two models are apart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--small", type=int, default=100_000)
    options = parser.parse_args()
    draws = np.random.default_rng(0)
    X = draws.uniform(-1, 1, (options.rows, 20)).astype(np.float32)
    y = (np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] > 0).astype(np.int64)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def build() -> PrivateKernelClassifier:
        return PrivateKernelClassifier(
            1.0,
            classes=[0, 1],
            bounds=(-1, 1),
            features="fourier",
            n_features=1024,
            noise=SeededNoise(1),
        )

    small = slice(0, options.small)
    models = []
    for name, rows, labels in (
        ("NumPy", X[small], y[small]),
        (f"torch on {device}", torch.as_tensor(X[small]), torch.as_tensor(y[small])),
    ):
        start = time.perf_counter()
        models.append(build().fit(rows, labels))
        print(f"{name}: {options.small} rows in {time.perf_counter() - start:.1f} s", flush=True)
    apart = np.abs(models[0].coef_ - models[1].coef_).max() / np.abs(models[0].coef_).max()
    print(f"largest difference of a coefficient, relative to the largest one: {apart:.1e}")
    start = time.perf_counter()
    model = build().fit(torch.as_tensor(X, device=device), torch.as_tensor(y, device=device))
    print(f"torch on {device}: {options.rows} rows in {time.perf_counter() - start:.1f} s")
    print(f"accuracy {model.score(X[:20_000], y[:20_000]):.3f}")


if __name__ == "__main__":
    main()
