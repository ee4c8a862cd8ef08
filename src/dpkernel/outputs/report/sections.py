"""The sections that every report has. They need only the certificate."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpkernel.data.domain import Domain, Interval
from dpkernel.data.table_files.spelling import date_of
from dpkernel.foundations.errors import CertificateError
from dpkernel.outputs.report.charts import Curve, legend, line_chart
from dpkernel.outputs.report.encoding import DeclaredColumn
from dpkernel.outputs.report.markup import (
    Html,
    cut,
    figure,
    items,
    join,
    number,
    numbers,
    paragraph,
    table,
    tag,
    told,
)
from dpkernel.outputs.report.words import (
    MECHANISMS,
    NORMS,
    PUBLIC,
    SENSITIVITIES,
    VALUES,
    factor,
    parameters,
)
from dpkernel.privacy.certificate import ON_THE_CALLERS_WORD, Certificate, Release
from dpkernel.privacy.certificate_text import QUANTITIES, RELATIVE, best_guess
from dpkernel.version import __version__

_LONGEST = 300  # characters of a public value; the full value is in the certificate
_MOST_ROWS = 60  # rows of the table of columns
_RESTS_ON = {
    "idealised-arithmetic": "the proof is for real numbers, and the computer rounds them",
    **ON_THE_CALLERS_WORD,
}


def objections(certificate: Certificate) -> list[str]:
    """Recompute the claim and return why there is no guarantee; an empty list if it holds."""
    found = []
    try:
        certificate.verify()
    except CertificateError as error:
        found.append(str(error))
    if not certificate.private:
        known = certificate.reasons if certificate.valid else ()  # else verify has named them all
        found += [f"Not private: {why}." for why in known] or ["The certificate says: not private."]
    return found


def verdict_box(certificate: Certificate, against: Sequence[str]) -> Html:
    """Return the first thing a reader sees."""
    if against:
        return tag(
            "div",
            tag("strong", "NO GUARANTEE"),
            paragraph("Do not treat what this page describes as private. These are the reasons:"),
            items(against),
            class_="verdict bad",
            role="alert",
        )
    claim = f"ε = {number(certificate.epsilon)}, δ = {number(certificate.delta)}"
    return tag(
        "div",
        tag(
            "strong",
            "The guarantee holds for the last step of a pipeline only"
            if certificate.last_step_only
            else "The guarantee holds",
        ),
        paragraph(
            f"{certificate.subject} is differentially private with {claim}. The claim was recomputed"
            " from its parameters when this page was written."
        ),
        class_="verdict good",
    )


def facts(certificate: Certificate) -> Html:
    """Return the numbers at a glance."""
    public = certificate.public
    unit = certificate.unit
    places = not certificate.neighbours.n_is_public
    name = "n_places" if places else "n_units" if unit == "group" else "n_rows"
    size = public.get(name)
    entries = [
        ("privacy loss ε", number(certificate.epsilon)),
        ("slack δ", number(certificate.delta)),
        ("releases with noise", number(len(certificate.releases))),
    ]
    if isinstance(size, int) and not isinstance(size, bool):
        counted = "places for records" if places else "people" if unit == "group" else "rows"
        entries.insert(2, (counted, number(size)))
    return tag("dl", *(tag("div", tag("dt", k), tag("dd", v)) for k, v in entries), class_="facts")


def released(certificate: Certificate, against: Sequence[str]) -> Html:
    """Return what was released, how it was protected, and what was not released."""
    head = ("what", "how it was protected", "what one record can change", "noise")
    rows = [_release_row(release) for release in certificate.releases]
    not_left = [
        "No row of the data is in the model or on this page.",
        "Nothing else was released that was computed from the rows. Everything on this page follows"
        " from the releases above and from public numbers.",
    ]
    if against:
        not_left = ["Because there is no guarantee (see the top), no such statement can be made."]
    return join(
        tag("h2", "What was released"),
        paragraph(
            "Only the following quantities were released, each with noise. The noise is large enough"
            " to hide what any one record can change."
            if not against
            else "The certificate lists the following quantities."
        ),
        table("What was released", head, rows),
        tag("h3", "What was not released"),
        items(not_left),
        tag("h3", "What the guarantee does not cover"),
        items([sentence(line) for line in certificate.not_covered]),
    )


def _release_row(release: Release) -> list[object]:
    mechanism = release.mechanism
    moves = mechanism.sensitivity
    meaning = SENSITIVITIES.get(moves.formula, "see the certificate")
    most = f"{cut(parameters(moves), 120)} ≤ {number(moves.value, 6)}"
    norm = NORMS.get(moves.norm, moves.norm)
    change = join(sentence(meaning), " ", tag("code", most), f" ({norm})")
    how = join(
        MECHANISMS.get(mechanism.kind, "See the certificate."), " ", tag("code", mechanism.kind)
    )
    scale = tag("code", number(mechanism.noise_scale, 6))
    if mechanism.kind in RELATIVE:
        ratio = number(mechanism.noise_scale / moves.value, 3)
        scale = join(f"{ratio} times what one record can change ", scale)
    what = QUANTITIES.get(moves.formula)
    return [_title(release.title, what), how, change, scale]


def _title(title: str, what: str | None) -> Html:
    """Return the label of a release in the certificate, and what it is."""
    more = None if what is None else tag("span", what, class_="quiet")
    return join(title) if more is None else join(title, tag("br"), more)


def attacker(certificate: Certificate, against: Sequence[str]) -> Html:
    """Return what the guarantee means for an attacker."""
    unit = "person" if certificate.unit == "group" else "record"
    profile = certificate.profile
    alpha = np.linspace(0.0, 1.0, 101)
    beta = np.clip(profile.trade_off(alpha), 0.0, 1.0)
    caught = {rate: 1 - float(beta[round(rate * 100)]) for rate in (0.01, 0.05, 0.1)}
    lines = [
        f"Whatever anyone concludes from the model would have been almost as likely if this {unit} had"
        f" been another one: the probability changes by a factor of at most"
        f" {factor(certificate.epsilon)} (e to the power ε), plus δ = {number(certificate.delta)}.",
        f"An attacker guesses which of two equally likely values the {unit} has. The guess is"
        f" right in at most {best_guess(certificate)} of all cases; blind guessing gives"
        " 50\N{NO-BREAK SPACE}%.",
        "An attacker who may raise a false alarm in 5 % of all cases finds the true value in at most"
        f" {_percent(caught[0.05])}; blind guessing gives 5\N{NO-BREAK SPACE}%.",
    ]
    text = (
        f"Someone knows every {unit} except one, sees the model, and tries to tell which of two values"
        f" that {unit} has. No attack can lie below the curve, whatever its method and computing power."
    )
    curve = Curve("what no attack can beat", alpha.tolist(), beta.tolist())
    blind = Curve("blind guessing", [0.0, 1.0], [1.0, 0.0], "plain")
    label = (
        "Trade-off curve: the smallest false negative rate that an attack with a given false positive"
        f" rate can have. At 5 % false alarms it misses at least {_percent(1 - caught[0.05])}."
    )
    picture = line_chart(
        [blind, curve],
        label=label,
        x_label="false alarms (false positive rate)",
        y_label="missed (false negative rate)",
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
    )
    shown = (0, 1, 5, 10, 20, 30, 40, 50, 75, 100)
    rows = [[_percent(i / 100), _percent(float(beta[i])), _percent(1 - i / 100)] for i in shown]
    head = ("false alarms", "missed, at least", "missed by blind guessing")
    key = legend([curve.name, blind.name], [curve.style, blind.style])
    caption = "How well the best attack can do. The closer to the dashed line, the less it learns."
    without = paragraph(
        "There is no guarantee here (see the top). The following says what the numbers would mean if"
        " there were one.",
        class_="bad",
    )
    return join(
        tag("h2", "What an attacker can do"),
        without if against else None,
        paragraph(text),
        items(lines),
        figure(join(picture, key), caption, numbers("Trade-off curve", head, rows)),
    )


def certificate_text(certificate: Certificate) -> Html:
    """Return the certificate as it is printed."""
    signed = [
        f"{name}: {_RESTS_ON.get(name, 'accepted by name')}" for name in certificate.assumptions
    ]
    return join(
        tag("h2", "The certificate"),
        tag("pre", str(certificate)),
        join(
            paragraph("It relies on assumptions that the user accepted by name, or vouches for:"),
            items(signed),
        )
        if signed
        else None,
    )


def public_facts(
    certificate: Certificate,
    names: Sequence[str] | None,
    declared: Sequence[DeclaredColumn] | None = None,
    domain: Any = None,
) -> Html:
    """Return everything that the guarantee treats as public. ``domain`` has the declared ranges."""
    rows = [
        [PUBLIC.get(key, key), cut(told(_in_words(key, value), 6), _LONGEST)]
        for key, value in certificate.public.items()
        if key != "domain" and value is not None
    ]
    return join(
        tag("h2", "What is public"),
        paragraph(
            "The guarantee does not hide these. Ranges, classes and sizes were stated by whoever ran the"
            " program and must not have been read from the data."
        ),
        _domain(domain, names, declared),
        table("Public numbers", ("what", "value"), rows) if rows else None,
    )


def _in_words(key: str, value: Any) -> Any:
    """Return a public value without what only a program reads; the certificate has all of it."""
    try:
        if key in VALUES:
            return VALUES[key].get(value, value)
        if key == "steps":
            return dict(value)
        if key == "cells":
            return value["epsilon_of_the_rest"]
        if key == "feature_map":
            parameters = {k: v for k, v in value["parameters"].items() if not isinstance(v, list)}
            return {value["kind"]: parameters}
    except (TypeError, ValueError, KeyError, AttributeError):
        pass  # not what this version writes, so it is told as it is
    return value


def _domain(
    data: Any, names: Sequence[str] | None, declared: Sequence[DeclaredColumn] | None
) -> Html | None:
    """Return the declared ranges as a table; None if there are none or they can't be read."""
    try:
        domain = Domain.from_dict(data)
    except (CertificateError, TypeError, AttributeError):
        return None
    columns: list[Any] = list(domain.columns or ())
    dates = [False] * len(columns)
    if declared is not None:
        columns, names = [one.values for one in declared], [one.name for one in declared]
        dates = [one.dates for one in declared]
    known = names if names is not None and len(names) == len(columns) else domain.names
    rows: list[list[object]] = []
    for i, column in enumerate(columns[:_MOST_ROWS]):
        rows.append([f"column {i + 1}" if known is None else known[i], _span(column, dates[i])])
    if len(columns) > _MOST_ROWS:
        rows.append([f"and {len(columns) - _MOST_ROWS} more", "see the certificate"])
    if domain.target is not None:
        rows.append(["target", _span(domain.target)])
    return table("Declared ranges", ("column", "declared range"), rows) if rows else None


