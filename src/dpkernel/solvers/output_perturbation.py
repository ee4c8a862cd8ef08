r"""Regularised risk minimisation whose minimiser is released with noise: any loss, smooth or not.

    sum_i omega_i loss(y_i, <h_i, beta>) + Lambda ||beta||^2 / 2

``Risk`` is the public side: which smooth loss is minimised, to which tolerance, in how many steps at
most, and how far the minimiser moves. ``minimise_risk`` returns, for every data set, a point at which
the gradient is within the tolerance, so at most tolerance / Lambda from the minimiser: the solver of
``objective_perturbation`` with no perturbation, which can't fail.

A loss with kinks is replaced by one with parabolas in their place (``smoothed``). The stability bound
needs convexity and a bound on the slope and both stay the same, so it holds for the minimiser of the
smoothed problem: privacy does not ask for a small width, only the likeness to the original loss does.

Least squares has no bounded slope. Its minimiser has norm at most M sqrt(n) / (2 sqrt(Lambda)), so that
every residual is within a public bound, and up to that bound the Huber loss is the squared one: both
problems have one minimiser, which the same solver finds. Weights would break this (a long row with a
small weight has a large residual): records of least squares carry none, see ``folded``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from dpkernel.blocks import BLOCK_ROWS
from dpkernel.errors import ParameterError, parameter_message
from dpkernel.losses import (
    Absolute,
    Hinge,
    Huber,
    Loss,
    Pinball,
    PowerAbsolute,
    PowerHinge,
    SmoothedHinge,
    SmoothedInsensitive,
    SmoothedPinball,
    Squared,
)
from dpkernel.sensitivity import Sensitivity, erm_lipschitz, erm_ridge
from dpkernel.solvers.objective_perturbation import Problem, Record, Records, minimise, search
from dpkernel.types import Array, Neighbours, is_real

_ROUGH = 3e-3  # the tolerance of a first rough search, as a share of the first gradient
_SLACK = 1e-3  # the tolerance as a share of one record's gradient: it costs 0.1 % of noise


def smoothed(loss: Loss, width: float) -> Loss:
    """Return the loss itself if it is smooth, or one whose kinks are parabolas of this width.

    The slopes stay within the same bound. Raises for a loss without a bounded slope.
    """
    if loss.lipschitz < math.inf and loss.smoothness < math.inf:
        return loss
    if isinstance(loss, Hinge) or (isinstance(loss, PowerHinge) and loss.q == 1):
        return SmoothedHinge(width)
    if isinstance(loss, Pinball):
        return SmoothedPinball(loss.quantile, width)
    if isinstance(loss, Absolute):
        return SmoothedInsensitive(loss.tube, width)
    if isinstance(loss, PowerAbsolute) and loss.q == 1:
        return SmoothedInsensitive(0.0, width)
    raise ParameterError(
        f"Output perturbation needs a loss of bounded slope, or the squared one: {loss.kind} is"
        " neither. Take huber for power_absolute, squared_hinge for power_hinge."
    )


@dataclass(frozen=True)
class Risk:
    r"""The public side of a problem.

    Parameters
    ----------
    loss : Loss
        Of bounded slope, or ``Squared``.
    n_rows, dimension : int
    row_bound : float
        B: omega_i ||h_i|| <= B and omega_i ||h_i||^2 <= B^2 for the weights omega_i in [0, 1].
    ridge : float
        Lambda.
    target_bound : float
        M: |y| at most; 1 for labels.
    width : float
        Of the parabolas that replace kinks, in units of y or of the margin.
    block_rows : int
        The most records whose gradients are added up without compensation.

    Sensitivity  2 (c_1 B + tolerance) / Lambda or (c_1 B + 2 tolerance) / Lambda with the largest
                 slope c_1: ``sensitivity.erm_lipschitz``; ``sensitivity.erm_ridge`` for least squares.
    """

    loss: Loss
    n_rows: int
    dimension: int
    row_bound: float
    ridge: float
    target_bound: float = 1.0
    width: float = 0.1
    block_rows: int = BLOCK_ROWS

    def __post_init__(self) -> None:
        if not is_real(self.ridge) or not 0 < self.ridge < math.inf:
            allowed = "a float in the range (0, inf)"
            raise ParameterError(parameter_message("Risk", "ridge", allowed, self.ridge))
        if not is_real(self.target_bound) or not 0 < self.target_bound < math.inf:
            allowed = "a float in the range (0, inf)"
            raise ParameterError(
                parameter_message("Risk", "target_bound", allowed, self.target_bound)
            )
        _ = self.problem  # refuses what makes no sense

    @property
    def least_squares(self) -> bool:
        """Whether the loss is the squared one."""
        return isinstance(self.loss, Squared)

    @property
    def smooth_loss(self) -> Loss:
        """The loss that is minimised."""
        if not self.least_squares:
            return smoothed(self.loss, self.width)
        radius = self.target_bound * math.sqrt(self.n_rows / self.ridge) / 2
        return Huber((self.target_bound + self.row_bound * radius) * (1 + 1e-9))

    @property
    def slope(self) -> float:
        """A bound on one record's gradient at 0, over B: what the tolerance is measured against."""
        return self.target_bound if self.least_squares else self.smooth_loss.lipschitz

    @property
    def problem(self) -> Problem:
        """What the solver needs; from it follow the tolerance and the most steps."""
        return Problem(
            self.smooth_loss,
            self.n_rows,
            self.row_bound,
            np.full(self.dimension, float(self.ridge)),
            self.target_bound,
            0.0,
            self.block_rows,
            wanted=_SLACK * self.slope * self.row_bound,
        )

    def sensitivity(self, neighbours: Neighbours) -> Sensitivity:
        """Return how far the computed minimiser moves."""
        tolerance, row = self.problem.tolerance, self.row_bound
        if self.least_squares:
            return erm_ridge(
                neighbours,
                row=row,
                target=self.target_bound,
                strength=self.ridge,
                n_rows=self.n_rows,
                tolerance=tolerance,
            )
        slope = self.smooth_loss.lipschitz
        return erm_lipschitz(
            neighbours, slope=slope, row=row, strength=self.ridge, tolerance=tolerance
        )


