"""Attacks on the sensitivities of SGD: neighbours found by search never move it farther than stated.

The runs are those of a naive loop in NumPy (``sgd_twin``). Where a bound is attained, data sets that
attain it are written down, and the same ones exceed bounds that are known to be wrong.
"""

from __future__ import annotations

import itertools
import math
import zlib
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr
from scipy.stats import binom

from dpkernel import Budget, Neighbours
from dpkernel.foundations.errors import CertificateError, ParameterError
from dpkernel.models.losses import (
    REGISTRY,
    Absolute,
    Hinge,
    Huber,
    HuberisedHinge,
    Logistic,
    Pinball,
    PowerAbsolute,
    PowerHinge,
    SmoothedHinge,
    SmoothedInsensitive,
    SmoothedPinball,
    Squared,
    SquaredHinge,
)
from dpkernel.privacy.mechanisms import Gaussian, MixtureGaussian
from dpkernel.privacy.sensitivity import Path, RandomSensitivity, sensitivity_from_dict, sgd
from dpkernel.solvers.sgd_output import OutputSGD
from sgd_twin import batches_of, descend, farthest, options

R, Z = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT
POWERS = (1.0, 1.25, 1.5, 1.75, 2.0)
LOSSES = {
    "logistic": Logistic(),
    "smoothed_hinge": SmoothedHinge(0.5),
    "huberised_hinge": HuberisedHinge(0.3),
    "squared_hinge": SquaredHinge(1.0),
    "hinge": Hinge(),
    "squared": Squared(),
    "huber": Huber(0.4),
    "pinball": Pinball(0.7),
    "smoothed_pinball": SmoothedPinball(0.3, 0.4),
    "absolute": Absolute(),
    "tube": Absolute(0.3),
    "smoothed_insensitive": SmoothedInsensitive(0.2, 0.5),
    **{f"power_hinge_{q}": PowerHinge(q) for q in POWERS},
    **{f"power_absolute_{q}": PowerAbsolute(q) for q in POWERS},
}
SMOOTH = {name: loss for name, loss in LOSSES.items() if loss.smoothness < math.inf}

# n_rows, batch, n_steps, and what differs from a plain run
PATHS = {
    "one-epoch": (5, 1, 5, {}),
    "epochs": (4, 1, 12, {"order": "shuffle"}),
    "fixed": (3, 1, 9, {"order": "fixed"}),
    "few-steps": (12, 1, 4, {}),
    "part-of-an-epoch": (4, 1, 10, {}),
    "batches": (6, 2, 9, {}),
    "short-batch": (5, 2, 9, {}),
    "short-batch-part": (7, 3, 7, {}),
    "drop-last": (5, 2, 6, {"drop_last": True}),
    "one-row": (1, 1, 5, {}),
    "all-rows": (3, 3, 5, {}),
    "averaged": (4, 1, 10, {"averaged": True}),
    "averaged-batches": (5, 2, 8, {"averaged": True}),
    "averaged-drop": (5, 2, 6, {"averaged": True, "drop_last": True}),
    "projected": (4, 1, 8, {"radius": 0.3}),
    "projected-batches": (5, 2, 7, {"radius": 0.3, "averaged": True}),
}
RIDGED = {
    "decreasing": (4, 1, 12, {}),
    "decreasing-short": (5, 2, 9, {}),
    "decreasing-part": (4, 1, 7, {}),
    "decreasing-drop": (5, 2, 6, {"drop_last": True}),
    "decreasing-few": (9, 1, 3, {}),
    "constant": (4, 1, 8, {"step": 1.0}),
    "constant-batches": (6, 3, 6, {"step": 1.0}),
    "constant-part": (4, 1, 6, {"step": 0.5}),
    "constant-short": (5, 2, 9, {"step": 1.0}),
}


def plan_of(loss, sizes, *, d=2, kappa=1.0, c=1.0, share=1.0, **given):
    """Return a run at a share of the largest step that is allowed."""
    n, batch, steps, more = sizes
    numbers = {
        "loss": loss, "n_rows": n, "n_coordinates": d, "row_bound": kappa, "target_bound": c,
        "batch": batch, "n_steps": steps, "order": "shuffle", **more, **given,
    }  # fmt: skip
    share = numbers.pop("step", share)
    if numbers.get("ridge"):
        if loss.lipschitz == math.inf:
            numbers.setdefault("radius", 0.7)
        if "step" not in more and "step" not in given:
            return OutputSGD(**numbers)
    largest = OutputSGD(step=1e-9, **numbers).largest_step
    return OutputSGD(step=share * (largest if loss.smoothness < math.inf else 0.4), **numbers)


