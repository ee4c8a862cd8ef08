"""Functions released by answers and on a grid: consistency, one spend, restarts, several processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sqlite3
import stat

import numpy as np
import pytest
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.stats import kstest
from sklearn.base import clone

from dpkernel import Budget, Domain, Ledger, SeededNoise, load, save
from dpkernel.data.domain import Interval
from dpkernel.data.sources import Source
from dpkernel.estimators.rkhs import FunctionProblem, FunctionTable
from dpkernel.foundations.errors import (
    AssumptionError,
    BudgetExceededError,
    CuratorError,
    DataError,
    NoiseError,
    ParameterError,
)
from dpkernel.foundations.types import AddRemove, Neighbours
from dpkernel.methods import PrivateCurator, PrivateGridRegressor
from dpkernel.models import kernels
from dpkernel.models.losses import (
    REGISTRY,
    Huber,
    Logistic,
    SmoothedHinge,
    SmoothedPinball,
    Squared,
)
from dpkernel.privacy.mechanisms import IDEALISED, FunctionalGaussian, NoisyFunction
from dpkernel.privacy.noise import keyed_normals

SIGNED = (IDEALISED,)
COMMON = {"bounds": (-1, 1), "y_bounds": (-2, 2), "accept": SIGNED}
BOTH = pytest.mark.parametrize("build", [PrivateCurator, PrivateGridRegressor])
REPLACE = Neighbours.REPLACE_ONE


@pytest.fixture
def table(rng):
    X = rng.uniform(-1, 1, (300, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] / 2


def curator(**options):
    return PrivateCurator(**{**COMMON, **options})


def mechanism(dimension=50, moved=1.0):
    return FunctionalGaussian.calibrate(
        moved, Budget(1.0, 1e-6), dimension=dimension, accept=SIGNED
    )


def zero(points):
    return np.zeros(len(points))


# --- the random function ----------------------------------------------------------------------------


def test_answers_in_any_order_have_the_kernels_covariance(seed):
    """Four points, asked forwards by half of the functions and backwards by the other half."""
    kernel, found = kernels.GaussianKernel(0.7), mechanism()
    points = np.array([[-0.6], [-0.2], [0.1], [0.9]])
    draws = []
    for k in range(4000):
        function = NoisyFunction(zero, kernel, found, bytes([seed]) + k.to_bytes(4, "little"))
        order = range(4) if k % 2 else range(3, -1, -1)
        values = {i: function.answer(points[i])[0] for i in order}
        draws.append([values[i] / found.sigma for i in range(4)])
    near = np.cov(np.array(draws).T)
    assert np.abs(near - kernel(points)).max() < 0.1  # 4 standard errors
    white = np.linalg.solve(np.linalg.cholesky(kernel(points)), np.array(draws).T)
    assert kstest(white.ravel(), "norm").pvalue > 1e-6


@pytest.mark.parametrize(("length", "count"), [(0.1, 400), (0.3, 300), (0.7, 200)])
def test_sorted_questions_leave_no_direction_without_noise(length, count):
    """Functions of the space differ by no more than their distance, under the noise as drawn.

    Kernel matrices of points in order are singular in floating point; a factor of one alone has
    directions with next to no noise, in which functions do differ.
    """
    kernel = kernels.resolve_kernel("gaussian", length)
    function = NoisyFunction(zero, kernel, mechanism(dimension=count), b"key")
    points = np.linspace(-1, 1, count)[:, None]
    asked = [point for point in points if function.answer(point)[1]]
    size = len(function)
    factor = function._factor[:size, :size]
    for centre in (-1.0, -0.37, 0.0, 0.5, 1.3):
        section = kernel(np.asarray(asked), np.array([[centre]]))[:, 0]  # of norm 1 in the space
        white = solve_triangular(factor, section, lower=True)
        assert np.linalg.norm(white) <= 1 + 1e-9
    # and in the direction in which rounding errors are worst
    value, vector = np.linalg.eigh(factor @ factor.T)
    assert value[0] >= 0.9e-7 and np.isfinite(vector).all()


def test_a_point_that_others_determine_is_interpolated_and_tells_nothing():
    """The function is not even looked at."""
    asked = []

    def function(points):
        asked.append(len(points))
        return points[:, 0]

    noisy = NoisyFunction(function, kernels.Linear(), mechanism(), b"key")
    first, new = noisy.answer(np.array([0.5]))
    assert new and asked == [1]
    second, new = noisy.answer(np.array([0.25]))  # a linear function of one column is one number
    assert not new and asked == [1] and second == pytest.approx(first / 2, rel=1e-6)
    assert noisy.answer(np.array([0.0])) == (0.0, False)
    assert noisy.answer(np.array([0.5])) == (first, False)


def test_no_more_answers_than_were_paid_for():
    noisy = NoisyFunction(zero, kernels.GaussianKernel(0.1), mechanism(dimension=2), b"key")
    first = noisy.answer(np.array([0.0]))[0]
    noisy.answer(np.array([1.0]))
    with pytest.raises(NoiseError, match="paid for 2 answers"):
        noisy.answer(np.array([-1.0]))
    assert noisy.answer(np.array([0.0]))[0] == first


def test_noise_depends_on_key_history_and_point():
    def draw(key, *points):
        noisy = NoisyFunction(zero, kernels.GaussianKernel(0.01), mechanism(), key)
        return [noisy.answer(np.array([p]))[0] for p in points][-1]

    assert draw(b"k", 0.1, 0.5) == draw(b"k", 0.1, 0.5)
    others = {draw(b"k", 0.1, 0.5), draw(b"l", 0.1, 0.5), draw(b"k", 0.2, 0.5), draw(b"k", 0.5)}
    assert len(others) == 4
    words = keyed_normals(b"key", b"label", 20_000)
    assert kstest(words, "norm").pvalue > 1e-6
    assert not np.array_equal(words, keyed_normals(b"key", b"other", 20_000))


# --- the fit ----------------------------------------------------------------------------------------


def loss_of(threshold):
    return Squared() if threshold is None else Huber(threshold)


@pytest.mark.parametrize("threshold", [None, 0.2])
def test_the_function_is_the_minimiser_in_the_kernels_space(table, threshold):
    X, y = table
    kernel, ridge, y = kernels.GaussianKernel(1.0), 3.0, y / 2
    problem = FunctionProblem(kernel, 1.0, len(X), ridge, loss_of(threshold))
    alpha, matrix = problem.fit(X, y), kernel(X)

    def objective(a):
        r = y - matrix @ a
        loss = r @ r / 2 if threshold is None else Huber(threshold).value(r, 0 * r).sum()
        return float(loss + ridge / 2 * a @ matrix @ a)

    at = objective(alpha)
    start = 0.1 * np.random.default_rng(0).normal(size=(20, len(X)))
    assert all(at <= objective(alpha + step) for step in start)
    best = minimize(objective, alpha, method="CG", options={"maxiter": 3}).fun
    assert at - best <= 1e-5


SEARCHED = [(loss, m) for loss in (Squared(), Huber(0.3)) for m in (1, 2, 3, 5, 12)]
SEARCHED += [(loss, 3) for loss in (Logistic(), SmoothedHinge(0.5), SmoothedPinball(0.2, 0.3))]


@pytest.mark.parametrize(("loss", "m"), SEARCHED, ids=[f"{loss.kind}-{m}" for loss, m in SEARCHED])
def test_search_never_exceeds_the_sensitivity_in_the_kernels_norm(rng, loss, m):
    """Hill climbing over both records, the rest and all targets, from random and from hard starts."""
    kernel, steps = kernels.GaussianKernel(0.5), 60 if loss == Squared() else 5

    def moved(point, ridge, relation):
        X, y = np.clip(point[:, :1], -1, 1), np.clip(point[:, 1], -1, 1)
        y = np.where(y > 0, 1.0, -1.0) if loss.labels else y
        here = FunctionProblem(kernel, 1.0, m, ridge, loss).fit(X[:m], y[:m])
        if relation is REPLACE:
            other, target = np.delete(X, m - 1, axis=0), np.delete(y, m - 1)
        else:
            other, target = X[: m - 1], y[: m - 1]
        there = np.zeros(0)
        if len(other):
            there = FunctionProblem(kernel, 1.0, len(other), ridge, loss).fit(other, target)
        both, alpha = np.vstack([X[:m], other]), np.concatenate([here, -there])
        return float(np.sqrt(max(alpha @ kernel(both) @ alpha, 0)))

    for ridge in (0.02, 0.3, 5.0 * m):
        problem = FunctionProblem(kernel, 1.0, m, ridge, loss)
        for relation in (REPLACE, Neighbours.ZERO_OUT):
            bound, best = problem.sensitivity(relation).value, 0.0
            for hard in (True, False):
                point = rng.uniform(-1, 1, (m + 1, 2))
                if hard:  # all in one place, and the record that is replaced has its sign turned
                    point = np.column_stack([np.zeros(m + 1), np.ones(m + 1)])
                    point[m, 1] = -1
                value = moved(point, ridge, relation)
                for k in range(steps):
                    trial = point + rng.normal(size=point.shape) * 0.5 * 0.9**k
                    if (found := moved(trial, ridge, relation)) > value:
                        point, value = trial, found
                best = max(best, value)
            assert best <= bound
            if ridge > 1:  # near the bound where the ridge is strong
                least = {"logistic": 0.45, "smoothed_pinball": 0.2}.get(loss.kind, 0.7)
                assert best > least * bound


@pytest.mark.parametrize("relation", [REPLACE, Neighbours.ZERO_OUT])
@pytest.mark.parametrize("kernel", ["gaussian", "linear", "polynomial"])
def test_the_size_of_the_kernel_is_in_the_sensitivity(kernel, relation):
    """One record at a corner of the box, where k(x, x) is largest, with either sign of its target."""
    box, budget = Domain.box(-1, 1, n_columns=3), Budget(1.0, 1e-6)
    model = PrivateGridRegressor(kernel=kernel, regularisation=300.0, length_scale=0.5)
    table = FunctionTable(box, Interval(-1, 1), Source("array", 1, 3, (), None))
    (problem,) = model._problems_for(table, budget)
    corner = np.ones((1, 3))
    sides = [problem.fit(corner, np.array([y])) for y in (1.0, -1.0)]
    alpha = sides[0] - sides[1] if relation is REPLACE else sides[0]
    moved = float(np.sqrt(alpha @ problem.kernel(corner) @ alpha))
    certified = problem.sensitivity(relation).value
    assert 0.7 * certified < moved <= certified


@BOTH
@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_large_epsilon_is_the_fit_without_noise(table, build, loss):
    X, y = table
    options = {**COMMON, "epsilon": 1e8, "regularisation": 0.5, "length_scale": 1.0, "loss": loss}
    model = build(**options).fit(X, y)
    problem = FunctionProblem(
        kernels.GaussianKernel(1.0), 1.0, len(X), 0.5, loss_of(None if loss == "squared" else 0.2)
    )
    new = np.random.default_rng(1).uniform(-1, 1, (30, 2))
    wanted = 2 * kernels.GaussianKernel(1.0)(new, X) @ problem.fit(X, y / 2)
    np.testing.assert_allclose(model.predict(new), wanted, rtol=0, atol=0.02)


BOUNDED = sorted(kind for kind, cls in REGISTRY.items() if cls().lipschitz < np.inf)


@pytest.mark.parametrize("kind", BOUNDED)
def test_every_loss_of_bounded_slope(table, kind):
    X, y = table
    model = PrivateGridRegressor(**COMMON, epsilon=1e8, loss=kind, regularisation=0.5).fit(X, y)
    model.certificate_.verify()
    (release,) = model.certificate_.releases
    stated = dict(release.mechanism.sensitivity.parameters)
    assert release.mechanism.sensitivity.formula == "erm-lipschitz"
    assert stated["slope"] == (0.2 if kind == "huber" else REGISTRY[kind]().lipschitz)
    right = np.mean((model.predict(X) > 0) == (y > 0))
    assert right > 0.9 and np.abs(model.predict(X)).max() <= 2


def test_a_curator_that_hides_the_number_of_rows_is_opened_again_and_knows_its_places(tmp_path):
    X, y = np.full((5, 1), 0.5), np.zeros(5)
    model = PrivateCurator(bounds=(-1, 1), y_bounds=(-1, 1), accept=(IDEALISED,))
    model.set_params(neighbours=AddRemove(9), path=tmp_path / "a.db").fit(X, y)
    again = PrivateCurator.open(tmp_path / "a.db")
    assert again.neighbours == AddRemove(9)
    assert again.predict_once(X, y, [0.5]).certificate.n_records == 9


def test_a_curator_classifies_and_is_opened_again_with_its_loss(table, tmp_path):
    X, y = table
    options = {**COMMON, "loss": SmoothedHinge(0.25), "path": tmp_path / "a.db", "epsilon": 1e8}
    curator = PrivateCurator(**options, regularisation=1.0).fit(X, np.where(y > 0, 2.0, -2.0))
    again = PrivateCurator.open(tmp_path / "a.db")
    assert again.loss == SmoothedHinge(0.25)
    scores = curator.margins(X[:9])
    np.testing.assert_array_equal(again.margins(X[:9]), scores)
    np.testing.assert_allclose(curator.predict(X[:9]), 2 * np.clip(scores, -1, 1))
    assert np.mean((scores > 0) == (y[:9] > 0)) > 0.8


@BOTH
def test_one_spend_and_a_certificate_that_names_the_assumption(table, build):
    X, y = table
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    model = build(epsilon=1.0, ledger=ledger, **COMMON).fit(X, y)
    for _ in range(3):
        model.predict(X[:20])
    assert len(ledger.history()) == 1
    certificate = model.certificate_
    assert certificate.assumptions == SIGNED and certificate.private and certificate.valid
    assert certificate.epsilon <= 1.0
    certificate.verify()
    with pytest.raises(BudgetExceededError):
        build(epsilon=1.0, ledger=ledger, **COMMON).fit(X, y)


def test_values_on_the_grid_are_interpolated(table):
    X, y = table
    model = PrivateGridRegressor(epsilon=2.0, side=5, **COMMON).fit(X, y)
    assert model.grid_points_.shape == (25, 2)
    np.testing.assert_allclose(model.predict(model.grid_points_), model.grid_values_, atol=1e-6)
    again = [
        PrivateGridRegressor(noise=SeededNoise(k), **COMMON).fit(X, y).coef_ for k in (0, 0, 1)
    ]
    assert np.array_equal(again[0], again[1]) and not np.array_equal(again[0], again[2])


@pytest.mark.parametrize("loss", ["squared", "huber"])
def test_a_grid_comes_back_from_its_file(table, loss, tmp_path):
    X, y = table
    options = {"side": 4, "loss": loss, "length_scale": 0.8, "kernel": "laplace", **COMMON}
    model = PrivateGridRegressor(epsilon=2.0, **options).fit(X, y)
    again = load(save(model, tmp_path / "grid"))
    np.testing.assert_array_equal(again.grid_points_, model.grid_points_)
    np.testing.assert_array_equal(again.grid_values_, model.grid_values_)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    refitted = again.fit(X, y).certificate_
    assert refitted.public == model.certificate_.public  # the same problem on the same grid
    assert again.side == 4


def test_a_coarse_grid_in_more_columns(rng):
    X = rng.uniform(-1, 1, (50, 4))
    model = PrivateGridRegressor(side=2, **COMMON).fit(X, X[:, 0])
    assert model.grid_points_.shape == (16, 4) and model.predict(X).shape == (50,)


def test_one_prediction_is_one_number_under_its_own_name(table):
    X, y = table
    ledger = Ledger(budget=Budget(2.0))
    found = curator(epsilon=1.0, ledger=ledger).predict_once(X, y, [0.3, 0.1])
    assert len(ledger.history()) == 1 and -2 <= found.value <= 2
    (release,) = found.certificate.releases
    assert release.mechanism.dimension == 1 and found.certificate.delta == 0
    assert release.mechanism.sensitivity.formula == "erm-prediction"
    found.certificate.verify()
    large = curator(epsilon=1e7, regularisation=0.5, length_scale=1.0).predict_once(
        X, y, [0.3, 0.1]
    )
    problem = FunctionProblem(kernels.GaussianKernel(1.0), 1.0, len(X), 0.5, Squared())
    wanted = 2 * kernels.GaussianKernel(1.0)(np.array([[0.3, 0.1]]), X) @ problem.fit(X, y / 2)
    assert large.value == pytest.approx(float(wanted[0]), abs=1e-3)
    with pytest.raises(ParameterError, match="'point' parameter of predict_once"):
        curator().predict_once(X, y, [[0.3, 0.1], [0.2, 0.2]])


# --- files ------------------------------------------------------------------------------------------


def test_a_restart_goes_on_where_it_stopped(table, tmp_path):
    X, y = table
    path = tmp_path / "answers.db"
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    first = curator(path=path, ledger=ledger, noise=SeededNoise(5)).fit(X, y)
    old = os.umask(0)  # whatever the process's mask allows
    try:
        before = first.predict(X[:4])
    finally:
        os.umask(old)
    for secret in (path, path.with_name(f"{path.name}-lock")):
        assert stat.S_IMODE(os.stat(secret).st_mode) == 0o600
    second = PrivateCurator.open(path)
    later = second.predict(np.vstack([X[4:8], X[:4]]))
    np.testing.assert_array_equal(later[4:], before)
    # the one that was there before sees what the other answered, and a run without restart agrees
    np.testing.assert_array_equal(first.predict(X[:8]), np.concatenate([before, later[:4]]))
    whole = curator(noise=SeededNoise(5)).fit(X, y)
    np.testing.assert_array_equal(whole.predict(X[:8]), np.concatenate([before, later[:4]]))
    assert second.n_answers_ == whole.n_answers_
    assert len(ledger.history()) == 1
    assert second.certificate_ == first.certificate_
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(second)).predict(X[:4]), before)


def ask(path, seed, out):
    rng = np.random.default_rng(seed)
    model = PrivateCurator.open(path)
    order = rng.permutation(12)
    points = np.linspace(-1, 1, 12)[:, None]
    found = {}
    for i in order:
        found[int(i)] = float(model.predict(points[i : i + 1])[0])
    out.put(found)


def test_several_processes_give_one_answer_to_one_question(rng, tmp_path):
    X = rng.uniform(-1, 1, (100, 1))
    path = tmp_path / "answers.db"
    curator(path=path, length_scale=0.2).fit(X, np.sin(3 * X[:, 0]))
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    workers = [context.Process(target=ask, args=(path, seed, out)) for seed in range(4)]
    for worker in workers:
        worker.start()
    answers = [out.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join(60)
    assert all(found == answers[0] for found in answers) and len(answers[0]) == 12
    with sqlite3.connect(path) as connection:
        numbers = [row[0] for row in connection.execute("SELECT number FROM answers")]
    assert sorted(numbers) == list(range(1, 13))


def test_an_answer_that_was_not_committed_is_not_given(table, tmp_path, monkeypatch):
    X, y = table
    path = tmp_path / "answers.db"
    model = curator(path=path, noise=SeededNoise(1)).fit(X, y)
    model.predict(X[:2])

    def fail(self, number, answer):
        raise CuratorError("the disk is full")

    monkeypatch.setattr("dpkernel.estimators.curator_file.Session.add", fail)
    with pytest.raises(CuratorError):
        model.predict(X[2:4])
    monkeypatch.undo()
    other = PrivateCurator.open(path)  # goes another way than the call that failed
    wanted = other.predict(X[[40, 2]])
    np.testing.assert_array_equal(model.predict(X[[40, 2]]), wanted)
    assert model.n_answers_ == other.n_answers_ == 4


def test_a_curator_without_a_file_stays_in_its_process(table):
    X, y = table
    model = curator().fit(X, y)
    with pytest.raises(NoiseError, match="can't be pickled"):
        pickle.dumps(model)
    model._process = (model._process[0] + 1, model._process[1])
    with pytest.raises(NoiseError, match="another process"):
        model.predict(X[:1])
    assert not hasattr(clone(model), "certificate_")
    assert pickle.loads(pickle.dumps(curator())).get_params()["y_bounds"] == (-2, 2)


def test_missing_answers_are_noticed(table, tmp_path):
    X, y = table
    path = tmp_path / "answers.db"
    curator(path=path, length_scale=0.1).fit(X, y).predict(X[:3])
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM answers WHERE number = 2")
    with pytest.raises(CuratorError, match="are missing"):
        PrivateCurator.open(path).predict(X[:1])


def test_a_file_mounted_alone_is_refused(tmp_path, table, monkeypatch):
    """Its journal would lie where other containers can't see it."""
    path = tmp_path / "c.db"
    curator(path=path).fit(*table)
    monkeypatch.setattr("dpkernel.estimators.curator_file.mounted_alone", lambda file: file == path)
    with pytest.raises(CuratorError, match="mounted here without its folder"):
        PrivateCurator.open(path)


