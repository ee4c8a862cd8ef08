r"""Privacy profiles: delta as a function of epsilon, for one release or many.

A profile is a frozen value. ``delta(epsilon)`` is an upper bound on the
hockey-stick divergence sup_S P(S) - e^epsilon Q(S) over neighbouring data sets,
both directions; ``epsilon(delta)`` is the upper end of a bisection. Whatever is
rounded is rounded towards less privacy claimed.

    GaussianProfile     exact; k copies compose to sqrt(k) mu
    MixtureProfile      a Gaussian whose mu is random and data-independent
    PureProfile         epsilon-DP: the randomised-response pair
    ApproximateProfile  only one point (epsilon, delta) is known
    ComposedProfile     the rest: PLD by dp-accounting, Renyi or basic composition,
                        whichever is smallest

A new profile is a subclass and a line in the registry at the foot of this file.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy.special import erf, log_ndtr, logsumexp, ndtr, ndtri

from dpkernel import pld
from dpkernel.errors import CertificateError, ParameterError, parameter_message
from dpkernel.sensitivity import round_up
from dpkernel.types import JSON, Array, Budget, is_real

_ORDERS = tuple(1 + 10.0**e for e in np.linspace(-2, 4, 121))  # Renyi orders that are tried
_MOST_ATOMS = 2048  # of a mixture; beyond it atoms are merged upwards


def gaussian_delta(epsilon: float | Array, mu: float | Array) -> Any:
    r"""Return an upper bound on G(epsilon; mu), the profile of the Gaussian mechanism.

    G(epsilon; mu) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu),  mu = Delta/sigma.

    Numerics    G = e^a (1 - e^(b - a)) with a, b from log Phi. Their error, from rounded arguments
                and from log Phi itself, is below 16 u (|a| + |b| + epsilon + 1) with u = 2^-53,
                and is added where it enlarges the result; what can't be computed counts as 1.
                Broadcasts over its arguments.
    Reference   Balle & Wang (2018), Theorem 8.
    """
    epsilon, mu = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(mu, float))
    e = np.abs(epsilon)
    at_zero = np.where(mu > 0, erf(mu / math.sqrt(8.0)) * (1 + 2e-15), 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        a = log_ndtr(mu / 2 - e / mu)
        b = e + log_ndtr(-mu / 2 - e / mu)
        error = np.minimum(2.0**-49 * (np.abs(a) + np.abs(b) + e + 1), 1.0)
        value = np.exp(a) * (1 + error) * (error - np.expm1(np.minimum(b - a, 0.0)))
    value = np.where(np.isneginf(a), 0.0, np.where(np.isfinite(value), value, 1.0))
    # a value that underflowed is not zero in truth: keep the smallest positive number
    value = np.where(mu > 0, np.maximum(value, 5e-324), 0.0)
    value = np.minimum(np.minimum(value, at_zero), 1.0)
    # the pair is symmetric: delta(-e) = 1 - e^-e + e^-e delta(e)
    mirrored = (np.exp(-e) * value - np.expm1(-e)) * (1 + 1e-15)
    return np.where(epsilon < 0, np.minimum(mirrored, 1.0), value)[()]


@lru_cache(maxsize=4096)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest float mu with G(epsilon; mu) <= delta: sigma = Delta / mu.

    The lower end of a bisection, so that the mechanism is on the private side.
    """
    if not 0 < epsilon < math.inf or not 0 < delta < 1:
        advice = "Gaussian noise needs delta > 0; ask for pure epsilon with another mechanism."
        raise ParameterError(
            parameter_message(
                "gaussian_mu", "epsilon, delta", "in (0, inf) and (0, 1)", (epsilon, delta), advice
            )
        )
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon, high) <= delta:
        low, high = high, 2 * high
    return _bisect(lambda mu: bool(gaussian_delta(epsilon, mu) <= delta), low, high)[0]


