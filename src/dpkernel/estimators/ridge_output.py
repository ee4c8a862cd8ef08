"""Least squares whose solution is released with noise: ``PrivateKernelRidge(solver="output")``."""

from __future__ import annotations

from typing import Any

from dpkernel.data.declared import interval_of
from dpkernel.data.sources import Source
from dpkernel.estimators.objective_model import ConvexPlan, Problems
from dpkernel.estimators.records import NUMBER_SIGNAL, unit_targets
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.models.losses import Squared

_RIDGES = (1e-100, 1e100)


def plan_noisy_solution(
    model: Any, source: Source, budget: Budget, relation: Neighbours
) -> ConvexPlan:
    """Plan to minimise sum_i omega_i (y_i - <z_i, beta>)^2 / 2 + Lambda ||beta||^2 / 2 and add noise.

    The solutions for several targets are one vector.
    """
    target = interval_of(model.y_bounds, model.bounds, type(model).__name__)
    views = unit_targets(target, source.target_shape)
    problems = Problems(
        target,
        tuple(("coefficients", Squared(), view) for view in views),
        signal=NUMBER_SIGNAL,
        solver="output",
        ridge=ridge_of(model),
        accept=tuple(model.accept),
        single=not source.target_shape,
    )
    return ConvexPlan(model, source, budget, relation, problems)


def ridge_of(model: Any) -> float | None:
    """Return Lambda, or None for "auto". Refuse what output perturbation can't do."""
    owner = type(model).__name__
    if model.folds > 1:
        allowed, advice = "1 with solver='output'", "A fold is one noisy Gram matrix of several."
        raise ParameterError(parameter_message(owner, "folds", allowed, model.folds, advice))
    ridge: float | None = model._ridge
    if ridge is None:
        return None
    if not _RIDGES[0] <= ridge <= _RIDGES[1]:
        allowed = "'auto', or between 1e-100 and 1e100 with solver='output'"
        raise ParameterError(parameter_message(owner, "regularisation", allowed, ridge))
    return ridge
