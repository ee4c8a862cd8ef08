"""Ledger files that were edited, damaged, mounted alone, left by older versions, or keep a key."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from dpkernel import (
    Budget,
    Ledger,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
)
from dpkernel.cli import app
from dpkernel.foundations.environment import KEY_VARIABLE
from dpkernel.foundations.errors import DPKernelError, LedgerError, ParameterError
from dpkernel.privacy import ledger_file, ledger_place
from dpkernel.privacy.ledger_file import FileStore
from dpkernel.privacy.ledger_schema import SPEND, TERMS, VERSION, first_link, link, seal
from dpkernel.privacy.profiles import GaussianProfile, PureProfile, gaussian_mu
from old_ledgers import old_ledger

ONE = GaussianProfile(gaussian_mu(1.0, 1e-6))
KEY = b"sixteen bytes or more of secret"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.db"


def open_ledger(path, **options):
    return Ledger(path, **{"dataset": "patients", "budget": Budget(2.0, 1e-6), **options})


def sql(path, *changes):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return [connection.execute(*change).fetchall() for change in changes]


def rechained(path, secret=None):
    """Recompute the chain of the only data set, as whoever edits the file with care would."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        spends = connection.execute(f"SELECT id, {SPEND} FROM spends").fetchall()
        terms = connection.execute(f"SELECT id, {TERMS} FROM terms").fetchall()
        rows = [(row[1], 0, "spends", row) for row in spends]
        rows += [(row[1], 1, "terms", row) for row in terms]
        head = first_link("patients", secret)
        for _, _, table, (identity, *row) in sorted(rows):
            head = link(head, row, secret)
            connection.execute(f"UPDATE {table} SET chain = ? WHERE id = ?", (head, identity))
        connection.execute("UPDATE datasets SET seal = ?", (seal(head, secret),))


# --- edits ----------------------------------------------------------------------------------------

EDITS = {
    "ceiling": "UPDATE terms SET epsilon = 300",
    "delta": "UPDATE terms SET delta = 0.1",
    "no ceiling": "UPDATE terms SET epsilon = NULL, delta = NULL",
    "relation": "UPDATE terms SET neighbours = 'zero-out'",
    "accounting": "UPDATE terms SET accounting = 'gaussian'",
    "rule": "UPDATE terms SET rule = 'basic'",
    "parts": 'UPDATE terms SET parts = \'["north", "south"]\'',
    "order": "UPDATE terms SET renyi_order = 1000.0",
    "share of events": "UPDATE terms SET leak_share = 0.9",
    "when": "UPDATE terms SET spends = 0",
    "reason": "UPDATE terms SET reason = 'the owner agreed'",
    "last terms": "DELETE FROM terms WHERE spends = 2",
    "all terms": "DELETE FROM terms",
    "name": "UPDATE datasets SET name = 'others' WHERE id = 1",
    "spend": "DELETE FROM spends WHERE number = 2",
    "all spends": "DELETE FROM spends",
    "what it costs": "UPDATE spends SET prices = '{}' WHERE number = 1",
    "claim": "UPDATE spends SET claim_epsilon = 0.001 WHERE number = 1",
    "order of spends": "UPDATE spends SET number = 7 - number",
    "owner": "UPDATE spends SET dataset = 7",
    "last spend to another data set": "UPDATE spends SET dataset = 2, number = 1 WHERE number = 2",
    "last terms to another data set": "UPDATE terms SET dataset = 2 WHERE spends = 2",
    "seal": "UPDATE datasets SET seal = NULL",
}


