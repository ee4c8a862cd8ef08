"""Feature maps: one contract over every registered map, and the law or oracle of each."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import linalg, stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

from dpkernel.foundations.errors import CertificateError, ParameterError
from dpkernel.models.features import (
    FourierFeatures,
    LearnedFeatures,
    LinearFeatures,
    NormalisedFeatures,
    PolynomialMap,
    PublicEigenfeatures,
    PublicNystroem,
    RandomProjection,
    TensorSketch,
    WhitenedFeatures,
    feature_map_from_dict,
)
from dpkernel.models.features.base import REGISTRY, shifted_sobol, shrink_rows
from dpkernel.models.features.fourier import orthogonal_directions
from dpkernel.models.features.mercer import leading_products, solve_1d
from dpkernel.models.features.projection import walsh_hadamard
from dpkernel.models.kernels import (
    Additive,
    Gaussian,
    Laplace,
    Linear,
    Matern32,
    Matern52,
    Polynomial,
    RationalQuadratic,
    resolve_kernel,
)

D = 3
ARD = [0.8, 1.5, 3.0]
FOURIER = ("gaussian", "laplace", "matern12", "matern32", "matern52", "cauchy", "additive")
SMALL = FourierFeatures(64, length_scale=2.0)

# a map, the kernel that it approximates, and how far <phi, phi'> may be from it for 3 columns
CASES = {
    "linear": (LinearFeatures(), Linear(), 1e-6),
    "polynomial": (PolynomialMap(3, offset=0.5), Polynomial(1.0, 3, 0.5), 1e-6),
    "polynomial ard": (PolynomialMap(2, offset=0, length_scale=ARD), Polynomial(ARD, 2, 0.0), 1e-6),
    "sketch": (TensorSketch(2000, degree=4), Polynomial(degree=4), 0.25),
    "fourier ard": (FourierFeatures(2000, length_scale=ARD), Gaussian(ARD), 0.15),
    "fourier iid": (FourierFeatures(2000, orthogonal=False), Gaussian(), 0.2),
    "fourier quasi": (FourierFeatures(2000, quasi=True), Gaussian(), 0.05),
    "fourier rational": (
        FourierFeatures(2000, kernel=RationalQuadratic(alpha=3.0)),
        RationalQuadratic(alpha=3.0),
        0.2,
    ),
    "fourier additive quasi": (
        FourierFeatures(2000, kernel=Additive(base=Matern32()), length_scale=ARD, quasi=True),
        Additive(ARD, Matern32()),
        0.05,
    ),
    "projection": (
        RandomProjection(2000, base=FourierFeatures(2048, length_scale=2.0)),
        Gaussian(2.0),
        0.25,
    ),
    "projection hadamard": (
        RandomProjection(1000, base=FourierFeatures(1000, length_scale=2.0), structure="hadamard"),
        Gaussian(2.0),
        0.3,
    ),
    "projection small": (RandomProjection(7, base=SMALL), None, None),
    "projection blocks": (RandomProjection(150, base=SMALL, structure="hadamard"), None, None),
    "nystroem": (PublicNystroem(200), Gaussian(), 0.02),
    "nystroem matern": (
        PublicNystroem(300, kernel="matern32", length_scale=ARD),
        Matern32(ARD),
        0.05,
    ),
    "nystroem landmarks": (
        PublicNystroem(landmarks=np.linspace(-1, 1, 30).reshape(10, 3), kernel=Gaussian(2.0)),
        None,
        None,
    ),
    "nystroem arc-cosine": (PublicNystroem(300, kernel="arc_cosine"), None, None),
    "eigen": (PublicEigenfeatures(200), Gaussian(), 0.01),
    "eigen ard": (PublicEigenfeatures(200, length_scale=ARD), Gaussian(ARD), 0.01),
    "eigen laplace": (
        PublicEigenfeatures(600, kernel="laplace", length_scale=4.0),
        Laplace(4.0),
        0.1,
    ),
    "eigen gaussian measure": (
        PublicEigenfeatures(300, length_scale=2.0, measure="gaussian"),
        Gaussian(2.0),
        0.01,
    ),
    "eigen laplace gaussian": (
        PublicEigenfeatures(50, kernel="laplace", measure="gaussian", scale=0.5),
        None,
        None,
    ),
    "eigen sample": (PublicEigenfeatures(200, kernel="matern52"), Matern52(), 0.03),
    "eigen sample gaussian": (
        PublicEigenfeatures(40, kernel="additive", measure="gaussian", scale=0.5),
        Additive(),
        0.01,
    ),
    "eigen polynomial": (PublicEigenfeatures(50, kernel="polynomial"), Polynomial(), 1e-3),
    "normalised": (NormalisedFeatures(), None, None),
    "whitened": (WhitenedFeatures(40, length_scale=2.0), None, None),
    "whitened normal": (
        WhitenedFeatures(
            40, length_scale=2.0, mean=[0.1] * D, covariance=(0.2 * np.eye(D)).tolist()
        ),
        None,
        None,
    ),
    "learned": (LearnedFeatures(40), None, None),
    "learned metric": (
        LearnedFeatures(
            30,
            components=[
                {"family": "gaussian", "scale": 1.2, "metric": True, "weight": 0.5},
                {"family": "laplace", "scale": 6.0, "metric": True},
                {"family": "linear", "scale": 1.0},
            ],
            metric=np.diag(np.linspace(0.5, 1.5, D)).tolist(),
        ),
        None,
        None,
    ),
    "normalised fourier": (
        NormalisedFeatures(FourierFeatures(64), centre=[0.05] * 64, scale=2.0, constant=0.5),
        None,
        None,
    ),
} | {
    f"fourier {name}": (FourierFeatures(2000, kernel=name), resolve_kernel(name), 0.2)
    for name in FOURIER
}
_known = {case[0].kind for case in CASES.values()}
CASES |= {kind: (cls(), None, None) for kind, cls in REGISTRY.items() if kind not in _known}
MAPS = {name: case[0] for name, case in CASES.items()}
RANDOM = {
    name: phi
    for name, phi in MAPS.items()
    if "random_state" in phi.get_params()
    and not (isinstance(phi, PublicEigenfeatures) and phi.kernel in ("gaussian", "laplace"))
    and name != "nystroem landmarks"
}
every = pytest.mark.parametrize("phi", MAPS.values(), ids=list(MAPS))
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
SLACK = {np.float32: 2e-6, np.float64: 1e-13}  # rounding of a computed norm


@pytest.fixture
def X(rng):  # noqa: N802
    return rng.uniform(-1, 1, (50, D))


def built(phi, n_inputs=D, **changes):
    return clone(phi).set_params(**changes).build(n_inputs)


def test_every_map_is_registered_under_its_kind():
    assert {phi.kind: type(phi) for phi in MAPS.values()} == REGISTRY


def extreme_rows(dtype):
    info = np.finfo(dtype)
    values = [
        info.max,
        info.max / 2,
        1e30,
        1e19,
        1.0,
        math.nextafter(1.0, 2.0),
        1e-30,
        info.tiny,
        info.smallest_subnormal,
        0.0,
    ]
    signed = np.array([sign * value for value in values for sign in (1, -1)])
    rows = np.array(list(itertools.product(signed, repeat=D)))
    return rows.astype(dtype)


@every
class TestContract:
    @dtypes
    def test_rows_are_bounded_for_any_finite_input(self, phi, dtype, rng):
        phi = built(phi)
        X = np.vstack([extreme_rows(dtype)[::7], rng.uniform(-1, 1, (100, D)).astype(dtype)])
        before = X.copy()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Z = phi.transform_block(X)
        assert Z.shape == (len(X), phi.n_outputs) and Z.dtype == dtype
        assert np.all(np.isfinite(Z))
        norms = np.sqrt((Z.astype(np.float64) ** 2).sum(axis=1))
        assert norms.max() <= phi.row_norm_bound * (1 + SLACK[dtype])
        np.testing.assert_array_equal(X, before)
        assert not np.shares_memory(X, Z) and Z.flags.writeable

    def test_single_precision_agrees(self, phi, X):
        phi = built(phi)
        np.testing.assert_allclose(
            phi.transform_block(X.astype(np.float32)), phi.transform_block(X), atol=2e-3
        )

    def test_recipe_is_json_and_gives_the_same_map_bit_for_bit(self, phi, X):
        phi = built(phi)
        text = json.dumps(phi.to_dict(), allow_nan=False)
        again = feature_map_from_dict(json.loads(text))
        assert json.dumps(again.to_dict()) == text
        assert again.row_norm_bound == phi.row_norm_bound
        for rows in (X, X.astype(np.float32)):
            np.testing.assert_array_equal(again.transform_block(rows), phi.transform_block(rows))

    def test_same_parameters_same_map(self, phi, X):
        np.testing.assert_array_equal(built(phi).transform_block(X), built(phi).transform_block(X))
        copy = pickle.loads(pickle.dumps(built(phi)))
        np.testing.assert_array_equal(copy.transform_block(X), built(phi).transform_block(X))

    def test_fit_looks_at_the_number_of_columns_only(self, phi, X):
        wanted = built(phi).transform_block(X)
        for data in (X, 1000 * X, X[:1], np.zeros((9, D))):
            np.testing.assert_array_equal(clone(phi).fit(data).transform(X), wanted)

    def test_rows_are_functions_of_themselves(self, phi, X):
        """To rounding: a matrix product may sum in another order for another number of rows."""
        phi = built(phi)
        whole = phi.transform_block(X)
        alone = np.vstack([phi.transform_block(row[None]) for row in X])
        np.testing.assert_allclose(whole, alone, atol=1e-9)
        np.testing.assert_allclose(phi.transform_block(X[::-1])[::-1], whole, atol=1e-9)
        np.testing.assert_allclose(phi.transform_block(np.asfortranarray(X)), whole, atol=1e-9)
        assert phi.transform_block(X[:0]).shape == (0, phi.n_outputs)

    def test_parts_of_a_transformer(self, phi, X):
        with pytest.raises(NotFittedError):
            clone(phi).transform(X)
        again = clone(phi)
        assert not hasattr(again, "n_outputs")
        fitted = again.set_output(transform="pandas").fit(pd.DataFrame(X, columns=list("abc")))
        table = fitted.transform(pd.DataFrame(X, columns=list("abc")))
        assert list(table.columns) == list(fitted.get_feature_names_out())
        assert table.shape == (len(X), fitted.n_outputs)
        assert list(fitted.feature_names_in_) == list("abc")

    def test_documented_as_mathematics(self, phi):
        text = type(phi).__doc__
        assert "phi" in text or "h(x)" in text


@pytest.mark.parametrize("name", RANDOM)
def test_another_seed_is_another_map(name, X):
    first, second = (built(RANDOM[name], random_state=s).transform_block(X) for s in (0, 1))
    assert first.shape != second.shape or not np.allclose(first, second, atol=1e-3)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[1] is not None])
def test_inner_products_are_the_kernel(name, rng):
    phi, kernel, tolerance = CASES[name]
    X = rng.uniform(-1, 1, (60, D))
    Z = built(phi).transform_block(X)
    assert np.abs(Z @ Z.T - kernel(X)).max() < tolerance


class Paired(FourierFeatures):
    """scikit-learn's checks set n_components to 1, which has no pair: here 1 means 2."""

    def _build(self, n_inputs):
        given, self.n_components = self.n_components, max(self.n_components, 2)
        super()._build(n_inputs)
        self.n_components = given


