"""Losses: convex functions of a prediction, with the constants that privacy proofs need.

A loss is a frozen value. ``value(y, s)``, ``derivative(y, s)`` and ``curvature(y, s)`` are those of
s -> loss(y, s) at predictions s, entry by entry. Margin losses (``labels = True``) take y = +-1 and
depend on y s; regression losses depend on the residual y - s.

    lipschitz      sup |derivative|; inf if there is none
    smoothness     sup curvature; inf if the derivative jumps
    holder(kappa)  (alpha, L): ||g(w) - g(w')|| <= L ||w - w'||^alpha for the gradients g in w of
                   loss(y, <w, phi>), ||phi|| <= kappa; for alpha = 0, L bounds differences
    at_zero(c)     sup of loss(y, 0) over |y| <= c
    slope_at_zero(c)  sup of |derivative(y, 0)| over |y| <= c

Every constant is attained. Where a loss has a kink, ``derivative`` is one subgradient and
``curvature`` is that of a generalised second derivative (0 on straight parts).

A new loss is a class here and a line in the registry at the foot of this file; the contract tests
then hold its constants against finite differences and random search.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from scipy.special import expit

from dpkernel.errors import CertificateError, ParameterError, parameter_message
from dpkernel.types import JSON, Array, is_real

_TINY = 1e-300  # a parameter below it would overflow where something is divided by it


@dataclass(frozen=True)
class Loss(ABC):
    """A convex, non-negative loss with known constants."""

    kind: ClassVar[str]
    labels: ClassVar[bool]  # y is +1 or -1, and only y s matters

    @abstractmethod
    def value(self, y: Array, s: Array) -> Array:
        """Return the loss of each prediction."""

    @abstractmethod
    def derivative(self, y: Array, s: Array) -> Array:
        """Return a subgradient in s, accurate to 8 ulp of ``lipschitz`` where that is finite."""

    @abstractmethod
    def curvature(self, y: Array, s: Array) -> Array:
        """Return a generalised second derivative in s, in [0, smoothness]."""

    @property
    @abstractmethod
    def lipschitz(self) -> float:
        """The largest slope."""

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """The largest curvature."""

    @abstractmethod
    def holder(self, kappa: float) -> tuple[float, float]:
        """Return the exponent and the constant of the gradient's Hölder continuity."""

    @abstractmethod
    def at_zero(self, c: float) -> float:
        """Return the largest loss of the prediction 0 for targets in [-c, c]."""

    @abstractmethod
    def slope_at_zero(self, c: float) -> float:
        """Return the largest slope at the prediction 0 for targets in [-c, c]."""

    def to_dict(self) -> JSON:
        """Return the kind and the parameters as JSON values."""
        return {"kind": self.kind, **{f.name: getattr(self, f.name) for f in fields(self)}}

    def _require(self, name: str, low: float, high: float, *, closed: bool = False) -> None:
        given = getattr(self, name)
        value = float(given) if is_real(given) else math.nan
        if not (low < value < high or (closed and value in (low, high))):
            ends = "[]" if closed else "()"
            allowed = f"a float in the range {ends[0]}{low:g}, {high:g}{ends[1]}"
            raise ParameterError(parameter_message(type(self).__name__, name, allowed, given))
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class _Margin(Loss):
    """A loss of the margin u = y s, y = +-1."""

    labels: ClassVar[bool] = True

    @abstractmethod
    def _value(self, u: Array) -> Array:
        """Return the loss at a margin."""

    @abstractmethod
    def _slope(self, u: Array) -> Array:
        """Return the derivative in u, at most 0."""

    @abstractmethod
    def _bend(self, u: Array) -> Array:
        """Return the second derivative in u."""

    def value(self, y: Array, s: Array) -> Array:
        """Return the loss of each prediction."""
        with np.errstate(over="ignore"):  # a warning would tell of the data
            return self._value(y * s)

    def derivative(self, y: Array, s: Array) -> Array:
        """Return a subgradient in s."""
        with np.errstate(over="ignore"):
            return y * self._slope(y * s)

    def curvature(self, y: Array, s: Array) -> Array:
        """Return a generalised second derivative in s."""
        with np.errstate(over="ignore"):
            return self._bend(y * s)

    def at_zero(self, c: float = 1.0) -> float:
        """Return the loss at margin 0."""
        return float(self._value(np.zeros(1))[0])

    def slope_at_zero(self, c: float = 1.0) -> float:
        """Return the slope at margin 0."""
        return float(-self._slope(np.zeros(1))[0])


