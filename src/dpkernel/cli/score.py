"""``dpkernel score``: how good a model is on the rows of a file, with noise and an interval."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dpkernel.cli import options
from dpkernel.cli.model_files import check_outputs, check_room, draft, keep, report, stored_schema
from dpkernel.cli.output import Output, Refusal
from dpkernel.data.domain import Interval
from dpkernel.data.table_files import LoadedTable, encode_table
from dpkernel.foundations.types import Neighbours, is_real
from dpkernel.outputs.model_file import load
from dpkernel.preprocessing import PrivatePipeline
from dpkernel.selection import private_score
from dpkernel.selection.losses import default_score
from dpkernel.selection.score import METRICS

_ROWS = (
    "note: The model protects people with all their rows, but this score protects single rows. If the"
    " rows of the file have ids of people, score with --group."
)


def score(
    output: Output,
    model: options.Model,
    data: options.Data,
    metric: Annotated[
        str,
        typer.Option(
            help=f"The score: {', '.join(METRICS)}; auto is mae for numbers, pinball for quantiles and"
            " accuracy for classes."
        ),
    ] = "auto",
    quantile: Annotated[
        float | None, typer.Option(help="Which quantile is scored, of a model of several.")
    ] = None,
    epsilon: options.Epsilon = 0.5,
    delta: options.SharedDelta = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the certificate of the score to this file, as JSON.")
    ] = None,
    report_file: Annotated[
        Path | None,
        typer.Option("--report", help="Write an HTML report of the model with this score."),
    ] = None,
    ledger: options.LedgerFile = None,
    dataset: options.Dataset = None,
    neighbours: Annotated[
        str, typer.Option(help="The neighbouring relation: replace-one or zero-out.")
    ] = Neighbours.REPLACE_ONE.value,
    group: options.Group = None,
    delimiter: options.Delimiter = None,
    decimal: options.Decimal = None,
    thousands: options.Thousands = None,
    encoding: options.Encoding = None,
    file_format: options.Format = None,
    strict: options.Strict = False,
    wait: options.Wait = 30.0,
    force: options.Force = False,
) -> None:
    """Release how good a model is on the rows of a file, with noise and an interval.

    Choose rows that the model was not fitted to. They are protected as the rows of a fit are, and the
    score spends a budget of its own.
    """
    fitted = load(model)
    schema = stored_schema(model)
    if schema is None or schema.target is None or schema.target.values is None:
        raise Refusal(
            f"{model.name} was saved from Python and does not name its target. Score it in Python, with"
            " private_score."
        )
    last = fitted.steps_[-1][1] if isinstance(fitted, PrivatePipeline) else fitted
    own: Any = getattr(last, "quantile", None)
    if quantile is None and own is not None and not is_real(own):
        raise Refusal(
            "A model of several quantiles has no single score. Say which one with --quantile."
        )
    if quantile is not None and (own is None or is_real(own)):
        raise Refusal("--quantile is for a model of several quantiles.")
    goal = schema.target
    table = options.open_data(data, file_format, schema, delimiter, decimal, thousands, encoding)
    if group in schema.names_in:
        raise Refusal(f"The column {group!r} is an input of the model, so it can't hold the ids.")
    used = {*schema.names_in, goal.name}
    others = tuple(name for name in table.header if name not in used)
    schema = replace(schema, ignore=others, group=None, n_max=None).with_group(group)
    book = options.open_ledger(ledger, dataset, neighbours, wait)
    budget = options.budget_of(epsilon, delta, book)
    watch = options.SpendWatch(book, ledger is not None)
    output.on_interrupt = watch
    check_outputs([out, report_file], [model, data, ledger], force=force)
    for path in (out, report_file):
        if path is not None:
            check_room(path)
    with output.progress(f"reading {data.name}") as tell:
        rows = encode_table(table, schema, tell=tell, strict=strict)
    loaded = LoadedTable.of(rows)
    X, y = rows.training_data(in_memory=True)
    found = private_score(
        fitted,
        X,
        y,
        default_score(last) if metric == "auto" else metric,
        budget,
        y_bounds=goal.values if isinstance(goal.values, Interval) else None,
        quantile=own if is_real(own) else quantile,
        neighbours=neighbours,
        ledger=book,
        groups=loaded.groups,
    )
    text = found.certificate.to_json()
    told = f"{found}: the exact score of these rows lies in the interval in 95 % of cases"
    written = {}
    try:
        if out is not None:
            keep(out, lambda path: _write(path, text))
            written["certificate"] = str(out)
        if report_file is not None:
            known = book if ledger is not None else None
            title = f"{type(last).__name__}: {model.name}"
            report(fitted, report_file, known, title, stored_schema(model), found)
            written["report"] = str(report_file)
    except BaseException:
        output.note(told)  # it was paid for
        raise
    output.explain(str(found.certificate))
    output.say()
    output.say(f"{'score':<12} {told}")
    if found.high - found.low >= abs(found.value):
        output.note(too_wide(found.metric))
    if group is None and fitted.certificate_.unit == "group":
        output.note(_ROWS)
    for name, place in written.items():
        output.say(f"{name:<12} {place}")
    if ledger is None:
        output.say(options.NO_LEDGER)
    output.result(
        {
            **written,
            "metric": found.metric,
            "score": found.value,
            "low": found.low,
            "high": found.high,
            "n_rows" if group is None else "n_people": found.n_rows,
            "epsilon": found.certificate.epsilon,
            "delta": found.certificate.delta,
        }
    )


def too_wide(metric: str) -> str:
    """Return what would make an interval narrower that says next to nothing."""
    calmer = " So does --metric mae: its noise grows with the range of the target, not its square."
    return (
        "note: The noise is as large as the score itself. More rows or a larger --epsilon make the"
        f" interval narrower.{calmer if metric == 'mse' else ''}"
    )


def _write(path: Path, text: str) -> None:
    with draft(path) as place:
        place.write_text(text, encoding="utf-8")
