"""How good the model is: numbers that follow from the releases, and private scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpkernel.estimators.cell_counts import LABEL
from dpkernel.estimators.regressor.scale import ErrorLaw
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import is_real
from dpkernel.outputs.report.charts import row_chart
from dpkernel.outputs.report.markup import (
    Html,
    cut,
    figure,
    join,
    number,
    numbers,
    paragraph,
    table,
    tag,
    told,
)
from dpkernel.outputs.report.sections import objections
from dpkernel.outputs.report.words import METRIC_WORDS, STATISTIC_WORDS
from dpkernel.selection.score import PrivateScore

_LEVELS = (0.5, 0.9, 0.95)  # shares of the rows whose largest error is told
_SHARES = ("r2", "accuracy", "auc", "training_r2")  # for these, 1 is the best value


@dataclass(frozen=True)
class Figure:
    """One number with its interval.

    It has its name in the certificate, its name in words, its value, and the ends of its interval.
    """

    kind: str
    name: str
    value: Any
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> str:
        """The interval as a text."""
        if self.low is None or self.high is None:
            return "not known"
        return f"{number(self.low)} to {number(self.high)}"


def read_scores(scores: Any) -> dict[str, PrivateScore]:
    """Return the scores by name. The argument is one score, several, or a dict of them."""
    if scores is None:
        return {}
    if isinstance(scores, PrivateScore):
        scores = [scores]
    if not isinstance(scores, Mapping):
        listed = (
            list(scores) if isinstance(scores, Sequence) and not isinstance(scores, str) else [None]
        )
        scores = {
            _score_name(score, i, listed) if isinstance(score, PrivateScore) else str(i): score
            for i, score in enumerate(listed)
        }
    if not all(isinstance(score, PrivateScore) for score in scores.values()):
        allowed = "what private_score returned, or a list or dict of such scores"
        got = ", ".join(dict.fromkeys(type(score).__name__ for score in scores.values()))
        advice = (
            "Scores that were computed without noise are not private, so a report can't show them."
        )
        raise ParameterError(parameter_message("write_report", "scores", allowed, got, advice))
    return {str(name): score for name, score in scores.items()}


def _score_name(score: PrivateScore, place: int, listed: Sequence[Any]) -> str:
    name = METRIC_WORDS.get(score.metric, score.metric)
    same = sum(getattr(other, "metric", None) == score.metric for other in listed)
    return name if same == 1 else f"{name} ({place + 1})"


def quality(free: Sequence[Figure], scores: Mapping[str, PrivateScore]) -> Html | None:
    """Return the section about the model's quality."""
    if not free and not scores:
        return join(
            tag("h2", "How good the model is"),
            paragraph(
                "No number about the model's quality was released. An error that is computed from the"
                " rows without noise is not private. `dpkernel score`, or private_score in Python, gives"
                " a private one."
            ),
        )
    return join(
        tag("h2", "How good the model is"),
        _free_table(free) if free else None,
        _score_table(scores) if scores else None,
        _share_chart(free, scores),
    )


def free_figures(statistics: Mapping[str, Any]) -> list[Figure]:
    """Return the free statistics of a certificate, one per target, with their intervals."""
    found: list[Figure] = []
    used: set[str] = {LABEL, "kernel", "errors"}  # the first two have sections of their own
    laws = statistics.get("errors")
    several = isinstance(laws, list) and len(laws) > 1
    for j, law in enumerate(laws if isinstance(laws, list) else ()):
        found += _error_figures(law, f", target {j + 1}" if several else "")
    for name, words in STATISTIC_WORDS.items():
        if name not in statistics:
            continue
        spread, interval = f"{name}_noise_std", f"{name}_interval"
        used |= {name, spread, interval}
        values = statistics[name]
        values = values if isinstance(values, list) else [values]
        for j, value in enumerate(values):
            target = f", target {j + 1}" if len(values) > 1 else ""
            low, high = _ends(
                value, _item(statistics.get(interval), j), _item(statistics.get(spread), j)
            )
            found.append(Figure(name, words + target, value, low, high))
    for name, value in statistics.items():
        if name not in used:
            found.append(Figure(name, name.replace("_", " "), cut(told(value), 200)))
    return found


def in_short(figures: Sequence[Figure]) -> str:
    """Return numbers and their intervals, with three digits."""
    told = []
    for one in figures:
        if not is_real(one.value):
            told.append(f"{cut(one.name, 90)}: {cut(one.value, 60)}")
            continue
        ends = "" if one.low is None else f" ({number(one.low, 3)} to {number(one.high, 3)})"
        told.append(f"{cut(one.name, 90)}: {number(one.value, 3)}{ends}")
    return "; ".join(told)