def stacked(risks: Iterable[Risk], neighbours: Neighbours) -> Sensitivity:
    """Return how far the minimisers of several problems on the same records move as one vector.

    All have one row bound, one ridge and losses of bounded slope.
    """
    each = list(risks)
    first = each[0]
    if any(risk.least_squares for risk in each) or any(
        (risk.row_bound, risk.ridge) != (first.row_bound, first.ridge) for risk in each
    ):
        raise ParameterError(
            "Problems that are released as one vector need one row bound, one ridge and losses of"
            " bounded slope."
        )
    slopes = [risk.smooth_loss.lipschitz for risk in each]
    worst = max(risk.problem.tolerance for risk in each)
    same = len(set(slopes)) == 1
    slope = slopes[0] if same else math.hypot(*slopes) * (1 + 1e-15)
    return erm_lipschitz(
        neighbours,
        slope=slope,
        row=first.row_bound,
        strength=first.ridge,
        problems=len(each) if same else 1,
        tolerance=worst if same else worst * math.sqrt(len(each)) * (1 + 1e-15),
    )


def minimise_risk(records: Callable[[Loss], Records], risk: Risk) -> Array:
    """Return a point within ``risk.problem.tolerance / risk.ridge`` of the minimiser, always.

    ``records`` returns the sums over the data for a loss. Where parabolas are narrow a wide one is
    minimised first, roughly: a start from which far fewer passes over the data are needed. Nothing but
    the point may leave: not the number of steps.
    """
    b, start, problem = np.zeros(risk.dimension), None, risk.problem
    wide = _wide(problem.loss, risk.target_bound)
    if wide is not None:
        rough = replace(
            problem, loss=wide, wanted=_ROUGH * risk.n_rows * risk.slope * risk.row_bound
        )
        start = search(records(wide), rough, b)
    return minimise(records(problem.loss), problem, b, start)


def _wide(loss: Loss, target_bound: float) -> Loss | None:
    """Return the loss with wider parabolas, or None where they are wide."""
    most = 1.0 if loss.labels else target_bound
    if getattr(loss, "width", math.inf) > 0.5 * most:
        return None
    return replace(loss, width=most)  # type: ignore[call-arg]


def folded(blocks: Iterable[Record], row_bound: float, target_bound: float) -> Iterator[Record]:
    """Yield records of least squares without weights: the root of the weight goes into row and target.

    Rows are then within the bound and targets as well, both enforced here.
    """
    for rows, y, weights in blocks:
        z, target = rows.astype(np.float64), np.asarray(y, dtype=np.float64)
        if weights is not None:
            root = np.sqrt(weights)
            z, target = z * root[:, None], target * root
        with np.errstate(all="ignore"):
            norms = np.sqrt(np.add.reduce(z * z, axis=1))
            strange = ~(norms < 1e100)
            z[strange] = 0.0
            factor = row_bound * (1 - 2.0**-40) / np.maximum(norms, row_bound * (1 - 2.0**-40))
            z = np.where(strange[:, None], 0.0, z * np.where(strange, 0.0, factor)[:, None])
        yield z, np.clip(np.nan_to_num(target), -target_bound, target_bound), None
