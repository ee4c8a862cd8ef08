"""Where a shared ledger lives: one SQLite file, safe against races, crashes and full disks.

Every call opens its own connection, so a ledger has no state that a fork, a thread or a pickle could
tear; it is a path and a data set's name. A spend is one ``BEGIN IMMEDIATE`` transaction: read what
was spent, decide, insert, commit with ``synchronous=FULL`` on a rollback journal (write-ahead
logging breaks on network drives). Only a committed spend hands out noise, so ``kill -9`` at any moment
loses none; one that was committed and never drawn stays spent.

What is not handled: a file system whose locks do not work (some network drives), and a person who
edits or restores the file. Keep it where the data are, under the same access rules.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpkernel.errors import LedgerError
from dpkernel.ledger_store import Settings, Spend
from dpkernel.types import Budget, Neighbours

APPLICATION = 0x64706B6C  # "dpkl", at byte 68 of the file

# Step i brings a file from version i to version i + 1.
_MIGRATIONS = (
    """
    CREATE TABLE datasets (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, epsilon REAL, delta REAL,
        neighbours TEXT NOT NULL, accounting TEXT NOT NULL, created TEXT NOT NULL);
    CREATE TABLE spends (
        id INTEGER PRIMARY KEY AUTOINCREMENT, dataset INTEGER NOT NULL REFERENCES datasets(id),
        number INTEGER NOT NULL, time TEXT NOT NULL, label TEXT NOT NULL, part TEXT,
        claim_epsilon REAL, claim_delta REAL, private INTEGER NOT NULL, plan TEXT NOT NULL,
        UNIQUE (dataset, number));
    CREATE TABLE draws (
        spend INTEGER NOT NULL REFERENCES spends(id), label TEXT NOT NULL, time TEXT NOT NULL,
        PRIMARY KEY (spend, label));
    """,
    """
    ALTER TABLE datasets ADD COLUMN renyi_order REAL;
    CREATE TABLE ceilings (
        dataset INTEGER NOT NULL REFERENCES datasets(id), time TEXT NOT NULL,
        epsilon REAL NOT NULL, delta REAL NOT NULL, reason TEXT NOT NULL);
    """,
)
VERSION = len(_MIGRATIONS)


def now() -> str:
    """Return the time as ISO text, UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True)