@dataclass(frozen=True)
class _Residual(Loss):
    """A loss of the residual r = y - s."""

    labels: ClassVar[bool] = False

    @abstractmethod
    def _value(self, r: Array) -> Array:
        """Return the loss at a residual."""

    @abstractmethod
    def _slope(self, r: Array) -> Array:
        """Return the derivative in r."""

    @abstractmethod
    def _bend(self, r: Array) -> Array:
        """Return the second derivative in r."""

    def value(self, y: Array, s: Array) -> Array:
        """Return the loss of each prediction."""
        with np.errstate(over="ignore"):  # a warning would tell of the data
            return self._value(y - s)

    def derivative(self, y: Array, s: Array) -> Array:
        """Return a subgradient in s."""
        with np.errstate(over="ignore"):
            return -self._slope(y - s)

    def curvature(self, y: Array, s: Array) -> Array:
        """Return a generalised second derivative in s."""
        with np.errstate(over="ignore"):
            return self._bend(y - s)

    def at_zero(self, c: float) -> float:
        """Return the loss at residual c or -c, whichever is larger."""
        return float(self._value(np.array([-float(c), float(c)])).max())

    def slope_at_zero(self, c: float) -> float:
        """Return the slope at residual c or -c, whichever is larger."""
        return float(np.abs(self._slope(np.array([-float(c), float(c)]))).max())


@dataclass(frozen=True)
class Logistic(_Margin):
    """log(1 + e^-u)."""

    kind: ClassVar[str] = "logistic"

    @property
    def lipschitz(self) -> float:
        """The slope for u -> -inf."""
        return 1.0

    @property
    def smoothness(self) -> float:
        """The curvature at 0."""
        return 0.25

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (1, kappa^2 / 4)."""
        return 1.0, kappa**2 / 4

    def _value(self, u: Array) -> Array:
        return np.logaddexp(0.0, -u)

    def _slope(self, u: Array) -> Array:
        return np.asarray(-expit(-u))

    def _bend(self, u: Array) -> Array:
        p = np.asarray(expit(-np.abs(u)))
        return np.asarray(p * (1 - p))


@dataclass(frozen=True)
class SmoothedHinge(_Margin):
    """The hinge with its kink replaced by a parabola on [1 - width, 1]."""

    kind: ClassVar[str] = "smoothed_hinge"
    width: float = 0.5

    def __post_init__(self) -> None:
        self._require("width", _TINY, 1.0 + 2**-40)

    @property
    def lipschitz(self) -> float:
        """1, as for the hinge."""
        return 1.0

    @property
    def smoothness(self) -> float:
        """1 / width."""
        return 1.0 / self.width

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (1, kappa^2 / width)."""
        return 1.0, kappa**2 / self.width

    def _value(self, u: Array) -> Array:
        short = np.maximum(1.0 - u, 0.0)
        inner = np.minimum(short, self.width)
        return np.asarray(inner * inner / (2 * self.width) + (short - inner))

    def _slope(self, u: Array) -> Array:
        return -np.clip((1.0 - u) / self.width, 0.0, 1.0)

    def _bend(self, u: Array) -> Array:
        # margins of 0, where a search starts, count as curved for width 1
        return np.where((u >= 1.0 - self.width) & (u < 1.0), 1.0 / self.width, 0.0)


