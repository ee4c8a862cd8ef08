"""Replays: a fit on neighbouring tables that follows the same released values.

A *replay* runs a fit on D, keeps every released value, and runs the same fit on a neighbour D' in which
every release returns what D's did. Both fits then choose the same clips, features, batches and starting
points, and two things can be compared, straight from the definition of differential privacy:

* what each mechanism was handed, before noise: it may move by the certified sensitivity and no more;
* everything that a fit leaves behind: with equal releases nothing may differ.

The one door is ``Mechanism.release``: every number that is computed from rows goes through it. The
answers of a curator go through ``NoisyFunction``, and a sketch of a sum through ``release_gram``.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from dpkernel import SeededNoise
from dpkernel.data.cells import as_numbers, column_names, has, take_rows
from dpkernel.data.domain import clip_rows
from dpkernel.data.labels import LabelShares
from dpkernel.estimators.regressor import BudgetPlan, kernel_choice, learning
from dpkernel.estimators.rkhs import FunctionProblem, FunctionTable
from dpkernel.foundations.types import Neighbours
from dpkernel.models.features import learned, whitened
from dpkernel.preprocessing import PrivateMinMaxScaler
from dpkernel.privacy.mechanisms import REGISTRY, GaussianMixing, Mechanism
from dpkernel.privacy.mechanisms.functional import NoisyFunction
from dpkernel.selection.losses import RowLoss
from dpkernel.solvers import objective_perturbation
from dpkernel.solvers.objective_perturbation import PRECISE

# a plan of the regressor that learns its kernel, for tables of any size
LEARNED = BudgetPlan(
    location=0.1,
    inputs=0.0,
    stages=(1.0, 1.2),
    scale=0.02,
    calibration=0.05,
    columns=(0.05, 0.05),
    dependence=0.05,
)

# and one that fits a mixture of kernels for the moments of the inputs
MIXTURE = BudgetPlan(
    location=0.1, inputs=0.1, stages=(1.0, 1.2), scale=0.02, calibration=0.05, mixture=True
)

# and one with a single fit that starts from what is declared
SINGLE = BudgetPlan(0.1, 0.0, (1.0,), 0.0, 0.0, clip=0.5, mixture=True)

BLANK = 12345.671875  # in the first column: the row is a null record, which contributes nothing
_MIXED = 40  # draws of the order of rows for a sensitivity that depends on it
_PROBES = (
    0.0,
    0.1,
    3.0,
    1e3,
)  # norms of points at which gradients are compared, besides the solution


class ReplayError(AssertionError):
    """The two fits did not make the same releases."""


@dataclass
class Seen:
    """One release: its mechanism, what it was handed, what came out and what steered it."""

    mechanism: Mechanism
    exact: Any
    released: Any
    guide: Any = None


class Replay:
    """Runs the same fit on several tables; the first one decides what is released.

    Parameters
    ----------
    monkeypatch : pytest.MonkeyPatch
    place : int
        The position of the row in which neighbours differ.
    """

    def __init__(self, monkeypatch: Any, place: int = -1) -> None:
        self._place = place
        self._first: list[Seen] = []
        self._began = False
        self._now: list[Seen] = []
        self._claims = 0
        self._inside: Mechanism | None = None  # whose release is being recorded
        self._solved: list[Any] = []
        self._answers: dict[bytes, Any] = {}
        self._asked: dict[bytes, tuple[Any, Any]] = {}
        self.curators: list[Any] = []
        for cls in REGISTRY.values():
            for name in ("release", "release_gram"):
                if name in vars(cls):
                    monkeypatch.setattr(cls, name, self._watched(getattr(cls, name)))
        monkeypatch.setattr(Mechanism, "_claim", self._claim_of(Mechanism._claim))
        monkeypatch.setattr(NoisyFunction, "__init__", self._heard(NoisyFunction.__init__))
        monkeypatch.setattr(
            objective_perturbation, "_newton", self._noted(objective_perturbation._newton)
        )
        make_quick(monkeypatch)
        _accept_blank_rows(monkeypatch)

    def run(self, fit: Any) -> tuple[Any, list[Seen]]:
        """Return what ``fit()`` returns, and its releases."""
        self._now, self._claims, self._asked = [], 0, {}
        found = fit()
        if not self._began:
            self._first, self._began = self._now, True
            self._answers = {key: value for key, (_, value) in self._asked.items()}
        elif len(self._now) != len(self._first):
            raise ReplayError(f"{len(self._now)} releases, where there were {len(self._first)}")
        return found, self._now

    # --- what is put in place of the library's own functions --------------------------------------

    def _claim_of(self, real: Any) -> Any:
        def claim(mechanism: Mechanism, noise: Any) -> SeededNoise:
            real(mechanism, noise)  # every check of the spend stays
            self._claims += 1
            return SeededNoise(self._claims)  # a stream of its own for each release

        return claim

    def _watched(self, real: Any) -> Any:
        @functools.wraps(real)
        def release(mechanism: Mechanism, value: Any, noise: Any) -> Any:
            if self._inside is mechanism:  # one release calls another's
                return real(mechanism, value, noise)
            outer, self._inside, self._solved = self._inside, mechanism, []
            try:
                return self._release(real, mechanism, value, noise)
            finally:
                self._inside = outer

        return release

    def _release(self, real: Any, mechanism: Any, value: Any, noise: Any) -> Any:
        kind, number = mechanism.kind, len(self._now)
        if isinstance(mechanism, GaussianMixing) and real.__name__ == "release":
            value = [value] if hasattr(value, "shape") else list(value)
        before = self._first[number] if number < len(self._first) else None
        if self._began and before is None:
            raise ReplayError("more releases than before")
        if before is not None and before.mechanism != mechanism:
            raise ReplayError(f"another mechanism than before: {mechanism} for {before.mechanism}")
        guide = None if before is None else before.guide
        if before is None:
            released = real(mechanism, value, noise)
        else:
            mechanism._claim(noise)
            released = before.released
        if "objective" in kind:
            if before is not None:
                self._solved = [guide[0]]  # b and D's solution: nothing is solved again
                value(guide[1])
            exact, guide = self._objective(mechanism, guide)
        elif kind == "sampled-gaussian":
            exact = [value(batch) for batch in self._batches(mechanism)]
        elif kind == "mixture-gaussian" and callable(value):
            exact = [value(SeededNoise(seed)) for seed in range(_MIXED)]
        elif isinstance(mechanism, GaussianMixing):
            exact = value if real.__name__ == "release_gram" else _gram(value, mechanism)
        else:
            exact = value
        exact = (
            [np.array(part, dtype=np.float64) for part in exact]
            if isinstance(exact, list)
            else np.array(exact, dtype=np.float64)
        )
        self._now.append(Seen(mechanism, exact, released, guide))
        return _copied(released)

    def _batches(self, mechanism: Any) -> list[Any]:
        n = mechanism.n_rows
        place = self._place % n
        return [np.arange(n), np.array([place]), np.arange(n)[::2], np.arange(n)[1::2]]

    def _noted(self, real: Any) -> Any:
        """Keep the problem that a solver is handed inside an objective perturbation."""

        @functools.wraps(real)
        def newton(records: Any, problem: Any, b: Any, threads: int, origin: Any = None) -> Any:
            if self._inside is None:
                return real(records, problem, b, threads, origin)
            known = self._solved[0] if self._solved else None
            found = real(records, problem, b, threads, origin) if known is None else known
            self._solved = [found, records, problem, np.array(b)]
            return found

        return newton

    def _objective(self, mechanism: Any, guide: Any) -> tuple[list[Any], Any]:
        """Return gradients and Hessians of the losses at a few points, and what leads there again."""
        solution, records, problem, b = self._solved
        if guide is None:
            drawn = self._full_b(mechanism)
            rng = np.random.default_rng(0)
            probes = [solution] + [norm * _unit(rng.normal(size=len(solution))) for norm in _PROBES]
            guide = (solution, drawn, probes)
            gradient = records.sums(solution)[0] + problem.ridge * solution + b
            if not np.linalg.norm(gradient) <= mechanism.error:
                raise ReplayError("the minimiser misses the tolerance that output noise hides")
        if not problem.strength >= mechanism.ridge * (1 - 1e-12):
            raise ReplayError("the ridge is smaller than certified")
        sums = [records.sums(beta, PRECISE) for beta in guide[2]]
        return [part for pair in sums for part in pair], guide

    def _full_b(self, mechanism: Any) -> Any:
        """Return the b that D's release drew, from its stream."""
        source = SeededNoise(self._claims)
        if mechanism.kind.startswith("pure"):
            return source.l2_gamma(mechanism.dimension, mechanism.scale)
        steps = source.discrete_gaussian(mechanism.sigma / mechanism.grid, mechanism.dimension)
        return steps.astype(np.float64) * mechanism.grid

    def _heard(self, real: Any) -> Any:
        """Let a curator's function say what D's said, and keep what it would have said."""

        def init(noisy: Any, function: Any, kernel: Any, mechanism: Any, *rest: Any) -> None:
            self.curators.append((kernel, mechanism))

            def told(points: Any) -> Any:
                exact = np.asarray(function(points)[0])
                self._asked[points.tobytes()] = points[0], exact
                return np.array([self._answers.get(points.tobytes(), exact)])

            real(noisy, told, kernel, mechanism, *rest)

        return init

    def asked(self) -> dict[bytes, tuple[Any, float]]:
        """Return the points that a curator was asked since the last run began, and exact answers."""
        return dict(self._asked)


