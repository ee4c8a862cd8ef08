"""Records of torch tensors: features stay on the device, losses are evaluated on the host.

The twin of ``records`` in another library, and the tests hold the two together. Products with the
features run where they lie, in double precision wherever the acceptance of a solution rests on
them; between two of them one number a row travels to the host, where the losses of ``losses`` work
on it, and one back. Feature maps that have no torch twin are evaluated by NumPy, block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dpkernel.data.blocks import BLOCK_ROWS
from dpkernel.estimators.records import STEPS, RecordRecipe, Targets
from dpkernel.estimators.sources import Source
from dpkernel.estimators.torch_pass import input_twin
from dpkernel.foundations.types import Array, IntArray
from dpkernel.models.features import FeatureMap, FourierFeatures, LinearFeatures, NormalisedFeatures
from dpkernel.models.losses import Loss
from dpkernel.solvers.objective_perturbation import PRECISE, CompensatedSum

_CHUNK_BYTES = 2**28  # of a double-precision copy of some rows
_SHARE = 0.5  # of a GPU's free memory that records may take

Kept = tuple[Any, Array, Array]  # z on the device; the table's targets and weights on the host


class TensorStore:
    """The records of a table of tensors, kept on the device where they fit."""

    def __init__(self, source: Source, recipe: RecordRecipe, most_bytes: int) -> None:
        import torch

        X = source.X.detach()
        device = X.device
        if device.type == "cpu" and torch.cuda.is_available():
            device = torch.device("cuda")
        if device.type == "cuda":
            most_bytes = int(_SHARE * torch.cuda.mem_get_info(device)[0])
        size = np.dtype(recipe.dtype).itemsize * recipe.n_coordinates
        self._keep = source.n_rows * size <= most_bytes
        self._step = max(_CHUNK_BYTES // (8 * max(recipe.n_coordinates, X.shape[1])), 1)
        self._X, self._device = X, device
        self._y: Array = source.y.detach().cpu().numpy().astype(np.float64)
        self._make, self._width = record_twin(recipe, device), recipe.n_coordinates
        self._kept: list[Kept] | None = None

    def prepare(self) -> None:
        """Make what is kept now."""
        if self._keep and self._kept is None:
            self._kept = list(self._made())

    def blocks(self) -> Iterator[Kept]:
        """Yield the records, some rows at a time."""
        yield from self._made() if self._kept is None else self._kept

    def sum_rows(self) -> IntArray:
        """Return the exact sum of all z without the constant: the twin of ``records.sum_rows``."""
        import torch

        total = np.zeros(self._width - 1, dtype=np.int64)
        for z, _, _ in self._made():
            part = z[:, 1:].to(torch.float64)
            norms = torch.linalg.vector_norm(part, dim=1, keepdim=True)
            part = part * (STEPS * (1 - 2.0**-30) / norms.clamp(min=1.0))
            total += part.trunc().to(torch.int64).sum(dim=0).cpu().numpy()
        return total

    def records(self, loss: Loss, targets: Targets) -> TensorRecords:
        """Return the sums over the table for one loss and one view of its targets."""
        return TensorRecords(self, loss, targets)

    def _made(self) -> Iterator[Kept]:
        for start in range(0, len(self._y), self._step):
            rows = slice(start, start + self._step)
            z, weights = self._make(self._X[rows].to(self._device))
            yield z, self._y[rows], weights.cpu().numpy()


class TensorRecords:
    """Sums over records on the device, at any beta."""

    def __init__(self, store: TensorStore, loss: Loss, targets: Targets) -> None:
        self._store, self._loss, self._targets = store, loss, targets

    def sums(
        self, beta: Array, hessian_stride: int = 0, threads: int = 1
    ) -> tuple[Array, Array | None]:
        """Return the gradient of the sum of losses and, with a stride, its Hessian."""
        import torch

        gradient, bends, loss = CompensatedSum(len(beta)), 0.0, self._loss
        for z, stored, weights in self._store.blocks():
            y, factors = self._targets.of(stored)
            omega = weights if factors is None else weights * factors
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
                # as many rows at a time: how far a Hessian can be off grows with the longest sum
                for part in scaled.split(BLOCK_ROWS):
                    bends = bends + (part.T @ part).to(torch.float64)
        hessian = bends.cpu().numpy() if hessian_stride else None  # type: ignore[attr-defined]
        return gradient.value, hessian


def record_twin(recipe: RecordRecipe, device: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Return the twin of ``RecordRecipe.rows``: from raw rows to z and weights, on the device.

    Squares are summed in double precision with a relative error below 2^-38 for any order of up to
    10^4 terms; taking 2^-36 off the limit keeps omega ||z||^2 <= B^2.
    """
    import torch

    inputs = input_twin(recipe, device)
    features = _feature_twin(recipe.features, recipe.dtype, device)
    dtype = getattr(torch, recipe.dtype)
    centre = torch.as_tensor(recipe.centre, dtype=dtype, device=device)
    limit = recipe.row_bound**2 * (1 - 2.0**-36)

    def make(X: Any) -> tuple[Any, Any]:
        z = torch.empty((len(X), recipe.n_coordinates), dtype=dtype, device=device)
        first = recipe.n_coordinates - recipe.features.n_outputs
        z[:, :first] = recipe.constant
        z[:, first:] = (features(inputs(X)) - centre) * recipe.scale
        squares = z.to(torch.float64).square().sum(dim=1)
        strange = ~(squares < 1e200)  # can't come from a map of this library; counts nothing
        z.masked_fill_(strange[:, None], 0.0)
        squares = torch.where(strange, 0.0, squares)
        return z, limit / squares.clamp(min=limit)

    return make


def _feature_twin(features: FeatureMap, dtype: str, device: Any) -> Callable[[Any], Any]:
    """Return the function from inputs to features."""
    import torch

    if isinstance(features, NormalisedFeatures):
        inner = _feature_twin(features._base, dtype, device)
        centre = torch.as_tensor(features._centre, dtype=getattr(torch, dtype), device=device)
        constant, scale = float(features.constant), float(features.scale)
        margin = 2.0**-20 if dtype == "float32" else 2.0**-36

        def normalised(X: Any) -> Any:
            rows = (inner(X) - centre) * scale
            rows = torch.cat((torch.full_like(rows[:, :1], constant), rows), dim=1)
            norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True) * (1 + margin)
            return torch.nan_to_num(rows / norms.clamp(min=constant / 2))

        return normalised
    if isinstance(features, FourierFeatures):
        tables = features._tables[np.dtype(dtype)]
        frequencies, amplitudes = (torch.as_tensor(table, device=device) for table in tables)
        limit = features._most_input

        def fourier(X: Any) -> Any:
            phases = X.clamp(-limit, limit) @ frequencies
            return torch.cat((torch.cos(phases), torch.sin(phases)), dim=1) * amplitudes

        return fourier
    if isinstance(features, LinearFeatures):
        return lambda X: X.clamp(-1.0, 1.0) * features._factor

    def by_numpy(X: Any) -> Any:
        with np.errstate(all="ignore"):  # a warning would tell of the data
            rows = features.transform_block(np.ascontiguousarray(X.cpu().numpy()))
        return torch.as_tensor(rows, device=device)

    return by_numpy
