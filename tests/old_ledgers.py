"""Ledger files as older versions wrote them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3

from dpkernel.privacy.ledger_schema import APPLICATION, MIGRATIONS

CONTENT = "number, time, label, part, claim_epsilon, claim_delta, private, plan, prices"


@contextlib.contextmanager
def old_file(path, version):
    """Yield a connection to a new file with the tables of this version."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for step in MIGRATIONS[:version]:
            connection.executescript(step)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {version}")
        yield connection


def old_ledger(path, version, profiles, *, accounting="auto", ceilings=((2.0, 1e-6),)):
    """Write a ledger of the data set 'patients' with a spend per profile."""
    with old_file(path, version) as connection:
        connection.execute(
            "INSERT INTO datasets (id, name, epsilon, delta, neighbours, accounting, created)"
            " VALUES (1, 'patients', ?, ?, 'replace-one', ?, '2026')",
            (*ceilings[-1], accounting),
        )
        if version > 1:
            for i, ceiling in enumerate(ceilings):
                row = (1, f"2026-0{i + 1}", *ceiling, f"reason {i}")
                connection.execute("INSERT INTO ceilings VALUES (?, ?, ?, ?, ?)", row)
        previous = ""
        for number, profile in enumerate(profiles, 1):
            part = {"label": "a", "profile": profile.to_dict(), "draws": 1}
            plan = json.dumps({"parts": [part], "profile": profile.to_dict()})
            row = [number, "2026", f"old {number}", None, None, None, 1, plan]
            row += ["{}"] if version > 2 else []
            previous = hashlib.sha256(json.dumps([previous, *row]).encode()).hexdigest()
            row += [previous] if version > 1 else []
            names = CONTENT if version > 2 else CONTENT.removesuffix(", prices")
            names += ", chain" if version > 1 else ""
            marks = ", ".join("?" for _ in row)
            connection.execute(f"INSERT INTO spends (dataset, {names}) VALUES (1, {marks})", row)
