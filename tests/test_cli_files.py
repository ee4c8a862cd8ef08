"""What the commands write: never over an input, never half, and never lost once it was paid for."""

from __future__ import annotations

import csv
import io
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import dpkernel.__main__ as entry
from cli_tables import SECRET, write_study
from dpkernel import (
    Budget,
    Ledger,
    PrivateKernelClassifier,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
)
from dpkernel.cli import app, bounds, fit, model_files, options, output, predict, score
from dpkernel.data.domain import Interval, Levels
from dpkernel.data.table_files import ColumnRule, Schema, open_table, read_schema
from dpkernel.foundations.errors import ParameterError
from dpkernel.outputs.model_file import load, save
from dpkernel.privacy.profiles import PureProfile
from old_ledgers import old_file

FIT = "fit patients.csv --bounds days.toml --target days --estimator PrivateKernelRidge"


@pytest.fixture
def study(tmp_path, monkeypatch):
    write_study(tmp_path, 60)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(line, *more):
    return CliRunner().invoke(app, [*line.split(), *map(str, more)])


def plain_model(path):
    X = np.array([[0.0], [1.0]] * 10)
    model = PrivateKernelRidge(bounds=(0, 1), y_bounds=(0, 1), kernel="linear").fit(X, X[:, 0])
    rules = [{"name": "x", "missing": None, "low": 0.0, "high": 1.0}]
    return save(model, path, metadata={"schema": {"inputs": rules, "target": None}})


@pytest.mark.parametrize(
    "line",
    [
        f"{FIT} --out m --report m",
        f"{FIT} --out m --report ./m",
        f"{FIT} --out study.db --ledger study.db",
        "report model.dpk --out model.dpk",
        "report model.dpk --ledger study.db --out study.db",
        "show model.dpk --out ./model.dpk",
        "audit model.dpk --out model.dpk",
        "audit model.dpk --out a.png --plot a.png",
        "predict model.dpk new.csv --out model.dpk",
        "predict model.dpk new.csv --out new.csv",
        "plan --bounds days.png --target days --plot days.png",
        "ledger export study.db study.db",
        f"{FIT} --out model.dpk",
        f"{FIT} --out new.dpk --report r.html",
        "report model.dpk --out r.html",
        "show model.dpk --out r.html",
        "audit model.dpk --out r.html",
        "audit model.dpk --plot r.html",
        "predict model.dpk new.csv --out r.html",
        "plan --bounds days.toml --target days --plot days.png",
        "ledger export study.db r.html",
        "ledger plot study.db days.png",
        "bounds patients.csv --schema --out days.toml",
    ],
)
def test_a_result_replaces_no_input_and_no_other_result_and_no_earlier_file(study, line):
    plain_model(study / "model.dpk")
    book = Ledger(study / "study.db", dataset="d", budget=Budget(3.0, 1e-5))
    (study / "new.csv").write_text("x\n0.5\n")
    (study / "r.html").write_text("an earlier result")
    shutil.copy(study / "days.toml", study / "days.png")
    before = {path.name: path.read_bytes() for path in study.iterdir()}
    result = call(line)
    assert result.exit_code == 1 and "Choose another name" in result.stderr, result.output
    after = {path.name: path.read_bytes() for path in study.iterdir()}
    assert {k: v for k, v in after.items() if "lock" not in k} == {
        k: v for k, v in before.items() if "lock" not in k
    }
    assert book.spends == []


def test_force_replaces_an_earlier_result_but_no_input(study):
    (study / "m.dpk").write_text("an earlier result")
    assert call(f"{FIT} --out m.dpk --force").exit_code == 0
    assert call("verify m.dpk").exit_code == 0
    for name in ("patients.csv", "days.toml"):
        result = call(f"{FIT} --force --out {name}")
        assert result.exit_code == 1 and "is an input" in result.stderr


