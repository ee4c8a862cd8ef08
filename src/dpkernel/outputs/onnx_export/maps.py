"""Write feature maps as nodes of an ONNX graph: the steps of ``transform_block`` in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import Array
from dpkernel.models.features import (
    FeatureMap,
    FourierFeatures,
    LearnedFeatures,
    LinearFeatures,
    NormalisedFeatures,
    PolynomialMap,
    PublicEigenfeatures,
    PublicNystroem,
    RandomProjection,
    TensorSketch,
    WhitenedFeatures,
)
from dpkernel.models.features.eigen import _Products, _Sample
from dpkernel.models.features.input_law import LARGEST as STANDARD_DEVIATIONS
from dpkernel.models.features.learned import factor_of
from dpkernel.models.features.mercer import Spectrum1D
from dpkernel.models.features.whitened import _LARGEST
from dpkernel.models.kernels import Gaussian, Laplace
from dpkernel.outputs.onnx_export.graph import Graph


def feature_nodes(graph: Graph, features: FeatureMap, x: str) -> str:
    """Return the features phi(x) of every row of x."""
    if type(features) not in _MAPS:
        known = ", ".join(sorted(cls.kind for cls in _MAPS))
        raise ParameterError(
            f"The feature map {type(features).__name__} can't be written as an ONNX graph. Kinds that"
            f" can: {known}."
        )
    return _MAPS[type(features)](graph, features, x)


def _linear(graph: Graph, features: Any, x: str) -> str:
    return graph.multiply(graph.clip(x, -1.0, 1.0), features._factor)


def _fourier(graph: Graph, features: Any, x: str) -> str:
    frequencies, amplitudes = features._tables[np.dtype(np.float64)]
    inside = graph.clip(x, -features._most_input, features._most_input)
    phases = graph.product(inside, frequencies)
    pair = graph.join([graph.node("Cos", phases), graph.node("Sin", phases)])
    return graph.multiply(pair, amplitudes)


def _homogeneous(graph: Graph, factors: Array, x: str) -> str:
    u = graph.join([graph.ones(x), graph.clip(x, -1.0, 1.0)])
    return graph.multiply(u, factors)


def _polynomial(graph: Graph, features: Any, x: str) -> str:
    u = _homogeneous(graph, features._factors, x)
    level = graph.columns(u, range(features._first, len(features._factors)))
    for parents, last in features._steps:
        level = graph.multiply(graph.columns(level, parents), graph.columns(u, last))
    return graph.shrink(graph.multiply(level, features._weights), features._kappa)


def _nystroem(graph: Graph, features: Any, x: str) -> str:
    values = features._kernel.write(graph, x, features._points)
    return graph.shrink(graph.product(values, features._weights), features._kappa)


def _projection(graph: Graph, features: Any, x: str) -> str:
    base = feature_nodes(graph, features._base, x)
    if features.structure == "gaussian":
        matrix = features._matrices[np.dtype(np.float64)]
    else:  # the matrix of the fast transform is the transform of the unit vectors
        matrix = np.empty((features._base.n_outputs, features.n_outputs))
        features._project_fast(np.eye(len(matrix)), matrix)
    return graph.shrink(graph.product(base, matrix), features._bound)


def _tensor_sketch(graph: Graph, features: Any, x: str) -> str:
    """Return the tensor sketch. Fourier transforms become products with their matrices."""
    u, m = _homogeneous(graph, features._factors, x), features.n_outputs
    real = imaginary = None
    for places, signs in zip(features._places, features._signs, strict=True):
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
    return graph.shrink(back, features._kappa)


def _eigen(graph: Graph, features: Any, x: str) -> str:
    reach = 1.0 if features.measure == "uniform" else 6.0 * features.scale
    inside, parts = graph.clip(x, -reach, reach), features._parts
    if isinstance(parts, _Sample):
        values = parts.kernel.write(graph, inside, parts.sample)
        found = graph.product(values, parts.weights)
    else:
        found = _products(graph, parts, inside)
    return graph.shrink(found, features._kappa)


def _products(graph: Graph, parts: _Products, x: str) -> str:
    """Return products of one-dimensional eigenfunctions, parents before children."""
    first, ratios = None, []
    for (solved, columns, top), floor in zip(parts.groups, parts.floors, strict=True):
        table = _one_dimensional(graph, solved, graph.columns(x, columns), top + 1)
        lowest = graph.largest(graph.clip(table[0], -1.0, 1.0), floor)
        for j in range(len(columns)):
            one = graph.columns(lowest, [j])
            first = one if first is None else graph.multiply(first, one)
        ratios += [graph.divide(graph.clip(t, -1.0, 1.0), lowest) for t in table[1:]]
    assert first is not None
    if not ratios:
        return first
    joined, found, place = graph.join(ratios), [first], {0: 0}
    for own, parents, rows in parts.levels:
        # a parent is one level up, so all parents have been computed by now
        before = graph.join(found)
        above = graph.columns(before, [place[int(parent)] for parent in parents])
        found.append(graph.multiply(above, graph.columns(joined, rows)))
        place |= {int(feature): len(place) + i for i, feature in enumerate(own)}
    return graph.columns(graph.join(found), [place[i] for i in range(len(place))])


def _one_dimensional(graph: Graph, solved: Spectrum1D, x: str, n: int) -> list[str]:
    """Return sqrt(mu_a) psi_a of every entry, a matrix for each a < n."""
    x = graph.clip(x, -solved.reach, solved.reach)
    if solved.waves is not None:
        waves = [
            graph.node("Sin" if a % 2 else "Cos", graph.multiply(x, solved.waves[a]))
            for a in range(n)
        ]
        return [graph.multiply(w, solved.coefficients[a]) for a, w in enumerate(waves)]
    terms = [graph.clip(x, 1.0, 1.0), graph.divide(x, solved.reach)]
    for p in range(1, solved.n_terms - 1):
        up = graph.multiply(graph.multiply(terms[1], terms[p]), (2 * p + 1) / (p + 1))
        terms.append(graph.subtract(up, graph.multiply(terms[p - 1], p / (p + 1))))
    deep = [
        graph.node("Unsqueeze", graph.clip(t, -1.0, 1.0), graph.whole(2))
        for t in terms[: solved.n_terms]
    ]
    stacked = deep[0] if len(deep) == 1 else graph.node("Concat", *deep, axis=2)
    values = graph.product(stacked, solved.coefficients[:, :n])
    return [
        graph.node("Gather", values, graph.constant(a, np.int64), axis=2)  # this drops the axis
        for a in range(n)
    ]


def _whitened(graph: Graph, features: Any, x: str) -> str:
    inside = graph.clip(x, -1.0, 1.0)
    if features.mean is None:
        raw = graph.divide(feature_nodes(graph, features._box, inside), np.sqrt(features._spectrum))
    else:
        kernel, landmarks, weights = features._components
        raw = graph.product(kernel.write(graph, inside, landmarks), weights)
    out = graph.add(graph.product(raw, features._rotation[1:]), features._rotation[0])
    return graph.clip(out, -_LARGEST, _LARGEST)


def _learned(graph: Graph, features: Any, x: str) -> str:
    law = features.law
    inside = graph.largest(graph.smallest(x, law.high), law.low)
    moved = graph.divide(graph.subtract(inside, law.mean), law.spread)
    moved = graph.clip(moved, -STANDARD_DEVIATIONS, STANDARD_DEVIATIONS)
    total = None
    for part in features._mixture:
        rows, points = moved, features.landmarks
        if part.metric and features._metric is not None:
            factor = factor_of(part.family, features._metric)
            rows, points = graph.product(moved, factor), points @ factor
        scale = part.scale * math.sqrt(points.shape[1])
        if part.family == "linear":
            values = graph.product(rows, points.T / points.shape[1])
        else:
            kernel = Gaussian(scale) if part.family == "gaussian" else Laplace(scale)
            values = kernel.write(graph, rows, points)
        values = graph.multiply(values, part.weight)
        total = values if total is None else graph.add(total, values)
    assert total is not None
    out = graph.add(graph.product(total, features.weights), features._shift)
    return graph.clip(out, -_LARGEST, _LARGEST)


def _normalised(graph: Graph, features: Any, x: str) -> str:
    phi = feature_nodes(graph, features._base, x)
    moved = graph.multiply(graph.subtract(phi, features._centre), float(features.scale))
    constant = graph.multiply(graph.ones(phi), float(features.constant))
    out = graph.join([constant, moved])
    norms = graph.multiply(graph.node("Sqrt", graph.squares(out)), 1 + 2.0**-40)
    return graph.divide(out, graph.largest(norms, features.constant / 2))


_MAPS: dict[Any, Callable[[Graph, Any, str], str]] = {
    LinearFeatures: _linear,
    FourierFeatures: _fourier,
    PolynomialMap: _polynomial,
    PublicNystroem: _nystroem,
    RandomProjection: _projection,
    TensorSketch: _tensor_sketch,
    PublicEigenfeatures: _eigen,
    WhitenedFeatures: _whitened,
    LearnedFeatures: _learned,
    NormalisedFeatures: _normalised,
}
