"""Whatever is wrong: one sentence, the right exit code, nothing spent, nothing of the data shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dpkernel.proof.audit
from cli_tables import SECRET, write_study
from dpkernel import Budget, Ledger, PrivateKernelRidge, SeededNoise
from dpkernel.cli import app, fit, model_files
from dpkernel.estimators.outlook import MEASURES
from dpkernel.outputs.model_file import save
from dpkernel.proof.reproduce import CLAIMS, FIGURES


@pytest.fixture
def study(tmp_path, monkeypatch):
    write_study(tmp_path, 60)
    (tmp_path / "book.csv").write_bytes(b"PK\x03\x04\x14\x00\x06\x00,")
    (tmp_path / "typo.toml").write_text("[columns.days]\nlow = 0\nhigh = 9\nmising = 5\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def words_of(line):
    return line.split()


FIT = "fit patients.csv --bounds days.toml --target days --estimator PrivateKernelRidge"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fit none.csv --bounds days.toml --target days", "There is no file or folder named none"),
        (
            "fit patients.csv --bounds none.toml --target days",
            "There is no file or folder named none",
        ),
        ("fit patients.csv --bounds days.toml", "Name the column to predict"),
        ("fit patients.csv --bounds days.toml --target nix", "does not declare the target 'nix'"),
        (
            "fit patients.csv --bounds sick.toml --target sick --task regression",
            "needs low and high",
        ),
        (f"{FIT} --task classification", "must be one of PrivateKernelClassifier"),
        ("fit patients.csv --bounds days.toml --target days --task classification", "'levels'"),
        ("fit patients.csv --bounds days.toml --target days --task cooking", "--task must be"),
        (f"{FIT} --epsilon -1", "'epsilon' parameter"),
        (f"{FIT} --delta 2", "'delta' parameter"),
        (f"{FIT} --quantile 0.5", "--quantile needs --task"),
        (f"{FIT} --set epsilon=9", "--set must be NAME=VALUE"),
        (f"{FIT} --set noise=0", "--set must be NAME=VALUE"),
        (f"{FIT} --set ledger=0", "--set must be NAME=VALUE"),
        (f"{FIT} --set kernel=cheese", "kernel"),
        (f"{FIT} --neighbours twins", "'replace-one'"),
        (f"{FIT} --neighbours add-remove", "--n-max N, or n_max = N in bounds.toml"),
        (f"{FIT} --n-max 9", "--n-max needs --neighbours add-remove"),
        (f"{FIT} --neighbours add-remove --n-max 0", "'n_max' parameter of AddRemove"),
        (f"{FIT} --out patients.csv", "is an input"),
        (f"{FIT} --out m.dpk --report days.toml", "is an input"),
        (f"{FIT} --out none/model.dpk", "There is no folder 'none' for model.dpk"),
        (f"{FIT} --wait -3", "--wait must be at least 0 seconds"),
        (f"{FIT} --report none/r.html", "There is no folder 'none' for r.html"),
        (f"{FIT} --out .", "It is a folder"),
        (f"{FIT} --dataset x", "Add --ledger"),
        (f"{FIT} --ledger none.db", "dpkernel ledger create"),
        (f"{FIT} --ledger patients.csv", "not a ledger"),
        (f"{FIT} --format xlsx", "unknown ending"),
        ("fit book.csv --bounds days.toml --target days", "is a spreadsheet or an archive"),
        ("fit patients.csv --bounds typo.toml --target days", "It has 'mising'."),
        (f"{FIT} --strict", "can't be read as bounds.toml declares it"),
        (f"{FIT} --decimal x", "--decimal must be a dot or a comma"),
        (f"{FIT} --thousands .", "different signs"),
        (f"{FIT} --encoding utf-16", "one byte per character"),
        ("check none.csv --bounds days.toml", "There is no file or folder named none"),
        ("check patients.csv --bounds days.toml --target days --strict", "would refuse this file"),
        ("predict patients.csv patients.csv", "model file"),
        ("show patients.csv", "model file"),
        ("verify none.dpk", "There is no file or folder named none"),
        ("report patients.csv", "model file"),
        ("audit nix", "is neither a model file nor an estimator"),
        ("bounds patients.csv", "either --schema or --private"),
        ("bounds patients.csv --private", "--private needs --epsilon"),
        ("bounds patients.csv --schema --out days.toml", "already exists"),
        ("plan --rows 5", "at least 10"),
        ("plan --columns 0", "at least 1"),
        ("plan --plot p.exe", "end in .png"),
        ("ledger list none.db", "dpkernel ledger create"),
        ("ledger plot none.db p.exe", "end in .png"),
        ("ledger plot none.db", "Name one file to write, with --out"),
        ("ledger export none.db l.json --out m.json", "Name one file to write, with --out"),
        ("ledger export none.db --out l.txt", "must end in .json or .csv. Got l.txt"),
        ("reproduce nobody fig1", "nobody"),
    ],
)
def test_a_refusal_is_one_sentence_with_exit_code_1(study, line, words):
    before = {path.name for path in study.iterdir()}
    result = call(*words_of(line))
    assert result.exit_code == 1, result.output
    assert words in result.stderr and result.stderr.startswith("error: ")
    assert len(result.stderr.strip().splitlines()) == 1 and "Traceback" not in result.output
    assert SECRET not in result.output
    assert {path.name for path in study.iterdir()} == before


@pytest.mark.parametrize("line", ["fit", "fits", "fit patients.csv --bonds x", "plan --rows many"])
def test_wrong_usage_is_exit_code_2(study, line):
    assert call(*words_of(line)).exit_code == 2


def test_debug_shows_the_traceback_and_json_the_error(study):
    result = call(*words_of("fit none.csv --bounds days.toml --target days --debug --json"))
    assert result.exit_code == 1 and "Traceback" in result.stderr
    assert "There is no file or folder named none" in json.loads(result.stdout)["error"]


def test_a_fault_of_ours_does_not_quote_the_data(study, monkeypatch):
    def fail(*_, **__):
        raise KeyError(SECRET)

    monkeypatch.setattr(fit, "encode_table", fail)
    result = call(*words_of(FIT))
    assert result.exit_code == 1 and "unexpected" in result.stderr and "KeyError" in result.stderr
    assert SECRET not in result.output and "Nothing was spent" in result.stderr


def test_what_does_not_fit_under_the_ceiling_is_refused(study):
    book = Ledger(study / "study.db", dataset="d", budget=Budget(0.5, 1e-6))
    result = call(*words_of(f"{FIT} --ledger study.db"))
    assert result.exit_code == 1 and "does not fit under the ceiling" in result.stderr
    assert book.spends == [] and not (study / "model.dpk").exists()
    again = call(*words_of("ledger create study.db --dataset d --epsilon 9 --delta 0"))
    assert again.exit_code == 1 and "already holds" in again.stderr and book.budget.epsilon == 0.5


def test_a_disk_that_fills_up_after_the_spend_does_not_lose_the_model(study, monkeypatch):
    def full(model, path, metadata):
        if path.parent == study:
            raise OSError(28, "No space left on device", str(path))
        return save(model, path, metadata=metadata)

    monkeypatch.setattr(model_files, "save", full)
    monkeypatch.setattr(model_files.tempfile, "mkdtemp", lambda prefix: str(study / "rescue"))
    (study / "rescue").mkdir()
    before = (study / "patients.csv").read_bytes()
    result = call(*words_of(f"{FIT} --out {study / 'model.dpk'}"))
    assert result.exit_code == 1 and "The budget is spent; the result is in" in result.stderr
    assert call("verify", study / "rescue" / "model.dpk").exit_code == 0
    result = call(
        "predict", study / "rescue" / "model.dpk", "patients.csv", "--out", "patients.csv"
    )
    assert result.exit_code == 1 and "is an input" in result.stderr
    assert (study / "patients.csv").read_bytes() == before


def test_a_file_without_a_header_is_not_copied_into_a_template(study):
    (study / "bare.csv").write_text(f"{SECRET},63.5\n{SECRET},12.5\n", encoding="utf-8")
    result = call("bounds", "bare.csv", "--schema", "--out", "b.toml")
    assert result.exit_code == 1 and "may be a row" in result.stderr
    assert SECRET not in result.output and not (study / "b.toml").exists()
    result = call(*words_of("fit bare.csv --bounds days.toml --target days"))
    assert result.exit_code == 1 and SECRET not in result.output


def test_quiet_says_nothing_and_quantiles_and_settings_reach_the_estimator(study):
    task = "fit patients.csv --bounds days.toml --target days --task quantile --quiet"
    line = f"{task} --quantile 0.9 --quantile 0.1 --set kernel=linear --set width=2.5"
    result = call(*words_of(line))
    assert result.exit_code == 0 and result.output == ""
    result = call("predict", "model.dpk", "patients.csv")
    lines = result.stdout.splitlines()
    assert lines[0] == "quantile_0.1,quantile_0.9" and len(lines) == 61
    assert all(float(line.split(",")[0]) <= float(line.split(",")[1]) for line in lines[1:])
    result = call("predict", "model.dpk", "patients.csv", "--probabilities")
    assert result.exit_code == 1 and "no probabilities" in result.stderr


def test_predictions_of_columns_and_of_models_without_a_schema(study):
    X, y = [[0.0], [1.0]] * 10, [0.0, 1.0] * 10
    model = PrivateKernelRidge(y_bounds=(0, 1), noise=SeededNoise(0)).fit(X, y)
    save(model, study / "plain.dpk")
    result = call("predict", "plain.dpk", "patients.csv")
    assert result.exit_code == 1 and "saved from Python" in result.stderr
    result = call("verify", "plain.dpk", "--json")
    assert result.exit_code == 1 and "NOT PRIVATE" in result.stderr
    assert json.loads(result.stdout)["private"] is False


def test_a_certificate_with_a_changed_claim_is_refused(study):
    model = PrivateKernelRidge(y_bounds=(0, 1)).fit([[0.0], [1.0]], [0.0, 1.0])
    text = model.certificate_.to_json()
    (study / "c.json").write_text(text, encoding="utf-8")
    assert call("verify", "c.json").exit_code == 0 and call("show", "c.json").exit_code == 0
    (study / "c.json").write_text(json.dumps({**json.loads(text), "epsilon": 0.1}), "utf-8")
    result = call("verify", "c.json")
    assert result.exit_code == 1 and "parameters prove delta" in result.stderr


def test_verify_does_not_vouch_for_a_file_without_hashes():
    old = next((Path(__file__).parent / "files").glob("format1-*ridge*"))
    result = call("verify", old)
    assert "without hashes" in result.stdout and "unchanged" not in result.stdout


@pytest.mark.parametrize("task", ["classification", "quantile"])
def test_plan_knows_every_task(study, task):
    line = f"plan --task {task} --columns 2 --rows 300 --epsilon 20 --repetitions 2 --json"
    told = json.loads(call(*words_of(line)).stdout)
    assert told["measure"] == MEASURES[task] and 0.3 < told["expected"][0]["relative_error"] < 1.0


def test_there_is_completion_for_the_shell():
    assert "--install-completion" in call("--help").output


def test_reproduce_writes_what_the_paper_shows(study, monkeypatch):
    def figure(request):
        path = request.out / "fig0.csv"
        path.write_text(f"{request.repetitions} {request.quick}", encoding="utf-8")
        return [path]

    monkeypatch.setitem(FIGURES, ("lee-park-ahn", "fig0"), figure)
    monkeypatch.setitem(CLAIMS, ("lee-park-ahn", "fig0"), CLAIMS["lee-park-ahn", "fig1"])
    line = "reproduce lee-park-ahn fig0 --quick --repetitions 2 --out . --json"
    told = json.loads(call(*words_of(line)).stdout)
    assert told["written"] == ["fig0.csv"]
    assert (study / "fig0.csv").read_text(encoding="utf-8") == "2 True"


def test_an_audit_that_contradicts_the_claim_is_exit_code_1(study, monkeypatch):
    attacked = []

    class Report:
        def to_json(self):
            return json.dumps({"verdict": verdict})

    def attack(estimator, **options):
        attacked.append((estimator.get_params(), options["trials"], options["confidence"]))
        return Report()

    monkeypatch.setattr(dpkernel.proof.audit, "audit", attack)
    line = (
        "audit PrivateKernelSVC --epsilon 2 --neighbours zero-out --trials 50 --out a.json --json"
        " --force"
    )
    for verdict, code in (("contradicted", 1), ("not contradicted", 0)):
        result = call(*words_of(line))
        assert result.exit_code == code and json.loads(result.stdout)["audit"]["verdict"] == verdict
        assert json.loads((study / "a.json").read_text(encoding="utf-8"))["verdict"] == verdict
    parameters, trials, confidence = attacked[0]
    assert (parameters["epsilon"], parameters["neighbours"]) == (2.0, "zero-out")
    assert parameters["ledger"] is None and (trials, confidence) == (50, 0.999)
