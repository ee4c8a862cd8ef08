"""The most accurate private regression of the library, as a composition of small parts.

budget_plan.py   how the budget is shared among the parts
releases.py      a mechanism for each of them, fixed before the first draw
location.py      where y lies and how far it spreads: a noisy histogram
inputs.py        the law of the inputs: noisy second moments
columns.py       the law of the inputs: noisy histograms, and moments of scores
stage.py         one robust fit of what is left, by objective perturbation
posterior.py     one robust fit with the prior inside the problem
kernel_choice.py families, scales and metric of the kernel, from released coefficients
scale.py         how large the residuals are: a noisy histogram
calibration.py   the mean of the residuals, to take a bias away
fitting.py       the parts one after the other, with a fixed kernel
learning.py      the same with a kernel that is learned
outlook.py       what to expect, before there are data
model.py         the estimator
"""

from dpkernel.estimators.regressor.budget_plan import BudgetPlan
from dpkernel.estimators.regressor.model import PrivateKernelRegressor
from dpkernel.estimators.regressor.outlook import Outlook

__all__ = ["BudgetPlan", "Outlook", "PrivateKernelRegressor"]
