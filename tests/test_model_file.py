"""Model files: what they hold, that old ones load, and that hostile ones are refused in bounds."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

import dpkernel
from dpkernel import (
    Domain,
    Interval,
    Levels,
    PrivateKernelClassifier,
    PrivateKernelRidge,
    load,
    read_header,
    save,
    verify_file,
)
from dpkernel.cli import app
from dpkernel.foundations import archive
from dpkernel.foundations.archive import read_archive, write_archive
from dpkernel.foundations.errors import (
    CertificateError,
    DPKernelError,
    ModelFileError,
    ParameterError,
)
from dpkernel.methods import PrivateSGDClassifier, PrivateSGDRegressor
from dpkernel.models.features import (
    FourierFeatures,
    NormalisedFeatures,
    feature_map_from_dict,
    recipe_limit,
)
from dpkernel.models.features.base import REGISTRY as MAPS
from dpkernel.models.losses import Huber
from dpkernel.preprocessing.saving import pipeline_state
from dpkernel.solvers.sgd_presets import preset
from estimator_table import BUILDERS

FILES = Path(__file__).parent / "files"
OLD = json.loads((FILES / "format1.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (120, 2))
    return X, np.sin(3 * X[:, 0])


@pytest.fixture(scope="module")
def model(table):
    return PrivateKernelRidge(epsilon=2.0, n_features=12, bounds=(-1, 1), y_bounds=(-2, 2)).fit(
        *table
    )


@pytest.fixture(scope="module")
def kept(model, tmp_path_factory):
    return save(model, tmp_path_factory.mktemp("models") / "model.dpk")


@pytest.fixture(scope="module")
def fitted(table):
    """One of every estimator that has a file: a curator keeps its rows, and has its own."""
    X, y = table
    lines = {name: line for name, line in BUILDERS.items() if not line.keeps_rows}
    sizes = {name: {"n_features": 8} for name in lines} | {"PrivateGridRegressor": {}}
    return {
        name: line(bounds=(-1, 1), **sizes[name]).fit(X[:60], line.target(y[:60]))
        for name, line in lines.items()
    }


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as found:
        return {info.filename: found.read(info) for info in found.infolist()}


def zipped(path: Path, parts: dict[str, bytes] | list[tuple[str, bytes]], **options) -> Path:
    """Write the parts as they are, with the manifest that they come with."""
    pairs = parts.items() if isinstance(parts, dict) else parts
    with zipfile.ZipFile(path, "w", **options) as out:
        for name, content in pairs:
            out.writestr(zipfile.ZipInfo(name) if not options else name, content)
    return path


def rewritten(kept: Path, path: Path, change=None, arrays=None) -> Path:
    """Write the model anew with another header or other arrays, and the manifest that goes with it."""
    whole = read_archive(kept, 2**24)
    header = copy.deepcopy(whole.header)
    if change is not None:
        change(header)
    write_archive(path, header, {**whole.arrays, **(arrays or {})})
    return path


# what it holds


def test_a_file_is_plain_and_always_the_same(model, kept, tmp_path):
    parts = members(kept)
    assert list(parts) == ["header.json", "coef.npy", "intercept.npy", "manifest.json"]
    header = json.loads(parts["header.json"])
    assert header["format"] == 2 and header["dpkernel"] == dpkernel.__version__
    assert header["certificate"] == json.loads(model.certificate_.to_json())
    assert np.array_equal(np.load(kept)["coef"], model.coef_)  # any NumPy reads it
    assert save(model, tmp_path / "again.dpk").read_bytes() == kept.read_bytes()
    assert os.listdir(tmp_path) == ["again.dpk"]


def test_no_training_value_is_in_the_bytes(table, fitted, tmp_path):
    X, y = table
    values = np.concatenate([X[:60].ravel(), y[:60]])
    wanted = [kind(value).tobytes() for value in values for kind in (np.float64, np.float32)]
    wanted += [repr(value).encode() for value in values.tolist()]
    for one in fitted.values():
        content = save(one, tmp_path / "m.dpk").read_bytes()
        assert not [value for value in wanted if value in content]
    content = save(fitted["PrivateKernelRidge"], tmp_path / "m.dpk", metadata={"x": X[0, 0]})
    assert [value for value in wanted if value in content.read_bytes()]  # it would be seen


def test_metadata_come_back_as_they_were(model, tmp_path):
    notes = {"task": "regression", "columns": [{"name": "dose", "levels": ["a", 1, None, 2.5]}]}
    path = save(model, tmp_path / "m.dpk", metadata=notes)
    assert read_header(path)["metadata"] == notes
    assert read_header(save(load(path), path))["metadata"] == {}
    for wrong in (
        {"a": (1, 2)},
        {1: "a"},
        {"a": float("nan")},
        {"a": {1}},
        ["a"],
        {"a": np.ones(2)},
    ):
        with pytest.raises(ParameterError, match="'metadata' parameter of save must be a dict"):
            save(model, path, metadata=wrong)
    deep: list = []
    for _ in range(70):
        deep = [deep]
    with pytest.raises(ParameterError, match="'metadata' parameter of save"):
        save(model, path, metadata={"a": deep})
    assert read_header(path)["metadata"] == {}  # the file that was there is still there


def test_the_schema_names_columns_bounds_levels_and_target(table, tmp_path):
    X, y = table
    frame = pd.DataFrame({"age": X[:, 0], "site": (X[:, 1] > 0).astype(float)})
    domain = Domain((Interval(-1, 1), Levels((0.0, 1.0))), Interval(-2, 2))
    path = save(PrivateKernelRidge(bounds=domain).fit(frame, y), tmp_path / "m.dpk")
    assert read_header(path)["schema"] == {
        "columns": [
            {"name": "age", "low": -1.0, "high": 1.0},
            {"name": "site", "levels": [0.0, 1.0]},
        ],
        "target": {"low": -2.0, "high": 2.0},
    }
    path = save(PrivateKernelRidge(y_bounds=(-2, 2)).fit(X, y), tmp_path / "m.dpk")
    assert read_header(path)["schema"]["columns"] == [{"name": None}, {"name": None}]
    old = read_header(FILES / "format1-classifier.npz")
    assert [c["name"] for c in old["schema"]["columns"]] == ["age", "dose", "site"]
    assert old["schema"]["target"] == {"levels": ["no", "yes"]} and old["metadata"] == {}


@pytest.mark.parametrize("count", [10**9, 2**22 + 1, 0, -1, True, 2.0, None, "2"])
def test_a_header_with_an_absurd_number_of_columns_is_refused(kept, tmp_path, count):
    def change(header):
        header["domain"].update(columns=None, names=None)
        header.update(n_columns=count, columns=None)

    path = rewritten(kept, tmp_path / "m.dpk", change)
    with pytest.raises(ModelFileError, match="columns of this model file can't be read"):
        read_header(path)


def test_a_number_of_columns_alone_takes_little_memory(kept, tmp_path):
    def change(header):
        header["domain"].update(columns=None, names=None)
        header.update(n_columns=100_000, columns=None)

    path = rewritten(kept, tmp_path / "m.dpk", change)
    tracemalloc.start()
    columns = read_header(path)["schema"]["columns"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(columns) == 100_000 and columns[-1] == {"name": None}
    assert peak < 2**21


def test_a_failed_save_leaves_the_old_file(model, kept, tmp_path, monkeypatch):
    path = tmp_path / "m.dpk"
    path.write_bytes(b"before")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(model, path)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["m.dpk"]


def test_what_has_no_file_is_refused(model, tmp_path):
    class Search:
        best_estimator_ = model

    with pytest.raises(
        ParameterError, match="class Search can't be saved to a file. Save its best_est"
    ):
        save(Search(), tmp_path / "m.dpk")
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.dpk")


# every estimator, in another process

ELSEWHERE = """
import sys
import numpy as np
from pathlib import Path
from dpkernel import load
folder = Path(sys.argv[1])
X = np.load(folder / "X.npy")
for path in sorted(folder.glob("*.dpk")):
    model = load(path)
    found = [np.asarray(model.predict(X))]
    for name in ("decision_function", "predict_proba"):
        found += [getattr(model, name)(X)] if hasattr(model, name) else []
    np.savez(path.with_suffix(".npz"), *found)
