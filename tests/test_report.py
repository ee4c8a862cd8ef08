"""The report: what stands on the page, that nothing hostile gets onto it, and how a browser shows it."""

from __future__ import annotations

import base64
import dataclasses
import html
import json
import re
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest

from dpkernel import (
    Budget,
    Certificate,
    Domain,
    Interval,
    Ledger,
    Levels,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
    PrivateSearchCV,
    SeededNoise,
    load,
    private_score,
    save,
)
from dpkernel.data.table_files import ColumnRule, Schema
from dpkernel.estimators.regressor import BudgetPlan
from dpkernel.estimators.regressor.scale import ErrorLaw
from dpkernel.foundations.errors import ParameterError
from dpkernel.methods import PrivateCurator, PrivateGridRegressor, PrivateKernelSVC
from dpkernel.outputs.report import write_report
from dpkernel.outputs.report.charts import ticks
from dpkernel.outputs.report.encoding import read_declared
from dpkernel.outputs.report.glossary import GLOSSARY
from dpkernel.outputs.report.markup import Html, escape, number, tag, told
from dpkernel.outputs.report.style import LINES
from dpkernel.outputs.report.views import (
    MOST_PICTURES,
    coefficients_of,
    dependences,
    relevance_of,
    view_of,
)
from dpkernel.outputs.report.words import MECHANISMS, SENSITIVITIES
from dpkernel.preprocessing import (
    DeclaredCategories,
    PrivateBounds,
    PrivateImputer,
    PrivatePCA,
    PrivatePipeline,
    PrivateStandardScaler,
)
from dpkernel.privacy.certificate_text import QUANTITIES
from dpkernel.privacy.mechanisms import PROCEDURES, REGISTRY
from dpkernel.privacy.sensitivity.base import _FORMULAS, _LAWS, RandomSensitivity
from estimator_table import BUILDERS

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>\u202e\x00\ud800'
VOID = {"meta", "br"}


def table(n=300, d=2, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, d))
    return X, np.clip(X[:, 0] - 0.5 * X[:, -1], -2, 2)


def ridge(X=None, y=None, **options):
    if X is None:
        X, y = table()
    given = {"kernel": "linear", "bounds": (-1, 1), "y_bounds": (-2, 2), **options}
    return PrivateKernelRidge(3.0, **given).fit(X, y)


def written(model, tmp_path, **options) -> str:
    return write_report(model, tmp_path / "r.html", **options).read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Collects elements and attributes; fails where an element is not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open, self.found, self.texts = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, name, attributes):
        self.found.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.found.append((name, dict(attributes)))

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def elements(self, name: str) -> list[dict]:
        return [attributes for found, attributes in self.found if found == name]


# --- every kind of model --------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILDERS)
def test_every_estimator_has_a_page_with_pictures(name, tmp_path):
    X, y = table(120)
    line = BUILDERS[name]
    model = line(bounds=(-1, 1)).fit(X, line.target(y))
    page = Reader(written(model, tmp_path))
    assert "The guarantee holds" in page.text and "NO GUARANTEE" not in page.text
    labels = [svg["aria-label"] for svg in page.elements("svg")]
    pictures = 0 if line.keeps_rows else 1  # a curator keeps every question on record
    assert sum("column 1" in label for label in labels) == pictures
    assert sum("column 2" in label for label in labels) == pictures
    assert any(label.startswith("Trade-off curve") for label in labels)


