"""The loops of SGD against slow twins: NumPy, 50 digits, and Python's integers."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from fractions import Fraction

import mpmath
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from dpkernel import Neighbours
from dpkernel.foundations.errors import ParameterError
from dpkernel.models.losses import (
    Absolute,
    Hinge,
    Huber,
    Logistic,
    Pinball,
    PowerAbsolute,
    PowerHinge,
    SmoothedHinge,
    SmoothedInsensitive,
    SmoothedPinball,
    Squared,
    SquaredHinge,
    slope,
)
from dpkernel.solvers import sgd_compiled, sgd_gradient
from dpkernel.solvers.sgd_gradient import LONGEST, Block, GradientSGD
from dpkernel.solvers.sgd_output import OutputSGD, in_parts
from sgd_twin import batches_of, descend_one, sum_blocks

PLAIN = settings(derandomize=True, deadline=None, max_examples=100)
LOSSES = [
    Logistic(),
    SmoothedHinge(0.5),
    SquaredHinge(1.0),
    Hinge(),
    PowerHinge(1.0),
    PowerHinge(1.5),
    PowerHinge(2.0),
    Squared(),
    Huber(0.4),
    Pinball(0.7),
    SmoothedPinball(0.3, 0.4),
    Absolute(),
    Absolute(0.3),
    SmoothedInsensitive(0.2, 0.5),
    PowerAbsolute(1.0),
    PowerAbsolute(1.25),
    PowerAbsolute(2.0),
]
RUNS = {
    "plain": {"n_steps": 23},
    "epochs": {"n_steps": 46},
    "part": {"n_steps": 30, "averaged": True},
    "batches": {"batch": 4, "n_steps": 18},
    "short": {"batch": 5, "n_steps": 10, "averaged": True},
    "drop": {"batch": 5, "n_steps": 11, "drop_last": True},
    "all": {"batch": 23, "n_steps": 5},
    "ball": {"n_steps": 40, "radius": 0.2},
    "ball-batches": {"batch": 4, "n_steps": 12, "radius": 0.05, "averaged": True},
    "ridge": {"n_steps": 40, "ridge": 0.3},
    "ridge-batches": {"batch": 4, "n_steps": 12, "ridge": 0.3, "radius": 0.5},
    "ridge-constant": {"batch": 3, "n_steps": 12, "ridge": 0.3, "step": 0.1},
}


def records(rng, labels, n=23, d=5, dtype=np.float64):
    z = rng.normal(size=(n, d))
    z /= np.linalg.norm(z, axis=1, keepdims=True) * 1.0001
    y = rng.choice([-1.0, 1.0], n) if labels else rng.uniform(-1, 1, n)
    return z.astype(dtype), y, rng.uniform(0, 1, n)


def build(loss, n=23, d=5, **given):
    numbers = {"batch": 1, "order": "shuffle", **given}
    if numbers.get("ridge") and loss.lipschitz == math.inf:
        numbers.setdefault("radius", 0.7)
    if loss.smoothness == math.inf:
        numbers.setdefault("step", 0.05)
    return OutputSGD(loss, n, d, 1.0, 1.0, **numbers)


def parts_of(z, y, weights, order, cuts, copied):
    """Return the parts of an epoch, cut anywhere; empty parts are parts."""
    for rows in np.split(np.asarray(order), sorted(cuts)):
        if copied:
            yield np.ascontiguousarray(z[rows]), np.arange(len(rows)), y[rows], weights[rows]
        else:
            yield z, np.ascontiguousarray(rows), y, weights


# --- the compiled loop ----------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_compiled_loop_is_the_naive_one(loss, run, rng):
    options = RUNS[run]
    if options.get("ridge") and loss.smoothness == math.inf:
        with pytest.raises(ParameterError, match="with a ridge needs a smooth loss"):
            build(loss, **options)
        return
    plan = build(loss, **options)
    for dtype in (np.float64, np.float32):
        z, y, weights = records(rng, loss.labels, dtype=dtype)
        orders = [rng.permutation(23) for _ in range(plan.epochs)]
        expected = descend_one(plan, z, y, orders, weights)
        for cuts, copied in (((), False), ((0, 3, 3, 22), True), ((7, 23), False)):
            epochs = (parts_of(z, y, weights, order, cuts, copied) for order in orders)
            found = plan.run(epochs)
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@PLAIN
@given(data=st.data())
def test_cuts_change_nothing(data):
    """The same run to the last bit where batches hold several records."""
    n = data.draw(st.integers(1, 9))
    batch = data.draw(st.integers(1, n))
    plan = build(
        Huber(0.4), n, 2, batch=batch, n_steps=data.draw(st.integers(1, 12)),
        drop_last=data.draw(st.booleans()),
    )  # fmt: skip
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    z, y, weights = records(rng, False, n, 2)
    orders = [rng.permutation(n) for _ in range(plan.epochs)]
    whole = plan.run(parts_of(z, y, weights, order, (), False) for order in orders)
    cuts = data.draw(st.lists(st.integers(0, n), max_size=5))
    cut = plan.run(parts_of(z, y, weights, order, cuts, True) for order in orders)
    np.testing.assert_allclose(cut, whole, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(whole, descend_one(plan, z, y, orders, weights), rtol=1e-10)


def test_a_short_batch_is_divided_by_the_nominal_size():
    """One record alone in the last batch of three: a third of its gradient."""
    plan = build(Squared(), 4, 1, batch=3, n_steps=2, step=0.6)
    z, y = np.ones((4, 1)), np.array([0.0, 0.0, 0.0, 1.0])
    found = plan.run([parts_of(z, y, np.ones(4), range(4), (), False)])
    assert found[0] == pytest.approx(0.6 / 3)


def test_progress_tells_steps_only(rng):
    plan = build(Huber(), 23, 5, n_steps=30)
    z, y, weights = records(rng, False)
    told: list[int] = []
    orders = [rng.permutation(23) for _ in range(2)]
    plan.run((parts_of(z, y, weights, order, (10,), False) for order in orders), told.append)
    assert told == [10, 23, 30, 30]


def test_parts_hold_every_row_in_order():
    rows = np.arange(20_000)[::-1]
    assert np.array_equal(np.concatenate(list(in_parts(rows))), rows)


# --- rounding -------------------------------------------------------------------------------


def exact_slope(loss, y, s):
    """Return the derivative in s with 50 digits."""
    one = mpmath.mpf(1)
    if loss.kind == "logistic":
        return -y / (1 + mpmath.exp(y * s))
    if loss.kind == "smoothed_hinge":
        return -y * min(max((1 - y * s) / mpmath.mpf(loss.width), 0), one)
    r = y - s
    if loss.kind == "squared":
        return -r
    if loss.kind == "huber":
        return -min(max(r, -mpmath.mpf(loss.threshold)), mpmath.mpf(loss.threshold))
    if loss.kind == "smoothed_insensitive":
        out = min(max((abs(r) - mpmath.mpf(loss.tube)) / mpmath.mpf(loss.width), 0), one)
        return -mpmath.sign(r) * out
    assert loss.kind == "smoothed_pinball"
    half = mpmath.mpf(1) / 2
    ramp = min(max(r / mpmath.mpf(loss.width), -half), half)
    return -(mpmath.mpf(loss.quantile) - half + ramp)


def exact_run(plan, z, y, batches):
    """Return the output with 50 digits; the public numbers are the plan's floats."""
    d, eta = plan.n_coordinates, mpmath.mpf(plan.eta)
    ridge, radius = mpmath.mpf(plan.ridge), mpmath.mpf(plan.radius)
    w, total = [mpmath.mpf(0)] * d, [mpmath.mpf(0)] * d
    for t, rows in enumerate(batches, start=1):
        g = [mpmath.mpf(0)] * d
        for i in rows:
            row = [mpmath.mpf(float(v)) for v in z[i]]
            s = sum(a * b for a, b in zip(row, w, strict=True))
            pull = exact_slope(plan.loss, mpmath.mpf(float(y[i])), s)
            g = [a + pull * b for a, b in zip(g, row, strict=True)]
        step = min(eta, 1 / (ridge * t)) if plan.decreasing else eta
        w = [(1 - step * ridge) * a - step * b / plan.batch for a, b in zip(w, g, strict=True)]
        if plan.radius < math.inf:
            length = mpmath.sqrt(sum(a * a for a in w))
            w = [a * min(1, radius / length) if length else a for a in w]
        total = [a + b for a, b in zip(total, w, strict=True)]
    return [a / plan.n_steps for a in total] if plan.averaged else w


