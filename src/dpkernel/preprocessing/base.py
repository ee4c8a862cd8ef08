"""The base class of private transformers: parameters, tables, and the range of their output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dpkernel.data.blocks import dense_rows, is_stream
from dpkernel.data.declared import resolve_domain
from dpkernel.data.domain import Domain, Interval, Levels, tupled
from dpkernel.data.people import PersonRule
from dpkernel.data.tables import Columns, checked_table, table_to_train
from dpkernel.data.weights import refuse_weights
from dpkernel.estimators.base import PrivateEstimator
from dpkernel.foundations.errors import CertificateError, ParameterError, parameter_message
from dpkernel.foundations.types import JSON, Array, Budget
from dpkernel.foundations.validation import Choice, Constraint, Kind, Real
from dpkernel.preprocessing.rows import StepTable, refuse_stream, rows_of_stream, rows_of_table
from dpkernel.privacy.certificate import Certificate
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import NoiseSource, SeededNoise
from dpkernel.privacy.profiles import gaussian_mu

_NO_WEIGHTS = (
    "what a transformer finds must suit every row, whatever its weight. Pass the weights to the fit of"
    " the model, or of a PrivatePipeline, which hands them to its last step."
)
_ROOM = 1 - 1e-9  # share of mu that is used; the rest is for the rounding of composed parts


class PrivateTransformer(TransformerMixin, PrivateEstimator):
    """Base class of transformers that spend budget."""

    _constraints: ClassVar[Mapping[str, Constraint | tuple[Constraint, ...]]] = {
        "epsilon": Real(1e-100, 1e10),
        "delta": Real(0, 1),
        "ledger": (Choice(None), Kind(Ledger)),
        "noise": (Choice(None), Kind(NoiseSource)),
    }
    _missing_allowed: ClassVar[bool] = False
    _person_records: ClassVar[tuple[str, ...]] = ("one", "mean")  # means have narrower ranges
    _learned: ClassVar[tuple[str, ...]] = ()  # names of the arrays that a fit sets
    _public: ClassVar[tuple[str, ...]] = ()  # parameters that a fitted one needs beside bounds
    _weight: ClassVar[float] = 0.1  # in a pipeline, whose last step has the weight 1

    bounds: Any
    n_features_in_: int
    feature_names_in_: Any

    def fit(self, X: Any, y: Any = None, groups: Any = None, **more: Any) -> Self:
        """Release what is needed about the columns.

        X is an array, sparse matrix, data frame, Dask array or data frame, or a ``BlockStream`` that can
        be read again. A stream contains its targets. ``groups`` are the ids of the people whose rows
        these are, or ``People``: a person with all their rows is then protected instead of a single
        row. There are no weights of rows, because what is found must suit every row. Nothing is
        spent if an argument or X is refused.
        """
        refuse_weights(f"{type(self).__name__}.fit", more, _NO_WEIGHTS)
        return self._fit(X, y, groups)

    def _person_rule(self, asked: str) -> PersonRule:
        found = super()._person_rule(asked)
        needed = getattr(self, "y_range", None) is not None
        return replace(found, reads_target=needed, missing=self._missing_allowed)

    def _open_table(self, X: Any, y: Any) -> StepTable:
        return self._open(X)

    def _check_table(self, X: Any) -> tuple[Any, Columns]:
        """Return X as floats or CSR, and its columns. Raises before a spend."""
        missing = "nan" if self._missing_allowed else "refused"
        table, _, columns = table_to_train(self, X, missing=missing)
        return table, columns

    def _open(self, X: Any, y: Any = None) -> StepTable:
        """Return the rows of any table that ``fit`` accepts, after checking all of them."""
        if is_stream(X):
            missing, needed = self._missing_allowed, getattr(self, "y_range", None) is not None
            return rows_of_stream(
                self, X, y if needed else None, with_target=needed, missing=missing
            )
        table, columns = self._check_table(X)
        return rows_of_table(table, names=columns.names)

    def _check_new_table(self, X: Any) -> Array:
        """Return new rows as floats. Sparse rows become dense."""
        check_is_fitted(self)
        refuse_stream(type(self).__name__, X)
        missing = "nan" if self._missing_allowed else "refused"
        table = checked_table(self, X, sparse_too=True, missing=missing, reset=False)
        return dense_rows(table, slice(None))

    def _ranges(self, columns: Columns) -> list[Interval]:
        """Return the public range of every column."""
        owner = type(self).__name__
        if self.bounds is None:
            raise ParameterError(
                f"{owner} needs 'bounds', a publicly known range of the columns. It may be a thousand"
                " times too wide, for example bounds=(-1e6, 1e6). It is never read from the data."
            )
        domain = resolve_domain(self.bounds, None, columns.count, owner, columns.names)
        found = []
        for column in domain.columns or ():
            if isinstance(column, Levels):
                raise ParameterError(
                    f"{owner} takes columns of numbers. Encode declared levels with"
                    " DeclaredCategories first."
                )
            check_width(owner, "bounds", column)
            found.append(column)
        return found

    def _to_state(self) -> tuple[JSON, dict[str, Array]]:
        """Return the contents of a model file: a JSON header and arrays."""
        check_is_fitted(self)
        columns = Columns.on(self)
        domain = Domain(tuple(self._ranges(columns)))
        header = {
            "certificate": self.certificate_.to_dict(),
            "domain": domain.to_dict(),
            "parameters": {name: _plain(getattr(self, name)) for name in self._public},
            **columns.to_dict(),
        }
        return header, {name: np.asarray(getattr(self, name)) for name in self._learned}

    @classmethod
    def _from_state(cls, header: JSON, arrays: dict[str, Array]) -> Self:
        """Return the fitted transformer that ``_to_state`` described."""
        certificate, domain = (
            Certificate.from_dict(header["certificate"]),
            Domain.from_dict(header["domain"]),
        )
        model = cls(
            epsilon=certificate.epsilon,
            delta=certificate.delta,
            bounds=domain,
            neighbours=certificate.neighbours,
            **{name: tupled(header["parameters"][name]) for name in cls._public},
        )
        Columns.of(header["n_columns"], header["columns"]).set_on(model)
        for name in cls._learned:
            setattr(model, name, arrays[name])
        model.certificate_ = certificate
        model._check_learned(domain)
        return model

    def _check_learned(self, domain: Domain) -> None:
        """Raise if the arrays of a model file do not fit the number of columns."""
        columns = len(domain.columns or ())
        if self.n_features_in_ != columns or any(
            np.shape(getattr(self, name))[-1:] != (columns,) for name in self._learned
        ):
            raise CertificateError("The numbers of this model file do not fit its columns.")

    @property
    def _output_bounds(self) -> Any:
        """The range of the transformed columns if it is known, for ``bounds`` of the next step."""
        return None

    def _n_outputs(self, n_columns: int) -> int:
        """Return the number of output columns, from public numbers."""
        return n_columns

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan, tags.input_tags.sparse = self._missing_allowed, True
        tags.non_deterministic = not isinstance(self.noise, SeededNoise)
        tags.transformer_tags.preserves_dtype = []
        return tags


def _plain(value: Any) -> Any:
    """Return a parameter as JSON values."""
    if isinstance(value, Interval):
        return [value.low, value.high]
    if isinstance(value, (tuple, list, np.ndarray)):
        return [_plain(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value


def shares_of_mu(budget: Budget, shares: Sequence[float]) -> list[float]:
    """Return the mu of each Gaussian release, so that together they stay within the budget."""
    mu = gaussian_mu(min(budget.epsilon, 1e10), budget.delta) * _ROOM
    return [mu * math.sqrt(share / math.fsum(shares)) for share in shares]


def ranges_as_json(ranges: Sequence[Interval]) -> list[dict[str, float]]:
    """Return public ranges as JSON values, for certificates."""
    return [interval.to_dict() for interval in ranges]


def check_width(owner: str, name: str, interval: Interval) -> None:
    """Raise for a range whose squares overflow or underflow."""
    most = max(abs(interval.low), abs(interval.high))
    if not (most <= 1e100 and interval.half_width >= 1e-100):
        allowed = "at most 1e100 in magnitude and at least 2e-100 wide, for each column"
        got = (interval.low, interval.high)
        raise ParameterError(parameter_message(owner, name, allowed, got))
