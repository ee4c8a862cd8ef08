"""Break the library on purpose, one line at a time, and see whether the tests notice.

``tools/mutants.toml`` lists the mutants. Each is one sentence about what it breaks, a file of
``src``, a text that occurs in it exactly once, the text that takes its place, and the tests of that
part which must fail. For each mutant the tree is a copy outside of the working tree, one file of it
is changed, and pytest runs these tests on the copy.

    killed     a test failed that passes without the change
    survived   all of them passed: the tests of this part do not see the break
    broken     the mutant proves nothing: its text is not found once, the changed file can't be
               imported or lacks a name, its tests fail without it, or they did not end in time

``make mutants`` runs all of them. ``tools/mutants.py ID ...`` runs those with these ids, and
``--changed`` those whose entry, source file or tests changed since they were run last. Results go to
``tests/mutants.csv``, where the other rows stay. A change elsewhere may also turn a verdict, so the
whole list is what counts before a release.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib
import multiprocessing
import os
import queue
import re
import shutil
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "mutants.toml"
TABLE = ROOT / "tests" / "mutants.csv"
COLUMNS = ("mutant", "file", "tests", "verdict", "killed_by", "seconds", "fingerprint")
LIMIT = 300  # seconds of one run with a change; without one all tests of a file run together
_COPIED = ("src", "tests", "tools", "docs", "pyproject.toml", "README.md", "CONTRIBUTING.md")
# what tests import beside the library: imported once, by the process of which all runs are forked
_PRELOADED = (
    "pytest", "hypothesis", "hypothesis.strategies", "numpy", "pandas", "polars", "pyarrow",
    "scipy.stats", "scipy.optimize", "scipy.sparse", "scipy.integrate", "sklearn.linear_model",
    "sklearn.model_selection", "sklearn.ensemble", "sklearn.utils.estimator_checks", "numba", "mpmath",
    "matplotlib.figure", "dp_accounting.pld.privacy_loss_distribution", "dp_accounting.rdp",
    "rich.progress", "typer",
)  # fmt: skip
_SERVER = multiprocessing.get_context("forkserver")
_COMPILED = (
    "solvers/sgd_compiled.py",
    "models/losses/slope.py",
)  # their numba caches are kept apart
# a failure of this kind is a slip in the mutant, not something that a test has seen
_SLIPS = re.compile(
    r"^E\s+(NameError|UnboundLocalError|SyntaxError|ImportError|ModuleNotFoundError)", re.M
)


@dataclass(frozen=True)
class Mutant:
    """One entry of the list."""

    id: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    only: str = ""  # an expression for pytest's -k

    @property
    def source(self) -> Path:
        """The file that is changed, in the tree."""
        return Path("src/dpkernel") / self.file

    @property
    def selection(self) -> tuple[str, ...]:
        """The arguments of pytest that choose the tests."""
        paths = tuple(f"tests/{name}" for name in self.tests)
        return (*paths, "-k", self.only) if self.only else paths

    def mutated(self, root: Path = ROOT) -> str:
        """Return the changed text of the file; ValueError if the old one is not there once."""
        text = (root / self.source).read_text(encoding="utf-8")
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"its old text occurs {count} times in {self.source}")
        return text.replace(self.old, self.new)

    def fingerprint(self, root: Path = ROOT) -> str:
        """Return a digest of the entry, the file and the tests."""
        found = hashlib.sha256(repr(self).encode())
        for path in (self.source, *(Path("tests") / name for name in self.tests)):
            found.update((root / path).read_bytes() if (root / path).exists() else b"missing")
        return found.hexdigest()[:12]


def read_list(path: Path = LIST) -> list[Mutant]:
    """Return the mutants of the list; ValueError if two have one id or an entry is not whole."""
    with path.open("rb") as file:
        entries = tomllib.load(file)["mutant"]
    found = [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    twice = [name for name, count in Counter(one.id for one in found).items() if count > 1]
    if twice:
        raise ValueError(f"several mutants have the id {', '.join(twice)}")
    return found


def read_table(path: Path = TABLE) -> dict[str, dict[str, str]]:
    """Return the rows of the result table by mutant."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {row["mutant"]: row for row in csv.DictReader(file)}


@dataclass(frozen=True)
class Outcome:
    """What a run of pytest came to: ``passed``, ``failed`` or ``broken``, and why."""

    state: str
    detail: str
    seconds: float


