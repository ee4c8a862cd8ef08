"""How fast noise is drawn, as ratios in one run: ``make bench``.

Draws a second on one core of the exact discrete Gaussian and Laplace samplers on real entropy,
against NumPy's float normal (fast, and not private), against OpenDP's sampler where it is
installed, and what the entropy alone costs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
from rich.console import Console
from rich.table import Table

from dpkernel import OpenDPNoise, SystemNoise
from dpkernel.foundations.errors import ParameterError


def rate(action: Callable[[], object], count: int, repeats: int = 5) -> float:
    """Return the best of several measurements, in draws a second."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - start)
    return count / best


def main() -> None:
    """Measure and print."""
    n = 1 << 21
    source, plain = SystemNoise(), np.random.default_rng(0)
    rows = [("numpy float normal", rate(lambda: plain.standard_normal(n), n))]
    for scale in (5.3, 1000.7, 7e12):
        rows.append(
            (
                f"discrete Gaussian, s={scale:g}",
                rate(lambda s=scale: source.discrete_gaussian(s, n), n),
            )
        )
    rows.append(("discrete Laplace, t=1000.7", rate(lambda: source.discrete_laplace(1000.7, n), n)))
    rows.append(("entropy alone, 18.4 bytes a draw", rate(lambda: os.urandom(int(18.4 * n)), n)))
    try:
        exact = OpenDPNoise()
        rows.append(
            ("OpenDP, s=1000.7", rate(lambda: exact.discrete_gaussian(1000.7, 20_000), 20_000, 2))
        )
    except ParameterError as error:
        print(error)
    table = Table("what", "million draws a second", "share of numpy normal")
    for name, speed in rows:
        table.add_row(name, f"{speed / 1e6:.2f}", f"{speed / rows[0][1]:.3f}")
    Console().print(table)


if __name__ == "__main__":
    main()