@dataclass(frozen=True)
class SquaredHinge(_Margin):
    """Half the squared hinge for margins above -reach, straight below: so it has a largest slope."""

    kind: ClassVar[str] = "squared_hinge"
    reach: float = 1.0

    def __post_init__(self) -> None:
        self._require("reach", 0.0, 1e6, closed=True)

    @property
    def lipschitz(self) -> float:
        """1 + reach."""
        return 1.0 + self.reach

    @property
    def smoothness(self) -> float:
        """1."""
        return 1.0

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (1, kappa^2)."""
        return 1.0, kappa**2

    def _value(self, u: Array) -> Array:
        short = np.maximum(1.0 - u, 0.0)
        inner = np.minimum(short, self.lipschitz)
        return inner * inner / 2 + self.lipschitz * (short - inner)

    def _slope(self, u: Array) -> Array:
        return -np.clip(1.0 - u, 0.0, self.lipschitz)

    def _bend(self, u: Array) -> Array:
        return np.where((u > -self.reach) & (u < 1.0), 1.0, 0.0)


@dataclass(frozen=True)
class Hinge(_Margin):
    """max(0, 1 - u)."""

    kind: ClassVar[str] = "hinge"

    @property
    def lipschitz(self) -> float:
        """1."""
        return 1.0

    @property
    def smoothness(self) -> float:
        """The slope jumps."""
        return math.inf

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (0, kappa)."""
        return 0.0, kappa

    def _value(self, u: Array) -> Array:
        return np.maximum(1.0 - u, 0.0)

    def _slope(self, u: Array) -> Array:
        return np.where(u < 1.0, -1.0, 0.0)

    def _bend(self, u: Array) -> Array:
        return np.zeros_like(u)


@dataclass(frozen=True)
class PowerHinge(_Margin):
    """max(0, 1 - u)^q, 1 <= q <= 2."""

    kind: ClassVar[str] = "power_hinge"
    q: float = 1.5

    def __post_init__(self) -> None:
        self._require("q", 1.0, 2.0, closed=True)

    @property
    def lipschitz(self) -> float:
        """1 for the hinge; without bound for q > 1."""
        return 1.0 if self.q == 1 else math.inf

    @property
    def smoothness(self) -> float:
        """2 for q = 2; without bound otherwise."""
        return 2.0 if self.q == 2 else math.inf

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (q - 1, q kappa^q)."""
        return self.q - 1, self.q * kappa**self.q

    def _value(self, u: Array) -> Array:
        return np.maximum(1.0 - u, 0.0) ** self.q

    def _slope(self, u: Array) -> Array:
        short = np.maximum(1.0 - u, 0.0)
        return np.where(short > 0, -self.q * short ** (self.q - 1), 0.0)

    def _bend(self, u: Array) -> Array:
        return np.where(u < 1.0, _power_bend(1.0 - u, self.q), 0.0)


@dataclass(frozen=True)
class Squared(_Residual):
    """Half the squared residual."""

    kind: ClassVar[str] = "squared"

    @property
    def lipschitz(self) -> float:
        """Without bound."""
        return math.inf

    @property
    def smoothness(self) -> float:
        """1."""
        return 1.0

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (1, kappa^2)."""
        return 1.0, kappa**2

    def _value(self, r: Array) -> Array:
        return r * r / 2

    def _slope(self, r: Array) -> Array:
        return r

    def _bend(self, r: Array) -> Array:
        return np.ones_like(r)


