"""What an attacker sees of a fitted estimator, as numbers.

Everything a scikit-learn user can read: public attributes and properties with a trailing underscore
that are numbers or words, or lists, dicts and fitted estimators that hold such, and the answers of
``decision_function``, ``predict_proba``, ``predict`` and ``transform`` at probe points. A fit that
fails is seen to fail. Nothing else of the estimator is touched, so any class will do.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from dpkernel.audit.copies import reseed
from dpkernel.errors import PrivacyWarning
from dpkernel.types import Array

Table = tuple[Any, Any]  # (X, y); y is None for transformers
Observation = dict[str, np.ndarray]  # each a row of numbers, or of words
_ANSWERS = ("decision_function", "predict_proba", "predict", "transform")
_SCALARS = (str, bytes, bool, int, float, np.generic)
_DEPTH = 3  # of lists in lists, estimators in estimators
_LONGEST = 200  # letters of a word
_MOST = 2000  # numbers of one attribute that are looked at, and attributes
_MOST_PARTS = 100  # of a list or dict, and words of one name
_MOST_MOMENTS = 20  # columns of a matrix whose second moments are taken: what a sketch shows


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
        reseed(model, seed)
        X, y = table
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of third parties, on tiny tables
            # nobody adds up fits to made-up rows
            warnings.filterwarnings("ignore", "Several clones of one", PrivacyWarning)
            found = model.fit(X) if y is None else model.fit(X, y)
        return model if found is None else found

    def _run(self, table: Table, probes: Any, seed: int | None) -> Observation:
        try:
            model = self.fitted(table, seed)
        except Exception as error:  # that a fit fails, and how, is seen as well
            return {"failed": np.array([type(error).__name__, str(error)[:_LONGEST]])}
        if self.statistic is not None:
            return {"statistic": np.ravel(np.asarray(self.statistic(model), dtype=np.float64))}
        return observe(model, probes)


def observe(model: Any, probes: Any) -> Observation:
    """Return all numbers and words that the fitted model shows, by name."""
    found: Observation = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of properties that nobody asks for
        _look(found, "", model, _DEPTH)
    for name in _ANSWERS:
        if hasattr(model, name):
            _note(found, name, getattr(model, name)(probes), _DEPTH)
    return found


def _look(found: Observation, prefix: str, model: Any, depth: int) -> None:
    """Note the public attributes of a fitted estimator, properties too."""
    names = {*getattr(model, "__dict__", ()), *dir(type(model))}  # without asking for values
    for name in sorted(names):
        if not name.endswith("_") or name.startswith("_"):
            continue
        try:
            value = getattr(model, name)
        except Exception:  # a property of another kind of fit
            continue
        _note(found, prefix + name, value, depth)
        if np.ndim(found.get(prefix + name, 0)) and _is_narrow(value):
            matrix = np.asarray(value, dtype=np.float64)
            with np.errstate(all="ignore"):
                found[f"moments of {prefix}{name}"] = np.ravel(matrix.T @ matrix)


def _is_narrow(value: Any) -> bool:
    """Whether a value is a matrix of numbers with few columns."""
    dense = isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind in "biuf"
    return bool(dense and value.shape[1] <= _MOST_MOMENTS)


def _note(found: Observation, name: str, value: Any, depth: int) -> None:
    """Note a value as a row of numbers or of words; look into what holds several."""
    if len(found) >= _MOST or callable(value) or depth < 0 or value is None:
        return
    if isinstance(value, Mapping):
        for key in sorted(value, key=str)[:_MOST_PARTS]:
            _note(found, f"{name}[{key}]", value[key], depth - 1)
        return
    if hasattr(value, "fit"):
        _look(found, f"{name}.", value, depth - 1)
        return
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=str)
    array = _array(value)
    if array is None or array.size > _MOST:
        return
    if array.dtype.kind in "biuf":
        found[name] = np.ravel(array.astype(np.float64))
    elif array.dtype.kind in "US" or all(isinstance(x, _SCALARS) for x in array.flat):
        found[name] = np.array([str(x)[:_LONGEST] for x in array.flat], dtype=np.str_)
    elif array.ndim and array.dtype == object:
        for i, item in enumerate(list(array)[:_MOST_PARTS]):
            _note(found, f"{name}[{i}]", item, depth - 1)


def _array(value: Any) -> Any:
    """Return a value as an array of numbers, words or objects; None of what is none of these."""
    if hasattr(value, "toarray"):
        value = value.toarray()
    if not isinstance(value, (*_SCALARS, list, tuple)) and not hasattr(value, "__array__"):
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        array = np.empty(len(value), dtype=object)
        array[:] = list(value)
    if array.dtype == object:
        try:
            return array.astype(np.float64)
        except (TypeError, ValueError):
            return array
    return array


@dataclass(frozen=True)
class Layout:
    """Turns observations into rows of one length; what is missing, longer or wild shows as such.

    ``words`` are the words that were seen under a name: a word becomes its place among them.
    ``wild`` are the names under which something was infinite or no number.
    """

    sizes: tuple[tuple[str, int], ...]
    words: Mapping[str, tuple[str, ...]]
    wild: frozenset[str]

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> Layout:
        """Return the layout of all names, each as long as its shortest."""
        sizes: dict[str, int] = {}
        words: dict[str, Counter[str]] = {}
        wild = set()
        for seen in observations:
            for name, values in seen.items():
                sizes[name] = min(sizes.get(name, len(values)), len(values))
                if values.dtype.kind == "U":
                    words.setdefault(name, Counter()).update(values.tolist())
                elif not np.isfinite(values).all():
                    wild.add(name)
        common = {n: tuple(w for w, _ in c.most_common(_MOST_PARTS)) for n, c in words.items()}
        kept = {name: tuple(sorted(found)) for name, found in common.items()}
        return cls(tuple(sorted(sizes.items())), kept, frozenset(wild))

    @property
    def single(self) -> bool:
        """Whether all that was seen is one number."""
        return [size for _, size in self.sizes] == [1] and not self.words

    def rows(self, observations: Sequence[Observation]) -> Array:
        """Return one row an observation.

        Of each name the values, its length, and how many are no number or infinite, signed; of
        words how often each occurs.
        """
        return np.array([self._row(seen) for seen in observations]).reshape(len(observations), -1)

    def scores(self, observations: Sequence[Observation]) -> Array:
        """Return the one number of each observation as it is; what is missing is none."""
        name = self.sizes[0][0]
        return np.array(
            [seen[name][0] if len(seen.get(name, ())) else np.nan for seen in observations]
        )

    def _row(self, seen: Observation) -> Array:
        parts = []
        for name, size in self.sizes:
            values = seen.get(name, np.zeros(0))
            counts = []
            if name in self.words:
                places = {word: i for i, word in enumerate(self.words[name])}
                coded = [places.get(str(word), -1) for word in values]
                counts = [coded.count(i) for i in range(-1, len(places))]
                values = np.array(coded, dtype=np.float64)
            elif values.dtype.kind == "U":  # words where numbers were seen before
                values = np.full(len(values), np.nan)
            padded = np.zeros(size)
            padded[: len(values)] = values[:size]
            signs = np.where(np.isinf(padded), np.sign(padded), 0.0)
            none = np.isnan(padded)
            if name in self.wild:
                parts += [signs, none.astype(np.float64)]
            padded[none | (signs != 0)] = 0.0
            shown = len(values), none.sum(), signs.sum(), *counts
            parts += [padded, np.array(shown, dtype=np.float64)]
        return np.concatenate(parts) if parts else np.zeros(0)
