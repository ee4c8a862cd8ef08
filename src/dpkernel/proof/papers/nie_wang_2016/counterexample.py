"""Show that one random number does not protect a function: two data sets are always told apart.

For any two points x and x', r(x) - r(x') = f_z(x) - f_z(x') whatever b is. If the functions of two
neighbouring data sets differ by more than a constant, the released functions never agree. An
attacker who computes both differences then sees which data set was used. More noise does not help.

    python -m dpkernel.proof.papers.nie_wang_2016
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpkernel.foundations.types import Array
from dpkernel.proof.papers.nie_wang_2016.perturbed_risk import PublishedPerturbedRisk


@dataclass(frozen=True)
class Counterexample:
    """The result of ``trials`` releases from each of two neighbouring data sets.

    Attributes
    ----------
    differences : tuple of float
        r(x) - r(x') on the two data sets. Up to rounding it is the same in every release.
    spread : float
        The largest deviation from these in any release.
    guessed : float
        The share of releases whose data set the attacker named correctly.
    """

    epsilon: float
    noise_scale: float
    differences: tuple[float, float]
    spread: float
    guessed: float
    trials: int


def counterexample(
    epsilon: float = 0.5, *, loss: str = "squared", scale: str = "corrected", trials: int = 20
) -> Counterexample:
    """Release f_z + b for two neighbouring data sets, and tell them apart by two of its values."""
    inputs = np.linspace(-1, 1, 8)[:, None]
    labels = np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0])
    other = labels.copy()
    other[0] = -labels[0]
    points = np.array([[-1.0], [1.0]])

    def released(y: Array) -> Array:
        model = PublishedPerturbedRisk(epsilon, loss=loss, scale=scale, length_scale=0.5)
        return np.array([model.fit(inputs, y).decision_function(points) for _ in range(trials)])

    found = [values[:, 0] - values[:, 1] for values in (released(labels), released(other))]
    centres = float(np.median(found[0])), float(np.median(found[1]))
    spread = max(float(np.abs(f - c).max()) for f, c in zip(found, centres, strict=True))
    middle = (centres[0] + centres[1]) / 2
    sides = [
        np.sign(f - middle) == np.sign(c - middle) for f, c in zip(found, centres, strict=True)
    ]
    size = PublishedPerturbedRisk(epsilon, loss=loss, scale=scale, length_scale=0.5)
    noise_scale = size.fit(inputs, labels).noise_scale_
    guessed = float(np.mean(sides))
    return Counterexample(epsilon, noise_scale, centres, spread, guessed, 2 * trials)
