"""Random Fourier features of the Gaussian kernel."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from dpkernel.errors import ParameterError, parameter_message
from dpkernel.features.base import FeatureMap, register
from dpkernel.types import Array


@register
class FourierFeatures(FeatureMap):
    r"""Paired features sqrt(2/M) (cos w_j^T x, sin w_j^T x), j <= M/2: the norm is exactly 1.

    <phi(x), phi(x')> estimates exp(-||x - x'||^2 / (2 length_scale^2)) without bias, for
    w_j ~ N(0, I / length_scale^2). The frequencies come from the public seed alone. (Features
    sqrt(2/M) cos(w^T x + b), the other textbook form, have norm up to sqrt 2: more noise.)

    Reference    Rahimi & Recht (2007), in the paired form.
    """

    kind: ClassVar[str] = "fourier"

    def __init__(
        self, n_components: int = 256, *, length_scale: float = 1.0, random_state: int = 0
    ) -> None:
        self.n_components = n_components
        self.length_scale = length_scale
        self.random_state = random_state

    @property
    def row_norm_bound(self) -> float:
        """1: cos^2 + sin^2."""
        return 1.0

    def _build(self, n_inputs: int) -> None:
        if self.n_components < 2 or self.n_components % 2:
            allowed = "even for the Gaussian kernel, and >= 2"
            raise ParameterError(
                parameter_message("FourierFeatures", "n_components", allowed, self.n_components)
            )
        self.n_outputs = self.n_components
        draws = np.random.Generator(np.random.PCG64(self.random_state))  # public: part of the model
        shape = (n_inputs, self.n_components // 2)
        self._frequencies = draws.standard_normal(shape) / self.length_scale

    def transform_block(self, X: Array) -> Array:
        """Return the paired features of every row."""
        phase = np.clip(X, -1e30, 1e30) @ self._frequencies.astype(X.dtype)  # no phase overflows
        scale = X.dtype.type(math.sqrt(2 / self.n_components))
        return np.concatenate((np.cos(phase), np.sin(phase)), axis=1) * scale
