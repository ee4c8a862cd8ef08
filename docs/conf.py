"""Sphinx configuration; `make check` builds with warnings as errors."""

from dpkernel import __version__

project = "dpkernel"
author = "The dpkernel developers"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
autodoc_typehints = "none"
exclude_patterns = ["_build"]
html_theme = "alabaster"


def as_written(app, what, name, obj, options, lines):
    """Show docstrings as they stand: they are laid out for a terminal, with formulas in columns."""
    lines[:] = ["::", "", *("    " + line for line in lines), ""]


def setup(app):
    app.connect("autodoc-process-docstring", as_written)
