"""The torch pass against the NumPy pass, on the CPU; needs torch (make test-torch)."""

from __future__ import annotations

import numpy as np
import pytest

from dpkernel import Budget, Ledger, PrivateKernelRidge, SeededNoise
from dpkernel.domain import Domain, Interval
from dpkernel.errors import DataError
from dpkernel.features.base import FeatureMap
from dpkernel.statistics import GramLayout
from dpkernel.types import Neighbours

torch = pytest.importorskip("torch")

from dpkernel.estimators import torch_pass  # noqa: E402


@pytest.fixture
def data(rng):
    X = rng.uniform(-1, 1, (9000, 3))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=9000)


def build(**options):
    return PrivateKernelRidge(
        **{"bounds": (-1, 1), "y_bounds": (-2, 2), "noise": SeededNoise(4), **options}
    )


@pytest.mark.parametrize("kernel", ["gaussian", "linear"])
@pytest.mark.parametrize("bounds", [(-1, 1), (-0.3, 0.4)])
def test_tensors_give_the_model_of_arrays(data, kernel, bounds):
    X, y = data
    options = {"kernel": kernel, "bounds": bounds}
    model = build(**options).fit(torch.as_tensor(X), torch.as_tensor(y))
    np.testing.assert_allclose(model.predict(X), build(**options).fit(X, y).predict(X), atol=1e-5)


def test_several_targets(data):
    X, y = data
    pair = np.stack([y, -y], axis=1)
    model = build().fit(torch.as_tensor(X), torch.as_tensor(pair))
    np.testing.assert_allclose(model.predict(X), build().fit(X, pair).predict(X), atol=1e-5)


@pytest.mark.parametrize("folds", [2, 3])
def test_folds_are_those_of_arrays(data, folds, monkeypatch):
    """Blocks of 1000 rows are no multiple of 3: a fold is a matter of positions, not of blocks."""
    X, y = data
    order = np.argsort(y)
    X, y = X[order], y[order]
    monkeypatch.setattr(GramLayout, "block_rows", 1000)
    model = build(folds=folds).fit(torch.as_tensor(X), torch.as_tensor(y))
    reference = build(folds=folds).fit(X, y)
    np.testing.assert_allclose(model.predict(X), reference.predict(X), atol=1e-5)
    free, other = model.certificate_.free_statistics, reference.certificate_.free_statistics
    assert free["leading_features"] == other["leading_features"]
    assert free["held_out_mse"] == pytest.approx(other["held_out_mse"], rel=1e-4)


def test_quantised_records_equal_those_of_numpy(rng):
    layout = GramLayout.choose(6, 2, 1.0, Neighbours.REPLACE_ONE, 1000, Budget(1.0, 1e-6))
    features, targets = rng.normal(size=(500, 6)), rng.uniform(-1, 1, (500, 2))
    found = torch_pass._quantise(layout, torch.as_tensor(features), 1.0, torch.as_tensor(targets))
    assert not found[:, layout.side :].any()
    found = found[:, : layout.side]
    expected = layout.quantise(features, targets)
    assert np.abs(found.numpy() - expected).max() <= 1  # a factor may differ in its last bit
    assert np.mean(found.numpy() != expected) < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantised_records_stay_in_the_ball(dtype):
    layout = GramLayout.choose(4, 1, 1.0, Neighbours.REPLACE_ONE, 100, Budget(1.0, 1e-6))
    wild = torch.tensor(
        [
            [1e30] * 4,
            [-1e38, 1e38, 0, 0],
            [float("nan")] * 4,
            [float("inf"), 1, 1, 1],
            [1e-40] * 4,
            [1, 0, 0, 0],
        ],
        dtype=dtype,
    )
    records = torch_pass._quantise(layout, wild, 1.0, torch.ones((6, 1), dtype=torch.float64))
    ints = [[int(v) for v in row] for row in records.tolist()]
    for row in ints:
        assert sum(v * v for v in row[:4]) <= layout.row**2
        assert abs(row[4]) <= layout.target and row[5] == layout.constant


def test_a_map_without_a_torch_twin_runs_on_numpy(data):
    class Cubes(FeatureMap):
        """A map that torch_pass does not know."""

        kind = "cubes"
        row_norm_bound = 2.0

        def _build(self, n_inputs):
            self.n_outputs = n_inputs

        def transform_block(self, X):
            return X**3

    X, _ = data
    twin = torch_pass._feature_twin(Cubes().build(3), torch.device("cpu"), torch.float64, True)
    rows, scale = twin(torch.as_tensor(X))
    np.testing.assert_array_equal(scale * rows.numpy(), X**3)


def test_bad_tensors_spend_nothing(data):
    X, y = (torch.as_tensor(v) for v in data)
    ledger = Ledger(budget=Budget(5.0, 1e-6))
    holes = X.clone()
    holes[3, 1] = float("nan")
    for bad_X, bad_y, message in (
        (holes, y, "NaN or infinity"),
        (X, y[:-1], "inconsistent numbers"),
        (X, y.numpy(), "must be torch tensors"),
        (X[0], y, "must be torch tensors"),
    ):
        with pytest.raises(DataError, match=message):
            build(ledger=ledger).fit(bad_X, bad_y)
    levels = Domain((Interval(-1, 1), Interval(-1, 1), Interval(-1, 1)))
    build(bounds=levels, ledger=ledger).fit(X, y)
    assert len(ledger.spends) == 1
