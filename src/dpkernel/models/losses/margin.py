"""Losses of the margin u = y s with y = +-1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit

from dpkernel.foundations.types import Array
from dpkernel.models.losses import slope
from dpkernel.models.losses.base import TINY, Loss, MarginLoss, PowerLoss, register


@register
@dataclass(frozen=True)
class Logistic(MarginLoss):
    """Logistic loss log(1 + e^-u).

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.losses import Logistic
    >>> loss = Logistic()
    >>> loss.value(np.array([1.0]), np.array([0.0, 1.0])).round(4)
    array([0.6931, 0.3133])
    >>> loss.lipschitz
    1.0
    """

    kind: ClassVar[str] = "logistic"
    lipschitz: ClassVar[float] = 1.0  # the slope as u tends to -infinity
    smoothness: ClassVar[float] = 0.25  # the curvature at 0
    form: ClassVar[slope.Form] = (slope.LOGISTIC, 0.0, 0.0, 0.0, 0.0)

    def _value(self, u: Array) -> Array:
        return np.logaddexp(0.0, -u)

    def _slope(self, u: Array) -> Array:
        return np.asarray(-expit(-u))

    def _bend(self, u: Array) -> Array:
        p = np.asarray(expit(-np.abs(u)))
        return np.asarray(p * (1 - p))


@register
@dataclass(frozen=True)
class SmoothedHinge(MarginLoss):
    """Hinge loss whose kink is replaced by a parabola on [1 - width, 1].

    Parameters
    ----------
    width : float
        The width of the parabola.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.losses import SmoothedHinge
    >>> loss = SmoothedHinge()
    >>> loss.value(np.array([1.0]), np.array([0.0, 1.0])).round(4)
    array([0.75, 0.  ])
    >>> loss.lipschitz
    1.0
    """

    kind: ClassVar[str] = "smoothed_hinge"
    lipschitz: ClassVar[float] = 1.0
    width: float = 0.5

    def __post_init__(self) -> None:
        self._require("width", TINY, 1.0 + 2**-40)

    @property
    def smoothness(self) -> float:
        """The largest curvature, 1 / width."""
        return 1.0 / self.width

    @property
    def form(self) -> slope.Form:
        """The slope as a scalar form."""
        return slope.RAMP, 1.0, 1.0 / self.width, -1.0, 0.0

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
        # for width 1, a margin of 0, where a search starts, counts as curved
        return np.where((u >= 1.0 - self.width) & (u < 1.0), 1.0 / self.width, 0.0)


@register
@dataclass(frozen=True)
class HuberisedHinge(MarginLoss):
    """Hinge loss whose kink is replaced by a parabola on [1 - half, 1 + half].

    Unlike ``SmoothedHinge``, it is the hinge loss itself on either side, not a shifted one.

    Parameters
    ----------
    half : float
        Half the width of the parabola, at most 1e6. Above 1, the parabola reaches beyond the margin 0.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.losses import HuberisedHinge
    >>> loss = HuberisedHinge()
    >>> loss.value(np.array([1.0]), np.array([0.0, 1.0])).round(4)
    array([1.   , 0.125])
    >>> loss.lipschitz
    1.0
    """

    kind: ClassVar[str] = "huberised_hinge"
    lipschitz: ClassVar[float] = 1.0
    half: float = 0.5

    def __post_init__(self) -> None:
        self._require("half", TINY, 1e6)

    @property
    def smoothness(self) -> float:
        """The largest curvature, 1 / (2 half)."""
        return 0.5 / self.half

    @property
    def form(self) -> slope.Form:
        """The slope as a scalar form."""
        return slope.RAMP, 1.0 + self.half, 0.5 / self.half, -1.0, 0.0

    def _value(self, u: Array) -> Array:
        short = np.maximum(1.0 + self.half - u, 0.0)
        inner = np.minimum(short, 2 * self.half)
        return np.asarray(inner * inner / (4 * self.half) + (short - inner))

    def _slope(self, u: Array) -> Array:
        return -np.clip((1.0 + self.half - u) / (2 * self.half), 0.0, 1.0)

    def _bend(self, u: Array) -> Array:
        return np.where(np.abs(u - 1.0) < self.half, self.smoothness, 0.0)


@register
@dataclass(frozen=True)
class SquaredHinge(MarginLoss):
    """Half the squared hinge for margins above -reach, and a straight line below.

    The straight part bounds the slope.

    Parameters
    ----------
    reach : float
        The straight line begins at the margin -reach.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.losses import SquaredHinge
    >>> loss = SquaredHinge()
    >>> loss.value(np.array([1.0]), np.array([0.0, 1.0])).round(4)
    array([0.5, 0. ])
    >>> loss.lipschitz
    2.0
    """

    kind: ClassVar[str] = "squared_hinge"
    smoothness: ClassVar[float] = 1.0
    reach: float = 1.0

    def __post_init__(self) -> None:
        self._require("reach", 0.0, 1e6, closed=True)

    @property
    def lipschitz(self) -> float:
        """The largest slope, 1 + reach."""
        return 1.0 + self.reach

    @property
    def form(self) -> slope.Form:
        """The slope as a scalar form."""
        return slope.RAMP, 1.0, 1.0, -self.lipschitz, 0.0

    def _value(self, u: Array) -> Array:
        short = np.maximum(1.0 - u, 0.0)
        inner = np.minimum(short, self.lipschitz)
        return inner * inner / 2 + self.lipschitz * (short - inner)

    def _slope(self, u: Array) -> Array:
        return -np.clip(1.0 - u, 0.0, self.lipschitz)

    def _bend(self, u: Array) -> Array:
        return np.where((u > -self.reach) & (u < 1.0), 1.0, 0.0)


@register
@dataclass(frozen=True)
class Hinge(MarginLoss):
    """Hinge loss max(0, 1 - u).

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.losses import Hinge
    >>> loss = Hinge()
    >>> loss.value(np.array([1.0]), np.array([0.0, 1.0])).round(4)
    array([1., 0.])
    >>> loss.lipschitz
    1.0
    """

    kind: ClassVar[str] = "hinge"
    lipschitz: ClassVar[float] = 1.0
    smoothness: ClassVar[float] = math.inf  # the slope jumps
    form: ClassVar[slope.Form] = (slope.STEP, 1.0, 0.0, -1.0, 0.0)

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (0, kappa)."""
        return 0.0, kappa

    def smoothed(self, width: float) -> SmoothedHinge:
        """Return the smoothed hinge of this width."""
        return SmoothedHinge(width)

    def _value(self, u: Array) -> Array:
        return np.maximum(1.0 - u, 0.0)

    def _slope(self, u: Array) -> Array:
        return np.where(u < 1.0, -1.0, 0.0)

    def _bend(self, u: Array) -> Array:
        return np.zeros_like(u)


