"""Noise, ridge and tolerance of a fit by objective perturbation, from public numbers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernel.blocks import BLOCK_ROWS
from dpkernel.errors import ParameterError, parameter_message
from dpkernel.losses import Loss
from dpkernel.mechanisms import ObjectivePerturbation, PureObjectivePerturbation
from dpkernel.profiles import ObjectiveProfile, compose, objective_multiplier
from dpkernel.sensitivity import loss_gradient
from dpkernel.solvers.objective_perturbation import Problem
from dpkernel.types import Array, Budget, Neighbours

ROW_BOUND = 1.0
_OUTPUT_SHARE = 0.05  # the mu of the output noise as a share of m: it costs 0.1 % of sigma
_SHARES = tuple(np.geomspace(0.01, 0.5, 18))  # of epsilon for the determinant: candidates


@dataclass(frozen=True)
class ObjectivePlan:
    """A mechanism, how often it is drawn, and the problem that every draw solves."""

    mechanism: ObjectivePerturbation | PureObjectivePerturbation
    problem: Problem
    draws: int


def plan_objective(
    owner: str,
    budget: Budget,
    relation: Neighbours,
    loss: Loss,
    *,
    n_rows: int,
    powers: Array,
    draws: int = 1,
    signal: float = 4.0,
    target_bound: float = 1.0,
    ridge: float | None = None,
) -> ObjectivePlan:
    r"""Return the plan with the least expected error for a prior guess of the solution.

    Parameters
    ----------
    powers : ndarray
        A_l, the mean of z_l^2 under the public measure of the inputs.
    draws : int
        Problems that are solved with the same mechanism (one a class, one a quantile).
    signal : float
        A guess of the variance of the best prediction.
    ridge : float, optional
        Lambda; by default a search over it, free of privacy cost. A larger ridge needs less noise,
        as log(1 + c_2 B^2 / Lambda) of epsilon pays for the determinant, and biases more. With
        curvature g_l = n eta A_l, a solution has the expected squared error
        sum_l A_l (sigma^2 + Lambda^2 signal) / (g_l + Lambda)^2.
    """
    limits = loss.lipschitz, loss.smoothness * ROW_BOUND**2
    sensitivity = loss_gradient(relation, slope=limits[0], row=ROW_BOUND)
    share = budget.epsilon / draws
    if ridge is not None and not math.log1p(limits[1] / ridge) < 0.99 * share:
        least = limits[1] / math.expm1(0.99 * share)
        raise ParameterError(
            parameter_message(owner, "regularisation", f"'auto', or above {least:.3g}", ridge)
        )

    def error_of(x: float) -> float:
        strength = limits[1] / x
        if budget.pure:
            left = 0.99 * share - math.log1p(x)
            sigma = sensitivity.value * math.sqrt(len(powers)) / left if left > 0 else math.inf
        else:
            part = Budget(share, budget.delta)  # close enough for a choice
            m = objective_multiplier(part, [1.0], [x], relation, gaussian=_OUTPUT_SHARE**2)
            sigma = sensitivity.value / m if m > 0 else math.inf
        bend = n_rows * 0.4 * loss.smoothness * powers + strength
        return float(np.sum(powers * (sigma**2 + strength**2 * signal) / bend**2))

    if ridge is None:
        candidates = [math.expm1(fraction * share) for fraction in _SHARES]
        ridge = limits[1] / min(candidates, key=error_of)

    def problem(sigma: float, largest_b: float) -> Problem:
        ridges = np.full(len(powers), ridge)
        draft = Problem(loss, n_rows, ROW_BOUND, ridges, target_bound, largest_b, BLOCK_ROWS)
        enough = 1e-3 * limits[0] * ROW_BOUND * draft.strength / draft.smoothness
        return Problem(loss, n_rows, ROW_BOUND, ridges, target_bound, largest_b, BLOCK_ROWS, enough)

    def error(sigma: float, largest_b: float) -> float:
        return problem(sigma, largest_b).tolerance

    common: dict[str, Any] = {
        "dimension": len(powers),
        "curvature": limits[1],
        "ridge": ridge,
        "error": error,
    }
    mechanism: ObjectivePerturbation | PureObjectivePerturbation
    if budget.pure:
        mechanism = PureObjectivePerturbation.build(sensitivity, share * (1 - 1e-14), **common)
        largest = mechanism.reach * mechanism.scale
        return ObjectivePlan(mechanism, problem(mechanism.scale, largest), draws)
    # what b misses must stay far below delta e^-epsilon, for any epsilon
    log_miss = min(math.log(1e-20), math.log(1e-7 * budget.delta / draws) - budget.epsilon)
    kappa = objective_multiplier(
        budget,
        [1.0 / draws] * draws,
        [limits[1] / ridge * (1 + 1e-15)] * draws,
        relation,
        gaussian=_OUTPUT_SHARE**2,
        slack=1e-12,
        log_miss=log_miss + math.log(draws),
    )
    if not kappa > 0:
        raise ParameterError(
            parameter_message(
                owner, "epsilon, delta", "large enough for so many problems", str(budget)
            )
        )
    while True:
        m = kappa / math.sqrt(draws)
        mechanism = ObjectivePerturbation.build(
            sensitivity, m=m, output_mu=_OUTPUT_SHARE * m, log_miss=log_miss, **common
        )
        whole = compose([mechanism.profile()] * draws)
        assert isinstance(whole, ObjectiveProfile)
        if whole.supports(budget):
            largest = mechanism.reach * mechanism.sigma * (1 + 1e-12)
            return ObjectivePlan(mechanism, problem(mechanism.sigma, largest), draws)
        kappa *= 1 - 1e-9
