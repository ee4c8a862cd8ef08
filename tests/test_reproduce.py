"""Figures again: the store, the summaries, the songs, the pictures and the registry."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dpkernel import Budget
from dpkernel.cli import app
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.proof.papers.wang_lei_ying_zhang_2022 import table_1
from dpkernel.proof.reproduce import (
    CLAIMS,
    FIGURES,
    claimed,
    lee_park_ahn,
    needs_songs,
    repetitions,
    reproduce,
    wang_lei,
)
from dpkernel.proof.reproduce import __main__ as command
from dpkernel.proof.reproduce import songs as song_module
from dpkernel.proof.reproduce.design import EPSILONS, NOISE, design, generator, response_noise
from dpkernel.proof.reproduce.lee_park_ahn import (
    EACH_TIME,
    ONE_CHOICE,
    against_epsilon,
    against_features,
)
from dpkernel.proof.reproduce.output import new_figure, read_csv
from dpkernel.proof.reproduce.repetitions import (
    CORRECTED_1,
    KERNEL_RIDGE,
    PRINTED_1,
    PRINTED_3,
    RIDGE,
    Grid,
    Table,
    _corrected,
    synthetic,
)
from dpkernel.proof.reproduce.request import GRID, Request
from dpkernel.proof.reproduce.songs import fetch_songs, load_songs
from dpkernel.proof.reproduce.store import Cell, CellFiles

TINY = Grid(40, (1.0,), (4, 6), (1.0, 0.01))


# --- the store ------------------------------------------------------------------------------


def job(number, log):
    with log.open("a") as file:
        file.write(f"{number} ")
    return [Cell("a", 1.0, 10, (float(number), 2.0))]


def run(store, repetitions, log, n_jobs=1):
    log.unlink(missing_ok=True)
    cells = store.complete(repetitions, job, lambda k: (log,), progress=False, n_jobs=n_jobs)
    ran = log.read_text().split() if log.exists() else []
    return [one[0].error[0] for one in cells], sorted(map(int, ran))


def test_a_second_call_goes_on_where_the_first_stopped(tmp_path):
    store, log = CellFiles(tmp_path, "x", {"d": 1}), tmp_path / "log"
    assert run(store, 2, log) == ([0.0, 1.0], [0, 1])
    assert run(store, 4, log, n_jobs=2) == ([0.0, 1.0, 2.0, 3.0], [2, 3])
    assert run(store, 3, log) == ([0.0, 1.0, 2.0], [])


def test_a_line_that_was_cut_off_is_run_again(tmp_path):
    store, log = CellFiles(tmp_path, "x", {"d": 1}), tmp_path / "log"
    run(store, 3, log)
    whole = store.path.read_bytes()
    store.path.write_bytes(whole[:-20])
    assert run(store, 4, log) == ([0.0, 1.0, 2.0, 3.0], [2, 3])


@pytest.mark.parametrize("line", ["[]", "7", "{}", '{"repetition": 2, "cells": [{}]}', "\xff"])
def test_a_line_that_is_no_repetition_is_run_again(tmp_path, line):
    store, log = CellFiles(tmp_path, "x", {"d": 1}), tmp_path / "log"
    run(store, 2, log)
    with store.path.open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    assert run(store, 3, log) == ([0.0, 1.0, 2.0], [2])


def test_a_file_of_other_settings_under_the_same_name_is_refused(tmp_path):
    store, log = CellFiles(tmp_path, "x", {"d": 1}), tmp_path / "log"
    run(store, 2, log)
    text = store.path.read_text()
    store.path.write_text(text.replace('"d": 1', '"d": 3'))
    with pytest.raises(DataError, match="was made with other settings. Delete it to run"):
        store.read()
    store.path.write_text("")
    assert store.read() == {}


def fails_at_two(number, log):
    if number == 2:
        raise DataError("no luck")
    return job(number, log)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_what_was_finished_before_a_failure_is_kept(tmp_path, n_jobs):
    store, log = CellFiles(tmp_path, "x", {"d": 1}), tmp_path / "log"
    run(store, 2, log)
    with pytest.raises(DataError, match="no luck"):
        store.complete(4, fails_at_two, lambda k: (log,), progress=False, n_jobs=n_jobs)
    assert set(store.read()) >= {0, 1} and 2 not in store.read()
    assert run(store, 3, log)[0] == [0.0, 1.0, 2.0]


def test_results_of_other_settings_or_versions_are_not_mixed_in(tmp_path, monkeypatch):
    first, log = CellFiles(tmp_path, "x", {"d": 1}), tmp_path / "log"
    run(first, 2, log)
    assert run(CellFiles(tmp_path, "x", {"d": 2}), 1, log)[1] == [0]
    for name, value in (("__version__", "another"), ("CODE_VERSION", -1)):
        monkeypatch.setattr(f"dpkernel.proof.reproduce.store.{name}", value)
        assert run(CellFiles(tmp_path, "x", {"d": 1}), 1, log)[1] == [0]
    assert json.loads(first.path.read_text().splitlines()[0])["d"] == 1


@pytest.mark.parametrize("value", [0, True, 2.5])
@pytest.mark.parametrize("name", ["repetitions", "n_jobs"])
def test_counts_are_checked(tmp_path, name, value):
    with pytest.raises(
        ParameterError, match=f"'{name}' parameter of reproduce must be an int >= 1"
    ):
        reproduce("lee-park-ahn", "fig4", out=tmp_path, **{name: value})


# --- one repetition -------------------------------------------------------------------------


def test_the_design_is_the_papers():
    X, y, X_test, f = design(10, generator(1), rows=300)
    assert X.shape == X_test.shape == (300, 10) and X.min() >= 0 and X.max() <= 1
    assert f.min() >= 0 and f.max() <= 10
    noise = response_noise(20_000, generator(2))
    assert np.abs(noise).max() <= NOISE
    # the variance of a normal cut at one deviation is 0.2911 of what it was
    assert noise.var() == pytest.approx(0.2911 * NOISE**2, rel=0.05)
    assert y.min() >= -NOISE


def test_a_repetition_has_every_cell_and_repeats_itself():
    cells = synthetic(3, 2, TINY)
    found = {(c.method, c.epsilon, c.n_features): c for c in cells}
    assert len(found) == len(cells) == 2 + 4 * 2 + 3
    assert len(found[PRINTED_1, 1.0, 4].error) == len(found[KERNEL_RIDGE, 0.0, 0].excess) == 2
    assert len(found[RIDGE, 1.0, 0].error) == 1
    # the noise of the test responses is all that is between error and excess of a good model
    assert found[KERNEL_RIDGE, 0.0, 0].error[1] > found[KERNEL_RIDGE, 0.0, 0].excess[1]
    assert synthetic(3, 2, TINY) == cells
    assert synthetic(4, 2, TINY) != cells


def test_the_corrected_statistics_are_those_of_clipped_rows(rng):
    Z, y = rng.normal(size=(50, 3)), rng.uniform(-3, 3, 50)
    table = Table(Z, y, Z, y, None, 2.0, (0, 1), (0, 1))
    C, u = _corrected(Z, table, Budget(1e6, 1e-3), rng)
    clipped = Z / np.maximum(np.linalg.norm(Z, axis=1, keepdims=True), 1.0)
    assert pytest.approx(clipped.T @ clipped / 50, abs=1e-3) == C
    assert u == pytest.approx(clipped.T @ np.clip(y, -2, 2) / 50, abs=1e-3)


# --- summaries and pictures -----------------------------------------------------------------

# two repetitions; the best in the mean is M = 20 and the second lambda, 3.0
MADE_UP = [
    [Cell(PRINTED_1, 1.0, 10, (9.0, 1.0)), Cell(PRINTED_1, 1.0, 20, (5.0, 4.0))],
    [Cell(PRINTED_1, 1.0, 10, (9.0, 7.0)), Cell(PRINTED_1, 1.0, 20, (5.0, 2.0))],
]


def test_both_readings_of_the_least_error():
    grid = Grid(100, (1.0,), (10, 20), (1.0, 0.1))
    one, each = against_epsilon(MADE_UP, grid, d=7)
    assert (one["reading"], one["n_features"], one["regularisation"]) == (ONE_CHOICE, 20, 0.1)
    assert (one["d"], one["test_error"], one["test_error_se"]) == (7, 3.0, 1.0)
    assert one["excess"] == "" and one["repetitions"] == 2
    assert (each["reading"], each["test_error"]) == (EACH_TIME, 1.5)


def test_against_the_number_of_features_the_best_lambda_is_taken():
    grid = Grid(100, (1.0,), (10, 20), (1.0, 0.1))
    rows = against_features(MADE_UP, grid)
    assert [(row["n_features"], row["test_error"]) for row in rows] == [(10, 4.0), (20, 3.0)]


def test_a_figure_is_a_picture_and_a_table(tmp_path):
    request = Request(tmp_path, "the command", 2, progress=False, n_jobs=1, grid=TINY)
    found = lee_park_ahn.dimension_figure("fig4", 10, request)
    assert [path.name for path in found] == ["lee-park-ahn-fig4.png", "lee-park-ahn-fig4.csv"]
    assert found[0].read_bytes()[:4] == b"\x89PNG"
    assert found[1].read_text().startswith("# command: the command\n# commit: ")
    rows = read_csv(found[1])
    assert {row["method"] for row in rows} >= {PRINTED_1, PRINTED_3, CORRECTED_1, RIDGE}
    assert {row["n_features"] for row in rows if row["method"] == PRINTED_1} == {"4", "6"}
    assert "bound of Lemma 7" in PRINTED_1
    assert {(row["method"], row["norm_bound"]) for row in rows if row["norm_bound"]} == {
        (PRINTED_1, "lemma")
    }
    assert {row["repetitions"] for row in rows} == {"2"}


def stand_in(**options):
    """Return cells as a repetition of the whole grid has them, with made-up errors."""
    cells = [
        Cell(method, epsilon, M, (epsilon + M, 2.0 + M), (1.0, 1.0))
        for method in (PRINTED_1, PRINTED_3, CORRECTED_1, "Algorithm 3, corrected")
        for epsilon in EPSILONS
        for M in (10, 20)
    ]
    cells += [Cell(RIDGE, epsilon, 0, (0.5,), (0.4,)) for epsilon in EPSILONS]
    return [[*cells, Cell(KERNEL_RIDGE, 0.0, 0, (0.1, 0.2), (0.1, 0.2))]] * 2


@pytest.mark.parametrize("item", ["fig1", "fig2", "fig3", "fig7"])
def test_figures_of_lee_park_and_ahn_are_drawn(item, tmp_path, monkeypatch):
    monkeypatch.setattr(lee_park_ahn, "synthetic_cells", lambda d, request: stand_in())
    monkeypatch.setattr(lee_park_ahn, "song_cells", lambda width, request: stand_in())
    picture, table = reproduce("lee-park-ahn", item, out=tmp_path, quick=True, progress=False)
    assert picture.stat().st_size > 10_000
    assert f"lee-park-ahn {item} --quick" in table.read_text().splitlines()[0]
    assert "This run has 10 repetitions and may differ." in claimed(table)[1]
    rows = read_csv(table)
    if item == "fig3":
        assert {row["panel"] for row in rows} == {"a", "b"}
        assert {row["epsilon"] for row in rows if row["panel"] == "b"} == {"0.316228", ""}
    if item == "fig7":
        assert {row["width"] for row in rows} == {"16", "22.6274", "32", "45.2548", "64"}
    if item == "fig1":
        assert {row["d"] for row in rows} == {"10", "20", "30"}


def test_the_figures_that_differ_in_one_number():
    found = {item: FIGURES["lee-park-ahn", item].args for item in ("fig4", "fig6", "fig8", "fig12")}
    assert found == {
        "fig4": ("fig4", 10),
        "fig6": ("fig6", 30),
        "fig8": ("fig8", 16.0),
        "fig12": ("fig12", 64.0),
    }


def test_wang_lei_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(wang_lei, "sizes", lambda most, number: [18, 50, 1000])
    _, table = reproduce("wang-lei", "fig1", out=tmp_path, progress=False)
    holds = {row["n"]: row["lemma_13_holds"] for row in read_csv(table)}
    assert holds == {"18": "False", "50": "True", "1000": "True"}
    _, table = reproduce("wang-lei", "table1", out=tmp_path, progress=False)
    rows = read_csv(table)
    assert len(rows) == 3 * 3 * 9 and {row["domain"] for row in rows} == {"bounded", "unbounded"}


# --- songs ----------------------------------------------------------------------------------


@pytest.fixture
def lines(rng):
    X, year = rng.normal(size=(30, 90)).round(3), rng.integers(1922, 2012, 30)
    return X, year, [",".join(map(str, [y, *x])) for x, y in zip(X, year, strict=True)]


def test_every_form_of_the_songs_is_the_same_table(lines, tmp_path):
    X, year, text = lines
    (tmp_path / "songs.txt").write_text("\n".join(text) + "\n")
    head = ",".join(["year", *(f"t{k}" for k in range(90))])
    (tmp_path / "songs.csv").write_text("\n".join([head, *text]) + "\n")
    with zipfile.ZipFile(tmp_path / "songs.zip", "w") as archive:
        archive.write(tmp_path / "songs.txt", "YearPredictionMSD.txt")
    np.savez(tmp_path / "songs.npz", X=X, y=year)
    (tmp_path / "SONGS.NPZ").write_bytes((tmp_path / "songs.npz").read_bytes())
    for name in ("songs.txt", "songs.csv", "songs.zip", "songs.npz", "SONGS.NPZ"):
        found = load_songs(tmp_path / name)
        assert np.array_equal(found.X, X) and np.array_equal(found.year, year)
        assert found.digest == load_songs(tmp_path / "songs.npz").digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2000,1,2\n", r"must hold 90 features and a year per song. Got the shapes \(1, 2\)"),
        ("2000,1,words\n2001,2,3\n", "can't be read as songs"),
        (",".join(["1800"] + ["0"] * 90), r"years in 1922 \.\. 2011"),
        (",".join(["2000"] + ["nan"] * 90), "must hold finite features"),
    ],
)
def test_what_is_not_songs_is_refused_without_quoting_it(text, message, tmp_path):
    (tmp_path / "songs.txt").write_text(text)
    with pytest.raises(DataError, match=message) as caught:
        load_songs(tmp_path / "songs.txt")
    assert "words" not in str(caught.value) and "1800" not in str(caught.value)


def damaged(kind, tmp_path):
    """Return bytes and the name of a file that can't be songs."""
    with zipfile.ZipFile(tmp_path / "made.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("songs.txt", "2000,1\n" * 5000)
    whole = (tmp_path / "made.zip").read_bytes()
    start = whole.index(b"songs.txt") + len("songs.txt")
    locked = bytearray(whole)
    for place in (6, whole.index(b"PK\x01\x02") + 8):  # the flags of both heads of its one file
        locked[place] |= 1
    np.save(tmp_path / "one.npy", np.zeros(3))
    np.savez(tmp_path / "words.npz", X=np.array([["a"]]), y=np.zeros((1,), "i4,i4"))
    return {
        "no zip": (b"PK\x03\x04 and nothing else", "songs.npz"),
        "compressed garbage": (whole[:start] + b"\xff" * 20 + whole[start + 20 :], "songs.zip"),
        "cut": (whole[: start + 5] + whole[-80:], "songs.zip"),
        "encrypted": (bytes(locked), "songs.zip"),
        "no file in it": (b"PK\x05\x06" + bytes(18), "songs.zip"),
        "empty": (b"", "songs.npz"),
        "one array": ((tmp_path / "one.npy").read_bytes(), "songs.npz"),
        "structured": ((tmp_path / "words.npz").read_bytes(), "songs.npz"),
        "bytes": (b"\xff\xfe\x00", "songs.txt"),
    }[kind]


DAMAGED = [
    *("no zip", "compressed garbage", "cut", "encrypted", "no file in it"),
    *("empty", "one array", "structured", "bytes"),
]


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_one_sentence(kind, tmp_path):
    content, name = damaged(kind, tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="can't be read as songs. Each line must hold the year"):
        load_songs(tmp_path / name)


def test_a_file_that_can_not_be_read_is_one_sentence(lines, tmp_path, monkeypatch):
    (tmp_path / "songs.txt").write_text("\n".join(lines[2]))
    monkeypatch.setattr(song_module, "_parse", _refuse)
    with pytest.raises(DataError, match="can't be read as songs"):
        load_songs(tmp_path / "songs.txt")


def _refuse(text):
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("kind", ["compressed garbage", "cut", "bytes"])
def test_a_bad_download_is_not_kept(kind, tmp_path):
    (tmp_path / "uci.zip").write_bytes(damaged(kind, tmp_path)[0])
    with pytest.raises(DataError, match="can't be read as songs"):
        fetch_songs(tmp_path / "data", url=(tmp_path / "uci.zip").as_uri())
    assert list((tmp_path / "data").iterdir()) == []


def test_a_download_that_is_interrupted_leaves_nothing(lines, tmp_path, monkeypatch):
    (tmp_path / "uci.zip").write_bytes(b"x")

    def stop(source, target):
        target.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(song_module.shutil, "copyfileobj", stop)
    with pytest.raises(KeyboardInterrupt):
        fetch_songs(tmp_path / "data", url=(tmp_path / "uci.zip").as_uri())
    assert list((tmp_path / "data").iterdir()) == []


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="There is no file"):
        reproduce("lee-park-ahn", "fig3", out=tmp_path, data=tmp_path / "no", progress=False)


