"""Class labels: declared by the user, matched to the data, and never read from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernel.data.cells import is_missing, key, untouched
from dpkernel.data.domain import Domain, Levels
from dpkernel.data.tables import MISSING
from dpkernel.foundations.errors import DataError, ParameterError, parameter_message
from dpkernel.foundations.types import Array

_ROUNDING = (
    2.0**-40
)  # of a sum of shares; sums of class means are clipped to 1 - 2^-30 of their bound


@dataclass(frozen=True)
class LabelShares:
    """The labels of records that may have several: one column per declared class with its share.

    The shares of a record are in [0, 1] and add up to at most 1. All sensitivities rest on this.
    """

    values: Any

    def __post_init__(self) -> None:
        shares = self.values
        fine = len(shares.shape) == 2 and bool(((shares >= 0) & (shares <= 1)).all())
        if not fine or not bool((shares.sum(1) <= 1 + _ROUNDING).all()):
            raise DataError(
                "Shares of labels must be a table with a column per class, whose rows hold numbers of at"
                " least 0 that add up to at most 1."
            )


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
    different = len({key(value) for value in values})
    if len(values) < 2 or different < len(values):
        count = f"{len(values)} class" if len(values) == 1 else f"{len(values)} classes"
        raise ParameterError(
            f"The 'classes' parameter of {owner} must be two or more different labels. Got {count},"
            f" {different} of them different."
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
    codes = classes.indices(y)
    if (codes < 0).any():
        if any(_is_missing(label) for label in np.asarray(untouched(y, whole=True))[codes < 0]):
            raise DataError(MISSING)
        raise DataError(
            "Unknown label type: y holds a label that is not among the declared 'classes'. Declare"
            " every class that can occur: they are public and never read from the data. For a"
            " continuous target take a regressor."
        )
    return codes.astype(np.float64)


def as_labels(levels: Levels) -> Any:
    """Return an array whose entries are the labels themselves."""
    found = np.empty(len(levels.values), dtype=object)
    for place, value in enumerate(levels.values):
        found[place] = value
    kinds = {type(value) for value in levels.values}
    plain = np.array(found.tolist()) if len(kinds) == 1 and tuple not in kinds else found
    return plain if plain.tolist() == found.tolist() else found


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _is_name(value: Any) -> bool:
    """Whether a certificate can write the label down and read it back."""
    if isinstance(value, tuple):
        return all(_is_name(part) for part in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, (str, int, bool))


def _is_missing(label: Any) -> bool:
    return is_missing(label) or (isinstance(label, (float, np.floating)) and bool(np.isinf(label)))
