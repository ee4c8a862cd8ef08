"""Write matrices of kernel values k(x, u) for constant points u as nodes of an ONNX graph."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import Array
from dpkernel.models.kernels import (
    Additive,
    Gaussian,
    Isotropic,
    Kernel,
    Laplace,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    OnBox,
    Polynomial,
    RationalQuadratic,
)
from dpkernel.outputs.onnx_export.graph import Graph

_MOST = 1e140  # largest entry after division by a length scale, as in ``Kernel``


def kernel_values(graph: Graph, kernel: Kernel, x: str, points: Array) -> str:
    """Return the matrix k(x_i, u_j)."""
    if type(kernel) not in _VALUES:
        known = ", ".join(sorted(cls.kind for cls in _VALUES))
        raise ParameterError(
            f"The {kernel.kind} kernel can't be written with ONNX operators in double precision. The"
            f" kernels that can be written are: {known}."
        )
    if isinstance(kernel, OnBox):
        x, points = graph.clip(x, -1.0, 1.0), np.clip(points, -1.0, 1.0)
    scales = kernel.scales(points.shape[1])
    left = graph.clip(graph.divide(x, scales), -_MOST, _MOST)
    return _VALUES[type(kernel)](graph, kernel, left, np.clip(points / scales, -_MOST, _MOST))


def _isotropic(graph: Graph, kernel: Any, x: str, points: Array) -> str:
    centre = points.mean(axis=0)
    left, right = graph.subtract(x, centre), points - centre
    out = graph.multiply(graph.product(left, right.T), -2.0)
    out = graph.add(out, graph.squares(left))
    out = graph.add(out, np.einsum("ij,ij->i", right, right))
    return _profile(graph, kernel, graph.largest(out, 0.0))


def _profile(graph: Graph, kernel: Isotropic, squares: str) -> str:
    """Return the kernel as a function of the squared distance r^2."""
    if isinstance(kernel, Gaussian):
        return graph.node("Exp", graph.multiply(squares, -0.5))
    if isinstance(kernel, RationalQuadratic):
        logs = graph.node("Log", graph.add(graph.divide(squares, 2 * kernel.alpha), 1.0))
        return graph.node("Exp", graph.multiply(logs, -kernel.alpha))
    assert isinstance(kernel, Matern12 | Matern32 | Matern52)
    z = graph.node("Sqrt", graph.multiply(squares, 2 * kernel.smoothness))
    out = graph.node("Exp", graph.multiply(z, -1.0))
    if isinstance(kernel, Matern32):
        return graph.multiply(graph.add(z, 1.0), out)
    if isinstance(kernel, Matern52):
        inner = graph.add(graph.multiply(z, 1 / 3), 1.0)
        return graph.multiply(graph.add(graph.multiply(z, inner), 1.0), out)
    return out


def _laplace(graph: Graph, kernel: Any, x: str, points: Array) -> str:
    total = None
    for j in range(points.shape[1]):
        gap = graph.node("Abs", graph.subtract(graph.columns(x, [j]), points[:, j]))
        total = gap if total is None else graph.add(total, gap)
    assert total is not None
    return graph.node("Exp", graph.multiply(total, -1.0))


def _additive(graph: Graph, kernel: Any, x: str, points: Array) -> str:
    total = None
    for j in range(points.shape[1]):
        one = kernel_values(graph, kernel.base, graph.columns(x, [j]), points[:, j : j + 1])
        total = one if total is None else graph.add(total, one)
    assert total is not None
    return graph.divide(total, float(points.shape[1]))


def _linear(graph: Graph, kernel: Any, x: str, points: Array) -> str:
    return graph.product(x, points.T / points.shape[1])


def _polynomial(graph: Graph, kernel: Any, x: str, points: Array) -> str:
    scale = 1 / (1 + kernel.offset)
    base = graph.product(x, points.T * (scale / points.shape[1]))
    base = graph.add(base, kernel.offset * scale)
    out, power, left = None, base, int(kernel.degree)
    while left:  # repeated squaring, because the general power loses the sign of negative numbers
        if left % 2:
            out = power if out is None else graph.multiply(out, power)
        left //= 2
        power = graph.multiply(power, power) if left else power
    assert out is not None and math.isfinite(kernel.offset)
    return out


_VALUES: dict[Any, Callable[[Graph, Any, str, Array], str]] = {
    **dict.fromkeys((Gaussian, Matern12, Matern32, Matern52, RationalQuadratic), _isotropic),
    Laplace: _laplace,
    Additive: _additive,
    Linear: _linear,
    Polynomial: _polynomial,
}