def test_files_that_are_no_curators(tmp_path, table):
    X, y = table
    with pytest.raises(CuratorError, match="no curator file"):
        PrivateCurator.open(tmp_path / "none.db")
    (tmp_path / "text.db").write_text("not a database, but long enough to be read as one" * 50)
    with pytest.raises(CuratorError, match="can't be used|is not a curator"):
        PrivateCurator.open(tmp_path / "text.db")
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    for place in (tmp_path / "text.db", tmp_path / "no folder" / "a.db"):
        with pytest.raises(CuratorError, match="Nothing was spent"):
            curator(path=place, ledger=ledger).fit(X, y)
    assert ledger.history() == []


REFUSED = {
    "unsigned": ({"accept": ()}, None, AssumptionError, "idealised-arithmetic"),
    "private n": ({"neighbours": "add-remove"}, None, ParameterError, "'neighbours' parameter"),
    "bounds": ({"bounds": None}, None, ParameterError, "needs 'bounds'"),
    "loss": ({"loss": "other"}, None, ParameterError, "'loss' parameter"),
    "no slope": ({"loss": "power_absolute"}, None, ParameterError, "a loss with a largest slope"),
    "threshold": ({"loss": "huber", "threshold": 1e-9}, None, ParameterError, "'threshold' param"),
    "pure": ({"delta": 0.0}, None, ParameterError, "'delta' parameter"),
    "rows": ({}, 10_001, DataError, "at most 10000 rows"),
    "scales": ({"length_scale": [1.0, 1.0, 1.0]}, None, ParameterError, "'length_scale' param"),
}


@BOTH
@pytest.mark.parametrize(("options", "n", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_costs_nothing(table, build, options, n, error, message):
    X, y = table if n is None else (np.zeros((n, 2)), np.zeros(n))
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    with pytest.raises(error, match=message):
        build(**{**COMMON, **options, "ledger": ledger}).fit(X, y)
    assert ledger.history() == []


@pytest.mark.parametrize(
    ("columns", "side", "message"), [(4, "auto", "1 to 3 columns"), (3, 17, "'side' parameter")]
)
def test_grids_that_are_too_large(columns, side, message):
    with pytest.raises(ParameterError, match=message):
        PrivateGridRegressor(side=side, **COMMON).fit(np.zeros((5, columns)), np.zeros(5))
