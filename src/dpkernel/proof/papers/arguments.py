"""Check the arguments of all calculators, by one table of what each name may be."""

from __future__ import annotations

import math

from dpkernel.foundations.validation import Choice, Constraint, Real, Whole, check_parameters

_POSITIVE = Real(0, math.inf)
NOT_NEGATIVE = Real(0, math.inf, closed_low=True)
ALLOWED: dict[str, Constraint] = {
    "n_rows": Whole(2),
    "n_columns": Whole(1),
    "n_steps": Whole(1),
    "n_features": Whole(1),
    "epsilon": _POSITIVE,
    "delta": Real(0, 1),
    "confidence": Real(0, 1),
    "alpha": Real(0, 1, closed_low=True, closed_high=True),
}
ONE_ROW: dict[str, Constraint] = {"n_rows": Whole(1)}  # for calculators that accept a single row


def check(owner: str, /, allowed: dict[str, Constraint] | None = None, **values: object) -> None:
    """Raise ParameterError for the first value that its name does not allow.

    ``allowed`` adds names to the table or replaces its entries. A name that is in neither must be a
    finite positive number.
    """
    table = {**ALLOWED, **(allowed or {})}
    check_parameters(owner, values, {name: table.get(name, _POSITIVE) for name in values})


def reading(*names: str) -> dict[str, Constraint]:
    """Return the constraint on the argument ``reading``."""
    return {"reading": Choice(*names)}
