"""Model files of transformers and pipelines: the same bits in another process, and no code in them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import Binarizer, FunctionTransformer, Normalizer, PolynomialFeatures

from dpkernel import (
    Domain,
    PrivateKernelClassifier,
    PrivateKernelRegressor,
    PrivateKernelRidge,
    PrivateSearchCV,
    SeededNoise,
    estimators,
    load,
    preprocessing,
    save,
)
from dpkernel.foundations.errors import CertificateError, ParameterError
from dpkernel.preprocessing import (
    DeclaredCategories,
    PrivateBounds,
    PrivateImputer,
    PrivateMinMaxScaler,
    PrivatePCA,
    PrivatePipeline,
    PrivateStandardScaler,
)
from dpkernel.preprocessing.saving import OWN

WIDE = (-1e4, 1e4)
SEED = SeededNoise(3)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.normal([3.0, -0.1, 700.0], [1.0, 0.02, 90.0], (600, 3))
    return X, X[:, 0] - 3 + (X[:, 1] > -0.1)


def transformers():
    """Return one of every kind, with parameters that are not the usual ones."""
    box = Domain.box(*WIDE, n_columns=3, names=("a", "b", "c"))
    return {
        "bounds": PrivateBounds(5.0, bounds=WIDE, y_range=np.array(WIDE), noise=SEED),
        "plain bounds": PrivateBounds(5.0, bounds=box, neighbours="zero-out", noise=SEED),
        "minmax": PrivateMinMaxScaler(5.0, bounds=WIDE, feature_range=(-1.0, 3.0), noise=SEED),
        "standard": PrivateStandardScaler(5.0, bounds=([-1e4] * 3, [1e4] * 3), noise=SEED),
        "imputer": PrivateImputer(5.0, strategy="mean", bounds=WIDE, noise=SEED),
        "pca": PrivatePCA(2, 5.0, bounds=WIDE, row_bound=1.5, noise=SEED),
    }


def pipelines():
    ridge = PrivateKernelRidge(n_features=16)
    first = ("bounds", PrivateBounds(bounds=WIDE, y_range=WIDE))
    free = [
        ("asinh", FunctionTransformer(np.arcsinh, inverse_func=np.sinh)),
        ("same", "passthrough"),
        ("levels", DeclaredCategories([None, None, None])),
    ]
    return {
        "ridge": [*free, first, ("model", ridge)],
        "regressor": [first, ("model", PrivateKernelRegressor())],
        "search": [first, ("model", PrivateSearchCV(ridge, {"regularisation": [1.0, 50.0]}))],
        "scaled": [first, ("norm", Normalizer("l1")),
                   ("more", PolynomialFeatures((1, 2), include_bias=False)),
                   ("bin", Binarizer(threshold=0.25)), ("scale", PrivateStandardScaler(bounds=(-1, 1)))],
    }  # fmt: skip


@pytest.fixture(scope="module")
def fitted_pipelines(table):
    options = {"weights": {"bounds": 0.3}, "noise": SEED}
    every = pipelines().items()
    return {name: PrivatePipeline(steps, 5.0, **options).fit(*table) for name, steps in every}


IN_ANOTHER_PROCESS = """
import sys
import numpy as np
from dpkernel import load
X = np.load(sys.argv[1] + "/X.npy")
for path in sys.argv[2:]:
    model = load(path)
    method = "predict" if hasattr(model, "predict") else "transform"
    np.save(path + ".npy", getattr(model, method)(X))
