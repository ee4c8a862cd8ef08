"""A fan chart of quantiles.

Seven quantiles of the waiting time, fitted together under one budget. The fan is wide in the
evening, when waiting times differ most. Quantiles never cross.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpkernel import PrivateQuantileRegressor

rng = np.random.default_rng(0)
hour = rng.uniform(0, 24, (8000, 1))
busy = 0.3 + np.exp(-(((hour[:, 0] - 18) / 4) ** 2))
wait = rng.gamma(2.0, 30 * busy)

shares = [0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95]
model = PrivateQuantileRegressor(
    epsilon=1.0, quantile=shares, bounds=(0, 24), y_bounds=(0, 240)
).fit(hour, wait)
clock = np.linspace(0, 24, 145)[:, None]
found = model.predict(clock).T

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for k, shade in zip(range(3), ("#cfe5f5", "#9ac8ea", "#56a5dc"), strict=True):
    name = f"{shares[k]:.0%} to {shares[-1 - k]:.0%}"
    axes.fill_between(clock[:, 0], found[k], found[-1 - k], color=shade, label=name)
axes.plot(clock, found[3], color="#08306b", label="median")
axes.set(xlabel="hour of arrival", ylabel="waiting time (minutes)", xlim=(0, 24), ylim=(0, None))
axes.set_xticks(range(0, 25, 4))
axes.legend(loc="upper left")
plt.show()
