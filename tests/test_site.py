"""The site: a page for every public name, links that lead somewhere, and pages that fit on a phone.

The tests of the built site look at ``docs/_build/html``, which ``make check`` builds.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import posixpath
import re
import sys
from inspect import signature
from urllib.parse import unquote

import pytest

import dpkernel
from dpkernel import estimators
from site_browser import DOCS, SITE, WIDTHS, is_built_from, look

sys.path.insert(0, str(DOCS / "_extensions"))
public_names = pytest.importorskip("public_names")

NAMES = public_names.listed(DOCS / "reference")
INTERNAL = {"dpkernel.cli", "dpkernel.privacy.ledger_file"}  # nothing to import for a user


def found(path: str) -> object:
    """Return the thing that a public path names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def public_modules() -> list[str]:
    """Return all modules that list their public names."""
    inside = pkgutil.walk_packages(dpkernel.__path__, "dpkernel.")
    names = ["dpkernel", *(info.name for info in inside if not info.name.endswith("__main__"))]
    return [name for name in names if hasattr(importlib.import_module(name), "__all__")]


@pytest.mark.parametrize("module", [m for m in public_modules() if m not in INTERNAL])
def test_every_public_name_has_a_page(module):
    pages = {id(found(path)): path for path in NAMES}
    names = set(importlib.import_module(module).__all__) - {"__version__"}
    things = {name: found(f"{module}.{name}") for name in names}
    missing = [
        name
        for name, thing in things.items()
        if id(thing) not in pages and not isinstance(thing, type(sys))  # a module has a section
    ]
    assert not missing, f"list them in docs/reference: {missing}"


def test_the_reference_lists_a_name_once_and_modules_of_the_front_page_have_names_in_it():
    assert len({id(found(path)) for path in NAMES}) == len(NAMES)
    homes = {path.rpartition(".")[0] for path in NAMES}
    assert {"dpkernel.mechanisms", "dpkernel.methods", "dpkernel.profiles"} <= homes


def test_arguments_are_described():
    """Of every public function and class. For the papers, docs/reference/papers.md has a table."""
    silent = []
    for path in NAMES:
        thing, text = found(path), inspect.getdoc(found(path)) or ""
        if path.startswith("dpkernel.proof.papers.") or not callable(thing):
            continue
        takes = [] if inspect.isabstract(thing) else inspect.signature(thing).parameters
        takes = [] if getattr(thing, "_is_protocol", False) else takes
        if takes and not re.search(r"^(Parameters|Attributes)\n-+$", text, re.M):
            silent.append(path)
    assert not silent


@pytest.mark.parametrize("name", sorted(estimators.__all__))
def test_an_estimator_explains_itself(name):
    text = getattr(estimators, name).__doc__
    for section in ("Parameters", "Attributes", "Notes", "See Also", "Examples"):
        assert re.search(rf"^    {section}\n    -+$", text, re.M), section
    assert ">>> " in text.partition("Examples\n")[2]


@pytest.mark.parametrize("name", sorted(estimators.__all__))
def test_parameters_that_estimators_share_are_described_on_the_page_of_each(name):
    described_once = pytest.importorskip("described_once")
    text = inspect.getdoc(getattr(estimators, name))
    found = described_once.completed(text, public_names.by_last_part(NAMES))
    assert not re.search(r"^    See ``", found, re.M)
    listed = described_once.entries(described_once.section(found, "Parameters"))
    assert set(signature(getattr(estimators, name)).parameters) <= set(listed)


