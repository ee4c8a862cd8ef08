"""Private selection: bounds against golden numbers and exact laws, searches, scores, broken twins.

Noise is seeded but where a test says otherwise, so no test can fail by chance.
"""

from __future__ import annotations

import json
import logging
import math
import pickle
import warnings
from dataclasses import replace
from decimal import localcontext
from functools import lru_cache

import numpy as np
import pandas as pd
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy import sparse
from scipy.stats import loguniform
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.estimator_checks import check_estimator

import sensitivity_cells
from dpkernel import (
    BlockStream,
    Budget,
    Certificate,
    Domain,
    Ledger,
    PrivateKernelClassifier,
    PrivateKernelRidge,
    PrivateSearchCV,
    SeededNoise,
    load,
    private_score,
    save,
)
from dpkernel.data.domain import Interval
from dpkernel.estimators import PrivateCurator
from dpkernel.foundations.errors import (
    BudgetExceededError,
    CertificateError,
    DataError,
    DPKernelError,
    LedgerError,
    ParameterError,
    PrivacyWarning,
)
from dpkernel.foundations.types import Neighbours
from dpkernel.privacy.mechanisms import Exponential, Gaussian, HeldOutChoice, RandomStopping
from dpkernel.privacy.mechanisms.selection import Line
from dpkernel.privacy.noise import Part, Plan
from dpkernel.privacy.profiles import (
    GaussianProfile,
    MaximumProfile,
    PureProfile,
    StoppingLaw,
    StoppingProfile,
    compose,
    gaussian_mu,
    maximum,
)
from dpkernel.proof.audit import audit_scores
from dpkernel.selection import PrivateScore
from dpkernel.selection.losses import STEPS, loss_sensitivity, row_loss
from dpkernel.selection.plan import resolve_law
from dpkernel.selection.runs import Search

LOGARITHMIC = StoppingLaw("negative-binomial", 10.0, 0.0)
GEOMETRIC = StoppingLaw("negative-binomial", 10.0, 1.0)
POISSON = StoppingLaw("poisson", 10.0)
REPLACE = Neighbours.REPLACE_ONE


# --- profiles ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "mean", "epsilon"),
    [
        (("negative-binomial", 0.0), 10, 1.80),
        (("negative-binomial", 1.0), 10, 2.15),
        (("poisson", 0.0), 10, 1.93),
        (("negative-binomial", 0.0), 30, 1.97),
        (("negative-binomial", 1.0), 30, 2.42),
        (("poisson", 0.0), 30, 3.37),
    ],
)
def test_golden_numbers_of_random_stopping(law, mean, epsilon):
    base = GaussianProfile(gaussian_mu(1.0, 1e-6))
    name, eta = law
    found = StoppingProfile(base, StoppingLaw(name, mean, eta)).epsilon(1e-6)
    assert found == pytest.approx(epsilon, abs=0.01)
    assert base.repeat(10).epsilon(1e-6) == pytest.approx(3.53, abs=0.01)


@pytest.mark.parametrize("eta", [0.0, 1.0, 0.5])
@pytest.mark.parametrize("mean", [3.0, 10.0])
def test_negative_binomial_agrees_with_dp_accounting(eta, mean):
    law = StoppingLaw("negative-binomial", mean, eta)
    sigma = 4.0
    event = dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(sigma), law.greatest_mean, eta)
    orders = [1 + 10.0**e for e in np.linspace(-2, 4, 121)]
    theirs = RdpAccountant(orders).compose(event).get_epsilon(1e-6)
    ours = StoppingProfile(GaussianProfile(1 / sigma), law).epsilon(1e-6)
    assert ours <= theirs * (1 + 1e-6)
    assert ours == pytest.approx(theirs, rel=0.02)


def test_poisson_is_below_dp_accounting_which_converts_delta_from_renyi():
    event = dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(4.0), 10.0, math.inf)
    theirs = RdpAccountant([1 + 10.0**e for e in np.linspace(-2, 4, 121)]).compose(event)
    ours = StoppingProfile(GaussianProfile(0.25), POISSON).epsilon(1e-6)
    assert 0.5 * theirs.get_epsilon(1e-6) < ours < theirs.get_epsilon(1e-6)


@lru_cache
def law_of(law: StoppingLaw) -> np.ndarray:
    """Return P(K = 0), P(K = 1), ... until 1e-14 is left."""
    found, total = [], 0.0
    for probability in law.probabilities():
        found.append(float(probability))
        total += found[-1]
        if 1 - total < 1e-14:
            return np.array(found)
    raise AssertionError


def best_of(base: np.ndarray, law: StoppingLaw) -> np.ndarray:
    """Return the law of the best output (the last one is best) of K runs; K = 0 gives the first."""
    weights = law_of(law)
    below = np.concatenate([[0.0], np.cumsum(base)])
    generating = np.array(
        [np.sum(weights * np.minimum(x, 1.0) ** np.arange(len(weights))) for x in below]
    )
    found = np.diff(generating)
    found[0] += weights[0]
    return found


@pytest.mark.parametrize(
    "law",
    [LOGARITHMIC, GEOMETRIC, POISSON, StoppingLaw("negative-binomial", 4.0, -0.5),
     StoppingLaw("poisson", 1.0)],
    ids=str,
)  # fmt: skip
def test_exact_laws_of_the_best_of_k_stay_below_the_bound(law):
    """On three outputs with pure epsilon 0.5 between neighbours; the bound is within 4 times of them."""
    own, nearest = 0.5, 0.0
    claim = StoppingProfile(PureProfile(own), law)
    grow = math.exp(own)
    pairs = []
    for rare in (0.01, 0.1, 0.3):
        p = np.array([1 - grow * rare, grow * rare / 2, grow * rare / 2])
        q = np.array([1 - rare, rare / 2, rare / 2])
        pairs += [(p, q), (q, p)]
        assert np.max(np.abs(np.log(p / q))) <= max(
            own, abs(math.log((1 - grow * rare) / (1 - rare)))
        )
    for p, q in pairs:
        if np.max(np.abs(np.log(p / q))) > own + 1e-12:
            continue
        best_p, best_q = best_of(p, law), best_of(q, law)
        for order in (1.5, 2.0, 5.0, 30.0):
            exact = math.log(np.sum(best_p**order * best_q ** (1 - order))) / (order - 1)
            assert exact <= claim.rdp(order)
            nearest = max(nearest, exact / claim.rdp(order))
        for epsilon in (0.0, 0.3, 0.8, 1.2):
            exact = np.sum(np.maximum(best_p - math.exp(epsilon) * best_q, 0.0))
            assert exact <= claim.delta(epsilon) * (1 + 1e-9)
    assert nearest > 0.1


def test_a_pure_base_costs_two_plus_eta_times_epsilon():
    for law, factor in ((LOGARITHMIC, 2), (GEOMETRIC, 3)):
        found = StoppingProfile(PureProfile(0.3), law)
        assert found.delta(factor * 0.3 * (1 + 1e-9)) == 0
        assert found.epsilon(1e-12) <= factor * 0.3 * (1 + 1e-9)


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_the_best_of_many_pure_runs_costs_nearly_two_plus_eta_epsilons(eta):
    """A run gives a good result with probability a or a/r, a fair one with b or b r, r = e^epsilon.

    The fair one is released if no run was good: that event's exact probability, on either side.
    """
    law, epsilon, a, b = StoppingLaw("negative-binomial", 2000.0, eta), 0.3, 0.2, 1e-7
    left = -math.expm1(-law.log_odds)  # 1 - gamma

    def moment(s):
        """Return E s^K."""
        if eta:
            return (1 - left) * s / (1 - left * s)
        return math.log1p(-left * s) / math.log1p(-left)

    r = math.exp(epsilon)
    on_one = moment(1 - a / r) - moment(1 - a / r - b * r)
    on_other = moment(1 - a) - moment(1 - a - b)
    found, at = StoppingProfile(PureProfile(epsilon), law), 0.95 * (2 + eta) * epsilon
    assert 0 < on_one - math.exp(at) * on_other <= found.delta(at)


def test_renyi_curve_grows_although_its_formula_does_not():
    profile = StoppingProfile(GaussianProfile(0.2), POISSON)
    assert profile._bound(1.01) > profile._bound(3.0)
    assert profile.rdp(1.01) <= profile.rdp(3.0) < profile._bound(3.0)
    assert profile.rdp(100.0) == profile._bound(100.0)


