"""``dpkernel predict``: predict the rows of a file with a model."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from dpkernel.cli import options
from dpkernel.cli.model_files import check_outputs, check_room, draft, model_schema
from dpkernel.cli.output import Output
from dpkernel.data.cells import is_missing
from dpkernel.data.table_files import Schema
from dpkernel.data.table_files.schema import UNREADABLE
from dpkernel.data.table_files.spool import unreadable_message, unreadable_note
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.foundations.types import Array
from dpkernel.outputs.model_file import load
from dpkernel.outputs.report.views import probability_note
from dpkernel.preprocessing import PrivatePipeline


def predict(
    output: Output,
    model: options.Model,
    data: options.Data,
    out: Annotated[
        Path | None, typer.Option(help="The CSV file to write; without it, standard output.")
    ] = None,
    identity: Annotated[
        str | None,
        typer.Option("--id", help="A column of DATA that is copied beside the predictions."),
    ] = None,
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities",
            help="Also write the probability of every class, if the model has them.",
        ),
    ] = False,
    deviations: Annotated[
        bool,
        typer.Option(
            "--deviations", help="Write a standard deviation beside each prediction of a regressor."
        ),
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            help="Write the ends of intervals beside each prediction of a regressor, which contain"
            " this share of targets: for example 0.9."
        ),
    ] = None,
    delimiter: options.Delimiter = None,
    decimal: options.Decimal = None,
    thousands: options.Thousands = None,
    encoding: options.Encoding = None,
    file_format: options.Format = None,
    strict: options.Strict = False,
    force: options.Force = False,
) -> None:
    """Predict every row of a file. Columns that the model does not know are ignored."""
    fitted = load(model)
    predictor = _Predictor(fitted, probabilities, deviations, interval)
    schema = model_schema(model, fitted)
    schema = Schema(schema.inputs, written=schema.written)
    table = options.open_data(data, file_format, schema, delimiter, decimal, thousands, encoding)
    schema.of_new_rows(table.header).select(table.header, table.name)
    names = [rule.name for rule in schema.inputs]
    beside = [] if identity is None else [identity]
    if identity is not None and table.header.count(identity) != 1:
        raise DataError(f"{table.name} must have exactly one column named {identity!r} (--id).")
    schema.refuse_kinds(table)
    check_outputs([out], [model, data], force=force)
    if out is not None:
        check_room(out)
    count, rows, unread = 0, [], dict.fromkeys(names, 0)
    with _writer(output, out) as write, output.progress(f"reading {data.name}") as tell:
        for columns in table.read(list(dict.fromkeys([*names, *beside])), tell):
            reading = schema.read(columns, table.spelling)
            for name, (_, states) in reading.items():
                unread[name] += int(np.count_nonzero(states == UNREADABLE))
            if strict and any(unread.values()):
                raise DataError(unreadable_message(table.name))
            found = predictor(schema.encoded(reading))
            lines = found.tolist()
            if identity is not None:
                ids = ["" if is_missing(cell) else str(cell) for cell in columns[identity]]
                lines = [[one, *line] for one, line in zip(ids, lines, strict=True)]
            if not count:
                write([[*beside, *predictor.columns(found)]])
            count += len(found)
            if output.as_json and out is None:
                rows += lines
            else:
                write(lines)
        if not count:  # a file without rows gives the header only
            found = predictor(np.zeros((1, len(schema.names_out))))
            write([[*beside, *predictor.columns(found)]])
    for name, lost in unread.items():
        if lost:
            output.note(f"warning: {unreadable_note(name, lost, count)}")
    if probabilities and (note := probability_note(fitted)):
        output.note(f"note: {note} On the command line: `fit --set loss=logistic`.")
    summary: dict[str, Any] = {"n_rows": count}
    if any(unread.values()):
        summary["unreadable"] = unread
    if out is not None:
        output.say(f"{count} predictions are in {out}")
        summary["predictions_file"] = str(out)
    else:
        summary |= {"columns": [*beside, *predictor.names], "predictions": rows}
    output.result(summary)


class _Predictor:
    """Computes the columns of predictions for blocks of encoded rows."""

    def __init__(
        self, model: Any, probabilities: bool, deviations: bool, interval: float | None
    ) -> None:
        self._model, self._std, self._interval = model, deviations, interval
        last = model.steps_[-1][1] if isinstance(model, PrivatePipeline) else model
        self._quantile: Any = getattr(last, "quantile", 0.5)
        if sum((probabilities, deviations, interval is not None)) > 1:
            raise ParameterError("Choose one of --probabilities, --deviations and --interval.")
        self._proba = probabilities
        if probabilities and not hasattr(model, "predict_proba"):
            raise ParameterError(f"{type(last).__name__} has no probabilities.")
        kind = type(last).__name__
        if deviations and not hasattr(model, "predict_interval"):
            raise ParameterError(f"{kind} has no standard deviations.")
        if interval is not None and not hasattr(model, "predict_interval"):
            advice = (
                "An interval lies between two of its quantiles: leave out --interval"
                if hasattr(last, "quantile")
                else "Fit quantiles with --task quantile"
            )
            raise ParameterError(f"{kind} has no intervals. {advice}.")
        self.names: list[str] = []

    def __call__(self, X: Array) -> Any:
        if self._proba:
            labels = np.asarray(self._model.predict(X)).astype(object)
            return np.column_stack([labels, self._model.predict_proba(X)])
        if self._std:
            return np.column_stack(self._model.predict(X, return_std=True))
        if self._interval is not None:
            ends = self._model.predict_interval(X, self._interval)
            return np.column_stack([self._model.predict(X), ends])
        found = np.asarray(self._model.predict(X))
        return found[:, None] if found.ndim == 1 else found

    def columns(self, found: Any) -> list[str]:
        """Return the names of the columns."""
        if self._proba:
            classes = self._model.classes_.tolist()
            self.names = ["prediction", *(f"probability_{label}" for label in classes)]
        elif self._std:
            self.names = ["prediction", "deviation"]
        elif self._interval is not None:
            self.names = ["prediction", "low", "high"]
        elif np.ndim(self._quantile):
            self.names = [f"quantile_{q:g}" for q in self._quantile]
        elif found.shape[1] > 1:
            self.names = [f"prediction_{j}" for j in range(found.shape[1])]
        else:
            self.names = ["prediction"]
        return self.names


@contextmanager
def _writer(output: Output, out: Path | None) -> Iterator[Any]:
    """Yield a function that writes rows to the output, or to a file that appears when complete."""
    if out is None:

        def write(rows: Any) -> None:
            if not output.as_json:
                buffer = io.StringIO()
                csv.writer(buffer, lineterminator="\n").writerows(rows)
                output.raw(buffer.getvalue())

        yield write
        return
    with draft(out) as place, place.open("w", newline="", encoding="utf-8") as file:
        yield csv.writer(file, lineterminator="\n").writerows
