r"""Profiles of Gaussian releases of sums over random batches, for one step or many.

**One step.** A record is in the batch with probability p. Given the rest of the batch, each data
set gives a mixture of a common part with weight 1 - p and a Gaussian with weight p, and the two
Gaussians are at most Delta apart. Advanced joint convexity (Balle, Barthe & Gaboardi 2018) then
gives, with mu = Delta/sigma, ::

    delta(epsilon) = p G(log(1 + (e^epsilon - 1)/p); mu),  epsilon >= 0,
    delta(-epsilon) = 1 - e^-epsilon + e^-epsilon delta(epsilon).

**A blanked record in a batch of fixed size** costs more. Let mu_0 be the distribution without the
record, let mu_1 and mu_1' be those with the record and with the record blanked, and let
alpha = 1 + (e^epsilon - 1)/p and beta = e^epsilon/alpha. Advanced joint convexity says ::

    D(e^epsilon) <= p [(1 - beta) D_alpha(mu_1 || mu_0) + beta D_alpha(mu_1 || mu_1')].

Let Delta be the most that one record adds. In mu_1 against mu_0, the record is exchanged for
another one of the batch, so the two are 2 Delta apart. In mu_1 against mu_1', the record is
blanked, so they are Delta apart. From the blanked side both distances are Delta. So, for epsilon >=
0 and with c = Delta/sigma, ::

    with the record against without:  p [(1 - beta) G(log alpha; 2c) + beta G(log alpha; c)],
    without against with:             p G(log alpha; c),

and at negative epsilon each is the mirror image of the other. The true profile is convex in
e^epsilon and below these functions, so it is also below their convex envelope, which is what is
composed.

**Many steps.** The privacy loss of the pair ((1 - p) N(0, 1) + p N(mu, 1), N(0, 1)) at x is l(x) =
log(1 - p + p e^(mu x - mu^2/2)). A batch of fixed size is dominated by the symmetric pair that has
the upper half of this distribution, its mirror image, and the rest at loss 0. Poisson batches are
this pair itself, in both directions, which are composed separately. So are the two envelopes of a
blanked record.

**The grid.** A distribution of losses is put on a grid by sharing the mass of each cell between its
two ends such that both probabilities of the cell are kept ("connect the dots", Doroshenko et al.
2022). The masses are computed from the normal distribution function and not from differences of
delta, whose rounding errors would be divided by the square of the step. Each share is moved up by a
bound on its rounding error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from scipy.special import erf, ndtr, ndtri
from sklearn.isotonic import isotonic_regression

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, is_real, is_whole
from dpkernel.privacy import pld
from dpkernel.privacy.profiles.base import PrivacyProfile
from dpkernel.privacy.profiles.gaussian import GaussianProfile, gaussian_delta

BLANKED = "fixed-zero-out"
SAMPLINGS = ("fixed", "poisson", BLANKED)
_TOP = 1e-17  # probability per step of a loss beyond the grid, which counts as infinite
_LARGEST_LOSS = 650.0  # of one step, so that its exponential fits a float
_LARGEST_MU = 1e6
_FINENESS = 3e-3  # grid step * sqrt(steps) / reach; widens the sum of losses by 1e-3 of its reach
_COARSEST = 2e-5  # largest grid step / reach
_CELLS = 1 << 21
_MOST_STEPS = 10**12


@dataclass(frozen=True)
class SampledGaussianProfile(PrivacyProfile):
    """Steps of a Gaussian release of a sum over a fresh, secret random batch.

    Parameters
    ----------
    mu_value : float
        Delta / sigma of a step whose batch holds the record. Delta is how far replacing or blanking
        the record moves the sum.
    rate : float
        The probability that a given record is in the batch of a step, in (0, 1].
    sampling : {"fixed", "poisson", "fixed-zero-out"}
        "fixed" is a uniform batch of fixed size without replacement, for replace-one.
        "fixed-zero-out" is the same batch for zero-out. "poisson" includes each record
        independently, for zero-out and add-remove; replacing a record is not covered there.
    steps : int
        The number of steps, each with its own batch. A step may depend on earlier outputs.

    Examples
    --------
    >>> from dpkernel import profiles
    >>> profile = profiles.SampledGaussianProfile(0.5, 0.1, "poisson", 10)
    >>> round(profile.epsilon(1e-6), 3)
    0.961
    """

    kind: ClassVar[str] = "sampled-gaussian"
    mu_value: float
    rate: float
    sampling: str = "fixed"
    steps: int = 1

    def __post_init__(self) -> None:
        checks = (
            ("mu", 0 <= _real(self.mu_value) < _LARGEST_MU, "a float in the range [0, 1e6)"),
            ("rate", 0 < _real(self.rate) <= 1, "a float in the range (0, 1]"),
            ("sampling", self.sampling in SAMPLINGS, f"one of {SAMPLINGS}"),
            ("steps", is_whole(self.steps) and 1 <= self.steps <= _MOST_STEPS, "an int >= 1"),
        )
        for name, fine, allowed in checks:
            if not fine:
                got = self.mu_value if name == "mu" else getattr(self, name)
                raise ParameterError(
                    parameter_message("SampledGaussianProfile", name, allowed, got)
                )
        object.__setattr__(self, "mu_value", float(self.mu_value))
        object.__setattr__(self, "rate", float(self.rate))
        object.__setattr__(self, "steps", int(self.steps))

    @property
    def mu(self) -> float | None:
        """The mu of all steps together if every batch holds all records; None otherwise."""
        if self.rate < 1:
            return None
        return GaussianProfile(self.mu_value).repeat(self.steps).mu

    def delta(self, epsilon: float) -> float:
        """Return delta: in closed form for one step or full batches, otherwise by composition."""
        mu = self.mu
        if mu is not None:
            return float(gaussian_delta(epsilon, mu))
        if self.mu_value == 0:
            return -math.expm1(min(epsilon, 0.0))
        if self.steps == 1:
            return sampled_delta(epsilon, self.mu_value, self.rate, self.sampling)
        # at least the delta of equal data, which rounding on the grid might miss by an ulp
        least = -math.expm1(min(epsilon, 0.0))
        return max(_composed(self, self._own_step).delta(epsilon), least, 5e-324)

    def epsilon(self, delta: float) -> float:
        """Return an epsilon for this delta, with a margin for the FFT of another machine."""
        exact = self.steps == 1 or self.rate == 1 or self.mu_value == 0
        if exact or not is_real(delta) or not 0 < delta < 1 or self.delta(0.0) <= delta:
            return super().epsilon(delta)
        return super().epsilon(max(delta * (1 - 1e-10) - 2e-16 * self.steps, 0.0))

    def rdp(self, order: float) -> float:
        """Return order mu^2 / 2 per step, the bound for full batches, without amplification.

        At every epsilon the delta of one step grows with the rate, so the pair of a full batch
        dominates. For a blanked record mu counts twice, because a blank is one of the records that
        may replace it.
        """
        return order * self._distance**2 / 2 * self.steps * (1 + 1e-15)

    def repeat(self, count: int) -> PrivacyProfile:
        """Return the profile of ``count`` times as many steps."""
        if count == 0:
            return GaussianProfile(0.0)
        return SampledGaussianProfile(
            self.mu_value, self.rate, self.sampling, self.steps * int(count)
        )

    @property
    def _distance(self) -> float:
        """The largest distance, in units of sigma, between two distributions that a step compares."""
        return (2 if self.sampling == BLANKED else 1) * self.mu_value

    @property
    def _reached(self) -> tuple[float, float]:
        return _reach(self._distance, self.rate, self.steps)

    def plain(self) -> PrivacyProfile:
        """Return the Gaussian profile if the batches are full, and this profile otherwise."""
        mu = self.mu
        return self if mu is None else GaussianProfile(mu)

    @property
    def fineness(self) -> float:
        """The grid step that resolves many steps well."""
        mu = self.mu
        if mu is not None:
            return GaussianProfile(mu).fineness
        if self.mu_value == 0 or self._reached[0] < 1e-3:
            return pld.STEP / 8  # beside other parts, such small losses need no grid of their own
        return self._own_step

    @property
    def spread(self) -> float:
        """A bound that nearly all privacy losses stay below."""
        if self.mu is not None or self.mu_value == 0:
            return super().spread
        return min(self._reached[0], 1e3)

    @property
    def _own_step(self) -> float:
        reach, _ = self._reached
        share = min(_FINENESS / math.sqrt(self.steps), _COARSEST)
        return pld.rounded(reach * max(share, 2 / _CELLS), finest=0.0)

    def pld(self, step: float = pld.STEP) -> pld.Distribution | None:
        """Return the distribution of all steps, on the grid that all parts share."""
        mu = self.mu
        if mu is not None:
            return GaussianProfile(mu).pld(step)
        if self.mu_value == 0:
            return pld.point(0.0, 0.0, step)
        step = pld.rounded(step)
        if self._reached[0] > step * 2 * _CELLS:
            return None
        return _composed(self, step)

    def to_dict(self) -> JSON:
        """Return the kind and the four numbers."""
        return {
            "kind": self.kind,
            "mu": self.mu_value,
            "rate": self.rate,
            "sampling": self.sampling,
            "steps": self.steps,
        }


def sampled_delta(epsilon: float, mu: float, rate: float, sampling: str = "fixed") -> float:
    """Return the delta of one step, rounded up, for both directions."""
    e = abs(epsilon)
    # beyond 700 the second form exceeds the exact one by less than e^-700
    inner = math.log1p(math.expm1(e) / rate) if e < 700 else e - math.log(rate)
    value = float(gaussian_delta(inner * (1 - 1e-15), mu))
    if sampling == BLANKED and e > 0:
        # 1 - beta without cancellation; the true profile decreases, so delta(0) bounds it as well
        share = (1 - rate) / (1 + rate / math.expm1(e)) if e < 700 else 1 - rate
        far = float(gaussian_delta(inner * (1 - 1e-15), 2 * mu))
        value = min(value + share * max(far - value, 0.0) * (1 + 1e-15), erf(mu / math.sqrt(8.0)))
    value = min(rate * value * (1 + 2e-15), 1.0)
    if epsilon >= 0:
        return value
    return min((math.exp(-e) * value - math.expm1(-e)) * (1 + 1e-15), 1.0)


# --- the distribution of the losses on a grid --------------------------------------------------


@lru_cache(maxsize=16)
def _composed(profile: SampledGaussianProfile, step: float) -> pld.Distribution:
    _, order = profile._reached
    laws = _laws(profile.mu_value, profile.rate, profile.sampling, step)
    return pld.from_laws(laws, step, profile.steps, order)


def _laws(mu: float, rate: float, sampling: str, step: float) -> list[pld.LossLaw]:
    """Return the distribution of one step: of the symmetric pair, or of removing and adding."""
    if sampling == BLANKED:
        return _blanked_laws(mu, rate, step)
    last = max(math.ceil(_loss(_highest(mu, rate), mu, rate) / step), 1)
    first = 0
    if sampling == "poisson":
        first = min(math.floor(_loss(float(ndtri(_TOP)), mu, rate) / step), -1)
    losses = np.arange(first, last + 1) * step
    with np.errstate(divide="ignore"):
        inner = np.maximum(np.expm1(losses) / rate, -1.0)  # e^(loss of the Gaussian pair) - 1
        at = np.log1p(inner) / mu + mu / 2
    lower, lower_error = _cells(at)  # probabilities of the cells under N(0, 1)
    shifted, shifted_error = _cells(at - mu)  # the same under N(mu, 1)
    upper = (1 - rate) * lower + rate * shifted
    # shares of a cell: high + rest = upper and high e^-step + rest = e^(lower end) lower
    ratio = rate + np.expm1(losses[:-1])
    error = rate * shifted_error + np.abs(ratio) * lower_error
    error += 8e-15 * (upper + np.abs(ratio) * lower)
    width = -math.expm1(-step)
    gain = rate * shifted - ratio * lower
    high = np.clip((gain + error) / width, 0.0, upper)
    masses = np.append(upper - high, 0.0)
    masses[1:] += high
    masses[0] += (rate * ndtr(at[0] - mu) + (1 - rate) * ndtr(at[0])) if first else 0.0
    beyond = float(rate * ndtr(mu - at[-1]) + (1 - rate) * ndtr(-at[-1]))
    # the mirror image: lower and upper probability change places, and up is towards the lower end
    far = np.minimum(np.maximum((gain - error) / width, 0.0) * np.exp(-losses[1:]), lower)
    mirrored = np.append(lower - far, ndtr(-at[-1]))
    mirrored[1:] += far
    if sampling == "poisson":
        down = pld.LossLaw(-last, mirrored[::-1], float(ndtr(at[0])))
        return [pld.LossLaw(first, masses, beyond), down]
    both = np.zeros(2 * last + 1)
    both[last:] += masses
    both[: last + 1] += mirrored[::-1]
    both[last] += (1 - rate) * float(erf(mu / math.sqrt(8.0)))
    return [pld.LossLaw(-last, both, beyond)]


def _blanked_laws(mu: float, rate: float, step: float) -> list[pld.LossLaw]:
    """Return the distributions for a blanked record in a batch of fixed size: removing and adding."""
    last = max(math.ceil(_loss(_highest(2 * mu, rate), 2 * mu, rate) / step), 1)
    grown = np.expm1(np.arange(last + 1) * step)  # e^loss - 1
    alpha = 1 + grown / rate

    def gaussian(distance: float) -> Array:
        """Return G(log alpha; distance) and a bound on its rounding error."""
        at = np.log(alpha) / distance
        first = ndtr(distance / 2 - at)
        second = alpha * ndtr(-distance / 2 - at)
        return np.asarray(np.maximum(first - second, 0.0) + 2e-15 * (4 + at**2) * first)

    near, far = gaussian(mu), gaussian(2 * mu)
    share = (1 - rate) * grown / (grown + rate)  # 1 - beta
    remove, add = rate * (near + share * np.maximum(far - near, 0.0)), rate * near
    return [_envelope(remove, add, grown, step), _envelope(add, remove, grown, step)]


def _envelope(above: Array, below: Array, grown: Array, step: float) -> pld.LossLaw:
    """Return the distribution of the convex envelope, in e^epsilon, of a profile on the grid.

    ``above`` holds delta at the grid's losses from 0 on. ``below`` holds the delta of the other
    direction, whose mirror image applies at the losses below 0. The slopes of the envelope are the
    isotonic regression of the slopes between neighbouring points. The probability of a loss is
    e^loss times the increase of the slope there. Probabilities below the grid are moved up to its
    lowest loss.
    """
    gamma = 1 + grown
    mirrored = (below / gamma)[::-1]  # delta(-loss) - (1 - e^-loss)
    lower = np.diff(1 / gamma[::-1])  # widths of the cells in e^loss, below and above 1
    slopes = np.concatenate([np.diff(mirrored) / lower - 1, np.diff(above) / np.diff(gamma)])
    widths = np.concatenate([lower, np.diff(gamma)])
    fitted = isotonic_regression(slopes, sample_weight=widths, y_max=0.0)
    gains = np.maximum(np.diff(fitted), 0.0)
    places = np.concatenate([1 / gamma[::-1], gamma[1:]])
    masses = np.zeros(len(places))
    masses[1:-1] = places[1:-1] * gains
    masses[-1] = places[-1] * max(-fitted[-1], 0.0)
    masses[0] = max(places[0] * (fitted[0] + 1) - mirrored[0], 0.0)
    masses[len(lower)] += max(
        1.0 - above[-1] - math.fsum(masses), 0.0
    )  # rounding errors go to loss 0
    return pld.LossLaw(1 - len(gamma), masses, float(above[-1]))


def _cells(edges: Array) -> tuple[Array, Array]:
    """Return normal probabilities between neighbouring edges, and bounds on their errors."""
    left, right = edges[:-1], edges[1:]
    above = left > 0
    one = np.where(above, ndtr(-left), ndtr(right))
    other = np.where(above, ndtr(-right), ndtr(left))
    return np.maximum(one - other, 0.0), 4e-16 * one


def _highest(mu: float, rate: float) -> float:
    """Return an x above which both parts of the mixture have a probability of at most 1e-17."""
    return max(mu - float(ndtri(min(_TOP / rate, 0.5))), -float(ndtri(_TOP)))


def _loss(x: float, mu: float, rate: float) -> float:
    """Return the loss at x, or the largest loss that is kept if that is smaller."""
    exponent = mu * (x - mu / 2)
    if exponent > _LARGEST_LOSS:
        return _LARGEST_LOSS
    return math.log1p(rate * math.expm1(exponent))


@lru_cache(maxsize=256)
def _reach(mu: float, rate: float, steps: int) -> tuple[float, float]:
    """Return a loss that is hardly ever exceeded, and the order of the Chernoff bound behind it.

    This is an estimate by quadrature. It only chooses the grid and proves nothing.
    """
    highest = _highest(mu, rate)
    top = _loss(highest, mu, rate)
    x = np.linspace(mu / 2, highest, 1025)
    with np.errstate(over="ignore", invalid="ignore"):
        loss = np.minimum(np.log1p(rate * np.expm1(np.minimum(mu * (x - mu / 2), 700.0))), top)
        weight = (x[1] - x[0]) / math.sqrt(2 * math.pi)
        lower = np.exp(-(x**2) / 2) * weight
        upper = (1 - rate) * lower + rate * np.exp(-((x - mu) ** 2) / 2) * weight
        orders = np.geomspace(1e-2, 1e9, 133)
        product = np.outer(orders, loss)
        moments = np.expm1(product) @ upper + np.expm1(-product) @ lower
        bounds = (steps * np.log1p(moments) + 36.0) / orders
    bounds = np.where(np.isfinite(bounds), bounds, np.inf)
    best = int(np.argmin(bounds))
    return max(min(float(bounds[best]), steps * top), 1e-12), float(orders[best])


def _real(value: object) -> float:
    return float(value) if is_real(value) else math.nan  # type: ignore[arg-type]
