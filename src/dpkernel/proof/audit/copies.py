"""Copies of an estimator for an audit: without a ledger, and each with noise of its own.

Of our estimators ``noise`` is the source. Of a third party it is whatever fixes the random numbers
of a fit: ``random_state`` at any depth, and every NumPy generator that it holds.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from sklearn.base import clone

from dpkernel.foundations.types import is_whole
from dpkernel.privacy.noise import SeededNoise

_SEEDS = ("random_state", "random_seed", "seed", "rng", "generator")  # names that fix a fit


def parameters(estimator: Any) -> dict[str, Any]:
    """Return the parameters at every depth by their paths; the attributes where there are none."""
    if hasattr(estimator, "get_params") and not isinstance(estimator, type):
        return dict(estimator.get_params(deep=True))
    return dict(getattr(estimator, "__dict__", {}))


def leaf(path: str) -> str:
    """Return a parameter's own name."""
    return path.split("__")[-1]


def is_ours(estimator: Any) -> bool:
    """Whether a class is one of dpkernel's, or made from one."""
    return any(kind.__module__.split(".")[0] == "dpkernel" for kind in type(estimator).__mro__)


def fresh(estimator: Any) -> Any:
    """Return an unfitted copy without a ledger: an audit spends nobody's budget.

    The copy is of no family: thousands of fits to made-up rows need no warning that nobody adds
    them up, and all other warnings stay. What can't be cloned is copied as it is.
    """
    if not hasattr(estimator, "get_params"):
        return copy.deepcopy(estimator)
    found = clone(estimator)
    values = parameters(found)
    ledgers = [path for path in values if leaf(path) == "ledger"]
    if ledgers:
        found.set_params(**dict.fromkeys(ledgers))
    for part in (found, *values.values()):
        if hasattr(part, "__dict__") and not isinstance(part, type):
            part.__dict__.pop("_family", None)
    return found


def reseed(model: Any, seed: int | None) -> None:
    """Give a copy noise of its own, from the operating system where the seed is None.

    Our noise is seeded only where the model itself is ours: a third party that fits clones of one of
    our estimators would hand the same noise to all of them. For the same reason a part's
    ``random_state`` that is None stays None. All others get numbers of their own.
    """
    changes: dict[str, Any] = {}
    for path, value, owner in _owned(model):
        if not is_ours(owner):
            changes |= _third_party(path, value, seed)
        elif leaf(path) == "noise":
            own = seed if "__" not in path else None
            if hasattr(value, "reseeded"):
                changes[path] = value.reseeded(own)
            elif value is None or isinstance(value, SeededNoise):
                changes[path] = None if own is None else SeededNoise(own)
    if changes and hasattr(model, "set_params"):
        model.set_params(**changes)
    else:
        vars(model).update(changes)
    for path, part in _parts(model):
        if not is_ours(part):  # generators that are no parameters
            held = {name: value for name, value in vars(part).items() if name not in changes}
            for name, value in held.items():
                if isinstance(value, (np.random.Generator, np.random.RandomState)):
                    setattr(part, name, _generator(value, _number(f"{path}__{name}", seed)))


def fixes_its_noise(model: Any) -> str | None:
    """Return the name of a third party's parameter that may fix its noise and is not changed here."""
    for path, value, owner in _owned(model):
        seeded = leaf(path) in _SEEDS and value is not None
        if seeded and not is_ours(owner) and not _third_party(path, value, 0):
            return path
    return None


def _third_party(path: str, value: Any, seed: int | None) -> dict[str, Any]:
    if _is_generator(value):
        return {path: _generator(value, _number(path, seed))}
    if leaf(path) == "random_state":
        top = "__" not in path
        if is_whole(value) or (value is None and top and seed is not None):
            # the model's own seed as it is: no two runs have the same
            return {path: seed % 2**32 if top and seed is not None else _number(path, seed)}
    return {}


def _is_generator(value: Any) -> bool:
    return isinstance(value, (np.random.Generator, np.random.RandomState))


def _generator(like: Any, seed: int) -> Any:
    if isinstance(like, np.random.RandomState):
        return np.random.RandomState(seed)
    return np.random.default_rng(seed)


def _number(path: str, seed: int | None) -> int:
    """Return a seed for one parameter: of the operating system, or of its path and the run's seed."""
    if seed is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    own = zlib.crc32(path.encode())
    return int(np.random.SeedSequence((seed, own)).generate_state(1)[0])


def _owned(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each parameter's path, its value and the estimator that it belongs to."""
    values = parameters(model)
    for path, value in values.items():
        yield path, value, _owner(path, values, model)


def _owner(path: str, values: Mapping[str, Any], model: Any) -> Any:
    outer = path.rpartition("__")[0]
    return values.get(outer, model) if outer else model


def _parts(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the model and the estimators inside, each with its path."""
    yield "", model
    for path, value in parameters(model).items():
        if hasattr(value, "fit") and hasattr(value, "__dict__") and not isinstance(value, type):
            yield path, value
