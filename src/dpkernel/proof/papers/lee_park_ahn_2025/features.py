"""The two feature maps of the paper, and the base classes of the algorithms on each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from scipy.linalg import cholesky
from scipy.spatial.distance import cdist

from dpkernel.data.domain import clip_rows
from dpkernel.data.tables import checked_table
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice
from dpkernel.models.kernels import ShiftInvariant, resolve_kernel
from dpkernel.proof.papers.lee_park_ahn_2025.common import Published, dense


def gaussian_process_projection(
    points: Array,
    n_features: int,
    *,
    length_scale: float = 1.0,
    random_state: int = 0,
    kernel: Callable[[Array], Array] | None = None,
) -> Array:
    r"""Return h_M at every point: M independent paths of the Gaussian process, divided by sqrt(M).

    This is exactly Definition 5: L G / sqrt(M), where L is the Cholesky factor of the kernel matrix K of
    all points and G is standard normal. It takes time O(points^3). Row i depends only on the points up
    to i, so training rows do not change with the test points that follow them. ``kernel`` returns K;
    by default it is the Gaussian kernel with this length scale.

    Notes
    -----
    Numerics
        If K is singular to working precision (repeated points), the smallest of 1e-13, 1e-12, ...
        that helps is added to its diagonal.
    """
    if kernel is None:
        matrix = np.exp(-cdist(points, points, "sqeuclidean") / (2 * length_scale**2))
    else:
        matrix = kernel(points)
    factor = _cholesky(matrix)
    draws = np.random.Generator(np.random.PCG64(random_state))  # public, a part of the algorithm
    return np.asarray(
        factor @ draws.standard_normal((len(points), n_features)) / math.sqrt(n_features)
    )


class OnProjection(Published):
    """Algorithms 1 and 2: z_i = h_M(x_i), drawn jointly at training and test points."""

    _constraints: ClassVar = {**Published._constraints, "norm_bound": Choice("lemma", "nested")}
    _log_odds: ClassVar[str]  # of the norm bound, in words
    _no_ceiling = "what it releases contains the training inputs"

    norm_bound: str

    def fit_predict(self, X: Any, y: Any, X_test: Any) -> Array:
        """Run the algorithm on (X, y) and return its predictions at the rows of ``X_test``.

        This is one call, because the projection of a test point is drawn together with the training
        inputs. Nothing is spent if an argument or the data are refused.
        """
        return self._predictions(self._fit_scores(X, y, X_test))

    def _fit_scores(self, X: Any, y: Any, X_test: Any) -> Array:
        """Return f~ at the rows of ``X_test``."""
        self._check_parameters()
        X, y = self._rows_to_train(X, y)
        table = checked_table(self, X_test, sparse_too=True, reset=False)
        X_test = dense(table)
        self._refuse_a_ceiling()
        projected = gaussian_process_projection(
            np.vstack([X, X_test]),
            self.n_features,
            length_scale=self.length_scale,
            random_state=self.random_state,
            kernel=None if self.kernel == "gaussian" else self._kernel(X.shape[1]),
        )
        self._release(projected[: len(X)], y)
        return np.asarray(projected[len(X) :] @ self.coef_)

    def _objections(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        unproved = [
            "erratum 003-12: the released function is a Gaussian-process path, which can be"
            " evaluated at a new point only by conditioning on the training inputs: the release"
            " contains them",
            "the norm bound of Lemma 7 holds in probability over a projection drawn afresh; here"
            " the projection follows from the public seed and rows are not clipped to the bound",
        ]
        if self.norm_bound == "nested":
            unproved.append(
                "erratum 003-3: the printed bound takes one root over both terms and is below that"
                f" of Lemma 7 for n_features < 1.87 {self._log_odds}"
            )
        return tuple(unproved), (
            "the projection of the test points is computed from the training inputs without noise",
        )


class OnFourierFeatures(Published):
    """Algorithms 3 and 4: z_i = phi_M(x_i), random Fourier features with a public seed."""

    _constraints: ClassVar = {**Published._constraints, "features": Choice("cosine", "paired")}

    features: str

    def fit(self, X: Any, y: Any) -> Any:
        """Run the algorithm on (X, y), and return the estimator."""
        self._check_parameters()
        X, y = self._rows_to_train(X, y)
        self._refuse_a_ceiling()
        return self._release(self._map(X), y)

    def predict(self, X: Any) -> Array:
        """Return f~ at every row, without clipping as in the paper, or its class."""
        return self._predictions(np.asarray(self.transform(X) @ self.coef_))

    def transform(self, X: Any) -> Array:
        """Return the features phi_M of every row. They follow from the public seed alone."""
        return self._map(self._check_new_data(X))

    def _map(self, X: Array) -> Array:
        draws = np.random.Generator(np.random.PCG64(self.random_state))  # public, a part of it
        columns = self.n_features // 2 if self.features == "paired" else self.n_features
        if self.kernel == "gaussian":
            frequencies = draws.standard_normal((X.shape[1], columns)) / self.length_scale
        else:
            kernel = resolve_kernel(self.kernel, float(self.length_scale))
            assert isinstance(kernel, ShiftInvariant)  # _check_parameters has refused others
            frequencies = kernel.sample_frequencies(columns, X.shape[1], draws).T
        phase = np.clip(X, -1e30, 1e30) @ frequencies
        if self.features == "paired":
            out = np.concatenate((np.cos(phase), np.sin(phase)), axis=1)
        else:
            out = np.cos(phase + draws.uniform(0, 2 * math.pi, columns))
        return np.asarray(out * math.sqrt(2 / self.n_features))

    @property
    def _row_norm(self) -> float:
        """B, the largest norm of a row."""
        return 1.0 if self.features == "paired" else math.sqrt(2)

    def _cut(self, Z: Array) -> Array:
        """Return the rows clipped to norm B, which changes only the last bits of these features."""
        return clip_rows(Z, self._row_norm)

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        found = super()._check_parameters()
        kernel = resolve_kernel(self.kernel, float(self.length_scale))
        if not isinstance(kernel, ShiftInvariant):
            allowed = "a shift-invariant kernel, which has random Fourier features"
            raise ParameterError(
                parameter_message(type(self).__name__, "kernel", allowed, kernel.kind)
            )
        if self.features == "paired" and self.n_features % 2:
            raise ParameterError(
                parameter_message(
                    type(self).__name__, "n_features", "even for paired features", self.n_features
                )
            )
        return found


def _cholesky(kernel: Array) -> Array:
    """Return a lower Cholesky factor of K, or of K + jitter I if K is singular to working precision."""
    jitter = 0.0
    while True:
        try:
            shifted = kernel + jitter * np.eye(len(kernel)) if jitter else kernel
            return np.asarray(cholesky(shifted, lower=True))
        except np.linalg.LinAlgError:
            if jitter > 1e-3:
                raise
            jitter = max(10 * jitter, 1e-13)
