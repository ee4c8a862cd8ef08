r"""Profiles of a choice among private runs: random stopping, and the maximum over disjoint parts.

A base mechanism draws a candidate at random, trains it with noise and scores it with noise. It is
run K times with fresh randomness. The run with the best score is released completely; K and all
other runs stay secret. The distribution of K is fixed in advance::

    negative-binomial  truncated at K >= 1, P(k) proportional to (1 - g)^k prod_{l<k} (l + eta)/(l + 1);
                       eta = 0 is the logarithmic distribution, eta = 1 the geometric one
    poisson            of mean m >= 1; K = 0 releases a fixed output

In Renyi divergence the best of K runs costs little more than one run.

References
----------
Papernot & Steinke (2022), Theorems 2 and 6; Liu & Talwar (2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, is_real
from dpkernel.privacy import pld
from dpkernel.privacy.profiles.base import ORDERS, PrivacyProfile, bisect
from dpkernel.privacy.profiles.gaussian import GaussianProfile
from dpkernel.privacy.profiles.pure import PureProfile

LAWS = ("negative-binomial", "poisson")
_UP = 1 + 1e-12
_HIGHER = tuple(1 + 10.0**e for e in np.linspace(-2, 6, 321))  # orders tried for the inner minimum


@dataclass(frozen=True)
class MaximumProfile(PrivacyProfile):
    """The largest of several profiles, when two neighbours can differ in one of them only.

    It applies to disjoint sets of rows, because a record is in one set only, and to a choice of
    mechanism that does not depend on the data.

    Parameters
    ----------
    parts : tuple of PrivacyProfile
        The profiles of the parts.

    Examples
    --------
    >>> from dpkernel import profiles
    >>> parts = (profiles.GaussianProfile(0.5), profiles.GaussianProfile(0.3))
    >>> profiles.MaximumProfile(parts).epsilon(1e-6) == parts[0].epsilon(1e-6)
    True
    """

    kind: ClassVar[str] = "maximum"
    by_renyi: ClassVar[bool] = True
    parts: tuple[PrivacyProfile, ...]

    def __post_init__(self) -> None:
        if len(self.parts) < 1:
            raise ParameterError(
                parameter_message("MaximumProfile", "parts", "one or more profiles", self.parts)
            )

    @property
    def mu(self) -> float | None:
        """The largest mu, if every part is dominated by a Gaussian pair."""
        mus = [part.mu for part in self.parts]
        return None if None in mus else max(mu for mu in mus if mu is not None)

    @property
    def spread(self) -> float:
        """The largest over the parts."""
        return max(part.spread for part in self.parts)

    def delta(self, epsilon: float) -> float:
        """Return the largest delta."""
        return max(part.delta(epsilon) for part in self.parts)

    def proves(self, epsilon: float, delta: float) -> bool:
        """Return whether every part proves this point."""
        return all(part.proves(epsilon, delta) for part in self.parts)

    def rdp(self, order: float) -> float:
        """Return the largest Renyi bound."""
        return max(part.rdp(order) for part in self.parts)

    @property
    def rdp_miss(self) -> float:
        """The largest over the parts."""
        return max(part.rdp_miss for part in self.parts)

    def pld(self, step: float = pld.STEP) -> pld.Distribution | None:
        """Return a pessimistic discretisation if every part is Gaussian or pure, hence cheap."""
        if not all(isinstance(part, (GaussianProfile, PureProfile)) for part in self.parts):
            return None
        reach = self.epsilon(1e-17)
        return pld.from_profile(
            lambda epsilons: np.array([self.delta(float(e)) for e in epsilons]), reach, step
        )

    def to_dict(self) -> JSON:
        """Return the kind and the parts."""
        return {"kind": self.kind, "parts": [part.to_dict() for part in self.parts]}


def maximum(profiles: Sequence[PrivacyProfile]) -> PrivacyProfile:
    """Return the maximum of these profiles; for Gaussian profiles the one with the largest mu.

    Parameters
    ----------
    profiles : sequence of PrivacyProfile
        One profile per release of which only one is made.
    """
    flat: list[PrivacyProfile] = []
    for profile in profiles:
        flat.extend(profile.parts if isinstance(profile, MaximumProfile) else (profile,))
    mus = [p.mu_value for p in flat if isinstance(p, GaussianProfile)]
    pure = [p.epsilon_value for p in flat if isinstance(p, PureProfile)]
    merged: list[PrivacyProfile] = [GaussianProfile(max(mus))] if mus else []
    merged += [PureProfile(max(pure))] if pure else []
    rest = [p for p in flat if not isinstance(p, (GaussianProfile, PureProfile))]
    merged += sorted(dict.fromkeys(rest), key=lambda p: repr(p.to_dict()))
    return merged[0] if len(merged) == 1 else MaximumProfile(tuple(merged))


@dataclass(frozen=True)
class StoppingLaw:
    """The distribution of the number of runs.

    Parameters
    ----------
    name : {"negative-binomial", "poisson"}
        The family.
    mean : float
        The expected number of runs: at least 1 (Poisson) or above 1 (negative binomial).
    eta : float
        The shape of the negative binomial, above -1. A larger value varies less and costs more.

    Examples
    --------
    >>> from dpkernel.profiles import StoppingLaw
    >>> StoppingLaw("poisson", mean=20.0)
    StoppingLaw(name='poisson', mean=20.0, eta=0.0)
    """

    name: str
    mean: float
    eta: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in LAWS:
            allowed = "one of " + ", ".join(repr(law) for law in LAWS)
            raise ParameterError(parameter_message("StoppingLaw", "name", allowed, self.name))
        poisson = self.name == "poisson"
        if not is_real(self.mean) or not 1 <= self.mean <= 1e4 or (self.mean == 1 and not poisson):
            allowed = (
                "a float in the range [1, 1e4]" if poisson else "a float in the range (1, 1e4]"
            )
            advice = (
                "With less than 1 run on average the theorem proves nothing." if poisson else ""
            )
            raise ParameterError(
                parameter_message("StoppingLaw", "mean", allowed, self.mean, advice)
            )
        if not is_real(self.eta) or not -1 < self.eta <= 100:
            allowed = "a float in the range (-1, 100]"
            raise ParameterError(parameter_message("StoppingLaw", "eta", allowed, self.eta))
        object.__setattr__(self, "mean", float(self.mean))
        object.__setattr__(self, "eta", 0.0 if poisson else float(self.eta))

    @property
    def log_odds(self) -> float:
        """log(1 / gamma) of the negative binomial, such that its mean is at least the requested one."""
        return _log_inverse_gamma(self.eta, self.mean)

    @property
    def greatest_mean(self) -> float:
        """The mean that the bounds use, rounded up."""
        if self.name == "poisson":
            return self.mean
        return _mean_runs(self.eta, self.log_odds) * (1 + 1e-9)

    def probabilities(self, digits: int = 30) -> Iterator[Decimal]:
        """Yield P(K = 0), P(K = 1), ... without end, each to about this number of digits."""
        with localcontext() as context:
            context.prec = digits + 10
            poisson, eta = self.name == "poisson", Decimal(self.eta)
            x = Decimal(self.mean) if poisson else Decimal(self.log_odds)  # floats are exact here
            if poisson:
                term, step = (-x).exp(), Decimal(1)
            else:
                step = 1 - (-x).exp()  # 1 - gamma
                term = step / x if eta == 0 else step * eta / ((x * eta).exp() - 1)
        if not poisson:
            yield Decimal(0)
        k = 0
        while True:
            yield term
            k += 1
            with localcontext() as context:
                context.prec = digits + 10
                term = term * x / k if poisson else term * step * (k + eta) / (k + 1)

    def draw(self, words: Callable[[int], Any]) -> int:
        """Draw K exactly from uniform 64-bit words, with more words and digits for close decisions."""
        bits, u = 0, 0
        while True:
            for word in words(2):
                u, bits = (u << 64) | int(word), bits + 64
            with localcontext() as context:
                context.prec = bits
                unit = Decimal(2) ** -bits
                low, total = u * unit, Decimal(0)
                for k, probability in enumerate(self.probabilities(bits // 3)):
                    total += probability
                    slack = (k + 2) * Decimal(10) ** (-bits // 3)
                    if low + unit < total - slack:
                        return k
                    if low <= total + slack:  # too close to decide
                        break

    def to_dict(self) -> JSON:
        """Return the parameters as JSON values."""
        return {"name": self.name, "mean": self.mean, "eta": self.eta}


@dataclass(frozen=True)
class StoppingProfile(PrivacyProfile):
    r"""The best of a random number K of runs of a base mechanism, by Renyi divergence.

    Parameters
    ----------
    base : PrivacyProfile
        The profile of one run.
    law : StoppingLaw
        The distribution of the number of runs.

    Notes
    -----
    Let rho be the Renyi curve of the base. For the truncated negative binomial ::

        rho'(a) = rho(a) + (1 + eta) min_b [(1 - 1/b) rho(b) + log(1/gamma) / b] + log E K / (a - 1)

    and for the Poisson distribution, with d the delta of the base at log(1 + 1/(a - 1)), ::

        rho'(a) = rho(a) + m d + log m / (a - 1).

    ``delta`` converts this curve and adds the probability of the event on which the base's curve
    may fail. With the negative binomial, a pure base costs (2 + eta) epsilon.

    References
    ----------
    Papernot & Steinke (2022), Theorems 2 and 6.
    """

    kind: ClassVar[str] = "random-stopping"
    precision: ClassVar[float] = 1e-10
    by_renyi: ClassVar[bool] = True
    base: PrivacyProfile
    law: StoppingLaw

    def rdp(self, order: float) -> float:
        """Return the smallest bound of the theorem over this order and all larger ones.

        It is at most the bound for a pure base.
        """
        orders, bounds = _curve(self)
        place = int(np.searchsorted(orders, order))
        later = bounds[place:]
        if len(later) and orders[place] == order:
            return float(later[0])
        return min(self._bound(order), float(later.min(initial=math.inf)))

    def _bound(self, order: float) -> float:
        base = self.base.rdp(order)
        if not base < math.inf:
            return math.inf
        if self.law.name == "poisson":
            at = math.log1p(1 / (order - 1))
            missed = (1 + math.exp(at)) * self.base.rdp_miss
            extra = self.law.mean * min(self.base.delta(at * (1 - 1e-15)) + missed, 1.0)
        else:
            extra = (1 + self.law.eta) * _inner_minimum(self.base, self.law.log_odds)
        found = (base + extra + math.log(self.law.greatest_mean) / (order - 1)) * _UP
        return min(found, self._pure())

    def _pure(self) -> float:
        """Return (2 + eta) epsilon for a pure base under the negative binomial; inf otherwise."""
        if not isinstance(self.base, PureProfile) or self.law.name == "poisson":
            return math.inf
        return (2 + self.law.eta) * self.base.epsilon_value * _UP

    @property
    def rdp_miss(self) -> float:
        """The probability for the base, times the expected number of runs."""
        return min(self.law.greatest_mean * self.base.rdp_miss, 1.0)

    def delta(self, epsilon: float) -> float:
        """Return the conversion of the Renyi curve, rounded up."""
        if epsilon >= self._pure():
            return 0.0
        found = _converted(self, epsilon)
        return min(found + self.renyi_missed(epsilon), 1.0)

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon >= 0, rounded up, searched near the best order's formula."""
        orders, rho = _curve(self)
        if not is_real(delta) or not 0 < delta < 1 or not len(orders):
            return super().epsilon(delta)
        guess = rho + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
        low, high = float(guess.min()) * (1 - 1e-9), float(guess.min()) * (1 + 1e-9)
        if not low > 0 or self.delta(low) <= delta or self.delta(high) > delta:
            return super().epsilon(delta)
        return bisect(lambda e: self.delta(e) > delta, low, high, self.precision)[1]

    def to_dict(self) -> JSON:
        """Return the kind, the base and the law."""
        return {"kind": self.kind, "base": self.base.to_dict(), "law": self.law.to_dict()}


