"""Attacks on the releases of private transformers: histograms and sums of several columns at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpkernel.data.domain import Interval
from dpkernel.foundations.types import Budget, IntArray, Neighbours
from dpkernel.preprocessing.grids import Cells
from dpkernel.preprocessing.search import GRID, pair_sums
from dpkernel.privacy import sensitivity
from dpkernel.privacy.mechanisms import Gaussian
from dpkernel.privacy.noise import Noise
from dpkernel.privacy.sensitivity import Sensitivity
from dpkernel.proof.audit.core import Case

_COLUMNS = 30


def preprocessing_cases(budget: Budget) -> list[Case]:
    """Return cases in which one record of a small table changes in every column."""
    cells = Cells(tuple(np.array([-1.0, 0.0, 1.0]) for _ in range(_COLUMNS)))
    tables = [np.vstack([np.full((3, _COLUMNS), 0.5), np.full((1, _COLUMNS), x)]) for x in (1, -1)]
    counts = [cells.count(table, clip=True)._values for table in tables]
    box = Interval(-1.0, 1.0)
    sums = [np.concatenate([pair_sums(column, box) for column in table.T]) for table in tables]

    def histograms(relation: Neighbours, columns: int) -> Sensitivity:
        return sensitivity.column_histograms(relation, columns=columns)

    def moments(relation: Neighbours, columns: int) -> Sensitivity:
        return sensitivity.column_moments(relation, columns=columns, bound=GRID)

    return [
        *_with_twins("column-histograms", histograms, counts, budget),
        *_with_twins("column-moments", moments, sums, budget),
    ]


def _with_twins(
    name: str,
    moved: Callable[[Neighbours, int], Sensitivity],
    values: list[IntArray],
    budget: Budget,
) -> list[Case]:
    def calibrated(relation: Neighbours, columns: int) -> Any:
        found = moved(relation, columns)
        return Gaussian.calibrate(found, budget, dimension=len(values[0]), integer=True)

    replaced = Neighbours.REPLACE_ONE
    sound = calibrated(replaced, _COLUMNS)
    direction = (values[1] - values[0]).astype(np.float64)
    direction /= np.linalg.norm(direction)

    def case(title: str, drawn: Any, broken: str | None, noisy: bool = True) -> Case:
        def run(far: bool, noise: Noise) -> float:
            value = values[int(far)]
            return float((drawn.release(value, noise) if noisy else value) @ direction)

        return Case(title, sound.profile(), drawn, run, broken)

    return [
        case(name, sound, None),
        case(f"{name}, one column counted", calibrated(replaced, 1), "other columns not counted"),
        case(f"{name}, un-noised", sound, "exact numbers", noisy=False),
    ]
