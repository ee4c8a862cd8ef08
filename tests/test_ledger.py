"""The one door: ceilings, atomic plans, copies, processes, and who may draw."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import os
import pickle
import re
import signal
import threading

import numpy as np
import pytest
from sklearn.base import clone

from dpkernel import Budget, Ledger, Neighbours, PrivateKernelRidge, SeededNoise
from dpkernel.foundations.errors import (
    BudgetExceededError,
    CertificateError,
    LedgerError,
    NoiseError,
    ParameterError,
)
from dpkernel.privacy import mechanisms, sensitivity
from dpkernel.privacy.certificate import Certificate, Release
from dpkernel.privacy.filters import FILTERS, Charge, resolve_filter
from dpkernel.privacy.noise import Noise, NoiseSource, Part, Plan, SystemNoise
from dpkernel.privacy.profiles import (
    ApproximateProfile,
    GaussianProfile,
    MixtureProfile,
    PureProfile,
    compose,
    gaussian_mu,
)

CEILING = Budget(2.0, 1e-6)
ONE = GaussianProfile(gaussian_mu(1.0, 1e-6))


def test_a_spend_is_recorded_before_noise_can_be_drawn():
    ledger = Ledger(budget=CEILING)
    mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=2)
    noise = ledger.spend(mechanism.profile(), "means")
    (spend,) = ledger.spends
    assert spend.label == "means" and spend.private and spend.number == 1
    assert spend.state == "recorded, not drawn"
    released = mechanism.release(np.zeros(2), noise)
    assert np.all(released != 0)
    assert ledger.spends[0].state == "drawn" and ledger.spends[0].drawn == ("means",)


def test_a_refused_spend_leaves_no_record_and_no_noise():
    ledger = Ledger(budget=Budget(0.5, 1e-6))
    with pytest.raises(BudgetExceededError, match=r"'big' .* does not fit .* Nothing was spent"):
        ledger.spend(ONE, "big")
    assert ledger.spends == [] and ledger.spent is None


def test_one_fit_at_the_ceiling_fits_exactly_and_a_second_does_not():
    budget = Budget(1.0, 1e-6)
    ledger = Ledger(budget=budget)
    profile = mechanisms.Gaussian.calibrate(1.0, budget, dimension=3).profile()
    ledger.spend(profile, "first")
    assert ledger.remaining is None or ledger.remaining.epsilon < 1e-3
    with pytest.raises(BudgetExceededError):
        ledger.spend(profile, "second")
    assert len(ledger.spends) == 1


def test_gaussian_spends_add_up_as_mu_squared():
    ledger = Ledger(budget=CEILING, accounting="gaussian")
    fits = 0
    with pytest.raises(BudgetExceededError):
        while True:
            ledger.spend(ONE, f"fit {fits}")
            fits += 1
    assert fits == math.floor((gaussian_mu(2.0, 1e-6) / ONE.mu) ** 2) == 3
    assert ledger.spent.epsilon == pytest.approx(compose([ONE] * 3).epsilon(1e-6), rel=1e-9)
    left = ledger.remaining
    ledger.spend(GaussianProfile(gaussian_mu(left.epsilon, 1e-6) * (1 - 1e-9)), "the rest")


@pytest.mark.parametrize("accounting", FILTERS)
def test_no_rule_admits_more_than_composition_proves(accounting):
    rule = resolve_filter(accounting, CEILING)
    part = GaussianProfile(gaussian_mu(0.2, 1e-8))
    charges = []
    while rule.admits([*charges, Charge(part, Budget(0.2, 1e-8))]):
        charges.append(Charge(part, Budget(0.2, 1e-8)))
    assert len(charges) >= 5
    assert compose([c.profile for c in charges]).delta(CEILING.epsilon) <= CEILING.delta
    assert rule.spent(charges).epsilon <= CEILING.epsilon
    left = rule.remaining(charges)
    assert left is None or left.epsilon < 0.8


def test_basic_accounting_adds_exactly():
    ledger = Ledger(budget=Budget(0.3))
    for i in range(3):
        ledger.spend(PureProfile(0.1), f"{i}")  # 0.1 * 3 > 0.3 in floats, and in reals
        if i == 1:
            assert ledger.spent == Budget(0.2)
            break
    with pytest.raises(BudgetExceededError):
        ledger.spend(PureProfile(0.1), "0.1 three times exceeds the float 0.3")
    ledger.spend(PureProfile(0.09), "fits")


def test_two_pure_spends_of_one_fit_under_two():
    ledger = Ledger(budget=Budget(2.0))
    ledger.spend(PureProfile(1.0), "a")
    ledger.spend(PureProfile(1.0), "b")
    assert ledger.spent == Budget(2.0) and ledger.remaining is None


def test_basic_accounting_charges_the_claim_of_each_spend():
    ledger = Ledger(budget=Budget(3.0, 1e-6), accounting="basic")
    ledger.spend(ONE, "a", claim=Budget(1.0, 5e-7))
    assert ledger.spent.delta == 5e-7
    assert ledger.spent.epsilon == pytest.approx(ONE.epsilon(5e-7))
    ledger.spend(ONE, "no claim: half of the delta that is left")
    assert ledger.spent.delta == pytest.approx(7.5e-7)


def test_basic_accounting_holds_the_ceiling_of_delta():
    ledger = Ledger(budget=Budget(100.0, 1e-6), accounting="basic")
    ledger.spend(ONE, "a", claim=Budget(2.0, 6e-7))
    with pytest.raises(BudgetExceededError):
        ledger.spend(ONE, "b", claim=Budget(2.0, 6e-7))
    ledger.spend(ONE, "c", claim=Budget(2.0, 3e-7))
    assert 9e-7 <= ledger.spent.delta <= 1e-6


def test_the_first_spend_fixes_the_rule():
    """It is the rule that charges this spend less; later spends and ceilings do not change it."""
    mixture = MixtureProfile((0.1, 0.2), (0.5, 0.5))
    for first, claim, rule in (
        (ONE, Budget(1.0, 1e-6), "renyi"),  # basic accounting would charge all of delta
        (mixture, None, "renyi"),
        (PureProfile(1.0), None, "basic"),
        (GaussianProfile(gaussian_mu(2.0, 1e-6)), CEILING, "basic"),  # it fills the ceiling
        (GaussianProfile(gaussian_mu(2.0, 1e-6)), None, "gaussian"),  # as only this rule sees
    ):
        ledger = Ledger(budget=CEILING)
        assert ledger.rule is None
        ledger.spend(first, "a", claim=claim)
        ledger.change_ceiling(Budget(20.0, 1e-5), "more")
        ledger.spend(PureProfile(0.1), "b")
        assert ledger.rule == rule and ledger.accounting == "auto"
    pure = Ledger(budget=Budget(2.0))
    pure.spend(PureProfile(0.1), "a")
    assert pure.rule == "basic"


def test_a_refused_first_spend_fixes_nothing():
    ledger = Ledger(budget=CEILING)
    with pytest.raises(BudgetExceededError):
        ledger.spend(PureProfile(2.5), "too much")
    assert ledger.rule is None
    ledger.spend(ONE, "a")
    assert ledger.rule == "renyi"


def test_gaussian_accounting_refuses_what_has_no_mu():
    ledger = Ledger(budget=CEILING, accounting="gaussian")
    with pytest.raises(LedgerError, match="accounting='auto', 'renyi' or 'basic'"):
        ledger.spend(MixtureProfile((0.1, 0.2), (0.5, 0.5)), "b")
    assert ledger.spends == []


def test_renyi_accounting_mixes_all_kinds():
    ledger = Ledger(budget=CEILING, accounting="renyi")
    ledger.spend(MixtureProfile((0.1, 0.2), (0.5, 0.5)), "a")
    ledger.spend(GaussianProfile(0.1), "b")
    ledger.spend(PureProfile(0.1), "c")
    ledger.spend(ApproximateProfile(0.1, 1e-9), "d", claim=Budget(0.1, 1e-9))
    with pytest.raises(LedgerError, match="never falls below a tenth of the ledger's delta"):
        ledger.spend(ApproximateProfile(0.1, 2e-7), "e", claim=Budget(0.1, 2e-7))
    with pytest.raises(LedgerError, match="events that are too likely"):
        ledger.spend(ApproximateProfile(0.1, 1e-7), "f", claim=Budget(0.1, 1e-7))
    assert len(ledger.spends) == 4


def test_a_plan_is_reserved_whole_or_not_at_all():
    ledger = Ledger(budget=CEILING)
    parts = tuple(Part(f"stage {i}", ONE) for i in range(4))
    with pytest.raises(BudgetExceededError):
        ledger.spend(Plan(parts), "four stages")
    assert ledger.spends == []
    noise = ledger.spend(Plan(parts[:3]), "three stages")
    assert len(ledger.spends) == 1
    assert [p["label"] for p in ledger.spends[0].plan["parts"]] == ["stage 0", "stage 1", "stage 2"]
    noise.claim(ONE)
    assert ledger.spends[0].drawn == ("stage 0",)


def test_each_part_can_be_drawn_as_often_as_it_was_paid_for():
    plan = Plan((Part("steps", ONE, draws=2), Part("end", PureProfile(0.1))))
    noise = Ledger().spend(plan, "x")
    noise.claim(ONE)
    noise.claim(ONE)
    with pytest.raises(NoiseError, match="No undrawn part"):
        noise.claim(ONE)
    with pytest.raises(NoiseError, match="No undrawn part"):
        noise.claim(GaussianProfile(0.3))
    noise.claim(PureProfile(0.1))


def test_a_noise_cannot_be_made_copied_or_pickled():
    with pytest.raises(NoiseError, match=r"Call ledger\.spend"):
        Noise(object(), SystemNoise(), Plan.of(ONE, "x"), Neighbours.REPLACE_ONE, print)
    noise = Ledger().spend(ONE, "x")
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(NoiseError, match="can't be pickled or copied"):
            attempt(noise)


def test_copies_of_a_ledger_are_the_ledger():
    ledger = Ledger(budget=CEILING)
    assert copy.copy(ledger) is ledger and copy.deepcopy(ledger) is ledger
    model = PrivateKernelRidge(ledger=ledger, y_bounds=(0, 1))
    assert clone(model).ledger is ledger
    with pytest.raises(LedgerError, match="can't be pickled"):
        pickle.dumps(ledger)


def _in_child(action) -> str:
    """Return the name of the exception that ``action`` raises in a forked child."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        signal.alarm(30)  # one that waits for ever says nothing
        try:
            action()
            os.write(writer, b"no error")
        except Exception as error:
            os.write(writer, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.wait()
    return text


def test_a_forked_child_can_neither_spend_from_memory_nor_use_its_parents_noise():
    ledger = Ledger(budget=CEILING)
    noise = ledger.spend(ONE, "x")
    assert _in_child(lambda: noise.claim(ONE)) == "NoiseError"
    assert _in_child(lambda: ledger.spend(ONE, "y")) == "LedgerError"
    noise.claim(ONE)


def test_racing_threads_cannot_overspend():
    ledger = Ledger(budget=Budget(1.0))
    start, wins = threading.Barrier(8), []

    def race():
        start.wait()
        for _ in range(20):
            try:
                ledger.spend(PureProfile(1 / 16), "x")
                wins.append(1)
            except BudgetExceededError:
                pass

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == len(ledger.spends) == 16
    assert ledger.spent.epsilon == 1.0


def test_racing_threads_cannot_draw_a_part_twice():
    noise = Ledger().spend(Plan((Part("x", ONE, draws=50),)), "x")
    drawn, start = [], threading.Barrier(4)

    def race():
        start.wait()
        for _ in range(50):
            try:
                noise.claim(ONE)
                drawn.append(1)
            except NoiseError:
                pass

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drawn) == 50