HARD = {
    "long": {"n_steps": 40},
    "averaged": {"n_steps": 40, "averaged": True},
    "ball": {"n_steps": 30, "radius": 0.01},
    "ball-averaged": {"n_steps": 30, "radius": 3.0, "averaged": True},
    "batches": {"n_steps": 15, "batch": 3},
    "ridge": {"n_steps": 30, "ridge": 0.01},
    "ridge-ball": {"n_steps": 30, "ridge": 2.0, "radius": 0.1, "step": 0.05},
}


@pytest.mark.parametrize("run", HARD)
@pytest.mark.parametrize(
    "loss",
    [
        Squared(),
        Huber(1e-3),
        Huber(50.0),
        SmoothedPinball(0.3, 0.01),
        SmoothedInsensitive(2.0, 0.01),
        Logistic(),
        SmoothedHinge(0.01),
    ],
    ids=str,
)
def test_rounding_is_bounded(loss, run, rng):
    """The computed output is no farther from the exact one than stated."""
    options = dict(HARD[run])
    c = 1.0 if loss.labels else 7.0
    for d in (1, 3):
        numbers = {"batch": 1, "order": "shuffle", **options}
        if numbers.get("ridge"):
            numbers.setdefault("radius", 100.0)
        largest = OutputSGD(loss, 6, d, 1.3, c, **{**numbers, "step": 1e-9}).largest_step
        if "step" in numbers:
            numbers["step"] = min(numbers["step"], largest)
        elif not numbers.get("ridge"):
            numbers["step"] = largest
        plan = OutputSGD(loss, 6, d, 1.3, c, **numbers)
        z = rng.normal(size=(6, d))
        z *= 1.3 * (1 - 1e-12) / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-300)
        y = rng.choice([-1.0, 1.0], 6) if loss.labels else rng.uniform(-c, c, 6)
        orders = [rng.permutation(6) for _ in range(plan.epochs)]
        found = plan.run(parts_of(z, y, np.ones(6), order, (), False) for order in orders)
        with mpmath.workdps(50):
            batches = batches_of(orders, plan.batch)[: plan.n_steps]
            exact = exact_run(plan, z, y, batches)
            off = mpmath.sqrt(
                sum((mpmath.mpf(float(a)) - b) ** 2 for a, b in zip(found, exact, strict=True))
            )
        assert float(off) <= plan.rounding
        assert plan.rounding < 1e-8 * max(1.0, plan.norm_bound)


