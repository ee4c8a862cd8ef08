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


def span(first: str, last: str) -> list[str]:
    """Return first .. last, such as 4.1 .. 4.6."""
    head, _, low = first.rpartition(".")
    high = int(last.rpartition(".")[2])
    return [f"{head}.{k}" if head else str(k) for k in range(int(low), high + 1)]


def stated(text: str) -> set[str]:
    """Return the statements that a text names: "Lemmas 1 and 4 to 6" are Lemma 1, 4, 5 and 6."""
    found = set()
    number = r"\d+(?:\.\d+)?"
    for kind, list_ in re.findall(
        rf"(Theorem|Lemma|Proposition|Algorithm|Figure|Table|Definition|Remark|Example)s? "
        rf"({number}(?:(?:, | and | to ){number})*)",
        text,
    ):
        for first, last in re.findall(rf"({number})(?: to ({number}))?", list_):
            found |= {f"{kind} {k}" for k in span(first, last or first)}
    return found


# all numbered statements of the papers; Ma and Lee, Park & Ahn number all kinds together
STATEMENTS = {
    "Wang & Guo": "Algorithm 1; Theorems 1 to 3; Example 2.1; Lemma 1.1; Lemmas 3.1 to 3.5;"
    " Propositions 4.1 to 4.6; Lemma 4.1",
    "Ma": "Algorithm 1; Figures 1 to 3; Theorem 5; Lemmas 6 to 9; Theorem 12; Lemma 13;"
    " Lemmas 16 to 19; Lemmas 21 to 28",
    "Wang, Lei, Ying & Zhang": "Algorithms 1 and 2; Table 1; Figure 1; Lemmas 1 to 6;"
    " Theorems 7 to 12; Lemmas 13 to 27",
    "Lee, Park & Ahn": "Algorithms 1 to 5; Figures 1 to 12; Propositions 2 and 3; Lemma 7;"
    " Theorems 8 to 11; Lemmas 12 to 14; Theorems 16 to 23; Propositions 24 to 26; Lemmas 27 to 37;"
    " Theorem 38; Propositions 39 to 44; Lemmas 45 to 51; Propositions 52 to 54; Lemmas 55 to 57;"
    " Theorem 58; Lemmas 59 to 62; Theorems 63 to 65; Lemma 66; Proposition 67; Lemmas 68 to 78",
    "Nie & Wang": "Theorems 1 to 4; Lemmas 1 and 2; Propositions 1 to 4",
}


@pytest.mark.parametrize("paper", STATEMENTS)
def test_every_numbered_statement_is_in_the_table_or_in_the_list_of_what_it_leaves_out(paper):
    section = PAGE.split("## What the table leaves out")[1].split("\n## ")[0]
    omitted = re.findall(rf"^\| {re.escape(paper)} \| ([^|]+) \| [^|]+ \|$", section, re.M)
    left_out = set().union(*(stated(text) for text in omitted))
    has = set().union(*(stated(item) for item, _, _ in ROWS if item.startswith(f"{paper}: ")))
    wanted = stated(STATEMENTS[paper])
    assert sorted(wanted - has - left_out) == []
    assert sorted(left_out & has) == [] and sorted(left_out - wanted) == []


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
    named = [name for name in public if re.match(r"(theorem|lemma|appendix)_", name)]
    wanted = {ELSEWHERE.get(name, name) for name in named}
    assert wanted and [name for name in wanted if f".{name}(" not in text] == []
