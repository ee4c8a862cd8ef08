"""An encoded table: in memory if it is small, otherwise in an unnamed temporary file."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpkernel.data.blocks import BlockStream, rows_a_block
from dpkernel.data.domain import Levels
from dpkernel.data.table_files.readers import TableFile, Tell
from dpkernel.data.table_files.schema import STATES, UNREADABLE, Schema
from dpkernel.foundations.errors import DataError
from dpkernel.foundations.types import Array, IntArray

MEMORY_BYTES = 2**27  # largest encoded table that is kept in memory


class EncodedTable:
    """Rows of (encoded inputs, target), appended in blocks and read as often as needed.

    The ids of people stay in memory.

    Up to ``MEMORY_BYTES`` the rows stay in memory. Larger tables go to a temporary file without a
    name, which only its owner may read. It disappears when the process ends, however it ends.

    Parameters
    ----------
    schema : Schema
        The declared columns.
    folder : path, optional
        Where the temporary file is made; by default where the system keeps such files.
    strict : bool
        Whether the rows are of a file that is refused if one of its cells can't be read.
    """

    def __init__(self, schema: Schema, folder: Path | None = None, *, strict: bool = False) -> None:
        self.schema, self.strict = schema, strict
        self.n_columns = len(schema.names_out)
        self.n_rows = 0
        self.ids: list[Any] = []  # of the people whose rows these are, if the schema has a group
        self._width = self.n_columns + (schema.target is not None)
        self._folder = folder
        self._blocks: list[Array] = []
        self._file: Any = None
        self._lock = threading.Lock()
        # exact, so it must not leave without noise: the cells of each rule in each of STATES
        self.counts = np.zeros((len(schema.rules), len(STATES)), dtype=np.int64)
        self._states: list[Any] = []  # the same of each row, if the schema has a group

    def count(self, states: Sequence[IntArray]) -> None:
        """Count what became of the cells of a block, given for each rule of the schema."""
        for place, found in enumerate(states):
            self.counts[place] += np.bincount(found, minlength=len(STATES))
        if self.schema.group is not None:
            self._states.append(np.column_stack(states).astype(np.uint8))

    @property
    def unreadable(self) -> dict[str, int]:
        """The number of unreadable cells of each column that has some. It is exact, as ``counts`` is."""
        lost = self.counts[:, UNREADABLE].tolist()
        return {
            rule.name: count for rule, count in zip(self.schema.rules, lost, strict=True) if count
        }

    @property
    def states(self) -> Any:
        """What became of the cells of every row, one column per rule, if the schema has a group."""
        return np.concatenate(self._states)

    def append(self, rows: Array) -> None:
        """Add a block of rows."""
        self.n_rows += len(rows)
        if self._file is not None:
            self._file.write(rows.tobytes())
            return
        self._blocks.append(rows)
        if 8 * self.n_rows * self._width > MEMORY_BYTES:
            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)
            for block in self._blocks:
                self._file.write(block.tobytes())
            self._blocks = []

    @property
    def in_memory(self) -> bool:
        """Whether no temporary file was needed."""
        return self._file is None

    def arrays(self) -> tuple[Array, Array | None]:
        """Return inputs and targets (numbers, or places among the classes); may be memory maps."""
        shape = (self.n_rows, self._width)
        if self._file is None:
            self._blocks = [np.concatenate([np.empty((0, self._width)), *self._blocks])]
            rows = self._blocks[0]
        else:
            rows = np.memmap(self._file, np.float64, "r", shape=shape)
        return rows[:, : self.n_columns], rows[:, -1] if self.schema.target is not None else None

    def training_data(self, *, in_memory: bool = False) -> tuple[Any, Any]:
        """Return the arguments of ``fit``: two arrays, or a stream and None; labels as declared.

        With ``in_memory`` they are arrays, whatever the size of the table. With a group they are
        always arrays, too. The number of rows is then private, and a choice between a stream and
        arrays by size would reveal something about it.
        """
        if self._file is None or in_memory or self.schema.group is not None:
            X, y = self.arrays()
            return np.ascontiguousarray(X) if self.in_memory else X, self._labels(y)
        return BlockStream(self._read, self.n_rows), None

    def _read(self) -> Iterator[tuple[Array, Any]]:
        step = rows_a_block(self._width)
        for start in range(0, self.n_rows, step):
            count = min(step, self.n_rows - start)
            size = 8 * self._width
            with self._lock:
                self._file.seek(start * size)
                data = self._file.read(count * size)
            rows = np.frombuffer(data, np.float64).reshape(count, self._width)
            yield rows[:, : self.n_columns], self._labels(rows[:, -1])

    def _labels(self, y: Array | None) -> Any:
        target = self.schema.target
        if y is None or target is None or not isinstance(target.values, Levels):
            return y
        labels = np.empty(len(target.values.values), dtype=object)
        labels[:] = target.values.values
        return labels[y.astype(np.int64)]


def encode_table(
    table: TableFile,
    schema: Schema,
    *,
    tell: Tell = lambda share: None,
    folder: Path | None = None,
    strict: bool = False,
    may_be_empty: bool = False,
) -> EncodedTable:
    """Read a file once, under the rules of the schema.

    Parameters
    ----------
    table : TableFile
        The file, as ``open_table`` returns it.
    schema : Schema
        The declared columns.
    tell : callable
        It is called with the share of the file that was read so far, from 0 to 1.
    folder : path, optional
        The folder of a temporary copy, if the table does not fit in memory.
    strict : bool
        Whether to refuse a file with a cell that is not empty and can't be read as it is declared.
    may_be_empty : bool
        Whether a file without rows is allowed, for fits whose number of records is private.

    Returns
    -------
    EncodedTable
        The encoded rows, which can be read as often as needed.
    """
    schema = schema.select(table.header, table.name)
    schema.refuse_kinds(table)
    if not schema.inputs:
        raise DataError(
            f"{table.name} has no input column besides the target and the ignored ones."
        )
    found = EncodedTable(schema, folder, strict=strict)
    names = [rule.name for rule in schema.rules] + ([schema.group] if schema.group else [])
    for columns in table.read(names, tell):
        found.ids += schema.ids(columns)
        reading = schema.read(columns, table.spelling)
        found.count([states for _, states in reading.values()])
        if strict and found.counts[:, UNREADABLE].any():
            raise DataError(unreadable_message(table.name))
        X = schema.encoded(reading)
        if schema.target is not None:
            X = np.column_stack([X, schema.encoded_target(reading)])
        found.append(X)
    if not found.n_rows and not may_be_empty:
        raise DataError(f"{table.name} has no rows.")
    return found


def unreadable_message(name: str) -> str:
    """Return what is said of a file that ``strict`` refuses."""
    return (
        f"A cell of {name} can't be read as bounds.toml declares it. `dpkernel check` shows the data's"
        " owner where. Such a file is refused with --strict, and in Python unless strict=False is"
        " passed. Nothing was spent."
    )


def unreadable_note(name: str, lost: int, count: int) -> str:
    """Return what is said of a column of new rows with cells that can't be read."""
    return (
        f"{lost} of {count} cells of column {name!r} can't be read as the model needs them; the same"
        " values stand in as in the fit. Is --decimal, --thousands or --encoding missing?"
    )
