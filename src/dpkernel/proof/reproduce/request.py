"""The settings of a reproduction."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dpkernel.proof.reproduce.claims import Claim
from dpkernel.proof.reproduce.design import EPSILONS, REGULARISATIONS, ROWS
from dpkernel.proof.reproduce.repetitions import Grid
from dpkernel.proof.reproduce.songs import Songs, fetch_songs, load_songs

# as in the paper: M "from 10 to 1000", lambda in n^(-i/10), i = 0 .. 10
EXCERPT = (
    7000  # songs of which every repetition takes its rows, unless the whole table is asked for
)
FEATURES = (10, 20, 30, 50, 100, 200, 300, 500, 1000)
GRID = Grid(ROWS, EPSILONS, FEATURES, REGULARISATIONS)


@dataclass
class Request:
    """The settings of a reproduction."""

    out: Path
    command: str
    repetitions: int
    quick: bool = False
    data: Path | None = None
    progress: bool = True
    n_jobs: int = 2
    claim: Claim | None = None
    whole: bool = False
    grid: Grid = GRID
    _songs: list[Songs] = field(default_factory=list)

    def songs(self) -> Songs:
        """Return the Million Song table, which is read only once."""
        if not self._songs:
            found = load_songs(self.data or fetch_songs(self.out / "data"))
            self._songs.append(found if self.whole else found.excerpt(EXCERPT))
        return self._songs[0]
