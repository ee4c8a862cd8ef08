"""A training table of any kind with its public sizes, opened and checked before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpkernel.blocks import BlockStream, checked_blocks, library_of
from dpkernel.errors import DataError, ParameterError
from dpkernel.estimators.base import PrivateEstimator


@dataclass(frozen=True)
class Source:
    """Rows and targets where they lie, and the sizes that are public.

    ``kind`` is "array" (X is a NumPy array or a CSR matrix, y an array), "stream" (X iterates over
    checked blocks, y is None), "dask" or "torch".
    """

    kind: str
    n_rows: int
    n_columns: int
    target_shape: tuple[int, ...]
    X: Any
    y: Any = None


def open_source(estimator: PrivateEstimator, X: Any, y: Any) -> Source:
    """Return the table; the estimator keeps column names aside until the fit has succeeded."""
    if isinstance(X, BlockStream):
        if y is not None:
            raise ParameterError("A BlockStream carries its targets: leave y out.")
        first, blocks = _first_and_all(checked_blocks(X, (np.float64, np.float32)))
        estimator._keep_columns(first[0].shape[1])
        return Source("stream", X.n_rows, first[0].shape[1], first[1].shape[1:], blocks)
    if library_of(X) == "dask":
        n_rows, n_columns, shape = _dask_shape(X, y)
        estimator._keep_columns(n_columns, getattr(X, "columns", None))
        return Source("dask", n_rows, n_columns, shape, X, y)
    if library_of(X) == "torch":
        from dpkernel.estimators.torch_pass import check_tensors

        shape = check_tensors(X, y)
        estimator._keep_columns(X.shape[1])
        return Source("torch", len(X), X.shape[1], shape, X, y)
    X, y = estimator._check_training_data(X, y, multi_output=True)
    return Source("array", len(y), X.shape[1], y.shape[1:], X, y)


def _dask_shape(X: Any, y: Any) -> tuple[int, int, tuple[int, ...]]:
    """Return rows, columns and the shape of one target; counts rows where Dask does not know them."""
    import dask

    lengths = []
    if not hasattr(y, "to_delayed"):
        raise DataError("X is a Dask table, so y must be one, too.")
    for value in (X, y):
        length = value.shape[0]
        if not isinstance(length, (int, np.integer)):  # unknown chunks, or a data frame
            counts = [dask.delayed(len)(chunk) for chunk in row_chunks(value)]
            length = sum(computed(dask, *counts))
        lengths.append(int(length))
    if lengths[0] != lengths[1]:
        raise DataError(f"Found input variables with inconsistent numbers of samples: {lengths}.")
    if len(X.shape) != 2 or lengths[0] < 1:
        raise DataError("X must be a Dask array or data frame with rows and columns.")
    return lengths[0], int(X.shape[1]), tuple(int(k) for k in y.shape[1:])


def row_chunks(value: Any) -> list[Any]:
    """Return one delayed object a row chunk."""
    if (hasattr(value, "partitions") and hasattr(value, "columns")) or hasattr(value, "to_frame"):
        return list(value.to_delayed())  # a data frame or a series
    if value.ndim == 2 and len(value.chunks[1]) > 1:
        value = value.rechunk({1: -1})
    return list(
        np.asarray(value.to_delayed(), dtype=object).reshape(value.numblocks)[:, ...].ravel()
    )


def computed(dask: Any, *graphs: Any) -> Any:
    """Compute; a failure is reported without its text, which may quote the data."""
    try:
        return dask.compute(*graphs)
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"The Dask graph failed with {type(error).__name__}. Nothing was spent; compute it by itself"
            " to see why."
        ) from None


def _first_and_all(blocks: Iterator[Any]) -> tuple[Any, Iterator[Any]]:
    """Return the first block, and an iterator over all of them."""
    first = next(blocks)

    def again() -> Iterator[Any]:
        yield first
        yield from blocks

    return first, again()