def generator(*names):
    return np.random.default_rng(zlib.crc32("/".join(map(str, names)).encode()))


def check_trace(plan, trace):
    """No gradient was longer than stated, and no iterate after any number of steps."""
    assert trace.gradient <= plan.gradient * (1 + 1e-9)
    for steps, reached in enumerate(trace.norms, start=1):
        assert reached <= replace(plan, n_steps=steps).norm_bound * (1 + 1e-9)


# --- no neighbours are farther apart --------------------------------------------------------


def test_every_loss_is_attacked():
    assert {loss.kind for loss in LOSSES.values()} == set(REGISTRY)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", LOSSES)
def test_neighbours_never_move_further(name, path):
    draws = generator(name, path)
    share, d = draws.choice([1.0, 0.3]), int(draws.integers(1, 4))
    plan = plan_of(LOSSES[name], PATHS[path], share=share, d=d, kappa=draws.choice([1.0, 0.7]))
    for relation in (R, Z):
        ratio, trace = farthest(plan, relation, draws)
        assert 0.01 < ratio <= 1 + 1e-9
        check_trace(plan, trace)


@pytest.mark.parametrize("path", RIDGED)
@pytest.mark.parametrize("name", SMOOTH)
def test_neighbours_never_move_further_with_a_ridge(name, path):
    draws = generator(name, path, "ridge")
    ridge = draws.choice([0.1, 1.0])
    plan = plan_of(SMOOTH[name], RIDGED[path], ridge=ridge, d=int(draws.integers(1, 3)))
    for relation in (R, Z):
        ratio, trace = farthest(plan, relation, draws)
        assert 0.01 < ratio <= 1 + 1e-9
        check_trace(plan, trace)


@pytest.mark.parametrize("path", ["epochs", "short-batch", "averaged-batches", "projected"])
@pytest.mark.parametrize("name", LOSSES)
def test_long_rows_of_little_weight(name, path):
    """weight ||z|| <= kappa and weight ||z||^2 <= kappa^2 are all that the bounds ask for."""
    draws = generator(name, path, "weights")
    plan = plan_of(LOSSES[name], PATHS[path])
    for relation in (R, Z):
        ratio, trace = farthest(plan, relation, draws, stretched=True)
        assert 0.001 < ratio <= 1 + 1e-9
        check_trace(plan, trace)


@pytest.mark.parametrize("drop", [False, True])
def test_hits_by_counting(drop):
    """A record that comes first in every epoch is met that often, and no order meets it more."""
    draws = generator("hits")
    for n, batch, steps in itertools.product(range(1, 8), range(1, 8), range(1, 20)):
        if batch > n:
            continue
        taken = Path(n, batch, steps, "shuffle", gradient=1.0, step=1.0, drop_last=drop)
        orders = [list(range(n))] * steps
        batches = batches_of(orders, batch, drop)[:steps]
        assert sum(0 in rows for rows in batches) == taken.hits
        orders = [list(draws.permutation(n)) for _ in range(steps)]
        batches = batches_of(orders, batch, drop)[:steps]
        assert sum(0 in rows for rows in batches) <= taken.hits


def test_problems_are_one_long_vector():
    """Each of several problems may move as far as one."""
    for order, averaged, expansion in itertools.product(
        ("shuffle", "replacement"), (False, True), (0.0, 0.02)
    ):
        one = Path(
            6, 2, 9, order, gradient=0.7, step=0.3, averaged=averaged, expansion=expansion,
            fresh=True,
        )  # fmt: skip
        four = replace(one, problems=4).sensitivity(R)
        assert four.value == pytest.approx(2 * one.sensitivity(R).value, rel=1e-12)
        if isinstance(four, RandomSensitivity):
            assert four.values == pytest.approx([2 * v for v in one.sensitivity(R).values])


