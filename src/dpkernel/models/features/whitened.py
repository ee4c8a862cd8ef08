"""Eigenfunctions made orthonormal, with a constant, for a stated distribution of the inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.special import ndtri

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array
from dpkernel.models.features.base import FeatureMap, register, shifted_sobol
from dpkernel.models.features.eigen import PublicEigenfeatures
from dpkernel.models.graph import Graph
from dpkernel.models.kernels import Kernel, resolve_kernel

_SAMPLE = 4096  # smallest number of sample points; otherwise 8 per component
_MOST = 2000
_LANDMARKS = 512
_LARGEST = 4.0
_LEAST_SHARE = 1e-9  # relative to the first eigenvalue; smaller ones are mostly rounding error


@register
class WhitenedFeatures(FeatureMap):
    r"""The leading eigenfunctions of a kernel, orthonormal among themselves and to the constant.

    phi(x) has M coordinates with E phi_l = 0 and E phi_l phi_m = 1{l = m} for inputs from a stated
    distribution: uniform on [-1, 1]^d, or normal with a given mean and covariance and clipped to
    that box. Each coordinate is clipped to [-4, 4].

    Parameters
    ----------
    n_components : int
        The number M of features, at most 2000. There are fewer if the kernel has fewer eigenvalues
        above rounding error.
    kernel : str or Kernel
        Any kernel of the registry, by name or value.
    length_scale : float or sequence of floats
        Columns are first divided by it.
    mean, covariance : array-like, optional
        The mean and covariance of the inputs. If None: uniform on the box.
    random_state : int
        The public seed of the sample from which the eigenfunctions are computed.

    Attributes
    ----------
    spectrum : ndarray of shape (n_outputs,)
        The eigenvalues, decreasing.

    Notes
    -----
    Numerics
        For the uniform distribution, the eigenfunctions are those of ``PublicEigenfeatures``.
        Otherwise they are kernel principal components of 512 points of the distribution with
        eigenvalues above 1e-9 of the first, which is why there are at most 511. They are made
        orthonormal on 4096 points of the distribution, or on 8 M points for larger M.
    """

    kind: ClassVar[str] = "whitened"

    def __init__(
        self,
        n_components: int = 200,
        *,
        kernel: str | Kernel = "gaussian",
        length_scale: float | Sequence[float] = 1.0,
        mean: Any = None,
        covariance: Any = None,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.kernel = kernel
        self.length_scale = length_scale
        self.mean = mean
        self.covariance = covariance
        self.random_state = random_state

    @property
    def row_norm_bound(self) -> float:
        """The bound 4 sqrt(M), which follows from clipping every coordinate."""
        return _LARGEST * math.sqrt(self.n_outputs)

    @property
    def spectrum(self) -> Array:
        """The eigenvalues, decreasing."""
        return np.array(self._spectrum)

    def check(self, n_inputs: int) -> Kernel:
        """Return the kernel, or raise if the map can't be built with these parameters."""
        self._require_components(most=_MOST)
        self._public_uniforms()
        kernel = resolve_kernel(self.kernel, self.length_scale)
        kernel.scales(n_inputs)
        self._root_bound(kernel, n_inputs)
        return kernel

    def building_bytes(self, n_inputs: int) -> int:
        """Return the size of the sample and of four tables of its features."""
        n = int(self.n_components)
        size = max(_SAMPLE, 1 << (8 * n - 1).bit_length())
        return 32 * size * (n + n_inputs) + 32 * _LANDMARKS**2

    def _build(self, n_inputs: int) -> None:
        kernel, n = self.check(n_inputs), int(self.n_components)
        size = max(_SAMPLE, 1 << (8 * n - 1).bit_length())
        if (self.mean is None) != (self.covariance is None):
            raise ParameterError(
                parameter_message(
                    "WhitenedFeatures", "mean, covariance", "both given, or none", "one of them"
                )
            )
        if self.mean is None:
            self._box = PublicEigenfeatures(
                n,
                kernel=self.kernel,
                length_scale=self.length_scale,
                random_state=self.random_state,
            ).build(n_inputs)
            self._spectrum = self._box.spectrum
            sample = self.public_sample(size)
        else:
            sample = self._normal_sample(n_inputs, size)
            self._build_components(kernel, sample[:_LANDMARKS], min(n, _LANDMARKS - 1))
        raw = np.column_stack([np.ones(len(sample)), self._raw(sample)])
        gram = raw.T @ raw / len(sample)
        gram[np.diag_indices_from(gram)] += 1e-10
        root = cholesky(gram, lower=True)
        inverse = solve_triangular(root, np.eye(len(gram)), lower=True)
        self._rotation = np.ascontiguousarray(inverse.T[:, 1:])
        self.n_outputs = len(self._spectrum)

    def _normal_sample(self, n_inputs: int, size: int) -> Array:
        """Return points of the normal distribution, clipped to the box."""
        mean, covariance = np.asarray(self.mean, float), np.asarray(self.covariance, float)
        fine = mean.shape == (n_inputs,) and covariance.shape == (n_inputs, n_inputs)
        if not fine or not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            allowed = f"finite, of shapes ({n_inputs},) and ({n_inputs}, {n_inputs})"
            got = f"shapes {mean.shape} and {covariance.shape}"
            raise ParameterError(
                parameter_message("WhitenedFeatures", "mean, covariance", allowed, got)
            )
        values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        points = shifted_sobol(size, n_inputs, self._public_uniforms())
        normals = ndtri(np.clip(points, 1e-9, 1 - 1e-9))
        return np.asarray(np.clip(mean + normals @ root.T, -1.0, 1.0))

    def _build_components(self, kernel: Kernel, landmarks: Array, n: int) -> None:
        values, vectors = np.linalg.eigh(kernel(landmarks) / len(landmarks))
        kept = min(n, max(1, int(np.sum(values > _LEAST_SHARE * values[-1]))))
        self._spectrum = values[::-1][:kept].copy()
        vectors = vectors[:, ::-1][:, :kept]
        largest = np.abs(vectors).argmax(axis=0)
        vectors = vectors * np.sign(vectors[largest, np.arange(kept)])
        self._components = kernel, landmarks, vectors / (math.sqrt(len(landmarks)) * self._spectrum)

    def _raw(self, X: Array) -> Array:
        """Return eigenfunctions with mean square 1, not yet orthogonal on the sample."""
        if self.mean is None:
            return np.asarray(self._box.transform_block(X) / np.sqrt(self._spectrum))
        kernel, landmarks, weights = self._components
        return np.asarray(kernel(X, landmarks) @ weights)

    def transform_block(self, X: Array) -> Array:
        """Return phi of every row, computed in double precision because of small eigenvalues."""
        inside = np.clip(X, -1.0, 1.0).astype(np.float64, copy=False)
        out = self._raw(inside) @ self._rotation[1:]
        out += self._rotation[0]
        return np.asarray(np.clip(out, -_LARGEST, _LARGEST, out=out).astype(X.dtype, copy=False))

    def _write(self, graph: Graph, x: str) -> str:
        inside = graph.clip(x, -1.0, 1.0)
        if self.mean is None:
            raw = graph.divide(self._box.write(graph, inside), np.sqrt(self._spectrum))
        else:
            kernel, landmarks, weights = self._components
            raw = graph.product(kernel.write(graph, inside, landmarks), weights)
        out = graph.add(graph.product(raw, self._rotation[1:]), self._rotation[0])
        return graph.clip(out, -_LARGEST, _LARGEST)
