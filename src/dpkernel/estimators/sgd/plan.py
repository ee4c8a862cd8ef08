"""Steps, penalty and noise of a private SGD fit, from public numbers alone.

What is left to "auto" minimises an expected squared error. Let A_l be the power of a coordinate
under the public measure of the inputs, and h_l = 0.4 c_2 A_l its curvature. The expected error of a
fit is

    sum_l A_l (signal bias_l^2 + variance_l)

The bias is ridge/(h_l + ridge) with a ridge, and exp(-step T h_l) for T small steps without one.
For noisy gradients, bias and variance follow from the recursion of each coordinate. Steps with
momentum are at most 1/c_2, where they are stable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dpkernel.estimators.records import ROW_BOUND
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.models.losses import Loss
from dpkernel.privacy.mechanisms import (
    Gaussian,
    L2Gamma,
    MixtureGaussian,
    SampledGaussian,
    require_accepted,
)
from dpkernel.privacy.profiles import gaussian_mu
from dpkernel.privacy.sensitivity import RandomSensitivity, bounded_sum
from dpkernel.solvers.sgd_gradient import GradientSGD
from dpkernel.solvers.sgd_output import OutputSGD

_CURVATURE = 0.4  # the share of records in the curved part of the loss
_EPOCHS = (5, 30)
MOST_DRAWN = 2**30  # the most row numbers of fresh batches, all of which are kept in memory
_STEPS = (1, 2, 3, 5, 8, 12, 18, 27, 40, 60, 90, 140, 200, 300)
_MOMENTA = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98)

OutputMechanism = Gaussian | MixtureGaussian | L2Gamma
GradientMechanism = Gaussian | SampledGaussian


@dataclass(frozen=True)
class SGDSetting:
    """What is public about the data, and what the user asked for (None stands for "auto").

    Parameters
    ----------
    owner : str
        The estimator that error messages name.
    budget, relation, n_rows
        The budget, the neighbouring relation and the number of rows.
    powers : ndarray
        A_l, the mean of z_l^2 under the public measure of the inputs.
    signal : float
        A guess of the mean square of the best coefficients.
    loss : Loss
    problems : int
    epochs : int or None
    steps : int or None
        The number of steps. It overrides ``epochs``.
    batch : int or None
    step, ridge, clip, momentum : float or None
    radius : float
    averaged, drop_last : bool
    sampling : str
        How batches are chosen. For gradients, "auto" means Poisson batches under zero-out, where
        batches of a fixed size need about twice the noise, and batches of a fixed size otherwise.
    accept : tuple of str
    """

    owner: str
    budget: Budget
    relation: Neighbours
    n_rows: int
    powers: Array
    signal: float
    loss: Loss
    problems: int = 1
    epochs: int | None = None
    steps: int | None = None
    batch: int | None = None
    step: float | None = None
    ridge: float | None = None
    clip: float | None = None
    momentum: float | None = None
    radius: float = math.inf
    averaged: bool = False
    drop_last: bool = False
    sampling: str = "auto"
    accept: tuple[str, ...] = ()

    @property
    def dimension(self) -> int:
        """How many numbers are released."""
        return self.problems * len(self.powers)

    @property
    def bend(self) -> Array:
        """The curvatures h_l."""
        smoothness = self.loss.smoothness
        return _CURVATURE * (smoothness if smoothness < math.inf else 1.0) * self.powers

    def noise_of(self, sensitivity: float) -> float:
        """Return roughly the standard deviation of the noise of one coordinate."""
        if self.budget.pure:
            return sensitivity * math.sqrt(self.dimension) / self.budget.epsilon
        return sensitivity / gaussian_mu(self.budget.epsilon, self.budget.delta)


def plan_output(setting: SGDSetting) -> tuple[OutputSGD, OutputMechanism]:
    """Return the run and the noise for its output."""
    batch = setting.batch or 1
    order = "shuffle" if setting.sampling == "auto" else setting.sampling
    whole, rest = divmod(setting.n_rows, batch)
    per_epoch = whole if setting.drop_last or not rest else whole + 1
    steps = setting.steps or per_epoch * (setting.epochs or _auto_epochs(setting))
    if order == "replacement" and steps * batch > MOST_DRAWN:
        allowed = f"such that fresh batches have at most {MOST_DRAWN} rows in all"
        got = f"{steps} batches of {batch}"
        raise ParameterError(parameter_message(setting.owner, "max_iter", allowed, got))
    draft: dict[str, Any] = {
        "loss": setting.loss,
        "n_rows": setting.n_rows,
        "n_coordinates": len(setting.powers),
        "row_bound": ROW_BOUND,
        "target_bound": 1.0,
        "batch": batch,
        "n_steps": steps,
        "order": order,
        "radius": setting.radius,
        "averaged": setting.averaged,
        "fresh": order == "replacement" or (setting.averaged and not setting.budget.pure),
        "drop_last": setting.drop_last,
        "problems": setting.problems,
    }
    candidates = _output_candidates(setting, draft)
    plan = min(candidates, key=lambda plan: _output_error(setting, plan))
    sensitivity = plan.sensitivity(setting.relation)
    if setting.budget.pure:
        if isinstance(sensitivity, RandomSensitivity):
            allowed = "'shuffle' or 'fixed' for delta = 0, which has no law of hits"
            raise ParameterError(
                parameter_message(setting.owner, "sampling", allowed, setting.sampling)
            )
        require_accepted(L2Gamma, setting.accept)
        return plan, L2Gamma.calibrate(
            sensitivity, setting.budget, dimension=setting.dimension, accept=setting.accept
        )
    cls: Any = MixtureGaussian if isinstance(sensitivity, RandomSensitivity) else Gaussian
    mechanism: OutputMechanism = cls.calibrate(
        sensitivity,
        setting.budget,
        dimension=setting.dimension,
        rounding=plan.rounding,
        magnitude=plan.norm_bound,
    )
    return plan, mechanism


def _auto_epochs(setting: SGDSetting) -> int:
    """Return enough passes to make the spread of SGD itself small beside the noise.

    The last iterate has a spread of about G/(ridge sqrt(T)). The noise is 2 G sqrt(M)/(ridge n mu).
    """
    scale = setting.budget.epsilon / math.sqrt(setting.dimension)
    if not setting.budget.pure:
        scale = gaussian_mu(setting.budget.epsilon, setting.budget.delta)
    low, high = _EPOCHS
    return int(min(max(low, math.ceil(4 * setting.n_rows * scale**2 / setting.dimension)), high))


def _output_candidates(setting: SGDSetting, draft: dict[str, Any]) -> list[OutputSGD]:
    """Return the runs among which the expected error chooses; a single one if nothing is "auto"."""
    smooth = setting.loss.smoothness < math.inf
    ridged = smooth and setting.loss.lipschitz < math.inf and not setting.averaged
    if setting.ridge is not None or (setting.step is not None):
        return [OutputSGD(step=setting.step, ridge=setting.ridge or 0.0, **draft)]
    if ridged:
        return [OutputSGD(ridge=float(r), **draft) for r in np.geomspace(1e-4, 10.0, 31)]
    largest = OutputSGD(step=1e-12, **draft).largest_step
    if not smooth:
        largest = min(largest, 10.0 / math.sqrt(draft["n_steps"]))
    found = []
    for step in largest * np.geomspace(1e-6, 1 - 1e-9, 49):
        found.append(OutputSGD(step=float(step), **draft))
    return found


def _output_error(setting: SGDSetting, plan: OutputSGD) -> float:
    fixed = replace(plan, order="shuffle", fresh=False).sensitivity(setting.relation)
    noise = setting.noise_of(fixed.value) ** 2
    bend = setting.bend
    if plan.ridge:
        bias = plan.ridge / (bend + plan.ridge)
    else:
        travelled = np.maximum(plan.eta * plan.n_steps * bend, 1e-12)
        bias = -np.expm1(-travelled) / travelled if plan.averaged else np.exp(-travelled)
    return float(np.sum(setting.powers * (setting.signal * bias**2 + noise)))


def plan_gradient(setting: SGDSetting) -> tuple[GradientSGD, GradientMechanism]:
    """Return the run, and the noise of every step."""
    if setting.budget.pure:
        allowed = "above 0 with perturbation='gradient'"
        advice = (
            "Many pure steps would need much more noise. perturbation='output' has a pure form."
        )
        raise ParameterError(parameter_message(setting.owner, "delta", allowed, 0.0, advice))
    n = setting.n_rows
    batch = setting.batch or n
    loss = setting.loss
    clip = setting.clip
    if clip is None:
        slope = loss.lipschitz if loss.lipschitz < math.inf else loss.slope_at_zero(1.0) / 2
        clip = slope * ROW_BOUND * math.sqrt(setting.problems)
    counts: Sequence[int] = _STEPS if setting.epochs is None else (setting.epochs,)
    if batch < n:
        per_epoch = -(-n // batch)
        counts = (per_epoch * (setting.epochs or 10),)
    if setting.steps is not None:
        counts = (setting.steps,)
    smoothness = loss.smoothness if loss.smoothness < math.inf else 1.0
    ridge = setting.ridge or 0.0
    if setting.step is not None:
        lengths = np.array([setting.step])
    else:
        lengths = np.geomspace(0.02, 1.9, 24) / (smoothness + ridge)
        lengths = np.minimum(lengths, 1 / ridge) if ridge else lengths
    momenta = (setting.momentum,) if setting.momentum is not None else _MOMENTA
    drafts = [
        GradientSGD(
            loss, len(setting.powers), ROW_BOUND, clip, batch, steps, 1e-9, ridge, setting.radius,
            setting.averaged, setting.problems,
        )
        for steps in counts
    ]  # fmt: skip
    mechanisms = [_step_noise(setting, draft, batch) for draft in drafts]
    units = [batch * draft.row_unit * draft.slope_unit for draft in drafts]
    spreads = [m.noise_scale / unit for m, unit in zip(mechanisms, units, strict=True)]
    best = math.inf, 0, 0.0, 0.0
    for momentum in momenta:
        stable = lengths
        if momentum and setting.step is None:
            stable = lengths[lengths <= 1 / smoothness]
        errors = _gradient_errors(setting, counts, spreads, stable, ridge, momentum)
        for step, row in zip(stable, errors, strict=True):
            place = int(np.argmin(row))
            best = min(best, (float(row[place]), place, float(step), momentum))
    _, place, step, momentum = best
    return replace(drafts[place], step=step, momentum=momentum), mechanisms[place]


def _step_noise(setting: SGDSetting, plan: GradientSGD, batch: int) -> GradientMechanism:
    """Return the mechanism of one step; ``plan.n_steps`` of them fit the budget."""
    sensitivity = bounded_sum(setting.relation, bound=float(plan.clip_steps))
    if batch == setting.n_rows and setting.sampling != "poisson":
        mu = gaussian_mu(setting.budget.epsilon, setting.budget.delta)
        share = mu / math.sqrt(plan.n_steps) * (1 - 1e-12)
        found: Gaussian = Gaussian.with_mu(
            sensitivity, share, dimension=setting.dimension, integer=True
        )
        return found
    chosen = setting.sampling
    if chosen == "auto" and setting.relation is not Neighbours.REPLACE_ONE:
        chosen = "poisson"
    return SampledGaussian.calibrate(
        sensitivity,
        setting.budget,
        dimension=setting.dimension,
        n_rows=setting.n_rows,
        batch=batch,
        sampling="poisson" if chosen == "poisson" else "fixed",
        steps=plan.n_steps,
    )


def _gradient_errors(
    setting: SGDSetting,
    counts: Sequence[int],
    spreads: Sequence[float],
    steps: Array,
    ridge: float,
    momentum: float,
) -> Array:
    """Return the expected error for each length of a step (rows) and number of steps (columns).

    The error e_t = w_t - w* of a coordinate follows a linear recursion. After t steps, ``left`` is
    what remains of an initial error of size 1, and ``echo`` is the effect of one unit of noise in
    one gradient.
    """
    bend = setting.bend + ridge
    step = steps[:, None]
    keep = 1 - step * bend
    wanted = dict(zip(counts, spreads, strict=True))
    goal = setting.bend / np.maximum(bend, 1e-300)  # the share that a ridge lets through
    left = old_left = np.ones_like(keep)
    echo, old_echo = np.zeros_like(keep) + step, np.zeros_like(keep)
    noise = np.zeros_like(keep)
    found = {}
    with np.errstate(all="ignore"):  # the error of steps that are far too long overflows
        for t in range(1, max(counts) + 1):
            left, old_left = keep * (left + momentum * (left - old_left)), left
            noise = noise + echo**2
            echo, old_echo = keep * (echo + momentum * (echo - old_echo)), echo
            if t in wanted:
                bias = goal * left + (1 - goal)
                error = setting.signal * bias**2 + wanted[t] ** 2 * noise
                total = np.sum(setting.powers * error, axis=1)
                found[t] = np.nan_to_num(total, nan=math.inf)
    return np.stack([found[count] for count in counts], axis=1)