class PrivacyProfile(ABC):
    """Delta as a function of epsilon; immutable, hashable, serialisable."""

    kind: ClassVar[str]

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Return an upper bound on delta at this epsilon, any real number."""

    @abstractmethod
    def rdp(self, order: float) -> float:
        """Return an upper bound on the Renyi divergence of this order > 1 (inf if unknown)."""

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
        if self.delta(0.0) <= delta:
            return 0.0
        high = 1.0
        while self.delta(high) > delta:
            high *= 2
            if high > 1e12:
                return math.inf
        return _bisect(lambda e: self.delta(e) > delta, 0.0, high)[1]

    def compose(self, *others: PrivacyProfile) -> PrivacyProfile:
        """Return the profile of this release followed by the others, each chosen adaptively."""
        return compose((self, *others))

    def repeat(self, count: int) -> PrivacyProfile:
        """Return the profile of ``count`` releases like this one."""
        return compose([self] * count)

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


@dataclass(frozen=True)
class GaussianProfile(PrivacyProfile):
    """The Gaussian mechanism with mu = sensitivity / sigma, exact at every epsilon."""

    kind: ClassVar[str] = "gaussian"
    mu_value: float

    def __post_init__(self) -> None:
        if not is_real(self.mu_value) or not 0 <= self.mu_value < math.inf:
            raise ParameterError(
                parameter_message(
                    "GaussianProfile", "mu", "a float in the range [0, inf)", self.mu_value
                )
            )
        object.__setattr__(self, "mu_value", float(self.mu_value))

    @property
    def mu(self) -> float:
        """The mu of the pair."""
        return self.mu_value

    def delta(self, epsilon: float) -> float:
        """Return G(epsilon; mu), rounded up."""
        return float(gaussian_delta(epsilon, self.mu_value))

    @property
    def fineness(self) -> float:
        """A fiftieth of mu, where that is less than usual."""
        return min(pld.STEP, self.mu_value / 50 or pld.STEP)

    def repeat(self, count: int) -> PrivacyProfile:
        """Return the Gaussian with sqrt(count) mu."""
        return (
            self if count == 1 else GaussianProfile(self.mu_value * math.sqrt(count) * (1 + 4e-16))
        )

    def rdp(self, order: float) -> float:
        """Return order mu^2 / 2."""
        return order * self.mu_value**2 / 2

    def pld(self, step: float = pld.STEP) -> pld.Distribution | None:
        """Return dp-accounting's distribution of this pair."""
        return pld.gaussian(self.mu_value, step) if self.mu_value < 20 else None

    def trade_off(self, type_one: Array | Sequence[float] | float) -> Array:
        """Return Phi(Phi^-1(1 - alpha) - mu), the exact curve."""
        alpha = np.atleast_1d(np.asarray(type_one, dtype=np.float64))
        return np.asarray(ndtr(-ndtri(alpha) - self.mu_value))

    def to_dict(self) -> JSON:
        """Return the kind and mu."""
        return {"kind": self.kind, "mu": self.mu_value}


