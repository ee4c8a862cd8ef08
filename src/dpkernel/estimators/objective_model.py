"""What the estimators share that are fitted by objective perturbation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpkernel.certificate import Certificate, Release
from dpkernel.domain import Domain, Interval, Levels
from dpkernel.estimators.base import logger
from dpkernel.estimators.kernel_model import KernelModel
from dpkernel.estimators.objective_plan import ROW_BOUND, plan_objective
from dpkernel.estimators.records import RecordRecipe, RecordStore, Targets
from dpkernel.estimators.sources import Source
from dpkernel.features import FeatureMap
from dpkernel.losses import Loss
from dpkernel.profiles import gaussian_mu
from dpkernel.solvers.objective_perturbation import minimise
from dpkernel.types import Array, Budget, Neighbours


class ObjectiveModel(KernelModel):
    """Base class: problems with one loss on one set of records, solved with one mechanism."""

    regularisation: float | str

    def _solve(
        self,
        source: Source,
        target: Interval | Levels,
        budget: Budget,
        relation: Neighbours,
        loss: Loss,
        views: Sequence[Targets],
        label: str,
        *,
        signal: float = 4.0,
    ) -> tuple[Domain, FeatureMap, Array, Array, Certificate]:
        """Return domain, features, coefficients, intercepts and the certificate of the fit.

        One problem a view of the targets, all of them inside one spend.
        """
        domain = self._resolve_domain(source, target)
        n_inputs = source.n_columns if domain.columns is None else domain.n_unit_columns
        features = self._choose_features(
            domain, source, _auto_size(source.n_rows, n_inputs, budget)
        )
        recipe, powers = RecordRecipe.choose(domain, features, source.n_rows, ROW_BOUND)
        plan = plan_objective(
            type(self).__name__,
            budget,
            relation,
            loss,
            n_rows=source.n_rows,
            powers=powers,
            draws=len(views),
            signal=signal,
            ridge=None if self.regularisation == "auto" else float(self.regularisation),
        )
        releases = [Release(label, plan.mechanism, len(views))]
        self._check_ledger(releases, budget)
        logger.info("%d problem(s) on %d rows", len(views), source.n_rows)
        store = RecordStore(source, recipe)
        noise = self._spend(releases, budget)
        solutions = []
        for targets in views:
            records = store.records(loss, targets)

            def solve(b: Array, records: Any = records) -> Array:
                return minimise(records, plan.problem, b)

            solutions.append(recipe.coefficients(plan.mechanism.release(solve, noise)))
        certificate = Certificate.issue(
            type(self).__name__,
            budget,
            releases,
            noise,
            public={
                "n_rows": source.n_rows,
                "n_columns": source.n_columns,
                "domain": domain.to_dict(),
                "feature_map": features.to_dict(),
                "loss": loss.to_dict(),
                "regularisation": plan.mechanism.ridge,
            },
        )
        coef = np.column_stack([solution[0] for solution in solutions])
        intercept = np.array([solution[1] for solution in solutions])
        return domain, features, coef, intercept, certificate


def _auto_size(n: int, n_inputs: int, budget: Budget) -> int:
    """Return how many features: more where there are more rows, and always the linear ones."""
    if budget.pure:
        signal = math.sqrt(n * budget.epsilon / 5)
    else:
        signal = math.sqrt(n * gaussian_mu(budget.epsilon, budget.delta))
    size = 2 * int(min(max(1.5 * signal, 64), 512))
    return max(size, min(2 * (n_inputs // 2 + 2), 1024))