@register
@dataclass(frozen=True)
class PowerHinge(PowerLoss, MarginLoss):
    """Power of the hinge loss, max(0, 1 - u)^q with 1 <= q <= 2.

    Parameters
    ----------
    q : float
        The exponent.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.losses import PowerHinge
    >>> loss = PowerHinge()
    >>> loss.value(np.array([1.0]), np.array([0.0, 1.0])).round(4)
    array([1., 0.])
    >>> loss.lipschitz
    inf
    """

    kind: ClassVar[str] = "power_hinge"

    @property
    def form(self) -> slope.Form:
        """The slope as a scalar form."""
        return slope.POWER_HINGE, self.q, 0.0, 0.0, 0.0

    def holder(self, kappa: float) -> tuple[float, float]:
        """Return (q - 1, q kappa^q)."""
        return self.q - 1, self.q * kappa**self.q

    def smoothed(self, width: float) -> Loss:
        """Return the smoothed hinge for q = 1. Other powers have no bounded slope."""
        return SmoothedHinge(width) if self.q == 1 else super().smoothed(width)

    def _value(self, u: Array) -> Array:
        return np.maximum(1.0 - u, 0.0) ** self.q

    def _slope(self, u: Array) -> Array:
        short = np.maximum(1.0 - u, 0.0)
        return np.where(short > 0, -self.q * short ** (self.q - 1), 0.0)

    def _bend(self, u: Array) -> Array:
        return np.where(u < 1.0, self._power_bend(1.0 - u), 0.0)
