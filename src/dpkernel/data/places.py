r"""Tables of a public length in which each place holds one record or none: how n stays private.

If records may be added or removed, the number of records is private, but sizes, grids, batches and
matrix products need a public number. So all work is done on a table with a declared number of
places, ``n_max``. A record fills one place; the other places are empty. An empty place is a record of
weight 0: it takes part in every loop and contributes nothing to any sum. Which records stand where is
a secret, uniform choice.

**Why a guarantee under zero-out on places is one under add-remove of records.** Let M be private for
tables of n_max places of which one is emptied (zero-out), and let pi be a uniform order of
max(m, n_max) numbers; place p holds the record pi(p) if pi(p) < m, and nothing otherwise. Let D have m
records and let D' be D without the record u.

1. m <= n_max. Number the records so that u is the last one, m - 1. For each pi, D and D' fill all
   places alike, except that the place of the number m - 1 is empty for D'. (Both use orders of n_max
   numbers, and the law of pi does not depend on how records are numbered.) So M(D) and M(D') are
   mixtures with the same weights of pairs that are neighbours under zero-out. The hockey-stick
   divergence is jointly convex, so the profile of M holds for the mixtures, in both directions.
2. m > n_max. The places hold a uniform subset of n_max records in uniform order. Draw it for D, and
   if u is among the records drawn, put in its place a uniform choice among the m - n_max records of
   D' that were not drawn. The result has the law of D'. The two tables differ in the record at one
   place at most, which is two steps of zero-out. So the guarantee is (2 epsilon, (1 + e^epsilon)
   delta) there.

No table is refused because it has more than n_max records, since that would tell. Declare a number
that the table is known not to exceed; beyond it, records are left out at random and the guarantee is
the weaker one of point 2.

Everything after the door sees n_max rows. Nothing that is released, logged, saved or shown depends on
m except through sums with noise. Time and memory of reading the rows do, and no guarantee of this
library speaks of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from dpkernel.data import chunks
from dpkernel.data.blocks import BlockStream, checked_blocks, library_of
from dpkernel.data.cells import has, shape_of, untouched
from dpkernel.data.domain import Levels
from dpkernel.data.labels import as_labels
from dpkernel.data.people import NOT_DASK
from dpkernel.data.sources import Source
from dpkernel.data.tables import framed
from dpkernel.data.weights import with_weights
from dpkernel.foundations.errors import DataError, NoRowsError, ParameterError
from dpkernel.foundations.types import IntArray


def refuse_lists(X: Any, y: Any) -> None:
    """Raise for lists, which do not say how many columns they have if they are empty."""
    if any(isinstance(values, (list, tuple)) for values in (X, y)):
        raise ParameterError(
            "With neighbours='add-remove', X and y can't be lists: a list says how many columns it has"
            " only if it has a row, and whether it has one is private. Pass arrays or data frames."
        )


def one_row(X: Any, y: Any, classes: Levels | None) -> tuple[Any, Any]:
    """Return one row with the columns of a table that has none, to be checked like any table.

    A table without records is fitted like any other, since whether there are any is private. What
    would be refused in any case is refused here, too, in the same words.
    """
    if isinstance(X, BlockStream):
        first = next(checked_blocks(X), None)
        if first is None:
            raise DataError(
                "A stream of 0 rows needs one block of 0 rows, which says how many columns there are."
            )
        X, y = first
    elif library_of(X) == "dask":
        if y is not None and not has(y, "to_delayed"):
            raise DataError(NOT_DASK)
        with contextlib.suppress(NoRowsError):
            chunks.count_rows(X, y)
    elif y is not None and shape_of(y)[:1] != (0,):
        raise DataError("Found input variables with inconsistent numbers of samples")
    elif y is not None:
        untouched(y)  # raises for what can't be a target
    rows = np.zeros((1, *_columns(X)), _kind(X))
    if sparse.issparse(X):
        rows = sparse.csr_matrix(rows)
    elif has(X, "columns"):
        rows = framed(rows, X)
    if y is None:
        return rows, None
    targets = np.zeros((1, *_columns(y)))
    if classes is None:
        return rows, targets
    return rows, as_labels(classes)[targets.astype(np.int64)]


def _kind(X: Any) -> Any:
    """Return a type of cells that is refused as the type of a table or of a column is, or float64."""
    kind = getattr(X, "dtype", None)
    if getattr(kind, "kind", "") in ("c", "M", "m"):
        return kind
    kinds = getattr(getattr(X, "schema", None), "types", getattr(X, "dtypes", ()))
    dated = any(str(one).lower().startswith(("date", "time", "duration")) for one in kinds)
    return "M8[ms]" if dated else np.float64


def _columns(values: Any) -> tuple[int, ...]:
    """Return the shape without the number of rows, which Dask may not know."""
    return tuple(values.shape[1:]) if library_of(values) == "dask" else shape_of(values)[1:]


def in_places(source: Source, n_max: int, order: Callable[[int], IntArray]) -> Source:
    """Return a table of n_max places that holds the records of a table in memory.

    ``order`` draws the secret order of n numbers.
    """
    records = source.n_rows
    drawn = order(max(records, n_max))[:n_max]
    filled = drawn < records
    X = _placed(source.X, drawn, filled)
    y = _placed(source.y, drawn, filled)
    if source.weighted:  # the last column of y is the weight, which is 0 where nothing stands
        return replace(source, n_rows=n_max, X=X, y=y)
    return with_weights(replace(source, n_rows=n_max, X=X, y=y), filled.astype(np.float64))


def _placed(rows: Any, drawn: IntArray, filled: Any) -> Any:
    """Return the rows at their places, and zeros in the empty ones."""
    if sparse.issparse(rows):
        empty = sparse.csr_matrix((1, rows.shape[1]), dtype=rows.dtype)
        return sparse.vstack([rows, empty], format="csr")[np.where(filled, drawn, rows.shape[0])]
    found = np.zeros((len(drawn), *rows.shape[1:]), dtype=rows.dtype)
    found[filled] = rows[drawn[filled]]
    return found
