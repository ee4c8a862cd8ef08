"""A model as an ONNX graph predicts what the model predicts."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from dpkernel import (
    Certificate,
    Domain,
    Interval,
    Levels,
    PrivateKernelClassifier,
    PrivateKernelRidge,
    PrivateQuantileRegressor,
    to_onnx,
)
from dpkernel.foundations.errors import ParameterError
from dpkernel.methods import PrivateGridRegressor
from dpkernel.models.features import (
    FourierFeatures,
    LearnedFeatures,
    LinearFeatures,
    NormalisedFeatures,
    PolynomialMap,
    PublicEigenfeatures,
    PublicNystroem,
    RandomProjection,
    TensorSketch,
    WhitenedFeatures,
)
from dpkernel.models.features.base import REGISTRY as MAPS
from dpkernel.models.graph import Graph, import_onnx
from dpkernel.models.kernels import REGISTRY as KERNELS
from dpkernel.models.kernels import GaussianKernel
from estimator_table import BUILDERS

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def opened(content: bytes):
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def run(model, X) -> dict[str, np.ndarray]:
    made = to_onnx(model)
    onnx.checker.check_model(made, full_check=True)
    session = opened(made.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"X": X}), strict=True))


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(4)
    X = rng.uniform(-1, 1, (80, 3))
    new = rng.uniform(-1.5, 1.5, (40, 3))
    new[0], new[1] = 0.0, 1e9
    return X, np.sin(3 * X[:, 0]) + X[:, 1], new


EYE = np.eye(3).tolist()
EXAMPLES = [
    LinearFeatures(),
    FourierFeatures(16, kernel="matern32"),
    FourierFeatures(18, kernel="additive"),
    PolynomialMap(3),
    PolynomialMap(1, offset=0.0, length_scale=[1.0, 2.0, 0.5]),
    RandomProjection(10, base=FourierFeatures(32)),
    RandomProjection(40, base=FourierFeatures(32), structure="hadamard"),
    TensorSketch(15, degree=3),
    TensorSketch(16, degree=2),
    PublicEigenfeatures(30, length_scale=[1.0, 2.0, 1.0]),
    PublicEigenfeatures(30, kernel="laplace"),
    PublicEigenfeatures(1),
    PublicEigenfeatures(12, kernel="matern32"),
    PublicEigenfeatures(12, measure="gaussian", scale=0.5),
    WhitenedFeatures(12, length_scale=2.0),
    WhitenedFeatures(1),
    WhitenedFeatures(12, mean=[0.1, 0, 0], covariance=EYE),
    LearnedFeatures(12),
    LearnedFeatures(
        12,
        components=[
            {"family": "gaussian", "scale": 0.6, "metric": True, "weight": 0.5},
            {"family": "laplace", "scale": 6.0, "metric": True},
            {"family": "linear", "scale": 1.0},
        ],
        metric=[[1.0, 0.2, 0.0], [0.2, 0.5, 0.0], [0.0, 0.0, 1.5]],
    ),
    NormalisedFeatures(FourierFeatures(16), centre=[0.1] * 16, scale=2.0),
    *(PublicNystroem(7, kernel=name) for name in KERNELS if name != "arc_cosine"),
]
EXAMPLES += [cls() for cls in MAPS.values() if cls not in map(type, EXAMPLES)]


@pytest.mark.parametrize("features", EXAMPLES, ids=lambda f: " ".join(str(f).split()))
def test_every_map_gives_the_same_features(features, table):
    X = table[2]
    features.build(3)
    graph = Graph(onnx)
    # times a matrix: runtimes fuse what stands before a product
    mixing = np.random.default_rng(0).uniform(0.5, 1.0, (features.n_outputs, 4))
    out = graph.product(features.write(graph, "X"), mixing)
    value, kind = onnx.helper.make_tensor_value_info, onnx.TensorProto.DOUBLE
    made = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes,
            "g",
            [value("X", kind, [None, 3])],
            [value(out, kind, None)],
            graph.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
    )
    made.ir_version = 8
    (found,) = opened(made.SerializeToString()).run(None, {"X": X})
    np.testing.assert_allclose(found, features.transform_block(X) @ mixing, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", [name for name, line in BUILDERS.items() if not line.keeps_rows])
def test_every_estimator_has_a_graph(name, table):
    X, y, new = table
    line = BUILDERS[name]
    size = {} if name == "PrivateGridRegressor" else {"n_features": 8}
    model = line(bounds=(-1, 1), **size).fit(X, line.target(y))
    found = run(model, new)
    if hasattr(model, "classes_"):
        assert list(found) == ["label", "decision"]
        np.testing.assert_allclose(found["decision"], model.decision_function(new), atol=1e-9)
        np.testing.assert_array_equal(found["label"], model.predict(new))
    else:
        assert list(found) == ["prediction"]
        np.testing.assert_allclose(found["prediction"], model.predict(new), atol=1e-6)  # of +-1000


@pytest.mark.parametrize(
    "model",
    [
        PrivateKernelRidge(y_bounds=(-2, 2), n_features=8),  # no bounds of X
        PrivateQuantileRegressor(
            quantile=[0.1, 0.5, 0.9], epsilon=0.3, y_bounds=(-2, 2), bounds=(-1, 1), n_features=8
        ),
        PrivateKernelRidge(
            bounds=Domain((Interval(-1, 1), Interval(-1, 1), Levels((0, 1, 2))), Interval(-2, 2)),
            n_features=8,
        ),
        PrivateGridRegressor(
            bounds=(-1, 1), y_bounds=(-2, 2), side=3, accept=("idealised-arithmetic",)
        ),
    ],
    ids=["no bounds", "quantiles", "levels", "grid"],
)
def test_columns_and_targets_of_every_kind(model, table):
    X, y, new = table
    X, new = np.array(X), np.array(new)
    if isinstance(model.bounds, Domain):
        X[:, 2], new[:, 2] = np.arange(80) % 3, np.arange(40) % 4  # 3 is no level
    model.fit(X, y)
    np.testing.assert_allclose(run(model, new)["prediction"], model.predict(new), atol=1e-9)
    if isinstance(model, PrivateKernelRidge):
        model.fit(X, np.column_stack([y, -y]))
        assert run(model, new)["prediction"].shape == (40, 2)
        np.testing.assert_allclose(run(model, new)["prediction"], model.predict(new), atol=1e-9)


@pytest.mark.parametrize(
    "classes", [["no", "yes"], ["a", "b", "ü"], [3, 7], [0.5, 1.5, 2.5], [False, True]], ids=str
)
def test_labels_are_the_classes(classes, table):
    X, y, new = table
    places = np.digitize(y, np.linspace(-1, 1, len(classes) + 1)[1:-1])
    labels = np.array(classes)[places]
    model = PrivateKernelClassifier(classes=classes, bounds=(-1, 1), n_features=8).fit(X, labels)
    assert run(model, new)["label"].tolist() == model.predict(new).tolist()


def test_the_file_carries_the_certificate(table, tmp_path):
    X, y, new = table
    model = PrivateKernelRidge(kernel="linear", bounds=(-1, 1), y_bounds=(-2, 2)).fit(X, y)
    made = to_onnx(model, tmp_path / "model.onnx")
    session = opened(str(tmp_path / "model.onnx"))
    notes = session.get_modelmeta().custom_metadata_map
    assert Certificate.from_json(notes["certificate"]) == model.certificate_
    assert notes["estimator"] == "PrivateKernelRidge" and json.loads(notes["certificate"])["valid"]
    assert (tmp_path / "model.onnx").read_bytes() == made.SerializeToString(deterministic=True)
    np.testing.assert_allclose(
        session.run(["prediction"], {"X": new})[0], model.predict(new), atol=1e-9
    )


def test_what_has_no_graph_is_refused(table, monkeypatch):
    X, y, _ = table
    with pytest.raises(ParameterError, match="class int can't be exported to ONNX"):
        to_onnx(3)
    ridge = PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-2, 2))
    cosine = ridge.set_params(features=PublicNystroem(5, kernel="arc_cosine")).fit(X, y)
    with pytest.raises(ParameterError, match="arc_cosine kernel can't be written with ONNX"):
        to_onnx(cosine)

    class OwnKernel(GaussianKernel):  # which may compute something else
        pass

    own = ridge.set_params(features=PublicNystroem(5, kernel=OwnKernel())).fit(X, y)
    with pytest.raises(ParameterError, match="gaussian kernel can't be written with ONNX"):
        to_onnx(own)

    class Own(LinearFeatures):
        pass

    own = ridge.set_params(features=Own()).fit(X, y)
    with pytest.raises(ParameterError, match="feature map Own can't be written as an ONNX graph"):
        to_onnx(own)
    mixed = PrivateKernelClassifier(classes=[1, "a"], bounds=(-1, 1), n_features=8)
    mixed.fit(X, np.array([1, "a"], dtype=object)[(y > 0).astype(int)])
    with pytest.raises(ParameterError, match="labels that are all texts"):
        to_onnx(mixed)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ParameterError, match="pip install onnx"):
        import_onnx()
