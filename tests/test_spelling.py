"""How cells of a file are read: decimal signs, dates, limits, codes, encodings and compressed files.

Whatever the options, what becomes of a row depends on that row alone.
"""

from __future__ import annotations

import bz2
import datetime
import gzip
import lzma
import math

import numpy as np
import pytest

from dpkernel.data.domain import Interval, Levels
from dpkernel.data.table_files import (
    ColumnRule,
    Schema,
    Spelling,
    encode_table,
    inspect_table,
    open_table,
    read_schema,
)
from dpkernel.data.table_files.readers import _checked_encoding
from dpkernel.data.table_files.schema import CLIPPED, MISSING, READ, UNREADABLE, middles
from dpkernel.data.table_files.spelling import date_of, day, numbers
from dpkernel.foundations.errors import CertificateError, DataError, ParameterError

NAN = math.nan
COMMA = Spelling(",")
GERMAN = Spelling(",", ".")
BLANK = Spelling(",", " ")


@pytest.mark.parametrize(
    ("spelling", "text", "value"),
    [
        (Spelling(), "5.8", 5.8),
        (Spelling(), "5,8", NAN),
        (COMMA, "5,8", 5.8),
        (COMMA, " -5,8e2 ", -580.0),
        (COMMA, "58", 58.0),
        (COMMA, ",5", 0.5),
        (COMMA, "5,", 5.0),
        (COMMA, "5.8", NAN),  # a dot is no part of a number, because it may group digits
        (COMMA, "1.234,5", NAN),
        (COMMA, ",", NAN),
        (COMMA, "-", NAN),
        (COMMA, "e5", NAN),
        (COMMA, "5,8,9", NAN),
        (COMMA, "\u0665,\u0668", NAN),
        (COMMA, "-inf", -math.inf),
        (COMMA, "NaN", NAN),
        (GERMAN, "1.234.567,5", 1234567.5),
        (GERMAN, "1234567,5", 1234567.5),
        (GERMAN, "1.5", NAN),  # not 15
        (GERMAN, "1.2345", NAN),
        (GERMAN, "1234.567", NAN),
        (GERMAN, "1.234,5.6", NAN),
        (BLANK, "1 234\u202f567\u00a0890,5", 1234567890.5),
        (BLANK, "1  234", NAN),
        (Spelling(".", ","), "1,234.5", 1234.5),
        (Spelling(".", ","), "1,2", NAN),
        (Spelling(".", "'"), "1'234", 1234.0),
    ],
)
def test_a_text_is_the_number_that_its_spelling_says(spelling, text, value):
    assert np.array_equal(numbers([text], spelling), [value], equal_nan=True)


def test_limits_are_read_as_their_number_only_where_that_is_declared():
    texts = ["<0,5", "> 300", "≤ 2,5", ">=7", "<", "<<5", "5"]
    assert np.isnan(numbers(texts, COMMA)[:6]).all()
    found = numbers(texts, COMMA, limits=True)
    assert np.array_equal(found, [0.5, 300, 2.5, 7, NAN, NAN, 5], equal_nan=True)


def test_a_unit_may_stand_behind_a_number_where_it_is_declared():
    texts = ["98 %", "98%", "97,5 %", " 96 ", "<90 %", "%", "9%8", "98 mg", "1e2%"]
    assert np.isnan(numbers(["98 %"])).all()
    found = numbers(texts, COMMA, limits=True, unit="%")
    assert np.array_equal(found, [98, 98, 97.5, 96, 90, NAN, NAN, NAN, 100], equal_nan=True)
    assert numbers(["5 MG/L", "5 mg/l"], unit="mg/l").tolist() == [5, 5]


def test_numbers_that_are_no_texts_are_left_as_they_are():
    assert numbers([5.8, 3, None], GERMAN)[:2].tolist() == [5.8, 3.0]
    assert numbers(np.array([1.5, 2.0]), GERMAN).tolist() == [1.5, 2.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decimal": ";"}, "--decimal must be a dot or a comma"),
        ({"decimal": ""}, "--decimal must be a dot or a comma"),
        ({"thousands": "x"}, "--thousands must be"),
        ({"thousands": "."}, "different signs"),
    ],
)
def test_a_wrong_spelling_is_refused(options, words):
    with pytest.raises(ParameterError, match=words):
        Spelling(**options)


