"""What the steps of a pipeline are going to release, known before any of them reads the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpkernel.data.tables import quietly
from dpkernel.foundations.errors import LedgerError
from dpkernel.foundations.types import Budget
from dpkernel.preprocessing.base import shares_of_mu
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import Plan
from dpkernel.privacy.profiles import GaussianProfile


class _Planned(Exception):  # noqa: N818 - it is no error
    def __init__(self, plan: Plan) -> None:
        self.plan = plan


class _Probe(Ledger):
    """A ledger that keeps the plan of a fit and stops it before it reads the data."""

    def check(self, what: Any, label: str, **options: Any) -> None:
        """Stop the fit."""
        raise _Planned(Plan.of(what, label))

    def spend(self, what: Any, label: str, **options: Any) -> Any:
        """Stop the fit."""
        raise _Planned(Plan.of(what, label))


def plan_of(step: Any, table: Any, y: Any) -> Plan:
    """Return what a step is going to release on a table of this size, or raise what it refuses.

    What it warns of it warns of again when it is fitted: it is said once.
    """
    probe = _Probe(neighbours=getattr(step, "estimator", step).neighbours)
    try:
        with quietly():
            step.set_params(ledger=probe).fit(table, y)
    except _Planned as planned:
        return planned.plan
    raise LedgerError(f"{type(step).__name__} did not ask the ledger before its fit.")


def split_budget(request: Budget, weights: Mapping[str, float], factor: float) -> dict[str, Budget]:
    """Return the budget of each step: its share of mu^2, at the delta of the whole."""
    if len(weights) == 1:
        return {name: Budget(request.epsilon * factor, request.delta) for name in weights}
    mus = shares_of_mu(request, list(weights.values()))
    return {
        name: Budget(GaussianProfile(mu * factor).epsilon(request.delta), request.delta)
        for name, mu in zip(weights, mus, strict=True)
    }
