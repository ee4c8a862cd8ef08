"""Sensitivities as values: the name of a formula, its parameters and the resulting number.

A certificate contains the name and the parameters, and ``verify`` computes the number again. Every
formula rounds up. To add one, write a function of (neighbours, parameters) and register it with
``formula``, or with ``law`` if the sensitivity is random.
"""

from dpkernel.privacy.sensitivity.base import (
    RandomSensitivity,
    Sensitivity,
    round_up,
    sensitivity_from_dict,
)
from dpkernel.privacy.sensitivity.erm import erm_bounded, erm_lipschitz, erm_prediction, erm_ridge
from dpkernel.privacy.sensitivity.sgd import Path
from dpkernel.privacy.sensitivity.sums import (
    UNIT_FORMULAS,
    augmented_gram,
    bounded_sum,
    column_histograms,
    column_moments,
    declared,
    histogram,
    loss_gradient,
    record_norm,
    unit_gram,
    unit_shares,
)

__all__ = [
    "UNIT_FORMULAS",
    "Path",
    "RandomSensitivity",
    "Sensitivity",
    "augmented_gram",
    "bounded_sum",
    "column_histograms",
    "column_moments",
    "declared",
    "erm_bounded",
    "erm_lipschitz",
    "erm_prediction",
    "erm_ridge",
    "histogram",
    "loss_gradient",
    "record_norm",
    "round_up",
    "sensitivity_from_dict",
    "unit_gram",
    "unit_shares",
]
