"""What every privacy profile is: delta as a function of epsilon, an upper bound."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import ClassVar

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, Budget, is_real
from dpkernel.privacy import pld

ORDERS = tuple(1 + 10.0**e for e in np.linspace(-2, 4, 121))  # Renyi orders that are tried


class PrivacyProfile(ABC):
    """Delta as a function of epsilon; immutable, hashable, serialisable."""

    kind: ClassVar[str]
    # set by ``composition``, which knows every profile
    all_in_a_row: ClassVar[Callable[[Sequence[PrivacyProfile]], PrivacyProfile]]
    precision: ClassVar[float] = 0.0  # relative, of ``epsilon``; 0 for the last bit
    by_renyi: ClassVar[bool] = (
        False  # composed by ``rdp`` alone where there is no loss distribution
    )

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta at this epsilon, any real number."""

    @abstractmethod
    def rdp(self, order: float) -> float:
        """Return an upper bound on the Renyi divergence of this order > 1 (inf if unknown)."""

    @property
    def rdp_miss(self) -> float:
        """The probability, on either data set, of an event outside of which ``rdp`` holds."""
        return 0.0

    @abstractmethod
    def to_dict(self) -> JSON:
        """Return the parameters as JSON values, with the kind."""

    def pld(self, step: float = pld.STEP) -> pld.Distribution | None:
        """Return a dominating privacy loss distribution on a grid, or None if there is none."""
        return None

    @property
    def fineness(self) -> float:
        """The grid step of privacy losses at which this profile is resolved well."""
        return pld.STEP

    @property
    def spread(self) -> float:
        """How far privacy losses reach, roughly: a grid over it has a million cells at most."""
        return min(self.epsilon(1e-12), 1e3)

    @property
    def mu(self) -> float | None:
        """The mu of a Gaussian pair that dominates this one, or None: what adds up as mu^2."""
        return None

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0, rounded up, at which delta is at most this."""
        if not is_real(delta) or not 0 <= delta < 1:
            raise ParameterError(
                parameter_message(
                    type(self).__name__, "delta", "a float in the range [0, 1)", delta
                )
            )
        return _least_epsilon(self, delta)

    def compose(self, *others: PrivacyProfile) -> PrivacyProfile:
        """Return the profile of this release followed by the others, each chosen adaptively."""
        return PrivacyProfile.all_in_a_row((self, *others))

    def repeat(self, count: int) -> PrivacyProfile:
        """Return the profile of ``count`` releases like this one."""
        return PrivacyProfile.all_in_a_row((self,) * count)

    def supports(self, budget: Budget) -> bool:
        """Whether this profile proves (epsilon, delta)-DP for the budget."""
        return self.delta(budget.epsilon) <= budget.delta

    def trade_off(self, type_one: Array | Sequence[float] | float) -> Array:
        """Return a lower bound on the type II error of any attack with this type I error.

        The attack tests which of two neighbouring data sets was used. For every epsilon,
        beta >= max(0, 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha)).
        """
        alpha = np.atleast_1d(np.asarray(type_one, dtype=np.float64))
        best = np.zeros_like(alpha)
        for epsilon in np.concatenate(([0.0], np.geomspace(1e-3, 100.0, 400))):
            delta = self.delta(float(epsilon))
            best = np.maximum(best, 1 - delta - math.exp(epsilon) * alpha)
            best = np.maximum(best, math.exp(-epsilon) * (1 - delta - alpha))
        return best


@lru_cache(maxsize=1024)  # a fit asks again for what its plan, its ledger and its certificate share
def _least_epsilon(profile: PrivacyProfile, delta: float) -> float:
    if profile.delta(0.0) <= delta:
        return 0.0
    high = 1.0
    while profile.delta(high) > delta:
        high *= 2
        if high > 1e12:
            return math.inf
    low = 0.0 if high == 1 else high / 2
    return bisect(lambda e: profile.delta(e) > delta, low, high, profile.precision)[1]


def bisect(
    true_below: Callable[[float], bool], low: float, high: float, precision: float = 0.0
) -> tuple[float, float]:
    """Return floats around the point where the predicate turns from true to false.

    They are adjacent, or differ by ``precision`` of the larger one.
    """
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high or high - low <= precision * high:
            return low, high
        low, high = (middle, high) if true_below(middle) else (low, middle)


def hypot_up(values: Sequence[float]) -> float:
    """Return the root of the sum of squares, rounded up."""
    return math.nextafter(math.hypot(*values) * (1 + 4e-16), math.inf)


def rdp_delta(rdp: Callable[[float], float], epsilon: float) -> float:
    """Return the least delta that the Renyi curve proves at this epsilon.

    From epsilon = rho + log((a - 1)/a) - (log delta + log a)/(a - 1) for every order a.
    """
    best = 1.0
    for order in ORDERS:
        rho = rdp(order)
        if not rho < math.inf:
            continue
        log_delta = (order - 1) * (rho - epsilon + math.log1p(-1 / order)) - math.log(order)
        # a value that underflowed is not zero in truth
        best = min(best, max(math.exp(min(log_delta, 0.0)) * (1 + 1e-10), 5e-324))
    return best
