"""Every row of the table in docs/papers.md runs, and the table misses nothing that is public."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dpkernel.proof import papers
from dpkernel.solvers.erm_schedules import THEOREMS
from dpkernel.solvers.sgd_presets import PRESETS

PAGE = (Path(__file__).parents[1] / "docs" / "papers.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| `([^`|]+)` \| `([^`|]+)` \|$", PAGE, re.M)


@cache
def prelude() -> dict[str, Any]:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/papers.md", "exec"), names)
    return names


@pytest.mark.parametrize(("item", "name", "example"), ROWS, ids=[row[0] for row in ROWS])
def test_a_row_runs_and_names_what_it_uses(item, name, example):
    names = dict(prelude())
    assert eval(name, names) is not None
    assert name.split(".")[-1] in example, "the example does not use the name"
    found = eval(compile(example, item, "eval"), names)
    certificate = getattr(found, "certificate_", None)
    if certificate is not None:
        printed = name.startswith("papers.")
        proved = "corrected" in example or "OutputSGD" in name
        assert certificate.valid is (not printed or proved)


def test_every_published_algorithm_calculator_and_schedule_has_a_row():
    text = " ".join(f"{name} {example}" for _, name, example in ROWS)
    assert len(ROWS) > 80 and len({item for item, _, _ in ROWS}) == len(ROWS)
    algorithms = [name for name in papers.__all__ if name.startswith("Published")]
    assert [name for name in algorithms if f"papers.{name}" not in text] == []
    for preset in PRESETS:
        assert f'preset="{preset}"' in text
    listed = {re.match(r"[\w.-]+", t)[0] for t in re.findall(r'regularisation="([^"]+)"', text)}
    same = {"lee-58", "lee-65"}  # that choose what lee-19 and lee-64 choose
    assert set(THEOREMS) - same <= listed | {"theorem-5"}


ELSEWHERE = {  # behind another calculator of their theorem or lemma
    "theorem_19": "theorem_58",
    "theorem_11_holds": "best_beta",
    "theorem_11_multiplier": "best_beta",
    "lemma_13_holds": "figure_1",
    "lemma_13_threshold": "figure_1",
}


@pytest.mark.parametrize(
    "module",
    ["lee_park_ahn_2025", "ma_2024", "nie_wang_2016", "wang_guo_2024", "wang_lei_ying_zhang_2022"],
)
def test_every_theorem_and_lemma_has_a_row(module):
    text = " ".join(f"{name} {example}" for _, name, example in ROWS)
    public = __import__(f"dpkernel.proof.papers.{module}", fromlist=["__all__"]).__all__
    stated = [name for name in public if re.match(r"(theorem|lemma|appendix)_", name)]
    wanted = {ELSEWHERE.get(name, name) for name in stated}
    assert wanted and [name for name in wanted if f".{name}(" not in text] == []
