"""Kernels: one contract over every entry of the registry, and the formula of each by hand."""

from __future__ import annotations

import json
import math
import warnings

import numpy as np
import pytest
from scipy import stats

from dpkernel.foundations.errors import ParameterError
from dpkernel.models.kernels import (
    REGISTRY,
    Additive,
    ArcCosine,
    Gaussian,
    Isotropic,
    Laplace,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    OnBox,
    Polynomial,
    RationalQuadratic,
    ShiftInvariant,
    kernel_from_dict,
    resolve_kernel,
    square_distances,
)

KERNELS = {name: resolve_kernel(name) for name in REGISTRY} | {
    "gaussian 0.3": Gaussian(0.3),
    "rational quadratic 0.5": RationalQuadratic(2.0, alpha=0.5),
    "rational quadratic 7": RationalQuadratic(alpha=7),
    "polynomial 5": Polynomial(degree=5, offset=0.25),
    "polynomial 3 homogeneous": Polynomial(degree=3, offset=0),
    "arc-cosine 0": ArcCosine(degree=0),
    "additive laplace": Additive(0.5, base=Laplace()),
    "additive matern": Additive(base=Matern52(2.0)),
}
SHIFT = {name: k for name, k in KERNELS.items() if isinstance(k, ShiftInvariant)}
every = pytest.mark.parametrize("kernel", KERNELS.values(), ids=list(KERNELS))
shift_invariant = pytest.mark.parametrize("kernel", SHIFT.values(), ids=list(SHIFT))
SCALES = np.array([0.5, 2.0, 1.3])


@pytest.fixture
def X(rng):  # noqa: N802
    return rng.uniform(-1, 1, (40, 3))


@pytest.fixture
def Y(rng):  # noqa: N802
    return rng.uniform(-1, 1, (7, 3))


def by_hand(kernel, x, y):
    """The textbook formula at one pair of rows, length scales included; None if there is none here.

    A kernel that is not shift-invariant needs a formula. One that is has another oracle: it must be
    the mean of cosines of the frequencies that it states.
    """
    l = np.broadcast_to(kernel.length_scale, x.shape)  # noqa: E741
    x, y = x / l, y / l
    d, r = len(x), math.dist(x, y)
    match kernel:
        case Gaussian():
            return math.exp(-r * r / 2)
        case Laplace():
            return math.exp(-sum(abs(x - y)))
        case Matern12():
            return math.exp(-r)
        case Matern32():
            return (1 + math.sqrt(3) * r) * math.exp(-math.sqrt(3) * r)
        case Matern52():
            return (1 + math.sqrt(5) * r + 5 * r * r / 3) * math.exp(-math.sqrt(5) * r)
        case RationalQuadratic(alpha=a):
            return (1 + r * r / (2 * a)) ** -a
        case Linear():
            return x @ y / d
        case Polynomial(degree=p, offset=c):
            return ((c + x @ y / d) / (c + 1)) ** p
        case ArcCosine(degree=n):
            norms = math.hypot(*x) * math.hypot(*y)
            angle = math.acos(max(-1.0, min(1.0, x @ y / norms)))
            if n == 0:
                return 1 - angle / math.pi
            return norms * (math.sin(angle) + (math.pi - angle) * math.cos(angle)) / math.pi / d
        case Additive(base=base):
            return sum(by_hand(base, x[j : j + 1], y[j : j + 1]) for j in range(d)) / d
    assert isinstance(kernel, ShiftInvariant), "add the formula of this kernel to this function"
    return None


