"""Draw the pictures of ``docs/comparison.md``, one per table, from ``benchmarks/results/rivals.csv``."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
COLOURS = {
    "dpkernel": "#d62728",
    "DP-SGD network": "#1f77b4",
    "DP-SGD network, best on the test rows": "#1f77b4",
    "boosted random trees": "#2ca02c",
    "boosted random trees, best on the test rows": "#2ca02c",
    "DP-EBM": "#9467bd",
    "diffprivlib linear": "#7f7f7f",
    "diffprivlib forest": "#8c564b",
}
REFERENCES = {"kernel, not private": "--", "trees, not private": ":"}
Points = list[tuple[float, float, float]]  # epsilon, error, standard error


def read(path: Path) -> dict[str, dict[str, Points]]:
    """Return the points of each method on each table."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found: dict[str, dict[str, Points]] = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        point = float(row["epsilon"]), float(row["error"]), float(row["standard error"])
        found[row["table"]][row["method"]].append(point)
    return found


def picture(table: str, methods: dict[str, Points]) -> Figure:
    """Return the errors of all methods against epsilon, on logarithmic axes."""
    figure = Figure(figsize=(6.5, 3.6), layout="constrained")
    axes = figure.add_subplot(title=table, xscale="log", yscale="log", xlabel="epsilon")
    axes.set_ylabel("error on test rows")
    for method, colour in COLOURS.items():
        if method in methods:
            epsilons, errors, spreads = zip(*sorted(methods[method]), strict=True)
            line = ":" if "best" in method else "-"
            width = 2.4 if method == "dpkernel" else 1.2
            axes.errorbar(
                epsilons,
                errors,
                spreads,
                fmt=line,
                marker=".",
                color=colour,
                lw=width,
                label=method,
            )
    for method, line in REFERENCES.items():
        if method in methods:
            axes.axhline(methods[method][0][1], color="black", ls=line, lw=1, label=method)
    drawn = [error for points in methods.values() for _, error, _ in points]
    axes.set_ylim(0.8 * min(drawn), min(1.25 * max(drawn), 2.0))
    ticks = sorted({e for points in methods.values() for e, _, _ in points if math.isfinite(e)})
    axes.set_xticks(ticks, [f"{epsilon:g}" for epsilon in ticks])
    axes.minorticks_off()
    shown = [v for v in (0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2) if _within(v, axes.get_ylim())]
    axes.set_yticks(shown, [f"{value:g}" for value in shown])
    figure.legend(loc="outside right upper", frameon=False, fontsize="x-small")
    return figure


def _within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def main() -> None:
    """Write a picture per table; the same numbers give the same file."""
    mpl.rcParams.update({"svg.hashsalt": "dpkernel", "svg.fonttype": "none"})
    for table, methods in read(ROOT / "benchmarks/results/rivals.csv").items():
        path = ROOT / "docs/pictures" / f"rivals_{table}.svg"
        picture(table, methods).savefig(path, metadata={"Date": None})
        print("written:", path.relative_to(ROOT))


if __name__ == "__main__":
    main()