def test_dates_are_days():
    assert day("1970-01-02") == 1.0 and day(" 1970-01-01T12:00 ") == 0.5
    assert day("1970-01-01T12:00+12:00") == 0.0 and day("31.12.1969", "%d.%m.%Y") == -1.0
    assert day(datetime.date(1970, 1, 3)) == 2.0 == day(datetime.datetime(1970, 1, 3))
    for cell in ("", "1970", "1970-02-30", "3", 3, 3.5, None, "0001-01-01T00:00+23:00", b"x"):
        assert math.isnan(day(cell)), cell
    assert date_of(1.9) == datetime.date(1970, 1, 2)


TOML = """
ignore = ["id"]
empty = ["NA"]
[columns.crp]
low = 0
high = 300
missing = 5
empty = [-9, "n/a"]
limits = true
indicator = true
[columns.day]
low = 2020-01-01
high = 2026-12-31
format = "%d.%m.%Y"
missing = 2021-01-01
[columns.ward]
levels = ["north", "south"]
[target]
name = "days"
low = 0
high = 40
"""
HEADER = "id;crp;day;ward;days"
ROWS = ["0;5,8;02.01.2020;north;3,5", "1;<0,5;05.01.2020;south;NA"]
TRIES = {
    "5,8": (5.8, 0.0, READ),
    "<0,5": (0.5, 0.0, READ),
    "": (5.0, 1.0, MISSING),
    " NaN ": (5.0, 1.0, MISSING),
    "-9": (5.0, 1.0, MISSING),
    "-9,0": (5.0, 1.0, MISSING),
    "n/a": (5.0, 1.0, MISSING),
    "NA": (5.0, 1.0, UNREADABLE),  # the column has a list of its own
    "5.8": (5.0, 1.0, UNREADABLE),
    "301": (300.0, 0.0, CLIPPED),
    "-inf": (0.0, 0.0, CLIPPED),
}


@pytest.fixture
def schema(tmp_path):
    (tmp_path / "b.toml").write_text(TOML, encoding="utf-8")
    return read_schema(tmp_path / "b.toml")


def write(path, rows=ROWS, encoding="utf-8"):
    path.write_text("\n".join([HEADER, *rows]) + "\n", encoding=encoding)
    return path


def encoded(path, schema, **options):
    table = open_table(path, **{"delimiter": ";", "spelling": COMMA} | options)
    X, y = encode_table(table, schema).arrays()
    return np.column_stack([X, y])


def test_every_cell_follows_a_public_rule(tmp_path, schema):
    assert schema.names_out == ["crp", "crp is missing", "day", "ward=north", "ward=south"]
    found = encoded(write(tmp_path / "t.csv"), schema)
    start = (datetime.date(2020, 1, 1) - datetime.date(1970, 1, 1)).days
    assert found.tolist() == [[5.8, 0, start + 1, 1, 0, 3.5], [0.5, 0, start + 4, 0, 1, 20]]
    assert schema.domain().to_unit(found[:, :5]).shape == (2, 5)
    for text, (value, absent, state) in TRIES.items():
        assert schema.inputs[0].encode([text], COMMA).tolist() == [[value, absent]], text
        assert schema.inputs[0].read([text], COMMA)[1].tolist() == [state], text
    day_of = schema.inputs[1].read(["2.1.2020", "2020-01-02", "", "01.01.2019"])[1].tolist()
    assert day_of == [READ, UNREADABLE, MISSING, CLIPPED]
    ward = schema.inputs[2].read(["north", "NA", "east", None, "", 7])[1].tolist()
    assert ward == [READ, MISSING, UNREADABLE, MISSING, MISSING, UNREADABLE]


def test_what_is_declared_survives_a_model_file(schema):
    again = Schema.from_dict(schema.to_dict())
    assert again.inputs == schema.inputs and again.target == schema.target


@pytest.mark.parametrize(
    "change",
    [
        {"format": "%d"},
        {"format": 3},
        {"format": "%" * 10**6},
        {"limits": "yes"},
        {"indicator": 1},
        {"empty": "NA"},
        {"empty": [[1]]},
        {"levels": ["a"]},
    ],
)
def test_a_model_file_with_strange_rules_is_refused(schema, change):
    data = schema.to_dict()
    data["inputs"][0 if change.keys() & {"levels", "limits", "empty"} else 1].update(change)
    with pytest.raises(CertificateError, match="can't be read"):
        Schema.from_dict(data)


def test_codes_of_missing_values_hold_for_numbers_in_any_file(tmp_path, schema):
    rule = schema.inputs[0]
    assert rule.read(np.array([-9.0, 5.0, np.nan]))[1].tolist() == [MISSING, READ, MISSING]
    assert rule.read([-9, 5, None, True])[1].tolist() == [MISSING, READ, MISSING, READ]
    coded = ColumnRule("x", Levels(("a", "-9")), empty=("-9", "b"))
    assert coded.read(["-9", "b", "c"])[1].tolist() == [READ, MISSING, UNREADABLE]


HOSTILE = [
    "",
    "?",
    "<",
    "9" * 400,
    "1.000",
    "01.01.1000000",
    "\x85\x1c\u2028",
    "ÿ\xa0",
    "+AGE-",
    "é\x1b$B",
]


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1252", "koi8-r"])
@pytest.mark.parametrize("spelling", [Spelling(), COMMA, GERMAN, BLANK])
def test_a_hostile_row_changes_no_other(tmp_path, schema, spelling, encoding):
    rows = [f"{i};{i},5;0{1 + i % 9}.01.2020;north;{i}" for i in range(9)]
    others = [place for place in range(9) if place != 4]
    options = {"encoding": encoding, "spelling": spelling}
    expected = encoded(write(tmp_path / "t.csv", rows), schema, **options)[others]
    for cell in HOSTILE:
        for column in range(1, 5):
            fields = rows[4].split(";")
            fields[column] = cell
            changed = [*rows[:4], ";".join(fields), *rows[5:]]
            content = "\n".join([HEADER, *changed]) + "\n"
            (tmp_path / "h.csv").write_bytes(content.encode(encoding, "ignore"))
            found = encoded(tmp_path / "h.csv", schema, **options)
            assert np.array_equal(found[others], expected), (cell, column)


@pytest.mark.parametrize("name", ["utf-16", "utf-7", "shift_jis", "iso2022_jp", "gb18030", "cp037"])
def test_an_encoding_in_which_one_cell_can_change_others_is_refused(tmp_path, name):
    with pytest.raises(ParameterError, match="one byte per character"):
        open_table(write(tmp_path / "t.csv"), encoding=name)


def test_why_such_encodings_are_refused():
    """A cell that ends in the first byte of a pair, or in an escape, takes the next row with it."""
    assert len("1\n2\n".encode("utf-16-le")[:-1].decode("utf-16-le", "replace").split("\n")) == 2
    rows = b'\x1b$B\n$"$$\n'
    assert rows.decode("iso2022_jp", "replace") != rows[3:].decode("iso2022_jp", "replace")


@pytest.mark.parametrize("name", ["nix", "base64", "rot13", ""])
def test_an_unknown_encoding_is_refused(tmp_path, name):
    with pytest.raises(ParameterError, match="not known"):
        open_table(write(tmp_path / "t.csv"), encoding=name)
    assert _checked_encoding("UTF8") == "utf-8-sig"


def test_an_encoding_is_for_text_files_only(tmp_path):
    np.savez(tmp_path / "t.npz", x=np.ones(3))
    with pytest.raises(ParameterError, match="for CSV and TSV files only"):
        open_table(tmp_path / "t.npz", encoding="latin-1")
    (tmp_path / "t.npz").rename(tmp_path / "t.npz.gz")
    with pytest.raises(ParameterError, match="for CSV and TSV files only"):
        open_table(tmp_path / "t.npz.gz")


def zstd(data):
    arrow = pytest.importorskip("pyarrow")
    sink = arrow.BufferOutputStream()
    with arrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("ending", "compress"),
    [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress), ("zst", zstd)],
)
def test_compressed_files_are_read_and_damaged_ones_refused(tmp_path, schema, ending, compress):
    content = "\n".join([HEADER, *ROWS * 3000]).encode()
    path = tmp_path / f"t.csv.{ending}"
    path.write_bytes(compress(content))
    assert len(encoded(path, schema)) == 6000
    whole = path.read_bytes()
    for damaged in (whole[:-9], b"id;crp;day;ward;days\n", whole[:60] + b"?" * 20 + whole[80:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="is damaged, or is not compressed"):
            encoded(path, schema)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("low = 2020-01-01\nhigh = 5", "low and high must be dates"),
        ("low = 0\nhigh = 5\nformat = 'iso'", "low and high must be dates"),
        ("low = 2021-01-01\nhigh = 2020-01-01", "low < high"),
        ("low = 2020-01-01\nhigh = 2021-01-01\nformat = '%d.%m.'", "whole date"),
        ("low = 2020-01-01\nhigh = 2021-01-01\nformat = 3", "whole date"),
        ("low = 2020-01-01\nhigh = 2021-01-01\nmissing = 5", "must be a date"),
        ("low = 2020-01-01\nhigh = 2021-01-01\nlimits = true", "no use"),
        ("low = 2020-01-01\nhigh = 2021-01-01\nunit = 'd'", "no use"),
        ("levels = ['a']\nunit = '%'", "no use"),
        ("low = 0\nhigh = 1\nunit = 5", "stands behind its numbers"),
        ("low = 0\nhigh = 1\nunit = ',5'", "may not begin with a digit"),
        ("low = 0\nhigh = 1\nindicator = 1", "true or false"),
        ("levels = ['a']\nindicator = true", "no use"),
        ("low = 0\nhigh = 1\nempty = 'NA'", "list of different texts"),
        ("low = 0\nhigh = 1\nempty = [nan]", "list of different texts"),
        ("low = 0\nhigh = 1\nempty = [-9, -9.0]", "list of different texts"),
    ],
)
def test_a_wrong_rule_is_refused(tmp_path, text, words):
    (tmp_path / "b.toml").write_text(f"[columns.x]\n{text}\n", encoding="utf-8")
    with pytest.raises(ParameterError, match=words):
        read_schema(tmp_path / "b.toml")


def test_a_target_has_no_indicator(tmp_path):
    (tmp_path / "b.toml").write_text(
        "[target]\nname = 'x'\nlow = 0\nhigh = 1\nindicator = true\n", encoding="utf-8"
    )
    with pytest.raises(ParameterError, match="can't have an indicator"):
        read_schema(tmp_path / "b.toml")


