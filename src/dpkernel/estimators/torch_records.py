"""Records of torch tensors: features stay on the device, and so do the sums over them.

This module is the torch twin of ``records``; the tests compare the two. Products with the features
run on the device that holds them. They run in double precision wherever a solution is accepted
because of them. Losses whose slope is a ramp or, on a GPU, a logistic curve are evaluated on the
device; for others, one number per row travels to the host and back. Feature maps without a torch twin
are evaluated by NumPy, block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import starmap
from typing import TYPE_CHECKING, Any

import numpy as np

from dpkernel.data.blocks import BLOCK_ROWS
from dpkernel.data.passes import Passes
from dpkernel.data.sources import Source
from dpkernel.data.tensors import on_host, torch, working_device
from dpkernel.estimators.torch_pass import feature_twin, input_twin
from dpkernel.foundations.types import Array, IntArray
from dpkernel.models.losses import Loss, slope
from dpkernel.solvers.objective_perturbation import PRECISE, CompensatedSum
from dpkernel.solvers.sgd_gradient import LONGEST, GradientSGD

if TYPE_CHECKING:
    from dpkernel.estimators.records import RecordRecipe, Targets

_GRADIENT_ROWS = 2**16  # with 2^31 per gradient at most, a chunk adds up to less than 2^53
VIEW_BYTES = 16  # the targets and weights of a row, as one problem sees them
_CHUNK_BYTES = 2**28  # the size of a double-precision copy of one block of rows

Kept = tuple[Any, Array, Array]  # z on the device; the targets and weights of the table on the host


def rows_at_once(recipe: RecordRecipe, n_columns: int) -> int:
    """Return the number of rows in a block."""
    return max(_CHUNK_BYTES // (8 * max(recipe.n_coordinates, n_columns)), 1)


def record_block(X: Any, y: Any, make: Callable[[Any], tuple[Any, Any]]) -> Kept:
    """Return the records of a block of rows, on the device. ``make`` is a ``record_twin``."""
    z, weights = make(X)
    return z, on_host(y), weights.cpu().numpy()


def viewed(z: Any, y: Array, weights: Array, targets: Targets) -> tuple[Any, Any, Any]:
    """Return records as a problem sees them, with targets and weights on the device, too."""
    z, *rest = targets.view(z, y, weights)
    on_device = (torch.as_tensor(part, dtype=torch.float64, device=z.device) for part in rest)
    return z, *on_device


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
    rows = used = count = 0
    for z, y, omega in starmap(targets.view, blocks):
        at, weights = (torch.as_tensor(v, device=z.device) for v in (beta, omega))
        precise = z.to(torch.float64)
        slopes, curvatures = loss_twin(loss, y, precise @ at)
        slopes = slopes * weights
        # a product takes BLOCK_ROWS rows at most, and their sums are added with compensation
        pieces = [part.T @ slope for part, slope in _together(precise, slopes)]
        for part in torch.stack(pieces).cpu().numpy():
            gradient.add(part)
        if hessian_stride:
            roots = (curvatures() * weights).sqrt()
            wanted = precise if hessian_stride == PRECISE else z
            # BLOCK_ROWS rows at a time, because the error of a Hessian grows with its longest sum
            for part, root in _together(wanted, roots.to(wanted.dtype)):
                if count % hessian_stride == 0:
                    scaled = part * root[:, None]
                    bends = bends + (scaled.T @ scaled).to(torch.float64)
                    used += len(part)
                count += 1
        rows += len(z)
    if not hessian_stride:
        return gradient.value, None
    return gradient.value, bends.cpu().numpy() * (rows / used if used else 1.0)


def _together(rows: Any, values: Any) -> Iterable[tuple[Any, Any]]:
    """Return parts of at most BLOCK_ROWS rows, with their values."""
    return zip(rows.split(BLOCK_ROWS), values.split(BLOCK_ROWS), strict=True)


def loss_twin(loss: Loss, y: Any, scores: Any) -> tuple[Any, Callable[[], Any]]:
    """Return the derivative of a loss at scores on a device, and a function for its curvature.

    Ramps and, on a GPU, the logistic loss are evaluated on the device, by the form of their slope. Other
    losses are evaluated on the host: on a CPU, torch's sigmoid rounds the last numbers of a tensor
    otherwise than the others, so that the slope of a row would depend on its place in a batch.
    """
    device, shape = scores.device, loss.form[0]
    if shape != slope.RAMP and (shape != slope.LOGISTIC or device.type == "cpu"):
        s, y = scores.cpu().numpy(), y.cpu().numpy() if isinstance(y, torch.Tensor) else y

        def found(function: Callable[[Array, Array], Array]) -> Any:
            with np.errstate(all="ignore"):  # a warning would reveal something about the data
                return torch.as_tensor(function(y, s), device=device)

        return found(loss.derivative), lambda: found(loss.curvature)
    targets = torch.as_tensor(y, dtype=torch.float64, device=device)
    if not loss.labels:
        at = _form_twin(loss, targets - scores)
        return -at[0], at[1]
    # a record with both labels in parts has the mean of their losses
    first, second = (1 + targets) / 2, (1 - targets) / 2
    towards, against = _form_twin(loss, scores), _form_twin(loss, -scores)
    slopes = first * towards[0] - second * against[0]
    return slopes, lambda: first * towards[1]() + second * against[1]()


def _form_twin(loss: Loss, v: Any) -> tuple[Any, Callable[[], Any]]:
    """Return the slope of a loss in v, the margin or the residual, and a function for its curvature."""
    shape, a, b, low, high = loss.form
    if shape == slope.LOGISTIC:
        p = torch.sigmoid(-v)
        return -p, lambda: p * (1 - p)
    line = (v - a) * b
    return line.clamp(low, high), lambda: ((line >= low) & (line < high)).to(torch.float64) * b


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


# --- sums of clipped gradients of SGD ---------------------------------------------------------------


def integer_tables(
    source: Source, recipe: RecordRecipe, plan: GradientSGD, targets: list[Targets], shared: bool
) -> list[Passes]:
    """Return the records of ``RecordTable.integers`` on the device."""
    size = rows_at_once(recipe, source.n_columns)
    return [
        Passes(table, device_rows=size)
        .then(record_block, record_twin(recipe, table.X))
        .then(_integer_block, plan, targets, shared, bytes_a_row=recipe.bytes_a_row, joined=True)
        for table in (source, *source.more)
    ]


def _integer_block(
    z: Any, y: Array, weights: Array, plan: GradientSGD, targets: list[Targets], shared: bool
) -> tuple[Any, Any, Any, Any]:
    """Return the twin of ``sgd.table.integer_block``; sums of squares are integers, so exact."""
    whole = (z.to(torch.float64) * plan.row_unit).round_()
    squares = whole.square().sum(dim=1)
    strange = ~(squares < float(LONGEST) ** 2)
    whole.masked_fill_(strange[:, None], 0.0)
    norms = torch.where(strange, 0.0, squares).sqrt() * (1 + 1e-12)
    caps = (plan.clip_steps / norms.clamp(min=1.0)).floor_()
    views = [one.view(z, y, weights) for one in targets]
    columns = np.column_stack([view[1] for view in views])
    labels, omega = (torch.as_tensor(v, device=z.device) for v in (columns, views[0][2]))
    caps = caps * torch.as_tensor(y[:, -1], device=z.device) if shared else caps
    return whole.to(torch.float32), labels, omega, caps


def sum_gradients(block: Any, plan: GradientSGD, w: Array, rows: IntArray | None) -> IntArray:
    """Return the exact sum of clipped integer gradients; the twin of ``sgd_gradient.Block.sums``.

    The integers of a chunk add up to less than 2^53, so their float64 product is exact in any order.
    So are the margins. The squares of a row are added one problem after the other. Whatever the size
    of the batch and the place of a row in it are, the integers of this row are the same.
    """
    device = block[0].device
    if rows is not None:
        places = torch.as_tensor(np.ascontiguousarray(rows), device=device)
        block = [part.index_select(0, places) for part in block]
    at = torch.as_tensor(np.ascontiguousarray(plan.on_grid(w).T), device=device)
    total = torch.zeros(w.shape, dtype=torch.int64, device=device)
    for z, targets, weights, caps in zip(
        *(part.split(_GRADIENT_ROWS) for part in block), strict=True
    ):
        precise = z.to(torch.float64)
        pulls = loss_twin(plan.loss, targets, precise @ at)[0]
        pulls = pulls * (weights * plan.slope_unit)[:, None]
        squares = sum(pull * pull for pull in pulls.unbind(dim=1))
        shrink = torch.where(squares > caps * caps, caps / squares.sqrt() * (1 - 1e-12), 1.0)
        whole = (pulls * shrink[:, None]).trunc_()
        # a slope that is NaN or too large counts as nothing
        whole.masked_fill_(~(squares < 1e300)[:, None], 0.0)
        total += (whole.T @ precise).to(torch.int64)
    return np.asarray(total.cpu().numpy())
