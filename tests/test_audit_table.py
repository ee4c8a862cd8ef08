"""The table of ``make audit``: that nothing is missing from it, what it writes, and when it fails."""

from __future__ import annotations

import csv
import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import typer
from sklearn.base import clone

import dpkernel.estimators
import dpkernel.methods
import dpkernel.preprocessing
import dpkernel.selection
from dpkernel.foundations.errors import ParameterError
from dpkernel.privacy.profiles import PureProfile
from dpkernel.proof.audit import __main__ as command
from dpkernel.proof.audit import table
from dpkernel.proof.audit.claims import declared_relation
from dpkernel.proof.audit.core import judge_scores, most_provable
from dpkernel.proof.audit.table import RELATIONS, Row, estimator_lines, estimator_row, picture_name
from dpkernel.proof.audit.worst_cases import worst_cases

SETTING = {"epsilon": 1.0, "factor": 0.02}
LINES = estimator_lines(**SETTING)


def test_every_estimator_is_audited_with_every_relation_and_a_twin():
    audited = {type(line.estimator).__name__ for line in LINES}
    rooms = dpkernel, dpkernel.estimators, dpkernel.methods, dpkernel.preprocessing
    found = {
        name: getattr(room, name) for room in (*rooms, dpkernel.selection) for name in room.__all__
    }
    fitted = {name for name, kind in found.items() if hasattr(kind, "fit")}
    assert audited == fitted - {"DeclaredCategories"}  # which reads no data
    names = {line.name for line in LINES}
    for broken in (False, True):
        found = {(line.name, line.relation) for line in LINES if bool(line.broken) is broken}
        assert found == {(name, relation) for name in names for relation in RELATIONS}
    for line, twin in itertools.pairwise(LINES):
        assert declared_relation(line.estimator).value == line.relation
        if twin.broken:  # it stands behind its sound line
            assert line.broken is None and type(line.estimator) is type(twin.estimator)
            same = ("name", "case", "relation", "background", "n_rows", "most_fits")
            assert all(getattr(line, name) == getattr(twin, name) for name in same)
    assert len({picture_name(line) for line in LINES}) == len(LINES)


def test_every_estimator_is_attacked_among_benign_and_hostile_records():
    seen = {(line.name, line.background, line.relation) for line in LINES if not line.broken}
    for name in {line.name for line in LINES}:
        backgrounds = {where for other, where, _ in seen if other == name}
        assert {"benign", "hostile"} <= backgrounds
        if name not in table._SLOW:  # those have one of them for each relation
            pairs = {(where, relation) for other, where, relation in seen if other == name}
            assert {(w, r) for w in ("benign", "hostile") for r in RELATIONS} <= pairs
    large = [line for line in LINES if line.background == "large"]
    assert {line.relation for line in large} == set(RELATIONS)
    for line in large:
        assert line.n_rows >= 20_000 and line.case == "copies of the neighbour"
    kinds = {type(line.estimator).__name__ for line in large}
    assert kinds >= {"PrivateKernelRidge", "PrivateKernelRegressor", "PrivateKernelClassifier"}


def test_every_solver_of_an_estimator_has_a_line():
    chosen = {"solver": set(), "perturbation": set(), "strategy": set()}
    for line in LINES:
        for name in chosen:
            kind = type(line.estimator).__name__
            chosen[name] |= {(kind, getattr(line.estimator, name, None), line.estimator.delta > 0)}
    assert {
        (kind, "output", True) for kind in ("PrivateKernelRidge", "PrivateKernelClassifier")
    } < (chosen["solver"])
    assert ("PrivateKernelClassifier", "output", False) in chosen["solver"]
    for kind in ("PrivateSGDRegressor", "PrivateSGDClassifier"):
        assert {(kind, "output", True), (kind, "gradient", True)} < chosen["perturbation"]
    searches = {("PrivateSearchCV", strategy, True) for strategy in ("free", "exponential")}
    assert searches < chosen["strategy"]
    pure = {type(line.estimator).__name__ for line in LINES if line.estimator.delta == 0}
    assert pure == {"PrivateKernelClassifier", "PrivateKernelSVC", "PrivateKernelSVR"}


@pytest.mark.parametrize(
    "line",
    {line.name: line for line in LINES if line.n_rows < 1000}.values(),
    ids=lambda line: line.name,
)
def test_removed_records_need_a_declared_number_so_they_have_no_lines(line):
    name = "neighbours" if hasattr(line.estimator, "neighbours") else "estimator__neighbours"
    model = clone(line.estimator).set_params(**{name: "add-remove"})
    with pytest.raises(ParameterError, match="Got 'add-remove'"):
        model.fit(*worst_cases(model, line.n_rows)[0].table)