def test_a_pipeline_is_asked_in_the_units_of_its_input(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(100, 10, (3000, 2))
    pipeline = PrivatePipeline(
        [
            ("bounds", PrivateBounds(bounds=(-1e4, 1e4), y_range=(-1e4, 1e4))),
            ("model", PrivateKernelRidge(kernel="linear")),
        ],
        epsilon=20.0,
        noise=SeededNoise(0),
    ).fit(X, X[:, 0] - X[:, 1])
    view = view_of(pipeline)
    assert all(40 < c.low < 90 < 110 < c.high < 160 for c in view.columns)
    page = Reader(written(pipeline, tmp_path)).text
    assert "bounds: " in page and "R²" in page  # all releases, and the free statistics of the model
    scaled = PrivatePipeline(
        [("scale", PrivateStandardScaler(bounds=(-1e4, 1e4))), ("model", ridge_step())],
        epsilon=20.0,
        noise=SeededNoise(0),
    ).fit(X, X[:, 0] - X[:, 1])
    assert all(60 < c.low < 80 < 120 < c.high < 140 for c in view_of(scaled).columns)


def ridge_step():
    return PrivateKernelRidge(kernel="linear", y_bounds=(-100, 100))


def test_levels_of_a_pipeline_are_drawn_one_a_row(tmp_path):
    rng = np.random.default_rng(0)
    kind = rng.choice(["oak", "elm"], 2000)
    X = np.column_stack([kind, rng.uniform(0, 1, 2000)]).astype(object)
    y = np.where(kind == "oak", 1.0, -1.0)
    model = PrivatePipeline(
        [
            ("levels", DeclaredCategories([["oak", "elm"], None])),
            ("model", PrivateKernelRidge(kernel="linear", bounds=(0, 1), y_bounds=(-2, 2))),
        ],
        epsilon=50.0,
    ).fit(X, y)
    (trees, _), _ = dependences(view_of(model))
    assert trees.places == ("oak", "elm") and trees.levels
    assert trees.mean[0, 0] > 0.7 and trees.mean[1, 0] < -0.7
    assert "oak" in Reader(written(model, tmp_path)).text


def test_a_search_shows_the_model_that_it_chose(tmp_path):
    X, y = table(400)
    estimator = PrivateKernelRidge(kernel="linear", bounds=(-1, 1), y_bounds=(-2, 2))
    search = PrivateSearchCV(estimator, {"regularisation": [1.0, 10.0]}, epsilon=8.0).fit(X, y)
    page = Reader(written(search, tmp_path))
    assert any("column 1" in svg["aria-label"] for svg in page.elements("svg"))
    assert "Coefficients" in page.text and "held-out folds" in page.text


def test_a_bare_certificate_has_no_pictures_of_a_model(tmp_path):
    page = Reader(written(ridge().certificate_, tmp_path))
    assert "What the model says" not in page.text
    assert page.elements("svg")[0]["aria-label"].startswith("Trade-off")


def test_models_that_can_not_be_asked_say_so(tmp_path):
    X, y = table(200)
    unbounded = PrivateKernelRidge(3.0, features="fourier", y_bounds=(-2, 2)).fit(X, y)
    curator = PrivateCurator(
        5.0, bounds=(-1, 1), y_bounds=(-2, 2), accept=("idealised-arithmetic",)
    ).fit(X, y)
    for model in (unbounded, curator):
        assert view_of(model) is None
        assert "There is no picture" in Reader(written(model, tmp_path)).text
    bounds = PrivateBounds(1.0, bounds=(-10, 10)).fit(X)
    assert "column-histograms" in Reader(written(bounds, tmp_path)).text
    grid = PrivateGridRegressor(
        20.0, bounds=(-1, 1), y_bounds=(-2, 2), accept=("idealised-arithmetic",)
    ).fit(X[:, :1], y)
    assert len(view_of(grid).columns) == 1


# --- what stands on it ----------------------------------------------------------------------------


def test_the_page_has_every_part(tmp_path):
    X, y = table()
    ledger = Ledger(budget=Budget(8.0, 1e-5))
    model = ridge(X, y, ledger=ledger, folds=2, regularisation="auto")
    score = private_score(model, X, y, "r2", (2.0, 1e-6), ledger=ledger)
    page = Reader(written(model, tmp_path, ledger=ledger, scores={"R2 elsewhere": score}))
    heads = (
        "What was released",
        "What was not released",
        "What the guarantee does not cover",
        "What an attacker can do",
        "The certificate",
        "How good the model is",
        "What the model says",
        "The budget of the data",
        "What is public",
        "How to verify",
        "How to cite",
    )
    after = page.text.index("This page describes")
    places = [page.text.index(head, after) for head in heads]
    assert places == sorted(places)
    for line in str(model.certificate_).splitlines():
        assert " ".join(line.split()) in page.text
    figures = model.certificate_.free_statistics
    for name in ("training_mse", "training_r2", "held_out_mse"):
        assert number(figures[name][0]) in page.text
    assert number(figures["training_mse_interval"][0][1]) in page.text
    assert "R2 elsewhere" in page.text and number(score.value) in page.text
    assert "PrivateKernelRidge ; this model" in page.text
    assert f"ε = {number(ledger.remaining.epsilon)}" in page.text
    release = model.certificate_.releases[0].mechanism
    assert number(release.sensitivity.value, 6) in page.text and "augmented-gram(" in page.text
    assert number(release.noise_scale, 6) in page.text
    assert "-1 to 1" in page.text and "-2 to 2" in page.text


def test_the_scale_of_residuals_has_its_interval_and_other_numbers_say_why_not(tmp_path):
    plan = BudgetPlan(location=0.1, inputs=0.0, stages=(1.0,), scale=0.1, calibration=0.1)
    options = {"bounds": (-1, 1), "y_bounds": (-2, 2), "n_features": 8, "budget_plan": plan}
    model = PrivateKernelRegressor(20.0, **options).fit(*table())
    found = model.certificate_.free_statistics
    (value,), ((low, high),) = found["residual_scale"], found["residual_scale_interval"]
    assert 0 < low <= value <= high < 2
    page = Reader(written(model, tmp_path)).text
    assert f"hardly count {number(value)} {number(low)} to {number(high)}" in page
    law = ErrorLaw.from_dict(found["errors"][0])
    assert law.informative
    half, least, most = law.quantile(0.5)
    assert f"50% of the errors are at most {number(half)} {number(least)} to {number(most)}" in page
    assert "Not known: the number" not in page
    poor = PrivateKernelRegressor(3.0, **options | {"budget_plan": "auto"}).fit(*table(60))
    page = Reader(written(poor, tmp_path)).text
    assert "that the model assumes" in page and "Not known: the number" in page
    page = Reader(written(ridge(), tmp_path)).text
    assert "95 % interval" in page and "Not known: the number" not in page


def test_the_certificate_can_be_taken_along(tmp_path):
    model = ridge()
    (link,) = Reader(written(model, tmp_path)).elements("a")
    kind, data = link["href"].split(",")
    assert kind == "data:application/json;base64" and link["download"] == "certificate.json"
    again = Certificate.from_json(base64.b64decode(data))
    assert again == model.certificate_ and again.verify()


def test_what_an_attacker_can_do_follows_from_the_profile(tmp_path):
    certificate = ridge().certificate_
    text = Reader(written(certificate, tmp_path)).text.replace("\N{NO-BREAK SPACE}", " ")
    best = 100 * (1 + certificate.profile.delta(0.0)) / 2
    caught = 100 * (1 - certificate.profile.trade_off([0.05])[0])
    assert f"right in at most {best:.3g} % of all cases" in text
    assert f"finds the true value in at most {caught:.3g} %" in text
    assert f"by a factor of at most {np.exp(certificate.epsilon):.3g} " in text


def test_without_a_guarantee_the_verdict_comes_first_and_in_red(tmp_path):
    seeded = ridge(noise=SeededNoise(0))
    forged = dataclasses.replace(ridge().certificate_, epsilon=0.01)
    unproved = dataclasses.replace(
        ridge().certificate_, valid=False, private=False, reasons=("the proof has a gap",)
    )
    empty = dataclasses.replace(ridge().certificate_, releases=())
    for model, why in (
        (seeded, "the noise was seeded"),
        (forged, "The parameters prove delta"),
        (unproved, "the proof has a gap"),
        (empty, "lists no release"),
    ):
        page = written(model, tmp_path)
        read = Reader(page)
        assert read.elements("div")[0] == {"class": "verdict bad", "role": "alert"}
        before, after = _halves(read.text)
        assert why in after[:400] and "What" not in before
        assert "<title>NO GUARANTEE: " in page
        for claim in ("The guarantee holds", "large enough to hide", "No row of the data"):
            assert claim not in read.text
        assert "what the numbers would mean if there were one" in read.text


def _halves(text: str) -> tuple[str, str]:
    """Return what stands before and after the verdict's words, the title of the page left out."""
    body = text.split("Privacy report", 1)[1]
    before, _, after = body.partition("Do not treat what this page describes as private.")
    return before, after


def test_scores_without_a_guarantee_are_marked(tmp_path):
    X, y = table()
    model = ridge(X, y)
    good = private_score(model, X, y, "r2", (2.0, 1e-6))
    bad = private_score(model, X, y, "mse", (2.0, 1e-6), noise=SeededNoise(0))
    page = written(model, tmp_path, scores=[good, bad])
    assert page.count('<span class="bad">NO GUARANTEE</span>') == 1
    assert "mean squared error" in page and "share of the variance explained" in page


def test_a_ledger_of_other_data_and_seeded_spends_are_noted(tmp_path):
    X, y = table()
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    ridge(X, y, ledger=ledger, noise=SeededNoise(0), neighbours="replace-one")
    other = PrivateKernelRidge(1.0, kernel="linear", bounds=(-1, 1), y_bounds=(-2, 2)).fit(X, y)
    text = Reader(written(other, tmp_path, ledger=ledger)).text
    assert "No spend on record has exactly the privacy profile" in text
    assert "1 spend(s) not private" in text
    empty = Reader(written(other, tmp_path, ledger=Ledger(budget=Budget(1, 1e-6)))).text
    assert "Nothing was spent so far." in empty
    unlimited = Ledger()
    model = ridge(X, y, ledger=unlimited)
    assert "no ceiling" in Reader(written(model, tmp_path, ledger=unlimited)).text


def test_the_course_of_a_ledger_ends_at_what_is_spent(tmp_path):
    ledger = Ledger(budget=Budget(20.0, 1e-5))
    assert ledger.course() == []
    for _ in range(3):
        model = ridge(ledger=ledger)
    course = ledger.course()
    assert [step for step, _, _ in course] == [1, 2, 3]
    assert course[-1][1:] == (ledger.naive.epsilon, ledger.spent.epsilon)
    assert course[0][2] < course[1][2] < course[2][2] < course[2][1]
    assert [step for step, _, _ in ledger.course(most=2)] == [1, 3]
    open_end = Ledger()
    ridge(ledger=open_end)
    assert open_end.course()[0][2] is None
    text = Reader(written(model, tmp_path, ledger=ledger)).elements("svg")
    assert any(
        f"After 3 spends the plain sum of ε is {number(course[-1][1])}" in svg["aria-label"]
        for svg in text
    )


def test_changed_ceilings_are_on_record(tmp_path):
    ledger = Ledger(budget=Budget(4.0, 1e-5))
    model = ridge(ledger=ledger)
    ledger.change_ceiling(Budget(5.0, 1e-5), "agreed on by the board")
    assert "agreed on by the board" in Reader(written(model, tmp_path, ledger=ledger)).text


def test_nothing_is_spent_and_the_page_is_always_the_same(tmp_path):
    X, y = table()
    ledger = Ledger(budget=Budget(8.0, 1e-5))
    model = PrivateKernelRegressor(3.0, bounds=(-1, 1), y_bounds=(-2, 2), ledger=ledger).fit(X, y)
    before = ledger.history()
    one = written(model, tmp_path, ledger=ledger)
    assert written(model, tmp_path, ledger=ledger) == one
    assert ledger.history() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.html"]  # and no draft
    assert "of the errors" in one


def test_a_model_from_a_file_has_the_same_page(tmp_path):
    model = PrivateKernelRegressor(3.0, bounds=(-1, 1), y_bounds=(-2, 2)).fit(*table())
    again = load(save(model, tmp_path / "model.npz"))
    assert written(again, tmp_path) == written(model, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scores": 0.7}, "'scores' parameter of write_report must be what private_score returned"),
        ({"scores": [0.7]}, "Got 'float'"),
        ({"scores": {"r2": 0.7}}, "without noise are not private"),
        (
            {"schema": {"inputs": []}},
            "'schema' parameter of write_report must be a Schema, a Domain",
        ),
        ({"schema": Domain()}, "must be a Schema, a Domain with columns or None. Got 'Domain'"),
        (
            {"schema": Domain((Levels((1, 2, 3)),))},
            "the 2 columns that the model takes. Got 'a schema of 3",
        ),
        ({"schema": Domain((Interval(0, 1),))}, "columns that the model takes. Got 'a schema of 1"),
        (
            {"schema": Domain((Interval(0, 1),) * 3)},
            "columns that the model takes. Got 'a schema of 3",
        ),
        ({"ledger": "study.db"}, "'ledger' parameter of write_report must be a Ledger or None"),
    ],
)
def test_bad_arguments_are_refused(options, message, tmp_path):
    with pytest.raises(ParameterError, match=message):
        write_report(ridge(), tmp_path / "r.html", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_not_fitted_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="a fitted estimator of dpkernel or a Certificate"):
        write_report(PrivateKernelRidge(), tmp_path / "r.html")


