r"""Sketched empirical risk minimisation in an RKHS. NOT PRIVATE: nothing here protects a record.

The kernel problem with n coefficients is restricted to beta = S alpha, where S (n x m) is random
and m < n, and solved by Newton-Raphson. A sketch saves time, but by itself it hides nothing
(``papers.ma_2024`` shows two tables that it tells apart with certainty). For a private sketch see
``GaussianMixing``. The sketches are::

    gaussian_sketch    dense, N(0, 1/m)
    hadamard_sketch    signs, a fast Walsh-Hadamard transform, m coordinates (SRHT)
    count_sketch       one signed entry per row

The random numbers are public and have nothing to do with noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, is_real, is_whole
from dpkernel.models.features.projection import walsh_hadamard
from dpkernel.models.losses import Loss


@dataclass(frozen=True)
class Sketch:
    """A random matrix S (n x m) with E S S^T = I, represented by two functions.

    Attributes
    ----------
    n, m : int
        The shape of S.
    right : callable
        Returns A S for a matrix A with n columns.
    expand : callable
        Returns S alpha.
    """

    n: int
    m: int
    right: Callable[[Array], Array]
    expand: Callable[[Array], Array]


@dataclass(frozen=True)
class SketchedMinimiser:
    """The last Newton iterate f(x) = sum_i coefficients_i k(x, x_i).

    Attributes
    ----------
    alpha, coefficients : ndarray
        The solution, and S alpha / sqrt n.
    gradient_norm : float
        The norm of the gradient at the solution.
    steps : int
        The number of steps taken.
    """

    alpha: Array
    coefficients: Array
    gradient_norm: float
    steps: int


def gaussian_sketch(n: int, m: int, seed: int) -> Sketch:
    """Return a matrix of independent N(0, 1/m) entries, the sketch of the paper.

    Parameters
    ----------
    n, m : int
        The shape (n, m) of the matrix.
    seed : int
        The public seed.
    """
    _check_sizes(n, m)
    S = np.random.default_rng(seed).standard_normal((n, m)) / math.sqrt(m)
    return Sketch(n, m, lambda A: A @ S, lambda alpha: S @ alpha)


def count_sketch(n: int, m: int, seed: int) -> Sketch:
    """Return a matrix with one entry +1 or -1 per row, at a random place.

    Parameters
    ----------
    n, m, seed
        See ``gaussian_sketch``.
    """
    _check_sizes(n, m)
    rng = np.random.default_rng(seed)
    signs, places = 2.0 * rng.integers(0, 2, n) - 1, rng.integers(0, m, n)
    S = sparse.csr_array((signs, (np.arange(n), places)), shape=(n, m))
    return Sketch(n, m, lambda A: np.asarray((S.T @ A.T).T), lambda alpha: np.asarray(S @ alpha))


def hadamard_sketch(n: int, m: int, seed: int) -> Sketch:
    """Return D H P / sqrt(m): signs and m columns of the Walsh-Hadamard matrix (a power of two).

    Parameters
    ----------
    n, m, seed
        See ``gaussian_sketch``.
    """
    _check_sizes(n, m)
    rng = np.random.default_rng(seed)
    signs = 2.0 * rng.integers(0, 2, n) - 1
    size = 1 << (n - 1).bit_length() if n > 1 else 1
    columns = rng.choice(size, m, replace=False)

    def right(A: Array) -> Array:
        padded = np.zeros((len(A), size))
        padded[:, :n] = A * signs
        return np.asarray(walsh_hadamard(padded)[:, columns] / math.sqrt(m))

    def expand(alpha: Array) -> Array:
        padded = np.zeros((1, size))
        padded[0, columns] = alpha / math.sqrt(m)
        return np.asarray(walsh_hadamard(padded)[0, :n] * signs)

    return Sketch(n, m, right, expand)


SKETCHES: dict[str, Callable[[int, int, int], Sketch]] = {
    "gaussian": gaussian_sketch,
    "hadamard": hadamard_sketch,
    "count": count_sketch,
}


def sketched_erm(
    gram: Array,
    y: Array,
    loss: Loss,
    regularisation: float,
    sketch: Sketch,
    *,
    start: Array | None = None,
    steps: int = 30,
    affine: bool = False,
) -> SketchedMinimiser:
    r"""Minimise (1/n) sum_i loss(y_i, (K S alpha)_i / sqrt n) + (lambda/n) alpha^T S^T K S alpha.

    NOT PRIVATE. It uses Newton-Raphson steps, halved until the objective falls. So it converges
    from any start for every convex loss with bounded curvature.

    Parameters
    ----------
    gram : array (n, n)
        The kernel matrix K, positive semidefinite.
    y : array (n,)
        The targets.
    loss : Loss
        A smooth loss, with finite ``loss.smoothness``.
    regularisation : float
        lambda > 0.
    sketch : Sketch
        A sketch from ``SKETCHES``.
    start : array (m,), optional
        alpha_0; zero by default.
    steps : int
        T, the largest number of steps.
    affine : bool
        Whether the last coefficient of alpha is fixed to 1, as in problem (7). A sketch of m + 1
        columns then leaves m free ones.

    References
    ----------
    Ma (2024), Algorithm 1 and problems (3) and (7).
    """
    n = len(y)
    if np.shape(gram) != (n, n) or sketch.n != n:
        got = f"shapes {np.shape(gram)} and ({sketch.n}, {sketch.m})"
        allowed = f"an array of shape ({n}, {n}), with a sketch of {n} rows"
        raise ParameterError(parameter_message("sketched_erm", "gram", allowed, got))
    if not loss.smoothness < math.inf:
        allowed, advice = "a loss with a bounded curvature", "Take a smoothed one."
        raise ParameterError(parameter_message("sketched_erm", "loss", allowed, loss.kind, advice))
    if not is_real(regularisation) or not 0 < regularisation < math.inf:
        allowed = "a float in the range (0, inf)"
        raise ParameterError(
            parameter_message("sketched_erm", "regularisation", allowed, regularisation)
        )
    if not is_whole(steps) or steps < 1:
        raise ParameterError(parameter_message("sketched_erm", "steps", "an int >= 1", steps))
    mixed = sketch.right(np.asarray(gram, dtype=np.float64))  # K S
    inner = sketch.right(mixed.T)  # S^T K S, symmetric up to rounding
    inner = (inner + inner.T) / 2
    design, ridge = mixed / math.sqrt(n), 2 * regularisation / n * inner

    def objective(alpha: Array) -> float:
        return float(loss.value(y, design @ alpha).mean() + alpha @ ridge @ alpha / 2)

    def gradient(alpha: Array) -> Array:
        return np.asarray(design.T @ loss.derivative(y, design @ alpha) / n + ridge @ alpha)

    free = slice(0, sketch.m - 1 if affine else sketch.m)
    alpha = np.zeros(sketch.m) if start is None else np.array(start, dtype=np.float64)
    if affine:
        alpha[-1] = 1.0
    slope, done = gradient(alpha)[free], 0
    for _ in range(steps):
        bend = loss.curvature(y, design @ alpha)
        hessian = (design * bend[:, None]).T @ design / n + ridge
        move = np.zeros(sketch.m)
        move[free] = np.linalg.lstsq(hessian[free, free], slope, rcond=1e-14)[0]
        before, fall, length = objective(alpha), float(slope @ move[free]), 1.0
        while length > 1e-8 and objective(alpha - length * move) > before - 0.25 * length * fall:
            length /= 2
        if not length > 1e-8:  # no step of this size helps, only rounding error is left
            break
        alpha, done = alpha - length * move, done + 1
        slope = gradient(alpha)[free]
        if np.linalg.norm(slope) <= 1e-14 * (1 + abs(before)):
            break
    coefficients = sketch.expand(alpha) / math.sqrt(n)
    return SketchedMinimiser(alpha, coefficients, float(np.linalg.norm(slope)), done)


def _check_sizes(n: int, m: int) -> None:
    if not is_whole(n) or not is_whole(m) or not 1 <= m <= n:
        allowed = "ints with 1 <= m <= n"
        raise ParameterError(parameter_message("Sketch", "n, m", allowed, (n, m)))
