"""Dask tables: chunks of rows, worked on where they lie or fetched one after the other.

A failure is reported without its text, which may quote the data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dpkernel.data.blocks import BlockStream, checked_blocks, one_block
from dpkernel.data.cells import has, shape_of
from dpkernel.foundations.errors import DataError, NoRowsError
from dpkernel.foundations.types import Array

if TYPE_CHECKING:
    from dpkernel.data.sources import Source

WRONG_SIZES = "The chunks of a Dask table have other sizes than it says."
_NO_ROWS = "X must be a Dask array or data frame with rows and columns."
_MERGED = 8  # results that a worker merges at once
_SHARE = 0.4  # of the free memory of the workers of a cluster, for what a fit keeps there

logger = logging.getLogger("dpkernel")


def table_shape(X: Any, *targets: Any) -> tuple[int | None, int, tuple[int, ...]]:
    """Return rows, columns and the shape of one target, () where there is none.

    The number of rows is None where Dask does not know it. Then whoever reads the chunks counts them.
    """
    if not all(has(y, "to_delayed") for y in targets):
        raise DataError("X is a Dask table, so y must be one, too.")
    lengths = [_known_rows(value) for value in (X, *targets)]
    known = [length for length in lengths if length is not None]
    if len(set(known)) > 1:
        raise DataError(f"Found input variables with inconsistent numbers of samples: {lengths}.")
    if len(X.shape) != 2:
        raise DataError(_NO_ROWS)
    if known and known[0] < 1:
        raise NoRowsError(_NO_ROWS)
    shape = targets[0].shape[1:] if targets else ()
    n_rows = known[0] if len(known) == len(lengths) else None
    return n_rows, int(X.shape[1]), tuple(int(k) for k in shape)


def count_rows(X: Any, y: Any = None) -> int:
    """Return the number of rows of Dask tables; unknown sizes are counted by one pass over them."""
    import dask

    known = _known_rows(X)
    if y is None and known:
        return known
    sizes = computed(*(dask.delayed(_lengths)(*pair) for pair in chunk_pairs(X, y)))
    lengths = [sum(size[place] for size in sizes) for place in range(len(sizes[0]))]
    if len(set(lengths)) > 1:
        raise DataError(f"Found input variables with inconsistent numbers of samples: {lengths}.")
    if lengths[0] < 1:
        raise NoRowsError(_NO_ROWS)
    return int(lengths[0])


def _known_rows(value: Any) -> int | None:
    length = value.shape[0]
    return int(length) if isinstance(length, (int, np.integer)) else None


def _lengths(X: Any, y: Any) -> tuple[int, ...]:
    return tuple(shape_of(value)[0] for value in (X, y) if value is not None)


def row_chunks(value: Any, **options: Any) -> list[Any]:
    """Return one delayed object per chunk of rows."""
    if _is_frame(value):
        # Dask may convert cells of a frame while it builds the graph
        return list(_without_its_text(lambda: value.to_delayed(**options)))
    if value.ndim == 2 and len(value.chunks[1]) > 1:
        value = value.rechunk({1: -1})
    chunks = np.asarray(value.to_delayed(**options), dtype=object)
    return list(chunks.reshape(value.numblocks).ravel())


def _is_frame(value: Any) -> bool:
    """Whether a Dask table is a data frame or a series."""
    frame = hasattr(value, "partitions") and hasattr(value, "columns")
    return frame or hasattr(value, "to_frame")


def chunk_pairs(X: Any, y: Any) -> list[tuple[Any, Any]]:
    """Return the delayed chunks of two Dask tables, side by side; y may be None."""
    if y is None:
        return [(chunk, None) for chunk in row_chunks(X)]
    if _is_frame(X) and _is_frame(y) and X.npartitions == y.npartitions:
        # one graph for both: alone, each may be read in partitions of another size
        whole = X.map_partitions(
            _side_by_side, y, align_dataframes=False, enforce_metadata=False, meta=X._meta
        )
        return [(chunk[0], chunk[1]) for chunk in row_chunks(whole)]
    # optimised alone, each of two parts of one table would read the table
    apart = not _is_frame(X) and not _is_frame(y) and not set(X.dask.layers) & set(y.dask.layers)
    one, other = (row_chunks(value, optimize_graph=apart) for value in (X, y))
    if len(one) != len(other):
        raise DataError(
            "X and y have different numbers of Dask chunks along the rows. If both are columns of one"
            " table, call persist() or repartition() on the table, and take the columns then."
        )
    return list(zip(one, other, strict=True))


def aligned(X: Any, y: Any) -> tuple[Any, Any]:
    """Return two Dask tables in the same chunks, if they are in different ones of unknown sizes.

    Columns of one folder become such arrays where Dask reads few columns in fewer pieces than many,
    and an array of few columns may stand beside a frame of many.
    """
    if y is None or (_is_frame(X) and _is_frame(y)):
        return X, y
    if _pieces(X) == _pieces(y):
        return X, y
    X, y = (value.values if _is_frame(value) else value for value in (X, y))
    if X.numblocks[0] == y.numblocks[0]:
        return X, y
    if None not in (_known_rows(X), _known_rows(y)):
        return X, y  # whoever knows the sizes has chosen them
    X, y = _measured(X), _measured(y)
    return X, y.rechunk({0: X.chunks[0]}) if X.shape[0] == y.shape[0] else y


def _pieces(value: Any) -> int:
    """Return the number of chunks along the rows."""
    return int(value.npartitions if _is_frame(value) else value.numblocks[0])


def _measured(value: Any) -> Any:
    """Return an array with the sizes of its chunks, which are counted."""
    import dask

    sizes = computed(*(dask.delayed(len)(chunk) for chunk in row_chunks(value)))
    return type(value)(value.dask, value.name, (tuple(sizes), *value.chunks[1:]), meta=value._meta)


def _side_by_side(X: Any, y: Any) -> tuple[Any, Any]:
    return X, y


def in_chunks(
    source: Source,
    work: Callable[..., Any],
    *arguments: Any,
    merge: Callable[[list[Any]], Any] | None = None,
    spent: bool = False,
) -> list[Any]:
    """Return work(blocks, *arguments) of every chunk, computed where it lies, in the order of the rows.

    Workers ship results, not rows. With ``merge``, which makes one result of several that follow each
    other, they also merge them, and one is returned. A chunk that is lost with its worker is computed
    again by Dask. Every chunk must have the size that the table says.
    """
    parts = _chunk_tasks(source, work, arguments)
    return list(computed(*merged(parts, merge), spent=spent))


def _chunk_tasks(source: Source, work: Callable[..., Any], arguments: Any) -> list[Any]:
    """Return one task per chunk."""
    import dask

    task = dask.delayed(_on_chunk, pure=False)
    rest = source.missing, work, arguments
    pairs = chunk_pairs(source.X, source.y)
    sizes = _chunk_sizes(source.X) or [None] * len(pairs)
    return [task(*pair, size, *rest) for pair, size in zip(pairs, sizes, strict=True)]


def merged(parts: list[Any], merge: Callable[[list[Any]], Any] | None) -> list[Any]:
    """Return the tasks that merge results in a tree, or the tasks themselves without ``merge``."""
    import dask

    while merge is not None and len(parts) > 1:
        join = dask.delayed(merge, pure=False)
        parts = [join(parts[i : i + _MERGED]) for i in range(0, len(parts), _MERGED)]
    return parts


# --- what the workers of a cluster keep ---------------------------------------------------------------


def cluster() -> Any:
    """Return the client of the cluster that computes Dask graphs now; None if this process does."""
    try:
        from distributed import default_client

        return default_client()  # type: ignore[no-untyped-call]
    except (ImportError, ValueError):
        return None


def fits_on_workers(client: Any, size: int) -> bool:
    """Return whether the workers have room for this many bytes; if not, say what would help."""
    workers = _workers(client)
    free = [w["memory_limit"] - w["metrics"].get("memory", 0) for w in workers if w["memory_limit"]]
    if size <= _SHARE * sum(max(part, 0) for part in free):
        return True
    logger.warning(
        "The workers have no room to keep %.1f GB of features, so each pass computes them again. More"
        " workers or more memory would help. persist() on the table, before you take its columns,"
        " saves reading the rows again.",
        size / 2**30,
    )
    return False


def _workers(client: Any) -> list[Any]:
    """Return what the scheduler knows about each worker.

    Every two seconds the client replaces its copy by one without workers, also between asking and
    answering. So an answer that lists fewer workers than it counts is asked for again.
    """
    for _ in range(100):
        found = client.scheduler_info(n_workers=-1)
        if len(found["workers"]) >= found.get("n_workers", 0):
            break
    return list(found["workers"].values())


def persisted(source: Source, work: Callable[..., Any], arguments: Any, spent: bool) -> list[Any]:
    """Return the results of the chunks, kept where they were computed.

    A result that is lost with its worker is computed again by Dask.
    """
    return _kept_there(_chunk_tasks(source, work, arguments), spent)


def persisted_after(parts: list[Any], work: Callable[..., Any], arguments: Any, spent: bool) -> Any:
    """Return the results of work on what is kept already, kept there as well."""
    import dask

    return _kept_there([dask.delayed(work, pure=False)(p, *arguments) for p in parts], spent)


def _kept_there(tasks: list[Any], spent: bool) -> list[Any]:
    import dask

    found = list(_without_its_text(lambda: dask.persist(*tasks), spent))
    computed(*(dask.delayed(len)(part) for part in found), spent=spent)  # a failure shows here
    return found


def on_kept(
    parts: list[Any],
    work: Callable[..., Any],
    *arguments: Any,
    merge: Callable[[list[Any]], Any] | None = None,
    spent: bool = False,
) -> list[Any]:
    """Return work(kept, *arguments) for what was kept of every chunk, as ``in_chunks`` does."""
    import dask

    tasks = [dask.delayed(work, pure=False)(part, *arguments) for part in parts]
    return list(computed(*merged(tasks, merge), spent=spent))


def fetched(source: Source, *, spent: bool = False) -> Iterator[tuple[Any, Array]]:
    """Yield the chunks one after the other, checked: a graph may give other rows the next time."""

    def chunks() -> Iterator[tuple[Any, Any]]:
        for pair in chunk_pairs(source.X, source.y):
            rows, target = computed(*pair, spent=spent)
            if size := shape_of(rows)[0]:
                yield rows, np.zeros(size) if target is None else target

    return checked_blocks(BlockStream(chunks, source.n_rows), missing=source.missing)


def computed(*graphs: Any, spent: bool = False) -> Any:
    """Compute; a failure is reported without its text."""
    import dask

    return _without_its_text(lambda: dask.compute(*graphs), spent)


def _on_chunk(
    X: Any, y: Any, size: int | None, missing: bool, work: Callable[..., Any], arguments: Any
) -> Any:
    if size is not None and shape_of(X)[0] != size:
        raise DataError(WRONG_SIZES)
    return work(one_block(X, y, missing=missing), *arguments)


def _chunk_sizes(X: Any) -> list[int | None] | None:
    """Return the number of rows of each chunk of an array, None where Dask does not know it."""
    known = getattr(X, "chunks", None)
    if known is None:
        return None
    return [int(n) if isinstance(n, (int, np.integer)) else None for n in known[0]]


def _without_its_text(compute: Callable[[], Any], spent: bool = False) -> Any:
    try:
        return compute()
    except DataError:
        raise
    except Exception as error:  # it may quote a cell, so it must be no context
        kind = type(error).__name__
    cost = "The fit's budget was spent before" if spent else "Nothing was spent"
    raise DataError(f"The Dask graph failed with {kind}. {cost}; compute it by itself to see why.")
