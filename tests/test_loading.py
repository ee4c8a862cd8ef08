"""A file of rows in Python: the same rules as on the command line, and no silent replacements."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from dpkernel import (
    AddRemove,
    Interval,
    Ledger,
    Levels,
    PrivateKernelClassifier,
    PrivateKernelRidge,
    SeededNoise,
    fit_table,
    read_table,
    save,
)
from dpkernel.data.blocks import BlockStream
from dpkernel.data.table_files import spool
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.outputs.report import write_report
from dpkernel.preprocessing import PrivatePipeline

BOUNDS = """
[file]
delimiter = ";"
decimal = ","
encoding = "latin-1"
[columns.crp]
low = 0
high = 300
limits = true
missing = 5
indicator = true
[columns.ward]
levels = ["Röntgen", "Innere"]
[columns.days]
low = 0
high = 60
[columns.sick]
levels = ["nein", "ja"]
"""


@pytest.fixture
def study(tmp_path):
    """A German file with a decimal comma, a limit, an empty cell and two visits of each patient."""
    lines = ["patient;crp;ward;days;sick"]
    for i in range(60):
        crp = ("<0,5", "", f"{i},5")[min(i % 10, 2)]
        lines.append(
            f"P{i // 2};{crp};{('Röntgen', 'Innere')[i % 2]};{i % 9},5;{('ja', 'nein')[i % 2]}"
        )
    (tmp_path / "stays.csv").write_bytes("\r\n".join(lines).encode("latin-1"))
    for name, unused in (("days", "sick"), ("sick", "days")):
        text = f"ignore = ['{unused}', 'patient']\n{BOUNDS}"
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_table_of_a_file_is_what_fit_takes(study):
    table = read_table(study / "stays.csv", study / "days.toml", "days", "patient")
    assert table.X[:3].tolist() == [[0.5, 0, 1, 0], [5, 1, 0, 1], [2.5, 0, 1, 0]]
    assert table.y[:3].tolist() == [0.5, 1.5, 2.5] and table.groups[:3] == ["P0", "P0", "P1"]
    assert table.bounds.names == ("crp", "crp is missing", "ward=Röntgen", "ward=Innere")
    assert table.bounds.target == Interval(0, 60)
    assert repr(table) == "<LoadedTable with the inputs crp, ward>"
    model = PrivateKernelRidge(bounds=table.bounds, noise=SeededNoise(0))
    model.fit(table.X, table.y, groups=table.groups)
    assert model.certificate_.n_records == 30
    new = table.new_rows(study / "stays.csv")  # its other columns are ignored
    assert np.array_equal(new, table.X) and len(model.predict(new)) == 60
    page = write_report(model, study / "r.html", schema=table.schema).read_text(encoding="utf-8")
    assert "ward" in page and "ward=Innere" not in page


def test_classes_of_a_file_are_declared_in_any_order(study):
    table = read_table(study / "stays.csv", study / "sick.toml", "sick")
    assert table.groups is None and table.bounds.target == Levels(("nein", "ja"))
    model = PrivateKernelClassifier(epsilon=50, bounds=table.bounds, noise=SeededNoise(0))
    assert np.mean(model.fit(table.X, table.y).predict(table.X) == table.y) > 0.9


def test_without_a_target_all_declared_columns_are_inputs(study):
    table = read_table(study / "stays.csv", study / "days.toml")
    assert table.y is None and table.bounds.target is None and table.X.shape == (60, 5)


def test_a_large_table_is_a_stream(study, monkeypatch):
    monkeypatch.setattr(spool, "MEMORY_BYTES", 1)
    table = read_table(study / "stays.csv", study / "days.toml", "days")
    assert isinstance(table.X, BlockStream) and table.y is None
    model = PrivateKernelRidge(bounds=table.bounds, noise=SeededNoise(0)).fit(table.X, table.y)
    assert model.predict(table.new_rows(study / "stays.csv")).shape == (60,)


def test_cells_that_can_not_be_read_are_refused_unless_replacements_are_wanted(study):
    line = (study / "stays.csv", study / "days.toml", "days")
    with pytest.raises(DataError, match="in Python unless strict=False is passed. Nothing was"):
        read_table(*line, decimal=".", thousands=",")
    with pytest.warns(UserWarning, match="the middle of the range stands in: days"):
        loose = read_table(*line, decimal=".", thousands=",", strict=False)
    assert set(loose.X[:, 0]) == {5.0}
    table = read_table(*line)
    with pytest.raises(DataError, match="strict=False"):
        table.new_rows(study / "stays.csv", decimal=".")
    with pytest.warns(
        UserWarning, match="54 of 60 cells of column 'crp' can't be read as the model"
    ):
        replaced = table.new_rows(study / "stays.csv", decimal=".", strict=False)
    assert set(replaced[:, 0]) == {5.0}
    with pytest.warns(UserWarning, match="of column 'crp'"):
        loose.new_rows(study / "stays.csv", decimal=".")  # as strict as the table itself


def test_the_middle_of_a_range_is_named_where_it_stands_in(study):
    with pytest.warns(UserWarning, match=r"stands in: days \(30\)\. State 'missing'"):
        read_table(study / "stays.csv", study / "days.toml", "days")
    stated = (study / "days.toml").read_text(encoding="utf-8") + "\n[target]\nmissing = 7\n"
    stated = stated.replace("[columns.days]\nlow = 0\nhigh = 60\n", "").replace(
        "[target]", '[target]\nname = "days"\nlow = 0\nhigh = 60'
    )
    (study / "stated.toml").write_text(stated, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read_table(study / "stays.csv", study / "stated.toml")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "nobody"}, "does not declare the target 'nobody'"),
        ({"group": "nobody"}, "no column named 'nobody'"),
        ({"encoding": "utf-16"}, "must be utf-8 or have one byte per character"),
        ({"format": "xls"}, "unknown ending"),
    ],
)
def test_wrong_words_about_a_file_are_one_sentence(study, change, words):
    with pytest.raises((DataError, ParameterError), match=words):
        read_table(study / "stays.csv", study / "days.toml", **{"target": "days", **change})


@pytest.mark.parametrize("write", [save, write_report])
def test_a_missing_folder_is_named(study, write):
    table = read_table(study / "stays.csv", study / "days.toml", "days")
    model = PrivateKernelRidge(bounds=table.bounds, noise=SeededNoise(0)).fit(table.X, table.y)
    with pytest.raises(FileNotFoundError, match="no folder '.*nowhere' for x"):
        write(model, study / "nowhere" / "x")


def test_a_fit_to_a_file_releases_the_shares_of_its_cells(study, tmp_path):
    table = read_table(study / "stays.csv", study / "days.toml", "days")
    model = PrivateKernelRidge(epsilon=3000, bounds=table.bounds, noise=SeededNoise(0))
    assert fit_table(model, table) is model
    assert model.certificate_.releases[-1].label == "cells"
    shares = model.certificate_.free_statistics["cells"]["shares"]
    assert abs(shares["crp"]["missing"] - 0.1) < 0.15 and set(shares) == {"crp", "ward", "days"}
    page = write_report(model, tmp_path / "r.html", schema=table.schema).read_text("utf-8")
    assert "The cells of the table" in page
    without = PrivateKernelRidge(epsilon=3000, bounds=table.bounds, noise=SeededNoise(0))
    fit_table(without, table, cell_shares=False)
    assert "cells" not in without.certificate_.free_statistics


def test_a_fit_to_a_file_of_people_protects_them_with_all_rows(study):
    table = read_table(study / "stays.csv", study / "days.toml", "days", "patient")
    ledger = Ledger()
    model = PrivateKernelRidge(epsilon=3000, bounds=table.bounds, ledger=ledger)
    fit_table(model, table, record="mean")
    assert model.certificate_.n_records == 30 and len(ledger.history()) == 1
    shares = model.certificate_.free_statistics["cells"]["shares"]
    assert abs(shares["crp"]["missing"] - 0.1) < 0.05


def test_a_fit_to_a_file_finds_what_stands_in_for_missing_values(study):
    text = (
        (study / "days.toml")
        .read_text("utf-8")
        .replace("missing = 5", "missing = 'private median'")
    )
    (study / "median.toml").write_text(text, encoding="utf-8")
    table = read_table(study / "stays.csv", study / "median.toml", "days", "patient")
    ledger = Ledger()
    model = PrivateKernelRidge(epsilon=3000, bounds=table.bounds, ledger=ledger)
    found = fit_table(model, table)
    assert isinstance(found, PrivatePipeline) and len(ledger.history()) == 1
    assert found.certificate_.epsilon <= 3000 and model.ledger is ledger
    with pytest.raises(ParameterError, match="can't be resumed"):
        fit_table(model, table, resume=study / "r")
    assert len(ledger.history()) == 1


def test_a_column_that_could_not_be_read_is_warned_of(study):
    table = read_table(
        study / "stays.csv", study / "days.toml", "days", decimal=".", thousands=",", strict=False
    )
    model = PrivateKernelRidge(epsilon=3000, bounds=table.bounds)
    with pytest.warns(UserWarning, match="Most cells of column 'crp' could not be read"):
        fit_table(model, table)


def test_a_table_without_rows_is_fitted_where_their_number_is_private(study):
    (study / "empty.csv").write_text("patient;crp;ward;days;sick\n")
    text = "n_max = 100\n" + (study / "days.toml").read_text("utf-8")
    (study / "hidden.toml").write_text(text, encoding="utf-8")
    table = read_table(study / "empty.csv", study / "hidden.toml", "days")
    model = PrivateKernelRidge(epsilon=200, neighbours=AddRemove(100), bounds=table.bounds)
    fit_table(model, table)
    assert "cells" not in model.certificate_.free_statistics
    assert model.certificate_.n_records == 100


def test_only_private_estimators_are_fitted_to_a_file(study):
    table = read_table(study / "stays.csv", study / "days.toml", "days")
    with pytest.raises(ParameterError, match="must be a private estimator.*type Ridge"):
        fit_table(Ridge(), table)