@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_steps_that_expand_are_refused_to_the_last_digit(ridge):
    for loss in (Huber(0.4), Squared(), Logistic()):
        given = {"ridge": ridge, "radius": 2.0}
        largest = plan_of(loss, (4, 1, 4, {"step": 0.5}), **given).largest_step
        curvature = loss.smoothness + ridge
        assert largest == pytest.approx((1 if ridge else 2) / curvature)
        for step in (largest * (1 + 1e-13), -largest, 0.0, math.nan, math.inf):
            with pytest.raises(ParameterError, match="up to which the proof holds"):
                OutputSGD(loss, 4, 2, 1.0, 1.0, 1, 4, "shuffle", step=step, **given)


REPLACED = {
    "last": (4, 1, 6, {}),
    "batches": (5, 2, 5, {}),
    "averaged": (4, 1, 6, {"averaged": True}),
    "averaged-batches": (5, 3, 4, {"averaged": True}),
}


@pytest.mark.parametrize("path", REPLACED)
@pytest.mark.parametrize("name", LOSSES)
def test_realised_batches_with_replacement(name, path):
    """Given the hits, runs are no farther apart than the value of the law that belongs to them."""
    draws = generator(name, path, "replacement")
    n, batch, steps, _ = sizes = REPLACED[path]
    plan = plan_of(LOSSES[name], sizes, order="replacement", fresh=True)
    for relation in (R, Z):
        law = plan.sensitivity(relation)
        assert law.formula == "sgd-sampled"
        batches = [list(draws.permutation(n)[:batch]) for _ in range(steps)]
        hits = [t for t, rows in enumerate(batches) if 0 in rows]
        if not hits:
            batches[1][0], hits = 0, [1]
        if plan.averaged and not plan.expansion:
            once = (2 if relation is R else 1) * plan.eta * plan.gradient / batch
            bound = once * sum((steps - t) / steps for t in hits)
        else:
            bound = law.values[len(hits)]
        ratio, _ = farthest(plan, relation, draws, batches=batches, bound=bound)
        assert 0.01 < ratio <= 1 + 1e-9


# --- bounds that are attained, and bounds that are wrong -----------------------------------


def apart(plan, z, y, other, epochs=None, batches=None, divide=None):
    """Return how far the run moves when row 0 becomes ``other`` = (z, y), None: nothing."""
    both_z, both_y = np.stack((z, z)).astype(float), np.stack((y, y)).astype(float)
    weights = np.ones(both_y.shape)
    if other is None:
        weights[1, 0] = 0.0
    else:
        both_z[1, 0], both_y[1, 0] = other
    if batches is None:
        batches = batches_of(epochs, plan.batch, plan.drop_last)[: plan.n_steps]
    numbers = {**options(plan), "batch": divide or plan.batch}
    out = descend(plan.loss, both_z, both_y, weights, batches, **numbers)
    return float(np.linalg.norm(out[0] - out[1]))


def lonely(n, target=1e3):
    """Return n rows of which only row 0 says anything, and its opposite: slopes are at their limit."""
    z = np.zeros((n, 1))
    z[0] = 1.0
    return z, np.full(n, target), (np.ones(1), -target)


def epochs_with_row_0(n, count, last=True):
    order = [*range(1, n), 0] if last else list(range(n))
    return [order] * count


@pytest.mark.parametrize(
    "sizes", [(4, 1, 12), (5, 2, 9), (5, 2, 6), (6, 6, 3), (4, 1, 10), (9, 1, 3)]
)
def test_2_eta_g_k_is_attained(sizes):
    n = sizes[0]
    for drop in (False, True):
        plan = plan_of(Huber(0.1), (*sizes, {"drop_last": drop}), d=1, c=1e3)
        z, y, other = lonely(n)
        epochs = epochs_with_row_0(n, plan.epochs, last=False)
        assert apart(plan, z, y, other, epochs) >= 0.999 * plan.sensitivity(R).value
        assert apart(plan, z, y, None, epochs) >= 0.999 * plan.sensitivity(Z).value
        mean = replace(plan, averaged=True)
        assert apart(mean, z, y, other, epochs) >= 0.999 * mean.sensitivity(R).value


@pytest.mark.parametrize("sizes", [(4, 1, 12), (5, 2, 9), (7, 3, 9)])
def test_ridge_bounds_are_attained(sizes):
    n = sizes[0]
    z, y, other = lonely(n)
    z = 0.1 * z  # flat: steps decrease from the first on
    for given in ({}, {"step": 0.3}):
        plan = plan_of(Huber(0.1), (*sizes, given), ridge=1.0, d=1, kappa=0.1, c=1e3)
        epochs = epochs_with_row_0(n, plan.epochs)
        for relation, change in ((R, (0.1 * other[0], other[1])), (Z, None)):
            ratio = apart(plan, z, y, change, epochs) / plan.sensitivity(relation).value
            assert 0.99 <= ratio <= 1 + 1e-9


