"""People with several rows: every fit protects a whole person, whatever the number of their rows.

The neighbours here exchange a person with all their rows: 1, 2 or 50 of them for 1, or a blank. Every
case of ``test_replay`` is fitted with ``groups``.
"""

from __future__ import annotations

import itertools
import logging
import re
from typing import Any

import numpy as np
import pytest

from dpkernel import People
from dpkernel.data import people
from replay import BLANK, Replay, ReplayError, differences, ratios
from test_replay import CASES, HUGE, RELATIONS, ROUNDING

CASES_OF_PEOPLE = {name: case for name, case in CASES.items() if name != "GramStatistics"}
LAST = 23  # the id of the person who is exchanged; as many people as the cases of rows have rows


def others(labels: bool) -> tuple[Any, Any, Any]:
    """Return the rows of all other people, one to four for each, in mixed order."""
    rng = np.random.default_rng(11)
    ids = rng.permutation(np.repeat(np.arange(LAST), rng.integers(1, 5, LAST)))
    X = rng.uniform(-1, 1, (LAST, 2))[ids] + 0.1 * rng.normal(size=(len(ids), 2))
    y = rng.uniform(-1, 1, len(ids))
    return X, (y > 0).astype(float) if labels else y, ids


def with_person(labels: bool, rows: Any, targets: Any, first: bool) -> tuple[Any, Any, Any]:
    """Return the table in which the rows of the last person stand before or behind all others."""
    X, y, ids = others(labels)
    own = np.asarray(rows, dtype=float), np.asarray(targets, dtype=float), [LAST] * len(targets)
    parts = [own, (X, y, ids)] if first else [(X, y, ids), own]
    return tuple(np.concatenate(part) for part in zip(*parts, strict=True))


def exchanged(labels: bool, relation: str) -> list[tuple[Any, Any, Any]]:
    """Return a table and its neighbours, which differ in all rows of one person and their number."""
    rng = np.random.default_rng(12)
    low, high = (0.0, 1.0) if labels else (-HUGE, HUGE)
    start = ([[0.2, -0.3]], [low]) if relation == "replace-one" else ([[BLANK, 0.0]], [low])
    found = [with_person(labels, *start, first=False)]
    for count, target, first in itertools.product((1, 2, 50), (low, high), (True, False)):
        corner = np.full((count, 2), [1.0, 1.0 if target == low else -1.0])
        rows = corner if first else rng.uniform(-1, 1, (count, 2))
        rows[0] = [HUGE, -HUGE] if count > 1 and first else rows[0]
        found.append(with_person(labels, rows, [target] * count, first))
    return found


def worst_of_people(
    name: str, relation: str, record: str = "auto", few: bool = True
) -> tuple[float, list[str]]:
    """Return the largest move over the certified one, and what differed and was not released."""
    case = CASES_OF_PEOPLE[name]
    tables = exchanged(case.labels, relation)
    tables = tables[:1] + tables[1 :: 4 if case.slow else 2] if few else tables
    found, left_over = 0.0, set()
    with pytest.MonkeyPatch.context() as patch:
        replay = Replay(patch)
        fitted = []
        for X, y, ids in tables:
            groups = People(ids, record=record)
            fitted.append(
                replay.run(lambda: case.fit(X, y, relation, groups=groups))  # noqa: B023
            )
        for other, after in fitted[1:]:
            found = max(found, *ratios(fitted[0][1], after, case.folds).values())
            left_over.update(differences(fitted[0][0], other))
    return found, sorted(path for path in left_over if not path.endswith("._family"))


ALL = [(name, relation) for name, case in CASES_OF_PEOPLE.items() for relation in case.relations]


@pytest.mark.parametrize(("name", "relation"), ALL)
def test_no_person_moves_a_statistic_more_than_certified_and_nothing_else_differs(name, relation):
    found, left_over = worst_of_people(name, relation)
    print(name, relation, round(found, 4))
    assert 0 < found <= 1 + ROUNDING
    assert left_over == []
