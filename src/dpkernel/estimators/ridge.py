"""Private kernel ridge regression from one noisy Gram matrix."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpkernel.certificate import Certificate, Release
from dpkernel.domain import Domain
from dpkernel.errors import DataError, ParameterError, parameter_message
from dpkernel.estimators.base import PrivateEstimator, logger, resolve_domain
from dpkernel.features import FeatureMap, FourierFeatures, LinearFeatures, feature_map_from_dict
from dpkernel.ledger import Ledger
from dpkernel.mechanisms import SymmetricGaussian
from dpkernel.noise import NoiseSource, SeededNoise
from dpkernel.profiles import gaussian_mu
from dpkernel.solvers.ridge import RidgeSolution, solve_ridge
from dpkernel.statistics import GramLayout, GramStatistics, NoisyGram
from dpkernel.types import JSON, Array, Budget, Neighbours
from dpkernel.validation import Choice, Kind, Real, Whole

_BLOCK = 4096  # rows at a time: memory does not grow with n


class PrivateKernelRidge(RegressorMixin, MultiOutputMixin, PrivateEstimator):
    r"""Kernel ridge regression with a privacy certificate.

    Minimises sum_i (y_i - phi(x_i)^T beta - b)^2 + Lambda ||beta||^2 on a data-independent
    feature map phi, from one noisy release of sum_i v_i v_i^T, v = (phi(x), y, 1). One pass over
    the data; everything after the release is post-processing.

    Parameters
    ----------
    epsilon, delta : float
        What is asked for; the certificate states at most this.
    kernel : {"gaussian", "linear"}
        "gaussian" by random Fourier features; "linear" exactly.
    length_scale : "auto" or float
        Of the Gaussian kernel, on inputs scaled to [-1, 1]. "auto" is 0.7 sqrt(d).
    n_features : "auto" or int
        Even, for the Gaussian kernel. "auto" depends on (n, d, epsilon, delta) only.
    regularisation : "auto" or float
        Lambda; "auto" follows from the noise of the release.
    bounds : (low, high) or Domain, optional
        Publicly known range of the columns; values outside are clipped. Required for the linear
        kernel; without it the Gaussian kernel takes X as it is.
    y_bounds : (low, high)
        Publicly known range of the target. Required; values outside are clipped.
    neighbours : {"replace-one", "zero-out"}
    ledger : Ledger, optional
        Where the spend is recorded. Without one each fit has a ledger of its own.
    noise : NoiseSource, optional
        The operating system's entropy by default; ``SeededNoise`` makes the fit not private.
    random_state : int
        The public seed of the feature map. It has nothing to do with the noise.

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
        "kernel": Choice("gaussian", "linear"),
        "length_scale": (Choice("auto"), Real(0, math.inf)),
        "n_features": (Choice("auto"), Whole(2, 10_000)),
        "regularisation": (Choice("auto"), Real(0, math.inf)),
        "ledger": (Choice(None), Kind(Ledger)),
        "noise": (Choice(None), Kind(NoiseSource)),
        "random_state": Whole(0),
    }

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        kernel: str = "gaussian",
        length_scale: float | str = "auto",
        n_features: int | str = "auto",
        regularisation: float | str = "auto",
        bounds: Any = None,
        y_bounds: Any = None,
        neighbours: str | Neighbours = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        random_state: int = 0,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.kernel = kernel
        self.length_scale = length_scale
        self.n_features = n_features
        self.regularisation = regularisation
        self.bounds = bounds
        self.y_bounds = y_bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> PrivateKernelRidge:
        """Release the noisy Gram matrix of (X, y) and solve for the model.

        Nothing is spent if an argument or the data are refused.
        """
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
        X, y = self._check_training_data(X, y, multi_output=True)
        targets = y[:, None] if y.ndim == 1 else y
        domain = resolve_domain(self.bounds, self.y_bounds, X.shape[1], type(self).__name__)
        features = self._build_features(domain, X.shape[0], X.shape[1], budget)
        layout = GramLayout.choose(
            features.n_outputs, targets.shape[1], features.row_norm_bound, relation, len(X), budget
        )
        releases = [Release("gram matrix", layout.mechanism(budget))]
        self._check_ledger(releases, budget)
        logger.info("one pass over %d rows with %d features", len(X), features.n_outputs)
        statistics = _one_pass(X, targets, domain, features, layout)
        noise = self._spend(releases, budget)
        mechanism: SymmetricGaussian = layout.mechanism(budget)
        gram = statistics.release(mechanism, noise)

        unit = (layout.row_bound / layout.row) ** 2
        chosen = None if self.regularisation == "auto" else float(self.regularisation)
        solution = solve_ridge(gram, float(len(X)), mechanism.noise_scale * unit, chosen)
        self._domain, self.feature_map_ = domain, features
        self.coef_ = solution.coefficients if y.ndim > 1 else solution.coefficients[:, 0]
        self.intercept_ = solution.intercepts if y.ndim > 1 else float(solution.intercepts[0])
        self.certificate_ = Certificate.issue(
            type(self).__name__,
            budget,
            releases,
            noise,
            public={
                "n_rows": len(X),
                "n_columns": X.shape[1],
                "domain": domain.to_dict(),
                "feature_map": features.to_dict(),
                "regularisation": solution.regularisation,
                "integer_grid": {
                    "row": layout.row,
                    "target": layout.target,
                    "constant": layout.constant,
                },
            },
            free_statistics=_training_error(gram, layout, mechanism, solution, domain, len(X)),
            reference="Lee, Park & Ahn, Algorithms 1 and 3, corrected: joint release of the augmented"
            " Gram matrix; " + mechanism.reference,
        )
        return self

    def predict(self, X: Any) -> Array:
        """Return predictions inside ``y_bounds``."""
        X = self._check_new_data(X)
        out = np.empty((len(X), *np.shape(self.intercept_)))
        for rows in _blocks(len(X)):
            features = self.feature_map_.transform_block(_inputs(X[rows], self._domain))
            out[rows] = features @ self.coef_ + self.intercept_
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
        model = cls(certificate.epsilon, certificate.delta, y_bounds=domain.target)
        model.certificate_, model._domain = certificate, domain
        model.feature_map_ = feature_map_from_dict(header["feature_map"])
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
        if self.kernel == "linear":
            if domain.columns is None:
                raise ParameterError(
                    "PrivateKernelRidge with kernel='linear' needs 'bounds', the publicly known range"
                    " of the columns, for example bounds=(0, 100) or bounds=([0, 0], [100, 9])."
                )
            linear: FeatureMap = LinearFeatures().build(d)
            return linear
        length_scale = (
            0.7 * math.sqrt(d) if self.length_scale == "auto" else float(self.length_scale)
        )
        if self.n_features == "auto":
            # the noise in M features grows like M / (n mu); more features than that are noise
            signal = n * gaussian_mu(budget.epsilon, budget.delta)
            n_features = 2 * int(min(max(math.sqrt(signal) / 2, 8), 512))
        else:
            n_features = int(self.n_features)
        fourier: FeatureMap = FourierFeatures(
            n_features, length_scale=length_scale, random_state=int(self.random_state)
        ).build(d)
        return fourier


