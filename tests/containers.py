"""One table in other containers: streams, Dask and torch."""

from __future__ import annotations

import pandas as pd
import pytest

from dpkernel import BlockStream


def stream(X, y, size):
    """Return a stream of blocks of this many rows."""

    def read():
        for start in range(0, len(y), size):
            yield X[start : start + size], y[start : start + size]

    return BlockStream(read, n_rows=len(y))


def dask_arrays(X, y, rows, columns):
    """Return Dask arrays with chunks of this shape."""
    array = pytest.importorskip("dask.array")
    return array.from_array(X, chunks=(rows, columns)), array.from_array(y, chunks=rows)


def dask_frame(X, y):
    """Return a Dask frame in three parts."""
    frame = pytest.importorskip("dask.dataframe")
    table = frame.from_pandas(pd.DataFrame(X, columns=list("abcde")[: X.shape[1]]), npartitions=3)
    return table, frame.from_pandas(pd.Series(y), npartitions=3)


def tensors(X, y):
    """Return torch tensors."""
    torch = pytest.importorskip("torch")
    return torch.as_tensor(X), torch.as_tensor(y)
