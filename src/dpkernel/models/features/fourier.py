"""Random Fourier features of shift-invariant kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from scipy import special

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.rounding import HALF_ULP, MATH_ERROR, gamma
from dpkernel.foundations.types import Array
from dpkernel.models.features.base import FeatureMap, register, shifted_sobol
from dpkernel.models.graph import Graph
from dpkernel.models.kernels import Additive, Isotropic, Kernel, ShiftInvariant, resolve_kernel

_MOST_FREQUENCY = 1e18  # for larger frequencies every phase is noise in double precision
_MOST_PHASE = 1e30
_CHUNK = 1 << 15  # phases that are processed together, so that they stay in the cache


@register
class FourierFeatures(FeatureMap):
    r"""Paired Fourier features phi(x) = a_j (cos w_j^T x, sin w_j^T x), j <= M/2, of norm exactly 1.

    <phi(x), phi(x')> = sum_j a_j^2 cos w_j^T (x - x') with a_j^2 = 2/M is an unbiased estimate of a
    shift-invariant kernel k(x, x') = E cos w^T (x - x'). The other textbook form,
    sqrt(2/M) cos(w^T x + b), has norms up to sqrt 2 and would need more noise.

    Parameters
    ----------
    n_components : int
        The number M of features, which must be even.
    kernel : str or ShiftInvariant
        A name ("gaussian", "laplace", "matern12", "matern32", "matern52", "rational_quadratic",
        "cauchy", "additive") or a kernel.
    length_scale : float or sequence of floats
        Columns are first divided by this number, or each column by its own.
    orthogonal : bool
        Whether to take the directions of isotropic kernels from orthogonal blocks:
        w = r q / length_scale, where q are the columns of independent Haar-distributed orthogonal
        matrices and r has the kernel's own radial distribution (chi with d degrees of freedom for
        the Gaussian kernel). Every w_j keeps its distribution, so the estimate stays unbiased, and
        its variance decreases. No effect on other kernels.
    quasi : bool
        Whether to take frequencies from a randomly shifted Sobol sequence instead, for small d.
    random_state : int
        The public seed, which is part of the model.

    Attributes
    ----------
    tables_ : dict
        The frequencies and amplitudes in each precision, once the map is built.
    most_input_ : float
        The largest input that is not clipped.

    Notes
    -----
    The additive kernel gives each column its own M/2d frequencies. Its sum over columns is
    therefore exact, and only the one-dimensional kernels are estimated.

    Numerics
        One matrix product gives the phases, and cosine and sine are computed while these are in the
        cache. In double precision both come from t = tan(phase / 2) as (1 - t^2, 2t) / (1 + t^2).
        This needs one function instead of two, is accurate to 2 ulp of 1, and the squares add up to
        1 whatever the error of the tangent. Inputs are clipped where a phase would exceed 1e30.

    References
    ----------
    Rahimi & Recht (2007), in the paired form; Yu et al. (2016) for orthogonal blocks; Avron et al.
    (2016) for quasi-Monte Carlo.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.models.features import FourierFeatures
    >>> features = FourierFeatures(n_components=50).build(2)
    >>> phi = features.transform(np.array([[0.1, -0.4]]))
    >>> phi.shape
    (1, 50)
    >>> bool(np.linalg.norm(phi) <= features.row_norm_bound * (1 + 1e-12))
    True
    """

    kind: ClassVar[str] = "fourier"

    def __init__(
        self,
        n_components: int = 256,
        *,
        kernel: str | Kernel = "gaussian",
        length_scale: float | Sequence[float] = 1.0,
        orthogonal: bool = True,
        quasi: bool = False,
        random_state: int = 0,
    ) -> None:
        self.n_components = n_components
        self.kernel = kernel
        self.length_scale = length_scale
        self.orthogonal = orthogonal
        self.quasi = quasi
        self.random_state = random_state

    @property
    def row_norm_bound(self) -> float:
        """The bound 1, because cos^2 + sin^2 = 1."""
        return 1.0

    def _build(self, n_inputs: int) -> None:
        kernel = resolve_kernel(self.kernel, self.length_scale)
        if not isinstance(kernel, ShiftInvariant):
            allowed = "a shift-invariant kernel"
            advice = "Use PolynomialMap, PublicNystroem or PublicEigenfeatures for this one."
            raise ParameterError(
                parameter_message("FourierFeatures", "kernel", allowed, kernel.kind, advice)
            )
        if self._require_components(2) % 2:
            name = kernel.kind.capitalize().replace("_", " ")
            allowed = f"even for the {name} kernel, and >= 2"
            raise ParameterError(
                parameter_message("FourierFeatures", "n_components", allowed, self.n_components)
            )
        self.n_outputs = int(self.n_components)
        n = self.n_outputs // 2
        amplitudes = np.asarray(math.sqrt(1 / n))
        if isinstance(kernel, Additive):
            frequencies, amplitudes = self._by_column(kernel, n, n_inputs)
        elif self.quasi:
            points = shifted_sobol(n, kernel.n_uniforms(n_inputs), self._public_uniforms())
            frequencies = kernel.frequencies(points, n_inputs)
        elif self.orthogonal and isinstance(kernel, Isotropic):
            draws = self._public_uniforms()
            directions = orthogonal_directions(n, n_inputs, draws)
            radii = kernel.radii(draws.random((n, 2)), n_inputs)
            frequencies = directions * radii[:, None] / kernel.scales(n_inputs)
        else:
            frequencies = kernel.sample_frequencies(n, n_inputs, self._public_uniforms())
        columns = np.clip(frequencies.T, -_MOST_FREQUENCY, _MOST_FREQUENCY)
        self.most_input_ = _MOST_PHASE / max(1.0, float(np.abs(columns).sum(axis=0).max()))
        self.tables_: dict[Any, tuple[Array, Array]] = {
            np.dtype(kind): (np.ascontiguousarray(columns, dtype=kind), amplitudes.astype(kind))
            for kind in ("f4", "f8")
        }

    def _by_column(self, kernel: Additive, n: int, n_inputs: int) -> tuple[Array, Array]:
        """Return frequencies that belong to one column each, column by column, and amplitudes."""
        if n < n_inputs:
            allowed = f"at least {2 * n_inputs}, a pair per column, for the additive kernel"
            raise ParameterError(
                parameter_message("FourierFeatures", "n_components", allowed, self.n_components)
            )
        draws, n_uniforms = self._public_uniforms(), kernel.base.n_uniforms(1)
        counts = np.full(n_inputs, n // n_inputs)
        counts[: n % n_inputs] += 1
        take = shifted_sobol if self.quasi else _independent
        points = np.concatenate([take(int(count), n_uniforms, draws) for count in counts])
        column = np.repeat(np.arange(n_inputs), counts)
        frequencies = np.zeros((n, n_inputs))
        values = kernel.base.frequencies(points, 1)[:, 0]
        frequencies[np.arange(n), column] = values / kernel.scales(n_inputs)[column]
        return frequencies, np.tile(1 / np.sqrt(n_inputs * counts[column]), 2)

    def evaluation_error(self) -> float:
        r"""Return the distance of a computed row from (a_j cos p_j, a_j sin p_j), p_j = w_j^T x.

        Notes
        -----
        Let u = 2^-53 and ``|x_i| <= 1``.

        Phase: ``|p^ - p| <= gamma(d) ||w_j||_1`` for a product of d terms; halving it is exact.

        Tangent: t = tan(p^/2) (1 + r) with ``|r| <= 16 u`` is the tangent of an angle that is off
        by at most ``|r t| / (1 + t^2) (1 + 2 |r|) <= |r| (1 + 2 |r|) / 2``, so the doubled angle is
        off by 17 u.

        Pair: 2 / (1 + t^2) is accurate to gamma(3). The sine, times its amplitude, is accurate to
        gamma(5) of itself; the cosine, a difference from 1, to 8 u; together 10 u.

        A pair is therefore off by at most a_j (gamma(d) ||w_j||_1 + 32 u). It is also off by at
        most
        2.1 a_j, because both points lie on the circle. The squares of the amplitudes add up to 1
        except for rounding; the projection on the ball cuts off the excess, and so moves the row by
        as much.
        """
        frequencies, amplitudes = self.tables_[np.dtype(np.float64)]
        half = self.n_outputs // 2
        sizes = np.broadcast_to(amplitudes, 2 * half)[:half]
        phases = gamma(len(frequencies)) * np.abs(frequencies).sum(axis=0) * (1 + 1e-9)
        pairs = np.minimum(phases + MATH_ERROR + 16 * HALF_ULP, 2.1)
        length = math.sqrt(math.fsum((sizes * sizes).tolist())) + gamma(8)
        return math.sqrt(float(np.sum((sizes * pairs) ** 2))) * 1.01 + max(length - 1, 0.0)

    def transform_block(self, X: Array) -> Array:
        """Return the paired features of every row."""
        X = np.asarray(X)
        frequencies, amplitudes = self.tables_[X.dtype]
        half = self.n_outputs // 2
        limit = X.dtype.type(self.most_input_)
        # always, even if no entry is large: if only some blocks were copied, BLAS would sum their
        # rows in another order, and one row could change the last bit of others
        X = np.ascontiguousarray(np.clip(X, -limit, limit))
        out = np.empty((len(X), self.n_outputs), X.dtype)
        np.matmul(X, frequencies, out=out[:, :half])  # phases, at the place of the later cosines
        pair = _cos_sin_single if X.dtype == np.float32 else _cos_sin_double
        step = max(_CHUNK // half, 1)
        for start in range(0, len(X), step):
            pair(out[start : start + step], amplitudes)
        return out

    def _write(self, graph: Graph, x: str) -> str:
        frequencies, amplitudes = self.tables_[np.dtype(np.float64)]
        inside = graph.clip(x, -self.most_input_, self.most_input_)
        phases = graph.product(inside, frequencies)
        pair = graph.join([graph.node("Cos", phases), graph.node("Sin", phases)])
        return graph.multiply(pair, amplitudes)


def _independent(n: int, n_columns: int, draws: np.random.Generator) -> Array:
    return draws.random((n, n_columns))


def orthogonal_directions(n: int, n_inputs: int, draws: np.random.Generator) -> Array:
    """Return n unit vectors, (n, n_inputs): independent Haar frames of at most n_inputs vectors."""
    size = min(n, n_inputs)
    blocks = -(-n // size)
    uniforms = np.maximum(draws.random((blocks, n_inputs, size)), 2.0**-54)
    q, r = np.linalg.qr(special.ndtri(uniforms))
    q *= np.sign(np.diagonal(r, axis1=1, axis2=2))[:, None, :]  # unique and Haar-distributed
    return np.asarray(q.transpose(0, 2, 1).reshape(-1, n_inputs)[:n])


def _cos_sin_single(rows: Array, amplitudes: Array) -> None:
    """Replace the first half of each row, the phases, by cosines, and the second half by sines."""
    half = rows.shape[1] // 2
    np.sin(rows[:, :half], out=rows[:, half:])
    np.cos(rows[:, :half], out=rows[:, :half])
    rows *= amplitudes


def _cos_sin_double(rows: Array, amplitudes: Array) -> None:
    half = rows.shape[1] // 2
    t = rows[:, :half] * 0.5
    np.tan(t, out=t)
    q = t * t
    q += 1
    np.divide(2, q, out=q)
    np.multiply(t, q, out=rows[:, half:])
    np.subtract(q, 1, out=rows[:, :half])
    rows *= amplitudes