@pytest.mark.parametrize("step", [0.001, 0.0007, 1 / 3000])
def test_rounding_of_many_small_steps(step):
    """Slopes of exactly 1: every sum is off the same way, and all of it is the update's error."""
    steps = 3000
    plan = OutputSGD(Huber(1.0), 1, 1, 1.0, 5.0, 1, steps, "fixed", step=step)
    epoch = [(np.ones((1, 1)), np.zeros(1, np.int64), np.full(1, 5.0), np.ones(1))]
    found = plan.run(epoch for _ in range(steps))
    off = abs(Fraction(float(found[0])) - steps * Fraction(step))
    assert 0.005 * plan.rounding < off <= plan.rounding


@pytest.mark.parametrize("loss", [Absolute(), Absolute(0.25), Hinge(), Pinball(0.3)], ids=str)
@pytest.mark.parametrize("radius", [math.inf, 0.05])
def test_neighbours_at_the_kink(loss, radius, rng):
    """Margins that lie on the kink up to rounding: the computed runs stay within the bound."""
    step = 0.25 if loss.labels else 2.0**-5  # a few steps reach a margin of 1
    for trial in range(20):
        plan = build(loss, 4, 2, n_steps=12, step=step, radius=radius)
        z = rng.choice([-1.0, -0.6, 0.6, 0.8, 1.0], size=(4, 2))
        z /= np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1.0)
        y = rng.choice([-1.0, 1.0], 4) if loss.labels else rng.integers(-9, 9, 4) * step * 0.36
        orders = [rng.permutation(4) for _ in range(3)]
        sides = []
        for sign in (1, -1):
            z2 = z.copy()
            z2[0] *= sign
            sides.append(plan.run(parts_of(z2, y, np.ones(4), o, (), False) for o in orders))
        bound = plan.sensitivity(Neighbours.REPLACE_ONE).value + 2 * plan.rounding
        assert np.linalg.norm(sides[0] - sides[1]) <= bound, trial


