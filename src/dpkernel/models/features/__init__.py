"""Feature maps: independent of the data, seeded by public numbers, with bounded row norms.

To add a map, write a class with ``@register`` in a file of this package. The contract tests then try
it.
"""

import importlib
import pkgutil

from dpkernel.models.features.base import FeatureMap, feature_map_from_dict, recipe_limit
from dpkernel.models.features.eigen import PublicEigenfeatures
from dpkernel.models.features.fourier import FourierFeatures
from dpkernel.models.features.learned import LearnedFeatures
from dpkernel.models.features.linear import LinearFeatures
from dpkernel.models.features.normalised import NormalisedFeatures
from dpkernel.models.features.nystroem import PublicNystroem
from dpkernel.models.features.polynomial import PolynomialMap
from dpkernel.models.features.projection import RandomProjection
from dpkernel.models.features.tensor_sketch import TensorSketch
from dpkernel.models.features.whitened import WhitenedFeatures

__all__ = [
    "FeatureMap",
    "FourierFeatures",
    "LearnedFeatures",
    "LinearFeatures",
    "NormalisedFeatures",
    "PolynomialMap",
    "PublicEigenfeatures",
    "PublicNystroem",
    "RandomProjection",
    "TensorSketch",
    "WhitenedFeatures",
    "feature_map_from_dict",
    "recipe_limit",
]

for _module in pkgutil.iter_modules(__path__):  # every file here may register maps
    importlib.import_module(f"{__name__}.{_module.name}")
