"""Private evaluation of a fitted model on rows that it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from scipy.special import ndtri

from dpkernel.data.blocks import BlockStream, library_of
from dpkernel.data.cells import take_rows, with_doubles
from dpkernel.data.chunks import computed
from dpkernel.data.domain import Interval
from dpkernel.data.people import People, person_slots
from dpkernel.data.tables import as_floats, quietly, without_traps
from dpkernel.data.weights import refuse_weights
from dpkernel.estimators.curator import ASKED_ABOUT_ROWS, KEEPS_QUESTIONS
from dpkernel.foundations.errors import DataError, DPKernelError, ParameterError, parameter_message
from dpkernel.foundations.types import (
    Array,
    Budget,
    IntArray,
    Neighbours,
    is_real,
    is_whole,
    no_add_remove,
)
from dpkernel.privacy.certificate import Certificate, Release, of_people
from dpkernel.privacy.ledger import OF_PEOPLE, Ledger
from dpkernel.privacy.mechanisms import Gaussian
from dpkernel.privacy.noise import NoiseSource, Plan, SeededNoise, secret_order
from dpkernel.privacy.sensitivity import bounded_sum, histogram
from dpkernel.selection.losses import (
    LOSSES,
    STEPS,
    RowLoss,
    check_rows,
    default_loss,
    loss_sensitivity,
    one_column,
    places_of,
    row_loss,
    target_of,
)

_NO_WEIGHTS = (
    "a weighted mean divides by the sum of the weights, which is private. That sum would need a release"
    " of its own."
)
METRICS = (*LOSSES, "r2", "auc")
_MOST_SCORED = 16  # rows of a person that count
T = TypeVar("T")


@dataclass(frozen=True)
class PrivateScore:
    """A released score, the interval that follows from its noise, and the certificate.

    Attributes
    ----------
    metric : str
        The name of the score.
    value, low, high : float
        The noisy score and the ends of its interval. With the stated confidence, the interval contains
        the exact score of these rows or, with ``population=True``, the expected score of a new row.
    n_rows : int
        The number of rows that were scored, or of people.
    certificate : Certificate
        The guarantee of the score.
    """

    metric: str
    value: float
    low: float
    high: float
    n_rows: int
    certificate: Certificate

    def __str__(self) -> str:
        return f"{self.metric} = {self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"


@without_traps
def private_score(
    model: Any,
    X: Any,
    y: Any,
    metric: str = "auto",
    budget: Budget | tuple[float, float] = (1.0, 1e-6),
    *,
    y_bounds: Any = None,
    loss_bound: float | None = None,
    quantile: float | None = None,
    positive: Any = None,
    bins: int = 32,
    confidence: float = 0.95,
    population: bool = False,
    neighbours: Neighbours | str = "replace-one",
    ledger: Ledger | None = None,
    noise: NoiseSource | None = None,
    groups: Any = None,
    **more: Any,
) -> PrivateScore:
    r"""Return a private score of a model on rows, with an interval and a certificate.

    Parameters
    ----------
    model : fitted estimator
        Any model with ``predict`` (``predict_proba`` or ``decision_function`` for log-loss and AUC).
        Its prediction for a row must not depend on other rows, as it does in a network that is still
        in training mode.
    X, y : table and target
        The rows to score, without weights. A Dask table is read into memory.
    metric : {"auto", "mse", "mae", "r2", "pinball", "accuracy", "log_loss", "auc"}
        The score. "auto" depends on the kind of model.
    budget : Budget or (epsilon, delta)
        The budget of the score.
    y_bounds : (low, high) or a list of pairs, optional
        The publicly known range of a real target. By default it is the one of the model. Targets and
        predictions are clipped to it. With one pair per target, errors are counted in units of the
        ranges.
    loss_bound : float, optional
        Losses above this bound count as the bound. By default it is the largest loss that ``y_bounds``
        allow, and 5 for log-loss. A smaller bound means less noise.
    quantile : float, optional
        The quantile of the pinball loss. By default it is the one of the model.
    positive : optional
        The class that AUC ranks high. By default it is the second of the model's ``classes_``.
    bins : int
        The number of cells of the histograms from which AUC is computed. Their axis is the probability
        or the squashed decision value.
    confidence : float
        The confidence of the interval.
    population : bool
        Whether to widen the interval by the sampling error of the rows, which is bounded by
        sqrt(m (b - m) / n) for a mean m of losses in [0, b]. Not available for "r2" and "auc".
    neighbours : str or Neighbours
        "replace-one" or "zero-out".
    ledger : Ledger, optional
        The ledger that records the spend.
    noise : NoiseSource, optional
        The source of noise; by default the entropy of the operating system.
    groups : array of n ids or People, optional
        The person to whom each row belongs. A person with all their rows is then protected instead of
        a single row, and only the number of people is public. The score is the mean over people of
        the mean loss of a person's rows, of which at most 16 are used, spread evenly. AUC, and any
        metric with ``People(ids, record="one")``, uses one row of each person.

    Returns
    -------
    PrivateScore

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows is public.
    Sensitivity
        One range of a loss for a replaced row: ``sensitivity.bounded_sum``, in integers. For AUC it is
        ``sensitivity.histogram``.
    Not covered
        The certificate covers what the score reveals about these rows, not what the model reveals about
        the rows that it was trained on. So score on other rows, or train the model privately. For a
        model of another library, you vouch that it predicts each row independently of the others, and
        the certificate names the assumption "predicts-row-by-row".

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel import PrivateKernelRidge, private_score
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (4000, 2)); y = X @ [1.0, -1.0]
    >>> model = PrivateKernelRidge(kernel="linear", bounds=(-1, 1), y_bounds=(-2, 2))
    >>> found = private_score(model.fit(X[:3000], y[:3000]), X[3000:], y[3000:], "mse", (1.0, 1e-6))
    >>> found.low <= found.value <= found.high
    True
    """
    owner = "private_score"
    refuse_weights(owner, more, _NO_WEIGHTS)
    request, relation = _budget(budget), Neighbours.resolve(neighbours)
    if not relation.n_is_public:
        raise ParameterError(no_add_remove(owner))
    if not is_real(confidence) or not 0 < confidence < 1:
        allowed = "a float in the range (0, 1)"
        raise ParameterError(parameter_message(owner, "confidence", allowed, confidence))
    name = default_loss(model) if metric == "auto" else metric
    if name not in METRICS:
        allowed = "one of 'auto', " + ", ".join(repr(known) for known in METRICS)
        raise ParameterError(parameter_message(owner, "metric", allowed, metric))
    if population and name in ("r2", "auc"):
        allowed = "False for 'r2' and 'auc'"
        raise ParameterError(parameter_message(owner, "population", allowed, population))
    refuse_questions(model)
    if isinstance(X, BlockStream):
        raise ParameterError(
            "private_score takes tables in memory and Dask tables, but no stream. Score a part of the"
            " stream that fits into memory."
        )
    if library_of(X) == "dask":
        X, y = computed(X, y)
    y = one_column(y)
    if y.ndim < 1 or len(y) < 1:
        raise DataError("y has no rows to score.")
    X = with_doubles(X)
    if groups is None:
        check_rows(X, y)
        scored = _Rows(X, y)
    else:
        scored = _PersonRows(X, y, People.of(groups), name, noise)
    if name in ("mse", "mae", "r2", "pinball") and not np.isfinite(as_floats(y, "y")).all():
        raise DataError("y contains NaN or infinity. Nothing was spent.")
    target = target_of(model, y_bounds)
    own = getattr(model, "quantile", 0.5)
    q = quantile if quantile is not None else own if is_real(own) else 0.5

    def ask() -> _Mean | _RSquared | _Area:
        if name == "auc":
            cells = scored.each(lambda X, y: _cells(model, X, y, positive, bins))
            return _Area(cells, int(bins), relation, request)
        loss = row_loss(
            "mse" if name == "r2" else name, target=target, bound=loss_bound, quantile=q
        )
        if name == "r2":
            assert target is not None
            sums = scored.each(lambda X, y: _error_and_target(loss, target, model, X, y))
            return _RSquared(sums, loss.bound / target.half_width**2, relation, request)
        counts = scored.each(lambda X, y: loss.counts(model, X, y))
        return _Mean(loss, counts, relation, request, population)

    query = _in_own_words(model, ask)
    release = Release(f"{name} of held-out rows", query.mechanism)
    book = Ledger(neighbours=relation) if ledger is None else ledger
    source = noise.restarted() if isinstance(noise, SeededNoise) else noise
    spending = Plan.of(query.mechanism.profile(), release.label)
    label = release.label + (OF_PEOPLE if scored.record else "")
    granted = book.spend(spending, label, claim=request, neighbours=relation, noise=source)
    found = query.read(query.mechanism.release(query.exact, granted), 1 - float(confidence))
    whose = {} if library_of(model) == "dpkernel" else {"predicted_by": "caller"}
    public = {"n_rows": len(scored), "metric": name, "confidence": float(confidence), **whose}
    certificate = Certificate.issue(
        f"{owner}({type(model).__name__})",
        request,
        [release],
        granted,
        public=of_people(public, scored.record) if scored.record else public,
    )
    value, low, high = (float(number) for number in found)
    return PrivateScore(name, value, low, high, len(scored), certificate)


class _Rows:
    """Rows to score, each of which is a record."""

    record = ""

    def __init__(self, X: Any, y: Array) -> None:
        self.X, self.y = X, y

    def __len__(self) -> int:
        return len(self.y)

    def each(self, count: Callable[[Any, Array], IntArray]) -> IntArray:
        """Return the integers that ``count`` gives each record."""
        return count(self.X, self.y)


class _PersonRows(_Rows):
    """Rows to score, of people who are records: the integers of a person's rows are averaged.

    A person stands at the same place in every table that the model is asked about, whatever the numbers
    of rows of others, so the last bits of a prediction can't depend on them. The mean of integers in a
    ball, rounded towards zero, is in the ball.
    """

    def __init__(
        self, X: Any, y: Array, people: People, metric: str, noise: NoiseSource | None
    ) -> None:
        super().__init__(X, y)
        if people.record not in ("auto", "one"):
            allowed = "'auto' or 'one' for private_score"
            raise ParameterError(parameter_message("People", "record", allowed, people.record))
        one = people.record == "one" or metric == "auc"
        self.record = "one" if one else "mean loss"
        most = 1 if one else _MOST_SCORED
        self._slots = person_slots(X, y, people.ids, secret_order(noise), most)
        self._used = sum(here.astype(np.int64) for _, here in self._slots)

    def __len__(self) -> int:
        return len(self._used)

    def each(self, count: Callable[[Any, Array], IntArray]) -> IntArray:
        total: Any = 0
        for rows, here in self._slots:
            found = count(take_rows(self.X, rows), self.y[rows])
            total = total + (found.T * here).T
        return np.asarray((np.sign(total).T * (np.abs(total).T // self._used)).T)


def refuse_questions(model: Any) -> None:
    """Raise for a model that stores the points it is asked about, because it would store rows.

    If a curator is hidden so deep in a model that it is not found here, it refuses when it is asked.
    """
    if any(getattr(part, "keeps_questions", False) for part in parts_of(model)):
        raise ParameterError(KEEPS_QUESTIONS)


def parts_of(model: Any) -> Iterator[Any]:
    """Yield a model and all models inside it: its parameters, its fitted steps, and lists of both."""
    waiting, seen = [model], set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, (list, tuple, set, frozenset)):
            waiting += part
        elif isinstance(part, np.ndarray):
            waiting += part.ravel().tolist() if part.dtype == object else ()
        elif isinstance(part, Mapping):
            waiting += part.values()
        elif hasattr(part, "predict") or hasattr(part, "transform"):
            yield part
            waiting += vars(part).values() if hasattr(part, "__dict__") else ()


def _in_own_words(model: Any, ask: Callable[[], T]) -> T:
    """Call a model, and hide its warnings and errors, because they may quote rows."""
    marked = ASKED_ABOUT_ROWS.set(True)
    try:
        with quietly():
            return ask()
    except DPKernelError:
        raise
    except Exception as error:
        failed = type(error).__name__
    finally:
        ASKED_ABOUT_ROWS.reset(marked)
    raise DataError(f"{type(model).__name__} can't score these rows ({failed}). Nothing was spent.")


class _Mean:
    """The mean of a clipped loss, or one minus it for accuracy."""

    def __init__(
        self, loss: Any, counts: IntArray, relation: Neighbours, budget: Budget, population: bool
    ) -> None:
        self.loss, self.n, self.population = loss, len(counts), population
        self.exact = np.array([counts.sum()])
        self.mechanism = Gaussian.calibrate(
            loss_sensitivity(relation), budget, dimension=1, integer=True
        )

    def read(self, noisy: Array, miss: float) -> tuple[float, float, float]:
        bound = self.loss.bound
        value = self.loss.mean(float(noisy[0]), self.n)
        spread = self.mechanism.deviation / STEPS / self.n * bound
        reach = -ndtri(miss / 2) * spread * (1 + 1e-6)
        low, high = value - reach, value + reach
        if (
            self.population
        ):  # the spread of values in [0, bound] is largest for a mean in the middle
            far = max(min(x, bound - x) for x in np.clip([low, high], 0, bound))
            far = bound / 2 if low < bound / 2 < high else far
            spread = math.hypot(spread, math.sqrt(far * (bound - far) / self.n))
            reach = -ndtri(miss / 2) * spread
            low, high = value - reach, value + reach
        value, low, high = (min(max(x, 0.0), bound) for x in (value, low, high))
        return (
            (1 - value, 1 - high, 1 - low) if self.loss.name == "accuracy" else (value, low, high)
        )


class _RSquared:
    """R^2 = 1 - SSE/SST, from one release of the sums of e^2, t and t^2.

    Here e is the error and t the target of a row. Each is counted from the middle of its range.
    """

    def __init__(self, sums: IntArray, ratio: float, relation: Neighbours, budget: Budget) -> None:
        half = STEPS // 2
        self.n, self.ratio = len(sums), ratio
        assert np.abs(sums).max() <= half
        self.exact = sums.sum(axis=0)
        bound_of_row = math.nextafter(math.sqrt(3) * half, math.inf)
        self.mechanism = Gaussian.calibrate(
            bounded_sum(relation, bound=bound_of_row), budget, dimension=3, integer=True
        )

    def read(self, noisy: Array, miss: float) -> tuple[float, float, float]:
        # the level is split over three statements that hold at once
        reach = -ndtri(miss / 6) * self.mechanism.deviation * (1 + 1e-6)
        sums = np.asarray(noisy, dtype=np.float64)

        def error(shift: float) -> float:
            return float(max((sums[0] + shift) / STEPS + self.n / 2, 0.0) * self.ratio)

        def total(shift: float, inwards: bool) -> float:
            first = abs(sums[1]) / (STEPS / 2)
            step = abs(shift) / (STEPS / 2)
            first = first + step if inwards else max(first - step, 0.0)
            second = (sums[2] + shift) / STEPS + self.n / 2
            return float(second - first**2 / self.n)

        middle = float(sums[2] / STEPS + self.n / 2 - (sums[1] / (STEPS / 2)) ** 2 / self.n)
        least, most = total(-reach, True), total(reach, False)
        low = -math.inf if least <= 0 else 1 - error(reach) / least
        high = 1.0 if most <= 0 else 1 - error(-reach) / most
        value = 1 - error(0.0) / middle if middle > 0 else low
        return min(value, 1.0), min(low, 1.0), min(max(high, value), 1.0)


def _error_and_target(loss: RowLoss, target: Interval, model: Any, X: Any, y: Array) -> IntArray:
    """Return e^2, t and t^2 of each row as integers of at most STEPS / 2."""
    if y.ndim > 1:
        raise DataError("The metric 'r2' is for one target.")
    middle, half = target.low / 2 + target.high / 2, STEPS // 2
    unit = np.clip(as_floats(y, "y"), target.low, target.high) - middle
    t = np.clip(unit / target.half_width, -1.0, 1.0)
    return np.stack(
        [
            loss.counts(model, X, y),
            np.trunc(t * half).astype(np.int64),
            np.trunc(t * t * STEPS).astype(np.int64) - half,
        ],
        axis=1,
    )


class _Area:
    """AUC from noisy histograms of the scores of both classes."""

    def __init__(self, cells: IntArray, bins: int, relation: Neighbours, budget: Budget) -> None:
        self.bins = bins
        self.exact = np.bincount(cells, minlength=2 * bins).astype(np.int64)
        self.mechanism = Gaussian.calibrate(
            histogram(relation), budget, dimension=2 * bins, integer=True
        )

    def read(self, noisy: Array, miss: float) -> tuple[float, float, float]:
        negative, positive = np.asarray(noisy, dtype=np.float64).reshape(2, self.bins)
        n, p = float(negative.sum()), float(positive.sum())
        sigma = self.mechanism.deviation
        z = -ndtri(miss / 6)  # for three statements at once
        away = z * sigma * math.sqrt(self.bins)
        if not (n > away and p > away):  # noise hides one of the classes
            return 0.5, 0.0, 1.0
        below = np.cumsum(negative) - negative / 2  # negatives below a cell; ties count half
        above = p - np.cumsum(positive) + positive / 2
        area = float(positive @ below) / (n * p)
        # first order: d area = sum dp (below/n - area)/p + sum dn (above/p - area)/n
        slopes = np.concatenate([(below / n - area) / p, (above / p - area) / n])
        first = sigma * float(np.linalg.norm(slopes))
        second = sigma**2 * self.bins * (0.5 + 1.5) / ((n - away) * (p - away))
        tied = float(np.maximum(positive, 0) @ np.maximum(negative, 0)) / (2 * n * p)
        hidden = z * sigma * math.hypot(np.linalg.norm(negative), np.linalg.norm(positive))
        tied += (hidden / 2 + self.bins * sigma**2) / (n * p)
        reach = z * (first + second) + tied
        value = min(max(area, 0.0), 1.0)
        return value, max(area - reach, 0.0), min(area + reach, 1.0)


def _cells(model: Any, X: Any, y: Array, positive: Any, bins: Any) -> IntArray:
    """Return the cell of every row; rows of the positive class have cells of their own."""
    if not is_whole(bins) or not 2 <= bins <= 1024:
        raise ParameterError(
            parameter_message("private_score", "bins", "an int from 2 to 1024", bins)
        )
    if len(model.classes_) != 2:
        count = len(model.classes_)
        raise DataError(f"The metric 'auc' is for two classes, and the model has {count}.")
    known = places_of(model)
    wanted = 1 if positive is None else known.of(positive)
    if wanted < 0:
        allowed = "one of the model's classes"
        raise ParameterError(parameter_message("private_score", "positive", allowed, positive))
    if hasattr(model, "predict_proba"):
        chance = np.asarray(model.predict_proba(X), dtype=np.float64)[:, wanted]
    else:
        score = np.asarray(model.decision_function(X), dtype=np.float64)
        score = score if wanted == 1 else -score
        chance = (1 + score / (1 + np.abs(score))) / 2
    with np.errstate(all="ignore"):
        places = np.floor(np.clip(np.nan_to_num(chance), 0.0, 1.0) * bins)
    cells = np.minimum(places, bins - 1).astype(np.int64)
    return np.asarray((known(y) == wanted) * bins + cells)


def _budget(budget: Any) -> Budget:
    if not isinstance(budget, Budget):
        try:
            budget = Budget(*budget)
        except TypeError:
            raise ParameterError(
                parameter_message(
                    "private_score", "budget", "a Budget or (epsilon, delta)", type(budget).__name__
                )
            ) from None
    if budget.delta == 0:
        advice = "Scores are released with Gaussian noise."
        raise ParameterError(
            parameter_message("private_score", "delta", "above 0", budget.delta, advice)
        )
    return budget  # type: ignore[no-any-return]
