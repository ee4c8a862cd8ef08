r"""From raw rows to the records of a convex problem: centred features, a constant, a weight.

A record is z = (constant, scale (phi(x) - centre)) with a target and a weight
omega = min(1, B^2 / ||z||^2), so that omega ||z|| <= B and omega ||z||^2 <= B^2 for every row.
Weights keep the direction and the target of a long row, where clipping would shorten it: the
solution for the rows that remain is not biased. Centre and scale follow from the public measure of
the inputs. Each row's record is a function of that row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpkernel.data.blocks import dense_rows, rows_a_block
from dpkernel.data.domain import Domain
from dpkernel.estimators.passes import Passes
from dpkernel.estimators.sources import (
    Source,
    chunk_block,
    chunk_pairs,
    computed,
    read_again,
    unit_inputs,
)
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, IntArray
from dpkernel.models.features import FeatureMap, NormalisedFeatures
from dpkernel.models.losses import Loss
from dpkernel.solvers.objective_perturbation import (
    BlockRecords,
    CompensatedSum,
    Record,
    Records,
    sum_blocks,
)

Stored = tuple[Array, Array, Array]  # z, the table's targets, weights

_CACHE_BYTES = 2**29  # records up to this size stay in memory; larger ones are made again each pass
_CONSTANT_POWER = 0.1  # share of ||z||^2 that the constant coordinate has
_SAMPLE = 2048
STEPS = 2**20  # a row of norm 1 in integers, whose sums are exact


@dataclass(frozen=True)
class Targets:
    """What a problem makes of the stored targets; public, and the same for every row."""

    def of(self, y: Array) -> tuple[Array, Array | None]:
        """Return the problem's targets, and weights in [0, 1] or None."""
        return y, None


@dataclass(frozen=True)
class RecordRecipe:
    """How a row becomes a record. Public."""

    domain: Domain
    features: FeatureMap
    constant: float
    scale: float
    centre: Array
    row_bound: float
    dtype: str = "float64"

    @classmethod
    def choose(
        cls, domain: Domain, features: FeatureMap, n_rows: int, row_bound: float
    ) -> tuple[RecordRecipe, Array]:
        """Return the recipe for which E ||z||^2 = 1 under the public measure, and the E z_l^2.

        The measure is the uniform law on the declared box; where no bounds were declared the centre
        is 0 and the scale follows from the bound on ||phi||.
        """
        dtype = "float32" if n_rows >= 20_000 else "float64"
        power = 1 - _CONSTANT_POWER
        if domain.columns is None:
            centre = np.zeros(features.n_outputs)
            spread = np.full(features.n_outputs, features.row_norm_bound**2 / features.n_outputs)
        else:
            phi = features.transform_block(features.public_sample(_SAMPLE))
            if not np.isfinite(phi).all():
                allowed, got = "finite numbers on the unit box", type(features).__name__
                raise ParameterError(parameter_message("the estimator", "features", allowed, got))
            centre, spread = phi.mean(axis=0), phi.var(axis=0)
        total = float(spread.sum())
        scale = math.sqrt(power / total) if total > 0 else 0.0
        recipe = cls(domain, features, math.sqrt(_CONSTANT_POWER), scale, centre, row_bound, dtype)
        return recipe, np.concatenate(([_CONSTANT_POWER], scale**2 * spread))

    @property
    def n_coordinates(self) -> int:
        """The length of z."""
        return self.features.n_outputs + self._offset

    @property
    def _offset(self) -> int:
        """1 where a constant comes before the features."""
        return 1 if self.constant else 0

    def rows(self, X: Array) -> tuple[Array, Array]:
        """Return z of every row, and the weights."""
        with np.errstate(all="ignore"):  # a warning would tell of the data
            phi = self.features.transform_block(unit_inputs(X, self.domain, self.dtype))
        z = np.empty((len(phi), self.n_coordinates), self.dtype)
        first = self._offset
        z[:, :first] = self.constant
        with np.errstate(all="ignore"):
            np.subtract(phi, self.centre.astype(self.dtype), out=z[:, first:])
            z[:, first:] *= z.dtype.type(self.scale)
        limit = self.row_bound**2 * (1 - 2.0**-40)
        weights = np.empty(len(z))
        for start in range(0, len(z), 512):  # a few rows at a time stay in the cache
            part = z[start : start + 512].astype(np.float64)
            with np.errstate(all="ignore"):
                squares = np.add.reduce(part * part, axis=1)
            strange = ~(squares < 1e200)
            if strange.any():  # can't come from a map of this library; such a row counts nothing
                z[start : start + 512][strange] = 0.0
                squares = np.where(strange, 0.0, squares)
            weights[start : start + 512] = limit / np.maximum(squares, limit)
        return z, weights

    def coefficients(self, beta: Array) -> tuple[Array, float]:
        """Return coefficients on the features and the intercept, for a solution in z."""
        coef = self.scale * beta[self._offset :]
        return coef, float(self.constant * beta[0] * self._offset - self.centre @ coef)

    def around(self, shift: Array) -> RecordRecipe:
        """Return the recipe for rows around the centre moved by ``shift``, each of norm 1.

        The shift is that of the features in z, released. The constant is then one of the features.
        """
        centre = self.centre + shift / self.scale if self.scale else self.centre
        scale = self.scale or 1.0
        features = NormalisedFeatures(
            self.features, centre=centre.tolist(), scale=scale, constant=self.constant
        ).build(self.features.n_features_in_)
        zeros = np.zeros(features.n_outputs)
        return replace(self, features=features, constant=0.0, scale=1.0, centre=zeros)


