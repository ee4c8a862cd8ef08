"""The gallery: its page is written from its examples, and the examples run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import gallery  # noqa: E402

QUICK = {"trade_off", "ledger_over_time", "learned_relevance"}


def test_the_page_is_that_of_the_examples():
    assert (gallery.FOLDER / "index.md").read_text(encoding="utf-8") == gallery.page()
    assert sorted(gallery.NAMES) == sorted(path.stem for path in gallery.FOLDER.glob("*.py"))
    assert len(gallery.NAMES) >= 15


@pytest.mark.parametrize("name", gallery.NAMES)
def test_an_example_has_a_title_an_explanation_and_a_small_picture(name):
    title, text = gallery.docstring(name)
    assert 10 < len(title) < 80 and len(text) > 100
    path = gallery.FOLDER / f"pictures/{name}.png"
    assert path.stat().st_size < 80_000
    with Image.open(path) as picture:
        assert picture.width <= 1300 and picture.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in gallery.NAMES]
)
def test_an_example_draws_a_figure(name):
    gallery.mpl.use("Agg")
    assert gallery.drawn(name).startswith(b"\x89PNG")
