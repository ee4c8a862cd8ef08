"""Options that several commands share, and the objects that they stand for."""

from __future__ import annotations

import contextlib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from dpkernel import estimators
from dpkernel.cli.output import NOTHING_SPENT, Refusal
from dpkernel.data.cells import Places
from dpkernel.data.domain import Interval, Levels
from dpkernel.data.table_files import Schema, TableFile
from dpkernel.data.table_files.loading import open_declared
from dpkernel.foundations.errors import DPKernelError, ParameterError
from dpkernel.foundations.types import AddRemove, Budget, Neighbours
from dpkernel.privacy.ledger import Ledger

Data = Annotated[
    Path, typer.Argument(help="A CSV, TSV, Parquet, Arrow or NPZ file of rows.", show_default=False)
]
Model = Annotated[Path, typer.Argument(help="A model file.", show_default=False)]
Bounds = Annotated[
    Path, typer.Option(help="bounds.toml: what is public about every column.", show_default=False)
]
Target = Annotated[
    str | None, typer.Option(help="The column to predict, if bounds.toml does not name it.")
]
Task = Annotated[
    str | None,
    typer.Option(
        help="The task: regression, classification or quantile. By default the target decides:"
        " classification if it has levels, and else regression.",
        show_default=False,
    ),
]
Epsilon = Annotated[float, typer.Option(help="The privacy budget; at most this is spent.")]
Delta = Annotated[
    float, typer.Option(help="The delta that belongs to epsilon; 0 for pure epsilon.")
]
SharedDelta = Annotated[
    float | None,
    typer.Option(
        help="The delta that belongs to epsilon; 0 for pure epsilon. By default 1e-6, or with"
        " --ledger that of the ledger (where deltas add up, a share in proportion to epsilon).",
        show_default=False,
    ),
]
Relation = Annotated[
    str, typer.Option(help="The neighbouring relation: replace-one, zero-out or add-remove.")
]
MostRecords = Annotated[
    int | None,
    typer.Option(
        "--n-max",
        help="With --neighbours add-remove: a public number that the table's rows (with --group: its"
        " people) are known not to exceed, if bounds.toml does not state n_max.",
        show_default=False,
    ),
]
LedgerFile = Annotated[
    Path | None, typer.Option("--ledger", help="A ledger file that records the spend.")
]
Dataset = Annotated[
    str | None, typer.Option(help="The data set in the ledger, if it holds several.")
]
Wait = Annotated[
    float, typer.Option(help="Seconds to wait for another process that uses the ledger.")
]
Delimiter = Annotated[
    str | None, typer.Option(help="The character between the fields of a CSV file.")
]
Decimal = Annotated[
    str | None,
    typer.Option(help="The decimal sign of the numbers in a file: a dot (default) or a comma."),
]
Thousands = Annotated[
    str | None, typer.Option(help="The sign between groups of three digits in a file, if any.")
]
Encoding = Annotated[
    str | None, typer.Option(help="The encoding of a CSV file, if it is not UTF-8.")
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse the file if a cell that is not empty can't be read as bounds.toml declares it.",
    ),
]
Format = Annotated[
    str | None, typer.Option("--format", help="The format of DATA, if its ending does not say it.")
]
Group = Annotated[
    str | None,
    typer.Option(
        help="The column with the ids of people: each person is protected with all their rows."
    ),
]
Record = Annotated[
    str,
    typer.Option(
        help="With --group: how a person's rows become one record (near, one, mean, all)."
    ),
]
Scratch = Annotated[Path | None, typer.Option(help="Folder for a temporary copy of a large table.")]
Resume = Annotated[
    Path | None,
    typer.Option(
        help="A file in which the fit keeps what it has released. If the fit is interrupted, the same"
        " command finishes it without spending again. Keep it as secret as the data."
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace result files that exist already.")]
EstimatorName = Annotated[
    str | None,
    typer.Option("--estimator", help="Another estimator than the default one of the task."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="A public parameter of the estimator, as NAME=VALUE; repeatable."),
]
Quantiles = Annotated[
    list[float] | None,
    typer.Option("--quantile", help="A quantile, for --task quantile; repeatable."),
]

_DELTA = 1e-6  # where neither the command nor a ledger states one
NO_LEDGER = (
    "No ledger was named. Every fit to the same people adds to epsilon; `dpkernel ledger create` keeps"
    " the sum and stops at a ceiling."
)

TASKS: dict[str, tuple[str, ...]] = {  # the default estimator of a task comes first
    "regression": (
        "PrivateKernelRegressor",
        "PrivateKernelRidge",
        "PrivateHuberRegressor",
        "PrivateKernelSVR",
        "PrivateSGDRegressor",
        "PrivateSketchedRidge",
    ),
    "classification": ("PrivateKernelClassifier", "PrivateKernelSVC", "PrivateSGDClassifier"),
    "quantile": ("PrivateQuantileRegressor",),
}
PURE = {**{task: names[0] for task, names in TASKS.items()}, "regression": "PrivateKernelRidge"}
_RESERVED = (
    "bounds",
    "classes",
    "delta",
    "epsilon",
    "ledger",
    "neighbours",
    "noise",
    "quantile",
    "verbose",
    "y_bounds",
)


def task_of(task: str | None, target: Interval | Levels) -> str:
    """Return the task, which the declared target decides if none is stated."""
    return task or ("classification" if isinstance(target, Levels) else "regression")


def estimator_class(task: str, name: str | None = None, *, pure: bool = False) -> Any:
    """Return the class of the estimator for a task: the one with this name, or the default one.

    For pure epsilon the default is one that can do without a delta.
    """
    if task not in TASKS:
        raise ParameterError(f"--task must be one of {', '.join(TASKS)}. Got {task!r}.")
    known = TASKS[task]
    if name is not None and name not in known:
        raise ParameterError(
            f"--estimator must be one of {', '.join(known)} for {task}. Got {name!r}."
        )
    return getattr(estimators, name or (PURE[task] if pure else known[0]))


def new_estimator(
    kind: Any,
    task: str,
    budget: Budget,
    target: Interval | Levels,
    *,
    bounds: Any,
    relation: str | AddRemove,
    quantiles: Sequence[float] | None = None,
    settings: Sequence[str] | None = None,
    ledger: Ledger | None = None,
) -> Any:
    """Return an unfitted estimator for a declared target.

    Raises if public settings already show that a fit would be refused.
    """
    wanted: dict[str, Any] = {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "bounds": bounds,
        "neighbours": relation,
        "ledger": ledger,
    }
    if task == "classification":
        if not isinstance(target, Levels):
            raise ParameterError(
                "The target of a classification needs 'levels' in bounds.toml, not low and high."
            )
        wanted["classes"] = list(target.values)
    else:
        if not isinstance(target, Interval):
            raise ParameterError(
                f"The target of a {task} needs low and high in bounds.toml, not levels."
            )
        wanted["y_bounds"] = (target.low, target.high)
    if quantiles and task != "quantile":
        raise ParameterError("--quantile needs --task quantile.")
    if task == "quantile":
        chosen = sorted(quantiles or [0.5])
        wanted["quantile"] = chosen[0] if len(chosen) == 1 else chosen
    given = _settings(settings or (), kind)
    if isinstance(given.get("class_weight"), dict) and isinstance(target, Levels):
        given["class_weight"] = _by_level(given["class_weight"], target)
    known = kind().get_params(deep=False)
    if budget.pure and "solver" in known and not {"accept", "solver"} & set(given):
        given["solver"] = "output"  # its noise has pure epsilon without an assumption
    if budget.pure and "perturbation" in known and "accept" not in given:
        raise ParameterError(
            f"Pure epsilon (--delta 0) of {kind.__name__} assumes idealised arithmetic. Accept this"
            " with --set accept='[\"idealised-arithmetic\"]', or choose a delta above 0."
        )
    return kind(**wanted, **given)


def relation_of(neighbours: str, n_max: int | None, known: int | None = None) -> str | AddRemove:
    """Return the neighbouring relation; ``known`` is the number that bounds.toml states, if any."""
    if Neighbours.resolve(neighbours).n_is_public:
        if n_max is not None:
            raise ParameterError(
                f"--n-max needs --neighbours add-remove. With {neighbours}, the number of records is"
                " public as it is."
            )
        return neighbours
    if None not in (n_max, known) and n_max != known:
        raise ParameterError(
            f"--n-max is {n_max}, but bounds.toml states n_max = {known}. State one of them."
        )
    if n_max is None and known is None:
        raise ParameterError(
            "--neighbours add-remove hides how many records there are, so it needs a public number that"
            " the table is known not to exceed: --n-max N, or n_max = N in bounds.toml. Or use zero-out:"
            " it hides what a record says, but not how many records there are."
        )
    return AddRemove(n_max if n_max is not None else known)  # type: ignore[arg-type]


def _settings(texts: Sequence[str], kind: Any) -> dict[str, Any]:
    """Return NAME=VALUE texts as parameters. A value is written as in TOML or JSON, or is a word."""
    known = [name for name in kind().get_params(deep=False) if name not in _RESERVED]
    found: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        name = name.strip()
        if not sign or name not in known:
            raise ParameterError(
                f"--set must be NAME=VALUE with one of {', '.join(known)}. Got {name!r}."
            )
        parsed = _parsed(value)
        found[name] = tuple(parsed) if isinstance(parsed, list) else parsed
    return found


def _parsed(value: str) -> Any:
    with contextlib.suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(f"value = {value}")["value"]
    if value.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            return json.loads(value)
    return value


def _by_level(weights: dict[str, Any], target: Levels) -> dict[Any, Any]:
    """Return weights by declared level. Their keys are texts in TOML, also those of numbers."""
    places = Places(target.values)
    return {
        key if places.of(key) < 0 else target.values[places.of(key)]: weight
        for key, weight in weights.items()
    }


def declared_target(schema: Schema) -> Interval | Levels:
    """Return the bounds or levels of the target."""
    if schema.target is None or schema.target.values is None:
        raise ParameterError(
            "Name the column to predict with --target, or as [target] name in bounds.toml."
        )
    return schema.target.values


def open_data(
    path: Path,
    kind: str | None,
    schema: Schema,
    delimiter: str | None,
    decimal: str | None,
    thousands: str | None,
    encoding: str | None,
) -> TableFile:
    """Return the table in DATA. Options come before what bounds.toml says of a file."""
    sign = {"decimal": decimal, "thousands": thousands}
    return open_declared(path, kind, schema, delimiter=delimiter, encoding=encoding, **sign)


def open_ledger(
    path: Path | None, dataset: str | None, relation: str, wait: float, *, read_only: bool = False
) -> Ledger:
    """Return the ledger in a file, which must know the data set, or without a file one in memory."""
    if not wait >= 0:
        raise ParameterError(f"--wait must be at least 0 seconds. Got {wait:g}.")
    if path is None:
        if dataset is not None:
            raise Refusal("--dataset names a data set in a ledger. Add --ledger FILE.")
        return Ledger(neighbours=relation)
    if not path.exists():
        raise Refusal(
            f"There is no ledger {path.name}. Create one with the ceiling that the data's owner set:"
            f" dpkernel ledger create {path.name} --dataset NAME --epsilon 1 --delta 1e-6"
        )
    if read_only:
        settle(path, wait)
    expected = None if read_only else relation
    return Ledger(path, dataset=dataset, neighbours=expected, read_only=read_only, timeout=wait)


def budget_of(epsilon: float, delta: float | None, book: Ledger) -> Budget:
    """Return the budget of a spend; without a stated delta, it gets its share of the ledger's."""
    if delta is not None:
        return Budget(epsilon, delta)
    return Budget(epsilon, _DELTA) if book.budget is None else book.share(epsilon)


def settle(path: Path, wait: float) -> None:
    """Undo a spend that a killed process left half-written in a ledger.

    This needs permission to write. Without it nothing is done here, and the reader that comes next
    says what is wrong.
    """
    if path.exists() and Path(f"{path}-journal").exists():
        with contextlib.suppress(DPKernelError):
            Ledger(path, timeout=wait)


class SpendWatch:
    """Says what an interrupted or failed command has spent, according to its ledger."""

    def __init__(self, ledger: Ledger, in_file: bool, resume: Path | None = None) -> None:
        self._ledger, self._in_file, self._resume = ledger, in_file, resume
        self._before = len(ledger.spends)

    @property
    def spent(self) -> bool:
        """Whether anything was recorded since this object was made."""
        return len(self._ledger.spends) > self._before

    def __call__(self) -> str:
        """Return a sentence that says what was spent."""
        try:
            spent = self.spent
        except DPKernelError:
            return "The ledger can't be read now. Its history will tell whether anything was spent."
        if spent and self._resume is not None and self._resume.exists():
            return (
                f"What was spent is not lost: the same command with --resume {self._resume} finishes the"
                " fit and spends nothing more."
            )
        if not spent:
            return NOTHING_SPENT
        if self._in_file:
            return "The noise may have been drawn, so the spend stays recorded in the ledger."
        return "The noise may have been drawn, so count epsilon and delta as spent."