def test_expansion_of_one_step_is_attained_for_a_slope_that_jumps():
    """The changed record moves w along one axis, the common one along the other, both ways."""
    plan = plan_of(Absolute(), (2, 1, 2, {}), share=0.5, c=1e3)
    z = np.array([[1.0, 0.0], [1e-6, 1.0]])
    y = np.array([500.0, 0.0])
    found = apart(plan, z, y, (z[0], -500.0), [[0, 1]])
    assert plan.eta * math.sqrt(8) * 0.999 <= found <= plan.sensitivity(R).value
    assert found >= 0.99 * plan.sensitivity(R).value


def test_records_beside_a_hit_expand_as_well():
    """n = b = E = T = k = 2: sqrt(5) eta apart, where the formula for b = 1 gives 2 eta."""
    plan = plan_of(Absolute(), (2, 2, 2, {}), share=0.5, c=1e3)
    eta, e = plan.eta, 1e-6
    z = np.array([[1.0, 0.0], [e, math.sqrt(1 - e * e)]])
    y = np.array([500.0, eta / 2])
    found = apart(plan, z, y, (z[0], -500.0), [[0, 1], [0, 1]])
    assert found == pytest.approx(math.sqrt(5) * eta, rel=1e-4)
    once, k = 2 * eta * plan.gradient / 2, 2
    wrong = math.sqrt(once**2 + (plan.n_steps - k) * plan.expansion) + (k - 1) * once
    assert found > 1.1 * wrong
    assert found <= plan.sensitivity(R).value


@pytest.mark.parametrize(
    ("sizes", "excess"),
    [((199, 100, 5, {"drop_last": True}), 1.98), ((10, 1, 11, {}), 1.81), ((10, 1, 1, {}), 9.8)],
)
def test_two_g_over_lambda_n_is_wrong_outside_complete_epochs(sizes, excess):
    n, ridge, kappa = sizes[0], 1.0, 0.05
    plan = plan_of(Huber(0.1), sizes, ridge=ridge, d=1, kappa=kappa, c=1e5)
    z, y, other = lonely(n, 1e5)
    z = kappa * z
    epochs = epochs_with_row_0(n, plan.epochs, last=False)
    found = apart(plan, z, y, (z[0], other[1]), epochs)
    assert found > excess * 2 * plan.gradient / (ridge * n)
    assert 0.99 * plan.sensitivity(R).value <= found <= plan.sensitivity(R).value


def test_a_short_batch_divided_by_its_own_size_is_too_far_apart():
    n, ridge, kappa = 7, 1.0, 0.05
    plan = plan_of(Huber(0.1), (n, 3, 6, {}), ridge=ridge, d=1, kappa=kappa, c=1e5)
    z, y, other = lonely(n, 1e5)
    z = kappa * z
    epochs = epochs_with_row_0(n, 2)  # row 0 is alone in the last batch
    change = (z[0], other[1])
    assert apart(plan, z, y, change, epochs) <= plan.sensitivity(R).value
    # row 0 alone speaks: dividing its batch by 1 is dividing by 1 everywhere
    assert apart(plan, z, y, change, epochs, divide=1) > 2.3 * 2 * plan.gradient / (ridge * n)


def test_shrinkage_counts_steps_and_not_records():
    """(1 - step ridge)^n in place of ^(n/b) is exceeded."""
    n, batch = 6, 3
    plan = plan_of(Huber(0.1), (n, batch, 8, {"step": 0.3}), ridge=0.8, d=1, kappa=0.3, c=1e4)
    z, y, other = lonely(n, 1e4)
    z = 0.3 * z
    found = apart(plan, z, y, (z[0], other[1]), epochs_with_row_0(n, 4))
    q = (1 - plan.eta * 0.8) ** n
    wrong = 2 * plan.eta * plan.gradient / batch * (1 - q**4) / (1 - q)
    assert found > 1.1 * wrong
    assert found == pytest.approx(plan.sensitivity(R).value, rel=1e-6)