@dataclass(frozen=True)
class MixtureProfile(PrivacyProfile):
    r"""A Gaussian whose mu is random: delta(epsilon) = sum_i p_i G(epsilon; mu_i) + tail.

    For algorithmic randomness I (a sampling order, say) that is drawn afresh for this run, has
    the same law on both data sets, and gives sensitivity Delta_j(I) for a change of record j.
    Releasing I as well makes the pair a mixture of Gaussian pairs, and dropping it is
    post-processing. ``tail`` is probability that was cut off; it is added to delta.

    It has no mu: never add its mu^2. Given the I's everything is Gaussian, so mixtures compose
    by the law of mu^2.
    """

    kind: ClassVar[str] = "gaussian-mixture"
    mus: tuple[float, ...]
    weights: tuple[float, ...]
    tail: float = 0.0
    _mus: Array = field(init=False, repr=False, compare=False)
    _weights: Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = (*self.mus, *self.weights, self.tail)
        if not all(is_real(number) for number in numbers):
            raise ParameterError(
                "The 'mus', 'weights' and 'tail' of MixtureProfile must be numbers."
            )
        object.__setattr__(self, "mus", tuple(float(mu) for mu in self.mus))
        object.__setattr__(self, "weights", tuple(float(w) for w in self.weights))
        object.__setattr__(self, "tail", float(self.tail))
        mus, weights = np.array(self.mus), np.array(self.weights)
        fine = mus.shape == weights.shape and mus.ndim == 1 and mus.size > 0
        fine = fine and bool(np.all(mus >= 0) and np.all(np.isfinite(mus)) and np.all(weights >= 0))
        if not fine or not 0 <= self.tail < 1 or not abs(weights.sum() + self.tail - 1) < 1e-12:
            raise ParameterError(
                parameter_message(
                    "MixtureProfile",
                    "weights",
                    "probabilities, one for each finite mu >= 0, that add up to 1 with the tail",
                    f"{weights.size} weights with sum {weights.sum():.12g} for {mus.size} mus",
                )
            )
        # what the weights miss by rounding goes to the largest mu
        missing = max(0.0, 1 - self.tail - math.fsum(weights))
        weights[int(np.argmax(mus))] += missing * (1 + 1e-15)
        object.__setattr__(self, "_mus", mus)
        object.__setattr__(self, "_weights", weights)

    def delta(self, epsilon: float) -> float:
        """Return the expected Gaussian delta plus the tail, rounded up."""
        return float(self._deltas(np.array([epsilon]))[0])

    def _deltas(self, epsilons: Array) -> Array:
        total = np.full(len(epsilons), self.tail)
        for mu, weight in zip(self._mus, self._weights, strict=True):
            total += weight * gaussian_delta(epsilons, mu)
        floor = 5e-324 if self._mus.max() > 0 else 0.0  # never zero in truth: it may underflow
        return np.clip(total * (1 + 1e-12), floor, 1.0)

    def rdp(self, order: float) -> float:
        """Return log E exp(order (order - 1) mu^2 / 2) / (order - 1); inf if a tail was cut."""
        if self.tail > 0:
            return math.inf
        exponent = order * (order - 1) * self._mus**2 / 2
        return float(logsumexp(exponent, b=self._weights)) / (order - 1) * (1 + 1e-12)

    def pld(self, step: float = pld.STEP) -> pld.Distribution | None:
        """Return a pessimistic discretisation of this profile."""
        reach = self.epsilon(min(self.tail * (1 + 1e-9) + 1e-17, 0.5))
        return pld.from_profile(self._deltas, reach, step) if reach < math.inf else None

    def repeat(self, count: int) -> PrivacyProfile:
        """Return the composition of ``count`` copies, by repeated doubling."""
        power, total = self, MixtureProfile((0.0,), (1.0,))
        while count:
            if count & 1:
                total = total.combine(power)
            count >>= 1
            if count:
                power = power.combine(power)
        return total

    def combine(self, other: MixtureProfile) -> MixtureProfile:
        """Return the composition: the law of mu^2 is convolved; cells are rounded up."""
        squares = np.add.outer(self._mus**2, other._mus**2).ravel()
        weights = np.multiply.outer(self._weights, other._weights).ravel()
        mus = np.nextafter(np.sqrt(squares * (1 + 4e-16)), math.inf)
        order = np.argsort(mus)
        mus, weights = mus[order], weights[order]
        if mus.size > _MOST_ATOMS:  # keep the largest mu of each cell
            cells = np.unique(np.linspace(0, mus.size - 1, _MOST_ATOMS).astype(int))
            sums = np.add.reduceat(weights, np.concatenate(([0], cells[:-1] + 1)))
            mus, weights = mus[cells], sums
        tail = self.tail + other.tail - self.tail * other.tail
        weights = weights / weights.sum() * (1 - tail)
        return MixtureProfile(tuple(mus.tolist()), tuple(weights.tolist()), tail)

    def to_dict(self) -> JSON:
        """Return the kind, the atoms and the tail."""
        return {
            "kind": self.kind,
            "mus": list(self.mus),
            "weights": list(self.weights),
            "tail": self.tail,
        }