def test_every_mechanism_and_formula_has_its_words():
    assert set(MECHANISMS) == {*REGISTRY, *PROCEDURES}
    assert set(SENSITIVITIES) == {*_FORMULAS, *_LAWS, RandomSensitivity.formula}
    assert set(QUANTITIES) == set(SENSITIVITIES) - {"declared", "declared-law"}


# --- what the model says --------------------------------------------------------------------------


def test_dependence_is_the_average_answer_over_the_box():
    X, y = table(3000)
    model = PrivateKernelRidge(50.0, bounds=(-1, 1), y_bounds=(-2, 2)).fit(X, y)
    (found, _), compared = dependences(view_of(model))
    assert compared == 2 and found.places[0] == -1.0 and found.places[-1] == 1.0
    others = np.linspace(-1, 1, 2001)
    for place, mean, low, high in zip(found.places, found.mean, found.low, found.high, strict=True):
        answers = model.predict(np.column_stack([np.full(2001, place), others]))
        assert mean[0] == pytest.approx(answers.mean(), abs=0.002)
        wanted = np.quantile(answers, [0.1, 0.9])
        assert [low[0], high[0]] == pytest.approx(wanted.tolist(), abs=0.04)


def test_coefficients_are_the_slopes_of_the_model():
    X, y = table(3000, 3)
    domain = Domain.box([-1, -3, -1], [1, 5, 1], target=Interval(-2, 2), names=("a", "b", "c"))
    model = PrivateKernelRidge(50.0, kernel="linear", bounds=domain).fit(X, y)
    found = coefficients_of(model)
    for name, value in zip(found.names, found.values[:, 0], strict=True):
        j = "abc".index(name)
        middle = np.array([[0.0, 1.0, 0.0]])
        upper = middle.copy()
        upper[0, j] = domain.columns[j].high
        assert value == pytest.approx((model.predict(upper) - model.predict(middle))[0], abs=1e-9)
    assert list(np.abs(found.values[:, 0])) == sorted(np.abs(found.values[:, 0]))[::-1]
    assert (
        coefficients_of(PrivateKernelRidge(9.0, bounds=(-1, 1), y_bounds=(-2, 2)).fit(X, y)) is None
    )


