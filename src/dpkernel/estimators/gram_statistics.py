"""Statistics that are gathered piece by piece, on one or many machines, and released once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sklearn.base import clone

from dpkernel.data.blocks import one_block
from dpkernel.data.passes import Passes
from dpkernel.data.sources import Source
from dpkernel.estimators.base import FitPlan, Fitted
from dpkernel.estimators.gram_pass import gram_of_blocks
from dpkernel.estimators.opening import Opened
from dpkernel.estimators.ridge import GramPlan, PrivateKernelRidge
from dpkernel.foundations.errors import DataError, LedgerError, ParameterError, parameter_message
from dpkernel.foundations.types import is_whole, no_add_remove
from dpkernel.privacy.folds import GramFolds
from dpkernel.privacy.ledger import Ledger
from dpkernel.privacy.noise import Noise


class GramStatistics:
    """The sums from which a ``PrivateKernelRidge`` is fitted, for tables that arrive in pieces.

    ``update`` adds rows, ``merge`` adds what another object gathered, and ``release`` draws the
    noise once and returns the fitted model. The sums themselves can't be printed, pickled or read.

    Parameters
    ----------
    model : PrivateKernelRidge
        The parameters of the fit. Everything follows from them and from the sizes.
    n_rows, n_columns : int
        The size of the whole table. It is public, and is declared before the first row is seen.
    n_targets : int, optional
        The number of columns of y. None means that y has shape (n,).

    Notes
    -----
    Guarantee
        That of the model, on the assumption that no row is added twice.
    Not covered
        A row that is added more than once, by ``update`` or by a ``merge`` of two objects that both
        hold it. A record that is added k times moves the sums k times as far as the noise was
        calibrated for. Rows are not kept, so this class cannot notice it; you vouch for it. The
        certificate lists it among its assumptions, as "each-row-once". A person with several rows is not
        protected as a whole, and rows have no weights: ``PrivateKernelRidge.fit`` takes ``groups`` and
        ``sample_weight``, for streams and Dask tables, too.

    Examples
    --------
    >>> import numpy as np
    >>> from dpkernel import GramStatistics, PrivateKernelRidge
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (2000, 3)); y = X[:, 0] * X[:, 1]
    >>> model = PrivateKernelRidge(bounds=(-1, 1), y_bounds=(-1, 1))
    >>> north, south = (GramStatistics(model, 2000, 3) for _ in range(2))
    >>> fitted = north.update(X[:900], y[:900]).merge(south.update(X[900:], y[900:])).release()
    >>> fitted.certificate_.private
    True
    """

    def __init__(
        self, model: PrivateKernelRidge, n_rows: int, n_columns: int, n_targets: int | None = None
    ) -> None:
        fine = isinstance(model, PrivateKernelRidge) and model.folds == 1
        if not fine or model.solver != "gram":
            allowed = "a PrivateKernelRidge with folds=1 and solver='gram'"
            got = type(model).__name__
            raise ParameterError(parameter_message("GramStatistics", "model", allowed, got))
        for name, size in (("n_rows", n_rows), ("n_columns", n_columns), ("n_targets", n_targets)):
            if (size is not None or name != "n_targets") and (not is_whole(size) or size < 1):  # type: ignore[operator]
                raise ParameterError(parameter_message("GramStatistics", name, "an int >= 1", size))
        self._model: PrivateKernelRidge = clone(model)
        budget, relation = self._model._check_parameters()
        if not relation.n_is_public:
            raise ParameterError(no_add_remove("GramStatistics"))
        shape = () if n_targets is None else (int(n_targets),)
        source = Source("pieces", int(n_rows), int(n_columns), shape, None)
        self._shape = shape
        self._plan = self._model._plan_gram(source, budget, relation)
        self._sum: GramFolds | None = GramFolds(self._plan.recipe.layout)

    def update(self, X: Any, y: Any) -> GramStatistics:
        """Add rows that were not added before: X of shape (n, columns), y of (n,) or (n, targets)."""
        whole = self._open()
        for rows, targets in one_block(X, y):
            piece = Source("array", len(targets), rows.shape[1], targets.shape[1:], rows, targets)
            if (piece.n_columns, piece.target_shape) != (self._plan.source.n_columns, self._shape):
                raise DataError("X or y has other columns than the statistics declare.")
            whole.merge(Passes(piece).run(gram_of_blocks, self._plan.recipe)[0])
        return self

    def merge(self, other: GramStatistics) -> GramStatistics:
        """Add what another object of the same model and sizes gathered from other rows.

        The other object is empty afterwards.
        """
        mine, theirs = self._open(), other._open()
        first, second = self._plan, other._plan
        same = first.features.to_dict() == second.features.to_dict()
        if other is self or not same or first.domain != second.domain:
            raise DataError("Only statistics of the same model and sizes can be merged, once.")
        mine.merge(theirs)
        other._sum = None
        return self

    def release(self, ledger: Ledger | None = None) -> PrivateKernelRidge:
        """Return the fitted model. The noise is paid for in ``ledger``, or in that of the model.

        All declared rows must have been added. The statistics can't be used again.
        """
        whole, model = self._open(), self._model
        if whole._rows != self._plan.source.n_rows:
            raise DataError(
                "The statistics do not hold the declared number of rows, so nothing was spent."
            )
        if ledger is not None:
            model.ledger = ledger
        budget, _ = model._check_parameters()
        model._finish(Opened(self._plan.source), _Gathered(self._plan, whole, self), budget)
        return model

    def _open(self) -> GramFolds:
        if self._sum is None:
            raise DataError("These statistics were released or merged into others.")
        return self._sum

    def __repr__(self) -> str:
        n, columns = self._plan.source.n_rows, self._plan.source.n_columns
        return f"<GramStatistics for {n} rows of {columns} columns; sums are not shown>"

    def __reduce__(self) -> str:
        raise LedgerError("Un-noised statistics can't be pickled or copied. Release them instead.")


class _Gathered(FitPlan):
    """A plan whose rows are already summed up."""

    def __init__(self, plan: GramPlan, sums: GramFolds, statistics: GramStatistics) -> None:
        self._plan, self._sums, self._statistics = plan, sums, statistics
        self.releases = plan.releases

    def run(self, noise: Noise) -> Fitted:
        """Release the sums. They can't be used again."""
        self._statistics._sum = None
        found = replace(self._plan, sums=self._sums).run(noise)
        return replace(found, public={**found.public, "rows_added_by": "caller"})
