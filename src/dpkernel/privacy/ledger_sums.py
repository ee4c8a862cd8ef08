"""Which spends a ceiling admits, and what they add up to, on the whole and on disjoint parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import ROUND_FLOOR, Context

from dpkernel.foundations.errors import BudgetExceededError, LedgerError
from dpkernel.foundations.types import JSON, Budget, Neighbours
from dpkernel.privacy.filters import (
    BasicFilter,
    Filter,
    RenyiFilter,
    epsilon_at,
    resolve_filter,
    rule_for,
)
from dpkernel.privacy.ledger_store import Settings, Spend
from dpkernel.privacy.profiles import GaussianProfile

OF_PEOPLE = " of people"  # ends the label of a spend whose records are people


def settled(settings: Settings, spends: Sequence[Spend]) -> Settings:
    """Return the settings with the rule, which the first spend under a ceiling fixes for good."""
    if settings.rule is not None or settings.budget is None or not spends:
        return settings
    name, order = settings.accounting, settings.renyi_order
    if name == "auto":
        name = rule_for(spends[0], settings.budget)
    if name == RenyiFilter.name and order is None:
        order = RenyiFilter(settings.budget).order
    return replace(settings, rule=name, renyi_order=order)


def rule_of(settings: Settings, spends: Sequence[Spend]) -> Filter | None:
    """Return the rule that adds these spends up, or None without a ceiling."""
    if settings.budget is None:
        return None
    fixed = settled(settings, spends)
    name = fixed.rule or BasicFilter.name  # before the first spend, no rule makes a difference
    return resolve_filter(name, settings.budget, fixed.renyi_order, fixed.leak_share)


def _charges(spends: Sequence[Spend], part: str | None) -> list[Spend]:
    """Return what touches a record of this part: spends on the part and on the whole data set."""
    return [s for s in spends if s.part is None or s.part == part]


def _parts(spends: Sequence[Spend]) -> list[str | None]:
    return list(dict.fromkeys(s.part for s in spends)) or [None]


def fits(rule: Filter, spends: Sequence[Spend], part: str | None = None) -> bool:
    """Return whether all spends fit that touch this part; without a part, in every part."""
    parts = _parts(spends) if part is None else [part]
    return all(rule.admits(_charges(spends, name)) for name in parts)


def total(settings: Settings, rule: Filter | None, spends: Sequence[Spend]) -> Budget | None:
    """Return the largest epsilon and the largest delta over the parts."""
    if rule is None:
        return naive_sum(settings, spends)
    totals = [rule.spent(_charges(spends, part)) for part in _parts(spends)]
    known = [total for total in totals if total is not None]
    if not known:
        return None
    return Budget(max(b.epsilon for b in known), max(b.delta for b in known))


def what_is_left(
    settings: Settings, rule: Filter, spends: Sequence[Spend], part: str | None
) -> Budget | None:
    """Return what can still be spent on this part, or on every part if ``part`` is None."""
    names = [part] if part else [*_parts(spends), *settings.parts]
    left = [rule.remaining(_charges(spends, name)) for name in dict.fromkeys(names)]
    known = [budget for budget in left if budget is not None]
    if len(known) < len(left):
        return None
    return Budget(min(b.epsilon for b in known), min(b.delta for b in known))


def admit(settings: Settings, earlier: Sequence[Spend], spend: Spend) -> Settings:
    """Return the settings that hold after the spend; raise if it does not fit."""
    lines = [*earlier, spend]
    _refuse_rows_among_people(settings, lines)
    settings = settled(settings, lines)
    rule, ceiling = rule_of(settings, lines), settings.budget
    if rule is None or ceiling is None or fits(rule, lines, spend.part):
        return settings
    spent = total(settings, rule, lines)
    lacking = "epsilon"  # also where only the last digits of the sum exceed the ceiling
    if spent is not None and spent.delta > ceiling.delta:
        lacking = "epsilon and delta" if spent.epsilon > ceiling.epsilon else "delta"
    left = what_is_left(settings, rule, earlier, spend.part)
    raise BudgetExceededError(
        f"The spend {spend.label!r} ({_point(settings, spend)}) does not fit under the ceiling"
        f" ({ceiling}): it would exceed {lacking}, because"
        f" {'nothing is' if left is None else str(left) + ' is'} left by {rule.name} accounting of"
        f" {len(earlier)} earlier spend(s). Nothing was spent."
        f" {_what_fits(settings, rule, left, earlier, spend)}"
    )


def _refuse_rows_among_people(settings: Settings, lines: Sequence[Spend]) -> None:
    """Raise if spends on people and on rows would be added up under zero-out or add-remove.

    Blanking or removing one row gives its person another record. That is a replacement, for which a
    spend that protects blanked or removed people is not calibrated. So the total would be a
    guarantee for nobody. Sums of units count for both under zero-out: there a blanked row takes away
    no more than a blanked unit.
    """
    relation = settings.neighbours
    if relation is Neighbours.REPLACE_ONE:
        return
    verb = "blanked" if relation is Neighbours.ZERO_OUT else "removed"
    people = [line for line in lines if line.label.endswith(OF_PEOPLE)]
    others = [line for line in lines if not line.label.endswith(OF_PEOPLE)] if people else []
    for line in others:
        units = all(part["label"].endswith(" of units") for part in line.plan["parts"])
        if not (units and relation is Neighbours.ZERO_OUT):
            raise LedgerError(
                f"Under {relation.value!r}, one ledger can't hold spends that protect rows and spends"
                f" that protect people, because a {verb} row gives its person another record. Use one"
                " ledger for each, or 'replace-one'. Nothing was spent."
            )


def _what_fits(
    settings: Settings, rule: Filter, left: Budget | None, earlier: Sequence[Spend], spend: Spend
) -> str:
    """Return a sentence that says which spend would be admitted instead of a refused one."""
    higher = "agree on a higher ceiling with the data's owner"
    if left is None:
        return f"To spend more, {higher}."
    most = f"epsilon of at most {_down(left.epsilon)}"
    if rule.name == RenyiFilter.name and not isinstance(spend.profile, GaussianProfile):
        # the divergence of a plan grows at least in proportion to its epsilon, so this share fits
        names = _parts(earlier) if spend.part is None else [spend.part]
        room = min(1 - math.fsum(map(rule.share, _charges(earlier, name))) for name in names)
        like = _down(_point(settings, spend).epsilon * max(room, 0.0) / rule.share(spend) * 0.99)
        return (
            f"Releases like these should fit with an epsilon of about {like} ({most} is left for a"
            f" Gaussian release only). Ask for that, or {higher}."
        )
    if left.delta == 0:
        return (
            f"Only pure epsilon (delta = 0) of at most {_down(left.epsilon)} would fit; for more,"
            f" {higher}. Deltas add up here, so ask for a share of the ledger's delta next time:"
            " Ledger.share, or `dpkernel fit` without --delta."
        )
    return f"Ask for an {most} and a delta of at most {_down(left.delta)}, or {higher}."


def _down(value: float) -> str:
    """Return a number with four digits, rounded down, so that the written number still fits."""
    near = f"{value:.4g}"
    if float(near) <= value:
        return near
    return f"{float(Context(prec=4, rounding=ROUND_FLOOR).create_decimal_from_float(value)):g}"


def _point(settings: Settings, spend: Spend) -> Budget:
    """Return the (epsilon, delta) of a spend: its claim, or its point at the ledger's delta."""
    profile = spend.profile
    if spend.claim is not None:
        delta = spend.claim.delta
    elif epsilon_at(profile, 0.0) < math.inf:
        delta = 0.0
    else:
        delta = 1e-6 if settings.budget is None else settings.budget.delta
    return Budget(min(max(epsilon_at(profile, delta), 1e-12), 1e300), delta)


def history_row(settings: Settings, spend: Spend) -> JSON:
    """Return one spend as a row of the history."""
    point = _point(settings, spend)
    return {
        "number": spend.number,
        "time": spend.time,
        "label": spend.label,
        "part": spend.part,
        "epsilon": point.epsilon,
        "delta": point.delta,
        "private": spend.private,
        "state": spend.state,
        "releases": [part["label"] for part in spend.plan["parts"]],
    }


def naive_sum(settings: Settings, spends: Sequence[Spend]) -> Budget | None:
    """Return the plain sums over all spends, whichever part they belong to."""
    if not spends:
        return None
    points = [_point(settings, spend) for spend in spends]
    total = math.fsum(p.epsilon for p in points)
    return Budget(total, min(math.fsum(p.delta for p in points), 1 - 2.0**-53))


def as_pair(budget: Budget | None) -> JSON | None:
    """Return a budget as JSON values."""
    return None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta}
