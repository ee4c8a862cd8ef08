"""Row independence at the front door: one hostile row in every container, to every public callable.

``make front-door`` tries the full product of callables, containers and hostile cells; here every
container meets every cell, and every callable a part of both. Both print how many cases they tried.
"""

from __future__ import annotations

import ast
import datetime
import itertools
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import BaggingRegressor, VotingRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import front_door_cases as cases
from dpkernel import (
    BlockStream,
    Domain,
    Interval,
    Ledger,
    Levels,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateSearchCV,
    SeededNoise,
    private_score,
)
from dpkernel.data.cells import (
    as_numbers,
    column_names,
    identity,
    key,
    shape_of,
    take_rows,
    units,
    untouched,
)
from dpkernel.data.labels import label_codes
from dpkernel.data.people import unit_shares
from dpkernel.data.table_files import open_table
from dpkernel.data.table_files.schema import ColumnRule
from dpkernel.foundations.errors import DataError, DPKernelError, ParameterError
from dpkernel.methods import PrivateCurator, PrivateGridRegressor
from dpkernel.preprocessing import DeclaredCategories, PrivatePipeline
from dpkernel.selection.candidates import in_memory
from front_door_cases import HOSTILE, MEMORY, NO_CASE, OTHERS, PLACE, ROWS, STREAMS, TAKERS, TARGET
from front_door_judge import BrokenError, judge, refusal, same

CELLS = list(HOSTILE)
BY_ROW = [name for name in TAKERS if TAKERS[name].by_row]
CORE = ["Domain.to_unit", "Domain.to_unit (levels)", "DeclaredCategories.transform"]
LONG = ("SGD", "Search", "SVR", "SVC", "Pipeline")
PARTS = 16  # of the full product, for as many processes


def containers_of(name):
    return [*MEMORY, *(STREAMS if TAKERS[name].streams else ())]


def tried(name, pairs, record_property):
    """Judge callable ``name`` on pairs (container, cell); fail with all that is broken.

    How many cases were judged, and how many refused, is in the report of ``pytest --junitxml``.
    """
    count, broken = Counter(), []
    for container, cell in pairs:
        try:
            count[judge(name, container, cell)] += 1
        except BrokenError as error:
            broken.append(f"{container}, {cell}: {error}")
    record_property("cases", count["same"] + count["refused"])
    record_property("refused", count["refused"])
    assert not broken, "\n".join([f"{len(broken)} broken", *broken[:20]])
    assert count["same"]


def test_every_public_callable_that_takes_rows_is_tried():
    named = {name.partition(".")[0].partition("(")[0].split()[0] for name in TAKERS}
    missing = cases.public_takers() - named - set(cases.REASONS)
    assert not missing, f"add them to front_door_cases.takers: {sorted(missing)}"
    assert {"Levels", "PrivateKernelRidge", "private_score"} <= cases.public_takers()


@pytest.mark.parametrize("name", CORE)
def test_every_cell_in_every_container(name, record_property):
    tried(name, itertools.product(MEMORY, CELLS), record_property)


def some_pairs(name):
    """Return containers with a few cells, others for every callable, of which some are numbers.

    What is cheap meets every container. A fit meets every eighth, so that several fits meet each.
    """
    start = list(TAKERS).index(name)
    numbers = [cell for cell in CELLS if HOSTILE[cell][1] is not cases.NOT_A_NUMBER]
    step = 1 if TAKERS[name].by_row else 20 if any(part in name for part in LONG) else 8
    step *= (
        3
        if name in ("PrivateSearchCV(exponential).fit", "PrivateSearchCV(random-stopping).fit")
        else 1
    )
    for i, container in enumerate(containers_of(name)):
        if (i + start) % step == 0:
            yield container, numbers[(7 * i + 5 * start) % len(numbers)]
            yield container, CELLS[(11 * i + 3 * start) % len(CELLS)]


@pytest.mark.parametrize("name", [name for name in TAKERS if name not in CORE])
def test_every_callable_in_every_container(name, record_property):
    tried(name, some_pairs(name), record_property)


@pytest.mark.parametrize("container", ["list", "tuple", "object array", "frame of objects"])
def test_a_number_is_the_nearest_one_in_double_precision(container):
    for cell, (_, number) in HOSTILE.items():
        given = cases.table_of(container, cell)
        if number is not cases.NOT_A_NUMBER and given is not NO_CASE:
            found = as_numbers(given[0])[PLACE, 0]
            assert np.float64(found).tobytes() == np.float64(number).tobytes(), cell


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", TAKERS)
def test_the_full_product(name, part, record_property):
    pairs = list(itertools.product(containers_of(name), CELLS))
    tried(name, pairs[part::PARTS], record_property)


