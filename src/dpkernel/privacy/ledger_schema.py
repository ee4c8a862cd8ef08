"""The tables of a ledger file, the hash chain over their rows, and how older files are upgraded.

Everything that decides about budget is in one chain per data set. It starts with the name of the
data set. Its links are the *terms* (ceiling, relation, accounting rule, parts; one row per change,
and the last one applies) and the spends, in the order in which they were recorded. A seal on the last
link shows that no row was removed at the end. With a key, links and seal are HMACs, which nobody can
compute without the key. Not in the chain: which noise was drawn.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from dpkernel.foundations.errors import LedgerError, ParameterError
from dpkernel.foundations.types import Budget, Neighbours, is_real
from dpkernel.privacy.filters import FILTERS, BasicFilter, GaussianFilter, Price
from dpkernel.privacy.ledger_store import Settings, Spend, now
from dpkernel.privacy.profiles import GaussianProfile

APPLICATION = 0x64706B6C  # "dpkl", at byte 68 of the file

# Step i upgrades a file from version i to version i + 1.
MIGRATIONS = (
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
    """
    CREATE TABLE terms (
        id INTEGER PRIMARY KEY AUTOINCREMENT, dataset INTEGER NOT NULL REFERENCES datasets(id),
        spends INTEGER NOT NULL, time TEXT NOT NULL, reason TEXT NOT NULL, epsilon REAL, delta REAL,
        neighbours TEXT NOT NULL, accounting TEXT NOT NULL, renyi_order REAL, parts TEXT NOT NULL,
        rule TEXT, leak_share REAL NOT NULL, chain TEXT NOT NULL);
    CREATE TABLE named (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, created TEXT NOT NULL, key_mark TEXT,
        seal TEXT);
    INSERT INTO named (id, name, created) SELECT id, name, created FROM datasets;
    """,
)
_AFTER_FOUR = """
    DROP TABLE datasets;
    DROP TABLE ceilings;
    ALTER TABLE named RENAME TO datasets;
    """
VERSION = len(MIGRATIONS)
_CHAINED = 2  # the first version in which rows are chained
SPEND = "number, time, label, part, claim_epsilon, claim_delta, private, plan, prices"
TERMS = (
    "spends, time, reason, epsilon, delta, neighbours, accounting, renyi_order, parts, rule,"
    " leak_share"
)
_LEAK_SHARE_OF_OLD = 1e-6


# --- the chain ------------------------------------------------------------------------------------


def link(previous: str, content: Sequence[object], secret: bytes | None = None) -> str:
    """Return the hash of a row's content and the hash of the row before it."""
    text = json.dumps([previous, *content], ensure_ascii=True).encode()
    if secret is None:
        return hashlib.sha256(text).hexdigest()
    return hmac.new(secret, text, hashlib.sha256).hexdigest()


def first_link(name: str, secret: bytes | None) -> str:
    """Return the start of the chain of a data set."""
    return link("", [name], secret)


def key_mark(name: str, secret: bytes | None) -> str | None:
    """Return what tells one key from another, and None without a key."""
    return None if secret is None else link("key", [name], secret)[:16]


def seal(head: str, secret: bytes | None) -> str:
    """Return what stands beside a data set to show that ``head`` is the last link of its chain."""
    return link("seal", [head], secret)


# --- rows -----------------------------------------------------------------------------------------


def spend_row(spend: Spend, number: int) -> tuple[object, ...]:
    """Return the columns ``SPEND`` of a spend."""
    claim = spend.claim
    point = (None, None) if claim is None else (claim.epsilon, claim.delta)
    prices = json.dumps(spend.prices)
    private = int(spend.private)
    return number, spend.time, spend.label, spend.part, *point, private, spend.plan_text, prices


