"""Save pipelines, and steps that are not private, as names and numbers without pickle.

A step of another library is rebuilt from its parameters, and only if it is listed here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from dpkernel import estimators
from dpkernel.estimators.surroundings import FOREIGN, FUNCTIONS
from dpkernel.foundations.errors import CertificateError, ParameterError
from dpkernel.foundations.types import JSON, Array, is_whole
from dpkernel.preprocessing.bounds import PrivateBounds, PrivateMinMaxScaler
from dpkernel.preprocessing.categories import DeclaredCategories
from dpkernel.preprocessing.free import PASS, check_free, fit_to_columns
from dpkernel.preprocessing.imputer import PrivateImputer
from dpkernel.preprocessing.pca import PrivatePCA
from dpkernel.preprocessing.scaler import PrivateStandardScaler
from dpkernel.preprocessing.steps import Steps, releases_of
from dpkernel.privacy.certificate import Certificate

OWN: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        PrivateBounds,
        PrivateMinMaxScaler,
        PrivateStandardScaler,
        PrivateImputer,
        PrivatePCA,
        DeclaredCategories,
        *(getattr(estimators, name) for name in estimators.__all__),
    )
}

MOST_STEPS = 64  # steps of a pipeline in a file
_MOST_COLUMNS = 1 << 20  # columns of a step in a file


def pipeline_state(steps: Steps, certificate: Certificate) -> tuple[JSON, dict[str, Array]]:
    """Return the JSON header and the arrays of a fitted pipeline.

    A search is saved as its chosen model.
    """
    if len(steps) > MOST_STEPS:
        raise ParameterError(f"A pipeline of more than {MOST_STEPS} steps can't be saved.")
    lines, arrays = [], {}
    for i, (name, step) in enumerate(steps):
        kind, header, own = _step_state(name, getattr(step, "best_estimator_", step))
        lines.append({"name": name, "kind": kind, "header": header})
        arrays.update({f"step{i}_{key}": value for key, value in own.items()})
    return {"certificate": certificate.to_dict(), "steps": lines}, arrays


def steps_from_state(header: JSON, arrays: dict[str, Array]) -> tuple[Steps, Certificate]:
    """Return the fitted steps and the certificate of the whole pipeline.

    Raises if the certificate does not list what the steps released.
    """
    certificate = Certificate.from_dict(header["certificate"])
    _check_stated(header["steps"], certificate)
    steps: Steps = []
    for i, line in enumerate(header["steps"]):
        prefix = f"step{i}_"
        own = {key[len(prefix) :]: v for key, v in arrays.items() if key.startswith(prefix)}
        step = _step_from_state(line["name"], line["kind"], line["header"], own)
        steps.append((line["name"], step))
    if tuple(releases_of(steps)[0]) != certificate.releases:
        raise CertificateError(
            "The certificate of this pipeline does not list what its steps released."
        )
    parts = [step.certificate_ for _, step in steps if hasattr(step, "certificate_")]
    for claim in ("private", "valid"):
        if getattr(certificate, claim) and not all(getattr(part, claim) for part in parts):
            raise CertificateError(
                f"The certificate of this pipeline says {claim!r}, but that of a step does not."
            )
    return steps, certificate


def _check_stated(lines: list[JSON], certificate: Certificate) -> None:
    """Raise if there are too many steps, or releases that the certificate does not list.

    This runs before anything is built.
    """
    if len(lines) > MOST_STEPS:
        raise CertificateError(f"A pipeline in a file has at most {MOST_STEPS} steps.")
    stated = [
        replace(release, label=f"{line['name']}: {release.label}")
        for line in lines
        if "certificate" in line["header"]
        for release in Certificate.from_dict(line["header"]["certificate"]).releases
    ]
    if tuple(stated) != certificate.releases:
        raise CertificateError(
            "The certificate of this pipeline does not list what its steps released."
        )


def unfitted(steps: Steps) -> Steps:
    """Return unfitted clones, for the parameter ``steps`` of a loaded pipeline."""
    return [(name, step if isinstance(step, str) else clone(step)) for name, step in steps]


def _step_state(name: str, step: Any) -> tuple[str, JSON, dict[str, Array]]:
    kind = type(step).__name__
    if isinstance(step, str):
        return PASS, {}, {}
    if type(step) is OWN.get(kind):
        return kind, *step._to_state()
    if type(step) is not FOREIGN.get(kind):
        raise ParameterError(
            f"The step {name!r} ({kind}) can't be saved, because a file holds numbers and names but no"
            f" code. Steps of dpkernel can be saved, and {', '.join(FOREIGN)}."
        )
    return kind, _foreign_state(name, step), {}


def _foreign_state(name: str, step: Any) -> JSON:
    check_free(name, step)
    values = {}
    for key, value in step.get_params(deep=False).items():
        if key in ("func", "inverse_func") and value is not None:
            value = value.__name__
        plain = value is None or isinstance(value, (bool, int, float, str))
        if not plain and not (key == "degree" and all(isinstance(d, int) for d in value)):
            raise ParameterError(f"The parameter {key!r} of the step {name!r} can't be saved.")
        values[key] = value if plain else list(value)
    names = getattr(step, "feature_names_in_", None)
    return {
        "parameters": values,
        "n_columns": getattr(step, "n_features_in_", None),
        "columns": None if names is None else [str(one) for one in names],
    }


def _step_from_state(name: str, kind: str, header: JSON, arrays: dict[str, Array]) -> Any:
    if kind == PASS:
        return PASS
    if kind in OWN:
        return OWN[kind]._from_state(header, arrays)
    if kind not in FOREIGN:
        raise CertificateError(
            f"This version of dpkernel does not know the step {kind!r}. Update dpkernel."
        )
    values = dict(header["parameters"])
    for key in ("func", "inverse_func"):
        if values.get(key) is not None:
            if values[key] not in FUNCTIONS:
                raise CertificateError("A step of this pipeline has a function that is not listed.")
            values[key] = getattr(np, values[key])
    step, n_columns = FOREIGN[kind](**values), header["n_columns"]
    if not is_whole(n_columns) or not 1 <= n_columns <= _MOST_COLUMNS:
        raise CertificateError(
            "A step of this pipeline states no number of columns, or one that is too large."
        )
    try:
        check_free(name, step)
        fit_to_columns(name, step, n_columns, header["columns"])
    except ParameterError:
        raise CertificateError(
            "A step of this pipeline has parameters that it can't have."
        ) from None
    return step
