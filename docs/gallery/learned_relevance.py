"""What the model looks at.

The target depends on three of eight columns. The regressor learns its kernel under the budget, and
`relevance_` says how much its prediction changes with each column. This picture costs nothing: it
is computed from the released model.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpkernel import PrivateKernelRegressor

rng = np.random.default_rng(0)
X = rng.uniform(0, 1, (6000, 8))
y = np.sin(6 * X[:, 0]) + 2 * X[:, 1] * X[:, 2] + 0.2 * rng.normal(size=6000)
model = PrivateKernelRegressor(epsilon=1.0, bounds=(0, 1), y_bounds=(-2, 4)).fit(X, y)

figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
names = [f"column {j + 1}" for j in range(8)]
used = ["#0072b2"] * 3 + ["#bbbbbb"] * 5
axes.barh(names, 100 * model.relevance_, color=used)
axes.invert_yaxis()
axes.set(xlabel="share of the change of the prediction (%)")
axes.set_title("blue: the target depends on this column; grey: it does not", fontsize="medium")
plt.show()
