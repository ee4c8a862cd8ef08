"""Feature maps: data-independent, seeded by public randomness, with a bound on the row norm."""

from dpkernel.features.base import FeatureMap, feature_map_from_dict
from dpkernel.features.fourier import FourierFeatures
from dpkernel.features.linear import LinearFeatures

__all__ = ["FeatureMap", "FourierFeatures", "LinearFeatures", "feature_map_from_dict"]
