"""Public rules that turn ``features``, ``kernel`` and ``length_scale`` into a feature map."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import clone

from dpkernel.data.domain import Domain
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import Budget
from dpkernel.foundations.validation import is_auto
from dpkernel.models.features import (
    FeatureMap,
    FourierFeatures,
    LinearFeatures,
    PolynomialMap,
    PublicEigenfeatures,
    PublicNystroem,
    RandomProjection,
)
from dpkernel.models.kernels import resolve_kernel
from dpkernel.privacy.profiles import gaussian_mu


def _projection(options: dict[str, Any]) -> FeatureMap:
    size = options.pop("n_components")
    base = FourierFeatures(4096, **options)
    return RandomProjection(size, base=base, random_state=options["random_state"])


def _polynomial(options: dict[str, Any]) -> FeatureMap:
    kernel = resolve_kernel(options["kernel"])
    if not hasattr(kernel, "degree") or not hasattr(kernel, "offset"):
        allowed = "'polynomial', or a polynomial kernel, with features='polynomial'"
        raise ParameterError(parameter_message("features", "kernel", allowed, options["kernel"]))
    scaled = resolve_kernel(kernel, options["length_scale"])
    return PolynomialMap(kernel.degree, offset=kernel.offset, length_scale=scaled.length_scale)


def _linear(options: dict[str, Any]) -> FeatureMap:
    kernel = options["kernel"] if getattr(options["kernel"], "kind", "") == "linear" else "linear"
    scale = resolve_kernel(kernel, options["length_scale"]).length_scale
    if np.ndim(scale) == 0:  # one scale for all columns changes nothing
        return LinearFeatures()
    return PolynomialMap(1, offset=0.0, length_scale=scale)


# how each name in ``features=`` becomes a map, given size, kernel, length scale and public seed
MAPS: dict[str, Callable[[dict[str, Any]], FeatureMap]] = {
    "fourier": lambda o: FourierFeatures(**o),
    "projection": _projection,
    "eigen": lambda o: PublicEigenfeatures(**o),
    "nystroem": lambda o: PublicNystroem(**o),
    "linear": _linear,
    "polynomial": _polynomial,
}


def choose_features(
    owner: str,
    features: Any,
    *,
    kernel: Any,
    length_scale: Any,
    size: int,
    random_state: int | None,
    domain: Domain,
    n_inputs: int,
    of_units: bool = False,
) -> FeatureMap:
    """Return the built feature map, which does not depend on the data.

    "auto" takes the exact map for linear and polynomial kernels. For other kernels it takes public
    eigenfeatures if bounds are declared, and Fourier features otherwise. A length scale of "auto"
    is 0.7 sqrt(n_inputs). ``of_units`` restricts "auto" to eigenfeatures of product kernels, whose
    rounding error is bounded.
    """
    if isinstance(features, FeatureMap):
        given: FeatureMap = clone(features).build(n_inputs)
        return given
    kind = features
    if kind == "auto":
        name = getattr(kernel, "kind", kernel)
        exact = name if name in ("linear", "polynomial") else None
        fourier = domain.columns is None or (of_units and not resolve_kernel(kernel).is_product)
        kind = exact or ("fourier" if fourier else "eigen")
    if kind not in ("fourier", "projection") and domain.columns is None:
        raise ParameterError(
            f"{owner} with kernel={kernel!r} and features={kind!r} needs 'bounds', the publicly known"
            " range of the columns, for example bounds=(0, 100) or bounds=([0, 0], [100, 9])."
        )
    if is_auto(length_scale):
        length_scale = 1.0 if kind in ("linear", "polynomial") else 0.7 * math.sqrt(n_inputs)
    options = {
        "n_components": size,
        "kernel": kernel,
        "length_scale": length_scale,
        "random_state": int(random_state or 0),
    }
    built: FeatureMap = MAPS[kind](options).build(n_inputs)
    return built


def size_for_gram(n: int, budget: Budget) -> int:
    """Return how many features M of a Gram matrix are worth their noise, which grows like M / (n mu)."""
    signal = math.sqrt(n * gaussian_mu(budget.epsilon, budget.delta))
    return 2 * int(min(max(0.6 * signal, 4), 512))


def size_for_records(n: int, n_inputs: int, budget: Budget) -> int:
    """Return the number of features of records. It grows with n, and the linear features always fit."""
    if budget.pure:
        signal = math.sqrt(n * budget.epsilon / 5)
    else:
        signal = math.sqrt(n * gaussian_mu(budget.epsilon, budget.delta))
    size = 2 * int(min(max(1.5 * signal, 64), 512))
    return max(size, min(2 * (n_inputs // 2 + 2), 1024))