def test_a_model_that_another_process_wrote_during_the_fit_is_not_replaced(study, monkeypatch):
    def slow(model, *rest):
        (study / "m.dpk").write_text("of somebody else")
        return PrivateKernelRidge._fit(model, *rest)

    (study / "rescue").mkdir()
    monkeypatch.setattr(PrivateKernelRidge, "fit", slow)
    monkeypatch.setattr(model_files.tempfile, "mkdtemp", lambda prefix: str(study / "rescue"))
    result = call(f"{FIT} --out m.dpk")
    assert result.exit_code == 1 and "created during the fit" in result.stderr
    assert "The budget is spent; the result is in" in result.stderr
    assert (study / "m.dpk").read_text() == "of somebody else"
    assert call("verify", study / "rescue" / "m.dpk").exit_code == 0


@pytest.mark.parametrize("error", [ValueError(SECRET), ParameterError("no"), MemoryError()])
def test_whatever_goes_wrong_after_the_draw_the_model_is_kept(study, monkeypatch, error):
    def broken(model, path, metadata):
        if metadata is not None:
            raise error
        return save(model, path)

    (study / "rescue").mkdir()
    monkeypatch.setattr(model_files, "save", broken)
    monkeypatch.setattr(model_files.tempfile, "mkdtemp", lambda prefix: str(study / "rescue"))
    result = call(f"{FIT} --out model.dpk")
    assert result.exit_code == 1 and "The budget is spent; the result is in" in result.stderr
    assert type(error).__name__ in result.stderr and SECRET not in result.output
    monkeypatch.undo()
    assert call("verify", study / "rescue" / "model.dpk").exit_code == 0


def test_a_model_that_can_nowhere_be_written_is_said_to_be_spent(study, monkeypatch):
    def broken(model, path, metadata):
        raise OSError(28, "No space left on device", str(path))

    (study / "rescue").mkdir()
    monkeypatch.setattr(model_files, "save", broken)
    monkeypatch.setattr(model_files.tempfile, "mkdtemp", lambda prefix: str(study / "rescue"))
    result = call(FIT)
    assert result.exit_code == 1 and "The budget is spent; no copy" in result.stderr
    assert not (study / "rescue").exists()


def test_a_refusal_after_the_draw_says_what_was_spent_and_where_the_model_lies(study, monkeypatch):
    def refuse(*_, **__):
        raise ParameterError("No page.")

    monkeypatch.setattr(fit, "report", refuse)
    result = call(f"{FIT} --report r.html --out m.dpk")
    assert result.exit_code == 1 and result.stderr.startswith("error: No page. The noise may")
    assert "The model is in 'm.dpk'." in result.stderr and (study / "m.dpk").exists()


def test_what_a_model_file_can_not_hold_is_refused_before_the_fit(study, monkeypatch):
    monkeypatch.setattr("dpkernel.foundations.archive.MOST_HEADER", 50)
    book = Ledger(study / "study.db", dataset="d", budget=Budget(3.0, 1e-5))
    result = call(f"{FIT} --ledger study.db")
    assert result.exit_code == 1 and "can't hold what bounds.toml declares" in result.stderr
    assert book.spends == []


def test_bounds_that_were_paid_for_are_kept_with_their_certificate(study, monkeypatch):
    write = Path.write_text

    def full(path, *rest, **more):
        if path.name == "found.toml" and path.parent != study / "rescue":
            raise OSError(28, "No space left on device", str(path))
        return write(path, *rest, **more)

    (study / "rescue").mkdir()
    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(model_files.tempfile, "mkdtemp", lambda prefix: str(study / "rescue"))
    line = "bounds patients.csv --private --wide days.toml --target days --epsilon 1"
    result = call(f"{line} --out found.toml")
    assert result.exit_code == 1 and "The budget is spent; the result is in" in result.stderr
    assert [rule.name for rule in read_schema(study / "rescue" / "found.toml", "days").rules]
    assert call("verify", study / "rescue" / "found.certificate.json").exit_code == 0


def test_an_earlier_certificate_is_not_replaced_by_new_bounds(study):
    (study / "found.certificate.json").write_text("{}")
    line = "bounds patients.csv --private --wide days.toml --target days --epsilon 1"
    result = call(f"{line} --out found.toml")
    assert result.exit_code == 1 and "found.certificate.json already exists" in result.stderr