@dataclass(frozen=True)
class PureProfile(PrivacyProfile):
    """Pure epsilon-DP: dominated by randomised response with this epsilon."""

    kind: ClassVar[str] = "pure"
    epsilon_value: float

    def __post_init__(self) -> None:
        if not is_real(self.epsilon_value) or not 0 <= self.epsilon_value < math.inf:
            allowed = "a float in the range [0, inf)"
            raise ParameterError(
                parameter_message("PureProfile", "epsilon", allowed, self.epsilon_value)
            )
        object.__setattr__(self, "epsilon_value", float(self.epsilon_value))

    @property
    def mu(self) -> float:
        """The Gaussian pair through the corner of the trade-off curve, rounded up.

        The curve of randomised response is two chords from (0, 1) and (1, 0) to the corner
        (a, a), a = 1/(1 + e^epsilon); the convex Gaussian curve through that corner lies below.
        """
        # -2 Phi^-1(a); for tiny epsilon 2 sqrt(2 pi) (1/2 - a) is a bound that does not cancel
        corner = -2 * float(ndtri(1 / (1 + math.exp(min(self.epsilon_value, 700.0)))))
        if self.epsilon_value > 700:  # Phi^-1(e^-x) >= -sqrt(2 x)
            corner = 2 * math.sqrt(2 * self.epsilon_value)
        if self.epsilon_value < 1e-3:
            corner = 2 * math.sqrt(2 * math.pi) * self.epsilon_value / 4 * (1 + 1e-6)
        return corner * (1 + 1e-12)

    def delta(self, epsilon: float) -> float:
        """Return the profile of randomised response."""
        own = self.epsilon_value
        if epsilon >= own:
            return 0.0
        if epsilon <= -own:
            return min(1.0, -math.expm1(epsilon) * (1 + 4e-16))
        return min(1.0, -math.expm1(epsilon - own) / (1 + math.exp(-own)) * (1 + 1e-15))

    @property
    def fineness(self) -> float:
        """A twentieth of epsilon, where that is less than usual."""
        return min(pld.STEP, self.epsilon_value / 20 or pld.STEP)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of this profile, less where delta > 0 buys some."""
        return self.epsilon_value if delta == 0 else super().epsilon(delta)

    def rdp(self, order: float) -> float:
        """Return the Renyi divergence of randomised response, at most epsilon."""
        own = self.epsilon_value
        t = (order - 1) * own
        if t > 300:  # sinh and cosh are e^t / 2 then, to 10^-260
            return min(own, (t - math.log1p(math.exp(-own))) / (order - 1) * (1 + 1e-14))
        # log E e^((order-1) loss) = log(cosh t + tanh(own/2) sinh t), written without cancellation
        moment = math.log1p(math.tanh(own / 2) * math.sinh(t) + 2 * math.sinh(t / 2) ** 2)
        return min(own, moment / (order - 1) * (1 + 1e-14))

    def pld(self, step: float = pld.STEP) -> pld.Distribution | None:
        """Return dp-accounting's distribution for (epsilon, 0)."""
        return pld.point(self.epsilon_value, 0.0, step) if self.epsilon_value < 200 else None

    def to_dict(self) -> JSON:
        """Return the kind and epsilon."""
        return {"kind": self.kind, "epsilon": self.epsilon_value}


