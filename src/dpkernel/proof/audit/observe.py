"""Collect what an attacker sees of a fitted estimator, as numbers.

The attacker sees everything that a scikit-learn user can read:

- public attributes and properties with a trailing underscore that are numbers or words, or lists, dicts
  and fitted estimators that hold such values;
- the results of ``decision_function``, ``predict_proba``, ``predict`` and ``transform`` at probe points;
- whether a fit fails;
- if the fit has a certificate, every value that was released with noise, as it was released, because the
  certificate covers all of them.

Nothing else of the estimator is used, so any class can be audited.
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

from dpkernel.estimators.surroundings import is_ours
from dpkernel.foundations.errors import PrivacyWarning
from dpkernel.foundations.types import Array
from dpkernel.proof.audit.copies import reseed
from dpkernel.proof.audit.releases import MATCHED, RELEASED, Recorded, recording, released_by_label
from dpkernel.proof.audit.twins import WeakNoise

Table = tuple[Any, ...]  # (X, y), or (X, y, groups)
Observation = dict[str, np.ndarray]  # by name: a row of numbers or of words
Filters = Mapping[str, Array]  # one direction per label of a release
_ANSWERS = ("decision_function", "predict_proba", "predict", "transform")
_SCALARS = (str, bytes, bool, int, float, np.generic)
_DEPTH = 3  # depth of lists in lists and estimators in estimators
_LONGEST = 200  # letters of a word
_MOST = 2000  # numbers of one attribute that are looked at, and number of attributes
# the share of the noise in the fits that show how values move, and their number on each side
_QUIET, _QUIET_FITS = 1e-3, 2
_MOST_PARTS = 100  # parts of a list or dict, and words under one name
_MOST_MOMENTS = 20  # columns of a matrix whose second moments are taken, for sketches


@dataclass(frozen=True)
class Runner:
    """Fits a fresh copy to a table and returns what an attacker sees of it.

    If ``statistic`` is given, only this function of the fitted estimator is seen.
    """

    estimator: Any
    statistic: Callable[[Any], Any] | None = None

    def __call__(
        self, table: Table, probes: Any, seeds: Sequence[int | None], filters: Filters | None = None
    ) -> list[Observation]:
        """Return one observation per seed. The seed None draws from the operating system."""
        return [self._run(table, probes, seed, filters or {}) for seed in seeds]

    def filters(self, table: Table, neighbour: Table) -> Filters:
        """Return the direction in which each released value moves between two tables.

        The directions are found by fits with almost no noise, and only for estimators of dpkernel. Noise
        that is the same in all directions hides a released value least along that direction.
        """
        if self.statistic is not None or not is_ours(self.estimator):
            return {}
        loud = copy.deepcopy(self.estimator)
        if not hasattr(loud, "noise"):
            return {}
        loud.set_params(noise=WeakNoise(_QUIET))
        sides: list[dict[str, list[Array]]] = [{}, {}]
        for side, rows in zip(sides, (table, neighbour), strict=True):
            for seed in range(_QUIET_FITS):
                try:
                    with recording() as seen:
                        model = Runner(loud).fitted(rows, seed)
                except Exception:  # the attack itself sees the failure
                    return {}
                for label, values in _whole_releases(seen, model).items():
                    side.setdefault(label, []).append(values)
        moved = {
            label: np.mean(values, axis=0) - np.mean(sides[1][label], axis=0)
            for label, values in sides[0].items()
            if {v.shape for v in values} == {v.shape for v in sides[1].get(label, [])}
            and len({v.shape for v in values}) == 1
        }
        lengths = {label: float(np.linalg.norm(shift)) for label, shift in moved.items()}
        return {label: moved[label] / length for label, length in lengths.items() if length > 0}

    def fitted(self, table: Table, seed: int | None) -> Any:
        """Return a copy that is fitted with noise of its own."""
        model = copy.deepcopy(self.estimator)
        reseed(model, seed)
        X, y, *groups = table
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of third parties, on tiny tables
            # fits to made-up rows need not be added up
            warnings.filterwarnings("ignore", "Several clones of one", PrivacyWarning)
            people = {"groups": groups[0]} if groups else {}
            found = model.fit(X, **people) if y is None else model.fit(X, y, **people)
        return model if found is None else found

    def _run(self, table: Table, probes: Any, seed: int | None, filters: Filters) -> Observation:
        try:
            with recording() as seen:
                model = self.fitted(table, seed)
        except Exception as error:  # the attacker sees that a fit fails, and how
            return {"failed": np.array([type(error).__name__, str(error)[:_LONGEST]])}
        if self.statistic is not None:
            return {"statistic": np.ravel(np.asarray(self.statistic(model), dtype=np.float64))}
        return observe(model, probes, _whole_releases(seen, model), filters)


def observe(
    model: Any,
    probes: Any,
    released: Mapping[str, Array] | None = None,
    filters: Filters | None = None,
) -> Observation:
    """Return all numbers and words that the fitted model shows, by name.

    ``released`` are the values that mechanisms released during its fit, by their labels. They are
    included as they are, and along the directions in ``filters``.
    """
    found: Observation = {}
    for label, values in (released or {}).items():
        direction = (filters or {}).get(label)
        if direction is not None and direction.shape == values.shape:
            found[f"{MATCHED}{label}"] = np.array([float(values @ direction)])
        _note(found, f"{RELEASED}{label}", values, _DEPTH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of properties that a user would not read
        _look(found, "", model, _DEPTH)
    for name in _ANSWERS:
        if hasattr(model, name):
            _note(found, name, getattr(model, name)(probes), _DEPTH)
    return found


def _whole_releases(seen: Sequence[Recorded], model: Any) -> dict[str, Array]:
    """Return one row of numbers for each label. Many long draws are summed."""
    found = {}
    for label, values in released_by_label(seen, getattr(model, "certificate_", None)).items():
        whole = np.concatenate([np.ravel(value) for value in values])
        equal = len({np.shape(value) for value in values}) == 1
        shown = whole if len(whole) <= _MOST or not equal else np.ravel(np.sum(values, axis=0))
        found[label] = shown.astype(np.float64)
    return found


def _look(found: Observation, prefix: str, model: Any, depth: int) -> None:
    """Record the public attributes and properties of a fitted estimator."""
    names = {*getattr(model, "__dict__", ()), *dir(type(model))}  # without evaluating properties
    for name in sorted(names):
        if not name.endswith("_") or name.startswith("_"):
            continue
        try:
            value = getattr(model, name)
        except Exception:  # a property that this kind of fit does not have
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
    """Record a value as a row of numbers or of words, and look into containers."""
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
    """Return a value as an array of numbers, words or objects, or None if it is none of these."""
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
    """Turns observations into rows of one length.

    Values that are missing, too many, infinite or NaN have columns of their own, so the attack sees
    them. ``words`` are the words that were seen under a name; a word becomes its position among
    them. ``wild`` are the names under which something was infinite or NaN.
    """

    sizes: tuple[tuple[str, int], ...]
    words: Mapping[str, tuple[str, ...]]
    wild: frozenset[str]

    @classmethod
    def of(cls, observations: Sequence[Observation]) -> Layout:
        """Return the layout of all names, each with the length of its shortest observation."""
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
        """Whether only one number was seen."""
        return [size for _, size in self.sizes] == [1] and not self.words

    def matched(self) -> list[int]:
        """Return the positions in a row of the numbers along known directions."""
        seen = {name: np.zeros(size) for name, size in self.sizes if name not in self.words}
        marked = {name: x + name.startswith(MATCHED) for name, x in seen.items()}
        return np.flatnonzero(self._row(marked) - self._row(seen)).tolist()

    def rows(self, observations: Sequence[Observation]) -> Array:
        """Return one row per observation.

        For each name it has the values, their number, and how many are NaN or infinite, with their sign.
        For words it has how often each occurs.
        """
        return np.array([self._row(seen) for seen in observations]).reshape(len(observations), -1)

    def scores(self, observations: Sequence[Observation]) -> Array:
        """Return the one number of each observation as it is, or NaN if it is missing."""
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
