"""``bounds.toml``: what is public about every column of a file, and how its cells become numbers.

An example::

    ignore = ["patient"]            # columns that are not used, whether declared or not

    empty = ["NA", "unknown"]       # texts that count as an empty cell, in every column
    n_max = 20000                   # more records are known not to exist (only for add-remove)

    [file]                          # how a CSV file is written; options of a command come first
    delimiter = ";"
    decimal = ","
    thousands = "."
    encoding = "cp1252"

    [columns.age]
    low = 0
    high = 110
    missing = 50                    # replaces missing values; by default the middle; with
                                    # "private median" or "private mean" the fit finds it

    [columns.crp]
    low = 0
    high = 300
    empty = [-9]                    # in this column, -9 counts as an empty cell
    limits = true                   # "<0.5" and ">300" count as 0.5 and 300
    unit = "mg/l"                   # may stand behind the number
    indicator = true                # a second column is 1 where the value is missing

    [columns.admitted]
    low = 2020-01-01                # dates become days
    high = 2026-12-31
    format = "%d.%m.%Y"             # or a list of formats; by default as in 2026-05-01

    [columns.ward]
    levels = ["north", "south"]     # one column of 0 and 1 per level; both are 0 for other values

    [target]                        # or [columns.NAME] like any other column
    name = "days"
    low = 0
    high = 60

Every rule is public and looks at one cell at a time. A cell counts as missing if it is empty, or if
it is not a number although numbers are declared. Nothing is refused because of such a cell, and no
message repeats it.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpkernel.data.cells import Places, is_missing
from dpkernel.data.domain import Domain, Interval, Levels
from dpkernel.data.table_files.readers import TableFile
from dpkernel.data.table_files.spelling import (
    ISO,
    PLAIN,
    Cells,
    DateFormat,
    Spelling,
    date_of,
    day,
    days,
    is_date_format,
    is_unit,
    numbers,
)
from dpkernel.foundations.errors import CertificateError, DataError, ParameterError
from dpkernel.foundations.types import JSON, Array, IntArray, is_real, is_whole

# what became of a cell: it was read, was missing, could not be read, or lay outside of its range
READ, MISSING, UNREADABLE, CLIPPED = range(4)
STATES = ("read", "missing", "unreadable", "outside")
# values of 'missing' for which a fit finds the replacement, and the strategy that finds it
IMPUTED = {"private median": "median", "private mean": "mean"}
Empty = tuple[str | float, ...]
Reading = Mapping[str, tuple[Any, IntArray]]  # what the cells say, and what became of each
WRITTEN = ("delimiter", "decimal", "thousands", "encoding")
_KEYS = {"low", "high", "levels", "missing", "format", "limits", "unit", "indicator", "empty"}


@dataclass(frozen=True)
class ColumnRule:
    """One column: its name, its declared values and the replacement of missing values.

    Parameters
    ----------
    name : str
        The name of the column.
    values : Interval, Levels or None
        The declared values. None means numbers without bounds, in new rows of a model that declares no
        bounds; the model then refuses missing values.
    missing : number, text or None
        What stands in for a missing cell: a number, a level, or a name in ``IMPUTED``, for what
        a fit is to find. None means the middle of the interval, or none of the levels.
    format : DateFormat, optional
        How dates are written. The interval of such a column counts days since 1970-01-01.
    limits : bool
        Whether a number may follow a sign such as "<".
    unit : str
        A text that may stand behind a number.
    indicator : bool
        Whether a second encoded column is 1 where a cell is missing or can't be read.
    empty : tuple of texts and numbers
        The cells that count as missing.
    """

    name: str
    values: Interval | Levels | None
    missing: Any = None
    format: DateFormat | None = None
    limits: bool = False
    indicator: bool = False
    empty: Empty = ()
    unit: str = ""

    def __post_init__(self) -> None:
        flags = (self.limits, self.indicator)
        fine = all(isinstance(flag, bool) for flag in flags) and (
            self.format is None or is_date_format(self.format)
        )
        fine = fine and is_unit(self.unit)
        if not fine or (
            isinstance(self.values, Levels) and (any(flags) or self.format or self.unit)
        ):
            raise ParameterError(f"The rules of column {self.name!r} contradict each other.")
        if self.missing is None:
            return
        if isinstance(self.values, Levels):
            if self.missing not in self.values.values:
                raise ParameterError(
                    f"The 'missing' value of column {self.name!r} must be one of its levels."
                )
        elif self.imputed is None and not (is_real(self.missing) and math.isfinite(self.missing)):
            kind = "finite number" if self.format is None else "date"
            raise ParameterError(
                f"The 'missing' value of column {self.name!r} must be a {kind}, or one of"
                f" {', '.join(map(repr, IMPUTED))}."
            )

    @property
    def names(self) -> list[str]:
        """The names of the encoded columns: one, or one per level, and that of the indicator."""
        if isinstance(self.values, Levels):
            return [f"{self.name}={level}" for level in self.values.values]
        return [self.name, f"{self.name} is missing"] if self.indicator else [self.name]

    @property
    def intervals(self) -> list[Interval]:
        """The bounds of the encoded columns; the 0 and 1 of levels stay 0 and 1 after scaling."""
        if isinstance(self.values, Levels):
            return [Interval(-1.0, 1.0)] * len(self.values.values)
        assert self.values is not None
        return [self.values, Interval(0.0, 1.0)] if self.indicator else [self.values]

    @property
    def imputed(self) -> str | None:
        """The strategy by which a fit finds what replaces missing numbers; None if that is public."""
        known = isinstance(self.values, Interval) and isinstance(self.missing, str)
        return IMPUTED.get(self.missing) if known else None

    @property
    def stand_in(self) -> float | None:
        """The public number that replaces a missing one; None if there is none."""
        if not isinstance(self.values, Interval) or self.imputed is not None:
            return None
        return self.values.middle if self.missing is None else float(self.missing)

    def encoded(self, found: Any, states: IntArray) -> Array:
        """Return the encoded columns of what ``read`` found, as floats."""
        if isinstance(self.values, Levels):
            every = np.arange(len(self.values.values))
            return np.asarray(self.placed(found)[:, None] == every, dtype=np.float64)
        columns = [self.clipped(found)]
        if self.indicator:
            columns.append(((states == MISSING) | (states == UNREADABLE)).astype(np.float64))
        return np.column_stack(columns)

    def encode(self, cells: Cells, spelling: Spelling = PLAIN) -> Array:
        """Return the encoded columns as floats."""
        return self.encoded(*self.read(cells, spelling))

    def numbers(self, cells: Cells, spelling: Spelling = PLAIN) -> Array:
        """Return the cells as numbers clipped to the interval, with missing ones replaced."""
        return self.clipped(self.read(cells, spelling)[0])

    def places(self, cells: Cells) -> IntArray:
        """Return the place of every cell among the levels; others get the ``missing`` level or -1."""
        return self.placed(self.read(cells)[0])

    def read(self, cells: Cells, spelling: Spelling = PLAIN) -> tuple[Any, IntArray]:
        """Return what the cells say, and what became of each: READ, MISSING, UNREADABLE or CLIPPED.

        Numbers are neither clipped nor replaced, and are NaN where there is none. Of levels, the
        place is returned, or -1.
        """
        found: Any
        if isinstance(self.values, Levels):
            places = Places(self.values.values)
            found = np.array([places.of(_spelled(cell)) for cell in cells], dtype=np.int64)
            states = np.where(found < 0, UNREADABLE, READ)
        else:
            found, states = self._read_numbers(cells, spelling)
        empty = Places(self.empty) if self.empty else None
        for place in np.flatnonzero(states == UNREADABLE).tolist():
            cell = _spelled(cells[place])
            if _is_blank(cell) or is_missing(cell) or (empty is not None and empty.of(cell) >= 0):
                states[place] = MISSING
        return found, states

    def _read_numbers(self, cells: Cells, spelling: Spelling) -> tuple[Array, IntArray]:
        if self.format is None:
            found = numbers(cells, spelling, limits=self.limits, unit=self.unit)
        else:
            found = days(cells, self.format)
        states = np.where(np.isnan(found), UNREADABLE, READ)
        if self.empty and self.format is None:
            coded = np.isin(found, numbers(self.empty))
            found, states = np.where(coded, math.nan, found), np.where(coded, MISSING, states)
        if isinstance(self.values, Interval):
            states[(found < self.values.low) | (found > self.values.high)] = CLIPPED
        return found, states

    def clipped(self, found: Array) -> Array:
        """Return numbers clipped to the interval; missing ones are replaced, or left to the fit."""
        if not isinstance(self.values, Interval):
            return found
        if self.stand_in is not None:
            found = np.where(np.isnan(found), self.stand_in, found)
        return np.asarray(np.clip(found, self.values.low, self.values.high))

    def placed(self, found: IntArray) -> IntArray:
        """Return places among the levels, with those of other values replaced."""
        assert isinstance(self.values, Levels)
        absent = -1 if self.missing is None else Places(self.values.values).of(self.missing)
        return np.where(found < 0, absent, found)

    def shown(self, value: float) -> str:
        """Return a number of this column as its reader writes it: a number, or a date."""
        return f"{value:g}" if self.format is None else date_of(value).isoformat()

    def to_dict(self) -> JSON:
        """Return the rule as JSON values."""
        found: JSON = {"name": self.name, "missing": self.missing}
        for key in ("format", "limits", "unit", "indicator"):
            value = getattr(self, key)
            if value:
                found[key] = list(value) if isinstance(value, tuple) else value
        if self.empty:
            found["empty"] = list(self.empty)
        return found if self.values is None else {**found, **self.values.to_dict()}

    @classmethod
    def from_dict(cls, data: JSON) -> ColumnRule:
        """Return the rule described by JSON values."""
        keys = ("format", "limits", "unit", "indicator")
        more: JSON = {key: data[key] for key in keys if key in data}
        if isinstance(more.get("format"), list):
            more["format"] = tuple(more["format"])
        more["empty"] = _empty(data.get("empty", []), f"column {data['name']!r}")
        if "levels" in data:
            return cls(data["name"], Levels(tuple(data["levels"])), data["missing"], **more)
        if "low" not in data:
            return cls(data["name"], None)
        return cls(data["name"], Interval(data["low"], data["high"]), data["missing"], **more)


@dataclass(frozen=True)
class Schema:
    """The declared columns of a table: inputs in their order, the target, and ignored columns.

    Parameters
    ----------
    inputs : tuple of ColumnRule
        The columns from which a model predicts.
    target : ColumnRule, optional
        The column to predict.
    ignore : tuple of str
        The names of columns that are not read.
    group : str, optional
        The name of the column that says whose row each row is. It is never an input.
    empty : tuple of texts and numbers
        The cells that stand for a missing id in the column ``group``.
    n_max : int, optional
        A public limit on the number of records.
    written : tuple of pairs
        How a CSV file is written, as far as that is declared: names in ``WRITTEN`` and values.
    """

    inputs: tuple[ColumnRule, ...]
    target: ColumnRule | None = None
    ignore: tuple[str, ...] = ()
    group: str | None = None
    empty: Empty = ()
    n_max: int | None = None
    written: tuple[tuple[str, str], ...] = ()

    def with_group(self, name: str | None) -> Schema:
        """Return the schema in which a column holds ids of people, whether or not it is declared."""
        if name is None:
            return self
        if self.target is not None and name == self.target.name:
            raise ParameterError(f"The column {name!r} can't be both the target and the group.")
        own = [rule.empty for rule in self.inputs if rule.name == name]
        inputs = tuple(rule for rule in self.inputs if rule.name != name)
        ignore = (*self.ignore, name)
        return replace(
            self, inputs=inputs, ignore=ignore, group=name, empty=(own or [self.empty])[0]
        )

    @property
    def rules(self) -> tuple[ColumnRule, ...]:
        """The rules of all columns that are read."""
        return self.inputs if self.target is None else (*self.inputs, self.target)

    @property
    def imputed(self) -> list[str | None]:
        """The strategy that replaces missing values, or None, for each encoded input."""
        return [
            rule.imputed if place == 0 else None
            for rule in self.inputs
            for place in range(len(rule.names))
        ]

    @property
    def names_out(self) -> list[str]:
        """The names of the encoded inputs."""
        return [name for rule in self.inputs for name in rule.names]

    @property
    def names_in(self) -> list[str]:
        """The names of the inputs in the file."""
        return [rule.name for rule in self.inputs]

    def of_new_rows(self, header: Sequence[str]) -> Schema:
        """Return the schema of the inputs alone, for a file in which other columns are ignored."""
        others = tuple(name for name in header if name not in self.names_in)
        return Schema(self.inputs, ignore=others, written=self.written)

    def domain(self) -> Domain:
        """Return the declared box of the encoded inputs, with their names."""
        columns = [interval for rule in self.inputs for interval in rule.intervals]
        return Domain(tuple(columns), names=tuple(self.names_out))

    def select(self, header: Sequence[str], owner: str) -> Schema:
        """Return the schema with inputs in the order of the file; refuse a file that does not match.

        A column of the file that is not declared is named by its position only, because a file
        without a header line has data where names should be.
        """
        known = {rule.name: rule for rule in self.inputs}
        for name in (*(rule.name for rule in self.rules), *([self.group] if self.group else [])):
            _one_of(header, name, owner)
        target = None if self.target is None else self.target.name
        for place, name in enumerate(header, start=1):
            if name not in known and name != target and name not in self.ignore:
                ids = "" if self.group else " A column with the ids of people belongs in --group."
                raise DataError(
                    f"Column {place} of {owner} is not declared. Give it a [columns.NAME] table with"
                    f" low and high or levels, or name it in 'ignore'.{ids}"
                )
        return replace(self, inputs=tuple(known[name] for name in header if name in known))

    def refuse_kinds(self, table: TableFile) -> None:
        """Refuse a column that is declared as numbers or dates, but has another type in the file."""
        for rule in self.rules:
            if isinstance(rule.values, Levels) or rule.name not in table.not_numbers:
                continue
            if rule.format is None:
                hint = (
                    "State low and high as dates"
                    if rule.name in table.dates
                    else "Turn it into numbers"
                )
                raise DataError(
                    f"Column {rule.name!r} of {table.name} is declared with low and high, but its type"
                    f" in the file holds no numbers. {hint} first, or ignore it."
                )
            if rule.name not in table.dates:
                raise DataError(
                    f"Column {rule.name!r} of {table.name} is declared as dates, but its type in the"
                    " file holds none."
                )

    def read(self, columns: Mapping[str, Cells], spelling: Spelling = PLAIN) -> Reading:
        """Return what the cells of a block of rows say, and what became of each, by column."""
        return {rule.name: rule.read(columns[rule.name], spelling) for rule in self.rules}

    def ids(self, columns: Mapping[str, Cells]) -> list[Any]:
        """Return the ids of a block of rows without outer blanks; empty cells and "nan" are missing."""
        cells = columns[self.group] if self.group is not None else ()
        texts = [_spelled(cell) if isinstance(cell, str) else cell for cell in cells]
        found = [None if _is_blank(cell) else cell for cell in texts]
        if not self.empty:
            return found
        empty = Places(self.empty)
        return [None if is_missing(cell) or empty.of(cell) >= 0 else cell for cell in found]

    def encode(self, columns: Mapping[str, Cells], spelling: Spelling = PLAIN) -> Array:
        """Return the encoded inputs of a block of rows, side by side."""
        return np.hstack([rule.encode(columns[rule.name], spelling) for rule in self.inputs])

    def encoded(self, reading: Reading) -> Array:
        """Return the encoded inputs of rows that were read, side by side."""
        return np.hstack([rule.encoded(*reading[rule.name]) for rule in self.inputs])

    def encoded_target(self, reading: Reading) -> Array:
        """Return the targets: numbers, or places among the declared classes."""
        assert self.target is not None
        found = reading[self.target.name][0]
        if isinstance(self.target.values, Interval):
            return self.target.clipped(found)
        places = self.target.placed(found)
        if (places < 0).any():
            raise DataError(
                f"The target {self.target.name!r} has a label that is not among its declared levels."
                " Declare every level, or a 'missing' level that stands for all others. Nothing was"
                " spent."
            )
        return places.astype(np.float64)

    def to_dict(self) -> JSON:
        """Return the schema as JSON values, for the header of a model file."""
        return {
            "inputs": [rule.to_dict() for rule in self.inputs],
            "target": None if self.target is None else self.target.to_dict(),
            **({"file": dict(self.written)} if self.written else {}),
        }

    @classmethod
    def from_dict(cls, data: JSON) -> Schema:
        """Return the schema described by JSON values."""
        try:
            inputs = tuple(ColumnRule.from_dict(rule) for rule in data["inputs"])
            target = data["target"]
            if not inputs:
                raise CertificateError("The model file describes no input columns.")
            return cls(
                inputs,
                None if target is None else ColumnRule.from_dict(target),
                written=_written(data.get("file", {}), "The model file"),
            )
        except (KeyError, TypeError, ParameterError, AttributeError) as error:
            raise CertificateError(
                f"The columns that the model file describes can't be read ({type(error).__name__})."
            ) from error


def read_schema(path: str | Path, target: str | None = None, group: str | None = None) -> Schema:
    """Read a ``bounds.toml``. If nothing names a target, all columns are inputs.

    Parameters
    ----------
    path : path
        The file.
    target : str, optional
        The name of the column to predict. It comes before the name that the file states.
    group : str, optional
        The name of the column with the ids of people, which is then no input.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "not UTF-8"
        raise ParameterError(
            f"{path.name} is not a TOML file ({reason}). Texts stand in quotation marks, and numbers are"
            " written as 1000.5, whatever the file of rows does."
        ) from error
    unknown = set(data) - {"columns", "target", "ignore", "empty", "n_max", "file"}
    if unknown:
        raise ParameterError(
            f"{path.name} has an entry {min(unknown)!r}; it may have 'columns', 'target', 'ignore',"
            " 'empty', 'n_max' and 'file'."
        )
    written = _written(data.get("file", {}), path.name)
    n_max = data.get("n_max")
    if n_max is not None and not (is_whole(n_max) and n_max >= 1):
        raise ParameterError(f"'n_max' of {path.name} must be a whole number of at least 1.")
    empty = _empty(data.get("empty", []), path.name)
    tables, own, ignore = (data.get(key, {}) for key in ("columns", "target", "ignore"))
    ignore = ignore or []
    if not isinstance(tables, dict) or not isinstance(own, dict) or not _texts(ignore):
        raise ParameterError(
            f"{path.name} must hold tables [columns.NAME], at most one [target], and ignore = [names]."
        )
    name = target if target is not None else own.get("name")
    if not (name is None or isinstance(name, str)):
        raise ParameterError(f"The name in [target] of {path.name} must be a text.")
    unused = [*ignore, group]
    left_out = {key for key in unused if key != name and tables.get(key) == {}}
    rules = {
        key: _rule(key, table, path.name, empty)
        for key, table in tables.items()
        if key not in left_out
    }
    found = None
    if name is not None:
        found = _target(name, own, rules, path.name, empty)
        rules.pop(name, None)
    elif own:
        raise ParameterError(
            f"[target] of {path.name} has no name. State it: name = ..., or --target."
        )
    inputs = tuple(rule for key, rule in rules.items() if key not in ignore)
    found_schema = Schema(inputs, found, tuple(ignore), empty=empty, n_max=n_max, written=written)
    return found_schema.with_group(group)