@dataclass(frozen=True)
class Huber(_Residual):
    """Half the squared residual up to the threshold, straight beyond."""

    kind: ClassVar[str] = "huber"
    threshold: float = 1.0

    def __post_init__(self) -> None:
        self._require("threshold", _TINY, 1e300)

    @property
    def lipschitz(self) -> float:
        """The threshold."""
        return self.threshold

    @property
    def smoothness(self) -> float:
        """1."""
        return 1.0

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (1, kappa^2)."""
        return 1.0, kappa**2

    def _value(self, r: Array) -> Array:
        inner = np.minimum(np.abs(r), self.threshold)
        return inner * (np.abs(r) - inner / 2)

    def _slope(self, r: Array) -> Array:
        return np.clip(r, -self.threshold, self.threshold)

    def _bend(self, r: Array) -> Array:
        return np.where(np.abs(r) < self.threshold, 1.0, 0.0)


@dataclass(frozen=True)
class Pinball(_Residual):
    """The loss of the ``quantile``: quantile * r above, (quantile - 1) * r below 0."""

    kind: ClassVar[str] = "pinball"
    quantile: float = 0.5

    def __post_init__(self) -> None:
        self._require("quantile", 0.0, 1.0)

    @property
    def lipschitz(self) -> float:
        """The steeper side."""
        return max(self.quantile, 1 - self.quantile)

    @property
    def smoothness(self) -> float:
        """The slope jumps."""
        return math.inf

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (0, kappa)."""
        return 0.0, kappa

    def _value(self, r: Array) -> Array:
        return np.maximum(self.quantile * r, (self.quantile - 1) * r)

    def _slope(self, r: Array) -> Array:
        return np.where(r > 0, self.quantile, self.quantile - 1)

    def _bend(self, r: Array) -> Array:
        return np.zeros_like(r)


@dataclass(frozen=True)
class SmoothedPinball(_Residual):
    """The pinball loss with its kink replaced by a parabola on |r| <= width / 2."""

    kind: ClassVar[str] = "smoothed_pinball"
    quantile: float = 0.5
    width: float = 0.1

    def __post_init__(self) -> None:
        self._require("quantile", 0.0, 1.0)
        self._require("width", _TINY, 1e300)

    @property
    def lipschitz(self) -> float:
        """The steeper side."""
        return max(self.quantile, 1 - self.quantile)

    @property
    def smoothness(self) -> float:
        """1 / width."""
        return 1.0 / self.width

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (1, kappa^2 / width)."""
        return 1.0, kappa**2 / self.width

    def _value(self, r: Array) -> Array:
        half = self.width / 2
        inner = np.clip(r, -half, half)
        bowl = inner * inner / (2 * self.width) + (self.quantile - 0.5) * inner + self.width / 8
        rest = r - inner
        return bowl + np.maximum(self.quantile * rest, (self.quantile - 1) * rest)

    def _slope(self, r: Array) -> Array:
        return self.quantile - 0.5 + np.clip(r / self.width, -0.5, 0.5)

    def _bend(self, r: Array) -> Array:
        return np.where(np.abs(r) < self.width / 2, 1.0 / self.width, 0.0)


@dataclass(frozen=True)
class Absolute(_Residual):
    """|r|, or max(0, |r| - tube)."""

    kind: ClassVar[str] = "absolute"
    tube: float = 0.0

    def __post_init__(self) -> None:
        self._require("tube", 0.0, 1e300, closed=True)

    @property
    def lipschitz(self) -> float:
        """1."""
        return 1.0

    @property
    def smoothness(self) -> float:
        """The slope jumps."""
        return math.inf

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (0, 2 kappa)."""
        return 0.0, 2 * kappa

    def _value(self, r: Array) -> Array:
        return np.maximum(np.abs(r) - self.tube, 0.0)

    def _slope(self, r: Array) -> Array:
        return np.where(np.abs(r) > self.tube, np.sign(r), 0.0)

    def _bend(self, r: Array) -> Array:
        return np.zeros_like(r)


