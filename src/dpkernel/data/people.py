"""Tables of people: all rows of a person become one record, before anything else reads them.

A model that is fitted to a table of people protects each person with all their rows, because every
proof of this library speaks of one record. Three facts make this exact:

1. **The record of a person is a function of that person's rows and of public numbers**, bit for
   bit. Ids are compared cell by cell (``cells.identity``). A hash of the row's own content picks a
   row, so the pick depends on no other row. Sums run through a person's rows one after the other
   with additions and products only, whose roundings do not depend on how the table is cut into
   blocks. So a neighbour that changes one person, whatever the number of their rows, changes one
   record.
2. **The order of the records is a secret uniform permutation.** Folds, validation parts and the
   blocks of a matrix product go by the position of a record, and a person who leaves would move all
   people behind them by one position. Let pi be uniform, and let M be private for tables whose
   records keep their positions. If a person u of D is replaced by v in D', pair every order of D
   with the order of D' in which v has the position of u and all others keep theirs. This pairs two
   uniform laws, and each pair of tables differs in one record, so M(pi D) and M(pi D') are mixtures
   with equal weights of pairs that are (epsilon, delta)-close. The hockey-stick divergence is
   jointly convex, so the mixtures are as close. The same holds for a person who is blanked.
3. **Only the number of people is public**, never the number of rows: it is in no size and in no
   message. Time and memory depend on it, and no guarantee of this library speaks of them.

Memory holds the ids of all rows and one record per person; rows are read in blocks, two or three
times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from dpkernel.data import chunks
from dpkernel.data.blocks import BlockStream, dense_rows, library_of, off_device
from dpkernel.data.cells import column_names, has, shape_of, units, untouched
from dpkernel.data.domain import Domain, Interval, Levels
from dpkernel.data.labels import LabelShares, as_labels
from dpkernel.data.passes import Passes
from dpkernel.data.sources import Source, open_source
from dpkernel.data.tables import framed, sizes_hidden
from dpkernel.data.weights import with_weights
from dpkernel.foundations.errors import DataError, NoRowsError, ParameterError, parameter_message
from dpkernel.foundations.types import Array, IntArray

RECORDS = ("near", "one", "mean")
MOST_SLOTS = 16  # the most rows of a person whose gradients are averaged
NEAR = 0.5  # a row counts if it is nearer than this in the unit box, whose sides are 2 wide
_SMALLER = 2.0**-60  # sums of so many times the largest float do not overflow
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_STEP = np.uint64(0x9E3779B97F4A7C15)

SAME_LENGTH = "X, y and groups must have the same number of rows."
NOT_DASK = "X is a Dask table, so y must be one, too."
_IN_MEMORY = (
    "People(ids, record='all') needs X as one table in memory: a NumPy array, a data frame or a SciPy"
    " sparse matrix. Use record='near' or record='one' for streams, Dask tables and tensors."
)
_SHAPES = "With groups, X must have two dimensions, y one or two, and groups one: an id per row."


@dataclass(frozen=True, repr=False)
class People:
    """Whose row each row is, and how the rows of a person become the one record that is protected.

    Parameters
    ----------
    ids : array of n ids
        The person of each row: numbers, texts, dates or tuples of them. The rows of a person need
        not be next to each other.
    record : {"auto", "near", "one", "mean", "all"}
        How the rows of a person become one record.

        - "one" takes one row, picked by a hash of its content.
        - "near" takes the mean of the picked row and of the person's rows near it. A row counts
          less the farther it is, up to a quarter of the declared range of a column. This needs
          declared ``bounds``.
        - "mean" takes the mean of all rows, which is wrong for a curved function unless these rows
          are close to each other.
        - "all" uses all rows, with weights. It is for ``PrivateKernelRidge`` and for SGD with noise
          on gradients, which takes the mean gradient of up to 16 rows of each person.
        - "auto" is "all" for a ridge with one fold on a table in memory, "near" for other models of
          a mean and for the two classifiers below if ``bounds`` are declared, and "one" for
          everything else, because averages would change the quantiles and the ranges that those
          estimate.

        ``PrivateKernelClassifier`` and ``PrivateKernelSVC`` take the shares of the labels of the
        rows that are averaged. SGD classifiers, pipelines and searches average only the person's
        rows with the label of the picked row.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel import People, PrivateKernelRegressor
    >>> rng = np.random.default_rng(0)
    >>> patients = np.repeat(np.arange(500), 4)
    >>> X = rng.uniform(-1, 1, (2000, 2)); y = X[:, 0]
    >>> model = PrivateKernelRegressor(bounds=(-1, 1), y_bounds=(-1, 1))
    >>> model.fit(X, y, groups=People(patients, record="one")).certificate_.unit
    'group'
    """

    ids: Any
    record: str = "auto"

    def __post_init__(self) -> None:
        known = ("auto", *RECORDS, "all")
        if not isinstance(self.record, str) or self.record not in known:
            allowed = "one of " + ", ".join(repr(name) for name in known)
            got = self.record if isinstance(self.record, str) else type(self.record).__name__
            raise ParameterError(parameter_message("People", "record", allowed, got))

    @classmethod
    def of(cls, groups: Any) -> People:
        """Return what was passed as ``groups``: ids, or ids with a rule."""
        return groups if isinstance(groups, cls) else cls(groups)

    def __repr__(self) -> str:
        return f"People(record={self.record!r}; the ids are not shown)"


@dataclass(frozen=True)
class PersonRule:
    """How the rows of one person become one record; all of it is public.

    Parameters
    ----------
    record : {"near", "one", "mean"}
        See ``People``.
    domain : callable
        Returns the declared domain for a number of columns and their names.
    target : Interval or Levels, optional
        The declared range or classes of y, if there are any.
    shares : bool
        Whether the record of a person may have several labels, each with its share.
    reads_target : bool
        Whether y is part of the record.
    missing : bool
        Whether X may have missing values.
    """

    record: str
    domain: Callable[[int, Any], Domain]
    target: Interval | Levels | None = None
    shares: bool = False
    reads_target: bool = True
    missing: bool = False

    @property
    def n_shares(self) -> int:
        """The number of classes whose shares a record has; 0 if it has one label or a number."""
        shared = self.shares and self.record != "one" and self.reads_target
        return len(self.target.values) if shared and isinstance(self.target, Levels) else 0


@sizes_hidden()
def table_of_people(
    estimator: Any, X: Any, y: Any, ids: Any, rule: PersonRule, order: Callable[[int], IntArray]
) -> tuple[Any, Any]:
    """Return X and y with one row per person, in the container of X, or raise before a spend.

    ``order`` draws the secret order of n people. A stream or a Dask table becomes an array or a
    data frame in memory.
    """
    if y is None and not isinstance(X, BlockStream):
        rule = replace(rule, reads_target=False)
    places, n_people = units(_checked_ids(X, y if rule.reads_target else None, ids))
    classes = rule.target if isinstance(rule.target, Levels) and rule.reads_target else None
    source = _open_rows(estimator, X, y, rule, classes, len(places))
    if isinstance(rule.target, Interval) and rule.reads_target:
        rule.target.check_targets(source.target_shape, type(estimator).__name__)
    names = column_names(X)
    domain = None if rule.record == "one" else rule.domain(source.n_columns, names)
    rows, targets = _records(source, places, n_people, rule, domain)
    drawn = order(n_people)
    rows, targets = rows[drawn], targets[drawn]
    if classes is not None and not rule.n_shares:
        targets = as_labels(classes)[targets.astype(np.int64)]
    if source.kind == "torch":
        from dpkernel.data.tensors import torch

        kind = X.dtype if X.is_floating_point() else torch.float64  # a mean is no whole number
        rows = torch.as_tensor(rows, dtype=kind, device=X.device)
        numeric = targets.dtype.kind in "biuf"
        targets = torch.as_tensor(targets, device=y.device) if numeric else targets
    elif names is not None:
        rows = framed(rows, X)
    if rule.n_shares:
        return rows, LabelShares(targets)
    return rows, targets if rule.reads_target else None


# --- whose rows ---------------------------------------------------------------------------------


def _checked_ids(X: Any, y: Any, ids: Any) -> Any:
    """Return one id per row, in memory; no message tells a number of rows."""
    name = getattr(ids, "name", None)
    if name is not None and name in set(column_names(X) or ()):
        raise ParameterError(
            f"The column {name!r} holds the ids in groups and is also a column of X. Drop it from X:"
            " a model must not learn from ids. If it is another column, give one of them another name."
        )
    cells = _all_ids(ids)
    if not _one_dimension(cells):
        raise DataError(_SHAPES)
    if isinstance(X, BlockStream):
        lengths = {X.n_rows}
    elif library_of(X) == "dask":
        given = [X] if y is None else [X, y]
        if not all(has(value, "to_delayed") for value in given):
            raise DataError(NOT_DASK)
        lengths = {chunks.count_rows(value) for value in given}
    else:
        if library_of(y) == "dask":
            raise DataError("y is a Dask table, so X must be one, too.")
        shapes = [shape_of(X)] if y is None else [shape_of(X), shape_of(y)]
        if [len(shape) for shape in shapes] not in ([2], [2, 1], [2, 2]):
            raise DataError(_SHAPES)
        if any(0 in shape[1:] for shape in shapes):
            raise DataError("X and y must have at least one column.")
        lengths = {shape[0] for shape in shapes}
    if lengths != {len(cells)}:
        raise DataError(SAME_LENGTH)
    if not len(cells) and not isinstance(X, BlockStream):  # a stream is opened, and refused then
        raise NoRowsError("X has no rows.")
    return cells


def row_numbers(X: Any) -> IntArray:
    """Return an id per row, so that each row of a stream or a Dask table is a person of its own."""
    n_rows = X.n_rows if isinstance(X, BlockStream) else chunks.count_rows(X)
    return np.arange(n_rows)


def is_in_memory(X: Any) -> bool:
    """Return whether a table is an array, a sparse matrix or a data frame."""
    return not isinstance(X, BlockStream) and library_of(X) not in ("dask", "torch")


def _one_dimension(groups: Any) -> bool:
    """Whether groups are one id per row; a list of tuples is."""
    if isinstance(groups, (list, tuple)):
        return not any(isinstance(value, (list, np.ndarray)) for value in groups)
    sized = hasattr(groups, "__len__") and not isinstance(groups, (str, bytes))
    return sized and len(getattr(groups, "shape", (0,))) == 1


def _all_ids(ids: Any) -> Any:
    """Return ids in memory; chunks of a Dask column are joined without converting a cell."""
    if library_of(ids) != "dask":
        return off_device(ids)
    if len(ids.shape) != 1:
        raise DataError(_SHAPES)
    parts = [untouched(part) for part in chunks.computed(*chunks.row_chunks(ids))]
    alike = len({part.dtype for part in parts}) == 1
    return np.concatenate(parts if alike else [part.astype(object) for part in parts])


def _open_rows(
    estimator: Any, X: Any, y: Any, rule: PersonRule, classes: Levels | None, n_rows: int
) -> Source:
    """Return the rows, all of them checked."""
    streamed = isinstance(X, BlockStream) or library_of(X) == "dask"
    if not rule.reads_target and not isinstance(X, BlockStream):
        y = None if streamed else np.zeros(n_rows)
        X = off_device(X)
    try:
        return open_source(
            estimator,
            X,
            y,
            again=True,
            several=classes is None,
            classes=classes,
            missing=rule.missing,
            targets=rule.reads_target,
        )
    except DataError as error:
        if "declared with n_rows" in str(error):
            error.args = (SAME_LENGTH,)  # a new error would keep this one as its context
        raise


# --- all rows, with weights ----------------------------------------------------------------------


@sizes_hidden()
def open_units(estimator: Any, X: Any, y: Any, ids: Any) -> Source:
    """Return the table with every row's share of its unit; ``n_rows`` is the number of units.

    This is for a sum that uses all rows and certifies the rounding errors of any order of rows.
    """
    if not is_in_memory(X):
        raise ParameterError(_IN_MEMORY)
    if y is None:
        raise DataError(_SHAPES)
    shares, n_units = unit_shares(_checked_ids(X, y, ids))
    return replace(open_source(estimator, X, y), n_rows=n_units, shares=shares)


@sizes_hidden()
def open_slots(
    estimator: Any, X: Any, y: Any, ids: Any, order: Callable[[int], IntArray]
) -> Source:
    """Return one table per slot: up to ``MOST_SLOTS`` rows of each person, with shares as weights.

    All tables have one row per person, in one secret order, so the place of a row in its table does not
    depend on how many rows others have. An empty slot has the weight 0. This is for sums of gradients
    whose parts are clipped to their share of a person, in integers.
    """
    if not is_in_memory(X):
        raise ParameterError(_IN_MEMORY)
    if y is None:
        raise DataError(_SHAPES)
    slots = person_slots(X, y, ids, order, MOST_SLOTS)
    source = estimator._open_table(X, y)
    counts = np.sum([here for _, here in slots], axis=0)
    tables = []
    for rows, here in slots:
        table = replace(source, n_rows=len(rows), X=source.X[rows], y=source.y[rows])
        tables.append(with_weights(table, np.where(here, 1.0 / counts, 0.0)))
    return replace(tables[0], slots=MOST_SLOTS, more=tuple(tables[1:]))


def unit_shares(ids: Any) -> tuple[Array, int]:
    """Return 1 / (rows of its unit) for every row, and the number of units."""
    places, n_units = units(ids)
    return np.asarray(1.0 / np.bincount(places, minlength=n_units)[places]), n_units


def person_slots(
    X: Any, y: Any, ids: Any, order: Callable[[int], IntArray], most: int
) -> list[tuple[IntArray, Any]]:
    """Return numbers of rows, one per person in the secret order, and whether each counts.

    The entries of a person are up to ``most`` of their rows, spread evenly, in the order of the table.
    A person with fewer rows has their first row in the others, where it does not count. So a person
    stands at the same place whatever the numbers of rows of others.
    """
    places, n_people = units(_checked_ids(X, y, ids))
    counts = np.bincount(places, minlength=n_people)
    starts = np.cumsum(counts) - counts
    sorted_rows = np.argsort(places, kind="stable")
    drawn = order(n_people)
    found = []
    for slot in range(min(most, int(counts.max()))):
        here = slot < np.minimum(counts, most)
        spread = np.where(counts > most, (2 * slot + 1) * counts // (2 * most), slot)
        rows = sorted_rows[starts + np.where(here, spread, 0)]
        found.append((rows[drawn], here[drawn]))
    return found


# --- one record per person ----------------------------------------------------------------------


def _records(
    source: Source, places: IntArray, n_people: int, rule: PersonRule, domain: Domain | None
) -> tuple[Any, Array]:
    """Return the records of all people, in the order of their numbers."""
    rows = _picked(source, places, n_people)
    X, y = _rows_at(source, rows)
    if rule.record == "one":
        return X, y
    X = np.array(X.toarray() if sparse.issparse(X) else X, dtype=np.float64)
    assert domain is not None
    if rule.record == "mean" and any(isinstance(c, Levels) for c in domain.columns or ()):
        raise ParameterError(
            "A mean of declared levels is no level. Use People(ids, record='near') or record='one'."
        )
    return _averaged(source, places, X, y, rule, domain)


def _blocks(source: Source, places: IntArray) -> Iterator[tuple[Array, Array, IntArray, slice]]:
    """Yield rows, targets, the people of the rows, and the numbers of the rows."""
    start = 0
    for X, y in Passes(source).blocks():
        here = slice(start, start + len(X))
        yield X, np.asarray(y), places[here], here
        start = here.stop


def _picked(source: Source, places: IntArray, n_people: int) -> IntArray:
    """Return the number of the row of each person whose content has the smallest hash."""
    least = np.full(n_people, np.iinfo(np.uint64).max)
    rows = np.zeros(n_people, dtype=np.int64)
    for X, y, who, here in _blocks(source, places):
        hashes = content_hash(np.column_stack([X, y]))
        np.minimum.at(least, who, hashes)
        hits = np.flatnonzero(hashes == least[who])
        rows[who[hits]] = here.start + hits
    return rows


def content_hash(rows: Array) -> Any:
    """Return a 64-bit hash of each row's numbers, in which 0 and -0 are the same, as are all NaN.

    No secret rests on this hash. It only has to treat all rows of a person alike.
    """
    plain = np.where(rows == 0, 0.0, np.where(np.isnan(rows), np.nan, rows))
    bits = np.ascontiguousarray(plain.T).view(np.uint64)
    found = np.full(len(rows), _STEP)
    for column in bits:
        found = found + _STEP
        found ^= column
        found = (found ^ (found >> np.uint64(30))) * _FIRST
        found = (found ^ (found >> np.uint64(27))) * _SECOND
        found ^= found >> np.uint64(31)
    return found


def _rows_at(source: Source, rows: IntArray) -> tuple[Any, Array]:
    """Return the rows with these numbers, as floats, in this order."""
    if source.kind == "array":
        found = source.X[rows]
        return (found if sparse.issparse(found) else dense_rows(found, slice(None))), source.y[rows]
    order = np.argsort(rows)
    X = np.empty((len(rows), source.n_columns))
    y = np.empty((len(rows), *source.target_shape))
    first = 0
    for block, targets, _, here in _blocks(source, np.empty(0, np.int64)):
        last = int(np.searchsorted(rows[order], here.stop))
        some = order[first:last]
        X[some], y[some] = block[rows[some] - here.start], targets[rows[some] - here.start]
        first = last
    return X, y


def _averaged(
    source: Source, places: IntArray, X: Array, y: Array, rule: PersonRule, domain: Domain
) -> tuple[Array, Array]:
    """Return the weighted means of the people's rows; X and y are the picked rows.

    Only comparisons, sums, products and quotients of a person's own numbers occur, one row after
    the other, so each mean has the same bits in any table. The weight of a row at the distance r of
    the picked one is (1 - r^2 / NEAR^2)^2, and 0 from the distance NEAR on.
    """
    near, labels = rule.record == "near", isinstance(rule.target, Levels) and not rule.n_shares
    unit = domain.of_positions.to_unit(X) if near else X
    width, targets = X.shape[1], 0 if labels else rule.n_shares or y.reshape(len(y), -1).shape[1]
    sums, totals = np.zeros((width + targets, len(X))), np.zeros((width + targets, len(X)))
    for rows, values, who, _ in _blocks(source, places):
        weights = np.ones(len(rows))
        if near:
            weights = _nearness(domain.of_positions.to_unit(rows), unit, who)
        if labels:
            weights = np.where(values == y[who], weights, 0.0)
        columns = [rows] if labels else [rows, _averageable(values, rule)]
        for place, column in enumerate(_inside(np.column_stack(columns), domain, width).T):
            there = np.isfinite(column)
            known = np.where(there, column, 0.0) * _SMALLER
            np.add.at(sums[place], who, weights * known)
            np.add.at(totals[place], who, np.where(there, weights, 0.0))
    largest = np.finfo(np.float64).max
    with np.errstate(all="ignore"):  # a column that a person never filled in stays missing
        means = np.clip(sums / totals / _SMALLER, -largest, largest).T
    found = means[:, :width]
    for place, column in enumerate(domain.columns or ()):
        if isinstance(column, Levels):
            found[:, place] = X[:, place]
    if labels:
        return found, y
    return found, _shares(sums[width:]) if rule.n_shares else means[:, width:].reshape(y.shape)


def _shares(weights: Array) -> Array:
    """Return the share of each class in the weights of a person's rows, of shape (classes, people).

    They are divided by their own sum. A sum that the rows were added to one after the other would err
    in proportion to the number of rows, and the shares of a person with 10^5 rows would add up to more
    than 1.
    """
    parts = np.ascontiguousarray(weights.T)
    return np.asarray(parts / np.sum(parts, axis=1, keepdims=True))


def _nearness(rows: Array, picked: Array, who: IntArray) -> Array:
    """Return the weights of rows in the unit box, which fall with the distance from the picked row."""
    squares = np.zeros(len(rows))
    for place in range(rows.shape[1]):
        step = rows[:, place] - picked[who, place]
        squares += step * step
    left = np.maximum(1.0 - squares / NEAR**2, 0.0)
    return left * left


def _inside(values: Array, domain: Domain, width: int) -> Array:
    """Return values whose first columns are clipped to the declared intervals."""
    for place, column in enumerate((domain.columns or ())[:width]):
        if isinstance(column, Interval):
            np.clip(values[:, place], column.low, column.high, out=values[:, place])
    return values


def _averageable(values: Array, rule: PersonRule) -> Array:
    """Return clipped targets, or 1 in the column of the class of each row and 0 in the others."""
    if rule.n_shares:
        return np.asarray(values[:, None] == np.arange(rule.n_shares), dtype=np.float64)
    columns, target = values.reshape(len(values), -1), rule.target
    return np.clip(columns, target.low, target.high) if isinstance(target, Interval) else columns
