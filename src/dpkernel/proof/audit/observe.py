"""What an attacker sees of a fitted estimator, as numbers.

Everything a scikit-learn user can read: public attributes and properties with a trailing underscore
that are numbers or words, or lists, dicts and fitted estimators that hold such, and the answers of
``decision_function``, ``predict_proba``, ``predict`` and ``transform`` at probe points. A fit that
fails is seen to fail. Of a fit with a certificate also every value that was released with noise, before
anything was made of it: the certificate covers all of them. Nothing else of the estimator is touched,
so any class will do.
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

from dpkernel.foundations.errors import PrivacyWarning
from dpkernel.foundations.types import Array
from dpkernel.proof.audit.copies import is_ours, reseed
from dpkernel.proof.audit.releases import MATCHED, RELEASED, Recorded, recording, released_by_label
from dpkernel.proof.audit.twins import WeakNoise

Table = tuple[Any, Any]  # (X, y); y is None for transformers
Observation = dict[str, np.ndarray]  # each a row of numbers, or of words
Filters = Mapping[str, Array]  # a direction for each label of a release
_ANSWERS = ("decision_function", "predict_proba", "predict", "transform")
_SCALARS = (str, bytes, bool, int, float, np.generic)
_DEPTH = 3  # of lists in lists, estimators in estimators
_LONGEST = 200  # letters of a word
_MOST = 2000  # numbers of one attribute that are looked at, and attributes
_QUIET, _QUIET_FITS = (
    1e-3,
    2,
)  # of the noise, in so many fits on each side that show how values move
_MOST_PARTS = 100  # of a list or dict, and words of one name
_MOST_MOMENTS = 20  # columns of a matrix whose second moments are taken: what a sketch shows


@dataclass(frozen=True)
class Runner:
    """Fits a fresh copy to a table and says what an attacker sees of it.

    ``statistic`` replaces what is seen by a function of the fitted estimator.
    """

    estimator: Any
    statistic: Callable[[Any], Any] | None = None

    def __call__(
        self,
        table: Table,
        probes: Any,
        seeds: Sequence[int | None],
        filters: Filters | None = None,
    ) -> list[Observation]:
        """Return one observation a seed; None draws from the operating system."""
        return [self._run(table, probes, seed, filters or {}) for seed in seeds]

    def filters(self, table: Table, neighbour: Table) -> Filters:
        """Return the direction in which each released value moves between two tables.

        They are found by fits with next to no noise, and only for estimators of ours. The released
        value along that direction is what noise that is the same in all directions hides least.
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
                except Exception:  # seen by the attack itself
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

    def _run(self, table: Table, probes: Any, seed: int | None, filters: Filters) -> Observation:
        try:
            with recording() as seen:
                model = self.fitted(table, seed)
        except Exception as error:  # that a fit fails, and how, is seen as well
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
    shown as they are, and along the directions in ``filters``.
    """
    found: Observation = {}
    for label, values in (released or {}).items():
        direction = (filters or {}).get(label)
        if direction is not None and direction.shape == values.shape:
            found[f"{MATCHED}{label}"] = np.array([float(values @ direction)])
        _note(found, f"{RELEASED}{label}", values, _DEPTH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of properties that nobody asks for
        _look(found, "", model, _DEPTH)
    for name in _ANSWERS:
        if hasattr(model, name):
            _note(found, name, getattr(model, name)(probes), _DEPTH)
    return found


def _whole_releases(seen: Sequence[Recorded], model: Any) -> dict[str, Array]:
    """Return one row of numbers for each label; of many long draws their sum."""
    found = {}
    for label, values in released_by_label(seen, getattr(model, "certificate_", None)).items():
        whole = np.concatenate([np.ravel(value) for value in values])
        equal = len({np.shape(value) for value in values}) == 1
        shown = whole if len(whole) <= _MOST or not equal else np.ravel(np.sum(values, axis=0))
        found[label] = shown.astype(np.float64)
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

    def matched(self) -> list[int]:
        """Return the places of the numbers along known directions, among all of a row."""
        seen = {name: np.zeros(size) for name, size in self.sizes if name not in self.words}
        marked = {name: x + name.startswith(MATCHED) for name, x in seen.items()}
        return np.flatnonzero(self._row(marked) - self._row(seen)).tolist()

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
