"""What the steps of a pipeline are going to release, known before any of them reads the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpkernel.data.tables import quietly
from dpkernel.foundations.types import Budget
from dpkernel.preprocessing.base import shares_of_mu
from dpkernel.privacy.noise import Plan
from dpkernel.privacy.profiles import GaussianProfile


def plan_of(step: Any, table: Any, y: Any) -> Plan:
    """Return what a step is going to release on a table of this size, or raise what it refuses.

    What it warns of it warns of again when it is fitted: it is said once.
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
