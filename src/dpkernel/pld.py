"""Privacy loss distributions: dp-accounting, wrapped once.

Two traps of that library are closed here. Under REPLACE_ONE its PLD accountant doubles the
sensitivity of a Gaussian and its Renyi accountant does not; we always pass our own
sensitivity under ADD_OR_REMOVE_ONE and test the result against the closed form. And FFT
convolution carries an additive error of about 1e-16 a step in delta: 1e-15 a step is added.

dp-accounting takes two seconds to import, so it is imported when first needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernel.types import Array

STEP = 1e-4  # of the grid of privacy losses, unless a part asks for a finer one
_FINEST = 1e-6
_FFT_ERROR = 1e-15  # added to delta for every convolution


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


def gaussian(mu: float, step: float = STEP) -> Distribution:
    """Return the distribution of the Gaussian pair with this mu."""
    library, relation = _library()
    if mu == 0:
        return point(0.0, 0.0, step)
    return Distribution(
        library.from_gaussian_mechanism(
            standard_deviation=1.0,
            sensitivity=mu,
            value_discretization_interval=_rounded(step),
            neighboring_relation=relation,
        )
    )


def point(epsilon: float, delta: float, step: float = STEP) -> Distribution:
    """Return the distribution of a mechanism known by one point only."""
    library, _ = _library()
    from dp_accounting.pld.common import DifferentialPrivacyParameters

    return Distribution(
        library.from_privacy_parameters(
            DifferentialPrivacyParameters(epsilon, delta),
            value_discretization_interval=_rounded(step),
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

    The profile must bound both directions and be convex in e^epsilon (Zhu, Dong & Wang 2022);
    its points on the grid -reach .. reach are connected pessimistically, and delta(reach)
    becomes the mass at infinity. With ``reverse`` the first profile is that of a data set with the
    record against one without, the second that of the other direction, and each composes with its
    like.
    """
    from dp_accounting.pld import pld_pmf

    library, _ = _library()
    step = _rounded(step)
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


def _rounded(step: float) -> float:
    """Return STEP times a power of two, at most ``step``: parts must share one grid to compose."""
    return STEP / 2.0 ** math.ceil(math.log2(STEP / max(step, _FINEST)) - 1e-9)


def _library() -> tuple[Any, Any]:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution, NeighboringRelation.ADD_OR_REMOVE_ONE
