"""Files of rows: four formats, one encoding; public rules for every cell; errors without content."""

from __future__ import annotations

import csv
import datetime

import numpy as np
import pytest

from dpkernel import PrivateKernelClassifier, PrivateKernelRidge, SeededNoise
from dpkernel.data.domain import Interval, Levels
from dpkernel.data.table_files import Schema, encode_table, open_table, read_schema, readers, spool
from dpkernel.foundations.errors import CertificateError, DataError, ParameterError

SECRET = "SECRETCELL"
TOML = """
ignore = ["id"]
[columns.age]
low = 0
high = 100
[columns.ward]
levels = ["north", "south"]
[columns.code]
levels = [1, 2.5]
missing = 2.5
[target]
name = "days"
low = 0
high = 30
missing = 7
"""
HEADER = "id,age,ward,code,days"
ROWS = [
    ("0", "50", "north", "1", "3"),
    ("1", "", "south", "2.5", ""),
    ("2", SECRET, SECRET, SECRET, SECRET),
    ("3", "-1e9", " north ", "1.0", "1e400"),
    ("4", "nan", "", "", "-inf"),
]
ENCODED = [
    [50, 1, 0, 1, 0, 3],
    [50, 0, 1, 0, 1, 7],
    [50, 0, 0, 0, 1, 7],
    [0, 1, 0, 1, 0, 30],
    [50, 0, 0, 0, 1, 0],
]


@pytest.fixture
def bounds(tmp_path):
    path = tmp_path / "bounds.toml"
    path.write_text(TOML, encoding="utf-8")
    return path


def write_csv(path, rows=ROWS, header=HEADER):
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n", encoding="utf-8")
    return path


def encoded(path, bounds, **options):
    table = encode_table(open_table(path, **options), read_schema(bounds))
    X, y = table.arrays()
    return np.column_stack([X, y])


def test_every_cell_of_a_csv_follows_a_public_rule(tmp_path, bounds):
    assert encoded(write_csv(tmp_path / "t.csv"), bounds).tolist() == ENCODED


def test_quotes_blank_lines_byte_order_marks_and_delimiters(tmp_path, bounds):
    text = '\ufeffid;age;ward;code;days\r\n\r\n"0";"50";"north";"1";"3"\r\n\r\n'
    (tmp_path / "t.csv").write_text(text, encoding="utf-8", newline="")
    assert encoded(tmp_path / "t.csv", bounds, delimiter=";").tolist() == ENCODED[:1]
    (tmp_path / "t.tsv").write_text(text.replace(";", "\t"), encoding="utf-8", newline="")
    assert encoded(tmp_path / "t.tsv", bounds).tolist() == ENCODED[:1]


def test_a_quotation_mark_never_swallows_other_rows(tmp_path, bounds):
    rows = [["0", "50", "north", "1", "3"] for _ in range(20)]
    rows[4][2], rows[12][2] = '"north', 'north"'  # balanced again eight lines later
    with pytest.raises(DataError, match="A record is one line. Nothing was spent"):
        encoded(write_csv(tmp_path / "t.csv", rows), bounds)
    rows[4][2], rows[12][2] = 'nor"th', '"nor""th"'  # inside of a cell it is a sign like others
    found = encoded(write_csv(tmp_path / "t.csv", rows), bounds)
    assert len(found) == 20 and found[[4, 12], 1:3].tolist() == [[0, 0], [0, 0]]


def test_a_cell_that_is_too_long_is_missing_and_the_limit_of_others_stays(tmp_path, bounds):
    most = readers.CELL_CHARACTERS
    rows = [("0", "7" * (most + 1), "north", "1", "3"), ("1", "7".rjust(most), "north", "1", "3")]
    limit = csv.field_size_limit(100)
    try:
        found = encoded(write_csv(tmp_path / "t.csv", rows), bounds)
        assert csv.field_size_limit() == 100
    finally:
        csv.field_size_limit(limit)
    assert found[:, 0].tolist() == [50, 7]


def test_a_blank_line_is_a_row_where_there_is_one_column(tmp_path):
    def count(text):
        (tmp_path / "t.csv").write_text(text)
        blocks = open_table(tmp_path / "t.csv").read(["x"], lambda share: None)
        return [cell for block in blocks for cell in block["x"]]

    assert count("\n\nx\n1\n\n2\n") == ["1", "", "2"]
    assert count("x,y\n1,1\n\n2,2\n") == ["1", "2"]


def test_numbers_match_levels_that_are_texts(tmp_path):
    (tmp_path / "b.toml").write_text("[columns.x]\nlevels = ['0', '1', '2.5']\n")
    rules = read_schema(tmp_path / "b.toml").inputs
    np.savez(tmp_path / "i.npz", x=np.array([0, 1, 7]))
    np.savez(tmp_path / "f.npz", x=np.array([1.0, 2.5, np.nan, np.inf]))
    np.savez(tmp_path / "b.npz", x=np.array([True, False]))
    found = []
    for name in ("i.npz", "f.npz", "b.npz"):
        for block in open_table(tmp_path / name).read(["x"], lambda share: None):
            found.append(rules[0].places(block["x"]).tolist())
    assert found == [[0, 1, -1], [1, 2, -1, -1], [1, 0]]


def test_types_that_the_file_states_decide_what_a_column_can_be(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    day = datetime.date(2026, 5, 1)
    columns = {"day": [day, None], "list": [[1.0], []], "id": [2**53 + 1, None], "y": [1, 2]}
    parquet.write_table(arrow.table(columns), tmp_path / "t.parquet")
    table = open_table(tmp_path / "t.parquet")
    assert table.not_numbers == {"day", "list"}
    target = "[columns.y]\nlow = 0\nhigh = 9\n"
    for name in ("day", "list"):
        others = [other for other in columns if other not in (name, "y")]
        text = f"ignore = {others}\n[columns.{name}]\nlow = 0\nhigh = 1\n{target}"
        (tmp_path / "b.toml").write_text(text)
        with pytest.raises(DataError, match=f"Column '{name}' .* holds no numbers"):
            encode_table(table, read_schema(tmp_path / "b.toml", "y"))
    (tmp_path / "b.toml").write_text(
        f"ignore = ['list']\n[columns.day]\nlevels = ['{day}']\n"
        f"[columns.id]\nlevels = ['{2**53}', '{2**53 + 1}']\n{target}"
    )
    found = encode_table(table, read_schema(tmp_path / "b.toml", "y")).arrays()[0]
    assert found.tolist() == [[1, 0, 1], [0, 0, 0]]


def test_bytes_that_are_no_text_are_a_missing_cell(tmp_path, bounds):
    path = tmp_path / "t.csv"
    path.write_bytes(f"{HEADER}\n0,".encode() + b"\xff\xfe" + b",north,1,3\n")
    assert encoded(path, bounds).tolist() == ENCODED[:1]


def test_all_formats_give_the_same_rows(tmp_path, bounds, monkeypatch):
    monkeypatch.setattr(readers, "FILE_ROWS", 2)
    age = [50.0, np.nan, np.nan, -1e9, np.nan]
    days = [3.0, np.nan, np.nan, np.inf, -np.inf]
    ward, code = (np.array([row[j] for row in ROWS]) for j in (2, 3))
    np.savez_compressed(
        tmp_path / "t.npz", id=np.arange(5), age=age, ward=ward, code=code, days=days
    )
    assert encoded(tmp_path / "t.npz", bounds).tolist() == ENCODED
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    missing = [None if value != value else value for value in age]
    table = arrow.table({"id": range(5), "age": missing, "ward": ward, "code": code, "days": days})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=3)
    feather.write_feather(table, tmp_path / "t.arrow")
    for name in ("t.parquet", "t.arrow"):
        found = open_table(tmp_path / name)
        assert found.kinds[1] == "double"
        assert encoded(tmp_path / name, bounds).tolist() == ENCODED


def test_blocks_of_wide_files_have_fewer_rows(tmp_path):
    names = [f"c{j}" for j in range(2**16)]
    write_csv(tmp_path / "t.csv", [["1"] * len(names)] * 20, ",".join(names))
    blocks = open_table(tmp_path / "t.csv").read(["c0"], lambda share: None)
    assert [len(block["c0"]) for block in blocks] == [8, 8, 4]


def test_a_matrix_in_an_npz_has_numbered_columns(tmp_path):
    np.savez(tmp_path / "t.npz", X=np.arange(6.0).reshape(3, 2), y=np.ones(3))
    assert open_table(tmp_path / "t.npz").header == ("X0", "X1", "y")
    (tmp_path / "b.toml").write_text(
        "[columns.X0]\nlow=0\nhigh=9\n[columns.X1]\nlow=0\nhigh=9\n[target]\nname='y'\nlow=0\nhigh=1\n"
    )
    assert encoded(tmp_path / "t.npz", tmp_path / "b.toml").tolist() == [
        [0, 1, 1],
        [2, 3, 1],
        [4, 5, 1],
    ]