def _error_figures(data: Any, target: str) -> list[Figure]:
    """Return quantiles of the absolute errors, if they were released and the noise leaves some."""
    if data is None:
        return []
    law = ErrorLaw.from_dict(data)
    if not law.informative:
        return []
    return [
        Figure("errors", f"{level:.0%} of the errors are at most{target}", *law.quantile(level))
        for level in _LEVELS
    ]


def _item(values: Any, j: int) -> Any:
    return values[j] if isinstance(values, list) and j < len(values) else None


def _ends(value: Any, interval: Any, spread: Any) -> tuple[float | None, float | None]:
    """Return the stated interval, or else 1.96 standard deviations of the noise to either side."""
    if isinstance(interval, (list, tuple)) and len(interval) == 2 and all(map(is_real, interval)):
        return float(interval[0]), float(interval[1])
    if is_real(value) and is_real(spread):
        return max(value - 1.96 * spread, 0.0), max(value + 1.96 * spread, 0.0)
    return None, None


def _free_table(found: Sequence[Figure]) -> Html:
    rows = [[f.name, number(f.value), f.interval] for f in found]
    return join(
        tag("h3", "At no further cost"),
        paragraph(
            "These follow from what was already released, so they reveal nothing more about anyone. An"
            " interval contains the exact number in 95 % of all releases. It accounts for the noise, not"
            " for new data. Errors are those on the rows of the fit; new rows have slightly larger ones."
        ),
        table("Quality at no further cost", ("what", "value", "95 % interval"), rows),
        paragraph(
            "Not known: the number is an assumption of the model, or it combines several noisy numbers"
            " and the effect of their noise is not known. private_score gives an error on other rows,"
            " with its interval.",
            class_="quiet small",
        )
        if any(f.low is None for f in found)
        else None,
    )


def _score_table(scores: Mapping[str, PrivateScore]) -> Html:
    rows: list[list[object]] = []
    for name, score in scores.items():
        against = objections(score.certificate)
        claim = f"ε = {number(score.certificate.epsilon)}, δ = {number(score.certificate.delta)}"
        cost = tag("span", "NO GUARANTEE", class_="bad") if against else claim
        level: Any = score.certificate.public.get("confidence")
        interval = f"{number(score.low)} to {number(score.high)}"
        share = f" ({100 * level:g} %)" if is_real(level) else ""
        rows.append([name, number(score.value), interval + share, number(score.n_rows), cost])
    return join(
        tag("h3", "Private scores"),
        paragraph(
            "Each score was released with noise of its own, from the stated number of rows, and has its"
            " own cost. If the same rows were used for the model and for a score, the costs add up."
        ),
        table("Private scores", ("score", "value", "interval", "rows", "price"), rows),
    )


def _share_chart(free: Sequence[Figure], scores: Mapping[str, PrivateScore]) -> Html | None:
    """Return one picture of all numbers whose best value is 1, with their intervals."""
    known = [f for f in free if f.kind in _SHARES and is_real(f.value) and f.low is not None]
    known += [
        Figure(score.metric, name, score.value, score.low, score.high)
        for name, score in scores.items()
        if score.metric in _SHARES and not objections(score.certificate)
    ]
    known = [f for f in known if math.isfinite(f.value)]
    if not known:
        return None
    short = {"training_r2": "R² in training"}
    labels = [short.get(f.kind, f.name) for f in known]
    spans = [(float(f.low or 0.0), float(f.high or 0.0)) for f in known]
    least = min(0.0, *(max(low, -0.5) for low, _ in spans))
    words = "; ".join(f"{f.name}: {number(f.value)}, {f.interval}" for f in known)
    picture = row_chart(
        labels,
        [[float(f.value)] for f in known],
        label=f"Quality with intervals; 1 is the best value. {words}.",
        x_label="1 is the best",
        spans=spans,
        x_range=(least, 1.0),
    )
    data = numbers(
        "Quality with intervals",
        ("what", "value", "interval"),
        [[f.name, number(f.value), f.interval] for f in known],
    )
    cut_off = " The picture ends at -0.5; what lies below is in the table." if least == -0.5 else ""
    caption = f"Numbers whose best value is 1, with their intervals.{cut_off}"
    return figure(picture, caption, data)
