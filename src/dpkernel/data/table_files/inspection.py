"""What a fit would do with the cells of a file: exact counts, for the owner of the data only.

Nothing here is private. The counts, and the shapes of cells that can't be read, must not leave the
place where the data are kept.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dpkernel.data.cells import identity, is_id, is_missing
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
from dpkernel.data.table_files.spelling import (
    PLAIN,
    Cells,
    Spelling,
    days,
    is_unit,
    numbers,
    unit_behind,
)
from dpkernel.foundations.types import Array

_SAMPLE = 2000  # cells per column that are kept to find out how they could be read
_SHAPES = 3
_RARE = 0.02  # share of the texts below which what stands behind a number is no unit
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
    spelling: Spelling = PLAIN

    def add(self, cells: Cells, spelling: Spelling) -> None:
        """Count a block of cells."""
        self.spelling = spelling
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
        """What would make cells readable, or say that they are missing; None if nothing is known."""
        if 2 * self.undecoded > self.unreadable:
            return "pass --encoding latin-1, or the encoding in which the file was written"
        if isinstance(self.rule.values, Levels):
            return self._advice_on_levels(self.rule.values)
        unit = "" if self.rule.format else _unit_of(self.sample)
        steps, rest, spelling = [], self.sample, self.spelling
        for advice, other, read in self._ways(unit):
            found = np.isnan(read(rest))
            if 2 * np.count_nonzero(found) < len(rest):
                steps = [*self._advice_on(unit), advice] if advice else self._advice_on(unit)
                rest, spelling = _only(rest, found), other
                break
        if self.rule.format is None:
            found = np.isnan(numbers(rest, spelling, limits=True, unit=unit or self.rule.unit))
            if not found.all():
                steps = steps or self._advice_on(unit)
                steps = steps if self.rule.limits else [*steps, "state limits = true"]
                rest = _only(rest, found)
        return _listed([*steps, *_codes_of(rest)])

    def _advice_on_levels(self, levels: Levels) -> str:
        known = {str(level).casefold() for level in levels.values}
        if 2 * sum(text.casefold() in known for text in self.sample) > len(self.sample):
            return (
                "spell them as the declared levels (they differ in upper and lower case only), or"
                " declare these spellings as levels, too"
            )
        rest = [text for text in self.sample if text.casefold() not in _CODES]
        more = ["declare their levels, or a 'missing' level that stands for them"] if rest else []
        return _listed([*_codes_of(self.sample), *more]) or ""

    def _advice_on(self, unit: str) -> list[str]:
        """Return how to declare a unit. Its letters are not quoted, because they come from cells."""
        if not unit:
            return []
        shown = (
            "the text behind the numbers as unit" if _LETTER.search(unit) else f'unit = "{unit}"'
        )
        share = sum(unit_behind(text) == unit for text in self.sample) / len(self.sample)
        whole = 2 * share * self.unreadable > self.n_rows
        return [f"state {shown}" + ("" if whole else ", if all numbers of the column are in it")]

    def _ways(self, unit: str) -> Iterator[tuple[str, Spelling, Callable[[list[str]], Array]]]:
        """Yield ways to read the column that are not declared: advice, spelling and reader."""
        read = partial(numbers, limits=self.rule.limits, unit=unit or self.rule.unit)
        if unit:
            yield "", self.spelling, partial(read, spelling=self.spelling)
        for option, spelling in _SPELLINGS.items():
            if spelling == _COMMA:
                commas, groups = (
                    np.isfinite(read(self.sample, spelling=way)) for way in (_COMMA, _GROUPED)
                )
                if commas.any() and not np.any(commas & ~groups):
                    yield _EITHER, _GROUPED, partial(read, spelling=_GROUPED)
            yield f"pass {option}", spelling, partial(read, spelling=spelling)
        own = self.rule.format if isinstance(self.rule.format, tuple) else (self.rule.format,)
        for how, pattern in _DATES.items():
            listed = ", ".join(f'"{one}"' for one in (*own, pattern))
            named = f"state low and high as dates{how}"
            advice = named if self.rule.format is None else f"state format = [{listed}]"
            yield advice, self.spelling, partial(days, pattern=pattern)


def _unit_of(texts: list[str]) -> str:
    """Return what most often stands behind the numbers of the texts, unless that is rare."""
    units = Counter(unit for unit in map(unit_behind, texts) if unit and is_unit(unit))
    found, count = units.most_common(1)[0] if units else ("", 0)
    return found if count >= _RARE * len(texts) else ""


def _only(texts: list[str], kept: Array) -> list[str]:
    return [text for text, keep in zip(texts, kept, strict=True) if keep]


def _codes_of(texts: list[str]) -> list[str]:
    """Return advice on texts that stand for missing values in many files; no others are quoted."""
    found = dict.fromkeys(text for text in texts if text.casefold() in _CODES)
    return [f"list {', '.join(map(json.dumps, found))} in 'empty'"] if found else []


def _listed(steps: list[str]) -> str | None:
    return ", and ".join(steps) or None


# texts that stand for missing values in many files, in lower case
_CODES = {"na", "n/a", "#n/a", "n.a.", "k.a.", "null", "none", "nil", "missing", "unknown"}
_CODES |= {"unbekannt", "inconnu", "fehlt", "-", "--", "---", ".", "..", "?", "*", "/"}
_LETTER = re.compile(r"[^\W\d_]")
_COMMA, _GROUPED = Spelling(","), Spelling(".", ",")
_EITHER = (
    "pass --thousands ',' if 1,234 is more than a thousand here, or --decimal ',' if it is not"
)
_SPELLINGS = {
    "--decimal ','": _COMMA,
    "--decimal ',' --thousands '.'": Spelling(",", "."),
    "--decimal ',' --thousands ' '": Spelling(",", " "),
    "--thousands ','": _GROUPED,
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
    """The counts of all declared columns, and what would make a fit be refused.

    Attributes
    ----------
    n_rows : int
        The number of rows of the file.
    columns : list of ColumnCounts
        The counts of each declared column.
    refusals : list of str
        Why a fit would refuse the file; empty if it would not.
    """

    n_rows: int
    columns: list[ColumnCounts]
    refusals: list[str]
    n_people: int | None = None


def inspect_table(
    table: TableFile, schema: Schema, tell: Tell = lambda share: None, *, may_be_empty: bool = False
) -> Inspection:
    """Read a file once and count its cells under the rules of the schema.

    Parameters
    ----------
    table : TableFile
        The file, as ``open_table`` returns it.
    schema : Schema
        The declared columns.
    tell : callable
        It is called with the share of the file that was read so far, from 0 to 1.
    may_be_empty : bool
        Whether a fit would accept a file without rows.

    Returns
    -------
    Inspection
        The counts. They are not private.
    """
    refusals = _wrong_columns(table, schema)
    rules = [rule for rule in schema.rules if table.header.count(rule.name) == 1]
    found = [ColumnCounts(rule) for rule in rules]
    n_rows = nobody = strange = 0
    people: set[Hashable] = set()
    group = [schema.group] if schema.group and table.header.count(schema.group) == 1 else []
    names = [rule.name for rule in rules] + group
    for columns in table.read(names, tell) if rules else ():
        for counts in found:
            counts.add(columns[counts.rule.name], table.spelling)
        n_rows += len(columns[rules[0].name])
        ids = schema.ids(columns) if group else []
        known = [cell for cell in ids if not is_missing(cell)]
        nobody += len(ids) - len(known)
        people.update(identity(cell) for cell in known if is_id(cell))
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
    return Inspection(n_rows, found, refusals, len(people) if group else None)


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
