"""Residuals with and without privacy.

What does privacy cost? Both models are tested on the same new, made-up rows. The grey residuals
are those of kernel ridge regression without privacy, the blue ones those of the private model at
epsilon = 1. They are nearly as small. Residuals of real rows would be data, and must not be shown.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.kernel_ridge import KernelRidge

from dpkernel import PrivateKernelRegressor

rng = np.random.default_rng(0)


def rows(n):
    X = rng.uniform(-1, 1, (n, 2))
    return X, np.sin(4 * X[:, 0]) + X[:, 1] ** 2 + 0.2 * rng.normal(size=n)


X, y = rows(3000)
X_new, y_new = rows(1500)
private = PrivateKernelRegressor(epsilon=1.0, bounds=(-1, 1), y_bounds=(-2, 3)).fit(X, y)
public = KernelRidge(kernel="rbf", gamma=2.0, alpha=0.5).fit(X, y)
left = y_new - public.predict(X_new)
right = y_new - private.predict(X_new)

figure, (scatter, counts) = plt.subplots(1, 2, figsize=(8, 3.3), layout="constrained")
scatter.plot(left, right, ".", color="#0072b2", markersize=3, alpha=0.5)
scatter.axline((0, 0), slope=1, color="black", linestyle=":", linewidth=1)
scatter.set(xlabel="residual without privacy", ylabel="residual of the private model")
bins = np.linspace(-1, 1, 41)
counts.hist(left, bins, color="#999999", label="without privacy")
counts.hist(right, bins, histtype="step", color="#0072b2", linewidth=1.6, label="epsilon = 1")
counts.set(xlabel="residual", ylabel="new rows")
counts.legend(loc="upper right", fontsize="small")
plt.show()
