"""Gram sums of disjoint folds of rows: one noisy matrix per fold for the privacy cost of one.

The fold of a row is its position modulo the number of folds. This rule has three advantages. It is
the same for arrays, streams, Dask chunks and tensors, whatever their blocks. It spreads runs of
similar rows, as in tables kept in the order of arrival, over all folds, which contiguous pieces
would not do. And it does not look at the row. Two neighbouring data sets with a public number of
rows differ at one position and therefore in one fold.

Two cases are not handled. Under add-remove, a removed row moves all later rows into other folds;
the ledger and the certificate refuse it. And a record that somebody adds at two positions may be in
two folds.
"""

from __future__ import annotations

from dpkernel.foundations.errors import DataError, LedgerError
from dpkernel.foundations.types import Array, IntArray
from dpkernel.privacy.mechanisms import GaussianMixing, SymmetricGaussian
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.statistics import GramLayout, GramSum, NoisyGram

Packed = list[tuple[GramLayout, bytes, int]]


def fold_of(position: int, folds: int) -> int:
    """Return the fold of the row at this position of the table.

    Parameters
    ----------
    position : int
        The position of the row, from 0 on.
    folds : int
        The number of folds.
    """
    return position % folds


def fold_sizes(n_rows: int, folds: int) -> list[int]:
    """Return the number of rows in each fold of a table with ``n_rows`` rows.

    Parameters
    ----------
    n_rows : int
        The number of rows of the table.
    folds : int
        The number of folds.
    """
    return [len(range(fold, n_rows, folds)) for fold in range(folds)]


class GramFolds:
    """One ``GramSum`` per fold; the position of a row decides to which sum it is added.

    ``update`` adds rows. Several threads may call it if each names the position of its first row.
    ``merge`` appends the rows of another instance, whose positions follow those already added. The
    size of the blocks does not matter.

    Parameters
    ----------
    layout : GramLayout
        The columns and the sensitivity of each sum.
    folds : int
        The number of folds.

    Notes
    -----
    Guarantee
        The noisy matrices of all folds together have the profile of one of them, because replacing
        or blanking a row changes one sum only, by at most the sensitivity of the layout.
    Sensitivity
        The sensitivity of the stacked sums is that of one sum, ``layout.sensitivity``.
    """

    def __init__(self, layout: GramLayout, folds: int = 1) -> None:
        self.layout = layout
        self._folds = [GramSum(layout) for _ in range(folds)]

    @property
    def _rows(self) -> int:
        return sum(fold._rows for fold in self._folds)

    def _from(self, position: int) -> list[GramSum]:
        """Return the folds in the order in which the rows from this position on go to them."""
        folds = len(self._folds)
        return [self._folds[fold_of(position + offset, folds)] for offset in range(folds)]

    def update(
        self,
        features: Array,
        targets: Array,
        position: int | None = None,
        weights: Array | None = None,
    ) -> GramFolds:
        """Add rows of features (n, M) and of targets in [-1, 1] (n, k), perhaps with weights (n,).

        ``position`` is that of the first row. By default the rows follow those already added.
        """
        start, folds = self._rows if position is None else position, len(self._folds)
        for offset, fold in enumerate(self._from(start)):
            own = None if weights is None else weights[offset::folds]
            fold.update(features[offset::folds], targets[offset::folds], own)
        self._check_rows()
        return self

    def merge(self, other: GramFolds) -> GramFolds:
        """Append the rows of another instance with the same layout and number of folds."""
        if other is self or len(other._folds) != len(self._folds):
            raise DataError("Only statistics with the same number of folds can be merged.")
        for fold, following in zip(self._from(self._rows), other._folds, strict=True):
            fold.merge(following)
        self._check_rows()
        return self

    def _add_sums(self, totals: list[IntArray], rows: int) -> None:
        """Append rows whose sums, one per fold in order, were computed by another library."""
        sizes = fold_sizes(rows, len(self._folds))
        for fold, total, size in zip(self._from(self._rows), totals, sizes, strict=True):
            fold._add_sum(total, size)
        self._check_rows()

    def _check_rows(self) -> None:
        """Raise if there are more rows than declared; a single fold could not notice it."""
        if self._rows > self.layout.n_max:
            raise DataError(
                f"The statistic was laid out for at most {self.layout.n_max} rows and gets more."
            )

    def _pack(self) -> Packed:
        """Return the sums without noise, to be sent between workers of one cluster only."""
        return [fold._pack() for fold in self._folds]

    @classmethod
    def _unpack(cls, packed: Packed) -> GramFolds:
        found = cls(packed[0][0], 0)
        found._folds = [GramSum._unpack(fold) for fold in packed]
        return found

    def release(self, mechanism: SymmetricGaussian, noise: Noise) -> list[NoisyGram]:
        """Return one noisy matrix per fold. The spend must name the folds: ``Part(..., folds=K)``."""
        return [fold.release(mechanism, noise) for fold in self._folds]

    def sketch(self, mechanism: GaussianMixing, noise: Noise) -> Array:
        """Return a sketch of all rows in natural units. The statistic must have one fold."""
        if len(self._folds) != 1:
            raise DataError("A sketch needs a statistic with one fold.")
        return self._folds[0].sketch(mechanism, noise)

    def __repr__(self) -> str:
        return f"<{len(self._folds)} fold(s) of {self._folds[0]!r}>"

    def __reduce__(self) -> str:
        raise LedgerError("Un-noised statistics can't be pickled or copied. Release them instead.")
