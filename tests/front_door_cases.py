"""What the tests of the front door try: containers, hostile rows, and callables that take rows.

A table of twelve rows with one hostile row goes into each container in the way that its users take. What
a container's own constructor refuses never reaches dpkernel and is no case.
"""

from __future__ import annotations

import datetime
import functools
import importlib.util
import inspect
import io
import math
import tempfile
import uuid
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
from scipy import sparse
from sklearn.preprocessing import Binarizer, FunctionTransformer, Normalizer, PolynomialFeatures

import dpkernel
from dpkernel import (
    BlockStream,
    Domain,
    GramStatistics,
    Interval,
    Ledger,
    Levels,
    People,
    PrivateKernelRidge,
    PrivateSearchCV,
    SeededNoise,
    methods,
    preprocessing,
    private_score,
    selection,
)
from dpkernel.models import features
from dpkernel.preprocessing import (
    DeclaredCategories,
    PrivateBounds,
    PrivateImputer,
    PrivateMinMaxScaler,
    PrivatePCA,
    PrivatePipeline,
    PrivateStandardScaler,
)
from dpkernel.proof import papers
from estimator_table import BUILDERS

# --- rows ------------------------------------------------------------------------------------

PLACE = 5  # of the hostile row
ROWS = [[i % 5, i * i % 3 % 2] for i in range(12)]  # exact in every type of NumPy
TARGET = [(5 * i % 8) / 8 for i in range(12)]
LABELS = [i % 2 for i in range(12)]
IDS = [i % 4 for i in range(12)]
OTHERS = [i for i in range(len(ROWS)) if i != PLACE]
NOT_A_NUMBER = object()  # what stands for the value of a cell that is none


def hostile() -> dict[str, tuple[Any, Any]]:
    """Return the hostile cells by name: what stands in the row, and the number that it is."""
    day = datetime.datetime(2026, 5, 1, 12)
    numbers = {
        "numeric text": ("3.25", 3.25),
        "whole number as text": ("3", 3.0),
        "text with blanks": (" 3 ", 3.0),
        "digits in bytes": (b"3.25", 3.25),
        "large": (1e308, 1e308),
        "minus zero": (-0.0, -0.0),
        "true": (True, 1.0),
        "numpy bool": (np.True_, 1.0),
        "half": (0.5, 0.5),
        "beyond int8": (300, 300.0),
        "beyond int16": (40_000, 40_000.0),
        "beyond int32": (2**40 + 1, float(2**40 + 1)),
        "beyond 2^53": (2**53 + 1, 2.0**53),
        "beyond 2^63": (2**63 + 1025, float(2**63 + 1025)),
        "minus beyond 2^63": (-(2**63) - 5, -(2.0**63)),
        "beyond 2^64": (2**70 + 1, 2.0**70),
        "decimal": (Decimal("3.25"), 3.25),
        "small decimal": (Decimal("1e-30"), 1e-30),
        "fraction": (Fraction(13, 4), 3.25),
        "longdouble": (np.longdouble("3.25"), 3.25),
        "float32": (np.float32(0.1), float(np.float32(0.1))),
        "uint64": (np.uint64(2**63 + 1025), float(2**63 + 1025)),
        "array of no dimension": (np.array(3.25), 3.25),
    }
    others = [
        ("text", "secret"), ("empty text", ""), ("none", None), ("nan", math.nan), ("inf", math.inf),
        ("minus inf", -math.inf), ("huge", 10**400), ("bytes", b"secret"),
        ("invalid utf-8", b"\xff\xfe"), ("surrogate", "\ud800"), ("truth as text", "True"),
        ("nan as text", "nan"), ("date", day.date()), ("datetime", day),
        ("timestamp", pd.Timestamp(day)),
        ("zone", pd.Timestamp(day, tz="UTC")), ("NaT", pd.NaT), ("NA", pd.NA),
        ("datetime64", np.datetime64(day)), ("timedelta", datetime.timedelta(days=3)),
        ("timedelta64", np.timedelta64(3, "D")), ("time", day.time()),
        ("decimal nan", Decimal("NaN")), ("signalling nan", Decimal("sNaN")),
        ("decimal inf", Decimal("Infinity")), ("complex", 1 + 2j), ("complex without", 3 + 0j),
        ("nested list", [1, 2]), ("tuple", (1, 2)), ("dict", {"secret": 1}), ("set", {1}),
        ("array", np.array([1.0, 2.0])), ("object", uuid.UUID(int=7)), ("masked", np.ma.masked),
    ]  # fmt: skip
    return {**numbers, **{name: (cell, NOT_A_NUMBER) for name, cell in others}}


