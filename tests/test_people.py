"""People with several rows: every fit protects a whole person, whatever the number of their rows.

The neighbours here exchange a person with all their rows: 1, 2 or 50 of them for 1, or a blank. Every
case of ``test_replay`` is fitted with ``groups``.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import math
import re
from dataclasses import replace
from typing import Any

import dask.array
import dask.dataframe
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import FunctionTransformer

import dpkernel
from cli_tables import inside
from dpkernel import (
    AddRemove,
    BlockStream,
    Budget,
    Certificate,
    Domain,
    Interval,
    Ledger,
    Levels,
    People,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
    PrivateSearchCV,
    SeededNoise,
    load,
    methods,
    preprocessing,
    private_score,
    save,
)
from dpkernel.data import people
from dpkernel.data.cells import as_numbers
from dpkernel.data.labels import LabelShares
from dpkernel.estimators import opening
from dpkernel.estimators.classifier import OneAgainstRest
from dpkernel.estimators.opening import TableOpener
from dpkernel.foundations.errors import CertificateError, DataError, LedgerError, ParameterError
from dpkernel.models import losses
from dpkernel.outputs.report import write_report
from dpkernel.privacy.profiles import GaussianProfile
from dpkernel.proof.audit import audit
from dpkernel.selection import score
from replay import BLANK, Replay, ReplayError, differences, ratios
from test_replay import CASES, HUGE, ROUNDING

CASES_OF_PEOPLE = {name: case for name, case in CASES.items() if name != "GramStatistics"}
LAST = 23  # the id of the person who is exchanged; as many people as the cases of rows have rows


def others(labels: bool) -> tuple[Any, Any, Any]:
    """Return the rows of all other people, one to four for each, in mixed order."""
    rng = np.random.default_rng(11)
    ids = rng.permutation(np.repeat(np.arange(LAST), rng.integers(1, 5, LAST)))
    X = rng.uniform(-1, 1, (LAST, 2))[ids] + 0.1 * rng.normal(size=(len(ids), 2))
    y = rng.uniform(-1, 1, len(ids))
    return X, (y > 0).astype(float) if labels else y, ids


def with_person(labels: bool, rows: Any, targets: Any, first: bool) -> tuple[Any, Any, Any]:
    """Return the table in which the rows of the last person stand before or behind all others."""
    X, y, ids = others(labels)
    own = np.asarray(rows, dtype=float), np.asarray(targets, dtype=float), [LAST] * len(targets)
    parts = [own, (X, y, ids)] if first else [(X, y, ids), own]
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


def exchanged(labels: bool, relation: str) -> list[tuple[Any, Any, Any]]:
    """Return a table and its neighbours, which differ in all rows of one person and their number."""
    rng = np.random.default_rng(12)
    low, high = (0.0, 1.0) if labels else (-HUGE, HUGE)
    start = ([[0.2, -0.3]], [low]) if relation == "replace-one" else ([[BLANK, 0.0]], [low])
    found = [with_person(labels, *start, first=False)]
    for count, target, first in itertools.product((1, 2, 50), (low, high), (True, False)):
        corner = np.full((count, 2), [1.0, 1.0 if target == low else -1.0])
        rows = corner if first else rng.uniform(-1, 1, (count, 2))
        rows[0] = [HUGE, -HUGE] if count > 1 and first else rows[0]
        found.append(with_person(labels, rows, [target] * count, first))
    return found


def several_labels(labels: bool, relation: str) -> list[tuple[Any, Any, Any]]:
    """Return a table and its neighbours, in which one person has rows of both labels."""
    found = exchanged(labels, relation)[:1]
    for share in ([1.0, 0.0], [0.0, 1.0, 1.0], [0.0] * 30 + [1.0]):
        rows = np.full((len(share), 2), [1.0, 1.0]) - 0.1 * np.arange(len(share))[:, None] % 0.4
        found.append(with_person(labels, rows, share, first=False))
    return found


def worst_of_people(
    name: str,
    relation: str,
    record: str = "auto",
    few: bool = True,
    container: str = "",
    neighbours: Any = exchanged,
) -> tuple[float, list[str]]:
    """Return the largest move over the certified one, and what differed and was not released."""
    case = CASES_OF_PEOPLE[name]
    tables = neighbours(case.labels, relation)
    tables = tables[:1] + tables[1 :: 4 if case.slow else 2] if few else tables
    found, left_over = 0.0, set()
    with pytest.MonkeyPatch.context() as patch:
        if relation == "zero-out":  # a blank row is left out of sums, so it must be the last one
            for module in (opening, score):
                patch.setattr(module, "secret_order", lambda noise: np.arange)
        replay = Replay(patch)
        fitted = []
        for table in tables:
            X, y, ids = tables_of(*table)[container] if container else table
            groups = People(ids, record=record)
            fitted.append(
                replay.run(lambda: case.fit(X, y, relation, groups=groups))  # noqa: B023
            )
        pairs = itertools.product(fitted[:1], fitted[1:])
        if relation == "replace-one":  # then any two tables are neighbours
            pairs = itertools.combinations(fitted, 2)
        for one, other in pairs:
            found = max(found, *ratios(one[1], other[1], case.folds).values())
        for other, _ in fitted[1:]:
            left_over.update(differences(fitted[0][0], other))
    return found, sorted(path for path in left_over if not path.endswith("._family"))


ALL = [(name, relation) for name, case in CASES_OF_PEOPLE.items() for relation in case.relations]


@pytest.mark.parametrize(("name", "relation"), ALL)
def test_no_person_moves_a_statistic_more_than_certified_and_nothing_else_differs(name, relation):
    found, left_over = worst_of_people(name, relation)
    print(name, relation, round(found, 4))
    assert 0 < found <= 1 + ROUNDING
    assert left_over == []


@pytest.mark.slow
@pytest.mark.parametrize("record", ["one", "near", "mean"])
@pytest.mark.parametrize(("name", "relation"), ALL)
def test_all_neighbours_and_records(name, relation, record):
    if record not in records_of(name):
        pytest.skip("is refused")
    found, left_over = worst_of_people(name, relation, record, few=False)
    assert 0 < found <= 1 + ROUNDING and left_over == []


def records_of(name: str) -> tuple[str, ...]:
    """Return the records that a case offers."""
    if name.startswith("private_score"):
        return ("one",)
    model = getattr(dpkernel, name.split()[0].split(".")[0], None)
    kind = model or getattr(methods, name.split()[0].split(".")[0], None)
    kind = kind or getattr(preprocessing, name.split()[0], None)
    found = getattr(kind, "_person_records", people.RECORDS)
    return found if isinstance(found, tuple) else people.RECORDS


OFTEN = ["frame", "sparse", "stream", "dask", "dask frame", "tensor"]
ANY = ["polars", "arrow", *OFTEN[:-1]]


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
@pytest.mark.parametrize("record", ["one", "near"])
@pytest.mark.parametrize("container", OFTEN)
def test_no_person_in_any_container_moves_a_statistic_more_than_certified(
    container, record, relation
):
    """People lie in several blocks, whose borders move with the rows of the person."""
    if container == "tensor":
        pytest.importorskip("torch")
    found, left_over = worst_of_people(
        "PrivateHuberRegressor", relation, record, container=container
    )
    assert 0.2 < found <= 1 + ROUNDING and left_over == []


EACH = {name.split()[0]: name for name in reversed(CASES_OF_PEOPLE)}  # a case of each estimator


@pytest.mark.slow
@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
@pytest.mark.parametrize("container", ANY)
@pytest.mark.parametrize("name", EACH.values())
def test_no_person_moves_a_statistic_of_any_estimator_in_any_container(name, container, relation):
    if relation not in CASES_OF_PEOPLE[name].relations:
        pytest.skip("is not offered, or not replayed")
    if container == "stream" and name.startswith("private_score"):
        pytest.skip("is refused")
    found, left_over = worst_of_people(name, relation, container=container)
    assert 0 < found <= 1 + ROUNDING and left_over == []


@pytest.mark.parametrize(
    "name", ["PrivateKernelRidge", "PrivateKernelRegressor", "PrivateKernelClassifier"]
)
@pytest.mark.parametrize("record", ["one", "near", "mean"])
def test_every_record_protects_a_person(name, record):
    found, left_over = worst_of_people(name, "replace-one", record)
    assert 0.2 < found <= 1 + ROUNDING and left_over == []


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
@pytest.mark.parametrize("record", ["near", "mean"])
@pytest.mark.parametrize(
    "name",
    [
        "PrivateKernelClassifier",
        "PrivateKernelClassifier weighted",
        "PrivateKernelClassifier law",
        "PrivateKernelClassifier class means",
        "PrivateKernelClassifier output",
    ],
)
def test_a_person_with_several_labels_moves_no_statistic_more_than_certified(
    name, record, relation
):
    found, left_over = worst_of_people(name, relation, record, few=False, neighbours=several_labels)
    assert 0 < found <= 1 + ROUNDING and left_over == []


# --- broken twins: what a replay must see ----------------------------------------------------------


def rows_counted(monkeypatch):
    """Every row is a record: the number of rows is public, and a person moves many records."""
    monkeypatch.setattr(TableOpener, "_people", lambda self, X, y, given, noise: (X, y, "one"))


def first_rows_of_the_table(monkeypatch):
    """As many rows as there are people, whoever they belong to."""

    def table(estimator, X, y, ids, rule, order):
        n = len(np.unique(ids))
        return X[:n], y if y is None else y[:n]

    monkeypatch.setattr(opening, "table_of_people", table)


def picked_by_place(monkeypatch):
    """The hash is of the number of the row, which depends on the rows of others."""
    real = people.content_hash
    monkeypatch.setattr(
        people, "content_hash", lambda rows: real(np.arange(len(rows), dtype=float)[:, None])
    )


def mean_of_all_people(monkeypatch):
    """Records are centred by a mean over all people."""
    real = people._records

    def records(*arguments):
        X, y = real(*arguments)
        return X - X.mean(axis=0), y

    monkeypatch.setattr(people, "_records", records)


@pytest.mark.parametrize(
    "broken", [rows_counted, first_rows_of_the_table, picked_by_place, mean_of_all_people]
)
@pytest.mark.parametrize("name", ["PrivateHuberRegressor", "PrivateKernelClassifier"])
def test_a_record_that_depends_on_others_is_seen(name, broken, monkeypatch):
    broken(monkeypatch)
    try:
        found, left_over = worst_of_people(name, "replace-one", few=False)
    except ReplayError:
        return
    assert found > 1.01 or left_over


def rows_of_a_person_added(monkeypatch):
    """A person's rows count as often as there are: the mean loss becomes their sum."""
    real = score._PersonRows.__init__

    def init(self, *arguments):
        real(self, *arguments)
        self._used = np.ones_like(self._used)

    monkeypatch.setattr(score._PersonRows, "__init__", init)


