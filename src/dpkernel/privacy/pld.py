"""Privacy loss distributions: the one place that calls dp-accounting.

Two pitfalls of that library are avoided here. First, under REPLACE_ONE its PLD accountant doubles
the sensitivity of a Gaussian and its Renyi accountant does not. Therefore our own sensitivity is
always passed to the pair of one added record, and tests compare the result with the closed form. Second,
FFT convolution has an additive error of about 1e-16 per step in delta. Therefore 1e-15 per step is
added.

dp-accounting takes two seconds to import, so it is imported when it is first needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import logsumexp

from dpkernel.foundations.types import Array

STEP = 1e-4  # grid step of privacy losses, unless a part needs a finer one
_FINEST = 1e-6
_FFT_ERROR = 1e-15  # added to delta for every convolution
_CUT = 1e-16  # probability per step that a long convolution may cut off at the top


@dataclass(frozen=True)
class Distribution:
    """A pessimistic privacy loss distribution and the number of convolutions behind it."""

    inner: Any
    steps: int = 1

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta at this epsilon."""
        raw = float(self.inner.get_delta_for_epsilon(epsilon))
        return min(1.0, raw * (1 + 1e-12) + _FFT_ERROR * self.steps)

    def repeat(self, count: int) -> Distribution:
        """Return the distribution of ``count`` independent copies."""
        if count == 1:
            return self
        return Distribution(self.inner.self_compose(count), self.steps * count)


@lru_cache(
    maxsize=4
)  # a calibration beside a Gaussian release asks for the same one again and again
def gaussian(mu: float, step: float = STEP) -> Distribution:
    """Return the distribution of the Gaussian pair with this mu."""
    if mu == 0:
        return point(0.0, 0.0, step)
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    # what from_gaussian_mechanism does, bit for bit, but for all losses of the grid at once
    pair, step = GaussianPrivacyLoss(1.0, sensitivity=mu), rounded(step)
    ends = pair.connect_dots_bounds()
    first, last = math.floor(ends.epsilon_lower / step), math.ceil(ends.epsilon_upper / step)
    losses = np.arange(first, last + 1) * step
    x = pair.inverse_privacy_loss(losses)
    deltas = pair.mu_upper_cdf(x) - np.exp(losses + pair.mu_lower_log_cdf(x))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        step, first, last, np.clip(deltas, 0, 1)
    )
    return Distribution(_library().PrivacyLossDistribution(pmf))


def point(epsilon: float, delta: float, step: float = STEP) -> Distribution:
    """Return the distribution of a mechanism for which only one point is known."""
    library = _library()
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    return Distribution(
        library.from_privacy_parameters(
            DifferentialPrivacyParameters(epsilon, delta),
            value_discretization_interval=rounded(step),
        )
    )


def from_profile(
    deltas: Callable[[Array], Array],
    reach: float,
    step: float = STEP,
    *,
    reverse: Callable[[Array], Array] | None = None,
) -> Distribution:
    """Return a distribution that dominates a profile known at every real epsilon.

    The profile must bound both directions and be convex in e^epsilon (Zhu, Dong & Wang 2022). Its
    points on the grid -reach .. reach are connected pessimistically, and delta(reach) becomes the
    mass at infinity. With ``reverse``, the first profile compares a data set with the record to one
    without it, the second profile is the other direction, and each direction composes separately.
    """
    from dp_accounting.pld import pld_pmf

    library = _library()
    step = rounded(step)
    last = math.ceil(reach / step) + 1
    grid = np.arange(-last, last + 1, dtype=np.float64) * step
    pmfs = [
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
            step, -last, last, np.minimum.accumulate(profile(grid))
        )
        for profile in (deltas, reverse)
        if profile is not None
    ]
    return Distribution(library.PrivacyLossDistribution(*pmfs))


def convolve(distributions: Sequence[Distribution]) -> Distribution:
    """Return the distribution of the independent sum."""
    total = distributions[0]
    for other in distributions[1:]:
        total = Distribution(total.inner.compose(other.inner), total.steps + other.steps)
    return total


@dataclass(frozen=True)
class LossLaw:
    """A distribution of losses on the grid: ``masses[i]`` at ``first + i`` steps, the rest infinite."""

    first: int
    masses: Array
    infinity: float


def from_laws(laws: Sequence[LossLaw], step: float, count: int, order: float) -> Distribution:
    """Return ``count`` copies of a mechanism with one (symmetric) or two (remove, add) laws."""
    library = _library()
    return Distribution(
        library.PrivacyLossDistribution(*(_power(law, step, count, order) for law in laws)), count
    )


def _power(law: LossLaw, step: float, count: int, order: float) -> Any:
    """Return the distribution of the sum of ``count`` independent losses.

    It uses one FFT on a ring of losses. Chernoff bounds near this order (any positive order is
    valid) choose a ring with little mass outside. Mass above the ring would come back at its
    bottom, so its probability is added to the mass at infinity. Mass below the ring comes back at
    its top, which is pessimistic. dp-accounting's own power is not used, because it chooses the
    ring by orders that suit short sums.
    """
    from dp_accounting.pld import pld_pmf

    last = law.first + len(law.masses) - 1
    losses = step * np.arange(law.first, last + 1)
    cut = min(_CUT * count, 0.5)
    high, low = count * last, count * law.first
    for part in range(1 if order * step < 0.1 else 16):  # smaller orders suit a coarse grid
        for sign, power in ((1, order / 4**part), (-1, order / 4**part + 1)):
            log_moment = float(logsumexp(sign * power * losses, b=law.masses))
            end = math.ceil((count * log_moment - math.log(cut)) / power / step)
            high, low = (min(high, end), low) if sign > 0 else (high, max(low, -end))
    size = int(next_fast_len(max(high - low + 1, len(law.masses)), real=True))
    ring = np.zeros(size)
    ring[np.arange(law.first, last + 1) % size] = law.masses
    power_of, total = rfft(ring), None
    left = count
    while left:  # by squaring: complex powers are slower and not more accurate
        if left & 1:
            total = power_of if total is None else total * power_of
        left >>= 1
        if left:
            power_of = power_of * power_of
    found = np.roll(irfft(total, size), -(low % size))
    infinity = cut - math.expm1(count * math.log1p(-law.infinity))
    # the FFT's error can make cells negative; these errors cancel in sums, unless cut off at 0
    return pld_pmf.DensePLDPmf(step, low, found, min(infinity, 1.0), True)


def rounded(step: float, finest: float = _FINEST) -> float:
    """Return STEP times a power of two, at most ``step``: parts must share one grid to compose."""
    return STEP / 2.0 ** math.ceil(math.log2(STEP / max(step, finest)) - 1e-9)


def _library() -> Any:
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution
