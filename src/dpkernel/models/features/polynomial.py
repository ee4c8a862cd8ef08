"""Exact features of the linear and polynomial kernels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import ClassVar

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array
from dpkernel.models.features.base import FeatureMap, register, shrink_rows, shrinking_error
from dpkernel.models.graph import Graph
from dpkernel.models.kernels import Polynomial

_MOST_OUTPUTS = 20_000
_MOST_ENTRIES = 1 << 20  # largest number of features that are processed together


@register
class PolynomialMap(FeatureMap):
    r"""Monomials phi(x), weighted such that <phi(x), phi(x')> is the polynomial kernel, exactly.

    With u = (sqrt(offset), x/(l sqrt d)) / sqrt(offset + 1), the kernel
    ((offset + <x/l, x'/l> / d) / (offset + 1))^p is <u, u'>^p, and the features are
    sqrt(p! / alpha!) u^alpha over all multi-indices ``|alpha| = p``. Entries of x are clipped to
    [-1, 1]; for length scale 1 the norm is then at most 1. Degree 1 with offset 0 is the linear
    kernel.

    Parameters
    ----------
    degree : int
        The degree p.
    offset : float
        The weight of lower degrees. With 0, only degree p is left.
    length_scale : float or sequence of floats
        Columns are divided by it, after clipping.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.features import PolynomialMap
    >>> features = PolynomialMap(degree=2).build(2)
    >>> phi = features.transform(np.array([[0.1, -0.4]]))
    >>> phi.shape
    (1, 6)
    >>> bool(np.linalg.norm(phi) <= features.row_norm_bound * (1 + 1e-12))
    True
    """

    kind: ClassVar[str] = "polynomial"

    def __init__(
        self, degree: int = 2, *, offset: float = 1.0, length_scale: float | Sequence[float] = 1.0
    ) -> None:
        self.degree = degree
        self.offset = offset
        self.length_scale = length_scale

    @property
    def row_norm_bound(self) -> float:
        """kappa, the root of the largest value of the kernel on the box."""
        return self._kappa

    def building_bytes(self, n_inputs: int) -> int:
        """Return the size of the lists of monomials."""
        degree = min(int(self.degree), 100)  # the largest degree of a kernel
        outputs = min(math.comb(n_inputs + degree, degree), _MOST_OUTPUTS)
        return 64 * n_inputs + (256 + 64 * degree) * outputs

    def _build(self, n_inputs: int) -> None:
        kernel = Polynomial(self.length_scale, self.degree, self.offset)
        self._kappa = self._root_bound(kernel, n_inputs)
        self._factors = homogeneous_factors(kernel, n_inputs)
        first = 0 if kernel.offset > 0 else 1  # place 0 holds the constant
        width = n_inputs + 1 - first
        outputs = math.comb(width + kernel.degree - 1, kernel.degree)
        if outputs > _MOST_OUTPUTS:
            allowed = f"such that there are at most {_MOST_OUTPUTS} monomials, not {outputs}"
            advice = "Use TensorSketch, or FourierFeatures with a Gaussian kernel."
            raise ParameterError(
                parameter_message("PolynomialMap", "degree", allowed, self.degree, advice)
            )
        self.n_outputs = outputs
        # monomials of degree q are those of degree q - 1 times one more factor that does not come
        # before the last one: two lists of places for every q
        indices: list[tuple[int, ...]] = [(j,) for j in range(first, n_inputs + 1)]
        self._first = first
        self._steps: list[tuple[list[int], list[int]]] = []
        for q in range(2, kernel.degree + 1):
            place = {index: i for i, index in enumerate(indices)}
            indices = list(combinations_with_replacement(range(first, n_inputs + 1), q))
            self._steps.append(([place[i[:-1]] for i in indices], [i[-1] for i in indices]))
        top = math.factorial(kernel.degree)
        counts = (Counter(index).values() for index in indices)
        self._weights = np.array(
            [math.sqrt(top // math.prod(map(math.factorial, c))) for c in counts]
        )

    def evaluation_error(self) -> float:
        """Return the error of shrinking, since monomials are computed entry by entry."""
        return shrinking_error(self._kappa, self.n_outputs)

    def transform_block(self, X: Array) -> Array:
        """Return the weighted monomials of every row."""
        X = np.asarray(X)
        out = np.empty((len(X), self.n_outputs), X.dtype)
        weights = self._weights.astype(X.dtype)[:, None]
        step = max(1, _MOST_ENTRIES // self.n_outputs)
        for start in range(0, len(X), step):
            u = homogeneous(X[start : start + step], self._factors).T.copy()
            level = u[self._first :]
            for parents, last in self._steps:
                level = level[parents] * u[last]
            out[start : start + step] = (level * weights).T
        return shrink_rows(out, self._kappa)

    def _write(self, graph: Graph, x: str) -> str:
        u = write_homogeneous(graph, self._factors, x)
        level = graph.columns(u, range(self._first, len(self._factors)))
        for parents, last in self._steps:
            level = graph.multiply(graph.columns(level, parents), graph.columns(u, last))
        return graph.shrink(graph.multiply(level, self._weights), self._kappa)


def homogeneous_factors(kernel: Polynomial, n_inputs: int) -> Array:
    """Return the factors that turn (1, x) into u, for which the kernel is <u, u'>^p."""
    columns = 1 / (kernel.scales(n_inputs) * math.sqrt(n_inputs))
    return np.append(math.sqrt(kernel.offset), columns) / math.sqrt(kernel.offset + 1)


def homogeneous(X: Array, factors: Array) -> Array:
    """Return u for every row: (1, x clipped to the unit box) times the factors."""
    u = np.ones((len(X), X.shape[1] + 1), X.dtype)
    np.clip(X, -1, 1, out=u[:, 1:])
    u *= factors.astype(X.dtype)
    return u


def write_homogeneous(graph: Graph, factors: Array, x: str) -> str:
    """Add u of every row to an ONNX graph."""
    u = graph.join([graph.ones(x), graph.clip(x, -1.0, 1.0)])
    return graph.multiply(u, factors)