def test_the_report_is_written_before_anything_is_printed(study, monkeypatch):
    def gone(self, text=""):
        raise KeyboardInterrupt

    monkeypatch.setattr(output.Output, "say", gone)
    assert call(f"{FIT} --out m.dpk --report r.html").exit_code == 130
    assert (study / "m.dpk").exists() and (study / "r.html").exists()


def test_drafts_have_names_of_their_own_and_vanish_on_failure(study, monkeypatch):
    plain_model(study / "model.dpk")
    (study / "new.csv").write_text("x\n0.5\n")
    for name in ("p.csv.part", "r.html.part"):
        (study / name).write_text("of somebody else")
    before = sorted(path.name for path in study.iterdir())

    def page(subject, path, **_):
        path.write_text("half")
        raise OSError(28, "No space left on device", str(path))

    def fail(self, X):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_files, "write_report", page)
    monkeypatch.setattr(predict._Predictor, "__call__", fail)
    assert call("report model.dpk --out r.html").exit_code == 1
    assert call("predict model.dpk new.csv --out p.csv").exit_code == 1
    assert sorted(path.name for path in study.iterdir()) == before
    monkeypatch.undo()
    monkeypatch.chdir(study)
    assert call("report model.dpk --out r.html").exit_code == 0
    assert call("predict model.dpk new.csv --out p.csv").exit_code == 0
    assert (study / "p.csv.part").read_text() == "of somebody else"
    assert sorted(path.name for path in study.iterdir()) == sorted([*before, "p.csv", "r.html"])


def test_predictions_stand_line_by_line_beside_the_rows(study):
    plain_model(study / "model.dpk")
    (study / "new.csv").write_text("x\n0.1\n\n0.9\n")
    found = call("predict model.dpk new.csv").stdout.splitlines()
    (study / "new.csv").write_text('x\n0.1\n""\n0.9\n')
    assert len(found) == 4 and call("predict model.dpk new.csv").stdout.splitlines() == found
    (study / "new.csv").write_text("x\n")
    assert call("predict model.dpk new.csv").stdout == "prediction\n"
    told = json.loads(call("predict model.dpk new.csv --json").stdout)
    assert told == {"ok": True, "n_rows": 0, "columns": ["prediction"], "predictions": []}


def test_an_id_stands_beside_each_prediction(study):
    plain_model(study / "model.dpk")
    (study / "new.csv").write_text("who,x\nA7,0.1\n,0.2\n7,0.9\n")
    plain = call("predict model.dpk new.csv").stdout.splitlines()
    found = call("predict model.dpk new.csv --id who").stdout.splitlines()
    assert found == [
        f"{one},{rest}" for one, rest in zip(["who", "A7", "", "7"], plain, strict=True)
    ]
    told = json.loads(call("predict model.dpk new.csv --id x --json").stdout)
    assert told["columns"] == ["x", "prediction"] and told["predictions"][2][0] == "0.9"
    result = call("predict model.dpk new.csv --id nobody")
    assert result.exit_code == 1 and "exactly one column named 'nobody'" in result.stderr


