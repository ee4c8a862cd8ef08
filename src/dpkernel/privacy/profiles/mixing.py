r"""The profile of Gaussian mixing: k random combinations of all records, plus noise.

The rows of the release S X + sigma_0 N are independent draws of N(0, X^T X + sigma_0^2 I). After
whitening by the Gram matrix of the other records, one record of norm at most C turns k draws of
N(0, 1) into k draws of N(0, 1 + t) with t <= C^2 / sigma_0^2. The profile therefore depends on k
and t only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, Neighbours, is_real, is_whole
from dpkernel.privacy import pld
from dpkernel.privacy.profiles.base import PrivacyProfile, bisect

_MOST_ROWS = 10**8
# nodes for the loss of each factor of a product pair; the error of delta falls with their square
_NODES = 1500
_CUT = 1e-26  # nodes lie between these quantiles of the losses


@dataclass(frozen=True)
class MixingProfile(PrivacyProfile):
    r"""``rows`` draws of N(0, 1 + ratio) against as many of N(0, 1), at every epsilon.

    Parameters
    ----------
    rows : int
        The number k of rows of the sketch.
    ratio : float
        The ratio t = C^2 / sigma_0^2.
    neighbours : str
        The neighbouring relation.

    Notes
    -----
    Under zero-out and add-remove a record is present or absent. Let l = k/2 log(1 + t), let F be
    the chi-squared distribution function with k degrees of freedom, let w = 2 (1 + t)/t (epsilon +
    l)_+ and let w' be the same with l - epsilon. Then ::

        delta_+ = 1 - F(w/(1 + t)) - e^epsilon (1 - F(w)),   delta_- = F(w') - e^epsilon F(w'/(1 + t))

    are exact for the two directions, and delta is the larger one. A replaced record makes one
    direction of the whitened covariance larger and another smaller, each by a factor of at most
    1 + t, so the product of one "+" pair and one "-" pair dominates.

    Numerics
        w and F are known up to 1e-11 + 2^-50 (k + w) of their values, and this error is added where
        it enlarges delta. For the product pair, delta is an expectation of the convex function
        ``delta_-``. It is bounded by chords between 3000 nodes, which costs at most 1e-4 of it.
        Where delta can't be computed, it counts as 1.
    Composition
        k draws and k' draws at the same ratio are k + k' draws. Otherwise a PLD or Renyi bounds are
        used.

    References
    ----------
    Lev et al. (2025) for the Renyi bound; the profile is derived here.
    """

    kind: ClassVar[str] = "gaussian-mixing"
    precision: ClassVar[float] = 1e-11
    rows: int
    ratio: float
    neighbours: str

    def __post_init__(self) -> None:
        relation = Neighbours.resolve(self.neighbours)
        if not is_whole(self.rows) or not 1 <= self.rows <= _MOST_ROWS:
            allowed = f"an int from 1 to {_MOST_ROWS}"
            raise ParameterError(parameter_message("MixingProfile", "rows", allowed, self.rows))
        if not is_real(self.ratio) or not 1e-200 <= self.ratio <= 1e200:
            allowed = "a float in the range [1e-200, 1e200]"
            raise ParameterError(parameter_message("MixingProfile", "ratio", allowed, self.ratio))
        object.__setattr__(self, "rows", int(self.rows))
        object.__setattr__(self, "ratio", float(self.ratio))
        object.__setattr__(self, "neighbours", relation.value)

    @property
    def replaces(self) -> bool:
        """Whether neighbours replace a record, so that the pair is a product."""
        return self.neighbours == Neighbours.REPLACE_ONE.value

    def delta(self, epsilon: float) -> float:
        """Return delta at this epsilon, rounded up."""
        if self.replaces:
            return _product_delta(self.rows, self.ratio, float(epsilon))
        at = np.array([float(epsilon)])
        sides = (f(self.rows, self.ratio, at)[0] for f in (growing_delta, shrinking_delta))
        return float(max(sides))

    def rdp(self, order: float) -> float:
        """Return the larger Renyi divergence of the two directions, or their sum for a product."""
        k, t = self.rows, self.ratio
        grown = math.log1p(t)
        plus = minus = math.inf
        if (order - 1) * t < 1:
            plus = k * (-math.log1p(-(order - 1) * t) / (2 * (order - 1)) - grown / 2)
        minus = k * (order * grown - math.log1p(order * t)) / (2 * (order - 1))
        # both terms of each difference are accurate to a few ulps; the difference may be much smaller
        slack = 1e-14 * k * order / (order - 1) * grown + (
            1e-14 * abs(plus) if plus < math.inf else 0
        )
        if self.replaces:
            return max(plus, 0.0) + max(minus, 0.0) + 2 * slack
        return max(plus, minus, 0.0) + slack

    @property
    def fineness(self) -> float:
        """The usual grid step, or a fiftieth of the loss's standard deviation if that is smaller."""
        return min(pld.STEP, self._deviation / 50)

    @property
    def _deviation(self) -> float:
        return self.ratio * math.sqrt(self.rows / 2)

    def pld(self, step: float = pld.STEP) -> pld.Distribution | None:
        """Return both directions, or for a product pair the convolution of both factors."""
        k, t = self.rows, self.ratio
        reach = MixingProfile(k, t, Neighbours.ZERO_OUT.value).epsilon(1e-17)
        if not reach < 200:
            return None

        def grows(epsilons: Array) -> Array:
            return growing_delta(k, t, epsilons)

        def shrinks(epsilons: Array) -> Array:
            return shrinking_delta(k, t, epsilons)

        if not self.replaces:
            return pld.from_profile(grows, reach, step, reverse=shrinks)
        return pld.convolve([pld.from_profile(side, reach, step) for side in (grows, shrinks)])

    def repeat(self, count: int) -> PrivacyProfile:
        """Return the profile of ``count`` releases, which exactly has that many times the rows."""
        if count < 1:
            return super().repeat(count)
        return MixingProfile(self.rows * count, self.ratio, self.neighbours)

    def to_dict(self) -> JSON:
        """Return the kind, the number of rows, the ratio and the relation."""
        return {
            "kind": self.kind,
            "rows": self.rows,
            "ratio": self.ratio,
            "neighbours": self.neighbours,
        }


