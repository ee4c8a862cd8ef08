"""Statistics gathered in pieces give the model of the whole table, and leave only with noise."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from dpkernel import Budget, GramStatistics, Ledger, PrivateKernelRidge, SeededNoise
from dpkernel.foundations.errors import DataError, LedgerError, ParameterError


@pytest.fixture
def data(rng):
    X = rng.uniform(-1, 1, (900, 3))
    return X, np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] * X[:, 2]])


def build(**options):
    return PrivateKernelRidge(
        **{"bounds": (-1, 1), "y_bounds": (-2, 2), "noise": SeededNoise(1), **options}
    )


@pytest.mark.parametrize("column", [0, None])
def test_pieces_give_the_model_of_the_whole_table(data, column):
    X, y = data[0], data[1] if column is None else data[1][:, column]
    targets = 2 if column is None else None
    pieces = [GramStatistics(build(), 900, 3, targets) for _ in range(3)]
    for piece, rows in zip(pieces, (slice(0, 100), slice(100, 101), slice(101, 900)), strict=True):
        piece.update(X[rows], y[rows])
    found = pieces[2].merge(pieces[0]).merge(pieces[1]).release()
    whole = build().fit(X, y)
    np.testing.assert_array_equal(found.predict(X[:9]), whole.predict(X[:9]))
    assert found.certificate_.verify() == whole.certificate_.verify()
    assert found.n_features_in_ == 3


def test_a_release_is_one_spend_in_the_given_ledger(data):
    X, y = data[0], data[1][:, 0]
    ledger = Ledger(budget=Budget(1.5, 1e-6))
    statistics = GramStatistics(build(noise=None), 900, 3).update(X, y)
    assert statistics.release(ledger).certificate_.private
    assert len(ledger.spends) == 1
    with pytest.raises(DataError, match="released or merged"):
        statistics.release(ledger)


def test_rows_that_are_missing_or_too_many_spend_nothing(data):
    X, y = data[0], data[1][:, 0]
    ledger = Ledger()
    with pytest.raises(DataError, match="declared number of rows"):
        GramStatistics(build(ledger=ledger), 900, 3).update(X[:899], y[:899]).release()
    with pytest.raises(DataError, match="at most 900 rows"):
        GramStatistics(build(ledger=ledger), 900, 3).update(X, y).update(X[:1], y[:1])
    for bad_X, bad_y in ((X[:, :2], y), (X, data[1]), (X * np.nan, y), (X, y[:-1])):
        with pytest.raises(DataError):
            GramStatistics(build(ledger=ledger), 900, 3).update(bad_X, bad_y)
    assert not ledger.spends


def test_only_like_statistics_merge_and_only_once(data):
    X, y = data[0], data[1][:, 0]
    one = GramStatistics(build(), 900, 3).update(X[:9], y[:9])
    other = GramStatistics(build(length_scale=0.3), 900, 3)
    with pytest.raises(DataError, match="same model"):
        one.merge(other)
    with pytest.raises(DataError, match="same model"):
        one.merge(one)
    two = GramStatistics(build(), 900, 3).update(X[9:], y[9:])
    one.merge(two)
    with pytest.raises(DataError, match="released or merged"):
        one.merge(two)


def test_sums_are_not_shown(data):
    statistics = GramStatistics(build(), 900, 3).update(data[0], data[1][:, 0])
    assert "sums are not shown" in repr(statistics)
    for way in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(LedgerError, match="Un-noised"):
            way(statistics)


@pytest.mark.parametrize(
    "arguments",
    [
        (build(folds=2), 10, 3),
        ("model", 10, 3),
        (build(), 0, 3),
        (build(), 10, 1.5),
        (build(), 9, 3, 0),
    ],
)
def test_bad_arguments(arguments):
    with pytest.raises(ParameterError, match="GramStatistics"):
        GramStatistics(*arguments)


def test_that_no_row_is_added_twice_is_an_assumption_that_the_certificate_names(rng):
    X, y = rng.uniform(-1, 1, (20, 2)), rng.uniform(-1, 1, 20)
    model = PrivateKernelRidge(10.0, bounds=(-1, 1), y_bounds=(-1, 1))
    certificate = GramStatistics(model, 20, 2).update(X, y).release().certificate_
    assert certificate.assumptions == ("each-row-once",) and "each-row-once" in str(certificate)
    certificate.verify()
    assert model.fit(X, y).certificate_.assumptions == ()
