"""Private quantile and Huber regression on kernel features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from sklearn.metrics import d2_pinball_score
from sklearn.utils.validation import check_is_fitted

from dpkernel.data.cells import shape_of
from dpkernel.data.declared import interval_of
from dpkernel.data.domain import Domain, Interval, Intervals
from dpkernel.data.people import is_in_memory
from dpkernel.data.sources import Source
from dpkernel.estimators.base import FitPlan, Fitted
from dpkernel.estimators.loss_choice import smooth_loss
from dpkernel.estimators.objective_model import ObjectiveModel, RobustModel, Task
from dpkernel.estimators.records import UnitTarget
from dpkernel.estimators.regressor.fitting import FIXED_FEATURES, Sizes
from dpkernel.estimators.regressor.quantiles import QuantileFitting
from dpkernel.foundations.errors import DataError, ParameterError, parameter_message
from dpkernel.foundations.types import JSON, AddRemove, Array, Budget, Neighbours, is_real
from dpkernel.foundations.validation import Choice, Kind, Real, is_auto
from dpkernel.models.features.learned import MOST
from dpkernel.models.kernels import REGISTRY as KERNELS
from dpkernel.models.kernels import Kernel
from dpkernel.models.losses import Huber, Loss, SmoothedPinball, loss_from_dict
from dpkernel.privacy.certificate import Certificate
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource

_AUTO_WIDTH = 0.1  # as a share of the declared range of y
_AUTO_THRESHOLD = 0.1


class PrivateQuantileRegressor(RobustModel):
    r"""Quantiles of the target given the inputs, with a privacy certificate.

    By default a quantile is a centre plus a multiple of a spread. The stages of
    ``PrivateKernelRegressor``, which learn their kernel, find the centre; one more stage on the
    absolute residuals finds the spread; and a noisy histogram of the residuals, divided by the
    spread, finds the multiples. This assumes that residuals have the same law everywhere, apart from
    their spread. Many quantiles then cost hardly more than one.

    With a kernel of your own, the fit minimises a smoothed pinball loss for each quantile instead,
    on a feature map that does not depend on the data, by objective perturbation. It makes no
    assumption on the residuals, and needs more data or budget.

    Predictions of several quantiles do not cross. Two quantiles give a private prediction interval.

    Parameters
    ----------
    epsilon, delta : float
        The budget of all quantiles together. The certificate claims at most this. ``delta=0`` uses
        noise that gives pure epsilon, under the assumption of idealised arithmetic.
    quantile : float or sequence of floats
        One number in (0, 1), or several in increasing order. One number gives predictions of shape
        (n,); a sequence gives predictions of shape (n, quantiles).
    width : "auto" or float
        The width of the parabola that replaces the kink of the pinball loss, in units of y. "auto"
        is a tenth of the declared range.
    kernel : "auto", str or Kernel
        "auto" fits a centre and a spread. If you pass a kernel, or if one of ``width``,
        ``length_scale``, ``features``, ``regularisation`` is not "auto", or with ``delta=0``,
        ``solver="output"`` or without ``bounds``, the pinball loss is minimised.
    length_scale, features, n_features
        See ``PrivateKernelRidge``.
    regularisation : "auto", float or str
        Lambda, with y scaled to [-1, 1]. "auto" minimises the error that public numbers let us
        expect.
        A text is the schedule of a theorem, such as "nie-wang-4(beta=1)"; see
        ``dpkernel.solvers.erm_schedules``.
    solver
        See ``PrivateKernelClassifier``.
    bounds, y_bounds, neighbours, ledger, noise, random_state
        See ``PrivateKernelRidge``.
    accept
        See ``PrivateKernelClassifier``.
    verbose : bool
        See ``PrivateKernelRidge``.

    Attributes
    ----------
    certificate_, coef_, intercept_
        See ``PrivateKernelRidge``.
    feature_map_ : FeatureMap
        The map from a row to its features, from public and released numbers.
    relevance_ : ndarray of shape (n_columns,) or None
        See ``PrivateKernelRegressor``.
    n_features_in_, feature_names_in_
        The number and the names of the columns.

    See Also
    --------
    PrivateKernelRegressor : The mean, with one law for all its errors.
    PrivateHuberRegressor : A robust mean, with a fixed kernel.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows, the bounds, the seed and
        the parameters are public. All releases are one spend, which is reserved before any noise is
        drawn.
    Sensitivity
        Centre, spread and histograms have the sensitivities of ``PrivateKernelRegressor``. The
        gradient of a pinball loss has 2 B max(quantile, 1 - quantile) (replace-one) or half of it
        (zero-out), with B = 1: ``sensitivity.loss_gradient``. With ``solver="output"`` the solution
        has this
        divided by Lambda, ``sensitivity.erm_lipschitz``, or ``sensitivity.erm_bounded`` where that
        is smaller.
    Not covered
        ``score`` on the training rows, because it reads them without noise.

    References
    ----------
    Lee, Park & Ahn, Algorithms 2 and 4 and Theorem 9, with the noise that their proof needs.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel import PrivateQuantileRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (4000, 1)); y = X[:, 0] + rng.normal(size=4000) * (1.2 + X[:, 0]) / 4
    >>> model = PrivateQuantileRegressor(
    ...     epsilon=2, quantile=[0.1, 0.9], bounds=(-1, 1), y_bounds=(-3, 3)
    ... )
    >>> low, high = model.fit(X, y).predict([[0.5]])[0]
    >>> bool(low < high)
    True
    """

    _person_records: ClassVar = ("one", "near", "mean")  # a mean has other quantiles than rows
    _constraints: ClassVar = {
        **ObjectiveModel._constraints,
        "kernel": (Choice("auto", *KERNELS), Kind(Kernel)),
        "quantile": (Real(0, 1), Kind(list, tuple, np.ndarray)),
        "width": (Choice("auto"), Real(0)),
        "solver": Choice("objective", "output"),
    }
    _in_units = ("width",)
    _several: bool

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        quantile: float | Sequence[float] = 0.5,
        width: float | str = "auto",
        kernel: Any = "auto",
        length_scale: Any = "auto",
        features: Any = "auto",
        n_features: int | str = "auto",
        regularisation: float | str = "auto",
        solver: str = "objective",
        bounds: Any = None,
        y_bounds: Any = None,
        neighbours: str | Neighbours | AddRemove = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        random_state: int | None = None,
        accept: Any = (),
        verbose: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.quantile = quantile
        self.width = width
        self.kernel = kernel
        self.length_scale = length_scale
        self.features = features
        self.n_features = n_features
        self.regularisation = regularisation
        self.solver = solver
        self.bounds = bounds
        self.y_bounds = y_bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.accept = accept
        self.verbose = verbose

    @property
    def _single(self) -> bool:
        return np.ndim(self.quantile) == 0

    def _open_table(self, X: Any, y: Any) -> Source:
        if not self._single and is_in_memory(X) and shape_of(y)[1:] not in ((), (1,)):
            raise DataError(
                "Several quantiles are those of one target: y of shape (n,). For several targets, pass"
                " one quantile at a time, or fit one model per target, with a shared ledger."
            )
        return super()._open_table(X, y)

    def _make_plan(self, table: Source, budget: Budget, relation: Neighbours) -> FitPlan:
        target = interval_of(self.y_bounds, self.bounds, type(self).__name__)
        domain = self._resolve_domain(table, target)
        given = self.kernel, self.width, self.length_scale, self.features, self.regularisation
        free = all(map(is_auto, given)) and self.solver == "objective" and not budget.pure
        if not free or domain.columns is None or math.prod(table.target_shape) > 1:
            return super()._make_plan(table, budget, relation)
        auto = self.n_features == "auto"
        size = FIXED_FEATURES if auto else int(self.n_features)
        sizes = Sizes(table.n_rows, domain.n_unit_columns, 1, size)
        plan = sizes.plan(budget, learn=size <= MOST)
        sizes = sizes.grown(plan, budget) if auto else sizes
        return QuantileFitting(
            table,
            domain,
            target,
            sizes,
            plan,
            budget,
            relation,
            sizes.box_features(self.random_state),
            quantiles=[float(q) for q in np.atleast_1d(self.quantile)],
            single=self._single and not table.target_shape,
            verbose=self.verbose,
        )

    @property
    def relevance_(self) -> Array | None:
        """How much the centre depends on each column, or None; see ``PrivateKernelRegressor``."""
        check_is_fitted(self)
        found = self.certificate_.free_statistics.get("kernel")
        return None if found is None else np.array(found["relevance"])

    def _tasks(self, view: UnitTarget) -> list[Task]:
        wanted: list[Any] = list(np.atleast_1d(np.asarray(self.quantile, dtype=object)))
        fine = len(wanted) > 0 and all(is_real(q) and 0 < q < 1 for q in wanted)
        if not fine or sorted(set(wanted)) != [float(q) for q in wanted]:
            allowed = "a float in (0, 1), or several in increasing order"
            raise ParameterError(
                parameter_message("PrivateQuantileRegressor", "quantile", allowed, self.quantile)
            )
        scaled = self._in_units_of("width", _AUTO_WIDTH, view.interval)
        return [(f"quantile {float(q)}", SmoothedPinball(float(q), scaled), view) for q in wanted]

    def predict(self, X: Any) -> Array:
        """Return the quantiles inside ``y_bounds``. Several quantiles never cross."""
        found = super().predict(X)
        return np.sort(found, axis=1) if self._several else found

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of the pinball loss that the model explains, averaged over the quantiles.

        1 is perfect, and 0 is no better than the quantiles of y alone. The method reads (X, y)
        without noise.
        """
        found = self.predict(X)
        if not self._several:
            quantile = float(self.quantile)  # type: ignore[arg-type]
            return float(d2_pinball_score(y, found, alpha=quantile, sample_weight=sample_weight))
        each = zip(np.atleast_1d(self.quantile), found.T, strict=True)
        scores = [d2_pinball_score(y, p, alpha=q, sample_weight=sample_weight) for q, p in each]
        return float(np.mean(scores))

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        public = header["certificate"]["public"]
        found = public.get("quantiles")
        quantiles = [loss["quantile"] for loss in public["losses"]] if found is None else found
        return {
            **super()._saved_parameters(header, domain),
            "quantile": quantiles if header["several"] else quantiles[0],
        }

    def _to_state(self) -> tuple[JSON, dict[str, Array]]:
        header, arrays = super()._to_state()
        return {**header, "several": self._several}, arrays

    @classmethod
    def _from_state(cls, header: JSON, arrays: dict[str, Array]) -> PrivateQuantileRegressor:
        model = super()._from_state(header, arrays)
        model._several = header["several"] is True
        return model

    def _adopt(self, found: Fitted, certificate: Certificate) -> None:
        super()._adopt(found, certificate)
        self._several = not self._single  # predictions have one column per quantile


