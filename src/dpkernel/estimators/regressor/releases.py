"""A mechanism for every release of one fit; together they fit the budget.

All mechanisms are fixed before any noise is drawn, from public numbers: the sizes, the budget and
the plan. What adapts to earlier releases (the clip, the coordinates, the features) is scaled away
inside each part, so it does not change the mechanisms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dpkernel.data.blocks import BLOCK_ROWS
from dpkernel.estimators.records import STEPS
from dpkernel.estimators.regressor import location, scale
from dpkernel.estimators.regressor.budget_plan import OUTPUT_SHARE, BudgetPlan
from dpkernel.estimators.regressor.inputs import input_layout, score_layout
from dpkernel.estimators.regressor.stage import (
    LARGEST_TARGET,
    STAGE_ROW_BOUND,
    AnyStage,
    largest_ridge,
)
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.models.features.input_law import CELLS
from dpkernel.models.losses import Huber, Loss
from dpkernel.privacy.mechanisms import (
    Gaussian,
    Mechanism,
    ObjectivePerturbation,
    SymmetricGaussian,
)
from dpkernel.privacy.profiles import PrivacyProfile, compose, gaussian_mu, objective_multiplier
from dpkernel.privacy.sensitivity import (
    Sensitivity,
    bounded_sum,
    column_histograms,
    histogram,
    loss_gradient,
)
from dpkernel.privacy.statistics import GramLayout
from dpkernel.solvers.objective_perturbation import LARGEST_CONDITION, Problem, Records, minimise

LARGEST_LOG = 3.0  # of 1 + x, the cost of the ridge of a stage; a smaller ridge has no use
_RIDGE = (
    1e-4  # as a share of n: a smaller ridge has no use, and more noise would have to hide rounding
)
STAGE_LOSS = Huber(1.0)  # of residuals in units of the clip
_UNUSED = 1 + 2.0**-8  # room for the error of coordinates without power, which no solver sees


def name_of(label: str, column: int, n_targets: int) -> str:
    """Return the name of a release in the certificate."""
    return label if n_targets == 1 else f"{label}, target {column + 1}"


def stage_problem(
    n_rows: int, ridges: Array, largest_b: float, error: float = 0.0, loss: Loss = STAGE_LOSS
) -> Problem:
    """Return the problem of one stage on coordinates with these ridges. It is public.

    ``error`` is that of the mechanism. The solver leaves a little of it to the coordinates that it
    does not see.
    """
    largest = 1.0 if loss.labels else LARGEST_TARGET
    numbers = loss, n_rows, STAGE_ROW_BOUND, ridges, largest, largest_b, BLOCK_ROWS
    return Problem(*numbers, wanted=error / _UNUSED)


def stage_solver(
    n_rows: int, stage: AnyStage, records: Records, mechanism: ObjectivePerturbation, loss: Loss
) -> Callable[[Array], Array]:
    """Return the function of b that solves a stage to the tolerance of its mechanism."""
    largest = mechanism.reach * mechanism.sigma * (1 + 1e-12)
    problem = stage_problem(n_rows, stage.ridges, largest, mechanism.error, loss=loss)
    if not problem.tolerance <= mechanism.error:
        raise AssertionError("a smaller problem must reach the tolerance that was planned")
    return lambda b: stage.solve(b, lambda part: minimise(records, problem, part))


def moments_of(
    plan: BudgetPlan | None, n_inputs: int, n_rows: int, relation: Neighbours
) -> GramLayout | None:
    """Return the grid of the moments in the plan (of inputs or of their scores), or None."""
    if plan is not None and plan.learns:
        return score_layout(n_inputs, n_rows, relation)
    if plan is not None and plan.inputs > 0:
        return input_layout(n_inputs, n_rows, relation)
    return None


def plan_releases(
    plan: BudgetPlan | None,
    n_rows: int,
    n_inputs: int,
    n_targets: int,
    size: int,
    budget: Budget,
    relation: Neighbours,
    *,
    counted: bool = False,
) -> dict[str, Mechanism]:
    """Return a mechanism for every release, by its name. Without a plan, release means only.

    ``counted`` means that the size of the table is not public. A mean then needs it, too.
    """
    if plan is None:
        return _means(n_targets, budget, relation, counted)
    layout = moments_of(plan, n_inputs, n_rows, relation)
    weights = {}
    for label, weight in plan.parts().items():
        if label.split(" ")[0] in ("inputs", "columns", "dependence"):
            weights[label] = weight
            continue
        for j in range(n_targets):
            weights[name_of(label, j, n_targets)] = weight / n_targets
    losses: dict[str, Loss] = {name: STAGE_LOSS for name in weights if _kind(name) == "stage"}
    return calibrated(
        "PrivateKernelRegressor",
        weights,
        losses,
        PublicSizes(n_rows, n_inputs, size, layout, several=plan.adapts),
        budget,
        relation,
        plan.determinant,
    )


@dataclass(frozen=True)
class PublicSizes:
    """The public sizes of a fit in parts.

    Parameters
    ----------
    n_rows, n_inputs : int
        The size of the table.
    size : int
        The number of coefficients of a stage.
    layout : GramLayout or None
        The grid of the moments, if there are any.
    several : bool
        Whether coordinates may have ridges above the one that is paid for.
    """

    n_rows: int
    n_inputs: int
    size: int
    layout: GramLayout | None
    several: bool = True


def calibrated(
    owner: str,
    weights: Mapping[str, float],
    losses: Mapping[str, Loss],
    table: PublicSizes,
    budget: Budget,
    relation: Neighbours,
    determinant: float,
) -> dict[str, Mechanism]:
    """Return a mechanism for every part, by its name; together they fit the budget.

    Parameters
    ----------
    owner : str
        The estimator that error messages name.
    weights : mapping from names to floats
        The share of mu^2 of each part. The first word of a name says what the part is.
    losses : mapping from names to losses
        The losses of the parts that are stages.
    table : PublicSizes
        The public sizes.
    budget, relation
        The budget and the neighbouring relation.
    determinant : float
        The share of epsilon that all stages together pay for their ridge.
    """
    n_rows, stages = table.n_rows, [weights[name] for name in losses]
    most = math.expm1(min(determinant * budget.epsilon / len(stages), LARGEST_LOG))
    # the largest ridge and the curvature of all rows are n x times the least ridge, each
    endless = (LARGEST_CONDITION / 2 - 1) / n_rows
    x = {
        name: min(most, endless, loss.smoothness * STAGE_ROW_BOUND**2 / (_RIDGE * n_rows))
        for name, loss in losses.items()
    }
    miss = math.log(budget.delta) + math.log(1e-7 / len(stages)) - budget.epsilon
    miss = min(math.log(1e-20), miss)
    others = sum(weights.values()) - sum(stages)
    kappa = objective_multiplier(
        budget,
        stages,
        [x[name] * (1 + 1e-15) for name in losses],
        relation,
        gaussian=others + OUTPUT_SHARE**2 * sum(stages),
        slack=1e-12,
        log_miss=miss + math.log(len(stages)),
    )
    while kappa > 0:
        found: dict[str, Mechanism] = {}
        for name, weight in weights.items():
            mu, kind = kappa * math.sqrt(weight), _kind(name)
            if name in losses:
                found[name] = _stage(table, relation, losses[name], mu, x[name], miss)
            elif kind == "columns":
                found[name] = Gaussian.with_mu(
                    column_histograms(relation, columns=table.n_inputs),
                    mu,
                    dimension=CELLS * table.n_inputs,
                )
            elif kind in ("inputs", "dependence"):
                assert table.layout is not None
                found[name] = SymmetricGaussian.with_mu(
                    table.layout.sensitivity, mu, dimension=table.layout.side, integer=True
                )
            elif kind == "calibration":
                found[name] = Gaussian.with_mu(_clipped_sum(relation), mu, dimension=1)
            else:
                cells = location.CELLS if kind == "location" else scale.CELLS
                found[name] = Gaussian.with_mu(histogram(relation), mu, dimension=cells)
        if _fit([mechanism.profile() for mechanism in found.values()], budget):
            return found
        kappa *= 1 - 1e-7
    raise ParameterError(
        parameter_message(
            owner,
            "epsilon, delta",
            "large enough that several releases fit them",
            (budget.epsilon, budget.delta),
            "Take a larger delta, or fewer problems.",
        )
    )


def _means(
    n_targets: int, budget: Budget, relation: Neighbours, counted: bool
) -> dict[str, Mechanism]:
    mu = gaussian_mu(budget.epsilon, budget.delta) / math.sqrt(n_targets)
    size = 2 if counted else 1
    while True:
        single = Gaussian.with_mu(_clipped_sum(relation, size), mu, dimension=size)
        if _fit([single.profile()] * n_targets, budget):
            return {name_of("mean", j, n_targets): single for j in range(n_targets)}
        mu *= 1 - 1e-12


def _fit(profiles: list[PrivacyProfile], budget: Budget) -> bool:
    """Whether these releases fit the budget, checked as delta(epsilon) and as epsilon(delta)."""
    whole = compose(profiles)
    return whole.supports(budget) and whole.epsilon(budget.delta) <= budget.epsilon


def _stage(
    table: PublicSizes, relation: Neighbours, loss: Loss, m: float, x: float, log_miss: float
) -> ObjectivePerturbation:
    """Return a stage with this m and x, which pays for the least ridge."""
    curvature = loss.smoothness * STAGE_ROW_BOUND**2
    ridge = curvature / x
    ridges = np.full(table.size, ridge)
    if table.several:
        ridges[-1] = largest_ridge(table.n_rows, ridge, curvature)

    def error(sigma: float, largest_b: float) -> float:
        return stage_problem(table.n_rows, ridges, largest_b, loss=loss).tolerance * _UNUSED

    return ObjectivePerturbation.build(
        loss_gradient(relation, slope=loss.lipschitz, row=STAGE_ROW_BOUND),
        dimension=table.size,
        curvature=curvature,
        ridge=ridge,
        m=m,
        output_mu=OUTPUT_SHARE * m,
        log_miss=log_miss,
        error=error,
    )


def _clipped_sum(relation: Neighbours, size: int = 1) -> Sensitivity:
    """Return the sensitivity of a sum of vectors of one or two entries in [-STEPS, STEPS]."""
    return bounded_sum(relation, bound=float(STEPS) * (1.0 if size == 1 else 1.415))


def _kind(name: str) -> str:
    """Return the part that a release belongs to."""
    return name.split(",")[0].split(" ")[0]
