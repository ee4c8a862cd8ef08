"""The changes that CONTRIBUTING.md shows add parts that work, and the tests notice what is wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import dpkernel.estimators
import test_audit
import test_audit_table
import test_cells
import test_mechanisms
import test_profiles
from dpkernel.models.features.linear import LinearFeatures
from dpkernel.privacy import mechanisms, profiles

ROOT = Path(__file__).parents[1]
TESTS = (
    "test_losses.py",
    "test_kernels.py",
    "test_features.py",
    "test_onnx.py",
    "test_model_file.py",
)
# the name of each new part in the ids of tests, the least number of these tests, its file, a line
# there and how a wrong version of this line ends
PARTS = {
    "loss": ("Shortfall", 10, "losses/shortfall.py", "lipschitz: ClassVar[float] = 1.0", "0.5"),
    "kernel": ("two_scales", 10, "kernels.py", "np.where(uniforms < 0.5, 1.0, 2.0)", "4.0)"),
    "feature map": ("ircle", 10, "features/circle.py", "return 1.0", "0.7"),
}
USE = """
from dpkernel import PrivateKernelRidge, SeededNoise
from dpkernel.methods import PrivateSGDRegressor
from dpkernel.models.features.circle import CircleFeatures
import numpy as np
X = np.linspace(-1, 1, 400).reshape(200, 2)
given = dict(bounds=(-1, 1), y_bounds=(-1, 1), noise=SeededNoise(0))
for model in (
    PrivateSGDRegressor(loss="shortfall", **given),
    PrivateKernelRidge(kernel="two_scales", **given),
    PrivateKernelRidge(features=CircleFeatures(), **given),
):
    assert np.isfinite(model.fit(X, X[:, 0]).predict(X)).all()
"""


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """Return a copy of the tree in which the changes were made."""
    if shutil.which("git") is None:
        pytest.skip("the changes are applied with git")
    tree = tmp_path_factory.mktemp("tree")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    changes = re.findall(r"^```diff\n(.*?)^```", text, re.M | re.S)
    assert len(changes) == len(PARTS)
    (tree / "changes").write_text("".join(changes), encoding="utf-8")
    subprocess.run(["git", "apply", "changes"], cwd=tree, check=True)
    return tree


def run(tree, *arguments):
    places = os.pathsep.join([str(tree / "src"), str(tree / "tests")])
    environment = {**os.environ, "PYTHONPATH": places, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, *arguments], cwd=tree, env=environment, check=False)


def outcomes(tree):
    """Return how many tests of each new part passed, and how many failed."""
    wanted = " or ".join(name for name, *_ in PARTS.values())
    options = ("-q", "-p", "no:cacheprovider", "--junitxml=results.xml", "-k", wanted)
    run(tree, "-m", "pytest", *options, *(f"tests/{name}" for name in TESTS))
    cases = ElementTree.parse(tree / "results.xml").getroot().findall(".//testcase")
    found = {}
    for part, (name, *_) in PARTS.items():
        own = [case for case in cases if name in case.get("name", "")]
        failed = sum(len(case) > 0 and case[0].tag in ("failure", "error") for case in own)
        found[part] = len(own) - failed, failed
    return found


def test_the_parts_pass_the_tests_of_their_kind_and_can_be_used(changed):
    found = outcomes(changed)
    for part, (_, least, *_) in PARTS.items():
        passed, failed = found[part]
        assert failed == 0 and passed >= least, (part, passed, failed)
    assert run(changed, "-c", USE).returncode == 0


def test_parts_with_a_wrong_constant_fail(changed, tmp_path):
    tree = shutil.copytree(changed, tmp_path / "tree")
    for _, _, file, right, wrong in PARTS.values():
        path = tree / "src/dpkernel/models" / file
        text = path.read_text(encoding="utf-8")
        assert text.count(right) == 1
        path.write_text(text.replace(right, right[: -len(wrong)] + wrong), encoding="utf-8")
    for part, (_, failed) in outcomes(tree).items():
        assert failed > 0, part


@pytest.mark.parametrize(
    ("registry", "checks"),
    [
        (
            mechanisms.REGISTRY,
            (
                test_audit.test_every_mechanism_has_a_case_and_twins,
                test_cells.test_every_mechanism_has_cells,
                test_mechanisms.test_the_table_covers_the_registry,
            ),
        ),
        (
            profiles._REGISTRY,
            (
                test_cells.test_every_profile_has_an_example,
                test_profiles.test_every_kind_is_under_contract,
            ),
        ),
        (test_cells._FORMULAS, (test_cells.test_every_formula_has_a_search,)),
    ],
    ids=["mechanism", "profile", "sensitivity"],
)
def test_a_part_without_its_case_is_noticed(registry, checks, monkeypatch):
    for check in checks:
        check()
    monkeypatch.setitem(registry, "another", next(iter(registry.values())))
    for check in checks:
        with pytest.raises(AssertionError):
            check()


def test_an_estimator_without_its_line_is_noticed(monkeypatch):
    check = test_audit_table.test_every_estimator_is_audited_with_every_relation_and_a_twin
    check()
    monkeypatch.setattr(dpkernel.estimators, "Another", LinearFeatures, raising=False)
    monkeypatch.setattr(dpkernel.estimators, "__all__", [*dpkernel.estimators.__all__, "Another"])
    with pytest.raises(AssertionError):
        check()
