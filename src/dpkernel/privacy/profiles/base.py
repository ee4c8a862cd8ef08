"""The base class of privacy profiles: upper bounds on delta as a function of epsilon."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, Budget, is_real
from dpkernel.privacy import pld

ORDERS = tuple(1 + 10.0**e for e in np.linspace(-2, 4, 121))  # the Renyi orders to try
_SECANTS, _NEAR = 12, 1e-9
_CELLS = 128  # of ``rdp_outside``; its bound is then about a percent too large
_LOGS = np.array([(math.log1p(-1 / order), math.log(order)) for order in ORDERS]).T


class PrivacyProfile(ABC):
    """An upper bound on delta as a function of epsilon; immutable, hashable and serialisable."""

    kind: ClassVar[str]
    # set by ``composition``, the module that knows every profile
    all_in_a_row: ClassVar[Callable[[Sequence[PrivacyProfile]], PrivacyProfile]]
    precision: ClassVar[float] = 0.0  # relative precision of ``epsilon``; 0 for the last bit
    # whether it is composed by ``rdp`` alone if there is no privacy loss distribution
    by_renyi: ClassVar[bool] = False

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta at this epsilon, which may be any real number."""

    @abstractmethod
    def rdp(self, order: float) -> float:
        """Return an upper bound on the Renyi divergence of this order > 1, or inf if unknown."""

    @property
    def rdp_miss(self) -> float:
        """The probability, on either data set, of the event on which ``rdp`` may fail."""
        return 0.0

    @property
    def log_rdp_miss(self) -> float:
        """The logarithm of ``rdp_miss``, which may underflow."""
        return math.log(self.rdp_miss) if self.rdp_miss > 0 else -math.inf

    def renyi_missed(self, epsilon: float) -> float:
        """Return (1 + e^epsilon) times ``rdp_miss``, rounded up and at most 1.

        A delta that follows from ``rdp`` is larger by this: both distributions of a pair may move by
        that probability.
        """
        log_miss = self.log_rdp_miss
        if log_miss == -math.inf:
            return 0.0
        rounding = 1e-15 * (abs(epsilon) - log_miss + 1)
        return math.exp(min(float(np.logaddexp(0.0, epsilon)) + log_miss + rounding, 0.0))

    def rdp_outside(self, order: float, leak: float) -> float:
        r"""Return a Renyi bound of the release, apart from an event of probability ``leak``.

        The event has this probability whichever data set was used. If it happens, everything may
        become known; if it does not, the divergence of this order is at most the bound, in both
        directions. The bound is inf if the profile never falls to ``leak``.

        Notes
        -----
        Proof. Let H(g) = sup_S (P(S) - g Q(S)) for two neighbours, so H(e^epsilon) <=
        delta(epsilon), and let t be the leak. The curve h(g) = max(0, 1 - g, (H(g) - t)/(1 - t)) is
        convex and decreasing with h(0) = 1 and h(g) >= 1 - g, so it belongs to some pair (P', Q').
        A release that leaks with probability t, and otherwise draws from P' or Q', has the curve t
        + (1 - t) h >= H. By Blackwell's theorem, P and Q are a post-processing of it. With f(x) =
        x^a, the divergence of the pair is log(E_Q' f(P'/Q'))/(a - 1), and

            E f = 1 + int_1^inf f''(g) h(g) dg + int_0^1 f''(g) (h(g) - (1 - g)) dg
               <= 1 + int_1^inf a (a - 1) (g^(a - 2) + g^(-a - 1)) k(g) dg,

        where k(g) = max(0, (delta(log g) - t)/(1 - t)), because H(g) = 1 - g + g H'(1/g) for the
        curve H' of the reversed pair. The profile bounds both directions. The true delta decreases,
        so its value at the lower end of a cell bounds it in the whole cell.
        """
        found = _rdp_outside if self.lasting else _rdp_outside.__wrapped__
        return found(self, order, leak)

    @abstractmethod
    def to_dict(self) -> JSON:
        """Return the kind and the parameters as JSON values."""

    def pld(self, step: float = pld.STEP) -> pld.Distribution | None:
        """Return a dominating privacy loss distribution on a grid, or None if there is none."""
        return None

    @property
    def fineness(self) -> float:
        """The grid step of privacy losses that resolves this profile well."""
        return pld.STEP

    @property
    def spread(self) -> float:
        """Roughly how far privacy losses reach; a grid over it has at most a million cells."""
        return min(self.epsilon(1e-12), 1e3)

    @property
    def lasting(self) -> bool:
        """Whether results may be remembered.

        A profile of another library may change or have no hash, and then so may its compositions.
        """
        parts: tuple[PrivacyProfile, ...] = getattr(self, "parts", ())
        return type(self).__module__.startswith("dpkernel.") and all(p.lasting for p in parts)

    @property
    def mu(self) -> float | None:
        """The mu of a Gaussian pair that dominates this profile, or None; mu^2 adds up."""
        return None

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0, rounded up, at which the bound is at most ``delta``."""
        if not is_real(delta) or not 0 <= delta < 1:
            raise ParameterError(
                parameter_message(
                    type(self).__name__, "delta", "a float in the range [0, 1)", delta
                )
            )
        return (_least_epsilon if self.lasting else _least_epsilon.__wrapped__)(self, delta)

    def compose(self, *others: PrivacyProfile) -> PrivacyProfile:
        """Return the profile of this release followed by the others, each chosen adaptively."""
        return PrivacyProfile.all_in_a_row((self, *others))

    def repeat(self, count: int) -> PrivacyProfile:
        """Return the profile of ``count`` releases like this one."""
        return PrivacyProfile.all_in_a_row((self,) * count)

    def supports(self, budget: Budget) -> bool:
        """Return whether this profile proves (epsilon, delta)-DP for the budget."""
        return self.proves(budget.epsilon, budget.delta)

    def proves(self, epsilon: float, delta: float) -> bool:
        """Return whether ``self.delta(epsilon) <= delta``.

        A search for epsilon asks this again and again for the same delta. A profile may answer it
        faster than it computes its delta, but the answer must be the same.
        """
        return self.delta(epsilon) <= delta

    @cached_property
    def renyi_curve(self) -> Array:
        """The Renyi bounds at all orders to try."""
        return np.array([self.rdp(order) for order in ORDERS])

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


@lru_cache(maxsize=1024)  # plan, ledger and certificate of a fit ask for the same values
def _least_epsilon(profile: PrivacyProfile, delta: float) -> float:
    if profile.proves(0.0, delta):
        return 0.0
    high = 1.0
    while not profile.proves(high, delta):
        high *= 2
        if high > 1e12:
            return math.inf
    low = 0.0 if high == 1 else high / 2
    return bisect(lambda e: not profile.proves(e, delta), low, high, profile.precision)[1]


@lru_cache(maxsize=1024)
def _rdp_outside(profile: PrivacyProfile, order: float, leak: float) -> float:
    top = profile.epsilon(leak)
    if not 0 < top < math.inf:
        return top
    edges = top * np.linspace(0.0, 1.0, _CELLS + 1)
    a, b = edges[:-1], edges[1:]
    over = np.array([profile.delta(float(e)) - leak for e in a]) / (1 - leak) * (1 + 1e-12)
    # the integrals of both powers over each cell, times e^(-(order - 1) b)
    rising = -order * np.expm1(-(order - 1) * (b - a))
    falling = -(order - 1) * np.exp(-order * a - (order - 1) * b) * np.expm1(-order * (b - a))
    with np.errstate(divide="ignore"):
        logs = np.log(np.maximum(over, 0.0)) + np.log(rising + falling) + (order - 1) * b
    return float(np.logaddexp(0.0, np.logaddexp.reduce(logs))) / (order - 1) * (1 + 1e-9)


def bisect(
    true_below: Callable[[float], bool], low: float, high: float, precision: float = 0.0
) -> tuple[float, float]:
    """Return two floats around the point where the predicate turns from true to false.

    They are adjacent, or they differ by ``precision`` times the larger one.
    """
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high or high - low <= precision * high:
            return low, high
        low, high = (middle, high) if true_below(middle) else (low, middle)


def narrowed(
    true_below: Callable[[float], bool], gap: Callable[[float], float], low: float, high: float
) -> Callable[[float], bool]:
    """Return the predicate, for a bisection between ``low``, where it is true, and ``high``.

    ``gap`` is a smooth function that is negative where the predicate is true. A few secants find
    where it changes its sign (regula falsi, with the weights of the Illinois algorithm). After that,
    most questions of the bisection are answered by the points that were tried: what is true at a
    point is true below it, and what is false at a point is false above it. So the bisection has the
    same result with fewer evaluations.
    """
    ends = [low, high]

    def ask(x: float) -> bool:
        if x <= ends[0] or x >= ends[1]:
            return x <= ends[0]
        found = true_below(x)
        ends[not found] = x
        return found

    gaps, last = [gap(low), gap(high)], None
    for _ in range(_SECANTS):
        if not gaps[0] < 0 < gaps[1] or not ends[1] - ends[0] > _NEAR * ends[1]:
            break
        x = ends[0] + (ends[1] - ends[0]) * gaps[0] / (gaps[0] - gaps[1])
        if not ends[0] < x < ends[1]:
            break
        side = 0 if ask(x) else 1
        gaps[side] = gap(x)
        if side == last:
            gaps[1 - side] /= 2
        last = side
    if last is not None:  # secants may come near from one side only
        ask(ends[last] * (1 - _NEAR if last else 1 + _NEAR))
    return ask


def hypot_up(values: Sequence[float]) -> float:
    """Return the root of the sum of squares, rounded up."""
    return math.nextafter(math.hypot(*values) * (1 + 4e-16), math.inf)


def rdp_delta(rdp: Callable[[float], float], epsilon: float) -> float:
    """Return the smallest delta that the Renyi curve proves at this epsilon.

    Parameters
    ----------
    rdp : callable
        The Renyi divergence as a function of its order.
    epsilon : float
        The epsilon at which delta is asked.
    """
    return renyi_delta(np.array([rdp(order) for order in ORDERS]), epsilon)


def renyi_delta(curve: Array, epsilon: float) -> float:
    """Return the smallest delta that the bounds of ``PrivacyProfile.renyi_curve`` prove.

    It uses epsilon = rho + log((a - 1)/a) - (log delta + log a)/(a - 1) for every order a.
    """
    with np.errstate(invalid="ignore"):
        log_deltas = (np.array(ORDERS) - 1) * (curve - epsilon + _LOGS[0]) - _LOGS[1]
    best = float(log_deltas.min(initial=0.0, where=curve < math.inf))
    # a value that underflowed is not really zero
    return min(1.0, max(math.exp(best) * (1 + 1e-10), 5e-324))
