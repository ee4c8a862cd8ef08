"""The shared ledger: races, kills, copies, parts, exports and every way a file can be bad.

The races and kills run a few dozen times here and a thousand times under the slow marker.
"""

from __future__ import annotations

import contextlib
import copy
import csv
import json
import multiprocessing
import os
import pickle
import random
import resource
import signal
import sqlite3
import threading
import time
import traceback

import joblib
import numpy as np
import pytest
from joblib import Parallel, delayed
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import dpkernel.privacy.filters
import dpkernel.privacy.ledger
from dpkernel import Budget, Ledger, PrivateKernelRidge
from dpkernel.foundations.errors import (
    BudgetExceededError,
    LedgerError,
    ParameterError,
    PrivacyWarning,
)
from dpkernel.privacy import mechanisms
from dpkernel.privacy.ledger_file import dataset_names
from dpkernel.privacy.ledger_schema import VERSION
from dpkernel.privacy.noise import Part, Plan
from dpkernel.privacy.profiles import (
    ApproximateProfile,
    GaussianProfile,
    MixtureProfile,
    PureProfile,
    gaussian_mu,
)
from old_ledgers import old_file

ONE = GaussianProfile(gaussian_mu(1.0, 1e-6))
FORK = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.db"


def open_ledger(path, **options):
    return Ledger(path, **{"dataset": "patients", "budget": Budget(2.0, 1e-6), **options})


