"""No published algorithm has a valid certificate where its claim fails; each says why, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpkernel import Budget, SeededNoise
from dpkernel.foundations.errors import CertificateError
from dpkernel.privacy.certificate import Certificate
from dpkernel.proof import papers

SEEDED = {"noise": SeededNoise(0)}
# the algorithm, its options, and the errata and words that its reasons must hold
BROKEN: list[tuple[str, dict[str, Any], tuple[str, ...]]] = [
    ("PublishedAlgorithm1", {"target_bound": 1.0}, ("003-12", "contains them")),
    (
        "PublishedAlgorithm1",
        {"target_bound": 1.0, "norm_bound": "nested"},
        ("003-3", "one root over both terms"),
    ),
    (
        "PublishedAlgorithm1",
        {"target_bound": 1.0, "truncation": "mean"},
        ("003-4", "clipped as a whole can move by 2 T"),
    ),
    ("PublishedAlgorithm1", {"target_bound": 1.0, "kernel": "linear"}, ("003-12",)),
    ("PublishedCanonicalEstimator", {}, ("d^(beta/2)",)),
    ("PublishedPerturbedRisk", {"loss": "pinball"}, ("004-1",)),
    ("PublishedSketchedERM", {"n_sketch": 5, "affine": True}, ("001-1",)),
    ("PublishedAlgorithm2", {}, ("003-6", "003-7", "003-12", "moves it by 2 c_1 Delta")),
    (
        "PublishedAlgorithm3",
        {"target_bound": 1.0},
        ("003-5", "2 sqrt(2) T; no proof of Theorem 16"),
    ),
    (
        "PublishedAlgorithm3",
        {"target_bound": 1.0, "epsilon": 20.0},
        ("003-5", "2 sqrt(2) T; no proof of Theorem 16"),
    ),
    ("PublishedAlgorithm4", {}, ("003-6", "003-7", "moves it by 2 c_1 Delta")),
    ("PublishedAlgorithm4", {"epsilon": 20.0}, ("003-7",)),
    ("PublishedAlgorithm5", {}, ("003-11", "moves it by 2 c_1 kappa/(n lambda)")),
    ("PublishedAlgorithm5", {"loss": "huber", "epsilon": 0.1}, ("003-11", "no theorem covers")),
    ("PublishedGradientSGD", {"beta": 0.5}, ("002-3", "Theorem 11 says nothing")),
    ("PublishedPerturbedRisk", {"scale": "printed"}, ("004-1", "one number for a whole function")),
    ("PublishedPerturbedRisk", {"scale": "corrected"}, ("004-1", "released without noise")),
    (
        "PublishedRandomFeatureSGD",
        {"target_bound": 1.0, "sensitivity": "stated"},
        ("000-1", "square of the sensitivity"),
    ),
    ("PublishedSketchedERM", {"n_sketch": 5}, ("001-1", "001-2", "a sketch without noise")),
]
# whose noise is enough: the claim is true, and proved here by another way than the paper's
PROVED: list[tuple[str, dict[str, Any]]] = [
    ("PublishedCanonicalEstimator", {"reading": "corrected"}),
    ("PublishedOutputSGD", {}),
    ("PublishedOutputSGD", {"radius": 1.0, "loss": "hinge"}),
    ("PublishedRandomFeatureSGD", {"target_bound": 1.0, "sensitivity": "proof"}),
]


def _certificate(name: str, options: dict[str, Any]) -> Certificate:
    draws = np.random.default_rng(0)
    X = draws.uniform(-0.5, 0.5, (30, 2))
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    cls = getattr(papers, name)
    model = cls(**({} if name == "PublishedSketchedERM" else SEEDED), **options)
    if hasattr(model, "fit"):
        model.fit(X, y)
    else:
        model.fit_predict(X, y, X[:2])
    found = model.certificate_
    assert isinstance(found, Certificate)
    return found


def test_every_published_algorithm_is_in_the_tables():
    names = {name for name, *_ in BROKEN} | {name for name, _ in PROVED}
    assert names == {name for name in papers.__all__ if name.startswith("Published")}
    # the one whose claim holds, by a proof of this library
    assert names - {name for name, *_ in BROKEN} == {"PublishedOutputSGD"}


@pytest.mark.parametrize(("name", "options", "words"), BROKEN)
def test_a_claim_that_fails_has_no_valid_certificate(name, options, words):
    found = _certificate(name, options)
    assert found.valid is False
    reasons = " / ".join(found.reasons)
    assert all(word in reasons for word in words), reasons
    # in words: the number of an erratum alone tells nobody anything
    assert all(len(reason.split()) >= 6 for reason in found.reasons)
    with pytest.raises(CertificateError):
        Certificate.from_json(found.to_json()).verify()


@pytest.mark.parametrize(("name", "options"), PROVED)
def test_a_claim_that_is_proved_has_one(name, options):
    found = _certificate(name, options)
    assert found.valid is True
    assert found.profile.supports(Budget(found.epsilon, found.delta))