def test_rounding_grows_with_everything_it_should():
    plan = build(Squared(), 23, 5, n_steps=20, step=0.1)
    for change in ({"n_steps": 40}, {"n_coordinates": 50}, {"batch": 20}, {"averaged": True},
                   {"problems": 4}, {"target_bound": 9.0}):  # fmt: skip
        assert replace(plan, **change).rounding > plan.rounding
    assert plan.rounding > 0 and build(Squared(), 23, 5, n_steps=1, step=0.1).rounding > 0


def test_one_step_without_a_bound_on_slopes_moves_w():
    """After one step w is up to step M long, although its gradient is that at 0."""
    for loss in (Squared(), PowerAbsolute(1.5), PowerHinge(2.0)):
        plan = build(loss, 1, 1, n_steps=1, step=0.1)
        found = plan.run([parts_of(np.ones((1, 1)), np.ones(1), np.ones(1), [0], (), False)])
        assert 0 < abs(found[0]) <= plan.norm_bound
        assert plan.gradient == pytest.approx(loss.slope_at_zero(1.0))


@pytest.mark.parametrize("loss", [PowerAbsolute(1.999), PowerHinge(1.9999)])
def test_a_growth_beyond_all_numbers_is_refused(loss):
    """(L step)^(2/(1 - alpha)) is never cut off: a step for which it overflows is refused."""
    with pytest.raises(ParameterError, match="step"):
        OutputSGD(loss, 4, 1, 1.0, 1.0, 1, 4, "shuffle", step=3.0)
    fine = OutputSGD(loss, 4, 1, 1.0, 1.0, 1, 4, "shuffle")
    assert fine.sensitivity(Neighbours.REPLACE_ONE).value < math.inf


# --- integer gradients ----------------------------------------------------------------------


def noiseless(loss=None, d=3, problems=1, clip=0.7, **given):
    numbers = {"batch": 10.0, "n_steps": 5, "step": 0.5, **given}
    return GradientSGD(loss or Huber(2.0), d, 1.3, clip, problems=problems, **numbers)


def block_of(plan, z, targets, weights):
    whole, caps = plan.rows(z)
    return Block(whole, targets, weights, caps)


@pytest.mark.parametrize("size", [1e150, 1.0, 1e-9, 1e-320, 0.0])
def test_a_margin_is_exact_so_other_records_of_a_batch_do_not_change_it(size, rng):
    """Its terms may be added in any order, which may depend on the place and on the batch."""
    plan = noiseless(d=99, problems=2)
    rows = rng.normal(size=(20, 99))
    z = np.trunc(rows * ((LONGEST - 1) / np.linalg.norm(rows, axis=1, keepdims=True)))
    z[0] = np.where(np.arange(99) == 3, LONGEST - 1, 0)
    given = size * rng.normal(size=(2, 99)) * np.geomspace(1, 1e-12, 99)
    for w, found in zip(given, plan.on_grid(given), strict=True):
        grid = 2.0**-28 * math.sqrt(99) * np.abs(w).max() / plan.row_unit
        assert np.abs(found - w / plan.row_unit).max() <= grid
        for row in z:
            exact = sum(Fraction(a) * Fraction(b) for a, b in zip(row, found, strict=True))
            for order in (np.arange(99), np.arange(99)[::-1], rng.permutation(99)):
                assert np.cumsum(row[order] * found[order])[-1] == exact


finite = st.floats(-1.3, 1.3)
strange = st.sampled_from([0.0, 1e-300, 1e-9, 1e5, 1e30, 1.7e308, -1.7e308, math.inf, math.nan])


