"""A keyed fingerprint of a table: equal for equal rows in equal order, and nothing without the key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from dpkernel.data.cache import raw_bytes
from dpkernel.data.passes import Passes
from dpkernel.data.sources import Source


def table_fingerprint(source: Source, key: bytes) -> str:
    """Return the fingerprint of all rows and targets, as they are read; one pass over the table."""
    sizes = source.kind, source.n_rows, source.n_columns, source.target_shape
    whole = hashlib.blake2b(repr(sizes).encode(), key=key, digest_size=32)
    for table in (source, *source.more):
        for part in Passes(table).run(_digest, key):
            whole.update(part)
    return whole.hexdigest()


def _digest(blocks: Iterable[tuple[Any, ...]], key: bytes) -> bytes:
    found = hashlib.blake2b(key=key, digest_size=32)
    for block in blocks:
        for values in map(np.ascontiguousarray, block):
            found.update(raw_bytes(values))
    return found.digest()