def test_a_sum_of_losses_called_a_mean_is_seen(monkeypatch):
    rows_of_a_person_added(monkeypatch)
    found, _ = worst_of_people("private_score mse", "zero-out", few=False)
    assert found > 1.01


def audited(model, trials=120, **options):
    """Return the verdict on a claim for people, with 50 extreme rows for one mild row of a person."""
    X, y = np.zeros((40, 1)), np.zeros(40)
    ids = np.arange(40)
    person = np.ones((50, 1)), np.ones(50), np.full(50, 39)
    other = (np.vstack([X[:-1], person[0]]), np.append(y[:-1], person[1]))
    pair = (X, y, ids), (*other, np.append(ids[:-1], person[2]))
    return audit(
        model, pair, trials=trials, claim=(1.0, 1e-5), random_state=0, progress=False, **options
    ).verdict


class RowsAsPeople(PrivateKernelRidge):
    """A twin that clips every row and calls the result a guarantee for people."""

    def fit(self, X, y=None, groups=None):
        return super().fit(X, y)


class NoCap(PrivateKernelRidge):
    """A twin in which every row of a person has the weight 1, so that many rows count more."""

    def _open_people(self, X, y, given, order):
        table, record = super()._open_people(X, y, given, order)
        return replace(table, shares=np.ones_like(table.shares)), record


class RowsCounted(PrivateKernelRidge):
    """A twin whose intercept grows with the number of rows, which no noise hides."""

    def fit(self, X, y=None, groups=None):
        super().fit(X, y, groups)
        self.intercept_ = self.intercept_ + len(X) / 10
        return self


def ridge(cls):
    return cls(1.0, 1e-5, kernel="linear", bounds=(-1, 1), y_bounds=(-1, 1), n_features=2)


@pytest.mark.parametrize(("cls", "trials"), [(RowsAsPeople, 120), (NoCap, 120), (RowsCounted, 40)])
def test_an_audit_contradicts_twins_that_protect_rows(cls, trials):
    """A false verdict on the honest ridge has a probability of at most 0.001; the seed is fixed."""
    assert audited(ridge(cls), trials) == "contradicted"


@pytest.mark.parametrize("record", ["all", "near"])
def test_an_audit_does_not_contradict_a_ridge_of_people(record):
    class Ridge(PrivateKernelRidge):
        def fit(self, X, y=None, groups=None):
            return super().fit(X, y, People(groups, record=record))

    assert audited(ridge(Ridge)) == "not contradicted"


# --- the table of people ----------------------------------------------------------------------------


def model(**options):
    return PrivateKernelRegressor(**{"bounds": (-1, 1), "y_bounds": (-1, 1), **options})


def in_order(X, y, ids, record, estimator=None):
    """Return the table of people in the order of their ids."""
    estimator = model() if estimator is None else estimator
    rule = estimator._person_rule(record)
    return people.table_of_people(estimator, X, y, ids, rule, np.arange)


@pytest.fixture
def visits(rng):
    ids = rng.permutation(np.repeat(np.arange(40), rng.integers(1, 9, 40)))
    X = rng.uniform(-0.8, 0.8, (40, 3))[ids] + 0.1 * rng.normal(size=(len(ids), 3))
    return X, np.sin(X[:, 0]), ids


