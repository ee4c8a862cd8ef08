"""Every number of every certificate is changed in turn: ``verify`` must see it, or the docs list it.

Two attackers. One edits the file, and the digest tells. The other computes the digest again, and then
whatever appears twice must agree. What such a forger can change unseen is ``REPORTED``: it stands
once in the certificate, no claim follows from it, and docs/certificate.md says so.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import warnings
from functools import cache

import numpy as np
import pytest

from dpkernel import Certificate, GramStatistics, PrivateKernelRidge
from dpkernel.foundations.errors import CertificateError
from dpkernel.methods import PrivateCurator, PrivateHuberRegressor, PrivateSGDRegressor
from dpkernel.preprocessing import (
    PrivateBounds,
    PrivateImputer,
    PrivateMinMaxScaler,
    PrivatePCA,
    PrivatePipeline,
    PrivateStandardScaler,
)
from dpkernel.selection import PrivateSearchCV, private_score
from estimator_table import BUILDERS, IDEALISED

ROWS = 60


def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (ROWS, 2))
    return X, X[:, 0] + 0.1 * rng.normal(size=ROWS)


def ridge(**options):
    return PrivateKernelRidge(**{"epsilon": 10.0, "y_bounds": (-1, 1), **options})


def sgd(**options):
    return PrivateSGDRegressor(10.0, y_bounds=(-1, 1), max_iter=10, **options)


def fitted(model):
    X, y = table()
    return model.fit(X, y).certificate_


def of_table(name):
    X, y = table()
    line = BUILDERS[name]
    return line().fit(X, line.target(y)).certificate_


def searched(strategy):
    grid = {"regularisation": [0.1, 1.0]}
    return fitted(PrivateSearchCV(ridge(), grid, epsilon=10.0, strategy=strategy))


def piped():
    steps = [("scale", PrivateStandardScaler(bounds=(-1, 1))), ("model", ridge())]
    return fitted(PrivatePipeline(steps, epsilon=10.0))


def scored(metric):
    X, y = table()
    model = ridge().fit(X, y)
    return private_score(model, X, y, metric).certificate


def gathered():
    X, y = table()
    return GramStatistics(ridge(), ROWS, 2).update(X, y).release().certificate_


def asked_once():
    model = PrivateCurator(10.0, bounds=(-1, 1), y_bounds=(-1, 1), accept=IDEALISED)
    return model.predict_once(*table(), [0.0, 0.0]).certificate


MAKERS = {
    **{name: lambda name=name: of_table(name) for name in BUILDERS},
    "ridge, folds": lambda: fitted(ridge(folds=3)),
    "ridge, theorem": lambda: fitted(ridge(regularisation="lee-11", bounds=(-1, 1))),
    "sgd, theorem": lambda: fitted(sgd(perturbation="output", preset="holder-9")),
    "pure output, Huber": lambda: fitted(
        PrivateHuberRegressor(9.0, 0.0, solver="output", y_bounds=(-1, 1))
    ),
    "curator, logistic": lambda: fitted(
        PrivateCurator(loss="logistic", bounds=(-1, 1), y_bounds=(-1, 1), accept=IDEALISED)
    ),
    "pure output": lambda: fitted(ridge(solver="output", delta=0.0)),
    "ridge, units": lambda: (
        ridge(bounds=(-1, 1)).fit(*table(), groups=np.arange(ROWS) // 2).certificate_
    ),
    "statistics": gathered,
    "sgd, output": lambda: fitted(sgd(perturbation="output")),
    "sgd, replacement": lambda: fitted(sgd(perturbation="output", sampling="replacement")),
    "sgd, averaged": lambda: fitted(sgd(perturbation="output", average=True)),
    "sgd, uniform": lambda: fitted(sgd(batch_size=8)),
    "one prediction": asked_once,
    "bounds": lambda: fitted(PrivateBounds(bounds=(-1, 1))),
    "imputer": lambda: fitted(PrivateImputer(bounds=(-1, 1))),
    "min-max": lambda: fitted(PrivateMinMaxScaler(bounds=(-1, 1))),
    "standard": lambda: fitted(PrivateStandardScaler(bounds=(-1, 1))),
    "pca": lambda: fitted(PrivatePCA(1, bounds=(-1, 1))),
    "pipeline": piped,
    **{f"search, {s}": lambda s=s: searched(s) for s in ("random-stopping", "exponential", "free")},
    **{f"score, {m}": lambda m=m: scored(m) for m in ("mse", "mae", "r2")},
}


@cache
def certificate(name) -> Certificate:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MAKERS[name]()


# What stands once in a certificate: a pattern of places, and the names that a release must not state for
# it to be so. docs/certificate.md names the same.
REPORTED = {
    r"digest|subject|reference|versions\..*|not_covered\.\d+|releases\.\d+(\..*)?\.label": (),
    r"free_statistics\..*": (),
    r"public\.(n_rows|n_units)": ("n_rows",),
    r"public\.domain\..*": (),
    r"public\.feature_map\.(kind|parameters\..*)": (),
    r"public\.(kernel\.\w+|point\.\d+|confidence|strategy|preset|row_bound|folds\.rule)": (),
    r"public\.preset_differs\.\d+": (),
    r"public\.schedule\..*": (),
    r"public\.regularisation": ("ridge", "strength"),
    r"public\.budget_plan\..*": (),
    r"public\.(weights|budgets)\..*|public\.steps\.\d+\.\d": (),
    r"public\.ranges\.\d+\.(low|high)": (),
    r"public\.ranges\.\d+": ("columns",),
    r"public\.selection\.(fit_epsilon|refit_epsilon|choice_epsilon|validation_rows)": (),
    r"public\.loss\.(width|threshold)": (),
    r"public\.losses\.\d+\.(width|tube)": ("curvature",),
    r"public\.scheme\.(radius|momentum)": (),
    r"public\.scheme\.(step|ridge|averaged)": ("step",),
    r"releases\.\d+(\..*)?\.dimension": (),
    r"releases\.\d+\.folds": (),
    r"releases\.\d+\.training\..*\.(folds|sigma)": (),  # of one that is not the dearest
    r"releases\.\d+\.sensitivity\.parameters\.(drop_last|target)": (),  # which change nothing
}


def reported(name, path) -> bool:
    """Whether a certificate only reports what stands at this place."""
    place = ".".join(map(str, path))
    released = json.dumps([r.to_dict() for r in certificate(name).releases])
    return any(
        re.fullmatch(pattern, place) and not any(f'"{word}":' in released for word in unless)
        for pattern, unless in REPORTED.items()
    )


def leaves(value, path=()):
    """Yield the places of all scalars; of a long list of numbers the first and the last."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, (*path, name))
    elif isinstance(value, list):
        places = range(len(value))
        long = len(value) > 4 and all(isinstance(one, (int, float)) for one in value)
        for i in (0, len(value) - 1) if long else places:
            yield from leaves(value[i], (*path, i))
    else:
        yield path


