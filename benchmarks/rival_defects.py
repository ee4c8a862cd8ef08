"""What one record does to a number that interpret's DP-EBM releases; part of ``make rivals``.

One column, one round of boosting, claimed epsilon = 1. The released statistic is the sum of the targets,
read off the released scores and bin weights; its noise is scaled to the width of the declared range, and
one record more moves it by up to the largest target. Written to ``results/rivals_defects.csv``.
"""

from __future__ import annotations

import csv
import math
import warnings
from pathlib import Path

import numpy as np
from interpret.privacy import DPExplainableBoostingRegressor
from provenance import made_by

OUT = Path(__file__).parent / "results" / "rivals_defects.csv"
FITS = 40  # to each data set


def released(n_rows: int, low: float, high: float) -> float:
    """Return the noisy sum of targets at the top of [low, high], from one fit to ``n_rows`` rows."""
    model = DPExplainableBoostingRegressor(
        epsilon=1.0,
        delta=1e-6,
        max_rounds=1,
        max_leaves=2,
        feature_types=["continuous"],
        privacy_bounds=np.array([[-1.0, 1.0]]),
        privacy_target_min=low,
        privacy_target_max=high,
        n_jobs=1,
    )
    model.fit(np.zeros((n_rows, 1)), np.full(n_rows, high))
    scores = np.asarray(model.term_scores_[0]) + model.intercept_
    weights = np.asarray(model.bin_weights_[0])
    return float(scores @ weights / model.learning_rate)


def main() -> None:
    """Measure both data sets and write a line per declared range."""
    warnings.simplefilter("ignore")
    lines = [
        ["declared range of the target", "1,000 records", "1,001 records", "standard deviation"]
    ]
    lines[0] += ["move in standard deviations", "what (1, 1e-6) allows a Gaussian"]
    for low, high in ((1000.0, 1001.0), (-1.0, 1.0)):
        sums = [[released(n, low, high) for _ in range(FITS)] for n in (1000, 1001)]
        spread = float(np.mean([np.std(s, ddof=1) for s in sums]))
        before, after = (float(np.mean(s)) for s in sums)
        moved = f"{abs(after - before) / spread:.1f} ± {math.sqrt(2 / FITS):.1f}"
        shown = [f"{before:,.0f}", f"{after:,.0f}", f"{spread:.0f}", moved, "0.24"]
        lines.append([f"[{low:g}, {high:g}]", *shown])
    with OUT.open("w", newline="", encoding="utf-8") as file:
        file.write(made_by())
        csv.writer(file, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    main()
