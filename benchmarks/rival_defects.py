"""Defects of rivals, measured; part of ``make rivals``.

DP-EBM of interpret: one column, one round of boosting, claimed epsilon = 1. The released statistic is
the sum of the targets, read off the released scores and bin weights; its noise is scaled to the width
of the declared range, and one record more moves it by up to the largest target. Written to
``results/rivals_defects.csv``.

diffprivlib: what its accountant knows of a grid search, whether noise differs between fits with one
``random_state``, and what one record outside its bounds does. Written to
``results/rivals_diffprivlib.csv``.
"""

from __future__ import annotations

import csv
import math
import warnings
from pathlib import Path

import numpy as np
from diffprivlib import BudgetAccountant
from diffprivlib.models import LinearRegression
from interpret.privacy import DPExplainableBoostingRegressor
from provenance import made_by
from sklearn.model_selection import GridSearchCV

RESULTS = Path(__file__).parent / "results"
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


def boosting() -> list[list[str]]:
    """Measure DP-EBM on two data sets that differ in one record, for two declared ranges."""
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
    return lines


def linear(X: np.ndarray, y: np.ndarray, **options: object) -> float:
    """Return the slope of a regression with epsilon = 1 and all values declared in [-1, 1]."""
    model = LinearRegression(epsilon=1.0, bounds_X=(-1, 1), bounds_y=(-1, 1), **options)
    return float(np.ravel(model.fit(X, y).coef_)[0])


def linear_models() -> list[list[str]]:
    """Try what a user of diffprivlib's linear regression may do, and say what happens."""
    X = np.linspace(-1, 1, 1000)[:, None]
    y = X[:, 0] / 2
    accountant = BudgetAccountant()
    model = LinearRegression(bounds_X=(-1, 1), bounds_y=(-1, 1), accountant=accountant)
    GridSearchCV(model, {"epsilon": [0.5, 1.0]}, cv=5, refit=False).fit(X, y)
    lines = [["what was tried", "what was seen", "what a guarantee needs"]]
    lines.append(
        [
            "a grid search of 10 fits with epsilon 0.5 and 1, with an accountant",
            f"the accountant says epsilon = {accountant.total()[0]:g}",
            "at least the largest epsilon of a fit",
        ]
    )
    slopes = {linear(X, y, random_state=0) for _ in range(10)}
    lines.append(
        ["10 fits with `random_state=0`", f"{len(slopes)} different slope", "new noise in each fit"]
    )
    outside = y.copy()
    outside[0] = -1e6
    for option in (True, False):
        pair = [
            np.median([linear(X, v, fit_intercept=option) for _ in range(FITS)])
            for v in (y, outside)
        ]
        lines.append(
            [
                f"`fit_intercept={option}`, and one target of 1,000 set to -1,000,000",
                f"the median slope goes from {pair[0]:.2f} to {pair[1]:,.2f}",
                "clipping to the declared range",
            ]
        )
    return lines


def main() -> None:
    """Write both tables."""
    warnings.simplefilter("ignore")
    tables = {"rivals_defects": boosting(), "rivals_diffprivlib": linear_models()}
    for name, lines in tables.items():
        with (RESULTS / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            file.write(made_by())
            csv.writer(file, lineterminator="\n").writerows(lines)


if __name__ == "__main__":
    main()
