"""The base class of losses, and the two kinds of losses: of a margin and of a residual."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, is_real
from dpkernel.models.losses import slope

TINY = 1e-300  # a smaller parameter would overflow in a division by it
T = TypeVar("T", bound="Loss")


@dataclass(frozen=True)
class Loss(ABC):
    """A convex, non-negative loss with known constants."""

    kind: ClassVar[str]
    labels: ClassVar[bool]  # whether y is +1 or -1, so that only y s matters

    @abstractmethod
    def value(self, y: Array, s: Array) -> Array:
        """Return the loss of each prediction."""

    @abstractmethod
    def derivative(self, y: Array, s: Array) -> Array:
        """Return a subgradient in s, accurate to 8 ulp of ``lipschitz`` if that is finite."""

    @abstractmethod
    def curvature(self, y: Array, s: Array) -> Array:
        """Return a generalised second derivative in s, in [0, smoothness]."""

    @property
    @abstractmethod
    def lipschitz(self) -> float:
        """The largest absolute slope."""

    @property
    @abstractmethod
    def smoothness(self) -> float:
        """The largest curvature."""

    @property
    @abstractmethod
    def form(self) -> slope.Form:
        """The derivative in the margin or in the residual, as a scalar form for compiled loops."""

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return the exponent and the constant of the Hölder continuity of the gradient.

        A smooth loss has (1, kappa^2 smoothness).
        """
        return 1.0, kappa**2 * self.smoothness

    def smoothed(self, width: float) -> Loss:
        """Return a loss without kinks: this one, or one with parabolas of this width in their place.

        The bound on the slope stays the same. A loss with kinks overrides this.
        """
        if self.lipschitz < math.inf and self.smoothness < math.inf:
            return self
        raise ParameterError(
            f"Output perturbation needs a loss of bounded slope, or the squared one: {self.kind} is"
            " neither. Take huber for power_absolute, squared_hinge for power_hinge."
        )

    @abstractmethod
    def at_zero(self, c: float) -> float:
        """Return the largest loss of the prediction 0 for targets in [-c, c]."""

    @abstractmethod
    def slope_at_zero(self, c: float) -> float:
        """Return the largest slope at the prediction 0 for targets in [-c, c]."""

    @abstractmethod
    def _value(self, z: Array) -> Array:
        """Return the loss at a margin u, or at a residual r."""

    @abstractmethod
    def _slope(self, z: Array) -> Array:
        """Return the derivative there; it is at most 0 for a margin."""

    @abstractmethod
    def _bend(self, z: Array) -> Array:
        """Return the second derivative there."""

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


REGISTRY: dict[str, type[Loss]] = {}


def register(cls: type[T]) -> type[T]:
    """Add a loss to the registry under its kind; a class decorator."""
    REGISTRY[cls.kind] = cls
    return cls


@dataclass(frozen=True)
class MarginLoss(Loss):
    """A loss of the margin u = y s, y = +-1.

    A record may also have both labels in parts. Then y in [-1, 1] is the share of +1 less that of -1,
    and the loss is the mean of both. Its slope and its curvature lie between those of the two, so all
    bounds hold, and it is convex in s.
    """

    labels: ClassVar[bool] = True

    def value(self, y: Array, s: Array) -> Array:
        """Return the loss of each prediction."""
        with np.errstate(over="ignore"):  # a warning would reveal something about the data
            if _whole(y):
                return self._value(y * s)
            return (1 + y) / 2 * self._value(s) + (1 - y) / 2 * self._value(-s)

    def derivative(self, y: Array, s: Array) -> Array:
        """Return a subgradient in s."""
        with np.errstate(over="ignore"):
            if _whole(y):
                return y * self._slope(y * s)
            return (1 + y) / 2 * self._slope(s) - (1 - y) / 2 * self._slope(-s)

    def curvature(self, y: Array, s: Array) -> Array:
        """Return a generalised second derivative in s."""
        with np.errstate(over="ignore"):
            if _whole(y):
                return self._bend(y * s)
            return (1 + y) / 2 * self._bend(s) + (1 - y) / 2 * self._bend(-s)

    def at_zero(self, c: float = 1.0) -> float:
        """Return the loss at margin 0."""
        return float(self._value(np.zeros(1))[0])

    def slope_at_zero(self, c: float = 1.0) -> float:
        """Return the slope at margin 0."""
        return float(-self._slope(np.zeros(1))[0])


def _whole(y: Array) -> bool:
    """Whether no record has both labels in parts. Float64 slopes and curvatures are equal either way."""
    return bool(np.all(np.abs(y) == 1))


@dataclass(frozen=True)
class ResidualLoss(Loss):
    """A loss of the residual r = y - s."""

    labels: ClassVar[bool] = False

    def value(self, y: Array, s: Array) -> Array:
        """Return the loss of each prediction."""
        with np.errstate(over="ignore"):  # a warning would reveal something about the data
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
        """Return the larger of the losses at the residuals c and -c."""
        return float(self._value(np.array([-float(c), float(c)])).max())

    def slope_at_zero(self, c: float) -> float:
        """Return the larger of the absolute slopes at the residuals c and -c."""
        return float(np.abs(self._slope(np.array([-float(c), float(c)]))).max())


@dataclass(frozen=True)
class PowerLoss(Loss):
    """A power of a piecewise linear loss, with an exponent 1 <= q <= 2."""

    q: float = 1.5

    def __post_init__(self) -> None:
        self._require("q", 1.0, 2.0, closed=True)

    @property
    def lipschitz(self) -> float:
        """The largest slope: 1 for q = 1, infinite for q > 1."""
        return 1.0 if self.q == 1 else math.inf

    @property
    def smoothness(self) -> float:
        """The largest curvature: 2 for q = 2, infinite otherwise."""
        return 2.0 if self.q == 2 else math.inf

    def _power_bend(self, short: Array) -> Array:
        """Return q (q - 1) short^(q - 2), bounded by 1e12 near 0."""
        if self.q == 1:
            return np.zeros_like(short)
        floor = 1e12 ** (1 / min(self.q - 2, -1e-3))
        bend: Array = self.q * (self.q - 1) * np.maximum(np.abs(short), floor) ** (self.q - 2)
        return bend
