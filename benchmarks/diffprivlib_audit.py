"""diffprivlib's estimators under attack; in an environment of its own, as ``diffprivlib_job.py``.

Needs diffprivlib 0.6.6 with scikit-learn 1.6 and what dpkernel needs, and dpkernel on the path. Every
estimator is taken as it comes, with declared bounds; its noise follows from ``random_state``, which the
audit changes in every fit. The claim is (epsilon, 0) for a replaced record.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
from diffprivlib.models import GaussianNB, LinearRegression, LogisticRegression, StandardScaler

from dpkernel.audit import audit


def main() -> None:
    """Attack each and print its report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    epsilon = chosen.epsilon
    models = [
        LinearRegression(epsilon=epsilon, bounds_X=(-1, 1), bounds_y=(-1, 1)),
        LinearRegression(epsilon=epsilon, bounds_X=(-1, 1), bounds_y=(-1, 1), fit_intercept=False),
        LogisticRegression(epsilon=epsilon, data_norm=1.0),
        GaussianNB(epsilon=epsilon, bounds=(-1, 1)),
        StandardScaler(epsilon=epsilon, bounds=(-1, 1)),
    ]
    for model in models:
        try:
            print(model, _report(model, chosen), "", sep="\n", flush=True)
        except Exception as error:  # on to the next: each stands for itself
            print(model, f"  not audited: {type(error).__name__}: {error}", "", sep="\n")


def _report(model: object, chosen: argparse.Namespace) -> object:
    options = {"trials": chosen.trials, "n_jobs": chosen.jobs, "random_state": 0, "n_rows": 10}
    claim = (chosen.epsilon, 0.0)
    if isinstance(model, LogisticRegression):  # both classes must occur: a record among others
        X = np.linspace(-0.5, 0.5, 10)[:, None]
        y = np.tile([0, 1], 5)
        X[0], other = 1.0, y.copy()
        other[0] = 1
        return audit(model, ((X, y), (X, other)), claim=claim, **options)
    return audit(model, claim=claim, **options)


if __name__ == "__main__":
    main()