def _blocks(n: int) -> list[slice]:
    return [slice(start, start + _BLOCK) for start in range(0, n, _BLOCK)]


def _inputs(X: Array, domain: Domain) -> Array:
    return X if domain.columns is None else domain.to_unit(X)


def _one_pass(
    X: Array, targets: Array, domain: Domain, features: FeatureMap, layout: GramLayout
) -> GramStatistics:
    """Return the exact integer sum over all rows, a block at a time."""
    if domain.columns is not None and len(domain.columns) != X.shape[1]:
        raise DataError(
            f"X has {X.shape[1]} column(s), but the domain declares {len(domain.columns)}."
        )
    statistics = GramStatistics(layout)
    for rows in _blocks(len(X)):
        block = features.transform_block(_inputs(X[rows], domain))
        statistics.update(block, domain.target.to_unit(targets[rows]))  # type: ignore[union-attr]
    return statistics


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
    out: dict[str, Any] = {"training_mse": [], "training_mse_noise_std": []}
    for j in range(layout.n_targets):
        w = np.zeros(layout.side)
        w[: layout.n_features] = -solution.coefficients[:, j]
        w[layout.n_features + j] = 1.0
        w[-1] = -solution.intercepts[j]
        out["training_mse"].append(float(w @ gram.matrix @ w) * scale)
        spread = mechanism.sigma * float(np.sum((w * layout.units) ** 2)) * scale
        out["training_mse_noise_std"].append(spread)
    return out
