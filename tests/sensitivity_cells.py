"""Adversarial searches for every sensitivity formula, through the code that the formula is used for.

Each search yields (how far the query moved, the claimed sensitivity) for neighbouring data sets in
which the other records are free: blank, equal, opposite, duplicates, at corners, anywhere. A
blanked record adds nothing: the real sums are taken without it.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from dpkernel.data.domain import Interval
from dpkernel.data.table_files.schema import STATES
from dpkernel.estimators.cell_counts import CellCounts
from dpkernel.foundations.types import Budget, Neighbours
from dpkernel.models.losses import Absolute, Huber, Logistic, Squared
from dpkernel.preprocessing.grids import Cells
from dpkernel.preprocessing.search import GRID, pair_sums
from dpkernel.privacy.sensitivity import (
    RandomSensitivity,
    bounded_sum,
    column_histograms,
    column_moments,
    declared,
    erm_bounded,
    erm_prediction,
    histogram,
    loss_gradient,
    unit_shares,
)
from dpkernel.privacy.statistics import GramLayout, GramSum
from dpkernel.privacy.unit_statistics import UnitGramLayout, UnitGramSum
from dpkernel.selection.losses import LOSSES, loss_sensitivity, row_loss
from dpkernel.selection.score import _Area, _error_and_target, _RSquared
from dpkernel.solvers.objective_perturbation import BlockRecords
from dpkernel.solvers.output_perturbation import Risk, minimise_risk
from dpkernel.solvers.sgd_gradient import Block, GradientSGD
from dpkernel.solvers.sgd_output import OutputSGD

REPLACE, ZERO, ADD = Neighbours.REPLACE_ONE, Neighbours.ZERO_OUT, Neighbours.ADD_REMOVE
BUDGET = Budget(1.0, 1e-3)
HOSTILE = (0.0, 1.0, -1.0, 0.5, 3.0, -1e9, 1e300, np.inf, -np.inf)


def records(rng, width, hostile=True):
    """Return rows that a formula's author had in mind, and those that nobody had."""
    rows = [*np.eye(width), *-np.eye(width), np.ones(width) / math.sqrt(width), np.zeros(width)]
    signs = np.where(np.arange(width) % 2, 1.0, -1.0)
    rows += [np.ones(width), signs, -np.ones(width), np.eye(width)[0] + np.eye(width)[-1]]
    rows += list(rng.normal(size=(3, width)))
    if hostile:
        rows += [np.resize(HOSTILE[i:], width) for i in range(len(HOSTILE))]
        rows.append(np.full(width, np.nan))
    return np.array(rows)


def pairs(every, relation):
    """Yield the index of a record, and of what stands in its place (None for nothing)."""
    if relation is REPLACE:
        yield from itertools.permutations(range(len(every)), 2)
    else:
        yield from ((i, None) for i in range(len(every)))


def moved(of_row, relation, others):
    """Yield distances between the query on neighbouring data sets, given what each record makes."""
    for i, j in pairs(of_row, relation):
        for rest in others:
            yield np.linalg.norm(
                np.ravel((rest + of_row[i]) - (rest if j is None else rest + of_row[j])).astype(
                    float
                )
            )


def _declared(relation, claim):
    """The caller vouches for it: what is declared is what is used."""
    yield 2.5, declared(2.5, claim).value


def _augmented_gram(relation, claim):
    rng = np.random.default_rng(1)
    for constant, targets in ((0, 1), (13, 1), (13, 3)):
        layout = GramLayout(3, targets, 1.0, 64, 20, constant, claim)
        rows = records(rng, 3 + targets)
        z, y = rows[:, :3], np.nan_to_num(rows[:, 3:], posinf=9, neginf=-9)
        each = []
        for i in range(len(rows)):
            each.append(GramSum(layout).update(z[i : i + 1], y[i : i + 1])._sum)
        # sums of integers are exact: one record's part is the same among any others
        together = GramSum(layout).update(z, y)._sum
        np.testing.assert_array_equal(together, sum(each))
        for distance in moved(each, relation, [0 * together, together]):
            yield distance, layout.sensitivity.value


