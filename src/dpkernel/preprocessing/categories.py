"""Encode columns of declared levels as numbers. Nothing is learned, so nothing is spent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dpkernel.data.cells import as_numbers
from dpkernel.data.domain import Levels, tupled
from dpkernel.data.tables import Columns, check_columns
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.foundations.types import JSON, Array
from dpkernel.preprocessing.rows import refuse_stream


class DeclaredCategories(TransformerMixin, BaseEstimator):
    """Encode each declared level as a column of zeros and ones, and all other values as one more.

    The levels of a column are public, such as the possible answers of a form or the codes of a
    standard. scikit-learn's encoders read them from the data, which reveals whether anybody has a
    rare one. A value that was not declared, or that is missing, counts as "other". No message
    repeats it.

    Parameters
    ----------
    levels : list of lists, or dict
        A list has the levels of each column in the order of the columns, or None for a column that is
        passed on as it is. A dict has the levels of named columns of a data frame; columns that it does
        not name are passed on as they are.
    other : bool
        Whether there is a column for all other values. Without it, their row is all zeros.

    Attributes
    ----------
    n_features_in_, feature_names_in_
        The number and the names of the columns.

    Notes
    -----
    Guarantee
        ``fit`` learns nothing from the data, so there is no release and no certificate. ``transform``
        returns rows, which are as secret as those that go in.

    Examples
    --------
    >>> from dpkernel.preprocessing import DeclaredCategories
    >>> DeclaredCategories([["a", "b"], None]).fit_transform([["b", 1.5], ["x", 2.0]])
    array([[0. , 1. , 0. , 1.5],
           [0. , 0. , 1. , 2. ]])
    """

    def __init__(self, levels: Any = None, *, other: bool = True) -> None:
        self.levels = levels
        self.other = other

    def fit(self, X: Any, y: Any = None) -> DeclaredCategories:
        """Compare the declared levels with the number and names of columns."""
        refuse_stream(type(self).__name__, X)
        check_columns(self, X)
        self._levels = self._resolved(self.n_features_in_)
        return self

    def transform(self, X: Any) -> Array:
        """Return one column of 0 and 1 per level, then "other". Columns without levels become floats."""
        check_is_fitted(self)
        refuse_stream(type(self).__name__, X)
        columns = check_columns(self, X, reset=False)
        return np.hstack([self._encoded(column, j) for j, column in enumerate(columns)])

    def _encoded(self, values: Any, j: int) -> Array:
        declared = self._levels[j]
        if declared is None:
            return _as_numbers(values, j)
        place = declared.indices(values)
        known: Array = (place[:, None] == np.arange(len(declared.values))).astype(np.float64)
        return np.column_stack([known, place < 0]).astype(np.float64) if self.other else known

    def _resolved(self, n_columns: int) -> list[Levels | None]:
        """Return the levels of every column, or None for a column that is passed on."""
        owner, given = type(self).__name__, self.levels
        if given is None:
            return [None] * n_columns
        if isinstance(given, dict):
            names = list(getattr(self, "feature_names_in_", ()))
            unknown = [name for name in given if name not in names]
            if unknown:
                raise DataError(
                    f"X has no column named {unknown[0]!r}, for which levels are declared."
                )
            given = [given.get(name) for name in names]
        if isinstance(given, str) or len(given) != n_columns:
            raise ParameterError(
                f"The 'levels' parameter of {owner} must be a list of {n_columns} lists, one per column"
                " of X, with None for a column of numbers."
            )
        return [None if one is None else _as_levels(one, owner) for one in given]

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return "column_level", and "column_other"."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        if input_features is not None:
            if names is not None and list(input_features) != list(names):
                raise ValueError("input_features is not equal to feature_names_in_")
            if len(input_features) != self.n_features_in_:
                raise ValueError(
                    "input_features should have length equal to number of features"
                    f" ({self.n_features_in_}), got {len(input_features)}"
                )
            names = input_features
        if names is None:
            names = [f"x{j}" for j in range(self.n_features_in_)]
        out: list[str] = []
        for name, declared in zip(names, self._levels, strict=True):
            if declared is None:
                out.append(str(name))
                continue
            out += [f"{name}_{level}" for level in declared.values]
            out += [f"{name}_other"] if self.other else []
        return np.asarray(out, dtype=object)

    def _to_state(self) -> tuple[JSON, dict[str, Array]]:
        """Return the contents of a model file: the declared levels, and no array."""
        check_is_fitted(self)
        for declared in self._levels:
            for value in () if declared is None else declared.values:
                if not _can_be_saved(value):
                    raise ParameterError(
                        "Levels can be saved if they are texts, finite numbers, truth values or tuples"
                        f" of these; one is of class {type(value).__name__}."
                    )
        header: JSON = {
            "levels": [None if one is None else one.to_dict() for one in self._levels],
            "other": bool(self.other),
            "columns": Columns.on(self).to_dict()["columns"],
        }
        return header, {}

    @classmethod
    def _from_state(cls, header: JSON, arrays: dict[str, Array]) -> Self:
        """Return the fitted encoder that ``_to_state`` described."""
        levels = [
            None if one is None else Levels(tuple(tupled(value) for value in one["levels"]))
            for one in header["levels"]
        ]
        declared = [None if one is None else list(one.values) for one in levels]
        model = cls(declared, other=bool(header["other"]))
        Columns.of(len(levels), header["columns"]).set_on(model)
        model._levels = levels
        return model

    def _n_outputs(self, n_columns: int) -> int:
        """Return the number of output columns, from public numbers."""
        return sum(
            1 if one is None else len(one.values) + bool(self.other)
            for one in self._resolved(n_columns)
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.categorical = tags.input_tags.string = True
        tags.transformer_tags.preserves_dtype = []
        return tags


def _can_be_saved(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_can_be_saved(part) for part in value)
    return isinstance(value, (str, bool, int)) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _as_levels(values: Sequence[Any], owner: str) -> Levels:
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise ParameterError(
            f"The 'levels' parameter of {owner} must hold one list of levels per column, or None."
        )
    return Levels(tuple(_plain(value) for value in values))


def _plain(value: Any) -> Any:
    """Return a NumPy number or text as a Python value."""
    return value.item() if isinstance(value, (np.number, np.bool_, np.str_)) else value


def _as_numbers(values: Any, j: int) -> Array:
    try:
        return as_numbers(values)[:, None]
    except DataError:
        pass
    raise DataError(
        f"Column {j} of X holds an entry that is not a number. Declare its levels, or encode the column."
    )