@pytest.mark.parametrize("law", [LOGARITHMIC, GEOMETRIC, POISSON], ids=str)
def test_probabilities_and_draws_follow_the_law(law):
    weights = law_of(law)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert weights @ np.arange(len(weights)) == pytest.approx(10.0, rel=1e-9)
    words = SeededNoise(3).words
    draws = np.array([law.draw(words) for _ in range(2000)])
    first = np.cumsum(weights)[[1, 5, 12]]
    found = [(draws <= k).mean() for k in (1, 5, 12)]
    assert np.all(np.abs(found - first) < 5 * np.sqrt(0.25 / 2000))


def test_a_draw_reads_more_words_where_it_is_close():
    """The first words land on a threshold of the law up to 2^-128: only later ones decide."""
    law, asked = StoppingLaw("poisson", 1.0), []
    with localcontext() as context:
        context.prec = 100
        threshold = int(next(iter(law.probabilities(80))) * (1 << 128))
    for later, expected in ((0, 0), (2**64 - 1, 1)):

        def words(count, later=later):
            asked.append(count)
            first = [threshold >> 64, threshold & (2**64 - 1)]
            return first if len(asked) % 2 else [later, later]

        assert law.draw(words) == expected
    assert len(asked) == 4


@pytest.mark.parametrize("mean", [0.99, 0.0, -1.0, math.nan, "3"])
def test_poisson_of_mean_below_one_is_refused(mean):
    with pytest.raises(ParameterError, match="'mean' parameter of StoppingLaw must be a float"):
        StoppingLaw("poisson", mean)
    assert StoppingLaw("poisson", 1.0).mean == 1


def test_other_laws_are_refused():
    with pytest.raises(ParameterError, match="'name' parameter of StoppingLaw must be one of"):
        StoppingLaw("binomial", 3.0)
    with pytest.raises(
        ParameterError, match=r"'eta' parameter of StoppingLaw must be a float in the"
    ):
        StoppingLaw("negative-binomial", 3.0, -1.0)
    with pytest.raises(ParameterError, match=r"in the range \(1, 1e4\]"):
        StoppingLaw("negative-binomial", 1.0)


def test_maximum_of_profiles():
    assert maximum([GaussianProfile(0.2), GaussianProfile(0.5)]) == GaussianProfile(0.5)
    assert maximum([PureProfile(0.2), PureProfile(0.1)]) == PureProfile(0.2)
    two = maximum([PureProfile(1.0), GaussianProfile(0.5)])
    assert isinstance(two, MaximumProfile) and two.mu == PureProfile(1.0).mu
    for e in (-1.0, 0.0, 0.5, 2.0):
        assert two.delta(e) == max(PureProfile(1.0).delta(e), GaussianProfile(0.5).delta(e))
    with pytest.raises(
        ParameterError, match="'parts' parameter of MaximumProfile must be one or more"
    ):
        MaximumProfile(())


def test_a_base_without_renyi_bound_proves_nothing():
    from dpkernel.privacy.profiles import ApproximateProfile

    found = StoppingProfile(ApproximateProfile(0.1, 1e-9), GEOMETRIC)
    assert found.delta(5.0) == 1.0 and found.epsilon(1e-6) == math.inf


# --- searches ---------------------------------------------------------------------------------


@lru_cache
def wave(n=2500, columns=1):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, columns))
    return X, np.sin(12 * X[:, 0])


def ridge(**options):
    return PrivateKernelRidge(
        **{"bounds": (-1, 1), "y_bounds": (-1, 1), "n_features": 24, **options}
    )


SCALES = {"length_scale": [0.05, 0.9]}


def search(strategy="exponential", **options):
    given = {"epsilon": 4.0, "noise": SeededNoise(1), "strategy": strategy, **options}
    return PrivateSearchCV(given.pop("estimator", ridge()), given.pop("grid", SCALES), **given)


PAID = ("exponential", "random-stopping")


@pytest.mark.parametrize("refit", [True, False])
@pytest.mark.parametrize("strategy", PAID)
def test_a_search_finds_the_scale_and_certifies_the_whole(strategy, refit, tmp_path):
    X, y = wave()
    ledger = Ledger(budget=Budget(4.0, 1e-6), accounting="basic")
    found = search(strategy, refit=refit, ledger=ledger).fit(X, y)
    assert found.best_params_ == {"length_scale": 0.05}
    assert found.score(X, y) > 0.9
    assert found.n_features_in_ == 1 and is_regressor(found)
    certificate = found.certificate_
    assert found.best_estimator_.certificate_ is certificate
    assert 3.5 < certificate.epsilon <= 4.0 and certificate.delta == 1e-6
    assert certificate.verify().epsilon <= 4.0
    assert not certificate.private and "seeded" in certificate.reasons[0]
    again = Certificate.from_json(certificate.to_json())
    assert again == certificate and again.verify().epsilon <= 4.0
    assert [s.label for s in ledger.spends] == ["model selection"]
    assert ledger.spent.epsilon == pytest.approx(certificate.epsilon)
    assert found.best_estimator_.ledger is ledger
    assert (found.plan_.refit is None) is not refit
    save(found.best_estimator_, tmp_path / "model.dpk")
    assert np.array_equal(load(tmp_path / "model.dpk").predict(X[:9]), found.predict(X[:9]))


def test_what_is_released_of_random_stopping_is_the_score_of_the_best_run():
    X, y = wave()
    found = search("random-stopping").fit(X, y)
    train, held = found._rows(len(y))
    assert len(held) == 500 and not set(train) & set(held)
    exact = -np.mean((found.predict(X[held]) - y[held]) ** 2)
    spread = found.plan_.score_noise  # of losses that are clipped at a quarter of 2^2, which is 1
    assert abs(found.best_score_ - exact) < 6 * spread
    assert abs(found.best_score_ - exact) > 0.01 * spread > 2 / STEPS  # noise, not rounding


@pytest.mark.parametrize("refit", [True, False])
def test_nothing_tells_how_many_runs_there_were(refit, caplog, recwarn, capsys):
    """Two laws that draw different numbers of runs leave the same words, labels and attributes."""
    X, y = wave()
    seen = []
    with caplog.at_level(logging.DEBUG):
        for seed in range(4):
            ledger = Ledger()
            found = search("random-stopping", refit=refit, noise=SeededNoise(seed), ledger=ledger)
            found.fit(X, y)
            spends = json.dumps([s.plan for s in ledger.spends])
            names = sorted(vars(found)), sorted(vars(found.best_estimator_))
            seen.append((spends, names, len(ledger.spends), ledger.history()[0]["releases"]))
            public = {**found.certificate_.public, "feature_map": None, "regularisation": None}
            seen[-1] += (json.dumps(public), found.certificate_.profile)
    assert all(one == seen[0] for one in seen)
    assert not caplog.records and not recwarn.list and capsys.readouterr() == ("", "")


def test_the_number_of_runs_varies_and_the_best_is_kept():
    base = RandomStopping(*stopping_parts(), StoppingLaw("poisson", 3.0))
    runs, kept = [], []
    for seed in range(40):
        seen = []

        def run(candidate, source, seen=seen):
            score = float(source.words(1)[0] % 7)
            seen.append((score, len(seen)))
            return score, seen[-1]

        noise = Ledger().spend(base.profile(), "x", noise=SeededNoise(seed))
        found = base.release(run, noise)
        runs.append(len(seen))
        best = max((s for s, _ in seen), default=None)
        kept.append(found == (None if best is None else next(p for p in seen if p[0] == best)))
    assert all(kept)  # of ties the earliest
    assert len(set(runs)) > 4 and 0 in runs
    assert np.mean(runs) == pytest.approx(3.0, abs=5 * math.sqrt(3 / 40))


def stopping_parts(mu=0.3):
    score = Gaussian.with_mu(loss_sensitivity(REPLACE), mu, dimension=1, integer=True)
    return loss_sensitivity(REPLACE), 2, ((Line("fit", score),),), (), score