def test_another_neighbouring_relation_is_refused():
    ledger = Ledger(neighbours="zero-out")
    with pytest.raises(LedgerError, match="protects 'zero-out' neighbours"):
        ledger.spend(ONE, "x", neighbours=Neighbours.REPLACE_ONE)
    assert ledger.spends == []
    ledger.spend(ONE, "x", neighbours=Neighbours.ZERO_OUT)


def test_a_seeded_spend_is_recorded_as_not_private():
    ledger = Ledger()
    ledger.spend(ONE, "x", noise=SeededNoise(0))
    assert [s.private for s in ledger.spends] == [False]
    assert "1 of them not private: no guarantee" in repr(ledger)


def test_only_the_sources_of_the_library_are_private():
    class Zero(SystemNoise):
        def discrete_gaussian(self, scale, size):
            return np.zeros(size, dtype=np.int64)

    ledger = Ledger()
    assert not ledger.spend(ONE, "x", noise=Zero()).private
    assert not ledger.spends[0].private


def test_the_relation_is_checked_at_the_release():
    easier = sensitivity.declared(1.0, Neighbours.ZERO_OUT)
    mechanism = mechanisms.Gaussian.calibrate(easier, Budget(1.0, 1e-6), dimension=1)
    noise = Ledger().spend(mechanism.profile(), "x")
    with pytest.raises(NoiseError, match="ledger of 'replace-one' neighbours"):
        mechanism.release([1.0], noise)
    with pytest.raises(LedgerError, match="calibrated for 'zero-out'"):
        Ledger().spend(ONE, "x", neighbours="zero-out")