@dataclass(frozen=True)
class ApproximateProfile(PrivacyProfile):
    """A mechanism of which only one point (epsilon, delta) is known."""

    kind: ClassVar[str] = "approximate"
    epsilon_value: float
    delta_value: float

    def __post_init__(self) -> None:
        fine = is_real(self.epsilon_value) and is_real(self.delta_value)
        if not fine or not (0 <= self.epsilon_value < math.inf and 0 <= self.delta_value <= 1):
            got = (self.epsilon_value, self.delta_value)
            allowed = "in [0, inf) and [0, 1]"
            raise ParameterError(
                parameter_message("ApproximateProfile", "epsilon, delta", allowed, got)
            )
        object.__setattr__(self, "epsilon_value", float(self.epsilon_value))
        object.__setattr__(self, "delta_value", float(self.delta_value))

    @property
    def fineness(self) -> float:
        """A twentieth of epsilon, where that is less than usual."""
        return min(pld.STEP, self.epsilon_value / 20 or pld.STEP)

    @property
    def spread(self) -> float:
        """Epsilon."""
        return self.epsilon_value

    def delta(self, epsilon: float) -> float:
        """Return delta_0 plus (1 - delta_0) times that of randomised response."""
        pure = PureProfile(self.epsilon_value).delta(epsilon)
        if pure == 0:
            return self.delta_value
        return min(1.0, (self.delta_value + (1 - self.delta_value) * pure) * (1 + 4e-16))

    def rdp(self, order: float) -> float:
        """Return inf unless delta is 0: the leaked event has no Renyi bound."""
        return PureProfile(self.epsilon_value).rdp(order) if self.delta_value == 0 else math.inf

    def pld(self, step: float = pld.STEP) -> pld.Distribution | None:
        """Return dp-accounting's distribution for the point."""
        useful = self.epsilon_value < 200 and self.delta_value < 1
        return pld.point(self.epsilon_value, self.delta_value, step) if useful else None

    def to_dict(self) -> JSON:
        """Return the kind and the point."""
        return {"kind": self.kind, "epsilon": self.epsilon_value, "delta": self.delta_value}


@dataclass(frozen=True)
class ComposedProfile(PrivacyProfile):
    """Several different profiles in a row, by the tightest rule that all of them allow.

    PLD composition when every part has a privacy loss distribution; otherwise the better of
    Renyi and basic composition. Parts are fixed in advance; each mechanism may still depend on
    the outputs before it.
    """

    kind: ClassVar[str] = "composed"
    parts: tuple[PrivacyProfile, ...]

    def __post_init__(self) -> None:
        if len(self.parts) < 1:
            raise ParameterError(
                parameter_message("ComposedProfile", "parts", "one or more profiles", self.parts)
            )

    @property
    def fineness(self) -> float:
        """The finest step that a part asks for."""
        return min(part.fineness for part in self.parts)

    @property
    def mu(self) -> float | None:
        """The composed mu, if every part is dominated by a Gaussian pair."""
        mus = [part.mu for part in self.parts]
        return None if None in mus else _hypot_up([mu for mu in mus if mu is not None])

    @property
    def spread(self) -> float:
        """The sum over the parts."""
        return sum(part.spread for part in self.parts)

    def delta(self, epsilon: float) -> float:
        """Return delta by the tightest rule available."""
        basic = self._sum_of_points(epsilon)
        if basic == 0:
            return 0.0
        distribution = self.pld()
        if distribution is not None:
            return min(basic, distribution.delta(epsilon))
        return min(basic, self._basic(epsilon), rdp_delta(self.rdp, epsilon))

    def rdp(self, order: float) -> float:
        """Return the sum of the parts' Renyi bounds."""
        return math.fsum(part.rdp(order) for part in self.parts) * (1 + 1e-15)

    def pld(self, step: float = pld.STEP) -> pld.Distribution | None:
        """Return the convolution of the parts' distributions."""
        wanted = min(step, *(part.fineness for part in self.parts))
        return _composed_pld(self.parts, max(wanted, self.spread * 1e-6))

    def _sum_of_points(self, epsilon: float) -> float:
        """Return the basic bound when every part is known by one point; 1 otherwise."""
        total_epsilon, total_delta = Fraction(0), Fraction(0)
        for part in self.parts:
            if not isinstance(part, (PureProfile, ApproximateProfile)):
                return 1.0
            total_epsilon += Fraction(part.epsilon_value)
            total_delta += Fraction(getattr(part, "delta_value", 0.0))
        delta = round_up(total_delta)
        return ApproximateProfile(round_up(total_epsilon), min(delta, 1.0)).delta(epsilon)

    def _basic(self, epsilon: float) -> float:
        """Return the basic bound: the parts' epsilons at a common delta, by bisection on it."""
        if not epsilon > 0:
            return 1.0
        share = 1.0 / len(self.parts)

        def fits(exponent: float) -> bool:
            delta = 10.0**exponent
            return math.fsum(p.epsilon(delta * share) for p in self.parts) <= epsilon

        low, high = -18.0, 0.0 - 1e-12
        if not fits(high):
            return 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return float(10.0**high)

    def to_dict(self) -> JSON:
        """Return the kind and the parts."""
        return {"kind": self.kind, "parts": [part.to_dict() for part in self.parts]}


