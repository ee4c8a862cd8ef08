"""The store of a shared ledger: one SQLite file, safe against races, crashes and full disks.

A store is just a path and the name of a data set. Every call opens its own connection, so there is
no state that a fork, a thread or a pickle could corrupt. A spend is one ``BEGIN IMMEDIATE``
transaction: read what was spent, decide, insert, and commit with ``synchronous=EXTRA`` on a
rollback journal (write-ahead logging breaks on network drives). Noise is handed out only after the
commit, so ``kill -9`` or a power cut loses no spend at any moment. A spend that was committed but
never drawn stays spent.

During a transaction a second lock is held, on the file NAME-lock beside the ledger. It is needed
because the operating system drops SQLite's own lock when the same process opens and closes the file
by other means (a backup, a hash). A new file is built under another name and then linked into
place, so an existing ledger is never empty: an empty file is a damaged one. Rows are chained by
hashes, so a row that was removed or edited is noticed. The whole chain is read when a ledger is
opened and then used for the first time, and whenever its history is read. Later spends of the same
process read only the rows that are new to it: they add up the rows that it has read and checked
itself, so an edit in between can't give more budget. A row also holds what the accounting rule
computed for it, because a bound that takes long to compute should not be computed by every process.

Not handled: a file system whose locks do not work (some network drives); a person who restores an
older copy or recomputes the chain; a ledger file that is mounted or moved without its folder (its
journal must lie beside it). Keep the file where the data are, under the same access rules.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpkernel.foundations.errors import LedgerError
from dpkernel.foundations.types import Budget, Neighbours, is_real
from dpkernel.privacy.filters import Price
from dpkernel.privacy.ledger_store import (
    Settings,
    Spend,
    canonical_name,
    canonical_names,
    now,
    order_after_change,
    recorded_name,
)

try:
    import fcntl
except ImportError:  # on systems other than POSIX, SQLite's own lock must suffice
    fcntl = None  # type: ignore[assignment]

APPLICATION = 0x64706B6C  # "dpkl", at byte 68 of the file

# Step i upgrades a file from version i to version i + 1.
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
    ALTER TABLE datasets ADD COLUMN parts TEXT NOT NULL DEFAULT '[]';
    ALTER TABLE spends ADD COLUMN chain TEXT;
    """,
    """
    ALTER TABLE spends ADD COLUMN prices TEXT;
    """,
)
_CHAINED = 2  # the first version in which rows are chained
VERSION = len(_MIGRATIONS)


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
        cls,
        path: Path,
        dataset: str | None,
        settings: Settings | None,
        *,
        read_only: bool,
        timeout: float,
    ) -> FileStore:
        """Open a data set in a file; create it, and the file, if ``settings`` are given."""
        path = path.absolute()
        store = cls(path, "", read_only, timeout)
        if not _exists(path):
            if settings is None or read_only or not dataset:
                raise LedgerError(
                    f"There is no ledger file {path.name}, or no right to read it. To make one, name"
                    " the data set and its ceiling: Ledger(path, dataset=..., budget=Budget(...))."
                )
            store._create_file(canonical_name(dataset, "dataset"), settings)
        with store._connection() as connection:
            if not read_only:
                store._migrate(connection)
            for key in [key for key in _KNOWN if key[0] == path]:
                _KNOWN.pop(key, None)
            names = [row[0] for row in connection.execute("SELECT name FROM datasets ORDER BY id")]
            known = ", ".join(repr(name) for name in names)
            if dataset is None and len(names) == 1:
                return cls(path, names[0], read_only, timeout)
            if dataset is None:
                raise LedgerError(
                    f"{path.name} holds {len(names)} data sets ({known}). Say which one with"
                    " dataset=..."
                )
            found = recorded_name(dataset, names, "dataset")
            if found is None:
                if settings is None or read_only:
                    raise LedgerError(
                        f"{path.name} holds no data set {dataset!r}, only {known}. To add one, state"
                        " its ceiling: budget=Budget(...)."
                    )
                found = store._create(connection, dataset, settings)
        return cls(path, found, read_only, timeout)

    def _create_file(self, dataset: str, settings: Settings) -> None:
        """Build the complete file under another name, then link it into place."""
        name = str(self.path.with_name(f".{self.path.name}-{uuid.uuid4().hex}"))
        try:
            os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666))  # the umask applies
        except OSError as error:
            raise LedgerError(
                f"{self.path.name} can't be opened for writing ({error.strerror}): the folder does not"
                " exist or does not allow it. Nothing was spent."
            ) from error
        draft = FileStore(Path(name), dataset, timeout=self.timeout)
        try:
            with draft._connection(new=True) as connection:
                draft._migrate(connection)
                draft._create(connection, dataset, settings)
            self._put_in_place(name)
        finally:
            for leftover in (name, f"{name}-lock", f"{name}-journal"):
                Path(leftover).unlink(missing_ok=True)

    def _put_in_place(self, name: str) -> None:
        """Give the finished file its name, or use the file of another process that was faster."""
        try:
            os.link(name, self.path)
        except FileExistsError:
            return
        except OSError:  # no hard links on this file system: rename, one process at a time
            with side_lock(self.path, self.timeout):
                if not _exists(self.path):
                    os.rename(name, self.path)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        with self._transaction(connection):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            for step in range(version, VERSION):
                for statement in _MIGRATIONS[step].split(";"):
                    if statement.strip():
                        connection.execute(statement)
            if version < VERSION:
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
            if version < _CHAINED:
                self._chain_old_rows(connection)

    def _chain_old_rows(self, connection: sqlite3.Connection) -> None:
        """Add the rows of an older file to the hash chain."""
        links: dict[int, str] = {}
        rows = connection.execute(
            f"SELECT id, dataset, {_CONTENT} FROM spends ORDER BY id"
        ).fetchall()
        for identity, dataset, *content in rows:
            links[dataset] = _link(links.get(dataset, ""), content)
            connection.execute(
                "UPDATE spends SET chain = ? WHERE id = ?", (links[dataset], identity)
            )

    def _create(self, connection: sqlite3.Connection, dataset: str, settings: Settings) -> str:
        """Add a data set, unless another process just did, and return its recorded name."""
        budget, parts = settings.budget, canonical_names(settings.parts, "parts")
        with self._transaction(connection):
            names = [row[0] for row in connection.execute("SELECT name FROM datasets")]
            known = recorded_name(dataset, names, "dataset")
            if known is not None:
                return known
            name = canonical_name(dataset, "dataset")
            connection.execute(
                "INSERT INTO datasets"
                " (name, epsilon, delta, neighbours, accounting, created, renyi_order, parts)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    name,
                    None if budget is None else budget.epsilon,
                    None if budget is None else budget.delta,
                    settings.neighbours.value,
                    settings.accounting,
                    now(),
                    settings.renyi_order,
                    json.dumps(parts),
                ),
            )
            if budget is not None:
                _record_ceiling(connection, name, budget, "when the ledger was made")
            return name

    # --- the interface of a store -----------------------------------------------------------------

    def settings(self) -> Settings:
        """Return the recorded settings."""
        with self._connection() as connection:
            return self._settings(connection)

    def append(self, spend: Spend, admit: Callable[[Settings, Sequence[Spend]], None]) -> int:
        """Check and record one spend in one transaction; return its number."""
        self._refuse_if_read_only()
        with self._connection() as connection, self._transaction(connection):
            earlier, link = self._lines(connection)
            admit(self._settings(connection), earlier)
            number = len(earlier) + 1
            claim = spend.claim
            content = (
                number,
                spend.time,
                spend.label,
                spend.part,
                None if claim is None else claim.epsilon,
                None if claim is None else claim.delta,
                int(spend.private),
                spend.plan_text,
                json.dumps(spend.prices),
            )
            connection.execute(
                f"INSERT INTO spends (dataset, {_CONTENT}, chain) VALUES"
                " ((SELECT id FROM datasets WHERE name = ?), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (self.dataset, *content, _link(link, content)),
            )
            return number

    def mark_drawn(self, number: int, label: str) -> None:
        """Record that noise of this part of the spend is about to be drawn."""
        with self._connection() as connection, self._transaction(connection):
            connection.execute(
                "INSERT OR IGNORE INTO draws (spend, label, time) SELECT s.id, ?, ? FROM spends s"
                " JOIN datasets d ON s.dataset = d.id WHERE d.name = ? AND s.number = ?",
                (label, now(), self.dataset, number),
            )

    def spends(self) -> list[Spend]:
        """Return all spends, in the order in which they were committed."""
        with self._connection() as connection:
            drawn: dict[int, list[str]] = {}
            for number, label in connection.execute(
                "SELECT s.number, d.label FROM draws d JOIN spends s ON d.spend = s.id WHERE"
                " s.dataset = (SELECT id FROM datasets WHERE name = ?) ORDER BY d.rowid",
                (self.dataset,),
            ):
                drawn.setdefault(number, []).append(label)
            found, _ = self._read(connection)
        return [replace(spend, drawn=tuple(drawn.get(spend.number, ()))) for spend in found]

    def lines(self) -> Sequence[Spend]:
        """Return all spends without ``drawn``. Rows that this process knows are not read again."""
        with self._connection() as connection:
            return self._lines(connection)[0]

    def change_ceiling(
        self, budget: Budget, reason: str, admit: Callable[[Settings, Sequence[Spend]], None]
    ) -> None:
        """Set another ceiling if what was spent fits under it, and record the change."""
        self._refuse_if_read_only()
        with self._connection() as connection, self._transaction(connection):
            settings = self._settings(connection)
            admit(settings, self._read(connection)[0])
            order = order_after_change(settings, budget)
            connection.execute(
                "UPDATE datasets SET epsilon = ?, delta = ?, renyi_order = ? WHERE name = ?",
                (budget.epsilon, budget.delta, order, self.dataset),
            )
            _record_ceiling(connection, self.dataset, budget, reason)

    def ceilings(self) -> list[tuple[str, Budget, str]]:
        """Return all ceilings so far, each with its starting time, its budget and its reason."""
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
            "SELECT epsilon, delta, neighbours, accounting, renyi_order, parts FROM datasets"
            " WHERE name = ?",
            (self.dataset,),
        ).fetchone()
        if row is None:
            raise LedgerError(f"{self.path.name} holds no data set {self.dataset!r}.")
        epsilon, delta, neighbours, accounting, order, parts = row
        budget = None if epsilon is None else Budget(epsilon, delta)
        relation = Neighbours.resolve(neighbours)
        last = connection.execute(
            "SELECT epsilon, delta FROM ceilings WHERE dataset ="
            " (SELECT id FROM datasets WHERE name = ?) ORDER BY rowid DESC LIMIT 1",
            (self.dataset,),
        ).fetchone()
        if last is not None and last != (epsilon, delta):
            raise LedgerError(
                f"The ceiling of {self.dataset!r} in {self.path.name} was edited: the record of its"
                " changes says otherwise. Nothing was changed; restore the file from a backup."
            )
        return Settings(budget, relation, accounting, order, tuple(json.loads(parts)))

    def _lines(self, connection: sqlite3.Connection) -> tuple[tuple[Spend, ...], str]:
        """Return all spends and the last hash of their chain, from the last row known here on."""
        key = self.path, self.dataset
        known, link = _KNOWN.get(key, ((), ""))
        if known:
            last = connection.execute(
                "SELECT chain FROM spends WHERE number = ? AND dataset ="
                " (SELECT id FROM datasets WHERE name = ?)",
                (len(known), self.dataset),
            ).fetchone()
            if last != (link,):  # another file, or an older copy, has taken the place
                known, link = (), ""
        found = self._read(connection, known, link)
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = found
        return found

    def _read(
        self, connection: sqlite3.Connection, known: tuple[Spend, ...] = (), link: str = ""
    ) -> tuple[tuple[Spend, ...], str]:
        """Return all spends and the last hash of their chain; raise if a row is missing or edited.

        The rows of ``known``, whose chain ends with ``link``, are not read.
        """
        rows = connection.execute(
            f"SELECT chain, {_CONTENT} FROM spends WHERE number > ? AND dataset ="
            " (SELECT id FROM datasets WHERE name = ?) ORDER BY number",
            (len(known), self.dataset),
        )
        found: list[Spend] = []
        for chain, *content in rows:
            number, time, label, part, epsilon, delta, private, plan, prices = content
            link = _link(link, content)
            expected = len(known) + len(found) + 1
            if number != expected or chain != link:
                raise LedgerError(
                    f"Spend {expected} of {self.dataset!r} in {self.path.name} is missing or was"
                    " edited. Nothing was changed; restore the file from a backup that is not older"
                    " than the last spend."
                )
            claim = None if epsilon is None else Budget(epsilon, delta)
            computed = self._prices(prices, number)
            found.append(Spend(label, plan, claim, bool(private), time, part, (), number, computed))
        most, count = connection.execute(  # in one statement, because other processes spend, too
            "SELECT (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'spends'),"
            " (SELECT count(*) FROM spends JOIN datasets ON spends.dataset = datasets.id)"
        ).fetchone()
        if count != most:
            raise LedgerError(
                f"{self.path.name} records {most} spends but holds {count}: rows were removed. Nothing"
                " was changed; restore the file from a backup that is not older than the last spend."
            )
        return (*known, *found), link

    def _prices(self, text: str | None, number: int) -> dict[str, Price]:
        try:
            found = {rule: tuple(price) for rule, price in json.loads(text or "{}").items()}
            fine = all(is_real(v) and 0 <= v < math.inf for price in found.values() for v in price)
        except (ValueError, TypeError, AttributeError):
            fine = False
        if not fine:
            raise LedgerError(
                f"What spend {number} of {self.dataset!r} in {self.path.name} costs can't be read."
                " Nothing was changed; restore the file from a backup that is not older than the last"
                " spend."
            )
        return found

    # --- connections and their errors ----------------------------------------------------------------

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise LedgerError(
                f"{self.path.name} was opened with read_only=True, so nothing can be spent from it."
            )

    @contextlib.contextmanager
    def _connection(self, new: bool = False) -> Iterator[sqlite3.Connection]:
        connection = None
        try:
            if not new:
                self._check_file()
            uri = f"{self.path.as_uri()}?mode={'ro' if self.read_only else 'rw'}"
            connection = sqlite3.connect(uri, uri=True, timeout=self.timeout, isolation_level=None)
            connection.execute(f"PRAGMA busy_timeout = {math.ceil(1000 * self.timeout)}")
            self._check_owner(connection)
            if not self.read_only:
                connection.execute("PRAGMA journal_mode = DELETE")
                connection.execute("PRAGMA synchronous = EXTRA")
            yield connection
        except sqlite3.Error as error:
            raise LedgerError(self._explain(error)) from error
        finally:
            if connection is not None:
                connection.close()

    def _check_file(self) -> None:
        try:
            facts = self.path.stat()
        except OSError as error:
            raise LedgerError(
                f"{self.path.name} is gone or can't be reached ({error.strerror}). Nothing was spent."
            ) from error
        if facts.st_size == 0:
            raise LedgerError(
                f"{self.path.name} is empty, which a ledger never is: it was damaged. Nothing was"
                " changed; restore it from a backup that is not older than the last spend."
            )
        for _ in range(50):  # while the file is being created, it briefly has a second name
            if facts.st_nlink == 1:
                return
            time.sleep(0.01)
            facts = self.path.stat()
        for draft in self.path.parent.glob(
            f".{self.path.name}-*"
        ):  # a second name that a killed process left behind while creating the file
            if draft.samefile(self.path):
                draft.unlink(missing_ok=True)
                facts = self.path.stat()
        if facts.st_nlink > 1:
            raise LedgerError(
                f"{self.path.name} has several names (hard links). SQLite keeps its journal beside one"
                " name, so a crash could lose spends. Keep one name."
            )

    @contextlib.contextmanager
    def _transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        """Hold both locks from the first read to the commit."""
        with side_lock(self.path, self.timeout):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    with contextlib.suppress(sqlite3.Error):  # rolled back at the next opening
                        connection.execute("ROLLBACK")
                raise

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
        code = getattr(error, "sqlite_errorname", "") or ""
        name = self.path.name
        if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return (
                f"{name} was busy for {self.timeout:g} seconds: another process is spending. This call"
                " did nothing; try again, or open it with a longer timeout."
            )
        if code.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
            return (
                f"{name} could not be written: the disk is full, or a limit on file sizes is reached"
                f" ({error}). No noise was drawn. Make room and look at the history before you try"
                " again."
            )
        if code.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
            if self.read_only:
                return (
                    f"{name} can't be read as it is ({error}): a process was killed while it spent."
                    " Open it once without read_only=True, which completes or undoes that spend."
                )
            return (
                f"{name} can't be opened for writing ({error}): the file or its folder does not allow"
                " it. Nothing was spent; read_only=True reads a ledger without writing."
            )
        return (
            f"{name} is not a ledger file, or it is damaged ({error}). Nothing was changed; restore it"
            " from a backup that is not older than the last spend."
        )


