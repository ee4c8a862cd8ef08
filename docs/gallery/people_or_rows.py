"""What it costs to protect people instead of rows.

There are always 6000 rows. They belong to 6000, 3000, 1200, 600 or 300 people. Protecting single
rows costs the same whatever the number of people. Protecting a person with all rows costs more if
there are fewer people: the same epsilon then has to hide more. Each point is the mean of three
fits.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpkernel import PrivateKernelRegressor

rng = np.random.default_rng(0)
new = rng.uniform(-1, 1, (2000, 2))


def truth(X):
    return np.sin(3 * X[:, 0]) + X[:, 1]


def error(people):
    X = rng.uniform(-1, 1, (6000, 2))
    y = truth(X) + 0.3 * rng.normal(size=6000)
    ids = np.arange(6000) % people
    found = []
    for groups in (None, ids):
        model = PrivateKernelRegressor(epsilon=1.0, bounds=(-1, 1), y_bounds=(-3, 3))
        model.fit(X, y, groups=groups)
        found.append(np.mean((model.predict(new) - truth(new)) ** 2) / np.var(truth(new)))
    return found


per_person = np.array([1, 2, 5, 10, 20])
rows, people = np.array(
    [np.mean([error(6000 // k) for _ in range(3)], axis=0) for k in per_person]
).T

figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
axes.loglog(per_person, people, "o-", color="#0072b2", label="protects a person with all rows")
axes.loglog(per_person, rows, "s-", color="#999999", label="protects one row")
axes.set_xticks(per_person, [str(k) for k in per_person])
axes.minorticks_off()
axes.set(xlabel="rows of each person", ylabel="squared error / variance")
axes.legend(loc="upper left")
plt.show()