@pytest.mark.parametrize("loss", [Squared(), PowerAbsolute(2.0), PowerHinge(2.0)])
def test_growth_of_squared_norms_needs_steps_of_at_most_1_over_l(loss):
    """Up to 2/L neighbours do not move apart, but 2 step M_0 a step does not bound the iterates."""
    L = loss.holder(1.0)[1]
    for share, excess in ((1.2, 1.15), (1.9, 1.8)):
        eta = share / L
        w, omega = np.zeros(1), 2 * eta * loss.at_zero(1.0)
        worst = 0.0
        for t in range(1, 12):
            y = np.array([1.0 if w[0] <= 0 else -1.0])
            w = w - eta * loss.derivative(y, w)
            worst = max(worst, float(w[0] ** 2) / (t * omega))
        assert worst > excess
        with pytest.raises(ParameterError, match="up to which the proof holds"):
            OutputSGD(loss, 4, 1, 1.0, 1.0, 1, 4, "shuffle", step=eta)
        inside = OutputSGD(loss, 4, 1, 1.0, 1.0, 1, 4, "shuffle", step=eta, radius=1.0)
        assert inside.norm_bound == pytest.approx(1.0)


def test_a_ridge_needs_smaller_steps():
    """eta = 1/kappa^2 with a ridge expands: the bound for a constant step is exceeded."""
    given = {"ridge": 0.8, "row_bound": 1.0, "target_bound": 1e3}
    with pytest.raises(ParameterError, match="at most 0.5555"):
        OutputSGD(
            Huber(1.0), n_rows=2, n_coordinates=1, batch=1, n_steps=2, order="fixed", step=1.0, **given
        )  # fmt: skip


# --- laws -----------------------------------------------------------------------------------


def dominates(law, outcomes, factor=1.02):
    """The law lies above equally likely outcomes at every threshold, and not far above."""
    outcomes, values = np.sort(outcomes), np.array(law.values)
    at = np.unique(np.concatenate((outcomes, values)))
    exact = 1 - np.searchsorted(outcomes, at, side="left") / len(outcomes)
    ranks = np.argsort(values)
    total = np.concatenate(([0.0], np.cumsum(np.array(law.probabilities)[ranks])))
    above = 1 - total[np.searchsorted(values[ranks], at, side="left")]
    assert np.all(above >= exact - 1e-12)
    mean = float(values @ law.probabilities)
    assert np.mean(outcomes) <= mean * (1 + 1e-9) <= np.mean(outcomes) * factor


def close_profile(law, outcomes, factor=1.05):
    """E G(eps; Delta/sigma) over the outcomes lies below the profile, within a few percent."""
    found = MixtureGaussian.calibrate(law, Budget(1.0, 0.05), dimension=1)
    sigma = found.sigma * found.grid
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        exact = float(np.mean(gauss(epsilon, np.array(outcomes) / sigma)))
        assert exact <= found.profile().delta(epsilon) <= factor * exact


def gauss(epsilon, mu):
    some = np.maximum(mu, 1e-9)
    found = ndtr(some / 2 - epsilon / some) - math.exp(epsilon) * ndtr(-some / 2 - epsilon / some)
    return np.where(mu > 0, found, 0.0)  # for epsilon >= 0


def path(n, batch, steps, order, **given):
    numbers = {"gradient": 0.7, "step": 0.3, "fresh": True, **given}
    return Path(n, batch, steps, order, **numbers)


@pytest.mark.parametrize(
    ("n", "batch", "steps"), [(3, 1, 5), (2, 1, 7), (4, 2, 4), (3, 2, 5), (2, 2, 3)]
)
@pytest.mark.parametrize("expansion", [0.0, 0.02])
def test_binomial_law(n, batch, steps, expansion):
    """Every sequence of batches is equally likely; its distance is that of its number of hits."""
    chosen = list(itertools.combinations(range(n), batch))
    for relation, records in ((R, 2), (Z, 1)):
        law = path(n, batch, steps, "replacement", expansion=expansion).sensitivity(relation)
        a = records * 0.3 * 0.7 / batch
        outcomes = []
        for sequence in itertools.product(chosen, repeat=steps):
            k = sum(0 in rows for rows in sequence)
            idle = steps - (k if batch == 1 else 1)
            outcomes.append(math.sqrt(a**2 + idle * expansion) + (k - 1) * a if k else 0.0)
        dominates(law, outcomes, factor=1 + 1e-6)
        close_profile(law, outcomes, factor=1.001)