@pytest.mark.parametrize("change", EDITS.values(), ids=EDITS)
def test_hand_edits_give_no_budget(path, change):
    """Everything that decides about budget is in the chain."""
    ledger = open_ledger(path)
    ledger.spend(ONE, "a", claim=Budget(1.0, 1e-6))
    ledger.spend(GaussianProfile(0.1), "b", claim=Budget(0.4, 1e-6))
    ledger.change_ceiling(Budget(2.5, 1e-6), "agreed")
    open_ledger(path, dataset="another")
    sql(path, (change,))
    name = "others" if "'others'" in change else "patients"
    for attempt in (
        lambda: Ledger(path, dataset=name).spend(GaussianProfile(1e-3), "c"),
        lambda: Ledger(path, dataset=name).remaining,
        lambda: Ledger(path, dataset=name, read_only=True).budget,
        lambda: Ledger(path, dataset=name).change_ceiling(Budget(9.0, 1e-6), "x"),
    ):
        with pytest.raises(LedgerError, match=r"edited|rows of .* were removed"):
            attempt()


def test_a_trigger_can_not_take_back_what_is_spent(path):
    """It would remove each spend after its draw and put back the old seal, which even a key matches."""
    ledger = open_ledger(path, key=KEY)
    stash = "CREATE TABLE stash AS SELECT seal FROM datasets"
    back = "UPDATE datasets SET seal = (SELECT seal FROM stash)"
    for kind, change in (
        (
            "TRIGGER",
            f"CREATE TRIGGER x AFTER INSERT ON draws BEGIN DELETE FROM spends; {back}; END",
        ),
        ("VIEW", "CREATE VIEW x AS SELECT * FROM spends"),
    ):
        sql(path, *([(stash,)] if kind == "TRIGGER" else []), (change,))
        for attempt in (
            lambda: ledger.spend(ONE, "a"),
            lambda: Ledger(path, key=KEY).spend(ONE, "a"),
            lambda: Ledger(path, key=KEY, read_only=True).history(),
        ):
            with pytest.raises(LedgerError, match="was edited: it has a trigger or a view"):
                attempt()
        sql(path, (f"DROP {kind} x",))
    ledger.spend(ONE, "a")


REMOVED = [f"DELETE FROM {table}" for table in ("draws", "spends", "terms", "datasets")]


@pytest.mark.parametrize("key", [None, KEY], ids=["without a key", "with a key"])
@pytest.mark.parametrize(
    "changes",
    [
        ["UPDATE datasets SET name = 'others' WHERE id = 1"],
        ["UPDATE datasets SET name = 'others', key_mark = NULL WHERE id = 1"],
        ["DELETE FROM datasets WHERE id = 1"],
        [f"{change} WHERE rowid = 1" for change in REMOVED],
        [*REMOVED, "DELETE FROM sqlite_sequence"],
    ],
    ids=["renamed", "renamed, without its key", "its name removed", "removed", "all removed"],
)
def test_a_data_set_that_was_renamed_or_removed_is_not_added_anew(path, changes, key):
    """Scripts state the ceiling at each opening, which would make a second budget."""
    open_ledger(path, key=key).spend(ONE, "a")
    open_ledger(path, dataset="another", key=key)
    sql(path, *((change,) for change in changes))
    with pytest.raises(LedgerError, match=r"edited|rows were removed"):
        open_ledger(path, key=key).spend(ONE, "a")


def test_a_data_set_may_stand_beside_one_whose_key_is_not_at_hand(path):
    open_ledger(path, key=KEY).spend(ONE, "a")
    open_ledger(path, dataset="another", key=b"another owner's secret").spend(ONE, "b")
    assert open_ledger(path, dataset="open").remaining is not None


def test_terms_of_another_data_set_can_not_be_borrowed(path):
    open_ledger(path).spend(ONE, "a")
    open_ledger(path, dataset="generous", budget=Budget(100.0, 1e-6))
    swap = "UPDATE terms SET dataset = 3 - dataset WHERE spends = 0 AND rule IS NULL"
    sql(path, (swap,))
    for name in ("patients", "generous"):
        with pytest.raises(LedgerError, match="edited"):
            Ledger(path, dataset=name).spend(ONE, "b")
    sql(path, (swap,))
    change = "UPDATE datasets SET name = ? WHERE name = ?"
    names = (("x", "patients"), ("patients", "generous"), ("generous", "x"))
    sql(path, *((change, pair) for pair in names))
    with pytest.raises(LedgerError, match="edited"):
        Ledger(path, dataset="patients").spend(ONE, "b")


