"""Model files: coefficients, the feature map's recipe and the certificate. No row, no pickle.

A file is a NumPy archive with the arrays and a JSON header. ``load`` gives back an estimator that
predicts bit for bit what the saved one did.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from dpkernel import estimators, preprocessing, selection
from dpkernel.errors import CertificateError, ParameterError
from dpkernel.estimators.base import PrivateEstimator

FORMAT = 1
_ESTIMATORS: dict[str, type[Any]] = {
    **{name: getattr(estimators, name) for name in estimators.__all__},
    **{name: kind for name, kind in vars(preprocessing).items() if hasattr(kind, "_from_state")},
    "PrivateSearchCV": selection.PrivateSearchCV,  # which says what to save in its place
}


def save(model: PrivateEstimator, path: str | Path) -> Path:
    """Write a fitted model; return the path. An existing file is replaced in one step."""
    kind = type(model).__name__
    if kind not in _ESTIMATORS:
        raise ParameterError(f"A model of class {kind} has no file format.")
    header, arrays = model._to_state()
    text = json.dumps({"format": FORMAT, "estimator": kind, **header}, allow_nan=False)
    path = Path(path)
    draft = path.with_name(path.name + ".part")
    with draft.open("wb") as file:
        np.savez(file, header=np.frombuffer(text.encode(), dtype=np.uint8), **arrays)
    draft.replace(path)
    return path


def load(path: str | Path) -> Any:
    """Return the fitted model in a file, after verifying the claim of its certificate."""
    try:
        with np.load(Path(path), allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes().decode())
            arrays = {name: archive[name] for name in archive.files if name != "header"}
        version, kind = header["format"], header["estimator"]
    except (KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise CertificateError(
            f"{Path(path).name} is not a model file of dpkernel, or it is damaged"
            f" ({type(error).__name__})."
        ) from error
    if version != FORMAT or kind not in _ESTIMATORS:
        raise CertificateError(
            f"{Path(path).name} has format {version!r} with estimator {kind!r}; this version of"
            f" dpkernel reads format {FORMAT} with {', '.join(_ESTIMATORS)}. Update dpkernel."
        )
    try:
        model = _ESTIMATORS[kind]._from_state(header, arrays)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, CertificateError):
            raise
        raise CertificateError(
            f"{Path(path).name} is damaged: a part of the model is missing or malformed"
            f" ({type(error).__name__})."
        ) from error
    if getattr(model, "certificate_", None) is not None and model.certificate_.valid:
        model.certificate_.verify()
    return model