@pytest.mark.parametrize("name", ["draws", "folds"])
@pytest.mark.parametrize("count", [0, -1, 1e-4, 2.5, True, "2", 10**7])
def test_a_part_is_drawn_a_whole_number_of_times(name, count):
    with pytest.raises(ParameterError, match=f"'{name}' parameter of Part"):
        Part("x", ONE, **{name: count})


def test_disjoint_folds_cost_one_of_them_and_are_drawn_once_each():
    plan = Plan((Part("folded", ONE, folds=4),))
    assert plan.profile == Plan((Part("one", ONE),)).profile
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    noise = ledger.spend(plan, "x")
    for _ in range(4):
        noise.claim(ONE)
    with pytest.raises(NoiseError, match="No undrawn part"):
        noise.claim(ONE)
    assert ledger.spends[0].plan["parts"][0]["folds"] == 4
    assert ledger.spends[0].state == "drawn" and ledger.remaining is None


def test_draws_on_folds_count_as_often_as_a_record_is_touched():
    plan = Plan((Part("a", ONE, draws=2, folds=3), Part("b", ONE)))
    assert plan.profile == Plan((Part("a", ONE, draws=2), Part("b", ONE))).profile
    noise = Ledger().spend(plan, "x")
    for _ in range(7):
        noise.claim(ONE)
    with pytest.raises(NoiseError, match="No undrawn part"):
        noise.claim(ONE)


