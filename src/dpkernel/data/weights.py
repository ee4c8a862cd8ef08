"""Weights of records, between 0 and 1: how a table carries them, and what a user may pass.

A weight multiplies what its record contributes to a sum or to a sum of losses. As it is at most 1, a
weighted record contributes no more than a record without a weight, so every sensitivity of this
library still holds; the gradient of a weighted loss keeps its direction. A weight is part of its
record: neighbours may differ in it, too. Nothing divides by the sum of the weights unless that sum
was released with noise.

Weights are multiples of 2^-20, so that sums of up to 2^33 of them are exact in double precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dpkernel.data.cells import as_numbers, shape_of
from dpkernel.data.sources import Source
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.foundations.types import Array, IntArray

_STEPS = 2.0**20
NOT_A_WEIGHT = (
    "sample_weight must be one weight per row, above zero and at most 1: with a larger weight, a row"
    " would count for more than the noise hides. Divide all weights by a public bound on them."
)
PEOPLE_OR_WEIGHTS = (
    "sample_weight is a weight per row, but with groups the rows of a person become one record, and"
    " how many rows a person has is private. Leave out one of the two."
)


def refuse_weights(owner: str, given: Mapping[str, Any], why: str) -> None:
    """Raise for a sample_weight, with the reason, and for any other keyword as Python does."""
    for name, value in given.items():
        if name != "sample_weight":
            raise TypeError(f"{owner} got an unexpected keyword argument {name!r}")
        if value is not None:
            raise ParameterError(f"{owner} takes no sample_weight: {why}")


def with_sample_weight(source: Source, sample_weight: Any) -> Source:
    """Return a table in memory with the weights that a user has passed, or raise before a spend."""
    return with_weights(source, checked_weights(sample_weight, source.n_rows))


def checked_weights(sample_weight: Any, n_rows: int) -> Array:
    """Return weights in (0, 1], rounded down to the grid but never to 0, or raise before a spend."""
    if shape_of(sample_weight) != (n_rows,):
        raise DataError(NOT_A_WEIGHT)
    weights = as_numbers(sample_weight)
    if not bool(np.all((weights > 0) & (weights <= 1))):
        raise DataError(NOT_A_WEIGHT)
    return np.asarray(np.maximum(np.floor(weights * _STEPS), 1.0) / _STEPS)


def with_weights(source: Source, weights: Array) -> Source:
    """Return the table with a weight per record, as the last column of y."""
    y = np.column_stack([source.y.reshape(source.n_rows, -1), weights])
    return replace(source, y=y, weighted=True)


def split_weights(y: Array, several: bool) -> tuple[Array, Array]:
    """Return the targets of a weighted table and the weights of its rows."""
    return y[:, :-1] if several else y[:, 0], y[:, -1]


def weight_column(y: Array, weighted: bool) -> Array:
    """Return y with one column per target and a last column of weights, which are 1 by default."""
    return y if weighted else np.column_stack([y.reshape(len(y), -1), np.ones(len(y))])


def weighted_counts(cells: IntArray, weights: Array, size: int) -> Array:
    """Return the sum of the weights in each of ``size`` cells, without rounding."""
    return np.bincount(cells, weights=weights, minlength=size).astype(np.float64)
