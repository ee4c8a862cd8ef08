"""Kernels: their values, bounds on their diagonal and their spectral distributions.

A kernel is a frozen value. ``length_scale`` is one number, or one number per column. Every column
is first divided by its length scale, so a kernel with length scales l at (x, y) is the kernel with
length scale 1 at (x/l, y/l).

Not handled: kernels on anything but rows of numbers, gradients, and length scales learnt from data.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from scipy import special
from scipy.spatial.distance import cdist

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, is_real, is_whole
from dpkernel.models.graph import Graph

_SMALLEST_UNIFORM = 2.0**-54
_LARGEST = 1e140  # of an entry after division by a length scale, so that no later square overflows


class Uniforms(Protocol):
    """A source of numbers in [0, 1), such as a pseudo-random generator."""

    def random(self, size: tuple[int, ...]) -> Array:
        """Return an array of independent uniform numbers."""


@dataclass(frozen=True)
class Kernel(ABC):
    r"""A positive semi-definite function k(x, y) = k_1(x / l, y / l) of two rows.

    Parameters
    ----------
    length_scale : float or sequence of floats
        The length scale l: one number, or one number per column.

    Notes
    -----
    ``kernel(X, Y)`` is the matrix of values, in the dtype of X (float32 or float64). A huge entry
    gives some finite value, never an error, a warning or a NaN, provided that ``diagonal_bound`` is
    at most 1e30. (It is 1, except for kernels on the unit box with tiny length scales.)
    """

    length_scale: float | Sequence[float] = 1.0

    kind: ClassVar[str]
    is_product: ClassVar[bool] = False  # whether k(x, y) is a product with one factor per column

    def __post_init__(self) -> None:
        object.__setattr__(self, "length_scale", _length_scale(self.length_scale, self._owner))

    @property
    def _owner(self) -> str:
        return f"the {self.kind} kernel"

    def __call__(self, X: Array, Y: Array | None = None) -> Array:
        """Return the matrix k(x_i, y_j). By default Y is X."""
        left = self._scaled(X)
        return self._values(left, left if Y is None else self._scaled(Y))

    @abstractmethod
    def _values(self, X: Array, Y: Array) -> Array:
        """Return the matrix of k_1 for rows that were divided by their length scales."""

    @abstractmethod
    def diagonal_bound(self, n_inputs: int) -> float:
        """Return kappa^2, a bound on k(x, x) for every x that ``kernel(X, Y)`` accepts."""

    def write(self, graph: Graph, x: str, points: Array) -> str:
        """Add the matrix k(x_i, u_j) for constant points u to a graph and return its name.

        ``x`` is the name of the rows in the graph.
        """
        if type(self) not in REGISTRY.values():  # a subclass may compute something else
            return Kernel._write(self, graph, x, points)
        scales = self.scales(points.shape[1])
        left = graph.clip(graph.divide(x, scales), -_LARGEST, _LARGEST)
        return self._write(graph, left, np.clip(points / scales, -_LARGEST, _LARGEST))

    def _write(self, graph: Graph, x: str, points: Array) -> str:
        """Add the matrix of k_1 to a graph, for columns that were divided by their length scales."""
        raise ParameterError(
            f"The {self.kind} kernel can't be written with ONNX operators in double precision."
            " Choose another kernel, for example 'gaussian'."
        )

    def scales(self, n_inputs: int) -> Array:
        """Return one length scale per column."""
        if isinstance(self.length_scale, tuple) and len(self.length_scale) != n_inputs:
            allowed = f"one number, or {n_inputs} numbers, one per column"
            got = f"{len(self.length_scale)} numbers"
            raise ParameterError(parameter_message(self._owner, "length_scale", allowed, got))
        return np.broadcast_to(np.asarray(self.length_scale, np.float64), (n_inputs,))

    def rescaled(self, factor: float | Sequence[float]) -> Any:
        """Return this kernel with every length scale multiplied by a factor, or by one per column."""
        checked = np.asarray(_length_scale(factor, self._owner))
        product = np.asarray(self.length_scale) * checked
        return replace(self, length_scale=product.tolist())

    def to_dict(self) -> JSON:
        """Return the kernel as JSON values."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        for name, value in values.items():
            if isinstance(value, Kernel):
                values[name] = value.to_dict()
            elif isinstance(value, tuple):
                values[name] = list(value)
        return {"kind": self.kind, **values}

    def _scaled(self, X: Array) -> Array:
        """Return X / l, with every entry clipped such that no later square overflows."""
        X = np.asarray(X)
        if X.dtype != np.float32:
            X = X.astype(np.float64, copy=False)
        limit = X.dtype.type(1e15 if X.dtype == np.float32 else _LARGEST)
        with np.errstate(over="ignore", under="ignore"):
            scaled = X / self.scales(X.shape[1]).astype(X.dtype)
        return np.clip(scaled, -limit, limit, out=scaled)


