"""Private kernel ridge regression from one noisy Gram matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted

from dpkernel.blocks import BLOCK_ROWS, BlockStream, checked_blocks, library_of
from dpkernel.certificate import Certificate, Release
from dpkernel.domain import Domain
from dpkernel.errors import CertificateError, DataError, ParameterError, parameter_message
from dpkernel.estimators.base import PrivateEstimator, logger, resolve_domain
from dpkernel.estimators.gram_pass import (
    Recipe,
    dask_shape,
    first_and_all,
    sum_blocks,
    sum_dask,
)
from dpkernel.features import (
    FeatureMap,
    FourierFeatures,
    LinearFeatures,
    PolynomialMap,
    PublicEigenfeatures,
    PublicNystroem,
    RandomProjection,
    feature_map_from_dict,
)
from dpkernel.kernels import REGISTRY as KERNELS
from dpkernel.kernels import Kernel, resolve_kernel
from dpkernel.ledger import Ledger
from dpkernel.mechanisms import SymmetricGaussian
from dpkernel.noise import NoiseSource, SeededNoise
from dpkernel.profiles import gaussian_mu
from dpkernel.solvers.ridge import RidgeSolution, solve_ridge
from dpkernel.statistics import GramLayout, GramStatistics, NoisyGram
from dpkernel.types import JSON, Array, Budget, Neighbours
from dpkernel.validation import Choice, Kind, Real, Whole

_FLOAT32_FROM = 20_000  # rows from which features are computed in single precision


def _projection(options: dict[str, Any]) -> FeatureMap:
    size = options.pop("n_components")
    base = FourierFeatures(4096, **options)
    return RandomProjection(size, base=base, random_state=options["random_state"])


def _polynomial(options: dict[str, Any]) -> FeatureMap:
    kernel = resolve_kernel(options["kernel"])
    if not hasattr(kernel, "degree") or not hasattr(kernel, "offset"):
        allowed = "'polynomial', or a polynomial kernel, with features='polynomial'"
        raise ParameterError(
            parameter_message("PrivateKernelRidge", "kernel", allowed, options["kernel"])
        )
    return PolynomialMap(kernel.degree, offset=kernel.offset)


# how the names of ``features=`` are built from size, kernel, length scale and public seed
MAPS: dict[str, Callable[[dict[str, Any]], FeatureMap]] = {
    "fourier": lambda o: FourierFeatures(**o),
    "projection": _projection,
    "eigen": lambda o: PublicEigenfeatures(**o),
    "nystroem": lambda o: PublicNystroem(**o),
    "linear": lambda o: LinearFeatures(),
    "polynomial": _polynomial,
}


class PrivateKernelRidge(RegressorMixin, MultiOutputMixin, PrivateEstimator):
    r"""Kernel ridge regression with a privacy certificate.

    Minimises sum_i (y_i - phi(x_i)^T beta - b)^2 + Lambda ||beta||^2 on a data-independent
    feature map phi, from one noisy release of sum_i v_i v_i^T, v = (phi(x), y, 1). One pass over
    the data; everything after the release is post-processing.

    Parameters
    ----------
    epsilon, delta : float
        What is asked for; the certificate states at most this.
    kernel : str or Kernel
        A name ("gaussian", "laplace", "matern12", "matern32", "matern52", "rational_quadratic",
        "cauchy", "linear", "polynomial", "arc_cosine", "additive") or a value of
        ``dpkernel.kernels``.
    length_scale : "auto", float or one a column
        On inputs scaled to [-1, 1]. "auto" is 0.7 sqrt(d).
    features : "auto", "eigen", "fourier", "projection", "nystroem", "linear", "polynomial" or FeatureMap
        "auto" takes the exact map of linear and polynomial kernels, public eigenfeatures where
        bounds are declared, and Fourier features otherwise.
    n_features : "auto" or int
        "auto" depends on (n, epsilon, delta) only.
    regularisation : "auto" or float
        Lambda; "auto" follows from the noise of the release.
    bounds : (low, high) or Domain, optional
        Publicly known range of the columns; values outside are clipped. Fourier features and random
        projections of kernels that are bounded everywhere do without.
    y_bounds : (low, high)
        Publicly known range of the target. Required; values outside are clipped.
    neighbours : {"replace-one", "zero-out"}
    ledger : Ledger, optional
        Where the spend is recorded. Without one each fit has a ledger of its own.
    noise : NoiseSource, optional
        The operating system's entropy by default; ``SeededNoise`` makes the fit not private.
    random_state : int, optional
        The public seed of the feature map; None is 0, as good as any. It has nothing to do with the
        noise.
    verbose : bool
        Show a progress bar; it counts rows.

    Attributes
    ----------
    certificate_ : Certificate
    coef_, intercept_ : on the features, in units of the scaled target
    feature_map_ : FeatureMap
    n_features_in_, feature_names_in_

    Guarantee    (epsilon, delta)-DP for the stated neighbours. Public: n, bounds, seed, parameters.
    Sensitivity  sqrt(2) N^2 (replace-one) or N^2, in integers: ``sensitivity.augmented_gram``.
    Not covered  ``score`` on the training rows: it reads them without noise.
    Reference    Lee, Park & Ahn, Algorithms 1 and 3 and Appendix B, with a joint release, clipping
                 and the analytic Gaussian mechanism in place of the printed calibration.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel import PrivateKernelRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (2000, 3)); y = X @ [1.0, -2.0, 0.5]
    >>> model = PrivateKernelRidge(epsilon=1.0, kernel="linear", bounds=(-1, 1), y_bounds=(-4, 4))
    >>> model.fit(X, y).certificate_.private
    True
    """

    _constraints: ClassVar = {
        "epsilon": Real(0, math.inf),
        "delta": Real(0, 1),
        "kernel": (Choice(*KERNELS), Kind(Kernel)),
        "length_scale": (Choice("auto"), Real(0, math.inf), Kind(list, tuple, np.ndarray)),
        "features": (Choice("auto", *MAPS), Kind(FeatureMap)),
        "n_features": (Choice("auto"), Whole(2, 10_000)),
        "regularisation": (Choice("auto"), Real(0, math.inf)),
        "ledger": (Choice(None), Kind(Ledger)),
        "noise": (Choice(None), Kind(NoiseSource)),
        "random_state": (Choice(None), Whole(0)),
        "verbose": Choice(False, True),
    }

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        kernel: Any = "gaussian",
        length_scale: Any = "auto",
        features: Any = "auto",
        n_features: int | str = "auto",
        regularisation: float | str = "auto",
        bounds: Any = None,
        y_bounds: Any = None,
        neighbours: str | Neighbours = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        random_state: int | None = None,
        verbose: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.kernel = kernel
        self.length_scale = length_scale
        self.features = features
        self.n_features = n_features
        self.regularisation = regularisation
        self.bounds = bounds
        self.y_bounds = y_bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> PrivateKernelRidge:
        """Release the noisy Gram matrix of (X, y) and solve for the model.

        Parameters
        ----------
        X : array, data frame, Dask array or data frame, torch tensor, or BlockStream
            A ``BlockStream`` carries its targets; it is read once.
        y : array of shape (n,) or (n, targets)

        Nothing is spent if an argument or the data are refused, or if a Dask graph fails.
        """
        try:
            return self._fit(X, y)
        finally:
            self.__dict__.pop("_set_aside", None)

    def _fit(self, X: Any, y: Any) -> PrivateKernelRidge:
        budget, relation = self._check_parameters()
        if not relation.n_is_public:
            raise ParameterError(
                parameter_message(
                    type(self).__name__,
                    "neighbours",
                    "'replace-one' or 'zero-out'",
                    relation.value,
                    "The rows of a matrix product change in their last bits when a row is removed.",
                )
            )
        table = self._open(X, y)
        domain = resolve_domain(
            self.bounds,
            self.y_bounds,
            table.n_columns,
            type(self).__name__,
            self._set_aside["feature_names_in_"],
        )
        if domain.n_max is not None and table.n_rows > domain.n_max:
            raise DataError(
                f"X has more rows than the n_max={domain.n_max} that the domain declares."
            )
        n_inputs = table.n_columns if domain.columns is None else domain.n_unit_columns
        features = self._build_features(domain, table.n_rows, n_inputs, budget)
        n_targets = table.target_shape[0] if table.target_shape else 1
        layout = GramLayout.choose(
            features.n_outputs, n_targets, features.row_norm_bound, relation, table.n_rows, budget
        )
        mechanism = layout.mechanism(budget)
        releases = [Release("gram matrix", mechanism)]
        self._check_ledger(releases, budget)
        logger.info("one pass over %d rows with %d features", table.n_rows, features.n_outputs)
        dtype = "float32" if table.n_rows >= _FLOAT32_FROM else "float64"
        statistics = table.sum(Recipe(domain, features, layout, dtype))
        noise = self._spend(releases, budget)
        gram = statistics.release(mechanism, noise)

        unit = (layout.row_bound / layout.row) ** 2
        chosen = None if self.regularisation == "auto" else float(self.regularisation)
        solution = solve_ridge(
            gram,
            float(table.n_rows),
            mechanism.noise_scale * unit,
            constant=layout.constant * layout.row_bound / layout.row,
            regularisation=chosen,
            spectrum=getattr(features, "spectrum", None),
        )
        certificate = Certificate.issue(
            type(self).__name__,
            budget,
            releases,
            noise,
            public={
                "n_rows": table.n_rows,
                "n_columns": table.n_columns,
                "domain": domain.to_dict(),
                "feature_map": features.to_dict(),
                "regularisation": solution.regularisation,
                "integer_grid": {
                    "row": layout.row,
                    "target": layout.target,
                    "constant": layout.constant,
                },
            },
            free_statistics=_training_error(
                gram, layout, mechanism, solution, domain, table.n_rows
            ),
            reference="Lee, Park & Ahn, Algorithms 1 and 3, corrected: joint release of the augmented"
            " Gram matrix; " + mechanism.reference,
        )
        self._set_columns()
        self._domain, self.feature_map_ = domain, features
        several = bool(table.target_shape)
        self.coef_ = solution.coefficients if several else solution.coefficients[:, 0]
        self.intercept_ = solution.intercepts if several else float(solution.intercepts[0])
        self.certificate_ = certificate
        return self

    def _open(self, X: Any, y: Any) -> _Table:
        """Return the table with its public sizes and the way to sum it."""
        if isinstance(X, BlockStream):
            if y is not None:
                raise ParameterError("A BlockStream carries its targets: leave y out.")
            first, blocks = first_and_all(checked_blocks(X, (np.float64, np.float32)))
            self._keep_columns(first[0].shape[1])
            return _Table(
                X.n_rows,
                first[0].shape[1],
                first[1].shape[1:],
                lambda r: sum_blocks(blocks, r, progress=self.verbose),
            )
        if library_of(X) == "dask":
            n_rows, n_columns, shape = dask_shape(X, y)
            self._keep_columns(n_columns, getattr(X, "columns", None))
            return _Table(n_rows, n_columns, shape, lambda r: sum_dask(X, y, r))
        if library_of(X) == "torch":
            from dpkernel.estimators.torch_pass import check_tensors, sum_tensors

            shape = check_tensors(X, y)
            self._keep_columns(X.shape[1])
            return _Table(len(X), X.shape[1], shape, lambda r: sum_tensors(X, y, r))
        X, y = self._check_training_data(X, y, multi_output=True)
        return _Table(
            len(X),
            X.shape[1],
            y.shape[1:],
            lambda r: sum_blocks([(X, y)], r, progress=self.verbose),
        )

    def predict(self, X: Any) -> Array:
        """Return predictions inside ``y_bounds``."""
        X = self._check_new_data(X)
        out = np.empty((len(X), *np.shape(self.intercept_)))
        for start in range(0, len(X), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            block = X[rows] if self._domain.columns is None else self._domain.to_unit(X[rows])
            out[rows] = self.feature_map_.transform_block(block) @ self.coef_ + self.intercept_
        target = self._domain.target
        return np.asarray(target.from_unit(np.clip(out, -1.0, 1.0)))  # type: ignore[union-attr]

    def _to_state(self) -> tuple[JSON, dict[str, Array]]:
        """Return what a model file holds: a JSON header and arrays."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        header = {
            "certificate": self.certificate_.to_dict(),
            "domain": self._domain.to_dict(),
            "feature_map": self.feature_map_.to_dict(),
            "n_columns": self.n_features_in_,
            "columns": None if names is None else [str(name) for name in names],
        }
        return header, {"coef": np.asarray(self.coef_), "intercept": np.asarray(self.intercept_)}

    @classmethod
    def _from_state(cls, header: JSON, arrays: dict[str, Array]) -> PrivateKernelRidge:
        """Return the fitted model that ``_to_state`` described."""
        certificate = Certificate.from_dict(header["certificate"])
        domain = Domain.from_dict(header["domain"])
        features = feature_map_from_dict(header["feature_map"])
        shape = np.shape(arrays["coef"])
        if shape[:1] != (features.n_outputs,) or np.shape(arrays["intercept"]) != shape[1:]:
            raise CertificateError(
                "The coefficients of this model file do not fit its feature map."
            )
        model = cls(
            certificate.epsilon,
            certificate.delta,
            features=features,
            bounds=domain if domain.columns is not None else None,
            y_bounds=domain.target,
            neighbours=certificate.neighbours,
        )
        model.certificate_, model._domain = certificate, domain
        model.feature_map_ = features
        model.n_features_in_ = header["n_columns"]
        if header["columns"] is not None:
            model.feature_names_in_ = np.array(header["columns"], dtype=object)
        model.coef_, model.intercept_ = arrays["coef"], arrays["intercept"]
        return model

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = not isinstance(self.noise, SeededNoise)
        tags.regressor_tags.poor_score = True
        return tags

    def _build_features(self, domain: Domain, n: int, d: int, budget: Budget) -> FeatureMap:
        """Return the feature map; it depends on (n, d, epsilon, delta) and parameters only."""
        if isinstance(self.features, FeatureMap):
            chosen: FeatureMap = clone(self.features).build(d)
            return chosen
        kind = self.features
        if kind == "auto":
            name = getattr(self.kernel, "kind", self.kernel)
            exact = name if name in ("linear", "polynomial") else None
            kind = exact or ("fourier" if domain.columns is None else "eigen")
        if kind not in ("fourier", "projection") and domain.columns is None:
            raise ParameterError(
                f"{type(self).__name__} with kernel={self.kernel!r} and features={kind!r} needs"
                " 'bounds', the publicly known range of the columns, for example bounds=(0, 100) or"
                " bounds=([0, 0], [100, 9])."
            )
        length_scale = 0.7 * math.sqrt(d) if self.length_scale == "auto" else self.length_scale
        # the noise in M features grows like M / (n mu): more of them than that are noise
        signal = math.sqrt(n * gaussian_mu(budget.epsilon, budget.delta))
        size = 2 * int(min(max(0.6 * signal, 4), 512))
        options = {
            "n_components": size if self.n_features == "auto" else int(self.n_features),
            "kernel": self.kernel,
            "length_scale": length_scale,
            "random_state": int(self.random_state or 0),
        }
        built: FeatureMap = MAPS[kind](options).build(d)
        return built


