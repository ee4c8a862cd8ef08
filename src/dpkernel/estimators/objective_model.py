"""What the estimators share that solve convex problems on records.

Noise goes into the problems (objective perturbation) or on their solutions (output perturbation).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
from rich.console import Console

from dpkernel.data.domain import Domain, Interval, Levels
from dpkernel.data.sources import Source
from dpkernel.estimators.base import logger
from dpkernel.estimators.kernel_model import KernelModel
from dpkernel.estimators.objective_plan import (
    ROW_BOUND,
    ObjectivePlan,
    Setting,
    plan_objectives,
)
from dpkernel.estimators.output_plan import OutputPlan, plan_outputs
from dpkernel.estimators.records import STEPS, RecordRecipe, RecordStore, Targets
from dpkernel.foundations.types import JSON, Array, Budget, Neighbours
from dpkernel.foundations.validation import Choice, Constraint, Kind, Real
from dpkernel.models.features import FeatureMap
from dpkernel.models.features.normalised import shrunk_centre
from dpkernel.models.losses import Loss
from dpkernel.privacy.certificate import Certificate, Release
from dpkernel.privacy.mechanisms import L2Gamma, PureObjectivePerturbation, require_accepted
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.profiles import gaussian_mu
from dpkernel.solvers.objective_perturbation import Problem, Records, minimise
from dpkernel.solvers.output_perturbation import minimise_risk

_CENTRE_SHARE = 0.1

Task = tuple[str, Loss, Targets]  # a label for the certificate, a loss, a view of the targets
Show = Callable[[Sequence[Task]], Iterable[Task]]
Solved = tuple[Domain, FeatureMap, Array, Array, Certificate]  # coefficients, intercepts before it


class ObjectiveModel(KernelModel):
    """Base class: one or more convex problems on one set of records, inside one spend."""

    _constraints: ClassVar[Mapping[str, Constraint | tuple[Constraint, ...]]] = {
        **KernelModel._constraints,
        "epsilon": Real(0, 1e10),
        "delta": Real(0, 1, closed_low=True),
        "regularisation": (Choice("auto"), Real(0, 1e100)),
        "accept": Kind(tuple, list, set, frozenset),
    }

    solver: str = "objective"
    regularisation: float | str
    accept: Any
    verbose: bool

    def _check_parameters(self) -> tuple[Budget, Neighbours]:
        budget, relation = super()._check_parameters()
        self._refuse_private_n(relation)
        if budget.pure:
            output = self.solver == "output"
            require_accepted(L2Gamma if output else PureObjectivePerturbation, self.accept)
        return budget, relation

    def _solve(
        self,
        source: Source,
        target: Interval | Levels,
        budget: Budget,
        relation: Neighbours,
        tasks: Sequence[Task],
        *,
        signal: float,
        centred: bool = False,
    ) -> Solved:
        """Return what ``solve_tasks`` does, with the parameters of this estimator."""
        ridge = None if self.regularisation == "auto" else float(self.regularisation)
        rest = self.solver, ridge, tuple(self.accept), self.verbose
        return solve_tasks(
            self, source, target, budget, relation, tasks, *rest, signal=signal, centred=centred
        )

    @classmethod
    def _saved_parameters(cls, header: JSON, domain: Domain) -> dict[str, Any]:
        found = {"accept": tuple(header["certificate"]["assumptions"])}
        if "solver" in cls._get_param_names():
            found["solver"] = header["certificate"]["public"].get("solver", "objective")
        return found


def solve_tasks(
    model: KernelModel,
    source: Source,
    target: Interval | Levels,
    budget: Budget,
    relation: Neighbours,
    tasks: Sequence[Task],
    solver: str,
    ridge: float | None,
    accept: tuple[str, ...],
    verbose: bool,
    *,
    signal: float,
    centred: bool = False,
) -> Solved:
    """Return domain, features, coefficients, intercepts and the certificate of a fit of the model.

    Tasks with one label have one loss and share a line of the certificate. ``ridge`` is Lambda, None to
    have it chosen. ``centred`` spends a share on the mean of the rows and scales every row around it to
    norm 1: for losses in which only the sign of a prediction counts.
    """
    domain = model._resolve_domain(source, target)
    n_inputs = source.n_columns if domain.columns is None else domain.n_unit_columns
    size = auto_size(source.n_rows, n_inputs, budget)
    features = model._choose_features(domain, source, size)
    recipe, powers = RecordRecipe.choose(domain, features, source.n_rows, ROW_BOUND)
    owner = type(model).__name__
    share = _centre_share(source.n_rows, n_inputs, budget) if centred and recipe.scale else 0.0
    sizes = source.n_rows, powers, signal
    setting = Setting(owner, budget, relation, *sizes, centre_share=share)
    losses = [loss for _, loss, _ in tasks]
    approach: _Approach
    if solver == "output":
        plan, centre = plan_outputs(setting, losses, ridge, accept)
        approach = _Output(tasks, plan)
    else:
        plans, centre = plan_objectives(setting, losses, ridge)
        approach = _Objective(tasks, plans)
    releases = [Release("centre", centre)] if centre else []
    releases += approach.releases()
    model._check_ledger(releases, budget)
    logger.info("%d problem(s) on %d rows", len(tasks), source.n_rows)
    shift = np.zeros(recipe.n_coordinates - 1)
    store = RecordStore(source, recipe)
    if centred:
        recipe.around(shift)  # what can't be built is refused before anything is spent
    if centre:
        total = store.sum_rows()
        noise = model._spend(releases, budget)
        unit = 1 / (STEPS * source.n_rows)
        noisy, spread = centre.release(total, noise) * unit, centre.noise_scale * unit
        shift = shrunk_centre(noisy, spread, powers[1:], n_inputs + 1)
    if centred:
        recipe = recipe.around(shift)
        features, store = recipe.features, RecordStore(source, recipe)
    store.prepare()
    if not centre:
        noise = model._spend(releases, budget)
    show = _announced if verbose else _silent
    solutions = [recipe.coefficients(beta) for beta in approach.solve(store, noise, show)]
    certificate = Certificate.issue(
        owner,
        budget,
        releases,
        noise,
        public={
            "n_rows": source.n_rows,
            "n_columns": source.n_columns,
            "domain": domain.to_dict(),
            "feature_map": features.to_dict(),
            "losses": [loss.to_dict() for loss in approach.ridges()],
            "regularisation": list(approach.ridges().values()),
            "solver": solver,
        },
    )
    coef = np.column_stack([solution[0] for solution in solutions])
    intercept = np.array([solution[1] for solution in solutions])
    return domain, features, coef, intercept, certificate


class _Approach(Protocol):
    """How a list of tasks is released."""

    def releases(self) -> list[Release]:
        """Return the lines of the certificate."""

    def ridges(self) -> dict[Loss, float]:
        """Return the ridge of every different loss."""

    def solve(self, store: RecordStore, noise: Noise, show: Show) -> list[Array]:
        """Return the released solutions, one a task."""


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
        """Return the released solutions, one a task."""
        plan_of = {plan.loss: plan for plan in self.plans}
        found = []
        for _, loss, targets in show(self.tasks):
            solve = _solver(store.records(loss, targets), plan_of[loss].problem)
            found.append(plan_of[loss].mechanism.release(solve, noise))
        return found


@dataclass(frozen=True)
class _Output:
    """Noise on all solutions as one vector."""

    tasks: Sequence[Task]
    plan: OutputPlan

    def releases(self) -> list[Release]:
        """Return the one line that there is."""
        labels = dict.fromkeys(label for label, _, _ in self.tasks)
        return [Release(", ".join(labels), self.plan.mechanism)]

    def ridges(self) -> dict[Loss, float]:
        """Return the ridge of every different loss."""
        return {
            loss: risk.ridge for (_, loss, _), risk in zip(self.tasks, self.plan.risks, strict=True)
        }

    def solve(self, store: RecordStore, noise: Noise, show: Show) -> list[Array]:
        """Return the released solutions, one a task."""
        found = [
            minimise_risk(partial(store.records, targets=targets), risk)
            for (_, _, targets), risk in zip(show(self.tasks), self.plan.risks, strict=True)
        ]
        return self.plan.split(self.plan.mechanism.release(np.concatenate(found), noise))


def _silent(tasks: Sequence[Task]) -> Sequence[Task]:
    return tasks


def _announced(tasks: Sequence[Task]) -> Iterator[Task]:
    """Yield the tasks and say which one is worked on; their number is public, steps are not."""
    console = Console()
    for number, task in enumerate(tasks, start=1):
        text = f"problem {number} of {len(tasks)}"
        with console.status(f"solving {text}"):
            yield task
        console.print(f"solved {text}")


def _solver(records: Records, problem: Problem) -> Callable[[Array], Array]:
    return lambda b: minimise(records, problem, b)


def _centre_share(n: int, n_inputs: int, budget: Budget) -> float:
    """Return the share for the mean of the rows: none where it would drown in its noise."""
    if budget.pure or n * gaussian_mu(budget.epsilon, budget.delta) < n_inputs:
        return 0.0
    return _CENTRE_SHARE


def auto_size(n: int, n_inputs: int, budget: Budget) -> int:
    """Return how many features: more where there are more rows, and always the linear ones."""
    if budget.pure:
        signal = math.sqrt(n * budget.epsilon / 5)
    else:
        signal = math.sqrt(n * gaussian_mu(budget.epsilon, budget.delta))
    size = 2 * int(min(max(1.5 * signal, 64), 512))
    return max(size, min(2 * (n_inputs // 2 + 2), 1024))
