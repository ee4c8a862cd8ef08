"""What a fit would do with the cells of a file: exact counts, for the owner of the data only.

Nothing here is private. The counts, and the shapes of cells that can't be read, must not leave the
place where the data are kept.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dpkernel.data.cells import is_id, is_missing
from dpkernel.data.domain import Levels
from dpkernel.data.table_files.readers import TableFile, Tell
from dpkernel.data.table_files.schema import (
    CLIPPED,
    MISSING,
    UNREADABLE,
    ColumnRule,
    Schema,
    other_delimiter,
)
from dpkernel.data.table_files.spelling import Cells, Spelling, days, numbers

_SAMPLE = 2000  # cells per column that are kept to find out how they could be read
_SHAPES = 3
_REPLACED = "\ufffd"  # what stands for bytes that are no text


@dataclass
class ColumnCounts:
    """The cells of one column: how many are missing, can't be read, or lie outside of the range."""

    rule: ColumnRule
    n_rows: int = 0
    missing: int = 0
    unreadable: int = 0
    clipped: int = 0
    undecoded: int = 0
    sample: list[str] = field(default_factory=list)

    def add(self, cells: Cells, spelling: Spelling) -> None:
        """Count a block of cells."""
        states = self.rule.read(cells, spelling)[1]
        self.n_rows += len(states)
        self.missing += int(np.count_nonzero(states == MISSING))
        self.clipped += int(np.count_nonzero(states == CLIPPED))
        lost = np.flatnonzero(states == UNREADABLE).tolist()
        self.unreadable += len(lost)
        texts = [str(cells[place]).strip() for place in lost]
        self.undecoded += sum(_REPLACED in text for text in texts)
        self.sample += texts[: _SAMPLE - len(self.sample)]

    @property
    def shapes(self) -> list[str]:
        """How the cells that can't be read look: 9 stands for digits and a for letters."""
        return [shape for shape, _ in Counter(map(_shape, self.sample)).most_common(_SHAPES)]

    @property
    def advice(self) -> str | None:
        """What would make most of the cells readable, or None."""
        if 2 * self.undecoded > self.unreadable:
            return "pass --encoding latin-1, or the encoding in which the file was written"
        if isinstance(self.rule.values, Levels):
            known = {str(level).casefold() for level in self.rule.values.values}
            if 2 * sum(text.casefold() in known for text in self.sample) > len(self.sample):
                return (
                    "spell them as the declared levels (they differ in upper and lower case only), or"
                    " declare these spellings as levels, too"
                )
            return "declare their levels, or a 'missing' level that stands for them"
        tries = {
            f"pass {option}": partial(numbers, self.sample, spelling, limits=self.rule.limits)
            for option, spelling in _SPELLINGS.items()
        }
        if self.rule.format is not None:
            own = self.rule.format if isinstance(self.rule.format, tuple) else (self.rule.format,)
            for pattern in _DATES.values():
                listed = ", ".join(f'"{one}"' for one in (*own, pattern))
                tries[f"state format = [{listed}]"] = partial(days, self.sample, pattern)
        tries["state limits = true"] = partial(numbers, self.sample, limits=True)
        for how, pattern in _DATES.items():
            tries[f"state low and high as dates{how}"] = partial(days, self.sample, pattern)
        for advice, read in tries.items():
            if 2 * np.count_nonzero(~np.isnan(read())) > len(self.sample):
                return advice
        return None


_SPELLINGS = {
    "--decimal ,": Spelling(","),
    "--decimal , --thousands .": Spelling(",", "."),
    "--decimal , --thousands ' '": Spelling(",", " "),
    "--thousands ,": Spelling(".", ","),
    "--thousands ' '": Spelling(".", " "),
}
_DATES = {
    "": "iso",
    ', and format = "%d.%m.%Y"': "%d.%m.%Y",
    ', and format = "%d/%m/%Y"': "%d/%m/%Y",
    ', and format = "%m/%d/%Y"': "%m/%d/%Y",
}


@dataclass(frozen=True)
class Inspection:
    """The counts of all declared columns, and what would make a fit be refused."""

    n_rows: int
    columns: list[ColumnCounts]
    refusals: list[str]


def inspect_table(
    table: TableFile,
    schema: Schema,
    tell: Tell = lambda share: None,
    *,
    may_be_empty: bool = False,
) -> Inspection:
    """Read a file once and count its cells under the rules of the schema.

    ``may_be_empty`` says whether a fit would accept a file without rows.
    """
    refusals = _wrong_columns(table, schema)
    rules = [rule for rule in schema.rules if table.header.count(rule.name) == 1]
    found = [ColumnCounts(rule) for rule in rules]
    n_rows = nobody = strange = 0
    group = [schema.group] if schema.group and table.header.count(schema.group) == 1 else []
    names = [rule.name for rule in rules] + group
    for columns in table.read(names, tell) if rules else ():
        for counts in found:
            counts.add(columns[counts.rule.name], table.spelling)
        n_rows += len(columns[rules[0].name])
        ids = schema.ids(columns) if group else []
        known = [cell for cell in ids if not is_missing(cell)]
        nobody += len(ids) - len(known)
        strange += sum(not is_id(cell) for cell in known)
    if nobody:
        refusals.append(f"{nobody} rows have no id in the column {schema.group!r}.")
    if strange:
        refusals.append(
            f"{strange} rows have an id in the column {schema.group!r} that can't be compared."
        )
    if not schema.inputs:
        refusals.append(
            f"{table.name} has no input column besides the target and the ignored ones."
        )
    if rules and not n_rows and not may_be_empty:
        refusals.append(f"{table.name} has no rows.")
    for counts in found:
        rule = counts.rule
        lost = counts.missing + counts.unreadable
        if (
            rule is schema.target
            and isinstance(rule.values, Levels)
            and rule.missing is None
            and lost
        ):
            refusals.append(
                f"{lost} labels of the target {rule.name!r} are not among its declared levels."
            )
    return Inspection(n_rows, found, refusals)


def _wrong_columns(table: TableFile, schema: Schema) -> list[str]:
    known = {rule.name for rule in schema.rules}
    hint = other_delimiter(table.header)
    needed = [rule.name for rule in schema.rules] + ([schema.group] if schema.group else [])
    found = [
        f"{table.name} has {table.header.count(name)} columns named {name!r}.{hint}"
        for name in needed
        if table.header.count(name) != 1
    ]
    return found + [
        f"Column {place} of {table.name}, {name!r}, is neither declared nor ignored."
        for place, name in enumerate(table.header, start=1)
        if name not in known and name not in schema.ignore
    ]


def _shape(text: str) -> str:
    """Return a text with 9 for digits and a for letters, so that it does not repeat the cell."""
    return re.sub(r"[^\W\d_]+", "a", re.sub(r"\d+", "9", text))[:20]
