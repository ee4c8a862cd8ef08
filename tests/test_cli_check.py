"""What a hospital's own file meets on the first day: commas, codes, dates, and who may see counts."""

from __future__ import annotations

import csv
import json
import re
import tomllib

import numpy as np
import pytest

from cli_tables import SECRET, inside
from dpkernel import Ledger
from dpkernel.data.table_files import read_schema
from dpkernel.foundations.errors import ParameterError

BOUNDS = """
ignore = ["patient"]
empty = ["n/a"]
[columns.age]
low = 0
high = 110
[columns.admitted]
low = 2022-01-01
high = 2024-12-31
format = "%d.%m.%Y"
[columns.crp]
low = 0
high = 300
missing = 5
limits = true
unit = "mg/l"
indicator = true
[columns.ward]
levels = ["surgery", "medicine"]
[target]
name = "days"
low = 0
high = 40
"""
BEHIND = "state the text behind the numbers as unit"
WHOLE = "if all numbers of the column are in it"
RIGHT = ("--delimiter", ";", "--decimal", ",")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A file as a spreadsheet in Europe exports it, with everything that goes wrong in one."""
    folder = tmp_path_factory.mktemp("messy")
    draw = np.random.default_rng(0)
    rows = []
    for i in range(300):
        age, crp = draw.integers(18, 95), float(np.exp(draw.normal(2, 1.2)))
        days = max(age / 10 + np.log1p(crp) + draw.normal(), 0)
        cells = [f"{value:.1f}".replace(".", ",") for value in (crp, days)]
        cells[0] = ("<0,5 mg/l", "n/a", "", cells[0])[min(i % 20, 3)]
        ward = ("surgery", "medicine")[i % 2] if i % 100 else "hospice"
        day = f"{1 + i % 28:02}.{1 + i % 12:02}.2023"
        rows.append([f"P{i}", 999 if i == 7 else age, day, cells[0], ward, cells[1]])
    with (folder / "patients.csv").open("w", encoding="utf-8", newline="") as file:
        table = [["patient", "age", "admitted", "crp", "ward", "days"], *rows]
        csv.writer(file, delimiter=";").writerows(table)
    (folder / "b.toml").write_text(BOUNDS, encoding="utf-8")
    return folder


def check(study, *more, **options):
    return inside("check", study / "patients.csv", "--bounds", study / "b.toml", *more, **options)


def test_check_finds_the_comma_before_it_costs(study):
    wrong = check(study, "--delimiter", ";", "--json")
    told = json.loads(wrong.stdout)
    days = next(column for column in told["columns"] if column["name"] == "days")
    assert days["unreadable"] == 300 and days["advice"] == "pass --decimal ','"
    assert told["for_the_owner_only"] is True
    right = json.loads(check(study, *RIGHT, "--json").stdout)
    found = {c["name"]: (c["missing"], c["unreadable"], c["outside"]) for c in right["columns"]}
    assert found == {
        "age": (0, 0, 1),
        "admitted": (0, 0, 0),
        "crp": (30, 0, 0),
        "ward": (0, 3, 0),
        "days": (0, 0, 0),
    }


def test_check_is_labelled_quotes_no_cell_and_fits_on_a_narrow_terminal(study):
    (study / "secret.csv").write_text(
        (study / "patients.csv").read_text(encoding="utf-8")
        + f"{SECRET};1;{SECRET};x7;{SECRET};1\n",
        encoding="utf-8",
    )
    line = ("check", study / "secret.csv", "--bounds", study / "b.toml", *RIGHT)
    result = inside(*line, env={"COLUMNS": "60"})
    assert result.stdout.startswith("For the data's owner only") and result.returncode == 0
    assert SECRET not in result.stdout + result.stderr
    assert "'a9'" in result.stdout and "A fit would accept this file" in result.stdout
    table = [
        line for line in result.stdout.splitlines() if line.startswith(("age", "crp ", "days"))
    ]
    assert len(table) == 3 and all(len(line) <= 60 for line in table)


def test_a_file_that_is_read_in_the_wrong_way_is_no_success(study):
    """Without --decimal, most cells of a column can't be read, and the exit code says so."""
    result = check(study, "--delimiter", ";")
    assert result.returncode == 1 and "most cells of" in result.stderr
    assert (
        "learn nothing" in result.stderr and "A fit would accept this file.\n" not in result.stdout
    )


