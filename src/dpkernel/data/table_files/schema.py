"""``bounds.toml``: what is public about every column of a file, and how its cells become numbers.

An example::

    ignore = ["patient"]            # columns that are not used, whether declared or not

    [columns.age]
    low = 0
    high = 110
    missing = 50                    # replaces missing values; by default the middle

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

import datetime
import math
import tomllib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpkernel.data.cells import Places, as_numbers, number
from dpkernel.data.domain import Domain, Interval, Levels
from dpkernel.foundations.errors import CertificateError, DataError, ParameterError
from dpkernel.foundations.types import JSON, Array, is_real

Cells = Sequence[Any] | Array
_KEYS = {"low", "high", "levels", "missing"}


@dataclass(frozen=True)
class ColumnRule:
    """One column: its name, its declared values and the replacement of missing values.

    ``values`` is an Interval, Levels, or None for numbers without bounds. None is for new rows of a
    model that declares no bounds; the model then refuses missing values.
    """

    name: str
    values: Interval | Levels | None
    missing: Any = None

    def __post_init__(self) -> None:
        if self.missing is None:
            return
        if isinstance(self.values, Levels):
            if self.missing not in self.values.values:
                raise ParameterError(
                    f"The 'missing' value of column {self.name!r} must be one of its levels."
                )
        elif not is_real(self.missing) or not math.isfinite(self.missing):
            raise ParameterError(
                f"The 'missing' value of column {self.name!r} must be a finite number."
            )

    @property
    def names(self) -> list[str]:
        """The names of the encoded columns: one, or one per level."""
        if isinstance(self.values, Levels):
            return [f"{self.name}={level}" for level in self.values.values]
        return [self.name]

    @property
    def intervals(self) -> list[Interval]:
        """The bounds of the encoded columns; the 0 and 1 of levels stay 0 and 1 after scaling."""
        if isinstance(self.values, Levels):
            return [Interval(-1.0, 1.0)] * len(self.values.values)
        assert self.values is not None
        return [self.values]

    def encode(self, cells: Cells) -> Array:
        """Return the encoded columns as floats."""
        if isinstance(self.values, Levels):
            places = self.places(cells)
            return np.asarray(
                places[:, None] == np.arange(len(self.values.values)), dtype=np.float64
            )
        return self.numbers(cells)[:, None]

    def numbers(self, cells: Cells) -> Array:
        """Return the cells as numbers clipped to the interval, with missing ones replaced."""
        found = _as_floats(cells)
        if not isinstance(self.values, Interval):
            return found
        middle = self.values.middle if self.missing is None else float(self.missing)
        found = np.where(np.isnan(found), middle, found)
        return np.asarray(np.clip(found, self.values.low, self.values.high))

    def places(self, cells: Cells) -> np.ndarray:
        """Return the place of every cell among the levels; others get the ``missing`` level or -1."""
        assert isinstance(self.values, Levels)
        places = Places(self.values.values)
        absent = -1 if self.missing is None else places.of(self.missing)
        found = np.array([places.of(_spelled(cell)) for cell in cells], dtype=np.int64)
        return np.where(found < 0, absent, found)

    def to_dict(self) -> JSON:
        """Return the rule as JSON values."""
        found: JSON = {"name": self.name, "missing": self.missing}
        return found if self.values is None else {**found, **self.values.to_dict()}

    @classmethod
    def from_dict(cls, data: JSON) -> ColumnRule:
        """Return the rule described by JSON values."""
        if "levels" in data:
            return cls(data["name"], Levels(tuple(data["levels"])), data["missing"])
        if "low" not in data:
            return cls(data["name"], None)
        return cls(data["name"], Interval(data["low"], data["high"]), data["missing"])


@dataclass(frozen=True)
class Schema:
    """The declared columns of a table: inputs in their order, the target, and ignored columns.

    ``group`` names the column that says whose row each row is. It is never an input.
    """

    inputs: tuple[ColumnRule, ...]
    target: ColumnRule | None = None
    ignore: tuple[str, ...] = ()
    group: str | None = None

    def with_group(self, name: str | None) -> Schema:
        """Return the schema in which a column holds ids of people, whether or not it is declared."""
        if name is None:
            return self
        if self.target is not None and name == self.target.name:
            raise ParameterError(f"The column {name!r} can't be both the target and the group.")
        inputs = tuple(rule for rule in self.inputs if rule.name != name)
        return replace(self, inputs=inputs, ignore=(*self.ignore, name), group=name)

    @property
    def rules(self) -> tuple[ColumnRule, ...]:
        """The rules of all columns that are read."""
        return self.inputs if self.target is None else (*self.inputs, self.target)

    @property
    def names_out(self) -> list[str]:
        """The names of the encoded inputs."""
        return [name for rule in self.inputs for name in rule.names]

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
                raise DataError(
                    f"Column {place} of {owner} is not declared. Give it a [columns.NAME] table with"
                    " low and high or levels, or name it in 'ignore'."
                )
        return replace(self, inputs=tuple(known[name] for name in header if name in known))

    def refuse_kinds(self, not_numbers: Container[str], owner: str) -> None:
        """Refuse a column that is declared as numbers but whose type in the file can't be numbers."""
        for rule in self.rules:
            if not isinstance(rule.values, Levels) and rule.name in not_numbers:
                raise DataError(
                    f"Column {rule.name!r} of {owner} is declared with low and high, but its type in"
                    " the file holds no numbers. Turn it into numbers first, or ignore it."
                )

    def encode(self, columns: Mapping[str, Cells]) -> Array:
        """Return the encoded inputs of a block of rows, side by side."""
        return np.hstack([rule.encode(columns[rule.name]) for rule in self.inputs])

    def ids(self, columns: Mapping[str, Cells]) -> list[Any]:
        """Return the ids of a block of rows; an empty cell is missing, and outer blanks don't count."""
        cells = columns[self.group] if self.group is not None else ()
        return [(_spelled(cell) or None) if isinstance(cell, str) else cell for cell in cells]

    def encode_target(self, columns: Mapping[str, Cells]) -> Array:
        """Return the targets: numbers, or places among the declared classes."""
        assert self.target is not None
        cells = columns[self.target.name]
        if isinstance(self.target.values, Interval):
            return self.target.numbers(cells)
        places = self.target.places(cells)
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
        }

    @classmethod
    def from_dict(cls, data: JSON) -> Schema:
        """Return the schema described by JSON values."""
        try:
            inputs = tuple(ColumnRule.from_dict(rule) for rule in data["inputs"])
            target = data["target"]
            if not inputs:
                raise CertificateError("The model file describes no input columns.")
            return cls(inputs, None if target is None else ColumnRule.from_dict(target))
        except (KeyError, TypeError, ParameterError, AttributeError) as error:
            raise CertificateError(
                f"The columns that the model file describes can't be read ({type(error).__name__})."
            ) from error


