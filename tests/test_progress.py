"""How far a computation is: shares of nested parts, lines for pipes and notebooks, secrets kept."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from dpkernel import PrivateKernelRegressor, PrivateKernelRidge, PrivateSearchCV, SeededNoise
from dpkernel.estimators import progress
from dpkernel.estimators.progress import Mute, Parts, Shown, counted, heard


class Ear(Mute):
    def __init__(self):
        self.told = []

    def tell(self, share, text, *, ended):
        self.told.append((share, text, ended))


@pytest.fixture
def ear():
    found = Ear()
    with heard(found):
        yield found


class Clock:
    """A clock that tests move."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(progress, "_now", lambda: self.now)


def table(n=300):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n, 2))
    return X, X[:, 0]


def test_parts_inside_of_a_part_move_on_within_it(ear):
    outer = Parts(4)
    with outer.part("one", 1):
        pass
    with outer.part("two", 3):
        inner = Parts(2)
        for name in ("a", "b"):
            with inner.part(name):
                pass
    shares = [share for share, _, _ in ear.told]
    assert shares == sorted(shares) and shares[-1] == 1
    assert (0.25 + 0.75 / 2, "two, a", False) in ear.told
    assert [text for _, text, ended in ear.told if ended] == ["one", "two"]


def test_steps_are_counted(ear):
    with counted("steps", 10) as tell:
        tell(5)
    assert (0.5, "steps 5/10", False) in ear.told and ear.told[-1][0] == 1


def test_nobody_is_told_unless_somebody_asks(capsys):
    with Parts(1).part("x"), counted("y", 2) as tell:
        tell(1)
    assert capsys.readouterr() == ("", "")


def test_a_pipe_gets_lines_and_an_estimate_if_it_takes_long(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    parts = Parts(4, verbose=True)
    for name in "abcd":
        with parts.part(name):
            clock.now += 1.5
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["a", "b (50%, 0:03; about 0:03 left)", "c (75%, 0:04; about 0:01 left)", "d"]


def test_a_terminal_gets_a_bar_that_vanishes(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(
        progress, "Console", lambda: Console(file=screen, force_terminal=True, width=80)
    )
    parts = Parts(2, verbose=True)
    with parts.part("first part"):
        pass
    with pytest.raises(KeyError), parts.part("second part"):
        raise KeyError
    assert "part" in screen.getvalue() and "left:" in screen.getvalue()
    shown = Shown()
    assert shown._bar is not None and shown._bar.live.is_started
    shown.close()
    assert not shown._bar.live.is_started


@pytest.mark.parametrize("kernel", ["auto", "gaussian"])
@pytest.mark.parametrize("n", [60, 3000])
def test_the_parts_of_a_fit_add_up(ear, kernel, n):
    X, y = table(n)
    given = {"bounds": (-1, 1), "y_bounds": (-1, 1), "kernel": kernel, "n_features": 30}
    PrivateKernelRegressor(1.0, **given).fit(X, y)
    shares = [share for share, _, _ in ear.told]
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1)
    assert shares[-2] < 1 - 1e-9


def search(strategy, **options):
    ridge = PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-1, 1), n_features=10)
    grid = {"length_scale": [0.3, 1.0, 3.0]}
    return PrivateSearchCV(ridge, grid, epsilon=3.0, strategy=strategy, **options)


def test_a_search_tells_its_candidates(ear, capsys):
    search("exponential").fit(*table())
    told = [text for _, text, ended in ear.told if ended]
    assert told == [*(f"candidate {i} of 3" for i in (1, 2, 3)), "the chosen one on all rows"]
    assert ear.told[-1][0] == pytest.approx(1)


def test_a_search_prints_them_if_verbose(capsys):
    search("exponential", verbose=True).fit(*table())
    assert "candidate 2 of 3" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("refit", [True, False])
def test_random_stopping_keeps_the_number_of_its_runs(ear, capsys, refit):
    """What is told must be the same for every number of runs."""
    told = []
    for seed in range(4):
        ear.told.clear()
        given = {"noise": SeededNoise(seed), "verbose": True, "refit": refit}
        search("random-stopping", **given).fit(*table())
        told.append((list(ear.told), capsys.readouterr()))
    assert all(one == told[0] for one in told)
    assert told[0] == ([], ("", ""))
