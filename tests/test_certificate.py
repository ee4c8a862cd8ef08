"""Certificates: the round trip, the truth table, and every way a claim can fail to be supported."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

from dpkernel import Budget, Certificate, Ledger, Neighbours, SeededNoise
from dpkernel.foundations.errors import CertificateError
from dpkernel.outputs.report import write_report
from dpkernel.privacy import mechanisms, sensitivity
from dpkernel.privacy.certificate import Release
from dpkernel.privacy.noise import Part, Plan

REQUEST = Budget(1.0, 1e-6)


def make(noise=None, relation=Neighbours.REPLACE_ONE, extra=(), folds=1, **options) -> Certificate:
    mechanism = mechanisms.Gaussian.calibrate(
        sensitivity.declared(2.0, relation), Budget(1.0, 1e-6), dimension=4
    )
    releases = [Release("means", mechanism, folds=folds), *extra]
    parts = tuple(Part(r.label, r.mechanism.profile(), r.draws, r.folds) for r in releases)
    granted = Ledger(neighbours=relation).spend(Plan(parts), "test", noise=noise)
    mechanism.release(np.zeros(4), granted)
    return Certificate.issue("test", REQUEST, releases, granted, public={"n_rows": 10}, **options)


def test_claim_is_at_most_the_request_and_verifies():
    certificate = make()
    assert certificate.private and certificate.valid
    assert certificate.epsilon <= REQUEST.epsilon and certificate.delta == REQUEST.delta
    proved = certificate.verify()
    assert proved.epsilon <= REQUEST.epsilon


def test_what_is_proved_is_at_most_the_request_where_rounding_hides_an_epsilon():
    """Here the search for the least epsilon ends above a request that the profile supports."""
    request = Budget(2.7530285650729843e-07, 3.5572587437715945e-118)
    moved = sensitivity.declared(1.0)
    mechanism = mechanisms.Gaussian.with_mu(
        moved, 1.2433998316628218e-08, dimension=1, integer=True
    )
    noise = Ledger().spend(mechanism.profile(), "mean")
    options = {"public": {"n_rows": 10}}
    found = Certificate.issue("test", request, [Release("mean", mechanism)], noise, **options)
    assert found.profile.epsilon(request.delta) > request.epsilon >= found.epsilon
    assert found.verify().epsilon <= request.epsilon


def test_json_round_trip_is_exact():
    certificate = make()
    again = Certificate.from_json(certificate.to_json())
    assert again == certificate
    assert again.to_json() == certificate.to_json()
    assert again.verify() == certificate.verify()


def test_it_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().epsilon = 0.1


def test_it_prints_lines_that_a_manager_can_read():
    certificate = make()
    lines = str(certificate).splitlines()
    assert lines[0] == "test:        epsilon = 1, delta = 1e-06 (the guarantee holds)"
    heads = [
        "protects",
        "how strongly",
        "released",
        "not released",
        "cost",
        "not covered",
        "verify",
    ]
    assert [line[:12].strip() for line in lines[1:8]] == heads
    assert "any one record" in lines[1] and "at most 54.8 % of cases" in lines[2]
    assert lines[8].startswith("noise        relative to what one record can change: ")
    scale = certificate.releases[0].mechanism
    assert f"{scale.noise_scale / scale.sensitivity.value:.3g}" in lines[8]
    page = certificate._repr_html_()
    assert page.count("<tr>") == len(lines) and "54.8 %" in page


def test_nothing_is_promised_where_nothing_holds():
    text = str(make(SeededNoise(0)))
    assert "% of cases" not in text and text.count("nothing is promised") == 2
    hostile = dataclasses.replace(make(), subject="<script>")
    assert "<script>" not in hostile._repr_html_()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_best_guess_is_that_of_the_likelihood_ratio(epsilon):
    """An attacker who sees a Gaussian release tells two records apart as often as Phi(mu / 2)."""
    mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(epsilon, 1e-6), dimension=1)
    noise = Ledger().spend(mechanism.profile(), "x")
    release = [Release("x", mechanism)]
    found = Certificate.issue("x", Budget(epsilon, 1e-6), release, noise, public={}).best_guess
    exact = ndtr(mechanism.profile().mu / 2)
    assert exact <= found <= exact * (1 + 1e-6)


def test_the_best_guess_of_pure_noise_is_that_of_randomised_response():
    mechanism = mechanisms.Laplace.calibrate(1.0, Budget(1.0))
    noise = Ledger().spend(mechanism.profile(), "x")
    found = Certificate.issue("x", Budget(1.0), [Release("x", mechanism)], noise, public={})
    assert found.best_guess <= math.e / (1 + math.e) + 1e-12


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("proved", [False, True])
def test_truth_table(seeded, proved):
    why = () if proved else ("the printed noise is too small",)
    certificate = make(SeededNoise(0) if seeded else None, invalid_because=why)
    assert certificate.private == (not seeded)
    assert certificate.valid == proved
    assert ("the guarantee holds" in str(certificate)) == (proved and not seeded)
    assert ("NO GUARANTEE" in str(certificate)) == (seeded or not proved)
    data = json.loads(certificate.to_json())
    assert data["private"] is (not seeded) and data["valid"] is proved
    if not proved:
        with pytest.raises(CertificateError, match="not proved: .*the printed noise is too small"):
            certificate.verify()
    else:
        certificate.verify()


def test_something_left_without_noise_is_not_private():
    certificate = make(not_private_because=("the training score was printed",))
    assert not certificate.private and "training score" in str(certificate)


def _halve_noise(release):
    release["sigma"] /= 2
    release["noise_scale"] /= 2


def test_a_certificate_speaks_of_what_its_noise_was_spent_for():
    weak = mechanisms.Gaussian.calibrate(1.0, Budget(8.0, 1e-6), dimension=1)
    strong = mechanisms.Gaussian.calibrate(1.0, Budget(0.01, 1e-9), dimension=1)
    noise = Ledger().spend(weak.profile(), "x")
    weak.release([0.0], noise)
    for releases in (
        [Release("x", strong)],
        [Release("y", weak)],
        [Release("x", weak, 2)],
        [Release("x", weak, folds=2)],
    ):
        with pytest.raises(CertificateError, match="not those that this noise was spent for"):
            Certificate.issue("t", REQUEST, releases, noise, public={})


def test_print_and_report_say_so_when_the_numbers_do_not_fit(tmp_path):
    forged = tampered(lambda d: d.update(epsilon=0.001))
    assert "NO GUARANTEE" in str(forged) and "the guarantee holds" not in str(forged)
    page = write_report(forged, tmp_path / "r.html").read_text(encoding="utf-8")
    assert "NO GUARANTEE" in page
    assert str(dataclasses.replace(forged, releases=())) == "test: no release, no guarantee"


def tampered(change) -> Certificate:
    data = json.loads(make().to_json())
    change(data)
    return Certificate.from_json(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(epsilon=0.5), "parameters prove delta"),
        (lambda d: d.update(epsilon=2.0), "claims epsilon = 2, but its parameters give"),
        (lambda d: d.update(delta=1e-3), "claims epsilon = 1, but its parameters give"),
        (lambda d: d["public"].update(n_rows=11), "changed after it was issued"),
        (lambda d: d.update(digest="0" * 64), "changed after it was issued"),
        (lambda d: d.update(private=False), "gives no reason"),
        (lambda d: d.update(sampler="rounded floats"), "but the certificate says 'private'"),
        (lambda d: d.update(assumptions=["each-row-once"]), "but nothing in it depends on them"),
        (lambda d: d["public"].update(ledger_part="north"), "which the certificate does not name"),
        (lambda d: d["public"].update(rows_added_by="caller"), "does not name"),
        (lambda d: d["public"].update(predicted_by="caller"), "does not name"),
        (lambda d: d.update(delta=1e-9), "parameters prove delta"),
        (lambda d: _halve_noise(d["releases"][0]), "prove delta"),
        (lambda d: d["releases"][0].update(draws=2), "parameters prove delta"),
        (lambda d: d["profile"].update(mu=0.01), "stated profile is not the one"),
        (lambda d: d.update(neighbours="add-remove"), "calibrated for 'replace-one'"),
        (lambda d: d.update(releases=[]), "lists no release"),
        (lambda d: d.update(generator="numpy PCG64, seeded"), "seeded', but the certificate says"),
        (lambda d: d.update(generator="time()"), "but the certificate says 'private'"),
        (
            lambda d: d.update(reasons=["the training score was printed"]),
            "gives reasons against it",
        ),
    ],
)
def test_verify_rejects_what_the_parameters_do_not_support(change, message):
    with pytest.raises(CertificateError, match=message):
        tampered(change).verify()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["releases"][0]["sensitivity"].update(value=0.1), "claims 0.1"),
        (lambda d: d["releases"][0]["sensitivity"].update(value=9.0), "sensitivity of the release"),
        (lambda d: d.update(digest=None), "'digest' of a certificate must be a str"),
        (lambda d: d["releases"][0]["sensitivity"].update(formula="magic"), "'magic' can't"),
        (lambda d: d["releases"][0].update(kind="magic"), "must be one of"),
        (lambda d: d["releases"][0].pop("sigma"), "can't be read"),
        (lambda d: d["releases"][0].update(draws=0), "number of draws"),
        (lambda d: d["releases"][0].update(draws=10**9), "number of draws"),
        *(
            (lambda d, bad=bad: d["releases"][0].update(folds=bad), "number of folds")
            for bad in (0, -2, True, 2.0, "2", None, 10**9)
        ),
        (lambda d: d.update(profile={"kind": "magic"}), "profile of this certificate"),
        (lambda d: d.update(epsilon="one"), "can't be read"),
        (lambda d: d.update(epsilon=-1.0), "not a valid privacy parameter"),
        (lambda d: d.update(delta=2.0), "not a valid privacy parameter"),
        (lambda d: d.update(private="no"), "'private' of a certificate must be a bool"),
        (lambda d: d.update(assumptions="abc"), "'assumptions' of a certificate must be a list"),
        (lambda d: d.update(assumptions=[[1]]), "'assumptions'.*must be a list of texts"),
        (lambda d: d["releases"][0].update(noise_scale=1e99), "noise_scale of the release"),
        (lambda d: d["releases"][0].update(reference="trust me"), "reference of the release"),
        (lambda d: d.update(schema=99), "schema 99"),
        (lambda d: d.pop("private"), "private"),
    ],
)
def test_malformed_certificates_are_refused_on_reading(change, message):
    with pytest.raises(CertificateError, match=message):
        tampered(change)


def test_text_that_is_no_certificate():
    with pytest.raises(CertificateError, match="not JSON"):
        Certificate.from_json("{")
    with pytest.raises(CertificateError, match="not a certificate"):
        Certificate.from_json("[1]")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "it is nested too deep"),
        (b"{" + b" " * 2**24 + b"}", "more than 16777216 bytes"),
        (b'{"schema": NaN}', "not finite"),
        (b'{"schema": 1, "schema": 1}', "contains the same name twice"),
        (b'{"a": "\xff"}', "utf-8"),
        ('{"a": "\ud800"}', "utf-8"),
    ],
    ids=["deep", "long", "nan", "twice", "bytes", "surrogate"],
)
def test_hostile_texts_give_one_sentence(text, message):
    with pytest.raises(CertificateError, match=f"not a certificate of dpkernel: .*{message}") as e:
        Certificate.from_json(text)
    assert "\n" not in str(e.value)


def test_a_byte_order_mark_is_skipped():
    certificate = make()
    assert Certificate.from_json(b"\xef\xbb\xbf" + certificate.to_json().encode()) == certificate


def test_what_a_terminal_would_obey_is_spelt_out():
    evil = "a\x1b[2J\r\n\u202eb\ud800"
    found = dataclasses.replace(make(), subject=evil, reference=evil, sampler=evil)
    found = Certificate.from_json(found.to_json())
    text = str(found)
    assert len(text.split("\n")) == 12 and text.replace("\n", "").isprintable()
    assert text.startswith(r"a\x1b[2J\r\n\u202eb\ud800:  epsilon")
    assert str(dataclasses.replace(found, releases=())).isprintable()
    for wrong in ({"valid": False}, {"private": False}):
        told = dataclasses.replace(found, reasons=(evil,), **wrong)
        assert told.verdict.startswith("NO GUARANTEE") and told.verdict.isprintable()


def test_an_unsigned_assumption_is_refused():
    gamma = mechanisms.L2Gamma.calibrate(
        1.0, Budget(0.1), dimension=2, accept=(mechanisms.IDEALISED,)
    )
    release = Release("gamma", gamma)
    noise = Ledger().spend(gamma.profile(), "gamma")
    certificate = Certificate.issue("t", Budget(0.1), [release], noise, public={})
    assert certificate.assumptions == ("idealised-arithmetic",)
    assert "idealised-arithmetic" in str(certificate)
    with pytest.raises(CertificateError, match="does not name"):
        dataclasses.replace(certificate, assumptions=()).verify()


def test_what_rests_on_the_callers_word_is_named_and_kept():
    """One table under two parts is released twice, and nothing but the caller knows."""
    mechanism = mechanisms.Gaussian.calibrate(1.0, Budget(1.0, 1e-6), dimension=1)
    site = Ledger(parts=("north", "south")).part("north")
    plan = Plan((Part("x", mechanism.profile()),))
    steps, whole = site.reserve({"step": plan}, "all", claim=REQUEST)
    noises = {"x": site.spend(plan, "x"), "step: x": whole}
    inside = steps["step"].spend(plan, "all")
    for label, noise in [*noises.items(), ("x", inside)]:
        found = Certificate.issue("t", REQUEST, [Release(label, mechanism)], noise, public={})
        assert found.assumptions == ("disjoint-ledger-parts",)
        assert found.public["ledger_part"] == "north" and "disjoint-ledger-parts" in str(found)
        again = Certificate.from_json(found.to_json())
        assert again.verify() and again.assumptions == found.assumptions
        with pytest.raises(CertificateError, match="does not name"):
            dataclasses.replace(found, assumptions=(), digest="").verify()
    whole_table = Ledger(parts=("north",)).spend(plan, "x")
    plain = Certificate.issue("t", REQUEST, [Release("x", mechanism)], whole_table, public={})
    assert plain.assumptions == ()


def test_several_releases_compose():
    other = mechanisms.Laplace.calibrate(1.0, Budget(0.25))
    two = make(extra=(Release("count", other),))
    assert two.epsilon > make().epsilon
    assert len(json.loads(two.to_json())["releases"]) == 2
    dropped = json.loads(two.to_json())
    dropped["releases"] = dropped["releases"][1:]
    with pytest.raises(CertificateError, match="stated profile"):
        Certificate.from_json(json.dumps(dropped)).verify()


# --- disjoint folds --------------------------------------------------------------------------


def test_folds_have_the_profile_of_one_and_survive_the_round_trip(tmp_path):
    one, folded = make(), make(folds=4)
    assert folded.profile == one.profile and folded.epsilon == one.epsilon
    again = Certificate.from_json(folded.to_json())
    assert again == folded and again.releases[0].folds == 4
    assert again.verify() == one.verify()
    lines = str(folded).splitlines()
    assert "means (4 disjoint folds)" in lines[8] and "its position is public" in lines[1]
    assert "fold" not in str(one) and "position" not in str(one)
    page = write_report(folded, tmp_path / "r.html").read_text(encoding="utf-8")
    assert ">means (4 disjoint folds)</td>" in page


def test_a_certificate_without_the_word_has_one_fold():
    data = json.loads(make().to_json())
    assert data["releases"][0].pop("folds") == 1
    assert Certificate.from_json(json.dumps(data)) == make()


def test_folds_prove_nothing_more_than_one_of_them():
    """Whatever count a forger writes, the claim is that of one release; draws are never hidden."""
    data = json.loads(make(folds=4).to_json())
    data["digest"] = ""  # a forger leaves it out, or computes it again
    proved = make().verify()
    for folds in (1, 2, 1000):
        data["releases"][0]["folds"] = folds
        assert Certificate.from_json(json.dumps(data)).verify() == proved
    data["epsilon"] = 0.99 * proved.epsilon
    with pytest.raises(CertificateError, match="parameters prove delta"):
        Certificate.from_json(json.dumps(data)).verify()
    data = json.loads(make(folds=4).to_json())
    data["releases"][0].update(draws=4, folds=1)  # as if on the same rows
    with pytest.raises(CertificateError, match="parameters prove delta"):
        Certificate.from_json(json.dumps(data)).verify()


def test_folds_under_add_remove_are_refused_on_every_path():
    relation = Neighbours.ADD_REMOVE
    data = json.loads(make(relation=relation).to_json())
    data["releases"][0]["folds"] = 2
    with pytest.raises(CertificateError, match="not disjoint for 'add-remove'"):
        Certificate.from_json(json.dumps(data))
    with pytest.raises(CertificateError, match="not disjoint for 'add-remove'"):
        make(relation=relation, folds=2)
    changed = json.loads(make(folds=2).to_json())
    changed["neighbours"] = "add-remove"
    with pytest.raises(CertificateError, match="calibrated for 'replace-one'"):
        Certificate.from_json(json.dumps(changed)).verify()
    make(relation=Neighbours.ZERO_OUT, folds=2).verify()


def test_the_documented_schema_names_every_field():
    page = Path(__file__).parents[1] / "docs" / "certificate.md"
    documented = set(re.findall(r"^\| `(\w+)`", page.read_text(encoding="utf-8"), re.M))
    assert documented == {f.name for f in dataclasses.fields(Certificate)}


def test_copy_keeps_it_equal():
    certificate = make()
    assert copy.deepcopy(certificate) == certificate
