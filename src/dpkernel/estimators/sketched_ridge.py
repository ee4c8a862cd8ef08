"""Kernel ridge regression from a private sketch, which can be used again at no cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpkernel.data.domain import Domain, Interval
from dpkernel.data.sources import Source, open_source, released_size
from dpkernel.estimators.base import FitPlan, Fitted, logger
from dpkernel.estimators.feature_choice import size_for_gram
from dpkernel.estimators.gram_pass import Recipe, sum_source
from dpkernel.estimators.kernel_model import NumberModel, linear_model, public_sizes, stated
from dpkernel.estimators.ridge import record_precision, squared_interval
from dpkernel.foundations.errors import CertificateError
from dpkernel.foundations.types import JSON, AddRemove, Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Kind, Real, Whole, check_parameters
from dpkernel.models.features import FeatureMap
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import IDEALISED, GaussianMixing, require_accepted
from dpkernel.privacy.noise import Noise, NoiseSource
from dpkernel.privacy.statistics import GramLayout
from dpkernel.solvers.erm_schedules import Schedule
from dpkernel.solvers.sketched_ridge import SketchedSolution, SketchScale, solve_sketch

_ROWS_A_COLUMN, _MOST_AUTO_ROWS = 20, 20_000  # rows of the sketch


class PrivateSketchedRidge(NumberModel):
    r"""Kernel ridge regression from a sketch of the table: a small, private, synthetic table.

    The records v = (phi(x), y, 1), on a feature map that does not depend on the data, are mixed by
    Gaussian numbers: every row of ``sketch_`` is a random combination of all records plus noise.
    Only the sketch is released. The model minimises sum_i (y_i - phi(x_i)^T beta - b)^2 + Lambda
    ||beta||^2 on it, and Lambda is chosen on held-out rows of the sketch. Both can be repeated at
    no cost.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this.
    kernel, length_scale, features, n_features
        See ``PrivateKernelRidge``.
    n_sketch : "auto" or int
        The number of rows of the sketch. "auto" is 20 per column of the sketch, at most 20,000. The
        noise grows about as the fourth root of the number of rows.
    regularisation : "auto", float or str
        Lambda, on the scale of the sum over rows. "auto" is chosen on held-out rows of the sketch. A
        text is the schedule of a theorem; see ``PrivateKernelRidge``.
    accept : tuple of str
        ``("idealised-arithmetic",)`` is always needed, because no theorem covers the rounding of
        noise that multiplies the data. The certificate names this assumption.
    bounds, y_bounds, ledger, noise, random_state, neighbours
        See ``PrivateKernelRidge``.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    certificate_ : Certificate
        The guarantee of the fit.
    sketch_ : ndarray of shape (n_sketch, features + targets + 1)
        The released sketch. Its columns are the features, the targets mapped to [-1, 1], and the
        constant. ``sketch_.T @ sketch_`` estimates the sum of v v^T over the records, with
        ``sketch_noise_ ** 2`` added to the diagonal.
    sketch_noise_ : ndarray
        One public number per column. Noise adds its square to the diagonal of ``sketch_.T @
        sketch_``.
    coef_, intercept_, feature_map_, n_features_in_, feature_names_in_
        See ``PrivateKernelRidge``.

    See Also
    --------
    PrivateKernelRidge : The same model from noisy sums.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours, in real arithmetic. The number of rows, the
        bounds, the seed and the parameters are public. Everything that is computed from ``sketch_``
        is covered.
    Sensitivity
        The norm N of a record: ``sensitivity.record_norm``. The noise is N divided by the square
        root of the ratio that ``profiles.mixing_ratio`` finds.
    Not covered
        ``score`` on the training rows, because it reads them without noise.

    References
    ----------
    Sheffet (2019) and Lev et al. (2025), with the exact profile; see docs/sketching.md.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.methods import PrivateSketchedRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (4000, 3)); y = X @ [1.0, -2.0, 0.5]
    >>> model = PrivateSketchedRidge(
    ...     epsilon=1.0, kernel="linear", bounds=(-1, 1), y_bounds=(-4, 4),
    ...     accept=("idealised-arithmetic",),
    ... ).fit(X, y)
    >>> model.certificate_.assumptions
    ('idealised-arithmetic',)
    >>> again = model.refit(regularisation=50.0)  # from the sketch: nothing is spent
    """

    _constraints: ClassVar = {
        **NumberModel._constraints,
        "n_sketch": (Choice("auto"), Whole(8, 10**7)),
        "accept": Kind(tuple, list),
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
        n_sketch: int | str = "auto",
        regularisation: float | str = "auto",
        accept: tuple[str, ...] = (),
        bounds: Any = None,
        y_bounds: Any = None,
        neighbours: str | Neighbours | AddRemove = "replace-one",
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
        self.n_sketch = n_sketch
        self.regularisation = regularisation
        self.accept = accept
        self.bounds = bounds
        self.y_bounds = y_bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.random_state = random_state
        self.verbose = verbose

    _places = True

    def _open_table(self, X: Any, y: Any) -> Source:
        return open_source(self, X, y)

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        budget, relation = super()._check_parameters()
        require_accepted(GaussianMixing, self.accept)
        return budget, relation

    def _make_plan(self, table: Source, budget: Budget, relation: Neighbours) -> FitPlan:
        n = table.n_rows
        domain = self._resolve_domain(table, squared_interval(self))
        found = self._schedule(table, domain, budget, squared=True)
        size = None if found is None else found.n_features
        features = self._choose_features(domain, table, size or size_for_gram(n, budget))
        n_targets = table.target_shape[0] if table.target_shape else 1
        bound = features.row_norm_bound
        layout = GramLayout.choose(features.n_outputs, n_targets, bound, relation, n, budget)
        rows = min(_ROWS_A_COLUMN * layout.side, _MOST_AUTO_ROWS)
        if self.n_sketch != "auto":
            rows = int(self.n_sketch)
        mechanism = layout.mixing(budget, rows, (IDEALISED,))
        given = self._ridge if found is None else found.strength
        return SketchPlan(table, domain, features, layout, mechanism, given, self.verbose, found)

    def refit(self, regularisation: float | str = "auto") -> PrivateSketchedRidge:
        """Solve again from the sketch alone, with another Lambda; change and return this model.

        Nothing is spent and no row is read, because the guarantee of a release covers everything
        that is computed from it, however often. ``sketch_`` is available for any other use.
        """
        check_is_fitted(self)
        constraint = {"regularisation": (Choice("auto"), Real(0, math.inf))}
        check_parameters(type(self).__name__, {"regularisation": regularisation}, constraint)
        n_features = self.feature_map_.n_outputs
        rows, columns = self.sketch_.shape
        root = np.sqrt(rows)
        scale = SketchScale(n_features, columns - n_features - 1, self.sketch_noise_, 1.0)
        sketch, hidden = self.sketch_ * root, not self.certificate_.neighbours.n_is_public
        found = solve_sketch(
            sketch,
            _size(sketch, self.sketch_noise_, self.certificate_.n_records, hidden),
            scale,
            regularisation=None if regularisation == "auto" else float(regularisation),
            spectrum=getattr(self.feature_map_, "spectrum", None),
        )
        solved = found.coefficients, found.intercepts
        for name, value in linear_model(
            self._domain, self.feature_map_, *solved, several=self._several
        ).items():
            setattr(self, name, value)
        return self

    def _to_state(self) -> tuple[JSON, dict[str, Array]]:
        header, arrays = super()._to_state()
        return header, {**arrays, "sketch": self.sketch_, "sketch_noise": self.sketch_noise_}

    @classmethod
    def _from_state(cls, header: JSON, arrays: dict[str, Array]) -> Self:
        model = super()._from_state(header, arrays)
        sketch, noise = arrays["sketch"], arrays["sketch_noise"]
        model._several = np.ndim(model.coef_) == 2
        targets = model.coef_.shape[1] if model._several else 1
        columns = model.feature_map_.n_outputs + targets + 1
        if sketch.ndim != 2 or sketch.shape[1] != columns or noise.shape != (columns,):
            raise CertificateError("The sketch of this model file does not fit its feature map.")
        model.sketch_, model.sketch_noise_ = sketch, noise
        return model

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        accepted = tuple(str(name) for name in header["certificate"]["assumptions"])
        return {**super()._saved_parameters(header, domain), "accept": accepted}


@dataclass
class SketchPlan(FitPlan):
    """One sketch of the table, and the model that is computed from it."""

    source: Source
    domain: Domain
    features: FeatureMap
    layout: GramLayout
    mechanism: GaussianMixing
    regularisation: float | None
    verbose: bool
    schedule: Schedule | None = None
    sums: Any = None

    @property
    def releases(self) -> list[Release]:  # type: ignore[override]
        """The line of the certificate."""
        return [Release("sketch", self.mechanism)]

    def prepare(self) -> None:
        """Sum up the rows in one pass."""
        logger.info("one pass over %d rows", self.source.n_rows)
        dtype = record_precision(self.source.n_rows)
        recipe = Recipe(
            self.domain, self.features, self.layout, dtype, weighted=self.source.weighted
        )
        self.sums = sum_source(self.source, recipe, progress=self.verbose)

    def run(self, noise: Noise) -> Fitted:
        """Release the sketch and solve for the model."""
        layout, mechanism, given = self.layout, self.mechanism, self.regularisation
        sketch = self.sums.sketch(mechanism, noise)
        noises = mechanism.sigma * layout.units
        found = solve_sketch(
            sketch,
            _size(sketch, noises, self.source.n_rows, self.source.weighted),
            SketchScale(layout.n_features, layout.n_targets, layout.units, mechanism.sigma),
            regularisation=given,
            spectrum=getattr(self.features, "spectrum", None),
        )
        several, solved = bool(self.source.target_shape), (found.coefficients, found.intercepts)
        assert isinstance(self.domain.target, Interval)
        return Fitted(
            {
                **linear_model(self.domain, self.features, *solved, several=several),
                "sketch_": sketch / np.sqrt(mechanism.rows),
                "sketch_noise_": noises,
                "_several": several,
            },
            {
                **public_sizes(self.source, self.domain, self.features),
                "regularisation": "chosen on held-out rows of the sketch"
                if given is None
                else given,
                "integer_grid": {
                    "row": layout.row,
                    "target": layout.target,
                    "constant": layout.constant,
                },
                **stated(self.schedule, self.features),
            },
            _statistics(found, self.domain.target.half_width**2),
            "Gaussian mixing of feature rows, targets and a constant; " + mechanism.reference,
        )


def _size(sketch: Array, noises: Array, n_rows: int, weighted: bool) -> float:
    """Return the number of records, or of weighted ones the sum of their weights in the sketch."""
    count = float(np.mean(sketch[:, -1] ** 2) - noises[-1] ** 2)
    return released_size(count, n_rows, weighted)


def _statistics(found: SketchedSolution, scale: Any) -> dict[str, Any]:
    """Return what was chosen on held-out rows of the sketch, in units of y; empty without a choice."""
    if found.held_out is None or found.held_out_std is None:
        return {}
    return {
        "regularisation": found.regularisation,
        "subtracted": found.subtracted,
        "held_out_mse": (np.asarray(found.held_out) * scale).tolist(),
        "held_out_mse_noise_std": (np.asarray(found.held_out_std) * scale).tolist(),
    }