def growing_delta(rows: int, ratio: float, epsilon: Array) -> Array:
    """Return ``delta_+``, the hockey-stick divergence of N(0, 1 + t)^k from N(0, 1)^k, rounded up."""
    shift = rows / 2 * math.log1p(ratio)
    # the threshold of the squared norm over 1 + t; the loss is known to a few ulps of both terms
    near = 2 / ratio * np.maximum(epsilon + shift, 0.0)
    loss = np.maximum(2.0**-50 * (np.abs(epsilon) + shift) * 2 / ratio, 0.0)
    high = _up(rows, near - loss, gammaincc)
    low = _down(rows, (near + loss) * (1 + ratio), gammaincc)
    return _stick(high, low, epsilon)


def shrinking_delta(rows: int, ratio: float, epsilon: Array) -> Array:
    """Return ``delta_-``, the hockey-stick divergence of N(0, 1)^k from N(0, 1 + t)^k, rounded up."""
    shift = rows / 2 * math.log1p(ratio)
    near = 2 / ratio * np.maximum(shift - epsilon, 0.0)
    loss = np.maximum(2.0**-50 * (np.abs(epsilon) + shift) * 2 / ratio, 0.0)
    high = _up(rows, (near + loss) * (1 + ratio), gammainc)
    low = _down(rows, near - loss, gammainc)
    return np.where(epsilon > shift * (1 + 1e-12), 0.0, _stick(high, low, epsilon))


