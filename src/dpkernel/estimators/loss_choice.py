"""From the parameter ``loss`` to a loss: a registered one by name, or an object of the user."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.models.losses import REGISTRY, Loss

_ALIASES = {"squared_error": "squared", "log_loss": "logistic", "quantile": "pinball"}


def named_loss(
    owner: str,
    given: Any,
    *,
    labels: bool | None,
    make: Callable[[type[Loss]], Loss] = lambda cls: cls(),
) -> Loss:
    """Return the loss that a parameter names or is.

    ``labels`` says whether it must be one of margins or one of residuals; None allows both. ``make``
    builds a loss that is given by name. An object must be of a registered class, because a class
    that nobody has tested could state constants that do not hold.
    """
    found = None
    if isinstance(given, str):
        cls = REGISTRY.get(_ALIASES.get(given, given))
        found = None if cls is None else make(cls)
    elif REGISTRY.get(getattr(given, "kind", "")) is type(given):
        found = given
    wanted = (True, False) if labels is None else (labels,)
    if found is None or found.labels not in wanted:
        known = sorted(kind for kind, cls in REGISTRY.items() if cls.labels in wanted)
        allowed = f"one of {', '.join(known)}, or such a loss of dpkernel.models.losses"
        raise ParameterError(parameter_message(owner, "loss", allowed, given))
    return found


def smooth_loss(
    owner: str,
    given: Any,
    *,
    labels: bool | None,
    width: float,
    make: Callable[[type[Loss]], Loss] = lambda cls: cls(),
) -> Loss:
    """Return a loss with a largest slope and a largest curvature; kinks become parabolas."""
    found = named_loss(owner, given, labels=labels, make=make)
    if not found.lipschitz < math.inf:
        allowed = "a loss with a largest slope"
        advice = "Take huber for squared and power_absolute, squared_hinge for power_hinge."
        raise ParameterError(parameter_message(owner, "loss", allowed, found.kind, advice))
    return found.smoothed(width)