@pytest.mark.parametrize("one", [ONE, PureProfile(0.5)])
def test_each_draw_of_a_part_is_charged(one):
    """Four draws cost what four releases in a row cost: in the plan, the ledger and at its ceiling."""
    plan = Plan((Part("a", one, draws=4),))
    apart = Plan(tuple(Part(label, one) for label in "abcd"))
    for other in (compose([one] * 4), apart.profile):
        assert plan.profile.epsilon(1e-6) == pytest.approx(other.epsilon(1e-6), rel=1e-9)
    ledger, other = Ledger(budget=Budget(50.0, 1e-6)), Ledger(budget=Budget(50.0, 1e-6))
    ledger.spend(plan, "x")
    other.spend(apart, "x")
    assert ledger.spent.epsilon == pytest.approx(other.spent.epsilon, rel=1e-9)
    ceiling = Budget(1.01 * max(one.epsilon(1e-6), 0.5), 1e-6)
    Ledger(budget=ceiling).spend(one, "x")
    with pytest.raises(BudgetExceededError):
        Ledger(budget=ceiling).spend(plan, "x")


def test_folds_are_refused_where_a_removed_row_moves_the_others():
    ledger = Ledger(neighbours="add-remove", budget=CEILING)
    folded = Plan((Part("x", ONE, folds=2),))
    for attempt in (ledger.spend, ledger.check):
        with pytest.raises(LedgerError, match="not disjoint for 'add-remove'.*Nothing was spent"):
            attempt(folded, "x")
    assert ledger.spends == []
    ledger.spend(Plan((Part("x", ONE),)), "x")


def test_a_joined_plan_proves_nothing_where_a_part_does_not():
    fine, unproved = Plan((Part("x", ONE),)), Plan((Part("x", ONE),), nothing_proved=True)
    assert Plan.joined({"a": fine, "b": fine}).profile.delta(50.0) < 1e-9
    for plans in ({"a": fine, "b": unproved}, {"a": unproved, "b": fine}):
        assert Plan.joined(plans).profile.delta(50.0) == 1.0


def test_a_plan_can_charge_everything():
    plan = Plan((Part("a", ONE, 10),), nothing_proved=True)
    assert plan.profile.delta(1e6) == 1
    with pytest.raises(LedgerError, match="no finite epsilon"):
        Ledger(budget=CEILING, accounting="basic").spend(plan, "x", claim=Budget(1.0, 1e-6))


def test_a_failed_record_leaves_the_draw():
    ledger = Ledger()
    noise = ledger.spend(ONE, "x")
    broken = ledger._store.mark_drawn
    ledger._store.mark_drawn = lambda number, label: 1 / 0
    with pytest.raises(ZeroDivisionError):
        noise.claim(ONE)
    ledger._store.mark_drawn = broken
    noise.claim(ONE)
    assert ledger.spends[0].state == "drawn"


def test_a_history_cannot_be_edited_through_what_it_returns():
    ledger = Ledger(budget=Budget(1.0))
    ledger.spend(PureProfile(0.9), "x")
    ledger.spends[0].plan["profile"]["epsilon"] = 0.0
    ledger.spends.clear()
    with pytest.raises(BudgetExceededError):
        ledger.spend(PureProfile(0.9), "y")


def test_pure_spends_cost_their_mu_under_gaussian_accounting():
    rule = resolve_filter("gaussian", CEILING)
    total = rule.spent([Charge(PureProfile(0.1)), Charge(GaussianProfile(0.2))])
    mu = math.hypot(0.2, PureProfile(0.1).mu)
    assert total.epsilon == pytest.approx(GaussianProfile(mu).epsilon(1e-6), rel=1e-9)
    assert PureProfile(0.1).mu == pytest.approx(0.12526, rel=1e-3)  # near epsilon sqrt(pi/2)
    mixed = compose([PureProfile(0.05), GaussianProfile(0.1)])
    ledger = Ledger(budget=CEILING)
    ledger.spend(ONE, "Gaussian")
    ledger.spend(mixed, "a plan of both kinds")
    assert len(ledger.spends) == 2


def test_renyi_accounting_gives_the_textbook_number():
    """mu = 1/4 at delta = 1e-6: 1.1432 by the best order; one fixed order is close to it."""
    rule = resolve_filter("renyi", Budget(1.15, 1e-6))
    a, quarter = rule.order, GaussianProfile(0.25 / 2)
    rho, kept = a * 0.25**2 / 2, 0.9e-6  # the rest of delta is for events that bounds leave out
    exact = rho + math.log((a - 1) / a) - (math.log(kept) + math.log(a)) / (a - 1)
    found = rule.spent([Charge(quarter)] * 4).epsilon
    assert found == pytest.approx(exact, rel=1e-9)
    assert 1.142 < found < 1.149
    alone = rule.spent([Charge(GaussianProfile(0.25))])  # which no order describes better
    assert alone.epsilon == GaussianProfile(0.25).epsilon(1e-6) < 1.07


