"""A function released by its values on a public grid."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpkernel.data.domain import Domain, Interval
from dpkernel.data.sources import Source
from dpkernel.estimators.base import FitPlan, Fitted
from dpkernel.estimators.kernel_model import NumberModel
from dpkernel.estimators.rkhs import (
    FunctionModel,
    FunctionProblem,
    FunctionTable,
    joint_sensitivity,
    loss_stated,
)
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, AddRemove, Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Whole
from dpkernel.models.features import FeatureMap, PublicNystroem
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.mechanisms import FunctionalGaussian, require_accepted
from dpkernel.privacy.noise import Noise, NoiseSource

_AUTO_SIDE = {1: 33, 2: 17, 3: 9}
_MOST_POINTS = 4096


class PrivateGridRegressor(FunctionModel, NumberModel):
    r"""Kernel ridge or Huber regression, released by its values on a public grid.

    The function f minimises sum_i loss(y_i - f(x_i)) + Lambda ||f||^2 / 2 in the space of the
    kernel itself. Its values on the grid U are released with noise of covariance sigma^2 K_UU, and
    the kernel interpolates between them. The model is made for one to three columns: with more
    columns the grid is coarse, and a model on features is better.

    Parameters
    ----------
    epsilon, delta : float
        The budget of a fit. The certificate claims at most this. delta must be above 0.
    side : "auto" or int
        The number of grid points per column. "auto" works for up to three columns. The grid has at
        most 4096 points in all.
    loss, threshold
        See ``PrivateCurator``.
    kernel, length_scale
        See ``PrivateKernelRidge``.
    regularisation
        See ``PrivateQuantileRegressor``.
    bounds, y_bounds
        See ``PrivateCurator``.
    neighbours, ledger, noise
        See ``PrivateKernelRidge``.
    accept
        See ``PrivateCurator``.

    Attributes
    ----------
    certificate_ : Certificate
        The guarantee of the fit.
    grid_values_ : ndarray
        The released values at ``grid_points_``, in units of y.
    grid_points_ : ndarray
        The grid in the unit box.
    coef_, intercept_, feature_map_
        The interpolation written as a linear model.
    n_features_in_, feature_names_in_
        The number and the names of the columns.

    See Also
    --------
    PrivateCurator : Answers for any points, as they are asked.
    PrivateKernelRegressor : A model on features, for any number of columns.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours, in real arithmetic. The number of rows, the
        bounds, the grid and the parameters are public.
    Sensitivity
        That of f: ``sensitivity.erm_ridge`` or ``sensitivity.erm_lipschitz``. The released numbers
        K_UU^{-1/2} f(U) are orthonormal coordinates of the projection of f on the span of the grid,
        so they move no farther than f does.
    Not covered
        ``score`` on the training rows, because it reads them without noise.

    References
    ----------
    Hall, Rinaldo & Wasserman (2013).

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel.methods import PrivateGridRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (2000, 1)); y = np.sin(3 * X[:, 0])
    >>> model = PrivateGridRegressor(
    ...     epsilon=30.0, bounds=(-1, 1), y_bounds=(-2, 2), accept=("idealised-arithmetic",)
    ... ).fit(X, y)
    >>> bool(abs(model.predict([[0.5]])[0] - 1) < 0.5)
    True
    """

    _constraints: ClassVar[Any] = {
        **FunctionModel._constraints,
        "side": (Choice("auto"), Whole(2, _MOST_POINTS)),
    }

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        side: int | str = "auto",
        loss: Any = "squared",
        threshold: float | str = "auto",
        kernel: Any = "gaussian",
        length_scale: Any = "auto",
        regularisation: float | str = "auto",
        bounds: Any = None,
        y_bounds: Any = None,
        neighbours: str | Neighbours | AddRemove = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
        accept: Any = (),
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.side = side
        self.loss = loss
        self.threshold = threshold
        self.kernel = kernel
        self.length_scale = length_scale
        self.regularisation = regularisation
        self.bounds = bounds
        self.y_bounds = y_bounds
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise
        self.accept = accept

    def fit(  # type: ignore[override]  # it has no resume file, and needs y
        self, X: Any, y: Any, groups: Any = None, sample_weight: Any = None
    ) -> PrivateGridRegressor:
        """Fit the function and release its values on the grid.

        ``groups`` are the ids of the people whose rows these are, or ``People``: a person with all
        their rows is then protected instead of a single row.
        """
        return self._fit(X, y, groups, sample_weight)

    def _open_table(self, X: Any, y: Any) -> Source:
        require_accepted(FunctionalGaussian, self.accept)
        return super()._open_table(X, y)

    def _make_plan(self, source: Source, budget: Budget, relation: Neighbours) -> FitPlan:
        table = self._table(source)
        problems = self._problems_for(table, budget)
        n_inputs = table.domain.n_unit_columns
        grid = self._grid(n_inputs)
        features = PublicNystroem(landmarks=grid.tolist(), kernel=problems[0].kernel)
        features = features.build(n_inputs)
        mechanism = FunctionalGaussian.calibrate(
            joint_sensitivity(problems, relation),
            budget,
            dimension=len(grid) * len(problems),
            accept=tuple(self.accept),
        )
        public = self._public(table, problems, feature_map=features.to_dict())
        return GridPlan(table, problems, grid, features, mechanism, public)

    def _grid(self, n_inputs: int) -> Array:
        if self.side == "auto" and n_inputs not in _AUTO_SIDE:
            raise ParameterError(
                f"PrivateGridRegressor is for 1 to 3 columns; each level counts as one. Got {n_inputs}."
                " PrivateKernelRidge and PrivateCurator take more; side=2 makes a coarse grid."
            )
        side = _AUTO_SIDE[n_inputs] if self.side == "auto" else int(self.side)
        if not side**n_inputs <= _MOST_POINTS:
            allowed = f"such that the grid has at most {_MOST_POINTS} points"
            raise ParameterError(parameter_message("PrivateGridRegressor", "side", allowed, side))
        ticks = np.linspace(-1.0, 1.0, side)
        return np.array(list(itertools.product(ticks, repeat=n_inputs)))

    @classmethod
    def _from_state(cls, header: JSON, arrays: dict[str, Array]) -> PrivateGridRegressor:
        model = super()._from_state(header, arrays)
        features = model.feature_map_
        assert isinstance(features, PublicNystroem)
        model.grid_points_ = np.asarray(features.landmarks, dtype=np.float64)
        model.side = round(len(model.grid_points_) ** (1 / model.grid_points_.shape[1]))
        # the kernel has its own length scale
        model.kernel, model.length_scale = features.kernel, 1.0
        values = features.transform_block(model.grid_points_) @ model.coef_
        model.grid_values_ = _in_units(model._domain, values)
        return model

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        assert isinstance(domain.target, Interval)
        public = header["certificate"]["public"]
        return {
            **super()._saved_parameters(header, domain),
            **loss_stated(public, domain.target),
            "regularisation": public["regularisation"],
            "accept": tuple(header["certificate"]["assumptions"]),
        }


@dataclass
class GridPlan(FitPlan):
    """The values of the function on the grid, released as coordinates on the span of the grid."""

    table: FunctionTable
    problems: tuple[FunctionProblem, ...]
    grid: Array
    features: FeatureMap
    mechanism: FunctionalGaussian
    public: JSON
    coordinates: Any = None

    @property
    def releases(self) -> list[Release]:  # type: ignore[override]
        """The line of the certificate."""
        return [Release("values on the grid", self.mechanism)]

    def prepare(self) -> None:
        """Fit the function and compute its coordinates on the features, an orthonormal basis."""
        rows, alpha = self.table.solved(self.problems)
        assert isinstance(self.features, PublicNystroem)
        kernel = self.problems[0].kernel
        self.coordinates = self.features.coordinates(kernel(self.grid, rows) @ alpha)

    def run(self, noise: Noise) -> Fitted:
        """Add noise to the coordinates."""
        released = self.mechanism.release(self.coordinates.ravel(), noise)
        coef = released.reshape(self.coordinates.shape)
        values = self.features.transform_block(self.grid) @ coef
        return Fitted(
            {
                "_domain": self.table.domain,
                "feature_map_": self.features,
                "coef_": coef,
                "intercept_": np.zeros(coef.shape[1:]) if coef.ndim > 1 else 0.0,
                "grid_points_": self.grid,
                "grid_values_": _in_units(self.table.domain, values),
            },
            self.public,
        )


def _in_units(domain: Domain, scores: Array) -> Array:
    inside = np.clip(scores, -1.0, 1.0)
    return np.asarray(domain.target.from_unit(inside))  # type: ignore[union-attr]
