r"""A length scale for kernels on scaled inputs, from public numbers or from released ones.

The estimators scale their inputs to [-1, 1]. Their default length scale is 0.7 sqrt(d), which is 0.86
times sqrt(2 d / 3), the typical distance between two rows that are spread evenly over the box. If
released numbers show that the columns are spread differently, the same share of the resulting distance
is a better guess.
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
    """Return the default of the estimators for d columns: 0.7 sqrt(d) on the box [-1, 1]^d.

    Parameters
    ----------
    n_columns : int
        The number d.

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

    This is post-processing of what the transformer released, so it costs nothing.

    Parameters
    ----------
    model : PrivateStandardScaler or PrivatePCA
        A transformer that was fitted to the columns of the estimator. For a PCA, the spread of the
        columns is computed from its components, so it should keep all of them. A PCA scales columns by
        its own bounds, so ``bounds`` must be the same.
    bounds : (low, high)
        The bounds of the estimator.
    per_column : bool
        Whether to return one length per column, in proportion to its spread, instead of one for all.
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
