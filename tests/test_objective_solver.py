"""The solver of objective perturbation: every data set reaches the public tolerance.

True gradients are computed in extended precision, straight from the definition.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

import dpkernel.solvers.objective_perturbation as solver
from dpkernel.foundations.errors import ParameterError
from dpkernel.models.losses import (
    Hinge,
    Huber,
    Logistic,
    SmoothedHinge,
    SmoothedInsensitive,
    SmoothedPinball,
    Squared,
    SquaredHinge,
)
from dpkernel.solvers.objective_perturbation import (
    PRECISE,
    BlockRecords,
    CompensatedSum,
    Problem,
    minimise,
)

LOSSES = [
    Logistic(),
    SmoothedHinge(1.0),
    SmoothedHinge(0.02),
    SquaredHinge(1.0),
    Huber(0.3),
    SmoothedPinball(0.9, 0.05),
    SmoothedInsensitive(0.2, 0.01),
]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=repr)
LONG = np.longdouble


def true_slopes(loss, y, s):
    """Return the derivatives in s in extended precision."""
    y, s = LONG(y), LONG(s)
    r = y - s
    return {
        "logistic": lambda: -y / (1 + np.exp(np.minimum(y * s, 11_000))),
        "smoothed_hinge": lambda: -y * np.clip((1 - y * s) / loss.width, 0, 1),
        "squared_hinge": lambda: -y * np.clip(1 - y * s, 0, 1 + loss.reach),
        "huber": lambda: -np.clip(r, -loss.threshold, loss.threshold),
        "smoothed_pinball": lambda: -(loss.quantile - 0.5 + np.clip(r / loss.width, -0.5, 0.5)),
        "smoothed_insensitive": lambda: (
            -np.sign(r) * np.clip((np.abs(r) - LONG(loss.tube)) / loss.width, 0, 1)
        ),
    }[loss.kind]()


def true_gradient(problem, rows, b, beta):
    """Return the gradient of the perturbed objective in extended precision."""
    z, y, w = rows
    z, beta = z.astype(LONG), LONG(beta)
    slopes = true_slopes(problem.loss, y, z @ beta) * (1 if w is None else LONG(w))
    return slopes @ z + LONG(problem.ridge) * beta + LONG(b)


def length(vector):
    return float(np.sqrt(np.sum(vector * vector)))


def make_rows(kind, loss, rng, n=60, size=4):
    """Return features of norm at most 1, targets and weights; the kinds are hard in their own ways."""
    z = rng.normal(size=(n, size))
    y = rng.choice([-1.0, 1.0], n) if loss.labels else rng.uniform(-1, 1, n)
    weights = None
    if kind == "all zero":
        z[:] = 0.0
    elif kind == "all equal":
        z[:] = z[0]
    elif kind == "one row":
        z, y = z[:1], y[:1]
    elif kind == "ill-conditioned":
        z *= 10.0 ** -np.arange(0, 3 * size, 3)
    elif kind == "tiny rows":
        z *= 10.0 ** rng.uniform(-150, 0, (n, 1))
    elif kind == "one class":
        y[:] = 1.0
    elif kind == "no weight":
        weights = np.zeros(n)
    z *= (1 - 2.0**-40) / np.maximum(1, np.linalg.norm(z, axis=1, keepdims=True))
    if kind == "long rows with weights":
        z *= 10.0 ** rng.uniform(0, 30, (n, 1))
        weights = (1 - 2.0**-40) / np.maximum(1, np.sum(z * z, axis=1))
    elif kind == "single precision":
        z = (z * (1 - 1e-7)).astype(np.float32)
    return z, y, weights


KINDS = [
    "random",
    "all zero",
    "all equal",
    "one row",
    "ill-conditioned",
    "tiny rows",
    "one class",
    "no weight",
    "long rows with weights",
    "single precision",
]


def make_problem(loss, rows, rng, *, wanted=0.0, ratio=1.0):
    size = rows[0].shape[1]
    ridge = 10.0 ** rng.uniform(-2, 2) * np.geomspace(1, ratio, size)
    sigma = 10.0 ** rng.uniform(-1, 2)
    b = rng.normal(size=size) * sigma
    largest = max(sigma * (math.sqrt(size) + 10), float(np.linalg.norm(b)))
    return Problem(loss, len(rows[1]), 1.0, ridge, 1.0, largest, 512, wanted), b


def records_of(rows, loss, cut=None):
    z, y, w = rows
    cuts = (
        np.arange(0, len(y), cut or len(y)) if cut is None or np.isscalar(cut) else np.asarray(cut)
    )
    ends = [*cuts[1:], len(y)]
    blocks = [
        (z[i:j], y[i:j], None if w is None else w[i:j]) for i, j in zip(cuts, ends, strict=True)
    ]
    return BlockRecords(lambda: blocks, loss)


# --- the tolerance ----------------------------------------------------------------------------


@every_loss
@pytest.mark.parametrize("kind", KINDS)
def test_every_data_set_reaches_the_tolerance(loss, kind, rng):
    for trial in range(4):
        rows = make_rows(kind, loss, rng)
        problem, b = make_problem(
            loss, rows, rng, ratio=(1.0, 1e3)[trial % 2], wanted=(0.0, 1e-6)[trial // 2]
        )
        found = minimise(records_of(rows, loss, 7), problem, b)
        assert length(true_gradient(problem, rows, b, found)) <= problem.tolerance
        assert np.linalg.norm(found) <= problem.radius * (1 + 1e-9)
        assert (
            4 * problem.gradient_error
            <= problem.tolerance
            == max(problem.wanted, 4 * problem.gradient_error)
        )


@every_loss
def test_computed_gradients_err_less_than_stated(loss, rng):
    for kind in KINDS:
        rows = make_rows(kind, loss, rng)
        problem, b = make_problem(loss, rows, rng)
        at = solver._Derivatives(records_of(rows, loss, 7), problem, b, 1)
        for _ in range(5):
            beta = rng.normal(size=len(b))
            beta *= problem.radius * 10 ** rng.uniform(-6, 0) / np.linalg.norm(beta)
            error = length(LONG(at(beta)[0]) - true_gradient(problem, rows, b, beta))
            assert error <= problem.gradient_error


@pytest.mark.parametrize("rows_a_block", [1, 3, 700])
def test_errors_do_not_grow_with_the_number_of_blocks(rows_a_block, rng):
    """Sums of ten thousand blocks, added one to the other, would err more than the bound admits."""
    loss, n = Huber(1.0), 10_000
    rows = np.ones((n, 1)), np.full(n, 10.0), np.full(n, 1 / 3)
    gradient = records_of(rows, loss, rows_a_block).sums(np.zeros(1))[0]
    exact = -math.fsum(rows[2])
    chain = min(rows_a_block, 512)
    assert abs(gradient[0] - exact) <= (chain + 3) * 2.0**-53 * abs(exact)
    plain = -np.add.accumulate(rows[2])[-1]
    assert abs(plain - exact) > 100 * 2.0**-53 * abs(exact)


def test_compensated_sums_err_like_one_addition(rng):
    terms = rng.normal(size=(3000, 3)) * 10.0 ** rng.uniform(-8, 8, (3000, 1))
    total = CompensatedSum(3)
    for term in terms:
        total.add(term)
    exact = [math.fsum(column) for column in terms.T]
    assert np.all(np.abs(total.value - exact) <= 2.0**-52 * np.abs(exact) + 1e-28)
    assert np.any(np.cumsum(terms, axis=0)[-1] != exact)


class SinglePrecision:
    """Records whose sums are computed in float32, one row after the other."""

    def __init__(self, rows, loss):
        self.rows, self.loss, self.calls = rows, loss, 0

    def sums(self, beta, hessian_stride=0, threads=1):
        z, y, _ = self.rows
        self.calls += 1
        scores = np.zeros(len(y), np.float32)
        for column, weight in zip(z.T, beta.astype(np.float32), strict=True):
            scores = scores + column * weight
        slopes = self.loss.derivative(y.astype(np.float32), scores).astype(np.float32)
        terms = slopes[:, None] * z
        return np.add.accumulate(terms, axis=0)[-1].astype(np.float64), None


@pytest.mark.parametrize("loss", [Logistic(), Huber(0.3), SmoothedHinge(0.5)], ids=repr)
def test_the_error_bound_and_the_step_count_in_single_precision(loss, rng, monkeypatch):
    """With u = 2^-24 rounding is large enough to see: the same proof, at another precision."""
    monkeypatch.setattr(solver, "_UNIT", 2.0**-24)
    seen = []
    for _ in range(6):
        z, y, _ = make_rows("random", loss, rng, n=50, size=3)
        rows = (z * 0.999).astype(np.float32), y.astype(np.float32).astype(np.float64), None
        ridge = np.full(3, 10.0 ** rng.uniform(0, 1))
        b = rng.normal(size=3).astype(np.float32).astype(np.float64) * 2
        problem = Problem(loss, 50, 1.0, ridge, 1.0, 20.0, 512)
        records = SinglePrecision(rows, loss)
        at = solver._Derivatives(records, problem, b, 1)
        for _ in range(20):
            beta = rng.normal(size=3).astype(np.float32).astype(np.float64)
            beta *= 2.0 ** -rng.integers(0, 4)
            error = length(LONG(at(beta)[0]) - true_gradient(problem, rows, b, beta))
            assert error <= problem.gradient_error
            seen.append(error / problem.gradient_error)
        records.calls = 0
        found = solver._descend(records, problem, b, 1)
        assert records.calls <= problem.most_steps + 1
        assert length(true_gradient(problem, rows, b, found)) <= problem.tolerance
    assert max(seen) > 1e-3


# --- the fallback -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["random", "all equal", "ill-conditioned", "one class", "all zero"]
)
@pytest.mark.parametrize("loss", [Logistic(), Huber(0.3), SmoothedHinge(1.0)], ids=repr)
def test_gradient_descent_alone_gets_there_in_the_stated_steps(kind, loss, monkeypatch, rng):
    monkeypatch.setattr(solver, "_newton", lambda *arguments: None)
    for ratio in (1.0, 200.0):
        rows = make_rows(kind, loss, rng, n=20)
        ridge = 0.5 * np.geomspace(1, ratio, 4)
        b = rng.normal(size=4) * 3
        problem = Problem(loss, 20, 1.0, ridge, 1.0, 40.0, 512, 1e-7)
        records, calls = records_of(rows, loss), []
        plain = records.sums
        counted = lambda *a, calls=calls, plain=plain: (calls.append(1), plain(*a))[1]  # noqa: E731
        monkeypatch.setattr(records, "sums", counted)
        found = minimise(records, problem, b)
        assert len(calls) <= problem.most_steps + 1 < 30_000
        assert length(true_gradient(problem, rows, b, found)) <= problem.tolerance
        exact = newton_of(rows, loss, problem, b)
        assert np.linalg.norm(found - exact) <= 2 * problem.tolerance / problem.strength


def newton_of(rows, loss, problem, b, _newton=solver._newton):
    return _newton(records_of(rows, loss), problem, b, 1)


def test_a_step_for_the_smallest_ridge_would_not_end(monkeypatch, rng):
    """The twin: L_J from the smallest ridge diverges, so the bound must know the largest."""
    loss = Huber(0.3)
    rows = make_rows("random", loss, rng, n=20)
    problem = Problem(loss, 20, 1.0, np.array([0.5, 0.5, 0.5, 500.0]), 1.0, 40.0, 512, 1e-7)
    wrong = property(lambda self: float(self.ridge.min()) + self.n_rows * self.row_bound**2)
    monkeypatch.setattr(Problem, "smoothness", wrong)
    with np.errstate(all="ignore"), pytest.raises(AssertionError, match="more steps than proved"):
        solver._descend(records_of(rows, loss), problem, np.ones(4), 1)


@pytest.mark.parametrize(
    "loss", [*LOSSES, SmoothedHinge(1e-3), SmoothedPinball(0.5, 1e-4), Huber(1e-3)], ids=repr
)
@pytest.mark.parametrize("sampled", [False, True], ids=["whole", "sampled"])
def test_newton_steps_are_enough_in_practice(loss, sampled, monkeypatch):
    """The fallback would take billions of steps for steep ramps: nobody would wait for them."""
    if sampled:  # Hessians of a few of many blocks, as on large tables
        monkeypatch.setattr(solver, "_SAMPLE", 1)
        monkeypatch.setattr(solver, "_SAMPLE_EACH", 1)
    rng = np.random.default_rng(7)
    for trial in range(30):
        n, size = int(rng.choice([1, 2, 10, 100])), int(rng.choice([1, 2, 5, 20]))
        rows = make_rows(KINDS[trial % len(KINDS)], loss, rng, n=n, size=size)
        problem, b = make_problem(loss, rows, rng, ratio=float(rng.choice([1.0, 1e4])))
        with np.errstate(all="ignore"):
            found = solver._newton(records_of(rows, loss, 2 if sampled else None), problem, b, 1)
        assert found is not None
        assert length(true_gradient(problem, rows, b, found)) <= problem.tolerance


def test_a_wrong_hessian_only_costs_time(monkeypatch, rng):
    """Nothing rests on the Hessian: with a useless one, and with none that can be factorised."""
    loss = Huber(0.3)
    rows = make_rows("random", loss, rng, n=20)
    problem = Problem(loss, 20, 1.0, np.full(4, 2.0), 1.0, 40.0, 512, 1e-6)
    b = rng.normal(size=4)
    right = minimise(records_of(rows, loss), problem, b)
    for wrong in (1e9 * np.eye(4), -1e9 * np.eye(4), np.full((4, 4), np.nan)):
        records = records_of(rows, loss)
        plain = records.sums
        monkeypatch.setattr(
            records,
            "sums",
            lambda *a, p=plain, w=wrong: (p(*a)[0], w.copy() if a[1:2] != (0,) else None),
        )
        found = minimise(records, problem, b)
        assert length(true_gradient(problem, rows, b, found)) <= problem.tolerance
        assert np.linalg.norm(found - right) <= 2 * problem.tolerance / problem.strength


# --- the same answers as others ---------------------------------------------------------------


def test_logistic_regression_of_scikit_learn(rng):
    loss = Logistic()
    for ridge in (0.3, 10.0):
        rows = make_rows("random", loss, rng, n=200)
        problem = Problem(loss, 200, 1.0, np.full(4, ridge), 1.0, 1.0, 512)
        found = minimise(records_of(rows, loss), problem, np.zeros(4))
        other = LogisticRegression(C=1 / ridge, fit_intercept=False, tol=1e-12, max_iter=10_000)
        assert found == pytest.approx(other.fit(rows[0], rows[1]).coef_[0], abs=1e-6)


@every_loss
def test_a_general_minimiser_of_scipy(loss, rng):
    rows = make_rows("random", loss, rng, n=80)
    weights = rng.random(80)
    ridge, b = np.array([1.0, 2.0, 5.0, 1.0]), rng.normal(size=4) * 3
    problem = Problem(loss, 80, 1.0, ridge, 1.0, 40.0, 512)
    z, y, _ = rows

    def objective(beta):
        value = (
            float(weights @ loss.value(y, z @ beta))
            + float(beta @ (ridge * beta)) / 2
            + float(b @ beta)
        )
        return value, (weights * loss.derivative(y, z @ beta)) @ z + ridge * beta + b

    found = minimise(records_of((z, y, weights), loss, 13), problem, b)
    other = minimize(
        objective, np.zeros(4), jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000}
    )
    slack = np.linalg.norm(objective(other.x)[1]) / problem.strength
    assert np.linalg.norm(found - other.x) <= slack + 1e-6


@every_loss
def test_blocks_in_any_partition_give_the_same_minimiser(loss, rng):
    rows = make_rows("long rows with weights", loss, rng)
    problem, b = make_problem(loss, rows, rng)
    limit = 2 * problem.tolerance / problem.strength
    cuts = [None, 1, 7, 59, [0, 1, 2, 40], [0, 0, 30, 30]]
    found = [minimise(records_of(rows, loss, cut), problem, b) for cut in cuts]
    assert all(np.linalg.norm(one - found[0]) <= limit for one in found)


def test_single_precision_features_are_summed_in_double(rng):
    loss = Logistic()
    z, y, _ = make_rows("single precision", loss, rng)
    problem, b = make_problem(loss, (z, y, None), rng)
    wide = minimise(records_of((z.astype(np.float64), y, None), loss), problem, b)
    narrow = minimise(records_of((z, y, None), loss), problem, b)
    assert np.linalg.norm(wide - narrow) <= 2 * problem.tolerance / problem.strength
    gradients = [
        records_of((rows, y, None), loss).sums(wide)[0] for rows in (z, z.astype(np.float64))
    ]
    assert np.array_equal(*gradients)


def test_a_hessian_of_some_blocks_only_steers(rng):
    """Sorted by class, so that the blocks of a stride speak of one class only."""
    loss, n = SmoothedHinge(0.5), 42_000
    z = rng.normal(size=(n, 2)) / 8
    y = np.repeat([-1.0, 1.0], n // 2)
    z[:, 0] += y / 10
    z /= np.maximum(1, np.linalg.norm(z, axis=1, keepdims=True))
    problem = Problem(loss, n, 1.0, np.full(2, 5.0), 1.0, 50.0, 512)
    strides = []
    records = records_of((z, y, None), loss, 4096)
    plain = records.sums
    records.sums = lambda beta, stride=0, threads=1: (
        strides.append(stride),
        plain(beta, stride, threads),
    )[1]
    b = np.array([3.0, -4.0])
    found = minimise(records, problem, b)
    assert max(strides) > 1
    assert length(true_gradient(problem, (z, y, None), b, found)) <= problem.tolerance


def test_one_hessian_serves_the_last_steps_on_a_large_table(rng, monkeypatch):
    """Gradients alone lead from there to the tolerance; a wrong Hessian there costs time only."""
    monkeypatch.setattr(solver, "_SAMPLE", 500)
    loss, n = Huber(0.3), 20_000
    z, y, _ = make_rows("random", loss, rng, n=n, size=6)
    problem, b = Problem(loss, n, 1.0, np.full(6, 5.0), 1.0, 50.0, 512), rng.normal(size=6)
    shares, seen = [], []
    for wrong in (1.0, 1.5, -1.0, np.nan):
        records, strides = records_of((z, y, None), loss, 100), []
        plain = records.sums

        def sums(beta, stride=0, threads=1, wrong=wrong, plain=plain, strides=strides):
            strides.append(stride)
            gradient, hessian = plain(beta, stride, threads)
            few = stride > 0 and len(strides) < 20
            return gradient, hessian * wrong if few else hessian

        records.sums = sums
        found = minimise(records, problem, b)
        assert length(true_gradient(problem, (z, y, None), b, found)) <= problem.tolerance
        shares.append(sum(1 / s for s in strides if s > 0))
        seen.append(strides)
    assert shares[0] < 2
    assert len(seen[0]) < 12
    assert seen[0].count(0) > len(seen[0]) // 3
    assert max(map(len, seen)) < 100


def test_nothing_warns(rng):
    """A warning for some data sets only would tell of them."""
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        for loss in (Logistic(), SmoothedInsensitive(0.2, 1e-3), Huber(0.3)):
            for kind in KINDS:
                rows = make_rows(kind, loss, rng, n=12)
                problem, b = make_problem(loss, rows, rng)
                minimise(records_of(rows, loss), problem, b)
            z, y, _ = make_rows("random", loss, rng, n=12)
            huge = z * 1e160, y, np.full(12, 1e-320)
            with np.errstate(under="ignore"):
                records_of(huge, loss).sums(np.full(4, 1e200), 1)


# --- public numbers ---------------------------------------------------------------------------


def test_the_example_with_ten_thousand_rows():
    sigma = 20.0
    largest = sigma * (math.sqrt(300) + math.sqrt(2 * math.log(1e20)))
    problem = Problem(Logistic(), 10**4, 1.0, np.full(300, 10.0), 1.0, largest, 4096)
    assert problem.tolerance == pytest.approx(5.9e-8, rel=0.02)
    assert problem.most_steps == pytest.approx(19_659, rel=0.01)


@every_loss
def test_targets_without_a_bound(loss, rng):
    rows = make_rows("random", loss, rng)
    if not loss.labels:
        rows[1][:] = 10.0 ** rng.uniform(-3, 300, len(rows[1]))
    problem, b = make_problem(loss, rows, rng)
    problem = replace(problem, target_bound=math.inf)
    assert problem.radius <= 2 * problem.first_gradient / problem.strength
    found = minimise(records_of(rows, loss), problem, b)
    assert length(true_gradient(problem, rows, b, found)) <= problem.tolerance


def test_the_radius_holds_what_descent_visits(rng):
    """The minimiser for b at its largest, of losses at their largest, stays inside."""
    for loss in LOSSES:
        for _ in range(10):
            rows = make_rows("one class", loss, rng, n=5)
            ridge, largest = 10.0 ** rng.uniform(-2, 2), 10.0 ** rng.uniform(-2, 2)
            problem = Problem(loss, 5, 1.0, np.full(4, ridge), 1.0, largest, 512)
            b = rng.normal(size=4)
            b *= largest / np.linalg.norm(b)
            found = newton_of(rows, loss, problem, b)
            assert np.linalg.norm(found) <= problem.radius
            gradient = length(true_gradient(problem, rows, b, np.zeros(4)))
            assert gradient <= problem.first_gradient


@pytest.mark.parametrize(
    "change",
    [
        {"loss": Hinge()},
        {"loss": Squared()},
        {"ridge": np.array([1.0, 0.0])},
        {"ridge": np.array([1.0, -1.0])},
        {"ridge": np.array([1.0, math.nan])},
        {"ridge": np.array([1.0, math.inf])},
        {"ridge": np.array([])},
        {"ridge": np.ones((2, 2))},
        {"ridge": np.array([1, 2])},
        {"n_rows": 0},
        {"n_rows": 2.5},
        {"block_rows": 0},
        {"row_bound": -1.0},
        {"row_bound": math.nan},
        {"target_bound": math.nan},
        {"target_bound": -1.0},
        {"largest_b": -1.0},
        {"wanted": math.nan},
        {"wanted": math.inf},
        {"row_bound": 1e300},
    ],
    ids=str,
)
def test_problems_without_a_tolerance_are_refused(change):
    usual = {
        "loss": Logistic(),
        "n_rows": 10,
        "row_bound": 1.0,
        "ridge": np.ones(2),
        "target_bound": 1.0,
        "largest_b": 10.0,
        "block_rows": 512,
    }
    assert Problem(**usual).tolerance > 0
    with pytest.raises(ParameterError, match="A Problem needs a loss with bounded slope"):
        Problem(**{**usual, **change})


def test_a_hessian_is_as_exact_in_blocks_of_one_row():
    """A stream may come row by row; many equal rows make every addition err to the same side."""
    row = np.array([[0.5773502691, 0.5773502692, 0.577350269]])
    n = 20_000
    blocks = [(row, np.ones(1), None)] * n
    _, found = BlockRecords(lambda: blocks, Squared()).sums(np.zeros(3), PRECISE)
    np.testing.assert_allclose(found, n * (row.T @ row), rtol=8 * 2.0**-53)


def test_newton_steps_go_on_in_double_precision_where_single_precision_fails(rng, monkeypatch):
    """A Hessian of single precision may be nearly singular, and its step then lead upwards."""
    z = rng.normal(size=(300, 4)).astype(np.float32) / 8
    problem = Problem(Huber(100.0), 300, 1.0, np.full(4, 0.1), 1.0, 0.0, 512)
    real, seen = solver.sum_blocks, []

    def upwards(blocks, loss, beta, stride, threads=1):
        gradient, hessian = real(blocks, loss, beta, stride, threads)
        seen.append(stride)
        return gradient, hessian * np.nan if stride > 0 else hessian

    monkeypatch.setattr(solver, "sum_blocks", upwards)
    y = rng.choice([-1.0, 1.0], 300)
    records = BlockRecords(lambda: [(z, y, None)], Huber(100.0))
    assert solver.search(records, problem, np.zeros(4)) is not None
    assert PRECISE in seen
