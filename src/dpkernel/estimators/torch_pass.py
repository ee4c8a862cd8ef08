"""The Gram pass on torch tensors: features in float32, the sum in exact float64 integers.

What runs here is ``gram_pass`` in another library, and the tests hold the two together on the CPU.
Sums of integers below 2^53 are exact in a float64 product with any order of summation, so a GPU's
float64 matrix units give the same integers; TF32 and half precision are never used for the sum.
Feature maps that have no torch twin are evaluated by NumPy, block by block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpkernel.domain import Interval
from dpkernel.errors import DataError
from dpkernel.estimators.gram_pass import Recipe
from dpkernel.features import FeatureMap, FourierFeatures, LinearFeatures
from dpkernel.folds import GramFolds, fold_of
from dpkernel.statistics import GramLayout


def check_tensors(X: Any, y: Any) -> tuple[int, ...]:
    """Raise DataError for tensors that can't be used; return the shape of one target."""
    import torch

    if X.is_complex() or X.layout != torch.strided:
        raise DataError("X must be a dense torch tensor of real numbers.")
    if (
        not isinstance(y, torch.Tensor)
        or y.is_complex()
        or X.ndim != 2
        or y.ndim not in (1, 2)
        or len(X) < 1
    ):
        raise DataError("X and y must be torch tensors of shapes (n, d) and (n,) or (n, k).")
    if len(X) != len(y):
        raise DataError(
            f"Found input variables with inconsistent numbers of samples: {[len(X), len(y)]}."
        )
    for start in range(0, len(X), 1 << 20):
        rows = slice(start, start + (1 << 20))
        if not bool(torch.isfinite(X[rows]).all() & torch.isfinite(y[rows]).all().to(X.device)):
            raise DataError(
                "X or y contains NaN or infinity. Fill missing values with public constants first."
            )
    return tuple(int(k) for k in y.shape[1:])


def sum_tensors(X: Any, y: Any, recipe: Recipe) -> GramFolds:
    """Return the exact sums over the rows of tensors, on the device where a GPU is, in blocks.

    Tensors on the CPU stream to the GPU when there is one: pinned memory makes that fast.
    """
    import torch

    device = X.device
    if device.type == "cpu" and torch.cuda.is_available():
        device = torch.device("cuda")
    build = _twin(recipe, device)
    layout, folds = recipe.layout, recipe.folds
    statistics = GramFolds(layout, folds)
    width = _padded(layout.side)
    totals = torch.zeros((folds, width, width), dtype=torch.int64, device=device)
    X, y = X.detach(), y.detach()
    for start in range(0, len(X), layout.block_rows):
        rows = slice(start, start + layout.block_rows)
        block = build(X[rows].to(device, non_blocking=True), y[rows].to(device, non_blocking=True))
        for offset in range(folds):
            part = block[offset::folds]
            totals[fold_of(start + offset, folds)] += (part.T @ part).to(torch.int64)
    side = layout.side
    statistics._add_sums(list(totals[:, :side, :side].cpu().numpy()), len(X))
    return statistics


def _twin(recipe: Recipe, device: Any) -> Callable[[Any, Any], Any]:
    """Return the function from raw rows to integer-valued records, in torch."""
    import torch

    domain, layout = recipe.domain, recipe.layout
    dtype = torch.float32 if recipe.dtype == "float32" else torch.float64
    in_box = domain.columns is not None
    transform = _feature_twin(recipe.features, device, dtype, in_box)
    box = None
    if domain.columns is not None:
        intervals = [c for c in domain.columns if isinstance(c, Interval)]
        if len(intervals) != len(domain.columns):
            raise DataError("Torch tensors hold numbers: declare every column as an interval.")
        slope = np.array([1 / c.half_width for c in intervals])
        shift = np.array([-c.middle / c.half_width for c in intervals])
        box = [torch.as_tensor(v, dtype=dtype, device=device) for v in (shift, slope)]
    target = domain.target
    assert isinstance(target, Interval)

    def build(X: Any, y: Any) -> Any:
        X = X.to(dtype)
        if box is not None:
            # clipping to the interval and scaling it is scaling and clipping to [-1, 1]
            X = torch.nan_to_num_(torch.addcmul(box[0], X, box[1])).clamp_(-1.0, 1.0)
        targets = torch.nan_to_num(y.to(torch.float64))
        targets = targets[:, None] if targets.ndim == 1 else targets
        targets = (targets.clamp(target.low, target.high) - target.middle) / target.half_width
        return _quantise(layout, *transform(X), targets.clamp(-1.0, 1.0))

    return build


