"""The error to expect from a fit, from public numbers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpkernel.estimators.regressor import calibration
from dpkernel.estimators.regressor.budget_plan import BudgetPlan
from dpkernel.estimators.regressor.fitting import stage_of
from dpkernel.estimators.regressor.stage import first_state
from dpkernel.foundations.notebook import html_table
from dpkernel.foundations.types import Array
from dpkernel.privacy.mechanisms import Mechanism, ObjectivePerturbation

_SIGNAL = 0.5  # the share of the variance of y that a smooth function explains
_OUTSIDE = 1 / 3  # the variance of y over the square of half its range, as if y were uniform


@dataclass(frozen=True)
class Outlook:
    """What ``PrivateKernelRegressor.plan`` returns.

    Attributes
    ----------
    budget_plan : BudgetPlan or None
        How the budget would be shared. None if the budget suffices for a private mean only.
    n_stages : int
        The number of stages.
    relative_error : float
        The expected mean squared error divided by the variance of y. A constant prediction has 1.
        The number assumes that half of the variance is noise, and that the other half is a smooth
        function of the inputs, drawn from the prior of the first stage on inputs that fill the box
        evenly; 0.5 is then the best possible. Use it to compare settings: what your table contains
        is unknown before a fit.
    """

    budget_plan: BudgetPlan | None
    n_stages: int
    relative_error: float

    def _repr_html_(self) -> str:
        """Return the numbers as a table, for notebooks."""
        error = f"{self.relative_error:.2f} of the variance of y (a constant: 1)"
        return html_table([("expected squared error", error), ("stages", self.n_stages)])


def outlook(
    plan: BudgetPlan | None, mechanisms: dict[str, Mechanism], n_rows: int, spectrum: Array
) -> Outlook:
    """Return what the releases of one target would give under the stated assumption."""
    if plan is None:
        (mean,) = (m for name, m in mechanisms.items() if name in ("mean", "mean, target 1"))
        noise = (mean.noise_scale / (calibration.STEPS * n_rows)) ** 2
        # the mean is clipped to the range
        return Outlook(None, 0, 1 + noise / (1 + noise) / _OUTSIDE)
    state = first_state(spectrum, 0.0, 1.0)
    truth = state.variances.copy()
    truth[1:] *= _SIGNAL / truth[1:].sum()
    state = replace(state, variances=truth)
    for number in range(1, len(plan.stages) + 1):
        label = f"stage {number}"
        mechanism = mechanisms.get(label) or mechanisms[f"{label}, target 1"]
        assert isinstance(mechanism, ObjectivePerturbation)
        stage = stage_of(state, n_rows, plan, mechanism)
        left, noise_of = state.variances.copy(), stage.errors(n_rows)
        prior = left[stage.used]
        left[stage.used] = prior * noise_of / (prior + noise_of)
        spread = math.sqrt(1 - _SIGNAL + float(left.sum()))
        known = plan.scale > 0
        state = replace(state, variances=left, scale=min(spread, 1.0) if known else state.scale)
    return Outlook(plan, len(plan.stages), 1 - _SIGNAL + min(float(state.variances.sum()), _SIGNAL))
