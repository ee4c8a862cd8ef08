"""Random Fourier features of the Gaussian kernel."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from dpkernel.errors import ParameterError, parameter_message
from dpkernel.features.base import FeatureMap, register
from dpkernel.types import JSON, Array


@register
class FourierFeatures(FeatureMap):
    r"""Paired features sqrt(2/M) (cos w_j^T x, sin w_j^T x), j <= M/2: the norm is exactly 1.

    <phi(x), phi(x')> estimates exp(-||x - x'||^2 / (2 length_scale^2)) without bias, for
    w_j ~ N(0, I / length_scale^2). The frequencies come from the public seed alone. (Features
    sqrt(2/M) cos(w^T x + b), the other textbook form, have norm up to sqrt 2: more noise.)

    Reference    Rahimi & Recht (2007), in the paired form.
    """

    kind: ClassVar[str] = "fourier"

    def __init__(self, n_inputs: int, n_outputs: int, length_scale: float, seed: int) -> None:
        if n_outputs < 2 or n_outputs % 2:
            allowed = "even for the Gaussian kernel, and >= 2"
            raise ParameterError(
                parameter_message("FourierFeatures", "n_outputs", allowed, n_outputs)
            )
        self.n_inputs, self.n_outputs = n_inputs, n_outputs
        self.length_scale, self.seed = length_scale, seed
        self.row_norm_bound = 1.0
        draws = np.random.Generator(np.random.PCG64(seed))  # public: part of the model
        shape = (n_inputs, n_outputs // 2)
        self._frequencies = draws.standard_normal(shape) / length_scale

    def transform(self, X: Array) -> Array:
        """Return the paired features of every row."""
        phase = np.clip(X, -1e150, 1e150) @ self._frequencies  # no phase overflows
        scale = math.sqrt(1 / phase.shape[1])
        return np.concatenate((np.cos(phase), np.sin(phase)), axis=1) * scale

    def to_dict(self) -> JSON:
        """Return the recipe."""
        return {
            "kind": self.kind,
            "n_inputs": self.n_inputs,
            "n_outputs": self.n_outputs,
            "length_scale": self.length_scale,
            "seed": self.seed,
        }

    @classmethod
    def from_dict(cls, data: JSON) -> FourierFeatures:
        """Return the map that the recipe describes."""
        return cls(data["n_inputs"], data["n_outputs"], data["length_scale"], data["seed"])