def _feature_twin(
    features: FeatureMap, device: Any, dtype: Any, in_box: bool
) -> Callable[[Any], tuple[Any, float]]:
    """Return a function from inputs to (rows, scale): the features are scale * rows."""
    import torch

    if isinstance(features, FourierFeatures):
        frequencies, amplitudes = features._tables[
            np.dtype("f4" if dtype == torch.float32 else "f8")
        ]
        if np.ptp(amplitudes) == 0:  # all kernels but the additive one
            table = torch.as_tensor(frequencies, device=device)
            limit, half = features._most_input, features.n_outputs // 2
            scale = float(np.ravel(amplitudes)[0])

            def fourier(X: Any) -> tuple[Any, float]:
                phase = (X if in_box and limit >= 1 else X.clamp(-limit, limit)) @ table
                out = torch.empty((len(X), 2 * half), dtype=dtype, device=device)
                torch.cos(phase, out=out[:, :half])
                torch.sin(phase, out=out[:, half:])
                return out, scale

            return fourier
    if isinstance(features, LinearFeatures):
        return lambda X: (X.clamp(-1.0, 1.0), features._factor)
    return lambda X: (
        torch.as_tensor(
            features.transform_block(np.ascontiguousarray(X.cpu().numpy())), device=device
        ),
        1.0,
    )


def _quantise(layout: GramLayout, rows: Any, scale: float, targets: Any) -> Any:
    """Return integer-valued records inside the bounds; the twin of ``GramLayout.quantise``.

    Norms are summed in float64, with a relative error below 2^-38 for any order of up to 10^4
    terms; shrinking by 2^-36 therefore keeps every truncated row inside the ball (by 2^-20 more where
    the product is rounded to float32), and the integer check of the NumPy pass is not needed.
    """
    import torch

    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    strange = ~(norms < 1e150)
    if bool(strange.any()):  # huge or not finite; row by row, no other row feels it
        rows = rows.clone()
        wild = rows[strange].to(torch.float64)
        wild = torch.where(torch.isfinite(wild).all(dim=1, keepdim=True), wild, 0.0)
        largest = wild.abs().amax(dim=1, keepdim=True).clamp(min=1.0)
        rows[strange] = (wild / largest).to(rows.dtype)
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    factor = (layout.row * (1 - 2.0**-36) * scale) / (scale * norms).clamp(min=layout.row_bound)
    width = _padded(layout.side)
    out = torch.empty((len(rows), width), dtype=torch.float64, device=rows.device)
    integers = out[:, : layout.n_features]
    if rows.dtype == torch.float32 and layout.row < 2**22:
        # integers below 2^24 are exact in float32, and half the memory moves
        shrunk = (factor * (1 - 2.0**-20)).to(torch.float32)
        integers.copy_(torch.mul(rows, shrunk[:, None]).trunc_())
    else:
        torch.mul(rows, factor[:, None], out=integers)
        integers.trunc_()
    out[:, layout.n_features : layout.side - 1] = torch.trunc(targets * layout.target)
    out[:, layout.side - 1] = layout.constant
    out[:, layout.side :] = 0.0
    return out


def _padded(side: int) -> int:
    """Return a multiple of 16: matrix units are slow on rows that are not aligned."""
    return -(-side // 16) * 16
