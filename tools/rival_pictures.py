"""Draw the pictures of the comparison from ``benchmarks/results/rivals.csv``.

There is one per table for ``docs/comparison.md``, and one over all tables for the front page and the
README, in a light and a dark version.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections import defaultdict
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
COLOURS = {
    "dpkernel": "#d62728",
    "DP-SGD network": "#1f77b4",
    "DP-SGD network, oracle": "#1f77b4",
    "boosted random trees": "#2ca02c",
    "boosted random trees, oracle": "#2ca02c",
    "DP-EBM": "#9467bd",
    "diffprivlib linear": "#7f7f7f",
    "diffprivlib forest": "#8c564b",
}
CLASSES = ("adult", "covtype", "spambase", "breast_cancer", "digits")
KINDS = {"regression": "Unexplained share of variance", "classes": "Share of wrong labels"}
THEMES = {"": ("black", "white"), "_dark": ("#ced6dd", "none")}  # text and background
REFERENCES = {"kernel, not private": "--", "trees, not private": ":"}
Points = list[tuple[float, float, float]]  # epsilon, error, standard error
Found = dict[str, dict[str, Points]]  # by table and method


def read(path: Path) -> Found:
    """Return the points of each method on each table."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found: Found = defaultdict(lambda: defaultdict(list))
    for row in csv.DictReader(line for line in lines if not line.startswith("#")):
        point = float(row["epsilon"]), float(row["error"]), float(row["standard error"])
        found[row["table"]][row["method"]].append(point)
    return found


def picture(table: str, methods: dict[str, Points]) -> Figure:
    """Return the errors of all methods on one table against epsilon, on logarithmic axes."""
    figure = Figure(figsize=(4.8, 4.4), layout="constrained")
    axes = figure.add_subplot(title=table)
    measured = {epsilon for epsilon, _, _ in methods["dpkernel"]}  # others were measured beyond
    for method, colour in COLOURS.items():
        if method in methods:
            line = ":" if "oracle" in method else "-"
            width = 2.4 if method == "dpkernel" else 1.2
            points = sorted(point for point in methods[method] if point[0] in measured)
            at, errors, spreads = zip(*points, strict=True)
            look = {"fmt": line, "marker": ".", "color": colour, "lw": width, "label": method}
            axes.errorbar(at, errors, spreads, **look)
    for method, line in REFERENCES.items():
        if method in methods:
            axes.axhline(methods[method][0][1], color="black", ls=line, lw=1, label=method)
    shown = [error for points in methods.values() for _, error, _ in points]
    _scale(axes, (0.8 * min(shown), min(1.25 * max(shown), 2.0)), sorted(measured))
    axes.set_ylabel("error on test rows")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize="small")
    return figure


def overview(found: Found, kind: str, ink: str, paper: str) -> Figure:
    """Return the typical error of each method over tables of one kind, in colours of a theme.

    Typical is the geometric mean over the tables on which every plotted method was measured. Of each
    rival it is the version with public settings, which is the one that a user can have.
    """
    methods = [m for m in COLOURS if "oracle" not in m]
    if kind == "regression":
        methods.remove("diffprivlib forest")  # there is none
    tables = [table for table in found if kind_of(table) == kind and {*methods} <= {*found[table]}]
    figure = Figure(figsize=(4.3, 4.1), layout="constrained", facecolor=paper)
    axes = figure.add_subplot(facecolor=paper)
    epsilons = sorted(epsilon for epsilon, _, _ in found[tables[0]]["dpkernel"])
    for method in methods:
        errors = [typical(found, tables, method, epsilon) for epsilon in epsilons]
        width = 3 if method == "dpkernel" else 1.4
        axes.plot(epsilons, errors, "o-", color=COLOURS[method], lw=width, label=method)
    for method, line in REFERENCES.items():
        if all(method in found[table] for table in tables):
            level = typical(found, tables, method, math.inf)
            axes.axhline(level, color=ink, ls=line, lw=1, label=method)
    shown = np.concatenate([line.get_ydata() for line in axes.lines])
    _scale(axes, (0.85 * min(shown), 1.2 * max(shown)), epsilons)
    axes.set_title(f"{KINDS[kind]}, {len(tables)} tables", color=ink, fontsize="medium")
    axes.tick_params(colors=ink, which="both")
    axes.xaxis.label.set_color(ink)
    for side in axes.spines.values():
        side.set_color(ink)
    look = {"frameon": False, "fontsize": "small", "labelcolor": ink}
    figure.legend(loc="outside lower center", ncols=2, **look)
    return figure


def kind_of(table: str) -> str:
    """Return whether the target of a table is a number or a class."""
    return "classes" if table in CLASSES else "regression"


def typical(found: Found, tables: list[str], method: str, epsilon: float) -> float:
    """Return the geometric mean of the errors of a method over tables."""
    errors = [e for table in tables for at, e, _ in found[table][method] if at == epsilon]
    assert len(errors) == len(tables)
    return math.exp(float(np.mean(np.log(errors))))


def _scale(axes: Axes, limits: tuple[float, float], epsilons: list[float]) -> None:
    """Set logarithmic axes with a few round numbers on them."""
    axes.set(xscale="log", yscale="log", xlabel="epsilon (smaller is more private)", ylim=limits)
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    numbers = [digit * 10.0**power for power in range(-3, 2) for digit in (1, 2, 3, 5)]
    shown = [value for value in numbers if _within(value, limits)]
    axes.set_yticks(shown, [f"{value:g}" for value in shown])


def _within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def main() -> None:
    """Write all pictures; the same numbers give the same files."""
    mpl.rcParams.update({"svg.hashsalt": "dpkernel"})
    found = read(ROOT / "benchmarks/results/rivals.csv")
    figures = {f"rivals_{table}": picture(table, methods) for table, methods in found.items()}
    for kind, (ending, colours) in itertools.product(KINDS, THEMES.items()):
        figures[f"rivals_{kind}{ending}"] = overview(found, kind, *colours)
    for name, figure in figures.items():
        path = ROOT / "docs/pictures" / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None})
        print("written:", path.relative_to(ROOT))


if __name__ == "__main__":
    main()