def test_one_row_is_a_row_of_the_person_and_does_not_depend_on_the_order(visits, rng):
    X, y, ids = visits
    found, targets = in_order(X, y, ids, "one")
    for person in range(40):
        own = np.flatnonzero(ids == person)
        same = (X[own] == found[person]).all(axis=1) & (y[own] == targets[person])
        assert same.sum() == 1
    order = rng.permutation(len(ids))
    again = in_order(X[order], y[order], ids[order], "one")
    np.testing.assert_array_equal(again[0], found)
    np.testing.assert_array_equal(again[1], targets)


def test_every_row_of_a_person_is_picked_about_as_often(rng):
    """4000 people with four rows: each place is picked 1000 times, give or take 4.5 deviations."""
    ids = np.repeat(np.arange(4000), 4)
    X = np.sort(rng.uniform(-1, 1, (4000, 4)), axis=1).reshape(-1, 1)
    found, _ = in_order(X, np.zeros(16_000), ids, "one")
    place = np.argmax(X.reshape(4000, 4) == found, axis=1)
    assert np.abs(np.bincount(place) - 1000).max() < 4.5 * np.sqrt(750)


def test_a_mean_is_the_mean(visits):
    X, y, ids = visits
    found, targets = in_order(X, y, ids, "mean")
    for person in range(40):
        own = ids == person
        np.testing.assert_allclose(found[person], X[own].mean(axis=0), rtol=1e-14)
        np.testing.assert_allclose(targets[person], y[own].mean(), rtol=1e-13, atol=1e-15)


def test_near_rows_are_averaged_and_far_rows_are_not():
    X = np.array([[0.0], [0.1], [0.9], [-0.9], [0.5]])
    y, ids = np.array([0.1, 0.3, 0.9, -0.9, 0.2]), [0, 0, 1, 1, 2]
    found, targets = in_order(X, y, ids, "near")
    weight = (1 - 0.1**2 / 0.5**2) ** 2
    ends = [(0.1 * weight) / (1 + weight), 0.1 / (1 + weight)]
    assert min(abs(found[0, 0] - end) for end in ends) < 1e-15
    assert 0.1 < targets[0] < 0.3
    assert (found[1, 0], targets[1]) in ((0.9, 0.9), (-0.9, -0.9))
    assert (found[2, 0], targets[2]) == (0.5, 0.2)


def test_extreme_cells_stay_finite():
    largest = np.finfo(float).max
    X, y = np.array([[largest], [largest], [largest], [-largest]]), np.array([HUGE] * 4)
    for record in ("near", "mean"):
        found, targets = in_order(X, y, [0, 0, 0, 1], record)
        np.testing.assert_array_equal(found, [[1.0], [-1.0]])
        np.testing.assert_array_equal(targets, [1.0, 1.0])
    free = PrivateKernelRidge(kernel="gaussian", features="fourier", y_bounds=(-1, 1))
    found, _ = in_order(X, y, [0, 0, 0, 1], "mean", free)
    assert np.isfinite(found).all() and found[0, 0] > 1e308


def test_a_record_has_the_shares_of_the_labels_of_its_rows():
    X = np.array([[0.1], [0.2], [0.9], [-0.5], [-0.5], [-0.5], [0.0]])
    labels, ids = np.array(list("abbccab")), [0, 0, 0, 1, 1, 1, 2]
    classifier = PrivateKernelClassifier(bounds=(-1, 1), classes=["a", "b", "c"])
    found, shares = in_order(X, labels, ids, "mean", classifier)
    np.testing.assert_allclose(found[:, 0], [0.4, -0.5, 0.0])
    expected = [[1 / 3, 2 / 3, 0], [1 / 3, 0, 2 / 3], [0, 1, 0]]
    np.testing.assert_allclose(shares.values, expected, atol=1e-15)
    weight = (1 - 0.1**2 / 0.5**2) ** 2 / (1 + (1 - 0.1**2 / 0.5**2) ** 2)
    _, near = in_order(X, labels, ids, "near", classifier)
    first = near.values[0]
    assert any(
        np.allclose(first, v) for v in ([weight, 1 - weight, 0], [1 - weight, weight, 0], [0, 1, 0])
    )
    np.testing.assert_allclose(near.values[1:], expected[1:], atol=1e-15)
    _, one = in_order(X, labels, ids, "one", classifier)
    assert set(one[:2].tolist()) <= {"a", "b", "c"} and one[2] == "b"


