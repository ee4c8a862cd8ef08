r"""How far the iterates of stochastic gradient descent move when one record changes.

A *hit* is a step whose batch holds the changed record. Before the first hit the two runs coincide.
A hit moves them apart by at most a = r step G / b. Here G bounds the gradient of a record, b is the
nominal batch size, by which every batch is divided, even a short one, and r is 2 if a record is
replaced and 1 if it is blanked. Between hits both runs take the same step on the same records:

- If the gradient is L-Lipschitz in w and the step is at most 2/L, the runs do not move further
  apart, so k hits give a k. Each iterate after a hit carries it, so the mean of all iterates
  carries a hit at step t with weight (T - t + 1)/T.
- If the gradient is Hölder continuous with exponent below 1, a distance D becomes at most
  sqrt(D^2 + c^2). Because sqrt((D + a)^2 + c^2) <= sqrt(D^2 + c^2) + a, the worst order is one hit,
  then all other steps, then the other hits: sqrt(a^2 + (T - k) c^2) + (k - 1) a. In a batch of
  several records, the unchanged ones expand the distance as well, and T - k becomes T - 1.
- With a ridge and steps min(1/(C + ridge), 1/(ridge t)), where C is the largest curvature, a hit at
  step t counts step_t prod_{s > t} (1 - ridge step_s). This grows with t, so each hit counts at
  most the last step.
- With a ridge and a constant step of at most 1/(C + ridge), the e-th last hit is followed by at
  least e epochs, and each step of them shrinks it by the factor (1 - step ridge).

Several problems on the same batches (one per class) count as one vector, which moves sqrt(problems)
times as far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from scipy.stats import binom

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Neighbours
from dpkernel.privacy.sensitivity.base import (
    UP,
    Parameters,
    RandomSensitivity,
    Sensitivity,
    formula,
    law,
)

_CUT = 1e-18  # cut-off tail probability of a distribution, which is added to delta
_MOST_STEPS = 10**12
_MANY = 2048  # for more hits the distribution is made coarser
_MOST_HITS = 10**7
_CELLS = 512  # cells of a distribution of positions; values are rounded up to them

Order = Literal["shuffle", "fixed", "replacement"]


@dataclass(frozen=True)
class Path:
    """The public description of a run: everything that its sensitivity depends on.

    Parameters
    ----------
    n_rows, batch, steps : int
        The number of rows, of records per step and of steps. All orders except "replacement" pass
        over the rows in epochs.
    order : {"shuffle", "fixed", "replacement"}
        "replacement" draws a fresh uniform batch at every step.
    gradient : float
        G, a bound on the norm of the gradient of one record along the whole run.
    step : float
        The constant step, or the largest step if steps decrease.
    ridge, decreasing
        The strength of the squared penalty, and whether steps decrease with it.
    expansion : float
        c^2, by which a squared distance can grow in a step that is not a hit.
    averaged : bool
        Whether the mean of all iterates is released instead of the last iterate.
    fresh : bool
        Whether the order is secret and drawn for this run alone from the source of noise.
    drop_last : bool
        Whether a short batch at the end of an epoch is left out instead of divided by b.
    problems : int
        The number of vectors that are fitted on the same batches.
    """

    n_rows: int
    batch: int
    steps: int
    order: Order
    gradient: float
    step: float
    ridge: float = 0.0
    decreasing: bool = False
    expansion: float = 0.0
    averaged: bool = False
    fresh: bool = False
    drop_last: bool = False
    problems: int = 1

    @property
    def per_epoch(self) -> int:
        """The number of steps in which every record is used once."""
        whole, rest = divmod(self.n_rows, self.batch)
        return whole if self.drop_last or not rest else whole + 1

    @property
    def hits(self) -> int:
        """The largest number of steps that can use one given record, when there are epochs."""
        return -(-self.steps // self.per_epoch)

    @property
    def last_step(self) -> float:
        """The length of the last step."""
        if self.decreasing:
            return min(self.step, 1 / (self.ridge * self.steps)) * UP
        return self.step

    def sensitivity(self, neighbours: Neighbours) -> Sensitivity | RandomSensitivity:
        """Return how far the output moves, as a number or as a random law."""
        self._check()
        names = {
            f.name: float(getattr(self, f.name))
            for f in fields(self)
            if f.name not in ("order", "fresh")
        }
        parameters = tuple(names.items())
        if self.order == "replacement":
            return RandomSensitivity.of("sgd-sampled", neighbours, parameters)
        if self.averaged and self.fresh and self.order == "shuffle" and self._shuffles_evenly:
            return RandomSensitivity.of("sgd-shuffled", neighbours, parameters)
        return Sensitivity("sgd-epochs", neighbours, parameters)

    @property
    def _shuffles_evenly(self) -> bool:
        return self.n_rows % self.batch == 0 and self.hits <= 64 and self.expansion == 0

    def _check(self) -> None:
        if not 1 <= self.batch <= self.n_rows or self.steps < 1 or self.problems < 1:
            sizes = (self.n_rows, self.batch, self.steps)
            allowed = "1 <= batch <= n_rows, and at least one step"
            raise ParameterError(parameter_message("SGD", "batch, steps", allowed, sizes))
        if self.ridge and self.averaged:
            raise ParameterError(
                "With a ridge the last iterate is released: average must be False."
            )
        if self.ridge and self.expansion:
            raise ParameterError("SGD with a ridge needs a smooth loss, such as 'huber'.")
        if not self.step * self.ridge <= 1 or self.steps > _MOST_STEPS:
            allowed = f"a step of at most 1/ridge, and at most {_MOST_STEPS:.0e} steps"
            got = (self.step, self.ridge, self.steps)
            raise ParameterError(parameter_message("SGD", "step, ridge, steps", allowed, got))


def _read(p: Parameters) -> Path:
    path = Path(
        n_rows=int(p["n_rows"]),
        batch=int(p["batch"]),
        steps=int(p["steps"]),
        order="shuffle",
        gradient=float(p["gradient"]),
        step=float(p["step"]),
        ridge=float(p["ridge"]),
        decreasing=bool(p["decreasing"]),
        expansion=float(p["expansion"]),
        averaged=bool(p["averaged"]),
        drop_last=bool(p["drop_last"]),
        problems=int(p["problems"]),
    )
    numbers = path.gradient, path.step, path.ridge, path.expansion
    path._check()
    if any(int(p[name]) != p[name] for name in ("n_rows", "batch", "steps", "problems")):
        raise ParameterError("The counts of an SGD sensitivity must be whole numbers.")
    if not all(0 <= value < math.inf for value in numbers):
        raise ParameterError("The numbers of an SGD sensitivity must be finite and not negative.")
    return path


def _apart(neighbours: Neighbours, path: Path, step: float) -> float:
    """Return a, the distance by which one hit moves the runs of all problems apart."""
    records = 2 if neighbours is Neighbours.REPLACE_ONE else 1
    return records * step * path.gradient / path.batch * math.sqrt(path.problems)


def _after(path: Path, a: float, hits: Array) -> Array:
    """Return the distance at the last iterate, for each number of hits."""
    if not path.expansion:
        return hits * a
    spread = path.expansion * path.problems
    idle = np.maximum(path.steps - (hits if path.batch == 1 else 1), 0)
    return np.where(hits > 0, np.sqrt(a**2 + idle * spread) + (hits - 1) * a, 0.0)


@formula("sgd-epochs")
def _epochs(neighbours: Neighbours, p: Parameters) -> float:
    """Return the worst distance over all orders in which each epoch uses a record once."""
    path = _read(p)
    a = _apart(neighbours, path, path.last_step)
    hits = path.hits
    if path.ridge and not path.decreasing:
        if path.steps % path.per_epoch:  # after an incomplete epoch no shrinking is certain
            return a * hits * UP
        shrink = path.per_epoch * math.log1p(-min(path.step * path.ridge, 1 - 1e-16))
        if not shrink:
            return a * hits * UP
        return a * math.expm1(hits * shrink) / math.expm1(shrink) * (1 + 1e-9)
    if path.averaged and not path.expansion:
        later = path.per_epoch * hits * (hits - 1) / 2 / path.steps
        return a * (hits - later) * UP
    counts = np.arange(1, min(hits, path.steps) + 1, dtype=np.float64) if path.expansion else hits
    return float(np.max(_after(path, a, np.asarray(counts)))) * UP


@law("sgd-sampled")
def _sampled(neighbours: Neighbours, p: Parameters) -> tuple[list[float], list[float], float]:
    """Return the law for fresh uniform batches, where the number of hits is binomial."""
    path = _read(p)
    rate = path.batch / path.n_rows
    a = _apart(neighbours, path, path.last_step)
    most = _most(path.steps, rate, _CUT)
    if path.averaged and not path.expansion and most <= _MANY:
        cells = min(_CELLS, max(8, 2**17 // most))
        return _scaled(_positions(path.steps, rate, cells), a / cells)
    if most > _MOST_HITS:
        raise ParameterError(
            "A record would be used too often for a law of its hits: take fewer steps."
        )
    # with this many hits, an average counts as the last iterate, which moves slightly further
    hits = np.arange(most + 1)
    weights = binom.pmf(hits, path.steps, rate)
    if not path.expansion and most > _MANY:
        return _scaled(weights, a)
    values = _after(path, a, hits.astype(np.float64)) * UP
    return _complete(values, weights)


@law("sgd-shuffled")
def _shuffled(neighbours: Neighbours, p: Parameters) -> tuple[list[float], list[float], float]:
    """Return the law of an averaged iterate over secret permutations, one per epoch.

    In epoch e a record is at a uniform place u = 1 .. N and counts (T - e N - u + 1)/T, if that
    step is taken at all.
    """
    path = _read(p)
    if not path.averaged or not path._shuffles_evenly:
        raise ParameterError(
            "The law of permutations is for averaged iterates of a smooth loss in batches that"
            " divide the rows."
        )
    a = _apart(neighbours, path, path.last_step)
    total, steps, epoch = np.ones(1), path.steps, path.per_epoch
    for e in range(path.hits):
        left = np.maximum(steps - e * epoch - np.arange(epoch), 0)
        cells = -(-left * _CELLS // steps)
        total = np.convolve(total, np.bincount(cells) / epoch)
    return _scaled(total, a / _CELLS)


def _most(count: int, rate: float, tail: float) -> int:
    """Return the smallest number of hits that is exceeded with probability below ``tail``."""
    low, high = -1, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if binom.sf(middle, count, rate) < tail else (middle, high)
    return high


def _positions(steps: int, rate: float, cells: int) -> Array:
    """Return the law of the sum over hits of (T - t + 1)/T, on a grid per unit, rounded up."""
    ends = [cell * steps // cells for cell in range(cells + 1)]  # largest T - t + 1 in each cell
    counts = np.diff(np.array(ends), prepend=0)
    reach = cells * _most(steps, rate, _CUT) + 1
    law_of = np.zeros(reach)
    law_of[0] = 1.0
    for cell in np.flatnonzero(counts):
        many = int(counts[cell])
        pmf = binom.pmf(np.arange(_most(many, rate, 1e-25) + 1), many, rate)
        fresh = np.zeros(reach)
        for hits, weight in enumerate(pmf):
            shift = hits * int(cell)
            if shift < reach:
                fresh[shift:] += weight * law_of[: reach - shift]
        law_of = fresh
    return law_of


def _scaled(cells: Array, unit: float) -> tuple[list[float], list[float], float]:
    """Return the law of multiples of a unit, merged upwards into a few hundred values."""
    places = np.flatnonzero(cells > 0)
    kept = places[np.unique(np.linspace(0, len(places) - 1, _CELLS).astype(int))]
    starts = np.concatenate(([0], kept[:-1] + 1))
    weights = np.add.reduceat(cells, starts)[: len(kept)]
    return _complete(unit * kept * UP, weights)


def _complete(values: Array, weights: Array) -> tuple[list[float], list[float], float]:
    """Return the law, with the cut-off probability and what is missing to 1 as its tail."""
    tail = max(0.0, 1 - math.fsum(weights)) + 2 * _CUT
    weights = weights * ((1 - tail) / math.fsum(weights))
    return values.tolist(), weights.tolist(), tail
