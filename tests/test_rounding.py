"""Error bounds of feature maps: how far a computed row can be from a function of that row alone.

References are computed in 80-bit floats (errors 2000 times smaller than those that are bounded).
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dpkernel.foundations.rounding import HALF_ULP, gamma
from dpkernel.models.features import (
    FourierFeatures,
    LinearFeatures,
    PolynomialMap,
    PublicEigenfeatures,
    PublicNystroem,
    RandomProjection,
    TensorSketch,
)
from dpkernel.models.features.base import shrink_rows, shrinking_error
from dpkernel.models.features.mercer import Spectrum1D, solve_1d
from dpkernel.models.kernels import GaussianKernel, LaplaceKernel

LONG = np.longdouble
long_only = pytest.mark.skipif(
    np.finfo(LONG).eps > 2e-19, reason="needs floats longer than 64 bits as a reference"
)
D = 5
MAPS = {
    "linear": LinearFeatures(),
    "polynomial": PolynomialMap(3),
    "polynomial long": PolynomialMap(2, length_scale=0.1),
    "fourier": FourierFeatures(64, length_scale=0.5),
    "fourier laplace": FourierFeatures(64, kernel="laplace", length_scale=0.01),
    "fourier additive": FourierFeatures(64, kernel="additive"),
    "eigen": PublicEigenfeatures(100, length_scale=1.5),
    "eigen narrow": PublicEigenfeatures(100, length_scale=[0.05, 0.3, 1.0, 1.0, 3.0]),
    "eigen laplace": PublicEigenfeatures(100, kernel="laplace"),
    "eigen gaussian": PublicEigenfeatures(50, measure="gaussian", scale=0.2),
    "projection": RandomProjection(30, base=FourierFeatures(128)),
    "projection laplace": RandomProjection(
        30, base=FourierFeatures(64, kernel="laplace", length_scale=0.01)
    ),
    "projection hadamard": RandomProjection(
        200, base=PublicEigenfeatures(70), structure="hadamard"
    ),
}
UNKNOWN = {
    "nystroem": PublicNystroem(20),
    "eigen sample": PublicEigenfeatures(20, kernel="matern32"),
    "sketch": TensorSketch(16),
    "projection": RandomProjection(8, base=PublicNystroem(20)),
}
every = pytest.mark.parametrize("name", MAPS)


@pytest.fixture
def rows(rng):
    """Rows of the box: its inside, faces, corners, 0, and numbers that underflow."""
    X = rng.uniform(-1, 1, (400, D))
    X[:40] = np.sign(X[:40])
    X[40:80, :2] = 1.0
    X[80:120] *= 1e-160
    X[120] = 0.0
    return X


def ball(rows, bound):
    norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    return rows * (LONG(bound) / np.maximum(norms, LONG(bound)))


def reference(phi, X):
    """Return phi* of every row, in long floats, from the tables that the map holds."""
    if isinstance(phi, FourierFeatures):
        frequencies, amplitudes = phi.tables_[np.dtype(np.float64)]
        phases = X.astype(LONG) @ frequencies.astype(LONG)
        out = np.hstack([np.cos(phases), np.sin(phases)]) * amplitudes.astype(LONG)
    elif isinstance(phi, RandomProjection):
        base = reference(phi.inner_, X)
        out = base @ projection_matrix(phi).astype(LONG)
    elif isinstance(phi, PublicEigenfeatures):
        out = eigen_products(phi, X)
    elif isinstance(phi, LinearFeatures):
        out = phi.transform_block(X).astype(LONG)
    else:
        bound, phi._kappa = phi._kappa, math.inf  # computed entry by entry: only not yet shrunk
        out = phi.transform_block(X).astype(LONG)
        phi._kappa = bound
    return ball(out, phi.row_norm_bound)


def projection_matrix(phi):
    if phi.structure == "gaussian":
        return phi._matrices[np.dtype(np.float64)]
    out = np.empty((phi.inner_.n_outputs, phi.n_outputs))
    phi._project_fast(np.eye(phi.inner_.n_outputs), out)
    return np.sign(out) / math.sqrt(phi.n_outputs)


def eigen_products(phi, X):
    parts, reach = phi._parts, 1.0 if phi.measure == "uniform" else 6 * phi.scale
    X = np.clip(X, -reach, reach)
    factors = {}
    for (solved, columns, top), floor in zip(parts.groups, parts.floors, strict=True):
        for j in columns.tolist():
            table = np.clip(long_table(solved, X[:, j], top + 1), -1, 1)
            table[0] = np.maximum(table[0], LONG(floor))
            factors[j] = table
    orders = [dict(index) for index in parts.indices]
    columns = [math.prod(factors[j][order.get(j, 0)] for j in factors) for order in orders]
    return np.stack(columns, axis=1)


def long_table(solved, x, n):
    if solved.waves is not None:
        waves = [
            (np.sin if a % 2 else np.cos)((x * solved.waves[a]).astype(LONG)) for a in range(n)
        ]
        return np.array(waves) * solved.coefficients[:n, None].astype(LONG)
    identity = Spectrum1D(solved.reach, np.ones(solved.n_terms), np.eye(solved.n_terms))
    terms = identity.evaluate(x, solved.n_terms)  # the Legendre polynomials as they are computed
    return solved.coefficients[:, :n].T.astype(LONG) @ terms.astype(LONG)


@every
@long_only
def test_rows_are_within_the_bound_of_the_reference(name, rows):
    phi = MAPS[name].build(D)
    error = phi.evaluation_error()
    gap = np.sqrt(((phi.transform_block(rows) - reference(phi, rows)) ** 2).sum(axis=1))
    assert gap.max() <= error
    assert error < 1e-9 * phi.row_norm_bound  # of use for a million units


@long_only
@pytest.mark.parametrize("kernel", [GaussianKernel(0.3), LaplaceKernel(0.7)])
@pytest.mark.parametrize("measure", ["uniform", "gaussian"])
def test_one_column_of_eigenfunctions_is_within_its_bounds(kernel, measure, rng):
    solved = solve_1d(kernel, measure, 0.4)
    n = min(len(solved.eigenvalues), 30)
    x = rng.uniform(-solved.reach, solved.reach, 500)
    gap = np.abs(solved.evaluate(x, n) - long_table(solved, x, n)).max(axis=1)
    errors = solved.evaluation_errors()[:n]
    assert np.all(gap <= errors) and gap.max() > 1e-4 * errors.max()


@long_only
def test_shrinking_is_within_its_bound_of_the_projection(rng):
    for length, bound in ((1, 0.1), (7, 3.0), (500, 1e-3)):
        rows = rng.standard_normal((200, length)) * rng.choice([1e-9, 1.0, 1e6], (200, 1))
        gap = ball(rows.astype(LONG), bound) - shrink_rows(rows.copy(), bound)
        largest = np.sqrt((gap**2).sum(axis=1)).max()
        assert 1e-3 * bound * HALF_ULP < largest <= shrinking_error(bound, length)
    assert shrinking_error(3.0, 7) == 3 * gamma(11)
    cubic = PolynomialMap(3).build(D)  # everything before shrinking is computed entry by entry
    assert cubic.evaluation_error() == shrinking_error(cubic.row_norm_bound, cubic.n_outputs)


@every
def test_a_row_does_not_move_more_than_that_among_others(name, rows, rng):
    """One by one, shuffled, in other blocks and memory layouts."""
    phi = MAPS[name].build(D)
    whole, error = phi.transform_block(rows), phi.evaluation_error()
    order = rng.permutation(len(rows))
    shuffled = np.empty_like(whole)
    shuffled[order] = phi.transform_block(np.asfortranarray(rows[order]))
    single = np.vstack([phi.transform_block(row[None]) for row in rows])
    for other in (shuffled, single, phi.transform_block(np.repeat(rows, 3, axis=0))[::3]):
        assert np.linalg.norm(whole - other, axis=1).max() <= 2 * error
    assert np.linalg.norm(whole, axis=1).max() <= phi.row_norm_bound + error


@pytest.mark.parametrize("name", ["fourier", "eigen", "projection", "polynomial long"])
def test_the_bound_is_one_for_double_precision(name, rows):
    """The same map in single precision is far outside: the bound is not idle."""
    phi = MAPS[name].build(D)
    single = phi.transform_block(rows.astype(np.float32).astype(np.float64).astype(np.float32))
    gap = np.linalg.norm(
        phi.transform_block(rows.astype(np.float32).astype(float)) - single, axis=1
    )
    assert gap.max() > 1000 * phi.evaluation_error()


def test_the_bound_grows_with_the_frequencies():
    wide, narrow = (FourierFeatures(64, length_scale=s).build(D) for s in (1.0, 1e-6))
    assert narrow.evaluation_error() > 1e5 * wide.evaluation_error()
    chaos = FourierFeatures(64, length_scale=1e-30).build(D)
    assert 1 < chaos.evaluation_error() < 2.2  # nothing is known but that rows lie on the sphere


@pytest.mark.parametrize("name", UNKNOWN)
def test_maps_without_a_proof_say_so(name):
    assert UNKNOWN[name].build(D).evaluation_error() is None


def test_gamma_is_above_the_exact_number():
    for k in (1, 2, 7, 4096, 10**6, 10**10):
        u = Fraction(1, 2**53)
        assert Fraction(gamma(k)) >= k * u / (1 - k * u)
    with pytest.raises(AssertionError, match="says nothing"):
        gamma(2**53)
