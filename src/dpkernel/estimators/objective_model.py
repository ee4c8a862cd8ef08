"""The base class of estimators that solve convex problems on records.

Noise is added to the problems (objective perturbation) or to their solutions (output perturbation).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from dpkernel.data.declared import interval_of
from dpkernel.data.domain import Domain, Interval, Intervals, Levels
from dpkernel.data.sources import Source, open_source
from dpkernel.estimators.base import FitPlan, Fitted, logger
from dpkernel.estimators.feature_choice import size_for_records
from dpkernel.estimators.kernel_model import (
    KernelModel,
    NumberModel,
    linear_model,
    public_sizes,
    stated,
)
from dpkernel.estimators.objective_plan import ConvexSetting, ObjectivePlan, plan_objectives
from dpkernel.estimators.output_plan import OutputPlan, plan_outputs
from dpkernel.estimators.progress import Parts
from dpkernel.estimators.records import (
    CONSTANT_POWER,
    NUMBER_SIGNAL,
    ROW_BOUND,
    STEPS,
    RecordRecipe,
    RecordStore,
    Targets,
    UnitTarget,
    kept_rows,
    unit_targets,
)
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Constraint, Kind, Real
from dpkernel.models.features.normalised import shrunk_centre
from dpkernel.models.losses import Loss, Squared
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.mechanisms import PureObjectivePerturbation, require_accepted
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.profiles import gaussian_mu
from dpkernel.solvers.erm_schedules import SCHEDULE
from dpkernel.solvers.objective_perturbation import Problem, Records, minimise
from dpkernel.solvers.output_perturbation import minimise_risk

_CENTRE_SHARE = 0.1
_LEAST_SIGNAL = 0.5  # the least variance that we assume for a good decision function
_MARGIN_CONSTANT = 0.01  # the power of the constant if only the sign of a prediction counts

Task = tuple[str, Loss, Targets]  # a label for the certificate, a loss, a view of the targets
Show = Callable[[Sequence[Task]], Iterable[Task]]


class ObjectiveModel(KernelModel):
    """Base class of estimators with one or more convex problems on the same records, in one spend."""

    _constraints: ClassVar[Mapping[str, Constraint | tuple[Constraint, ...]]] = {
        **KernelModel._constraints,
        "epsilon": Real(1e-100, 1e10),
        "delta": Real(0, 1, closed_low=True),
        "regularisation": (Choice("auto"), Real(0, 1e100), SCHEDULE),
        "accept": Kind(tuple, list, set, frozenset),
    }

    _places = True
    solver: str = "objective"
    regularisation: float | str
    accept: Any
    verbose: bool

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        budget, relation = super()._check_parameters()
        if budget.pure and self.solver != "output":  # which has exact noise without an assumption
            require_accepted(PureObjectivePerturbation, self.accept)
        return budget, relation

    def _make_plan(self, table: Source, budget: Budget, relation: Neighbours) -> FitPlan:
        return ConvexPlan(self, table, budget, relation, self._problems(table.target_shape))

    def _problems(self, target_shape: tuple[int, ...] = ()) -> Problems:
        """Return the convex problems of this estimator, for targets of this shape."""
        raise NotImplementedError

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        found = {"accept": tuple(header["certificate"]["assumptions"])}
        if "solver" in cls._get_param_names():
            found["solver"] = header["certificate"]["public"].get("solver", "objective")
        return found


@dataclass(frozen=True)
class Problems:
    """Convex problems on the same records, within one budget.

    Parameters
    ----------
    target : Interval or Levels
        The declared range or classes of y.
    tasks : tuple of Task
        Tasks with the same label have the same loss and share a line of the certificate.
    signal : float
        The variance that we assume for a good prediction.
    solver : {"objective", "output"}
        Where the noise is added.
    ridge : float or None
        Lambda. None means that it is chosen from public numbers.
    accept : tuple of str
        The assumptions that the user has signed.
    centred : bool
        Whether to spend a share on the mean of the rows, and to scale every row around it to norm
        1. This suits losses for which only the sign of a prediction counts.
    single : bool
        Whether there is one problem only, so that ``coef_`` is a vector.
    l1, norm : float
        The weight of the loss of the coefficients, and the norm that is penalised, for noise on
        solutions.
    """

    target: Interval | Levels
    tasks: tuple[Task, ...]
    signal: float
    solver: str = "objective"
    ridge: float | None = None
    accept: tuple[str, ...] = ()
    centred: bool = False
    single: bool = True
    l1: float = 0.0
    norm: float = 2.0

    def assumed(self, n_rows: int, n_inputs: int, budget: Budget) -> tuple[float, float]:
        """Return the variance that we assume for a good prediction, and the power of the constant.

        A decision function may have any scale, so its assumed variance only sets the ridge. With
        more data per input a larger ridge is better, because rows whose margin is large no longer
        count, and a weak constant leaves the ridge to the other coordinates. Measured for objective
        perturbation with Gaussian noise only.
        """
        if not self.centred or self.solver != "objective" or budget.pure:
            return self.signal, CONSTANT_POWER
        mu = gaussian_mu(budget.epsilon, budget.delta)
        each = n_rows * mu / (math.sqrt(len(self.tasks)) * n_inputs)
        return min(max(self.signal / each, _LEAST_SIGNAL), self.signal), _MARGIN_CONSTANT


class RobustModel(NumberModel, ObjectiveModel):
    """Base class of regressors with a loss of bounded slope: bounded targets, one fit for all losses."""

    # the parameters of the loss that users state in units of y
    _in_units: ClassVar[tuple[str, ...]] = ()
    l1: float = 0.0
    norm: float = 2.0

    def _open_table(self, X: Any, y: Any) -> Source:
        self._problems()  # refuses bad parameters before it looks at the data
        return open_source(self, X, y, again=True, several=self._single)

    def _problems(self, target_shape: tuple[int, ...] = ()) -> Problems:
        target = interval_of(self.y_bounds, self.bounds, type(self).__name__)
        views = unit_targets(target, target_shape)
        tasks = [task for view in views for task in self._tasks(view)]
        if len(views) > 1 and len({loss for _, loss, _ in tasks}) > 1:
            tasks = [(f"{name}, target {j}", *rest) for j, (name, *rest) in enumerate(tasks, 1)]  # type: ignore[misc]
        return Problems(
            target,
            tuple(tasks),
            signal=NUMBER_SIGNAL,
            solver=self.solver,
            ridge=self._ridge,
            accept=tuple(self.accept),
            single=self._single and not target_shape,
            l1=float(self.l1),
            norm=float(self.norm),
        )

    @property
    def _single(self) -> bool:
        """Whether there is one problem per target."""
        return True

    def _tasks(self, view: UnitTarget) -> list[Task]:
        """Return the problems of one target."""
        raise NotImplementedError

    def _in_units_of(self, name: str, auto: float, target: Interval) -> float:
        """Convert the parameter ``name`` from units of y to units of half the declared range."""
        given = getattr(self, name)
        scaled = 2 * auto if given == "auto" else float(given) / target.half_width
        if not 1e-6 <= scaled <= 1e6:
            allowed = "'auto', or between 1e-6 and 1e6 times half the declared range of y"
            raise ParameterError(parameter_message(type(self).__name__, name, allowed, given))
        return scaled

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        assert isinstance(domain.target, Interval)
        found = super()._saved_parameters(header, domain)
        losses = header["certificate"]["public"].get("losses")
        if losses is None or isinstance(domain.target, Intervals):
            return found  # the file has what was given
        half = domain.target.half_width
        return {**found, **{name: losses[0][name] * half for name in cls._in_units}}


class ConvexPlan(FitPlan):
    """Solve problems with noise in the problems or on their solutions."""

    def __init__(
        self,
        model: KernelModel,
        source: Source,
        budget: Budget,
        relation: Neighbours,
        problems: Problems,
    ) -> None:
        self._source, self._problems, self._verbose = source, problems, model.verbose
        self._domain = domain = model._resolve_domain(source, problems.target)
        n, owner = source.n_rows, type(model).__name__
        n_inputs = source.n_columns if domain.columns is None else domain.n_unit_columns
        squared = all(isinstance(loss, Squared) for _, loss, _ in problems.tasks)
        found = model._schedule(source, domain, budget, squared=squared)
        size = None if found is None else found.n_features
        ridge = problems.ridge if found is None else found.strength
        features = model._choose_features(
            domain, source, size or size_for_records(n, n_inputs, budget)
        )
        self._stated = stated(found, features)
        signal, constant = problems.assumed(n, n_inputs, budget)
        recipe, self._powers = RecordRecipe.choose(domain, features, n, ROW_BOUND, constant)
        self._recipe, self._n_inputs = recipe, n_inputs
        share = _centre_share(n, n_inputs, budget) if problems.centred and recipe.scale else 0.0
        sizes = n, self._powers, signal
        setting = ConvexSetting(
            owner, budget, relation, *sizes, centre_share=share, l1=problems.l1, norm=problems.norm
        )
        losses = [loss for _, loss, _ in problems.tasks]
        self._approach: _Approach
        if problems.solver == "output":
            plan, self._centre = plan_outputs(setting, losses, ridge, problems.accept)
            self._approach = _OutputNoise(problems.tasks, plan)
        else:
            plans, self._centre = plan_objectives(setting, losses, ridge)
            self._approach = _Objective(problems.tasks, plans)
        self.releases = [Release("centre", self._centre)] if self._centre else []
        self.releases += self._approach.releases()

    def prepare(self) -> None:
        """Make the records. If they need a centre first, only sum up the rows for it."""
        logger.info("%d problem(s) on %d rows", len(self._problems.tasks), self._source.n_rows)
        if self._problems.centred:
            # features that can't be built are refused before anything is spent
            around_zero = self._recipe.around(np.zeros(self._recipe.n_coordinates - 1))
            self._recipe = self._recipe if self._centre else around_zero
        self._rows = kept_rows(self._source) if self._centre else None
        self._store = RecordStore(self._source, self._recipe, self._rows)
        if self._centre:
            self._total = self._store.sum_rows()
        else:
            self._store.prepare()

    def run(self, noise: Noise) -> Fitted:
        """Release the centre, if there is one, and the solutions."""
        if self._centre:
            unit = 1 / (STEPS * self._source.n_rows)
            noisy = self._centre.release(self._total, noise) * unit
            spread = self._centre.noise_scale * unit
            shift = shrunk_centre(noisy, spread, self._powers[1:], self._n_inputs + 1)
            self._recipe = self._recipe.around(shift)
            self._store = RecordStore(self._source, self._recipe, self._rows)
            self._store.rows.spent = True
            self._store.prepare()
        self._store.rows.spent = True
        show = partial(_told, verbose=self._verbose)
        betas = self._approach.solve(self._store, noise, show)
        solutions = [self._recipe.coefficients(beta) for beta in betas]
        coef = np.column_stack([solution[0] for solution in solutions])
        intercept = np.array([solution[1] for solution in solutions])
        single, features = self._problems.single, self._recipe.features
        return Fitted(
            linear_model(self._domain, features, coef, intercept, several=not single),
            {
                **public_sizes(self._source, self._domain, features),
                "losses": [loss.to_dict() for loss in self._approach.ridges()],
                "regularisation": list(self._approach.ridges().values()),
                "solver": self._problems.solver,
                **({"l1": self._problems.l1} if self._problems.l1 else {}),
                **({"norm": self._problems.norm} if self._problems.norm < 2 else {}),
                **self._stated,
            },
        )


class _Approach(Protocol):
    """How a list of tasks is released."""

    def releases(self) -> list[Release]:
        """Return the lines of the certificate."""

    def ridges(self) -> dict[Loss, float]:
        """Return the ridge of every different loss."""

    def solve(self, store: RecordStore, noise: Noise, show: Show) -> list[Array]:
        """Return the released solutions, one per task."""


@dataclass(frozen=True)
class _Objective:
    """Noise inside every problem."""

    tasks: Sequence[Task]
    plans: Sequence[ObjectivePlan]

    def releases(self) -> list[Release]:
        """Return one line for each different loss."""
        label_of = {loss: label for label, loss, _ in self.tasks}
        return [Release(label_of[p.loss], p.mechanism, p.draws) for p in self.plans]

    def ridges(self) -> dict[Loss, float]:
        """Return the ridge of every different loss."""
        return {plan.loss: plan.mechanism.ridge for plan in self.plans}

    def solve(self, store: RecordStore, noise: Noise, show: Show) -> list[Array]:
        """Return the released solutions, one per task."""
        plan_of = {plan.loss: plan for plan in self.plans}
        found = []
        for _, loss, targets in show(self.tasks):
            solve = _solver(store.records(loss, targets), plan_of[loss].problem)
            found.append(plan_of[loss].mechanism.release(solve, noise))
        return found


@dataclass(frozen=True)
class _OutputNoise:
    """Noise on all solutions as one vector."""

    tasks: Sequence[Task]
    plan: OutputPlan

    def releases(self) -> list[Release]:
        """Return the only line."""
        labels = dict.fromkeys(label for label, _, _ in self.tasks)
        return [Release(", ".join(labels), self.plan.mechanism)]

    def ridges(self) -> dict[Loss, float]:
        """Return the ridge of every different loss."""
        return {
            loss: risk.ridge for (_, loss, _), risk in zip(self.tasks, self.plan.risks, strict=True)
        }

    def solve(self, store: RecordStore, noise: Noise, show: Show) -> list[Array]:
        """Return the released solutions, one per task."""
        found = [
            minimise_risk(partial(store.records, targets=targets), risk)
            for (_, _, targets), risk in zip(show(self.tasks), self.plan.risks, strict=True)
        ]
        return self.plan.split(self.plan.mechanism.release(np.concatenate(found), noise))


def _told(tasks: Sequence[Task], verbose: bool) -> Iterator[Task]:
    """Yield the tasks and tell which one runs. Their number is public; their steps are not."""
    parts = Parts(len(tasks), verbose=verbose)
    for number, task in enumerate(tasks, start=1):
        with parts.part(f"solved problem {number} of {len(tasks)}"):
            yield task


def _solver(records: Records, problem: Problem) -> Callable[[Array], Array]:
    return lambda b: minimise(records, problem, b)


def _centre_share(n: int, n_inputs: int, budget: Budget) -> float:
    """Return the budget share of the mean of the rows; 0 if noise would hide the mean."""
    if budget.pure or n * gaussian_mu(budget.epsilon, budget.delta) < n_inputs:
        return 0.0
    return _CENTRE_SHARE
