"""Estimators that read a table several times, on a GPU: their rate against that of their bare passes.

Rows lie on the device. Bare: the same features, computed once and kept, and as many gradients and
Hessians as the fit took, with nothing around them; whatever else a fit does counts against it. Rates
are those of further rows, from fits of two sizes, so that the time of planning and of solving is not
part of them; the seconds of the larger fit are all of it.

    PYTHONPATH=src:benchmarks python benchmarks/records_gpu.py --out $OUT
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rows import write

from dpkernel import (
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateQuantileRegressor,
    SeededNoise,
)
from dpkernel.estimators import torch_records
from dpkernel.estimators.device_rows import block_twin
from dpkernel.methods import PrivateSGDRegressor

COLUMNS = 10
BLOCK = 65_536
BOX: dict[str, Any] = {"bounds": (-1, 1), "y_bounds": (-3, 3), "random_state": 0}
ESTIMATORS: dict[str, Callable[..., Any]] = {
    "regressor": lambda **k: PrivateKernelRegressor(**BOX, **k),
    "quantiles": lambda **k: PrivateQuantileRegressor(quantile=[0.1, 0.9], **BOX, **k),
    "classifier": lambda **k: PrivateKernelClassifier(classes=[0, 1], bounds=(-1, 1), **k),
    "SGD": lambda **k: PrivateSGDRegressor(perturbation="gradient", **BOX, **k),
}


def synchronised() -> float:
    """Return the time when the device has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Work:
    """How many gradients and Hessians of how many rows a fit takes."""

    def __init__(self) -> None:
        self.gradients, self.curved = 0, 0.0

    def counting(self, method: Callable[..., Any], curved: bool) -> Callable[..., Any]:
        """Return a job that counts itself."""

        def call(*arguments: Any) -> Any:
            self.gradients += 1
            stride = arguments[4] if curved else 0  # every so many blocks; -1 is every block
            self.curved += 1 / abs(stride) if stride else 0
            return method(*arguments)

        return call


def fitted(name: str, X: Any, y: Any) -> tuple[Any, float, Work]:
    """Return a model, the seconds of its fit, and its work."""
    work = Work()
    kept = torch_records.sum_records, torch_records.sum_gradients
    torch_records.sum_records = work.counting(kept[0], True)
    torch_records.sum_gradients = work.counting(kept[1], False)
    try:
        start = synchronised()
        model = ESTIMATORS[name]().fit(X, y)
        return model, synchronised() - start, work
    finally:
        torch_records.sum_records, torch_records.sum_gradients = kept


def bare(model: Any, X: Any, y: Any, work: Work) -> float:
    """Return the seconds of the bare passes of this fit."""
    device = X.device
    twin = block_twin(model.feature_map_, "float32", None, device)
    size = model.feature_map_.n_outputs
    beta = torch.zeros(size, dtype=torch.float64, device=device)
    start = synchronised()
    blocks = [
        (twin(X[a : a + BLOCK]), y[a : a + BLOCK].to(torch.float64))
        for a in range(0, len(X), BLOCK)
    ]
    for _ in range(work.gradients):
        gradient = torch.zeros_like(beta)
        for z, target in blocks:
            wide = z.to(torch.float64)
            gradient += wide.T @ (target - wide @ beta).clamp(-1, 1)
    for _ in range(round(work.curved)):
        bend = torch.zeros((size, size), device=device)
        for z, _ in blocks:
            bend += z.T @ z
    return synchronised() - start


def table(n_rows: int, name: str, device: str) -> tuple[Any, Any]:
    """Return rows and targets on the device."""
    draws = torch.Generator(device).manual_seed(0)
    X = 2 * torch.rand((n_rows, COLUMNS), generator=draws, device=device) - 1
    y = X[:, 0] + X[:, 1] * X[:, 2]
    y = y + 0.1 * torch.randn(n_rows, generator=draws, device=device)
    return X, (y > 0).to(torch.int64) if name == "classifier" else y


def apart(name: str, n_rows: int, device: str) -> float:
    """Return how far predictions are from those of a fit on NumPy, relative to the largest."""
    X, y = table(n_rows, name, device)
    rows, targets = X.cpu().numpy(), y.cpu().numpy()
    models = [ESTIMATORS[name](noise=SeededNoise(1)).fit(*t) for t in ((X, y), (rows, targets))]
    scores = [(m.decision_function if name == "classifier" else m.predict)(rows) for m in models]
    return float(np.abs(scores[0] - scores[1]).max() / np.abs(scores[1]).max())


def main() -> None:
    """Measure every estimator."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rows", type=int, nargs=2, default=[1_000_000, 4_000_000])
    options.add_argument("--agree", type=int, default=20_000)
    options.add_argument("--only", nargs="+", choices=ESTIMATORS, default=list(ESTIMATORS))
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = options.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    lines = []
    for name in given.only:
        difference = apart(name, given.agree, device)  # it also warms up
        ours, loops = [], []
        for n in given.rows:
            X, y = table(n, name, device)
            model, seconds, work = fitted(name, X, y)
            bare(model, X[:BLOCK], y[:BLOCK], work)
            ours.append(seconds)
            loops.append(bare(model, X, y, work))
        more = (given.rows[1] - given.rows[0]) / 1e6
        rates = [more / (pair[1] - pair[0]) for pair in (ours, loops)]
        lines.append(
            [name, model.feature_map_.n_outputs, work.gradients, round(work.curved), f"{ours[1]:.2f}",
             f"{rates[0]:.3g}", f"{rates[1]:.3g}", f"{rates[0] / rates[1]:.2f}", f"{difference:.0e}"]
        )  # fmt: skip
        print(*lines[-1], flush=True)
    head = ["estimator", "features", "gradients", "Hessians of all rows",
            f"seconds for {given.rows[1]:,} rows", "million rows/s", "bare", "share",
            "difference from NumPy"]  # fmt: skip
    write(given.out / "scaling_gpu.csv", head, lines)


if __name__ == "__main__":
    main()
