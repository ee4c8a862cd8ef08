"""Tables as streams of row blocks: NumPy, SciPy sparse, memory maps, Arrow and Parquet, iterators.

A ``BlockStream`` hands out (X, y) blocks one after the other, so a pass over the data needs the
memory of one block only. The number of rows is known beforehand, because sizes and grids follow
from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy import sparse

from dpkernel.data.cells import as_numbers, as_table, shape_of, take_rows
from dpkernel.data.tables import refuse_missing, summed_duplicates
from dpkernel.foundations.errors import DataError, ParameterError, parameter_message
from dpkernel.foundations.types import Array, IntArray, is_whole

BLOCK_ROWS = 4096
_BLOCK_ENTRIES = 1 << 22  # largest number of entries of a dense block: 32 MB in double precision
_READ_BYTES = 1 << 16  # read at once from each column of a Parquet file

Block = tuple[Any, Any]


def rows_a_block(n_columns: int) -> int:
    """Return the number of rows per block: 4096, or a smaller power of two for wide tables."""
    most = max(1, _BLOCK_ENTRIES // max(n_columns, 1))
    return min(BLOCK_ROWS, 1 << (most.bit_length() - 1))


def dense_rows(X: Any, rows: slice | IntArray) -> Array:
    """Return some rows of an array or of a CSR matrix as a dense float64 array, row by row in memory."""
    part = X[rows]
    with np.errstate(all="ignore"):
        dense = part.toarray() if sparse.issparse(part) else part
        return np.ascontiguousarray(dense, dtype=np.float64)


class BlockStream:
    """A table that is read block by block.

    Parameters
    ----------
    source : callable or iterable
        A function that returns a new iterator of (X, y) blocks, or an iterable of them. A plain
        iterator can be read once, which is enough for ridge regression. Most estimators read the
        stream several times, and it must give the same rows in the same order each time. The
        library relies on your word for this, as for the graph of a Dask table: rows that are
        sampled or shuffled anew in every pass are not one data set.
    n_rows : int
        The declared number of rows. If the stream has another number of rows, fitting fails before
        anything is spent. A stream of 0 rows, which is fitted if the number of rows is private, has
        one block of 0 rows, which says how many columns there are.

    Examples
    --------
    >>> import numpy as np
    >>> def blocks():
    ...     for i in range(3):
    ...         yield np.full((10, 2), i / 3), np.full(10, i / 3)
    >>> from dpkernel import PrivateKernelRidge
    >>> model = PrivateKernelRidge(y_bounds=(0, 1)).fit(BlockStream(blocks, n_rows=30))
    """

    def __init__(
        self, source: Callable[[], Iterator[Block]] | Iterable[Block], n_rows: int
    ) -> None:
        if not is_whole(n_rows) or n_rows < 0:
            raise ParameterError(parameter_message("BlockStream", "n_rows", "an int >= 0", n_rows))
        if not callable(source) and not isinstance(source, Iterable):
            raise ParameterError(
                parameter_message(
                    "BlockStream", "source", "a function or an iterable", type(source).__name__
                )
            )
        self._source = source
        self.n_rows = int(n_rows)

    def __iter__(self) -> Iterator[Block]:
        found = self._source() if callable(self._source) else self._source
        if not isinstance(found, Iterable):
            raise DataError("The source of the stream returned no iterator of (X, y) blocks.")
        return iter(found)

    @property
    def can_be_read_again(self) -> bool:
        """Whether a second pass is possible. A plain iterator can be read only once."""
        return callable(self._source) or iter(self._source) is not self._source

    def map_targets(self, function: Callable[[Any], Any]) -> BlockStream:
        """Return the same stream with the targets of each block replaced by ``function`` of them."""

        def read() -> Iterator[Block]:
            for X, y in self:
                yield X, function(y)

        return BlockStream(read, self.n_rows)

    @classmethod
    def from_arrays(cls, X: Any, y: Any) -> BlockStream:
        """Return a stream over two tables in memory (or memory maps, or a sparse X), without a copy."""
        X = as_table(X) if sparse.issparse(X) else X
        n_rows = X.shape[0] if sparse.issparse(X) else len(X)

        def read() -> Iterator[Block]:
            for start in range(0, max(n_rows, 1), BLOCK_ROWS):
                rows = slice(start, start + BLOCK_ROWS)
                yield take_rows(X, rows), take_rows(y, rows)

        return cls(read, n_rows)

    @classmethod
    def from_parquet(
        cls, path: Any, target: str | Sequence[str], columns: Sequence[str] | None = None
    ) -> BlockStream:
        """Return a stream over the row groups of a Parquet file or folder; needs pyarrow.

        ``target`` names the column or columns of y. ``columns`` names those of X; by default they
        are all other columns in the order of the file.
        """
        dataset = _arrow("dataset").dataset(path, format="parquet")
        return cls._from_batches(
            dataset.schema.names,
            dataset.count_rows(),
            lambda names: arrow_batches(dataset, names, BLOCK_ROWS, "parquet"),
            target,
            columns,
        )

    @classmethod
    def from_arrow(
        cls, table: Any, target: str | Sequence[str], columns: Sequence[str] | None = None
    ) -> BlockStream:
        """Return a stream over the batches of an Arrow table; needs pyarrow."""
        return cls._from_batches(
            table.schema.names,
            table.num_rows,
            lambda names: table.select(names).to_batches(max_chunksize=BLOCK_ROWS),
            target,
            columns,
        )

    @classmethod
    def _from_batches(
        cls,
        known: Sequence[str],
        n_rows: int,
        batches: Callable[[list[str]], Iterable[Any]],
        target: str | Sequence[str],
        columns: Sequence[str] | None,
    ) -> BlockStream:
        targets = [target] if isinstance(target, str) else list(target)
        inputs = [n for n in known if n not in targets] if columns is None else list(columns)
        missing = [name for name in (*targets, *inputs) if name not in known]
        if missing:
            raise DataError(f"The table has no column {missing[0]!r}. Its columns: {list(known)}.")

        def read() -> Iterator[Block]:
            for batch in batches([*inputs, *targets]):
                if batch.num_rows:
                    y = _matrix(batch, targets)
                    yield _matrix(batch, inputs), y[:, 0] if isinstance(target, str) else y
            if not n_rows:
                y = np.empty((0, len(targets)))
                yield np.empty((0, len(inputs))), y[:, 0] if isinstance(target, str) else y

        return cls(read, n_rows)


def _matrix(batch: Any, names: Sequence[str]) -> Array:
    """Return columns of an Arrow batch as a float64 matrix; nulls become NaN, to be refused later."""
    out = np.empty((batch.num_rows, len(names)))
    for i, name in enumerate(names):
        try:
            out[:, i] = as_numbers(batch.column(name))
        except DataError:
            raise DataError(
                f"Column {name!r} of the table holds entries that are not numbers. Encode it with"
                " publicly declared levels first."
            ) from None
    return out


def checked_blocks(stream: BlockStream, *, missing: bool = False) -> Iterator[tuple[Any, Array]]:
    """Yield blocks as finite two-dimensional arrays of equal width, and check the number of rows.

    X is CSR or an array of numbers, to be read with ``dense_rows``; y is float64. ``missing``
    allows NaN in X. Every problem raises DataError without a data value in its text, and before the
    caller has spent anything.
    """
    seen, shape = 0, None
    for number, block in enumerate(stream):
        if not isinstance(block, tuple) or len(block) != 2:
            raise DataError(f"Block {number} of the stream is not a pair (X, y).")
        try:
            X = summed_duplicates(as_table(block[0]))
            y = np.array(as_numbers(block[1]))  # a copy, because the stream may reuse its memory
        except DataError as error:
            raise DataError(f"Block {number} of the stream: {error}") from None
        if X.ndim != 2 or y.ndim not in (1, 2) or X.shape[0] != len(y):
            raise DataError(
                f"Block {number} of the stream has shapes {X.shape} and {y.shape}; it must be (n, d)"
                " and (n,) or (n, k)."
            )
        if shape is not None and (X.shape[1], y.shape[1:]) != shape:
            raise DataError(f"Block {number} of the stream has other columns than the first one.")
        shape = (X.shape[1], y.shape[1:])
        try:
            refuse_missing(X, "nan" if missing else "refused")
            refuse_missing(y)
        except DataError:
            raise DataError(
                f"Block {number} of the stream contains NaN or infinity. Fill missing values with"
                " public constants first."
            ) from None
        seen += len(y)
        if seen > stream.n_rows:
            break
        yield X, y
    if seen != stream.n_rows:
        more = "more" if seen > stream.n_rows else "fewer"
        raise DataError(
            f"The stream was declared with n_rows={stream.n_rows} but has {more} rows. Declare the"
            " true number."
        )


def one_block(X: Any, y: Any, *, missing: bool = False) -> Iterator[tuple[Any, Array]]:
    """Yield a table as one checked block; nothing where it has no row. Without y targets are zeros."""
    n_rows = shape_of(X)[0]
    if n_rows:
        target = np.zeros(n_rows) if y is None else y
        yield from checked_blocks(BlockStream([(X, target)], n_rows=n_rows), missing=missing)


def library_of(value: Any) -> str:
    """Return the top-level package of a value's class, such as "numpy", "dask" or "torch"."""
    return type(value).__module__.partition(".")[0]