@PLAIN
@given(data=st.data())
def test_integer_gradients_are_exact_and_clipped(data):
    """Each record counts an integer multiple of its integer row, no longer than C; sums are exact."""
    d, problems = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    n = data.draw(st.integers(1, 9))
    loss = data.draw(st.sampled_from([Huber(2.0), Logistic(), Squared(), PowerHinge(1.5)]))
    plan = noiseless(loss, d, problems, clip=data.draw(st.sampled_from([1e-6, 0.7, 1e6])))
    entry = st.one_of(finite, strange)
    z = np.array([[data.draw(entry) for _ in range(d)] for _ in range(n)])
    label = st.sampled_from([-1.0, 1.0]) if loss.labels else entry
    targets = np.array([[data.draw(label) for _ in range(problems)] for _ in range(n)])
    weights = np.array([data.draw(st.sampled_from([0.0, 0.3, 1.0])) for _ in range(n)])
    w = np.array([[data.draw(st.floats(-1e6, 1e6)) for _ in range(d)] for _ in range(problems)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning would tell of the data
        block = block_of(plan, z, targets, weights)
        total = block.sums(plan, w, None)
    assert total.dtype == np.int64
    expected = [[0] * d for _ in range(problems)]
    for i in range(n):
        alone = block.sums(plan, w, np.array([i]))
        row = [int(v) for v in block.z[i]]
        length = sum(int(v) ** 2 for v in alone.ravel())
        assert length <= plan.clip_steps**2
        for k in range(problems):
            counted = [int(v) for v in alone[k]]
            factors = {c / r for c, r in zip(counted, row, strict=True) if r}
            assert len(factors) <= 1 and all(f == int(f) for f in factors)
            assert not any(c for c, r in zip(counted, row, strict=True) if not r)
            expected[k] = [a + b for a, b in zip(expected[k], counted, strict=True)]
    assert total.tolist() == expected


def test_integer_gradients_are_the_clipped_ones(rng):
    plan = noiseless(Squared(), 4, 2, clip=0.5)
    z = rng.normal(size=(30, 4)) * 0.5
    targets, weights, w = rng.normal(size=(30, 2)), rng.uniform(0, 1, 30), rng.normal(size=(2, 4))
    found = block_of(plan, z, targets, weights).sums(plan, w, None)
    expected = np.zeros((2, 4))
    for i in range(30):
        slopes = -(targets[i] - w @ z[i]) * weights[i]
        gradient = np.outer(slopes, z[i])
        expected += gradient * min(1.0, 0.5 / np.linalg.norm(gradient))
    np.testing.assert_allclose(found / (plan.row_unit * plan.slope_unit), expected, atol=30 * 1e-4)


def test_chunks_and_threads_change_nothing(rng, monkeypatch):
    plan = noiseless(Logistic(), 4, 2)
    z, weights = rng.normal(size=(101, 4)), rng.uniform(0, 1, 101)
    targets, w = rng.choice([-1.0, 1.0], (101, 2)), rng.normal(size=(2, 4))
    block = block_of(plan, z, targets, weights)
    whole = block.sums(plan, w, None)
    assert np.any(whole)
    for chunk in (1, 7, 50):
        monkeypatch.setattr(sgd_gradient, "_CHUNK", chunk)
        assert np.array_equal(block.sums(plan, w, None), whole)
        for threads in (1, 3):
            with monkeypatch.context() as patched:
                patched.setattr(sgd_gradient, "block_threads", lambda *_, t=threads: Yielding(t))
                assert np.array_equal(block.sums(plan, w, None), whole)
    cut = [
        block_of(plan, z[a:b], targets[a:b], weights[a:b]) for a, b in ((0, 5), (5, 60), (60, 101))
    ]
    assert np.array_equal(sum_blocks(cut, plan, w, None), whole)
    rows = rng.permutation(101)[:40]
    assert np.array_equal(sum_blocks(cut, plan, w, rows), block.sums(plan, w, rows))


class Yielding:
    def __init__(self, threads):
        self.threads = threads

    def __enter__(self):
        return self.threads

    def __exit__(self, *_):
        return None


def test_records_out_of_range_count_nothing():
    plan = noiseless(Squared(), 1, 1)
    z = np.array([[math.nan], [math.inf], [1e300], [0.0], [1.0]])
    targets = np.array([[1.0], [1.0], [1.0], [1.0], [math.nan]])
    block = block_of(plan, z, targets, np.ones(5))
    assert not np.any(block.sums(plan, np.zeros((1, 1)), None))
    assert block_of(plan, np.ones((1, 1)), np.ones((1, 1)), np.ones(1)).sums(
        plan, np.zeros((1, 1)), None
    )


# --- descent without noise ------------------------------------------------------------------


@pytest.mark.parametrize("loss", [Huber(0.5), Logistic(), Squared()], ids=str)
def test_gradient_descent_finds_the_minimiser(loss, rng):
    n, d, ridge = 60, 3, 0.1
    z = records(rng, loss.labels, n, d)[0]
    y = np.sign(z[:, 0]) if loss.labels else z[:, 0]
    plan = GradientSGD(loss, d, 1.0, 5.0, float(n), 400, 0.9, ridge=ridge)
    block = block_of(plan, z, y[:, None], np.ones(n))
    found = plan.run(
        lambda w: lambda rows: block.sums(plan, w, rows), lambda sums: sums(None).astype(np.float64)
    )[0]
    best = minimize(
        lambda w: loss.value(y, z @ w).mean() + ridge / 2 * w @ w,
        np.zeros(d),
        jac=lambda w: z.T @ loss.derivative(y, z @ w) / n + ridge * w,
        tol=1e-12,
    ).x
    assert np.linalg.norm(best) > 0.05
    np.testing.assert_allclose(found, best, atol=2e-3)
    ball = replace(plan, radius=0.5 * float(np.linalg.norm(best)), averaged=False)
    inside = ball.run(
        lambda w: lambda rows: block.sums(plan, w, rows), lambda sums: sums(None).astype(np.float64)
    )[0]
    assert np.linalg.norm(inside) == pytest.approx(ball.radius)


@pytest.mark.parametrize(
    "wrong", [{"clip": 0.0}, {"step": math.inf}, {"radius": 0.0}, {"ridge": 9.0}, {"n_steps": 0}]
)
def test_bad_numbers_of_gradient_descent(wrong):
    with pytest.raises(ParameterError):
        noiseless(**wrong)


# --- terms that no search reaches: as derived ------------------------------------------------------


def gamma(k):
    return k * 2.0**-53 / (1 - k * 2.0**-53)


def test_the_error_of_a_margin_counts_the_records_that_moved_w():
    plan = build(Absolute(0.0), d=7, n_steps=40, step=0.3)
    reach = plan.norm_bound + 4 * 0.3 * plan.gradient  # four steps at once
    assert plan._margin_error >= gamma(7 + 16) * reach
    exact = (2 * 0.3) ** 2  # (L step)^2, L = 2
    assert plan.expansion >= exact + 8 * 0.3 * plan.gradient * plan._margin_error > exact


def test_a_projection_adds_the_error_of_a_norm():
    free, ball = (build(Huber(0.5), n_steps=50, radius=r) for r in (math.inf, 1e-3))
    assert ball.rounding >= 50 * gamma(5 + 4) * ball.norm_bound
    wide = build(Huber(0.5), n_steps=50, radius=free.norm_bound)
    assert wide.rounding >= free.rounding + 50 * gamma(9) * free.norm_bound


@pytest.mark.parametrize("norm", [60.0, 64.0, 70.0, 1e3, 1e30, 1e100])
def test_rows_beyond_exact_integers_count_nothing(norm):
    plan = GradientSGD(Huber(1.0), 2, 1.0, 1.0, 1, 1, 1.0)
    whole, caps = plan.rows(np.array([[norm, 0.0], [0.6, 0.8]]))
    assert whole.dtype == np.float32
    exact = np.rint(norm * plan.row_unit)
    assert whole[0, 0] == (exact if exact < 2**23 else 0.0)
    assert caps[0] * abs(float(whole[0, 0])) <= plan.clip_steps
    np.testing.assert_array_equal(whole[1], np.rint(np.array([0.6, 0.8]) * plan.row_unit))


def test_loops_compile_where_nothing_can_be_kept():
    """A function without a file has no place in numba's cache, as in a folder that is read-only."""
    space: dict = {}
    exec("def double(x):\n    return 2.0 * x", space)
    with pytest.raises(RuntimeError, match="cache"):
        numba.njit(cache=True)(space["double"])
    assert sgd_compiled._kept(space["double"])(1.5) == 3.0


@pytest.mark.parametrize(("age", "kept"), [(-10.0, True), (10.0, False)])
def test_code_that_is_older_than_the_slopes_is_not_taken(monkeypatch, age, kept):
    ages = {slope.__file__: age, sgd_compiled.__file__: 0.0}
    seen = []
    monkeypatch.setattr(sgd_compiled, "getmtime", ages.__getitem__)
    monkeypatch.setattr(
        sgd_compiled, "njit", lambda **options: seen.append(options) or (lambda f: f)
    )
    sgd_compiled._kept(abs)
    assert [options["cache"] for options in seen] == [kept]