def test_a_search_of_no_run_returns_the_first_candidate_fitted_to_nothing():
    X, y = wave()
    law = StoppingLaw("poisson", 1.0)
    words = next(s for s in range(50) if law.draw(SeededNoise(s).words) == 0)
    found = search("random-stopping", law=law, noise=SeededNoise(words)).fit(X, y)
    other = search("random-stopping", law=law, noise=SeededNoise(words)).fit(X, -np.abs(y))
    assert found.best_params_ == {"length_scale": 0.05} and found.best_score_ is None
    assert np.array_equal(found.predict(X), other.predict(X))
    again = search("random-stopping", law=law, noise=SeededNoise(words), refit=True).fit(X, y)
    assert again.best_params_ == {"length_scale": 0.05} and again.score(X, y) > 0.9


def test_every_run_has_noise_of_its_own():
    """A seeded source starts again with every fit, so each run is given another seed."""
    X, y = wave()
    found = search("exponential", grid={"random_state": [0, 1]}, refit=False)
    coefficients = []
    original = PrivateKernelRidge.fit

    def fit(self, X, y=None, groups=None):
        done = original(self, X, y, groups)
        coefficients.append(done.noise.seed)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateKernelRidge, "fit", fit)
        found.fit(X, y)
    assert len(set(coefficients)) == 2


def test_classifiers_are_chosen_by_accuracy():
    X, y = wave(800)
    labels = np.where(y > 0, "up", "down")
    model = PrivateKernelClassifier(
        classes=["down", "up"], bounds=(-1, 1), n_features=24, features="eigen"
    )
    found = search(estimator=model, epsilon=8.0, refit=False).fit(X, labels)
    assert is_classifier(found) and list(found.classes_) == ["down", "up"]
    assert found.predict_proba(X[:3]).shape == (3, 2)
    assert found.score(X, labels) > 0.7
    assert found.certificate_.verify().epsilon <= 8.0


def test_free_choices_cost_what_one_fit_costs():
    X, y = wave()
    grid = {"regularisation": [1.0, 1e3, 1e8], "n_features": [4, 24]}
    ledger = Ledger()
    fine = ridge(length_scale=0.05)
    found = search("auto", estimator=fine, grid=grid, ledger=ledger).fit(X, y)
    assert found.plan_.strategy == "free" and "free" in str(found.plan_)
    assert found.best_params_["n_features"] == 24 and found.best_params_["regularisation"] < 1e8
    (release,) = found.certificate_.releases
    assert release.folds == 2 and found.certificate_.epsilon <= 4.0
    assert len(ledger.spends) == 1
    assert found.best_estimator_.regularisation == found.best_params_["regularisation"]
    assert np.count_nonzero(found.best_estimator_.coef_) == 24
    few = search("auto", estimator=fine, grid={"n_features": [4]}).fit(X, y)
    assert np.count_nonzero(few.best_estimator_.coef_) == 4


def test_free_is_refused_where_the_choice_is_not():
    X, y = wave()
    with pytest.raises(ParameterError, match="Only 'regularisation' and leading eigenfeatures"):
        search("free").fit(X, y)
    fourier = search("auto", estimator=ridge(features="fourier"), grid={"n_features": [4, 24]})
    assert fourier.plan(2500, 1).strategy == "exponential"


def test_auto_trains_all_of_a_few_and_random_ones_of_many():
    few, many = ({"length_scale": list(np.linspace(0.1, 1, m))} for m in (3, 9))
    assert search("auto", grid=few).plan(2500, 1).strategy == "exponential"
    plan = search("auto", grid=many).plan(2500, 1)
    assert plan.strategy == "random-stopping" and plan.law == StoppingLaw(
        "negative-binomial", 18, 1
    )
    assert resolve_law("auto", "auto", 3) == StoppingLaw("poisson", 6.0)
    assert resolve_law("logarithmic", 7, 3) == StoppingLaw("negative-binomial", 7.0, 0.0)


def test_the_plan_is_what_is_spent():
    X, y = wave()
    for strategy in PAID:
        found = search(strategy)
        told = found.plan(X)
        assert told == found.fit(X, y).plan_
        assert told == search(strategy).plan(2500, 1)
        assert told.mechanism.profile() == found.certificate_.profile
        assert f"epsilon = {told.fit.epsilon:g}" in str(told)


def test_more_candidates_leave_less_for_each_and_random_stopping_hardly_any_less():
    plans = {
        (strategy, m): search(
            strategy, grid={"length_scale": list(np.linspace(0.1, 1, m))}, mean_runs=20.0
        ).plan(20_000, 1)
        for strategy in PAID
        for m in (4, 16)
    }
    exponential = [plans["exponential", m].fit.epsilon for m in (4, 16)]
    assert exponential[1] < 0.6 * exponential[0]
    stopping = [plans["random-stopping", m].fit.epsilon for m in (4, 16)]
    assert stopping[1] == pytest.approx(stopping[0], rel=1e-3)
    assert stopping[1] > 1.5 * exponential[1]


def test_a_grid_search_with_a_ledger_is_charged_in_full_and_costs_more():
    X, y = wave(1000)
    ledger = Ledger(budget=Budget(100.0, 1e-5))
    model = ridge(epsilon=1.0, ledger=ledger, noise=SeededNoise(0))
    GridSearchCV(model, {"length_scale": [0.05, 0.3, 0.9]}, cv=3).fit(X, y)
    assert len(ledger.spends) == 10
    assert ledger.spent.epsilon > 3.0


def test_ledgers_refuse_before_anything_is_drawn():
    X, y = wave()
    ledger = Ledger(budget=Budget(2.0, 1e-6), accounting="basic")
    with pytest.raises(BudgetExceededError, match="model selection"):
        search("random-stopping", ledger=ledger).fit(X, y)
    assert ledger.spends == []
    gaussian = Ledger(budget=Budget(4.0, 1e-6), accounting="gaussian")
    with pytest.raises(LedgerError):
        search("random-stopping", ledger=gaussian).fit(X, y)
    assert gaussian.spends == []
    assert search("exponential", ledger=gaussian).fit(X, y).score(X, y) > 0.9  # its mu is known
    assert gaussian.spent.epsilon <= 4.0


def test_a_candidate_that_is_refused_is_left_out_with_a_warning():
    X, y = wave()
    found = search(grid={"length_scale": [0.05, -1.0]})
    with pytest.warns(UserWarning, match="1 of 2 candidates are refused"):
        found.fit(X, y)
    assert found.best_params_ == {"length_scale": 0.05}
    ledger = Ledger()
    with pytest.raises(ParameterError, match="All 2 candidates are refused, the first with"):
        search(grid={"length_scale": [-1.0, -2.0]}, ledger=ledger).fit(X, y)
    assert ledger.spends == []


def fail(noise):
    raise ValueError("a number from the data")


@pytest.mark.parametrize("strategy", PAID)
def test_fits_that_fail_after_the_spend_tell_nothing_but_that(strategy):
    X, y = wave()
    ledger = Ledger()

    class Failing(PrivateKernelRidge):
        def _adopt(self, found, certificate):
            raise ValueError("a number from the data")

    def build(**options):
        model = Failing(bounds=(-1, 1), y_bounds=(-1, 1), n_features=8)
        return search(strategy, estimator=model, ledger=ledger, **options)

    with pytest.raises(DPKernelError, match="Every fit of the search failed") as error:
        build().fit(X, y)
    assert error.value.__cause__ is None and "number" not in str(error.value)
    assert len(ledger.spends) == 1

    class Picky(PrivateKernelRidge):
        """Fails on real rows only, which must not show."""

        def _make_plan(self, table, budget, relation):
            plan = super()._make_plan(table, budget, relation)
            if np.ptp(table.y) > 0:
                plan.run = fail
            return plan

    model = Picky(bounds=(-1, 1), y_bounds=(-1, 1), n_features=8)
    found = search(strategy, estimator=model, ledger=ledger).fit(X, y)
    assert found.certificate_.valid and np.isfinite(found.predict(X)).all()


