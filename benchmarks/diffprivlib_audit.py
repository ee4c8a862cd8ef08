"""diffprivlib's estimators under attack; in an environment of its own (``make audit-diffprivlib``).

Needs diffprivlib 0.6.6 with scikit-learn 1.6 and what dpkernel needs, and dpkernel on the path. Every
estimator is taken as it comes, with declared bounds; its noise follows from ``random_state``, which the
audit changes in every fit. The claim is (epsilon, 0) for a replaced record.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from diffprivlib.models import GaussianNB, LinearRegression, LogisticRegression, StandardScaler

from dpkernel.proof.audit import audit


def main() -> None:
    """Attack each and print its report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    epsilon = chosen.epsilon
    linear = {"epsilon": epsilon, "bounds_X": (-1, 1), "bounds_y": (-1, 1)}
    attacks = [
        (LinearRegression(**linear), "auto"),
        (LinearRegression(**linear, fit_intercept=False), "auto"),
        (LogisticRegression(epsilon=epsilon, data_norm=1.0), both_classes()),
        (GaussianNB(epsilon=epsilon, bounds=(-1, 1)), both_classes()),
        (GaussianNB(epsilon=epsilon, bounds=(-1, 1)), "opposite targets"),  # one class may be empty
        (StandardScaler(epsilon=epsilon, bounds=(-1, 1)), "auto"),
    ]
    options = {"trials": chosen.trials, "n_jobs": chosen.jobs, "random_state": 0, "n_rows": 10}
    for model, pair in attacks:
        report = audit(model, pair, claim=(epsilon, 0.0), **options)
        print(model, report, "", sep="\n", flush=True)


def both_classes() -> tuple[object, object]:
    """Return a pair in which the label of one record changes and both classes always occur."""
    X = np.linspace(-0.5, 0.5, 10)[:, None]
    X[0] = 1.0
    y = np.tile([0, 1], 5)
    other = y.copy()
    other[0] = 1
    return (X, y), (X, other)


if __name__ == "__main__":
    main()