@pytest.mark.parametrize("accounting", FILTERS)
def test_what_remains_can_be_spent(accounting, rng):
    for _ in range(20):
        ceiling = Budget(float(rng.uniform(0.5, 5)), float(10 ** rng.uniform(-9, -5)))
        ledger = Ledger(budget=ceiling, accounting=accounting)
        share = Budget(ceiling.epsilon * float(rng.uniform(0.05, 0.5)), ceiling.delta / 3)
        profile = GaussianProfile(gaussian_mu(share.epsilon, share.delta))
        ledger.spend(profile, "first", claim=share)
        left = ledger.remaining
        rest = mechanisms.Gaussian.calibrate(1.0, left, dimension=1)
        ledger.spend(rest.profile(), "the rest", claim=left)
        after = ledger.remaining
        assert after is None or after.epsilon < 0.02 * ceiling.epsilon


@pytest.mark.parametrize("label", ["", "  ", None, 3, b"x", "x" * 1001, "\ud800"])
def test_labels_are_short_texts(label):
    with pytest.raises(ParameterError, match="a text of 1 to 1000 characters"):
        Ledger().spend(ONE, label)


def test_the_renyi_order_is_that_of_the_first_ceiling():
    ledger = Ledger(accounting="renyi")
    ledger.change_ceiling(Budget(1.0, 1e-6), "first")
    order = ledger._store.settings().renyi_order
    ledger.change_ceiling(Budget(9.0, 1e-6), "second")
    assert ledger._store.settings().renyi_order == order is not None
    assert [(b.epsilon, why) for _, b, why in ledger.ceilings] == [(1.0, "first"), (9.0, "second")]


def test_check_looks_and_records_nothing():
    ledger = Ledger(budget=Budget(0.5, 1e-6))
    with pytest.raises(BudgetExceededError):
        ledger.check(ONE, "x")
    ledger.check(GaussianProfile(0.01), "x")
    assert ledger.spends == []


def test_bad_arguments():
    with pytest.raises(ParameterError, match="'budget' parameter of Ledger must be a Budget"):
        Ledger(budget=1.0)
    with pytest.raises(ParameterError, match="'accounting' parameter of Ledger must be one of"):
        Ledger(accounting="moments")
    for name in ("gaussian", "renyi"):
        with pytest.raises(ParameterError, match="'basic' for a ceiling with delta = 0"):
            Ledger(budget=Budget(1.0), accounting=name)
    with pytest.raises(ParameterError, match="'what' parameter of Ledger.spend"):
        Ledger().spend(1.0, "x")
    with pytest.raises(ParameterError, match="one or more parts with different labels"):
        Plan(())
    with pytest.raises(LedgerError, match="no finite epsilon"):
        Ledger(budget=Budget(1.0)).spend(ONE, "a Gaussian under a pure ceiling")


def test_repr_tells_ceiling_and_spent():
    ledger = Ledger(budget=CEILING)
    assert (
        repr(ledger) == "<Ledger: ceiling epsilon = 2, delta = 1e-06; nothing spent in 0 spend(s)>"
    )
    ledger.spend(ONE, "x")
    assert "spent epsilon = 1, delta = 1e-06 in 1 spend(s)" in repr(ledger)
    assert "no ceiling" in repr(Ledger())


# --- noise that a reservation paid for ----------------------------------------------------------


def reserved(**options):
    """Return a ledger, the ledger of one reserved step, and what the reservation can certify."""
    mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=1)
    plan = Plan((Part("x", mechanism.profile()),))
    ledger = Ledger(budget=CEILING)
    steps, whole = ledger.reserve({"step": plan}, "all", claim=Budget(1.0, 1e-6), **options)
    return mechanism, plan, steps["step"], whole


def test_parent_and_child_cannot_both_draw_a_reserved_release():
    """Both would show the same record through noise that was paid for once."""
    mechanism, plan, step, _ = reserved()

    def draw():
        mechanism.release([0.0], step.spend(plan, "all"))

    assert _in_child(draw) == "NoiseError"
    assert _in_child(lambda: step.check(plan, "all")) == "NoiseError"
    draw()
    assert _in_child(draw) == "NoiseError"


def test_a_reused_process_id_is_not_the_process_that_paid(monkeypatch):
    _, plan, step, _ = reserved()
    noise = Ledger().spend(ONE, "x")
    ledger, own = Ledger(), os.getpid()

    def as_if_the_id_came_back(action):
        def in_child():
            monkeypatch.setattr(os, "getpid", lambda: own)
            action()

        return _in_child(in_child)

    assert as_if_the_id_came_back(lambda: step.spend(plan, "all")) == "NoiseError"
    assert as_if_the_id_came_back(lambda: noise.claim(ONE)) == "NoiseError"
    assert as_if_the_id_came_back(lambda: ledger.spend(ONE, "x")) == "LedgerError"


