"""Gram matrices of units: the sensitivity of whole units and the bound on rounding.

Exact sums are computed with fractions. Neighbours are searched by brute force over the computed sums,
the numbers of rows included.
"""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpkernel.foundations.errors import DataError, LedgerError, ParameterError
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.privacy import unit_statistics
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import SeededNoise
from dpkernel.privacy.sensitivity import (
    Sensitivity,
    augmented_gram,
    sensitivity_from_dict,
    unit_gram,
)
from dpkernel.privacy.unit_statistics import UnitGramLayout, UnitGramSum

REPLACE, ZERO = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT
BUDGET = Budget(1.0, 1e-6)
M, K = 3, 2


def layout_of(n_units, *, row_bound=1.0, neighbours=REPLACE, error=0.0, targets=K, features=M):
    return UnitGramLayout(features, targets, row_bound, neighbours, n_units, error)


def computed(layout, units, order=None, shares=None):
    """Return the computed sum over units, given as (features, targets), their rows in any order."""
    features = np.vstack([z for z, _ in units])
    targets = np.vstack([y for _, y in units])
    if shares is None:
        shares = np.concatenate([np.full(len(z), 1 / len(z)) for z, _ in units])
    order = slice(None) if order is None else order
    found = UnitGramSum(layout).update(features[order], targets[order], shares[order])
    return found._total()


def exact(layout, units):
    """Return S in fractions, for features inside the ball."""
    total = np.full((layout.side, layout.side), Fraction(0))
    bound, target = Fraction(layout.row_bound), layout.target
    for z, y in units:
        for i in range(len(z)):
            v = [Fraction(x) / bound for x in z[i].tolist()]
            v += [Fraction(t) for t in (np.clip(y[i], -1, 1) * target).tolist()]
            v = np.array([*v, Fraction(layout.constant)], dtype=object)
            total += np.outer(v, v) * Fraction(1, len(z))
    return total


def distance(a, b):
    gaps = [Fraction(x) - Fraction(y) for x, y in zip(a.ravel(), b.ravel(), strict=True)]
    return math.sqrt(sum(g * g for g in gaps))


def random_unit(rng, extreme=False):
    n = int(rng.choice([1, 1, 2, 3, 50]))
    z, y = rng.standard_normal((n, M)), rng.uniform(-2, 2, (n, K))
    if extreme:
        z *= rng.choice([1e-310, 1e-160, 1e-3, 1.0, 1e3, 1e140], (n, 1))
        z[rng.random(n) < 0.2] = 0.0
    return z, y


def inside_unit(rng, n, size=0.9):
    z = rng.standard_normal((n, M))
    z *= (size * rng.random((n, 1))) / np.linalg.norm(z, axis=1, keepdims=True)
    return z, rng.uniform(-1.2, 1.2, (n, K))


# --- sensitivity ------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [REPLACE, ZERO])
def test_the_formula_is_that_of_single_records(neighbours):
    values = {"row": 1.0, "target": 0.5, "targets": 2, "constant": 0.5}
    unit, single = unit_gram(neighbours, **values), augmented_gram(neighbours, **values)
    assert (
        unit.value == single.value == pytest.approx((2 if neighbours is ZERO else 8**0.5) * 0.875)
    )
    assert unit != single
    assert sensitivity_from_dict(unit.to_dict()) == unit
    assert layout_of(5, neighbours=neighbours).sensitivity.formula == "unit-gram"
    assert isinstance(unit, Sensitivity)


@pytest.mark.parametrize("neighbours", [REPLACE, ZERO])
@pytest.mark.parametrize("extreme", [False, True])
def test_no_neighbour_is_further_than_sensitivity_and_rounding(neighbours, extreme, rng):
    layout = layout_of(6, row_bound=0.7, neighbours=neighbours)
    most = layout.sensitivity.value + 2 * layout.rounding
    for _ in range(150):
        common = [random_unit(rng, extreme) for _ in range(5)]
        place = int(rng.integers(6))
        first = [*common[:place], random_unit(rng, extreme), *common[place:]]
        second = [*common[:place], random_unit(rng, extreme), *common[place:]]
        if neighbours is ZERO:
            second = common  # the blanked unit contributes nothing
        a = computed(layout, first, rng.permutation(sum(len(z) for z, _ in first)))
        b = computed(layout, second, rng.permutation(sum(len(z) for z, _ in second)))
        assert np.linalg.norm(a - b) <= most


def test_the_sensitivity_is_attained_by_single_and_by_equal_rows():
    """<v, v'> = cosine - target^2 + constant^2 = 0: the features' angle makes up for the rest."""
    layout = layout_of(2, targets=1)
    up = (np.array([[1.0, 0, 0]]), np.array([[1.0]]))
    cosine = layout.target**2 - layout.constant**2
    down = (np.array([[cosine, math.sqrt(1 - cosine**2), 0]]), np.array([[-1.0]]))
    many = (np.repeat(down[0], 7, axis=0), np.repeat(down[1], 7, axis=0))
    other = (np.zeros((3, M)), np.zeros((3, 1)))
    for unit in (down, many):
        gap = np.linalg.norm(computed(layout, [up, other]) - computed(layout, [other, unit]))
        assert gap == pytest.approx(layout.sensitivity.value, rel=1e-12)


