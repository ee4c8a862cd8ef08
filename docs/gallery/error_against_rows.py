"""More rows are worth more budget.

The error of a private model against the number of rows, for three budgets. The grey line is kernel
ridge regression without privacy. Where the noise dominates, ten times as many rows help about as
much as ten times the epsilon. Each point is the mean of three fits.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.kernel_ridge import KernelRidge

from dpkernel import PrivateKernelRegressor

rng = np.random.default_rng(0)
new = rng.uniform(-1, 1, (2000, 3))


def truth(X):
    return np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2]


def error(model, n):
    found = []
    for _ in range(3):
        X = rng.uniform(-1, 1, (n, 3))
        model.fit(X, truth(X) + 0.2 * rng.normal(size=n))
        found.append(np.mean((model.predict(new) - truth(new)) ** 2) / np.var(truth(new)))
    return np.mean(found)


sizes = [300, 1000, 3000, 10_000]
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
for epsilon, marker in ((0.1, "o-"), (1.0, "s-"), (10.0, "^-")):
    model = PrivateKernelRegressor(epsilon=epsilon, bounds=(-1, 1), y_bounds=(-3, 3))
    axes.loglog(sizes, [error(model, n) for n in sizes], marker, label=f"epsilon = {epsilon:g}")
open_model = KernelRidge(kernel="rbf", gamma=1.0, alpha=0.3)
axes.loglog(
    sizes[:3], [error(open_model, n) for n in sizes[:3]], "d-", color="#999999", label="no privacy"
)
axes.axhline(1, color="black", linestyle=":", linewidth=1)
axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
axes.minorticks_off()
axes.set(xlabel="number of rows", ylabel="squared error / variance")
axes.legend(loc="lower left", fontsize="small")
plt.show()
