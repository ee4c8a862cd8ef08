"""Simulate which error to expect: fit to made-up rows and measure the error on fresh ones.

No data are read and nothing is spent. The inputs fill the declared box evenly. Half of the variance of
the target is a random smooth function of them and half is noise, so the best error that a regression
can reach is 0.5 times that of a constant. The numbers are for comparing settings; how well a real
table can be predicted is not known before a fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernel.data.domain import Interval, Levels
from dpkernel.foundations.types import Array

_WAVES = 30
_TEST_ROWS = 2000

# for every task: what the simulated number means
MEASURES = {
    "regression": "mean squared error / variance (1 for a constant; at best 0.5)",
    "classification": "error rate / that of always guessing the most common class (at best about 0.5)",
    "quantile": "pinball loss / that of the best constant (at best about 0.7)",
}


@dataclass(frozen=True)
class Expected:
    """The simulated error at one setting: mean and spread over repetitions."""

    n_rows: int
    epsilon: float
    error: float
    spread: float


def simulate(
    make: Callable[[float], Any],
    task: str,
    box: list[Interval],
    target: Interval | Levels,
    n_rows: int,
    epsilon: float,
    repetitions: int,
    quantiles: list[float],
) -> Expected:
    """Fit estimators to made-up tables and score them on fresh rows."""
    errors = []
    for seed in range(repetitions):
        draw = np.random.default_rng([seed, n_rows])
        function = _smooth(draw, len(box))
        X, y = _table(draw, function, box, target, n_rows)
        new_X, new_y = _table(draw, function, box, target, _TEST_ROWS)
        model = make(epsilon).fit(X, y)
        errors.append(_score(task, new_y, np.asarray(model.predict(new_X)), y, quantiles))
    return Expected(n_rows, epsilon, float(np.mean(errors)), float(np.std(errors)))


def _smooth(draw: np.random.Generator, d: int) -> Callable[[Array], Array]:
    """Return a random function on [-1, 1]^d, sampled from a Gaussian process, of variance about 1."""
    scale = 0.7 * np.sqrt(d)
    frequencies = draw.normal(size=(d, _WAVES)) / scale
    phases, weights = draw.uniform(0, 2 * np.pi, _WAVES), draw.normal(size=_WAVES)

    def function(unit: Array) -> Array:
        return np.asarray(np.cos(unit @ frequencies + phases) @ weights)

    probe = function(draw.uniform(-1, 1, (4000, d)))
    middle, width = float(probe.mean()), float(probe.std()) or 1.0
    return lambda unit: (function(unit) - middle) / width


def _table(
    draw: np.random.Generator,
    function: Callable[[Array], Array],
    box: list[Interval],
    target: Interval | Levels,
    n_rows: int,
) -> tuple[Array, Any]:
    unit = draw.uniform(-1, 1, (n_rows, len(box)))
    X = np.column_stack([c.from_unit(unit[:, j]) for j, c in enumerate(box)])
    score = (function(unit) + draw.normal(size=n_rows)) / np.sqrt(2)
    if isinstance(target, Interval):
        return X, target.from_unit(np.clip(score / 3, -1.0, 1.0))  # plus or minus three deviations
    k = len(target.values)
    ends = np.quantile(draw.normal(size=20_000), np.arange(1, k) / k)
    labels = np.empty(k, dtype=object)
    labels[:] = target.values
    return X, labels[np.searchsorted(ends, score)]


def _score(task: str, y: Any, found: Any, train: Any, quantiles: list[float]) -> float:
    if task == "regression":
        return float(np.mean((found - y) ** 2) / np.var(y))
    if task == "classification":
        values, counts = np.unique(train.astype(str), return_counts=True)
        blind = np.mean(y.astype(str) != values[np.argmax(counts)])
        return float(np.mean(found.astype(str) != y.astype(str)) / blind)
    q = np.asarray(quantiles)
    found = found[:, None] if found.ndim == 1 else found
    return _pinball(y, found, q) / _pinball(y, np.quantile(y, q)[None, :], q)


def _pinball(y: Array, found: Array, q: Array) -> float:
    gap = y[:, None] - found
    return float(np.mean(np.maximum(q * gap, (q - 1) * gap)))
