"""Tables whose unit is a person with several rows: ``fit(X, y, groups=ids)``.

Neighbours replace one unit, all its rows and their number. The number of units is public; the number
of rows is not: no size, text, log line or choice of arithmetic below depends on it. Time and memory
do: no guarantee of this library speaks of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dpkernel.data.blocks import BlockStream, dense_rows, library_of, rows_a_block
from dpkernel.data.cells import shape_of, units
from dpkernel.data.domain import Domain, Interval
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.estimators.sources import Source, open_source
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.foundations.types import Array, Neighbours
from dpkernel.models.features import FeatureMap
from dpkernel.privacy.unit_statistics import UnitGramLayout, UnitGramSum


def open_units(estimator: PrivateEstimator, X: Any, y: Any, groups: Any) -> Source:
    """Return the table with every row's share of its unit; ``n_rows`` is the number of units."""
    if isinstance(X, BlockStream) or library_of(X) in ("dask", "torch"):
        raise ParameterError(
            "The 'groups' argument needs X as one table in memory: a NumPy array, a data frame or a"
            " SciPy sparse matrix. In streams, Dask tables and tensors a unit's rows could lie in"
            " several blocks."
        )
    # compared here, as scikit-learn's texts about shapes quote numbers of rows
    shapes = [shape_of(X), shape_of(y), (len(groups),) if _one_dimension(groups) else ()]
    if [len(shape) for shape in shapes] not in ([2, 1, 1], [2, 2, 1]):
        raise DataError(
            "With groups, X must have two dimensions, y one or two, and groups one: an id a row."
        )
    if 0 in shapes[0][1:] or 0 in shapes[1][1:]:
        raise DataError("X and y must have at least one column.")
    if len({shape[0] for shape in shapes}) != 1:
        raise DataError("X, y and groups must have the same number of rows.")
    shares, n_units = unit_shares(groups)
    return replace(open_source(estimator, X, y), n_rows=n_units, shares=shares)


def unit_shares(groups: Any) -> tuple[Array, int]:
    """Return 1 / (rows of its unit) for every row, and the number of units.

    Ids are numbers, texts, dates or tuples of them, compared by ``cells.identity``; rows of a unit
    need not be neighbours.
    """
    places, n_units = units(groups)
    counts = np.bincount(places, minlength=n_units)
    return 1.0 / counts[places], n_units


def unit_layout(
    owner: str,
    features: FeatureMap,
    domain: Domain,
    n_targets: int,
    relation: Neighbours,
    n_units: int,
) -> UnitGramLayout:
    """Return the layout for this many units, or raise where no rounding bound is proved."""
    error = features.evaluation_error()
    if domain.columns is None:
        raise ParameterError(
            f"{owner} with groups needs 'bounds', the publicly known range of the columns, for example"
            " bounds=(0, 100): the rounding of features is bounded on a box only."
        )
    if error is None:
        raise ParameterError(
            f"{owner} with groups needs features whose rounding error is bounded, and those of"
            f" {type(features).__name__} with this kernel are not. Use features='fourier', or 'eigen'"
            " with the Gaussian or Laplace kernel."
        )
    return UnitGramLayout(
        features.n_outputs, n_targets, features.row_norm_bound, relation, n_units, error
    )


def sum_units(
    source: Source, domain: Domain, features: FeatureMap, layout: UnitGramLayout
) -> UnitGramSum:
    """Return the sum over rows, each times its share of a unit, in double precision.

    There is no progress bar: it would count rows.
    """
    target = domain.target
    assert isinstance(target, Interval)
    statistics = UnitGramSum(layout)
    step = rows_a_block(source.n_columns)
    for start in range(0, len(source.y), step):
        rows = slice(start, start + step)
        inputs = domain.to_unit(dense_rows(source.X, rows))
        targets = target.to_unit(source.y[rows].reshape(len(inputs), -1))
        statistics.update(features.transform_block(inputs), targets, source.shares[rows])
    return statistics


def _one_dimension(groups: Any) -> bool:
    """Whether groups are one id per row; a list of tuples is."""
    if isinstance(groups, (list, tuple)):
        return not any(isinstance(value, (list, np.ndarray)) for value in groups)
    sized = hasattr(groups, "__len__") and not isinstance(groups, (str, bytes))
    return sized and len(getattr(groups, "shape", (0,))) == 1