@pytest.mark.parametrize(("n", "batch", "steps"), [(3, 1, 5), (2, 1, 7), (4, 2, 4), (3, 2, 5)])
def test_law_of_positions(n, batch, steps):
    chosen = list(itertools.combinations(range(n), batch))
    law = path(n, batch, steps, "replacement", averaged=True).sensitivity(R)
    a = 2 * 0.3 * 0.7 / batch
    outcomes = [
        a * sum((steps - t) / steps for t, rows in enumerate(sequence) if 0 in rows)
        for sequence in itertools.product(chosen, repeat=steps)
    ]
    dominates(law, outcomes)
    close_profile(law, outcomes)


@pytest.mark.parametrize(
    ("n", "batch", "steps"),
    [(4, 1, 4), (3, 1, 6), (4, 2, 4), (4, 2, 3), (3, 1, 5), (4, 1, 2), (3, 3, 4)],
)
def test_law_of_secret_permutations(n, batch, steps):
    """Every sequence of permutations is equally likely; an epoch may stop early."""
    taken = path(n, batch, steps, "shuffle", averaged=True)
    law = taken.sensitivity(R)
    assert isinstance(law, RandomSensitivity) and law.formula == "sgd-shuffled"
    a = 2 * 0.3 * 0.7 / batch
    orders = list(itertools.permutations(range(n)))
    outcomes = []
    for epochs in itertools.product(orders, repeat=taken.hits):
        batches = batches_of(epochs, batch)[:steps]
        outcomes.append(a * sum((steps - t) / steps for t, rows in enumerate(batches) if 0 in rows))
    dominates(law, outcomes)
    close_profile(law, outcomes)
    # never farther than the bound for any order
    assert law.value <= replace(taken, fresh=False).sensitivity(R).value * (
        1 + 2 / 512 * taken.hits
    )


def test_which_runs_have_which_sensitivity():
    assert path(4, 1, 4, "shuffle").sensitivity(R).formula == "sgd-epochs"
    assert (
        path(4, 1, 4, "shuffle", averaged=True, fresh=False).sensitivity(R).formula == "sgd-epochs"
    )
    assert path(5, 2, 4, "shuffle", averaged=True).sensitivity(R).formula == "sgd-epochs"
    assert path(4, 1, 4, "fixed", averaged=True).sensitivity(R).formula == "sgd-epochs"
    expanding = path(4, 1, 4, "shuffle", averaged=True, expansion=0.1)
    assert expanding.sensitivity(R).formula == "sgd-epochs"


def test_averaged_short_batches_are_not_uniform():
    """A record is in the short last batch less often: a uniform law of places would be too small."""
    n, batch, steps = 3, 2, 2
    a = 2 * 0.3 * 0.7 / batch
    outcomes = []
    for order in itertools.permutations(range(n)):
        for t, rows in enumerate(batches_of([order], batch)):
            outcomes += [a * (steps - t) / steps] * (0 in rows)
    uniform = np.mean([a, a / 2])
    assert np.mean(outcomes) > 1.1 * uniform
    assert path(n, batch, steps, "shuffle", averaged=True).sensitivity(R).value >= max(outcomes)


# --- certificates ---------------------------------------------------------------------------

CERTIFIED = {
    "epochs": path(4, 1, 8, "shuffle"),
    "decreasing": path(4, 1, 8, "shuffle", ridge=0.5, decreasing=True),
    "sampled": path(4, 2, 8, "replacement"),
    "positions": path(4, 2, 8, "replacement", averaged=True),
    "shuffled": path(4, 2, 8, "shuffle", averaged=True),
    "problems": path(4, 2, 8, "shuffle", problems=3),
}


@pytest.mark.parametrize("name", CERTIFIED)
def test_sensitivities_are_read_again(name):
    for relation in (R, Z):
        stated = CERTIFIED[name].sensitivity(relation)
        again = sensitivity_from_dict(stated.to_dict())
        assert again == stated and again.value == stated.value


