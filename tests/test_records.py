"""Records of convex problems: bounds that no row escapes, and one model from tables of every kind."""

from __future__ import annotations

import math
import os
import tracemalloc
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dpkernel import (
    BlockStream,
    Budget,
    Domain,
    Interval,
    Ledger,
    PrivateKernelClassifier,
    PrivateQuantileRegressor,
    SeededNoise,
)
from dpkernel.data import cache, chunks
from dpkernel.data.domain import unit_inputs
from dpkernel.data.sources import Source
from dpkernel.estimators.classifier import OneAgainstRest
from dpkernel.estimators.objective_plan import ConvexSetting, centre_release, plan_objectives
from dpkernel.estimators.records import (
    ROW_BOUND,
    STEPS,
    RecordRecipe,
    RecordStore,
    UnitTarget,
    sum_rows,
)
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.models.features import FourierFeatures, LinearFeatures, PublicEigenfeatures
from dpkernel.models.features.base import FeatureMap
from dpkernel.models.losses import Huber, Logistic, SmoothedHinge, SmoothedPinball
from dpkernel.privacy.profiles import compose

BOX = Domain(tuple(Interval(-1, 1) for _ in range(3)))


class Wild(FeatureMap):
    """A map of somebody else's: what it returns need not be finite."""

    kind = "wild"
    row_norm_bound = 1.0

    def _build(self, n_inputs):
        self.n_outputs = 4

    def transform_block(self, X):
        rows = np.column_stack([X, np.where(np.abs(X[:, 0]) == 0.5, 1e15 * X[:, 1], X[:, 2])])
        for value, strange in ((0.25, np.nan), (0.75, np.inf), (-0.75, -1e308), (0.125, 1e150)):
            rows[X[:, 0] == value] = strange
        return rows


MAPS = {
    "fourier": lambda: FourierFeatures(12).build(3),
    "eigen": lambda: PublicEigenfeatures(12).build(3),
    "linear": lambda: LinearFeatures().build(3),
    "wild": lambda: Wild().build(3),
}


def recipe_of(kind, dtype="float64", bounds=True, around=False):
    domain = BOX if bounds else Domain()
    if kind == "wild":
        recipe = RecordRecipe(domain, MAPS[kind](), 0.3, 1.0, np.zeros(4), ROW_BOUND)
    else:
        recipe, _ = RecordRecipe.choose(domain, MAPS[kind](), 100, ROW_BOUND)
    recipe = replace(recipe, dtype=dtype)
    return recipe.around(0.1 * np.arange(recipe.features.n_outputs)) if around else recipe


def wild_rows(rng):
    rows = rng.uniform(-2, 2, (60, 3))
    extremes = [0.0, 1.0, -1.0, 1e308, -1e308, 5e-324, 1e39, -1e-310, 1e-20, 0.95]
    rows[:30] = rng.choice(extremes, (30, 3))
    rows[30:40, 0] = rng.choice([0.25, 0.5, -0.5, 0.75, -0.75, 0.125], 10)
    return rows


RECIPES = [
    (kind, dtype, bounds, around)
    for kind in MAPS
    for dtype in ("float64", "float32")
    for bounds in (True, False)
    for around in (False, True)
    if bounds or kind in ("fourier", "wild")
]


@pytest.mark.parametrize(("kind", "dtype", "bounds", "around"), RECIPES)
def test_every_row_keeps_its_bounds_exactly(rng, kind, dtype, bounds, around):
    """omega ||z||^2 <= B^2 and omega ||z|| <= B as rational numbers; no warning on the way."""
    recipe = recipe_of(kind, dtype, bounds, around)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        z, weights = recipe.rows(wild_rows(rng))
    assert z.dtype == dtype and np.isfinite(z).all()
    assert np.all((weights > 0) & (weights <= 1))
    for row, weight in zip(z.tolist(), weights.tolist(), strict=True):
        square = sum(Fraction(v) ** 2 for v in row)
        assert Fraction(weight) * square <= 1
        assert Fraction(weight) ** 2 * square <= 1
    longest = max(math.sqrt(sum(v * v for v in row)) for row in z.tolist())
    assert longest > 1.001 or around or not bounds or kind == "linear"  # weights are needed


