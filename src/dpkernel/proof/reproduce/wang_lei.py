"""Figure 1 and Table 1 of Wang, Lei, Ying & Zhang (2022), evaluated.

fig1    the smallest epsilon of Theorem 11 against n: Lemma 13 as printed, and the true edge
table1  the nine lines of the table as functions of n, with the constants in O() set to 1
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpkernel.proof.papers.wang_lei_ying_zhang_2022.rates import figure_1 as feasible
from dpkernel.proof.papers.wang_lei_ying_zhang_2022.rates import table_1
from dpkernel.proof.reproduce.output import new_figure, save_figure, write_csv
from dpkernel.proof.reproduce.request import Request

ALPHAS = (0.0, 0.5, 1.0)
COLUMNS, EPSILON = 10, 1.0


def sizes(most: int, number: int) -> list[int]:
    """Return values of n from 18, where the lemma starts, evenly spaced on a logarithmic scale."""
    return sorted({round(n) for n in np.geomspace(18, most, number)})


def figure_1(request: Request) -> list[Path]:
    """Plot the feasible epsilon for T = n and delta = 1/n^2, with a cross where the lemma fails."""
    points = feasible(sizes(10**6, 60))
    figure, (axes,) = new_figure(1, width=6.0)
    n = [point.n_rows for point in points]
    printed, right = [p.printed for p in points], [p.corrected for p in points]
    axes.fill_between(n, printed, max(printed) * 1.3, alpha=0.15, label="Lemma 13: feasible")
    axes.plot(n, printed, label="Lemma 13, as printed")
    axes.plot(n, right, color="tab:green", label="the edge itself")
    wrong = [p for p in points if not p.lemma_holds]
    axes.plot([p.n_rows for p in wrong], [p.printed for p in wrong], "rx", label="Lemma 13 fails")
    axes.set(xscale="log", yscale="log", xlabel="n", ylabel="epsilon", title="T = n, delta = 1/n^2")
    axes.legend(fontsize="small")
    axes.grid(alpha=0.3)
    rows = [
        {
            "n": point.n_rows,
            "delta": point.n_rows**-2.0,
            "epsilon_printed": point.printed,
            "epsilon_corrected": point.corrected,
            "lemma_13_holds": point.lemma_holds,
        }
        for point in points
    ]
    return [
        save_figure(figure, request.out / "wang-lei-fig1.png", request.claim),
        write_csv(request.out / "wang-lei-fig1.csv", request.command, rows, request.claim),
    ]


def table_one(request: Request) -> list[Path]:
    """Plot utility and gradients against n at d = 10, epsilon = 1, delta = 1/n^2, alpha = 1/2."""
    rows = [
        {
            "n": n,
            "d": COLUMNS,
            "epsilon": EPSILON,
            "delta": n**-2.0,
            "alpha": alpha,
            "reference": line.reference,
            "loss": line.loss,
            "method": line.method,
            "domain": line.domain,
            "utility": line.utility,
            "gradients": line.gradients,
        }
        for n in sizes(10**6, 30)
        for alpha in ALPHAS
        for line in table_1(n, COLUMNS, EPSILON, n**-2.0, alpha)
    ]
    figure, panels = new_figure(2, width=5.0, height=5.0)
    shown = [row for row in rows if row["alpha"] == 0.5]
    keys = ("reference", "loss", "method", "domain")
    for axes, column in zip(panels, ("utility", "gradients"), strict=True):
        for k, line in enumerate(dict.fromkeys(tuple(row[key] for key in keys) for row in shown)):
            mine = [row for row in shown if tuple(row[key] for key in keys) == line]
            style = "-" if line[1] == "Hölder" else ":"
            label = f"{line[0]}: {line[2]}, {line[1]}, {line[3]}"
            x, y = [row["n"] for row in mine], [row[column] for row in mine]
            # lines that coincide stay visible: the later, the thinner, and markers at other places
            look = {"color": f"C{k}", "lw": 5 - 0.5 * k, "alpha": 0.8, "marker": "osD^v<>pX"[k]}
            axes.plot(x, y, style, label=label, ms=5, markevery=(k, 9), **look)
        axes.set(xscale="log", yscale="log", xlabel="n", ylabel=f"{column}, without constants")
        axes.set_title(f"alpha = 1/2, d = {COLUMNS}, epsilon = {EPSILON:g}, delta = 1/n^2")
        axes.grid(alpha=0.3)
    legend = panels[0].get_legend_handles_labels()
    figure.legend(*legend, loc="outside lower center", ncols=2, fontsize="small")
    return [
        save_figure(figure, request.out / "wang-lei-table1.png", request.claim),
        write_csv(request.out / "wang-lei-table1.csv", request.command, rows, request.claim),
    ]