@dataclass(frozen=True)
class ShiftInvariant(Kernel):
    r"""A kernel k(x, y) = E cos(w^T (x - y)), where w follows the kernel's spectral distribution.

    On the diagonal k(x, x) = 1.
    """

    def diagonal_bound(self, n_inputs: int) -> float:
        """Return 1, which holds for every x."""
        return 1.0

    @abstractmethod
    def n_uniforms(self, n_inputs: int) -> int:
        """Return the number of uniform variables that one frequency needs."""

    @abstractmethod
    def frequencies(self, uniforms: Array, n_inputs: int) -> Array:
        """Return one frequency per row of uniforms, (n, n_inputs).

        Uniform rows give frequencies of the spectral distribution. The map is a transport of the
        unit cube, so quasi-random points give quasi-random frequencies.
        """

    def sample_frequencies(self, n: int, n_inputs: int, uniforms: Uniforms) -> Array:
        """Return n independent frequencies, (n, n_inputs)."""
        points = uniforms.random((n, self.n_uniforms(n_inputs)))
        return self.frequencies(points, n_inputs)


@dataclass(frozen=True)
class Isotropic(ShiftInvariant):
    r"""A kernel of ||x - y|| whose spectral distribution is a mixture of Gaussians, w = t g / l.

    Here g is standard normal and t > 0 is an independent variable with a distribution of its own,
    so k(x, y) = E exp(-t^2 r^2 / 2) with r = ||(x - y) / l||.
    """

    @abstractmethod
    def _profile(self, squares: Array) -> Array:
        """Return the kernel as a function of r^2."""

    def _mixing(self, uniforms: Array) -> Array:
        """Return t for every uniform number: the quantile function of t."""
        return np.ones_like(uniforms)

    def _write_profile(self, graph: Graph, squares: str) -> str:
        """Add the kernel as a function of r^2 to an ONNX graph."""
        return super()._write(graph, squares, np.empty((0, 0)))

    def _values(self, X: Array, Y: Array) -> Array:
        return self._profile(square_distances(X, Y))

    def _write(self, graph: Graph, x: str, points: Array) -> str:
        centre = points.mean(axis=0)
        left, right = graph.subtract(x, centre), points - centre
        out = graph.multiply(graph.product(left, right.T), -2.0)
        out = graph.add(out, graph.squares(left))
        out = graph.add(out, np.einsum("ij,ij->i", right, right))
        return self._write_profile(graph, graph.largest(out, 0.0))

    def n_uniforms(self, n_inputs: int) -> int:
        """Return 1 for t plus 1 per column."""
        return n_inputs + 1

    def frequencies(self, uniforms: Array, n_inputs: int) -> Array:
        """Return the frequencies t g / l."""
        open_uniforms = np.maximum(uniforms, _SMALLEST_UNIFORM)
        t = self._mixing(open_uniforms[:, :1])
        return np.asarray(t * special.ndtri(open_uniforms[:, 1:]) / self.scales(n_inputs))

    def radii(self, uniforms: Array, n_inputs: int) -> Array:
        """Return ||t g|| for two uniform numbers per row: the radius before length scales."""
        open_uniforms = np.maximum(uniforms, _SMALLEST_UNIFORM)
        chi_square = 2 * special.gammaincinv(n_inputs / 2, open_uniforms[:, 1])
        return np.asarray(self._mixing(open_uniforms[:, 0]) * np.sqrt(chi_square))


