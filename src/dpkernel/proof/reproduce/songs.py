"""Read the Million Song excerpt of the UCI repository, or download it if there is a network.

It has 515,345 songs, with the year in the first column and 90 audio features after it (Bertin-Mahieux,
2011). UCI states no checksum, so a download is checked for its shape and its range of years. Its SHA-256
is kept beside it, and a file that changed since then is refused.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import shutil
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from dpkernel.foundations.errors import DataError
from dpkernel.foundations.types import Array
from dpkernel.proof.reproduce.design import generator

URL = "https://archive.ics.uci.edu/static/public/203/yearpredictionmsd.zip"
FILE = "YearPredictionMSD.zip"
SHAPE = (515_345, 91)
COLUMNS = 90
YEARS = (1922, 2011)
# exceptions raised by reading a file that is of another kind, damaged or locked
_NOT_SONGS = (
    KeyError,
    ValueError,
    TypeError,
    StopIteration,
    EOFError,
    OSError,
    RuntimeError,  # an encrypted archive, an unknown compression
    zipfile.BadZipFile,
    zlib.error,
)


@dataclass(frozen=True)
class Songs:
    """Features, years, and a digest of both that identifies the table."""

    X: Array
    year: Array
    digest: str

    def excerpt(self, rows: int) -> Songs:
        """Return a uniform excerpt with a fixed seed, or the table itself if it is not larger."""
        if len(self.year) <= rows:
            return self
        chosen = np.sort(generator(4).permutation(len(self.year))[:rows])
        return _of(self.X[chosen], self.year[chosen])

    def sample(self, rows: int, draws: np.random.Generator) -> tuple[Array, Array]:
        """Return random rows without replacement, for one repetition."""
        if len(self.year) < rows:
            raise DataError(
                f"The Million Song figures need {rows} rows, but the table has {len(self.year)}."
            )
        chosen = draws.permutation(len(self.year))[:rows]
        return self.X[chosen], self.year[chosen]


def load_songs(path: Path) -> Songs:
    """Return the songs in a file: UCI's text or zip, a CSV with or without a header, or NPZ (X, y)."""
    if not path.is_file():
        raise DataError(
            f"There is no file {str(path)!r}. Pass the Million Song table as UCI text, CSV or NPZ."
        )
    try:
        if path.suffix.lower() == ".npz":
            with np.load(path, allow_pickle=False) as file:
                X, year = np.asarray(file["X"], float), np.asarray(file["y"], float)
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                name = next(n for n in archive.namelist() if n.lower().endswith((".txt", ".csv")))
                with archive.open(name) as member:
                    X, year = _parse(io.TextIOWrapper(member, encoding="utf-8"))
        else:
            with path.open(encoding="utf-8") as text:
                X, year = _parse(text)
    except _NOT_SONGS:
        raise DataError(
            f"{path.name!r} can't be read as songs. Each line must hold the year and then {COLUMNS}"
            " numbers, or the file must be an NPZ with the arrays X and y."
        ) from None
    if X.ndim != 2 or X.shape[1] != COLUMNS or year.shape != (len(X),):
        raise DataError(
            f"{path.name!r} must hold {COLUMNS} features and a year per song. Got the shapes"
            f" {X.shape} and {year.shape}."
        )
    fine = np.isfinite(X).all() and np.all((year >= YEARS[0]) & (year <= YEARS[1]))
    if not fine:
        raise DataError(
            f"{path.name!r} must hold finite features and years in {YEARS[0]} .. {YEARS[1]}."
        )
    return _of(X, year)


def _of(X: Array, year: Array) -> Songs:
    return Songs(X, year, hashlib.sha256(X.tobytes() + year.tobytes()).hexdigest())


def fetch_songs(folder: Path, url: str = URL) -> Path:
    """Return the path of UCI's file in the folder, after downloading and checking it if needed."""
    path, note = folder / FILE, folder / f"{FILE}.sha256"
    if path.exists() and note.exists():
        if note.read_bytes().split()[:1] != [_sha256(path).encode()]:
            raise DataError(
                f"{str(path)!r} has changed since it was downloaded: its SHA-256 is another one. Delete"
                " it to download it again."
            )
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{FILE}.part"
    try:
        _download(url, part)
        found = load_songs(part)
        if len(found.year) != SHAPE[0]:
            raise DataError(
                f"The downloaded table has {len(found.year)} rows, but the Million Song table of UCI has"
                f" {SHAPE[0]}. Try again, or pass a file."
            )
        note.write_text(f"{_sha256(part)}  {FILE}\n", encoding="ascii")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _download(url: str, path: Path) -> None:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer, path.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise DataError(
            "The Million Song table can't be downloaded from here. Pass its file as data=PATH or --data"
            f" PATH. UCI has it at {URL}."
        ) from error


def _parse(text: IO[str]) -> tuple[Array, Array]:
    """Return the features and years of lines with the year first. A header of words is skipped."""
    first = text.readline()
    try:
        float(first.split(",")[0])
        head = [first]
    except ValueError:
        head = []

    def lines() -> Iterator[str]:
        yield from head
        yield from text

    rows = np.loadtxt(lines(), delimiter=",", ndmin=2)
    return np.ascontiguousarray(rows[:, 1:]), np.ascontiguousarray(rows[:, 0])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
