"""The audit of a model file: it attacks the plan that was fitted, or says why it can't.

Fits draw from fixed seeds, or nothing statistical is asserted of them.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from dpkernel import (
    AddRemove,
    People,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    SeededNoise,
    load,
    save,
)
from dpkernel.cli import app
from dpkernel.data.domain import Domain, Interval, Levels
from dpkernel.estimators.regressor.budget_plan import BudgetPlan
from dpkernel.foundations.archive import read_archive, write_archive
from dpkernel.foundations.errors import ParameterError
from dpkernel.foundations.types import Neighbours
from dpkernel.methods import PrivateSGDRegressor
from dpkernel.models.kernels import GaussianKernel
from dpkernel.preprocessing import PrivateBounds, PrivateMinMaxScaler, PrivatePipeline
from dpkernel.privacy.profiles import GaussianProfile, PureProfile
from dpkernel.proof.audit import audit, audit_file
from dpkernel.proof.audit.files import group_size, plan_differences, subject_of
from dpkernel.proof.audit.releases import recording, released_by_label
from estimator_table import BUILDERS

ROWS = 400
BOX = {"bounds": (-1, 1), "y_bounds": (-1, 1)}


def rows(n=ROWS, d=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, d))
    return X, np.sin(3 * X[:, 0])


def saved(model, folder, table=None):
    X, y = rows() if table is None else table
    model.set_params(noise=SeededNoise(0))
    return save(model.fit(X, y) if y is not None else model.fit(X), folder / "model.dpk")


def three_stages():
    return PrivateKernelRegressor(20.0, n_features=20, kernel="gaussian", **BOX)


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """A model of three stages, and the report of its audit."""
    path = saved(three_stages(), tmp_path_factory.mktemp("staged"))
    return path, audit_file(path, trials=20, random_state=0, progress=False)


def test_three_stages_are_attacked_as_three_stages(staged):
    path, report = staged
    labels = tuple(release.label for release in load(path).certificate_.releases)
    assert {"location", "stage 1", "stage 2", "stage 3"} < set(labels)
    assert report.releases == labels and report.n_rows == ROWS
    assert json.loads(report.to_json())["releases"] == list(labels)


def test_the_report_says_what_was_done_and_what_it_can_see(staged):
    path, report = staged
    text = str(report)
    certificate = load(path).certificate_
    assert f"model file: fitted to {ROWS} rows of 2 column(s), replace-one neighbours" in text
    assert f"epsilon = {certificate.epsilon:.6g} at delta = 1e-06" in text
    assert "audited plan: the same number of rows, the same releases and noise" in text
    assert f"{ROWS} made-up rows in each fit; one record replaced (one record; the others" in text
    assert "every value released with noise (location, inputs, stage 1, scale 1, stage 2" in text
    assert "with confidence 0.999; claimed: " in text
    assert "20 judged fits on each side" in text and "whatever leaks; run more trials" in text
    assert not report.has_power
    explained(text)


def explained(text):
    """No number above what the claim allows without a word on it in its line."""
    lines = [line for line in text.splitlines() if "the claim allows" in line]
    assert len(lines) >= 2
    for line in lines:
        found = float(re.search(r"(?:AUC|advantage) (\d\.\d+)", line).group(1))
        allowed = float(re.search(r"the claim allows (\d\.\d+)", line).group(1))
        assert found <= allowed or "within chance" in line or "a violation" in line
    for line in text.splitlines():
        told = re.search(r"epsilon >= (\d+\.\d+).*claimed: (\d+\.\d+)(.*)", line)
        assert told is None or float(told[1]) <= float(told[2]) or "a violation" in told[3]


def test_a_classifier_keeps_its_centre(tmp_path):
    X, y = rows()
    model = PrivateKernelClassifier(1.0, classes=[0, 1], bounds=(-1, 1))
    subject, n, _, _ = subject_of(saved(model, tmp_path, (X, (y > 0).astype(int))))
    labels = [release.label for release in subject.certificate.releases]
    assert labels == ["centre", "decision function"] and n == ROWS


@pytest.mark.parametrize("name", ["PrivateKernelRegressor", "PrivateKernelClassifier"])
def test_features_made_for_the_inputs_are_made_again(name, tmp_path):
    """Made-up rows lie elsewhere, so the released numbers in the map are others."""
    line = BUILDERS[name]
    X = np.random.default_rng(0).uniform(-1, 0, (1500, 2))
    model = line(bounds=(-1, 1), n_features=10, epsilon=2.0)
    assert subject_of(saved(model, tmp_path, (X, line.target(X[:, 0]))))[1] == 1500
    assert model.certificate_.public["feature_map"]["kind"] == "learned"


@pytest.mark.parametrize("name", [name for name in BUILDERS if not BUILDERS[name].keeps_rows])
@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
def test_every_estimator_is_built_again_from_its_file(name, relation, tmp_path):
    line = BUILDERS[name]
    X, y = rows(150)
    model = line(neighbours=relation, bounds=(-1, 1))
    subject, n, _, words = subject_of(saved(model, tmp_path, (X, line.target(y))))
    assert n == 150 and subject.certificate.neighbours is Neighbours.resolve(relation)
    assert "the same number of rows" in words[1]


@pytest.mark.parametrize(
    "model",
    [
        PrivateKernelRegressor(20.0, budget_plan=BudgetPlan(0.2, 0.1, (1, 1), 0.02, 0.03), **BOX),
        PrivateKernelRegressor(20.0, length_scale=[0.5, 2.0], **BOX),
        PrivateKernelRidge(1.0, kernel=GaussianKernel(0.3), **BOX),
        PrivateKernelRidge(1.0, folds=3, length_scale=[0.5, 2.0], **BOX),
        PrivateKernelRidge(1.0, y_bounds=(-1, 1), bounds=Domain((Interval(-1, 1), Levels((0, 1))))),
        PrivatePipeline(
            [
                ("scale", PrivateMinMaxScaler(bounds=(-5, 5))),
                ("model", PrivateKernelRidge(y_bounds=(-1, 1))),
            ],
            4.0,
        ),
    ],
    ids=["own plan", "length scales", "own kernel", "folds", "levels", "pipeline"],
)
def test_parameters_that_are_no_plain_numbers_are_built_again(model, tmp_path):
    assert subject_of(saved(model, tmp_path))[1] == ROWS


def test_several_targets_and_transformers_are_built_again(tmp_path):
    X, y = rows()
    several = saved(PrivateKernelRegressor(20.0, **BOX), tmp_path, (X, np.column_stack((y, y))))
    assert subject_of(several)[0].n_targets == 2
    bounds = saved(PrivateBounds(4.0, bounds=(-5, 5)), tmp_path, (X, None))
    assert subject_of(bounds)[0].n_targets is None


def test_a_smaller_table_must_make_the_same_releases(staged, tmp_path):
    path, _ = staged
    with pytest.raises(
        ParameterError, match=r"a fit to 20 made-up rows does not make.*it releases"
    ):
        audit_file(path, n_rows=20, progress=False)
    with pytest.raises(
        ParameterError, match="'n_rows' parameter of audit_file must be an int from"
    ):
        audit_file(path, n_rows=ROWS + 1)
    ridge = saved(PrivateKernelRidge(1.0, kernel="linear", **BOX), tmp_path)
    report = audit_file(ridge, n_rows=40, trials=20, records=2, random_state=0, progress=False)
    assert report.n_rows == 40 and report.releases == ("gram matrix",)
    assert "40 rows instead of 400, as asked; the same releases with the same privacy" in str(
        report
    )
    assert report.relation == "2 records replaced, 2 steps of replace-one"


def test_a_table_that_takes_long_is_halved_as_long_as_the_plan_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("dpkernel.proof.audit.files._SMALL", 100)
    path = saved(PrivateKernelRidge(1.0, kernel="linear", **BOX), tmp_path)
    assert subject_of(path)[1] == ROWS  # a fit is fast
    monkeypatch.setattr("dpkernel.proof.audit.files._SLOW", 0.0)
    _, n, _, words = subject_of(path)
    assert n == 100 and "100 rows instead of 400, because a fit of 400 rows would take" in words[1]
    staged = saved(three_stages(), tmp_path)  # 100 and 200 rows have other plans
    assert subject_of(staged)[1] == ROWS


def edited(path, change):
    whole = read_archive(path, 2**31)
    header = json.loads(json.dumps(whole.header))
    change(header)
    write_archive(path, header, whole.arrays)


def test_a_file_of_another_plan_is_refused_and_one_without_a_request_is_read(tmp_path):
    path = saved(PrivateKernelRidge(1.0, kernel="linear", folds=3, **BOX), tmp_path)
    edited(path, lambda header: header.pop("request"))
    assert subject_of(path)[1] == ROWS
    edited(path, lambda header: header["parameters"].update(folds=1))
    with pytest.raises(ParameterError, match="the release 'gram matrix' has another mechanism"):
        audit_file(path)


@pytest.mark.parametrize("record", ["auto", "all", "near", "one", "add-remove", "SGD", "pipeline"])
def test_a_model_of_people_is_audited_with_people(tmp_path, record):
    """A person has one row in one table and twenty in the other. A false alarm: at most 0.001."""
    X, y = rows()
    model = PrivateKernelRidge(1.0, kernel="linear", **BOX)
    rule = {"add-remove": "one", "SGD": "all", "pipeline": "mean"}.get(record, record)
    if record == "add-remove":
        model.set_params(neighbours=AddRemove(240))
    if record == "SGD":
        model = PrivateSGDRegressor(1.0, kernel="linear", max_iter=2, **BOX)
    if record == "pipeline":
        steps = [("scale", PrivateMinMaxScaler(bounds=(-9, 9))), ("ridge", model)]
        model = PrivatePipeline(steps, 1.0)
    model.fit(X, y, groups=People(np.arange(ROWS) // 2, rule))
    path = save(model, tmp_path / "people.dpk")
    subject, n_people, _, words = subject_of(path)
    assert n_people == (240 if record == "add-remove" else ROWS // 2)
    assert (
        subject.people == ("all" if record == "auto" else rule) and "people with rows" in words[0]
    )
    found = audit_file(path, trials=40, records=1, random_state=0, progress=False)
    assert found.verdict == "not contradicted"
    assert "one person of 1 row in one table and 20 rows in the other" in found.pair


class ManyRowsCountMore(PrivateKernelRidge):
    """A twin in which every row of a person has the weight 1."""

    def _open_people(self, X, y, given, order):
        table, record = super()._open_people(X, y, given, order)
        return replace(table, shares=np.ones_like(table.shares)), record


@pytest.mark.parametrize("targets", [None, 2])
def test_made_up_people_show_that_many_rows_count_more(targets):
    given = {**BOX, "kernel": "linear"}
    if targets:
        given["y_bounds"] = [(-1, 1), (0, 9)]
    options = {"n_rows": 40, "trials": 80, "random_state": 0, "progress": False, "people": "all"}
    options["n_targets"] = targets
    assert audit(ManyRowsCountMore(1.0, **given), **options).verdict == "contradicted"
    assert audit(PrivateKernelRidge(1.0, **given), **options).verdict == "not contradicted"


@pytest.mark.parametrize("records", [1, 4])
def test_a_file_is_contradicted_where_the_code_draws_too_little_noise(
    tmp_path, monkeypatch, records
):
    """The model is sound; the code that makes the fits again is not."""
    path = saved(PrivateKernelRidge(1.0, kernel="linear", **BOX), tmp_path)
    options = {"trials": 60, "n_rows": 40, "records": records, "random_state": 0, "progress": False}
    assert not audit_file(path, **options).contradicted
    honest = SeededNoise.discrete_gaussian
    monkeypatch.setattr(
        SeededNoise,
        "discrete_gaussian",
        lambda self, scale, size: honest(self, max(0.05 * scale, 1.0), size),
    )
    report = audit_file(path, **options)
    assert report.contradicted and report.epsilon_lower > 0
    explained(str(report))
    assert "a violation, the lower bound is above it" in str(report)


def test_point_estimates_above_the_claim_are_said_to_be_chance_or_a_violation(staged):
    _, report = staged
    p, q = np.arange(20.0) + 6, np.arange(20.0)  # AUC 0.755
    point = replace(report.points[0], hit_low=0.3, false_high=0.25)
    one = replace(report, claim=GaussianProfile(0.5), scores=(p, q), points=(point,))
    chance = "the estimate is above it, which is within chance because the lower bound is not"
    assert str(one).count(chance) == 2 and "a violation" not in str(one)
    seen = one.roc()
    assert seen.auc > seen.auc_bound > seen.auc_lower == pytest.approx(0.525)
    explained(str(one))
    sure = replace(one, points=(replace(point, hit_low=0.9, false_high=0.1),))
    assert str(sure).count(": a violation, the lower bound is above it") == 2
    assert chance not in str(sure)
    proved = replace(report, epsilon_lower=30.0, claimed_epsilon=20.0)
    assert (
        "epsilon >= 30.000 at delta = 1e-06, with confidence 0.999; claimed: 20.000: a vio"
        in str(proved)
    )
    assumed = replace(report, mu_lower=9.0)
    assert ", above the claim under that assumption only" in str(assumed)


def test_the_command_attacks_the_plan_of_the_file(tmp_path):
    path = saved(PrivateKernelRidge(1.0, kernel="linear", **BOX), tmp_path)
    line = ["audit", str(path), "--trials", "20", "--records", "3", "--rows", "100"]
    told = CliRunner().invoke(app, line)
    assert told.exit_code == 0, told.output
    text = " ".join(told.stdout.split())
    assert "100 rows instead of 400, as asked" in text and "(gram matrix)" in text
    assert "3 records replaced, 3 steps of replace-one" in text
    refused = CliRunner().invoke(app, ["audit", str(path), "--rows", "500"])
    assert refused.exit_code != 0 and "from 2 to the 400 rows of the model" in " ".join(
        refused.output.split()
    )


def test_groups_are_as_large_as_the_claim_hides():
    whole = GaussianProfile(0.2)
    size = group_size(whole, Neighbours.REPLACE_ONE, 1000)
    assert GaussianProfile(0.2 * size).delta(0.0) <= 0.6 < GaussianProfile(0.4 * size).delta(0.0)
    assert group_size(whole, Neighbours.ZERO_OUT, 1000) < size
    assert group_size(whole, Neighbours.REPLACE_ONE, 9) == 2
    assert group_size(PureProfile(5.0), Neighbours.REPLACE_ONE, 1000) == 1


# --- what is compared, and what is seen -------------------------------------------------------


def test_plans_differ_by_every_part():
    X, y = rows(60)
    common = {"kernel": "linear", "noise": SeededNoise(0), **BOX}
    stated = PrivateKernelRidge(1.0, **common).fit(X, y).certificate_

    def differences(table=(X, y), same_size=True, **options):
        found = PrivateKernelRidge(**{"epsilon": 1.0, **common, **options}).fit(*table)
        return plan_differences(stated, found.certificate_, same_size=same_size)

    fewer = X[:30], y[:30]
    assert differences() == [] and differences(fewer, same_size=False) == []
    assert "neighbours are zero-out, not replace-one" in differences(neighbours="zero-out")[0]
    assert differences(solver="output") == ["it releases coefficients"]
    assert "its feature map is another one" in differences(kernel="gaussian")
    for same_size in (True, False):
        assert differences(epsilon=1.1, same_size=same_size)
        assert differences(folds=2, same_size=same_size)


def test_only_what_a_certificate_lists_is_seen_and_nothing_stays_behind():
    from dpkernel.privacy.mechanisms import REGISTRY

    honest = {kind: vars(kind).get("release") for kind in REGISTRY.values()}
    X, y = rows(60)
    with recording() as seen:
        model = three_stages().set_params(noise=SeededNoise(0)).fit(*rows())
        other = PrivateKernelRidge(1.0, kernel="linear", noise=SeededNoise(0), **BOX).fit(X, y)
    found = released_by_label(seen, model.certificate_)
    assert set(found) == {release.label for release in model.certificate_.releases}
    assert all(len(values) == 1 for values in found.values())
    assert list(released_by_label(seen, other.certificate_)) == ["gram matrix"]
    assert released_by_label(seen, None) == {}
    with pytest.raises(RuntimeError, match="stop"), recording():
        raise RuntimeError("stop")
    assert {kind: vars(kind).get("release") for kind in REGISTRY.values()} == honest


def test_fits_inside_a_search_are_not_seen():
    from dpkernel.selection import PrivateSearchCV

    ridge = PrivateKernelRidge(kernel="linear", **BOX)
    grid = {"regularisation": [0.1, 10.0]}
    for strategy in ("free", "exponential"):
        search = PrivateSearchCV(ridge, grid, delta=1e-5, strategy=strategy, noise=SeededNoise(0))
        with recording() as seen:
            search.fit(*rows(200))
        labels = {release.label for release in search.certificate_.releases}
        values = released_by_label(seen, search.certificate_)
        assert set(values) <= labels
        allowed = sum(r.draws * r.folds for r in search.certificate_.releases)
        assert sum(map(len, values.values())) <= allowed