def sum_rows(X: Array, y: Array, recipe: RecordRecipe) -> tuple[IntArray]:
    """Return the sum of a block's z without the constant, in integers: each of norm <= STEPS."""
    z, _ = recipe.rows(X)
    part = z[:, 1:].astype(np.float64)
    norms = np.sqrt(np.add.reduce(part * part, axis=1))
    part *= (STEPS * (1 - 2.0**-30) / np.maximum(norms, 1.0))[:, None]
    return (np.trunc(part).astype(np.int64).sum(axis=0),)


class RecordStore:
    """The records of a table, in memory where they fit, made again each pass where they don't."""

    def __init__(self, source: Source, recipe: RecordRecipe) -> None:
        self._source, self._recipe = source, recipe
        itemsize = np.dtype(recipe.dtype).itemsize
        self._keep = source.n_rows * recipe.n_coordinates * itemsize <= _CACHE_BYTES
        self._kept: list[Stored] | None = None
        self._tensors: Any = None
        if source.kind == "torch":
            from dpkernel.estimators.torch_records import TensorStore

            self._tensors = TensorStore(source, recipe, _CACHE_BYTES)

    def records(self, loss: Loss, targets: Targets) -> Records:
        """Return the sums over the table for one loss and one view of its targets."""
        if self._source.kind == "dask":
            return _DaskRecords(self._source, self._recipe, loss, targets)
        if self._tensors is not None:
            found: Records = self._tensors.records(loss, targets)
            return found
        return BlockRecords(lambda: view(self._blocks(), targets), loss)

    def sum_rows(self) -> Any:
        """Return the exact sum of all z without the constant, in integers."""
        if self._tensors is not None:
            return self._tensors.sum_rows()
        return Passes(self._source).sum(sum_rows, self._recipe)[0]

    def prepare(self) -> None:
        """Make what is kept now, before anything is spent: a table that fails here costs nothing."""
        if self._tensors is not None:
            self._tensors.prepare()
        elif self._source.kind != "dask":
            self._blocks()

    def _blocks(self) -> Iterable[Stored]:
        if self._kept is not None:
            return self._kept
        made = make_records(read_again(self._source), self._recipe)
        if not self._keep:
            return made
        self._kept = list(made)
        return self._kept


def make_records(blocks: Iterable[tuple[Array, Array]], recipe: RecordRecipe) -> Iterator[Stored]:
    """Yield (z, y, weights) for blocks of raw rows."""
    for X, y in blocks:
        step = rows_a_block(X.shape[1])
        for start in range(0, len(y), step):
            rows = slice(start, start + step)
            z, weights = recipe.rows(dense_rows(X, rows))
            yield z, y[rows], weights


def view(blocks: Iterable[Stored], targets: Targets) -> Iterator[Record]:
    """Yield the records as one problem sees them."""
    for z, y, weights in blocks:
        wanted, factors = targets.of(y)
        yield z, wanted, weights if factors is None else weights * factors


class _DaskRecords:
    """Sums over Dask chunks, computed where the chunks lie; workers ship sums, not rows."""

    def __init__(self, source: Source, recipe: RecordRecipe, loss: Loss, targets: Targets) -> None:
        self._chunks = chunk_pairs(source.X, source.y)
        self._rest = recipe, loss, targets

    def sums(
        self, beta: Array, hessian_stride: int = 0, threads: int = 1
    ) -> tuple[Array, Array | None]:
        """Return the gradient of the sum of losses and, with a stride, its Hessian."""
        import dask

        task = dask.delayed(_sum_chunk, pure=False)
        wanted = min(hessian_stride, 1)  # every chunk: they are few
        parts = [task(X, y, *self._rest, beta, wanted) for X, y in self._chunks]
        results = computed(dask, *parts, spent=True)
        gradient, hessian = CompensatedSum(len(beta)), CompensatedSum((len(beta), len(beta)))
        for part in results:
            gradient.add(part[0])
            if wanted:
                hessian.add(part[1])
        return gradient.value, hessian.value if wanted else None


def _sum_chunk(
    X: Any,
    y: Any,
    recipe: RecordRecipe,
    loss: Loss,
    targets: Targets,
    beta: Array,
    hessian_stride: int,
) -> tuple[Array, Array | None]:
    blocks = make_records(chunk_block(X, y), recipe)
    return sum_blocks(view(blocks, targets), loss, beta, hessian_stride)
