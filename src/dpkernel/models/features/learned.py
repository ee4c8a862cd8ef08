"""Eigenfunctions of a mixture of kernels in a learned metric, for a stated input distribution."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.spatial.distance import cdist
from scipy.special import ndtri

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, is_real
from dpkernel.models.features.base import FeatureMap, register
from dpkernel.models.features.input_law import CELLS, InputLaw, uniform_law
from dpkernel.models.features.input_law import LARGEST as STANDARD_DEVIATIONS
from dpkernel.models.graph import Graph
from dpkernel.models.kernels import GaussianKernel, LaplaceKernel, square_distances

FAMILIES = ("linear", "gaussian", "laplace")
MOST = 2000
LARGEST = 4.0
_LEAST_SHARE = 1e-7  # relative to the first eigenvalue; smaller ones are mostly rounding error
_ROWS = 256  # rows whose kernel values are processed together, so that they stay in the cache


@dataclass(frozen=True)
class Component:
    """One kernel of a mixture, on standardised inputs.

    Parameters
    ----------
    family : "linear", "gaussian" or "laplace"
        The kind of kernel.
    scale : float
        The length scale in units of sqrt(d), the root mean square distance of a point from the
        mean.
    metric : bool
        Whether inputs are first multiplied by the learned metric. Gaussian kernels use the full
        matrix. Laplace kernels use its column norms, because their distance is taken column by
        column.
    weight : float
        The factor of the kernel in the mixture.
    """

    family: str
    scale: float
    metric: bool = False
    weight: float = 1.0

    def __post_init__(self) -> None:
        numbers = self.scale, self.weight
        fine = self.family in FAMILIES and all(is_real(v) and 0 < v < 1e30 for v in numbers)
        if not fine or not isinstance(self.metric, bool):
            allowed = f"one of {', '.join(FAMILIES)}, with a scale and a weight above 0"
            raise ParameterError(parameter_message("Component", "family", allowed, str(self)))

    @property
    def name(self) -> str:
        """The name of the kernel for readers."""
        if self.family == "linear":
            return "linear"
        place = ", learned metric" if self.metric else ""
        return f"{self.family} {self.scale:g} sqrt(d){place}"

    def to_dict(self) -> JSON:
        """Return the component as JSON values."""
        return {
            "family": self.family,
            "scale": self.scale,
            "metric": self.metric,
            "weight": self.weight,
        }


def factor_of(family: str, metric: Array) -> Array:
    """Return the matrix that multiplies rows; for a Laplace kernel it is diagonal."""
    return metric if family != "laplace" else np.diag(np.sqrt((metric**2).sum(axis=0)))


@dataclass(frozen=True)
class Maths:
    """The operations on matrices that kernels are made of, of NumPy or of another library."""

    square_distances: Callable[[Any, Any], Any]
    city_block: Callable[[Any, Any], Any]
    exp: Callable[[Any], Any]
    copy: Callable[[Any], Any]
    matrix: Callable[[Array], Any]


NUMPY = Maths(square_distances, lambda X, Y: cdist(X, Y, "cityblock"), np.exp, np.copy, np.asarray)


def kernel_matrices(
    components: Sequence[Component], X: Any, Y: Any, metric: Array | None, maths: Maths = NUMPY
) -> Iterator[tuple[Component, Any]]:
    """Yield (component, kernel values) on standardised rows, without the weights.

    Components with the same family and metric share their distances. If the exponent of one is a
    whole multiple of the previous one's, its values are a power of the previous values. Each
    yielded array is overwritten by the next one.
    """
    size = X.shape[1]
    for family, learned in sorted({(c.family, c.metric) for c in components}):
        group = [c for c in components if (c.family, c.metric) == (family, learned)]
        left, right = X, Y
        if learned and metric is not None:
            factor = maths.matrix(factor_of(family, metric))
            left, right = X @ factor, Y @ factor
        if family == "linear":
            product = left @ right.T / size
            yield from ((c, product) for c in group)
            continue
        gaussian = family == "gaussian"
        distances = (maths.square_distances if gaussian else maths.city_block)(left, right)
        values: Any = None
        before = 0.0
        for component in sorted(group, key=lambda c: -c.scale):
            length = component.scale * math.sqrt(size)
            rate = 1 / (2 * length**2) if gaussian else 1 / length
            times = rate / before if before else 0.0
            if before and abs(times - round(times)) < 1e-9 and round(times) in (2, 3, 4):
                base = maths.copy(values) if round(times) == 3 else values
                values *= values
                if round(times) == 3:
                    values *= base
                elif round(times) == 4:
                    values *= values
            else:
                values = maths.exp(distances * -rate)
            before = rate
            yield component, values


def mixture_values(
    components: Sequence[Component], X: Any, Y: Any, metric: Array | None, maths: Maths = NUMPY
) -> Any:
    """Return the values of the mixture on standardised rows."""
    total: Any = None
    for component, values in kernel_matrices(components, X, Y, metric, maths):
        part = values * component.weight
        if total is None:
            total = part
        else:
            total += part
    return total


@register
class LearnedFeatures(FeatureMap):
    r"""The leading eigenfunctions phi of a mixture of kernels, orthonormal for released inputs.

    The mixture is k(x, x') = sum_c weight_c k_c(x, x') on inputs in standard deviations, where some
    of the k_c use a learned metric. phi(x) has M coordinates with E phi_l = 0 and E phi_l phi_m =
    1{l = m} for inputs from a stated distribution: one histogram per column, joined by a Gaussian
    copula. Each coordinate is clipped to [-4, 4]. All numbers in the map were released or are
    public.

    Parameters
    ----------
    n_components : int
        The number M of features, at most 2000. There are fewer if the kernel has fewer eigenvalues
        above rounding error.
    low, high, shares, correlation
        The distribution of the inputs; see ``InputLaw``. If all are None: uniform on [-1, 1]^d.
    components : list of dict or Component, optional
        The kernels; see ``Component``. If None: one Gaussian kernel of scale 1.2.
    metric : (d, d) matrix, optional
        The learned metric, which multiplies rows in standard deviations.
    random_state : int
        The public seed of the sample from which the eigenfunctions are computed.

    Attributes
    ----------
    spectrum : ndarray of shape (n_outputs,)
        The eigenvalues of the centred kernel, decreasing.
    """

    kind: ClassVar[str] = "learned"

    def __init__(
        self,
        n_components: int = 200,
        *,
        low: Any = None,
        high: Any = None,
        shares: Any = None,
        correlation: Any = None,
        components: Any = None,
        metric: Any = None,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.low = low
        self.high = high
        self.shares = shares
        self.correlation = correlation
        self.components = components
        self.metric = metric
        self.random_state = random_state

    @property
    def row_norm_bound(self) -> float:
        """The bound 4 sqrt(M), which follows from clipping every coordinate."""
        return LARGEST * math.sqrt(self.n_outputs)

    @property
    def spectrum(self) -> Array:
        """The eigenvalues, decreasing."""
        return np.array(self._spectrum)

    def building_bytes(self, n_inputs: int) -> int:
        """Return the size of a few tables of sample features and of the landmarks' kernel matrix."""
        n = int(self.n_components)
        landmarks, size = sizes_of(n)
        return 32 * size * (n + n_inputs) + 40 * _ROWS * landmarks + 48 * landmarks**2

    def _recipe(self) -> JSON:
        values = super()._recipe()
        values["components"] = [c.to_dict() for c in self._checked_components()]
        return values

    def _checked_components(self) -> list[Component]:
        given = (Component("gaussian", 1.2),) if self.components is None else self.components
        found = [c if isinstance(c, Component) else Component(**c) for c in given]
        if not found:
            raise ParameterError(
                parameter_message("LearnedFeatures", "components", "at least one", "none")
            )
        return found

    def check(self) -> int:
        """Return the number of features asked for, or raise if the size or the seed is not allowed."""
        self._public_uniforms()
        return self._require_components(most=MOST)

    def _build(self, n_inputs: int) -> None:
        n = self.check()
        self._mixture = self._checked_components()
        self._law, self._metric = self._checked_law(n_inputs)
        landmarks, size = sizes_of(n)
        self._sample: Array = law_sample(self.law, size, self.random_state)
        sample = self._sample
        self._landmarks: Array = np.ascontiguousarray(sample[:landmarks])
        values = self.kernel(self._landmarks, self._landmarks)
        means = values.mean(axis=0)
        centred = values - means - means[:, None] + means.mean()
        eigenvalues, vectors = np.linalg.eigh(centred / landmarks)
        kept = min(
            n, landmarks - 1, max(1, int(np.sum(eigenvalues > _LEAST_SHARE * eigenvalues[-1])))
        )
        self._spectrum = np.maximum(eigenvalues[::-1][:kept], 1e-300)
        vectors = vectors[:, ::-1][:, :kept]
        largest = np.abs(vectors).argmax(axis=0)
        vectors = vectors * np.sign(vectors[largest, np.arange(kept)])
        weights = vectors / (math.sqrt(landmarks) * self._spectrum)
        raw = np.column_stack([np.ones(size), self._combined(sample, weights)])
        gram = raw.T @ raw / size
        gram[np.diag_indices_from(gram)] += 1e-9
        root = cholesky(gram, lower=True)
        inverse = solve_triangular(root, np.eye(len(gram)), lower=True).T[:, 1:]
        self._weights: Array = weights @ inverse[1:]
        self._shift: Array = np.array(inverse[0])
        self.n_outputs = kept

    def _checked_law(self, n_inputs: int) -> tuple[InputLaw, Array | None]:
        given = (self.low, self.high, self.shares, self.correlation)
        if all(part is None for part in given):
            given = uniform_law(n_inputs).parts
        low, high, shares, correlation = (np.asarray(v, dtype=np.float64) for v in given)
        metric = None if self.metric is None else np.asarray(self.metric, dtype=np.float64)
        d = n_inputs
        shapes = low.shape == high.shape == (d,) and shares.shape == (d, CELLS)
        shapes = shapes and correlation.shape == (d, d)
        shapes = shapes and (metric is None or metric.shape == (d, d))
        arrays = [low, high, shares, correlation] + ([] if metric is None else [metric])
        fine = shapes and all(bool(np.isfinite(v).all()) for v in arrays)
        fine = fine and bool((low < high).all() and (shares >= 0).all())
        fine = fine and bool(np.abs(np.concatenate([low, high])).max() <= 1.0)
        if not fine or not np.allclose(shares.sum(axis=1), 1.0, atol=1e-6):
            allowed = f"a law of {d} columns with low < high and shares that add up to 1"
            raise ParameterError(
                parameter_message("LearnedFeatures", "low, high, shares", allowed, "another one")
            )
        return InputLaw(low, high, shares, correlation), metric

    @property
    def law(self) -> InputLaw:
        """The stated distribution of the inputs."""
        return self._law

    @property
    def sample(self) -> Array:
        """The public, standardised sample of the distribution; its first rows are the landmarks."""
        return self._sample

    @property
    def weights(self) -> Array:
        """The weights of kernel sections: features are k(x, landmarks) @ weights + a constant."""
        return self._weights

    @property
    def landmarks(self) -> Array:
        """The standardised points whose kernel sections span the features."""
        return self._landmarks

    @property
    def shift(self) -> Array:
        """The constant of every feature."""
        return self._shift

    @property
    def mixture(self) -> list[Component]:
        """The kernels of the mixture."""
        return self._mixture

    @property
    def metric_used(self) -> Array | None:
        """The learned metric as a matrix, or None."""
        return self._metric

    def public_normals(self, n: int, columns: int) -> Array:
        """Return normal variables from the public seed, the same for every map with this seed."""
        uniforms = self._public_uniforms().random((n, columns))
        return np.asarray(ndtri(np.clip(uniforms, 1e-12, 1 - 1e-12)))

    def kernel(self, X: Array, Y: Array) -> Array:
        """Return the values of the mixture on standardised rows."""
        return np.asarray(mixture_values(self._mixture, X, Y, self._metric))

    def _combined(self, X: Array, weights: Array) -> Array:
        """Return k(x, landmarks) @ weights for standardised rows, a few rows at a time."""
        out = np.empty((len(X), weights.shape[1]))
        for start in range(0, len(X), _ROWS):
            rows = slice(start, start + _ROWS)
            np.matmul(self.kernel(X[rows], self._landmarks), weights, out=out[rows])
        return out

    def of_standardised(self, X: Array) -> Array:
        """Return phi of rows given in standard deviations, in float64."""
        out = self._combined(X, self._weights)
        out += self._shift
        return np.clip(out, -LARGEST, LARGEST, out=out)

    def transform_block(self, X: Array) -> Array:
        """Return phi of every row, computed in double precision because of small eigenvalues."""
        rows = self.of_standardised(self.law.standardise(X))
        return np.asarray(rows.astype(X.dtype, copy=False))

    def _write(self, graph: Graph, x: str) -> str:
        law = self.law
        inside = graph.largest(graph.smallest(x, law.high), law.low)
        moved = graph.divide(graph.subtract(inside, law.mean), law.spread)
        moved = graph.clip(moved, -STANDARD_DEVIATIONS, STANDARD_DEVIATIONS)
        total = None
        for part in self._mixture:
            rows, points = moved, self.landmarks
            if part.metric and self._metric is not None:
                factor = factor_of(part.family, self._metric)
                rows, points = graph.product(moved, factor), points @ factor
            scale = part.scale * math.sqrt(points.shape[1])
            if part.family == "linear":
                values = graph.product(rows, points.T / points.shape[1])
            else:
                kernel = (
                    GaussianKernel(scale) if part.family == "gaussian" else LaplaceKernel(scale)
                )
                values = kernel.write(graph, rows, points)
            values = graph.multiply(values, part.weight)
            total = values if total is None else graph.add(total, values)
        assert total is not None
        out = graph.add(graph.product(total, self.weights), self._shift)
        return graph.clip(out, -LARGEST, LARGEST)


def law_sample(law: InputLaw, n: int, random_state: int) -> Array:
    """Return n standardised points of a distribution, the same for every map with this seed."""
    draws = LearnedFeatures(random_state=random_state)._public_uniforms()
    return law.standardise(law.sample(n, draws))


def sizes_of(n_components: int) -> tuple[int, int]:
    """Return the numbers of landmarks and of sample points from which the features are computed."""
    return max(512, 3 * n_components // 2), 1 << max(12, (4 * n_components - 1).bit_length())
