"""Records of torch tensors against those of arrays, on the CPU; needs torch (make test-torch)."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dpkernel import (
    Budget,
    Domain,
    Interval,
    Ledger,
    Levels,
    PrivateKernelClassifier,
    PrivateQuantileRegressor,
    SeededNoise,
)
from dpkernel.data import cache
from dpkernel.data.sources import Source
from dpkernel.data.tensors import working_device
from dpkernel.estimators.classifier import OneAgainstRest
from dpkernel.estimators.records import RecordRecipe, RecordStore, sum_rows
from dpkernel.foundations.errors import DataError
from dpkernel.models.features import FourierFeatures, LinearFeatures, PublicEigenfeatures
from dpkernel.models.losses import Logistic, SmoothedHinge

torch = pytest.importorskip("torch")

from dpkernel.estimators import torch_records  # noqa: E402

BOX = Domain((Interval(-1, 1), Interval(0, 5), Interval(-2, 0)))
MAPS = {
    "fourier": (lambda: FourierFeatures(12).build(3), BOX),
    "fourier, no bounds": (lambda: FourierFeatures(12).build(3), Domain()),
    "additive": (lambda: FourierFeatures(12, kernel="additive").build(3), BOX),
    "linear": (lambda: LinearFeatures().build(3), BOX),
    "eigen": (lambda: PublicEigenfeatures(12).build(3), BOX),
}


def recipe_of(kind, dtype, around=False):
    build, domain = MAPS[kind]
    recipe, _ = RecordRecipe.choose(domain, build(), 100, 1.0)
    recipe = replace(recipe, dtype=dtype)
    return recipe.around(np.full(recipe.features.n_outputs, 0.05)) if around else recipe


def records_of(recipe, X):
    """Return z and weights, made where the engine would hand the rows over: on a GPU if there is one."""
    return torch_records.record_twin(recipe, X)(X.to(working_device(X)))


@pytest.fixture
def rows(rng):
    found = rng.normal(size=(200, 3)) * 3
    extremes = [0.0, 1e308, -1e308, 5e-324, 1e39, -1e-310, 5.0]
    found[:50] = rng.choice(extremes, (50, 3))
    return found


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", MAPS)
def test_records_are_those_of_arrays_and_keep_their_bounds(rows, kind, dtype, around):
    recipe = recipe_of(kind, dtype, around)
    z, weights = (part.cpu() for part in records_of(recipe, torch.as_tensor(rows)))
    wanted_z, wanted_weights = recipe.rows(rows)
    error = (2.0**-35 if around else 1e-13) if dtype == "float64" else 2e-6
    if kind != "fourier, no bounds":  # a last bit of an input of 1e38 is a phase
        np.testing.assert_allclose(z.numpy(), wanted_z, rtol=0, atol=error)
        np.testing.assert_allclose(weights.numpy(), wanted_weights, rtol=10 * error + 2.0**-35)
    tame = slice(50, None)
    np.testing.assert_allclose(z.numpy()[tame], wanted_z[tame], rtol=0, atol=5 * error)
    for row, weight in zip(z.tolist(), weights.tolist(), strict=True):
        square = sum(Fraction(v) ** 2 for v in row)
        assert Fraction(weight) * square <= 1 and Fraction(weight) ** 2 * square <= 1


def test_strange_rows_count_nothing(monkeypatch):
    recipe = recipe_of("linear", "float64")
    monkeypatch.setattr(
        torch_records, "feature_twin", lambda *_: lambda X: (torch.ones_like(X) * wild, 1.0)
    )
    column = [[float("nan")], [float("inf")], [1e300], [1e90]]
    wild = torch.tensor(column, dtype=torch.float64, device=working_device(torch.zeros(1)))
    z, weights = records_of(recipe, torch.zeros(4, 3))
    assert not z[:3].any() and weights[:3].tolist() == [1.0] * 3
    assert z[3, 1] > 1e89 and 0 < weights[3] < 1e-170


@pytest.mark.parametrize("most", [0, 2**29])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sums_are_those_of_arrays(rng, dtype, most, monkeypatch):
    monkeypatch.setattr(cache, "_limits", cache.CacheLimits(most, 0))
    monkeypatch.setattr(torch_records, "_CHUNK_BYTES", 2**19)  # several chunks of several products
    monkeypatch.setattr(torch_records, "BLOCK_ROWS", 700)
    X, y = rng.uniform(-1, 1, (9000, 3)), rng.integers(0, 3, 9000).astype(float)
    recipe = recipe_of("fourier", dtype)
    tensors = Source("torch", 9000, 3, (), torch.as_tensor(X), torch.as_tensor(y))
    stores = [RecordStore(s, recipe) for s in (tensors, Source("array", 9000, 3, (), X, y))]
    for store in stores:
        store.prepare()
    for loss, weights in ((Logistic(), None), (SmoothedHinge(0.5), (0.5, 1.0, 0.25))):
        beta = rng.normal(size=recipe.n_coordinates)
        found, wanted = (s.records(loss, OneAgainstRest(1, weights)).sums(beta, 1) for s in stores)
        error = 1e-7 if dtype == "float64" else 1e-3  # float32 features differ in their last bits
        np.testing.assert_allclose(found[0], wanted[0], rtol=0, atol=error)
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-3, atol=1e-2)
        assert stores[0].records(loss, OneAgainstRest(1)).sums(beta)[1] is None


def test_gradients_are_double_precision_on_single_precision_features(rng):
    """Against exact sums over the very features that are stored."""
    X, y = rng.uniform(-1, 1, (3000, 3)), rng.integers(0, 2, 3000).astype(float)
    recipe = recipe_of("fourier", "float32")
    source = Source("torch", 3000, 3, (), torch.as_tensor(X), torch.as_tensor(y))
    store = RecordStore(source, recipe)
    beta = rng.normal(size=recipe.n_coordinates)
    ((z, _, weights),) = store._records.blocks()
    assert z.dtype == torch.float32
    exact = z.cpu().numpy().astype(np.float64)
    slopes = Logistic().derivative(2 * y - 1, exact @ beta) * weights
    gradient = store.records(Logistic(), OneAgainstRest(1)).sums(beta)[0]
    np.testing.assert_allclose(gradient, slopes @ exact, rtol=0, atol=1e-10)


def test_sums_for_the_centre_are_those_of_arrays(rng):
    X = rng.uniform(-1, 1, (5000, 3))
    for kind in ("fourier", "eigen"):
        recipe = recipe_of(kind, "float64")
        source = Source("torch", 5000, 3, (), torch.as_tensor(X), torch.zeros(5000))
        found = RecordStore(source, recipe).sum_rows()
        assert found.dtype == np.int64
        assert np.abs(found - sum_rows(X, np.zeros(5000), recipe)[0]).max() <= 5


OPTIONS = [
    {},
    {"features": "fourier"},
    {"features": "fourier", "bounds": None},
    {"kernel": "linear"},
    {"loss": "logistic", "class_weight": {"no": 3.0}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tensors_give_the_model_of_arrays(rng, options):
    X = rng.uniform(-1, 1, (5000, 3))
    places = (X[:, 0] > X[:, 1]).astype(int)
    options = {"bounds": (-1, 1), "n_features": 16, **options}
    model = PrivateKernelClassifier(classes=["no", "yes"], noise=SeededNoise(4), **options)
    reference = model.fit(X, np.array(["no", "yes"])[places]).decision_function(X)
    options["class_weight"] = {0: 3.0} if "class_weight" in options else None
    model = PrivateKernelClassifier(classes=[0, 1], noise=SeededNoise(4), **options)
    for labels in (torch.as_tensor(places), torch.as_tensor(places)[:, None].to(torch.float32)):
        found = model.fit(torch.as_tensor(X), labels).decision_function(X)
        size = np.abs(reference).max()
        np.testing.assert_allclose(found, reference, rtol=0, atol=1e-6 * size)


def test_tensors_of_targets(rng):
    X = rng.uniform(-1, 1, (5000, 3)).astype(np.float32)
    y = X[:, 0] + 0.1 * rng.normal(size=5000).astype(np.float32)
    options = {"quantile": [0.1, 0.9], "bounds": (-1, 1), "y_bounds": (-2, 2), "n_features": 16}
    reference = PrivateQuantileRegressor(**options, noise=SeededNoise(4)).fit(X, y).predict(X)
    for tensor in (torch.as_tensor(y), torch.as_tensor(y)[:, None], torch.as_tensor(y).double()):
        model = PrivateQuantileRegressor(**options, noise=SeededNoise(4))
        found = model.fit(torch.as_tensor(X), tensor).predict(X)
        np.testing.assert_allclose(found, reference, rtol=0, atol=1e-6)


def test_targets_in_half_precision_are_numbers(rng):
    X = torch.as_tensor(rng.uniform(-1, 1, (300, 3)))
    options = {"bounds": (-1, 1), "y_bounds": (-2, 2), "n_features": 8, "noise": SeededNoise(4)}
    models = [
        PrivateQuantileRegressor(**options).fit(X, target)
        for target in (X[:, 0].bfloat16(), X[:, 0].bfloat16().double())
    ]
    np.testing.assert_array_equal(models[0].coef_, models[1].coef_)


def test_bad_tensors_spend_nothing(rng):
    X, y = torch.as_tensor(rng.uniform(-1, 1, (60, 3))), torch.as_tensor(rng.integers(0, 2, 60))
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    holes = X.clone()
    holes[3, 1] = float("nan")
    levels = Domain((Interval(-1, 1), Interval(-1, 1), Levels((0, 1))))
    for bad_X, bad_y, options, message in (
        (holes, y, {}, "NaN or infinity"),
        (X, y + 1, {}, "not among the declared"),
        (X, y.double() * float("nan"), {}, "public constants"),
        (X, y[:-1], {}, "inconsistent numbers"),
        (X, y.numpy(), {}, "must be torch tensors"),
        (X, None, {}, "must be torch tensors"),
        (X, torch.stack([y, y], dim=1), {}, "takes one target"),
        (X, y, {"bounds": levels}, "declare every column as an interval"),
    ):
        model = PrivateKernelClassifier(classes=[0, 1], ledger=ledger, n_features=8, **options)
        with pytest.raises(DataError, match=message):
            model.fit(bad_X, bad_y)
    assert ledger.spends == []
