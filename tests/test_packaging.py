"""The package as others get it: sdist and wheel build and import, and versions agree."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import dpkernel

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    return out


def test_wheel_holds_the_package_its_types_and_its_licence(dist):
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "dpkernel/py.typed" in names and "dpkernel/privacy/ledger.py" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests", "docs")) for name in names)
    assert wheel.stat().st_size < 2_000_000


def test_sdist_holds_what_is_needed_to_build_and_test(dist):
    (archive,) = dist.glob("*.tar.gz")
    names = {name.split("/", 1)[1] for name in tarfile.open(archive).getnames() if "/" in name}
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md"} <= names
    assert "src/dpkernel/__init__.py" in names and "tests/golden.json" in names
    assert not any(name.startswith((".venv", "demo", "audit-report")) for name in names)


def test_the_wheel_can_be_installed_and_runs_without_the_source_tree(dist, tmp_path):
    (wheel,) = dist.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(tmp_path), str(wheel)], check=True)
    assert (tmp_path / "bin/dpkernel").exists()
    code = (
        "import dpkernel, pathlib; from dpkernel import Budget, Ledger, Neighbours, Domain,"
        " mechanisms, profiles; print(pathlib.Path(dpkernel.__file__).parent)"
    )
    result = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.strip() == str(tmp_path / "dpkernel")


def test_one_version_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^version: (.+)$", citation, re.M).group(1) == dpkernel.__version__
    assert re.search(r"^## (\S+)", changelog, re.M).group(1) == dpkernel.__version__
    first_part = re.search(r"^## .+?^### (\w+)", changelog, re.M | re.S).group(1)
    assert first_part == "Privacy"


def test_every_core_dependency_is_explained_in_the_readme():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    extras = project["optional-dependencies"]
    assert {"dask", "torch", "exact", "dev"} <= set(extras)
    for dependency in project["dependencies"]:
        name = re.match(r"[\w-]+", dependency).group()
        assert re.search(rf"^\| {name} ", readme, re.M), name


def loaded_by(statement: str) -> set[str]:
    """Return the top-level packages that a statement loads in a new interpreter."""
    code = f"import sys; {statement}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(subprocess.check_output([sys.executable, "-c", code], text=True).split())


def test_names_load_when_they_are_used_and_heavy_libraries_only_when_they_are_needed():
    assert not loaded_by("import dpkernel, dpkernel.cli") & {"numpy", "scipy", "sklearn", "numba"}
    names = ", ".join(dpkernel.__all__)
    heavy = {"torch", "dask", "opendp", "dp_accounting", "matplotlib", "onnx"}
    assert not loaded_by(f"from dpkernel import {names}") & heavy
    assert set(dpkernel.__all__) <= set(dir(dpkernel))
    with pytest.raises(AttributeError, match="has no attribute 'PrivateForest'"):
        _ = dpkernel.PrivateForest


def test_only_public_names_of_scikit_learn_are_used():
    for path in (ROOT / "src").rglob("*.py"):
        for name in re.findall(
            r"(?:from|import) (sklearn[\w.]*)", path.read_text(encoding="utf-8")
        ):
            assert not any(part.startswith("_") for part in name.split(".")), f"{path}: {name}"


@pytest.mark.skipif(not (ROOT / ".github").exists(), reason="the source archive has no habits")
def test_habits_run_what_make_check_runs():
    """The hooks and the workflow can't drift away from the Makefile."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    checks = re.search(r"^check: style types docs$.*?^docs:", makefile, re.M | re.S).group()
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    for hook in hooks["repos"][0]["hooks"]:
        tool, *options = hook["entry"].removeprefix(".venv/bin/").split()
        options = [option for option in options if option != "--force-exclude"]
        assert " ".join([f"$(BIN)/{tool}", *options]) in checks, hook["entry"]
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"} and os.access(ROOT / ".ci/run", os.X_OK)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = [line.split()[-1] for line in project["classifiers"] if ":: 3." in line]
    assert job["strategy"]["matrix"]["python-version"] == versions
    for form in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        assert isinstance(yaml.safe_load(form.read_text(encoding="utf-8")), dict)


def test_a_release_needs_one_version_and_an_installed_wheel(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    release = importlib.import_module("release")
    version = dpkernel.__version__
    for name in (f"dpkernel-{version}.tar.gz", f"dpkernel-{version}-py3-none-any.whl"):
        (tmp_path / name).touch()
    monkeypatch.setattr(release.metadata, "version", lambda name: version)
    monkeypatch.setattr(dpkernel, "__file__", str(tmp_path / "dpkernel/__init__.py"))
    assert release.faults(tmp_path) == []
    (tmp_path / "dpkernel-0.0.1.tar.gz").touch()
    monkeypatch.setattr(dpkernel, "__file__", str(ROOT / "src/dpkernel/__init__.py"))
    stale, other = release.faults(tmp_path)
    assert "from the source tree" in stale and "dpkernel-0.0.1.tar.gz" in other
    monkeypatch.setattr(release.metadata, "version", lambda name: "9.9")
    assert len(release.faults(tmp_path)) == 5
