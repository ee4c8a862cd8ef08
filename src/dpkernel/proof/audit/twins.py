"""Broken twins of dpkernel's estimators: the same fit with too little noise.

A noise source is a parameter of every estimator. ``WeakNoise`` scales the noise that it draws, so a fit
releases with less noise than its certificate says. No other module knows about it. The certificate says
"not private", as it does for every source other than the library's own. Its profile is the claim that an
audit must contradict.

``WeakNoise`` has no effect if noise is not added number by number. ``PrivateCurator`` and
``PrivateGridRegressor`` derive their noise from a key that is drawn once. In
``PrivateSketchedRidge`` the noise multiplies the data, so scaling it down reveals just as much. Twins
of these are calibrated for a larger epsilon.
"""

from __future__ import annotations

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, IntArray, is_real
from dpkernel.privacy.noise import NoiseSource, SeededNoise, SystemNoise

_LEAST = 2.0**-4  # the smallest scale of integer noise that can be drawn, which is almost no noise


class WeakNoise(SystemNoise):
    """Noise that is too small by a factor, wherever noise is added number by number.

    Parameters
    ----------
    factor : float
        In (0, 1]. It multiplies the scale of Gaussian, Laplace and l2 noise, and that of the noise in
        a choice.
    source : SeededNoise, optional
        The source of the noise before it is made too small; by default the operating system.
    """

    def __init__(self, factor: float, source: SeededNoise | None = None) -> None:
        if not is_real(factor) or not 0 < factor <= 1:
            allowed = "a float in the range (0, 1]"
            raise ParameterError(parameter_message("WeakNoise", "factor", allowed, factor))
        super().__init__()
        self.factor = float(factor)
        self.source = source
        if source is not None:
            self._entropy = source._entropy

    def reseeded(self, seed: int | None) -> WeakNoise:
        """Return a source with the same factor and noise of its own, for one run."""
        return WeakNoise(self.factor, None if seed is None else SeededNoise(seed))

    def discrete_gaussian(self, scale: float, size: int) -> IntArray:
        """Draw discrete Gaussians with a smaller scale."""
        return super().discrete_gaussian(max(scale * self.factor, _LEAST), size)

    def discrete_laplace(self, scale: float, size: int) -> IntArray:
        """Draw discrete Laplace variables with a smaller scale."""
        return super().discrete_laplace(max(scale * self.factor, _LEAST), size)

    def categorical(self, utilities: Array, rate: float) -> int:
        """Draw an index that follows the utilities more closely."""
        return super().categorical(utilities, rate / self.factor)

    def l2_gamma(self, dimension: int, scale: float) -> Array:
        """Draw a shorter vector."""
        return super().l2_gamma(dimension, scale * self.factor)

    def standard_normals(self, count: int) -> Array:
        """Draw normal numbers with a smaller scale."""
        return self.factor * super().standard_normals(count)

    def __reduce__(self) -> tuple[type[NoiseSource], tuple[float, SeededNoise | None]]:
        return WeakNoise, (self.factor, self.source)

    def __repr__(self) -> str:
        return f"WeakNoise({self.factor})"