def test_no_network_is_said_in_one_sentence(tmp_path):
    with pytest.raises(
        DataError, match="can't be downloaded from here. Pass its file as data=PATH"
    ):
        fetch_songs(tmp_path, url=(tmp_path / "nothing").as_uri())
    assert list(tmp_path.iterdir()) == []


def test_a_download_is_checked_and_remembered(lines, tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "uci.zip", "w") as archive:
        archive.writestr("YearPredictionMSD.txt", "\n".join(lines[2]))
    url, folder = (tmp_path / "uci.zip").as_uri(), tmp_path / "data"
    with pytest.raises(
        DataError, match="has 30 rows, but the Million Song table of UCI has 515345"
    ):
        fetch_songs(folder, url=url)
    assert list(folder.iterdir()) == []
    monkeypatch.setattr(song_module, "SHAPE", (30, 91))
    path = fetch_songs(folder, url=url)
    assert len(load_songs(path).year) == 30
    assert fetch_songs(folder, url="nowhere:") == path  # no second download
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(DataError, match="its SHA-256 is another"):
        fetch_songs(folder, url=url)


def test_songs_are_split_standardised_and_centred(rng, tmp_path):
    X, year = rng.normal(5.0, 3.0, (90, 90)), rng.integers(1922, 2012, 90).astype(float)
    np.savez(tmp_path / "songs.npz", X=X, y=year)
    request = Request(
        tmp_path, "c", 1, data=tmp_path / "songs.npz", progress=False, n_jobs=1, grid=TINY
    )
    (cells,) = lee_park_ahn.song_cells(16.0, request)
    mean = next(cell for cell in cells if cell.method.startswith("training mean"))
    _, sampled = request.songs().sample(80, generator(3, 0))
    expected = np.mean((sampled[40:] - sampled[:40].mean()) ** 2)
    assert mean.error[0] == pytest.approx(expected, rel=1e-6) and mean.excess == ()
    few = Request(tmp_path, "c", 1, data=request.data, progress=False, n_jobs=1)
    with pytest.raises(DataError, match="need 2000 rows, but the table has 90"):
        lee_park_ahn.song_cells(16.0, few)


