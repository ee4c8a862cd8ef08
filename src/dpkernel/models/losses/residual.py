"""Losses of the residual r = y - s."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpkernel.foundations.types import Array
from dpkernel.models.losses import slope
from dpkernel.models.losses.base import TINY, Loss, PowerLoss, ResidualLoss, register


@register
@dataclass(frozen=True)
class Squared(ResidualLoss):
    """Half the squared residual, r^2 / 2.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.losses import Squared
    >>> loss = Squared()
    >>> loss.value(np.array([0.5]), np.array([0.0, 1.0])).round(4)
    array([0.125, 0.125])
    >>> loss.lipschitz
    inf
    """

    kind: ClassVar[str] = "squared"
    lipschitz: ClassVar[float] = math.inf
    smoothness: ClassVar[float] = 1.0
    form: ClassVar[slope.Form] = (slope.RAMP, 0.0, 1.0, -math.inf, math.inf)

    def _value(self, r: Array) -> Array:
        return r * r / 2

    def _slope(self, r: Array) -> Array:
        return r

    def _bend(self, r: Array) -> Array:
        return np.ones_like(r)


@register
@dataclass(frozen=True)
class Huber(ResidualLoss):
    """Huber loss: half the squared residual up to the threshold, a straight line beyond it.

    Parameters
    ----------
    threshold : float
        The residual at which the straight line begins.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.losses import Huber
    >>> loss = Huber(0.1)
    >>> loss.value(np.array([0.5]), np.array([0.0, 1.0])).round(4)
    array([0.045, 0.045])
    >>> loss.lipschitz
    0.1
    """

    kind: ClassVar[str] = "huber"
    smoothness: ClassVar[float] = 1.0
    threshold: float = 1.0

    def __post_init__(self) -> None:
        self._require("threshold", TINY, 1e300)

    @property
    def lipschitz(self) -> float:
        """The largest slope, which is the threshold."""
        return self.threshold

    @property
    def form(self) -> slope.Form:
        """The slope as a scalar form."""
        return slope.RAMP, 0.0, 1.0, -self.threshold, self.threshold

    def _value(self, r: Array) -> Array:
        inner = np.minimum(np.abs(r), self.threshold)
        return inner * (np.abs(r) - inner / 2)

    def _slope(self, r: Array) -> Array:
        return np.clip(r, -self.threshold, self.threshold)

    def _bend(self, r: Array) -> Array:
        return np.where(np.abs(r) < self.threshold, 1.0, 0.0)


@register
@dataclass(frozen=True)
class Pinball(ResidualLoss):
    """Pinball loss of a quantile: quantile * r for r above 0, (quantile - 1) * r below 0.

    Parameters
    ----------
    quantile : float
        The quantile to estimate, in (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.losses import Pinball
    >>> Pinball(0.9).value(np.array([0.5]), np.array([0.0, 1.0])).round(4)
    array([0.45, 0.05])
    """

    kind: ClassVar[str] = "pinball"
    smoothness: ClassVar[float] = math.inf  # the slope jumps
    quantile: float = 0.5

    def __post_init__(self) -> None:
        self._require("quantile", 0.0, 1.0)

    @property
    def lipschitz(self) -> float:
        """The slope of the steeper side."""
        return max(self.quantile, 1 - self.quantile)

    @property
    def form(self) -> slope.Form:
        """The slope as a scalar form."""
        return slope.STEP, 0.0, 0.0, self.quantile - 1, self.quantile

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (0, kappa)."""
        return 0.0, kappa

    def smoothed(self, width: float) -> SmoothedPinball:
        """Return the smoothed loss of the same quantile."""
        return SmoothedPinball(self.quantile, width)

    def _value(self, r: Array) -> Array:
        return np.maximum(self.quantile * r, (self.quantile - 1) * r)

    def _slope(self, r: Array) -> Array:
        return np.where(r > 0, self.quantile, self.quantile - 1)

    def _bend(self, r: Array) -> Array:
        return np.zeros_like(r)


@register
@dataclass(frozen=True)
class SmoothedPinball(ResidualLoss):
    """Pinball loss whose kink is replaced by a parabola on ``|r| <= width / 2``.

    Parameters
    ----------
    quantile : float
        The quantile to estimate, in (0, 1).
    width : float
        The width of the parabola.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.losses import SmoothedPinball
    >>> loss = SmoothedPinball(0.9)
    >>> loss.value(np.array([0.5]), np.array([0.0, 1.0])).round(4)
    array([0.45, 0.05])
    >>> loss.lipschitz
    0.9
    """

    kind: ClassVar[str] = "smoothed_pinball"
    quantile: float = 0.5
    width: float = 0.1

    def __post_init__(self) -> None:
        self._require("quantile", 0.0, 1.0)
        self._require("width", TINY, 1e300)

    @property
    def lipschitz(self) -> float:
        """The slope of the steeper side."""
        return max(self.quantile, 1 - self.quantile)

    @property
    def smoothness(self) -> float:
        """The largest curvature, 1 / width."""
        return 1.0 / self.width

    @property
    def form(self) -> slope.Form:
        """The slope as a scalar form."""
        return (
            slope.RAMP,
            self.width * (0.5 - self.quantile),
            1.0 / self.width,
            self.quantile - 1,
            self.quantile,
        )

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


@register
@dataclass(frozen=True)
class Absolute(ResidualLoss):
    """Absolute loss ``|r|``, or ``max(0, |r| - tube)`` with an insensitive tube.

    Parameters
    ----------
    tube : float
        Half the width of the interval in which residuals cost nothing.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.losses import Absolute
    >>> loss = Absolute()
    >>> loss.value(np.array([0.5]), np.array([0.0, 1.0])).round(4)
    array([0.5, 0.5])
    >>> loss.lipschitz
    1.0
    """

    kind: ClassVar[str] = "absolute"
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = math.inf  # the slope jumps
    tube: float = 0.0

    def __post_init__(self) -> None:
        self._require("tube", 0.0, 1e300, closed=True)

    @property
    def form(self) -> slope.Form:
        """The slope as a scalar form."""
        return slope.TUBE, self.tube, math.inf, 0.0, 1.0

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (0, 2 kappa)."""
        return 0.0, 2 * kappa

    def smoothed(self, width: float) -> SmoothedInsensitive:
        """Return the smoothed loss of the same tube."""
        return SmoothedInsensitive(self.tube, width)

    def _value(self, r: Array) -> Array:
        return np.maximum(np.abs(r) - self.tube, 0.0)

    def _slope(self, r: Array) -> Array:
        return np.where(np.abs(r) > self.tube, np.sign(r), 0.0)

    def _bend(self, r: Array) -> Array:
        return np.zeros_like(r)


@register
@dataclass(frozen=True)
class SmoothedInsensitive(ResidualLoss):
    """``max(0, |r| - tube)``, with each kink replaced by a parabola of this width outside the tube.

    Parameters
    ----------
    tube : float
        Half the width of the interval in which residuals cost nothing.
    width : float
        The width of each parabola.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.losses import SmoothedInsensitive
    >>> loss = SmoothedInsensitive()
    >>> loss.value(np.array([0.5]), np.array([0.0, 1.0])).round(4)
    array([0.35, 0.35])
    >>> loss.lipschitz
    1.0
    """

    kind: ClassVar[str] = "smoothed_insensitive"
    lipschitz: ClassVar[float] = 1.0
    tube: float = 0.1
    width: float = 0.1

    def __post_init__(self) -> None:
        self._require("tube", 0.0, 1e300, closed=True)
        self._require("width", TINY, 1e300)

    @property
    def smoothness(self) -> float:
        """The largest curvature, 1 / width."""
        return 1.0 / self.width

    @property
    def form(self) -> slope.Form:
        """The slope as a scalar form."""
        return slope.TUBE, self.tube, 1.0 / self.width, 0.0, 1.0

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (1, kappa^2 / width)."""
        return 1.0, kappa**2 / self.width

    def derivative(self, y: Array, s: Array) -> Array:
        """Return the derivative in s, from a residual without rounding error.

        If the tube is much wider than the parabola, ``|r| - tube`` cancels, and the rounding error
        of y - s would be multiplied by tube / width.
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


@register
@dataclass(frozen=True)
class PowerAbsolute(PowerLoss, ResidualLoss):
    """Power of the absolute residual, ``|r|^q`` with 1 <= q <= 2.

    Parameters
    ----------
    q : float
        The exponent.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.losses import PowerAbsolute
    >>> loss = PowerAbsolute(1.5)
    >>> loss.value(np.array([0.5]), np.array([0.0, 1.0])).round(4)
    array([0.3536, 0.3536])
    >>> loss.lipschitz
    inf
    """

    kind: ClassVar[str] = "power_absolute"

    @property
    def form(self) -> slope.Form:
        """The slope as a scalar form."""
        return slope.POWER_ABSOLUTE, self.q, 0.0, 0.0, 0.0

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (q - 1, 2^(2 - q) q kappa^q)."""
        return self.q - 1, 2 ** (2 - self.q) * self.q * kappa**self.q

    def smoothed(self, width: float) -> Loss:
        """Return the smoothed absolute loss for q = 1. Other powers have no bounded slope."""
        return SmoothedInsensitive(0.0, width) if self.q == 1 else super().smoothed(width)

    def _value(self, r: Array) -> Array:
        return np.abs(r) ** self.q

    def _slope(self, r: Array) -> Array:
        return np.sign(r) * self.q * np.abs(r) ** (self.q - 1)

    def _bend(self, r: Array) -> Array:
        return self._power_bend(np.abs(r))