def test_a_child_is_refused_even_if_the_fork_copied_a_closed_lock():
    _, plan, step, _ = reserved()
    with step._guard:
        assert _in_child(lambda: step.spend(plan, "all")) == "NoiseError"


def test_processes_never_draw_the_same_words():
    """A state that a fork copies would give parent and children one noise."""
    source = SystemNoise()
    source.discrete_gaussian(3.0, 100)  # whatever is kept is there before the fork
    drawn = {tuple(source.discrete_gaussian(1e6, 4))}
    for _ in range(3):
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.write(writer, np.asarray(source.discrete_gaussian(1e6, 4), np.int64).tobytes())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            drawn.add(tuple(np.frombuffer(stream.read(), np.int64)))
        os.wait()
    drawn.add(tuple(source.discrete_gaussian(1e6, 4)))
    assert len(drawn) == 5  # equal by chance with probability below 1e-20


def test_racing_threads_cannot_take_a_reserved_step_twice():
    _, plan, step, _ = reserved()
    taken, start = [], threading.Barrier(8)

    def race():
        start.wait()
        with contextlib.suppress(LedgerError):
            taken.append(step.spend(plan, "all"))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1


def test_a_step_cannot_weaken_the_noise_that_was_recorded():
    mechanism, plan, step, whole = reserved()
    with pytest.raises(LedgerError, match=r"noise from 'numpy PCG64, seeded', but the spend"):
        step.spend(plan, "all", noise=SeededNoise(0))
    mechanism.release([0.0], step.spend(plan, "all"))
    assert certified(mechanism, whole, "step: x").private


def test_a_step_of_a_seeded_reservation_draws_from_its_source():
    mechanism, plan, step, whole = reserved(noise=SeededNoise(3))
    found = mechanism.release([0.0], step.spend(plan, "all"))
    again = mechanism.release([0.0], Ledger().spend(plan, "x", noise=SeededNoise(3)))
    assert found == again and not certified(mechanism, whole, "step: x").private


def test_copies_of_a_step_are_the_step_and_it_is_not_pickled():
    _, _, step, _ = reserved()
    assert copy.copy(step) is step and copy.deepcopy(step) is step
    with pytest.raises(LedgerError, match="can't be pickled"):
        pickle.dumps(step)


def certified(mechanism, noise, label="x"):
    return Certificate.issue(
        "test", Budget(1.0, 1e-6), [Release(label, mechanism)], noise, public={}
    )


class Boastful(NoiseSource):
    """A source of the user's own that says of itself what only the library's may."""

    private = True
    generator = "os.urandom"

    def __init__(self):
        super().__init__(SeededNoise(0)._entropy)


class BoastfulSystem(SystemNoise):
    private = True

    def discrete_gaussian(self, scale, size):
        return np.zeros(size, dtype=np.int64)


@pytest.mark.parametrize("source", [Boastful(), BoastfulSystem()], ids=lambda s: type(s).__name__)
def test_a_source_is_not_private_because_it_says_so(source):
    mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=1)
    ledger = Ledger()
    noise = ledger.spend(mechanism.profile(), "x", noise=source)
    mechanism.release([0.0], noise)
    certificate = certified(mechanism, noise)
    assert not certificate.private and not ledger.spends[0].private
    assert certificate.generator not in ("os.urandom", "OpenDP and os.urandom")
    _, plan, step, _ = reserved()
    with pytest.raises(LedgerError, match="asks for noise from"):
        step.spend(plan, "all", noise=source)


def test_a_source_is_a_noise_source():
    class Duck:
        private, generator, sampler = True, "os.urandom", "exact bucket sampler"

    with pytest.raises(ParameterError, match="'noise' parameter"):
        Ledger().spend(ONE, "x", noise=Duck())
    with pytest.raises(NoiseError, match="no subclasses"):
        type("Own", (Noise,), {})


def test_a_certificate_names_the_mechanism_that_drew():
    """The same mu with a tenth of the noise: a reader would believe in ten times it."""
    stated = mechanisms.Gaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=1)
    small = sensitivity.declared(2.0**-4)
    drawn = dataclasses.replace(stated, sensitivity=small, grid=stated.grid * 2.0**-4)
    assert drawn.profile() == stated.profile() and drawn.noise_scale < stated.noise_scale / 10
    noise = Ledger().spend(stated.profile(), "x")
    drawn.release([0.0], noise)
    with pytest.raises(CertificateError, match="drawn by a mechanism that is not among"):
        certified(stated, noise)
    assert certified(drawn, noise).private
    _, plan, step, whole = reserved()
    drawn.release([0.0], step.spend(plan, "all"))
    with pytest.raises(CertificateError, match="drawn by a mechanism that is not among"):
        certified(stated, whole, "step: x")


