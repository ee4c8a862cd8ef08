"""A training table of any kind with its public sizes, opened and checked before anything is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dpkernel.data.blocks import BlockStream, checked_blocks, dense_rows, library_of, rows_a_block
from dpkernel.data.cells import as_numbers, shape_of
from dpkernel.data.domain import Domain, Levels
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.estimators.labels import label_codes
from dpkernel.foundations.errors import DataError, ParameterError
from dpkernel.foundations.types import Array


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
    estimator: PrivateEstimator,
    X: Any,
    y: Any,
    *,
    again: bool = False,
    several: bool = True,
    classes: Levels | None = None,
) -> Source:
    """Return the table; the estimator keeps column names aside until the fit has succeeded.

    Parameters
    ----------
    again : bool
        The table is going to be read several times: it is checked as a whole now, and an iterator
        that can be read once is refused.
    several : bool
        y may have several columns; if not, a single column counts as a vector.
    classes : Levels, optional
        y are labels; they become their places among the classes.
    """
    encode = None if classes is None else partial(label_codes, classes=classes)
    owner = type(estimator).__name__
    if isinstance(X, BlockStream):
        if y is not None:
            raise ParameterError("A BlockStream carries its targets: leave y out.")
        if again and not X.can_be_read_again:
            raise ParameterError(
                f"{owner} reads the table several times, and this stream can be read once. Give"
                " BlockStream a function that returns a new iterator at each call."
            )
        stream = X if encode is None else X.map_targets(encode)
        stream = stream if several else stream.map_targets(_as_vector)
        first, blocks = _first_and_all(checked_blocks(stream))
        shape = first[1].shape[1:]
        _check_target(owner, shape, several)
        if again:
            for _ in blocks:
                pass  # every block is checked before anything is spent
        estimator._keep_columns(first[0].shape[1])
        return Source("stream", X.n_rows, first[0].shape[1], shape, stream if again else blocks)
    if library_of(X) == "dask":
        n_rows, n_columns, shape = _dask_shape(X, y)
        if not several and shape == (1,):
            y, shape = (y[y.columns[0]] if hasattr(y, "columns") else y[:, 0]), ()
        _check_target(owner, shape, several)
        estimator._keep_columns(n_columns, getattr(X, "columns", None))
        if again:
            y = _checked_chunks(X, y, encode, (n_rows, n_columns))
        return Source("dask", n_rows, n_columns, shape, X, y)
    if library_of(X) == "torch":
        from dpkernel.estimators.torch_pass import check_tensors

        if encode is not None and library_of(y) == "torch":
            y = _encoded_tensor(y, encode)
        shape = check_tensors(X, y, values=again)
        if not several and shape == (1,):
            y, shape = y[:, 0], ()
        _check_target(owner, shape, several)
        estimator._keep_columns(X.shape[1])
        return Source("torch", len(X), X.shape[1], shape, X, y)
    X, y = estimator._check_training_data(X, y, encode=encode, several=several)
    return Source("array", len(y), X.shape[1], y.shape[1:], X, y)


def _as_vector(y: Any) -> Any:
    values = as_numbers(y)
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _check_target(owner: str, shape: tuple[int, ...], several: bool) -> None:
    if shape != () and not several:
        raise DataError(f"{owner} takes one target: y of shape (n,).")


def read_again(source: Source) -> Iterator[tuple[Any, Array]]:
    """Yield (X, y) in blocks; those of a stream are put together to whole ones."""
    if source.kind == "array":
        yield source.X, source.y
        return
    if source.kind == "torch":
        step = rows_a_block(source.n_columns)
        for start in range(0, source.n_rows, step):
            X, y = (_to_numpy(v[start : start + step]) for v in (source.X, source.y))
            yield X, y
        return
    waiting: list[tuple[Any, Array]] = []
    rows, step = 0, rows_a_block(source.n_columns)
    for X, y in checked_blocks(source.X):
        dense = dense_rows(X, slice(None))
        for start in range(0, len(y), step):
            # a copy: whoever hands out blocks may use their memory again for the next one
            waiting.append((dense[start : start + step].copy(), y[start : start + step]))
            rows += len(waiting[-1][1])
            if rows >= step:
                whole = [np.concatenate(parts) for parts in zip(*waiting, strict=True)]
                yield whole[0][:step], whole[1][:step]
                waiting, rows = [(whole[0][step:], whole[1][step:])], rows - step
    if rows:
        X, y = (np.concatenate(parts) for parts in zip(*waiting, strict=True))
        yield X, y


def _to_numpy(rows: Any) -> Array:
    """Return a tensor as a float64 array in main memory."""
    return np.asarray(rows.detach().cpu().double().numpy())


def unit_inputs(X: Array, domain: Domain, dtype: str) -> Array:
    """Return rows in the unit box, or as they are when no bounds were declared, in a public dtype.

    X is float64, whatever type the table has: one row can change the type of a whole column, and
    rounding to a narrower type before the middle of the box is subtracted would then move all rows.
    """
    X = np.ascontiguousarray(X, dtype=np.float64)  # one way through BLAS, whatever the rows hold
    unit = X if domain.columns is None else domain.to_unit(X)
    if unit.dtype == dtype:
        return unit
    with np.errstate(all="ignore"):  # a warning about an overflow would tell of the data
        return np.asarray(np.nan_to_num(unit.astype(dtype), copy=False))


WRONG_SIZES = "The chunks of a Dask table have other sizes than it says."


def chunk_sizes(X: Any) -> list[int | None]:
    """Return the number of rows of each chunk, None where Dask does not know it."""
    known = getattr(X, "chunks", None)
    if known is None:
        return [None] * len(row_chunks(X))
    return [int(n) if isinstance(n, (int, np.integer)) else None for n in known[0]]


def _checked_chunks(X: Any, y: Any, encode: Any, shape: tuple[int, int]) -> Any:
    """Return y, encoded; every chunk of both is checked where it lies."""
    import dask

    if encode is not None and hasattr(y, "map_partitions"):
        y = y.map_partitions(encode, meta=(None, "f8"))
    elif encode is not None:
        y = y.map_blocks(encode, dtype=float)
    check = dask.delayed(_check_chunk, pure=False)
    sizes = computed(dask, *(check(*pair) for pair in chunk_pairs(X, y)))
    if sum(n for n, _ in sizes) != shape[0] or any(d != shape[1] for n, d in sizes if n):
        raise DataError(WRONG_SIZES)
    return y


def _check_chunk(X: Any, y: Any) -> tuple[int, int]:
    """Return the shape of X."""
    for _ in chunk_block(X, y):
        pass
    n_rows, n_columns = shape_of(X)
    return n_rows, n_columns


def chunk_block(X: Any, y: Any) -> Iterator[tuple[Any, Array]]:
    """Yield the rows of a Dask chunk as one checked block; nothing for an empty chunk."""
    n_rows = shape_of(X)[0]
    if n_rows:
        yield from checked_blocks(BlockStream([(X, y)], n_rows=n_rows))


def _encoded_tensor(y: Any, encode: Callable[[Any], Array]) -> Any:
    import torch

    return torch.as_tensor(encode(y.detach().cpu().numpy()), device=y.device)


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
        # a data frame or a series; Dask may convert cells of it while it builds the graph
        return list(_without_its_text(value.to_delayed))
    if value.ndim == 2 and len(value.chunks[1]) > 1:
        value = value.rechunk({1: -1})
    return list(
        np.asarray(value.to_delayed(), dtype=object).reshape(value.numblocks)[:, ...].ravel()
    )


def chunk_pairs(X: Any, y: Any) -> list[tuple[Any, Any]]:
    """Return the delayed row chunks of two Dask tables, side by side."""
    one, other = row_chunks(X), row_chunks(y)
    if len(one) != len(other):
        raise DataError("X and y have different numbers of Dask chunks along the rows.")
    return list(zip(one, other, strict=True))


def computed(dask: Any, *graphs: Any, spent: bool = False) -> Any:
    """Compute; a failure is reported without its text, which may quote the data."""
    return _without_its_text(lambda: dask.compute(*graphs), spent)


def _without_its_text(compute: Callable[[], Any], spent: bool = False) -> Any:
    try:
        return compute()
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
