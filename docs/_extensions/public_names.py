"""Reference pages by public name: what they leave out, and links to them from wherever a name stands.

The pages in ``docs/reference`` list every public name under the path by which it is imported. This
extension reads these lists. Each name that a page or a docstring sets as code becomes a link.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

from docutils import nodes
from numpydoc.xref import DEFAULT_LINKS
from sphinx.addnodes import desc_signature, pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

LIST = re.compile(r"^\.\. autosummary::\n(?: +:.*\n)*\n((?: +~[\w.]+\n)+)", re.M)
GENERATED = "generated"
CONSTANTS = {
    "dpkernel.data.table_files.FORMATS": "The endings of files that can be read.",
    "dpkernel.mechanisms.IDEALISED": "The assumption of exact real numbers, for ``accept``.",
    "dpkernel.mechanisms.PROCEDURES": "The mechanisms that release the result of a procedure.",
    "dpkernel.mechanisms.REGISTRY": "The mechanisms that release a value, by kind.",
    "dpkernel.models.losses.REGISTRY": "All losses, by kind.",
    "dpkernel.privacy.ledger.OF_PEOPLE": "The end of a label of a spend whose records are people.",
    "dpkernel.privacy.sensitivity.UNIT_FORMULAS": "The formulas in which a person is one record.",
    "dpkernel.proof.reproduce.CLAIMS": "What a paper says about each item, and what we found.",
    "dpkernel.proof.reproduce.FIGURES": "The items that can be reproduced, by paper and name.",
}
OTHERS = ("pathlib.Path",)  # of other libraries, in types of parameters


def listed(folder: Path) -> list[str]:
    """Return all names that the pages of the reference list, with their public paths."""
    pages = [page.read_text(encoding="utf-8") for page in sorted(folder.glob("*.md"))]
    blocks = [block for page in pages for block in LIST.findall(page)]
    return [name.removeprefix("~") for block in blocks for name in block.split()]


def by_last_part(names: list[str]) -> dict[str, str]:
    """Return the path of each name that can only mean one thing without its module."""
    count = Counter(name.rpartition(".")[2] for name in [*names, *OTHERS])
    return {last: name for name in names if count[last := name.rpartition(".")[2]] == 1}


def recognisable(name: str) -> bool:
    """Whether a word can only mean the name: ``PrivateBounds`` and ``to_onnx``, but not ``save``."""
    return "_" in name or "." in name or (name[:1].isupper() and name.lower() != name)


class LinkNames(SphinxTransform):
    """Turn public names that are set as code into links to their pages."""

    default_priority = 200

    def apply(self, **kwargs: Any) -> None:
        """Wrap every such literal of the page in a reference."""
        paths: dict[str, str] = self.config.public_paths
        own = self.env.docname.rpartition("/")[2]
        for literal in list(self.document.findall(nodes.literal)):
            text = literal.astext().removesuffix("()")
            path = paths.get(text, text if text in paths.values() else None)
            if path in (None, own) or not recognisable(text) or _in_a_link_or_title(literal):
                continue
            link = pending_xref(
                "",
                refdomain="py",
                reftype="obj",
                reftarget=path,
                refdoc=self.env.docname,
                refwarn=True,
                refexplicit=True,
            )
            literal.replace_self(link)
            link += literal


def _in_a_link_or_title(node: nodes.Node) -> bool:
    above = node.parent
    while above is not None and not isinstance(above, nodes.title | nodes.reference | pending_xref):
        above = above.parent
    return above is not None


def resolve(app: Sphinx, env: Any, node: pending_xref, content: nodes.Node) -> nodes.Node | None:
    """Find a name that is written without its module, as in "See Also"."""
    path = app.config.public_paths.get(node.get("reftarget", ""))
    if path is None or node.get("refdomain") != "py":
        return None
    domain = env.get_domain("py")
    place = node.get("refdoc", env.docname)
    return domain.resolve_xref(env, place, app.builder, "obj", path, node, content)


def anchor(app: Sphinx, domain: str, kind: str, content: Any) -> None:
    """Give an entry all anchors by which the pages of source code lead back to it.

    They look for a name under the module that has its code, or under any module by which another
    name from there is imported.
    """
    for signature in content.parent.findall(desc_signature):
        module, name = signature.get("module"), signature.get("fullname", "")
        thing: Any = import_module(module) if module else None
        for part in name.split("."):
            thing = getattr(thing, part, None)
        for home in sorted(app.config.public_homes.get(getattr(thing, "__module__", None), ())):
            if f"{home}.{name}" not in signature["ids"]:
                signature["ids"].append(f"{home}.{name}")


def describe(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Describe a constant, which has no docstring of its own."""
    if what == "data":
        lines[:] = [CONSTANTS[name]]


def leave_out(
    app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out members that a class has from another library, such as ``set_fit_request``."""
    home = getattr(getattr(thing, "fget", thing), "__module__", None)
    if what == "class" and home is not None and home.partition(".")[0] != "dpkernel":
        return True
    return None


def prepare(app: Sphinx, config: Any) -> None:
    """Read the lists, and delete generated pages of names that have gone."""
    folder = Path(app.srcdir) / "reference"
    names = listed(folder)
    config.public_paths = by_last_part(names)
    homes = defaultdict(set)
    for module, _, name in (path.rpartition(".") for path in names):
        home = getattr(getattr(import_module(module), name), "__module__", module)
        homes[home] |= {home, module}
    config.public_homes = dict(homes)
    # types of Python and NumPy stay words, because their documentation is not at hand
    config.numpydoc_xref_aliases = {word: word for word in DEFAULT_LINKS} | config.public_paths
    # two names that differ in their capitals alone would share a file on some systems
    same = Counter(name.lower() for name in names)
    config.autosummary_filename_map = {
        name: f"{name}-function" for name in names if same[name.lower()] > 1 and not _is_class(name)
    }
    files = {config.autosummary_filename_map.get(name, name) for name in names}
    for page in (folder / GENERATED).glob("*.rst"):
        if page.stem not in files:
            page.unlink()


def _is_class(name: str) -> bool:
    return name.rpartition(".")[2][0].isupper()


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the parts."""
    app.setup_extension("sphinx.ext.autodoc")
    app.add_config_value("public_paths", {}, "env", dict)
    app.add_config_value("public_homes", {}, "", dict)
    app.connect("config-inited", prepare, priority=400)  # before numpydoc reads the settings
    app.connect("autodoc-process-docstring", describe)
    app.connect("autodoc-skip-member", leave_out)
    app.connect("missing-reference", resolve)
    app.connect("object-description-transform", anchor)
    app.add_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
