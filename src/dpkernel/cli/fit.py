"""``dpkernel fit``: train a private model on a file of rows."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dpkernel.cli import options
from dpkernel.cli.model_files import check_outputs, check_room, model_notes, report, save_model
from dpkernel.cli.output import Output, Refusal, one_line
from dpkernel.data.cache import cache_limits, set_cache
from dpkernel.data.people import People
from dpkernel.data.table_files import LoadedTable, encode_table, read_schema
from dpkernel.data.table_files.schema import middles
from dpkernel.estimators.cell_counts import LABEL
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.outputs.cells import (
    cell_lines,
    constant_line,
    imputed_lines,
    imputed_values,
    unread_columns,
)
from dpkernel.outputs.report.quality import free_figures, in_short
from dpkernel.preprocessing.files import fit_table
from dpkernel.privacy.resume import paid_budget

Out = Annotated[Path, typer.Option(help="The model file to write.")]

_UNKNOWN = "no number was released with this model; `dpkernel score` releases one, of other rows"


def fit(
    output: Output,
    data: options.Data,
    bounds: options.Bounds,
    target: options.Target = None,
    task: options.Task = None,
    epsilon: options.Epsilon = 1.0,
    delta: options.SharedDelta = None,
    out: Out = Path("model.dpk"),
    ledger: options.LedgerFile = None,
    dataset: options.Dataset = None,
    report_file: Annotated[
        Path | None, typer.Option("--report", help="Also write an HTML report to this file.")
    ] = None,
    quantile: options.Quantiles = None,
    neighbours: options.Relation = Neighbours.REPLACE_ONE.value,
    n_max: options.MostRecords = None,
    estimator: options.EstimatorName = None,
    settings: options.Settings = None,
    group: options.Group = None,
    record: options.Record = "auto",
    delimiter: options.Delimiter = None,
    decimal: options.Decimal = None,
    thousands: options.Thousands = None,
    encoding: options.Encoding = None,
    file_format: options.Format = None,
    strict: options.Strict = False,
    counts: Annotated[
        bool,
        typer.Option(
            "--counts/--no-counts",
            help="Release the shares of missing, unreadable and clipped cells with noise beside the"
            " model, for one hundredth of its mu^2.",
        ),
    ] = True,
    scratch: options.Scratch = None,
    resume: options.Resume = None,
    wait: options.Wait = 30.0,
    force: options.Force = False,
) -> None:
    """Train a private model on a file of rows. The file may be larger than memory."""
    schema = read_schema(bounds, target, group)
    declared = options.declared_target(schema)
    task = options.task_of(task, declared)
    relation = options.relation_of(neighbours, n_max, schema.n_max)
    hidden = not Neighbours.resolve(relation).n_is_public
    book = options.open_ledger(ledger, dataset, neighbours, wait)
    paid = None if resume is None else paid_budget(resume)
    budget = options.budget_of(epsilon, paid.delta if paid and delta is None else delta, book)
    kind = options.estimator_class(task, estimator, pure=budget.pure)
    watch = options.SpendWatch(book, ledger is not None, resume)
    output.on_interrupt = watch
    table = options.open_data(data, file_format, schema, delimiter, decimal, thousands, encoding)
    schema = schema.select(table.header, table.name)
    model = options.new_estimator(
        kind,
        task,
        budget,
        declared,
        bounds=schema.domain(),
        relation=relation,
        quantiles=quantile,
        settings=settings,
        ledger=book,
    )
    if any(schema.imputed) and resume is not None:
        raise Refusal(
            "--resume can't be used where bounds.toml has a 'missing' value that the fit finds. State a"
            " number as 'missing', or leave out --resume."
        )
    People((), record)  # refuses an unknown record before it reads the data
    notes = model_notes(schema, task)
    check_outputs([out, report_file], [data, bounds, ledger, resume], force=force)
    if scratch is not None:
        set_cache(**{**asdict(cache_limits()), "folder": scratch})
    for path in (out, report_file):
        if path is not None:
            check_room(path)
    with output.progress(f"reading {data.name}") as tell:
        rows = encode_table(
            table, schema, tell=tell, folder=scratch, strict=strict, may_be_empty=hidden
        )
    with output.parts(f"fitting {kind.__name__}"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Most cells of column")  # told below
        loaded = LoadedTable.of(rows)
        model = fit_table(model, loaded, record=record, cell_shares=counts, resume=resume)
    save_model(model, out, notes, force=force)
    if resume is not None:
        resume.unlink(missing_ok=True)  # the model has all of it
    output.on_interrupt = lambda: f"{watch()} The model is in '{out}'."
    written = {"model": str(out)}
    if report_file is not None:
        known = book if ledger is not None else None
        report(model, report_file, known, f"{kind.__name__}: {data.name}", schema)
        written["report"] = str(report_file)
    certificate = model.certificate_
    output.explain(str(certificate))
    output.say()
    for name, place in written.items():
        output.say(f"{name:<8} {place}")
    used = ", ".join(one_line(rule.name) for rule in schema.inputs)
    output.say(f"{'inputs':<8} {used} (`predict` needs these columns)")
    statistics = certificate.free_statistics
    known_of_it = in_short(free_figures(statistics)) or _UNKNOWN
    output.say(f"{'quality':<8} {known_of_it}")
    if counts and LABEL not in statistics:
        output.say(_without_shares(hidden, budget))
    for line in [*cell_lines(statistics, schema), *imputed_lines(model, schema)]:
        output.say(line)
    for name in unread_columns(statistics):
        output.note(
            f"warning: most cells of column {name!r} could not be read, and the model learned nothing"
            " from them. `dpkernel check` shows the data's owner why."
        )
    constant = constant_line(certificate)
    if constant is not None:
        output.note(f"warning: {constant}")
    stood_in = middles(schema)
    if stood_in:
        output.say(stood_in)
    if ledger is None:
        output.say(options.NO_LEDGER)
    output.result(
        {
            **written,
            "estimator": kind.__name__,
            "task": task,
            **{_size_name(hidden, group): certificate.n_records},
            "n_columns": rows.n_columns,
            "epsilon": certificate.epsilon,
            "delta": certificate.delta,
            "neighbours": certificate.neighbours.value,
            "private": certificate.private,
            "ledger": None if ledger is None else str(ledger),
            "cells": statistics.get(LABEL),
            "imputed": imputed_values(model, schema),
        }
    )


def _without_shares(hidden: bool, budget: Budget) -> str:
    """Return why the shares of cells were left out. It depends on public numbers only."""
    why = "the noise would drown them"
    if hidden:
        why = "they would tell the number of records"
    elif budget.pure:
        why = "the guarantee has no delta"
    return f"The shares of missing and unreadable cells were not released, because {why}."


def _size_name(hidden: bool, group: str | None) -> str:
    """Return what the public number of records counts."""
    if hidden:
        return "n_max"
    return "n_rows" if group is None else "n_people"
