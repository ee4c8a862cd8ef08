"""Partial dependence with a band for the noise.

The line is the mean prediction if one column is changed, over an even pattern of points in the
declared ranges; it reads no row of the table. How far may the noise have moved it? The table is
made up, so we can afford to fit it twelve times: the band holds all of these fits, and the line is
one of them. With real data you would fit once.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpkernel import PrivateKernelRegressor

rng = np.random.default_rng(0)
X = np.column_stack([rng.uniform(18, 90, 4000), rng.uniform(0, 10, 4000)])
y = 0.002 * (X[:, 0] - 50) ** 2 + 4 * X[:, 1] / (2 + X[:, 1]) + 0.5 * rng.normal(size=4000)
low, high = np.array([18, 0]), np.array([90, 10])
model = PrivateKernelRegressor(epsilon=0.3, bounds=(low, high), y_bounds=(-5, 15))
pattern = low + (high - low) * np.random.default_rng(1).uniform(size=(100, 2))


def dependence(column, values):
    points = np.repeat(pattern[None], len(values), axis=0)
    points[:, :, column] = values[:, None]
    return model.predict(points.reshape(-1, 2)).reshape(len(values), -1).mean(axis=1)


grids = [np.linspace(*ends, 40) for ends in zip(low, high, strict=True)]
curves = [[], []]
for _ in range(12):
    model.fit(X, y)
    for column, values in enumerate(grids):
        curves[column].append(dependence(column, values))

figure, panels = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
for axes, name, values, found in zip(
    panels, ("age (years)", "dose (mg)"), grids, curves, strict=True
):
    lowest, highest = np.min(found, axis=0), np.max(found, axis=0)
    axes.fill_between(values, lowest, highest, color="#cfe5f5", label="twelve fits")
    axes.plot(values, found[0], color="#0072b2", label="one fit, epsilon = 0.3")
    axes.set(xlabel=name)
panels[0].set(ylabel="predicted effect")
panels[1].legend(loc="lower right", fontsize="small")
plt.show()