def test_a_certificate_claims_the_relation_that_was_spent_for():
    blanked = sensitivity.declared(1.0, Neighbours.ZERO_OUT)
    mechanism = mechanisms.Gaussian.calibrate(blanked, Budget(1.0, 1e-6), dimension=1)
    noise = Ledger().spend(mechanism.profile(), "x")
    with pytest.raises(CertificateError, match="spent for 'replace-one' neighbours"):
        certified(mechanism, noise)


# --- what a plan costs ----------------------------------------------------------------------------


@pytest.mark.parametrize("draws", [1, 2, 9])
@pytest.mark.parametrize("folds", [1, 3])
def test_a_plan_costs_every_draw_and_one_fold(draws, folds):
    """By the formulas of composition: mu sqrt(k) for Gaussian releases and k epsilon for pure ones."""
    gaussian = Plan((Part("a", GaussianProfile(0.25), draws=draws, folds=folds),)).profile
    assert gaussian.mu == pytest.approx(0.25 * math.sqrt(draws), rel=1e-12)
    pure = Plan((Part("a", PureProfile(0.125), draws=draws, folds=folds),)).profile
    assert pure.epsilon(0.0) == pytest.approx(0.125 * draws, rel=1e-12)
    for budget, fits in ((0.125 * draws, True), (0.124 * draws, False)):
        ledger = Ledger(budget=Budget(budget))
        plan = Plan((Part("a", PureProfile(0.125), draws=draws, folds=folds),))
        assert ledger.forecast(plan).fits is fits
        if fits:
            ledger.spend(plan, "x")
            assert ledger.remaining is None
        else:
            with pytest.raises(BudgetExceededError):
                ledger.spend(plan, "x")


def test_a_joined_plan_costs_every_step():
    one = Plan((Part("a", GaussianProfile(0.3), draws=4), Part("b", GaussianProfile(0.8))))
    joined = Plan.joined({"first": one, "second": one})
    assert joined.profile.mu == pytest.approx(math.sqrt(2 * (4 * 0.3**2 + 0.8**2)), rel=1e-12)
    unproved = Plan((Part("c", GaussianProfile(0.1)),), nothing_proved=True)
    assert Plan.joined({"first": one, "second": unproved}).profile.delta(1e6) == 1


@pytest.mark.parametrize("accounting", FILTERS)
def test_a_spend_at_the_ceiling_fits_and_the_next_float_does_not(accounting):
    """Closed at the ceiling, and nothing beyond it: found by bisection to the last bit."""
    rule = resolve_filter(accounting, CEILING)
    claim = Budget(1.0, CEILING.delta)

    def admits(mu):
        return rule.admits([Charge(GaussianProfile(mu), claim)])

    low, high = 1e-3, 10.0
    while math.nextafter(low, high) < high:
        middle = (low + high) / 2
        low, high = (middle, high) if admits(middle) else (low, middle)
    assert GaussianProfile(low).delta(CEILING.epsilon) <= CEILING.delta
    spent = rule.spent([Charge(GaussianProfile(low), claim)])
    assert spent.epsilon <= CEILING.epsilon
    if accounting == "basic":
        assert resolve_filter(accounting, spent).admits([Charge(GaussianProfile(low), claim)])
    beyond = Charge(GaussianProfile(high), claim)
    assert not rule.admits([beyond])
    assert accounting == "renyi" or rule.spent([beyond]).epsilon >= CEILING.epsilon


@pytest.mark.parametrize("accounting", FILTERS)
def test_a_modest_claim_is_charged_at_what_the_profile_costs(accounting):
    for stated in (Budget(1e-9, 1e-7), Budget(1.0, 1e-7), Budget(1e9, 1e-7)):
        ledger = Ledger(budget=CEILING, accounting=accounting)
        ledger.spend(ONE, "x", claim=stated)
        assert ledger.spent.epsilon >= ONE.epsilon(ledger.spent.delta) * (1 - 1e-9)
    for number in (math.nan, -1.0, 0.0, math.inf):
        with pytest.raises(ParameterError):
            Budget(number, 1e-6)
    with pytest.raises(ParameterError):
        Budget(1.0, math.nan)
    with pytest.raises(ParameterError, match="'claim'"):
        Ledger(budget=CEILING).spend(ONE, "x", claim=(1.0, -1e-6))


def test_a_plan_charges_every_draw_and_no_fold():
    """k draws of a Gaussian are one of sqrt(k) mu; a record is in one of the folds."""
    one = GaussianProfile(0.5)
    plan = Plan((Part("a", one, draws=4, folds=3), Part("b", GaussianProfile(1.0), draws=9)))
    for epsilon in (0.0, 1.0, 5.0):
        exact = GaussianProfile(math.sqrt(4 * 0.25 + 9)).delta(epsilon)
        assert plan.profile.delta(epsilon) == pytest.approx(exact, rel=1e-9)
    assert Plan((Part("a", one, draws=4, folds=3),)).profile.mu == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("epsilon", [1.0, 0.3, 0.7, 2.9999, 1e-3])
