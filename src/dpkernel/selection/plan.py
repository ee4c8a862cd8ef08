"""Split the budget of a search by a public rule, before anything is spent.

random-stopping
    Every run has one budget for its fit and the same budget for its score, which uses other rows.
exponential
    Half of the squared mu of the whole goes to the fits of all candidates (and, on the validation rows,
    to the choice). The other half goes to the fit of the chosen candidate on all rows.
free
    Everything goes to one fit. The choice is computed from its released matrices.

Fits whose profile is not Gaussian cost more than a Gaussian with the same budget. In that case all
budgets of a search are scaled down together until the whole does not exceed its budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.notebook import html_table
from dpkernel.foundations.types import JSON, Budget, Neighbours
from dpkernel.privacy.mechanisms import Exponential, Gaussian, HeldOutChoice, RandomStopping
from dpkernel.privacy.mechanisms.selection import Fit
from dpkernel.privacy.profiles import (
    GaussianProfile,
    PureProfile,
    StoppingLaw,
    StoppingProfile,
    compose,
    gaussian_mu,
)
from dpkernel.privacy.profiles.base import bisect
from dpkernel.selection.losses import STEPS, loss_sensitivity

REFIT_SHARE = 0.5  # share of the squared mu
FEW = 8  # "auto" trains all candidates if there are at most this many
_RUNS = 2.0  # expected runs per candidate
_LEAST_SIGNAL = 5.0  # rows times mu of a fit; below this nothing is learned
_LEAST_SCORE = 0.25  # share of a loss's range; noise above this hides every difference
_PRECISION = 1e-4  # relative precision of the budgets that are found by bisection

Planner = Callable[[int, Budget, bool], Fit]  # (candidate, budget, on all rows) -> what it releases


@dataclass(frozen=True)
class SearchPlan:
    """The budget of a search, and how it is split.

    Attributes
    ----------
    strategy : {"random-stopping", "exponential", "free"}
        How the model is chosen.
    n_candidates, n_train, n_validation : int
        The numbers of candidates, of training rows and of validation rows.
    total : Budget
        What the whole search costs; at most the requested budget.
    fit : Budget
        The budget of one fit of one candidate.
    refit : Budget or None
        The budget of the fit of the chosen candidate on all rows.
    choice_epsilon : float or None
        The epsilon of the exponential mechanism.
    score_noise : float or None
        The standard deviation of the noise on a score, or the scale of the noise of the choice, as a
        share of the range to which losses are clipped.
    expected_fits : float
        The average number of fits, on which the running time depends.
    law : StoppingLaw or None
        The distribution of the number of runs.
    """

    strategy: str
    n_candidates: int
    n_train: int
    n_validation: int
    total: Budget
    fit: Budget
    refit: Budget | None = None
    choice_epsilon: float | None = None
    score_noise: float | None = None
    expected_fits: float = 1.0
    law: StoppingLaw | None = None
    mechanism: RandomStopping | HeldOutChoice | None = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        """Return the numbers as a table, for notebooks."""
        names = ("strategy", "n_candidates", "n_train", "n_validation", "total", "fit", "refit")
        rows = [(name, getattr(self, name)) for name in names]
        return html_table([*rows, ("expected_fits", f"{self.expected_fits:.1f}")])

    def to_dict(self) -> JSON:
        """Return the public numbers, for the certificate."""
        return {
            "strategy": self.strategy,
            "candidates": self.n_candidates,
            "train_rows": self.n_train,
            "validation_rows": self.n_validation,
            "fit_epsilon": self.fit.epsilon,
            "refit_epsilon": None if self.refit is None else self.refit.epsilon,
            "choice_epsilon": self.choice_epsilon,
            "law": None if self.law is None else self.law.to_dict(),
        }

    def __str__(self) -> str:
        lines = [f"{self.strategy} among {self.n_candidates} candidates: {self.total}"]
        if self.strategy == "free":
            lines.append("choice   free: computed from the released matrices of the folds")
            lines.append(f"fit      {self.fit}, on all {self.n_train} rows")
            return "\n".join(lines)
        lines.append(f"fits     {self.fit} each, on {self.n_train} rows")
        if self.law is not None:
            lines.append(f"runs     {self.law.mean:.3g} on average, {self.law.name}")
        if self.choice_epsilon is not None:
            lines.append(
                f"choice   epsilon = {self.choice_epsilon:.3g} on {self.n_validation} rows"
            )
        if self.score_noise is not None:
            lines.append(f"noise    {self.score_noise:.2g} of a loss's range on a score")
        lines.append(f"refit    {self.refit or 'none: the model of the best run is released'}")
        return "\n".join(lines)


def resolve_law(law: str | StoppingLaw, mean: float | str, n_candidates: int) -> StoppingLaw:
    """Return the law of the number of runs. "auto" means two runs per candidate on average."""
    if isinstance(law, StoppingLaw):
        return law
    runs = max(_RUNS * n_candidates, 1.5) if mean == "auto" else float(mean)
    if law == "auto":  # the Poisson law costs less for few runs, the geometric one for many
        law = "poisson" if runs <= 2 * FEW else "geometric"
    shapes = {"logarithmic": 0.0, "geometric": 1.0}
    if law in shapes:
        return StoppingLaw("negative-binomial", runs, shapes[law])
    return StoppingLaw("poisson", runs)


def plan_stopping(
    budget: Budget,
    sizes: tuple[int, int, int],
    law: StoppingLaw,
    planner: Planner,
    relation: Neighbours,
    refit: bool,
) -> SearchPlan:
    """Return the plan of random stopping.

    ``sizes`` are the numbers of candidates, of training rows and of validation rows.
    """
    m, _, n_validation = sizes
    sensitivity = loss_sensitivity(relation)
    again = _split(budget)[1] if refit else None
    usual = _stopping_budget(budget, law, None if again is None else _mu(again))

    def build(share: float) -> SearchPlan:
        fit = Budget(usual * share, budget.delta)
        late = None if again is None else Budget(again.epsilon * share, again.delta)
        score = Gaussian.calibrate(sensitivity, fit, dimension=1, integer=True)
        mechanism = RandomStopping(
            sensitivity,
            m,
            tuple(dict.fromkeys(planner(i, fit, False) for i in range(m))),
            () if late is None else tuple(dict.fromkeys(planner(i, late, True) for i in range(m))),
            score,
            law,
        )
        noise = score.noise_scale / STEPS / n_validation
        runs = law.mean + (late is not None)
        return SearchPlan(
            "random-stopping", *sizes, budget, fit, late, None, noise, runs, law, mechanism
        )

    return _largest(build, budget)


def plan_exponential(
    budget: Budget,
    sizes: tuple[int, int, int],
    planner: Planner,
    relation: Neighbours,
    refit: bool,
    by_mu: bool = False,
) -> SearchPlan:
    """Return the plan of the exponential mechanism over disjoint validation rows.

    ``by_mu`` is for a ledger that adds up squared mus. There a choice of pure epsilon counts more than
    it really costs.
    """
    m, _, n_validation = sizes
    sensitivity = loss_sensitivity(relation, "score")
    tried, again = _split(budget) if refit else (budget, None)
    each = _budget_of(_mu(tried) / math.sqrt(m), budget.delta)
    pure = _choice_of_mu(_mu(tried))
    if not by_mu:
        pure = max(pure, _choice_epsilon(budget, None if again is None else _mu(again)))

    def build(share: float) -> SearchPlan:
        fit = Budget(each.epsilon * share, each.delta)
        late = None if again is None else Budget(again.epsilon * share, again.delta)
        choice = Exponential.calibrate(sensitivity, Budget(pure * share), candidates=m)
        mechanism = HeldOutChoice(
            sensitivity,
            m,
            tuple(planner(i, fit, False) for i in range(m)),
            () if late is None else tuple(dict.fromkeys(planner(i, late, True) for i in range(m))),
            choice,
        )
        noise = choice.noise_scale / STEPS / n_validation
        return SearchPlan(
            "exponential",
            *sizes,
            budget,
            fit,
            late,
            pure * share,
            noise,
            float(m + (late is not None)),
            mechanism=mechanism,
        )

    return _largest(build, budget)


def refuse_nothing_left(plan: SearchPlan) -> SearchPlan:
    """Return the plan. Raises if its fits or its scores would be nothing but noise."""
    signal = plan.n_train * _mu(plan.fit)
    if signal < _LEAST_SIGNAL or (plan.score_noise or 0.0) > _LEAST_SCORE:
        what = "fits" if signal < _LEAST_SIGNAL else "scores"
        raise ParameterError(
            f"A search among {plan.n_candidates} candidates leaves nothing but noise: its {what} get"
            f" {plan.fit} on {plan.n_train} and {plan.n_validation} rows. Try fewer candidates,"
            " strategy='random-stopping' with fewer runs, more rows or a larger epsilon. Nothing was"
            " spent."
        )
    return plan


def _largest(build: Callable[[float], SearchPlan], budget: Budget) -> SearchPlan:
    """Return the plan with the largest budgets, scaled together, that the whole budget allows."""

    def fits(plan: SearchPlan) -> bool:
        assert plan.mechanism is not None
        return plan.mechanism.profile().supports(budget)

    found = build(1.0 - 1e-9)
    if fits(found):
        return found
    # fits that are not Gaussian cost more than Gaussians with their budget, so scale all of them down
    assert found.mechanism is not None
    needed = found.mechanism.profile().epsilon(budget.delta)
    share, best = min(budget.epsilon / needed, 0.97), None
    while best is None and share > 0.01:
        found = build(share)
        best, share = (found, share) if fits(found) else (None, share * 0.95)
    if best is None:
        raise ParameterError(
            "This budget is too small for the search, because its fits have no Renyi bound or too many"
            " candidates share it. Try strategy='exponential', fewer candidates or a larger epsilon."
            " Nothing was spent."
        )
    return best


def _mu(budget: Budget) -> float:
    return gaussian_mu(budget.epsilon, budget.delta)


def _budget_of(mu: float, delta: float) -> Budget:
    """Return the budget for which a Gaussian release has at most this mu."""
    return Budget(GaussianProfile(mu).epsilon(delta) * (1 - 1e-9), delta)


def _split(budget: Budget) -> tuple[Budget, Budget]:
    """Return two budgets: for everything before the fit on all rows, and for that fit."""
    mu = _mu(budget)
    first, last = mu * math.sqrt(1 - REFIT_SHARE), mu * math.sqrt(REFIT_SHARE)
    return _budget_of(first, budget.delta), _budget_of(last, budget.delta)


@lru_cache(maxsize=64)
def _stopping_budget(budget: Budget, law: StoppingLaw, refit_mu: float | None) -> float:
    """Return the epsilon of one run, if runs are Gaussian."""
    rest = [] if refit_mu is None else [GaussianProfile(refit_mu)]

    def too_much(epsilon: float) -> bool:
        base = GaussianProfile(gaussian_mu(epsilon, budget.delta))
        return not compose([StoppingProfile(base, law), *rest]).supports(budget)

    return bisect(lambda e: not too_much(e), 0.0, budget.epsilon, _PRECISION)[0]


@lru_cache(maxsize=64)
def _choice_epsilon(budget: Budget, refit_mu: float | None) -> float:
    """Return the pure epsilon that is left for the choice beside the fit on all rows."""
    if refit_mu is None:
        return budget.epsilon
    rest = GaussianProfile(refit_mu)

    def fits(epsilon: float) -> bool:
        return compose([PureProfile(epsilon), rest]).supports(budget)

    return bisect(fits, 0.0, budget.epsilon, 0.01)[0]


def _choice_of_mu(mu: float) -> float:
    """Return the largest pure epsilon that a Gaussian with this mu dominates."""
    return bisect(lambda e: PureProfile(e).mu <= mu, 0.0, 1e3, 1e-9)[0]