@pytest.mark.parametrize("shape", cases.SHAPES)
@pytest.mark.parametrize("container", ["list", "tuple", "list of arrays", "object array", "frame"])
def test_rows_of_other_lengths_are_refused_before_a_spend(container, shape):
    rows = [list(row) for row in ROWS]
    rows[PLACE] = cases.SHAPES[shape]
    try:
        X = MEMORY[container](rows)
    except Exception:
        return
    ledger = Ledger()
    with pytest.raises(DPKernelError) as caught:
        cases.estimator("PrivateKernelRidge", ledger).fit(X, TARGET)
    assert refusal(caught.value, ledger) == "refused"


# --- random cells ---------------------------------------------------------------------------------

ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=8),
    st.decimals(), st.fractions(), st.complex_numbers(), st.datetimes(), st.dates(), st.timedeltas(),
    st.times(), st.tuples(st.integers(), st.text(max_size=2)), st.lists(st.integers(), max_size=2),
)  # fmt: skip
NATURAL = [
    "list",
    "array",
    "object array",
    "frame",
    "frame of nullables",
    "read_csv",
    "polars",
    "arrow",
]


@settings(derandomize=True, max_examples=150, deadline=None)
@given(cell=ANYTHING, container=st.sampled_from(NATURAL), column=st.integers(0, 1))
def test_any_cell_leaves_the_others_alone(cell, container, column):
    try:
        X = MEMORY[container](cases.rows_with(cell, column))
    except (Exception, pl.exceptions.PanicException):
        return
    for name in CORE:
        usual = TAKERS[name].call(np.array(ROWS, dtype=float), None, None)
        try:
            found = TAKERS[name].call(X, None, None)
        except DataError:
            continue
        assert same(found, usual, OTHERS), name


@settings(derandomize=True, max_examples=150, deadline=None)
@given(cell=ANYTHING, container=st.sampled_from(sorted(cases.COLUMNS)))
def test_any_label_or_id_leaves_the_others_alone(cell, container):
    usual = Levels((0, 1)).indices(cases.LABELS)
    for known in (cases.LABELS, cases.IDS):
        values = list(known)
        values[PLACE] = cell
        try:
            column = cases.COLUMNS[container](values)
        except (Exception, pl.exceptions.PanicException):
            return
        try:
            if known is cases.LABELS:
                found = Levels((0, 1)).indices(column).ravel()
                assert found[OTHERS].tolist() == usual[OTHERS].tolist()
            elif container not in ("matrix", "column", "frame"):
                check_units(column)
        except DataError:
            continue


def check_units(column):
    """Every other row is in the unit of its id, the hostile one perhaps beside it."""
    shares, _ = unit_shares(column)
    usual = {i: sum(cases.IDS[j] == i for j in OTHERS) for i in set(cases.IDS)}
    counts = [round(1 / shares[i]) - usual[cases.IDS[i]] for i in OTHERS]
    joined = {cases.IDS[i] for i, more in zip(OTHERS, counts, strict=True) if more}
    assert set(counts) <= {0, 1} and len(joined) <= 1


# --- labels, targets and ids -----------------------------------------------------------------------

COLUMN_CELLS = list(itertools.product(cases.COLUMNS, CELLS))


@pytest.mark.parametrize(
    "levels", [(0, 1), ("0", "1"), (False, True), (0, 1, "secret"), ("0", "01", 1)]
)
def test_levels(levels):
    usual = Levels(levels).indices(cases.LABELS)
    assert (usual >= 0).all()
    for container, cell in COLUMN_CELLS:
        column = cases.column_of(container, "labels", cell)
        if column is NO_CASE:
            continue
        try:
            found = Levels(levels).indices(column).ravel()
        except DataError as error:
            refusal(error, Ledger())
            continue
        assert found[OTHERS].tolist() == usual[OTHERS].tolist(), (container, cell)


def test_ids():
    for container, cell in COLUMN_CELLS:
        column = cases.column_of(container, "ids", cell)
        if column is NO_CASE or container in ("matrix", "column", "frame"):
            continue
        try:
            check_units(column)
        except DataError as error:
            refusal(error, Ledger())
        except AssertionError as error:
            raise AssertionError((container, cell)) from error


NAN_IDS = {
    "tuples": [("a", float("nan"))] * 4,
    "flat index": pd.MultiIndex.from_tuples([("a", np.nan)] * 4).to_flat_index(),
    "records": np.array([(1, np.nan)] * 4, dtype=[("a", int), ("b", float)]),
    "sets": [frozenset(["a", float("nan")]) for _ in range(4)],
}