def changes(value):
    """Return other values of the same kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        larger = [value + 1, type(value)(value * 1.5)]
        return [other for other in dict.fromkeys(larger) if other != value]
    return [f"{value}x"] if isinstance(value, str) else [1]


def changed(data, path, value):
    found = copy.deepcopy(data)
    inner = found
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return found


def shortened(data, path=()):
    """Yield copies with one item of a list left out, the place first."""
    if isinstance(data, dict):
        for name, inner in data.items():
            for place, other in shortened(inner, (*path, name)):
                yield place, {**data, name: other}
    elif isinstance(data, list):
        for i in {0, len(data) - 1} if data else ():
            yield (*path, i), data[:i] + data[i + 1 :]
        for i, inner in enumerate(data):
            for place, other in shortened(inner, (*path, i)):
                yield place, [*data[:i], other, *data[i + 1 :]]


# To compute the profile of this search takes a second: only what is compared before is changed.
CHEAP = {"search, exponential": ("public",)}


def forgeries(name):
    for path, forged in all_forgeries(json.loads(certificate(name).to_json())):
        if path[0] in CHEAP.get(name, path):
            yield path, forged


def all_forgeries(data):
    for path in leaves(data):
        value = data
        for key in path:
            value = value[key]
        for other in changes(value):
            yield path, changed(data, path, other)
    yield from shortened(data)


def survives(forged) -> bool:
    """Whether a forger who computes the digest again is believed; the digest as it was never fits."""
    try:
        found = Certificate.from_json(json.dumps(forged))
    except CertificateError:
        return False
    assert found.digest != found._digest()
    found = dataclasses.replace(found, digest=found._digest())
    try:
        found.verify()
    except CertificateError:
        return False
    return True


@pytest.mark.parametrize("name", MAKERS)
def test_whatever_is_changed_in_a_certificate_is_noticed(name):
    assert certificate(name).verify().epsilon <= certificate(name).epsilon * (1 + 1e-9)
    believed = [
        path for path, forged in forgeries(name) if not reported(name, path) and survives(forged)
    ]
    assert not believed


def test_everything_that_is_only_reported_is_somewhere():
    """A pattern that matches nothing would hide a number of tomorrow."""
    places = {".".join(map(str, path)) for name in MAKERS for path, _ in forgeries(name)}
    for pattern in REPORTED:
        assert any(re.fullmatch(pattern, place) for place in places), pattern


@pytest.mark.parametrize("name", ["PrivateKernelRidge", "PrivateSGDRegressor", "pipeline"])
def test_an_edited_file_does_not_verify_even_where_numbers_stand_once(name):
    data = json.loads(certificate(name).to_json())
    for place, value in (("public", {**data["public"], "n_rows": 50}), ("subject", "Other")):
        with pytest.raises(CertificateError):
            Certificate.from_json(json.dumps({**data, place: value})).verify()


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("PrivateKernelRidge (output)", ("n_rows",), 50),
        ("ridge, folds", ("folds", "count"), 5),
        ("PrivateKernelRidge", ("integer_grid", "row"), 1000),
        ("PrivateSGDRegressor", ("scheme", "steps"), 1),
        ("PrivateSGDRegressor", ("scheme", "batch"), 1),
        ("PrivateSGDRegressor", ("scheme", "sigma"), 1e3),
        ("sgd, output", ("scheme", "most_hits"), 1),
        ("sgd, uniform", ("scheme", "sampling"), "poisson"),
        ("PrivateHuberRegressor", ("losses", 0, "threshold"), 0.1),
        ("search, exponential", ("selection", "candidates"), 1),
        ("search, exponential", ("selection", "train_rows"), 1000),
        ("search, exponential", ("selection", "strategy"), "free"),
    ],
)
def test_a_forger_who_computes_the_digest_again_must_change_both_places(name, place, value):
    data = json.loads(certificate(name).to_json())
    found = Certificate.from_json(json.dumps(changed(data, ("public", *place), value)))
    with pytest.raises(CertificateError, match=f"contradicts itself: public.{place[0]}"):
        dataclasses.replace(found, digest=found._digest()).verify()


def test_several_losses_may_not_be_steeper_than_their_release_states():
    X, y = table()
    model = PrivateCurator(loss="huber", threshold=0.5, bounds=(-1, 1), accept=IDEALISED)
    model.set_params(y_bounds=[(-1, 1), (-3, 3)]).fit(X, np.column_stack([y, y]))
    assert model.certificate_.verify()
    data = json.loads(model.certificate_.to_json())
    for place in (0, 1):
        edited = changed(data, ("public", "losses", place, "threshold"), 0.6)
        found = Certificate.from_json(json.dumps(edited))
        with pytest.raises(CertificateError, match="contradicts itself: public.losses"):
            dataclasses.replace(found, digest=found._digest()).verify()


@pytest.mark.parametrize("version", [None, 5, ["0.5"], "9" * 5000 + ".1", "0.6.0"])
def test_only_a_known_older_version_may_claim_more_than_its_parameters_give(version):
    data = json.loads(certificate("PrivateKernelRidge").to_json())
    data |= {"epsilon": 11.0, "digest": "", "versions": {**data["versions"], "dpkernel": "0.5.1"}}
    assert Certificate.from_json(json.dumps(data)).verify().epsilon < 10.1
    data["versions"]["dpkernel"] = version
    with pytest.raises(CertificateError, match="but its parameters give"):
        Certificate.from_json(json.dumps(data)).verify()


def test_extra_names_that_contradict_nothing_are_allowed():
    data = json.loads(certificate("PrivateKernelRidge").to_json())
    data["public"]["hospital"] = "north"
    found = Certificate.from_json(json.dumps({**data, "signature": "of the curator"}))
    dataclasses.replace(found, digest=found._digest()).verify()


def test_certificates_of_older_versions_have_no_digest_and_verify():
    data = json.loads(certificate("PrivateKernelRidge").to_json())
    del data["digest"]
    found = Certificate.from_json(json.dumps(data))
    assert found.digest == "" and found.verify() == certificate("PrivateKernelRidge").verify()