def test_dates_in_a_parquet_file_need_bounds_that_are_dates(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    first = datetime.date(2020, 1, 2)
    columns = {"d": [first, None], "t": [datetime.datetime(2020, 1, 2, 12), None], "n": [1.0, 2.0]}
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    dated = "low = 2020-01-01\nhigh = 2021-12-31\nmissing = 2020-01-01\n"
    numeric = "low = 0\nhigh = 1\n"
    text = f"[columns.d]\n{dated}[columns.t]\n{dated}[columns.n]\n{numeric}"
    (tmp_path / "b.toml").write_text(text, encoding="utf-8")
    table = open_table(tmp_path / "t.parquet")
    found = encode_table(table, read_schema(tmp_path / "b.toml")).arrays()[0]
    start = day("2020-01-01")
    assert (found - [start, start, 0]).tolist() == [[1, 1.5, 1], [0, 0, 1]]
    for wrong in (f"[columns.n]\n{numeric}", f"[columns.d]\n{dated}"):
        bad = text.replace(wrong, wrong.replace(dated, numeric))
        if bad == text:
            continue
        (tmp_path / "b.toml").write_text(bad, encoding="utf-8")
        with pytest.raises(DataError, match="State low and high as dates first"):
            encode_table(table, read_schema(tmp_path / "b.toml"))


def test_strict_refuses_what_can_not_be_read_and_nothing_else(tmp_path, schema):
    fine = [*ROWS, "2;;;;", "3;-9;;NA;NA", "4;1e9;01.01.1970;north;-5"]
    table = open_table(write(tmp_path / "t.csv", fine), delimiter=";", spelling=COMMA)
    assert encode_table(table, schema, strict=True).n_rows == 5
    for row in ("5;SECRET;;;", "5;;2020-01-01;;", "5;;;SECRET;", "5;;;;SECRET"):
        options = {"delimiter": ";", "spelling": COMMA}
        table = open_table(write(tmp_path / "t.csv", [*fine, row]), **options)
        with pytest.raises(DataError, match="can't be read as bounds.toml declares it") as caught:
            encode_table(table, schema, strict=True)
        assert "SECRET" not in str(caught.value)
        table = open_table(tmp_path / "t.csv", **options)
        assert encode_table(table, schema).n_rows == 6  # without it, nothing is refused


def test_an_inspection_counts_every_cell_and_finds_the_decimal_comma(tmp_path, schema):
    rows = [*ROWS * 10, "2;n/a;;east;9", "3;999;31.12.2030;;500", "4;SECRET;x;west;"]
    path = write(tmp_path / "t.csv", rows)
    found = inspect_table(open_table(path, delimiter=";", spelling=COMMA), schema)
    counts = {c.rule.name: (c.missing, c.unreadable, c.clipped) for c in found.columns}
    assert counts == {"crp": (1, 1, 1), "day": (1, 1, 1), "ward": (1, 2, 0), "days": (11, 0, 1)}
    assert found.n_rows == 23 and not found.refusals
    assert found.columns[0].shapes == ["a"]  # the cell itself is not repeated
    plain = inspect_table(open_table(path, delimiter=";"), schema).columns
    assert plain[0].advice == "pass --decimal ','" and plain[0].unreadable == 21
    assert "SECRET" not in repr([c.shapes for c in plain])


@pytest.mark.parametrize(
    ("cells", "rule", "advice"),
    [
        (["1.234,5"], {}, "pass --decimal ',' --thousands '.'"),
        (["1,234.5"], {}, "pass --thousands ','"),
        (["1 234,5"], {}, "pass --decimal ',' --thousands ' '"),
        (["<0.5", ">9"], {}, "state limits = true"),
        (["<0,5", ">9,5"], {"limits": True}, "pass --decimal ','"),
        (["2020-05-01"], {}, "state low and high as dates"),
        (["31.05.2020"], {}, 'state low and high as dates, and format = "%d.%m.%Y"'),
        (["05/31/2020"], {}, 'state low and high as dates, and format = "%m/%d/%Y"'),
        (["1\ufffd5"], {}, "pass --encoding latin-1, or the encoding"),
        (["x", "y", "1,5"], {}, None),
    ],
)
def test_what_would_make_cells_readable_is_said(tmp_path, cells, rule, advice):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["x", *cells]), encoding="utf-8")
    schema = Schema((ColumnRule("x", Interval(0, 9), **rule),))
    (found,) = inspect_table(open_table(path, delimiter=";"), schema).columns
    assert found.unreadable == len(cells)
    assert found.advice is advice or found.advice.startswith(advice)


def test_an_inspection_names_wrong_columns_and_labels(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,x,other,y\n1,1,1,maybe\n", encoding="utf-8")
    target = ColumnRule("y", Levels(("no", "yes")))
    schema = Schema((ColumnRule("x", Interval(0, 1)), ColumnRule("z", Interval(0, 1))), target)
    found = inspect_table(open_table(path), schema)
    assert [text.split(" ", 1)[1] for text in found.refusals] == [
        "has 2 columns named 'x'.",
        "has 0 columns named 'z'.",
        "3 of t.csv, 'other', is neither declared nor ignored.",
        "labels of the target 'y' are not among its declared levels.",
    ]
    path.write_text("x;z;y\n1;1;no\n", encoding="utf-8")
    assert "--delimiter ';'" in inspect_table(open_table(path), schema).refusals[0]


def test_the_middle_of_the_range_is_named_where_it_stands_in(schema):
    assert middles(schema).startswith(
        "Where a cell is missing or can't be read, the middle of the range stands in: days (20). State"
    )
    assert middles(Schema((ColumnRule("x", Interval(0, 1), 0.5),))) == ""
    many = Schema(tuple(ColumnRule(f"c{j}", Interval(0, 1)) for j in range(9)))
    assert "c4 (0.5) and 4 more." in middles(many)
