"""Principal components from one noisy Gram matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin
from sklearn.utils.validation import check_is_fitted

from dpkernel.data.domain import Domain
from dpkernel.data.tables import as_floats
from dpkernel.estimators.base import FitPlan, Fitted
from dpkernel.foundations.errors import CertificateError, ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Real, Whole
from dpkernel.preprocessing.base import PrivateTransformer, ranges_as_json
from dpkernel.preprocessing.rows import StepTable
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import SymmetricGaussian
from dpkernel.privacy.noise import Noise, NoiseSource
from dpkernel.privacy.statistics import GramLayout, GramSum


class PrivatePCA(ClassNamePrefixFeaturesOutMixin, PrivateTransformer):
    r"""Project on the leading principal components, which are found privately.

    Columns are clipped to their bounds and scaled to [-1, 1]. Let u be a scaled row, shortened to
    ``row_bound`` if it is longer, and v = (u, 1). One noisy release of sum_i v_i v_i^T gives the
    mean and the covariance of the scaled columns. The components are those of this covariance, so a
    column counts in proportion to its spread within its bounds. Declare tight bounds, or find them
    with ``PrivateBounds`` first.

    Parameters
    ----------
    n_components : int, optional
        The number of components; by default that of the columns. It is public and never read from the
        data.
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. delta must be above 0.
    bounds : (low, high) or Domain
        The public range of the columns. It is required. Values outside are clipped.
    row_bound : "auto" or float
        Scaled rows that are longer than this are shortened to it. The noise grows as its square. "auto"
        is sqrt(d / 3) for d columns, the typical length of a row that fills its bounds evenly.
    neighbours, ledger, noise
        See ``PrivateBounds``.

    Attributes
    ----------
    components_ : array (n_components, columns)
        The components of the scaled columns. Signs are chosen so that the largest entry is positive.
    mean_ : array
        The noisy mean of the scaled columns.
    explained_variance_ : array
        The noisy variance of each component, at least 0.
    certificate_, n_features_in_, feature_names_in_
        See ``PrivateBounds``.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows, the bounds and the parameters
        are public.
    Sensitivity
        sqrt(2) N^2 (replace-one) or N^2 (zero-out), in integers, where N bounds the norm of v:
        ``sensitivity.augmented_gram``.
    Not covered
        A ``score`` of any model on the training rows, because it reads them without noise.

    References
    ----------
    Dwork, Talwar, Thakurta & Zhang (2014), with a joint release of mean and second moments and the
    analytic Gaussian mechanism.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.preprocessing import PrivatePCA
    >>> t = np.random.default_rng(0).uniform(-1, 1, (5000, 1))
    >>> pca = PrivatePCA(1, epsilon=1.0, bounds=(-1, 1)).fit(np.hstack([t, t, 0 * t]))
    >>> bool(abs(pca.components_[0, :2].sum()) > 1.35)
    True
    """

    _learned: ClassVar[tuple[str, ...]] = ("components_", "mean_")
    _public: ClassVar[tuple[str, ...]] = ("n_components", "row_bound")
    _constraints: ClassVar = {
        **PrivateTransformer._constraints,
        "n_components": (Choice(None), Whole(1)),
        "row_bound": (Choice("auto"), Real(0, 1e100)),
    }

    _domain: Domain

    def __init__(
        self,
        n_components: int | None = None,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        bounds: Any = None,
        row_bound: float | str = "auto",
        neighbours: str | Neighbours = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.n_components = n_components
        self.epsilon = epsilon
        self.delta = delta
        self.bounds = bounds
        self.row_bound = row_bound
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise

    def _make_plan(self, table: StepTable, budget: Budget, relation: Neighbours) -> FitPlan:
        columns = table.n_columns
        ranges, kept = self._ranges(table.columns), self._n_outputs(columns)
        bound = math.sqrt(columns / 3) if self.row_bound == "auto" else float(self.row_bound)
        layout = GramLayout.choose(columns, 0, bound, relation, table.n_rows, budget)
        public = {"n_rows": table.n_rows, "ranges": ranges_as_json(ranges), "row_bound": bound}
        mechanism = layout.mechanism(budget)
        return _ComponentsPlan(table, Domain(tuple(ranges)), layout, mechanism, kept, public)

    def transform(self, X: Any) -> Array:
        """Return the components of clipped and scaled rows."""
        unit = self._domain_of_fit().to_unit(self._check_new_table(X))
        return np.asarray((unit - self.mean_) @ self.components_.T)

    def inverse_transform(self, X: Any) -> Array:
        """Return the rows that belong to these components, in their original units."""
        low, high, middle, half = self._domain_of_fit().limits
        unit = as_floats(X, "X") @ self.components_ + self.mean_
        return np.asarray(np.clip(unit * half + middle, low, high))

    def _to_state(self) -> tuple[JSON, dict[str, Array]]:
        header, arrays = super()._to_state()
        return header, {**arrays, "explained_variance": self.explained_variance_}

    @classmethod
    def _from_state(cls, header: JSON, arrays: dict[str, Array]) -> Self:
        model = super()._from_state(header, arrays)
        model._domain = Domain.from_dict(header["domain"])
        model.explained_variance_ = arrays["explained_variance"]
        if np.shape(model.explained_variance_) != np.shape(model.components_)[:1]:
            raise CertificateError("The numbers of this model file do not fit its components.")
        return model

    def _domain_of_fit(self) -> Domain:
        check_is_fitted(self)
        return self._domain

    def _n_outputs(self, n_columns: int) -> int:
        if self.n_components is None:
            return n_columns
        if self.n_components > n_columns:
            allowed = f"an int from 1 to {n_columns}, the number of columns"
            owner = type(self).__name__
            raise ParameterError(
                parameter_message(owner, "n_components", allowed, self.n_components)
            )
        return int(self.n_components)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    @property
    def _output_bounds(self) -> Any:
        """One interval per component: three deviations to either side, from released numbers."""
        if not hasattr(self, "explained_variance_"):
            return -1.0, 1.0
        half = 3 * np.sqrt(np.maximum(self.explained_variance_, 1e-4))
        return -half, half


@dataclass
class _ComponentsPlan(FitPlan):
    """The noisy Gram matrix of the columns, and its leading directions."""

    rows: StepTable
    domain: Domain
    layout: GramLayout
    mechanism: SymmetricGaussian
    kept: int
    public: JSON
    total: GramSum | None = None

    @property
    def releases(self) -> list[Release]:  # type: ignore[override]
        """The line of the certificate."""
        return [Release("gram matrix", self.mechanism)]

    def prepare(self) -> None:
        """Sum up the rows in one pass."""
        total = GramSum(self.layout)
        for block in self.rows.blocks(spent=False):
            total = total.update(self.domain.to_unit(block), np.empty((len(block), 0)))
        self.total = total

    def run(self, noise: Noise) -> Fitted:
        """Release the matrix and take its directions."""
        assert self.total is not None
        gram, n, kept = self.total.release(self.mechanism, noise), self.rows.n_rows, self.kept
        mean = np.clip(gram.feature_sum / n, -1.0, 1.0)
        values, vectors = np.linalg.eigh(gram.features / n - np.outer(mean, mean))
        leading = vectors[:, ::-1][:, :kept].T
        largest = leading[np.arange(kept), np.argmax(np.abs(leading), axis=1)]
        return Fitted(
            {
                "_domain": self.domain,
                "mean_": mean,
                "components_": leading * np.where(largest < 0, -1.0, 1.0)[:, None],
                "explained_variance_": np.maximum(values[::-1][:kept], 0.0),
            },
            self.public,
        )
