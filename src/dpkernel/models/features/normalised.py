"""Features relative to a centre, with a constant, scaled row by row to norm 1."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from sklearn.base import clone

from dpkernel.data.domain import row_squares
from dpkernel.foundations.errors import ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, is_real
from dpkernel.models.features.base import FeatureMap, feature_map_from_dict, register
from dpkernel.models.features.linear import LinearFeatures
from dpkernel.models.graph import Graph


@register
class NormalisedFeatures(FeatureMap):
    r"""z(x) = (c, s (phi(x) - m)) / ||(c, s (phi(x) - m))|| for another map phi.

    The sign of a linear decision does not depend on the length of a row, and noise is calibrated
    for rows of norm 1, so short rows would waste privacy. Relative to the centre of the data, most
    of a row is what distinguishes it from other rows.

    Parameters
    ----------
    base : FeatureMap, optional
        The map phi. If None: ``LinearFeatures``.
    centre : array-like, optional
        The centre m, public or released. If None: 0.
    scale, constant : float
        s > 0 and c > 0.

    Attributes
    ----------
    inner_ : FeatureMap
        The map phi, built.
    shift_ : ndarray
        The centre m, as numbers.
    """

    kind: ClassVar[str] = "normalised"

    def __init__(
        self, base: Any = None, *, centre: Any = None, scale: float = 1.0, constant: float = 0.3
    ) -> None:
        self.base = base
        self.centre = centre
        self.scale = scale
        self.constant = constant

    @property
    def row_norm_bound(self) -> float:
        """The bound 1; computed rows stay below it."""
        return 1.0

    def building_bytes(self, n_inputs: int) -> int:
        """Return the memory of this map and of its base, which may have to be built again."""
        return super().building_bytes(n_inputs) + (
            self.base.building_bytes(n_inputs) if isinstance(self.base, FeatureMap) else 0
        )

    def _build(self, n_inputs: int) -> None:
        if self.base is not None and not isinstance(self.base, FeatureMap):
            got = type(self.base).__name__
            raise ParameterError(
                parameter_message("NormalisedFeatures", "base", "a FeatureMap or None", got)
            )
        for name in ("scale", "constant"):
            value = getattr(self, name)
            if not is_real(value) or not 1e-100 < value < 1e100:
                allowed = "a float in the range (1e-100, 1e100)"
                raise ParameterError(parameter_message("NormalisedFeatures", name, allowed, value))
        ready = getattr(self.base, "n_features_in_", None) == n_inputs
        base: FeatureMap = self.base or LinearFeatures()
        self.inner_: FeatureMap = base if ready else clone(base).build(n_inputs)
        length = self.inner_.n_outputs
        self.shift_ = np.zeros(length) if self.centre is None else np.asarray(self.centre, float)
        if self.shift_.shape != (length,) or not np.isfinite(self.shift_).all():
            allowed, got = f"{length} finite numbers", f"shape {np.shape(self.centre)}"
            raise ParameterError(parameter_message("NormalisedFeatures", "centre", allowed, got))
        self.n_outputs = length + 1

    def transform_block(self, X: Array) -> Array:
        """Return z of every row."""
        phi = self.inner_.transform_block(X)
        out = np.empty((len(phi), self.n_outputs), phi.dtype)
        out[:, 0] = self.constant
        with np.errstate(all="ignore"):  # a warning would reveal something about the data
            np.subtract(phi, self.shift_.astype(phi.dtype), out=out[:, 1:])
            out[:, 1:] *= phi.dtype.type(self.scale)
            norms = np.sqrt(row_squares(out))
            norms *= phi.dtype.type(1 + (2.0**-20 if phi.dtype == np.float32 else 2.0**-40))
            out /= np.maximum(norms, phi.dtype.type(self.constant / 2))[:, None]
        return np.nan_to_num(out, copy=False, nan=0.0, posinf=1.0, neginf=-1.0)

    def _write(self, graph: Graph, x: str) -> str:
        phi = self.inner_.write(graph, x)
        moved = graph.multiply(graph.subtract(phi, self.shift_), float(self.scale))
        constant = graph.multiply(graph.ones(phi), float(self.constant))
        out = graph.join([constant, moved])
        norms = graph.multiply(graph.node("Sqrt", graph.squares(out)), 1 + 2.0**-40)
        return graph.divide(out, graph.largest(norms, self.constant / 2))

    def _recipe(self) -> JSON:
        return {
            "base": self.inner_.to_dict(),
            "centre": None if self.centre is None else self.shift_.tolist(),
            "scale": float(self.scale),
            "constant": float(self.constant),
        }

    @classmethod
    def _from_recipe(cls, parameters: JSON) -> Any:
        values = dict(parameters)
        return cls(feature_map_from_dict(values.pop("base")), **values)


def shrunk_centre(noisy: Array, noise: float, powers: Array, leading: int) -> Array:
    """Return a noisy mean, shrunk towards 0 as far as it could be noise (James and Stein).

    The ``leading`` coordinates with the most power and all other coordinates are shrunk separately,
    because most information about the data is in the former.
    """
    order = np.argsort(-powers, kind="stable")
    out = np.zeros_like(noisy)
    for group in (order[:leading], order[leading:]):
        if len(group):
            size = float(noisy[group] @ noisy[group])
            share = max(0.0, 1 - len(group) * noise**2 / size) if size > 0 else 0.0
            out[group] = share * noisy[group]
    return out