@pytest.mark.parametrize("strategy", PAID)
def test_a_fit_that_drops_rows_is_refused_before_anything_is_spent(strategy):
    """The number of rows that are left depends on their contents, and nothing may quote it."""

    class Dropping(PrivateKernelRidge):
        def fit(self, X, y):
            keep = X[:, 0] > -0.5
            return super().fit(X[keep], y[keep])

    class LateDropping(PrivateKernelRidge):
        def fit(self, X, y):
            granted = type(self.ledger) is not Ledger  # after the spend of the search
            keep = X[:, 0] > -0.5 if granted else np.ones(len(y), bool)
            return super().fit(X[keep], y[keep])

    X, y = np.random.default_rng(0).uniform(-1, 1, (2, 60, 2))
    for kind in (Dropping, LateDropping):
        ledger = Ledger()
        model = kind(bounds=(-1, 1), y_bounds=(-1, 1), n_features=8)
        found = search(strategy, estimator=model, ledger=ledger)
        if kind is Dropping:
            with pytest.raises(DataError, match="leaves out or adds rows.*Nothing was spent"):
                found.fit(X, y[:, 0])
            assert ledger.spends == []
        else:  # too late to refuse: its fit counts as a failed one
            found.fit(X, y[:, 0])
            known = (60, len(found._rows(60)[0]))
            assert found.certificate_.public["n_rows"] in known and len(ledger.spends) == 1


@pytest.mark.parametrize("strategy", PAID)
@pytest.mark.parametrize("how", ["twice", "less noise", "another release"])
def test_a_fit_is_held_to_its_plan(strategy, how):
    """The search paid for one fit of each candidate: what asks for more gets no noise."""
    drawn = []

    class Greedy(PrivateKernelRidge):
        def _spend(self, releases, request, *more):
            if how == "twice":
                drawn.append(super()._spend(releases, request, *more))
            if how == "less noise":
                mine = replace(releases[0].mechanism, sigma=releases[0].mechanism.sigma / 2)
                releases = [replace(releases[0], mechanism=mine)]
            if how == "another release":
                releases = [replace(releases[0], label="something else")]
            drawn.append(super()._spend(releases, request, *more))
            return drawn[-1]

    X, y = wave(600)
    ledger = Ledger()
    model = Greedy(bounds=(-1, 1), y_bounds=(-1, 1), n_features=8)
    found = search(strategy, estimator=model, ledger=ledger)
    with pytest.raises(DPKernelError, match="asks for other noise than it announced"):
        found.fit(X, y)
    assert not hasattr(found, "best_estimator_") and len(ledger.spends) == 1
    once = how == "twice"  # the first time is what was planned; nothing is drawn of it
    assert bool(drawn) == once and all(set(n._left.values()) == {1} for n in drawn)


def test_a_fit_that_draws_twice_is_refused_too():
    class Again(PrivateKernelRidge):
        def _make_plan(self, table, budget, relation):
            plan = super()._make_plan(table, budget, relation)
            usual = plan.run

            def run(noise):
                noise.claim(plan.mechanism.profile())
                return usual(noise)

            plan.run = run
            return plan

    X, y = wave(600)
    model = Again(bounds=(-1, 1), y_bounds=(-1, 1), n_features=8)
    with pytest.raises(DPKernelError, match="asks for other noise than it announced"):
        search(estimator=model).fit(X, y)


class Moody(PrivateKernelRidge):
    """Refuses one candidate for what the rows hold: of all of them, or of those that train."""

    sizes = (1000, 800)

    def fit(self, X, y=None):
        if self.length_scale == 0.9 and np.max(np.asarray(X)) > 0.95 and len(y) in self.sizes:
            warnings.warn(f"the last entry is {X[-1]}", stacklevel=1)
            raise ParameterError("This candidate does not like these rows.")
        return super().fit(X, y)


class MoodyInTraining(Moody):
    sizes = (800,)


@pytest.mark.parametrize("kind", [Moody, MoodyInTraining])
@pytest.mark.parametrize("strategy", PAID)
def test_what_any_candidate_refuses_of_the_rows_is_refused_before_the_spend(
    strategy, kind, recwarn
):
    """Otherwise the choice, and so ``best_params_``, would tell of one row."""
    X, y = wave(1000)
    X = np.minimum(X, 0.9)
    other = X.copy()
    other[17] = 1.0  # one record is another
    model = kind(bounds=(-1, 1), y_bounds=(-1, 1), n_features=8)
    found = search(strategy, estimator=model).fit(X, y)
    assert found.plan_.n_candidates == 2 and found.best_params_["length_scale"] in (0.05, 0.9)
    ledger = Ledger()
    refused = search(strategy, estimator=model, ledger=ledger)
    with pytest.raises(ParameterError, match="does not like these rows"):
        refused.fit(other, y)
    assert ledger.spends == [] and not hasattr(refused, "best_params_")
    assert not recwarn.list


@pytest.mark.parametrize("strategy", PAID)
def test_a_plan_that_the_rows_decide_is_refused_before_the_spend(strategy):
    class Sly(PrivateKernelRidge):
        def _planned(self, X, y):
            found = super()._planned(X, y)
            return found * 2 if np.max(np.asarray(y)) > 0.9 else found

    X, y = wave(1000)
    ledger = Ledger()
    model = Sly(bounds=(-1, 1), y_bounds=(-1, 1), n_features=8)
    with pytest.raises(DPKernelError):
        search(strategy, estimator=model, ledger=ledger).fit(X, y)
    assert ledger.spends == []


def test_a_candidate_that_fails_in_training_is_scored_as_one_that_learnt_nothing():
    class Late(PrivateKernelRidge):
        def _adopt(self, found, certificate):
            if self.length_scale == 0.05 and self.__dict__.get("told"):
                raise ValueError("a number from the data")
            super()._adopt(found, certificate)

        def fit(self, X, y=None):
            self.told = np.ptp(y) > 0
            return super().fit(X, y)

    X, y = wave(1000)
    model = Late(bounds=(-1, 1), y_bounds=(-1, 1), n_features=8)
    seen, original = [], Exponential.release

    def release(self, scores, noise):
        seen.append(scores)
        return original(self, scores, noise)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Exponential, "release", release)
        search(estimator=model, epsilon=8.0).fit(X, y)
    loss = search(estimator=model)._loss()
    held = y[4::5]
    nothing = np.trunc(np.minimum(held**2 / loss.bound, 1) * STEPS).sum() - 200 * STEPS / 2
    assert abs(nothing) < 50 * STEPS  # the worst loss is 100 STEPS
    assert abs(seen[0][0] + nothing) < 10 * STEPS


@pytest.mark.parametrize("grid", [SCALES, {"regularisation": [1.0, 9.0]}])
def test_clones_without_a_ledger_are_counted_once(grid):
    X, y = wave(600)

    def warned(action):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            action()
        return [str(one.message) for one in found if one.category is PrivacyWarning]

    def build(**options):
        return search("auto", estimator=ridge(**options), grid=grid, noise=None)

    (text,) = warned(lambda: cross_val_score(build(), X, y, cv=3))
    assert text.startswith("Several clones of one PrivateSearchCV")
    assert not warned(lambda: cross_val_score(build(ledger=Ledger()), X, y, cv=3))
    assert not warned(lambda: cross_val_score(build().set_params(ledger=Ledger()), X, y, cv=3))
    assert not warned(lambda: build().fit(X, y))
    one = build()
    assert len(warned(lambda: [pickle.dumps(clone(one)) for _ in range(3)])) == 1


@pytest.mark.parametrize("strategy", [*PAID, "free"])
def test_the_noise_is_that_of_the_search(strategy):
    X, y = wave(600)
    grid = {"regularisation": [1.0, 9.0]} if strategy == "free" else SCALES
    seeded = ridge(noise=SeededNoise(0))
    found = search(strategy, estimator=seeded, grid=grid, noise=None).fit(X, y)
    assert found.certificate_.private and found.best_estimator_.noise is None
    found = search(strategy, grid=grid, noise=SeededNoise(0)).fit(X, y)
    assert not found.certificate_.private


def test_tables_that_are_not_in_memory_are_refused():
    dask = pytest.importorskip("dask.array")
    X, y = wave(600)
    ledger, stream = Ledger(), BlockStream.from_arrays(X, y)
    rows, target = dask.from_array(X, chunks=100), dask.from_array(y, chunks=100)
    for table in ((rows, target), (rows, y), (X, target), (stream,), (stream, y)):
        with pytest.raises(ParameterError, match="takes tables in memory"):
            search(ledger=ledger).fit(*table)
    assert ledger.spends == []
    for table in (stream, rows):
        with pytest.raises(ParameterError, match="takes tables in memory"):
            search().plan(table)
    for table, got in ((X[:, 0], r"shape \(600,\)"), ("many", "str"), (2.5, "float")):
        with pytest.raises(ParameterError, match=rf"'n' parameter .*two dimensions. Got '{got}'"):
            search().plan(table)
    assert search().plan(pd.DataFrame(X)) == search().plan(600, 1)


