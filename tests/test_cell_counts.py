"""The counts of cells beside a fit: what one row can move, one spend, one claim, nothing exact kept."""

from __future__ import annotations

import csv
import itertools
import json
import math

import numpy as np
import pytest

from cli_tables import inside
from dpkernel import (
    AddRemove,
    Budget,
    Ledger,
    Neighbours,
    People,
    PrivateKernelRidge,
    estimators,
    load,
)
from dpkernel.cli.options import TASKS
from dpkernel.data.domain import Interval, Levels
from dpkernel.data.table_files import ColumnRule, Schema, encode_table, open_table
from dpkernel.estimators.cell_counts import LABEL, CellCounts
from dpkernel.methods import PrivateKernelSVR
from dpkernel.outputs.cells import cell_lines, unread_columns
from dpkernel.privacy.profiles import gaussian_mu
from dpkernel.privacy.sensitivity import column_histograms
from dpkernel.proof.audit import audit_file

N = 4000
RULES = (
    ColumnRule("x", Interval(0, 1), 0.5, indicator=True),
    ColumnRule("z", Interval(0, 1), limits=True, empty=("-9",)),
    ColumnRule("w", Levels(("a", "b"))),
)
SCHEMA = Schema(RULES, ColumnRule("y", Interval(0, 1)))
LABELS = Schema(RULES, ColumnRule("y", Levels(("0", "1")), "0"))


def table(n=N):
    draw = np.random.default_rng(0)
    return [
        ["" if i % 4 == 0 else f"{draw.random():.3f}", "?" if i % 2 else "0.3", "ab"[i % 2], i % 2]
        for i in range(n)
    ]


def write(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["x", "z", "w", "y"], *rows])
    return path


def encoded(path, rows, schema=SCHEMA):
    return encode_table(open_table(write(path, rows)), schema)


CELLS = (
    ["0.5", "", "nonsense", "7"],
    ["0.5", "-9", "<2", "x"],
    ["a", "", "c"],
    ["1", "", "?", "-3"],
)


@pytest.mark.parametrize("place", [0, 3])
def test_no_row_moves_the_counts_further_than_certified(tmp_path, place):
    """Every kind of row for every other, through the reader of files; the other rows are free, too."""
    worst = 0.0
    for others in ([["", "?", "c", "?"]] * 4, table(4)):
        found = []
        for row in itertools.product(*CELLS):
            rows = [list(one) for one in others]
            rows[place] = list(row)
            found.append(encoded(tmp_path / "t.csv", rows).counts)
        moves = [np.linalg.norm(a - b) for a, b in itertools.combinations(found, 2)]
        worst = max(worst, *moves)
        for counts in found:
            assert (counts.sum(axis=1) == 4).all()  # one state per cell
    limit = column_histograms(Neighbours.REPLACE_ONE, columns=len(SCHEMA.rules)).value
    assert worst <= limit and worst == pytest.approx(limit)


def test_a_blank_row_moves_them_by_one_per_column():
    limit = column_histograms(Neighbours.ZERO_OUT, columns=4).value
    assert np.linalg.norm(np.eye(4)) <= limit == pytest.approx(2.0)


counts_of = CellCounts.of


CASES = [
    *((task, name, "replace-one") for task, names in TASKS.items() for name in names),
    ("regression", "PrivateKernelRegressor", "zero-out"),
    ("regression", "PrivateKernelRidge", "zero-out"),
]


@pytest.mark.parametrize(("task", "name", "relation"), CASES)
def test_one_spend_and_one_claim_for_every_estimator(tmp_path, task, name, relation):
    schema = LABELS if task == "classification" else SCHEMA
    rows = encoded(tmp_path / "t.csv", table(), schema)
    ledger = Ledger(budget=Budget(1.0, 1e-6), neighbours=relation)
    given = {"classes": ["0", "1"]} if task == "classification" else {"y_bounds": (0, 1)}
    if name == "PrivateSketchedRidge":
        given["accept"] = ("idealised-arithmetic",)
    model = getattr(estimators, name)(
        epsilon=1.0, delta=1e-6, bounds=schema.domain(), neighbours=relation, ledger=ledger, **given
    )
    model._fit_beside(*rows.training_data(), counts_of(rows))
    (spend,) = ledger.spends
    labels = [release.label for release in model.certificate_.releases]
    assert [part["label"] for part in spend.plan["parts"]] == labels
    assert spend.state == "drawn" and model.certificate_.verify().epsilon <= 1.0
    assert labels[-1] == LABEL and model.certificate_.epsilon > 0.9
    mechanism = model.certificate_.releases[-1].mechanism
    moved = column_histograms(Neighbours.resolve(relation), columns=4)  # as the test above found
    assert mechanism.sensitivity == moved and mechanism.dimension == rows.counts.size
    own = mechanism.profile().mu
    assert own**2 <= 0.01 * gaussian_mu(1.0, 1e-6) ** 2
    found = model.certificate_.free_statistics[LABEL]
    off = 6 * found["deviation"]  # a false alarm in 2e-9 of draws
    assert found["shares"]["x"]["missing"] == pytest.approx(0.25, abs=off)
    assert found["shares"]["z"]["unreadable"] == pytest.approx(0.5, abs=off)


