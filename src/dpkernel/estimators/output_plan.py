"""Noise, ridge and tolerance of a fit by output perturbation, from public numbers alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpkernel.estimators.objective_plan import ConvexSetting, centre_release
from dpkernel.estimators.records import ROW_BOUND
from dpkernel.foundations.types import Array, Budget
from dpkernel.models.losses import Loss, Squared
from dpkernel.privacy.mechanisms import IDEALISED, Gaussian, L2Gamma, Laplace
from dpkernel.privacy.profiles import compose, gaussian_mu
from dpkernel.privacy.sensitivity import Sensitivity, erm_prediction
from dpkernel.solvers.output_perturbation import Risk, stacked

_CANDIDATES = 60
_BEND = 0.4  # the share of margins or residuals, per unit, where a loss bends (squared loss: all)
_MOST_BEND = {True: 1.0, False: 5.0}  # for labels, and for residuals of targets in [-1, 1]
_LARGEST_EPSILON = 1e11  # beyond it, double precision adds no accuracy


@dataclass(frozen=True)
class OutputPlan:
    """One noisy vector that holds the minimisers of all problems, one after the other."""

    mechanism: Gaussian | L2Gamma | Laplace
    risks: tuple[Risk, ...]

    def split(self, released: Array) -> list[Array]:
        """Return the solution of each problem."""
        return np.split(released, len(self.risks))


def plan_outputs(
    setting: ConvexSetting, losses: Sequence[Loss], ridge: float | None, accept: Iterable[str]
) -> tuple[OutputPlan, Gaussian | None]:
    """Return the plan of all problems, and the release of the centre if it has a share.

    All problems have the same ridge Lambda; by default it is chosen from public numbers, at no
    privacy cost.
    """
    budget, accept = setting.budget, tuple(accept)
    chosen = _ridge(setting, losses, accept) if ridge is None else ridge
    risks = tuple(_risk(setting, loss, chosen) for loss in losses)
    for risk in risks:
        risk.refuse_endless(setting.owner)
    sensitivity = stacked(risks, setting.relation)
    dimension = len(losses) * len(setting.powers)
    if budget.pure:
        return OutputPlan(_pure(sensitivity, budget, dimension, accept), risks), None
    mu = _mu(budget)
    while True:
        part = mu * math.sqrt(1 - setting.centre_share)
        mechanism = Gaussian.with_mu(sensitivity, part, dimension=dimension)
        centre = centre_release(setting, mu)
        profiles = [mechanism.profile()] + ([centre.profile()] if centre else [])
        if compose(profiles).supports(budget):
            return OutputPlan(mechanism, risks), centre
        mu *= 1 - 1e-9


def _pure(
    sensitivity: Sensitivity, budget: Budget, dimension: int, accept: tuple[str, ...]
) -> L2Gamma | Laplace:
    """Return noise of pure epsilon: exact, or with less noise where idealised arithmetic is accepted.

    The l1 norm of a vector is its largest product with a vector of signs, whose norm is the root of
    the dimension. So the minimiser moves in the l1 norm by at most that root times its l2
    sensitivity. Laplace noise is exact in floating point; its standard deviation is sqrt(2) times
    that of ``L2Gamma``.
    """
    if IDEALISED in accept:
        return L2Gamma.calibrate(sensitivity, budget, dimension=dimension, accept=accept)
    reach = math.nextafter(math.sqrt(dimension), math.inf)
    moved = erm_prediction(sensitivity, reach=reach, norm="l1")
    return Laplace.calibrate(moved, budget, dimension=dimension)


_MOST_NOISE = 1e150  # its square is still finite


def _mu(budget: Budget) -> float:
    return gaussian_mu(min(budget.epsilon, _LARGEST_EPSILON), budget.delta)


def _risk(setting: ConvexSetting, loss: Loss, ridge: float) -> Risk:
    size = len(setting.powers)
    sizes = setting.n_rows, size, ROW_BOUND, ridge, setting.target_bound
    return Risk(loss, *sizes, l1=setting.l1, norm=setting.norm)


def _bend(loss: Loss) -> float:
    if isinstance(loss, Squared):
        return loss.smoothness
    return _BEND * min(loss.smoothness, _MOST_BEND[loss.labels])


def _ridge(setting: ConvexSetting, losses: Sequence[Loss], accept: tuple[str, ...]) -> float:
    r"""Return the ridge with the least expected squared error.

    A larger ridge needs less noise but adds bias. With curvature g_l = n eta A_l, the expected
    squared error of the solution is sum_l A_l (sigma^2 + Lambda^2 signal / (g_l + Lambda)^2).
    Unlike in objective perturbation, the noise does not shrink where the data are informative.
    """
    budget, powers = setting.budget, setting.powers
    size = len(losses) * len(powers)
    pure = math.sqrt(size + 1 if IDEALISED in accept else 2 * size) / budget.epsilon
    per_unit = pure if budget.pure else 1 / _mu(budget)
    per_unit /= math.sqrt(1 - setting.centre_share)
    curved = setting.n_rows * min(_bend(loss) for loss in losses) * powers

    def error_of(ridge: float) -> float:
        risks = [_risk(setting, loss, ridge) for loss in losses]
        if any(risk.endless for risk in risks):
            return math.inf
        sigma = stacked(risks, setting.relation).value * per_unit
        bias = setting.signal * (ridge / (curved + ridge)) ** 2
        return float(powers @ (min(sigma, _MOST_NOISE) ** 2 + bias))

    candidates = np.geomspace(1e-3, 1e4 * setting.n_rows, _CANDIDATES)
    return min((float(c) for c in candidates), key=error_of)
