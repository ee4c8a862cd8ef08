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
    PrivateKernelRegressor,
    PrivateQuantileRegressor,
    SeededNoise,
)
from dpkernel.data import cache
from dpkernel.data.sources import Source
from dpkernel.data.tensors import working_device
from dpkernel.estimators.classifier import OneAgainstRest
from dpkernel.estimators.records import RecordRecipe, RecordStore, feature_block, sum_rows
from dpkernel.estimators.regressor.stage import STAGE_ROW_BOUND, scaled_rows
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.methods import PrivateSGDClassifier, PrivateSGDRegressor
from dpkernel.models.features import FourierFeatures, LinearFeatures, PublicEigenfeatures
from dpkernel.models.features.learned import Component, LearnedFeatures
from dpkernel.models.losses import REGISTRY, Logistic, SmoothedHinge
from dpkernel.solvers.sgd_gradient import Block, GradientSGD

torch = pytest.importorskip("torch")

from dpkernel.estimators import device_rows, torch_records  # noqa: E402

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


def learned_map():
    families = [("gaussian", 1.0, True), ("gaussian", 0.5, False), ("laplace", 1.5, True)]
    mixture = [Component(*f, weight=0.5) for f in (*families, ("linear", 1.0, False))]
    metric = [[1.0, 0.3, 0.0], [0.0, 1.0, 0.0], [0.2, 0.0, 0.5]]
    return LearnedFeatures(20, components=mixture, metric=metric).build(3)


@pytest.fixture
def unit_rows(rng):
    return rng.uniform(-1, 1, (300, 3)).astype("f4")


def device_features(X, rotation=None, dtype="float32"):
    device = working_device(torch.zeros(1))
    twin = device_rows.block_twin(learned_map(), dtype, rotation, device)
    return device_rows.feature_block(X, np.zeros((len(X), 2)), twin)[0]


def test_learned_features_on_a_device_are_those_of_arrays(unit_rows, rng):
    rotation = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    coefficients = rng.normal(size=20)[::-1]
    for turn in (None, rotation):
        wanted, _ = feature_block(unit_rows, np.zeros(300), learned_map(), turn)
        found = device_features(unit_rows, turn)
        np.testing.assert_allclose(found.rows.cpu().numpy(), wanted, rtol=0, atol=2e-6)
        np.testing.assert_allclose(found @ coefficients, wanted @ coefficients, atol=2e-5)


def test_features_of_a_row_on_a_device_do_not_depend_on_other_rows(unit_rows, rng):
    others = rng.uniform(-1, 1, (300, 3)).astype("f4")
    others[7] = unit_rows[7]
    rotation = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    used, roots = np.arange(0, 21, 2), np.linspace(1, 0.1, 11)
    for part in range(2):
        one, two = (
            device_features(X, rotation).scaled(used, roots, 0.9)[part] for X in (unit_rows, others)
        )
        np.testing.assert_array_equal(np.asarray(one[7].tolist()), np.asarray(two[7].tolist()))


@pytest.mark.parametrize("first", [0, 1])
def test_scaled_rows_on_a_device_keep_their_bound(unit_rows, first):
    used, roots = np.arange(first, 21, 2), np.linspace(2, 0.1, 11 - first)
    features = device_features(unit_rows)
    wanted = scaled_rows(features.rows.cpu().numpy(), used, roots)
    z, weights = scaled_rows(features, used, roots)
    np.testing.assert_array_equal(z.cpu().numpy(), wanted[0])
    np.testing.assert_allclose(weights, wanted[1], rtol=2.0**-35)
    for row, weight in zip(z.tolist(), weights.tolist(), strict=True):
        assert (
            Fraction(weight) * sum(Fraction(v) ** 2 for v in row) <= Fraction(STAGE_ROW_BOUND) ** 2
        )