@lru_cache(maxsize=256)
def _curve(profile: StoppingProfile) -> tuple[Array, Array]:
    """Return the orders with a finite Renyi bound, and the bounds, which grow with the order."""
    pairs = [(order, profile._bound(order)) for order in ORDERS]
    known = np.array([pair for pair in pairs if pair[1] < math.inf]).reshape(-1, 2)
    return known[:, 0], np.minimum.accumulate(known[::-1, 1])[::-1]


def _converted(profile: StoppingProfile, epsilon: float) -> float:
    """Return the smallest delta over the orders, as ``rdp_delta`` does, from a stored curve."""
    orders, rho = _curve(profile)
    if not len(orders):
        return 1.0
    logs = (orders - 1) * (rho - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return min(1.0, max(math.exp(min(float(logs.min()), 0.0)) * (1 + 1e-10), 5e-324))


@lru_cache(maxsize=256)
def _inner_minimum(base: PrivacyProfile, log_odds: float) -> float:
    """Return min_b (1 - 1/b) rho(b) + log(1/gamma) / b over b >= 1."""
    found = log_odds  # b = 1
    for order in _HIGHER:
        rho = base.rdp(order)
        if rho < math.inf:
            found = min(found, (1 - 1 / order) * rho + log_odds / order)
    return found * _UP


def _mean_runs(eta: float, log_odds: float) -> float:
    """Return E K of the truncated negative binomial with gamma = exp(-log_odds)."""
    ahead = math.expm1(log_odds)  # (1 - gamma) / gamma
    if eta == 0:
        return ahead / log_odds
    return eta * ahead / -math.expm1(-eta * log_odds)


@lru_cache(maxsize=256)
def _log_inverse_gamma(eta: float, mean: float) -> float:
    high = 1.0
    while _mean_runs(eta, high) < mean:
        high *= 2
    return bisect(lambda x: _mean_runs(eta, x) < mean, 0.0, high)[1]
