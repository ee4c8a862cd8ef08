"""What an attacker sees of a fitted estimator, as numbers.

Everything a scikit-learn user can read: public attributes with a trailing underscore that are
numbers, and the answers of ``decision_function``, ``predict_proba``, ``predict`` and ``transform``
at probe points. Nothing else of the estimator is touched, so any class will do.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from dpkernel.noise import NoiseSource, SeededNoise
from dpkernel.types import Array

Table = tuple[Any, Any]  # (X, y); y is None for transformers
Observation = dict[str, Array]
_ANSWERS = ("decision_function", "predict_proba", "predict", "transform")
_MOST = 2000  # numbers of one attribute that are looked at
_MOST_MOMENTS = 20  # columns of a matrix whose second moments are taken: what a sketch shows


def fresh(estimator: Any) -> Any:
    """Return an unfitted copy without a ledger: an audit spends nobody's budget.

    The copy is of no family: thousands of fits to made-up rows need no warning that nobody adds
    them up, and all other warnings stay.
    """
    found = clone(estimator)
    names = found.get_params(deep=True)
    ledgers = [name for name in names if name.split("__")[-1] == "ledger"]
    if ledgers:
        found.set_params(**dict.fromkeys(ledgers))
    for part in (found, *names.values()):
        if hasattr(part, "__dict__") and not isinstance(part, type):
            part.__dict__.pop("_family", None)
    return found


@dataclass(frozen=True)
class Runner:
    """Fits a fresh copy to a table and says what an attacker sees of it.

    ``statistic`` replaces what is seen by a function of the fitted estimator.
    """

    estimator: Any
    statistic: Callable[[Any], Any] | None = None

    def __call__(self, table: Table, probes: Any, seeds: Sequence[int | None]) -> list[Observation]:
        """Return one observation a seed; None draws from the operating system."""
        return [self._run(table, probes, seed) for seed in seeds]

    def fitted(self, table: Table, seed: int | None) -> Any:
        """Return a copy that was fitted with noise of its own."""
        model = copy.deepcopy(self.estimator)
        _reseed(model, seed)
        X, y = table
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of third parties, on tiny tables
            return model.fit(X) if y is None else model.fit(X, y)

    def _run(self, table: Table, probes: Any, seed: int | None) -> Observation:
        model = self.fitted(table, seed)
        if self.statistic is not None:
            return {"statistic": _numbers(self.statistic(model))}
        return observe(model, probes)


def _reseed(model: Any, seed: int | None) -> None:
    """Give every run noise of its own; of a third party its ``random_state`` is the noise."""
    names = model.get_params(deep=True)
    noises = {name: value for name, value in names.items() if name.split("__")[-1] == "noise"}
    for name, value in noises.items():
        if hasattr(value, "reseeded"):
            model.set_params(**{name: value.reseeded(seed)})
        elif value is None or isinstance(value, SeededNoise):
            model.set_params(**{name: None if seed is None else SeededNoise(seed)})
    ours = any(value is None or isinstance(value, NoiseSource) for value in noises.values())
    if not ours and "random_state" in names:
        if seed is None and names["random_state"] is not None:
            seed = int(check_random_state(None).randint(2**31 - 1))
        if seed is not None:
            model.set_params(random_state=seed % 2**32)


def observe(model: Any, probes: Any) -> Observation:
    """Return all numbers that the fitted model shows, by name."""
    found = {
        name: _numbers(value)
        for name, value in sorted(vars(model).items())
        if name.endswith("_") and not name.startswith("_") and _numeric(value)
    }
    for name, value in vars(model).items():
        if name in found and np.ndim(value) == 2 and np.shape(value)[1] <= _MOST_MOMENTS:
            found[f"moments of {name}"] = _numbers(np.transpose(value) @ np.asarray(value))
    for name in _ANSWERS:
        if hasattr(model, name):
            answer = getattr(model, name)(probes)
            if not _numeric(answer):  # labels: their places in the list of classes
                classes = [str(label) for label in getattr(model, "classes_", np.unique(answer))]
                answer = [classes.index(str(label)) for label in np.ravel(answer)]
            found[name] = _numbers(answer)
    return found


def _numeric(value: Any) -> bool:
    if isinstance(value, (str, bytes, Mapping)):
        return False
    try:
        array = np.asarray(value.toarray() if hasattr(value, "toarray") else value)
    except ValueError:  # a ragged list
        return False
    return array.dtype.kind in "biuf" and array.size <= _MOST


def _numbers(value: Any) -> Array:
    dense = value.toarray() if hasattr(value, "toarray") else value
    return np.ravel(np.asarray(dense, dtype=np.float64))


@dataclass(frozen=True)
class Layout:
    """Turns observations into rows of one length; what is missing or longer shows as such."""

    sizes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> Layout:
        """Return the layout of all names, each as long as its shortest."""
        sizes: dict[str, int] = {}
        for seen in observations:
            for name, values in seen.items():
                sizes[name] = min(sizes.get(name, len(values)), len(values))
        return cls(tuple(sorted(sizes.items())))

    def rows(self, observations: Sequence[Observation]) -> Array:
        """Return one row an observation: values, then the length, then the count of non-numbers."""
        return np.array([self._row(seen) for seen in observations]).reshape(len(observations), -1)

    def _row(self, seen: Observation) -> Array:
        parts = []
        for name, size in self.sizes:
            values = seen.get(name, np.zeros(0))
            padded = np.zeros(size)
            padded[: len(values)] = values[:size]
            wild = ~np.isfinite(padded)
            padded[wild] = 0.0
            parts += [padded, np.array([len(values), np.sum(wild)], dtype=np.float64)]
        return np.concatenate(parts) if parts else np.zeros(0)
