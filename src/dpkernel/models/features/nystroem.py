"""Nystroem features with public landmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array
from dpkernel.models.features.base import FeatureMap, register, shifted_sobol, shrink_rows
from dpkernel.models.graph import Graph
from dpkernel.models.kernels import Kernel, resolve_kernel

_JITTER = 1e-12  # relative to the largest eigenvalue
_MOST_ENTRIES = 1 << 20  # largest part of the kernel matrix that exists at one time


@register
class PublicNystroem(FeatureMap):
    r"""Nystroem features phi(x) = K_UU^{-1/2} k_U(x) for public landmarks U.

    <phi(x), phi(x')> is the inner product of the projections of k(x, .) and k(x', .) on the span of
    the landmarks. It is exact if x is a landmark, and ||phi(x)||^2 <= k(x, x) <= kappa^2.

    Parameters
    ----------
    n_components : int
        The number of landmarks to draw from the box. Not used if landmarks are given.
    landmarks : "box" or array of shape (m, d)
        "box" spreads landmarks evenly over [-1, 1]^d by the public seed. An array must hold points
        that were chosen without looking at the private data. They are stored in the model.
    kernel : str or Kernel
        Any kernel of the registry, by name or value.
    length_scale : float or sequence of floats
        Columns are first divided by it.
    random_state : int
        The public seed.

    Notes
    -----
    Landmarks never come from the rows that are protected.

    Numerics
        The inverse root is the symmetric one of K_UU + j I with j = 1e-12 of the largest
        eigenvalue, in double precision. Rows are clipped to kappa.

    References
    ----------
    Williams & Seeger (2001).

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.features import PublicNystroem
    >>> features = PublicNystroem(50).build(2)
    >>> phi = features.transform(np.array([[0.1, -0.4]]))
    >>> phi.shape
    (1, 50)
    >>> bool(np.linalg.norm(phi) <= features.row_norm_bound * (1 + 1e-12))
    True
    """

    kind: ClassVar[str] = "nystroem"

    def __init__(
        self,
        n_components: int = 256,
        *,
        landmarks: Any = "box",
        kernel: str | Kernel = "gaussian",
        length_scale: float | Sequence[float] = 1.0,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.landmarks = landmarks
        self.kernel = kernel
        self.length_scale = length_scale
        self.random_state = random_state

    @property
    def row_norm_bound(self) -> float:
        """kappa, the root of the bound on k(x, x)."""
        return self._kappa

    def building_bytes(self, n_inputs: int) -> int:
        """Return the size of the landmarks and of five kernel matrices of them."""
        given = not isinstance(self.landmarks, str)
        n = len(self.landmarks) if given else int(self.n_components)
        return 40 * n * n + 32 * n * n_inputs

    def _build(self, n_inputs: int) -> None:
        self._kernel = resolve_kernel(self.kernel, self.length_scale)
        self._kappa = self._root_bound(self._kernel, n_inputs)
        self._points = self._chosen_landmarks(n_inputs)
        self.n_outputs = len(self._points)
        values, vectors = np.linalg.eigh(self._kernel(self._points))
        roots = np.sqrt(np.maximum(values, 0) + _JITTER * max(values[-1], _JITTER))
        self._weights = (vectors / roots) @ vectors.T

    def _chosen_landmarks(self, n_inputs: int) -> Array:
        draws = self._public_uniforms()
        if isinstance(self.landmarks, str) and self.landmarks == "box":
            return 2 * shifted_sobol(self._require_components(1, 20_000), n_inputs, draws) - 1
        try:
            points = np.asarray(self.landmarks, dtype=np.float64)
        except (TypeError, ValueError):
            points = np.empty(0)
        fine = points.ndim == 2 and len(points) > 0 and points.shape[1] == n_inputs
        if not fine or not np.isfinite(points).all():
            allowed = f"'box' or a finite array with at least one row and {n_inputs} column(s)"
            got = f"an array of shape {points.shape}"
            raise ParameterError(parameter_message("PublicNystroem", "landmarks", allowed, got))
        return points

    def coordinates(self, values: Array) -> Array:
        """Return the coordinates K_UU^{-1/2} f(U) of the projection of f, given its values f(U).

        <coordinates, phi(x)> interpolates the values at the landmarks.
        """
        return np.asarray(self._weights @ values)

    def transform_block(self, X: Array) -> Array:
        """Return the projection of every row on the span of the landmarks."""
        X = np.asarray(X)
        out = np.empty((len(X), self.n_outputs), X.dtype)
        step = max(1, _MOST_ENTRIES // self.n_outputs)
        for start in range(0, len(X), step):
            rows = X[start : start + step].astype(np.float64, copy=False)
            out[start : start + step] = self._kernel(rows, self._points) @ self._weights
        return shrink_rows(out, self._kappa)

    def _write(self, graph: Graph, x: str) -> str:
        values = self._kernel.write(graph, x, self._points)
        return graph.shrink(graph.product(values, self._weights), self._kappa)