@dataclass(frozen=True)
class GaussianKernel(Isotropic):
    r"""Gaussian kernel exp(-r^2 / 2), r = ||(x - y) / l||. Its frequencies are N(0, I).

    Parameters
    ----------
    length_scale : float or sequence of floats
        The length scale l: one number, or one number per column.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.kernels import GaussianKernel
    >>> GaussianKernel(0.5)(np.array([[0.0, 0.5]]), np.array([[0.5, 0.5]])).round(4)
    array([[0.6065]])
    """

    kind: ClassVar[str] = "gaussian"
    is_product: ClassVar[bool] = True

    def _profile(self, squares: Array) -> Array:
        return np.asarray(np.exp(squares * squares.dtype.type(-0.5)))

    def _write_profile(self, graph: Graph, squares: str) -> str:
        return graph.node("Exp", graph.multiply(squares, -0.5))


@dataclass(frozen=True)
class _Matern(Isotropic):
    r"""Matern kernel of smoothness nu.

    Its frequencies are multivariate t with 2 nu degrees of freedom: 1/t^2 is a chi-square variable
    with 2 nu degrees of freedom, divided by 2 nu.
    """

    smoothness: ClassVar[float]

    def _mixing(self, uniforms: Array) -> Array:
        return np.asarray(np.sqrt(self.smoothness / special.gammaincinv(self.smoothness, uniforms)))

    def _profile(self, squares: Array) -> Array:
        z = np.sqrt(squares * squares.dtype.type(2 * self.smoothness))
        return np.asarray(self._polynomial(z) * np.exp(-z))

    def _write_profile(self, graph: Graph, squares: str) -> str:
        z = graph.node("Sqrt", graph.multiply(squares, 2 * self.smoothness))
        return self._write_polynomial(graph, z, graph.node("Exp", graph.multiply(z, -1.0)))

    @abstractmethod
    def _polynomial(self, z: Array) -> Array:
        """Return the factor of exp(-z), where z = sqrt(2 nu) r."""

    @abstractmethod
    def _write_polynomial(self, graph: Graph, z: str, power: str) -> str:
        """Add this factor, times ``power``, to an ONNX graph."""


@dataclass(frozen=True)
class Matern12(_Matern):
    r"""Matern kernel exp(-r) of smoothness 1/2: its paths are continuous, nowhere differentiable.

    Parameters
    ----------
    length_scale : float or sequence of floats
        The length scale l: one number, or one number per column.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.kernels import Matern12
    >>> Matern12(0.5)(np.array([[0.0, 0.5]]), np.array([[0.5, 0.5]])).round(4)
    array([[0.3679]])
    """

    kind: ClassVar[str] = "matern12"
    smoothness: ClassVar[float] = 0.5

    def _polynomial(self, z: Array) -> Array:
        return np.ones_like(z)

    def _write_polynomial(self, graph: Graph, z: str, power: str) -> str:
        return power


@dataclass(frozen=True)
class Matern32(_Matern):
    r"""Matern kernel (1 + z) exp(-z) of smoothness 3/2, with z = sqrt(3) r.

    Parameters
    ----------
    length_scale : float or sequence of floats
        The length scale l: one number, or one number per column.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.kernels import Matern32
    >>> Matern32(0.5)(np.array([[0.0, 0.5]]), np.array([[0.5, 0.5]])).round(4)
    array([[0.4834]])
    """

    kind: ClassVar[str] = "matern32"
    smoothness: ClassVar[float] = 1.5

    def _polynomial(self, z: Array) -> Array:
        return 1 + z

    def _write_polynomial(self, graph: Graph, z: str, power: str) -> str:
        return graph.multiply(graph.add(z, 1.0), power)


