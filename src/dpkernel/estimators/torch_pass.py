"""The Gram pass on torch tensors: features in float32, the sum in exact integers.

This module is the torch twin of ``gram_pass``; the tests compare the two. There are two ways to
sum.

``_FloatSum`` works for every feature map and device. Integers below 2^53 are exact in a float64
product, whatever the order of summation, so the float64 matrix units of a GPU give the same
integers as NumPy. TF32 and half precision are never used for the sum.

``_DigitSum`` is for Fourier features on a GPU where Triton runs. Records are written as signed
bytes, and the integer matrix units multiply these exactly, several times faster than float64.

Feature maps without a torch twin are evaluated by NumPy, block by block.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from dpkernel.data.domain import Interval
from dpkernel.data.passes import Passes
from dpkernel.data.sources import Source
from dpkernel.data.tensors import (
    all_finite,
    current,
    optional,
    require_finite,
    torch,
    working_device,
)
from dpkernel.estimators.base import logger
from dpkernel.foundations.errors import DataError
from dpkernel.models.features import FeatureMap, FourierFeatures, LinearFeatures, NormalisedFeatures
from dpkernel.privacy.folds import GramFolds, fold_of
from dpkernel.privacy.statistics import GramLayout

if TYPE_CHECKING:
    from dpkernel.estimators.gram_pass import Recipe


triton, tl = (optional(name) for name in ("triton", "triton.language"))

_TILE = 128  # the side of the tiles that a GPU program multiplies at once
_TAIL_PLANES = 3  # the number of bytes of a target or the constant, which are below 2^23


def sum_tensors(source: Source, recipe: Recipe) -> GramFolds:
    """Return the exact sums over the rows of tensors, block by block, on a GPU if there is one.

    Tensors on the CPU are copied to the GPU while it works on earlier rows. Raises DataError if any
    value is missing or infinite.
    """
    device, folds, position = working_device(source.X), recipe.folds, 0
    finite = []
    with current(device):
        running = [_choose_sum(recipe, device) for _ in range(folds)]
        to_inputs, to_targets = input_twin(recipe, device), _target_twin(recipe)
        for rows, values in Passes(source, device_rows=running[0].block_rows).blocks():
            finite.append(all_finite(rows, values))
            block = to_inputs(rows), to_targets(values)
            for offset in range(min(folds, len(rows))):
                part = block if folds == 1 else [v[offset::folds].contiguous() for v in block]
                running[fold_of(position + offset, folds)].add(*part)
            position += len(rows)
        require_finite(finite)
        statistics = GramFolds(recipe.layout, folds)
        statistics._add_sums([fold.total().cpu().numpy() for fold in running], position)
    return statistics


def input_twin(recipe: Any, device: Any) -> Callable[[Any], Any]:
    """Return the twin of ``unit_inputs``: finite rows, in the unit box if bounds are declared.

    The middle of the box is subtracted in double precision, whatever type the tensor has. Numbers
    pass through double precision without a box, too, because a single fraction turns a tensor of
    whole numbers into one of floats.
    """
    dtype, columns = getattr(torch, recipe.dtype), recipe.domain.columns
    if columns is None:
        return lambda X: torch.nan_to_num(X.to(torch.float64).to(dtype))
    intervals = [column for column in columns if isinstance(column, Interval)]
    if len(intervals) != len(columns):
        raise DataError("Torch tensors hold numbers: declare every column as an interval.")
    low, high, middle, half = (
        torch.tensor([getattr(c, name) for c in intervals], dtype=torch.float64, device=device)
        for name in ("low", "high", "middle", "half_width")
    )

    def to_unit(X: Any) -> Any:
        found = torch.nan_to_num(X.to(torch.float64))  # a copy
        torch.minimum(torch.maximum(found, low, out=found), high, out=found)
        found.sub_(middle).div_(half)
        return torch.nan_to_num_(found).clamp_(-1.0, 1.0).to(dtype)

    return to_unit


def _target_twin(recipe: Recipe) -> Callable[[Any], Any]:
    """Return the function that maps targets to [-1, 1], one column per target."""
    target = recipe.domain.target
    assert isinstance(target, Interval)

    def to_unit(y: Any) -> Any:
        low, high, middle, half_width = (
            torch.as_tensor(end, dtype=torch.float64, device=y.device)
            for end in (target.low, target.high, target.middle, target.half_width)
        )
        values = torch.nan_to_num(y.to(torch.float64)).clamp_(low, high)
        values = ((values - middle) / half_width).clamp_(-1.0, 1.0)
        return values[:, None] if values.ndim == 1 else values

    return to_unit


def _choose_sum(recipe: Recipe, device: Any) -> _FloatSum | _DigitSum:
    """Return the sum in bytes if it is exact and runs on this device, else the one in float64."""
    if device.type == "cuda" and _DigitSum.covers(recipe) and _kernels_run(device):
        return _DigitSum(recipe, device)
    return _FloatSum(recipe, device)


class _FloatSum:
    """The sum of v v^T in float64 products of integers, on any device."""

    def __init__(self, recipe: Recipe, device: Any) -> None:
        self.layout = recipe.layout
        width = _padded(self.layout.side, 16)
        self.block_rows = min(self.layout.block_rows, max(2**26 // width, 1024))
        features = recipe.features
        self._transform = feature_twin(features, recipe.dtype, device)
        if isinstance(features, FourierFeatures) and not _one_amplitude(features):
            self._transform = lambda X: (_by_numpy(features, X), 1.0)  # a scale per column
        self._total = torch.zeros((width, width), dtype=torch.int64, device=device)

    def add(self, X: Any, targets: Any) -> None:
        """Add at most ``block_rows`` rows, so that no product is rounded."""
        block = _quantise(self.layout, *self._transform(X), targets)
        width = block.shape[1]
        step = max(_padded(width // 4, 16), 256)
        for a in range(0, width, step):  # on and above the diagonal
            part = block[:, a : a + step].T @ block[:, a:]
            self._total[a : a + step, a:] += part.to(torch.int64)

    def total(self) -> Any:
        """Return the sum over all rows, int64."""
        side = self.layout.side
        return _mirrored(self._total)[:side, :side]


def _one_amplitude(features: FourierFeatures) -> bool:
    """Whether all amplitudes are equal, as for all kernels but the additive one."""
    return bool(np.ptp(features.tables_[np.dtype("f4")][1]) == 0)


def feature_twin(features: FeatureMap, dtype: str, device: Any) -> Callable[[Any], tuple[Any, Any]]:
    """Return a function from inputs to (rows, scale): the features are rows * scale."""
    if isinstance(features, NormalisedFeatures):
        inner = feature_twin(features.inner_, dtype, device)
        centre = torch.as_tensor(features.shift_, dtype=getattr(torch, dtype), device=device)
        constant, factor = float(features.constant), float(features.scale)
        margin = 2.0**-20 if dtype == "float32" else 2.0**-36

        def normalised(X: Any) -> tuple[Any, float]:
            rows, scale = inner(X)
            rows = (rows * scale - centre) * factor
            rows = torch.cat((torch.full_like(rows[:, :1], constant), rows), dim=1)
            norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True) * (1 + margin)
            return torch.nan_to_num(rows / norms.clamp(min=constant / 2)), 1.0

        return normalised
    if isinstance(features, FourierFeatures):
        tables = features.tables_[np.dtype(dtype)]
        frequencies, amplitudes = (torch.as_tensor(table, device=device) for table in tables)
        limit = features.most_input_
        scale = float(amplitudes.ravel()[0]) if _one_amplitude(features) else amplitudes
        return lambda X: (_waves(X.clamp(-limit, limit), frequencies), scale)
    if isinstance(features, LinearFeatures):
        return lambda X: (X.clamp(-1.0, 1.0), features.factor_)
    return lambda X: (_by_numpy(features, X), 1.0)


def _waves(X: Any, frequencies: Any) -> Any:
    """Return cosines and sines of the phases, side by side."""
    phases = X @ frequencies
    half = phases.shape[1]
    out = torch.empty((len(X), 2 * half), dtype=X.dtype, device=X.device)
    torch.cos(phases, out=out[:, :half])
    torch.sin(phases, out=out[:, half:])
    return out


def _by_numpy(features: FeatureMap, X: Any) -> Any:
    with np.errstate(all="ignore"):  # a warning would reveal something about the data
        rows = features.transform_block(np.ascontiguousarray(X.cpu().numpy()))
    return torch.as_tensor(rows, device=X.device)


def _quantise(layout: GramLayout, rows: Any, scale: float, targets: Any) -> Any:
    """Return integer-valued records inside the bounds; the twin of ``GramLayout.quantise``.

    Norms are summed in float64, with a relative error below 2^-38 for up to 10^4 terms in any
    order. Shrinking by 2^-36 (and by 2^-20 more if the product is rounded to float32) therefore
    keeps every truncated row inside the ball, so the integer check of the NumPy pass is not needed.
    """
    norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    strange = ~(norms < 1e150)
    if bool(strange.any()):  # huge or not finite; each is mended by itself, so no other row changes
        rows = rows.clone()
        wild = rows[strange].to(torch.float64)
        wild = torch.where(torch.isfinite(wild).all(dim=1, keepdim=True), wild, 0.0)
        largest = wild.abs().amax(dim=1, keepdim=True).clamp(min=1.0)
        rows[strange] = (wild / largest).to(rows.dtype)
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    factor = (layout.row * (1 - 2.0**-36) * scale) / (scale * norms).clamp(min=layout.row_bound)
    width = _padded(layout.side, 16)
    out = torch.empty((len(rows), width), dtype=torch.float64, device=rows.device)
    integers = out[:, : layout.n_features]
    if rows.dtype == torch.float32 and layout.row < 2**22 and 1e-15 <= layout.row_bound <= 1e15:
        # integers below 2^24 are exact in float32, the factor is finite, and half the memory moves
        shrunk = (factor * (1 - 2.0**-20)).to(torch.float32)
        integers.copy_(torch.mul(rows, shrunk[:, None]).trunc_())
    else:
        torch.mul(rows, factor[:, None], out=integers)
        integers.trunc_()
    out[:, layout.n_features : layout.side - 1] = torch.trunc(targets * layout.target)
    out[:, layout.side - 1] = layout.constant
    out[:, layout.side :] = 0.0
    return out


class _DigitSum:
    r"""The sum of v v^T for paired Fourier features, in products of signed bytes.

    Every integer is written in base 256 with digits in [-128, 127]. A digit is a row of a long
    matrix D, which has one column per record, and the sum follows from the symmetric product D D^T.
    The product is exact in int32 below 2^17 columns. Its parts are added in int64, and the digits
    are combined once, at the end.

    Notes
    -----
    Sensitivity
        A pair (cos, sin) is scaled by the radius of the row / sqrt(pairs). It is kept only if its
        computed square is at most 1 - 2^-21 times its share radius^2 / pairs. Otherwise, and if it
        is not a number, it becomes zero. The square errs by at most two roundings, 2^-23, and
        truncation shrinks, so integer pairs are inside their shares and every record is inside the
        ball, however inaccurate the cosine of the device is. The norm of a row is not needed.
    """

    def __init__(self, recipe: Recipe, device: Any, fill: Any = None, product: Any = None) -> None:
        layout = self.layout = recipe.layout
        features = recipe.features
        assert isinstance(features, FourierFeatures)
        frequencies, amplitudes = features.tables_[np.dtype(recipe.dtype)]
        table, scale = torch.as_tensor(frequencies, device=device), float(amplitudes.ravel()[0])
        inside = recipe.domain.columns is not None and features.most_input_ >= 1
        self._table, self._limit = table.T, None if inside else features.most_input_
        half = layout.n_features // 2
        self._planes = 2 if layout.row / math.sqrt(half) < 32_639 else 3
        # smaller by 2^-20, so that no pair is dropped because its square was rounded
        longest = max(scale * math.sqrt(half), layout.row_bound)
        self._factor = layout.row * scale * (1 - 2.0**-20) / longest
        self._bound = layout.row**2 / half * (1 - 2.0**-21)
        self._fill, self._product = fill or _fill, product or _add_product
        self._used = self._planes * layout.n_features + _TAIL_PLANES * (layout.n_targets + 1)
        width, tiles = _padded(self._used, _TILE), -(-self._used // _TILE)
        widest = max(layout.n_features, len(table))
        self._columns = 1 << min(16, max(11, int(math.log2(2**27 / widest))))
        self.block_rows = self._columns * min(8, max(1, 2**26 // (self._columns * len(table))))
        self._pairs = _tile_pairs(tiles, device)
        # enough programs to fill a GPU, but no more, because each ends by writing its tile
        self._share = self._columns
        while len(self._pairs) * (self._columns // self._share) < 700 and self._share > 8192:
            self._share //= 2
        self._phases = torch.empty((half, self._columns), dtype=torch.float32, device=device)
        self._digits = torch.zeros((width, self._columns), dtype=torch.int8, device=device)
        self._sum = torch.zeros((width, width), dtype=torch.int64, device=device)

    @staticmethod
    def covers(recipe: Recipe) -> bool:
        """Whether these are single-precision Fourier features of one amplitude, and not too many."""
        features = recipe.features
        return (
            isinstance(features, FourierFeatures)
            and _one_amplitude(features)
            and recipe.dtype == "float32"
            and recipe.layout.row
            <= 2**20  # integers that are exact in float32 and fit in three bytes
            and recipe.layout.side <= 4500
        )

    def add(self, X: Any, targets: Any) -> None:
        """Add rows."""
        layout = self.layout
        if self._limit is not None:  # so that phases stay finite
            X = X.clamp(-self._limit, self._limit)
        ends = torch.trunc(targets * layout.target).to(torch.int32).T
        ends = torch.cat((ends, torch.full_like(ends[:1], layout.constant)))
        tail = torch.cat(_digits_of(ends, _TAIL_PLANES))
        first = self._planes * layout.n_features
        for start in range(0, len(X), self._columns):
            rows = X[start : start + self._columns]
            size = len(rows)
            torch.mm(self._table, rows.T, out=self._phases[:, :size])
            self._fill(self._phases, self._digits, self._factor, self._bound, self._planes)
            self._digits[first : self._used, :size] = tail[:, start : start + size]
            if size < self._columns:
                self._digits[:, size:] = 0
            parts = -(-size // self._share)
            self._product(self._digits, self._sum, self._pairs, self._share, parts)

    def total(self) -> Any:
        """Return the sum over all rows, int64."""
        return self._joined(self._joined(_mirrored(self._sum)).T)

    def _joined(self, digits: Any) -> Any:
        """Combine the digit rows of the features, then those of the targets and the constant."""
        m, k = self.layout.n_features, self.layout.n_targets + 1
        tail = digits[self._planes * m : self._used].reshape(_TAIL_PLANES, k, -1)
        features = digits[: self._planes * m].reshape(self._planes, m, -1)
        return torch.cat([sum(v << 8 * p for p, v in enumerate(part)) for part in (features, tail)])


def _tile_pairs(tiles: int, device: Any) -> Any:
    """Return the positions of the tiles on and above the diagonal, as an array (pairs, 2)."""
    return torch.triu_indices(tiles, tiles, dtype=torch.int32, device=device).T.contiguous()


def _padded(size: int, step: int) -> int:
    """Round up to a multiple of the step, because matrix units are slow on unaligned rows."""
    return -(-size // step) * step


def _digits_of(integers: Any, planes: int) -> list[Any]:
    """Return balanced digits in base 256, the lowest first."""
    out = []
    for _ in range(planes):
        out.append(integers.to(torch.int8))
        integers = (integers + 128) >> 8
    return out


def _mirrored(upper: Any) -> Any:
    """Return the symmetric matrix whose upper triangle is given."""
    return torch.triu(upper) + torch.triu(upper, 1).T


def _fill(phases: Any, digits: Any, factor: float, bound: float, planes: int) -> None:
    """Write the digits of cosines and sines, plane by plane, on the GPU."""
    count = phases.numel()
    kernel, _ = _kernels()
    kernel[(-(-count // 1024),)](phases, digits, count, factor, bound, planes=planes, block=1024)


def _add_product(digits: Any, total: Any, pairs: Any, share: int, parts: int) -> None:
    """Add D D^T over the first ``parts * share`` columns, for these pairs of tiles, on the GPU."""
    sizes = {"share": share, "tile": _TILE, "num_warps": 4, "num_stages": 3}
    _, kernel = _kernels()
    kernel[(len(pairs), parts)](digits, total, pairs, len(total), digits.shape[1], **sizes)


# Triton compiles the next two functions; they never run as Python.


def _fill_kernel(phases, digits, count, factor, bound, planes: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def,name-defined]
    i = tl.program_id(0) * block + tl.arange(0, block)
    inside = i < count
    phase = tl.load(phases + i, mask=inside, other=0.0)
    c = tl.cos(phase) * factor
    s = tl.sin(phase) * factor
    fine = c * c + s * s <= bound  # False for NaN
    a = tl.where(fine, c, 0.0).to(tl.int32)  # rounds towards zero
    b = tl.where(fine, s, 0.0).to(tl.int32)
    for p in tl.static_range(planes):
        tl.store(digits + 2 * p * count + i, a.to(tl.int8), mask=inside)
        tl.store(digits + (2 * p + 1) * count + i, b.to(tl.int8), mask=inside)
        a = (a + 128) >> 8
        b = (b + 128) >> 8


def _product_kernel(digits, total, pairs, width, step, share: tl.constexpr, tile: tl.constexpr):  # type: ignore[no-untyped-def,name-defined]
    pair = pairs + 2 * tl.program_id(0)
    m = (tl.load(pair) * tile + tl.arange(0, tile)).to(tl.int64)
    n = (tl.load(pair + 1) * tile + tl.arange(0, tile)).to(tl.int64)
    k = tl.program_id(1) * share + tl.arange(0, tile)
    left = digits + m[:, None] * step + k[None, :]
    right = digits + n[None, :] * step + k[:, None]
    part = tl.zeros((tile, tile), dtype=tl.int32)
    for _ in range(0, share, tile):
        part = tl.dot(tl.load(left), tl.load(right), part, out_dtype=tl.int32)
        left += tile
        right += tile
    where = total + m[:, None] * width + n[None, :]
    tl.atomic_add(where, part.to(tl.int64), sem="relaxed")  # exact in integers, whatever the order


@functools.cache
def _kernels() -> tuple[Any, Any]:
    """Return the two Triton kernels. They are compiled when they are first called."""
    return triton.jit(_fill_kernel), triton.jit(_product_kernel)


@functools.cache
def _kernels_run(device: Any) -> bool:
    """Whether the kernels compile on this device and multiply extreme digits exactly (cached)."""
    if triton is None:
        return False
    try:
        phases = torch.linspace(-9, 9, 64 * 2048, device=device).reshape(64, 2048)
        digits = torch.full((2 * _TILE, 2048), -128, dtype=torch.int8, device=device)
        digits[1::2] = 127
        total = torch.zeros((2 * _TILE, 2 * _TILE), dtype=torch.int64, device=device)
        for _ in range(2):
            wide = digits.to(torch.float64)
            expected = torch.triu(wide @ wide.T).to(torch.int64)
            _add_product(digits, total.zero_(), _tile_pairs(2, device), 1024, 2)
            if not torch.equal(torch.triu(total), expected):
                return False
            _fill(phases, digits, 1e4, 1e9, 2)
    except Exception as error:
        logger.info("the GPU kernels can't be compiled here: %s", type(error).__name__)
        return False
    return True
