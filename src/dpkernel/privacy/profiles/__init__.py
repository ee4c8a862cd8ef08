r"""Privacy profiles: delta as a function of epsilon, for one release or many.

A profile is a frozen value. ``delta(epsilon)`` is an upper bound on the hockey-stick divergence
sup_S P(S) - e^epsilon Q(S) over neighbouring data sets, in both directions. ``epsilon(delta)`` is
the upper end of a bisection. All rounding goes in the direction that claims less privacy.

The available profiles are::

    GaussianProfile     exact; k copies compose to sqrt(k) mu
    MixtureProfile      a Gaussian whose mu is random and data-independent
    PureProfile         epsilon-DP: the randomised-response pair
    ApproximateProfile  only one point (epsilon, delta) is known
    SampledGaussianProfile
                        steps of a Gaussian on a sum over a random batch
    ObjectiveProfile    objective perturbations, alone or with Gaussian releases
    MixingProfile       Gaussian mixing: random combinations of all records plus noise
    MaximumProfile      disjoint rows: any two neighbours differ in one of its parts only
    StoppingProfile     the best of a random number of private runs
    ComposedProfile     any other composition: the smallest bound of PLD (by dp-accounting), Renyi
                        and basic composition

To add a profile, write a subclass and add a line to the registry at the foot of this file.
"""

from __future__ import annotations

from collections.abc import Callable

from dpkernel.foundations.errors import CertificateError
from dpkernel.foundations.types import JSON
from dpkernel.privacy.profiles.base import PrivacyProfile, rdp_delta
from dpkernel.privacy.profiles.composition import ComposedProfile, compose
from dpkernel.privacy.profiles.gaussian import (
    GaussianProfile,
    MixtureProfile,
    gaussian_delta,
    gaussian_mu,
)
from dpkernel.privacy.profiles.mixing import MixingProfile, mixing_ratio
from dpkernel.privacy.profiles.objective import ObjectiveProfile, objective_multiplier
from dpkernel.privacy.profiles.pure import ApproximateProfile, PureProfile
from dpkernel.privacy.profiles.sampled import SampledGaussianProfile
from dpkernel.privacy.profiles.selection import (
    MaximumProfile,
    StoppingLaw,
    StoppingProfile,
    maximum,
)

__all__ = [
    "ApproximateProfile",
    "ComposedProfile",
    "GaussianProfile",
    "MaximumProfile",
    "MixingProfile",
    "MixtureProfile",
    "ObjectiveProfile",
    "PrivacyProfile",
    "PureProfile",
    "SampledGaussianProfile",
    "StoppingLaw",
    "StoppingProfile",
    "compose",
    "gaussian_delta",
    "gaussian_mu",
    "maximum",
    "mixing_ratio",
    "objective_multiplier",
    "profile_from_dict",
    "rdp_delta",
]


def profile_from_dict(data: JSON) -> PrivacyProfile:
    """Return the profile that ``to_dict`` described.

    Parameters
    ----------
    data : dict
        JSON values, as ``to_dict`` returns them.

    Raises
    ------
    CertificateError
        If they describe no profile.
    """
    try:
        return _REGISTRY[data["kind"]](data)
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        known = ", ".join(sorted(_REGISTRY))
        raise CertificateError(
            f"The profile of this certificate can't be read ({error}). Its 'kind' must be one of"
            f" {known}, with that kind's parameters."
        ) from error


_REGISTRY: dict[str, Callable[[JSON], PrivacyProfile]] = {
    "gaussian": lambda d: GaussianProfile(d["mu"]),
    "gaussian-mixture": lambda d: MixtureProfile(tuple(d["mus"]), tuple(d["weights"]), d["tail"]),
    "sampled-gaussian": lambda d: SampledGaussianProfile(
        d["mu"], d["rate"], d["sampling"], d["steps"]
    ),
    "pure": lambda d: PureProfile(d["epsilon"]),
    "approximate": lambda d: ApproximateProfile(d["epsilon"], d["delta"]),
    "objective-perturbation": ObjectiveProfile.from_dict,
    "gaussian-mixing": lambda d: MixingProfile(d["rows"], d["ratio"], d["neighbours"]),
    "maximum": lambda d: MaximumProfile(tuple(profile_from_dict(p) for p in d["parts"])),
    "random-stopping": lambda d: StoppingProfile(
        profile_from_dict(d["base"]), StoppingLaw(**d["law"])
    ),
    "composed": lambda d: ComposedProfile(tuple(profile_from_dict(p) for p in d["parts"])),
}
