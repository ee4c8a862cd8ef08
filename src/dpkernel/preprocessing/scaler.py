"""Centre and scale columns privately."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import OneToOneFeatureMixin

from dpkernel.estimators.base import FitPlan
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.preprocessing.base import PrivateTransformer, ranges_as_json
from dpkernel.preprocessing.rows import StepTable
from dpkernel.preprocessing.search import Column, ColumnSearch, ColumnsPlan
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource

BOX = 3.0  # deviations to either side that the next step uses as the range of a scaled column


class PrivateStandardScaler(OneToOneFeatureMixin, PrivateTransformer):
    r"""Subtract the mean of each column and divide by its standard deviation, both found privately.

    Histograms within a wide public range find the bulk of each column. With enough rows there is another
    release: the sums of the values and of their squares, clipped at six deviations to either side. A few
    huge values affect neither. Whether the sums are released depends only on the number of rows, the
    number of columns and the budget.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. delta must be above 0.
    bounds, neighbours, ledger, noise
        See ``PrivateBounds``.

    Attributes
    ----------
    mean_, scale_ : arrays, one number per column
        The centre and scale of each column. A constant column gets a small scale, not 0.
    certificate_, n_features_in_, feature_names_in_
        See ``PrivateBounds``.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows, the wide range and the
        parameters are public. All releases are one spend, recorded before any noise is drawn.
    Sensitivity
        For d columns, the histograms have sqrt(2 d) (replace-one) or sqrt(d) (zero-out):
        ``sensitivity.column_histograms``. The sums, including those of squares, have 2 sqrt(d) or
        5/4 sqrt(d) times the clipping bound: ``sensitivity.column_moments``.
    Not covered
        A ``score`` of any model on the training rows, because it reads them without noise.

    References
    ----------
    Gaussian mechanism; Karwa & Vadhan (2018) for a histogram first and a clipped mean second.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.preprocessing import PrivateStandardScaler
    >>> X = np.random.default_rng(0).normal(400.0, 20.0, (20_000, 1))
    >>> scaler = PrivateStandardScaler(epsilon=1.0, bounds=(-1e6, 1e6)).fit(X)
    >>> bool(abs(scaler.mean_[0] - 400) < 4 and 18 < scaler.scale_[0] < 22)
    True
    """

    _learned: ClassVar[tuple[str, ...]] = ("mean_", "scale_")

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        bounds: Any = None,
        neighbours: str | Neighbours = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise

    def _make_plan(self, table: StepTable, budget: Budget, relation: Neighbours) -> FitPlan:
        ranges = self._ranges(table.columns)
        search = ColumnSearch(ranges, table.n_rows, budget, relation, moments=True)
        public = {"n_rows": table.n_rows, "ranges": ranges_as_json(ranges)}

        def conclude(columns: list[Column]) -> dict[str, Any]:
            return {
                "mean_": np.array([column.mean for column in columns]),
                "scale_": np.array([max(column.spread, 1e-300) for column in columns]),
            }

        return ColumnsPlan(search, table, public, conclude)

    def transform(self, X: Any) -> Array:
        """Return the centred and scaled columns. They are not clipped."""
        with np.errstate(over="ignore"):
            return np.asarray(np.nan_to_num((self._check_new_table(X) - self.mean_) / self.scale_))

    def inverse_transform(self, X: Any) -> Array:
        """Return scaled columns in their original units."""
        return np.asarray(self._check_new_table(X) * self.scale_ + self.mean_)

    @property
    def _output_bounds(self) -> Any:
        return -BOX, BOX