def read_schema(path: str | Path, target: str | None = None) -> Schema:
    """Read a ``bounds.toml``; ``target`` overrides the name of the target that it states.

    If neither names a target, all columns are inputs.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        reason = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "not UTF-8"
        raise ParameterError(f"{path.name} is not a TOML file ({reason}).") from error
    unknown = set(data) - {"columns", "target", "ignore"}
    if unknown:
        raise ParameterError(
            f"{path.name} has an entry {min(unknown)!r}; it may have 'columns', 'target', 'ignore'."
        )
    tables, own, ignore = (data.get(key, {}) for key in ("columns", "target", "ignore"))
    ignore = ignore or []
    if not isinstance(tables, dict) or not isinstance(own, dict) or not _texts(ignore):
        raise ParameterError(
            f"{path.name} must hold tables [columns.NAME], at most one [target], and ignore = [names]."
        )
    name = target if target is not None else own.get("name")
    if not (name is None or isinstance(name, str)):
        raise ParameterError(f"The name in [target] of {path.name} must be a text.")
    left_out = {key for key in ignore if key != name and tables.get(key) == {}}
    rules = {
        key: _rule(key, table, path.name) for key, table in tables.items() if key not in left_out
    }
    found = None
    if name is not None:
        found = _target(name, own, rules, path.name)
        rules.pop(name, None)
    elif own:
        raise ParameterError(
            f"[target] of {path.name} has no name. State it: name = ..., or --target."
        )
    inputs = tuple(rule for key, rule in rules.items() if key not in ignore)
    return Schema(inputs, found, tuple(ignore))


def _target(name: str, own: JSON, rules: Mapping[str, ColumnRule], file: str) -> ColumnRule:
    bounds = {key: value for key, value in own.items() if key != "name"}
    if bounds and own.get("name", name) == name and name in rules:
        raise ParameterError(f"{file} declares {name!r} twice: in [columns] and in [target].")
    if bounds and own.get("name", name) == name:
        return _rule(name, bounds, file)
    if name in rules:
        return rules[name]
    raise ParameterError(
        f"{file} does not declare the target {name!r}. Give it a [columns.{name}] or [target] table"
        " with low and high, or levels."
    )


def _rule(name: str, table: Any, file: str) -> ColumnRule:
    if not isinstance(table, dict) or set(table) - _KEYS:
        raise ParameterError(
            f"Column {name!r} of {file} must be a table with low and high, or levels, and optionally"
            " missing."
        )
    levels, low, high = (table.get(key) for key in ("levels", "low", "high"))
    if (levels is None) == (low is None or high is None):
        raise ParameterError(f"Column {name!r} of {file} needs low and high, or levels; not both.")
    if levels is not None and not (isinstance(levels, list) and levels and _are_levels(levels)):
        raise ParameterError(
            f"The levels of column {name!r} of {file} must be a list of texts, finite numbers or truth"
            " values."
        )
    try:
        values = Interval(low, high) if levels is None else Levels(tuple(levels))  # type: ignore[arg-type]
    except ParameterError as error:
        raise ParameterError(f"Column {name!r} of {file}: {error}") from error
    return ColumnRule(name, values, table.get("missing"))


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
        raise DataError(f"{owner} has {what} named {name!r}, but must have exactly one.")


def _as_floats(cells: Cells) -> Array:
    """Return cells as numbers, with NaN for everything that is not a number."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
        return as_numbers(cells)
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))  # fast path for texts
    except (ValueError, TypeError, OverflowError):
        return np.array([_float(cell) for cell in cells], dtype=np.float64)


def _float(cell: Any) -> float:
    try:
        return number(cell)
    except DataError:
        return math.nan


def _spelled(cell: Any) -> Any:
    """Return a cell as levels in a file are spelled: texts without outer blanks, dates as texts."""
    if isinstance(cell, str):
        return cell.strip()
    return str(cell) if isinstance(cell, datetime.date) else cell


def described(rules: Iterable[ColumnRule]) -> list[str]:
    """Return one readable line per column."""
    lines = []
    for rule in rules:
        if isinstance(rule.values, Levels):
            lines.append(f"{rule.name}: {', '.join(str(level) for level in rule.values.values)}")
        elif rule.values is not None:
            lines.append(f"{rule.name}: {rule.values.low:g} to {rule.values.high:g}")
        else:
            lines.append(f"{rule.name}: any number")
    return lines