@dataclass(frozen=True)
class Matern52(_Matern):
    r"""Matern kernel (1 + z + z^2 / 3) exp(-z) of smoothness 5/2, with z = sqrt(5) r.

    Parameters
    ----------
    length_scale : float or sequence of floats
        The length scale l: one number, or one number per column.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.kernels import Matern52
    >>> Matern52(0.5)(np.array([[0.0, 0.5]]), np.array([[0.5, 0.5]])).round(4)
    array([[0.524]])
    """

    kind: ClassVar[str] = "matern52"
    smoothness: ClassVar[float] = 2.5

    def _polynomial(self, z: Array) -> Array:
        return np.asarray(1 + z * (1 + z * z.dtype.type(1 / 3)))

    def _write_polynomial(self, graph: Graph, z: str, power: str) -> str:
        inner = graph.add(graph.multiply(z, 1 / 3), 1.0)
        return graph.multiply(graph.add(graph.multiply(z, inner), 1.0), power)


@dataclass(frozen=True)
class RationalQuadratic(Isotropic):
    r"""Rational quadratic kernel (1 + r^2 / (2 alpha))^-alpha; "cauchy" is alpha = 1.

    t^2 is a Gamma(alpha) variable with mean 1.

    Parameters
    ----------
    length_scale : float or sequence of floats
        The length scale l: one number, or one number per column.
    alpha : float
        The shape of the distribution of t^2.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.kernels import RationalQuadratic
    >>> RationalQuadratic(0.5, alpha=2.0)(np.array([[0.0, 0.5]]), np.array([[0.5, 0.5]])).round(4)
    array([[0.64]])
    """

    alpha: float = 1.0

    kind: ClassVar[str] = "rational_quadratic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_real(self.alpha) or not 0.01 <= self.alpha <= 1e6:
            allowed = "a float in the range [0.01, 1e6]"
            raise ParameterError(parameter_message(self._owner, "alpha", allowed, self.alpha))
        object.__setattr__(self, "alpha", float(self.alpha))

    def _mixing(self, uniforms: Array) -> Array:
        return np.asarray(np.sqrt(special.gammaincinv(self.alpha, uniforms) / self.alpha))

    def _profile(self, squares: Array) -> Array:
        alpha = squares.dtype.type(self.alpha)
        return np.asarray(np.exp(-alpha * np.log1p(squares / (2 * alpha))))

    def _write_profile(self, graph: Graph, squares: str) -> str:
        logs = graph.node("Log", graph.add(graph.divide(squares, 2 * self.alpha), 1.0))
        return graph.node("Exp", graph.multiply(logs, -self.alpha))


@dataclass(frozen=True)
class LaplaceKernel(ShiftInvariant):
    r"""Laplace kernel exp(-||(x - y) / l||_1), a product of one exponential per column.

    Its frequencies are independent Cauchy variables, one per column.

    Parameters
    ----------
    length_scale : float or sequence of floats
        The length scale l: one number, or one number per column.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.kernels import LaplaceKernel
    >>> LaplaceKernel(0.5)(np.array([[0.0, 0.5]]), np.array([[0.5, 0.5]])).round(4)
    array([[0.3679]])
    """

    kind: ClassVar[str] = "laplace"
    is_product: ClassVar[bool] = True

    def _values(self, X: Array, Y: Array) -> Array:
        distances = cdist(X, Y, "cityblock")
        return np.asarray(np.exp(-distances), dtype=X.dtype)

    def _write(self, graph: Graph, x: str, points: Array) -> str:
        total: str | None = None
        for j in range(points.shape[1]):
            gap = graph.node("Abs", graph.subtract(graph.columns(x, [j]), points[:, j]))
            total = gap if total is None else graph.add(total, gap)
        assert total is not None
        return graph.node("Exp", graph.multiply(total, -1.0))

    def n_uniforms(self, n_inputs: int) -> int:
        """Return 1 per column."""
        return n_inputs

    def frequencies(self, uniforms: Array, n_inputs: int) -> Array:
        """Return Cauchy variables by their quantile function."""
        open_uniforms = np.maximum(uniforms, _SMALLEST_UNIFORM)
        return np.asarray(-1 / np.tan(np.pi * open_uniforms) / self.scales(n_inputs))


