"""The history of the budget: what the ledger of a data set has on record."""

from __future__ import annotations

from typing import Any

from dpkernel.foundations.types import Budget
from dpkernel.outputs.report.charts import Curve, legend, line_chart
from dpkernel.outputs.report.markup import (
    Html,
    figure,
    items,
    join,
    number,
    numbers,
    paragraph,
    table,
    tag,
)
from dpkernel.privacy.certificate import Certificate
from dpkernel.privacy.ledger import Ledger

_MOST_ROWS = 200


def budget_history(ledger: Ledger, certificate: Certificate) -> Html:
    """Return what was spent, on what, and what is left."""
    rows = ledger.history()
    of = f" of {ledger.dataset}" if ledger.dataset else ""
    own = {s.number for s in ledger.spends if s.profile == certificate.profile}
    seeded = sum(not row["private"] for row in rows)
    notes: list[object] = []
    if not own & {row["number"] for row in rows}:
        notes.append(
            "No spend on record has exactly the privacy profile of this certificate. Check that this is"
            " the ledger of its data."
        )
    if seeded:
        warning = tag("span", f"{seeded} spend(s) not private", class_="bad")
        notes.append(join(warning, ": their noise was seeded, so they have no guarantee."))
    entries: list[tuple[str, object]] = [
        ("ceiling", _pair(ledger.budget, "none")),
        ("spent", _pair(ledger.spent, "nothing")),
        ("left", _left(ledger)),
        ("accounting", ledger.rule or "plain sums"),
    ]
    shown = rows[-_MOST_ROWS:]
    hidden = len(rows) - len(shown)
    return join(
        tag("h2", "The budget of the data"),
        paragraph(
            f"Every release from the data{of} is recorded before its noise is drawn, and together they"
            " stay under the ceiling. The ledger knows only what was spent through it, and nothing"
            " else."
        ),
        tag("dl", *(tag("div", tag("dt", k), tag("dd", v)) for k, v in entries), class_="facts"),
        _rule_in_words(ledger),
        items(notes) if notes else None,
        _chart(ledger) if rows else None,
        paragraph(f"These are the last {_MOST_ROWS} of {len(rows)} spends.", class_="quiet")
        if hidden
        else None,
        _table(shown, own) if rows else paragraph("Nothing was spent so far."),
        _ceilings(ledger),
    )


def _rule_in_words(ledger: Ledger) -> Html | None:
    if ledger.budget is None or ledger.rule in (None, "basic"):
        return None
    return paragraph(
        "Several spends together cost less than the sum of their ε, because independent noise partly"
        " averages out. So what is spent and what is left need not add up to the ceiling.",
        class_="quiet small",
    )


def _left(ledger: Ledger) -> object:
    if ledger.budget is None:
        return "no ceiling"
    return _pair(ledger.remaining, "nothing")


def _pair(budget: Budget | None, otherwise: str) -> object:
    if budget is None:
        return otherwise
    return join(f"ε = {number(budget.epsilon)}", tag("br"), f"δ = {number(budget.delta)}")


def _table(rows: list[dict[str, Any]], own: set[int]) -> Html:
    lines: list[list[object]] = []
    for row in rows:
        label = str(row["label"]) + (f" (part {row['part']})" if row["part"] else "")
        what = join(tag("strong", label), "; this model") if row["number"] in own else label
        state = row["state"] if row["private"] else tag("span", "not private", class_="bad")
        when = str(row["time"])[:16].replace("T", " ")
        releases = ", ".join(str(name) for name in row["releases"])
        cost = (number(row["epsilon"]), number(row["delta"]))
        lines.append([str(row["number"]), when, what, releases, *cost, state])
    head = ("no.", "time (UTC)", "what", "releases", "ε", "δ", "state")
    return table("Spends on record", head, lines)


def _chart(ledger: Ledger) -> Html:
    course = ledger.course()
    sums, totals = ([0.0, *(line[i] or 0.0 for line in course)] for i in (1, 2))
    steps = [0.0, *(float(step) for step, _, _ in course), course[-1][0] + 0.5]
    naive = Curve("plain sum", steps, [*sums, sums[-1]], "plain", step=True)
    lines, budget = [naive], ledger.budget
    words = f"After {course[-1][0]} spends the plain sum of ε is {number(sums[-1])}"
    if budget is not None:
        rule = ledger.rule or "plain"
        lines.append(Curve(f"spent, by {rule} accounting", steps, [*totals, totals[-1]], step=True))
        lines.append(Curve("ceiling", [0.0, steps[-1]], [budget.epsilon] * 2, "ceiling"))
        ceiling = number(budget.epsilon)
        words += f", by {rule} accounting {number(totals[-1])}, under a ceiling of {ceiling}"
    top = max(max(line.y) for line in lines)
    picture = line_chart(
        lines,
        label=f"What was spent, one spend after the other. {words}.",
        x_label="spends",
        y_label="ε",
        x_range=(0.0, steps[-1]),
        y_range=(0.0, 1.08 * top),
        whole_x=True,
    )
    key = legend([line.name for line in lines], [line.style for line in lines])
    head = ("spends", "plain sum of ε", "ε by the rule")
    rows = [[number(i), number(plain), number(by)] for i, plain, by in course]
    delta = "" if budget is None else f" at δ = {number(budget.delta)}"
    caption = f"What was spent, one spend after the other: ε{delta}."
    return figure(join(picture, key), caption, numbers("What was spent", head, rows))


def _ceilings(ledger: Ledger) -> Html | None:
    changes = ledger.ceilings
    if not changes:
        return None
    rows = [[since[:16].replace("T", " "), _pair(b, "none"), why] for since, b, why in changes]
    head = ("since (UTC)", "ceiling", "reason")
    return join(tag("h3", "Ceilings"), table("Ceilings on record", head, rows))