CHANGES = [
    {"gradient": 7.0},
    {"gradient": -7.0},
    {"gradient": math.nan},
    {"step": math.inf},
    {"problems": 9.0},
    {"problems": 0.5},
    {"n_rows": 0.0},
    {"batch": 9.0},
    {"steps": 8.5},
    {"expansion": 0.3},
]
MORE_HITS = {
    "epochs": {"steps": 9.0},
    "decreasing": {"n_rows": 3.0},
    "sampled": {"steps": 9.0},
    "positions": {"steps": 9.0},
    "shuffled": {"steps": 9.0},
    "problems": {"steps": 9.0},
}


@pytest.mark.parametrize("name", CERTIFIED)
def test_changed_certificates_are_refused(name):
    stated = CERTIFIED[name].sensitivity(R).to_dict()
    for change in (*CHANGES, MORE_HITS[name]):
        changed = {**stated, "parameters": {**stated["parameters"], **change}}
        with pytest.raises(CertificateError):
            sensitivity_from_dict(changed)


@pytest.mark.parametrize("name", CERTIFIED)
def test_smaller_values_are_refused(name):
    stated = CERTIFIED[name].sensitivity(R).to_dict()
    with pytest.raises(CertificateError, match="but the certificate claims"):
        sensitivity_from_dict({**stated, "value": stated["value"] * (1 - 1e-9)})
    assert sensitivity_from_dict({**stated, "neighbours": "zero-out"}).value < stated["value"]


@pytest.mark.parametrize(
    "taken",
    [
        path(5, 2, 6, "shuffle", averaged=True),
        path(4, 2, 6, "shuffle", averaged=False),
        path(4, 2, 6, "shuffle", averaged=True, expansion=1e-6),
    ],
)
def test_the_law_of_permutations_is_not_for_other_runs(taken):
    """Short batches, last iterates and steps that expand do not follow it."""
    stated = taken.sensitivity(R).to_dict()
    assert stated["formula"] == "sgd-epochs"
    with pytest.raises(CertificateError):
        sensitivity_from_dict({**stated, "formula": "sgd-shuffled", "value": 10 * stated["value"]})


# --- known numbers --------------------------------------------------------------------------


def noise_of(sensitivity, epsilon, delta):
    cls = MixtureGaussian if isinstance(sensitivity, RandomSensitivity) else Gaussian
    found = cls.calibrate(sensitivity, Budget(epsilon, delta), dimension=1)
    return found.sigma * found.grid


def exact_noise(a, weights, epsilon, delta):
    """Return the root of E G(eps; a k / sigma) = delta, with weights by k."""

    def excess(log_sigma):
        sigma = math.exp(log_sigma)
        return float(weights @ gauss(epsilon, a * np.arange(len(weights)) / sigma)) - delta

    return math.exp(brentq(excess, math.log(a) - 3, math.log(a) + 9, xtol=1e-12))