def test_columns_of_one_name_are_refused_for_that():
    X, y = wave(600, 2)
    with pytest.raises(DataError, match="Two columns of X have the same name"):
        search().fit(pd.DataFrame(X, columns=["a", "a"]), y)


def test_data_are_refused_in_own_words_before_anything_is_spent():
    class Talking(PrivateKernelRidge):
        def fit(self, X, y=None):
            if np.ptp(y) > 0:
                raise KeyError(f"the target of a row is {y[0]}")
            return super().fit(X, y)

    class Leaning(PrivateKernelRidge):
        """Plans by what the rows hold."""

        def fit(self, X, y=None):
            self.n_features = 8 if np.ptp(y) > 0 else 6
            return super().fit(X, y)

    X, y = wave(600)
    ledger = Ledger()
    options = {"bounds": (-1, 1), "y_bounds": (-1, 1), "n_features": 8}
    with pytest.raises(DataError, match=r"can't use these data \(KeyError\). Nothing was") as error:
        search(estimator=Talking(**options), ledger=ledger).fit(X, y)
    assert error.value.__context__ is None
    with pytest.raises(ParameterError, match="does not follow from the sizes"):
        search(estimator=Leaning(**options), ledger=ledger).fit(X, y)
    assert ledger.spends == []


@pytest.mark.parametrize("kind", [np.asarray, pd.DataFrame, sparse.csr_matrix])
def test_a_row_that_can_not_be_scored_moves_a_score_by_one_range(kind):
    """One validation row makes ``predict`` fail: it counts as the worst, and the others as they are."""

    class Fragile(PrivateKernelRidge):
        def predict(self, X):
            if np.any(np.asarray(X.toarray() if sparse.issparse(X) else X) == 0.123):
                raise ValueError("a number from the data")
            return super().predict(X)

    X, y = wave(500)
    other = X.copy()
    other[4] = 0.123  # row 4 is the first that scores
    model = Fragile(bounds=(-1, 1), y_bounds=(-1, 1), n_features=8)
    sums, original = [], Search._counts

    def counts(self, *arguments):
        sums.append(original(self, *arguments))
        return sums[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "_counts", counts)
        for table in (X, other):
            names = {"columns": ["a"]} if kind is pd.DataFrame else {}
            found = search(estimator=model).fit(kind(table, **names), y)
            assert found.certificate_.valid and hasattr(found, "best_estimator_")
    whole, hurt = sums[0], sums[2]
    assert hurt[0] == STEPS // 2 and np.array_equal(hurt[1:], whole[1:])


def test_a_failed_fit_leaves_the_same_attributes_as_another():
    class Picky(PrivateKernelRidge):
        def _make_plan(self, table, budget, relation):
            plan = super()._make_plan(table, budget, relation)
            if np.ptp(table.y) > 0:
                plan.run = fail
            return plan

    X, y = wave(600, 2)
    frame = pd.DataFrame(X, columns=["a", "b"])
    options = {"bounds": (-1, 1), "y_bounds": (-1, 1), "n_features": 8}
    seen = []
    for kind in (PrivateKernelRidge, Picky):
        found = search(estimator=kind(**options)).fit(frame, y)
        assert list(found.feature_names_in_) == ["a", "b"]
        seen.append((sorted(vars(found.best_estimator_)), found.certificate_.profile))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("strategy", PAID)
def test_what_is_not_private_inside_is_not_private_outside(strategy):
    class Exposed(PrivateKernelRidge):
        def fit(self, X, y=None):
            super().fit(X, y)
            self.certificate_ = replace(self.certificate_, private=False, reasons=("shown to all",))
            return self

    X, y = wave(600)
    model = Exposed(bounds=(-1, 1), y_bounds=(-1, 1), n_features=8)
    certificate = search(strategy, estimator=model, noise=None).fit(X, y).certificate_
    assert certificate.valid and not certificate.private and "shown to all" in certificate.reasons


# --- shapes that would broadcast -------------------------------------------------------------------


class Constant:
    """Predicts one class, or the mean of a row, in a shape of choice."""

    classes_ = np.array([0, 1])

    def __init__(self, shape=lambda p: p, real=False):
        self.shape, self.real = shape, real

    def predict(self, X):
        found = X[:, 0] if self.real else (X[:, 0] > 0).astype(int)
        return self.shape(found)

    def predict_proba(self, X):
        return np.column_stack([0.3 + 0 * X[:, 0], 0.7 + 0 * X[:, 0]])


@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "mse", "mae", "pinball"])
def test_a_row_counts_once_whatever_the_shapes(rng, metric):
    X, real = rng.uniform(-1, 1, (50, 2)), metric in ("mse", "mae", "pinball")
    y = rng.uniform(-1, 1, 50) if real else rng.integers(0, 2, 50)
    loss = row_loss(metric, target=Interval(-1, 1))
    wanted = loss.counts(Constant(real=real), X, y)
    assert wanted.shape == (50,)
    for column in (y[:, None], pd.DataFrame({"y": y})):
        np.testing.assert_array_equal(loss.counts(Constant(real=real), X, column), wanted)
    tall = Constant(lambda p: p[:, None], real)
    np.testing.assert_array_equal(loss.counts(tall, X, y), wanted)
    for rows, target in ((X[:1], y), (X, y[:1]), (X[:49], y)):
        with pytest.raises(DataError, match="rows and y has"):
            loss.counts(Constant(real=real), rows, target)
    if metric != "log_loss":
        short = Constant(lambda p: p[:1], real)
        with pytest.raises(DataError, match="one target per row"):
            loss.counts(short, X, y)


@pytest.mark.parametrize("metric", ["mse", "mae", "pinball", "r2"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_targets_that_are_no_numbers_are_refused_before_anything_is_spent(rng, metric, bad):
    X, y, ledger = rng.uniform(-1, 1, (50, 2)), rng.uniform(-1, 1, 50), Ledger()
    y[3] = bad
    with pytest.raises(DataError, match="NaN or infinity"):
        private_score(Constant(real=True), X, y, metric, y_bounds=(-1, 1), ledger=ledger)
    assert ledger.spends == []


def test_a_column_of_labels_is_searched_as_a_vector():
    X, y = wave(600)
    labels = (y > 0).astype(int)
    found = []
    for target in (labels, labels[:, None], pd.DataFrame({"y": labels})):
        model = PrivateKernelClassifier(
            classes=[0, 1], bounds=(-1, 1), n_features=8, regularisation=5.0
        )
        seeded = PrivateSearchCV(
            model, {"width": [0.5, 1.0]}, 3.0, 1e-6, strategy="exponential", noise=SeededNoise(2)
        )
        found.append(seeded.fit(X, target).predict(X))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "a dict of values to try, or a list of such dicts. Got 'nothing to choose from'"),
        ([], "a dict of values to try"),
        (None, "a dict of values to try"),
        ({"length_scale": []}, "a list of one or more values for 'length_scale'. Got '0 values'"),
        ({"length_scale": 3.0}, "a list of one or more values for 'length_scale'. Got 'float'"),
        ({"epsilon": [1.0]}, "that a search may choose. Got 'epsilon'. The search itself sets this"),
        ({"nothing": [1.0]}, "over parameters of PrivateKernelRidge that a search may choose"),
        ({"length_scale": loguniform(0.1, 1)}, "'n_candidates' parameter of PrivateSearchCV must be"),
    ],
)  # fmt: skip
def test_degenerate_grids_are_refused(grid, message):
    X, y = wave()
    ledger = Ledger()
    with pytest.raises(ParameterError) as error:
        search(grid=grid, ledger=ledger).fit(X, y)
    assert message in str(error.value)
    assert ledger.spends == []


