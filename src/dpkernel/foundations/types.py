"""Types that every other module uses: arrays, budgets, neighbouring relations."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpkernel.foundations.errors import ParameterError, parameter_message

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]
JSON = dict[str, Any]


class Neighbours(enum.Enum):
    """The neighbouring relation: which two data sets count as neighbours, and so what is protected.

    Attributes
    ----------
    REPLACE_ONE
        One record is replaced by any other. The number of rows n is public.
    ZERO_OUT
        One record is replaced by a null record that contributes nothing. n is public, and the null
        record keeps its place in batches and folds.
    ADD_REMOVE
        One record is added or removed. n is private, so nothing may divide by the true n or derive
        a size from it.

    Examples
    --------
    >>> from dpkernel import Neighbours
    >>> [relation.value for relation in Neighbours]
    ['replace-one', 'zero-out', 'add-remove']
    """

    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"
    ADD_REMOVE = "add-remove"

    @property
    def n_is_public(self) -> bool:
        """Whether the number of rows may be used freely."""
        return self is not Neighbours.ADD_REMOVE

    @classmethod
    def resolve(cls, value: Neighbours | AddRemove | str) -> Neighbours:
        """Return the relation for a member or its name, such as ``"replace-one"``."""
        if isinstance(value, AddRemove):
            return cls.ADD_REMOVE
        if isinstance(value, cls):
            return value
        for member in cls:
            if value == member.value:
                return member
        names = ", ".join(repr(member.value) for member in cls)
        raise ParameterError(parameter_message("Neighbours", "value", f"one of {names}", value))


@dataclass(frozen=True)
class AddRemove:
    """Neighbours that have one record more or less, so that their number is private.

    Parameters
    ----------
    n_max : int
        A public number that stands in for the number of records (with groups: of people) wherever a
        size is needed. The table should be publicly known not to have more records. If it has,
        ``n_max`` of them are chosen at random, and (epsilon, delta) becomes (2 epsilon, (1 +
        e^epsilon) delta). A fit to a table with far fewer records takes as long as one to ``n_max``
        records and is less accurate than it could be.

    Examples
    --------
    >>> from dpkernel import AddRemove, PrivateKernelRegressor
    >>> model = PrivateKernelRegressor(neighbours=AddRemove(20_000), bounds=(0, 1), y_bounds=(0, 1))
    """

    n_max: int

    def __post_init__(self) -> None:
        if not is_whole(self.n_max) or not 1 <= self.n_max < 2**31:
            allowed = "an int >= 1 and below 2^31"
            raise ParameterError(parameter_message("AddRemove", "n_max", allowed, self.n_max))
        object.__setattr__(self, "n_max", int(self.n_max))


def no_add_remove(owner: str) -> str:
    """Return why add-remove is refused, which relation to use instead, and how they differ."""
    return parameter_message(
        owner,
        "neighbours",
        "'replace-one' or 'zero-out'",
        Neighbours.ADD_REMOVE.value,
        "Use 'zero-out', which needs the same noise: it hides what a record says, but not how many"
        " records there are.",
    )


@dataclass(frozen=True, slots=True)
class Budget:
    """An (epsilon, delta) request or ceiling; ``delta=0`` asks for pure epsilon-DP.

    Parameters
    ----------
    epsilon : float
        The privacy loss, in (0, inf).
    delta : float
        The failure probability, in [0, 1).

    Examples
    --------
    >>> Budget(1.0, 1e-6)
    Budget(epsilon=1.0, delta=1e-06)
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not is_real(self.epsilon) or not 0 < self.epsilon < math.inf:
            allowed, advice = "a float in the range (0, inf)", "Pass a positive finite number."
            raise ParameterError(
                parameter_message("Budget", "epsilon", allowed, self.epsilon, advice)
            )
        if not is_real(self.delta) or not 0 <= self.delta < 1:
            allowed = "a float in the range [0, 1)"
            raise ParameterError(parameter_message("Budget", "delta", allowed, self.delta))
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))

    @property
    def pure(self) -> bool:
        """Whether this asks for pure epsilon-DP."""
        return self.delta == 0.0

    def split(self, weights: Sequence[float]) -> tuple[Budget, ...]:
        """Return one budget per weight; in real arithmetic they add up to at most this budget.

        Shares are rounded down, so basic composition of the parts never exceeds the whole.
        """
        values = [Fraction(float(w)) for w in weights if is_real(w) and 0 < w < math.inf]
        if not values or len(values) != len(weights):
            allowed = "positive finite numbers"
            raise ParameterError(parameter_message("Budget.split", "weights", allowed, weights))
        total = sum(values)

        def share(amount: float, weight: Fraction) -> float:
            return round_down(Fraction(amount) * weight / total)

        return tuple(Budget(share(self.epsilon, w), share(self.delta, w)) for w in values)

    def __str__(self) -> str:
        return f"epsilon = {self.epsilon:g}, delta = {self.delta:g}"


def round_down(value: Fraction) -> float:
    """Return the largest float that is not above an exact number."""
    near = float(value)
    return near if Fraction(near) <= value else math.nextafter(near, -math.inf)


def is_real(value: object) -> bool:
    """Return whether ``value`` is a real number that a float can hold. A bool is not one."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def is_whole(value: object) -> bool:
    """Return whether ``value`` is an integer. A bool is not one."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