@dataclass(frozen=True)
class Additive(ShiftInvariant):
    r"""Additive kernel (1/d) sum_j k_base(x_j / l_j, y_j / l_j): one base kernel per column.

    A frequency consists of a uniformly chosen column and a frequency of the base kernel there.

    Parameters
    ----------
    length_scale : float or sequence of floats
        The length scale l: one number, or one number per column.
    base : ShiftInvariant
        The kernel of each column.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.kernels import Additive
    >>> Additive(0.5)(np.array([[0.0, 0.5]]), np.array([[0.5, 0.5]])).round(4)
    array([[0.8033]])
    """

    base: ShiftInvariant = field(default_factory=GaussianKernel)

    kind: ClassVar[str] = "additive"

    def __post_init__(self) -> None:
        super().__post_init__()
        single = isinstance(self.base, ShiftInvariant) and is_real(self.base.length_scale)
        if not single or isinstance(self.base, Additive):
            allowed = "a shift-invariant kernel, not additive itself, with one length scale"
            got = type(self.base).__name__
            raise ParameterError(parameter_message(self._owner, "base", allowed, got))

    def _values(self, X: Array, Y: Array) -> Array:
        total = np.zeros((len(X), len(Y)), X.dtype)
        for j in range(X.shape[1]):
            total += self.base(X[:, j : j + 1], Y[:, j : j + 1])
        return total / X.dtype.type(X.shape[1])

    def _write(self, graph: Graph, x: str, points: Array) -> str:
        total = None
        for j in range(points.shape[1]):
            one = self.base.write(graph, graph.columns(x, [j]), points[:, j : j + 1])
            total = one if total is None else graph.add(total, one)
        assert total is not None
        return graph.divide(total, float(points.shape[1]))

    def n_uniforms(self, n_inputs: int) -> int:
        """Return 1 for the column plus the number that the base kernel needs."""
        return 1 + self.base.n_uniforms(1)

    def frequencies(self, uniforms: Array, n_inputs: int) -> Array:
        """Return frequencies with exactly one entry that is not zero."""
        column = np.minimum((uniforms[:, 0] * n_inputs).astype(np.intp), n_inputs - 1)
        out = np.zeros((len(uniforms), n_inputs))
        values = self.base.frequencies(uniforms[:, 1:], 1)[:, 0]
        out[np.arange(len(out)), column] = values / self.scales(n_inputs)[column]
        return out


@dataclass(frozen=True)
class OnBox(Kernel):
    """A kernel on the unit box: entries are clipped to [-1, 1] before they are scaled."""

    def __call__(self, X: Array, Y: Array | None = None) -> Array:
        """Return the matrix k(x_i, y_j) for rows clipped to the box."""
        return super().__call__(np.clip(X, -1, 1), None if Y is None else np.clip(Y, -1, 1))

    def write(self, graph: Graph, x: str, points: Array) -> str:
        """Add the matrix k(x_i, u_j), for rows and points clipped to the box, to an ONNX graph."""
        return super().write(graph, graph.clip(x, -1.0, 1.0), np.clip(points, -1.0, 1.0))

    def _corner(self, n_inputs: int) -> float:
        """Return the largest <x/l, x/l> / d on the box, which is 1 for length scale 1."""
        return float(np.mean(self.scales(n_inputs) ** -2.0))


@dataclass(frozen=True)
class Linear(OnBox):
    r"""Linear kernel <x/l, y/l> / d: at most 1 on the unit box for length scale 1.

    Parameters
    ----------
    length_scale : float or sequence of floats
        The length scale l: one number, or one number per column.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.kernels import Linear
    >>> Linear()(np.array([[0.0, 0.5]]), np.array([[0.5, 0.5]])).round(4)
    array([[0.125]])
    """

    kind: ClassVar[str] = "linear"

    def _values(self, X: Array, Y: Array) -> Array:
        return (X @ Y.T) / X.dtype.type(X.shape[1])

    def _write(self, graph: Graph, x: str, points: Array) -> str:
        return graph.product(x, points.T / points.shape[1])

    def diagonal_bound(self, n_inputs: int) -> float:
        """Return the value in a corner of the box."""
        return self._corner(n_inputs)