"""


def test_every_estimator_predicts_the_same_bits_in_another_process(table, fitted, tmp_path):
    X, _ = table
    np.save(tmp_path / "X.npy", X)
    expected = {}
    for name, one in fitted.items():
        save(one, tmp_path / f"{name}.dpk")
        expected[name] = [np.asarray(one.predict(X))]
        for method in ("decision_function", "predict_proba"):
            expected[name] += [getattr(one, method)(X)] if hasattr(one, method) else []
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path)]
    source = str(Path(dpkernel.__file__).parents[1])
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": source})
    for name, values in expected.items():
        with np.load(tmp_path / f"{name}.npz") as found:
            assert len(found.files) == len(values)
            for place, value in enumerate(values):
                np.testing.assert_array_equal(found[f"arr_{place}"], value)


# committed files: of format 1, as dpkernel wrote them before there was another, and of format 2


@pytest.mark.parametrize("path", sorted(FILES.glob("format*-*")), ids=lambda path: path.stem)
def test_files_of_earlier_versions_keep_loading(path, tmp_path):
    version, name = path.stem.removeprefix("format").split("-", 1)
    wanted, found = OLD[name], load(path)
    assert type(found).__name__ == wanted["class"]
    check = verify_file(path)
    assert check.format == int(version) and check.hashed == (check.format > 1)
    assert check.proved.epsilon <= 10
    X = np.array(wanted["X"])
    X = X if wanted["columns"] is None else pd.DataFrame(X, columns=wanted["columns"])
    again = load(save(found, tmp_path / "new.dpk"))
    assert verify_file(tmp_path / "new.dpk").format == 2
    for one in (found, again):
        if "decision_function" in wanted:
            assert one.predict(X).tolist() == wanted["predict"]
            expected = wanted["decision_function"]
            np.testing.assert_allclose(one.decision_function(X), expected, rtol=1e-9, atol=1e-12)
        else:
            np.testing.assert_allclose(one.predict(X), wanted["predict"], rtol=1e-9, atol=1e-12)
        if "std" in wanted:
            deviation = one.predict(X, return_std=True)[1]
            np.testing.assert_allclose(deviation, wanted["std"], rtol=1e-9)


def test_every_class_of_format_1_has_a_committed_file():
    had_none = {"PrivateCurator", "PrivateGridRegressor"}  # a file of its own; from format 2 on
    names = {name.split(" ")[0] for name in BUILDERS}  # a class may be in the table twice
    assert {entry["class"] for entry in OLD.values()} == names - had_none


# parameters


def test_a_clone_of_a_loaded_model_learns_its_features_anew(table, tmp_path):
    """What a fit released must not become a public parameter of the next fit."""
    X = np.tile(table[0], (25, 1))
    y = np.where(X[:, 0] > 0, 1, 0)
    for features in ("auto", "fourier", FourierFeatures(12, random_state=0)):
        own = {} if features == "auto" else {"n_features": 12}
        model = PrivateKernelClassifier(
            epsilon=5.0, classes=[0, 1], bounds=(-1, 1), features=features, **own
        ).fit(X, y)
        loaded = load(save(model, tmp_path / "m.dpk"))
        np.testing.assert_array_equal(loaded.decision_function(X), model.decision_function(X))
        again = clone(loaded).fit(X, y)
        assert [r.label for r in again.certificate_.releases] == [
            r.label for r in model.certificate_.releases
        ]
        assert type(again.feature_map_) is type(model.feature_map_)
        if isinstance(features, str):
            assert loaded.features == features


def test_a_loaded_sgd_model_has_its_parameters(table, tmp_path):
    X, y = table
    given = {
        "eta0": 0.25,
        "alpha": 0.01,
        "batch_size": 40,
        "max_iter": 3,
        "clip": 0.5,
        "momentum": 0.4,
        "perturbation": "gradient",
        "loss": Huber(0.3),
        "random_state": 5,
        "n_features": np.int64(8),
    }
    fitted = PrivateSGDRegressor(epsilon=5.0, bounds=(-1, 1), y_bounds=(-2, 2), **given).fit(X, y)
    again = load(save(fitted, tmp_path / "m.dpk"))
    assert {name: again.get_params()[name] for name in given} == given
    before, after = (m.certificate_.public["scheme"] for m in (fitted, again.fit(X, y)))
    assert after | {"sigma": 0.0} == before | {"sigma": 0.0}  # for the epsilon that was proved
    own = preset("holder-9", n_rows=120, alpha=1.0, L=1.0)
    for schedule in ("holder-9", own):
        fitted = PrivateSGDClassifier(
            epsilon=5.0,
            bounds=(-1, 1),
            classes=[0, 1],
            perturbation="output",
            preset=schedule,
            n_features=8,
        ).fit(X, y > 0)
        assert load(save(fitted, tmp_path / "m.dpk")).preset == schedule


def test_other_parameters_come_back_too(table, tmp_path):
    X, y = table
    labels = np.where(y > 0, "yes", "no")
    fitted = PrivateKernelClassifier(
        classes=["no", "yes"],
        class_weight={"yes": 0.5},
        regularisation=7.0,
        loss="logistic",
        bounds=(-1, 1),
    ).fit(X, labels)
    again = load(save(fitted, tmp_path / "m.dpk"))
    assert again.class_weight == {"no": 1.0, "yes": 0.5} and again.loss == "logistic"
    assert again.regularisation == 7.0

    def foreign(header):
        header["parameters"]["nonsense"] = 1

    with pytest.raises(CertificateError, match="parameters of this model file"):
        load(rewritten(tmp_path / "m.dpk", tmp_path / "n.dpk", foreign))


# damage and forgery


def test_a_file_that_is_cut_off_is_refused(kept, tmp_path):
    whole, path = kept.read_bytes(), tmp_path / "cut.dpk"
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(
            ModelFileError, match="cut.dpk is not a model file of dpkernel, or it is"
        ):
            load(path)
    for content in (b"x" + whole, whole + b"x"):
        path.write_bytes(content)
        with pytest.raises(ModelFileError, match="not a model file"):
            load(path)


def test_a_changed_bit_is_found_or_changes_nothing(model, kept, table, tmp_path):
    whole, path = kept.read_bytes(), tmp_path / "flip.dpk"
    refused = 0
    places = range(0, len(whole), 41)
    for place in places:
        content = bytearray(whole)
        content[place] ^= 1 << (place % 8)
        path.write_bytes(content)
        try:  # only dates and the like, which nobody reads, may change
            assert np.array_equal(load(path).predict(table[0]), model.predict(table[0]))
        except ModelFileError:
            refused += 1
    assert refused > 0.8 * len(places)


def test_coefficients_of_another_file_are_found(model, kept, table, tmp_path):
    other = PrivateKernelRidge(epsilon=2.0, n_features=12, bounds=(-1, 1), y_bounds=(-2, 2))
    parts = members(save(other.fit(*table), tmp_path / "other.dpk"))
    mixed = zipped(tmp_path / "mixed.dpk", {**members(kept), "coef.npy": parts["coef.npy"]})
    for read in (load, verify_file, read_header):
        with pytest.raises(ModelFileError, match="part coef.npy was changed after it was written"):
            read(mixed)
    mixed = zipped(tmp_path / "mixed.dpk", {**members(kept), "header.json": b'{"format": 2}'})
    with pytest.raises(ModelFileError, match=r"part header.json was changed"):
        load(mixed)


def test_verify_recomputes_the_claim(model, kept, tmp_path):
    check = verify_file(kept)
    assert check.certificate == model.certificate_ and check.estimator == "PrivateKernelRidge"
    assert check.proved == model.certificate_.verify() and check.format == 2 and check.hashed
    assert check.digest == hashlib.sha256(kept.read_bytes()).hexdigest()

    def better(header):
        header["certificate"]["epsilon"] = 0.001

    forged = rewritten(kept, tmp_path / "forged.dpk", better)
    for read in (load, verify_file):
        with pytest.raises(CertificateError, match="parameters prove delta"):
            read(forged)

    def elsewhere(header):
        header["domain"]["columns"][0]["low"] = -5.0

    with pytest.raises(ModelFileError, match="domain of moved.dpk is not the one"):
        verify_file(rewritten(kept, tmp_path / "moved.dpk", elsewhere))


def test_a_consistent_forgery_shows_in_the_digest_alone(model, kept, tmp_path):
    forged = rewritten(kept, tmp_path / "forged.dpk", arrays={"coef": model.coef_ * 2})
    check = verify_file(forged)  # documented: nothing in the file tells
    assert check.proved == verify_file(kept).proved and check.digest != verify_file(kept).digest


# files of other versions, and headers that make no sense


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 3}, "has format 3 and the estimator PrivateKernelRidge.*Update dpkernel"),
        ({"format": 1}, "parts are not those of its format"),
        ({"format": True}, "names no format or estimator"),
        ({"format": "2"}, "names no format or estimator"),
        ({"estimator": "os.system"}, "estimator one that is not known"),
        ({"estimator": ["a"]}, "names no format or estimator"),
        ({"metadata": 3}, "metadata are not a JSON object"),
        ({"columns": 7}, "columns of this model file do not fit"),
        ({"columns": ["a"]}, "columns of this model file do not fit"),
        ({"n_columns": 3}, "columns of this model file do not fit"),
        ({"n_columns": None}, "columns of this model file do not fit"),
        (
            {"feature_map": FourierFeatures(12).build(3).to_dict()},
            "columns of this model file do not fit",
        ),
        ({"domain": None}, "domain can't be read"),
        ({"feature_map": {}}, "feature map can't be read"),
        ({"certificate": {}}, "is not a certificate of dpkernel"),
        ({"parameters": []}, "parameters of this model file"),
        ({"parameters": {"ledger": [1]}}, "parameters of this model file"),
    ],
)
def test_headers_that_make_no_sense_are_refused(kept, tmp_path, change, message):
    path = rewritten(kept, tmp_path / "m.dpk", lambda header: header.update(change))
    with pytest.raises(CertificateError, match=message):
        load(path)


def test_any_value_in_the_header_gives_an_error_of_our_own_or_a_model(table, tmp_path, monkeypatch):
    monkeypatch.setattr(archive.os, "fsync", lambda handle: None)  # hundreds of files
    path, loaded = tmp_path / "m.dpk", 0
    linear = PrivateKernelRidge(kernel="linear", bounds=(-1, 1), y_bounds=(-2, 2))
    whole = read_archive(save(linear.fit(*table), path), 2**24)

    def places(value, at=()):
        found = value.items() if isinstance(value, dict) else ()
        found = enumerate(value) if isinstance(value, list) else found
        for key, inner in found:
            yield (*at, key)
            yield from places(inner, (*at, key))

    for place in places(whole.header):
        for value in (None, -1, "x", [[1.0]], 10**30):
            header = copy.deepcopy(whole.header)
            inside = header
            for key in place[:-1]:
                inside = inside[key]
            inside[place[-1]] = value
            write_archive(path, header, whole.arrays)
            try:
                load(path)
                loaded += 1
            except DPKernelError as error:
                assert "\n" not in str(error)
    assert loaded > 0  # some values are notes


def leaves(value, at=()):
    """Yield the place of every number, text, truth value and None in a header."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*at, key))
    elif isinstance(value, list):
        for key, inner in enumerate(value[:3]):
            yield from leaves(inner, (*at, key))
    else:
        yield at, value


