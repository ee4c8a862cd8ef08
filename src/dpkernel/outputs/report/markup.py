"""Build HTML in which every text is escaped unless it was made by this module."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence

# characters that could end a text, hide in it or reverse its direction: control characters,
# bidirectional marks, halves of a surrogate pair
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)
_MOST_SHOWN = 6  # items of a list
_VOID = frozenset({"meta", "br", "line", "path", "rect", "circle", "polyline", "polygon"})
_SHORT = 12  # letters of a cell whose words are not broken


class Html(str):
    """Text that is already markup. Every other text is escaped when it is put into a page."""

    __slots__ = ()


def escape(text: object) -> Html:
    """Return any text as markup: special characters of HTML are escaped, invisible ones are shown."""
    if isinstance(text, Html):
        return text
    return Html(html.escape(_UNSEEN.sub("\ufffd", str(text)), quote=True))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element. Attributes that are None are left out.

    Write ``class_`` for the attribute ``class`` and ``aria_label`` for ``aria-label``.
    """
    inside = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Html(f"<{name}{inside}>" if name in ("meta", "br") else f"<{name}{inside}/>")
    return Html(f"<{name}{inside}>{join(*children)}</{name}>")


def join(*parts: object) -> Html:
    """Return the parts one after the other. Plain texts among them are escaped."""
    return Html("".join(escape(part) for part in parts if part is not None))


def paragraph(*parts: object, class_: str | None = None) -> Html:
    """Return a paragraph."""
    return tag("p", *parts, class_=class_)


def items(lines: Sequence[object]) -> Html:
    """Return a list with one bullet per line."""
    return tag("ul", *(tag("li", line) for line in lines))


def table(label: str, head: Sequence[object], rows: Sequence[Sequence[object]]) -> Html:
    """Return a table in a box of its own, which can be reached with the keyboard.

    A screen reader reads ``label`` aloud. On a phone, each row of a table of more than three columns
    becomes a list, in which every cell has the name of its column before it.
    """
    header = tag(
        "thead", tag("tr", *(tag("th", cell, scope="col", class_=_breaking(cell)) for cell in head))
    )
    body = tag("tbody", *(tag("tr", *_cells(head, row)) for row in rows))
    inner = tag("table", header if head else None, body, class_="wide" if len(head) > 3 else None)
    return tag("div", inner, class_="scroll", role="region", aria_label=label, tabindex="0")


def _cells(head: Sequence[object], row: Sequence[object]) -> list[Html]:
    names: list[str | None] = [str(name) for name in head]
    names = names or [None] * len(row)
    return [
        tag("td", cell, data_label=name, class_=_breaking(cell))
        for name, cell in zip(names, row, strict=True)
    ]


def _breaking(cell: object) -> str | None:
    """Return the class of a cell whose words must not be broken: a short one, such as a number."""
    return "whole" if not isinstance(cell, Html) and len(str(cell)) <= _SHORT else None


def numbers(label: str, head: Sequence[object], rows: Sequence[Sequence[object]]) -> Html:
    """Return the table behind a chart, folded away."""
    return tag("details", tag("summary", "The numbers"), table(label, head, rows))


def figure(picture: Html, caption: object, data: Html) -> Html:
    """Return a chart with its caption and the numbers behind it."""
    return tag("figure", picture, tag("figcaption", caption), data)


def number(value: object, digits: int = 4) -> str:
    """Return a number as people write it. Anything else is returned as a text."""
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


def told(value: object, digits: int = 4, depth: int = 2) -> str:
    """Return nested lists and mappings of plain values as words, without the brackets of a program."""
    if isinstance(value, Mapping):
        if not depth:
            return f"{len(value)} entries"
        shown = (f"{key} {told(one, digits, depth - 1)}" for key, one in value.items())
        return "; ".join(shown) or "none"
    if isinstance(value, (list, tuple)):
        few = [told(one, digits, 0) for one in value[:_MOST_SHOWN]] if depth else []
        left = len(value) - len(few)
        more = f"{left} more" if few else f"{left} values"
        return ", ".join(few + ([more] if left else [])) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else number(value, digits)


def cut(text: object, most: int = 24) -> str:
    """Return a text that is cut to fit into a picture. The table beside it has the full text."""
    whole = str(text)
    return whole if len(whole) <= most else whole[: most - 1] + "…"