def test_a_score_is_one_spend_with_an_interval_and_a_certificate(study):
    assert call(f"{FIT} --epsilon 20 --out m.dpk").exit_code == 0
    book = Ledger(study / "study.db", dataset="d", budget=Budget(9.0, 1e-6))
    line = "score m.dpk patients.csv --metric mae --ledger study.db"
    made = call(f"{line} --epsilon 5 --out s.json --report r.html")
    assert made.exit_code == 0 and "mae = " in made.stdout, made.output
    assert "lies in the interval in 95 % of cases" in made.stdout
    assert [s.label for s in book.spends] == ["mae of held-out rows"]
    assert call("verify s.json").stdout.startswith("The parameters support the claim: epsilon = 5")
    page = (study / "r.html").read_text(encoding="utf-8")
    assert "Private scores" in page and "mean absolute error" in page
    with (study / "patients.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    X, y = fit_rows(rows)
    exact = np.abs(load(study / "m.dpk").predict(X) - np.clip(y, 0, 30)).mean()
    told = json.loads(call("score m.dpk patients.csv --metric mae --epsilon 1e6 --json").stdout)
    assert told["score"] == pytest.approx(exact, abs=1e-3) and told["n_rows"] == 60
    people = json.loads(call("score m.dpk patients.csv --group id --epsilon 3 --json").stdout)
    assert people["n_people"] == 60 and people["metric"] == "mae"


def test_a_score_that_was_paid_for_is_told_whatever_fails_then(study, monkeypatch):
    assert call(f"{FIT} --out m.dpk").exit_code == 0

    def full(*anything):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(score, "report", full)
    result = call("score m.dpk patients.csv --report r.html --json")
    assert result.exit_code == 1 and "mae = " in result.stderr
    assert "count epsilon and delta as spent" in result.stderr


def fit_rows(rows):
    """Return inputs and target of patients.csv as a model reads them."""

    def number(text, low, high):
        try:
            return min(max(float(text), low), high)
        except ValueError:
            return (low + high) / 2

    X = [[number(r["age"], 0, 100), *(r["ward"] == w for w in ("north", "south"))] for r in rows]
    return np.array(X, dtype=float), np.array([number(r["days"], 0, 30) for r in rows])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "score m.dpk patients.csv --metric auc",
            "'auc' is for two classes, and the model predicts",
        ),
        ("score m.dpk patients.csv --metric r3", "'metric' parameter of private_score must be one"),
        (
            "score m.dpk patients.csv --metric accuracy --ledger none.db",
            "There is no ledger none.db",
        ),
        ("score m.dpk patients.csv --group nobody", "no column named 'nobody'"),
        ("score m.dpk patients.csv --group age", "'age' is an input of the model"),
        ("score m.dpk new.csv", "no column named 'days'"),
        ("score m.dpk patients.csv --strict", "can't be read as bounds.toml declares it"),
        ("score m.dpk patients.csv --out m.dpk", "is an input"),
        ("score m.dpk patients.csv --out nodir/s.json", "There is no folder 'nodir'"),
        ("score m.dpk patients.csv --neighbours add-remove", "add-remove"),
        ("score m.dpk patients.csv --epsilon 0", "'epsilon' parameter of Budget"),
        ("score q.dpk patients.csv", "several quantiles has no single score"),
        ("score q.dpk patients.csv --quantile 0.5", "one of the model's quantiles 0.1, 0.9"),
        ("score m.dpk patients.csv --quantile 0.5", "for a model of several quantiles"),
        ("score bare.dpk patients.csv", "saved from Python"),
    ],
)
def test_a_score_that_can_not_be_made_is_one_sentence_and_spends_nothing(study, line, words):
    assert call(f"{FIT} --out m.dpk").exit_code == 0
    (study / "new.csv").write_text("id,age,ward\n1,2,north\n")
    if "q.dpk" in line:
        both = "--task quantile --quantile 0.1 --quantile 0.9 --set n_features=20"
        made = call(f"fit patients.csv --bounds days.toml --target days {both} --out q.dpk")
        assert made.exit_code == 0, made.output
    if "bare" in line:
        save(
            PrivateKernelRidge(bounds=(0, 1), y_bounds=(0, 1)).fit([[0.0]] * 9, [0.0] * 9),
            "bare.dpk",
        )
    book = Ledger(study / "study.db", dataset="d", budget=Budget(9.0, 1e-6))
    more = "" if "--ledger" in line or "add-remove" in line else "--ledger study.db"
    result = call(f"{line} {more}")
    assert result.exit_code == 1 and words in result.stderr, result.output
    assert len(result.stderr.strip().splitlines()) == 1 and book.spends == []


def test_a_score_without_a_ledger_of_people_or_much_noise_says_so(study):
    made = call(f"{FIT} --group id --epsilon 3 --out m.dpk")
    assert made.exit_code == 0, made.output
    told = call("score m.dpk patients.csv --metric r2 --epsilon 0.1").stderr  # from -inf to 1
    assert "The model protects people" in told and "The noise is as large as the score" in told
    told = call("score m.dpk patients.csv --epsilon 100 --group id").stderr
    assert "note" not in told
    assert "So does --metric mae" in score.too_wide("mse")
    assert "mae" not in score.too_wide("accuracy")