def test_classes_quantiles_and_targets_are_named(tmp_path):
    X, y = table(300)
    labels = np.where(X[:, 0] > 0, "ill", "well")
    two = PrivateKernelClassifier(9.0, bounds=(-1, 1), classes=["ill", "well"]).fit(X, labels)
    assert view_of(two).answers == ("class well",) and view_of(two).quantity == "probability"
    third = np.where(X[:, 1] > 0.5, "dead", labels)
    three = PrivateKernelClassifier(9.0, bounds=(-1, 1), classes=["ill", "well", "dead"])
    assert set(view_of(three.fit(X, third)).answers) == {"ill", "well", "dead"}
    machine = PrivateKernelSVC(9.0, bounds=(-1, 1), classes=["ill", "well"]).fit(X, labels)
    assert view_of(machine).quantity == "probability"
    many = PrivateQuantileRegressor(9.0, quantile=[0.1, 0.9], bounds=(-1, 1), y_bounds=(-2, 2)).fit(
        X, y
    )
    assert view_of(many).answers == ("quantile 0.1", "quantile 0.9")
    both = ridge(X, np.column_stack([y, -y]))
    assert view_of(both).answers == ("target 1", "target 2")
    page = Reader(written(both, tmp_path))
    assert "R²), target 2" in page.text
    assert any(svg["aria-label"] == "Key: target 1; target 2" for svg in page.elements("svg"))


