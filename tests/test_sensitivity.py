"""Sensitivity formulas: never exceeded by brute force, attained, and rounded up."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from dpkernel.foundations.errors import CertificateError, ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.privacy.mechanisms import Gaussian, SymmetricGaussian
from dpkernel.privacy.sensitivity import (
    augmented_gram,
    bounded_sum,
    histogram,
    loss_gradient,
    sensitivity_from_dict,
)

RELATIONS = tuple(Neighbours)
REPLACE, OTHERS = Neighbours.REPLACE_ONE, [r for r in RELATIONS if r is not Neighbours.REPLACE_ONE]


def tables(values, size, relation):
    """Yield every pair of neighbouring lists of records."""
    for records in itertools.product(values, repeat=size):
        if relation is REPLACE:
            yield from ((records, (*records[:-1], value)) for value in values)
        else:
            yield records, records[:-1]


@pytest.mark.parametrize("relation", RELATIONS)
def test_counts_in_cells(relation):
    worst = max(
        float(np.linalg.norm(np.bincount(one, minlength=4) - np.bincount(two, minlength=4)))
        for one, two in tables(range(4), 3, relation)
    )
    assert worst <= histogram(relation).value
    assert histogram(relation).value == pytest.approx(worst)
    if relation is REPLACE:
        assert Fraction(histogram(relation).value) ** 2 >= 2


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("bound", [1, 7, 2**20])
def test_sums_of_bounded_numbers(relation, bound):
    values = (-bound, -bound // 2, 0, bound)
    worst = max(abs(sum(one) - sum(two)) for one, two in tables(values, 3, relation))
    assert worst == bounded_sum(relation, bound=bound).value


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("slope", [0.1, 1.0])
def test_gradients_of_losses(relation, slope, rng):
    """One record adds a vector of norm <= slope * row."""
    found = loss_gradient(relation, slope=slope, row=0.9).value
    directions = rng.normal(size=(2, 500, 3))
    directions *= slope * 0.9 / np.linalg.norm(directions, axis=2, keepdims=True)
    one, two = directions if relation is REPLACE else (directions[0], 0 * directions[1])
    assert np.linalg.norm(one - two, axis=1).max() <= found * (1 + 1e-15)
    assert found >= (2 if relation is REPLACE else 1) * Fraction(slope) * Fraction(0.9)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    "build", [histogram, lambda r: bounded_sum(r, bound=3.5), lambda r: augmented_gram(r, row=2.0)]
)
def test_json_recomputes_the_value(relation, build):
    data = build(relation).to_dict()
    assert sensitivity_from_dict(data) == build(relation)
    with pytest.raises(CertificateError, match="gives .* but the certificate claims"):
        sensitivity_from_dict({**data, "value": 0.99 * data["value"]})
    other = REPLACE if relation is not REPLACE else OTHERS[0]
    if other is REPLACE:
        with pytest.raises(CertificateError):
            sensitivity_from_dict({**data, "neighbours": other.value})


@pytest.mark.parametrize("relation", RELATIONS)
def test_formulas_round_up(relation, rng):
    """No value is below the exact number that its formula gives for the stored parameters."""
    twice = Fraction(2 if relation is REPLACE else 1)
    for slope, row, target in rng.uniform(0.01, 3.0, size=(200, 3)):
        exact = [Fraction(number) for number in (slope, row, target)]
        gradient = Fraction(loss_gradient(relation, slope=slope, row=row).value)
        assert gradient >= twice * exact[0] * exact[1]
        gram = Fraction(augmented_gram(relation, row=row, target=target, constant=slope).value)
        assert gram**2 >= twice * sum(number**2 for number in exact) ** 2


@pytest.mark.parametrize("bound", [-1.0, math.inf, math.nan, 0.0])
def test_bounds_that_bound_nothing_are_refused(bound):
    with pytest.raises(ParameterError):
        bounded_sum(REPLACE, bound=bound)


@pytest.mark.parametrize("mu", [1e-7, 0.01, 0.3, 5.0, 900.0])
@pytest.mark.parametrize("integer", [False, True])
def test_a_mechanism_for_a_share_of_mu(mu, integer):
    """At most the share that was given, and nearly all of it."""
    for cls, given in ((Gaussian, bounded_sum), (SymmetricGaussian, augmented_gram)):
        options = {"bound": 2**20} if given is bounded_sum else {"row": 2**16}
        found = cls.with_mu(given(REPLACE, **options), mu, dimension=5, integer=integer)
        assert isinstance(found, cls) and found.dimension == 5 and found.integer == integer
        assert mu * (1 - 2e-5) < found.profile().mu <= mu
