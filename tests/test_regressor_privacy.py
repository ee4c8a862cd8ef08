"""PrivateKernelRegressor: every part moves as little as it says, and so does the whole.

A *replay* runs a fit on neighbouring tables with the same released values, so that everything chosen
adaptively is the same and what differs are the exact statistics under the noise.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from dpkernel import Budget, Certificate, Ledger, PrivateKernelRegressor, SeededNoise
from dpkernel.data.domain import Domain, Interval
from dpkernel.data.sources import Source
from dpkernel.data.weights import weight_column
from dpkernel.estimators.regressor import BudgetPlan, fitting, learning, releases, scale
from dpkernel.estimators.regressor.fitting import Fitting, Sizes
from dpkernel.estimators.regressor.learning import LearnedFitting
from dpkernel.estimators.regressor.releases import plan_releases
from dpkernel.estimators.regressor.stage import STAGE_ROW_BOUND, stage_records
from dpkernel.foundations.errors import BudgetExceededError, CertificateError
from dpkernel.foundations.types import Neighbours
from dpkernel.models.features import WhitenedFeatures
from dpkernel.models.features.learned import Component
from dpkernel.models.losses import Huber
from dpkernel.privacy.noise import Part, Plan
from dpkernel.privacy.profiles import compose
from dpkernel.proof.audit import audit_scores
from replay import LEARNED, MIXTURE, SINGLE, make_quick

PLAN = BudgetPlan(location=0.1, inputs=0.1, stages=(1.0, 1.2), scale=0.02, calibration=0.05)
N, D = 40, 2
RELATIONS = (Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT)


def fit_of(X, y, *, relation=Neighbours.REPLACE_ONE, n=None, plan=PLAN, epsilon=1.0, size=8):
    """Return the fit of a table; ``n`` is the public number of rows, blank ones among them."""
    y = np.asarray(y, float)
    n_targets = y.shape[1] if y.ndim == 2 else 1
    source = Source("array", len(X), X.shape[1], y.shape[1:], np.asarray(X, float), y)
    target = Interval(-1, 1)
    domain = Domain.box(-1, 1, n_columns=X.shape[1], target=target)
    sizes = Sizes(n or len(X), X.shape[1], n_targets, size)
    features = WhitenedFeatures(size, length_scale=1.0)
    budget = Budget(epsilon, 1e-6)
    kind = LearnedFitting if plan.adapts else Fitting
    return kind(source, domain, target, sizes, plan.filled(), budget, relation, features)


# --- brute force ---------------------------------------------------------------------------------

HUGE, TINY = 1e308, 5e-324
ODD = [np.array(row) for row in itertools.product((HUGE, -HUGE, TINY, 0.0, 1.0), repeat=D)]
ODD_TARGETS = (HUGE, -HUGE, TINY, 0.0, 1.0, -1.0, 0.3)


class Recorder:
    """Stands in for a mechanism: keeps the exact value and returns what was released before."""

    def __init__(self, name, mechanism, replay):
        self._name, self._mechanism, self._replay = name, mechanism, replay

    def __getattr__(self, name):
        return getattr(self._mechanism, name)

    def release(self, value, noise):
        replay, name = self._replay, self._name
        replay.stage = name
        if name.startswith("stage"):
            value(np.zeros(self.dimension))  # ``Replay.minimise`` keeps the gradient
            return replay.released.setdefault(name, replay.rng.normal(size=self.dimension))
        replay.exact[name] = [np.asarray(value, float)]
        spread = self.noise_scale / 20
        noisy = value + spread * replay.rng.normal(size=np.shape(value))
        whole = name in ("inputs", "dependence")
        noisy = np.rint(noisy).astype(np.int64) if whole else noisy
        return replay.released.setdefault(name, noisy)


class Replay:
    """Runs fits with the same released values and keeps the exact value of every statistic."""

    def __init__(self, rng, monkeypatch):
        make_quick(monkeypatch)
        self.rng, self.released, self.exact, self.stage = rng, {}, {}, ""
        self._betas = [scale * rng.normal(size=9) for scale in (0.0, 0.1, 1.0, 30.0)]
        monkeypatch.setattr(releases, "minimise", self.minimise)

    def run(self, fit):
        """Return the exact statistics of one fit; the first run fixes what is released."""
        self.exact = {}
        fit.mechanisms = {n: Recorder(n, m, self) for n, m in fit.mechanisms.items()}
        fit._states(None)
        return self.exact

    def minimise(self, records, problem, b):
        """Keep the gradient of the losses at several points instead of minimising."""
        size = len(problem.ridge)
        self.exact[self.stage] = [records.sums(beta[:size])[0] for beta in self._betas]
        return np.zeros(size)


def moves(first, second, fit):
    """Return how far each statistic moved, as a share of its stated sensitivity."""
    assert first.keys() == second.keys() == fit.mechanisms.keys()
    return {
        name: max(
            # a statistic whose very length depends on a record moves infinitely far
            (float(np.linalg.norm(a - b)) if a.shape == b.shape else np.inf)
            / fit.mechanisms[name].sensitivity.value
            for a, b in zip(first[name], second[name], strict=True)
        )
        for name in first
    }


def worst_moves(rng, monkeypatch, relation=Neighbours.REPLACE_ONE, trials=15, columns=1, plan=PLAN):
    """Return the largest move of each statistic over random and adversarial neighbours."""
    worst: dict[str, float] = {}
    for trial in range(trials):
        X = rng.uniform(-1, 1, (N, D)) * 10.0 ** rng.integers(-3, 1)
        y = (0.2 if trial % 2 else 0.02) * np.clip(rng.normal(size=N), -5, 5)
        y = y if columns == 1 else np.column_stack([y] * columns)
        if trial % 2:  # where the replaced row lies, others lie too
            X[: N // 2] = ODD[trial % len(ODD)]
        replay = Replay(rng, monkeypatch)
        before = replay.run(fit_of(X, y, relation=relation, plan=plan))
        if relation is Neighbours.REPLACE_ONE:
            other, target = X.copy(), y.copy()
            other[-1] = ODD[rng.integers(len(ODD))] if trial % 3 else rng.uniform(-1, 1, D)
            target[-1] = ODD_TARGETS[rng.integers(len(ODD_TARGETS))]
        else:  # the last record is blank
            other, target = X[:-1], y[:-1]
        fit = fit_of(other, target, relation=relation, n=N, plan=plan)
        found = moves(before, replay.run(fit), fit)
        worst = {name: max(found[name], worst.get(name, 0.0)) for name in found}
    return worst


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_statistic_moves_more_than_it_says(rng, relation, monkeypatch):
    worst = worst_moves(rng, monkeypatch, relation)
    assert list(worst) and max(worst.values()) <= 1 + 1e-9
    assert worst["location"] > 0.999 and worst["scale 1"] > 0.999  # attained
    assert worst["calibration"] > (0.6 if relation is Neighbours.REPLACE_ONE else 0.2)
    assert worst["stage 1"] > 0.4 and worst["stage 2"] > 0.4 and worst["inputs"] > 0.1


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_statistic_of_a_fit_that_learns_its_kernel_moves_more_than_it_says(
    rng, relation, monkeypatch
):
    """What was released is the same on both tables, so the kernel, the metric and the law are."""
    worst = worst_moves(rng, monkeypatch, relation, trials=6, plan=LEARNED)
    assert list(worst) == list(LEARNED.parts()) and max(worst.values()) <= 1 + 1e-9
    assert worst["columns 1"] > 0.7 and worst["columns 2"] > 0.7 and worst["location"] > 0.999
    assert worst["dependence"] > 0.1 and worst["stage 1"] > 0.4 and worst["stage 2"] > 0.4


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_statistic_of_a_fit_of_a_mixture_moves_more_than_it_says(rng, relation, monkeypatch):
    worst = worst_moves(rng, monkeypatch, relation, trials=6, plan=MIXTURE)
    assert set(worst) == set(MIXTURE.parts()) and max(worst.values()) <= 1 + 1e-9
    assert worst["inputs"] > 0.1 and worst["stage 1"] > 0.4 and worst["stage 2"] > 0.4


@pytest.mark.parametrize("relation", RELATIONS)
def test_no_statistic_of_a_single_fit_moves_more_than_it_says(rng, relation, monkeypatch):
    worst = worst_moves(rng, monkeypatch, relation, plan=SINGLE)
    assert set(worst) == set(SINGLE.parts()) and max(worst.values()) <= 1 + 1e-9
    assert worst["location"] > 0.999 and worst["stage 1"] > 0.4


def test_a_single_fit_that_starts_where_the_rows_lie_is_found(rng, monkeypatch):
    """The broken twin: the targets themselves choose the centre and the clip, without noise."""

    def first_location(self, noise):
        total, count = self._passes.sum(sum_targets)
        return float(total / count), 1e-3 + abs(float(total / count))

    monkeypatch.setattr(LearnedFitting, "_first_location", first_location)
    start = replace(SINGLE, location=0.0)
    assert max(worst_moves(rng, monkeypatch, trials=12, plan=start).values()) > 1.2


@pytest.mark.parametrize("leak", ["kernel", "metric", "law"])
def test_a_kernel_learned_from_the_rows_themselves_is_found(rng, monkeypatch, leak):
    """Three broken twins: rows choose the kernel, the metric or the law without noise."""
    rows = {}
    real_law, real_choice = LearnedFitting._input_law, learning.choose_kernel

    def input_law(self, noise):
        total, count = self._passes.sum(sum_rows)
        rows["mean"] = total / count
        law = real_law(self, noise)
        moved = np.clip(law.low + 0.5 * rows["mean"], -1.0, law.high - 0.01)
        return replace(law, low=moved) if leak == "law" else law

    def choose_kernel(features, released, spread, sizes):
        choice = real_choice(features, released, spread, sizes)
        if leak == "kernel":  # one family or another, by a score of the rows that has no noise
            family = "gaussian" if round(1e5 * rows["mean"][0]) % 2 else "laplace"
            choice = replace(choice, components=(Component(family, 0.3),))
        if leak == "metric":
            choice = replace(choice, metric=np.diag(1 + 3 * np.abs(rows["mean"])))
            parts = [replace(c, metric=True) for c in choice.components]
            choice = replace(choice, components=tuple(parts))
        return choice

    monkeypatch.setattr(LearnedFitting, "_input_law", input_law)
    monkeypatch.setattr(learning, "choose_kernel", choose_kernel)
    worst = worst_moves(rng, monkeypatch, trials=12, plan=LEARNED)
    assert max(worst.values()) > 1.2


def sum_targets(X, y):
    return y[:, 0].sum(), len(y)


def sum_rows(X, y):
    return X.sum(axis=0), np.array([len(X)])


def test_no_statistic_of_several_targets_moves_more_than_it_says(rng, monkeypatch):
    worst = worst_moves(rng, monkeypatch, trials=5, columns=2)
    assert len(worst) == 2 * (len(PLAN.parts()) - 1) + 1
    assert max(worst.values()) <= 1 + 1e-9 and worst["location, target 2"] > 0.999


def test_without_the_clip_of_the_last_sum_it_moves_more(rng, monkeypatch):
    def unclipped(features, y, column, coefficients, clip):
        residuals = y[:, column] - (coefficients[0] + features @ coefficients[1:])
        return (np.array([np.sum(np.trunc(residuals / clip * scale.STEPS))]),)

    monkeypatch.setattr(scale, "sum_clipped", unclipped)
    assert worst_moves(rng, monkeypatch, trials=8)["calibration"] > 1.2


def test_without_weights_a_gradient_moves_more(rng, monkeypatch):
    real = fitting.stage_records

    def unweighted(*arguments):
        z, targets, _ = real(*arguments)
        return z, targets, np.ones(len(z))

    monkeypatch.setattr(fitting, "stage_records", unweighted)
    assert worst_moves(rng, monkeypatch, trials=8)["stage 1"] > 1.2


def test_without_the_clip_of_residuals_a_gradient_moves_more(rng, monkeypatch):
    monkeypatch.setattr(fitting, "Huber", lambda threshold: Huber(1e6))
    assert worst_moves(rng, monkeypatch, trials=8)["stage 1"] > 2


def test_every_record_of_a_stage_is_bounded(rng):
    """omega ||z|| <= B and omega ||z||^2 <= B^2, also for rows at the corners of the features."""
    features = np.vstack([rng.choice([-4.0, 4.0], (50, 8)), 4 * rng.uniform(-1, 1, (50, 8))])
    for dtype in (np.float64, np.float32):
        for _ in range(20):
            powers = rng.dirichlet(np.full(9, 0.3))
            used = np.flatnonzero(powers > 1e-9)
            z, targets, weights = fitting.stage_records(
                features.astype(dtype),
                weight_column(rng.choice([-1.0, 1.0, 0.0], 100), False),
                0,
                100 * rng.normal(size=9),
                used,
                np.sqrt(powers[used]),
                10.0 ** rng.integers(-6, 1),
            )
            norms = np.linalg.norm(z.astype(np.float64), axis=1)
            assert np.all(weights * norms <= STAGE_ROW_BOUND)
            assert np.all(weights * norms**2 <= STAGE_ROW_BOUND**2)
            assert np.all((weights > 0) & (weights <= 1)) and np.all(np.abs(targets) <= 64)


# --- one spend, one certificate ------------------------------------------------------------------


def table(rng, n=N, n_targets=1):
    X = rng.uniform(-1, 1, (n, D))
    y = 0.5 * X[:, 0] + 0.1 * rng.normal(size=n)
    return X, y if n_targets == 1 else np.column_stack([y] * n_targets)


def regressor(**options):
    given = {"bounds": (-1, 1), "y_bounds": (-1, 1), "budget_plan": PLAN, "n_features": 8}
    return PrivateKernelRegressor(**{**given, **options})


class Broken(SeededNoise):
    """Fails at a given draw."""

    def __init__(self, fails_at):
        super().__init__(0)
        self.left = fails_at

    def restarted(self):
        return self

    def discrete_gaussian(self, scale, size):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("no more noise")
        return super().discrete_gaussian(scale, size)


@pytest.mark.parametrize("plan", [PLAN, LEARNED], ids=["fixed", "learned"])
@pytest.mark.parametrize("draws", [0, 3])
def test_everything_is_reserved_before_the_first_draw(rng, draws, plan):
    ledger = Ledger(budget=Budget(5.0, 1e-5))
    with pytest.raises(RuntimeError, match="no more noise"):
        options = {"ledger": ledger, "noise": Broken(draws), "budget_plan": plan}
        regressor(epsilon=1.0, **options).fit(*table(rng))
    (spend,) = ledger.spends
    assert [part["label"] for part in spend.plan["parts"]] == list(plan.parts())
    assert ledger.spent.epsilon > 0.85  # at the delta of the ledger, which is larger


def test_one_spend_and_one_line_a_part(rng):
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    model = regressor(epsilon=1.0, ledger=ledger).fit(*table(rng))
    (spend,) = ledger.spends
    certificate = model.certificate_
    lines = [release.label for release in certificate.releases]
    assert lines == list(PLAN.parts()) == [part["label"] for part in spend.plan["parts"]]
    assert certificate.private and certificate.valid
    ms = [r.mechanism.sensitivity.value / r.mechanism.sigma for r in certificate.releases[2:5:2]]
    assert [m for m, _ in certificate.profile.stages] == pytest.approx(ms)
    with pytest.raises(BudgetExceededError):
        regressor(epsilon=0.1, ledger=ledger).fit(*table(rng))
    for word in (*lines, "histogram", "augmented-gram", "loss-gradient", "bounded-sum"):
        assert word in str(certificate)
    assert str(certificate).count("histogram") == 1
    again = Certificate.from_json(certificate.to_json())
    assert again == certificate and again.verify().epsilon <= 1.0


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("n", "d", "epsilon", "delta", "targets"),
    [
        (1, 1, 1.0, 1e-6, 1),
        (100, 3, 0.1, 1e-8, 1),
        (1000, 10, 1.0, 1e-6, 1),
        (1000, 10, 10.0, 1e-3, 2),
        (10**6, 90, 3.0, 1e-9, 1),
        (10**4, 5, 1.0, 1e-6, 3),
    ],
)
def test_all_releases_together_stay_within_the_request(relation, n, d, epsilon, delta, targets):
    budget = Budget(epsilon, delta)
    learned = BudgetPlan.choose(1e4, 3, learn=True) if targets == 1 else PLAN.filled()
    for plan in (PLAN.filled(), learned, None):
        found = plan_releases(plan, n, d, targets, 51, budget, relation)
        whole = compose([mechanism.profile() for mechanism in found.values()])
        assert whole.delta(epsilon) <= delta and whole.epsilon(delta) <= epsilon
        assert whole.epsilon(delta) > 0.99 * epsilon  # and use it
        without = [m.profile() for name, m in found.items() if not name.startswith("stage")]
        if plan is not None:
            assert compose(without).epsilon(delta) < 0.7 * epsilon


def forged(certificate, change):
    data = json.loads(certificate.to_json())
    change(data)
    return Certificate.from_json(json.dumps(data))


def louder_stage(data):
    """Half the noise of a stage: m is twice what was paid for."""
    line = next(line for line in data["releases"] if line["label"] == "stage 2")
    line["sigma"] /= 2
    line["noise_scale"] /= 2


def weaker_ridge(data):
    """A tenth of the ridge: x is ten times what was paid for."""
    line = next(line for line in data["releases"] if line["label"] == "stage 1")
    line["ridge"] /= 10


def other_profile(data):
    data["profile"]["stages"][0][0] *= 0.5


def smaller_claim(data):
    data["epsilon"] *= 0.9


def smaller_gradient(data):
    line = next(line for line in data["releases"] if line["label"] == "stage 1")
    line["sensitivity"]["value"] *= 0.5


@pytest.mark.parametrize(
    "change", [louder_stage, weaker_ridge, other_profile, smaller_claim, smaller_gradient]
)
def test_a_forged_certificate_is_refused(rng, change):
    certificate = regressor(epsilon=1.0).fit(*table(rng)).certificate_
    with pytest.raises(CertificateError):
        forged(certificate, change).verify()


def test_a_stage_that_was_left_out_of_the_certificate_is_missed(rng):
    """The certificate of a fit holds what was paid for, no less."""
    certificate = regressor(epsilon=1.0).fit(*table(rng)).certificate_

    def leave_out(data):
        data["releases"] = [r for r in data["releases"] if r["label"] != "stage 2"]

    with pytest.raises(CertificateError, match="stated profile is not the one"):
        forged(certificate, leave_out).verify()


# --- audit of the whole --------------------------------------------------------------------------

TRIALS = 200
LOUD = BudgetPlan(0.005, 0.0, (0.002, 0.99), 0.0, 0.0, determinant=0.01, clip=0.3)
ONE_STAGE = BudgetPlan(location=0.3, inputs=0.0, stages=(1.0,), scale=0.0, calibration=0.0)


def pair(rows):
    """Return two tables: 49 rows in the middle, and one at the place and with the target given."""
    tables = []
    for place, target in rows:
        X, y = np.zeros((50, 1)), np.zeros(50)
        X[-1], y[-1] = place, target
        tables.append((X, y))
    return tables


class Attack:
    """Knows everything but which odd row is there, and sees what the last stage released.

    At the released beta the known rows and the ridge leave -b and the odd row's gradient, so the
    squared distances to the two candidates are their log-likelihoods.
    """

    rows = ((1.0, 1.0), (1.0, -1.0))

    def __init__(self, monkeypatch, loss=None):
        self._loss = loss or Huber(1.0)
        monkeypatch.setattr(fitting, "Huber", lambda threshold: self._loss)
        monkeypatch.setattr(fitting, "stage_records", self._records)
        make_quick(monkeypatch)

    def _records(self, features, y, *arguments):
        self._arguments = arguments
        return stage_records(features, y, *arguments)

    def watch(self, fit):
        """Keep what the last stage releases."""
        name = f"stage {len(fit.plan.stages)}"
        self._last, self._features = fit.mechanisms[name], fit._for_the_box
        fit.mechanisms[name] = self

    def __getattr__(self, name):
        return getattr(self._last, name)

    def release(self, value, noise):
        self._beta = self._last.release(value, noise)
        return self._beta

    def score(self, features, states):
        used = self._arguments[2]
        beta = self._beta[used]
        known = self._last.ridge * beta + 49 * self._gradient(beta, 0.0, 0.0)
        one, two = (known + self._gradient(beta, *row) for row in self.rows)
        return float(two @ two - one @ one)

    def _gradient(self, beta, place, target):
        row = self._features.transform_block(np.full((1, 1), place))
        z, targets, weights = stage_records(row, np.array([[target, 1.0]]), *self._arguments)
        return weights * self._loss.derivative(targets, z @ beta) @ z


def scores(plan, epsilon, attack):
    """Return scores of many runs on both tables, and what the releases claim."""
    fits = [fit_of(*data, plan=plan, epsilon=epsilon, size=4) for data in pair(attack.rows)]
    mechanisms = dict(fits[0].mechanisms)
    parts = tuple(Part(name, m.profile(), 2 * TRIALS) for name, m in mechanisms.items())
    noise = Ledger().spend(Plan(parts, nothing_proved=True), "audit", noise=SeededNoise(5))
    found = []
    for fit in fits:
        attack.watch(fit)
        found.append(np.array([attack.score(*fit._states(noise)) for _ in range(TRIALS)]))
    return *found, {name: mechanism.profile() for name, mechanism in mechanisms.items()}


def violated(one, two, profiles):
    return audit_scores(one, two, compose(profiles), false_alarm=1e-6).violated


def test_an_unrecorded_stage_is_found_and_a_recorded_one_is_not(monkeypatch):
    one, two, claimed = scores(LOUD, 60.0, Attack(monkeypatch))
    assert not violated(one, two, claimed.values())
    last = claimed.pop("stage 2")
    assert violated(one, two, claimed.values())
    assert not violated(one, two, [last])  # it is the one that was seen


def test_residuals_that_are_not_clipped_are_found(monkeypatch):
    one, two, claimed = scores(ONE_STAGE, 1.0, Attack(monkeypatch))
    assert not violated(one, two, claimed.values())
    one, two, claimed = scores(ONE_STAGE, 1.0, Attack(monkeypatch, Huber(1e6)))
    assert violated(one, two, claimed.values())


class Moments:
    """Sees the mean of the inputs, as released or, silenced, without noise."""

    rows = ((1.0, 0.0), (-1.0, 0.0))

    def __init__(self, monkeypatch, *, silent=False):
        self._silent = silent
        make_quick(monkeypatch)

    def watch(self, fit):
        self._real = fit.mechanisms["inputs"]
        fit.mechanisms["inputs"] = self
        box = WhitenedFeatures(4).build(1)  # features for the moments would take long
        fit._built = lambda **changes: box

    def release(self, value, noise):
        noisy = self._real.release(value, noise)
        self._seen = value if self._silent else noisy
        return self._seen

    def score(self, features, states):
        return float(self._seen[0, -1])


@pytest.mark.parametrize("silent", [False, True])
def test_moments_without_noise_are_found(monkeypatch, silent):
    one, two, claimed = scores(PLAN, 1.0, Moments(monkeypatch, silent=silent))
    assert violated(one, two, claimed.values()) == silent
