"""``dpkernel bounds``: write a template of bounds.toml, or find the bounds privately."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from dpkernel.cli import options
from dpkernel.cli.model_files import check_outputs, check_room, keep
from dpkernel.cli.output import Output, Refusal, one_line
from dpkernel.data.domain import Interval, Levels
from dpkernel.data.table_files import ColumnRule, Schema, TableFile, encode_table, read_schema
from dpkernel.data.table_files.loading import open_declared, written_as
from dpkernel.data.table_files.schema import other_delimiter
from dpkernel.foundations.errors import DataError
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.preprocessing import PrivateBounds
from dpkernel.privacy.certificate import Certificate


def bounds(
    output: Output,
    data: options.Data,
    schema: Annotated[
        bool, typer.Option("--schema", help="Write a template with names and types only.")
    ] = False,
    private: Annotated[
        bool, typer.Option("--private", help="Find the bounds privately; this spends budget.")
    ] = False,
    wide: Annotated[
        Path | None,
        typer.Option(help="With --private: a bounds.toml with ranges that are surely wide enough."),
    ] = None,
    target: options.Target = None,
    epsilon: Annotated[float | None, typer.Option(help="With --private: the budget.")] = None,
    delta: options.SharedDelta = None,
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("bounds.toml"),
    ledger: options.LedgerFile = None,
    dataset: options.Dataset = None,
    neighbours: options.Relation = Neighbours.REPLACE_ONE.value,
    group: options.Group = None,
    delimiter: options.Delimiter = None,
    decimal: options.Decimal = None,
    thousands: options.Thousands = None,
    encoding: options.Encoding = None,
    file_format: options.Format = None,
    strict: options.Strict = False,
    scratch: options.Scratch = None,
    wait: options.Wait = 30.0,
    force: options.Force = False,
) -> None:
    """Write a bounds.toml: a template (--schema), or bounds that are found privately (--private)."""
    if schema == private:
        raise Refusal("Pass either --schema or --private.")
    certificate_file = out.with_suffix(".certificate.json")
    results = [out, certificate_file] if private else [out]
    check_outputs(results, [data, wide, ledger], force=force)
    given = {
        "delimiter": delimiter,
        "decimal": decimal,
        "thousands": thousands,
        "encoding": encoding,
    }
    declared = None if wide is None else read_schema(wide, target, group)
    table = open_declared(data, file_format, declared, **given)
    written = written_as(declared, **given)
    if schema:
        hint = other_delimiter(table.header)
        if hint:
            raise Refusal(f"{table.name} seems to have one column.{hint}")
        out.write_text(template(table, written), encoding="utf-8")
        source = "as the file states them" if table.kinds else "from the first line of the file"
        output.say(f"Now fill in {out}. It holds only the names of the columns, {source}.")
        output.result({"bounds": str(out), "columns": list(table.header)})
        return
    if declared is None or wide is None or epsilon is None:
        raise Refusal(
            "--private needs --epsilon, the budget that is spent, and --wide FILE, a bounds.toml with"
            " ranges in which the columns surely lie."
        )
    declared = declared.select(table.header, table.name)
    searched = _numbers_of(declared, wide)
    book = options.open_ledger(ledger, dataset, neighbours, wait)
    budget = options.budget_of(epsilon, delta, book)
    output.on_interrupt = options.SpendWatch(book, ledger is not None)
    # check before the spend that the result can be read again
    tomllib.loads(as_toml(declared, declared.rules, written))
    for path in results:
        check_room(path)
    with output.progress(f"reading {data.name}") as tell:
        rows = encode_table(table, searched, tell=tell, folder=scratch, strict=strict)
    finder = PrivateBounds(
        epsilon=budget.epsilon,
        delta=budget.delta,
        bounds=rows.schema.domain(),
        y_range=None if searched.target is None else searched.target.values,
        neighbours=neighbours,
        ledger=book,
    )
    with output.progress("finding bounds", measured=False):
        X, y = rows.arrays()
        finder.fit(X, y, None if group is None else rows.ids)
    certificate = finder.certificate_
    text = _heading(certificate, certificate_file) + as_toml(
        declared, _narrowed(declared, rows.schema, finder), written
    )
    proof = certificate.to_json()

    def write(place: Path) -> None:
        place.write_text(text, encoding="utf-8")
        place.with_name(certificate_file.name).write_text(proof, encoding="utf-8")

    keep(out, write)
    output.explain(str(certificate))
    output.say()
    output.say(f"{'bounds':<12} {out}")
    output.say(f"{'certificate':<12} {certificate_file}")
    if ledger is None:
        output.say(options.NO_LEDGER)
    claim = {"epsilon": certificate.epsilon, "delta": certificate.delta}
    output.result({"bounds": str(out), "certificate": str(certificate_file), **claim})


def _numbers_of(declared: Schema, wide: Path) -> Schema:
    """Return the schema of the numeric columns, whose ranges are to be found.

    Columns with levels are left as they are.
    """
    numeric = tuple(
        # an indicator has no range to be found, and a median must not be asked for twice
        replace(rule, indicator=False, missing=None if rule.imputed else rule.missing)
        for rule in declared.inputs
        if isinstance(rule.values, Interval)
    )
    if not numeric:
        raise DataError(f"{wide.name} declares no input column with low and high.")
    own = declared.target
    target = own if own is not None and isinstance(own.values, Interval) else None
    others = [rule.name for rule in declared.rules if not isinstance(rule.values, Interval)]
    ignore = (*declared.ignore, *others)
    return replace(declared, inputs=numeric, target=target, ignore=ignore)


def _narrowed(declared: Schema, searched: Schema, finder: PrivateBounds) -> list[ColumnRule]:
    """Return the rules of all columns, with the ranges that were found."""
    low, high = finder.bounds_
    names = [rule.name for rule in searched.inputs]
    ranges = {
        name: Interval(float(a), float(b)) for name, a, b in zip(names, low, high, strict=True)
    }
    if searched.target is not None and finder.y_bounds_ is not None:
        ranges[searched.target.name] = Interval(*finder.y_bounds_)
    return [replace(rule, values=ranges.get(rule.name, rule.values)) for rule in declared.rules]


def _heading(certificate: Certificate, file: Path) -> str:
    claim = Budget(certificate.epsilon, certificate.delta)
    return (
        f"# Found privately: {claim}, {certificate.neighbours.value} neighbours.\n"
        f"# The certificate is in {file.name}.\n\n"
    )


_EXAMPLES = (("delimiter", ";"), ("decimal", ","), ("thousands", "."), ("encoding", "cp1252"))


def template(table: TableFile, written: Mapping[str, str]) -> str:
    """Return a bounds.toml to be filled in: names, and types if the file itself states them."""
    if not table.kinds and any(_is_number(name) for name in table.header):
        raise DataError(
            f"The first line of {table.name} holds a number where a column name belongs. It may be a"
            " row of data, so it is not written to a file. Add a header line, or write bounds.toml"
            " by hand."
        )
    if len(set(table.header)) < len(table.header):
        raise DataError(
            f"Two columns of {table.name} have the same name. Rename one of them, because bounds.toml"
            " identifies columns by their names."
        )
    lines = [
        "# Declare what is publicly known about each column. Never look these values up in the data.",
        "# For numbers, state low and high; values outside count as the nearest end.",
        "# For dates, state low and high as dates: low = 2020-01-01. Add format = '%d.%m.%Y' if needed.",
        "# For categories, state levels = [...]; other values count as none of the levels.",
        "# 'missing' states the value that replaces a missing one; otherwise the middle of the range",
        '# does. With missing = "private median" the fit finds it for a part of its budget.',
        "# 'indicator = true' adds a column that is 1 where a value is missing.",
        "# 'limits = true' reads <0.5 as 0.5. 'empty = [-9]' lists values that stand for missing ones.",
        "# unit = '%' reads 97 % as 97.",
        "",
        "ignore = []  # names of columns that are not used",
        'empty = []  # texts that count as an empty cell in every column, for example "NA"',
        "# n_max =   # for --neighbours add-remove: the table has publicly no more records than this",
    ]
    lines += _file_lines(written)
    if not table.kinds:  # a file of text
        lines += (
            [] if written else ["", "[file]  # how the file is written, if not as 1234.5, in UTF-8"]
        )
        lines += [f'# {name} = "{value}"' for name, value in _EXAMPLES if name not in written]
    kinds = table.kinds or ("",) * len(table.header)
    for name, kind in zip(table.header, kinds, strict=True):
        said = f"  # {one_line(kind)} in the file" if kind else ""
        lines += ["", f"[columns.{_key(name)}]{said}", "# low = ", "# high = "]
        lines += ["# levels = []"]
    return "\n".join(lines) + "\n"


def _file_lines(written: Mapping[str, str]) -> list[str]:
    """Return the table [file], so that the options need not be repeated."""
    stated = [f"{name} = {_value(value)}" for name, value in written.items()]
    return ["", "[file]", *stated] if stated else []


def as_toml(declared: Schema, rules: Iterable[ColumnRule], written: Mapping[str, str]) -> str:
    """Return a bounds.toml that says what ``declared`` does, with these rules for its columns."""
    lines = [f"ignore = {_value(list(declared.ignore))}"]
    lines += [f"empty = {_value(list(declared.empty))}"] if declared.empty else []
    lines += [] if declared.n_max is None else [f"n_max = {declared.n_max}"]
    lines += _file_lines(written)
    for rule in rules:
        if declared.target is not None and rule.name == declared.target.name:
            lines += ["", "[target]", f"name = {_value(rule.name)}"]
        else:
            lines += ["", f"[columns.{_key(rule.name)}]"]
        if isinstance(rule.values, Levels):
            lines.append(f"levels = {_value(list(rule.values.values))}")
        elif rule.values is not None and rule.format is None:
            lines += [f"low = {rule.values.low!r}", f"high = {rule.values.high!r}"]
        elif rule.values is not None:
            ends = (math.floor(rule.values.low), math.ceil(rule.values.high))
            lines += [f"low = {rule.shown(ends[0])}", f"high = {rule.shown(ends[1])}"]
            lines.append(f"format = {_value(rule.format)}")
        if rule.missing is not None:
            plain = rule.format is None or rule.imputed is not None
            shown = _value(rule.missing) if plain else rule.shown(rule.missing)
            lines.append(f"missing = {shown}")
        lines += [f"{key} = true" for key in ("limits", "indicator") if getattr(rule, key)]
        lines += [f"unit = {_value(rule.unit)}"] if rule.unit else []
        if rule.empty != declared.empty:
            lines.append(f"empty = {_value(list(rule.empty))}")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    """Return a name as a key of TOML, without quotation marks if that is allowed."""
    plain = name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name)
    return name if plain else _value(name)


def _value(value: Any) -> str:
    """Return a text, number, truth value or list of these in TOML.

    This is JSON with two exceptions: TOML has no surrogate pairs, so letters are written as they are,
    and TOML does not allow a bare DEL character.
    """
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def _is_number(name: str) -> bool:
    try:
        return math.isfinite(float(name))  # nan and inf may be names of columns
    except ValueError:
        return False
