"""Every example in README, docs and docstrings runs, and every link between pages leads somewhere."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import itertools
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import dpkernel

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
import doc_tables  # noqa: E402

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CODE_OF_CONDUCT.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs/guides").glob("*.md"),
    *(ROOT / "docs/tutorials").glob("*.md"),
]
MODULES = [
    info.name
    for info in pkgutil.walk_packages(dpkernel.__path__, "dpkernel.")
    if not info.name.endswith("__main__")
]


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks(page)
    names: dict[str, object] = {}
    for block in blocks:
        if block.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block, names, page.name, str(page), 0)
            assert doctest.DocTestRunner().run(test, clear_globs=False).failed == 0
            names = test.globs
        else:
            exec(compile(block, str(page), "exec"), names)


def has_examples(name):
    return ">>> " in Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*filter(has_examples, MODULES)])
def test_docstring_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


SCRIPTS = [path for folder in ("benchmarks", "tools") for path in (ROOT / folder).glob("*.py")]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_imports_what_the_library_has(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpkernel"):
            module = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                if hasattr(module, "__path__") and not hasattr(module, name):
                    importlib.import_module(f"{node.module}.{name}")
                assert hasattr(module, name), f"{node.module} has no {name}"


@pytest.mark.parametrize(
    "page", [*PAGES, *(ROOT / "docs/gallery").glob("*.py")], ids=lambda p: p.name
)
def test_code_fits_between_the_sidebars_of_a_desktop(page):
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:python|toml|\{code-cell\} python)\n(.*?)^```", text, re.M | re.S)
    for line in "".join([text] if page.suffix == ".py" else blocks).splitlines():
        assert len(line) <= 100, f"{page.name}: {line}"


def test_every_module_can_be_imported():
    for name in MODULES:
        importlib.import_module(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), target


def test_the_readme_has_a_python_example_of_at_most_15_lines():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = re.search(r"^```python\n(.*?)^```", text, re.M | re.S).group(1)
    assert 5 <= len(first.strip().splitlines()) <= 15


def test_nobody_is_told_to_install_the_package_from_an_index():
    sources = (ROOT / "src/dpkernel").rglob("*.py")
    for path in [*PAGES, *sources, *(ROOT / "docs/gallery").glob("*.py")]:
        found = re.findall(r"pip install [^\n`#]*", path.read_text(encoding="utf-8"))
        assert not [line for line in found if re.search(r"(?<![\w./-])dpkernel", line)], path


def test_measured_tables_are_those_of_committed_files():
    for page in doc_tables.pages():
        text = page.read_text(encoding="utf-8")
        assert doc_tables.rendered(text) == text, f"{page.name}: run tools/doc_tables.py"


@pytest.mark.parametrize("page", doc_tables.pages(), ids=lambda p: p.name)
def test_a_table_of_numbers_names_the_file_it_is_from(page):
    lines = page.read_text(encoding="utf-8").split("\n")
    for i, line in enumerate(lines[:-2]):
        starts = line.startswith("|") and not lines[i - 1].startswith("|")
        if not starts or doc_tables.MARK.match(lines[i - 1]):
            continue
        cells = [cell for row in _table(lines[i + 2 :]) for cell in row[1:]]
        measured = sum(bool(re.match(r"^\**[\d.,]*\.\d+", cell)) for cell in cells)
        assert measured < len(cells) / 2, f"{page.name}: the table {line!r} has no file"


def _table(lines):
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks/results").glob("*.csv")), ids=str)
def test_a_file_of_results_says_what_made_it(path):
    made, rows = doc_tables.read(path)
    assert set(made) == {"command", "commit", "dpkernel"}
    assert len({len(runs) for runs in made.values()}) == 1
    assert all(re.fullmatch(r"[0-9a-f]{9,40}", commit) for commit in made["commit"])
    assert len({len(row) for row in rows}) == 1
    for command in made["command"]:
        script = re.search(r"(benchmarks/\w+\.py|tests/\w+\.py)", command)
        assert script is None or (ROOT / script[1]).exists()


def test_a_table_says_how_old_its_numbers_are():
    made = {"command": ["python a.py --x 1", "python a.py --x 2"], "dpkernel": ["0.2.0", "0.1.0"]}
    old = doc_tables.label(made)
    assert old.startswith("*Measured with version 0.1.0 and 0.2.0 by `python a.py`; the present")
    new = doc_tables.label({"command": ["b"], "dpkernel": [dpkernel.__version__]})
    assert new == f"*Measured with version {dpkernel.__version__} by `b`.*"
