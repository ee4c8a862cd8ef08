"""``dpkernel audit``: attack an estimator and compare what leaks with what it claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from sklearn.base import clone

from dpkernel.cli import options
from dpkernel.cli.model_files import check_outputs, draft
from dpkernel.cli.output import REFUSED, Output, Refusal, command
from dpkernel.domain import Interval, Levels
from dpkernel.model_file import load
from dpkernel.types import Budget, Neighbours


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    command(app, "audit")(audit)


def audit(
    output: Output,
    subject: Annotated[
        str, typer.Argument(help="A model file, or the name of an estimator.", show_default=False)
    ],
    trials: Annotated[int, typer.Option(help="Fits on either of two neighbouring tables.")] = 1000,
    confidence: Annotated[float, typer.Option(help="Of the lower bound on epsilon.")] = 0.999,
    epsilon: options.Epsilon = 1.0,
    delta: options.Delta = 1e-6,
    neighbours: options.Relation = Neighbours.REPLACE_ONE.value,
    out: Annotated[Path | None, typer.Option(help="Write the report as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the trade-off curve.")] = None,
) -> None:
    """Fit again and again to two tables that differ in one record, and try to tell them apart.

    The rows are made up from the declared bounds, so nothing is spent and nobody's data are read.
    Epsilon, delta and neighbours are those of the model file; the options are for a named estimator.
    """
    check_outputs([out, plot], [Path(subject)])
    estimator = _estimator(subject, Budget(epsilon, delta), neighbours)
    from dpkernel.audit import audit as attack

    found = attack(estimator, trials=trials, confidence=confidence, progress=output.live)
    text = found.to_json()
    if out is not None:
        with draft(out) as place:
            place.write_text(text, encoding="utf-8")
    if plot is not None:
        found.plot(plot)
    output.say(str(found))
    for name, path in (("report", out), ("picture", plot)):
        if path is not None:
            output.say(f"{name:<8} {path}")
    data = json.loads(text)
    if data.get("verdict") == "contradicted":
        output.fail("The audit contradicts the claim.", REFUSED, audit=data)
    output.result({"audit": data})


def _estimator(subject: str, budget: Budget, relation: str) -> Any:
    path = Path(subject)
    if path.is_file():
        return clone(load(path)).set_params(ledger=None)
    for task, names in options.TASKS.items():
        if subject in names:
            target = Levels((0, 1)) if task == "classification" else Interval(-1.0, 1.0)
            kind = options.estimator_class(task, subject)
            return options.new_estimator(
                kind, task, budget, target, bounds=(-1.0, 1.0), relation=relation
            )
    known = ", ".join(name for names in options.TASKS.values() for name in names)
    raise Refusal(f"{subject!r} is no model file and no estimator. Estimators: {known}.")
