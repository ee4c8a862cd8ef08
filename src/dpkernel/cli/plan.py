"""``dpkernel plan``: say which error to expect, before anything is spent."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dpkernel.cli import options
from dpkernel.cli.model_files import check_outputs
from dpkernel.cli.output import Output, Refusal, command
from dpkernel.cli.simulation import MEASURES, Expected, simulate
from dpkernel.data.domain import Interval, Levels
from dpkernel.data.table_files import read_schema
from dpkernel.foundations.types import Budget, Neighbours

_EPSILONS = (0.1, 0.3, 1.0, 3.0)
_ROWS = (1000, 10_000)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "plan")(plan)


def plan(
    output: Output,
    bounds: Annotated[Path | None, typer.Option(help="bounds.toml of the table.")] = None,
    columns: Annotated[int, typer.Option(help="Without bounds.toml: the number of inputs.")] = 5,
    target: options.Target = None,
    task: options.Task = "regression",
    n_rows: Annotated[
        list[int] | None, typer.Option("--rows", help="A number of rows; repeatable.")
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option("--epsilon", help="A budget; repeatable.")
    ] = None,
    delta: options.Delta = 1e-6,
    repetitions: Annotated[int, typer.Option(min=1, max=1000, help="Made-up tables.")] = 3,
    quantile: options.Quantiles = None,
    neighbours: options.Relation = Neighbours.REPLACE_ONE.value,
    estimator: options.EstimatorName = None,
    settings: options.Settings = None,
    plot: Annotated[Path | None, typer.Option(help="Plot the table: .png, .svg or .pdf.")] = None,
    force: options.Force = False,
) -> None:
    """Say which error to expect, by fits to made-up rows. Reads no data and spends nothing.

    Half of the variance of the made-up target is a smooth function of the inputs, half is noise. Use
    the numbers to compare settings: how well your own table can be predicted is not known before.
    """
    kind = options.estimator_class(task, estimator, pure=not delta)
    box, declared = _public_side(bounds, target, columns, task)
    if plot is not None and plot.suffix not in (".png", ".svg", ".pdf"):
        raise Refusal(f"The name of a picture must end in .png, .svg or .pdf. Got {plot.name}.")
    check_outputs([plot], [bounds], force=force)
    sizes, budgets = sorted(n_rows or _ROWS), sorted(epsilon or _EPSILONS)
    if min(sizes) < 10:
        raise Refusal("--rows must be at least 10.")

    def make(value: float) -> Any:
        low, high = [c.low for c in box], [c.high for c in box]
        return options.new_estimator(
            kind,
            task,
            Budget(value, delta),
            declared,
            bounds=(low, high),
            relation=neighbours,
            quantiles=quantile,
            settings=settings,
        )

    for value in budgets:
        make(value)  # raises for a wrong setting before the first fit
    found: list[Expected] = []
    total = len(sizes) * len(budgets)
    with output.progress("simulating") as tell:
        for n in sizes:
            for value in budgets:
                chosen = sorted(quantile or [0.5])
                found.append(simulate(make, task, box, declared, n, value, repetitions, chosen))
                tell(len(found) / total)
    output.say(f"{kind.__name__}, {len(box)} inputs, delta = {delta:g}: {MEASURES[task]}")
    output.show(_table(found, sizes, budgets))
    output.say(
        "These errors are from made-up rows (see `dpkernel plan --help`). Nothing was spent."
    )
    if plot is not None:
        _plot(found, sizes, plot, f"{kind.__name__}, {len(box)} inputs", MEASURES[task])
        output.say(f"{'picture':<8} {plot}")
    output.result(
        {
            "estimator": kind.__name__,
            "measure": MEASURES[task],
            "n_inputs": len(box),
            "delta": delta,
            "repetitions": repetitions,
            "expected": [asdict(one) for one in found],
            "plot": None if plot is None else str(plot),
        }
    )


def _public_side(
    bounds: Path | None, target: str | None, columns: int, task: str
) -> tuple[list[Interval], Interval | Levels]:
    if bounds is not None:
        schema = read_schema(bounds, target)
        box = [interval for rule in schema.inputs for interval in rule.intervals]
        return box, options.declared_target(schema)
    if columns < 1:
        raise Refusal("--columns must be at least 1.")
    declared = Levels((0, 1)) if task == "classification" else Interval(-1.0, 1.0)
    return [Interval(-1.0, 1.0)] * columns, declared


def _table(found: list[Expected], sizes: list[int], budgets: list[float]) -> Any:
    table = Table(box=None, pad_edge=False)
    table.add_column("rows", justify="right")
    for value in budgets:
        table.add_column(f"epsilon {value:g}", justify="right")
    cells = {(one.n_rows, one.epsilon): f"{one.error:.2f} ± {one.spread:.2f}" for one in found}
    for n in sizes:
        table.add_row(f"{n:,}", *(cells[n, value] for value in budgets))
    return table


def _plot(found: list[Expected], sizes: list[int], path: Path, title: str, measure: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for n in sizes:
        line = [one for one in found if one.n_rows == n]
        axes.errorbar(
            [one.epsilon for one in line],
            [one.error for one in line],
            [one.spread for one in line],
            marker="o",
            capsize=3,
            label=f"{n:,} rows",
        )
    axes.axhline(1.0, color="#777777", linestyle="--", label="a constant")
    axes.set(xscale="log", xlabel="epsilon", ylabel="expected error", title=f"{title}\n{measure}")
    values = sorted({one.epsilon for one in found})
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