@every
class TestContract:
    def test_values_are_the_textbook_formula(self, kernel, X, Y):
        for k in (kernel, kernel.rescaled(SCALES)):
            wanted = [[by_hand(k, x, y) for y in Y] for x in X]
            if wanted[0][0] is not None:
                np.testing.assert_allclose(k(X, Y), wanted, atol=1e-12)

    def test_symmetric_and_positive_semi_definite(self, kernel, X):
        X = np.vstack([X, X[:5], np.zeros((2, 3))])
        K = kernel(X)
        np.testing.assert_allclose(K, K.T, atol=1e-15)
        assert np.linalg.eigvalsh(K).min() > -1e-12 * len(X)

    def test_diagonal_is_bounded(self, kernel, X):
        corner = np.array([[1.0, -1.0, 1.0]])
        for k in (kernel, kernel.rescaled(SCALES)):
            diagonal = np.diag(k(np.vstack([X, corner, 9 * corner, 0 * corner])))
            bound = k.diagonal_bound(3)
            assert diagonal.max() == pytest.approx(bound, rel=1e-14)  # attained in a corner
            if isinstance(k, ShiftInvariant):
                assert np.all(diagonal == 1)
        assert kernel.length_scale != 1 or kernel.diagonal_bound(3) == 1

    def test_one_length_scale_a_column_is_rescaling_columns(self, kernel, X, Y):
        ard = kernel.rescaled(SCALES)
        if isinstance(kernel, OnBox):  # inside, where clipping to the box does nothing
            X, Y = X / 4, Y / 4
        np.testing.assert_allclose(ard(X, Y), kernel(X / SCALES, Y / SCALES), rtol=1e-12)
        np.testing.assert_allclose(ard(X), ard.rescaled(SCALES).rescaled(1 / SCALES)(X), rtol=1e-9)

    def test_single_precision_agrees(self, kernel, X, Y):
        single = kernel(X.astype(np.float32), Y.astype(np.float32))
        assert single.dtype == np.float32
        np.testing.assert_allclose(single, kernel(X, Y), atol=3e-3)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_extreme_rows_give_finite_values_without_a_warning(self, kernel, dtype):
        top, tiny = np.finfo(dtype).max, np.finfo(dtype).smallest_subnormal
        X = np.array(
            [[top, -top, top], [tiny, -tiny, 0], [1e30, 1e-30, 1], [0, 0, 0], [1, 1, 1]], dtype
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for k in (kernel, kernel.rescaled(1e-20), kernel.rescaled([1e-20, 1.0, 1e20])):
                bound = k.diagonal_bound(3)
                if bound <= 1e30:
                    K = k(X)
                    assert np.all(np.isfinite(K))
                    assert K.max() <= bound * (1 + 1e-5)

    def test_is_a_value(self, kernel):
        again = kernel_from_dict(json.loads(json.dumps(kernel.to_dict())))
        assert again == kernel and hash(again) == hash(kernel)
        ard = kernel.rescaled(SCALES)
        assert kernel_from_dict(json.loads(json.dumps(ard.to_dict()))) == ard != kernel
        with pytest.raises(AttributeError):
            kernel.length_scale = 2.0

    def test_input_is_left_alone(self, kernel, X):
        before = X.copy()
        kernel(X, X[:3])
        np.testing.assert_array_equal(X, before)


PAIRS = 10
DRAWS = 40_000
# Hoeffding for a mean of cosines: each pair errs more with probability below 1e-10
TOLERANCE = math.sqrt(2 * math.log(2e10) / DRAWS)


def spectral_error(kernel, frequencies, rng):
    X = rng.uniform(-1, 1, (PAIRS, 3))
    Y = X + rng.uniform(-1, 1, (PAIRS, 3)) * kernel.scales(3)  # where the kernel is not yet 0
    estimate = np.cos((X - Y) @ frequencies.T).mean(axis=1)
    return np.abs(estimate - np.diag(kernel(X, Y))).max()


@shift_invariant
class TestSpectralLaw:
    @pytest.mark.parametrize("scales", [1.0, SCALES], ids=["one scale", "ard"])
    def test_kernel_is_the_mean_of_cosines(self, kernel, scales, rng):
        """False alarm below 1e-9; and frequencies that are too long by half are noticed."""
        kernel = kernel.rescaled(scales)
        frequencies = kernel.sample_frequencies(DRAWS, 3, rng)
        assert frequencies.shape == (DRAWS, 3)
        assert spectral_error(kernel, frequencies, rng) < TOLERANCE
        assert spectral_error(kernel, 1.5 * frequencies, rng) > TOLERANCE

    def test_quantiles_at_the_ends_are_finite(self, kernel):
        ends = np.array([0.0, 1 - 2.0**-53, 0.5, 2.0**-53])
        n = kernel.n_uniforms(2)
        points = np.stack([np.full(n, end) for end in ends])
        assert np.all(np.isfinite(kernel.frequencies(points, 2)))


@pytest.mark.parametrize(
    "kernel", [k for k in SHIFT.values() if isinstance(k, Isotropic)], ids=lambda k: k.kind
)
@pytest.mark.parametrize("d", [1, 4, 50])
def test_radial_law_is_that_of_the_frequencies(kernel, d, rng):
    """Kolmogorov-Smirnov at a false-alarm rate of 1e-9; radii for half the columns fail."""
    kernel = kernel.rescaled(1 / kernel.length_scale)
    norms = np.linalg.norm(kernel.sample_frequencies(4000, d, rng), axis=1)
    radii = kernel.radii(rng.random((4000, 2)), d)
    assert stats.ks_2samp(norms, radii).pvalue > 1e-9
    if d == 4:
        wrong = kernel.radii(rng.random((4000, 2)), 2)
        assert stats.ks_2samp(norms, wrong).pvalue < 1e-9


def test_distances_far_from_the_origin_keep_their_digits(rng):
    X = rng.uniform(-1, 1, (20, 3))
    far = X + 1e6
    exact = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    np.testing.assert_allclose(square_distances(far, far.copy()), exact, atol=1e-8)
    assert np.all(np.diag(square_distances(far, far)) == 0)


def test_zero_rows_have_a_right_angle_to_others():
    X = np.array([[0.0, 0.0], [1.0, 0.0]])
    assert ArcCosine(degree=0)(X).tolist() == [[1.0, 0.5], [0.5, 1.0]]
    assert ArcCosine(degree=1)(X)[0].tolist() == [0.0, 0.0]


def test_cauchy_is_the_rational_quadratic_of_alpha_one():
    assert resolve_kernel("cauchy") == RationalQuadratic(alpha=1.0)


def test_length_scales_of_map_and_kernel_multiply():
    assert resolve_kernel(Gaussian(2.0), 3.0) == Gaussian(6.0)
    assert resolve_kernel(Gaussian((1.0, 2.0)), (3.0, 4.0)) == Gaussian((3.0, 8.0))
    assert resolve_kernel("laplace", np.array([1.0, 2.0])).length_scale == (1.0, 2.0)


BAD = {
    "scale zero": (lambda: Gaussian(0.0), "'length_scale' parameter of the gaussian kernel"),
    "scale nan": (lambda: Gaussian(math.nan), "a float in the range \\[1e-30, 1e30\\]"),
    "scale text": (lambda: Laplace("1"), "one per column. Got 'str'"),
    "scale empty": (lambda: Laplace([]), "one per column. Got 'list'"),
    "scale in list": (lambda: Laplace([1.0, -1.0]), "one per column. Got 'list'"),
    "columns": (lambda: Gaussian((1.0, 2.0))(np.ones((2, 3))), "3 numbers, one per column"),
    "alpha": (lambda: RationalQuadratic(alpha=0), "'alpha' parameter of the rational_quadratic"),
    "degree": (lambda: Polynomial(degree=1.5), "an int from 1 to 100. Got 1.5"),
    "offset": (lambda: Polynomial(offset=-1), "'offset' parameter of the polynomial kernel"),
    "arc": (lambda: ArcCosine(degree=2), "0 or 1. Got 2"),
    "base": (lambda: Additive(base=Linear()), "a shift-invariant kernel, not additive itself"),
    "base twice": (lambda: Additive(base=Additive()), "not additive itself"),
    "base ard": (lambda: Additive(base=Gaussian((1.0, 2.0))), "with one length scale"),
    "name": (lambda: resolve_kernel("gauss"), "a kernel or one of 'gaussian'.*Got 'gauss'"),
    "type": (lambda: resolve_kernel(3), "Got 'int'"),
    "recipe": (lambda: kernel_from_dict({"kind": "rbf"}), "'kind' parameter of kernel_from_dict"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_parameters_are_refused(case):
    make, message = BAD[case]
    with pytest.raises(ParameterError, match=message):
        make()
