"""The container of a model file: what it gives back, and that hostile ones are refused in bounds."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dpkernel.foundations.archive import read_archive, write_archive
from dpkernel.foundations.errors import ModelFileError, ParameterError


@pytest.fixture
def kept(tmp_path):
    path = tmp_path / "kept.dpk"
    write_archive(path, {"format": 2}, {"coef": np.arange(12.0), "intercept": np.array(0.5)})
    return path


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as found:
        return {info.filename: found.read(info) for info in found.infolist()}


def zipped(path: Path, parts: dict[str, bytes] | list[tuple[str, bytes]], **options) -> Path:
    """Write the parts as they are, with the manifest that they come with."""
    pairs = parts.items() if isinstance(parts, dict) else parts
    with zipfile.ZipFile(path, "w", **options) as out:
        for name, content in pairs:
            out.writestr(zipfile.ZipInfo(name) if not options else name, content)
    return path


def test_no_array_of_objects_or_texts_is_written(tmp_path):
    for values in (np.array([{}], dtype=object), np.array(["a"]), np.zeros(2, complex)):
        with pytest.raises((ParameterError, ValueError), match="must hold numbers|Object arrays"):
            write_archive(tmp_path / "m.dpk", {}, {"a": values})
    with pytest.raises(ParameterError, match="can't be called '../a'"):
        write_archive(tmp_path / "m.dpk", {}, {"../a": np.ones(2)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "f4", "i8", "i4", "u1", "?"])
def test_arrays_come_back_as_they_were(tmp_path, dtype):
    arrays = {
        "empty": np.ones((0, 3), dtype),
        "number": np.ones((), dtype),
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)).astype(dtype),
        "strided": np.arange(12).astype(dtype)[::3],
    }
    write_archive(tmp_path / "m.dpk", {"a": 1}, arrays)
    found = read_archive(tmp_path / "m.dpk", 2**20).arrays
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[name], values)
        assert found[name].shape == values.shape and found[name].flags.writeable
        assert found[name].dtype == np.dtype(dtype).newbyteorder("<")


# hostile containers: all of them small, and none may take more memory than a few of its sizes


def npy(text: bytes, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An array file with this description; padded as NumPy does."""
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + content


def describe(shape: str, descr: str = "'<f8'", fortran: str = "False") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"
    return text.encode()


BOMB = b"0" * 2**25


def hostile(parts: dict[str, bytes], path: Path) -> dict[str, tuple[Path, str]]:
    """Return files of format 2 whose manifests are right, or of format 1, by what is wrong."""
    found: dict[str, tuple[Path, str]] = {}

    def manifest(content: dict[str, bytes]) -> dict[str, bytes]:
        content = {name: value for name, value in content.items() if name != "manifest.json"}
        hashes = {name: hashlib.sha256(value).hexdigest() for name, value in content.items()}
        return {**content, "manifest.json": json.dumps({"sha256": hashes}).encode()}

    def put(name: str, message: str, change: dict[str, bytes], **options) -> None:
        target = path / f"{name}.dpk"
        found[name] = zipped(target, manifest({**parts, **change}), **options), message

    deflated = {"compression": zipfile.ZIP_DEFLATED}
    put("compressed", "is compressed", {"coef.npy": npy(describe(f"({2**22},)"), BOMB)}, **deflated)
    put("compressed-header", "is compressed", {"header.json": BOMB}, **deflated)
    old = {"header.npy": npy(describe(f"({2**25},)", "'|u1'"), BOMB)}
    found["old-bomb"] = zipped(path / "old.npz", old, **deflated), "is compressed"
    put("huge-shape", "shape of its part coef", {"coef.npy": npy(describe("(1000000000, 999999)"))})
    put("overflow", "shape of its part coef", {"coef.npy": npy(describe(f"({2**32}, {2**32})"))})
    put("negative", "of a kind that no model has", {"coef.npy": npy(describe("(-1,)"))})
    put(
        "objects",
        "of a kind that no model has",
        {"coef.npy": npy(describe("(1,)", "'|O'"), b"\x80")},
    )
    fields = npy(describe("(1,)", "[('a', '<f8')]"), bytes(8))
    put("fields", "of a kind that no model has", {"coef.npy": fields})
    code = npy(b"__import__('os').system('true')")
    put("code", "of a kind that no model has", {"coef.npy": code})
    put("version-2", "not an array in NumPy's format", {"coef.npy": npy(b"", version=b"\x02\x00")})
    put("no-array", "not an array in NumPy's format", {"coef.npy": b"hello"})
    truth = {"flags.npy": npy(describe("(2,)", "'|b1'"), b"\x00\x07")}
    put("truth", "truth values other than 0 and 1", truth)
    for place, name in enumerate(
        ("../coef.npy", "/etc/a.npy", "a/b.npy", "C:a.npy", "a.py", "a.npy/")
    ):
        put(f"path-{place}", "a name that no part can have", {name: b""})
    put("many", "directory has an impossible size", {f"a{i}.npy": b"" for i in range(5000)})
    put("no-json", "JSONDecodeError", {"header.json": b"\x00\x01"})
    put("list", "not a JSON object", {"header.json": b"[1]"})
    put("deep", "nested too deep", {"header.json": b"[" * 100_000 + b"]" * 100_000})
    put("wide", "too many parts", {"header.json": b'{"a":[' + b"[]," * 1_200_000 + b"1]}"})
    put("long", "header has more than", {"header.json": b" " * (2**24 + 1)})
    put("nan", "not finite", {"header.json": b'{"format": NaN}'})
    put("infinite", "not finite", {"header.json": b'{"format": 1e999}'})
    put("digits", "ValueError", {"header.json": b'{"format": ' + b"9" * 100_000 + b"}"})
    put("twice-in-json", "the same name twice", {"header.json": b'{"format": 2, "format": 2}'})
    bare = {name: value for name, value in parts.items() if name != "manifest.json"}
    found["no-manifest"] = zipped(path / "bare.dpk", bare), "has no manifest"
    short = zipped(path / "short.dpk", {**bare, "manifest.json": b'{"sha256": {}}'})
    found["short-manifest"] = short, "manifest does not list its parts"
    found["no-header"] = zipped(path / "none.dpk", {"a.npy": b""}), "has no header"
    with pytest.warns(UserWarning, match="Duplicate name"):
        twice = zipped(path / "twice.dpk", [*parts.items(), ("coef.npy", parts["coef.npy"])])
    found["twice"] = twice, "the part coef.npy twice"
    link = path / "link.dpk"
    with zipfile.ZipFile(link, "w") as out:
        for name, content in parts.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o120777 if name == "coef.npy" else 0o100644) << 16
            out.writestr(info, content)
    found["link"] = link, "is a link or a folder"
    return found


