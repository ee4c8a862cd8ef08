"""Every tutorial runs, in an empty folder, as a reader would run it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "docs/tutorials"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "index.md")
CELL = re.compile(r"^```\{code-cell\} python\n((?::[\w-]+:.*\n)*\n)?(.*?)^```$", re.M | re.S)


def cells(page):
    return [found[2] for found in CELL.finditer(page.read_text(encoding="utf-8"))]


def as_python(cell):
    """Return a cell whose lines that begin with an exclamation mark call the shell."""
    return re.sub(r"^!(.*)$", lambda line: f"_shell({line[1]!r})", cell, flags=re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_runs(page, tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)  # some tutorials change the folder, which this undoes
    monkeypatch.setenv("DPKERNEL_TUTORIAL_ROWS", "50000")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    names = {
        "__name__": "__main__",
        "display": lambda *values: None,  # a name that notebooks have
        "_shell": lambda line: subprocess.run(line, shell=True, check=True, capture_output=True),
    }
    for cell in cells(page):
        exec(compile(as_python(cell), page.name, "exec"), names)
    matplotlib.pyplot.close("all")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_tutorial_is_a_short_notebook_without_results(page):
    text = page.read_text(encoding="utf-8")
    assert text.startswith("---\njupytext:\n") and "name: python3\n" in text
    assert text.count("```{code-cell}") == len(cells(page)) >= 3
    assert f"{{nb-download}}`Download this page as a notebook <{page.stem}.ipynb>`" in text
    assert len(text.splitlines()) < 200
    for cell in cells(page):
        ast.parse(as_python(cell))


def test_the_index_lists_every_tutorial():
    listed = re.findall(r"^(\w+)$", (FOLDER / "index.md").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == [page.stem for page in PAGES]