def test_the_terms_of_a_ledger_are_told_in_order(path):
    ledger = Ledger(path, dataset="patients", unlimited=True)
    ledger.spend(ONE, "a")
    ledger.change_ceiling(Budget(3.0, 1e-6), "first")
    ledger.spend(ONE, "b")
    ledger.change_ceiling(Budget(4.0, 1e-6), "second")
    again = Ledger(path)
    assert [(b.epsilon, why) for _, b, why in again.ceilings] == [(3.0, "first"), (4.0, "second")]
    assert again.rule == ledger.rule == "renyi" and len(again.spends) == 2


# --- a key of the owner ---------------------------------------------------------------------------


def test_a_key_finds_a_chain_that_was_recomputed(path, tmp_path):
    plain, keyed = tmp_path / "plain.db", tmp_path / "keyed.db"
    for file, key in ((plain, None), (keyed, KEY)):
        open_ledger(file, key=key).spend(ONE, "a")
        sql(file, ("UPDATE terms SET epsilon = 300.0",))
        rechained(file)
    assert Ledger(plain).budget.epsilon == 300.0  # what no file can detect without a key
    with pytest.raises(LedgerError, match="edited"):
        Ledger(keyed, key=KEY).spend(ONE, "b")
    for file, key in ((tmp_path / "cut.db", None), (tmp_path / "cut-keyed.db", KEY)):
        open_ledger(file, key=key).spend(GaussianProfile(0.1), "a")
        Ledger(file, key=key).spend(GaussianProfile(0.1), "b")
        sql(file, ("DELETE FROM spends WHERE number = 2",))
        head = sql(file, ("SELECT chain FROM spends",))[0][0][0]
        sql(file, ("UPDATE datasets SET seal = ?", (seal(head, None),)))
    with pytest.raises(LedgerError, match="has lost spends of 'patients'"):
        Ledger(tmp_path / "cut.db")
    ledger_file._LAST.clear()  # as in another process
    assert len(Ledger(tmp_path / "cut.db").spends) == 1
    with pytest.raises(LedgerError, match="last rows of 'patients' .* were removed"):
        Ledger(tmp_path / "cut-keyed.db", key=KEY).spend(ONE, "c")
    sql(keyed, ("UPDATE datasets SET key_mark = NULL",))
    assert Ledger(keyed).budget.epsilon == 300.0
    with pytest.raises(LedgerError, match="not protected by a key.* rewritten without it"):
        Ledger(keyed, key=KEY)


def test_a_protected_ledger_opens_with_its_key_only(path, tmp_path, monkeypatch):
    file = tmp_path / "owner.key"
    file.write_bytes(KEY)
    ledger = open_ledger(path, key=file)
    ledger.spend(ONE, "a")
    Ledger(path, key=KEY).change_ceiling(Budget(2.5, 1e-6), "agreed")
    pickle.loads(pickle.dumps(ledger)).spend(GaussianProfile(0.01), "b")
    assert KEY not in pickle.dumps(ledger) and "secret" not in repr(Ledger(path, key=KEY)._store)
    for options, message in (
        ({}, "is protected by a key. Pass key="),
        ({"read_only": True}, "is protected by a key"),
        ({"key": b"another secret of many bytes"}, "protected by another key"),
        ({"key": tmp_path / "none.key"}, "key file none.key can't be read"),
    ):
        with pytest.raises(LedgerError, match=message):
            Ledger(path, **options)
    monkeypatch.setenv(KEY_VARIABLE, str(file))
    assert len(Ledger(path).spends) == 2
    with pytest.raises(LedgerError, match="can't be pickled, because the copy would contain"):
        pickle.dumps(Ledger(path, key=KEY))
    file.write_bytes(b"short")
    with pytest.raises(LedgerError, match="holds 5 bytes; a key has at least 16"):
        Ledger(path)
    for key in (b"short", 3, ""):
        with pytest.raises(ParameterError, match="'key' parameter of Ledger"):
            Ledger(path, key=key)
    with pytest.raises(ParameterError, match="no 'key'"):
        Ledger(key=KEY)


