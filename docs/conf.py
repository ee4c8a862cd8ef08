"""Sphinx configuration; `make check` builds with warnings as errors."""

from dpkernel import __version__

project = "dpkernel"
author = "The dpkernel developers"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
napoleon_google_docstring = False
# attributes as a list, since some of them are properties that have an entry of their own
napoleon_custom_sections = [("Attributes", "returns_style")]
autodoc_typehints = "none"
# scikit-learn adds these methods; their docstrings link into its own documentation
autodoc_default_options = {
    "exclude-members": "set_fit_request, set_predict_request, set_score_request, set_transform_request"
}
exclude_patterns = ["_build"]
html_theme = "alabaster"
