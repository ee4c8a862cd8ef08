"""Worst cases of objective perturbation in one dimension, and the twins that must be rejected.

There is one record with a Huber loss, whose label lies far above or far below every prediction. Its
gradient is -1 or +1, so the two data sets shift b by the whole sensitivity. The minimiser is known in
closed form. The computed one is wrong by as much as the tolerance allows, and in different ways for the
two data sets. This is the worst solver that the guarantee covers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.privacy.mechanisms import ObjectivePerturbation, PureObjectivePerturbation
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.profiles import objective_multiplier
from dpkernel.privacy.sensitivity import loss_gradient
from dpkernel.proof.audit.core import Case

_RIDGE, _CURVATURE = 0.1, 1e-3  # the loss is flat, so nearly all of epsilon is for the shift of b
_TOLERANCE = 2.0**-10  # largest gradient at the solution
_STEP = 2.0**-8  # grid of a sloppy solver's solutions; times the ridge it is below the tolerance
_FAILED = 1e6  # what a solver that gave up would release


def _build(budget: Budget, relation: Neighbours = Neighbours.REPLACE_ONE) -> Any:
    """Return the mechanism of the case, Gaussian or pure."""
    sensitivity = loss_gradient(relation, slope=1.0, row=1.0)
    common: dict[str, Any] = {
        "dimension": 1,
        "curvature": _CURVATURE,
        "ridge": _RIDGE,
        "error": lambda scale, reach: _TOLERANCE,
    }
    if budget.pure:
        return PureObjectivePerturbation.build(sensitivity, budget.epsilon, **common)
    x = [_CURVATURE / _RIDGE * (1 + 1e-15)]
    options = {"gaussian": 0.01, "slack": 1e-9, "log_miss": -60.0}
    m = objective_multiplier(budget, [1.0], x, relation, **options)
    return ObjectivePerturbation.build(
        sensitivity, m=m, output_mu=0.1 * m, log_miss=-60.0, **common
    )


def _solver(neighbour: bool) -> Callable[[Array], Array]:
    """Return a solver that rounds to a grid that depends on the data set, within the tolerance."""

    def solve(b: Array) -> Array:
        exact = -(float(b[0]) + (1.0 if neighbour else -1.0)) / _RIDGE
        return np.array([(math.floor(exact / _STEP) + (0.5 if neighbour else 0.0)) * _STEP])

    return solve


def _capped(neighbour: bool) -> Callable[[Array], Array]:
    """Return gradient descent that gives up after 100 steps, with the Huber record or without it.

    Without the record, 100 steps of the size that the record requires are too few.
    """
    ridge, smoothness = _RIDGE, 1 + _RIDGE

    def solve(b: Array) -> Array:
        beta, at = 0.0, float(b[0])
        for _ in range(100):
            slope = ridge * beta + at + (0.0 if neighbour else min(max(beta, -1.0), 1.0))
            if abs(slope) <= 1e-12:
                return np.array([beta])
            beta -= slope / smoothness
        return np.array([_FAILED])

    return solve


def _case(
    name: str,
    claim: Any,
    mechanism: Any,
    solver: Callable[[bool], Callable[[Array], Array]] = _solver,
    score: Callable[[float], float] = float,
    broken: str | None = None,
) -> Case:
    solvers = solver(False), solver(True)

    def run(neighbour: bool, noise: Noise) -> float:
        return score(float(mechanism.release(solvers[int(neighbour)], noise)[0]))

    return Case(name, claim.profile(), mechanism, run, broken)


def _pattern(released: float) -> float:
    """Return how near a number is to the grid of one data set's solver."""
    return abs((released / _STEP) % 1.0 - 0.5)


def objective_cases(kind: str, budget: Budget) -> list[Case]:
    """Return the sound cases of the Gaussian or the pure mechanism, and its twins."""
    found, weaker = _build(budget), _build(budget, Neighbours.ZERO_OUT)
    if budget.pure:
        half = replace(found, scale=found.scale / 2)
        silent = replace(found, output_scale=found.output_scale * 1e-6)
    else:
        half = replace(found, sigma=found.sigma / 2, grid=found.grid / 2)
        silent = replace(found, output_sigma=0.01, output_grid=found.output_grid * 2.0**-20)
    wrong = "wrong neighbours"
    return [
        _case(kind, found, found),
        _case(f"{kind}, where a solver stops", found, found, score=_pattern),
        _case(f"{kind}, half the noise", found, half, broken="half the noise"),
        _case(f"{kind}, zero-out for replaced", found, weaker, broken=wrong),
        _case(f"{kind}, no output noise", found, silent, score=_pattern, broken="no output noise"),
        _case(
            f"{kind}, a solver that fails", found, found, _capped, broken="data-dependent failure"
        ),
    ]
