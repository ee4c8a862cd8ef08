"""Losses: convex functions of a prediction, with the constants that privacy proofs need.

A loss is a frozen value. ``value(y, s)``, ``derivative(y, s)`` and ``curvature(y, s)`` are those of
s -> loss(y, s) at predictions s, entry by entry. Margin losses (``labels = True``) take y = +-1 and
depend on y s; regression losses depend on the residual y - s. The constants are::

    lipschitz      sup |derivative|; inf if there is none
    smoothness     sup curvature; inf if the derivative jumps
    form           the derivative as a scalar form, for compiled loops
    holder(kappa)  (alpha, L): ||g(w) - g(w')|| <= L ||w - w'||^alpha for the gradients g in w of
                   loss(y, <w, phi>), ||phi|| <= kappa; for alpha = 0, L bounds differences
    at_zero(c)     sup of loss(y, 0) over |y| <= c
    slope_at_zero(c)  sup of |derivative(y, 0)| over |y| <= c

Every constant is attained. Where a loss has a kink, ``derivative`` is one of its subgradients and
``curvature`` is a generalised second derivative (0 on straight parts).

To add a loss, write a class with ``@register`` in a file of this package. The contract tests then
compare its constants with finite differences and a random search.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from dpkernel.foundations.errors import CertificateError
from dpkernel.foundations.types import JSON
from dpkernel.models.losses.base import REGISTRY, Loss
from dpkernel.models.losses.margin import (
    Hinge,
    HuberisedHinge,
    Logistic,
    PowerHinge,
    SmoothedHinge,
    SquaredHinge,
)
from dpkernel.models.losses.residual import (
    Absolute,
    Huber,
    Pinball,
    PowerAbsolute,
    SmoothedInsensitive,
    SmoothedPinball,
    Squared,
)

__all__ = [
    "REGISTRY",
    "Absolute",
    "Hinge",
    "Huber",
    "HuberisedHinge",
    "Logistic",
    "Loss",
    "Pinball",
    "PowerAbsolute",
    "PowerHinge",
    "SmoothedHinge",
    "SmoothedInsensitive",
    "SmoothedPinball",
    "Squared",
    "SquaredHinge",
    "loss_from_dict",
]


def loss_from_dict(data: JSON) -> Loss:
    """Return the loss that ``to_dict`` described.

    Parameters
    ----------
    data : dict
        JSON values, as ``to_dict`` returns them.

    Raises
    ------
    CertificateError
        If they describe no loss.
    """
    try:
        values = dict(data)
        cls: Any = REGISTRY[values.pop("kind")]
        found: Loss = cls(**values)
    except (KeyError, TypeError, ValueError) as error:
        known = ", ".join(sorted(REGISTRY))
        raise CertificateError(
            f"A loss can't be read ({error}). Its 'kind' must be one of {known}, with that kind's"
            " parameters."
        ) from error
    return found


for _module in pkgutil.iter_modules(__path__):  # every file here may register losses
    importlib.import_module(f"{__name__}.{_module.name}")