def make_quick(monkeypatch: Any) -> None:
    """Leave out what takes longer than a fit of a few rows and reads none of them.

    That is to ask BLAS for its threads, and thousands of public points from which features are
    computed.
    """
    quick = {"block_threads": lambda *sizes: contextlib.nullcontext(1), "SAMPLE": 128}
    for module in _modules():
        for name in quick.keys() & vars(module).keys():
            monkeypatch.setattr(module, name, quick[name])
    monkeypatch.setattr(
        learning, "box_mixture", functools.lru_cache(learning.box_mixture.__wrapped__)
    )
    monkeypatch.setattr(kernel_choice, "_GRADIENTS", 128)
    monkeypatch.setattr(whitened, "_SAMPLE", 256)
    monkeypatch.setattr(learned, "sizes_of", lambda n: (max(64, 2 * n), max(256, 8 * n)))


def _modules() -> list[types.ModuleType]:
    """Return the modules of the library that were imported."""
    return [module for name, module in list(sys.modules.items()) if name.startswith("dpkernel")]


def _unit(vector: Any) -> Any:
    return vector / np.linalg.norm(vector)


def _copied(released: Any) -> Any:
    return released.copy() if isinstance(released, np.ndarray) else released


def _gram(blocks: list[Any], mechanism: Any) -> Any:
    rows = np.vstack([np.asarray(block, dtype=np.float64) for block in blocks])
    rows = clip_rows(rows, mechanism.sensitivity.value)
    return rows.T @ rows