def in_child(action):
    """Run ``action`` in a forked child; return what it returned or the exception's name."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(action())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(child, 0)
    return text


# --- one budget, remembered -----------------------------------------------------------------------


def test_a_spend_is_on_file_before_noise_exists_and_stays_if_never_drawn(path):
    mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=1)
    noise = open_ledger(path).spend(mechanism.profile(), "means")
    (spend,) = Ledger(path).spends
    assert spend.label == "means" and spend.state == "recorded, not drawn"
    assert Ledger(path).spent.epsilon == pytest.approx(1.0)
    mechanism.release([1.0], noise)
    assert Ledger(path).spends[0].state == "drawn"


def test_the_file_remembers_ceiling_relation_and_rule(path):
    open_ledger(path, neighbours="zero-out", accounting="basic").spend(PureProfile(0.5), "a")
    again = Ledger(path)
    assert again.budget == Budget(2.0, 1e-6) and again.neighbours.value == "zero-out"
    assert again.accounting == "basic" and again.spent == Budget(0.5)
    assert again.dataset == "patients" and Ledger().dataset is None
    for options, message in (
        ({"budget": Budget(3.0, 1e-6)}, "recorded with the ceiling epsilon = 2"),
        ({"neighbours": "replace-one"}, "recorded with 'zero-out' neighbours"),
        ({"accounting": "renyi"}, "recorded with accounting='basic'"),
    ):
        with pytest.raises(LedgerError, match=message):
            Ledger(path, dataset="patients", **options)
    assert len(Ledger(path).spends) == 1


def test_a_plan_is_reserved_whole_or_not_at_all(path):
    ledger = open_ledger(path)
    parts = tuple(Part(f"stage {i}", ONE) for i in range(4))
    with pytest.raises(BudgetExceededError, match="does not fit"):
        ledger.spend(Plan(parts), "four stages")
    assert ledger.spends == []
    noise = ledger.spend(Plan(parts[:3]), "three stages")
    noise.claim(ONE)
    assert Ledger(path).spends[0].state == "partly drawn"


def test_folds_are_on_file_and_cost_one(path):
    ledger = Ledger(path, dataset="d", budget=Budget(1.0, 1e-6))
    ledger.spend(Plan((Part("folded", ONE, folds=5),)), "x")
    (spend,) = Ledger(path).spends
    assert spend.plan["parts"][0]["folds"] == 5 and spend.profile == ONE
    assert Ledger(path).spent.epsilon <= 1.0


def test_two_data_sets_in_one_file_have_two_budgets(path):
    open_ledger(path).spend(ONE, "a")
    other = open_ledger(path, dataset="visits", budget=Budget(1.0))
    other.spend(PureProfile(1.0), "b")
    assert len(other.spends) == 1 and other.spent == Budget(1.0)
    with pytest.raises(
        LedgerError, match="holds 2 data sets \\('patients', 'visits'\\). Say which"
    ):
        Ledger(path)


def test_ceilings_are_changed_on_record_and_never_below_what_is_spent(path):
    ledger = open_ledger(path)
    ledger.spend(ONE, "a")
    with pytest.raises(LedgerError, match="already spent. Nothing was changed"):
        ledger.change_ceiling(Budget(0.5, 1e-6), "economy")
    assert ledger.budget == Budget(2.0, 1e-6)
    ledger.change_ceiling(Budget(4.0, 1e-6), "ethics board, 12 May")
    assert Ledger(path).budget == Budget(4.0, 1e-6)
    assert [(b, why) for _, b, why in ledger.ceilings] == [
        (Budget(2.0, 1e-6), "when the ledger was made"),
        (Budget(4.0, 1e-6), "ethics board, 12 May"),
    ]
    with pytest.raises(ParameterError, match="'reason' parameter of Ledger"):
        ledger.change_ceiling(Budget(5.0, 1e-6), "")
    with pytest.raises(ParameterError, match="'budget' parameter of change_ceiling"):
        ledger.change_ceiling(3.0, "x")


def test_renyi_order_stays_that_of_the_first_ceiling(path):
    ledger = open_ledger(path, accounting="renyi")
    ledger.spend(ONE, "a")
    before = ledger._store.settings().renyi_order
    ledger.change_ceiling(Budget(20.0, 1e-6), "more")
    assert Ledger(path)._store.settings().renyi_order == before
    assert Ledger(path).rule == "renyi"


def test_remaining_is_reported_next_to_the_naive_sum(path):
    ledger = open_ledger(path)
    for i in range(3):
        ledger.spend(ONE, f"{i}", claim=Budget(1.0, 1e-6))
    assert ledger.naive.epsilon == pytest.approx(3.0) and ledger.naive.delta == pytest.approx(3e-6)
    assert 1.8 < ledger.spent.epsilon < 2.0 and ledger.spent.delta == 1e-6
    assert ledger.remaining.epsilon < 1.0 and ledger.remaining.delta == 1e-6


def test_forecast_tells_and_records_nothing(path):
    ledger = open_ledger(path)
    ledger.spend(ONE, "a")
    good = ledger.forecast(ONE, claim=Budget(1.0, 1e-6))
    assert good.fits and good.spent.epsilon > 1.3 and good.naive.epsilon == pytest.approx(2.0)
    bad = ledger.forecast(Plan(tuple(Part(str(i), ONE) for i in range(3))))
    assert not bad.fits and bad.remaining is None
    assert ledger.forecast(MixtureProfile((0.1, 0.2), (0.5, 0.5))).fits  # another kind
    assert not ledger.forecast(ApproximateProfile(0.1, 1e-6)).fits  # a delta that it refuses
    assert len(ledger.spends) == 1


# --- disjoint parts -------------------------------------------------------------------------------


def test_disjoint_parts_count_by_their_maximum(path):
    sites = ("site-A", "site-B", "site-C")
    ledger = open_ledger(path, budget=Budget(2.0), parts=sites)
    a, b = ledger.part("site-A"), ledger.part(" site-B ")
    with pytest.raises(ParameterError, match="one of the declared parts"):
        ledger.part("site-D")
    with pytest.raises(LedgerError, match="recorded with the parts"):
        open_ledger(path, budget=Budget(2.0), parts=("site-A",))
    a.spend(PureProfile(1.0), "a1")
    b.spend(PureProfile(1.5), "b1")
    assert ledger.spent == Budget(1.5)
    assert a.remaining == Budget(1.0) and b.remaining == Budget(0.5)
    assert ledger.remaining == Budget(0.5)
    with pytest.raises(BudgetExceededError):
        b.spend(PureProfile(0.6), "b2")
    with pytest.raises(BudgetExceededError):
        ledger.spend(PureProfile(0.6), "on the whole, which site B has no room for")
    a.spend(PureProfile(1.0), "a2")
    ledger.part("site-C").spend(PureProfile(2.0), "c1")
    assert ledger.naive == Budget(5.5)
    assert [s.part for s in Ledger(path).spends] == ["site-A", "site-B", "site-A", "site-C"]


def test_spends_on_the_whole_count_for_every_part(path):
    ledger = open_ledger(path, budget=Budget(2.0), parts=["new"])
    ledger.spend(PureProfile(1.5), "whole")
    assert ledger.part("new").spent == Budget(1.5)
    with pytest.raises(BudgetExceededError):
        ledger.part("new").spend(PureProfile(0.6), "x")
    ledger.part("new").spend(PureProfile(0.5), "x")


def test_parts_are_ledgers_for_estimators_and_survive_pickling(path, rng):
    X, y = rng.random((30, 2)), rng.random(30)
    whole = open_ledger(path, parts=("site-A", "ward 3"))
    site = pickle.loads(pickle.dumps(whole.part("site-A")))
    PrivateKernelRidge(y_bounds=(0, 1), ledger=site).fit(X, y)
    assert [s.part for s in Ledger(path).spends] == ["site-A"]
    assert "part 'site-A'" in repr(site)
    with pytest.raises(LedgerError, match="can't be divided further"):
        site.part("ward 3")
    with pytest.raises(ParameterError, match="'name' parameter of Ledger.part"):
        whole.part("")
    with pytest.raises(ParameterError, match="'parts' parameter of Ledger"):
        Ledger(parts=("a", "a "))


def test_totals_of_parts_are_the_worst_of_each_number(path):
    ledger = open_ledger(path, budget=Budget(2.0, 1e-6), accounting="basic", parts=("a", "b"))
    ledger.part("a").spend(ONE, "a", claim=Budget(1.0, 1e-7))
    ledger.part("b").spend(GaussianProfile(0.05), "b", claim=Budget(0.5, 9e-7))
    assert ledger.spent.delta == 9e-7
    assert ledger.spent.epsilon == pytest.approx(ONE.epsilon(1e-7))
    left = ledger.remaining
    assert left.delta == pytest.approx(1e-7)
    rest = mechanisms.Gaussian.calibrate(1.0, left, dimension=1)
    ledger.spend(rest.profile(), "on the whole", claim=left)


# --- copies, workers, cross-validation --------------------------------------------------------------


def fit_in_worker(ledger, seed):
    rng = np.random.default_rng(seed)
    model = PrivateKernelRidge(epsilon=0.5, y_bounds=(0, 1), ledger=ledger)
    model.fit(rng.random((20, 2)), rng.random(20))
    return os.getpid()


def test_clone_pickle_and_fork_point_at_the_same_file(path):
    ledger = open_ledger(path)
    model = PrivateKernelRidge(epsilon=0.1, y_bounds=(0, 1), ledger=ledger)
    assert clone(model).ledger is ledger
    pickle.loads(pickle.dumps(model)).ledger.spend(GaussianProfile(0.01), "pickled")
    assert in_child(lambda: ledger.spend(GaussianProfile(0.01), "forked") and "ok") == "ok"
    ledger.spend(GaussianProfile(0.01), "parent")
    assert [s.label for s in ledger.spends] == ["pickled", "forked", "parent"]


def test_joblib_workers_share_the_budget(path):
    ledger = open_ledger(path)
    processes = Parallel(n_jobs=2)(delayed(fit_in_worker)(ledger, i) for i in range(6))
    assert os.getpid() not in processes
    assert len(ledger.spends) == 6 and all(s.state == "drawn" for s in ledger.spends)


def test_dask_workers_share_the_budget(path):
    from dask.distributed import Client, LocalCluster

    ledger = open_ledger(path)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        tasks = [client.submit(fit_in_worker, ledger, i, pure=False) for i in range(6)]
        processes = client.gather(tasks)
    assert os.getpid() not in processes
    assert len(Ledger(path).spends) == 6


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_grid_search_of_ten_fits_under_a_ceiling_of_two(path, rng, jobs):
    """Three Gaussian fits at epsilon 1 fit under (2, 1e-6); the other seven are refused."""
    X, y = rng.random((60, 2)), rng.random(60)
    ledger = open_ledger(path)
    search = GridSearchCV(
        PrivateKernelRidge(epsilon=1.0, delta=1e-6, y_bounds=(0, 1), ledger=ledger),
        {"length_scale": [0.1, 0.3, 1.0, 3.0, 10.0]},
        cv=2,
        n_jobs=jobs,
        refit=False,
    )
    with pytest.warns(FitFailedWarning, match="7 fits failed out of a total of 10"):
        search.fit(X, y)
    assert len(ledger.spends) == 3
    assert 1.8 < ledger.spent.epsilon <= 2.0
    with pytest.raises(BudgetExceededError):
        ledger.spend(ONE, "one more")


def test_cross_validation_without_a_ledger_warns_once(rng, recwarn):
    X, y = rng.random((40, 2)), rng.random(40)
    model = PrivateKernelRidge(y_bounds=(0, 1))
    with pytest.warns(PrivacyWarning, match="Several clones .* without a ledger"):
        cross_val_score(model, X, y, cv=4)
    recwarn.clear()
    cross_val_score(model, X, y, cv=3)
    for _ in range(3):
        model.fit(X, y)  # fitting one object again is no cross-validation
    assert not [w for w in recwarn if issubclass(w.category, PrivacyWarning)]


def test_cross_validation_in_other_processes_warns_here(rng):
    X, y = rng.random((40, 2)), rng.random(40)
    with pytest.warns(PrivacyWarning, match="Several clones .* without a ledger") as caught:
        cross_val_score(PrivateKernelRidge(y_bounds=(0, 1)), X, y, cv=4, n_jobs=2)
    assert len([w for w in caught if issubclass(w.category, PrivacyWarning)]) == 1


def test_innocent_clones_do_not_warn(rng, recwarn):
    X, y = rng.random((40, 2)), rng.random(40)
    model = PrivateKernelRidge(y_bounds=(0, 1))
    make_pipeline(FunctionTransformer(), model).fit(X, y)
    twice = clone(clone(model)).set_params(epsilon=2.0)
    for _ in range(3):
        twice.fit(X, y)
        pickle.dumps(twice), joblib.hash(twice), copy.copy(twice)
    pickle.loads(pickle.dumps(model.fit(X, y)))
    assert not [w for w in recwarn if issubclass(w.category, PrivacyWarning)]


def test_cross_validation_with_a_ledger_does_not_warn(path, rng, recwarn):
    X, y = rng.random((40, 2)), rng.random(40)
    ledger = open_ledger(path, budget=Budget(50.0, 1e-5))
    cross_val_score(PrivateKernelRidge(y_bounds=(0, 1), ledger=ledger), X, y, cv=4)
    assert len(ledger.spends) == 4
    assert not [w for w in recwarn if issubclass(w.category, PrivacyWarning)]


def test_the_certificate_says_that_selection_by_scores_is_not_covered(rng):
    model = PrivateKernelRidge(y_bounds=(0, 1)).fit(rng.random((20, 2)), rng.random(20))
    assert any("un-noised scores" in text for text in model.certificate_.not_covered)
    assert "un-noised scores" in model.certificate_.to_json()


# --- races and kills --------------------------------------------------------------------------------


def race_worker(path, rounds, barrier, wins, slot):
    try:
        for i in range(rounds):
            ledger = Ledger(path, dataset=f"race {i}", budget=Budget(1.0), timeout=120)
            barrier.wait(120)
            try:
                ledger.spend(PureProfile(0.25), "the last one")
                wins[slot * rounds + i] = 1
            except BudgetExceededError:
                pass
            barrier.wait(120)
    except BaseException:
        traceback.print_exc()
        barrier.abort()
        os._exit(1)


def run_race(path, rounds, processes=8):
    """Return (rounds in which not exactly one won, rounds with an overspend)."""
    for i in range(rounds):
        Ledger(path, dataset=f"race {i}", budget=Budget(1.0)).spend(PureProfile(0.75), "before")
    barrier = FORK.Barrier(processes)
    wins = FORK.Array("i", rounds * processes)
    workers = [
        FORK.Process(target=race_worker, args=(path, rounds, barrier, wins, slot))
        for slot in range(processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * processes
    wrong = sum(sum(wins[i::rounds]) != 1 for i in range(rounds))
    over = 0
    for i in range(rounds):
        ledger = Ledger(path, dataset=f"race {i}")
        over += ledger.spent.epsilon > 1.0 or len(ledger.spends) != 2
    return wrong, over


def test_eight_processes_racing_for_the_last_spend(path):
    assert run_race(path, 10) == (0, 0)


@pytest.mark.slow
def test_eight_processes_racing_a_thousand_times(path):
    assert run_race(path, 1000) == (0, 0)


def spend_until_killed(path, log, ready):
    ledger = Ledger(path)
    os.write(ready, b"!")
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        noise = ledger.spend(PureProfile(2.0**-20), "spend")
        os.write(handle, b"r\n")  # the spend was acknowledged
        os.write(ready, b"!")
        noise.claim(PureProfile(2.0**-20))


def run_kills(path, log, kills, seed):
    """Return (acknowledged, recorded) spends after that many kills at random moments."""
    Ledger(path, dataset="killed", budget=Budget(100.0))
    dice, since = random.Random(seed), 0
    acknowledged = recorded = 0
    for _ in range(kills):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                spend_until_killed(path, log, writer)
            finally:
                os._exit(1)
        os.close(writer)
        os.read(reader, 1)
        if dice.random() < 0.5:
            os.read(reader, 1)  # after a spend, however slow the machine is
        time.sleep(dice.uniform(0.0, 0.03))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(reader)
        assert os.WIFSIGNALED(status), "the child ended by itself"
        since += 1
        if dice.random() < 0.3:
            # start from an empty history now and then, so that spends stay fast
            found = assert_nothing_lost(path, log, since)
            acknowledged, recorded, since = acknowledged + found[0], recorded + found[1], 0
            path.unlink()
            log.unlink(missing_ok=True)
            Ledger(path, dataset="killed", budget=Budget(100.0))
    found = assert_nothing_lost(path, log, since)
    return acknowledged + found[0], recorded + found[1]


def assert_nothing_lost(path, log, kills):
    """Every acknowledged spend is recorded; each kill leaves at most one that was not acknowledged."""
    acknowledged = len(log.read_bytes().splitlines()) if log.exists() else 0
    ledger = Ledger(path)
    spends = ledger.spends
    assert [s.number for s in spends] == list(range(1, len(spends) + 1))
    assert acknowledged <= len(spends) <= acknowledged + kills
    drawn = sum(s.state == "drawn" for s in spends)
    assert drawn <= acknowledged
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    return acknowledged, len(spends)


def test_kills_at_random_points_lose_no_record(path, tmp_path, seed):
    acknowledged, _ = run_kills(path, tmp_path / "log", 25, seed)
    assert acknowledged > 0


@pytest.mark.slow
def test_a_thousand_kills_lose_no_record(path, tmp_path, seed):
    acknowledged, recorded = run_kills(path, tmp_path / "log", 1000, seed)
    print(f"{acknowledged} spends acknowledged, {recorded} recorded")
    assert acknowledged > 1000


# --- reading ------------------------------------------------------------------------------------------


def test_export_json_and_csv(path, tmp_path):
    ledger = open_ledger(path)
    ledger.spend(ONE, "a, with a comma", claim=Budget(1.0, 1e-6))
    data = json.loads(ledger.export(tmp_path / "h.json").read_text(encoding="utf-8"))
    assert data["dataset"] == "patients" and data["rule"] == "renyi"
    assert data["spends"][0]["plan"]["profile"] == ONE.to_dict()
    with ledger.export(tmp_path / "h.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert row["label"] == "a, with a comma" and row["state"] == "recorded, not drawn"
    assert float(row["epsilon"]) == pytest.approx(1.0)
    with pytest.raises(ParameterError, match=r"ending in \.json or \.csv"):
        ledger.export(tmp_path / "h.xlsx")


def test_plot_writes_a_picture(path, tmp_path):
    ledger = open_ledger(path)
    empty = ledger.plot(tmp_path / "empty.png").read_bytes()
    ledger.spend(ONE, "a")
    ledger.spend(ONE, "b")
    full = ledger.plot(tmp_path / "full.png").read_bytes()
    assert empty[:8] == full[:8] == b"\x89PNG\r\n\x1a\n" and empty != full


def test_read_only_reads_and_refuses_to_spend(path):
    open_ledger(path).spend(ONE, "a")
    before = path.read_bytes()
    reader = Ledger(path, read_only=True)
    assert len(reader.spends) == 1 and reader.remaining is not None
    for attempt in (
        lambda: reader.spend(ONE, "b"),
        lambda: reader.change_ceiling(Budget(9.0, 1e-6), "x"),
    ):
        with pytest.raises(LedgerError, match="read_only=True"):
            attempt()
    assert path.read_bytes() == before


def test_memory_ledgers_have_no_data_set():
    with pytest.raises(ParameterError, match="Pass a file name"):
        Ledger(dataset="x")


@pytest.mark.parametrize(
    "content", [b"not a database, just text " * 100, b"SQLite format 3\x00" + b"\xff" * 4000]
)
def test_files_that_are_no_database(path, content):
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="not a ledger file, or it is damaged"):
        open_ledger(path)
    assert path.read_bytes() == content


def test_a_damaged_ledger(path):
    ledger = open_ledger(path)
    for i in range(20):
        ledger.spend(GaussianProfile(0.01), f"{i}")
    content = bytearray(path.read_bytes())
    content[4096 : len(content)] = bytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="damaged"):
        Ledger(path).spend(GaussianProfile(0.01), "x")
    assert path.read_bytes() == bytes(content)


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_another_programs_database(path, mode):
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE recipes (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="another program"):
        open_ledger(path)
    assert path.read_bytes() == before


def test_a_newer_schema(path):
    open_ledger(path)
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    with pytest.raises(LedgerError, match="newer dpkernel"):
        open_ledger(path)


def test_a_misspelt_name_is_no_new_budget(path, tmp_path):
    open_ledger(path).spend(ONE, "a")
    with pytest.raises(LedgerError, match="no data set 'patient', only 'patients'"):
        Ledger(path, dataset="patient")
    for options in ({}, {"dataset": "patients"}):
        with pytest.raises(LedgerError, match=r"no ledger file typo\.db"):
            Ledger(tmp_path / "typo.db", **options)
    assert not (tmp_path / "typo.db").exists()
    Ledger(path, dataset="free", unlimited=True).spend(GaussianProfile(9.0), "x")
    assert Ledger(path, dataset="free").budget is None


def test_an_emptied_or_deleted_ledger_is_no_fresh_one(path):
    ledger = open_ledger(path)
    ledger.spend(ONE, "a")
    os.truncate(path, 0)
    for attempt in (
        lambda: open_ledger(path),
        lambda: ledger.spend(ONE, "b"),
        lambda: ledger.spends,
    ):
        with pytest.raises(LedgerError, match="is empty, which a ledger never is"):
            attempt()
    path.unlink()
    with pytest.raises(LedgerError, match="is gone"):
        ledger.spend(ONE, "b")
    assert not path.exists()


def test_a_ledger_file_follows_the_umask(tmp_path):
    old = os.umask(0o002)
    try:
        open_ledger(tmp_path / "group.db").spend(ONE, "a")
    finally:
        os.umask(old)
    assert (tmp_path / "group.db").stat().st_mode & 0o777 == 0o664


def test_a_kill_while_the_file_is_made_leaves_a_usable_ledger(path):
    open_ledger(path).spend(ONE, "a")
    os.link(path, path.with_name(f".{path.name}-{32 * '0'}"))  # the draft that was not removed
    assert len(Ledger(path).spends) == 1
    assert not list(path.parent.glob(".*"))


def test_a_file_system_without_hard_links(path, monkeypatch):
    def no_links(*args):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    open_ledger(path).spend(ONE, "a")
    open_ledger(path).spend(ONE, "b")
    assert len(Ledger(path).spends) == 2


def test_a_forked_child_does_not_keep_the_lock(path):
    ledger = open_ledger(path, timeout=1.0)
    children = []

    def admit(settings, earlier):
        child = os.fork()
        if child == 0:
            time.sleep(5)
            os._exit(0)
        children.append(child)
        return settings

    ledger._store.append(ledger._line(ONE, "a", None, None, True)[1], admit)
    try:
        ledger.spend(ONE, "b")
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)
    assert len(ledger.spends) == 2


def test_one_data_set_has_one_spelling(path):
    open_ledger(path, dataset="caf\u00e9").spend(ONE, "a")
    assert len(open_ledger(path, dataset=" cafe\u0301 ").spends) == 1


SPELLINGS = {
    "fullwidth": "\uff44\uff41\uff54\uff41",
    "capitals": "DATA",
    "spaces": "  data\u3000",
    "mathematical": "\U0001d41d\U0001d41a\U0001d42d\U0001d41a",
}
HIDDEN = {
    "zero width space": "data\u200b",
    "joiner": "da\u200dta",
    "soft hyphen": "da\u00adta",
    "direction": "\u202edata",
    "byte order mark": "\ufeffdata",
    "control": "data\x08",
    "line": "da\nta",
    "variation selector": "data\ufe0f",
    "filler": "data\u3164",
    "tag": "data\U000e0061",
    "private use": "data\ue000",
    "Cyrillic a": "d\u0430ta",
    "Greek omicron": "c\u03bfhort",
    "surrogate": "data\ud800",
    "nothing": "\u2800",
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_a_name_that_looks_the_same_is_the_same_budget(path, spelling):
    """One table under two names would be released twice at the full ceiling."""
    open_ledger(path, dataset="data", parts=("data", "other")).spend(ONE, "a")
    again = open_ledger(path, dataset=spelling)
    assert len(again.spends) == 1
    again.part(spelling).spend(ONE, "b")
    assert [s.part for s in again.spends] == [None, "data"]
    with pytest.raises(LedgerError, match="recorded with the ceiling"):
        open_ledger(path, dataset=spelling, budget=Budget(1.0, 1e-6))
    with pytest.raises(ParameterError, match="'parts' parameter"):
        Ledger(parts=("data", spelling))
    with pytest.raises(ParameterError, match="'parts' parameter"):
        open_ledger(path, dataset="new", parts=("data", spelling))


@pytest.mark.parametrize("name", HIDDEN.values(), ids=HIDDEN)
def test_a_name_with_what_does_not_show_is_refused(path, name):
    with pytest.raises(ParameterError, match="'dataset' parameter"):
        open_ledger(path, dataset=name)
    assert not path.exists()
    ledger = open_ledger(path, dataset="data", parts=("data",))
    with pytest.raises(ParameterError, match="'dataset' parameter"):
        open_ledger(path, dataset=name)
    for attempt in (
        lambda: Ledger(parts=(name,)),
        lambda: open_ledger(path, dataset="new", parts=(name,)),
        lambda: ledger.part(name),
    ):
        with pytest.raises(ParameterError, match="'parts' parameter"):
            attempt()


@pytest.mark.parametrize(
    "name",
    [
        "\u03b2-blockers",
        "\u043f\u0430\u0446\u0438\u0435\u043d\u0442\u044b 2026",
        "\u60a3\u8005-A",
        "na\u00efve",
    ],
)
def test_names_in_any_one_alphabet_are_fine(path, name):
    if name.startswith("\u03b2"):
        with pytest.raises(ParameterError, match="letters of one alphabet"):
            open_ledger(path, dataset=name)
        name = "\u03b2-\u03b1 2026"
    open_ledger(path, dataset=name, parts=(name,)).part(name).spend(ONE, "a")
    assert Ledger(path)._store.dataset == name


def test_names_that_an_older_version_told_apart_stay_readable(path):
    old = {"data": 1, "Data": 2, "data\u200b": 3}
    with old_file(path, 3) as connection:
        for name in old:
            connection.execute(
                "INSERT INTO datasets (name, epsilon, delta, neighbours, accounting, created, parts)"
                " VALUES (?, 2.0, 1e-6, 'replace-one', 'auto', 'then', '[\"p\u200b\"]')",
                (name,),
            )
    for name, spends in old.items():
        for i in range(spends):
            Ledger(path, dataset=name).spend(PureProfile(0.01), f"{i}")
    assert {name: len(Ledger(path, dataset=name).spends) for name in old} == old
    Ledger(path, dataset="Data").part("p\u200b").spend(PureProfile(0.01), "x")
    Ledger(path, dataset="Data").part("p").spend(PureProfile(0.01), "x")
    with pytest.raises(LedgerError, match=r"'DATA' may mean any of \['data', 'Data', 'data"):
        Ledger(path, dataset="DATA")


def test_racing_processes_make_one_data_set_of_two_spellings(path):
    open_ledger(path)
    spellings = [f"{name} {i}" for i in range(8) for name in ("cohort", "COHORT")]

    def make(which):
        for name in spellings[which::2]:
            ledger = Ledger(path, dataset=name, budget=Budget(1.0), timeout=60)
            with contextlib.suppress(BudgetExceededError):
                ledger.spend(PureProfile(0.6), "x")

    children = [FORK.Process(target=make, args=(i % 2,)) for i in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    names = dataset_names(path)
    assert len(names) == 1 + 8 == len({name.casefold() for name in names})
    assert all(len(Ledger(path, dataset=name).spends) <= 1 for name in names)


def test_the_repr_of_a_lost_ledger_does_not_raise(path):
    ledger = open_ledger(path)
    path.unlink()
    assert "can't be read" in repr(ledger)


def test_hard_links_are_refused(path, tmp_path):
    open_ledger(path)
    os.link(path, tmp_path / "second.db")
    with pytest.raises(LedgerError, match="several names"):
        Ledger(path)


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM spends WHERE number = 1",
        "DELETE FROM spends WHERE number = 2",
        "UPDATE spends SET dataset = 77 WHERE number = 2",
        "UPDATE spends SET plan = replace(plan, '0.2', '0.1')",
        "UPDATE spends SET part = 'north'",
        "UPDATE spends SET private = 0",
    ],
)
def test_removed_and_edited_rows_are_noticed(path, change):
    ledger = open_ledger(path)
    ledger.spend(ONE, "a")
    ledger.spend(GaussianProfile(0.2), "b")
    with sqlite3.connect(path) as connection:
        connection.execute(change)
    for attempt in (lambda: ledger.spends, lambda: Ledger(path).spend(GaussianProfile(0.01), "c")):
        with pytest.raises(LedgerError, match=r"missing or was edited|rows of .* were removed"):
            attempt()


def edit(path, change):
    with sqlite3.connect(path) as connection:
        assert connection.execute(change).rowcount == 1


def test_an_edit_between_two_spends_of_a_process_gives_no_budget(path):
    """Rows that a process has checked are not read again at every spend, only when opened again."""
    ledger, half = open_ledger(path), GaussianProfile(gaussian_mu(1.0, 1e-6) / 2)
    for label in "abc":
        ledger.spend(half, label)
    cheap = f"prices = '{{}}', plan = replace(plan, '{half.mu}', '0.0')"
    edit(path, f"UPDATE spends SET {cheap} WHERE number = 1")
    ledger.spend(GaussianProfile(1e-3), "d")
    with pytest.raises(BudgetExceededError, match=r"of 4 earlier spend\(s\)"):
        ledger.spend(GaussianProfile(gaussian_mu(2.0, 1e-6) * 0.9), "e")
    for attempt in (
        lambda: ledger.spends,
        lambda: ledger.spent,
        lambda: open_ledger(path).check(ONE, "f"),
        lambda: open_ledger(path).spend(GaussianProfile(0.01), "f"),
    ):
        with pytest.raises(LedgerError, match="Spend 1 of 'patients'.* was edited"):
            attempt()


def test_an_older_copy_that_takes_the_place_of_a_ledger_is_refused(path):
    """By the process that has spent more; nothing is drawn for a spend that the copy does not have."""
    mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(0.1, 1e-7), dimension=1)
    ledger, profile = open_ledger(path), mechanism.profile()
    ledger.spend(profile, "a")
    early = path.read_bytes()
    mechanism.release([1.0], ledger.spend(profile, "b"))
    late = path.read_bytes()
    path.write_bytes(early)
    for attempt in (
        lambda: ledger.spend(profile, "another b"),
        lambda: ledger.check(profile, "c"),
        lambda: open_ledger(path).spend(profile, "another b"),
    ):
        with pytest.raises(LedgerError, match="has lost spends of 'patients'"):
            attempt()
    path.write_bytes(late)
    paid = ledger.spend(profile, "c")
    path.write_bytes(late)
    with pytest.raises(LedgerError, match="has lost spends"):
        mechanism.release([1.0], paid)


def test_an_older_copy_is_refused_after_many_other_ledgers_and_one_in_the_same_place(path):
    ledger = open_ledger(path)
    early = path.read_bytes()
    ledger.spend(GaussianProfile(0.1), "a")
    others = [path.with_name(f"{number}.db") for number in range(17)]
    for other in others:
        open_ledger(other).spend(GaussianProfile(0.1), "b")
    late = path.read_bytes()
    path.write_bytes(early)
    with pytest.raises(LedgerError, match="has lost spends"):
        ledger.spend(GaussianProfile(0.1), "another a")
    path.write_bytes(others[0].read_bytes())
    assert [spend.label for spend in open_ledger(path).spends] == ["b"]
    path.write_bytes(early)
    with pytest.raises(LedgerError, match="has lost spends"):
        open_ledger(path)
    path.write_bytes(late)
    open_ledger(path).spend(GaussianProfile(0.1), "c")


@pytest.mark.parametrize(
    ("same_ledger", "there"),
    [(True, "b"), (False, "ab"), (False, "a")],
    ids=["older copy", "another ledger", "a shorter ledger"],
)
def test_nothing_is_drawn_for_a_lost_spend_if_another_one_may_have_its_number(
    path, tmp_path, same_ledger, there
):
    mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(0.1, 1e-7), dimension=1)
    ledger, other = open_ledger(path), tmp_path / "other.ledger"
    ledger.spend(mechanism.profile(), "a")
    if same_ledger:
        other.write_bytes(path.read_bytes())
    replacement = open_ledger(other)
    paid = ledger.spend(mechanism.profile(), "b")
    for label in there:
        replacement.spend(mechanism.profile(), label)
    path.write_bytes(other.read_bytes())
    with pytest.raises(LedgerError, match="has lost spends"):
        mechanism.release([1.0], paid)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM draws").fetchone() == (0,)


def test_another_ledger_that_takes_the_place_of_a_ledger_is_read_anew(path):
    ledger = open_ledger(path)
    ledger.spend(GaussianProfile(0.1), "a")
    ledger.check(GaussianProfile(0.1), "b")
    other = path.with_name("other.db")
    open_ledger(other)
    path.write_bytes(other.read_bytes())
    ledger.spend(GaussianProfile(0.2), "another a")
    assert [(s.label, s.number) for s in ledger.spends] == [("another a", 1)]


def test_what_a_rule_computed_is_on_file_for_other_processes(path, monkeypatch):
    """A bound may take long to compute: each is computed once, and again by another version."""
    computed = []

    def count(profile, delta):
        computed.append(profile)
        return profile.epsilon(delta)

    monkeypatch.setattr(dpkernel.privacy.filters, "epsilon_at", count)
    claim, later = Budget(0.2, 1e-7), Budget(0.1, 1e-7)
    first, second = (GaussianProfile(gaussian_mu(b.epsilon, b.delta)) for b in (claim, later))
    options = {"accounting": "basic"}
    open_ledger(path, **options).spend(first, "a", claim=claim)
    assert first in computed
    computed.clear()
    again = open_ledger(path, **options)
    again.spend(second, "b", claim=later)
    assert set(computed) == {second}
    assert again.spent.epsilon == pytest.approx(0.3)
    computed.clear()
    monkeypatch.setattr(dpkernel.privacy.filters, "__version__", "99.0")
    fresh = open_ledger(path, **options)
    fresh.spend(second, "c", claim=later)
    assert set(computed) == {first, second}
    assert fresh.spent.epsilon == pytest.approx(0.4)


@pytest.mark.parametrize("rule", ["gaussian", "renyi", "basic"])
def test_prices_on_file_are_those_of_the_profiles(path, rule):
    """Totals do not depend on whether prices were computed or read."""
    ledger = open_ledger(path, accounting=rule)
    spends = [(PureProfile(0.1), None), (GaussianProfile(0.1), Budget(0.6, 1e-8))]
    for profile, claim in [*spends, (GaussianProfile(0.05), None), *spends]:
        ledger.spend(profile, "a", claim=claim)
    lines = ledger.spends
    assert sum(bool(line.prices) for line in lines) == (4 if rule == "basic" else 5)
    spent, left = ledger.spent, ledger.remaining
    for line in lines:
        line.prices.clear()
    order = ledger._store.settings().renyi_order
    found = dpkernel.privacy.filters.resolve_filter(rule, ledger.budget, order)
    assert found.spent(lines) == spent and found.remaining(lines) == left


def test_reading_the_file_by_other_means_does_not_open_the_door(path):
    """POSIX drops a process's locks on a file when any handle of it is closed."""
    ledger = open_ledger(path, budget=Budget(1.0))

    def rival():
        try:
            Ledger(path, timeout=0.1).spend(PureProfile(0.8), "rival")
        except LedgerError as error:
            return str(error)
        return "spent"

    answers = []

    def admit(settings, earlier):
        path.read_bytes()  # a backup in the middle of the transaction
        answers.append(in_child(rival))
        return settings

    store = ledger._store
    _, line = ledger._line(PureProfile(0.8), "ours", None, None, True)
    store.append(line, admit)
    assert "busy" in answers[0]
    assert [s.label for s in ledger.spends] == ["ours"]


