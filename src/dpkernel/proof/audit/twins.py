"""Broken twins of any of our estimators: the same fit with too little noise.

A noise source is a parameter of every estimator. This one scales the noise that it draws, so that a
fit releases with less noise than its certificate says; no line of the product knows of it. It does
nothing where noise is not added number by number: ``PrivateCurator`` and ``PrivateGridRegressor``
derive theirs from a key that is drawn once, and in ``PrivateSketchedRidge`` it multiplies the data, so
that a smaller one tells as much. Their twins are calibrated for a larger epsilon. The certificate says
"not private", as it does for every source that is not the product's own; its profile is the claim that
an audit must contradict.
"""

from __future__ import annotations

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, IntArray, is_real
from dpkernel.privacy.noise import NoiseSource, SeededNoise, SystemNoise

_LEAST = 2.0**-4  # the smallest scale of integer noise that can be drawn: next to none


class WeakNoise(SystemNoise):
    """Noise that is too small by a factor, wherever noise is added number by number.

    Parameters
    ----------
    factor : float
        In (0, 1]: of the scale of Gaussian, Laplace and l2 noise, and of the noise in a choice.
    source : SeededNoise, optional
        Where the noise comes from before it is made too small; the operating system by default.
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
        """Return such a source with noise of its own, for one run."""
        return WeakNoise(self.factor, None if seed is None else SeededNoise(seed))

    def discrete_gaussian(self, scale: float, size: int) -> IntArray:
        """Draw discrete Gaussians of a part of the scale."""
        return super().discrete_gaussian(max(scale * self.factor, _LEAST), size)

    def discrete_laplace(self, scale: float, size: int) -> IntArray:
        """Draw discrete Laplace variables of a part of the scale."""
        return super().discrete_laplace(max(scale * self.factor, _LEAST), size)

    def categorical(self, utilities: Array, rate: float) -> int:
        """Draw an index that follows the utilities more closely."""
        return super().categorical(utilities, rate / self.factor)

    def l2_gamma(self, dimension: int, scale: float) -> Array:
        """Draw a vector of a part of the length."""
        return super().l2_gamma(dimension, scale * self.factor)

    def standard_normals(self, count: int) -> Array:
        """Draw normals of a part of the scale."""
        return self.factor * super().standard_normals(count)

    def __reduce__(self) -> tuple[type[NoiseSource], tuple[float, SeededNoise | None]]:
        return WeakNoise, (self.factor, self.source)

    def __repr__(self) -> str:
        return f"WeakNoise({self.factor})"
