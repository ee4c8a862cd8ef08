"""Bounds of columns, found privately in a wide public range; and scaling by them."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import OneToOneFeatureMixin

from dpkernel.data.blocks import BlockStream, is_stream
from dpkernel.data.domain import Domain, Interval
from dpkernel.data.tables import as_floats
from dpkernel.estimators.base import FitPlan, interval_of
from dpkernel.foundations.errors import DataError
from dpkernel.foundations.types import JSON, Array, Budget, Neighbours
from dpkernel.preprocessing.base import PrivateTransformer, check_width, ranges_as_json
from dpkernel.preprocessing.rows import Rows, rows_of_table
from dpkernel.preprocessing.search import Column, ColumnSearch, ColumnsPlan
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource

_TARGET_ROOM = 0.25  # of its width, added to the range of a target at either end


class PrivateBounds(OneToOneFeatureMixin, PrivateTransformer):
    r"""Find the range in which each column really lies, and clip to it.

    The public range may be a thousand times too wide. Two joint releases of all columns' histograms, on
    a geometric grid and then on a fine one where the first saw the column, give an interval that holds
    most of it, about 96 % and a margin, and is as tight as the noise allows.

    Parameters
    ----------
    epsilon, delta : float
        What is asked for; the certificate states at most this. delta must be above 0.
    bounds : (low, high) or Domain
        The wide public range of the columns. Required; values outside are clipped.
    y_range : (low, high), optional
        A wide public range of the target. y is then one more column of the same releases, and
        ``y_bounds_`` is where it lies.
    neighbours : {"replace-one", "zero-out"}
    ledger : Ledger, optional
        Where the spend is recorded. Without one each fit has a ledger of its own.
    noise : NoiseSource, optional
        The operating system's entropy by default; ``SeededNoise`` makes the fit not private.

    Attributes
    ----------
    bounds_ : (low, high), two arrays
        To be used as ``bounds`` of an estimator.
    y_bounds_ : (low, high) or None
    certificate_ : Certificate
    n_features_in_, feature_names_in_

    Guarantee    (epsilon, delta)-DP for the stated neighbours. Public: n, the wide range, parameters.
                 Both releases are one spend, reserved before the first draw.
    Sensitivity  sqrt(2 d) (replace-one) or sqrt(d) for the histograms of d columns in one vector:
                 ``sensitivity.column_histograms``. d separate releases would need the same noise.
    Not covered  ``score`` of anything on the training rows: it reads them without noise.
    Reference    Gaussian mechanism on histograms; Dwork & Lei (2009) for the idea of a first look.

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

    def _open_table(self, X: Any, y: Any) -> Rows:
        """Return the table, with the target as its last column if its range is to be found."""
        owner, target = type(self).__name__, self._target_range()
        if target is None:
            return self._open(X)
        if y is None and not isinstance(X, BlockStream):
            raise DataError(f"{owner} with 'y_range' needs y, the target whose range it finds.")
        if is_stream(X):
            return self._open(X, y)
        table = self._check_table(X)
        values = as_floats(y, "y")
        if values.shape != (table.shape[0],) or not np.isfinite(values).all():
            raise DataError("y must be one finite number a row.")
        return rows_of_table(table, values)

    def _target_range(self) -> Interval | None:
        """Return the public range inside which that of the target is searched, if it is."""
        given, owner = getattr(self, "y_range", None), type(self).__name__
        if given is None:
            return None
        target = interval_of(given, None, owner)
        check_width(owner, "y_range", target)
        return target

    def _make_plan(self, table: Rows, budget: Budget, relation: Neighbours) -> FitPlan:
        target = self._target_range()
        ranges = self._ranges(table.n_columns - (target is not None))
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

    Like ``PrivateBounds`` in what it releases; ``transform`` clips and then maps the bounds onto
    ``feature_range``, so that its output never leaves it.

    Parameters
    ----------
    epsilon, delta : float
        What is asked for; the certificate states at most this. delta must be above 0.
    bounds : (low, high) or Domain
        The wide public range of the columns. Required; values outside are clipped.
    feature_range : (low, high)
        Where the columns are mapped to.
    neighbours : {"replace-one", "zero-out"}
    ledger : Ledger, optional
    noise : NoiseSource, optional

    Attributes
    ----------
    bounds_ : (low, high), two arrays
    certificate_ : Certificate
    n_features_in_, feature_names_in_

    Guarantee    that of ``PrivateBounds``.
    Sensitivity  that of ``PrivateBounds``.
    Not covered  ``score`` of anything on the training rows: it reads them without noise.
    Reference    that of ``PrivateBounds``.

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

    def _open_table(self, X: Any, y: Any) -> Rows:
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
        """Return scaled columns in their units; what was clipped stays clipped."""
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
    """Return the range of a target, with room: what is clipped of it is lost."""
    room = (column.high - column.low) * _TARGET_ROOM
    return max(column.low - room, limits.low), min(column.high + room, limits.high)