def test_shares_of_many_rows_add_up_to_1():
    """Sums of 10^5 equal weights err in one direction; they must not decide whether a fit is refused."""
    classifier = PrivateKernelClassifier(bounds=(-1, 1), classes=list(range(5)))
    labels = np.append(np.arange(130_000) % 5, 0)
    for far in np.linspace(0.45, 0.49, 12):  # rows that count little, unless one of them is picked
        X = np.append(np.full(130_000, far), 0.0)[:, None]
        _, shares = in_order(X, labels, np.zeros(130_001), "near", classifier)
        assert (shares.values <= 1).all()
        assert abs(math.fsum(shares.values[0]) - 1) <= 2.0**-50
    alone = in_order(X[:7], np.zeros(7, int), np.zeros(7), "near", classifier)[1]
    assert alone.values.tolist() == [[1.0, 0.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    "shares",
    [
        [[2.0, 0.0]],
        [[-1.0, 1.0]],
        [[1.0, 2.0**-30]],
        [[1.0 + 2.0**-45, 0.0]],
        [[np.nan, 0.5]],
        [1.0, 0.0],
        [[0.5, 0.25, 0.25]],
    ],
)
def test_shares_that_no_sensitivity_allows_are_refused_before_a_spend(shares):
    ledger = Ledger(budget=Budget(2, 1e-5))
    model = PrivateKernelClassifier(classes=[0, 1], bounds=(-1, 1), ledger=ledger)
    with pytest.raises(DataError, match="^Shares of labels"):
        model.fit(np.zeros((60, 2)), LabelShares(np.repeat(shares, 60, axis=0)))
    assert not ledger.history()


@pytest.mark.parametrize("loss", [losses.Logistic(), losses.SmoothedHinge(0.3)])
@pytest.mark.parametrize("weights", [None, (0.5, 1.0, 0.25)])
def test_the_loss_of_several_labels_is_the_mean_of_the_losses_of_each(loss, weights, rng):
    scores, shares = rng.normal(size=50), rng.dirichlet([1, 1, 1], 50)
    shares[:5] = np.eye(3)[[0, 1, 2, 0, 1]]
    shares[5] = 0.0  # an empty place
    for place in range(3):
        view = OneAgainstRest(place, weights)
        y, factors = view.of(shares)
        assert np.abs(y).max() <= 1 and (
            factors is None or 0 <= factors.min() <= factors.max() <= 1
        )
        for function in (loss.value, loss.derivative, loss.curvature):
            found = function(y, scores) * (1.0 if factors is None else factors)
            whole = [view.of(np.full(50, float(k))) for k in range(3)]
            each = [function(v, scores) * (1.0 if w is None else w) for v, w in whole]
            expected = np.sum(shares.T * each, axis=0)
            kept = np.arange(50) != 5 if weights is None else slice(None)
            np.testing.assert_allclose(found[kept], expected[kept], atol=1e-14)


def test_labels_and_declared_levels_are_never_averaged():
    X = np.array([[0.1, 2.0], [0.2, 2.0], [0.3, 1.0], [0.4, 1.0]])
    labels = np.array(["yes", "no", "yes", "yes"])
    domain = Domain((Interval(-1, 1), Levels((1.0, 2.0))))
    classifier = methods.PrivateSGDClassifier(bounds=domain, classes=["no", "yes"])
    found, targets = in_order(X, labels, [0, 0, 1, 1], "near", classifier)
    assert (found[0].tolist(), targets[0]) in (([0.1, 2.0], "yes"), ([0.2, 2.0], "no"))
    assert 0.3 < found[1, 0] < 0.4 and found[1, 1] == 1.0 and targets[1] == "yes"
    apart, _ = in_order(X[1:3], labels[[0, 0]], [0, 0], "near", classifier)
    assert apart[0].tolist() in ([0.2, 2.0], [0.3, 1.0])
    with pytest.raises(ParameterError, match="A mean of declared levels is no level"):
        in_order(X, labels, [0, 0, 1, 1], "mean", classifier)


def test_missing_cells_are_left_out_of_a_mean():
    X = np.array([[1.0, np.nan], [3.0, 4.0], [np.nan, np.nan]])
    imputer = preprocessing.PrivateImputer(bounds=(-10, 10))
    found, targets = in_order(X, None, ["a", "a", "b"], "mean", imputer)
    np.testing.assert_array_equal(found, [[2.0, 4.0], [np.nan, np.nan]])
    assert targets is None
    imputer.fit(X, groups=["a", "a", "b"])


@pytest.mark.parametrize("record", ["one", "near", "mean"])
def test_the_record_of_a_person_has_the_same_bits_whatever_others_have(visits, record, monkeypatch):
    """Rows of another person move all rows to other blocks and places."""
    monkeypatch.setattr("dpkernel.data.passes.rows_a_block", lambda width: 4)
    X, y, ids = visits
    found = in_order(X, y, ids, record)
    for count in (1, 3, 50):
        new = np.full((count, 3), 0.123456789), np.full(count, 0.7), np.zeros(count, int)
        kept = ids != 0
        other = [np.concatenate([a, b[kept]]) for a, b in zip(new, (X, y, ids), strict=True)]
        again = in_order(*other, record)
        assert again[0][1:].tobytes() == found[0][1:].tobytes()
        assert again[1][1:].tobytes() == found[1][1:].tobytes()


def tables_of(X, y, ids):
    """Return the same rows in many containers; people lie in several chunks."""
    frame = pd.DataFrame(X, columns=list("abc")[: X.shape[1]])
    blocks = [(X[i : i + 7], y[i : i + 7]) for i in range(0, len(y), 7)]
    tensors = {}
    if importlib.util.find_spec("torch") is not None:
        import torch

        tensors = {"tensor": (torch.tensor(X), torch.tensor(y), torch.tensor(ids))}
    return {
        "list": (X.tolist(), y.tolist(), ids.tolist()),
        "frame": (frame, pd.Series(y), pd.Series(ids, name="patient")),
        "polars": (pl.from_pandas(frame), pl.Series(y), pl.Series(ids)),
        "arrow": (pa.Table.from_pandas(frame), pa.array(y), pa.array(ids)),
        "sparse": (sparse.csr_array(X), y, ids),
        "stream": (BlockStream(lambda: iter(blocks), len(y)), None, ids),
        "dask": (
            dask.array.from_array(X, (5, X.shape[1])),
            dask.array.from_array(y, 5),
            dask.array.from_array(ids, 9),
        ),
        "dask frame": (
            dask.dataframe.from_pandas(frame, npartitions=4),
            dask.dataframe.from_pandas(pd.Series(y), npartitions=4),
            dask.dataframe.from_pandas(pd.Series(ids), npartitions=3),
        ),
        "texts": (X, y, ids.astype(str)),
        "mixed ids": (X, y, [str(i) if i % 2 else i for i in ids.tolist()]),
        **tensors,
    }


CONTAINERS = list(tables_of(np.zeros((14, 3)), np.zeros(14), np.arange(14)))


@pytest.mark.parametrize("record", ["one", "near", "mean"])
@pytest.mark.parametrize("container", CONTAINERS)
def test_every_container_gives_the_same_people(visits, container, record):
    X, y, ids = visits
    ids = ids[np.argsort(ids, kind="stable")]  # people in the order of their first rows
    found, targets = in_order(X, y, ids, record)
    again, others = in_order(*tables_of(X, y, ids)[container], record)
    plain = again.toarray() if sparse.issparse(again) else as_numbers(again)
    assert (container == "tensor") == type(again).__module__.startswith("torch")
    np.testing.assert_array_equal(plain, found)
    np.testing.assert_array_equal(others, targets)


def test_a_fit_to_any_container_is_the_same_and_keeps_the_names_of_columns(visits):
    X, y, ids = visits
    ids = ids[np.argsort(ids, kind="stable")]
    fitted = model(noise=SeededNoise(1)).fit(X, y, groups=ids)
    for name, table in tables_of(X, y, ids).items():
        again = model(noise=SeededNoise(1)).fit(*table[:2], groups=table[2])
        found = again.predict(X)
        exact = name != "tensor"  # whose features are computed by other routines
        np.testing.assert_allclose(found, fitted.predict(X), rtol=0, atol=0 if exact else 1e-3)
        if "frame" in name or name in ("polars", "arrow"):
            assert list(again.feature_names_in_) == ["a", "b", "c"]


def test_whole_numbers_in_tensors_are_averaged_as_real_numbers():
    torch = pytest.importorskip("torch")
    X, y = torch.tensor([[0], [1], [7]]), torch.tensor([0.0, 1.0, 0.0])
    found, _ = in_order(X, y, [0, 0, 1], "mean", model(bounds=(0, 10)))
    assert found.dtype == torch.float64 and found.tolist() == [[0.5], [7.0]]


def test_a_classifier_without_labels_says_so(visits):
    classifier = PrivateKernelClassifier(bounds=(-1, 1), classes=["no", "yes"])
    with pytest.raises(DataError, match="requires y to be passed"):
        classifier.fit(visits[0], None, groups=visits[2])


def test_an_order_that_is_drawn_anew_hides_who_left(visits):
    """Every order of a table has a partner of the neighbour that differs from it in one record.

    The person 0 is replaced by the person 99, so that the ids of all others move by one place.
    """
    X, y, ids = visits
    few = ids < 4
    X, y, ids = X[few], y[few], ids[few]
    tables = []
    for names in (ids, np.where(ids == 0, 99, ids)):
        rule = model()._person_rule("one")
        orders = itertools.permutations(range(4))
        found = [
            people.table_of_people(
                model(),
                X,
                y,
                names,
                rule,
                lambda n: np.array(o),  # noqa: B023
            )[1]
            for o in orders
        ]
        tables.append(sorted(tuple(one) for one in found))
    assert tables[0] == tables[1] and len(set(tables[0])) == 24


def test_the_order_comes_from_the_noise_and_is_secret(visits, monkeypatch):
    X, y, ids = visits
    seen = []
    real = opening.table_of_people

    def spy(*arguments):
        seen.append(real(*arguments)[1])
        return real(*arguments)

    monkeypatch.setattr(opening, "table_of_people", spy)
    for noise in (None, None, SeededNoise(1), SeededNoise(1), SeededNoise(2)):
        model(noise=noise, random_state=3).fit(X, y, groups=ids)
    assert not np.array_equal(seen[0], seen[1])
    assert np.array_equal(seen[2], seen[3]) and not np.array_equal(seen[3], seen[4])
    assert all(np.array_equal(np.sort(one), np.sort(seen[0])) for one in seen)


# --- accuracy ---------------------------------------------------------------------------------------


def test_repeated_rows_cost_nothing_and_near_rows_help(rng):
    """The error at a fixed seed: as without repetition if rows repeat, smaller if they differ."""
    n = 4000
    centres = rng.uniform(-1, 1, (n, 2))
    truth = lambda X: np.sin(3 * X[:, 0])  # noqa: E731
    noisy = truth(centres) + 0.5 * rng.normal(size=n)
    ids = np.repeat(np.arange(n), 5)
    near = np.clip(centres[ids] + 0.05 * rng.normal(size=(5 * n, 2)), -1, 1)
    several = truth(near) + 0.5 * rng.normal(size=5 * n)
    new = rng.uniform(-1, 1, (2000, 2))

    def error(X, y, groups):
        fitted = model(epsilon=3.0, y_bounds=(-3, 3), noise=SeededNoise(0)).fit(X, y, groups)
        return np.mean((fitted.predict(new) - truth(new)) ** 2)

    alone = error(centres, noisy, np.arange(n))
    assert error(centres[ids], noisy[ids], ids) == pytest.approx(alone, rel=1e-6)
    assert error(near, several, ids) < 0.7 * alone
    far = rng.uniform(-1, 1, (5 * n, 2))
    apart = truth(far) + 0.5 * rng.normal(size=5 * n)
    assert error(far, apart, ids) < 1.5 * alone < error(far, apart, People(ids, "mean"))


# --- what becomes public, and refusals --------------------------------------------------------------


def test_only_the_number_of_people_is_public(rng, caplog, capsys):
    seen = []
    for rows in (1, 7, 150):  # 30 000 rows in the end: from 20 000 rows on fits use float32
        caplog.clear()
        ids = rng.permutation(np.repeat(np.arange(200), rows))
        X = rng.uniform(-1, 1, (len(ids), 2))
        with caplog.at_level(logging.DEBUG, logger="dpkernel"):
            fitted = model(verbose=True).fit(X, X[:, 0], groups=ids)
        public = fitted.certificate_.to_dict()
        for name in ("free_statistics", "digest"):  # released with noise, and a hash of it
            public.pop(name)
        shapes = {name: np.shape(value) for name, value in vars(fitted).items()}
        seen.append((repr(public), caplog.text, capsys.readouterr(), repr(shapes)))
    assert seen[0] == seen[1] == seen[2]
    assert "'n_units': 200" in seen[0][0] and "'unit_record': 'near'" in seen[0][0]


def test_a_certificate_of_people_survives_its_file_and_says_whom_it_protects(visits, tmp_path):
    X, y, ids = visits
    fitted = model().fit(X, y, groups=ids)
    certificate = fitted.certificate_
    assert certificate.verify().epsilon <= 1.0 and certificate.n_records == 40
    assert "all rows of any one person" in str(certificate)
    again = load(save(fitted, tmp_path / "m.dpk"))
    assert again.certificate_ == certificate
    page = write_report(certificate, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "all rows of any one person" in page
    forged = certificate.to_dict()
    forged["public"]["unit_record"] = "every row"
    with pytest.raises(CertificateError, match="calibrated for single rows"):
        Certificate.from_dict(forged).verify()


def test_one_person_with_all_rows_and_many_people_with_one_row(rng):
    X = rng.uniform(-1, 1, (3000, 2))
    alone = model().fit(X, X[:, 0], groups=np.zeros(3000))
    assert alone.certificate_.n_records == 1
    each = model(noise=SeededNoise(0)).fit(X, X[:, 0], groups=np.arange(3000))
    assert each.certificate_.n_records == 3000


def once(X, y):
    return BlockStream(iter([(X, y)]), n_rows=len(y)), None


REFUSED = {
    "id missing": (lambda X, y, ids: (X, y, [None, *ids[1:]]), {}, "An id in groups is missing"),
    "short": (lambda X, y, ids: (X, y, ids[:-1]), {}, "the same number of rows"),
    "short y": (lambda X, y, ids: (X, y[:-1], ids), {}, "the same number of rows"),
    "column": (lambda X, y, ids: (X, y, ids[:, None]), {}, "groups one: an id per row"),
    "one dimension": (lambda X, y, ids: (X[:, 0], y, ids), {}, "X must have two dimensions"),
    "no target": (lambda X, y, ids: (X, None, ids), {}, "requires y to be passed"),
    "nan": (lambda X, y, ids: (np.where(X > 0.7, np.nan, X), y, ids), {}, "NaN or infinity"),
    "stream": (
        lambda X, y, ids: (BlockStream.from_arrays(X, y), None, ids[:-1]),
        {},
        "the same number of rows",
    ),
    "longer stream": (
        lambda X, y, ids: (BlockStream([(X, y)], len(y) - 1), None, ids[:-1]),
        {},
        "the same number of rows",
    ),
    "no rows": (lambda X, y, ids: (X[:0], y[:0], ids[:0]), {}, "X has no rows"),
    "no columns": (lambda X, y, ids: (X[:, :0], y, ids), {}, "must have at least one column"),
    "dask and numpy": (
        lambda X, y, ids: (dask.array.from_array(X), y, ids),
        {},
        "X is a Dask table, so y must be one",
    ),
    "numpy and dask": (
        lambda X, y, ids: (X, dask.array.from_array(y), ids),
        {},
        "y is a Dask table, so X must be one",
    ),
    "short dask": (
        lambda X, y, ids: (dask.array.from_array(X), dask.array.from_array(y[:-1]), ids),
        {},
        "the same number of rows",
    ),
    "dask column": (
        lambda X, y, ids: (X, y, dask.array.from_array(ids[:, None])),
        {},
        "groups one: an id per row",
    ),
    "stream of one reading": (lambda X, y, ids: (*once(X, y), ids), {}, "can be read only once"),
    "column of ids": (
        lambda X, y, ids: (
            pd.DataFrame({"a": X[:, 0], "patient": ids}),
            y,
            pd.Series(ids, name="patient"),
        ),
        {},
        "'patient' holds the ids in groups and is also a column of X",
    ),
    "column of ids that has a number": (
        lambda X, y, ids: (pd.DataFrame(np.c_[ids, X]), y, pd.DataFrame(ids)[0]),
        {},
        "holds the ids in groups and is also a column of X",
    ),
    "column of ids under two headings": (
        lambda X, y, ids: (
            pd.DataFrame({("visit", "patient"): ids, ("visit", "a"): X[:, 0]}),
            y,
            pd.Series(ids, name=("visit", "patient")),
        ),
        {},
        "holds the ids in groups and is also a column of X",
    ),
    "column of ids in an Arrow table": (
        lambda X, y, ids: (
            pa.table({"a": X[:, 0], "patient": ids}),
            y,
            pd.Series(ids, name="patient"),
        ),
        {},
        "'patient' holds the ids in groups and is also a column of X",
    ),
    "record": (lambda X, y, ids: (X, y, People(ids, "all")), {}, "'mean' or 'near' or 'one' for"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_spend_nothing_and_tell_no_number_of_rows(case, visits):
    change, options, message = REFUSED[case]
    X, y, ids = change(*visits)
    ledger = Ledger(budget=Budget(10.0, 1e-5))
    with pytest.raises((DataError, ParameterError), match=message) as caught:
        model(ledger=ledger, **options).fit(X, y, groups=ids)
    assert not re.search(r"\d", str(caught.value).replace("The column 0", ""))
    assert ledger.spends == []


def test_a_column_that_is_called_like_a_property_of_a_table_names_no_columns(visits):
    """Cells must not decide what is refused."""
    X, y, ids = visits
    names = ["column_names", "columns", "_meta", "dtype", "from_arrays"]
    frame = pd.DataFrame({name: X[:, 0] if name != "columns" else ids / 50 for name in names})
    for name in (ids[0] / 50, "patient", None):
        fitted = model().fit(frame, y, groups=pd.Series(ids, name=name))
        assert fitted.certificate_.n_records == 40


def test_shapes_of_labels_are_refused_without_the_number_of_rows(visits):
    X, y, ids = visits
    labels = np.column_stack([y > 0, y > 0]).astype(int)
    ledger = Ledger(budget=Budget(10.0, 1e-5))
    for record in ("one", "near"):
        classifier = PrivateKernelClassifier(bounds=(-1, 1), classes=[0, 1], ledger=ledger)
        with pytest.raises(DataError, match=r"y should be a 1d array.*shape \(n, 2\)"):
            classifier.fit(X, labels, groups=People(ids, record))
    assert ledger.spends == []


@pytest.mark.parametrize(
    "step",
    [
        FunctionTransformer(),
        FunctionTransformer(np.sqrt),
        preprocessing.DeclaredCategories([None, None]),
    ],
)
def test_a_step_before_the_people_are_joined_tells_no_number_of_rows(visits, step):
    X, y, groups = visits
    pipeline = preprocessing.PrivatePipeline(
        [("free", step), ("model", PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-1, 1)))]
    )
    with pytest.raises(DataError, match="0 feature") as error:
        pipeline.fit(X[:, :0], y, groups=groups)
    assert str(len(X)) not in str(error.value)


def test_a_block_of_a_stream_is_not_counted_in_a_message(visits):
    X, y, groups = visits
    blocks = [(X[:4], y[:4]), (np.full(X[4:].shape, np.nan), y[4:])]
    with pytest.raises(DataError, match="A block of the stream contains NaN"):
        PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-1, 1)).fit(
            BlockStream(lambda: iter(blocks), len(y)), groups=groups
        )


