"""Profiles of Gaussian releases, and of Gaussian releases whose mu is random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy.special import erf, log_ndtr, logsumexp, ndtr, ndtri

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, is_real
from dpkernel.privacy import pld
from dpkernel.privacy.profiles.base import PrivacyProfile, bisect

_PRECISE = 1e-9  # share of rounding errors up to which parts of a budget have room for them
_MOST_ATOMS = 2048  # largest size of a mixture; beyond it atoms are merged upwards


def gaussian_delta(epsilon: float | Array, mu: float | Array) -> Any:
    r"""Return an upper bound on G(epsilon; mu), the profile of the Gaussian mechanism.

    G(epsilon; mu) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu),  mu = Delta/sigma.
    The function broadcasts over its arguments.

    Parameters
    ----------
    epsilon, mu : float or array
        The arguments, over which the function broadcasts.

    Notes
    -----
    G = e^a (1 - e^(b - a)), where a and b come from log Phi. Their error, from rounded arguments
    and from log Phi itself, is below ``16 u (|a| + |b| + epsilon + 1)`` with u = 2^-53. It is added
    where it enlarges the result. Where G can't be computed, the result is 1.

    References
    ----------
    Balle & Wang (2018), Theorem 8.

    Examples
    --------
    >>> from dpkernel import profiles
    >>> round(float(profiles.gaussian_delta(1.0, 0.5)), 4)
    0.0068
    """
    epsilon, mu = np.asarray(epsilon, float), np.asarray(mu, float)
    e = np.abs(epsilon)
    at_zero = np.where(mu > 0, erf(mu / math.sqrt(8.0)) * (1 + 2e-15), 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        a = log_ndtr(mu / 2 - e / mu)
        b = e + log_ndtr(-mu / 2 - e / mu)
        error = np.minimum(2.0**-49 * (np.abs(a) + np.abs(b) + e + 1), 1.0)
        value = np.exp(a) * (1 + error) * (error - np.expm1(np.minimum(b - a, 0.0)))
    value = np.where(np.isneginf(a), 0.0, np.where(np.isfinite(value), value, 1.0))
    # a value that underflowed is not really zero: keep the smallest positive number
    value = np.where(mu > 0, np.maximum(value, 5e-324), 0.0)
    value = np.minimum(np.minimum(value, at_zero), 1.0)
    if not np.any(epsilon < 0):
        return value[()]
    # the pair is symmetric: delta(-e) = 1 - e^-e + e^-e delta(e)
    mirrored = (np.exp(-e) * value - np.expm1(-e)) * (1 + 1e-15)
    return np.where(epsilon < 0, np.minimum(mirrored, 1.0), value)[()]


@lru_cache(maxsize=4096)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest float mu with G(epsilon; mu) <= delta, so that sigma = Delta / mu.

    The result is the lower end of a bisection, so the mechanism is on the private side. Where rounding
    errors of G are large, as for a tiny epsilon, it is smaller by twice their share, so that G is at
    most delta at every smaller mu, too. Proof: G is convex in mu and 0 at mu = 0, so it falls at least
    in proportion to mu.

    Parameters
    ----------
    epsilon, delta : float
        The budget.

    Examples
    --------
    >>> from dpkernel import profiles
    >>> round(profiles.gaussian_mu(1.0, 1e-6), 4)
    0.2367
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
    found = bisect(lambda mu: bool(gaussian_delta(epsilon, mu) <= delta), low, high)[0]
    doubt = _doubt(epsilon, found) if found > 0 else 0.0
    return found * (1 - min(2 * doubt, 0.5)) if doubt > _PRECISE else found


def _doubt(epsilon: float, mu: float) -> float:
    """Return the share of rounding errors in ``gaussian_delta``."""
    a = float(log_ndtr(mu / 2 - epsilon / mu))
    b = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    error = 2.0**-49 * (abs(a) + abs(b) + epsilon + 1)
    return error / (error - math.expm1(min(b - a, 0.0)))


@dataclass(frozen=True)
class GaussianProfile(PrivacyProfile):
    """The profile of the Gaussian mechanism with mu = sensitivity / sigma, exact at every epsilon.

    Parameters
    ----------
    mu_value : float
        The ratio of sensitivity and sigma.

    Examples
    --------
    >>> from dpkernel import profiles
    >>> round(profiles.GaussianProfile(0.5).epsilon(1e-6), 3)
    2.254
    """

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
        """The parameter mu = sensitivity / sigma."""
        return self.mu_value

    def delta(self, epsilon: float) -> float:
        """Return G(epsilon; mu), rounded up."""
        return float(gaussian_delta(epsilon, self.mu_value))

    @property
    def fineness(self) -> float:
        """The usual grid step, or a fiftieth of mu if that is smaller."""
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
        """Return the exact trade-off curve Phi(Phi^-1(1 - alpha) - mu)."""
        alpha = np.atleast_1d(np.asarray(type_one, dtype=np.float64))
        return np.asarray(ndtr(-ndtri(alpha) - self.mu_value))

    def to_dict(self) -> JSON:
        """Return the kind and mu."""
        return {"kind": self.kind, "mu": self.mu_value}


@dataclass(frozen=True)
class MixtureProfile(PrivacyProfile):
    r"""A Gaussian profile whose mu is random: delta(epsilon) = sum_i p_i G(epsilon; mu_i) + tail.

    It applies to algorithmic randomness I, such as a sampling order, which is drawn afresh for this
    run, has the same distribution on both data sets, and gives the sensitivity Delta_j(I) for a
    change of record j. If I were released as well, the pair would be a mixture of Gaussian pairs,
    and dropping I is post-processing. ``tail`` is the probability that was cut off; it is added to
    delta.

    A mixture has no mu, so its mu^2 must never be added up. Given all the I, everything is
    Gaussian, so mixtures compose by the distribution of mu^2.

    Parameters
    ----------
    mus : tuple of float
        The possible values of mu.
    weights : tuple of float
        Their probabilities, which add up to 1 with the tail.
    tail : float
        The probability that was cut off.
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
        # rounding may leave the weights short of 1: the rest goes to the largest mu
        missing = max(0.0, 1 - self.tail - math.fsum(weights))
        weights[int(np.argmax(mus))] += missing * (1 + 1e-15)
        object.__setattr__(self, "_mus", mus)
        object.__setattr__(self, "_weights", weights)

    def delta(self, epsilon: float) -> float:
        """Return the expected Gaussian delta plus the tail, rounded up."""
        total = float(np.sum(self._weights * gaussian_delta(epsilon, self._mus))) + self.tail
        return float(self._bounded(np.array([total]))[0])

    def _deltas(self, epsilons: Array) -> Array:
        total = np.full(len(epsilons), self.tail)
        for mu, weight in zip(self._mus, self._weights, strict=True):
            total += weight * gaussian_delta(epsilons, mu)
        return self._bounded(total)

    def _bounded(self, total: Array) -> Array:
        floor = 5e-324 if self._mus.max() > 0 else 0.0  # delta may underflow but is never really 0
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
        if count == 1:
            return self
        power, total = self, MixtureProfile((0.0,), (1.0,))
        while count:
            if count & 1:
                total = total.combine(power)
            count >>= 1
            if count:
                power = power.combine(power)
        return total

    def combine(self, other: MixtureProfile) -> MixtureProfile:
        """Return the composition: convolve the distributions of mu^2 and round cells up."""
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
