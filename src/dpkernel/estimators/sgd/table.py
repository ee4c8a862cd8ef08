"""Records that are reached by number: kept in memory if they fit, else made again from their rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap
from typing import Any

import numpy as np

from dpkernel.data.passes import Passes
from dpkernel.data.sources import Source
from dpkernel.estimators.records import RecordRecipe, Targets, record_block, weighted_view
from dpkernel.foundations.types import Array, IntArray
from dpkernel.solvers.sgd_gradient import Block, GradientSGD
from dpkernel.solvers.sgd_output import Part, in_parts


class RecordTable:
    """The records of a table, in any order.

    ``any_order`` is False for a stream, a Dask table or a tensor whose records are too many to keep
    in memory. These are read from the first to the last.
    """

    def __init__(self, source: Source, recipe: RecordRecipe) -> None:
        self._rows, self._recipe = Passes(source), recipe
        self._records = self._rows.then(
            record_block, recipe, bytes_a_row=recipe.bytes_a_row, joined=True
        )

    @property
    def spent(self) -> bool:
        """Whether the budget has been spent, which the error of a failing pass then states."""
        return self._rows.spent

    @spent.setter
    def spent(self, value: bool) -> None:
        self._rows.spent = value

    @property
    def any_order(self) -> bool:
        """Whether records can be reached by number, in any order."""
        return self.kept or self._rows.source.kind == "array"

    @property
    def kept(self) -> bool:
        """Whether records stay in memory.

        Only then is a record the same in every random batch. The last bits of a record that is made
        again depend on the size of the block in which it is made.
        """
        return self._records.keeps

    def prepare(self) -> None:
        """Make the records that are kept, before anything is spent, so that a failure costs nothing."""
        self._records.prepare()

    def parts(self, order: IntArray | None, targets: Targets) -> Iterator[Part]:
        """Yield records as one problem sees them, in this order. None is the order of the table."""
        targets = weighted_view(targets, self._rows.source)
        records, rows = self._records, order if self.kept else None
        blocks = records.blocks() if self.kept or order is None else records.at(order)
        for z, y, weights in starmap(targets.view, blocks):
            for some in in_parts(np.arange(len(y)) if rows is None else rows):
                yield z, some, y, weights

    def integers(self, plan: GradientSGD, targets: list[Targets]) -> list[Passes]:
        """Return the same records with integer rows, for sums of clipped gradients.

        There is one table, or one per slot if the rows of a record stand in several.
        """
        source, size = self._rows.source, self._recipe.bytes_a_row
        views = [weighted_view(one, source) for one in targets]
        shared = bool(source.more)
        if source.kind == "torch":
            from dpkernel.estimators.torch_records import integer_tables

            return integer_tables(source, self._recipe, plan, views, shared)
        tables = [self._rows, *(Passes(table) for table in source.more)]
        return [
            table.then(record_block, self._recipe).then(
                integer_block, plan, views, shared, bytes_a_row=size, joined=True
            )
            for table in tables
        ]


def sum_gradients(
    integers: list[Passes], plan: GradientSGD, w: Array, rows: IntArray | None
) -> IntArray:
    """Return the exact sum of the clipped gradients at w over these records (None: all of them)."""
    if rows is not None and not all(table.keeps for table in integers):
        raise AssertionError("random batches need records that are kept")
    total: IntArray = np.zeros(w.shape, np.int64)
    for table in integers:
        sums: Any = _sums_on_host
        if table.on_device:
            from dpkernel.estimators.torch_records import sum_gradients as sums
        for block in table.blocks():
            total = total + sums(block, plan, w, rows)
    return total.ravel()


def _sums_on_host(block: Any, plan: GradientSGD, w: Array, rows: IntArray | None) -> IntArray:
    return Block(*block).sums(plan, w, rows)


def integer_block(
    z: Array, y: Array, weights: Array, plan: GradientSGD, targets: list[Targets], shared: bool
) -> tuple[Array, Array, Array, Array]:
    """Return integer rows, targets (one column per problem), weights and caps of a block of records.

    If several rows share a record, the gradient of each is clipped to its share of the bound. The shares
    add up to 1, so the sum over the record is within the bound, whatever the rows are.
    """
    whole, caps = plan.rows(z)
    views = [one.view(z, y, weights) for one in targets]
    caps = caps * y[:, -1] if shared else caps
    # one weight per record: class weights do not depend on the problem
    return whole, np.column_stack([view[1] for view in views]), views[0][2], caps
