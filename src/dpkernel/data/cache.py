"""Where the result of a pass is kept for the next one: in memory, or in an unnamed file on disk.

Small tables stay in memory. Larger ones go to a temporary file that has no name, that only its owner
may read, and that disappears when the process ends, however it ends. The operating system keeps as
much of it in free memory as it can spare. What fits nowhere is not kept, and is computed again in
each pass. Values come back with the bits that were put in.

Not handled: encryption. What is deleted from a disk can be recovered from it until it is
overwritten, as with any temporary file; ``set_cache(disk=0)`` keeps everything off the disk.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import is_whole

_SMALL = 2**27  # kept in memory, if that is at most _SHARE_SMALL of what is free
_SHARE_SMALL = 1 / 8
_SHARE_LARGE = 1 / 2  # of the free memory, for what the disk has no room for
_SHARE_DISK = 1 / 2  # of the free disk

Block = tuple[Any, ...]


@dataclass(frozen=True)
class CacheLimits:
    """How much one fit may keep, in bytes. None asks the machine.

    Attributes
    ----------
    memory, disk : int or None
        The largest number of bytes in main memory and in the temporary file.
    folder : str or None
        The folder of the temporary file. None is the system's folder for such files.
    """

    memory: int | None = None
    disk: int | None = None
    folder: str | None = None

    def __post_init__(self) -> None:
        for name in ("memory", "disk"):
            value = getattr(self, name)
            if value is not None and (not is_whole(value) or value < 0):
                allowed = "None or an int >= 0, in bytes"
                raise ParameterError(parameter_message("set_cache", name, allowed, value))
        if self.folder is not None and not Path(self.folder).is_dir():
            allowed = "None or a folder that exists"
            raise ParameterError(parameter_message("set_cache", "folder", allowed, self.folder))


_limits: CacheLimits | None = None


def set_cache(
    memory: int | None = None, disk: int | None = None, folder: str | os.PathLike[str] | None = None
) -> CacheLimits:
    """Limit what a fit keeps between its passes over a table.

    Parameters
    ----------
    memory : int, optional
        The largest number of bytes that are kept in main memory. By default 128 MB or an eighth of
        the free memory, whichever is less; and up to half of it where the disk has no room.
    disk : int, optional
        The largest number of bytes in the temporary file; 0 keeps everything off the disk. By
        default half of the free disk.
    folder : path, optional
        The folder of the temporary file. By default the system's folder for such files.

    Returns
    -------
    CacheLimits
        The limits that now hold in this process. A process that never calls this function uses
        the environment variables DPKERNEL_MEMORY, DPKERNEL_DISK and DPKERNEL_SCRATCH.

    Notes
    -----
    Limits change the time that a fit takes and not its result, except for SGD. It needs rows by
    their numbers; where these can't be kept, it reads the rows in a fixed order or refuses random
    batches.

    Examples
    --------
    >>> import dpkernel
    >>> dpkernel.set_cache(memory=10**8, disk=0)  # keep at most 100 MB, and nothing on the disk
    CacheLimits(memory=100000000, disk=0, folder=None)
    >>> dpkernel.set_cache()  # ask the machine again
    CacheLimits(memory=None, disk=None, folder=None)
    """
    global _limits
    _limits = CacheLimits(memory, disk, None if folder is None else os.fspath(folder))
    return _limits


def cache_limits() -> CacheLimits:
    """Return the limits of this process."""
    if _limits is not None:
        return _limits
    given: dict[str, Any] = {}
    for name in ("memory", "disk"):
        text = os.environ.get(f"DPKERNEL_{name.upper()}")
        if text:
            given[name] = int(text) if text.isdecimal() else math.nan  # NaN is refused
    return CacheLimits(folder=os.environ.get("DPKERNEL_SCRATCH") or None, **given)


@dataclass(frozen=True)
class Room:
    """How many bytes are left in memory, on the disk and, where that is full, in memory."""

    memory: int
    disk: int
    more_memory: int
    folder: str | None = None

    @classmethod
    def found(cls) -> Room:
        """Return what the limits and this machine allow."""
        limits = cache_limits()
        free = free_memory()
        memory = min(_SMALL, int(_SHARE_SMALL * free)) if limits.memory is None else limits.memory
        more = int(_SHARE_LARGE * free) if limits.memory is None else limits.memory
        disk = int(_SHARE_DISK * free_disk(limits.folder)) if limits.disk is None else limits.disk
        return cls(memory, disk, more, limits.folder)

    def take(self, size: int) -> tuple[str, Room]:
        """Return where this many bytes are kept ("memory", "disk" or ""), and the room that is left."""
        rest = replace(self, memory=self.memory - size, more_memory=self.more_memory - size)
        if size <= self.memory:
            return "memory", rest
        if size <= self.disk:
            return "disk", replace(self, disk=self.disk - size)
        if size <= self.more_memory:
            return "memory", replace(rest, memory=0)
        return "", self


def free_memory() -> int:
    """Return the number of free bytes of main memory, as this process may use them."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(s.split()[1]) for s in lines if s.startswith("MemAvailable")]
    with contextlib.suppress(OSError, ValueError):  # the limit of a container
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text())
        found.append(max(0, most - int((group / "memory.current").read_text())))
    if not found:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    return min(found, default=2**31)


