r"""The Gram matrix of units. A unit is a person with any number of rows, averaged into one record.

``UnitGramSum`` accumulates S = sum_u (1/m_u) sum_{i in u} v_i v_i^T, v = (features, targets,
constant), over units u of m_u rows each. Neighbouring data sets differ in one whole unit, whose
number of rows may change. The number of units is public; the number of rows is not.

**Sensitivity.** (1/m_u) sum v_i v_i^T lies in the convex hull of the matrices v v^T of single
records. A norm of a difference is convex, so over two such hulls it is largest at two single
records. Hence the sensitivity of one record against another, ``sensitivity.augmented_gram``, is
also that of one unit against another, whatever their numbers of rows. For a blanked unit one term
is missing.

**Numerics.** If a unit gets more rows, all later rows move to other places of a matrix product,
which then rounds them differently. So the computed sum does not change in one term only, as a sum
of integers would, and rounding rows to integers could turn a different last bit into a whole step.
Instead, S is summed in float64 without rounding rows. A bound rho on the distance of the computed S
from the exact S, valid for every table, is passed to the mechanism, which adds 2 rho to the
sensitivity. Let u = 2^-53, gamma(k) = k u / (1 - k u), M the number of features, N the bound on
||v||, B the bound on a row of features, e their ``evaluation_error`` and n the number of units:

1. Exact records. z* = phi*(x) is a function of its row with ||z*|| <= B. Inputs and targets are
   clipped and scaled entry by entry, which gives the same bits wherever they stand. Let t be the
   scaled target and c the constant. Then v* = (z*/B, t, c) is a function of its row alone, and
   ||v*|| <= N. S is the sum over these.
2. Computed records. A row z is divided by max(||z||, B). This is the projection of z/B on the unit
   ball, which moves no two points apart, so the result is within e/B of z*/B. Then it is multiplied
   by (1/m_u)^(1/2). The computed norm errs by gamma(M + 1); the quotient, the root of the share and
   the product err by 4 roundings: r_i = (1/m_u)^(1/2) (v*_i + d_i) with
   ||d_i|| <= E = e/B + gamma(M + 6) N. Because sum_i 1/m_u = n,
   ||sum r_i r_i^T - S||_F <= n (2 N E + E^2).
3. Products of blocks of b = 4096 rows err by ``gamma(b) sum_i |r_i| |r_i|^T``, entry by entry, in
   any order of summation. In norm this is gamma(b) n (N + E)^2.
4. Blocks are added up. The error of each addition is itself a float, and these errors are added up
   in a second sum. For K blocks the total errs by u + gamma(K)^2 of the sum of absolute values.
   2^-49 covers K = 2^28, which is 2^40 rows.

rho is 1.01 times the sum of 2, 3 and 4. It depends on public numbers only. For 100,000 units it is
near 1e-7, compared with a sensitivity of 2.5. ``dpkernel.foundations.rounding`` states what is
assumed about the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpkernel.data.blocks import BLOCK_ROWS
from dpkernel.data.domain import row_squares
from dpkernel.data.tables import as_floats
from dpkernel.foundations.errors import DataError, LedgerError, ParameterError, parameter_message
from dpkernel.foundations.rounding import gamma
from dpkernel.foundations.types import Array, Budget, Neighbours, is_real, is_whole
from dpkernel.privacy import sensitivity
from dpkernel.privacy.mechanisms import SymmetricGaussian
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.statistics import CONSTANT_SHARE, TARGET_SHARE, NoisyGram

MOST_BLOCKS = 2**28
_BLOCK_SUM_ERROR = 2.0**-49  # above u + gamma(MOST_BLOCKS)^2
_MOST_ROUNDING = 0.05  # largest share of the sensitivity; beyond it too much noise goes to rounding


@dataclass(frozen=True)
class UnitGramLayout:
    """The scale of one release of a Gram matrix of units. It depends on public numbers only.

    A record is (z / row_bound, target y_1 .. target y_k, constant) with ||z|| <= row_bound and
    ``|y_j| <= 1``. ``feature_error`` is the ``evaluation_error`` of the feature map.

    Parameters
    ----------
    n_features, n_targets : int
        The numbers of features and of targets.
    row_bound : float
        The bound on the norm of the features.
    neighbours : Neighbours
        The neighbouring relation.
    n_units : int
        The number of units.
    feature_error : float
        The ``evaluation_error`` of the feature map.
    """

    n_features: int
    n_targets: int
    row_bound: float
    neighbours: Neighbours
    n_units: int
    feature_error: float

    def __post_init__(self) -> None:
        for name, least in (("n_features", 1), ("n_targets", 0), ("n_units", 1)):
            value = getattr(self, name)
            if not is_whole(value) or not least <= value < 2**40:
                allowed = f"an int from {least} to 2^40"
                raise ParameterError(parameter_message("UnitGramLayout", name, allowed, value))
            object.__setattr__(self, name, int(value))
        for name, low, high in (("row_bound", 1e-100, 1e100), ("feature_error", 0.0, 1e100)):
            value = getattr(self, name)
            if not is_real(value) or not low <= float(value) <= high:
                allowed = f"a float in the range [{low:g}, {high:g}]"
                raise ParameterError(parameter_message("UnitGramLayout", name, allowed, value))
            object.__setattr__(self, name, float(value))
        if not self.rounding <= _MOST_ROUNDING * self.sensitivity.value:
            share = self.rounding / self.sensitivity.value
            raise ParameterError(
                parameter_message(
                    "UnitGramLayout",
                    "feature_error, n_units",
                    f"such that rounding errors stay below {_MOST_ROUNDING:g} of the sensitivity",
                    f"{share:.3g} of it",
                    "Use a wider kernel, or features with a smaller error: 'fourier' or 'eigen'.",
                )
            )

    @property
    def row(self) -> float:
        """The largest norm of the feature part of a record: 1."""
        return 1.0

    @property
    def target(self) -> float:
        """The value that a target of 1 has in the record."""
        return TARGET_SHARE / math.sqrt(max(self.n_targets, 1))

    @property
    def constant(self) -> float:
        """The constant coordinate."""
        return CONSTANT_SHARE

    @property
    def side(self) -> int:
        """The dimension of v."""
        return self.n_features + self.n_targets + 1

    @property
    def norm_square(self) -> float:
        """N^2, the largest ||v||^2, rounded up."""
        return (1 + self.n_targets * self.target**2 + self.constant**2) * (1 + 1e-15)

    @property
    def units(self) -> Array:
        """The factor that converts each coordinate to natural units."""
        out = np.full(self.side, self.row_bound)
        out[self.n_features : -1] = 1.0 / self.target
        out[-1] = 1.0 / self.constant
        return out

    @property
    def sensitivity(self) -> sensitivity.Sensitivity:
        """The Frobenius sensitivity of S."""
        return sensitivity.unit_gram(
            self.neighbours,
            row=self.row,
            target=self.target,
            targets=self.n_targets,
            constant=self.constant,
        )

    @property
    def rounding(self) -> float:
        """rho: the largest distance of the computed sum from S, for every table."""
        longest = math.sqrt(self.norm_square)
        record = self.feature_error / self.row_bound + gamma(self.n_features + 6) * longest
        products = gamma(BLOCK_ROWS) + _BLOCK_SUM_ERROR
        each = record * (2 * longest + record) + products * (longest + record) ** 2
        return 1.01 * self.n_units * each

    def mechanism(self, budget: Budget) -> SymmetricGaussian:
        """Return the mechanism that releases the sum under this budget."""
        found: SymmetricGaussian = SymmetricGaussian.calibrate(
            self.sensitivity,
            budget,
            dimension=self.side,
            rounding=self.rounding,
            magnitude=self.n_units * self.norm_square + self.rounding,
        )
        return found

    def records(self, features: Array, targets: Array, shares: Array) -> Array:
        """Return the rows r_i: features inside the ball, times the root of their share.

        A row that is not finite becomes zero. A feature map with an ``evaluation_error`` gives
        none.
        """
        features = np.ascontiguousarray(features, dtype=np.float64)
        roots = np.sqrt(shares)
        squares = row_squares(features)
        strange = ~(squares < 1e300)
        if strange.any():
            features = np.where(strange[:, None], 0.0, features)
            squares = np.where(strange, 0.0, squares)
        factors = roots / np.maximum(np.sqrt(squares), self.row_bound)
        out = np.empty((len(features), self.side))
        np.multiply(features, factors[:, None], out=out[:, : self.n_features])
        scaled = np.clip(np.nan_to_num(targets), -1.0, 1.0) * self.target
        np.multiply(scaled, roots[:, None], out=out[:, self.n_features : -1])
        out[:, -1] = self.constant * roots
        return out

    def read(self, noisy: Array) -> NoisyGram:
        """Return the released sum in natural units."""
        units = self.units
        return NoisyGram(noisy * np.outer(units, units), self.n_features, self.n_targets)


class UnitGramSum:
    """The sum of v v^T over the rows added so far, each row weighted by its share of a unit.

    The sum can be released once, and nothing else reads it.

    Parameters
    ----------
    layout : UnitGramLayout
        The scale of the records.
    """

    def __init__(self, layout: UnitGramLayout) -> None:
        self.layout = layout
        self._sum = np.zeros((layout.side, layout.side))
        self._rest = np.zeros((layout.side, layout.side))
        self._blocks = 0

    def update(self, features: Array, targets: Array, shares: Array) -> UnitGramSum:
        """Add rows of features (n, M) and targets in [-1, 1] (n, k) with their shares.

        The share of a row is 1 / (number of rows of its unit). Over all calls, the shares of a unit
        must add up to 1: the sensitivity rests on it.
        """
        layout = self.layout
        features, targets = as_floats(features, "The features"), as_floats(targets, "The targets")
        n, shares = len(features), as_floats(shares, "The shares")
        wanted = ((n, layout.n_features), (n, layout.n_targets), (n,))
        if (features.shape, targets.shape, shares.shape) != wanted:
            raise DataError(
                f"The statistic expects {layout.n_features} feature(s), {layout.n_targets} target(s)"
                " and one share for every row."
            )
        if not ((shares > 0) & (shares <= 1)).all():
            raise DataError("A row's share of its unit must be in the range (0, 1].")
        for start in range(0, n, BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            self._add(layout.records(features[rows], targets[rows], shares[rows]))
        return self

    def _add(self, block: Array) -> None:
        if self._blocks >= MOST_BLOCKS:
            raise DataError("The table has more blocks of rows than the rounding bound counts.")
        self._blocks += 1
        new = block.T @ block
        total = self._sum + new
        back = total - self._sum
        self._rest += (self._sum - (total - back)) + (new - back)  # the exact error of the addition
        self._sum = total

    def _total(self) -> Array:
        return self._sum + self._rest

    def release(self, mechanism: SymmetricGaussian, noise: Noise) -> NoisyGram:
        """Return the noisy sum. A second release needs a second spend."""
        layout = self.layout
        fits = mechanism.sensitivity == layout.sensitivity and mechanism.rounding >= layout.rounding
        if not fits:
            raise LedgerError(
                "The mechanism was not calibrated for the sensitivity and rounding of this statistic."
                " Use layout.mechanism(budget)."
            )
        return layout.read(mechanism.release(self._total(), noise))

    def __repr__(self) -> str:
        return f"<UnitGramSum of {self.layout.side} coordinates; the sum is not shown>"

    def __reduce__(self) -> str:
        raise LedgerError("Un-noised statistics can't be pickled or copied. Release them instead.")