def test_levels_that_are_numbers_are_drawn_one_a_row():
    X, y = table(300)
    X[:, 1] = np.where(X[:, 1] > 0, 7.0, 3.0)
    domain = Domain((Interval(-1, 1), Levels((3, 7))), Interval(-2, 2))
    model = PrivateKernelRidge(9.0, kernel="linear", bounds=domain).fit(X, y)
    _, second = dependences(view_of(model))[0]
    assert second.places == (3, 7) and second.levels
    assert set(coefficients_of(model).names) == {"column 1", "column 2 = 3", "column 2 = 7"}


WARDS = ("north", "south", "<east>")


@pytest.mark.parametrize("kind", ["schema", "domain"])
def test_encoded_categories_are_shown_as_one_and_asked_in_valid_rows(kind, tmp_path, monkeypatch):
    rules = (ColumnRule("age", Interval(0, 90)), ColumnRule("ward", Levels(WARDS)))
    schema = Schema(rules)
    declared = schema
    if kind == "domain":
        declared = Domain((Interval(0, 90), Levels(WARDS)), names=("age", "ward"))
    rng = np.random.default_rng(0)
    cells = {"age": rng.uniform(0, 90, 2000), "ward": rng.choice(WARDS, 2000)}
    X, y = schema.encode(cells), np.where(cells["ward"] == "south", 1.0, -1.0)
    bounds = schema.domain()
    model = PrivateKernelRegressor(90.0, n_features=8, bounds=bounds, y_bounds=(-2, 2)).fit(X, y)
    view = view_of(model, read_declared(declared))
    assert view.names == ("age", "ward")
    (age, ward), _ = dependences(view)
    assert not age.levels and (age.places[0], age.places[-1]) == (0.0, 90.0)
    assert ward.levels and ward.places == WARDS and np.argmax(ward.mean) == 1
    asked = []
    predict = PrivateKernelRegressor.predict

    def watched(self, rows, **options):
        asked.append(np.asarray(rows))
        return predict(self, rows, **options)

    monkeypatch.setattr(PrivateKernelRegressor, "predict", watched)
    page = Reader(written(model, tmp_path, schema=declared))
    rows = np.vstack(asked)
    assert set(np.unique(rows[:, 1:])) == {0.0, 1.0} and (rows[:, 1:].sum(axis=1) == 1).all()
    assert (rows[:, 1:].mean(axis=0) > 0.25).all()  # every level is in the pattern
    told = " ".join(picture["aria-label"] for picture in page.elements("svg"))
    assert "ward. prediction is largest for south" in told and "ward=" not in told
    assert "one of north, south, <east>" in page.text


def test_levels_that_are_not_shown_are_counted(tmp_path):
    X, y = table(200, 15)
    schema = Domain((Levels(tuple(range(15))),), names=("ward",))
    page = Reader(written(ridge(X, y), tmp_path, schema=schema))
    assert "3 more levels are not shown." in page.text
    means = ridge(X, y).set_params(noise=SeededNoise(0)).fit(X, y)
    view = view_of(means, read_declared(schema))
    (found,), _ = dependences(view)
    whole = means.predict(np.eye(15))
    assert found.places[int(np.argmax(found.mean))] == int(np.argmax(whole))
    assert found.places[int(np.argmin(found.mean))] == int(np.argmin(whole))
    caption = f"is largest for {int(np.argmax(whole))} ({number(whole.max())}) and smallest for"
    assert caption in Reader(written(means, tmp_path, schema=schema)).text


def test_a_schema_leaves_alone_what_the_model_knows_itself():
    X, y = table(300)
    X[:, 1] = np.where(X[:, 1] > 0, 7.0, 3.0)
    domain = Domain((Interval(-1, 1), Levels((3, 7))), Interval(-2, 2))
    model = PrivateKernelRidge(9.0, kernel="linear", bounds=domain).fit(X, y)
    plain, declared = view_of(model), view_of(model, read_declared(domain))
    assert declared.columns == plain.columns
    assert np.array_equal(dependences(declared)[0][1].mean, dependences(plain)[0][1].mean)


def test_of_many_columns_those_that_matter_are_drawn(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (4000, 20))
    model = ridge(X, X[:, 4] - X[:, 17])
    found, compared = dependences(view_of(model))
    assert len(found) == MOST_PICTURES and compared == 20
    assert {"column 5", "column 18"} <= {d.name for d in found}
    page = Reader(written(model, tmp_path))
    assert f"the {MOST_PICTURES} columns with the largest effect, of 20 compared" in page.text