def _unit_gram(relation, claim):
    """A unit has one row or many; its rows may come in any blocks, beside other units."""
    rng = np.random.default_rng(2)
    layout = UnitGramLayout(2, 1, 1.0, claim, 6, 1e-12)
    rows = records(rng, 3)
    rows = np.nan_to_num(rows, nan=0.0, posinf=1e290, neginf=-1e290)
    units = [rows[i : i + 1] for i in range(len(rows))]
    units += [rows[[i, j]] for i, j in ((0, 3), (0, 1), (2, 5))] + [rows[:7], rows[[0] * 4]]
    others = [[], [units[0]] * 3, [units[3], units[1]], units[-3:]]

    def total(every):
        found = UnitGramSum(layout)
        for unit in every:
            found.update(unit[:, :2], unit[:, 2:], np.full(len(unit), 1 / len(unit)))
        return found._total()

    chosen = [*range(12), *range(len(units) - 5, len(units))]
    for i in chosen:
        for j in chosen if relation is REPLACE else [None]:
            for rest in others:
                one = total([*rest, units[i]])
                two = total(rest if j is None else [*rest, units[j]])
                claimed = layout.sensitivity.value + 2 * layout.rounding
                yield np.linalg.norm(one - two), claimed


def _record_norm(relation, claim):
    """What a sketch mixes: the quantised records themselves."""
    rng = np.random.default_rng(3)
    layout = GramLayout(3, 2, 1.0, 64, 20, 13, claim)
    rows = records(rng, 5)
    quantised = layout.quantise(rows[:, :3], np.nan_to_num(rows[:, 3:], posinf=9, neginf=-9))
    for row in quantised:
        yield np.linalg.norm(row), layout.record_norm.value


def _loss_gradient(relation, claim):
    """Sums over blocks as the solver takes them, at any beta."""
    rng = np.random.default_rng(4)
    for loss in (Huber(0.3), Logistic()):
        rows = records(rng, 2, hostile=False)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0)
        y = np.where(np.arange(len(rows)) % 2, 1.0, -1.0)
        rows, y = np.concatenate([rows, rows]), np.concatenate([y, -y])
        for beta in (np.zeros(2), np.array([0.3, -0.2]), np.array([40.0, 0.0])):
            each = []
            for i in range(len(rows)):
                block = rows[i : i + 1], y[i : i + 1], None
                each.append(BlockRecords(lambda b=block: [b], loss).sums(beta)[0])
            claimed = loss_gradient(claim, slope=loss.lipschitz, row=1.0).value
            for distance in moved(each, relation, [np.zeros(2), sum(each)]):
                yield distance * (1 - 1e-13), claimed  # the sums above are rounded


class _Fixed:
    """Predicts what it is told, also what no sensible model would."""

    classes_ = np.array([0, 1])

    def __init__(self, values):
        self.values = values

    def predict(self, X):
        return self.values[: len(X)]

    def predict_proba(self, X):
        chance = np.clip(np.nan_to_num(self.values[: len(X)]), 0, 1)
        return np.column_stack([1 - chance, chance])


def _bounded_sum(relation, claim):
    """Sums of clipped losses, those of R^2, and sums of clipped gradients."""
    rng = np.random.default_rng(5)
    target = Interval(-2.0, 3.0)
    values = np.array([*HOSTILE, np.nan, *rng.normal(size=4)])
    grid = np.array(list(itertools.product(values, values)))
    y, predicted = grid[:, 0], grid[:, 1]
    for name in LOSSES:
        labels = (np.nan_to_num(y) > 0).astype(int)
        loss = row_loss(name, target=target)
        truth = labels if name in ("accuracy", "log_loss") else y
        model = _Fixed(
            (np.nan_to_num(predicted) > 0).astype(int) if name == "accuracy" else predicted
        )
        counts = loss.counts(model, np.zeros((len(truth), 1)), truth)
        ends = np.array([counts.min(), counts.max()])
        for norm in ("l2", "score"):
            for distance in moved(ends[:, None], relation, [np.zeros(1), counts.sum()]):
                yield distance, loss_sensitivity(claim, norm).value
    X = np.zeros((1, 1))
    each, found = [], None
    for own, guess in grid:
        own = float(np.nan_to_num(own, posinf=1e300, neginf=-1e300))
        loss = row_loss("mse", target=target)
        sums = _error_and_target(loss, target, _Fixed([guess]), X, np.array([own]))
        found = _RSquared(sums, 1.0, claim, BUDGET)
        each.append(found.exact)
    each = list(np.unique(np.array(each), axis=0))
    for distance in moved(each, relation, [np.zeros(3)]):
        yield distance, found.mechanism.sensitivity.value
    yield from _gradients(relation, claim, rng)