@pytest.mark.parametrize(("kind", "dtype", "bounds", "around"), RECIPES)
def test_no_record_feels_the_values_of_other_rows(rng, kind, dtype, bounds, around):
    """To the last bit, also where another row leaves the box or the table lies column by column."""
    recipe = recipe_of(kind, dtype, bounds, around)
    rows = wild_rows(rng)
    for order in (np.ascontiguousarray, np.asfortranarray):
        before = recipe.rows(order(rows))
        for place in (0, 17, 59):
            for others in (rng.permutation(wild_rows(rng)), rng.uniform(-0.1, 0.1, (60, 3))):
                others[place] = rows[place]
                after = recipe.rows(order(others))
                for old, new in zip(before, after, strict=True):
                    np.testing.assert_array_equal(old[place], new[place])


PROBLEMS = {
    "logistic": (Logistic(), OneAgainstRest(1)),
    "hinge": (SmoothedHinge(0.3), OneAgainstRest(2, (0.2, 1.0, 0.5))),
    "pinball": (SmoothedPinball(0.8, 0.1), UnitTarget(Interval(0, 2))),
    "huber": (Huber(0.4), UnitTarget(Interval(0, 2))),
}


def gradient_of(X, y, recipe, loss, targets, beta):
    store = RecordStore(Source("array", len(y), X.shape[1], (), X, y), recipe)
    return store.records(loss, targets).sums(beta)[0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", ["fourier", "eigen", "wild"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_gradients_of_neighbours_stay_within_the_sensitivity(rng, problem, kind, dtype):
    """Random neighbours at random beta never exceed the stated value, and come near it."""
    loss, targets = PROBLEMS[problem]
    recipe = recipe_of(kind, dtype)
    setting = ConvexSetting("test", Budget(1.0, 1e-6), Neighbours.REPLACE_ONE, 60, np.ones(5), 1.0)
    limit = setting.sensitivity(loss).value
    largest = 0.0
    for trial in range(150):
        X, y = wild_rows(rng), rng.integers(0, 3, 60).astype(float)
        other_X, other_y = X.copy(), y.copy()
        place = rng.integers(60)
        other_X[place] = -X[place] if trial % 2 else wild_rows(rng)[rng.integers(60)]
        other_y[place] = rng.integers(0, 3)
        beta = rng.normal(size=recipe.n_coordinates) * 10.0 ** rng.uniform(-2, 3)
        gradients = [
            gradient_of(a, b, recipe, loss, targets, beta) for a, b in ((X, y), (other_X, other_y))
        ]
        moved = float(np.linalg.norm(gradients[0] - gradients[1]))
        assert moved <= limit * (1 + 1e-12)
        largest = max(largest, moved)
    assert largest > 0.3 * limit


@pytest.mark.parametrize("kind", ["fourier", "eigen", "wild"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sums_for_the_centre_move_by_at_most_one_row(rng, kind, dtype):
    recipe = recipe_of(kind, dtype)
    for row in wild_rows(rng):
        (total,) = sum_rows(row[None, :], np.zeros(1), recipe)
        assert sum(int(v) ** 2 for v in total) <= STEPS**2
    for relation in (Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT):
        numbers = Budget(1.0, 1e-6), relation, 60, np.ones(5), 1.0
        certified = centre_release(
            ConvexSetting("test", *numbers, centre_share=0.1), 1.0
        ).sensitivity.value
        rows = [sum_rows(row[None, :], np.zeros(1), recipe)[0] for row in wild_rows(rng)]
        others = rows if relation is Neighbours.REPLACE_ONE else [np.zeros_like(rows[0])]
        worst = max(np.linalg.norm((one - two).astype(float)) for one in rows for two in others)
        assert 0.6 * certified < worst <= certified
    X = wild_rows(rng)
    whole = sum_rows(X, np.zeros(60), recipe)[0]
    parts = [sum_rows(X[i : i + 20], np.zeros(20), recipe)[0] for i in (0, 20, 40)]
    assert np.abs(whole - sum(parts)).max() <= 60  # a last bit of a feature is a step at most


def test_rows_are_narrowed_after_the_middle_of_the_box_was_taken_off(rng):
    """Far from zero a float32 has steps as wide as the box: narrowing first would move every row."""
    X = 1e9 + rng.uniform(0, 100, (50, 2))
    found = unit_inputs(X, Domain.box(1e9, 1e9 + 100, n_columns=2), "float32")
    assert found.dtype == np.float32
    assert np.abs(found - (X - 1e9 - 50) / 50).max() < 1e-6


def test_a_map_that_is_not_finite_ends_in_a_finite_model(rng):
    X, y = wild_rows(rng), rng.integers(0, 2, 60)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PrivateKernelClassifier(5.0, classes=[0, 1], features=Wild(), bounds=(-1, 1))
        assert np.isfinite(model.fit(X, y).decision_function(X[40:])).all()
        options = {"features": Wild(), "bounds": (-1, 1), "y_bounds": (0, 1)}
        assert np.isfinite(PrivateQuantileRegressor(5.0, **options).fit(X, y).coef_).all()


def test_a_map_that_is_finite_nowhere_is_refused(rng):
    class Nothing(Wild):
        def transform_block(self, X):
            return np.full((len(X), 4), np.nan)

    model = PrivateKernelClassifier(classes=[0, 1], features=Nothing(), bounds=(-1, 1))
    with pytest.raises(ParameterError, match="'features' parameter.*finite numbers"):
        model.fit(rng.random((9, 3)), np.arange(9) % 2)


# --- the plan -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("relation", "share"), [(Neighbours.REPLACE_ONE, 0.1), (Neighbours.ZERO_OUT, 0.0)]
)
@pytest.mark.parametrize(
    ("epsilon", "delta", "problems"),
    [
        (0.05, 1e-9, 1),
        (2.0, 1e-2, 2),
        (3.0, 0.0, 2),
        (20.0, 1e-6, 1),
        pytest.param(20.0, 1e-6, 2, marks=pytest.mark.slow),
        pytest.param(200.0, 1e-6, 1, marks=pytest.mark.slow),
        pytest.param(0.05, 1e-9, 2, marks=pytest.mark.slow),
    ],
)
def test_plans_fit_the_budget_and_use_it(relation, share, problems, epsilon, delta):
    powers = np.array([0.1, 0.5, 0.3, 0.1])
    budget = Budget(epsilon, delta)
    setting = ConvexSetting("test", budget, relation, 500, powers, 1.0, centre_share=share)
    for losses in ([Logistic()] * problems, [Huber(0.1 * (k + 1)) for k in range(problems)]):
        if problems == 1 or len(set(losses)) == problems or delta == 1e-2:
            plans, centre = plan_objectives(setting, losses)
            assert sum(plan.draws for plan in plans) == problems
            assert (centre is not None) == (share > 0 and delta > 0)
            parts = [p.mechanism.profile() for p in plans for _ in range(p.draws)]
            whole = compose(parts + ([centre.profile()] if centre else []))
            assert whole.supports(budget)
            assert 0.999 * epsilon < whole.epsilon(delta) <= epsilon
            for plan in plans:
                assert plan.mechanism.error >= plan.problem.tolerance
                assert plan.problem.n_rows == 500 and len(plan.problem.ridge) == 4


def test_a_ridge_that_is_too_small_is_refused_with_the_least_one():
    setting = ConvexSetting("Who", Budget(1.0, 1e-6), Neighbours.REPLACE_ONE, 500, np.ones(3), 1.0)
    with pytest.raises(ParameterError, match="'regularisation' parameter of Who must be .* 0.15"):
        plan_objectives(setting, [Logistic()], 0.1)
    assert plan_objectives(setting, [Logistic()], 0.2)[0][0].mechanism.ridge == 0.2


# --- tables of every kind -------------------------------------------------------------------------


@pytest.fixture
def data(rng):
    X = rng.uniform(-1, 1, (5000, 3))
    X[rng.random((5000, 3)) < 0.3] = 0.0
    return X, np.array(["low", "middle", "high"])[np.digitize(X[:, 0], [-0.3, 0.3])]


def classifier(**options):
    found = PrivateKernelClassifier(
        **{
            "classes": ["low", "middle", "high"],
            "bounds": (-1, 1),
            "n_features": 12,
            "noise": SeededNoise(4),
            **options,
        }
    )
    return found


def close(model, reference):
    """Whether two fits with the same noise are one but for the solver's tolerance."""
    size = np.abs(reference.coef_).max()
    np.testing.assert_allclose(model.coef_, reference.coef_, rtol=0, atol=1e-6 * size)
    np.testing.assert_allclose(model.intercept_, reference.intercept_, rtol=0, atol=1e-6 * size)


def stream_of(X, y, rows, container=np.asarray):
    def blocks():
        for start in range(0, len(y), rows):
            yield container(X[start : start + rows]), y[start : start + rows]

    return BlockStream(blocks, n_rows=len(y))


@pytest.mark.parametrize("most", [(0, 0), (0, 2**29), (2**29, 0)])
def test_arrays_frames_sparse_tables_and_streams_agree(data, most, monkeypatch):
    X, y = data
    reference = classifier().fit(X, y)
    monkeypatch.setattr(cache, "_limits", cache.CacheLimits(*most))
    close(classifier().fit(X, y), reference)
    close(classifier().fit(pd.DataFrame(X, columns=["a", "b", "c"]), pd.Series(y)), reference)
    close(classifier().fit(sparse.csr_array(X), y), reference)
    for rows in (700, 4096, 5000):
        close(classifier().fit(stream_of(X, y, rows)), reference)
    close(classifier().fit(stream_of(X, y, 999, sparse.csr_array)), reference)
    close(classifier().fit(BlockStream.from_arrays(X, y)), reference)
    close(classifier().fit(BlockStream([(X, y)], n_rows=5000)), reference)


def test_streams_of_quantile_targets(data, rng):
    X = data[0]
    y = X[:, 0] + 0.1 * rng.normal(size=5000)
    options = {"quantile": [0.1, 0.9], "bounds": (-1, 1), "y_bounds": (-2, 2), "n_features": 12}
    reference = PrivateQuantileRegressor(**options, noise=SeededNoise(1)).fit(X, y)
    for stream in (stream_of(X, y, 900), stream_of(X, y[:, None], 900)):
        close(PrivateQuantileRegressor(**options, noise=SeededNoise(1)).fit(stream), reference)


def test_a_stream_may_use_its_memory_again(data):
    X, y = data

    def blocks():
        place = np.empty((700, 3))
        for start in range(0, 5000, 700):
            part = X[start : start + 700]
            place[: len(part)] = part
            yield place[: len(part)], y[start : start + 700]

    close(classifier().fit(BlockStream(blocks, n_rows=5000)), classifier().fit(X, y))


def test_an_iterator_that_can_be_read_once_is_refused_with_advice(data):
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    once = BlockStream(iter([data]), n_rows=5000)
    with pytest.raises(ParameterError, match="Give BlockStream a function that returns a new"):
        classifier(ledger=ledger).fit(once)
    assert ledger.spends == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda X, y: [(X, y), (X * np.nan, y)], "Block 1 of the stream contains NaN"),
        (lambda X, y: [(X, y), (X, np.full(5000, "secret"))], "not among the declared"),
        (lambda X, y: [(X, y), (X[:, :2], y)], "other columns"),
        (lambda X, y: [(X, y)], "has fewer rows"),
        (lambda X, y: [(X, np.stack([y, y], axis=1)), (X, y)], "takes one target"),
    ],
)
def test_bad_blocks_anywhere_in_a_stream_spend_nothing(data, make, message):
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    with pytest.raises(DataError, match=message) as error:
        classifier(ledger=ledger).fit(BlockStream(make(*data), n_rows=10_000))
    assert "secret" not in str(error.value) and ledger.spends == []