class PrivateHuberRegressor(RobustModel):
    r"""Robust regression with a privacy certificate.

    The fit minimises the Huber loss, or another loss of bounded slope, on a feature map that does
    not depend on the data, by objective perturbation. The Huber loss is quadratic for small
    residuals and linear beyond the threshold.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. ``delta=0`` uses noise that gives
        pure epsilon, under the assumption of idealised arithmetic.
    loss : str or Loss
        "huber", the kind of any other loss of residuals with a largest slope ("smoothed_pinball",
        "smoothed_insensitive", "absolute", "pinball" or your own, registered one), or such a loss
        with parameters of your own, for y scaled to [-1, 1]. Kinks become parabolas whose width is
        the threshold.
    threshold : "auto" or float
        The residual at which the Huber loss becomes linear, in units of y. "auto" is a tenth of the
        declared range. A loss without kinks that is not the Huber loss does not use it.
    kernel, length_scale, features, n_features
        See ``PrivateKernelRidge``.
    regularisation
        See ``PrivateQuantileRegressor``.
    solver
        See ``PrivateKernelClassifier``.
    bounds, y_bounds, neighbours, ledger, noise, random_state
        See ``PrivateKernelRidge``.
    accept
        See ``PrivateKernelClassifier``.
    verbose : bool
        See ``PrivateKernelRidge``.

    Attributes
    ----------
    certificate_, coef_, intercept_, feature_map_, n_features_in_, feature_names_in_
        See ``PrivateKernelRidge``.

    See Also
    --------
    PrivateKernelRegressor : More accurate on most tables: it learns its kernel.
    PrivateQuantileRegressor : Quantiles, such as the median.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours. The number of rows, the bounds, the seed and
        the parameters are public.
    Sensitivity
        The gradient has 2 B c (replace-one) or half of it (zero-out), with B = 1 and the largest
        slope c of the loss, which is the threshold of the Huber loss:
        ``sensitivity.loss_gradient``. With ``solver="output"`` the solution has this divided by
        Lambda, ``sensitivity.erm_lipschitz``, or ``sensitivity.erm_bounded`` where that is smaller.
    Not covered
        ``score`` on the training rows, because it reads them without noise.

    References
    ----------
    Lee, Park & Ahn, Algorithms 2 and 4, with the noise that their proof needs.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.methods import PrivateHuberRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (4000, 1)); y = np.sin(3 * X[:, 0]) + rng.standard_t(2, 4000) / 10
    >>> model = PrivateHuberRegressor(epsilon=1.0, bounds=(-1, 1), y_bounds=(-2, 2))
    >>> bool(model.fit(X, y).predict([[0.5]])[0] > 0.5)
    True
    """

    _constraints: ClassVar = {
        **ObjectiveModel._constraints,
        "loss": Kind(str, Loss),
        "threshold": (Choice("auto"), Real(0)),
        "solver": Choice("objective", "output"),
    }

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        loss: Any = "huber",
        threshold: float | str = "auto",
        kernel: Any = "gaussian",
        length_scale: Any = "auto",
        features: Any = "auto",
        n_features: int | str = "auto",
        regularisation: float | str = "auto",
        solver: str = "objective",
        bounds: Any = None,
        y_bounds: Any = None,
        neighbours: str | Neighbours | AddRemove = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        random_state: int | None = None,
        accept: Any = (),
        verbose: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.loss = loss
        self.threshold = threshold
        self.kernel = kernel
        self.length_scale = length_scale
        self.features = features
        self.n_features = n_features
        self.regularisation = regularisation
        self.solver = solver
        self.bounds = bounds
        self.y_bounds = y_bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.accept = accept
        self.verbose = verbose

    def _tasks(self, view: UnitTarget) -> list[Task]:
        scaled = self._in_units_of("threshold", _AUTO_THRESHOLD, view.interval)
        loss = smooth_loss(
            type(self).__name__,
            self.loss,
            labels=False,
            width=scaled,
            make=lambda cls: Huber(scaled) if cls is Huber else cls(),
        )
        return [("coefficients", loss, view)]

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        assert isinstance(domain.target, Interval)
        loss = loss_from_dict(header["certificate"]["public"]["losses"][0])
        own: dict[str, Any] = {"loss": loss}
        if isinstance(loss, Huber):
            own = {"loss": "huber"}
            if not isinstance(domain.target, Intervals):  # else the file has what was given
                own["threshold"] = loss.threshold * domain.target.half_width
        return {**super()._saved_parameters(header, domain), **own}