def _target(
    name: str, own: JSON, rules: Mapping[str, ColumnRule], file: str, empty: Empty
) -> ColumnRule:
    found = _declared_target(name, own, rules, file, empty)
    if found.imputed is not None:
        raise ParameterError(
            f"The missing values of the target {name!r} of {file} can't be found by the fit. State a"
            " number as 'missing'."
        )
    if found.indicator:
        raise ParameterError(f"The target {name!r} of {file} can't have an indicator column.")
    return found


def _declared_target(
    name: str, own: JSON, rules: Mapping[str, ColumnRule], file: str, empty: Empty
) -> ColumnRule:
    bounds = {key: value for key, value in own.items() if key != "name"}
    if bounds and own.get("name", name) == name and name in rules:
        raise ParameterError(f"{file} declares {name!r} twice: in [columns] and in [target].")
    if bounds and own.get("name", name) == name:
        return _rule(name, bounds, file, empty)
    if name in rules:
        return rules[name]
    raise ParameterError(
        f"{file} does not declare the target {name!r}. Give it a [columns.{name}] or [target] table"
        " with low and high, or levels."
    )


def _rule(name: str, table: Any, file: str, empty: Empty) -> ColumnRule:
    if not isinstance(table, dict) or set(table) - _KEYS:
        strange = f" It has {min(set(table) - _KEYS)!r}." if isinstance(table, dict) else ""
        raise ParameterError(
            f"Column {name!r} of {file} must be a table with low and high, or levels, and optionally"
            f" missing, empty, format, limits, unit and indicator.{strange}"
        )
    if not table:
        raise ParameterError(
            f"Column {name!r} of {file} is not filled in. State low and high, or levels, or list the"
            " column in 'ignore'. A column with the ids of people belongs in --group."
        )
    levels, low, high = (table.get(key) for key in ("levels", "low", "high"))
    if (levels is None) == (low is None or high is None):
        raise ParameterError(f"Column {name!r} of {file} needs low and high, or levels; not both.")
    if levels is not None and not (isinstance(levels, list) and levels and _are_levels(levels)):
        raise ParameterError(
            f"The levels of column {name!r} of {file} must be a list of texts, finite numbers or truth"
            " values."
        )
    more = _reading(name, table, file)
    missing = table.get("missing")
    if more["format"] is not None:
        low, high = day(low), day(high)
        missing = missing if missing is None or missing in IMPUTED else day(missing)
    own = _empty(table["empty"], f"Column {name!r} of {file}") if "empty" in table else empty
    try:
        values = Interval(low, high) if levels is None else Levels(tuple(levels))  # type: ignore[arg-type]
    except ParameterError as error:
        raise ParameterError(f"Column {name!r} of {file}: {error}") from error
    rule = ColumnRule(name, values, missing, empty=own, **more)
    stand_in = rule.stand_in
    if (
        isinstance(values, Interval)
        and stand_in is not None
        and not values.low <= stand_in <= values.high
    ):
        raise ParameterError(
            f"The 'missing' value of column {name!r} of {file} lies outside of low and high. Widen them,"
            " or use 'indicator = true' to mark missing values."
        )
    return rule