"""


def test_files_give_the_same_bits_in_another_process(table, fitted_pipelines, tmp_path):
    X, y = table
    np.save(tmp_path / "X.npy", X)
    fitted = {name: model.fit(X, y) for name, model in transformers().items()} | fitted_pipelines
    paths = {name: str(save(model, tmp_path / f"{name}.dpk")) for name, model in fitted.items()}
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, str(tmp_path), *paths.values()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name, model in fitted.items():
        mine = model.predict(X) if hasattr(model, "predict") else model.transform(X)
        np.testing.assert_array_equal(np.load(paths[name] + ".npy"), mine, err_msg=name)


def test_a_loaded_transformer_is_whole(table, tmp_path):
    X, y = table
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    for name, model in transformers().items():
        model.fit(frame, y)
        again = load(save(model, tmp_path / "model.dpk"))
        assert again.certificate_ == model.certificate_ and again.noise is None
        assert list(again.feature_names_in_) == ["a", "b", "c"]
        np.testing.assert_array_equal(again.transform(frame), model.transform(frame))
        names = model.get_feature_names_out()
        np.testing.assert_array_equal(again.get_feature_names_out(), names)
        learned = set(vars(model)) - set(model.get_params())
        assert learned == set(vars(again)) - set(again.get_params()), name
        for key in learned - {"certificate_", "_domain"}:
            np.testing.assert_array_equal(getattr(again, key), getattr(model, key))
        kept = ("feature_range", "strategy", "row_bound", "n_components")
        for key in (key for key in kept if hasattr(model, key)):
            assert getattr(again, key) == getattr(model, key)
        assert clone(again).fit(frame, y).certificate_.private  # its parameters are those of a fit
        if hasattr(model, "inverse_transform"):
            rows = pd.DataFrame(model.transform(frame), columns=["a", "b", "c"][: len(names)])
            np.testing.assert_array_equal(
                again.inverse_transform(rows), model.inverse_transform(rows)
            )


def test_a_loaded_pipeline_is_whole(table, fitted_pipelines, tmp_path):
    for model in fitted_pipelines.values():
        again = load(save(model, tmp_path / "model.dpk"))
        assert again.certificate_ == model.certificate_
        assert [key for key, _ in again.steps_] == [key for key, _ in model.steps_]
        assert again.weights == {"bounds": 0.3} and again.n_features_in_ == 3
    assert again.fit(*table).certificate_.private  # its parameters are those of a fit


def test_classes_and_levels_come_back(table, tmp_path):
    X, y = table
    frame = pd.DataFrame({"town": np.where(X[:, 1] > -0.1, "north", "south"), "size": X[:, 0]})
    labels = np.where(y > 0, "yes", "no")
    steps = [
        ("levels", DeclaredCategories({"town": ["north", ("a", 1), True, 2.5, 7]}, other=False)),
        ("bounds", PrivateBounds(bounds=WIDE)),
        ("model", PrivateKernelClassifier(classes=["no", "yes"])),
    ]
    model = PrivatePipeline(steps, 5.0, noise=SEED).fit(frame, labels)
    again = load(save(model, tmp_path / "model.dpk"))
    assert list(again.classes_) == ["no", "yes"] and list(again.feature_names_in_) == [
        "town",
        "size",
    ]
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))
    encoder = load(save(model.named_steps_["levels"], tmp_path / "levels.dpk"))
    np.testing.assert_array_equal(
        encoder.get_feature_names_out(), model.named_steps_["levels"].get_feature_names_out()
    )
    np.testing.assert_array_equal(
        encoder.transform(frame), encoder.fit(frame[::-1]).transform(frame)
    )
    odd = DeclaredCategories([[pd.Timestamp("2026-01-01")]]).fit([[1]])
    with pytest.raises(ParameterError, match="one is of class Timestamp"):
        save(odd, tmp_path / "odd.dpk")


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (FunctionTransformer(lambda table: table), "function of the step 'free' is not one of"),
        (FunctionTransformer(np.sqrt, kw_args={"dtype": float}), "'free' has arguments"),
        (FunctionTransformer(np.sqrt, validate=np.True_), "'validate' of the step 'free' can't be"),
        (Pipeline([]), r"'free' \(Pipeline\) can't be saved.*Normalizer"),
    ],
)
def test_code_is_not_saved(table, tmp_path, step, message):
    steps = [("free", FunctionTransformer()), ("bounds", PrivateBounds(bounds=WIDE))]
    model = PrivatePipeline(steps, 5.0).fit(table[0])
    model.steps_[0] = ("free", step)
    with pytest.raises(ParameterError, match=message):
        save(model, tmp_path / "model.dpk")
    assert list(tmp_path.iterdir()) == []


def test_every_transformer_can_be_a_step_of_a_saved_pipeline():
    names = {name for name in preprocessing.__all__ if name[0].isupper()} - {"PrivatePipeline"}
    assert names | set(estimators.__all__) == set(OWN)


def test_a_search_says_what_to_save(table, tmp_path):
    X, y = table
    ridge = PrivateKernelRidge(bounds=WIDE, y_bounds=(-5, 5), n_features=8)
    search = PrivateSearchCV(ridge, {"regularisation": [1.0, 9.0]}, epsilon=3.0).fit(X, y)
    with pytest.raises(ParameterError, match="Save its best_estimator_"):
        save(search, tmp_path / "model.dpk")
    again = load(save(search.best_estimator_, tmp_path / "model.dpk"))
    assert again.certificate_ == search.certificate_


def test_files_that_do_not_fit_together_are_refused(table, fitted_pipelines):
    X, _ = table
    header, arrays = fitted_pipelines["ridge"]._to_state()

    def changed(**parts):
        found = json.loads(json.dumps(header))
        found.update(parts)
        return found

    other = json.loads(json.dumps(header["steps"]).replace('"name": "bounds"', '"name": "scale"'))
    with pytest.raises(CertificateError, match="does not list what its steps released"):
        PrivatePipeline._from_state(changed(steps=other), arrays)
    unknown = [{"name": "x", "kind": "os.system", "header": {}}, *header["steps"]]
    with pytest.raises(CertificateError, match=r"does not know the step 'os.system'"):
        PrivatePipeline._from_state(changed(steps=unknown), arrays)
    told = json.loads(json.dumps(header["steps"]))
    told[0]["header"]["parameters"]["func"] = "fromfile"
    with pytest.raises(CertificateError, match="a function that is not listed"):
        PrivatePipeline._from_state(changed(steps=told), arrays)
    for n_columns in (None, 0, 1 << 40, "3"):
        told = json.loads(json.dumps(header["steps"]))
        told[0]["header"]["n_columns"] = n_columns
        with pytest.raises(
            CertificateError, match="no number of columns, or one that is too large"
        ):
            PrivatePipeline._from_state(changed(steps=told), arrays)
    told = json.loads(json.dumps(header["steps"]))
    told[0]["header"]["parameters"]["kw_args"] = {"out": 1}
    with pytest.raises(CertificateError, match="parameters that it can't have"):
        PrivatePipeline._from_state(changed(steps=told), arrays)
    scaler = PrivateStandardScaler(5.0, bounds=WIDE).fit(X)
    state, numbers = scaler._to_state()
    with pytest.raises(CertificateError, match="do not fit its columns"):
        PrivateStandardScaler._from_state(state, {**numbers, "scale_": np.ones(2)})
    pca = PrivatePCA(2, 5.0, bounds=WIDE).fit(X)
    state, numbers = pca._to_state()
    with pytest.raises(CertificateError, match="do not fit its components"):
        PrivatePCA._from_state(state, {**numbers, "explained_variance": np.ones(3)})


@pytest.mark.parametrize(("claim", "why"), [("private", "seeded"), ("valid", "not proved")])
def test_a_file_that_claims_more_than_its_steps_is_refused(table, claim, why):
    steps = [("bounds", PrivateBounds(bounds=WIDE)), ("scale", PrivateMinMaxScaler())]
    header, arrays = PrivatePipeline(steps, 5.0).fit(table[0])._to_state()
    PrivatePipeline._from_state(header, arrays)
    header = json.loads(json.dumps(header))
    part = header["steps"][1]["header"]["certificate"]
    part.update({claim: False, "reasons": [why]})
    with pytest.raises(CertificateError, match=f"says '{claim}', but that of a step does not"):
        PrivatePipeline._from_state(header, arrays)