def test_every_commit_reaches_the_disk(path):
    store = open_ledger(path)._store
    with store._connection() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)


@pytest.mark.parametrize("name", ["a b.db", "50%.db", "what?.db", "#1.db", "a&b;c.db", "ü.db"])
def test_odd_file_names(tmp_path, name):
    ledger = open_ledger(tmp_path / name)
    ledger.spend(ONE, "a")
    assert len(Ledger(tmp_path / name).spends) == 1


def test_threads_share_a_file_without_overspending(path):
    ledger = open_ledger(path, budget=Budget(1.0))
    wins = []

    def race():
        for _ in range(6):
            with contextlib.suppress(BudgetExceededError):
                ledger.spend(PureProfile(1 / 16), "x")
                wins.append(1)

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == len(ledger.spends) == 16


def test_an_export_never_overwrites_the_ledger(tmp_path):
    ledger = open_ledger(tmp_path / "study.json")
    with pytest.raises(ParameterError, match="overwrite the ledger itself"):
        ledger.export(tmp_path / ".." / tmp_path.name / "study.json")


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "x"])
def test_bad_timeouts(path, timeout):
    with pytest.raises(ParameterError, match="'timeout' parameter of Ledger"):
        open_ledger(path, timeout=timeout)


def test_folders_that_do_not_exist(tmp_path):
    with pytest.raises(LedgerError, match="can't be opened for writing"):
        open_ledger(tmp_path / "nowhere" / "study.db")
    with pytest.raises(LedgerError, match="no ledger file none.db, or no right to read it"):
        Ledger(tmp_path / "none.db", read_only=True)


