"""Prediction intervals of a regressor.

The regressor releases a histogram of its errors. `predict_interval` uses it, with a margin for the
noise, so its intervals tend to contain more rows than requested, most of all with little data.
Each point is the share of 5000 new, made-up rows.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpkernel import PrivateKernelRegressor

rng = np.random.default_rng(0)


def rows(n):
    X = rng.uniform(-1, 1, (n, 2))
    return X, np.sin(3 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_t(4, size=n)


X_new, y_new = rows(5000)
requested = np.array([0.5, 0.6, 0.7, 0.8, 0.9, 0.95])

figure, axes = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
axes.plot([50, 100], [50, 100], ":", color="black", label="as requested")
for n, marker in ((2500, "s-"), (6000, "o-"), (16_000, "^-")):
    model = PrivateKernelRegressor(epsilon=1.0, bounds=(-1, 1), y_bounds=(-6, 6)).fit(*rows(n))
    found = []
    for share in requested:
        low, high = model.predict_interval(X_new, share).T
        found.append(100 * np.mean((low <= y_new) & (y_new <= high)))
    axes.plot(100 * requested, found, marker, label=f"{n:,} rows")
axes.set(
    xlabel="requested share (%)",
    ylabel="share of new rows inside (%)",
    xlim=(48, 101),
    ylim=(48, 101),
)
axes.legend(loc="lower right", fontsize="small")
plt.show()
