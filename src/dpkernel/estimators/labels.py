"""Class labels: declared by the user, matched to the data, and never read from it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dpkernel.domain import Domain, Levels
from dpkernel.errors import DataError, ParameterError, parameter_message
from dpkernel.tables import MISSING
from dpkernel.types import Array


def declared_classes(classes: Any, owner: str) -> Levels:
    """Return the declared classes, sorted where they can be compared."""
    if classes is None or isinstance(classes, str) or not hasattr(classes, "__len__"):
        raise ParameterError(
            f"{owner} needs 'classes', every label that can occur, for example classes=['no', 'yes']."
            " They are never read from the data: that would leak."
        )
    values = [_plain(value) for value in classes]
    if not all(_is_name(value) for value in values):
        allowed = "texts, finite numbers, truth values, or tuples of them"
        raise ParameterError(parameter_message(owner, "classes", allowed, type(classes).__name__))
    if len(values) < 2 or len(set(values)) < len(values):
        count = f"{len(values)} class" if len(values) == 1 else f"{len(values)} classes"
        raise ParameterError(
            f"The 'classes' parameter of {owner} must be two or more different labels. Got {count},"
            f" {len(set(values))} of them different."
        )
    try:
        return Levels(tuple(sorted(values)))
    except TypeError:  # of several types
        return Levels(tuple(values))


def classes_of(classes: Any, bounds: Any, owner: str) -> Levels:
    """Return the declared classes: those of the parameter, or of a domain in ``bounds``."""
    if classes is None and isinstance(bounds, Domain):
        target = bounds.target
        classes = target.values if isinstance(target, Levels) else None
    return declared_classes(classes, owner)


def label_codes(y: Any, classes: Levels) -> Array:
    """Return each label's place among the classes as a float, in the shape of y."""
    if issparse(y):
        raise DataError("y must be a dense array, not a sparse one.")
    labels = _as_array(y)
    values = labels.ravel()
    try:
        codes = classes.indices(values)
    except TypeError:  # an entry that can't be hashed is no label
        codes = np.full(len(values), -1)
    unknown = codes < 0
    if unknown.any():
        if any(_is_missing(value) for value in values[unknown].tolist()):
            raise DataError(MISSING)
        raise DataError(
            "Unknown label type: y holds a label that is not among the declared 'classes'. Declare"
            " every class that can occur: they are public and never read from the data. For a"
            " continuous target take a regressor."
        )
    return codes.astype(np.float64).reshape(labels.shape)


def as_labels(levels: Levels) -> Any:
    """Return an array whose entries are the labels themselves."""
    found = np.empty(len(levels.values), dtype=object)
    for place, value in enumerate(levels.values):
        found[place] = value
    kinds = {type(value) for value in levels.values}
    plain = np.array(found.tolist()) if len(kinds) == 1 and tuple not in kinds else found
    return plain if plain.tolist() == found.tolist() else found


def _as_array(y: Any) -> Any:
    """Return y as an array of labels; a list keeps their types, and tuples stay whole."""
    entries = isinstance(y, (list, tuple))
    if not entries or any(isinstance(value, (list, np.ndarray)) for value in y):
        return np.asarray(y)
    found = np.empty(len(y), dtype=object)
    for place, value in enumerate(y):
        found[place] = value
    return found


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _is_name(value: Any) -> bool:
    """Whether a certificate can write the label down and read it back."""
    if isinstance(value, tuple):
        return all(_is_name(part) for part in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (str, int, bool))


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value) or abs(value) == math.inf
    except (TypeError, ValueError):  # a text; or pandas' NA, which does not know whether it differs
        return type(value).__name__ in ("NAType", "NaTType")