@dataclass(frozen=True)
class Polynomial(OnBox):
    r"""Polynomial kernel ((offset + <x/l, y/l> / d) / (offset + 1))^degree.

    It is at most 1 on the unit box for length scale 1.

    Parameters
    ----------
    length_scale : float or sequence of floats
        The length scale l: one number, or one number per column.
    degree : int
        The degree.
    offset : float
        The weight of lower degrees.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.kernels import Polynomial
    >>> Polynomial(degree=2)(np.array([[0.0, 0.5]]), np.array([[0.5, 0.5]])).round(4)
    array([[0.3164]])
    """

    degree: int = 2
    offset: float = 1.0

    kind: ClassVar[str] = "polynomial"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_whole(self.degree) or not 1 <= self.degree <= 100:
            allowed = "an int from 1 to 100"
            raise ParameterError(parameter_message(self._owner, "degree", allowed, self.degree))
        if not is_real(self.offset) or not 0 <= self.offset <= 1e6:
            allowed = "a float in the range [0, 1e6]"
            raise ParameterError(parameter_message(self._owner, "offset", allowed, self.offset))
        object.__setattr__(self, "degree", int(self.degree))
        object.__setattr__(self, "offset", float(self.offset))

    def _values(self, X: Array, Y: Array) -> Array:
        scale, number = 1 / (1 + self.offset), X.dtype.type
        base = (X @ Y.T) * number(scale / X.shape[1]) + number(self.offset * scale)
        return np.asarray(base**self.degree)

    def _write(self, graph: Graph, x: str, points: Array) -> str:
        scale = 1 / (1 + self.offset)
        power = graph.product(x, points.T * (scale / points.shape[1]))
        power = graph.add(power, self.offset * scale)
        out, left = None, self.degree
        while (
            left
        ):  # repeated squaring, because the general power loses the sign of negative numbers
            if left % 2:
                out = power if out is None else graph.multiply(out, power)
            left //= 2
            power = graph.multiply(power, power) if left else power
        return str(out)

    def diagonal_bound(self, n_inputs: int) -> float:
        """Return the value in a corner of the box."""
        share = (self.offset + self._corner(n_inputs)) / (self.offset + 1)
        return math.exp(min(self.degree * math.log(share), 700.0))  # finite, or far too large


@dataclass(frozen=True)
class ArcCosine(OnBox):
    r"""The kernel of an infinite layer of step (degree 0) or rectified linear (degree 1) units.

    Let theta be the angle between x/l and y/l. Degree 0 is 1 - theta/pi, and degree 1 is
    ||x/l|| ||y/l|| (sin theta + (pi - theta) cos theta) / (pi d). By convention, a zero row has
    theta = pi/2 with every other row, and theta = 0 with a zero row.

    Parameters
    ----------
    length_scale : float or sequence of floats
        The length scale l: one number, or one number per column.
    degree : int
        0 or 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.kernels import ArcCosine
    >>> ArcCosine()(np.array([[0.0, 0.5]]), np.array([[0.5, 0.5]])).round(4)
    array([[0.1335]])
    """

    degree: int = 1

    kind: ClassVar[str] = "arc_cosine"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_whole(self.degree) or self.degree not in (0, 1):
            raise ParameterError(parameter_message(self._owner, "degree", "0 or 1", self.degree))
        object.__setattr__(self, "degree", int(self.degree))

    def _values(self, X: Array, Y: Array) -> Array:
        left, right = _norms(X), _norms(Y)
        cosine = _unit(X, left) @ _unit(Y, right).T
        np.clip(cosine, -1, 1, out=cosine)
        cosine[np.ix_(left == 0, right == 0)] = 1
        angle = np.arccos(cosine)
        number = X.dtype.type
        if self.degree == 0:
            return 1 - angle * number(1 / math.pi)
        inner = np.sin(angle) + (number(math.pi) - angle) * cosine
        return np.asarray(inner * left[:, None] * (right * number(1 / (math.pi * X.shape[1]))))

    def diagonal_bound(self, n_inputs: int) -> float:
        """Return 1 for degree 0 and the value in a corner of the box for degree 1."""
        return 1.0 if self.degree == 0 else self._corner(n_inputs)


