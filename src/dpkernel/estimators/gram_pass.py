"""One pass over a table that ends in an exact integer Gram matrix, on one machine or on many.

The same ``Recipe`` runs on NumPy blocks, on Dask chunks where they are stored, and on torch
tensors. Sums are integers, so all of them give the same result bit for bit if their features are
the same. The features of a row depend on the row. Their last bit may also depend on the position of
the row in its block, the number of rows in the block and the number of threads, but never on the
values of other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from dpkernel.data.blocks import rows_a_block
from dpkernel.data.chunks import WRONG_SIZES
from dpkernel.data.domain import Domain, Interval, unit_inputs
from dpkernel.data.passes import Passes
from dpkernel.data.sources import Source
from dpkernel.data.weights import split_weights
from dpkernel.estimators.progress import counted
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.foundations.threads import block_threads, in_threads
from dpkernel.foundations.types import Array, Neighbours
from dpkernel.models.features import FeatureMap
from dpkernel.privacy.folds import GramFolds, Packed
from dpkernel.privacy.statistics import GramLayout
from dpkernel.privacy.unit_statistics import UnitGramLayout, UnitGramSum


@dataclass(frozen=True)
class Recipe:
    """How a row becomes a record: clip to the domain, map to features, quantise. It is public."""

    domain: Domain
    features: FeatureMap
    layout: GramLayout
    dtype: str = "float64"
    folds: int = 1
    weighted: bool = False

    def records(self, X: Array, y: Array) -> tuple[Array, Array]:
        """Return features and targets in [-1, 1], one column per target."""
        target = self.domain.target
        assert isinstance(target, Interval)
        targets = y[:, None] if y.ndim == 1 else y
        return self.features.transform_block(
            unit_inputs(X, self.domain, self.dtype)
        ), target.to_unit(targets)

    def bytes_a_block(self, n_columns: int) -> int:
        """Return roughly how much memory the work on one block takes."""
        side = self.layout.side
        return 16 * (rows_a_block(n_columns) * (n_columns + side) + side**2)


def sum_source(source: Source, recipe: Recipe, *, progress: bool = False) -> GramFolds:
    """Return the exact sums over a table of any kind, one per fold.

    A fold is a set of row positions, so the chunks of a Dask table are merged in their order. The
    ledger is charged once, after the whole sum has arrived.
    """
    if source.kind == "torch":
        from dpkernel.estimators.torch_pass import sum_tensors

        return sum_tensors(source, recipe)
    passes = Passes(source)
    if source.kind == "dask":
        (packed,) = passes.run(_packed_sum, recipe, merge=_merged)
        found = GramFolds._unpack(packed)
        if found._rows != source.n_rows:
            raise DataError(WRONG_SIZES)
        return found
    n_blocks = -(-source.n_rows // rows_a_block(source.n_columns))
    with block_threads(n_blocks, recipe.bytes_a_block(source.n_columns)) as threads:
        total: GramFolds = passes.run(gram_of_blocks, recipe, threads, progress)[0]
    return total


def gram_of_blocks(
    blocks: Iterable[tuple[Array, Array]], recipe: Recipe, threads: int = 1, progress: bool = False
) -> GramFolds:
    """Return the exact sums over blocks of rows.

    Progress counts rows, whose number is public.
    """
    statistics = GramFolds(recipe.layout, recipe.folds)

    def placed() -> Iterator[tuple[Array, Array, int]]:
        position = 0
        for X, y in blocks:
            yield X, y, position
            position += len(y)

    @np.errstate(all="ignore")  # a floating-point error would reveal something about the data
    def add(X: Array, y: Array, position: int) -> int:
        values, weights = split_weights(y, True) if recipe.weighted else (y, None)
        statistics.update(*recipe.records(X, values), position, weights)
        return len(y)

    done = 0
    with counted("rows", recipe.layout.n_max, verbose=progress) as tell:
        for rows in in_threads(add, placed(), threads):
            done += rows
            tell(done)
    return statistics


def _packed_sum(blocks: Iterable[tuple[Array, Array]], recipe: Recipe) -> Packed:
    return gram_of_blocks(blocks, recipe)._pack()


def _merged(parts: list[Packed]) -> Packed:
    total = GramFolds._unpack(parts[0])
    for part in parts[1:]:
        total.merge(GramFolds._unpack(part))
    return total._pack()


# --- a unit, such as a person, with several rows; ``sources.open_units`` finds the units ---------------


def unit_layout(
    owner: str,
    features: FeatureMap,
    domain: Domain,
    n_targets: int,
    relation: Neighbours,
    n_units: int,
) -> UnitGramLayout:
    """Return the layout for this many units, or raise if no rounding bound is proved."""
    error = features.evaluation_error()
    if domain.columns is None:
        raise ParameterError(
            f"{owner} with groups needs 'bounds', the publicly known range of the columns, for example"
            " bounds=(0, 100): the rounding of features is bounded on a box only."
        )
    if error is None:
        raise ParameterError(
            f"{owner} with groups needs features whose rounding error is bounded, and those of"
            f" {type(features).__name__} with this kernel are not. Use features='fourier', or 'eigen'"
            " with the Gaussian or Laplace kernel."
        )
    return UnitGramLayout(
        features.n_outputs, n_targets, features.row_norm_bound, relation, n_units, error
    )


def sum_units(
    source: Source, domain: Domain, features: FeatureMap, layout: UnitGramLayout
) -> UnitGramSum:
    """Return the sum over rows, each weighted by its share of a unit, in double precision.

    There is no progress bar, because it would count rows, whose number is private.
    """
    target = domain.target
    assert isinstance(target, Interval)
    statistics = UnitGramSum(layout)
    for X, y, shares in Passes(source).blocks():
        targets = target.to_unit(y.reshape(len(y), -1))
        statistics.update(features.transform_block(domain.of_positions.to_unit(X)), targets, shares)
    return statistics
