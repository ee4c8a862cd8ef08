r"""Figures 1 to 12 of Lee, Park & Ahn (2025): test error against epsilon, and against M.

    fig1          synthetic, d = 10, 20, 30: error against epsilon
    fig2          synthetic, d = 20: error against M, one curve for each epsilon
    fig3          Million Song, width 2^4: error against epsilon, and against M at epsilon = 10^-0.5
    fig4 .. fig6  synthetic, d = 10, 20, 30: error against M, one panel for each epsilon
    fig7          Million Song, widths 2^4 .. 2^6: error against epsilon
    fig8 .. fig12 Million Song, one width each: error against M, one panel for each epsilon

The paper reports "the minimum test error achieved across all hyperparameter combinations", averaged
over repetitions. This can be read in two ways: one (M, lambda) for all repetitions, namely that
with the least mean error; or the best one in each repetition, which also selects lucky noise. Both
are in the CSV. Lines show the first, dots the second. In plots against M, each point has the lambda
with the least mean error there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dpkernel.foundations.types import Array
from dpkernel.proof.reproduce.design import DIMENSIONS, EPSILONS, generator
from dpkernel.proof.reproduce.output import new_figure, save_figure, write_csv
from dpkernel.proof.reproduce.repetitions import (
    CONSTANT,
    CORRECTED_1,
    CORRECTED_3,
    KERNEL_RIDGE,
    NORM_BOUND,
    PRINTED_1,
    PRINTED_3,
    PRIVATE_3,
    REGRESSOR,
    RIDGE,
    Grid,
    songs,
    synthetic,
)
from dpkernel.proof.reproduce.request import Request
from dpkernel.proof.reproduce.store import Cell, CellFiles

WIDTHS = tuple(2.0**k for k in (4, 4.5, 5, 5.5, 6))
ONE_CHOICE, EACH_TIME = "one choice for all repetitions", "best choice in each repetition"
DOTS = "dotted: best choice in each repetition"

_COLOURS = {
    PRINTED_1: "tab:orange",  # the paper's colours
    PRINTED_3: "tab:blue",
    CORRECTED_1: "tab:red",
    CORRECTED_3: "tab:cyan",
    PRIVATE_3: "tab:pink",
    RIDGE: "tab:purple",
    REGRESSOR: "tab:green",
    CONSTANT: "0.55",
    KERNEL_RIDGE: "black",
}
Row = dict[str, Any]


# --- experiments ----------------------------------------------------------------------------


def synthetic_cells(d: int, request: Request) -> list[list[Cell]]:
    """Return the cells of every repetition of the synthetic design."""
    settings = {"experiment": "synthetic", "d": d, "grid": asdict(request.grid)}
    store = CellFiles(request.out / "cells", f"synthetic-d{d}", settings)
    return store.complete(
        request.repetitions,
        synthetic,
        lambda number: (d, request.grid),
        progress=request.progress,
        n_jobs=request.n_jobs,
    )


def song_cells(width: float, request: Request) -> list[list[Cell]]:
    """Return the cells of every repetition of the Million Song experiment."""
    table, grid = request.songs(), request.grid
    settings = {"experiment": "songs", "width": width, "grid": asdict(grid), "table": table.digest}

    def arguments(number: int) -> tuple[Array, Array, float, Grid]:
        return (*table.sample(2 * grid.rows, generator(3, number)), width, grid)

    store = CellFiles(request.out / "cells", f"songs-width{width:.3g}", settings)
    return store.complete(
        request.repetitions, songs, arguments, progress=request.progress, n_jobs=request.n_jobs
    )


# --- summaries ------------------------------------------------------------------------------


def against_epsilon(cells: list[list[Cell]], grid: Grid, **where: Any) -> list[Row]:
    """Return one row per (method, epsilon, reading) with the least error over all (M, lambda)."""
    return [row for key in _keys(cells) for row in _rows(_choices(cells, key), key, grid, where)]


def against_features(cells: list[list[Cell]], grid: Grid, **where: Any) -> list[Row]:
    """Return one row per (method, epsilon, M), with the best lambda there."""
    found = []
    for key in _keys(cells):
        for M in sorted({c.n_features for c in cells[0] if (c.method, c.epsilon) == key}):
            rows = _rows(_choices(cells, key, M), key, grid, where)
            found += [row for row in rows if row["reading"] == ONE_CHOICE]
    return found


Choices = list[tuple[int, int, Array, Array]]  # M, index of lambda, errors, excesses


def _keys(cells: list[list[Cell]]) -> list[tuple[str, float]]:
    return list(dict.fromkeys((c.method, c.epsilon) for c in cells[0]))


def _choices(cells: list[list[Cell]], key: tuple[str, float], M: int | None = None) -> Choices:
    """Return every (M, lambda) of a method at an epsilon with its errors over the repetitions."""
    found: Choices = []
    kept = [
        [c for c in one if (c.method, c.epsilon) == key and M in (None, c.n_features)]
        for one in cells
    ]
    for same in zip(*kept, strict=True):
        errors, excesses = np.array([c.error for c in same]), np.array([c.excess for c in same])
        for i in range(errors.shape[1]):
            excess = excesses[:, i] if excesses.size else np.full(len(same), math.nan)
            found.append((same[0].n_features, i, errors[:, i], excess))
    return found


def _rows(choices: Choices, key: tuple[str, float], grid: Grid, where: Row) -> list[Row]:
    """Return a summary for both readings, which are the same if nothing is chosen."""
    M, i, errors, excess = min(choices, key=lambda choice: float(choice[2].mean()))
    own = len(choices) == 1
    bound = NORM_BOUND if key[0] == PRINTED_1 else ""
    head = {**where, "method": key[0], "norm_bound": bound, "epsilon": key[1] or ""}
    rows = [
        {
            **head,
            "reading": ONE_CHOICE,
            "n_features": M or "",
            "regularisation": "" if own else grid.regularisations[i],
            **_mean("test_error", errors),
            **_mean("excess", excess),
            "repetitions": len(errors),
        }
    ]
    if not own:
        table = np.array([choice[2] for choice in choices])
        best = table.argmin(axis=0), np.arange(table.shape[1])
        rows.append(
            {
                **head,
                "reading": EACH_TIME,
                "n_features": "",
                "regularisation": "",
                **_mean("test_error", table[best]),
                **_mean("excess", np.array([choice[3] for choice in choices])[best]),
                "repetitions": len(errors),
            }
        )
    return rows


def _mean(name: str, values: Array) -> Row:
    """Return the mean and standard error, or empty texts if there are no values."""
    if np.isnan(values).any():
        return {name: "", f"{name}_se": ""}
    spread = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else ""
    return {name: float(values.mean()), f"{name}_se": spread}


# --- plots ----------------------------------------------------------------------------------


def plot_epsilon(axes: Any, rows: Sequence[Row], title: str) -> None:
    """Plot the error against epsilon, with one line per method."""
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        line = [row for row in mine if row["reading"] == ONE_CHOICE]
        colour = _COLOURS[method]
        if line[0]["epsilon"] == "":
            axes.axhline(line[0]["test_error"], color=colour, ls="--", lw=1, label=method)
            continue
        x, y = [row["epsilon"] for row in line], [row["test_error"] for row in line]
        spread = [row["test_error_se"] or 0.0 for row in line]
        axes.errorbar(x, y, yerr=spread, color=colour, marker="o", ms=3, label=method)
        if method in (PRINTED_1, PRINTED_3):
            dots = [row["test_error"] for row in mine if row["reading"] == EACH_TIME]
            name = DOTS if method == PRINTED_1 else None
            axes.plot(x, dots, color=colour, ls=":", lw=1, label=name)
    _logarithmic(axes, "epsilon", title)


def plot_features(axes: Any, rows: Sequence[Row], title: str) -> None:
    """Plot the error against M at one epsilon. Methods that choose M themselves are level lines."""
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        colour = _COLOURS[method]
        if mine[0]["n_features"] == "":
            axes.axhline(mine[0]["test_error"], color=colour, ls="--", lw=1, label=method)
            continue
        x, y = [row["n_features"] for row in mine], [row["test_error"] for row in mine]
        axes.plot(x, y, color=colour, marker="o", ms=3, label=method)
    _logarithmic(axes, "projection dimension M", title)


def plot_budgets(axes: Any, rows: Sequence[Row], title: str) -> None:
    """Plot the error of one method against M, with one curve per epsilon. A ring marks the best M."""
    for k, epsilon in enumerate(dict.fromkeys(row["epsilon"] for row in rows)):
        mine = [row for row in rows if row["epsilon"] == epsilon]
        x, y = [row["n_features"] for row in mine], [row["test_error"] for row in mine]
        colour, best = f"C{k}", int(np.argmin(y))
        axes.plot(x, y, color=colour, marker="o", ms=3, label=f"epsilon = {epsilon:.3g}")
        ring = "ring: the best M" if k == 0 else None
        axes.plot(x[best], y[best], "o", mfc="none", ms=10, color=colour, label=ring)
    _logarithmic(axes, "projection dimension M", title)


def _logarithmic(axes: Any, label: str, title: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=label, ylabel="test error", title=title)
    axes.grid(alpha=0.3)


def _finish(figure: Any, panels: Any, request: Request, item: str, rows: list[Row]) -> list[Path]:
    for axes in panels:
        if not axes.has_data():
            axes.set_axis_off()
    legend = panels[0].get_legend_handles_labels()
    width = float(figure.get_size_inches()[0])
    figure.legend(
        *legend, loc="outside lower center", ncols=max(1, int(width / 3.7)), fontsize="small"
    )
    name = f"lee-park-ahn-{item}"
    return [
        save_figure(figure, request.out / f"{name}.png", request.claim),
        write_csv(request.out / f"{name}.csv", request.command, rows, request.claim),
    ]


# --- figures --------------------------------------------------------------------------------


def figure_1(request: Request) -> list[Path]:
    """Synthetic design: the error against epsilon for three dimensions."""
    figure, panels = new_figure(3)
    rows: list[Row] = []
    for axes, d in zip(panels, DIMENSIONS, strict=True):
        found = against_epsilon(synthetic_cells(d, request), request.grid, d=d)
        plot_epsilon(axes, found, f"d = {d}")
        rows += found
    return _finish(figure, panels, request, "fig1", rows)


def figure_2(request: Request) -> list[Path]:
    """Synthetic design, d = 20: how the best M changes with epsilon."""
    figure, panels = new_figure(4)
    rows = against_features(synthetic_cells(20, request), request.grid, d=20)
    methods = (PRINTED_1, PRINTED_3, CORRECTED_1, CORRECTED_3)
    for axes, method in zip(panels, methods, strict=True):
        plot_budgets(axes, [row for row in rows if row["method"] == method], method)
    lowest = min(axes.get_ylim()[0] for axes in panels)
    highest = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(lowest, highest)
    return _finish(figure, panels, request, "fig2", rows)


def figure_3(request: Request) -> list[Path]:
    """Million Song, width 2^4: against epsilon, and against M at epsilon = 10^-0.5."""
    figure, panels = new_figure(2)
    cells, width = song_cells(WIDTHS[0], request), WIDTHS[0]
    rows = against_epsilon(cells, request.grid, panel="a", width=width)
    plot_epsilon(panels[0], rows, "(a) Million Song, width 16")
    more = against_features(cells, request.grid, panel="b", width=width)
    more = [row for row in more if row["epsilon"] in ("", EPSILONS[1])]
    plot_features(panels[1], more, "(b) epsilon = 10^-0.5, width 16")
    return _finish(figure, panels, request, "fig3", rows + more)


def figure_7(request: Request) -> list[Path]:
    """Million Song: error against epsilon for five widths."""
    figure, panels = new_figure(3, rows=2)
    rows: list[Row] = []
    for axes, width in zip(panels, WIDTHS, strict=False):
        found = against_epsilon(song_cells(width, request), request.grid, width=width)
        plot_epsilon(axes, found, f"width 2^{math.log2(width):g}")
        rows += found
    return _finish(figure, panels, request, "fig7", rows)


def dimension_figure(item: str, d: int, request: Request) -> list[Path]:
    """Figures 4 to 6: error against M, one panel for each epsilon."""
    return _features_figure(item, synthetic_cells(d, request), request, f"d = {d}", d=d)


def width_figure(item: str, width: float, request: Request) -> list[Path]:
    """Figures 8 to 12: error against M, one panel for each epsilon."""
    title = f"width 2^{math.log2(width):g}"
    return _features_figure(item, song_cells(width, request), request, title, width=width)


def _features_figure(
    item: str, cells: list[list[Cell]], request: Request, title: str, **where: Any
) -> list[Path]:
    figure, panels = new_figure(3, rows=2)
    rows = against_features(cells, request.grid, **where)
    for axes, epsilon in zip(panels, request.grid.epsilons, strict=False):
        some = [row for row in rows if row["epsilon"] in ("", epsilon)]
        plot_features(axes, some, f"{title}, epsilon = {epsilon:.3g}")
    return _finish(figure, panels, request, item, rows)
