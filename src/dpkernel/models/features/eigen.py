"""The leading eigenfunctions of a kernel under a public reference measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from scipy import special

from dpkernel.foundations.rounding import gamma
from dpkernel.foundations.types import Array, IntArray
from dpkernel.foundations.validation import Choice, Real, check_parameters
from dpkernel.models.features.base import (
    FeatureMap,
    register,
    shifted_sobol,
    shrink_rows,
    shrinking_error,
)
from dpkernel.models.features.mercer import Spectrum1D, leading_products, solve_1d
from dpkernel.models.graph import Graph
from dpkernel.models.kernels import Kernel, kept, resolve_kernel

_FLOOR = 1e-6  # lower limit of the first eigenfunction as a divisor, relative to its maximum
_ROWS = 256  # largest number of rows that are processed together
_MOST_ENTRIES = 1 << 21  # largest size of a temporary array
_LEAST_SHARE = 1e-9  # smallest eigenvalue of a sample that is used, relative to the first


@register
class PublicEigenfeatures(FeatureMap):
    r"""phi_l(x) = sqrt(mu_l) psi_l(x), the M leading eigenpairs of the kernel under a measure P.

    E_{y ~ P} k(x, y) psi_l(y) = mu_l psi_l(x), with psi_l orthonormal under P and mu_l decreasing.
    Then <phi(x), phi(x')> = sum_{l <= M} mu_l psi_l(x) psi_l(x') is the best approximation of k of
    rank M under P x P, and ||phi(x)||^2 <= k(x, x) <= kappa^2. P is public: it is declared, never
    estimated. If the data follow another distribution, the features are still bounded but no longer
    orthogonal.

    Parameters
    ----------
    n_components : int
        The number M of features. There are fewer if the kernel has fewer eigenvalues above 1e-9 of
        the first one.
    kernel : str or Kernel
        Any kernel of the registry, by name or value.
    length_scale : float or sequence of floats
        Columns are first divided by it.
    measure : "uniform" or "gaussian"
        The measure P: uniform on [-1, 1]^d, or N(0, scale^2 I). Inputs are clipped to the box, or
        to six standard deviations.
    scale : float
        The standard deviation of the Gaussian measure.
    random_state : int
        The public seed. It is used if eigenfunctions come from a sample of P.

    Attributes
    ----------
    spectrum : ndarray of shape (n_outputs,)
        The eigenvalues mu_l.

    Notes
    -----
    Numerics
        For product kernels (Gaussian, Laplace), psi is a product of one-dimensional eigenfunctions.
        These come from Gauss quadrature (in closed form for the Laplace kernel under the uniform
        measure) and are stored as Legendre series. The M largest products are found without
        enumeration, even for hundreds of columns. For other kernels, mu and psi are those of a
        quasi-random public sample of P (kernel principal components). Their error falls with the
        size of the sample, min(max(2 M, 1000), 3000). Rows are clipped to kappa.

    References
    ----------
    Mercer's theorem; Williams & Seeger (2001) for eigenfunctions from samples.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.features import PublicEigenfeatures
    >>> features = PublicEigenfeatures(50).build(2)
    >>> phi = features.transform(np.array([[0.1, -0.4]]))
    >>> phi.shape
    (1, 50)
    >>> bool(np.linalg.norm(phi) <= features.row_norm_bound * (1 + 1e-12))
    True
    """

    kind: ClassVar[str] = "eigen"
    _constraints: ClassVar[dict[str, Any]] = {
        "measure": Choice("uniform", "gaussian"),
        "scale": Real(1e-6, 1e6, closed_low=True, closed_high=True),
    }

    def __init__(
        self,
        n_components: int = 256,
        *,
        kernel: str | Kernel = "gaussian",
        length_scale: float | Sequence[float] = 1.0,
        measure: str = "uniform",
        scale: float = 1.0,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.kernel = kernel
        self.length_scale = length_scale
        self.measure = measure
        self.scale = scale
        self.random_state = random_state

    @property
    def row_norm_bound(self) -> float:
        """kappa, the root of the bound on k(x, x)."""
        return self._kappa

    @property
    def spectrum(self) -> Array:
        """The eigenvalues mu_l, decreasing."""
        return self._spectrum.copy()

    def building_bytes(self, n_inputs: int) -> int:
        """Return the size of the kernel matrices of a sample, or of the lists of products."""
        n = int(self.n_components)
        size = min(max(2 * n, 1000), 3000)
        return 40 * size * size + 32 * size * n_inputs + 1024 * (n + n_inputs)

    def _build(self, n_inputs: int) -> None:
        n = self._require_components()
        check_parameters(type(self).__name__, vars(self), self._constraints)
        self._public_uniforms()  # checks the seed, even if it is not used
        kernel = resolve_kernel(self.kernel, self.length_scale)
        self._kappa = self._root_bound(kernel, n_inputs)
        self._parts: _Products | _Sample
        if kernel.is_product:
            self._parts = _Products(kernel, self.measure, self.scale, n_inputs, n)
        else:
            sample = self._sample(min(max(2 * n, 1000), 3000))
            self._parts = kept(_components, kernel)(kernel, sample.tobytes(), n_inputs, n)
        self._spectrum = self._parts.spectrum
        self.n_outputs = len(self._spectrum)

    def _sample(self, n: int) -> Array:
        """Return quasi-random points of the measure."""
        points = shifted_sobol(n, self.n_features_in_, self._public_uniforms())
        if self.measure == "uniform":
            return 2 * points - 1
        return np.asarray(special.ndtri(np.clip(points, 1e-9, 1 - 1e-9)) * self.scale)

    def evaluation_error(self) -> float | None:
        """Return the error of the products and of shrinking; None for eigenfunctions of a sample."""
        if not isinstance(self._parts, _Products):
            return None
        return self._parts.evaluation_error() + shrinking_error(self._kappa, self.n_outputs)

    def transform_block(self, X: Array) -> Array:
        """Return the eigenfeatures of every row."""
        X = np.asarray(X)
        out = np.empty((len(X), self.n_outputs), X.dtype)
        reach = X.dtype.type(1.0 if self.measure == "uniform" else 6.0 * self.scale)
        step = max(1, min(_ROWS, _MOST_ENTRIES // self._parts.entries_a_row))
        for start in range(0, len(X), step):
            rows = np.clip(X[start : start + step], -reach, reach)
            self._parts.evaluate(rows, out[start : start + step])
        return shrink_rows(out, self._kappa)

    def _write(self, graph: Graph, x: str) -> str:
        reach = 1.0 if self.measure == "uniform" else 6.0 * self.scale
        inside = graph.clip(x, -reach, reach)
        return graph.shrink(self._parts.write(graph, inside), self._kappa)


class _Products:
    """The eigenfunctions of a product kernel: products of one-dimensional eigenfunctions.

    Let e_{j,a} = sqrt(mu_{j,a}) psi_{j,a} for column j. A feature is the product of all e_{j,0} and
    of the ratios e_{j,a} / e_{j,0} for the few columns whose order a is not 0. Leaving out the last
    of these ratios gives its parent: a feature with a larger eigenvalue, which is therefore also
    used.
    """

    def __init__(self, kernel: Kernel, measure: str, scale: float, n_inputs: int, n: int) -> None:
        scales = kernel.scales(n_inputs)
        self.groups: list[tuple[Spectrum1D, IntArray, int]] = []
        spectra: list[Array] = [np.ones(1)] * n_inputs
        for length in np.unique(scales):
            columns: IntArray = np.flatnonzero(scales == length)
            solved = solve_1d(replace(kernel, length_scale=float(length)), measure, scale)
            self.groups.append((solved, columns, 0))
            for j in columns:
                spectra[j] = solved.eigenvalues
        indices = leading_products(spectra, n)
        first = sum(math.log(mu[0]) for mu in spectra)
        logs = [first + sum(math.log(spectra[j][a] / spectra[j][0]) for j, a in i) for i in indices]
        self.spectrum = np.exp(np.array(logs))

        # the table of ratios has one row per (column, order)
        self.rows: dict[tuple[int, int], int] = {}
        for g, (solved, columns, _) in enumerate(self.groups):
            members = set(columns.tolist())
            top = max((a for i in indices for j, a in i if j in members), default=0)
            self.groups[g] = (solved, columns, top)
            for a in range(1, top + 1):
                self.rows.update({(int(j), a): len(self.rows) + k for k, j in enumerate(columns)})
        self.entries_a_row = (
            len(indices)
            + len(self.rows)
            + sum(len(columns) * solved.n_terms for solved, columns, _ in self.groups)
        )
        self.indices = indices
        self.floors = [_FLOOR * solved.peak for solved, _, _ in self.groups]
        place = {index: i for i, index in enumerate(indices)}
        self.levels: list[tuple[IntArray, IntArray, IntArray]] = []
        for depth in range(1, max(map(len, indices)) + 1):
            level = [index for index in indices if len(index) == depth]
            own = np.array([place[index] for index in level])
            parents = np.array([place[index[:-1]] for index in level])
            ratios = np.array([self.rows[index[-1]] for index in level])
            self.levels.append((own, parents, ratios))

    def evaluate(self, X: Array, out: Array) -> None:
        """Write the features of the rows to ``out``."""
        ratios = np.empty((len(self.rows), len(X)), X.dtype)
        features = np.empty((out.shape[1], len(X)), X.dtype)
        features[0] = 1
        start = 0
        for (solved, columns, top), floor in zip(self.groups, self.floors, strict=True):
            table = solved.evaluate(np.ascontiguousarray(X[:, columns].T), top + 1)
            if X.dtype == np.float64:  # at most k(x, x) = 1, which ``evaluation_error`` relies on
                np.clip(table, -1.0, 1.0, out=table)
            first = np.maximum(table[0], table[0].dtype.type(floor), out=table[0])
            features[0] *= first.prod(axis=0)
            stop = start + top * len(columns)
            np.divide(table[1:], first, out=ratios[start:stop].reshape(top, len(columns), len(X)))
            start = stop
        for own, parents, rows in self.levels:
            features[own] = features[parents] * ratios[rows]
        out[...] = features.T

    def write(self, graph: Graph, x: str) -> str:
        """Add the features to an ONNX graph, parents before children."""
        first, ratios = None, []
        for (solved, columns, top), floor in zip(self.groups, self.floors, strict=True):
            table = solved.write(graph, graph.columns(x, columns), top + 1)
            lowest = graph.largest(graph.clip(table[0], -1.0, 1.0), floor)
            for j in range(len(columns)):
                one = graph.columns(lowest, [j])
                first = one if first is None else graph.multiply(first, one)
            ratios += [graph.divide(graph.clip(t, -1.0, 1.0), lowest) for t in table[1:]]
        assert first is not None
        if not ratios:
            return first
        joined, found, place = graph.join(ratios), [first], {0: 0}
        for own, parents, rows in self.levels:
            # a parent is one level up, so all parents have been computed by now
            before = graph.join(found)
            above = graph.columns(before, [place[int(parent)] for parent in parents])
            found.append(graph.multiply(above, graph.columns(joined, rows)))
            place |= {int(feature): len(place) + i for i, feature in enumerate(own)}
        return graph.columns(graph.join(found), [place[i] for i in range(len(place))])

    def evaluation_error(self) -> float:
        r"""Return how far a row of features, in float64, can be from a function of that row.

        Notes
        -----
        A feature is the product of one factor per column: e_{j,a} clipped to [-1, 1] and, for a =
        0, kept above a floor. Each factor errs by eta_{j,a}, and clipping does not enlarge that
        error. The product is computed as prod_j e_{j,0} times the ratios e_{j,a} / e_{j,0}. The
        same computed e_{j,0} stands in the product and below the ratio, so its error cancels and
        only roundings are left: at most 2 d + 2 for a product of d columns in groups, and 2 for
        each ratio. Factors are at most 1, so their errors add up to ::

            sum_{j: a = 0} eta_{j,0} + sum_{j: a > 0} eta_{j,a} + gamma(2 d + 2 ratios + 3).

        The last rounding covers products of hundreds of floors, which may underflow.
        """
        errors: dict[int, Array] = {}
        for solved, columns, _ in self.groups:
            errors.update(dict.fromkeys(columns.tolist(), solved.evaluation_errors()))
        rest = math.fsum(float(eta[0]) for eta in errors.values())
        each = [
            rest
            + sum(float(errors[j][a]) for j, a in index)
            + gamma(2 * len(errors) + 2 * len(index) + 3)
            for index in self.indices
        ]
        return math.sqrt(math.fsum(e * e for e in each)) * 1.01


class _Sample:
    """Kernel principal components of a public sample: phi_l(x) = sum_i v_il k(x, u_i) / sqrt(N mu_l).

    mu_l and v_l are eigenpairs of K / N. The features are coordinates of the projection of k(x, .)
    on the span of the sample, so their norm is at most sqrt k(x, x). They use double precision.
    """

    def __init__(self, kernel: Kernel, sample: Array, n: int) -> None:
        self.kernel, self.sample = kernel, sample
        values, vectors = np.linalg.eigh(kernel(sample) / len(sample))
        kept = min(n, max(1, int(np.sum(values > _LEAST_SHARE * values[-1]))))
        self.spectrum = values[::-1][:kept].copy()
        vectors = vectors[:, ::-1][:, :kept]
        largest = np.abs(vectors).argmax(axis=0)
        vectors = vectors * np.sign(vectors[largest, np.arange(kept)])
        self.weights = vectors / np.sqrt(len(sample) * self.spectrum)
        self.entries_a_row = len(sample)

    def evaluate(self, X: Array, out: Array) -> None:
        """Write the features of the rows to ``out``."""
        out[...] = self.kernel(X.astype(np.float64), self.sample) @ self.weights

    def write(self, graph: Graph, x: str) -> str:
        """Add the features to an ONNX graph."""
        return graph.product(self.kernel.write(graph, x, self.sample), self.weights)


@lru_cache(maxsize=2)  # an eigenvalue problem of seconds, which the fits of a search have in common
def _components(kernel: Kernel, sample: bytes, n_inputs: int, n: int) -> _Sample:
    return _Sample(kernel, np.frombuffer(sample).reshape(-1, n_inputs), n)
