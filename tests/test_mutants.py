"""The list of mutants fits the source, and its last results are those of all of them: killed.

``make mutants`` runs them; this file only keeps the list in step with the code.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))  # of the processes that run mutants, too
    yield importlib.import_module("mutants")
    sys.modules.pop("mutants")


def test_every_mutant_changes_one_place_to_other_code(tool):
    mutants = tool.read_list()
    assert len(mutants) >= 80
    for mutant in mutants:
        changed = mutant.mutated()  # ValueError if the old text is not there exactly once
        compile(changed, str(mutant.source), "exec")
        assert mutant.new != mutant.old and mutant.breaks.endswith("."), mutant.id
        assert all((ROOT / "tests" / name).exists() for name in mutant.tests), mutant.id


def test_every_mutant_was_killed(tool):
    table = tool.read_table()
    assert [mutant.id for mutant in tool.read_list()] == list(table)
    assert [row["mutant"] for row in table.values() if row["verdict"] != "killed"] == []


def test_a_text_that_is_not_there_once_is_an_error(tool):
    file, tests = "foundations/types.py", ("test_types.py",)
    missing = tool.Mutant("x", "Nothing.", file, "no such line", "", tests)
    with pytest.raises(ValueError, match="occurs 0 times in"):
        missing.mutated()
    often = tool.Mutant("x", "Nothing.", file, "return", "", tests)
    with pytest.raises(ValueError, match="occurs [0-9]+ times in"):
        often.mutated()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("return self is not Neighbours.ADD_REMOVE", "return True", "killed"),
        (
            "return self is not Neighbours.ADD_REMOVE",
            "return self != Neighbours.ADD_REMOVE",
            "survived",
        ),
        ("return self is not Neighbours.ADD_REMOVE", "return self is not nobody", "broken"),
        ("class Neighbours(enum.Enum):", "class Neighbours(nobody):", "broken"),
        ("no such line", "", "broken"),
    ],
)
def test_verdicts(tool, tmp_path, old, new, verdict):
    """A test that sees the change kills; an equal program survives; a slip proves nothing."""
    only = "TestNeighbours"
    mutant = tool.Mutant(
        "x", "Something.", "foundations/types.py", old, new, ("test_types.py",), only
    )
    row = tool.Workshop(tmp_path, 1, [mutant]).judge(mutant)
    assert row["verdict"] == verdict
    if verdict == "killed":
        assert row["killed_by"].startswith("test_types.py::TestNeighbours")