def free_disk(folder: str | None) -> int:
    """Return the number of free bytes in the folder of temporary files.

    A folder that is kept in main memory has at most as many as are free there.
    """
    try:
        where = folder or tempfile.gettempdir()
        state = os.statvfs(where)
    except (OSError, AttributeError):  # no such folder, or a system without this call
        return 0
    free = state.f_frsize * state.f_bavail
    return min(free, free_memory()) if _in_memory(where) else free


def _in_memory(folder: str) -> bool:
    """Return whether a folder is kept in main memory (tmpfs)."""
    here, kinds = os.path.realpath(folder), {}
    with contextlib.suppress(OSError, IndexError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount, kind, *_ = line.split()
            inside = here == mount or here.startswith(mount.rstrip("/") + "/")
            kinds.update({mount: kind} if inside else {})
    return bool(kinds) and kinds[max(kinds, key=len)] in ("tmpfs", "ramfs")


def raw_bytes(values: Any) -> memoryview:
    """Return the bytes of a contiguous array, without a copy."""
    return memoryview(values.reshape(-1).view(np.uint8))


class NoRoomError(Exception):
    """The disk has no room for what was to be kept there."""


@contextlib.contextmanager
def _on_disk() -> Iterator[None]:
    """Raise NoRoomError for every failure of the disk."""
    try:
        yield
    except OSError as error:
        raise NoRoomError(error.strerror) from error


def _reserved(size: int, folder: str | None) -> Any:
    """Return an unnamed temporary file with room for this many bytes."""
    with _on_disk():
        file = tempfile.TemporaryFile(dir=folder, buffering=0)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
        except OSError:
            file.close()
            raise
        return file


class Spool:
    """Blocks of arrays in an unnamed temporary file, written once and read as often as needed.

    Raises NoRoomError at once if the disk has no room for ``size`` bytes.
    """

    def __init__(self, size: int, folder: str | None = None) -> None:
        self._file = _reserved(size, folder)
        self._blocks: list[list[tuple[int, tuple[int, ...], Any]]] = []
        self._end = 0

    def append(self, block: Block) -> None:
        """Write a block of arrays."""
        places = []
        for values in map(np.ascontiguousarray, block):
            places.append((self._end, values.shape, values.dtype))
            rest = raw_bytes(values)
            while len(rest):
                with _on_disk():
                    written = os.pwrite(self._file.fileno(), rest, self._end)
                rest, self._end = rest[written:], self._end + written
        self._blocks.append(places)

    def __iter__(self) -> Iterator[Block]:
        for places in self._blocks:
            yield tuple(self._read(*place) for place in places)

    def _read(self, start: int, shape: tuple[int, ...], dtype: Any) -> Any:
        values = np.empty(shape, dtype)
        rest = raw_bytes(values)
        while len(rest):
            count = os.preadv(self._file.fileno(), [rest], start)
            if not count:
                raise OSError("The temporary file with the features of this fit was cut short.")
            rest, start = rest[count:], start + count
        return values


def kept_blocks(blocks: Iterable[Block], place: str, size: int, folder: str | None) -> Any:
    """Return blocks that can be read again: a list, or a spool where ``place`` is "disk"."""
    if place == "memory":
        return list(blocks)
    spool = Spool(size, folder)
    for block in blocks:
        spool.append(block)
    return spool


def long_arrays(n_rows: int, like: Block, place: str, folder: str | None) -> Block:
    """Return one array of zeros per array of a block, with this many rows, in memory or on disk."""
    shapes = [((n_rows, *np.shape(v)[1:]), np.asarray(v).dtype) for v in like]
    if place == "memory":
        return tuple(np.zeros(shape, dtype) for shape, dtype in shapes)
    found = []
    for shape, dtype in shapes:
        with _reserved(math.prod(shape) * dtype.itemsize, folder) as file:
            found.append(np.memmap(file, dtype, "r+", shape=shape))  # the map keeps the file
    return tuple(found)