def _gradients(relation, claim, rng):
    for loss, problems in ((Huber(0.5), 1), (Logistic(), 1), (Squared(), 2)):
        plan = GradientSGD(loss, 2, 1.0, 0.7, 4, 1, 0.1, problems=problems)
        rows = records(rng, 2)
        with np.errstate(all="ignore"):
            z, caps = plan.rows(rows)
        y = np.where(np.arange(len(rows)) % 2, 1.0, -1.0)[:, None] * np.ones(problems)
        w = rng.normal(size=(problems, 2)) * 3
        block = Block(z, y, np.ones(len(rows)), caps)
        each = [block.sums(plan, w, np.array([i])).ravel() for i in range(len(rows))]
        claimed = bounded_sum(claim, bound=float(plan.clip_steps)).value
        for distance in moved(each, relation, [0 * each[0], sum(each)]):
            yield distance, claimed


def _histogram(relation, claim):
    """Cells of scores for both classes, as an AUC counts them."""
    cells, labels = np.array([0, 1, 4, 4, 2]), np.array([0, 1, 0, 1, 1])
    for i in range(5):
        for cell, label in itertools.product(range(5), (0, 1)):
            other = cells.copy(), labels.copy()
            other[0][i], other[1][i] = cell, label
            keep = np.arange(5) != i
            two = other if relation is REPLACE else (cells[keep], labels[keep])
            tables = (cells, labels), two
            one, two = (_Area(5 * label + cell, 5, claim, BUDGET) for cell, label in tables)
            yield np.linalg.norm(one.exact - two.exact), one.mechanism.sensitivity.value
    assert one.mechanism.sensitivity == histogram(claim)


def _column_histograms(relation, claim):
    rng = np.random.default_rng(6)
    rows = records(rng, 3)
    for columns, clip in ((1, False), (3, False), (3, True)):
        cells = Cells(tuple(np.array([-1.0, 0.0, 0.7, 2.0]) for _ in range(columns)))
        each = [cells.count(row[None, :columns], clip=clip)._values for row in rows]
        for distance in moved(each, relation, [0 * each[0], sum(each)]):
            yield distance, column_histograms(claim, columns=columns).value


def _unit_shares(relation, claim):
    """Units with any rows: what the shares of the cells of their rows make of them."""
    rng = np.random.default_rng(8)
    for columns in (1, 3):
        units = [rng.integers(0, len(STATES), (m, columns)) for m in (1, 1, 2, 3, 3, 7, 50)]
        units += [np.full((m, columns), state) for m in (1, 2) for state in range(len(STATES))]
        names = [str(j) for j in range(columns)]
        each = [CellCounts.of_units(names, rows, np.zeros(len(rows))) for rows in units]
        for distance in moved([one.counts for one in each], relation, [0, each[0].counts]):
            yield distance, unit_shares(claim, columns=columns, parts=each[0].parts).value


def _column_moments(relation, claim):
    rng = np.random.default_rng(7)
    clip = Interval(-1.0, 2.0)
    values = np.concatenate([np.linspace(-1, 2, 61), [np.nan, 1e300, -np.inf], rng.normal(size=9)])
    each = [pair_sums(np.array([value]), clip) for value in values]
    for columns in (1, 4):
        claimed = column_moments(claim, columns=columns, bound=GRID).value
        for distance in moved(each, relation, [np.zeros(2)]):
            yield distance * math.sqrt(columns), claimed


def _tables(rng, relation, labels):
    """Yield tables of rows of norm <= 1 and targets in [-1, 1], and the neighbours of each."""
    for background in ("none", "corner", "opposite", "duplicates", "blank", "free"):
        n = {"none": 0, "free": 4}.get(background, 5)
        own = rng.normal(size=2)
        own = own / np.linalg.norm(own)
        rows = np.stack([own] * n) if n else np.zeros((0, 2))
        y = np.ones(n)
        if background == "opposite":
            y = -y
        elif background == "blank":
            rows = 0 * rows
        elif background == "corner":
            rows = np.stack([np.roll(own, 1) * [-1, 1]] * n)
        elif background == "free":
            rows = rng.normal(size=(n, 2))
            rows = rows / np.maximum(1, np.linalg.norm(rows, axis=1, keepdims=True))
            y = np.sign(rng.normal(size=n)) if labels else rng.uniform(-1, 1, n)
        one = np.vstack([rows, [own]]), np.append(y, 1.0)
        others = [(rows, y)]
        if relation is REPLACE:
            turned = np.roll(own, 1) * [-1, 1]
            others = [
                (np.vstack([rows, [record]]), np.append(y, target))
                for record, target in ((own, 1.0), (-own, 1.0), (own, -1.0), (turned, 1.0))
            ]
        yield one, others


