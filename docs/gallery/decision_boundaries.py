"""Where a classifier changes its mind, at four budgets.

Two classes form a chessboard with four fields. The colour is the probability of a class that the
private model predicts, and the dotted lines are the true border. At epsilon = 0.1 the model has
hardly seen the pattern. With a larger budget, there is less noise and the border becomes sharp.
"""

import matplotlib.pyplot as plt
import numpy as np

from dpkernel import PrivateKernelClassifier

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (3000, 2))
y = np.where(X[:, 0] * X[:, 1] > 0, "same sign", "different signs")
side = np.linspace(-1, 1, 80)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)

figure, panels = plt.subplots(1, 4, figsize=(9, 2.6), layout="constrained")
for axes, epsilon in zip(panels, (0.1, 0.3, 1.0, 3.0), strict=True):
    model = PrivateKernelClassifier(
        epsilon=epsilon, classes=["different signs", "same sign"], bounds=(-1, 1)
    ).fit(X, y)
    chance = model.predict_proba(grid)[:, 1].reshape(80, 80)
    picture = axes.imshow(
        chance, origin="lower", extent=(-1, 1, -1, 1), vmin=0, vmax=1, cmap="PuOr"
    )
    axes.axhline(0, color="black", linestyle=":", linewidth=1)
    axes.axvline(0, color="black", linestyle=":", linewidth=1)
    axes.set(title=f"epsilon = {epsilon:g}", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
figure.colorbar(picture, ax=panels, label="probability of\n'same sign'")
plt.show()
