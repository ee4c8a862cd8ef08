"""Private regression at four budgets.

All four lines were fitted to the same 2000 points. The one with the smallest epsilon protects most
and follows the truth least.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpkernel import PrivateKernelRegressor

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (2000, 1))
y = np.sin(5 * X[:, 0]) + 0.3 * rng.normal(size=2000)
line = np.linspace(-1, 1, 200)[:, None]

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
axes.plot(X[:, 0], y, ".", color="0.85", markersize=2)
axes.plot(line, np.sin(5 * line), "--", color="black", label="truth")
for epsilon in (0.03, 0.1, 0.3, 1.0):
    model = PrivateKernelRegressor(epsilon=epsilon, bounds=(-1, 1), y_bounds=(-3, 3)).fit(X, y)
    axes.plot(line, model.predict(line), label=f"epsilon = {epsilon:g}")
axes.set(xlabel="x", ylabel="y", ylim=(-2.2, 2.6))
axes.legend(ncols=5, fontsize="small", loc="upper center", columnspacing=1)
plt.show()
