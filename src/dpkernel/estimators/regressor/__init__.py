"""The most accurate private regression of the library, as a composition of small parts.

budget_plan.py   how the parts share the budget
releases.py      a mechanism for each part, fixed before any noise is drawn
location.py      where y lies and how far it spreads, from a noisy histogram
inputs.py        the law of the inputs, from noisy moments or histograms
stage.py         one robust fit of the residuals, by objective perturbation, and what it tells
kernel_choice.py families, scales and metric of the kernel, from released coefficients
scale.py         how large the residuals are, from a noisy histogram: scale, quantiles and mean
fitting.py       the parts one after the other, with a fixed kernel
learning.py      the parts one after the other, with a learned kernel
model.py         the estimator
"""

from dpkernel.estimators.regressor.budget_plan import BudgetPlan
from dpkernel.estimators.regressor.model import PrivateKernelRegressor

__all__ = ["BudgetPlan", "PrivateKernelRegressor"]
