"""Express the claim of an estimator as a profile for the pair of data sets that an attack uses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, Budget, Neighbours, is_real
from dpkernel.privacy.profiles import (
    ApproximateProfile,
    GaussianProfile,
    PrivacyProfile,
    PureProfile,
)
from dpkernel.proof.audit.copies import leaf, parameters


def claimed_profile(claim: Any, model: Any) -> PrivacyProfile:
    """Return the claim as a profile. None means the claim of the fitted model's certificate."""
    if isinstance(claim, PrivacyProfile):
        return claim
    if claim is not None:
        budget = _budget(claim)
        if budget.pure:
            return PureProfile(budget.epsilon)
        return ApproximateProfile(budget.epsilon, budget.delta)
    certificate = getattr(model, "certificate_", None)
    if certificate is None:
        advice = "The estimator has no certificate_. State what it claims, as in claim=(1, 1e-6)."
        allowed = "a PrivacyProfile, a Budget or a pair (epsilon, delta)"
        raise ParameterError(parameter_message("audit", "claim", allowed, None, advice))
    profile: PrivacyProfile = certificate.profile
    return profile


def claimed_delta(delta: float | None, claim: Any, model: Any) -> float:
    """Return the delta at which epsilon is bounded: the stated one, or the claim's or estimator's."""
    if delta is not None:
        if not is_real(delta) or not 0 <= delta < 1:
            allowed = "a float in the range [0, 1)"
            raise ParameterError(parameter_message("audit", "delta", allowed, delta))
        return float(delta)
    if isinstance(claim, PureProfile):
        return 0.0
    if claim is not None and not isinstance(claim, PrivacyProfile):
        return _budget(claim).delta
    found = parameters(model)
    stated = [found[path] for path in sorted(found, key=_depth) if leaf(path) == "delta"]
    usable = [float(each) for each in stated if is_real(each) and 0 <= each < 1]
    return usable[0] if usable else 1e-6


def _budget(claim: Any) -> Budget:
    return claim if isinstance(claim, Budget) else Budget(*claim)


def _depth(path: str) -> int:
    return path.count("__")


def declared_relation(
    model: Any, stated: str | Neighbours | None = None, fitted: Any = None
) -> Neighbours | None:
    """Return the neighbouring relation, or None if it is not known.

    It is the stated one, or that of the certificate, or the one that the estimator or its parts declare.
    """
    if stated is not None:
        return Neighbours.resolve(stated)
    certified = getattr(getattr(fitted, "certificate_", None), "neighbours", None)
    if certified is not None:
        return Neighbours.resolve(certified)
    found = parameters(model)
    declared = {path: found[path] for path in found if leaf(path) == "neighbours"}
    if declared.get("neighbours") is not None:
        return Neighbours.resolve(declared["neighbours"])
    relations = {Neighbours.resolve(each) for each in declared.values() if each is not None}
    if len(relations) > 1:
        allowed = "stated where parts of the estimator declare different ones"
        names = sorted(relation.value for relation in relations)
        raise ParameterError(parameter_message("audit", "neighbours", allowed, names))
    return relations.pop() if relations else None


@dataclass(frozen=True)
class ClaimedSteps(PrivacyProfile):
    r"""What a guarantee for neighbours implies for tables that are ``count`` such steps apart.

    Notes
    -----
    Guarantee
        If no test of one step has a power above g(alpha) at level alpha, then no test of k steps has a
        power above g(g(...g(alpha))), applied k times. delta_k(eps) is the largest value of this power
        minus e^eps alpha. Also delta_k(eps) <= delta(eps/k) sum_{i<k} e^(i eps/k). The smaller of the
        two bounds is taken.
    Numerics
        g is bounded by the smallest of some of its tangents. On each cell of a grid of alpha, the
        maximum is bounded by the power at the right end minus e^eps times the left end.

    References
    ----------
    Dong, Roth & Su (2022), Theorem 2.14; Vadhan (2017), Lemma 2.2.
    """

    kind: ClassVar[str] = "steps"
    one: PrivacyProfile
    count: int

    def delta(self, epsilon: float) -> float:
        """Return the smaller of the two bounds."""
        if epsilon < 0:  # both directions hold: 1 - e^eps (1 - delta(-eps))
            return min(1.0, 1 - math.exp(epsilon) * (1 - self.delta(-epsilon)))
        share = epsilon / self.count
        several = math.fsum(math.exp(min(i * share, 700.0)) for i in range(self.count))
        found = self.one.delta(share) * several
        scale = math.exp(min(epsilon, 700.0))
        return min(1.0, found, float(np.max(self._power - scale * _ALPHA)))

    @cached_property
    def _power(self) -> Array:
        """The largest power at the right end of each cell."""
        slopes = np.exp(_TANGENTS)
        deltas = np.array([self.one.delta(float(epsilon)) for epsilon in _TANGENTS])
        power = np.append(_ALPHA[1:], 1.0)
        for _ in range(self.count):
            largest = np.ones_like(power)
            for slope, delta in zip(slopes, deltas, strict=True):
                np.minimum(largest, delta + slope * power, out=largest)
                np.minimum(largest, 1 - (1 - delta - power) / slope, out=largest)
            power = largest
        return power

    def rdp(self, order: float) -> float:
        """Unknown."""
        return math.inf

    def to_dict(self) -> JSON:
        """Return the kind, the profile of one step and the number of steps."""
        return {"kind": self.kind, "one": self.one.to_dict(), "count": self.count}


_ALPHA = np.append(0.0, np.geomspace(1e-13, 1.0, 6000))  # levels of tests
_TANGENTS = np.append(0.0, np.geomspace(1e-3, 30.0, 200))  # epsilons


def claim_for_replaced(
    claim: PrivacyProfile, relation: Neighbours | None, records: int = 1
) -> PrivacyProfile:
    """Return what a claim implies for tables in which this many records are replaced."""
    steps = records * (1 if relation in (None, Neighbours.REPLACE_ONE) else 2)
    if steps == 1:
        return claim
    if isinstance(claim, GaussianProfile):  # k steps of mu-Gaussian-DP are k mu
        return GaussianProfile(steps * claim.mu_value)
    return ClaimedSteps(claim, steps)


def replaced_in_words(relation: Neighbours | None, records: int = 1) -> str:
    """Return how the two tables differ."""
    who = "one record replaced" if records == 1 else f"{records} records replaced"
    if relation is None or relation is Neighbours.REPLACE_ONE:
        return who if records == 1 else f"{who}, {records} steps of replace-one"
    many = "two" if records == 1 else str(2 * records)
    return f"{who}, {many} steps of {relation.value}"
