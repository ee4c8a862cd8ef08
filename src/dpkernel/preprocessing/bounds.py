"""Find the bounds of columns privately within a wide public range, and scale by them."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import OneToOneFeatureMixin

from dpkernel.data.blocks import BlockStream, is_stream
from dpkernel.data.declared import interval_of
from dpkernel.data.domain import Domain, Interval, Intervals
from dpkernel.data.tables import as_floats
from dpkernel.estimators.base import FitPlan
from dpkernel.foundations.errors import DataError, ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, Budget, Neighbours
from dpkernel.preprocessing.base import PrivateTransformer, check_width, ranges_as_json
from dpkernel.preprocessing.rows import StepTable, rows_of_table
from dpkernel.preprocessing.search import Column, ColumnSearch, ColumnsPlan
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource

_TARGET_ROOM = 0.25  # share of its width that is added to the range of a target at either end


class PrivateBounds(OneToOneFeatureMixin, PrivateTransformer):
    r"""Find the range in which each column really lies, and clip to it.

    The public range may be a thousand times too wide. There are two releases, each of the histograms of
    all columns: first on a geometric grid, then on a fine grid where the first one found the column.
    They give an interval that contains most of the column, about 96 % and a margin, and that is as
    tight as the noise allows.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. delta must be above 0.
    bounds : (low, high) or Domain
        A wide public range of the columns. It is required. Values outside are clipped.
    y_range : (low, high), optional
        A wide public range of the target. If given, y is one more column of the same releases, and its
        range is ``y_bounds_``.
    neighbours : {"replace-one", "zero-out"}
        The neighbouring relation of the guarantee.
    ledger : Ledger, optional
        The ledger that records the spend. Without one, each fit has a ledger of its own.
    noise : NoiseSource, optional
        The source of noise; by default the entropy of the operating system. With ``SeededNoise`` the
        fit is not private.

    Attributes
    ----------
    bounds_ : (low, high), two arrays
        The range of each column. Use it as ``bounds`` of an estimator.
    y_bounds_ : (low, high) or None
        The range of the target, if ``y_range`` was given.
    certificate_ : Certificate
        The guarantee of the fit.
    n_features_in_, feature_names_in_
        The number and the names of the columns.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows, the wide range and the
        parameters are public. Both releases are one spend, recorded before any noise is drawn.
    Sensitivity
        sqrt(2 d) (replace-one) or sqrt(d) (zero-out) for the histograms of d columns in one vector:
        ``sensitivity.column_histograms``. d separate releases would need the same noise.
    Not covered
        A ``score`` of any model on the training rows, because it reads them without noise.

    References
    ----------
    Gaussian mechanism on histograms; Dwork & Lei (2009) for the idea of a first look.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.preprocessing import PrivateBounds
    >>> X = np.random.default_rng(0).normal([50.0, 0.002], [5.0, 0.001], (5000, 2))
    >>> found = PrivateBounds(epsilon=1.0, bounds=(-1e5, 1e5)).fit(X)
    >>> low, high = found.bounds_
    >>> bool(25 < low[0] < 48 and 52 < high[0] < 75)
    True
    """

    _learned: ClassVar[tuple[str, ...]] = ("bounds_",)
    _public: ClassVar[tuple[str, ...]] = ("y_range",)

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        bounds: Any = None,
        y_range: Any = None,
        neighbours: str | Neighbours = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.y_range = y_range
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise

    def _open_table(self, X: Any, y: Any) -> StepTable:
        """Return the table, with the target as its last column if its range is to be found."""
        owner, target = type(self).__name__, self._target_range()
        if target is None:
            return self._open(X)
        if y is None and not isinstance(X, BlockStream):
            raise DataError(
                f"{owner} with 'y_range' needs y, the target whose range is to be found."
            )
        if is_stream(X):
            return self._open(X, y)
        table, columns = self._check_table(X)
        values = as_floats(y, "y")
        if values.shape != (table.shape[0],) or not np.isfinite(values).all():
            raise DataError("y must be one finite number per row.")
        return rows_of_table(table, values, columns.names)

    def _target_range(self) -> Interval | None:
        """Return the public range inside which that of the target is searched, if it is."""
        given, owner = getattr(self, "y_range", None), type(self).__name__
        if given is None:
            return None
        target = interval_of(given, None, owner)
        if isinstance(target, Intervals):
            raise ParameterError(
                parameter_message(
                    owner,
                    "y_range",
                    "one pair (low, high)",
                    f"{len(target.parts)} pairs",
                    "It finds the range of one target. Declare those of several as 'y_bounds' of the"
                    " model.",
                )
            )
        check_width(owner, "y_range", target)
        return target

    def _make_plan(self, table: StepTable, budget: Budget, relation: Neighbours) -> FitPlan:
        target = self._target_range()
        ranges = self._ranges(table.columns)
        ranges = ranges if target is None else [*ranges, target]
        search = ColumnSearch(ranges, table.n_rows, budget, relation)
        public = {"n_rows": table.n_rows, "ranges": ranges_as_json(ranges)}
        return ColumnsPlan(search, table, public, partial(self._found, target=target))

    def _found(self, columns: list[Column], target: Interval | None) -> dict[str, Any]:
        found = columns if target is None else columns[:-1]
        own = None if target is None else _target_bounds(columns[-1], target)
        return {"bounds_": _as_pair(found), "y_bounds_": own}

    def transform(self, X: Any) -> Array:
        """Return the columns clipped to ``bounds_``."""
        return np.clip(self._check_new_table(X), *self.bounds_)

    def _to_state(self) -> tuple[JSON, dict[str, Array]]:
        header, arrays = super()._to_state()
        header["target"] = getattr(self, "y_bounds_", None)
        return header, arrays

    @classmethod
    def _from_state(cls, header: JSON, arrays: dict[str, Array]) -> Self:
        model = super()._from_state(header, arrays)
        low, high = model.bounds_
        model.bounds_ = low, high
        if "y_range" in cls._public:
            found = header["target"]
            model.y_bounds_ = None if found is None else (float(found[0]), float(found[1]))
        return model

    @property
    def _output_bounds(self) -> Any:
        return getattr(self, "bounds_", self.bounds)


class PrivateMinMaxScaler(PrivateBounds):
    """Scale each column to a range by bounds that are found privately.

    It releases the same as ``PrivateBounds``. ``transform`` clips each column to the bounds and
    then maps the bounds to ``feature_range``, so the output never leaves this range.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. delta must be above 0.
    bounds : (low, high) or Domain
        A wide public range of the columns. It is required. Values outside are clipped.
    feature_range : (low, high)
        The range to which the columns are mapped.
    neighbours, ledger, noise
        See ``PrivateBounds``.

    Attributes
    ----------
    bounds_ : (low, high), two arrays
        The range of each column.
    certificate_, n_features_in_, feature_names_in_
        See ``PrivateBounds``.

    Notes
    -----
    Guarantee
        The same as for ``PrivateBounds``: (epsilon, delta)-DP for the stated neighbours. The number of
        rows, the wide range and the parameters are public.
    Sensitivity
        The same as for ``PrivateBounds``: ``sensitivity.column_histograms``.
    Not covered
        A ``score`` of any model on the training rows, because it reads them without noise.

    References
    ----------
    The same as for ``PrivateBounds``.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.preprocessing import PrivateMinMaxScaler
    >>> X = np.random.default_rng(0).uniform(20, 30, (5000, 1))
    >>> scaled = PrivateMinMaxScaler(epsilon=1.0, bounds=(-1e4, 1e4)).fit_transform(X)
    >>> bool(scaled.min() >= 0 and scaled.max() <= 1 and scaled.std() > 0.1)
    True
    """

    _public: ClassVar[tuple[str, ...]] = ("feature_range",)

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        bounds: Any = None,
        feature_range: tuple[float, float] = (0.0, 1.0),
        neighbours: str | Neighbours = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.feature_range = feature_range
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise

    def _open_table(self, X: Any, y: Any) -> StepTable:
        self._range()  # refused before the data
        return super()._open_table(X, y)

    def _found(self, columns: list[Column], target: Interval | None) -> dict[str, Any]:
        return {"bounds_": _as_pair(columns)}

    def _range(self) -> Interval:
        return interval_of(self.feature_range, None, type(self).__name__)

    def transform(self, X: Any) -> Array:
        """Return the columns scaled to ``feature_range``."""
        table, target = self._check_new_table(X), self._range()
        unit = Domain.box(*self.bounds_).to_unit(table)
        return np.clip(target.from_unit(unit), target.low, target.high)

    def inverse_transform(self, X: Any) -> Array:
        """Return scaled columns in their original units. Clipped values stay clipped."""
        table, target = self._check_new_table(X), self._range()
        unit = (table - target.middle) / target.half_width
        low, high = self.bounds_
        return np.asarray(low + (high - low) / 2 + unit * ((high - low) / 2))

    @property
    def _output_bounds(self) -> Any:
        target = self._range()
        return target.low, target.high


def _as_pair(columns: list[Column]) -> tuple[Array, Array]:
    return np.array([c.low for c in columns]), np.array([c.high for c in columns])


def _target_bounds(column: Column, limits: Interval) -> tuple[float, float]:
    """Return the range of a target with extra room, because clipped targets are lost."""
    room = (column.high - column.low) * _TARGET_ROOM
    return max(column.low - room, limits.low), min(column.high + room, limits.high)