@pytest.mark.parametrize(
    ("n", "T", "eta", "kappa", "delta", "known"),
    [
        (10**3, 10**3, 0.125, 1.0, 1e-5, (28.586, 8.544, 3.1204, 0.93266)),
        (10**3, 10**3, 1e-3, 1.0, 1e-5, (0.042611, 0.012736, 0.024963, 0.007461)),
        (10**4, 10**4, 1e-4, 1.0, 1e-6, (0.00545, 0.001442, 0.003193, 0.000845)),
        (10**4, 5 * 10**4, 0.01, math.sqrt(2), 1e-6, (26.514, 14.024, 1.1296, 0.59746)),
    ],
)
def test_noise_of_least_squares_and_huber(n, T, eta, kappa, delta, known):
    found = []
    for loss in (Squared(), Huber(1.0)):
        for order in ("replacement", "shuffle"):
            plan = OutputSGD(loss, n, 1, kappa, 1.0, 1, T, order, step=eta, fresh=True)
            found.append(noise_of(plan.sensitivity(R), 1.0, delta))
            a = 2 * eta * plan.gradient
            law = binom.pmf(np.arange(60), T, 1 / n)
            if order == "shuffle":
                law = np.eye(60)[T // n]
            assert found[-1] == pytest.approx(exact_noise(a, law, 1.0, delta), rel=1e-5)
            assert found[-1] >= exact_noise(a, law, 1.0, delta) * (1 - 1e-9)
    for value, stated in zip(found, known, strict=True):
        assert value == pytest.approx(stated, rel=1e-3)


@pytest.mark.parametrize(
    ("alpha", "L", "known"),
    [(1.0, 1.0, (0.3193, 0.0845)), (0.5, 1.0, (0.3199, 0.0854)), (0.0, 2.0, (8.312, 8.449))],
)
def test_noise_of_holder_losses(alpha, L, known):
    """(1, 1e-6), n = T = 10^4, step 0.01, G = 1."""
    n, eta = 10**4, 0.01
    expansion = 0.0
    if alpha < 1:
        expansion = (1 - alpha) / (1 + alpha) * (2**-alpha * L * eta) ** (2 / (1 - alpha))
    for order, stated in zip(("replacement", "shuffle"), known, strict=True):
        taken = Path(n, 1, n, order, gradient=1.0, step=eta, expansion=expansion, fresh=True)
        assert noise_of(taken.sensitivity(R), 1.0, 1e-6) == pytest.approx(stated, rel=1e-3)


def test_expansion_is_that_of_the_loss():
    for loss in (Absolute(), Hinge(), PowerHinge(1.5), PowerAbsolute(1.25)):
        plan = plan_of(loss, (4, 1, 4, {}), share=0.2)
        alpha, L = loss.holder(1.0)
        exact = (1 - alpha) / (1 + alpha) * (2**-alpha * L * plan.eta) ** (2 / (1 - alpha))
        assert exact <= plan.expansion <= exact * (1 + 1e-6) + 1e-14


# --- refusals --------------------------------------------------------------------------------------


def test_a_ridge_needs_steps_that_shrink():
    with pytest.raises(ParameterError, match="at most 1/ridge"):
        Path(2, 1, 20, "fixed", gradient=1.0, step=2.0, ridge=1.0).sensitivity(
            Neighbours.REPLACE_ONE
        )
    tiny = Path(10, 1, 20, "fixed", gradient=1.0, step=0.1, ridge=5e-324).sensitivity(
        Neighbours.REPLACE_ONE
    )
    assert tiny.value == pytest.approx(2 * 0.1 * 2)


@pytest.mark.parametrize("order", ["fixed", "shuffle", "replacement"])
def test_places_of_a_private_number_of_rows_are_blanked(order):
    path = Path(10, 2, 20, order, gradient=1.0, step=0.1)
    removed, blanked = map(path.sensitivity, (Neighbours.ADD_REMOVE, Neighbours.ZERO_OUT))
    assert removed.value == blanked.value and removed.neighbours is Neighbours.ADD_REMOVE


@pytest.mark.parametrize(
    "change",
    [{"steps": 1e13}, {"n_rows": math.nan}, {"n_rows": "x"}, {"step": 1e300, "ridge": 1.0}],
)
def test_certificates_of_impossible_runs_are_refused(change):
    for path in (
        Path(10, 1, 20, "replacement", gradient=1.0, step=0.1, averaged=True),
        Path(10, 1, 20, "fixed", gradient=1.0, step=0.1),
    ):
        data = path.sensitivity(Neighbours.REPLACE_ONE).to_dict()
        data["parameters"] |= change
        with pytest.raises(CertificateError):
            sensitivity_from_dict(data)


@pytest.mark.parametrize("steps", [10**6, 10**9])
def test_long_runs_have_laws_too(steps):
    for n, averaged in ((steps // 100, True), (steps // 10_000, True), (steps // 10_000, False)):
        path = Path(n, 1, steps, "replacement", gradient=1.0, step=1.0, averaged=averaged)
        law = path.sensitivity(Neighbours.REPLACE_ONE)
        assert len(law.values) <= 512
        assert math.fsum(law.probabilities) + law.tail == pytest.approx(1.0)
        mean = math.fsum(v * p for v, p in zip(law.values, law.probabilities, strict=True))
        expected = 2 * steps / n / (2 if averaged and steps // n == 100 else 1)
        assert 1.0 <= mean / expected < 1.02
    with pytest.raises(ParameterError, match="used too often"):
        Path(1, 1, 10**8, "replacement", gradient=1.0, step=1.0).sensitivity(Neighbours.ZERO_OUT)


def test_what_is_cut_off_is_counted(monkeypatch):
    monkeypatch.setattr(sgd, "_CUT", 1e-3)
    for averaged in (False, True):
        law = Path(10, 1, 30, "replacement", 1.0, 0.1, averaged=averaged).sensitivity(
            Neighbours.REPLACE_ONE
        )
        assert law.tail >= 1e-3 and max(law.values) < 30 * 0.2
