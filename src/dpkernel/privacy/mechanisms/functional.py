"""Gaussian noise on functions of a reproducing kernel space."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import solve_triangular

from dpkernel.foundations.errors import NoiseError, ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget
from dpkernel.models.kernels import Kernel
from dpkernel.privacy.mechanisms.base import (
    UP,
    Idealised,
    as_sensitivity,
    check_common,
    check_vector,
    clamped,
    end_on_private_side,
    register,
    require_accepted,
)
from dpkernel.privacy.noise import Noise, keyed_normals
from dpkernel.privacy.profiles import GaussianProfile, gaussian_mu
from dpkernel.privacy.sensitivity import Sensitivity

KEY_WORDS = 4
_FLOOR = 1e-6  # share of k(x, x): with less variance left, earlier answers determine the new one
_OWN = 1e-7  # share of k(x, x): variance of the independent noise of each answer


@register
@dataclass(frozen=True)
class FunctionalGaussian(Idealised):
    r"""Add sigma times a Gaussian process with the kernel's covariance to a function of its space.

    ``release`` takes orthonormal coordinates of the function on a fixed public grid. ``key`` pays
    for a function that is queried point by point; see ``NoisyFunction``. ``dimension`` is the
    largest number of coordinates or answers.

    Parameters
    ----------
    sensitivity : Sensitivity
        The sensitivity in the norm of the reproducing kernel space.
    dimension : int
        The largest number of coordinates or answers.
    sigma : float
        The factor of the Gaussian process.
    accepted : tuple of str
        The accepted assumptions, which must be ("idealised-arithmetic",).

    Notes
    -----
    Guarantee
        delta(eps) of the Gaussian mechanism with mu = Delta/sigma, for all values of the function
        together. At any points, the values on two neighbouring data sets differ by a vector whose
        norm under the inverse kernel matrix is at most the distance of the two functions.
    Sensitivity
        The norm of the reproducing kernel space, which is the l2 norm of the coordinates in an
        orthonormal basis.
    Numerics
        Real-valued noise, rounded to a grid afterwards. No finite-precision theorem covers this, so
        the user must accept 'idealised-arithmetic'.

    References
    ----------
    Hall, Rinaldo & Wasserman (2013).

    Examples
    --------
    >>> from dpkernel import Budget, mechanisms
    >>> accept = ("idealised-arithmetic",)
    >>> mechanism = mechanisms.FunctionalGaussian.calibrate(
    ...     1.0, Budget(1.0, 1e-6), dimension=50, accept=accept
    ... )
    >>> mechanism.profile().epsilon(1e-6) <= 1.0
    True
    """

    sensitivity: Sensitivity
    dimension: int
    sigma: float
    accepted: tuple[str, ...] = ()

    kind: ClassVar[str] = "functional-gaussian"
    reference: ClassVar[str] = "Hall, Rinaldo & Wasserman (2013), exact Gaussian profile"
    _positive: ClassVar[tuple[str, ...]] = ("sigma",)

    @property
    def noise_scale(self) -> float:
        """The factor sigma of a Gaussian process with covariance k."""
        return self.sigma

    @property
    def grid(self) -> float:
        """The power of two of which all released values are multiples."""
        return 2.0 ** (math.floor(math.log2(self.sigma)) - 30)

    def profile(self) -> GaussianProfile:
        """Return the Gaussian profile."""
        return GaussianProfile(self.sensitivity.value / self.sigma * UP)

    def release(self, value: Array, noise: Noise) -> Array:
        """Return orthonormal coordinates with noise, on the grid."""
        check_vector(type(self).__name__, value, self.dimension)
        exact = clamped(value, self.grid)
        noisy = exact + self.sigma * keyed_normals(self.key(noise), b"grid", self.dimension)
        return np.asarray(np.rint(noisy / self.grid) * self.grid)

    def key(self, noise: Noise) -> bytes:
        """Return the secret key that determines all noise of one function; it is never released."""
        return self._claim(noise).words(KEY_WORDS).tobytes()

    @classmethod
    def calibrate(
        cls,
        sensitivity: Sensitivity | float,
        budget: Budget,
        *,
        dimension: int,
        accept: Iterable[str] = (),
    ) -> FunctionalGaussian:
        """Return the mechanism for the budget; needs ``accept=("idealised-arithmetic",)``."""
        signed = tuple(accept)
        require_accepted(cls, signed)
        sensitivity = as_sensitivity(sensitivity)
        check_common(cls.__name__, dimension, 0.0)
        budget = Budget(min(budget.epsilon, 1e11), budget.delta)
        sigma = sensitivity.value / gaussian_mu(budget.epsilon, budget.delta) * UP
        found: FunctionalGaussian = end_on_private_side(
            cls(sensitivity, dimension, sigma, signed), budget
        )
        return found


class NoisyFunction:
    """Answer f + sigma GP(0, k) point by point, each answer consistent with all earlier ones.

    Parameters
    ----------
    function : callable
        Returns f at an array of points.
    kernel : Kernel
        The kernel k.
    mechanism : FunctionalGaussian
        The calibrated mechanism.
    key : bytes
        The result of ``mechanism.key``. The noise of an answer follows from the key and from all
        points asked so far, so a function that is opened again continues where it stopped.
    n_targets : int, optional
        The number of values of the function at a point. Each value has a process of its own. All of
        them are one function of a point and a target, whose kernel is k for equal targets and 0 for
        others.

    Notes
    -----
    The same point always gets the same answer. If earlier answers leave almost no variance at a new
    point, its answer interpolates them, which reveals nothing new.

    Every answer has a little independent noise, so the covariance is K + 1e-7 diag(K). This is more
    noise than the guarantee needs. It is added because kernel matrices of many points are singular
    in floating point, and noise drawn with such a factor would miss directions in which functions
    differ.
    """

    def __init__(
        self,
        function: Callable[[Array], Array],
        kernel: Kernel,
        mechanism: FunctionalGaussian,
        key: bytes,
        n_targets: int | None = None,
    ) -> None:
        self._function, self._kernel, self._mechanism = function, kernel, mechanism
        self._key, self._history = key, hashlib.sha256(key).digest()
        self._n_targets = n_targets
        self._points: list[Array] = []
        self._draws: list[float | Array] = []
        self._answers: list[float | Array] = []
        self._factor = np.zeros((0, 0))
        self._known: dict[bytes, float | Array] = {}

    def __len__(self) -> int:
        return len(self._points)

    def known(self, point: Array) -> float | Array | None:
        """Return the earlier answer at this point, or None."""
        return self._known.get(point.tobytes())

    def answer(self, point: Array) -> tuple[Any, bool]:
        """Return the answer at a point, and whether it revealed something new."""
        found = self.known(point)
        if found is not None:
            return found, False
        row, left = self._row(point)
        size = len(self)
        if left <= (_FLOOR + _OWN) * self._variance(point):
            # where k(x, x) = 0, every function of the space is 0
            value = 0.0 if self._n_targets is None else np.zeros(self._n_targets)
            if size:
                white = solve_triangular(self._factor[:size, :size], self._answers, lower=True)
                value = self._rounded(row @ white)
            self._known[point.tobytes()] = value
            return value, False
        if size >= self._mechanism.dimension:
            raise NoiseError(
                f"This function was paid for {self._mechanism.dimension} answers, and all were given."
                " Points close to earlier ones are still answered."
            )
        draw = self._draw(point)
        process = row @ np.asarray(self._draws) + math.sqrt(left) * draw
        value = self._rounded(self._function(point[None, :])[0] + self._mechanism.sigma * process)
        self._append(point, row, left, draw, value)
        return value, True

    def replay(self, point: Array, value: float | Array, new: bool) -> None:
        """Restore an answer that was given before the function was opened again."""
        if new:
            row, left = self._row(point)
            self._append(point, row, left, self._draw(point), value)
        self._known[point.tobytes()] = value

    def _variance(self, point: Array) -> float:
        return float(self._kernel(point[None, :])[0, 0])

    def _row(self, point: Array) -> tuple[Array, float]:
        """Return the next row of the covariance's Cholesky factor, and the remaining variance."""
        size, own = len(self), self._variance(point) * (1 + _OWN)
        if not size:
            return np.zeros(0), own
        values = self._kernel(point[None, :], np.asarray(self._points))[0]
        row = solve_triangular(self._factor[:size, :size], values, lower=True)
        return row, own - float(row @ row)

    def _draw(self, point: Array) -> float | Array:
        """Return the normal variables that belong to this point after the earlier points."""
        self._next = hashlib.sha256(self._history + point.tobytes()).digest()
        found = keyed_normals(self._key, self._next, self._n_targets or 1)
        return found if self._n_targets is not None else float(found[0])

    def _append(
        self, point: Array, row: Array, left: float, draw: float | Array, value: float | Array
    ) -> None:
        size = len(self)
        if size == len(self._factor):
            grown = np.zeros((max(16, 2 * size),) * 2)
            grown[:size, :size] = self._factor
            self._factor = grown
        self._factor[size, :size] = row
        self._factor[size, size] = math.sqrt(left)
        self._points.append(point)
        self._draws.append(draw)
        self._answers.append(value)
        self._history = self._next
        self._known[point.tobytes()] = value

    def _rounded(self, value: Any) -> float | Array:
        grid = self._mechanism.grid
        if not np.isfinite(value).all():
            raise ParameterError(
                parameter_message(
                    "NoisyFunction", "function", "finite at every point", "a function"
                )
            )
        found = np.rint(value / grid) * grid
        return found if self._n_targets is not None else float(found)
