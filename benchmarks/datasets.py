"""Tables for measuring: a folder of .npz files (X, y) with publicly declared bounds in bounds.json.

The folder is not part of the project; its place is the environment variable DPKERNEL_DATA.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits


@dataclass(frozen=True)
class Data:
    """A table, the declared range of its columns, and of its target or its classes."""

    name: str
    X: np.ndarray
    y: np.ndarray
    bounds: tuple[np.ndarray, np.ndarray]
    y_bounds: tuple[float, float] | None
    classes: list[Any] | None

    def split(self, n_train: int, seed: int, most: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of random training rows and of up to ``most`` others."""
        order = np.random.default_rng(seed).permutation(len(self.y))
        return order[:n_train], order[n_train:][:most]


def folder() -> Path | None:
    """Return the folder with the tables, or None if there is none."""
    place = Path(os.environ.get("DPKERNEL_DATA", ""))
    return place if (place / "bounds.json").is_file() else None


def load(name: str) -> Data | None:
    """Return a table, or None where it is not at hand; ``digits`` is always, from scikit-learn."""
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return Data(name, X, y, (np.zeros(64), np.full(64, 16.0)), None, list(range(10)))
    place = folder()
    if place is None or not (place / f"{name}.npz").is_file():
        return None
    with np.load(place / f"{name}.npz") as file:
        X, y = file["X"].astype(np.float64), file["y"]
    declared = json.loads((place / "bounds.json").read_text())[name]
    classes = declared.get("classes")
    if name == "covtype":  # the largest class against the others
        y, classes = (y == 2).astype(int), [0, 1]
    interval = None
    if classes is None:
        interval = (float(declared["target_low"]), float(declared["target_high"]))
        y = y.astype(np.float64)
    bounds = np.array(declared["low"], float), np.array(declared["high"], float)
    return Data(name, X, y, bounds, interval, classes)
