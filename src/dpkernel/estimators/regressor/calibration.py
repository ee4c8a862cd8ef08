"""The mean of the last residuals, which removes the bias that clipping and shrinking leave."""

from __future__ import annotations

import numpy as np

from dpkernel.foundations.types import Array

STEPS = 2**20  # a residual at the clip as an integer, so that sums are exact
BIAS = 0.3  # how far a robust fit is from the mean of a skewed target, in the same multiples
REACH = 3.5  # the clip, in multiples of the scale of the residuals


def sum_clipped(
    features: Array, y: Array, column: int, coefficients: Array, clip: float
) -> tuple[Array]:
    """Return the weighted sum of residuals, clipped and rounded towards 0 to integers."""
    residuals = y[:, column] - (coefficients[0] + features @ coefficients[1:])
    steps = np.trunc(np.nan_to_num(np.clip(residuals / clip, -1.0, 1.0)) * STEPS * y[:, -1])
    return (np.array([np.sum(steps.astype(np.int64))]),)
