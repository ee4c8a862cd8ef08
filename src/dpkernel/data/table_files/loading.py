"""Files of rows for Python, read under the rules of bounds.toml as on the command line."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from dpkernel.data.domain import Domain
from dpkernel.data.table_files.readers import TableFile, is_text_file, open_table
from dpkernel.data.table_files.schema import Schema, middles, read_schema
from dpkernel.data.table_files.spelling import Spelling
from dpkernel.data.table_files.spool import EncodedTable, encode_table, unreadable_note


@dataclass(frozen=True, eq=False)
class LoadedTable:
    """What :func:`read_table` found in a file. It holds private data.

    Attributes
    ----------
    X : ndarray or BlockStream
        The encoded inputs: a column of 0 and 1 per level, and of each indicator, beside the numbers.
        A table above 128 MB without ``group`` is a stream that holds the target, too.
    y : ndarray or None
        The target, clipped to its range, or its labels.
    groups : list or None
        Whose row each row is, if a group was named.
    bounds : Domain
        The declared ranges and names of the encoded inputs, and the target: what the parameter
        ``bounds`` of an estimator takes. It is public.
    schema : Schema
        The rules by which the cells were read. They are public; ``write_report`` takes them.
    rows : EncodedTable
        The rows as they were read, from which ``fit_table`` counts cells.
    """

    X: Any
    y: Any
    groups: list[Any] | None
    bounds: Domain
    schema: Schema
    rows: EncodedTable

    @classmethod
    def of(cls, rows: EncodedTable) -> Self:
        """Return the table of a file that was read."""
        X, y = rows.training_data()
        goal = rows.schema.target
        domain = replace(rows.schema.domain(), target=None if goal is None else goal.values)
        ids = None if rows.schema.group is None else rows.ids
        return cls(X, y, ids, domain, rows.schema, rows)

    def new_rows(
        self, path: str | Path, *, strict: bool | None = None, **written: str | None
    ) -> Any:
        """Return the inputs of another file, encoded by the same rules, for ``predict``.

        Other columns of the file are ignored. The options are those of :func:`read_table`, and
        ``strict`` is by default as it was there. Without it, a warning counts the unreadable cells.
        """
        table = open_declared(path, written.pop("format", None), self.schema, **written)
        schema = self.schema.of_new_rows(table.header)
        strict = self.rows.strict if strict is None else strict
        rows = encode_table(table, schema, strict=strict, may_be_empty=True)
        for name, lost in rows.unreadable.items():
            note = unreadable_note(name, lost, rows.n_rows)
            warnings.warn(f"New rows hold unreadable cells: {note}", UserWarning, stacklevel=2)
        return rows.arrays()[0]

    def __repr__(self) -> str:
        """Name the columns, and say nothing of the rows."""
        return f"<LoadedTable with the inputs {', '.join(self.schema.names_in)}>"


def read_table(
    path: str | Path,
    bounds: str | Path,
    target: str | None = None,
    group: str | None = None,
    *,
    strict: bool = True,
    delimiter: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    encoding: str | None = None,
    format: str | None = None,
) -> LoadedTable:
    r"""Read a file of rows under the rules of a bounds.toml, for the ``fit`` of an estimator.

    The rules are those of the command line: decimal commas, dates, limits such as "<0.5", codes for
    missing values, levels and indicators. Each rule is public and looks at one cell at a time.

    Parameters
    ----------
    path : str or Path
        A CSV, TSV, Parquet, Arrow or NPZ file; a CSV or TSV file may be compressed.
    bounds : str or Path
        The bounds.toml, which states what is public about every column.
    target : str, optional
        The column to predict, if bounds.toml does not name it.
    group : str, optional
        The column with the ids of people.
    strict : bool
        Whether to refuse the file if a cell that is not empty can't be read as declared. Otherwise the
        ``missing`` value of the column stands in, or the middle of its range. A warning names the
        columns of which the middle stands in.
    delimiter, decimal, thousands, encoding, format : str, optional
        How the file is written. They come before what bounds.toml states under [file].

    Returns
    -------
    LoadedTable
        The inputs, the target, the ids and the declared domain.

    Notes
    -----
    Not covered
        Whether a strict reading refuses a file depends on the data, as every refusal does. It happens
        before anything is spent.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> _ = (folder / "stays.csv").write_text("crp;days\n<0,5;3\n7,1;4,5\n")
    >>> _ = (folder / "b.toml").write_text(
    ...     '[file]\ndelimiter = ";"\ndecimal = ","\n[columns.crp]\nlow = 0\nhigh = 300\n'
    ...     'limits = true\n[target]\nname = "days"\nlow = 0\nhigh = 60\n'
    ... )
    >>> table = read_table(folder / "stays.csv", folder / "b.toml")
    >>> table.X.tolist(), table.y.tolist(), table.bounds.names
    ([[0.5], [7.1]], [3.0, 4.5], ('crp',))
    """
    schema = read_schema(bounds, target, group)
    table = open_declared(
        path,
        format,
        schema,
        delimiter=delimiter,
        decimal=decimal,
        thousands=thousands,
        encoding=encoding,
    )
    hidden = schema.n_max is not None  # bounds.toml says that the number of records is private
    rows = encode_table(table, schema, strict=strict, may_be_empty=hidden)
    stood_in = middles(rows.schema)
    if stood_in:
        warnings.warn(
            f"bounds.toml leaves out 'missing' of some columns. {stood_in}",
            UserWarning,
            stacklevel=2,
        )
    return LoadedTable.of(rows)


def written_as(schema: Schema | None = None, **given: str | None) -> dict[str, str]:
    """Return how a file is written: as the options say, and else as bounds.toml or the model says."""
    stated = {name: value for name, value in given.items() if value is not None}
    return {**dict(schema.written if schema is not None else ()), **stated}


def open_declared(
    path: str | Path, kind: str | None, schema: Schema | None = None, **given: str | None
) -> TableFile:
    """Return the table in a file. Only options, and no declaration, may say odd things of a file."""
    written = written_as(schema, **given)
    if not is_text_file(path, kind):
        written = {name: value for name, value in written.items() if given.get(name) is not None}
    spelling = Spelling(written.get("decimal", "."), written.get("thousands"))
    return open_table(
        path,
        delimiter=written.get("delimiter"),
        kind=kind,
        encoding=written.get("encoding"),
        spelling=spelling,
    )
