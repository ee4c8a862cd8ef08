"""``dpkernel plan``: say which error to expect, before anything is spent."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from dpkernel.cli import options
from dpkernel.cli.model_files import check_outputs
from dpkernel.cli.output import Output, Refusal
from dpkernel.data.domain import Interval, Levels
from dpkernel.data.table_files import read_schema
from dpkernel.estimators.outlook import Outlook, expected_error
from dpkernel.estimators.progress import Parts
from dpkernel.foundations.types import Budget, Neighbours

_EPSILONS = (0.1, 0.3, 1.0, 3.0)
_ROWS = (1000, 10_000)


def plan(
    output: Output,
    bounds: Annotated[Path | None, typer.Option(help="bounds.toml of the table.")] = None,
    columns: Annotated[int, typer.Option(help="Without bounds.toml: the number of inputs.")] = 5,
    target: options.Target = None,
    task: options.Task = None,
    n_rows: Annotated[
        list[int] | None, typer.Option("--rows", help="A number of rows; repeatable.")
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option("--epsilon", help="A budget; repeatable.")
    ] = None,
    delta: options.Delta = 1e-6,
    effect: Annotated[
        float,
        typer.Option(
            help="The share of the variance that the inputs explain, as you assume it: for example"
            " the R^2 of a published model."
        ),
    ] = 0.5,
    repetitions: Annotated[int, typer.Option(min=1, max=1000, help="Made-up tables.")] = 3,
    quantile: options.Quantiles = None,
    neighbours: options.Relation = Neighbours.REPLACE_ONE.value,
    n_max: options.MostRecords = None,
    group: Annotated[
        str | None,
        typer.Option(
            help="The column with the ids of people, as for fit; --rows then counts people."
        ),
    ] = None,
    estimator: options.EstimatorName = None,
    settings: options.Settings = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Plot the error against epsilon and rows: .png, .svg or .pdf."),
    ] = None,
    force: options.Force = False,
) -> None:
    """Say which error to expect, by fits to made-up rows. Reads no data and spends nothing.

    A smooth function of the inputs explains the share --effect of the variance of the made-up target,
    and the rest is noise. How well your own table can be predicted is not known before a fit.
    `model.plan` in Python gives the same numbers.
    """
    box, declared = _public_side(bounds, target, columns, task, group)
    task = options.task_of(task, declared)
    kind = options.estimator_class(task, estimator, pure=not delta)
    if plot is not None and plot.suffix not in (".png", ".svg", ".pdf"):
        raise Refusal(f"The name of a picture must end in .png, .svg or .pdf. Got {plot.name}.")
    check_outputs([plot], [bounds], force=force)
    if not 0 < effect < 1:
        raise Refusal(f"--effect must be between 0 and 1. Got {effect:g}.")
    sizes, budgets = sorted(n_rows or _ROWS), sorted(epsilon or _EPSILONS)
    if min(sizes) < 10:
        raise Refusal("--rows must be at least 10.")
    if plot is not None:  # a curve needs more than one point
        sizes = sizes if len(sizes) > 1 else [max(sizes[0] // 3, 10), sizes[0], 3 * sizes[0]]
        budgets = budgets if len(budgets) > 1 else [budgets[0] / 3, budgets[0], 3 * budgets[0]]
    low, high = [c.low for c in box], [c.high for c in box]
    hidden = not Neighbours.resolve(neighbours).n_is_public

    def model_for(n: int, value: float) -> Any:
        return options.new_estimator(
            kind,
            task,
            Budget(value, delta),
            declared,
            bounds=(low, high),
            relation=options.relation_of(neighbours, n_max, n if hidden and not n_max else None),
            quantiles=quantile,
            settings=settings,
        )

    models = [(n, model_for(n, value)) for n in sizes for value in budgets]
    found: list[Outlook] = []
    steps = Parts(len(models))
    with output.parts("simulating"):
        for n, model in models:
            with steps.part(f"{n} rows"):
                found.append(
                    expected_error(model, n, len(box), effect=effect, repetitions=repetitions)
                )
    one = found[0]
    output.say(f"{kind.__name__}, {len(box)} inputs, delta = {delta:g}: {one.measure}")
    output.show(_table(found, sizes, budgets, "people" if group else "rows"))
    output.say(f"A constant has 1, and {one.best:.2f} is the best possible. {one.assumption}")
    output.say("These are errors on made-up rows. Nothing was spent.")
    if plot is not None:
        _plot(found, plot)
        output.say(f"{'picture':<8} {plot}")
    output.result(
        {
            "estimator": kind.__name__,
            "measure": one.measure,
            "n_inputs": len(box),
            "delta": delta,
            "effect": effect,
            "assumption": one.assumption,
            "best": one.best,
            "repetitions": repetitions,
            "expected": [_numbers(outlook) for outlook in found],
            "plot": None if plot is None else str(plot),
        }
    )


def _numbers(found: Outlook) -> dict[str, Any]:
    kept = ("n_rows", "epsilon", "relative_error", "spread")
    return {name: value for name, value in asdict(found).items() if name in kept}


def _public_side(
    bounds: Path | None, target: str | None, columns: int, task: str | None, group: str | None
) -> tuple[list[Interval], Interval | Levels]:
    if bounds is not None:
        schema = read_schema(bounds, target, group)
        box = [interval for rule in schema.inputs for interval in rule.intervals]
        return box, options.declared_target(schema)
    if columns < 1:
        raise Refusal("--columns must be at least 1.")
    declared = Levels((0, 1)) if task == "classification" else Interval(-1.0, 1.0)
    return [Interval(-1.0, 1.0)] * columns, declared


def _table(found: list[Outlook], sizes: list[int], budgets: list[float], whose: str) -> Any:
    table = Table(box=None, pad_edge=False)
    table.add_column(whose, justify="right")
    for value in budgets:
        table.add_column(f"epsilon {value:.3g}", justify="right")
    cells = iter(f"{one.relative_error:.2f} ± {one.spread:.2f}" for one in found)
    for n in sizes:
        table.add_row(f"{n:,}", *(next(cells) for _ in budgets))
    return table


def _plot(found: list[Outlook], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _curves(left, found, "epsilon", "n_rows", "{:,} rows")
    _curves(right, found, "n_rows", "epsilon", "epsilon {:.3g}")
    left.set(xlabel="epsilon", ylabel="expected error", ylim=(0, None))
    right.set(xlabel="rows")
    one = found[0]
    figure.suptitle(
        f"{one.estimator}, {one.n_inputs} inputs, delta = {one.delta:g}, effect {one.effect:.0%}\n"
        f"{one.measure}"
    )
    figure.savefig(path, dpi=130)


def _curves(axes: Any, found: list[Outlook], across: str, line: str, label: str) -> None:
    """Plot the errors against one attribute of the outlooks, with one line per value of another."""
    for value in sorted({getattr(one, line) for one in found}):
        own = [one for one in found if getattr(one, line) == value]
        axes.errorbar(
            [getattr(one, across) for one in own],
            [one.relative_error for one in own],
            [one.spread for one in own],
            marker="o",
            capsize=3,
            label=label.format(value),
        )
    axes.axhline(1.0, color="#777777", linestyle="--", label="a constant")
    axes.axhline(found[0].best, color="#777777", linestyle=":", label="at best")
    places = sorted({getattr(one, across) for one in found})
    axes.set_xscale("log")
    axes.set_xticks(places, [f"{place:,.3g}" if place < 100 else f"{place:,}" for place in places])
    axes.set_xticks([], minor=True)
    axes.legend(frameon=False, fontsize="small")
