"""A rival: boosted trees whose splits are random and whose leaves are noisy sums, in NumPy.

The splits of a tree (a column and a threshold per level) are drawn from the declared ranges alone, so
they cost nothing. A leaf holds the sum of the clipped gradients of its rows and their number, both with
Gaussian noise; a row is in one leaf of each tree. Maddock et al. (2022), "Federated boosted decision
trees with differential privacy", found such trees better than trees that pay for their splits. The
guarantee is that of all trees together, for one record that is added, removed or zeroed out.

This is a yardstick and not a product: the noise is pseudo-random and in floating point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from rival_network import softmax

COUNTS = 0.2  # share of the squared sensitivity that the numbers of rows take
CLIP = 0.5  # of a residual, where the target lies in [-1, 1]


@dataclass(frozen=True)
class Forest:
    """The public settings of one boosting run: an entry of ``FORESTS``."""

    trees: int
    depth: int
    rate: float


FORESTS = (
    Forest(100, 4, 0.2),
    Forest(300, 6, 0.1),
    Forest(300, 3, 0.1),
    Forest(300, 8, 0.2),
    Forest(100, 8, 0.5),
)


def public_forest(n_mu: float) -> int:
    """Return the entry of ``FORESTS`` for n times mu: few rows or little budget need few leaves."""
    return 0 if n_mu < 700 else 1


def predict_boosted(
    X: np.ndarray,
    targets: np.ndarray,
    X_test: np.ndarray,
    *,
    classes: bool,
    forest: Forest,
    sigma: float,
    seed: int,
) -> np.ndarray:
    """Return the scores of the test rows.

    ``sigma`` is the noise of a single release of sensitivity 1 at the budget; ``trees`` releases take
    its square root more.
    """
    draws = np.random.default_rng(seed)
    noise = sigma * math.sqrt(forest.trees)
    scores = np.zeros((len(X) + len(X_test), targets.shape[1]))
    everything, leaves = np.vstack([X, X_test]), 2**forest.depth
    for _ in range(forest.trees):
        columns = draws.integers(X.shape[1], size=forest.depth)
        cuts = draws.uniform(-1, 1, forest.depth)
        leaf = (everything[:, columns] > cuts) @ (1 << np.arange(forest.depth))
        now = scores[: len(X)]
        slopes = (softmax(now) if classes else now) - targets
        bound = math.sqrt(2) if classes else CLIP
        lengths = np.linalg.norm(slopes, axis=1, keepdims=True)
        slopes = slopes * np.minimum(1, bound / np.maximum(lengths, 1e-12))
        mine = leaf[: len(X)]
        sums = np.stack([np.bincount(mine, column, leaves) for column in slopes.T], axis=1)
        counts = np.bincount(mine, minlength=leaves).astype(float)
        sums += noise * bound / math.sqrt(1 - COUNTS) * draws.normal(size=sums.shape)
        counts += noise / math.sqrt(COUNTS) * draws.normal(size=leaves)
        floor = noise / math.sqrt(COUNTS)  # leaves with fewer rows than the noise are damped
        scores -= forest.rate * (sums / (np.maximum(counts, 0) + floor)[:, None])[leaf]
    return scores[len(X) :]
