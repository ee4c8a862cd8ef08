"""The first section of a report: everything that a reader in a hurry needs, on one sheet of paper."""

from __future__ import annotations

from collections.abc import Sequence

from dpkernel.outputs.report.markup import Html, cut, number, tag
from dpkernel.outputs.report.quality import Figure, in_short
from dpkernel.outputs.report.sections import facts, sentence, verdict_box
from dpkernel.privacy.certificate import Certificate
from dpkernel.privacy.certificate_text import lines_of
from dpkernel.privacy.ledger import Ledger
from dpkernel.selection.score import PrivateScore

_LONGEST = 400  # characters of an entry; the sections below have everything
_MOST = 4  # numbers, columns and lines of an entry
_IN_WORDS = ("protects", "how strongly", "released", "not released", "cost", "not covered")


def summary(
    title: str,
    certificate: Certificate,
    against: Sequence[str],
    *,
    figures: Sequence[Figure],
    scores: dict[str, PrivateScore],
    relevance: Sequence[tuple[str, float]],
    cells: Sequence[str],
    ledger: Ledger | None,
    constant: str | None,
) -> Html:
    """Return the guarantee, the quality, what the model looks at and the budget, in short."""
    told = dict(lines_of(certificate)) if certificate.releases else {}
    entries = [(name, sentence(told[name])) for name in _IN_WORDS if name in told]
    scored = [Figure(s.metric, name, s.value, s.low, s.high) for name, s in scores.items()]
    entries.append(("quality", in_short([*scored, *figures][:_MOST]) or "No number was released"))
    if constant is not None:
        entries.append(("looks at", f"No column. {constant}"))
    elif relevance:
        looks = ", ".join(f"{cut(name, 40)} {share:.0%}" for name, share in relevance[:_MOST])
        entries.append(("looks at", f"Above all {looks}"))
    if cells:
        entries.append(("cells", " ".join([cells[0], "; ".join(cells[1 : 1 + _MOST])])))
    if ledger is not None:
        entries.append(("budget", _budget(ledger)))
    entries.append(
        ("verify", "The certificate is at the end of this page; `dpkernel verify` reads it")
    )
    rows = (part for name, text in entries for part in _entry(name, cut(text, _LONGEST)))
    return tag(
        "section",
        tag("h1", cut(title, 120)),
        verdict_box(certificate, against),
        facts(certificate),
        tag("dl", *rows, class_="short"),
        class_="summary",
    )


def _entry(name: str, text: str) -> tuple[Html, Html]:
    return tag("dt", name), tag("dd", text)


def _budget(ledger: Ledger) -> str:
    spent = "nothing" if ledger.spent is None else f"ε = {number(ledger.spent.epsilon)}"
    if ledger.budget is None:
        return f"Spent {spent}; there is no ceiling"
    left = ledger.remaining
    rest = "nothing" if left is None else f"ε = {number(left.epsilon)}"
    ceiling = number(ledger.budget.epsilon)
    return f"Spent {spent} of the ceiling ε = {ceiling}; {rest} is left"
