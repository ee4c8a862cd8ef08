"""Where the budget of a fit goes.

One fit releases several things: where the target lies, how the inputs are distributed, a first
model, later models, and a histogram of the errors. `explain_budget` says which share of the budget
each of them took.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpkernel import PrivateKernelRegressor

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (5000, 3))
y = np.sin(4 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.2 * rng.normal(size=5000)
model = PrivateKernelRegressor(epsilon=1.0, bounds=(-1, 1), y_bounds=(-3, 3)).fit(X, y)
rows = model.explain_budget()

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
shares = [100 * row["share"] for row in rows]
bars = axes.barh([row["release"] for row in rows], shares, color="#0072b2")
axes.bar_label(bars, fmt="%.1f %%", padding=3, fontsize="small")
axes.invert_yaxis()
axes.set(xlabel="share of the budget (%)", xlim=(0, 1.15 * max(shares)))
plt.show()
