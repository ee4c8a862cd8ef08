"""The torch pass against the NumPy pass, on the CPU; needs torch (make test-torch).

The GPU kernels run where there is a GPU, and in Triton's interpreter where Triton is installed.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from dpkernel import Budget, Ledger, PrivateKernelRidge, SeededNoise
from dpkernel.data.blocks import BLOCK_ROWS
from dpkernel.data.domain import Domain, Interval
from dpkernel.data.sources import Source
from dpkernel.estimators.gram_pass import Recipe, gram_of_blocks
from dpkernel.foundations.errors import DataError
from dpkernel.foundations.types import Neighbours
from dpkernel.models.features import FourierFeatures
from dpkernel.models.features.base import FeatureMap
from dpkernel.privacy.statistics import GramLayout
from dpkernel.selection import PrivateSearchCV

torch = pytest.importorskip("torch")

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if GPU else torch.device("cpu")
if not GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before Triton is imported

from dpkernel.data import tensors  # noqa: E402
from dpkernel.estimators import torch_pass  # noqa: E402


@pytest.fixture
def data(rng):
    X = rng.uniform(-1, 1, (9000, 3))
    return X, np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=9000)


BOX = Domain((Interval(-1, 1), Interval(-2, 1), Interval(-1, 1)), Interval(-2, 2))


def sum_tensors(X, y, recipe):
    source = Source("torch", len(X), X.shape[1], tuple(y.shape[1:]), X, y)
    return torch_pass.sum_tensors(source, recipe)


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


@pytest.mark.parametrize("bounds", [None, (178 * 10**16 - 10**13, 178 * 10**16 + 10**13)])
def test_the_type_of_a_tensor_moves_no_row(bounds, rng):
    """One fraction makes float64 of whole numbers; each lies where two roundings are not one."""
    n = 20_000
    X = (178 * 10**16 // 2**38 + rng.integers(-3, 4, (n, 1))) * 2**38 + 2**36 + 1
    y = torch.as_tensor(rng.uniform(0, 1, n))
    options = {"bounds": bounds, "length_scale": 1e11, "features": "fourier", "n_features": 8}
    found = [build(**options).fit(torch.as_tensor(table), y) for table in (X, X.astype(float))]
    np.testing.assert_array_equal(found[0].coef_, found[1].coef_)


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


@pytest.mark.parametrize("row_bound", [1.0, 1e-60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantised_records_stay_in_the_ball(dtype, row_bound):
    layout = GramLayout.choose(4, 1, row_bound, Neighbours.REPLACE_ONE, 100, Budget(1.0, 1e-6))
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
    cubes = Cubes().build(3)
    layout = GramLayout.choose(3, 1, 2.0, Neighbours.REPLACE_ONE, 9000, Budget(1.0, 1e-6))
    found = torch_pass._FloatSum(Recipe(BOX, cubes, layout), torch.device("cpu"))
    rows, scale = found._transform(torch.as_tensor(X))
    np.testing.assert_array_equal(scale * rows.numpy(), X**3)


def test_bad_tensors_spend_nothing(data):
    X, y = (torch.as_tensor(v) for v in data)
    ledger = Ledger(budget=Budget(5.0, 1e-6))
    holes = X.clone()
    holes[8999, 1] = float("nan")  # in the last block
    endless = torch.where(torch.arange(9000) == 5000, -torch.inf, y)
    for bad_X, bad_y, message in (
        (holes, y, "NaN or infinity"),
        (X, endless, "NaN or infinity"),
        (X[:, :0], y, "must be torch tensors"),
        (X, y[:-1], "inconsistent numbers"),
        (X, y.numpy(), "must be torch tensors"),
        (X[0], y, "must be torch tensors"),
    ):
        with pytest.raises(DataError, match=message):
            build(ledger=ledger).fit(bad_X, bad_y)
    layout = GramLayout.choose(4, 1, 1.0, Neighbours.REPLACE_ONE, 9000, Budget(1.0, 1e-6))
    recipe = Recipe(BOX, FourierFeatures(4).build(3), layout)
    for bad_X, bad_y in ((holes, y), (X, endless)):  # the pass refuses by itself, too
        assert tensors.check_tensors(bad_X, bad_y, values=False) == ()
        with pytest.raises(DataError, match="NaN or infinity"):
            sum_tensors(bad_X, bad_y, recipe)
    levels = Domain((Interval(-1, 1), Interval(-1, 1), Interval(-1, 1)))
    build(bounds=levels, ledger=ledger).fit(X, y)
    assert len(ledger.spends) == 1


@pytest.mark.parametrize("strategy", ["free", "exponential", "random-stopping"])
def test_a_search_copies_tensors_to_main_memory(strategy):
    X = np.linspace(0, 1, 80).reshape(40, 2)
    ridge = PrivateKernelRidge(n_features=4, bounds=(0, 1), y_bounds=(0, 1))
    grid = {"regularisation": [0.1, 1.0]}
    search = PrivateSearchCV(ridge, grid, 50.0, strategy=strategy, noise=SeededNoise(1))
    wanted = search.fit(X, X[:, 0]).predict(X)
    found = search.fit(torch.tensor(X), torch.tensor(X[:, 0])).predict(X)
    np.testing.assert_array_equal(found, wanted)


def test_integers_and_booleans_are_numbers(data):
    _, y = data
    X = (torch.arange(9000)[:, None] >> torch.arange(3)) % 2
    model = build().fit(X, torch.as_tensor(y))
    same = build().fit(X.bool(), torch.as_tensor(y))
    np.testing.assert_array_equal(model.coef_, same.coef_)


def test_wide_records_are_summed_panel_by_panel(rng):
    X, y = rng.uniform(-1, 1, (700, 3)), rng.uniform(-2, 2, 700)
    features = FourierFeatures(600).build(3)
    layout = GramLayout.choose(600, 1, 1.0, Neighbours.REPLACE_ONE, 700, Budget(1.0, 1e-6))
    recipe = Recipe(BOX, features, layout)
    found = sum_tensors(torch.as_tensor(X), torch.as_tensor(y), recipe)._folds[0]._sum
    inputs = torch_pass.input_twin(recipe, DEVICE)(torch.as_tensor(X, device=DEVICE))
    targets = torch_pass._target_twin(recipe)(torch.as_tensor(y, device=DEVICE))
    rows, scale = torch_pass.feature_twin(features, recipe.dtype, DEVICE)(inputs)
    records = torch_pass._quantise(layout, rows, scale, targets).cpu().to(torch.int64).numpy()
    np.testing.assert_array_equal(found, (records.T @ records)[:602, :602])
    expected = gram_of_blocks([(X, y)], recipe)._folds[0]._sum
    assert np.abs(found - expected).max() <= 1e-7 * np.abs(expected).max()


# the GPU kernels, line by line in torch


def fill_twin(phases, digits, factor, bound, planes):
    pair = torch.stack((torch.cos(phases), torch.sin(phases))) * factor
    pair = torch.where((pair**2).sum(0) <= bound, pair, 0.0).to(torch.int32)
    rows = 2 * len(phases)
    for p, plane in enumerate(torch_pass._digits_of(pair, planes)):
        digits[p * rows : (p + 1) * rows] = plane.reshape(rows, -1)


def product_twin(digits, total, pairs, share, parts):
    wide = digits[:, : share * parts].to(torch.float64)
    total += torch.triu(wide @ wide.T).to(torch.int64)


@pytest.fixture(params=["twin", "triton"])
def digit_sum(request):
    """A function that returns the sum in bytes and the list of its records as integers."""
    if request.param == "triton" and torch_pass.triton is None:
        pytest.skip("Triton is not installed")
    device = DEVICE if request.param == "triton" else torch.device("cpu")
    fill = fill_twin if request.param == "twin" else torch_pass._fill
    product = product_twin if request.param == "twin" else torch_pass._add_product

    def make(recipe):
        records = []

        def seen(digits, total, pairs, share, parts):
            product(digits, total, pairs, share, parts)
            m, k = recipe.layout.n_features, recipe.layout.n_targets + 1
            planes = 2 if recipe.layout.row == 2**16 else 3
            whole = digits[:, : share * parts].cpu().to(torch.int64)
            z = sum(whole[p * m : (p + 1) * m] << 8 * p for p in range(planes))
            ends = [whole[planes * m + p * k : planes * m + (p + 1) * k] << 8 * p for p in range(3)]
            records.append(torch.cat((z, sum(ends))).T.numpy())

        return torch_pass._DigitSum(recipe, device, fill, seen), records, device

    return make


def fourier_recipe(row, rows, domain=BOX):
    layout = GramLayout(
        20, 2, 1.0, row, int(0.5 * row), int(0.4 * row), Neighbours.REPLACE_ONE, rows
    )
    return Recipe(domain, FourierFeatures(20).build(3), layout, "float32")


@pytest.mark.parametrize("row", [2**16, 2**20])
def test_sum_in_bytes_equals_numpy(digit_sum, rng, row):
    n, cut = 66_500, 66_000  # the columns of two products, the second of them a part, then a third
    X, y = rng.normal(size=(n, 3)).astype(np.float32), rng.uniform(-3, 3, (n, 2))
    recipe = fourier_recipe(row, n)
    running, records, device = digit_sum(recipe)
    inputs, targets = torch_pass.input_twin(recipe, device), torch_pass._target_twin(recipe)
    for rows in (slice(0, cut), slice(cut, n)):
        running.add(
            inputs(torch.as_tensor(X[rows], device=device)),
            targets(torch.as_tensor(y[rows], device=device)),
        )
    found = running.total().cpu().numpy()
    assert len(records) == 3
    every = np.concatenate(records)
    np.testing.assert_array_equal(found, every.T @ every)
    assert np.count_nonzero(every[:, -1]) == n  # padding is no record
    expected = gram_of_blocks([(X, y)], recipe)._folds[0]._sum
    assert np.abs(found - expected).max() <= 4e-6 * n * row * row / 20


@pytest.mark.parametrize("row", [2**16, 2**20])
def test_bytes_stay_in_the_ball(digit_sum, rng, row):
    recipe = fourier_recipe(row, 64)
    running, records, device = digit_sum(recipe)
    wild = rng.normal(size=(64, 3)) * 10.0 ** rng.integers(-45, 36, (64, 3))
    wild[:4] = [[np.nan, 0, 0], [np.inf, 0, 0], [3e38, -3e38, 3e38], [0, 0, 0]]
    X = torch.as_tensor(wild, dtype=torch.float32, device=device)
    running.add(X, torch.ones((64, 2), dtype=torch.float64, device=device))
    rows = records[0][:64].tolist()
    for row_of in rows:
        assert sum(v * v for v in row_of[:20]) <= row**2
        assert row_of[20:] == [recipe.layout.target, recipe.layout.target, recipe.layout.constant]
    assert not any(rows[0][:20]) and not any(rows[1][:20])  # not finite: zero
    for row_of in rows[3:]:  # and nothing is lost from the others
        assert sum(v * v for v in row_of[:20]) >= row**2 * 0.999


def test_a_pair_outside_its_share_becomes_zero(digit_sum):
    running, records, device = digit_sum(fourier_recipe(2**16, 8))
    running._factor *= 1 + 2.0**-19  # as if the device's cosine were too long
    running.add(torch.zeros((8, 3), device=device), torch.zeros((8, 2), device=device))
    assert not records[0][:, :20].any()


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_the_gpu_sums_bytes_and_streams_rows(rng):
    n = 600_000
    X, y = rng.normal(size=(n, 3)).astype(np.float32), rng.uniform(-3, 3, (n, 2))
    recipe = fourier_recipe(2**18, n)
    assert isinstance(torch_pass._choose_sum(recipe, DEVICE), torch_pass._DigitSum)
    host = [torch.as_tensor(v) for v in (X, y)]
    there = sum_tensors(*(v.to(DEVICE) for v in host), recipe)._folds[0]._sum
    for pair in (host, [v.pin_memory() for v in host], [host[0].to(DEVICE), host[1]]):
        np.testing.assert_array_equal(sum_tensors(*pair, recipe)._folds[0]._sum, there)
    expected = gram_of_blocks([(X, y)], recipe)._folds[0]._sum
    assert np.abs(there - expected).max() <= 4e-6 * n * 2**36 / 20
    host[0][n - 1, 2] = torch.nan
    with pytest.raises(DataError, match="NaN or infinity"):
        sum_tensors(*host, recipe)


def test_no_product_of_a_hessian_takes_more_rows_than_its_error_bound_counts(data, monkeypatch):
    """A least squares fit ends on every table because sums over rows are short: those of one block."""
    longest = []
    real = torch.Tensor.__matmul__

    def noted(one, other):
        if one.dtype == torch.float64 and one.ndim == other.ndim == 2:
            longest.append(one.shape[1])
        return real(one, other)

    monkeypatch.setattr(torch.Tensor, "__matmul__", noted)
    X, y = data
    options = {"solver": "output", "regularisation": 1e-4, "n_features": 8}
    build(**options).fit(torch.as_tensor(X), torch.as_tensor(y))
    assert max(longest) <= BLOCK_ROWS < len(X)
