"""The rivals of ``benchmarks/rivals.py``: their accounting, their clipping, and the tables."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant

from dpkernel.privacy.profiles import gaussian_mu

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import rival_methods
import rival_network
import rival_tables
import rival_trees
import rivals


@pytest.mark.parametrize(("share", "steps"), [(0.25, 40), (0.1, 100)])
def test_the_noise_of_the_network_is_what_dp_accounting_asks_for(share, steps):
    sigma = rival_network.noise_multiplier(1.0, 1e-6, share, steps)

    def epsilon(value):
        loss = privacy_loss_distribution.from_gaussian_mechanism(
            value, sampling_prob=share, value_discretization_interval=1e-3
        )
        return loss.self_compose(steps).get_epsilon_for_delta(1e-6)

    assert epsilon(sigma) <= 1 < epsilon(0.995 * sigma)
    moments = RdpAccountant().compose(PoissonSampledDpEvent(share, GaussianDpEvent(sigma)), steps)
    assert 1 <= moments.get_epsilon(1e-6) < 1.3  # Rényi accounting is valid and looser


def test_with_all_rows_in_every_step_the_noise_is_that_of_one_gaussian():
    sigma = rival_network.noise_multiplier(1.0, 1e-6, 1.0, 30)
    assert sigma == pytest.approx(math.sqrt(30) / gaussian_mu(1.0, 1e-6), rel=5e-3)
    assert sigma >= math.sqrt(30) / gaussian_mu(1.0, 1e-6)
    assert rival_methods.gaussian_mu(1.0) == pytest.approx(gaussian_mu(1.0, 1e-6), rel=1e-6)


def test_the_gradient_of_a_row_is_right_and_clipped():
    draws = np.random.default_rng(0)
    net = rival_network.Network(3, 4, 2, draws)
    net.weights = [draws.normal(size=w.shape) for w in net.weights]
    X = draws.uniform(-1, 1, (6, 3))
    away = np.array([[0.01], [3.0]] * 3) * draws.normal(size=(6, 2))  # short and long gradients
    targets = net.layers(X)[-1] + away

    def loss(row):
        return float(np.sum((net.layers(X[[row]])[-1] - targets[row]) ** 2) / 2)

    def slopes(row):
        values = net.layers(X[[row]])
        return net.clipped_sum(values, values[-1] - targets[[row]])

    for row in range(6):
        found = np.concatenate([part.ravel() for part in slopes(row)])
        wanted = []
        for matrix in net.weights:
            for place in np.ndindex(matrix.shape):
                kept = matrix[place]
                ends = []
                for side in (1e-5, -1e-5):
                    matrix[place] = kept + side
                    ends.append(loss(row))
                matrix[place] = kept
                wanted.append((ends[0] - ends[1]) / 2e-5)
        length = np.linalg.norm(wanted)
        np.testing.assert_allclose(found, np.array(wanted) / max(1.0, length), atol=1e-6)
        assert np.linalg.norm(found) <= 1 + 1e-9


def test_one_record_moves_the_sum_of_gradients_by_at_most_one():
    draws = np.random.default_rng(1)
    net = rival_network.Network(5, 8, 3, draws)
    net.weights = [5 * draws.normal(size=w.shape) for w in net.weights]
    X, targets = draws.uniform(-1, 1, (20, 5)), np.eye(3)[draws.integers(3, size=20)]

    def total(rows):
        values = net.layers(X[rows])
        parts = net.clipped_sum(values, rival_network.softmax(values[-1]) - targets[rows])
        return np.concatenate([part.ravel() for part in parts])

    everything = total(np.arange(20))
    for row in range(20):
        moved = np.linalg.norm(everything - total(np.delete(np.arange(20), row)))
        assert moved <= 1 + 1e-9


def tiny(classes):
    draws = np.random.default_rng(2)
    X = draws.uniform(-1, 1, (400, 2))
    if classes:
        return X, np.eye(2)[(X[:, 0] * X[:, 1] > 0).astype(int)]
    return X, np.sin(2 * X[:, :1]) / 2


@pytest.mark.parametrize("classes", [False, True])
def test_both_rivals_learn_when_there_is_hardly_any_noise(classes):
    X, targets = tiny(classes)
    schedule = rival_network.Schedule(16, 150, 0.05, 0.5)
    net = rival_network.train(X, targets, classes=classes, schedule=schedule, sigma=0.01, seed=0)
    forest = rival_trees.Forest(100, 4, 0.3)
    grown = rival_trees.predict_boosted(
        X, targets, X, classes=classes, forest=forest, sigma=1e-3, seed=0
    )
    for scores in (net.layers(X.astype(np.float32))[-1], grown):
        if classes:
            assert np.mean(scores.argmax(axis=1) != targets.argmax(axis=1)) < 0.15
        else:
            assert np.mean((scores - targets) ** 2) < 0.1 * targets.var()


@pytest.mark.parametrize("classes", [False, True])
def test_one_record_moves_the_leaves_of_a_tree_by_at_most_what_the_noise_covers(
    classes, monkeypatch
):
    X, targets = tiny(classes)
    forest, sigma = rival_trees.Forest(1, 3, 1.0), 10.0
    seen = []
    wrapped = np.random.default_rng

    class Draws:
        def __init__(self, seed):
            self.inner = wrapped(seed)

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def normal(self, size):
            return Silent(np.zeros(size))

    class Silent(np.ndarray):
        def __new__(cls, zeros):
            return zeros.view(cls)

        def __rmul__(self, scale):
            seen.append(scale)
            return np.zeros(self.shape)

    monkeypatch.setattr(np.random, "default_rng", Draws)
    sums = []
    bincount = np.bincount
    monkeypatch.setattr(np, "bincount", lambda *a, **k: sums.append(bincount(*a, **k)) or sums[-1])

    def leaves(rows):
        sums.clear()
        seen.clear()
        rival_trees.predict_boosted(
            X[rows], targets[rows], X[:1], classes=classes, forest=forest, sigma=sigma, seed=0
        )
        *gradients, counts = (np.array(part, float) for part in sums)
        return np.concatenate([np.ravel(gradients) / seen[0], counts / seen[1]])

    everything = leaves(np.arange(400))
    worst = max(
        np.linalg.norm(everything - leaves(np.delete(np.arange(400), row))) for row in range(40)
    )
    assert 0.5 / sigma < worst <= (1 + 1e-9) / sigma


def test_runs_are_merged_line_by_line_and_compared_split_by_split(tmp_path):
    path = tmp_path / "rivals_splits.csv"

    def line(method, setting, by_rule, split, error):
        return ["power", "1", method, str(setting), str(by_rule), str(split), str(error), "0.5"]

    first = [line("dpkernel", 0, 1, s, e) for s, e in enumerate((0.10, 0.12, 0.30))]
    rivals.write(path, "# command: a\n# commit: 1\n", first, append=False)
    second = [line("net", 0, 1, s, e) for s, e in enumerate((0.11, 0.14, 0.33))]
    second += [line("net", 1, 0, s, e) for s, e in enumerate((0.09, 0.10, 0.27))]
    second.append(line("dpkernel", 0, 1, 2, 0.20))
    rivals.write(path, "# command: b\n# commit: 2\n", second, append=True)
    assert rival_tables.notes(path).count("# command") == 2
    cells = rival_tables.gathered(path)
    ours = cells["power", 1.0, "dpkernel"]
    assert ours.mean == pytest.approx(0.14)
    gaps = np.array([0.01, 0.02, 0.13])
    wanted = gaps.mean() / (gaps.std(ddof=1) / math.sqrt(3))
    assert rival_tables.difference(cells, ("power", 1.0, "net")) == pytest.approx(wanted)
    assert cells["power", 1.0, "net" + rival_tables.GIFT].mean == pytest.approx(0.46 / 3)
    rival_tables.tabulate(path, regression=("power",), classes=())
    assert rival_tables.rows(tmp_path / "rivals_count.csv")[1:] == [
        ["net", "1", "0", "1", "0"],
        ["net" + rival_tables.GIFT, "1", "0", "1", "0"],
    ]
