"""The base class of the kernel estimators: a linear model on a public feature map.

It holds the common parameters, turns raw rows into features, predicts, and writes and reads model
files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from dpkernel.data.blocks import dense_rows, rows_a_block
from dpkernel.data.declared import resolve_domain
from dpkernel.data.domain import Domain, Interval, Levels
from dpkernel.data.labels import as_labels
from dpkernel.data.sources import Source
from dpkernel.data.tables import Columns
from dpkernel.estimators.base import Fitted, PrivateEstimator
from dpkernel.estimators.feature_choice import MAPS, choose_features
from dpkernel.estimators.outlook import Outlook, expected_error
from dpkernel.foundations.errors import CertificateError, DataError
from dpkernel.foundations.types import JSON, AddRemove, Array, Budget, Neighbours, is_whole
from dpkernel.foundations.validation import Choice, Constraint, Kind, Real, Whole, is_auto
from dpkernel.models.features import FeatureMap, feature_map_from_dict
from dpkernel.models.kernels import REGISTRY as KERNELS
from dpkernel.models.kernels import Kernel
from dpkernel.privacy.certificate import Certificate
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource, SeededNoise
from dpkernel.solvers.erm_schedules import SCHEDULE, Schedule, is_schedule, schedule


class KernelModel(PrivateEstimator):
    """Base class of estimators with ``coef_`` and ``intercept_`` on a ``feature_map_``."""

    _constraints: ClassVar[Mapping[str, Constraint | tuple[Constraint, ...]]] = {
        "epsilon": Real(1e-100, math.inf),
        "delta": Real(0, 1),
        "kernel": (Choice(*KERNELS), Kind(Kernel)),
        "length_scale": (Choice("auto"), Real(0, math.inf), Kind(list, tuple, np.ndarray)),
        "features": (Choice("auto", *MAPS), Kind(FeatureMap)),
        "n_features": (Choice("auto"), Whole(2, 10_000)),
        "regularisation": (Choice("auto"), Real(0, math.inf), SCHEDULE),
        "ledger": (Choice(None), Kind(Ledger)),
        "noise": (Choice(None), Kind(NoiseSource)),
        "random_state": (Choice(None), Whole(0)),
        "verbose": Choice(False, True),
    }

    kernel: Any
    length_scale: Any
    features: Any
    n_features: int | str
    bounds: Any
    random_state: int | None
    feature_map_: FeatureMap
    coef_: Array
    intercept_: Any
    _domain: Domain

    def fit(
        self,
        X: Any,
        y: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        resume: Any = None,
    ) -> Self:
        """Fit the model to (X, y). Nothing is spent if an argument or the data are refused.

        Parameters
        ----------
        X : array, sparse matrix, data frame, Dask array or data frame, torch tensor, or BlockStream
            A ``BlockStream`` contains its targets. It needs a function that starts it again, except
            for a ridge that reads the table only once.
        y : array of shape (n,) or (n, targets)
            Targets, which share the budget if there are several, or labels that are all in
            ``classes``.
        groups : array of n ids or People, optional
            The person to whom each row belongs. A person with all their rows is then protected
            instead of a single row, and only the number of people is public; see ``People``.
            scikit-learn's grid searches pass groups to the splitter only, unless you call
            ``set_fit_request(groups=True)``.
        sample_weight : array of n numbers in (0, 1], optional
            How much each row counts; not with ``groups``. A stream, a Dask table or tensors are then
            read into main memory. A weight must be public or follow from its own row alone: weights
            that were computed from several rows, such as one divided by the number of rows of a
            class, are a release without noise.
        resume : path, optional
            A file from which an interrupted fit goes on, for what was already paid. It is made where
            there is none, and is as secret as the table until the fit has ended; see
            ``privacy.resume``. It needs one more pass over the table.
        """
        return self._fit(X, y, groups, sample_weight, resume)

    @property
    def _ridge(self) -> float | None:
        """Lambda, or None if it is "auto" or follows from a theorem."""
        given = getattr(self, "regularisation", "auto")
        return None if isinstance(given, str) else float(given)

    def _resolve_domain(self, source: Source, target: Interval | Levels) -> Domain:
        """Return the declared domain, after comparing it with the public sizes of the table."""
        if isinstance(target, Interval):
            target.check_targets(source.target_shape, type(self).__name__)
        owner = type(self).__name__
        domain = resolve_domain(self.bounds, target, source.n_columns, owner, source.names)
        if domain.n_max is not None and source.n_rows > domain.n_max:
            what = "rows" if source.shares is None else "units"
            raise DataError(
                f"X has more {what} than the n_max={domain.n_max} that the domain declares."
            )
        return domain

    def _choose_features(
        self, domain: Domain, source: Source, size: int, features: Any = None
    ) -> FeatureMap:
        """Return the feature map. ``size`` is the number of features for "auto".

        ``features`` replaces the parameter of that name.
        """
        return choose_features(
            type(self).__name__,
            self.features if features is None else features,
            kernel="gaussian" if is_auto(self.kernel) else self.kernel,
            length_scale=self.length_scale,
            size=size if self.n_features == "auto" else int(self.n_features),
            random_state=self.random_state,
            domain=domain,
            n_inputs=source.n_columns if domain.columns is None else domain.n_unit_columns,
            of_units=source.shares is not None,
        )

    def _schedule(
        self, source: Source, domain: Domain, budget: Budget, *, squared: bool
    ) -> Schedule | None:
        """Return what the theorem in ``regularisation`` chooses, or None if there is none."""
        given: Any = getattr(self, "regularisation", None)
        if is_auto(given) or not is_schedule(given):
            return None
        inputs = source.n_columns if domain.columns is None else domain.n_unit_columns
        return schedule(given, source.n_rows, budget.epsilon, inputs, squared=squared)

    def plan(
        self,
        n_rows: int,
        n_columns: int | None = None,
        n_targets: int = 1,
        *,
        effect: float = 0.5,
        repetitions: int = 3,
    ) -> Outlook:
        """Return which error to expect from a fit to a table of this size.

        The model is fitted to made-up tables. No data are needed and nothing is spent. ``dpkernel
        plan`` gives the same number.

        Parameters
        ----------
        n_rows, n_columns, n_targets : int
            The size of the table; with ``groups``, the number of people in place of the rows. Without
            ``n_columns``, the columns that ``bounds`` declares.
        effect : float
            The share of the variance of the target that the inputs explain, as an assumption: for
            example the R^2 of a published model without privacy.
        repetitions : int
            The number of made-up tables.

        Returns
        -------
        Outlook
            The expected error with its spread, the best possible error, and what was assumed.
        """
        return expected_error(
            self, n_rows, n_columns, n_targets, effect=effect, repetitions=repetitions
        )

    def explain_budget(self, path: str | Path | None = None) -> list[dict[str, Any]]:
        """Return one row per release: its share of the budget, its mu, and its epsilon by itself.

        With ``path``, the shares are also plotted to this file.
        """
        check_is_fitted(self)
        rows = _budget_shares(self.certificate_)
        if path is not None:
            _plot_shares(rows, self.certificate_, Path(path))
        return rows

    def _linear(self, X: Any) -> Array:
        """Return features times coefficients plus intercept, for new rows, block by block."""
        X = self._check_new_data(X)
        out = np.empty((X.shape[0], *np.shape(self.intercept_)))
        for rows, block in self._unit_blocks(X):
            out[rows] = self.feature_map_.transform_block(block) @ self.coef_ + self.intercept_
        return out

    def _unit_blocks(self, X: Any) -> Iterator[tuple[slice, Array]]:
        """Yield checked new data in blocks, scaled to the unit box, each with the slice of its rows."""
        step = rows_a_block(X.shape[1])
        for start in range(0, X.shape[0], step):
            rows = slice(start, start + step)
            block = dense_rows(X, rows)
            domain = self._domain.of_positions
            yield rows, block if domain.columns is None else domain.to_unit(block)

    def _to_state(self) -> tuple[JSON, dict[str, Array]]:
        """Return what a model file holds: a JSON header and arrays."""
        check_is_fitted(self)
        header = {
            "certificate": self.certificate_.to_dict(),
            "domain": self._domain.to_dict(),
            "feature_map": self.feature_map_.to_dict(),
            **Columns.on(self).to_dict(),
            "parameters": self._plain_parameters(),
        }
        return header, {"coef": np.asarray(self.coef_), "intercept": np.asarray(self.intercept_)}

    @classmethod
    def _from_state(cls, header: JSON, arrays: dict[str, Array]) -> Self:
        """Return the fitted model that ``_to_state`` described."""
        certificate = Certificate.from_dict(header["certificate"])
        domain = Domain.from_dict(header["domain"])
        features = feature_map_from_dict(header["feature_map"])
        shape = np.shape(arrays["coef"])
        if shape[:1] != (features.n_outputs,) or np.shape(arrays["intercept"]) != shape[1:]:
            raise CertificateError(
                "The coefficients of this model file do not fit its feature map."
            )
        columns, width = header["columns"], header["n_columns"]
        inputs = width if domain.columns is None else domain.n_unit_columns
        named = columns is None or (isinstance(columns, list) and len(columns) == width)
        declared = domain.columns is None or len(domain.columns) == width
        if not (is_whole(width) and named and declared and features.n_features_in_ == inputs):
            raise CertificateError("The columns of this model file do not fit its feature map.")
        if not all(a.dtype == np.float64 and np.isfinite(a).all() for a in arrays.values()):
            raise CertificateError("The arrays of this model file must be finite float64 numbers.")
        given = _read_parameters(header, cls._get_param_names())
        objects = {"features", "kernel", "length_scale"} & {*cls._get_param_names()} - {*given}
        if objects and "features" in cls._get_param_names():
            # a file holds no objects, but their feature map; another fit learns its centre anew
            given["features"] = features
            if any(release.label == "centre" for release in certificate.releases):
                given["features"] = getattr(features, "base", None) or features
        model = cls(
            **{
                **given,
                "epsilon": certificate.epsilon,
                "delta": certificate.delta,
                "bounds": domain if domain.columns is not None else None,
                "neighbours": relation_of(certificate),
                **cls._saved_parameters(header, domain),
            }
        )
        model.certificate_, model._domain = certificate, domain
        model.feature_map_ = features
        Columns.of(int(width), columns).set_on(model)
        model.coef_, model.intercept_ = arrays["coef"], arrays["intercept"]
        return model

    def _plain_parameters(self) -> JSON:
        """Return the parameters that are numbers, texts, truth values or None."""
        given = self.get_params(deep=False)
        values = {k: v.item() if isinstance(v, np.generic) else v for k, v in given.items()}
        return {name: value for name, value in values.items() if _is_plain(value)}

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        """Return the parameters of this class that follow from a model file."""
        return {}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = not isinstance(self.noise, SeededNoise)
        return tags


def relation_of(certificate: Certificate) -> Neighbours | AddRemove:
    """Return the parameter ``neighbours`` of the estimator with this certificate."""
    relation = certificate.neighbours
    return relation if relation.n_is_public else AddRemove(certificate.n_records)


def public_sizes(source: Source, domain: Domain, features: FeatureMap) -> JSON:
    """Return what every certificate of a linear model states in public."""
    return {
        "n_rows": source.n_rows,
        "n_columns": source.n_columns,
        "domain": domain.to_dict(),
        "feature_map": features.to_dict(),
    }


def linear_model(
    domain: Domain, features: FeatureMap, coef: Array, intercept: Array, *, several: bool
) -> dict[str, Any]:
    """Return the attributes of a fitted model; ``coef`` has a column per target or class."""
    return {
        "_domain": domain,
        "feature_map_": features,
        "coef_": coef if several else coef[:, 0],
        "intercept_": intercept if several else float(intercept[0]),
    }


def stated(found: Schedule | None, features: FeatureMap) -> JSON:
    """Return what a certificate states about the schedule of a theorem; nothing if there is none."""
    return {} if found is None else {"schedule": found.public(features.n_outputs)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | bool | int)


def _read_parameters(header: JSON, names: list[str]) -> JSON:
    """Return what ``_plain_parameters`` wrote. Files of format 1 have no parameters."""
    found = header.get("parameters", {})
    known = isinstance(found, dict) and set(found) <= set(names)
    if not known or not all(_is_plain(value) for value in found.values()):
        raise CertificateError("The parameters of this model file are not those of its estimator.")
    return dict(found)


class NumberModel(RegressorMixin, MultiOutputMixin, KernelModel):
    """A regressor whose targets have a declared range."""

    y_bounds: Any

    def predict(self, X: Any) -> Array:
        """Return predictions inside ``y_bounds``."""
        scores = np.clip(self._linear(X), -1.0, 1.0)
        return np.asarray(self._domain.target.from_unit(scores))  # type: ignore[union-attr]

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        return {**super()._saved_parameters(header, domain), "y_bounds": domain.target}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags


class LabelModel(ClassifierMixin, KernelModel):
    """A classifier that takes the largest of several linear functions, or the sign of one."""

    _person_records: ClassVar = ("one", "near", "mean")  # a vote has other probabilities than rows
    classes_: Any

    def _adopt(self, found: Fitted, certificate: Certificate) -> None:
        super()._adopt(found, certificate)
        self._set_classes()

    @classmethod
    def _from_state(cls, header: JSON, arrays: dict[str, Array]) -> Self:
        model = super()._from_state(header, arrays)
        model._set_classes()
        return model

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        assert isinstance(domain.target, Levels)
        return {**super()._saved_parameters(header, domain), "classes": list(domain.target.values)}

    def _set_classes(self) -> None:
        assert isinstance(self._domain.target, Levels)
        self.classes_ = as_labels(self._domain.target)

    def decision_function(self, X: Any) -> Array:
        """Return f(x): positive for the second of two classes, or one column per class for more."""
        return self._linear(X)

    def predict(self, X: Any) -> Any:
        """Return the class with the largest decision value."""
        scores = self.decision_function(X)
        place = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[place]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags


def _budget_shares(certificate: Certificate) -> list[dict[str, Any]]:
    """Return one row per release: its share of the budget, its mu, and its epsilon by itself.

    Gaussian releases compose by adding mu^2, so a share is that of the sum of mu^2; the mu of other
    releases is their sensitivity divided by the scale of their noise. For pure epsilon, a share is
    that of the sum of epsilon.
    """
    rows, delta, pure = [], certificate.delta, certificate.delta == 0
    for release in certificate.releases:
        mechanism = release.mechanism
        alone = mechanism.profile().epsilon(0.0 if pure else min(max(delta, 1e-12), 0.5))
        mu = mechanism.sensitivity.value / mechanism.noise_scale * math.sqrt(release.draws)
        cost = release.draws * alone if pure else mu**2
        rows.append({"release": release.title, "mu": mu, "epsilon_alone": alone, "share": cost})
    total = math.fsum(row["share"] for row in rows)
    return [{**row, "share": row["share"] / total} for row in rows]


def _plot_shares(rows: list[dict[str, Any]], certificate: Certificate, path: Path) -> None:
    """Plot the shares to a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 1.4 + 0.3 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    labels = [row["release"] for row in rows][::-1]
    shares = [row["share"] for row in rows][::-1]
    bars = axes.barh(labels, shares, color="#0b5fa5")
    axes.bar_label(bars, [f"{share:.1%}" for share in shares], padding=3)
    axes.set(xlabel="share of the budget", xlim=(0, 1.15 * max(shares)))
    axes.set_title(f"epsilon = {certificate.epsilon:.3g}, delta = {certificate.delta:.3g}")
    figure.savefig(path, dpi=130)
