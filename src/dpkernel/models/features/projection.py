"""Random projection of a bounded feature map: a Gaussian process with a finite recipe."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from scipy import special
from scipy.linalg import hadamard
from sklearn.base import clone

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.rounding import gamma
from dpkernel.foundations.types import JSON, Array
from dpkernel.foundations.validation import Choice, check_parameters
from dpkernel.models.features.base import (
    REGISTRY,
    FeatureMap,
    register,
    shrink_rows,
    shrinking_error,
)
from dpkernel.models.features.fourier import FourierFeatures
from dpkernel.models.graph import Graph

_MOST_ENTRIES = 1 << 20  # largest number of base features that exist at one time
_QUANTILE = 0.9
_FACTOR = 64  # side of the Walsh-Hadamard matrices in the matrix products


@register
class RandomProjection(FeatureMap):
    r"""h(x) = R phi(x) / sqrt(M) with rows clipped to B, where phi is a bounded map with D outputs.

    If the entries of R are independent N(0, 1), every coordinate of sqrt(M) h, before clipping, is
    exactly a draw of the centred Gaussian process with covariance k_D = <phi, phi>, because it is a
    linear combination of Gaussian variables. So M ||h(x)||^2 / ||phi(x)||^2 is chi-square with M
    degrees of freedom. The textbook construction, a path sampled at the training points, has the
    same distribution, but it can't be evaluated anywhere else and costs O(n^3).

    Parameters
    ----------
    n_components : int
        The number M of features.
    base : FeatureMap or None
        The map phi. If None: ``FourierFeatures(4096)``.
    structure : "gaussian" or "hadamard"
        With "gaussian", R has independent N(0, 1) entries, which costs O(D M) per row. With
        "hadamard", R consists of M random rows of blocks H S, where H is a Walsh-Hadamard matrix
        and S holds random signs, which costs O(D log D) per row. Then E <h, h'> = <phi, phi'> as
        before, but the coordinates are only approximately Gaussian.
    random_state : int
        The public seed of R. The base map has its own seed.

    Attributes
    ----------
    inner_ : FeatureMap
        The map phi, built.

    Notes
    -----
    Row bound
        Let kappa bound ||phi||. For M < 200, B^2 = kappa^2 q / M with q the 0.9-quantile of
        chi-square with M degrees of freedom. For M >= 200, B = kappa. On average this shrinks the
        norm by less than 1 % and 2 %. Privacy rests on the clipping, not on R.
    Numerics
        Rows are processed in blocks, so no n x D array exists.

    References
    ----------
    Gaussian-process features by Cholesky factors: Lee, Park & Ahn; a finite base map is used here
    instead. Ailon & Chazelle (2009) for H S.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.features import RandomProjection
    >>> features = RandomProjection(50).build(2)
    >>> phi = features.transform(np.array([[0.1, -0.4]]))
    >>> phi.shape
    (1, 50)
    >>> bool(np.linalg.norm(phi) <= features.row_norm_bound * (1 + 1e-12))
    True
    """

    kind: ClassVar[str] = "projection"

    def __init__(
        self,
        n_components: int = 256,
        *,
        base: FeatureMap | None = None,
        structure: str = "gaussian",
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.base = base
        self.structure = structure
        self.random_state = random_state

    @property
    def row_norm_bound(self) -> float:
        """B."""
        return self._bound

    def building_bytes(self, n_inputs: int) -> int:
        """Return the memory of the base map and of three copies of the matrix."""
        base = self._given_base()
        width = int(getattr(base, "n_components", getattr(base, "_n_outputs", 20_000)))
        return base.building_bytes(n_inputs) + 24 * (width + 64) * int(self.n_components)

    def _build(self, n_inputs: int) -> None:
        m = self.n_outputs = self._require_components()
        check_parameters(
            type(self).__name__, vars(self), {"structure": Choice("gaussian", "hadamard")}
        )
        self.inner_: FeatureMap = clone(self._given_base()).build(n_inputs)
        self._bound: float = self.inner_.row_norm_bound
        if m < 200:
            self._bound *= math.sqrt(2 * float(special.gammaincinv(m / 2, _QUANTILE)) / m)
        draws, width = self._public_uniforms(), self.inner_.n_outputs
        self._matrices: dict[Any, Array] = {}
        if self.structure == "gaussian":
            uniforms = np.maximum(draws.random((width, m)), 2.0**-54)
            self._matrices[np.dtype(np.float64)] = special.ndtri(uniforms) / math.sqrt(m)
        else:
            side = 1 << (width - 1).bit_length()
            blocks = -(-m // side)
            self._signs = np.where(draws.random((blocks, width)) < 0.5, -1.0, 1.0)
            self._taken = [
                np.sort(np.argsort(draws.random((side,)), kind="stable")[: m - b * side])
                for b in range(blocks)
            ]
            self._side = side

    def _given_base(self) -> FeatureMap:
        base: object = FourierFeatures(4096) if self.base is None else self.base
        if not isinstance(base, FeatureMap):
            allowed, got = "a feature map or None", type(base).__name__
            raise ParameterError(parameter_message("RandomProjection", "base", allowed, got))
        return base

    def transform_block(self, X: Array) -> Array:
        """Return the clipped projection of every row."""
        X = np.asarray(X)
        out = np.empty((len(X), self.n_outputs), X.dtype)
        step = max(1, _MOST_ENTRIES // self.inner_.n_outputs)
        project = self._project_dense if self.structure == "gaussian" else self._project_fast
        for start in range(0, len(X), step):
            rows = slice(start, start + step)
            project(self.inner_.transform_block(X[rows]), out[rows])
            shrink_rows(out[rows], self._bound)
        return out

    def _write(self, graph: Graph, x: str) -> str:
        base = self.inner_.write(graph, x)
        if self.structure == "gaussian":
            matrix = self._matrices[np.dtype(np.float64)]
        else:  # the matrix of the fast transform is the transform of the unit vectors
            matrix = np.empty((self.inner_.n_outputs, self.n_outputs))
            self._project_fast(np.eye(len(matrix)), matrix)
        return graph.shrink(graph.product(base, matrix), self._bound)

    def evaluation_error(self) -> float | None:
        r"""Return (e + gamma(k) (kappa + e)) ||R||_F / sqrt(M) plus the error of shrinking.

        e is the error of the base map. An entry is a sum over D features with k <= 2 D + 4
        roundings (Walsh-Hadamard factors have sums over a padded length below 2 D, and one over the
        signs).
        """
        base = self.inner_.evaluation_error()
        if base is None:
            return None
        width = self.inner_.n_outputs
        if self.structure == "gaussian":
            size = float(np.linalg.norm(self._matrices[np.dtype(np.float64)])) * (1 + 1e-9)
        else:
            size = math.sqrt(width) * (1 + 1e-9)  # M rows of D signs, over sqrt(M)
        error = (base + gamma(2 * width + 4) * (self.inner_.row_norm_bound + base)) * size
        return error + shrinking_error(self._bound, self.n_outputs)

    def _project_dense(self, features: Array, out: Array) -> None:
        kind = features.dtype
        if kind not in self._matrices:
            self._matrices[kind] = self._matrices[np.dtype(np.float64)].astype(kind)
        np.matmul(features, self._matrices[kind], out=out)

    def _project_fast(self, features: Array, out: Array) -> None:
        width = features.shape[1]
        padded = np.zeros((len(features), self._side), features.dtype)
        scale = 1 / math.sqrt(self.n_outputs)
        for b, (signs, taken) in enumerate(zip(self._signs, self._taken, strict=True)):
            np.multiply(features, (signs * scale).astype(features.dtype), out=padded[:, :width])
            start = b * self._side
            out[:, start : start + len(taken)] = walsh_hadamard(padded)[:, taken]

    def _recipe(self) -> JSON:
        base = self._given_base()
        return {**super()._recipe(), "base": {"kind": base.kind, "parameters": base._recipe()}}

    @classmethod
    def _from_recipe(cls, parameters: JSON) -> Any:
        base = parameters["base"]
        made = REGISTRY[base["kind"]]._from_recipe(base["parameters"])
        return super()._from_recipe({**parameters, "base": made})


def walsh_hadamard(rows: Array) -> Array:
    """Return every row times the Walsh-Hadamard matrix (entries +1 and -1, Sylvester's order).

    The number of columns D must be a power of two. The matrix is a Kronecker product of matrices of
    side at most 64, and each of these factors is one matrix product: O(D log D) per row.

    Parameters
    ----------
    rows : array of shape (n, D)
        The rows.
    """
    n, side = rows.shape
    done = min(_FACTOR, side)
    out = rows.reshape(-1, done) @ hadamard(done).astype(rows.dtype)
    while done < side:
        factor = min(_FACTOR, side // done)
        out = hadamard(factor).astype(rows.dtype) @ out.reshape(-1, factor, done)
        done *= factor
    return np.asarray(out.reshape(n, side))
