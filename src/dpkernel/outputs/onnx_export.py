"""Convert a fitted estimator to an ONNX model: clipping, feature map, linear model, target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dpkernel.data.domain import Domain, Interval, Levels
from dpkernel.estimators import PrivateQuantileRegressor
from dpkernel.estimators.kernel_model import KernelModel
from dpkernel.foundations.errors import ParameterError
from dpkernel.models.graph import IR_VERSION, OPSET, Graph, import_onnx
from dpkernel.version import __version__


def to_onnx(model: KernelModel, path: str | Path | None = None) -> Any:
    """Return the predictor of a fitted model as an ONNX model.

    Parameters
    ----------
    model : fitted kernel estimator
        A regressor or classifier on a feature map. A pipeline or search can't be exported; export the
        model inside it.
    path : str or Path, optional
        If given, the ONNX model is also written to this file.

    Returns
    -------
    onnx.ModelProto
        The input is ``X``, in double precision, with one row per record. A regressor has the output
        ``prediction``; a classifier has ``label`` and ``decision``. The metadata contain the
        certificate as JSON.

    Notes
    -----
    Numerics
        The graph computes in double precision. Its predictions agree with ``predict`` to about 1e-10
        of the target's range, not bit for bit, because runtimes add up in another order. ``predict``
        refuses missing values; the graph does not, and its result for them is not defined.
    """
    if not isinstance(model, KernelModel):
        raise ParameterError(
            f"A model of class {type(model).__name__} can't be exported to ONNX. It must be a"
            " regressor or classifier on a feature map."
        )
    onnx = import_onnx()
    check_is_fitted(model)
    graph, helper, kinds = Graph(onnx), onnx.helper, onnx.TensorProto
    x = _unit_box(graph, model._domain, "X")
    features = model.feature_map_.write(graph, x)
    scores = graph.add(graph.product(features, model.coef_), np.asarray(model.intercept_))
    several = np.ndim(model.intercept_) > 0
    if isinstance(model._domain.target, Interval):
        found = {"prediction": (_in_units(graph, model, scores), kinds.DOUBLE)}
    else:
        label, kind = _labels(graph, onnx, model, scores, several)
        found = {"label": (label, kind), "decision": (scores, kinds.DOUBLE)}
    width = [None, len(model.coef_.T)] if several else [None]
    outputs = []
    for name, (tensor, kind) in found.items():
        graph.nodes.append(helper.make_node("Identity", [tensor], [name]))
        shape = [None] if name == "label" else width
        outputs.append(helper.make_tensor_value_info(name, kind, shape))
    given = helper.make_tensor_value_info("X", kinds.DOUBLE, [None, model.n_features_in_])
    made = helper.make_model(
        helper.make_graph(graph.nodes, "predictor", [given], outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        producer_name="dpkernel",
        producer_version=__version__,
    )
    made.ir_version = IR_VERSION
    helper.set_model_props(
        made, {"estimator": type(model).__name__, "certificate": model.certificate_.to_json()}
    )
    if path is not None:
        Path(path).write_bytes(made.SerializeToString(deterministic=True))
    return made


def _unit_box(graph: Graph, domain: Domain, x: str) -> str:
    """Return the input clipped and scaled, as ``Domain.to_unit`` does it."""
    if domain.columns is None:
        return x
    if all(isinstance(column, Interval) for column in domain.columns):
        low, high, middle, half = domain.limits
        inside = graph.largest(graph.smallest(x, high), low)
        return graph.clip(graph.divide(graph.subtract(inside, middle), half), -1.0, 1.0)
    parts = []
    for i, column in enumerate(domain.columns):
        one = graph.columns(x, [i])
        if isinstance(column, Levels):
            parts.append(_one_hot(graph, column, one))
            continue
        inside = graph.clip(one, column.low, column.high)
        unit = graph.divide(graph.subtract(inside, column.middle), column.half_width)
        parts.append(graph.clip(unit, -1.0, 1.0))
    return graph.join(parts)


def _one_hot(graph: Graph, column: Levels, x: str) -> str:
    numbers = [float(value) for value in column.values if isinstance(value, int | float)]
    if len(numbers) < len(column.values):
        raise ParameterError(
            "to_onnx can't export a model with a column whose levels are not numbers."
        )
    levels = graph.constant(numbers)
    same = graph.node("Equal", x, levels)
    return graph.node("Cast", same, to=graph.double)


def _in_units(graph: Graph, model: KernelModel, scores: str) -> str:
    target = model._domain.target
    assert isinstance(target, Interval)
    inside = graph.clip(scores, -1.0, 1.0)
    values = graph.add(graph.multiply(inside, target.half_width), target.middle)
    values = graph.smallest(graph.largest(values, target.low), target.high)
    if isinstance(model, PrivateQuantileRegressor) and model._several:
        count = graph.whole(len(np.asarray(model.intercept_)))
        return graph.sort(values, count)
    return values


def _labels(graph: Graph, onnx: Any, model: Any, scores: str, several: bool) -> tuple[str, int]:
    """Return the labels and their ONNX type."""
    kinds = onnx.TensorProto
    values = model.classes_.tolist()
    known = {str: (str, kinds.STRING), int: (np.int64, kinds.INT64), bool: (np.bool_, kinds.BOOL)}
    known[float] = (np.float64, kinds.DOUBLE)
    types = {type(value) for value in values}
    if len(types) != 1 or not types <= set(known):
        raise ParameterError(
            "to_onnx needs class labels that are all texts, all numbers of one kind, or truth values."
        )
    dtype, kind = known[types.pop()]
    if several:
        place = graph.node("ArgMax", scores, axis=1, keepdims=0)
    else:
        positive = graph.node("Greater", scores, graph.constant(0.0))
        place = graph.node("Cast", positive, to=kinds.INT64)
    return graph.node("Gather", graph.constant(values, dtype), place), kind
