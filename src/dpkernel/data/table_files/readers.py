"""Readers of table files, block by block. Whatever the size of a file, one block is in memory.

Errors name the file but never its content. All of them occur before anything is spent.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import itertools
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpkernel.data.blocks import arrow_batches
from dpkernel.data.cells import arrow_cells
from dpkernel.data.table_files.spelling import PLAIN, Spelling
from dpkernel.foundations.errors import DataError, ParameterError

FILE_ROWS = 8192  # the rows of a block of a file
CELL_CHARACTERS = 2**17 - 1  # a longer cell of a CSV file counts as empty
_BLOCK_CELLS = 2**19  # cells per block of a file with many columns: some 50 MB of text
_UNDECODED = "\ufffd"  # what stands for bytes that are no text
Columns = dict[str, Any]
Tell = Callable[[float], None]


@dataclass(frozen=True)
class TableFile:
    """A table in a file: its column names, and a function that reads some columns in blocks.

    Attributes
    ----------
    name : str
        The name of the file, without its folder.
    header : tuple of str
        The names of the columns.
    kinds : tuple of str
        The type of each column, if the file states it (Parquet, Arrow, NPZ). It is empty if only the
        values could tell (CSV).
    read : callable
        ``read(names, tell)`` yields blocks {name: cells}. It calls ``tell(share)`` with the share of the
        file that was read so far, from 0 to 1.
    not_numbers : frozenset of str
        The columns whose stated type can't be numbers: dates, times, lists and tables.
    dates : frozenset of str
        Those of ``not_numbers`` that are dates.
    spelling : Spelling
        How texts spell numbers.
    """

    name: str
    header: tuple[str, ...]
    kinds: tuple[str, ...]
    read: Callable[[Sequence[str], Tell], Iterator[Columns]]
    not_numbers: frozenset[str] = frozenset()
    dates: frozenset[str] = frozenset()
    spelling: Spelling = PLAIN


def open_table(
    path: str | Path,
    *,
    delimiter: str | None = None,
    kind: str | None = None,
    encoding: str | None = None,
    spelling: Spelling = PLAIN,
) -> TableFile:
    """Return the table in a file with the ending (or ``kind``) .csv, .tsv, .parquet, .arrow or .npz.

    A CSV or TSV file may be compressed (.csv.gz, .csv.bz2, .csv.xz, .csv.zst).

    Parameters
    ----------
    path : path
        The file.
    delimiter : str, optional
        The character between the fields of a text file; by default the one that its ending stands for.
    kind : str, optional
        The kind of the file, if its ending does not say it.
    encoding : str, optional
        The encoding of a CSV file, if it is not UTF-8.
    spelling : Spelling
        How texts spell numbers.
    """
    path = Path(path)
    inner, ending = _ending(path, kind)
    if ending not in FORMATS:
        raise ParameterError(
            f"{path.name} has an unknown ending. Known are {', '.join(FORMATS)}; for another ending,"
            " name the format with --format. Save a spreadsheet as CSV in UTF-8."
        )
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise ParameterError(
            "The delimiter must be one character, but not a quotation mark or a line break."
        )
    if ending in _DELIMITERS:
        separator = delimiter or _DELIMITERS[ending]
        found = _open_csv(path, separator, _checked_encoding(encoding))
    elif encoding is not None or inner is not path:
        what = "--encoding is" if encoding is not None else "Compressed files are read"
        raise ParameterError(f"{what} for CSV and TSV files only. Got {path.name}.")
    else:
        found = _OPENERS[ending](path)
    return replace(found, spelling=spelling)


def _ending(path: Path, kind: str | None) -> tuple[Path, str]:
    """Return the name of a file without the ending of its compression, and the ending before that."""
    inner = Path(path.stem) if path.suffix.lower() in _COMPRESSED else path
    return inner, (kind or inner.suffix.lstrip(".")).lower()


def is_text_file(path: str | Path, kind: str | None = None) -> bool:
    """Return whether a file is a CSV or TSV file, by its name or the stated kind.

    Parameters
    ----------
    path : path
        The file; only its name is looked at.
    kind : str, optional
        The stated kind of the file, which comes before its ending.
    """
    return _ending(Path(path), kind)[1] in _DELIMITERS


def _checked_encoding(name: str | None) -> str:
    """Return the encoding of a file; refuse one in which a cell could change the text of other rows.

    A byte or an escape sequence of such an encoding belongs to what follows it. In UTF-8 and in
    encodings with one byte per character, a line is decoded in the same way whatever precedes it.
    """
    if name is None or name.lower() in ("utf-8", "utf8", "utf-8-sig", "ascii"):
        return "utf-8-sig"
    try:
        b"a".decode(name, "replace")  # raises for an encoding that is not one of texts
        decode = codecs.lookup(name).incrementaldecoder
        single = [decode("replace").decode(bytes([byte])) for byte in range(256)] if decode else []
    except (LookupError, ValueError, TypeError):
        raise ParameterError(f"--encoding {name!r} is not known to Python.") from None
    if [len(text) for text in single] != [1] * 256 or single[10] != "\n" or single[13] != "\r":
        raise ParameterError(
            f"--encoding must be utf-8 or have one byte per character, as latin-1 and cp1252 do, because"
            f" in {name!r} one cell could change the text of other rows. Convert the file to UTF-8."
        )
    return name


_ZIP = "PK\x03\x04"  # how a spreadsheet of Excel or LibreOffice begins


def _open_csv(path: Path, separator: str, encoding: str) -> TableFile:
    # an invalid byte becomes a replacement character, so that no file is refused because of a cell
    raw = path.open("rb")
    binary = _COMPRESSED.get(path.suffix.lower(), lambda same: same)(raw)
    file = io.TextIOWrapper(binary, encoding=encoding, errors="replace", newline="")
    rows = _undamaged(_csv_rows(file, separator, path.name), path.name)
    header = next(rows, None)
    if header is None:
        file.close()
        raise DataError(f"{path.name} is empty: its first line must name the columns.")
    names = tuple(name.strip() for name in header)
    if names[0].startswith(_ZIP):
        file.close()
        raise DataError(
            f"{path.name} is a spreadsheet or an archive, whatever its name says. Save a spreadsheet"
            " as CSV in UTF-8."
        )
    if any("\0" in name for name in names):
        file.close()
        raise DataError(
            f"The names of the columns of {path.name} have zero bytes, as in UTF-16. Save the file as"
            " CSV in UTF-8."
        )
    if any(_UNDECODED in name for name in names):
        file.close()
        raise DataError(
            f"The names of the columns of {path.name} can't be read. Say how the file was written, for"
            " example --encoding cp1252 for one from Windows."
        )

    def read(wanted: Sequence[str], tell: Tell) -> Iterator[Columns]:
        places = {name: names.index(name) for name in wanted}
        size = path.stat().st_size
        with raw, file:
            while block := _take(rows, _rows_a_block(len(names))):
                yield _csv_columns(block, len(names), places, path.name)
                if size:
                    tell(min(raw.tell() / size, 1.0))

    return TableFile(path.name, names, (), read)


def _open_zst(raw: Any) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ParameterError(
            "Reading a .zst file needs the package 'pyarrow'. Install it with: pip install pyarrow"
        ) from None
    return io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"))


def _undamaged(rows: Iterator[list[str]], name: str) -> Iterator[list[str]]:
    """Yield rows; refuse a compressed file that ends early or is none."""
    try:
        yield from rows
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile):
        raise DataError(f"{name} is damaged, or is not compressed as its name says.") from None
    except OSError as error:
        if error.errno is not None:  # bz2 and zstd have no error class of their own
            raise
        raise DataError(f"{name} is damaged, or is not compressed as its name says.") from None


class _OpenRecord(Exception):  # noqa: N818 (becomes one)
    """A record does not end at the end of its line."""


def _csv_rows(file: Any, separator: str, name: str) -> Iterator[list[str]]:
    """Yield one row per line, the header first; refuse a malformed file without quoting it.

    A quotation mark can't join lines, because a cell would then swallow the rows after it. The
    first line that is not blank is the header. A later blank line is a row with an empty cell if
    the file has one column. If there are more columns, it is skipped.
    """
    lines = _Lines(file)
    rows = csv.reader(lines, delimiter=separator, strict=True)
    width = 0
    while True:
        try:
            row = lines.next_of(rows)
        except StopIteration:
            return
        except (csv.Error, _OpenRecord):
            raise DataError(
                f"{name} can't be read as a table: in some line a quotation mark is never closed or"
                " stands inside a quoted field. A record is one line. Nothing was spent."
            ) from None
        if not row and width == 1:
            row = [""]
        if row:
            width = width or len(row)
            yield row


class _Lines:
    """The lines of a file for a csv reader, which may take only one line per record."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._taken = True
        self._length = 0
        self._limit = CELL_CHARACTERS

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if self._taken:
            raise _OpenRecord
        self._taken = True
        line: str = next(self._file)
        self._length = len(line)
        if self._length > self._limit:
            csv.field_size_limit(self._length)  # for the whole process, until the line is read
        return line

    def next_of(self, rows: Iterator[list[str]]) -> list[str]:
        """Return the next row of the reader; a cell that is too long becomes empty."""
        self._limit = csv.field_size_limit()
        self._taken, self._length = False, 0
        try:
            row = next(rows)
        finally:
            csv.field_size_limit(self._limit)
        if self._length > CELL_CHARACTERS:
            row = [cell if len(cell) <= CELL_CHARACTERS else "" for cell in row]
        return row


