"""Eigenfunctions of one-dimensional kernels, and the leading products of them.

The kernel operator under a public measure P is (T f)(x) = E_{y ~ P} k(x, y) f(y). It has
eigenvalues mu_0 > mu_1 > ... and eigenfunctions psi_a, orthonormal under P. For a product kernel
and a product measure, the eigenfunctions in d columns are all products of one-dimensional
eigenfunctions.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial import legendre

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.rounding import HALF_ULP, MATH_ERROR, gamma
from dpkernel.foundations.types import Array
from dpkernel.models.graph import Graph
from dpkernel.models.kernels import Kernel, LaplaceKernel, kept

_LEAST_SHARE = 1e-9  # relative to the first eigenvalue; below it eigenfunctions are inaccurate
_GRID = 2.0**30  # log-eigenvalues are compared on this grid, so ties are the same on every machine
_MOST_RESOLUTION = 150.0  # largest number of length scales between 0 and the end of the measure
_WIDTH = 6.0  # the Gaussian measure is cut off at this many standard deviations


@dataclass(frozen=True)
class Spectrum1D:
    """The leading eigenpairs of a one-dimensional kernel on [-reach, reach].

    ``eigenvalues`` decrease. ``coefficients`` holds those of sqrt(mu_a) psi_a, one function per
    column. They belong to Legendre polynomials of x / reach or, if ``waves`` holds frequencies, to
    cos(w_a x) (a even) and sin(w_a x) (a odd).
    """

    reach: float
    eigenvalues: Array
    coefficients: Array
    waves: Array | None = None

    def __post_init__(self) -> None:
        for shared in (self.eigenvalues, self.coefficients, self.waves):
            if shared is not None:
                shared.setflags(write=False)

    def evaluate(self, x: Array, n: int) -> Array:
        """Return sqrt(mu_a) psi_a(x) for a < n, ``(n, *x.shape)``, in the dtype of x."""
        x = np.clip(x, -self.reach, self.reach)
        number = x.dtype.type
        out = np.empty((n, *x.shape), x.dtype)
        if self.waves is not None:
            for a in range(n):
                wave = (np.sin if a % 2 else np.cos)(x * number(self.waves[a]))
                np.multiply(wave, number(self.coefficients[a]), out=out[a])
            return out
        terms = np.empty((self.n_terms, *x.shape), x.dtype)  # Legendre polynomials of x / reach
        terms[0] = 1
        if self.n_terms > 1:
            np.divide(x, number(self.reach), out=terms[1])
        for p in range(1, self.n_terms - 1):
            np.multiply(terms[1], terms[p], out=terms[p + 1])
            terms[p + 1] *= number((2 * p + 1) / (p + 1))
            terms[p + 1] -= number(p / (p + 1)) * terms[p - 1]
        if x.dtype == np.float64:  # |P_p| <= 1 exactly, which ``evaluation_errors`` relies on
            np.clip(terms, -1.0, 1.0, out=terms)
        flat = terms.reshape(self.n_terms, -1)
        np.matmul(self.coefficients[:, :n].T.astype(x.dtype), flat, out=out.reshape(n, -1))
        return out

    def write(self, graph: Graph, x: str, n: int) -> list[str]:
        """Add what ``evaluate`` computes to an ONNX graph, a matrix for each a < n."""
        x = graph.clip(x, -self.reach, self.reach)
        if self.waves is not None:
            waves = [
                graph.node("Sin" if a % 2 else "Cos", graph.multiply(x, self.waves[a]))
                for a in range(n)
            ]
            return [graph.multiply(w, self.coefficients[a]) for a, w in enumerate(waves)]
        terms = [graph.clip(x, 1.0, 1.0), graph.divide(x, self.reach)]
        for p in range(1, self.n_terms - 1):
            up = graph.multiply(graph.multiply(terms[1], terms[p]), (2 * p + 1) / (p + 1))
            terms.append(graph.subtract(up, graph.multiply(terms[p - 1], p / (p + 1))))
        deep = [
            graph.node("Unsqueeze", graph.clip(t, -1.0, 1.0), graph.whole(2))
            for t in terms[: self.n_terms]
        ]
        stacked = deep[0] if len(deep) == 1 else graph.node("Concat", *deep, axis=2)
        values = graph.product(stacked, self.coefficients[:, :n])
        return [
            graph.node("Gather", values, graph.constant(a, np.int64), axis=2)  # this drops the axis
            for a in range(n)
        ]

    def evaluation_errors(self) -> Array:
        """Return, for every order a, how far ``evaluate`` can be from a function of x, in float64.

        Legendre polynomials are computed entry by entry and clipped to [-1, 1]. Their product with
        the coefficients errs by gamma(terms) times the sum of the absolute coefficients. Waves err
        by the error of the cosine or sine and one rounding.
        """
        sizes: Array = np.abs(self.coefficients)
        if self.waves is not None:
            return np.asarray(sizes * (MATH_ERROR + 2 * HALF_ULP))
        return np.asarray(sizes.sum(axis=0) * (gamma(self.n_terms) * (1 + 1e-9)))

    @property
    def n_terms(self) -> int:
        """The number of temporary values per entry."""
        return 1 if self.waves is not None else len(self.coefficients)

    @property
    def peak(self) -> float:
        """The largest value of sqrt(mu_0) psi_0, which is its value at 0."""
        return float(self.evaluate(np.zeros(1), 1)[0, 0])


def solve_1d(kernel: Kernel, measure: str, scale: float) -> Spectrum1D:
    """Return the spectrum of a kernel of one column under a measure.

    ``measure`` is "uniform" on [-1, 1], or "gaussian": N(0, scale^2) cut off at 6 standard
    deviations.
    """
    found: Spectrum1D = kept(_solved_1d, kernel)(kernel, measure, scale)
    return found


@lru_cache(maxsize=64)  # columns, stages and repeated fits ask for the same few
def _solved_1d(kernel: Kernel, measure: str, scale: float) -> Spectrum1D:
    if isinstance(kernel, LaplaceKernel) and measure == "uniform":
        return _exponential_uniform(1 / float(kernel.scales(1)[0]))
    reach = 1.0 if measure == "uniform" else _WIDTH * scale
    resolution = reach / float(kernel.scales(1)[0])
    if not resolution <= _MOST_RESOLUTION:
        allowed = f"at least {reach / _MOST_RESOLUTION:.3g} for the {measure} measure"
        advice = "Use FourierFeatures for a kernel as narrow as this."
        raise ParameterError(
            parameter_message(
                "PublicEigenfeatures", "length_scale", allowed, kernel.length_scale, advice
            )
        )
    least = 300 if isinstance(kernel, LaplaceKernel) else 32  # its kink makes convergence slower
    m = 2 * int(min(least + 4 * resolution, 600))
    nodes, weights = legendre.leggauss(m)
    weights = weights / 2
    if measure == "gaussian":
        weights = weights * np.exp(-0.5 * (_WIDTH * nodes) ** 2)
        weights /= weights.sum()
    root = np.sqrt(weights)
    values = kernel((reach * nodes)[:, None])
    eigenvalues, vectors = np.linalg.eigh(root[:, None] * values * root)
    eigenvalues, vectors = eigenvalues[::-1], vectors[:, ::-1]
    kept = int(np.sum(eigenvalues > _LEAST_SHARE * eigenvalues[0]))
    kept = min(kept, m // 4)
    eigenvalues, vectors = eigenvalues[:kept], vectors[:, :kept]
    functions = vectors / root[:, None] * np.sqrt(eigenvalues)
    # the a-th function has a simple zeros, half on each side; make it positive just right of 0
    functions *= np.where(functions[m // 2] < 0, -1.0, 1.0)
    # Gauss quadrature interpolates: the polynomial of degree m - 1 through the nodes
    basis = legendre.legvander(nodes, m - 1) * legendre.leggauss(m)[1][:, None]
    coefficients = (np.arange(m) + 0.5)[:, None] * (basis.T @ functions)
    tail = np.abs(coefficients).max(axis=1) > 1e-11
    degree = int(np.flatnonzero(tail).max(initial=0)) + 1
    parity = (np.arange(degree)[:, None] + np.arange(kept)) % 2 == 0
    return Spectrum1D(reach, eigenvalues, np.where(parity, coefficients[:degree], 0.0))


def _exponential_uniform(rate: float) -> Spectrum1D:
    r"""Return the exact spectrum of exp(-rate |x - y|) under the uniform measure on [-1, 1].

    psi_a is cos(w_a x) or sin(w_a x), mu_a = rate / (w_a^2 + rate^2), with one root w_a of
    w tan w = rate (a even) or w cot w = -rate (a odd) in (a pi/2, (a + 1) pi/2).
    """
    a = np.arange(2000)
    low, high = a * (math.pi / 2), (a + 1) * (math.pi / 2)
    for _ in range(60):
        w = (low + high) / 2
        even = w * np.sin(w) - rate * np.cos(w)
        odd = w * np.cos(w) + rate * np.sin(w)
        # each function changes sign once in its interval; at the right end |w| dominates
        value = np.where(a % 2, odd, even) * np.where((a // 2) % 2, -1.0, 1.0)
        below = np.where(a % 2, value > 0, value < 0)
        low, high = np.where(below, w, low), np.where(below, high, w)
    w = (low + high) / 2
    mean_square = (1 + np.where(a % 2, -1.0, 1.0) * np.sin(2 * w) / (2 * w)) / 2
    eigenvalues = rate / (w**2 + rate**2)
    return Spectrum1D(1.0, eigenvalues, np.sqrt(eigenvalues / mean_square), w)


def leading_products(spectra: list[Array], n: int) -> list[tuple[tuple[int, int], ...]]:
    """Return the multi-indices of the n largest products with one eigenvalue per column.

    Each multi-index is a tuple of (column, order) with order >= 1, in the column order of the
    search. Columns that are not named have order 0. A heap finds them without enumeration, in O(n
    log n) steps for any number of columns. Ties are broken by the index, so the list is the same on
    every machine.
    """
    costs = [np.rint(np.log(mu[0] / mu) * _GRID).astype(np.int64).tolist() for mu in spectra]
    usable = sorted((c[1], j) for j, c in enumerate(costs) if len(c) > 1)
    columns = [j for _, j in usable]
    heap: list[tuple[int, tuple[tuple[int, int], ...]]] = [(0, ())]
    found: list[tuple[tuple[int, int], ...]] = []
    # an index is a list of (place in ``columns``, order). Its children increase the last order, add
    # the next column or, if the last order is 1, replace the last column by the next one; none of
    # them costs less than the index itself
    while heap and len(found) < n:
        cost, index = heapq.heappop(heap)
        found.append(tuple((columns[place], order) for place, order in index))
        last, order = index[-1] if index else (-1, 0)
        if index:
            own = costs[columns[last]]
            if order + 1 < len(own):
                moved = (*index[:-1], (last, order + 1))
                heapq.heappush(heap, (cost - own[order] + own[order + 1], moved))
        if last + 1 < len(columns):
            entry = costs[columns[last + 1]][1]
            heapq.heappush(heap, (cost + entry, (*index, (last + 1, 1))))
            if order == 1:
                moved = (*index[:-1], (last + 1, 1))
                heapq.heappush(heap, (cost - costs[columns[last]][1] + entry, moved))
    return found
