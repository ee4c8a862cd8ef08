"""Sums of folds: which row goes where, and the sensitivity of all of them together."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle

import numpy as np
import pytest

from dpkernel import Budget, Ledger, Neighbours, SeededNoise
from dpkernel.foundations.errors import DataError, LedgerError, NoiseError
from dpkernel.privacy.folds import GramFolds, fold_of, fold_sizes
from dpkernel.privacy.noise import Part, Plan
from dpkernel.privacy.statistics import GramLayout

REPLACE, ZERO = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT
BUDGET = Budget(1.0, 1e-6)


def layout_of(neighbours=REPLACE, n_features=3, row=256):
    return GramLayout(n_features, 1, 1.0, row, int(row * 0.7), row // 2, neighbours)


@pytest.fixture
def records(rng):
    return rng.normal(size=(50, 3)), rng.uniform(-1, 1, (50, 1))


def sums(statistics):
    """Return the un-noised sums, which only a test reads, one a fold."""
    side = statistics.layout.side
    return np.array(
        [
            np.frombuffer(data, dtype=np.int64).reshape(side, side)
            for _, data, _ in statistics._pack()
        ]
    )


def expected(layout, features, targets, folds):
    """Return the sums by the rule itself, row by row."""
    out = np.zeros((folds, layout.side, layout.side), dtype=np.int64)
    for position, v in enumerate(layout.quantise(features, targets).astype(np.int64)):
        out[position % folds] += np.outer(v, v)
    return out


def test_positions_go_round():
    assert [fold_of(i, 3) for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    for rows, folds in itertools.product(range(12), range(1, 6)):
        sizes = [sum(fold_of(i, folds) == k for i in range(rows)) for k in range(folds)]
        assert fold_sizes(rows, folds) == sizes


@pytest.mark.parametrize("folds", [1, 2, 3, 7])
@pytest.mark.parametrize("block", [1, 2, 5, 13, 50])
def test_blocks_do_not_change_the_fold_of_a_row(records, folds, block):
    features, targets = records
    layout = layout_of()
    starts = range(0, 50, block)
    whole = GramFolds(layout, folds)
    parts = [GramFolds(layout, folds) for _ in starts]
    for part, start in zip(parts, starts, strict=True):
        rows = slice(start, start + block)
        whole.update(features[rows], targets[rows])
        part.update(features[rows], targets[rows])
    np.testing.assert_array_equal(sums(whole), expected(layout, *records, folds))
    while len(parts) > 1:  # merged as a tree, neighbours first
        pairs = [parts[i : i + 2] for i in range(0, len(parts), 2)]
        parts = [pair[0].merge(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    np.testing.assert_array_equal(sums(parts[0]), sums(whole))
    again = GramFolds._unpack(whole._pack())
    np.testing.assert_array_equal(sums(again.update(*records)), sums(whole.update(*records)))


def test_sums_of_another_library_take_their_place(records):
    layout = layout_of()
    statistics = GramFolds(layout, 3).update(records[0][:7], records[1][:7])
    statistics._add_sums(list(expected(layout, records[0][7:20], records[1][7:20], 3)), rows=13)
    statistics.update(records[0][20:], records[1][20:])
    np.testing.assert_array_equal(sums(statistics), expected(layout, *records, 3))


def test_the_declared_number_of_rows_counts_all_folds(records):
    """Each fold has room for n_max rows by itself; all of them together do not."""
    layout = dataclasses.replace(layout_of(), n_max=50)
    full = GramFolds(layout, 3).update(*records)
    one = records[0][:1], records[1][:1]
    for attempt in (
        lambda: full.update(*one),
        lambda: GramFolds(layout, 3).update(*records).merge(GramFolds(layout, 3).update(*one)),
        lambda: GramFolds(layout, 3)._add_sums(list(sums(full)), rows=51),
    ):
        with pytest.raises(DataError, match="at most 50 rows"):
            attempt()


def distance(a, b):
    """Return the Frobenius distance of stacked integer sums, squared, without rounding."""
    return sum(int(v) ** 2 for v in (a - b).ravel())


@pytest.mark.parametrize("folds", [1, 2, 4])
def test_neighbours_never_differ_by_more_than_the_sensitivity(rng, folds):
    """Brute force over records at the corners of the ball and positions; the bound is reached."""
    layout = layout_of()
    corners = [
        np.array(v, dtype=float) for v in ((1, 0, 0), (-1, 0, 0), (0, 1, 0), (9, 9, 9), (0, 0, 0))
    ]
    worst = 0
    for position, a, b in itertools.product(range(5), corners, corners):
        features, targets = rng.normal(size=(5, 3)), rng.uniform(-1, 1, (5, 1))
        other = features.copy(), targets.copy()
        features[position], targets[position] = a, 1.0
        other[0][position], other[1][position] = b, -1.0
        pair = [GramFolds(layout, folds).update(*data) for data in ((features, targets), other)]
        worst = max(worst, distance(*(sums(p) for p in pair)))
    assert worst <= layout.sensitivity.value**2
    assert worst > 0.8 * layout.sensitivity.value**2
    blank = layout_of(ZERO)
    (record,) = blank.quantise(np.array([[1.0, 0, 0]]), np.ones((1, 1))).astype(np.int64)
    change = np.outer(record, record)  # what a blanked row no longer gives to its fold
    assert 0.99 * blank.sensitivity.value**2 < distance(change, 0 * change)
    assert distance(change, 0 * change) <= blank.sensitivity.value**2


def test_a_removed_row_moves_more_than_the_sensitivity(records):
    """Why add-remove is refused: all later rows change their folds."""
    layout = layout_of()
    whole = GramFolds(layout, 2).update(*records)
    less = GramFolds(layout, 2).update(records[0][1:], records[1][1:])
    assert distance(sums(whole), sums(less)) > 4 * layout.sensitivity.value**2


def test_each_fold_is_drawn_once_for_one_profile(records):
    layout = layout_of()
    mechanism = layout.mechanism(BUDGET)
    statistics = GramFolds(layout, 3).update(*records)
    ledger = Ledger(budget=BUDGET)
    noise = ledger.spend(
        Plan((Part("gram", mechanism.profile(), folds=3),)), "x", noise=SeededNoise(0)
    )
    grams = statistics.release(mechanism, noise)
    assert ledger.spent.epsilon <= 1.0
    errors = [
        gram.matrix / np.outer(layout.units, layout.units) - exact
        for gram, exact in zip(grams, sums(statistics), strict=True)
    ]
    for error, other in itertools.pairwise(errors):
        assert not np.any(np.isclose(error, other))  # independent noise
        assert 0.2 < np.std(error) / mechanism.sigma < 2
    with pytest.raises(NoiseError, match="drawn already"):
        statistics.release(mechanism, noise)
    single = Ledger().spend(mechanism.profile(), "x", noise=SeededNoise(0))
    with pytest.raises(NoiseError, match="drawn already"):
        statistics.release(mechanism, single)


def test_un_noised_folds_stay_inside(records):
    statistics = GramFolds(layout_of(), 2).update(*records)
    assert repr(statistics) == "<2 fold(s) of <GramSum of 5 coordinates; the sum is not shown>>"
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(LedgerError, match="can't be pickled or copied"):
            attempt(statistics)
    for other in (statistics, GramFolds(layout_of(), 3)):
        with pytest.raises(DataError, match="the same number of folds"):
            statistics.merge(other)
    with pytest.raises(DataError, match="the same layout"):
        statistics.merge(GramFolds(layout_of(row=128), 2))
