"""Which error to expect from a fit: fit to made-up rows and measure the error on fresh ones.

This is the only planner. ``model.plan`` and ``dpkernel plan`` both ask it, so they give the same
number. It reads no data and spends nothing, and its noise has a fixed seed.

The inputs fill the unit box evenly. The target is a random smooth function of them plus noise; the
``effect`` is the share of its variance that the function explains. For quantiles the same holds.

A class is the place of a score between thresholds. Measured tables with labels differ from those with
numbers in two ways, without which the planned errors were too large by a quarter of those of a constant:
the score is a nearly linear function of the inputs, and many inputs say similar things. So the made-up
function is smoother here, and the inputs are correlated; each still fills its own range evenly.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from dpkernel.data.declared import interval_of, n_declared, resolve_domain
from dpkernel.data.domain import Domain, Interval, Levels
from dpkernel.data.labels import classes_of
from dpkernel.estimators.progress import Parts
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.notebook import html_table
from dpkernel.foundations.types import AddRemove, Array, Budget, Neighbours, is_whole
from dpkernel.foundations.validation import Real
from dpkernel.privacy.noise import SeededNoise
from dpkernel.privacy.profiles import GaussianProfile, gaussian_mu

_WAVES = 200
_SMOOTHNESS = 0.6  # the length scale of the function on the unit box, divided by sqrt(d)
_SMOOTHNESS_OF_SCORES = 2.0  # the same for classes
_MOST_COMPONENTS = 100  # of the inputs, for classes
_DECAY = 1.0  # of classes: the variance of the k-th component of the inputs falls like k^-_DECAY
_TEST_ROWS = 2000
MOST_ROWS = 4000  # a larger budget stands in for more rows
_LARGEST_EPSILON = 1e9
_DEVIATIONS = 3.0  # the declared range of a real target reaches this far on either side

# for every task: what the simulated number is
MEASURES = {
    "regression": "mean squared error / variance of the target",
    "classification": "error rate / that of always guessing the most common class",
    "quantile": "pinball loss / that of the best constant",
}


@dataclass(frozen=True)
class Outlook:
    """The error to expect from a fit, and what was assumed.

    Attributes
    ----------
    relative_error : float
        The mean error over the repetitions, relative to that of a constant prediction, which is 1.
    spread : float
        The standard deviation over the repetitions, each of which has a function and noise of its
        own.
    best : float
        The error of a prediction that knows the function. No model can be better.
    measure : str
        What the error is.
    effect : float
        The share of the variance that a smooth function of the inputs explains. It is assumed.
    n_rows, n_inputs, epsilon, delta
        The size of the table, with one input per number or level, and the budget.
    estimator : str
        The name of the estimator.
    budget_plan : BudgetPlan or None
        How a ``PrivateKernelRegressor`` would share the budget. None if the budget suffices for a
        private mean only, and for other estimators.
    """

    relative_error: float
    spread: float
    best: float
    measure: str
    effect: float
    n_rows: int
    n_inputs: int
    epsilon: float
    delta: float
    estimator: str
    budget_plan: Any = None

    @property
    def n_stages(self) -> int:
        """The number of stages of the budget plan."""
        return 0 if self.budget_plan is None else len(self.budget_plan.stages)

    @property
    def assumption(self) -> str:
        """What the number assumes, as a sentence."""
        scored = self.measure == MEASURES["classification"]
        what = "very smooth function of {} correlated" if scored else "smooth function of {}"
        whose = " of a score that decides between equally frequent classes" if scored else ""
        return (
            f"A {what.format(self.n_inputs)} inputs that fill their ranges evenly is assumed to"
            f" explain {self.effect:.0%} of the variance{whose}; how well a real table can be"
            " predicted is not known before a fit."
        )

    def __str__(self) -> str:
        """Return the number in words."""
        return (
            f"{self.estimator}, {self.n_rows:,} rows, epsilon = {self.epsilon:g}: {self.measure} ="
            f" {self.relative_error:.2f} ± {self.spread:.2f} (a constant: 1, at best:"
            f" {self.best:.2f}). {self.assumption}"
        )

    def _repr_html_(self) -> str:
        """Return the numbers as a table, for notebooks."""
        rows: list[tuple[str, object]] = [
            (self.measure, f"{self.relative_error:.2f} ± {self.spread:.2f}"),
            ("a constant, and the best possible", f"1 and {self.best:.2f}"),
            ("rows, epsilon, delta", f"{self.n_rows:,}, {self.epsilon:g}, {self.delta:g}"),
            ("assumption", self.assumption),
        ]
        if self.budget_plan is not None:
            rows.append(("stages", self.n_stages))
        return html_table(rows)


def expected_error(
    model: Any,
    n_rows: int,
    n_columns: int | None = None,
    n_targets: int = 1,
    *,
    effect: float = 0.5,
    repetitions: int = 3,
) -> Outlook:
    """Return the error to expect from a model, by fits of it to made-up tables of this size.

    For a larger table, 4,000 rows with a larger budget stand in, so that n mu is the same. This is
    slightly pessimistic, because fewer rows vary more.
    """
    budget, _ = model._check_parameters()
    owner = type(model).__name__
    if n_columns is None:
        n_columns = n_declared(model.bounds, owner)
    sizes = {"n_rows": n_rows, "n_columns": n_columns, "n_targets": n_targets}
    for name, value in (sizes | {"repetitions": repetitions}).items():
        if not is_whole(value) or value < 1:
            raise ParameterError(parameter_message(owner, name, "an int >= 1", value))
    if not Real(0, 1).holds(effect):
        raise ParameterError(parameter_message(owner, "effect", str(Real(0, 1)), effect))
    domain = resolve_domain(model.bounds, None, n_columns, owner)
    n_inputs = n_columns if domain.columns is None else domain.n_unit_columns
    design = _Design(model, n_inputs, int(n_targets), float(effect))
    used = min(int(n_rows), MOST_ROWS)
    stand_in = _larger(budget, n_rows / used)
    found, best, fitted = [], [], None
    parts = Parts(repetitions, verbose=bool(getattr(model, "verbose", False)))
    for seed in range(repetitions):
        draw = np.random.default_rng([seed, used])
        truth = [design.function(draw) for _ in range(n_targets)]
        X, y, _ = design.table(draw, truth, used)
        new_X, new_y, ideal = design.table(draw, truth, _TEST_ROWS)
        fitted = design.model(stand_in, seed, used / n_rows)
        running = parts.part(f"made-up table {seed + 1} of {repetitions}")
        with running, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # made-up rows need no privacy
            fitted.fit(X, y)
            answers = np.asarray(fitted.predict(new_X))
        found.append(design.score(new_y, answers))
        best.append(design.score(new_y, ideal))
    return Outlook(
        relative_error=float(np.mean(found)),
        spread=float(np.std(found)),
        best=float(np.mean(best)),
        measure=MEASURES[design.task],
        effect=float(effect),
        n_rows=int(n_rows),
        n_inputs=n_inputs,
        epsilon=budget.epsilon,
        delta=budget.delta,
        estimator=owner,
        budget_plan=getattr(fitted, "budget_plan_", None),
    )


def _larger(budget: Budget, factor: float) -> Budget:
    """Return a budget with ``factor`` times the mu or, if it is pure, ``factor`` times the epsilon."""
    if factor == 1:
        return budget
    if budget.pure:
        return Budget(min(budget.epsilon * factor, _LARGEST_EPSILON), 0.0)
    mu = factor * gaussian_mu(budget.epsilon, budget.delta)
    return Budget(min(GaussianProfile(mu).epsilon(budget.delta), _LARGEST_EPSILON), budget.delta)


class _Design:
    """Made-up tables for one model: what is predicted, and how well."""

    def __init__(self, model: Any, n_inputs: int, n_targets: int, effect: float) -> None:
        self._kind, self._given = type(model), model.get_params(deep=False)
        self._n_inputs, self._several, self._effect = n_inputs, n_targets > 1, effect
        relation = Neighbours.resolve(model.neighbours)
        self._n_max = None if relation.n_is_public else model._n_max()
        target = model.bounds.target if isinstance(model.bounds, Domain) else None
        self._declared: Any
        if "classes" in self._given:
            known = self._given["classes"] is not None or target is not None
            levels = classes_of(self._given["classes"], model.bounds, "plan") if known else None
            self._declared = levels or Levels((0, 1))
            self.task = "classification"
        else:
            known = self._given.get("y_bounds") is not None or target is not None
            own = self._given.get("y_bounds")
            self._declared = (
                interval_of(own, model.bounds, "plan") if known else Interval(-1.0, 1.0)
            )
            self.task = "quantile" if "quantile" in self._given else "regression"
        self._levels = np.atleast_1d(np.asarray(self._given.get("quantile", 0.5), dtype=float))

    def model(self, budget: Budget, seed: int, share: float) -> Any:
        """Return an unfitted model like the given one, for tables with this share of the rows."""
        changes: dict[str, Any] = {
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "bounds": (-1.0, 1.0),
            "ledger": None,
            "noise": SeededNoise(seed),
        }
        if self.task == "classification":
            changes["classes"] = list(self._declared.values)
        else:
            changes["y_bounds"] = self._declared
        if self._n_max is not None:
            changes["neighbours"] = AddRemove(max(1, round(self._n_max * share)))
        if "verbose" in self._given:
            changes["verbose"] = False
        return self._kind(**self._given | changes)

    def table(
        self, draw: np.random.Generator, truth: list[Callable[[Array], Array]], n_rows: int
    ) -> tuple[Array, Any, Any]:
        """Return inputs, targets, and what a prediction that knows the truth would answer."""
        X = self._inputs(draw, n_rows)
        known = math.sqrt(self._effect) * np.column_stack([one(X) for one in truth])
        left = math.sqrt(1 - self._effect)
        score = known + left * draw.normal(size=known.shape)
        if self.task == "classification":
            return X, *self._classes(score[:, 0], known[:, 0], left)
        if self.task == "quantile":
            known = known + left * ndtri(self._levels)
        if not self._several:
            score = score[:, 0]
            known = known[:, 0] if known.shape[1] == 1 else known
        return X, self._in_units(score), self._in_units(known)

    def _inputs(self, draw: np.random.Generator, n_rows: int) -> Array:
        """Return rows whose columns are uniform on [-1, 1]; for classes they are correlated."""
        if self.task != "classification":
            return draw.uniform(-1, 1, (n_rows, self._n_inputs))
        components = draw.normal(size=(n_rows, len(self._mixing)))
        return np.asarray(2 * ndtr(components @ self._mixing) - 1)

    @cached_property
    def _mixing(self) -> Array:
        """The matrix that makes correlated normal columns out of a few independent ones."""
        d, few = self._n_inputs, min(self._n_inputs, _MOST_COMPONENTS)
        turned, _ = np.linalg.qr(np.random.default_rng(d).normal(size=(d, few)))
        turned = turned * np.arange(1.0, few + 1) ** (-_DECAY / 2)
        return np.asarray((turned / np.linalg.norm(turned, axis=1)[:, None]).T)

    def function(self, draw: np.random.Generator) -> Callable[[Array], Array]:
        """Return a random function of the inputs, sampled from a Gaussian process, of variance 1."""
        smoothness = _SMOOTHNESS_OF_SCORES if self.task == "classification" else _SMOOTHNESS
        d = self._n_inputs
        frequencies = draw.normal(size=(d, _WAVES)) / (smoothness * math.sqrt(d))
        phases, weights = draw.uniform(0, 2 * np.pi, _WAVES), draw.normal(size=_WAVES)

        def waves(X: Array) -> Array:
            return np.asarray(np.cos(X @ frequencies + phases) @ weights)

        probe = waves(self._inputs(draw, 4000))
        middle, width = float(probe.mean()), float(probe.std())
        return lambda X: (waves(X) - middle) / width

    def _in_units(self, score: Array) -> Any:
        return self._declared.from_unit(np.clip(score / _DEVIATIONS, -1.0, 1.0))

    def _classes(self, score: Array, known: Array, left: float) -> tuple[Any, Any]:
        count = len(self._declared.values)
        ends = ndtri(np.arange(1, count) / count)
        labels = np.empty(count, dtype=object)
        labels[:] = self._declared.values
        below = ndtr((ends - known[:, None]) / left)
        padded = np.column_stack([np.zeros(len(known)), below, np.ones(len(known))])
        likely = np.argmax(np.diff(padded, axis=1), axis=1)
        return labels[np.searchsorted(ends, score)], labels[likely]

    def score(self, y: Any, found: Any) -> float:
        """Return the error of predictions, divided by that of the best constant."""
        if self.task == "regression":
            return float(np.mean((found - y) ** 2) / np.mean(np.var(y, axis=0)))
        if self.task == "classification":
            _, counts = np.unique(y.astype(str), return_counts=True)
            blind = 1 - counts.max() / len(y)
            return float(np.mean(found.astype(str) != y.astype(str)) / blind)
        found = found[:, None] if found.ndim == 1 else found
        constant = np.quantile(y, self._levels)[None, :]
        return _pinball(y, found, self._levels) / _pinball(y, constant, self._levels)


def _pinball(y: Array, found: Array, q: Array) -> float:
    gap = y[:, None] - found
    return float(np.mean(np.maximum(q * gap, (q - 1) * gap)))
