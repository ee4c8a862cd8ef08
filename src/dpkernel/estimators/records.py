r"""From raw rows to the records of a convex problem: centred features, a constant, a weight.

A record is z = (constant, scale (phi(x) - centre)) with a target and a weight
omega = min(1, B^2 / ||z||^2), so that omega ||z|| <= B and omega ||z||^2 <= B^2 for every row.
Clipping would shorten a long row. A weight keeps its direction and its target, so that the solution
for the other rows is not biased. The centre and the scale follow from the public measure of the
inputs. The record of a row depends on that row only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, Self

import numpy as np

from dpkernel.data.domain import Domain, Interval, Intervals, unit_inputs
from dpkernel.data.passes import Passes
from dpkernel.data.sources import Source
from dpkernel.data.weights import split_weights
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, IntArray
from dpkernel.models.features import FeatureMap, NormalisedFeatures
from dpkernel.models.losses import Loss
from dpkernel.solvers.objective_perturbation import CompensatedSum, Records, sum_blocks

ROW_BOUND = 1.0  # the largest norm of a weighted record of a convex problem or of SGD
# the variance that we assume for a good prediction of y in [-1, 1], and for a good decision function
NUMBER_SIGNAL, CLASS_SIGNAL = 0.5, 4.0
CONSTANT_POWER = 0.1  # the share of ||z||^2 that belongs to the constant coordinate
_SAMPLE = 2048
STEPS = 2**20  # a row of norm 1, or a residual at its clip, as integers: their sums are exact


@dataclass(frozen=True)
class RecordRecipe:
    """How a row becomes a record. All of it is public."""

    domain: Domain
    features: FeatureMap
    constant: float
    scale: float
    centre: Array
    row_bound: float
    dtype: str = "float64"

    @classmethod
    def choose(
        cls,
        domain: Domain,
        features: FeatureMap,
        n_rows: int,
        row_bound: float,
        constant: float = CONSTANT_POWER,
    ) -> tuple[RecordRecipe, Array]:
        """Return the recipe for which E ||z||^2 = 1 under the public measure, and the E z_l^2.

        The measure is the uniform law on the declared box. Without declared bounds, the centre is 0
        and the scale follows from the bound on ||phi||. ``constant`` is the share of ||z||^2 that
        belongs to the constant coordinate.
        """
        dtype = "float32" if n_rows >= 20_000 else "float64"
        power = 1 - constant
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
        recipe = cls(domain, features, math.sqrt(constant), scale, centre, row_bound, dtype)
        return recipe, np.concatenate(([constant], scale**2 * spread))

    @property
    def n_coordinates(self) -> int:
        """The length of z."""
        return self.features.n_outputs + self._offset

    @property
    def bytes_a_row(self) -> int:
        """The memory that z of one row takes."""
        return self.n_coordinates * np.dtype(self.dtype).itemsize

    @property
    def _offset(self) -> int:
        """1 if a constant comes before the features, else 0."""
        return 1 if self.constant else 0

    def rows(self, X: Array) -> tuple[Array, Array]:
        """Return z and the weight of every row."""
        with np.errstate(all="ignore"):  # a warning would reveal something about the data
            phi = self.features.transform_block(unit_inputs(X, self.domain, self.dtype))
        z = np.empty((len(phi), self.n_coordinates), self.dtype)
        first = self._offset
        z[:, :first] = self.constant
        with np.errstate(all="ignore"):
            np.subtract(phi, self.centre.astype(self.dtype), out=z[:, first:])
            z[:, first:] *= z.dtype.type(self.scale)
        limit = self.row_bound**2 * (1 - 2.0**-40)
        weights = np.empty(len(z))
        for start in range(0, len(z), 512):  # this few rows fit into the cache
            part = z[start : start + 512].astype(np.float64)
            with np.errstate(all="ignore"):
                squares = np.add.reduce(part * part, axis=1)
            strange = ~(squares < 1e200)
            if strange.any():  # no map of this library does this; such a row has no effect
                z[start : start + 512][strange] = 0.0
                squares = np.where(strange, 0.0, squares)
            weights[start : start + 512] = limit / np.maximum(squares, limit)
        return z, weights

    def coefficients(self, beta: Array) -> tuple[Array, float]:
        """Return coefficients on the features and the intercept, for a solution in z."""
        coef = self.scale * beta[self._offset :]
        return coef, float(self.constant * beta[0] * self._offset - self.centre @ coef)

    def around(self, shift: Array) -> RecordRecipe:
        """Return the recipe for rows of norm 1 around the centre, which is moved by ``shift``.

        The shift is in the units of z and was released. The constant then becomes one of the
        features.
        """
        centre = self.centre + shift / self.scale if self.scale else self.centre
        scale = self.scale or 1.0
        features = NormalisedFeatures(
            self.features, centre=centre.tolist(), scale=scale, constant=self.constant
        ).build(self.features.n_features_in_)
        zeros = np.zeros(features.n_outputs)
        return replace(self, features=features, constant=0.0, scale=1.0, centre=zeros)


def sum_rows(X: Array, y: Array, recipe: RecordRecipe, weighted: bool = False) -> tuple[IntArray]:
    """Return the sum of z over a block, without the constant, as integers of norm <= STEPS each."""
    z, _ = recipe.rows(X)
    part = z[:, 1:].astype(np.float64)
    norms = np.sqrt(np.add.reduce(part * part, axis=1))
    part *= (STEPS * (1 - 2.0**-30) / np.maximum(norms, 1.0))[:, None]
    if weighted:
        part *= y[:, -1:]
    return (np.trunc(part).astype(np.int64).sum(axis=0),)


# --- sums over the records of a table ---------------------------------------------------------------


@dataclass(frozen=True)
class Targets:
    """How a problem transforms the stored targets. It is public, and the same for every row."""

    def of(self, y: Array) -> tuple[Array, Array | None]:
        """Return the targets of the problem, and weights in [0, 1] or None."""
        return y, None

    def view(self, z: Any, y: Array, weights: Array) -> tuple[Any, Array, Array]:
        """Return stored records as the problem sees them."""
        wanted, factors = self.of(y)
        return z, wanted, weights if factors is None else weights * factors


@dataclass(frozen=True)
class UnitTarget(Targets):
    """The target, clipped to its declared range and scaled to [-1, 1].

    ``place`` is the column of one of several targets.
    """

    interval: Interval
    place: int | None = None

    def of(self, y: Array) -> tuple[Array, Array | None]:
        """Return targets in [-1, 1]."""
        return self.interval.to_unit(y if self.place is None else y[:, self.place]), None


def unit_targets(target: Interval, target_shape: tuple[int, ...]) -> tuple[UnitTarget, ...]:
    """Return a view of each target, scaled to its own range."""
    if isinstance(target, Intervals):  # also if the shape is not known yet
        return tuple(UnitTarget(part, place) for place, part in enumerate(target.parts))
    if not target_shape:
        return (UnitTarget(target),)
    return tuple(UnitTarget(target, place) for place in range(target_shape[0]))


@dataclass(frozen=True)
class Weighted(Targets):
    """A view of targets that have a weight per row beside them."""

    targets: Targets
    several: bool

    def of(self, y: Array) -> tuple[Array, Array | None]:
        """Return the targets of the problem, and weights in [0, 1]."""
        values, weights = split_weights(y, self.several)
        wanted, factors = self.targets.of(values)
        return wanted, weights if factors is None else weights * factors


def weighted_view(targets: Targets, source: Source) -> Targets:
    """Return how a problem sees the stored targets of this table."""
    return Weighted(targets, bool(source.target_shape)) if source.weighted else targets


class RecordPasses(Passes):
    """A table and its steps. The last step may return records: (features, targets, weights)."""

    longer = 16  # a device is quick on long blocks

    def featured(
        self, features: FeatureMap, dtype: str, extra: int, rotation: Array | None = None
    ) -> Self:
        """Return the table with the features of its unit rows, on the device that holds tensors.

        ``extra`` is how many bytes its targets take per row.
        """
        size = features.n_outputs * np.dtype(dtype).itemsize + extra
        if self.source.kind != "torch":
            return self.then(feature_block, features, rotation, bytes_a_row=size)
        from dpkernel.data.tensors import working_device
        from dpkernel.estimators import device_rows

        device = working_device(self.source.X)
        twin = device_rows.block_twin(features, dtype, rotation, device)
        return self.then(device_rows.feature_block, twin, bytes_a_row=size, device=device)

    def records(self, loss: Loss, targets: Targets | None = None) -> Records:
        """Return the sums of a convex problem, for one view of the targets."""
        targets = targets or Targets()
        if not self.on_device:
            return _Sums(self, sum_records, loss, targets)
        from dpkernel.estimators import torch_records

        size = torch_records.VIEW_BYTES if self.keeps else None
        seen = self.then(torch_records.viewed, targets, bytes_a_row=size)
        return _Sums(seen, torch_records.sum_records, loss, Targets())


@dataclass(frozen=True)
class _Sums:
    """Sums over the records of a table, at any beta."""

    passes: Passes
    job: Callable[..., Any]
    loss: Loss
    targets: Targets

    def sums(
        self, beta: Array, hessian_stride: int = 0, threads: int = 1
    ) -> tuple[Array, Array | None]:
        """Return the gradient of the sum of losses and, with a stride, its Hessian."""
        if not self.passes.local:
            threads = 1  # workers have their own; a stride counts the blocks of each chunk
        arguments = self.targets, self.loss, beta, hessian_stride, threads
        found: tuple[Array, Array | None] = _merged(
            self.passes.run(self.job, *arguments, merge=_merged)
        )
        return found


def _merged(parts: list[tuple[Array, Array | None]]) -> tuple[Array, Array | None]:
    """Return the sums over blocks that follow each other."""
    gradient, hessian = parts[0]
    if len(parts) == 1:
        return gradient, hessian
    bends = [bend for _, bend in parts if bend is not None]
    return _compensated([slopes for slopes, _ in parts]), _compensated(bends) if bends else None


def sum_records(
    blocks: Iterable[tuple[Array, Array, Array]],
    targets: Targets,
    loss: Loss,
    beta: Array,
    hessian_stride: int,
    threads: int,
) -> tuple[Array, Array | None]:
    """Return gradient and Hessian of the sum of losses over blocks of records."""
    return sum_blocks(starmap(targets.view, blocks), loss, beta, hessian_stride, threads)


def _compensated(terms: list[Array]) -> Array:
    total = CompensatedSum(terms[0].shape)
    for term in terms:
        total.add(term)
    return total.value


def feature_block(
    X: Array, y: Array, features: FeatureMap, rotation: Array | None = None
) -> tuple[Array, Array]:
    """Return the features of a block of unit rows, and its targets and weights."""
    with np.errstate(all="ignore"):  # a warning would reveal something about the data
        rows = features.transform_block(X)
    strange = np.asarray(~np.isfinite(rows).all(axis=1))
    if strange.any():  # no kernel of this library does this; such a row has no effect
        rows = np.where(strange[:, None], 0, rows).astype(rows.dtype)
    return rows if rotation is None else rows @ rotation.astype(rows.dtype, copy=False), y


def kept_rows(source: Source) -> RecordPasses | None:
    """Return the rows of a table that is not in memory, kept so that it need not be read again."""
    if source.kind not in ("stream", "dask"):
        return None
    width = 8 * (source.n_columns + 1)
    return RecordPasses(source).then(_as_they_are, bytes_a_row=width)


def _as_they_are(X: Array, y: Array) -> tuple[Array, Array]:
    return X, y


def record_block(X: Array, y: Array, recipe: RecordRecipe) -> tuple[Array, Array, Array]:
    """Return z, the targets of the table and the weights, for a block of rows."""
    z, weights = recipe.rows(X)
    return z, y, weights


class RecordStore:
    """The records of a table, kept where they fit, made again each pass where they don't.

    ``rows`` are the rows of a table that was read before, to be used instead of the source.
    """

    def __init__(
        self, source: Source, recipe: RecordRecipe, rows: RecordPasses | None = None
    ) -> None:
        self._source, self._recipe = source, recipe
        self._step: Any = (record_block, recipe)
        if source.kind == "torch":
            from dpkernel.estimators import torch_records

            twin = torch_records.record_twin(recipe, source.X)
            self._step = (torch_records.record_block, twin)
            device_rows = torch_records.rows_at_once(recipe, source.n_columns)
            self.rows = RecordPasses(source, device_rows=device_rows)
        else:
            self.rows = rows or RecordPasses(source)
        self._records = self.rows.then(*self._step, bytes_a_row=recipe.bytes_a_row)

    def records(self, loss: Loss, targets: Targets) -> Records:
        """Return the sums over the table for one loss and one view of its targets."""
        return self._records.records(loss, weighted_view(targets, self._source))

    def sum_rows(self) -> Any:
        """Return the exact sum of all z without the constant, in integers; nothing is kept."""
        if self._source.kind == "torch":
            from dpkernel.estimators.torch_records import sum_rows as sum_tensors

            return sum_tensors(self.rows.then(*self._step).blocks(), STEPS)
        return self.rows.sum(sum_rows, self._recipe, self._source.weighted)[0]

    def prepare(self) -> None:
        """Make the records that are kept, before anything is spent, so that a failure costs nothing."""
        self._records.prepare()