def _span(column: Any, dates: bool = False) -> str:
    if column is None:
        return "any number"
    if isinstance(column, Interval) and dates:
        return f"{date_of(column.low)} to {date_of(column.high)}"
    if isinstance(column, Interval):
        return f"{number(column.low, 6)} to {number(column.high, 6)}"
    return cut("one of " + ", ".join(str(value) for value in column.values), _LONGEST)


def verification(certificate: Certificate) -> Html:
    """Return how anyone can check the claim, and the certificate to save."""
    text = certificate.to_json()
    data = base64.b64encode(text.encode()).decode()
    link = tag(
        "a",
        "Save certificate.json",
        href=f"data:application/json;base64,{data}",
        download="certificate.json",
    )
    python = (
        "from dpkernel import Certificate\n\n"
        'text = open("certificate.json", encoding="utf-8").read()\n'
        "print(Certificate.from_json(text).verify())"
    )
    return join(
        tag("h2", "How to verify"),
        paragraph(
            "Save the certificate, install dpkernel from a copy of its source code, and let it"
            " recompute sensitivity, noise, ε and δ from the parameters. The model file contains the"
            " same certificate."
        ),
        paragraph(link, class_="screen"),
        tag("pre", tag("code", "pip install ./dpkernel\ndpkernel verify certificate.json")),
        paragraph("Or in Python:"),
        tag("pre", tag("code", python)),
        paragraph(
            "This shows that the numbers support the claim. It can't show who computed them, so a"
            " forgery that is consistent in itself is not noticed. Trust in the file is trust in whoever"
            " ran the program.",
            class_="quiet",
        ),
    )


def citation(certificate: Certificate) -> Html:
    """Return how to cite the program and the theorems."""
    versions = certificate.versions
    version = str(versions.get("dpkernel", __version__))
    known = ", ".join(f"{name} {value}" for name, value in versions.items())
    entry = (
        "@software{dpkernel,\n  author  = {{The dpkernel developers}},\n  title   = {dpkernel: private"
        " kernel models with certificates anyone can verify},\n"
        f"  version = {{{version}}}\n}}"
    )
    sentence = (
        f"The model was trained with dpkernel {version} ({certificate.subject}) under"
        f" ({number(certificate.epsilon)}, {number(certificate.delta)})-differential privacy for"
        f" {certificate.neighbours.value} neighbours."
    )
    return join(
        tag("h2", "How to cite"),
        paragraph(sentence),
        tag("pre", tag("code", entry)),
        paragraph("The theorem behind the claim: ", certificate.reference),
        paragraph("Made with ", known, ".", class_="quiet") if known else None,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.{3 if share < 0.995 else 5}g}\N{NO-BREAK SPACE}%"


def sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
