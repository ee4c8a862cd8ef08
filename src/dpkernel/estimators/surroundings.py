"""What scikit-learn did to the rows before a private estimator got them.

An ordinary ``Pipeline`` fits its imputers, scalers and encoders to the rows without noise. What they
learned is part of every prediction, and no certificate of the last step covers it. A step can't see
this in its rows, so ``fit`` looks at who called it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import Binarizer, FunctionTransformer, Normalizer, PolynomialFeatures

# transformers of scikit-learn that learn nothing from rows and compute each row from that row alone
FOREIGN: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (FunctionTransformer, Normalizer, Binarizer, PolynomialFeatures)
}
FUNCTIONS = (
    "abs", "absolute", "arcsinh", "arctan", "cbrt", "ceil", "cos", "exp", "exp2", "expm1", "fabs",
    "floor", "log", "log10", "log1p", "log2", "negative", "reciprocal", "rint", "sign", "sin", "sinh",
    "sqrt", "square", "tanh", "trunc",
)  # fmt: skip
_PUBLIC = {"n_features_in_", "feature_names_in_"}  # attributes that say nothing about single rows


def is_listed(function: Any) -> bool:
    """Whether this is one of NumPy's functions of one number, or None, which means no function."""
    name = getattr(function, "__name__", "")
    return function is None or (name in FUNCTIONS and function is getattr(np, name))


def check_pipeline(pipeline: Any) -> tuple[str, ...]:
    """Return what the certificate of the last step of a scikit-learn pipeline does not cover.

    Parameters
    ----------
    pipeline : estimator
        A ``Pipeline``, ``ColumnTransformer``, ``FeatureUnion`` or ``TransformedTargetRegressor`` of
        scikit-learn, fitted or not, or anything else.

    Returns
    -------
    tuple of str
        The steps that learn from the rows without noise, or that may do so, each with its class. It
        is empty if the certificate covers everything. Replace the steps in it by those of
        ``dpkernel.preprocessing``, in a ``PrivatePipeline``.

    Examples
    --------
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from dpkernel import PrivateKernelRidge, check_pipeline
    >>> check_pipeline(make_pipeline(StandardScaler(), PrivateKernelRidge()))
    ('standardscaler (StandardScaler)',)
    """
    return tuple(_named(_parts(pipeline), fitted=False))


def learned_before(estimator: Any) -> tuple[str, ...]:
    """Return the steps around a running ``fit`` that learned from its rows without noise.

    The result is empty if another private estimator called this one, because that one has looked
    already.
    """
    found: dict[str, None] = {}
    frame: Any = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self") if frame.f_code.co_name.startswith("fit") else None
        if isinstance(caller, BaseEstimator) and caller is not estimator:
            if _is_ours(caller):
                return ()
            if isinstance(caller, (Pipeline, TransformedTargetRegressor)):
                parts = [part for part in _parts(caller) if part[1] is not estimator]
                found |= dict.fromkeys(_named(parts, fitted=True))
        frame = frame.f_back
    return tuple(found)


def _parts(whole: Any) -> list[tuple[str, Any]]:
    """Return the named parts of a composed estimator that see the rows, fitted ones if there are any."""
    if isinstance(whole, Pipeline):
        return list(whole.steps)
    if isinstance(whole, FeatureUnion):
        return list(whole.transformer_list)
    if isinstance(whole, ColumnTransformer):
        parts = getattr(whole, "transformers_", whole.transformers)
        return [(name, step) for name, step, _ in parts]
    if isinstance(whole, TransformedTargetRegressor):
        target = getattr(whole, "transformer_", whole.transformer)
        given = target if target is not None else FunctionTransformer(whole.func)
        return [("target", given), ("regressor", getattr(whole, "regressor_", whole.regressor))]
    return []


def _named(parts: list[tuple[str, Any]], *, fitted: bool) -> Iterator[str]:
    for name, step in parts:
        inner = _parts(step)
        if inner:
            yield from _named(inner, fitted=fitted)
        elif not _harmless(step) and (_has_learned(step) or not fitted):
            yield f"{name} ({type(step).__name__})"


def _harmless(step: Any) -> bool:
    """Whether a step is private, or learns nothing by its kind."""
    if step is None or isinstance(step, str) or _is_ours(step):
        return True
    kind = type(step)
    if kind is FOREIGN.get(kind.__name__):
        return kind is not FunctionTransformer or (
            is_listed(step.func) and is_listed(step.inverse_func)
        )
    declared = getattr(step, "categories", "auto")
    limits = [getattr(step, name, None) for name in ("min_frequency", "max_categories")]
    return not isinstance(declared, str) and limits == [None, None]  # an encoder of declared levels


def _has_learned(step: Any) -> bool:
    """Whether a step has attributes that its ``fit`` set, or a function that may mix rows."""
    if isinstance(step, FunctionTransformer):
        return True
    given = step.get_params(deep=False) if hasattr(step, "get_params") else {}
    return any(
        name not in given and name not in _PUBLIC and not name.startswith("_sklearn")
        for name in vars(step)
    )


def _is_ours(step: Any) -> bool:
    return any(kind.__module__.split(".")[0] == "dpkernel" for kind in type(step).__mro__)
