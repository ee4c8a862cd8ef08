"""The base class of feature maps: public recipes that turn rows of X into bounded vectors."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.stats import qmc
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dpkernel.data.tables import checked_table
from dpkernel.foundations.errors import CertificateError, ParameterError, parameter_message
from dpkernel.foundations.rounding import gamma
from dpkernel.foundations.types import JSON, Array, is_whole
from dpkernel.models.graph import Graph
from dpkernel.models.kernels import Kernel, kernel_from_dict


class FeatureMap(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """A data-independent map phi with ||phi(x)|| <= row_norm_bound for every x.

    It is a scikit-learn transformer. ``fit`` uses the number of columns and nothing else;
    ``build(n_inputs)`` does the same without data. Everything in the map follows from its
    parameters and its public seed, so a model file stores the recipe and no row.

    Notes
    -----
    The bound on the norm holds in real arithmetic. Statistics also enforce it by clipping.

    A subclass sets ``kind`` and implements ``_build(n_inputs)``, ``transform_block`` and
    ``row_norm_bound``. ``_build`` sets ``n_outputs`` and everything that ``transform_block`` needs.
    """

    kind: ClassVar[str]

    @property
    def n_outputs(self) -> int:
        """The length of phi(x), available after ``build``."""
        return self._n_outputs

    @n_outputs.setter
    def n_outputs(self, value: int) -> None:
        self._n_outputs = int(value)

    @property
    @abstractmethod
    def row_norm_bound(self) -> float:
        """The bound on ||phi(x)||, computed from parameters alone. Available after ``build``."""

    @abstractmethod
    def _build(self, n_inputs: int) -> None:
        """Set ``n_outputs`` and all that ``transform_block`` needs, from public numbers only."""

    @abstractmethod
    def transform_block(self, X: Array) -> Array:
        """Return phi of every row, in the dtype of X (float32 or float64), as a new array.

        This is the inner loop: X is finite and has the right number of columns. A huge entry gives
        some finite row, never an error, a warning or a NaN. Several threads may call it at once.
        """

    def write(self, graph: Graph, x: str) -> str:
        """Add phi of every row to an ONNX graph and return its name.

        ``x`` is the name of the rows in the graph. A subclass that the registry does not know is
        refused, because it may compute something else.
        """
        if REGISTRY.get(self.kind) is not type(self):
            raise self._unwritten()
        return self._write(graph, x)

    def _write(self, graph: Graph, x: str) -> str:
        """Add the steps of ``transform_block``, in double precision."""
        raise self._unwritten()

    def _unwritten(self) -> ParameterError:
        return ParameterError(
            f"The feature map {type(self).__name__} can't be written as an ONNX graph. Choose another"
            " one, for example FourierFeatures."
        )

    def evaluation_error(self) -> float | None:
        """Return how far a computed row can be from a function of that row alone.

        Matrix products round the last bits of a row differently, depending on the other rows. The
        result e bounds this: there is a map phi* with ||phi*(x)|| <= row_norm_bound such that, for
        float64 rows in the unit box, every row of ``transform_block`` is within e of phi* in l2
        norm. This holds for any other rows, in any number and order, and for any memory layout and
        number of threads. None means that no bound is known. ``dpkernel.foundations.rounding``
        states what is assumed about the machine. Available after ``build``.
        """
        return None

    def building_bytes(self, n_inputs: int) -> int:
        """Return about how much memory ``build`` will take, from parameters alone.

        The default is four numbers per input and output. Maps that need more override it.
        """
        return 32 * (n_inputs + 8) * (int(getattr(self, "n_components", 0)) + 8)

    def build(self, n_inputs: int) -> Any:
        """Prepare the map for rows of this length and return it."""
        self.n_features_in_ = int(n_inputs)
        self._build(int(n_inputs))
        self._n_features_out = self.n_outputs
        return self

    def fit(self, X: Any, y: Any = None) -> Any:
        """Take the number of columns, and nothing else, from X."""
        X = checked_table(self, X)
        return self.build(X.shape[1])

    def transform(self, X: Any) -> Array:
        """Return phi of every row."""
        check_is_fitted(self)
        X = checked_table(self, X, reset=False)
        return self.transform_block(X)

    def to_dict(self) -> JSON:
        """Return the recipe: kind, number of inputs and parameters, as JSON values."""
        return {"kind": self.kind, "n_inputs": self.n_features_in_, "parameters": self._recipe()}

    def _recipe(self) -> JSON:
        """Return the parameters as JSON values. Override it if a parameter is not a JSON value."""
        values = self.get_params(deep=False)
        return {name: _to_json(value) for name, value in values.items()}

    @classmethod
    def _from_recipe(cls, parameters: JSON) -> Any:
        """Return the map, not yet built, from the result of ``_recipe``."""
        values = dict(parameters)
        if isinstance(values.get("kernel"), dict):
            values["kernel"] = kernel_from_dict(values["kernel"])
        return cls(**values)

    def _public_uniforms(self) -> np.random.Generator:
        """Return the public generator of this map, which follows from its kind and ``random_state``.

        Maps of two kinds with the same seed draw independent numbers. Only uniform numbers are
        drawn, because their stream does not change between versions of NumPy.
        """
        seed = getattr(self, "random_state", 0)
        if not is_whole(seed) or not 0 <= seed < 2**64:
            allowed, owner = "an int in the range [0, 2^64)", type(self).__name__
            advice = "It is public, and part of the model."
            raise ParameterError(parameter_message(owner, "random_state", allowed, seed, advice))
        sequence = np.random.SeedSequence([int(seed), *self.kind.encode()])
        return np.random.Generator(np.random.PCG64(sequence))

    def public_sample(self, n: int) -> Array:
        """Return n quasi-random points of the unit box, always the same for the same recipe."""
        return 2 * shifted_sobol(n, self.n_features_in_, self._public_uniforms()) - 1

    def _require_components(self, least: int = 1, most: int = 1_000_000) -> int:
        """Return ``n_components`` if it is a whole number in the allowed range."""
        n: Any = getattr(self, "n_components", None)
        if not is_whole(n) or not least <= n <= most:
            owner, allowed = type(self).__name__, f"an int from {least} to {most}"
            raise ParameterError(parameter_message(owner, "n_components", allowed, n))
        return int(n)

    def _root_bound(self, kernel: Kernel, n_inputs: int) -> float:
        """Return kappa, the root of the bound on k(x, x), if it is neither tiny nor huge."""
        bound = kernel.diagonal_bound(n_inputs)
        if not 1e-30 <= bound <= 1e30:
            allowed = "such that k(x, x) is bounded by a number in the range [1e-30, 1e30]"
            owner, advice = type(self).__name__, "Take one closer to 1."
            raise ParameterError(
                parameter_message(owner, "length_scale", allowed, f"a bound of {bound:.3g}", advice)
            )
        return math.sqrt(bound)


def shrink_rows(rows: Array, bound: float) -> Array:
    """Scale rows that are longer than ``bound`` back to it, in place, and return them.

    Each new row depends on the old row only. Entries must be below 1e18 in float32 (1e150 in
    float64).
    """
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    limit = rows.dtype.type(bound)
    if (norms > limit).any():
        rows *= (limit / np.maximum(norms, limit))[:, None]
    return rows


def shrinking_error(bound: float, length: int) -> float:
    """Return how far ``shrink_rows`` in float64 can be from the exact projection on the ball.

    For a row that is not longer than the bound, the computed norm errs by gamma(length + 1), and
    the quotient and the product by one rounding each. The projection itself moves no two rows
    apart, so it does not enlarge an error of its input.
    """
    return bound * gamma(length + 4)


def shifted_sobol(n: int, n_columns: int, draws: np.random.Generator) -> Array:
    """Return n points of the unit cube: a Sobol sequence shifted modulo 1 by one uniform vector.

    Each point is uniform, and together they fill the cube evenly. With more than 20,000 columns the
    points are independent instead.
    """
    if n_columns > 20_000:
        return draws.random((n, n_columns))
    sobol = qmc.Sobol(n_columns, scramble=False).random_base2(max(n - 1, 0).bit_length())
    return np.asarray((sobol[:n] + draws.random((1, n_columns))) % 1.0)


def _to_json(value: Any) -> Any:
    if isinstance(value, Kernel):
        return value.to_dict()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, tuple):
        return list(value)
    return value


REGISTRY: dict[str, type[FeatureMap]] = {}


def register(cls: type[FeatureMap]) -> type[FeatureMap]:
    """Register a map under its kind; a class decorator."""
    REGISTRY[cls.kind] = cls
    return cls


@dataclass
class _Allowance:
    """How much memory all maps of one file may take together, and how much of it is left."""

    most: int
    left: int


_allowance: ContextVar[_Allowance | None] = ContextVar("recipe_limit", default=None)


@contextmanager
def recipe_limit(max_bytes: int) -> Iterator[None]:
    """While this context is active, refuse recipes that together need more memory to build.

    Parameters
    ----------
    max_bytes : int
        The limit for all maps that are built in this context.
    """
    token = _allowance.set(_Allowance(max_bytes, max_bytes))
    try:
        yield
    finally:
        _allowance.reset(token)


def feature_map_from_dict(data: JSON) -> FeatureMap:
    """Return the built map that ``to_dict`` described.

    Parameters
    ----------
    data : dict
        JSON values, as ``to_dict`` returns them.

    Raises
    ------
    CertificateError
        If they describe no feature map.
    """
    room = _allowance.get()
    before = None if room is None else room.left
    try:
        found: FeatureMap = REGISTRY[data["kind"]]._from_recipe(data["parameters"])
        _take_room(found, data["n_inputs"], before)
        found.build(data["n_inputs"])
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        known = ", ".join(sorted(REGISTRY))
        raise CertificateError(
            f"The feature map can't be read ({type(error).__name__}: {error}). Its 'kind' must be one"
            f" of {known}, with that kind's parameters."
        ) from error
    return found


def _take_room(found: FeatureMap, n_inputs: Any, before: int | None) -> None:
    """Count the memory of a map; ``before`` is what was left before its inner maps were built."""
    if not is_whole(n_inputs) or not n_inputs >= 1:
        raise ParameterError("The number of inputs must be an int >= 1.")
    room = _allowance.get()
    if room is None or before is None:
        return
    left = min(before - found.building_bytes(n_inputs), room.left)
    if not left >= 0:
        raise ParameterError(f"It would take more than the {room.most} bytes of memory allowed.")
    room.left = left