def test_rules_that_do_not_exist_or_lack_bounds_are_refused(visits):
    X, y, ids = visits
    with pytest.raises(ParameterError, match="'record' parameter of People must be one of 'auto'"):
        People(ids, record="median")
    unbounded = PrivateKernelRidge(features="fourier", y_bounds=(-1, 1), folds=2)
    with pytest.raises(ParameterError, match="which rows of a person are near each other"):
        unbounded.fit(X, y, groups=People(ids, record="near"))
    assert unbounded.fit(X, y, groups=ids).certificate_.public["unit_record"] == "one"
    fitted = model().fit(X, y)
    with pytest.raises(ParameterError, match="'auto' or 'one' for private_score"):
        private_score(fitted, X, y, groups=People(ids, record="near"))
    with pytest.raises(ParameterError, match="All other fits.*need one record per person"):
        model().fit(X, y, groups=People(ids, record="all"))
    assert "ids are not shown" in repr(People(ids))


def test_defaults_keep_quantiles_and_probabilities():
    """Averages of rows would change what these estimate."""
    declared = {"bounds": (-1, 1)}
    found = {
        cls.__name__: cls(**declared, **more)._person_rule("auto").record
        for cls, more in (
            (PrivateKernelRegressor, {"y_bounds": (-1, 1)}),
            (PrivateQuantileRegressor, {"y_bounds": (-1, 1)}),
            (PrivateKernelClassifier, {"classes": [0, 1]}),
            (preprocessing.PrivateBounds, {}),
        )
    }
    assert list(found.values()) == ["near", "one", "near", "one"]
    sgd = methods.PrivateSGDRegressor(loss="quantile", y_bounds=(-1, 1), **declared)
    assert sgd._person_rule("auto").record == "one"