# --- the registry and the command -----------------------------------------------------------


def test_the_registry_has_every_item():
    items = {("lee-park-ahn", f"fig{k}") for k in range(1, 13)}
    items |= {("wang-lei", "fig1"), ("wang-lei", "table1"), ("errata", "table")}
    assert set(FIGURES) == items
    songs = {key for key in FIGURES if needs_songs(*key)}
    assert songs == {("lee-park-ahn", f"fig{k}") for k in (3, 7, 8, 9, 10, 11, 12)}
    assert (GRID.rows, min(GRID.features), max(GRID.features)) == (1000, 10, 1000)
    assert GRID.delta == pytest.approx(1000**-1.1) and len(GRID.regularisations) == 11


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(ParameterError, match="'paper' parameter of reproduce must be one of"):
        reproduce("nobody", "fig1", out=tmp_path)
    with pytest.raises(
        ParameterError, match="'item' parameter .* one of 'fig1', 'table1'. Got 'x'"
    ):
        reproduce("wang-lei", "x", out=tmp_path)


def call(*words):
    import typer

    app = typer.Typer()
    app.command()(command.main)
    return CliRunner().invoke(app, list(words))


def test_a_folder_that_can_not_be_made_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "x"):
        result = call("wang-lei", "table1", "--out", str(out))
        assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
        assert result.output.startswith("error: The 'out' parameter of reproduce must be a folder")
        assert len(result.output.splitlines()) == 1

    def full(request):
        raise OSError(28, "No space left on device")

    monkeypatch.setitem(FIGURES, ("wang-lei", "table1"), full)
    result = call("wang-lei", "table1", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert (
        result.output == "error: the results can't be read or written: No space left on device.\n"
    )


def test_all_goes_on_without_the_songs(tmp_path, monkeypatch):
    seen = []

    def stand_in_for(paper, item, **options):
        seen.append((paper, item))
        if needs_songs(paper, item):
            raise DataError("No songs.")
        return [Path(f"{paper}-{item}.png"), Path(f"{paper}-{item}.csv")]

    monkeypatch.setattr(command, "reproduce", stand_in_for)
    monkeypatch.setattr(command, "shown", lambda path: "a stand-in of it")
    monkeypatch.setattr(command, "claimed", lambda path: [])
    result = call("all", "--quick", "--out", str(tmp_path))
    assert result.exit_code == 0
    assert result.output.count("The Million Song figures are left out: No songs.") == 1
    assert [key for key in FIGURES if key not in seen] == [
        ("lee-park-ahn", f"fig{k}") for k in range(7, 13)
    ]
    assert len(re.findall("written:", result.output)) == 2 * (len(FIGURES) - 7)
    assert result.output.count("a stand-in of it") == 1
    assert call("lee-park-ahn", "fig3").exit_code == 1


# --- claims -----------------------------------------------------------------------------------------


def test_every_item_says_what_the_paper_claims_what_came_out_and_why():
    assert set(CLAIMS) == set(FIGURES)
    for claim in CLAIMS.values():
        assert all(len(line.split()) >= 8 and line.endswith(".") for line in claim.lines())


def test_a_full_run_does_not_excuse_itself_and_a_single_one_counts_right(tmp_path, monkeypatch):
    monkeypatch.setattr(lee_park_ahn, "synthetic_cells", lambda d, request: stand_in())
    for number, said in ((100, False), (1, True)):
        _, table = reproduce("lee-park-ahn", "fig2", out=tmp_path, repetitions=number)
        assert ("This run has one repetition and may differ." in claimed(table)[1]) is said
        assert ("may differ" in claimed(table)[1]) is said


def test_what_is_said_about_figures_1_and_7_is_in_the_kept_tables():
    results = Path(__file__).parents[1] / "benchmarks" / "results"

    def ratios(name):
        """Return the errors of Algorithm 1 over those of Algorithm 3, as printed."""
        rows = [row for row in read_csv(results / name) if "as printed" in row["method"]]
        pairs = [[cell.split(" / ") for cell in list(row.values())[2:]] for row in rows]
        return np.array([[float(a) / float(b) for a, b in row] for row in pairs])

    synthetic = ratios("reproduce_synthetic.csv")  # d = 10, 20, 30 by five epsilons
    assert synthetic.shape == (3, 5) and (synthetic > 1.2).all()
    assert (synthetic[:, 2:] < 2.4).all() and (synthetic[:, :2] > 8.5).all()
    assert (np.diff(synthetic[:, 1:], axis=0) < 0).all()  # the gap narrows, except at 0.1
    assert not (np.diff(synthetic[:, 0]) < 0).all()
    songs = ratios("reproduce_songs.csv")
    assert songs.shape == (5, 5) and (songs > 1).all()


def test_what_is_said_about_table_1_is_what_it_has():
    small, large = (table_1(n, 10, 1.0, n**-2.0, 0.5) for n in (10**4, 10**6))
    common = [k for k, row in enumerate(large) if row.utility == large[1].utility]
    growth = [large[k].gradients / small[k].gradients for k in common]
    linear = [large[k].reference for k, times in zip(common, growth, strict=True) if times < 101]
    assert len(large) == 9 and len(common) == 6
    assert [name.split()[0] for name in linear] == ["Feldman", "Wang"]


@pytest.mark.parametrize("item", ["table1"])
def test_picture_table_and_console_carry_the_claim(tmp_path, item):
    result = CliRunner().invoke(app, ["reproduce", "wang-lei", item, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    text = (tmp_path / f"wang-lei-{item}.csv").read_text(encoding="utf-8")
    said = " ".join(result.output.split())
    for line in CLAIMS["wang-lei", item].lines():
        assert f"# {line}\n" in text and line in said
    commit = re.search(r"^# commit: (\S+)$", text, re.M)[1]
    assert commit == "none" or re.fullmatch(r"[0-9a-f]{9,}", commit)


@pytest.mark.parametrize("columns", [2, 3])
def test_legends_and_claims_lie_inside_their_picture(columns, tmp_path):
    figure, panels = new_figure(columns)
    for k in range(8):
        panels[0].plot([1, 2], [k, k], label=f"a method with a rather long name, number {k}")
    request = Request(tmp_path, "c", 1, claim=CLAIMS["lee-park-ahn", "fig3"])
    lee_park_ahn._finish(figure, panels, request, "fig3", [{"a": 1}])
    figure.canvas.draw()
    whole = figure.bbox
    for artist in (*figure.legends, figure._suptitle):
        box = artist.get_window_extent()
        assert box.x0 >= whole.x0 - 1 and box.x1 <= whole.x1 + 1
        assert box.y0 >= whole.y0 - 1 and box.y1 <= whole.y1 + 1


def test_songs_come_from_an_excerpt_unless_the_whole_table_is_asked_for(tmp_path, rng):
    X, year = rng.normal(size=(8000, 90)), rng.integers(1922, 2012, 8000)
    np.savez(tmp_path / "songs.npz", X=X, y=year)
    data = tmp_path / "songs.npz"
    some, again = (Request(tmp_path, "c", 1, data=data).songs() for _ in range(2))
    assert len(some.year) == 7000 and some.digest == again.digest
    assert len(Request(tmp_path, "c", 1, data=data, whole=True).songs().year) == 8000


def test_a_choice_that_is_private_ends_at_every_budget(rng):
    """Section 5's remark carried out: also where a search or the scaling itself would be refused."""
    X = rng.normal(size=(80, 3)) * 50
    y = np.clip(X[:, 0] / 5, -44, 44)
    for raw, epsilon in ((None, 0.01), (None, 100.0), ((X[:40], X[40:]), 0.01)):
        table = Table(X[:40], y[:40], X[40:], y[40:], None, 44.5, (-3, 3), (-44.5, 44.5), 16.0, raw)
        found = repetitions._all_private(table, Budget(epsilon, 1e-3), generator(1))
        assert found.shape == (40,) and np.isfinite(found).all()
