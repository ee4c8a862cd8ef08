r"""A length scale for kernels on scaled inputs, from public numbers or from released ones.

The estimators scale their inputs to [-1, 1] and take 0.7 sqrt(d) by default: 0.86 of the distance at
which two rows spread evenly over the box lie in the mean, sqrt(2 d / 3). If released numbers say that
columns spread otherwise, the same share of the distance that they give is the better guess.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dpkernel.data.domain import Domain
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, is_whole
from dpkernel.preprocessing.pca import PrivatePCA
from dpkernel.preprocessing.scaler import PrivateStandardScaler

_SHARE = 0.7 / math.sqrt(2 / 3)


def public_length_scale(n_columns: int) -> float:
    """Return the default of the estimators for so many columns: 0.7 sqrt(d) on the box [-1, 1]^d.

    Examples
    --------
    >>> round(public_length_scale(9), 12)
    2.1
    """
    if not is_whole(n_columns) or n_columns < 1:
        allowed = "an int >= 1"
        raise ParameterError(
            parameter_message("public_length_scale", "n_columns", allowed, n_columns)
        )
    return 0.7 * math.sqrt(n_columns)


def released_length_scale(
    model: PrivateStandardScaler | PrivatePCA, bounds: Any, *, per_column: bool = False
) -> Any:
    """Return ``length_scale`` for an estimator with these bounds, from a fitted scaler or PCA.

    Post-processing of what the transformer released: it costs nothing.

    Parameters
    ----------
    model : PrivateStandardScaler or PrivatePCA
        Fitted to the columns that the estimator is going to see. Of a PCA the spread of the columns is
        read off its components, so it should keep them all; it knows columns scaled by its own bounds,
        and ``bounds`` must be those.
    bounds : (low, high)
        Those of the estimator.
    per_column : bool
        One length a column, in proportion to its spread, in place of one for all.
    """
    spreads = _unit_spreads(model, bounds)
    if per_column:
        return _SHARE * math.sqrt(2 * len(spreads)) * spreads
    return float(_SHARE * math.sqrt(2 * float(np.sum(spreads**2))))


def _unit_spreads(model: Any, bounds: Any) -> Array:
    """Return the standard deviation of each column scaled to [-1, 1], between 1/100 and 1."""
    if isinstance(model, PrivatePCA):
        spreads = np.sqrt(model.explained_variance_ @ model.components_**2)
    else:
        low, high = (np.asarray(end, dtype=np.float64) for end in bounds)
        box = Domain.box(low, high, n_columns=len(model.scale_))
        half = np.array([column.half_width for column in box.columns or ()])  # type: ignore[union-attr]
        spreads = model.scale_ / half
    return np.asarray(np.clip(spreads, 0.01, 1.0))
