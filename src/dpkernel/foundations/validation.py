"""Parameter constraints as data, next to the class that they belong to.

A class states its constraints as a dict, and ``check_parameters`` checks them all and raises an
error of the common form::

    _constraints = {"epsilon": Real(0, inf), "kernel": Choice("gaussian", "linear")}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import is_real

Entry = TypeVar("Entry")  # of a registry


@dataclass(frozen=True)
class Real:
    """A real number between ``low`` and ``high``; each end may be included or not."""

    low: float = -math.inf
    high: float = math.inf
    closed_low: bool = False
    closed_high: bool = False

    def holds(self, value: object) -> bool:
        """Return whether the value satisfies the constraint."""
        if not is_real(value):
            return False
        above = self.low <= value if self.closed_low else self.low < value  # type: ignore[operator]
        below = value <= self.high if self.closed_high else value < self.high  # type: ignore[operator]
        return bool(above and below)

    def __str__(self) -> str:
        left, right = "[" if self.closed_low else "(", "]" if self.closed_high else ")"
        return f"a float in the range {left}{self.low:g}, {self.high:g}{right}"


@dataclass(frozen=True)
class Whole:
    """An integer from ``low`` to ``high``, both included."""

    low: int
    high: float = math.inf

    def holds(self, value: object) -> bool:
        """Return whether the value satisfies the constraint."""
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
        return whole and self.low <= value <= self.high  # type: ignore[operator]

    def __str__(self) -> str:
        end = "" if self.high == math.inf else f" and <= {self.high:g}"
        return f"an int >= {self.low}{end}"


class Choice:
    """One of a few names or values."""

    def __init__(self, *options: object) -> None:
        self.options = options

    def holds(self, value: object) -> bool:
        """Return whether the value satisfies the constraint."""
        return any(
            value is option or (type(value) is type(option) and value == option)
            for option in self.options
        )

    def __str__(self) -> str:
        return "one of " + ", ".join(repr(option) for option in self.options)


class Kind:
    """An instance of one of several classes."""

    def __init__(self, *classes: type) -> None:
        self.classes = classes

    def holds(self, value: object) -> bool:
        """Return whether the value satisfies the constraint."""
        return isinstance(value, self.classes)

    def __str__(self) -> str:
        return "an instance of " + " or ".join(cls.__name__ for cls in self.classes)


class Spelled:
    """A text that a function can read, described in words."""

    def __init__(self, words: str, reads: Callable[[object], bool]) -> None:
        self.words, self.holds = words, reads

    def __str__(self) -> str:
        return self.words


Constraint = Real | Whole | Choice | Kind | Spelled


def check_parameters(
    owner: str,
    values: Mapping[str, object],
    constraints: Mapping[str, Constraint | tuple[Constraint, ...]],
) -> None:
    """Raise ParameterError for the first value that satisfies none of its constraints."""
    for name, allowed in constraints.items():
        options = allowed if isinstance(allowed, tuple) else (allowed,)
        value = values[name]
        if not any(option.holds(value) for option in options):
            must_be = " or ".join(str(option) for option in options)
            shown = (
                value if is_real(value) or isinstance(value, (str, bool)) else type(value).__name__
            )
            raise ParameterError(parameter_message(owner, name, must_be, shown))


def named(owner: str, known: Mapping[str, Entry], name: object) -> Entry:
    """Return what a registry has under this name, or raise ParameterError with all of its names."""
    if not isinstance(name, str) or name not in known:
        allowed = "one of " + ", ".join(map(repr, known))
        raise ParameterError(parameter_message(owner, "name", allowed, name))
    return known[name]


def is_auto(value: object) -> bool:
    """Whether a parameter is "auto"; it may also be an array, which has no truth value."""
    return isinstance(value, str) and value == "auto"
