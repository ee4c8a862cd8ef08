"""No other path to noise exists, and no file imports from a later step of the walk.

Read from the syntax trees of the sources, so that a new file can't slip past it.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dpkernel"
FILES = sorted(SOURCE.rglob("*.py"))

# the walk of data through the files; a file imports only from its own or an earlier step
STEPS = [
    ["errors", "version"],
    ["types", "entropy"],
    ["cells"],
    ["rounding", "validation", "tables", "domain", "kernels", "blocks", "archive"],
    ["features", "losses"],
    ["pld", "sensitivity", "samplers"],
    ["profiles"],
    ["noise"],
    ["mechanisms", "filters"],
    ["ledger_store", "statistics", "folds", "unit_statistics"],
    ["ledger_file"],
    ["ledger"],
    ["agreement"],
    ["certificate"],
    ["solvers"],
    ["estimators"],
    ["methods"],
    ["selection"],
    ["preprocessing"],
    ["papers"],
    ["model_file", "onnx_export", "report", "table_files"],
    ["demo", "audit"],
    ["reproduce"],
    ["cli"],
    ["__init__", "__main__"],
]
STEP = {name: i for i, names in enumerate(STEPS) for name in names}


def step_of(module: str) -> int:
    return STEP[module.split(".")[1] if "." in module else "__init__"]


def own_step(path: Path) -> int:
    top = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    return STEP[top]


def imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    for name in imports(path):
        if name.startswith("dpkernel.") and name.split(".")[1] in STEP:
            assert step_of(name) <= own_step(path), f"{path.name} imports the later step {name}"


def users_of(word: str) -> set[str]:
    """Return the files whose code (not docstrings) mentions a name or attribute."""
    found = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node, "id", None) or getattr(node, "attr", None)
            if isinstance(node, ast.alias):
                name = node.name.split(".")[-1]
            if name == word:
                found.add(str(path.relative_to(SOURCE)))
    return found


@pytest.mark.parametrize(
    ("word", "allowed"),
    [
        ("urandom", {"entropy.py"}),
        ("secrets", set()),
        ("SystemEntropy", {"entropy.py", "noise.py"}),
        ("SeededEntropy", {"entropy.py", "noise.py"}),
        ("_MINT", {"noise.py", "ledger.py"}),
        ("samplers", {"noise.py"}),
        ("random_raw", {"entropy.py"}),
        # public randomness of feature maps, of a solver that is not private, of published algorithms
        # and of synthetic data is the only other generator
        # (and the generators that a third party's estimator holds, which an audit renews)
        (
            "Generator",
            {
                "features/",
                "kernels.py",
                "papers/",
                "reproduce/",
                "cli/simulation.py",
                "audit/copies.py",
            },
        ),
        (
            "default_rng",
            {
                "features/",
                "papers/",
                "reproduce/design.py",
                "audit/copies.py",
                "solvers/sketching.py",
                "solvers/sgd_output.py",
                "cli/simulation.py",
            },
        ),
        ("standard_normal", {"features/", "kernels.py", "papers/", "solvers/sketching.py"}),
    ],
)
def test_randomness_is_reached_through_the_ledger_only(word, allowed):
    places = tuple(allowed)
    assert [user for user in users_of(word) if not user.startswith(places)] == []


def test_noise_sources_are_handed_over_by_the_ledger_only():
    calls = set()
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "Noise",
                "SystemNoise",
            ):
                calls.add(str(path.relative_to(SOURCE)))
    assert calls == {"ledger.py"}


def test_the_scan_sees_what_it_should():
    assert "entropy.py" in users_of("urandom")
    assert "dpkernel.ledger" in imports(SOURCE / "estimators" / "base.py")
