"""The table of ``make audit``: that nothing is missing from it, what it writes, and when it fails."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
import typer

import dpkernel.estimators
import dpkernel.methods
import dpkernel.preprocessing
from dpkernel.audit import __main__ as command
from dpkernel.audit.table import RELATIONS, Row, estimator_lines, estimator_row, picture_name

SETTING = {"epsilon": 1.0, "factor": 0.02}
LINES = estimator_lines(**SETTING)


def test_every_estimator_is_audited_with_every_relation_and_a_twin():
    audited = {type(line.estimator).__name__ for line in LINES}
    private = {*dpkernel.estimators.__all__, *dpkernel.methods.__all__}
    private |= {name for name in dpkernel.preprocessing.__all__ if name.startswith("Private")}
    # a curator answers questions one by one: its attacks are among those on mechanisms
    assert audited == private - {"PrivateCurator"}
    for sound, twin in zip(LINES[::2], LINES[1::2], strict=True):
        assert sound.broken is None and twin.broken and sound.name == twin.name
        assert type(sound.estimator) is type(twin.estimator)
        assert sound.relation == twin.relation == twin.estimator.neighbours
    names = {line.name for line in LINES}
    assert {(line.name, line.relation) for line in LINES} == {
        (name, relation) for name in names for relation in RELATIONS
    }
    assert len({picture_name(line) for line in LINES}) == len(LINES)


def test_a_twin_is_rejected_and_its_picture_drawn(tmp_path):
    index = next(i for i, line in enumerate(LINES) if line.name == "ridge" and line.broken)
    row = estimator_row(index, 60, 1e-3, tmp_path, **SETTING)
    assert row.verdict == "contradicted" and row.as_it_should_be
    assert row.broken == "0.02 of the noise" and row.claimed_epsilon == pytest.approx(1.0, abs=1e-6)
    assert (tmp_path / "ridge-replace-one-twin.png").stat().st_size > 5000


def test_a_twin_that_is_calibrated_for_more_claims_what_the_sound_one_does():
    grid = [line for line in LINES if line.name == "grid"]
    claims = [line.claim() for line in grid]
    assert claims[0] is None and claims[2] is None
    assert claims[1].epsilon(1e-5) == pytest.approx(1.0, abs=1e-6)
    assert claims[3].epsilon(1e-5) == pytest.approx(0.5, abs=1e-6)
    assert grid[1].estimator.epsilon > 1000 and "noise of epsilon" in grid[1].broken


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
        table = list(csv.DictReader(file))
    assert [line["verdict"] for line in table] == ["not contradicted", "contradicted"]
    assert len(json.loads((out / "audit.json").read_text())["rows"]) == 2
    page = (out / "report.md").read_text()
    assert ("**NO**" in page) is wrong and ("1 are NOT" in page) is wrong
    assert "| ridge | replace-one |" in page and "ridge-replace-one-twin.png" in page
    assert "contradicted" in capsys.readouterr().out
