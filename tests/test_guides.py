"""What the guides state is what the library computes."""

from __future__ import annotations

import math
import re
from pathlib import Path

from dpkernel import Budget, mechanisms

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "docs/guides"


def test_the_board_is_told_how_often_an_attacker_is_right():
    text = (GUIDES / "ethics_board.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|", text, re.M)
    assert len(rows) == 5
    for epsilon, right, most in rows:
        mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(float(epsilon), 1e-6), dimension=1)
        assert right == f"{50 + 50 * mechanism.profile().delta(0.0):.1f}"
        assert most == f"{100 / (1 + math.exp(-float(epsilon))):.1f}"


def test_the_guide_for_the_board_has_no_formula_and_two_pages():
    text = (GUIDES / "ethics_board.md").read_text(encoding="utf-8")
    assert not re.search(r"[$=`^]", text) and len(text.split()) < 1000


def test_the_glossary_is_in_order_and_explains_each_word_once():
    text = (GUIDES / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^(\w[^\n]*)\n  \w", text.partition("```{glossary}")[2], re.M)
    assert len(words) > 50
    assert words == sorted(set(words), key=str.lower)
