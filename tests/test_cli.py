"""Every command as a user would type it.

The steps of the demonstration, and what needs a process of its own (signals, limits), go through the
real entry point; the rest runs in this process.
"""

from __future__ import annotations

import csv
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import dpkernel
from cli_tables import SECRET, inside, run, write_study
from dpkernel import Budget, Certificate, Ledger
from dpkernel.data.table_files import read_schema


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demonstration, whose steps are processes; with an audit of fewer fits."""
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpkernel.outputs.demo._PATIENTS", 1500)
        patch.setattr("dpkernel.outputs.demo._NEW_PATIENTS", 300)
        patch.setattr("dpkernel.outputs.demo._AUDIT_TRIALS", 20)
        result = inside("demo", "--out", out)
    assert result.returncode == 0, result.stderr
    return out, result.stdout


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    write_study(folder)
    Ledger(folder / "study.db", dataset="patients", budget=Budget(2.0, 1e-5))
    return folder


def spends(folder, name="study.db"):
    return len(Ledger(folder / name, read_only=True).spends)


def test_the_list_of_commands_says_what_each_says_of_itself():
    from dpkernel.cli import COMMANDS, load_command

    for name, (_, text) in COMMANDS.items():
        assert " ".join(load_command(name).help.split("\n\n")[0].split()) == text, name


def test_the_demo_says_where_each_result_lies(demo):
    folder, text = demo
    for name in ("patients.csv", "model.dpk", "predictions.csv", "report.html", "audit.json"):
        assert (folder / name).stat().st_size > 0 and str(folder / name) in text
    for step in ("ledger create", "check", "fit", "verify", "predict", "report", "audit"):
        assert f"$ dpkernel {step}" in text
    assert "the guarantee holds" in text and "unchanged" in text
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "<script" not in page and "PrivateKernelRegressor" in page
    assert json.loads((folder / "audit.json").read_text(encoding="utf-8"))["trials"] > 0
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        found = [float(row["prediction"]) for row in csv.DictReader(file)]
    assert len(found) == 300 and all(0 <= value <= 30 for value in found)
    last = text.split("as a share of the variance:\n")[1].splitlines()[:3]
    shares = [float(line.split()[-1]) for line in last]
    assert shares[0] == 1.0 and 0.4 < shares[2] < 1.0 and shares[1] > 0.4
    kept = Certificate.from_json((folder / "certificate.json").read_bytes())
    assert kept.verify().epsilon <= 1 and kept.delta <= 1e-6
    assert spends(folder) == 1


def test_verify_finds_a_changed_byte(demo, tmp_path):
    data = bytearray((demo[0] / "model.dpk").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "m.dpk").write_bytes(data)
    result = inside("verify", tmp_path / "m.dpk", "--json")
    assert result.returncode == 1 and json.loads(result.stdout)["ok"] is False
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1


def test_show_prints_the_certificate_and_the_columns(demo):
    result = inside("show", demo[0] / "model.dpk", env={"NO_COLOR": "1"})
    assert result.returncode == 0 and "\x1b" not in result.stdout
    assert "the guarantee holds" in result.stdout and "target   days: 0 to 30" in result.stdout


def test_fit_predict_and_report_of_a_classifier(study):
    bounds = ("--bounds", study / "sick.toml", "--target", "sick", "--task", "classification")
    out = ("--out", study / "sick.dpk", "--report", study / "sick.html", "--json")
    result = inside("fit", study / "patients.csv", *bounds, *out, "--epsilon", 3, "--delta", "1e-5")
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["n_rows"] == 400 and told["n_columns"] == 3 and told["private"] is True
    assert told["epsilon"] <= 3 and (study / "sick.html").stat().st_size > 1000
    result = inside("predict", study / "sick.dpk", study / "patients.csv", "--json")
    found = json.loads(result.stdout)
    assert found["columns"] == ["prediction"] and found["n_rows"] == 400
    with (study / "patients.csv").open(encoding="utf-8", newline="") as file:
        true = [row["sick"] for row in csv.DictReader(file)]
    assert (
        np.mean([row[0] == label for row, label in zip(found["predictions"], true, strict=True)])
        > 0.8
    )
    line = ("predict", study / "sick.dpk", study / "patients.csv", "--probabilities", "--json")
    both = json.loads(inside(*line).stdout)
    assert both["columns"] == ["prediction", "probability_no", "probability_yes"]
    assert [row[0] for row in both["predictions"]] == [row[0] for row in found["predictions"]]
    assert all(0.999 < row[1] + row[2] < 1.001 for row in both["predictions"])
    assert SECRET.encode() not in (study / "sick.dpk").read_bytes()
    assert inside("report", study / "sick.dpk", "--out", study / "again.html").returncode == 0
    for name in ("sick.html", "again.html"):
        page = (study / name).read_text(encoding="utf-8")
        assert " changes with ward." in page and "changes with ward=" not in page


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("days", ()),
        ("days", ("--task", "quantile")),
        ("days", ("--estimator", "PrivateHuberRegressor")),
        ("days", ("--estimator", "PrivateKernelSVR")),
        ("sick", ("--task", "classification")),
    ],
    ids=str,
)
def test_pure_epsilon_needs_no_other_option(study, tmp_path, target, words):
    table, bounds = study / "patients.csv", study / f"{target}.toml"
    given = "--bounds", bounds, "--target", target, "--out", tmp_path / "m.dpk", "--json"
    result = inside("fit", table, *given, "--epsilon", 2, "--delta", 0, *words)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["delta"] == 0 and 1.99 < told["epsilon"] <= 2 and told["private"]
    kinds = [r.mechanism.kind for r in dpkernel.load(tmp_path / "m.dpk").certificate_.releases]
    assert kinds == ["laplace"]


def test_bounds_writes_names_only_or_spends_what_was_stated(study):
    out = study / "template.toml"
    result = inside("bounds", study / "patients.csv", "--schema", "--out", out)
    text = out.read_text(encoding="utf-8")
    assert result.returncode == 0 and "[columns.age]" in text
    assert SECRET not in text and "north" not in text
    options = ("--private", "--wide", study / "days.toml", "--target", "days", "--epsilon", 0.5)
    Ledger(study / "bounds.db", dataset="patients", budget=Budget(2.0, 1e-5))
    book = ("--ledger", study / "bounds.db", "--out", study / "found.toml")
    result = inside("bounds", study / "patients.csv", *options, *book, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["epsilon"] <= 0.5 and spends(study, "bounds.db") == 1
    found = read_schema(study / "found.toml")  # it names the target, too
    assert found.target.name == "days"
    assert [rule.name for rule in found.rules] == ["age", "ward", "days"]
    age = found.inputs[0].values
    assert 0 <= age.low < age.high <= 100
    kept = dpkernel.Certificate.from_json((study / "found.certificate.json").read_bytes())
    assert kept.verify().epsilon <= 0.5


def test_plan_reads_and_spends_nothing(study):
    sizes = ("--rows", 200, "--rows", 400, "--epsilon", 5, "--epsilon", 50, "--repetitions", 1)
    options = ("--estimator", "PrivateKernelRidge", "--plot", study / "plan.png", "--json")
    result = inside("plan", "--bounds", study / "days.toml", "--target", "days", *sizes, *options)
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert [(row["n_rows"], row["epsilon"]) for row in told["expected"]] == [
        (200, 5.0),
        (200, 50.0),
        (400, 5.0),
        (400, 50.0),
    ]
    assert all(0.3 < row["relative_error"] < 3 for row in told["expected"])
    assert told["n_inputs"] == 3
    assert (study / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_the_ledger_is_made_listed_exported_and_drawn(demo, tmp_path):
    made = inside(
        "ledger", "create", tmp_path / "l.db", "--dataset", "x", "--epsilon", 1, "--delta", 0
    )
    assert made.returncode == 0 and Ledger(tmp_path / "l.db", read_only=True).budget == Budget(1, 0)
    file = demo[0] / "study.db"
    listed = inside("ledger", "list", file)
    assert "patients" in listed.stdout and "left epsilon = 2" in listed.stdout
    exported = inside("ledger", "export", file, tmp_path / "l.json")
    assert exported.returncode == 0
    assert len(json.loads((tmp_path / "l.json").read_text(encoding="utf-8"))["spends"]) == 1
    assert inside("ledger", "plot", file, tmp_path / "l.png").returncode == 0
    assert (tmp_path / "l.png").read_bytes().startswith(b"\x89PNG")


def test_a_ledger_pays_for_as_many_fits_as_its_epsilon_says(study):
    file = study / "three.db"
    ceiling = ("--dataset", "d", "--epsilon", 3, "--delta", "1e-6")
    assert inside("ledger", "create", file, *ceiling).returncode == 0
    line = ("fit", study / "patients.csv", "--bounds", study / "days.toml", "--target", "days")
    for count in range(1, 8):
        done = inside(*line, "--ledger", file, "--epsilon", 1, "--out", study / f"{count}.dpk")
        if done.returncode:
            break
        assert "No ledger" not in done.stdout, done.stderr
        assert spends(study, "three.db") == count
    assert count > 3 and "does not fit under the ceiling" in done.stderr
    assert spends(study, "three.db") == count - 1 and not (study / f"{count}.dpk").exists()


def test_a_fit_without_a_ledger_says_that_epsilon_adds_up(study):
    line = ("fit", study / "patients.csv", "--bounds", study / "days.toml", "--target", "days")
    options = ("--estimator", "PrivateKernelRidge", "--out", study / "alone.dpk")
    told = inside(*line, *options).stdout
    assert "No ledger was named" in told and "delta = 1e-06" in told


def test_reproduce_writes_a_picture_and_a_table(tmp_path):
    result = inside("reproduce", "wang-lei", "table1", "--quick", "--out", tmp_path, "--json")
    assert result.returncode == 0, result.stderr
    written = json.loads(result.stdout)["written"]
    assert sorted(path.rsplit(".", 1)[1] for path in written) == ["csv", "png"]
    assert all(os.path.getsize(path) > 0 for path in written)


def fit_words(study, *more):
    ledger = ("--ledger", study / "study.db", "--bounds", study / "days.toml", "--target", "days")
    return ("fit", study / "patients.csv", *ledger, "--estimator", "PrivateKernelRidge", *more)


def test_a_full_disk_is_found_before_anything_is_spent(study):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    before = spends(study)
    result = run(*fit_words(study, "--out", study / "full.dpk"), preexec_fn=limit)
    assert result.returncode == 1 and "Nothing was spent" in result.stderr
    assert "full.dpk" in result.stderr and len(result.stderr.splitlines()) == 1
    assert spends(study) == before and not (study / "full.dpk").exists()


@pytest.mark.parametrize("fault", ["bad file", "missing column", "wrong target"])
def test_a_faulty_table_is_one_sentence_and_spends_nothing(fault, study):
    data, target, ledger = study / "patients.csv", "days", study / f"{fault[:3]}.db"
    if fault == "bad file":
        data = study / "patients.parquet"
        data.write_bytes(b"PAR1 " + SECRET.encode())
    if fault == "missing column":
        data = study / "narrow.csv"
        data.write_text(f"id,age,sick,days\n1,30,yes,{SECRET}\n", encoding="utf-8")
    if fault == "wrong target":
        target = "weight"
    Ledger(ledger, dataset="study", budget=Budget(5.0, 1e-5))
    options = ("--bounds", study / "days.toml", "--out", study / "f.dpk", "--ledger", ledger)
    result = inside("fit", data, "--target", target, *options)
    assert result.returncode == 1 and not (study / "f.dpk").exists()
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1
    assert SECRET not in result.stderr and spends(study, ledger.name) == 0


def test_a_locked_ledger_is_one_sentence(study):
    with (study / "study.db-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = inside(*fit_words(study, "--out", study / "locked.dpk", "--wait", 0.2))
    assert result.returncode == 1 and "busy for 0.2 seconds" in result.stderr
    assert len(result.stderr.splitlines()) == 1 and not (study / "locked.dpk").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_before_the_draw_spends_nothing(study, number):
    before = spends(study)
    pipe = study / f"slow{number:d}.csv"
    os.mkfifo(pipe)
    words = fit_words(study, "--out", study / "never.dpk")
    words = ("fit", pipe, *words[2:])
    child = subprocess.Popen(
        [sys.executable, "-m", "dpkernel", *map(str, words)], stderr=subprocess.PIPE, text=True
    )
    with pipe.open("w", encoding="utf-8") as file:  # waits until the command reads
        file.write("id,age,ward,sick,days\n" + "1,50,north,no,3\n" * 20_000)
        file.flush()
        child.send_signal(number)
        _, error = child.communicate(timeout=60)
    assert child.returncode == 130 and "Interrupted. Nothing was spent." in error
    assert "Traceback" not in error and spends(study) == before


STOP_AFTER_THE_DRAW = (
    "import sys, time, dpkernel.cli.fit as fit\n"
    "from dpkernel.cli import app\n"
    "def save(*_, **__):\n"
    "    print('drawn', flush=True); time.sleep(60)\n"
    "fit.save_model = save\n"
    "app(sys.argv[1:])\n"
)


def stopped_after_the_draw(words, number):
    """Return what a fit says that gets a signal before it writes its model."""
    child = subprocess.Popen(
        [sys.executable, "-c", STOP_AFTER_THE_DRAW, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "drawn\n", child.communicate()
    child.send_signal(number)
    _, error = child.communicate(timeout=60)
    assert child.returncode in (130, -signal.SIGKILL)
    return error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_after_the_draw_says_that_the_spend_stays(study, number):
    before = spends(study)
    words = fit_words(study, "--out", study / "lost.dpk", "--epsilon", 0.5)
    assert "stays recorded in the ledger" in stopped_after_the_draw(words, number)
    assert spends(study) == before + 1


def test_an_interrupted_fit_is_finished_by_the_same_command(study):
    before, file = spends(study), study / "fit.resume"
    words = fit_words(study, "--out", study / "kept.dpk", "--epsilon", 0.5, "--resume", file)
    told = stopped_after_the_draw(words, signal.SIGTERM)
    assert f"--resume {file} finishes the fit and spends nothing more" in told
    stopped_after_the_draw(words, signal.SIGKILL)
    assert file.exists() and not (study / "kept.dpk").exists()
    result = inside(*words)
    assert result.returncode == 0, result.stderr
    assert (study / "kept.dpk").exists() and not file.exists()
    assert spends(study) == before + 1
    assert inside("verify", study / "kept.dpk").returncode == 0


@pytest.mark.slow
def test_a_file_of_two_gigabytes_needs_less_than_one_of_memory(tmp_path):
    draw = np.random.default_rng(0)
    names = [f"c{j}" for j in range(20)]
    X = draw.uniform(-1, 1, (40_000, 20))
    table = np.column_stack([X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]])
    text = "".join(",".join(f"{v:.15g}" for v in row) + "\n" for row in table.tolist())
    with (tmp_path / "big.csv").open("w", encoding="utf-8") as file:
        file.write(",".join([*names, "y"]) + "\n")
        while file.tell() < 2_000_000_000:
            file.write(text)
    tables = [f"[columns.{name}]\nlow = -1\nhigh = 1\n" for name in names]
    (tmp_path / "b.toml").write_text("".join([*tables, "[target]\nname='y'\nlow=-3\nhigh=3\n"]))
    started = time.monotonic()
    result = run("fit", tmp_path / "big.csv", "--bounds", tmp_path / "b.toml", "--out", "m.dpk",
                 "--estimator", "PrivateKernelRidge", "--json", cwd=tmp_path)  # fmt: skip
    seconds = time.monotonic() - started
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{seconds:.0f} s, {peak:.0f} MB")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["n_rows"] > 4_000_000 and peak < 1000