def off_device(value: Any) -> Any:
    """Return a torch tensor as an array in main memory, with the same values; anything else as it is."""
    if library_of(value) != "torch":
        return value
    value = value.detach().cpu()
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()


def is_stream(value: Any) -> bool:
    """Return whether a table is a stream, read block by block."""
    return isinstance(value, BlockStream) or library_of(value) == "dask"


def arrow_batches(dataset: Any, names: Sequence[str], rows: int, kind: str) -> Iterator[Any]:
    """Yield batches of these columns of an Arrow data set, with little more memory than one needs.

    Arrow reads whole files ahead by default, so that its memory grows with their size.
    """
    for part in dataset.get_fragments():
        if kind == "parquet" and set(names) <= set(part.physical_schema.names):
            options = {"pre_buffer": False, "buffer_size": _READ_BYTES}
            with part.open() as file:
                found = _arrow("parquet").ParquetFile(file, **options)
                yield from found.iter_batches(rows, columns=list(names), use_threads=False)
        else:
            ahead = {"batch_readahead": 1, "fragment_readahead": 1, "use_threads": False}
            yield from part.to_batches(
                dataset.schema, columns=list(names), batch_size=rows, **ahead
            )


def _arrow(module: str) -> Any:
    try:
        import importlib

        return importlib.import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise ParameterError(
            "Reading Parquet needs the package 'pyarrow'. Install it with: pip install pyarrow"
        ) from error
