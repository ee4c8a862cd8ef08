"""Link each word of the glossary to its entry, where the word first appears on a page.

The words are read from ``docs/guides/glossary.md``. Headings, code and links are left as they are,
and so are the pages of the reference.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import glossary, pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

PAGE = "guides/glossary"
# these words often mean something else, such as a unit of measurement
AMBIGUOUS = {"declared", "filter", "groups", "plan", "profile", "unit"}
# what shows another meaning before and after these words: the verbs "bounds" and "records", a bound on
# a probability, "on record", a numbered assumption of a paper
BEFORE = re.compile(r"(?:binomial|lower|statistical|two|such|loose|their|on)\s$", re.I)
AFTER = re.compile(r"\s(?:the|a|an|every|what|how|on|hold|\d)\b", re.I)
OTHERWISE = {"bounds", "record", "records", "assumption"}
UNTOUCHED = (
    nodes.title,
    nodes.reference,
    nodes.literal,
    nodes.literal_block,
    nodes.math,
    nodes.math_block,
    nodes.raw,
    nodes.term,
    pending_xref,
    glossary,
)


def words(page: Path) -> list[str]:
    """Return the words that the glossary explains, the longest first."""
    (block,) = re.findall(
        r"^```\{glossary\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S
    )
    found = [line for line in block.splitlines() if line and not line.startswith(" ")]
    return sorted(found, key=len, reverse=True)


def is_untouched(node: nodes.Node) -> bool:
    """Return whether nothing inside of a node may become a link; a card is a link as a whole."""
    return isinstance(node, UNTOUCHED) or "sd-card" in getattr(node, "attributes", {}).get(
        "classes", ()
    )


def is_meant(match: re.Match[str]) -> bool:
    """Return whether the words around a word do not show that it means something else here."""
    before, after = match.string[: match.start()], match.string[match.end() :]
    return match[0].lower() not in OTHERWISE or not (BEFORE.search(before) or AFTER.match(after))


class LinkWords(SphinxTransform):
    """Turn the first appearance of each word into a link to the glossary."""

    default_priority = 210

    def apply(self, **kwargs: Any) -> None:
        """Look for the words in every text of the page."""
        if self.env.docname == PAGE or self.env.docname.startswith("reference/"):
            return
        left = {word.lower(): word for word in self.config.glossary_words}
        for text in list(self.document.findall(nodes.Text)):
            inside = text.parent
            while inside is not None and not is_untouched(inside):
                inside = inside.parent
            if inside is None and left:
                text.parent.replace(text, self.linked(str(text), left))

    def linked(self, text: str, left: dict[str, str]) -> list[nodes.Node]:
        """Return a text with links, and remove the words that it links from those that are left."""
        either = "|".join(re.escape(word) for word in left)
        # neither a part of a longer word, of the name of a file or of a power
        word_alone = rf"(?<![\w-])({either})(s?)(?![\w^-]|\.\w)"
        found = re.finditer(word_alone, text, re.I) if left else iter(())
        match = next((m for m in found if is_meant(m)), None)
        if match is None:
            return [nodes.Text(text)] if text else []
        word = left.pop(match[1].lower())
        link = pending_xref(
            "",
            nodes.inline("", match[0], classes=["xref", "std", "std-term"]),
            refdomain="std",
            reftype="term",
            reftarget=word,
            refdoc=self.env.docname,
            refwarn=True,
            refexplicit=True,
        )
        before = [nodes.Text(text[: match.start()])] if match.start() else []
        return [*before, link, *self.linked(text[match.end() :], left)]


def prepare(app: Sphinx, config: Any) -> None:
    """Read the glossary."""
    found = words(Path(app.srcdir) / f"{PAGE}.md")
    config.glossary_words = [word for word in found if word not in AMBIGUOUS]


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the parts."""
    app.add_config_value("glossary_words", [], "env", list)
    app.connect("config-inited", prepare)
    app.add_transform(LinkWords)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
