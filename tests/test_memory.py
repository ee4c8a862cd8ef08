"""The memory of a fit does not grow with the file that it reads. Every fit is a process of its own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

FIT = """
import resource, sys
from dpkernel import *
name, path, columns = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = dict(epsilon=1.0, delta=1e-6, bounds=(-1, 1), n_features=int(sys.argv[4]))
if name == "classifier":
    model = PrivateKernelClassifier(classes=[0, 1], **options)
else:
    kind = {"ridge": PrivateKernelRidge, "regressor": PrivateKernelRegressor}[name]
    model = kind(y_bounds=(-1, 1), **options)
inputs = [f"x{j}" for j in range(columns)]
target = "label" if name == "classifier" else "y"
model.fit(BlockStream.from_parquet(path, target, inputs))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
COMMAND = """
import resource, sys
from dpkernel.cli import app
try:
    app(sys.argv[1:])
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def blocks(n_rows, columns, step=16_384):
    rng = np.random.default_rng(0)
    for start in range(0, n_rows, step):
        X = rng.uniform(-1, 1, (min(step, n_rows - start), columns))
        yield X, X[:, 0], (X[:, 0] > 0).astype(np.int64)


def parquet(path, n_rows, columns):
    arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    writer = None
    for X, y, label in blocks(n_rows, columns):
        table = arrow.table({f"x{j}": X[:, j] for j in range(columns)} | {"y": y, "label": label})
        writer = writer or files.ParquetWriter(path, table.schema)
        writer.write_table(table)
    writer.close()
    return path


def peak(code, *words):
    """Return the largest resident size of a process, in MB."""
    found = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return int(found.stdout.split()[-1])


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory in the units of Linux")
@pytest.mark.parametrize("name", ["ridge", "classifier"])
def test_peak_memory_does_not_grow_with_a_parquet_file(tmp_path, monkeypatch, name):
    """80 MB more on disk; what Arrow reads ahead or a fit keeps in memory would show."""
    monkeypatch.setenv("DPKERNEL_MEMORY", "0")
    columns = 40
    paths = [parquet(tmp_path / f"{n}", n, columns) for n in (25_000, 250_000)]
    assert paths[1].stat().st_size > paths[0].stat().st_size + 70 * 2**20
    small, large = (peak(FIT, name, path, columns, 16) for path in paths)
    assert large < small + 40


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts memory in the units of Linux")
def test_a_parquet_file_of_a_gigabyte_needs_less_than_600_megabytes(tmp_path):
    path = parquet(tmp_path / "big.parquet", 1_300_000, 100)
    assert path.stat().st_size > 2**30
    for name in ("ridge", "classifier", "regressor"):
        assert peak(FIT, name, path, 100, 100) < 600


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts memory in the units of Linux")
def test_a_csv_file_of_a_gigabyte_needs_less_than_600_megabytes(tmp_path):
    names = [f"x{j}" for j in range(100)]
    rules = "".join(f"[columns.{n}]\nlow = -1\nhigh = 1\n" for n in names)
    (tmp_path / "y.toml").write_text(rules + "[columns.y]\nlow = -1\nhigh = 1\n")
    (tmp_path / "label.toml").write_text(rules + '[columns.label]\nlevels = ["0", "1"]\n')
    text = None
    for target in ("y", "label"):
        path = tmp_path / f"{target}.csv"
        with path.open("w", encoding="utf-8") as file:
            file.write(",".join([*names, target]) + "\n")
            for X, y, label in blocks(16_384, 100):
                value = y if target == "y" else label
                text = "".join(
                    ",".join(f"{v:.15g}" for v in (*row, last)) + "\n"
                    for row, last in zip(X.tolist(), value.tolist(), strict=True)
                )
            for _ in range(-(-(2**30) // len(text))):
                file.write(text)
    for name, target in (("ridge", "y"), ("regressor", "y"), ("classifier", "label")):
        task = "classification" if target == "label" else "regression"
        own = ["--estimator", "PrivateKernelRidge"] if name == "ridge" else []
        words = ["--bounds", tmp_path / f"{target}.toml", "--target", target, "--task", task, *own]
        words += ["--out", tmp_path / f"{name}.dpk", "--set", "n_features=100"]
        assert peak(COMMAND, "fit", tmp_path / f"{target}.csv", *words) < 600
