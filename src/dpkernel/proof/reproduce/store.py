"""Keep the results of repetitions in a file, so that an interrupted experiment can continue.

There is one file per experiment, with one line of JSON per finished repetition. The file name has a
digest of the settings, which include the versions of the package and of the experiments. The first
line has all settings, so results of other settings are never mixed in. A line that was cut off is
ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.progress import Progress

from dpkernel.foundations.errors import DataError
from dpkernel.version import __version__

CODE_VERSION = 4  # of the experiments; raise it if a repetition would give another result


@dataclass(frozen=True)
class Cell:
    """The errors of one method at one (epsilon, M), for every lambda.

    ``n_features`` is 0 if the method chooses M itself, and ``epsilon`` is 0 if it is not private. The
    lists then have one entry, or one per lambda. ``excess`` is empty if f is not known.
    """

    method: str
    epsilon: float
    n_features: int
    error: tuple[float, ...]  # mean of (prediction - y)^2 over the test rows
    excess: tuple[float, ...] = ()  # mean of (prediction - f(x))^2


Job = Callable[..., list[Cell]]


class CellFiles:
    """The finished repetitions of one experiment."""

    def __init__(self, folder: Path, name: str, settings: dict[str, Any]) -> None:
        text = json.dumps(
            {"version": __version__, "code": CODE_VERSION, **settings}, sort_keys=True
        )
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        self.path = folder / f"{name}-{digest}.jsonl"
        self.settings = text

    def read(self) -> dict[int, list[Cell]]:
        """Return the cells of every finished repetition, by its number."""
        if not self.path.exists():
            return {}
        first, *lines = self.path.read_bytes().split(b"\n")
        if not (first or lines):
            return {}  # nothing was written yet
        if first != self.settings.encode():
            raise DataError(
                f"{self.path.name} was made with other settings. Delete it to run the experiment again."
            )
        found: dict[int, list[Cell]] = {}
        for line in lines:
            try:
                record = json.loads(line)
                found[int(record["repetition"])] = [_cell(cell) for cell in record["cells"]]
            except (ValueError, TypeError, KeyError):
                continue  # cut off, or not a repetition
        return found

    def append(self, repetition: int, cells: list[Cell]) -> None:
        """Write one repetition. If it is the first, the settings are written before it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"repetition": repetition, "cells": [asdict(cell) for cell in cells]})
        with self.path.open("ab+") as file:
            if file.tell() == 0:
                file.write(f"{self.settings}\n".encode())
            else:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # after a line that was cut off
                    file.write(b"\n")
            file.write(f"{line}\n".encode())

    def complete(
        self,
        repetitions: int,
        job: Job,
        arguments: Callable[[int], tuple[Any, ...]],
        *,
        progress: bool = True,
        n_jobs: int = 2,
    ) -> list[list[Cell]]:
        """Run the missing repetitions, and return the first ``repetitions`` ones in order."""
        done = self.read()
        missing = [number for number in range(repetitions) if number not in done]
        # processes start before the progress bar, whose thread would not survive a fork
        results = _start(missing, job, arguments, n_jobs)
        with Progress(disable=not progress) as bar:
            task = bar.add_task(self.path.stem, total=repetitions)
            bar.advance(task, repetitions - len(missing))
            for number, cells in results:
                self.append(number, cells)
                bar.advance(task)
        done = self.read()
        return [done[number] for number in range(repetitions)]


def _start(
    numbers: list[int], job: Job, arguments: Callable[[int], tuple[Any, ...]], n_jobs: int
) -> Iterator[tuple[int, list[Cell]]]:
    """Return every repetition as it ends. Several processes start at once."""
    if n_jobs == 1 or len(numbers) < 2:
        return ((number, job(number, *arguments(number))) for number in numbers)
    pool = ProcessPoolExecutor(n_jobs)
    waiting = {pool.submit(job, number, *arguments(number)): number for number in numbers}
    return _collect(pool, waiting)


def _collect(
    pool: ProcessPoolExecutor, waiting: dict[Future[list[Cell]], int]
) -> Iterator[tuple[int, list[Cell]]]:
    try:
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _cell(record: dict[str, Any]) -> Cell:
    return Cell(
        record["method"],
        record["epsilon"],
        record["n_features"],
        tuple(record["error"]),
        tuple(record["excess"]),
    )
