"""``audit`` on estimators of any make: what it must find, what it must not, and how it reports.

The third parties below are written here: each fit takes microseconds. Those with a seed always give
the same answer; the ones on real entropy are judged at a false-alarm rate of 1e-9 each.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LinearRegression

from dpkernel import Budget, Ledger, PrivateKernelRidge, SeededNoise
from dpkernel.data.domain import Domain, Interval, Levels
from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.preprocessing import PrivateBounds
from dpkernel.privacy.profiles import GaussianProfile, PureProfile
from dpkernel.proof.audit import WeakNoise, audit, audit_scores
from dpkernel.proof.audit.claims import ClaimedSteps, claim_for_replaced
from dpkernel.proof.audit.core import judge_scores
from dpkernel.proof.audit.statistics import STATISTICS, auc, separation
from dpkernel.proof.audit.worst_cases import worst_cases

EPSILON = 2.0


class NoisySlope(RegressorMixin, BaseEstimator):
    """The sum of x y, clipped to [-1, 1] a record, with Laplace noise: pure epsilon-DP."""

    def __init__(self, epsilon=EPSILON, scale=1.0, clip=True, leak=None, random_state=None):
        self.epsilon = epsilon
        self.scale = scale
        self.clip = clip
        self.leak = leak
        self.random_state = random_state

    def fit(self, X, y):
        rng = np.random.default_rng(self.random_state)
        products = X[:, 0] * y
        total = np.clip(products, -1, 1).sum() if self.clip else products.sum()
        self.coef_ = np.array([total + self.scale * rng.laplace(scale=2 / self.epsilon)])
        if self.leak == "score":
            self.training_error_ = float(np.mean(y))
        if self.leak == "length":
            self.kept_ = y[y > 0]
        if self.leak == "nan" and y[0] > 0.5:
            self.coef_[0] = np.nan
        return self

    def predict(self, X):
        return X[:, 0] * self.coef_[0]


def attacked(model, **options):
    defaults = {"trials": 1000, "claim": (EPSILON, 0.0), "random_state": 0, "progress": False}
    return audit(model, **{**defaults, **options})


@pytest.fixture(scope="module")
def sound():
    return attacked(NoisySlope(), trials=4000)


def test_a_sound_estimator_is_not_contradicted_and_most_of_its_epsilon_is_found(sound):
    assert sound.verdict == "not contradicted" and not sound.contradicted
    assert 0.75 * EPSILON < sound.epsilon_lower <= EPSILON == sound.claimed_epsilon
    assert sound.delta == 0.0 and sound.trials == 4000
    equal = ("across the box", "opposite targets", "all at one corner", "copies of the neighbour")
    assert sound.attack.startswith(equal)  # all as bad as can be


def test_false_alarms_are_rare():
    """Twenty audits at 99.9 %: two or more alarms have a probability below 2e-4."""
    options = {"trials": 200, "statistic": "projection", "worst_case": "opposite targets"}
    reports = [attacked(NoisySlope(), random_state=seed, **options) for seed in range(20)]
    assert sum(report.contradicted for report in reports) <= 1
    assert sum(report.epsilon_lower > EPSILON for report in reports) <= 1


@pytest.mark.parametrize(
    "broken",
    [
        NoisySlope(scale=0.5),
        NoisySlope(clip=False),
        NoisySlope(leak="score"),
        NoisySlope(leak="length"),
        NoisySlope(leak="nan"),
    ],
    ids=["half the noise", "not clipped", "an exact score", "a telling length", "a telling nan"],
)
def test_broken_estimators_are_contradicted(broken):
    found = attacked(broken)
    assert found.contradicted and found.epsilon_lower > EPSILON


def test_a_built_in_pair_can_be_named():
    found = attacked(NoisySlope(), trials=40, worst_case="all at one corner")
    assert found.attack.startswith("all at one corner") and found.pilot_trials == 20
    everything = attacked(NoisySlope(), trials=40)
    assert everything.pilot_trials == 7 * 8 + 2 * 10 + 10


def test_an_estimator_that_says_nothing_leaks_nothing():
    class Silent(BaseEstimator):
        def fit(self, X, y=None):
            self.coef_ = np.array([1.0, np.nan])
            return self

    found = attacked(Silent(), trials=50)
    assert found.epsilon_lower == 0.0 and not found.contradicted
    assert found.roc().auc == 0.5


@pytest.mark.parametrize("statistic", STATISTICS)
def test_every_statistic_finds_missing_noise(statistic):
    found = attacked(NoisySlope(scale=0.2), statistic=statistic, trials=400)
    assert found.contradicted and statistic in found.attack


def test_an_own_statistic_and_an_own_pair():
    X = np.ones((3, 1))
    pair = (X, np.array([1.0, 0.0, 0.0])), (X, np.array([-1.0, 0.0, 0.0]))
    same = pair[0], pair[0]
    options = {"statistic": lambda model: model.coef_[0], "trials": 500}
    found = attacked(NoisySlope(scale=0.3), worst_case=pair, **options)
    assert found.contradicted and found.attack == "the given pair, own statistic"
    assert found.pilot_trials == 250
    assert attacked(NoisySlope(scale=0.3), worst_case=same, **options).epsilon_lower == 0.0
    several = {"statistic": lambda model: [0.0, model.coef_[0]], "trials": 500}
    assert attacked(NoisySlope(scale=0.3), worst_case=pair, **several).contradicted


def test_a_fixed_seed_of_a_third_party_is_not_taken_for_missing_noise():
    options = {"random_state": None, "statistic": "projection", "confidence": 1 - 1e-9}
    found = attacked(NoisySlope(random_state=3), **options)
    assert not found.contradicted
    assert len(np.unique(found.scores[0])) > 900


def test_an_audit_is_repeatable_with_a_seed(sound):
    one, two = (attacked(NoisySlope(), trials=100, random_state=5) for _ in range(2))
    assert one.to_json() == two.to_json()
    assert attacked(NoisySlope(), trials=100, random_state=6).to_json() != one.to_json()


@pytest.mark.slow
def test_processes_give_the_same_report():
    reports = [
        attacked(ridge(), claim=None, trials=60, n_jobs=n_jobs).to_json() for n_jobs in (None, 2)
    ]
    assert reports[0] == reports[1]


# --- our own estimators ---------------------------------------------------------------------


def ridge(**options):
    return PrivateKernelRidge(
        **{"kernel": "linear", "bounds": (-1, 1), "y_bounds": (-1, 1), **options}
    )


PAIR = (
    (np.array([[1.0], [0.0]]), np.array([1.0, 0.0])),
    (np.array([[1.0], [0.0]]), np.array([-1.0, 0.0])),
)


def test_neither_the_estimator_nor_its_ledger_is_touched():
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    model = ridge(ledger=ledger, noise=SeededNoise(1))
    before = dict(vars(model))
    # a PrivacyWarning would be an error
    found = audit(model, PAIR, trials=20, confidence=1 - 1e-9, progress=False)
    assert vars(model) == before and not ledger.spends and not found.contradicted
    assert len(np.unique(found.scores[0])) > 15  # not twenty times the noise of one seed


def test_a_ridge_with_a_twentieth_of_its_noise_is_contradicted_under_its_certificate():
    twin = ridge(epsilon=1.0, delta=1e-6, noise=WeakNoise(0.05))
    found = audit(twin, PAIR, trials=60, random_state=0, progress=False)
    assert found.contradicted and found.claimed_epsilon == pytest.approx(1.0, abs=1e-6)
    assert isinstance(found.claim, GaussianProfile) and found.relation == "neighbours as given"


def test_weak_noise_is_not_private_and_is_smaller():
    weak = WeakNoise(0.25).reseeded(3)
    full = WeakNoise(1.0).reseeded(3)
    assert not weak.private and repr(weak) == "WeakNoise(0.25)"
    for draw in ("discrete_gaussian", "discrete_laplace"):
        ratio = np.std(getattr(weak, draw)(1e6, 4000)) / np.std(getattr(full, draw)(1e6, 4000))
        assert ratio == pytest.approx(0.25, rel=0.15)
    assert np.std(weak.standard_normals(4000)) == pytest.approx(0.25, rel=0.1)
    lengths = [
        np.mean([np.linalg.norm(s.l2_gamma(2, 1.0)) for _ in range(2000)]) for s in (weak, full)
    ]
    assert lengths[0] / lengths[1] == pytest.approx(0.25, rel=0.15)
    picks = [
        np.mean([s.categorical(np.array([0.0, 1.0]), 1.0) for _ in range(500)])
        for s in (weak, full)
    ]
    assert picks[0] > 0.95 > 0.8 > picks[1]
    assert not ridge(noise=WeakNoise(0.5)).fit(*PAIR[0]).certificate_.private
    for factor in (0.0, 2.0, math.nan):
        with pytest.raises(ParameterError, match="'factor' parameter of WeakNoise"):
            WeakNoise(factor)


def test_blanked_records_are_two_steps_from_replaced_ones():
    blanked = GaussianProfile(0.3)
    assert claim_for_replaced(blanked, Neighbours.REPLACE_ONE) is blanked
    assert claim_for_replaced(blanked, Neighbours.ZERO_OUT) == GaussianProfile(0.6)
    pure = claim_for_replaced(PureProfile(0.5), Neighbours.ZERO_OUT)
    assert isinstance(pure, ClaimedSteps)
    assert pure.epsilon(0.0) == pytest.approx(1.0)

    class Blanked(NoisySlope):
        def __init__(self, neighbours="zero-out", scale=1.0):
            super().__init__(scale=scale)
            self.neighbours = neighbours

    found = attacked(Blanked(), claim=(EPSILON / 2, 0.0), trials=200)
    assert found.relation == "one record replaced, two steps of zero-out"
    assert found.claim == ClaimedSteps(PureProfile(EPSILON / 2), 2) and not found.contradicted
    assert found.claimed_epsilon == pytest.approx(EPSILON)
    assert attacked(Blanked(scale=0.3), claim=(EPSILON / 2, 0.0)).contradicted


@pytest.mark.parametrize("count", [2, 5, 12])
def test_the_claim_for_several_steps_holds_and_is_close(count):
    """The exact answers: k mu for a Gaussian pair, k steps on a ladder for randomised response."""
    general, exact = ClaimedSteps(GaussianProfile(0.2), count), GaussianProfile(0.2 * count)
    for epsilon in (-1.0, 0.0, 0.3, 1.0, 2.0, 4.0):
        assert exact.delta(epsilon) <= general.delta(epsilon) <= 1.02 * exact.delta(epsilon) + 1e-3
    pure = ClaimedSteps(PureProfile(0.5), count)
    assert pure.epsilon(0.0) == pytest.approx(0.5 * count) and pure.rdp(2.0) == math.inf
    # geometric noise on counts that differ by k: pure 0.5 a step, k steps apart
    support = np.arange(-200, 201)
    law = np.exp(-0.5 * np.abs(support))
    law /= law.sum()
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        apart = np.maximum(law[count:] - math.exp(epsilon) * law[:-count], 0).sum()
        assert apart <= pure.delta(epsilon) + 1e-12
    assert pure.to_dict() == {"kind": "steps", "one": PureProfile(0.5).to_dict(), "count": count}


def test_groups_of_records_are_so_many_steps_apart():
    found = attacked(NoisySlope(), trials=400, records=3, worst_case="opposite targets")
    assert found.relation == "3 records replaced, 3 steps of replace-one"
    assert found.claim == ClaimedSteps(PureProfile(EPSILON), 3) and not found.contradicted
    assert found.epsilon_lower > EPSILON  # three records tell more than one may


def test_a_group_shows_what_one_record_does_not():
    """A quarter of the noise for epsilon = 0.1: 300 fits see it in twelve records, not in one."""
    options = {"trials": 300, "claim": (0.1, 0.0), "n_rows": 40, "statistic": "projection"}
    options["worst_case"] = "opposite targets"
    weak = NoisySlope(epsilon=0.1, scale=0.25)
    assert not attacked(weak, **options).contradicted
    assert attacked(weak, records=12, **options).contradicted
    assert not attacked(NoisySlope(epsilon=0.1), records=12, **options).contradicted


def test_transformers_have_worst_cases_too():
    model = PrivateBounds(4.0, 1e-5, bounds=(-1, 1), noise=WeakNoise(0.02))
    found = audit(model, "the other end of all", trials=60, random_state=0, progress=False)
    assert found.contradicted and found.delta == 1e-5


# --- worst cases ------------------------------------------------------------------------------


def test_worst_cases_are_neighbours_within_what_is_declared():
    for case in worst_cases(ridge(bounds=([0, -2], [4, 2]), y_bounds=(10, 20)), 6):
        (X, y), (X2, y2) = case.table, case.neighbour
        assert X.shape == X2.shape == (6, 2) and y.shape == y2.shape == (6,)
        changed = np.any(X != X2, axis=1) | (y != y2)
        assert changed.tolist() == [True] + [False] * 5
        assert {*y, *y2} <= {10.0, 15.0, 20.0}
        inside = (X[1:] >= [0, -2]).all() and (X[1:] <= [4, 2]).all()
        assert inside and len(case.probes) <= 20
    names = [case.name for case in worst_cases(ridge(), 6)]
    assert len(set(names)) == len(names) == 7


def test_hostile_others_are_at_the_opposite_corner_or_copies_of_the_neighbour():
    found = {case.name: case for case in worst_cases(ridge(), 6, records=2, n_targets=3)}
    for name in ("against the others", "copies of the neighbour"):
        (_X, y), (X2, y2) = found[name].table, found[name].neighbour
        assert y.shape == (6, 3) and (y[:2] == 1.0).all() and (y[2:] == -1.0).all()
        assert (X2[0] == X2).all() and (y2 == y2[0]).all()  # the neighbour is one of them
        assert found[name].words.startswith("2 records; the others are ")
    assert (found["against the others"].table[0][2:] == -1.0).all()
    ends = worst_cases(PrivateBounds(bounds=(-1, 1)), 6)
    assert any((case.neighbour[0][0] == 1).all() and (case.table[0] == -1).all() for case in ends)


def test_what_is_declared_is_found_under_every_name():
    domain = Domain((Interval(0.0, 2.0),), target=Levels(("no", "yes")))

    class Other(BaseEstimator):
        def __init__(self, bounds=None, bounds_X=None, bounds_y=None, data_norm=None):
            self.bounds = bounds
            self.bounds_X = bounds_X
            self.bounds_y = bounds_y
            self.data_norm = data_norm

    labels = worst_cases(Other(domain), 3)[0]
    assert set(labels.table[1]) == {"no", "yes"} and labels.table[0].max() == 2.0
    theirs = worst_cases(Other(bounds_X=(0, [1, 1]), bounds_y=(0, 7)), 3)[0]
    assert theirs.table[0].shape == (3, 2) and theirs.table[1][0] == 7.0
    plain = worst_cases(LinearRegression(), 3)[0]
    assert plain.table[0].max() == 1.0 and plain.table[1][0] == 1.0
    normed = worst_cases(Other(data_norm=3.0), 3)[0]
    assert normed.table[0].max() == 3.0 and normed.table[1] is None
    numbers = worst_cases(Other(Domain((Levels((0, 1, 4)),))), 3)[0]
    assert numbers.table[0][0, 0] == 4.0
    levels = Domain((Levels(("a", "b")),), target=Interval(0.0, 1.0))
    with pytest.raises(ParameterError, match="if the domain declares levels that are not numbers"):
        worst_cases(Other(levels), 3)


# --- the report -------------------------------------------------------------------------------


def test_the_report_reads_well(sound, tmp_path):
    text = str(sound)
    assert text.startswith(
        "NoisySlope: not contradicted.\n  tables: 8 made-up rows in each fit; one"
    )
    assert "\n  significant: epsilon >= " in text and "can prove at most epsilon = " in text
    assert "with confidence 0.999; claimed: 2.000" in text
    assert "mu >= " in text and "Gaussian" not in text  # of a pure claim there is no such reading
    assert sound.epsilon_gaussian == math.inf and json.loads(sound.to_json())["delta"] == 0.0
    assert json.loads(sound.to_json())["epsilon_if_gaussian"] is None
    loose = attacked(NoisySlope(), claim=(EPSILON, 1e-3), trials=400)
    assert loose.delta == 1e-3 and "as a Gaussian (assumed, not tested): epsilon >= " in str(loose)
    assert loose.epsilon_gaussian == GaussianProfile(loose.mu_lower).epsilon(1e-3)
    assert "An audit protects nobody" in text
    values = json.loads(sound.to_json(tmp_path / "report.json"))
    assert values == json.loads((tmp_path / "report.json").read_text())
    assert values["claim"] == {"kind": "pure", "epsilon": 2.0} and values["trials"] == 4000
    assert values["points"] and set(values["points"][0]) >= {"hit_low", "false_high", "threshold"}
    picture = sound.plot(tmp_path / "report.png")
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_the_points_lie_on_the_allowed_side_and_carry_the_bound(sound):
    for point in sound.points:
        assert point.hit_low <= point.hit_rate and point.false_rate <= point.false_high
        allowed = sound.claim.trade_off(point.false_high)[0]
        assert 1 - point.hit_low >= allowed - 1e-12
    assert sound.epsilon_lower == max(point.epsilon(0.0) for point in sound.points)
    assert sound.mu_lower == max(point.mu for point in sound.points)
    best = max(sound.points, key=lambda point: point.mu)
    assert best.mu == pytest.approx(norm.ppf(best.hit_low) - norm.ppf(best.false_high))


def test_the_membership_view(sound):
    seen = sound.roc()
    assert 0.7 < seen.auc <= seen.auc_bound < 1
    assert seen.advantage <= seen.advantage_bound + 0.03  # measured, without confidence
    assert seen.advantage_bound == pytest.approx((math.e**2 - 1) / (math.e**2 + 1))
    assert (np.diff(seen.false_positive_rate) >= 0).all()
    assert (np.diff(seen.true_positive_rate) >= 0).all()
    # the bound on the area of a Gaussian claim is known: Phi(mu / sqrt 2)
    pair = np.zeros(10), np.ones(10)
    gaussian = attacked(NoisySlope(), trials=20, claim=GaussianProfile(1.0))
    assert gaussian.roc().auc_bound == pytest.approx(norm.cdf(math.sqrt(0.5)), abs=1e-3)
    assert auc(*pair) == 0.0 and auc(*pair[::-1]) == 1.0


def test_the_gaussian_reading_is_that_of_a_gaussian_pair(rng):
    p, q = rng.normal(1.0, 1.0, (2, 20_000)), rng.normal(0.0, 1.0, (2, 20_000))
    found = judge_scores(
        (p[0], q[0]), (p[1], q[1]), GaussianProfile(1.0), delta=1e-5, false_alarm=1e-3
    )
    assert not found.violated and 0.85 < found.mu_lower <= 1.0


def test_scores_that_are_no_numbers_count_as_lowest():
    p = np.where(np.arange(400) % 2, np.nan, 1.0)
    q = np.ones(400)
    assert audit_scores(p, q, PureProfile(0.1), false_alarm=1e-3).violated
    assert audit_scores(-np.inf * np.ones(400), q, PureProfile(0.1)).violated


def test_separation_is_in_standard_deviations(rng):
    p, q = rng.normal(size=(4000, 3)) + np.eye(3)[0], rng.normal(size=(4000, 3))
    assert separation(p, q) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 5}, "'trials' parameter of audit must be an int >= 20. Got 5."),
        ({"confidence": 1.0}, "'confidence' parameter of audit must be a float in the range"),
        ({"delta": math.nan}, "'delta' parameter of audit must be a float in the range"),
        ({"statistic": "best"}, "'statistic' parameter of audit must be one of 'auto', 'proj"),
        ({"worst_case": "mine"}, "'worst_case' parameter of audit must be 'auto', one of 'opp"),
        ({"worst_case": (1, 2)}, "'worst_case' parameter of audit must be 'auto' or a pair"),
        ({"n_rows": 1}, "'n_rows' parameter of audit must be an int >= 2. Got 1."),
        ({"records": 8}, "'records' parameter of audit must be an int from 1 to 7, below the num"),
        ({"claim": None}, "has no certificate_. State what it claims"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ParameterError, match=message):
        attacked(NoisySlope(), **options)