HOSTILE = hostile()
SHAPES = {"longer row": [1, 0.5, 2], "shorter row": [1], "no row": [], "row that is a number": 3.0}


def rows_with(cell: Any, column: int = 0) -> list[list[Any]]:
    """Return the rows, one cell of one of them replaced."""
    found = [list(row) for row in ROWS]
    found[PLACE][column] = cell
    return found


# --- containers --------------------------------------------------------------------------------


def _typed(dtype: Any) -> Callable[[Any], Any]:
    """Return what stacks rows of a type; the hostile one comes as it is."""

    def build(rows: Any) -> Any:
        return np.array(
            [np.array(row, dtype) if i != PLACE else np.array(row) for i, row in enumerate(rows)]
        )

    return build


def _memmap(rows: Any) -> Any:
    array = np.array(rows)
    if array.dtype == object:
        raise TypeError("no objects in a memory map")
    file = np.memmap(tempfile.NamedTemporaryFile(), array.dtype, "w+", shape=array.shape)
    file[:] = array
    return file


def _structured(rows: Any) -> Any:
    return np.array([tuple(row) for row in rows], dtype=[("a", object), ("b", float)])


def _hidden(rows: Any) -> Any:
    """A masked array in which the cells of the hostile row are hidden."""
    array = np.array(rows)
    mask = np.zeros(array.shape, bool)
    mask[PLACE] = True
    return np.ma.masked_array(array, mask)


def _frame(rows: Any, **options: Any) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["a", "b"] if len(rows[0]) == 2 else None, **options)


class Subclass(pd.DataFrame):
    """A data frame of somebody's own."""

    @property
    def _constructor(self) -> Any:
        return Subclass


def _downcast(rows: Any) -> pd.DataFrame:
    def narrow(column: Any) -> Any:
        kind = {"i": "integer", "f": "float"}.get(column.dtype.kind)
        return column if kind is None else pd.to_numeric(column, downcast=kind)

    return _frame(rows).apply(narrow)


def _read_csv(rows: Any, **options: Any) -> pd.DataFrame:
    if any(kind.kind == "c" for kind in _frame(rows).dtypes):
        raise TypeError("pandas writes complex numbers as it can't read them")
    text = _frame(rows).to_csv(index=False)
    return pd.read_csv(io.StringIO(text), **options)


def _with_index(rows: Any) -> pd.DataFrame:
    return _frame(rows).set_index(pd.Index([i / 3 for i in range(len(rows))][::-1]))


def _polars(rows: Any) -> pl.DataFrame:
    return pl.DataFrame({"a": [r[0] for r in rows], "b": [r[1] for r in rows]}, strict=False)


def _polars_cast(kind: Any) -> Callable[[Any], Any]:
    def build(rows: Any) -> Any:
        found = _polars(rows)
        if not found["a"].dtype.is_integer():
            raise TypeError("the cast would change the cell")
        return found.with_columns(pl.col("a").cast(kind))

    return build


def _polars_categories(rows: Any) -> pl.DataFrame:
    found = _polars(rows)
    if found["a"].dtype.is_nested():
        raise TypeError("polars makes nulls of the others")
    return found.with_columns(pl.col("a").cast(pl.String).cast(pl.Categorical))


