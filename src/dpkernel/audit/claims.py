"""What an estimator claims, as a profile for the pair of data sets that an attack uses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpkernel.audit.copies import leaf, parameters
from dpkernel.errors import ParameterError, parameter_message
from dpkernel.profiles import ApproximateProfile, GaussianProfile, PrivacyProfile, PureProfile
from dpkernel.types import JSON, Budget, Neighbours, is_real


def claimed_profile(claim: Any, model: Any) -> PrivacyProfile:
    """Return the claim as a profile; None is that of a fitted model's certificate."""
    if isinstance(claim, PrivacyProfile):
        return claim
    if claim is not None:
        budget = _budget(claim)
        if budget.pure:
            return PureProfile(budget.epsilon)
        return ApproximateProfile(budget.epsilon, budget.delta)
    certificate = getattr(model, "certificate_", None)
    if certificate is None:
        advice = "The estimator has no certificate_: say what it claims, as in claim=(1, 1e-6)."
        allowed = "a PrivacyProfile, a Budget or a pair (epsilon, delta)"
        raise ParameterError(parameter_message("audit", "claim", allowed, None, advice))
    profile: PrivacyProfile = certificate.profile
    return profile


def claimed_delta(delta: float | None, claim: Any, model: Any) -> float:
    """Return the delta at which epsilon is bounded: as stated, of the claim, of the estimator."""
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
    """Return the neighbours: as stated, of the certificate, as declared by the estimator or its parts.

    None where nobody says.
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
class TwoSteps(PrivacyProfile):
    r"""What a guarantee for blanked records says about replaced ones: two steps through a null.

    Guarantee    delta_2(eps) <= min over a + b = eps of delta(a) + e^a delta(b).
    """

    kind: ClassVar[str] = "two-steps"
    one: PrivacyProfile

    def delta(self, epsilon: float) -> float:
        """Return the best bound over a few splits of epsilon."""
        if epsilon < 0:  # both directions hold: 1 - e^eps (1 - delta(-eps))
            return min(1.0, 1 - math.exp(epsilon) * (1 - self.delta(-epsilon)))
        shares = [float(a) for a in epsilon * np.linspace(0, 1, 9)]
        found = [self.one.delta(a) + math.exp(a) * self.one.delta(epsilon - a) for a in shares]
        return min(1.0, min(found))

    def rdp(self, order: float) -> float:
        """Unknown."""
        return math.inf

    def to_dict(self) -> JSON:
        """Return the kind and the one step."""
        return {"kind": self.kind, "one": self.one.to_dict()}


def claim_for_replaced(claim: PrivacyProfile, relation: Neighbours | None) -> PrivacyProfile:
    """Return what a claim says about tables in which one record is replaced."""
    if relation is None or relation is Neighbours.REPLACE_ONE:
        return claim
    if isinstance(claim, GaussianProfile):  # two steps of mu-Gaussian-DP are 2 mu
        return GaussianProfile(2 * claim.mu_value)
    return TwoSteps(claim)


def replaced_in_words(relation: Neighbours | None) -> str:
    """Return how the two tables differ."""
    if relation is None or relation is Neighbours.REPLACE_ONE:
        return "one record replaced"
    return f"one record replaced, two steps of {relation.value}"
