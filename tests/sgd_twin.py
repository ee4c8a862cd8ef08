"""A naive SGD in NumPy, many data sets at a time, and a search for the neighbours farthest apart.

Written apart from the compiled loop: batches are cut from the order as index lists, gradients are
formed record by record, and slopes are ``Loss.derivative``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from dpkernel.foundations.types import Neighbours


def batches_of(epochs, batch, drop_last=False):
    """Return the list of batches that one pass after another makes."""
    found = []
    for order in epochs:
        for start in range(0, len(order), batch):
            part = list(order[start : start + batch])
            if len(part) == batch or not drop_last:
                found.append(part)
    return found


@dataclass
class Trace:
    """Of all data sets together: the longest gradient of a record, the longest iterates."""

    gradient: float = 0.0
    norms: tuple[float, ...] = ()


def descend(
    loss, z, y, weights, batches, *, batch, step, ridge=0.0, decreasing=False, radius=inf,
    averaged=False, trace=None,
):  # fmt: skip
    """Return the output of every data set: z (sets, n, d), y and weights (sets, n).

    ``batches`` holds one list of rows a step, or one list of such lists a data set.
    """
    sets, _, d = z.shape
    each = np.arange(sets)
    shared = np.ndim(batches[0][0]) == 0
    plans = [batches] * sets if shared else batches
    w, total = np.zeros((sets, d)), np.zeros((sets, d))
    norms = []
    for t in range(len(plans[0])):
        g = np.zeros((sets, d))
        for place in range(len(plans[0][t])):
            i = np.array([plan[t][place] for plan in plans])
            row = z[each, i]
            slope = loss.derivative(y[each, i], np.sum(row * w, axis=1)) * weights[each, i]
            mine = slope[:, None] * row
            if trace is not None:
                trace.gradient = max(trace.gradient, float(np.linalg.norm(mine, axis=1).max()))
            g += mine
        eta = min(step, 1 / (ridge * (t + 1))) if decreasing else step
        w = w - eta * (g / batch + ridge * w)
        if radius < inf:
            w = w * np.minimum(1.0, radius / np.maximum(np.linalg.norm(w, axis=1), 1e-300))[:, None]
        norms.append(float(np.linalg.norm(w, axis=1).max()))
        total += w
    if trace is not None:
        old = trace.norms or (0.0,) * len(norms)
        trace.norms = tuple(max(a, b) for a, b in zip(old, norms, strict=True))
    return total / len(plans[0]) if averaged else w


def descend_one(plan, z, y, epochs, weights=None):
    """Return the output of an ``OutputSGD`` on one data set, by the naive loop."""
    weights = np.ones(len(y)) if weights is None else weights
    batches = batches_of(epochs, plan.batch, plan.drop_last)[: plan.n_steps]
    assert len(batches) == plan.n_steps
    return descend(
        plan.loss, np.asarray(z, float)[None], y[None], weights[None], batches, **options(plan)
    )[0]


def options(plan):
    """Return the numbers of an ``OutputSGD`` that the naive loop takes."""
    names = ("batch", "ridge", "decreasing", "radius", "averaged")
    return {"step": plan.eta, **{name: getattr(plan, name) for name in names}}


# --- neighbours that are far apart ----------------------------------------------------------


@dataclass
class Pairs:
    """Pairs of data sets that differ in row 0: n rows that both have, and the other row 0."""

    z: np.ndarray  # (sets, n + 1, d); the last row is the other row 0
    y: np.ndarray  # (sets, n + 1)

    def inside(self, kappa, c, labels):
        """Return the pairs moved into the domain."""
        norms = np.linalg.norm(self.z, axis=2, keepdims=True)
        z = self.z * np.minimum(1.0, kappa / np.maximum(norms, 1e-300))
        y = np.where(self.y >= 0, 1.0, -1.0) if labels else np.clip(self.y, -c, c)
        return Pairs(z, y)

    def take(self, chosen):
        return Pairs(self.z[chosen], self.y[chosen])

    def split(self, relation, stretch):
        """Return the tables of both sides as one stack, and their weights.

        A row that is ``stretch`` times as long has 1 / stretch^2 of the weight.
        """
        sets, _ = self.y.shape
        long, light = self.z * stretch[:, None], np.tile(stretch**-2.0, (sets, 1))
        sides = []
        for table in (long, self.y, light):
            other = table[:, :-1].copy()
            if relation is Neighbours.REPLACE_ONE:
                other[:, 0] = table[:, -1]
            sides.append(np.concatenate((table[:, :-1], other)))
        if relation is Neighbours.ZERO_OUT:
            sides[2][sets:, 0] = 0.0
        return sides


def random_pairs(rng, sets, n, d, kappa, c):
    """Return pairs with many rows and targets at the edge of the domain, and rows of 0."""
    z = rng.normal(size=(sets, n + 1, d)) * kappa
    axis = np.eye(d)[rng.integers(d, size=(sets, n + 1))] * kappa
    sign = rng.choice([-1.0, 1.0], size=(sets, n + 1))
    kind = rng.integers(4, size=(sets, n + 1))
    z = np.where((kind == 1)[..., None], axis * sign[..., None], z)
    z = np.where((kind == 2)[..., None], 0.0, z)
    y = np.where(rng.random((sets, n + 1)) < 0.6, 4 * sign * c, rng.normal(size=(sets, n + 1)) * c)
    # row 0 and its replacement: often the same direction with opposite targets
    alike = rng.random(sets) < 0.7
    z[alike, 0] = axis[alike, 0]
    z[alike, -1] = z[alike, 0] * rng.choice([-1.0, 1.0], size=(int(alike.sum()), 1))
    y[alike, -1] = -y[alike, 0]
    return Pairs(z, y)


def orders_of(rng, plan, sets):
    """Return the batches of every data set: row 0 first, last or anywhere in its epochs."""
    found = []
    for k in range(sets):
        epochs = []
        for e in range(plan.epochs):
            order = list(rng.permutation(plan.n_rows))
            where = k % 4 if k % 4 < 3 else min(e, 1)
            if where < 2:
                order.remove(0)
                order.insert(0 if where == 0 else len(order), 0)
            epochs.append(order)
        if plan.order == "fixed":
            epochs = epochs[:1] * plan.epochs
        found.append(batches_of(epochs, plan.batch, plan.drop_last)[: plan.n_steps])
    return found


def farthest(plan, relation, rng, *, bound=None, batches=None, stretched=False):
    """Return the largest ratio of distance to bound that random search and ascent find, and traces.

    ``bound`` is the stated sensitivity by default; ``batches`` are those of every data set;
    ``stretched`` rows are longer than the bound, with less weight.
    """
    sets, rounds, keep = 48, 4, 6
    labels, kappa, c = plan.loss.labels, plan.row_bound, plan.target_bound
    n, d = plan.n_rows, plan.n_coordinates
    pairs = random_pairs(rng, sets, n, d, kappa, c).inside(kappa, c, labels)
    paths = orders_of(rng, plan, sets) if batches is None else [batches] * sets
    stretch = rng.choice([1.0, 2.0, 5.0], n + 1) if stretched else np.ones(n + 1)
    trace, stated = Trace(), plan.sensitivity(relation).value if bound is None else bound

    def ratios(pairs, paths):
        z, y, weights = pairs.split(relation, stretch)
        out = descend(plan.loss, z, y, weights, paths + paths, trace=trace, **options(plan))
        apart = np.linalg.norm(out[: len(paths)] - out[len(paths) :], axis=1)
        return apart / stated

    found = ratios(pairs, paths)
    for turn in range(rounds):
        best = np.argsort(found)[::-1][:keep]
        pairs, paths, found = pairs.take(best), [paths[k] for k in best], found[best]
        copies = np.repeat(np.arange(keep), sets // keep)
        size = 0.5 * 0.4**turn
        moved = pairs.take(copies)
        some = rng.random(moved.y.shape) < 0.4
        moved = Pairs(
            moved.z + some[..., None] * rng.normal(size=moved.z.shape) * size * kappa,
            moved.y + some * rng.normal(size=moved.y.shape) * size * c,
        ).inside(kappa, c, labels)
        again = [paths[k] for k in copies]
        new = ratios(moved, again)
        pairs = Pairs(np.concatenate((pairs.z, moved.z)), np.concatenate((pairs.y, moved.y)))
        paths, found = paths + again, np.concatenate((found, new))
    return float(found.max()), trace


def sum_blocks(blocks, plan, w, rows):
    """Return the sum over blocks that follow one another; ``rows`` counts through all of them."""
    total, start = np.zeros(w.shape, np.int64), 0
    for block in blocks:
        stop = start + len(block.z)
        inside = None if rows is None else rows[(rows >= start) & (rows < stop)] - start
        total += block.sums(plan, w, inside)
        start = stop
    return total
