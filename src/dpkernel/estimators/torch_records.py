"""Records of torch tensors: features stay on the device, losses are evaluated on the host.

This module is the torch twin of ``records``; the tests compare the two. Products with the features
run on the device that holds them. They run in double precision wherever a solution is accepted
because of them. Between two products, one number per row travels to the host, where the losses of
``losses`` are evaluated, and one number per row travels back. Feature maps without a torch twin are
evaluated by NumPy, block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import starmap
from typing import TYPE_CHECKING, Any

import numpy as np

from dpkernel.data.blocks import BLOCK_ROWS
from dpkernel.data.tensors import on_host, torch, working_device
from dpkernel.estimators.torch_pass import feature_twin, input_twin
from dpkernel.foundations.types import Array, IntArray
from dpkernel.models.losses import Loss
from dpkernel.solvers.objective_perturbation import PRECISE, CompensatedSum

if TYPE_CHECKING:
    from dpkernel.estimators.records import RecordRecipe, Targets

_CHUNK_BYTES = 2**28  # the size of a double-precision copy of one block of rows

Kept = tuple[Any, Array, Array]  # z on the device; the targets and weights of the table on the host


def rows_at_once(recipe: RecordRecipe, n_columns: int) -> int:
    """Return the number of rows in a block."""
    return max(_CHUNK_BYTES // (8 * max(recipe.n_coordinates, n_columns)), 1)


def record_block(X: Any, y: Any, make: Callable[[Any], tuple[Any, Any]]) -> Kept:
    """Return the records of a block of rows, on the device. ``make`` is a ``record_twin``."""
    z, weights = make(X)
    return z, on_host(y), weights.cpu().numpy()


def sum_rows(blocks: Iterable[Kept], steps: int) -> IntArray:
    """Return the exact sum of all z without the constant, as ``records.sum_rows`` does."""
    total: IntArray = np.zeros((), dtype=np.int64)
    for z, _, _ in blocks:
        part = z[:, 1:].to(torch.float64)
        norms = torch.linalg.vector_norm(part, dim=1, keepdim=True)
        part = part * (steps * (1 - 2.0**-30) / norms.clamp(min=1.0))
        total = total + part.trunc().to(torch.int64).sum(dim=0).cpu().numpy()
    return total


def sum_records(
    blocks: Iterable[Kept],
    targets: Targets,
    loss: Loss,
    beta: Array,
    hessian_stride: int,
    threads: int,
) -> tuple[Array, Array | None]:
    """Return gradient and Hessian of the sum of losses, as ``records.sum_records`` does."""
    gradient: CompensatedSum = CompensatedSum(len(beta))
    bends: Any = 0.0
    for z, y, omega in starmap(targets.view, blocks):
        at = torch.as_tensor(beta, device=z.device)
        precise = z.to(torch.float64)
        scores = (precise @ at).cpu().numpy()
        slopes = torch.as_tensor(loss.derivative(y, scores) * omega, device=z.device)
        # a product takes BLOCK_ROWS rows at most, and their sums are added with compensation
        parts = [
            precise[start : start + BLOCK_ROWS].T @ slopes[start : start + BLOCK_ROWS]
            for start in range(0, len(precise), BLOCK_ROWS)
        ]
        for part in torch.stack(parts).cpu().numpy():
            gradient.add(part)
        if hessian_stride:
            bend = np.sqrt(loss.curvature(y, scores) * omega)
            rows = precise if hessian_stride == PRECISE else z
            scaled = rows * torch.as_tensor(bend, dtype=rows.dtype, device=z.device)[:, None]
            # BLOCK_ROWS rows at a time, because the error of a Hessian grows with its longest sum
            for part in scaled.split(BLOCK_ROWS):
                bends = bends + (part.T @ part).to(torch.float64)
    return gradient.value, bends.cpu().numpy() if hessian_stride else None


def record_twin(recipe: RecordRecipe, X: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Return the twin of ``RecordRecipe.rows``: a function from raw rows to z and weights.

    Both are on the device that works on X. Squares are summed in double precision, with a relative
    error below 2^-38 for up to 10^4 terms in any order. Lowering the limit by 2^-36 therefore keeps
    omega ||z||^2 <= B^2.
    """
    device = working_device(X)
    inputs = input_twin(recipe, device)
    features = feature_twin(recipe.features, recipe.dtype, device)
    dtype = getattr(torch, recipe.dtype)
    centre = torch.as_tensor(recipe.centre, dtype=dtype, device=device)
    limit = recipe.row_bound**2 * (1 - 2.0**-36)

    def make(X: Any) -> tuple[Any, Any]:
        z = torch.empty((len(X), recipe.n_coordinates), dtype=dtype, device=device)
        first = recipe.n_coordinates - recipe.features.n_outputs
        z[:, :first] = recipe.constant
        rows, scale = features(inputs(X))
        z[:, first:] = (rows * scale - centre) * recipe.scale
        squares = z.to(torch.float64).square().sum(dim=1)
        strange = ~(squares < 1e200)  # no map of this library does this; has no effect
        z.masked_fill_(strange[:, None], 0.0)
        squares = torch.where(strange, 0.0, squares)
        return z, limit / squares.clamp(min=limit)

    return make
