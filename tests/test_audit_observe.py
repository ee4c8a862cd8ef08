"""What an audit looks at and how it makes its copies: third parties of every make.

The estimators are written here and have fixed seeds, so every test always gives the same answer; those
on real entropy are judged at a false-alarm rate of 1e-9 each.
"""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import Pipeline

from dpkernel import PrivateKernelRidge, SeededNoise
from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.privacy.profiles import GaussianProfile
from dpkernel.proof.audit import WeakNoise, audit
from dpkernel.proof.audit.claims import claimed_delta, declared_relation
from dpkernel.proof.audit.copies import fresh, reseed
from dpkernel.proof.audit.estimator import Runs
from dpkernel.proof.audit.observe import Layout, Runner, observe
from dpkernel.proof.audit.worst_cases import WorstCase

EPSILON = 2.0
X = np.zeros((3, 1))
PAIR = (X, np.array([1.0, 0.0, 0.0])), (X, np.array([-1.0, 0.0, 0.0]))


class Total(RegressorMixin, BaseEstimator):
    """The sum of targets in [-1, 1] with Laplace noise: pure epsilon-DP for replaced records."""

    def __init__(self, epsilon=EPSILON, random_state=None):
        self.epsilon = epsilon
        self.random_state = random_state

    def generator(self):
        return np.random.default_rng(self.random_state)

    def fit(self, X, y):
        noise = self.generator().laplace(scale=2 / self.epsilon)
        self.coef_ = np.array([np.clip(y, -1, 1).sum() + noise])
        return self

    def predict(self, X):
        return np.full(len(X), self.coef_[0])


class Held(Total):
    """Draws from a generator that it was given."""

    def __init__(self, rng=None, seed=None):
        super().__init__()
        self.rng = rng
        self.seed = seed

    def generator(self):
        return np.random.default_rng(self.seed) if self.rng is None else self.rng


class Hidden(Total):
    """Makes its generator when it is made."""

    def __init__(self):
        super().__init__()
        self._rng = np.random.default_rng()

    def generator(self):
        return self._rng


class Bare:
    """Knows nothing of scikit-learn, and ``fit`` returns nothing."""

    def __init__(self, scale=1.0):
        self.rng = np.random.RandomState(1)
        self.scale = scale

    def fit(self, X, y):
        noise = self.scale * self.rng.laplace(scale=2 / EPSILON)
        self.coef_ = np.array([np.clip(y, -1, 1).sum() + noise])


def attacked(model, pair=PAIR, **options):
    defaults = {"trials": 100, "claim": (EPSILON, 0.0), "random_state": 0, "progress": False}
    return audit(model, pair, **{**defaults, **options})


# --- noise of its own -------------------------------------------------------------------------


@pytest.mark.parametrize("count", [37, 50, 110])
def test_no_two_fits_of_an_audit_have_one_seed(count):
    class Spy:
        def filters(self, table, neighbour):
            return {}

        def __call__(self, table, probes, seeds, filters):
            seen.extend(seeds)
            return [{}] * len(seeds)

    seen = []
    case = WorstCase("any", *PAIR)
    for random_state in (0, 1):
        runs = Runs(Spy(), None, random_state, False)
        for side in (False, True, False):
            runs(case, side, count)
    assert len(set(seen)) == len(seen) == 6 * count


@pytest.mark.parametrize("random_state", [0, None])
@pytest.mark.parametrize(
    "model",
    [
        Total(random_state=3),
        Pipeline([("m", Total(random_state=3))]),
        Pipeline([("p", Pipeline([("m", Total())]))]),
        Held(rng=np.random.default_rng(0)),
        Pipeline([("m", Held(rng=np.random.RandomState(0)))]),
        Hidden(),
        Bare(),
    ],
    ids=["own", "nested", "nested, none", "generator", "nested state", "hidden", "no parameters"],
)
def test_a_fixed_seed_is_not_taken_for_missing_noise(model, random_state):
    options = {"random_state": random_state, "confidence": 1 - 1e-9}
    found = attacked(model, statistic="projection", **options)
    assert not found.contradicted
    assert len(np.unique(found.scores[0])) > 95