def test_check_names_limits_and_codes_of_missing_values(study):
    """One step may not suffice: the advice goes on with the cells that the first step leaves."""
    text = (study / "b.toml").read_text(encoding="utf-8")
    plain = study / "plain.toml"
    for line in ("limits = true\n", 'unit = "mg/l"\n', 'empty = ["n/a"]\n'):
        assert line in text
        text = text.replace(line, "")
    plain.write_text(text, encoding="utf-8")
    line = ("check", study / "patients.csv", "--bounds", plain, "--delimiter", ";", "--json")
    found = json.loads(inside(*line).stdout)["columns"][2]
    rest = "state limits = true, and list \"n/a\" in 'empty'"
    assert found["advice"] == f"{BEHIND}, {WHOLE}, and pass --decimal ',', and {rest}"
    found = json.loads(inside(*line, "--decimal", ",").stdout)["columns"][2]
    assert found["unreadable"] == 30 and found["advice"] == f"{BEHIND}, {WHOLE}, and {rest}"
    words = study / "words.csv"
    words.write_text(f"ward\nsurgery\nk.A.\n{SECRET}\n", encoding="utf-8")
    plain.write_text('[columns.ward]\nlevels = ["surgery"]\n', encoding="utf-8")
    told = inside("check", words, "--bounds", plain).stdout
    assert "list \"k.A.\" in 'empty', and declare their levels" in told and SECRET not in told


EITHER = "pass --thousands ',' if 1,234 is more than a thousand here, or --decimal ',' if it is not"


@pytest.mark.parametrize(
    ("cells", "advice"),
    [
        (["98 %", "97 %", "n/a"], 'state unit = "%", and list "n/a" in \'empty\''),
        (["98,5 %", "97 %"], "state unit = \"%\", and pass --decimal ','"),
        (["<9 mg/l", "7 mg/l", "8 mg/l"], f"{BEHIND}, and state limits = true"),
        (["98", "97", "96 F"], f"{BEHIND}, {WHOLE}"),
        (["7,637", "853", "12,001"], EITHER),
        (["7,637", "85,3"], "pass --decimal ','"),
        (["7,637.5", "85.3"], "pass --thousands ','"),
    ],
)
def test_check_tells_units_thousands_and_decimals_apart(tmp_path, cells, advice):
    (tmp_path / "b.toml").write_text("[columns.x]\nlow = 0\nhigh = 9\n", encoding="utf-8")
    rows = "\n".join(["x;", *(f"{cell};" for cell in cells)])
    (tmp_path / "x.csv").write_text(rows, encoding="utf-8")
    line = (tmp_path / "x.csv", "--bounds", tmp_path / "b.toml", "--delimiter", ";", "--json")
    (found,) = json.loads(inside("check", *line).stdout)["columns"]
    assert found["advice"] == advice


def test_check_says_that_rows_and_not_people_are_protected(study):
    assert "add --group" in check(study, *RIGHT).stdout
    told = check(study, *RIGHT, "--group", "patient").stdout
    assert "add --group" not in told and "patients.csv: 300 rows of 300 people" in told


def test_check_lists_the_inputs_of_a_model(study):
    told = check(study, *RIGHT).stdout
    assert "A model would predict days from age, admitted, crp, ward." in told


def test_check_says_what_a_fit_would_refuse(study):
    result = check(study, *RIGHT, "--strict")
    assert result.returncode == 1 and "3 cells can't be read as declared" in result.stderr
    assert not list(study.glob("*.dpk"))
    missing = check(study)  # the wrong delimiter
    assert missing.returncode == 1 and "--delimiter ';'" in missing.stderr


def test_a_model_of_a_messy_file_reads_new_rows_in_the_same_way(study):
    options = ("--estimator", "PrivateKernelRidge", "--epsilon", 5)
    line = ("fit", study / "patients.csv", "--bounds", study / "b.toml", *RIGHT, *options)
    report = ("--report", study / "r.html")
    result = inside(*line, "--out", study / "m.dpk", *report)
    assert result.returncode == 0, result.stderr
    assert (
        "the middle of the range stands in: age (55), admitted (2023-07-02), days" in result.stdout
    )
    page = (study / "r.html").read_text(encoding="utf-8")
    assert "crp is missing" in page and "2022-01-01 to 2024-12-31" in page
    assert len(re.findall(r">202[2-4]-\d\d-\d\d<", page)) > 5  # ticks, and the numbers behind them
    assert "since 1970" not in page
    shown = inside("show", study / "m.dpk").stdout
    assert "admitted: 2022-01-01 to 2024-12-31" in shown
    line = ("predict", study / "m.dpk", study / "patients.csv", "--delimiter", ";")
    right = inside(*line, "--decimal", ",")
    wrong = inside(*line)
    assert "can't be read" not in right.stderr.replace("column 'ward' can't be read", "")
    assert "of column 'crp' can't be read" in wrong.stderr and wrong.returncode == 0
    assert right.stdout != wrong.stdout
    told = json.loads(inside(*line, "--json").stdout)
    assert told["unreadable"]["crp"] > 200
    assert inside(*line, "--strict").returncode == 1


