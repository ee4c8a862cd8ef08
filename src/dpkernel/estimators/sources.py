"""A training table of any kind with its public sizes, opened and checked before anything is spent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dpkernel.blocks import BlockStream, checked_blocks, dense_rows, library_of, rows_a_block
from dpkernel.domain import Domain, Interval, Levels
from dpkernel.errors import DataError, ParameterError
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.types import Array


@dataclass(frozen=True)
class Source:
    """Rows and targets where they lie, and the sizes that are public.

    ``kind`` is "array" (X is a NumPy array or a CSR matrix, y an array), "stream" (X iterates over
    checked blocks, or is a BlockStream that can be read again; y is None), "dask" or "torch".
    ``n_rows`` counts records: rows, or units where ``shares`` states how much of its unit each row
    is.
    """

    kind: str
    n_rows: int
    n_columns: int
    target_shape: tuple[int, ...]
    X: Any
    y: Any = None
    shares: Any = None


def open_source(
    estimator: PrivateEstimator, X: Any, y: Any, *, again: bool = False, classes: Any = None
) -> Source:
    """Return the table; the estimator keeps column names aside until the fit has succeeded.

    Parameters
    ----------
    again : bool
        The table is going to be read several times: it is checked as a whole now, and an iterator
        that can be read once is refused.
    classes : Levels, optional
        y are labels; they become their places among the classes.
    """
    encode = None if classes is None else partial(label_codes, classes=classes)
    if isinstance(X, BlockStream):
        if y is not None:
            raise ParameterError("A BlockStream carries its targets: leave y out.")
        stream = X if encode is None else X.map_targets(encode)
        if again and not X.can_be_read_again:
            raise ParameterError(
                f"{type(estimator).__name__} reads the table several times, and this stream can be read"
                " once. Give BlockStream a function that returns a new iterator at each call."
            )
        first, blocks = _first_and_all(checked_blocks(stream, (np.float64, np.float32)))
        if again:
            for _ in blocks:
                pass  # every block is checked before anything is spent
        estimator._keep_columns(first[0].shape[1])
        shape = first[1].shape[1:]
        return Source("stream", X.n_rows, first[0].shape[1], shape, stream if again else blocks)
    if library_of(X) == "dask":
        n_rows, n_columns, shape = _dask_shape(X, y)
        estimator._keep_columns(n_columns, getattr(X, "columns", None))
        if again:
            y = _checked_chunks(X, y, encode)
        return Source("dask", n_rows, n_columns, shape, X, y)
    if library_of(X) == "torch":
        from dpkernel.estimators.torch_pass import check_tensors

        y = y if encode is None else _encoded_tensor(y, classes)
        shape = check_tensors(X, y, values=again)
        estimator._keep_columns(X.shape[1])
        return Source("torch", len(X), X.shape[1], shape, X, y)
    if encode is not None:
        X, y = estimator._check_training_data(X, y, encode=encode)
    else:
        X, y = estimator._check_training_data(X, y, multi_output=True)
    return Source("array", len(y), X.shape[1], y.shape[1:], X, y)


def label_codes(y: Any, classes: Levels) -> Array:
    """Return each label's place among the declared classes, as floats."""
    codes = classes.indices(np.asarray(y).reshape(-1))
    if (codes < 0).any():
        raise DataError(
            "y holds a label that is not among the declared 'classes'. Declare every class that can"
            " occur: they are public and never read from the data."
        )
    return codes.astype(np.float64)


def read_again(source: Source) -> Iterator[tuple[Any, Array]]:
    """Yield (X, y); blocks of a stream are put together to whole ones, tensors come in such blocks."""
    if source.kind == "array":
        yield source.X, source.y
        return
    waiting: list[tuple[Any, Array]] = []
    rows, step = 0, rows_a_block(source.n_columns)
    if source.kind == "torch":
        for start in range(0, source.n_rows, step):
            part = slice(start, start + step)
            yield _to_numpy(source.X[part]), _to_numpy(source.y[part]).astype(np.float64)
        return
    for X, y in checked_blocks(source.X, (np.float64, np.float32)):
        dense = dense_rows(X, slice(None))
        for start in range(0, len(y), step):
            waiting.append((dense[start : start + step], y[start : start + step]))
            rows += len(waiting[-1][1])
            if rows >= step:
                whole = [np.concatenate(parts) for parts in zip(*waiting, strict=True)]
                yield whole[0][:step], whole[1][:step]
                waiting, rows = [(whole[0][step:], whole[1][step:])], rows - step
    if rows:
        X, y = (np.concatenate(parts) for parts in zip(*waiting, strict=True))
        yield X, y


def _to_numpy(rows: Any) -> Array:
    """Return a tensor as an array in main memory, in float32 or float64."""
    found = rows.detach().cpu()
    if str(found.dtype) not in ("torch.float32", "torch.float64"):
        found = found.double()
    return np.asarray(found.numpy())


def unit_inputs(X: Array, domain: Domain, dtype: str) -> Array:
    """Return rows in the unit box, or as they are when no bounds were declared.

    Columns of levels are compared before a change of precision, which would miss them.
    """
    if all(isinstance(column, Interval) for column in domain.columns or ()):
        X = _in_precision(X, dtype)
        return X if domain.columns is None else domain.to_unit(X)
    return _in_precision(domain.to_unit(X), dtype)


def _in_precision(X: Array, dtype: str) -> Array:
    if X.dtype == dtype:
        return X
    with np.errstate(all="ignore"):  # a warning about an overflow would tell of the data
        return np.asarray(np.nan_to_num(X.astype(dtype), copy=False))


def _checked_chunks(X: Any, y: Any, encode: Any) -> Any:
    """Return y, encoded; every chunk of both is checked where it lies."""
    import dask

    if encode is not None:
        frame = hasattr(y, "map_partitions")
        y = (
            y.map_partitions(encode, meta=(None, "f8"))
            if frame
            else y.map_blocks(encode, dtype=float)
        )
    chunks = zip(row_chunks(X), row_chunks(y), strict=True)
    computed(dask, *(dask.delayed(_check_chunk, pure=False)(a, b) for a, b in chunks))
    return y


def _check_chunk(X: Any, y: Any) -> None:
    rows, targets = X if issparse(X) else np.asarray(X), np.asarray(y)
    if rows.shape[0]:
        stream = BlockStream([(rows, targets)], n_rows=rows.shape[0])
        for _ in checked_blocks(stream, (np.float64, np.float32)):
            pass


def _encoded_tensor(y: Any, classes: Levels) -> Any:
    import torch

    return torch.as_tensor(label_codes(y.detach().cpu().numpy(), classes), device=y.device)


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


def computed(dask: Any, *graphs: Any, spent: bool = False) -> Any:
    """Compute; a failure is reported without its text, which may quote the data."""
    try:
        return dask.compute(*graphs)
    except DataError:
        raise
    except Exception as error:
        cost = "The fit's budget was spent before" if spent else "Nothing was spent"
        raise DataError(
            f"The Dask graph failed with {type(error).__name__}. {cost}; compute it by itself to see"
            " why."
        ) from None


def _first_and_all(blocks: Iterator[Any]) -> tuple[Any, Iterator[Any]]:
    """Return the first block, and an iterator over all of them."""
    first = next(blocks)

    def again() -> Iterator[Any]:
        yield first
        yield from blocks

    return first, again()
