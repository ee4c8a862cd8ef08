"""Sphinx configuration; `make check` builds with warnings as errors."""

import sys
from importlib.metadata import files
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

from dpkernel import __version__

project = "dpkernel"
author = "The dpkernel developers"
copyright = author
version = release = __version__
extensions = [
    "described_once",
    "glossary_links",
    "myst_nb",
    "numpydoc",
    "public_names",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
templates_path = ["_templates"]

# pages and notebooks; a notebook is a page with a kernel in its head, and runs while the site is built
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 600  # a busy machine is no fault
nb_execution_raise_on_error = True
nb_merge_streams = True

# reference: one page per public name
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False
numpydoc_xref_param_type = True
numpydoc_xref_ignore = "all"
numpydoc_validation_checks = set()

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = f"dpkernel {version}"
html_static_path = ["_static"]
html_css_files = ["dpkernel.css"]
html_sidebars = {"index": [], "gallery/index": []}
html_theme_options = {
    "logo": {"text": html_title},
    "header_links_before_dropdown": 8,
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "navigation_with_keys": False,
    "show_nav_level": 1,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc", "sourcelink"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

# formulas are set by a copy of MathJax that belongs to the site: readers may be offline. The SVG
# output needs no font files, which some browsers refuse to load from a page opened from a disk.
mathjax_path = "tex-svg.js"
html_static_path += [
    str(file.locate()) for file in files("sphinx-mathjax-offline") if file.name == mathjax_path
]