def _minimisers(relation, claim, losses, ridges=(0.3, 5.0)):
    rng = np.random.default_rng(8)
    for loss, ridge in itertools.product(losses, ridges):
        for number, (one, others) in enumerate(_tables(rng, relation, loss.labels)):
            net = 2.5 if loss.lipschitz < np.inf and not loss.labels and number % 2 else 0.0
            norm = 1.3 if loss.lipschitz < np.inf and number % 3 == 1 else 2.0
            risk = Risk(loss, len(one[1]), 2, 1.0, ridge, l1=net, norm=norm)

            def solved(table, risk=risk):
                block = (*table, None)
                return minimise_risk(lambda chosen: BlockRecords(lambda: [block], chosen), risk)

            here = solved(one)
            for other in others:
                yield risk, here, solved(other)


def _erm_lipschitz(relation, claim):
    for risk, one, two in _minimisers(relation, claim, (Huber(0.2), Logistic(), Absolute())):
        found = risk.sensitivity(claim)
        yield np.linalg.norm(one - two), found.value


def _erm_bounded(relation, claim):
    for risk, one, two in _minimisers(relation, claim, (Huber(0.2), Logistic()), (0.2, 1.0)):
        problem = risk.problem
        found = erm_bounded(
            claim, bound=risk.largest_loss, strength=risk.ridge, tolerance=problem.tolerance
        )
        yield np.linalg.norm(one - two), found.value


def _erm_ridge(relation, claim):
    for risk, one, two in _minimisers(relation, claim, (Squared(),), (0.05, 0.5, 5.0)):
        found = risk.sensitivity(claim)
        assert found.formula == "erm-ridge"
        yield np.linalg.norm(one - two), found.value


def _erm_prediction(relation, claim):
    """One value of the function at the point where the two differ most."""
    for risk, one, two in _minimisers(relation, claim, (Huber(0.2), Squared()), (0.5,)):
        apart = one - two
        point = apart / max(np.linalg.norm(apart), 1e-300)
        found = erm_prediction(risk.sensitivity(claim), reach=1.0)
        yield abs(float(point @ apart)), found.value


def _paths(relation, plans, orders):
    """Yield a plan with the outputs on neighbouring tables, for each order of the rows."""
    rng = np.random.default_rng(9)
    for plan in plans:
        n = plan.n_rows
        far = plan.target_bound
        tables = []
        for kind in ("blank", "same", "opposite", "kink", "free"):
            z = {"blank": np.zeros((n, 1)), "free": rng.uniform(-1, 1, (n, 1))}.get(
                kind, np.ones((n, 1))
            )
            y = {"opposite": np.full(n, -far), "kink": np.full(n, 1e-3)}.get(kind, np.full(n, far))
            if kind == "free":
                y = rng.uniform(-far, far, n)
            tables.append((z, y))
        for z, y in tables:
            for place in range(n):
                rows, wanted, weights = z.copy(), y.copy(), np.ones(n)
                rows[place], wanted[place] = 1.0, far
                for order in orders(plan):

                    def run(targets, weights, rows=rows, order=order, plan=plan):
                        return plan.run(
                            iter([(rows, np.asarray(part), targets, weights)]) for part in order
                        )

                    one = run(wanted, weights)
                    if relation is REPLACE:
                        changed = wanted.copy()
                        changed[place] = -far
                        two = run(changed, weights)
                    else:
                        blank = weights.copy()
                        blank[place] = 0.0
                        two = run(wanted, blank)
                    yield plan, (id(z), place), float(np.linalg.norm(one - two))


def _plan(loss, n_rows, batch, n_steps, **more):
    numbers = {"n_coordinates": 1, "row_bound": 1.0, "target_bound": 5.0, "order": "fixed", **more}
    return OutputSGD(loss, n_rows=n_rows, batch=batch, n_steps=n_steps, **numbers)


