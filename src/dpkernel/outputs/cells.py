"""What a fit released about the cells of its table, and whether it learned anything, in words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpkernel.data.table_files.schema import STATES, Schema
from dpkernel.estimators.cell_counts import LABEL
from dpkernel.foundations.types import is_real
from dpkernel.preprocessing import PrivateImputer, PrivatePipeline
from dpkernel.privacy.certificate import Certificate

_CLEAR = 3.0  # deviations of the noise above which a share is told
_IN_95 = 1.96  # deviations of the noise within which it lies in 95 % of cases
_CONSTANT = re.compile(
    r"(mean|location)(, target \d+)?"
)  # releases of a regressor that uses no input
_MOST = 0.5  # share of unreadable cells that is warned of


def cell_lines(statistics: Mapping[str, Any], schema: Any = None) -> list[str]:
    """Return one sentence on all columns and one per column of which the noise leaves something.

    ``statistics`` are the free statistics of a certificate. The list is empty if the fit released
    no counts of cells. With a ``Schema``, a sentence also says what replaced the cells.
    """
    found = statistics.get(LABEL)
    if not isinstance(found, Mapping) or not isinstance(found.get("shares"), Mapping):
        return []
    deviation: Any = found.get("deviation")
    if not is_real(deviation) or not 0 < deviation < 1:
        return []
    least = _CLEAR * deviation
    rules = {rule.name: rule for rule in schema.rules} if isinstance(schema, Schema) else {}
    lines = []
    for name, shares in found["shares"].items():
        if not isinstance(shares, Mapping):
            return []
        known = [(state, shares.get(state)) for state in STATES[1:]]
        told = [
            f"{value:.0%} {state}" for state, value in known if is_real(value) and value > least
        ]
        rule = rules.get(name)
        if not told:
            continue
        stand_in = None if rule is None else rule.stand_in
        instead = "" if rule is None or stand_in is None else f"; {rule.shown(stand_in)} stood in"
        if rule is not None and rule.imputed is not None:
            instead = f"; a {rule.missing} stood in"
        if told == [told[-1]] and told[0].endswith(STATES[-1]):
            instead = ""  # values outside of the range became its ends
        lines.append(f"{name}: {', '.join(told)}{instead}")
    head = (
        "Cells that were missing, could not be read or lay outside of their range, released with"
        f" noise (within ±\N{NO-BREAK SPACE}{max(_IN_95 * deviation, 0.001):.1%} in"
        " 95\N{NO-BREAK SPACE}% of cases):"
    )
    if not lines:
        return [f"{head} no column has clearly more than {least:.0%} of them."]
    return [head, *lines]


def imputed_values(model: Any, schema: Any) -> dict[str, float]:
    """Return what a fitted pipeline found to replace missing values, by the name of the column."""
    first = model.steps_[0][1] if isinstance(model, PrivatePipeline) else None
    if not isinstance(first, PrivateImputer) or not isinstance(schema, Schema):
        return {}
    names, found = schema.names_out, np.asarray(first.statistics_).tolist()
    if len(names) != len(found):
        return {}
    return {name: value for name, value in zip(names, found, strict=True) if math.isfinite(value)}


def imputed_lines(model: Any, schema: Any) -> list[str]:
    """Return one sentence per column whose missing values are replaced by what the fit found."""
    found = imputed_values(model, schema)
    rules = {rule.name: rule for rule in schema.inputs} if found else {}
    return [
        f"{name}: a missing cell is replaced by the {rules[name].missing}, {rules[name].shown(value)}."
        for name, value in found.items()
    ]


def unread_columns(statistics: Mapping[str, Any]) -> list[str]:
    """Return the columns of which most cells could not be read, by the released shares."""
    if not cell_lines(statistics):
        return []
    shares = statistics[LABEL]["shares"]
    return [name for name, one in shares.items() if one.get("unreadable", 0.0) > _MOST]


def constant_line(certificate: Certificate) -> str | None:
    """Return a sentence if the model is a constant, because the budget sufficed for no more."""
    own = {release.label.removeprefix("model: ") for release in certificate.releases} - {LABEL}
    own = {label for label in own if not label.startswith("missing values: ")}
    if not own or not all(_CONSTANT.fullmatch(label) for label in own):
        return None
    return (
        "The model is a constant: with so few records and so small an epsilon nothing else can be"
        " learned, and each prediction is the same. `dpkernel plan` says what more of either would give."
    )
