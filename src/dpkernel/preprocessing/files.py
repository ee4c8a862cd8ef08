"""A fit to a table from a file, with the shares of its cells and private stand-ins in the same spend."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from sklearn.base import clone

from dpkernel.data.people import People
from dpkernel.data.table_files import LoadedTable, Schema
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.estimators.cell_counts import LABEL, CellCounts
from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.preprocessing.imputer import PrivateImputer
from dpkernel.preprocessing.pipeline import PrivatePipeline

_MOST = 0.5  # the released share of unreadable cells of a column that is warned of


def fit_table(
    model: Any,
    table: LoadedTable,
    *,
    record: str = "auto",
    cell_shares: bool = True,
    resume: str | Path | None = None,
) -> Any:
    r"""Fit an estimator to a table from a file, as ``dpkernel fit`` does.

    Parameters
    ----------
    model : estimator
        A private estimator of the library, with ``bounds=table.bounds``.
    table : LoadedTable
        What ``read_table`` returned. If a group was named, each person is protected with all rows.
    record : str
        How the rows of a person become one record; see ``People``.
    cell_shares : bool
        Whether the shares of missing, unreadable and clipped cells of each column are released with
        noise beside the model, for one hundredth of its mu^2. They are left out where the noise would
        drown them, with pure epsilon, and where the number of records is private.
    resume : str or Path, optional
        A file from which the fit goes on if it is interrupted, without another spend.

    Returns
    -------
    estimator
        The fitted model. Where bounds.toml has ``missing = "private median"`` or ``"private mean"``, it
        is a ``PrivatePipeline`` that finds this number first, within the same budget.

    Notes
    -----
    Guarantee
        Everything is one spend under one claim, which is that of ``model``.
    Released
        ``model.certificate_.free_statistics["cells"]`` has the shares and the deviation of their noise.
        ``write_report(model, path, schema=table.schema)`` says them in words. A column of which most
        cells could not be read is warned of, by the released share.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from dpkernel import PrivateKernelRidge, read_table
    >>> folder = Path(mkdtemp())
    >>> lines = [f"{'' if i % 4 == 0 else i % 50},{i % 9}" for i in range(4000)]
    >>> _ = (folder / "stays.csv").write_text("\n".join(["crp,days", *lines]))
    >>> _ = (folder / "b.toml").write_text(
    ...     "[columns.crp]\nlow = 0\nhigh = 50\nmissing = 5\n"
    ...     "[target]\nname = 'days'\nlow = 0\nhigh = 9\n"
    ... )
    >>> table = read_table(folder / "stays.csv", folder / "b.toml")
    >>> model = fit_table(PrivateKernelRidge(epsilon=3.0, bounds=table.bounds), table)
    >>> shares = model.certificate_.free_statistics["cells"]["shares"]
    >>> 0.2 < shares["crp"]["missing"] < 0.3
    True
    """
    if not isinstance(model, PrivateEstimator):
        raise ParameterError(
            "The 'model' parameter of fit_table must be a private estimator of dpkernel. Got an object"
            f" of type {type(model).__name__}. Pass the arrays of the table to its own fit."
        )
    rows, schema = table.rows, table.schema
    relation = Neighbours.resolve(model.neighbours)
    people = None if schema.group is None else People(rows.ids, record)
    found = _with_imputer(model, schema)
    if found is not model and resume is not None:
        raise ParameterError(
            "A fit can't be resumed where bounds.toml has a 'missing' value that the fit finds. State a"
            " number as 'missing', or leave out 'resume'."
        )
    more: dict[str, Any] = {"groups": people}
    if resume is not None:
        more["resume"] = resume
    X, y = (table.X, table.y) if found is model else rows.training_data(in_memory=True)
    if not (cell_shares and relation.n_is_public):  # shares would tell the number of records
        return found.fit(X, y, **more)
    found._fit_beside(X, y, CellCounts.of(rows), **more)
    released = found.certificate_.free_statistics.get(LABEL, {})
    for name, shares in released.get("shares", {}).items():
        if shares["unreadable"] > _MOST:
            warnings.warn(
                f"Most cells of column {name!r} could not be read, by the released share, and the model"
                " learned nothing from them. `dpkernel check` shows the data's owner why.",
                UserWarning,
                stacklevel=2,
            )
    return found


def _with_imputer(model: Any, schema: Schema) -> Any:
    """Return a pipeline that first finds what replaces missing values, if bounds.toml asks for it."""
    if not any(schema.imputed) or isinstance(model, PrivatePipeline):
        return model
    steps = [
        ("missing values", PrivateImputer(strategy=schema.imputed, bounds=schema.domain())),
        ("model", clone(model).set_params(ledger=None, noise=None)),
    ]
    return PrivatePipeline(
        steps,
        model.epsilon,
        model.delta,
        neighbours=model.neighbours,
        ledger=model.ledger,
        noise=model.noise,
    )
