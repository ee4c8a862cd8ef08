"""Every error of the main classes has an entry in troubleshooting, and every entry an error."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dpkernel.foundations import errors

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/guides/troubleshooting.md"
REFUSALS = ROOT / "docs/guarantees.md"  # its table has the errors that a single row can cause
# the page explains the form of ParameterError, and that verify raises CertificateError
BY_CLASS = {"ParameterError", "CertificateError"}
EXPLAINED = {name for name in vars(errors) if name.endswith("Error")} - {*BY_CLASS, "DPKernelError"}


def literal(node):
    """Return the text of an expression, with {} for what is only known when it is evaluated."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            literal(part) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    if isinstance(node, ast.BinOp):
        return literal(node.left) + literal(node.right)
    return "{}"


def raised():
    """Return the place and text of every error and warning that has words of its own."""
    for path in sorted((ROOT / "src/dpkernel").rglob("*.py")):
        if "proof" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = literal(node.exc.args[0])
                if getattr(node.exc.func, "id", None) in EXPLAINED and text.strip("{} "):
                    yield f"{path.name}:{node.lineno}", text
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn":
                yield f"{path.name}:{node.lineno}", literal(node.args[0])


def entries(page):
    """Return the words in the first column of the tables of a page."""
    cells = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \|", page.read_text(encoding="utf-8"), re.M)
    return [words for cell in cells for words in re.findall(r"`([^`]+)`", cell)]


WORDS = [*entries(PAGE), *entries(REFUSALS)]
ERRORS = dict(raised())


def test_there_are_errors_and_entries():
    assert len(ERRORS) > 180 and len(WORDS) > 100 and "NoRowsError" in EXPLAINED
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in BY_CLASS)


@pytest.mark.parametrize("place", ERRORS)
def test_an_error_is_explained(place):
    assert any(words in ERRORS[place] for words in WORDS), (
        f"docs/guides/troubleshooting.md explains no words of: {ERRORS[place]}"
    )


def test_an_entry_has_an_error():
    texts = []
    for path in (ROOT / "src/dpkernel").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
                texts.append(literal(node))
    everything = "\n".join(texts)
    assert [words for words in entries(PAGE) if words not in everything] == []
