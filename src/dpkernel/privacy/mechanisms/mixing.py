"""Gaussian mixing: a private sketch made of noisy random combinations of all records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import eigh

from dpkernel.data.domain import clip_rows
from dpkernel.data.tables import as_floats
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.threads import block_threads, in_threads
from dpkernel.foundations.types import Array, Budget, IntArray
from dpkernel.privacy.mechanisms.base import (
    UP,
    Idealised,
    as_sensitivity,
    check_common,
    end_on_private_side,
    register,
    require_accepted,
)
from dpkernel.privacy.noise import Noise, NoiseSource
from dpkernel.privacy.profiles import MixingProfile, mixing_ratio
from dpkernel.privacy.sensitivity import Sensitivity

_ENTRIES = 1 << 21  # entries of S that exist at one time: 16 MB
_MOST_BLOCK_ROWS = 4096
_MOST_THREADS = 8
_SHORT = 3  # with more columns per sketch row than this, drawing S is faster than summing X^T X


@register
@dataclass(frozen=True)
class GaussianMixing(Idealised):
    r"""Release S X + sigma_0 N: ``rows`` random combinations of the records, with noise.

    X holds one record per row, clipped here to norm C. S (rows x n) and N (rows x dimension) are
    standard normal matrices, drawn for this release and then forgotten. S hides which records are
    present if they are many. sigma_0 N hides a record that is alone in some direction; without this
    noise a sketch is not private.

    Parameters
    ----------
    sensitivity : Sensitivity
        The largest norm C of a record.
    rows : int
        The number of rows of the sketch.
    dimension : int
        The number of columns of a record.
    sigma : float
        The standard deviation sigma_0 of the added noise.
    grid : float
        The power of two to which the sketch is rounded.
    accepted : tuple of str
        The accepted assumptions, which must be ("idealised-arithmetic",).

    Notes
    -----
    Guarantee
        The profile of ``MixingProfile`` with t = C^2 / sigma_0^2, for any data and any number of
        records. It is exact for a single record.
    Sensitivity
        L2: C is the largest norm of a record.
    Numerics
        Normal variables are drawn in floats (one per word of the source), sums are float64, and the
        result is rounded to a grid. No finite-precision theorem covers noise that multiplies the
        data, so the user must accept 'idealised-arithmetic'.
    Not covered
        A count sketch, a Hadamard sketch and the sketch of Ma (2024), which has no sigma_0, have no
        such guarantee.

    References
    ----------
    Sheffet (2017, 2019); Lev et al. (2025).

    Examples
    --------
    >>> from dpkernel import Budget, mechanisms
    >>> accept = ("idealised-arithmetic",)
    >>> mechanism = mechanisms.GaussianMixing.calibrate(
    ...     1.0, Budget(1.0, 1e-6), rows=50, dimension=3, accept=accept
    ... )
    >>> mechanism.profile().epsilon(1e-6) <= 1.0
    True
    """

    sensitivity: Sensitivity
    rows: int
    dimension: int
    sigma: float
    grid: float
    accepted: tuple[str, ...] = ()

    kind: ClassVar[str] = "gaussian-mixing"
    reference: ClassVar[str] = "Sheffet (2019), Lev et al. (2025); exact chi-squared profile"
    _positive: ClassVar[tuple[str, ...]] = ("sigma", "grid")
    _counts: ClassVar[tuple[str, ...]] = ("rows", "dimension")

    @property
    def noise_scale(self) -> float:
        """The noise sigma_0, in the units of the records."""
        return self.sigma

    def profile(self) -> MixingProfile:
        """Return the profile at t = C^2 / sigma_0^2, rounded up."""
        share = self.sensitivity.value / self.sigma * UP
        return MixingProfile(self.rows, share * share * UP, self.sensitivity.neighbours.value)

    def release(self, value: Any, noise: Noise) -> Array:
        """Return the noisy sketch.

        Parameters
        ----------
        value : array of shape (n, dimension) or iterable of arrays
            The records, or blocks of rows of them.
        noise : Noise
            The noise of a recorded spend.

        Notes
        -----
        There are two ways to compute the sketch, with the same distribution. If the sketch has at
        least a third as many rows as columns, X^T X is summed block by block and the sketch is
        drawn given this sum; this takes n dimension^2 operations and rows * dimension normal
        variables. For a shorter sketch, the part of S that belongs to a block is drawn when the
        block arrives and is never kept; this takes memory for two million entries of S, 2 n rows
        dimension operations and n * rows normal variables.
        """
        blocks: Iterable[Any] = value
        if not isinstance(value, Iterable) or hasattr(value, "shape"):
            self._check_block(value)
            blocks = [value]
        source = self._claim(noise)
        if self.dimension <= _SHORT * self.rows:
            gram = np.zeros((self.dimension, self.dimension))
            for block in blocks:
                for part in self._parts(block, _MOST_BLOCK_ROWS):
                    records = clip_rows(part, self.sensitivity.value)
                    gram += records.T @ records
            return self._drawn_given(gram, source)
        total = self.sigma * source.standard_normals(self.rows * self.dimension)
        total = total.reshape(self.rows, self.dimension)

        def mix(words: np.ndarray, part: Array) -> Array:
            records = clip_rows(part, self.sensitivity.value)
            mixing = source.normals_of(words)
            with np.errstate(all="ignore"):
                return mixing.reshape(self.rows, len(records)) @ records

        # words are drawn here, in the order of the blocks; threads turn them into products
        step = max(1, min(_MOST_BLOCK_ROWS, _ENTRIES // self.rows))
        parts = (
            (source.words(self.rows * len(part)), part)
            for block in blocks
            for part in self._parts(block, step)
        )
        if isinstance(blocks, list) and len(blocks[0]) <= step:
            for words, part in parts:
                total += mix(words, part)
            return self._on_grid(total)
        in_use = 8 * (3 * self.rows * step + (step + self.rows) * self.dimension)
        with block_threads(_MOST_THREADS, in_use) as threads:
            for product in in_threads(mix, parts, threads):
                total += product
        return self._on_grid(total)

    def release_gram(self, gram: Array | IntArray, noise: Noise) -> Array:
        """Return a sketch of records whose Gram matrix X^T X is known.

        The rows of a sketch are independent draws of N(0, X^T X + sigma_0^2 I). Here they are drawn
        directly, with rows * dimension normal variables instead of rows * n. The distribution is
        that of ``release``. The caller is responsible for the norm of the records in the Gram
        matrix.
        """
        if np.shape(gram) != (self.dimension, self.dimension):
            allowed = f"an array of shape ({self.dimension}, {self.dimension})"
            got = f"shape {np.shape(gram)}"
            raise ParameterError(parameter_message(type(self).__name__, "gram", allowed, got))
        return self._drawn_given(np.asarray(gram, dtype=np.float64), self._claim(noise))

    def _drawn_given(self, gram: Array, source: NoiseSource) -> Array:
        # this decomposition always exists, so no failure can reveal anything about the data
        matrix = np.nan_to_num(gram, posinf=1e150, neginf=-1e150)
        values, vectors = eigh(np.clip(matrix, -1e150, 1e150), check_finite=False)
        root = vectors * np.sqrt(np.maximum(values, 0.0) + self.sigma**2)
        draws = source.standard_normals(self.rows * self.dimension)
        with np.errstate(all="ignore"):
            return self._on_grid(draws.reshape(self.rows, self.dimension) @ root.T)

    def _parts(self, block: Any, step: int) -> Iterator[Array]:
        self._check_block(block)
        for start in range(0, len(block), step):
            # a copy, because the source of the blocks may reuse their memory for the next one
            yield as_floats(block[start : start + step], "The records to sketch").copy()

    def _on_grid(self, sketch: Array) -> Array:
        return np.asarray(np.rint(sketch / self.grid) * self.grid)

    def _check_block(self, block: Any) -> None:
        shape = np.shape(block)
        if len(shape) != 2 or shape[1] != self.dimension:
            allowed = f"an array of shape (n, {self.dimension})"
            raise ParameterError(
                parameter_message(type(self).__name__, "value", allowed, f"shape {shape}")
            )

    @classmethod
    def calibrate(
        cls,
        sensitivity: Sensitivity | float,
        budget: Budget,
        *,
        rows: int,
        dimension: int,
        accept: Iterable[str] = (),
    ) -> GaussianMixing:
        """Return the mechanism with the least sigma_0 for a budget.

        Parameters
        ----------
        sensitivity : Sensitivity or float
            C, the largest norm of a record; ``sensitivity.record_norm`` computes it.
        budget : Budget
            The budget of the release, with delta > 0.
        rows : int
            The number of rows of the sketch. More rows estimate X^T X better but need a larger
            sigma_0, which grows about as rows^(1/4).
        dimension : int
            The number of columns of a record.
        accept : tuple of str
            Must be ("idealised-arithmetic",), the assumption that this mechanism rests on.
        """
        signed = tuple(accept)
        require_accepted(cls, signed)
        sensitivity = as_sensitivity(sensitivity)
        check_common(cls.__name__, rows, 0.0, "rows")
        check_common(cls.__name__, dimension, 0.0)
        ratio = mixing_ratio(budget.epsilon, budget.delta, int(rows), sensitivity.neighbours)
        # slightly more noise: epsilon is known to 1e-11, and so it ends on the private side at once
        sigma = sensitivity.value / math.sqrt(ratio) * (1 + 1e-9)
        grid = 2.0 ** (math.floor(math.log2(sigma)) - 24)
        found: GaussianMixing = end_on_private_side(
            cls(sensitivity, rows, dimension, sigma, grid, signed), budget
        )
        return found