def test_a_seed_that_can_not_be_changed_is_warned_of():
    with pytest.warns(UserWarning, match="If its parameter 'seed' fixes the noise"):
        attacked(Held(seed=4), trials=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # not where the noise is there, or nothing differs
        attacked(Held(), trials=20)
        attacked(Held(seed=4), (PAIR[0], PAIR[0]), trials=20)


def test_parts_have_seeds_of_their_own():
    model = Pipeline([("a", Total(random_state=1)), ("b", Total(random_state=1))])
    seeds = []
    for seed in (0, 0, 1, None, None):
        copy = fresh(model)
        reseed(copy, seed)
        seeds.append([copy.named_steps[name].random_state for name in "ab"])
    assert seeds[0] == seeds[1] and len({seed for pair in seeds[1:] for seed in pair}) == 8


def ridge(**options):
    return PrivateKernelRidge(kernel="linear", bounds=(-1, 1), y_bounds=(-1, 1), **options)


def test_our_noise_is_seeded_only_where_it_is_not_shared():
    own = ridge()
    reseed(own, 5)
    assert own.noise.seed == 5
    for noise in (None, SeededNoise(1)):
        wrapped = fresh(MultiOutputRegressor(ridge(noise=noise)))
        reseed(wrapped, 5)
        assert wrapped.estimator.noise is None
    weak = fresh(MultiOutputRegressor(ridge(noise=WeakNoise(0.5, SeededNoise(1)))))
    reseed(weak, 5)
    assert weak.estimator.noise.factor == 0.5 and weak.estimator.noise.source is None
    # two outputs of one seed would have one noise: their difference would have none
    rows = np.array([[1.0], [0.0]])
    model = Runner(fresh(MultiOutputRegressor(ridge()))).fitted((rows, np.zeros((2, 2))), 0)
    answers = model.predict([[1.0]])[0]
    assert answers[0] != answers[1]


def test_a_third_party_may_call_something_else_noise():
    class Louder(Total):
        def __init__(self, noise=None, random_state=None):
            super().__init__(random_state=random_state)
            self.noise = noise

        def fit(self, X, y):
            assert self.noise is None
            return super().fit(X, y)

    found = attacked(Louder(), statistic="projection")
    assert not found.contradicted and len(np.unique(found.scores[0])) > 95


# --- what is claimed --------------------------------------------------------------------------


class Declares(Total):
    """Says which neighbours and which delta it means."""

    def __init__(self, neighbours="zero-out", delta=1e-3, random_state=None):
        super().__init__(random_state=random_state)
        self.neighbours = neighbours
        self.delta = delta


def test_the_neighbours_of_parts_count():
    nested = Pipeline([("a", Declares()), ("b", Declares())])
    assert declared_relation(nested) is Neighbours.ZERO_OUT
    assert claimed_delta(None, GaussianProfile(1.0), nested) == 1e-3
    nested.set_params(b__neighbours="replace-one")
    with pytest.raises(ParameterError, match="'neighbours' parameter of audit must be stated wher"):
        declared_relation(nested)
    assert declared_relation(nested, "zero-out") is Neighbours.ZERO_OUT
    inner = Pipeline([("m", Declares())])
    found = attacked(inner, "opposite targets", claim=(EPSILON / 2, 0.0), trials=20)
    assert found.relation == "one record replaced, two steps of zero-out"
    model = ridge(neighbours="zero-out").fit(*PAIR[0])
    assert declared_relation(Total(), None, model) is Neighbours.ZERO_OUT


# --- what is seen -----------------------------------------------------------------------------


class Leaks(BaseEstimator):
    """Shows the first target in a way of one's choice."""

    def __init__(self, how="words"):
        self.how = how

    def fit(self, X, y):
        self._first = float(y[0])
        if self.how == "infinite":
            self.coef_ = np.array([math.inf * self._first])
        if self.how == "classes":
            self.classes_ = np.array(["yes" if self._first > 0 else "no"])
        if self.how == "dict":
            self.means_ = {"a": {"b": self._first}}
        if self.how == "keys":
            self.means_ = {str(self._first): 1.0}
        if self.how == "ragged":
            self.parts_ = [np.array([self._first]), np.array([1.0, 2.0])]
        if self.how == "inner":
            self.inner_ = Leaks("infinite").fit(X, y)
        if self.how == "text":
            self.solver_ = "exact" if self._first > 0 else "rough"
        if self.how == "fails" and self._first > 0:
            raise ValueError("too large")
        if self.how == "fails otherwise":
            raise ValueError("large" if self._first > 0 else "small")
        return self

    @property
    def worst_(self):
        raise AttributeError("not of this fit")

    @property
    def first_(self):
        if self.how != "property":
            raise ValueError("not of this fit")
        return self._first

    def predict(self, X):
        word = "yes" if self.how == "words" and self._first > 0 else "no"
        return np.array([word] * len(X))


@pytest.mark.parametrize(
    "how",
    [
        "words",
        "infinite",
        "classes",
        "dict",
        "keys",
        "ragged",
        "inner",
        "text",
        "fails",
        "property",
    ],
)
def test_leaks_of_every_kind_are_seen(how):
    assert attacked(Leaks(how), trials=200).contradicted


def test_what_leaks_nothing_is_not_contradicted():
    assert attacked(Leaks("nothing"), trials=200).epsilon_lower == 0.0


def test_an_estimator_that_can_not_be_fitted_says_why():
    with pytest.raises(ValueError, match="^large$"):
        attacked(Leaks("fails otherwise"))

    class Again(Total):
        def fit(self, X, y):
            assert self.random_state is None  # which a seed is not
            return super().fit(X, y)

    with pytest.raises(ParameterError, match="can be fitted to one of the two tables. Got 'Assert"):
        attacked(Again())


def test_observations_become_rows():
    seen = [
        {"a": np.array([1.0, math.inf]), "b": np.array([2.0])},
        {"a": np.array([1.0, -math.inf]), "b": np.array([2.0])},
        {"a": np.array([1.0, math.nan]), "b": np.array([2.0])},
        {"a": np.array([1.0]), "b": np.array([2.0])},
        {"a": np.array([1.0])},
    ]
    layout = Layout.of(seen[:3])
    rows = layout.rows(seen)
    assert np.isfinite(rows).all() and len(np.unique(rows, axis=0)) == 5
    assert len(np.unique(Layout.of(seen[3:4]).rows([seen[3], {"a": seen[0]["a"]}]), axis=0)) == 2
    ends = [{"a": np.array([math.inf, -math.inf])}, {"a": np.array([-math.inf, math.inf])}]
    assert len(np.unique(Layout.of(ends).rows(ends), axis=0)) == 2
    assert Layout.of([{}]).rows([{}]).shape == (1, 0)


def test_words_are_their_places_among_all_words_of_the_pilot():
    words = [{"w": np.array(["no", "no"])}, {"w": np.array(["yes", "no"])}]
    layout = Layout.of(words)
    late = {"w": np.array(["late", "no"])}
    rows = layout.rows([*words, late, {"w": np.array([1.0, 2.0])}])
    assert rows[:, :2].tolist() == [[0, 0], [1, 0], [-1, 0], [-1, -1]]
    assert rows[:3, -3:].tolist() == [[0, 2, 0], [0, 1, 1], [1, 1, 0]]  # unknown, no, yes
    numbers = Layout.of([{"w": np.array([1.0])}])
    assert np.isfinite(numbers.rows([late])).all()


def test_observed_are_numbers_and_words_and_nothing_else():
    class Several:
        _private = 1.0
        number_ = np.float64(2.0)
        table_ = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
        mixed_ = pd.DataFrame({"a": [1.0], "b": ["x"]})
        sparse_ = sparse.csr_matrix([[0.0, 5.0]])
        names_ = frozenset({"q", "p"})
        nothing_ = None
        thing_ = object()
        much_ = np.zeros(10_000)

        def method_(self):
            return 1.0

    found = observe(Several(), X)
    assert set(found) == {"number_", "table_", "mixed_", "sparse_", "names_"}
    assert found["table_"].tolist() == [1, 3, 2, 4] and found["sparse_"].tolist() == [0, 5]
    assert found["names_"].tolist() == ["p", "q"] and found["mixed_"].tolist() == ["1.0", "x"]


def test_an_own_statistic_may_be_infinite_or_no_number():
    for statistic in (
        lambda model: math.inf * model._first,
        lambda model: math.nan if model._first > 0 else 1.0,
    ):
        found = attacked(Leaks("nothing"), statistic=statistic, trials=200)
        assert found.contradicted and found.attack.endswith("own statistic")
        seen = found.roc()
        assert seen.auc == seen.advantage == 1.0
        assert json.loads(found.to_json())["auc"] == 1.0


# --- tables -----------------------------------------------------------------------------------


def test_y_is_made_where_fit_asks_for_it():
    assert attacked(Bare(scale=0.01), "opposite targets").contradicted
    plain = attacked(Leaks("nothing"), "opposite targets", trials=20)
    assert plain.epsilon_lower == 0.0


def test_tables_with_words_have_probes():
    frames = [pd.DataFrame({"c": [c, "b", "b"], "x": [1.0, 2.0, 2.0]}) for c in "ab"]
    probes = WorstCase("words", (frames[0], None), (frames[1], None)).probes
    assert list(probes.columns) == ["c", "x"] and len(probes) == 3
    objects = [frame.to_numpy(dtype=object) for frame in frames]
    assert len(WorstCase("objects", (objects[0], None), (objects[1], None)).probes) == 3
    matrices = [sparse.csr_matrix(np.eye(3)), sparse.csr_matrix(np.eye(3))]
    assert WorstCase("sparse", (matrices[0], None), (matrices[1], None)).probes.shape == (6, 3)

    class Counts(ClassifierMixin, BaseEstimator):
        def fit(self, X, y):
            self.n_ = float((X["c"] == "a").sum())
            return self

        def predict(self, X):
            return np.where(X["c"] == "a", "first", "second")

    pair = (frames[0], np.zeros(3)), (frames[1], np.zeros(3))
    assert attacked(Counts(), pair, trials=200).contradicted
