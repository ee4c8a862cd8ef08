"""A fit that a user has written, tried without a budget: what does it refuse, and what does it read?"""

from __future__ import annotations

import contextlib
from typing import Any

from dpkernel.data.cells import shape_of
from dpkernel.foundations.errors import BudgetExceededError, DataError
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.privacy.ledger import Ledger


def rehearsed(draft: Any, X: Any, y: Any, sample_weight: Any = None) -> Any:
    """Return a draft after its ``fit`` was called with a ledger without budget, which ended it.

    The fit may have changed parameters, so the plan is that of the draft that is returned. Raises what
    the fit raises for these rows, and DataError if it reads another number of rows than it was given.
    That number would be public although it depends on the contents of the rows.
    """
    kind = type(draft)
    lengths: set[int] = set()

    def opened(self: Any, table: Any, *rest: Any) -> Any:
        lengths.add(shape_of(table)[0])
        return kind._opened(self, table, *rest)

    watched = type(kind.__name__, (kind,), {"_opened": opened, "__module__": kind.__module__})
    found = watched(**draft.get_params(deep=False))
    found.ledger = Ledger(budget=Budget(5e-324), neighbours=Neighbours.resolve(draft.neighbours))
    with contextlib.suppress(BudgetExceededError):
        found.fit(X, y, **({} if sample_weight is None else {"sample_weight": sample_weight}))
    if lengths - {shape_of(X)[0]}:
        raise DataError(
            f"The fit of {kind.__name__} leaves out or adds rows. How many there are would then"
            " reveal something about their contents. Keep the number of rows, for example by replacing"
            " what is missing, or drop rows before the fit. Nothing was spent."
        )
    return found
