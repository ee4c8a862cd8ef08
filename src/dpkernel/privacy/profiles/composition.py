"""Composition: the profile of several releases in a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import ClassVar

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON
from dpkernel.privacy import pld
from dpkernel.privacy.profiles.base import PrivacyProfile, hypot_up, renyi_delta
from dpkernel.privacy.profiles.gaussian import GaussianProfile, MixtureProfile
from dpkernel.privacy.profiles.mixing import MixingProfile
from dpkernel.privacy.profiles.objective import ObjectiveProfile
from dpkernel.privacy.profiles.pure import ApproximateProfile, PureProfile
from dpkernel.privacy.profiles.sampled import SampledGaussianProfile
from dpkernel.privacy.sensitivity import round_up

_LEAST_EXPONENT, _LARGEST_EXPONENT = (
    -18.0,
    0.0 - 1e-12,
)  # of 10, for the deltas of basic composition


@dataclass(frozen=True)
class ComposedProfile(PrivacyProfile):
    """Several different profiles in a row, by the tightest rule that all of them allow.

    If every part has a privacy loss distribution, these are convolved (PLD composition). Otherwise
    the better of Renyi and basic composition counts. The parts are fixed in advance, but each
    mechanism may depend on the outputs before it.

    Parameters
    ----------
    parts : tuple of PrivacyProfile
        The profiles to compose.

    Examples
    --------
    >>> from dpkernel import profiles
    >>> parts = (profiles.PureProfile(0.5), profiles.GaussianProfile(0.2))
    >>> profiles.ComposedProfile(parts).epsilon(1e-6) < 0.5 + parts[1].epsilon(1e-6)
    True
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
        """The finest step that any part asks for."""
        return min(part.fineness for part in self.parts)

    @property
    def mu(self) -> float | None:
        """The composed mu, if every part is dominated by a Gaussian pair."""
        mus = [part.mu for part in self.parts]
        return None if None in mus else hypot_up([mu for mu in mus if mu is not None])

    @cached_property  # every call of ``delta`` needs it
    def spread(self) -> float:
        """The sum over the parts."""
        return sum(part.spread for part in self.parts)

    def delta(self, epsilon: float) -> float:
        """Return delta by the tightest available rule."""
        basic = self._sum_of_points(epsilon)
        if basic == 0:
            return 0.0
        distribution = self.pld()
        if distribution is not None:
            return min(basic, distribution.delta(epsilon))
        renyi = self._renyi(epsilon)
        if any(part.by_renyi for part in self.parts):
            return min(basic, renyi)
        return min(basic, self._basic(epsilon), renyi)

    def proves(self, epsilon: float, delta: float) -> bool:
        """Return whether one of the rules proves this point, the fastest rule first."""
        if self._sum_of_points(epsilon) <= delta:
            return True
        distribution = self.pld()
        if distribution is not None:
            return distribution.delta(epsilon) <= delta
        if self._renyi(epsilon) <= delta:
            return True
        if any(part.by_renyi for part in self.parts):
            return False
        # ``_basic`` is at most delta if and only if the largest delta of its grid up to this one fits
        if delta >= 10.0**_LARGEST_EXPONENT:
            return self._fits(_LARGEST_EXPONENT, epsilon)
        exponent = _halved(lambda middle: 10.0**middle > delta)[0]
        return exponent > _LEAST_EXPONENT and self._fits(exponent, epsilon)

    def _renyi(self, epsilon: float) -> float:
        """Return the Renyi bound."""
        missed = self.renyi_missed(epsilon)
        return min(renyi_delta(self.renyi_curve, epsilon) + missed, 1.0)

    def rdp(self, order: float) -> float:
        """Return the sum of the parts' Renyi bounds."""
        return math.fsum(part.rdp(order) for part in self.parts) * (1 + 1e-15)

    @property
    def rdp_miss(self) -> float:
        """The sum over the parts, which bounds the probability that any of them misses."""
        return min(math.fsum(part.rdp_miss for part in self.parts) * (1 + 1e-15), 1.0)

    def pld(self, step: float = pld.STEP) -> pld.Distribution | None:
        """Return the convolution of the parts' distributions."""
        wanted = min(step, *(part.fineness for part in self.parts))
        found = _composed_pld if self.lasting else _composed_pld.__wrapped__
        return found(self.parts, max(wanted, self.spread * 1e-6))

    def _sum_of_points(self, epsilon: float) -> float:
        """Return the basic bound if only one point of every part is known, and 1 otherwise."""
        total_epsilon, total_delta = Fraction(0), Fraction(0)
        for part in self.parts:
            if not isinstance(part, (PureProfile, ApproximateProfile)):
                return 1.0
            total_epsilon += Fraction(part.epsilon_value)
            total_delta += Fraction(getattr(part, "delta_value", 0.0))
        delta = round_up(total_delta)
        return ApproximateProfile(round_up(total_epsilon), min(delta, 1.0)).delta(epsilon)

    def _basic(self, epsilon: float) -> float:
        """Return the basic bound: the sum of the parts' epsilons at a common delta, by bisection."""
        if not self._fits(_LARGEST_EXPONENT, epsilon):
            return 1.0
        return float(10.0 ** _halved(lambda middle: self._fits(middle, epsilon))[1])

    def _fits(self, exponent: float, epsilon: float) -> bool:
        """Return whether the epsilons of the parts add up to at most this one at delta 10^exponent."""
        if not epsilon > 0:
            return False
        share = 10.0**exponent * (1.0 / len(self.parts))
        return math.fsum(part.epsilon(share) for part in self.parts) <= epsilon

    def to_dict(self) -> JSON:
        """Return the kind and the parts."""
        return {"kind": self.kind, "parts": [part.to_dict() for part in self.parts]}


