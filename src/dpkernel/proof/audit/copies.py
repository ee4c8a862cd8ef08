"""Copy an estimator for an audit, without a ledger and with noise of its own.

The noise of dpkernel's estimators comes from ``noise``. For an estimator of a third party it comes from
whatever fixes the random numbers of a fit: ``random_state`` at any depth, and every NumPy generator that
the estimator holds.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from sklearn.base import clone

from dpkernel.estimators.surroundings import is_ours
from dpkernel.foundations.types import is_whole
from dpkernel.privacy.noise import SeededNoise

# names of parameters that may fix a fit
_SEEDS = ("random_state", "random_seed", "seed", "rng", "generator")


def parameters(estimator: Any) -> dict[str, Any]:
    """Return the parameters at every depth by their paths, or the attributes if there are none."""
    if hasattr(estimator, "get_params") and not isinstance(estimator, type):
        return dict(estimator.get_params(deep=True))
    return dict(getattr(estimator, "__dict__", {}))


def leaf(path: str) -> str:
    """Return the last part of a parameter's path."""
    return path.split("__")[-1]


def fresh(estimator: Any) -> Any:
    """Return an unfitted copy without a ledger, because an audit spends nobody's budget.

    The copy does not count as a clone of the estimator, so thousands of fits to made-up rows do not warn
    that nobody adds them up. All other warnings stay. An object that can't be cloned is copied.
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
    """Give a copy noise of its own. If the seed is None, it comes from the operating system.

    The noise of a dpkernel estimator is seeded only if it is the model itself. A wrapper of a third
    party that fits clones of one would give the same noise to all of them. For the same reason, a
    part whose ``random_state`` is None keeps it. All others get numbers of their own.
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
        if not is_ours(part):  # generators that are not parameters
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
            # the model's own seed is used as it is, because no two runs have the same
            return {path: seed % 2**32 if top and seed is not None else _number(path, seed)}
    return {}


def _is_generator(value: Any) -> bool:
    return isinstance(value, (np.random.Generator, np.random.RandomState))


def _generator(like: Any, seed: int) -> Any:
    if isinstance(like, np.random.RandomState):
        return np.random.RandomState(seed)
    return np.random.default_rng(seed)


def _number(path: str, seed: int | None) -> int:
    """Return a seed for one parameter: random, or computed from its path and the run's seed."""
    if seed is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    own = zlib.crc32(path.encode())
    return int(np.random.SeedSequence((seed, own)).generate_state(1)[0])


def _owned(model: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the path and value of each parameter, and the estimator that it belongs to."""
    values = parameters(model)
    for path, value in values.items():
        yield path, value, _owner(path, values, model)


def _owner(path: str, values: Mapping[str, Any], model: Any) -> Any:
    outer = path.rpartition("__")[0]
    return values.get(outer, model) if outer else model


def _parts(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the model and the estimators inside it, each with its path."""
    yield "", model
    for path, value in parameters(model).items():
        if hasattr(value, "fit") and hasattr(value, "__dict__") and not isinstance(value, type):
            yield path, value
