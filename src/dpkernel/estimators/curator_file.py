"""The file that keeps the answers of a curator, safe against races, crashes and restarts.

It is an SQLite file with the fitted function, the key of its noise and every answer that was given.
It is as secret as the training data, so the file and its lock are created readable by their owner
only. An answer is given only after it is committed (rollback journal, ``synchronous=EXTRA``), under
the same two locks as a ledger file, so no process can give another answer to the same question.

One case is not handled: a copy of the file, or a restored older file, that is asked other
questions. Its noise is then drawn again, so that both files together cost as much as two curators.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sqlite3
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpkernel.foundations.errors import CuratorError, LedgerError
from dpkernel.foundations.types import JSON, Array
from dpkernel.privacy.ledger_place import mounted_alone, side_lock

APPLICATION = 0x64706B63  # "dpkc"
VERSION = 1

Answer = tuple[Array, float | Array, bool]  # point, value, whether it told something new

_TABLES = """
CREATE TABLE curator (id INTEGER PRIMARY KEY CHECK (id = 1), header TEXT NOT NULL, arrays BLOB NOT NULL);
CREATE TABLE answers (
    number INTEGER PRIMARY KEY, point BLOB NOT NULL UNIQUE, value REAL NOT NULL, new INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class CuratorFile:
    """The file of one curator."""

    path: Path
    timeout: float = 30.0

    def create(self, header: JSON, arrays: dict[str, Array]) -> None:
        """Create the file in one step. Raise if it exists."""
        packed = io.BytesIO()
        np.savez(packed, **arrays)  # type: ignore[arg-type]
        draft = self.path.with_name(f".{self.path.name}-{uuid.uuid4().hex}")
        try:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            with self._opened(draft) as connection:
                connection.executescript(_TABLES)
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                row = (json.dumps(header, allow_nan=False), packed.getvalue())
                connection.execute("INSERT INTO curator VALUES (1, ?, ?)", row)
            os.link(draft, self.path)  # fails if the name is taken
            _sync_folder(self.path.parent)
        except OSError as error:
            raise CuratorError(
                f"{self.path.name} can't be created ({error.strerror}). The curator was fitted and its"
                " budget is spent, but nothing was answered."
            ) from error
        finally:
            draft.unlink(missing_ok=True)

    def refuse_if_there(self) -> None:
        """Raise if the file exists, or if its folder does not."""
        if self.path.exists():
            raise CuratorError(_TAKEN.format(self.path.name))
        if not self.path.parent.is_dir() or not os.access(self.path.parent, os.W_OK):
            raise CuratorError(
                f"The folder of {self.path.name} is missing or can't be written to. Nothing was spent."
            )

    def read(self) -> tuple[JSON, dict[str, Array]]:
        """Return what ``create`` was given."""
        with self._connection() as connection:
            header, packed = connection.execute("SELECT header, arrays FROM curator").fetchone()
        with np.load(io.BytesIO(packed), allow_pickle=False) as archive:
            return json.loads(header), {name: archive[name] for name in archive.files}

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Hold both locks. At the end, either all added answers are committed or none."""
        try:
            with side_lock(self.path, self.timeout, 0o600), self._connection() as connection:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield Session(connection, self.path.name)
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        with contextlib.suppress(sqlite3.Error):
                            connection.execute("ROLLBACK")
                    raise
        except LedgerError as error:
            raise CuratorError(
                f"{self.path.name} can't be locked: another process is answering, or its folder can't"
                " be written to. Nothing was answered; try again."
            ) from error

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if not self.path.is_file():
            raise CuratorError(f"There is no curator file {self.path.name}, or it can't be read.")
        if mounted_alone(self.path):
            raise CuratorError(
                f"{self.path.name} is mounted here without its folder, so a crash could lose answers."
                " Mount the folder that holds it."
            )
        with self._opened(self.path) as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION or version != VERSION:
                raise CuratorError(
                    f"{self.path.name} is not a curator's file, or is from another version of dpkernel."
                )
            yield connection

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[sqlite3.Connection]:
        connection = None
        try:
            uri = f"{path.absolute().as_uri()}?mode=rw"
            connection = sqlite3.connect(uri, uri=True, timeout=self.timeout, isolation_level=None)
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA synchronous = EXTRA")
            yield connection
        except sqlite3.Error as error:
            raise CuratorError(
                f"{self.path.name} can't be used as a curator's file ({error}). Nothing was answered."
            ) from error
        finally:
            if connection is not None:
                connection.close()


@dataclass(frozen=True)
class Session:
    """A locked file."""

    connection: sqlite3.Connection
    name: str

    def answers(self, after: int) -> list[Answer]:
        """Return the answers beyond the first ``after``, in the order in which they were given."""
        rows = self.connection.execute(
            "SELECT number, point, value, new FROM answers WHERE number > ? ORDER BY number",
            (after,),
        ).fetchall()
        (total,) = self.connection.execute("SELECT count(*) FROM answers").fetchone()
        if total != after + len(rows) or [row[0] for row in rows] != list(
            range(after + 1, total + 1)
        ):
            raise CuratorError(
                f"Answers of {self.name} are missing. Nothing was answered; restore the file from a"
                " backup that is not older than the last answer."
            )
        return [(np.frombuffer(point), _value(value), bool(new)) for _, point, value, new in rows]

    def add(self, number: int, answer: Answer) -> None:
        """Record one answer."""
        point, value, new = answer
        stored = value.tobytes() if isinstance(value, np.ndarray) else value
        self.connection.execute(
            "INSERT INTO answers VALUES (?, ?, ?, ?)", (number, point.tobytes(), stored, int(new))
        )


def _value(stored: Any) -> float | Array:
    """Return an answer: a number, or an array of one number per target."""
    return np.frombuffer(stored) if isinstance(stored, bytes) else float(stored)


_TAKEN = (
    "The file {0} exists already. Nothing was spent; open it with PrivateCurator.open, or choose another"
    " name."
)


def _sync_folder(folder: Path) -> None:
    """Make a new file name durable, on systems where folders can be synced."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
