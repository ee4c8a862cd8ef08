"""``dpkernel ledger``: create a ledger, and show what was spent on which data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from dpkernel.cli import options
from dpkernel.cli.flags import Group
from dpkernel.cli.model_files import check_outputs
from dpkernel.cli.output import Output, Refusal, command, one_line
from dpkernel.foundations.types import JSON, Budget, Neighbours
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.ledger_file import dataset_names
from dpkernel.privacy.ledger_store import recorded_name

File = Annotated[Path, typer.Argument(help="A ledger file.", show_default=False)]


def create(
    output: Output,
    file: File,
    dataset: Annotated[str, typer.Option(help="The data set that the budget belongs to.")],
    epsilon: Annotated[float, typer.Option(help="The ceiling.")],
    delta: Annotated[float, typer.Option(help="The delta of the ceiling.")],
    neighbours: options.Relation = Neighbours.REPLACE_ONE.value,
    accounting: Annotated[
        str, typer.Option(help="auto, gaussian, renyi or basic: how spends add up.")
    ] = "auto",
    wait: options.Wait = 30.0,
) -> None:
    """Create a ledger with a ceiling for a data set, or add a data set to an existing ledger."""
    options.settle(file, wait)
    known = dataset_names(file, timeout=wait) if file.exists() else []
    recorded = recorded_name(dataset, known, "dataset")
    if recorded is not None:
        raise Refusal(f"{file.name} already holds a data set {recorded!r}. Nothing was changed.")
    book = Ledger(
        file,
        dataset=dataset,
        budget=Budget(epsilon, delta),
        neighbours=neighbours,
        accounting=accounting,
        timeout=wait,
    )
    output.say(f"{file} holds {dataset!r} with the ceiling {book.budget}.")
    output.say(
        "A `fit` with --ledger and without --delta takes this delta, or where deltas add up (basic"
        " accounting) a share of it in proportion to its epsilon."
    )
    output.result({"ledger": str(file), "dataset": dataset, "epsilon": epsilon, "delta": delta})


def list_spends(
    output: Output, file: File, dataset: options.Dataset = None, wait: options.Wait = 30.0
) -> None:
    """List every data set of a ledger, with what was spent on it and what is left."""
    found = []
    for name in _names(file, dataset, wait):
        book = options.open_ledger(file, name, "", wait, read_only=True)
        rows = book.history()
        spent, left = book.spent, book.remaining
        found.append(
            {
                "dataset": name,
                "ceiling": _pair(book.budget),
                "spent": _pair(spent),
                "remaining": _pair(left),
                "neighbours": book.neighbours.value,
                "spends": rows,
            }
        )
        output.say(
            f"{one_line(name)}: ceiling {book.budget or 'none'}; {book.neighbours.value} neighbours"
        )
        if rows:
            output.show(_table(rows, narrow=output.narrow))
        rest = "no ceiling is set" if book.budget is None else f"left {left or 'nothing'}"
        output.say(f"spent {spent or 'nothing'}; {rest}")
        output.say()
    output.result({"ledger": str(file), "datasets": found})


def export(
    output: Output,
    file: File,
    place: Annotated[
        Path | None, typer.Argument(help="The same as --out.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A file name that ends in .json or .csv.")
    ] = None,
    dataset: options.Dataset = None,
    wait: options.Wait = 30.0,
    force: options.Force = False,
) -> None:
    """Write the history of a data set as JSON (with every profile) or CSV."""
    out = _result(place, out, (".json", ".csv"), file, force)
    options.open_ledger(file, dataset, "", wait, read_only=True).export(out)
    output.say(f"The history is in {out}")
    output.result({"export": str(out)})


def plot(
    output: Output,
    file: File,
    place: Annotated[
        Path | None, typer.Argument(help="The same as --out.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A file name that ends in .png, .svg or .pdf.")
    ] = None,
    dataset: options.Dataset = None,
    wait: options.Wait = 30.0,
    force: options.Force = False,
) -> None:
    """Plot what was spent, one spend after the other, under the ceiling."""
    out = _result(place, out, (".png", ".svg", ".pdf"), file, force)
    options.open_ledger(file, dataset, "", wait, read_only=True).plot(out)
    output.say(f"The picture is in {out}")
    output.result({"plot": str(out)})


def _result(
    place: Path | None, out: Path | None, endings: tuple[str, ...], ledger: Path, force: bool
) -> Path:
    """Return the file to write, which is named by --out or as the second argument."""
    listed = f"{', '.join(endings[:-1])} or {endings[-1]}"
    if (place is None) == (out is None):
        raise Refusal(f"Name one file to write, with --out. Its name must end in {listed}.")
    found = place if out is None else out
    assert found is not None
    check_outputs([found], [ledger], force=force)
    if found.suffix not in endings:
        raise Refusal(f"The name of the file must end in {listed}. Got {found.name}.")
    return found


def _names(file: Path, dataset: str | None, wait: float) -> list[str]:
    if dataset is not None or not file.exists():
        return [dataset or ""]  # a missing file is refused when it is opened
    options.settle(file, wait)
    return dataset_names(file, timeout=wait)


def _pair(budget: Budget | None) -> JSON | None:
    return None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta}


def _table(rows: list[JSON], *, narrow: bool) -> Any:
    table = Table(box=None, pad_edge=False)
    parts = any(row["part"] for row in rows)
    for column in ("number", "time", "label", *(("part",) if parts else ()), "epsilon", "delta"):
        right = column in ("epsilon", "delta")
        table.add_column(
            "" if narrow and column == "number" else column, justify="right" if right else "left"
        )
    table.add_column("state")
    for row in rows:
        table.add_row(
            str(row["number"]),
            row["time"][: 10 if narrow else 19],
            Text(one_line(row["label"]) + ("" if row["private"] else " (not private)")),
            *((Text(one_line(row["part"] or "")),) if parts else ()),
            f"{row['epsilon']:.4g}",
            f"{row['delta']:.4g}",
            str(row["state"]),
        )
    return table


group = typer.Typer(cls=Group, no_args_is_help=True, help="Create, list, export and plot a ledger.")
command(group, "create")(create)
command(group, "list")(list_spends)
command(group, "export")(export)
command(group, "plot")(plot)