@pytest.mark.parametrize("kind", sorted(REGISTRY))
def test_check_estimator(kind):
    small = {
        "fourier": Paired(),
        "projection": RandomProjection(8, base=FourierFeatures(16)),
        "nystroem": PublicNystroem(8),
        "eigen": PublicEigenfeatures(8),
    }
    phi = small.get(kind, REGISTRY[kind]())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(phi, on_fail=None, on_skip=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert failed == {}


def test_two_kinds_of_map_with_one_seed_draw_independent_numbers():
    first, second = (phi._public_uniforms().random(100) for phi in (SMALL, PublicNystroem()))
    assert not np.any(first == second)


def test_shifted_sobol_points_fill_the_cube(rng):
    points = shifted_sobol(500, 3, rng)
    assert points.shape == (500, 3) and points.min() >= 0 and points.max() < 1
    counts = np.histogramdd(points, bins=2, range=[(0, 1)] * 3)[0]
    assert np.abs(counts - 500 / 8).max() < 20
    assert shifted_sobol(4, 20_001, rng).shape == (4, 20_001)
    assert shifted_sobol(1, 2, rng).shape == (1, 2)


class TestFourier:
    @pytest.mark.parametrize("n", [1, 2, 100, 700])
    @dtypes
    def test_equals_the_naive_formula(self, n, dtype, rng):
        phi = FourierFeatures(1000, length_scale=1.5).build(4)
        X = rng.uniform(-1, 1, (n, 4)).astype(dtype)
        phase = X.astype(np.float64) @ phi.tables_[np.dtype(np.float64)][0]
        wanted = np.concatenate((np.cos(phase), np.sin(phase)), axis=1) / math.sqrt(500)
        atol = 1e-15 if dtype == np.float64 else 2e-7
        np.testing.assert_allclose(phi.transform_block(X), wanted, atol=atol)

    def test_half_angles_at_awkward_phases(self):
        """The tangent of pi/2 is huge, not infinite; and phases may be huge."""
        phi = FourierFeatures(2, orthogonal=False).build(1)
        phi.tables_ = {k: (np.ones((1, 1), k), np.ones((), k)) for k in phi.tables_}
        multiples = np.pi * np.arange(-40, 41) / 4
        X = np.concatenate([multiples, [1e-308, 5e-324, 1e8, 1e22, -1e29]])[:, None]
        wanted = np.hstack([np.cos(X), np.sin(X)])
        np.testing.assert_allclose(phi.transform_block(X), wanted, atol=5e-16)

    def test_orthogonal_directions(self, rng):
        V = orthogonal_directions(25, 10, rng)
        for block in (V[:10], V[10:20], V[20:]):
            np.testing.assert_allclose(block @ block.T, np.eye(len(block)), atol=1e-12)
        assert orthogonal_directions(3, 10, rng).shape == (3, 10)
        np.testing.assert_array_equal(np.abs(orthogonal_directions(5, 1, rng)), np.ones((5, 1)))

    def test_directions_are_uniform_on_the_sphere(self, rng):
        """Each entry squared is Beta(1/2, (d-1)/2); a frame without sign repair is not (1e-9)."""
        V = orthogonal_directions(6000, 3, rng)
        entry = V[2::3, 2]
        assert stats.kstest(entry**2, stats.beta(0.5, 1).cdf).pvalue > 1e-9
        assert stats.binomtest(int((entry > 0).sum()), len(entry)).pvalue > 1e-9
        raw = np.linalg.qr(rng.normal(size=(2000, 3, 3)))[0][:, 2, 2]
        assert stats.binomtest(int((raw > 0).sum()), 2000).pvalue < 1e-9

    @pytest.mark.parametrize("kernel", ["gaussian", "matern32", "cauchy"])
    def test_orthogonal_blocks_are_unbiased_and_have_less_variance(self, kernel, rng, seed):
        X, Y = rng.uniform(-1, 1, (2, 20, 8))
        wanted = np.diag(resolve_kernel(kernel, 3.0)(X, Y))
        spread = {}
        for orthogonal in (True, False):
            estimates = []
            for i in range(200):
                phi = FourierFeatures(
                    16,
                    kernel=kernel,
                    length_scale=3.0,
                    orthogonal=orthogonal,
                    random_state=200 * seed + i,
                ).build(8)
                estimates.append((phi.transform_block(X) * phi.transform_block(Y)).sum(axis=1))
            estimates = np.array(estimates)
            error = estimates.mean(axis=0) - wanted
            # 8 standard errors of a mean of 200: false alarm below 1e-10
            assert np.all(np.abs(error) < 8 * estimates.std(axis=0) / math.sqrt(200))
            spread[orthogonal] = estimates.var(axis=0).mean()
        assert spread[True] < 0.95 * spread[False]

    @pytest.mark.parametrize("kernel", ["gaussian", "laplace", "matern12", "additive"])
    def test_error_falls_like_one_over_the_root_of_the_size(self, kernel, rng, seed):
        X = rng.uniform(-1, 1, (40, 2))
        K = resolve_kernel(kernel)(X)
        errors = []
        for size in (100, 1600):
            squares = []
            for i in range(30):
                phi = FourierFeatures(size, kernel=kernel, random_state=seed + 1000 * i).build(2)
                Z = phi.transform_block(X)
                squares.append(np.mean((Z @ Z.T - K) ** 2))
            errors.append(math.sqrt(np.mean(squares)))
        assert 2.5 < errors[0] / errors[1] < 6.4  # 4 in the mean

    def test_quasi_points_beat_random_ones_in_two_columns(self, rng, seed):
        X = rng.uniform(-1, 1, (40, 2))
        errors = {}
        for quasi in (True, False):
            phis = (
                FourierFeatures(512, quasi=quasi, orthogonal=False, random_state=seed + i).build(2)
                for i in range(10)
            )
            grams = [phi.transform_block(X) @ phi.transform_block(X).T for phi in phis]
            errors[quasi] = np.mean([(gram - Gaussian()(X)) ** 2 for gram in grams])
        assert errors[True] < 0.2 * errors[False]

    @pytest.mark.parametrize("d", [1, 2, 4, 5])
    @pytest.mark.parametrize("quasi", [True, False])
    def test_additive_covers_every_column(self, d, quasi, rng):
        X = rng.uniform(-1, 1, (30, d))
        phi = FourierFeatures(4000, kernel=Additive(base=Matern32()), quasi=quasi).build(d)
        Z = phi.transform_block(X)
        error = np.abs(Z @ Z.T - Additive(base=Matern32())(X)).max()
        assert error < (0.02 if quasi else 0.2)

    def test_additive_gives_each_column_its_share(self):
        phi = FourierFeatures(2 * 8, kernel="additive").build(3)
        X = np.zeros((2, 3))
        X[1, 1] = 1e3  # a column far away takes no more than its third
        Z = phi.transform_block(X)
        assert np.linalg.norm(Z, axis=1) == pytest.approx([1, 1], abs=1e-12)
        assert Z[0] @ Z[1] >= 1 / 3 - 1e-9

    def test_defaults_of_earlier_calls(self):
        phi = FourierFeatures(8, length_scale=2.0, random_state=3).build(2)
        assert phi.n_outputs == 8 and phi.row_norm_bound == 1.0
        assert LinearFeatures().build(4).n_outputs == 4


def unclipped(phi):
    phi._bound = math.inf
    return phi


class TestProjection:
    def paths(self, X, n_seeds, seed, m=10, **options):
        """h / sqrt(1/M) for many seeds, without clipping, and the features of the base map."""
        base = FourierFeatures(64, length_scale=1.0)
        for i in range(n_seeds):
            phi = RandomProjection(m, base=base, random_state=n_seeds * seed + i, **options)
            yield unclipped(phi.build(X.shape[1])).transform_block(X) * math.sqrt(m)

    def test_norms_are_chi_square(self, rng, seed):
        """Kolmogorov-Smirnov, false alarm below 1e-9. A wrong scale and Hadamard rows fail."""
        X = rng.uniform(-1, 1, (1, 3))
        squares = np.array([(h**2).sum() for h in self.paths(X, 600, seed)])
        law = stats.chi2(10).cdf
        assert stats.kstest(squares, law).pvalue > 1e-9
        assert stats.kstest(squares * 13 / 10, law).pvalue < 1e-9
        full = self.paths(X, 300, seed, m=64, structure="hadamard")
        rigid = np.array([(h**2).sum() for h in full])
        assert stats.kstest(rigid, stats.chi2(64).cdf).pvalue < 1e-9

    def test_is_a_gaussian_process_with_the_covariance_of_the_base_map(self, rng, seed):
        X = rng.uniform(-1, 1, (4, 3))
        phi = FourierFeatures(64, length_scale=1.0).build(3).transform_block(X)
        draws = np.hstack(list(self.paths(X, 600, seed)))  # independent columns
        n = draws.shape[1]
        covariance = draws @ draws.T / n
        # entries have variance at most 2/n: 7.5 standard deviations, false alarm below 1e-11
        assert np.abs(covariance - phi @ phi.T).max() < 7.5 * math.sqrt(2 / n)
        assert np.abs(draws.mean(axis=1)).max() < 7.5 / math.sqrt(n)
        for weights in ([1, 1, 0, 0], [1, -2, 3, 1]):  # any combination of values is normal
            deviation = np.linalg.norm(np.array(weights) @ phi)
            assert stats.kstest(weights @ draws / deviation, stats.norm.cdf).pvalue > 1e-9
        wide = weights @ draws / (0.7 * deviation)  # and not of another variance
        assert stats.kstest(wide, stats.norm.cdf).pvalue < 1e-9

    @pytest.mark.parametrize("structure", ["gaussian", "hadamard"])
    def test_as_close_to_the_kernel_as_the_cholesky_construction(self, structure, rng, seed):
        """Gram matrices of L G / sqrt(M) and of R phi / sqrt(M) vary alike around K."""
        X = rng.uniform(-1, 1, (40, 2))
        K = Gaussian()(X)
        factor = np.linalg.cholesky(K + 1e-10 * np.eye(40))
        base = FourierFeatures(4096, quasi=True)
        errors = {}
        for m in (25, 100):
            ours, exact = [], []
            for i in range(25):
                phi = RandomProjection(
                    m, base=base, structure=structure, random_state=100 * seed + i
                )
                h = unclipped(phi.build(2)).transform_block(X)
                ours.append(np.mean((h @ h.T - K) ** 2))
                h = factor @ rng.normal(size=(40, m)) / math.sqrt(m)
                exact.append(np.mean((h @ h.T - K) ** 2))
            errors[m] = np.mean(ours), np.mean(exact)
            assert 0.4 < errors[m][0] / errors[m][1] < 2.5
        assert 2.0 < errors[25][0] / errors[100][0] < 8.0  # 4 in the mean: the same rate

    def test_bound_is_the_quantile_rule(self):
        for m, share in ((10, 0.9), (50, 0.9), (199, 0.9), (200, None), (300, None)):
            bound = RandomProjection(m, base=SMALL).build(2).row_norm_bound
            wanted = 1.0 if share is None else math.sqrt(stats.chi2(m).ppf(share) / m)
            assert bound == pytest.approx(wanted, rel=1e-12)
        scaled = RandomProjection(300, base=PolynomialMap(2, length_scale=0.5)).build(2)
        assert scaled.row_norm_bound == pytest.approx(2.5)

    @pytest.mark.parametrize(("m", "most"), [(10, 0.02), (50, 0.01), (200, 0.025)])
    def test_clipping_shrinks_little(self, m, most, rng, seed):
        """The published mean shrinkages .8 %, .4 %, 1.9 %, over many seeds."""
        X = rng.uniform(-1, 1, (1, 3))
        before = np.array([np.linalg.norm(h) for h in self.paths(X, 300, seed, m=m)]) / math.sqrt(m)
        bound = RandomProjection(m, base=SMALL).build(3).row_norm_bound
        assert 1 - np.minimum(before, bound).sum() / before.sum() < most

    @pytest.mark.parametrize("side", [1, 2, 32, 64, 128, 4096])
    @dtypes
    def test_walsh_hadamard_equals_the_matrix(self, side, dtype, rng):
        rows = rng.integers(-8, 9, (3, side)).astype(dtype)
        before = rows.copy()
        np.testing.assert_array_equal(walsh_hadamard(rows), rows @ linalg.hadamard(side))
        np.testing.assert_array_equal(rows, before)

    @pytest.mark.parametrize(("m", "width"), [(10, 64), (64, 64), (150, 64), (20, 48), (90, 10)])
    def test_structured_projection_equals_its_matrix(self, m, width, rng):
        phi = RandomProjection(m, base=FourierFeatures(width), structure="hadamard").build(2)
        unclipped(phi)
        side = phi._side
        H = linalg.hadamard(side)
        parts = [
            (H[:, :width] * signs)[taken]
            for signs, taken in zip(phi._signs, phi._taken, strict=True)
        ]
        R = np.vstack(parts)
        assert R.shape == (m, width)
        X = rng.uniform(-1, 1, (5, 2))
        wanted = FourierFeatures(width).build(2).transform_block(X) @ R.T / math.sqrt(m)
        np.testing.assert_allclose(phi.transform_block(X), wanted, atol=1e-12)

    @pytest.mark.parametrize("structure", ["gaussian", "hadamard"])
    def test_no_array_of_all_base_features_exists(self, structure):
        phi = RandomProjection(8, structure=structure).build(2)
        X = np.zeros((8000, 2), np.float32)
        phi.transform_block(X[:10])
        tracemalloc.start()
        phi.transform_block(X)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 30e6 < 8000 * 4096 * 4

    def test_the_base_is_not_touched(self, X):
        base = FourierFeatures(16)
        RandomProjection(4, base=base).fit(X)
        assert not hasattr(base, "n_outputs")


class TestNystroem:
    def test_exact_at_the_landmarks(self, rng):
        U = rng.uniform(-1, 1, (30, 3))
        kernel = Matern32(0.7)
        phi = PublicNystroem(landmarks=U, kernel=kernel).build(3)
        assert phi.n_outputs == 30
        X = np.vstack([U, rng.uniform(-1, 1, (20, 3))])
        Z = phi.transform_block(X)
        K = kernel(X)
        np.testing.assert_allclose((Z @ Z.T)[:30], K[:30], atol=1e-6)
        rest = K - Z @ Z.T  # what a projection leaves is positive semi-definite
        assert np.linalg.eigvalsh(rest).min() > -1e-6

    def test_equals_the_naive_formula(self, rng):
        U, X = rng.uniform(-1, 1, (8, 2)), rng.uniform(-1, 1, (5, 2))
        kernel = Laplace(0.5)
        root = linalg.sqrtm(np.linalg.inv(kernel(U)))
        phi = PublicNystroem(landmarks=U.tolist(), kernel="laplace", length_scale=0.5).build(2)
        np.testing.assert_allclose(phi.transform_block(X), kernel(X, U) @ root, atol=1e-9)

    def test_repeated_landmarks_do_no_harm(self):
        phi = PublicNystroem(landmarks=np.zeros((4, 2))).build(2)
        Z = phi.transform_block(np.array([[0.0, 0.0], [0.3, 0.1]]))
        K = Gaussian()(np.array([[0.0, 0.0], [0.3, 0.1]]))
        assert Z[0] @ Z[1] == pytest.approx(K[0, 1], rel=1e-9)


def quadrature(measure, scale, n=400):
    """Nodes and weights of the measure, finer than and apart from those the maps use."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    if measure == "uniform":
        return nodes, weights / 2
    nodes = 6 * scale * nodes
    weights = weights * np.exp(-0.5 * (nodes / scale) ** 2)
    return nodes, weights / weights.sum()


ONE_COLUMN = [
    (Gaussian(0.1), "uniform", 1.0, 1e-9),
    (Gaussian(1.0), "uniform", 1.0, 1e-9),
    (Gaussian(6.0), "uniform", 1.0, 1e-9),
    (Laplace(0.5), "uniform", 1.0, 1e-4),
    (Laplace(5.0), "uniform", 1.0, 1e-4),
    (Gaussian(1.0), "gaussian", 1.0, 1e-8),
    (Gaussian(0.5), "gaussian", 2.0, 1e-8),
    (Laplace(2.0), "gaussian", 1.0, 1e-3),
]


class TestEigen:
    @pytest.mark.parametrize(
        ("kernel", "measure", "scale", "atol"), ONE_COLUMN, ids=lambda v: str(v)[:12]
    )
    def test_one_column_solves_the_integral_equation(self, kernel, measure, scale, atol):
        solved = solve_1d(kernel, measure, scale)
        n = min(len(solved.eigenvalues), 20)
        x, w = quadrature(measure, scale)
        mu = solved.eigenvalues[:n]
        psi = solved.evaluate(x, n) / np.sqrt(mu)[:, None]
        np.testing.assert_allclose((psi * w) @ psi.T, np.eye(n), atol=10 * atol)
        left = (kernel(x[:, None]) * w) @ psi.T
        reliable = w > 1e-10  # far in the tail psi is large and matters to nobody
        np.testing.assert_allclose(left[reliable], (psi.T * mu)[reliable], atol=atol)
        assert np.all(np.diff(solved.eigenvalues) < 0)
        assert solved.eigenvalues.sum() <= 1 + 1e-9
        assert np.all((solved.evaluate(x, n) ** 2).sum(axis=0) <= 1 + 1e-9)
        signs = np.sign(solved.evaluate(np.array([1e-3 * scale]), n)[:, 0])
        assert np.all(signs == 1)

    def test_gaussian_kernel_and_measure_have_the_known_spectrum(self):
        """mu_k = sqrt(2a/A) (b/A)^k with a = 1/4s^2, b = 1/2l^2, A = a + b + sqrt(a^2 + 2ab)."""
        for length, s in ((1.0, 1.0), (0.5, 1.0), (2.0, 0.5)):
            a, b = 1 / (4 * s * s), 1 / (2 * length * length)
            total = a + b + math.sqrt(a * a + 2 * a * b)
            got = solve_1d(Gaussian(length), "gaussian", s).eigenvalues[:8]
            wanted = math.sqrt(2 * a / total) * (b / total) ** np.arange(8)
            np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-8)  # cut at 6 deviations

    @pytest.mark.parametrize("scales", [[1.0] * 3, [0.5, 1.0, 2.0], [0.3, 0.3, 4.0]])
    @pytest.mark.parametrize("n", [1, 2, 17, 200])
    def test_leading_products_equal_full_enumeration(self, scales, n):
        spectra = [solve_1d(Gaussian(s), "uniform", 1.0).eigenvalues for s in scales]
        found = leading_products(spectra, n)
        assert len(set(found)) == len(found) == n
        value = [math.prod(spectra[j][dict(index).get(j, 0)] for j in range(3)) for index in found]
        every = sorted((math.prod(c) for c in itertools.product(*spectra)), reverse=True)
        np.testing.assert_allclose(value, every[:n], rtol=1e-8)

    def test_ties_do_not_depend_on_the_last_bits(self):
        """Columns of one length scale tie; perturbed spectra must give the same list."""
        mu = solve_1d(Gaussian(2.0), "uniform", 1.0).eigenvalues
        rng = np.random.default_rng(0)
        plain = leading_products([mu] * 6, 300)
        moved = [mu * (1 + 1e-14 * rng.uniform(-1, 1, len(mu))) for _ in range(6)]
        assert leading_products(moved, 300) == plain

    @pytest.mark.parametrize("kernel", [Gaussian((0.7, 1.5)), Laplace((2.0, 5.0))])
    @pytest.mark.parametrize("measure", ["uniform", "gaussian"])
    def test_two_columns_are_orthonormal(self, kernel, measure):
        phi = PublicEigenfeatures(30, kernel=kernel, measure=measure, scale=0.7).build(2)
        x, w = quadrature(measure, 0.7, n=200)
        grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=2).reshape(-1, 2)
        psi = phi.transform_block(grid) / np.sqrt(phi.spectrum)
        gram = (psi * np.outer(w, w).reshape(-1, 1)).T @ psi
        np.testing.assert_allclose(gram, np.eye(30), atol=1e-3)
        assert np.all(np.diff(phi.spectrum) <= 1e-15)

    def test_features_equal_the_naive_product(self, rng):
        scales = [0.6, 2.0, 0.6, 1.1]
        phi = PublicEigenfeatures(120, length_scale=scales).build(4)
        solved = [solve_1d(Gaussian(s), "uniform", 1.0) for s in scales]
        indices = leading_products([s.eigenvalues for s in solved], 120)
        X = rng.uniform(-1, 1, (30, 4))
        tables = [s.evaluate(X[:, j].copy(), len(s.eigenvalues)) for j, s in enumerate(solved)]
        wanted = np.stack(
            [math.prod(tables[j][dict(i).get(j, 0)] for j in range(4)) for i in indices], axis=1
        )
        np.testing.assert_allclose(phi.transform_block(X), wanted, atol=1e-12)

    def test_many_columns(self, rng):
        """500 columns: nearly orthonormal under the measure, by a sample of 4000 rows."""
        phi = PublicEigenfeatures(300, length_scale=0.7 * math.sqrt(500)).build(500)
        X = rng.uniform(-1, 1, (4000, 500))
        psi = phi.transform_block(X) / np.sqrt(phi.spectrum)
        gram = psi.T @ psi / len(X)
        assert np.abs(gram - np.eye(300)).max() < 0.25
        assert 0.5 < phi.spectrum[0] < 0.52 and phi.spectrum.sum() < 1
        # of the d first-order functions each explains the same
        assert np.ptp(phi.spectrum[1:]) < 1e-9

    def test_best_of_its_rank(self, rng):
        """The mean square error is the sum of the squared eigenvalues that are left out."""
        phi = PublicEigenfeatures(20, length_scale=1.0).build(2)
        more = PublicEigenfeatures(60, length_scale=1.0).build(2)
        X, Y = rng.uniform(-1, 1, (2, 4000, 2))
        error = (phi.transform_block(X) * phi.transform_block(Y)).sum(axis=1)
        error -= np.exp(-((X - Y) ** 2).sum(axis=1) / 2)
        left = (more.spectrum[20:] ** 2).sum()
        assert np.mean(error**2) == pytest.approx(left, rel=0.5)

    def test_sample_and_products_agree(self):
        """The spectrum of a public sample is that of the exact eigenfunctions, to a few percent."""

        class Hidden(Gaussian):
            is_product = False

        exact = PublicEigenfeatures(10, kernel=Gaussian(1.5)).build(2)
        sampled = PublicEigenfeatures(10, kernel=Hidden(1.5)).build(2)
        np.testing.assert_allclose(sampled.spectrum, exact.spectrum, rtol=0.05)
        x, w = quadrature("uniform", 1.0, n=40)
        grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=2).reshape(-1, 2)
        psi = sampled.transform_block(grid) / np.sqrt(sampled.spectrum)
        gram = (psi * np.outer(w, w).reshape(-1, 1)).T @ psi
        np.testing.assert_allclose(gram, np.eye(10), atol=0.05)

    def test_inputs_are_clipped_to_the_box(self):
        phi = PublicEigenfeatures(10).build(2)
        far, edge = np.array([[5.0, -1e308]]), np.array([[1.0, -1.0]])
        np.testing.assert_array_equal(phi.transform_block(far), phi.transform_block(edge))

    def test_fewer_outputs_where_eigenvalues_vanish(self):
        phi = PublicEigenfeatures(50, length_scale=3.0).build(1)
        assert phi.n_outputs == len(phi.spectrum) < 10
        assert PublicEigenfeatures(50, length_scale=1e9).build(3).n_outputs == 1
        assert PublicEigenfeatures(50, kernel="linear").build(3).n_outputs == 3

    def test_spectrum_is_a_copy(self):
        phi = PublicEigenfeatures(5).build(2)
        phi.spectrum[0] = 7
        assert phi.spectrum[0] < 1


class TestPolynomial:
    @pytest.mark.parametrize("degree", [1, 2, 5])
    @pytest.mark.parametrize("offset", [0.0, 0.5, 2.0])
    def test_exact(self, degree, offset, rng):
        X = rng.uniform(-1, 1, (20, 4))
        phi = PolynomialMap(degree, offset=offset).build(4)
        assert phi.n_outputs == math.comb(4 + degree - (offset == 0), degree)
        Z = phi.transform_block(X)
        np.testing.assert_allclose(Z @ Z.T, Polynomial(1.0, degree, offset)(X), atol=1e-13)
        corner = phi.transform_block(np.ones((1, 4)))
        assert np.linalg.norm(corner) == pytest.approx(phi.row_norm_bound, rel=1e-12) == 1

    def test_degree_one_without_offset_is_linear(self, rng):
        X = rng.uniform(-1, 1, (5, 3))
        np.testing.assert_allclose(
            PolynomialMap(1, offset=0).build(3).transform_block(X),
            LinearFeatures().build(3).transform_block(X),
        )

    @pytest.mark.parametrize(("m", "degree"), [(8, 1), (9, 2), (16, 3), (1, 2)])
    @dtypes
    def test_sketch_equals_its_explicit_sum(self, m, degree, dtype, rng):
        """phi_i = sum over j_1 .. j_p with h_1(j_1) + .. + h_p(j_p) = i mod M of signed products."""
        phi = TensorSketch(m, degree=degree, offset=0.5).build(2)
        phi._kappa = math.inf
        X = rng.uniform(-1, 1, (4, 2)).astype(dtype)
        u = np.hstack([np.ones((4, 1)), X]) * phi._factors
        wanted = np.zeros((4, m))
        for js in itertools.product(range(3), repeat=degree):
            place = sum(phi._places[q, j] for q, j in enumerate(js)) % m
            sign = math.prod(phi._signs[q, j] for q, j in enumerate(js))
            wanted[:, place] += sign * math.prod(u[:, j] for j in js)
        np.testing.assert_allclose(phi.transform_block(X), wanted, atol=1e-6)

    def test_sketch_is_unbiased_within_its_variance(self, rng, seed):
        X, Y = rng.uniform(-1, 1, (2, 10, 3))
        kernel = Polynomial(degree=3)
        wanted = np.diag(kernel(X, Y))
        estimates = []
        for i in range(300):
            phi = TensorSketch(32, degree=3, random_state=300 * seed + i).build(3)
            phi._kappa = math.inf
            estimates.append((phi.transform_block(X) * phi.transform_block(Y)).sum(axis=1))
        estimates = np.array(estimates)
        norms = np.diag(kernel(X)) * np.diag(kernel(Y))
        most = (2 + 3**3) * norms / 32
        assert np.all(estimates.var(axis=0) < most)
        # 8 standard errors: false alarm below 1e-10
        assert np.all(np.abs(estimates.mean(axis=0) - wanted) < 8 * np.sqrt(most / 300))


LAWS = {
    "uniform": {},
    "normal": {
        "mean": [0.2, -0.3, 0.0],
        "covariance": [[0.1, 0.05, 0.0], [0.05, 0.2, 0.02], [0.0, 0.02, 0.05]],
    },
}


class TestWhitened:
    def sample(self, law, rng, n=30_000):
        if not law:
            return rng.uniform(-1, 1, (n, D))
        return np.clip(rng.multivariate_normal(law["mean"], law["covariance"], n), -1, 1)

    @pytest.mark.parametrize("law", LAWS)
    @pytest.mark.parametrize("kernel", ["gaussian", "matern32"])
    def test_orthonormal_with_a_constant_on_the_stated_law(self, law, kernel, rng):
        options = LAWS[law]
        phi = WhitenedFeatures(30, kernel=kernel, length_scale=1.5, **options).build(D)
        Z = phi.transform_block(self.sample(options, rng))
        rows = np.column_stack([np.ones(len(Z)), Z])
        gram = rows.T @ rows / len(rows)
        # made so on 4096 points; clipping at 4 takes a little from later ones
        assert np.abs((gram - np.eye(31))[:10, :10]).max() < 0.1
        assert np.sqrt(np.mean((gram - np.eye(31)) ** 2)) < 0.05
        assert np.all(np.diff(phi.spectrum) <= 1e-12) and np.all(phi.spectrum > 0)

    def test_another_law_is_another_map(self, rng):
        """Features made for the box are far from orthonormal where the data are."""
        law = LAWS["normal"]
        X = self.sample(law, rng, 20_000)
        box, own = (WhitenedFeatures(30, length_scale=1.5, **o).build(D) for o in ({}, law))
        spread = [np.abs(np.cov(phi.transform_block(X).T) - np.eye(30)).max() for phi in (box, own)]
        assert spread[0] > 2 * spread[1]

    @pytest.mark.parametrize("law", LAWS)
    def test_eigenfunctions_of_the_kernel(self, law, rng):
        """Few of them carry most of a smooth function."""
        options = LAWS[law]
        X = self.sample(options, rng, 4000)
        y = np.cos(X @ [1.0, -2.0, 0.5])
        errors = []
        for size in (3, 10, 30):
            Z = WhitenedFeatures(size, length_scale=1.5, **options).build(D).transform_block(X)
            Z = np.column_stack([np.ones(len(Z)), Z])
            errors.append(np.mean((y - Z @ np.linalg.lstsq(Z, y, rcond=None)[0]) ** 2) / y.var())
        assert errors[0] > 3 * errors[1] and errors[1] > 3 * errors[2] and errors[2] < 0.01

    def test_many_components_are_made_orthonormal_on_many_points(self, rng):
        phi = WhitenedFeatures(700, kernel="matern12", length_scale=1.0).build(D)
        Z = phi.transform_block(self.sample({}, rng, 20_000))
        assert phi.n_outputs == 700
        assert np.sqrt(np.mean((Z.T @ Z / len(Z) - np.eye(700)) ** 2)) < 0.03

    def test_bounded_by_the_clip(self):
        phi = WhitenedFeatures(30, length_scale=2.0).build(D)
        Z = phi.transform_block(extreme_rows(np.float64))
        assert np.abs(Z).max() <= 4 and phi.row_norm_bound == pytest.approx(4 * math.sqrt(30))
        assert np.abs(Z).max() == 4  # or the clip is not needed


BAD = {
    "odd": (FourierFeatures(7), "even for the Gaussian kernel, and >= 2. Got 7"),
    "zero": (FourierFeatures(0), "'n_components' parameter of FourierFeatures must be an int"),
    "half": (RandomProjection(2.5), "'n_components' parameter of RandomProjection.*Got 2.5"),
    "not shift-invariant": (
        FourierFeatures(8, kernel="linear"),
        "a shift-invariant kernel.*linear",
    ),
    "additive": (FourierFeatures(4, kernel="additive"), "at least 6, a pair per column"),
    "kernel": (PublicNystroem(8, kernel="rbf"), "a kernel or one of 'gaussian'"),
    "length scales": (FourierFeatures(8, length_scale=[1.0, 2.0]), "3 numbers, one per column"),
    "seed": (FourierFeatures(8, random_state=-1), "'random_state' parameter of FourierFeatures"),
    "no seed": (PublicEigenfeatures(8, random_state=None), "public, and part of the model"),
    "structure": (RandomProjection(8, structure="sparse"), "one of 'gaussian', 'hadamard'"),
    "base": (RandomProjection(8, base="fourier"), "a feature map or None. Got 'str'"),
    "landmarks": (PublicNystroem(landmarks="data"), "'box' or a finite array"),
    "landmark shape": (PublicNystroem(landmarks=np.ones((4, 2))), "3 column.*shape \\(4, 2\\)"),
    "landmark nan": (PublicNystroem(landmarks=[[math.nan] * 3]), "'box' or a finite array"),
    "measure": (PublicEigenfeatures(8, measure="data"), "one of 'uniform', 'gaussian'"),
    "scale": (PublicEigenfeatures(8, scale=0.0), "'scale' parameter of PublicEigenfeatures"),
    "narrow": (PublicEigenfeatures(8, length_scale=1e-4), "Use FourierFeatures for a kernel"),
    "one moment": (WhitenedFeatures(8, mean=[0.0] * 3), "both given, or none"),
    "moments": (
        WhitenedFeatures(8, mean=[0.0] * 3, covariance=[[1.0]]),
        "of shapes \\(3,\\) and \\(3, 3\\)",
    ),
    "moment nan": (WhitenedFeatures(8, mean=[math.nan] * 3, covariance=np.eye(3)), "finite, of"),
    "too many": (WhitenedFeatures(2001), "an int from 1 to 2000"),
    "no component": (
        LearnedFeatures(8, components=[]),
        "'components' parameter of LearnedFeatures",
    ),
    "bad component": (
        LearnedFeatures(8, components=[{"family": "cosine", "scale": 1.0}]),
        "'family' parameter of Component",
    ),
    "half a law": (LearnedFeatures(8, low=[0.0] * 3), "'low, high, shares' parameter"),
    "whitened scales": (WhitenedFeatures(8, length_scale=[1.0, 2.0]), "3 numbers, one per column"),
    "whitened seed": (WhitenedFeatures(8, random_state=-1), "'random_state' parameter of Whitened"),
    "monomials": (PolynomialMap(80), "at most 20000 monomials, not 91881.*TensorSketch"),
    "degree": (PolynomialMap(0), "'degree' parameter of the polynomial kernel"),
    "tiny scale": (PolynomialMap(9, length_scale=1e-9), "bounded by a number in the range"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_parameters_are_refused(case):
    phi, message = BAD[case]
    with pytest.raises(ParameterError, match=message):
        phi.build(3)


@pytest.mark.parametrize(
    "data",
    [
        {"kind": "none", "n_inputs": 2, "parameters": {}},
        {"kind": "fourier", "n_inputs": 2, "parameters": {"n_components": 7}},
        {"kind": "fourier", "n_inputs": 2, "parameters": {"kernel": {"kind": "rbf"}}},
        {"kind": "projection", "n_inputs": 2, "parameters": {}},
        {"kind": "fourier", "parameters": {}},
    ],
)
def test_malformed_recipes_are_refused(data):
    with pytest.raises(CertificateError, match="The feature map can't be read"):
        feature_map_from_dict(data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_long_row_is_shrunk_and_no_other_row_feels_it(dtype, rng):
    rows = (0.1 * rng.normal(size=(6, 5))).astype(dtype)
    alone = shrink_rows(rows.copy(), 1.0)
    for length in (1.5, 1e4):
        longer = rows.copy()
        longer[2] *= length / np.linalg.norm(rows[2])
        found = shrink_rows(longer, 1.0)
        assert np.linalg.norm(found[2].astype(np.float64)) <= 1 + 4 * np.finfo(dtype).eps
        kept = [0, 1, 3, 4, 5]
        assert np.array_equal(found[kept], alone[kept])


def test_normalised_rows_are_numbers_whatever_the_inputs_are():
    strange = np.array([[np.nan, 0.5], [0.2, np.inf], [-np.inf, np.nan], [1e308, -1e308]])
    for options in ({}, {"scale": 1e90, "constant": 1e-90}):
        features = NormalisedFeatures(**options).build(2)
        found = features.transform_block(strange)
        assert np.isfinite(found).all()
        assert np.linalg.norm(found, axis=1).max() <= features.row_norm_bound * (1 + 1e-15)


class Unhashable(Gaussian):
    __hash__ = None


@pytest.mark.parametrize("wrap", [lambda kernel: kernel, lambda kernel: Additive(base=kernel)])
def test_a_kernel_of_the_users_own_needs_no_hash(wrap):
    for n_inputs in (1, 2):
        own, known = (
            PublicEigenfeatures(6, kernel=wrap(kernel(0.5))).build(n_inputs).spectrum
            for kernel in (Unhashable, Gaussian)
        )
        np.testing.assert_array_equal(own, known)