def _reading(name: str, table: JSON, file: str) -> JSON:
    """Return the rules by which the cells of a column are read, after checking that they agree."""
    found = {key: table.get(key, False) for key in ("limits", "indicator")}
    for key, value in found.items():
        if not isinstance(value, bool):
            raise ParameterError(f"'{key}' of column {name!r} of {file} must be true or false.")
        if value and "levels" in table:
            raise ParameterError(f"Column {name!r} of {file} has levels, so '{key}' has no use.")
    found["unit"] = unit = table.get("unit", "")
    if not is_unit(unit):
        raise ParameterError(
            f"'unit' of column {name!r} of {file} must be the text that stands behind its numbers, for"
            ' example "%", and may not begin with a digit, a sign, a dot or a comma.'
        )
    if unit and "levels" in table:
        raise ParameterError(f"Column {name!r} of {file} has levels, so 'unit' has no use.")
    ends = [table.get(key) for key in ("low", "high")]
    dated = [isinstance(end, datetime.date) for end in ends]
    pattern = table.get("format", ISO if any(dated) else None)
    if pattern is None:
        return {**found, "format": None}
    if not all(dated):
        raise ParameterError(
            f"Column {name!r} of {file} is a column of dates, so its low and high must be dates, for"
            " example low = 2020-01-01."
        )
    for key in ("limits", "unit"):
        if found[key]:
            raise ParameterError(f"Column {name!r} of {file} holds dates, so '{key}' has no use.")
    pattern = tuple(pattern) if isinstance(pattern, list) else pattern
    if not is_date_format(pattern):
        raise ParameterError(
            f"The format of column {name!r} of {file} must say how a whole date is written, for example"
            ' "%d.%m.%Y", or be a list of such formats, of which the first that reads a cell counts.'
        )
    return {**found, "format": pattern}


