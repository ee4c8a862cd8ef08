"""Record the values that mechanisms release during a fit, under their labels in the certificate.

A certificate covers every value that was released with noise, not only the model that is computed from
these values. An attacker may see all of them, so an audit looks at them. It wraps ``release`` of every
registered mechanism during one fit. A release inside another one, such as the fit of a candidate inside
a private search, is covered only as a part of the outer one and is not recorded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import numpy as np

from dpkernel.privacy.certificate import Certificate
from dpkernel.privacy.mechanisms import PROCEDURES, REGISTRY, Mechanism

Recorded = tuple[Mechanism, np.ndarray]
_DOORS = ("release", "release_gram")
# prefixes of labels, in the names of what is seen: for a released value, and for its component along
# the direction in which it moves between the two tables
RELEASED, MATCHED = "released: ", "along its move: "


@contextlib.contextmanager
def recording() -> Iterator[list[Recorded]]:
    """Record every outermost release of the current thread, in order."""
    seen: list[Recorded] = []
    depth = 0

    def recorded(honest: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(honest)
        def release(self: Mechanism, *args: Any, **options: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                value = honest(self, *args, **options)
            finally:
                depth -= 1
            if depth == 0:
                array = value if isinstance(value, np.ndarray) else None
                if array is None and isinstance(value, (bool, int, float, np.generic)):
                    array = np.asarray(value)
                if array is not None and array.dtype.kind in "biuf":
                    seen.append((self, np.array(array)))
            return value

        return release

    honest = {
        (kind, name): vars(kind)[name]
        for kind in (*REGISTRY.values(), *PROCEDURES.values())
        for name in _DOORS
        if name in vars(kind)
    }
    try:
        for (kind, name), function in honest.items():
            setattr(kind, name, recorded(function))
        yield seen
    finally:
        for (kind, name), function in honest.items():
            setattr(kind, name, function)


def released_by_label(
    seen: Sequence[Recorded], certificate: Certificate | None
) -> dict[str, list[np.ndarray]]:
    """Return the recorded values under the labels of the certificate. Other values are left out.

    A value belongs to the first release of the certificate with this mechanism that has draws left.
    """
    found: dict[str, list[np.ndarray]] = {}
    if not isinstance(certificate, Certificate):
        return found
    for mechanism, value in seen:
        for release in certificate.releases:
            taken = found.get(release.label, [])
            if release.mechanism == mechanism and len(taken) < release.draws * release.folds:
                found.setdefault(release.label, []).append(value)
                break
    return found