def altered(value):
    """Return another value of the same kind."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + 1
    return value * 1.25 + 0.125 if isinstance(value, float) else f"{value}x"


def mutants(path: Path, folder: Path, names):
    """Yield (place, file) for every leaf below these names of a header, each changed alone."""
    whole = read_archive(path, 2**24)
    for at, value in leaves({name: whole.header[name] for name in names if name in whole.header}):
        header = copy.deepcopy(whole.header)
        inside = header
        for key in at[:-1]:
            inside = inside[key]
        inside[at[-1]] = altered(value)
        write_archive(folder / "mutant.dpk", header, whole.arrays)
        yield at, folder / "mutant.dpk"


def test_a_model_that_its_certificate_does_not_describe_is_refused(fitted, tmp_path, monkeypatch):
    """Whatever field of the domain or of a stated feature map is changed, every reader notices."""
    monkeypatch.setattr(archive.os, "fsync", lambda handle: None)  # hundreds of files
    tried = 0
    for name, model in fitted.items():
        kept = save(model, tmp_path / "kept.dpk")
        stated = [n for n in ("domain", "feature_map") if n in model.certificate_.public]
        for at, file in mutants(kept, tmp_path, [*stated, "n_columns", "estimator"]):
            for reader in (load, verify_file):
                with pytest.raises(DPKernelError):
                    reader(file)
                    pytest.fail(f"{reader.__name__} accepts a {name} with another {at}")
            tried += 1
    assert tried > 200


@pytest.mark.parametrize(
    "name", ["PrivateKernelRegressor", "PrivateQuantileRegressor", "PrivateKernelClassifier"]
)
def test_features_that_a_fit_has_learned_are_stated(name, tmp_path, monkeypatch):
    """Such a map has released numbers in it; others, of the data, would do as well for a loader."""
    monkeypatch.setattr(archive.os, "fsync", lambda handle: None)
    line = BUILDERS[name]
    X = np.random.default_rng(0).uniform(-1, 1, (1500, 2))
    fitted = line(bounds=(-1, 1), n_features=10, epsilon=2.0).fit(X, line.target(X[:, 0]))
    kept, places = save(fitted, tmp_path / "kept.dpk"), set()
    assert read_header(kept)["feature_map"]["kind"] == "learned"
    for at, file in mutants(kept, tmp_path, ["feature_map"]):
        if at[2:3] in places and len(at) > 3:  # one number of each kind
            continue
        places.add(at[2:3])
        with pytest.raises(DPKernelError):
            load(file)
            pytest.fail(f"load accepts another {at}")
    assert len(places) > 5


def test_every_other_field_is_judged_alike_by_all_readers(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(archive.os, "fsync", lambda handle: None)
    names = sorted(set(read_header(kept)) - {"schema"})
    accepted = set()
    for at, file in mutants(kept, tmp_path, names):
        verdicts = []
        for reader in (load, verify_file):
            try:
                reader(file)
                verdicts.append(True)
            except DPKernelError:
                verdicts.append(False)
        if at != ("certificate", "valid"):  # a model without a claim loads, and verify says so
            assert verdicts[0] == verdicts[1], at
        if verdicts[0]:
            accepted.add(".".join(map(str, at)))
    free = ("dpkernel", "metadata", "request", "parameters", "certificate.created", "columns")
    noted = ("versions", "public", "free_statistics", "valid")
    free += tuple(f"certificate.{name}" for name in noted)
    rest = {name for name in accepted if not name.startswith(free)}
    assert rest == set()


COMMANDS = ("show {}", "verify {}", "report {} --out {}.html --force", "predict {} {}.csv")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_reads_nothing_that_verify_refuses(table, tmp_path, monkeypatch, command):
    monkeypatch.setattr(archive.os, "fsync", lambda handle: None)
    rules = [{"name": n, "missing": None, "low": -1.0, "high": 1.0} for n in ("a", "b")]
    target = {"name": "y", "missing": None, "low": -2.0, "high": 2.0}
    X = pd.DataFrame(table[0], columns=["a", "b"])
    model = PrivateKernelRidge(kernel="linear", bounds=(-1, 1), y_bounds=(-2, 2))
    notes = {"schema": {"inputs": rules, "target": target}}
    kept = save(model.fit(X, table[1]), tmp_path / "kept.dpk", metadata=notes)
    (tmp_path / "mutant.dpk.csv").write_text("a,b\n0.5,0.5\n", encoding="utf-8")

    def code(file):
        words = command.replace("{}", str(tmp_path / "mutant.dpk")).split()
        file.replace(tmp_path / "mutant.dpk")
        return CliRunner().invoke(app, words).exit_code

    for at, file in mutants(kept, tmp_path, ["domain", "feature_map", "n_columns", "metadata"]):
        free = at[0] == "metadata" and (
            command.startswith("verify") or at[-1] in ("name", "missing")
        )
        if not free:
            assert code(file) == 1, at
    assert code(kept) == 0


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"coef": np.full(12, np.nan)}, "finite float64"),
        ({"intercept": np.array(np.inf)}, "finite float64"),
        ({"coef": np.ones(12, np.float32)}, "finite float64"),
        ({"coef": np.ones(11)}, "do not fit its feature map"),
        ({"coef": np.ones((12, 2))}, "do not fit its feature map"),
    ],
)
def test_coefficients_that_make_no_sense_are_refused(kept, tmp_path, arrays, message):
    with pytest.raises(CertificateError, match=message):
        load(rewritten(kept, tmp_path / "m.dpk", arrays=arrays))


# recipes of feature maps


@pytest.mark.parametrize(
    "recipe",
    [
        {"kind": "fourier", "n_inputs": 2, "parameters": {"n_components": 10**6}},
        {"kind": "fourier", "n_inputs": 10**12, "parameters": {"n_components": 2}},
        {"kind": "nystroem", "n_inputs": 2, "parameters": {"n_components": 20_000}},
        {"kind": "eigen", "n_inputs": 10**9, "parameters": {"n_components": 12}},
        {"kind": "whitened", "n_inputs": 10**6, "parameters": {"n_components": 2000}},
        {"kind": "polynomial", "n_inputs": 10**9, "parameters": {"degree": 1}},
        {"kind": "tensor_sketch", "n_inputs": 10**9, "parameters": {"degree": 100}},
        {
            "kind": "projection",
            "n_inputs": 2,
            "parameters": {
                "n_components": 10**5,
                "base": {"kind": "fourier", "parameters": {"n_components": 10**5}},
            },
        },
        {
            "kind": "normalised",
            "n_inputs": 20_000,
            "parameters": {
                "base": {"kind": "fourier", "n_inputs": 1, "parameters": {"n_components": 64}}
            },
        },
    ],
    ids=lambda recipe: recipe["kind"],
)
def test_a_recipe_for_a_huge_map_is_refused_before_it_is_built(kept, tmp_path, recipe):
    path = rewritten(kept, tmp_path / "m.dpk", lambda header: header.update(feature_map=recipe))
    tracemalloc.start()
    with pytest.raises(CertificateError, match="more than the 16777216 bytes of memory allowed"):
        load(path, max_bytes=2**24)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**21


BUILT = {
    "fourier": (4, {"n_components": 2000}),
    "linear": (4000, {}),
    "polynomial": (190, {"degree": 2}),
    "nystroem": (3, {"n_components": 400}),
    "projection": (3, {"n_components": 300}),
    "tensor_sketch": (500, {"n_components": 64, "degree": 4}),
    "eigen": (3, {"n_components": 800}),
    "whitened": (3, {"n_components": 100}),
    "learned": (3, {"n_components": 100}),
    "normalised": (300, {}),
}


@pytest.mark.parametrize("kind", sorted(MAPS))
def test_building_takes_no_more_memory_than_stated(kind):
    n_inputs, parameters = BUILT.get(kind, (3, {}))
    made = MAPS[kind](**parameters)
    tracemalloc.start()
    made.build(n_inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= made.building_bytes(n_inputs) + 2**16


def test_the_limit_on_recipes_holds_inside_only():
    recipe = FourierFeatures(512).build(3).to_dict()
    with recipe_limit(1000), pytest.raises(CertificateError, match="1000 bytes"):
        feature_map_from_dict(recipe)
    assert feature_map_from_dict(recipe).n_outputs == 512


def pipeline_of(kept: Path, path: Path, count: int, *, told: bool = True) -> Path:
    """Write a pipeline of many models on many columns, with a certificate that lists all releases."""
    whole = read_archive(kept, 2**24)
    wide = FourierFeatures(12).build(2).to_dict() | {"n_inputs": 2000}
    domain = {**whole.header["domain"], "columns": None}
    step = {**whole.header, "feature_map": wide, "domain": domain, "n_columns": 2000}
    certificate = whole.header["certificate"]
    lines = certificate["releases"]
    listed = [{**r, "label": f"s{i}: {r['label']}"} for i in range(count) for r in lines]
    header = {
        **{name: whole.header[name] for name in ("format", "dpkernel", "metadata")},
        "estimator": "PrivatePipeline",
        "certificate": {**certificate, "releases": listed if told else lines},
        "weights": None,
        "steps": [
            {"name": f"s{i}", "kind": "PrivateKernelRidge", "header": step} for i in range(count)
        ],
    }
    arrays = {f"step{i}_{k}": v for i in range(count) for k, v in whole.arrays.items()}
    write_archive(path, header, arrays)
    return path


@pytest.mark.parametrize(
    ("count", "told", "message"),
    [
        (30, True, "more than the 4194304 bytes of memory allowed"),
        (30, False, "does not list what its steps released"),
        (65, True, "at most 64 steps"),
    ],
)
def test_the_maps_of_all_steps_share_one_limit(kept, tmp_path, monkeypatch, count, told, message):
    built = []
    build = FourierFeatures.build
    monkeypatch.setattr(FourierFeatures, "build", lambda *a: built.append(1) or build(*a))
    path = pipeline_of(kept, tmp_path / "m.dpk", count, told=told)
    built.clear()
    with pytest.raises(CertificateError, match=message):
        load(path, max_bytes=2**22)
    wanted = 2**22 // FourierFeatures(12).building_bytes(2000) if message[0] == "m" else 0
    assert len(built) == wanted


def test_a_pipeline_that_no_file_gives_back_is_not_saved(model):
    with pytest.raises(ParameterError, match="more than 64 steps can't be saved"):
        pipeline_state([(f"s{i}", "passthrough") for i in range(65)], model.certificate_)


def test_a_map_inside_of_a_map_counts_once():
    recipe = NormalisedFeatures(FourierFeatures(64)).build(3).to_dict()
    needed = NormalisedFeatures(FourierFeatures(64)).building_bytes(3)
    with recipe_limit(2 * needed):
        assert feature_map_from_dict(recipe).n_outputs == 65
        feature_map_from_dict(recipe)
        with pytest.raises(CertificateError, match="bytes of memory allowed"):
            feature_map_from_dict(recipe)