def _stick(high: Array, low: Array, epsilon: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        other = np.where(low > 0, np.exp(np.minimum(epsilon, 700.0)) * (1 - 2.0**-49) * low, 0.0)
        # at least the delta of equal data, and never 0: a value that underflowed is not really zero
        floor = np.maximum(-np.expm1(np.minimum(epsilon, 0.0)) * (1 + 1e-15), 5e-324)
        value = np.maximum(high - np.where(np.isfinite(other), other, 0.0), floor)
    return np.asarray(np.minimum(value * (1 + 4e-16), 1.0))


def _error(rows: int, x: Array) -> Array:
    """Return a bound on the relative error of the distribution function at a rounded x."""
    return np.minimum(1e-11 + 2.0**-50 * (rows + np.abs(x)), 1.0)


def _up(rows: int, x: Array, function: np.ufunc) -> Array:
    x = np.maximum(x, 0.0)
    return np.asarray(np.minimum(function(rows / 2, x / 2) * (1 + _error(rows, x)), 1.0))


def _down(rows: int, x: Array, function: np.ufunc) -> Array:
    x = np.maximum(x, 0.0)
    return np.asarray(function(rows / 2, x / 2) * (1 - _error(rows, x)))


@lru_cache(maxsize=4096)
def _product_delta(rows: int, ratio: float, epsilon: float) -> float:
    r"""Return the delta of the product of a growing and a shrinking pair, rounded up.

    With L the loss of the growing pair (P, Q), delta(epsilon) = E_P delta_-(epsilon - L). As a
    function of gamma = e^(epsilon - L), delta_- is convex and decreasing, so on a cell between two
    nodes it lies below its chord. The expectation of the chord follows from the masses of the cell
    under P and under Q, because e^-L = dQ/dP.
    """
    k, t = rows, ratio
    shift = k / 2 * math.log1p(t)
    slope = t / (2 * (1 + t))  # L = slope s - shift, s the squared norm
    ends = [float(f(k / 2, _CUT)) * 2 for f in (gammaincinv, gammainccinv)]
    lows, highs = [slope * (1 + t) * end - shift for end in ends]  # range of L under P
    # the range of L in which epsilon - L passes through the losses shift - slope s of the other pair
    others = np.linspace(shift - slope * ends[1], shift - slope * ends[0], _NODES)
    nodes = np.concatenate([np.linspace(lows, highs, _NODES), epsilon - others])
    # from the smallest possible loss to the largest one that is considered
    nodes = np.unique(np.clip(nodes, max(lows, -shift), max(highs, -shift + 1e-300)))
    s = np.maximum((nodes + shift) / slope, 0.0)
    values = shrinking_delta(k, t, epsilon - nodes)  # increasing in the node
    values = np.minimum(np.maximum.accumulate(values), 1.0)
    total = float(values[0]) * float(_up(k, s[:1] / (1 + t), gammainc)[0])
    total += float(_up(k, s[-1:] / (1 + t), gammaincc)[0])
    mass, spread = _cells(k, s / (1 + t))
    other, other_spread = _cells(k, s)
    # the share of a cell's mass that goes to its lower node, where gamma is larger
    width = -np.expm1(nodes[:-1] - nodes[1:])  # (gamma_i - gamma_i+1) / gamma_i
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        tilt = np.exp(np.minimum(nodes[:-1], 700.0))  # e^epsilon Q / gamma_i = e^L_i Q
        keep = np.exp(nodes[:-1] - nodes[1:])
        # E hat_i = (e^L_i Q - e^(L_i - L_i+1) P) / width, minus what rounding may have added
        below = (tilt * other - keep * mass) / width
        doubt = (tilt * other_spread + keep * spread) / width + 1e-12 * mass / width
        below = np.clip(np.nan_to_num(below - doubt, nan=0.0), 0.0, mass)
    cells = values[1:] * (mass + spread) - (values[1:] - values[:-1]) * below
    total += math.fsum(np.maximum(cells, 0.0))
    floor = -math.expm1(min(epsilon, 0.0)) * (1 + 1e-15)
    total = total * (1 + 1e-12) if math.isfinite(total) else 1.0
    return min(max(total, floor, 5e-324), 1.0)


def _cells(rows: int, x: Array) -> tuple[Array, Array]:
    """Return the chi-squared mass between neighbouring points, and a bound on its error.

    The masses are differences of the smaller tail, so small masses are as accurate as large ones.
    """
    head, tail = gammainc(rows / 2, x / 2), gammaincc(rows / 2, x / 2)
    mass = np.where(head[1:] < 0.5, np.diff(head), -np.diff(tail))
    size = np.where(head[1:] < 0.5, head[1:], tail[:-1])
    return np.maximum(mass, 0.0), np.asarray(2 * _error(rows, x[1:]) * size)


@lru_cache(maxsize=512)
def mixing_ratio(epsilon: float, delta: float, rows: int, neighbours: Neighbours) -> float:
    """Return the largest t at which ``rows`` mixed rows are (epsilon, delta)-DP, rounded down.

    The noise is sigma_0^2 = C^2 / t for records of norm at most C.

    Parameters
    ----------
    epsilon, delta : float
        The budget.
    rows : int
        The number of rows of the sketch.
    neighbours : Neighbours
        The neighbouring relation.
    """
    if not 0 < epsilon < math.inf or not 0 < delta < 1:
        raise ParameterError(
            parameter_message(
                "mixing_ratio",
                "epsilon, delta",
                "in (0, inf) and (0, 1)",
                (epsilon, delta),
                "Gaussian mixing needs delta > 0.",
            )
        )

    def fits(ratio: float) -> bool:
        return MixingProfile(rows, ratio, neighbours.value).delta(epsilon) <= delta

    high = 1.0
    while fits(high) and high < 1e100:
        high *= 16
    low = high / 16
    while not fits(low):
        low, high = low / 16, low
    return bisect(fits, low, high, 1e-10)[0]
