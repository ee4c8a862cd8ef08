"""Pictures of what the released model says, computed from the model and public ranges alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpkernel.data.table_files.spelling import date_of
from dpkernel.foundations.types import Array
from dpkernel.outputs.report.charts import Curve, legend, line_chart, row_chart
from dpkernel.outputs.report.markup import Html, figure, join, number, numbers, paragraph, tag
from dpkernel.outputs.report.style import LINES
from dpkernel.outputs.report.views import (
    MOST_PICTURES,
    Coefficients,
    Dependence,
    View,
    coefficients_of,
    dependences,
    probability_note,
)

_MOST_BARS = 24


def relevance_picture(relevance: Sequence[tuple[str, float]]) -> Html | None:
    """Return how much the model depends on each column; None if it was not released."""
    if not relevance:
        return None
    shown = list(relevance)[:_MOST_BARS]
    picture = row_chart(
        [name for name, _ in shown],
        [[100 * share] for _, share in shown],
        label="What the model looks at: "
        + ", ".join(f"{name} {share:.0%}" for name, share in shown[:5]),
        x_label="share of the slope, in percent",
        origin=0.0,
    )
    rows = [[name, f"{share:.1%}"] for name, share in relevance]
    left = len(relevance) - len(shown)
    more = f" {left} more columns are in the table." if left else ""
    caption = f"The share of each column in how steeply the model changes.{more}"
    return join(
        tag("h2", "What the model looks at"),
        paragraph(
            "A model looks at a column if its predictions change with the column, within the spread of"
            " the data. The shares are computed from released numbers alone, and the part that is due"
            " to noise is subtracted. A small share can be noise, and a large one does not mean that"
            " the column is a cause."
        ),
        figure(picture, caption, numbers("What the model looks at", ("column", "share"), rows)),
    )


def model_pictures(model: Any, view: View | None) -> Html:
    """Return the partial dependence on each column and, for a linear model, its coefficients."""
    parts: list[Html | None] = [tag("h2", "What the model says")]
    if view is None:
        parts.append(
            paragraph(
                "There is no picture, because the ranges of the model's columns were not declared, or"
                " because the model makes no predictions of this kind."
            )
        )
        return join(*parts)
    found, compared = dependences(view)
    several = len(view.answers) > 1
    band = (
        "" if several else " The bands contain the middle 80 % of the values of the other columns."
    )
    parts.append(
        paragraph(
            f"Each picture shows how the {view.quantity} changes with one column while the others take"
            " values spread evenly over their declared ranges. It is computed from the released model"
            " alone: no row was read, so the pictures reveal nothing more about anyone. The ranges are"
            f" public, and where there are no data the model only guesses.{band}"
        )
    )
    note = probability_note(model) if view.quantity == "probability" else ""
    parts.append(paragraph(note) if note else None)
    if len(found) < len(view.columns):
        parts.append(
            paragraph(
                f"These are the {MOST_PICTURES} columns with the largest effect, of {compared} compared"
                f" ({len(view.columns)} in all).",
                class_="quiet",
            )
        )
    styles = [f"line-{j % LINES}" for j in range(len(view.answers))]
    if several:
        parts.append(legend(view.answers, styles))
    low = min(float(d.low.min()) for d in found)
    high = max(float(d.high.max()) for d in found)
    ends = _wider(*_mean_ends(found)) if several else _wider(low, high)
    parts.append(tag("div", *(_picture(view, d, ends) for d in found), class_="grid"))
    slopes = coefficients_of(model)
    parts.append(None if slopes is None else _slopes(slopes))
    return join(*parts)


def _mean_ends(found: list[Dependence]) -> tuple[float, float]:
    return (min(float(d.mean.min()) for d in found), max(float(d.mean.max()) for d in found))


def _wider(low: float, high: float) -> tuple[float, float]:
    room = 0.05 * (high - low)
    if not room > 1e-9 * max(abs(low), abs(high), 1e-300):
        room = 0.1 * max(abs(low), abs(high)) or 1.0
    return low - room, high + room


def _picture(view: View, found: Dependence, ends: tuple[float, float]) -> Html:
    moves = "; ".join(
        f"{name} {_move(found, values)}"
        for name, values in zip(view.answers, found.mean.T, strict=True)
    )
    label = f"How the {view.quantity} changes with {found.name}. {moves}."
    if found.levels:
        picture = row_chart(
            [str(place) for place in found.places],
            found.mean.tolist(),
            label=label,
            x_label=_axis(view),
            x_range=ends,
        )
    else:
        band = len(view.answers) == 1
        picture = line_chart(
            [
                Curve(
                    answer,
                    list(found.places),
                    found.mean[:, j].tolist(),
                    f"line-{j % LINES}",
                    low=found.low[:, j].tolist() if band else None,
                    high=found.high[:, j].tolist() if band else None,
                )
                for j, answer in enumerate(view.answers)
            ],
            label=label,
            x_label=found.name,
            y_label=_axis(view),
            x_range=(float(found.places[0]), float(found.places[-1])),
            y_range=ends,
            size=(380, 230),
            x_dates=found.dates,
        )
    more = f" {found.left_out} more levels are not shown." if found.left_out else ""
    caption = join(tag("strong", found.name), ": ", moves, ".", more)
    rows = [
        [date_of(place) if found.dates else number(place), *(number(float(v)) for v in values)]
        for place, values in list(zip(found.places, found.mean, strict=True))[:: _every(found)]
    ]
    return figure(picture, caption, numbers(label, (found.name, *view.answers), rows))


def _move(found: Dependence, values: Array) -> str:
    """Return where the average is smallest and largest, or where it starts and ends on an axis."""
    if not found.levels:
        return f"from {number(float(values[0]))} to {number(float(values[-1]))}"
    low, high = int(np.argmin(values)), int(np.argmax(values))
    return (
        f"is largest for {found.places[high]} ({number(float(values[high]))}) and smallest for"
        f" {found.places[low]} ({number(float(values[low]))})"
    )


def _axis(view: View) -> str:
    """Return the label of the vertical axis, which includes the class if there is one."""
    alone = len(view.answers) == 1 and view.answers[0] != view.quantity
    return f"{view.quantity}, {view.answers[0]}" if alone else view.quantity


def _every(found: Dependence) -> int:
    return 1 if found.levels else 3


def _slopes(found: Coefficients) -> Html:
    shown = slice(0, _MOST_BARS)
    values = np.asarray(found.values)[shown]
    names = found.names[shown]
    largest = ", ".join(
        f"{name} {number(float(row[0]))}" for name, row in list(zip(names, values, strict=True))[:3]
    )
    several = len(found.answers) > 1
    picture = row_chart(
        list(names),
        values[:, :LINES].tolist(),
        label=f"Coefficients, largest first: {largest}.",
        x_label="coefficient",
        origin=0.0,
    )
    rows = [
        [name, *(number(float(value)) for value in row)]
        for name, row in zip(found.names, found.values, strict=True)
    ]
    left = len(found.names) - len(names)
    more = f" The {len(names)} largest of {len(found.names)}." if left else ""
    key = [f"dot-{j}" for j in range(min(len(found.answers), LINES))]
    styles = [style.replace("dot", "span") for style in key]
    return join(
        tag("h3", "Coefficients"),
        paragraph(f"The model is linear. A coefficient is the {found.meaning}.{more}"),
        legend(found.answers[:LINES], styles) if several else None,
        figure(
            picture,
            "The coefficients contain the noise of the release, so small ones may be noise alone.",
            numbers("Coefficients", ("column", *found.answers), rows),
        ),
    )
