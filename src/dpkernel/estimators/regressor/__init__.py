"""The most accurate private regression of the library, as a composition of small parts.

budget_plan.py   how the parts share the budget
releases.py      a mechanism for each part, fixed before any noise is drawn
location.py      where y lies and how far it spreads, from a noisy histogram
inputs.py        the law of the inputs, from noisy second moments
columns.py       the law of the inputs, from noisy histograms and moments of scores
stage.py         one robust fit of the residuals, by objective perturbation
posterior.py     one robust fit with the prior inside the problem
kernel_choice.py families, scales and metric of the kernel, from released coefficients
errors.py        quantiles of the errors, from the same histogram
scale.py         how large the residuals are, from a noisy histogram, and their mean
fitting.py       the parts one after the other, with a fixed kernel
learning.py      the parts one after the other, with a learned kernel
model.py         the estimator
"""

from dpkernel.estimators.regressor.budget_plan import BudgetPlan
from dpkernel.estimators.regressor.model import PrivateKernelRegressor

__all__ = ["BudgetPlan", "PrivateKernelRegressor"]
