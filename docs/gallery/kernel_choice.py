"""Choosing a kernel privately.

The target has waves that are shorter than the default length scale can follow. `PrivateSearchCV`
tries four length scales and two kernels and picks one, all under one budget. The choice itself is
private, too.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpkernel import PrivateKernelRidge, PrivateSearchCV

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (8000, 1))
y = np.sin(12 * X[:, 0]) + 0.3 * rng.normal(size=8000)
line = np.linspace(-1, 1, 300)[:, None]

ridge = PrivateKernelRidge(epsilon=2.0, bounds=(-1, 1), y_bounds=(-2, 2))
grid = {"length_scale": [0.05, 0.15, 0.4, 1.0], "kernel": ["gaussian", "laplace"]}
search = PrivateSearchCV(ridge, grid, epsilon=2.0).fit(X, y)
chosen = search.best_params_

figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
axes.plot(X[:, 0], y, ".", color="0.88", markersize=2)
axes.plot(line, np.sin(12 * line), "--", color="black", label="truth")
axes.plot(line, ridge.fit(X, y).predict(line), color="#d55e00", label="default length scale")
name = f"chosen: {chosen['kernel']}, length scale {chosen['length_scale']}"
axes.plot(line, search.predict(line), color="#0072b2", label=name)
axes.set(xlabel="x", ylabel="y", ylim=(-1.8, 2.3))
axes.legend(ncols=3, fontsize="small", loc="upper center")
plt.show()