def test_every_reference_to_a_shared_description_finds_it():
    described_once = pytest.importorskip("described_once")
    paths = public_names.by_last_part(NAMES)
    for thing in filter(callable, map(found, NAMES)):
        text = described_once.completed(inspect.getdoc(thing) or "", paths)
        assert not re.search(r"^    See ``", text, re.M), thing


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The text of every page of the built site, by its path."""
    if not is_built_from(DOCS):
        pytest.skip("the site is not built, or pages have changed since: run make check")
    files = [path for path in SITE.rglob("*.html") if "_static" not in path.parts]
    return {path.relative_to(SITE).as_posix(): path.read_text(encoding="utf-8") for path in files}


def test_every_name_of_the_reference_has_a_page_of_reasonable_size(pages):
    for path in NAMES:
        stem = f"reference/generated/{path}"
        page = pages.get(f"{stem}.html") or pages[f"{stem}-function.html"]
        assert path.rpartition(".")[2] in re.search(r"<h1>(.*?)<a", page, re.S)[1]
        assert len(page) < 300_000
    stubs = [page for page in pages if page.startswith("reference/generated/")]
    assert len(stubs) == len(NAMES)


def test_pages_show_the_version_and_names_lead_to_their_source(pages):
    assert not [p for p, text in pages.items() if f"dpkernel {dpkernel.__version__}" not in text]
    names = [page for page in pages if page.startswith("reference/generated/")]
    without = [page for page in names if "viewcode-link" not in pages[page]]
    constants = [f"reference/generated/{name}.html" for name in public_names.CONSTANTS]
    assert sorted(without) == sorted(constants)


def test_examples_and_tutorials_can_be_downloaded(pages):
    for folder, ending in (("gallery", ".py"), ("tutorials", ".ipynb")):
        sources = [path.stem for path in (DOCS / folder).iterdir() if path.stem != "index"]
        text = "".join(pages[page] for page in pages if page.startswith(f"{folder}/"))
        linked = re.findall(rf'href="[^"]*_downloads/[^"]*/(\w+){re.escape(ending)}"', text)
        assert len(linked) >= 12 and sorted(linked) == sorted(set(sources) - {"pictures"})


def test_members_of_other_libraries_are_left_out(pages):
    page = pages["reference/generated/dpkernel.PrivateKernelRegressor.html"]
    members = set(re.findall(r'id="dpkernel.PrivateKernelRegressor\.(\w+)"', page))
    assert {"fit", "predict"} <= members
    assert not members & {"get_params", "set_params", "set_fit_request", "get_metadata_routing"}


def test_all_links_and_anchors_of_the_site_lead_somewhere(pages):
    ids = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    files = {path.relative_to(SITE).as_posix() for path in SITE.rglob("*") if path.is_file()}
    links = {
        (
            posixpath.dirname(path),
            link if not link.startswith("#") else posixpath.basename(path) + link,
        )
        for path, text in pages.items()
        for link in re.findall(r'(?:href|src)="([^"]+)"', text)
        if not re.match(r"[a-z]+:", link)
    }
    broken = []
    for folder, link in links:
        target, _, anchor = unquote(link).partition("#")
        place = posixpath.normpath(posixpath.join(folder, target.partition("?")[0]))
        if place not in files or (anchor and anchor not in ids.get(place, {anchor})):
            broken.append((folder, link))
    assert len(links) > 1000 and not broken, sorted(broken)[:20]


def test_words_of_the_glossary_are_linked_only_where_they_mean_what_it_says(pages):
    link = r'<span class="xref std std-term">([^<]+)</span></a>'
    linked = {word.lower() for text in pages.values() for word in re.findall(link, text)}
    assert {"bounds", "bounds.toml", "mu", "record"} <= linked and "groups" not in linked
    verb = r"(?<=(?:bounds|ecords)</span></a>)\s(?:the|what)\b"
    other = rf"{link}(\.\w+|\^|{verb}|(?<=ssumption</span></a>)\s\d)"  # nor in "Assumption 1"
    parts = {page: re.findall(other, text) for page, text in pages.items()}
    assert not [found for found in parts.items() if found[1]]


def test_the_site_asks_nothing_of_another_host(pages):
    loads = r'<(?:script|img|iframe|source|embed)[^>]+src="(?:https?:)?//|<link[^>]+href="(?:https?:)?//'
    assert not [path for path, text in pages.items() if re.search(loads, text)]
    for style in SITE.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"url\(['\"]?(?:https?:)?//|@import\s+['\"]?http", text), style


BROKEN = """<!doctype html><main><p><span>%s</span></p><img src="http://example.org/x.png">
<div class="highlight"></div><span class="math">x</span></main><script>nothing()</script>"""


def check(browser, pages, names, folder):
    extra = {"broken": BROKEN % ("W" * 300)}
    found, said = look(browser, SITE, names, folder / "profile", extra)
    broken = found.pop("broken")
    assert all(broken[str(width)][0] > 0 and len(broken[str(width)]) > 1 for width in WIDTHS)
    assert broken["formulas"] == 1 and broken["pictures"] and broken["no copy"]  # it sees faults
    assert sorted(found) == sorted(names)
    fine = {str(width): [0] for width in WIDTHS}
    fine |= {"formulas": 0, "wrong formulas": 0, "pictures": [], "no copy": False}
    assert {name: got for name, got in found.items() if got != fine} == {}
    faults = [line for line in said if "[PST]" not in line and "invalid theme mode" not in line]
    ours = [line for line in faults if "/broken" not in line and "example.org" not in line]
    assert len(ours) < len(faults) and ours == []


def test_pages_fit_on_a_desktop_and_on_a_phone_and_the_browser_has_nothing_to_say(
    browser, pages, tmp_path
):
    """All pages but those that a program wrote, and the longest of these."""
    written = [page for page in pages if page.startswith(("reference/generated/", "_modules/"))]
    longest = sorted(written, key=lambda page: max(map(len, re.findall(r"[\w.]+", page))))[-4:]
    largest = sorted(written, key=lambda page: len(pages[page]))[-4:]
    check(browser, pages, sorted({*pages} - {*written} | {*longest, *largest}), tmp_path)


@pytest.mark.slow
def test_all_pages_fit_on_a_desktop_and_on_a_phone(browser, pages, tmp_path):
    check(browser, pages, sorted(pages), tmp_path)