# --- null records ---------------------------------------------------------------------------------


def _accept_blank_rows(monkeypatch: Any) -> None:
    """Let a row of a table in memory that starts with ``BLANK`` be a null record: n counts it.

    The library has no such row: a null record is what proofs under zero-out compare with. Wherever rows
    enter, one that is marked is left out of every sum and keeps its place in n.
    """
    from dpkernel.data import people, sources
    from dpkernel.preprocessing import rows as transformers

    open_source, open_units = sources.open_source, people.open_units

    def marked(X: Any) -> Any:
        if column_names(X) is not None and not has(X, "to_delayed"):  # a data frame or Arrow table
            return as_numbers(X)[:, 0] == BLANK
        if sparse.issparse(X):
            return X[:, [0]].toarray().ravel() == BLANK
        if type(X).__module__.startswith("torch"):
            return X[:, 0].numpy() == BLANK
        return X[:, 0] == BLANK if isinstance(X, np.ndarray) else np.zeros(1, bool)

    def unmarked(X: Any, blank: Any) -> Any:
        return take_rows(X, np.flatnonzero(~blank)) if column_names(X) else X[~blank]

    def opened(estimator: Any, X: Any, y: Any, **options: Any) -> Any:
        blank = marked(X)
        if not blank.any():
            return open_source(estimator, X, y, **options)
        if isinstance(y, LabelShares):
            targets: Any = LabelShares(y.values[~blank])
        else:
            targets = (y if type(y).__module__.startswith("torch") else np.asarray(y))[~blank]
        found = open_source(estimator, unmarked(X, blank), targets, **options)
        return replace(found, n_rows=X.shape[0])

    def opened_units(estimator: Any, X: Any, y: Any, groups: Any) -> Any:
        blank, ids = marked(X), np.asarray(groups)
        if not blank.any():
            return open_units(estimator, X, y, groups)
        found = open_units(estimator, unmarked(X, blank), np.asarray(y)[~blank], ids[~blank])
        return replace(found, n_rows=len(np.unique(ids)))

    def counted(table: Any, target: Any = None, names: Any = None) -> Any:
        blank = marked(table)
        if not blank.any():
            return rows_of_table(table, target, names)
        found = rows_of_table(table[~blank], None if target is None else target[~blank], names)
        return replace(found, source=replace(found.source, n_rows=table.shape[0]))

    rows_of_table, solved = transformers.rows_of_table, FunctionTable.solved
    counts, fit = RowLoss.counts, FunctionProblem.fit

    def function_solved(table: Any, problems: Any) -> Any:
        source = table.source
        blank = marked(source.X)
        if blank.any():  # blank rows are counted and nothing else
            kept = {"X": source.X[~blank], "y": source.y[~blank]}
            table = replace(table, source=replace(source, **kept))
        return solved(table, problems)

    def function_fit(problem: Any, X: Any, y: Any, weights: Any = None) -> Any:
        # as many dimensions as there are rows
        return fit(replace(problem, n_rows=len(y)), X, y, weights)

    def losses(loss: Any, model: Any, X: Any, y: Any) -> Any:
        found, blank = counts(loss, model, X, y), marked(X)
        return np.where(blank, 0, found) if blank.any() else found

    scale = PrivateMinMaxScaler.transform

    def scaled(step: Any, X: Any) -> Any:
        found, blank = scale(step, X), marked(X)
        if blank.any():
            found[blank, 0] = BLANK  # a null record stays one in a pipeline
        return found

    monkeypatch.setattr(PrivateMinMaxScaler, "transform", scaled)
    new = {open_source: opened, open_units: opened_units, rows_of_table: counted}
    for module in _modules():
        for name in ("open_source", "open_units", "rows_of_table"):
            real = vars(module).get(name)
            if real in new and module not in (sources, people):
                monkeypatch.setattr(module, name, new[real])
    averaged = people._averaged

    def with_blank_people(source: Any, places: Any, X: Any, *rest: Any) -> Any:
        found, y = averaged(source, places, X, *rest)
        blank = X[:, 0] == BLANK
        found[blank] = X[blank]  # a blanked person is a null record
        return found, y

    monkeypatch.setattr(people, "_averaged", with_blank_people)
    monkeypatch.setattr(FunctionTable, "solved", function_solved)
    monkeypatch.setattr(FunctionProblem, "fit", function_fit)
    monkeypatch.setattr(RowLoss, "counts", losses)