@pytest.mark.parametrize("ceiling", [Budget(3.0, 1e-6), Budget(2.1, 3e-7), Budget(1.0, 0.0)])
def test_as_many_shares_fit_as_epsilon_allows(ceiling, epsilon):
    ledger = Ledger(budget=ceiling, accounting="basic")
    share = ledger.share(epsilon)
    assert share.epsilon == epsilon and 0 <= share.delta <= ceiling.delta
    count = min(int(ceiling.epsilon / epsilon), 20)
    for _ in range(count):
        ledger.spend(ApproximateProfile(share.epsilon, share.delta), "fit", claim=share)
    assert len(ledger.spends) == count
    if count == 20 or not count:
        return
    with pytest.raises(BudgetExceededError):
        ledger.spend(ApproximateProfile(share.epsilon, share.delta), "fit", claim=share)


def test_a_share_is_the_whole_delta_where_deltas_do_not_add_up():
    ledger = Ledger(budget=CEILING)
    assert ledger.share(1.0) == Budget(1.0, CEILING.delta)
    ledger.spend(ONE, "first")
    assert ledger.rule == "renyi" and ledger.share(0.5) == Budget(0.5, CEILING.delta)
    basic = Ledger(budget=CEILING, accounting="basic")
    assert basic.share(1.0) == Budget(1.0, CEILING.delta / 2)
    with pytest.raises(LedgerError, match="without a ceiling"):
        Ledger().share(1.0)
    with pytest.raises(ParameterError, match="'epsilon'"):
        ledger.share(math.nan)


def spend_of(epsilon, delta):
    return ApproximateProfile(epsilon, delta), Budget(epsilon, delta)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ((1.0, 1e-6), (1.0, 1e-6), "would exceed delta, because epsilon = 2, delta = 0 is left"),
        ((1.0, 1e-6), (1.0, 1e-6), "Only pure epsilon .* of at most 2 would fit"),
        ((1.0, 1e-6), (2.5, 1e-6), "would exceed epsilon and delta"),
        ((2.0, 1e-7), (1.5, 1e-7), "would exceed epsilon, because"),
        ((1.0, 5e-7), (1.0, 7e-7), "epsilon of at most .* and a delta of at most 5e-07"),
        ((3.0, 1e-7), (1.0, 1e-7), "nothing is left .* To spend more, agree on"),
    ],
)
def test_a_refusal_says_what_ran_out_and_what_would_fit(first, second, words):
    ledger = Ledger(budget=Budget(3.0, 1e-6), accounting="basic")
    profile, claim = spend_of(*first)
    ledger.spend(profile, "first", claim=claim)
    profile, claim = spend_of(*second)
    with pytest.raises(BudgetExceededError, match=words):
        ledger.spend(profile, "second", claim=claim)


@pytest.mark.parametrize("accounting", ["basic", "gaussian", "renyi"])
def test_what_a_refusal_offers_is_admitted(accounting):
    ledger = Ledger(budget=Budget(3.0, 1e-6), accounting=accounting)
    first = Budget(1.2345678, 1e-6 / 3)
    ledger.spend(GaussianProfile(gaussian_mu(*dataclasses.astuple(first))), "first", claim=first)
    with pytest.raises(BudgetExceededError) as refusal:
        ledger.spend(GaussianProfile(9.0), "second", claim=Budget(40.0, 1e-6))
    found = re.search(r"epsilon of at most (\S+) and a delta of at most (\S+),", str(refusal.value))
    offered = Budget(float(found[1]), float(found[2]))
    assert offered.epsilon > 0.5
    ledger.spend(GaussianProfile(gaussian_mu(*dataclasses.astuple(offered))), "it", claim=offered)


def test_a_renyi_ledger_offers_no_epsilon_to_what_is_not_gaussian():
    ledger = Ledger(budget=Budget(3.0, 1e-6), accounting="renyi")
    with pytest.raises(BudgetExceededError, match="for a Gaussian release only"):
        ledger.spend(PureProfile(3.5), "pure")


@pytest.mark.parametrize("first", [0.2, 0.5, 1.0])
def test_what_a_renyi_ledger_offers_to_releases_that_are_not_gaussian_is_admitted(first):
    ledger = Ledger(budget=Budget(3.0, 1e-6), accounting="renyi")
    ledger.spend(PureProfile(first), "first")
    with pytest.raises(BudgetExceededError, match="an epsilon of about") as refusal:
        ledger.spend(PureProfile(2.9), "second")
    offered = float(re.search(r"of about (\S+) \(", str(refusal.value))[1])
    assert offered > 0.2
    ledger.spend(PureProfile(offered), "it")


def test_a_notebook_shows_a_ledger_as_a_table():
    ledger = Ledger(budget=CEILING)
    ledger.spend(ONE, "<script>alert(1)</script>")
    page = ledger._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page and page.count("<tr>") == 3
    assert "ceiling epsilon = 2" in page
