"""Torch tensors: checked without a value in any message, and read in blocks on a device or the host.

The module can be imported where torch is not installed; ``torch`` is None then.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from dpkernel.data.blocks import rows_a_block
from dpkernel.foundations.errors import DataError
from dpkernel.foundations.types import Array

_SHARE = 0.5  # of a GPU's free memory that what is kept there may take


def optional(name: str) -> Any:
    """Return a module, or None where it is not installed or broken."""
    with contextlib.suppress(Exception):
        return importlib.import_module(name)
    return None


torch = optional("torch")


def check_tensors(X: Any, y: Any, *, values: bool = True) -> tuple[int, ...]:
    """Raise DataError for tensors that can't be used; return the shape of one target.

    With ``values=False`` missing values are left to a pass that finds them by ``all_finite`` and
    ends before anything is spent.
    """
    if X.is_complex() or X.layout != torch.strided:
        raise DataError("X must be a dense torch tensor of real numbers.")
    if (
        not isinstance(y, torch.Tensor)
        or y.is_complex()
        or X.ndim != 2
        or y.ndim not in (1, 2)
        or X.numel() < 1
        or y.numel() < 1
    ):
        raise DataError("X and y must be torch tensors of shapes (n, d) and (n,) or (n, k).")
    if len(X) != len(y):
        raise DataError(
            f"Found input variables with inconsistent numbers of samples: {[len(X), len(y)]}."
        )
    if values:
        found = [all_finite(*block) for block in device_blocks(X, y, max(2**25 // X.shape[1], 1))]
        require_finite(found)
    return tuple(int(k) for k in y.shape[1:])


def working_device(X: Any) -> Any:
    """Return the tensor's device, or a GPU where the tensor is on the CPU and there is one."""
    if X.device.type == "cpu" and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return X.device


def current(device: Any) -> Any:
    """Make a GPU the current one, because Triton and streams work on the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def room(device: Any, most_bytes: int) -> int:
    """Return how many bytes may be kept: ``most_bytes`` on the CPU, or a share of a GPU's memory."""
    if device.type != "cuda":
        return most_bytes
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(_SHARE * (torch.cuda.mem_get_info(device)[0] + cached))


def joined(blocks: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return one long block of tensors."""
    return tuple(torch.cat(parts) for parts in zip(*blocks, strict=True))


def on_host(rows: Any) -> Array:
    """Return a tensor as a float64 array in main memory."""
    return np.asarray(rows.detach().cpu().double().numpy())


def host_blocks(X: Any, y: Any, times: int) -> Iterator[tuple[Array, Array]]:
    """Yield blocks of rows as float64 arrays, ``times`` as long as those of other tables."""
    step = times * rows_a_block(X.shape[1])
    for start in range(0, len(X), step):
        yield on_host(X[start : start + step]), on_host(y[start : start + step])


def device_blocks(X: Any, y: Any, step: int) -> Iterator[tuple[Any, Any]]:
    """Yield blocks of rows on the working device. Blocks from elsewhere are copied in the background.

    Two buffers: while the device works on one block, the next is copied into the other. Pinned memory
    makes that fast. A block is valid until the next one is asked for.
    """
    device = working_device(X)
    X, y, starts = X.detach(), y.detach(), range(0, len(X), step)
    if device.type != "cuda" or (X.device == device and y.device == device):
        for start in starts:
            yield X[start : start + step].to(device), y[start : start + step].to(device)
        return
    with current(device):
        work, copies = torch.cuda.current_stream(), torch.cuda.Stream()
        buffers = [[torch.empty_like(v[:step], device=device) for v in (X, y)] for _ in range(2)]
        free = [torch.cuda.Event(), torch.cuda.Event()]
        copies.wait_stream(work)
        for place, start in enumerate(starts):
            size = min(step, len(X) - start)
            block = [buffer[:size] for buffer in buffers[place % 2]]
            with torch.cuda.stream(copies):
                copies.wait_event(free[place % 2])  # no wait before it was first recorded
                for part, source in zip(block, (X, y), strict=True):
                    part.copy_(source[start : start + size], non_blocking=True)
            work.wait_stream(copies)
            yield block[0], block[1]
            free[place % 2].record(work)


def all_finite(X: Any, y: Any) -> Any:
    """Return whether all values are finite, as a tensor on the device.

    To read it for every block would make the host wait for the device.
    """
    ends = [torch.isfinite(end) for v in (X, y) for end in torch.aminmax(v)]  # NaN shows in both
    return torch.stack(ends).all()


def require_finite(found: list[Any]) -> None:
    """Raise DataError unless ``all_finite`` held for every block."""
    if not bool(torch.stack(found).all()):
        raise DataError(
            "X or y contains NaN or infinity. Fill missing values with public constants first."
        )