# --- nothing hostile gets onto it -----------------------------------------------------------------


def test_hostile_names_labels_and_titles_stay_text(tmp_path):
    pandas = pytest.importorskip("pandas")
    X, _ = table()
    names = [HOSTILE[:-1] + "1", "b" * 400]
    labels = np.where(X[:, 0] > 0, HOSTILE, "other")
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    model = PrivateKernelClassifier(
        3.0, bounds=(-1, 1), classes=[HOSTILE, "other"], ledger=ledger
    ).fit(pandas.DataFrame(X, columns=names), labels)
    score = private_score(
        model, pandas.DataFrame(X, columns=names), labels, "accuracy", (1.0, 1e-6)
    )
    ledger.spend(score.certificate.profile, HOSTILE[:-1])
    twisted = dataclasses.replace(
        model.certificate_,
        subject=HOSTILE,
        reference=HOSTILE,
        free_statistics={HOSTILE: HOSTILE, "training_mse": HOSTILE},
        public={**model.certificate_.public, HOSTILE: {HOSTILE: [HOSTILE]}},
        versions={HOSTILE: HOSTILE},
        not_covered=(HOSTILE,),
        reasons=(HOSTILE,),
        private=False,
    )
    model.certificate_ = twisted
    page = written(model, tmp_path, ledger=ledger, scores={HOSTILE: score}, title=HOSTILE)
    read = Reader(page)
    assert not {"script", "img", "iframe", "object", "link"} & {name for name, _ in read.found}
    for name, attributes in read.found:
        assert not any(key.startswith("on") or key in ("style", "src") for key in attributes), name
        assert attributes.get("href", "data:application/json;").startswith("data:application/json;")
    assert read.text.count("alert(1)") >= 10  # it is there, as a text
    assert not re.search("[\x00\u202e\ud800-\udfff]", page)
    assert "http:" not in page and "https:" not in page


def test_text_is_escaped_unless_it_was_made_here():
    assert tag("p", "<b>", Html("<i/>")) == "<p>&lt;b&gt;<i/></p>"
    assert tag("p", title='"x"', hidden=None) == '<p title="&quot;x&quot;"></p>'
    assert escape("a\u202eb\x00") == "a\ufffdb\ufffd"
    assert type(escape("a") + "b") is str  # a sum is text again, and would be escaped


def test_only_the_style_sheet_of_the_page_is_allowed(tmp_path):
    page = written(ridge(), tmp_path)
    rule = next(meta["content"] for meta in Reader(page).elements("meta") if "http-equiv" in meta)
    assert rule.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in rule


# --- colours and numbers --------------------------------------------------------------------------


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_enough_in_light_and_dark(tmp_path):
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    page = written(ridge(), tmp_path)
    roots = re.findall(r":root \{ ([^}]*) \}", page)
    assert len(roots) == 2 and page.index("prefers-color-scheme: dark") < page.index(roots[1])
    lines = [f"line-{i}" for i in range(LINES)]
    for root in roots:
        colours = dict(re.findall(r"--([\w-]+): (#\w{6})", root))
        pairs = [(name, "page") for name in ("text", "quiet", "link", "good", "bad", *lines)]
        pairs += [(name, "panel") for name in ("text", "quiet", "link")]
        pairs += [("good", "good-panel"), ("bad", "bad-panel"), ("line-0", "band")]
        for front, back in pairs:
            assert contrast(colours[front], colours[back]) >= 4.5, (front, back)
    used = set(re.findall(r"var\(--([\w-]+)\)", page))
    assert used <= set(re.findall(r"--([\w-]+):", roots[0]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (float("nan"), "unknown"),
        (float("-inf"), "-∞"),
        (1e-6, "1e-6"),
        (12345.6, "12,350"),
        (0.12345, "0.1235"),
        (1234567, "1,234,567"),
        (3e9, "3e+9"),
        ("chosen", "chosen"),
    ],
)
def test_numbers_read_as_people_write_them(value, text):
    assert number(value) == text


def test_ticks_are_round_and_inside():
    assert ticks((0.0, 1.0)) == [0.0, 0.5, 1.0]
    assert ticks((0.0, 3.5), 5, whole=True) == [0, 1, 2, 3]
    for ends in ((-1e-9, 1e-9), (1e200, 3e200), (99.9, 100.1), (-7.0, -3.0)):
        found = ticks(ends)
        assert 2 <= len(found) <= 12 and all(
            ends[0] * (1 + 1e-9) <= t or ends[0] <= t for t in found
        )


