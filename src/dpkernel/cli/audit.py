"""``dpkernel audit``: attack an estimator and compare what leaks with what it claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dpkernel.cli import options
from dpkernel.cli.model_files import check_outputs, draft
from dpkernel.cli.output import REFUSED, Output, Refusal
from dpkernel.data.domain import Interval, Levels
from dpkernel.foundations.types import AddRemove, Budget, Neighbours

_NAMED_ROWS, _NAMED_TRIALS = 1000, 1000  # defaults for an estimator that is given by name


def audit(
    output: Output,
    subject: Annotated[
        str, typer.Argument(help="A model file, or the name of an estimator.", show_default=False)
    ],
    trials: Annotated[
        int | None,
        typer.Option(
            help="How many fits to each of the two tables are judged. By default 1000; for a model"
            " file as many as take about two minutes.",
            show_default=False,
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            help="The number of rows of the made-up tables. For a model file, its own number is the"
            " default and the maximum; for a named estimator the default is 1000.",
            show_default=False,
        ),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(
            help="How many records differ between the two tables. The default depends on the claim.",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.999,
    jobs: Annotated[int, typer.Option(help="Number of processes; -1 uses every core.")] = 1,
    epsilon: options.Epsilon = 1.0,
    delta: options.Delta = 1e-6,
    neighbours: options.Relation = Neighbours.REPLACE_ONE.value,
    out: Annotated[
        Path | None, typer.Option(help="Write the report to this file, as JSON.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Plot the trade-off curve to this file.")
    ] = None,
    force: options.Force = False,
) -> None:
    """Fit many times to two tables that differ in a few records, and try to tell them apart.

    For a model file, the audit repeats the fit of that model: the same releases, and the same number
    of rows or a smaller one that the report states. The rows are made up from the declared bounds, so
    nothing is spent and nobody's data are read. Epsilon, delta and neighbours come from the model
    file; the options of these names are for a named estimator.
    """
    check_outputs([out, plot], [Path(subject)], force=force)
    common: dict[str, Any] = {"confidence": confidence, "n_jobs": jobs, "progress": output.live}
    import dpkernel.proof.audit as attacks

    if Path(subject).is_file():
        found = attacks.audit_file(subject, trials=trials, n_rows=rows, records=records, **common)
    else:
        common["n_rows"] = _NAMED_ROWS if rows is None else rows
        hidden = not Neighbours.resolve(neighbours).n_is_public
        relation = options.relation_of(neighbours, None, common["n_rows"] if hidden else None)
        estimator = _estimator(subject, Budget(epsilon, delta), relation)
        common["records"] = 1 if records is None else records
        common["trials"] = _NAMED_TRIALS if trials is None else trials
        found = attacks.audit(estimator, **common)
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


def _estimator(subject: str, budget: Budget, relation: str | AddRemove) -> Any:
    for task, names in options.TASKS.items():
        if subject in names:
            target = Levels((0, 1)) if task == "classification" else Interval(-1.0, 1.0)
            kind = options.estimator_class(task, subject)
            return options.new_estimator(
                kind, task, budget, target, bounds=(-1.0, 1.0), relation=relation
            )
    known = ", ".join(name for names in options.TASKS.values() for name in names)
    raise Refusal(f"{subject!r} is neither a model file nor an estimator. Estimators: {known}.")
