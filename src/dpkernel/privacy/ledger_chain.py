"""Reading the chain of a data set in a ledger file: every row is checked before it is used."""

from __future__ import annotations

import sqlite3
from typing import Any, NamedTuple

from dpkernel.foundations.errors import LedgerError
from dpkernel.foundations.types import Budget
from dpkernel.privacy.ledger_schema import (
    SPEND,
    TERMS,
    edited,
    first_link,
    link,
    read_spend,
    read_terms,
    seal,
)
from dpkernel.privacy.ledger_store import Settings, Spend

_NONE: Any = None  # stands for settings until the first row of a chain was read
_SPENDS, _TERMS = 0, 1


class Known(NamedTuple):
    """The checked content of a data set.

    These are its spends, the settings that apply, the last ids and links in both tables, the last
    link of the whole chain, the ceilings with their times and reasons, and the first link of the
    chain, which no other ledger has because it depends on the time.
    """

    spends: tuple[Spend, ...] = ()
    settings: Settings = _NONE
    last: tuple[int, int] = (0, 0)
    links: tuple[str, str] = ("", "")
    head: str = ""
    ceilings: tuple[tuple[str, Budget, str], ...] = ()
    origin: str = ""


def last_links(connection: sqlite3.Connection, dataset: str, known: Known) -> tuple[str, str]:
    """Return the links that the file has where those of ``known`` were read."""

    def chain(table: str, identity: int) -> str:
        row = connection.execute(
            f"SELECT chain FROM {table} WHERE id = ? AND dataset ="
            " (SELECT id FROM datasets WHERE name = ?)",
            (identity, dataset),
        ).fetchone()
        return "" if row is None else str(row[0])

    return chain("spends", known.last[_SPENDS]), chain("terms", known.last[_TERMS])


def read_chain(
    connection: sqlite3.Connection, dataset: str, file: str, secret: bytes | None, known: Known
) -> Known:
    """Return the content of a data set; raise if a row is missing or was edited.

    The rows of ``known`` are not read. A row that means nothing raises ValueError or the like.
    """
    new, sealed = _new_rows(connection, dataset, known)
    found, settings = list(known.spends), known.settings
    ceilings, last, links = list(known.ceilings), list(known.last), list(known.links)
    head, origin = known.head or first_link(dataset, secret), known.origin
    for place, table, identity, chain, row in new:
        head = link(head, row, secret)
        number = len(found) + 1
        if chain != head or place != (number if table == _SPENDS else len(found)):
            raise LedgerError(edited(number if table == _SPENDS else 0, dataset, file))
        if table == _SPENDS:
            found.append(read_spend(row))
        else:
            before, settings = settings, read_terms(row)
            if settings.budget and settings.budget != (before and before.budget):
                ceilings.append((row[1], settings.budget, row[2]))
        last[table], links[table], origin = identity, chain, origin or chain
    if settings is None:
        raise LedgerError(edited(0, dataset, file))
    if sealed != seal(head, secret):
        raise LedgerError(
            f"The last rows of {dataset!r} in {file} were removed. Nothing was changed; restore the"
            " file from a backup that is not older than the last spend."
        )
    ends = (last[0], last[1]), (links[0], links[1])
    return Known(tuple(found), settings, *ends, head, tuple(ceilings), origin)


def _new_rows(
    connection: sqlite3.Connection, dataset: str, known: Known
) -> tuple[list[tuple[int, int, int, str, list[Any]]], str | None]:
    """Return the rows after those of ``known`` in the order of the chain, and the seal.

    One transaction sees one state of the file, while other processes spend.
    """
    alone = not connection.in_transaction
    if alone:
        connection.execute("BEGIN")
    try:
        found = []
        for table, (name, columns) in enumerate((("spends", SPEND), ("terms", TERMS))):
            rows = connection.execute(
                f"SELECT id, chain, {columns} FROM {name} WHERE id > ? AND dataset ="
                " (SELECT id FROM datasets WHERE name = ?) ORDER BY id",
                (known.last[table], dataset),
            )
            # terms that were recorded after k spends come between the spends k and k + 1
            found += [(row[0], table, identity, chain, row) for identity, chain, *row in rows]
        (sealed,) = connection.execute(
            "SELECT seal FROM datasets WHERE name = ?", (dataset,)
        ).fetchone()
    finally:
        if alone:
            connection.execute("COMMIT")
    return sorted(found, key=lambda row: (row[0], row[1], row[2])), sealed