def compose(profiles: Sequence[PrivacyProfile]) -> PrivacyProfile:
    """Return the profile of all of these in a row (adaptively chosen mechanisms, fixed plan).

    Gaussians add their mu^2, exactly; Gaussians and mixtures convolve their laws of mu^2;
    anything else becomes a ComposedProfile.
    """
    flat: list[PrivacyProfile] = []
    for profile in profiles:
        flat.extend(profile.parts if isinstance(profile, ComposedProfile) else (profile,))
    if not flat:
        return GaussianProfile(0.0)
    gaussians = [p.mu_value for p in flat if isinstance(p, GaussianProfile)]
    mixtures = [p for p in flat if isinstance(p, MixtureProfile)]
    rest = [p for p in flat if not isinstance(p, (GaussianProfile, MixtureProfile))]
    merged: list[PrivacyProfile] = []
    if gaussians:
        only = gaussians[0] if len(gaussians) == 1 else _hypot_up(gaussians)
        merged.append(GaussianProfile(only))
    if mixtures:
        mixture = mixtures[0]
        for other in mixtures[1:]:
            mixture = mixture.combine(other)
        if merged:
            mixture = mixture.combine(MixtureProfile((merged[0].mu or 0.0,), (1.0,)))
        merged = [mixture]
    pure = [p.epsilon_value for p in rest if isinstance(p, PureProfile)]
    if len(rest) == len(pure) == 1 and not merged:
        return rest[0]
    merged.extend(sorted(rest, key=lambda p: repr(p.to_dict())))
    return merged[0] if len(merged) == 1 else ComposedProfile(tuple(merged))


def rdp_delta(rdp: Callable[[float], float], epsilon: float) -> float:
    """Return the least delta that the Renyi curve proves at this epsilon.

    From epsilon = rho + log((a - 1)/a) - (log delta + log a)/(a - 1) for every order a.
    """
    best = 1.0
    for order in _ORDERS:
        rho = rdp(order)
        if not rho < math.inf:
            continue
        log_delta = (order - 1) * (rho - epsilon + math.log1p(-1 / order)) - math.log(order)
        best = min(best, math.exp(min(log_delta, 0.0)) * (1 + 1e-10))
    return best


def profile_from_dict(data: JSON) -> PrivacyProfile:
    """Return the profile that ``to_dict`` described."""
    try:
        return _REGISTRY[data["kind"]](data)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        known = ", ".join(sorted(_REGISTRY))
        raise CertificateError(
            f"The profile of this certificate can't be read ({error}). Its 'kind' must be one of"
            f" {known}, with that kind's parameters."
        ) from error


@lru_cache(maxsize=64)
def _composed_pld(parts: tuple[PrivacyProfile, ...], step: float) -> pld.Distribution | None:
    distributions = []
    for part in dict.fromkeys(parts):
        one = part.pld(step)
        if one is None:
            return None
        distributions.append(one.repeat(parts.count(part)))
    return pld.convolve(distributions)


def _hypot_up(values: Sequence[float]) -> float:
    return math.nextafter(math.hypot(*values) * (1 + 4e-16), math.inf)


def _bisect(true_below: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return adjacent floats around the point where the predicate turns from true to false."""
    while True:
        middle = low + (high - low) / 2
        if not low < middle < high:
            return low, high
        low, high = (middle, high) if true_below(middle) else (low, middle)


_REGISTRY: dict[str, Callable[[JSON], PrivacyProfile]] = {
    "gaussian": lambda d: GaussianProfile(d["mu"]),
    "gaussian-mixture": lambda d: MixtureProfile(tuple(d["mus"]), tuple(d["weights"]), d["tail"]),
    "pure": lambda d: PureProfile(d["epsilon"]),
    "approximate": lambda d: ApproximateProfile(d["epsilon"], d["delta"]),
    "composed": lambda d: ComposedProfile(tuple(profile_from_dict(p) for p in d["parts"])),
}