def test_a_score_of_people_is_the_mean_of_their_mean_losses(visits):
    X, y, ids = visits
    fitted = model().fit(X, y)
    losses = (np.clip(fitted.predict(X), -1, 1) - y) ** 2
    exact = np.mean([losses[ids == person].mean() for person in range(40)])
    budget = (1e6, 1e-6)
    found = private_score(fitted, X, y, "mse", budget, groups=ids, noise=SeededNoise(0))
    assert found.value == pytest.approx(exact, abs=1e-4) and found.n_rows == 40
    assert found.certificate.unit == "group" and found.certificate.verify()
    frame = pd.DataFrame(X)
    plain = LinearRegression().fit(frame, y)
    private_score(plain, frame, y, "mse", y_bounds=(-1, 1), groups=ids)


def test_a_search_and_a_pipeline_of_people(visits):
    X, y, ids = visits
    ridge = PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-1, 1), n_features=8)
    for grid in ({"regularisation": [0.1, 1.0]}, {"length_scale": [0.3, 1.0]}):
        search = PrivateSearchCV(ridge, grid, epsilon=50.0).fit(pd.DataFrame(X), y, groups=ids)
        assert search.certificate_.unit == "group" and search.certificate_.verify()
        assert search.certificate_.n_records == 40
    steps = [("scale", preprocessing.PrivateMinMaxScaler(bounds=(-9, 9))), ("model", ridge)]
    fitted = preprocessing.PrivatePipeline(steps).fit(X, y, groups=ids)
    for certificate in (fitted.certificate_, *(step.certificate_ for _, step in fitted.steps_)):
        assert certificate.unit == "group" and certificate.verify()
        assert certificate.n_records == 40
    search = PrivateSearchCV(ridge, {"regularisation": [0.1, 1.0]}, epsilon=9.0)
    inner = preprocessing.PrivatePipeline([steps[0], ("search", search)], 50.0)
    inner.fit(X, y, groups=ids)
    assert inner.steps_[1][1].best_estimator_.certificate_.verify()
    assert inner.steps_[1][1].certificate_.unit == "group"
    with pytest.raises(DataError, match="got . dimension") as caught:
        preprocessing.PrivatePipeline(steps).fit(X[:, 0], y, groups=ids)
    assert str(len(ids)) not in str(caught.value)
    ledger, strategies = Ledger(), ("free", "exponential", "random-stopping")
    for strategy in strategies:
        search = PrivateSearchCV(ridge, {"regularisation": [0.1, 1.0]}, 9.0, strategy=strategy)
        with pytest.raises(ParameterError, match="and searches, need one record per person"):
            search.set_params(ledger=ledger).fit(X, y, groups=People(ids, record="all"))
    assert ledger.spends == []
    with pytest.raises(ParameterError, match="'mean' or 'one' for PrivatePipeline"):
        preprocessing.PrivatePipeline(steps).fit(X, y, groups=People(ids, record="near"))


