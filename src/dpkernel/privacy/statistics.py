r"""One-pass, mergeable sums that know their sensitivity.

``GramSum`` accumulates sum_i v_i v_i^T with v = (features, targets, constant). Every record is
first quantised to integers inside its norm ball. Sums of integers are exact, so the program has the
sensitivity of the mathematical query, whatever the order and the number of blocks or threads.

Whoever adds rows must not add a row twice: a record that is in a sum k times moves it k times as
far as the sensitivity says.

The sum without noise can't be printed, pickled or read. There are only two ways out: ``release``,
which adds noise to the matrix, and ``sketch``, which draws rows with the distribution of a Gaussian
mixing of the records.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

import numpy as np

from dpkernel.data.domain import row_squares
from dpkernel.data.tables import as_floats
from dpkernel.foundations.errors import DataError, LedgerError, ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget, IntArray, Neighbours, is_real, is_whole
from dpkernel.privacy import sensitivity
from dpkernel.privacy.mechanisms import GaussianMixing, SymmetricGaussian
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.profiles import gaussian_mu
from dpkernel.privacy.sensitivity import Sensitivity

_FINEST = 2**20  # largest integer radius of the feature ball: a resolution of one in a million
_CACHED_ROWS = 128
_FINEST_FOR_MANY = 2**18  # from a million rows on: blocks of a product can be 16 times longer
TARGET_SHARE = math.sqrt(0.5)  # relative to the feature bound; best for a coefficient norm T/B
CONSTANT_SHARE = 0.5


@dataclass(frozen=True)
class GramLayout:
    """The integer grid of one Gram release. It depends on public numbers only.

    A record is (z, y_1 .. y_k, 1) with ||z|| <= row_bound and ``|y_j| <= 1``; targets are mapped to
    [-1, 1] beforehand. It is stored as integers with ||z|| <= row, ``|y_j| <= target`` and the
    constant.

    Parameters
    ----------
    n_features, n_targets : int
        The numbers of features and of targets.
    row_bound : float
        The bound on the norm of the features.
    row, target, constant : int
        The bounds on features and targets, and the constant, in integer steps.
    neighbours : Neighbours
        The neighbouring relation.
    n_max : int
        The largest number of rows.
    """

    n_features: int
    n_targets: int
    row_bound: float
    row: int
    target: int
    constant: int
    neighbours: Neighbours
    n_max: int = 10**6

    def __post_init__(self) -> None:
        if not is_real(self.row_bound) or not 1e-100 <= float(self.row_bound) <= 1e100:
            allowed = "a float in the range [1e-100, 1e100]"
            raise ParameterError(
                parameter_message("GramLayout", "row_bound", allowed, self.row_bound)
            )
        sizes = (self.n_features, self.row, self.target, self.n_max)
        free = (self.n_targets, self.constant)
        fine = all(is_whole(size) and size >= 1 for size in sizes)
        if not fine or not all(is_whole(size) and size >= 0 for size in free):
            raise ParameterError(
                parameter_message(
                    "GramLayout",
                    "n_features, row, target, n_max",
                    "ints >= 1, with n_targets and constant >= 0",
                    (*sizes, *free),
                    "With very many targets or rows the integer grid becomes too coarse.",
                )
            )

        for name in ("n_features", "n_targets", "row", "target", "constant", "n_max"):
            object.__setattr__(self, name, int(getattr(self, name)))
        object.__setattr__(self, "row_bound", float(self.row_bound))
        if self.norm_square > 2**52:
            allowed = "such that the squared norm of a record is at most 2^52"
            raise ParameterError(
                parameter_message("GramLayout", "row, target, constant", allowed, self.norm_square)
            )

    @classmethod
    def choose(
        cls,
        n_features: int,
        n_targets: int,
        row_bound: float,
        neighbours: Neighbours,
        n_max: int,
        budget: Budget,
        *,
        constant: bool = True,
    ) -> GramLayout:
        """Return the finest grid on which n_max rows and the noise of the budget fit.

        ``constant=False`` leaves the constant coordinate out. Then the sums of features and targets
        are not released, and everything else has less noise.
        """
        mu = gaussian_mu(budget.epsilon, budget.delta)
        share = 1 + CONSTANT_SHARE**2 + TARGET_SHARE**2  # N^2 / row^2
        most = min(2.0**61 / n_max, 2.0**56 * mu, 2.0**52) / share
        finest = _FINEST if n_max < 10**6 else _FINEST_FOR_MANY
        row = int(min(finest, math.sqrt(most)))
        if row < 2**8:
            raise ParameterError(
                parameter_message(
                    "GramLayout",
                    "epsilon, n_max",
                    "such that sums and noise fit in 62 bits",
                    (budget.epsilon, n_max),
                    "Raise epsilon or declare fewer rows.",
                )
            )
        target = int(TARGET_SHARE * row / math.sqrt(max(n_targets, 1)))
        if target < 1:
            allowed = "few enough that each keeps a step of the integer grid"
            raise ParameterError(parameter_message("GramLayout", "n_targets", allowed, n_targets))
        return cls(
            n_features,
            n_targets,
            row_bound,
            row,
            target,
            int(CONSTANT_SHARE * row) if constant else 0,
            neighbours,
            n_max,
        )

    @property
    def side(self) -> int:
        """The dimension of v."""
        return self.n_features + self.n_targets + 1

    @property
    def norm_square(self) -> int:
        """The largest ||v||^2 in integer units."""
        return self.row**2 + self.n_targets * self.target**2 + self.constant**2

    @property
    def units(self) -> Array:
        """The value of one integer step of each coordinate; 0 for a constant that is left out."""
        out = np.full(self.side, self.row_bound / self.row)
        out[self.n_features : -1] = 1.0 / self.target
        out[-1] = 1.0 / self.constant if self.constant else 0.0
        return out

    @property
    def sensitivity(self) -> Sensitivity:
        """The Frobenius sensitivity of the integer sum."""
        return sensitivity.augmented_gram(self.neighbours, **self._bounds)

    @property
    def record_norm(self) -> Sensitivity:
        """The largest norm of an integer record."""
        return sensitivity.record_norm(self.neighbours, **self._bounds)

    @property
    def _bounds(self) -> dict[str, int]:
        row, constant = self.row, self.constant
        return {"row": row, "target": self.target, "targets": self.n_targets, "constant": constant}

    @property
    def block_rows(self) -> int:
        """The largest number of rows that a float64 matrix product sums without rounding."""
        return int(2**53 // self.norm_square)

    def mechanism(self, budget: Budget) -> SymmetricGaussian:
        """Return the mechanism that releases the sum under this budget."""
        found: SymmetricGaussian = SymmetricGaussian.calibrate(
            self.sensitivity, budget, dimension=self.side, integer=True
        )
        return found

    def mixing(self, budget: Budget, rows: int, accept: tuple[str, ...] = ()) -> GaussianMixing:
        """Return the mechanism that releases a sketch of the records under this budget."""
        return GaussianMixing.calibrate(
            self.record_norm, budget, rows=rows, dimension=self.side, accept=accept
        )

    def quantise(self, features: Array, targets: Array, weights: Array | None = None) -> Array:
        """Return integer-valued records inside the bounds, one per row, as float64.

        A record that is not finite becomes zero. Every other step only shrinks a record. Weights in
        [0, 1] belong to v v^T, so v is multiplied by their roots.
        """
        out = np.empty((len(features), self.side))
        for start in range(
            0, len(features), _CACHED_ROWS
        ):  # a few rows at a time, so that they stay in the cache
            rows = slice(start, start + _CACHED_ROWS)
            self._quantise_features(features[rows], out[rows, : self.n_features])
        with np.errstate(invalid="ignore"):
            scaled = np.trunc(np.clip(targets, -1.0, 1.0) * self.target)
        out[:, self.n_features : -1] = np.where(np.isfinite(scaled), scaled, 0.0)
        out[:, -1] = self.constant
        if weights is not None:
            np.trunc(out * np.sqrt(weights)[:, None], out=out)
        return out

    def _quantise_features(self, features: Array, out: Array) -> None:
        features = np.ascontiguousarray(features)
        if features.dtype != np.float32 or not 1e-15 <= self.row_bound <= 1e15:
            features = features.astype(np.float64, copy=False)  # float32 squares would underflow
        squares = row_squares(features)
        strange = np.asarray(~(squares < (1e300 if features.dtype == np.float64 else 1e30)))
        if strange.any():  # such rows must not change any bit of another row
            rows = features[strange].astype(np.float64)
            finite = np.isfinite(rows).all(axis=1, keepdims=True)
            rows = np.where(finite, rows, 0.0)
            largest = np.abs(rows).max(axis=1, initial=0.0)
            features = features.copy()
            features[strange] = (
                rows * (self.row_bound / np.maximum(largest, self.row_bound))[:, None]
            )
            squares = row_squares(features)
        # the norm of a float32 row has a relative error of up to 1e-6: shrink by that much more
        margin = 2.0**-40 if features.dtype == np.float64 else 2.0**-20
        norms = np.sqrt(squares.astype(np.float64))
        factor = self.row * (1 - margin) / np.maximum(norms, self.row_bound)
        np.multiply(features, factor[:, None], out=out)
        np.trunc(out, out=out)
        for _ in range(64):  # squares are exact integers below 2^53 in any order of summation
            over = np.einsum("ij,ij->i", out, out) > float(self.row) ** 2
            if not over.any():
                return
            out[over] = np.trunc(out[over] * (1 - 2.0**-20))
        raise AssertionError("quantisation did not end")

    def read(self, noisy: IntArray) -> NoisyGram:
        """Return the released integers in natural units."""
        m, k = self.n_features, self.n_targets
        units = self.units
        return NoisyGram(noisy.astype(np.float64) * np.outer(units, units), m, k)


@dataclass(frozen=True)
class NoisyGram:
    """A released Gram matrix in natural units. Everything computed from it is post-processing.

    Attributes
    ----------
    matrix : ndarray
        The noisy matrix in natural units.
    n_features, n_targets : int
        The numbers of features and of targets.
    """

    matrix: Array
    n_features: int
    n_targets: int

    @property
    def features(self) -> Array:
        """The noisy sum of z z^T."""
        return self.matrix[: self.n_features, : self.n_features]

    @property
    def cross(self) -> Array:
        """The noisy sum of z y^T, with one column per target."""
        return self.matrix[: self.n_features, self.n_features : -1]

    @property
    def targets(self) -> Array:
        """The noisy sum of y y^T."""
        return self.matrix[self.n_features : -1, self.n_features : -1]

    @property
    def feature_sum(self) -> Array:
        """The noisy sum of z."""
        return self.matrix[: self.n_features, -1]

    @property
    def target_sum(self) -> Array:
        """The noisy sum of y."""
        return self.matrix[self.n_features : -1, -1]

    @property
    def count(self) -> float:
        """The noisy number of rows."""
        return float(self.matrix[-1, -1])


class GramSum:
    """The exact integer sum of v v^T over the rows added so far.

    ``update`` adds rows and ``merge`` adds another statistic with the same layout. Several threads
    may call ``update`` at the same time. The sum can be released once, and nothing else reads it.

    Parameters
    ----------
    layout : GramLayout
        The integer grid of the records.
    """

    def __init__(self, layout: GramLayout) -> None:
        self.layout = layout
        self._sum = np.zeros((layout.side, layout.side), dtype=np.int64)
        self._rows = 0
        self._merged = False
        self._lock = threading.Lock()

    def update(self, features: Array, targets: Array, weights: Array | None = None) -> GramSum:
        """Add rows of features (n, M) and of targets in [-1, 1] (n, k), perhaps with weights (n,)."""
        layout = self.layout
        if features.dtype != np.float32:
            features = as_floats(features, "The features")
        targets = as_floats(targets, "The targets")
        if features.shape[1:] != (layout.n_features,) or targets.shape != (
            len(features),
            layout.n_targets,
        ):
            raise DataError(
                f"The statistic expects {layout.n_features} feature(s) and {layout.n_targets}"
                f" target(s), got shapes {features.shape} and {targets.shape}."
            )
        with self._lock:
            self._count_rows(len(features))
        step = layout.block_rows
        for start in range(0, len(features), step):
            rows = slice(start, start + step)
            some = None if weights is None else weights[rows]
            block = layout.quantise(features[rows], targets[rows], some)
            part = (block.T @ block).astype(np.int64)  # as integers, because the total exceeds 2^53
            with self._lock:
                self._sum += part
        return self

    def merge(self, other: GramSum) -> GramSum:
        """Add the rows of another statistic."""
        if other.layout != self.layout:
            raise DataError("Only statistics with the same layout can be merged.")
        if other is self or other._merged or self._merged:
            raise DataError(
                "A statistic can be merged into another one only once: otherwise its rows would count"
                " twice and the sensitivity would double."
            )
        self._count_rows(other._rows)
        self._sum += other._sum
        other._sum[:], other._merged = 0, True  # its rows now belong to this statistic
        return self

    def _count_rows(self, new: int) -> None:
        if self._merged:
            raise DataError("This statistic was merged into another one and can't be used again.")
        if self._rows + new > self.layout.n_max:
            raise DataError(
                f"The statistic was laid out for at most {self.layout.n_max} rows and gets more."
            )
        self._rows += new

    def _add_sum(self, total: IntArray, rows: int) -> None:
        """Add a sum of quantised records of this layout that was computed by another library."""
        self._count_rows(rows)
        self._sum += total

    def _pack(self) -> tuple[GramLayout, bytes, int]:
        """Return the sum without noise, to be sent between workers of one cluster only."""
        return self.layout, self._sum.tobytes(), self._rows

    @classmethod
    def _unpack(cls, packed: tuple[GramLayout, bytes, int]) -> GramSum:
        found = cls(packed[0])
        side = found.layout.side
        found._sum = np.frombuffer(packed[1], dtype=np.int64).reshape(side, side).copy()
        found._rows = packed[2]
        return found

    def release(self, mechanism: SymmetricGaussian, noise: Noise) -> NoisyGram:
        """Return the noisy sum. A second release needs a second spend."""
        if mechanism.sensitivity != self.layout.sensitivity:
            raise LedgerError(
                "The mechanism was not calibrated for the sensitivity of this statistic. Use"
                " layout.mechanism(budget)."
            )
        return self.layout.read(mechanism.release(self._sum, noise))

    def sketch(self, mechanism: GaussianMixing, noise: Noise) -> Array:
        """Return the rows of a sketch in natural units: features, targets in [-1, 1], constant 1.

        They are drawn from the exact sum and have the distribution of ``mechanism.release`` on the
        records.
        """
        if mechanism.sensitivity != self.layout.record_norm:
            raise LedgerError(
                "The mechanism was not calibrated for the records of this statistic. Use"
                " layout.mixing(budget, rows)."
            )
        return np.asarray(mechanism.release_gram(self._sum, noise) * self.layout.units)

    def __repr__(self) -> str:
        return f"<GramSum of {self.layout.side} coordinates; the sum is not shown>"

    def __reduce__(self) -> str:
        raise LedgerError("Un-noised statistics can't be pickled or copied. Release them instead.")