@pytest.mark.parametrize("kind", REGISTRY)
def test_losses_on_a_device_are_those_of_arrays(kind, rng):
    loss = REGISTRY[kind]()
    y = rng.choice([-1.0, 1.0], 400) if loss.labels else rng.normal(size=400)
    scores = rng.normal(size=400) * np.geomspace(1e-3, 1e3, 400)
    slopes, curvatures = torch_records.loss_twin(loss, y, torch.as_tensor(scores))
    np.testing.assert_allclose(slopes.numpy(), loss.derivative(y, scores), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(
        curvatures().numpy(), loss.curvature(y, scores), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("kind", REGISTRY)
def test_a_slope_does_not_depend_on_the_place_of_its_row_in_a_batch(kind, rng):
    """Vectors of a processor may round otherwise than the numbers that are left at the end."""
    loss, device = REGISTRY[kind](), working_device(torch.zeros(1))
    y = rng.choice([-1.0, 1.0], 999) if loss.labels else rng.normal(size=999)
    y, scores = (torch.as_tensor(part, device=device) for part in (y, rng.normal(size=999)))
    together = torch_records.loss_twin(loss, y, scores)[0]
    alone = [torch_records.loss_twin(loss, y[[i]], scores[[i]])[0] for i in range(999)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("kind", ["huber", "logistic", "absolute", "power_absolute", "hinge"])
def test_gradients_of_sgd_on_a_device_are_the_same_integers(kind, rng):
    """Slopes far beyond the clip, weights of 0, rows and targets without a use, and batches."""
    loss = REGISTRY[kind]()
    plan = GradientSGD(loss, 6, 1.0, 0.05, 100.0, 3, 0.1, problems=2)
    z = rng.normal(size=(500, 6)) * 0.4
    z[3] = 1e9
    whole, caps = plan.rows(z)
    y = rng.choice([-1.0, 1.0], (500, 2)) if loss.labels else rng.normal(size=(500, 2))
    weights = rng.choice([0.0, 0.5, 1.0], 500)
    host = (whole, y, weights, caps)
    device = [torch.as_tensor(part, device=working_device(torch.zeros(1))) for part in host]
    for w in (np.zeros((2, 6)), rng.normal(size=(2, 6)), np.full((2, 6), 1e200)):
        for rows in (None, rng.integers(0, 500, 40)):
            found = torch_records.sum_gradients(device, plan, w, rows)
            wanted = Block(*host).sums(plan, w, rows)
            assert found.dtype == np.int64 and np.abs(found - wanted).max() <= 500
            each = range(500) if rows is None else rows
            alone = [torch_records.sum_gradients(device, plan, w, np.array([i])) for i in each]
            np.testing.assert_array_equal(found, np.sum(alone, axis=0))


MODELS = {
    "regressor": (PrivateKernelRegressor, {"epsilon": 3.0, "n_features": 24}),
    "regressor, two targets": (PrivateKernelRegressor, {"n_features": 12}),
    "quantiles": (PrivateQuantileRegressor, {"quantile": [0.1, 0.9], "n_features": 24}),
    "SGD": (PrivateSGDRegressor, {"perturbation": "gradient", "max_iter": 9}),
    "SGD in batches": (PrivateSGDRegressor, {"perturbation": "gradient", "batch_size": 300}),
    "SGD classifier": (PrivateSGDClassifier, {"perturbation": "gradient", "max_iter": 9}),
}


@pytest.mark.parametrize("name", MODELS)
def test_fits_on_a_device_are_those_of_arrays(name, rng):
    X = rng.uniform(-1, 1, (5000, 2)).astype("f4")
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2
    kind, options = MODELS[name]
    labels = kind is PrivateSGDClassifier
    y = (y > 0).astype(int) if labels else np.column_stack([y, -y]) if "two" in name else y
    options = options | ({"classes": [0, 1]} if labels else {"y_bounds": (-2, 3)})
    models = [kind(bounds=(-1, 1), noise=SeededNoise(4), **options) for _ in range(2)]
    models[0].fit(X, y)
    models[1].fit(torch.as_tensor(X), torch.as_tensor(y))
    found, wanted = (m.coef_ for m in models)
    # where residuals are counted, one that changes its cell by a last bit changes the next stage
    share = 1e-5 if "SGD" in name else 3e-3
    np.testing.assert_allclose(wanted, found, rtol=0, atol=share * np.abs(found).max())


def test_random_batches_without_room_on_the_device_spend_nothing(rng, monkeypatch):
    """Host and device have different room: a disk, on which tensors can't be kept, is none."""
    monkeypatch.setattr(cache, "_limits", cache.CacheLimits(0, 10**8))
    monkeypatch.setattr("dpkernel.data.tensors.room", lambda device, most_bytes: most_bytes)
    X, ledger = torch.as_tensor(rng.uniform(-1, 1, (500, 2))), Ledger()
    model = PrivateSGDRegressor(
        bounds=(-1, 1), y_bounds=(-1, 1), n_features=6, batch_size=50, ledger=ledger
    )
    with pytest.raises(ParameterError, match="fit in memory for random batches"):
        model.fit(X, X[:, 0])
    assert not ledger.spends