def test_without_weights_a_unit_exceeds_the_sensitivity():
    """The broken twin: every row counts in full."""
    layout = layout_of(3)
    quiet, loud = (np.zeros((5, M)), np.zeros((5, K))), (np.eye(M)[[0] * 5], np.ones((5, K)))
    a = computed(layout, [quiet, quiet], shares=np.ones(10))
    b = computed(layout, [quiet, loud], shares=np.ones(10))
    assert np.linalg.norm(a - b) > 2 * (layout.sensitivity.value + 2 * layout.rounding)
    a, b = computed(layout, [quiet, quiet]), computed(layout, [quiet, loud])
    assert np.linalg.norm(a - b) <= layout.sensitivity.value


def test_rows_that_are_not_finite_or_huge_stay_inside(rng):
    layout = layout_of(2)
    quiet = (np.zeros((1, M)), np.zeros((1, K)))
    for entry in (math.nan, math.inf, -math.inf, 1.7e308, 1e200):
        z = rng.standard_normal((4, M))
        z[2, 1] = entry
        loud = (z, np.array([[entry, 1.0]] * 4))
        a, b = computed(layout, [quiet, loud]), computed(layout, [quiet, quiet])
        assert np.linalg.norm(a - b) <= layout.sensitivity.value + 2 * layout.rounding


# --- rounding ---------------------------------------------------------------------------------


@pytest.mark.parametrize("row_bound", [1.0, 0.3, 1e-90, 1e90])
def test_the_computed_sum_is_within_rho_of_the_exact_one(row_bound, rng):
    units = [inside_unit(rng, int(n)) for n in rng.choice([1, 2, 3, 7, 40], 30)]
    units = [(z * row_bound, y) for z, y in units]
    layout = layout_of(len(units), row_bound=row_bound)
    rows = sum(len(z) for z, _ in units)
    truth = exact(layout, units)
    for order in (np.arange(rows), rng.permutation(rows)):
        gap = distance(computed(layout, units, order), truth)
        assert 0 < gap <= layout.rounding
    assert layout.rounding < 1e-9 * layout.sensitivity.value


def test_wrong_features_within_their_error_stay_within_rho(rng):
    """Rows off by ``feature_error``, all to the same side, and in the ball: rho counts them."""
    error = 1e-6
    units = [(np.full((4, M), 0.5), np.ones((4, K))) for _ in range(50)]
    layout = layout_of(50, error=error)
    wrong = [(z + error / math.sqrt(M), y) for z, y in units]
    gap = distance(computed(layout, wrong), exact(layout, units))
    assert 0.5 * error * 50 < gap <= layout.rounding
    assert gap > layout_of(50).rounding  # and without them it would not


def test_very_many_blocks_do_not_add_up_their_errors(monkeypatch):
    """20,000 blocks of one row, all rounded to one side: a plain float64 sum leaves the bound."""
    monkeypatch.setattr(unit_statistics, "BLOCK_ROWS", 1)
    z, y = np.full((20_000, M), 0.1 / 3), np.full((20_000, K), 0.7)
    layout = layout_of(1)
    truth = exact(layout, [(z[:1], y[:1])])
    assert distance(computed(layout, [(z, y)]), truth) <= layout.rounding
    statistics = UnitGramSum(layout).update(z, y, np.full(20_000, 1 / 20_000))
    assert distance(statistics._sum, truth) > layout.rounding


@pytest.mark.parametrize("sizes", [(1e-9, 0.7), (0.7, 1e-9), (0.3, 0.3)])
def test_what_an_addition_of_blocks_loses_is_kept_exactly(sizes, rng):
    statistics = UnitGramSum(layout_of(2))
    blocks = [size * rng.standard_normal((4, statistics.layout.side)) for size in sizes]
    for block in blocks:
        statistics._add(block)
    kept = np.vectorize(Fraction)(statistics._sum) + np.vectorize(Fraction)(statistics._rest)
    exact_sum = sum(np.vectorize(Fraction)(block.T @ block) for block in blocks)
    assert (kept == exact_sum).all() and statistics._rest.any()


def test_rho_is_the_sum_of_its_parts():
    """The bound of the module's docstring, in fractions: records, products, additions of blocks."""
    layout = layout_of(1000, row_bound=2.0, error=1e-10)
    u, blocks = Fraction(1, 2**53), 2**28

    def gamma(k):
        return k * u / (1 - k * u)

    N = Fraction(math.sqrt(1 + K * layout.target**2 + layout.constant**2))
    E = Fraction(1e-10) / 2 + gamma(M + 6) * N
    rho = 1000 * (2 * N * E + E**2 + (gamma(4096) + u + gamma(blocks) ** 2) * (N + E) ** 2)
    assert 1.001 * rho < layout.rounding < 1.02 * rho
    assert blocks == unit_statistics.MOST_BLOCKS


