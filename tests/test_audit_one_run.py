"""The audit with one run: its p-value, its size, and that it finds what is there.

All seeds are fixed, so that every test always gives the same answer.
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.stats import beta, binom
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.dummy import DummyClassifier

from dpkernel import PrivateKernelRidge
from dpkernel.foundations.errors import ParameterError
from dpkernel.privacy.profiles import PureProfile
from dpkernel.proof.audit import audit_one_run, one_run_epsilon, one_run_p_value


class Responses(RegressorMixin, BaseEstimator):
    """Randomised response about the sign of every target: pure epsilon-DP for replaced records."""

    def __init__(self, epsilon=1.0, honest=True, neighbours="replace-one", random_state=None):
        self.epsilon = epsilon
        self.honest = honest
        self.neighbours = neighbours
        self.random_state = random_state

    def fit(self, X, y):
        rng = np.random.default_rng(self.random_state)
        flips = rng.random(len(y)) > 1 / (1 + math.exp(-self.epsilon))
        told = np.sign(y) * np.where(flips & self.honest, -1, 1)
        self.told_ = dict(zip(X[:, 0].tolist(), told.tolist(), strict=True))
        return self

    def predict(self, X):
        return np.array([self.told_.get(x, 0.0) for x in X[:, 0].tolist()])


M = 400
X = np.arange(M, dtype=float)[:, None]
IN, OUT = (X, np.ones(M)), (X, -np.ones(M))
NONE = np.zeros((0, 1)), np.zeros(0)


def attacked(model, seed=0, **options):
    defaults = {"canaries": IN, "otherwise": OUT, "guesses": M, "claim": (1.0, 0.0)}
    return audit_one_run(model, *NONE, random_state=seed, **{**defaults, **options})


def test_the_published_example():
    """Steinke, Nasr & Jagielski (2023), Appendix D: 75 of 100 guesses right, 1,000 canaries."""
    assert one_run_epsilon(1000, 100, 75, delta=1e-4, confidence=0.95) == pytest.approx(
        0.673, abs=5e-4
    )


def test_the_p_value_is_the_sum_it_says():
    m, r, v, epsilon, delta = 50, 20, 14, 0.4, 1e-3
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    tail = sum(binom.pmf(k, r, q) for k in range(v, r + 1))
    worst = max(sum(binom.pmf(k, r, q) for k in range(v - i, v)) / i for i in range(1, v + 1))
    expected = tail + 2 * m * delta * worst
    assert one_run_p_value(m, r, v, epsilon, delta) == pytest.approx(expected, rel=1e-10)
    assert one_run_p_value(m, r, v, epsilon, 0.0) == pytest.approx(tail, rel=1e-10)
    assert one_run_p_value(m, r, 0, epsilon, delta) == 1.0
    # below the mean the sum is no bound: here it would be 0.8825, and 0.88375 can be reached
    assert one_run_p_value(m, r, math.floor(r * q), epsilon, delta) == 1.0
    assert one_run_p_value(3, 3, 1, 0.0, 0.01) == 1.0
    assert one_run_p_value(m, r, v, epsilon, 0.9) == 1.0


def test_without_delta_the_bound_is_clopper_pearson():
    low = beta.ppf(0.05, 90, 100 - 90 + 1)
    found = one_run_epsilon(100, 100, 90, confidence=0.95)
    assert found == pytest.approx(math.log(low / (1 - low)), rel=1e-6)
    assert one_run_epsilon(100, 100, 50) == 0.0
    assert one_run_epsilon(100, 100, 90, delta=1e-3) < found  # delta explains some
    assert one_run_p_value(100, 100, 90, found, 0.0) <= 0.05


def test_the_bound_holds_for_randomised_response_and_comes_close():
    """At 95 % the truth is exceeded in at most 5 % of the seeds: 12 of 100 have probability 0.4 %."""
    found = np.array([attacked(Responses(), seed).epsilon_lower for seed in range(100)])
    assert np.sum(found > 1.0) <= 12
    assert np.median(found) > 0.7


def test_an_estimator_without_noise_is_caught():
    found = attacked(Responses(honest=False))
    assert found.contradicted and found.correct == M and found.epsilon_lower > 4
    assert found.relation == "one record replaced"


def test_abstaining_keeps_the_guesses_that_are_surest():
    found = attacked(Responses(honest=False), guesses=10)
    assert found.guesses == found.correct == 10 and found.canaries == M
    assert attacked(Responses(honest=False), guesses=None).guesses == M // 2


def test_who_is_left_out_depends_on_the_neighbours():
    removed = attacked(Responses(honest=False, neighbours="add-remove"), otherwise=None)
    assert removed.relation == "one record removed" and removed.contradicted
    blanked = attacked(Responses(neighbours="zero-out"))
    assert blanked.relation == "one record replaced, two steps of zero-out"
    assert blanked.claimed_epsilon == pytest.approx(2.0)
    assert attacked(Responses(), claim=PureProfile(0.3)).contradicted  # it is 1


def test_a_private_ridge_is_not_contradicted_and_one_without_noise_is(rng):
    d = 40
    rows, targets = np.eye(d), np.ones(d)
    X, y = rng.uniform(-1, 1, (50, d)), np.zeros(50)
    model = PrivateKernelRidge(1.0, kernel="linear", bounds=(-1, 1), y_bounds=(-1, 1))
    canaries = {"canaries": (rows, targets), "otherwise": (rows, -targets), "guesses": d}
    found = audit_one_run(model, X, y, **canaries, random_state=0)
    assert not found.contradicted and found.claimed_epsilon == pytest.approx(1.0, abs=1e-6)

    class Exact(RegressorMixin, BaseEstimator):
        def fit(self, X, y):
            self.coef_ = np.linalg.solve(X.T @ X + np.eye(d), X.T @ y)
            return self

        def predict(self, X):
            return X @ self.coef_

    broken = audit_one_run(Exact(), 0 * X, y, **canaries, claim=(1.0, 1e-6), random_state=0)
    assert broken.contradicted and broken.correct == d


def test_by_default_a_canary_that_is_out_is_the_centre_of_the_bounds():
    class Keeps(RegressorMixin, BaseEstimator):
        def __init__(self, bounds=(0, 4), y_bounds=(10, 20)):
            self.bounds = bounds
            self.y_bounds = y_bounds

        def fit(self, X, y):
            out = X[:, 0] == 2.0
            assert set(y[out]) == {15.0} and 0 < out.sum() < len(y)
            self.seen_ = set(X[:, 0].tolist())
            return self

        def predict(self, X):
            return np.array([20.0 if x in self.seen_ else 10.0 for x in X[:, 0].tolist()])

    canaries = np.linspace(3, 4, 30)[:, None], np.full(30, 20.0)
    found = audit_one_run(Keeps(), *NONE, canaries=canaries, claim=(1.0, 0.0), random_state=0)
    assert found.correct == found.guesses and found.contradicted


@pytest.mark.parametrize("kind", ["decision_function", "matrix", "predict"])
def test_classifiers_are_asked_for_their_margins(kind):
    class Nearest(ClassifierMixin, BaseEstimator):
        classes_ = np.array([0, 1])

        def fit(self, X, y):
            self.told_ = dict(zip(X[:, 0].tolist(), y.tolist(), strict=True))
            return self

        def predict(self, X):
            return np.array([self.told_.get(x, 0) for x in X[:, 0].tolist()])

    def margins(self, X):
        found = 2.0 * self.predict(X) - 1
        return found if kind == "decision_function" else np.column_stack((-found, found))

    if kind != "predict":
        Nearest.decision_function = margins
    labels = np.tile([0, 1], M // 2)
    found = attacked(Nearest(), canaries=(X, labels), otherwise=(X, 1 - labels))
    assert found.correct == M and found.contradicted


def test_an_own_score_and_the_report(tmp_path):
    blind = attacked(Responses(honest=False), score=lambda model, X, y: np.full(len(X), np.nan))
    assert blind.epsilon_lower < 0.5 and not blind.contradicted
    text = str(attacked(Responses(honest=False)))
    assert text.startswith("Responses: contradicted.\n  epsilon >= ")
    assert "400 of 400 guesses right, about 400 canaries; one record replaced" in text
    values = json.loads(blind.to_json(tmp_path / "one.json"))
    assert values == json.loads((tmp_path / "one.json").read_text())
    assert values["canaries"] == M and "protects nobody" in values["note"]


def test_coins_and_noise_have_streams_of_their_own():
    """A classifier that flips the coins of its seed knows nothing of those of the audit."""
    rows, labels = np.array([[-1.0], [-2.0]]), np.array([0, 1])
    for seed in range(3):
        found = audit_one_run(
            DummyClassifier(strategy="uniform"),
            rows,
            labels,
            canaries=(X, np.ones(M, int)),
            otherwise=(X, np.zeros(M, int)),
            guesses=M,
            claim=(1.0, 0.0),
            random_state=seed,
        )
        assert not found.contradicted and found.correct < 0.6 * M


class Keeper(BaseEstimator):
    """A transformer that remembers its rows."""

    def fit(self, X, y=None):
        assert y is None
        self.seen_ = set(X[:, 0].tolist())
        return self

    def transform(self, X):
        return X


def test_without_targets_a_score_is_needed():
    def known(model, X, y):
        assert y is None
        return np.array([1.0 if x in model.seen_ else -1.0 for x in X[:, 0].tolist()])

    options = {"canaries": (X, None), "claim": (1.0, 0.0), "random_state": 0}
    found = audit_one_run(Keeper(), NONE[0], score=known, **options)
    assert found.contradicted and found.correct == found.guesses
    with pytest.raises(ParameterError, match="'score' parameter of audit_one_run must be a functi"):
        audit_one_run(Keeper(), NONE[0], **options)
    with pytest.raises(
        ParameterError, match="'y' parameter of audit_one_run must be None if and only if"
    ):
        audit_one_run(Responses(), *NONE, **options)
    with pytest.raises(
        ParameterError, match="'canaries' parameter of audit_one_run must be a pair"
    ):
        audit_one_run(Keeper(), NONE[0], score=known, canaries=7)


def test_the_neighbours_can_be_stated():
    found = attacked(Responses(), neighbours="zero-out")
    assert found.relation == "one record replaced, two steps of zero-out"


def test_bad_arguments():
    with pytest.raises(ParameterError, match="'canaries, guesses, correct' parameter of one_run_p"):
        one_run_p_value(10, 10, 5.5, 1.0, 0.0)
    with pytest.raises(ParameterError, match="'delta' parameter of one_run_p_value"):
        one_run_p_value(10, 10, 5, 1.0, -0.1)
    with pytest.raises(ParameterError, match="0 <= correct <= guesses <= canaries"):
        one_run_epsilon(10, 11, 5)
    with pytest.raises(ParameterError, match="'delta' parameter of one_run_epsilon"):
        one_run_epsilon(10, 10, 5, delta=math.nan)
    with pytest.raises(ParameterError, match="'confidence' parameter of one_run_epsilon"):
        one_run_epsilon(10, 10, 5, confidence=1.0)
    with pytest.raises(ParameterError, match="'epsilon' parameter of one_run_p_value"):
        one_run_p_value(10, 10, 5, -1.0, 0.0)
    with pytest.raises(ParameterError, match="an int from 1 to the number of canaries, 400"):
        attacked(Responses(), guesses=401)
    with pytest.raises(ParameterError, match="'confidence' parameter of audit_one_run"):
        attacked(Responses(), confidence=2.0)
