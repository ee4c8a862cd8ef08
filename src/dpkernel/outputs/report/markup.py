"""HTML that is escaped unless it was made here."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

# what would end a text, hide in it or turn its direction: control characters, bidirectional marks,
# halves of a surrogate pair
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)
_VOID = frozenset({"meta", "br", "line", "path", "rect", "circle", "polyline", "polygon"})


class Html(str):
    """Text that is markup already. Everything else is escaped on its way into a page."""

    __slots__ = ()


def escape(text: object) -> Html:
    """Return any text as markup: what has a meaning in HTML is spelt out, what is unseen shows."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(_UNSEEN.sub("\ufffd", str(text)), quote=True))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element. Attributes that are None are left out; write ``class_`` and ``aria_label``."""
    inside = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Html(f"<{name}{inside}>" if name in ("meta", "br") else f"<{name}{inside}/>")
    return Html(f"<{name}{inside}>{join(*children)}</{name}>")


def join(*parts: object) -> Html:
    """Return parts one after the other, escaped where they are plain text."""
    return Html("".join(escape(part) for part in parts if part is not None))


def paragraph(*parts: object, class_: str | None = None) -> Html:
    """Return a paragraph."""
    return tag("p", *parts, class_=class_)


def items(lines: Sequence[object]) -> Html:
    """Return a list with one bullet a line."""
    return tag("ul", *(tag("li", line) for line in lines))


def table(
    label: str,
    head: Sequence[object],
    rows: Sequence[Sequence[object]],
    *,
    class_: str | None = None,
) -> Html:
    """Return a table in a box of its own, which scrolls where the page is narrow.

    The box can be reached with the keyboard; ``label`` is what a screen reader calls it.
    """
    header = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head)))
    body = tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
    inner = tag("table", header if head else None, body, class_=class_)
    return tag("div", inner, class_="scroll", role="region", aria_label=label, tabindex="0")


def numbers(label: str, head: Sequence[object], rows: Sequence[Sequence[object]]) -> Html:
    """Return the table behind a chart, folded away."""
    return tag("details", tag("summary", "The numbers"), table(label, head, rows))


def figure(picture: Html, caption: object, data: Html) -> Html:
    """Return a chart with its caption and the numbers behind it."""
    return tag("figure", picture, tag("figcaption", caption), data)


def number(value: object, digits: int = 4) -> str:
    """Return a number as people write it; what is none as a text."""
    if value is None:
        return "unknown"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if value != value:
        return "unknown"
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "-∞"
    if 1e4 <= abs(value) < 1e7:
        return f"{float(f'{value:.{digits}g}'):,.0f}"
    return re.sub("e([+-])0+", r"e\1", f"{value:.{digits}g}")


def cut(text: object, most: int = 24) -> str:
    """Return a text that fits into a picture; the whole stands in the table beside it."""
    whole = str(text)
    return whole if len(whole) <= most else whole[: most - 1] + "…"
