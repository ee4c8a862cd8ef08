"""The command line through its real entry point, as a user would type it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dpkernel import PrivateKernelRidge, SeededNoise


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dpkernel", *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    result = run("demo", "--out", str(out))
    assert result.returncode == 0, result.stderr
    assert "the guarantee holds" in result.stdout and "report" in result.stdout
    return out


def test_demo_leaves_model_certificate_and_report(folder):
    assert {p.name for p in folder.iterdir()} == {"model.npz", "certificate.json", "report.html"}
    certificate = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    assert certificate["private"] is True and certificate["valid"] is True
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page and "http:" not in page and "https:" not in page and "<script" not in page


def test_verify_and_show_read_models_and_certificates(folder):
    for name in ("model.npz", "certificate.json"):
        verified, shown = run("verify", str(folder / name)), run("show", str(folder / name))
        assert verified.returncode == 0 and "support the claim" in verified.stdout
        assert shown.returncode == 0 and len(shown.stdout.strip().splitlines()) == 6


def test_verify_fails_on_tampering(folder, tmp_path):
    data = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    data["epsilon"] = 0.1
    (tmp_path / "c.json").write_text(json.dumps(data), encoding="utf-8")
    result = run("verify", str(tmp_path / "c.json"))
    assert result.returncode == 1 and "parameters prove delta" in result.stderr
    assert "Traceback" not in result.stderr


def test_verify_fails_on_seeded_noise(tmp_path):
    model = PrivateKernelRidge(y_bounds=(0, 1), noise=SeededNoise(0)).fit(
        [[0.0], [1.0]], [0.0, 1.0]
    )
    (tmp_path / "c.json").write_text(model.certificate_.to_json(), encoding="utf-8")
    result = run("verify", str(tmp_path / "c.json"))
    assert result.returncode == 1 and "NOT PRIVATE" in result.stderr


def test_missing_and_foreign_files(tmp_path):
    assert run("verify", str(tmp_path / "none.json")).returncode == 2
    (tmp_path / "x.json").write_text("hello", encoding="utf-8")
    result = run("verify", str(tmp_path / "x.json"))
    assert result.returncode == 1 and "not JSON" in result.stderr
    (tmp_path / "binary").write_bytes(bytes(range(128, 256)))
    result = run("show", str(tmp_path / "binary"))
    assert result.returncode == 1 and "Traceback" not in result.stderr