@pytest.mark.parametrize("container", ["stream", "dask", "dask frame", "tensor"])
@pytest.mark.parametrize("name", ["PrivatePipeline", "PrivateSearchCV random-stopping"])
def test_pipelines_and_searches_take_people_of_any_table(name, container):
    """The rows of a person lie in several blocks; one record per person is read into memory."""
    if container == "tensor":
        pytest.importorskip("torch")
    found, left_over = worst_of_people(name, "replace-one", "one", container=container)
    assert 0.1 < found <= 1 + ROUNDING and left_over == []


def test_pipelines_and_searches_of_people_are_those_of_a_table_in_memory(visits):
    X, y, ids = visits
    ids = ids[np.argsort(ids, kind="stable")]
    given = {"noise": SeededNoise(3), "epsilon": 5.0}
    ridge = PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-1, 1), n_features=8)
    models = [
        PrivateSearchCV(ridge, {"length_scale": [0.3, 1.0]}, **given),
        PrivateSearchCV(ridge, {"regularisation": [0.3, 1.0]}, **given),
        preprocessing.PrivatePipeline(
            [("scale", preprocessing.PrivateMinMaxScaler(bounds=(-9, 9))), ("model", ridge)],
            **given,
        ),
    ]
    tables = tables_of(X, y, ids)
    for each in models:
        wanted = each.fit(X, y, groups=ids).predict(X)
        for name in ("stream", "dask", "dask frame"):
            *table, whose = tables[name]
            np.testing.assert_array_equal(each.fit(*table, groups=whose).predict(X), wanted)
            with pytest.raises(ParameterError, match="takes tables in memory"):
                each.fit(*table)
    first = preprocessing.PrivatePipeline(
        [("log", FunctionTransformer(np.log1p)), *models[2].steps]
    )
    with pytest.raises(ParameterError, match="takes tables in memory"):
        first.fit(*tables["stream"][:2], groups=ids)


def test_scores_of_people_in_dask_tables_are_those_of_a_table_in_memory(visits):
    X, y, ids = visits
    fitted = model().fit(X, y)
    given = {"metric": "mse", "noise": SeededNoise(0)}
    for whose in (ids, None):
        wanted = private_score(fitted, X, y, groups=whose, **given).value
        for name in ("dask", "dask frame"):
            *table, _ = tables_of(X, y, ids)[name]
            assert private_score(fitted, *table, groups=whose, **given).value == wanted
        with pytest.raises(ParameterError, match="tables in memory and Dask tables, but no stream"):
            private_score(fitted, BlockStream.from_arrays(X, y), None, groups=whose, **given)


# --- the ledger --------------------------------------------------------------------------------------


def people_and_rows(visits, relation, first):
    """Return what spends on people and on rows, in one order or the other, with one ledger."""
    X, y, ids = visits
    ledger = Ledger(budget=Budget(50.0, 1e-3), neighbours=relation, accounting="basic")
    fitted = model(neighbours=relation, ledger=ledger)
    spends = [lambda: fitted.fit(X, y, groups=ids), lambda: fitted.fit(X, y)]
    return ledger, spends if first == "people" else spends[::-1]


@pytest.mark.parametrize("relation", ["zero-out", AddRemove(300)], ids=str)
@pytest.mark.parametrize("first", ["people", "rows"])
def test_people_and_rows_share_a_ledger_only_where_one_guarantee_implies_the_other(
    visits, first, relation
):
    """A blanked or removed row replaces the record of its person, so the spends don't add up."""
    ledger, (one, other) = people_and_rows(visits, relation, first)
    one()
    with pytest.raises(LedgerError, match="can't hold spends that protect rows and spends that"):
        other()
    assert len(ledger.spends) == 1
    assert ledger.forecast(GaussianProfile(0.1)).fits
    one()
    ledger, (one, other) = people_and_rows(visits, "replace-one", first)
    one()
    other()
    assert sorted(line["label"] for line in ledger.history()) == [
        "PrivateKernelRegressor",
        "PrivateKernelRegressor of people",
    ]


def test_a_blanked_row_moves_a_person_farther_than_zero_out_certifies(monkeypatch):
    """Why the ledger refuses: the definition, through the real fit. The picked row is blanked."""
    X, y, ids = others(labels=False)
    rows, targets = np.array([[1.0, 1.0], [-1.0, -1.0]]), np.array([1.0, -1.0])
    fit, moves = CASES["PrivateKernelRidge folds"].fit, []
    for kept in ([0, 1], [0], [1]):
        table = np.vstack([X, rows[kept]]), np.append(y, targets[kept]), [*ids, *[LAST] * len(kept)]
        with pytest.MonkeyPatch.context() as patch:
            replay = Replay(patch)
            groups = People(table[2], record="one")
            moves.append(
                replay.run(lambda: fit(*table[:2], "zero-out", groups=groups))[1]  # noqa: B023
            )
    moved = [
        sum(np.linalg.norm(a.exact - b.exact) for a, b in zip(moves[0], other, strict=True))
        for other in moves[1:]
    ]
    assert max(moved) > 1.2 * moves[0][0].mechanism.sensitivity.value


def test_sums_of_units_share_a_ledger_with_people_and_with_rows(visits):
    X, y, ids = visits
    for groups in (ids, None):
        ledger = Ledger(budget=Budget(50.0, 1e-3), neighbours="zero-out", accounting="basic")
        options = {"bounds": (-1, 1), "y_bounds": (-1, 1), "neighbours": "zero-out"}
        PrivateKernelRidge(**options, ledger=ledger).fit(X, y, groups=ids)
        model(neighbours="zero-out", ledger=ledger).fit(X, y, groups=groups)
        assert len(ledger.spends) == 2


# --- the command line -------------------------------------------------------------------------------

BOUNDS = """
[columns.patient]
low = 0
high = 1000
[columns.age]
low = 0
high = 100
[columns.days]
low = 0
high = 30
"""


def write_visits(folder, ids):
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, len(ids))
    rows = [f"{i},{a:.3f},{a / 5:.3f}" for i, a in zip(ids, age, strict=True)]
    (folder / "visits.csv").write_text("\n".join(["patient,age,days", *rows]), encoding="utf-8")
    (folder / "bounds.toml").write_text(BOUNDS, encoding="utf-8")


def fit_visits(folder, *more):
    given = ("--bounds", folder / "bounds.toml", "--target", "days", "--group", "patient")
    return inside("fit", folder / "visits.csv", *given, "--out", folder / "m.dpk", "--json", *more)