@dataclass(frozen=True)
class SmoothedInsensitive(_Residual):
    """max(0, |r| - tube) with each kink replaced by a parabola of this width outside the tube."""

    kind: ClassVar[str] = "smoothed_insensitive"
    tube: float = 0.1
    width: float = 0.1

    def __post_init__(self) -> None:
        self._require("tube", 0.0, 1e300, closed=True)
        self._require("width", _TINY, 1e300)

    @property
    def lipschitz(self) -> float:
        """1."""
        return 1.0

    @property
    def smoothness(self) -> float:
        """1 / width."""
        return 1.0 / self.width

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (1, kappa^2 / width)."""
        return 1.0, kappa**2 / self.width

    def derivative(self, y: Array, s: Array) -> Array:
        """Return the derivative in s, from a residual without rounding.

        |r| - tube cancels where the tube is much wider than the parabola: what y - s loses to
        rounding would then count tube / width times.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            r = y - s
            back = r - y
            lost = (y - (r - back)) - (s + back)  # r + lost = y - s exactly (Knuth)
            sign = np.sign(r)
            out = (np.abs(r) - self.tube) + sign * np.where(np.isfinite(lost), lost, 0.0)
            return np.asarray(-sign * np.clip(out / self.width, 0.0, 1.0))

    def _value(self, r: Array) -> Array:
        out = np.maximum(np.abs(r) - self.tube, 0.0)
        inner = np.minimum(out, self.width)
        return np.asarray(inner * inner / (2 * self.width) + (out - inner))

    def _slope(self, r: Array) -> Array:
        return np.asarray(np.sign(r) * np.clip((np.abs(r) - self.tube) / self.width, 0.0, 1.0))

    def _bend(self, r: Array) -> Array:
        out = np.abs(r) - self.tube
        return np.where((out > 0) & (out < self.width), 1.0 / self.width, 0.0)


@dataclass(frozen=True)
class PowerAbsolute(_Residual):
    """|r|^q, 1 <= q <= 2."""

    kind: ClassVar[str] = "power_absolute"
    q: float = 1.5

    def __post_init__(self) -> None:
        self._require("q", 1.0, 2.0, closed=True)

    @property
    def lipschitz(self) -> float:
        """1 for the absolute loss; without bound for q > 1."""
        return 1.0 if self.q == 1 else math.inf

    @property
    def smoothness(self) -> float:
        """2 for q = 2; without bound otherwise."""
        return 2.0 if self.q == 2 else math.inf

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (q - 1, 2^(2 - q) q kappa^q)."""
        return self.q - 1, 2 ** (2 - self.q) * self.q * kappa**self.q

    def _value(self, r: Array) -> Array:
        return np.abs(r) ** self.q

    def _slope(self, r: Array) -> Array:
        return np.sign(r) * self.q * np.abs(r) ** (self.q - 1)

    def _bend(self, r: Array) -> Array:
        return _power_bend(np.abs(r), self.q)


def _power_bend(short: Array, q: float) -> Array:
    """Return q (q - 1) short^(q - 2), cut off at 1e12 near 0."""
    if q == 1:
        return np.zeros_like(short)
    floor = 1e12 ** (1 / min(q - 2, -1e-3))
    bend: Array = q * (q - 1) * np.maximum(np.abs(short), floor) ** (q - 2)
    return bend


def loss_from_dict(data: JSON) -> Loss:
    """Return the loss that ``to_dict`` described."""
    try:
        values = dict(data)
        cls: Any = REGISTRY[values.pop("kind")]
        found: Loss = cls(**values)
    except (KeyError, TypeError, ValueError) as error:
        known = ", ".join(sorted(REGISTRY))
        raise CertificateError(
            f"A loss can't be read ({error}). Its 'kind' must be one of {known}, with that kind's"
            " parameters."
        ) from error
    return found


REGISTRY: dict[str, type[Loss]] = {
    cls.kind: cls
    for cls in (
        Logistic,
        SmoothedHinge,
        SquaredHinge,
        Hinge,
        PowerHinge,
        Squared,
        Huber,
        Pinball,
        SmoothedPinball,
        Absolute,
        SmoothedInsensitive,
        PowerAbsolute,
    )
}