def square_distances(X: Array, Y: Array) -> Array:
    """Return ||x_i - y_j||^2 by one matrix product.

    Distances are measured from the centre of Y. They are exactly 0 on the diagonal if Y is X.

    Parameters
    ----------
    X, Y : arrays of shape (n, d) and (m, d)
        The points.

    Returns
    -------
    array of shape (n, m)
    """
    centre = Y.mean(axis=0) if len(Y) else Y.sum(axis=0)
    left = X - centre
    right = left if X is Y else Y - centre
    out = left @ right.T
    out *= -2
    out += np.einsum("ij,ij->i", left, left)[:, None]
    out += np.einsum("ij,ij->i", right, right)
    np.maximum(out, 0, out=out)
    if X is Y:
        np.fill_diagonal(out, 0)
    return np.asarray(out)


def _norms(X: Array) -> Array:
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", X, X)))


def _unit(X: Array, norms: Array) -> Array:
    return X / np.where(norms > 0, norms, 1)[:, None]


def _length_scale(value: object, owner: str) -> float | tuple[float, ...]:
    """Return a positive float, or a tuple of positive floats."""
    if is_real(value) and 1e-30 <= value <= 1e30:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    if isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, str) and len(value):
        items = value.tolist() if isinstance(value, np.ndarray) else list(value)
        if all(is_real(item) and 1e-30 <= item <= 1e30 for item in items):
            return tuple(float(item) for item in items)
    allowed = "a float in the range [1e-30, 1e30], or a sequence of them, one per column"
    got = value if is_real(value) else type(value).__name__
    raise ParameterError(parameter_message(owner, "length_scale", allowed, got))


def resolve_kernel(kernel: str | Kernel, length_scale: float | Sequence[float] = 1.0) -> Kernel:
    """Return a kernel, given by name or as a value, after dividing columns by ``length_scale``.

    Parameters
    ----------
    kernel : str or Kernel
        A name in the registry, or a kernel.
    length_scale : float or sequence of floats
        A factor for all length scales of the kernel, or one factor per column.

    Examples
    --------
    >>> resolve_kernel("cauchy", 2.0)
    RationalQuadratic(length_scale=2.0, alpha=1.0)
    """
    if isinstance(kernel, str) and kernel in REGISTRY:
        kernel = REGISTRY[kernel]()
    if not isinstance(kernel, Kernel):
        allowed = f"a kernel or one of {', '.join(map(repr, REGISTRY))}"
        got = kernel if isinstance(kernel, str) else type(kernel).__name__
        raise ParameterError(parameter_message("resolve_kernel", "kernel", allowed, got))
    rescaled: Kernel = kernel.rescaled(length_scale)
    return rescaled


def kernel_from_dict(data: JSON) -> Kernel:
    """Return the kernel that ``to_dict`` described.

    Parameters
    ----------
    data : dict
        JSON values, as ``to_dict`` returns them.

    Raises
    ------
    ParameterError
        If they describe no kernel.
    """
    values = dict(data)
    kind = values.pop("kind", None)
    if kind not in REGISTRY:
        allowed = f"one of {', '.join(map(repr, REGISTRY))}"
        raise ParameterError(parameter_message("kernel_from_dict", "kind", allowed, kind))
    if isinstance(values.get("base"), dict):
        values["base"] = kernel_from_dict(values["base"])
    kernel: Kernel = REGISTRY[kind](**values)
    return kernel


Gaussian, Laplace = GaussianKernel, LaplaceKernel  # their names before version 0.6
REGISTRY: dict[str, type[Any]] = {
    "gaussian": GaussianKernel,
    "laplace": LaplaceKernel,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational_quadratic": RationalQuadratic,
    "cauchy": RationalQuadratic,
    "linear": Linear,
    "polynomial": Polynomial,
    "arc_cosine": ArcCosine,
    "additive": Additive,
}


def kept(function: Any, kernel: Kernel) -> Any:
    """Return a function that remembers its results, for kernels of this module; as it was, for others.

    A kernel that a user has written may change, or have no hash.

    Parameters
    ----------
    function : callable
        A function that ``functools.lru_cache`` wraps.
    kernel : Kernel
        The kernel of which its result depends.
    """
    known = all(type(k) in REGISTRY.values() for k in (kernel, getattr(kernel, "base", kernel)))
    return function if known else function.__wrapped__
