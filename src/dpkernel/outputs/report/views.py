"""What a released model says: its predictions on the declared box, and the coefficients if it is linear.

Everything here is computed from the model and from public numbers. No row of data is read: the points
are a fixed, even pattern in the box.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import qmc
from sklearn.base import OneToOneFeatureMixin

from dpkernel.data.declared import resolve_domain
from dpkernel.data.domain import Column, Domain, Interval, Levels
from dpkernel.estimators import class_means
from dpkernel.estimators.curator import PrivateCurator
from dpkernel.estimators.regressor.kernel_choice import relevance_of as shares_by_column
from dpkernel.foundations.errors import DPKernelError
from dpkernel.foundations.types import Array, is_real
from dpkernel.models.features.learned import LearnedFeatures
from dpkernel.models.features.linear import LinearFeatures
from dpkernel.outputs.report.encoding import DeclaredColumn, Table, grouped
from dpkernel.outputs.report.style import LINES
from dpkernel.preprocessing.base import PrivateTransformer
from dpkernel.preprocessing.categories import DeclaredCategories
from dpkernel.preprocessing.pipeline import PrivatePipeline
from dpkernel.selection.search import PrivateSearchCV

MOST_PICTURES = 12
_MOST_COLUMNS = 200  # columns that are compared to find those with the largest effect
_MOST_IN_ALL = 10_000  # columns of the even pattern
_LOG_POINTS = 7  # the even pattern has 2^7 points
_STEPS = 25  # points on the horizontal axis of a picture
_MOST_LEVELS = 12  # levels in a picture
_MOST_COMPARED = 200  # levels that are compared to find those


@dataclass(frozen=True)
class View:
    """A model that can be evaluated: its columns with their ranges, and the names of its predictions."""

    columns: tuple[Column, ...]
    names: tuple[str, ...]
    answers: tuple[str, ...]
    quantity: str
    ask: Callable[[Table], Array]  # rows -> one column per prediction
    encode: Callable[[Table], Table]  # rows -> rows as the model expects them
    sizes: tuple[int, ...]  # how many columns of the model each column stands for
    dates: frozenset[int] = frozenset()  # the columns that count days since 1970-01-01


@dataclass(frozen=True)
class Dependence:
    """How the predictions change with one column, averaged over an even pattern of the others.

    The middle 80 % of the predictions at the points of the pattern lie between ``low`` and ``high``.
    """

    name: str
    places: tuple[Any, ...]
    levels: bool
    mean: Array
    low: Array
    high: Array
    left_out: int = 0  # number of levels that are not in the picture
    dates: bool = False

    @property
    def reach(self) -> float:
        """How much the average changes over the range of the column."""
        return float(np.ptp(self.mean, axis=0).max())


@dataclass(frozen=True)
class Coefficients:
    """The slopes of a linear model, largest first, with one column per prediction."""

    names: tuple[str, ...]
    values: Array
    answers: tuple[str, ...]
    meaning: str


def view_of(model: Any, declared: Sequence[DeclaredColumn] | None = None) -> View | None:
    """Return how to evaluate a model.

    Returns None if its columns have no declared range or it makes no predictions. ``declared`` are the
    columns before categories were encoded; if they are given, the model is evaluated in terms of these.
    """
    if isinstance(model, PrivateSearchCV):
        model = model.best_estimator_
    last = model.steps_[-1][1] if isinstance(model, PrivatePipeline) else model
    if isinstance(last, PrivateCurator) or not hasattr(model, "predict"):
        return None  # a curator records every question
    columns = _pipeline_columns(model) if isinstance(model, PrivatePipeline) else _columns(model)
    if not 0 < len(columns) <= _MOST_IN_ALL:
        return None
    found = getattr(model, "feature_names_in_", None)
    stated = getattr(getattr(model, "_domain", None), "names", None)
    known = stated if found is None else found
    names = [f"column {i + 1}" for i in range(len(columns))] if known is None else known
    columns, sizes, encode = grouped(columns, declared)
    if declared is not None:
        names = [one.name for one in declared]
    ask, quantity, labels = _method(model, last)
    count = _answers(ask, encode(_pattern(columns, 0))).shape[1]
    answers = labels if len(labels) == count else [f"target {j + 1}" for j in range(count)]
    named = tuple(str(name) for name in names)

    def answer(table: Table) -> Array:
        return _answers(ask, encode(table))

    dates = frozenset(place for place, one in enumerate(declared or ()) if one.dates)
    return View(columns, named, tuple(answers), quantity, answer, encode, sizes, dates)


def dependences(view: View) -> tuple[list[Dependence], int]:
    """Return the pictures of the columns with the largest effect, and how many columns were compared."""
    d = len(view.columns)
    compared = range(min(d, _MOST_COLUMNS))
    chosen = list(compared)
    if d > MOST_PICTURES:
        reach = [_dependence(view, j, 3, 5).reach for j in compared]
        chosen = sorted(np.argsort(reach)[::-1][:MOST_PICTURES].tolist())
    return [_dependence(view, j, _LOG_POINTS, _STEPS) for j in chosen], len(compared)


def coefficients_of(model: Any) -> Coefficients | None:
    """Return the slopes of a model that is linear in its columns; None for other models."""
    if isinstance(model, PrivateSearchCV):
        model = model.best_estimator_
    features, domain = getattr(model, "feature_map_", None), getattr(model, "_domain", None)
    if not isinstance(features, LinearFeatures) or not isinstance(domain, Domain):
        return None
    if domain.columns is None:
        return None
    slopes = features.transform_block(np.eye(features.n_outputs)) @ np.asarray(model.coef_)
    slopes = slopes.reshape(features.n_outputs, -1)
    target = domain.target
    numeric = isinstance(target, Interval)
    if isinstance(target, Interval):
        slopes = slopes * target.half_width
    found = getattr(model, "feature_names_in_", None)
    columns = found if found is not None else domain.names
    names: list[str] = []
    for i, column in enumerate(domain.columns):
        name = f"column {i + 1}" if columns is None else str(columns[i])
        own = column.values if isinstance(column, Levels) else ()
        names += [f"{name} = {level}" for level in own] or [name]
    order = np.argsort(-np.abs(slopes).max(axis=1), kind="stable")
    _, quantity, labels = _method(model, model)
    count = slopes.shape[1]
    if not numeric:
        quantity = "decision value"
        labels = labels if len(labels) == count else [str(c) for c in model.classes_]
    answers = labels if len(labels) == count else [f"target {j + 1}" for j in range(count)]
    meaning = (
        f"change of the {quantity} from the middle of a column's declared range to its upper end"
    )
    return Coefficients(
        tuple(names[i] for i in order), np.asarray(slopes[order]), tuple(answers), meaning
    )


def relevance_of(model: Any, statistics: Mapping[str, Any], view: View) -> list[tuple[str, float]]:
    """Return how much the model depends on each column, most first; empty if it was not released.

    The columns of 0 and 1 of an encoded category have to change together, so their share is computed
    from the released function. A pipeline has shares if each of its other steps keeps the columns apart.
    """
    model = _model_of_columns(model)
    kernel = None if model is None else statistics.get("kernel")
    values = kernel.get("relevance") if isinstance(kernel, Mapping) else None
    if not isinstance(values, list) or len(values) != sum(view.sizes):
        return []
    if not all(map(is_real, values)) or not sum(values) > 0:
        return []
    features = getattr(model, "feature_map_", None)
    if max(view.sizes) > 1 and isinstance(features, LearnedFeatures):
        functions = np.asarray(model.coef_).reshape(features.n_outputs, -1)
        silent = np.zeros(features.n_outputs)
        values = shares_by_column(features, functions, silent, view.sizes).tolist()
    if len(values) != len(view.names):
        return []
    return sorted(zip(view.names, values, strict=True), key=lambda pair: -pair[1])


def _model_of_columns(model: Any) -> Any:
    """Return the model whose columns are those of the whole, one by one; None if there is none."""
    if isinstance(model, PrivateSearchCV):
        model = model.best_estimator_
    if not isinstance(model, PrivatePipeline):
        return model
    *before, (_, last) = model.steps_
    steps = [step for _, step in before if not isinstance(step, str)]  # a text passes rows through
    apart = all(
        isinstance(step, PrivateTransformer) and isinstance(step, OneToOneFeatureMixin)
        for step in steps
    )
    return _model_of_columns(last) if apart else None


def probability_note(model: Any) -> str:
    """Return a sentence if the probabilities of a model follow from a loss that fits decisions only."""
    if isinstance(model, PrivateSearchCV):
        model = model.best_estimator_
    last = model.steps_[-1][1] if isinstance(model, PrivatePipeline) else model
    if not hasattr(last, "predict_proba") or "hinge" not in str(getattr(last, "loss", "")):
        return ""
    if last.certificate_.public.get("method") == class_means.METHOD:
        return ""
    return (
        f"These probabilities follow from the loss {last.loss!r}, which fits decisions. They order the"
        " rows but can lie far from the shares of the classes; loss='logistic' fits probabilities."
    )


def spread_of(model: Any, view: View) -> Array | None:
    """Return the standard deviation of a new target that the model states, averaged over the box.

    There is one number per target.
    """
    if isinstance(model, PrivateSearchCV):
        model = model.best_estimator_
    if not hasattr(model, "_scales"):  # only PrivateKernelRegressor knows it
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        _, spread = model.predict(view.encode(_pattern(view.columns, _LOG_POINTS)), return_std=True)
    return np.asarray(np.atleast_1d(spread.mean(axis=0)))


def _dependence(view: View, j: int, log_points: int, steps: int) -> Dependence:
    column, base = view.columns[j], _pattern(view.columns, log_points)
    levels, left_out = isinstance(column, Levels), 0
    if isinstance(column, Levels):
        places: tuple[Any, ...] = column.values[:_MOST_COMPARED]
    else:
        places = tuple(np.linspace(column.low, column.high, steps).tolist())
    table = np.repeat(base[None], len(places), axis=0)
    for i, place in enumerate(places):
        table[i, :, j] = place
    answers = view.ask(table.reshape(-1, table.shape[2])).reshape(len(places), len(base), -1)
    if isinstance(column, Levels) and len(places) > _MOST_LEVELS:
        order = np.argsort(answers.mean(axis=1)[:, 0])
        half = _MOST_LEVELS // 2  # the levels with the largest and the smallest answers are shown
        kept = np.sort(np.concatenate([order[:half], order[-half:]]))
        left_out = len(column.values) - len(kept)
        places, answers = tuple(places[i] for i in kept), answers[kept]
    low, high = np.quantile(answers, [0.1, 0.9], axis=1)
    mean = answers.mean(axis=1)
    return Dependence(view.names[j], places, levels, mean, low, high, left_out, j in view.dates)


def _pattern(columns: Sequence[Column], log_points: int) -> Table:
    """Return 2^log_points rows that fill the box evenly, always the same."""
    unit = qmc.Sobol(len(columns), scramble=False).random_base2(log_points)
    unit = unit + 0.5 / len(unit)  # move the points to the middles of their cells
    out = np.empty(unit.shape, dtype=float if _all_numbers(columns) else object)
    for j, column in enumerate(columns):
        if isinstance(column, Levels):
            cells = (unit[:, j] * len(column.values)).astype(int)
            for i, cell in enumerate(cells):
                out[i, j] = column.values[cell]
        else:
            out[:, j] = column.low + (column.high - column.low) * unit[:, j]
    return out


def _all_numbers(columns: Sequence[Column]) -> bool:
    return all(
        isinstance(column, Interval) or all(is_real(value) for value in column.values)
        for column in columns
    )


def _answers(ask: Callable[[Any], Any], table: Table) -> Array:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # a table without the names that the model knows
        found = np.asarray(ask(table), dtype=np.float64)
    return found.reshape(len(table), -1)[:, :LINES]


def _method(model: Any, last: Any) -> tuple[Callable[[Any], Any], str, list[str]]:
    """Return the method to call, what it returns, and the names of its columns if they are known."""
    if not hasattr(last, "classes_"):
        quantiles = getattr(last, "quantile", None)
        if quantiles is None:
            return model.predict, "prediction", ["prediction"]
        levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64)).tolist()
        return model.predict, "predicted quantile", [f"quantile {q:g}" for q in levels]
    classes = [str(label) for label in np.asarray(last.classes_).tolist()]
    if not hasattr(model, "predict_proba"):
        names = classes[1:] if len(classes) == 2 else classes
        return model.decision_function, "decision value", names[:LINES]
    if len(classes) != 2:
        return model.predict_proba, "probability", classes[:LINES]
    return lambda X: model.predict_proba(X)[:, 1], "probability", [f"class {classes[1]}"]


def _columns(model: Any) -> tuple[Column, ...]:
    domain = getattr(model, "_domain", None)
    return domain.columns or () if isinstance(domain, Domain) else ()


def _pipeline_columns(model: PrivatePipeline) -> tuple[Column, ...]:
    """Return the ranges of the input columns of a pipeline, as far as its first steps know them."""
    steps = [step for _, step in model.steps_ if not isinstance(step, str)]
    levels: list[Levels | None] = []
    if isinstance(steps[0], DeclaredCategories):
        levels, other = steps[0]._levels, bool(steps[0].other)
        steps = steps[1:]
    inner = _step_columns(steps[0])
    if not inner or not levels:
        return inner
    out: list[Column] = []
    place = 0
    for one in levels:
        out.append(inner[place] if one is None else one)
        place += 1 if one is None else len(one.values) + other
    return tuple(out)


def _declared(bounds: Any, step: Any, n_columns: int) -> tuple[Column, ...]:
    names = getattr(step, "feature_names_in_", None)
    return resolve_domain(bounds, None, n_columns, type(step).__name__, names).columns or ()


def _step_columns(step: Any) -> tuple[Column, ...]:
    """Return the ranges of the columns: those that were released, or else those that were declared."""
    own = _columns(step)
    if own or not hasattr(step, "n_features_in_"):
        return own
    n_columns = int(step.n_features_in_)
    try:
        given = getattr(step, "bounds_", None)
        given = getattr(step, "bounds", None) if given is None else given
        columns = _declared(given, step, n_columns)
    except DPKernelError:
        return ()
    if not (hasattr(step, "mean_") and hasattr(step, "scale_")):
        return columns
    reach = 3 * np.asarray(step.scale_)
    low, high = (np.asarray(step.mean_) - reach).tolist(), (np.asarray(step.mean_) + reach).tolist()
    return tuple(
        Interval(max(a, c.low), min(b, c.high))
        if isinstance(c, Interval) and a < c.high and b > c.low
        else c
        for a, b, c in zip(low, high, columns, strict=True)
    )