def patched(kept: Path, path: Path, change) -> Path:
    """Write the archive with bytes of its central directory changed."""
    content = bytearray(kept.read_bytes())
    start = content.index(b"PK\x01\x02")
    change(content, start)
    path.write_bytes(content)
    return path


def test_hostile_files_get_one_sentence_and_little_memory(kept, tmp_path):
    cases = hostile(members(kept), tmp_path)

    def encrypted(content, start):
        content[start + 8] |= 1

    def larger(content, start):
        content[start + 20 : start + 28] = struct.pack("<2L", 2**31, 2**31)

    def too_long(content, start):
        last = content.rindex(b"PK\x01\x02")
        content[last + 20 : last + 28] = struct.pack("<2L", 2**20, 2**20)

    def overlapping(content, start):
        second = content.index(b"PK\x01\x02", start + 4)
        content[second + 42 : second + 46] = struct.pack("<L", 10)

    def huge_directory(content, start):
        content[-10:-6] = struct.pack("<L", 2**31)

    def commented(content, start):
        content[-2:] = struct.pack("<H", 5)
        content += b"notes"

    for change, message in (
        (encrypted, "is encrypted"),
        (larger, "parts overlap"),
        (too_long, "parts are longer than the file"),
        (overlapping, "overlap"),
        (huge_directory, "directory has an impossible size"),
        (commented, "end is missing"),
    ):
        name = change.__name__
        cases[name] = patched(kept, tmp_path / f"{name}.dpk", change), message
    content = kept.read_bytes()
    (tmp_path / "zip64.dpk").write_bytes(content[:-22] + b"PK\x06\x07" + bytes(16) + content[-22:])
    cases["zip64"] = tmp_path / "zip64.dpk", "form for huge archives"
    os.mkfifo(tmp_path / "pipe.dpk")
    cases["pipe"] = tmp_path / "pipe.dpk", "not a regular file"

    for name, (path, message) in cases.items():
        tracemalloc.start()
        with pytest.raises(ModelFileError, match=message) as caught:
            read_archive(path, 2**31)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20 + 4 * path.stat().st_size, name
        assert str(caught.value).count("\n") == 0 and str(caught.value).endswith(".")


def test_a_file_that_is_too_large_is_refused_by_its_size(kept, tmp_path):
    path = tmp_path / "sparse.dpk"
    with path.open("wb") as file:
        file.truncate(2**33)
    with pytest.raises(ModelFileError, match="more than the max_bytes=2147483648 allowed"):
        read_archive(path, 2**31)
    with pytest.raises(ModelFileError, match="more than the max_bytes=100 allowed"):
        read_archive(kept, 100)
