"""Save and load fitted models: coefficients, the recipe of the feature map and the certificate.

A file contains no row of data and no pickle. ``load`` returns an estimator whose predictions are those
of the saved one, bit for bit, also in another process. The layout is described in docs/model_file.md,
and the container is in ``dpkernel.foundations.archive``.

Not handled: who wrote a file. ``verify_file`` finds damage, files put together from parts of others, and
claims that their parameters do not support. It can't find a forgery in which everything was written
anew. For that, compare the ``digest`` of the file with the one that its author published.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from dpkernel import estimators, preprocessing
from dpkernel.foundations.archive import Archive, read_archive, read_json, write_archive
from dpkernel.foundations.errors import (
    DPKernelError,
    ModelFileError,
    ParameterError,
    parameter_message,
)
from dpkernel.foundations.types import JSON, Budget, is_whole
from dpkernel.models.features import recipe_limit
from dpkernel.privacy.certificate import Certificate
from dpkernel.version import __version__

FORMAT = 2
MOST_BYTES = 2**31
_MOST_COLUMNS = 2**22  # columns that a header may state without naming them
_READABLE = (1, 2)
_OWN = (
    "format",
    "estimator",
    "dpkernel",
    "metadata",
    "request",
)  # names in the header that are not the model's

_STATED = ("domain", "feature_map", "n_columns")  # names that a certificate may state, too

# every class that can be saved; each has ``_to_state()`` and ``_from_state(header, arrays)``
_ESTIMATORS: dict[str, type[Any]] = {
    name: getattr(module, name)
    for module in (estimators, preprocessing)
    for name in module.__all__
    if hasattr(getattr(module, name), "_to_state")
}

# exceptions that reading a state raises if a part of it is missing or has the wrong type
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError)


@dataclass(frozen=True)
class FileCheck:
    """The result of ``verify_file``.

    Attributes
    ----------
    estimator : str
        The class of the model.
    format : int
        The version of the layout.
    certificate : Certificate
        The certificate in the file.
    proved : Budget
        Epsilon and delta, recomputed from the parameters.
    digest : str
        The SHA-256 of the whole file, to compare with the one that its author published.
    hashed : bool
        Whether the file holds hashes of its parts. Files of format 1 do not.
    """

    estimator: str
    format: int
    certificate: Certificate
    proved: Budget
    digest: str
    hashed: bool


def save(model: Any, path: str | Path, *, metadata: Mapping[str, Any] | None = None) -> Path:
    """Write a fitted model to a file. An existing file is replaced in one step.

    Parameters
    ----------
    model : fitted estimator
        The model to save.
    path : str or Path
        The file to write. By convention its name ends in ``.dpk``.
    metadata : dict of JSON values, optional
        Notes of your own, which ``read_header`` returns. They are not protected, so put nothing in
        that was read from the data.

    Returns
    -------
    Path
        The path of the file.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from dpkernel import PrivateKernelRidge, save
    >>> X = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    >>> model = PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-1, 1)).fit(X, X[:, 0])
    >>> path = save(model, os.path.join(tempfile.mkdtemp(), "model.dpk"))
    >>> path.suffix
    '.dpk'
    """
    kind = type(model).__name__
    if _ESTIMATORS.get(kind) is not type(model):
        advice = " Save its best_estimator_." if hasattr(model, "best_estimator_") else ""
        raise ParameterError(f"A model of class {kind} can't be saved to a file.{advice}")
    state, arrays = model._to_state()
    taken = sorted(set(state) & set(_OWN))
    if taken:
        raise AssertionError(f"{kind} uses names of the file itself: {taken}")
    own = {"format": FORMAT, "estimator": kind, "dpkernel": __version__}
    # the requested budget; the certificate states how much of it was needed, which may be a little less
    budget = {
        name: float(getattr(model, name)) for name in ("epsilon", "delta") if hasattr(model, name)
    }
    header = {**own, "metadata": _plain(metadata), "request": budget, **state}
    write_archive(Path(path), header, arrays)
    return Path(path)


def load(path: str | Path, *, max_bytes: int = MOST_BYTES) -> Any:
    """Return the fitted model in a file, after verifying its hashes and its certificate.

    The certificate must support its claim, and it must describe the model in the file. Reports,
    predictions and the command line read model files in this way only.

    Parameters
    ----------
    path : str or Path
        The file to read.
    max_bytes : int
        A file is refused if it is larger than this, or if building its feature maps would take more
        memory than this.

    Returns
    -------
    fitted estimator

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from dpkernel import PrivateKernelRidge, load, save
    >>> X = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    >>> model = PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-1, 1)).fit(X, X[:, 0])
    >>> path = save(model, os.path.join(tempfile.mkdtemp(), "model.dpk"))
    >>> bool((load(path).predict(X) == model.predict(X)).all())
    True
    """
    return _build(Path(path), _opened(Path(path), max_bytes), max_bytes)


def read_header(path: str | Path, *, max_bytes: int = MOST_BYTES) -> JSON:
    """Return the header of a file as JSON values, without building the model.

    The header has, among other entries, ``estimator``, ``certificate``, ``metadata`` ({} if none was
    given) and ``schema``. The schema has the ``target`` and a list of ``columns``, each with its
    ``name`` and either ``low`` and ``high``, ``levels``, or neither. The hashes of all parts are
    checked, but the claim of the certificate is not verified.

    Parameters
    ----------
    path : str or Path
        The file to read.
    max_bytes : int
        The same limit as in ``load``.

    Returns
    -------
    dict

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from dpkernel import PrivateKernelRidge, read_header, save
    >>> X = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    >>> model = PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-1, 1)).fit(X, X[:, 0])
    >>> path = save(model, os.path.join(tempfile.mkdtemp(), "model.dpk"))
    >>> read_header(path)["estimator"]
    'PrivateKernelRidge'
    """
    header = _opened(Path(path), max_bytes, only_header=True).header
    return {**header, "schema": _schema(header)}


def verify_file(path: str | Path, *, max_bytes: int = MOST_BYTES) -> FileCheck:
    """Return what ``load`` has checked: hashes, layout, parts of the model, and the certified claim.

    A certificate that passes may still say ``private = False``.

    Parameters
    ----------
    path : str or Path
        The file to check.
    max_bytes : int
        The same limit as in ``load``.

    Returns
    -------
    FileCheck

    Raises
    ------
    ModelFileError
        If the file is damaged or was changed.
    CertificateError
        If the parameters of the certificate do not support its claim.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from dpkernel import PrivateKernelRidge, save, verify_file
    >>> X = np.random.default_rng(0).uniform(-1, 1, (500, 2))
    >>> model = PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-1, 1)).fit(X, X[:, 0])
    >>> path = save(model, os.path.join(tempfile.mkdtemp(), "model.dpk"))
    >>> verify_file(path).proved.epsilon <= 1.0
    True
    """
    archive = _opened(Path(path), max_bytes)
    model = _build(Path(path), archive, max_bytes)
    certificate: Certificate | None = getattr(model, "certificate_", None)
    if certificate is None:
        raise ModelFileError(
            f"{Path(path).name} holds no certificate, because nothing was released for it."
        )
    return FileCheck(
        estimator=archive.header["estimator"],
        format=archive.header["format"],
        certificate=certificate,
        proved=certificate.verify(),
        digest=_digest(Path(path)),
        hashed=archive.has_manifest,
    )


def _opened(path: Path, max_bytes: int, *, only_header: bool = False) -> Archive:
    """Return the contents of a file, after checking its version."""
    archive = read_archive(path, max_bytes, only_header=only_header)
    header = archive.header
    version, kind = header.get("format"), header.get("estimator")
    if isinstance(version, bool) or not isinstance(version, int) or not isinstance(kind, str):
        raise ModelFileError(f"{path.name} is damaged: its header names no format or estimator.")
    if version not in _READABLE or kind not in _ESTIMATORS:
        shown = kind if kind in _ESTIMATORS else "one that is not known"
        raise ModelFileError(
            f"{path.name} has format {version} and the estimator {shown}; this version of dpkernel"
            f" reads formats {_READABLE[0]} to {_READABLE[-1]} of its own estimators. Update dpkernel."
        )
    if archive.has_manifest != (version > 1):
        raise ModelFileError(f"{path.name} is damaged: its parts are not those of its format.")
    if version == 1:
        header = {**header, "metadata": {}, "dpkernel": None}
    if not isinstance(header.get("request", {}), dict):  # files of earlier versions lack it
        raise ModelFileError(f"{path.name} is damaged: its request is not a JSON object.")
    if not isinstance(header.get("metadata"), dict):
        raise ModelFileError(f"{path.name} is damaged: its metadata are not a JSON object.")
    return Archive(header, archive.arrays, archive.hashes, archive.has_manifest)


def _build(path: Path, archive: Archive, max_bytes: int) -> Any:
    """Return the model, after verifying its certificate if it has one."""
    header = archive.header
    try:
        with recipe_limit(max_bytes):
            model = _ESTIMATORS[header["estimator"]]._from_state(header, archive.arrays)
        _check_statements(path.name, header)
        certificate = getattr(model, "certificate_", None)  # declared categories release nothing
        if certificate is not None and certificate.valid:
            certificate.verify()
        return model
    except DPKernelError:
        raise
    except _MALFORMED as error:
        raise ModelFileError(
            f"{path.name} is damaged: a part of the model is missing or malformed"
            f" ({type(error).__name__})."
        ) from error


def _check_statements(file: str, header: JSON, step: str = "") -> None:
    """Raise if a model, or a step of a pipeline, is not the one that its certificate describes."""
    for line in header.get("steps", []):
        _check_statements(file, {"estimator": line["kind"], **line["header"]}, line["name"])
    if "certificate" not in header:
        return
    certificate = Certificate.from_dict(header["certificate"])
    where = f"of the step {step!r} in {file}" if step else f"of {file}"
    for name in _STATED:
        stated = certificate.public.get(name)
        if stated is not None and name in header and stated != header[name]:
            raise ModelFileError(f"The {name} {where} is not the one that its certificate states.")
    named = certificate.subject.removeprefix("PrivateSearchCV(").split("(")[0].removesuffix(")")
    if named != header["estimator"]:
        raise ModelFileError(f"The estimator {where} is not the one that its certificate states.")
    # the model of a search asked for a share of what the certificate of the search states
    asked = header.get("request", {}) if certificate.subject == named else {}
    for name in ("epsilon", "delta"):
        if name in asked and not asked[name] >= getattr(certificate, name) * (1 - 1e-12):
            raise ModelFileError(
                f"The requested {name} {where} is below what its certificate states."
            )


def _schema(header: JSON) -> JSON | None:
    """Return the names and bounds of the columns and the target, if the model has a domain."""
    domain = header.get("domain")
    if not isinstance(domain, dict):
        return None
    try:
        names, bounds = header.get("columns") or domain["names"], domain["columns"]
        count = header["n_columns"] if bounds is None else len(bounds)
        if not is_whole(count) or not 1 <= count <= _MOST_COLUMNS:
            raise ValueError("the number of columns")
        if names is None and bounds is None:
            # one shared entry, because a count alone must not fill the memory
            columns = [{"name": None}] * count
        else:
            labels = repeat(None, count) if names is None else names
            ranges = repeat({}, count) if bounds is None else bounds
            columns = [{"name": n, **b} for n, b in zip(labels, ranges, strict=True)]
        return {"columns": columns, "target": domain["target"]}
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError("The columns of this model file can't be read.") from error


def _plain(metadata: Mapping[str, Any] | None) -> JSON:
    """Return metadata that can be written to JSON and read back unchanged."""
    given = {} if metadata is None else metadata
    try:
        if isinstance(given, Mapping):
            found = read_json(json.dumps(dict(given), allow_nan=False).encode())
            if found == given:
                return found
    except (TypeError, ValueError, RecursionError):
        pass
    allowed = "a dict of JSON values: texts, finite numbers, truth values, None, lists and dicts"
    raise ParameterError(parameter_message("save", "metadata", allowed, type(metadata).__name__))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
