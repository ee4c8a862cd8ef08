"""A small writer of ONNX graphs in double precision, for kernels and feature maps."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import Array

OPSET = 17
IR_VERSION = 8
_MOST = float(np.finfo(np.float64).max)


def import_onnx() -> Any:
    """Return the module ``onnx``, or raise an error that says how to install it."""
    try:
        return import_module("onnx")
    except ImportError as error:
        raise ParameterError(
            "to_onnx needs the package 'onnx'. Install it with: pip install onnx"
        ) from error


class Graph:
    """The nodes and constants of a graph, in which tensors are identified by their names.

    Every method adds one node or a few, and returns the name of the result.
    """

    def __init__(self, onnx: Any) -> None:
        self._onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.double = int(onnx.TensorProto.DOUBLE)

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add one standard operator."""
        name = f"t{len(self.nodes)}"
        made = self._onnx.helper.make_node(kind, list(inputs), [name], **attributes)
        self.nodes.append(made)
        return name

    def constant(self, values: Any, dtype: Any = np.float64) -> str:
        """Add an array. ``dtype=None`` keeps its type, and ``str`` converts it to texts."""
        name = f"c{len(self.constants)}"
        helper, kinds = self._onnx.helper, self._onnx.TensorProto
        if dtype is str:
            texts = [str(value).encode() for value in values]
            tensor = helper.make_tensor(name, kinds.STRING, [len(texts)], texts)
        else:
            array = np.asarray(values, dtype)
            tensor = self._onnx.numpy_helper.from_array(np.array(array, order="C"), name)
        self.constants.append(tensor)
        return name

    def whole(self, *values: int) -> str:
        """Add a list of int64 numbers."""
        return self.constant(values, np.int64)

    def add(self, x: str, y: Any) -> str:
        """Return x + y. If y is an array or number and not a name, it becomes a constant."""
        return self.node("Add", x, self._named(y))

    def subtract(self, x: str, y: Any) -> str:
        """Return x - y."""
        return self.node("Sub", x, self._named(y))

    def multiply(self, x: str, y: Any) -> str:
        """Return x y, entry by entry."""
        return self._scaled("Mul", x, y)

    def divide(self, x: str, y: Any) -> str:
        """Return x / y, entry by entry."""
        return self._scaled("Div", x, y)

    def product(self, x: str, matrix: Array) -> str:
        """Return x times a constant matrix or vector."""
        return self.node("MatMul", x, self.constant(matrix))

    def clip(self, x: str, low: float, high: float) -> str:
        """Return x with every entry between two numbers."""
        return self.node("Clip", x, self.constant(low), self.constant(high))

    def largest(self, x: str, y: Any) -> str:
        """Return the larger of two, entry by entry."""
        return self.node("Max", x, self._named(y))

    def smallest(self, x: str, y: Any) -> str:
        """Return the smaller of two, entry by entry."""
        return self.node("Min", x, self._named(y))

    def columns(self, x: str, places: Any) -> str:
        """Return these columns of a matrix, in this order."""
        return self.node("Gather", x, self.constant(places, np.int64), axis=1)

    def join(self, parts: list[str]) -> str:
        """Return matrices side by side."""
        return parts[0] if len(parts) == 1 else self.node("Concat", *parts, axis=1)

    def squares(self, x: str) -> str:
        """Return the sum of squares of every row, as a column."""
        return self.node("ReduceSum", self.multiply(x, x), self.whole(1), keepdims=1)

    def sort(self, x: str, count: str) -> str:
        """Return a matrix with sorted rows. ``count`` is its number of columns."""
        name = f"t{len(self.nodes)}"
        made = self._onnx.helper.make_node(
            "TopK", [x, count], [name, f"{name}_places"], axis=1, largest=0, sorted=1
        )
        self.nodes.append(made)
        return name

    def ones(self, x: str) -> str:
        """Return a column of ones with as many rows as x."""
        return self.clip(self.columns(x, [0]), 1.0, 1.0)

    def shrink(self, rows: str, bound: float) -> str:
        """Return the rows, of which those longer than the bound are scaled back to it."""
        norms = self.node("Sqrt", self.squares(rows))
        factor = self.node("Div", self.constant(bound), self.largest(norms, bound))
        return self.multiply(rows, factor)

    def _scaled(self, kind: str, x: str, y: Any) -> str:
        """Return a product or quotient. If y is a number, a clip that changes nothing follows.

        The clip is needed because runtimes fuse a scalar factor with a following matrix product, and
        keep that factor in single precision.
        """
        found = self.node(kind, x, self._named(y))
        alone = not isinstance(y, str) and np.size(y) == 1
        return self.clip(found, -_MOST, _MOST) if alone else found

    def _named(self, value: Any) -> str:
        return value if isinstance(value, str) else self.constant(value)
