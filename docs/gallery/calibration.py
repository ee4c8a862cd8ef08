"""Are predicted probabilities right?

New, made-up rows are sorted by their predicted probability. In each tenth of them, the share of
the class is compared with the mean prediction. Points on the dotted line are right. The loss
`"logistic"` gives better probabilities than the default, which is made for decisions.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpkernel import PrivateKernelClassifier

rng = np.random.default_rng(0)


def rows(n):
    X = rng.uniform(-1, 1, (n, 2))
    chance = 1 / (1 + np.exp(-4 * np.sin(3 * X[:, 0]) - 2 * X[:, 1]))
    return X, rng.uniform(size=n) < chance


X, y = rows(8000)
X_new, y_new = rows(20_000)

figure, axes = plt.subplots(figsize=(4.6, 4.2), layout="constrained")
axes.plot([0, 1], [0, 1], ":", color="black", label="right")
for loss, marker in (("smoothed_hinge", "o-"), ("logistic", "s-")):
    model = PrivateKernelClassifier(
        epsilon=2.0, classes=[False, True], bounds=(-1, 1), loss=loss
    ).fit(X, y)
    predicted = model.predict_proba(X_new)[:, 1]
    tenths = np.array_split(np.argsort(predicted), 10)
    means = [predicted[tenth].mean() for tenth in tenths]
    axes.plot(means, [y_new[tenth].mean() for tenth in tenths], marker, label=f'loss="{loss}"')
axes.set(xlabel="predicted probability", ylabel="share of the class", aspect="equal")
axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
axes.legend(loc="upper left", fontsize="small")
plt.show()
