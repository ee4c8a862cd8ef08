"""Every tutorial runs, in an empty folder, as a reader would run it.

A site that was built from the present files has run them already, and was not written if one failed.
"""

from __future__ import annotations

import ast
import importlib.util
import re

import pytest

from site_browser import DOCS, is_built_from

FOLDER = DOCS / "tutorials"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "index.md")
CELL = re.compile(r"^```\{code-cell\} python\n((?::[\w-]+:.*\n)*\n)?(.*?)^```$", re.M | re.S)


def cells(page):
    return [found[2] for found in CELL.finditer(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs(page, tmp_path, monkeypatch):
    without_torch = page.stem == "gpu" and importlib.util.find_spec(
        "torch"
    )  # as the site was built
    if is_built_from(DOCS, DOCS.parent / "src") and not without_torch:
        pytest.skip("the site that was built from these files ran it")
    pytest.importorskip("matplotlib").use("Agg")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)  # some tutorials change the folder, which this undoes
    monkeypatch.setenv("DPKERNEL_TUTORIAL_ROWS", "50000")
    names = {"__name__": "__main__"}
    for cell in cells(page):
        exec(compile(cell, page.name, "exec"), names)
    pyplot.close("all")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_is_a_short_notebook_without_results(page):
    text = page.read_text(encoding="utf-8")
    assert text.startswith("---\njupytext:\n") and "name: python3\n" in text
    assert text.count("```{code-cell}") == len(cells(page)) >= 3
    assert f"{{nb-download}}`Download this page as a notebook <{page.stem}.ipynb>`" in text
    assert len(text.splitlines()) < 200
    for cell in cells(page):
        ast.parse(cell)


def test_the_index_lists_every_tutorial():
    listed = re.findall(r"^(\w+)$", (FOLDER / "index.md").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == [page.stem for page in PAGES]
