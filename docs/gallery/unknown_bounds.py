"""Finding the range of a column privately.

Somebody knows only that a laboratory value is surely between minus a million and plus a million.
`PrivateBounds` finds where the values lie, from two noisy histograms. The grey histogram is the
data, which nobody would publish; the blue lines are the released bounds at three budgets.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpkernel.preprocessing import PrivateBounds

rng = np.random.default_rng(0)
values = rng.lognormal(3.0, 0.5, (5000, 1))

figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
axes.hist(values[:, 0], 80, color="0.85", label="5000 values")
top = axes.get_ylim()[1]
budgets = ((0.1, "#56b4e9"), (0.3, "#0072b2"), (1.0, "#08306b"))
for place, (epsilon, colour) in enumerate(budgets):
    found = PrivateBounds(epsilon=epsilon, bounds=(-1e6, 1e6)).fit(values)
    low, high = np.ravel(found.bounds_[0])[0], np.ravel(found.bounds_[1])[0]
    height = top * (0.9 - 0.14 * place)
    axes.plot(
        [low, high],
        [height, height],
        "|-",
        color=colour,
        markersize=12,
        label=f"epsilon = {epsilon:g}",
    )
axes.set(xlabel="laboratory value", ylabel="rows")
axes.legend(loc="upper right", fontsize="small")
plt.show()
