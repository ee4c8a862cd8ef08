"""A training table of any kind with its public sizes, opened and checked before anything is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from dpkernel.data import chunks
from dpkernel.data.blocks import BlockStream, checked_blocks, library_of
from dpkernel.data.cells import as_numbers, column_names, has, shape_of
from dpkernel.data.domain import Levels
from dpkernel.data.labels import LabelShares, label_codes
from dpkernel.data.tables import Columns, table_to_train
from dpkernel.foundations.errors import DataError, NoRowsError, ParameterError
from dpkernel.foundations.types import Array

Encode = Callable[[Any], Array]


@dataclass(frozen=True)
class Source:
    """Rows and targets where they lie, and the sizes that are public.

    ``kind`` is "array" (X is a NumPy array or a CSR matrix, y an array), "stream" (X iterates over
    checked blocks, or is a BlockStream that can be read again; y is None), "dask" or "torch".
    ``n_rows`` counts records: rows, or units where ``shares`` states how much of its unit each row
    is. ``missing`` allows NaN in X. Without y the targets of streams and Dask tables are zeros. If
    the table is ``weighted``, the last column of y is the weight of each record, in [0, 1]; a record
    of weight 0 contributes nothing. ``target_shape`` does not count that column. A record may have a
    row in each of several ``slots``: in this table and in ``more``, which are as many as somebody
    needs and have the same sizes; then the weights of its rows add up to 1. ``names`` are those of the
    columns, if all of them are texts.
    """

    kind: str
    n_rows: int
    n_columns: int
    target_shape: tuple[int, ...]
    X: Any
    y: Any = None
    shares: Any = None
    missing: bool = False
    weighted: bool = False
    slots: int = 1
    more: tuple[Source, ...] = ()
    names: Any = None

    @property
    def columns(self) -> Columns:
        """The number of columns and their names."""
        return Columns(self.n_columns, self.names)


def open_source(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    again: bool = False,
    several: bool = True,
    classes: Levels | None = None,
    missing: bool = False,
    targets: bool = True,
) -> Source:
    """Return the table, checked. Nothing about it is set on the estimator, which messages name.

    Parameters
    ----------
    estimator : scikit-learn estimator
    again : bool
        The table is going to be read several times: it is checked as a whole now, and an iterator
        that can be read once is refused.
    several : bool
        y may have several columns; if not, a single column counts as a vector.
    classes : Levels, optional
        y are labels; they become their places among the classes. ``LabelShares`` stay as they are.
    missing : bool
        Whether NaN is allowed in X.
    targets : bool
        Of streams and Dask tables: whether y is read.
    """
    if isinstance(y, LabelShares):
        if classes is None or y.values.shape[1] != len(classes.values):
            raise DataError("Shares of labels need one column for each declared class.")
        y, classes, several = y.values, None, True
    encode: Encode | None = None if targets else _zeros
    if classes is not None:
        encode = partial(label_codes, classes=classes)
    wanted = _Wanted(type(estimator).__name__, again, several, encode, missing)
    library = "stream" if isinstance(X, BlockStream) else library_of(X)
    if library not in ("stream", "dask", "torch"):
        X, y, columns = training_data(
            estimator, X, y, encode=encode, several=several, missing=missing
        )
        return Source("array", len(y), columns.count, y.shape[1:], X, y, names=columns.names)
    found: Source = getattr(wanted, library)(X, y)
    columns = Columns.of(found.n_columns, column_names(X))
    return replace(found, names=columns.names)


def released_size(total: float, n_rows: int, weighted: bool) -> float:
    """Return the number of rows, or of a weighted table the released sum of weights, within bounds."""
    return min(max(total, 1.0), float(n_rows)) if weighted else n_rows


def training_data(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    encode: Encode | None = None,
    several: bool = False,
    missing: bool = False,
) -> tuple[Any, Array, Columns]:
    """Return X as an array of numbers or CSR, y as float64, and the columns of X.

    The rows of X are read with ``blocks.dense_rows``. ``several`` allows a y of several columns,
    ``missing`` allows NaN in X, and ``encode`` turns labels into floats.
    """
    if encode is not None and y is not None:
        try:
            y = encode(y)
        except DataError:
            table_to_train(estimator, X)  # an error in X is reported first
            raise
    allowed = "nan" if missing else "refused"
    return table_to_train(estimator, X, y, missing=allowed, several=several, narrow=True)


@dataclass(frozen=True)
class _Wanted:
    """What an estimator wants of a table; one method per kind of table."""

    owner: str
    again: bool
    several: bool
    encode: Encode | None
    missing: bool

    def stream(self, X: BlockStream, y: Any) -> Source:
        if y is not None:
            raise ParameterError("A BlockStream contains its targets. Leave y out.")
        if self.again and not X.can_be_read_again:
            raise ParameterError(
                f"{self.owner} reads the table several times, but this stream can be read only once."
                " Give BlockStream a function that returns a new iterator at each call."
            )
        if not X.n_rows:
            raise NoRowsError("X has no rows.")
        stream = X if self.encode is None else X.map_targets(self.encode)
        stream = stream if self.several else stream.map_targets(_as_vector)
        blocks = checked_blocks(stream, missing=self.missing)
        first = next(blocks)
        width, shape = first[0].shape[1], first[1].shape[1:]
        self._check_target(shape)
        if not self.again:
            return Source("stream", X.n_rows, width, shape, chain([first], blocks))
        for _ in blocks:
            pass  # every block is checked before anything is spent
        return Source("stream", X.n_rows, width, shape, stream, missing=self.missing)

    def dask(self, X: Any, y: Any) -> Source:
        read = self.encode is not _zeros
        if read and has(X, "to_delayed") and has(y, "to_delayed"):
            X, y = chunks.aligned(X, y)
        n_rows, n_columns, shape = chunks.table_shape(X, *([y] if read else []))
        y = y if read else None
        if not self.several and shape == (1,):
            y, shape = (y[y.columns[0]] if hasattr(y, "columns") else y[:, 0]), ()
        self._check_target(shape)
        if y is not None and self.encode is not None:
            frame = hasattr(y, "map_partitions")
            encode = y.map_partitions if frame else y.map_blocks
            y = encode(self.encode, **({"meta": (None, "f8")} if frame else {"dtype": float}))
        found = Source("dask", n_rows or 0, n_columns, shape, X, y, missing=self.missing)
        if n_rows is None:
            n_rows = chunks.count_rows(found.X, found.y)
            found = replace(found, n_rows=n_rows)
        if self.again:  # every chunk is checked where it lies
            sizes = chunks.in_chunks(found, _shape_of_rows)
            if sum(n for n, _ in sizes) != n_rows or any(d != n_columns for n, d in sizes if n):
                raise DataError(chunks.WRONG_SIZES)
        return found

    def torch(self, X: Any, y: Any) -> Source:
        from dpkernel.data.tensors import check_tensors, torch

        if self.encode is not None and library_of(y) == "torch":
            y = torch.as_tensor(self.encode(y.detach().cpu().numpy()), device=y.device)
        shape = check_tensors(X, y, values=self.again)
        if not self.several and shape == (1,):
            y, shape = y[:, 0], ()
        self._check_target(shape)
        return Source("torch", len(X), X.shape[1], shape, X, y)

    def _check_target(self, shape: tuple[int, ...]) -> None:
        if shape != () and not self.several:
            raise DataError(f"{self.owner} takes one target: y of shape (n,).")


def _shape_of_rows(blocks: Iterator[tuple[Any, Array]]) -> tuple[int, int]:
    shapes = [X.shape for X, _ in blocks]
    return sum(n for n, _ in shapes), max((d for _, d in shapes), default=0)


def _zeros(y: Any) -> Array:
    """Stand for targets that are not read."""
    return np.zeros(shape_of(y)[:1])


def _as_vector(y: Any) -> Any:
    values = as_numbers(y)
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
