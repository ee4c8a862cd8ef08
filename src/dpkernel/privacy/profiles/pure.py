"""Profiles of pure epsilon-DP, and of mechanisms with one known point (epsilon, delta)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from scipy.special import ndtri

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, is_real
from dpkernel.privacy import pld
from dpkernel.privacy.profiles.base import PrivacyProfile


@dataclass(frozen=True)
class PureProfile(PrivacyProfile):
    """Pure epsilon-DP, which is dominated by randomised response with this epsilon.

    Parameters
    ----------
    epsilon_value : float
        The epsilon of the mechanism.

    Examples
    --------
    >>> from dpkernel import profiles
    >>> profiles.PureProfile(1.0).delta(1.0)
    0.0
    >>> round(profiles.PureProfile(1.0).delta(0.5), 3)
    0.288
    """

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
        """The mu of the Gaussian pair through the corner of the trade-off curve, rounded up.

        The curve of randomised response consists of two chords from (0, 1) and (1, 0) to the corner
        (a, a) with a = 1/(1 + e^epsilon). The convex Gaussian curve through that corner lies below.
        """
        # -2 Phi^-1(a); for tiny epsilon, 2 sqrt(2 pi) (1/2 - a) is a bound without cancellation
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
        inside = -math.expm1(epsilon - own) / (1 + math.exp(-own)) * (1 + 1e-15)
        return min(
            1.0, math.nextafter(inside, math.inf)
        )  # because a fraction of a subnormal number rounds to zero

    @property
    def fineness(self) -> float:
        """The usual grid step, or a twentieth of epsilon if that is smaller."""
        return min(pld.STEP, self.epsilon_value / 20 or pld.STEP)

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of this profile, or less if delta > 0 allows it."""
        return self.epsilon_value if delta == 0 else super().epsilon(delta)

    def rdp(self, order: float) -> float:
        """Return the Renyi divergence of randomised response, at most epsilon."""
        own = self.epsilon_value
        t = (order - 1) * own
        if t > 300:  # sinh and cosh then equal e^t / 2 up to 10^-260
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
    """A mechanism for which only one point (epsilon, delta) is known.

    Parameters
    ----------
    epsilon_value, delta_value : float
        The known point.

    Examples
    --------
    >>> from dpkernel import profiles
    >>> profiles.ApproximateProfile(1.0, 1e-6).epsilon(1e-6)
    1.0
    """

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
        """The usual grid step, or a twentieth of epsilon if that is smaller."""
        return min(pld.STEP, self.epsilon_value / 20 or pld.STEP)

    @property
    def spread(self) -> float:
        """Epsilon."""
        return self.epsilon_value

    def delta(self, epsilon: float) -> float:
        """Return delta_0 plus (1 - delta_0) times the delta of randomised response."""
        pure = PureProfile(self.epsilon_value).delta(epsilon)
        if pure == 0:
            return self.delta_value
        return min(1.0, (self.delta_value + (1 - self.delta_value) * pure) * (1 + 4e-16))

    def rdp(self, order: float) -> float:
        """Return inf unless delta is 0, because the leaked event has no Renyi bound."""
        return PureProfile(self.epsilon_value).rdp(order) if self.delta_value == 0 else math.inf

    def pld(self, step: float = pld.STEP) -> pld.Distribution | None:
        """Return dp-accounting's distribution for the point."""
        useful = self.epsilon_value < 200 and self.delta_value < 1
        return pld.point(self.epsilon_value, self.delta_value, step) if useful else None

    def to_dict(self) -> JSON:
        """Return the kind and the point."""
        return {"kind": self.kind, "epsilon": self.epsilon_value, "delta": self.delta_value}