def _empty(values: Any, owner: str) -> Empty:
    fine = isinstance(values, list) and all(
        isinstance(value, str) or (is_real(value) and math.isfinite(value)) for value in values
    )
    with contextlib.suppress(ValueError):
        if fine and (not values or Places(tuple(values))):
            return tuple(values)
    raise ParameterError(f"'empty' of {owner} must be a list of different texts or finite numbers.")


def _written(table: Any, owner: str) -> tuple[tuple[str, str], ...]:
    fine = isinstance(table, dict) and set(table) <= set(WRITTEN)
    if not fine or not all(isinstance(value, str) for value in table.values()):
        raise ParameterError(
            f"[file] of {owner} says how a CSV file is written. It may state {', '.join(WRITTEN)}, each"
            " as a text."
        )
    return tuple(sorted(table.items()))


def _are_levels(values: list[Any]) -> bool:
    return all(
        isinstance(value, (str, bool)) or (is_real(value) and math.isfinite(value))
        for value in values
    )


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _one_of(header: Sequence[str], name: str, owner: str) -> None:
    count = sum(one == name for one in header)
    if count != 1:
        what = "no column" if not count else f"{count} columns"
        hint = other_delimiter(header)
        raise DataError(f"{owner} has {what} named {name!r}, but must have exactly one.{hint}")


