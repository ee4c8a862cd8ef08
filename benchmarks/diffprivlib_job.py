"""diffprivlib's linear regression on the tables of ``regression.py``; in an environment of its own.

``make bench-diffprivlib``: diffprivlib needs an old scikit-learn, so nothing of dpkernel is imported.
Declared bounds, intercept on, test error over the variance of the test targets (1: a constant), mean and
standard error over the splits of ``regression.py``. Its guarantee has delta = 0.
"""

from __future__ import annotations

import warnings

import numpy as np
from datasets import load
from diffprivlib.models import LinearRegression

EPSILONS = (0.1, 10**-0.5, 1.0, 10**0.5, 10.0)
SIZES = {"california": (1000, 16_000), "power": (7600,), "year": (1000, 5000), "concrete": (824,)}
SIZES |= {"airfoil": (1200,), "wine_white": (3900,), "kin40k": (16_000,), "diamonds": (16_000,)}


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    for name, sizes in SIZES.items():
        data = load(name)
        if data is None or data.y_bounds is None:
            print(f"{name}: not at hand (set DPKERNEL_DATA)")
            continue
        low, high = data.bounds
        inputs = 2 * (np.clip(data.X, low, high) - low) / (high - low) - 1
        for n in sizes:
            cells = []
            for epsilon in EPSILONS:
                errors = []
                for seed in range(5):
                    train, test = data.split(n, seed, 5000)
                    model = LinearRegression(
                        epsilon=epsilon, bounds_X=(-1, 1), bounds_y=data.y_bounds, random_state=seed
                    ).fit(inputs[train], data.y[train])
                    found = np.clip(model.predict(inputs[test]), *data.y_bounds)
                    errors.append(np.mean((found - data.y[test]) ** 2) / data.y[test].var())
                cells.append(f"{np.mean(errors):.3f} ({np.std(errors, ddof=1) / 5**0.5:.3f})")
            print(f"{name} {n}:", *cells, flush=True)


if __name__ == "__main__":
    main()