def read_spend(row: Sequence[Any]) -> Spend:
    """Return the spend of a row; raise ValueError, TypeError or AttributeError if it is none."""
    number, time, label, part, epsilon, delta, private, plan, prices = row
    claim = None if epsilon is None else Budget(epsilon, delta)
    found: dict[str, Price] = {k: tuple(price) for k, price in json.loads(prices or "{}").items()}
    if not all(is_real(v) and 0 <= v < math.inf for price in found.values() for v in price):
        raise ValueError("what it costs is not a number")
    texts = (time, label, plan, "" if part is None else part)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a text is missing")
    content = json.loads(plan)
    if not isinstance(content["parts"], list) or not isinstance(content["profile"], dict):
        raise TypeError("its plan has no parts or no profile")
    return Spend(label, plan, claim, bool(private), time, part, (), number, found)


def terms_row(settings: Settings, spends: int, reason: str) -> tuple[object, ...]:
    """Return the columns ``TERMS`` of settings that hold after this many spends."""
    budget = settings.budget
    ceiling = (None, None) if budget is None else (budget.epsilon, budget.delta)
    parts = json.dumps(settings.parts)
    return (
        *(spends, now(), reason, *ceiling, settings.neighbours.value, settings.accounting),
        *(settings.renyi_order, parts, settings.rule, settings.leak_share),
    )


def read_terms(row: Sequence[Any]) -> Settings:
    """Return the settings of a row; raise ValueError or TypeError if it has none."""
    _, _, _, epsilon, delta, neighbours, accounting, order, parts, rule, share = row
    budget = None if epsilon is None else Budget(epsilon, delta)
    names = json.loads(parts)
    if accounting not in ("auto", *FILTERS) or rule not in (None, *FILTERS):
        raise ValueError("the accounting rule is unknown")
    if not (order is None or (is_real(order) and 1 < order < math.inf)):
        raise ValueError("the Renyi order is not a number above 1")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("the parts are no names")
    if not is_real(share) or not 0 < share < 1:
        raise ValueError("the share of events is not a number between 0 and 1")
    relation = Neighbours.resolve(neighbours)
    return Settings(budget, relation, accounting, order, tuple(names), rule, share)


UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, ParameterError)


# --- writing --------------------------------------------------------------------------------------


def add_dataset(
    connection: sqlite3.Connection, name: str, settings: Settings, secret: bytes | None
) -> None:
    """Add a data set that the file does not hold."""
    connection.execute(
        "INSERT INTO datasets (name, created, key_mark) VALUES (?, ?, ?)",
        (name, now(), key_mark(name, secret)),
    )
    row = terms_row(settings, 0, "when the ledger was made")
    add_row(connection, "terms", name, row, first_link(name, secret), secret)


def add_row(
    connection: sqlite3.Connection,
    table: str,
    name: str,
    row: Sequence[object],
    head: str,
    secret: bytes | None,
) -> str:
    """Add a row with the columns ``SPEND`` or ``TERMS`` after the link ``head``; return its link."""
    columns = SPEND if table == "spends" else TERMS
    places = ", ".join("?" for _ in row)
    head = link(head, row, secret)
    connection.execute(
        f"INSERT INTO {table} (dataset, {columns}, chain)"
        f" VALUES ((SELECT id FROM datasets WHERE name = ?), {places}, ?)",
        (name, *row, head),
    )
    connection.execute("UPDATE datasets SET seal = ? WHERE name = ?", (seal(head, secret), name))
    return head


