"""What surrounds a fit: pipelines of scikit-learn, clones of the estimator, and other threads.

An ordinary ``Pipeline`` fits its imputers, scalers and encoders to the rows without noise. What they
learned is part of every prediction, and no certificate of the last step covers it. A step can't see
this in its rows, so ``fit`` looks at who called it. It also counts the clones that are fitted without a
ledger, and lets threads fit one object after the other.
"""

from __future__ import annotations

import functools
import sys
import threading
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import Binarizer, FunctionTransformer, Normalizer, PolynomialFeatures

from dpkernel.foundations.errors import PrivacyWarning
from dpkernel.privacy.certificate import LAST_STEP_ONLY
from dpkernel.privacy.ledger import Ledger

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
            if is_ours(caller):
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
    if step is None or isinstance(step, str) or is_ours(step):
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


def is_ours(step: Any) -> bool:
    """Whether the class of this object is one of dpkernel, or derived from one."""
    return any(kind.__module__.split(".")[0] == "dpkernel" for kind in type(step).__mro__)


# --- clones and threads


class CountedClones(BaseEstimator):
    """Base class of everything that is fitted privately.

    It warns if several clones are fitted without a ledger, because then nobody adds up their
    budgets.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Let ``fit`` look at its caller, and shield it from NumPy's error modes.

        An exception of NumPy could end a fit that has spent.
        """
        super().__init_subclass__(**options)
        if "fit" in cls.__dict__:
            cls.fit = looking_around(cls.__dict__["fit"])

    def _given_ledger(self) -> Ledger | None:
        """Return the ledger that the user passed, or None."""
        found: Ledger | None = self.ledger
        return found

    def __sklearn_clone__(self) -> Any:
        """Clone with the same ledger. Clones without a ledger remember that they belong together."""
        found = super().__sklearn_clone__()
        if self._given_ledger() is None:
            found._family = _family_of(self)
        return found

    def __getstate__(self) -> Any:
        """Count an unfitted clone that is sent to another process as fitted, to warn in this one."""
        if not hasattr(self, "certificate_"):
            count_fit(self)
        return super().__getstate__()


def looking_around(fit: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``fit`` that warns, before it spends, if a pipeline around it learned without noise.

    The certificate then says that it covers the last step only. Threads fit one object after the
    other, and no exception of NumPy ends a fit that has spent.
    """

    @functools.wraps(fit)
    def watched(self: Any, *arguments: Any, **options: Any) -> Any:
        learned = learned_before(self)
        if learned:
            warnings.warn(
                f"{type(self).__name__} is a step of a pipeline of scikit-learn in which other steps"
                f" learned from the rows without noise or may have mixed them: {', '.join(learned)}. The"
                " certificate covers the last step only, so the whole is not private. Use"
                " dpkernel.preprocessing.PrivatePipeline and its transformers instead.",
                PrivacyWarning,
                stacklevel=2,
            )
        # threads fit one object after the other: a fit that has spent must find its own state in it
        with _all_locks:
            lock = _locks.setdefault(self, threading.RLock())
        with lock, np.errstate(all="ignore"):
            found = fit(self, *arguments, **options)
            if learned and "certificate_" in self.__dict__:
                self.certificate_ = self.certificate_.without(
                    f"what other steps of the pipeline learned without noise: {', '.join(learned)};"
                    f" {LAST_STEP_ONLY}"
                )
        return found

    return watched


_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_all_locks = threading.Lock()
_families: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_fits: dict[str, int] = {}


def _family_of(estimator: Any) -> str:
    """Return the name that all clones of one estimator share, even across processes."""
    own: str | None = getattr(estimator, "_family", None)
    return own or _families.setdefault(estimator, uuid.uuid4().hex)


def count_fit(estimator: Any) -> None:
    """Warn once, when a second clone of one estimator is fitted without a ledger.

    Nobody would add up what the clones spend. Each clone counts once: when it is fitted, or when it
    is sent to another process to be fitted.
    """
    family = estimator.__dict__.get("_family")
    if (
        family is None
        or estimator._given_ledger() is not None
        or "_family_counted" in estimator.__dict__
    ):
        return
    estimator._family_counted = True
    _fits[family] = _fits.get(family, 0) + 1
    if _fits[family] == 2:
        warnings.warn(
            f"Several clones of one {type(estimator).__name__} are fitted without a ledger, as in"
            " cross-validation or a grid search: each spends its epsilon anew and nobody adds them up."
            " Pass ledger=... to record and limit the total. A choice by scikit-learn's own scores is"
            " not private.",
            PrivacyWarning,
            stacklevel=4,
        )