def test_private_bounds_keep_the_other_rules(study):
    line = ("bounds", study / "patients.csv", "--private", "--wide", study / "b.toml", *RIGHT)
    result = inside(*line, "--epsilon", 3, "--out", study / "found.toml")
    assert result.returncode == 0, result.stderr
    text = (study / "found.toml").read_text(encoding="utf-8")
    for rule in (
        "limits = true",
        'unit = "mg/l"',
        "indicator = true",
        'format = "%d.%m.%Y"',
        "missing = 5",
    ):
        assert rule in text
    line = ("check", study / "patients.csv", "--bounds", study / "found.toml", "--target", "days")
    assert inside(*line, *RIGHT).returncode == 0


def test_strict_refuses_before_anything_is_spent(study):
    book = study / "study.db"
    inside("ledger", "create", book, "--dataset", "d", "--epsilon", 3, "--delta", "1e-6")
    line = ("fit", study / "patients.csv", "--bounds", study / "b.toml", *RIGHT, "--strict")
    result = inside(*line, "--ledger", book, "--out", study / "strict.dpk")
    assert result.returncode == 1 and "can't be read as bounds.toml" in result.stderr
    assert Ledger(book).spends == [] and not (study / "strict.dpk").exists()


FILE = """
[file]
delimiter = ";"
decimal = ","
thousands = "."
encoding = "cp1252"
"""
OWN = """
ignore = ["leer"]
[columns."Patienten Nr"]
[columns."Größe €"]
low = 0
high = 9000
missing = 5
[columns.Tag]
low = 2020-01-01
high = 2030-01-01
format = ["%d.%m.%Y", "iso"]
[columns.Art]
levels = ["A", "B"]
[target]
name = "Ergebnis"
levels = ["ja", "nein"]
"""


@pytest.fixture(scope="module")
def german(tmp_path_factory):
    """A file from Windows in Germany, with two ways to write dates and several visits per person."""
    folder = tmp_path_factory.mktemp("german")
    lines = ["Patienten Nr;Größe €;Tag;Art;leer;Ergebnis"]
    for i in range(600):
        day = f"{1 + i % 28:02}.03.2024" if i % 3 else f"2024-03-{1 + i % 28:02}"
        size = f"{1 + i % 8}.{i % 10}00,5"
        art = "b" if i % 2 and i % 5 else "AB"[i % 2]
        lines.append(f"P{i // 3};{size};{day};{art};;{'ja' if i % 8 > 3 else 'nein'}")
    (folder / "t.csv").write_bytes("\r\n".join(lines).encode("cp1252"))
    (folder / "b.toml").write_text(OWN + FILE, encoding="utf-8")
    return folder


def test_a_template_is_refused_until_the_names_can_be_read(german):
    line = ("bounds", german / "t.csv", "--schema", "--out", german / "new.toml")
    assert "--encoding cp1252" in inside(*line).stderr
    assert "--delimiter ';'" in inside(*line, "--encoding", "cp1252").stderr
    assert not (german / "new.toml").exists()
    done = inside(*line, "--encoding", "cp1252", "--delimiter", ";", "--decimal", ",")
    assert done.returncode == 0, done.stderr
    found = tomllib.loads((german / "new.toml").read_text(encoding="utf-8"))
    assert found["file"] == {"encoding": "cp1252", "delimiter": ";", "decimal": ","}
    assert "Größe €" in found["columns"]


