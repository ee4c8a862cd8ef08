"""Gaussian mixing: a private sketch, random combinations of all records with noise on top."""

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
    IDEALISED,
    UP,
    Mechanism,
    as_sensitivity,
    check_common,
    check_numbers,
    check_sensitivity,
    end_on_private_side,
    register,
    require_accepted,
)
from dpkernel.privacy.noise import Noise, NoiseSource
from dpkernel.privacy.profiles import MixingProfile, mixing_ratio
from dpkernel.privacy.sensitivity import Sensitivity

_ENTRIES = 1 << 21  # of the part of S that exists at once: 16 MB
_MOST_BLOCK_ROWS = 4096
_MOST_THREADS = 8
_SHORT = 3  # so many columns a row, and drawing S is faster than summing X^T X


@register
@dataclass(frozen=True)
class GaussianMixing(Mechanism):
    r"""Release S X + sigma_0 N: ``rows`` random combinations of the records, with noise.

    X holds one record a row, cut to norm C here; S (rows x n) and N (rows x dimension) are standard
    normal, drawn for this release and forgotten. S hides which records there are where they are many,
    and sigma_0 N where a record has a direction to itself: without it a sketch is not private.

    Guarantee    the profile of ``MixingProfile`` with t = C^2 / sigma_0^2, whatever the data are and
                 however many: exact for a record that is alone.
    Sensitivity  L2, C = the largest norm of a record.
    Numerics     normals in floats (one for each word of the noise's source), sums in float64,
                 the result rounded to a grid. No finite-precision theorem covers noise that multiplies
                 the data: the user accepts 'idealised-arithmetic'.
    Reference    Sheffet (2017, 2019); Lev et al. (2025). A count sketch, a Hadamard sketch or the
                 sketch of Ma (2024), which has no sigma_0, has no such guarantee.
    """

    sensitivity: Sensitivity
    rows: int
    dimension: int
    sigma: float
    grid: float
    accepted: tuple[str, ...] = ()

    kind: ClassVar[str] = "gaussian-mixing"
    reference: ClassVar[str] = "Sheffet (2019), Lev et al. (2025); exact chi-squared profile"
    assumptions: ClassVar[tuple[str, ...]] = (IDEALISED,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "accepted", tuple(self.accepted))
        require_accepted(self, self.accepted)
        check_sensitivity(self, Sensitivity, "l2")
        check_numbers(self, positive=("sigma", "grid"), counts=("rows", "dimension"))

    @property
    def noise_scale(self) -> float:
        """Sigma_0, in the units of the records."""
        return self.sigma

    def profile(self) -> MixingProfile:
        """Return the profile at t = C^2 / sigma_0^2, rounded up."""
        share = self.sensitivity.value / self.sigma * UP
        return MixingProfile(self.rows, share * share * UP, self.sensitivity.neighbours.value)

    def release(self, value: Any, noise: Noise) -> Array:
        """Return the sketch of records, a matrix (n, dimension) or an iterable of blocks of rows.

        A sketch with at least a third as many rows as columns is drawn given X^T X, which is summed
        block by block: n dimension^2 operations and rows * dimension normals. For a shorter one the
        part of S that belongs to a block is drawn when the block comes, and never kept: memory for two
        million entries of it, 2 n rows dimension operations and n * rows normals. One law for both.
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

        # words are drawn here, in the order of the blocks; what is done with them, in threads
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
        """Return a sketch of records of which the Gram matrix X^T X is known.

        The rows of a sketch are independent draws of N(0, X^T X + sigma_0^2 I): here they are drawn as
        such, with rows * dimension normals instead of rows * n. The law is that of ``release``. Whoever
        computed the Gram matrix answers for the norm of the records in it.
        """
        if np.shape(gram) != (self.dimension, self.dimension):
            allowed = f"an array of shape ({self.dimension}, {self.dimension})"
            got = f"shape {np.shape(gram)}"
            raise ParameterError(parameter_message(type(self).__name__, "gram", allowed, got))
        return self._drawn_given(np.asarray(gram, dtype=np.float64), self._claim(noise))

    def _drawn_given(self, gram: Array, source: NoiseSource) -> Array:
        # a decomposition that always exists: no failure could tell of the data
        matrix = np.nan_to_num(gram, posinf=1e150, neginf=-1e150)
        values, vectors = eigh(np.clip(matrix, -1e150, 1e150), check_finite=False)
        root = vectors * np.sqrt(np.maximum(values, 0.0) + self.sigma**2)
        draws = source.standard_normals(self.rows * self.dimension)
        with np.errstate(all="ignore"):
            return self._on_grid(draws.reshape(self.rows, self.dimension) @ root.T)

    def _parts(self, block: Any, step: int) -> Iterator[Array]:
        self._check_block(block)
        for start in range(0, len(block), step):
            # a copy: whoever hands out blocks may use their memory again for the next one
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
        """Return the mechanism with the least sigma_0 for a budget and records of norm <= sensitivity.

        Parameters
        ----------
        sensitivity : Sensitivity or float
            C; ``sensitivity.record_norm`` computes it.
        rows : int
            Of the sketch. More rows estimate X^T X better and need a larger sigma_0, about as
            rows^(1/4).
        dimension : int
            The number of columns of a record.
        accept : tuple of str
            ("idealised-arithmetic",), which this mechanism rests on.
        """
        signed = tuple(accept)
        require_accepted(cls, signed)
        sensitivity = as_sensitivity(sensitivity)
        check_common(cls.__name__, rows, 0.0, "rows")
        check_common(cls.__name__, dimension, 0.0)
        ratio = mixing_ratio(budget.epsilon, budget.delta, int(rows), sensitivity.neighbours)
        # a hair more, so that epsilon, which is known to 1e-11, ends on the private side at once
        sigma = sensitivity.value / math.sqrt(ratio) * (1 + 1e-9)
        grid = 2.0 ** (math.floor(math.log2(sigma)) - 24)
        found: GaussianMixing = end_on_private_side(
            cls(sensitivity, rows, dimension, sigma, grid, signed), budget
        )
        return found