# --- older versions -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(1, VERSION))
def test_an_older_file_keeps_its_spends_and_its_rule(path, version):
    """A rule that changed on the way would be no filter, so an upgrade keeps the one that applied."""
    old_ledger(path, version, [ONE, GaussianProfile(0.1)])
    with pytest.raises(LedgerError, match=f"older schema {version}"):
        Ledger(path, read_only=True)
    ledger = open_ledger(path)
    assert [s.label for s in ledger.spends] == ["old 1", "old 2"] and ledger.rule == "gaussian"
    ledger.spend(ONE, "new")
    assert ledger.spent.epsilon > 1.4 and ledger.accounting == "auto"
    assert sql(path, ("PRAGMA user_version",)) == [[(VERSION,)]]
    for change in ("UPDATE terms SET epsilon = 300", "UPDATE spends SET private = 0"):
        copy = path.with_name(f"{len(change)}.db")
        copy.write_bytes(path.read_bytes())
        sql(copy, (change,))
        with pytest.raises(LedgerError, match="edited"):
            Ledger(copy).spend(ONE, "x")


def test_what_an_older_file_asked_for_is_kept(tmp_path):
    for name, accounting, profiles, rule in (
        ("a", "auto", [PureProfile(0.1)], "basic"),
        ("b", "auto", [], None),
        ("c", "renyi", [ONE], "renyi"),
        ("d", "basic", [], "basic"),
    ):
        ceilings = ((1.0, 1e-6), (3.0, 1e-6))
        old_ledger(tmp_path / name, 3, profiles, accounting=accounting, ceilings=ceilings)
        ledger = Ledger(tmp_path / name)
        assert ledger.rule == rule and ledger.accounting == accounting
        assert [(b.epsilon, why) for _, b, why in ledger.ceilings] == [
            (1.0, "reason 0"),
            (3.0, "reason 1"),
        ]
        ledger.spend(GaussianProfile(0.01), "new")
        assert ledger._store.settings().leak_share == 1e-6  # as its filter was


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE spends SET plan = replace(plan, '0.2', '0.1')",
        "DELETE FROM spends WHERE number = 1",
        "DELETE FROM spends WHERE number = 2",
        "UPDATE datasets SET epsilon = 300",
        "UPDATE ceilings SET epsilon = 300",
    ],
)
@pytest.mark.parametrize("version", [2, 3])
def test_bringing_a_file_up_to_date_hides_no_edit(path, change, version):
    old_ledger(path, version, [ONE, ONE])
    sql(path, (change,))
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="edited|rows were removed"):
        open_ledger(path)
    assert path.read_bytes() == before


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        ("UPDATE datasets SET name = x'37'",),
        ("UPDATE terms SET parts = 'x'",),
        ("UPDATE terms SET parts = '[3]'",),
        ("UPDATE terms SET epsilon = -1.0",),
        ("UPDATE terms SET epsilon = 'much'",),
        ("UPDATE terms SET neighbours = 'friends'",),
        ("UPDATE terms SET rule = 'generous'",),
        ("UPDATE terms SET accounting = 'moments'",),
        ("UPDATE terms SET renyi_order = 0.5",),
        ("UPDATE terms SET leak_share = 1.5",),
        ("UPDATE spends SET prices = 'nothing'",),
        ("UPDATE spends SET prices = '[1]'",),
        ("UPDATE spends SET prices = '{\"a\": [NaN]}'",),
        ("UPDATE spends SET prices = '{\"a\": [-1.0]}'",),
        ("UPDATE spends SET prices = '{\"a\": 3}'",),
        ("UPDATE spends SET claim_epsilon = -1.0, claim_delta = 0.0",),
        ("UPDATE spends SET plan = 'x'",),
        ("UPDATE spends SET plan = '{}'",),
        ("UPDATE spends SET plan = '{\"parts\": 3}'",),
        ("UPDATE spends SET plan = '{\"parts\": []}'",),
    ],
)
def test_rows_that_mean_nothing_are_refused_in_a_sentence(path, change):
    open_ledger(path).spend(ONE, "a")
    sql(path, change)
    rechained(path)
    for attempt in (
        lambda: open_ledger(path).spend(GaussianProfile(0.1), "b"),
        lambda: Ledger(path, read_only=True).history(),
        lambda: Ledger(path).remaining,
    ):
        with pytest.raises(LedgerError, match="can't be read|is missing or was edited"):
            attempt()


