"""Small HTML tables for notebooks. All texts in them are escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def html_table(rows: Iterable[Sequence[object]], head: Sequence[object] = ()) -> str:
    """Return a table; without a ``head``, the first cell of each row is its heading."""
    lines = [_row(head, len(head))] if head else []
    lines += [_row(row, 0 if head else 1) for row in rows]
    return f"<table>{''.join(lines)}</table>"


def _row(cells: Sequence[object], n_headings: int) -> str:
    kinds = ("th" if place < n_headings else "td" for place in range(len(cells)))
    style = "style='text-align:left;vertical-align:top'"
    shown = (
        f"<{kind} {style}>{html.escape(str(cell))}</{kind}>"
        for kind, cell in zip(kinds, cells, strict=True)
    )
    return f"<tr>{''.join(shown)}</tr>"
