"""The methods that ``rivals.py`` compares, behind one signature.

A method gets a ``Problem``, whose inputs and targets are scaled by their declared ranges, an epsilon,
the number of one of its settings and a seed. It returns its predictions for the test rows and the
processor seconds of the fit. Libraries are imported inside the methods, because no environment holds all
of them.
"""

from __future__ import annotations

import importlib.util
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import rival_network
import rival_trees
from datasets import Data, load
from scipy.optimize import brentq
from scipy.stats import norm

DELTA = 1e-6


@dataclass(frozen=True)
class Problem:
    """A split of a table: inputs in [-1, 1]; a target in [-1, 1], or places in the list of classes."""

    data: Data
    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray

    @property
    def columns(self) -> np.ndarray:
        """The training target as a column, or as an indicator column per class."""
        if self.data.classes is None:
            return self.y[:, None]
        return np.eye(len(self.data.classes))[self.y]

    def chosen(self, scores: np.ndarray) -> np.ndarray:
        """Return scores as predictions: within the range, or the class of the largest score."""
        if self.data.classes is None:
            return np.clip(scores.reshape(len(self.y_test)), -1, 1)
        return np.argmax(scores, axis=1)

    def error(self, predictions: np.ndarray) -> float:
        """Return the squared error over the variance of the test target, or the wrong share."""
        if self.data.classes is None:
            return float(np.mean((predictions - self.y_test) ** 2) / self.y_test.var())
        return float(np.mean(predictions != self.y_test))


Prediction = tuple[np.ndarray, float]


def problem(name: str, seed: int) -> Problem:
    """Return a random split into 80 and 20 percent, as in ``learned_kernel.py``."""
    data = load(name)
    assert data is not None
    train, test = data.split(int(0.8 * len(data.y)), seed, most=len(data.y))
    low, high = data.bounds
    X = 2 * (np.clip(data.X, low, high) - low) / (high - low) - 1
    if data.y_bounds is None:
        y = np.searchsorted(np.array(data.classes), data.y)
        return Problem(data, X[train], y[train], X[test], y[test])
    bottom, top = data.y_bounds
    y = 2 * (data.y - bottom) / (top - bottom) - 1
    return Problem(data, X[train], np.clip(y[train], -1, 1), X[test], y[test])


def gaussian_mu(epsilon: float, delta: float = DELTA) -> float:
    """Return mu of the Gaussian mechanism that is (epsilon, delta)-private."""

    def excess(mu: float) -> float:
        a, b = norm.logcdf(mu / 2 - epsilon / mu), norm.logcdf(-mu / 2 - epsilon / mu)
        return float(math.exp(a) - math.exp(epsilon + b) - delta)

    return float(brentq(excess, 1e-4, 100))


def dpkernel(p: Problem, epsilon: float, setting: int, seed: int) -> Prediction:
    """Fit the defaults of dpkernel, with the noise of the operating system."""
    from dpkernel import PrivateKernelClassifier, PrivateKernelRegressor

    shared = {"bounds": (-1, 1), "neighbours": "zero-out"}
    if p.data.classes is None:
        model = PrivateKernelRegressor(epsilon, DELTA, y_bounds=(-1, 1), **shared)
    else:
        places = list(range(len(p.data.classes)))
        model = PrivateKernelClassifier(epsilon, DELTA, classes=places, **shared)
    return fitted(model, p)


def network(p: Problem, epsilon: float, setting: int, seed: int) -> Prediction:
    """Train a network by DP-SGD."""
    schedule = rival_network.SCHEDULES[setting]
    sigma = rival_network.noise_multiplier(epsilon, DELTA, schedule.share, schedule.steps)
    start = time.process_time()
    net = rival_network.train(
        p.X,
        p.columns,
        classes=p.data.classes is not None,
        schedule=schedule,
        sigma=sigma,
        seed=seed,
    )
    seconds = time.process_time() - start
    return p.chosen(net.layers(p.X_test.astype(np.float32))[-1]), seconds


def boosted(p: Problem, epsilon: float, setting: int, seed: int) -> Prediction:
    """Boost trees of random splits; the seconds include those of the predictions."""
    start = time.process_time()
    scores = rival_trees.predict_boosted(
        p.X,
        p.columns,
        p.X_test,
        classes=p.data.classes is not None,
        forest=rival_trees.FORESTS[setting],
        sigma=rival_network.noise_multiplier(epsilon, DELTA, 1.0, 1),
        seed=seed,
    )
    return p.chosen(scores), time.process_time() - start


