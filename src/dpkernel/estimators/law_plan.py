r"""Convex problems on features that are made for the inputs, whose law is released first.

1. Histograms of the columns and moments of their scores give the law of the inputs.
2. The features are eigenfunctions of a mixture of kernels, orthonormal for this law.
3. Every problem is solved once, by objective perturbation, in coordinates and with ridges that suit
   its noise (``regressor/stage.py``). What was released is shrunk by a prior that is refitted to
   it.

The number of releases and the noise of each are fixed in advance, from public numbers.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernel.data.domain import Domain, unit_inputs
from dpkernel.data.sources import Source
from dpkernel.data.weights import weight_column
from dpkernel.estimators.base import FitPlan, Fitted, logger
from dpkernel.estimators.kernel_model import linear_model, public_sizes
from dpkernel.estimators.objective_model import Problems
from dpkernel.estimators.progress import Parts
from dpkernel.estimators.records import RecordPasses, Weighted
from dpkernel.estimators.regressor.budget_plan import DEPENDENCE, MOST_LEARNING_INPUTS, column_looks
from dpkernel.estimators.regressor.fitting import FLOAT32_FROM, SIGNAL_A_FEATURE
from dpkernel.estimators.regressor.inputs import column_sizes, release_law, score_layout
from dpkernel.estimators.regressor.kernel_choice import SAMPLE, mixture_prior, relevance_of
from dpkernel.estimators.regressor.learning import equal_mixture, of_law, with_constant
from dpkernel.estimators.regressor.releases import PublicSizes, calibrated, stage_solver
from dpkernel.estimators.regressor.stage import PosteriorStage, Response, State, scaled_rows
from dpkernel.foundations.types import Array, Budget, IntArray, Neighbours
from dpkernel.models.features.learned import MOST, LearnedFeatures
from dpkernel.models.losses import Loss
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.mechanisms import Mechanism, ObjectivePerturbation
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.profiles import gaussian_mu

_LEAST = 300.0  # the n mu from which the law of the inputs is worth its cost
_LEAST_EACH = 40.0  # the n mu per input that it needs in addition
_DETERMINANT = 0.1  # the share of epsilon that all problems together pay for their ridge
_FEWEST, _LARGEST = 250, 600  # the fewest and the most features
_BEND = 0.4  # the mean curvature of a margin loss, as a share of the largest (at most 1)
_SLOPE = 0.3  # its mean squared slope, relative to the same
_SMOOTHER = (
    1.5  # decision functions are smoother than the mixture: the power of its prior variances
)
_PRIOR = 2.0  # the variance that we assume for a good decision function
_CONSTANT = 0.3  # and for its constant
_FEATURES = 3.0  # about how long it takes to make features, relative to a release


def affordable(
    n_rows: int, domain: Domain, budget: Budget, n_problems: int, n_features: int | str
) -> bool:
    """Whether the law of the inputs is worth its cost. All arguments are public."""
    if budget.pure or domain.columns is None or domain.n_unit_columns > MOST_LEARNING_INPUTS:
        return False
    if n_features != "auto" and int(n_features) > MOST:
        return False
    signal = _signal(n_rows, budget, n_problems)
    return signal >= max(_LEAST, _LEAST_EACH * domain.n_unit_columns)


def _signal(n_rows: int, budget: Budget, n_problems: int) -> float:
    return n_rows * gaussian_mu(budget.epsilon, budget.delta) / math.sqrt(n_problems)


@dataclass(frozen=True)
class _FitSizes:
    n_rows: int
    n_inputs: int
    n_features: int


class LawPlan(FitPlan):
    """Release the law of the inputs, then one decision function per problem."""

    def __init__(
        self,
        owner: str,
        source: Source,
        domain: Domain,
        problems: Problems,
        budget: Budget,
        relation: Neighbours,
        *,
        n_features: int | str = "auto",
        seed: int = 0,
        verbose: bool = False,
    ) -> None:
        self._source, self._domain, self._problems = source, domain, problems
        self._seed = seed
        n, d, tasks = source.n_rows, domain.n_unit_columns, problems.tasks
        signal = _signal(n, budget, len(tasks))
        wanted = min(max(int(signal / SIGNAL_A_FEATURE), _FEWEST), _LARGEST, max(n // 2, 20))
        size = wanted if n_features == "auto" else int(n_features)
        self._sizes = _FitSizes(n, d, size)
        LearnedFeatures(size, random_state=seed).check()  # a bad seed raises before the spend
        self._dtype = "float32" if n >= FLOAT32_FROM else "float64"
        self._target_bytes = 8 * (math.prod(source.target_shape) + 1)  # a weight, too
        self._passes = RecordPasses(source).then(
            _to_unit,
            domain,
            self._dtype,
            source.weighted,
            bytes_a_row=d * np.dtype(self._dtype).itemsize + self._target_bytes,
        )
        self._layout = score_layout(d, n, relation)
        weights = {f"columns {j}": w for j, w in enumerate(column_looks(signal, d), 1)}
        weights["dependence"] = DEPENDENCE
        share = (1 - sum(weights.values())) / len(tasks)
        losses: dict[str, Loss] = {
            f"{label} {j}": loss for j, (label, loss, _) in enumerate(tasks, 1)
        }
        self._parts = Parts(len(weights) + len(losses) + _FEATURES, verbose=verbose)
        table = PublicSizes(n, d, size + 1, self._layout)
        self._mechanisms: dict[str, Mechanism] = calibrated(
            owner,
            weights | dict.fromkeys(losses, share),
            losses,
            table,
            budget,
            relation,
            _DETERMINANT,
        )
        self.releases = [Release(name, self._mechanisms[name]) for name in weights]
        for label in dict.fromkeys(label for label, _, _ in tasks):
            same = [j for j, task in enumerate(tasks, 1) if task[0] == label]
            self.releases.append(Release(label, self._of(same[0], label), len(same)))

    def _of(self, number: int, label: str) -> ObjectivePerturbation:
        found = self._mechanisms[f"{label} {number}"]
        assert isinstance(found, ObjectivePerturbation)
        return found

    def prepare(self) -> None:
        """Read the table."""
        logger.info("%d problem(s) on %d rows", len(self._problems.tasks), self._source.n_rows)
        self._passes.prepare()

    def run(self, noise: Noise) -> Fitted:
        """Draw every release and build the model."""
        self._passes.spent = True
        law, size = release_law(self._passes, self._layout, self._mechanisms, noise, self._part)
        with self._part("features"):
            mixture = equal_mixture(law, self._seed)
            features = of_law(law, self._sizes.n_features, mixture, self._seed)
        rows = self._passes.featured(features, self._dtype, self._target_bytes)
        functions = features.of_standardised(features.sample[:SAMPLE])
        prior = mixture_prior(features, functions, _SMOOTHER)
        variances = np.concatenate([[_CONSTANT], _PRIOR * prior])
        start = State(np.zeros(len(variances)), variances, 1.0)
        found, noises = [], []
        made: dict[Loss, tuple[PosteriorStage, RecordPasses]] = {}
        for number, (label, loss, targets) in enumerate(self._problems.tasks, 1):
            mechanism = self._of(number, label)
            if loss not in made:
                stage = PosteriorStage.choose(
                    start, size, _response(loss), mechanism, with_constant(functions)
                )
                made[loss] = stage, self._scaled(rows, stage)
            stage, scaled = made[loss]
            with self._part(label if self._problems.single else f"{label} {number}"):
                scaled.prepare()
                several = bool(self._source.target_shape)
                records = scaled.records(loss, Weighted(targets, several))
                solve = stage_solver(self._sizes.n_rows, stage, records, mechanism, loss)
                beta = mechanism.release(solve, noise)
            state = stage.update(beta)
            found.append(state.coefficients)
            noises.append(_noise_in(state, stage))
        coefficients = np.column_stack(found)
        noise_left = np.sqrt(np.mean(np.square(noises), axis=0))
        relevance = relevance_of(
            features, coefficients[1:], noise_left[1:], column_sizes(self._domain)
        )
        return self._fitted(features, coefficients, relevance)

    def _scaled(self, rows: RecordPasses, stage: PosteriorStage) -> RecordPasses:
        used = stage.used
        size = len(used) * np.dtype(self._dtype).itemsize + self._target_bytes + 8
        return rows.then(_to_records, used, np.sqrt(stage.powers[used]), bytes_a_row=size)

    def _fitted(self, features: LearnedFeatures, coefficients: Array, relevance: Array) -> Fitted:
        single = self._problems.single
        intercept, coef = coefficients[0], coefficients[1:]
        least: dict[Loss, float] = {
            loss: self._of(j, label).ridge
            for j, (label, loss, _) in enumerate(self._problems.tasks, 1)
        }
        return Fitted(
            linear_model(self._domain, features, coef, intercept, several=not single),
            {
                **public_sizes(self._source, self._domain, features),
                "losses": [loss.to_dict() for loss in least],
                "regularisation": list(least.values()),
                "solver": self._problems.solver,
            },
            {"kernel": {"relevance": relevance.tolist()}},
        )

    def _part(self, label: str) -> AbstractContextManager[None]:
        """Show which part is running, if verbose. Its name and number are public."""
        return self._parts.part(label, _FEATURES if label == "features" else 1.0)


def _noise_in(state: State, stage: PosteriorStage) -> Array:
    """Return the standard deviation of the noise in each coefficient of a state, after shrinking."""
    found = np.zeros(len(state.coefficients))
    found[stage.used] = state.variances[stage.used] / np.sqrt(stage.noise)  # share * noise / root
    return found


def _response(loss: Loss) -> Response:
    """Return what a margin loss does on rows whose margins are spread over its curved part."""
    scale = min(loss.smoothness, 1.0)
    return Response(1.0, _BEND * scale, _SLOPE * scale)


# the steps for every block of rows; they are at module level so that Dask workers find them


def _to_unit(X: Array, y: Array, domain: Domain, dtype: str, weighted: bool) -> Any:
    return unit_inputs(X, domain, dtype), weight_column(y, weighted)


def _to_records(rows: Array, y: Array, used: IntArray, roots: Array) -> Any:
    z, weights = scaled_rows(rows, used, roots)
    return z, y, weights
