"""Speed and memory of PrivateKernelRidge, as ratios in one run.

``make bench``, or ``python benchmarks/ridge.py [--rows 200000] [--repeats 3] [--gpu]``.

CPU, each action of a table once in every repeat, the best time and the worst:

- the pass (features + exact integer Gram) against the bare BLAS calls of the same sizes (float32
  product and cos/sin for the features, float64 symmetric product for the sum);
- the whole fit on double-precision rows against scikit-learn's Nystroem + Ridge and RBFSampler +
  Ridge with as many features, and against KernelRidge, which is cubic in n;
- the slope in n, up to a million rows;
- the published Algorithm 1, cubic in n by its Cholesky factor of the kernel matrix;
- peak memory above the input, in processes of their own.

On a machine that others use, too, ``OPENBLAS_NUM_THREADS=1 ... --cpu-seconds`` counts the seconds of
this process alone.

GPU (``--gpu``, needs torch): the pass on tensors against the same loop written bare in torch.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
from rich.console import Console
from rich.table import Table

from dpkernel import BlockStream, Budget, Neighbours, PrivateKernelRidge
from dpkernel.data.domain import Domain, Interval
from dpkernel.data.sources import Source
from dpkernel.estimators.gram_pass import Recipe, sum_source
from dpkernel.models.features import FourierFeatures
from dpkernel.privacy.statistics import GramLayout
from dpkernel.proof.papers import PublishedAlgorithm1

COLUMNS, FEATURES = 90, 1000
DOMAIN = Domain(tuple(Interval(-3, 3) for _ in range(COLUMNS)), Interval(-1, 1))
GAMMA = 1 / (2 * 0.49 * COLUMNS)  # the length scale that "auto" stands for


clock = time.perf_counter


def seconds(action: Callable[[], object], repeats: int = 2) -> float:
    """Return the best of a few runs after one to warm up."""
    action()
    return compare({"": action}, repeats)[""][0]


def compare(
    actions: dict[str, Callable[[], object]], repeats: int
) -> dict[str, tuple[float, float]]:
    """Return the best and the worst time of each action; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            start = clock()
            action()
            times[name].append(clock() - start)
    return {name: (min(found), max(found)) for name, found in times.items()}


def show(title: str, times: dict[str, tuple[float, float]], reference: str) -> None:
    """Print times, and how many times longer than the reference the best ones are."""
    table = Table("what", "best, s", "worst, s", f"ratio to {reference}", title=title)
    for name, (best, worst) in times.items():
        table.add_row(name, f"{best:.3f}", f"{worst:.3f}", f"{best / times[reference][0]:.2f}")
    Console().print(table)


def table_of(n: int, columns: int = COLUMNS, dtype: str = "f8") -> tuple[np.ndarray, np.ndarray]:
    """Return a table of normals and a smooth target, made without another array of its size."""
    draws = np.random.default_rng(0)
    X = draws.standard_normal(out=np.empty((n, columns), dtype), dtype=np.dtype(dtype))
    return X, np.tanh(X[:, 0] + X[:, 1]).astype(np.float64)


def ours(features: int = FEATURES) -> PrivateKernelRidge:
    """Return the estimator that is measured."""
    return PrivateKernelRidge(
        bounds=(-3, 3), y_bounds=(-1, 1), features="fourier", n_features=features
    )


def recipe_of(n: int, features: int = FEATURES) -> Recipe:
    """Return what PrivateKernelRidge(features="fourier") would run."""
    built = FourierFeatures(features, length_scale=0.7 * COLUMNS**0.5).build(COLUMNS)
    relation = Neighbours.REPLACE_ONE
    layout = GramLayout.choose(features, 1, 1.0, relation, n, Budget(1.0, 1e-6))
    return Recipe(DOMAIN, built, layout, "float32")


def bare(X: np.ndarray) -> np.ndarray:
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


def one_pass(rows: int, repeats: int) -> None:
    """Compare the pass with the bare calls, on single-precision rows."""
    X, y = table_of(rows, dtype="f4")
    source = Source("array", rows, COLUMNS, (), X, y)
    recipe = recipe_of(rows)
    actions = {
        "bare": lambda: bare(X),
        "one pass": lambda: sum_source(source, recipe),
        "whole fit": lambda: ours().fit(X, y),
    }
    bare(X[:8192])
    show(f"n = {rows}, d = {COLUMNS}, M = {FEATURES}, float32", compare(actions, repeats), "bare")