# --- how far a statistic moved -------------------------------------------------------------------


def ratios(before: list[Seen], after: list[Seen], folds: int = 1) -> dict[tuple[str, str], float]:
    """Return the move of every release as a share of its certified sensitivity: the largest by kind.

    The draws of one mechanism on disjoint folds must not move together: all but one stay.
    """
    found: dict[tuple[str, str], float] = {}
    moved_folds = 0
    for one, other in zip(before, after, strict=True):
        ratio = _ratio(one, other)
        moved_folds += ratio > 0
        name = one.mechanism.kind, one.mechanism.sensitivity.formula
        found[name] = max(found.get(name, 0.0), ratio)
    if folds > 1 and moved_folds > 1:
        raise ReplayError("one record moved several folds")
    return found


def _ratio(one: Seen, other: Seen) -> float:
    mechanism: Any = one.mechanism
    certified = mechanism.sensitivity.value
    if "objective" in mechanism.kind:
        moves = [a - b for a, b in zip(one.exact, other.exact, strict=True)]
        # a record's gradient keeps its direction wherever it is taken: the profile rests on it
        directions = 2 if mechanism.sensitivity.neighbours is Neighbours.REPLACE_ONE else 1
        sizes = np.linalg.svd(np.array(moves[::2]), compute_uv=False)
        if (sizes[directions:] > 1e-9 * certified).any():
            raise ReplayError("the gradient of one record turns")
        slopes = max(float(np.linalg.norm(move)) for move in moves[::2]) / certified
        bends = max(float(np.linalg.norm(move, 2)) for move in moves[1::2]) / mechanism.curvature
        return max(slopes, bends)
    if mechanism.kind == "gaussian-mixing":
        values = np.linalg.eigvalsh(one.exact - other.exact)
        if len(values) > 2 and np.sort(np.abs(values))[-3] > 1e-6 * certified**2:
            raise ReplayError("more than one record changed")
        return float(np.sqrt(np.abs(values).max())) / certified
    if mechanism.kind == "exponential":
        moves = one.exact - other.exact
        if mechanism.monotone and moves.min() < -2 * mechanism.rounding and moves.max() > 0:
            raise ReplayError("utilities moved both ways")
        return float(np.abs(moves).max()) / (certified + 2 * mechanism.rounding)
    if isinstance(one.exact, list):
        moves = [_norm(mechanism, a - b) for a, b in zip(one.exact, other.exact, strict=True)]
        if mechanism.kind == "mixture-gaussian":
            return _law_ratio(mechanism.sensitivity, np.array(moves))
        return max(moves) / certified
    allowed = certified + 2 * getattr(mechanism, "rounding", 0.0)
    return _norm(mechanism, one.exact - other.exact) / allowed