def _rows_a_block(n_columns: int) -> int:
    return max(1, min(FILE_ROWS, _BLOCK_CELLS // n_columns))


def _take(rows: Iterator[list[str]], count: int) -> list[list[str]]:
    return list(itertools.islice(rows, count))


def _csv_columns(block: list[list[str]], width: int, places: dict[str, int], name: str) -> Columns:
    try:
        columns = list(zip(*block, strict=True))
    except ValueError:
        columns = []
    if len(columns) != width:
        raise DataError(
            f"A row of {name} has another number of fields than its header. Nothing was spent."
        )
    return {column: columns[place] for column, place in places.items()}


def _open_arrow(path: Path, format: str = "ipc") -> TableFile:
    try:
        import pyarrow
        import pyarrow.dataset
    except ImportError:
        raise ParameterError(
            f"Reading {path.name} needs the package 'pyarrow'. Install it with: pip install pyarrow"
        ) from None
    if not path.exists():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    try:
        table = pyarrow.dataset.dataset(path, format=format)
        names, types = tuple(table.schema.names), table.schema.types
        n_rows = table.count_rows()
    except (pyarrow.ArrowException, OSError, ValueError):
        raise DataError(f"{path.name} is not a {format} file, or it is damaged.") from None

    def read(wanted: Sequence[str], tell: Tell) -> Iterator[Columns]:
        step = _rows_a_block(len(wanted))
        seen = 0
        try:
            for batch in arrow_batches(table, wanted, step, format):
                if batch.num_rows:
                    yield {name: arrow_cells(batch.column(name), list) for name in wanted}
                    seen += batch.num_rows
                    tell(seen / n_rows)
        except (pyarrow.ArrowException, OSError):
            raise DataError(f"{path.name} is damaged. Nothing was spent.") from None

    of = pyarrow.types
    typed = list(zip(names, types, strict=True))
    unfit = frozenset(name for name, kind in typed if of.is_temporal(kind) or of.is_nested(kind))
    dates = frozenset(name for name, kind in typed if of.is_date(kind) or of.is_timestamp(kind))
    return TableFile(path.name, names, tuple(str(kind) for kind in types), read, unfit, dates)


def _open_parquet(path: Path) -> TableFile:
    return _open_arrow(path, "parquet")


def _open_npz(path: Path) -> TableFile:
    """Open an NPZ archive: a vector is one column, and a matrix A gives the columns A0, A1, ..."""
    members = _npz_members(path)
    lengths = {shape[0] for shape, _ in members.values()}
    if len(lengths) != 1:
        raise DataError(f"{path.name} must hold arrays with the same number of rows, at least one.")
    (n_rows,) = lengths
    source: dict[str, tuple[str, int | None]] = {}
    kinds = []
    for name, (shape, dtype) in members.items():
        for place in [None] if len(shape) == 1 else range(shape[1]):
            column = name if place is None else f"{name}{place}"
            if column in source:
                raise DataError(f"{path.name} gives two columns the same name.")
            source[column] = (name, place)
            kinds.append(str(dtype))

    def read(wanted: Sequence[str], tell: Tell) -> Iterator[Columns]:
        used = dict.fromkeys(source[name][0] for name in wanted)
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path))
            parts = {
                name: (stack.enter_context(archive.open(f"{name}.npy")), *members[name])
                for name in used
            }
            for stream, *_ in parts.values():
                _npy_header(stream)
            step = _rows_a_block(len(source))
            for start in range(0, n_rows, step):
                count = min(step, n_rows - start)
                blocks = {n: _npy_rows(*part, count, path.name) for n, part in parts.items()}
                yield {
                    name: blocks[source[name][0]]
                    if source[name][1] is None
                    else blocks[source[name][0]][:, source[name][1]]
                    for name in wanted
                }
                tell((start + count) / n_rows)

    return TableFile(path.name, tuple(source), tuple(kinds), read)