def explainable(p: Problem, epsilon: float, setting: int, seed: int) -> Prediction:
    """Fit interpret's DP-EBM; targets are centred, which is where its noise comes nearest to enough."""
    from interpret.privacy import DPExplainableBoostingClassifier, DPExplainableBoostingRegressor

    d = p.X.shape[1]
    shared = {
        "epsilon": epsilon,
        "delta": DELTA,
        "privacy_bounds": np.tile([-1.0, 1.0], (d, 1)),
        "feature_types": ["continuous"] * d,
        "n_jobs": 1,
    }
    if p.data.classes is None:
        model = DPExplainableBoostingRegressor(
            privacy_target_min=-1.0, privacy_target_max=1.0, **shared
        )
    else:
        model = DPExplainableBoostingClassifier(**shared)
    return fitted(model, p)


def linear(p: Problem, epsilon: float, setting: int, seed: int) -> Prediction:
    """Fit diffprivlib's linear or logistic regression, which have delta = 0."""
    from diffprivlib.models import LinearRegression, LogisticRegression

    if p.data.classes is None:
        return fitted(LinearRegression(epsilon=epsilon, bounds_X=(-1, 1), bounds_y=(-1, 1)), p)
    return fitted(LogisticRegression(epsilon=epsilon, data_norm=math.sqrt(p.X.shape[1])), p)


def forest(p: Problem, epsilon: float, setting: int, seed: int) -> Prediction:
    """Fit diffprivlib's random forest, which has delta = 0."""
    from diffprivlib.models import RandomForestClassifier

    assert p.data.classes is not None
    places = list(range(len(p.data.classes)))
    return fitted(RandomForestClassifier(epsilon=epsilon, bounds=(-1, 1), classes=places), p)


def kernel_without_privacy(p: Problem, epsilon: float, setting: int, seed: int) -> Prediction:
    """Fit ridge or logistic regression on Nystroem features, tuned by cross-validation."""
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    d, some = p.X.shape[1], slice(3000)  # enough rows to choose by
    last = Ridge() if p.data.classes is None else LogisticRegression(max_iter=100)
    features = Nystroem(n_components=min(700, len(p.y) // 2), random_state=0)
    model = make_pipeline(StandardScaler(), features, last)
    grid: dict[str, Any] = {"nystroem__gamma": [v / d for v in (0.1, 0.3, 1.0)]}
    if p.data.classes is None:
        grid["ridge__alpha"] = [1e-3, 1e-2, 1e-1, 1.0]
    else:
        grid["logisticregression__C"] = [1.0, 10.0]
    start = time.process_time()
    best = GridSearchCV(model, grid, cv=3, refit=False).fit(p.X[some], p.y[some]).best_params_
    predictions, _ = fitted(model.set_params(**best), p)
    return predictions, time.process_time() - start


def trees_without_privacy(p: Problem, epsilon: float, setting: int, seed: int) -> Prediction:
    """Fit scikit-learn's histogram gradient boosting."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    cls = (
        HistGradientBoostingRegressor if p.data.classes is None else HistGradientBoostingClassifier
    )
    return fitted(cls(random_state=seed), p)


def fitted(model: Any, p: Problem) -> Prediction:
    """Fit a model on the training rows; return its predictions and the seconds of the fit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        model.fit(p.X, p.y)
        seconds = time.process_time() - start
        found = np.asarray(model.predict(p.X_test))
    return (np.clip(found, -1, 1) if p.data.classes is None else found), seconds


def one_setting(n_mu: float) -> int:
    """Return 0: the method has no settings."""
    return 0


@dataclass(frozen=True)
class Method:
    """A method, what it needs, what it can do and which of its settings the public rule takes."""

    fit: Callable[[Problem, float, int, int], Prediction]
    needs: str
    settings: int = 1
    rule: Callable[[float], int] = one_setting
    private: bool = True
    regression: bool = True
    most_classes: int = 1000


METHODS = {
    "dpkernel": Method(dpkernel, "dpkernel"),
    "DP-SGD network": Method(
        network, "dp_accounting", len(rival_network.SCHEDULES), rival_network.public_schedule
    ),
    "boosted random trees": Method(
        boosted, "dp_accounting", len(rival_trees.FORESTS), rival_trees.public_forest
    ),
    "DP-EBM": Method(explainable, "interpret", most_classes=2),
    "diffprivlib linear": Method(linear, "diffprivlib"),
    "diffprivlib forest": Method(forest, "diffprivlib", regression=False),
    "kernel, not private": Method(kernel_without_privacy, "sklearn", private=False),
    "trees, not private": Method(trees_without_privacy, "sklearn", private=False),
}


def available(name: str) -> bool:
    """Return whether the library of a method is installed here."""
    return importlib.util.find_spec(METHODS[name].needs) is not None


def suits(name: str, data: Data) -> bool:
    """Return whether a method can learn such a target."""
    method = METHODS[name]
    return method.regression if data.classes is None else len(data.classes) <= method.most_classes