def test_a_large_table_goes_to_a_file_and_gives_the_same_model(tmp_path, bounds, monkeypatch):
    rows = [(str(i), str(i % 90), ("north", "south")[i % 2], "1", str(i % 30)) for i in range(200)]
    path = write_csv(tmp_path / "t.csv", rows)
    monkeypatch.setattr(spool, "rows_a_block", lambda width: 64)
    models = []
    for limit in (2**27, 1000):
        monkeypatch.setattr(spool, "MEMORY_BYTES", limit)
        schema = read_schema(bounds)
        table = encode_table(open_table(path), schema, folder=tmp_path)
        assert table.in_memory == (limit > 1000)
        model = PrivateKernelRidge(
            kernel="linear", bounds=schema.domain(), y_bounds=(0, 30), noise=SeededNoise(0)
        )
        models.append(model.fit(*table.training_data()))
        assert sorted(p.name for p in tmp_path.iterdir()) == ["bounds.toml", "t.csv"]  # no name
    assert np.array_equal(models[0].coef_, models[1].coef_)


def test_labels_are_the_declared_ones_in_memory_and_streamed(tmp_path, monkeypatch):
    rows = [(str(i % 7), ("no", "yes")[i % 2]) for i in range(60)]
    path = write_csv(tmp_path / "t.csv", rows, "x,sick")
    (tmp_path / "b.toml").write_text(
        "[columns.x]\nlow = 0\nhigh = 9\n[columns.sick]\nlevels = ['no', 'yes']\n"
    )
    for limit in (2**27, 100):
        monkeypatch.setattr(spool, "MEMORY_BYTES", limit)
        schema = read_schema(tmp_path / "b.toml", "sick")
        table = encode_table(open_table(path), schema)
        model = PrivateKernelClassifier(classes=["no", "yes"], bounds=schema.domain())
        assert set(model.fit(*table.training_data()).predict([[1.0]])) <= {"no", "yes"}


def test_truth_values_are_levels_in_any_spelling(tmp_path):
    rows = [("True", "1"), ("false", "2"), (" TRUE ", "3"), ("no", "4")]
    path = write_csv(tmp_path / "t.csv", rows, "well,days")
    (tmp_path / "b.toml").write_text(
        "[columns.well]\nlevels = [false, true]\n[target]\nname = 'days'\nlow = 0\nhigh = 9\n"
    )
    expected = [[0, 1, 1], [1, 0, 2], [0, 1, 3], [0, 0, 4]]
    assert encoded(path, tmp_path / "b.toml").tolist() == expected
    np.savez(tmp_path / "t.npz", well=np.array([True, False]), days=np.array([1, 2]))
    assert encoded(tmp_path / "t.npz", tmp_path / "b.toml").tolist() == expected[:2]


def test_unknown_labels_are_refused_unless_a_level_stands_for_them(tmp_path):
    path = write_csv(tmp_path / "t.csv", [("1", "no"), ("2", SECRET)], "x,sick")
    text = "[columns.x]\nlow = 0\nhigh = 9\n[columns.sick]\nlevels = ['no', 'yes']\n"
    (tmp_path / "b.toml").write_text(text)
    with pytest.raises(DataError, match="not among its declared levels") as caught:
        encode_table(open_table(path), read_schema(tmp_path / "b.toml", "sick"))
    assert SECRET not in str(caught.value)
    (tmp_path / "b.toml").write_text(text + "missing = 'yes'\n")
    table = encode_table(open_table(path), read_schema(tmp_path / "b.toml", "sick"))
    assert table.arrays()[1].tolist() == [0, 1]


def test_indicators_stay_zero_and_one_in_the_unit_box(bounds):
    schema = read_schema(bounds)
    assert schema.names_out == ["age", "ward=north", "ward=south", "code=1", "code=2.5"]
    unit = schema.domain().to_unit(np.array([[50.0, 1.0, 0.0, 0.0, 1.0]]))
    assert unit.tolist() == [[0, 1, 0, 0, 1]]


