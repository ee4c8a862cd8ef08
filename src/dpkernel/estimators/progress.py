"""How far a computation is, for whoever waits for it.

Only public numbers may be told: the names, the number and the weights of parts, never how often a
solver iterated or how many rows a person has. A terminal shows a bar that vanishes. Everything else,
such as a notebook or a pipe, gets one line per part, with an estimate if it takes long.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_now = time.monotonic
_LONG = 2.0  # seconds from which on an estimate is shown


class Hearer(Protocol):
    """What is told how far a computation is."""

    def tell(self, share: float, text: str, *, ended: bool) -> None:
        """Take the finished share, and the name of the part that runs or has just ended."""

    def close(self) -> None:
        """Show nothing any more."""


_hearer: ContextVar[Hearer | None] = ContextVar("hearer", default=None)


@contextmanager
def heard(hearer: Hearer) -> Iterator[None]:
    """Tell a hearer how far everything inside is, in place of whoever asked for ``verbose``."""
    token = _hearer.set(hearer)
    try:
        yield
    finally:
        _hearer.reset(token)


class Mute:
    """A hearer that shows nothing."""

    def tell(self, share: float, text: str, *, ended: bool) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""


def watched() -> bool:
    """Whether somebody sees the output while it is written: on a terminal or in a notebook."""
    console = Console()
    return console.is_terminal or console.is_jupyter


class Shown:
    """Shows how far a computation is, on the console."""

    def __init__(self) -> None:
        self._console = Console()
        self._start = self._last = _now()
        self._bar: Progress | None = None
        if self._console.is_terminal and not self._console.is_jupyter:
            self._bar = Progress(*columns(), console=self._console, transient=True)
            self._bar.add_task("", total=1.0)
            self._bar.start()
            weakref.finalize(self, self._bar.stop)  # if a part that was planned never runs

    def tell(self, share: float, text: str, *, ended: bool) -> None:
        """Move the bar, or print a line when a part has ended or nothing was printed for long."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=share, description=text)
            return
        now = _now()
        waited, gone = now - self._last, now - self._start
        if ended or waited >= _LONG:
            known = gone >= _LONG and 0 < share < 1
            left = gone * (1 - share) / share if known else 0.0
            more = f" ({share:.0%}, {_clock(gone)}; about {_clock(left)} left)" if known else ""
            self._console.print(text + more, markup=False, highlight=False)
            self._last = now

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


def columns() -> tuple[ProgressColumn, ...]:
    """Return the columns of a bar: what runs, how far it is, for how long, and what is left."""
    name = TextColumn("{task.description}", markup=False)
    return name, BarColumn(), TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn()


class Parts:
    """The parts of a computation, one after the other.

    Parameters
    ----------
    total : float
        The sum of the weights of all parts. A weight is about the time that a part takes.
    verbose : bool
        Whether to show the parts if nobody else hears them.
    """

    def __init__(self, total: float, *, verbose: bool = False) -> None:
        self._total, self._verbose = total, verbose
        self._done = 0.0
        self._own: Hearer | None = None

    @contextmanager
    def part(self, text: str, weight: float = 1.0) -> Iterator[None]:
        """Tell that a part runs, and that it has ended. Parts inside of it move on within it."""
        hearer = _hearer.get()
        if hearer is None and self._verbose:
            hearer = self._own = self._own or Shown()
        if hearer is None:
            yield
            return
        hearer.tell(self._share(), text, ended=False)
        try:
            with heard(_Inside(hearer, text, self._share, weight / self._total)):
                yield
        except BaseException:
            hearer.close()
            raise
        self._done += weight
        hearer.tell(self._share(), text, ended=True)
        if self._own is not None and self._share() > 1 - 1e-9:
            self._own.close()

    def _share(self) -> float:
        return min(self._done / self._total, 1.0)


class _Inside(Mute):
    """Hears the parts of a part."""

    def __init__(self, outer: Hearer, text: str, before: Callable[[], float], share: float) -> None:
        self._outer, self._text, self._before, self._part = outer, text, before, share

    def tell(self, share: float, text: str, *, ended: bool) -> None:
        """Tell the outer hearer how far the whole is."""
        whole = min(self._before() + self._part * share, 1.0)
        self._outer.tell(whole, f"{self._text}, {text}", ended=False)


@contextmanager
def counted(text: str, total: int, *, verbose: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of steps that are done, of a public ``total``."""
    hearer = _hearer.get()
    own = Shown() if hearer is None and verbose else None
    told = hearer or own or Mute()
    try:
        yield lambda done: told.tell(min(done / total, 1.0), f"{text} {done}/{total}", ended=False)
        told.tell(1.0, f"{text} {total}/{total}", ended=True)
    finally:
        if own is not None:
            own.close()


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