def test_a_stream_that_fails_in_its_second_pass_spends_nothing(data):
    """What is kept in memory is made before anything is spent."""
    X, y = data
    quantile = PrivateQuantileRegressor(y_bounds=(-1, 1), n_features=12)
    for model, target in ((classifier(noise=None), y), (quantile, X[:, 0])):
        ledger, reads = Ledger(budget=Budget(9.0, 1e-5)), []

        def blocks(reads=reads, target=target):
            reads.append(1)
            yield X[:4000], target[:4000]
            if len(reads) == 2:
                raise OSError("disk gone")
            yield X[4000:], target[4000:]

        with pytest.raises(OSError, match="disk gone"):
            model.set_params(ledger=ledger).fit(BlockStream(blocks, n_rows=5000))
        assert ledger.spends == []


def test_memory_does_not_grow_with_the_rows(monkeypatch):
    """Out of core: neither the table nor its features are held."""
    monkeypatch.setattr(cache, "_limits", cache.CacheLimits(2**20, 0))

    def peak(blocks):
        def source():
            rng = np.random.default_rng(0)
            for _ in range(blocks):
                X = rng.random((2048, 5), dtype=np.float32)
                yield X, (X[:, 0] > 0.5).astype(int)

        model = classifier(classes=[0, 1], features="fourier", n_features=256, bounds=None)
        tracemalloc.start()
        model.set_params(loss="logistic", epsilon=0.1).fit(BlockStream(source, 2048 * blocks))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    small, large = peak(12), peak(36)
    assert large < 1.3 * small
    assert large < 0.7 * 36 * 2048 * 256 * 4