def test_a_fit_that_can_learn_nothing_says_so(study):
    made = call("fit patients.csv --bounds days.toml --target days --epsilon 0.1 --report r.html")
    assert made.exit_code == 0 and "warning: The model is a constant" in made.stderr
    assert "No column. The model is a constant" in (study / "r.html").read_text(encoding="utf-8")
    assert "constant" not in call(f"{FIT} --epsilon 0.1 --out m.dpk").stderr


@pytest.mark.parametrize("text", ["{yes = 20, no = 1}", '{"yes": 20, "no": 1}'])
def test_weights_of_classes_are_written_as_in_toml_or_json(text):
    found = options._settings([f"class_weight={text}"], PrivateKernelClassifier)
    assert found == {"class_weight": {"yes": 20, "no": 1}}
    assert options._by_level({"1": 20, "x": 1}, Levels((0, 1))) == {1: 20, "x": 1}


def test_probabilities_of_a_loss_for_decisions_are_named(study):
    line = "fit patients.csv --bounds sick.toml --target sick --epsilon 9 --set n_features=20"
    assert call(f"{line} --out hinge.dpk --report hinge.html").exit_code == 0
    assert (
        call(f"{line} --out logistic.dpk --report logistic.html --set loss=logistic").exit_code == 0
    )
    told = call("predict hinge.dpk patients.csv --probabilities").stderr
    assert "note: These probabilities follow from the loss 'smoothed_hinge'" in told
    assert "`fit --set loss=logistic`" in told
    assert "note:" not in call("predict hinge.dpk patients.csv").stderr
    assert "note:" not in call("predict logistic.dpk patients.csv --probabilities").stderr
    for name, said in (("hinge", True), ("logistic", False)):
        page = (study / f"{name}.html").read_text(encoding="utf-8")
        assert ("can lie far from the shares of the classes" in page) is said


def test_a_fit_says_what_is_known_of_its_quality_and_why_shares_are_left_out(study):
    made = call(f"{FIT} --epsilon 50 --out m.dpk").stdout
    assert "quality  mean squared error on the training data: " in made
    assert "shares" not in made
    small = call(f"{FIT} --epsilon 0.5 --out s.dpk").stdout
    assert "cells were not released, because the noise would drown them." in small
    pure = call(f"{FIT} --epsilon 3 --delta 0 --out p.dpk").stdout
    assert "because the guarantee has no delta." in pure
    hidden = call(f"{FIT} --epsilon 3 --out h.dpk --neighbours add-remove --n-max 90").stdout
    assert "because they would tell the number of records." in hidden
    unasked = call(f"{FIT} --epsilon 0.5 --out u.dpk --no-counts").stdout
    assert "shares" not in unasked
    labels = call("fit patients.csv --bounds sick.toml --target sick --out c.dpk").stdout
    assert "quality  no number was released with this model; `dpkernel score`" in labels


