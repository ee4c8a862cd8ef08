"""Features of torch tensors: computed and kept on the device; what leaves it is one number per row.

This module is the torch twin of ``feature_block`` in ``records`` and of ``scaled_rows`` in
``regressor/stage``; the tests compare the two. Unit rows, targets and weights stay on the host,
because they are small. A ``DeviceRows`` stands for the features of a block. Its product with
coefficients gives the host one number per row, in double precision, so the functions that count or
add up residuals serve both kinds of features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernel.data.tensors import torch
from dpkernel.estimators.torch_pass import feature_twin
from dpkernel.foundations.types import Array, IntArray
from dpkernel.models.features import FeatureMap
from dpkernel.models.features.input_law import LARGEST as STANDARD_DEVIATIONS
from dpkernel.models.features.learned import LARGEST, LearnedFeatures, Maths, mixture_values

_BYTES = 2**28  # the size of a table in double precision that is made at one time


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """The features of a block of rows, on a device."""

    rows: Any

    def __len__(self) -> int:
        return len(self.rows)

    def __matmul__(self, coefficients: Array) -> Array:
        """Return one number per row on the host, in double precision."""
        column = torch.as_tensor(np.ascontiguousarray(coefficients), device=self.rows.device)
        parts = [part.to(torch.float64) @ column for part in _parts(self.rows, len(column))]
        return np.asarray(torch.cat(parts).cpu().numpy())

    def scaled(self, used: IntArray, roots: Array, row_bound: float) -> tuple[Any, Array]:
        """Return z = roots o (1, v) on the device and the weights on the host; see ``scaled_rows``.

        Squares are summed in double precision, with a relative error below 2^-38 for up to 10^4
        terms in any order. Lowering the limit by 2^-36 therefore keeps weight ||z||^2 below
        row_bound^2.
        """
        rows, first = self.rows, int(np.sum(used == 0))
        places = torch.as_tensor(used[first:] - 1, device=rows.device)
        z = torch.ones((len(rows), len(used)), dtype=rows.dtype, device=rows.device)
        z[:, first:] = rows.index_select(1, places)
        z *= torch.as_tensor(roots, dtype=rows.dtype, device=rows.device)
        norms = torch.linalg.vector_norm(z, dim=1, dtype=torch.float64)
        limit = row_bound**2 * (1 - 2.0**-36)
        return z, (limit / (norms * norms).clamp(min=limit)).cpu().numpy()


def feature_block(X: Array, y: Array, twin: Callable[[Any], Any]) -> tuple[DeviceRows, Array]:
    """Return the features of a block of unit rows on the device, and its targets and weights."""
    return DeviceRows(twin(X)), y


def block_twin(
    features: FeatureMap, dtype: str, rotation: Array | None, device: Any
) -> Callable[[Any], Any]:
    """Return the function that gives the features of unit rows of the host, on the device."""
    turn = None
    if rotation is not None:
        turn = torch.as_tensor(rotation.copy(), dtype=getattr(torch, dtype), device=device)
    if isinstance(features, LearnedFeatures):
        transform = _learned_twin(features, device)
    else:
        inner = feature_twin(features, dtype, device)

        def transform(X: Any) -> Any:
            rows, scale = inner(X)
            return rows * scale

    def make(X: Any) -> Any:
        rows = transform(torch.as_tensor(X, device=device))
        strange = ~torch.isfinite(rows).all(dim=1, keepdim=True)
        rows.masked_fill_(strange, 0.0)  # no kernel of this library does this; has no effect
        return rows if turn is None else rows @ turn

    return make


def _learned_twin(features: LearnedFeatures, device: Any) -> Callable[[Any], Any]:
    """Return the twin of ``LearnedFeatures.transform_block``; it works in double precision, too."""
    law = features.law
    low, high, mean, spread, landmarks, weights, shift = (
        torch.as_tensor(np.ascontiguousarray(part), device=device)
        for part in (law.low, law.high, law.mean, law.spread, features.landmarks,
                     features.weights, features.shift)
    )  # fmt: skip
    maths = Maths(
        _square_distances,
        lambda X, Y: torch.cdist(X, Y, p=1.0),
        torch.exp,
        torch.clone,
        lambda values: torch.as_tensor(values, device=device),
    )

    def transform(X: Any) -> Any:
        out = torch.empty((len(X), weights.shape[1]), dtype=X.dtype, device=device)
        done = 0
        for part in _parts(X, len(landmarks)):
            inside = torch.minimum(torch.maximum(part.to(torch.float64), low), high)
            rows = ((inside - mean) / spread).clamp_(-STANDARD_DEVIATIONS, STANDARD_DEVIATIONS)
            values = mixture_values(features.mixture, rows, landmarks, features.metric_used, maths)
            found = torch.addmm(shift, values, weights).clamp_(-LARGEST, LARGEST)
            out[done : done + len(part)] = found
            done += len(part)
        return out

    return transform


def _square_distances(X: Any, Y: Any) -> Any:
    """Return ||x_i - y_j||^2 by one matrix product, as ``kernels.square_distances`` does."""
    centre = Y.mean(dim=0)
    left, right = X - centre, Y - centre
    out = torch.addmm((right * right).sum(dim=1), left, right.T, alpha=-2.0)
    return out.add_((left * left).sum(dim=1, keepdim=True)).clamp_(min=0.0)


def _parts(rows: Any, width: int) -> Any:
    """Return parts of a block whose tables of this width are small."""
    return rows.split(max(1, _BYTES // (8 * max(width, 1))))