# --- Dask -----------------------------------------------------------------------------------------


def test_dask_arrays_and_frames(data):
    da, dd = pytest.importorskip("dask.array"), pytest.importorskip("dask.dataframe")
    import dask

    X, y = data
    reference = classifier().fit(X, y)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    with dask.config.set(scheduler="threads"):
        lazy_X, lazy_y = da.from_array(X, chunks=(1500, 2)), da.from_array(y, chunks=1500)
        close(classifier().fit(lazy_X, lazy_y), reference)
        close(classifier().fit(lazy_X.rechunk((1500, 3)), lazy_y[:, None]), reference)
        whole = dd.from_pandas(frame.assign(y=y), npartitions=3)
        model = classifier().fit(whole[["a", "b", "c"]], whole["y"])
        close(model, reference)
        assert list(model.feature_names_in_) == ["a", "b", "c"]
        close(classifier().fit(whole[["a", "b", "c"]], whole[["y"]]), reference)
        chunks = lazy_X.rechunk((1500, 3)).map_blocks(sparse.csr_matrix)
        close(classifier().fit(chunks, lazy_y), reference)
        quantile = {"bounds": (-1, 1), "y_bounds": (-1, 1), "n_features": 12}
        one = PrivateQuantileRegressor(**quantile, noise=SeededNoise(1)).fit(X, X[:, 0])
        lazy = PrivateQuantileRegressor(**quantile, noise=SeededNoise(1))
        close(lazy.fit(lazy_X, da.from_array(X[:, 0], chunks=1500)), one)


