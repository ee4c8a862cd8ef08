"""Charts as SVG inside the page. Their colours follow those of the page, on screen and on paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from unicodedata import east_asian_width

import numpy as np

from dpkernel.data.table_files.spelling import date_of
from dpkernel.outputs.report.markup import Html, join, number, tag
from dpkernel.outputs.report.style import LINES

_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 24, 40
_ROW = 24  # height of one row of a row chart
_LABELS = 128  # width of its labels
_BARE = {"fill": "none", "stroke": "currentColor"}  # for readers that ignore the style sheet

Place = Callable[[float], float]


@dataclass(frozen=True)
class Curve:
    """A curve: points, its class in the style sheet, and a band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str = "line-0"
    step: bool = False
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def line_chart(
    lines: Sequence[Curve],
    *,
    label: str,
    x_label: str,
    y_label: str,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    whole_x: bool = False,
    x_dates: bool = False,
    size: tuple[int, int] = (380, 270),
) -> Html:
    """Return a chart of curves over one axis. ``label`` describes it in words.

    With ``x_dates``, the axis counts days since 1970-01-01 and shows dates.
    """
    width, height = size
    x_range = x_range or _range([line.x for line in lines])
    y_range = y_range or _range([part for line in lines for part in _heights(line)])
    to_x = _scale(x_range, _LEFT, width - _RIGHT)
    to_y = _scale(y_range, height - _BOTTOM, _TOP)
    parts: list[Html] = []
    for value in ticks(y_range):
        y = to_y(value)
        parts.append(_stroke(_LEFT, y, width - _RIGHT, y, "tick"))
        parts.append(_text(_LEFT - 6, y + 4, number(value, 6), "end", "quiet"))
    for value, text in _labelled(x_range, width - _LEFT - _RIGHT, whole_x, x_dates):
        x = to_x(value)
        parts.append(_stroke(x, height - _BOTTOM, x, height - _BOTTOM + 4, "axis"))
        parts.append(_tick(x, height - _BOTTOM + 17, text, width))
    for line in lines:
        if line.low is not None and line.high is not None:
            edge = [*zip(line.x, line.low, strict=True)]
            edge += [*zip(line.x, line.high, strict=True)][::-1]
            parts.append(
                tag("polygon", class_="band", points=_points(edge, to_x, to_y), fill="none")
            )
    parts.append(_stroke(_LEFT, height - _BOTTOM, width - _RIGHT, height - _BOTTOM, "axis"))
    for line in lines:
        places = [*zip(line.x, line.y, strict=True)]
        if line.step:
            places = _stairs(places)
        points = _points(places, to_x, to_y)
        parts.append(tag("polyline", class_=line.style, points=points, **_BARE))
    parts.append(_text((_LEFT + width - _RIGHT) / 2, height - 6, fitted(x_label, 300), "middle"))
    parts.append(_text(4, 13, fitted(y_label, 360), "start"))
    return _svg(label, width, height, parts)


def row_chart(
    labels: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    label: str,
    x_label: str,
    spans: Sequence[tuple[float, float]] | None = None,
    origin: float | None = None,
    x_range: tuple[float, float] | None = None,
) -> Html:
    """Return a chart with one row per label.

    A row has one dot per value with the span around it, or a bar from ``origin``.
    """
    width, height = 380, _ROW * len(labels) + 46
    known = [[v for row in values for v in row]]
    known += [[edge for span in spans or () for edge in span]]
    known += [[origin]] if origin is not None else []
    x_range = x_range or _range([part for part in known if part], 0.06)
    to_x = _scale(x_range, _LABELS + 8, width - 16)
    bottom = _ROW * len(labels) + 6
    parts: list[Html] = []
    for value in ticks(x_range, 4):
        parts.append(_stroke(to_x(value), 4, to_x(value), bottom, "tick"))
        parts.append(_tick(to_x(value), bottom + 15, number(value, 6), width))
    if origin is not None:
        parts.append(_stroke(to_x(origin), 4, to_x(origin), bottom, "axis"))
    for i, (name, row) in enumerate(zip(labels, values, strict=True)):
        y = 6 + _ROW * (i + 0.5)
        parts.append(_text(_LABELS, y + 4, fitted(name, _LABELS - 4), "end"))
        if spans is not None:
            low, high = (min(max(edge, x_range[0]), x_range[1]) for edge in spans[i])
            parts.append(_stroke(to_x(low), y, to_x(high), y, "span-0"))
        elif origin is not None and len(row) == 1:
            parts.append(_stroke(to_x(origin), y, to_x(row[0]), y, "span-0"))
        for j, value in enumerate(row):
            if x_range[0] <= value <= x_range[1]:
                place = to_x(value)
                style = f"dot-{j % LINES}"
                parts.append(tag("circle", cx=f"{place:.1f}", cy=f"{y:.1f}", r="4", class_=style))
    parts.append(_text((_LABELS + width) / 2, bottom + 34, fitted(x_label, 240), "middle"))
    return _svg(label, width, height, parts)