def other_delimiter(header: Sequence[str]) -> str:
    """Return advice if the header line was not divided by the delimiter that was used."""
    signs = [sign for sign in (";", "\t", "|") if len(header) == 1 and sign in header[0]]
    shown = {"\t": "$'\\t'"}.get(signs[0], f"'{signs[0]}'") if signs else ""
    return f" Its first line is one field; it may need --delimiter {shown}." if signs else ""


def _spelled(cell: Any) -> Any:
    """Return a cell as levels in a file are spelled: texts without outer blanks, dates as texts."""
    if isinstance(cell, str):
        return cell.strip()
    return str(cell) if isinstance(cell, datetime.date) else cell


def _is_blank(cell: Any) -> bool:
    """Return whether a text without outer blanks stands for nothing."""
    return isinstance(cell, str) and cell.lower() in ("", "nan")


def described(rules: Iterable[ColumnRule]) -> list[str]:
    """Return one readable line per column."""
    lines = []
    for rule in rules:
        if isinstance(rule.values, Levels):
            lines.append(f"{rule.name}: {', '.join(str(level) for level in rule.values.values)}")
        elif rule.values is not None:
            low, high = rule.shown(rule.values.low), rule.shown(rule.values.high)
            lines.append(f"{rule.name}: {low} to {high}")
        else:
            lines.append(f"{rule.name}: any number")
    return lines


def middles(schema: Schema, most: int = 5) -> str:
    """Return a sentence that names the columns in which the middle of the range replaces missing cells.

    The sentence is public: it depends on the declaration alone. It is empty if every column of
    numbers states its own replacement.
    """
    found = [
        f"{rule.name} ({rule.shown(rule.stand_in)})"
        for rule in schema.rules
        if rule.stand_in is not None and rule.missing is None
    ]
    if not found:
        return ""
    listed = ", ".join(found[:most]) + (
        f" and {len(found) - most} more" if len(found) > most else ""
    )
    return (
        f"Where a cell is missing or can't be read, the middle of the range stands in: {listed}. State"
        " 'missing' in bounds.toml to choose another value, or 'indicator = true': then the model"
        " learns, within the same budget, what to predict there. `dpkernel check` counts such cells."
    )
