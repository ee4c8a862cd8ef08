"""The features of Example 2.1."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array
from dpkernel.foundations.validation import Real
from dpkernel.models.features import FeatureMap


class CosineFeatures(FeatureMap):
    r"""The features of Example 2.1 for the Gaussian kernel: sqrt(2/M) cos(w_j^T x + b_j).

    w_j is normal divided by the length scale, and b_j is uniform on [0, 2 pi]. The norm is at most
    kappa = sqrt 2. ``dpkernel.models.features.FourierFeatures``, in the paired form, have norm 1.

    References
    ----------
    Wang & Guo (2024), Example 2.1; Rahimi & Recht (2007).
    """

    kind: ClassVar[str] = "wang-guo-cosine"

    def __init__(
        self, n_components: int = 256, *, length_scale: float = 1.0, random_state: int = 0
    ) -> None:
        self.n_components = n_components
        self.length_scale = length_scale
        self.random_state = random_state

    @property
    def row_norm_bound(self) -> float:
        """The root of 2, rounded up."""
        return math.nextafter(math.sqrt(2), math.inf)

    def _build(self, n_inputs: int) -> None:
        self.n_outputs = self._require_components()
        if not Real(1e-100, 1e100).holds(self.length_scale):
            allowed = str(Real(1e-100, 1e100))
            raise ParameterError(
                parameter_message("CosineFeatures", "length_scale", allowed, self.length_scale)
            )
        draws = self._public_uniforms()
        self._frequencies = draws.standard_normal((n_inputs, self.n_outputs)) / self.length_scale
        self._phases = draws.uniform(0, 2 * math.pi, self.n_outputs)

    def transform_block(self, X: Array) -> Array:
        """Return the features of every row."""
        with np.errstate(all="ignore"):
            phase = np.clip(np.clip(X, -1e30, 1e30) @ self._frequencies, -1e30, 1e30)
            out = np.cos(np.nan_to_num(phase) + self._phases)
        return np.asarray(out * math.sqrt(2 / self.n_outputs), dtype=X.dtype)