def test_pictures_stay_finite_for_strange_ranges(tmp_path):
    X, y = table(100)
    constant = ridge(X, y, y_bounds=(0.999999999, 1.0), bounds=(-1e-8, 1e-8))
    far = ridge(X * 1e12, y, bounds=(-1e12, 1e12), y_bounds=(-1e140, 1e140))
    for model in (constant, far):
        for name, attributes in Reader(written(model, tmp_path)).found:
            places = [attributes.get(key, "0") for key in ("x", "y", "x1", "y1", "x2", "y2")]
            if name in ("text", "line", "polyline", "polygon"):
                values = [
                    float(v)
                    for v in (
                        " ".join(places) + " " + attributes.get("points", "").replace(",", " ")
                    ).split()
                ]
                assert all(-1 <= v <= 1000 for v in values)


# --- what the model looks at, and words -----------------------------------------------------------


def test_the_page_shows_what_the_model_looks_at(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (4000, 3))
    columns = Domain((Interval(-1, 1), Levels(("a", "b"))), names=("age", "ward"))
    X[:, 1], X[:, 2] = X[:, 1] > 0, X[:, 1] <= 0
    model = PrivateKernelRegressor(5.0, bounds=(-1, 1), y_bounds=(-2, 2), n_features=60)
    model.fit(X, np.sin(3 * X[:, 0]))
    page = Reader(written(model, tmp_path, schema=columns)).text
    shares = dict(
        relevance_of(
            model, model.certificate_.free_statistics, view_of(model, read_declared(columns))
        )
    )
    assert shares["age"] > 0.9 and sum(shares.values()) == pytest.approx(1)
    assert "What the model looks at" in page
    assert f"age {shares['age']:.1%}" in page and f"ward {shares['ward']:.1%}" in page
    assert f"Above all age {shares['age']:.0%}" in page  # in the summary
    assert "What the model looks at" not in Reader(written(ridge(), tmp_path)).text


def test_the_page_of_an_imputing_pipeline_has_all_that_its_model_has(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (4000, 2))
    y = np.sin(X[:, 0])
    X[::3, 1] = np.nan
    columns = Domain((Interval(0, 10), Interval(0, 10)), Interval(-2, 2), names=("age", "crp"))
    model = PrivateKernelRegressor(bounds=columns, n_features=60)
    steps = [("missing values", PrivateImputer(bounds=(0, 10))), ("model", model)]
    pipeline = PrivatePipeline(steps, epsilon=5.0).fit(X, y, groups=np.arange(4000) // 2)
    page = Reader(written(pipeline, tmp_path, schema=columns)).text
    assert "Above all age" in page and "What the model looks at" in page
    assert "age 0 to 10 crp 0 to 10 target -2 to 2" in page
    assert "missing values PrivateImputer; model PrivateKernelRegressor" in page
    assert "one of the rows, which is picked by its content" in page
    assert "a person with all their rows" in page and "unit_record" not in page
    # the columns of this model are mixtures, and its ranges are not those of the input
    mixed = [
        ("mixed", PrivatePCA(2, bounds=(0, 10))),
        ("model", PrivateKernelRegressor(y_bounds=(-2, 2))),
    ]
    other = PrivatePipeline(mixed, epsilon=5.0).fit(np.nan_to_num(X), y)
    assert "relevance" in other.certificate_.free_statistics["kernel"]
    page = Reader(written(other, tmp_path)).text
    assert "What the model looks at" not in page and "target -2 to 2" not in page


def test_no_page_shows_json_and_every_page_explains_its_words(tmp_path):
    X, y = table(2500)
    models = [
        PrivateKernelRegressor(3.0, bounds=(-1, 1), y_bounds=(-2, 2), n_features=40).fit(X, y),
        PrivateKernelClassifier(3.0, bounds=(-1, 1), classes=["a", "b"], n_features=40).fit(
            X, np.where(y > 0, "a", "b")
        ),
        ridge(),
    ]
    for model in models:
        page = Reader(written(model, tmp_path)).text
        assert not re.search(r'[{}]|\["|"\]|null|": ', page.split("@software")[0])
        for word, meaning in GLOSSARY.items():
            assert f"{word} {meaning}" in page


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"kind": "gaussian", "deep": {"a": {"b": 1}}}, "kind gaussian; deep a 1 entries"),
        ([1.5, 2, None, True], "1.5, 2, none, yes"),
        ([[1, 2], [3, 4]], "2 values, 2 values"),
        (list(range(9)), "0, 1, 2, 3, 4, 5, 3 more"),
        ({}, "none"),
        ([], "none"),
    ],
)
def test_nested_values_are_told_in_words(value, text):
    assert told(value) == text


# --- a real browser -------------------------------------------------------------------------------

