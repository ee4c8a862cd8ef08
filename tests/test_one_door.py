"""No other path to noise exists, and no module imports from a later room.

Read from the syntax trees of the sources, so that a new file can't slip past it.
"""

from __future__ import annotations

import ast
import importlib
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from dpkernel.foundations.old_paths import ROOM_OF
from dpkernel.models import kernels

SOURCE = Path(__file__).parents[1] / "src" / "dpkernel"
FILES = sorted(SOURCE.rglob("*.py"))

# the walk of data through the rooms; a module imports from its own room and from rooms before it
ROOMS = [
    "version",
    "foundations",
    "data",
    "models",
    "privacy",
    "solvers",
    "estimators",
    "selection",
    "preprocessing",
    "methods",
    "outputs",
    "proof",
    "cli",
    "__main__",
]


def name_of(path: Path) -> str:
    dotted = ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts)
    return dotted.removesuffix(".__init__")


MODULES = {name_of(path): path for path in FILES}


def imports(path: Path) -> set[str]:
    """Return the modules of dpkernel that a file imports, at its top or later, types apart."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in inside}
    return found & set(MODULES)


@cache
def all_imports() -> dict[str, set[str]]:
    return {name: imports(path) for name, path in MODULES.items()}


def room_of(module: str) -> str:
    return module.split(".")[1]


def test_every_module_has_a_room():
    assert {room_of(name) for name in MODULES if name != "dpkernel"} == set(ROOMS)


def test_imports_go_one_way_through_the_rooms():
    wrong = [
        f"{name} imports {other}"
        for name, others in all_imports().items()
        for other in others - {"dpkernel"}
        if name != "dpkernel" and ROOMS.index(room_of(other)) > ROOMS.index(room_of(name))
    ]
    assert not wrong


def test_no_module_imports_itself_through_others():
    """Also not by a late import, which would only hide that two modules are one."""
    graph = {name: others - {"dpkernel", name} for name, others in all_imports().items()}
    sorter = TopologicalSorter(graph)
    sorter.prepare()  # raises CycleError with the modules of a cycle


def test_nothing_but_the_command_line_imports_the_proofs():
    users = {
        name for name, others in all_imports().items() for other in others if ".proof" in other
    }
    assert {room_of(user) for user in users} == {"proof", "cli"}


def test_modules_are_found_under_their_old_names():
    for old, room in ROOM_OF.items():
        assert importlib.import_module(f"dpkernel.{old}") is importlib.import_module(
            f"dpkernel.{room}.{old}"
        )
    from dpkernel.losses.base import Loss

    from dpkernel.models.losses.base import Loss as Same

    assert Loss is Same
    assert sys.modules["dpkernel.privacy.ledger"].__spec__.name == "dpkernel.privacy.ledger"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("dpkernel.ledger_of_old")


@cache
def names_in(path: Path) -> set[str]:
    """Return the names and attributes that the code (not docstrings) of a file mentions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.alias):
            found.add(node.name.split(".")[-1])
        else:
            found.add(getattr(node, "id", None) or getattr(node, "attr", None))
    return found


def users_of(word: str) -> set[str]:
    """Return the files whose code mentions a name or attribute."""
    return {str(path.relative_to(SOURCE)) for path in FILES if word in names_in(path)}


@pytest.mark.parametrize(
    ("word", "allowed"),
    [
        ("urandom", {"foundations/entropy.py"}),
        ("secrets", set()),
        ("SystemEntropy", {"foundations/entropy.py", "privacy/noise.py"}),
        ("SeededEntropy", {"foundations/entropy.py", "privacy/noise.py"}),
        ("_MINT", {"privacy/noise.py", "privacy/ledger.py", "privacy/resume.py"}),
        ("samplers", {"privacy/noise.py"}),
        ("random_raw", {"foundations/entropy.py"}),
        # public randomness of feature maps, of a solver that is not private, of published algorithms
        # and of synthetic data is the only other generator
        # (and the generators that a third party's estimator holds, which an audit renews)
        (
            "Generator",
            {
                "models/features/",
                "models/kernels.py",
                "proof/papers/",
                "proof/reproduce/",
                "estimators/outlook.py",
                "outputs/patients.py",
                "proof/audit/copies.py",
            },
        ),
        (
            "default_rng",
            {
                "models/features/",
                "proof/papers/",
                "proof/reproduce/design.py",
                "proof/audit/copies.py",
                "solvers/sketching.py",
                "solvers/sgd_output.py",
                "estimators/outlook.py",
                "outputs/patients.py",
            },
        ),
        (
            "standard_normal",
            {"models/features/", "models/kernels.py", "proof/papers/", "solvers/sketching.py"},
        ),
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
    assert calls == {"privacy/ledger.py"}


def test_the_scan_sees_what_it_should():
    assert "foundations/entropy.py" in users_of("urandom")
    assert "dpkernel.privacy.ledger" in all_imports()["dpkernel.estimators.base"]


def test_no_two_classes_share_a_name():
    homes: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(name)
    assert not {name for name, found in homes.items() if len(found) > 1}
    assert kernels.Gaussian is kernels.GaussianKernel and kernels.Laplace is kernels.LaplaceKernel


# Names with an underscore that several rooms share. Nobody else has a use for them.
SHARED = {
    # how an estimator is asked what it would do; a subclass of a user may replace these
    "_check_parameters", "_open_table", "_planned", "_planned_spending", "_spending",
    # how a search, a pipeline and a table file fit an estimator
    "_fit_beside", "_fit_choosing", "_label_shares", "_records_of",
    # how models are written to files and read from them
    "_to_state", "_from_state",
    # what a fitted model knows in public; scikit-learn reserves names without an underscore
    "_domain", "_levels", "_several",
    # what must not have a public name: sums without noise, and a spend that goes on
    "_add_sums", "_pack", "_unpack", "_resume",
}  # fmt: skip


def private_reads() -> set[tuple[str, str]]:
    """Return (file, name) of private names of other rooms that are read. The proofs may read all."""
    homes: dict[str, set[str]] = {}
    reads = set()
    for module, path in MODULES.items():
        if module == "dpkernel" or room_of(module) == "proof":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node, "attr", None) or getattr(node, "name", None) or ""
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                name = node.target.id
            if not name.startswith("_") or name.startswith("__"):
                continue
            if isinstance(node, ast.FunctionDef | ast.AnnAssign):
                homes.setdefault(name, set()).add(room_of(module))
            elif isinstance(node, ast.Attribute):
                if getattr(node.value, "id", "") not in ("self", "cls"):
                    reads.add((module, name))
                elif isinstance(node.ctx, ast.Store):
                    homes.setdefault(name, set()).add(room_of(module))
    return {
        (module, name)
        for module, name in reads
        if room_of(module) not in homes.get(name, {room_of(module)})
    }


def test_private_names_stay_in_their_room():
    found = private_reads()
    assert {name for _, name in found} <= SHARED, sorted(found)
    assert ("dpkernel.outputs.model_file", "_to_state") in found
