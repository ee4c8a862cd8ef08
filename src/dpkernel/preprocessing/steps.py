"""The steps of a pipeline: which ones are allowed, what each may spend, and what they released."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dpkernel.data.blocks import is_stream
from dpkernel.data.cells import shape_of
from dpkernel.data.tables import quietly
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.foundations.errors import DataError, ParameterError, parameter_message
from dpkernel.foundations.types import Budget
from dpkernel.preprocessing.base import PrivateTransformer, shares_of_mu
from dpkernel.preprocessing.free import check_free
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.noise import Plan
from dpkernel.privacy.profiles import GaussianProfile
from dpkernel.selection import PrivateSearchCV

Steps = list[tuple[str, Any]]


def is_private(step: Any) -> bool:
    """Whether a step spends budget."""
    return isinstance(step, (PrivateEstimator, PrivateSearchCV))


def are_pairs(steps: object) -> bool:
    """Whether these are (name, step) pairs."""
    return isinstance(steps, Sequence) and all(
        isinstance(step, tuple) and len(step) == 2 and isinstance(step[0], str) for step in steps
    )


def checked_steps(owner: str, steps: Any, reserved: set[str]) -> Steps:
    """Return the steps. Raises for names or steps that are not allowed in a pipeline."""
    names = [step[0] for step in steps] if are_pairs(steps) else []
    if not names or len(set(names)) != len(names):
        raise ParameterError(
            f"The 'steps' parameter of {owner} must be a list of pairs (name, estimator) with"
            " different names."
        )
    for name, step in steps:
        if "__" in name or name in reserved:
            allowed = "texts without '__' that are not names of parameters"
            raise ParameterError(parameter_message(owner, "steps: names", allowed, name))
        _check_step(name, step, name == names[-1])
    return list(steps)


def _check_step(name: str, step: Any, last: bool) -> None:
    if is_private(step):
        if not last and not isinstance(step, PrivateTransformer):
            raise ParameterError(
                f"The step {name!r} must be a transformer, because it is not the last."
            )
        inner = [step.estimator] if isinstance(step, PrivateSearchCV) else []
        for what in ("ledger", "noise"):
            if any(getattr(one, what, None) is not None for one in (step, *inner)):
                raise ParameterError(
                    f"The step {name!r} has a {what} of its own. State it for the pipeline: all steps"
                    " are one spend."
                )
    elif last:
        raise ParameterError(
            f"The last step, {name!r}, must be a private estimator, search or transformer of dpkernel."
        )
    else:
        check_free(name, step)


def releases_of(fitted: Steps) -> tuple[list[Release], list[str], list[str]]:
    """Return all releases, labelled with their steps, and two lists of reasons against the guarantee.

    The lists say why a step proves nothing, and why it is not private.
    """
    releases: list[Release] = []
    unproved: list[str] = []
    exposed: list[str] = []
    for name, step in fitted:
        certificate = getattr(step, "certificate_", None)
        if certificate is None:
            continue
        releases += [replace(r, label=f"{name}: {r.label}") for r in certificate.releases]
        reasons = [f"{name}: {why}" for why in certificate.reasons]
        unproved += [] if certificate.valid else reasons
        exposed += reasons if certificate.valid and not certificate.private else []
    return releases, unproved, exposed


def n_rows_of(X: Any, *, told: bool = True) -> int:
    """Return the number of rows of a table in memory. Raises if X is something else.

    With ``told=False`` the message does not tell the number of rows.
    """
    if is_stream(X):
        raise ParameterError(
            "PrivatePipeline takes tables in memory. Fit its transformers to the stream one after the"
            " other, with one ledger."
        )
    shape = shape_of(X)
    if len(shape) != 2:
        got = f"an array of shape {shape}" if told else f"{len(shape)} dimension(s)"
        raise DataError(
            f"Expected 2D array, got {got} instead. Reshape your data: one row"
            " per record, one column per variable."
        )
    return shape[0]


def plan_of(step: Any, table: Any, y: Any, weights: Mapping[str, Any]) -> Plan:
    """Return what a step will release on a table of this size, or raise if it refuses the table.

    Warnings are silenced here, because the step repeats them when it is fitted.
    """
    with quietly():
        found: Plan = step._planned_spending(table, y, **weights)
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
