"""Four ways to learn the same curve.

The error of four private estimators against epsilon, on the same made-up table of 5000 rows. The
default regressor learns its kernel. The linear model can't follow the curve at any budget. The
classical ridge needs a large budget, because it adds noise to a whole matrix. [The
comparison](../comparison.md) measures other libraries on real tables. Each point is the mean of
three fits.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpkernel import PrivateKernelRegressor, PrivateKernelRidge
from dpkernel.methods import PrivateSGDRegressor

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (5000, 3))
new = rng.uniform(-1, 1, (2000, 3))


def truth(X):
    return np.sin(4 * X[:, 0]) + X[:, 1] * X[:, 2]


y = truth(X) + 0.2 * rng.normal(size=5000)
public = {"bounds": (-1, 1), "y_bounds": (-3, 3)}
models = {
    "PrivateKernelRegressor": PrivateKernelRegressor(**public),
    "PrivateSGDRegressor": PrivateSGDRegressor(**public),
    "PrivateKernelRidge": PrivateKernelRidge(**public),
    "PrivateKernelRidge, linear": PrivateKernelRidge(kernel="linear", **public),
}
budgets = [0.1, 0.3, 1.0, 3.0, 10.0]

figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for (name, model), marker in zip(models.items(), "osd^", strict=True):
    errors = []
    for epsilon in budgets:
        fits = [model.set_params(epsilon=epsilon).fit(X, y).predict(new) for _ in range(3)]
        errors.append(np.mean([np.mean((fit - truth(new)) ** 2) for fit in fits]))
    axes.loglog(budgets, np.array(errors) / np.var(truth(new)), f"{marker}-", label=name)
axes.axhline(1, color="black", linestyle=":", linewidth=1, label="a constant")
axes.set_xticks(budgets, [f"{epsilon:g}" for epsilon in budgets])
axes.minorticks_off()
axes.set(xlabel="epsilon", ylabel="squared error / variance")
axes.legend(loc="lower left", fontsize="small")
plt.show()
