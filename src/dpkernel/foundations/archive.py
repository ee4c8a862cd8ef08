"""The container of a model file: one JSON header and named arrays, read within bounds.

It is an uncompressed zip archive with these members::

    header.json     one JSON object
    NAME.npy        an array each, in NumPy's format 1.0
    manifest.json   the SHA-256 of every other member

The reader trusts nothing. It compares every size with the size of the file before it takes memory.
It refuses compressed, encrypted, repeated, overlapping and strangely named members, links, archives
with anything before or after them, and arrays of Python objects. Nothing is unpacked to disk.

Not handled: a forger who writes a new manifest. The hashes only find accidents and partial changes.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import stat
import struct
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpkernel.foundations.errors import ModelFileError, ParameterError
from dpkernel.foundations.types import JSON, Array

HEADER, MANIFEST = "header.json", "manifest.json"
MOST_HEADER = 2**24  # largest number of bytes of a JSON member
MOST_PARTS = 1_000_000  # largest number of lists, objects and texts in a JSON member
MOST_DEPTH = 64
MOST_MEMBERS = 4096
_DIRECTORY = 512 * MOST_MEMBERS  # largest size in bytes
_MEMBER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,119}\.npy")
_END = struct.Struct("<4s4H2LH")  # the last record of a zip archive without a comment
_ARRAY = re.compile(
    rb"\{'descr': '(<f8|<f4|<i8|<i4|\|u1|\|b1)', 'fortran_order': (False|True),"
    rb" 'shape': \(((?:\d{1,15}, ?){0,7}(?:\d{1,15},?)?)\), \} *\n"
)


# what zipfile and json raise for malformed bytes; RecursionError is a RuntimeError
_DAMAGE = (
    ValueError,
    KeyError,
    EOFError,
    OSError,
    RuntimeError,
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class Archive:
    """The content of a container.

    Attributes
    ----------
    header : dict
        The JSON header.
    arrays : dict
        The arrays by name.
    hashes : dict
        The SHA-256 of each part, by name.
    has_manifest : bool
        Whether the container lists these hashes itself; one of format 1 does not.
    """

    header: JSON
    arrays: dict[str, Array]
    hashes: dict[str, str]
    has_manifest: bool


def require_folder(path: Path) -> None:
    """Raise if the folder of a file that is to be written does not exist."""
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"There is no folder '{path.parent}' for {path.name}. Create it, or choose another one."
        )


def write_archive(path: Path, header: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Write a container; an existing file is replaced in one step or stays as it is.

    Parameters
    ----------
    path : path
        The container.
    header : mapping
        JSON values.
    arrays : mapping
        Arrays by name.
    """
    require_folder(path)
    members = {HEADER: _header_bytes(header)}
    for name, values in arrays.items():
        members[f"{name}.npy"] = _array_bytes(name, values)
    manifest = {name: hashlib.sha256(content).hexdigest() for name, content in members.items()}
    members[MANIFEST] = (json.dumps({"sha256": manifest}, indent=1) + "\n").encode()
    draft = path.with_name(f".{path.name}-{uuid.uuid4().hex}.part")
    try:
        with draft.open("xb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for name, content in members.items():
                    archive.writestr(zipfile.ZipInfo(name), content)  # dated 1 January 1980
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read_archive(path: Path, max_bytes: int, *, only_header: bool = False) -> Archive:
    """Return the content of a container, or raise ``ModelFileError``.

    A container of format 1 is a NumPy archive: its header is the array ``header``, and it has no
    manifest.

    Parameters
    ----------
    path : path
        The container.
    max_bytes : int
        The size of the largest container that is read.
    only_header : bool
        Whether to leave out the arrays. Hashes are still compared.
    """
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        raise ModelFileError(f"{path.name} is not a model file: it is not a regular file.")
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(_checked_ends(file, max_bytes)) as archive:
                return _read_members(archive, only_header)
        except _Refused as refused:
            raise ModelFileError(
                f"{path.name} is not a model file of dpkernel, or it is damaged: {refused}."
            ) from None
        except _DAMAGE as error:
            raise ModelFileError(
                f"{path.name} is not a model file of dpkernel, or it is damaged"
                f" ({type(error).__name__})."
            ) from error


class _Refused(ValueError):  # noqa: N818 (becomes one)
    """A problem with a container, described in half a sentence."""


def _checked_ends(file: IO[bytes], max_bytes: int) -> IO[bytes]:
    """Return the file if it is one zip archive, from first to last byte, of bounded size."""
    size = os.fstat(file.fileno()).st_size
    if size > max_bytes:
        raise _Refused(f"it has {size} bytes, more than the max_bytes={max_bytes} allowed")
    if size < _END.size or file.read(4) != b"PK\x03\x04":
        raise _Refused("it does not begin like a model file")
    file.seek(-min(size, _END.size + 20), os.SEEK_END)
    tail = file.read()
    if len(tail) > _END.size and tail[:4] == b"PK\x06\x07":
        raise _Refused("its directory is in the form for huge archives")
    magic, disk, first, here, count, length, start, comment = _END.unpack(tail[-_END.size :])
    if magic != b"PK\x05\x06" or comment or disk or first or here != count:
        raise _Refused("its end is missing or cut off")
    if count > MOST_MEMBERS or length > _DIRECTORY or start + length + _END.size != size:
        raise _Refused("its directory has an impossible size")
    file.seek(0)
    return file


def _read_members(archive: zipfile.ZipFile, only_header: bool) -> Archive:
    members = _checked_members(archive)
    old = HEADER not in members
    if old and "header.npy" not in members:
        raise _Refused("it has no header")
    if not old and MANIFEST not in members:
        raise _Refused("it has no manifest")
    name = "header.npy" if old else HEADER
    if members[name].file_size > MOST_HEADER:
        raise _Refused(f"its header has more than {MOST_HEADER} bytes")
    content = archive.read(members.pop(name))
    if old:
        text = _read_array(io.BytesIO(content), len(content), "header").tobytes()
        hashes = {}
    else:
        text, hashes = content, {HEADER: hashlib.sha256(content).hexdigest()}
    stated = None if old else _stated_hashes(archive, members.pop(MANIFEST), members)
    arrays = {}
    for name, info in members.items():
        with archive.open(info) as stream:
            if only_header:
                digest = hashlib.sha256()
                while part := stream.read(2**20):
                    digest.update(part)
                hashes[name] = digest.hexdigest()
                continue
            key = name.removesuffix(".npy")
            arrays[key], hashes[name] = _hashed_array(stream, info.file_size, key)
    if stated is not None:
        changed = sorted(name for name in hashes if hashes[name] != stated[name])
        if changed:
            raise _Refused(f"its part {changed[0]} was changed after it was written")
    return Archive(read_json(text), arrays, hashes, not old)


def _checked_members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the members by name, after checking every statement of the directory."""
    found: dict[str, zipfile.ZipInfo] = {}
    place = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        name = info.orig_filename
        if name not in (HEADER, MANIFEST) and not _MEMBER.fullmatch(name):
            raise _Refused("it has a part with a name that no part can have")
        if name in found:
            raise _Refused(f"it has the part {name} twice")
        if info.flag_bits & 0x1:
            raise _Refused(f"its part {name} is encrypted")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise _Refused(f"its part {name} is compressed")
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
            raise _Refused(f"its part {name} is a link or a folder")
        if info.header_offset < place:
            raise _Refused("its parts overlap")
        place = info.header_offset + 30 + len(name) + info.file_size
        found[name] = info
    whole = sum(info.file_size for info in found.values())
    if max(place, whole) > archive.start_dir:
        raise _Refused("its parts are longer than the file")
    return found


def _stated_hashes(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, members: Mapping[str, Any]
) -> dict[str, str]:
    if info.file_size > MOST_HEADER:
        raise _Refused("its manifest is too long")
    stated = read_json(archive.read(info)).get("sha256")
    if not isinstance(stated, dict) or set(stated) != {HEADER, *members}:
        raise _Refused("its manifest does not list its parts")
    return stated


def _hashed_array(stream: IO[bytes], size: int, name: str) -> tuple[Array, str]:
    content = stream.read(size)
    return _read_array(io.BytesIO(content), size, name), hashlib.sha256(content).hexdigest()


def _read_array(stream: io.BytesIO, size: int, name: str) -> Array:
    """Return an array in NumPy's format, after comparing its shape with the number of bytes."""
    start = stream.read(10)
    length = int.from_bytes(start[8:], "little")
    if start[:8] != b"\x93NUMPY\x01\x00" or length > 1024:
        raise _Refused(f"its part {name} is not an array in NumPy's format 1.0")
    found = _ARRAY.fullmatch(stream.read(length))
    if found is None:
        raise _Refused(f"its part {name} is an array of a kind that no model has")
    kind, fortran, shape_text = found.groups()
    shape = tuple(int(part) for part in shape_text.replace(b",", b" ").split())
    dtype = np.dtype(kind.decode())
    if math.prod(shape) * dtype.itemsize != size - 10 - length:
        raise _Refused(f"the shape of its part {name} does not fit its size")
    flat: Array = np.frombuffer(stream.getbuffer()[10 + length :], dtype=dtype)
    if dtype == np.bool_ and flat.view(np.uint8).max(initial=0) > 1:
        raise _Refused(f"its part {name} holds truth values other than 0 and 1")
    return flat.reshape(shape, order="F" if fortran == b"True" else "C").copy()


def _array_bytes(name: str, values: Array) -> bytes:
    values = np.asarray(values)
    values = values.astype(values.dtype.newbyteorder("<"), copy=False)
    if not _MEMBER.fullmatch(f"{name}.npy"):
        raise ParameterError(f"A part of a model file can't be called {name!r}.")
    out = io.BytesIO()
    np.lib.format.write_array(
        out, np.ascontiguousarray(values).reshape(values.shape), (1, 0), allow_pickle=False
    )
    content = out.getvalue()
    length = int.from_bytes(content[8:10], "little")
    if not _ARRAY.fullmatch(content[10 : 10 + length]):
        raise ParameterError(
            f"The part {name!r} of a model file must hold numbers. Got dtype {values.dtype}."
        )
    return content


def _header_bytes(header: Mapping[str, Any]) -> bytes:
    try:
        content = json.dumps(header, allow_nan=False).encode()
        read_json(content)
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError(
            f"The header of a model file must consist of plain JSON values, with at most"
            f" {MOST_HEADER} bytes and {MOST_DEPTH} levels of nesting ({error})."
        ) from error
    return content


def read_json(text: bytes, what: str = "its header") -> JSON:
    """Return the JSON object in a text of bounded size, without repeated names or infinities.

    ``what`` names the text in error messages.

    Raises
    ------
    ValueError
        If the text is not such an object.
    """
    if len(text) > MOST_HEADER:
        raise _Refused(f"{what} has more than {MOST_HEADER} bytes")
    if sum(text.count(mark) for mark in (b"{", b"}", b"[", b"]", b'"')) > 2 * MOST_PARTS:
        raise _Refused(f"{what} has too many parts")
    if _depth(text) > MOST_DEPTH:
        raise _Refused(f"{what} is nested too deep")
    found = json.loads(
        text.decode(),
        object_pairs_hook=partial(_no_repeats, what),
        parse_constant=partial(_no_constant, what),
        parse_float=partial(_finite, what),
    )
    if not isinstance(found, dict):
        raise _Refused(f"{what} is not a JSON object")
    return found


def _depth(text: bytes) -> int:
    """Return an upper bound on the nesting of a JSON text; brackets inside texts do not count."""
    bare = re.sub(rb'"(?:[^"\\]++|\\.)*+"', b"", text)
    depth = most = 0
    for mark in re.findall(rb"[\[\]{}]", bare):
        depth += 1 if mark in b"[{" else -1
        most = max(most, depth)
    return most


def _no_repeats(what: str, pairs: list[tuple[str, Any]]) -> JSON:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Refused(f"{what} contains the same name twice")
    return found


def _no_constant(what: str, name: str) -> Any:
    raise _Refused(f"{what} holds a number that is not finite")


def _finite(what: str, text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _Refused(f"{what} holds a number that is not finite")
    return value
