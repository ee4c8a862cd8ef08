"""Parameters that several classes or functions share are described once and shown on every page.

Where a docstring says "See ``PrivateKernelRidge``." about parameters, this extension puts their
descriptions from there in its place.
"""

from __future__ import annotations

import inspect
import re
from functools import partial
from importlib import import_module
from typing import Any

from sphinx.application import Sphinx

ENTRY = re.compile(r"^(\S.*)\n((?:    .*\n|\n(?=    ))+)", re.M)
SEE = re.compile(r"^See ``(\w+)``\.\s*")


def section(text: str, title: str) -> str:
    """Return the entries of a section of a docstring."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\S[^\n]*\n---|\Z)", text, re.M | re.S)
    return found[1] if found else ""


def entries(text: str) -> dict[str, tuple[str, str]]:
    """Return the head and the description of each name, those that are listed together too."""
    found = {}
    for head, body in ENTRY.findall(text):
        for name in head.partition(" : ")[0].split(", "):
            found[name] = (head, inspect.cleandoc(body))
    return found


def completed(text: str, paths: dict[str, str]) -> str:
    """Return a docstring in which every parameter is described."""
    text = text.rstrip() + "\n"
    for title in ("Parameters", "Attributes"):
        old = section(text, title)
        new = ENTRY.sub(partial(_described, title=title, paths=paths), old)
        text = text.replace(old, new) if old else text
    return text


def _described(match: re.Match[str], title: str, paths: dict[str, str]) -> str:
    head, body = match[1], inspect.cleandoc(match[2])
    see = SEE.match(body)
    if see is None or see[1] not in paths:
        return match[0]
    module, _, name = paths[see[1]].rpartition(".")
    there = getattr(import_module(module), name)
    known = entries(section(completed(inspect.getdoc(there) or "", paths), title))
    names = head.partition(" : ")[0].split(", ")
    if not {*names} <= {*known}:
        return match[0]
    more = body[see.end() :]
    texts = {known[name][0]: f"{known[name][1]}\n{more}".rstrip() for name in names}
    return "".join(f"{head}\n{_indented(text)}\n" for head, text in texts.items())


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.split("\n"))


def complete(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Complete the docstring of a class or function before numpydoc reads it."""
    if what in ("class", "function"):
        lines[:] = completed("\n".join(lines) + "\n", app.config.public_paths).split("\n")


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the parts."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", complete, priority=400)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
