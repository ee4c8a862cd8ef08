"""Turn a raw table into columns that a private model can use. Each step has its own certificate."""

from dpkernel.preprocessing.bounds import PrivateBounds, PrivateMinMaxScaler
from dpkernel.preprocessing.categories import DeclaredCategories
from dpkernel.preprocessing.imputer import PrivateImputer
from dpkernel.preprocessing.length_scale import public_length_scale, released_length_scale
from dpkernel.preprocessing.pca import PrivatePCA
from dpkernel.preprocessing.pipeline import PrivatePipeline
from dpkernel.preprocessing.scaler import PrivateStandardScaler

__all__ = [
    "DeclaredCategories",
    "PrivateBounds",
    "PrivateImputer",
    "PrivateMinMaxScaler",
    "PrivatePCA",
    "PrivatePipeline",
    "PrivateStandardScaler",
    "public_length_scale",
    "released_length_scale",
]