@pytest.mark.parametrize("spooled", [False, True])
def test_the_command_line_protects_the_people_of_a_column(tmp_path, spooled, monkeypatch):
    """The ids are no feature, even if bounds.toml declares them, and no number of rows is told."""
    if spooled:
        monkeypatch.setattr("dpkernel.data.table_files.spool.MEMORY_BYTES", 1)
    write_visits(tmp_path, [f" {i % 97}" if i % 2 else i % 97 for i in range(1234)])
    result = fit_visits(tmp_path)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["n_people"] == 97 and told["n_columns"] == 1 and "n_rows" not in told
    assert "1234" not in result.stdout + result.stderr
    fitted = load(tmp_path / "m.dpk")
    assert fitted.certificate_.unit == "group" and fitted.n_features_in_ == 1
    assert inside("predict", tmp_path / "m.dpk", tmp_path / "visits.csv").returncode == 0


def test_the_command_line_finds_bounds_of_people(tmp_path):
    write_visits(tmp_path, [i % 300 for i in range(900)])
    options = ("--private", "--wide", tmp_path / "bounds.toml", "--target", "days", "--epsilon", 3)
    found = ("--group", "patient", "--out", tmp_path / "found.toml")
    result = inside("bounds", tmp_path / "visits.csv", *options, *found)
    assert result.returncode == 0, result.stderr
    kept = Certificate.from_json((tmp_path / "found.certificate.json").read_bytes())
    assert kept.unit == "group" and kept.n_records == 300
    text = (tmp_path / "found.toml").read_text(encoding="utf-8")
    assert "[columns.patient]" not in text and 'ignore = ["patient"]' in text


@pytest.mark.parametrize(
    ("more", "ids", "message"),
    [
        ((), [1, "", 2], "An id in groups is missing"),
        (("--record", "median"), [1, 2, 3], "'record' parameter of People"),
        (("--record", "all"), [1, 2, 3], "'mean' or 'near' or 'one'"),
        (("--target", "patient"), [1, 2, 3], "both the target and the group"),
        (("--group", "person"), [1, 2, 3], "no column named 'person'"),
    ],
)
def test_the_command_line_refuses_before_it_spends(tmp_path, more, ids, message):
    write_visits(tmp_path, ids)
    Ledger(tmp_path / "l.db", dataset="visits", budget=Budget(5.0, 1e-5))
    result = fit_visits(tmp_path, "--ledger", tmp_path / "l.db", *more)
    assert result.returncode == 1 and message in result.stderr
    assert Ledger(tmp_path / "l.db").spends == [] and not (tmp_path / "m.dpk").exists()


@pytest.mark.parametrize("record", ["auto", "all", "near"])
def test_the_size_of_a_file_does_not_decide_how_people_become_records(
    tmp_path, monkeypatch, record
):
    """A person with many rows may take a table over the limit of what stays in memory."""
    write_visits(tmp_path, [i % 50 for i in range(300)])
    stated = []
    for limit in (2**27, 1):
        monkeypatch.setattr("dpkernel.data.table_files.spool.MEMORY_BYTES", limit)
        more = ("--estimator", "PrivateKernelRidge", "--record", record, "--force")
        result = fit_visits(tmp_path, *more)
        assert result.returncode == 0, result.stderr
        certificate = load(tmp_path / "m.dpk").certificate_
        stated.append((certificate.public, result.stdout, result.stderr))
    assert stated[0] == stated[1]


def test_texts_that_stand_for_empty_cells_are_no_ids(tmp_path):
    write_visits(tmp_path, [1, "NA", 2, 2])
    bounds = (tmp_path / "bounds.toml").read_text(encoding="utf-8")
    for text in (
        f'empty = ["NA"]\n{bounds}',
        bounds.replace("high = 1000", 'high=1\nempty=["NA"]'),
    ):
        (tmp_path / "bounds.toml").write_text(text, encoding="utf-8")
        assert "An id in groups is missing" in fit_visits(tmp_path).stderr


@pytest.mark.parametrize(("task", "people"), [("regression", True), ("classification", False)])
def test_the_command_line_hides_how_many_records_there_are(tmp_path, people, task):
    ledger = Ledger(
        tmp_path / "l.db", dataset="v", budget=Budget(9.0, 1e-5), neighbours="add-remove"
    )
    told = []
    kind = {"regression": "PrivateKernelRidge", "classification": "PrivateKernelSVC"}[task]
    for count in (0, 61):
        write_visits(tmp_path, [i // 2 for i in range(count)])
        bounds = f"n_max = 300\n{BOUNDS}"
        if task == "classification":
            table = (tmp_path / "visits.csv").read_text(encoding="utf-8")
            lines = [line.rsplit(",", 1)[0] for line in table.splitlines()]
            lines = [lines[0] + ",days", *(f"{line},{i % 2}" for i, line in enumerate(lines[1:]))]
            (tmp_path / "visits.csv").write_text("\n".join(lines), encoding="utf-8")
            bounds = bounds.replace("low = 0\nhigh = 30", "levels = [0, 1]")
        (tmp_path / "bounds.toml").write_text(bounds, encoding="utf-8")
        given = ("--bounds", tmp_path / "bounds.toml", "--target", "days", "--task", task)
        given += ("--estimator", kind, "--set", "n_features=8")
        given += ("--group", "patient") if people else ()
        given += ("--neighbours", "add-remove", "--ledger", tmp_path / "l.db", "--force")
        result = inside(
            "fit", tmp_path / "visits.csv", *given, "--out", tmp_path / "m.dpk", "--json"
        )
        assert result.returncode == 0, result.stderr
        certificate = load(tmp_path / "m.dpk").certificate_
        public = {k: v for k, v in certificate.public.items() if k != "feature_map"}
        told.append((result.stdout, result.stderr, public))
        assert json.loads(result.stdout)["n_max"] == certificate.n_records == 300
    assert told[0] == told[1] and len(ledger.spends) == 2


def test_the_number_of_places_is_stated_once(tmp_path):
    write_visits(tmp_path, range(40))
    assert "--n-max N" in fit_visits(tmp_path, "--neighbours", "add-remove").stderr
    places = ("--neighbours", "add-remove", "--n-max", 50, "--estimator", "PrivateKernelRidge")
    assert fit_visits(tmp_path, *places).returncode == 0
    (tmp_path / "bounds.toml").write_text(f"n_max = 60\n{BOUNDS}", encoding="utf-8")
    refused = fit_visits(tmp_path, *places, "--force")
    assert "--n-max is 50, but bounds.toml states n_max = 60" in refused.stderr
    (tmp_path / "bounds.toml").write_text(f"n_max = 0.5\n{BOUNDS}", encoding="utf-8")
    assert "'n_max' of bounds.toml must be a whole number" in fit_visits(tmp_path).stderr
    given = ("--rows", 300, "--epsilon", 2, "--columns", 2, "--repetitions", 1)
    given += ("--estimator", "PrivateKernelRidge")
    template = BOUNDS.replace("low = 0\nhigh = 1000\n", "")  # the ids, as the template has them
    (tmp_path / "bounds.toml").write_text(template, encoding="utf-8")
    target = ("--bounds", tmp_path / "bounds.toml", "--target", "days")
    of_people = inside("plan", *given, *target, "--group", "patient")
    assert "people" in of_people.stdout.splitlines()[1], of_people.stderr
    given += ("--json",)
    told = [inside("plan", *given, "--neighbours", one) for one in ("zero-out", "add-remove")]
    errors = [json.loads(one.stdout)["expected"][0]["relative_error"] for one in told]
    assert abs(errors[1] - errors[0]) < 0.1