def test_a_folder_without_the_right_to_write(path):
    """Run as an ordinary user, for whom permissions count."""
    open_ledger(path).spend(ONE, "a")
    path.chmod(0o444)
    path.parent.chmod(0o555)
    for folder in path.parents[1:]:
        if os.getuid() == 0 and not folder.stat().st_mode & 0o001:
            folder.chmod(0o755)

    def attempt():
        if os.getuid() == 0:
            os.setuid(65534)
        return Ledger(path).spend(ONE, "b")

    def look():
        if os.getuid() == 0:
            os.setuid(65534)
        return len(Ledger(path, read_only=True).spends)

    try:
        assert "LedgerError: study.db can't be opened for writing" in in_child(attempt)
        assert in_child(look) == "1"
    finally:
        path.parent.chmod(0o755)
        path.chmod(0o644)
    assert len(Ledger(path).spends) == 1


def test_a_full_disk_spends_nothing_and_loses_nothing(path):
    ledger = open_ledger(path, budget=Budget(100.0))
    ledger.spend(PureProfile(0.01), "before")

    def fill():
        limit = path.stat().st_size + 4096
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        done = 0
        try:
            while done < 1000:
                ledger.spend(PureProfile(0.01), "x" * 500)
                done += 1
        except LedgerError as error:
            return f"{done} {error}"
        return "never full"

    text = in_child(fill)
    done = int(text.split()[0])
    assert "disk is full, or a limit on file sizes" in text and "No noise was drawn" in text
    assert len(ledger.spends) == 1 + done
    ledger.spend(PureProfile(0.01), "after")
    assert [s.label for s in ledger.spends][-1] == "after"


def test_a_busy_file_is_waited_for_and_then_reported(path):
    ledger = Ledger(path, dataset="patients", budget=Budget(2.0, 1e-6), timeout=0.2)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match=r"busy for 0\.2 seconds"):
        ledger.spend(ONE, "x")
    blocker.execute("ROLLBACK")
    blocker.close()
    ledger.spend(ONE, "x")
    assert len(ledger.spends) == 1


def test_a_clock_that_goes_backwards_changes_no_order(path, monkeypatch):
    ledger = open_ledger(path)
    for i, stamp in enumerate(("2026-05-02T00:00:00+00:00", "2026-05-01T00:00:00+00:00")):
        monkeypatch.setattr(dpkernel.privacy.ledger, "now", lambda stamp=stamp: stamp)
        ledger.spend(GaussianProfile(0.01), f"{i}")
    assert [(s.number, s.label) for s in ledger.spends] == [(1, "0"), (2, "1")]
    assert ledger.spends[0].time > ledger.spends[1].time


def test_a_relative_path_still_points_at_the_file_after_a_change_of_folder(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    ledger = open_ledger("study.db")
    monkeypatch.chdir("/")
    ledger.spend(ONE, "a")
    assert len(Ledger(path).spends) == 1
