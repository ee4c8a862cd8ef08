r"""Regularised risk minimisation whose minimiser is released with noise, for smooth and other losses.

The objective is ::

    sum_i omega_i loss(y_i, <h_i, beta>) + Lambda ||beta||^2 / 2

``Risk`` is the public part: which smooth loss is minimised, to which tolerance, in at most how many
steps, and how far the minimiser moves. ``minimise_risk`` returns, for every data set, a point at
which the gradient is within the tolerance, hence at most tolerance / Lambda from the minimiser. It
uses the solver of ``objective_perturbation`` without a perturbation, which can't fail.

**Losses with kinks** are replaced by losses with parabolas in their place (``smoothed``). The
stability bound needs convexity and a bound on the slope. Both stay the same, so the bound holds for
the minimiser of the smoothed problem. Privacy does not need a small width; only similarity to the
original loss does.

**Least squares** has no bounded slope in general, but it has one wherever the solver goes. A beta
whose objective is at most that of 0 has norm at most R = M sqrt(n / Lambda). There the gradient of
a record is at most omega ||h|| M + omega ||h||^2 R <= B (M + B R). So the solver runs with the
constants of a Huber loss with that threshold. Weights change nothing: if their root is moved into
row and target, a record is one of plain least squares with sqrt(omega) ||h|| <= B and
``sqrt(omega) |y| <= M``, and the same stability bound holds.

Least squares is one system of linear equations. Let q = 8 u kappa (20 M^(3/2) + k) be at most 1,
where k is the longest chain of additions in a sum of outer products. Then the computed Hessian and
its Cholesky factor are off by at most q / 8 of Lambda (Demmel 1989), so each Newton step leaves at
most a seventh of the gradient plus twice the error of a computed gradient. At first the iterates
may be longer than R, and this error grows with them: by at most q / 8 of Lambda per unit of length,
which still leaves less than half of the gradient. Later it is the e of ``Problem``. So the
tolerance, which is at least 4 e, is reached in a few dozen steps whatever the data are. A product
takes at most BLOCK_ROWS rows, and blocks are added with compensation, however small a stream or a
chunk makes them. On a device they are added without compensation. Losses of other shapes have no
such bound and need ``LARGEST_CONDITION``.

**Other regularisers.** An elastic net can be added, and a squared p-norm can take the place of the
ridge; see ``penalties``. Neither moves the minimiser further.

**Sensitivity.** The smallest of the valid bounds is used. A loss of bounded slope is also bounded
at every minimiser, which gives a smaller bound if Lambda is below about 2 / n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpkernel.data.blocks import BLOCK_ROWS
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Neighbours, is_real
from dpkernel.models.losses import Huber, Loss, Squared
from dpkernel.privacy.sensitivity import Sensitivity, erm_bounded, erm_lipschitz, erm_ridge
from dpkernel.solvers.objective_perturbation import (
    LARGEST_CONDITION,
    Problem,
    Records,
    minimise,
    refuse_endless,
    search,
)
from dpkernel.solvers.penalties import ElasticNet, Penalised, Penalty, SquaredNorm

_ROUGH = 3e-3  # tolerance of a first rough search, relative to the first gradient
_SLACK = 1e-3  # tolerance relative to the gradient of one record; it costs 0.1 % of noise


def smoothed(loss: Loss, width: float) -> Loss:
    """Return a smooth loss as it is, or replace the kinks of a loss by parabolas of this width.

    The bound on the slope stays the same.

    Parameters
    ----------
    loss : Loss
        The loss.
    width : float
        The width of a parabola.

    Raises
    ------
    ParameterError
        If the loss has no bounded slope.
    """
    return loss.smoothed(width)


@dataclass(frozen=True)
class Risk:
    r"""The public part of a problem.

    Parameters
    ----------
    loss : Loss
        A loss of bounded slope, or ``Squared``.
    n_rows, dimension : int
        The numbers of records and of coefficients.
    row_bound : float
        B: omega_i ||h_i|| <= B and omega_i ||h_i||^2 <= B^2 for the weights omega_i in [0, 1].
    ridge : float
        Lambda.
    target_bound : float
        M, a bound on ``|y|``; 1 for labels.
    width : float
        The width of the parabolas that replace kinks, in units of y or of the margin.
    block_rows : int
        The largest number of records whose gradients are added without compensation.
    l1 : float
        The weight of the loss of the coefficients, for a loss of residuals with a bounded slope and
        B >= 1.
    norm : float
        p in (1, 2]. For p < 2 the regulariser is Lambda ||beta||_p^2 / (2 (p - 1)) instead of
        Lambda ||beta||^2 / 2, with corners rounded by the width of the loss. Both are Lambda-strongly
        convex. The loss must have a bounded slope.

    Notes
    -----
    Sensitivity
        2 (c_1 B + tolerance) / Lambda or (c_1 B + 2 tolerance) / Lambda, where c_1 is the largest
        slope (``sensitivity.erm_lipschitz``), or ``sensitivity.erm_bounded`` if that is smaller.
        For least squares it is ``sensitivity.erm_ridge``.
    """

    loss: Loss
    n_rows: int
    dimension: int
    row_bound: float
    ridge: float
    target_bound: float = 1.0
    width: float = 0.1
    block_rows: int = BLOCK_ROWS
    l1: float = 0.0
    norm: float = 2.0

    def __post_init__(self) -> None:
        if not is_real(self.ridge) or not 0 < self.ridge < math.inf:
            allowed = "a float in the range (0, inf)"
            raise ParameterError(parameter_message("Risk", "ridge", allowed, self.ridge))
        if not is_real(self.target_bound) or not 0 < self.target_bound < math.inf:
            allowed = "a float in the range (0, inf)"
            raise ParameterError(
                parameter_message("Risk", "target_bound", allowed, self.target_bound)
            )
        fits = not (self.least_squares or self.loss.labels) and self.row_bound >= 1
        if not is_real(self.l1) or not 0 <= self.l1 < math.inf or (self.l1 and not fits):
            allowed = "0, or a positive float for a loss of residuals of bounded slope"
            raise ParameterError(parameter_message("Risk", "l1", allowed, self.l1))
        if (
            not is_real(self.norm)
            or not 1 < self.norm <= 2
            or (self.norm < 2 and self.least_squares)
        ):
            allowed = "2, or in the range (1, 2) for a loss of bounded slope"
            raise ParameterError(parameter_message("Risk", "norm", allowed, self.norm))
        _ = self.problem  # refuses impossible parameters

    @property
    def least_squares(self) -> bool:
        """Whether the loss is the squared loss."""
        return isinstance(self.loss, Squared)

    @cached_property
    def smooth_loss(self) -> Loss:
        """The loss that is actually minimised."""
        return self.loss if self.least_squares else self.loss.smoothed(self.width)

    @property
    def _constants(self) -> Loss:
        """A loss whose bounds on slope and curvature hold wherever the solver goes."""
        if not self.least_squares:
            return self.smooth_loss
        radius = self.target_bound * math.sqrt(self.n_rows / self.ridge)
        return Huber((self.target_bound + self.row_bound * radius) * (1 + 1e-8))

    @property
    def slope(self) -> float:
        """A bound on the gradient of one record at 0, divided by B; the tolerance is relative to it."""
        return self.target_bound if self.least_squares else self.smooth_loss.lipschitz

    @cached_property
    def problem(self) -> Problem:
        """The problem for the solver; the tolerance and the largest number of steps follow from it."""
        found = Problem(
            self._constants,
            self.n_rows + math.ceil(self.l1) * self.dimension,
            self.row_bound,
            np.full(self.dimension, float(self.ridge)),
            self.target_bound,
            0.0,
            self.block_rows,
            wanted=_SLACK * self.slope * self.row_bound,
        )
        if self.norm == 2:
            return found
        curvature = self._squared_norm.largest_curvature(self.dimension, found.radius)
        return replace(found, penalty=curvature)

    @property
    def _squared_norm(self) -> SquaredNorm:
        corner = getattr(self.smooth_loss, "width", self.width)
        return SquaredNorm(float(self.norm), float(self.ridge), float(corner))

    def penalties(self, loss: Loss) -> tuple[Penalty, ...]:
        """Return what is added to the ridge, if ``loss`` is minimised."""
        net = (ElasticNet(self.l1, loss),) if self.l1 else ()
        return (*net, self._squared_norm) if self.norm < 2 else net

    @property
    def largest_condition(self) -> float:
        """The condition number up to which the solver ends on every data set in practice."""
        if not self.least_squares:
            return LARGEST_CONDITION
        chain = min(self.n_rows, BLOCK_ROWS + self.n_rows / BLOCK_ROWS)
        return float(2.0**50 / (20 * self.dimension**1.5 + chain))

    @property
    def endless(self) -> bool:
        """Whether the problem is refused before anything is spent."""
        return self.problem.condition > self.largest_condition

    def refuse_endless(self, owner: str) -> None:
        """Raise if the solver could end on one data set and not on another."""
        if self.endless and self.norm < 2 and not replace(self, norm=2.0).endless:
            shares = (replace(self, norm=2 - k / 100) for k in range(100))
            least = min(risk.norm for risk in shares if not risk.endless)
            allowed = f"at least {least:.3g} for {self.n_rows} rows and this regularisation"
            advice = "Corners that are too sharp could keep the solver busy for years."
            raise ParameterError(parameter_message(owner, "norm", allowed, self.norm, advice))
        refuse_endless(owner, self.problem, self.largest_condition)

    @property
    def largest_loss(self) -> float:
        """A bound on a weighted loss at any minimiser and any record, for losses of bounded slope."""
        at_zero, slope = self.smooth_loss.at_zero(self.target_bound), self.smooth_loss.lipschitz
        return (at_zero + slope * self.row_bound * self.problem.radius) * (1 + 1e-12)

    def sensitivity(self, neighbours: Neighbours) -> Sensitivity:
        """Return how far the computed minimiser moves."""
        return stacked([self], neighbours)


def stacked(risks: Iterable[Risk], neighbours: Neighbours) -> Sensitivity:
    """Return how far the minimisers of several problems on the same records move as one vector.

    Either all problems have the same row bound, the same ridge and losses of bounded slope, or they
    are the same least squares problem for several targets.

    Parameters
    ----------
    risks : iterable of Risk
        The problems.
    neighbours : Neighbours
        The neighbouring relation.
    """
    each = list(risks)
    first = each[0]
    alike = len(set(each)) == 1
    if not alike and any(
        risk.least_squares or (risk.row_bound, risk.ridge) != (first.row_bound, first.ridge)
        for risk in each
    ):
        raise ParameterError(
            "Problems that are released as one vector need the same row bound, the same ridge and losses"
            " of bounded slope, or must be one least squares problem for several targets."
        )
    row, worst = first.row_bound, max(risk.problem.tolerance for risk in each)
    slopes = [risk.smooth_loss.lipschitz for risk in each]
    if len(set(slopes)) > 1:
        slope, share = math.hypot(*slopes) * (1 + 1e-15), math.sqrt(len(each)) * (1 + 1e-15)
        return erm_lipschitz(
            neighbours, slope=slope, row=row, strength=first.ridge, tolerance=worst * share
        )
    rest = {"strength": first.ridge, "problems": len(each), "tolerance": worst}
    if first.least_squares:
        sizes = {"target": first.target_bound, "n_rows": first.n_rows}
        return erm_ridge(neighbours, row=row, **sizes, **rest)  # type: ignore[arg-type]
    by_slope = erm_lipschitz(neighbours, slope=slopes[0], row=row, **rest)  # type: ignore[arg-type]
    largest = max(risk.largest_loss for risk in each)
    by_value = erm_bounded(neighbours, bound=largest, **rest)  # type: ignore[arg-type]
    return by_value if by_value.value < by_slope.value else by_slope


def minimise_risk(records: Callable[[Loss], Records], risk: Risk) -> Array:
    """Return a point within ``risk.problem.tolerance / risk.ridge`` of the minimiser, always.

    If the parabolas are narrow, a problem with wide parabolas is first solved roughly. From its
    solution far fewer passes over the data are needed. Only the point may be released, not the number
    of steps.

    Parameters
    ----------
    records : callable
        It returns the sums over the data for a given loss.
    risk : Risk
        The problem.
    """
    b, start, problem = np.zeros(risk.dimension), None, risk.problem

    def penalised(loss: Loss) -> Records:
        more = risk.penalties(loss)
        return Penalised(records(loss), more) if more else records(loss)

    wide = _wide(risk.smooth_loss, risk.target_bound)
    if wide is not None:
        rough = replace(
            problem, loss=wide, wanted=_ROUGH * risk.n_rows * risk.slope * risk.row_bound
        )
        start = search(penalised(wide), rough, b)
    return minimise(penalised(risk.smooth_loss), problem, b, start)


def _wide(loss: Loss, target_bound: float) -> Loss | None:
    """Return the loss with wider parabolas, or None if they are already wide."""
    most = 1.0 if loss.labels else target_bound
    if getattr(loss, "width", math.inf) > 0.5 * most:
        return None
    return replace(loss, width=most)  # type: ignore[call-arg]
