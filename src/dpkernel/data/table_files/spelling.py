"""How numbers and dates are written in a file: public rules that read one cell at a time.

What can't be read becomes NaN. Nothing is refused here, and no text is quoted.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpkernel.data.cells import as_numbers, number
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.foundations.types import Array

Cells = Sequence[Any] | Array
DateFormat = str | tuple[str, ...]
_MOST_FORMATS = 10
ISO = "iso"  # the format of dates such as 2026-05-01 and 2026-05-01T13:30
_EPOCH = datetime.datetime(1970, 1, 1)
_DAY = datetime.timedelta(days=1)
_BLANKS = " \u00a0\u2009\u202f"  # blanks that stand between groups of digits
_WORDS = {"nan", "inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"}
_NO_NUMBER = "?"
_LONGEST_UNIT = 40


@dataclass(frozen=True)
class Spelling:
    """How the texts of a file spell numbers.

    Parameters
    ----------
    decimal : {".", ","}
        The sign between the whole part and the fraction. The other one is then no part of a number.
    thousands : str, optional
        The sign between groups of three digits. Without it, digits must not be grouped. A text whose
        groups have another length is not a number, because its sign may be meant as a decimal one.
    """

    decimal: str = "."
    thousands: str | None = None

    def __post_init__(self) -> None:
        if self.decimal not in (".", ","):
            raise ParameterError("--decimal must be a dot or a comma.")
        if self.thousands is not None and self.thousands not in (".", ",", " ", "'", "_"):
            raise ParameterError(
                "--thousands must be a dot, a comma, a blank, an apostrophe or an underscore."
            )
        if self.thousands == self.decimal:
            raise ParameterError("--thousands and --decimal must be different signs.")

    @property
    def plain(self) -> bool:
        """Whether numbers are written as in Python."""
        return self == Spelling()

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        grouped = ""
        if self.thousands is not None:
            sign = f"[{_BLANKS}]" if self.thousands == " " else re.escape(self.thousands)
            grouped = rf"\d{{1,3}}(?:{sign}\d{{3}})+|"
        point = re.escape(self.decimal)
        return re.compile(
            rf"([+-]?)((?:{grouped}\d+)?)(?:{point}(\d*))?((?:[eE][+-]?\d+)?)", re.ASCII
        )

    def in_python(self, text: str) -> str:
        """Return a text as Python spells the number in it, or a text that is no number there."""
        text = text.strip()
        if not text or text.lower() in _WORDS:
            return text
        found = self._pattern.fullmatch(text)
        if found is None or not (found[2] or found[3]):
            return _NO_NUMBER
        whole = "".join(sign for sign in found[2] if sign.isdigit())
        return f"{found[1]}{whole or '0'}.{found[3] or '0'}{found[4]}"


PLAIN = Spelling()


def numbers(
    cells: Cells, spelling: Spelling = PLAIN, *, limits: bool = False, unit: str = ""
) -> Array:
    """Return cells as numbers, with NaN for everything that is not a number.

    With ``limits``, a text such as "<0.5" or ">= 300" counts as the number behind the sign. ``unit``
    is a text that may stand behind a number.
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
        return as_numbers(cells)
    if unit:
        cells = [_without_unit(cell, unit) if isinstance(cell, str) else cell for cell in cells]
    if limits:
        cells = [_without_sign(cell) if isinstance(cell, str) else cell for cell in cells]
    if not spelling.plain:
        cells = [spelling.in_python(cell) if isinstance(cell, str) else cell for cell in cells]
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))  # fast path for texts
    except (ValueError, TypeError, OverflowError):
        return np.array([_float(cell) for cell in cells], dtype=np.float64)


def _without_sign(text: str) -> str:
    text = text.strip()
    return text[1:].removeprefix("=").lstrip() if text[:1] in ("<", ">", "≤", "≥") else text


def _without_unit(text: str, unit: str) -> str:
    text = text.strip()
    behind = text[-len(unit) :].casefold() == unit.casefold()
    return text[: -len(unit)].rstrip() if behind else text


def unit_behind(text: str) -> str:
    """Return what stands behind the last digit of a text that begins with a number; else nothing."""
    found = re.fullmatch(
        r"[<>=≤≥\s]*[+-]?\d[\d.,'\s]*?\s*([^\d.,'\s+-]\D*)", text.strip(), re.ASCII
    )
    return "" if found is None else found[1]


def is_unit(unit: object) -> bool:
    """Return whether a text can't be a part of the number in front of it."""
    if not isinstance(unit, str) or len(unit) > _LONGEST_UNIT or unit != unit.strip():
        return False
    return re.match(r"[\d.,'+-]", unit, re.ASCII) is None


def _float(cell: Any) -> float:
    try:
        return number(cell)
    except DataError:
        return math.nan


def days(cells: Cells, pattern: DateFormat) -> Array:
    """Return dates as days since 1970-01-01, with NaN for everything that is not a date.

    ``pattern`` is "iso", or a format of ``datetime.strptime``, or several of these; the first that
    reads a cell counts. A time of the day is a fraction of the day, and a date with a time zone is
    taken to UTC.
    """
    return np.array([day(cell, pattern) for cell in cells], dtype=np.float64)


def day(cell: Any, pattern: DateFormat = ISO) -> float:
    """Return one date as days since 1970-01-01, or NaN."""
    if not isinstance(pattern, str):
        found = (day(cell, one) for one in pattern)
        return next((value for value in found if value == value), math.nan)
    try:
        if isinstance(cell, str):
            text = cell.strip()
            iso = pattern == ISO
            cell = (
                datetime.datetime.fromisoformat(text)
                if iso
                else datetime.datetime.strptime(text, pattern)
            )
        if isinstance(cell, datetime.datetime):
            if cell.tzinfo is not None:
                cell = cell.astimezone(datetime.UTC).replace(tzinfo=None)
        elif isinstance(cell, datetime.date):
            cell = datetime.datetime(cell.year, cell.month, cell.day)
        else:
            return math.nan
        return float((cell - _EPOCH) / _DAY)
    except (ValueError, OverflowError, TypeError, re.error):
        return math.nan


def date_of(value: float) -> datetime.date:
    """Return the date of a number of days since 1970-01-01; a time of the day is dropped."""
    return (_EPOCH + value * _DAY).date()


def is_date_format(pattern: object) -> bool:
    """Return whether a format, or each of a tuple of formats, reads the dates that it writes."""
    if isinstance(pattern, tuple):
        return 0 < len(pattern) <= _MOST_FORMATS and all(
            isinstance(one, str) and is_date_format(one) for one in pattern
        )
    if not isinstance(pattern, str) or len(pattern) > 100:
        return False
    if pattern == ISO:
        return True
    for probe in (datetime.datetime(2023, 11, 30), datetime.datetime(2001, 2, 3)):
        try:
            if day(probe.strftime(pattern), pattern) != day(probe):
                return False
        except ValueError:
            return False
    return True