def _npz_members(path: Path) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Return the shape and the dtype of every array, read from the headers alone."""
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as stream:
                    shape, fortran, dtype = _npy_header(stream)
                if dtype.hasobject or dtype.kind not in "fiubU" or len(shape) not in (1, 2):
                    raise DataError(
                        f"{path.name} must hold vectors and matrices of numbers or texts, not Python"
                        " objects."
                    )
                if fortran and len(shape) == 2 and min(shape) > 1:
                    raise DataError(
                        f"{path.name} holds a matrix in column order. Save it as np.ascontiguousarray."
                    )
                found[name.removesuffix(".npy")] = (shape, dtype)
    except (zipfile.BadZipFile, ValueError, EOFError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path.name} is not an NPZ archive, or it is damaged.") from None
    return found


def _npy_header(stream: Any) -> tuple[tuple[int, ...], bool, Any]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    return np.lib.format.read_array_header_2_0(stream)


def _npy_rows(stream: Any, shape: tuple[int, ...], dtype: Any, count: int, name: str) -> Any:
    width = 1 if len(shape) == 1 else shape[1]
    wanted = count * width * dtype.itemsize
    try:
        data = stream.read(wanted)
    except (zipfile.BadZipFile, EOFError):
        data = b""
    if len(data) != wanted:
        raise DataError(f"{name} is damaged: an array is shorter than it says. Nothing was spent.")
    rows = np.frombuffer(data, dtype).reshape(count, *shape[1:])
    return rows.tolist() if dtype.kind == "U" else rows


_COMPRESSED: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zst,
}
_DELIMITERS = {"csv": ",", "tsv": "\t", "tab": "\t"}
_OPENERS: dict[str, Callable[[Path], TableFile]] = {
    "parquet": _open_parquet,
    "arrow": _open_arrow,
    "feather": _open_arrow,
    "npz": _open_npz,
}
FORMATS = (*_DELIMITERS, *_OPENERS)