def test_dask_frames_from_one_parquet_folder(data, tmp_path):
    """Columns of one folder: Dask reads few columns in fewer partitions than many."""
    dd = pytest.importorskip("dask.dataframe")
    pytest.importorskip("pyarrow")
    X, y = data
    names = [f"x{j}" for j in range(3)]
    table = pd.DataFrame(X, columns=names).assign(y=y, **{f"z{j}": 0.5 for j in range(20)})
    for part in range(8):
        table[625 * part : 625 * (part + 1)].to_parquet(tmp_path / f"{part}.parquet")
    whole = dd.read_parquet(tmp_path)
    reference = classifier().fit(X, y)
    for rows, target in (
        (whole[names], whole["y"]),
        (whole[names], whole[["y"]]),
        (whole[names].to_dask_array(), whole["y"].to_dask_array()),  # of unknown chunk sizes
        (whole.drop(columns="y").to_dask_array()[:, :3], whole["y"].to_dask_array()),
        (whole[names].repartition(npartitions=3), whole["y"].repartition(npartitions=3)),
    ):
        close(classifier().fit(rows, target), reference)
    with pytest.raises(DataError, match="different numbers of Dask chunks"):
        classifier().fit(whole[names].repartition(npartitions=3), whole["y"])
    with pytest.raises(DataError, match="inconsistent numbers of samples"):
        classifier().fit(whole[names], whole["y"].loc[1:])


def failing(times):
    """Return a function of blocks that fails from its so many-th call on."""
    calls = []

    def work(block):
        if block.size:
            calls.append(1)
            if len(calls) > times:
                raise OSError("secret")
        return block

    return work


def test_a_dask_graph_that_fails_spends_nothing(data):
    da = pytest.importorskip("dask.array")
    import dask

    X, y = data
    labels = da.from_array(y, chunks=1250)
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    lazy = da.from_array(X, chunks=(1250, 3))
    with dask.config.set(scheduler="synchronous"):
        for table, target, message in (
            (lazy.map_blocks(failing(2), dtype=float, meta=X[:0]), labels, "Nothing was spent"),
            (lazy * np.nan, labels, "NaN or infinity"),
            (lazy, da.from_array(np.full(5000, "secret"), chunks=1250), "not among the declared"),
            (lazy, labels.rechunk(2500), "different numbers of Dask chunks"),
            (
                lazy,
                da.concatenate([labels[:1000], labels[1000:]]).rechunk(((1000, 1250, 1250, 1500),)),
                "has shapes",
            ),
            (lazy, labels[1:], "inconsistent numbers"),
            (lazy, y, "y must be one, too"),
            (lazy, da.stack([labels, labels], axis=1), "takes one target"),
        ):
            with pytest.raises(DataError, match=message) as error:
                classifier(ledger=ledger).fit(table, target)
            assert "secret" not in str(error.value) and "PrivateKernel" in repr(classifier())
        short = da.from_delayed(dask.delayed(X[:10]), shape=(5000, 3), dtype=float)
        long = da.from_delayed(dask.delayed(y[:10]), shape=(5000,), dtype=object)
        with pytest.raises(DataError, match="other sizes than it says"):
            classifier(ledger=ledger).fit(short, long)
    assert ledger.spends == []