class FileStore:
    """The spends of one data set in a ledger file."""

    path: Path
    dataset: str
    read_only: bool = False
    timeout: float = 30.0

    # --- opening --------------------------------------------------------------------------------

    @classmethod
    def open(
        cls, path: Path, dataset: str | None, settings: Settings, *, read_only: bool, timeout: float
    ) -> FileStore:
        """Open or create the file and the data set in it; ``settings`` must agree with the file."""
        path = path.absolute()
        if read_only and not _exists(path):
            raise LedgerError(f"There is no ledger file {path.name} to read, or no right to.")
        store = cls(path, dataset or "", read_only, timeout)
        with store._connection() as connection:
            if not read_only:
                store._migrate(connection)
            names = [row[0] for row in connection.execute("SELECT name FROM datasets ORDER BY id")]
            if dataset is None:
                if len(names) != 1:
                    known = ", ".join(repr(name) for name in names) or "none yet"
                    raise LedgerError(
                        f"{path.name} holds {len(names)} data sets ({known}). Say which one with"
                        " dataset=..."
                    )
                store = cls(path, names[0], read_only, timeout)
            elif dataset not in names:
                if read_only:
                    raise LedgerError(f"{path.name} holds no data set {dataset!r}.")
                store._create(connection, settings)
        return store

    def _migrate(self, connection: sqlite3.Connection) -> None:
        with _transaction(connection):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            for step in range(version, VERSION):
                for statement in _MIGRATIONS[step].split(";"):
                    if statement.strip():
                        connection.execute(statement)
            if version < VERSION:
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")

    def _create(self, connection: sqlite3.Connection, settings: Settings) -> None:
        budget = settings.budget
        with _transaction(connection):
            connection.execute(
                "INSERT OR IGNORE INTO datasets"
                " (name, epsilon, delta, neighbours, accounting, created, renyi_order)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    self.dataset,
                    None if budget is None else budget.epsilon,
                    None if budget is None else budget.delta,
                    settings.neighbours.value,
                    settings.accounting,
                    now(),
                    settings.renyi_order,
                ),
            )

    # --- the interface of a store -----------------------------------------------------------------

    def settings(self) -> Settings:
        """Return the ceiling, relation and rule on record."""
        with self._connection() as connection:
            return self._settings(connection)

    def append(self, spend: Spend, admit: Callable[[Settings, Sequence[Spend]], None]) -> int:
        """Check and record one spend as one transaction; return its number."""
        self._refuse_if_read_only()
        with self._connection() as connection, _transaction(connection):
            earlier = self._spends(connection)
            admit(self._settings(connection), earlier)
            number = len(earlier) + 1
            connection.execute(
                "INSERT INTO spends (dataset, number, time, label, part, claim_epsilon, claim_delta,"
                " private, plan) VALUES ((SELECT id FROM datasets WHERE name = ?),"
                " ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    self.dataset,
                    number,
                    spend.time,
                    spend.label,
                    spend.part,
                    None if spend.claim is None else spend.claim.epsilon,
                    None if spend.claim is None else spend.claim.delta,
                    int(spend.private),
                    json.dumps(spend.plan, allow_nan=False),
                ),
            )
            return number

    def mark_drawn(self, number: int, label: str) -> None:
        """Note that noise of this part of the spend is about to be drawn."""
        with self._connection() as connection, _transaction(connection):
            connection.execute(
                "INSERT OR IGNORE INTO draws (spend, label, time) SELECT s.id, ?, ? FROM spends s"
                " JOIN datasets d ON s.dataset = d.id WHERE d.name = ? AND s.number = ?",
                (label, now(), self.dataset, number),
            )

    def spends(self) -> list[Spend]:
        """Return all spends, in the order in which they were committed."""
        with self._connection() as connection:
            return self._spends(connection)

    def change_ceiling(
        self, budget: Budget, reason: str, admit: Callable[[Settings, Sequence[Spend]], None]
    ) -> None:
        """Set another ceiling, if what was spent fits under it; the change is kept on record."""
        self._refuse_if_read_only()
        with self._connection() as connection, _transaction(connection):
            admit(self._settings(connection), self._spends(connection))
            where = (budget.epsilon, budget.delta, self.dataset)
            connection.execute("UPDATE datasets SET epsilon = ?, delta = ? WHERE name = ?", where)
            connection.execute(
                "INSERT INTO ceilings (dataset, time, epsilon, delta, reason)"
                " VALUES ((SELECT id FROM datasets WHERE name = ?), ?, ?, ?, ?)",
                (self.dataset, now(), budget.epsilon, budget.delta, reason),
            )

    def ceilings(self) -> list[tuple[str, Budget, str]]:
        """Return every change of the ceiling: time, new ceiling, reason."""
        with self._connection() as connection:
            rows = connection.execute(
                "SELECT c.time, c.epsilon, c.delta, c.reason FROM ceilings c"
                " JOIN datasets d ON c.dataset = d.id WHERE d.name = ? ORDER BY c.rowid",
                (self.dataset,),
            )
            return [(time, Budget(epsilon, delta), reason) for time, epsilon, delta, reason in rows]

    # --- reading rows -----------------------------------------------------------------------------

    def _settings(self, connection: sqlite3.Connection) -> Settings:
        row = connection.execute(
            "SELECT epsilon, delta, neighbours, accounting, renyi_order FROM datasets WHERE name = ?",
            (self.dataset,),
        ).fetchone()
        if row is None:
            raise LedgerError(f"{self.path.name} holds no data set {self.dataset!r}.")
        epsilon, delta, neighbours, accounting, order = row
        budget = None if epsilon is None else Budget(epsilon, delta)
        return Settings(budget, Neighbours.resolve(neighbours), accounting, order)

    def _spends(self, connection: sqlite3.Connection) -> list[Spend]:
        drawn: dict[int, list[str]] = {}
        for spend, label in connection.execute("SELECT spend, label FROM draws ORDER BY rowid"):
            drawn.setdefault(spend, []).append(label)
        rows = connection.execute(
            "SELECT s.id, s.number, s.time, s.label, s.part, s.claim_epsilon, s.claim_delta,"
            " s.private, s.plan FROM spends s JOIN datasets d ON s.dataset = d.id"
            " WHERE d.name = ? ORDER BY s.number",
            (self.dataset,),
        )
        return [
            Spend(
                label=label,
                plan=json.loads(plan),
                claim=None if epsilon is None else Budget(epsilon, delta),
                private=bool(private),
                time=time,
                part=part,
                drawn=tuple(drawn.get(identity, ())),
                number=number,
            )
            for identity, number, time, label, part, epsilon, delta, private, plan in rows
        ]

    # --- connections and their errors ----------------------------------------------------------------

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise LedgerError(
                f"{self.path.name} was opened with read_only=True, so nothing can be spent from it."
            )

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        mode = "ro" if self.read_only else "rwc"
        uri = f"{self.path.as_uri()}?mode={mode}"
        connection = None
        try:
            connection = sqlite3.connect(uri, uri=True, timeout=self.timeout, isolation_level=None)
            connection.execute(f"PRAGMA busy_timeout = {math.ceil(1000 * self.timeout)}")
            if not self.read_only:
                connection.execute("PRAGMA journal_mode = DELETE")
                connection.execute("PRAGMA synchronous = FULL")
            self._check_owner(connection)
            yield connection
        except sqlite3.Error as error:
            raise LedgerError(self._explain(error)) from error
        finally:
            if connection is not None:
                connection.close()

    def _check_owner(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application != APPLICATION and (tables or application):
            raise LedgerError(
                f"{self.path.name} is a database of another program, not a ledger. Nothing was"
                " changed; choose another file name."
            )
        if version > VERSION:
            raise LedgerError(
                f"{self.path.name} was written by a newer dpkernel (schema {version}; this one knows"
                f" {VERSION}). Update dpkernel; nothing was changed."
            )
        if self.read_only and version < VERSION:
            raise LedgerError(
                f"{self.path.name} has the older schema {version}. Open it once without"
                " read_only=True to bring it up to date."
            )

    def _explain(self, error: sqlite3.Error) -> str:
        text = str(error)
        name = self.path.name
        if "locked" in text or "busy" in text:
            return (
                f"{name} was busy for {self.timeout:g} seconds: another process is spending. Nothing"
                " was spent; try again, or open it with a longer timeout."
            )
        if "full" in text or "disk I/O" in text:
            return (
                f"{name} could not be written: the disk is full, or a limit on file sizes is reached"
                f" ({text}). No noise was drawn. Make room and look at the history before you try"
                " again."
            )
        if "readonly" in text or "unable to open" in text:
            return (
                f"{name} can't be opened for writing ({text}): the folder does not exist or does not"
                " allow it. Nothing was spent; read_only=True reads a ledger without writing."
            )
        return (
            f"{name} is not a ledger file, or it is damaged ({text}). Nothing was changed; restore it"
            " from a backup that is not older than the last spend."
        )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder on the way that may not be entered
        return False


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Hold the write lock from the first read to the commit."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # the journal rolls back on the next open
                connection.execute("ROLLBACK")
        raise
