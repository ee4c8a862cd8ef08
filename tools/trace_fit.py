"""Count the files and functions of dpkernel that one fit enters, for four estimators.

    python tools/trace_fit.py          # one line per estimator
    python tools/trace_fit.py ridge    # and the number of calls of every function in its fit

A reader who follows a fit opens these files. Everything is imported and compiled before; lambdas and
comprehensions do not count.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dpkernel
from dpkernel import PrivateKernelClassifier, PrivateKernelRegressor, PrivateKernelRidge
from dpkernel.methods import PrivateSGDRegressor

SOURCE = Path(dpkernel.__file__).parent
BOUNDS = {"bounds": (-1, 1), "y_bounds": (-2, 2)}
ESTIMATORS: dict[str, Callable[[], Any]] = {
    "regressor": lambda: PrivateKernelRegressor(**BOUNDS),
    "classifier": lambda: PrivateKernelClassifier(bounds=(-1, 1), classes=[0, 1]),
    "ridge": lambda: PrivateKernelRidge(**BOUNDS),
    "sgd": lambda: PrivateSGDRegressor(**BOUNDS),
}


def entered(work: Callable[[], Any]) -> Counter[tuple[str, int, str]]:
    """Return how often each function of dpkernel is called: (file, line, name)."""
    found: Counter[tuple[str, int, str]] = Counter()

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(SOURCE)):
            return
        if not code.co_name.startswith("<"):
            file = str(Path(code.co_filename).relative_to(SOURCE))
            found[file, code.co_firstlineno, code.co_qualname] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def main(names: list[str]) -> None:
    """Print the counts of the named estimators, or of all."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (3000, 3))
    y = X[:, 0] + 0.1 * rng.normal(size=len(X))
    for name in names or ESTIMATORS:
        target = (y > 0).astype(int) if name == "classifier" else y
        build = ESTIMATORS[name]
        build().fit(X, target)
        found = entered(lambda: build().fit(X, target))  # noqa: B023
        print(f"{name:<12}{len({file for file, _, _ in found}):4} files{len(found):5} functions")
        for (file, line, function), calls in sorted(found.items()) if names else ():
            print(f"{calls:6}  {file}:{line}  {function}")


if __name__ == "__main__":
    main(sys.argv[1:])
