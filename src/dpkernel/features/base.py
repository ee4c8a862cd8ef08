"""What every feature map is: a public recipe from rows of X to bounded vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from dpkernel.errors import CertificateError
from dpkernel.types import JSON, Array


class FeatureMap(ABC):
    """A data-independent map phi with ||phi(x)|| <= row_norm_bound for every x.

    Built from (kind, parameters, seed) alone, so a model file holds the recipe and no row.
    The bound holds in real arithmetic; statistics clip to it in code.
    """

    kind: ClassVar[str]
    n_inputs: int
    n_outputs: int
    row_norm_bound: float

    @abstractmethod
    def transform(self, X: Array) -> Array:
        """Return phi of every row."""

    @abstractmethod
    def to_dict(self) -> JSON:
        """Return the recipe as JSON values."""

    @classmethod
    @abstractmethod
    def from_dict(cls, data: JSON) -> FeatureMap:
        """Return the map that the recipe describes."""


REGISTRY: dict[str, type[FeatureMap]] = {}


def register(cls: type[FeatureMap]) -> type[FeatureMap]:
    """Make a map known by its kind; a class decorator."""
    REGISTRY[cls.kind] = cls
    return cls


def feature_map_from_dict(data: JSON) -> FeatureMap:
    """Return the map that ``to_dict`` described."""
    try:
        return REGISTRY[data["kind"]].from_dict(data)
    except (KeyError, TypeError) as error:
        known = ", ".join(sorted(REGISTRY))
        raise CertificateError(
            f"The feature map can't be read ({error}). Its 'kind' must be one of {known}."
        ) from error
