"""How often the stated errors and intervals of the regressor hold on other rows of real tables.

``python benchmarks/errors.py``; needs the tables (DPKERNEL_DATA).
It writes benchmarks/results/errors.csv.

Defaults untouched, epsilon = 1, delta = 1e-6, means over splits.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from pathlib import Path

import numpy as np
from datasets import Data, load
from outlook import model_of
from provenance import made_by

from dpkernel.estimators.regressor.scale import ErrorLaw

TABLES = {
    "california": 16_000,
    "diamonds": 16_000,
    "power": 7600,
    "year": 5000,
    "wine_white": 3900,
    "airfoil": 1200,
}
LEVELS = (0.5, 0.9, 0.95)
OUT = Path(__file__).parent / "results" / "errors.csv"


def measured(data: Data, n_rows: int, seed: int) -> list[float]:
    """Return shares of other rows inside, the stated deviation and the error, relative to the range."""
    train, test = data.split(n_rows, seed, 5000)
    model = model_of(data, 1.0, seed).fit(data.X[train], data.y[train])
    mean, deviation = model.predict(data.X[test], return_std=True)
    off = np.abs(mean - data.y[test])
    found = model.certificate_.free_statistics
    law = ErrorLaw.from_dict(found["errors"][0])
    shares = [float(np.mean(off <= law.quantile(level)[0])) for level in LEVELS]
    ends = model.predict_interval(data.X[test], 0.9)
    inside = (ends[:, 0] <= data.y[test]) & (data.y[test] <= ends[:, 1])
    normal = [float(np.mean(off <= factor * deviation)) for factor in (1.645, 1.96)]
    sizes = [found["residual_scale"][0], float(np.sqrt(np.mean(off**2)))]
    return [*shares, float(np.mean(inside)), *normal, *sizes]


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=3)
    splits = parser.parse_args().splits
    warnings.simplefilter("ignore")
    head = ["table", "rows", *(f"within the stated {level:.0%}" for level in LEVELS)]
    head += ["interval of 90%", "1.64 deviations (90%)", "1.96 deviations (95%)"]
    head += ["stated deviation", "root mean squared error"]
    lines: list[list[str]] = []
    for name, n_rows in TABLES.items():
        data = load(name)
        if data is None:
            raise SystemExit(f"{name}: not at hand (set DPKERNEL_DATA)")
        mean = np.mean([measured(data, n_rows, seed) for seed in range(splits)], axis=0)
        line = [name, str(n_rows), *(f"{v:.1%}" for v in mean[:6]), *(f"{v:.3g}" for v in mean[6:])]
        print(*line, flush=True)
        lines.append(line)
    with OUT.open("w", encoding="utf-8", newline="") as file:
        file.write(made_by())
        csv.writer(file, lineterminator="\n").writerows([head, *lines])


if __name__ == "__main__":
    main()