def test_ignored_columns_may_be_declared_and_the_target_may_be_named(bounds):
    bounds.write_text(
        "ignore = ['a', 'c']\n"
        + "".join(f"[columns.{name}]\nlow = 0\nhigh = 1\n" for name in "bc")
        + "[columns.a]\n"  # as the template left it
    )
    schema = read_schema(bounds, "c")
    assert [rule.name for rule in schema.inputs] == ["b"] and schema.target.name == "c"
    assert Schema.from_dict(schema.to_dict()).inputs == schema.inputs
    with pytest.raises(CertificateError, match="can't be read"):
        Schema.from_dict({"inputs": [{"low": 0}], "target": None})
    with pytest.raises(CertificateError, match="describes no input columns"):
        Schema.from_dict({"inputs": [], "target": None})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[columns.x]\nlow = 0", "needs low and high, or levels"),
        ("[columns.x]\nlow = 0\nhigh = 1\nlevels = [1]", "not both"),
        ("[columns.x]\nlow = 1\nhigh = 0", "low < high"),
        ("[columns.x]\nlevels = []", "list of texts"),
        ("[columns.x]\nlevels = [0, nan]", "finite numbers"),
        ("[columns.x]\nlevels = [0, inf]", "finite numbers"),
        (f"[columns.x]\nlevels = [1{'0' * 400}]", "finite numbers"),
        ("ignore = ['x']\n[columns.x]\n[target]\nname = 'x'", "is not filled in"),
        ("ignore = ['x']\n[columns.x]\nlow = 0", "needs low and high"),
        ("[columns.x]", "is not filled in"),
        ("[target]\nname = 3", "must be a text"),
        ("[columns.x]\nlevels = [1, 1]", "different values"),
        ("[columns.x]\nlevels = ['a']\nmissing = 'b'", "one of its levels"),
        ("[columns.x]\nlow = 0\nhigh = 1\nmissing = 'b'", "finite number"),
        ("[columns.x]\nlwo = 0\nhigh = 1", "must be a table"),
        ("[column.x]\nlow = 0\nhigh = 1", "entry 'column'"),
        ("[target]\nlow = 0\nhigh = 1", "no name"),
        ("[target]\nname = 'x'", "does not declare the target 'x'"),
        ("[columns.x]\nlow=0\nhigh=1\n[target]\nname='x'\nlow=0\nhigh=1", "twice"),
        ("ignore = 'x'", "ignore = "),
        ("columns = [", "not a TOML file"),
        ("[columns.x]\nlow = 0,5\nhigh = 1", "numbers are written as 1000.5"),
        (
            "[columns.x]\nlow = 0\nhigh = 1\nmissing = 99",
            "'missing' value .* outside of low and high",
        ),
    ],
)
def test_a_wrong_bounds_file_is_refused(bounds, text, words):
    bounds.write_text(text)
    with pytest.raises(ParameterError, match=words):
        read_schema(bounds)


@pytest.mark.parametrize(
    ("header", "row", "words"),
    [
        (
            HEADER + ",extra",
            "0,1,north,1,3,5",
            "Column 6 of t.csv is not declared.* ids of people .* --group",
        ),
        (f"id,age,ward,code,{SECRET}", "0,1,north,1,2", "no column named 'days'"),
        (HEADER + ",age", "0,1,north,1,3,5", "2 columns named 'age'"),
        (HEADER, f"{SECRET},1", "another number of fields"),
        (HEADER, "", "no rows"),
        (HEADER, f'0,"{SECRET}', "A record is one line"),
        (HEADER, f'0,1,"north\n{SECRET}",1,3', "A record is one line"),
        (HEADER, f'0,1,"north"{SECRET},1,3', "A record is one line"),
        (HEADER, "0," + "9" * 140_000, "another number of fields"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_without_its_content(
    tmp_path, bounds, header, row, words
):
    path = tmp_path / "t.csv"
    path.write_text(f"{header}\n{row}\n", encoding="utf-8")
    with pytest.raises(DataError, match=words) as caught:
        encoded(path, bounds)
    assert SECRET not in str(caught.value) and "extra" not in str(caught.value)


def test_foreign_and_damaged_files_are_refused(tmp_path, bounds):
    for name in ("t.csv", "t.npz", "t.parquet", "t.arrow"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(DataError, match="empty|NPZ|parquet|ipc"):
            open_table(tmp_path / name)
    with pytest.raises(ParameterError, match="unknown ending"):
        open_table(tmp_path / "t.xlsx")
    for delimiter in ("::", '"', "\n"):
        with pytest.raises(ParameterError, match="one character"):
            open_table(tmp_path / "t.csv", delimiter=delimiter)
    np.savez(tmp_path / "o.npz", a=np.array([{}], dtype=object))
    with pytest.raises(DataError, match="not Python objects"):
        open_table(tmp_path / "o.npz")
    np.savez(tmp_path / "l.npz", a=np.ones(2), b=np.ones(3))
    with pytest.raises(DataError, match="same number of rows"):
        open_table(tmp_path / "l.npz")
    np.savez(tmp_path / "d.npz", X=np.ones((3, 2)), X0=np.ones(3))
    with pytest.raises(DataError, match="two columns the same name"):
        open_table(tmp_path / "d.npz")
    np.savez(tmp_path / "f.npz", a=np.ones((2, 3), order="F"))
    with pytest.raises(DataError, match="column order"):
        open_table(tmp_path / "f.npz")


def test_without_pyarrow_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ParameterError, match="pip install"):
        open_table(tmp_path / "t.parquet")


def test_the_values_of_rules_are_domains(bounds):
    kinds = [type(rule.values) for rule in read_schema(bounds).rules]
    assert kinds == [Interval, Levels, Levels, Interval]


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252"])
def test_a_file_in_utf_16_is_told_to_be_saved_again(tmp_path, encoding):
    path = tmp_path / "t.csv"
    path.write_bytes("age,days\n1,2\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"as in UTF-16\. Save the file as CSV in UTF-8"):
        open_table(path, encoding=encoding)