def test_a_template_shows_how_to_say_how_a_file_of_text_is_written(study):
    assert call("bounds patients.csv --schema --out t.toml").exit_code == 0
    text = (study / "t.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["file"] == {}
    for line in (
        '# delimiter = ";"',
        '# decimal = ","',
        '# thousands = "."',
        '# encoding = "cp1252"',
    ):
        assert line in text
        text = text.replace(line, line[2:])
    written = tomllib.loads(text)["file"]
    assert written == {"delimiter": ";", "decimal": ",", "thousands": ".", "encoding": "cp1252"}
    np.savez(study / "t.npz", x=np.zeros(3))
    assert "[file]" not in call("bounds t.npz --schema").stdout


def test_a_paragraph_of_help_is_broken_by_the_terminal_alone(study, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    shown = [line.strip() for line in call("check --help").stdout.splitlines()]
    first = next(i for i, line in enumerate(shown) if line.startswith("It counts"))
    paragraph = shown[first : shown.index("", first)]
    assert len(paragraph) > 4 and min(map(len, paragraph[:-1])) > 40


def test_lines_end_between_words_on_a_terminal_alone(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    text = "a few words " * 9 + "/a/long/path-that/stays" * 3
    output.Output().say(text)
    assert capsys.readouterr().out == f"{text}\n"
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as rich sees it
    output.Output().note(text)
    lines = capsys.readouterr().err.split("\n")
    assert " ".join(lines).split() == text.split() and max(map(len, lines[:-2])) <= 60


def test_flags_are_shown_without_a_type(study):
    for line in ("--help", "fit --help", "ledger --help", "ledger plot --help"):
        assert "<bool>" not in call(line).stdout and "BOOLEAN" not in call(line).stdout


def test_results_of_a_ledger_are_named_by_an_option_or_an_argument(study):
    Ledger(study / "study.db", dataset="d", budget=Budget(3.0, 1e-5))
    assert call("ledger export study.db --out a.json").exit_code == 0
    assert call("ledger export study.db b.json").exit_code == 0
    assert call("ledger plot study.db --out a.png").exit_code == 0
    assert (study / "a.json").read_text() == (study / "b.json").read_text()


def hot_journal(folder):
    """Leave a ledger as kill -9 does in the middle of a commit."""
    book = Ledger(folder / "whole.db", dataset="d", budget=Budget(3.0, 1e-5))
    book.spend(PureProfile(1.0), "kept")
    connection = sqlite3.connect(folder / "whole.db", isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")  # the journal is written at once
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE spends SET label = 'half'")
    for ending in ("", "-journal"):
        shutil.copy(folder / f"whole.db{ending}", folder / f"study.db{ending}")
    connection.execute("ROLLBACK")
    connection.close()


@pytest.mark.parametrize(
    "line",
    [
        "ledger list study.db",
        "ledger list study.db --dataset d",
        "ledger export study.db l.json",
        "report model.dpk --ledger study.db --out r.html",
        "ledger create study.db --dataset e --epsilon 1 --delta 0",
    ],
)
def test_a_ledger_of_a_killed_process_is_read(study, line):
    plain_model(study / "model.dpk")
    hot_journal(study)
    result = call(line)
    assert result.exit_code == 0, result.output
    assert not (study / "study.db-journal").exists()
    assert [spend.label for spend in Ledger(study / "study.db", dataset="d").spends] == ["kept"]


def test_any_name_of_a_column_makes_a_template_that_is_read_again(study):
    names = ["alter", "größe", "\U0001f600 x", 'a"b\\c', "d\x7f\x1bd", "nan", "inf", "x.y", "1e"]
    header = ",".join('"' + name.replace('"', '""') + '"' for name in names)
    (study / "t.csv").write_text(header + "\n", encoding="utf-8")
    text = bounds.template(open_table(study / "t.csv"), {})
    assert list(tomllib.loads(text)["columns"]) == names
    rules = [ColumnRule(name, Levels((name, 1, 0.5, False)), name) for name in names]
    declared = Schema((*rules, ColumnRule("i", Interval(0, 1))), ignore=tuple(names))
    written = tomllib.loads(bounds.as_toml(declared, declared.rules, {}))
    assert written["ignore"] == names and written["columns"]["i"] == {"low": 0.0, "high": 1.0}
    for name in names:
        assert written["columns"][name] == {"levels": [name, 1, 0.5, False], "missing": name}


def test_texts_that_are_no_ids_stay_in_a_file_with_narrower_bounds(study):
    """Otherwise a fit with that file would take all rows without an id for one person."""
    (study / "wide.toml").write_text(
        'empty = ["NA"]\n[columns.id]\n[columns.a]\nlow = 0\nhigh = 1\nempty = []\n'
        "[columns.b]\nlow = 0\nhigh = 1\n"
    )
    wide = read_schema(study / "wide.toml", group="id")
    text = bounds.as_toml(wide, wide.rules, {})
    (study / "narrow.toml").write_text(text)
    narrow = read_schema(study / "narrow.toml", group="id")
    assert narrow.ids({"id": ["NA", "7"]}) == [None, "7"]
    assert [rule.empty for rule in narrow.rules] == [(), ("NA",)]


def test_two_columns_of_one_name_have_no_template(study):
    (study / "t.csv").write_text(f"a,{SECRET},{SECRET}\n")
    result = call("bounds t.csv --schema --out b.toml")
    assert result.exit_code == 1 and "have the same name" in result.stderr
    assert SECRET not in result.output and not (study / "b.toml").exists()


def test_a_progress_bar_leaves_a_redirected_result_where_it_belongs(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # standard error is a terminal, standard output is not
    told = output.Output()
    assert told.live
    with told.progress("reading"):
        told.raw("result\n")
    assert capsys.readouterr().out == "result\n"


def test_control_characters_do_not_reach_the_terminal(study, monkeypatch, capsys):
    told = output.Output()
    told.say("a\x1b[2Jb\x07\x9bc\n\td\u202e")
    told.note("\x1b]0;x\x07")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    told.raw("label\x1b[31m\n")
    with pytest.raises(output.typer.Exit):
        told.fail("no\x1b[1A")
    found = capsys.readouterr()
    assert "a\\u001b[2Jb\\u0007\\u009bc\n" in found.out and "d\\u202e" in found.out
    assert "label\\u001b[31m\n" in found.out and "\x1b" not in found.out + found.err
    with old_file(study / "study.db", 3) as connection:  # with a name that is refused now
        row = ("d\x1b[2J", 3.0, 1e-5, "replace-one", "auto", "then")
        columns = "name, epsilon, delta, neighbours, accounting, created"
        connection.execute(f"INSERT INTO datasets ({columns}) VALUES (?, ?, ?, ?, ?, ?)", row)
    book = Ledger(study / "study.db", dataset="d\x1b[2J")
    book.spend(PureProfile(1.0), "a\x1bb\nc")
    listed = call("ledger list study.db").stdout
    assert "\x1b" not in listed and "a\\u001bb\\nc" in listed


def test_a_reader_who_went_away_is_no_error(monkeypatch, tmp_path):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

        def fileno(self):
            return file.fileno()

    with (tmp_path / "any").open("w") as file:
        monkeypatch.setattr(sys, "stdout", Gone())
        told = output.Output()
        with pytest.raises(output.typer.Exit) as caught, told.guarded():
            told.say("result")
    assert caught.value.exit_code == 0


def test_debug_without_an_error_shows_no_traceback(study, capsys):
    with pytest.raises(output.typer.Exit):
        output.Output(debug=True).fail("no")
    assert capsys.readouterr().err == "error: no\n"


@pytest.mark.parametrize("line", ["fit", "fits", "--nix", "plan --rows many", "ledger crate"])
def test_wrong_usage_is_a_json_object_where_one_was_asked_for(study, line):
    result = call(f"{line} --json")
    told = json.loads(result.stdout)
    assert result.exit_code == 2 and told["ok"] is False and told["error"]
    assert call(line).stdout == ""


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5])
def test_an_interrupt_while_modules_load_is_one_line(study, seconds):
    """Whenever it comes after the start, no traceback is shown and nothing is written."""
    start = (
        "import sys, dpkernel.__main__ as entry; print('started', flush=True);"
        "sys.argv = ['dpkernel', *sys.argv[1:]]; entry.main()"
    )
    words = ("predict", "none.dpk", "none.csv")
    child = subprocess.Popen(
        [sys.executable, "-c", start, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "started\n"
    time.sleep(0.01 + seconds)
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=60)
    ends = {130: "error: Interrupted. Nothing was spent.\n", 1: "error: none.dpk can't be read"}
    assert error.startswith(ends[child.returncode]) and len(error.splitlines()) == 1


def test_an_interrupt_that_an_import_wraps_is_an_interrupt():
    found = output.Output()
    with pytest.raises(typer.Exit) as caught, found.guarded():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("Error calling __set_name__") from error
    assert caught.value.exit_code == 130


def test_an_interrupt_while_the_commands_load_is_one_line(monkeypatch, capsys):
    class Interrupted:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "dpkernel.cli", Interrupted())
    with pytest.raises(SystemExit) as caught:
        entry.main()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "error: Interrupted. Nothing was spent.\n"


def test_quantiles_are_their_own_intervals():
    with pytest.raises(ParameterError, match="between two of its quantiles: leave out --interval"):
        predict._Predictor(PrivateQuantileRegressor(), False, False, 0.9)
    with pytest.raises(ParameterError, match="Fit quantiles with --task quantile"):
        predict._Predictor(PrivateKernelRidge(), False, False, 0.9)