def test_distributions_are_drawn_with_a_public_seed():
    found = search(grid={"length_scale": loguniform(0.05, 1)}, n_candidates=3)
    same = search(grid={"length_scale": loguniform(0.05, 1)}, n_candidates=3)
    other = search(grid={"length_scale": loguniform(0.05, 1)}, n_candidates=3, random_state=1)
    drawn = [one._check()[2] for one in (found, same, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(search(grid={"length_scale": [0.1, 0.2, 0.3]}, n_candidates=2)._check()[2]) == 2


def test_a_search_that_leaves_nothing_is_refused():
    X, y = wave(60)
    ledger = Ledger()
    with pytest.raises(ParameterError, match="leaves nothing but noise: its fits get"):
        search(epsilon=0.1, ledger=ledger).fit(X, y)
    with pytest.raises(ParameterError, match="leaves nothing but noise: its scores get"):
        search("random-stopping", epsilon=1.0, validation=0.01, ledger=ledger).fit(*wave(100))
    assert ledger.spends == []


def test_other_arguments_are_refused():
    X, y = wave()
    with pytest.raises(ParameterError, match=r"must be a float in the range \[1, 1e4\]. Got 0.5"):
        search("random-stopping", law="poisson", mean_runs=0.5).fit(X, y)
    with pytest.raises(ParameterError, match="a private estimator of dpkernel. Got 'str'"):
        search(estimator="ridge").fit(X, y)
    with pytest.raises(
        ParameterError, match="'scoring' parameter of PrivateSearchCV must be one of"
    ):
        search(scoring="roc_auc").fit(X, y)
    with pytest.raises(
        ParameterError, match="'strategy' parameter of PrivateSearchCV must be one of"
    ):
        search("best").fit(X, y)
    with pytest.raises(DataError, match="requires y to be passed"):
        search().fit(X)
    with pytest.raises(DataError, match="X has 2500 rows and y has 9"):
        search().fit(X, y[:9])
    with pytest.raises(DataError, match="rows to train on and rows to score on"):
        search().fit(X[:1], y[:1])
    with pytest.raises(ValueError, match="NaN"):
        search(ledger=(ledger := Ledger())).fit(
            np.where(np.arange(2500)[:, None] == 7, np.nan, X), y
        )
    assert ledger.spends == []


def test_clones_keep_the_ledger_and_frames_work():
    pandas = pytest.importorskip("pandas")
    X, y = wave(columns=2)
    ledger = Ledger()
    found = clone(search(ledger=ledger)).fit(
        pandas.DataFrame(X, columns=["a", "b"]), pandas.Series(y)
    )
    assert len(ledger.spends) == 1
    assert list(found.feature_names_in_) == ["a", "b"]
    domain = Domain.box(-1.0, 1.0, n_columns=2)
    assert search(estimator=ridge(bounds=domain)).plan(2500).n_candidates == 2


def test_a_forged_certificate_is_found_out():
    X, y = wave()
    data = json.loads(search("random-stopping").fit(X, y).certificate_.to_json())
    forged = json.loads(json.dumps(data))
    forged["releases"][0]["law"]["mean"] = 1.0  # fewer runs than there were: another profile
    with pytest.raises(CertificateError, match=r"contradicts itself: public\.selection\.law"):
        Certificate.from_dict(forged).verify()
    forged["public"]["selection"]["law"]["mean"] = 1.0
    with pytest.raises(CertificateError, match="not the one that the parameters give"):
        Certificate.from_dict(forged).verify()
    forged = json.loads(json.dumps(data))
    forged["releases"][0]["score"]["sigma"] /= 10
    with pytest.raises(CertificateError):
        Certificate.from_dict(forged).verify()
    forged = json.loads(json.dumps(data))
    forged["releases"][0]["training"] = []
    with pytest.raises(CertificateError, match="one or more fits"):
        Certificate.from_dict(forged)


def test_mechanisms_refuse_parts_that_do_not_belong_together():
    parts = stopping_parts()
    other = Gaussian.with_mu(loss_sensitivity(Neighbours.ZERO_OUT), 0.3, dimension=1, integer=True)
    with pytest.raises(ParameterError, match="must protect the same relation"):
        RandomStopping(parts[0], 2, ((Line("fit", other),),), (), parts[4], POISSON)
    with pytest.raises(ParameterError, match="must be that of its score"):
        RandomStopping(*parts[:4], other, POISSON)
    choice = Exponential.calibrate(loss_sensitivity(REPLACE, "score"), Budget(1.0), candidates=3)
    with pytest.raises(ParameterError, match="2 fits and a choice among as many"):
        HeldOutChoice(choice.sensitivity, 2, parts[2] * 2, (), choice)
    with pytest.raises(ParameterError, match="'candidates' parameter of RandomStopping must be"):
        RandomStopping(parts[0], 0, *parts[2:], POISSON)
    with pytest.raises(ParameterError, match="a Gaussian mechanism"):
        RandomStopping(*parts[:4], choice, POISSON)


def test_the_whole_is_the_larger_of_two_compositions():
    """Not the composition of the larger parts: a record is in one of the two."""
    sensitivity = loss_sensitivity(REPLACE, "score")
    fit = Gaussian.with_mu(loss_sensitivity(REPLACE), 0.2, dimension=1, integer=True)
    choice = Exponential.calibrate(sensitivity, Budget(1.0), candidates=2)
    line = (Line("fit", fit),)
    found = HeldOutChoice(sensitivity, 2, (line, line), (line,), choice).profile()
    one, again = fit.profile(), fit.profile()
    for e in (0.2, 0.7, 1.5):
        train = compose([one, one, again]).delta(e)
        held = compose([choice.profile(), again]).delta(e)
        assert found.delta(e) == pytest.approx(max(train, held), rel=1e-9)
        assert found.delta(e) <= compose([one, one, choice.profile(), again]).delta(e)
    dear = Gaussian.with_mu(loss_sensitivity(REPLACE), 0.4, dimension=1, integer=True)
    lines, slight = (line, (Line("fit", dear, draws=2),)), replace(choice, rate=choice.rate / 100)
    trained = HeldOutChoice(sensitivity, 2, lines, (), slight).profile()
    for e in (0.2, 1.5):  # each fit, and each draw of it, touches a training row
        every = compose([one, dear.profile(), dear.profile()]).delta(e)
        assert trained.delta(e) == pytest.approx(every, rel=1e-9)
    without = HeldOutChoice(sensitivity, 2, (line, line), (), choice).profile()
    assert without.delta(1.2) < found.delta(1.2)


def test_random_stopping_pays_for_the_dearest_fit_and_for_the_last_one():
    parts = stopping_parts(0.2)
    dear = Gaussian.with_mu(loss_sensitivity(REPLACE), 0.5, dimension=1, integer=True)
    line, dearer = (Line("fit", parts[4]),), (Line("fit", dear),)
    found = RandomStopping(parts[0], 2, (line, dearer), (line, dearer), parts[4], POISSON).profile()
    assert found == compose([StoppingProfile(dear.profile(), POISSON), dear.profile()])
    scored = RandomStopping(parts[0], 2, (line,), (), dear, POISSON).profile()
    assert scored == StoppingProfile(dear.profile(), POISSON)  # a validation row pays for the score
    twice = RandomStopping(parts[0], 2, (line * 2,), (), parts[4], POISSON).profile()
    assert twice == StoppingProfile(parts[4].profile().compose(parts[4].profile()), POISSON)


@pytest.mark.filterwarnings(
    "ignore::dpkernel.foundations.errors.PrivacyWarning"
)  # clones without a ledger
@pytest.mark.parametrize(
    "strategy", ["exponential", pytest.param("random-stopping", marks=pytest.mark.slow)]
)
def test_scikit_learn_accepts_the_search(strategy):
    model = PrivateKernelRidge(y_bounds=(-1000, 1000), features="fourier", n_features=4)
    check_estimator(search(strategy, estimator=model, epsilon=100.0, refit=False))


# --- audits: the claim of the whole against what is released ------------------------------------


@lru_cache
def tiny_search(broken=None, mu=0.6, law=LOGARITHMIC, refit=0.0, trials=800):
    """Return the claim of a search, and one number of its output for each run on two neighbours.

    A validation record is 0 or 1, and the candidates are the constants 0 and 1 with the loss
    |record - constant|: the scores of the two move in opposite directions. The fit on all rows
    releases the record with noise of mu = ``refit``.
    """
    parts = stopping_parts(mu)
    score, again = parts[4], stopping_parts(refit or 1.0)[4]
    late = ((Line("refit", again),),) if refit and broken != "refit not charged" else ()
    mechanism = RandomStopping(*parts[:3], late, score, law)
    grant = Part("search", mechanism.profile(), draws=2 * trials)
    noise = Ledger().spend(Plan((grant,), nothing_proved=True), "audit", noise=SeededNoise(0))

    def noisy(value, gaussian, source):
        return value + float(source.discrete_gaussian(gaussian.noise_scale, 1)[0])

    def one(record):
        fitted = 0

        def run(candidate, source):
            nonlocal fitted
            fitted += not (candidate and record)  # the constant 1 can't be fitted to the record 1
            exact = STEPS // 2 - abs(record - candidate) * STEPS
            found = exact if broken == "score not noised" else noisy(exact, score, source)
            return found, (2 * candidate - 1) * abs(found + 3 * score.noise_scale)

        def finish(best, source):
            best = 0.0 if best is None else best
            if not refit:
                return best
            return noisy((record - 0.5) * STEPS, again, source) + np.sign(best) * STEPS

        released = mechanism.release(run, noise, finish)
        return fitted if broken == "count of candidates leaked" else released

    outputs = [np.array([one(record) for _ in range(trials)], float) for record in (0, 1)]
    return mechanism.profile(), outputs


@pytest.mark.parametrize("refit", [0.0, 0.6])
def test_a_search_is_not_contradicted_by_its_outputs(refit):
    claim, outputs = tiny_search(refit=refit)
    assert not audit_scores(*outputs, claim).violated


@pytest.mark.parametrize(
    "broken", ["score not noised", "count of candidates leaked", "refit not charged"]
)
def test_broken_searches_are_rejected(broken):
    options = {"mu": 0.1, "law": StoppingLaw("poisson", 6.0), "refit": 2.0 * ("refit" in broken)}
    claim, outputs = tiny_search(broken, **options)
    assert audit_scores(*outputs, claim).violated
    claim, outputs = tiny_search(**options)  # the same search, whole
    assert not audit_scores(*outputs, claim).violated


# --- private scores -----------------------------------------------------------------------------


class Fixed:
    """A model that predicts given numbers; its rows are their positions."""

    def __init__(self, predictions, classes=None):
        self.predictions = predictions
        if classes is not None:
            self.classes_ = np.array(classes)

    def predict(self, X):
        found = self.predictions[X[:, 0].astype(int)]
        return self.classes_[(found > 0.5).astype(int)] if hasattr(self, "classes_") else found

    def predict_proba(self, X):
        found = self.predictions[X[:, 0].astype(int)]
        return np.column_stack([1 - found, found])


ROWS = np.arange(4000.0)[:, None]


@lru_cache
def example(kind):
    rng = np.random.default_rng(5)
    if kind == "real":
        y = rng.uniform(-1, 1, 4000)
        return Fixed(0.7 * y + 0.2 * rng.normal(size=4000).clip(-1, 1)), y
    chance = rng.uniform(0, 1, 4000)
    labels = np.where(rng.random(4000) < chance, "yes", "no")
    return Fixed(chance, ["no", "yes"]), labels


def exact_score(metric):
    from sklearn import metrics

    kind = "real" if metric in ("mse", "mae", "r2", "pinball") else "labels"
    model, y = example(kind)
    found = model.predict(ROWS)
    if kind == "real":
        found = found.clip(-1, 1)
        return {
            "mse": lambda: np.mean((y - found) ** 2),
            "mae": lambda: np.mean(np.abs(y - found)),
            "r2": lambda: metrics.r2_score(y, found),
            "pinball": lambda: metrics.mean_pinball_loss(y, found, alpha=0.3),
        }[metric]()
    chance = model.predict_proba(ROWS)
    likely = np.where(y == "yes", chance[:, 1], chance[:, 0])
    return {
        "accuracy": lambda: np.mean(found == y),
        "log_loss": lambda: np.mean(np.minimum(-np.log(likely), 5.0)),
        "auc": lambda: metrics.roc_auc_score(y == "yes", chance[:, 1]),
    }[metric]()


OPTIONS = {"y_bounds": (-1, 1), "quantile": 0.3}


@pytest.mark.parametrize("metric", ["mse", "mae", "r2", "pinball", "accuracy", "log_loss", "auc"])
@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
def test_scores_are_near_the_truth_and_their_intervals_hold(metric, neighbours):
    model, y = example("real" if metric in ("mse", "mae", "r2", "pinball") else "labels")
    truth, hits, widths = exact_score(metric), 0, []
    for seed in range(60):
        options = {**OPTIONS, "noise": SeededNoise(seed), "neighbours": neighbours}
        found = private_score(model, ROWS, y, metric, (1.0, 1e-6), **options)
        hits += found.low - 1e-6 <= truth <= found.high + 1e-6
        widths.append(found.high - found.low)
        assert found.low <= found.value <= found.high
        assert found.certificate.verify().epsilon <= 1.0
    assert hits >= 51  # of 60 at 95 %: fewer with probability below 1e-3, and the seeds are fixed
    assert abs(found.value - truth) < 0.1 and np.median(widths) < 0.2
    assert isinstance(found, PrivateScore) and metric in str(found)


def test_one_of_several_quantiles_is_scored():
    one, y = example("real")
    several = Fixed(np.column_stack([one.predictions - 1, one.predictions]))
    several.quantile = [0.1, 0.3]
    options = {"y_bounds": (-1, 1), "quantile": 0.3, "noise": SeededNoise(0)}
    scores = [private_score(model, ROWS, y, "pinball", **options).value for model in (one, several)]
    assert scores[0] == scores[1]
    with pytest.raises(ParameterError, match="must be one of the model's quantiles 0.1, 0.3"):
        private_score(several, ROWS, y, "pinball", **{**options, "quantile": 0.5})


def test_a_pipeline_is_scored_as_its_last_step_is():
    model, y = example("real")
    behind = Fixed(model.predictions)
    behind.steps_, model.quantile = [("first", None), ("last", model)], 0.3
    options = {"y_bounds": (-1, 1), "noise": SeededNoise(0)}
    scores = [private_score(one, ROWS, y, "pinball", **options) for one in (model, behind)]
    assert scores[0].value == scores[1].value
    assert private_score(model, ROWS, y, "pinball", **options, quantile=0.9) != scores[0]


def test_scores_are_noisy_and_charged():
    model, y = example("real")
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    found = private_score(model, ROWS, y, "mse", Budget(0.6, 1e-6), y_bounds=(-1, 1), ledger=ledger)
    assert found.certificate.private and found.value != pytest.approx(exact_score("mse"), abs=1e-12)
    assert ledger.spent.epsilon == pytest.approx(0.6, rel=1e-6)
    with pytest.raises(BudgetExceededError):
        private_score(model, ROWS, y, "mse", (0.9, 1e-6), y_bounds=(-1, 1), ledger=ledger)


def test_an_interval_for_new_rows_is_wider_and_covers_them():
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(60):
        labels = np.where(rng.random(400) < 0.8, "yes", "no")
        model = Fixed(np.ones(4000), ["no", "yes"])
        options = {"noise": SeededNoise(seed)}
        narrow = private_score(model, ROWS[:400], labels, "accuracy", (5.0, 1e-6), **options)
        wide = private_score(
            model, ROWS[:400], labels, "accuracy", (5.0, 1e-6), population=True, **options
        )
        assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)
        hits += wide.low <= 0.8 <= wide.high
    assert hits >= 51


def test_losses_are_clipped_whatever_the_rows_hold():
    loss = row_loss("mse", target=Domain.box(0, 1, n_columns=1).columns[0])
    wild = Fixed(np.array([np.nan, np.inf, -np.inf, 1e300, 0.5]))
    counts = loss.counts(wild, np.arange(5.0)[:, None], np.array([0.0, 1e9, 1.0, 0.0, 0.5]))
    assert np.all(np.abs(counts) <= STEPS // 2)
    assert counts[4] == -(STEPS // 2) and counts[3] == STEPS // 2
    lower = row_loss("mse", target=Interval(0, 1), bound=0.1)  # than an error may be
    counts = lower.counts(wild, np.arange(5.0)[:, None], np.array([1.0, 0.0, 1.0, 0.0, 0.5]))
    assert counts.tolist() == [STEPS // 2] * 4 + [-(STEPS // 2)]
    chances = Fixed(np.array([np.nan, 0.0, 1.0, 1e-300, -1.0]), ["no", "yes"])
    labels = np.array(["yes", "yes", "yes", "yes", "yes"])
    counts = row_loss("log_loss").counts(chances, np.arange(5.0)[:, None], labels)
    assert counts.tolist() == [STEPS // 2] * 2 + [-(STEPS // 2)] + [STEPS // 2] * 2


@pytest.mark.parametrize("metric", ["mse", "mae", "r2", "pinball", "accuracy", "log_loss", "auc"])
@pytest.mark.parametrize("neighbours", ["replace-one", "zero-out"])
def test_no_row_moves_what_is_released_by_more_than_is_certified(metric, neighbours):
    """The un-noised numbers of a score, on a table and on all of its neighbours, at the hardest rows."""
    seen, release = [], Gaussian.release

    def spy(self, value, noise):
        seen.append((self.sensitivity.value, np.asarray(value, dtype=np.float64)))
        return release(self, value, noise)

    labels = metric in ("accuracy", "log_loss", "auc")
    targets = ["no", "yes"] if labels else [-1.0, 0.0, 0.3, 1.0]
    guesses = [0.0, 0.4, 1.0] if labels else [-1.0, 0.0, 1.0]
    lines = [(guess, target) for guess in guesses for target in targets]

    def numbers(rows):
        model = Fixed(np.array([guess for guess, _ in rows]), ["no", "yes"] if labels else None)
        y = np.array([target for _, target in rows])
        options = {**OPTIONS, "neighbours": neighbours, "noise": SeededNoise(0)}
        private_score(model, ROWS[: len(rows)], y, metric, (1.0, 1e-6), **options)
        return seen.pop()

    others = [(0.4, targets[0])] * 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gaussian, "release", spy)
        certified, without = numbers(others)
        each = [numbers([*others, line])[1] for line in lines]
    if neighbours == "zero-out":
        moves = [np.linalg.norm(one - without) for one in each]
    else:
        moves = [np.linalg.norm(one - two) for one in each for two in each]
    assert 0.8 * certified < max(moves) <= certified


def test_a_model_that_keeps_its_questions_is_not_asked_about_private_rows():
    """Otherwise "was this row scored?" is answered with certainty by the history of answers."""
    X, y = wave(40)
    options = {"bounds": (-1, 1), "y_bounds": (-1, 1), "accept": ("idealised-arithmetic",)}
    curator = PrivateCurator(noise=SeededNoise(0), **options).fit(X, y)

    class Wrapped:
        def __init__(self, parts):
            self.parts = parts

        def predict(self, X):
            return self.parts[0].predict(X)

    ledger = Ledger()
    for model in (curator, Wrapped([curator]), Wrapped((Wrapped({0: curator}),))):
        with pytest.raises(ParameterError, match="can't be scored on private rows"):
            private_score(model, X, y, "mse", y_bounds=(-1, 1), ledger=ledger)
    assert ledger.spends == [] and curator.n_answers_ == 0


def test_score_arguments_are_refused():
    model, y = example("real")
    with pytest.raises(ParameterError, match="'metric' parameter of private_score must be one of"):
        private_score(model, ROWS, y, "mape", y_bounds=(-1, 1))
    with pytest.raises(ParameterError, match="needs 'y_bounds'"):
        private_score(model, ROWS, y, "mse")
    with pytest.raises(ParameterError, match="Gaussian noise"):
        private_score(model, ROWS, y, "mse", (1.0, 0.0), y_bounds=(-1, 1))
    with pytest.raises(ParameterError, match=r"a Budget or \(epsilon, delta\). Got 'float'"):
        private_score(model, ROWS, y, "mse", 1.0, y_bounds=(-1, 1))
    with pytest.raises(ParameterError, match="'replace-one' or 'zero-out'"):
        private_score(model, ROWS, y, "mse", y_bounds=(-1, 1), neighbours="add-remove")
    with pytest.raises(ParameterError, match="'confidence' parameter"):
        private_score(model, ROWS, y, "mse", y_bounds=(-1, 1), confidence=1.0)
    with pytest.raises(ParameterError, match="False for 'r2' and 'auc'"):
        private_score(model, ROWS, y, "r2", y_bounds=(-1, 1), population=True)
    with pytest.raises(ParameterError, match="'loss_bound' parameter"):
        private_score(model, ROWS, y, "mse", y_bounds=(-1, 1), loss_bound=-1.0)
    with pytest.raises(ParameterError, match="'quantile' parameter"):
        private_score(model, ROWS, y, "pinball", y_bounds=(-1, 1), quantile=1.0)
    with pytest.raises(DataError, match="no rows"):
        private_score(model, ROWS[:0], y[:0], "mse", y_bounds=(-1, 1))
    model, labels = example("labels")
    with pytest.raises(ParameterError, match="'bins' parameter"):
        private_score(model, ROWS, labels, "auc", bins=1)
    with pytest.raises(ParameterError, match="'positive' parameter"):
        private_score(model, ROWS, labels, "auc", positive="maybe")
    with pytest.raises(DataError, match="for two classes, and the model has 3"):
        private_score(Fixed(model.predictions, ["a", "b", "c"]), ROWS, labels, "auc")


def test_no_interval_is_claimed_for_a_class_that_noise_hides():
    model, _ = example("labels")
    rare = np.where(np.arange(4000) < 3, "yes", "no")
    found = private_score(model, ROWS, rare, "auc", (0.1, 1e-6), noise=SeededNoise(0))
    assert (found.low, found.high) == (0.0, 1.0)


@pytest.mark.parametrize("metric", ["mse", "r2", "auc"])
def test_words_of_a_model_stay_inside_of_its_score(rng, metric, recwarn):
    """A foreign model's error or warning may quote entries."""
    X, ledger = rng.normal(size=(50, 2)), Ledger()
    text = X.astype(object)
    text[4, 1] = "alice@x.org"

    class Talking(LinearRegression):
        classes_ = np.array([0, 1])

        def decision_function(self, X):
            warnings.warn(f"the last row is {X[-1]}", stacklevel=1)
            return self.predict(X)

        def predict(self, X):
            np.log(-np.abs(np.asarray(X, dtype=float)))
            return super().predict(X)

    y = (X[:, 0] > 0).astype(int)
    model = Talking().fit(X, y)
    with pytest.raises(DataError, match=r"can't score these rows \(ValueError\)") as caught:
        private_score(model, text, y, metric, y_bounds=(-3, 3), ledger=ledger)
    assert caught.value.__context__ is None and ledger.spends == []
    private_score(model, X, y, metric, y_bounds=(-3, 3), ledger=ledger)
    assert len(ledger.spends) == 1 and not recwarn.list


@pytest.mark.parametrize("relation", Neighbours)
def test_scores_move_as_far_as_stated(relation):
    """Rows with any target and any prediction, through the sums of every metric and of R^2."""
    found = sensitivity_cells.furthest(sensitivity_cells.SEARCHES["bounded-sum"], relation)
    assert 0.999 < found <= 1


class Standardising:
    """A model of somebody's own that looks at all rows which it is asked about."""

    def predict(self, X):
        return (X[:, 0] - X[:, 0].mean()) / X[:, 0].std()


def test_a_model_that_may_mix_rows_is_scored_on_the_callers_word(rng):
    X = rng.uniform(-1, 1, (400, 1))
    other = X.copy()
    other[0] = 1e9
    y = Standardising().predict(X)
    options = {"y_bounds": (-2, 2), "noise": SeededNoise(0)}
    first, second = (
        private_score(Standardising(), table, y, "mse", (1e5, 1e-6), **options)
        for table in (X, other)
    )
    assert abs(first.value - second.value) * len(X) > 10 * 4**2  # ten ranges of the loss, not one
    certificate = first.certificate
    assert certificate.assumptions == ("predicts-row-by-row",)
    assert "predicts-row-by-row" in str(certificate)
    own = PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-2, 2)).fit(X, y)
    assert private_score(own, X, y, "mse").certificate.assumptions == ()
