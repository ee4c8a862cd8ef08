"""Losses of single rows, clipped to a declared range and counted in integers.

A validation score is a sum over rows of a loss in [0, bound]. Each loss is rounded to a multiple of
2^-20 of the bound, so that sums are exact. It is counted from the middle of the range, so a row moves a
sum by at most one range if it is replaced, and by at most half a range if it is blanked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from dpkernel.data.cells import Places, meanings, shape_of, untouched
from dpkernel.data.declared import interval_of, pairs_of
from dpkernel.data.domain import Domain, Interval, Intervals
from dpkernel.data.tables import as_floats
from dpkernel.foundations.errors import DataError, ParameterError, parameter_message
from dpkernel.foundations.types import Array, IntArray, Neighbours, is_real
from dpkernel.privacy.sensitivity import Sensitivity, bounded_sum

STEPS = 1 << 20  # steps in the range of a loss
LOG_LOSS_BOUND = 5.0  # a probability below e^-5 counts as e^-5


@dataclass(frozen=True)
class RowLoss:
    """A loss of single rows: its name, the range [0, bound] of its values, and how to compute it."""

    name: str
    bound: float
    of_rows: Callable[[Any, Any, Any], Array]  # (model, X, y) -> one loss per row

    def counts(self, model: Any, X: Any, y: Any) -> IntArray:
        """Return the loss of every row in steps, counted from the middle of the range.

        There is one number per row, whatever shapes y and the predictions have. If they were broadcast,
        one row would count many times.
        """
        y = one_column(y)
        check_rows(X, y)
        with np.errstate(all="ignore"):
            raw = np.asarray(self.of_rows(model, X, y), dtype=np.float64) / self.bound
            if raw.shape != (len(y),):
                raise DataError(_NOT_ONE)
            share = np.clip(np.nan_to_num(raw, nan=1.0, posinf=1.0, neginf=0.0), 0.0, 1.0)
        return np.asarray(np.trunc(share * STEPS).astype(np.int64) - STEPS // 2)

    def mean(self, total: float, n_rows: int) -> float:
        """Return the mean loss that belongs to a sum of counts."""
        return (total / n_rows / STEPS + 0.5) * self.bound


def loss_sensitivity(neighbours: Neighbours, norm: str = "l2") -> Sensitivity:
    """Return how far a sum of counts can move between neighbours."""
    return bounded_sum(neighbours, bound=STEPS // 2, norm=norm)


def row_loss(
    name: str,
    *,
    target: Interval | None = None,
    bound: float | None = None,
    quantile: float = 0.5,
    owner: str = "private_score",
) -> RowLoss:
    """Return the loss with this name. ``target`` is the declared range of a real target.

    If every target has a range of its own, errors are counted in units of these ranges, so that all
    targets weigh the same.
    """
    if name not in LOSSES:
        allowed = "one of " + ", ".join(repr(known) for known in LOSSES)
        raise ParameterError(parameter_message(owner, "metric", allowed, name))
    if bound is not None and (not is_real(bound) or not 0 < bound < math.inf):
        allowed = "a float in the range (0, inf) or None"
        raise ParameterError(parameter_message(owner, "loss_bound", allowed, bound))
    if not is_real(quantile) or not 0 < quantile < 1:
        allowed = "a float in the range (0, 1)"
        raise ParameterError(parameter_message(owner, "quantile", allowed, quantile))
    if name == "accuracy":
        return RowLoss(name, 1.0, _wrong)
    if name == "log_loss":
        return RowLoss(name, float(bound or LOG_LOSS_BOUND), _surprise)
    if target is None:
        raise ParameterError(
            f"{owner} needs 'y_bounds' for this metric, the publicly known range of the target. It is"
            " never read from the data."
        )
    unit = 2 * target.half_width if isinstance(target, Intervals) else 1.0
    width = 1.0 if isinstance(target, Intervals) else 2 * target.half_width
    usual = {"mse": width**2, "mae": width, "pinball": max(quantile, 1 - quantile) * width}[name]

    def of_rows(model: Any, X: Any, y: Any) -> Array:
        target.check_targets(y.shape[1:], owner)
        error = (_clipped(y, target) - _clipped(_predicted(model, X, y), target)) / unit
        if name == "mse":
            each = error**2
        elif name == "mae":
            each = np.abs(error)
        else:
            each = np.maximum(quantile * error, (quantile - 1) * error)
        return np.asarray(each.mean(axis=tuple(range(1, each.ndim))) if each.ndim > 1 else each)

    return RowLoss(name, float(bound or usual), of_rows)


LOSSES = ("mse", "mae", "pinball", "accuracy", "log_loss")


def target_of(model: Any, y_bounds: Any) -> Interval | None:
    """Return the declared range of the target: ``y_bounds``, or else the range that the model has."""
    if isinstance(y_bounds, Interval):
        return y_bounds
    if y_bounds is None:
        bounds = getattr(model, "bounds", None)
        own = bounds.target if isinstance(bounds, Domain) else None
        y_bounds = getattr(model, "y_bounds", None)
        if y_bounds is None or isinstance(y_bounds, Interval):
            return y_bounds or (own if isinstance(own, Interval) else None)
    if pairs_of(y_bounds) is not None:
        return interval_of(y_bounds, None, "private_score")
    try:
        low, high = y_bounds
    except (TypeError, ValueError):
        raise ParameterError(
            parameter_message(
                "private_score", "y_bounds", "a pair (low, high)", type(y_bounds).__name__
            )
        ) from None
    return Interval(low, high)


def default_loss(estimator: Any) -> str:
    """Return the name of the loss that is the default for an estimator of this kind."""
    if is_classifier(estimator):
        return "accuracy"
    return "pinball" if hasattr(estimator, "quantile") else "mse"


def last_step(model: Any) -> Any:
    """Return the last step of a fitted private pipeline, or another model itself."""
    return getattr(model, "steps_", [("", model)])[-1][1]


def default_score(model: Any) -> str:
    """Return the name of the score that is the default for a model of this kind.

    For numbers it is the mean absolute error. The noise of a squared error is as large as the square of
    the declared range allows, which hides the errors of most models.
    """
    name = default_loss(last_step(model))
    return "mae" if name == "mse" else name


def one_column(y: Any) -> Any:
    """Return y as an array of numbers, or of cells as they are. A single column becomes a vector."""
    values = untouched(y, whole=True)
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def check_rows(X: Any, y: Any) -> None:
    """Raise unless X has one row for each target."""
    rows = shape_of(X)[0] if shape_of(X) else 0
    if y.ndim < 1 or rows != len(y):
        raise DataError(f"X has {rows} rows and y has {len(y) if y.ndim else 1}.")


_NOT_ONE = "The model does not predict one target per row."


def _predicted(model: Any, X: Any, y: Any) -> Any:
    found = one_column(model.predict(X))
    if found.shape != y.shape:
        raise DataError(_NOT_ONE)
    return found


def _clipped(values: Any, target: Interval) -> Array:
    found = as_floats(values, "y")
    with np.errstate(all="ignore"):
        return np.clip(np.nan_to_num(found), target.low, target.high)


def _wrong(model: Any, X: Any, y: Any) -> Array:
    found = _predicted(model, X, y)
    if hasattr(model, "classes_"):
        places = places_of(model)
        return np.asarray(places(found) != places(y), dtype=np.float64)
    pairs = zip(meanings(found), meanings(y), strict=True)
    return np.array([one != other for one, other in pairs], float)


def places_of(model: Any) -> Places:
    """Return a lookup of the positions of labels among the classes of a model."""
    try:
        return Places(list(untouched(model.classes_, whole=True)))
    except ValueError:
        pass
    raise DataError("Two classes of the model can't be told apart. Nothing was spent.")


def _surprise(model: Any, X: Any, y: Any) -> Array:
    chances = np.asarray(model.predict_proba(X), dtype=np.float64)
    if y.ndim != 1 or chances.shape != (len(y), len(model.classes_)):
        raise DataError(_NOT_ONE)
    at = places_of(model)(y)
    likely = np.where(at < 0, 0.0, chances[np.arange(len(y)), at])
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(np.clip(likely, 0.0, 1.0)))