class Tree:
    """A copy of the tree in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self._caches = folder / "numba"
        self.root.mkdir(parents=True)
        for name in _COPIED:
            origin = ROOT / name
            if origin.is_dir():
                skipped = shutil.ignore_patterns("__pycache__", "_build", ".hypothesis")
                shutil.copytree(origin, self.root / name, ignore=skipped)
            elif origin.exists():
                shutil.copy2(origin, self.root / name)
        self.check()

    def run(self, selection: tuple[str, ...], mutant: Mutant | None = None) -> Outcome:
        """Run these tests, with the change of the mutant if there is one."""
        if mutant is None:
            return self._outcome(selection, self._caches / "unchanged", 10 * LIMIT)
        path = self.root / mutant.source
        text, times = path.read_bytes(), path.stat()
        compiled = mutant.file in _COMPILED
        caches = self._caches / (mutant.id if compiled else "unchanged")
        try:
            path.write_text(mutant.mutated(self.root), encoding="utf-8")
            return self._outcome(selection, caches, LIMIT)
        finally:
            path.write_bytes(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            for left in path.parent.glob(f"__pycache__/{path.stem}.*"):
                left.unlink(missing_ok=True)
            if compiled:
                shutil.rmtree(caches, ignore_errors=True)

    def check(self) -> None:
        """Raise RuntimeError if the tests would not import the copy."""
        state, place, _ = self._pytest(None, self._caches / "unchanged", LIMIT)
        if state != 0 or not Path(place).resolve().is_relative_to(self.root.resolve()):
            raise RuntimeError(f"The tests would import {place} and not the copy.")

    def _outcome(self, selection: tuple[str, ...], caches: Path, limit: int) -> Outcome:
        code, text, seconds = self._pytest(selection, caches, limit)
        shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)
        if code is None:
            return Outcome("broken", f"the tests took more than {limit} s", seconds)
        if code == 0:
            return Outcome("passed", "", seconds)
        failed = re.search(r"^FAILED \S*?tests/(.+?)(?: - .*)?$", text, re.M)
        if code != 1 or failed is None:
            last = text.strip().split("\n")[-1]
            return Outcome("broken", f"pytest ended with {code}: {last}", seconds)
        slip = _SLIPS.search(text)
        if slip:
            return Outcome("broken", f"{slip.group(1)} in {failed.group(1)}", seconds)
        return Outcome("failed", failed.group(1), seconds)

    def _pytest(
        self, selection: tuple[str, ...] | None, caches: Path, limit: int
    ) -> tuple[int | None, str, float]:
        """Return the exit code (None: not in time), the output and the seconds of one run."""
        start = time.monotonic()
        output = caches.parent / "output.txt"
        output.parent.mkdir(parents=True, exist_ok=True)
        child = _SERVER.Process(target=_in_copy, args=(self.root, caches, output, selection))
        child.start()
        child.join(limit)
        if child.is_alive():
            child.kill()
            child.join()
            return None, "", time.monotonic() - start
        return child.exitcode, output.read_text("utf-8", "replace"), time.monotonic() - start


def _in_copy(root: Path, caches: Path, output: Path, selection: tuple[str, ...] | None) -> None:
    """Run pytest on a copy, in a process of its own; without a selection tell what is imported."""
    with output.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update({"PYTHONPATH": str(root / "src"), "NUMBA_CACHE_DIR": str(caches)})
    os.chdir(root)
    sys.path[:0] = [str(root / "src")]
    sys.path[:] = [place for place in sys.path if place != str(ROOT / "src")]
    assert not any(name.partition(".")[0] == "dpkernel" for name in sys.modules)
    importlib.import_module(
        "numba"
    ).config.reload_config()  # the folder of caches is read at import
    if selection is None:
        print(importlib.import_module("dpkernel").__file__, flush=True)
        return
    options = ("-x", "-q", "-p", "no:cacheprovider")
    code = importlib.import_module("pytest").main([*options, *selection])
    sys.stdout.flush()
    os._exit(int(code))


class Workshop:
    """Copies of the tree that workers share, and what the tests do without any change."""

    def __init__(self, folder: Path, workers: int, mutants: list[Mutant]) -> None:
        self._trees: queue.Queue[Tree] = queue.Queue()
        for number in range(workers):
            self._trees.put(Tree(folder / f"worker{number}"))
        self._guard = threading.Lock()
        self._locks: dict[tuple[str, ...], threading.Lock] = {}
        self._unchanged: dict[tuple[str, ...], Outcome] = {}
        self._together: dict[tuple[str, ...], set[str]] = {}
        for mutant in mutants:
            self._together.setdefault(mutant.tests, set()).add(mutant.only)

    def judge(self, mutant: Mutant) -> dict[str, str]:
        """Return the row of the table."""
        verdict, detail, seconds = self._verdict(mutant)
        return {
            "mutant": mutant.id,
            "file": mutant.file,
            "tests": " ".join(mutant.tests),
            "verdict": verdict,
            "killed_by": detail,
            "seconds": f"{seconds:.1f}",
            "fingerprint": mutant.fingerprint(),
        }

    def _verdict(self, mutant: Mutant) -> tuple[str, str, float]:
        try:
            mutant.mutated()
        except (ValueError, OSError) as error:
            return "broken", str(error), 0.0
        before = self._before(mutant)
        if before.state != "passed":
            return "broken", f"without the change: {before.detail}", before.seconds
        found = self._run(mutant.selection, mutant)
        verdict = {"passed": "survived", "failed": "killed"}.get(found.state, "broken")
        return verdict, found.detail, found.seconds

    def _before(self, mutant: Mutant) -> Outcome:
        """Return what the mutant's tests do without a change.

        All chosen tests of a file run together, once; one by one only if that did not pass.
        """
        every = self._together[mutant.tests]
        joined = "" if "" in every else " or ".join(f"({only})" for only in sorted(every))
        found = self._once(replace(mutant, only=joined).selection)
        return found if found.state == "passed" else self._once(mutant.selection)

    def _once(self, selection: tuple[str, ...]) -> Outcome:
        with self._guard:
            lock = self._locks.setdefault(selection, threading.Lock())
        with lock:
            if selection not in self._unchanged:
                self._unchanged[selection] = self._run(selection, None)
            return self._unchanged[selection]

    def _run(self, selection: tuple[str, ...], mutant: Mutant | None) -> Outcome:
        tree = self._trees.get()
        try:
            return tree.run(selection, mutant)
        finally:
            self._trees.put(tree)


def chosen(mutants: list[Mutant], ids: list[str], changed: bool) -> list[Mutant]:
    unknown = set(ids) - {mutant.id for mutant in mutants}
    if unknown:
        raise SystemExit(f"There is no mutant {', '.join(sorted(unknown))} in {LIST.name}.")
    wanted = [mutant for mutant in mutants if not ids or mutant.id in ids]
    if changed:
        known = read_table()
        wanted = [
            mutant
            for mutant in wanted
            if known.get(mutant.id, {}).get("verdict") != "killed"
            or known[mutant.id]["fingerprint"] != mutant.fingerprint()
        ]
    return wanted


def write_table(mutants: list[Mutant], rows: dict[str, dict[str, str]]) -> None:
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[mutant.id] for mutant in mutants if mutant.id in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the mutants of tools/mutants.toml.")
    parser.add_argument("ids", nargs="*", help="run these alone")
    parser.add_argument(
        "--changed", action="store_true", help="run what changed since the last run"
    )
    parser.add_argument("--workers", type=int, default=2, help="runs of pytest at a time")
    arguments = parser.parse_args()
    mutants = read_list()
    wanted = chosen(mutants, arguments.ids, arguments.changed)
    rows = read_table()
    start, count = time.monotonic(), Counter[str]()
    os.environ.update({"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MPLBACKEND": "agg"})
    _SERVER.set_forkserver_preload(list(_PRELOADED))
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        workshop = Workshop(Path(folder), arguments.workers, wanted)
        with ThreadPoolExecutor(arguments.workers) as pool:
            for done in as_completed([pool.submit(workshop.judge, one) for one in wanted]):
                row = done.result()
                rows[row["mutant"]] = row
                count[row["verdict"]] += 1
                line = f"{row['verdict']:9} {row['mutant']:34} {row['seconds']:>6} s"
                print(f"{line}  {row['killed_by']}", flush=True)
                write_table(mutants, rows)
    found = ", ".join(f"{number} {verdict}" for verdict, number in sorted(count.items()))
    print(f"{len(wanted)} mutants in {time.monotonic() - start:.0f} s: {found or 'none to run'}")
    return 0 if count["killed"] == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
