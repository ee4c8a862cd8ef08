"""Several private steps under one budget, with one certificate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from dpkernel.data.blocks import is_stream
from dpkernel.data.cells import shape_of
from dpkernel.data.labels import classes_of
from dpkernel.data.people import PersonRule
from dpkernel.data.tables import sizes_hidden
from dpkernel.data.weights import PEOPLE_OR_WEIGHTS
from dpkernel.estimators.base import PrivateEstimator, logger
from dpkernel.estimators.surroundings import count_fit
from dpkernel.foundations.errors import DataError, DPKernelError, ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Budget, Neighbours, is_real, no_add_remove
from dpkernel.foundations.validation import Choice, Constraint, Kind, Real
from dpkernel.preprocessing.free import through_free_step, transformed
from dpkernel.preprocessing.saving import pipeline_state, steps_from_state, unfitted
from dpkernel.preprocessing.steps import (
    Steps,
    are_pairs,
    checked_steps,
    is_private,
    n_rows_of,
    plan_of,
    releases_of,
    split_budget,
)
from dpkernel.privacy.certificate import Certificate, of_people
from dpkernel.privacy.ledger import OF_PEOPLE, Ledger
from dpkernel.privacy.noise import NoiseSource, Plan, SeededNoise
from dpkernel.selection import PrivateSearchCV

_SHRINK = (1.0, 0.99, 0.97, 0.94, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
_SEED_STRIDE = 7919  # the distance between the seeds of steps, if noise is seeded
T = TypeVar("T", bound=Callable[..., Any])


def _final_has(name: str) -> Callable[[T], T]:
    """Return a decorator that hides a method unless the last step has it."""

    def check(pipeline: PrivatePipeline) -> bool:
        return hasattr(getattr(pipeline, "steps_", pipeline.steps)[-1][1], name)

    return available_if(check)  # type: ignore[no-any-return]


class PrivatePipeline(PrivateEstimator):
    r"""Transformers and a model that share one (epsilon, delta).

    The budget is split by public weights. What each step will release follows from public numbers,
    so the ledger reserves the whole fit in one spend before any noise is drawn; if it refuses,
    nothing is spent. The certificate lists every release of every step, and its epsilon is that of
    their composition.

    Parameters
    ----------
    steps : list of (name, estimator)
        Private transformers and, last, a private estimator, transformer or ``PrivateSearchCV``.
        Steps that are not private must learn nothing and treat each row by itself. Allowed are
        "passthrough", ``DeclaredCategories`` and, of scikit-learn, ``Normalizer``, ``Binarizer``,
        ``PolynomialFeatures``, and ``FunctionTransformer`` with one of NumPy's functions of one
        number (``np.log1p``). A result of such a step that is not finite counts as 0. Apply any
        other function of a row before the pipeline. The pipeline sets the epsilon, delta,
        neighbours, ledger and noise of its private steps. A step without ``bounds`` gets those that
        the step before it found or has. A last step without ``y_bounds`` gets those of a
        ``PrivateBounds`` with ``y_range``.
    epsilon, delta : float
        The budget of all steps together. The certificate claims at most this.
    weights : dict, optional
        The shares of the budget, by the name of the step. They are proportional to mu^2, because
        Gaussian releases compose by adding mu^2. The default is 1 for the last step and 0.1 for
        each private step before it.
    neighbours, ledger, noise
        See ``PrivateBounds``.

    Attributes
    ----------
    steps_ : list of (name, fitted estimator)
        Fitted clones. The estimators in ``steps`` stay as they are.
    named_steps_ : dict
        The fitted steps by name.
    certificate_ : Certificate
        The guarantee of the fit.
    n_features_in_, feature_names_in_
        The number and the names of the columns that the first step was given.

    Notes
    -----
    Guarantee
        (epsilon, delta)-DP for the stated neighbours, of everything that all steps release. The
        number of rows, the number of columns and the parameters are public.
    Sensitivity
        That of each step; see the certificate.
    Not covered
        ``score`` on the training rows, because it reads them without noise.

    References
    ----------
    Adaptive composition of a plan that is fixed in advance.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel import PrivateKernelRidge
    >>> from dpkernel.preprocessing import PrivateBounds, PrivatePipeline
    >>> X = np.random.default_rng(0).normal(100, 15, (5000, 2)); y = X[:, 0] - X[:, 1]
    >>> pipeline = PrivatePipeline(
    ...     [("bounds", PrivateBounds(bounds=(-1e5, 1e5), y_range=(-1e5, 1e5))),
    ...      ("model", PrivateKernelRidge())], epsilon=1.0)
    >>> pipeline.fit(X, y).certificate_.verify().epsilon <= 1.0
    True
    """

    _constraints: ClassVar[Mapping[str, Constraint | tuple[Constraint, ...]]] = {
        "epsilon": Real(1e-100, 1e10),
        "delta": Real(0, 1),
        "weights": (Choice(None), Kind(dict)),
        "ledger": (Choice(None), Kind(Ledger)),
        "noise": (Choice(None), Kind(NoiseSource)),
    }

    def __init__(
        self,
        steps: Steps,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        weights: dict[str, float] | None = None,
        neighbours: str | Neighbours = "replace-one",
        ledger: Ledger | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.steps = steps
        self.epsilon = epsilon
        self.delta = delta
        self.weights = weights
        self.neighbours = neighbours
        self.ledger = ledger
        self.noise = noise

    # --- fitting ------------------------------------------------------------------------------

    def fit(
        self, X: Any, y: Any = None, groups: Any = None, sample_weight: Any = None
    ) -> PrivatePipeline:
        """Reserve all releases, then fit the steps one after the other.

        ``groups`` are the ids of the people whose rows these are, or ``People``: a person with all
        their rows is then protected instead of a single row. Each person becomes one record before
        the first private step, so X may be a stream or a Dask table if no other step comes before.
        ``sample_weight`` is for the last step, if it is a model that takes weights: see
        ``PrivateKernelRidge``. Nothing is spent if an argument or the data are refused. If a step
        fails after the spend, the error says so, and what was reserved stays spent.
        """
        request, relation = self._check_parameters()
        steps = self._checked_steps()
        weights = self._weights(steps)
        own = self._weights_of_rows(groups, sample_weight)
        record, streamed = "", groups is not None and is_stream(X) and is_private(steps[0][1])
        n_rows = 0 if streamed else n_rows_of(X, told=groups is None)
        with nullcontext() if groups is None else sizes_hidden():
            front, table = _before_first(steps, X)
        if groups is not None:
            table, y, record = self._records_of(table, y, groups, self.noise)
            n_rows = n_rows_of(table)
            if self._beside is not None:  # for the steps, the records are the rows of this table
                self._beside = self._beside.of_table()
        budgets, plans = self._shared_plans(table, y, len(front), request, weights, own)
        ledger = Ledger(neighbours=relation) if self.ledger is None else self.ledger
        count_fit(self)
        source = self.noise.restarted() if isinstance(self.noise, SeededNoise) else self.noise
        label = type(self).__name__
        spent_on = label + (OF_PEOPLE if record else "")
        granted, whole = ledger.reserve(
            plans, spent_on, claim=request, neighbours=relation, noise=source
        )
        logger.info("%d steps, %d of them private", len(self.steps), len(plans))
        fitted = self._fitted(front, table, y, budgets, granted, own)
        if record:
            _speak_of_people(fitted, record)
        releases, unproved, exposed = releases_of(fitted)
        public = {
            "n_rows": n_rows,
            "steps": [[name, type(step).__name__] for name, step in fitted],
            "weights": weights,
            "budgets": {name: [b.epsilon, b.delta] for name, b in budgets.items()},
        }
        self.certificate_ = Certificate.issue(
            label,
            request,
            releases,
            whole,
            public=of_people(public, record) if record else public,
            free_statistics=_free_statistics(fitted[-1][1]),
            invalid_because=unproved,
            not_private_because=exposed if whole.private else (),
        )
        self.steps_ = fitted
        return self

    _person_records: ClassVar[tuple[str, ...]] = ("one", "mean")

    def _person_rule(self, asked: str) -> PersonRule:
        last = self.steps[-1][1]
        final = last.estimator if isinstance(last, PrivateSearchCV) else last
        target = None
        if "classes" in final.get_params(deep=False):
            target = classes_of(final.classes, final.bounds, type(final).__name__)
        return replace(super()._person_rule(asked), target=target, missing=True)

    def _weights_of_rows(self, groups: Any, sample_weight: Any) -> dict[str, Any]:
        """Return the weights of rows as arguments of the last step, or raise if it takes none."""
        if sample_weight is None:
            return {}
        if groups is not None:
            raise ParameterError(PEOPLE_OR_WEIGHTS)
        name, last = self.steps[-1]
        if not has_fit_parameter(last, "sample_weight"):
            raise ParameterError(
                f"sample_weight is for the last step, {name!r}, but {type(last).__name__} takes none."
                " Leave it out, or put a model there."
            )
        return {"sample_weight": sample_weight}

    def _shared_plans(
        self,
        X: Any,
        y: Any,
        first: int,
        request: Budget,
        weights: Mapping[str, float],
        of_rows: Mapping[str, Any],
    ) -> tuple[dict[str, Budget], dict[str, Plan]]:
        """Return the largest budgets in these proportions whose plans compose to the request.

        The first private step is at position ``first``, and X are the rows that it gets. ``of_rows`` are
        the weights of the rows in the last step.
        """
        last = self.steps[-1][0]
        for factor in _SHRINK:
            budgets = split_budget(request, weights, factor)
            plans = {
                name: plan_of(step, table, y, of_rows if name == last else {})
                for name, step, table in self._walk(X, first, budgets)
            }
            if Plan.joined(plans).profile.supports(request):
                return budgets, plans
        raise ParameterError(
            f"The releases of the steps do not compose to {request}. Ask for more, or use fewer steps."
        )

    def _walk(
        self, X: Any, first: int, budgets: Mapping[str, Budget]
    ) -> Iterator[tuple[str, Any, Any]]:
        """Yield every private step as it will be fitted, with a table of the right size.

        The first private step gets X itself, and checks it. Later steps get a table of zeros. Steps
        in between that learn nothing are tried on a few public numbers.
        """
        table, bounds, y_bounds = X, None, None
        for i, (name, step) in enumerate(self.steps[first:], first):
            n_rows, n_columns = shape_of(table)
            if not is_private(step):
                if not isinstance(step, str):
                    bounds, few = None, np.linspace(0.1, 0.9, 4 * n_columns).reshape(4, n_columns)
                    found = through_free_step(name, step, few, spent=False)[1]
                    table = np.zeros((n_rows, shape_of(found)[1]))
                continue
            ready = self._ready(step, i, budgets[name], bounds, y_bounds)
            yield name, ready, table
            if i < len(self.steps) - 1:
                table = np.zeros((n_rows, ready._n_outputs(n_columns)))
                bounds = ready._output_bounds
                y_bounds = getattr(ready, "y_range", None) or y_bounds

    def _fitted(
        self,
        front: Steps,
        table: Any,
        y: Any,
        budgets: Mapping[str, Budget],
        granted: Mapping[str, Ledger],
        of_rows: Mapping[str, Any],
    ) -> Steps:
        """Return all steps, fitted. ``front`` are the steps before the first private one."""
        bounds, y_bounds = None, None
        out = list(front)
        for i, (name, step) in enumerate(self.steps[len(front) :], len(front)):
            last = i == len(self.steps) - 1
            if is_private(step):
                ready = self._ready(step, i, budgets[name], bounds, y_bounds)
                ready.set_params(ledger=granted[name])
                table = self._after(name, ready, table, y, last, of_rows if last else {})
                for one in (ready, getattr(ready, "best_estimator_", ready)):
                    one.set_params(ledger=None)
                bounds = getattr(ready, "_output_bounds", None)
                y_bounds = getattr(ready, "y_bounds_", None) or y_bounds
            else:
                bounds = bounds if isinstance(step, str) else None
                ready, table = through_free_step(name, step, table, spent=True)
            out.append((name, ready))
        return out

    def _after(
        self, name: str, step: Any, table: Any, y: Any, last: bool, of_rows: Mapping[str, Any]
    ) -> Any:
        """Fit a step whose noise is paid for, and return the table for the next step."""
        failed = ""
        try:
            with np.errstate(all="ignore"):
                step.fit(table, y, **of_rows)
                return table if last else step.transform(table)
        except DPKernelError as error:
            failed = f" ({error})"
        except Exception:
            pass  # the message of another library may quote an entry
        finally:
            step.__dict__.pop("_beside", None)  # it holds exact counts
        raise DataError(
            f"The step {name!r} failed after the budget of the whole pipeline was spent{failed}. What"
            " was reserved stays spent."
        )

    def _ready(self, step: Any, i: int, budget: Budget, bounds: Any, y_bounds: Any) -> Any:
        """Return a clone of a step with its share of the budget, and with the bounds that it lacks.

        The bounds and the neighbouring relation of a search are set on its estimator. A release beside
        the fit is made beside that of the last step.
        """
        found = clone(step)
        if self._beside is not None and i == len(self.steps) - 1:
            found._beside = self._beside
        noise = self.noise
        if isinstance(noise, SeededNoise):
            noise = SeededNoise(noise.seed + _SEED_STRIDE * i)
        model = found
        if isinstance(found, PrivateSearchCV):
            model = found.estimator
            found._by_mu = True  # the search then splits its budget as the steps do
        own = model.get_params(deep=False)
        values: dict[str, Any] = {"neighbours": self.neighbours}
        if own.get("bounds", bounds) is None and bounds is not None:
            values["bounds"] = bounds
        if own.get("y_bounds", y_bounds) is None and y_bounds is not None:
            values["y_bounds"] = y_bounds
        model.set_params(**values)
        return found.set_params(epsilon=budget.epsilon, delta=budget.delta, noise=noise)

    # --- checks -------------------------------------------------------------------------------

    def _checked_steps(self) -> Steps:
        steps = checked_steps(type(self).__name__, self.steps, set(self._get_param_names()))
        private = [step for _, step in steps if is_private(step)]
        models = [getattr(step, "estimator", step) for step in private]  # that of a search
        asked = (getattr(model, "neighbours", None) for model in models)
        if any(one is not None and not Neighbours.resolve(one).n_is_public for one in asked):
            raise ParameterError(no_add_remove(type(self).__name__))
        return steps

    def _weights(self, steps: Steps) -> dict[str, float]:
        private = [(name, step) for name, step in steps if is_private(step)]
        default = {name: getattr(step, "_weight", 1.0) for name, step in private[:-1]}
        found = {**default, private[-1][0]: 1.0, **(self.weights or {})}
        fine = set(found) == {name for name, _ in private}
        if not fine or not all(is_real(w) and 0 < w < 1e6 for w in found.values()):
            allowed = "positive numbers by name of a private step"
            got = sorted(map(str, self.weights or {}))
            raise ParameterError(parameter_message(type(self).__name__, "weights", allowed, got))
        return {name: float(found[name]) for name, _ in private}

    # --- using it -----------------------------------------------------------------------------

    @property
    def named_steps_(self) -> dict[str, Any]:
        """The fitted steps by name."""
        check_is_fitted(self, "steps_")
        return dict(self.steps_)

    def _before_last(self, X: Any) -> Any:
        check_is_fitted(self, "steps_")
        for name, step in self.steps_[:-1]:
            X = transformed(name, step, X)
        return X

    @_final_has("predict")
    def predict(self, X: Any, **options: Any) -> Any:
        """Return what the last step predicts for transformed rows."""
        return self._last(X, "predict")(**options)

    @_final_has("predict_interval")
    def predict_interval(self, X: Any, coverage: float = 0.9) -> Any:
        """Return the ends of the intervals that the last step states for transformed rows."""
        return self._last(X, "predict_interval")(coverage=coverage)

    @_final_has("predict_proba")
    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities that the last step gives transformed rows."""
        return self._last(X, "predict_proba")()

    @_final_has("decision_function")
    def decision_function(self, X: Any) -> Any:
        """Return the scores that the last step gives transformed rows."""
        return self._last(X, "decision_function")()

    @_final_has("transform")
    def transform(self, X: Any) -> Any:
        """Return transformed rows."""
        return self._last(X, "transform")()

    @_final_has("transform")
    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Fit, and return the transformed rows."""
        return self.fit(X, y).transform(X)

    @_final_has("score")
    def score(self, X: Any, y: Any = None) -> float:
        """Return the score of the last step on transformed rows. The score is not private."""
        table = self._before_last(X)
        return float(self.steps_[-1][1].score(table, y))

    def _last(self, X: Any, method: str) -> Any:
        table = self._before_last(X)
        return lambda **options: getattr(self.steps_[-1][1], method)(table, **options)

    def _to_state(self) -> tuple[JSON, dict[str, Any]]:
        """Return what a model file holds: the state of every step. A search saves its chosen model."""
        check_is_fitted(self, "steps_")
        header, arrays = pipeline_state(self.steps_, self.certificate_)
        return {**header, "weights": self.weights}, arrays

    @classmethod
    def _from_state(cls, header: JSON, arrays: dict[str, Any]) -> PrivatePipeline:
        """Return the fitted pipeline that ``_to_state`` described."""
        steps, certificate = steps_from_state(header, arrays)
        model = cls(
            unfitted(steps),
            certificate.epsilon,
            certificate.delta,
            weights=header["weights"],
            neighbours=certificate.neighbours,
        )
        model.steps_, model.certificate_ = steps, certificate
        return model

    @property
    def classes_(self) -> Any:
        """The classes of the last step."""
        return self.named_steps_[self.steps[-1][0]].classes_

    @property
    def n_features_in_(self) -> int:
        """The number of columns that the first step was given."""
        return int(self._first().n_features_in_)

    @property
    def feature_names_in_(self) -> Any:
        """The names of the columns that the first step was given."""
        return self._first().feature_names_in_

    def _first(self) -> Any:
        known = [step for _, step in getattr(self, "steps_", ()) if not isinstance(step, str)]
        if not known:
            raise AttributeError("This PrivatePipeline is not fitted yet.")
        return known[0]

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the columns that come out of the last step."""
        check_is_fitted(self, "steps_")
        for _, step in self.steps_:
            if not isinstance(step, str):
                input_features = step.get_feature_names_out(input_features)
        return input_features

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters; with ``deep`` also those of the steps, as "name__parameter"."""
        found: dict[str, Any] = super().get_params(deep=False)
        if deep and are_pairs(self.steps):
            for name, step in self.steps:
                found[name] = step
                if hasattr(step, "get_params"):
                    inner = step.get_params(deep=True).items()
                    found.update({f"{name}__{key}": value for key, value in inner})
        return found

    def set_params(self, **params: Any) -> PrivatePipeline:
        """Set parameters. "name" replaces a step, and "name__parameter" sets a parameter of it."""
        if "steps" in params:
            self.steps = params.pop("steps")
        if are_pairs(self.steps):
            names = [name for name, _ in self.steps]
            replaced = {name: params.pop(name) for name in names if name in params}
            if replaced:
                self.steps = [(name, replaced.get(name, step)) for name, step in self.steps]
        super().set_params(**params)
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "steps_")

    def __sklearn_tags__(self) -> Any:
        tags = BaseEstimator.__sklearn_tags__(self)
        last: Any = self.steps[-1][1] if are_pairs(self.steps) and self.steps else None
        if hasattr(last, "__sklearn_tags__"):
            own = last.__sklearn_tags__()
            tags.estimator_type, tags.target_tags = own.estimator_type, own.target_tags
            tags.classifier_tags, tags.regressor_tags = own.classifier_tags, own.regressor_tags
            tags.transformer_tags = own.transformer_tags
        known = (
            [step for _, step in self.steps if hasattr(step, "__sklearn_tags__")] if last else []
        )
        if known:
            tags.input_tags = known[0].__sklearn_tags__().input_tags
        tags.non_deterministic = not isinstance(self.noise, SeededNoise)
        return tags


def _free_statistics(last: Any) -> Mapping[str, Any]:
    """Return the free statistics of the last step; of a search those of the chosen model."""
    chosen = getattr(last, "best_estimator_", last)
    return chosen.certificate_.free_statistics if hasattr(chosen, "certificate_") else {}


def _speak_of_people(fitted: Steps, record: str) -> None:
    """Let the certificates of all steps say that a record is a person."""
    for _, step in fitted:
        parts: list[Any] = [
            step,
            *([step.best_estimator_] if hasattr(step, "best_estimator_") else []),
        ]
        for one in parts:
            if hasattr(one, "certificate_"):
                one.certificate_ = one.certificate_.of_people(record)


def _before_first(steps: Steps, X: Any) -> tuple[Steps, Any]:
    """Return the fitted steps before the first private one, and the rows that they return."""
    done: Steps = []
    for name, step in steps:
        if is_private(step):
            break
        ready, X = through_free_step(name, step, X, spent=False)
        done.append((name, ready))
    return done, X
