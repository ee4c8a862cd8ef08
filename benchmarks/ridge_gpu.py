"""The torch pass on a GPU: speed against bare loops, agreement with NumPy, rows from the host.

``PYTHONPATH=src:benchmarks python benchmarks/ridge_gpu.py [--rows 4000000] [--stream-rows 100000000]``

Bare: the same loop in torch with nothing around it (float32 product, cos and sin, float64 product),
the faster of two ways to write it. Ours: features, exact integer sum, the check for missing values;
once in bytes (Triton) and once in float64 (every feature map, and where Triton is missing).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from ridge import COLUMNS, recipe_of, table_of

from dpkernel import PrivateKernelRidge
from dpkernel.data.sources import Source
from dpkernel.data.tensors import check_tensors
from dpkernel.estimators import torch_pass
from dpkernel.estimators.gram_pass import Recipe, gram_of_blocks
from dpkernel.privacy.folds import GramFolds

DEVICE = torch.device("cuda", 0)


def times(action: Callable[[], object], repeats: int = 3) -> np.ndarray:
    """Return seconds, sorted, of a few runs after one to warm up."""
    found = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return np.sort(found[1:])


def bare(X: torch.Tensor, W: torch.Tensor, step: int, buffered: bool) -> torch.Tensor:
    """Do the float32 features and the float64 sum with nothing around them."""
    half = W.shape[1]
    total = torch.zeros((2 * half, 2 * half), dtype=torch.float64, device=DEVICE)
    buffer = torch.empty((step, 2 * half), device=DEVICE)
    for start in range(0, len(X), step):
        phase = X[start : start + step] @ W
        if buffered:
            block = buffer[: len(phase)]
            torch.cos(phase, out=block[:, :half])
            torch.sin(phase, out=block[:, half:])
        else:
            block = torch.cat((torch.cos(phase), torch.sin(phase)), dim=1)
        wide = block.to(torch.float64)
        total += wide.T @ wide
    return total


def summed(X: torch.Tensor, y: torch.Tensor, recipe: Recipe) -> GramFolds:
    """Sum in the fastest way that there is."""
    return torch_pass.sum_tensors(Source("torch", len(X), X.shape[1], (), X, y), recipe)


def in_float64(X: torch.Tensor, y: torch.Tensor, recipe: Recipe) -> GramFolds:
    """Sum as if Triton were missing."""
    kernels, torch_pass._kernels_run = torch_pass._kernels_run, lambda device: False
    try:
        return summed(X, y, recipe)
    finally:
        torch_pass._kernels_run = kernels


def speed(rows: int) -> None:
    """Print rows a second for rows that lie on the device."""
    X = torch.randn((rows, COLUMNS), device=DEVICE)
    y = torch.tanh(X[:, 0]).to(torch.float64)
    table = Table("M", "bare", "ours", "share", "ours in float64", "share", title="million rows/s")
    for features in (512, 1024, 2048):
        recipe = recipe_of(rows, features)
        W, step = torch.randn((COLUMNS, features // 2), device=DEVICE), recipe.layout.block_rows
        loops = [times(lambda b=b, W=W, step=step: bare(X, W, step, b)) for b in (False, True)]
        best = min(loops, key=lambda found: found[0])
        cells = [str(features), span(rows, best)]
        for way in (summed, in_float64):
            found = times(lambda way=way, recipe=recipe: way(X, y, recipe))
            cells += [span(rows, found), f"{best[0] / found[0]:.2f}"]
        table.add_row(*cells)
    Console(width=110).print(table)


def span(rows: int, found: np.ndarray) -> str:
    """Return the slowest and the fastest run."""
    return f"{rows / found[-1] / 1e6:.1f} to {rows / found[0] / 1e6:.1f}"


def agreement(rows: int = 100_000) -> None:
    """Print how far the device's integers are from NumPy's."""
    X, y = table_of(rows)
    for features, declared in ((512, 10**6), (1024, 10**6), (2048, 10**6), (1024, rows)):
        recipe = recipe_of(declared, features)
        expected = gram_of_blocks([(X, y)], recipe)._folds[0]._sum
        line = f"M = {features}, radius {recipe.layout.row}: largest difference to NumPy's sum"
        for name, way in (("bytes", summed), ("float64", in_float64)):
            found = way(torch.as_tensor(X), torch.as_tensor(y), recipe)._folds[0]._sum
            line += f", {name} {np.abs(found - expected).max() / np.abs(expected).max():.1e}"
        print(line)


def streamed(rows: int) -> None:
    """Print the time of the pass and of a fit at M = 1024 whose rows lie in pinned host memory."""
    X = torch.empty((rows, COLUMNS), pin_memory=True)
    for start in range(0, rows, 1 << 22):
        part = X[start : start + (1 << 22)]
        part.copy_(torch.randn(part.shape, device=DEVICE))
    y = torch.tanh(X[:, 0]).to(torch.float64)
    block = torch.empty((1 << 22, COLUMNS), device=DEVICE)
    size = min(len(block), rows)
    copy = times(lambda: block[:size].copy_(X[:size], non_blocking=True))
    print(f"host to device: {size * COLUMNS * 4 / copy[0] / 1e9:.1f} GB/s")
    recipe = recipe_of(rows, 1024)
    options = {"bounds": (-3, 3), "y_bounds": (-1, 1), "features": "fourier", "n_features": 1024}
    for name, action in (
        ("a check for missing values by itself", lambda: check_tensors(X, y)),
        ("the pass", lambda: summed(X, y, recipe)),
        ("the whole fit", lambda: PrivateKernelRidge(**options).fit(X, y)),
    ):
        found = times(action, repeats=2)
        print(f"{rows} rows from the host, {name}: {found[0]:.2f} to {found[-1]:.2f} s")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--stream-rows", type=int, default=0)
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    print("kernels run:", torch_pass._kernels_run(DEVICE))
    speed(options.rows)
    agreement()
    if options.stream_rows:
        streamed(options.stream_rows)


if __name__ == "__main__":
    main()