@dataclass(frozen=True)
class _Table:
    """A table's public sizes, and the way to its exact sum."""

    n_rows: int
    n_columns: int
    target_shape: tuple[int, ...]
    sum: Callable[[Recipe], GramStatistics]


def _training_error(
    gram: NoisyGram,
    layout: GramLayout,
    mechanism: SymmetricGaussian,
    solution: RidgeSolution,
    domain: Domain,
    n: int,
) -> dict[str, Any]:
    """Return the training error read off the released matrix, with the noise's own spread.

    The error is w^T A w / n for w = (-beta, 1, -b); symmetric noise of scale sigma on A gives it
    the standard deviation sigma ||w||^2 / n in integer units. It is biased low, as any training
    error is, because w was chosen from the same A.
    """
    scale = domain.target.half_width**2 / n  # type: ignore[union-attr]
    out: dict[str, Any] = {"training_mse": [], "training_mse_noise_std": [], "training_r2": []}
    for j in range(layout.n_targets):
        w = np.zeros(layout.side)
        w[: layout.n_features] = -solution.coefficients[:, j]
        w[layout.n_features + j] = 1.0
        w[-1] = -solution.intercepts[j]
        out["training_mse"].append(float(w @ gram.matrix @ w) * scale)
        spread = mechanism.sigma * float(np.sum((w * layout.units) ** 2)) * scale
        out["training_mse_noise_std"].append(spread)
        variance = float(gram.targets[j, j] - gram.target_sum[j] ** 2 / n) * scale
        error = out["training_mse"][-1]
        out["training_r2"].append(1 - error / variance if variance > 0 else None)
    return out