def test_how_a_file_is_written_need_not_be_repeated(german):
    group = ("--group", "Patienten Nr")
    line = (german / "t.csv", "--bounds", german / "b.toml", *group)
    told = json.loads(inside("check", *line, "--json").stdout)
    found = {c["name"]: (c["missing"], c["unreadable"], c["outside"]) for c in told["columns"]}
    assert found == {
        "Größe €": (0, 0, 0),
        "Tag": (0, 0, 0),
        "Art": (0, 240, 0),
        "Ergebnis": (0, 0, 0),
    }
    assert "upper and lower case" in inside("check", *line).stdout
    made = inside("fit", *line, "--out", german / "m.dpk", "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["task"] == "classification"  # the target has levels
    predict = ("predict", german / "m.dpk", german / "t.csv")
    right = inside(*predict)
    assert right.returncode == 0 and "'Größe €' can't be read" not in right.stderr
    plain = german / "plain.csv"
    plain.write_text("Größe €;Tag;Art\n1000.5;2024-03-01;A\n", encoding="utf-8")
    again = inside("predict", german / "m.dpk", plain, "--encoding", "utf-8")
    assert "'Größe €' can't be read" in again.stderr  # options of a command come first, one by one
    options = ("--encoding", "utf-8", "--decimal", ".", "--thousands", ",")
    assert (
        "'Größe €' can't be read" not in inside("predict", german / "m.dpk", plain, *options).stderr
    )


@pytest.mark.parametrize("cell", ["nan", "NaN", "9007199254740993.0"])
def test_check_and_fit_refuse_the_same_ids(german, cell):
    text = (german / "t.csv").read_bytes().replace(b"P3;", cell.encode() + b";")
    (german / "ids.csv").write_bytes(text)
    line = (german / "ids.csv", "--bounds", german / "b.toml", "--group", "Patienten Nr")
    checked, fitted = inside("check", *line), inside("fit", *line, "--out", german / "n.dpk")
    assert "3 rows have" in checked.stderr and cell not in checked.stderr + fitted.stderr
    assert checked.returncode == fitted.returncode == 1 and "An id in groups" in fitted.stderr


def test_check_refuses_a_table_without_inputs(german):
    names = ["Patienten Nr", "Größe €", "Tag", "Art", "leer"]
    target = '[target]\nname = "Ergebnis"\nlevels = ["ja", "nein"]\n'
    (german / "none.toml").write_text(f"ignore = {names}\n{target}{FILE}", encoding="utf-8")
    line = (german / "t.csv", "--bounds", german / "none.toml")
    checked, fitted = inside("check", *line), inside("fit", *line, "--out", german / "n.dpk")
    assert checked.returncode == fitted.returncode == 1
    assert "no input column" in checked.stderr and "no input column" in fitted.stderr


def test_check_counts_rows_without_an_id(german):
    text = (german / "t.csv").read_bytes().replace(b"P3;", b" ;")
    (german / "nobody.csv").write_bytes(text)
    line = ("check", german / "nobody.csv", "--bounds", german / "b.toml")
    done = inside(*line, "--group", "Patienten Nr")
    assert done.returncode == 1 and "3 rows have no id in the column" in done.stderr
    unfilled = inside(*line)
    assert unfilled.returncode == 1 and "is not filled in" in unfilled.stderr
    own = OWN.replace('[columns."Patienten Nr"]', "")
    (german / "own.toml").write_text(own + FILE, encoding="utf-8")
    line = ("check", german / "nobody.csv", "--bounds", german / "own.toml")
    wrong = inside(*line, "--group", "Nr")
    assert wrong.returncode == 1 and "0 columns named 'Nr'" in wrong.stderr + wrong.stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[file]\nquote = 'x'\n", "delimiter, decimal, thousands, encoding"),
        ("[file]\ndecimal = 3\n", "each as a text"),
        ("file = 3\n", "each as a text"),
        ("[columns.d]\nlow = 2020-01-01\nhigh = 2021-01-01\nformat = []\n", "list of such formats"),
        (
            "[columns.d]\nlow = 2020-01-01\nhigh = 2021-01-01\nformat = ['%Y', 'iso']\n",
            "whole date",
        ),
    ],
)
def test_wrong_words_about_a_file_are_refused(tmp_path, text, message):
    (tmp_path / "b.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ParameterError, match=message):
        read_schema(tmp_path / "b.toml")


def test_check_refuses_what_a_fit_under_add_remove_refuses(study, tmp_path):
    hiding = ("--neighbours", "add-remove", "--n-max", "400")
    assert check(study, *RIGHT, *hiding).returncode == 0
    finding = tmp_path / "finding.toml"
    finding.write_text(BOUNDS.replace("missing = 5", 'missing = "private median"'), "utf-8")
    empty = tmp_path / "empty.csv"
    empty.write_text((study / "patients.csv").read_text("utf-8").splitlines()[0] + "\n", "utf-8")
    fit = ("--out", tmp_path / "m.dpk", "--no-counts")
    for more, file, bounds, code, message in (
        (hiding, study / "patients.csv", finding, 1, "must be 'replace-one' or 'zero-out'"),
        ((), study / "patients.csv", finding, 0, "would accept"),
        ((), empty, study / "b.toml", 1, "has no rows"),
        (hiding, empty, study / "b.toml", 0, "would accept"),
    ):
        common = (file, "--bounds", bounds, *RIGHT, *more)
        checked, fitted = inside("check", *common), inside("fit", *common, *fit, "--force")
        assert checked.returncode == fitted.returncode == code
        assert message in " ".join((checked.stdout + checked.stderr).split())