def test_the_counts_cost_a_hundredth_of_mu_squared(tmp_path):
    rows = encoded(tmp_path / "t.csv", table())
    model = PrivateKernelRidge(bounds=SCHEMA.domain(), y_bounds=(0, 1))
    model._fit_beside(*rows.training_data(), counts_of(rows))
    mus = [release.mechanism.profile().mu for release in model.certificate_.releases]
    assert mus[-1] ** 2 / math.fsum(mu**2 for mu in mus) == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize(("n", "options"), [(100, {}), (N, {"delta": 0.0})])
def test_counts_that_noise_would_drown_are_not_paid_for(tmp_path, n, options):
    rows = encoded(tmp_path / "t.csv", table(n))
    accept = {"accept": ("idealised-arithmetic",)} if options else {}
    kind = PrivateKernelSVR if options else PrivateKernelRidge
    model = kind(bounds=SCHEMA.domain(), y_bounds=(0, 1), **options, **accept)
    model._fit_beside(*rows.training_data(), counts_of(rows))
    assert LABEL not in [release.label for release in model.certificate_.releases]
    assert LABEL not in model.certificate_.free_statistics


def test_a_fit_of_units_releases_no_counts_of_rows(tmp_path):
    rows = encoded(tmp_path / "t.csv", table())
    model = PrivateKernelRidge(bounds=SCHEMA.domain(), y_bounds=(0, 1))
    X, y = rows.training_data()
    model._fit_beside(X, y, counts_of(rows), np.arange(N) // 2)
    assert LABEL not in [release.label for release in model.certificate_.releases]


PEOPLE = Schema(RULES, SCHEMA.target, ("p",), "p")


def of_people(path, rows, ids):
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = ([person, *row] for person, row in zip(ids, rows, strict=True))
        csv.writer(file).writerows([["p", "x", "z", "w", "y"], *lines])
    return encode_table(open_table(path), PEOPLE)


def test_a_person_counts_once_whatever_the_number_of_rows(tmp_path):
    rows = table(6)  # x is missing in rows 0, 4; z can't be read in rows 1, 3, 5
    found = counts_of(of_people(tmp_path / "t.csv", rows, "abaaab")).counts
    assert found[0].tolist() == [2000 - 500, 500, 0, 0]  # a: rows 0 and 4 of 4; b: none of 2
    assert found[1].tolist() == [2000 - 250 - 1000, 0, 250 + 1000, 0]
    again = counts_of(of_people(tmp_path / "t.csv", [*rows, *rows], "abaaab" * 2)).counts
    np.testing.assert_array_equal(found, again)


@pytest.mark.parametrize("record", ["all", "near", "one"])
@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
def test_shares_of_people_are_part_of_the_fit_of_people(tmp_path, record, relation):
    ids = np.arange(N) // 2
    rows = of_people(tmp_path / "t.csv", table(), ids)
    ledger = Ledger(budget=Budget(1.0, 1e-6), neighbours=relation)
    model = PrivateKernelRidge(
        bounds=PEOPLE.domain(), y_bounds=(0, 1), neighbours=relation, ledger=ledger
    )
    model._fit_beside(*rows.training_data(), counts_of(rows), People(rows.ids, record))
    certificate = model.certificate_
    assert len(ledger.spends) == 1 and certificate.verify().epsilon <= 1.0
    assert certificate.unit == "group" and certificate.n_records == N // 2
    moved = certificate.releases[-1].mechanism.sensitivity
    assert certificate.releases[-1].label == LABEL and moved.formula == "unit-shares"
    found = certificate.free_statistics[LABEL]
    off = 6 * found["deviation"]
    assert found["shares"]["x"]["missing"] == pytest.approx(0.25, abs=off)
    assert found["shares"]["z"]["unreadable"] == pytest.approx(0.5, abs=off)


def test_shares_are_not_told_where_their_number_is_private(tmp_path):
    rows = encoded(tmp_path / "t.csv", table())
    model = PrivateKernelRidge(bounds=SCHEMA.domain(), y_bounds=(0, 1), neighbours=AddRemove(N + 9))
    model._fit_beside(*rows.training_data(), counts_of(rows))
    assert LABEL not in [release.label for release in model.certificate_.releases]


def test_the_ledger_refuses_before_anything_is_drawn(tmp_path):
    rows = encoded(tmp_path / "t.csv", table())
    ledger = Ledger(budget=Budget(0.5, 1e-6))
    model = PrivateKernelRidge(bounds=SCHEMA.domain(), y_bounds=(0, 1), ledger=ledger)
    with pytest.raises(Exception, match="does not fit under the ceiling"):
        model._fit_beside(*rows.training_data(), counts_of(rows))
    assert ledger.spends == []


BOUNDS = """
[columns.x]
low = 0
high = 1
missing = 0.5
[columns.z]
low = 0
high = 1
[columns.w]
levels = ["a", "b"]
[target]
name = "y"
low = 0
high = 1
"""


def test_the_command_tells_the_shares_and_an_audit_repeats_the_fit(tmp_path):
    path = write(tmp_path / "t.csv", table())
    (tmp_path / "b.toml").write_text(BOUNDS, encoding="utf-8")
    line = ("fit", path, "--bounds", tmp_path / "b.toml", "--estimator", "PrivateKernelRidge")
    out = ("--out", tmp_path / "m.dpk", "--report", tmp_path / "r.html")
    done = inside(*line, "--set", "kernel=linear", "--epsilon", 20, *out)  # the noise is 0.2 %
    assert done.returncode == 0, done.stderr
    assert "x: 2" in done.stdout and "% missing; 0.5 stood in" in done.stdout
    assert "could not be read" in done.stdout and "% unreadable; 0.5 stood in" in done.stdout
    assert "The cells of the table" in (tmp_path / "r.html").read_text(encoding="utf-8")
    assert inside("verify", tmp_path / "m.dpk").returncode == 0
    model = load(tmp_path / "m.dpk")
    assert LABEL in model.certificate_.free_statistics
    assert "not contradicted" in str(audit_file(tmp_path / "m.dpk", trials=20, n_rows=500))
    told = json.loads(inside(*line, "--no-counts", "--json", "--out", tmp_path / "n.dpk").stdout)
    assert told["cells"] is None
    assert LABEL not in [
        release.label for release in load(tmp_path / "n.dpk").certificate_.releases
    ]


def test_shares_are_told_only_where_the_noise_leaves_something():
    shares = {"a": {"missing": 0.5, "unreadable": 0.02, "outside": 0.0},
              "b": {"missing": 0.0, "unreadable": 0.01, "outside": 0.4},
              "c": {"missing": 0.01, "unreadable": 0.0, "outside": 0.0}}  # fmt: skip
    schema = Schema(tuple(ColumnRule(name, Interval(0, 4)) for name in "abc"))
    told = cell_lines({LABEL: {"deviation": 0.01, "shares": shares}}, schema)
    assert (
        told[1:] == ["a: 50% missing; 2 stood in", "b: 40% outside"]
        and "±\N{NO-BREAK SPACE}2.0% in" in told[0]
    )
    quiet = cell_lines({LABEL: {"deviation": 0.3, "shares": shares}})
    assert len(quiet) == 1 and "no column has clearly more than 90%" in quiet[0]
    shares["c"]["unreadable"] = 0.9
    assert unread_columns({LABEL: {"deviation": 0.01, "shares": shares}}) == ["c"]
    for odd in (
        {},
        {LABEL: 3},
        {LABEL: {"shares": {}}},
        {LABEL: {"deviation": 0.1, "shares": {"a": 1}}},
    ):
        assert cell_lines(odd) == [] == unread_columns(odd)
