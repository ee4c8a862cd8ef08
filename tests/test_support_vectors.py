"""Support vector machines by output perturbation, and solver="output": limits, noise, refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from dpkernel import (
    Budget,
    Certificate,
    Ledger,
    PrivateKernelClassifier,
    PrivateQuantileRegressor,
    SeededNoise,
    load,
    save,
)
from dpkernel.estimators.classifier import OneAgainstRest
from dpkernel.estimators.records import ROW_BOUND, RecordRecipe
from dpkernel.foundations.errors import LedgerError, ParameterError
from dpkernel.methods import PrivateHuberRegressor, PrivateKernelSVC, PrivateKernelSVR
from dpkernel.models.losses import SmoothedHinge, SmoothedInsensitive
from dpkernel.privacy.profiles import gaussian_mu

HUGE = 1e9
PURE = ("idealised-arithmetic",)
COMMON = {"bounds": (-1, 1), "n_features": 8}


@pytest.fixture
def table(rng):
    X = rng.uniform(-1, 1, (600, 2))
    return X, np.sin(2 * X[:, 0]) - X[:, 1] ** 2 + 0.1 * rng.normal(size=600)


def machine(**options):
    return PrivateKernelSVC(**{"classes": [0, 1], **COMMON, **options})


def regression(**options):
    return PrivateKernelSVR(**{"y_bounds": (-3, 3), **COMMON, **options})


OUTPUT = {
    "svc": lambda **kw: machine(**kw),
    "svr": lambda **kw: regression(**kw),
    "classifier": lambda **kw: PrivateKernelClassifier(
        **{"solver": "output", "classes": [0, 1], **COMMON, **kw}
    ),
    "huber": lambda **kw: PrivateHuberRegressor(
        **{"solver": "output", "y_bounds": (-3, 3), **COMMON, **kw}
    ),
    "quantile": lambda **kw: PrivateQuantileRegressor(
        **{"solver": "output", "y_bounds": (-3, 3), "quantile": [0.2, 0.5], **COMMON, **kw}
    ),
}
every_output = pytest.mark.parametrize("build", OUTPUT.values(), ids=OUTPUT)


def target_of(model, y):
    return (y > 0).astype(int) if hasattr(model, "classes") else y


def direct(loss, z, omega, y, ridge):
    def value(beta):
        scores = z @ beta
        gradient = (omega * loss.derivative(y, scores)) @ z + ridge * beta
        return float(omega @ loss.value(y, scores)) + ridge * float(beta @ beta) / 2, gradient

    options = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-9}
    return minimize(value, np.zeros(z.shape[1]), jac=True, method="L-BFGS-B", options=options).x


@pytest.mark.parametrize("options", [{}, {"width": 0.5, "class_weight": {0: 0.3}, "delta": 1e-5}])
def test_a_support_vector_machine_is_the_classifier_with_noise_on_its_output(table, options):
    """Bit for bit, with the same certificate but for its name."""
    X, y = table
    given = {"classes": [0, 1], **COMMON, "noise": SeededNoise(3), **options}
    one = PrivateKernelSVC(**given).fit(X, y > 0)
    two = PrivateKernelClassifier(**{"solver": "output", "width": 0.1, **given}).fit(X, y > 0)
    assert np.array_equal(one.coef_, two.coef_) and one.intercept_ == two.intercept_
    assert np.array_equal(one.predict_proba(X), two.predict_proba(X))
    first, second = (model.certificate_.to_dict() for model in (one, two))
    assert {name for name in first if first[name] != second[name]} == {"subject", "digest"}


def test_large_epsilon_is_support_vector_regression(table):
    X, y = table
    model = regression(epsilon=HUGE, tube=0.3, width=0.15, regularisation=5.0).fit(X, y)
    recipe, _ = RecordRecipe.choose(model._domain, model.feature_map_, len(X), ROW_BOUND)
    z, omega = recipe.rows(X)
    wanted = 3 * z @ direct(SmoothedInsensitive(0.1, 0.05), z, omega, y / 3, 5.0)
    np.testing.assert_allclose(model.predict(X), wanted, rtol=0, atol=3e-3)


@pytest.mark.parametrize("classes", [[0, 1], [0, 1, 2]])
def test_large_epsilon_is_a_support_vector_machine(table, classes):
    """One problem a class, each column in its place."""
    X, y = table
    labels = np.digitize(y, [0.0] if len(classes) == 2 else [-0.5, 0.3])
    model = machine(epsilon=HUGE, classes=classes, regularisation=4.0, width=0.2).fit(X, labels)
    z = model.feature_map_.transform_block(model._domain.to_unit(X))
    omega = np.minimum(1, 1 / np.add.reduce(z * z, axis=1))
    found = model.decision_function(X).reshape(len(X), -1)
    for place, column in zip([1] if len(classes) == 2 else classes, found.T, strict=True):
        wanted, _ = OneAgainstRest(place).of(labels)
        beta = direct(SmoothedHinge(0.2), z, omega, wanted, 4.0)
        np.testing.assert_allclose(column, z @ beta, rtol=0, atol=5e-3)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_one_noisy_vector_for_all_classes(table, classes):
    """Its sensitivity grows with the root of the number of problems, and the noise with it."""
    X, y = table
    labels = np.digitize(y, np.quantile(y, np.arange(1, classes) / classes))
    model = machine(classes=range(classes), regularisation=10.0).fit(X, labels)
    problems = 1 if classes == 2 else classes
    certificate = model.certificate_
    release = certificate.releases[-1]
    assert release.mechanism.dimension == problems * len(model.feature_map_.transform(X[:1])[0])
    assert release.mechanism.sensitivity.formula == "erm-lipschitz"
    parameters = dict(release.mechanism.sensitivity.parameters)
    assert parameters["problems"] == problems and parameters["strength"] == 10.0
    least = 2 * math.sqrt(problems) / 10
    assert least < release.mechanism.sensitivity.value < 1.003 * least
    certificate.verify()


def test_the_noise_is_what_the_sensitivity_asks_for(table):
    X, y = table
    model = regression(epsilon=1.0, delta=1e-6, regularisation=20.0).fit(X, y)
    (release,) = model.certificate_.releases
    sigma = 2 / 20 / gaussian_mu(1.0, 1e-6)
    assert sigma < release.mechanism.noise_scale < 1.003 * sigma
    zero = regression(regularisation=20.0, neighbours="zero-out").fit(X, y).certificate_
    assert sigma / 2 < zero.releases[0].mechanism.noise_scale < 1.003 * sigma / 2
    budget = Budget(model.certificate_.epsilon, 1e-6)
    assert 0.999 < budget.epsilon <= 1 and zero.epsilon <= 1


@every_output
def test_one_spend_a_certificate_and_a_file(table, build, tmp_path):
    X, y = table
    ledger = Ledger(budget=Budget(1.0, 1e-6))
    model = build(epsilon=1.0, ledger=ledger)
    y = target_of(model, y)
    model.fit(X, y)
    assert len(ledger.history()) == 1
    certificate = model.certificate_
    assert certificate.public["solver"] == "output" and certificate.private and certificate.valid
    assert Certificate.from_dict(certificate.to_dict()) == certificate
    certificate.verify()
    with pytest.raises(LedgerError):
        build(epsilon=1.0, ledger=ledger).fit(X, y)
    again = load(save(model, tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.solver == "output"
    for name in ("width", "tube", "threshold"):
        if name in again.get_params():
            given = getattr(again, name)
            assert given == pytest.approx(getattr(load(save(again, tmp_path / "b")), name))


@every_output
def test_seeded_noise_repeats_itself_and_real_noise_does_not(table, build):
    X, y = table
    y = target_of(build(), y)
    first, again = (build(noise=SeededNoise(3)).fit(X, y).coef_ for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(build().fit(X, y).coef_, build().fit(X, y).coef_)


@every_output
def test_pure_epsilon_is_exact_and_has_less_noise_if_idealised_arithmetic_is_accepted(table, build):
    X, y = table
    y = target_of(build(), y)
    for accept, kind in (((), "laplace"), (PURE, "l2-gamma")):
        certificate = build(epsilon=2.0, delta=0.0, accept=accept).fit(X, y).certificate_
        assert certificate.delta == 0 and 1.99 < certificate.epsilon <= 2
        assert certificate.assumptions == accept
        assert [r.mechanism.kind for r in certificate.releases] == [kind]
        certificate.verify()


def test_more_budget_is_more_accurate(seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (4000, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    scores = [machine(epsilon=e, n_features=64).fit(X, y).score(X, y) for e in (0.01, 100.0)]
    assert scores[0] < scores[1] and scores[1] > 0.9


def test_the_ridge_that_is_chosen_falls_with_epsilon(table):
    X, y = table
    ridges = [
        regression(epsilon=e).fit(X, y).certificate_.public["regularisation"][0]
        for e in (0.1, 1.0, 10.0)
    ]
    assert ridges[0] > ridges[1] > ridges[2] > 0


def test_class_weights_move_the_boundary(table):
    X, y = table
    labels = (y > 0).astype(int)
    ones = [
        machine(epsilon=HUGE, class_weight={0: w, 1: 1.0}).fit(X, labels).predict(X).mean()
        for w in (0.1, 1.0)
    ]
    assert ones[0] > ones[1]


REFUSED = {
    "l1": (lambda: regression(l1=-1.0), "'l1' parameter of PrivateKernelSVR"),
    "norm": (lambda: regression(norm=1.0), "'norm' parameter of PrivateKernelSVR"),
    "sharp norm": (
        lambda: regression(norm=1.0001, regularisation=10.0, width=0.01),
        "'norm' parameter of PrivateKernelSVR must be at least",
    ),
    "tube": (lambda: regression(tube=-1.0), "'tube' parameter of PrivateKernelSVR"),
    "wide tube": (lambda: regression(tube=1e9), "'tube' parameter.*1e6 times"),
    "width": (lambda: regression(width=1e-12), "'width' parameter"),
    "margin width": (lambda: machine(width=2.0), "'width' parameter of PrivateKernelSVC"),
    "classes": (lambda: machine(classes=None), "PrivateKernelSVC needs 'classes'"),
    "balanced": (
        lambda: machine(class_weight="balanced"),
        "'class_weight' parameter of PrivateKernelSVC",
    ),
    "private n": (lambda: machine(neighbours="add-remove"), "'neighbours' parameter"),
    "solver": (
        lambda: PrivateHuberRegressor(solver="input", y_bounds=(-3, 3)),
        "'solver' parameter of PrivateHuberRegressor must be one of 'objective', 'output'",
    ),
}


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_costs_nothing(table, build, message):
    X, y = table
    model, ledger = build(), Ledger(budget=Budget(1.0, 1e-6))
    model.ledger = ledger
    with pytest.raises(ParameterError, match=message):
        model.fit(X, target_of(model, y))
    assert ledger.history() == []


def test_an_elastic_net_shrinks_small_coefficients_and_is_kept_in_files(table, tmp_path):
    X, y = table
    options = {"epsilon": 1e8, "regularisation": 1.0, "tube": 0.0, "noise": SeededNoise(0)}
    plain, net = (regression(**options, l1=l1).fit(X, y) for l1 in (0.0, 40.0))
    assert np.abs(net.coef_).sum() < 0.7 * np.abs(plain.coef_).sum()
    assert net.certificate_.releases[0].mechanism == plain.certificate_.releases[0].mechanism
    assert net.certificate_.public["l1"] == 40.0 and "l1" not in plain.certificate_.public
    again = load(save(net, tmp_path / "net"))
    assert again.l1 == 40.0 and np.array_equal(again.predict(X), net.predict(X))


def test_a_norm_near_1_makes_most_coefficients_small_with_the_same_noise(table, tmp_path):
    X, y = table
    options = {"epsilon": 1e8, "regularisation": 1.0, "tube": 0.0, "noise": SeededNoise(0)}
    options |= {"n_features": 64}
    plain, sparse = (regression(**options, norm=p).fit(X, y) for p in (2.0, 1.3))
    parts = [np.sort(np.abs(m.coef_))[::-1] / np.abs(m.coef_).sum() for m in (plain, sparse)]
    assert parts[1][:8].sum() > parts[0][:8].sum() + 0.1
    assert sparse.certificate_.releases[0].mechanism == plain.certificate_.releases[0].mechanism
    assert sparse.certificate_.public["norm"] == 1.3 and "norm" not in plain.certificate_.public
    again = load(save(sparse, tmp_path / "sparse"))
    assert again.norm == 1.3 and np.array_equal(again.predict(X), sparse.predict(X))
