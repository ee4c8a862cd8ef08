"""The place of a ledger file: its lock, its drafts, and places where spends could be lost."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from dpkernel.foundations.errors import LedgerError

try:
    import fcntl
except ImportError:  # on systems other than POSIX, SQLite's own lock must suffice
    fcntl = None  # type: ignore[assignment]

_MOUNTS = Path("/proc/self/mountinfo")
_YOUNG = 60.0  # seconds in which a draft may not have its lock yet


def exists(path: Path) -> bool:
    """Return whether there is such a file that this process may see."""
    try:
        return path.exists()
    except OSError:  # a parent folder may not be entered
        return False


def check_place(path: Path) -> None:
    """Raise unless this is a file, with content, whose journal will lie beside its only name."""
    try:
        facts = path.stat()
    except OSError as error:
        raise LedgerError(
            f"{path.name} is gone or can't be reached ({error.strerror}). Nothing was spent."
        ) from error
    if not stat.S_ISREG(facts.st_mode):
        kind = "a folder" if stat.S_ISDIR(facts.st_mode) else "not an ordinary file"
        raise LedgerError(
            f"{path.name} is {kind}, so it can't be a ledger. Name the ledger file. Nothing was"
            " changed."
        )
    if facts.st_size == 0:
        raise LedgerError(
            f"{path.name} is empty, which a ledger never is: it was damaged. Nothing was changed;"
            " restore it from a backup that is not older than the last spend."
        )
    if facts.st_nlink > 1:
        _wait_for_one_name(path)
    if mounted_alone(path):
        raise LedgerError(
            f"{path.name} is mounted here without its folder. SQLite keeps its journal beside the"
            " file, where other machines or containers can't see it, so a crash could lose spends."
            " Mount the folder that holds the ledger. Nothing was changed."
        )


def _wait_for_one_name(path: Path) -> None:
    """Raise if the file keeps a second name.

    While a file is created, it has one for a moment; a process that is killed then leaves it.
    """
    for attempt in range(51):
        if path.stat().st_nlink == 1:
            return
        if attempt < 50:
            time.sleep(0.01)
    remove_drafts(path)
    if path.stat().st_nlink > 1:
        raise LedgerError(
            f"{path.name} has several names (hard links). SQLite keeps its journal beside one name,"
            " so a crash could lose spends. Keep one name."
        )


def mounted_alone(path: Path) -> bool:
    """Return whether this file is itself a mount point, as when a container binds a single file."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # not Linux
        return False
    where = os.path.realpath(path)
    points = (line.split(" ")[4] for line in lines if line.count(" ") > 4)
    return any(
        re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point) == where
        for point in points
        if point.startswith("/")
    )


# --- drafts ---------------------------------------------------------------------------------------


def create(path: Path, content: bytes) -> None:
    """Write a new file in one step, or leave the file of another process that was faster.

    The draft is locked while its process lives. So a draft without a lock was left by a process
    that was killed, and the next process that opens the ledger removes it.
    """
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)  # the umask applies
    except OSError as error:
        raise LedgerError(
            f"{path.name} can't be opened for writing ({error.strerror}): the folder does not exist or"
            " does not allow it. Nothing was spent."
        ) from error
    try:
        if fcntl is not None:  # type: ignore[redundant-expr, unused-ignore]
            fcntl.flock(handle, fcntl.LOCK_EX)
        with os.fdopen(os.dup(handle), "wb") as file:
            file.write(content)
        os.fsync(handle)
        _put_in_place(draft, path)
    except OSError as error:
        raise LedgerError(
            f"{path.name} could not be written ({error.strerror}). Nothing was spent."
        ) from error
    finally:
        draft.unlink(missing_ok=True)
        os.close(handle)


def _put_in_place(draft: Path, path: Path) -> None:
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    except OSError:  # no hard links on this file system: rename, one process at a time
        with side_lock(path, 30.0):
            if not exists(path):
                os.rename(draft, path)


def remove_drafts(path: Path) -> None:
    """Remove the drafts of this ledger whose processes were killed."""
    name = re.compile(re.escape(f".{path.name}-") + r"[0-9a-f]{32}(-lock|-journal)?")
    with contextlib.suppress(OSError):
        for draft in [p for p in path.parent.iterdir() if name.fullmatch(p.name)]:
            with contextlib.suppress(OSError):  # gone, or of another user
                if draft.samefile(path) or _abandoned(draft):
                    draft.unlink()


def _abandoned(draft: Path) -> bool:
    """Return whether no process holds the lock of a draft that is too old to be without one."""
    if fcntl is None or time.time() - draft.stat().st_mtime < _YOUNG:
        return False
    handle = os.open(draft, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


# --- the second lock ------------------------------------------------------------------------------


@contextlib.contextmanager
def side_lock(path: Path, timeout: float, mode: int = 0o666) -> Iterator[None]:
    """Hold an exclusive lock on the file NAME-lock beside the ledger, where the system has locks.

    ``mode`` gives the permissions of a new lock file, before the umask of the process applies.
    """
    if fcntl is None:  # type: ignore[unreachable, unused-ignore]
        yield  # type: ignore[unreachable, unused-ignore]
        return
    try:
        handle = os.open(f"{path}-lock", os.O_RDONLY | os.O_CREAT, mode)
    except OSError as error:
        raise LedgerError(
            f"{path.name} can't be opened for writing ({error.strerror}): its folder does not allow it."
            " Nothing was spent; read_only=True reads a ledger without writing."
        ) from error
    try:
        end = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise LedgerError(
                        f"{path.name} was busy for {timeout:g} seconds: another process is spending."
                        " This call did nothing; try again, or open it with a longer timeout."
                    ) from None
                time.sleep(0.001)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)  # after closing alone, a forked child would keep it
    finally:
        os.close(handle)
