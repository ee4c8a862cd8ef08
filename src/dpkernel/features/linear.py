"""The linear kernel's own feature map."""

from __future__ import annotations

import math
from typing import ClassVar

from dpkernel.features.base import FeatureMap, register
from dpkernel.types import JSON, Array


@register
class LinearFeatures(FeatureMap):
    r"""phi(x) = x / sqrt(d) for x in the unit box [-1, 1]^d, so that ||phi(x)|| <= 1."""

    kind: ClassVar[str] = "linear"

    def __init__(self, n_inputs: int) -> None:
        self.n_inputs = self.n_outputs = n_inputs
        self.row_norm_bound = 1.0

    def transform(self, X: Array) -> Array:
        """Return the scaled rows."""
        return X / math.sqrt(self.n_inputs)

    def to_dict(self) -> JSON:
        """Return the recipe."""
        return {"kind": self.kind, "n_inputs": self.n_inputs}

    @classmethod
    def from_dict(cls, data: JSON) -> LinearFeatures:
        """Return the map that the recipe describes."""
        return cls(data["n_inputs"])
