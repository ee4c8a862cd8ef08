"""Speed and memory of the one pass of PrivateKernelRidge, as ratios in one run.

``make bench``, or ``python benchmarks/ridge.py [--rows 200000] [--gpu]``.

CPU: the pass (features + exact integer Gram) against the bare BLAS calls of the same sizes (float32
product and cos/sin for the features, float64 symmetric product for the sum), against scikit-learn's
Nystroem + Ridge and RBFSampler + Ridge, the slope in n, and the peak memory above the input.
GPU (``--gpu``, needs torch): the pass on tensors against the same loop written bare in torch.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from dpkernel import Budget, Neighbours, PrivateKernelRidge
from dpkernel.domain import Domain, Interval
from dpkernel.estimators.gram_pass import Recipe, sum_blocks
from dpkernel.features import FourierFeatures
from dpkernel.statistics import GramLayout

COLUMNS, FEATURES = 90, 1000
DOMAIN = Domain(tuple(Interval(-3, 3) for _ in range(COLUMNS)), Interval(-1, 1))


def seconds(action: Callable[[], object], repeats: int = 2) -> float:
    """Return the best of a few runs after one to warm up."""
    action()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def table_of(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a table of single-precision normals and a smooth target."""
    draws = np.random.default_rng(0)
    X = draws.standard_normal((n, COLUMNS), dtype=np.float32)
    return X, np.tanh(X[:, 0] + X[:, 1]).astype(np.float64)


def recipe_of(n: int, features: int = FEATURES) -> Recipe:
    """Return what PrivateKernelRidge(features="fourier") would run."""
    built = FourierFeatures(features, length_scale=0.7 * COLUMNS**0.5).build(COLUMNS)
    relation = Neighbours.REPLACE_ONE
    layout = GramLayout.choose(features, 1, 1.0, relation, n, Budget(1.0, 1e-6))
    return Recipe(DOMAIN, built, layout, "float32")


def bare(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Do the float32 features and the float64 sum with nothing around them."""
    draws = np.random.default_rng(1)
    W = draws.standard_normal((COLUMNS, FEATURES // 2)).astype(np.float32)
    total = np.zeros((FEATURES, FEATURES))
    Z = np.empty((4096, FEATURES), np.float32)
    for start in range(0, len(X), 4096):
        phase = X[start : start + 4096] @ W
        block = Z[: len(phase)]
        np.cos(phase, out=block[:, : FEATURES // 2])
        np.sin(phase, out=block[:, FEATURES // 2 :])
        wide = block.astype(np.float64)
        total += wide.T @ wide
    return total


def cpu(rows: int) -> None:
    """Print the CPU tables."""
    from sklearn.kernel_approximation import Nystroem, RBFSampler
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline

    X, y = table_of(rows)
    gamma = 1 / (2 * 0.49 * COLUMNS)
    ours = PrivateKernelRidge(
        bounds=(-3, 3), y_bounds=(-1, 1), features="fourier", n_features=FEATURES
    )
    lines = [
        ("bare BLAS and cos/sin", seconds(lambda: bare(X, y))),
        (
            "one pass (features + exact Gram)",
            seconds(lambda: sum_blocks([(X, y)], recipe_of(rows))),
        ),
        ("PrivateKernelRidge.fit, whole", seconds(lambda: ours.fit(X, y))),
    ]
    for name, sampler in (
        ("Nystroem(1000) + Ridge", Nystroem(gamma=gamma, n_components=FEATURES, random_state=0)),
        (
            "RBFSampler(1000) + Ridge",
            RBFSampler(gamma=gamma, n_components=FEATURES, random_state=0),
        ),
    ):
        model = make_pipeline(sampler, Ridge())
        lines.append((name, seconds(lambda m=model: m.fit(X, y), repeats=1)))
    table = Table("what", "seconds", "ratio to bare", "ratio to ours", title=f"n = {rows}")
    for name, value in lines:
        table.add_row(
            name, f"{value:.2f}", f"{value / lines[0][1]:.2f}", f"{value / lines[2][1]:.2f}"
        )
    Console().print(table)
    slope = Table("rows", "seconds", "microseconds a row", title="fit time against n")
    for n in (10_000, 100_000, rows):
        part = seconds(lambda n=n: ours.fit(X[:n], y[:n]), repeats=1)
        slope.add_row(str(n), f"{part:.2f}", f"{1e6 * part / n:.1f}")
    Console().print(slope)


def memory(rows: int) -> None:
    """Print the peak memory above the input, measured in a process of its own."""
    code = (
        "import resource, sys; sys.path.insert(0, 'benchmarks'); import ridge;"
        f"X, y = ridge.table_of({rows}); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "ridge.PrivateKernelRidge(bounds=(-3, 3), y_bounds=(-1, 1), features='fourier',"
        " n_features=1000).fit(X, y);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    print(f"peak memory above the input at n = {rows}: {int(found.stdout) / 1024:.0f} MB")


def gpu(rows: int) -> None:
    """Print rows a second on the GPU, against the same loop written bare."""
    import torch

    from dpkernel.estimators.torch_pass import sum_tensors

    device = torch.device("cuda")
    X = torch.randn((rows, COLUMNS), dtype=torch.float32, device=device)
    y = torch.tanh(X[:, 0]).to(torch.float64)
    table = Table("M", "ours, million rows/s", "bare, million rows/s", "share")
    for features in (512, 1024, 2048):
        recipe = recipe_of(rows, features)
        W = torch.randn((COLUMNS, features // 2), device=device)
        step = recipe.layout.block_rows

        def loop(W: object = W, step: int = step, features: int = features) -> object:
            total = torch.zeros((features, features), dtype=torch.float64, device=device)
            for start in range(0, rows, step):
                phase = X[start : start + step] @ W
                Z = torch.cat((torch.cos(phase), torch.sin(phase)), dim=1).to(torch.float64)
                total += Z.T @ Z
            torch.cuda.synchronize()
            return total

        def ours(recipe: Recipe = recipe) -> object:
            return sum_tensors(X, y, recipe)

        mine, theirs = seconds(ours, 3), seconds(loop, 3)
        table.add_row(
            str(features),
            f"{rows / mine / 1e6:.1f}",
            f"{rows / theirs / 1e6:.1f}",
            f"{theirs / mine:.2f}",
        )
    Console().print(table)


def streamed(rows: int) -> None:
    """Print the time of a fit at M = 1024 whose rows stream from host memory."""
    import torch

    X = torch.empty((rows, COLUMNS), dtype=torch.float32, pin_memory=True)
    for start in range(0, rows, 1 << 22):
        X[start : start + (1 << 22)].normal_()
    y = torch.tanh(X[:, 0]).to(torch.float64)
    model = PrivateKernelRidge(
        bounds=(-3, 3), y_bounds=(-1, 1), features="fourier", n_features=1024
    )
    start_time = time.perf_counter()
    model.fit(X, y)
    took = time.perf_counter() - start_time
    speed = rows / took / 1e6
    print(f"{rows} rows streamed from host memory, M = 1024: {took:.1f} s, {speed:.1f} M rows/s")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--stream-rows", type=int, default=0)
    options = parser.parse_args()
    if options.gpu:
        gpu(options.rows)
        if options.stream_rows:
            streamed(options.stream_rows)
    else:
        cpu(options.rows)
        memory(options.rows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of this process: {peak:.2f} GB")


if __name__ == "__main__":
    main()
