"""Replace missing values by a private centre of their column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from sklearn.base import OneToOneFeatureMixin

from dpkernel.estimators.base import FitPlan
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice
from dpkernel.preprocessing.base import PrivateTransformer, ranges_as_json
from dpkernel.preprocessing.rows import Rows
from dpkernel.preprocessing.search import Column, ColumnSearch, ColumnsPlan
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource


class PrivateImputer(OneToOneFeatureMixin, PrivateTransformer):
    r"""Replace missing values by a private median or mean of their column.

    The number of missing values is private, too: missing values are one more cell of the histograms. No
    column is dropped, not even if all its values are missing; its centre is then the value of the public
    range that is nearest to 0. Only NaN counts as missing. Infinite values are refused.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. delta must be above 0.
    strategy : {"median", "mean"}
        What replaces a missing value. For "mean", values are clipped to where most of the column lies.
    bounds : (low, high) or Domain
        A wide public range of the columns. It is required. Values outside count as its nearest end.
    neighbours : {"replace-one", "zero-out"}
        The neighbouring relation of the guarantee.
    ledger : Ledger, optional
        The ledger that records the spend. Without one, each fit has a ledger of its own.
    noise : NoiseSource, optional
        The source of noise; by default the entropy of the operating system. With ``SeededNoise`` the
        fit is not private.

    Attributes
    ----------
    statistics_ : array
        The number that replaces a missing value, one per column.
    missing_ : array
        The noisy share of missing values of each column, from 0 to 1.
    certificate_ : Certificate
        The guarantee of the fit.
    n_features_in_, feature_names_in_
        The number and the names of the columns.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows, the wide range and the
        parameters are public. All releases are one spend, recorded before any noise is drawn.
    Sensitivity
        The same as for ``PrivateStandardScaler``. A missing value has a cell of its own and adds
        nothing to the sums.
    Not covered
        A ``score`` of any model on the training rows, because it reads them without noise.

    References
    ----------
    Gaussian mechanism on histograms.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.preprocessing import PrivateImputer
    >>> X = np.random.default_rng(0).normal(70.0, 3.0, (10_000, 1)); X[::4] = np.nan
    >>> imputer = PrivateImputer(epsilon=1.0, bounds=(0, 1e5)).fit(X)
    >>> bool(66 < imputer.statistics_[0] < 74 and 0.2 < imputer.missing_[0] < 0.3)
    True
    """

    _missing_allowed: ClassVar[bool] = True
    _learned: ClassVar[tuple[str, ...]] = ("statistics_", "missing_")
    _public: ClassVar[tuple[str, ...]] = ("strategy",)
    _constraints: ClassVar = {
        **PrivateTransformer._constraints,
        "strategy": Choice("median", "mean"),
    }

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        strategy: str = "median",
        bounds: Any = None,
        neighbours: str | Neighbours = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.strategy = strategy
        self.bounds = bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise

    def _make_plan(self, table: Rows, budget: Budget, relation: Neighbours) -> FitPlan:
        ranges, n = self._ranges(table.columns), table.n_rows
        by_mean = self.strategy == "mean"
        search = ColumnSearch(ranges, n, budget, relation, moments=by_mean, missing=True)
        public = {"n_rows": n, "ranges": ranges_as_json(ranges), "strategy": self.strategy}

        def conclude(columns: list[Column]) -> dict[str, Any]:
            return {
                "statistics_": np.array([c.mean if by_mean else c.median for c in columns]),
                "missing_": np.array([1 - c.present / n for c in columns]),
            }

        return ColumnsPlan(search, table, public, conclude)

    def transform(self, X: Any) -> Array:
        """Return the columns with missing values replaced."""
        table = self._check_new_table(X)
        return np.where(np.isnan(table), self.statistics_, table)

    @property
    def _output_bounds(self) -> Any:
        # the table that the next step gets has no names
        by_name = isinstance(self.bounds, Mapping) or hasattr(self.bounds, "loc")
        return None if by_name else self.bounds