@pytest.mark.parametrize("kernel", ["auto", "gaussian"])
def test_a_dask_table_is_read_before_the_spend_and_never_after(data, kernel):
    """Four chunks: calls 1 to 4 check them, and 5 to 8 keep them."""
    da = pytest.importorskip("dask.array")
    import dask

    X, y = data
    lazy, labels = da.from_array(X, chunks=(1250, 3)), da.from_array(y, chunks=1250)
    for calls in (3, 7, 8):
        ledger = Ledger(budget=Budget(9.0, 1e-5))
        risky = lazy.map_blocks(failing(calls), dtype=float, meta=X[:0])
        model = classifier(ledger=ledger, kernel=kernel)
        with dask.config.set(scheduler="synchronous"):
            if calls == 8:
                model.fit(risky, labels)
                continue
            with pytest.raises(DataError, match=r"failed with OSError. Nothing was spent"):
                model.fit(risky, labels)
        assert ledger.spends == []


def test_a_dask_graph_that_fails_late_says_what_it_cost(data, monkeypatch):
    """Nothing is kept. Calls 1 to 4 check the chunks, 5 to 8 add up the centre, the others solve."""
    da = pytest.importorskip("dask.array")
    import dask

    monkeypatch.setattr(cache, "_limits", cache.CacheLimits(0, 0))
    X, y = data
    lazy, labels = da.from_array(X, chunks=(1250, 3)), da.from_array(y, chunks=1250)
    for calls, message, spends in ((6, "Nothing was spent", 0), (9, "budget was spent before", 1)):
        ledger = Ledger(budget=Budget(9.0, 1e-5))
        risky = lazy.map_blocks(failing(calls), dtype=float, meta=X[:0])
        with (
            dask.config.set(scheduler="synchronous"),
            pytest.raises(DataError, match=f"failed with OSError. .*{message}"),
        ):
            classifier(ledger=ledger, kernel="gaussian").fit(risky, labels)
        assert len(ledger.spends) == spends


class ForgetfulClient:
    """Answers twice without workers, as a client of Dask does every two seconds."""

    def __init__(self):
        self.asked = 0

    def scheduler_info(self, n_workers):
        self.asked += 1
        worker = {"memory_limit": 1000, "metrics": {"memory": 100}}
        return {"n_workers": 2, "workers": {} if self.asked < 3 else {"a": worker, "b": worker}}


def test_workers_that_an_answer_leaves_out_are_asked_for_again():
    client = ForgetfulClient()
    assert chunks.fits_on_workers(client, 700)  # 0.4 of twice 900
    assert client.asked == 3
    assert not chunks.fits_on_workers(client, 730)


def test_a_dask_cluster_gives_the_model_of_the_array(data, tmp_path, monkeypatch, caplog):
    da = pytest.importorskip("dask.array")
    from dask.distributed import Client, LocalCluster

    X, y = data
    ledger = Ledger(tmp_path / "l.db", dataset="d", budget=Budget(5.0, 1e-6))
    lazy_X, lazy_y = da.from_array(X, chunks=(1250, 3)), da.from_array(y, chunks=1250)
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster),
    ):
        model = classifier(ledger=ledger).fit(lazy_X, lazy_y)
        calls = tmp_path / "calls"

        def noted(block, calls=str(calls)):
            with open(calls, "a") as file:
                file.write("x" * (block.size > 3))
            return block

        again = lazy_X.map_blocks(noted, dtype=float, meta=X[:0])
        kept = classifier().fit(again, lazy_y)
        assert (
            calls.read_text().count("x") == 8
        )  # four chunks are checked, then kept on the workers
        with monkeypatch.context() as patch:
            patch.setattr(chunks, "_SHARE", 0.0)
            made = classifier().fit(again, lazy_y)
        assert "The workers have no room" in caplog.text
    for one in (model, kept, made):
        close(one, classifier().fit(X, y))
    assert len(ledger.spends) == 1 and os.path.exists(tmp_path / "l.db")