def _arrow(rows: Any) -> pa.Table:
    return pa.Table.from_pandas(_frame(rows), preserve_index=False)


def _arrow_lists(rows: Any) -> pa.Table:
    return pa.table({"a": [r[0] for r in rows], "b": [r[1] for r in rows]})


def _arrow_dictionary(rows: Any) -> pa.Table:
    table = _arrow_lists(rows)
    return table.set_column(0, "a", table.column("a").dictionary_encode())


def _numeric(rows: Any) -> Any:
    array = np.array(rows)
    if array.dtype.kind not in "biufc":
        raise TypeError("SciPy keeps numbers")
    return array


def _coo_twice(rows: Any) -> Any:
    """Every entry in two parts, of which one is zero."""
    array = _numeric(rows)
    i, j = np.indices(array.shape)
    parts = [np.concatenate([array.ravel(), 0 * array.ravel()])]
    parts += [np.concatenate([v.ravel(), v.ravel()]) for v in (i, j)]
    return sparse.coo_array((parts[0], (parts[1], parts[2])), shape=array.shape)


def _sparse(name: str) -> Callable[[Any], Any]:
    return lambda rows: getattr(sparse, name)(_numeric(rows))


class WithArray:
    """Something that only knows how to become an array."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self._rows, dtype=dtype)


MEMORY: dict[str, Callable[[Any], Any]] = {
    "list": lambda rows: rows,
    "tuple": lambda rows: tuple(tuple(row) for row in rows),
    "list of arrays": lambda rows: [np.array(row) for row in rows],
    "list of object arrays": lambda rows: [np.array(row, dtype=object) for row in rows],
    "list of series": lambda rows: [pd.Series(row) for row in rows],
    "array": lambda rows: np.array(rows),
    "object array": lambda rows: np.array(rows, dtype=object),
    "masked": lambda rows: np.ma.masked_array(np.array(rows)),
    "masked objects": lambda rows: np.ma.masked_array(np.array(rows, dtype=object)),
    "hidden": _hidden,
    "matrix": lambda rows: np.matrix(np.array(rows)),
    "memmap": _memmap,
    "fortran": lambda rows: np.asfortranarray(np.array(rows)),
    "strided": lambda rows: np.repeat(np.array(rows), 2, axis=0)[::2],
    "reversed": lambda rows: np.array(rows[::-1])[::-1],
    "big endian": lambda rows: (lambda a: a.astype(a.dtype.newbyteorder(">")))(np.array(rows)),
    "structured": _structured,
    "with __array__": WithArray,
    "text array": lambda rows: np.array(
        [[str(c) for c in r] if i != PLACE else r for i, r in enumerate(rows)]
    ),
    "bytes array": lambda rows: np.array(
        [[str(c).encode() for c in r] if i != PLACE else r for i, r in enumerate(rows)]
    ),
    **{f"array of {t}": _typed(t) for t in ("f2", "f4", "f8", "g", "i1", "i2", "i4", "i8")},
    **{f"array of {t}": _typed(t) for t in ("u1", "u2", "u4", "u8")},
    "frame": _frame,
    "frame of objects": lambda rows: _frame(rows, dtype=object),
    "frame of nullables": lambda rows: _frame(rows).convert_dtypes(),
    "frame of Arrow": lambda rows: _frame(rows).convert_dtypes(dtype_backend="pyarrow"),
    "frame of categories": lambda rows: _frame(rows).astype("category"),
    "mixed frame": lambda rows: _frame(rows).astype({"a": "category", "b": "Float64"}),
    "sparse frame": lambda rows: _frame(rows).apply(lambda c: pd.arrays.SparseArray(c)),
    "downcast frame": _downcast,
    "frame of records": lambda rows: pd.DataFrame([dict(zip("ab", row, strict=True)) for row in rows]),
    "read_csv": _read_csv,
    "read_csv of Arrow": lambda rows: _read_csv(rows, dtype_backend="pyarrow"),
    "frame with bools": lambda rows: _frame([[a, bool(b)] for a, b in rows]),
    "frame subclass": lambda rows: Subclass(rows, columns=["a", "b"]),
    "frame with an index of floats": _with_index,
    "frame of an array": lambda rows: pd.DataFrame(np.array(rows), columns=["a", "b"]),
    "polars": _polars,
    "polars of rows": lambda rows: pl.DataFrame(rows, schema=["a", "b"], orient="row"),
    "polars of decimals": _polars_cast(pl.Decimal(20, 2)),
    "polars of categories": _polars_categories,
    "polars of Int128": _polars_cast(pl.Int128),
    "arrow": _arrow,
    "arrow of lists": _arrow_lists,
    "arrow of dictionaries": _arrow_dictionary,
    "arrow in chunks": lambda rows: pa.concat_tables([_arrow(rows[:4]), _arrow(rows[4:])]),
    "coo with duplicates": _coo_twice,
    **{name: _sparse(name) for name in ("csr_array", "csc_array", "coo_array", "dok_array")},
    **{name: _sparse(name) for name in ("lil_array", "bsr_array", "dia_array", "csr_matrix")},
    "coo_matrix": _sparse("coo_matrix"),
}  # fmt: skip


def _dask_arrays(rows: Any, y: Any) -> tuple[Any, Any]:
    import dask.array as da

    chunks = [np.array(rows[i : i + 5]) for i in range(0, len(rows), 5)]
    X = da.concatenate([da.from_array(chunk) for chunk in chunks], allow_unknown_chunksizes=True)
    parts = [da.from_delayed(d, (len(c), 2), dtype=float) for d, c in _delayed(chunks)]
    return da.concatenate(parts) if X.dtype.kind not in "biuf" else X, da.from_array(np.array(y), 5)


def _delayed(chunks: Any) -> Any:
    import dask

    return [(dask.delayed(chunk), chunk) for chunk in chunks]


def _dask_own_types(rows: Any, y: Any) -> tuple[Any, Any]:
    """Chunks that keep types of their own, as those of files do."""
    import dask.array as da

    chunks = [np.array(rows[i : i + 5]) for i in range(0, len(rows), 5)]
    parts = [da.from_delayed(d, (len(c), 2), dtype=float) for d, c in _delayed(chunks)]
    return da.concatenate(parts), da.from_array(np.array(y), 5)


def _dask_frame(rows: Any, y: Any) -> tuple[Any, Any]:
    import dask.dataframe as dd

    frame = _frame(rows)
    return dd.from_pandas(frame, npartitions=3), dd.from_pandas(pd.Series(y), npartitions=3)


def _dask_delayed_frame(rows: Any, y: Any) -> tuple[Any, Any]:
    import dask.dataframe as dd

    parts = [dask_delayed(_frame(rows[i : i + 5])) for i in range(0, len(rows), 5)]
    targets = [dask_delayed(pd.Series(y[i : i + 5])) for i in range(0, len(rows), 5)]
    meta = _frame([[1.0, 1.0]]).iloc[:0]
    X = dd.from_delayed(parts, meta=meta, verify_meta=False)
    return X, dd.from_delayed(targets, meta=pd.Series(dtype=float), verify_meta=False)


def dask_delayed(value: Any) -> Any:
    import dask

    return dask.delayed(value)


def _stream(block: Callable[[Any], Any]) -> Callable[[Any, Any], tuple[Any, Any]]:
    def build(rows: Any, y: Any) -> tuple[Any, Any]:
        parts = [(block(rows[i : i + 4]), np.array(y[i : i + 4])) for i in range(0, len(rows), 4)]
        return BlockStream(lambda: iter(parts), n_rows=len(rows)), None

    return build


def _stream_of_arrow(rows: Any, y: Any) -> tuple[Any, Any]:
    table = _arrow(rows).append_column("y", [pa.array(list(y))])
    return BlockStream.from_arrow(table, "y"), None


def _stream_of_parquet(rows: Any, y: Any) -> tuple[Any, Any]:
    table = _arrow(rows).append_column("y", [pa.array(list(y))])
    path = Path(tempfile.mkdtemp()) / "t.parquet"
    pyarrow.parquet.write_table(table, path, row_group_size=5)
    return BlockStream.from_parquet(path, "y"), None


def _torch(rows: Any, y: Any) -> tuple[Any, Any]:
    import torch

    return torch.tensor(rows), torch.tensor(y)


STREAMS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "dask array": _dask_arrays,
    "dask array of typed chunks": _dask_own_types,
    "dask frame": _dask_frame,
    "dask frame of typed parts": _dask_delayed_frame,
    "stream of lists": _stream(lambda rows: rows),
    "stream of arrays": _stream(lambda rows: np.array(rows)),
    "stream of frames": _stream(_frame),
    "stream of polars": _stream(_polars),
    "stream of sparse": _stream(lambda rows: sparse.csr_matrix(_numeric(rows))),
    "stream of a list": lambda rows, y: (BlockStream.from_arrays(rows, y), None),
    "stream of a frame": lambda rows, y: (
        BlockStream.from_arrays(_with_index(rows), pd.Series(y)),
        None,
    ),
    "stream of Arrow": _stream_of_arrow,
    "stream of Parquet": _stream_of_parquet,
}
if importlib.util.find_spec("torch") is not None:
    STREAMS["tensor"] = _torch

COLUMNS: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "tuple": tuple,
    "array": np.array,
    "object array": lambda values: _objects(values),
    "masked": lambda values: np.ma.masked_array(np.array(values)),
    "matrix": lambda values: np.matrix(np.array(values)).T,
    "column": lambda values: [[value] for value in values],
    "series": pd.Series,
    "series of objects": lambda values: pd.Series(values, dtype=object),
    "nullable": lambda values: pd.Series(values).convert_dtypes(),
    "series of Arrow": lambda values: pd.Series(values).convert_dtypes(dtype_backend="pyarrow"),
    "category": lambda values: pd.Series(values, dtype="category"),
    "read_csv": lambda values: _read_csv([[value, 0] for value in values])["a"],
    "index": pd.Index,
    "frame": lambda values: pd.DataFrame({"y": values}),
    "polars": lambda values: pl.Series(values, strict=False),
    "arrow": pa.array,
}  # fmt: skip


def _objects(values: Any) -> Any:
    found = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        found[place] = value
    return found


NO_CASE = object()  # the container's own library refuses the rows


@functools.cache
def table_of(container: str, name: str, column: int = 0) -> Any:
    """Return (X, y) with the named hostile cell, or with its number for a name in brackets."""
    plain = name.startswith("(")
    cell, number = HOSTILE[name.strip("()")] if name != "" else (ROWS[PLACE][column], None)
    rows = rows_with(number if plain else cell, column) if name else ROWS
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if container in STREAMS:
                return STREAMS[container](rows, TARGET)
            return MEMORY[container](rows), np.array(TARGET)
    except (Exception, pl.exceptions.PanicException):
        return NO_CASE


@functools.cache
def column_of(container: str, values: str, name: str) -> Any:
    """Return the labels, ids or targets in a container, one of them the named hostile cell."""
    known = {"labels": LABELS, "ids": IDS, "target": TARGET}[values]
    found = list(known)
    if name:
        cell, number = HOSTILE[name.strip("()")]
        found[PLACE] = number if name.startswith("(") else cell
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return COLUMNS[container](found)
    except (Exception, pl.exceptions.PanicException):
        return NO_CASE


# --- callables ------------------------------------------------------------------------------------

BOX, UNIT = (0, 10), (0, 1)


def seeded(ledger: Ledger | None = None) -> dict[str, Any]:
    return {"noise": SeededNoise(3), "ledger": ledger}


def estimator(name: str, ledger: Ledger | None = None) -> Any:
    """Return one of the table of estimators, small and seeded."""
    model = BUILDERS[name](bounds=BOX, **seeded(ledger))
    small = {"n_features": 4, "y_bounds": UNIT, "max_iter": 3}
    return model.set_params(**{k: v for k, v in small.items() if k in model.get_params()})


def target_for(name: str, y: Any) -> Any:
    """Return y, or labels for a classifier; a stream carries its own."""
    return LABELS_OF(y) if "classes" in estimator(name).get_params() else y


def LABELS_OF(y: Any) -> Any:  # noqa: N802 (chosen by the container of y)
    if y is None or type(y).__module__.startswith("dask"):
        return y
    return np.array(LABELS)


def released(model: Any) -> list[Any]:
    """Return every number that a fit releases."""
    model = getattr(model, "best_estimator_", model)
    names = (
        "coef_",
        "intercept_",
        "grid_values_",
        "sketch_",
        "lower_",
        "upper_",
        "mean_",
        "scale_",
    )
    names += ("components_", "fill_values_", "statistics_", "min_", "data_min_", "data_max_")
    found = [np.asarray(getattr(model, name)) for name in names if hasattr(model, name)]
    if hasattr(model, "steps_"):
        found += [part for _, step in model.steps_ for part in released(step)]
    if not found and hasattr(model, "predict"):
        found = [np.asarray(model.predict(np.array([[1.0, 0.5], [3.0, 0.25]])))]
    return found


@dataclass(frozen=True)
class Taker:
    """A callable that takes rows.

    ``call(X, y, ledger)`` returns arrays. With ``by_row`` they have one entry per row, and those of all
    other rows must stay; otherwise they are what a fit releases with seeded noise, and must be that of
    the plain table in double precision.
    """

    call: Callable[[Any, Any, Ledger], Any]
    by_row: bool
    streams: bool = False


def _fits() -> dict[str, Taker]:
    found = {}
    for name in BUILDERS:
        classes = "classes" in estimator(name).get_params()

        def call(X: Any, y: Any, ledger: Any, name: str = name) -> Any:
            return released(estimator(name, ledger).fit(X, target_for(name, y)))

        found[f"{name}.fit"] = Taker(call, False, streams=not classes and name not in ONE_TABLE)
    for name, build in TRANSFORMERS.items():
        found[f"{name}.fit"] = Taker(
            lambda X, y, ledger, build=build: released(build(**seeded(ledger)).fit(X)), False, True
        )
    for name, options in PAPERS.items():
        found[f"{name}.fit"] = Taker(
            lambda X, y, ledger, name=name, options=options: released(
                getattr(papers, name)(**seeded(ledger), **options).fit(
                    X, y if "target_bound" in options else np.where(np.array(LABELS) > 0, 1.0, -1.0)
                )
            ),
            False,
        )
    return found


ONE_TABLE = (
    "PrivateGridRegressor",
    "PrivateCurator",
    "PrivateSketchedRidge",
    "PrivateKernelRidge (output)",
)
TRANSFORMERS: dict[str, Callable[..., Any]] = {
    "PrivateBounds": lambda **kw: PrivateBounds(bounds=(-1000, 1000), **kw),
    "PrivateStandardScaler": lambda **kw: PrivateStandardScaler(bounds=BOX, **kw),
    "PrivateMinMaxScaler": lambda **kw: PrivateMinMaxScaler(bounds=(-1000, 1000), **kw),
    "PrivateImputer": lambda **kw: PrivateImputer(bounds=BOX, **kw),
    "PrivatePCA": lambda **kw: PrivatePCA(n_components=1, bounds=BOX, **kw),
}
PAPERS: dict[str, dict[str, Any]] = {
    "PublishedOutputSGD": {},
    "PublishedGradientSGD": {"beta": 0.5},
    "PublishedRandomFeatureSGD": {"target_bound": 1.0, "sensitivity": "proof"},
    "PublishedCanonicalEstimator": {"reading": "corrected", "n_coefficients": 6},
}
FREE = {
    "FunctionTransformer": FunctionTransformer(np.log1p),
    "FunctionTransformer of nothing": FunctionTransformer(),
    "Normalizer": Normalizer(),
    "Binarizer": Binarizer(threshold=0.5),
    "PolynomialFeatures": PolynomialFeatures(2),
    "DeclaredCategories": DeclaredCategories([[0, 1, 2, 3], None]),
}
DECLARED = Domain((Levels((0, 1, 2, 3.25, "secret")), Interval(0, 1)))


def _pipeline(step: Any, **options: Any) -> PrivatePipeline:
    model = PrivateKernelRidge(kernel="linear", bounds=(-5, 20), y_bounds=UNIT)
    return PrivatePipeline([("free", step), ("model", model)], 10.0, **options)


def _search(strategy: str, ledger: Any) -> PrivateSearchCV:
    names = {"regularisation": [0.1, 1.0]} if strategy == "free" else {"length_scale": [0.5, 2.0]}
    model = PrivateKernelRidge(bounds=BOX, y_bounds=UNIT, n_features=4)
    return PrivateSearchCV(model, names, 20.0, strategy=strategy, **seeded(ledger))


def _statistics(X: Any, y: Any, ledger: Any) -> Any:
    model = PrivateKernelRidge(bounds=BOX, y_bounds=UNIT, n_features=4, **seeded(ledger))
    return released(GramStatistics(model, len(ROWS), 2).update(X, y).release())


@functools.cache
def fitted(name: str) -> Any:
    """Return a model fitted to the rows without a hostile one."""
    X = np.array(ROWS, dtype=float)
    if name in TRANSFORMERS:
        return TRANSFORMERS[name](noise=SeededNoise(1)).fit(X)
    if name in FREE:
        return _pipeline(FREE[name], noise=SeededNoise(1)).fit(X, TARGET)
    return estimator(name).fit(X, target_for(name, np.array(TARGET)))


def _scores(metric: str, **options: Any) -> Taker:
    name = (
        "PrivateKernelClassifier"
        if metric in ("accuracy", "log_loss", "auc")
        else "PrivateKernelRidge"
    )

    def call(X: Any, y: Any, ledger: Any) -> Any:
        wanted = LABELS_OF(y) if name.endswith("Classifier") else y
        given = {**seeded(ledger), **options}
        found = private_score(fitted(name), X, wanted, metric, (5.0, 1e-6), **given)
        return [np.array([found.value, found.low, found.high])]

    return Taker(call, False)


MAPS = {
    "FourierFeatures": features.FourierFeatures(6),
    "LinearFeatures": features.LinearFeatures(),
    "PublicEigenfeatures": features.PublicEigenfeatures(6),
    "PublicNystroem": features.PublicNystroem(6),
}


def takers() -> dict[str, Taker]:
    """Return every public callable that takes a table, by name."""
    found = _fits()
    for name in BUILDERS:
        if name != "PrivateCurator":  # whose answers are one joint release: see REASONS
            found[f"{name}.predict"] = Taker(lambda X, y, _, n=name: [fitted(n).predict(X)], True)
        if hasattr(estimator(name), "decision_function"):
            found[f"{name}.decision_function"] = Taker(
                lambda X, y, _, n=name: [fitted(n).decision_function(X)], True
            )
    for name in TRANSFORMERS:
        found[f"{name}.transform"] = Taker(lambda X, y, _, n=name: [fitted(n).transform(X)], True)
    for name, step in FREE.items():
        found[f"PrivatePipeline({name}).fit"] = Taker(
            lambda X, y, ledger, step=step: released(_pipeline(step, **seeded(ledger)).fit(X, y)),
            False,
        )
        found[f"PrivatePipeline({name}).predict"] = Taker(
            lambda X, y, _, n=name: [fitted(n).predict(X)], True
        )
    for strategy in ("free", "exponential", "random-stopping"):
        found[f"PrivateSearchCV({strategy}).fit"] = Taker(
            lambda X, y, ledger, s=strategy: released(_search(s, ledger).fit(X, y)), False
        )
    for record in ("one", "near", "mean"):
        found[f"PrivateKernelRegressor.fit of people ({record})"] = Taker(
            lambda X, y, ledger, r=record: released(
                estimator("PrivateKernelRegressor", ledger).fit(X, y, groups=People(IDS, r))
            ),
            False,
            True,
        )
    found["PrivateImputer.fit of people"] = Taker(
        lambda X, y, ledger: released(
            TRANSFORMERS["PrivateImputer"](**seeded(ledger)).fit(X, groups=IDS)
        ),
        False,
        True,
    )
    found["PrivateSearchCV.fit of people"] = Taker(
        lambda X, y, ledger: released(_search("free", ledger).fit(X, y, groups=IDS)), False
    )
    found["private_score of people"] = _scores("mse", groups=IDS)
    for metric in ("mse", "mae", "r2", "pinball", "accuracy", "log_loss", "auc"):
        found[f"private_score({metric})"] = _scores(metric)
    for name, made in MAPS.items():
        found[f"{name}.transform"] = Taker(lambda X, y, _, m=made: [m.build(2).transform(X)], True)
    found["GramStatistics.update"] = Taker(_statistics, False)
    found["DeclaredCategories.transform"] = Taker(
        lambda X, y, _: [DeclaredCategories([[0, 1, 2, 3.25, "secret"], None]).fit(X).transform(X)],
        True,
    )
    found["Domain.to_unit"] = Taker(lambda X, y, _: [Domain.box([0, 0], [10, 1]).to_unit(X)], True)
    found["Domain.to_unit (levels)"] = Taker(lambda X, y, _: [DECLARED.to_unit(X)], True)
    return found


TAKERS = takers()
LEVELS = [name for name in TAKERS if "Categories" in name or "levels" in name]

# Public names that take rows and are not in the table, with the reason.
REASONS = {
    "PrivateCurator.predict": "answers are draws of one Gaussian process: they depend on each other",
    "PrivatePipeline": "by its free steps",
    "PrivateSearchCV": "by its strategies",
    "PrivateKernelRidge": "by its solvers",
    "FeatureMap": "the base class of maps",
    "NormalisedFeatures": "built from released numbers inside of a fit",
    "PolynomialMap": "the transform of its base class, which is in the table",
    "RandomProjection": "the transform of its base class, which is in the table",
    "TensorSketch": "the transform of its base class, which is in the table",
    "LearnedFeatures": "built from released numbers inside of a fit",
    "WhitenedFeatures": "the transform of its base class, which is in the table",
    "PublishedAlgorithm1": "its certificate is never valid",
    "PublishedAlgorithm2": "its certificate is never valid",
    "PublishedAlgorithm3": "its certificate is never valid",
    "PublishedAlgorithm4": "its certificate is never valid",
    "PublishedAlgorithm5": "its certificate is never valid",
    "PublishedPerturbedRisk": "its certificate is never valid",
    "PublishedSketchedERM": "its certificate is never valid",
    "Levels": "by test_levels",
    "Interval": "takes numbers that passed the door",
    "BlockStream": "a container",
    "fit_table": "a fit to a file whose lines test_private_missing exchanges",
}
PUBLIC: tuple[ModuleType, ...] = (dpkernel, methods, preprocessing, selection, features, papers)
METHODS = ("fit", "fit_predict", "update", "to_unit", "indices", "transform", "from_arrays")
ARGUMENTS = {"X", "y", "rows", "table", "groups", "values", "labels"}


def public_takers() -> set[str]:
    """Return the public classes with a method that takes rows, and functions that take them."""
    found = set()
    for module in PUBLIC:
        for name in module.__all__:
            value = getattr(module, name)
            if (inspect.isclass(value) and any(hasattr(value, method) for method in METHODS)) or (
                inspect.isfunction(value) and ARGUMENTS & set(inspect.signature(value).parameters)
            ):
                found.add(name)
    return found
