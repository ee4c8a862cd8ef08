"""``dpkernel check``: show the data's owner what a fit would do with the cells of a file."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from dpkernel.cli import options
from dpkernel.cli.output import Output, one_line
from dpkernel.data.domain import Levels
from dpkernel.data.table_files import Schema, inspect_table, read_schema
from dpkernel.data.table_files.inspection import ColumnCounts
from dpkernel.data.table_files.schema import described
from dpkernel.foundations.types import JSON, Neighbours, no_add_remove

_OWNER = (
    "For the data's owner only: these counts are exact and not private. Do not pass them on, and do"
    " not choose bounds by them."
)
_ROWS = (
    "A fit would protect each row by itself. If a person can have several rows, add --group with the"
    " column of their ids, here and to `fit`."
)
_MANY = 0.2  # share of replaced cells above which a column is pointed out
_MOST = 0.5  # share of unreadable cells above which a column is lost


def check(
    output: Output,
    data: options.Data,
    bounds: options.Bounds,
    target: options.Target = None,
    delimiter: options.Delimiter = None,
    decimal: options.Decimal = None,
    thousands: options.Thousands = None,
    encoding: options.Encoding = None,
    file_format: options.Format = None,
    group: options.Group = None,
    neighbours: options.Relation = Neighbours.REPLACE_ONE.value,
    n_max: options.MostRecords = None,
    strict: options.Strict = False,
) -> None:
    """Show the data's owner what a fit would do with the cells of a file. Not private.

    It counts, for every column, the cells that are missing, that can't be read as declared and that
    lie outside of the declared range. Nothing is spent and nothing is written. The exit code is 1 if a
    fit with the same options and a target would refuse the file, or if most cells of a column can't be
    read.
    """
    schema = read_schema(bounds, target, group)
    relation = options.relation_of(neighbours, n_max, schema.n_max)
    hidden = not Neighbours.resolve(relation).n_is_public
    table = options.open_data(data, file_format, schema, delimiter, decimal, thousands, encoding)
    with output.progress(f"reading {data.name}") as tell:
        found = inspect_table(table, schema, tell, may_be_empty=hidden)
    output.say(_OWNER)
    whose = "" if found.n_people is None else f" of {found.n_people} people"
    output.say(f"{one_line(table.name)}: {found.n_rows} rows{whose}")
    output.show(_table(found.columns, narrow=output.narrow))
    for counts in found.columns:
        for line in _remarks(counts):
            output.say(line)
    refusals = list(found.refusals)
    if hidden and any(schema.imputed):
        refusals.append(no_add_remove("PrivatePipeline"))  # it finds what stands in for them
    unread = sum(counts.unreadable for counts in found.columns)
    if strict and unread:
        refusals.append(f"{unread} cells can't be read as declared, and --strict refuses them.")
    told: JSON = {
        "for_the_owner_only": True,
        "n_rows": found.n_rows,
        "n_people": found.n_people,
        "columns": [_as_json(counts) for counts in found.columns],
        "refusals": refusals,
    }
    if refusals:
        for line in refusals[1:]:
            output.say(line)
        output.fail(f"A fit would refuse this file. {refusals[0]}", **told)
    output.say(_inputs(schema))
    if group is None:
        output.say(_ROWS)
    lost = [one_line(c.rule.name) for c in found.columns if c.unreadable > _MOST * c.n_rows]
    if lost:
        output.fail(
            f"A fit would accept this file, but most cells of {', '.join(lost)} can't be read, so a"
            " model would learn nothing from them. Mend this before you spend anything.",
            **told,
        )
    output.say("A fit would accept this file.")
    output.result(told)


def _inputs(schema: Schema) -> str:
    """Return which columns a model would use. What is not known of new rows must be ignored."""
    names = ", ".join(one_line(rule.name) for rule in schema.inputs)
    aim = "" if schema.target is None else f" {one_line(schema.target.name)}"
    return (
        f"A model would predict{aim} from {names}. New rows need these columns, too; list in 'ignore'"
        " what is not known of them."
    )


def _table(columns: list[ColumnCounts], *, narrow: bool) -> Any:
    table = Table(box=None, pad_edge=False)
    for name in ("column",) if narrow else ("column", "declared"):
        table.add_column(name, overflow="ellipsis", no_wrap=True, min_width=None if narrow else 16)
    for name in ("missing", "unreadable", "outside"):
        table.add_column(name, justify="right", no_wrap=True, min_width=min(len(name) + 1, 10))
    width = 14 if any(counts.rule.imputed for counts in columns) else 10
    table.add_column("stands in", justify="right", no_wrap=True, min_width=width)
    for counts in columns:
        rule = counts.rule
        values = described([rule])[0].removeprefix(f"{rule.name}: ")
        shares = (counts.missing, counts.unreadable, counts.clipped)
        table.add_row(
            Text(one_line(rule.name)),
            *(() if narrow else (Text(one_line(values)),)),
            *(_share(count, counts.n_rows) for count in shares),
            Text(_stand_in(counts)),
        )
    return table


def _stand_in(counts: ColumnCounts) -> str:
    rule = counts.rule
    if isinstance(rule.values, Levels):
        return "no level" if rule.missing is None else one_line(str(rule.missing))
    if rule.imputed is not None:
        return str(rule.missing)
    return "" if rule.stand_in is None else rule.shown(rule.stand_in)


def _share(count: int, n_rows: int) -> str:
    return "0" if not count else f"{max(100 * count / n_rows, 0.1):.1f} %"


def _remarks(counts: ColumnCounts) -> list[str]:
    """Return sentences about the cells of a column that a fit would replace."""
    rule, lines = counts.rule, []
    name = one_line(rule.name)
    if counts.unreadable:
        looks = ", ".join(repr(shape) for shape in counts.shapes)
        what = "undeclared" if isinstance(rule.values, Levels) else "unreadable"
        advice = f" To mend this, {counts.advice}." if counts.advice else ""
        lines.append(
            f"{name}: {counts.unreadable} {what} cells look like {one_line(looks)} (9 stands for digits,"
            f" a for letters).{advice}"
        )
    lost = counts.missing + counts.unreadable
    if counts.n_rows and lost > _MANY * counts.n_rows:
        lines.append(
            f"{name}: a fit would replace {_share(lost, counts.n_rows)} of the cells by"
            f" {_stand_in(counts)}."
        )
    if counts.n_rows and counts.clipped > _MANY * counts.n_rows:
        lines.append(
            f"{name}: {_share(counts.clipped, counts.n_rows)} of the cells lie outside of the declared"
            " range. Is it stated in the unit of the file?"
        )
    return lines


def _as_json(counts: ColumnCounts) -> JSON:
    return {
        "name": counts.rule.name,
        "missing": counts.missing,
        "unreadable": counts.unreadable,
        "outside": counts.clipped,
        "stands_in": _stand_in(counts),
        "shapes": counts.shapes,
        "advice": counts.advice if counts.unreadable else None,
    }
