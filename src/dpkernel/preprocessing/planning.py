"""What the steps of a pipeline will release, found before any of them reads the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpkernel.data.tables import quietly
from dpkernel.foundations.types import Budget
from dpkernel.preprocessing.base import shares_of_mu
from dpkernel.privacy.noise import Plan
from dpkernel.privacy.profiles import GaussianProfile


def plan_of(step: Any, table: Any, y: Any) -> Plan:
    """Return what a step will release on a table of this size, or raise if it refuses the table.

    Warnings are silenced here, because the step repeats them when it is fitted.
    """
    with quietly():
        found: Plan = step._planned_spending(table, y)
    return found


def split_budget(request: Budget, weights: Mapping[str, float], factor: float) -> dict[str, Budget]:
    """Return the budget of each step: its share of mu^2, at the delta of the whole."""
    if len(weights) == 1:
        return {name: Budget(request.epsilon * factor, request.delta) for name in weights}
    mus = shares_of_mu(request, list(weights.values()))
    return {
        name: Budget(GaussianProfile(mu * factor).epsilon(request.delta), request.delta)
        for name, mu in zip(weights, mus, strict=True)
    }