def _sgd_epochs(relation, claim):
    plans = [
        _plan(Huber(0.3), 3, 1, 7, step=0.2),
        _plan(Huber(0.3), 5, 2, 6, step=0.2),
        _plan(Huber(0.3), 4, 2, 6, step=0.2, averaged=True),
        _plan(Huber(0.3), 4, 1, 8, ridge=0.5),
        _plan(Huber(0.3), 4, 1, 8, ridge=0.5, step=0.3),
        _plan(Absolute(), 3, 1, 6, step=0.2),
        _plan(Absolute(), 4, 2, 4, step=0.2),
        _plan(Huber(0.3), 5, 2, 4, step=0.2, drop_last=True),
    ]

    def orders(plan):
        rng = np.random.default_rng(10)
        yield [np.arange(plan.n_rows)] * plan.epochs
        yield [np.arange(plan.n_rows)[::-1]] * plan.epochs
        yield [rng.permutation(plan.n_rows) for _ in range(plan.epochs)]

    for plan, _, distance in _paths(relation, plans, orders):
        yield distance, plan.sensitivity(claim).value + 2 * plan.rounding


def _by_law(relation, claim, plans, orders):
    """Compare quantiles: the law must be at least as far at every level, for every record."""
    for plan in plans:
        law = plan.sensitivity(claim)
        assert isinstance(law, RandomSensitivity)
        steps = np.argsort(law.values)
        values = np.array(law.values)[steps]
        below = np.cumsum(np.array(law.probabilities)[steps])
        found = {}
        for _, key, distance in _paths(relation, [plan], orders):
            found.setdefault(key, []).append(distance)
        for distances in found.values():
            levels = (np.arange(len(distances)) + 0.5) / len(distances)
            wanted = values[np.minimum(np.searchsorted(below, levels), len(values) - 1)]
            for distance, value in zip(np.sort(distances), wanted, strict=True):
                if distance > 2 * plan.rounding + 1e-12:
                    yield distance, max(value, 1e-300) + 2 * plan.rounding


def _sgd_sampled(relation, claim):
    fresh = {"order": "replacement", "fresh": True, "step": 0.2}
    plans = [
        _plan(Huber(0.3), 2, 1, 5, **fresh),
        _plan(Huber(0.3), 3, 2, 3, **fresh),
        _plan(Huber(0.3), 2, 1, 4, averaged=True, **fresh),
    ]

    def orders(plan):
        batches = list(itertools.combinations(range(plan.n_rows), plan.batch))
        for every in itertools.product(batches, repeat=plan.n_steps):
            yield [np.concatenate(every)]

    yield from _by_law(relation, claim, plans, orders)


def _sgd_shuffled(relation, claim):
    plans = [
        _plan(Huber(0.3), 3, 1, 6, order="shuffle", fresh=True, averaged=True, step=0.2),
        _plan(Huber(0.3), 4, 2, 2, order="shuffle", fresh=True, averaged=True, step=0.2),
        _plan(Huber(0.3), 3, 1, 4, order="shuffle", fresh=True, averaged=True, step=0.2),
    ]

    def orders(plan):
        every = list(itertools.permutations(range(plan.n_rows)))
        for chosen in itertools.product(every, repeat=plan.epochs):
            yield [np.array(order) for order in chosen]

    yield from _by_law(relation, claim, plans, orders)


def furthest(search, relation, claim=None):
    """Return the largest ratio of a distance found to what was claimed."""
    worst = 0.0
    for distance, claimed in search(relation, relation if claim is None else claim):
        worst = max(worst, float(distance) / claimed)
    return worst


SEARCHES = {
    "declared": _declared,
    "augmented-gram": _augmented_gram,
    "unit-gram": _unit_gram,
    "record-norm": _record_norm,
    "loss-gradient": _loss_gradient,
    "bounded-sum": _bounded_sum,
    "histogram": _histogram,
    "column-histograms": _column_histograms,
    "unit-shares": _unit_shares,
    "column-moments": _column_moments,
    "erm-lipschitz": _erm_lipschitz,
    "erm-bounded": _erm_bounded,
    "erm-ridge": _erm_ridge,
    "erm-prediction": _erm_prediction,
    "sgd-epochs": _sgd_epochs,
    "sgd-sampled": _sgd_sampled,
    "sgd-shuffled": _sgd_shuffled,
}
