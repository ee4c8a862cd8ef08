"""Sketched features of polynomial kernels of high degree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from scipy import fft, sparse

from dpkernel.foundations.types import Array
from dpkernel.models.features.base import FeatureMap, register, shrink_rows
from dpkernel.models.features.polynomial import homogeneous, homogeneous_factors, write_homogeneous
from dpkernel.models.graph import Graph
from dpkernel.models.kernels import Polynomial

_MOST_ENTRIES = 1 << 19  # largest number of entries of sketches that exist at one time


@register
class TensorSketch(FeatureMap):
    r"""phi(x) = F^{-1} prod_{q <= p} F C_q u, clipped to kappa: a sketch of the p-fold tensor of u.

    u is the vector for which the polynomial kernel is <u, u'>^p (see ``PolynomialMap``), F is the
    Fourier transform of length M, and C_q are independent count sketches: entry j of u is added,
    with a random sign s_q(j), to coordinate h_q(j). Before clipping, <phi(x), phi(x')> is an
    unbiased estimate of the kernel with variance at most (2 + 3^p) kappa^4 / M.

    Parameters
    ----------
    n_components : int
        The number M of features.
    degree, offset, length_scale
        The parameters of the polynomial kernel.
    random_state : int
        The public seed of h and s.

    References
    ----------
    Pham & Pagh (2013); the variance is from Avron, Nguyen & Woodruff (2014).

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.features import TensorSketch
    >>> features = TensorSketch(64).build(2)
    >>> phi = features.transform(np.array([[0.1, -0.4]]))
    >>> phi.shape
    (1, 64)
    >>> bool(np.linalg.norm(phi) <= features.row_norm_bound * (1 + 1e-12))
    True
    """

    kind: ClassVar[str] = "tensor_sketch"

    def __init__(
        self,
        n_components: int = 256,
        *,
        degree: int = 3,
        offset: float = 1.0,
        length_scale: float | Sequence[float] = 1.0,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.degree = degree
        self.offset = offset
        self.length_scale = length_scale
        self.random_state = random_state

    @property
    def row_norm_bound(self) -> float:
        """kappa, the root of the largest value of the kernel on the box."""
        return self._kappa

    def building_bytes(self, n_inputs: int) -> int:
        """Return the size of the signs and places, one of each per input and degree."""
        return 64 * (int(self.degree) + 4) * (n_inputs + 1) + 8 * int(self.n_components)

    def _build(self, n_inputs: int) -> None:
        m = self.n_outputs = self._require_components()
        kernel = Polynomial(self.length_scale, self.degree, self.offset)
        self._kappa = self._root_bound(kernel, n_inputs)
        self._factors = homogeneous_factors(kernel, n_inputs)
        draws = self._public_uniforms()
        shape = (kernel.degree, n_inputs + 1)
        self._places = np.minimum((draws.random(shape) * m).astype(np.intp), m - 1)
        self._signs = np.where(draws.random(shape) < 0.5, -1.0, 1.0)

    def transform_block(self, X: Array) -> Array:
        """Return the clipped sketch of every row."""
        X = np.asarray(X)
        out = np.empty((len(X), self.n_outputs), X.dtype)
        width, m = len(self._factors), self.n_outputs
        sketches = [
            sparse.csr_matrix((signs.astype(X.dtype), (places, np.arange(width))), (m, width))
            for places, signs in zip(self._places, self._signs, strict=True)
        ]
        step = max(1, _MOST_ENTRIES // m)
        for start in range(0, len(X), step):
            u = homogeneous(X[start : start + step], self._factors).T.copy()
            product = None
            for sketch in sketches:
                transformed = fft.rfft((sketch @ u).T, axis=1)
                product = transformed if product is None else product * transformed
            out[start : start + step] = fft.irfft(product, n=m, axis=1)
        return shrink_rows(out, self._kappa)

    def _write(self, graph: Graph, x: str) -> str:
        u, m = write_homogeneous(graph, self._factors, x), self.n_outputs
        real = imaginary = None
        for places, signs in zip(self._places, self._signs, strict=True):
            sketch = np.zeros((len(places), m))
            sketch[np.arange(len(places)), places] = signs
            transform = np.fft.rfft(sketch, axis=1)
            a, b = graph.product(u, transform.real), graph.product(u, transform.imag)
            if real is None or imaginary is None:
                real, imaginary = a, b
                continue
            real, imaginary = (
                graph.subtract(graph.multiply(real, a), graph.multiply(imaginary, b)),
                graph.add(graph.multiply(real, b), graph.multiply(imaginary, a)),
            )
        assert real is not None and imaginary is not None
        half = np.eye(m // 2 + 1)
        back = graph.add(
            graph.product(real, np.fft.irfft(half, n=m, axis=1)),
            graph.product(imaginary, np.fft.irfft(1j * half, n=m, axis=1)),
        )
        return graph.shrink(back, self._kappa)