# measures every report, each in a frame as wide as a phone, and writes what it found into the page
MEASURE = """<!doctype html><meta charset="utf-8">%s<pre id="found"></pre><script>
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument, root = page.documentElement, out = [];
    const inside = box => box.left >= -1 && box.right <= root.clientWidth + 1;
    for (const part of page.body.querySelectorAll("*"))
      if (!part.closest(".scroll *, details:not([open]) *, svg *") &&
          !inside(part.getBoundingClientRect())) out.push(part.tagName);
    const charts = [...page.querySelectorAll("svg")].filter(chart => {
      const box = chart.getBoundingClientRect();
      return box.width > 200 && box.height > 20 && chart.querySelector("polyline, line, circle");
    });
    const words = [...page.querySelectorAll("svg text")];
    for (const part of page.querySelectorAll("details")) part.open = true;
    const slid = [...page.querySelectorAll(".scroll")].filter(
      box => box.scrollWidth > box.clientWidth + 1).length;
    return {width: root.clientWidth, needs: root.scrollWidth, out: out, charts: charts.length,
            slid: slid, all: page.querySelectorAll("svg").length,
            cut: words.filter(word => !inside(word.getBoundingClientRect())).length,
            small: words.filter(word => word.getBoundingClientRect().height < 9).length,
            dark: getComputedStyle(page.body).backgroundColor};
  });
  document.getElementById("found").textContent = JSON.stringify(found);
});
</script>"""


def browse(browser, tmp_path, *arguments: str) -> subprocess.CompletedProcess[str]:
    always = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
    own = ("--enable-logging=stderr", "--v=0", f"--user-data-dir={tmp_path / 'profile'}")
    return subprocess.run(
        [browser, *always, *own, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def console(result: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in result.stderr.splitlines() if ":CONSOLE" in line]


@pytest.fixture(scope="module")
def reports(tmp_path_factory) -> list[str]:
    """Pages with everything, long and hostile names, several answers, and no guarantee."""
    pandas = pytest.importorskip("pandas")
    folder = tmp_path_factory.mktemp("reports")
    X, y = table(400, 3)
    frame = pandas.DataFrame(X, columns=["W" * 60, HOSTILE[:-1], "c"])
    ledger = Ledger(budget=Budget(9.0, 1e-5))
    model = ridge(frame, y, ledger=ledger)
    score = private_score(model, frame, y, "r2", (2.0, 1e-6), ledger=ledger)
    labels = np.where(X[:, 0] > 0, "W" * 60, np.where(X[:, 1] > 0, "b", "c"))
    three = PrivateKernelClassifier(9.0, bounds=(-1, 1), classes=["W" * 60, "b", "c"])
    seeded = PrivateKernelRegressor(2.0, bounds=(-1, 1), y_bounds=(-2, 2), noise=SeededNoise(0))
    return [
        written(model, folder, ledger=ledger, scores={"W" * 60: score}, title="W" * 80),
        written(three.fit(X, labels), folder),
        written(seeded.fit(X, y), folder),
    ]


def test_a_phone_shows_everything_without_scrolling_sideways(browser, reports, tmp_path):
    frames = "".join(
        f'<iframe width="390" height="640" srcdoc="{html.escape(page)}"></iframe>'
        for page in [*reports, "<p><span>" + "W" * 300 + "</span>"]
    )
    (tmp_path / "measure.html").write_text(MEASURE % frames, encoding="utf-8")
    result = browse(browser, tmp_path, "--dump-dom", (tmp_path / "measure.html").as_uri())
    found = json.loads(re.search(r'<pre id="found">(.*?)</pre>', result.stdout, re.S).group(1))
    *pages, wide = found
    assert len(pages) == len(reports)
    for page in pages:
        assert 300 < page["width"] <= 390
        assert page["needs"] <= page["width"] and page["out"] == []
        assert page["charts"] == page["all"] >= 4
        assert page["cut"] == 0 and page["small"] == 0 and page["slid"] == 0  # no table is cut
    assert wide["needs"] > wide["width"]  # the measure sees a page that is too wide
    assert console(result) == []


def test_the_browser_has_nothing_to_say_and_prints_it(browser, reports, tmp_path):
    page = tmp_path / "report.html"
    page.write_text(reports[0], encoding="utf-8")
    result = browse(browser, tmp_path, f"--print-to-pdf={tmp_path / 'report.pdf'}", page.as_uri())
    assert console(result) == []
    data = (tmp_path / "report.pdf").read_bytes()
    assert data.startswith(b"%PDF") and 3 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 20
    # what the policy forbids is heard: a script, and a style that is not the page's own
    broken = reports[0].replace("</body>", '<p style="color: red">x</p><script>1</script></body>')
    page.write_text(broken, encoding="utf-8")
    assert len(console(browse(browser, tmp_path, "--dump-dom", page.as_uri()))) >= 2


def pages_of(browser, tmp_path, text: str) -> int:
    page = tmp_path / "printed.html"
    page.write_text(text, encoding="utf-8")
    browse(browser, tmp_path, f"--print-to-pdf={tmp_path / 'printed.pdf'}", page.as_uri())
    data = (tmp_path / "printed.pdf").read_bytes()
    return len(re.findall(rb"/Type\s*/Page\b", data))


def test_the_summary_prints_on_one_sheet_of_paper(browser, reports, tmp_path):
    for page in reports:
        head, rest = page.split('<section class="summary">')
        alone, rest = rest.split("</section>")
        assert pages_of(browser, tmp_path, f'{head}<section class="summary">{alone}</section>') == 1
        short = f'{head}<section class="summary">{alone}</section><p>x</p></main></body></html>'
        assert pages_of(browser, tmp_path, short) == 2  # what follows starts on a new sheet