def upgrade(connection: sqlite3.Connection, file: str) -> None:
    """Bring the tables of a file up to date, inside a transaction. An empty file gets its tables."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == VERSION:
        return
    for step in range(version, VERSION):
        _run(connection, MIGRATIONS[step])
    names = [name for (name,) in connection.execute("SELECT name FROM named ORDER BY id")]
    check_counts(connection, file, "spends")
    older = [_checked_rows(connection, name, version >= _CHAINED, file) for name in names]
    _run(connection, _AFTER_FOUR)
    for name, (terms, spends) in zip(names, older, strict=True):
        _rechain(connection, name, terms, spends)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def check_counts(connection: sqlite3.Connection, file: str, *tables: str) -> None:
    """Raise if rows of these tables were removed, or belong to no data set."""
    for table in tables:
        most, count = connection.execute(
            f"SELECT (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = '{table}'),"
            f" (SELECT count(*) FROM {table} JOIN datasets ON {table}.dataset = datasets.id)"
        ).fetchone()
        if count != most:
            raise LedgerError(
                f"{file} records {most} {table} but holds {count}: rows were removed. Nothing was"
                " changed; restore the file from a backup that is not older than the last spend."
            )


def _run(connection: sqlite3.Connection, statements: str) -> None:
    for statement in statements.split(";"):
        if statement.strip():
            connection.execute(statement)


Row = tuple[object, ...]


def _checked_rows(
    connection: sqlite3.Connection, name: str, chained: bool, file: str
) -> tuple[list[Row], list[Row]]:
    """Return the terms and the spends of a data set in an older file, after checking its chain."""
    (identity,) = connection.execute("SELECT id FROM datasets WHERE name = ?", (name,)).fetchone()
    rows = connection.execute(
        f"SELECT chain, {SPEND} FROM spends WHERE dataset = ? ORDER BY number", (identity,)
    ).fetchall()
    previous = ""
    for place, (chain, *row) in enumerate(rows, 1):
        # the version before had no prices, and they were not part of its chain
        previous = link(previous, row[:-1] if row[-1] is None else row)
        if row[0] != place or (chained and chain != previous):
            raise LedgerError(edited(place, name, file))
    return list(_old_terms(connection, name, identity, rows, file)), [row[1:] for row in rows]


def _rechain(
    connection: sqlite3.Connection, name: str, terms: Sequence[Row], spends: Sequence[Row]
) -> None:
    """Write the terms of a data set, and bring its spends into the one chain."""
    head = add_row(connection, "terms", name, terms[0], first_link(name, None), None)
    for row in spends:
        head = link(head, row)
        connection.execute(
            "UPDATE spends SET chain = ? WHERE number = ? AND dataset ="
            " (SELECT id FROM datasets WHERE name = ?)",
            (head, row[0], name),
        )
    connection.execute("UPDATE datasets SET seal = ? WHERE name = ?", (seal(head, None), name))
    for row in terms[1:]:
        head = add_row(connection, "terms", name, row, head, None)


def _old_terms(
    connection: sqlite3.Connection,
    name: str,
    identity: int,
    spends: Sequence[Sequence[Any]],
    file: str,
) -> Iterator[Row]:
    """Yield the terms of an older file: its first ceiling, its changes, and those that apply now."""
    epsilon, delta, neighbours, accounting, order, parts = connection.execute(
        "SELECT epsilon, delta, neighbours, accounting, renyi_order, parts FROM datasets"
        " WHERE id = ?",
        (identity,),
    ).fetchone()
    ceilings = connection.execute(
        "SELECT time, reason, epsilon, delta FROM ceilings WHERE dataset = ? ORDER BY rowid",
        (identity,),
    ).fetchall()
    if ceilings and ceilings[-1][2:] != (epsilon, delta):
        raise LedgerError(
            f"The ceiling of {name!r} in {file} was edited: the record of its changes says otherwise."
            " Nothing was changed; restore the file from a backup."
        )
    rule = None if accounting == "auto" else accounting
    if rule is None and spends and epsilon is not None:  # as the version before chose it
        gaussian = isinstance(read_spend(spends[0][1:]).profile, GaussianProfile) and delta > 0
        rule = GaussianFilter.name if gaussian else BasicFilter.name
    rest = (neighbours, accounting, order, parts, rule, _LEAK_SHARE_OF_OLD)
    every = ceilings or [(now(), "when the ledger was made", epsilon, delta)]
    for place, (time, reason, *ceiling) in enumerate(every):
        yield (len(spends) if place else 0, time, reason, *ceiling, *rest)


def edited(number: int, name: str, file: str) -> str:
    """Return what to say of a row that is not the one that was recorded; 0 stands for the terms."""
    what = f"Spend {number}" if number else "A row of the terms (ceiling, relation, rule, parts)"
    return (
        f"{what} of {name!r} in {file} is missing or was edited. Nothing was changed; restore the file"
        " from a backup that is not older than the last spend."
    )
