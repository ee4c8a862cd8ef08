"""Feature maps: data-independent, seeded by public randomness, with a bound on the row norm."""

from dpkernel.features.base import FeatureMap, feature_map_from_dict, recipe_limit
from dpkernel.features.eigen import PublicEigenfeatures
from dpkernel.features.fourier import FourierFeatures
from dpkernel.features.learned import LearnedFeatures
from dpkernel.features.linear import LinearFeatures
from dpkernel.features.normalised import NormalisedFeatures
from dpkernel.features.nystroem import PublicNystroem
from dpkernel.features.polynomial import PolynomialMap
from dpkernel.features.projection import RandomProjection
from dpkernel.features.tensor_sketch import TensorSketch
from dpkernel.features.whitened import WhitenedFeatures

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