def test_random_damage_is_told_in_a_sentence_or_changes_nothing(path, rng):
    ledger = open_ledger(path, parts=("north",))
    for i in range(4):
        ledger.spend(GaussianProfile(0.05), f"{i}", claim=Budget(0.2, 1e-6))
    ledger.change_ceiling(Budget(2.5, 1e-6), "agreed")
    whole, spent = path.read_bytes(), ledger.spent
    told = 0
    for _ in range(150):
        content = bytearray(whole)
        where = int(rng.integers(100, len(content)))
        match int(rng.integers(3)):
            case 0:
                content[where] ^= 1 << int(rng.integers(8))
            case 1:
                size = int(rng.integers(1, 400))
                content[where : where + size] = rng.bytes(size)
            case _:
                del content[where:]
        path.write_bytes(content)
        try:
            found = Ledger(path)
            assert found.budget == Budget(2.5, 1e-6) and found.spent == spent
            assert len(found.history()) == 4 and len(found.ceilings) == 2
        except DPKernelError as error:
            assert isinstance(error, LedgerError) and "\n" not in str(error)
            told += 1
    assert told > 30


# --- places that lose spends ----------------------------------------------------------------------


def test_a_file_mounted_alone_is_refused(path, tmp_path, monkeypatch):
    """As a container sees it that binds the file and not its folder."""
    odd = tmp_path / "a ledger.db"
    ledgers = [open_ledger(path), open_ledger(odd)]
    table = tmp_path / "mountinfo"
    places = ("/", str(path), str(odd).replace(" ", "\\040"))
    table.write_text(
        "".join(
            f"{i} 1 0:5{i} /x {place} rw,relatime - ext4 /dev/sda rw\n"
            for i, place in enumerate(places)
        )
    )
    monkeypatch.setattr(ledger_place, "_MOUNTS", table)
    for ledger in ledgers:
        with pytest.raises(LedgerError, match="mounted here without its folder"):
            ledger.spend(ONE, "a")
    open_ledger(tmp_path / "other.db").spend(ONE, "a")


def test_a_file_that_is_really_mounted_alone_is_refused(path, tmp_path):
    open_ledger(path)
    inside = tmp_path / "inside.db"
    inside.touch()
    program = (
        "import sys; from dpkernel import Ledger\n"
        "try: Ledger(sys.argv[1])\n"
        "except Exception as error: print(error)"
    )
    mount = f"mount --bind '{path}' '{inside}' && exec '{sys.executable}' -c \"$1\" '{inside}'"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", program], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip("this system allows no mounts")
    assert "inside.db is mounted here without its folder" in done.stdout


def test_a_folder_is_no_ledger(tmp_path):
    (tmp_path / "folder" / "below").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LedgerError, match="folder is a folder, so it can't be a ledger"):
        open_ledger(tmp_path / "folder")
    with pytest.raises(LedgerError, match="pipe is not an ordinary file"):
        open_ledger(tmp_path / "pipe")


def test_a_symbolic_link_leads_to_one_ledger_with_one_lock(path, tmp_path):
    open_ledger(path).spend(ONE, "a")
    (tmp_path / "shelf").mkdir()
    link = tmp_path / "shelf" / "same.db"
    link.symlink_to(path)
    Ledger(link).spend(GaussianProfile(0.1), "b")
    assert len(Ledger(path).spends) == 2
    assert [file.name for file in (tmp_path / "shelf").iterdir()] == ["same.db"]