@pytest.mark.parametrize(
    ("name", "broken"),  # the twin of the ridge is below
    [
        ("ridge", False),
        ("SGD, output", False),
        ("SGD, output", True),
        ("bounds", False),
        ("bounds", True),
    ],
)
def test_lines_get_the_verdicts_they_should(name, broken):
    """Real entropy; each of the sound lines is contradicted with probability below 1e-8."""
    wanted = name, broken, "replace-one"
    index = next(i for i, x in enumerate(LINES) if (x.name, bool(x.broken), x.relation) == wanted)
    row = estimator_row(index, *((40, 1e-3) if broken else (20, 1e-8)), **SETTING)
    assert row.as_it_should_be and (row.verdict == "contradicted") is broken
    assert row.trials == (40 if broken else 20)


def test_lines_have_as_many_fits_as_they_need_and_large_ones_fewer(monkeypatch):
    def ask(*_, trials, **__):
        raise RuntimeError(trials)

    monkeypatch.setattr("dpkernel.proof.audit.table.audit", ask)
    search = [line.name for line in LINES].index("search, exponential")
    large = [line.background for line in LINES].index("large")
    for index, wanted, found in ((search, 30, 160), (search, 1000, 1000), (large, 1000, 50)):
        with pytest.raises(RuntimeError, match=f"^{found}$"):
            estimator_row(index, wanted, 1e-6, **SETTING)


def test_a_twin_is_rejected_and_its_picture_drawn(tmp_path):
    twins = [i for i, line in enumerate(LINES) if line.name == "ridge" and line.broken]
    row = estimator_row(twins[0], 60, 1e-3, tmp_path, **SETTING)
    assert row.verdict == "contradicted" and row.as_it_should_be and row.n_rows == 8
    assert row.broken == "0.02 of the noise" and row.claimed_epsilon == pytest.approx(1.0, abs=1e-6)
    assert (tmp_path / "ridge-replace-one-benign-twin.png").stat().st_size > 5000
    hostile = estimator_row(twins[1], 60, 1e-3, tmp_path, **SETTING)
    assert hostile.as_it_should_be and hostile.attack.endswith("(hostile)")
    assert len(list(tmp_path.iterdir())) == 1


def test_a_twin_that_is_calibrated_for_more_claims_what_the_sound_one_does():
    grid = [line for line in LINES if line.name == "grid"]
    assert all(line.claim() is None for line in grid if not line.broken)
    twins = [line for line in grid if line.broken]
    found = [line.claim().epsilon(1e-5) for line in twins]
    assert found == [pytest.approx(1.0, abs=1e-6), pytest.approx(0.5, abs=1e-6)]
    assert twins[0].estimator.epsilon > 1000 and "noise of epsilon" in twins[0].broken


def test_the_most_that_can_be_proved_is_what_a_blatant_leak_proves():
    sides = np.ones(80), np.zeros(80)
    found = judge_scores(sides, sides, PureProfile(1.0), delta=0.0, false_alarm=1e-6)
    assert (
        most_provable(80, 1e-6) == pytest.approx(found.epsilon_lower) == pytest.approx(1.564, 1e-3)
    )
    assert most_provable(4, 1e-6) == 0.0


ROW = Row(
    "estimator",
    "ridge",
    "replace-one",
    "",
    "not contradicted",
    True,
    0.5,
    1.0,
    1e-5,
    0.2,
    100,
    1e-8,
    "x",
    1.0,
)


@pytest.mark.parametrize("wrong", [False, True])
def test_the_command_writes_its_table_and_fails_where_a_verdict_is_wrong(
    tmp_path, monkeypatch, wrong, capsys
):
    rows = [ROW, replace(ROW, broken="half", verdict="contradicted", as_it_should_be=not wrong)]
    asked = []
    monkeypatch.setattr(command, "_run", lambda tasks, jobs: asked.extend(tasks) or iter(rows))
    out = tmp_path / "report"
    if wrong:
        with pytest.raises(typer.Exit) as stop:
            command.main(out, quick=True)
        assert stop.value.exit_code == 1
    else:
        command.main(out, quick=True)
    assert len(asked) == len(LINES) + len(command.all_cases())
    with (out / "audit.csv").open() as file:
        written = list(csv.DictReader(file))
    assert [line["verdict"] for line in written] == ["not contradicted", "contradicted"]
    assert len(json.loads((out / "audit.json").read_text())["rows"]) == 2
    page = (out / "report.md").read_text()
    assert ("**NO**" in page) is wrong and ("1 verdicts are WRONG" in page) is wrong
    assert (
        "For an estimator, 100 fits on each side at a false-alarm rate of 1e-08 can prove at most"
        f" epsilon = {most_provable(100, 1e-8):.2f}, and its twin has half"
    ) in page
    assert "| ridge | replace-one |" in page and "ridge-replace-one-benign-twin.png" in page
    assert "contradicted" in capsys.readouterr().out