def _norm(mechanism: Any, move: Any) -> float:
    if mechanism.kind == "symmetric-gaussian":  # the lower triangle counts, mirrored
        move = np.tril(move) + np.tril(move, -1).T
    order = 1 if mechanism.sensitivity.norm == "l1" else 2
    return float(np.linalg.norm(np.ravel(move), order))


def _law_ratio(law: Any, moves: Any) -> float:
    """Return the largest move over the law's largest; more than 1, too, if moves are too often long.

    The share of moves above a value may exceed its probability by 0.5: with 40 draws that happens by
    chance with probability exp(-2 40 0.5^2) = 2e-9 for each value.
    """
    values, chances = np.array(law.values), np.array(law.probabilities)
    for value in values:
        above = float(np.mean(moves > value * (1 + 1e-9)))
        if above > chances[values > value].sum() + law.tail + 0.5:
            return 2.0
    return float(moves.max()) / law.value


def function_ratio(kernel: Any, mechanism: Any, one: Any, other: Any) -> float:
    """Return how far a curator's function moved in the norm of its space, over the certified move.

    The functions of several targets count together.
    """
    points = np.array([point for point, _ in one.values()])
    moves = np.array([one[key][1] - other[key][1] for key in one]).reshape(len(points), -1)
    values, vectors = np.linalg.eigh(kernel(points))
    kept = values > 1e-9 * values.max()  # directions that rounding does not decide: a lower bound
    parts = (vectors.T @ moves)[kept] / np.sqrt(values[kept])[:, None]
    return float(np.linalg.norm(parts)) / mechanism.sensitivity.value


# --- everything that is left behind --------------------------------------------------------------


def walk(value: Any) -> dict[str, Any]:
    """Return every leaf that can be reached from a value, by its path: attributes, items, closures."""
    found: dict[str, Any] = {}
    seen: dict[int, str] = {}
    keep: list[Any] = []  # ids stay taken while the walk lasts

    def visit(path: str, thing: Any) -> None:
        if isinstance(thing, np.generic):
            thing = thing.item()
        if thing is None or isinstance(thing, (bool, int, float, complex, str, bytes)):
            found[path] = repr(thing)
            return
        parameters = getattr(type(thing), "__dataclass_params__", None)
        value = parameters is not None and parameters.frozen  # equal plans may share such objects
        if id(thing) in seen and not value:
            found[path] = f"-> {seen[id(thing)]}"
            return
        seen[id(thing)] = path
        keep.append(thing)
        found[path] = type(thing).__qualname__
        if isinstance(thing, np.ndarray) and thing.dtype != object:
            found[path] = (str(thing.dtype), thing.shape, thing.tobytes())
        elif isinstance(thing, np.ndarray):
            visit(f"{path}[:]", thing.tolist())
        elif isinstance(thing, dict):
            for key in thing:
                visit(f"{path}[{key!r}]", thing[key])
        elif isinstance(thing, (list, tuple)):
            for place, item in enumerate(thing):
                visit(f"{path}[{place}]", item)
        elif isinstance(thing, (set, frozenset)):
            visit(f"{path}{{}}", sorted(map(repr, thing)))
        elif isinstance(thing, (type, types.ModuleType, types.BuiltinFunctionType)):
            found[path] = thing.__name__
        elif isinstance(thing, types.MethodType):
            visit(f"{path}.__self__", thing.__self__)
            visit(f"{path}.__func__", thing.__func__)
        elif isinstance(thing, functools.partial):
            visit(f"{path}()", (thing.func, thing.args, thing.keywords))
        elif isinstance(thing, types.FunctionType):
            found[path] = thing.__qualname__
            cells = [cell.cell_contents for cell in thing.__closure__ or ()]
            visit(f"{path}()", (cells, thing.__defaults__, thing.__kwdefaults__))
        else:
            slots = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
            state = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
            state.update(getattr(thing, "__dict__", {}))
            for name, item in sorted(state.items()):
                visit(f"{path}.{name}", item)
            if not state and not hasattr(thing, "__dict__") and not slots:
                found[path] = type(thing).__qualname__  # a lock, a file: nothing to read

    visit("", value)
    return found


def differences(one: Any, other: Any) -> list[str]:
    """Return the paths at which two objects differ."""
    first, second = walk(one), walk(other)
    return sorted(
        path for path in first.keys() | second.keys() if first.get(path) != second.get(path)
    )
