"""Replace missing values by a private centre of their column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import OneToOneFeatureMixin

from dpkernel.estimators.base import FitPlan
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Spelled
from dpkernel.preprocessing.base import PrivateTransformer, ranges_as_json
from dpkernel.preprocessing.rows import StepTable
from dpkernel.preprocessing.search import Column, ColumnSearch, ColumnsPlan
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource


def _are_strategies(value: object) -> bool:
    """Return whether a value is a list of strategies, of which at least one is not None."""
    return (
        isinstance(value, (list, tuple))
        and all(one in ("median", "mean", None) for one in value)
        and any(one is not None for one in value)
    )


class PrivateImputer(OneToOneFeatureMixin, PrivateTransformer):
    r"""Replace missing values by a private median or mean of their column.

    The number of missing values is private, too: missing values are one more cell of the histograms. No
    column is dropped, not even if all its values are missing; its centre is then the value of the public
    range that is nearest to 0. Only NaN counts as missing. Infinite values are refused.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. delta must be above 0.
    strategy : {"median", "mean"}, or list
        What replaces a missing value. For "mean", values are clipped to where most of the column lies.
        A list has an entry per column. None stands for a column without missing values: it costs
        nothing, and a missing value in it is refused.
    bounds : (low, high) or Domain
        A wide public range of the columns. It is required. Values outside count as its nearest end.
    neighbours, ledger, noise
        See ``PrivateBounds``.

    Attributes
    ----------
    statistics_ : array
        The number that replaces a missing value, one per column; NaN where the strategy is None.
    missing_ : array
        The noisy share of missing values of each column, from 0 to 1; 0 where the strategy is None.
    certificate_, n_features_in_, feature_names_in_
        See ``PrivateBounds``.

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
        "strategy": (
            Choice("median", "mean"),
            Spelled("a list of 'median', 'mean' and None", _are_strategies),
        ),
    }

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        strategy: str | Sequence[str | None] = "median",
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

    def _strategies(self, n_columns: int) -> list[str | None]:
        """Return what replaces a missing value of each column."""
        if isinstance(self.strategy, str):
            return [self.strategy] * n_columns
        if len(self.strategy) != n_columns:
            raise ParameterError(
                f"The 'strategy' parameter of {type(self).__name__} must have an entry per column. Got"
                f" {len(self.strategy)} entries for {n_columns} columns."
            )
        return list(self.strategy)

    def _open(self, X: Any, y: Any = None) -> StepTable:
        rows = super()._open(X, y)
        whole = [j for j, one in enumerate(self._strategies(rows.n_columns)) if one is None]
        if whole and any(np.isnan(block[:, whole]).any() for block in rows.blocks(spent=False)):
            raise DataError(
                "X has missing values in a column whose strategy is None. State 'median' or 'mean' for"
                " this column. Nothing was spent."
            )
        return rows

    def _make_plan(self, table: StepTable, budget: Budget, relation: Neighbours) -> FitPlan:
        strategies, n = self._strategies(table.n_columns), table.n_rows
        chosen = tuple(j for j, one in enumerate(strategies) if one is not None)
        ranges = [self._ranges(table.columns)[j] for j in chosen]
        moments = "mean" in strategies
        search = ColumnSearch(ranges, n, budget, relation, moments=moments, missing=True)
        stated = self.strategy if isinstance(self.strategy, str) else strategies
        public = {"n_rows": n, "ranges": ranges_as_json(ranges), "strategy": stated}

        def conclude(columns: list[Column]) -> dict[str, Any]:
            statistics, missing = np.full(len(strategies), np.nan), np.zeros(len(strategies))
            for j, c in zip(chosen, columns, strict=True):
                statistics[j] = c.mean if strategies[j] == "mean" else c.median
                missing[j] = 1 - c.present / n
            return {"statistics_": statistics, "missing_": missing}

        return ColumnsPlan(search, replace(table, chosen=chosen), public, conclude)

    def transform(self, X: Any) -> Array:
        """Return the columns with missing values replaced."""
        table = self._check_new_table(X)
        return np.where(np.isnan(table), self.statistics_, table)

    @property
    def _output_bounds(self) -> Any:
        # the table that the next step gets has no names
        by_name = isinstance(self.bounds, Mapping) or hasattr(self.bounds, "loc")
        return None if by_name else self.bounds
