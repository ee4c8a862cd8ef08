"""The one pass of a ridge over a table in which a unit, such as a person, has several rows.

``sources.open_units`` finds the units and the share of each row in its unit.
"""

from __future__ import annotations

from dpkernel.data.domain import Domain, Interval
from dpkernel.data.passes import Passes
from dpkernel.data.sources import Source
from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.models.features import FeatureMap
from dpkernel.privacy.unit_statistics import UnitGramLayout, UnitGramSum


def unit_layout(
    owner: str,
    features: FeatureMap,
    domain: Domain,
    n_targets: int,
    relation: Neighbours,
    n_units: int,
) -> UnitGramLayout:
    """Return the layout for this many units, or raise if no rounding bound is proved."""
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
    """Return the sum over rows, each weighted by its share of a unit, in double precision.

    There is no progress bar, because it would count rows, whose number is private.
    """
    target = domain.target
    assert isinstance(target, Interval)
    statistics = UnitGramSum(layout)
    for X, y, shares in Passes(source).blocks():
        targets = target.to_unit(y.reshape(len(y), -1))
        statistics.update(features.transform_block(domain.of_positions.to_unit(X)), targets, shares)
    return statistics