@pytest.mark.parametrize("kind", NAN_IDS)
def test_ids_with_a_missing_part_are_refused_before_a_spend(kind):
    ledger = Ledger()
    model = PrivateKernelRidge(bounds=(0, 10), y_bounds=(0, 1), ledger=ledger)
    with pytest.raises(DataError, match="An id in groups is missing") as caught:
        model.fit(np.zeros((4, 2)), np.zeros(4), groups=NAN_IDS[kind])
    refusal(caught.value, ledger)


def test_ids_are_the_same_person_in_every_type():
    for same_id in (
        (1, 1.0, True, "1", "1.0", b"1", np.int8(1), Decimal(1)),
        ("a", b"a", np.str_("a")),
    ):
        assert len({identity(one) for one in same_id}) == 1
    assert identity(900000000000000001) == identity("900000000000000001")
    assert identity("007x") != identity("7x")


@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "auc"])
def test_a_label_moves_a_score_by_its_own_row_at_most(metric):
    """The certified sensitivity is one range of the loss."""
    model, X = cases.fitted("PrivateKernelClassifier"), np.array(ROWS, dtype=float)
    usual = private_score(model, X, cases.LABELS, metric, (1e5, 1e-6), noise=SeededNoise(0)).value
    count = 0
    for container, cell in COLUMN_CELLS[:: 3 if metric == "accuracy" else 11]:
        column = cases.column_of(container, "labels", cell)
        if column is NO_CASE:
            continue
        ledger = Ledger()
        try:
            found = private_score(
                model, X, column, metric, (1e5, 1e-6), noise=SeededNoise(0), ledger=ledger
            ).value
        except DPKernelError as error:
            refusal(error, ledger)
            continue
        bound = {"accuracy": 1.0, "log_loss": 5.0}.get(metric)
        count += 1
        if bound is not None:
            assert abs(found - usual) <= (bound + 0.01) / len(X), (container, cell)
        else:  # a row of twelve is 1/6 of its class
            assert abs(found - usual) <= 0.5, (container, cell)
    assert count > 20


@pytest.mark.parametrize("container", ["list", "tuple", "array", "series", "category", "polars"])
def test_a_search_takes_targets_and_labels_of_every_container(container):
    """One text among numbers, for a target and for a label that is declared."""
    X = np.array(ROWS, dtype=float)
    values = list(TARGET)
    values[PLACE] = "0.5"
    model = PrivateKernelRidge(bounds=(0, 10), y_bounds=(0, 1), n_features=4)
    found = [
        PrivateSearchCV(model, {"regularisation": [0.1, 1.0]}, 50.0, noise=SeededNoise(0)).fit(X, y)
        for y in (cases.COLUMNS[container](values), np.array([float(v) for v in values]))
    ]
    assert same(*(cases.released(one) for one in found))
    labels = list(cases.LABELS)
    labels[PLACE] = "x"
    y = in_memory(X, cases.COLUMNS[container](labels))[1]
    codes = label_codes(y, Levels((0, 1, "x")))
    assert codes.tolist() == [2.0 if one == "x" else float(one) for one in labels]


@pytest.mark.parametrize("name", ["PrivateKernelRidge", "PrivateKernelRegressor", "PrivateCurator"])
def test_targets_of_every_container(name):
    X = np.array(ROWS, dtype=float)
    for i, (container, cell) in enumerate(COLUMN_CELLS):
        y = cases.column_of(container, "target", cell)
        if y is NO_CASE or i % 17 != len(name) % 17:
            continue
        ledger = Ledger()
        try:
            found = cases.released(cases.estimator(name, ledger).fit(X, y))
        except DPKernelError as error:
            refusal(error, ledger)
            continue
        plain = np.array(TARGET)
        number = HOSTILE[cell][1]
        plain[PLACE] = as_numbers(y)[PLACE] if number is cases.NOT_A_NUMBER else number
        wanted = plain[:, None] if np.ndim(y) == 2 and name == "PrivateKernelRidge" else plain
        assert same(found, cases.released(cases.estimator(name).fit(X, wanted))), (container, cell)


# --- types that one row decides -----------------------------------------------------------------------


def narrow_frame(far):
    """A frame downcast by its values; one row needs a wider type, which widens the whole table."""
    draws = np.random.default_rng(0)
    n = 200
    frame = pd.DataFrame({"a": draws.integers(0, 300, n), "b": 1e9 + draws.integers(0, 100, n)})
    frame.loc[7, "a"] = 40_000 if far else 299
    return frame.assign(
        a=pd.to_numeric(frame["a"], downcast="integer"), b=pd.to_numeric(frame["b"].astype("f4"))
    )