def test_drafts_of_killed_processes_are_removed(path, monkeypatch):
    child = os.fork()
    if child == 0:
        ledger_place._put_in_place = lambda *_: os.kill(os.getpid(), 9)
        open_ledger(path)
        os._exit(1)
    os.waitpid(child, 0)
    (draft,) = path.parent.iterdir()
    open_ledger(path)
    assert draft.exists()  # it might be of a process that is about to lock it
    monkeypatch.setattr(ledger_place, "_YOUNG", -1.0)
    alive = path.with_name(f".{path.name}-{'a' * 32}")
    with alive.open("wb") as file:
        ledger_place.fcntl.flock(file, ledger_place.fcntl.LOCK_EX)
        Ledger(path)
        assert not draft.exists() and alive.exists()
    stranger = path.with_name(f".{path.name}-notes")
    stranger.touch()
    Ledger(path)
    assert stranger.exists() and not alive.exists()


# --- readers and writers --------------------------------------------------------------------------


def test_a_ledger_can_be_read_while_another_process_spends(path):
    """Every reading shows one state: rows and totals that belong together."""
    open_ledger(path, budget=Budget(100.0), accounting="basic")
    child = os.fork()
    if child == 0:
        try:
            ledger = Ledger(path)
            while True:
                ledger.spend(PureProfile(2.0**-10), "x")
                time.sleep(0.005)
        finally:
            os._exit(1)
    seen = []
    try:
        end = time.monotonic() + 20
        while len(seen) < 8 and time.monotonic() < end:
            reader = Ledger(path, read_only=True, timeout=20)
            numbers = [spend.number for spend in reader.spends]
            assert numbers == list(range(1, len(numbers) + 1))
            spent, rows = reader.spent, reader.history()
            low, high = len(numbers) * 2.0**-10, len(rows) * 2.0**-10
            assert spent is None or low <= spent.epsilon <= high
            seen.append(len(rows))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert seen == sorted(seen) and seen[-1] > seen[0]


def test_one_ledger_serves_ridge_classifier_and_regressor(path, rng):
    """The default rule locks no estimator out, whatever came first."""
    X, y = rng.uniform(-1, 1, (80, 2)), rng.uniform(0, 1, 80)
    budget = {"epsilon": 1.0, "delta": 1e-6}
    ledger = open_ledger(path, budget=Budget(3.0, 1e-6))
    PrivateKernelRidge(**budget, y_bounds=(0, 1), ledger=ledger).fit(X, y)
    PrivateKernelClassifier(**budget, classes=[0, 1], ledger=ledger).fit(X, np.where(y > 0.5, 1, 0))
    PrivateKernelRegressor(**budget, y_bounds=(0, 1), bounds=(-1, 1), ledger=ledger).fit(X, y)
    assert len(ledger.spends) == 3 and ledger.rule == "renyi"
    assert ledger.spent.epsilon <= 3.0 and ledger.spent.delta == 1e-6
    exported = json.loads(ledger.export(path.with_name("h.json")).read_text(encoding="utf-8"))
    assert exported["rule"] == "renyi"
    assert isinstance(ledger._store, FileStore)


def test_the_command_line_takes_the_key_from_a_file(path, tmp_path, monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    file = tmp_path / "owner.key"
    file.write_bytes(KEY)
    ceiling = ("--dataset", "patients", "--epsilon", "2", "--delta", "1e-6")
    monkeypatch.setenv(KEY_VARIABLE, "")  # so that what the command sets is undone afterwards

    def call(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    assert call("--key-file", file, "ledger", "create", path, *ceiling).exit_code == 0
    assert call("--key-file", file, "ledger", "list", path).exit_code == 0
    monkeypatch.setenv(KEY_VARIABLE, "")
    done = call("ledger", "list", path)
    assert done.exit_code == 1 and "protected by a key" in done.stderr


def test_a_ledger_without_a_ceiling_is_not_said_to_have_nothing_left(path):
    Ledger(path, dataset="patients", unlimited=True).spend(ONE, "a")
    told = CliRunner().invoke(app, ["ledger", "list", str(path)]).stdout
    assert "left nothing" not in told and "no ceiling is set" in told
