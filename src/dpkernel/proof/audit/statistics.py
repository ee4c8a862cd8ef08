"""Statistics that separate the releases of two data sets, learned from pilot runs.

Each statistic is fitted to rows of numbers from the two sides and gives one score per row. A higher
score is evidence for the first side. No statistic can make an audit wrong, because the judged runs
had no part in it. A poor statistic only proves less.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata
from sklearn.covariance import ledoit_wolf
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from dpkernel.foundations.types import Array

Score = Callable[[Array], Array]
_MOST_COLUMNS = 300  # columns that are whitened: those that separate best on their own


class Scaling:
    """Scale columns to median 0 and quartiles near 1, drop constant ones, and compress far values."""

    def __init__(self, rows: Array) -> None:
        low, self.centre, high = np.quantile(rows, [0.25, 0.5, 0.75], axis=0)
        spread = (high - low) / 1.35
        deviation = np.abs(rows - self.centre).max(axis=0)
        self.scale = np.where(spread > 1e-12 * (1 + np.abs(self.centre)), spread, deviation)
        self.kept = np.flatnonzero(self.scale > 0)

    def __call__(self, rows: Array) -> Array:
        """Return the kept columns, scaled."""
        scaled = (rows - self.centre)[:, self.kept] / self.scale[self.kept]
        return np.asarray(np.arcsinh(scaled))  # the identity near 0; outliers hardly affect means


def projection(p: Array, q: Array) -> Score:
    """Project on the whitened difference of the means, the direction in which a record shows most."""
    scaling = Scaling(np.vstack((p, q)))
    p, q = scaling(p), scaling(q)
    if not p.shape[1]:
        return lambda rows: np.zeros(len(rows))
    shift = p.mean(axis=0) - q.mean(axis=0)
    single = np.abs(shift) / (p.std(axis=0) + q.std(axis=0) + 1e-9)
    best = np.sort(np.argsort(single)[-_MOST_COLUMNS:])
    centred = np.vstack((p - p.mean(axis=0), q - q.mean(axis=0)))[:, best]
    covariance, _ = ledoit_wolf(centred)
    ridge = 1e-9 * (np.trace(covariance) / len(best) + 1e-9)
    direction = np.linalg.solve(covariance + ridge * np.eye(len(best)), shift[best])
    return lambda rows: scaling(rows)[:, best] @ direction


def logistic(p: Array, q: Array) -> Score:
    """Fit a logistic regression to the numbers and their squares. It finds noise of different scales."""

    def columns(rows: Array) -> Array:
        return np.hstack((rows, rows**2))

    return _learned(LogisticRegression(C=0.1, max_iter=500), p, q, columns)


def boosting(p: Array, q: Array) -> Score:
    """Fit boosted trees, which find leaks of any shape."""
    model = GradientBoostingClassifier(
        n_estimators=60, max_depth=2, subsample=0.8, max_features="sqrt", random_state=0
    )
    return _learned(model, p, q, lambda rows: rows)


def _learned(model: Any, p: Array, q: Array, columns: Callable[[Array], Array]) -> Score:
    scaling = Scaling(np.vstack((p, q)))
    if not len(scaling.kept):
        return lambda rows: np.zeros(len(rows))
    sides = np.repeat([1, 0], [len(p), len(q)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a rough fit is as valid
        model.fit(columns(scaling(np.vstack((p, q)))), sides)
    return lambda rows: np.asarray(model.decision_function(columns(scaling(rows))))


def auc(p: Array, q: Array) -> float:
    """Return the probability that a score of the first side is above one of the second."""
    ranks = rankdata(np.concatenate((p, q)))
    return float((ranks[: len(p)].sum() - len(p) * (len(p) + 1) / 2) / (len(p) * len(q)))


def separation(p: Array, q: Array, fit: Callable[[Array, Array], Score] = projection) -> float:
    """Return how far apart the rows of two sides are, in standard deviations on held-out rows."""
    found = []
    for train in (0, 1):
        score = fit(p[train::2], q[train::2])
        found.append(auc(score(p[1 - train :: 2]), score(q[1 - train :: 2])))
    edge = 0.5 / len(p)
    return float(np.sqrt(2) * ndtri(np.clip(np.mean(found), edge, 1 - edge)))


STATISTICS: dict[str, Callable[[Array, Array], Score]] = {
    "projection": projection,
    "logistic": logistic,
    "boosting": boosting,
}