def legend(names: Sequence[str], styles: Sequence[str]) -> Html:
    """Return a legend: the style of each line, and its name."""
    entries: list[Html] = []
    for name, style in zip(names, styles, strict=True):
        height = _ROW * len(entries) + 12
        sample = _stroke(4, height, 40, height, style)
        entries.append(join(sample, _text(48, height + 4, fitted(name, 310), "start")))
    return _svg("Key: " + "; ".join(names), 380, _ROW * len(entries), entries)


def fitted(text: str, pixels: float) -> str:
    """Return a text that is cut to this width. The table beside the chart has the full text."""
    used, whole = 0.0, str(text)
    for i, letter in enumerate(whole):
        used += _width(letter)
        if used > pixels:
            return whole[: max(i - 2, 1)] + "…"
    return whole


def _width(letter: str) -> float:
    """Return an upper estimate of the width of a letter at 12 pixels, in the widest common font."""
    if letter in "WM@%mw—" or east_asian_width(letter) in "WF":
        return 12.5
    if letter in "iljtfrI.,:;'|()[]! ":
        return 5.0
    return 9.2 if letter.isupper() or not letter.isascii() else 7.7


def ticks(ends: tuple[float, float], about: int = 4, whole: bool = False) -> list[float]:
    """Return round numbers inside a range."""
    low, high = ends
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(f * power for f in (1, 2, 5, 10) if f * power >= rough * 0.999)
    step = max(round(step), 1) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step if i else 0.0 for i in range(first, min(last, first + 20) + 1)]


def _range(parts: Sequence[Sequence[float]], room: float = 0.04) -> tuple[float, float]:
    """Return the range of all finite values with a small margin. It is never empty."""
    flat = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts] or [np.zeros(1)])
    flat = flat[np.isfinite(flat)]
    low, high = (float(flat.min()), float(flat.max())) if len(flat) else (0.0, 1.0)
    least = 1e-9 * max(abs(low), abs(high)) or 1.0
    extra = (high - low) * room if high - low > least else max(abs(high) * 0.1, least)
    return low - extra, high + extra


def _heights(line: Curve) -> list[Sequence[float]]:
    return [part for part in (line.y, line.low, line.high) if part is not None]


def _scale(ends: tuple[float, float], start: float, end: float) -> Place:
    """Return the linear map from values to positions. Values outside the range stay at the edge."""
    low, high = ends
    factor = (end - start) / (high - low)

    def place(value: float) -> float:
        inside = min(max(value, low), high) if math.isfinite(value) else high
        return start + (inside - low) * factor

    return place


def _stairs(places: list[tuple[float, float]]) -> list[tuple[float, float]]:
    out = places[:1]
    for (_, before), (x, y) in pairwise(places):
        out += [(x, before), (x, y)]
    return out


def _points(places: Sequence[tuple[float, float]], to_x: Place, to_y: Place) -> str:
    return " ".join(f"{to_x(x):.1f},{to_y(y):.1f}" for x, y in places)


def _stroke(x1: float, y1: float, x2: float, y2: float, style: str) -> Html:
    ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    places = {name: f"{value:.1f}" for name, value in ends.items()}
    return tag("line", class_=style, **places, **_BARE)


def _text(x: float, y: float, text: str, anchor: str, style: str | None = None) -> Html:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_=style)


def _labelled(
    ends: tuple[float, float], room: float, whole: bool, dates: bool
) -> list[tuple[float, str]]:
    """Return as many round numbers or dates of a range as have room beside each other."""
    for about in (5, 4, 3, 2, 1):
        values = ticks(ends, about, whole or dates)
        texts = [date_of(v).isoformat() if dates else number(v, 6) for v in values]
        widest = max((sum(map(_width, text)) for text in texts), default=0.0)
        step = values[1] - values[0] if len(values) > 1 else math.inf
        if 1.3 * widest <= room * step / (ends[1] - ends[0]):
            break
    return list(zip(values, texts, strict=True))


def _tick(x: float, y: float, text: str, width: int) -> Html:
    """Return the text at a tick, moved to the left where it would leave the picture."""
    half = sum(map(_width, text)) / 2
    return _text(min(x, width - half), y, text, "middle", "quiet")


def _svg(label: str, width: int, height: int, parts: Sequence[Html]) -> Html:
    inside = Html("".join(parts))
    return tag("svg", inside, viewBox=f"0 0 {width} {height}", role="img", aria_label=label)