def compose(profiles: Sequence[PrivacyProfile]) -> PrivacyProfile:
    """Return the profile of all of these in a row (adaptively chosen mechanisms, fixed plan).

    Gaussian profiles add their mu^2 exactly. Gaussians and mixtures convolve their distributions of
    mu^2. Objective perturbations absorb Gaussian profiles. Equal sampled steps are counted
    together, and mixings with the same ratio add their rows. Anything else becomes a
    ``ComposedProfile``.

    Parameters
    ----------
    profiles : sequence of PrivacyProfile
        The profile of each release. None of them depends on the results of earlier ones.

    Examples
    --------
    >>> from dpkernel import profiles
    >>> pair = profiles.GaussianProfile(0.3), profiles.GaussianProfile(0.4)
    >>> round(profiles.compose(pair).mu_value, 12)
    0.5
    """
    flat: list[PrivacyProfile] = []
    for profile in profiles:
        flat.extend(profile.parts if isinstance(profile, ComposedProfile) else (profile,))
    lasting = all(profile.lasting for profile in flat)
    return (_composed if lasting else _composed.__wrapped__)(tuple(flat))


@lru_cache(maxsize=256)  # plan, ledger and certificate of a fit compose the same releases
def _composed(profiles: tuple[PrivacyProfile, ...]) -> PrivacyProfile:
    flat = _counted(profiles)
    if not flat:
        return GaussianProfile(0.0)
    gaussians = [p.mu_value for p in flat if isinstance(p, GaussianProfile)]
    mixtures = [p for p in flat if isinstance(p, MixtureProfile)]
    objectives = [p for p in flat if isinstance(p, ObjectiveProfile)]
    merging = (GaussianProfile, MixtureProfile, ObjectiveProfile)
    rest = [p for p in flat if not isinstance(p, merging)]
    merged: list[PrivacyProfile] = []
    if gaussians:
        only = gaussians[0] if len(gaussians) == 1 else hypot_up(gaussians)
        merged.append(GaussianProfile(only))
    if mixtures:
        mixture = mixtures[0]
        for other in mixtures[1:]:
            mixture = mixture.combine(other)
        if merged:
            mixture = mixture.combine(MixtureProfile((merged[0].mu or 0.0,), (1.0,)))
        merged = [mixture]
    if objectives:
        stages = objectives[0].combine(*objectives[1:])
        if gaussians and not mixtures:
            stages, merged = stages.with_gaussian(merged[0].mu or 0.0), []
        merged.append(stages)
    mixings = [p for p in rest if isinstance(p, MixingProfile)]
    rest = [p for p in rest if not isinstance(p, MixingProfile)] + _added(mixings)
    pure = [p.epsilon_value for p in rest if isinstance(p, PureProfile)]
    if len(rest) == len(pure) == 1 and not merged:
        return rest[0]
    merged.extend(sorted(rest, key=lambda p: repr(p.to_dict())))
    return merged[0] if len(merged) == 1 else ComposedProfile(tuple(merged))


def _counted(profiles: Sequence[PrivacyProfile]) -> list[PrivacyProfile]:
    """Add up equal sampled steps, and replace steps with full batches by plain Gaussian profiles."""
    found: list[PrivacyProfile] = []
    steps: dict[SampledGaussianProfile, int] = {}
    for profile in profiles:
        if not isinstance(profile, SampledGaussianProfile) or profile.mu is not None:
            plain = isinstance(profile, SampledGaussianProfile)
            found.append(profile.plain() if plain else profile)  # type: ignore[attr-defined]
            continue
        one = replace(profile, steps=1)
        steps[one] = steps.get(one, 0) + profile.steps
    return found + [one.repeat(count) for one, count in steps.items()]


def _added(mixings: Sequence[MixingProfile]) -> list[PrivacyProfile]:
    """Return one profile per ratio and relation, with the total number of rows."""
    rows: dict[tuple[float, str], int] = {}
    for profile in mixings:
        key = profile.ratio, profile.neighbours
        rows[key] = rows.get(key, 0) + profile.rows
    return [MixingProfile(count, *key) for key, count in rows.items()]


def _halved(true_above: Callable[[float], bool]) -> tuple[float, float]:
    """Return two neighbours on the grid of exponents, between which the predicate becomes true.

    The grid is fine enough to know delta to 1e-6 of itself.
    """
    low, high = _LEAST_EXPONENT, _LARGEST_EXPONENT
    for _ in range(26):
        middle = (low + high) / 2
        low, high = (low, middle) if true_above(middle) else (middle, high)
    return low, high


@lru_cache(maxsize=64)
def _composed_pld(parts: tuple[PrivacyProfile, ...], step: float) -> pld.Distribution | None:
    distributions = []
    for part in (part for i, part in enumerate(parts) if part not in parts[:i]):
        one = part.pld(step)
        if one is None:
            return None
        distributions.append(one.repeat(parts.count(part)))
    return pld.convolve(distributions)


PrivacyProfile.all_in_a_row = staticmethod(compose)