def test_rho_grows_with_units_and_is_counted_by_the_mechanism():
    small, large = layout_of(1000, error=1e-12), layout_of(100_000, error=1e-12)
    assert large.rounding == pytest.approx(100 * small.rounding)
    mechanism = large.mechanism(BUDGET)
    assert mechanism.rounding == large.rounding and not mechanism.integer
    worse = replace(large, feature_error=1e-8).mechanism(BUDGET)
    share = worse.noise_scale / mechanism.noise_scale
    assert share == pytest.approx(1 + 2 * worse.rounding / worse.sensitivity.value, rel=1e-3)
    assert share > 1.001


# --- layout, release, refusals ------------------------------------------------------------------


BAD = {
    "no features": ({"n_features": 0}, "'n_features' parameter .* an int from 1"),
    "no units": ({"n_units": 0}, "'n_units' parameter"),
    "half a target": ({"n_targets": 0.5}, "'n_targets' parameter"),
    "bound": ({"row_bound": math.nan}, "'row_bound' parameter"),
    "error": ({"feature_error": -1.0}, "'feature_error' parameter"),
    "error unknown": ({"feature_error": math.inf}, "'feature_error' parameter"),
    "too large": ({"feature_error": 1e-3}, "below 0.05 of the sensitivity.*'fourier' or 'eigen'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_layouts_are_refused(case):
    change, message = BAD[case]
    with pytest.raises(ParameterError, match=message):
        replace(layout_of(1000), **change)


def test_the_release_reads_in_natural_units(rng):
    units = [inside_unit(rng, n) for n in (1, 4, 2)]
    units = [(3.0 * z, y) for z, y in units]
    layout = layout_of(3, row_bound=3.0)
    statistics = UnitGramSum(layout)
    for z, y in units:
        statistics.update(z, y, np.full(len(z), 1 / len(z)))
    mechanism = layout.mechanism(Budget(1e20, 1e-6))
    noise = Ledger().spend(mechanism.profile(), "units", noise=SeededNoise(0))
    gram = statistics.release(mechanism, noise)
    y = [np.clip(y, -1, 1) for _, y in units]
    z = [z for z, _ in units]
    mean = lambda a, b: sum(p.T @ q / len(p) for p, q in zip(a, b, strict=True))  # noqa: E731
    ones = [np.ones((len(p), 1)) for p in z]
    most = 8 * mechanism.noise_scale * layout.units.max() ** 2
    assert most < 0.01
    np.testing.assert_allclose(gram.features, mean(z, z), atol=most)
    np.testing.assert_allclose(gram.cross, mean(z, y), atol=most)
    np.testing.assert_allclose(gram.targets, mean(y, y), atol=most)
    np.testing.assert_allclose(gram.feature_sum, mean(z, ones)[:, 0], atol=most)
    np.testing.assert_allclose(gram.target_sum, mean(y, ones)[:, 0], atol=most)
    assert gram.count == pytest.approx(3, abs=most)


def test_another_mechanism_is_refused():
    layout = layout_of(10, error=1e-9)
    statistics = UnitGramSum(layout)
    for other in (layout_of(10), layout_of(10, neighbours=ZERO, error=1e-9)):
        mechanism = other.mechanism(BUDGET)
        ledger = Ledger(neighbours=mechanism.sensitivity.neighbours)
        noise = ledger.spend(mechanism.profile(), "units", noise=SeededNoise(0))
        with pytest.raises(LedgerError, match="sensitivity and rounding"):
            statistics.release(mechanism, noise)


def test_the_sum_is_guarded():
    statistics = UnitGramSum(layout_of(10))
    assert "not shown" in repr(statistics)
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(LedgerError, match="can't be pickled"):
            leak(statistics)


def test_updates_are_checked(monkeypatch):
    statistics = UnitGramSum(layout_of(10))
    z, y = np.zeros((4, M)), np.zeros((4, K))
    for share in (0.0, -1.0, 1.5, math.nan):
        with pytest.raises(DataError, match="in the range"):
            statistics.update(z, y, np.full(4, share))
    for bad in ((z[:, :1], y, np.ones(4)), (z, y[:3], np.ones(4)), (z, y, np.ones(3))):
        with pytest.raises(DataError, match="3 feature.*2 target.*one share"):
            statistics.update(*bad)
    monkeypatch.setattr(unit_statistics, "MOST_BLOCKS", 1)
    statistics.update(z, y, np.ones(4))
    with pytest.raises(DataError, match="more blocks of rows"):
        statistics.update(z, y, np.ones(4))
