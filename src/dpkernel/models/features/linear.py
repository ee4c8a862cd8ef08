"""The feature map of the linear kernel."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from dpkernel.foundations.rounding import gamma
from dpkernel.foundations.types import Array
from dpkernel.models.features.base import FeatureMap, register
from dpkernel.models.graph import Graph


@register
class LinearFeatures(FeatureMap):
    r"""Linear features phi(x) = x / sqrt(d) for x in [-1, 1]^d, so that ||phi(x)|| <= 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.features import LinearFeatures
    >>> features = LinearFeatures().build(2)
    >>> phi = features.transform(np.array([[0.1, -0.4]]))
    >>> phi.shape
    (1, 2)
    >>> bool(np.linalg.norm(phi) <= features.row_norm_bound * (1 + 1e-12))
    True
    """

    kind: ClassVar[str] = "linear"

    @property
    def row_norm_bound(self) -> float:
        """The bound 1, which holds on the unit box."""
        return 1.0

    def _build(self, n_inputs: int) -> None:
        self.n_outputs = n_inputs
        self.factor_ = 1.0 / math.sqrt(n_inputs)

    def evaluation_error(self) -> float:
        """Return 4 roundings: each entry is a function of itself, and the norm is at most 1 + 3 u."""
        return gamma(4)

    def transform_block(self, X: Array) -> Array:
        """Return the rows, clipped to the box and scaled."""
        return np.asarray(np.clip(X, -1.0, 1.0) * X.dtype.type(self.factor_))

    def _write(self, graph: Graph, x: str) -> str:
        return graph.multiply(graph.clip(x, -1.0, 1.0), self.factor_)
