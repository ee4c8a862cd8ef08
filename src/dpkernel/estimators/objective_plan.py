"""Noise, ridge and tolerance of a fit by objective perturbation, from public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpkernel.data.blocks import BLOCK_ROWS
from dpkernel.estimators.records import ROW_BOUND, STEPS
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.models.losses import Loss
from dpkernel.privacy.mechanisms import Gaussian, ObjectivePerturbation, PureObjectivePerturbation
from dpkernel.privacy.profiles import compose, objective_multiplier
from dpkernel.privacy.sensitivity import Sensitivity, bounded_sum, loss_gradient
from dpkernel.solvers.objective_perturbation import LARGEST_CONDITION, Problem, refuse_endless

_OUTPUT_SHARE = 0.05  # the mu of the output noise divided by m; it raises sigma by 0.1 %
_PURE_OUTPUT_SHARE = 0.01  # the share of epsilon that the output noise gets
_CANDIDATES = 24
_LARGEST_LOG = 9.0  # of 1 + c_2 B^2 / Lambda: a smaller ridge has no effect


@dataclass(frozen=True)
class ObjectivePlan:
    """A mechanism, the number of its draws, and the problem that every draw solves."""

    loss: Loss
    mechanism: ObjectivePerturbation | PureObjectivePerturbation
    problem: Problem
    draws: int


@dataclass(frozen=True)
class ConvexSetting:
    """What is public about the data.

    Parameters
    ----------
    owner : str
        The estimator that error messages name.
    budget, relation, n_rows
        The budget, the neighbouring relation and the number of rows.
    powers : ndarray
        A_l, the mean of z_l^2 under the public measure of the inputs.
    signal : float
        A guess of the variance of the best prediction.
    target_bound : float
        The largest absolute value of y.
    centre_share : float
        The share of mu^2 for the mean of the rows.
    l1, norm : float
        The weight of the loss of the coefficients, and the norm that is penalised; see
        ``solvers.output_perturbation.Risk``.
    """

    owner: str
    budget: Budget
    relation: Neighbours
    n_rows: int
    powers: Array
    signal: float
    target_bound: float = 1.0
    centre_share: float = 0.0
    l1: float = 0.0
    norm: float = 2.0

    def sensitivity(self, loss: Loss) -> Sensitivity:
        """Return how far the gradient moves."""
        return loss_gradient(self.relation, slope=loss.lipschitz, row=ROW_BOUND)

    def problem(self, loss: Loss, ridge: float, largest_b: float) -> Problem:
        """Return the problem, with a tolerance so small that the output noise is small beside b."""
        ridges = np.full(len(self.powers), ridge)
        numbers = loss, self.n_rows, ROW_BOUND, ridges, self.target_bound, largest_b, BLOCK_ROWS
        draft = Problem(*numbers)
        enough = 1e-3 * loss.lipschitz * ROW_BOUND * draft.strength / draft.smoothness
        return Problem(*numbers, wanted=enough)


def plan_objectives(
    setting: ConvexSetting, losses: Sequence[Loss], ridge: float | None = None
) -> tuple[list[ObjectivePlan], Gaussian | None]:
    """Return one plan for each different loss, and the release of the centre if it has a share.

    All of them together fit the budget, and every problem gets the same share. ``ridge`` is Lambda;
    by default it is chosen from public numbers, at no privacy cost.
    """
    budget, relation = setting.budget, setting.relation
    draws = {loss: losses.count(loss) for loss in losses}
    share = budget.epsilon / len(losses)
    ridges = {loss: _ridge(setting, loss, share) if ridge is None else ridge for loss in draws}
    for loss, chosen in ridges.items():
        least = loss.smoothness * ROW_BOUND**2 / math.expm1(min(0.98 * share, 600.0))
        if not chosen > least:
            allowed = f"'auto', or above {least:.3g} for this epsilon"
            raise ParameterError(
                parameter_message(setting.owner, "regularisation", allowed, chosen)
            )
        refuse_endless(setting.owner, setting.problem(loss, chosen, 0.0))
    if budget.pure:
        return [_pure(setting, loss, ridges[loss], share, draws[loss]) for loss in draws], None
    # the probability that b exceeds its reach must be far below delta e^-epsilon, for any epsilon
    miss = math.log(1e-7 / len(losses)) + math.log(budget.delta) - budget.epsilon
    miss = min(math.log(1e-20), miss)
    kappa = objective_multiplier(
        budget,
        [(1 - setting.centre_share) / len(losses)] * len(losses),
        [_determinant(loss, ridges[loss]) for loss in losses],
        relation,
        gaussian=setting.centre_share + _OUTPUT_SHARE**2 * (1 - setting.centre_share),
        slack=1e-12,
        log_miss=miss + math.log(len(losses)),
    )
    if not kappa > 0:
        allowed = "larger for this many problems (or ask for fewer)"
        raise ParameterError(
            parameter_message(setting.owner, "epsilon, delta", allowed, str(budget))
        )
    while True:
        m = kappa * math.sqrt((1 - setting.centre_share) / len(losses))
        plans = [_gaussian(setting, loss, ridges[loss], m, miss, draws[loss]) for loss in draws]
        centre = centre_release(setting, kappa)
        profiles = [p.mechanism.profile() for p in plans for _ in range(p.draws)]
        if compose(profiles + ([centre.profile()] if centre else [])).supports(budget):
            return plans, centre
        kappa *= 1 - 1e-9


def _ridge(setting: ConvexSetting, loss: Loss, share: float) -> float:
    r"""Return the ridge with the least expected squared error.

    A larger ridge needs less noise, because the determinant costs log(1 + c_2 B^2 / Lambda) of
    epsilon, but it adds bias. With curvature g_l = n eta A_l, the expected squared error of a
    solution is sum_l A_l (sigma^2 + Lambda^2 signal) / (g_l + Lambda)^2 plus that of the output
    noise.
    """
    budget, value, powers = setting.budget, setting.sensitivity(loss).value, setting.powers

    def error_of(x: float) -> float:
        ridge = loss.smoothness * ROW_BOUND**2 / x
        root = math.sqrt(len(powers))
        if budget.pure:
            left = (1 - _PURE_OUTPUT_SHARE) * share - math.log1p(x)
            sigma = value * root / left if left > 0 else math.inf
            output = (_PURE_OUTPUT_SHARE * share) / root
        else:
            part = Budget(share, budget.delta)  # accurate enough for this choice
            m = objective_multiplier(part, [1.0], [x], setting.relation, gaussian=_OUTPUT_SHARE**2)
            sigma = value / m if m > 0 else math.inf
            output = _OUTPUT_SHARE * m
        if not sigma < math.inf:
            return math.inf
        problem = setting.problem(loss, ridge, sigma * (root + 10))
        if problem.condition > LARGEST_CONDITION:
            return math.inf
        bend = setting.n_rows * 0.4 * loss.smoothness * powers + ridge
        errors = (sigma**2 + ridge**2 * setting.signal) / bend**2
        return float(powers @ (errors + (2 * problem.tolerance / (ridge * output)) ** 2))

    most = min(0.5 * share, _LARGEST_LOG)
    logs = np.geomspace(min(0.01 * share, 0.01), most, _CANDIDATES)
    best = min((math.expm1(float(log)) for log in logs), key=error_of)
    return loss.smoothness * ROW_BOUND**2 / best


def centre_release(setting: ConvexSetting, kappa: float) -> Gaussian | None:
    """Return the release of the mean of the rows, with its share of kappa^2, or None."""
    if not setting.centre_share:
        return None
    found: Gaussian = Gaussian.with_mu(
        bounded_sum(setting.relation, bound=float(STEPS)),
        kappa * math.sqrt(setting.centre_share),
        dimension=len(setting.powers) - 1,
        integer=True,
    )
    return found


def _determinant(loss: Loss, ridge: float) -> float:
    return loss.smoothness * ROW_BOUND**2 / ridge * (1 + 1e-15)


def _gaussian(
    setting: ConvexSetting, loss: Loss, ridge: float, m: float, log_miss: float, draws: int
) -> ObjectivePlan:
    mechanism = ObjectivePerturbation.build(
        setting.sensitivity(loss),
        dimension=len(setting.powers),
        curvature=loss.smoothness * ROW_BOUND**2,
        ridge=ridge,
        m=m,
        output_mu=_OUTPUT_SHARE * m,
        log_miss=log_miss,
        error=lambda sigma, largest: setting.problem(loss, ridge, largest).tolerance,
    )
    largest = mechanism.reach * mechanism.sigma * (1 + 1e-12)
    return ObjectivePlan(loss, mechanism, setting.problem(loss, ridge, largest), draws)


def _pure(
    setting: ConvexSetting, loss: Loss, ridge: float, share: float, draws: int
) -> ObjectivePlan:
    mechanism = PureObjectivePerturbation.build(
        setting.sensitivity(loss),
        share * (1 - 1e-13),
        dimension=len(setting.powers),
        curvature=loss.smoothness * ROW_BOUND**2,
        ridge=ridge,
        error=lambda scale, largest: setting.problem(loss, ridge, largest).tolerance,
        output_share=_PURE_OUTPUT_SHARE,
    )
    largest = mechanism.reach * mechanism.scale * (1 + 1e-12)
    return ObjectivePlan(loss, mechanism, setting.problem(loss, ridge, largest), draws)
