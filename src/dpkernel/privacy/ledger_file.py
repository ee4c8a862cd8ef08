"""The store of a shared ledger: one SQLite file, safe against races, crashes and full disks.

A store is just a path, the name of a data set and the links of the spends that it recorded, which
nothing changes later. Every call opens its own connection, so there is no state that a fork, a thread
or a pickle could corrupt. A spend is one ``BEGIN IMMEDIATE``
transaction: read what was spent, decide, insert, and commit with ``synchronous=EXTRA`` on a
rollback journal (write-ahead logging breaks on network drives). Noise is handed out only after the
commit, so ``kill -9`` or a power cut loses no spend at any moment. A spend that was committed but
never drawn stays spent.

During a transaction a second lock is held, on the file NAME-lock beside the ledger. It is needed
because the operating system drops SQLite's own lock when the same process opens and closes the file
by other means (a backup, a hash). A new file is built in memory and linked into place, so an
existing ledger is never empty: an empty file is a damaged one. Terms and spends are chained by
hashes (``ledger_schema``), so a row that was removed or edited is noticed. The whole chain is read
when a ledger is opened and then used for the first time, and whenever its history is read. Later
spends of the same process read only the rows that are new to it: they add up the rows that it has
read and checked itself, so an edit in between can't give more budget. A row also holds what the
accounting rule computed for it, because a bound that takes long to compute should not be computed
by every process.

Not handled: a file system whose locks do not work (some network drives); a person who restores an
older copy, or who recomputes a chain that no key protects. Keep the file where the data are, under
the same access rules.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dpkernel.foundations.errors import LedgerError
from dpkernel.foundations.types import Budget
from dpkernel.privacy.ledger_chain import Known, last_links, read_chain
from dpkernel.privacy.ledger_place import check_place, create, exists, remove_drafts, side_lock
from dpkernel.privacy.ledger_schema import (
    APPLICATION,
    UNREADABLE,
    VERSION,
    add_dataset,
    add_row,
    check_counts,
    edited,
    key_mark,
    spend_row,
    terms_row,
    upgrade,
)
from dpkernel.privacy.ledger_store import (
    Decision,
    Settings,
    Spend,
    canonical_name,
    canonical_names,
    now,
    recorded_name,
)

__all__ = ["FileStore", "dataset_names", "side_lock"]

KEY_BYTES = 16  # the shortest key


@dataclass(frozen=True)
class FileStore:
    """The spends of one data set in a ledger file."""

    path: Path
    dataset: str
    read_only: bool = False
    timeout: float = 30.0
    key: bytes | Path | None = field(default=None, repr=False)
    _own: dict[int, str] = field(  # the links of the spends that this store has recorded
        default_factory=dict, init=False, repr=False, compare=False
    )

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
        key: bytes | Path | None = None,
    ) -> FileStore:
        """Open a data set in a file; create it, and the file, if ``settings`` are given."""
        path = Path(os.path.realpath(path))  # the lock and the journal lie beside the file itself
        store = cls(path, "", read_only, timeout, key)
        if not exists(path):
            if settings is None or read_only or not dataset:
                raise LedgerError(
                    f"There is no ledger file {path.name}, or no right to read it. To make one, name"
                    " the data set and its ceiling: Ledger(path, dataset=..., budget=Budget(...))."
                )
            store._create_file(dataset, settings)
        with store._connection() as connection:
            if not read_only:
                remove_drafts(path)
                with store._transaction(connection), store._readable():
                    upgrade(connection, path.name)
            for known in [known for known in _KNOWN if known[0] == path]:
                _KNOWN.pop(known, None)
            store = replace(store, dataset=store._find(connection, dataset, settings))
            store._secret(connection)
        return store

    def _find(
        self, connection: sqlite3.Connection, dataset: str | None, settings: Settings | None
    ) -> str:
        """Return the recorded name of a data set, which is added if ``settings`` are given."""
        names = self._names(connection)
        known = ", ".join(repr(name) for name in names)
        if dataset is None:
            if len(names) == 1:
                return names[0]
            raise LedgerError(
                f"{self.path.name} holds {len(names)} data sets ({known}). Say which one with"
                " dataset=..."
            )
        found = recorded_name(dataset, names, "dataset")
        if found is not None:
            return found
        if settings is None or self.read_only:
            raise LedgerError(
                f"{self.path.name} holds no data set {dataset!r}, only {known}. To add one, state its"
                " ceiling: budget=Budget(...), or `dpkernel ledger create`."
            )
        settings = replace(settings, parts=canonical_names(settings.parts, "parts"))
        with self._transaction(connection):
            found = recorded_name(dataset, self._names(connection), "dataset")
            if found is None:  # unless another process just added it
                found = canonical_name(dataset, "dataset")
                self._check_all(connection, found)
                add_dataset(connection, found, settings, self._given_key())
        return found

    def _names(self, connection: sqlite3.Connection) -> list[str]:
        with self._readable():
            names = [row[0] for row in connection.execute("SELECT name FROM datasets ORDER BY id")]
            if not all(isinstance(name, str) for name in names):
                raise TypeError("the name of a data set is no text")
            return names

    def _check_all(self, connection: sqlite3.Connection, new: str) -> None:
        """Raise if a data set was renamed or removed by hand, so that adding it would forget its spends.

        Data sets with a key that was not given can't be read.
        """
        check_counts(connection, self.path.name, "spends", "terms")
        secret = self._given_key()
        marks = connection.execute("SELECT name, key_mark FROM datasets").fetchall()
        if not marks or any(mark and mark == key_mark(new, secret) for _, mark in marks):
            raise LedgerError(edited(0, new, self.path.name))
        for name, mark in marks:
            if mark is None or mark == key_mark(name, secret):
                known = None if mark is None else secret
                with self._readable():
                    read_chain(connection, name, self.path.name, known, Known())

    def _create_file(self, dataset: str, settings: Settings) -> None:
        """Build the complete file in memory, then write it under its name."""
        name = canonical_name(dataset, "dataset")
        settings = replace(settings, parts=canonical_names(settings.parts, "parts"))
        with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            upgrade(connection, self.path.name)
            add_dataset(connection, name, settings, self._given_key())
            create(self.path, connection.serialize())

    # --- the key ----------------------------------------------------------------------------------

    def _given_key(self) -> bytes | None:
        if not isinstance(self.key, Path):
            return self.key
        try:
            found = self.key.read_bytes()
        except OSError as error:
            raise LedgerError(
                f"The key file {self.key.name} can't be read ({error.strerror}). Nothing was changed."
            ) from error
        if len(found) < KEY_BYTES:
            raise LedgerError(
                f"The key file {self.key.name} holds {len(found)} bytes; a key has at least"
                f" {KEY_BYTES}. Nothing was changed."
            )
        return found

    def _secret(self, connection: sqlite3.Connection) -> bytes | None:
        """Return the key; raise unless it is the one that protects this data set."""
        row = connection.execute(
            "SELECT key_mark FROM datasets WHERE name = ?", (self.dataset,)
        ).fetchone()
        if row is None:
            raise LedgerError(f"{self.path.name} holds no data set {self.dataset!r}.")
        secret = self._given_key()
        if row[0] == key_mark(self.dataset, secret):
            return secret
        where = f"{self.dataset!r} in {self.path.name}"
        if secret is None:
            raise LedgerError(
                f"{where} is protected by a key. Pass key=... or --key-file. Nothing was changed."
            )
        if row[0] is None:
            raise LedgerError(
                f"{where} is not protected by a key, but one was given. Either the key belongs to"
                " another ledger, or this one was rewritten without it. Nothing was changed."
            )
        raise LedgerError(f"{where} is protected by another key. Nothing was changed.")

    # --- the interface of a store -----------------------------------------------------------------

    def settings(self) -> Settings:
        """Return the recorded settings."""
        with self._connection() as connection:
            return self._known(connection).settings

    def append(self, spend: Spend, admit: Decision) -> int:
        """Check and record one spend in one transaction; return its number."""
        self._refuse_if_read_only()
        with self._connection() as connection, self._transaction(connection):
            secret, known = self._secret(connection), self._known(connection)
            before = known.settings
            after = admit(before, known.spends)
            head, number = known.head, len(known.spends) + 1
            if after != before:
                row = terms_row(after, len(known.spends), "the first spend fixed the rule")
                head = add_row(connection, "terms", self.dataset, row, head, secret)
            row = spend_row(spend, number)
            self._own[number] = add_row(connection, "spends", self.dataset, row, head, secret)
            return number

    def mark_drawn(self, number: int, label: str) -> None:
        """Record that noise of this part of the spend is about to be drawn.

        Raises LedgerError if the file has no such spend any more. Another spend may have taken its
        number, so the link of a spend of this store is compared, too.
        """
        with self._connection() as connection, self._transaction(connection):
            self._known(connection)
            found = connection.execute(
                "SELECT s.id, s.chain FROM spends s JOIN datasets d ON s.dataset = d.id"
                " WHERE d.name = ? AND s.number = ?",
                (self.dataset, number),
            ).fetchone()
            if found is None or found[1] != self._own.get(number, found[1]):
                raise LedgerError(self._older())
            connection.execute(
                "INSERT OR IGNORE INTO draws (spend, label, time) VALUES (?, ?, ?)",
                (found[0], label, now()),
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
            found = self._read(connection).spends
        return [replace(spend, drawn=tuple(drawn.get(spend.number, ()))) for spend in found]

    def lines(self) -> Sequence[Spend]:
        """Return all spends without ``drawn``. Rows that this process knows are not read again."""
        with self._connection() as connection:
            return self._known(connection).spends

    def change(self, reason: str, decide: Decision) -> None:
        """Record other settings, if ``decide`` returns them, in one transaction."""
        self._refuse_if_read_only()
        with self._connection() as connection, self._transaction(connection):
            known = self._read(connection)
            after = decide(known.settings, known.spends)
            row = terms_row(after, len(known.spends), reason)
            add_row(connection, "terms", self.dataset, row, known.head, self._secret(connection))

    def ceilings(self) -> list[tuple[str, Budget, str]]:
        """Return all ceilings so far, each with its starting time, its budget and its reason."""
        with self._connection() as connection:
            return list(self._read(connection).ceilings)

    # --- reading rows -----------------------------------------------------------------------------

    def _known(self, connection: sqlite3.Connection) -> Known:
        """Return the content of the data set; rows that this process has checked are not read.

        Raises LedgerError if rows that this process has read are gone.
        """
        key = self.path, self.dataset
        known = _KNOWN.get(key, Known())
        same = last_links(connection, self.dataset, known) == known.links
        found = self._read(connection, known if same else None)
        mark = *key, found.origin
        last = _LAST.get(mark, Known())
        if last_links(connection, self.dataset, last) != last.links:
            raise LedgerError(self._older())
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key], _LAST[mark] = found, Known(last=found.last, links=found.links)
        return found

    def _older(self) -> str:
        return (
            f"{self.path.name} has lost spends of {self.dataset!r} that this process has seen: an older"
            " copy was put in its place, or rows were removed. Nothing was changed; put the newest file"
            " back."
        )

    def _read(self, connection: sqlite3.Connection, known: Known | None = None) -> Known:
        """Return the checked content of the data set; the rows of ``known`` are not read."""
        secret = self._secret(connection)
        with self._readable():
            return read_chain(connection, self.dataset, self.path.name, secret, known or Known())

    # --- connections and their errors ----------------------------------------------------------------

    def _refuse_if_read_only(self) -> None:
        if self.read_only:
            raise LedgerError(
                f"{self.path.name} was opened with read_only=True, so nothing can be spent from it."
            )

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Say in one sentence that a row can't be read."""
        try:
            yield
        except LedgerError:
            raise
        except UNREADABLE as error:
            raise LedgerError(
                f"{self.path.name} holds a row that can't be read ({error}). Nothing was changed;"
                " restore the file from a backup that is not older than the last spend."
            ) from error

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        connection = None
        try:
            check_place(self.path)
            uri = f"{self.path.as_uri()}?mode={'ro' if self.read_only else 'rw'}"
            connection = sqlite3.connect(uri, uri=True, timeout=self.timeout, isolation_level=None)
            connection.execute(f"PRAGMA busy_timeout = {math.ceil(1000 * self.timeout)}")
            self._check_owner(connection)
            if not self.read_only:
                connection.execute("PRAGMA journal_mode = DELETE")
                connection.execute("PRAGMA synchronous = EXTRA")
            yield connection
        except (sqlite3.Error, UnicodeError) as error:  # damage may put any bytes into a text
            raise LedgerError(self._explain(error)) from error
        finally:
            if connection is not None:
                connection.close()

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
        (tables, active) = connection.execute(
            "SELECT count(*), count(*) FILTER (WHERE type IN ('trigger', 'view')) FROM sqlite_master"
        ).fetchone()
        if application != APPLICATION and (tables or application):
            raise LedgerError(
                f"{self.path.name} is a database of another program, not a ledger. Nothing was"
                " changed; choose another file name."
            )
        if active:  # it could remove each spend once its noise is drawn, and put back the old seal
            raise LedgerError(
                f"{self.path.name} was edited: it has a trigger or a view, and a ledger has none."
                " Nothing was changed; restore the file from a backup that is not older than the last"
                " spend."
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

    def _explain(self, error: Exception) -> str:
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


# what this process has read and checked
_KNOWN: dict[tuple[Path, str], Known] = {}  # forgotten when the file is opened again
_MOST_KNOWN = 16  # data sets
# where each chain ended when this process read it last, by the path, the data set and the first link
_LAST: dict[tuple[Path, str, str], Known] = {}


def dataset_names(path: Path, *, timeout: float = 30.0) -> list[str]:
    """Return the names of all data sets in a ledger file, in the order in which they were added."""
    store = FileStore(Path(path).absolute(), "", True, timeout)
    with store._connection() as connection:
        return store._names(connection)