def against_scikit_learn(repeats: int) -> None:
    """Compare whole fits on double-precision rows."""
    from sklearn.kernel_approximation import Nystroem, RBFSampler
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline

    X, y = table_of(100_000)
    options = {"gamma": GAMMA, "n_components": FEATURES, "random_state": 0}
    actions = {
        "ours": lambda: ours().fit(X, y),
        "Nystroem + Ridge": lambda: make_pipeline(Nystroem(**options), Ridge()).fit(X, y),
        "RBFSampler + Ridge": lambda: make_pipeline(RBFSampler(**options), Ridge()).fit(X, y),
    }
    title = f"n = {len(X)}, d = {COLUMNS}, M = {FEATURES}, float64"
    show(title, compare(actions, repeats), "ours")
    for n in (1000, 2500, 5000):
        exact = KernelRidge(kernel="rbf", gamma=GAMMA, alpha=1.0)
        actions = {
            "ours": lambda n=n: ours().fit(X[:n], y[:n]),
            "KernelRidge": lambda n=n, exact=exact: exact.fit(X[:n], y[:n]),
        }
        show(f"n = {n}, d = {COLUMNS}, M = {FEATURES}", compare(actions, repeats), "ours")


def slope(repeats: int) -> None:
    """Print the time of a fit against n."""
    columns, features = 20, 256
    X, y = table_of(1_000_000, columns)
    table = Table("rows", "best, s", "worst, s", "microseconds a row")
    table.title = f"whole fit against n, d = {columns}, M = {features}, float64"
    for n in (10_000, 100_000, 1_000_000):
        action = {"": lambda n=n: ours(features).fit(X[:n], y[:n])}
        best, worst = compare(action, repeats)[""]
        table.add_row(f"{n}", f"{best:.3f}", f"{worst:.3f}", f"{1e6 * best / n:.2f}")
    Console().print(table)


def published(repeats: int) -> None:
    """Print fit and prediction of 100 rows, ours beside the published Algorithm 1."""
    features, tests = 200, 100
    table = Table("rows", "published, s", "ours, s", "ratio")
    table.title = f"fit and predict {tests} rows, d = 10, M = {features}"
    X, y = table_of(4000 + tests, 10)
    for n in (500, 1000, 2000, 4000):
        paper = PublishedAlgorithm1(n_features=features, target_bound=1.0, length_scale=2.0)
        actions = {
            "paper": lambda n=n, paper=paper: paper.fit_predict(X[:n], y[:n], X[-tests:]),
            "ours": lambda n=n: ours(features).fit(X[:n], y[:n]).predict(X[-tests:]),
        }
        times = compare(actions, repeats)
        table.add_row(
            f"{n}",
            *(f"{times[name][0]:.3f} (worst {times[name][1]:.3f})" for name in actions),
            f"{times['paper'][0] / times['ours'][0]:.1f}",
        )
    Console().print(table)


def memory() -> None:
    """Print peak memory above the input, each in a process of its own."""
    table = Table("rows", "input", "peak above it, MB", title=f"d = {COLUMNS}, M = {FEATURES}")
    for kind in ("array", "stream"):
        for rows in (10_000, 100_000, 1_000_000):
            command = [sys.executable, __file__, "--memory", kind, "--rows", str(rows)]
            found = subprocess.run(command, capture_output=True, text=True, check=True)
            table.add_row(f"{rows}", kind, found.stdout.strip())
    Console().print(table)


def memory_of(kind: str, rows: int) -> None:
    """Fit, and print by how much the peak memory of this process grew, in MB."""

    def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, rows, 4096):
            yield table_of(min(4096, rows - start))

    table = (BlockStream(blocks, rows),) if kind == "stream" else table_of(rows)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ours().fit(*table)
    print(f"{(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024:.0f}")


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
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpu-seconds", action="store_true")
    parser.add_argument("--memory", choices=("array", "stream"), help=argparse.SUPPRESS)
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--stream-rows", type=int, default=0)
    options = parser.parse_args()
    if options.cpu_seconds:
        global clock
        clock = time.process_time
    if options.memory:
        memory_of(options.memory, options.rows)
    elif options.gpu:
        gpu(options.rows)
        if options.stream_rows:
            streamed(options.stream_rows)
    else:
        one_pass(options.rows, options.repeats)
        against_scikit_learn(options.repeats)
        slope(options.repeats)
        published(options.repeats)
        memory()


if __name__ == "__main__":
    main()