FAR = Domain.box([0, 1e9], [300, 1e9 + 100])


@pytest.mark.parametrize("build", [PrivateCurator, PrivateGridRegressor])
def test_the_working_type_does_not_come_from_the_table(build):
    """299 and 40,000 are one row after clipping; its type must not move the others."""
    found = []
    for far in (False, True):
        frame = narrow_frame(far)
        assert frame["a"].dtype == (np.int32 if far else np.int16)
        frame.loc[7, "a"] = 300  # clipped to the box in both
        frame = frame.astype({"a": np.int32 if far else np.int16})
        model = build(
            bounds=FAR, y_bounds=(0, 1), accept=("idealised-arithmetic",), noise=SeededNoise(0)
        )
        y = (frame["b"].astype("f8") - 1e9) / 100
        found.append(cases.released(model.fit(frame, y)))
    assert same(*found)


def dask_pair(odd, classifier):
    """Nanosecond timestamps within an hour; one cell of the second table is of another type.

    Each lies one above the middle of two floats of single precision, of which the lower is even: rounded
    once it becomes the upper one, and rounded to double precision first the lower.
    """
    import dask
    import dask.array as da

    draws, n = np.random.default_rng(1), 20_000
    middle = 1_780_000_000_000_000_000
    X = (middle // 2**38 + draws.integers(-3, 4, (n, 1))) * 2**38 + 2**36 + 1
    y = (X[:, 0] > middle).astype(float) if classifier else draws.uniform(0, 1, n)
    chunks = [X[i : i + 5000] for i in range(0, n, 5000)]
    if odd is not None:
        chunks[1] = chunks[1].astype(object)
        chunks[1][3, 0] = odd(int(chunks[1][3, 0]))
    parts = [da.from_delayed(dask.delayed(c), c.shape, dtype=float) for c in chunks]
    hour = 3600 * 10**9
    return da.concatenate(parts), da.from_array(y, 5000), (middle - hour, middle + hour)


@pytest.mark.parametrize(
    ("build", "odd"),
    [
        (PrivateKernelRegressor, str),
        (PrivateKernelClassifier, Decimal),
        pytest.param(PrivateKernelRegressor, Decimal, marks=pytest.mark.slow),
        pytest.param(PrivateKernelClassifier, str, marks=pytest.mark.slow),
        pytest.param(PrivateKernelRegressor, float, marks=pytest.mark.slow),
        pytest.param(PrivateKernelClassifier, float, marks=pytest.mark.slow),
    ],
)
def test_chunks_of_dask_keep_no_type_of_their_own(build, odd):
    """One cell makes objects of a chunk, and the release is that of whole numbers."""
    declared = {"classes": [0, 1]} if build is PrivateKernelClassifier else {"y_bounds": (0, 1)}
    found = []
    for kind in (None, odd):
        X, y, bounds = dask_pair(kind, "classes" in declared)
        model = build(bounds=bounds, n_features=4, noise=SeededNoise(0), **declared)
        found.append(cases.released(model.fit(X, y)))
    assert same(*found)


def test_entries_of_one_place_are_added_in_double_precision():
    """In int8, 100 + 100 is -56; one entry of 300 makes int16 of all."""
    found = []
    for kind in (np.int8, np.int16):
        data = np.array([100, 100, 10], dtype=kind)
        X = sparse.coo_array((data, ([0, 0, 1], [0, 0, 0])), shape=(2, 1))
        for table in (X, BlockStream.from_arrays(X, [0.0, 0.0])):
            model = PrivateKernelRidge(bounds=(-400, 400), y_bounds=(0, 1), noise=SeededNoise(0))
            model.fit(table, None if isinstance(table, BlockStream) else [0.0, 0.0])
            found.append(cases.released(model))
    assert all(same(found[0], other) for other in found)


def test_a_model_of_others_is_asked_in_double_precision():
    """private_score: LinearRegression computes in the type of the frame, which one row decides."""
    y = np.random.default_rng(2).uniform(0, 1, 200)
    model = LinearRegression().fit(narrow_frame(False).astype("f4"), y.astype("f4"))
    model.coef_, model.intercept_ = np.array([0.0, 0.01], "f4"), np.float32(-1e7)
    scores = []
    for far in (False, True):
        frame = narrow_frame(far)
        scores.append(
            private_score(
                model, frame, y, "mse", (1e6, 1e-6), y_bounds=(0, 1), noise=SeededNoise(0)
            ).value
        )
    assert abs(scores[0] - scores[1]) * len(y) <= 1.0


# --- declared categories ---------------------------------------------------------------------------


@pytest.mark.parametrize("hostile", ["x", None, float("nan"), 2.5, b"y", 3 + 0j])
@pytest.mark.parametrize(
    "build", [list, np.array, pd.DataFrame, lambda r: np.array(r, dtype=object)]
)
def test_one_cell_moves_no_other_to_other(build, hostile):
    """In its own column and in another one, with codes of 18 digits."""
    code = 900_000_000_000_000_001
    for column in (0, 1):
        rows = [[1, code] for _ in range(50)]
        encoder = DeclaredCategories([[1, 2], [code, 5]])
        usual = encoder.fit(rows).transform(build(rows))
        rows[9][column] = hostile
        try:
            found = encoder.transform(build(rows))
        except DataError as error:
            assert "Complex" in str(error)
            continue
        others = np.arange(50) != 9
        np.testing.assert_array_equal(found[others], usual[others])


@pytest.mark.parametrize(
    "values", [(2**53, 2**53 + 1), (1, "1"), (1, True), ("1", "1.0"), ("1", "True")]
)
def test_levels_that_a_container_can_make_equal_are_refused(values):
    with pytest.raises(ParameterError, match="different values"):
        Levels(values)


def narrowed(values):
    """Return a column as pandas narrows it where all of its values allow it."""
    return pd.to_numeric(pd.Series(values), downcast="float")


@pytest.mark.parametrize("levels", [(0.1, 0.7, 3), ("0.1", "0.7", "3"), (np.float32(0.1), 0.7, 3)])
def test_one_large_number_moves_no_fraction_to_other(levels):
    """A value that has no float32 keeps its whole column in double precision."""
    usual, wide = narrowed([0.1, 0.7, 3.0] * 20), narrowed([0.1, 0.7, 3.0] * 20 + [1e300])
    assert (usual.dtype, wide.dtype) == (np.float32, np.float64)
    for kind in (np.asarray, list, pa.array, pl.Series):
        for column in (usual, wide):
            assert Levels(levels).indices(kind(column)).tolist()[:60] == [0, 1, 2] * 20


@pytest.mark.parametrize("declared", [True, False])
def test_one_large_label_moves_a_score_by_its_own_row(declared):
    class Model:
        def predict(self, X):
            return np.array([0.1, 0.7])[np.asarray(X)[:, 0].astype(int)]

    model, X = Model(), np.tile([[0.0], [1.0]], (50, 1))
    if declared:
        model.classes_ = np.array([0.1, 0.7])
    scores = [
        private_score(model, X, narrowed(y), "accuracy", (1e5, 1e-6), noise=SeededNoise(0)).value
        for y in ([0.1, 0.7] * 50, [0.1, 0.7] * 49 + [0.1, 1e300])
    ]
    assert abs(scores[0] - scores[1]) <= 1.01 / len(X)


@pytest.mark.parametrize(
    ("levels", "kind"), [((2**24, 2**24 + 1), "f4"), ((0.1, 0.1 + 1e-12), "f4"), ((0.1, 1), "f2")]
)
def test_levels_that_a_narrow_column_can_not_hold_are_refused(levels, kind):
    assert Levels(levels).indices(np.array(levels)).tolist() == [0, 1]
    with pytest.raises(DataError) as caught:
        Levels(levels).indices(np.array(levels, dtype=kind))
    refusal(caught.value, Ledger())


def test_ids_that_a_narrow_column_can_not_hold_are_refused():
    ids = [2**24, 2**24 + 1]
    assert unit_shares(np.array(ids, dtype=float))[1] == 2
    with pytest.raises(DataError) as caught:
        unit_shares(np.array(ids, dtype="f4"))
    refusal(caught.value, Ledger())


def test_keys_of_dates_and_durations_do_not_depend_on_their_column():
    day = datetime.datetime(1969, 12, 31, 23, 59, 59, 999998)
    assert (
        key(day)
        == key(pd.Timestamp(day))
        == key(np.datetime64(day, "ns"))
        == key(np.datetime64(day))
    )
    span = datetime.timedelta(days=-1, microseconds=7)
    assert key(span) == key(pd.Timedelta(span)) == key(np.timedelta64(span)) != key(span * 2)
    frame = pd.DataFrame({"a": [span, span]})
    mixed = pd.DataFrame({"a": [span, "x"]})
    assert Levels((span,)).indices(frame["a"]).tolist() == [0, 0]
    assert Levels((span,)).indices(mixed["a"]).tolist() == [0, -1]


# --- masks and damaged cells --------------------------------------------------------------------------


def test_hidden_cells_are_missing():
    """A masked column does not train on what it hides."""
    table = np.ma.masked_array(np.array(ROWS, dtype=float), np.array([[True, False]] * len(ROWS)))
    ledger = Ledger()
    for name in ("PrivateKernelRidge", "PrivateKernelRegressor", "PrivateCurator"):
        with pytest.raises(DataError, match="NaN"):
            cases.estimator(name, ledger).fit(table, TARGET)
        with pytest.raises(DataError, match="NaN"):
            cases.estimator(name, ledger).fit(
                np.array(ROWS), np.ma.masked_array(TARGET, [True] * 12)
            )
    assert ledger.spends == []


def test_a_hidden_cell_of_a_list_is_missing():
    """A list of a masked array holds the constant ``masked``, which as an array is 0."""
    ids = np.ma.masked_array([0, 7, 7], [False, True, False])
    assert key(np.ma.masked) == key(None) != key(0)
    for groups in (ids, list(ids), ids.astype(object), [(1, one) for one in ids]):
        with pytest.raises(DataError, match="is missing"):
            unit_shares(groups)


def damaged(kind):
    """Return an Arrow column, and one with a cell that Arrow can't turn into a Python value."""
    if kind == "text":
        good = pa.array(["1", "2", "3"])
        return good, pa.StringArray.from_buffers(3, good.buffers()[1], pa.py_buffer(b"1\xff3"))
    return tuple(pa.array([1, day, 3], pa.int32()).cast(pa.date32()) for day in (2, 2**30))


@pytest.mark.parametrize("ending", ["parquet", "feather"])
@pytest.mark.parametrize("kind", ["text", "date"])
def test_a_damaged_cell_is_missing_and_changes_no_other(tmp_path, kind, ending):
    """Invalid UTF-8 and a date out of range in a file."""
    write = {"parquet": pyarrow.parquet.write_table, "feather": pyarrow.feather.write_feather}[
        ending
    ]
    levels = ("1", "3") if kind == "text" else ("1970-01-02", "1970-01-04")
    found = []
    for column in damaged(kind):
        write(pa.table({"a": column}), tmp_path / f"t.{ending}")
        for block in open_table(tmp_path / f"t.{ending}").read(["a"], lambda share: None):
            found.append(ColumnRule("a", Levels(levels)).places(block["a"]).tolist())
    assert found == [[0, -1, 1], [0, -1, 1]]
    ledger = Ledger()
    for table in (
        pa.table({"a": column}),
        BlockStream.from_arrow(pa.table({"a": column, "y": [0, 0, 0]}), "y"),
    ):
        with pytest.raises(DataError) as caught:
            PrivateKernelRidge(bounds=(0, 9), y_bounds=(0, 1), ledger=ledger).fit(
                table, None if isinstance(table, BlockStream) else [0, 0, 0]
            )
        refusal(caught.value, ledger)


READERS = ["csv", "parquet", "feather", "npz"]


@pytest.mark.parametrize("ending", READERS)
@pytest.mark.parametrize(
    "cell", ["numeric text", "text", "half", "none", "nan", "beyond 2^53", "true"]
)
def test_the_readers_of_files(tmp_path, ending, cell):
    """A hostile cell in a file that is written in the usual way: levels and numbers of others stay."""
    found = []
    big = 2**53 + 1
    for value in (big, HOSTILE[cell][0]):
        column = [big if i % 2 else i for i in range(12)]
        column[PLACE] = value
        path = tmp_path / f"t.{ending}"
        frame = pd.DataFrame({"a": column})
        try:
            if ending == "csv":
                frame.to_csv(path, index=False)
            elif ending == "npz":
                np.savez(path, a=np.array(column))
            else:
                getattr(frame, f"to_{ending}")(path)
        except Exception:
            return
        try:
            table = open_table(path)
        except DataError:
            assert value is not big  # objects in an archive
            return
        cells = [c for block in table.read(["a"], lambda share: None) for c in block["a"]]
        numbers = ColumnRule("a", Interval(0, 100)).numbers(cells)
        places = ColumnRule("a", Levels((0, 2, 4, big))).places(cells)
        found.append((numbers[OTHERS].tolist(), places[OTHERS].tolist()))
    assert found[0] == found[1]


# --- curators ------------------------------------------------------------------------------------------


class Wrapped:
    """Hides a model where no search for parts can find it."""

    __slots__ = ("ask",)

    def __init__(self, model):
        self.ask = lambda X: model.predict(X)

    def predict(self, X):
        return self.ask(X)


def around(curator):
    """Return models around a curator, all of which ask it when they predict."""
    X, y = np.array(ROWS, dtype=float), np.array(TARGET)
    pipeline = PrivatePipeline(
        [("model", cases.estimator("PrivateCurator").set_params(noise=None))], 10.0
    )
    yield curator
    yield make_pipeline(StandardScaler().fit(X), curator)
    yield VotingRegressor([("a", curator)]).fit(X, y)
    yield TransformedTargetRegressor(curator).fit(X, y)
    yield MultiOutputRegressor(curator).fit(X, np.column_stack([y, y]))
    yield BaggingRegressor(curator, n_estimators=1, bootstrap=False).fit(X, y)
    yield GridSearchCV(curator, {"length_scale": [1.0]}, cv=2).fit(X, y)
    yield pipeline.fit(X, y)
    yield Wrapped(curator)


@pytest.mark.filterwarnings("ignore")
def test_a_curator_is_not_asked_about_private_rows():
    """What it was asked would stay in its history."""
    X, y = np.array(ROWS, dtype=float), np.array(TARGET)
    curator = cases.estimator("PrivateCurator").set_params(noise=None).fit(X, y)
    for model in around(curator):
        before = len(curator._noisy._answers)
        ledger = Ledger()
        target = np.column_stack([y, y]) if isinstance(model, MultiOutputRegressor) else y
        with pytest.raises(ParameterError, match="history of answers") as caught:
            private_score(model, X, target, "mse", y_bounds=(0, 1), ledger=ledger)
        assert ledger.spends == [] and caught.value.__context__ is None
        assert len(curator._noisy._answers) == before
    with pytest.raises(ParameterError):
        PrivateSearchCV(curator, {"length_scale": [1.0, 2.0]}, 10.0).fit(X, y)
    assert curator.predict(X[:2]).shape == (2,)


# --- nobody else converts rows -----------------------------------------------------------------------

SOURCE = Path(__file__).parents[1] / "src" / "dpkernel"
ROW_NAMES = {"X", "y", "groups", "rows", "table", "labels", "targets", "values", "cells"}
CONVERTERS = {
    "asarray", "array", "asanyarray", "ascontiguousarray", "asfortranarray", "atleast_1d", "atleast_2d",
    "column_or_1d", "check_array", "check_X_y", "validate_data", "fromiter", "unique", "vstack",
    "hstack", "column_stack", "concatenate", "stack", "as_tensor", "tensor", "DataFrame", "Series",
}  # fmt: skip
METHODS = {"astype", "to_numpy", "tolist", "to_list", "toarray"}
DOORS = {"data/cells.py", "data/tables.py"}
# Files whose functions get numbers that passed the door, or that no user's rows reach, with the reason.
ALLOWED = {
    "foundations/archive.py": "arrays of a model file",
    "proof/audit/": "tables of the audit itself, and what models answer",
    "data/domain.py": "numbers that passed the door: clipping and scaling",
    "data/places.py": "numbers that passed the door, and empty rows",
    "models/features/": "blocks of numbers in the unit box",
    "models/kernels.py": "blocks of numbers in the unit box, or points of the caller's own",
    "privacy/mechanisms/": "statistics",
    "models/graph.py": "arrays of a model",
    "outputs/onnx_export.py": "arrays of a model",
    "proof/papers/": "tables after checked_table",
    "privacy/profiles/": "public numbers",
    "outputs/report/": "points of public grids",
    "proof/reproduce/": "synthetic and published tables",
    "privacy/sensitivity/": "public numbers",
    "solvers/": "records of numbers",
    "privacy/statistics.py": "features, float64",
    "privacy/unit_statistics.py": "features, float64",
    "cli/predict.py": "what a model answers",
    "estimators/outlook.py": "synthetic tables",
    "estimators/classifier.py": "codes of labels",
    "estimators/curator.py": "blocks of numbers in the unit box",
    "estimators/rkhs.py": "blocks of numbers in the unit box",
    "estimators/regressor/": "predictions",
    "estimators/device_rows.py": "blocks of numbers in the unit box",
    "estimators/torch_records.py": "records of numbers",
    "preprocessing/": "blocks of float64, after checked_table or check_columns",
    "selection/losses.py": "predictions of a model",
    "selection/score.py": "predictions of a model",
    "selection/search.py": "predictions of a model",
    "data/table_files/schema.py": "cell by cell, with cells.number",
    "data/table_files/spool.py": "codes of labels",
}  # fmt: skip


def conversions(path):
    """Return (function, call) for each call that converts a parameter with a name of rows."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef):
            continue
        own = function.args
        given = {arg.arg for arg in (*own.posonlyargs, *own.args, *own.kwonlyargs)} & ROW_NAMES
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            direct = [arg for arg in node.args[:1] if isinstance(arg, ast.Name)]
            nested = [
                e for a in node.args[:1] if isinstance(a, (ast.Tuple, ast.List)) for e in a.elts
            ]
            of = {arg.id for arg in (*direct, *nested) if isinstance(arg, ast.Name)}
            if name in CONVERTERS and of & given:
                yield function.name, ast.unparse(node)
            own_method = isinstance(node.func, ast.Attribute) and isinstance(
                node.func.value, ast.Name
            )
            if name in METHODS and own_method and node.func.value.id in given:
                yield function.name, ast.unparse(node)


def test_no_other_module_converts_rows():
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if place not in DOORS and not place.startswith(tuple(ALLOWED)):
            found.update({f"{place}: {call}": function for function, call in conversions(path)})
    assert not found, found


def test_every_allowed_place_exists_and_public_entries_pass_the_door():
    for place in ALLOWED:
        assert (SOURCE / place).exists(), place
    for name in (
        "estimators/opening.py",
        "data/blocks.py",
        "selection/candidates.py",
        "preprocessing/base.py",
    ):
        assert (
            "dpkernel.data.cells" in (SOURCE / name).read_text()
            or "checked_table" in (SOURCE / name).read_text()
        )


def test_the_scan_sees_a_conversion(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(
        "def fit(X, y):\n    a = np.asarray(X)\n    return y.astype(float), np.vstack((X, 1))\n"
    )
    assert [call for _, call in conversions(path)] == [
        "np.asarray(X)",
        "y.astype(float)",
        "np.vstack((X, 1))",
    ]


# --- labels of rows -------------------------------------------------------------------------------

ATTRIBUTES = [
    "columns",
    "to_pylist",
    "null_count",
    "__array_interface__",
    "__array_struct__",
    "dask",
]
ATTRIBUTES += [
    "itercolumns",
    "schema",
    "get_columns",
    "column_names",
    "to_delayed",
    "array",
    "take",
]


def labelled(values, label):
    """Return a pandas object in which one row has this label, which is an attribute of its columns."""
    rows = [f"row {place}" for place in range(len(values))]
    rows[7] = label
    return values.set_axis(rows, axis=0)


USES = {
    "numbers": lambda label: as_numbers(labelled(pd.Series(np.arange(30.0)), label)),
    "objects": lambda label: as_numbers(labelled(pd.Series([1.5, None] * 15, dtype=object), label)),
    "nullable": lambda label: as_numbers(labelled(pd.Series([1, None] * 15, dtype="Int64"), label)),
    "of arrow": lambda label: as_numbers(
        labelled(pd.Series([1, None] * 15, dtype="int64[pyarrow]"), label)
    ),
    "frame": lambda label: as_numbers(labelled(pd.DataFrame({"a": np.arange(30.0)}), label)),
    "texts": lambda label: Levels(("u", "v")).indices(labelled(pd.Series(["u", "v"] * 15), label)),
    "categories": lambda label: Levels(("u", "v")).indices(
        labelled(pd.Series(["u", "v"] * 15, dtype="category"), label)
    ),
    "ids": lambda label: units(labelled(pd.Series(["u", "v"] * 15), label))[0],
    "rows": lambda label: untouched([labelled(pd.Series([1.0, 2.0] * 4), label)] * 3).astype(float),
    "shape": lambda label: np.array(shape_of(labelled(pd.Series(np.arange(30.0)), label))),
    "taken": lambda label: take_rows(
        labelled(pd.Series(np.arange(30.0)), label), [7, 8]
    ).to_numpy(),
    "names": lambda label: np.array(
        column_names(labelled(pd.Series(["secret"] * 9), label)) is None
    ),
    "fit": lambda label: (
        PrivateKernelRidge(
            y_bounds=(0, 1), bounds=[(0, 1), Levels(("u", "v"))], noise=SeededNoise(0)
        )
        .fit(
            labelled(pd.DataFrame({"a": np.linspace(0, 1, 30), "b": ["u", "v"] * 15}), label),
            labelled(pd.Series(np.linspace(0, 1, 30)), label),
            groups=labelled(pd.Series(np.arange(30) // 2), label),
        )
        .coef_
    ),
    "weights": lambda label: (
        PrivateKernelRidge(y_bounds=(0, 1), bounds=(0, 1), noise=SeededNoise(0))
        .fit(
            np.linspace(0, 1, 30)[:, None],
            np.linspace(0, 1, 30),
            sample_weight=labelled(pd.Series(np.full(30, 0.5)), label),
        )
        .coef_
    ),
}


@pytest.mark.parametrize("use", USES)
def test_the_label_of_a_row_does_not_decide_how_all_rows_are_read(use):
    """The labels of the rows of a pandas column are its attributes; one may be called like another."""
    expected = USES[use]("row 7")
    for label in ATTRIBUTES:
        np.testing.assert_array_equal(USES[use](label), expected, err_msg=label)