_CONTENT = "number, time, label, part, claim_epsilon, claim_delta, private, plan, prices"
# the spends that this process has read and checked, and the last hash of their chain
_KNOWN: dict[tuple[Path, str], tuple[tuple[Spend, ...], str]] = {}
_MOST_KNOWN = 16  # data sets


def _link(previous: str, content: Sequence[object]) -> str:
    """Return the hash of a row's content and the hash of the previous row."""
    if content[-1] is None:  # of a version that recorded no prices
        content = content[:-1]
    text = json.dumps([previous, *content], ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


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


def _record_ceiling(
    connection: sqlite3.Connection, dataset: str, budget: Budget, reason: str
) -> None:
    connection.execute(
        "INSERT INTO ceilings (dataset, time, epsilon, delta, reason)"
        " VALUES ((SELECT id FROM datasets WHERE name = ?), ?, ?, ?, ?)",
        (dataset, now(), budget.epsilon, budget.delta, reason),
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a parent folder may not be entered
        return False


def dataset_names(path: Path, *, timeout: float = 30.0) -> list[str]:
    """Return the names of all data sets in a ledger file, in the order in which they were added."""
    store = FileStore(Path(path).absolute(), "", True, timeout)
    with store._connection() as connection:
        return [row[0] for row in connection.execute("SELECT name FROM datasets ORDER BY id")]
